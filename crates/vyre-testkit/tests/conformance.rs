//! A wrong device fails checks of the suite, and the report tells how to reproduce the failures. One test, because a
//! check replaces the panic hook of the process.

use vyre_driver::Null;
use vyre_testkit::conformance::{Subject, checks};

/// The null device claims to have run everything, and leaves memory unchanged.
#[test]
fn a_wrong_device_fails_checks() {
    let backend = Null::default();
    let subject = Subject { backend: &backend, first_seed: 0, programs: Some(0) };
    let failure = |name: &str| {
        let check = checks().into_iter().find(|check| check.name == name).expect("it is there");
        check.run(&subject).failure
    };
    let wrong = failure("operations").expect("a failure");
    assert!(wrong.contains("expected"), "{wrong}");
    assert!(wrong.contains("--replay") && wrong.contains("//@ run --grid"), "{wrong}");
    let in_a_thread = failure("concurrent_submissions").expect("a failure");
    assert!(in_a_thread.contains("assertion") && !in_a_thread.contains("a scoped thread panicked"), "{in_a_thread}");
    assert_eq!(failure("generated_programs"), None, "no programs");
}
