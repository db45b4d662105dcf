//! What the fuzz targets share. Each target takes bytes, and panics if something happens that must not:
//!
//! * `wire`: the bytes are the contents of a `.vyreb` file. What decodes is canonical, and can be printed and validated.
//! * `text`: the bytes are a `.vyre` file. What is valid reads back as printed, from text and from bytes.
//! * `lower`: the bytes are a program, by [`program`]. What is valid is lowered for every backend, and run on two.
//!
//! `cargo xtask fuzz TARGET` runs a target, starting from what the example `corpus` of `vyre-testkit` writes.

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

/// A `.vyreb` file with these contents. Its hash is right: no mutation would ever find that by chance.
pub fn file(contents: &[u8]) -> Vec<u8> {
    let mut file = wire::MAGIC.to_vec();
    file.extend([1, 0, 0, 0]);
    file.extend(blake3::hash(contents).as_bytes());
    file.extend(contents);
    file
}

/// Decodes contents, and checks what holds for everything that decodes.
pub fn decode(contents: &[u8]) -> Option<Module> {
    let module = wire::decode(&file(contents)).ok()?;
    assert_eq!(&wire::encode(&module)[HEADER..], contents, "the module has two encodings");
    // Messages about a file show its text, whether it is valid or not.
    let _ = text::print(&module);
    Some(module)
}

/// Validates a module, and checks that what is valid survives being printed and encoded.
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

/// The contents that the bytes of a case stand for. If the first byte is even, they are the rest. Otherwise the next bytes
/// are a seed and a size for the generator, and what follows changes the encoding of its program, four bytes at a time.
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

/// Lowers a program for every backend. A language may lack something; nothing else may go wrong.
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

/// Runs a program on the oracle and on the CPU, if that takes little time and memory. Programs may race, so that results
/// are not compared: the conformance suite does that.
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
