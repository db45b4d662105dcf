//! Use counts of values.

use crate::ir::entity::SecondaryMap;
use crate::ir::{Program, ValueId};

/// Number of uses of each value.
#[derive(Clone, Debug)]
pub struct Uses(SecondaryMap<ValueId, u32>);

impl Uses {
    /// Counts the uses that are reachable from the body.
    pub fn of(program: &Program) -> Uses {
        let mut counts = SecondaryMap::with_capacity(program.values().len(), 0);
        program.walk(|inst, _| {
            for &operand in &program.inst(inst).operands {
                counts[operand] += 1;
            }
        });
        Uses(counts)
    }

    /// Number of uses of a value.
    pub fn count(&self, value: ValueId) -> u32 {
        self.0[value]
    }

    /// Returns true if no instruction uses a value.
    pub fn is_unused(&self, value: ValueId) -> bool {
        self.count(value) == 0
    }
}
