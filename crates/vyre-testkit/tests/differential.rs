//! Differential campaigns: a device with wrong results is detected, and a correct one passes.

use vyre_driver::{Device, Null};
use vyre_testkit::{differential, files, oracle};

/// The null device claims to have run everything, and leaves memory unchanged.
#[test]
fn wrong_device_is_detected_and_a_case_is_saved() {
    let backend = Null::default();
    let device = Device::open(&backend).unwrap();
    let finding = differential::campaign(&backend, &device, 0, &|number| number < 100).unwrap_err();
    assert!(finding.seed < 100);
    let path = finding.saved.as_ref().expect("a folder for temporary files");
    let message = finding.to_string();
    assert!(message.contains(&format!("--seed {}", finding.seed)), "{message}");
    assert!(message.contains(&path.display().to_string()), "{message}");

    let cases = files::cases(path).expect("a file test");
    assert_eq!(cases.len(), 1);
    let nodes = cases[0].program.stats().nodes;
    // At least a store, an atomic, a print or a trap, possibly with operands; and the terminator.
    assert!(nodes <= 6, "{nodes} nodes are left");
    std::fs::remove_file(path).expect("it was written above");
}

#[test]
fn correct_device_passes() {
    let backend = vyre_driver::Oracle { subgroup_size: 8 };
    let ran = differential::campaign(&backend, &oracle(8), 0, &|number| number < 200);
    assert_eq!(ran.expect("the oracle agrees with itself"), 200);
}
