//! Measurement and output of benchmark lines.

use std::time::{Duration, Instant};

use vyre_driver::{Capabilities, DeviceKind};

/// Options of measurement and output.
pub(crate) struct Report {
    pub(crate) json: bool,
    pub(crate) quick: bool,
    /// Filter: only lines whose name contains this are measured.
    pub(crate) only: String,
}

/// Statistic over repeated times.
#[derive(Clone, Copy)]
pub(crate) enum Statistic {
    /// Minimum: the time without disturbances.
    Best,
    /// Median: the typical time for callers.
    Median,
}

/// A function to be timed.
pub(crate) type Contender<'a> = &'a mut dyn FnMut();

/// Description of a measurement.
pub(crate) struct Line<'a> {
    pub(crate) suite: &'a str,
    pub(crate) name: &'a str,
    pub(crate) device: &'a str,
    pub(crate) threads: u32,
    pub(crate) baseline: &'a str,
    pub(crate) work: u64,
    pub(crate) unit: &'a str,
}

impl Report {
    /// Returns whether a line is selected.
    pub(crate) fn is_selected(&self, name: &str) -> bool {
        name.contains(&self.only)
    }

    /// Prints the adapter of the device `wgpu`.
    pub(crate) fn adapter(&self, capabilities: &Capabilities) {
        let Capabilities { name, kind, .. } = capabilities;
        let adapter = match kind {
            // The name that Mesa gives its rasterizer; the Vulkan driver is called lavapipe.
            DeviceKind::SoftwareGpu if name.starts_with("llvmpipe") => "software Vulkan (lavapipe)".into(),
            DeviceKind::SoftwareGpu => format!("software Vulkan ({name})"),
            DeviceKind::Gpu | DeviceKind::Cpu | DeviceKind::Oracle | DeviceKind::Null => name.clone(),
        };
        if self.json {
            println!("{{\"adapter\":\"{}\"}}", adapter.replace(['"', '\\'], ""));
        } else {
            eprintln!("adapter: {adapter}, {name}");
        }
    }

    /// Measures vyre and its baselines alternately, and prints a line for each baseline: both minimum times and their
    /// ratio; above 1, vyre is faster.
    pub(crate) fn compare(&self, ours: Contender<'_>, baselines: &mut [(Line<'_>, Contender<'_>)]) {
        if !baselines.iter().any(|(line, _)| self.is_selected(line.name)) {
            return;
        }
        let (rounds, patience) =
            if self.quick { (3, Duration::from_millis(500)) } else { (11, Duration::from_secs(10)) };
        // Work of microseconds is repeated until it exceeds the noise.
        let least = patience / 10;
        let mut best = vec![Duration::MAX; 1 + baselines.len()];
        let start = Instant::now();
        let mut done = 0;
        while done < 2 || start.elapsed() < if done < rounds { patience } else { least } {
            let mut run = |who: usize| match who.checked_sub(1) {
                None => time(ours),
                Some(baseline) => time(baselines[baseline].1),
            };
            for who in (0..best.len()).rev() {
                best[who] = best[who].min(run(who));
            }
            // Faster contenders run more often, so that all get the same total time.
            let slowest = best.iter().max().map_or(0, Duration::as_nanos);
            for (who, best) in best.iter_mut().enumerate() {
                for _ in 1..(slowest / best.as_nanos().max(1)).min(50) {
                    *best = (*best).min(run(who));
                }
            }
            done += 1;
        }
        for ((line, _), baseline) in baselines.iter().zip(&best[1..]) {
            if self.is_selected(line.name) {
                self.write(line, best[0].as_nanos() as f64, baseline.as_nanos() as f64, done);
            }
        }
    }

    /// Measures work without a baseline; the ratio is to a limit in nanoseconds.
    pub(crate) fn against_limit(&self, line: &Line<'_>, limit_ns: f64, taken: Statistic, ours: &mut dyn FnMut()) {
        if !self.is_selected(line.name) {
            return;
        }
        // About 1.5 seconds, or a tenth of that.
        let rounds = (1.5e9 / limit_ns / if self.quick { 10.0 } else { 1.0 }).clamp(5.0, 20_000.0) as usize;
        let mut times: Vec<Duration> = (0..rounds).map(|_| time(ours)).collect();
        times.sort_unstable();
        let position = match taken {
            Statistic::Best => 0,
            Statistic::Median => times.len() / 2,
        };
        self.write(line, times[position].as_nanos() as f64, limit_ns, rounds);
    }

    /// Prints times measured elsewhere.
    pub(crate) fn known(&self, line: &Line<'_>, ours_ns: f64, baseline_ns: f64) {
        if self.is_selected(line.name) {
            self.write(line, ours_ns, baseline_ns, 1);
        }
    }

    /// Prints counts; above 1, vyre has fewer.
    pub(crate) fn counts(&self, line: &Line<'_>, ours: usize, theirs: usize) {
        let Line { suite, name, device, baseline, unit, .. } = line;
        if !self.is_selected(name) {
            return;
        }
        let ratio = theirs as f64 / ours.max(1) as f64;
        if self.json {
            println!(
                "{{\"suite\":\"{suite}\",\"name\":\"{name}\",\"device\":\"{device}\",\"baseline\":\"{baseline}\",\"ours\":{ours},\
                 \"theirs\":{theirs},\"ratio\":{ratio:.3},\"unit\":\"{unit}\"}}"
            );
        } else {
            println!(
                "{suite:8} {name:29} {device:4} {ours:>12}     vs {baseline:8} {theirs:>12}     ratio {ratio:>8.2}  ({unit})"
            );
        }
    }

    fn write(&self, line: &Line<'_>, ours_ns: f64, baseline_ns: f64, rounds: usize) {
        let Line { suite, name, device, threads, baseline, work, unit } = line;
        let ratio = baseline_ns / ours_ns.max(1.0);
        let each = ours_ns / (*work).max(1) as f64;
        if self.json {
            println!(
                "{{\"suite\":\"{suite}\",\"name\":\"{name}\",\"device\":\"{device}\",\"threads\":{threads},\"baseline\":\"{baseline}\",\
                 \"ours_ns\":{ours_ns:.0},\"baseline_ns\":{baseline_ns:.0},\"ratio\":{ratio:.3},\"work\":{work},\
                 \"unit\":\"{unit}\",\"ns_per_unit\":{each:.3},\"n\":{rounds}}}"
            );
        } else {
            println!(
                "{suite:8} {name:29} {device:4} {:>12.3} ms  vs {baseline:8} {:>12.3} ms  ratio {ratio:>8.2}  ({work} {unit}, {each:.2} ns each, best of {rounds})",
                ours_ns / 1e6,
                baseline_ns / 1e6,
            );
        }
    }
}

fn time(work: &mut dyn FnMut()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}
