//! `.vyre` files.
#![no_main]

libfuzzer_sys::fuzz_target!(|source: &str| {
    if let Ok(module) = vyre_foundation::text::parse(source) {
        // A module that was read may be invalid, and still be printed.
        let _ = vyre_foundation::text::print(&module);
        vyre_fuzz::validated(module);
    }
});
