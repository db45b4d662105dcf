//! All programs compile to machine code: conformance tests alone would not notice a fallback to the portable executor.

#![cfg(all(target_arch = "x86_64", unix))]

use std::path::Path;

use vyre_cpu::{Cpu, Execution, listing};
use vyre_driver::{Device, Grid};
use vyre_foundation::ir::ops::Exactness;
use vyre_foundation::ir::{Element, Program};
use vyre_foundation::launch::Outcome;
use vyre_foundation::{Validated, text, validate};
use vyre_testkit::{Features, differential, files, generate};

fn has_code(program: &Validated<Program>, name: &str) {
    for execution in [Execution::Avx2, Execution::Avx512] {
        if let Err(error) = listing(program, execution) {
            panic!("{name}: no code for {execution:?}: {error}\n{}", **program);
        }
    }
}

#[test]
fn file_tests_have_code() {
    let device = Device::open(&Cpu::default()).expect("a processor");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = [root.join("tests/files"), root.join("examples/kernels")];
    for path in folders.iter().flat_map(|folder| files::in_folder(folder)) {
        for case in files::cases(&path).unwrap_or_default() {
            has_code(&case.program, &path.display().to_string());
            has_code(device.compile(&case.program).expect("compiles").program(), &path.display().to_string());
        }
    }
}

/// A loop around barriers that is left by `return` only. On a GPU it runs until its fuel is used up.
#[test]
fn ended_workgroups_leave_barrier_loops() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all_ended.vyre");
    let device = Device::open(&Cpu::default()).expect("a processor");
    for case in files::cases(&path).expect("a program") {
        let wrong = differential::find_difference(&device, &case.program, case.grid, &case.inputs, Exactness::Exact);
        assert_eq!(wrong, None);
    }
}

#[test]
fn generated_programs_have_code() {
    let device = Device::open(&Cpu::default()).expect("a processor");
    let features = Features::of(device.capabilities());
    let first = differential::seed_of_now();
    for seed in first..first + 500 {
        let program = validate::program(generate(seed, &features).program).expect("generated programs are valid");
        has_code(&program, &format!("seed {seed}"));
    }
}

/// A program with `values` sums live at the same time.
fn many_live_values(values: usize) -> Validated<Program> {
    let mut body = String::from("%i = global_index\n%s0 = load x[%i]\n");
    for k in 1..values {
        body += &format!("%a{k} = xor %i, {k}\n%s{k} = load x[%a{k}]\n");
    }
    let last = values - 1;
    body += &format!("%t{last} = add %s{last}, 1\n");
    for k in (0..last).rev() {
        body += &format!("%m{k} = mul %t{}, 3\n%t{k} = add %m{k}, %s{k}\n", k + 1);
    }
    let source = format!("program live workgroup(8) {{\nread x: [u32]\nwrite y: [u32]\n{body}store y[%i], %t0\n}}");
    let module = text::parse(&source).expect("a program");
    validate::program(module.programs.into_iter().next().expect("one")).expect("valid")
}

/// A waiting caller executes kernels inline only if its stack has room for the largest frame: the frame of this program
/// is larger than the caller's stack.
#[test]
fn small_stack_callers_run_large_frame_kernels() {
    let program = many_live_values(6000);
    let device = Device::open(&Cpu { threads: Some(2), ..Cpu::default() }).expect("a processor").as_written();
    let kernel = device.compile(&program).expect("compiles");
    assert_eq!(kernel.compilation().fallback, None);
    let words: Vec<u8> = (0..8192_u32).flat_map(u32::to_le_bytes).collect();
    let (x, y) = (device.upload(Element::U32, &words).unwrap(), device.allocate(Element::U32, 64).unwrap());
    let run = || {
        let dispatch = kernel.dispatch(Grid::elements(64), [("x", (&x).into()), ("y", (&y).into())]).unwrap();
        assert_eq!(device.run(&dispatch).expect("it runs").outcome, Outcome::Completed);
        y.read().expect("a few bytes")
    };
    let expected = run();
    let small = std::thread::scope(|scope| {
        std::thread::Builder::new().stack_size(128 << 10).spawn_scoped(scope, run).unwrap().join().unwrap()
    });
    assert_eq!(small, expected);
}

#[test]
fn fallback_reason_is_reported() {
    let program = many_live_values(50_000);
    let device = Device::open(&Cpu { threads: Some(1), ..Cpu::default() }).expect("a processor").as_written();
    let kernel = device.compile(&program).expect("compiles");
    match Execution::best() {
        Execution::Portable => assert_eq!(kernel.compilation().fallback, None),
        Execution::Avx2 | Execution::Avx512 => {
            let fallback = kernel.compilation().fallback.as_deref().expect("a reason");
            assert!(fallback.starts_with("no machine code: the stack frame takes "), "{fallback}");
        }
    }
}

/// Code uses signed 32-bit indices.
#[test]
fn too_long_objects_are_reported() {
    if Execution::best() == Execution::Portable {
        println!("not tested: this processor has no machine code");
        return;
    }
    let program = |length: &str| {
        let source = format!(
            "program p workgroup(8) {{\nread x: [u8{length}]\nwrite y: [u32]\n%i = global_index\n\
            %v = load x[%i]\nstore y[%i], %v\n}}"
        );
        let module = text::parse(&source).expect("a program");
        validate::program(module.programs.into_iter().next().expect("one")).expect("valid")
    };
    let device = Device::open(&Cpu { threads: Some(1), ..Cpu::default() }).expect("a processor").as_written();
    let reason = Some("no machine code: `x` has 2147483648 elements, and code can index 2147483647".to_owned());
    // By the declared length, by the lengths specialized for, and by those of the buffers.
    assert_eq!(device.compile(&program("; 2147483647")).unwrap().compilation().fallback, None);
    assert_eq!(device.compile(&program("; 2147483648")).unwrap().compilation().fallback, reason);
    let program = program("");
    let x = program.memories().iter().find(|(_, memory)| memory.name == "x").expect("it is declared").0;
    assert_eq!(device.compile_for(&program, &[(x, (1 << 31) - 1)]).unwrap().compilation().fallback, None);
    assert_eq!(device.compile_for(&program, &[(x, 1 << 31)]).unwrap().compilation().fallback, reason);
    let kernel = device.compile(&program).unwrap();
    assert_eq!(kernel.compilation().fallback, None);
    let (x, y) = (device.allocate(Element::U8, 1 << 31).unwrap(), device.allocate(Element::U32, 16).unwrap());
    let short = x.slice(0..(1 << 31) - 1).unwrap();
    for (x, expected) in [(&x, reason), (&short, None)] {
        let dispatch = kernel.dispatch(Grid::elements(16), [("x", x.into()), ("y", (&y).into())]).unwrap();
        assert_eq!(dispatch.fallback(), expected);
        assert_eq!(device.run(&dispatch).expect("it runs").outcome, Outcome::Completed);
    }
}

/// Without a fence, other threads may see stores after a storage barrier before non-temporal stores ahead of it.
#[test]
fn storage_barriers_fence_non_temporal_stores() {
    for size in [8, 64, 1024] {
        let listing_with = |barrier: &str| {
            let source = format!(
                "program p workgroup({size}) {{\nwrite y: [u32]\nread_write atomic flag: [u32; 1]\n%i = global_index\n\
                 store y[%i], %i\n{barrier}\natomic_add flag[0], 1\n}}"
            );
            let module = text::parse(&source).expect("a program");
            let program = validate::program(module.programs.into_iter().next().unwrap()).expect("valid");
            [Execution::Avx2, Execution::Avx512].map(|execution| listing(&program, execution).expect("code"))
        };
        let fences = |listings: [String; 2]| listings.map(|listing| listing.matches("sfence").count());
        // One at the end, and one for each barrier.
        assert_eq!(fences(listing_with("storage_barrier")), [2, 2], "workgroups of {size}");
        assert_eq!(fences(listing_with("workgroup_barrier")), [1, 1], "workgroups of {size}");
    }
}
