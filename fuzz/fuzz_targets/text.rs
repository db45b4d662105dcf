//! `.vyre` files.
#![no_main]

libfuzzer_sys::fuzz_target!(|source: &str| {
    if let Ok(module) = vyre_foundation::text::parse(source) {
        // Invalid modules can be printed, too.
        let _ = vyre_foundation::text::print(&module);
        vyre_fuzz::validated(module);
    }
});
