//! The text format: what is printed reads back as the same module.

use vyre_foundation::{text, validate};

#[test]
fn examples_read_back_as_printed() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/kernels");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let source = std::fs::read_to_string(&path).unwrap();
        let module = text::parse(&source).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let printed = text::print(&module);
        assert_eq!(text::parse(&printed).as_ref(), Ok(&module), "{}", path.display());
        assert_eq!(text::print(&text::parse(&printed).unwrap()), printed, "{}", path.display());
        validate::module(module).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}
