//! Telemetry of drains: latency histogram of items, and timeline spans of workers.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use super::report::Report;

/// Measurements of a drain.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {
    /// Latencies of items, from enqueueing to the end of their slice.
    pub latencies: Latencies,
    /// Timeline.
    pub spans: Vec<Span>,
    /// Number of spans beyond the limit, which were dropped.
    pub dropped_spans: u64,
}

/// A span of the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The worker; `None` for the draining thread.
    pub worker: Option<u32>,
    /// Position of the kernel in [`Report::kernels`]; `None` for planning.
    pub kernel: Option<usize>,
    /// Start time.
    pub from: Instant,
    /// End time.
    pub until: Instant,
}

impl Telemetry {
    const MOST_SPANS: usize = 1 << 16;

    pub(super) fn span(&mut self, span: Span) {
        if self.spans.len() < Telemetry::MOST_SPANS {
            self.spans.push(span);
        } else {
            self.dropped_spans = self.dropped_spans.saturating_add(1);
        }
    }

    /// Returns the fraction of time in which workers were busy, from the first span to the end of the last.
    pub fn occupancy(&self) -> f64 {
        let worked = || self.spans.iter().filter(|span| span.worker.is_some());
        let workers = worked().filter_map(|span| span.worker).max().map_or(0, |last| u64::from(last) + 1);
        let (from, until) =
            (self.spans.iter().map(|span| span.from).min(), self.spans.iter().map(|span| span.until).max());
        let busy: f64 = worked().map(|span| span.until.duration_since(span.from).as_secs_f64()).sum();
        match from.zip(until) {
            Some((from, until)) if workers > 0 && until > from => {
                busy / (workers as f64 * until.duration_since(from).as_secs_f64())
            }
            _ => 0.0,
        }
    }
}

/// Log-linear latency histogram with a relative error of at most 1/16. Counts saturate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// Counts by [`bucket`].
    counts: Vec<u64>,
    /// Number of latencies.
    pub count: u64,
    /// The longest latency.
    pub longest: Duration,
}

impl Latencies {
    pub(super) fn add(&mut self, latency: Duration, times: u64) {
        let bucket = bucket(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] = self.counts[bucket].saturating_add(times);
        self.count = self.count.saturating_add(times);
        self.longest = self.longest.max(latency);
    }

    /// Adds another histogram.
    pub fn merge(&mut self, other: &Latencies) {
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum = sum.saturating_add(*count));
        self.count = self.count.saturating_add(other.count);
        self.longest = self.longest.max(other.longest);
    }

    /// Returns the latency percentile `percent`, such as 99.0 for p99.
    pub fn percentile(&self, percent: f64) -> Duration {
        let wanted = (percent / 100.0 * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0u64;
        let bucket = self.counts.iter().position(|count| {
            seen = seen.saturating_add(*count);
            seen >= wanted
        });
        bucket.map_or(Duration::ZERO, |bucket| Duration::from_nanos(end(bucket)).min(self.longest))
    }
}

/// Returns the bucket of a number: numbers below 16 have one each, and each power of two above has 16.
fn bucket(number: u64) -> usize {
    match number.checked_ilog2() {
        None | Some(..4) => number as usize,
        Some(digits) => (16 * (digits as usize - 3)) + (number >> (digits - 4)) as usize - 16,
    }
}

/// Returns the largest number of a bucket.
fn end(bucket: usize) -> u64 {
    if bucket < 16 {
        return bucket as u64;
    }
    let (shift, first) = (bucket as u32 / 16 - 1, 16 + bucket as u64 % 16);
    ((first + 1) << shift).wrapping_sub(1)
}

impl Report {
    /// Formats the report as a JSON object.
    pub fn to_json(&self) -> String {
        let mut json = String::from("{");
        let numbers = [
            ("items", self.items),
            ("failures", self.failures.len() as u64),
            ("hits", self.hits.len() as u64),
            ("reruns", self.reruns),
            ("cuts", self.cuts),
            ("pruned", self.pruned),
            ("interpreted", self.interpreted),
            ("fused", self.fused),
            ("counted", self.counted),
            ("groups", self.groups),
            ("launches", self.launches),
            ("elapsed_ns", nanoseconds(self.elapsed)),
            ("device_ns", nanoseconds(self.device)),
        ];
        for (name, number) in numbers {
            let _ = write!(json, "\"{name}\":{number},");
        }
        if let Some(recommendation) = &self.recommendation {
            let (mode, topology) = (recommendation.execution_mode, recommendation.topology);
            let promoted = (recommendation.promote_hot_opcodes, recommendation.promote_hot_windows);
            let _ = write!(json, "\"mode\":\"{mode:?}\",\"topology\":\"{topology:?}\",");
            let _ = write!(json, "\"promoted_ops\":{},\"promoted_windows\":{},", promoted.0, promoted.1);
        }
        if let Some(telemetry) = &self.telemetry {
            let of = |percent| nanoseconds(telemetry.latencies.percentile(percent));
            let [p50, p90, p99] = [50.0, 90.0, 99.0].map(of);
            let longest = nanoseconds(telemetry.latencies.longest);
            let _ = write!(json, "\"latency_ns\":{{\"p50\":{p50},\"p90\":{p90},\"p99\":{p99},\"max\":{longest}}},");
            let _ = write!(json, "\"occupancy\":{:.4},", telemetry.occupancy());
            let _ = write!(json, "\"dropped_spans\":{},", telemetry.dropped_spans);
        }
        let ops: Vec<String> = self.ops.iter().map(|(name, items)| format!("{name:?}:{items}")).collect();
        let _ = write!(json, "\"ops\":{{{}}},", ops.join(","));
        let kernels = self.kernels.iter().map(|kernel| {
            let (units, launches, time) = (kernel.units, kernel.launches, nanoseconds(kernel.time));
            let name = &kernel.name;
            format!("{{\"name\":{name:?},\"units\":{units},\"launches\":{launches},\"time_ns\":{time}}}")
        });
        let kernels: Vec<String> = kernels.collect();
        let _ = write!(json, "\"kernels\":[{}]}}", kernels.join(","));
        json
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_width_is_at_most_a_sixteenth() {
        let mut last = 0;
        for number in (0..2000)
            .chain((4..64).flat_map(|digit| [(1u64 << digit) - 1, 1 << digit, (1 << digit) + 1]))
            .chain([u64::MAX])
        {
            let bucket = bucket(number);
            assert!(number <= end(bucket) && (bucket == 0 || number > end(bucket - 1)), "{number}");
            assert!(end(bucket) - number <= number / 16, "{number}");
            last = last.max(bucket);
        }
        assert_eq!(end(last), u64::MAX);
    }

    #[test]
    fn percentiles_cover_all_latencies() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentile(50.0), Duration::ZERO);
        latencies.add(Duration::from_micros(1), 90);
        latencies.add(Duration::from_millis(1), 10);
        let near = |percent: f64, expected: u64| {
            let found = latencies.percentile(percent).as_nanos() as u64;
            assert!((expected..=expected + expected / 16).contains(&found), "{percent}: {found}");
        };
        near(50.0, 1000);
        near(90.0, 1000);
        near(90.1, 1_000_000);
        near(100.0, 1_000_000);
        assert_eq!((latencies.count, latencies.longest), (100, Duration::from_millis(1)));
    }
}
