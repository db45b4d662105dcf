//! Devices in a child process after `fork`.

#![cfg(unix)]
#![allow(unsafe_code)]

use vyre_cpu::Cpu;
use vyre_driver::{Device, Error};
use vyre_foundation::ir::Element;

/// Runs a function in a child process; returns whether it returned true.
fn in_child(function: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child calls only the function and `_exit`. The allocator of the C library works in it.
    unsafe {
        match libc::fork() {
            0 => {
                // The alarm turns a hang of the child into a failure.
                libc::alarm(60);
                libc::_exit(i32::from(!function()));
            }
            child => {
                assert!(child > 0, "{}", std::io::Error::last_os_error());
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
            }
        }
    }
}

fn is_forked<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Forked { .. }))
}

#[test]
fn devices_from_before_fork_fail_in_the_child() {
    let device = Device::open(&Cpu { threads: Some(3), ..Cpu::default() }).expect("a processor");
    let buffer = device.upload(Element::U32, &[7; 1 << 20]).expect("a megabyte");
    for _ in 0..20 {
        // Some forks come while the device's threads work.
        let download = buffer.download().expect("begins");
        assert!(in_child(|| {
            let refused =
                is_forked(&buffer.read()) && is_forked(&buffer.write(&[1; 1 << 20])) && is_forked(&download.wait());
            drop(buffer.clone());
            refused
        }));
    }
    assert!(in_child(move || {
        drop(buffer);
        drop(device);
        true
    }));
}

#[test]
fn children_can_open_devices() {
    let _parent = Device::open(&Cpu { threads: Some(2), ..Cpu::default() }).expect("a processor");
    assert!(in_child(|| {
        let device = Device::open(&Cpu { threads: Some(2), ..Cpu::default() }).expect("a processor");
        let buffer = device.upload(Element::U32, &[7; 1 << 20]).expect("a megabyte");
        buffer.read().expect("a megabyte") == [7; 1 << 20]
    }));
}
