//! `cargo xtask bench [SUITE] …`: builds one or all benchmark suites in release mode and runs them. With `--record`,
//! the results of a full run are saved under `bench/records`, and the tables and plots of `bench/README.md` and the
//! README are generated from them. `cargo xtask bench --redraw` generates them from saved results.

use std::fmt::Write as _;
use std::process::Stdio;

use crate::root;
use crate::test::{cargo, passes};

const README: &str = "README.md";
const ALL: &str = "bench/README.md";
const RECORDS: &str = "bench/records";
/// Suites whose tables are in the README, without lines that compare vyre with itself; the first one also has a plot
/// there.
const HEADLINES: [&str; 2] = ["kernels", "gpu"];
const HEADLINES_PLOT: &str = "headlines.svg";
/// Markers around the generated part of the README.
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

/// Saves the results of a run, and regenerates the tables and plots.
fn record(suite: &str, lines: &str) -> std::io::Result<()> {
    let folder = root().join(RECORDS);
    std::fs::create_dir_all(&folder)?;
    let header = format!("{{\"machine\":\"{}\"}}\n", machine());
    std::fs::write(folder.join(format!("{suite}.jsonl")), header + lines)?;
    redraw()
}

/// Regenerates the tables and plots from the records.
fn redraw() -> std::io::Result<()> {
    for (file, text) in generated_files(&std::fs::read_to_string(root().join(README))?)? {
        std::fs::write(root().join(file), text)?;
    }
    Ok(())
}

/// The README before, between and after the markers.
fn parts(readme: &str) -> Option<(&str, &str, &str)> {
    let start = readme.find(MARKS[0])? + MARKS[0].len();
    let end = start + readme[start..].find(MARKS[1])?;
    Some((&readme[..start], &readme[start..end], &readme[end..]))
}

/// Generated files that are out of date, with the reason.
pub(crate) fn stale(readme: &str) -> Vec<(String, String)> {
    match generated_files(readme) {
        Ok(files) => {
            let found = |file: &str| std::fs::read_to_string(root().join(file)).unwrap_or_default();
            let stale = files.into_iter().filter(|(file, text)| found(file) != *text);
            stale.map(|(file, _)| (file, "it is out of date: run `cargo xtask bench --redraw`".into())).collect()
        }
        Err(error) => vec![(README.into(), format!("the records cannot be read: {error}"))],
    }
}

/// Files generated from the records: a plot of each suite, the README with the tables of the headline suites, and the
/// file with all tables.
fn generated_files(readme: &str) -> std::io::Result<Vec<(String, String)>> {
    let (before, _, after) = parts(readme).ok_or_else(|| std::io::Error::other("the marks are missing"))?;
    let mut all = String::from(
        "# Records\n\n\
         Made by `cargo xtask bench --record`. A ratio is the time of the baseline ÷ the time of vyre: above 1, vyre is faster. A goal is a\n\
         target time for work that has no baseline.\n",
    );
    let (mut headlines, mut files) = (String::new(), Vec::new());
    for suite in SUITES {
        let Ok(record) = std::fs::read_to_string(root().join(RECORDS).join(format!("{suite}.jsonl"))) else { continue };
        let rows = rows(&record);
        let machine = place(&record);
        let _ = write!(all, "\n## {suite}\n\n`cargo xtask bench {suite}`, on {machine}:\n\n{}", table(&rows));
        let _ = writeln!(all, "\n![{suite} as a plot](records/{suite}.svg)");
        files.push((format!("{RECORDS}/{suite}.svg"), plot(suite, &machine, &rows)));
        if !HEADLINES.contains(&suite) {
            continue;
        }
        let bare: Vec<Row> = rows.into_iter().filter(|row| !row.name.contains("_vs_")).collect();
        let _ = write!(headlines, "\n`cargo xtask bench {suite}`, on {machine}:\n\n{}", table(&bare));
        if suite == HEADLINES[0] {
            let _ = writeln!(headlines, "\n![The same as a plot]({RECORDS}/{HEADLINES_PLOT})");
            files.push((format!("{RECORDS}/{HEADLINES_PLOT}"), plot(suite, &machine, &bare)));
        }
    }
    headlines.push('\n');
    files.extend([(README.into(), format!("{before}{headlines}{after}")), (ALL.into(), all)]);
    Ok(files)
}

/// Machine of a record, with the adapter of the device `wgpu` if a line names one.
fn place(record: &str) -> String {
    let first = |name: &str| record.lines().find_map(|line| field(line, name));
    let adapter = first("adapter").map(|adapter| format!("; `wgpu` is {adapter}"));
    format!("{}{}", first("machine").unwrap_or_default(), adapter.unwrap_or_default())
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from("| | vyre | baseline ÷ vyre |\n|---|---|---|\n");
    for row in rows {
        let ratio = |(baseline, ratio): &(String, f64)| format!("{ratio:.2} {}", other(baseline));
        let ratios: Vec<String> = row.ratios.iter().map(ratio).collect();
        let _ = writeln!(text, "| {} | {} | {} |", row.name, duration(row.ours_ns), ratios.join(", "));
    }
    text
}

/// Label of a baseline. A baseline that is a time, such as `50 ns`, is labeled as a goal.
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
    /// Baselines, and their times divided by vyre's.
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

/// Value of a field of a JSON object with only numbers and strings without quotes.
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

/// Position of the bars of a plot, in user units.
const BARS: [f64; 2] = [370.0, 800.0];
/// Height of a bar, with the space below it.
const BAR: f64 = 16.0;
/// Top of the first bar.
const TOP: f64 = 68.0;
/// Maximum number of axis ticks, minus one.
const TICKS: i32 = 10;

/// A bar for every ratio on a logarithmic axis, with a line at 1.
fn plot(suite: &str, machine: &str, rows: &[Row]) -> String {
    let [left, right] = BARS;
    let ratios = || rows.iter().flat_map(|row| &row.ratios).map(|(_, ratio)| ratio.max(1e-9).log2());
    let low = ratios().fold(-1.0, f64::min).floor();
    let high = ratios().fold(1.0, f64::max).ceil();
    let x = |octave: f64| left + (octave - low) / (high - low) * (right - left);
    let bottom = TOP + BAR * ratios().count() as f64;
    let height = bottom + 44.0;
    let machine = machine.replace('`', "").replace('&', "&amp;").replace('<', "&lt;");
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"860\" height=\"{height}\" viewBox=\"0 0 860 {height}\" \
         font-family=\"sans-serif\" font-size=\"12\" fill=\"#1c2128\">\n\
         <title>{suite}: time of the baseline ÷ time of vyre</title>\n\
         <rect width=\"860\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"21\" font-size=\"15\" font-weight=\"bold\">{suite}: time of the baseline ÷ time of vyre</text>\n\
         <text x=\"10\" y=\"39\" fill=\"#5b6572\">{machine}</text>\n"
    );
    let octaves = (high - low) as i32;
    let stride = (octaves + TICKS - 1) / TICKS;
    for octave in (low as i32..=high as i32).filter(|octave| octave % stride == 0) {
        let (x, stroke) = (x(f64::from(octave)), if octave == 0 { "#1c2128" } else { "#d5dae0" });
        let _ = writeln!(svg, "<path d=\"M{x:.1} {}V{bottom}\" stroke=\"{stroke}\"/>", TOP - 6.0);
        for y in [TOP - 11.0, bottom + 14.0] {
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\" fill=\"#5b6572\">{}×</text>",
                2f64.powi(octave)
            );
        }
    }
    let mut y = TOP;
    for row in rows {
        let _ = writeln!(svg, "<text x=\"10\" y=\"{}\">{}</text>", y + BAR - 4.0, row.name);
        for (baseline, ratio) in &row.ratios {
            let (one, end) = (x(0.0), x(ratio.max(1e-9).log2()));
            let (start, width) = (end.min(one), (end - one).abs());
            let fill = if *ratio >= 1.0 { "#1a7f37" } else { "#b35900" };
            let text = y + BAR - 4.0;
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{text}\" text-anchor=\"end\" fill=\"#5b6572\">{}</text>\
                 <rect x=\"{start:.1}\" y=\"{}\" width=\"{width:.1}\" height=\"{}\" fill=\"{fill}\"/>\
                 <text x=\"{:.1}\" y=\"{text}\">{ratio:.2}</text>",
                left - 8.0,
                other(baseline),
                y + 2.0,
                BAR - 4.0,
                end.max(one) + 5.0,
            );
            y += BAR;
        }
    }
    let note = "log scale; right of 1×: vyre is faster, left: the baseline is";
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#5b6572\">{note}</text>\n</svg>",
        f64::midpoint(left, right),
        bottom + 34.0
    );
    svg
}

/// Processor of this machine, and number of threads.
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
    fn every_ratio_has_a_bar_beside_its_baseline() {
        let plot = plot("s", "m", &rows(LINES));
        assert_eq!(plot.matches("fill=\"#1a7f37\"").count() + plot.matches("fill=\"#b35900\"").count(), 4);
        for label in [">a<", ">expert<", ">rayon<", ">b<", ">limit<", ">c<", ">goal of 3 us<"] {
            assert!(plot.contains(label), "{label}: {plot}");
        }
    }

    #[test]
    fn axis_reaches_all_ratios_with_ticks_at_powers_of_two() {
        let ratio = |ratio: f64| Row { name: "a".into(), ours_ns: 1.0, ratios: vec![("b".into(), ratio)] };
        let small = plot("s", "m", &[ratio(0.3), ratio(3.0)]);
        for tick in ["0.25×", "0.5×", "1×", "2×", "4×"] {
            assert_eq!(small.matches(&format!(">{tick}<")).count(), 2, "{tick}: {small}");
        }
        let large = plot("s", "m", &[ratio(3000.0)]);
        assert!(large.contains(">1×<") && large.contains(">4096×<"), "{large}");
        assert!(large.matches('×').count() <= 2 * (TICKS as usize + 1) + 1, "{large}");
    }

    #[test]
    fn tables_name_the_adapter_behind_wgpu() {
        let record = "{\"machine\":\"m, 2 threads\"}\n{\"adapter\":\"software Vulkan (lavapipe)\"}\n";
        assert_eq!(place(record), "m, 2 threads; `wgpu` is software Vulkan (lavapipe)");
        assert_eq!(place(record.lines().next().expect("a line")), "m, 2 threads");
    }
}
