//! Refusal of software drivers on systems that deny executable pages. In its own process, because the restriction is
//! permanent.

#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

use vyre_driver::{Device, DeviceKind, Error};
use vyre_wgpu::Wgpu;

#[test]
fn software_drivers_are_refused_without_exec_permission() {
    // PR_SET_MDWE with PR_MDWE_REFUSE_EXEC_GAIN: pages that were not executable never become so.
    // SAFETY: it restricts this process only, which runs no other test.
    let denied = unsafe { libc::prctl(65, 1, 0, 0, 0) } == 0;
    if !denied {
        println!("not tested: {}, Linux before 6.3", std::io::Error::last_os_error());
        return;
    }
    match Device::open(&Wgpu) {
        Ok(device) => assert_eq!(device.capabilities().kind, DeviceKind::Gpu),
        Err(Error::NoAdapter { reason, .. }) => assert!(reason.contains("denies machine code"), "{reason}"),
        Err(error) => panic!("{error}"),
    }
}
