//! vyre inside of a wgpu application: kernels on the application's device, and emitted WGSL in the application's own pipeline.

use std::borrow::Cow;
use std::future::Future;

use vyre_driver::{Device, Grid};
use vyre_foundation::ir::{Element, Program};
use vyre_foundation::{Validated, text, validate};
use vyre_wgpu::{Emitted, Shared, Target};

const SAXPY: &str = include_str!("../../../examples/kernels/saxpy.vyre");

fn saxpy() -> Validated<Program> {
    validate::module(text::parse(SAXPY).expect("it parses")).expect("it is valid").programs[0].clone()
}

/// Completes a future of wgpu, like `pollster::block_on`.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("outside of browsers, futures of wgpu are ready"),
    }
}

/// The device and queue that an application already has.
fn application() -> (wgpu::Device, wgpu::Queue) {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapter = block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default())).expect("an adapter");
    let required_limits = adapter.limits();
    let descriptor = wgpu::DeviceDescriptor { required_limits, ..wgpu::DeviceDescriptor::default() };
    block_on(adapter.request_device(&descriptor)).expect("a device")
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn a_kernel_runs_on_the_device_of_the_application() {
    let (device, queue) = application();
    // `vyre::Device::from(device)` is the device for kernels in Rust.
    let device = Device::open(&Shared { device, queue }).expect("it is opened");
    let kernel = device.compile(&saxpy()).expect("it is compiled");
    let x = device.upload(Element::F32, &bytes(&[1.0, 2.0, 3.0, 4.0])).expect("memory");
    let y = device.upload(Element::F32, &bytes(&[10.0; 4])).expect("memory");
    let arguments = [("a", 2.0f32.into()), ("x", (&x).into()), ("y", (&y).into())];
    let dispatch = kernel.dispatch(Grid::elements(4), arguments).expect("the arguments fit");
    device.run(&dispatch).expect("it runs");
    assert_eq!(y.elements::<f32>().expect("contents"), [12.0, 14.0, 16.0, 18.0]);
}

#[test]
fn emitted_wgsl_runs_in_a_pipeline_of_the_application() {
    let Ok(Emitted::Text(wgsl)) = vyre_wgpu::emit(&saxpy(), Target::Wgsl) else { panic!("it is emitted") };
    let (device, queue) = application();
    // With wgpu's feature `wgsl`, which is a default feature: `wgpu::ShaderSource::Wgsl(wgsl.into())`.
    let source = wgpu::ShaderSource::Naga(Cow::Owned(naga::front::wgsl::parse_str(&wgsl).expect("WGSL")));
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions::default(),
        cache: None,
    });

    // Binding 0: words 0–2 are the workgroups, 4 and 5 the fuel, and word 10 + 2k is the value or the length of object k.
    let (n, workgroups) = (1024u32, 4);
    let mut params = [0u32; 16];
    params[..3].copy_from_slice(&[workgroups, 1, 1]);
    params[4..6].fill(u32::MAX);
    (params[10], params[12], params[14]) = (2.0f32.to_bits(), n, n);
    let params: Vec<u8> = params.iter().flat_map(|word| word.to_le_bytes()).collect();

    let buffer = |contents: &[u8], usage: wgpu::BufferUsages| {
        let (size, usage) = (contents.len() as u64, usage | wgpu::BufferUsages::COPY_DST);
        let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
        let buffer = device.create_buffer(&descriptor);
        queue.write_buffer(&buffer, 0, contents);
        buffer
    };
    let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let params = buffer(&params, wgpu::BufferUsages::UNIFORM);
    let x = buffer(&bytes(&x), wgpu::BufferUsages::STORAGE);
    let y = buffer(&bytes(&vec![1.0; n as usize]), wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC);
    let entries = [(0, &params), (1, &x), (2, &y)]
        .map(|(binding, buffer)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() });
    let layout = &pipeline.get_bind_group_layout(0);
    let group = device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries });

    let staging = buffer(&vec![0; 4 * n as usize], wgpu::BufferUsages::MAP_READ);
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
    pass.set_pipeline(&pipeline);
    pass.set_bind_group(0, &group, &[]);
    pass.dispatch_workgroups(workgroups, 1, 1);
    drop(pass);
    encoder.copy_buffer_to_buffer(&y, 0, &staging, 0, staging.size());
    queue.submit([encoder.finish()]);
    staging.slice(..).map_async(wgpu::MapMode::Read, |result| result.expect("it can be mapped"));
    device.poll(wgpu::PollType::wait_indefinitely()).expect("it completes");

    let found = staging.slice(..).get_mapped_range().expect("it is mapped");
    let expected: Vec<f32> = (0..n).map(|i| 2.0 * i as f32 + 1.0).collect();
    assert_eq!(found[..], bytes(&expected)[..]);
}

#[test]
fn wgsl_of_the_book_is_valid() {
    let chapter = include_str!("../../../docs/src/shaders.md");
    let blocks: Vec<&str> = chapter.split("```wgsl\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(!blocks.is_empty(), "the chapter shows WGSL");
    for block in blocks {
        let module =
            naga::front::wgsl::parse_str(block).unwrap_or_else(|error| panic!("{}", error.emit_to_string(block)));
        let (flags, capabilities) = (naga::valid::ValidationFlags::all(), naga::valid::Capabilities::all());
        naga::valid::Validator::new(flags, capabilities).validate(&module).expect("valid WGSL");
    }
}
