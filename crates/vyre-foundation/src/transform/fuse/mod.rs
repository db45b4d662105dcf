//! Launch fusion (kernel fusion): merges programs that would be launched one after the other.
//!
//! ```text
//! Stage::new (accesses of a program)  →  may_join (stage by stage: yes, or why not)  →  fuse  →  Fused
//! ```
//!
//! A launch has no barrier across workgroups. So a stage may join others only if each buffer that one of them writes
//! and another one accesses is partitioned: each invocation accesses only its own elements, or each workgroup does,
//! with a barrier between the stages. The proof compares the affine indices of all accesses to the buffer, for the
//! given grid and lengths, and the fused program is valid for these only.
//!
//! A buffer that is not used outside the group becomes a private array, which the optimizer promotes to SSA values, or
//! a workgroup array (array contraction).

mod access;
mod apply;

use crate::Validated;
use crate::analysis::{AffineForm, Counts, exclusive_range};
use crate::ir::{BufferId, Literal, MemId, Program, Space};
use crate::validate::{self, limits};
use access::{Facts, StageAccess, Uniforms};

/// Binding of a storage object to a whole buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The object.
    pub memory: MemId,
    /// Number of the buffer, chosen by the caller. Different buffers do not overlap.
    pub buffer: BufferId,
    /// Number of elements.
    pub elements: u32,
}

/// Dispatch to be fused.
#[derive(Clone, Debug)]
pub struct Stage<'a> {
    program: &'a Validated<Program>,
    groups: [u32; 3],
    buffers: Vec<Bound>,
    uniforms: Uniforms,
    facts: Facts,
}

impl<'a> Stage<'a> {
    /// Creates the stage of a program launched with `groups` workgroups. `buffers` binds each storage object; `uniforms`
    /// gives the uniforms with known values, for which the fused program is specialized.
    pub fn new(
        program: &'a Validated<Program>,
        groups: [u32; 3],
        buffers: Vec<Bound>,
        uniforms: impl IntoIterator<Item = (MemId, Literal)>,
    ) -> Stage<'a> {
        let loaded = |(memory, value)| (memory, program.memory(memory).element.truncate(value));
        let uniforms = uniforms.into_iter().map(loaded).collect();
        let facts = Facts::of(program, counts(program, groups), &buffers, &uniforms);
        Stage { program, groups, buffers, uniforms, facts }
    }

    /// Upper bound of the loop iterations that an invocation of the stage takes in a fused program, or `None` if a loop
    /// has no known bound for the grid, the lengths and the known uniforms.
    pub fn max_trips(&self) -> Option<u64> {
        let trips = access::max_trips(self.program, self.counts(), &self.buffers, &self.uniforms)?;
        // An early `return` may become a loop that executes once.
        Some(trips.saturating_add(self.facts.returns as u64))
    }

    fn counts(&self) -> Counts {
        counts(self.program, self.groups)
    }

    fn accesses(&self, buffer: BufferId) -> impl Iterator<Item = &StageAccess> {
        self.facts.accesses.values().filter(move |access| access.buffer == buffer)
    }

    fn bound(&self, buffer: BufferId) -> impl Iterator<Item = &Bound> {
        self.buffers.iter().filter(move |bound| bound.buffer == buffer)
    }

    /// Returns true if fusion may exceed the nesting limit: it adds a region and a branch around the stage, a branch
    /// around a store, a loop that executes once, and a branch for each `return`.
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

/// Reason why a stage cannot join the stages before it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Different numbers of workgroups.
    #[error("{next:?} workgroups ≠ {before:?} of the stages before it")]
    Grid {
        /// Numbers of workgroups of the stages before.
        before: [u32; 3],
        /// Numbers of workgroups of the stage.
        next: [u32; 3],
    },
    /// Different workgroup sizes.
    #[error("workgroup size {next:?} ≠ {before:?} of the stages before it")]
    WorkgroupSize {
        /// Workgroup size of the stages before.
        before: [u32; 3],
        /// Workgroup size of the stage.
        next: [u32; 3],
    },
    /// An earlier stage prints, which would attribute its lines to another stage.
    #[error("`{stage}` prints, so it must be the last stage of its launch")]
    Prints {
        /// The stage that prints.
        stage: String,
    },
    /// An earlier stage may trap, after which the later ones must not run.
    #[error("`{stage}` may trap, so it must be the last stage of its launch")]
    Traps {
        /// The stage that may trap.
        stage: String,
    },
    /// Invocations of an earlier stage may end while others wait at a barrier.
    #[error(
        "invocations of `{stage}` may return before a barrier or subgroup operation, so it must be the last stage of its launch"
    )]
    EndsEarly {
        /// The stage.
        stage: String,
    },
    /// A buffer is shared, and one stage accesses it atomically.
    #[error("`{object}` is atomic, and other stages access its buffer")]
    Atomic {
        /// The object, as the stage calls it.
        object: String,
    },
    /// A buffer is bound with different element types or lengths.
    #[error("other stages bind the buffer of `{object}` with another element type or length")]
    View {
        /// The object, as the stage calls it.
        object: String,
    },
    /// A buffer is written by one stage and accessed by another one, and its elements may cross workgroups.
    #[error("elements of `{object}` cross workgroups between stages, and a launch has no barrier across workgroups")]
    CrossesWorkgroups {
        /// The object, as the stage calls it.
        object: String,
    },
    /// Control flow at a barrier depends on data that another stage writes.
    #[error("uniform control flow at a barrier cannot be proved where a stage reads what another stage writes")]
    Divergent,
    /// The arrays of all stages together exceed a limit.
    #[error("arrays of all stages: {bytes} bytes of {space:?} memory > {limit}")]
    Memory {
        /// Address space of the arrays.
        space: Space,
        /// Bytes required.
        bytes: u64,
        /// Bytes available.
        limit: u64,
    },
    /// The fused blocks would exceed the nesting limit.
    #[error("blocks of `{stage}` are nested too deeply to be fused")]
    Nesting {
        /// The stage.
        stage: String,
    },
}

/// Decides whether a stage may join the ones before it in one launch, which have joined each other already.
///
/// # Errors
/// The reason for the refusal. A first stage may always start a launch.
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
    // An object that one stage reads uniformly is no longer uniform if another stage writes it.
    let guarded = all.iter().any(|stage| stage.facts.guarded);
    if guarded && validate::diagnose(&apply::apply(next.program.name(), &all, &|_| false).program).is_some() {
        return Err(Refusal::Divergent);
    }
    Ok(())
}

/// Decides whether a stage may share a buffer with the stages before it.
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
    let accesses: Vec<&StageAccess> = all.iter().flat_map(|stage| stage.accesses(bound.buffer)).collect();
    let stores = accesses.iter().any(|access| access.stores);
    match shared && stores && Footprint::of(&accesses, next.counts()).is_none() {
        true => Err(Refusal::CrossesWorkgroups { object: name() }),
        false => Ok(()),
    }
}

/// Footprint: bytes of a buffer that only one invocation or workgroup accesses, from `form.low` to `form.high` relative
/// to the linear form of its position. Footprints of different positions are disjoint.
#[derive(Clone, Copy, Debug)]
struct Footprint {
    form: AffineForm,
    /// Whether the footprint belongs to an invocation, not a workgroup.
    per_invocation: bool,
}

impl Footprint {
    /// Footprint of all these accesses.
    fn of(accesses: &[&StageAccess], counts: Counts) -> Option<Footprint> {
        let [a, b, c, ..] = counts;
        let bytes = accesses.iter().map(|access| access.bytes());
        let per_invocation = exclusive_range(bytes.clone(), counts);
        let of_workgroup = || exclusive_range(bytes.map(|bytes| bytes.of_workgroup(counts)), [a, b, c, 1, 1, 1]);
        per_invocation
            .map(|form| Footprint { form, per_invocation: true })
            .or_else(|| of_workgroup().map(|form| Footprint { form, per_invocation: false }))
    }

    /// The footprint in elements of this size.
    fn elements(self, size: usize) -> Footprint {
        let size = size as i64;
        let AffineForm { factors, low, high } = self.form;
        let factors = factors.map(|factor| factor / size);
        Footprint { form: AffineForm { factors, low: low / size, high: (high + 1) / size - 1 }, ..self }
    }
}

/// Result of fusion.
#[derive(Clone, Debug)]
pub struct Fused {
    /// Fused program, for the grid and the lengths of the stages.
    pub program: Validated<Program>,
    /// Objects of the fused program that must be bound, with the stage and object that each comes from.
    pub objects: Vec<(MemId, usize, MemId)>,
    /// Buffers that are not needed any more.
    pub dropped: Vec<BufferId>,
}

/// Fuses stages that [may join](may_join) each other, in this order. `transient` returns true for a buffer whose
/// contents are not used outside the stages, neither before nor after; it starts as zeros. A transient buffer whose
/// accesses all fit into registers or workgroup memory is dropped.
///
/// # Panics
/// A stage was refused by [`may_join`].
pub fn fuse(name: &str, stages: &[Stage<'_>], transient: &dyn Fn(BufferId) -> bool) -> Fused {
    let apply::Applied { program, objects, dropped } =
        apply::apply(name, &stages.iter().collect::<Vec<_>>(), transient);
    let program = validate::program(program).expect("stages accepted by `may_join` fuse to a valid program");
    Fused { program, objects, dropped }
}
