//! Groups waves that depend on each other, so that the fewest global barriers keep them in order.
//!
//! A wave's group is the length of the longest path that leads to it: earlier is not possible, and later is not needed.

use super::{part, reserve};
use crate::Error;

/// One wave has to be done before another begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// The one that comes first.
    pub before: usize,
    /// The one that waits.
    pub after: usize,
}

/// Groups of waves, with a barrier between each two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub(super) waves: Vec<usize>,
    /// Where each group ends in the list of waves.
    pub(super) ends: Vec<usize>,
    /// How many barriers there are.
    pub global_barriers: usize,
}

impl Plan {
    /// The groups in order; each has its waves in ascending order.
    pub fn groups(&self) -> impl DoubleEndedIterator<Item = &[usize]> + ExactSizeIterator {
        (0..self.ends.len()).map(|group| part(&self.waves, &self.ends, group, |end| *end))
    }
}

/// Plans barriers, and keeps the memory that this takes.
#[derive(Clone, Debug, Default)]
pub struct Planner {
    /// The longest path to each wave.
    layers: Vec<usize>,
    /// Where the successors of each wave begin in the list of them; the end of the last one follows.
    starts: Vec<usize>,
    successors: Vec<usize>,
    /// How many dependencies of a wave are not yet done.
    waiting: Vec<usize>,
    /// Waves whose dependencies are done, in the order in which that became known.
    ready: Vec<usize>,
}

impl Planner {
    /// Groups the waves `0..wave_count`. It does no harm to give a dependency twice.
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
        // What is the start of each group becomes its end while the group is filled.
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
        // Every number is the length of some path. If all dependencies hold in the end, none is too small either. That is so where
        // dependencies are listed in an order in which they could be executed, as they mostly are.
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
        // Dependencies of the same wave mostly follow each other. Counting them one by one would wait for memory each time.
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
        // What is the end of each wave's successors becomes their start while they are filled in.
        self.successors.resize(dependencies.len(), 0);
        for run in by_wave() {
            let start = &mut self.starts[run[0].before];
            *start -= run.len();
            for (successor, dependency) in self.successors[*start..].iter_mut().zip(run) {
                *successor = dependency.after;
            }
        }

        // Nothing has raised the layers of these, and those of others are found anew.
        self.ready.extend((0..wave_count).filter(|wave| self.waiting[*wave] == 0));
        let mut done = 0;
        while let Some(&wave) = self.ready.get(done) {
            done += 1;
            for &successor in &self.successors[self.starts[wave]..self.starts[wave + 1]] {
                self.waiting[successor] -= 1;
                if self.waiting[successor] == 0 {
                    // Waves become ready layer by layer, so the last one to be done is of the last layer.
                    self.layers[successor] = self.layers[wave] + 1;
                    self.ready.push(successor);
                }
            }
        }
        if done < wave_count { Err(Error::Cycle { unscheduled: wave_count - done }) } else { Ok(()) }
    }
}
