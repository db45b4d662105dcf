//! The CPU backend passes the suite: as it comes, on one thread and on more threads than there are cores, and with each way to
//! execute programs in turn.

use vyre_cpu::{Cpu, Execution};

vyre_testkit::conformance!(Cpu::default());

mod portable {
    use super::*;
    vyre_testkit::conformance!(forced(Execution::Portable, 1));
}

mod avx2 {
    use super::*;
    vyre_testkit::conformance!(forced(Execution::Avx2, 1));
}

mod avx512 {
    use super::*;
    vyre_testkit::conformance!(forced(Execution::Avx512, 5));
}

/// A way to execute programs, or the best there is if the processor does not have it.
fn forced(execution: Execution, threads: usize) -> Cpu {
    let execution = if execution.is_available() { execution } else { Execution::best() };
    println!("executed by {execution:?}");
    Cpu { threads: Some(threads), execution: Some(execution) }
}
