//! Embedded programs of the repository: `FILES` has the path and the text of each example kernel and of each file test with a
//! `//@ run` line, `MEGAKERNEL_OPS` the operations of the megakernel example. The build script writes both.

include!(concat!(env!("OUT_DIR"), "/corpus.rs"));
