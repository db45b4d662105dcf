//! The passes, one file each, and the one list of them.

mod canonicalize;
mod eliminate_dead_code;
mod fold_constants;
mod simplify;
mod value_numbering;

use super::Pass;

/// Every pass. Among passes of one phase that do not require each other, this is the order in which they run.
pub const ALL: &[&Pass] =
    &[&canonicalize::PASS, &fold_constants::PASS, &simplify::PASS, &value_numbering::PASS, &eliminate_dead_code::PASS];
