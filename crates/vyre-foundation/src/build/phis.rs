//! Elimination of redundant phis, the last step of SSA construction (as of Braun et al.).
//!
//! Results of control flow and loop parameters are phis. A phi is redundant if it is dead, apart from uses by other dead phis, or if all its
//! incoming values are one value in scope (or, around a loop, the phi itself). Removing a phi can make others redundant, so this runs to a
//! fixed point.

use rustc_hash::FxHashMap;

use crate::ir::entity::SecondaryMap;
use crate::ir::{BlockId, Control, InstId, Op, Program, Terminator, ValueId, Values};

pub(super) fn remove_redundant(program: &mut Program) {
    let collector = Collector::of(program);
    let phis: Vec<Phi> = collector.groups.iter().flat_map(|group| group.phis(program)).collect();

    let mut replacements: Replacements = SecondaryMap::with_capacity(program.values().len(), None);
    let mut changed = true;
    while std::mem::take(&mut changed) {
        for phi in &phis {
            let incoming = phi.incoming.iter().map(|&value| resolve(&replacements, value));
            let mut others = incoming.filter(|&value| value != phi.value);
            if replacements[phi.value].is_none()
                && let Some(value) = others.next()
                && others.all(|other| other == value)
                && collector.depths[value] < phi.inside
            {
                replacements[phi.value] = Some(value);
                changed = true;
            }
        }
    }

    let used = used(program, &phis, &replacements);
    for group in &collector.groups {
        let values = group.target.values(program).iter();
        let kept: Vec<bool> = values.map(|&value| replacements[value].is_none() && used[value]).collect();
        match group.target {
            Target::Results(inst) => program.retain_results(inst, &kept),
            Target::Params(block) => program.retain_params(block, &kept),
        };
        for &source in &group.sources {
            program.retain_operands(source, &kept);
        }
    }
    for inst in reachable(program) {
        for operand in &mut program.inst_mut(inst).operands {
            *operand = resolve(&replacements, *operand);
        }
    }
}

/// Replacement of each removed value.
type Replacements = SecondaryMap<ValueId, Option<ValueId>>;

fn resolve(replacements: &Replacements, mut value: ValueId) -> ValueId {
    while let Some(next) = replacements[value] {
        value = next;
    }
    value
}

struct Phi {
    value: ValueId,
    incoming: Values,
    inside: usize,
}

/// The phis of an instruction or block.
struct Group {
    target: Target,
    /// Instructions whose operands are the incoming values: `yield` or `break` of results, the loop and `continue` of parameters.
    sources: Vec<InstId>,
    /// Nesting depth of the joined blocks; values defined outside of them have a smaller depth.
    inside: usize,
}

#[derive(Clone, Copy)]
enum Target {
    Results(InstId),
    Params(BlockId),
}

impl Target {
    fn values(self, program: &Program) -> &[ValueId] {
        match self {
            Target::Results(inst) => &program.inst(inst).results,
            Target::Params(block) => &program.block(block).params,
        }
    }
}

impl Group {
    fn phis(&self, program: &Program) -> Vec<Phi> {
        let values = self.target.values(program);
        let incoming = |position| self.sources.iter().map(|&source| program.inst(source).operands[position]).collect();
        let phis = values.iter().enumerate();
        phis.map(|(position, &value)| Phi { value, incoming: incoming(position), inside: self.inside }).collect()
    }
}

struct Collector {
    groups: Vec<Group>,
    /// Nesting depth of the definition of each value; 0 for literals and constants.
    depths: SecondaryMap<ValueId, usize>,
}

impl Collector {
    fn of(program: &Program) -> Collector {
        let mut collector =
            Collector { groups: Vec::new(), depths: SecondaryMap::with_capacity(program.values().len(), 0) };
        collector.block(program, program.body(), 0, None);
        collector
    }

    /// `innermost` is the index of the group of the results of the innermost loop; the group of its parameters is the next.
    fn block(&mut self, program: &Program, block: BlockId, depth: usize, innermost: Option<usize>) {
        for &param in &program.block(block).params {
            self.depths[param] = depth;
        }
        for &id in &program.block(block).insts {
            let inst = program.inst(id);
            for &result in &inst.results {
                self.depths[result] = depth;
            }
            match (&inst.op, innermost) {
                (Op::Terminator(Terminator::Break), Some(results)) => self.groups[results].sources.push(id),
                (Op::Terminator(Terminator::Continue), Some(results)) => self.groups[results + 1].sources.push(id),
                _ => {}
            }
            let mut innermost = innermost;
            if !inst.blocks.is_empty() {
                let ends = inst.blocks.iter().filter_map(|&block| program.block(block).insts.last().copied());
                let yields = ends.filter(|&end| program.inst(end).op == Terminator::Yield).collect();
                self.groups.push(Group { target: Target::Results(id), sources: yields, inside: depth + 1 });
            }
            if inst.op == Control::Loop {
                innermost = Some(self.groups.len() - 1);
                let target = Target::Params(inst.blocks[0]);
                self.groups.push(Group { target, sources: vec![id], inside: depth + 1 });
            }
            for &nested in &inst.blocks {
                self.block(program, nested, depth + 1, innermost);
            }
        }
    }
}

/// Live values: those with a use other than a phi, and transitively the incoming values of live phis.
fn used(program: &Program, phis: &[Phi], replacements: &Replacements) -> SecondaryMap<ValueId, bool> {
    let phis: FxHashMap<ValueId, &Phi> = phis.iter().map(|phi| (phi.value, phi)).collect();
    let mut used = SecondaryMap::with_capacity(program.values().len(), false);
    let mut pending = Vec::new();
    for inst in reachable(program) {
        let inst = program.inst(inst);
        if !matches!(
            inst.op,
            Op::Terminator(Terminator::Yield | Terminator::Break | Terminator::Continue) | Op::Control(Control::Loop)
        ) {
            pending.extend(&inst.operands);
        }
    }
    while let Some(value) = pending.pop() {
        let value = resolve(replacements, value);
        if !std::mem::replace(&mut used[value], true)
            && let Some(phi) = phis.get(&value)
        {
            pending.extend(&phi.incoming);
        }
    }
    used
}

fn reachable(program: &Program) -> Vec<InstId> {
    let mut insts = Vec::new();
    program.walk(|inst, _| insts.push(inst));
    insts
}
