//! Lowering of programs for every backend.
#![no_main]

libfuzzer_sys::fuzz_target!(|case: &[u8]| {
    let Some(module) = vyre_fuzz::program(case).and_then(|contents| vyre_fuzz::decode(&contents)) else { return };
    for program in vyre_fuzz::validated(module) {
        vyre_fuzz::lower(&program);
        vyre_fuzz::run(&program);
    }
});
