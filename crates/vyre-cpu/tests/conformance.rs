//! The CPU backend passes the suite, on all cores, on one thread, and on more threads than there are cores.

vyre_testkit::conformance!(vyre_cpu::Cpu::default());

mod one_thread {
    vyre_testkit::conformance!(vyre_cpu::Cpu { threads: Some(1) });
}

mod many_threads {
    vyre_testkit::conformance!(vyre_cpu::Cpu { threads: Some(5) });
}
