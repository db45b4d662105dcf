//! Device layer: the backend interface, and devices, buffers and submissions for callers.
//!
//! A [`Registry`] holds the [`backend::Backend`]s that an application lists; [`Registry::open`] opens one as a
//! [`Device`]. The caller compiles [`Kernel`]s, allocates [`Buffer`]s and submits [`Dispatch`]es; a [`Submission`]
//! returns a report for each dispatch.
//!
//! Before it reaches a backend, a program is [optimized](vyre_foundation::optimizer), guided by the [`Telemetry`] of
//! earlier dispatches. Optimized programs are cached: a device remembers recent compiles in memory, and a [`Cache`] in
//! a [`PrivateFolder`] shares them between processes.
//!
//! Fusion groups, their order and their memory are [planned](plan).
//!
//! All mistakes of callers are detected here, once for all devices, before a backend sees them: names, types and
//! lengths of arguments, overlaps, grids, buffers of other or lost devices, unsupported types. A backend implements the
//! functions of [`backend::Device`] and relies on these checks.

pub mod atomic_file;
pub mod backend;
mod buffer;
mod cache;
mod capabilities;
mod device;
mod error;
mod limited_read;
mod null;
mod oracle;
pub mod plan;
mod private_folder;
mod registry;
mod telemetry;
pub mod trace;

pub use buffer::{Buffer, Download};
pub use cache::Cache;
pub use capabilities::{Capabilities, DeviceKind, Floats};
pub use device::{Argument, Compilation, Device, Dispatch, Grid, Kernel, MemoryStats, Origin, Submission};
pub use error::{Damage, Error, Unacknowledged, Work};
pub use limited_read::read_limited;
pub use null::Null;
pub use oracle::Oracle;
pub use private_folder::{Distrust, PrivateFolder};
pub use registry::{Choice, Registry};
pub use telemetry::Telemetry;
