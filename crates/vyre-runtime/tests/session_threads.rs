//! Sessions in a process that cannot create threads.

use std::process::Command;

use vyre_driver::{Device, Oracle};
use vyre_runtime::Error;
use vyre_runtime::megakernel::{Config, Session};

/// Environment variable of the child process that cannot create threads.
const WITHOUT: &str = "VYRE_TEST_WITHOUT_THREADS";

/// Re-executes itself in a process whose thread stacks exceed the address space.
#[test]
fn a_failed_thread_creation_is_an_error() {
    if std::env::var_os(WITHOUT).is_some() {
        assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "thread creation fails");
        let device = Device::open(&Oracle::default()).unwrap();
        let config = Config { plain_words: 16, atomic_words: 16, slice: 16, queue: 16, ..Config::default() };
        let result = Session::new(&device, config).map(|_| ());
        assert!(matches!(result, Err(Error::NoThread { .. })), "{result:?}");
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_failed_thread_creation_is_an_error", "--test-threads=1"])
        .env(WITHOUT, "1")
        .env("RUST_MIN_STACK", (1u64 << 50).to_string())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
