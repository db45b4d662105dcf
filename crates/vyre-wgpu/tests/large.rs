//! Objects too large for one binding are split over several.

use vyre_driver::{Device, Error, Grid};
use vyre_foundation::Validated;
use vyre_foundation::ir::{Element, Program};
use vyre_testkit::oracle;
use vyre_wgpu::Wgpu;

use programs::program;
use shared::shared;

mod programs;
mod shared;

fn run(device: &Device, program: &Validated<Program>, count: u32, offset: u32) -> Vec<Vec<u8>> {
    let kernel = device.compile(program).expect("compiles");
    let elements = [Element::U32, Element::U8, Element::I16, Element::F32, Element::U32];
    let whole: Vec<_> = elements
        .iter()
        .map(|element| {
            let bytes: Vec<u8> =
                (0..(count + offset) as usize * element.size()).map(|byte| (byte * 31 % 251) as u8).collect();
            device.upload(*element, &bytes).expect("there is memory")
        })
        .collect();
    let parts: Vec<_> = whole.iter().map(|buffer| buffer.slice(offset..offset + count).expect("inside")).collect();
    let names = ["words", "bytes", "halves", "sums", "counts"];
    let arguments = names.into_iter().zip(parts.iter().map(Into::into));
    let dispatch = kernel.dispatch(Grid::Groups([count.div_ceil(64), 1, 1]), arguments).expect("it fits");
    device.submit(&[dispatch]).expect("it can be launched").wait().expect("it ends");
    whole.iter().map(|buffer| buffer.read().expect("it can be read")).collect()
}

#[test]
fn every_access_finds_its_binding() {
    let device = Device::open(&shared(|limits| limits.max_storage_buffer_binding_size = 4096)).expect("a device");
    // All kinds of accesses, to elements of all sizes, in an order that alternates between bindings.
    let program = program("everywhere");
    for (count, offset) in [(5000, 0), (4096, 0), (5001, 3), (1024, 0), (7, 2)] {
        let expected = run(&oracle(8), &program, count, offset);
        assert!(run(&device, &program, count, offset) == expected, "{count} elements from {offset}");
    }
}

#[test]
fn too_many_bindings_are_an_error() {
    let limited = shared(|limits| {
        limits.max_storage_buffer_binding_size = 1 << 16;
        limits.max_storage_buffers_per_shader_stage = 8;
    });
    let device = Device::open(&limited).expect("a device");
    let program = program("fill");
    let kernel = device.compile(&program).expect("compiles");
    let out = device.allocate(Element::U32, 200_000).expect("there is memory");
    let dispatch = kernel.dispatch(Grid::Groups([1, 1, 1]), [("out", (&out).into())]).expect("it fits");
    let Err(Error::Unsupported { needed, available }) = device.submit(&[dispatch]) else { panic!("it fits") };
    assert_eq!((&*needed, &*available), ("13 bindings for the storage objects of `fill`", "7 of 65536 bytes"));
}

/// An object larger than the binding limit of the adapter itself.
#[test]
fn objects_are_larger_than_the_adapters_bindings() {
    let device = Device::open(&Wgpu).expect("a device");
    let program = program("add_index");
    let count: u32 = (128 << 20) / 4 + 1000;
    let kernel = device.compile(&program).expect("compiles");
    let out = device.allocate(Element::U32, u64::from(count)).expect("there is memory");
    let grid = Grid::Groups([count.div_ceil(256), 1, 1]);
    let dispatch = kernel.dispatch(grid, [("out", (&out).into())]).expect("it fits");
    device.submit(&[dispatch]).expect("it can be launched").wait().expect("it ends");
    let found = out.read().expect("it can be read");
    assert!(found.chunks_exact(4).zip(0..count).all(|(word, i)| word == i.to_le_bytes()));
}
