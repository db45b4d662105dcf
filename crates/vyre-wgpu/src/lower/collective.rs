//! Collective operations of workgroups and subgroups.
//!
//! Subgroup operations are built from ballots and shuffles of words, in the order that the op table defines. So they
//! agree with the oracle for every type, floats included, whatever a driver's own reductions do with NaNs.

use naga::{Barrier, BuiltIn, CollectiveOperation, Expression, GatherMode, Statement, SubgroupOperation, VectorSize};
use vyre_foundation::ir::ops::{self, Combined, Combiner, Exchange, Pure, ShuffleMode, Subgroup, Vote};
use vyre_foundation::ir::{Inst, Literal, Type};

use super::build::{Expr, expr};
use super::{Lowerer, Mode};

impl Lowerer<'_> {
    pub(super) fn workgroup_barrier(&mut self, barrier: ops::Barrier) {
        match barrier {
            ops::Barrier::Workgroup => self.barrier(Barrier::WORK_GROUP),
            ops::Barrier::Storage => self.barrier(Barrier::STORAGE),
        }
    }

    pub(super) fn broadcast(&mut self, inst: &Inst, mode: Mode) {
        let ty = self.program.ty(inst.operands[0]);
        let value = self.value(inst.operands[0]);
        let words = self.words(ty, value);
        let words = self.broadcast_words(&words, mode == Mode::Shared);
        let value = self.join_words(ty, &words);
        self.define(inst.results[0], value);
    }

    pub(super) fn barrier(&mut self, kinds: Barrier) {
        self.b.push(Statement::ControlBarrier(kinds));
    }

    /// Words of invocation 0, broadcast through workgroup memory; zeros if `masked` and it has ended.
    pub(super) fn broadcast_words(&mut self, words: &[Expr], masked: bool) -> Vec<Expr> {
        let local = self.builtin(BuiltIn::LocalInvocationIndex);
        let first = expr!(self.b, eq(local, 0));
        let mut places = Vec::new();
        for position in 0..words.len() {
            if self.broadcast.len() == position {
                let variable = self.workgroup_variable("broadcast", Type::U32, false);
                self.broadcast.push(variable);
            }
            places.push(self.broadcast[position]);
        }
        let mut given = words.to_vec();
        if let (true, Some(alive)) = (masked, self.variables.alive) {
            let alive = self.b.load(alive);
            given = given.into_iter().map(|word| expr!(self.b, select(alive, word, 0))).collect();
        }
        self.b.when(first, |b| {
            for (&place, &word) in places.iter().zip(&given) {
                b.store(place, word);
            }
        });
        self.barrier(Barrier::WORK_GROUP | Barrier::STORAGE);
        let words = places.into_iter().map(|place| self.b.load(place)).collect();
        // All reads precede the writes of the next broadcast.
        self.barrier(Barrier::WORK_GROUP);
        words
    }

    /// Passes a value on which the active invocations agree to all of the workgroup, which returns if none is active.
    pub(super) fn choice_of_workgroup(&mut self, ty: Type, value: Expr) -> Expr {
        let alive = self.variables.alive.expect("declared in masked programs");
        let any_active = self.variables.any_active.expect("declared in masked programs");
        let choice = self.variables.choice.expect("declared in masked programs");
        let word = self.words(ty, value)[0];
        let local = self.builtin(BuiltIn::LocalInvocationIndex);
        let (zero, one) = (self.b.u32(0), self.b.u32(1));
        let first = self.b.eq(local, zero);
        self.b.when(first, |b| b.store(any_active, zero));
        self.barrier(Barrier::WORK_GROUP);
        let alive = self.b.load(alive);
        self.b.when(alive, |b| {
            b.store(any_active, one);
            b.store(choice, word);
        });
        self.barrier(Barrier::WORK_GROUP);
        let lives = self.b.load(any_active);
        let chosen = self.b.load(choice);
        self.barrier(Barrier::WORK_GROUP);
        let none_active = self.b.eq(lives, zero);
        self.b.return_when(none_active);
        self.join_words(ty, &[chosen])
    }

    /// Passes a value on which the active invocations of a subgroup agree to all of the subgroup; 0 if none is active.
    pub(super) fn choice_of_subgroup(&mut self, ty: Type, value: Expr) -> Expr {
        let alive = self.b.load(self.variables.alive.expect("declared in masked programs"));
        let word = self.words(ty, value)[0];
        let argument = expr!(self.b, select(alive, word, 0));
        let result_ty = self.b.scalar_ty(Type::U32);
        let result = self.b.result(Expression::SubgroupOperationResult { ty: result_ty });
        self.b.push(Statement::SubgroupCollectiveOperation {
            op: SubgroupOperation::Or,
            collective_op: CollectiveOperation::Reduce,
            argument,
            result,
        });
        self.join_words(ty, &[result])
    }

    /// Tests whether an invocation of the subgroup is active.
    pub(super) fn subgroup_has_active(&mut self) -> Expr {
        let yes = self.b.bool(true);
        self.choice_of_subgroup(Type::Bool, yes)
    }

    // Subgroups.

    /// Ballot: one bit for each lane whose condition is true.
    fn ballot(&mut self, condition: Expr) -> Expr {
        // naga requires the result type in the module.
        self.b.ty(naga::TypeInner::Vector { size: VectorSize::Quad, scalar: naga::Scalar::U32 });
        let result = self.b.result(Expression::SubgroupBallotResult);
        self.b.push(Statement::SubgroupBallot { result, predicate: Some(condition) });
        result
    }

    /// Tests the bit of a lane, below 128, in a ballot.
    fn ballot_bit(&mut self, ballot: Expr, lane: Expr) -> Expr {
        let word = expr!(self.b, at(ballot, shr(lane, 5)));
        expr!(self.b, ne(and(shr(word, and(lane, 31)), 1), 0))
    }

    /// Reads the value of another lane, which must exist.
    fn shuffle(&mut self, ty: Type, value: Expr, lane: Expr) -> Expr {
        if ty == Type::F16 {
            let wide = self.b.resize(value, Type::F32);
            let wide = self.shuffle(Type::F32, wide, lane);
            return self.b.resize(wide, Type::F16);
        }
        let words = self.words(ty, value);
        let word_ty = self.b.scalar_ty(Type::U32);
        let mut shuffled = Vec::new();
        for argument in words {
            let result = self.b.result(Expression::SubgroupOperationResult { ty: word_ty });
            self.b.push(Statement::SubgroupGather { mode: GatherMode::Shuffle(lane), argument, result });
            shuffled.push(result);
        }
        self.join_words(ty, &shuffled)
    }

    pub(super) fn subgroup(&mut self, op: Subgroup, inst: &Inst, mode: Mode) {
        let ty = self.program.ty(inst.operands[0]);
        let value = self.value(inst.operands[0]);
        let alive = match (mode, self.variables.alive) {
            (Mode::Shared | Mode::Subgroup, Some(alive)) => self.b.load(alive),
            _ => self.b.bool(true),
        };
        match op.exchange() {
            Exchange::Ballot => {
                let condition = self.b.and(alive, value);
                let ballot = self.ballot(condition);
                for (position, &result) in inst.results.iter().enumerate() {
                    let word = self.b.field(ballot, position as u32);
                    self.define(result, word);
                }
            }
            Exchange::Shuffle(mode) => {
                let present = self.ballot(alive);
                let operand = self.value(inst.operands[1]);
                let (exists, lane) = self.source_lane(mode, operand);
                let lane = expr!(self.b, select(exists, lane, 0));
                let there = self.ballot_bit(present, lane);
                let there = self.b.and(exists, there);
                let taken = self.shuffle(ty, value, lane);
                let result = expr!(self.b, select(there, taken, zero(ty)));
                self.define(inst.results[0], result);
            }
            Exchange::First => {
                let present = self.ballot(alive);
                let zero = self.b.u32(0);
                let first = self.set_bit(present, zero);
                // If no lane is active, the result is irrelevant, but the lane must exist.
                let own = self.builtin(BuiltIn::SubgroupInvocationId);
                let there = self.ballot_bit(present, first);
                let first = self.b.select(there, first, own);
                let result = self.shuffle(ty, value, first);
                self.define(inst.results[0], result);
            }
            Exchange::Compact => {
                let keep = self.value(inst.operands[1]);
                let kept = expr!(self.b, and(alive, keep));
                let kept = self.ballot(kept);
                let count = self.ones(kept);
                let lane = self.builtin(BuiltIn::SubgroupInvocationId);
                let filled = self.b.lt(lane, count);
                let source = self.set_bit(kept, lane);
                let source = self.b.select(filled, source, lane);
                let taken = self.shuffle(ty, value, source);
                let result = expr!(self.b, select(filled, taken, zero(ty)));
                self.define(inst.results[0], result);
                self.define(inst.results[1], count);
            }
            Exchange::Combine(op, Combined::All)
                if ty == Type::Bool
                    && let Some(vote) = op.vote() =>
            {
                self.vote(inst, vote, value, alive);
            }
            Exchange::Combine(op, Combined::All) => self.reduce(inst, op, ty, value, alive),
            Exchange::Combine(op, Combined::Inclusive) => self.scan(inst, op, ty, value, alive, false),
            Exchange::Combine(op, Combined::Exclusive) => self.scan(inst, op, ty, value, alive, true),
        }
    }

    /// Source lane of a shuffle, and whether it is within the subgroup.
    fn source_lane(&mut self, mode: ShuffleMode, operand: Expr) -> (Expr, Expr) {
        let size = self.builtin(BuiltIn::SubgroupSize);
        let own = self.builtin(BuiltIn::SubgroupInvocationId);
        match mode {
            ShuffleMode::Lane => (self.b.lt(operand, size), operand),
            ShuffleMode::Up => (self.b.le(operand, own), self.b.sub(own, operand)),
            ShuffleMode::Down => {
                // The distance is compared as well: the sum may wrap.
                let lane = self.b.add(own, operand);
                (expr!(self.b, and(lt(operand, size), lt(lane, size))), lane)
            }
            ShuffleMode::Xor => {
                let lane = self.b.xor(own, operand);
                (self.b.lt(lane, size), lane)
            }
        }
    }

    /// Words of a ballot that cover the lanes of a subgroup.
    fn ballot_words(&mut self, ballot: Expr) -> Vec<Expr> {
        let lanes = self.target.subgroup_size.unwrap_or(128);
        (0..lanes.div_ceil(32)).map(|word| self.b.field(ballot, word)).collect()
    }

    /// Population count of a ballot.
    fn ones(&mut self, ballot: Expr) -> Expr {
        let words = self.ballot_words(ballot);
        let counts: Vec<Expr> = words.into_iter().map(|word| self.count_ones(word)).collect();
        counts[1..].iter().fold(counts[0], |total, &count| self.b.add(total, count))
    }

    fn count_ones(&mut self, word: Expr) -> Expr {
        self.b.pure(Pure::CountOnes, Type::U32, Type::U32, &[word])
    }

    /// Position of the `n`-th set bit in a ballot, counted from 0, by binary search over prefix counts. If there are
    /// fewer, some number below 128.
    fn set_bit(&mut self, ballot: Expr, n: Expr) -> Expr {
        let words = self.ballot_words(ballot);
        // Selects the word with the bit, and the bits to skip in it.
        let (mut word, mut rest, mut at) = (words[0], n, self.b.u32(0));
        let mut passed = n;
        for (position, pair) in words.windows(2).enumerate() {
            let count = self.count_ones(pair[0]);
            // Words after the selected one are ignored.
            let here = expr!(self.b, eq(at, [self.b.u32(32 * position as u32)]));
            let goes_on = expr!(self.b, and(here, ge(passed, count)));
            passed = expr!(self.b, select(goes_on, sub(passed, count), passed));
            word = self.b.select(goes_on, pair[1], word);
            at = expr!(self.b, select(goes_on, [self.b.u32(32 * (position as u32 + 1))], at));
            rest = passed;
        }
        let mut bits = word;
        for width in [16, 8, 4, 2, 1] {
            let low = expr!(self.b, and(bits, [self.b.u32((1 << width) - 1)]));
            let count = self.count_ones(low);
            let above = self.b.ge(rest, count);
            rest = expr!(self.b, select(above, sub(rest, count), rest));
            at = expr!(self.b, select(above, add(at, [self.b.u32(width)]), at));
            bits = expr!(self.b, select(above, shr(bits, [self.b.u32(width)]), bits));
        }
        at
    }

    /// Reduces bools by a ballot.
    fn vote(&mut self, inst: &Inst, vote: Vote, value: Expr, alive: Expr) {
        let counts = match vote {
            Vote::All => expr!(self.b, and(alive, not(value, [Type::Bool]))),
            Vote::Any | Vote::Odd => self.b.and(alive, value),
        };
        let ballot = self.ballot(counts);
        let words = self.ballot_words(ballot);
        let result = match vote {
            Vote::All => {
                let objection = self.any(&words);
                expr!(self.b, eq(objection, 0))
            }
            Vote::Any => {
                let any = self.any(&words);
                expr!(self.b, ne(any, 0))
            }
            Vote::Odd => expr!(self.b, ne(and([self.ones(ballot)], 1), 0)),
        };
        self.define(inst.results[0], result);
    }

    /// Bitwise OR of words.
    fn any(&mut self, words: &[Expr]) -> Expr {
        words[1..].iter().fold(words[0], |any, &word| self.b.or(any, word))
    }

    /// Identity element, for lanes that do not participate.
    fn identity(&mut self, op: Combiner, ty: Type) -> Expr {
        self.b.literal(Literal { ty, bits: op.identity(ty) })
    }

    /// Runs a step for each power of two below the subgroup size. If the size is unknown, runs all steps that may be
    /// needed, and selects the results of those below the size.
    fn steps(&mut self, descending: bool, mut value: Expr, mut step: impl FnMut(&mut Self, u32, Expr) -> Expr) -> Expr {
        let mut distances: Vec<u32> = (0..7).map(|power| 1 << power).collect();
        if let Some(size) = self.target.subgroup_size {
            distances.retain(|&distance| distance < size);
        }
        if descending {
            distances.reverse();
        }
        for distance in distances {
            let next = step(self, distance, value);
            value = if self.target.subgroup_size.is_some() {
                next
            } else {
                let size = self.builtin(BuiltIn::SubgroupSize);
                expr!(self.b, select(lt([self.b.u32(distance)], size), next, value))
            };
        }
        value
    }

    /// Tree reduction over halves of the subgroup, then a broadcast of lane 0.
    fn reduce(&mut self, inst: &Inst, op: Combiner, ty: Type, value: Expr, alive: Expr) {
        let identity = self.identity(op, ty);
        let yes = self.b.bool(true);
        let present = self.ballot(yes);
        let lane = self.builtin(BuiltIn::SubgroupInvocationId);
        let start = self.b.select(alive, value, identity);
        let combined = self.steps(true, start, |lowerer, half, value| {
            let other = expr!(lowerer.b, and(add(lane, [lowerer.b.u32(half)]), 127));
            let there = lowerer.ballot_bit(present, other);
            let partner = lowerer.b.select(there, other, lane);
            let theirs = lowerer.shuffle(ty, value, partner);
            let identity = lowerer.identity(op, ty);
            let theirs = lowerer.b.select(there, theirs, identity);
            lowerer.b.pure(op.op(), ty, ty, &[value, theirs])
        });
        let zero = self.b.u32(0);
        let result = self.shuffle(ty, combined, zero);
        self.define(inst.results[0], result);
    }

    /// Inclusive scan in log₂(size) steps. The exclusive scan is the inclusive one of the previous lane.
    fn scan(&mut self, inst: &Inst, op: Combiner, ty: Type, value: Expr, alive: Expr, exclusive: bool) {
        let identity = self.identity(op, ty);
        let lane = self.builtin(BuiltIn::SubgroupInvocationId);
        let start = self.b.select(alive, value, identity);
        let take = |lowerer: &mut Self, distance: u32, value: Expr| {
            let distance = lowerer.b.u32(distance);
            let there = lowerer.b.ge(lane, distance);
            let partner = expr!(lowerer.b, select(there, sub(lane, distance), lane));
            (there, lowerer.shuffle(ty, value, partner))
        };
        let mut result = self.steps(false, start, |lowerer, distance, value| {
            let (there, theirs) = take(lowerer, distance, value);
            let combined = lowerer.b.pure(op.op(), ty, ty, &[theirs, value]);
            lowerer.b.select(there, combined, value)
        });
        if exclusive {
            let (there, theirs) = take(self, 1, result);
            let first = if op == Combiner::Mul { identity } else { self.b.zero(ty) };
            result = self.b.select(there, theirs, first);
        }
        self.define(inst.results[0], result);
    }
}
