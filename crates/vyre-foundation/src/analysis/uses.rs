//! How often values are used.

use crate::ir::entity::Arena;
use crate::ir::{Program, ValueId};

/// The number of operands that each value is.
#[derive(Clone, Debug)]
pub struct Uses(Arena<ValueId, u32>);

impl Uses {
    /// Counts over everything that is reachable from the body.
    pub fn of(program: &Program) -> Uses {
        let mut counts = Arena::filled(program.values.len(), 0);
        program.walk(|inst, _| {
            for &operand in &program.insts[inst].operands {
                counts[operand] += 1;
            }
        });
        Uses(counts)
    }

    /// How many operands a value is.
    pub fn count(&self, value: ValueId) -> u32 {
        self.0.get(value).copied().unwrap_or(0)
    }

    /// Whether no instruction uses a value.
    pub fn is_unused(&self, value: ValueId) -> bool {
        self.count(value) == 0
    }
}
