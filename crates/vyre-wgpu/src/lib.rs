//! The GPU backend: vyre programs become naga modules and run through wgpu on Vulkan, Metal or DirectX 12.
//!
//! [`lower`](self) turns a validated program into a `naga::Module`. The device passes the module to wgpu and runs it;
//! [`emit`] passes it to naga's writers instead. Bounds checks, loop limits and division checks are part of the lowered
//! module, with vyre's semantics, so wgpu's own runtime checks are turned off.

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
