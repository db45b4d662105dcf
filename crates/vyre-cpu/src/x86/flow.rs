//! Control flow of the lanes of a tile.
//!
//! Where all lanes of a tile agree, a condition is a jump. Elsewhere both sides are executed, each with a mask of the lanes
//! that are there, and skipped if there are none. A loop goes on as long as one lane does.
//!
//! Most often all lanes agree even where that is not known: a condition that guards much work gets a version of its own for
//! lanes that all meet it, and a loop runs without masks until the first lane leaves it.

use std::ops::Range;

use iced_x86::Code;
use smallvec::SmallVec;
use vyre_foundation::analysis::{exits_of, finite};
use vyre_foundation::ir::entity::SecondaryMap;
use vyre_foundation::ir::ops::{Kind, Op};
use vyre_foundation::ir::{BlockId, Def, Inst, InstId, MemId, Space, Type, ValueId};

use super::emit::{Regs, at};
use super::lower::{EnclosingLoop, Lower, Mask, State, origin};
use super::machine::{self, Base, Class, Operand, Reg, Width};
use super::select::comparison;
use super::service::{self, Site};
use super::shape::Axes;
use crate::spmd::continues_early;

/// Loops without loops in them that take no more trips than this need not ask whether to go on.
const SHORT_LOOP: u64 = 256;

/// A place that jumps to where several come together: its block, its state, and what it brings along.
pub(super) struct Arrival {
    block: machine::BlockId,
    state: State,
    brings: Regs,
}

impl Lower<'_> {
    /// Executes instructions; gives whether lanes may go on after the last one.
    pub(super) fn insts(&mut self, insts: &[InstId]) -> bool {
        for &id in insts {
            if !self.hoisted[id] && !self.inst(id) {
                return false;
            }
            if !self.emit.is_open() {
                return false;
            }
        }
        true
    }

    /// Executes a block; gives what it yields, or nothing if no lane comes to its end.
    fn block(&mut self, block: BlockId) -> Option<InstId> {
        let program = self.program;
        let insts = &program.blocks[block].insts;
        let last = *insts.last().expect("a block ends");
        let goes_on = self.insts(&insts[..insts.len() - 1]);
        if !goes_on {
            return None;
        }
        if program.insts[last].op == Op::Yield {
            return Some(last);
        }
        self.inst(last);
        None
    }

    /// Executes an instruction; gives whether lanes may go on after it.
    pub(super) fn inst(&mut self, id: InstId) -> bool {
        let program = self.program;
        let inst = &program.insts[id];
        let outer = std::mem::replace(&mut self.emit.origin, origin(id));
        let goes_on = match &inst.op {
            Op::If => self.branch(id),
            Op::Switch(cases) => self.switch(id, cases),
            Op::Region(_) => self.whole(id, inst.blocks[0]),
            Op::Loop => self.loop_inst(id),
            op => {
                match (op.row().kind, op) {
                    (Kind::Pure, _) => self.compute(id),
                    (Kind::PerInvocation | Kind::PerGroup, _) => self.place(id),
                    (Kind::Access, Op::Store(_)) => self.store(id),
                    (Kind::Access, _) => self.load(id),
                    (Kind::Atomic, _) => self.atomic(id),
                    (Kind::Collective, _) => self.collective(id),
                    (Kind::Effect, _) => self.print(id),
                    (Kind::Control, Op::Break) => self.leave_loop(id),
                    (Kind::Control, Op::Continue) => self.continue_loop(Some(id)),
                    (Kind::Control, Op::Return) => self.end_lanes(),
                    (Kind::Control, Op::Trap) => {
                        self.trap(id);
                        self.end_lanes();
                    }
                    (Kind::Control, op) => unreachable!("`{}` ends a block, which looks at it", op.row().name),
                }
                !op.is_terminator()
            }
        };
        self.emit.origin = outer;
        goes_on
    }

    // Masks.

    /// The active lanes of a pack.
    pub(super) fn active(&mut self, pack: usize) -> Reg {
        match &self.state.mask {
            Some(mask) => mask.packs[pack],
            None => self.emit.mask_constant(true),
        }
    }

    /// The active lanes of all packs.
    fn active_packs(&mut self) -> Regs {
        (0..self.packs()).map(|pack| self.active(pack)).collect()
    }

    /// The lanes that are active in any of the packs that share a pack's copy of a value; all if there is no mask.
    pub(super) fn active_in_copy(&mut self, axes: Axes, pack: usize) -> Option<Reg> {
        let packs = self.state.mask.as_ref()?.packs.clone();
        Some(self.mask_of_copy(&packs, axes, self.shape.tile.copy(axes, pack)))
    }

    /// The lanes that are set in any of the packs that share a copy of a value.
    fn mask_of_copy(&mut self, packs: &[Reg], axes: Axes, copy: usize) -> Reg {
        let tile = self.shape.tile;
        let mut sharing: Regs =
            (0..packs.len()).filter(|&pack| tile.copy(axes, pack) == copy).map(|pack| packs[pack]).collect();
        sharing.dedup();
        sharing[1..].iter().fold(sharing[0], |all, &mask| self.emit.mask_or(all, mask))
    }

    fn packs(&self) -> usize {
        self.shape.tile.packs() as usize
    }

    /// Nobody is active any more.
    fn nobody(&mut self) {
        let none = self.emit.mask_constant(false);
        self.state.mask = Some(Mask { packs: (0..self.packs()).map(|_| none).collect(), maybe_empty: true });
    }

    /// The active lanes for which a condition holds, or does not.
    fn narrowed(&mut self, conditions: &[Reg], holds: bool) -> Regs {
        let mask = self.state.mask.clone();
        let narrow = |(pack, &condition): (usize, &Reg)| match (&mask, holds) {
            (Some(mask), true) => self.emit.mask_and(mask.packs[pack], condition),
            (Some(mask), false) => self.emit.mask_and_not(condition, mask.packs[pack]),
            (None, true) => condition,
            (None, false) => self.emit.mask_not(condition),
        };
        conditions.iter().enumerate().map(narrow).collect()
    }

    fn union(&mut self, a: &[Reg], b: &[Reg]) -> Regs {
        a.iter().zip(b).map(|(&a, &b)| self.emit.mask_or(a, b)).collect()
    }

    /// For the lanes of a mask `new`, for the others `old`: registers of a value, in the order of its classes.
    fn choose(&mut self, value: ValueId, masks: &[Reg], new: &[Reg], old: &[Reg]) -> Regs {
        let axes = self.shape.axes[value];
        let tile = self.shape.tile;
        if axes.is_uniform() {
            // All lanes that come here bring the same.
            return Regs::from_slice(new);
        }
        let halves = if self.program.ty(value).bits() == 64 && axes.meets(Axes::LANE) { 2 } else { 1 };
        let own = tile.copies(axes) * halves;
        let mut chosen = Regs::new();
        for position in 0..own {
            let copy = position / halves;
            let (new, old) = (new[position], old[position]);
            if new == old {
                chosen.push(new);
                continue;
            }
            chosen.push(if !axes.meets(Axes::LANE) {
                // The same in all lanes of some packs, of which those that are active speak for all.
                let of_copy: Regs =
                    (0..masks.len()).filter(|&pack| tile.copy(axes, pack) == copy).map(|pack| masks[pack]).collect();
                self.choose_scalar(&of_copy, new, old)
            } else {
                let mask = self.mask_of_copy(masks, axes, copy);
                if self.program.ty(value) == Type::Bool {
                    self.emit.blend_masks(mask, new, old)
                } else if halves == 2 {
                    let mask = self.emit.mask_half(mask, position % 2 == 1);
                    self.emit.blend_lanes(mask, new, old, true)
                } else {
                    self.emit.blend(mask, new, old)
                }
            });
        }
        // First lanes of a linear value: all that bring one bring the same.
        chosen.extend_from_slice(&new[own..]);
        chosen
    }

    /// One register or another, depending on whether any lane of the masks is set.
    fn choose_scalar(&mut self, masks: &[Reg], new: Reg, old: Reg) -> Reg {
        self.emit.test_none(masks);
        self.emit.either(Code::Je_rel32_64, false, old, new)
    }

    // Coming together.

    /// Where the code is, with what it brings along.
    pub(super) fn arrival(&mut self, brings: Regs) -> Arrival {
        Arrival { block: self.emit.at, state: self.state.clone(), brings }
    }

    /// Goes on where several places lead; gives what they bring.
    pub(super) fn meet(&mut self, mut arrivals: Vec<Arrival>) -> Regs {
        if arrivals.len() == 1 {
            let only = arrivals.pop().expect("there is one");
            self.emit.at = only.block;
            self.state = only.state;
            return only.brings;
        }
        let masked = arrivals.iter().any(|arrival| arrival.state.mask.is_some());
        let maybe_empty =
            arrivals.iter().any(|arrival| arrival.state.mask.as_ref().is_some_and(|mask| mask.maybe_empty));
        let mut lists: Vec<(machine::BlockId, Regs)> = Vec::new();
        for arrival in &arrivals {
            self.emit.at = arrival.block;
            self.state = arrival.state.clone();
            let mut list = arrival.brings.clone();
            list.extend_from_slice(&arrival.state.variables);
            if masked {
                list.extend(self.active_packs());
            }
            lists.push((self.emit.at, list));
        }
        let cold = lists.iter().all(|(block, _)| self.emit.function.blocks[block.0 as usize].cold);
        let join = self.emit.block(cold);
        let count = lists[0].1.len();
        let differs: Vec<bool> =
            (0..count).map(|position| lists.iter().any(|(_, list)| list[position] != lists[0].1[position])).collect();
        let mut merged = Regs::new();
        for (&first, &differs) in lists[0].1.iter().zip(&differs) {
            merged.push(if differs {
                let class = self.emit.class(first);
                self.emit.param(join, class)
            } else {
                first
            });
        }
        for (block, list) in lists {
            self.emit.at = block;
            let arguments: Regs =
                list.into_iter().zip(&differs).filter(|(_, differs)| **differs).map(|(reg, _)| reg).collect();
            self.emit.jump(join, &arguments);
        }
        self.emit.at = join;
        let (brings, variables) = (arrivals[0].brings.len(), arrivals[0].state.variables.len());
        self.state.variables = Regs::from_slice(&merged[brings..brings + variables]);
        self.state.mask = masked.then(|| Mask { packs: Regs::from_slice(&merged[brings + variables..]), maybe_empty });
        merged.truncate(brings);
        merged
    }

    fn zeros(&mut self, classes: &[Class]) -> Regs {
        classes.iter().map(|&class| self.zero_of(class)).collect()
    }

    /// What an arm gives as results of an instruction, or zeros if no lane comes to its end.
    fn yielded(&mut self, id: InstId, arm: Option<InstId>) -> Regs {
        let results = self.program.insts[id].results.clone();
        let mut regs = Regs::new();
        for (position, &result) in results.iter().enumerate() {
            match arm {
                Some(end) => {
                    let given = self.program.insts[end].operands[position];
                    regs.extend(self.regs_for(result, given));
                }
                None => regs.extend(self.zeros(&self.classes(result))),
            }
        }
        regs
    }

    pub(super) fn hold_all(&mut self, values: &[ValueId], regs: &[Reg]) {
        for (&value, range) in values.iter().zip(self.ranges_of(values)) {
            self.hold(value, &regs[range]);
        }
    }

    /// Where the registers of each value are in a list of those of all.
    fn ranges_of(&self, values: &[ValueId]) -> SmallVec<[Range<usize>; 4]> {
        let mut end = 0;
        let range = |&value: &ValueId| {
            let start = end;
            end += self.classes(value).len();
            start..end
        };
        values.iter().map(range).collect()
    }

    fn give_results(&mut self, id: InstId, arm: Option<InstId>) -> bool {
        if !self.emit.is_open() {
            return false;
        }
        let regs = self.yielded(id, arm);
        self.hold_all(&self.program.insts[id].results.clone(), &regs);
        arm.is_some()
    }

    // Conditions.

    fn branch(&mut self, id: InstId) -> bool {
        let inst = &self.program.insts[id];
        let condition = inst.operands[0];
        if self.shape.axes[condition].is_uniform() {
            let (then, other) = self.jump_on(condition);
            return self.one_of(id, &[then, other], |this, number| this.whole(id, inst.blocks[number]));
        }
        if self.state.mask.is_none() && self.is_worth_a_version(inst.operands[0], inst.blocks[0], inst.blocks[1]) {
            return self.two_versions(id);
        }
        self.divergent_if(id)
    }

    /// Jumps on a condition that is the same in the tile; gives where to go if it holds, and if not.
    fn jump_on(&mut self, condition: ValueId) -> (machine::BlockId, machine::BlockId) {
        let program = self.program;
        if let Def::Result(id, 0) = program.values[condition].def {
            let inst = &program.insts[id];
            if inst.operands.iter().all(|&operand| self.is_there(operand))
                && let Some(code) = self.compare_scalars(&inst.op, &inst.operands)
            {
                return self.emit.branch(code, false, false);
            }
        }
        let scalar = self.scalar(condition, 0);
        self.emit.test(scalar);
        self.emit.branch(Code::Jne_rel32_64, false, false)
    }

    /// Sets flags by comparing values that are the same in the tile, if it is integers that are compared; gives the jump that
    /// is taken if the comparison holds.
    fn compare_scalars(&mut self, op: &Op, operands: &[ValueId]) -> Option<Code> {
        let &[a, b] = operands else { return None };
        let ty = self.program.ty(a);
        let signed = match ty {
            Type::I32 | Type::I64 => true,
            Type::U32 | Type::U64 => false,
            Type::Bool | Type::F32 | Type::F64 | Type::F16 => return None,
        };
        if !self.shape.axes[a].is_uniform() || !self.shape.axes[b].is_uniform() {
            return None;
        }
        let (code, _) = comparison(op, signed)?;
        let width = if ty.bits() == 64 { Width::Qword } else { Width::Dword };
        let a = self.scalar(a, 0);
        match self.program.known(b) {
            Some(literal) if width == Width::Dword => self.emit.cmp_immediate(a, literal.bits as i32, width),
            _ => {
                let b = self.scalar(b, 0);
                self.emit.cmp(a, b, width);
            }
        }
        Some(code)
    }

    /// Goes on after one of several ways to execute an instruction, to which the code has already jumped. Each leaves the results
    /// behind, and says whether lanes may go on after it.
    fn one_of(&mut self, id: InstId, starts: &[machine::BlockId], way: impl Fn(&mut Self, usize) -> bool) -> bool {
        let results = &self.program.insts[id].results;
        let before = self.state.clone();
        let mut arrivals = Vec::new();
        let mut goes_on = false;
        for (number, &start) in starts.iter().enumerate() {
            self.emit.at = start;
            self.state = before.clone();
            let mark = self.scope();
            goes_on |= way(self, number);
            if self.emit.is_open() {
                let brings = results.iter().flat_map(|&result| self.regs_for(result, result)).collect();
                arrivals.push(self.arrival(brings));
            }
            self.leave(mark);
        }
        if arrivals.is_empty() {
            return false;
        }
        let regs = self.meet(arrivals);
        self.hold_all(results, &regs);
        goes_on
    }

    /// Executes a block of an instruction, which gives its results.
    fn whole(&mut self, id: InstId, block: BlockId) -> bool {
        let end = self.block(block);
        self.give_results(id, end)
    }

    /// Executes a block for the lanes of a mask; gives what it brings, and what is left of the mask.
    fn arm(&mut self, id: InstId, block: BlockId, packs: Regs) -> (Option<InstId>, Regs, Regs) {
        let program = self.program;
        if program.blocks[block].insts.len() == 1 && self.yields(block) {
            let end = Some(program.blocks[block].insts[0]);
            return (end, self.yielded(id, end), packs);
        }
        let before = self.state.clone();
        let mut arrivals = Vec::new();
        let guarded = self.is_worth_a_jump(block);
        if guarded {
            self.emit.test_none(&packs);
            let (none, some) = self.emit.branch(Code::Je_rel32_64, false, false);
            self.emit.at = none;
            self.state.mask = Some(Mask { packs: packs.clone(), maybe_empty: true });
            let zeros = self.yielded(id, None);
            arrivals.push(self.arrival(zeros));
            self.emit.at = some;
            self.state = before;
        }
        self.state.mask = Some(Mask { packs, maybe_empty: !guarded });
        let mark = self.scope();
        self.divergence += 1;
        if let Some(enclosing) = self.loops.last_mut() {
            enclosing.depth += 1;
        }
        let end = self.block(block);
        if let Some(enclosing) = self.loops.last_mut() {
            enclosing.depth -= 1;
        }
        self.divergence -= 1;
        let brings = self.yielded(id, end);
        arrivals.push(self.arrival(brings));
        self.leave(mark);
        let brings = self.meet(arrivals);
        let packs = self.state.mask.clone().expect("an arm has a mask").packs;
        (end, brings, packs)
    }

    fn yields(&self, block: BlockId) -> bool {
        let last = self.program.blocks[block].insts.last().expect("a block ends");
        self.program.insts[*last].op == Op::Yield
    }

    fn divergent_if(&mut self, id: InstId) -> bool {
        let condition = self.program.insts[id].operands[0];
        let conditions: Regs = (0..self.packs()).map(|pack| self.mask_of(condition, pack)).collect();
        let masks = [self.narrowed(&conditions, true), self.narrowed(&conditions, false)];
        self.divergent_arms(id, &masks)
    }

    /// Executes all blocks of an instruction, each for the lanes of its masks.
    fn divergent_arms(&mut self, id: InstId, masks: &[Regs]) -> bool {
        let program = self.program;
        let inst = &program.insts[id];
        let entry = self.state.mask.clone();
        let mut arms = Vec::new();
        for (&block, packs) in inst.blocks.iter().zip(masks) {
            self.state.mask.clone_from(&entry);
            arms.push(self.arm(id, block, packs.clone()));
        }
        let all_go_on = arms.iter().zip(masks).all(|((_, _, left), packs)| left == packs);
        let goes_on = arms.iter().any(|(end, ..)| end.is_some());
        self.state.mask = if all_go_on {
            entry
        } else {
            // Of an arm whose end nobody reaches, nobody is left.
            let empty = |(end, block): (Option<InstId>, BlockId)| end.is_none() && !self.may_leave_inside(block);
            let lefts = arms.iter().zip(&inst.blocks).filter(|((end, ..), block)| !goes_on || !empty((*end, **block)));
            let lefts: Vec<Regs> = lefts.map(|((_, _, left), _)| left.clone()).collect();
            let packs = lefts.into_iter().reduce(|all, left| self.union(&all, &left)).expect("there are arms");
            Some(Mask { packs, maybe_empty: true })
        };
        let mut regs = Regs::new();
        for (number, (&result, range)) in inst.results.iter().zip(self.ranges_of(&inst.results)).enumerate() {
            let ends = arms.iter().zip(masks).filter_map(|((end, brings, _), packs)| {
                Some((program.insts[(*end)?].operands[number], packs, &brings[range.clone()]))
            });
            let ends: Vec<_> = ends.collect();
            regs.extend(match ends.split_last() {
                // What several give alike is there; perhaps it was not computed by those that were skipped.
                Some((last, others)) if !others.is_empty() && others.iter().all(|other| other.0 == last.0) => {
                    self.regs_for(result, last.0)
                }
                Some((last, others)) => others
                    .iter()
                    .rev()
                    .fold(Regs::from_slice(last.2), |chosen, (_, packs, new)| self.choose(result, packs, new, &chosen)),
                None => Regs::from_slice(&arms[0].1[range]),
            });
        }
        self.hold_all(&inst.results, &regs);
        if !all_go_on {
            self.after_leaving();
        }
        self.emit.is_open() && goes_on
    }

    /// Executes code if no lane of any of the masks is set, which leaves the tile or the loop.
    pub(super) fn if_nobody(&mut self, packs: &[Reg], leave: impl FnOnce(&mut Self)) {
        self.emit.test_none(packs);
        let (none, some) = self.emit.branch(Code::Je_rel32_64, false, false);
        let state = self.state.clone();
        self.emit.at = none;
        leave(self);
        self.emit.at = some;
        self.state = state;
    }

    /// Some lanes may have left in the instruction before. If nobody is left, there is no need to go on.
    fn after_leaving(&mut self) {
        let Some(mask) = self.state.mask.clone() else { return };
        let innermost = self.loops.last();
        let in_loop = match innermost {
            // Lanes that continue wait at the end of the trip.
            Some(enclosing) if enclosing.depth > 0 || enclosing.staged => return,
            Some(enclosing) if !enclosing.divergent => return,
            Some(_) => true,
            None if self.divergence > 0 => return,
            None => false,
        };
        self.if_nobody(&mask.packs, |this| if in_loop { this.exit_loop() } else { this.end_all() });
        self.state.mask = Some(Mask { maybe_empty: false, ..mask });
    }

    /// Whether lanes may leave or end somewhere in a block, other than at its end.
    fn may_leave_inside(&self, block: BlockId) -> bool {
        let insts = &self.program.blocks[block].insts;
        insts[..insts.len() - 1].iter().any(|&id| {
            self.program.insts[id].blocks.iter().any(|&nested| !self.yields(nested) || self.may_leave_inside(nested))
        })
    }

    fn switch(&mut self, id: InstId, cases: &[u32]) -> bool {
        let program = self.program;
        let inst = &program.insts[id];
        let selector = inst.operands[0];
        if cases.is_empty() {
            return self.whole(id, inst.blocks[0]);
        }
        if self.shape.axes[selector].is_uniform() {
            let selector = self.scalar(selector, 0);
            let arms = self.emit.switch(selector, cases);
            return self.one_of(id, &arms, |this, number| this.whole(id, inst.blocks[number]));
        }
        // Lanes that no case has taken yet.
        let mut left: Option<Regs> = self.state.mask.as_ref().map(|mask| mask.packs.clone());
        let mut masks = Vec::new();
        for &case in cases {
            let mut taken = Regs::new();
            for pack in 0..self.packs() {
                let lanes = self.vector(selector, pack, 0);
                let case = self.emit.splat(u64::from(case), false);
                let equal = self.equal(lanes, case);
                taken.push(left.as_ref().map_or(equal, |left| self.emit.mask_and(left[pack], equal)));
            }
            left = Some(match left {
                Some(left) => {
                    left.iter().zip(&taken).map(|(&left, &taken)| self.emit.mask_and_not(taken, left)).collect()
                }
                None => taken.iter().map(|&taken| self.emit.mask_not(taken)).collect(),
            });
            masks.push(taken);
        }
        masks.extend(left);
        self.divergent_arms(id, &masks)
    }

    // Two versions.

    /// How many instructions a block has, with everything in it; and whether it is more than arithmetic.
    pub(super) fn weight(&self, block: BlockId) -> (usize, bool) {
        let mut total = (0, false);
        for &id in &self.program.blocks[block].insts {
            let inst = &self.program.insts[id];
            let works = match inst.op.row().kind {
                Kind::Access | Kind::Atomic | Kind::Effect | Kind::Collective => true,
                Kind::Control => inst.op == Op::Loop,
                Kind::Pure | Kind::PerInvocation | Kind::PerGroup => false,
            };
            total.0 += 1;
            total.1 |= works;
            for &nested in &inst.blocks {
                let (count, works) = self.weight(nested);
                total.0 += count;
                total.1 |= works;
            }
        }
        total
    }

    /// Whether to look if there are any lanes before a block is executed.
    fn is_worth_a_jump(&self, block: BlockId) -> bool {
        let (count, works) = self.weight(block);
        works || count > 8
    }

    /// Whether an `if` gets a version for the case that its condition holds in all lanes.
    fn is_worth_a_version(&self, condition: ValueId, then: BlockId, other: BlockId) -> bool {
        let (count, works) = self.weight(then);
        let fits = count <= self.spare && self.yields(then) && self.weight(other).0 <= 4 && self.yields(other);
        works && fits && self.is_about_positions(condition, 8)
    }

    /// Whether a value follows from positions of lanes and what all of them share, so that a condition is the same in nearly all tiles. One
    /// that follows from data is not.
    fn is_about_positions(&self, value: ValueId, depth: u32) -> bool {
        if self.shape.linear[value] || self.shape.axes[value].is_uniform() {
            return true;
        }
        let Def::Result(id, 0) = self.program.values[value].def else { return false };
        let Inst { op, operands, .. } = &self.program.insts[id];
        match op.row().kind {
            Kind::PerInvocation => true,
            Kind::Pure => depth > 0 && operands.iter().all(|&part| self.is_about_positions(part, depth - 1)),
            Kind::PerGroup | Kind::Access | Kind::Atomic | Kind::Collective | Kind::Effect | Kind::Control => false,
        }
    }

    /// An `if` with a version for the case that its condition holds in all lanes.
    fn two_versions(&mut self, id: InstId) -> bool {
        let inst = &self.program.insts[id];
        self.spare -= self.weight(inst.blocks[0]).0;
        let slow = self.emit.block(true);
        self.one_of(id, &[self.emit.at, slow], |this, number| {
            if number == 1 {
                return this.divergent_if(id);
            }
            this.require_all(inst.operands[0], true, slow);
            this.whole(id, inst.blocks[0])
        })
    }

    /// Jumps to a block unless a condition has this value in all lanes.
    fn require_all(&mut self, condition: ValueId, holds: bool, away: machine::BlockId) {
        let program = self.program;
        let leave = |this: &mut Self, code| {
            let (stays, leaves) = this.emit.branch(code, false, true);
            this.emit.at = leaves;
            this.emit.jump(away, &[]);
            this.emit.at = stays;
        };
        if self.shape.axes[condition].is_uniform() {
            let (yes, no) = self.jump_on(condition);
            let (stays, leaves) = if holds { (yes, no) } else { (no, yes) };
            self.emit.at = leaves;
            self.emit.jump(away, &[]);
            self.emit.at = stays;
            return;
        }
        if let Def::Result(id, 0) = program.values[condition].def
            && program.insts[id].operands.iter().all(|&operand| self.is_there(operand))
        {
            let inst = &program.insts[id];
            let both = match inst.op {
                Op::And => holds,
                Op::Or => !holds,
                _ => false,
            };
            if both {
                for &part in &inst.operands {
                    self.require_all(part, holds, away);
                }
                return;
            }
            if inst.op == Op::Not {
                self.require_all(inst.operands[0], !holds, away);
                return;
            }
            if let Some(code) = self.compare_run(&inst.op, &inst.operands, holds) {
                leave(self, code);
                return;
            }
        }
        let axes = self.shape.axes[condition];
        let tile = self.shape.tile;
        let masks: Regs = tile.packs_of(axes).map(|pack| self.mask_of(condition, pack)).collect();
        if holds {
            self.emit.test_all(&masks);
            leave(self, Code::Jb_rel32_64);
        } else {
            self.emit.test_none(&masks);
            leave(self, Code::Je_rel32_64);
        }
    }

    /// Sets flags by whether a comparison of a linear value with one that does not differ in its row has this value in all
    /// lanes; gives the jump that is taken if so. Only one row is compared.
    fn compare_run(&mut self, op: &Op, operands: &[ValueId], holds: bool) -> Option<Code> {
        let &[a, b] = operands else { return None };
        let tile = self.shape.tile;
        // The linear value may stand on either side.
        let (op, a, b) = match op {
            _ if self.is_linear(a) => (op, a, b),
            Op::Lt => (&Op::Gt, b, a),
            Op::Le => (&Op::Ge, b, a),
            Op::Gt => (&Op::Lt, b, a),
            Op::Ge => (&Op::Le, b, a),
            _ => return None,
        };
        let fixed = self.shape.axes[b].is_uniform();
        if !self.is_linear(a) || !fixed || self.shape.axes[a].meets(Axes::ROW) && tile.rows > 1 {
            return None;
        }
        let signed = self.program.ty(a) == Type::I32;
        let op = match (op, holds) {
            (Op::Lt, true) | (Op::Ge, false) => Op::Lt,
            (Op::Le, true) | (Op::Gt, false) => Op::Le,
            (Op::Gt, true) | (Op::Le, false) => Op::Gt,
            (Op::Ge, true) | (Op::Lt, false) => Op::Ge,
            _ => return None,
        };
        // Whether lanes are all below the bound, or all above it.
        let below = matches!(op, Op::Lt | Op::Le);
        // Lanes above the first one are greater if none of them can be the greatest number.
        let greatest = if signed { i64::from(i32::MAX) } else { i64::from(u32::MAX) };
        if !below && self.ranges.of_value(a).high >= greatest {
            return None;
        }
        let first = self.base(a, 0);
        let bound = self.scalar(b, 0);
        let (first, bound) = if signed {
            let extend = |this: &mut Self, reg| this.emit.s1_of(Code::Movsxd_r64_rm32, Width::Qword, Width::Dword, reg);
            (extend(self, first), extend(self, bound))
        } else {
            (first, bound)
        };
        // In 64 bits nothing wraps: a run of unsigned numbers that does has a last one of 2³² or more, which no bound is.
        let extreme =
            if below { self.emit.lea(at(Base::Reg(first), tile.width() as i32 - 1), Width::Qword) } else { first };
        self.emit.cmp(extreme, bound, Width::Qword);
        Some(comparison(&op, signed)?.0)
    }

    // Loops.

    fn loop_inst(&mut self, id: InstId) -> bool {
        let program = self.program;
        let inst = &program.insts[id];
        let divergent = !self.shape.exits(id).is_uniform();
        if self.state.mask.as_ref().is_some_and(|mask| mask.maybe_empty) {
            // A loop that nobody takes part in might never end.
            let packs = self.state.mask.clone().expect("looked at above").packs;
            self.emit.test_none(&packs);
            let (none, some) = self.emit.branch(Code::Je_rel32_64, false, false);
            return self.one_of(id, &[none, some], |this, number| {
                if number == 0 {
                    return this.give_results(id, None);
                }
                this.state.mask = Some(Mask { packs: packs.clone(), maybe_empty: false });
                this.loop_inst(id)
            });
        }
        let body = inst.blocks[0];
        let params = program.blocks[body].params.clone();
        let mut entry = Regs::new();
        for (&param, &operand) in params.iter().zip(&inst.operands) {
            entry.extend(self.carried(param, operand));
        }
        let outer_variables = std::mem::take(&mut self.state.variables);
        let entry_mask = self.state.mask.clone();
        let exit = self.emit.block(self.emit.is_cold());
        let ends = self.has_ends(body);
        let carries_mask = divergent || ends;
        let mut results = Regs::new();
        for &result in &inst.results {
            for class in self.classes(result) {
                results.push(self.emit.param(exit, class));
            }
        }
        // The mask of those that left comes with them if some have ended instead.
        let mut exit_mask = Regs::new();
        if ends {
            exit_mask.extend((0..self.packs()).map(|_| self.emit.param(exit, self.emit.mask_class())));
        }
        let mark = self.scope();
        if divergent
            && entry_mask.is_none()
            && !ends
            && let Some((slow, params)) = self.fast_loop(id, exit, &entry)
        {
            self.emit.at = slow;
            entry = params;
        }
        let together = !divergent && entry_mask.is_none() && !ends;
        if together && let Some(away) = self.check_ahead(id) {
            self.general_loop(id, exit, &entry, divergent, carries_mask);
            self.checked.clear();
            self.leave(mark);
            self.state = State::default();
            // What goes in and comes out is copied, lest registers that are short here are so in the loop above.
            self.emit.at = away;
            let entry: Regs = entry.iter().map(|&reg| self.emit.copy(reg)).collect();
            let end = self.emit.block(true);
            let given: Regs = results.iter().map(|&reg| self.emit.param(end, self.emit.class(reg))).collect();
            self.general_loop(id, end, &entry, divergent, carries_mask);
            self.emit.at = end;
            let copies: Regs = given.iter().map(|&reg| self.emit.copy(reg)).collect();
            self.emit.jump(exit, &copies);
        } else {
            self.general_loop(id, exit, &entry, divergent, carries_mask);
        }
        self.leave(mark);
        self.emit.at = exit;
        self.state = State { mask: entry_mask, variables: outer_variables };
        if ends {
            self.state.mask = Some(Mask { packs: exit_mask, maybe_empty: true });
        }
        self.hold_all(&inst.results, &results);
        if exits_of(program, body).breaks.is_empty() {
            // It can only be left by ending.
            if self.divergence == 0 && self.loops.is_empty() {
                self.end_all();
            } else {
                self.nobody();
            }
            return false;
        }
        if ends {
            self.after_leaving();
        }
        self.emit.is_open()
    }

    /// The classes of the registers that a loop carries for a parameter: of a linear one, the first lanes, which say all.
    fn carried_classes(&self, param: ValueId) -> SmallVec<[Class; 4]> {
        if self.is_linear(param) {
            let rows = self.shape.tile.rows_of(self.shape.axes[param]);
            return std::iter::repeat_n(Class::Scalar, rows).collect();
        }
        self.classes(param)
    }

    /// What a loop carries for a parameter that becomes another value.
    fn carried(&mut self, param: ValueId, from: ValueId) -> Regs {
        if self.is_linear(param) {
            let rows = self.shape.tile.rows_of(self.shape.axes[param]);
            return (0..rows).map(|row| self.base(from, row)).collect();
        }
        self.regs_for(param, from)
    }

    fn hold_carried(&mut self, params: &[ValueId], regs: &[Reg]) {
        let mut rest = regs;
        for &param in params {
            let (own, others) = rest.split_at(self.carried_classes(param).len());
            rest = others;
            if self.is_linear(param) {
                let mut all: Regs = own.iter().flat_map(|&first| self.run_of(first)).collect();
                all.extend_from_slice(own);
                self.hold(param, &all);
            } else {
                self.hold(param, own);
            }
        }
    }

    /// A loop in its general form.
    fn general_loop(&mut self, id: InstId, exit: machine::BlockId, entry: &[Reg], divergent: bool, carries_mask: bool) {
        let program = self.program;
        let inst = &program.insts[id];
        let body = inst.blocks[0];
        let params = program.blocks[body].params.clone();
        let staged = divergent && continues_early(program, body);
        // Variables: results of those that have left, who they are; parameters of those that continue, and who they are.
        let mut variables = Regs::new();
        if divergent {
            for &result in &inst.results {
                variables.extend(self.zeros(&self.classes(result)));
            }
            let none = self.emit.mask_constant(false);
            if self.has_ends(body) {
                variables.extend((0..self.packs()).map(|_| none));
            }
            if staged {
                for &param in &params {
                    variables.extend(self.zeros(&self.carried_classes(param)));
                }
                variables.extend((0..self.packs()).map(|_| none));
            }
        }
        let mut arguments = Regs::from_slice(entry);
        arguments.extend_from_slice(&variables);
        // In a small loop, memory would take longer to count than the trips take.
        let counts = !carries_mask && !self.has_loop(body) && self.polls(id);
        if counts {
            arguments.push(self.emit.load_scalar(at(Base::Context, service::BUDGET), Width::Dword));
        }
        if carries_mask {
            arguments.extend(self.active_packs());
        }
        let outer_starts = self.own_starts(body);
        let header = self.emit.block(self.emit.is_cold());
        let heads: Regs = arguments.iter().map(|&reg| self.emit.param(header, self.emit.class(reg))).collect();
        self.emit.jump(header, &arguments);
        self.emit.at = header;
        let (own, rest) = heads.split_at(entry.len());
        let (variables, packs) = rest.split_at(variables.len());
        self.hold_carried(&params, own);
        self.state.variables = Regs::from_slice(variables);
        if carries_mask {
            self.state.mask = Some(Mask { packs: Regs::from_slice(packs), maybe_empty: false });
        }
        let budget = counts.then(|| packs[0]);
        self.loops.push(EnclosingLoop { inst: id, header, exit, divergent, staged, carries_mask, depth: 0, budget });
        self.divergence += usize::from(divergent);
        let end = self.block(body);
        debug_assert!(end.is_none(), "the body of a loop does not yield");
        if self.emit.is_open() {
            // All that are left wait for the next trip, or there are none.
            self.continue_loop(None);
        }
        self.divergence -= usize::from(divergent);
        self.loops.pop();
        self.starts = outer_starts;
    }

    /// A loop without masks, as long as all lanes stay in it. Gives where it goes when the first lanes leave, and the
    /// parameters of that trip, which starts again there.
    fn fast_loop(&mut self, id: InstId, exit: machine::BlockId, entry: &[Reg]) -> Option<(machine::BlockId, Regs)> {
        let program = self.program;
        let inst = &program.insts[id];
        let body = inst.blocks[0];
        let insts = &program.blocks[body].insts;
        // The first divergent condition must be the only one that lanes leave by, and nothing may have happened before it.
        let position = insts.iter().position(|&inner| {
            let inner = &program.insts[inner];
            inner.op == Op::If && !self.shape.axes[inner.operands[0]].is_uniform()
        })?;
        let harmless = insts[..position].iter().all(|&inner| {
            let inner = &program.insts[inner];
            match inner.op.row().kind {
                Kind::Pure | Kind::PerInvocation | Kind::PerGroup => true,
                Kind::Access => match inner.op {
                    Op::Load(memory) => program.memory[memory].space != Space::Private,
                    _ => false,
                },
                Kind::Atomic | Kind::Collective | Kind::Effect | Kind::Control => false,
            }
        });
        let test = &program.insts[insts[position]];
        let leaves = |block: BlockId| {
            let insts = &program.blocks[block].insts;
            program.insts[*insts.last().expect("a block ends")].op == Op::Break
        };
        let (leaves_when, stays) = match (leaves(test.blocks[0]), leaves(test.blocks[1])) {
            (true, false) => (true, test.blocks[1]),
            (false, true) => (false, test.blocks[0]),
            _ => return None,
        };
        let goes_straight = |list: &[InstId]| list.iter().all(|&inner| !self.leaves_divergently(inner));
        if !harmless
            || !goes_straight(&insts[position + 1..])
            || self.may_leave_inside(stays)
            || self.weight(body).0 > self.spare
        {
            return None;
        }
        self.spare -= self.weight(body).0;
        let params = program.blocks[body].params.clone();
        let outer_starts = self.own_starts(body);
        let header = self.emit.block(false);
        let heads: Regs = entry.iter().map(|&reg| self.emit.param(header, self.emit.class(reg))).collect();
        self.emit.jump(header, entry);
        self.emit.at = header;
        self.hold_carried(&params, &heads);
        self.loops.push(EnclosingLoop::together(id, header, exit));
        let mark = self.scope();
        self.insts(&insts[..position]);
        let away = self.emit.block(true);
        self.require_all(test.operands[0], !leaves_when, away);
        self.emit.origin = origin(insts[position]);
        let goes_on = self.whole(insts[position], stays) && self.insts(&insts[position + 1..]);
        debug_assert!(!goes_on && !self.emit.is_open(), "a body ends by leaving or continuing");
        self.leave(mark);
        self.loops.pop();
        self.starts = outer_starts;
        Some((away, heads))
    }

    /// Gives an innermost loop registers of its own for where objects start: those of the whole program are in memory most often.
    /// Gives what to go back to after the loop.
    fn own_starts(&mut self, body: BlockId) -> SecondaryMap<MemId, Option<Reg>> {
        let outer = self.starts.clone();
        if !self.has_loop(body) && !self.emit.is_cold() {
            for &id in &self.program.blocks[body].insts {
                if let Some(memory) = self.program.insts[id].op.memory()
                    && let (Some(start), true) = (self.starts[memory], self.starts[memory] == outer[memory])
                {
                    self.starts[memory] = Some(self.emit.copy(start));
                }
            }
        }
        outer
    }

    /// Whether lanes may leave or continue the innermost loop, or end, at different times in an instruction.
    fn leaves_divergently(&self, id: InstId) -> bool {
        let inst = &self.program.insts[id];
        let divergent = inst.op != Op::Loop
            && inst.operands.first().is_some_and(|&condition| !self.shape.axes[condition].is_uniform());
        inst.blocks.iter().any(|&block| {
            (divergent && self.leaves_at_all(block))
                || self.program.blocks[block]
                    .insts
                    .iter()
                    .any(|&nested| inst.op != Op::Loop && self.leaves_divergently(nested))
        })
    }

    /// Whether lanes leave or continue the innermost loop, or end, in a block.
    fn leaves_at_all(&self, block: BlockId) -> bool {
        let exits = exits_of(self.program, block);
        !exits.breaks.is_empty() || !exits.continues.is_empty() || self.has_ends(block)
    }

    pub(super) fn has_loop(&self, block: BlockId) -> bool {
        self.program.contains(block, |op| *op == Op::Loop)
    }

    /// Whether lanes may end in a block.
    fn has_ends(&self, block: BlockId) -> bool {
        self.program.contains(block, |op| matches!(op, Op::Return | Op::Trap))
    }

    fn innermost(&self) -> &EnclosingLoop {
        self.loops.last().expect("validated: there is a loop around this")
    }

    /// The active lanes leave the innermost loop.
    fn leave_loop(&mut self, id: InstId) {
        let program = self.program;
        let &EnclosingLoop { inst: target, exit, divergent, depth, budget, .. } = self.innermost();
        let results = program.insts[target].results.clone();
        let mut given = Regs::new();
        for (&result, &operand) in results.iter().zip(&program.insts[id].operands) {
            given.extend(self.regs_for(result, operand));
        }
        if !divergent {
            debug_assert_eq!(depth, 0);
            if let Some(budget) = budget {
                self.emit.store_scalar(at(Base::Context, service::BUDGET), budget, Width::Dword);
            }
            if self.has_ends(program.insts[target].blocks[0]) {
                given.extend(self.active_packs());
            }
            self.emit.jump(exit, &given);
            return;
        }
        let end = self.put_aside(&results, &given, 0, false);
        if self.has_ends(program.insts[target].blocks[0]) {
            self.put_active_aside(end);
        }
        self.nobody();
        if depth == 0 && !self.innermost().staged {
            // All that were left have left.
            self.exit_loop();
        }
    }

    /// Puts what the active lanes give for some values into variables of the loop, from the first of these on; gives the next one.
    fn put_aside(&mut self, values: &[ValueId], given: &[Reg], first: usize, carried: bool) -> usize {
        let masks = self.active_packs();
        let mut from = 0;
        for &value in values {
            let count = if carried { self.carried_classes(value).len() } else { self.classes(value).len() };
            let (own, place) = (&given[from..from + count], first + from..first + from + count);
            let old = Regs::from_slice(&self.state.variables[place.clone()]);
            // All that bring first lanes of a linear value bring the same.
            let chosen = match carried && self.is_linear(value) {
                true => Regs::from_slice(own),
                false => self.choose(value, &masks, own, &old),
            };
            self.state.variables[place].copy_from_slice(&chosen);
            from += count;
        }
        first + from
    }

    /// Adds the active lanes to those that variables of the loop tell of.
    fn put_active_aside(&mut self, first: usize) {
        let place = first..first + self.packs();
        let (old, masks) = (Regs::from_slice(&self.state.variables[place.clone()]), self.active_packs());
        let union = self.union(&old, &masks);
        self.state.variables[place].copy_from_slice(&union);
    }

    /// Leaves the innermost loop, which is divergent, for good: nobody is in it any more.
    fn exit_loop(&mut self) {
        let program = self.program;
        let target = self.innermost().inst;
        let exit = self.innermost().exit;
        let results = &program.insts[target].results;
        let mut count = results.iter().map(|&result| self.classes(result).len()).sum::<usize>();
        if self.has_ends(program.insts[target].blocks[0]) {
            count += self.packs();
        }
        let arguments = Regs::from_slice(&self.state.variables[..count]);
        self.emit.jump(exit, &arguments);
    }

    /// The active lanes go on with the next trip of the innermost loop. Without an instruction, only those that already wait
    /// for it do.
    fn continue_loop(&mut self, id: Option<InstId>) {
        let program = self.program;
        let &EnclosingLoop { inst: target, header, exit, divergent, staged, carries_mask, depth, budget } =
            self.innermost();
        let body = program.insts[target].blocks[0];
        let params = program.blocks[body].params.clone();
        let mut given: Option<Regs> = id.map(|id| {
            let operands = params.iter().zip(&program.insts[id].operands);
            operands.flat_map(|(&param, &operand)| self.carried(param, operand)).collect()
        });
        if !divergent {
            debug_assert_eq!(depth, 0);
            let mask = self.state.mask.clone();
            if let Some(mask) = mask.filter(|mask| mask.maybe_empty && carries_mask) {
                // Perhaps all have ended, which only the mask says.
                self.if_nobody(&mask.packs, |this| {
                    let mut arguments = this.yielded(target, None);
                    arguments.extend_from_slice(&mask.packs);
                    this.emit.jump(exit, &arguments);
                });
            }
            let Some(mut arguments) = given else {
                // Nobody can be here any more.
                self.emit.jump(self.stop, &[]);
                return;
            };
            arguments.extend(self.poll(target, budget));
            if carries_mask {
                arguments.extend(self.active_packs());
            }
            self.emit.jump(header, &arguments);
            return;
        }
        let results: usize =
            program.insts[target].results.iter().map(|&result| self.classes(result).len()).sum::<usize>();
        let ended = if self.has_ends(body) { self.packs() } else { 0 };
        let staging = results + ended;
        if staged {
            if let Some(given) = &given {
                let end = self.put_aside(&params, given, staging, true);
                self.put_active_aside(end);
            }
            self.nobody();
            if depth > 0 {
                return;
            }
            // The trip is over: those that wait become active.
            let waiting = self.state.variables.len() - self.packs();
            let packs = Regs::from_slice(&self.state.variables[waiting..]);
            given = Some(Regs::from_slice(&self.state.variables[staging..waiting]));
            let none = self.emit.mask_constant(false);
            self.state.variables[waiting..].fill(none);
            self.state.mask = Some(Mask { packs, maybe_empty: true });
        }
        debug_assert_eq!(depth, 0);
        let Some(given) = given else {
            // Nobody waits.
            self.exit_loop();
            return;
        };
        let mask = self.state.mask.clone().expect("a divergent loop has a mask");
        if mask.maybe_empty {
            self.if_nobody(&mask.packs, Self::exit_loop);
        }
        self.poll(target, None);
        let mut arguments = given;
        arguments.extend_from_slice(&self.state.variables);
        arguments.extend_from_slice(&mask.packs);
        self.emit.jump(header, &arguments);
    }

    /// The active lanes end.
    fn end_lanes(&mut self) {
        if self.divergence == 0 {
            self.end_all();
            return;
        }
        self.nobody();
        let Some(innermost) = self.loops.last() else { return };
        if innermost.depth == 0 && innermost.divergent {
            self.continue_loop(None);
        }
    }

    /// How many lanes are active.
    pub(super) fn active_count(&mut self) -> Reg {
        let Some(mask) = self.state.mask.clone() else {
            let lanes = u64::from(self.shape.tile.size());
            return self.emit.immediate(lanes);
        };
        let counts: Regs = mask
            .packs
            .into_iter()
            .map(|pack| {
                let bits = self.emit.mask_bits(pack);
                self.emit.s1(Code::Popcnt_r32_rm32, Width::Dword, bits)
            })
            .collect();
        let rest = counts[1..].iter();
        rest.fold(counts[0], |total, &count| self.emit.s2(Code::Add_r32_rm32, Width::Dword, total, count))
    }

    /// Whether a loop asks now and then whether to go on.
    fn polls(&self, id: InstId) -> bool {
        self.has_loop(self.program.insts[id].blocks[0])
            || finite(self.program, id).is_none_or(|finite| finite.trips > SHORT_LOOP)
    }

    /// Before another trip: asks now and then whether to go on. Gives what is left of a budget in a register.
    pub(super) fn poll(&mut self, id: InstId, budget: Option<Reg>) -> Option<Reg> {
        if !self.polls(id) {
            return None;
        }
        let left = budget.map(|budget| self.emit.s1_in_place(Code::Dec_rm32, Width::Dword, budget));
        if left.is_none() {
            let budget = Operand::Memory(at(Base::Context, service::BUDGET));
            self.emit.push(Code::Dec_rm32, &[budget], true);
        }
        let (ask, go_on) = self.emit.branch(Code::Je_rel32_64, true, false);
        let join = self.emit.block(self.emit.is_cold());
        let joined = left.map(|_| self.emit.param(join, Class::Scalar));
        self.emit.at = go_on;
        self.emit.jump(join, left.as_slice());
        self.emit.at = ask;
        let active = self.active_count();
        self.emit.store_scalar(at(Base::Scratch, 0), active, Width::Dword);
        self.service(Site::Poll { span: self.program.insts[id].span });
        let stopped = self.emit.load_scalar(at(Base::Context, service::STOPPED), Width::Dword);
        self.emit.test(stopped);
        self.emit.skip_to(self.stop, Code::Jne_rel32_64);
        let renewed = left.map(|_| self.emit.load_scalar(at(Base::Context, service::BUDGET), Width::Dword));
        self.emit.jump(join, renewed.as_slice());
        self.emit.at = join;
        joined
    }
}
