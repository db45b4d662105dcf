//! Embedded programs of the repository: `FILES` has the path and the text of each example kernel and of each file test with a
//! `//@ run` line, `MEGAKERNEL_OPS` the operations of the megakernel example. The build script writes both.

include!(concat!(env!("OUT_DIR"), "/corpus.rs"));

/// Text of the example kernels in `examples/kernels/{name}.vyre`, or `None` if there is no such file.
pub fn example_kernels(name: &str) -> Option<&'static str> {
    let is_it =
        |path: &str| path.strip_prefix("examples/kernels/").and_then(|file| file.strip_suffix(".vyre")) == Some(name);
    FILES.iter().find(|(path, _)| is_it(path)).map(|(_, source)| *source)
}
