//! One line of a benchmark.

use std::time::{Duration, Instant};

/// How lines are measured and written.
pub(crate) struct Report {
    pub(crate) json: bool,
    pub(crate) quick: bool,
    /// Only lines whose name contains this are measured.
    pub(crate) only: String,
}

/// Which of many times counts.
#[derive(Clone, Copy)]
pub(crate) enum Taken {
    /// The best: what the work takes when nothing else happens.
    Best,
    /// The median: what callers see.
    Median,
}

/// What is measured.
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
    /// Runs ours and the baseline in turns, and writes the best time of each and their ratio: above 1, ours is faster.
    pub(crate) fn compare(&self, line: &Line<'_>, ours: &mut dyn FnMut(), baseline: &mut dyn FnMut()) {
        if !line.name.contains(&self.only) {
            return;
        }
        let rounds = if self.quick { 3 } else { 11 };
        let (mut best_ours, mut best_baseline) = (Duration::MAX, Duration::MAX);
        for _ in 0..rounds {
            // The faster of the two is run more often, so that both have as much time to find a quiet moment.
            best_baseline = best_baseline.min(time(baseline));
            best_ours = best_ours.min(time(ours));
            let more = |own: Duration, other: Duration| (other.as_nanos() / own.as_nanos().max(1)).min(50);
            for _ in 1..more(best_ours, best_baseline) {
                best_ours = best_ours.min(time(ours));
            }
            for _ in 1..more(best_baseline, best_ours) {
                best_baseline = best_baseline.min(time(baseline));
            }
        }
        self.write(line, best_ours.as_nanos() as f64, best_baseline.as_nanos() as f64, rounds);
    }

    /// Writes the median or best time of many runs of something that has no baseline; the ratio is to a limit in nanoseconds.
    pub(crate) fn against_limit(&self, line: &Line<'_>, limit_ns: f64, taken: Taken, ours: &mut dyn FnMut()) {
        if !line.name.contains(&self.only) {
            return;
        }
        // About a second and a half, or a tenth of that.
        let rounds = (1.5e9 / limit_ns / if self.quick { 10.0 } else { 1.0 }).clamp(5.0, 20_000.0) as usize;
        let mut times: Vec<Duration> = (0..rounds).map(|_| time(ours)).collect();
        times.sort_unstable();
        let position = match taken {
            Taken::Best => 0,
            Taken::Median => times.len() / 2,
        };
        self.write(line, times[position].as_nanos() as f64, limit_ns, rounds);
    }

    /// Writes what was measured elsewhere.
    pub(crate) fn known(&self, line: &Line<'_>, ours_ns: f64, baseline_ns: f64) {
        if line.name.contains(&self.only) {
            self.write(line, ours_ns, baseline_ns, 1);
        }
    }

    fn write(&self, line: &Line<'_>, ours_ns: f64, baseline_ns: f64, rounds: usize) {
        let Line { suite, name, device, threads, baseline, work, unit } = line;
        let ratio = baseline_ns / ours_ns.max(1.0);
        if self.json {
            println!(
                "{{\"suite\":\"{suite}\",\"name\":\"{name}\",\"device\":\"{device}\",\"threads\":{threads},\"baseline\":\"{baseline}\",\
                 \"ours_ns\":{ours_ns:.0},\"baseline_ns\":{baseline_ns:.0},\"ratio\":{ratio:.3},\"work\":{work},\
                 \"unit\":\"{unit}\",\"n\":{rounds}}}"
            );
        } else {
            println!(
                "{suite:8} {name:24} {device:9} {:>12.3} ms  vs {baseline:8} {:>12.3} ms  ratio {ratio:>8.2}  ({work} {unit}, best of {rounds})",
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
