//! Lowering of control flow. Results and loop parameters become variables: naga has no block arguments.

use naga::{
    AtomicFunction, Barrier, Block, CollectiveOperation, Expression, Statement, SubgroupOperation, SwitchCase,
    SwitchValue,
};
use vyre_foundation::analysis::{Scope, exits_of};
use vyre_foundation::ir::{BlockId, Control, InstId, Literal, Op, Terminator, Type, ValueId};

use super::build::{Expr, expr};
use super::control::{param, report};
use super::{Lowerer, Mode, counters};

/// A loop that is being lowered.
pub(super) struct Frame {
    /// Parameters, with pointers to their variables.
    params: Vec<(ValueId, Expr)>,
    /// Pointers to the results. A result that is always a parameter shares its variable.
    results: Vec<Expr>,
    /// Flag that the loop is being left, for breaks inside a switch, where naga's `break` leaves only the switch.
    done: Option<Expr>,
    /// Invocations that have ended leave the loop.
    guarded: bool,
    /// The next trip follows in the module (unrolled), so that `continue` only assigns the parameters.
    repeated: bool,
}

/// Limits of unrolling: instructions of all copies, and number of copies.
const REPEATED_INSTRUCTIONS: usize = 256;
const REPETITIONS: usize = 16;

/// Trips between two polls of the stop flag; a power of two.
const TRIPS_PER_POLL: u32 = 4096;

impl Lowerer<'_> {
    /// Lowers a block. Yielded values are stored through `results`.
    pub(super) fn block(&mut self, block: BlockId, results: &[Expr], mode: Mode) {
        let program = self.program;
        let insts = &program.block(block).insts;
        let mut guards = Vec::new();
        for (position, &id) in insts.iter().enumerate() {
            let inst = program.inst(id);
            match &inst.op {
                Op::Control(control) => {
                    self.construct(id, control, mode);
                    if mode == Mode::Guarded && self.may_end(id) && position + 1 < insts.len() {
                        let alive = self.variables.alive.expect("declared in masked programs");
                        guards.push(self.b.load(alive));
                        self.b.open();
                    }
                }
                Op::Terminator(Terminator::Yield) => self.assign(results, &inst.operands),
                Op::Terminator(Terminator::Break) => {
                    let frame = self.loops.last().expect("a break stands in a loop");
                    let targets = frame.results.clone();
                    self.assign(&targets, &inst.operands);
                    self.leave_loop();
                }
                Op::Terminator(Terminator::Continue) => {
                    let frame = self.loops.last().expect("a continue stands in a loop");
                    let targets: Vec<Expr> = frame.params.iter().map(|&(_, variable)| variable).collect();
                    let repeated = frame.repeated;
                    self.assign(&targets, &inst.operands);
                    if !repeated {
                        self.b.push(Statement::Continue);
                    }
                }
                Op::Terminator(Terminator::Return) => self.exit(mode),
                Op::Terminator(Terminator::Trap) => {
                    self.guarded_effect(mode, |lowerer| lowerer.record_trap(id));
                    self.exit(mode);
                }
                Op::Barrier(barrier) => self.workgroup_barrier(*barrier),
                Op::Broadcast => self.broadcast(inst, mode),
                Op::Subgroup(op) => self.subgroup(*op, inst, mode),
                Op::Pure(op) => self.pure(inst, *op),
                Op::PerInvocation(op) => {
                    let expr = self.per_invocation(*op);
                    self.define(inst.results[0], expr);
                }
                Op::PerGroup(op) => {
                    let expr = self.per_group(*op);
                    self.define(inst.results[0], expr);
                }
                Op::Load(at) => self.load(id, *at),
                Op::Store(at) => self.guarded_effect(mode, |lowerer| lowerer.store(id, *at)),
                Op::Atomic(op, at) => self.atomic(id, Some(*op), *at, mode),
                Op::CompareExchange(at) => self.atomic(id, None, *at, mode),
                Op::Print(text) => self.guarded_effect(mode, |lowerer| lowerer.print(inst, text)),
            }
        }
        while let Some(condition) = guards.pop() {
            let accept = self.b.close();
            self.b.open();
            self.leave_if_ended();
            let reject = self.b.close();
            self.b.push(Statement::If { condition, accept, reject });
        }
    }

    /// Stores values in variables as a parallel copy: all expressions are evaluated already, so the order of the stores is
    /// irrelevant. A loop parameter that is passed on unchanged needs no store.
    fn assign(&mut self, targets: &[Expr], values: &[ValueId]) {
        for (&target, &value) in targets.iter().zip(values) {
            if self.loops.last().is_some_and(|frame| frame.params.contains(&(value, target))) {
                continue;
            }
            let value = self.value(value);
            self.b.store(target, value);
        }
    }

    /// Ends the invocation.
    fn exit(&mut self, mode: Mode) {
        match mode {
            Mode::Free | Mode::Shared => self.b.push(Statement::Return { value: None }),
            // In a subgroup block, ended invocations continue as long as one is active: no enclosing frame is guarded.
            Mode::Guarded | Mode::Subgroup => {
                let alive = self.variables.alive.expect("declared in masked programs");
                let no = self.b.bool(false);
                self.b.store(alive, no);
                self.leave_if_ended();
            }
        }
    }

    /// Leaves the innermost loop, if only active invocations execute it.
    fn leave_if_ended(&mut self) {
        if self.loops.last().is_some_and(|frame| frame.guarded) {
            self.leave_loop();
        }
    }

    /// naga's `break`; inside a switch, which it only leaves, also sets `done`.
    fn leave_loop(&mut self) {
        if let Some(done) = self.loops.last().expect("called in loops").done {
            let yes = self.b.bool(true);
            self.b.store(done, yes);
        }
        self.b.push(Statement::Break);
    }

    /// Continues leaving the loop after a switch.
    fn propagate_break(&mut self, done: Expr) {
        let done = self.b.load(done);
        self.b.when(done, |b| b.push(Statement::Break));
    }

    /// Lowers an `if`, `switch`, `region` or `loop`, and its results.
    fn construct(&mut self, id: InstId, control: &Control, mode: Mode) {
        let program = self.program;
        let inst = program.inst(id);
        // Only loops have parameters.
        let params = self.variables_of(&program.block(inst.blocks[0]).params);
        let mut results: Vec<Expr> = Vec::new();
        for (position, &result) in inst.results.iter().enumerate() {
            let always = params.iter().find(|(param, _)| self.always_breaks_with(id, position, *param));
            results.push(match always {
                Some(&(_, variable)) => variable,
                None => self.b.scalar_variable("result", program.ty(result)),
            });
        }
        let watched = mode == Mode::Free && self.has_divergent_fuel_loop(id);
        let inner = if watched { Mode::Guarded } else { self.inner_mode(id, mode) };
        // Only active invocations, or subgroups with one, enter the construct: trips of ended invocations would count,
        // too.
        let enters_alone = mode.includes_ended() && inner == Mode::Guarded;
        let enters_subgroup = inner == Mode::Subgroup && (mode == Mode::Shared || *control == Control::Loop);
        let lives = (enters_alone || enters_subgroup).then(|| {
            let lives = match inner {
                Mode::Subgroup => self.subgroup_has_active(),
                _ => self.b.load(self.variables.alive.expect("declared in masked programs")),
            };
            self.b.open();
            lives
        });
        match control {
            Control::If => {
                let condition = self.condition(inst.operands[0], inner);
                if self.several_arms_consume_budget(id) {
                    self.arm(condition, inst.blocks[0], &results, inner);
                    self.share_fuel();
                    let otherwise = self.b.not(condition, Type::Bool);
                    self.arm(otherwise, inst.blocks[1], &results, inner);
                } else {
                    self.b.open();
                    self.block(inst.blocks[0], &results, inner);
                    let accept = self.b.close();
                    self.b.open();
                    self.block(inst.blocks[1], &results, inner);
                    let reject = self.b.close();
                    self.b.push(Statement::If { condition, accept, reject });
                }
            }
            Control::Switch(cases) if self.several_arms_consume_budget(id) => {
                let selector = self.condition(inst.operands[0], inner);
                let ty = program.ty(inst.operands[0]);
                let mut unmatched = self.b.bool(true);
                for (position, &block) in inst.blocks.iter().enumerate() {
                    let chosen = match cases.get(position) {
                        Some(&case) => {
                            let case = self.b.literal(Literal { ty, bits: u64::from(case) });
                            let chosen = self.b.eq(selector, case);
                            unmatched = expr!(self.b, and(unmatched, ne(selector, case)));
                            chosen
                        }
                        None => unmatched,
                    };
                    self.arm(chosen, block, &results, inner);
                    self.share_fuel();
                }
            }
            Control::Switch(cases) => self.switch(id, cases, &results, inner),
            Control::Region(_) => {
                self.b.open();
                self.block(inst.blocks[0], &results, inner);
                let body = self.b.close();
                self.b.push(Statement::Block(body));
            }
            Control::Loop => self.loop_inst(id, &params, results.clone(), inner),
        }
        if let Some(condition) = lives {
            let accept = self.b.close();
            self.b.push(Statement::If { condition, accept, reject: Block::new() });
        }
        if watched {
            self.return_if_stopped();
        }
        if self.consumes_budget(id) {
            self.share_fuel();
        }
        for (&result, &variable) in inst.results.iter().zip(&results) {
            let value = self.b.load(variable);
            self.define(result, value);
        }
    }

    fn variables_of(&mut self, params: &[ValueId]) -> Vec<(ValueId, Expr)> {
        let program = self.program;
        params.iter().map(|&param| (param, self.b.scalar_variable("carried", program.ty(param)))).collect()
    }

    /// Returns whether every `break` of a loop gives a result the value of a parameter.
    fn always_breaks_with(&self, id: InstId, position: usize, param: ValueId) -> bool {
        let program = self.program;
        let exits = exits_of(program, program.inst(id).blocks[0]);
        exits.breaks.iter().all(|&id| program.inst(id).operands[position] == param)
    }

    fn arm(&mut self, condition: Expr, block: BlockId, results: &[Expr], mode: Mode) {
        self.when(condition, |this| this.block(block, results, mode));
    }

    /// Condition of a construct, from an invocation that is active.
    fn condition(&mut self, value: ValueId, mode: Mode) -> Expr {
        let expr = self.value(value);
        match mode {
            Mode::Free | Mode::Guarded => expr,
            Mode::Shared => self.choice_of_workgroup(self.program.ty(value), expr),
            Mode::Subgroup => self.choice_of_subgroup(self.program.ty(value), expr),
        }
    }

    fn switch(&mut self, id: InstId, cases: &[u32], results: &[Expr], mode: Mode) {
        let program = self.program;
        let inst = program.inst(id);
        let selector = self.condition(inst.operands[0], mode);
        let signed = program.ty(inst.operands[0]) == Type::I32;
        let mut arms = Vec::new();
        for (position, &block) in inst.blocks.iter().enumerate() {
            let value = match cases.get(position) {
                Some(&case) if signed => SwitchValue::I32(case as i32),
                Some(&case) => SwitchValue::U32(case),
                None => SwitchValue::Default,
            };
            self.b.open();
            self.block(block, results, mode);
            arms.push(SwitchCase { value, body: self.b.close(), fall_through: false });
        }
        self.b.push(Statement::Switch { selector, cases: arms });
        if let Some(done) = self.loops.last().and_then(|frame| frame.done)
            && self.may_leave(id)
        {
            self.propagate_break(done);
        }
    }

    fn loop_inst(&mut self, id: InstId, params: &[(ValueId, Expr)], results: Vec<Expr>, mode: Mode) {
        let program = self.program;
        let inst = program.inst(id);
        let body = inst.blocks[0];
        let block = program.block(body);
        let variables: Vec<Expr> = params.iter().map(|&(_, variable)| variable).collect();
        self.assign(&variables, &inst.operands);
        if self.target.opaque_counters {
            for (position, &(param, variable)) in params.iter().enumerate() {
                if counters::may_wrap(program, id, position) {
                    let (start, zeros) = (self.b.load(variable), self.param(param::ZEROS));
                    let start = self.b.opaque(program.ty(param), start, zeros);
                    self.b.store(variable, start);
                }
            }
        }
        let done = self.leaves_from_switch(body).then(|| {
            let done = self.b.scalar_variable("done", Type::Bool);
            let no = self.b.bool(false);
            self.b.store(done, no);
            done
        });
        let copies = self.repetitions(id);
        // A short loop that consumes fuel pays for all its trips at once.
        let (short, takes_fuel) = (self.trips.short(id), self.takes_fuel(id));
        if let (Some(trips), true) = (short, takes_fuel) {
            self.consume_fuel(id, trips.div_ceil(copies as u32) + 1, mode);
        }
        let guarded = mode == Mode::Guarded;
        self.loops.push(Frame { params: params.to_vec(), results, done, guarded, repeated: copies > 1 });
        self.b.open();
        if short.is_none() && takes_fuel {
            if self.consumes_budget(id) && self.contains(id, &|_, inner, _| program.inst(inner).op == Control::Loop) {
                self.share_fuel();
            }
            self.consume_fuel(id, 1, mode);
        }
        // A uniform branch checks for active invocations; a loop without one must check itself.
        let asks = |inner: &InstId| {
            matches!(program.inst(*inner).op, Op::Control(Control::If | Control::Switch(_)))
                && self.is_shared(*inner, Scope::Workgroup)
        };
        if mode == Mode::Shared && !block.insts.iter().any(asks) {
            let yes = self.b.bool(true);
            self.choice_of_workgroup(Type::Bool, yes);
        }
        if mode == Mode::Subgroup {
            let lives = self.subgroup_has_active();
            let none_active = self.b.not(lives, Type::Bool);
            self.when(none_active, Self::leave_loop);
        }
        for _ in 0..copies {
            for &(param, variable) in params {
                let value = self.b.load(variable);
                self.define(param, value);
            }
            self.block(body, &[], mode);
        }
        let body = self.b.close();
        self.loops.pop();
        self.b.push(Statement::Loop { body, continuing: Block::new(), break_if: None });
    }

    /// Unroll factor of a loop.
    fn repetitions(&self, id: InstId) -> usize {
        let program = self.program;
        let body = program.inst(id).blocks[0];
        let tail = program.block(body).insts.last();
        // Only from the end of a body can the next copy be reached without a jump.
        let awkward = |_: BlockId, inner: InstId, _: bool| match program.inst(inner).op {
            Op::Terminator(Terminator::Continue) => Some(&inner) != tail,
            Op::Control(Control::Loop) => true,
            _ => false,
        };
        let may_repeat = self.target.loop_budget && self.takes_fuel(id);
        if !may_repeat || self.leaves_from_switch(body) || self.contains(id, &awkward) {
            return 1;
        }
        (REPEATED_INSTRUCTIONS / program.count_insts(body).max(1)).clamp(1, REPETITIONS)
    }

    // Fuel.

    /// Returns whether a loop is workgroup-uniform: the whole workgroup takes its trips together.
    pub(super) fn together(&self, id: InstId) -> bool {
        let body = self.program.inst(id).blocks[0];
        self.facts.as_ref().is_some_and(|facts| facts.is_converged(body, Scope::Workgroup))
    }

    /// Returns whether a loop consumes fuel.
    pub(super) fn takes_fuel(&self, id: InstId) -> bool {
        !self.free.contains(&id) && (self.target.loop_budget || self.trips.short(id).is_none())
    }

    /// Returns whether a construct consumes the loop budget of the subgroup.
    fn consumes_budget(&self, id: InstId) -> bool {
        self.target.loop_budget && self.has_fuel_loop(id)
    }

    /// Returns whether a construct is or contains a loop that consumes fuel.
    fn has_fuel_loop(&self, id: InstId) -> bool {
        let is = |id: InstId| self.program.inst(id).op == Control::Loop && self.takes_fuel(id);
        is(id) || self.contains(id, &|_, inner, _| is(inner))
    }

    /// Returns whether a workgroup-uniform construct contains divergent loops, in which single invocations may run out
    /// of fuel.
    fn has_divergent_fuel_loop(&self, id: InstId) -> bool {
        let diverges =
            |block: &BlockId| self.facts.as_ref().is_some_and(|facts| !facts.is_converged(*block, Scope::Workgroup));
        self.program.inst(id).blocks.iter().any(diverges) && self.has_fuel_loop(id)
    }

    /// Ends a construct with such a loop: the workgroup returns if one of its invocations has run out of fuel.
    fn return_if_stopped(&mut self) {
        let alive = self.variables.alive.expect("declared if an invocation may run out of fuel");
        let stopped = self.variables.stopped.expect("declared if an invocation may run out of fuel");
        let one = self.b.u32(1);
        let dead = expr!(self.b, not(load(alive), [Type::Bool]));
        self.b.when(dead, |b| b.store(stopped, one));
        self.barrier(Barrier::WORK_GROUP);
        let any_stopped = self.b.load(stopped);
        // All reads precede the next write.
        self.barrier(Barrier::WORK_GROUP);
        let ended = expr!(self.b, ne(any_stopped, 0));
        self.b.return_when(ended);
    }

    /// Returns whether several arms of a construct consume the budget. They are serialized, so that each continues with
    /// the remaining budget.
    fn several_arms_consume_budget(&self, id: InstId) -> bool {
        let program = self.program;
        let consumes_budget =
            |block: &&BlockId| program.block(**block).insts.iter().any(|&inner| self.consumes_budget(inner));
        self.target.loop_budget && program.inst(id).blocks.iter().filter(consumes_budget).count() > 1
    }

    /// Gives all invocations of a subgroup the minimum of their remaining budgets.
    fn share_fuel(&mut self) {
        let (Some(fuel), Some(_)) = (self.variables.fuel, self.target.subgroup_size) else { return };
        let argument = self.b.load(fuel);
        let ty = self.b.scalar_ty(Type::U32);
        let result = self.b.result(Expression::SubgroupOperationResult { ty });
        self.b.push(Statement::SubgroupCollectiveOperation {
            op: SubgroupOperation::Min,
            collective_op: CollectiveOperation::Reduce,
            argument,
            result,
        });
        self.b.store(fuel, result);
    }

    /// Consumes fuel for loop trips, or ends the invocation.
    fn consume_fuel(&mut self, id: InstId, trips: u32, mode: Mode) {
        let number = self.control.loops.len() as u32 + 1;
        self.control.loops.push(self.program.inst(id).span);
        // A subgroup without active invocations does not take the trips of subgroup blocks.
        let together = matches!(mode, Mode::Free | Mode::Shared) && self.together(id);
        let fuel = if together { self.variables.group_fuel } else { self.variables.fuel };
        let fuel = fuel.expect("declared if there are such loops");
        let left = self.b.load(fuel);
        let trips = self.b.u32(trips);
        let mut empty = self.b.lt(left, trips);
        if mode == Mode::Subgroup {
            let alive = self.b.load(self.variables.alive.expect("declared in masked programs"));
            empty = self.b.and(empty, alive);
        }
        self.when(empty, |this| {
            let number = this.b.u32(number);
            this.report_atomic(report::STOP, AtomicFunction::Max, number);
            this.exit(mode);
        });
        let rest = self.b.sub(left, trips);
        self.b.store(fuel, rest);
        if !together && !self.target.loop_budget {
            // Stops soon after another invocation has run out of fuel.
            let look = expr!(self.b, eq(and(left, [self.b.u32(TRIPS_PER_POLL - 1)]), 0));
            self.when(look, |this| {
                let pointer = this.report_word(report::STOP);
                let stopped = expr!(this.b, ne(load(pointer), 0));
                this.when(stopped, |this| this.exit(mode));
            });
        }
    }

    // Questions about constructs.

    /// Searches the blocks of an instruction, at any depth. `question` gets the block of an instruction, the
    /// instruction, and whether it is inside a loop below `id`.
    fn contains(&self, id: InstId, question: &dyn Fn(BlockId, InstId, bool) -> bool) -> bool {
        let program = self.program;
        let inst = program.inst(id);
        let mut pending: Vec<(BlockId, bool)> =
            inst.blocks.iter().map(|&block| (block, inst.op == Control::Loop)).collect();
        while let Some((block, in_loop)) = pending.pop() {
            for &id in &program.block(block).insts {
                if question(block, id, in_loop) {
                    return true;
                }
                let inst = program.inst(id);
                pending.extend(inst.blocks.iter().map(|&nested| (nested, in_loop || inst.op == Control::Loop)));
            }
        }
        false
    }

    /// Returns whether an invocation may end in a construct.
    fn may_end(&self, id: InstId) -> bool {
        let dies = |id: InstId| match self.program.inst(id).op {
            Op::Terminator(Terminator::Return | Terminator::Trap) => true,
            Op::Control(Control::Loop) => self.takes_fuel(id),
            _ => false,
        };
        dies(id) || self.contains(id, &|_, id, _| dies(id))
    }

    /// Returns whether a construct may leave the innermost loop around it, by a `break` or by the end of an invocation.
    fn may_leave(&self, id: InstId) -> bool {
        let breaks = |_: BlockId, id: InstId, in_loop: bool| !in_loop && self.program.inst(id).op == Terminator::Break;
        self.may_end(id) || self.contains(id, &breaks)
    }

    /// Returns whether a loop with this body may be left from inside a switch in it.
    fn leaves_from_switch(&self, body: BlockId) -> bool {
        let program = self.program;
        let mut pending = vec![body];
        while let Some(block) = pending.pop() {
            for &id in &program.block(block).insts {
                let inst = program.inst(id);
                match inst.op {
                    Op::Control(Control::Switch(_)) if self.may_leave(id) => return true,
                    Op::Control(Control::Loop) => {}
                    _ => pending.extend(&inst.blocks),
                }
            }
        }
        false
    }

    /// Execution mode of the blocks of a construct.
    fn inner_mode(&self, id: InstId, mode: Mode) -> Mode {
        match mode {
            Mode::Free | Mode::Guarded => mode,
            Mode::Shared if self.is_shared(id, Scope::Workgroup) => Mode::Shared,
            Mode::Shared | Mode::Subgroup if self.is_shared(id, Scope::Subgroup) => Mode::Subgroup,
            // Divergent constructs are executed by active invocations only.
            Mode::Shared | Mode::Subgroup => Mode::Guarded,
        }
    }

    /// Returns whether a construct in a shared block is executed by the whole workgroup, or one in a subgroup block by
    /// the whole subgroup: it contains a collective operation, or a uniform exit.
    fn is_shared(&self, id: InstId, scope: Scope) -> bool {
        let facts = self.facts.as_ref().expect("masked programs have collective operations");
        self.contains(id, &|block, inner, in_loop| {
            let together = facts.is_converged(block, scope);
            match &self.program.inst(inner).op {
                Op::Terminator(Terminator::Break | Terminator::Continue) => together && !in_loop,
                // Ended invocations of a subgroup continue until the end of the block.
                Op::Terminator(Terminator::Return | Terminator::Trap) => together && scope == Scope::Workgroup,
                op => together && op.is_collective(),
            }
        })
    }
}
