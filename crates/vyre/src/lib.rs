//! GPU kernels as Rust functions: written once, run on any GPU or on the CPU, with the same results.
//!
//! ```
//! use vyre::{Device, kernel};
//!
//! #[kernel(workgroup = 256)]
//! fn saxpy(a: f32, x: &[f32], y: &mut [f32]) {
//!     let i = global_index();
//!     if i < y.len() {
//!         y[i] += a * x[i];
//!     }
//! }
//!
//! # fn main() -> Result<(), vyre::Error> {
//! let device = Device::auto()?;
//! let x = device.upload(&[1.0, 2.0, 3.0])?;
//! let mut y = device.upload(&[10.0, 20.0, 30.0])?;
//! saxpy(2.0, &x, &mut y).run(&device, 3)?;
//! assert_eq!(y.download()?, [12.0, 24.0, 36.0]);
//! # Ok(())
//! # }
//! ```
//!
//! `saxpy` is now a function that takes the kernel's arguments, with a [`Buffer`] for each slice, and returns a [`Launch`]. rustc
//! checks types and borrows: a written buffer is borrowed exclusively. A kernel is compiled on its first launch on a device.
//! For unit tests, `saxpy::host(3, 2.0, &x, &mut y)` runs the same body as plain Rust, on slices. Kernels with barriers or subgroup
//! operations, also in functions that they call, have no `host`.
//!
//! The terms of this documentation (invocation, workgroup, subgroup, dispatch, launch, …) are defined in the book's
//! [glossary](https://github.com/vyre-project/vyre/blob/main/docs/src/glossary.md).
//!
//! # Features
//!
//! | feature | default | provides |
//! |---|---|---|
//! | `cpu` | yes | the device `cpu`: machine code on x86-64 Linux and macOS, a portable executor elsewhere |
//! | `wgpu` | yes | the device `wgpu`: GPUs through Vulkan, Metal and DirectX 12 |
//! | `reference` | no | the device `reference`: the oracle, an interpreter that defines the semantics of programs, for tests |
//! | `gz` | no | graph files compressed with gzip |
//!
//! Features are additive. The public items of this crate follow semantic versioning; the minimum supported Rust version is
//! `rust-version` in its manifest, and changes only with a minor version.
//!
//! # Supported Rust
//!
//! - Parameters: scalars, `&[T]`, `&mut [T]` and `&[Atomic<T>]`. `usize` is a 32-bit index on the device. Slice elements may also be
//!   integers of 8 and 16 bits, with a cast at each load and store (`x[i] as u32`, `y[i] = sum as u8`), and [records](#records).
//! - Statements and expressions: `let`, `let mut`, arithmetic, comparisons, `&&`, `||`, casts, assignments, `if` and `match` on
//!   integers (also as expressions), `while`, `loop`, `for i in a..b`, `for i in (a..b).step_by(n)`, `break`, `continue`, `return`, loop
//!   labels, and tuples that are destructured at once: `let (a, b) = if c { (1, 2) } else { (3, 4) };`.
//! - Local arrays, `let mut a: [f32; 16] = [0.0; 16];`, and arrays in workgroup memory, `#[shared] let tile: [f32; 256];`.
//! - The functions of [`host`]: invocation ids such as `global_index()` and `global_id().x`, barriers, subgroup operations, wide accesses,
//!   `trap(code)`; and `print!`, whose lines are in the [`Report`].
//! - Methods of numbers such as `sqrt`, `mul_add`, `ln`, `powf`, `clamp` and `to_bits`, with the same bits on all devices with exact
//!   floats; and those of the traits in [`host`], such as `dot4_i8`, `pack_unorm8` and `frexp_fraction`.
//! - Calls of functions marked `#[kernel(inline)]` (without the attribute, rustc reports `expected type, found function`), type
//!   parameters bounded by [`Number`], and const parameters.
//! - Labeled blocks, `'scale: { … }`: each becomes a region of that name in the program, which reports refer to.
//!
//! Everything else is a compile error that shows what to write instead.
//!
//! # Records
//!
//! Elements of slices and buffers can be structs. Fields are numbers or arrays of numbers, either all of one type or all of 32 bits.
//!
//! ```
//! use vyre::{Device, Record, kernel};
//!
//! #[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable, Record)]
//! #[repr(C)]
//! struct Particle {
//!     position: [f32; 2],
//!     speed: f32,
//!     age: u32,
//! }
//!
//! #[kernel(workgroup = 64)]
//! fn advance(particles: &mut [Particle]) {
//!     let i = global_index();
//!     if i < particles.len() {
//!         particles[i].age += 1;
//!         let Particle { position: [x, y], speed, age } = particles[i];
//!         particles[i] = Particle { position: [x + speed, y], speed: speed * 0.5, age };
//!     }
//! }
//!
//! # fn main() -> Result<(), vyre::Error> {
//! let device = Device::auto()?;
//! let mut particles = device.upload(&[Particle { position: [1.0, 2.0], speed: 4.0, age: 0 }])?;
//! advance(&mut particles).run(&device, 1)?;
//! assert_eq!(particles.download()?, [Particle { position: [5.0, 2.0], speed: 2.0, age: 1 }]);
//! # Ok(())
//! # }
//! ```
//!
//! A pattern without `..` loads the whole struct and a struct expression stores it, with up to four fields per access.
//!
//! # Semantics
//!
//! There is no undefined behaviour on a device. Integers wrap, `x / 0` is `x`, `x % 0` is 0, an out-of-bounds load returns 0, an
//! out-of-bounds store is dropped, and float-to-integer casts saturate like `as`. Plain Rust panics on overflow, division by zero and
//! out-of-bounds accesses, and so does `host`. A `step_by` that passes the end of its type wraps, and so does the byte offset of a record.
//!
//! A failed launch returns an [`Error`] with the source line: of the `trap`, or of the loop that exceeded its [`Limits`].
//! [`Launch::sanitize`] reports data races and out-of-bounds accesses, also with their lines.
//!
//! # Inspection
//!
//! A kernel prints its program and the code that devices execute. Values keep the names of the Rust variables.
//!
//! ```
//! use vyre::{Error, kernel};
//!
//! #[kernel(workgroup = 64)]
//! fn scale(a: f32, y: &mut [f32]) {
//!     let i = global_index();
//!     y[i] = a * y[i];
//! }
//!
//! # fn main() -> Result<(), vyre::Error> {
//! assert!(scale::text()?.contains("%i = global_index"));
//! # #[cfg(feature = "wgpu")]
//! assert!(scale::wgsl()?.contains("@workgroup_size(64, 1, 1)"));
//! match scale::asm() {
//!     Ok(code) => assert!(code.contains("vmulps")),
//!     // There is a code generator for AVX2 and AVX-512.
//!     Err(error) => assert!(matches!(error, Error::NoMachineCode { .. } | Error::MissingFeature { .. })),
//! }
//! # let page = std::env::temp_dir().join(format!("vyre-scale-{}.html", std::process::id()));
//! # let page = page.as_path();
//! scale::explain_html(page)?; // For example "scale.html", for a browser.
//! # std::fs::remove_file(page).unwrap();
//! # Ok(())
//! # }
//! ```
//!
//! `text` returns the `.vyre` text that the command `vyre` reads. `wgsl` needs the feature `wgpu`, and `asm` needs `cpu`. `explain_html`
//! writes the page of `vyre explain --html`: the source, the program after each pass with the reason for the pass, the cost estimate, and
//! the emitted code. Each instance of a generic kernel has these functions: `dilate::<i32, 2>::text()`. [`emit`] and [`explain`] do the
//! same for programs made with the builder.
//!
//! # Standard kernels
//!
//! [`kernels`]: maps, reductions, scans, compaction, histograms, sorts, matrix products, random numbers.
//!
//! # Pipelines
//!
//! A [`Pipeline`] records a sequence of launches, plans it once, fuses launches where that is legal, and runs any number of times.
//!
//! # Megakernels
//!
//! A [`megakernel::Session`] drains a queue of thousands of small work items in few launches.
//!
//! # Graphs
//!
//! [`graph`] has breadth-first search, shortest paths, PageRank, connected components and triangle counting. Other algorithms are
//! frontier steps of [`frontier`]: a function builds the part of the kernel that visits one edge.
//!
//! ```
//! use vyre::frontier::{Config, Engine, Needs};
//! use vyre::graph::{self, Edges, Family, Graph};
//!
//! # fn main() -> Result<(), vyre::Error> {
//! let device = vyre::Device::auto()?;
//! let graph = Graph::new(&Edges::generate(Family::Kronecker, 8, 8, 1)?)?;
//! let engine = Engine::new(device.driver(), &graph, Config::default(), Needs::default())?;
//! let found = graph::bfs(&engine, 3)?;
//! found.verify(&graph, 3)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Devices
//!
//! [`Device::auto`] selects the device with the highest measured throughput among those that the features `cpu`, `wgpu` and `reference`
//! enable.

// The expansion of `#[kernel]` refers to this crate by name, also inside of it.
extern crate self as vyre;

mod buffer;
mod device;
pub mod emit;
mod error;
pub mod explain;
pub mod host;
pub mod kernels;
mod pipeline;

pub use buffer::{Buffer, Element, Slice, SliceMut};
pub use device::{Device, IntoGrid, Launch};
pub use error::{Error, Finding};
pub use half::{bf16, f16};
pub use host::Atomic;
pub use pipeline::{Pipeline, Recorder};
pub use vyre_foundation::ir::SourceLoc;
pub use vyre_foundation::launch::{Grid, Limits, Outcome, Report};
pub use vyre_foundation::{build, ir};
pub use vyre_macros::{Record, kernel};
pub use vyre_runtime::pipeline::{Plan, Run};
pub use vyre_runtime::{frontier, graph};

/// Megakernels: queues of small work items, drained in few launches.
///
/// An op is a kernel whose parameters are named `input`, `output` and `param`; see [`Op`](megakernel::Op).
pub mod megakernel {
    pub use vyre_runtime::megakernel::*;

    use crate::Error;

    /// Converts a kernel to an op of a session: `op(&scale::program()?)?`.
    ///
    /// # Errors
    /// The kernel is invalid, or its parameters are not those of an op.
    pub fn op(program: &crate::ir::Program) -> Result<Op, Error> {
        Ok(Op::new(crate::device::validated(program.clone())?)?)
    }
}

/// Numeric type that kernels can be generic over.
pub trait Number:
    build::Number
    + build::Single<Value = Self>
    + Element
    + device::HostScalar
    + PartialOrd
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
{
    /// `a × b + c`, rounded once.
    #[doc(hidden)]
    fn multiply_add<'k>(
        a: build::Val<'k, Self>,
        b: build::Val<'k, Self>,
        c: build::Val<'k, Self>,
    ) -> build::Val<'k, Self>;
}

macro_rules! numbers {
    ($($ty:ident = $a:ident $b:ident $c:ident $multiply_add:expr;)*) => { $(
        impl Number for $ty {
            fn multiply_add<'k>(
                $a: build::Val<'k, Self>,
                $b: build::Val<'k, Self>,
                $c: build::Val<'k, Self>,
            ) -> build::Val<'k, Self> {
                $multiply_add
            }
        }
    )* };
}
numbers! {
    i32 = a b c a * b + c;
    u32 = a b c a * b + c;
    i64 = a b c a * b + c;
    u64 = a b c a * b + c;
    f32 = a b c a.fma(b, c);
    f64 = a b c a.fma(b, c);
    f16 = a b c a.fma(b, c);
}

/// Support code for the expansion of `#[kernel]`.
#[doc(hidden)]
pub mod __private {
    use vyre_foundation::build::{Integer, Val};
    use vyre_foundation::ir::Scalar;

    /// Conversion of a host constant to a device scalar.
    pub trait Constant {
        type Scalar: Scalar;
        fn scalar(self) -> Self::Scalar;
    }

    pub fn scalar<C: Constant>(constant: C) -> C::Scalar {
        constant.scalar()
    }

    macro_rules! constants {
        ($($ty:ty)*) => { $(
            impl Constant for $ty {
                type Scalar = $ty;
                fn scalar(self) -> $ty {
                    self
                }
            }
        )* };
    }
    constants! { bool i32 u32 f32 i64 u64 f64 crate::f16 }

    impl Constant for usize {
        type Scalar = u32;
        fn scalar(self) -> u32 {
            u32::try_from(self).expect("a constant of type `usize` in a kernel must fit into 32 bits")
        }
    }

    impl Constant for isize {
        type Scalar = i32;
        fn scalar(self) -> i32 {
            i32::try_from(self).expect("a constant of type `isize` in a kernel must fit into 32 bits")
        }
    }

    /// The kernel builder, as a type that is unknown if the constant does not compile: then rustc reports only the errors of the plain
    /// version of a kernel, and none of its builder version.
    pub type Builder<const UNDERSTOOD: usize> = <Understood<UNDERSTOOD> as Builds>::Kernel;

    pub struct Understood<const NUMBER: usize>;

    pub trait Builds {
        type Kernel;
    }

    impl<const NUMBER: usize> Builds for Understood<NUMBER> {
        type Kernel = vyre_foundation::build::Kernel;
    }

    /// Restricts truncating stores to elements of 8 and 16 bits to integers.
    pub fn integer<T: Integer>(value: Val<'_, T>) -> Val<'_, T> {
        value
    }
}

/// Book chapters with Rust code, which is tested with the documentation of this crate.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../../../docs/src/quick_start.md")]
    mod quick_start {}
    #[doc = include_str!("../../../docs/src/kernels.md")]
    mod kernels {}
    #[doc = include_str!("../../../docs/src/semantics.md")]
    mod semantics {}
    #[doc = include_str!("../../../docs/src/devices.md")]
    mod devices {}
    #[doc = include_str!("../../../docs/src/pipelines.md")]
    mod pipelines {}
    #[doc = include_str!("../../../docs/src/megakernel.md")]
    mod megakernel {}
    #[doc = include_str!("../../../docs/src/graphs.md")]
    mod graphs {}
    #[doc = include_str!("../../../docs/src/shaders.md")]
    mod shaders {}
    #[doc = include_str!("../../../docs/src/extending.md")]
    mod extending {}
}
