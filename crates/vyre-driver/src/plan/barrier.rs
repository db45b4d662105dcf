//! Barrier placement: groups dependent waves so that the fewest global barriers order them.
//!
//! A *wave* is a launch with dependencies on other launches. Its group is the length of the longest path to it (ASAP levels), which is minimal.

use super::{part, reserve};
use crate::Error;

/// `before` must complete before `after` starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// Predecessor.
    pub before: usize,
    /// Successor.
    pub after: usize,
}

/// Groups of waves, with a barrier between consecutive groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub(super) waves: Vec<usize>,
    /// End of each group in the list of waves.
    pub(super) ends: Vec<usize>,
    /// Number of barriers.
    pub global_barriers: usize,
}

impl Plan {
    /// The groups in order; each has its waves in ascending order.
    pub fn groups(&self) -> impl DoubleEndedIterator<Item = &[usize]> + ExactSizeIterator {
        (0..self.ends.len()).map(|group| part(&self.waves, &self.ends, group, |end| *end))
    }
}

/// Barrier planner, with reusable scratch memory.
#[derive(Clone, Debug, Default)]
pub struct Planner {
    /// Longest path to each wave.
    layers: Vec<usize>,
    /// Start of each wave's successors in their list, and the end of the last ones.
    starts: Vec<usize>,
    successors: Vec<usize>,
    /// Number of pending dependencies of each wave.
    waiting: Vec<usize>,
    /// Ready waves, in the order in which they became ready.
    ready: Vec<usize>,
}

impl Planner {
    /// Groups the waves `0..wave_count`. Duplicate dependencies are allowed.
    pub fn plan(&mut self, wave_count: usize, dependencies: &[Dependency]) -> Result<Plan, Error> {
        self.find_layers(wave_count, dependencies)?;

        let mut plan = Plan::default();
        let groups = self.layers.iter().max().map_or(0, |last| last + 1);
        reserve(&mut plan.ends, "groups", groups)?;
        plan.ends.resize(groups, 0);
        for layer in &self.layers {
            plan.ends[*layer] += 1;
        }
        let mut start = 0;
        for end in &mut plan.ends {
            start += std::mem::replace(end, start);
        }
        // Starts of groups become their ends while the groups are filled.
        reserve(&mut plan.waves, "waves", wave_count)?;
        plan.waves.resize(wave_count, 0);
        for (wave, layer) in self.layers.iter().enumerate() {
            plan.waves[plan.ends[*layer]] = wave;
            plan.ends[*layer] += 1;
        }
        plan.global_barriers = groups.saturating_sub(1);
        Ok(plan)
    }

    /// Finds the longest path to each wave.
    fn find_layers(&mut self, wave_count: usize, dependencies: &[Dependency]) -> Result<(), Error> {
        reserve(&mut self.layers, "wave layers", wave_count)?;
        self.layers.resize(wave_count, 0);
        // One relaxation pass: every number is the length of some path, so if all dependencies hold afterwards, the
        // numbers are longest paths. That is the case if dependencies are listed in a topological order, as they mostly
        // are.
        let layers = &mut self.layers[..wave_count];
        for &Dependency { before, after } in dependencies {
            if before >= wave_count || after >= wave_count {
                return Err(Error::UnknownWave { before, after, wave_count });
            }
            if before == after {
                return Err(Error::SelfDependency { wave: before });
            }
            let least = layers[before] + 1;
            if layers[after] < least {
                layers[after] = least;
            }
        }
        if dependencies.iter().all(|dependency| layers[dependency.before] < layers[dependency.after]) {
            return Ok(());
        }

        let ends = wave_count.checked_add(1).ok_or(Error::Overflow { field: "successor offsets" })?;
        reserve(&mut self.starts, "successor offsets", ends)?;
        reserve(&mut self.successors, "successors", dependencies.len())?;
        reserve(&mut self.waiting, "waiting waves", wave_count)?;
        reserve(&mut self.ready, "ready waves", wave_count)?;
        self.starts.resize(ends, 0);
        self.waiting.resize(wave_count, 0);
        // Dependencies of one wave are mostly adjacent; counting them in runs avoids a chain of dependent memory
        // updates.
        let by_wave = || dependencies.chunk_by(|one, next| one.before == next.before);
        for run in by_wave() {
            self.starts[run[0].before] += run.len();
            for dependency in run {
                self.waiting[dependency.after] += 1;
            }
        }
        let mut end = 0;
        for start in &mut self.starts {
            end += *start;
            *start = end;
        }
        // Ends of successor lists become their starts while the lists are filled.
        self.successors.resize(dependencies.len(), 0);
        for run in by_wave() {
            let start = &mut self.starts[run[0].before];
            *start -= run.len();
            for (successor, dependency) in self.successors[*start..].iter_mut().zip(run) {
                *successor = dependency.after;
            }
        }

        // Kahn's algorithm. Layers of the initial waves are 0; the others are recomputed.
        self.ready.extend((0..wave_count).filter(|wave| self.waiting[*wave] == 0));
        let mut done = 0;
        while let Some(&wave) = self.ready.get(done) {
            done += 1;
            for &successor in &self.successors[self.starts[wave]..self.starts[wave + 1]] {
                self.waiting[successor] -= 1;
                if self.waiting[successor] == 0 {
                    // Waves become ready in order of layers, so the last predecessor is in the last layer.
                    self.layers[successor] = self.layers[wave] + 1;
                    self.ready.push(successor);
                }
            }
        }
        if done < wave_count { Err(Error::Cycle { unscheduled: wave_count - done }) } else { Ok(()) }
    }
}
