//! Sessions where the operating system gives no threads.

use std::process::Command;

use vyre_driver::{Device, Oracle};
use vyre_runtime::Error;
use vyre_runtime::megakernel::{Config, Session};

/// Set in the process that has no threads.
const WITHOUT: &str = "VYRE_TEST_WITHOUT_THREADS";

/// Runs itself again in a process whose threads would need a stack larger than the address space.
#[test]
fn a_session_without_a_thread_is_an_error() {
    if std::env::var_os(WITHOUT).is_some() {
        assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "there are threads");
        let device = Device::open(&Oracle::default()).unwrap();
        let config = Config { plain_words: 16, atomic_words: 16, slice: 16, queue: 16, ..Config::default() };
        let result = Session::new(&device, config).map(|_| ());
        assert!(matches!(result, Err(Error::NoThread { .. })), "{result:?}");
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_session_without_a_thread_is_an_error", "--test-threads=1"])
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
