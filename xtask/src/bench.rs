//! `cargo xtask bench [SUITE] …`: builds in release and runs a suite, or all of them. With `--record`, what a full run measures is kept under
//! `bench/records`, and the tables and plots of `bench/README.md` and the README are made from that. `cargo xtask bench --redraw` makes these
//! from what is kept, and measures nothing.

use std::fmt::Write as _;
use std::process::Stdio;

use crate::root;
use crate::test::{cargo, passes};

const README: &str = "README.md";
const ALL: &str = "bench/README.md";
const RECORDS: &str = "bench/records";
/// The README has the table and the plot of this suite, without the lines that compare ours with ours.
const HEADLINES: &str = "kernels";
/// That plot.
const HEADLINES_PLOT: &str = "headlines.svg";
/// It is between these.
const MARKS: [&str; 2] =
    ["<!-- records: made by `cargo xtask bench SUITE --record` -->\n", "<!-- end of records -->\n"];
const SUITES: [&str; 8] = ["compile", "kernels", "gpu", "pipeline", "planners", "megakernel", "graph", "host"];

pub(crate) fn run(arguments: &[&str]) -> bool {
    if arguments == ["--redraw"] {
        return redraw().inspect_err(|error| eprintln!("error: cannot use the records: {error}")).is_ok();
    }
    let command = || {
        let mut command = cargo("run");
        command.args(["--quiet", "--locked", "--release", "--package", "vyre-bench", "--"]);
        command
    };
    let suites = match arguments {
        [suite, ..] if !suite.starts_with('-') => std::slice::from_ref(suite),
        _ => &SUITES,
    };
    let flags = &arguments[arguments.len().min(usize::from(suites.len() == 1))..];
    suites.iter().all(|suite| match flags {
        ["--record"] => {
            let output = command().args([suite, "--json"]).stderr(Stdio::inherit()).output();
            let result = match output {
                Ok(output) if output.status.success() => record(suite, &String::from_utf8_lossy(&output.stdout)),
                Ok(_) => return false,
                Err(error) => Err(error),
            };
            result.inspect_err(|error| eprintln!("error: cannot keep the record: {error}")).is_ok()
        }
        _ => passes(command().arg(suite).args(flags)),
    })
}

/// Keeps the lines of a run, and brings what is made of them up to date.
fn record(suite: &str, lines: &str) -> std::io::Result<()> {
    let folder = root().join(RECORDS);
    std::fs::create_dir_all(&folder)?;
    let header = format!("{{\"machine\":\"{}\"}}\n", machine());
    std::fs::write(folder.join(format!("{suite}.jsonl")), header + lines)?;
    redraw()
}

/// Brings what is made of the records up to date.
fn redraw() -> std::io::Result<()> {
    for (file, text) in made(&std::fs::read_to_string(root().join(README))?)? {
        std::fs::write(root().join(file), text)?;
    }
    Ok(())
}

/// The README before, between and after the marks.
fn parts(readme: &str) -> Option<(&str, &str, &str)> {
    let start = readme.find(MARKS[0])? + MARKS[0].len();
    let end = start + readme[start..].find(MARKS[1])?;
    Some((&readme[..start], &readme[start..end], &readme[end..]))
}

/// The files that are not what the records give, and why.
pub(crate) fn stale(readme: &str) -> Vec<(String, String)> {
    match made(readme) {
        Ok(made) => {
            let found = |file: &str| std::fs::read_to_string(root().join(file)).unwrap_or_default();
            let stale = made.into_iter().filter(|(file, text)| found(file) != *text);
            stale.map(|(file, _)| (file, "it is not what `cargo xtask bench --redraw` makes".into())).collect()
        }
        Err(error) => vec![(README.into(), format!("the records cannot be read: {error}"))],
    }
}

/// What is made of the records: a plot of each suite, the README, which has the lines of one of them, and the file with all.
fn made(readme: &str) -> std::io::Result<Vec<(String, String)>> {
    let (before, _, after) = parts(readme).ok_or_else(|| std::io::Error::other("the marks are missing"))?;
    let mut all = String::from(
        "# Records\n\n\
         Made by `cargo xtask bench --record`. Numbers are the time of others ÷ ours, so that above 1 ours is faster. A goal is a\n\
         time that we aim at, where there is nobody to compare with.\n",
    );
    let (mut headlines, mut files) = (String::new(), Vec::new());
    for suite in SUITES {
        let Ok(record) = std::fs::read_to_string(root().join(RECORDS).join(format!("{suite}.jsonl"))) else { continue };
        let rows = rows(&record);
        let machine = record.lines().next().and_then(|line| field(line, "machine")).unwrap_or_default();
        let _ = write!(all, "\n## {suite}\n\n`cargo xtask bench {suite}`, on {machine}:\n\n{}", table(&rows));
        let _ = writeln!(all, "\n![{suite} as a plot](records/{suite}.svg)");
        files.push((format!("{RECORDS}/{suite}.svg"), plot(&rows)));
        if suite == HEADLINES {
            let bare: Vec<Row> = rows.into_iter().filter(|row| !row.name.contains("_vs_")).collect();
            let _ = write!(
                headlines,
                "\n`cargo xtask bench {suite}`, on {machine}; the time of others ÷ ours, so that above 1 ours is faster:\n\n{}\n\
                 ![The same as a plot]({RECORDS}/{HEADLINES_PLOT})\n\n",
                table(&bare)
            );
            files.push((format!("{RECORDS}/{HEADLINES_PLOT}"), plot(&bare)));
        }
    }
    files.extend([(README.into(), format!("{before}{headlines}{after}")), (ALL.into(), all)]);
    Ok(files)
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from("| | ours | others ÷ ours |\n|---|---|---|\n");
    for row in rows {
        let ratio = |(baseline, ratio): &(String, f64)| format!("{ratio:.2} {}", other(baseline));
        let ratios: Vec<String> = row.ratios.iter().map(ratio).collect();
        let _ = writeln!(text, "| {} | {} | {} |", row.name, duration(row.ours_ns), ratios.join(", "));
    }
    text
}

/// What ours is compared with: a time is what we aim at.
fn other(baseline: &str) -> String {
    match baseline.split_once(' ') {
        Some((_, "ns" | "us" | "ms")) => format!("goal of {baseline}"),
        _ => baseline.into(),
    }
}

/// Lines that measure the same work.
struct Row {
    name: String,
    ours_ns: f64,
    /// Baselines, and their times divided by ours.
    ratios: Vec<(String, f64)>,
}

fn rows(record: &str) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for line in record.lines() {
        let number = |name: &str| field(line, name).and_then(|text| text.parse::<f64>().ok());
        let (Some(name), Some(baseline)) = (field(line, "name"), field(line, "baseline")) else { continue };
        let (Some(ours_ns), Some(ratio)) = (number("ours_ns"), number("ratio")) else { continue };
        let bare = name.split("_vs_").next().unwrap_or(name);
        match rows.iter_mut().find(|row| row.name == bare && row.ours_ns == ours_ns) {
            Some(row) => row.ratios.push((baseline.into(), ratio)),
            None => rows.push(Row { name: name.into(), ours_ns, ratios: vec![(baseline.into(), ratio)] }),
        }
    }
    rows
}

/// The value of a field of an object whose values are texts without quotes in them, and numbers.
fn field<'l>(line: &'l str, name: &str) -> Option<&'l str> {
    let key = format!("\"{name}\":");
    let value = &line[line.find(&key)? + key.len()..];
    match value.strip_prefix('"') {
        Some(text) => text.split('"').next(),
        None => value.split([',', '}']).next(),
    }
}

fn duration(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.1} µs", ns / 1e3),
        ns => format!("{:.1} ms", ns / 1e6),
    }
}

/// A bar for every ratio, on a logarithmic scale, with a line where both are as fast.
fn plot(rows: &[Row]) -> String {
    let [left, middle, right, bar] = [330.0, 450.0, 770.0, 14.0];
    let bars: usize = rows.iter().map(|row| row.ratios.len()).sum();
    let height = bar * (bars + 1) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"830\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"830\" height=\"{height}\" fill=\"white\"/>\n"
    );
    let mut y = 0.0;
    for row in rows {
        for (baseline, ratio) in &row.ratios {
            // An octave is 40 units wide.
            let end = (middle + 40.0 * ratio.log2()).clamp(left, right);
            let (x, width) = (end.min(middle), (end - middle).abs());
            let fill = if *ratio >= 1.0 { "#2a7" } else { "#c73" };
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{} ÷ {}</text>\
                 <rect x=\"{x:.1}\" y=\"{}\" width=\"{width:.1}\" height=\"{}\" fill=\"{fill}\"/>\
                 <text x=\"{:.1}\" y=\"{}\">{ratio:.2}</text>",
                left - 6.0,
                y + bar - 2.0,
                other(baseline),
                row.name,
                y + 2.0,
                bar - 3.0,
                end.max(middle) + 4.0,
                y + bar - 2.0
            );
            y += bar;
        }
    }
    let _ = writeln!(svg, "<line x1=\"{middle}\" y1=\"0\" x2=\"{middle}\" y2=\"{y}\" stroke=\"black\"/>\n</svg>");
    svg
}

/// The processor that this runs on, and how many of its threads.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let of = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split(": ").nth(1)).map(|value| value.trim().to_owned())
    };
    let model = of("model name").unwrap_or_else(|| std::env::consts::ARCH.into());
    let flags = of("flags").unwrap_or_default();
    let has = |name: &str| flags.split(' ').any(|flag| flag == name);
    let vectors = if has("avx512f") {
        ", AVX-512"
    } else if has("avx2") {
        ", AVX2"
    } else {
        ""
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}{vectors}, {threads} threads")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "\
        {\"suite\":\"s\",\"name\":\"a\",\"baseline\":\"expert\",\"ours_ns\":1500,\"ratio\":0.500}\n\
        {\"suite\":\"s\",\"name\":\"a_vs_rayon\",\"baseline\":\"rayon\",\"ours_ns\":1500,\"ratio\":2.000}\n\
        {\"suite\":\"s\",\"name\":\"b\",\"baseline\":\"limit\",\"ours_ns\":7,\"ratio\":1.000}\n\
        {\"suite\":\"s\",\"name\":\"c\",\"baseline\":\"3 us\",\"ours_ns\":1000,\"ratio\":3.000}\n";

    #[test]
    fn lines_of_the_same_work_are_a_row() {
        let rows = rows(LINES);
        assert_eq!(rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(rows[0].ratios, [("expert".to_owned(), 0.5), ("rayon".to_owned(), 2.0)]);
        assert_eq!([duration(rows[0].ours_ns), duration(rows[1].ours_ns)], ["1.5 µs", "7 ns"]);
    }

    #[test]
    fn every_ratio_has_a_bar_and_says_what_is_divided_by_what() {
        let plot = plot(&rows(LINES));
        assert_eq!(plot.matches("fill=\"#").count(), 4);
        for label in [">expert ÷ a<", ">rayon ÷ a<", ">limit ÷ b<", ">goal of 3 us ÷ c<"] {
            assert!(plot.contains(label), "{label}: {plot}");
        }
    }
}
