//! Forward progress between workgroups: legality of executing them in lockstep.

use super::divergence::{Divergence, Domain};
use crate::ir::entity::SecondaryMap;
use crate::ir::ops::Kind;
use crate::ir::{InstId, MemId, Program, Space};

/// Returns true if several workgroups of a program may execute in lockstep, as lanes of one pack or tile.
///
/// In lockstep, a lane that leaves a loop waits until all lanes have left it. A workgroup that waits for another one (a
/// spin lock, a ticket, a decoupled look-back) would deadlock if both share a pack. So no loop exit may depend, by data
/// or control flow, on memory that the dispatch writes: trip counts are then the same in every interleaving. Programs
/// with workgroup memory or collective operations are excluded too, because these belong to one workgroup.
pub fn may_merge_workgroups(program: &Program) -> bool {
    let is_shared = program.memories().values().any(|memory| memory.space == Space::Workgroup);
    !is_shared
        && !program.contains(program.body(), |op| op.kind() == Kind::Collective)
        && !Divergence::of(program, &Interleavings { program, written: program.written() }).has_divergent_exit()
}

/// Divergence domain that compares the executions of one invocation under all interleavings with the rest of its
/// dispatch: a value diverges if a store or atomic of another invocation can change it.
struct Interleavings<'p> {
    program: &'p Program,
    /// Objects that the program writes.
    written: SecondaryMap<MemId, bool>,
}

impl Domain for Interleavings<'_> {
    type Fact = bool;

    const UNIFORM: bool = false;

    const ENDS_LEAVE_LOOPS: bool = true;

    fn join(a: bool, b: bool) -> bool {
        a || b
    }

    fn transfer(&self, facts: &Divergence<bool>, inst: InstId, _result: usize) -> bool {
        let inst = self.program.inst(inst);
        let own = match inst.op.kind() {
            Kind::Pure | Kind::PerInvocation | Kind::PerGroup | Kind::Effect | Kind::Control => false,
            Kind::Access => inst.op.memory().is_some_and(|memory| match self.program.memory(memory).space {
                Space::Uniform => false,
                Space::Storage(_) => self.written[memory],
                Space::Workgroup => true,
                Space::Private => facts.private(memory),
            }),
            Kind::Atomic | Kind::Collective => true,
        };
        own || Self::operands(facts, &inst.operands)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{text, validate};

    #[track_caller]
    fn check(memory: &str, body: &str, expected: bool) {
        let source = format!("program p workgroup(4) {{\n{memory}\n%g = global_index\n{body}\n}}");
        let module = text::parse(&source).unwrap_or_else(|error| panic!("{error}\n{source}"));
        let program = validate::program(module.programs.into_iter().next().unwrap()).unwrap();
        assert_eq!(may_merge_workgroups(&program), expected, "{source}");
    }

    const TURN: &str = "read_write atomic turn: [u32; 1]";

    #[test]
    fn exits_that_depend_on_written_memory_exclude_merging() {
        check(TURN, "loop {\n%t = load turn[0]\n%m = eq %t, %g\nif %m {\nbreak\n}\n}\natomic_add turn[0], 1", false);
        check(TURN, "loop {\n%t = load turn[0]\n%m = eq %t, %g\nif %m {\natomic_add turn[0], 1\nreturn\n}\n}", false);
        check(
            TURN,
            "loop {\n%t = load turn[0]\n%m = eq %t, %g\nif %m {\n} else {\ncontinue\n}\nbreak\n}\natomic_add turn[0], 1",
            false,
        );
        // The inner loop always returns, and leaves the outer one with it.
        check(
            TURN,
            "loop {\n%t = load turn[0]\n%m = eq %t, %g\nif %m {\natomic_add turn[0], 1\nloop {\nreturn\n}\n}\n}",
            false,
        );
        // The exit depends on a loop-carried value.
        check(
            TURN,
            "loop (%k = 0) {\n%d = ge %k, 5\nif %d {\nbreak\n}\n%t = load turn[0]\n%n = add %k, %t\ncontinue %n\n}\natomic_add turn[0], 1",
            false,
        );
        // The exit depends on a value chosen by control flow.
        check(
            TURN,
            "loop {\n%t = load turn[0]\n%m = eq %t, %g\n%c = if %m -> u32 {\nyield 1\n} else {\nyield 0\n}\n%d = eq %c, 1\nif %d {\nbreak\n}\n}\natomic_add turn[0], 1",
            false,
        );
        // Through a private array.
        let memory = format!("{TURN}\nprivate seen: [u32; 2]");
        check(
            &memory,
            "loop {\n%s = load seen[0]\n%m = eq %s, %g\nif %m {\nbreak\n}\n%t = load turn[0]\nstore seen[0], %t\n}\natomic_add turn[0], 1",
            false,
        );
        check(
            &memory,
            "loop {\n%s = load seen[0]\n%m = eq %s, 1\nif %m {\nbreak\n}\n%t = load turn[0]\n%u = eq %t, %g\nif %u {\nstore seen[0], 1\n}\n}\natomic_add turn[0], 1",
            false,
        );
    }

    #[test]
    fn exits_that_are_the_same_in_every_interleaving_allow_merging() {
        check(TURN, "atomic_add turn[0], %g", true);
        check("read turn: [u32; 1]", "loop {\n%t = load turn[0]\n%m = eq %t, %g\nif %m {\nbreak\n}\n}", true);
        // The result of an atomic affects the body of an iteration, not the trip count.
        check(
            TURN,
            "loop (%k = 0) {\n%d = ge %k, %g\nif %d {\nbreak\n}\n%t = atomic_add turn[0], 1\n%m = eq %t, 3\nif %m {\natomic_add turn[0], 1\n}\n%n = add %k, 1\ncontinue %n\n}",
            true,
        );
        check(
            "private seen: [u32; 2]",
            "loop {\n%s = load seen[0]\n%m = eq %s, %g\nif %m {\nbreak\n}\n%n = add %s, 1\nstore seen[0], %n\n}",
            true,
        );
    }

    #[test]
    fn workgroup_memory_and_collectives_exclude_merging() {
        check("workgroup tile: [u32; 4]", "store tile[%g], 1", false);
        check("", "workgroup_barrier", false);
    }
}
