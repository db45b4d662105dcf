//! Devices of the kernel tests.

use vyre::{Device, Error};

/// Runs a check on every device of this crate.
pub(crate) fn on_devices(check: impl Fn(&Device)) {
    for name in ["reference", "cpu", "wgpu"] {
        match Device::named(name) {
            Ok(device) => check(&device),
            // A missing driver fails the tests of the backend.
            Err(Error::Driver(vyre_driver::Error::NoAdapter { .. })) => eprintln!("not run on {name}"),
            Err(error) => panic!("{name}: {error}"),
        }
    }
}
