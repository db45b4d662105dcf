//! The CPU backend passes the suite.

vyre_testkit::conformance!(vyre_cpu::Cpu::default());
