//! Puts stages into one program.

use rustc_hash::{FxHashMap, FxHashSet};

use super::super::{emit, lower_early_returns};
use super::access::{Touch, position};
use super::{Bound, ScalarId, Stage, Window};
use crate::analysis::AffineForm;
use crate::ir::clone::{Cloner, Map};
use crate::ir::entity::SecondaryMap;
use crate::ir::{
    Access, Axis, Barrier, BlockId, BufferId, Control, Element, InstId, MemId, Memory, Op, PerGroup, PerInvocation,
    Program, Pure, ResultTypes, Space, Span, Terminator, Type, ValueId, total_invocations,
};
use crate::optimizer::fold_oob_accesses;
use crate::text::is_name;
use crate::validate::limits;

/// What comes of stages, before it is validated.
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
            .map(|stage| SecondaryMap::with_capacity(stage.program.memories().len(), Home::Nowhere))
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
    // A stage may be alone because its blocks are nested too deeply; then nothing may be put around it.
    let is_deep = stages.iter().any(|stage| stage.is_deep());
    let crossing = fusion.place_buffers(&|buffer| transient(buffer) && !is_deep);
    fusion.place_others();
    let mut since_barrier = Vec::new();
    let end = end(stages).filter(|_| !is_deep);
    for stage in 0..stages.len() {
        fusion.barriers(stage, &crossing, &mut since_barrier);
        fusion.stage(stage, end);
    }
    let Fusion { mut program, objects, dropped, .. } = fusion;
    if !is_deep {
        program.push(program.body(), Terminator::Return, [], &[], [], Span::NONE);
    }
    // Lengths that were open are known now, and with them some accesses that do nothing.
    fold_oob_accesses::run(&mut program);
    Applied { program, objects, dropped }
}

/// The `global_index` from which on invocations do nothing, if there are such: all stores are at that index, and the buffers end
/// there. Saying so once is better than asking at every store whether it is inside.
fn end(stages: &[&Stage<'_>]) -> Option<u32> {
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
        for touch in stage.facts.touches.values().filter(|touch| touch.stores) {
            let bound = stage.bound(touch.buffer).next()?;
            if touch.loads || Some(touch.index) != position(&Op::PerInvocation(PerInvocation::GlobalIndex), counts) {
                return None;
            }
            end = end.max(Some((bound.elements, touch.last(counts))));
        }
    }
    end.filter(|(end, last)| i64::from(*end) <= *last).map(|(end, _)| end)
}

/// Where the elements of an object are in the fused program.
#[derive(Clone, Copy, Debug)]
enum Home {
    /// Nobody reads them.
    Nowhere,
    /// In this object, at the same indices.
    Object(MemId),
    /// In an array that holds the window of an invocation or workgroup.
    Array(MemId, AffineForm),
}

/// A buffer whose elements cross invocations of a workgroup, and whether it is still one.
type Crossing = FxHashMap<BufferId, Space>;

struct Fusion<'s> {
    program: Program,
    stages: &'s [&'s Stage<'s>],
    /// For each stage, where its objects are.
    homes: Vec<SecondaryMap<MemId, Home>>,
    objects: Vec<(MemId, usize, MemId)>,
    dropped: Vec<BufferId>,
}

impl Fusion<'_> {
    /// Decides where each buffer is, and says which ones need barriers.
    fn place_buffers(&mut self, transient: &dyn Fn(BufferId) -> bool) -> Crossing {
        let stages = self.stages;
        let mut crossing = Crossing::default();
        let bytes_of = |space| stages.iter().map(|stage| stage.program.static_bytes_in(space)).sum::<u64>();
        let mut room = [
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
            let touches: Vec<&Touch> = stages.iter().flat_map(|stage| stage.touches(buffer)).collect();
            let stores = touches.iter().any(|touch| touch.stores);
            let counts = stages[first].counts();
            let mut memory = stages[first].program.memory(model).clone();
            // An array has elements of one type, and lanes see only their own.
            let alike =
                bound.iter().all(|(at, bound)| stages[*at].facts.types[bound.memory].are_all(memory.element, false));
            let drops = transient(buffer) && alike && elements > 0 && stores;
            let mut window = Window::of(&touches, counts).map(|window| window.elements(memory.element.size()));
            if let Some(Window { form, .. }) = &mut window
                && form.factors == [0; 6]
            {
                // There is nothing beyond the end.
                form.high = form.high.min(i64::from(elements) - 1).max(form.low);
            }
            let home = match window {
                _ if drops && !touches.iter().any(|touch| touch.loads) => Some(Home::Nowhere),
                Some(Window { form, own }) if drops && touches.iter().all(|touch| touch.last(counts) < 1 << 32) => {
                    let (space, room) = &mut room[usize::from(!own)];
                    memory.space = *space;
                    memory.element = if own { unpacked(memory.element) } else { memory.element };
                    let length = form.high - form.low + 1;
                    let bytes = memory.element.size() as u64 * length as u64;
                    let fits = bytes <= *room && (!own || length <= MOST_OWN);
                    fits.then(|| {
                        *room -= bytes;
                        memory.length = Some(length as u32);
                        Home::Array(self.declare(stages[first].program, memory.clone()), form)
                    })
                }
                _ => None,
            };
            if let (Some(Window { own: false, .. }), true) = (window, stores) {
                let space = home.map_or(Space::Storage(Access::ReadWrite), |_| Space::Workgroup);
                // Nobody has to wait for what is nowhere.
                crossing.extend(Some((buffer, space)).filter(|_| !matches!(home, Some(Home::Nowhere))));
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

    /// Declares what is not a buffer.
    fn place_others(&mut self) {
        let mut scalars: FxHashMap<(ScalarId, Element), MemId> = FxHashMap::default();
        for (at, stage) in self.stages.iter().enumerate() {
            for (id, memory) in stage.program.memories().iter() {
                if stage.buffers.iter().any(|bound| bound.memory == id) {
                    continue;
                }
                let scalar = stage.scalars.iter().find(|(object, _)| *object == id).map(|(_, scalar)| *scalar);
                let key = scalar.filter(|_| memory.space == Space::Uniform).map(|scalar| (scalar, memory.element));
                if let Some(&object) = key.and_then(|key| scalars.get(&key)) {
                    self.homes[at][id] = Home::Object(object);
                    continue;
                }
                let object = self.declare(stage.program, memory.clone());
                if let Some(key) = key {
                    scalars.insert(key, object);
                }
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

    /// Has a stage wait for what those since the last barrier did to elements of other invocations.
    fn barriers(&mut self, stage: usize, crossing: &Crossing, since: &mut Vec<(BufferId, Space, bool)>) {
        let uses: Vec<(BufferId, Space, bool)> = self.stages[stage]
            .facts
            .touches
            .values()
            .filter_map(|touch| Some((touch.buffer, *crossing.get(&touch.buffer)?, touch.stores)))
            .collect();
        let meets = |space: Space, since: &[(BufferId, Space, bool)]| {
            since.iter().any(|(buffer, at, stores)| {
                *at == space && uses.iter().any(|(other, _, also)| other == buffer && (*stores || *also))
            })
        };
        for (op, space) in [
            (Op::Barrier(Barrier::Workgroup), Space::Workgroup),
            (Op::Barrier(Barrier::Storage), Space::Storage(Access::ReadWrite)),
        ] {
            if meets(space, since) {
                self.program.push(self.program.body(), op, [], &[], [], Span::NONE);
                since.retain(|(_, at, _)| *at != space);
            }
        }
        since.extend(uses);
    }

    /// Appends a stage, as a region, for the invocations before `end`.
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
        // What ends the last stage may as well end the launch, and has to where others wait at a barrier.
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

/// Elements of an invocation that are worth a private array.
const MOST_OWN: i64 = 64;

/// What a value of an element is kept as where it need not be small.
fn unpacked(element: Element) -> Element {
    match element {
        Element::I8 | Element::I16 => Element::I32,
        Element::U8 | Element::U16 => Element::U32,
        Element::I32 | Element::U32 | Element::F32 | Element::I64 | Element::U64 | Element::F64 | Element::F16 => {
            element
        }
    }
}

/// Exceptions of the clone of a stage in the fused program: lengths, positions, and buffers that became arrays.
struct Embedding<'c> {
    stage: &'c Stage<'c>,
    homes: &'c SecondaryMap<MemId, Home>,
    /// The `global_index` that all invocations are before, and that no store is behind.
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
            (_, Some(Home::Array(array, window))) => self.array(cloner, id, array, window, to),
            (_, Some(Home::Nowhere)) => {}
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
            // Equal positions are one value, whatever a stage calls them.
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
    fn bound(&self, memory: MemId) -> Option<Bound> {
        self.stage.buffers.iter().copied().find(|bound| bound.memory == memory)
    }

    /// An access to a buffer that is an array now.
    fn array(&self, cloner: &mut Cloner<'_>, id: InstId, array: MemId, window: AffineForm, to: BlockId) {
        let inst = self.stage.program.inst(id);
        let Some(touch) = self.stage.facts.touches.get(&id) else { return };
        let index = cloner.value(inst.operands[0]);
        let place = place(cloner.target, touch, index, window, to, inst.span);
        if touch.loads {
            let types: ResultTypes = inst.results.iter().map(|&result| self.stage.program.ty(result)).collect();
            let load = cloner.target.push(to, Op::Load(cloner.target.operand(array)), [place], &types, [], inst.span);
            cloner.define_results(inst, load);
            return;
        }
        let mut values = cloner.values(&inst.operands[1..]);
        let program = &mut *cloner.target;
        let element = self.stage.program.memory(touch.memory).element;
        let operand = program.operand(array);
        if operand.element != element {
            for value in &mut values {
                *value = truncated(program, *value, element, to, inst.span);
            }
        }
        let Some(bound) = self.bound(touch.memory) else { return };
        let is_before = |end: u32| inst.operands.len() == 2 && end <= bound.elements;
        if touch.last(self.stage.counts()) < i64::from(bound.elements) || self.end.is_some_and(is_before) {
            program.push(to, Op::Store(operand), std::iter::once(place).chain(values), &[], [], inst.span);
            return;
        }
        // What is outside of the buffer is dropped, although the array has a place for it.
        let end = program.literal(bound.elements);
        for (position, value) in values.into_iter().enumerate() {
            let [index, place] = [index, place].map(|start| match position {
                0 => start,
                _ => {
                    let position = program.literal(position as u32);
                    emit(program, to, Pure::Add, &[start, position], Type::U32, inst.span)
                }
            });
            let inside = emit(program, to, Pure::Lt, &[index, end], Type::Bool, inst.span);
            let branch = program.make_guard(inside, inst.span, |program, then| {
                program.push(then, Op::Store(operand), [place, value], &[], [], inst.span);
            });
            program.block_mut(to).insts.push(branch);
        }
    }
}

/// Where in the array of a window an index is.
fn place(program: &mut Program, touch: &Touch, index: ValueId, window: AffineForm, to: BlockId, span: Span) -> ValueId {
    if touch.index.factors == window.factors && touch.index.low == touch.index.high {
        return program.literal((touch.index.low - window.low) as u32);
    }
    let mut start = program.literal(window.low as u32);
    for (position, factor) in window.factors.into_iter().enumerate().filter(|(_, factor)| *factor != 0) {
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
