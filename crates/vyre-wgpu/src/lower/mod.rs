//! Lowering of a validated program to a naga module with one compute entry point.
//!
//! - [`build`](self) is the builder of the naga module, `arith` lowers pure operations, `memory` accesses with their
//!   bounds checks, `flow` control flow, `collective` collective operations, and `control` defines the hidden bindings
//!   between host and kernel.
//!
//! # Invocations that have ended
//!
//! An invocation that returns or traps uses naga's `return` where that is allowed: in programs without collective
//! operations, and where the whole workgroup returns together. In other programs (`masked`) an invocation that ends
//! alone clears the variable `alive`; it is *active* while that is set. Such a program has three kinds of blocks:
//!
//! - *Shared* blocks are executed by all invocations: those that contain collective operations or workgroup-uniform
//!   exits. Their effects are predicated on `alive`. Branch conditions are taken from an active invocation through
//!   workgroup memory, because one that has ended may not have computed them; if none is active, the workgroup returns.
//! - *Subgroup* blocks are the same for a subgroup: those that contain subgroup operations, where subgroups of a
//!   workgroup may take different paths. All invocations of a subgroup execute them, as long as one of them is active.
//!   Branch conditions are reductions over the active invocations. They contain no barriers.
//! - *Guarded* blocks are executed by active invocations only. After a construct in which an invocation may have ended,
//!   the rest of the block is guarded again; invocations that end in a loop leave the loop.
//!
//! # Loops
//!
//! Every loop consumes fuel, so that no shader runs forever, unless its trip count is known to be small: as a constant,
//! or because the host has bounded it for the arguments of a launch (`trips`). When an invocation runs out of fuel in a
//! divergent loop, it leaves the constructs that its workgroup entered together, and then the workgroup returns.
//!
//! Mesa's software driver counts the trips of all loops that a subgroup takes, whichever invocations are in them, and
//! silently ends every loop after its first trip once the count reaches [`BUDGET`], with wrong results. For such a
//! device (`loop_budget`) fuel is that count. Every loop pays; invocations that skipped a loop learn its cost where
//! they reconverge with those that took it; and an invocation that runs out ends with an error. The driver keeps one
//! count for each subgroup, and so does fuel: it is a variable of each invocation, combined over the active lanes of a
//! subgroup only, so subgroups on different paths keep different counts. Workgroup-uniform loops have a separate count,
//! because no subgroup skips them. To raise the limit, small loops are unrolled, so that one trip of the device is
//! several of the program.
//!
//! That driver also executes the padding lanes of the last subgroup of a workgroup: their effects are masked, but their
//! trips count. They end at entry.

mod arith;
mod build;
mod collective;
pub(crate) mod control;
mod counters;
mod flow;
mod fma;
mod memory;
mod packed;
pub(crate) mod trips;

use naga::{AddressSpace, Binding, BuiltIn, EntryPoint, Expression, FunctionArgument, Span, StorageAccess, VectorSize};
use rustc_hash::{FxHashMap, FxHashSet};
use vyre_driver::Error;
use vyre_foundation::Validated;
use vyre_foundation::analysis::{Lengths, Ranges, Scope, Uniformity};
use vyre_foundation::ir::entity::SecondaryMap;
use vyre_foundation::ir::ops;
use vyre_foundation::ir::{
    Access, AccessTypes, Atomic, Axis, Constant, Def, Element, Inst, InstId, MemId, MemOperand, Op, PerGroup,
    PerInvocation, Program, Pure, Space, Terminator, Type, ValueId,
};
use vyre_foundation::transform::{atomic_loops, bf16_words, expand_math, integer_atomics, private_words};

use build::{Builder, Expr, expr};
use control::{Control, param, report};
use memory::Object;
use trips::{Given, Trips};

/// Device properties that lowering depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The device silently ends loops once a subgroup has taken [`BUDGET`] trips.
    pub(crate) loop_budget: bool,
    /// 64-bit atomics are available.
    pub(crate) atomics_64: bool,
    /// Float operations are opaque to the driver's optimizer, which would simplify `(a + b) - a` to `b`.
    pub(crate) opaque_floats: bool,
    /// Initial values of loop counters that may wrap around are opaque to the driver's optimizer, which would miscount the trips.
    pub(crate) opaque_counters: bool,
    /// `fma` is emulated with f64, because the device rounds it twice.
    pub(crate) emulate_fma: bool,
    /// Subgroup size, if known.
    pub(crate) subgroup_size: Option<u32>,
    /// Size of each binding but the last, for objects with several bindings; a power of two.
    pub(crate) binding_bytes: u64,
    /// Constants become overrides in the module. Programs for the device have them substituted instead, so that the
    /// passes can use their values.
    pub(crate) overrides: bool,
}

impl Target {
    /// Lines that name the driver defects worked around.
    pub(crate) fn workarounds(&self, name: &str) -> Vec<String> {
        let defects = [
            (
                self.loop_budget,
                "all loops of a subgroup end after 65535 trips together, those of padding lanes included",
            ),
            (self.opaque_counters, "loops whose counter wraps around are miscounted"),
            (self.opaque_floats, "float operations are reassociated"),
            (self.emulate_fma, "fma is rounded twice"),
        ];
        let present = defects.into_iter().filter(|(present, _)| *present);
        present.map(|(_, defect)| format!("{name}: worked around: {defect}")).collect()
    }
}

/// Properties of launches that a module is specialized for. Less general variants compute less.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Variant {
    pub(crate) mapping: GroupMapping,
    /// Objects may start anywhere in their bindings, and several may be parts of one buffer. wgpu then requires all
    /// bindings of the buffer to be writable.
    pub(crate) parts: bool,
    /// The host has bounded the trips of the countable loops.
    pub(crate) counted: bool,
    pub(crate) lengths: Lengths,
    /// Number of bindings of each storage object, in order; empty if all have one.
    pub(crate) bindings: Vec<u32>,
}

impl Variant {
    /// Number of bindings of a storage object, by its position.
    pub(crate) fn bindings(&self, object: usize) -> u32 {
        self.bindings.get(object).copied().unwrap_or(1)
    }
}

/// Mapping of dispatched workgroups to those of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GroupMapping {
    /// A one-dimensional grid, as requested.
    Line,
    /// The grid as requested.
    Direct,
    /// A range of the grid in another shape, with extra workgroups at the end: for grids that exceed the device's
    /// limits or may exceed them, and for dispatches in several ranges.
    Folded,
    /// Folded mapping of a one-dimensional grid.
    FoldedLine,
}

impl GroupMapping {
    /// Returns whether workgroup ids are computed from a linear index.
    fn is_folded(self) -> bool {
        matches!(self, GroupMapping::Folded | GroupMapping::FoldedLine)
    }
}

/// A program prepared for lowering.
pub(crate) struct Source {
    /// The program, with the math library expanded.
    program: Validated<Program>,
    ranges: Ranges,
    trips: Trips,
    usual: Variant,
    /// Length properties that make no difference to the module.
    unaffected: Lengths,
}

impl Source {
    /// Legalizes a program and computes the analyses that all of its modules share.
    ///
    /// # Errors
    /// It accesses too much private memory as several types.
    pub(crate) fn of(program: &Validated<Program>) -> Result<Source, Error> {
        let program = expand_math(program, |op| program.is_fast() && arith::device_function(op).is_some());
        let program = integer_atomics(&bf16_words(&program));
        let types = AccessTypes::of(&program);
        let is_mixed = |memory: MemId| types[memory].elements().nth(1).is_some();
        // Mixed objects are arrays of unsigned words.
        let is_signed = |op, at: MemOperand| matches!(op, Atomic::Min | Atomic::Max) && at.element == Element::I32;
        let program = atomic_loops(&program, |op, at| is_signed(op, at) && is_mixed(at.memory));
        let program = private_words(&program)?;
        let mut flat = program.workgroup_size()[1..] == [1, 1];
        program.walk(|id, _| {
            flat &= !matches!(
                program.inst(id).op,
                Op::PerInvocation(PerInvocation::GlobalId(axis)) | Op::PerGroup(PerGroup::GroupId(axis) | PerGroup::GroupCount(axis)) if axis != Axis::X
            );
        });
        let ranges = Ranges::of(&program);
        let trips = Trips::of(&program, &ranges);
        let lengths = Lengths { equal: true, multiples_of_four: true };
        let all = Ranges::with_lengths(&program, lengths).proved_count();
        let proved_count = |lengths: Lengths| Ranges::with_lengths(&program, lengths).proved_count();
        let unaffected = Lengths {
            equal: proved_count(Lengths { equal: false, ..lengths }) == all,
            multiples_of_four: proved_count(Lengths { multiples_of_four: false, ..lengths }) == all,
        };
        let mapping = if flat { GroupMapping::Line } else { GroupMapping::Direct };
        let usual = Variant { mapping, parts: false, counted: true, lengths, bindings: Vec::new() };
        Ok(Source { program, ranges, trips, usual, unaffected })
    }

    /// The variant that most launches need.
    pub(crate) fn usual(&self) -> &Variant {
        &self.usual
    }

    /// Normalizes length properties: those that make no difference are as in the usual variant.
    pub(crate) fn lengths(&self, Lengths { equal, multiples_of_four }: Lengths) -> Lengths {
        Lengths {
            equal: equal || self.unaffected.equal,
            multiples_of_four: multiples_of_four || self.unaffected.multiples_of_four,
        }
    }

    /// Upper bound of an invocation's trips in loops without fuel in `counted` variants, if the launch determines it.
    pub(crate) fn trips(&self, given: Given<'_>) -> Option<u64> {
        self.trips.most(&self.program, &self.ranges, given)
    }

    /// Lowers the program. Binding 0 is `params`, the storage objects follow in order, and the last is `report`.
    pub(crate) fn lower(&self, target: Target, variant: &Variant) -> Lowered {
        let target = match self.program.is_fast() {
            true => Target { opaque_floats: false, emulate_fma: false, ..target },
            false => target,
        };
        Lowerer::new(self, target, variant).run()
    }
}

/// A lowered program.
pub(crate) struct Lowered {
    pub(crate) module: naga::Module,
    pub(crate) control: Control,
    /// Bytes of workgroup memory that the module uses.
    pub(crate) workgroup_bytes: u64,
    /// Workgroup memory must be zeroed: not if all of it is written before it is read.
    pub(crate) needs_zeros: bool,
}

/// Trips that a subgroup can take in total on a device with a loop budget; slightly less than the device's limit.
pub(crate) const BUDGET: u64 = 65_000;

/// Name of the entry point.
pub(crate) const ENTRY: &str = "main";

/// Invocations that execute a block, and the lowering of exits in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// All invocations that have not ended; an exit is naga's `return`.
    Free,
    /// Active invocations only; an exit clears `alive`.
    Guarded,
    /// All invocations of the workgroup, active or not.
    Shared,
    /// All invocations of a subgroup, active or not; an exit clears `alive`.
    Subgroup,
}

impl Mode {
    /// Returns whether invocations that have ended execute the block, too.
    fn includes_ended(self) -> bool {
        matches!(self, Mode::Shared | Mode::Subgroup)
    }
}

struct Lowerer<'p> {
    program: &'p Program,
    target: Target,
    variant: &'p Variant,
    b: Builder,
    values: SecondaryMap<ValueId, Option<Expr>>,
    objects: SecondaryMap<MemId, Option<Object>>,
    control: Control,
    /// Pointers to the hidden bindings.
    params: Expr,
    report: Option<Expr>,
    /// Uniformity of values and blocks, for programs with collective operations.
    facts: Option<Uniformity>,
    /// Value ranges, for bounds-check elimination.
    ranges: Ranges,
    masked: bool,
    trips: &'p Trips,
    /// Loops whose trips the host has bounded.
    free: FxHashSet<InstId>,
    loops: Vec<flow::Frame>,
    builtins: FxHashMap<BuiltIn, Expr>,
    group_index: Option<Expr>,
    global_index: Option<Expr>,
    /// Workgroups with subgroup operations are launched as one row: naga requires it, because with more dimensions
    /// devices differ in which invocations form a subgroup.
    in_one_row: bool,
    variables: Variables,
    workgroup_bytes: u64,
    /// Pointers to the workgroup variables for the words of a broadcast.
    broadcast: Vec<Expr>,
}

/// Pointers to variables of the entry point, where needed.
#[derive(Default)]
struct Variables {
    alive: Option<Expr>,
    fuel: Option<Expr>,
    group_fuel: Option<Expr>,
    /// Number of lines that the invocation has printed.
    printed: Option<Expr>,
    /// Flag in workgroup memory: an invocation has run out of fuel in a divergent loop.
    stopped: Option<Expr>,
    /// Flag in workgroup memory: an invocation is active. With `choice`, passes a value from active invocations to all.
    any_active: Option<Expr>,
    choice: Option<Expr>,
}

impl<'p> Lowerer<'p> {
    fn new(source: &'p Source, target: Target, variant: &'p Variant) -> Self {
        let program: &Program = &source.program;
        let mut b = Builder::new();
        b.emulate_fma = target.emulate_fma;
        let control = Control::new(program);
        let mut members = Vec::new();
        for (word, &ty) in control.params.iter().enumerate() {
            let ty = b.scalar_ty(ty);
            let name = Some(format!("word_{word}"));
            members.push(naga::StructMember { name, ty, binding: None, offset: 4 * word as u32 });
        }
        let inner = naga::TypeInner::Struct { members, span: control.param_bytes() as u32 };
        let ty = b.module.types.insert(naga::Type { name: Some("Params".into()), inner }, Span::UNDEFINED);
        let params = binding("params", 0, ty, AddressSpace::Uniform);
        let params = b.module.global_variables.append(params, Span::UNDEFINED);
        let params = b.name(Expression::GlobalVariable(params));

        let facts = program.contains(program.body(), Op::is_collective).then(|| Uniformity::of(program));
        Lowerer {
            program,
            target,
            variant,
            b,
            values: SecondaryMap::with_capacity(program.values().len(), None),
            objects: SecondaryMap::with_capacity(program.memories().len(), None),
            control,
            params,
            report: None,
            facts,
            ranges: Ranges::with_lengths(program, variant.lengths),
            masked: false,
            trips: &source.trips,
            free: if variant.counted { source.trips.free() } else { FxHashSet::default() },
            loops: Vec::new(),
            builtins: FxHashMap::default(),
            group_index: None,
            global_index: None,
            in_one_row: false,
            variables: Variables::default(),
            workgroup_bytes: 0,
            broadcast: Vec::new(),
        }
    }

    fn run(mut self) -> Lowered {
        self.masked = self.facts.is_some() && self.ends_divergently();
        let padded = self.has_padding_lanes();
        if padded && !self.masked {
            // To naga a load of a variable is uniform, and it allows no barrier after a non-uniform return.
            let padding = self.b.scalar_variable("padding", Type::Bool);
            let ended = self.is_padding();
            self.b.store(padding, ended);
            let ended = self.b.load(padding);
            self.b.return_when(ended);
        }
        self.compute_ids();
        if self.target.opaque_floats {
            self.b.opaque_zeros = Some([self.param(param::ZEROS), self.param(param::ZEROS + 1)]);
        }
        self.declare_memory();
        self.prepare_effects();
        let mode = if self.masked { Mode::Shared } else { Mode::Free };
        self.block(self.program.body(), &[], mode);

        let workgroup_size = match self.in_one_row {
            true => [self.program.workgroup_size().iter().product(), 1, 1],
            false => self.program.workgroup_size(),
        };
        let needs_zeros = self.needs_zeros();
        let Lowerer { mut b, control, workgroup_bytes, .. } = self;
        b.function.body = b.close();
        let function = std::mem::take(&mut b.function);
        b.module.entry_points.push(EntryPoint {
            name: ENTRY.into(),
            stage: naga::ShaderStage::Compute,
            early_depth_test: None,
            workgroup_size,
            workgroup_size_overrides: None,
            function,
            mesh_info: None,
            task_payload: None,
            incoming_ray_payload: None,
        });
        Lowered { module: b.module, control, workgroup_bytes, needs_zeros }
    }

    /// Returns whether invocations of a workgroup may end while others continue. Running out of fuel does not count:
    /// then all end.
    fn ends_divergently(&self) -> bool {
        let facts = self.facts.as_ref().expect("asked for programs with collective operations");
        let program = self.program;
        let mut pending = vec![program.body()];
        while let Some(block) = pending.pop() {
            for &id in &program.block(block).insts {
                let inst = program.inst(id);
                if matches!(inst.op, Op::Terminator(Terminator::Return | Terminator::Trap))
                    && !facts.is_converged(block, Scope::Workgroup)
                {
                    return true;
                }
                pending.extend(&inst.blocks);
            }
        }
        false
    }

    /// Returns whether padding lanes would take trips: the last subgroup of a workgroup is not full, on a device that
    /// executes all its lanes and counts their trips.
    fn has_padding_lanes(&self) -> bool {
        let invocations: u32 = self.program.workgroup_size().iter().product();
        let fills = |size: u32| invocations.is_multiple_of(size);
        self.target.loop_budget
            && !self.target.subgroup_size.is_some_and(fills)
            && self.program.contains(self.program.body(), |op| *op == ops::Control::Loop)
    }

    /// Condition that the lane is past the end of the workgroup. The bound is opaque to the driver, which otherwise
    /// folds the comparison to false.
    fn is_padding(&mut self) -> Expr {
        let invocations = self.b.u32(self.program.workgroup_size().iter().product());
        let zeros = self.param(param::ZEROS);
        let local = self.builtin(BuiltIn::LocalInvocationIndex);
        expr!(self.b, ge(local, xor(invocations, zeros)))
    }

    // Ids of invocations.

    /// Loads a word of `params`.
    fn param(&mut self, word: u32) -> Expr {
        let pointer = self.b.field(self.params, word);
        self.b.load(pointer)
    }

    fn builtin(&mut self, builtin: BuiltIn) -> Expr {
        if let Some(&known) = self.builtins.get(&builtin) {
            return known;
        }
        let scalar = naga::Scalar::U32;
        let ty = match builtin {
            BuiltIn::WorkGroupId
            | BuiltIn::NumWorkGroups
            | BuiltIn::LocalInvocationId
            | BuiltIn::GlobalInvocationId => self.b.ty(naga::TypeInner::Vector { size: VectorSize::Tri, scalar }),
            _ => self.b.ty(naga::TypeInner::Scalar(scalar)),
        };
        let position = self.b.function.arguments.len() as u32;
        let binding = Some(Binding::BuiltIn(builtin));
        self.b.function.arguments.push(FunctionArgument { name: None, ty, binding });
        let argument = self.b.name(Expression::FunctionArgument(position));
        self.builtins.insert(builtin, argument);
        argument
    }

    /// Computes the ids that the program uses at entry.
    fn compute_ids(&mut self) {
        let program = self.program;
        let (mut global_index, mut group_index) = (false, self.variant.mapping.is_folded());
        program.walk(|id, _| match &program.inst(id).op {
            // Traps and lines are reported with the invocation.
            Op::PerInvocation(PerInvocation::GlobalIndex) | Op::Terminator(Terminator::Trap) | Op::Print(_) => {
                global_index = true;
            }
            Op::PerGroup(PerGroup::GroupIndex) => group_index = true,
            op => self.in_one_row |= op.needs_subgroups(),
        });
        let in_line = self.variant.mapping == GroupMapping::Line && program.workgroup_size()[1..] == [1, 1];
        if global_index && in_line {
            self.global_index = Some(self.component(BuiltIn::GlobalInvocationId, 0));
            global_index = false;
        }
        if global_index || group_index {
            let mut index = self.physical_group();
            if self.variant.mapping.is_folded() {
                // Extra workgroups of a folded grid return.
                let count = self.param(param::COUNT);
                let beyond = self.b.ge(index, count);
                self.b.return_when(beyond);
                let first = self.param(param::FIRST);
                index = self.b.add(index, first);
            }
            self.group_index = Some(index);
        }
        if global_index {
            let invocations = self.b.u32(program.workgroup_size().iter().product());
            let local = self.builtin(BuiltIn::LocalInvocationIndex);
            let first = self.b.mul(self.group_index.expect("computed before"), invocations);
            self.global_index = Some(self.b.add(first, local));
        }
    }

    fn component(&mut self, builtin: BuiltIn, axis: u32) -> Expr {
        let vector = self.builtin(builtin);
        self.b.field(vector, axis)
    }

    /// Linear index of the workgroup in the dispatched grid: also its index in the requested grid, or in the range of
    /// it.
    fn physical_group(&mut self) -> Expr {
        if self.variant.mapping == GroupMapping::Line {
            return self.component(BuiltIn::WorkGroupId, 0);
        }
        let id = self.builtin(BuiltIn::WorkGroupId);
        let count = self.builtin(BuiltIn::NumWorkGroups);
        let [x, y, z] = [0, 1, 2].map(|axis| self.b.field(id, axis));
        let [width, height] = [0, 1].map(|axis| self.b.field(count, axis));
        expr!(self.b, add(mul(add(mul(height, z), y), width), x))
    }

    fn group_id(&mut self, axis: Axis) -> Expr {
        match (self.variant.mapping, axis) {
            (GroupMapping::Line | GroupMapping::FoldedLine, Axis::Y | Axis::Z) => return self.b.u32(0),
            (GroupMapping::FoldedLine, Axis::X) => return self.group_index.expect("computed at entry"),
            (GroupMapping::Line | GroupMapping::Direct, axis) => {
                return self.component(BuiltIn::WorkGroupId, axis as u32);
            }
            (GroupMapping::Folded, _) => {}
        }
        let index = self.group_index.expect("computed at entry");
        let width = self.param(param::GROUPS);
        match axis {
            Axis::X => self.modulo(index, width),
            Axis::Y | Axis::Z => {
                let row = self.quotient(index, width);
                let height = self.param(param::GROUPS + 1);
                if axis == Axis::Y { self.modulo(row, height) } else { self.quotient(row, height) }
            }
        }
    }

    fn group_count(&mut self, axis: Axis) -> Expr {
        match (self.variant.mapping, axis) {
            (GroupMapping::Line | GroupMapping::FoldedLine, Axis::Y | Axis::Z) => self.b.u32(1),
            (GroupMapping::Line | GroupMapping::Direct, axis) => self.component(BuiltIn::NumWorkGroups, axis as u32),
            (GroupMapping::Folded | GroupMapping::FoldedLine, axis) => self.param(param::GROUPS + axis as u32),
        }
    }

    /// Workgroups that run imply nonzero counts, so the divisor is not 0.
    fn quotient(&mut self, a: Expr, b: Expr) -> Expr {
        self.b.binary(naga::BinaryOperator::Divide, a, b)
    }

    fn modulo(&mut self, a: Expr, b: Expr) -> Expr {
        self.b.binary(naga::BinaryOperator::Modulo, a, b)
    }

    fn local_id(&mut self, axis: Axis) -> Expr {
        if self.in_one_row {
            let index = self.builtin(BuiltIn::LocalInvocationIndex);
            let [width, height, _] = self.program.workgroup_size();
            let (width, height) = (self.b.u32(width), self.b.u32(height));
            return match axis {
                Axis::X => self.modulo(index, width),
                Axis::Y | Axis::Z => {
                    let row = self.quotient(index, width);
                    if axis == Axis::Y { self.modulo(row, height) } else { self.quotient(row, height) }
                }
            };
        }
        let id = self.builtin(BuiltIn::LocalInvocationId);
        self.b.field(id, axis as u32)
    }

    /// Ids that differ between the invocations of a workgroup.
    fn per_invocation(&mut self, op: PerInvocation) -> Expr {
        match op {
            PerInvocation::GlobalIndex => self.global_index.expect("computed at entry"),
            PerInvocation::GlobalId(axis) if !self.variant.mapping.is_folded() && !self.in_one_row => {
                self.component(BuiltIn::GlobalInvocationId, axis as u32)
            }
            PerInvocation::GlobalId(axis) => {
                let group = self.group_id(axis);
                let size = self.b.u32(self.program.workgroup_size()[axis as usize]);
                let first = self.b.mul(group, size);
                let local = self.local_id(axis);
                self.b.add(first, local)
            }
            PerInvocation::LocalId(axis) => self.local_id(axis),
            PerInvocation::LocalIndex => self.builtin(BuiltIn::LocalInvocationIndex),
            PerInvocation::SubgroupId => self.builtin(BuiltIn::SubgroupId),
            PerInvocation::SubgroupLane => self.builtin(BuiltIn::SubgroupInvocationId),
        }
    }

    /// Ids and sizes that are uniform in the workgroup.
    fn per_group(&mut self, op: PerGroup) -> Expr {
        match op {
            PerGroup::GroupId(axis) => self.group_id(axis),
            PerGroup::GroupIndex => self.group_index.expect("computed at entry"),
            PerGroup::GroupCount(axis) => self.group_count(axis),
            PerGroup::GroupSize(axis) => self.b.u32(self.program.workgroup_size()[axis as usize]),
            PerGroup::SubgroupSize => self.builtin(BuiltIn::SubgroupSize),
            PerGroup::Length(memory) => self.length(memory),
        }
    }

    // Values.

    fn value(&mut self, value: ValueId) -> Expr {
        if let (Def::Constant(constant), true) = (self.program.def(value), self.target.overrides) {
            let Constant { name, default, .. } = self.program.constant(constant);
            return self.b.overridable(name, *default);
        }
        match self.program.known(value) {
            Some(literal) => self.b.literal(literal),
            None => self.values[value].expect("a value is used where it is visible"),
        }
    }

    fn define(&mut self, value: ValueId, expr: Expr) {
        self.values[value] = Some(expr);
    }

    /// Words of a value, low word first.
    fn words(&mut self, ty: Type, value: Expr) -> Vec<Expr> {
        match ty {
            Type::Bool => vec![expr!(self.b, select(value, 1, 0))],
            Type::U32 => vec![value],
            Type::I32 | Type::F32 => vec![self.b.bitcast(value, Type::U32)],
            Type::F16 => vec![expr!(self.b, f32_to_half(resize(value, [Type::F32])))],
            Type::U64 => self.b.split(value).into(),
            Type::I64 | Type::F64 => expr!(self.b, split(bitcast(value, [Type::U64]))).into(),
        }
    }

    /// Value with these words.
    fn join_words(&mut self, ty: Type, words: &[Expr]) -> Expr {
        match ty {
            Type::Bool => expr!(self.b, ne([words[0]], 0)),
            Type::U32 => words[0],
            Type::I32 | Type::F32 => self.b.bitcast(words[0], ty),
            Type::F16 => expr!(self.b, resize(half_to_f32([words[0]]), [Type::F16])),
            Type::U64 => self.b.join(words[0], words[1]),
            Type::I64 | Type::F64 => expr!(self.b, bitcast(join([words[0]], [words[1]]), ty)),
        }
    }

    /// Lowers a pure operation.
    fn pure(&mut self, inst: &Inst, op: Pure) {
        let program = self.program;
        let result = inst.results[0];
        let result_ty = program.ty(result);
        let class = program.class(inst);
        let operands: Vec<Expr> = inst.operands.iter().map(|&operand| self.value(operand)).collect();
        let folded = self.b.folded(op, &operands, Some(result_ty));
        // Value ranges hold for active invocations only; those that have ended may divide by 0.
        let second = inst.operands.get(1);
        let positive = !self.masked && second.is_some_and(|&value| self.ranges.of_value(value).low > 0);
        let expr = folded.unwrap_or_else(|| match op {
            Pure::Div if positive => self.quotient(operands[0], operands[1]),
            Pure::Rem if positive => self.modulo(operands[0], operands[1]),
            op => self.b.pure(op, class, result_ty, &operands),
        });
        self.define(result, expr);
    }

    /// Lowers an effect of active invocations.
    fn guarded_effect(&mut self, mode: Mode, effect: impl FnOnce(&mut Self)) {
        match (mode, self.variables.alive) {
            (Mode::Shared | Mode::Subgroup, Some(alive)) => {
                let alive = self.b.load(alive);
                self.when(alive, effect);
            }
            _ => effect(self),
        }
    }

    /// Lowers `then` under a condition.
    fn when(&mut self, condition: Expr, then: impl FnOnce(&mut Self)) {
        self.b.open();
        then(self);
        let accept = self.b.close();
        self.b.push(naga::Statement::If { condition, accept, reject: naga::Block::new() });
    }

    // Traps, fuel and prints.

    /// Declares and initializes the variables that effects need.
    fn prepare_effects(&mut self) {
        let program = self.program;
        let (mut prints, mut fuel, mut group_fuel, mut alone) = (false, false, false, false);
        program.walk(|id, _| {
            let inst = program.inst(id);
            match inst.op {
                Op::Print(_) => prints = true,
                Op::Control(ops::Control::Loop) if self.takes_fuel(id) => {
                    let together = self.together(id);
                    group_fuel |= together;
                    fuel |= !together || self.masked;
                    alone |= !together && self.facts.is_some();
                }
                _ => {}
            }
        });
        if self.masked || alone {
            let alive = self.b.scalar_variable("alive", Type::Bool);
            let living = match self.masked && self.has_padding_lanes() {
                true => {
                    let padding = self.is_padding();
                    self.b.not(padding, Type::Bool)
                }
                false => self.b.bool(true),
            };
            self.b.store(alive, living);
            self.variables.alive = Some(alive);
        }
        if self.masked {
            self.variables.any_active = Some(self.workgroup_variable("any_active", Type::U32, true));
            self.variables.choice = Some(self.workgroup_variable("choice", Type::U32, true));
        }
        if prints {
            self.variables.printed = Some(self.b.scalar_variable("printed", Type::U32));
        }
        let mut tank = |name: &str, word: u32| {
            let variable = self.b.scalar_variable(name, Type::U32);
            let given = self.param(word);
            self.b.store(variable, given);
            variable
        };
        let fuels =
            (fuel.then(|| tank("fuel", param::FUEL)), group_fuel.then(|| tank("group_fuel", param::GROUP_FUEL)));
        (self.variables.fuel, self.variables.group_fuel) = fuels;
        if alone && !self.masked {
            let stopped = self.workgroup_variable("stopped", Type::U32, true);
            self.variables.stopped = Some(stopped);
            let local = self.builtin(BuiltIn::LocalInvocationIndex);
            let zero = self.b.u32(0);
            let first = self.b.eq(local, zero);
            // The barrier of `stop_at_entry` orders this store before all uses.
            self.b.when(first, |b| b.store(stopped, zero));
        }
        self.control.both_fuels = fuel && group_fuel;
        if fuel || group_fuel {
            self.stop_at_entry();
        }
    }

    /// Returns from workgroups that have not begun once an invocation has run out of fuel.
    fn stop_at_entry(&mut self) {
        let pointer = self.report_word(report::STOP);
        let mut stop = self.b.load(pointer);
        if self.facts.is_some() {
            stop = self.broadcast_words(&[stop], false)[0];
        }
        let stopped = expr!(self.b, ne(stop, 0));
        self.b.return_when(stopped);
    }

    /// The report binding, declared on first use.
    fn report(&mut self) -> Expr {
        if let Some(report) = self.report {
            return report;
        }
        let storage = self.program.memories().values().filter(|memory| matches!(memory.space, Space::Storage(_)));
        let number = 1 + (0..storage.count()).map(|object| self.variant.bindings(object)).sum::<u32>();
        let ty = self.b.array_ty(Type::U32, None, true);
        let variable = binding("report", number, ty, writable());
        let variable = self.b.module.global_variables.append(variable, Span::UNDEFINED);
        let report = self.b.name(Expression::GlobalVariable(variable));
        self.report = Some(report);
        report
    }

    fn report_word(&mut self, word: u32) -> Expr {
        let (report, index) = (self.report(), self.b.u32(word));
        self.b.at(report, index)
    }

    /// Atomic update of a word of the report; returns the old value.
    fn report_atomic(&mut self, word: u32, fun: naga::AtomicFunction, value: Expr) -> Expr {
        let pointer = self.report_word(word);
        let ty = self.b.scalar_ty(Type::U32);
        let result = self.b.result(Expression::AtomicResult { ty, comparison: false });
        self.b.push(naga::Statement::Atomic { pointer, fun, value, result: Some(result) });
        result
    }

    /// Writes consecutive words of the report.
    fn report_words(&mut self, first: Expr, words: &[Expr]) {
        for (offset, &word) in words.iter().enumerate() {
            let report = self.report();
            let pointer = expr!(self.b, at(report, add(first, [self.b.u32(offset as u32)])));
            self.b.store(pointer, word);
        }
    }

    /// Records a trap: counts it, and writes a trap record if no lower invocation has trapped before.
    fn record_trap(&mut self, id: InstId) {
        let inst = self.program.inst(id);
        let site = self.control.traps.len() as u32;
        self.control.traps.push(inst.span);
        let code = self.value(inst.operands[0]);
        let invocation = self.global_index.expect("computed at entry");
        let one = self.b.u32(1);
        self.report_atomic(report::TRAPS, naga::AtomicFunction::Add, one);
        let lowest = self.report_atomic(report::LOWEST, naga::AtomicFunction::Min, invocation);
        let lower = self.b.lt(invocation, lowest);
        self.when(lower, |this| {
            let record = this.report_atomic(report::RECORDS, naga::AtomicFunction::Add, one);
            let fits = expr!(this.b, lt(record, [this.b.u32(report::CAPACITY)]));
            this.when(fits, |this| {
                let offset = expr!(this.b, mul(record, [this.b.u32(report::RECORD_WORDS)]));
                let first = expr!(this.b, add(offset, [this.b.u32(report::HEAD)]));
                let site = this.b.u32(site);
                this.report_words(first, &[invocation, site, code]);
            });
        });
    }

    fn print(&mut self, inst: &Inst, text: &str) {
        let types = inst.operands.iter().map(|&operand| self.program.ty(operand)).collect();
        let site = self.control.prints.len() as u32;
        self.control.prints.push(control::Print::new(text, types));
        let mut operands = Vec::new();
        for &operand in &inst.operands {
            let value = self.value(operand);
            operands.extend(self.words(self.program.ty(operand), value));
        }
        let printed = self.variables.printed.expect("declared if there are prints");
        let sequence = self.b.load(printed);
        let one = self.b.u32(1);
        let next = self.b.add(sequence, one);
        self.b.store(printed, next);
        let line = self.report_atomic(report::LINES, naga::AtomicFunction::Add, one);
        let capacity = self.param(param::LINES);
        let fits = self.b.lt(line, capacity);
        self.when(fits, |this| {
            // The trace layout depends on the whole program.
            let (trace, width) = this.trace_shape();
            let first = expr!(this.b, add(mul(line, [this.b.u32(width)]), [this.b.u32(trace)]));
            let invocation = this.global_index.expect("computed at entry");
            let site = this.b.u32(site);
            let mut words = vec![invocation, sequence, site];
            words.append(&mut operands);
            this.report_words(first, &words);
        });
    }

    /// Final values of [`Control::trace`] and [`Control::line_words`], computed in advance.
    fn trace_shape(&self) -> (u32, u32) {
        let program = self.program;
        let mut whole = Control::default();
        program.walk(|id, _| {
            let inst = program.inst(id);
            match &inst.op {
                Op::Terminator(Terminator::Trap) => whole.traps.push(inst.span),
                Op::Print(text) => {
                    let types = inst.operands.iter().map(|&operand| program.ty(operand)).collect();
                    whole.prints.push(control::Print::new(text, types));
                }
                _ => {}
            }
        });
        (whole.trace(), whole.line_words())
    }
}

/// Returns whether the binding of a storage object is read-only.
pub(crate) fn read_only(access: Access, variant: &Variant) -> bool {
    matches!(access, Access::Read | Access::Constant) && !variant.parts
}

/// Storage that can be written.
fn writable() -> AddressSpace {
    AddressSpace::Storage { access: StorageAccess::LOAD | StorageAccess::STORE }
}

fn binding(name: &str, number: u32, ty: naga::Handle<naga::Type>, space: AddressSpace) -> naga::GlobalVariable {
    naga::GlobalVariable {
        name: Some(name.into()),
        space,
        binding: Some(naga::ResourceBinding { group: 0, binding: number }),
        ty,
        init: None,
        memory_decorations: naga::MemoryDecorations::empty(),
    }
}
