//! Autotuning: coordinate descent over the settings of a session, with one measurement per drain.
//!
//! ```text
//! start → slice size → JIT threshold → workgroup width → slice size → hit capacity → settled
//! ```
//!
//! One knob is tuned at a time. A candidate is accepted if it is better by more than the measurement noise, twice; each candidate is tried
//! once. The settings therefore converge, whatever is measured.

use std::hash::{Hash as _, Hasher as _};
use std::num::NonZeroU32;
use std::time::Duration;

use rustc_hash::FxHasher;

use super::policy::{Policy, Sizing};
use super::session::Session;

/// Tuned settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Invocations of a workgroup.
    pub width: u32,
    /// Slice size from which ops are compiled. [`NEVER`] also disables promotion of hot ops and windows.
    pub jit: u32,
    /// Hit capacity as a multiple of the expected hits.
    pub multiplier: u32,
    /// Maximum items of a slice.
    pub batch: u32,
}

/// Threshold above every slice size.
pub const NEVER: u32 = u32::MAX;

/// A candidate must cost less than this fraction of the best cost.
const WORTHWHILE: f64 = 0.97;

/// Maximum number of drains with trials.
const MOST_DRAINS: u32 = 20;

/// Search for the best settings.
#[derive(Clone, Debug)]
pub struct Tuner {
    best: Settings,
    /// Cost of `best`, once measured.
    cost: Option<f64>,
    /// Candidate under trial, and the cost of its first measurement.
    trial: Option<(Settings, Option<f64>)>,
    /// Remaining candidates, in reverse order.
    candidates: Vec<(Knob, u32)>,
    drains: u32,
}

impl Tuner {
    /// Begins a search at `start`, for workgroups of at most `widest` invocations and slices of at most `most_batch` items. The hit
    /// capacity is tuned only if some op `reports` hits.
    pub fn new(start: Settings, widest: u32, most_batch: u32, reports: bool) -> Tuner {
        let mut candidates: Vec<(Knob, u32)> = Vec::new();
        if reports {
            candidates.extend([4, 1].map(|value| (hits as Knob, value)));
        }
        // Slice sizes matter most, so they are tried first and, with the other knobs tuned, again.
        let batches = [0, 6, 2, 4].map(|shift| (batch as Knob, (most_batch >> shift).max(1)));
        candidates.extend(batches);
        let widths = [256, 128, 64, 32, 16].into_iter().filter(|width| *width <= widest && *width != start.width);
        candidates.extend(widths.map(|value| (width as Knob, value)));
        candidates.extend([0, NEVER].map(|value| (jit as Knob, value)));
        candidates.extend(batches);
        Tuner { best: start, cost: None, trial: None, candidates, drains: 0 }
    }

    /// Creates a finished search with remembered settings.
    pub fn settled(best: Settings) -> Tuner {
        Tuner { best, cost: Some(0.0), trial: None, candidates: Vec::new(), drains: 0 }
    }

    /// Returns the settings of the next drain.
    pub fn settings(&self) -> Settings {
        self.trial.map_or(self.best, |(settings, _)| settings)
    }

    /// Returns true if the search is finished.
    pub fn is_settled(&self) -> bool {
        self.cost.is_some() && self.trial.is_none()
    }

    /// Records the cost of a drain with the current [settings](Tuner::settings), and chooses the next candidate.
    pub fn measured(&mut self, cost: f64) {
        match (self.cost, self.trial) {
            (None, _) => self.cost = Some(cost),
            (Some(_), None) => return,
            (Some(known), Some((settings, first))) => {
                let is_better = best(&[0, 1], &[WORTHWHILE * known, cost], 0) == 1;
                if is_better && first.is_none() {
                    self.trial = Some((settings, Some(cost)));
                    self.count_drain();
                    return;
                }
                if is_better {
                    (self.best, self.cost) = (settings, Some(cost.max(first.unwrap_or(0.0))));
                }
            }
        }
        if self.count_drain() {
            self.next();
        }
    }

    /// Records a drain that was too short to measure.
    pub fn not_measured(&mut self) {
        self.count_drain();
    }

    /// Counts a drain, and returns true if more may follow. The last one ends the search with the best settings.
    fn count_drain(&mut self) -> bool {
        self.drains = self.drains.saturating_add(1);
        if self.drains >= MOST_DRAINS {
            (self.cost, self.trial) = (self.cost.or(Some(f64::MAX)), None);
        }
        self.drains < MOST_DRAINS
    }

    fn next(&mut self) {
        self.trial = None;
        // A trial takes up to three drains: a warm-up and two measurements.
        while let Some((knob, value)) = self.candidates.pop().filter(|_| self.drains + 3 <= MOST_DRAINS) {
            let mut settings = self.best;
            if *knob(&mut settings) != value {
                *knob(&mut settings) = value;
                self.trial = Some((settings, None));
                return;
            }
        }
    }
}

/// The tuner of a session, and measurements of the current drain.
pub(super) struct Tuning {
    pub(super) tuner: Tuner,
    /// Policy without tuning.
    standard: Policy,
    /// Key of the settings in the device's hints.
    name: String,
    items: usize,
    time: Duration,
    /// The drain had a slice.
    is_used: bool,
    /// A slice has run with the settings of this drain, so its kernels are compiled.
    is_warm: bool,
}

impl Session {
    /// Returns the tuner, if [`Config::tune`](super::Config::tune) is set and the session has drained.
    pub fn tuner(&self) -> Option<&Tuner> {
        self.tuning.as_ref().map(|tuning| &tuning.tuner)
    }

    /// Applies the settings of the tuner to a drain.
    pub(super) fn begin_tuning(&mut self) {
        if !self.config.tune {
            return;
        }
        if self.tuning.is_none() {
            self.tuning = Some(self.new_tuning());
        }
        let Some(tuning) = &mut self.tuning else { return };
        let Settings { width, jit, multiplier, batch } = tuning.tuner.settings();
        let policy = &mut self.config.policy;
        let before = *policy;
        policy.sizing = NonZeroU32::new(width).map_or(Sizing::Widest, Sizing::Preferred);
        policy.jit_queue_len_threshold = jit;
        let or_never = |threshold| if jit == NEVER { NEVER } else { threshold };
        policy.hot_opcode_threshold = or_never(tuning.standard.hot_opcode_threshold);
        policy.hot_window_threshold = or_never(tuning.standard.hot_window_threshold);
        policy.hit_capacity_multiplier = multiplier;
        tuning.is_warm &= before == *policy;
        self.limit = batch as usize;
    }

    /// Discards the tuning, and restores the configured settings: the set of ops has changed.
    pub(super) fn forget_tuning(&mut self) {
        if let Some(tuning) = self.tuning.take() {
            self.config.policy = tuning.standard;
            self.limit = self.config.slice;
        }
    }

    /// Records the time of a slice, unless it is the warm-up of its settings.
    pub(super) fn tune_slice(&mut self, items: usize, time: Duration) {
        let Some(tuning) = self.tuning.as_mut().filter(|tuning| !tuning.tuner.is_settled()) else { return };
        tuning.is_used = true;
        if tuning.is_warm {
            tuning.items += items;
            tuning.time = tuning.time.saturating_add(time);
        } else {
            self.kernels.finish_all();
            tuning.is_warm = true;
        }
    }

    /// Passes the measurements of the drain to the tuner.
    pub(super) fn end_tuning(&mut self) {
        let Some(tuning) = &mut self.tuning else { return };
        let is_used = std::mem::take(&mut tuning.is_used);
        match tuning.items {
            0 if !is_used => return,
            0 => tuning.tuner.not_measured(),
            items => tuning.tuner.measured(tuning.time.as_nanos() as f64 / items as f64),
        }
        (tuning.items, tuning.time) = (0, Duration::ZERO);
        // Only measured settings are remembered.
        if let Some(cost) = tuning.tuner.cost.filter(|cost| tuning.tuner.is_settled() && *cost < f64::MAX) {
            let Settings { width, jit, multiplier, batch } = tuning.tuner.settings();
            let name = format!("{}/{width}/{jit}/{multiplier}/{batch}", tuning.name);
            self.device.telemetry().record(&name, Duration::from_nanos(cost as u64), 0);
        }
    }

    fn new_tuning(&self) -> Tuning {
        let (capabilities, policy) = (self.device.capabilities(), self.config.policy);
        let mut hasher = FxHasher::default();
        (&capabilities.name, self.config.slice).hash(&mut hasher);
        self.ops.iter().for_each(|op| op.name().hash(&mut hasher));
        let name = format!("megakernel/{:016x}", hasher.finish());
        let known = self.device.telemetry().hints().records();
        let known = known.iter().rev().find_map(|(known, _)| parse(known.strip_prefix(&name)?));
        let widest = capabilities.max_workgroup_size[0].min(capabilities.max_workgroup_invocations);
        let width = match policy.sizing {
            Sizing::Widest => widest,
            Sizing::Preferred(width) => width.get().min(widest),
        };
        let (jit, multiplier) = (policy.jit_queue_len_threshold, policy.hit_capacity_multiplier);
        let batch = self.config.slice as u32;
        let start = Settings { width, jit, multiplier, batch };
        let reports = self.ops.iter().any(|op| op.reports);
        let fits = |known: &Settings| (1..=widest).contains(&known.width) && (1..=batch).contains(&known.batch);
        let tuner = match known.filter(fits) {
            Some(known) => Tuner::settled(known),
            None => Tuner::new(start, widest, batch, reports),
        };
        Tuning { tuner, standard: policy, name, items: 0, time: Duration::ZERO, is_used: false, is_warm: false }
    }
}

/// Parses remembered settings.
fn parse(text: &str) -> Option<Settings> {
    let mut numbers = text.strip_prefix('/')?.split('/').map(|number| number.parse().ok());
    let mut next = || numbers.next().flatten();
    Some(Settings { width: next()?, jit: next()?, multiplier: next()?, batch: next()? })
}

type Knob = fn(&mut Settings) -> &mut u32;

fn width(settings: &mut Settings) -> &mut u32 {
    &mut settings.width
}

fn jit(settings: &mut Settings) -> &mut u32 {
    &mut settings.jit
}

fn batch(settings: &mut Settings) -> &mut u32 {
    &mut settings.batch
}

fn hits(settings: &mut Settings) -> &mut u32 {
    &mut settings.multiplier
}

/// Returns the first candidate of the lowest cost, or `current` without costs.
pub fn best(candidates: &[u32], costs: &[f64], current: u32) -> u32 {
    let measured = candidates.iter().zip(costs);
    measured.min_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(current, |(candidate, _)| *candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_is_the_first_candidate_of_least_cost() {
        assert_eq!(best(&[1, 2, 4], &[3.0, 1.0, 1.0], 9), 2);
        assert_eq!(best(&[1, 2, 4], &[f64::NAN, 5.0], 9), 2);
        assert_eq!(best(&[1, 2], &[], 9), 9);
    }

    /// Nanoseconds per item, measured by `cargo xtask bench megakernel tuned`, by width and slice size.
    const WIDTHS: [u32; 5] = [16, 32, 64, 128, 256];
    const BATCHES: [u32; 5] = [1 << 8, 1 << 10, 1 << 12, 1 << 14, 1 << 16];
    const COMPILED: [[f64; 5]; 5] = [
        [842.0, 790.0, 786.0, 827.0, 879.0],
        [834.0, 784.0, 832.0, 816.0, 903.0],
        [817.0, 774.0, 770.0, 866.0, 845.0],
        [915.0, 856.0, 900.0, 870.0, 945.0],
        [1676.0, 1661.0, 1942.0, 1628.0, 1718.0],
    ];
    const INTERPRETED: [[f64; 5]; 5] = [
        [724.0, 681.0, 685.0, 687.0, 721.0],
        [713.0, 677.0, 666.0, 658.0, 690.0],
        [814.0, 716.0, 705.0, 698.0, 744.0],
        [839.0, 773.0, 755.0, 767.0, 792.0],
        [1627.0, 1519.0, 802.0, 805.0, 845.0],
    ];

    fn recorded(settings: Settings) -> f64 {
        let costs = if settings.jit == NEVER { INTERPRETED } else { COMPILED };
        let index = |values: [u32; 5], value| values.iter().position(|known| *known == value).unwrap();
        costs[index(WIDTHS, settings.width)][index(BATCHES, settings.batch)]
    }

    /// Multiplicative measurement noise of up to 3 %.
    fn noise(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            1.0 + (state >> 11) as f64 / (1u64 << 53) as f64 * 0.03
        }
    }

    #[test]
    fn recorded_costs_converge_to_the_best_settings() {
        let settings = |width, jit, batch| Settings { width, jit, multiplier: 2, batch };
        let all = COMPILED.iter().chain(&INTERPRETED).flatten();
        let least = all.copied().fold(f64::MAX, f64::min);
        for seed in 1..200u64 {
            let mut noise = noise(seed);
            for width in WIDTHS {
                let mut tuner = Tuner::new(settings(width, 4096, 1 << 16), 256, 1 << 16, true);
                let mut drains = 0;
                while !tuner.is_settled() {
                    tuner.measured(recorded(tuner.settings()) * noise());
                    drains += 1;
                    assert!(drains <= 20, "{tuner:?}");
                }
                let found = tuner.settings();
                assert!(recorded(found) <= 1.1 * least, "{found:?}: {} of {least}", recorded(found));
                for _ in 0..100 {
                    tuner.measured(recorded(found) * noise() * noise().powi(20));
                    assert_eq!(tuner.settings(), found, "it stays");
                }
            }
        }
    }

    /// Justifies discrete candidates for slice sizes: four of them find lower costs than twenty drains of natural gradient descent on the
    /// logarithm of the size.
    #[test]
    fn gradient_descent_on_slice_sizes_is_worse_than_candidates() {
        let rows = || COMPILED.iter().chain(&INTERPRETED);
        // Interpolates between measured sizes, linearly in the logarithm.
        let at = |row: &[f64; 5], octave: f64| {
            let index = (octave - 8.0) / 2.0;
            let below = (index as usize).min(3);
            row[below] + (index - below as f64) * (row[below + 1] - row[below])
        };
        let mean = |found: &mut dyn FnMut(&[f64; 5], u64) -> f64| {
            let costs = (1..100).flat_map(|seed| rows().map(move |row| (row, seed)));
            let costs: Vec<f64> = costs.map(|(row, seed)| found(row, seed)).collect();
            costs.iter().sum::<f64>() / costs.len() as f64
        };
        let of_candidates = mean(&mut |row, seed| {
            let mut noise = noise(seed);
            let measured = [4, 3, 2, 1].map(|size| (row[size], row[size] * noise()));
            measured.into_iter().min_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(f64::MAX, |(cost, _)| cost)
        });
        for rate in [0.25, 0.5, 1.0, 2.0, 4.0] {
            let of_gradient = mean(&mut |row, seed| {
                let (mut noise, mut octave, mut metric) = (noise(seed), 16.0f64, 0.0f64);
                // Each step takes two drains: one on each side.
                for step in 1..=10 {
                    let [low, high] = [octave - 0.5, octave + 0.5].map(|side| side.clamp(8.0, 16.0));
                    let slope = (at(row, high) * noise() - at(row, low) * noise()) / (high - low);
                    metric += (slope * slope - metric) / f64::from(step);
                    octave = (octave - rate * slope / metric.sqrt().max(1e-9)).clamp(8.0, 16.0);
                }
                at(row, octave)
            });
            assert!(of_gradient > of_candidates, "{rate}: {of_gradient} instead of {of_candidates}");
            println!("steps of {rate}: {of_gradient:.0} ns instead of {of_candidates:.0}");
        }
    }

    #[test]
    fn unmeasured_drains_count_towards_the_limit() {
        let start = Settings { width: 64, jit: 4096, multiplier: 2, batch: 1 << 16 };
        for measured_every in 1..30 {
            let mut tuner = Tuner::new(start, 256, 1 << 16, true);
            for drain in 1..=20 {
                match drain % measured_every {
                    0 => tuner.measured(100.0 - f64::from(drain)),
                    _ => tuner.not_measured(),
                }
            }
            assert!(tuner.is_settled(), "{tuner:?}");
        }
    }

    #[test]
    fn settings_are_remembered() {
        let settings = Settings { width: 32, jit: NEVER, multiplier: 4, batch: 1000 };
        assert_eq!(parse(&format!("/32/{NEVER}/4/1000")), Some(settings));
        assert_eq!(parse("/32/x/4/1000"), None);
        let tuner = Tuner::settled(settings);
        assert!(tuner.is_settled() && tuner.settings() == settings);
    }
}
