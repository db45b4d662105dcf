//! Conformance of the CPU backend: default settings, one thread and more threads than cores, each execution mode, and
//! guard pages around storage objects.

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

/// The backend with an execution mode, or the best one if the processor does not support it. Out-of-bounds accesses to
/// storage objects are memory faults.
fn forced(execution: Execution, threads: usize) -> Cpu {
    let execution = if execution.is_available() { execution } else { Execution::best() };
    println!("executed by {execution:?}");
    let guard = if cfg!(unix) { Guard::Above } else { Guard::None };
    Cpu { threads: Some(threads), execution: Some(execution), guard }
}
