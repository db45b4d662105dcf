//! Conformance suite on the default adapter.

vyre_testkit::conformance!(vyre_wgpu::Wgpu);
