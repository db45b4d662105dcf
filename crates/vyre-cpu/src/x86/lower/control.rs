//! Control flow of a tile: uniform branches, predicated branches, and loops.
//!
//! A condition that is uniform in the tile becomes a jump. For a divergent one both sides are executed under masks of
//! their lanes, and skipped if the mask is empty. A divergent loop runs until no lane is left.
//!
//! Divergent conditions mostly agree at run time. A condition that guards enough work is versioned: the fast path, for
//! tiles in which all lanes agree, runs without masks. A loop runs without masks until the first lane leaves it.

use iced_x86::Code;
use vyre_foundation::analysis::exits_of;
use vyre_foundation::ir::ops::{Barrier, Comparison, Control, Op, Pure, Terminator};
use vyre_foundation::ir::{BlockId, Def, InstId, Type, ValueId};

use super::masks::{self, Mask, State};
use super::select::comparison;
use super::{Lower, origin};
use crate::spmd::continues_early;
use crate::x86::machine::emit::{Regs, at};
use crate::x86::machine::{self, Base, Class, Operand, Reg, Width};
use crate::x86::plan::shape::Axes;
use crate::x86::plan::versions::ConvergedLoop;
use crate::x86::service::{self, Site};

/// Loops that enclose the code being emitted.
pub(super) struct Loops {
    pub(super) enclosing: Vec<EnclosingLoop>,
    /// Number of enclosing divergent conditions and loops.
    pub(super) divergence: usize,
    /// Remaining budget of instructions duplicated for converged versions.
    pub(super) version_budget: usize,
}

/// A loop that encloses the code being emitted.
pub(super) struct EnclosingLoop {
    pub(super) inst: InstId,
    pub(super) header: machine::BlockId,
    pub(super) exit: machine::BlockId,
    /// Lanes may leave or continue at different times.
    divergent: bool,
    /// Some lanes may continue while others are still in the trip.
    staged: bool,
    /// The mask is a loop parameter, because lanes may end.
    carries_mask: bool,
    /// Number of divergent conditions between the loop and the code.
    depth: usize,
    /// Register with the trips left before the next poll, if they are counted in one.
    budget: Option<Reg>,
}

impl Loops {
    pub(super) fn new(version_budget: usize) -> Loops {
        Loops { enclosing: Vec::new(), divergence: 0, version_budget }
    }

    pub(super) fn innermost(&self) -> &EnclosingLoop {
        self.enclosing.last().expect("validated: there is a loop around this")
    }

    /// Enters an arm of a divergent branch.
    fn enter_arm(&mut self) {
        self.divergence += 1;
        if let Some(innermost) = self.enclosing.last_mut() {
            innermost.depth += 1;
        }
    }

    fn leave_arm(&mut self) {
        self.divergence -= 1;
        if let Some(innermost) = self.enclosing.last_mut() {
            innermost.depth -= 1;
        }
    }
}

impl EnclosingLoop {
    /// A loop with uniform exits.
    pub(super) fn together(inst: InstId, header: machine::BlockId, exit: machine::BlockId) -> EnclosingLoop {
        EnclosingLoop {
            inst,
            header,
            exit,
            divergent: false,
            staged: false,
            carries_mask: false,
            depth: 0,
            budget: None,
        }
    }
}

impl Lower<'_> {
    /// Emits instructions; returns whether lanes may be active after the last one.
    pub(super) fn insts(&mut self, insts: &[InstId]) -> bool {
        for &id in insts {
            if !self.tiles.hoisted[id] && !self.inst(id) {
                return false;
            }
            if !self.emit.is_open() {
                return false;
            }
        }
        true
    }

    /// Emits a block; returns its `yield`, or `None` if no lane reaches it.
    fn block(&mut self, block: BlockId) -> Option<InstId> {
        let program = self.plan.program;
        let insts = &program.block(block).insts;
        let last = *insts.last().expect("a block ends");
        let may_continue = self.insts(&insts[..insts.len() - 1]);
        if !may_continue {
            return None;
        }
        if program.inst(last).op == Terminator::Yield {
            return Some(last);
        }
        self.inst(last);
        None
    }

    /// Emits an instruction; returns whether lanes may be active after it.
    pub(super) fn inst(&mut self, id: InstId) -> bool {
        let program = self.plan.program;
        let inst = program.inst(id);
        let outer = std::mem::replace(&mut self.emit.origin, origin(id));
        let mut may_continue = !inst.op.is_terminator();
        match &inst.op {
            Op::Pure(op) => self.compute(id, *op),
            Op::PerInvocation(op) => self.per_invocation(id, *op),
            Op::PerGroup(op) => self.per_group(id, *op),
            Op::Load(access) => self.load(id, *access),
            Op::Store(access) => self.store(id, *access),
            Op::Atomic(op, access) => self.atomic(id, Some(*op), *access),
            Op::CompareExchange(access) => self.atomic(id, None, *access),
            Op::Barrier(Barrier::Workgroup) => {}
            Op::Barrier(Barrier::Storage) => self.fence_streams(),
            Op::Broadcast => self.broadcast_in_tile(id),
            Op::Subgroup(op) => self.subgroup(id, *op),
            Op::Print(format) => self.print(id, format),
            Op::Control(Control::If) => may_continue = self.branch(id),
            Op::Control(Control::Switch(cases)) => may_continue = self.switch(id, cases),
            Op::Control(Control::Region(_)) => may_continue = self.converged(id, inst.blocks[0]),
            Op::Control(Control::Loop) => may_continue = self.loop_inst(id),
            // The owner of the block reads the operands.
            Op::Terminator(Terminator::Yield) => {}
            Op::Terminator(Terminator::Break) => self.leave_loop(id),
            Op::Terminator(Terminator::Continue) => self.continue_loop(Some(id)),
            Op::Terminator(Terminator::Return) => self.end_lanes(),
            Op::Terminator(Terminator::Trap) => {
                self.trap(id);
                self.end_lanes();
            }
        }
        self.emit.origin = outer;
        may_continue
    }

    /// Operands that an arm yields as the results of an instruction; zeros if no lane reaches its end.
    fn yielded(&mut self, id: InstId, arm: Option<InstId>) -> Regs {
        let results = self.plan.program.inst(id).results.clone();
        let mut regs = Regs::new();
        for (position, &result) in results.iter().enumerate() {
            match arm {
                Some(end) => {
                    let given = self.plan.program.inst(end).operands[position];
                    regs.extend(self.regs_as(result, given));
                }
                None => regs.extend(self.emit.zeros(&self.plan.shape.classes(self.plan.program, result))),
            }
        }
        regs
    }

    pub(super) fn define_all(&mut self, values: &[ValueId], regs: &[Reg]) {
        for (&value, range) in values.iter().zip(self.plan.register_ranges(values)) {
            self.define(value, &regs[range]);
        }
    }

    fn give_results(&mut self, id: InstId, arm: Option<InstId>) -> bool {
        if !self.emit.is_open() {
            return false;
        }
        let regs = self.yielded(id, arm);
        self.define_all(&self.plan.program.inst(id).results.clone(), &regs);
        arm.is_some()
    }

    // Conditions.

    fn branch(&mut self, id: InstId) -> bool {
        let inst = self.plan.program.inst(id);
        let condition = inst.operands[0];
        if self.plan.shape.axes[condition].is_uniform() {
            let (then, other) = self.jump_on(condition);
            return self.join_paths(id, &[then, other], |this, number| this.converged(id, inst.blocks[number]));
        }
        if self.state.mask.is_none() && self.plan.is_worth_versioning(id, self.loops.version_budget) {
            return self.two_versions(id);
        }
        self.divergent_if(id)
    }

    /// Branches on a condition that is uniform in the tile; returns the blocks for true and false.
    fn jump_on(&mut self, condition: ValueId) -> (machine::BlockId, machine::BlockId) {
        let program = self.plan.program;
        if let Def::Result(id, 0) = program.def(condition) {
            let inst = program.inst(id);
            if inst.operands.iter().all(|&operand| self.is_available(operand))
                && let Op::Pure(op) = inst.op
                && let Some(relation) = op.comparison()
                && let Some(code) = self.compare_scalars(relation, &inst.operands)
            {
                return self.emit.branch(code, false, false);
            }
        }
        let scalar = self.scalar(condition, 0);
        self.emit.test(scalar);
        self.emit.branch(Code::Jne_rel32_64, false, false)
    }

    /// Sets flags by comparing integers that are uniform in the tile; returns the jump that is taken if the comparison
    /// holds.
    fn compare_scalars(&mut self, relation: Comparison, operands: &[ValueId]) -> Option<Code> {
        let &[a, b] = operands else { return None };
        let ty = self.plan.program.ty(a);
        let signed = match ty {
            Type::I32 | Type::I64 => true,
            Type::U32 | Type::U64 => false,
            Type::Bool | Type::F32 | Type::F64 | Type::F16 => return None,
        };
        if !self.plan.shape.axes[a].is_uniform() || !self.plan.shape.axes[b].is_uniform() {
            return None;
        }
        let (code, _) = comparison(relation, signed);
        let width = if ty.bits() == 64 { Width::Qword } else { Width::Dword };
        let a = self.scalar(a, 0);
        match self.plan.program.known(b) {
            Some(literal) if width == Width::Dword => self.emit.cmp_immediate(a, literal.bits as i32, width),
            _ => {
                let b = self.scalar(b, 0);
                self.emit.cmp(a, b, width);
            }
        }
        Some(code)
    }

    /// Emits alternative paths of an instruction, to whose starts the code already branches, and joins them. Each path
    /// defines the results, and returns whether lanes may be active after it.
    fn join_paths(&mut self, id: InstId, starts: &[machine::BlockId], way: impl Fn(&mut Self, usize) -> bool) -> bool {
        let results = &self.plan.program.inst(id).results;
        let before = self.state.clone();
        let mut arrivals = Vec::new();
        let mut may_continue = false;
        for (number, &start) in starts.iter().enumerate() {
            self.emit.at = start;
            self.state = before.clone();
            let scope = self.values.enter_scope();
            may_continue |= way(self, number);
            if self.emit.is_open() {
                let passed = results.iter().flat_map(|&result| self.regs_as(result, result)).collect();
                arrivals.push(self.state.arrival(&self.emit, passed));
            }
            self.values.leave_scope(scope);
        }
        if arrivals.is_empty() {
            return false;
        }
        let regs = self.state.join(&mut self.emit, self.plan.shape.tile, arrivals);
        self.define_all(results, &regs);
        may_continue
    }

    /// Emits a block of an instruction without a mask of its own, and defines the results.
    fn converged(&mut self, id: InstId, block: BlockId) -> bool {
        let end = self.block(block);
        self.give_results(id, end)
    }

    /// Emits a block under a mask; returns its `yield`, the yielded registers, and the lanes still active.
    fn arm(&mut self, id: InstId, block: BlockId, packs: Regs) -> (Option<InstId>, Regs, Regs) {
        let program = self.plan.program;
        if program.block(block).insts.len() == 1 && self.plan.yields(block) {
            let end = Some(program.block(block).insts[0]);
            return (end, self.yielded(id, end), packs);
        }
        let before = self.state.clone();
        let mut arrivals = Vec::new();
        let guarded = self.plan.is_worth_skipping(block);
        if guarded {
            self.emit.test_none(&packs);
            let (none, some) = self.emit.branch(Code::Je_rel32_64, false, false);
            self.emit.at = none;
            self.state.mask = Some(Mask { packs: packs.clone(), maybe_empty: true });
            let zeros = self.yielded(id, None);
            arrivals.push(self.state.arrival(&self.emit, zeros));
            self.emit.at = some;
            self.state = before;
        }
        self.state.mask = Some(Mask { packs, maybe_empty: !guarded });
        let scope = self.values.enter_scope();
        self.loops.enter_arm();
        let end = self.block(block);
        self.loops.leave_arm();
        let passed = self.yielded(id, end);
        arrivals.push(self.state.arrival(&self.emit, passed));
        self.values.leave_scope(scope);
        let passed = self.state.join(&mut self.emit, self.plan.shape.tile, arrivals);
        let packs = self.state.mask.clone().expect("an arm has a mask").packs;
        (end, passed, packs)
    }

    fn divergent_if(&mut self, id: InstId) -> bool {
        let condition = self.plan.program.inst(id).operands[0];
        let conditions: Regs =
            (0..self.plan.shape.tile.packs() as usize).map(|pack| self.mask(condition, pack)).collect();
        let masks = [
            self.state.narrowed(&mut self.emit, &conditions, true),
            self.state.narrowed(&mut self.emit, &conditions, false),
        ];
        self.divergent_arms(id, &masks)
    }

    /// Emits all blocks of an instruction, each under its mask.
    fn divergent_arms(&mut self, id: InstId, masks: &[Regs]) -> bool {
        let program = self.plan.program;
        let inst = program.inst(id);
        let entry = self.state.mask.clone();
        let mut arms = Vec::new();
        for (&block, packs) in inst.blocks.iter().zip(masks) {
            self.state.mask.clone_from(&entry);
            arms.push(self.arm(id, block, packs.clone()));
        }
        let all_lanes_remain = arms.iter().zip(masks).all(|((_, _, left), packs)| left == packs);
        let may_continue = arms.iter().any(|(end, ..)| end.is_some());
        self.state.mask = if all_lanes_remain {
            entry
        } else {
            // An arm that never yields leaves no active lanes.
            let empty = |(end, block): (Option<InstId>, BlockId)| end.is_none() && !self.plan.may_leave_inside(block);
            let remaining_masks =
                arms.iter().zip(&inst.blocks).filter(|((end, ..), block)| !may_continue || !empty((*end, **block)));
            let remaining_masks: Vec<Regs> = remaining_masks.map(|((_, _, left), _)| left.clone()).collect();
            let packs = remaining_masks
                .into_iter()
                .reduce(|all, left| masks::union(&mut self.emit, &all, &left))
                .expect("there are arms");
            Some(Mask { packs, maybe_empty: true })
        };
        let mut regs = Regs::new();
        for (number, (&result, range)) in inst.results.iter().zip(self.plan.register_ranges(&inst.results)).enumerate()
        {
            let ends = arms.iter().zip(masks).filter_map(|((end, passed, _), packs)| {
                Some((program.inst((*end)?).operands[number], packs, &passed[range.clone()]))
            });
            let ends: Vec<_> = ends.collect();
            regs.extend(match ends.split_last() {
                // A value that several arms yield is already available; arms that were skipped have not computed their
                // copy.
                Some((last, others)) if !others.is_empty() && others.iter().all(|other| other.0 == last.0) => {
                    self.regs_as(result, last.0)
                }
                Some((last, others)) => {
                    others.iter().rev().fold(Regs::from_slice(last.2), |chosen, (_, packs, new)| {
                        masks::select_lanes(&mut self.emit, self.plan, result, packs, new, &chosen)
                    })
                }
                None => Regs::from_slice(&arms[0].1[range]),
            });
        }
        self.define_all(&inst.results, &regs);
        if !all_lanes_remain {
            self.leave_if_none_active();
        }
        self.emit.is_open() && may_continue
    }

    /// Emits code for the case that all masks are empty, which leaves the tile or the loop.
    pub(super) fn if_none_active(&mut self, packs: &[Reg], leave: impl FnOnce(&mut Self)) {
        self.emit.test_none(packs);
        let (none, some) = self.emit.branch(Code::Je_rel32_64, false, false);
        let state = self.state.clone();
        self.emit.at = none;
        leave(self);
        self.emit.at = some;
        self.state = state;
    }

    /// Leaves the tile or the loop if no active lanes are left after an instruction that lanes may have left.
    fn leave_if_none_active(&mut self) {
        let Some(mask) = self.state.mask.clone() else { return };
        let innermost = self.loops.enclosing.last();
        let in_loop = match innermost {
            // Lanes that continue wait at the end of the trip.
            Some(enclosing) if enclosing.depth > 0 || enclosing.staged => return,
            Some(enclosing) if !enclosing.divergent => return,
            Some(_) => true,
            None if self.loops.divergence > 0 => return,
            None => false,
        };
        self.if_none_active(&mask.packs, |this| if in_loop { this.exit_loop() } else { this.end_all() });
        self.state.mask = Some(Mask { maybe_empty: false, ..mask });
    }

    fn switch(&mut self, id: InstId, cases: &[u32]) -> bool {
        let program = self.plan.program;
        let inst = program.inst(id);
        let selector = inst.operands[0];
        if cases.is_empty() {
            return self.converged(id, inst.blocks[0]);
        }
        if self.plan.shape.axes[selector].is_uniform() {
            let selector = self.scalar(selector, 0);
            let arms = self.emit.switch(selector, cases);
            return self.join_paths(id, &arms, |this, number| this.converged(id, inst.blocks[number]));
        }
        // Lanes that no case has matched yet.
        let mut left: Option<Regs> = self.state.mask.as_ref().map(|mask| mask.packs.clone());
        let mut masks = Vec::new();
        for &case in cases {
            let mut taken = Regs::new();
            for pack in 0..self.plan.shape.tile.packs() as usize {
                let lanes = self.vector(selector, pack, 0);
                let case = self.emit.splat(u64::from(case), false);
                let equal = self.emit.equal(lanes, case);
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

    /// Versions an `if`: a fast path for a condition that holds in all lanes.
    fn two_versions(&mut self, id: InstId) -> bool {
        let inst = self.plan.program.inst(id);
        self.loops.version_budget -= self.plan.weight(inst.blocks[0]).insts;
        let slow = self.emit.block(true);
        self.join_paths(id, &[self.emit.at, slow], |this, number| {
            if number == 1 {
                return this.divergent_if(id);
            }
            this.require_all(inst.operands[0], true, slow);
            this.converged(id, inst.blocks[0])
        })
    }

    /// Branches to `away` unless a condition has this value in all lanes.
    fn require_all(&mut self, condition: ValueId, holds: bool, away: machine::BlockId) {
        let program = self.plan.program;
        let leave = |this: &mut Self, code| {
            let (stays, leaves) = this.emit.branch(code, false, true);
            this.emit.at = leaves;
            this.emit.jump(away, &[]);
            this.emit.at = stays;
        };
        if self.plan.shape.axes[condition].is_uniform() {
            let (yes, no) = self.jump_on(condition);
            let (stays, leaves) = if holds { (yes, no) } else { (no, yes) };
            self.emit.at = leaves;
            self.emit.jump(away, &[]);
            self.emit.at = stays;
            return;
        }
        if let Def::Result(id, 0) = program.def(condition)
            && program.inst(id).operands.iter().all(|&operand| self.is_available(operand))
        {
            let inst = program.inst(id);
            let both = match inst.op {
                Op::Pure(Pure::And) => holds,
                Op::Pure(Pure::Or) => !holds,
                _ => false,
            };
            if both {
                for &part in &inst.operands {
                    self.require_all(part, holds, away);
                }
                return;
            }
            if inst.op == Pure::Not {
                self.require_all(inst.operands[0], !holds, away);
                return;
            }
            if let Op::Pure(op) = inst.op
                && let Some(relation) = op.comparison()
                && let Some(code) = self.compare_run(relation.when(holds), &inst.operands)
            {
                leave(self, code);
                return;
            }
        }
        let axes = self.plan.shape.axes[condition];
        let tile = self.plan.shape.tile;
        let masks: Regs = tile.packs_of(axes).map(|pack| self.mask(condition, pack)).collect();
        if holds {
            self.emit.test_all(&masks);
            leave(self, Code::Jb_rel32_64);
        } else {
            self.emit.test_none(&masks);
            leave(self, Code::Je_rel32_64);
        }
    }

    /// Sets flags for a comparison of a linear value with one that is uniform in its row, for all lanes of one row;
    /// returns the jump that is taken if it holds in all.
    fn compare_run(&mut self, relation: Comparison, operands: &[ValueId]) -> Option<Code> {
        let &[a, b] = operands else { return None };
        let tile = self.plan.shape.tile;
        // The linear operand may be on either side.
        let (relation, a, b) = if self.plan.shape.is_linear(a) { (relation, a, b) } else { (relation.swapped(), b, a) };
        let fixed = self.plan.shape.axes[b].is_uniform();
        if !self.plan.shape.is_linear(a) || !fixed || self.plan.shape.axes[a].intersects(Axes::ROW) && tile.rows > 1 {
            return None;
        }
        let signed = self.plan.program.ty(a) == Type::I32;
        // The comparison bounds the lanes from above or from below.
        let below = match relation {
            Comparison::Lt | Comparison::Le => true,
            Comparison::Gt | Comparison::Ge => false,
            Comparison::Eq | Comparison::Ne => return None,
        };
        // Without a lane at the maximum, lanes after the first one cannot wrap and are greater than it.
        let greatest = if signed { i64::from(i32::MAX) } else { i64::from(u32::MAX) };
        if !below && self.plan.ranges.of_value(a).high >= greatest {
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
        // 64-bit arithmetic does not wrap: the last lane of a run that wraps in 32 bits is ≥ 2³², above every bound.
        let extreme =
            if below { self.emit.lea(at(Base::Reg(first), tile.width() as i32 - 1), Width::Qword) } else { first };
        self.emit.cmp(extreme, bound, Width::Qword);
        Some(comparison(relation, signed).0)
    }

    // Loops.

    fn loop_inst(&mut self, id: InstId) -> bool {
        let program = self.plan.program;
        let inst = program.inst(id);
        let divergent = !self.plan.shape.exits(id).is_uniform();
        if self.state.mask.as_ref().is_some_and(|mask| mask.maybe_empty) {
            // A loop without active lanes might never end.
            let packs = self.state.mask.clone().expect("looked at above").packs;
            self.emit.test_none(&packs);
            let (none, some) = self.emit.branch(Code::Je_rel32_64, false, false);
            return self.join_paths(id, &[none, some], |this, number| {
                if number == 0 {
                    return this.give_results(id, None);
                }
                this.state.mask = Some(Mask { packs: packs.clone(), maybe_empty: false });
                this.loop_inst(id)
            });
        }
        let body = inst.blocks[0];
        let params = program.block(body).params.clone();
        let mut entry = Regs::new();
        for (&param, &operand) in params.iter().zip(&inst.operands) {
            entry.extend(self.carried(param, operand));
        }
        let outer_variables = std::mem::take(&mut self.state.variables);
        let entry_mask = self.state.mask.clone();
        let exit = self.emit.block(self.emit.is_cold());
        let ends = self.plan.has_ends(body);
        let carries_mask = divergent || ends;
        let mut results = Regs::new();
        for &result in &inst.results {
            for class in self.plan.shape.classes(self.plan.program, result) {
                results.push(self.emit.param(exit, class));
            }
        }
        // If lanes may have ended in the loop, the mask of those that left it is a parameter, too.
        let mut exit_mask = Regs::new();
        if ends {
            exit_mask.extend(
                (0..self.plan.shape.tile.packs() as usize).map(|_| self.emit.param(exit, self.emit.mask_class())),
            );
        }
        let scope = self.values.enter_scope();
        if divergent
            && entry_mask.is_none()
            && !ends
            && let Some((slow, params)) = self.converged_loop(id, exit, &entry)
        {
            self.emit.at = slow;
            entry = params;
        }
        let together = !divergent && entry_mask.is_none() && !ends;
        if together && let Some(away) = self.precheck(id) {
            self.general_loop(id, exit, &entry, divergent, carries_mask);
            self.accesses.prechecked = None;
            self.values.leave_scope(scope);
            self.state = State::default();
            // Splits the live ranges of values live into and out of the cold loop: its register pressure is high, that
            // of the fast loop is not.
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
        self.values.leave_scope(scope);
        self.emit.at = exit;
        self.state = State { mask: entry_mask, variables: outer_variables };
        if ends {
            self.state.mask = Some(Mask { packs: exit_mask, maybe_empty: true });
        }
        self.define_all(&inst.results, &results);
        if exits_of(program, body).breaks.is_empty() {
            // The loop is only left by lanes that end.
            if self.loops.divergence == 0 && self.loops.enclosing.is_empty() {
                self.end_all();
            } else {
                self.state.deactivate(&mut self.emit, self.plan.shape.tile);
            }
            return false;
        }
        if ends {
            self.leave_if_none_active();
        }
        self.emit.is_open()
    }

    /// Registers for a loop parameter that becomes another value.
    fn carried(&mut self, param: ValueId, from: ValueId) -> Regs {
        if self.plan.shape.is_linear(param) {
            let rows = self.plan.shape.tile.rows_of(self.plan.shape.axes[param]);
            return (0..rows).map(|row| self.base(from, row)).collect();
        }
        self.regs_as(param, from)
    }

    fn define_carried(&mut self, params: &[ValueId], regs: &[Reg]) {
        let mut rest = regs;
        for &param in params {
            let (own, others) = rest.split_at(self.plan.shape.carried_classes(self.plan.program, param).len());
            rest = others;
            if self.plan.shape.is_linear(param) {
                let mut all: Regs =
                    own.iter().flat_map(|&first| self.emit.run_of(self.plan.shape.tile, first)).collect();
                all.extend_from_slice(own);
                self.define(param, &all);
            } else {
                self.define(param, own);
            }
        }
    }

    /// Emits a loop with any exits: masks for divergent ones, and staged parameters for `continue` in the middle of a trip.
    fn general_loop(&mut self, id: InstId, exit: machine::BlockId, entry: &[Reg], divergent: bool, carries_mask: bool) {
        let program = self.plan.program;
        let inst = program.inst(id);
        let body = inst.blocks[0];
        let params = program.block(body).params.clone();
        let staged = divergent && continues_early(program, body);
        // Loop-carried variables: results and mask of the lanes that have left, parameters and mask of the lanes that
        // continue.
        let mut variables = Regs::new();
        if divergent {
            for &result in &inst.results {
                variables.extend(self.emit.zeros(&self.plan.shape.classes(self.plan.program, result)));
            }
            let none = self.emit.mask_constant(false);
            if self.plan.has_ends(body) {
                variables.extend((0..self.plan.shape.tile.packs() as usize).map(|_| none));
            }
            if staged {
                for &param in &params {
                    variables.extend(self.emit.zeros(&self.plan.shape.carried_classes(self.plan.program, param)));
                }
                variables.extend((0..self.plan.shape.tile.packs() as usize).map(|_| none));
            }
        }
        let mut arguments = Regs::from_slice(entry);
        arguments.extend_from_slice(&variables);
        // In a small loop, counting in memory would take longer than a trip.
        let counts = !carries_mask && !self.plan.has_loop(body) && self.plan.polls(id);
        if counts {
            arguments.push(self.emit.load_scalar(at(Base::Context, service::BUDGET), Width::Dword));
        }
        if carries_mask {
            arguments.extend(self.state.active_packs(&mut self.emit, self.plan.shape.tile));
        }
        let outer_starts = self.accesses.localize_starts(&mut self.emit, self.plan, body);
        let header = self.emit.block(self.emit.is_cold());
        let heads: Regs = arguments.iter().map(|&reg| self.emit.param(header, self.emit.class(reg))).collect();
        self.emit.jump(header, &arguments);
        self.emit.at = header;
        let (own, rest) = heads.split_at(entry.len());
        let (variables, packs) = rest.split_at(variables.len());
        self.define_carried(&params, own);
        self.state.variables = Regs::from_slice(variables);
        if carries_mask {
            self.state.mask = Some(Mask { packs: Regs::from_slice(packs), maybe_empty: false });
        }
        let budget = counts.then(|| packs[0]);
        self.loops.enclosing.push(EnclosingLoop {
            inst: id,
            header,
            exit,
            divergent,
            staged,
            carries_mask,
            depth: 0,
            budget,
        });
        self.loops.divergence += usize::from(divergent);
        let end = self.block(body);
        debug_assert!(end.is_none(), "the body of a loop does not yield");
        if self.emit.is_open() {
            // All remaining lanes wait for the next trip, or there are none.
            self.continue_loop(None);
        }
        self.loops.divergence -= usize::from(divergent);
        self.loops.enclosing.pop();
        self.accesses.starts = outer_starts;
    }

    /// Emits a loop without masks for as long as all lanes stay in it. Returns the block entered when the first lanes
    /// leave, and the parameters of that trip, which restarts there.
    fn converged_loop(
        &mut self,
        id: InstId,
        exit: machine::BlockId,
        entry: &[Reg],
    ) -> Option<(machine::BlockId, Regs)> {
        let program = self.plan.program;
        let body = program.inst(id).blocks[0];
        let insts = &program.block(body).insts;
        let ConvergedLoop { test, leaves_when, stays } = self.plan.converged_loop(id, self.loops.version_budget)?;
        self.loops.version_budget -= self.plan.weight(body).insts;
        let params = &program.block(body).params;
        let outer_starts = self.accesses.localize_starts(&mut self.emit, self.plan, body);
        let header = self.emit.block(false);
        let heads: Regs = entry.iter().map(|&reg| self.emit.param(header, self.emit.class(reg))).collect();
        self.emit.jump(header, entry);
        self.emit.at = header;
        self.define_carried(params, &heads);
        self.loops.enclosing.push(EnclosingLoop::together(id, header, exit));
        let scope = self.values.enter_scope();
        self.insts(&insts[..test]);
        let away = self.emit.block(true);
        self.require_all(program.inst(insts[test]).operands[0], !leaves_when, away);
        self.emit.origin = origin(insts[test]);
        let may_continue = self.converged(insts[test], stays) && self.insts(&insts[test + 1..]);
        debug_assert!(!may_continue && !self.emit.is_open(), "a body ends by leaving or continuing");
        self.values.leave_scope(scope);
        self.loops.enclosing.pop();
        self.accesses.starts = outer_starts;
        Some((away, heads))
    }

    /// The active lanes leave the innermost loop.
    fn leave_loop(&mut self, id: InstId) {
        let program = self.plan.program;
        let &EnclosingLoop { inst: target, exit, divergent, depth, budget, .. } = self.loops.innermost();
        let results = program.inst(target).results.clone();
        let mut given = Regs::new();
        for (&result, &operand) in results.iter().zip(&program.inst(id).operands) {
            given.extend(self.regs_as(result, operand));
        }
        if !divergent {
            debug_assert_eq!(depth, 0);
            if let Some(budget) = budget {
                self.emit.store_scalar(at(Base::Context, service::BUDGET), budget, Width::Dword);
            }
            if self.plan.has_ends(program.inst(target).blocks[0]) {
                given.extend(self.state.active_packs(&mut self.emit, self.plan.shape.tile));
            }
            self.emit.jump(exit, &given);
            return;
        }
        let end = self.merge_into_variables(&results, &given, 0, false);
        if self.plan.has_ends(program.inst(target).blocks[0]) {
            self.merge_active_mask(end);
        }
        self.state.deactivate(&mut self.emit, self.plan.shape.tile);
        if depth == 0 && !self.loops.innermost().staged {
            // No lanes are left in the loop.
            self.exit_loop();
        }
    }

    /// Merges values of the active lanes into loop variables from `first` on; returns the next variable.
    fn merge_into_variables(&mut self, values: &[ValueId], given: &[Reg], first: usize, carried: bool) -> usize {
        let masks = self.state.active_packs(&mut self.emit, self.plan.shape.tile);
        let mut from = 0;
        for &value in values {
            let count = if carried {
                self.plan.shape.carried_classes(self.plan.program, value).len()
            } else {
                self.plan.shape.classes(self.plan.program, value).len()
            };
            let (own, place) = (&given[from..from + count], first + from..first + from + count);
            let old = Regs::from_slice(&self.state.variables[place.clone()]);
            // All lanes that bring first lanes of a linear value bring the same.
            let chosen = match carried && self.plan.shape.is_linear(value) {
                true => Regs::from_slice(own),
                false => masks::select_lanes(&mut self.emit, self.plan, value, &masks, own, &old),
            };
            self.state.variables[place].copy_from_slice(&chosen);
            from += count;
        }
        first + from
    }

    /// Adds the active lanes to the mask in the loop variables from `first` on.
    fn merge_active_mask(&mut self, first: usize) {
        let place = first..first + self.plan.shape.tile.packs() as usize;
        let (old, masks) = (
            Regs::from_slice(&self.state.variables[place.clone()]),
            self.state.active_packs(&mut self.emit, self.plan.shape.tile),
        );
        let union = masks::union(&mut self.emit, &old, &masks);
        self.state.variables[place].copy_from_slice(&union);
    }

    /// Leaves the innermost loop, which is divergent, when it has no lanes left.
    fn exit_loop(&mut self) {
        let program = self.plan.program;
        let target = self.loops.innermost().inst;
        let exit = self.loops.innermost().exit;
        let results = &program.inst(target).results;
        let mut count =
            results.iter().map(|&result| self.plan.shape.classes(self.plan.program, result).len()).sum::<usize>();
        if self.plan.has_ends(program.inst(target).blocks[0]) {
            count += self.plan.shape.tile.packs() as usize;
        }
        let arguments = Regs::from_slice(&self.state.variables[..count]);
        self.emit.jump(exit, &arguments);
    }

    /// The active lanes continue with the next trip of the innermost loop. Without an instruction, only lanes that
    /// already wait continue.
    fn continue_loop(&mut self, id: Option<InstId>) {
        let program = self.plan.program;
        let &EnclosingLoop { inst: target, header, exit, divergent, staged, carries_mask, depth, budget } =
            self.loops.innermost();
        let body = program.inst(target).blocks[0];
        let params = program.block(body).params.clone();
        let mut given: Option<Regs> = id.map(|id| {
            let operands = params.iter().zip(&program.inst(id).operands);
            operands.flat_map(|(&param, &operand)| self.carried(param, operand)).collect()
        });
        if !divergent {
            debug_assert_eq!(depth, 0);
            let mask = self.state.mask.clone();
            if let Some(mask) = mask.filter(|mask| mask.maybe_empty && carries_mask) {
                // All lanes may have ended, which only the mask shows.
                self.if_none_active(&mask.packs, |this| {
                    let mut arguments = this.yielded(target, None);
                    arguments.extend_from_slice(&mask.packs);
                    this.emit.jump(exit, &arguments);
                });
            }
            let Some(mut arguments) = given else {
                // No lane can be active here.
                self.emit.jump(self.tiles.stop, &[]);
                return;
            };
            arguments.extend(self.poll(target, budget));
            if carries_mask {
                arguments.extend(self.state.active_packs(&mut self.emit, self.plan.shape.tile));
            }
            self.emit.jump(header, &arguments);
            return;
        }
        let results: usize = program
            .inst(target)
            .results
            .iter()
            .map(|&result| self.plan.shape.classes(self.plan.program, result).len())
            .sum::<usize>();
        let ended = if self.plan.has_ends(body) { self.plan.shape.tile.packs() as usize } else { 0 };
        let staging = results + ended;
        if staged {
            if let Some(given) = &given {
                let end = self.merge_into_variables(&params, given, staging, true);
                self.merge_active_mask(end);
            }
            self.state.deactivate(&mut self.emit, self.plan.shape.tile);
            if depth > 0 {
                return;
            }
            // End of the trip: waiting lanes become active.
            let waiting = self.state.variables.len() - self.plan.shape.tile.packs() as usize;
            let packs = Regs::from_slice(&self.state.variables[waiting..]);
            given = Some(Regs::from_slice(&self.state.variables[staging..waiting]));
            let none = self.emit.mask_constant(false);
            self.state.variables[waiting..].fill(none);
            self.state.mask = Some(Mask { packs, maybe_empty: true });
        }
        debug_assert_eq!(depth, 0);
        let Some(given) = given else {
            // No lane waits.
            self.exit_loop();
            return;
        };
        let mask = self.state.mask.clone().expect("a divergent loop has a mask");
        if mask.maybe_empty {
            self.if_none_active(&mask.packs, Self::exit_loop);
        }
        self.poll(target, None);
        let mut arguments = given;
        arguments.extend_from_slice(&self.state.variables);
        arguments.extend_from_slice(&mask.packs);
        self.emit.jump(header, &arguments);
    }

    /// The active lanes end.
    fn end_lanes(&mut self) {
        if self.loops.divergence == 0 {
            self.end_all();
            return;
        }
        self.state.deactivate(&mut self.emit, self.plan.shape.tile);
        let Some(innermost) = self.loops.enclosing.last() else { return };
        if innermost.depth == 0 && innermost.divergent {
            self.continue_loop(None);
        }
    }

    /// Polls before another trip, every `trips` trips. Returns the remaining budget if it is in a register.
    pub(super) fn poll(&mut self, id: InstId, budget: Option<Reg>) -> Option<Reg> {
        if !self.plan.polls(id) {
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
        let active = self.state.active_count(&mut self.emit, self.plan.shape.tile);
        self.emit.store_scalar(at(Base::Scratch, 0), active, Width::Dword);
        self.services.call(&mut self.emit, Site::Poll { span: self.plan.program.inst(id).span });
        let stopped = self.emit.load_scalar(at(Base::Context, service::STOPPED), Width::Dword);
        self.emit.test(stopped);
        self.emit.skip_to(self.tiles.stop, Code::Jne_rel32_64);
        let renewed = left.map(|_| self.emit.load_scalar(at(Base::Context, service::BUDGET), Width::Dword));
        self.emit.jump(join, renewed.as_slice());
        self.emit.at = join;
        joined
    }
}
