//! Pages of `--html` in headless Chromium: they load without errors, can be stepped through, show their views, and are legible
//! in narrow and wide windows with light and dark colors. Screenshots are left in `target/tmp/pages`.

mod folder;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// A browser controlled by the DevTools protocol over pipes.
struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Value,
    sent: u64,
    /// Errors of the page.
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
        // The browser reads commands from descriptor 3 and writes answers to descriptor 4.
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

    fn resize(&mut self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Sets the preferred color scheme.
    fn prefer(&mut self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    fn load(&mut self, page: &Path) {
        self.resize(1440, 900);
        self.prefer("light");
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

    /// Writes a screenshot, and returns its number of colors.
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

/// Opens each view of a page and takes a screenshot.
fn look(browser: &mut Browser, folder: &Path, name: &str, views: &[&str]) {
    browser.load(&folder.join(format!("{name}.html")));
    let shown = browser.evaluate("[...document.querySelectorAll('nav button')].map((button) => button.textContent)");
    assert_eq!(shown, json!(views), "{name}");
    for view in 0..views.len().max(1) {
        browser.evaluate(&format!("document.querySelectorAll('nav button')[{view}]?.click()"));
        let colors = browser.picture(&folder.join(format!("{name}-{view}.png")));
        assert!(colors > 20, "{name} shows nothing in view {view}");
    }
    for (width, height) in [(600, 900), (1280, 800)] {
        browser.resize(width, height);
        for scheme in ["light", "dark"] {
            browser.prefer(scheme);
            for view in 0..views.len().max(1) {
                browser.evaluate(&format!("document.querySelectorAll('nav button')[{view}]?.click()"));
                browser.picture(&folder.join(format!("{name}-{view}-{width}-{scheme}.png")));
                let what = format!("{name}, view {view}, {width} px, {scheme}");
                assert_eq!(browser.evaluate(OVERFLOW), json!([]), "{what}");
                assert_eq!(browser.evaluate(CUT), json!([]), "{what}");
                assert_eq!(browser.evaluate(FAINT), json!([]), "{what}");
            }
        }
    }
    browser.resize(1440, 900);
    browser.prefer("light");
    browser.evaluate("document.querySelector('nav button')?.click()");
    assert_eq!(browser.problems, [""; 0], "{name}");
}

/// Elements that make the page wider than its window.
const OVERFLOW: &str = "document.documentElement.scrollWidth <= innerWidth ? [] :
    [...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 90))";

/// Clipped texts, and tables wider than their panel.
const CUT: &str = "[...document.querySelectorAll('body *')].filter((e) => {
        const { textOverflow, overflowX } = getComputedStyle(e);
        const clips = textOverflow === 'ellipsis' || (overflowX === 'hidden' && [...e.childNodes].some((node) => node.nodeType === 3));
        return (clips || e.matches('.table')) && e.scrollWidth > e.clientWidth + 1;
    }).map((e) => e.textContent)";

/// Visible texts whose contrast is below 4.5 : 1, the minimum of WCAG 2 for text.
const FAINT: &str = "(() => {
    const parts = (color) => color.match(/[\\d.]+/g).map(Number);
    const luminance = (color) => {
        const [r, g, b] = color.map((part) => (part /= 255) <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (e) => {
        for (; e; e = e.parentElement) {
            const [r, g, b, alpha = 1] = parts(getComputedStyle(e).backgroundColor);
            if (alpha === 1) return [r, g, b];
        }
        return [255, 255, 255];
    };
    const faint = new Set();
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const [text, e] = [texts.currentNode.textContent.trim(), texts.currentNode.parentElement];
        if (!text || !e.getClientRects().length || e.closest('script, select, title')) continue;
        const style = getComputedStyle(e);
        const [a, b] = [parts(e instanceof SVGElement ? style.fill : style.color).slice(0, 3), ground(e)].map(luminance);
        if ((Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5) faint.add(text);
    }
    return [...faint];
})()";

/// Texts of the elements that match a selector.
fn texts(browser: &mut Browser, selector: &str) -> Vec<String> {
    let found = browser.evaluate(&format!("[...document.querySelectorAll({selector:?})].map((e) => e.textContent)"));
    serde_json::from_value(found).expect("texts")
}

/// Number of code rows in the page.
fn rows(browser: &mut Browser) -> u64 {
    browser.evaluate("document.querySelectorAll('.view.on .code .item').length").as_u64().expect("a number")
}

/// Selects each kernel of a run and steps to its first change. Returns the names.
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
fn pages_load_and_show_their_views() {
    let folder = folder::empty("pages");
    let example = |name: &str| format!("{}/../../examples/{name}.vyre", env!("CARGO_MANIFEST_DIR"));
    let mut browser = Browser::open(&folder);

    vyre(&folder, &["explain", &example("kernels/matmul_tiled"), "--html", "matmul.html"]);
    look(&mut browser, &folder, "matmul", &[]);
    let step = "Number(document.body.dataset.step)";
    let title = "document.querySelector('.detail h2').textContent";
    assert_eq!((browser.evaluate(step), browser.evaluate(title)), (json!(0), json!("as written")));
    // The right arrow key goes to the next change, whose lines are marked.
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
    browser.press("Home");
    let chips = texts(&mut browser, ".detail .chips > span");
    for measure in ["cost ", "nodes ", "heap bytes "] {
        assert!(chips.iter().any(|chip| chip.starts_with(measure)), "{chips:?}");
    }
    // Growth by unrolling is not marked as a regression; all measures have meanings.
    let unrolling =
        "data.programs[0].steps.findIndex((step) => step.pass === 'unroll_loops' && step.verdict === 'changed')";
    browser.evaluate(&format!("current.go({unrolling})"));
    let chips = texts(&mut browser, ".detail .chips > span");
    assert!(chips.iter().any(|chip| chip.starts_with("nodes") && chip.contains('+')), "{chips:?}");
    assert_eq!(texts(&mut browser, ".detail .up"), [""; 0]);
    assert_eq!(texts(&mut browser, ".detail .meaning").len(), chips.len());
    assert!(texts(&mut browser, ".detail .meaning").iter().all(|meaning| !meaning.is_empty()), "{chips:?}");
    // Reasons for the selection are not truncated.
    browser.evaluate("[...document.querySelectorAll('.side .tabs button')].at(-1).click()");
    browser.picture(&folder.join("matmul-selection.png"));
    assert_eq!(
        browser.evaluate(
            "[...document.querySelectorAll('.selection .why')].every((e, at) => e.scrollWidth <= e.clientWidth &&
                e.textContent.endsWith(reason(data.programs[0].explained.passes[at].why)))"
        ),
        true
    );
    browser.evaluate("document.querySelector('.side .tabs button').click()");
    // Source lines with IR are marked.
    browser.press("End");
    browser.evaluate("document.querySelectorAll('.view.on .code')[1].scrollTop = 200");
    // Lines such as `}` have no source line.
    let links = "[...document.querySelectorAll('.view.on .code')[1].querySelectorAll('.item')].reverse()
        .some((row) => (row.click(), document.querySelectorAll('.linked').length >= 2))";
    assert_eq!(browser.evaluate(links), true);
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
    // Lists render visible rows only.
    assert!((40..200).contains(&rows(&mut browser)), "{}", rows(&mut browser));

    vyre(&folder, &["explain", &example("pipelines/soften"), "--device", "cpu", "--html", "soften.html"]);
    look(&mut browser, &folder, "soften", &["Launches", "affine_square", "mean"]);
    let launches = browser.evaluate("document.querySelectorAll('svg rect[rx=\"8\"]').length");
    assert_eq!(launches, 5, "three before fusion, two after it");
    let decisions = texts(&mut browser, ".view.on tbody tr");
    assert_eq!(decisions.len(), 2, "{decisions:?}");
    assert!(decisions[0].starts_with("0 affine1 squarefused"), "{decisions:?}");
    assert!(decisions[1].starts_with("0 affine, 1 square2 meannot fusedsquared (RAW)"), "{decisions:?}");
    let whole = "data.pipeline.dispatches[2].why";
    assert!(browser.evaluate(whole).as_str().is_some_and(|why| decisions[1].ends_with(why.trim_start_matches("no: "))));

    let graph = ["graph", "bfs", "kron:14", "--source", "9", "--no-cache", "--device", "cpu", "--html", "graph.html"];
    vyre(&folder, &graph);
    look(&mut browser, &folder, "graph", &["Steps", "Timeline"]);
    assert_eq!(browser.evaluate("data.graph.iterations.every((step) => step.topology && step.reason)"), true);
    let axes = texts(&mut browser, ".view.on .axis-name");
    assert!(axes.iter().any(|axis| axis.starts_with("step time (") && axis.ends_with("s)")), "{axes:?}");
    assert!(texts(&mut browser, ".view.on .tick").len() > 5);
    // Step time excludes compilation, which happens in the first step.
    assert_eq!(browser.evaluate("data.graph.iterations[0].compile_ns > 0"), true);
    let columns = texts(&mut browser, ".view.on th");
    for column in ["step time", "compile time"] {
        assert!(columns.iter().any(|found| found == column), "{columns:?}");
    }
    let kernels = step_through_kernels(&mut browser, &folder.join("graph-kernel.png"));
    assert!(kernels.iter().any(|name| name == "bfs_sparse"), "{kernels:?}");

    vyre(&folder, &["megakernel", "demo", "--items", "20000", "--device", "cpu", "--html", "queue.html"]);
    look(&mut browser, &folder, "queue", &["Queue", "Timeline"]);
    let slices = "data.timeline.filter((event) => event.args.topology_why && event.args.mode_why).length > 1";
    assert_eq!(browser.evaluate(slices), true);
    let drains = texts(&mut browser, ".view.on .column > .panel tbody td:nth-child(2)").concat();
    assert!(drains.starts_with('1') && drains.ends_with('2'), "{drains}");
    let labels = texts(&mut browser, ".view.on .card .label");
    for label in ["throughput", "latency p50", "latency p90", "latency p99"] {
        assert!(labels.iter().any(|found| found == label), "{labels:?}");
    }
    assert!(texts(&mut browser, ".view.on .card .figure")[0].ends_with(" items/s"));
    let end = "document.querySelector('.view.on .column > .panel:last-child').getBoundingClientRect().bottom";
    assert!(browser.evaluate(end).as_f64().is_some_and(|bottom| bottom > 880.0), "the page ends above its window");
    let kernels = step_through_kernels(&mut browser, &folder.join("queue-kernel.png"));
    assert!(kernels.iter().any(|name| name == "scale"), "{kernels:?}");
    browser.evaluate("turn(views.at(-1))");
    browser.press("+");
    browser.press("ArrowRight");
    assert_eq!(browser.problems, [""; 0]);
}
