//! Portable fallback on systems that deny executable pages. In its own process, because the restriction is permanent.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(unsafe_code)]

use vyre_cpu::{Cpu, Execution};
use vyre_driver::Device;
use vyre_foundation::inputs::Inputs;
use vyre_foundation::launch::{Grid, Limits};
use vyre_foundation::{text, validate};

const DOUBLE: &str = "program double workgroup(64) {
    read_write x: [u32]
    %i = global_index
    %v = load x[%i]
    %w = add %v, %v
    store x[%i], %w
}";

#[test]
fn programs_fall_back_without_exec_permission() {
    let program = validate::program(text::parse(DOUBLE).unwrap().programs.swap_remove(0)).unwrap();
    let device = Device::open(&Cpu::default()).expect("a processor");
    assert_eq!(device.compile(&program).unwrap().compilation().fallback, None);
    if Execution::best() == Execution::Portable {
        println!("not tested: this processor has no machine code to be denied");
        return;
    }
    // PR_SET_MDWE with PR_MDWE_REFUSE_EXEC_GAIN: pages that were not executable never become so.
    // SAFETY: it restricts this process only, which runs no other test.
    let denied = unsafe { libc::prctl(65, 1, 0, 0, 0) } == 0;
    if !denied {
        println!("not tested: {}, Linux before 6.3", std::io::Error::last_os_error());
        return;
    }
    // A new device, which shares no compiled kernels with the other one.
    let device = Device::open(&Cpu::default()).expect("a processor");
    let kernel = device.compile(&program).unwrap();
    let fallback = kernel.compilation().fallback.clone().expect("a reason");
    assert!(fallback.starts_with("no machine code: cannot protect"), "{fallback}");
    let mut inputs = Inputs::default();
    inputs.notation(&program, "x", "iota:1000").unwrap();
    device.execute(&program, Grid::Elements([1000, 1, 1]), &mut inputs, Limits::default()).expect("it runs");
    let expected: Vec<u8> = (0..1000u32).flat_map(|i| (2 * i).to_le_bytes()).collect();
    assert_eq!(inputs.contents("x").unwrap(), expected);
}
