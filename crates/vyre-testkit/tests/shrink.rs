//! Shrinker tests: reduced programs still satisfy the predicate.

use vyre_foundation::ir::{Control, Pure};
use vyre_foundation::validate;
use vyre_testkit::{Features, generate, shrink};

#[test]
fn shrunk_programs_satisfy_the_predicate() {
    let features = Features { size: 120, ..Features::default() };
    let mut shrunk = 0;
    for seed in 0..120 {
        let program = validate::program(generate(seed, &features).program).unwrap();
        // A predicate that requires a multiplication inside a loop.
        let mut holds = |program: &vyre_foundation::Validated<vyre_foundation::ir::Program>| {
            let mut found = false;
            program.walk(|id, _| {
                let inst = program.inst(id);
                let nested = |block: &vyre_foundation::ir::BlockId| {
                    program.block(*block).insts.iter().any(|&inst| program.inst(inst).op == Pure::Mul)
                };
                found |= inst.op == Control::Loop && inst.blocks.iter().any(nested);
            });
            found
        };
        if !holds(&program) {
            continue;
        }
        let small = shrink(&program, &mut holds);
        assert!(holds(&small));
        let stats = small.stats();
        // The loop with its terminator, the multiplication, and the program's terminator.
        assert!(stats.nodes <= 5, "seed {seed}: {} nodes are left of {}", stats.nodes, program.stats().nodes);
        assert!(small.memories().is_empty());
        shrunk += 1;
    }
    assert!(shrunk >= 5, "only {shrunk} programs had such a loop");
}
