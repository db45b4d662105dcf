//! What passes have in common when they change programs.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::ir::{BlockId, Def, Inst, InstId, Op, Program, ResultTypes, Span, Type, ValueId, Values};

/// Values that are to be replaced by others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Renaming(FxHashMap<ValueId, ValueId>);

impl Renaming {
    /// From now on, `new` stands for `old`.
    pub(crate) fn replace(&mut self, old: ValueId, new: ValueId) {
        let new = self.get(new);
        if old != new {
            self.0.insert(old, new);
        }
    }

    /// What stands for a value.
    pub(crate) fn get(&self, mut value: ValueId) -> ValueId {
        while let Some(&new) = self.0.get(&value) {
            value = new;
        }
        value
    }

    /// Whether nothing is replaced.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Replaces the operands of one instruction.
    pub(crate) fn apply_to(&self, inst: &mut Inst) {
        if !self.is_empty() {
            for operand in &mut inst.operands {
                *operand = self.get(*operand);
            }
        }
    }

    /// Replaces operands everywhere, and says whether there was anything to replace.
    pub(crate) fn apply(&self, program: &mut Program) -> bool {
        if self.is_empty() {
            return false;
        }
        for id in reachable(program) {
            self.apply_to(&mut program.insts[id]);
        }
        true
    }
}

/// All instructions that are reachable from the body, in the order of the text.
pub(crate) fn reachable(program: &Program) -> Vec<InstId> {
    let mut all = Vec::with_capacity(program.insts.len());
    program.walk(|inst, _| all.push(inst));
    all
}

/// All blocks that are reachable from the body, outer ones first.
pub(crate) fn reachable_blocks(program: &Program) -> Vec<BlockId> {
    let mut all = vec![program.body];
    let mut next = 0;
    while let Some(&block) = all.get(next) {
        next += 1;
        for &inst in &program.blocks[block].insts {
            all.extend_from_slice(&program.insts[inst].blocks);
        }
    }
    all
}

/// A new instruction of one result that stands nowhere yet: the caller puts it into a block.
pub(crate) fn make(program: &mut Program, op: Op, operands: &[ValueId], ty: Type, span: Span) -> (InstId, ValueId) {
    let inst = program.make(op, operands.iter().copied(), &[ty], [], span);
    (inst, program.insts[inst].results[0])
}

/// Whether an invocation may end before the end of the body.
pub(crate) fn may_end_early(program: &Program) -> bool {
    let end = program.blocks[program.body].insts.last().copied();
    reachable(program).into_iter().any(|id| matches!(program.insts[id].op, Op::Return | Op::Trap) && Some(id) != end)
}

/// An `if` without an else.
pub(crate) fn branch_on(
    program: &mut Program,
    condition: ValueId,
    span: Span,
    fill: impl FnOnce(&mut Program, BlockId),
) -> InstId {
    let (then, otherwise) = (program.block(), program.block());
    fill(program, then);
    for block in [then, otherwise] {
        program.push(block, Op::Yield, [], &[], [], span);
    }
    program.make(Op::If, [condition], &[], [then, otherwise], span)
}

/// A name that nothing has yet.
pub(crate) fn unused_name(program: &Program, wish: &str) -> String {
    let taken = |name: &str| {
        program.memory.values().any(|memory| memory.name == name)
            || program.constants.values().any(|constant| constant.name == name)
    };
    let numbered = (2..).map(|number| format!("{wish}_{number}"));
    std::iter::once(wish.to_owned()).chain(numbered).find(|name| !taken(name)).expect("numbers do not end")
}

/// For values of what was copied, those of the copy. All of them change at once: a value of the copy is never looked up.
pub(crate) type Copied = FxHashMap<ValueId, ValueId>;

/// What stands for a value in a copy: values from outside stay as they are.
pub(crate) fn copy_of(copied: &Copied, value: ValueId) -> ValueId {
    copied.get(&value).copied().unwrap_or(value)
}

/// Appends copies of instructions to a block, with everything nested in them.
pub(crate) fn copy_insts(program: &mut Program, insts: &[InstId], into: BlockId, copied: &mut Copied) {
    for &id in insts {
        let inst = program.insts[id].clone();
        let operands: Values = inst.operands.iter().map(|&operand| copy_of(copied, operand)).collect();
        let types: ResultTypes = inst.results.iter().map(|&result| program.ty(result)).collect();
        let blocks: SmallVec<[BlockId; 2]> =
            inst.blocks.iter().map(|&nested| copy_block(program, nested, copied)).collect();
        let copy = program.push(into, inst.op, operands, &types, blocks, inst.span);
        for (position, &result) in inst.results.iter().enumerate() {
            copied.insert(result, program.insts[copy].results[position]);
        }
    }
}

fn copy_block(program: &mut Program, block: BlockId, copied: &mut Copied) -> BlockId {
    let copy = program.block();
    for param in program.blocks[block].params.clone() {
        let new = program.param(copy, program.ty(param));
        copied.insert(param, new);
    }
    copy_insts(program, &program.blocks[block].insts.clone(), copy, copied);
    copy
}

/// Whether something inside an instruction leaves, or goes on with, a loop around it.
pub(crate) fn jumps(program: &Program, id: InstId) -> bool {
    let inst = &program.insts[id];
    match inst.op {
        Op::Break | Op::Continue => true,
        Op::Loop => false,
        _ => inst.blocks.iter().any(|&block| program.blocks[block].insts.iter().any(|&nested| jumps(program, nested))),
    }
}

/// Whether every block of an instruction ends by going on with what follows it.
pub(crate) fn falls_through(program: &Program, id: InstId) -> bool {
    program.insts[id].blocks.iter().all(|&block| {
        let end = program.blocks[block].insts.last();
        end.is_some_and(|&end| program.insts[end].op == Op::Yield)
    })
}

/// What tells a block from another that otherwise does the same.
#[derive(Debug, Default)]
pub(crate) struct Differences {
    /// Literals that the other has in their place.
    pub(crate) literals: Vec<OtherLiteral>,
    /// Regions, and those of the other, which have other names.
    pub(crate) regions: Vec<[InstId; 2]>,
}

/// An operand of a block that is another literal in the other block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OtherLiteral {
    pub(crate) inst: InstId,
    pub(crate) operand: usize,
    pub(crate) value: ValueId,
}

/// Compares two blocks. `None` if one does something else: another operation, or one on another value, apart from literals
/// and from what both define themselves.
pub(crate) fn differences(program: &Program, a: BlockId, b: BlockId) -> Option<Differences> {
    let mut compare = Compare { program, defined: Copied::default(), found: Differences::default() };
    compare.blocks(a, b).then_some(compare.found)
}

struct Compare<'p> {
    program: &'p Program,
    defined: Copied,
    found: Differences,
}

impl Compare<'_> {
    fn blocks(&mut self, a: BlockId, b: BlockId) -> bool {
        let (a, b) = (&self.program.blocks[a], &self.program.blocks[b]);
        if a.insts.len() != b.insts.len() || a.params.len() != b.params.len() {
            return false;
        }
        self.defined.extend(a.params.iter().copied().zip(b.params.iter().copied()));
        a.insts.iter().zip(&b.insts).all(|(&a, &b)| self.insts(a, b))
    }

    fn insts(&mut self, id: InstId, other: InstId) -> bool {
        let program = self.program;
        let (a, b) = (&program.insts[id], &program.insts[other]);
        let types = |inst: &Inst| inst.results.iter().map(|&value| program.ty(value)).collect::<ResultTypes>();
        let regions = matches!((&a.op, &b.op), (Op::Region(_), Op::Region(_)));
        let fit = (a.op == b.op || regions)
            && (a.operands.len(), a.blocks.len()) == (b.operands.len(), b.blocks.len())
            && types(a) == types(b);
        if !fit {
            return false;
        }
        if a.op != b.op {
            self.found.regions.push([id, other]);
        }
        for (operand, (&own, &value)) in a.operands.iter().zip(&b.operands).enumerate() {
            let literals = [own, value].map(|value| matches!(program.values[value].def, Def::Literal(_)));
            if copy_of(&self.defined, own) == value {
                continue;
            } else if literals == [true; 2] && program.ty(own) == program.ty(value) {
                self.found.literals.push(OtherLiteral { inst: id, operand, value });
            } else {
                return false;
            }
        }
        let nested = a.blocks.iter().zip(&b.blocks).all(|(&a, &b)| self.blocks(a, b));
        self.defined.extend(a.results.iter().copied().zip(b.results.iter().copied()));
        nested
    }
}

/// Makes one instruction of two neighbours of which always the same block is executed: appends each block of the second,
/// which then stands nowhere, to that of the first, which [falls through](falls_through).
pub(crate) fn join(program: &mut Program, first: InstId, second: InstId) {
    let pairs = program.insts[first].blocks.clone().into_iter().zip(program.insts[second].blocks.clone());
    for (into, from) in pairs {
        let end = program.blocks[into].insts.pop().expect("a block has a terminator");
        let given = program.insts[end].operands.clone();
        // Inside, what the first gave is what it computed.
        let mut inside = Renaming::default();
        for (&result, &value) in program.insts[first].results.iter().zip(&given) {
            inside.replace(result, value);
        }
        let moved = std::mem::take(&mut program.blocks[from].insts);
        let mut pending = moved.clone();
        while let Some(id) = pending.pop() {
            inside.apply_to(&mut program.insts[id]);
            for &nested in &program.insts[id].blocks {
                pending.extend_from_slice(&program.blocks[nested].insts);
            }
        }
        let last = *moved.last().expect("a block has a terminator");
        if program.insts[last].op == Op::Yield {
            let own = std::mem::take(&mut program.insts[last].operands);
            program.insts[last].operands = given.into_iter().chain(own).collect();
        }
        program.blocks[into].insts.extend(moved);
    }
    for result in program.insts[second].results.clone() {
        let position = program.insts[first].results.len() as u32;
        program.values[result].def = Def::Result(first, position);
        program.insts[first].results.push(result);
    }
}

/// A place in an object: an index that is computed from some value by adding a literal. Equal places are one place;
/// whether others differ is known only if they have the same base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// What is added to; literals have none.
    pub(crate) base: Option<ValueId>,
    /// What is added. Indices wrap around, and so does this.
    pub(crate) offset: u32,
}

impl Place {
    /// The place that an index names.
    pub(crate) fn of(program: &Program, index: ValueId) -> Place {
        let literal = |value: ValueId| match program.values[value].def {
            Def::Literal(bits) => Some(bits as u32),
            _ => None,
        };
        if let Some(offset) = literal(index) {
            return Place { base: None, offset };
        }
        if let Def::Result(inst, 0) = program.values[index].def
            && let (Op::Add, &[a, b]) = (&program.insts[inst].op, &program.insts[inst].operands[..])
        {
            if let Some(offset) = literal(b) {
                return Place { base: Some(a), offset };
            }
            if let Some(offset) = literal(a) {
                return Place { base: Some(b), offset };
            }
        }
        Place { base: Some(index), offset: 0 }
    }

    /// So many elements further on.
    pub(crate) fn plus(self, elements: u32) -> Place {
        Place { offset: self.offset.wrapping_add(elements), ..self }
    }

    /// Whether two places are known not to be one.
    pub(crate) fn differs_from(self, other: Place) -> bool {
        self.base == other.base && self.offset != other.offset
    }
}
