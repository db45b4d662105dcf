//! Devices: what a backend implements, and what a caller uses.
//!
//! A [`Registry`] knows the [`backend::Backend`]s that a program was linked with; [`Registry::open`] turns one into a
//! [`Device`]. The caller compiles [`Kernel`]s, allocates [`Buffer`]s and submits [`Dispatch`]es; a [`Submission`] is waited
//! for and gives a report for each dispatch.
//!
//! On the way to a backend, a program is [optimized](vyre_foundation::optimizer), with what [`Telemetry`] knows of earlier
//! dispatches. A program that was optimized before is not optimized again: a device remembers what it compiled last, and a [`Cache`]
//! keeps optimized programs for other processes, in a [`PrivateFolder`].
//!
//! What is launched together, in which order and in how much memory is [planned](plan).
//!
//! Everything a caller can get wrong is checked here, once for all devices, before a backend sees it: names, types and lengths
//! of arguments, overlaps, grids, buffers of other or lost devices, types that a device does not have. A backend implements
//! the five functions of [`backend::Device`] and may rely on all of that.

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
pub use device::{Argument, Compilation, Device, Dispatch, Grid, Kernel, MemoryFigures, Origin, Submission};
pub use error::{Damage, Error, Unacknowledged, Work};
pub use limited_read::read_limited;
pub use null::Null;
pub use oracle::Oracle;
pub use private_folder::{Distrust, PrivateFolder};
pub use registry::{Choice, Registry};
pub use telemetry::Telemetry;
