//! The CPU backend passes the suite: as it comes, on one thread and on more threads than there are cores, with each way to
//! execute programs in turn, and with guard pages around storage objects.

use vyre_cpu::{Cpu, Execution, Guard};

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

#[cfg(unix)]
mod guarded_below {
    use super::*;
    vyre_testkit::conformance!(Cpu { guard: Guard::Below, ..Cpu::default() });
}

/// A way to execute programs, or the best there is if the processor does not have it. Reading or writing past the end of a storage
/// object is a memory fault.
fn forced(execution: Execution, threads: usize) -> Cpu {
    let execution = if execution.is_available() { execution } else { Execution::best() };
    println!("executed by {execution:?}");
    let guard = if cfg!(unix) { Guard::Above } else { Guard::None };
    Cpu { threads: Some(threads), execution: Some(execution), guard }
}
