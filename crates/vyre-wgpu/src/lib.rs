//! The GPU backend: vyre programs become naga modules and run through wgpu on Vulkan, Metal or DirectX 12.
//!
//! Data goes one way: [`lower`](self) turns a validated program into a `naga::Module`, the device hands that to wgpu and runs
//! it, and [`emit`] gives it to naga's writers instead. What wgpu's own runtime checks would do is part of the lowered
//! module, with the meaning that vyre gives it, so they are turned off.

mod adapter;
mod code_permission;
mod deadline;
mod device;
mod emit;
mod lower;
mod probe;
mod stream;

pub use device::{Adapter, Enumerated, Shared, Wgpu, adapters};
pub use emit::{Emitted, Target, emit, verify};
