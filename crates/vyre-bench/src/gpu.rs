//! GPU benchmarks: example kernels on the wgpu device, with resident data, against hand-written WGSL through wgpu
//! alone: execution time, SPIR-V instructions, cost of many small dispatches, and time to first result of a process.
//!
//! Kernels are timed from submission to completion. Instructions are those of modules for a device without workarounds.
//! Programs are marked `fast`: like WGSL, they use the device's floats.

use std::process::Command;

use vyre_driver::{Argument, Buffer, Device, Error};
use vyre_foundation::ir::{Element, Program};
use vyre_foundation::{Validated, validate};
use vyre_wgpu::{Emitted, Target, Wgpu, emit};

use crate::baseline::raw::{self, Raw};
use crate::job::{Job, arguments, elements, example, example_source, floats, groups, program, random, square, words};
use crate::line::{Line, Report};

const SAXPY: &str = include_str!("baseline/wgsl/saxpy.wgsl");
const REDUCE: &str = include_str!("baseline/wgsl/reduce.wgsl");
const MATMUL: &str = include_str!("baseline/wgsl/matmul.wgsl");
const MANDELBROT: &str = include_str!("baseline/wgsl/mandelbrot.wgsl");
const SCAN: &str = include_str!("baseline/wgsl/scan.wgsl");
const TINY: &str = include_str!("baseline/wgsl/tiny.wgsl");

/// Environment variable that makes a process compute a first result, and names the implementation.
const FIRST: &str = "VYRE_BENCH_FIRST_RESULT";

/// Common state of all lines.
struct Bench<'r> {
    report: &'r Report,
    device: Device,
    raw: Raw,
}

/// A launch: a program, and an equivalent WGSL entry point.
type Pair<'a> = (&'a Validated<Program>, &'a str, &'a str);

type Kernels = fn(&Bench<'_>) -> Result<(), Error>;

const KERNELS: [(&str, Kernels); 6] = [
    ("saxpy", saxpy),
    ("reduce", reduce),
    ("matmul", matmul),
    ("mandelbrot", mandelbrot),
    ("scan", scan),
    ("dispatch_10000", dispatches),
];

pub(crate) fn run(report: &Report) -> Result<(), Error> {
    if let Ok(whose) = std::env::var(FIRST) {
        return first_result_here(&whose);
    }
    first_result(report);
    let bench = Bench { report, device: Device::open(&Wgpu)?, raw: Raw::open() };
    report.adapter(bench.device.capabilities());
    for (name, measure) in KERNELS {
        if report.is_selected(name) || report.is_selected(&format!("{name}_instructions")) {
            measure(&bench)?;
        }
    }
    Ok(())
}

fn line<'a>(name: &'a str, work: u64, unit: &'a str) -> Line<'a> {
    Line { suite: "gpu", name, device: "wgpu", threads: 0, baseline: "raw", work, unit }
}

/// The program in the form compared with WGSL: with the floats of the device.
fn fast(program: Result<Validated<Program>, Error>) -> Result<Validated<Program>, Error> {
    let mut program = (*program?).clone();
    program.set_fast(true);
    Ok(validate::program(program)?)
}

impl Bench<'_> {
    fn count(&self) -> u32 {
        if self.report.quick { 1 << 20 } else { 1 << 23 }
    }

    fn upload(&self, element: Element, bytes: &[u8]) -> Result<(Buffer, wgpu::Buffer), Error> {
        Ok((self.device.upload(element, bytes)?, self.raw.buffer(bytes)))
    }

    fn zeros(&self, element: Element, count: u32) -> Result<(Buffer, wgpu::Buffer), Error> {
        self.upload(element, &vec![0; count as usize * element.size()])
    }

    /// Measures the lines of a kernel.
    fn lines(
        &self,
        name: &str,
        (work, unit): (u64, &str),
        ours: &Job,
        theirs: &[raw::Dispatch],
        pairs: &[Pair<'_>],
    ) -> Result<(), Error> {
        self.report.compare(&mut || ours.run(), &mut [(line(name, work, unit), &mut || self.raw.run(theirs))]);
        // The optimizer unrolls loops; the lowering of the unoptimized program is comparable with the source.
        for (suffix, device) in [("instructions", &self.device), ("instructions_as_written", &self.device.as_written())]
        {
            let (mut of_ours, mut of_theirs) = (0, 0);
            for (program, source, entry) in pairs {
                let Emitted::Words(words) = emit(device.compile(program)?.program(), Target::SpirV)? else {
                    unreachable!("SPIR-V is words")
                };
                of_ours += raw::instructions(&words);
                of_theirs += raw::instructions(&raw::spirv(source, entry));
            }
            let name = format!("{name}_{suffix}");
            self.report.counts(&line(&name, work, "instructions of SPIR-V"), of_ours, of_theirs);
        }
        Ok(())
    }
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn saxpy(bench: &Bench<'_>) -> Result<(), Error> {
    let (count, raw) = (bench.count(), &bench.raw);
    let (x, y) = (random(Element::F32, count, 1)?, random(Element::F32, count, 2)?);
    let program = fast(example("saxpy", "saxpy"))?;
    let ((x, raw_x), (y, raw_y)) = (bench.upload(Element::F32, &x)?, bench.upload(Element::F32, &y)?);
    let arguments = arguments![a: 1.5f32, x: &x, y: &y];
    let ours = Job::new(&bench.device).launch(&program, elements(count), arguments)?;
    let params = raw.buffer(&1.5f32.to_le_bytes());
    let theirs = [raw.dispatch(SAXPY, "main", [count.div_ceil(256), 1, 1], &[(0, &params), (1, &raw_x), (2, &raw_y)])];
    ours.run();
    raw.run(&theirs);
    assert_near("saxpy", &y.read()?, &raw.read(&raw_y));
    bench.lines("saxpy", (u64::from(count), "elements"), &ours, &theirs, &[(&program, SAXPY, "main")])
}

fn reduce(bench: &Bench<'_>) -> Result<(), Error> {
    let (count, raw) = (bench.count(), &bench.raw);
    let program = fast(example("reduce", "reduce"))?;
    let (data, raw_data) = bench.upload(Element::F32, &random(Element::F32, count, 1)?)?;
    let (sums, raw_sums) = bench.zeros(Element::F32, 256)?;
    let (total, raw_total) = bench.zeros(Element::F32, 1)?;
    let ours = Job::new(&bench.device).launch(&program, groups(256), arguments![data: &data, sums: &sums])?.launch(
        &program,
        groups(1),
        arguments![data: &sums, sums: &total],
    )?;
    let theirs = [
        raw.dispatch(REDUCE, "main", [256, 1, 1], &[(0, &raw_data), (1, &raw_sums)]),
        raw.dispatch(REDUCE, "main", [1, 1, 1], &[(0, &raw_sums), (1, &raw_total)]),
    ];
    ours.run();
    raw.run(&theirs);
    assert_near("reduce", &total.read()?, &raw.read(&raw_total)[..4]);
    bench.lines("reduce", (u64::from(count), "elements"), &ours, &theirs, &[(&program, REDUCE, "main")])
}

fn matmul(bench: &Bench<'_>) -> Result<(), Error> {
    let (side, raw): (u32, _) = (if bench.report.quick { 128 } else { 512 }, &bench.raw);
    let program = fast(example("matmul_tiled", "matmul_tiled"))?;
    let (a, raw_a) = bench.upload(Element::F32, &random(Element::F32, side * side, 1)?)?;
    let (b, raw_b) = bench.upload(Element::F32, &random(Element::F32, side * side, 2)?)?;
    let (c, raw_c) = bench.zeros(Element::F32, side * side)?;
    let sizes = ["m", "n", "k"].map(|name| (name, Argument::from(side)));
    let matrices = [("a", (&a).into()), ("b", (&b).into()), ("c", (&c).into())];
    let arguments = sizes.into_iter().chain(matrices).collect();
    let ours = Job::new(&bench.device).launch(&program, square(side), arguments)?;
    let params = raw.buffer(&bytes(&[side; 3]));
    let buffers = [(0, &params), (1, &raw_a), (2, &raw_b), (3, &raw_c)];
    let theirs = [raw.dispatch(MATMUL, "main", [side.div_ceil(16), side.div_ceil(16), 1], &buffers)];
    ours.run();
    raw.run(&theirs);
    assert_near("matmul", &c.read()?, &raw.read(&raw_c));
    let work = (2 * u64::from(side).pow(3), "operations");
    bench.lines("matmul", work, &ours, &theirs, &[(&program, MATMUL, "main")])
}

fn mandelbrot(bench: &Bench<'_>) -> Result<(), Error> {
    let (side, raw) = (1024, &bench.raw);
    // WGSL has no byte type.
    let source = example_source("mandelbrot").replace("[u8;", "[u32;");
    let program = fast(program(&source, "mandelbrot"))?;
    let (image, raw_image) = bench.zeros(Element::U32, side * side)?;
    let ours = Job::new(&bench.device).launch(&program, square(side), arguments![image: &image])?;
    let params = raw.buffer(&bytes(&[-0.75f32, 0.0, 2.5].map(f32::to_bits)));
    let theirs = [raw.dispatch(MANDELBROT, "main", [side / 16, side / 16, 1], &[(0, &params), (1, &raw_image)])];
    ours.run();
    raw.run(&theirs);
    // At the border of the set, a rounding difference changes the shade.
    let (found, expected) = (words(&image.read()?), words(&raw.read(&raw_image)));
    let same = found.iter().zip(&expected).filter(|(a, b)| a == b).count();
    assert!(same > expected.len() / 100 * 98, "mandelbrot: results differ");
    let work = (u64::from(side * side), "pixels");
    bench.lines("mandelbrot", work, &ours, &theirs, &[(&program, MANDELBROT, "main")])
}

fn scan(bench: &Bench<'_>) -> Result<(), Error> {
    let (count, chunks, raw) = (bench.count(), 256, &bench.raw);
    let programs =
        [example("scan_tiles", "sum_tiles")?, example("scan", "scan_blocks")?, example("scan_tiles", "scan_tiles")?];
    let (data, raw_data) = bench.upload(Element::U32, &random(Element::U32, count, 1)?)?;
    let (totals, raw_totals) = bench.zeros(Element::U32, chunks)?;
    let (offsets, raw_offsets) = bench.zeros(Element::U32, chunks)?;
    let (total, _) = bench.zeros(Element::U32, 1)?;
    let (sums, raw_sums) = bench.zeros(Element::U32, count)?;
    let arguments = [
        arguments![data: &data, totals: &totals],
        arguments![data: &totals, sums: &offsets, totals: &total],
        arguments![data: &data, offsets: &offsets, sums: &sums],
    ];
    let mut ours = Job::new(&bench.device);
    for ((program, grid), arguments) in programs.iter().zip([chunks, 1, chunks]).zip(arguments) {
        ours = ours.launch(program, groups(grid), arguments)?;
    }
    let theirs = [
        raw.dispatch(SCAN, "sum_chunks", [chunks, 1, 1], &[(0, &raw_data), (2, &raw_totals)]),
        raw.dispatch(SCAN, "scan_totals", [1, 1, 1], &[(0, &raw_totals), (2, &raw_offsets)]),
        raw.dispatch(SCAN, "scan_chunks", [chunks, 1, 1], &[(0, &raw_data), (1, &raw_offsets), (3, &raw_sums)]),
    ];
    ours.run();
    raw.run(&theirs);
    assert!(sums.read()? == raw.read(&raw_sums), "scan: results differ");
    let pairs =
        [(&programs[0], SCAN, "sum_chunks"), (&programs[1], SCAN, "scan_totals"), (&programs[2], SCAN, "scan_chunks")];
    bench.lines("scan", (u64::from(count), "elements"), &ours, &theirs, &pairs)
}

/// Dependent dispatches, submitted one by one, against as many in one encoder.
fn dispatches(bench: &Bench<'_>) -> Result<(), Error> {
    let raw = &bench.raw;
    let tiny = program(
        "program tiny workgroup(64) {
            read_write cells: [u32]
            %i = global_index
            %cell = load cells[%i]
            %next = add %cell, 1
            store cells[%i], %next
        }",
        "tiny",
    )?;
    let (cells, raw_cells) = bench.zeros(Element::U32, 64)?;
    let kernel = bench.device.compile(&tiny)?;
    let count = 10_000;
    let ours = || {
        let mut last = None;
        for _ in 0..count {
            let dispatch = kernel.dispatch(groups(1), arguments![cells: &cells]).expect("arguments that fit");
            last = Some(bench.device.submit(&[dispatch]).expect("the device is there"));
        }
        last.expect("there are some").wait().expect("the device is there");
    };
    let theirs = raw.dispatch(TINY, "main", [1, 1, 1], &[(0, &raw_cells)]);
    let run_raw = || raw.run(std::iter::repeat_n(&theirs, count));
    ours();
    run_raw();
    assert!(
        words(&cells.read()?) == [count as u32; 64] && raw.read(&raw_cells) == cells.read()?,
        "dispatches are lost"
    );
    let line = line("dispatch_10000", count as u64, "dispatches");
    bench.report.compare(&mut || ours(), &mut [(line, &mut || run_raw())]);
    Ok(())
}

/// Time to first result of new processes.
fn first_result(report: &Report) {
    let run = |whose: &str| {
        let program = std::env::current_exe().expect("this program has a path");
        let output = Command::new(program).arg("gpu").env(FIRST, whose).output();
        let output = output.expect("this program can be started again");
        assert_eq!(output.stdout, b"2.5\n", "the first result of {whose} is wrong");
    };
    let line = line("first_result", 1, "processes");
    report.compare(&mut || run("ours"), &mut [(line, &mut || run("raw"))]);
}

/// Main function of such a process.
fn first_result_here(whose: &str) -> Result<(), Error> {
    let (x, y) = (1f32.to_le_bytes(), 1f32.to_le_bytes());
    let result = if whose == "raw" {
        let raw = Raw::open();
        let (params, x, y) = (raw.buffer(&1.5f32.to_le_bytes()), raw.buffer(&x), raw.buffer(&y));
        raw.run(&[raw.dispatch(SAXPY, "main", [1, 1, 1], &[(0, &params), (1, &x), (2, &y)])]);
        raw.read(&y)[..4].to_vec()
    } else {
        let device = Device::open(&Wgpu)?;
        let (x, y) = (device.upload(Element::F32, &x)?, device.upload(Element::F32, &y)?);
        let arguments = arguments![a: 1.5f32, x: &x, y: &y];
        Job::new(&device).launch(&example("saxpy", "saxpy")?, elements(1), arguments)?.run();
        y.read()?
    };
    println!("{}", floats(&result)[0]);
    Ok(())
}

fn assert_near(name: &str, found: &[u8], expected: &[u8]) {
    let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * b.abs();
    assert!(floats(found).iter().zip(&floats(expected)).all(near), "{name}: results differ");
}
