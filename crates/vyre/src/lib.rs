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
//! `saxpy` is now a function that takes the kernel's arguments, with a [`Buffer`] for each slice, and gives a [`Launch`]. rustc
//! checks types, and that what is written is borrowed by nobody else. A kernel is compiled when it first runs on a device.
//! For unit tests, `saxpy::host(3, 2.0, &x, &mut y)` runs the same body as plain Rust, on slices; kernels whose invocations work
//! together, also in functions that they call, have no `host`.
//!
//! # Features
//!
//! | feature | default | brings |
//! |---|---|---|
//! | `cpu` | yes | the device `cpu`: machine code on x86-64 Linux and macOS, a portable executor elsewhere |
//! | `wgpu` | yes | the device `wgpu`: GPUs through Vulkan, Metal and DirectX 12 |
//! | `reference` | no | the device `reference`: the interpreter that defines what programs mean, for tests |
//! | `gz` | no | graphs in files that gzip has compressed |
//!
//! Features are additive. The public items of this crate follow semantic versioning; the minimum supported Rust version is
//! `rust-version` in its manifest, and changes only with a minor version.
//!
//! # What can stand in a kernel
//!
//! - Parameters are scalars, `&[T]`, `&mut [T]` and `&[Atomic<T>]`. `usize` is a 32-bit index on the device. Elements of slices may
//!   also be integers of 8 and 16 bits, which are cast where they are loaded and stored: `x[i] as u32`, `y[i] = sum as u8`; and
//!   [records](#records).
//! - `let`, `let mut`, arithmetic, comparisons, `&&`, `||`, casts, assignments, `if` and `match` on integers (also for their
//!   value), `while`, `loop`, `for i in a..b`, `for i in (a..b).step_by(n)`, `break`, `continue`, `return`, labels of loops, tuples
//!   whose parts are named at once: `let (a, b) = if c { (1, 2) } else { (3, 4) };`.
//! - Local arrays, `let mut a: [f32; 16] = [0.0; 16];`, and arrays that a workgroup shares, `#[shared] let tile: [f32; 256];`.
//! - The functions of [`host`]: positions such as `global_index()` and `global_id().x`, barriers, subgroup operations, wide accesses,
//!   `trap(code)`; and `print!`, whose lines are in the [`Report`].
//! - Methods of numbers such as `sqrt`, `mul_add`, `ln`, `powf`, `clamp` and `to_bits`, with the same bits on all devices with exact
//!   floats; and those of the traits in [`host`], such as `dot4_i8`, `pack_unorm8` and `frexp_fraction`.
//! - Calls of functions with `#[kernel(inline)]` (of another one, rustc says that it is not a type), type parameters that are a
//!   [`Number`], and const parameters.
//! - Blocks with a label, `'scale: { … }`, which are regions of that name in the program: reports speak of them.
//!
//! Everything else is an error of the compiler that says what to write instead.
//!
//! # Records
//!
//! Slices and buffers can be made of structs whose fields are numbers, or arrays of numbers, of one type, or of any types of 32 bits.
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
//! A pattern without `..` loads the whole struct, and a struct stores it, up to four fields in one access.
//!
//! # What it means
//!
//! Nothing is undefined on a device. Integers wrap, `x / 0` is `x` and `x % 0` is 0, a load outside of its slice gives 0 and a store
//! there does nothing, and floats become integers as by `as`. Plain Rust panics in the first four cases, and so does `host`. A
//! `step_by` that would go past the end of its type wraps, and so does the index of a record times the size of it.
//!
//! A launch fails with an [`Error`] that names the line: where an invocation calls `trap`, or in a loop that takes more than its
//! [`Limits`]. [`Launch::sanitize`] finds races and accesses outside of slices, by line, too.
//!
//! # Inspection
//!
//! A kernel prints the program that it becomes, and the code that devices execute. Values have the names of the Rust variables.
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
//! `text` is what the command `vyre` reads. `wgsl` needs the feature `wgpu`, and `asm` needs `cpu`. `explain_html` writes the page of
//! `vyre explain --html`: the source, the program after each pass and the reason of each pass, its cost, and the code that comes out. Of a
//! generic kernel, each instance has these functions: `dilate::<i32, 2>::text()`. [`emit`] and [`explain`] do the same for programs of
//! the builder.
//!
//! # Standard kernels
//!
//! [`kernels`] has what most programs need: maps, reductions, scans, sorting, matrices, random numbers.
//!
//! # Pipelines
//!
//! Launches that belong together are recorded in a [`Pipeline`]. They are planned once, fused where that is possible, and run often.
//!
//! # Megakernels
//!
//! Work that comes in thousands of small pieces goes into the queue of a [`megakernel::Session`], which few launches drain.
//!
//! # Graphs
//!
//! [`graph`] has breadth-first search, shortest paths, PageRank, components and triangles of graphs from files; other algorithms are written
//! with the frontiers of [`frontier`]: what is done with one edge is a function that builds a part of a kernel.
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
//! [`Device::auto`] takes the fastest one. The features `cpu` and `wgpu`, which are on, and `reference`, the interpreter that defines
//! what kernels mean, decide which there are.

// Kernels of this crate name it as those of others do.
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
pub use error::{Error, Finding, Place};
pub use half::f16;
pub use host::Atomic;
pub use pipeline::{Pipeline, Recorder};
pub use vyre_foundation::launch::{Grid, Limits, Outcome, Report};
pub use vyre_foundation::{build, ir};
pub use vyre_macros::{Record, kernel};
pub use vyre_runtime::pipeline::{Plan, Run};
pub use vyre_runtime::{frontier, graph};

/// Queues of small work items that are drained by few launches.
///
/// An operation is a kernel whose parameters are called `input`, `output` and `param`; see [`Op`](megakernel::Op).
pub mod megakernel {
    pub use vyre_runtime::megakernel::*;

    use crate::Error;

    /// An operation that does what a kernel does: `op(&scale::program()?)?`.
    ///
    /// # Errors
    /// The kernel is not valid, or no operation.
    pub fn op(program: &crate::ir::Program) -> Result<Op, Error> {
        Ok(Op::new(crate::device::validated(program.clone())?)?)
    }
}

/// A number that kernels can be generic over.
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

/// What the code of `#[kernel]` calls.
#[doc(hidden)]
pub mod __private {
    use vyre_foundation::build::{Integer, Val};
    use vyre_foundation::ir::Scalar;

    /// A constant of the host, as one of the device.
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

    /// The type of the kernel that is built, if there is a number.
    pub type Builder<const UNDERSTOOD: usize> = <Understood<UNDERSTOOD> as Builds>::Kernel;

    pub struct Understood<const NUMBER: usize>;

    pub trait Builds {
        type Kernel;
    }

    impl<const NUMBER: usize> Builds for Understood<NUMBER> {
        type Kernel = vyre_foundation::build::Kernel;
    }

    /// Only integers keep their low bits when they are stored to elements of 8 and 16 bits.
    pub fn integer<T: Integer>(value: Val<'_, T>) -> Val<'_, T> {
        value
    }
}

/// The chapters of the book that show Rust, which is tested with the documentation of this crate.
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
    #[doc = include_str!("../../../docs/src/extending.md")]
    mod extending {}
}
