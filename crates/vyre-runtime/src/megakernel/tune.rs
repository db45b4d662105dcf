//! Autotuning: settings of a session that drains try out, one after the other, until what costs least is known.
//!
//! ```text
//! start → items of a slice → when to compile → widths of workgroups → items of a slice → room for hits → settled
//! ```
//!
//! One knob is turned at a time, and stays where it costs least. A candidate has to be better than what is there by more than measurements
//! differ, twice; and once everything was tried nothing is tried again. So settings do not oscillate, whatever is measured.

use std::hash::{Hash as _, Hasher as _};
use std::num::NonZeroU32;
use std::time::Duration;

use rustc_hash::FxHasher;

use super::policy::{Policy, Sizing};
use super::session::Session;

/// What is tuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Lanes of a workgroup.
    pub width: u32,
    /// From this length of a slice on, what is in it is compiled. At [`NEVER`], hot operations and windows are not compiled either.
    pub jit: u32,
    /// So many times the hits that are expected have room.
    pub multiplier: u32,
    /// Items of a slice.
    pub batch: u32,
}

/// No slice is as long.
pub const NEVER: u32 = u32::MAX;

/// A candidate has to cost less than this part of what is there.
const WORTHWHILE: f64 = 0.97;

/// No more drains than these try anything.
const MOST_DRAINS: u32 = 20;

/// Tries settings, and keeps the best.
#[derive(Clone, Debug)]
pub struct Tuner {
    best: Settings,
    /// What those cost; nothing is known at first.
    cost: Option<f64>,
    /// What is tried now, and what it cost the first time.
    trial: Option<(Settings, Option<f64>)>,
    /// What is left to be tried of knobs with few values, the last first.
    candidates: Vec<(Knob, u32)>,
    drains: u32,
}

impl Tuner {
    /// Begins with settings. Workgroups have at most so many lanes, and slices so many items. Room for hits matters only where some are
    /// reported.
    pub fn new(start: Settings, widest: u32, most_batch: u32, reports: bool) -> Tuner {
        let mut candidates: Vec<(Knob, u32)> = Vec::new();
        if reports {
            candidates.extend([4, 1].map(|value| (hits as Knob, value)));
        }
        // Sizes matter most, and are looked at once more when the rest is known.
        let batches = [0, 6, 2, 4].map(|shift| (batch as Knob, (most_batch >> shift).max(1)));
        candidates.extend(batches);
        let widths = [256, 128, 64, 32, 16].into_iter().filter(|width| *width <= widest && *width != start.width);
        candidates.extend(widths.map(|value| (width as Knob, value)));
        candidates.extend([0, NEVER].map(|value| (jit as Knob, value)));
        candidates.extend(batches);
        Tuner { best: start, cost: None, trial: None, candidates, drains: 0 }
    }

    /// One that has found out before what is best.
    pub fn settled(best: Settings) -> Tuner {
        Tuner { best, cost: Some(0.0), trial: None, candidates: Vec::new(), drains: 0 }
    }

    /// What the next drain is to use.
    pub fn settings(&self) -> Settings {
        self.trial.map_or(self.best, |(settings, _)| settings)
    }

    /// Whether nothing is left to be tried.
    pub fn is_settled(&self) -> bool {
        self.cost.is_some() && self.trial.is_none()
    }

    /// Takes what a drain with the [settings](Tuner::settings) cost, and decides what to try next.
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

    /// A drain was too short to measure what it took.
    pub fn not_measured(&mut self) {
        self.count_drain();
    }

    /// The last one leaves things as they are, and gives whether there are more.
    fn count_drain(&mut self) -> bool {
        self.drains = self.drains.saturating_add(1);
        if self.drains >= MOST_DRAINS {
            (self.cost, self.trial) = (self.cost.or(Some(f64::MAX)), None);
        }
        self.drains < MOST_DRAINS
    }

    fn next(&mut self) {
        self.trial = None;
        // What is tried may have to be measured twice, after a drain that is not measured.
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

/// The tuner of a session, and what the slices of a drain took.
pub(super) struct Tuning {
    pub(super) tuner: Tuner,
    /// What was said of policy before.
    standard: Policy,
    /// Under what it is remembered.
    name: String,
    items: usize,
    time: Duration,
    /// Whether this drain had a slice at all.
    is_used: bool,
    /// Whether a slice has had the settings of this drain, so that what they need is compiled.
    is_warm: bool,
}

impl Session {
    /// What is tuned, if the session has drained and does tune.
    pub fn tuner(&self) -> Option<&Tuner> {
        self.tuning.as_ref().map(|tuning| &tuning.tuner)
    }

    /// Gives a drain the settings that it is to try.
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

    /// Lets a session be as it was before it was tuned: it is not the same any more.
    pub(super) fn forget_tuning(&mut self) {
        if let Some(tuning) = self.tuning.take() {
            self.config.policy = tuning.standard;
            self.limit = self.config.slice;
        }
    }

    /// Takes what a slice took, unless it was the first with its settings.
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

    /// Decides what the next drain is to try, if this one has shown anything.
    pub(super) fn end_tuning(&mut self) {
        let Some(tuning) = &mut self.tuning else { return };
        let is_used = std::mem::take(&mut tuning.is_used);
        match tuning.items {
            0 if !is_used => return,
            0 => tuning.tuner.not_measured(),
            items => tuning.tuner.measured(tuning.time.as_nanos() as f64 / items as f64),
        }
        (tuning.items, tuning.time) = (0, Duration::ZERO);
        // What was never measured is nothing to remember.
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

/// Settings as they are remembered.
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

/// The candidate with the lowest cost, the first of several. Without costs it is what there is.
pub fn best(candidates: &[u32], costs: &[f64], current: u32) -> u32 {
    let measured = candidates.iter().zip(costs);
    measured.min_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(current, |(candidate, _)| *candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_cost_wins_and_the_first_of_equals() {
        assert_eq!(best(&[1, 2, 4], &[3.0, 1.0, 1.0], 9), 2);
        assert_eq!(best(&[1, 2, 4], &[f64::NAN, 5.0], 9), 2);
        assert_eq!(best(&[1, 2], &[], 9), 9);
    }

    /// Nanoseconds for each item that `cargo xtask bench megakernel tuned` measured, by width and size of slices.
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
        let place = |values: [u32; 5], value| values.iter().position(|known| *known == value).unwrap();
        costs[place(WIDTHS, settings.width)][place(BATCHES, settings.batch)]
    }

    /// Measurements are up to 3 % too high.
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
    fn what_was_recorded_leads_to_the_best_and_no_further() {
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

    /// Why sizes of slices are candidates, although they could be changed continuously: of all sizes, three are enough, and twenty drains of steps
    /// along the natural gradient of the logarithm are not.
    #[test]
    fn steps_along_the_gradient_would_cost_more() {
        let rows = || COMPILED.iter().chain(&INTERPRETED);
        // Between sizes that were measured, by the logarithm.
        let at = |row: &[f64; 5], octave: f64| {
            let place = (octave - 8.0) / 2.0;
            let below = (place as usize).min(3);
            row[below] + (place - below as f64) * (row[below + 1] - row[below])
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
                // Each step takes a drain on both sides.
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
    fn short_drains_do_not_make_it_longer() {
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
