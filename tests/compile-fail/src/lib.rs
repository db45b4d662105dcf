//! Compile-fail tests of `#[kernel]` and `#[derive(Record)]`: each file under `tests/fail` is refused with the message beside it.
