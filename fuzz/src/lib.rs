//! Common code of the fuzz targets. Each target panics if its property is violated:
//!
//! * `wire`: contents of a `.vyreb` file. Modules that decode have a canonical encoding, and can be printed and validated.
//! * `text`: a `.vyre` file. Valid modules round-trip through text and the wire format.
//! * `lower`: a program, by [`program`]. Valid programs are lowered for every backend, and run on two.
//!
//! `cargo xtask fuzz TARGET` runs a target with the seed corpus of the example `corpus` of `vyre-testkit`.

use std::sync::OnceLock;

use vyre_cpu::{Cpu, Execution, listing, portable, spmd};
use vyre_driver::{Device, Error};
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::{Module, Program, Space};
use vyre_foundation::launch::{Grid, Limits};
use vyre_foundation::transform::expand_math;
use vyre_foundation::{Validated, text, validate, wire};
use vyre_testkit::{Features, generate};

/// Bytes before the contents of a `.vyreb` file.
pub const HEADER: usize = 40;

/// A `.vyreb` file with these contents and a valid hash, which mutations would not find.
pub fn file(contents: &[u8]) -> Vec<u8> {
    let mut file = wire::MAGIC.to_vec();
    file.extend([1, 0, 0, 0]);
    file.extend(blake3::hash(contents).as_bytes());
    file.extend(contents);
    file
}

/// Decodes contents, and checks that the encoding is canonical and the module can be printed.
pub fn decode(contents: &[u8]) -> Option<Module> {
    let module = wire::decode(&file(contents)).ok()?;
    assert_eq!(&wire::encode(&module)[HEADER..], contents, "the module has two encodings");
    // Invalid modules can be printed, too.
    let _ = text::print(&module);
    Some(module)
}

/// Validates a module, and checks that a valid one round-trips through text and the wire format.
pub fn validated(module: Module) -> Vec<Validated<Program>> {
    let Ok(valid) = validate::module(module.clone()) else { return Vec::new() };
    let printed = text::print(&module);
    match text::parse(&printed) {
        Ok(read) => assert!(read == module, "it reads back as another module:\n{printed}"),
        Err(error) => panic!("{error}\n{printed}"),
    }
    let decoded = wire::decode(&wire::encode(&module));
    assert!(decoded.is_ok_and(|decoded| decoded == module), "it decodes as another module:\n{printed}");
    valid.into_inner().programs
}

/// Decodes a case to contents of a `.vyreb` file. If the first byte is even, the contents are the rest. Otherwise the next bytes are a seed
/// and a size for the program generator, and each four bytes after them a mutation of the encoding.
pub fn program(case: &[u8]) -> Option<Vec<u8>> {
    let (&first, rest) = case.split_first()?;
    if first % 2 == 0 {
        return Some(rest.to_vec());
    }
    let (&[size, low, high], changes) = rest.split_first_chunk()?;
    let features = Features { size: u32::from(size), ..Features::default() };
    let seed = u64::from(u16::from_le_bytes([low, high]));
    let mut contents = wire::encode(&Module::from(generate(seed, &features).program))[HEADER..].to_vec();
    for &[kind, low, high, value] in changes.as_chunks().0 {
        let at = usize::from(u16::from_le_bytes([low, high])) % contents.len();
        match kind % 3 {
            0 => contents[at] = value,
            1 => contents.insert(at, value),
            _ => {
                contents.remove(at);
            }
        }
        if contents.is_empty() {
            return None;
        }
    }
    Some(contents)
}

/// Lowers a program for every backend. The only permitted error is an unsupported feature.
pub fn lower(program: &Validated<Program>) {
    portable::Kernel::new(spmd::lower(&expand_math(program, |_| false), 16));
    for execution in [Execution::Avx2, Execution::Avx512] {
        expect(listing(program, execution), program);
    }
    expect(vyre_wgpu::verify(program), program);
    for target in vyre_wgpu::Target::ALL {
        expect(vyre_wgpu::emit(program, target), program);
    }
}

fn expect<T>(result: Result<T, Error>, program: &Validated<Program>) {
    match result {
        Ok(_) | Err(Error::Unsupported { .. }) => {}
        Err(error) => panic!("{error}\n{}", **program),
    }
}

/// Runs a program on the oracle and on the CPU, if it needs little time and memory. Programs may race, so results are not compared.
pub fn run(program: &Validated<Program>) {
    const ELEMENTS: u32 = 16;
    if program.workgroup_size().iter().product::<u32>() > 64 {
        return;
    }
    let mut inputs = Inputs::default();
    for memory in program.memories().values() {
        let length = match memory.space {
            Space::Storage(_) => memory.length.unwrap_or(ELEMENTS) as usize,
            Space::Uniform => 1,
            Space::Workgroup | Space::Private => continue,
        };
        if length > 4096 {
            return;
        }
        let bytes = (0..length * memory.element.size()).map(|at| at as u8).collect();
        inputs.bytes(program, &memory.name, bytes).expect("the object exists");
    }
    static DEVICES: OnceLock<[Device; 2]> = OnceLock::new();
    let devices = DEVICES.get_or_init(|| {
        let cpu = Device::open(&Cpu { threads: Some(1), ..Cpu::default() }).expect("there is a processor");
        [vyre_testkit::oracle(16), cpu]
    });
    let limits = Limits { fuel: 1000, deadline: None, trace_capacity: 16, ..Limits::default() };
    for device in devices {
        let mut inputs = inputs.clone();
        expect(device.execute(program, Grid::Groups([2, 1, 1]), &mut inputs, limits), program);
    }
}
