//! Contents of `.vyreb` files.
#![no_main]

libfuzzer_sys::fuzz_target!(|contents: &[u8]| {
    if let Some(module) = vyre_fuzz::decode(contents) {
        vyre_fuzz::validated(module);
    }
});
