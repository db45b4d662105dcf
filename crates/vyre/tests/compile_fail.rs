//! What cannot be a kernel, and what the compiler says to it.

#[test]
fn messages() {
    trybuild::TestCases::new().compile_fail("tests/fail/*.rs");
}
