//! The intermediate representation: structured SSA in arenas.
//!
//! A [`Module`] holds programs and [pipelines](pipeline) of them; a [`Program`] is one kernel. It has memory objects, a workgroup size,
//! and a body: a [`Block`] of [`Inst`]s. An instruction applies an [`Op`] to operand values and defines result values; `if`, `switch`,
//! `loop` and `region` also own nested blocks. Every block ends in exactly one terminator: `yield`, `break`, `continue`, `return` or
//! `trap`. Loop-carried values are parameters of the block of the loop; there are no mutable variables and no other jumps.
//!
//! # Semantics
//!
//! A *dispatch* runs a program over a grid of workgroups. Each workgroup has `workgroup_size` *invocations*, and each
//! invocation executes the body. The semantics are total: no valid program has undefined behaviour.
//!
//! **Values** are scalars: bool, i32, u32, f32 on every device; i64, u64, f64 and f16 on devices that support them. [`ops`] defines the
//! operations.
//!
//! **Memory** is a set of objects that never overlap. *Storage* outlives the dispatch and is bound by the caller;
//! *uniform* scalars and arrays are constant during a dispatch; *workgroup* arrays belong to one workgroup, *private* arrays to one
//! invocation, and both are zero-initialized. An object is bytes: each access carries the type of the element that it loads or stores
//! ([`MemOperand`]), little-endian and naturally aligned, and its index counts elements of that type. The element type of the object is
//! the type of the argument. A load out of bounds gives 0; a store or atomic out of bounds has no effect. Elements of 8 and 16 bits are extended
//! when loaded and truncated when stored.
//!
//! **Memory model.** An invocation sees its own accesses in program order. Between the invocations of a workgroup, a barrier
//! orders accesses to workgroup memory (`workgroup_barrier`), to storage (`storage_barrier`), or both (`broadcast`). Between
//! workgroups there is no order within a dispatch; its stores are visible to the next dispatch. Atomic accesses are relaxed.
//!
//! **Data races.** Two accesses by different invocations without a barrier between them race if they share a byte, one of them writes, and
//! they are not both atomic on exactly the same bytes. A racy 32-bit load does not tear: it gives a value that was stored to these bytes in
//! this dispatch, or the value before the dispatch. A plain access to bytes that are also accessed atomically acts as a relaxed atomic one.
//! The oracle reports races.
//!
//! **Uniform control flow.** Barriers and `broadcast` must be executed by all invocations of a workgroup together (workgroup-uniform
//! control flow), subgroup operations by all invocations of a subgroup together (subgroup-uniform control flow); subgroups of a workgroup
//! may take different paths between two barriers. The validator accepts a program only if the [divergence
//! analysis](crate::analysis::Uniformity) proves it. Uniform for the subgroup are `subgroup_id`, results of ballots and reductions,
//! shuffles whose lane is uniform for the subgroup, everything that is uniform for the workgroup, and functions of these. Arithmetic on
//! positions such as `local_index` is not, because the device chooses the mapping of invocations to subgroups. `return` and `trap` end an
//! invocation; it counts as present at every later barrier, contributes nothing to subgroup operations, and has no other effect.
//!
//! **Traps** make the dispatch fail with the code of the lowest invocation that trapped; the other invocations complete.
//! **Fuel** is a resource limit outside the semantics: a dispatch that exceeds its budget of loop trips or its deadline is
//! an error that names the loop. **Prints** append to a bounded trace, ordered by invocation and then by sequence.
//!
//! **Specialization constants** are fixed at compile time; [`Program::specialize`] replaces their defaults.

mod access_types;
pub mod clone;
mod compare;
mod cursor;
pub mod entity;
mod eval;
pub mod ops;
pub mod pipeline;
mod program;
mod rename;
pub mod smt;
pub(crate) mod source;
mod stats;
mod types;
mod walk;

pub use access_types::AccessTypes;
pub use compare::{Differences, OtherLiteral, compare};
pub use cursor::Cursor;
pub use entity::{BlockId, BufferId, ConstantId, InstId, MemId, ValueId};
pub use ops::{
    Atomic, Axis, Barrier, Comparison, Control, MemOperand, Op, PerGroup, PerInvocation, Pure, Subgroup, Terminator,
};
pub use pipeline::Pipeline;
pub use program::{
    Access, Block, Constant, Def, Inst, Memory, Module, Program, ResultTypes, Space, TypeError, Value, Values,
    total_invocations,
};
pub use rename::Renaming;
pub use source::{SourceLoc, SourceMap, Span};
pub use stats::{Heap, Stats};
pub use types::{Element, Literal, Scalar, Type, TypeSet};
