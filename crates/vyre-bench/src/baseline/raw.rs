//! WGSL by hand, through wgpu alone: what a program without vyre would do. Runtime checks are off.

use std::borrow::Cow;
use std::sync::Arc;

use naga::back::spv;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ValidationFlags, Validator};

/// A device.
pub(crate) struct Raw {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
}

/// A pipeline with its buffers and its grid.
pub(crate) struct Dispatch {
    pipeline: wgpu::ComputePipeline,
    bindings: wgpu::BindGroup,
    groups: [u32; 3],
}

/// Completes a future of wgpu. Outside of browsers they are ready at once.
fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => unreachable!("wgpu has no such futures here"),
    }
}

fn module(source: &str) -> naga::Module {
    naga::front::wgsl::parse_str(source).unwrap_or_else(|error| panic!("{}", error.emit_to_string(source)))
}

/// Instructions in the functions of a SPIR-V module.
pub(crate) fn instructions(words: &[u32]) -> usize {
    const FUNCTION: u32 = 54;
    const FUNCTION_END: u32 = 56;
    let (mut count, mut inside, mut at) = (0, false, 5);
    while let Some(word) = words.get(at) {
        inside |= word & 0xffff == FUNCTION;
        count += usize::from(inside);
        inside &= word & 0xffff != FUNCTION_END;
        at += (word >> 16).max(1) as usize;
    }
    count
}

/// The SPIR-V of an entry point, in words, as wgpu would make it.
pub(crate) fn spirv(source: &str, entry: &str) -> Vec<u32> {
    let module = module(source);
    let info = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module).expect("valid WGSL");
    let unchecked = BoundsCheckPolicy::Unchecked;
    let options = spv::Options {
        lang_version: (1, 3),
        flags: spv::WriterFlags::empty(),
        bounds_check_policies: BoundsCheckPolicies {
            index: unchecked,
            buffer: unchecked,
            image_load: unchecked,
            binding_array: unchecked,
        },
        force_loop_bounding: false,
        emit_int_div_checks: false,
        ..spv::Options::default()
    };
    let pipeline = spv::PipelineOptions { shader_stage: naga::ShaderStage::Compute, entry_point: entry.into() };
    spv::write_vec(&module, &info, &options, Some(&pipeline)).expect("SPIR-V has all of it")
}

impl Raw {
    /// The first adapter with everything it has.
    pub(crate) fn open() -> Raw {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
            backends: wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12,
            flags: wgpu::InstanceFlags::empty(),
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        });
        let adapters = ready(instance.enumerate_adapters(wgpu::Backends::all()));
        let adapter = adapters.into_iter().next().expect("an adapter, as the device has one");
        let (device, queue) = ready(adapter.request_device(&wgpu::DeviceDescriptor {
            required_limits: adapter.limits(),
            ..wgpu::DeviceDescriptor::default()
        }))
        .expect("a device");
        device.on_uncaptured_error(Arc::new(|error| panic!("{error}")));
        Raw { device, queue }
    }

    pub(crate) fn buffer(&self, contents: &[u8]) -> wgpu::Buffer {
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: (contents.len() as u64).next_multiple_of(16),
            usage: wgpu::BufferUsages::STORAGE
                | wgpu::BufferUsages::UNIFORM
                | wgpu::BufferUsages::COPY_SRC
                | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        self.queue.write_buffer(&buffer, 0, contents);
        buffer
    }

    /// Prepares an entry point. Buffers are bound by number.
    pub(crate) fn dispatch(
        &self,
        source: &str,
        entry: &str,
        groups: [u32; 3],
        buffers: &[(u32, &wgpu::Buffer)],
    ) -> Dispatch {
        let source = wgpu::ShaderSource::Naga(Cow::Owned(module(source)));
        let descriptor = wgpu::ShaderModuleDescriptor { label: None, source };
        // SAFETY: the kernels of this crate stay inside of the buffers that they are given here, and end.
        let module =
            unsafe { self.device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) };
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some(entry),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: source_needs_zeros(entry),
                ..wgpu::PipelineCompilationOptions::default()
            },
            cache: None,
        });
        let entries: Vec<wgpu::BindGroupEntry<'_>> = buffers
            .iter()
            .map(|(binding, buffer)| wgpu::BindGroupEntry { binding: *binding, resource: buffer.as_entire_binding() })
            .collect();
        let layout = pipeline.get_bind_group_layout(0);
        let bindings = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &layout,
            entries: &entries,
        });
        Dispatch { pipeline, bindings, groups }
    }

    /// Runs dispatches, one after the other in one encoder, and waits.
    pub(crate) fn run<'a>(&self, dispatches: impl IntoIterator<Item = &'a Dispatch>) {
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        for Dispatch { pipeline, bindings, groups } in dispatches {
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, bindings, &[]);
            pass.dispatch_workgroups(groups[0], groups[1], groups[2]);
        }
        drop(pass);
        self.queue.submit([encoder.finish()]);
        self.device.poll(wgpu::PollType::wait_indefinitely()).expect("the device is there");
    }

    pub(crate) fn read(&self, buffer: &wgpu::Buffer) -> Vec<u8> {
        let staging = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: buffer.size(),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(buffer, 0, &staging, 0, buffer.size());
        self.queue.submit([encoder.finish()]);
        staging.map_async(wgpu::MapMode::Read, .., |mapped| mapped.expect("it can be mapped"));
        self.device.poll(wgpu::PollType::wait_indefinitely()).expect("the device is there");
        staging.get_mapped_range(..).expect("it is mapped").to_vec()
    }
}

/// Only this one adds to what it has not written.
fn source_needs_zeros(entry: &str) -> bool {
    entry == "sum_chunks"
}
