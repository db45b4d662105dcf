//! Runs rustc on the cases and compares its messages.

#[test]
fn misuse_is_refused_with_the_expected_message() {
    trybuild::TestCases::new().compile_fail("tests/fail/*.rs");
}
