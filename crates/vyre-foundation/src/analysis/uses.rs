//! How often values are used.

use crate::ir::entity::SecondaryMap;
use crate::ir::{Program, ValueId};

/// The number of operands that each value is.
#[derive(Clone, Debug)]
pub struct Uses(SecondaryMap<ValueId, u32>);

impl Uses {
    /// Counts over everything that is reachable from the body.
    pub fn of(program: &Program) -> Uses {
        let mut counts = SecondaryMap::with_capacity(program.values.len(), 0);
        program.walk(|inst, _| {
            for &operand in &program.insts[inst].operands {
                counts[operand] += 1;
            }
        });
        Uses(counts)
    }

    /// How many operands a value is.
    pub fn count(&self, value: ValueId) -> u32 {
        self.0[value]
    }

    /// Whether no instruction uses a value.
    pub fn is_unused(&self, value: ValueId) -> bool {
        self.count(value) == 0
    }
}
