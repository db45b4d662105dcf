//! Scalar replacement of private arrays (mem2reg).
//!
//! Applies to arrays of which every access has the element type and a constant index in bounds. Each element becomes an
//! SSA value: stores redefine it, loads use it, branches return the elements that they change as results, and loops
//! carry them as parameters. The initial value is 0, as in private memory.

use crate::analysis::{Analyses, Effects, Location};
use crate::ir::entity::SecondaryMap;
use crate::ir::{
    AccessTypes, BlockId, Control, InstId, Literal, MemId, Op, Program, Renaming, Space, Terminator, ValueId,
};
use crate::optimizer::{Family, Metadata, Pass, Phase};

pub(super) const PASS: Pass =
    Pass { metadata: Metadata::new("promote_private", Phase::Memory, Family::Memory), speculative: false, run };

/// Limit of promoted elements in all arrays together, near the number of registers.
const MAX_ELEMENTS: u32 = 64;

fn run(program: &mut Program, analyses: &mut Analyses) -> bool {
    let effects = analyses.effects(program);
    let objects = promotable(program);
    if objects.is_empty() {
        return false;
    }
    let mut first = SecondaryMap::with_capacity(program.memories().len(), None);
    let mut current = Vec::new();
    for object in objects {
        first[object] = Some(current.len());
        let memory = program.memory(object);
        let zero = Literal::zero(memory.element.value_type());
        for _ in 0..memory.length.unwrap_or(0) {
            let zero = program.literal(zero);
            current.push((object, zero));
        }
    }
    let mut promotion = Promotion { effects: &effects, first, current, renaming: Renaming::default() };
    promotion.block(program, program.body(), &[], &[]);
    true
}

/// Private arrays whose accesses all have a constant index in bounds, up to the limit.
fn promotable(program: &Program) -> Vec<MemId> {
    if program.memories().values().all(|memory| memory.space != Space::Private) {
        return Vec::new();
    }
    let mut known = SecondaryMap::with_capacity(program.memories().len(), true);
    let types = AccessTypes::of(program);
    for id in program.reachable_insts() {
        let inst = program.inst(id);
        let Some(object) = inst.op.memory().filter(|object| program.memory(*object).space == Space::Private) else {
            continue;
        };
        // `length` has no location; it is a constant, and folded elsewhere.
        let bytes = Location::of(program, id).and_then(Location::constant_range);
        known[object] &= bytes.is_some_and(|bytes| bytes.end <= program.memory(object).static_bytes().unwrap_or(0));
    }
    let mut room = MAX_ELEMENTS;
    let fits = |object: &MemId| {
        let memory = program.memory(*object);
        let length = memory.length.unwrap_or(u32::MAX);
        let alike = types[*object] != AccessTypes::default() && types[*object].are_all(memory.element, false);
        // A store to a narrow element truncates or rounds; a value does not.
        let whole = !memory.element.is_narrow();
        let fits = memory.space == Space::Private && known[*object] && alike && whole && length <= room;
        room -= if fits { length } else { 0 };
        fits
    };
    program.memories().keys().filter(fits).collect()
}

struct Promotion<'e> {
    effects: &'e Effects,
    /// Position of the first element of an object in `current`.
    first: SecondaryMap<MemId, Option<usize>>,
    /// Current value of each element.
    current: Vec<(MemId, ValueId)>,
    renaming: Renaming,
}

impl Promotion<'_> {
    /// Walks a block. The changed elements are appended to the operands of its terminators: `yields` for the owner of
    /// the block, `carried` for the innermost loop.
    fn block(&mut self, program: &mut Program, block: BlockId, yields: &[usize], carried: &[usize]) {
        program.retain_insts(block, |program, id| {
            self.renaming.apply_to(program.inst_mut(id));
            let inst = program.inst(id);
            match inst.op {
                Op::Load(at) | Op::Store(at) if self.first[at.memory].is_some() => {
                    self.access(program, id, at.memory);
                    return false;
                }
                Op::Terminator(Terminator::Yield) => self.append_operands(program, id, yields),
                Op::Terminator(Terminator::Break | Terminator::Continue) => self.append_operands(program, id, carried),
                Op::Control(Control::If | Control::Switch(_) | Control::Region(_)) => {
                    let changed = self.changed(id);
                    let before = self.current.clone();
                    for nested in program.inst(id).blocks.clone() {
                        self.current.clone_from(&before);
                        self.block(program, nested, &changed, carried);
                    }
                    self.current = before;
                    self.append_results(program, id, &changed);
                }
                Op::Control(Control::Loop) => {
                    let changed = self.changed(id);
                    let body = inst.blocks[0];
                    self.append_operands(program, id, &changed);
                    for &variable in &changed {
                        let ty = program.ty(self.current[variable].1);
                        self.current[variable].1 = program.add_param(body, ty);
                    }
                    let inside = self.current.clone();
                    self.block(program, body, &[], &changed);
                    self.current = inside;
                    self.append_results(program, id, &changed);
                }
                _ => {}
            }
            true
        });
    }

    fn access(&mut self, program: &Program, id: InstId, object: MemId) {
        let inst = program.inst(id);
        let location = Location::of(program, id).expect("an access to a private array has an index");
        let first = self.first[object].expect("only promoted objects get here") + location.index.offset as usize;
        match inst.op {
            Op::Store(_) => {
                for (element, &value) in inst.operands[1..].iter().enumerate() {
                    self.current[first + element].1 = value;
                }
            }
            _ => {
                for (element, &result) in inst.results.iter().enumerate() {
                    self.renaming.replace(result, self.current[first + element].1);
                }
            }
        }
    }

    /// Elements that an instruction may change.
    fn changed(&self, id: InstId) -> Vec<usize> {
        let written = self.effects.inst(id).writes;
        (0..self.current.len()).filter(|&variable| written.contains(self.current[variable].0)).collect()
    }

    fn append_operands(&self, program: &mut Program, id: InstId, variables: &[usize]) {
        program.inst_mut(id).operands.extend(variables.iter().map(|&variable| self.current[variable].1));
    }

    fn append_results(&mut self, program: &mut Program, id: InstId, variables: &[usize]) {
        for &variable in variables {
            let ty = program.ty(self.current[variable].1);
            self.current[variable].1 = program.add_result(id, ty);
        }
    }
}
