//! Construction of the fused program.

use rustc_hash::{FxHashMap, FxHashSet};

use super::super::{emit, lower_early_returns};
use super::access::{StageAccess, position};
use super::{Bound, Footprint, Stage};
use crate::analysis::AffineForm;
use crate::ir::clone::{Cloner, Map};
use crate::ir::entity::SecondaryMap;
use crate::ir::{
    Access, Axis, Barrier, BlockId, BufferId, Control, Def, Element, InstId, Literal, MemId, Memory, Op, PerGroup,
    PerInvocation, Program, Pure, ResultTypes, Space, Span, Terminator, Type, ValueId, total_invocations,
};
use crate::optimizer::fold_oob_accesses;
use crate::text::is_name;
use crate::validate::limits;

/// Fused program before validation.
pub(super) struct Applied {
    pub(super) program: Program,
    pub(super) objects: Vec<(MemId, usize, MemId)>,
    pub(super) dropped: Vec<BufferId>,
}

pub(super) fn apply(name: &str, stages: &[&Stage<'_>], transient: &dyn Fn(BufferId) -> bool) -> Applied {
    let size = stages.first().map_or([1; 3], |stage| stage.program.workgroup_size());
    let name = if is_name(name) { name } else { "fused" };
    let mut fusion = Fusion {
        program: Program::new(name, size),
        stages,
        homes: stages
            .iter()
            .map(|stage| SecondaryMap::with_capacity(stage.program.memories().len(), Home::Discarded))
            .collect(),
        objects: Vec::new(),
        dropped: Vec::new(),
    };
    if let Some(&&Stage { groups, .. }) = stages.first()
        && total_invocations(groups, size).is_some_and(|count| count > 0)
    {
        fusion.program.set_launch(Some(std::array::from_fn(|axis| groups[axis] * size[axis])));
    }
    fusion.program.set_fast(stages.iter().all(|stage| stage.program.is_fast()));
    // A stage that is nested too deeply is alone in its launch and copied without a region.
    let is_deep = stages.iter().any(|stage| stage.is_deep());
    let crossing = fusion.place_buffers(&|buffer| transient(buffer) && !is_deep);
    fusion.place_others();
    let mut since_barrier = Vec::new();
    let end = store_bound(stages).filter(|_| !is_deep);
    for stage in 0..stages.len() {
        fusion.barriers(stage, &crossing, &mut since_barrier);
        fusion.stage(stage, end);
    }
    let Fusion { mut program, objects, dropped, .. } = fusion;
    if !is_deep {
        program.push(program.body(), Terminator::Return, [], &[], [], Span::NONE);
    }
    // Lengths are constant now, so some accesses may be out of bounds.
    fold_oob_accesses::run(&mut program);
    Applied { program, objects, dropped }
}

/// `global_index` from which on invocations do nothing, if all stores are at `global_index` and the buffers end there.
/// One branch then replaces the bounds checks of the stores.
fn store_bound(stages: &[&Stage<'_>]) -> Option<u32> {
    let counts = stages.first()?.counts();
    let all_alone = |stage: &&Stage<'_>| {
        let shares = stage.program.memories().values().any(|memory| memory.space == Space::Workgroup);
        !(stage.facts.collective || stage.facts.prints || stage.facts.traps || shares)
    };
    if !stages.iter().all(all_alone) {
        return None;
    }
    let mut end = None;
    for stage in stages {
        for access in stage.facts.accesses.values().filter(|access| access.stores) {
            let bound = stage.bound(access.buffer).next()?;
            if access.loads || Some(access.index) != position(&Op::PerInvocation(PerInvocation::GlobalIndex), counts) {
                return None;
            }
            end = end.max(Some((bound.elements, access.last(counts))));
        }
    }
    end.filter(|(end, last)| i64::from(*end) <= *last).map(|(end, _)| end)
}

/// Storage of an object in the fused program.
#[derive(Clone, Copy, Debug)]
enum Home {
    /// None: the object is never read.
    Discarded,
    /// An object with the same indices.
    Object(MemId),
    /// An array that holds the footprint of an invocation or workgroup.
    Array(MemId, AffineForm),
}

/// Buffers whose elements cross invocations of a workgroup, and the address space that holds them.
type Crossing = FxHashMap<BufferId, Space>;

struct Fusion<'s> {
    program: Program,
    stages: &'s [&'s Stage<'s>],
    /// For each stage, the storage of its objects.
    homes: Vec<SecondaryMap<MemId, Home>>,
    objects: Vec<(MemId, usize, MemId)>,
    dropped: Vec<BufferId>,
}

impl Fusion<'_> {
    /// Decides the storage of each buffer. Returns the buffers that need barriers.
    fn place_buffers(&mut self, transient: &dyn Fn(BufferId) -> bool) -> Crossing {
        let stages = self.stages;
        let mut crossing = Crossing::default();
        let bytes_of = |space| stages.iter().map(|stage| stage.program.static_bytes_in(space)).sum::<u64>();
        let mut budget = [
            (Space::Private, limits::PRIVATE_BYTES.saturating_sub(bytes_of(Space::Private))),
            (Space::Workgroup, limits::WORKGROUP_BYTES.saturating_sub(bytes_of(Space::Workgroup))),
        ];
        let mut seen = FxHashSet::default();
        let buffers = stages.iter().flat_map(|stage| &stage.buffers).map(|bound| bound.buffer);
        for buffer in buffers.filter(|buffer| seen.insert(*buffer)) {
            let bound =
                stages.iter().enumerate().flat_map(|(at, stage)| stage.bound(buffer).map(move |bound| (at, *bound)));
            let bound: Vec<(usize, Bound)> = bound.collect();
            let Some(&(first, Bound { memory: model, elements, .. })) = bound.first() else { continue };
            let accesses: Vec<&StageAccess> = stages.iter().flat_map(|stage| stage.accesses(buffer)).collect();
            let stores = accesses.iter().any(|access| access.stores);
            let counts = stages[first].counts();
            let mut memory = stages[first].program.memory(model).clone();
            // An array has one element type, and lanes access only their own elements.
            let alike =
                bound.iter().all(|(at, bound)| stages[*at].facts.types[bound.memory].are_all(memory.element, false));
            let drops = transient(buffer) && alike && elements > 0 && stores;
            let mut footprint =
                Footprint::of(&accesses, counts).map(|footprint| footprint.elements(memory.element.size()));
            if let Some(Footprint { form, .. }) = &mut footprint
                && form.factors == [0; 6]
            {
                // Elements beyond the end do not exist.
                form.high = form.high.min(i64::from(elements) - 1).max(form.low);
            }
            let home = match footprint {
                _ if drops && !accesses.iter().any(|access| access.loads) => Some(Home::Discarded),
                Some(Footprint { form, per_invocation })
                    if drops && accesses.iter().all(|access| access.last(counts) < 1 << 32) =>
                {
                    let (space, budget) = &mut budget[usize::from(!per_invocation)];
                    memory.space = *space;
                    memory.element = if per_invocation { unpacked(memory.element) } else { memory.element };
                    let length = form.high - form.low + 1;
                    let bytes = memory.element.size() as u64 * length as u64;
                    let fits = bytes <= *budget && (!per_invocation || length <= MAX_PRIVATE);
                    fits.then(|| {
                        *budget -= bytes;
                        memory.length = Some(length as u32);
                        Home::Array(self.declare(stages[first].program, memory.clone()), form)
                    })
                }
                _ => None,
            };
            if let (Some(Footprint { per_invocation: false, .. }), true) = (footprint, stores) {
                let space = home.map_or(Space::Storage(Access::ReadWrite), |_| Space::Workgroup);
                // Discarded buffers need no barrier.
                crossing.extend(Some((buffer, space)).filter(|_| !matches!(home, Some(Home::Discarded))));
            }
            let home = match home {
                Some(home) => {
                    self.dropped.push(buffer);
                    home
                }
                None => {
                    let mut memory = stages[first].program.memory(model).clone();
                    let spaces = || bound.iter().map(|(at, bound)| stages[*at].program.memory(bound.memory).space);
                    if spaces().any(|space| space != memory.space) {
                        memory.space = Space::Storage(Access::ReadWrite);
                    }
                    memory.length = Some(elements).filter(|&elements| elements > 0);
                    let object = self.declare(stages[first].program, memory);
                    self.objects.push((object, first, model));
                    Home::Object(object)
                }
            };
            for (at, bound) in bound {
                self.homes[at][bound.memory] = home;
            }
        }
        crossing
    }

    /// Declares the other objects.
    fn place_others(&mut self) {
        for (at, stage) in self.stages.iter().enumerate() {
            for (id, memory) in stage.program.memories().iter() {
                if stage.buffers.iter().any(|bound| bound.memory == id) || stage.uniforms.contains_key(&id) {
                    continue;
                }
                let object = self.declare(stage.program, memory.clone());
                if !matches!(memory.space, Space::Workgroup | Space::Private) {
                    self.objects.push((object, at, id));
                }
                self.homes[at][id] = Home::Object(object);
            }
        }
    }

    /// Declares an object of a stage.
    fn declare(&mut self, of: &Program, mut memory: Memory) -> MemId {
        memory.name = self.program.unused_name(&memory.name);
        memory.span = self.program.sources_mut().append(of.sources()).apply(memory.span);
        self.program.add_memory(memory)
    }

    /// Inserts the barriers before a stage that order its accesses after conflicting ones of other invocations since
    /// the last barrier.
    fn barriers(&mut self, stage: usize, crossing: &Crossing, since: &mut Vec<(BufferId, Space, bool)>) {
        let uses: Vec<(BufferId, Space, bool)> = self.stages[stage]
            .facts
            .accesses
            .values()
            .filter_map(|access| Some((access.buffer, *crossing.get(&access.buffer)?, access.stores)))
            .collect();
        let conflicts = |space: Space, since: &[(BufferId, Space, bool)]| {
            since.iter().any(|(buffer, at, stores)| {
                *at == space && uses.iter().any(|(other, _, also)| other == buffer && (*stores || *also))
            })
        };
        for (op, space) in [
            (Op::Barrier(Barrier::Workgroup), Space::Workgroup),
            (Op::Barrier(Barrier::Storage), Space::Storage(Access::ReadWrite)),
        ] {
            if conflicts(space, since) {
                self.program.push(self.program.body(), op, [], &[], [], Span::NONE);
                since.retain(|(_, at, _)| *at != space);
            }
        }
        since.extend(uses);
    }

    /// Appends a stage as a region, executed by the invocations before `end`.
    fn stage(&mut self, at: usize, end: Option<u32>) {
        let stage = &self.stages[at];
        let body = self.program.add_block();
        let first = self.program.insts().len();
        let mut cloner = Cloner::between(stage.program, &mut self.program);
        cloner.block(stage.program.body(), body, &mut Embedding { stage, homes: &self.homes[at], end });
        cloner.clone_names();
        self.program.relocate(first, stage.program.sources());
        if stage.is_deep() {
            self.program.move_insts(body, self.program.body());
            return;
        }
        // A return of the last stage may end the launch, and must if other invocations wait at a barrier.
        let is_last = at + 1 == self.stages.len();
        if !is_last || !(stage.facts.collective || stage.facts.traps) {
            lower_early_returns::run(&mut self.program, body);
        } else if let Some(&last) = self.program.block(body).insts.last()
            && self.program.inst(last).op == Terminator::Return
        {
            self.program.inst_mut(last).op = Op::Terminator(Terminator::Yield);
        }
        let mut region = body;
        if let Some(end) = end {
            region = self.program.add_block();
            let end = self.program.literal(end);
            let index = emit(&mut self.program, region, PerInvocation::GlobalIndex, &[], Type::U32, Span::NONE);
            let before = emit(&mut self.program, region, Pure::Lt, &[index, end], Type::Bool, Span::NONE);
            let nothing = self.program.add_block();
            self.program.push(nothing, Terminator::Yield, [], &[], [], Span::NONE);
            self.program.push(region, Control::If, [before], &[], [body, nothing], Span::NONE);
            self.program.push(region, Terminator::Yield, [], &[], [], Span::NONE);
        }
        let name = stage.program.name();
        self.program.push(self.program.body(), Control::Region(name.into()), [], &[], [region], Span::NONE);
    }
}

/// Limit of elements in a private array.
const MAX_PRIVATE: i64 = 64;

/// The 32-bit element type that holds a narrow integer unpacked. Elements of bf16 stay, because their stores round.
fn unpacked(element: Element) -> Element {
    match element {
        Element::I8 | Element::I16 => Element::I32,
        Element::U8 | Element::U16 => Element::U32,
        Element::I32
        | Element::U32
        | Element::F32
        | Element::I64
        | Element::U64
        | Element::F64
        | Element::F16
        | Element::BF16 => element,
    }
}

/// Rewrites while cloning a stage into the fused program: lengths, positions, and buffers that became arrays.
struct Embedding<'c> {
    stage: &'c Stage<'c>,
    homes: &'c SecondaryMap<MemId, Home>,
    /// Exclusive upper bound of the `global_index` of all invocations and stores.
    end: Option<u32>,
}

impl Map for Embedding<'_> {
    fn replace(&mut self, cloner: &mut Cloner<'_>, id: InstId, to: BlockId) -> bool {
        let inst = self.stage.program.inst(id);
        match (&inst.op, inst.op.memory().map(|memory| self.homes[memory])) {
            (Op::PerGroup(PerGroup::Length(memory)), _) if let Some(bound) = self.bound(*memory) => {
                let length = cloner.target.literal(bound.elements);
                cloner.define(inst.results[0], length);
            }
            (Op::Load(at), _) if let Some(&value) = self.stage.uniforms.get(&at.memory) => {
                let literal = cloner.target.literal(value);
                cloner.define(inst.results[0], literal);
            }
            (Op::Pure(Pure::Lt | Pure::Ge), _) if self.is_checked(cloner, &inst.operands) => {
                let holds = cloner.target.literal(inst.op == Pure::Lt);
                cloner.define(inst.results[0], holds);
            }
            (_, Some(Home::Array(array, footprint))) => self.array(cloner, id, array, footprint, to),
            (_, Some(Home::Discarded)) => {}
            (Op::Barrier(Barrier::Storage), _)
                if self.homes.values().any(|home| is_in_workgroup(cloner.target, home)) =>
            {
                cloner.inst(id, to, self);
                cloner.target.push(to, Barrier::Workgroup, [], &[], [], inst.span);
            }
            _ => return false,
        }
        true
    }

    fn op(&mut self, op: &Op) -> Op {
        let counts = self.stage.counts();
        match op.memory().map(|memory| self.homes[memory]) {
            Some(Home::Object(object)) => op.on(object),
            // Positions that are equal become the same operation, for value numbering.
            _ if position(op, counts).is_some()
                && position(op, counts) == position(&Op::PerInvocation(PerInvocation::GlobalIndex), counts) =>
            {
                Op::PerInvocation(PerInvocation::GlobalIndex)
            }
            _ => op.clone(),
        }
    }
}

/// Returns true if a buffer became an array of the workgroup.
fn is_in_workgroup(program: &Program, home: &Home) -> bool {
    matches!(home, Home::Array(array, _) if program.memory(*array).space == Space::Workgroup)
}

impl Embedding<'_> {
    /// Returns true if the branch around the stages establishes `index < bound`.
    fn is_checked(&self, cloner: &mut Cloner<'_>, operands: &[ValueId]) -> bool {
        let Some(end) = self.end else { return false };
        let (index, bound) = (cloner.value(operands[0]), cloner.value(operands[1]));
        let is_index = match cloner.target.def(index) {
            Def::Result(inst, _) => cloner.target.inst(inst).op == PerInvocation::GlobalIndex,
            Def::Param(..) | Def::Literal(_) | Def::Constant(_) => false,
        };
        let bound = cloner.target.known(bound).and_then(Literal::value::<u32>);
        is_index && bound.is_some_and(|bound| bound >= end)
    }

    fn bound(&self, memory: MemId) -> Option<Bound> {
        self.stage.buffers.iter().copied().find(|bound| bound.memory == memory)
    }

    /// Rewrites an access to a buffer that became an array.
    fn array(&self, cloner: &mut Cloner<'_>, id: InstId, array: MemId, footprint: AffineForm, to: BlockId) {
        let inst = self.stage.program.inst(id);
        let Some(access) = self.stage.facts.accesses.get(&id) else { return };
        let index = cloner.value(inst.operands[0]);
        let array_index = array_index(cloner.target, access, index, footprint, to, inst.span);
        if access.loads {
            let types: ResultTypes = inst.results.iter().map(|&result| self.stage.program.ty(result)).collect();
            let load =
                cloner.target.push(to, Op::Load(cloner.target.operand(array)), [array_index], &types, [], inst.span);
            cloner.define_results(inst, load);
            return;
        }
        let mut values = cloner.values(&inst.operands[1..]);
        let program = &mut *cloner.target;
        let element = self.stage.program.memory(access.memory).element;
        let operand = program.operand(array);
        if operand.element != element {
            for value in &mut values {
                *value = truncated(program, *value, element, to, inst.span);
            }
        }
        let Some(bound) = self.bound(access.memory) else { return };
        let is_before = |end: u32| inst.operands.len() == 2 && end <= bound.elements;
        if access.last(self.stage.counts()) < i64::from(bound.elements) || self.end.is_some_and(is_before) {
            program.push(to, Op::Store(operand), std::iter::once(array_index).chain(values), &[], [], inst.span);
            return;
        }
        // Out-of-bounds stores are dropped, even if the array has a slot for them.
        let end = program.literal(bound.elements);
        for (position, value) in values.into_iter().enumerate() {
            let [index, array_index] = [index, array_index].map(|start| match position {
                0 => start,
                _ => {
                    let position = program.literal(position as u32);
                    emit(program, to, Pure::Add, &[start, position], Type::U32, inst.span)
                }
            });
            let inside = emit(program, to, Pure::Lt, &[index, end], Type::Bool, inst.span);
            let branch = program.make_guard(inside, inst.span, |program, then| {
                program.push(then, Op::Store(operand), [array_index, value], &[], [], inst.span);
            });
            program.block_mut(to).insts.push(branch);
        }
    }
}

/// Index in the array of a footprint.
fn array_index(
    program: &mut Program,
    access: &StageAccess,
    index: ValueId,
    footprint: AffineForm,
    to: BlockId,
    span: Span,
) -> ValueId {
    if access.index.factors == footprint.factors && access.index.low == access.index.high {
        return program.literal((access.index.low - footprint.low) as u32);
    }
    let mut start = program.literal(footprint.low as u32);
    for (position, factor) in footprint.factors.into_iter().enumerate().filter(|(_, factor)| *factor != 0) {
        let axis = Axis::ALL[position % 3];
        let op = if position < 3 {
            Op::PerGroup(PerGroup::GroupId(axis))
        } else {
            Op::PerInvocation(PerInvocation::LocalId(axis))
        };
        let id = emit(program, to, op, &[], Type::U32, span);
        let factor = program.literal(factor as u32);
        let offset = emit(program, to, Pure::Mul, &[id, factor], Type::U32, span);
        start = emit(program, to, Pure::Add, &[start, offset], Type::U32, span);
    }
    emit(program, to, Pure::Sub, &[index, start], Type::U32, span)
}

/// Truncates a value as a store to a narrow element and a load from it would.
fn truncated(program: &mut Program, value: ValueId, element: Element, to: BlockId, span: Span) -> ValueId {
    let (first, bits) = (program.literal(0u32), program.literal(element.size() as u32 * 8));
    emit(program, to, Pure::ExtractBits, &[value, first, bits], element.value_type(), span)
}
