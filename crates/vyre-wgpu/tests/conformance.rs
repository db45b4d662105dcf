//! The suite that every backend must pass, on whatever adapter there is.

vyre_testkit::conformance!(vyre_wgpu::Wgpu);
