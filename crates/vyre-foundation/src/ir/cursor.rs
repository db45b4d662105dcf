//! Cursor: edits the instructions of a block in one pass, in time linear in their number.

use super::entity::{BlockId, InstId};
use super::ops::Terminator;
use super::program::Program;
use super::rename::Renaming;

/// A position between two instructions of a block, which moves from its start to its end.
///
/// [`next`](Cursor::next) removes the instruction after the position, [`insert`](Cursor::insert) adds an instruction before it. While a
/// cursor exists, the block itself is empty; [`finish`](Cursor::finish) stores the edited list, including the instructions that the cursor
/// has not reached.
#[derive(Debug)]
#[must_use = "a cursor holds the instructions of its block until it is finished"]
pub struct Cursor {
    block: BlockId,
    /// Gap buffer: the instructions before the position, a gap, the instructions after it.
    insts: Vec<InstId>,
    /// End of the instructions before the position.
    before: usize,
    /// Start of the instructions after the position.
    behind: usize,
}

impl Cursor {
    /// A cursor at the start of a block.
    pub fn at_start(program: &mut Program, block: BlockId) -> Cursor {
        Cursor { block, insts: std::mem::take(&mut program.block_mut(block).insts), before: 0, behind: 0 }
    }

    /// Removes and returns the instruction after the position.
    #[expect(clippy::should_implement_trait, reason = "an iterator would borrow the cursor that the loop body edits")]
    pub fn next(&mut self) -> Option<InstId> {
        let inst = *self.insts.get(self.behind)?;
        self.behind += 1;
        Some(inst)
    }

    /// Inserts an instruction before the position.
    pub fn insert(&mut self, inst: InstId) {
        if self.before == self.behind {
            // The gap doubles, so insertions take amortized constant time.
            let gap = self.before.max(8);
            self.insts.splice(self.before..self.before, std::iter::repeat_n(inst, gap));
            self.behind += gap;
        }
        self.insts[self.before] = inst;
        self.before += 1;
    }

    /// Inserts instructions before the position, in order.
    pub fn insert_all(&mut self, insts: impl IntoIterator<Item = InstId>) {
        insts.into_iter().for_each(|inst| self.insert(inst));
    }

    /// Moves the instructions appended to the block since the cursor was made to before the position.
    pub fn insert_appended(&mut self, program: &mut Program) {
        self.insert_all(std::mem::take(&mut program.block_mut(self.block).insts));
    }

    /// Instructions before the position, to be reordered.
    pub fn before(&mut self) -> &mut [InstId] {
        &mut self.insts[..self.before]
    }

    /// Removes the instructions after the position.
    pub fn truncate(&mut self) {
        self.behind = self.insts.len();
    }

    /// Stores the instructions in the block.
    pub fn finish(mut self, program: &mut Program) {
        self.insts.drain(self.before..self.behind);
        program.block_mut(self.block).insts = self.insts;
    }
}

impl Program {
    /// Keeps the instructions of a block for which `keep` returns true. It may edit the program, but not the block.
    pub fn retain_insts(&mut self, block: BlockId, mut keep: impl FnMut(&mut Program, InstId) -> bool) {
        let mut cursor = Cursor::at_start(self, block);
        while let Some(inst) = cursor.next() {
            if keep(self, inst) {
                cursor.insert(inst);
            }
        }
        cursor.finish(self);
    }

    /// Appends each block of `second` to the block of `first` at the same position, for two instructions that always execute the same
    /// block, with nothing between them that uses their results; `first` [falls through](Program::falls_through). The results of `second`
    /// become results of `first`; the caller removes `second`.
    pub fn join_insts(&mut self, first: InstId, second: InstId) {
        let pairs = self.inst(first).blocks.clone().into_iter().zip(self.inst(second).blocks.clone());
        for (into, from) in pairs {
            let end = self.block_mut(into).insts.pop().expect("a block has a terminator");
            let yielded = self.inst(end).operands.clone();
            // In the joined block, a result of `first` is the value that it yields.
            let mut inside = Renaming::default();
            inside.replace_all(&self.inst(first).results, &yielded);
            let moved = std::mem::take(&mut self.block_mut(from).insts);
            inside.apply_nested(self, &moved);
            let last = *moved.last().expect("a block has a terminator");
            if self.inst(last).op == Terminator::Yield {
                let own = std::mem::take(&mut self.inst_mut(last).operands);
                self.inst_mut(last).operands = yielded.into_iter().chain(own).collect();
            }
            self.block_mut(into).insts.extend(moved);
        }
        self.move_results(second, first);
    }

    /// Moves the instructions of a block to another block, replacing its instructions.
    pub(crate) fn move_insts(&mut self, from: BlockId, to: BlockId) {
        self.block_mut(to).insts = std::mem::take(&mut self.block_mut(from).insts);
    }

    /// Removes and returns the instructions of a block, and its terminator.
    pub(crate) fn take_body(&mut self, block: BlockId) -> (Vec<InstId>, InstId) {
        let mut insts = std::mem::take(&mut self.block_mut(block).insts);
        let terminator = insts.pop().expect("a block has a terminator");
        (insts, terminator)
    }
}

#[cfg(test)]
mod tests {
    use super::Cursor;
    use crate::ir::entity::Entity as _;
    use crate::ir::{InstId, Program};

    fn ids(numbers: impl IntoIterator<Item = usize>) -> Vec<InstId> {
        numbers.into_iter().map(InstId::from_index).collect()
    }

    fn program(count: usize) -> Program {
        let mut program = Program::new("p", [1, 1, 1]);
        program.block_mut(program.body()).insts = ids(0..count);
        program
    }

    #[test]
    fn unreached_instructions_are_kept() {
        let mut program = program(5);
        let body = program.body();
        let mut cursor = Cursor::at_start(&mut program, body);
        assert_eq!(cursor.next(), Some(InstId::from_index(0)));
        cursor.finish(&mut program);
        assert_eq!(program.block(program.body()).insts, ids(1..5));
    }

    #[test]
    fn insertions_grow_the_gap() {
        let mut program = program(3);
        let body = program.body();
        let mut cursor = Cursor::at_start(&mut program, body);
        let mut expected = Vec::new();
        while let Some(inst) = cursor.next() {
            let new = ids((0..40).map(|number| 100 * (inst.index() + 1) + number));
            cursor.insert_all(new.iter().copied());
            expected.extend(new);
            if inst.index() != 1 {
                cursor.insert(inst);
                expected.push(inst);
            }
        }
        assert_eq!(cursor.before(), expected);
        cursor.finish(&mut program);
        assert_eq!(program.block(program.body()).insts, expected);
    }

    #[test]
    fn blocks_are_filtered_and_truncated() {
        let mut program = program(10);
        let body = program.body();
        program.retain_insts(body, |_, inst| inst.index() % 3 == 0);
        assert_eq!(program.block(program.body()).insts, ids([0, 3, 6, 9]));
        let mut cursor = Cursor::at_start(&mut program, body);
        let first = cursor.next().unwrap();
        cursor.insert(first);
        cursor.truncate();
        cursor.finish(&mut program);
        assert_eq!(program.block(program.body()).insts, ids([0]));
    }
}
