//! Pages of `--html`, in a browser without a window: they load without errors, can be stepped through, and show something.
//! What they look like is in `target/tmp/pages`.

mod folder;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// A browser that is spoken to by its protocol for tools, over pipes.
struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Value,
    sent: u64,
    /// What went wrong in a page.
    problems: Vec<String>,
}

impl Browser {
    fn open(folder: &Path) -> Browser {
        let names = ["chromium", "chromium-browser", "google-chrome"].map(PathBuf::from);
        let named = std::env::var_os("CHROMIUM").map(PathBuf::from);
        let works = |name: &PathBuf| {
            Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
        };
        let found = named.into_iter().chain(names).find(works);
        let found =
            found.expect("pages are tested in Chromium: install it (apt-get install chromium), or set CHROMIUM");
        // The browser reads commands from file 3 and answers in file 4.
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null", "sh"]).arg(found);
        shell.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]);
        shell.arg(format!("--user-data-dir={}", folder.join("profile").display()));
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
        let to = child.stdin.take().expect("a pipe");
        let from = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut browser = Browser { child, to, from, session: Value::Null, sent: 0, problems: Vec::new() };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        browser.session = browser.call("Target.attachToTarget", attach)["sessionId"].clone();
        for domain in ["Runtime.enable", "Log.enable", "Page.enable", "Network.enable"] {
            browser.call(domain, json!({}));
        }
        browser
    }

    /// The next message.
    fn receive(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes).expect("the browser answers");
        bytes.pop();
        let message: Value = serde_json::from_slice(&bytes).expect("the browser is still there");
        let told = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown" | "Log.entryAdded") => self.problems.push(told.to_string()),
            Some("Runtime.consoleAPICalled") if told["type"] == "error" => self.problems.push(told.to_string()),
            Some("Network.requestWillBeSent") => {
                let url = told["request"]["url"].as_str().unwrap_or_default();
                if !url.starts_with("file:") && !url.starts_with("data:") {
                    self.problems.push(format!("it asks for {url}"));
                }
            }
            _ => {}
        }
        message
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.sent += 1;
        let mut message = json!({ "id": self.sent, "method": method });
        message["params"] = params;
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).expect("the browser listens");
        loop {
            let answer = self.receive();
            if answer["id"] == self.sent {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
        }
    }

    fn load(&mut self, page: &Path) {
        let size = json!({ "width": 1440, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
        self.call("Page.navigate", json!({ "url": format!("file://{}", page.display()) }));
        while self.receive()["method"] != "Page.loadEventFired" {}
    }

    fn evaluate(&mut self, expression: &str) -> Value {
        let answer = self.call("Runtime.evaluate", json!({ "expression": expression, "returnByValue": true }));
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", json!({ "type": kind, "key": key }));
        }
    }

    /// Keeps what is seen, and says how many colors it has.
    fn picture(&mut self, file: &Path) -> usize {
        let shot = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        let bytes = base64(shot["data"].as_str().expect("a picture"));
        fs::write(file, &bytes).expect("a file can be written");
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().expect("a picture");
        let mut pixels = vec![0; reader.output_buffer_size().expect("its size")];
        let frame = reader.next_frame(&mut pixels).expect("its pixels");
        let pixel = frame.color_type.samples();
        let mut colors: Vec<&[u8]> = pixels.chunks_exact(pixel).collect();
        colors.sort_unstable();
        colors.dedup();
        colors.len()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn base64(text: &str) -> Vec<u8> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.bytes().filter(|c| *c != b'=').map(digit).collect();
    let four = |four: &[u8]| {
        let bits = (0..4).fold(0u32, |bits, at| (bits << 6) | u32::from(four.get(at).copied().unwrap_or(0)));
        bits.to_be_bytes()[1..four.len()].to_vec()
    };
    digits.chunks(4).flat_map(four).collect()
}

fn vyre(folder: &Path, arguments: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vyre"));
    command.current_dir(folder).args(arguments);
    command.env("XDG_CACHE_HOME", folder.join("cache")).env_remove("VYRE_DEVICE");
    let output = command.output().expect("the command can be run");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Goes through the views of a page, and takes a picture of each.
fn look(browser: &mut Browser, folder: &Path, name: &str, views: &[&str]) {
    browser.load(&folder.join(format!("{name}.html")));
    let shown = browser.evaluate("[...document.querySelectorAll('nav button')].map((button) => button.textContent)");
    assert_eq!(shown, json!(views), "{name}");
    for view in 0..views.len().max(1) {
        browser.evaluate(&format!("document.querySelectorAll('nav button')[{view}]?.click()"));
        let colors = browser.picture(&folder.join(format!("{name}-{view}.png")));
        assert!(colors > 20, "{name} shows nothing in view {view}");
    }
    assert_eq!(browser.problems, [""; 0], "{name}");
}

/// How many rows of code there are in the page.
fn rows(browser: &mut Browser) -> u64 {
    browser.evaluate("document.querySelectorAll('.view.on .code .item').length").as_u64().expect("a number")
}

/// Chooses each kernel of a run, and goes to what is changed first in it. Gives their names.
fn step_through_kernels(browser: &mut Browser, picture: &Path) -> Vec<String> {
    let names = "data.programs.map((program) => program.name)";
    let names: Vec<String> = serde_json::from_value(browser.evaluate(names)).expect("names");
    for (number, name) in names.iter().enumerate() {
        let choose = format!(
            "choice.value = {number}; choice.dispatchEvent(new Event('change')); data.programs.indexOf(current.program)"
        );
        assert_eq!(browser.evaluate(&choose), number);
        browser.press("ArrowRight");
        let changes = browser.evaluate("current.program.steps.some((step) => step.verdict === 'changed')");
        let marked = browser.evaluate("document.querySelectorAll('.view.on .added, .view.on .removed').length > 0");
        assert_eq!(changes, marked, "{name}");
        assert!(rows(browser) > 0, "{name}");
    }
    browser.picture(picture);
    names
}

#[test]
fn pages_show_what_they_are_about() {
    let folder = folder::empty("pages");
    let example = |name: &str| format!("{}/../../examples/{name}.vyre", env!("CARGO_MANIFEST_DIR"));
    let mut browser = Browser::open(&folder);

    vyre(&folder, &["explain", &example("kernels/matmul_tiled"), "--html", "matmul.html"]);
    look(&mut browser, &folder, "matmul", &[]);
    let step = "Number(document.body.dataset.step)";
    let title = "document.querySelector('.detail h2').textContent";
    assert_eq!((browser.evaluate(step), browser.evaluate(title)), (json!(0), json!("as written")));
    // To the right there is always a change; the marked lines are what it changed.
    let mut seen = Vec::new();
    loop {
        browser.press("ArrowRight");
        let now = browser.evaluate(step);
        if seen.last() == Some(&now) {
            break;
        }
        let marked = browser.evaluate("document.querySelectorAll('.added, .removed').length > 0");
        assert_eq!(marked, true, "step {now}");
        seen.push(now);
    }
    assert!(seen.len() >= 5, "{seen:?}");
    browser.press("k");
    assert_eq!(browser.evaluate(step).as_u64(), seen.last().and_then(Value::as_u64).map(|last| last - 1));
    browser.press("Home");
    browser.press("j");
    assert_eq!(browser.evaluate(step), 1);
    // A line of the source is marked where something was made of it.
    browser.press("End");
    browser.evaluate("document.querySelectorAll('.view.on .code')[1].scrollTop = 200");
    browser.evaluate("[...document.querySelectorAll('.view.on .code')[1].querySelectorAll('.item')].at(-1).click()");
    assert_eq!(browser.evaluate("document.querySelectorAll('.linked').length >= 2"), true);
    browser.picture(&folder.join("matmul-linked.png"));
    for language in 1..=2 {
        browser.evaluate(&format!("document.querySelectorAll('.view.on .row .tabs button')[{language}].click()"));
        assert!(rows(&mut browser) > 40);
    }

    vyre(&folder, &["generate", "--seed", "3", "--size", "10000", "--no-effects", "--out", "large.vyre"]);
    vyre(&folder, &["explain", "large.vyre", "--html", "large.html"]);
    look(&mut browser, &folder, "large", &[]);
    browser.press("ArrowRight");
    browser.press("ArrowRight");
    browser.evaluate("document.querySelectorAll('.view.on .code').forEach((list) => (list.scrollTop = 150000))");
    browser.picture(&folder.join("large-scrolled.png"));
    // Only what can be seen is there.
    assert!((40..200).contains(&rows(&mut browser)), "{}", rows(&mut browser));

    vyre(&folder, &["explain", &example("pipelines/soften"), "--device", "cpu", "--html", "soften.html"]);
    look(&mut browser, &folder, "soften", &["Launches", "affine_square", "mean"]);
    let launches = browser.evaluate("document.querySelectorAll('svg rect[rx=\"8\"]').length");
    assert_eq!(launches, 5, "three before fusion, two after it");

    let graph = ["graph", "bfs", "kron:14", "--source", "9", "--no-cache", "--device", "cpu", "--html", "graph.html"];
    vyre(&folder, &graph);
    look(&mut browser, &folder, "graph", &["Steps", "Timeline"]);
    assert_eq!(browser.evaluate("data.graph.iterations.every((step) => step.topology && step.reason)"), true);
    let kernels = step_through_kernels(&mut browser, &folder.join("graph-kernel.png"));
    assert!(kernels.iter().any(|name| name == "bfs_sparse"), "{kernels:?}");

    vyre(&folder, &["megakernel", "demo", "--items", "20000", "--device", "cpu", "--html", "queue.html"]);
    look(&mut browser, &folder, "queue", &["Queue", "Timeline"]);
    let slices = "data.timeline.filter((event) => event.args.topology_why && event.args.mode_why).length > 1";
    assert_eq!(browser.evaluate(slices), true);
    let drains = browser
        .evaluate("[...document.querySelectorAll('.table .item')].map((row) => row.children[1].textContent).join()");
    assert!(
        drains.as_str().is_some_and(|drains| drains.starts_with("first,") && drains.contains("second,")),
        "{drains}"
    );
    let kernels = step_through_kernels(&mut browser, &folder.join("queue-kernel.png"));
    assert!(kernels.iter().any(|name| name == "scale"), "{kernels:?}");
    browser.evaluate("turn(views.at(-1))");
    browser.press("+");
    browser.press("ArrowRight");
    assert_eq!(browser.problems, [""; 0]);
}
