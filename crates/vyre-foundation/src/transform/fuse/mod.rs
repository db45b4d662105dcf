//! Fusion: programs that would be launched one after the other become one.
//!
//! ```text
//! Stage::new (accesses of a program)  →  may_join (stage by stage: yes, or why not)  →  fuse  →  Fused
//! ```
//!
//! In one launch, workgroups do not wait for each other. So a stage may join others if each buffer that one of them writes and
//! another one uses is divided among workgroups: either every invocation uses elements of its own, or every workgroup does,
//! and then a barrier stands between the stages. That is decided from the indices of all accesses to the buffer, for
//! the grid and the lengths at hand. A fused program is for that grid and these lengths only.
//!
//! A buffer that nobody else needs becomes a private array of the invocation, which the optimizer turns into values, or an
//! array of the workgroup.

mod access;
mod apply;

use crate::Validated;
use crate::analysis::{AffineForm, Counts, exclusive_range};
use crate::ir::{BufferId, Literal, MemId, Program, Space};
use crate::validate::{self, limits};
use access::{Facts, Touch};

/// The value of a uniform, by a number that the caller chooses: what has the same number has the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScalarId(pub u32);

/// What a storage object is bound to: all of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The object.
    pub memory: MemId,
    /// The buffer, by a number that the caller chooses. Different buffers do not overlap.
    pub buffer: BufferId,
    /// How many elements it has.
    pub elements: u32,
}

/// A dispatch as fusion sees it.
#[derive(Clone, Debug)]
pub struct Stage<'a> {
    program: &'a Validated<Program>,
    groups: [u32; 3],
    buffers: Vec<Bound>,
    scalars: Vec<(MemId, ScalarId)>,
    facts: Facts,
}

impl<'a> Stage<'a> {
    /// A program that is launched with so many workgroups. `buffers` says what each storage object is bound to; `scalars` which
    /// uniforms have values that others have, too, and may leave out the rest.
    pub fn new(
        program: &'a Validated<Program>,
        groups: [u32; 3],
        buffers: Vec<Bound>,
        scalars: Vec<(MemId, ScalarId)>,
    ) -> Stage<'a> {
        let facts = Facts::of(program, counts(program, groups), &buffers);
        Stage { program, groups, buffers, scalars, facts }
    }

    /// Upper bound of the loop trips that an invocation of the stage is charged for in a fused program, or `None` where a loop has
    /// no known bound for the grid, the lengths and these uniforms.
    pub fn most_trips(&self, scalars: &dyn Fn(MemId) -> Option<Literal>) -> Option<u64> {
        let trips = access::most_trips(self.program, self.counts(), &self.buffers, scalars)?;
        // An early `return` may become a loop that is executed once.
        Some(trips.saturating_add(self.facts.returns as u64))
    }

    fn counts(&self) -> Counts {
        counts(self.program, self.groups)
    }

    fn touches(&self, buffer: BufferId) -> impl Iterator<Item = &Touch> {
        self.facts.touches.values().filter(move |touch| touch.buffer == buffer)
    }

    fn bound(&self, buffer: BufferId) -> impl Iterator<Item = &Bound> {
        self.buffers.iter().filter(move |bound| bound.buffer == buffer)
    }

    /// Whether there may be no room for a region and a branch around the stage, a branch around a store, a loop that is executed
    /// once, and a branch for each `return`.
    fn is_deep(&self) -> bool {
        self.facts.depth + self.facts.returns + 4 > limits::NESTING
    }

    fn name(&self) -> String {
        self.program.name().to_owned()
    }
}

fn counts(program: &Program, [a, b, c]: [u32; 3]) -> Counts {
    let [x, y, z] = program.workgroup_size();
    [a, b, c, x, y, z]
}

/// Why a stage cannot join the stages before it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// They are launched with different numbers of workgroups.
    #[error("{next:?} workgroups ≠ {before:?} of the stages before it")]
    Grid {
        /// Of the stages before.
        before: [u32; 3],
        /// Of the stage.
        next: [u32; 3],
    },
    /// Their workgroups have different sizes.
    #[error("workgroup size {next:?} ≠ {before:?} of the stages before it")]
    WorkgroupSize {
        /// Of the stages before.
        before: [u32; 3],
        /// Of the stage.
        next: [u32; 3],
    },
    /// A stage before it prints: its lines would be those of another stage.
    #[error("`{stage}` prints, so it must be the last stage of its launch")]
    Prints {
        /// The stage that prints.
        stage: String,
    },
    /// A stage before it may trap: then those after it must not run.
    #[error("`{stage}` may trap, so it must be the last stage of its launch")]
    Traps {
        /// The stage that may trap.
        stage: String,
    },
    /// Invocations of a stage before it may end while others still wait for each other.
    #[error(
        "invocations of `{stage}` may return before a barrier or subgroup operation, so it must be the last stage of its launch"
    )]
    EndsEarly {
        /// The stage.
        stage: String,
    },
    /// A buffer is used by several stages, and one of them uses it atomically.
    #[error("`{object}` is atomic, and other stages access its buffer")]
    Atomic {
        /// The object, as the stage calls it.
        object: String,
    },
    /// A buffer is bound as elements of different types, or in different lengths.
    #[error("other stages bind the buffer of `{object}` with another element type or length")]
    View {
        /// The object, as the stage calls it.
        object: String,
    },
    /// A buffer is written by a stage and used by another one, and elements may cross workgroups.
    #[error("elements of `{object}` cross workgroups between stages, and a launch has no barrier across workgroups")]
    Elsewhere {
        /// The object, as the stage calls it.
        object: String,
    },
    /// Whether a barrier is reached depends on what another stage has written.
    #[error("uniform control flow at a barrier cannot be proved where a stage reads what another stage writes")]
    Divergent,
    /// The arrays of the stages do not fit together.
    #[error("arrays of all stages: {bytes} bytes of {space:?} memory > {limit}")]
    Memory {
        /// Where the arrays are.
        space: Space,
        /// What they take.
        bytes: u64,
        /// What there is.
        limit: u64,
    },
    /// Blocks would be nested too deeply.
    #[error("blocks of `{stage}` are nested too deeply to be fused")]
    Nesting {
        /// The stage.
        stage: String,
    },
}

/// Whether a stage may join those before it in one launch; these have joined each other already.
///
/// # Errors
/// Why not. A stage that has none before it may always start a launch.
pub fn may_join(before: &[Stage<'_>], next: &Stage<'_>) -> Result<(), Refusal> {
    let Some(first) = before.first() else { return Ok(()) };
    if first.groups != next.groups {
        return Err(Refusal::Grid { before: first.groups, next: next.groups });
    }
    let (size, next_size) = (first.program.workgroup_size(), next.program.workgroup_size());
    if size != next_size {
        return Err(Refusal::WorkgroupSize { before: size, next: next_size });
    }
    for stage in before {
        let Facts { prints, traps, returns, collective, .. } = stage.facts;
        let refusals = [
            (prints, Refusal::Prints { stage: stage.name() }),
            (traps, Refusal::Traps { stage: stage.name() }),
            (returns > 0 && collective, Refusal::EndsEarly { stage: stage.name() }),
        ];
        if let Some((_, refusal)) = refusals.into_iter().find(|(holds, _)| *holds) {
            return Err(refusal);
        }
    }
    let all: Vec<&Stage<'_>> = before.iter().chain([next]).collect();
    if let Some(stage) = all.iter().find(|stage| stage.is_deep()) {
        return Err(Refusal::Nesting { stage: stage.name() });
    }
    for (space, limit) in [(Space::Workgroup, limits::WORKGROUP_BYTES), (Space::Private, limits::PRIVATE_BYTES)] {
        let bytes = all.iter().map(|stage| stage.program.static_bytes_in(space)).sum();
        if bytes > limit {
            return Err(Refusal::Memory { space, bytes, limit });
        }
    }
    for bound in &next.buffers {
        may_share(&all, before, next, bound)?;
    }
    // What a stage reads is the same for all invocations only as long as nobody writes it.
    let guarded = all.iter().any(|stage| stage.facts.guarded);
    if guarded && validate::diagnose(&apply::apply(next.program.name(), &all, &|_| false).program).is_some() {
        return Err(Refusal::Divergent);
    }
    Ok(())
}

/// Whether a stage may use a buffer that the stages before it may use, too.
fn may_share(all: &[&Stage<'_>], before: &[Stage<'_>], next: &Stage<'_>, bound: &Bound) -> Result<(), Refusal> {
    let object = next.program.memory(bound.memory);
    let name = || object.name.clone();
    let mut shared = false;
    for stage in before {
        for other in stage.bound(bound.buffer) {
            shared = true;
            let memory = stage.program.memory(other.memory);
            if stage.facts.types[other.memory].has_atomics() || next.facts.types[bound.memory].has_atomics() {
                return Err(Refusal::Atomic { object: name() });
            }
            if (memory.element, other.elements) != (object.element, bound.elements) {
                return Err(Refusal::View { object: name() });
            }
        }
    }
    let touches: Vec<&Touch> = all.iter().flat_map(|stage| stage.touches(bound.buffer)).collect();
    let stores = touches.iter().any(|touch| touch.stores);
    match shared && stores && Window::of(&touches, next.counts()).is_none() {
        true => Err(Refusal::Elsewhere { object: name() }),
        false => Ok(()),
    }
}

/// The bytes of a buffer that one invocation or one workgroup has for itself, as far as they are used: from
/// `form.low` to `form.high` after the sum of its position. Those of others begin behind them.
#[derive(Clone, Copy, Debug)]
struct Window {
    form: AffineForm,
    /// Whether they belong to a single invocation.
    own: bool,
}

impl Window {
    /// The window that all these accesses stay in.
    fn of(touches: &[&Touch], counts: Counts) -> Option<Window> {
        let [a, b, c, ..] = counts;
        let bytes = touches.iter().map(|touch| touch.bytes());
        let own = exclusive_range(bytes.clone(), counts);
        let of_workgroup = || exclusive_range(bytes.map(|bytes| bytes.of_workgroup(counts)), [a, b, c, 1, 1, 1]);
        own.map(|form| Window { form, own: true }).or_else(|| of_workgroup().map(|form| Window { form, own: false }))
    }

    /// The window in elements of this size.
    fn elements(self, size: usize) -> Window {
        let size = size as i64;
        let AffineForm { factors, low, high } = self.form;
        let factors = factors.map(|factor| factor / size);
        Window { form: AffineForm { factors, low: low / size, high: (high + 1) / size - 1 }, ..self }
    }
}

/// Several stages as one program.
#[derive(Clone, Debug)]
pub struct Fused {
    /// The program, for the grid and the lengths of the stages.
    pub program: Validated<Program>,
    /// For every object of the program that must be bound, which stage's object it is.
    pub objects: Vec<(MemId, usize, MemId)>,
    /// The buffers that are not needed any more.
    pub dropped: Vec<BufferId>,
}

/// Fuses stages that [may join](may_join) each other in this order. `transient` says of which buffers nobody outside of the
/// stages sees the contents, neither before nor after: they start as zeros. Where all uses of such a buffer can be kept in
/// registers or workgroup memory, it is dropped.
///
/// # Panics
/// A stage was refused. What [may join](may_join) can be fused.
pub fn fuse(name: &str, stages: &[Stage<'_>], transient: &dyn Fn(BufferId) -> bool) -> Fused {
    let apply::Applied { program, objects, dropped } =
        apply::apply(name, &stages.iter().collect::<Vec<_>>(), transient);
    let program = validate::program(program).expect("stages that may join each other are a valid program together");
    Fused { program, objects, dropped }
}
