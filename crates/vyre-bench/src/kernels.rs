//! The example kernels on the CPU device: against plain single-threaded Rust where there is an obvious way to write it, and
//! against the oracle and themselves without the optimizer.

use std::hint::black_box;

use vyre_cpu::Cpu;
use vyre_driver::{Argument, Buffer, Device, Dispatch, Error, Grid, Kernel, Oracle};
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::Program;
use vyre_foundation::launch::{self, Limits};
use vyre_foundation::{Validated, text, validate};

use crate::line::{Line, Report, Taken};

/// A kernel of the examples with its arguments, ready to run on a device.
struct Job {
    device: Device,
    kernel: Kernel,
    arguments: Vec<(String, Argument)>,
    grid: launch::Grid,
}

impl Job {
    fn new(
        device: &Device,
        source: &str,
        name: &str,
        grid: launch::Grid,
        given: &[(&str, String)],
    ) -> Result<Job, Error> {
        let program = program(source, name)?;
        let mut inputs = Inputs::default();
        for (name, notation) in given {
            inputs.notation(&program, name, notation)?;
        }
        inputs.complete(&program)?;
        let arguments = inputs
            .arguments()
            .into_iter()
            .map(|(name, argument)| {
                Ok((
                    name.to_owned(),
                    match argument {
                        launch::Argument::Scalar(literal) => Argument::Scalar(literal),
                        launch::Argument::Slice(slice) => {
                            Argument::Buffer(device.upload(slice.element, &inputs.buffers[slice.buffer as usize])?)
                        }
                    },
                ))
            })
            .collect::<Result<_, Error>>()?;
        Ok(Job { device: device.clone(), kernel: device.compile(&program)?, arguments, grid })
    }

    fn run(&self) {
        let arguments = self.arguments.iter().map(|(name, argument)| (name.as_str(), argument.clone())).collect();
        let grid = Grid::Fixed(self.grid);
        let dispatch = Dispatch { kernel: &self.kernel, grid, arguments, limits: Limits::default() };
        self.device.run(&dispatch).expect("the job was run before");
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        words(self.buffer(name)).into_iter().map(f32::from_bits).collect()
    }

    fn buffer(&self, name: &str) -> &Buffer {
        let argument = self.arguments.iter().find(|(bound, _)| bound == name);
        match argument {
            Some((_, Argument::Buffer(buffer))) => buffer,
            _ => panic!("`{name}` is a buffer of the kernel"),
        }
    }
}

fn words(buffer: &Buffer) -> Vec<u32> {
    let bytes = buffer.read().expect("the device is there");
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

fn program(source: &str, name: &str) -> Result<Validated<Program>, Error> {
    let programs = validate::module(text::parse(source)?)?;
    Ok(programs.into_iter().find(|program| program.name == name).expect("the file has it"))
}

macro_rules! example {
    ($name:literal) => {
        include_str!(concat!("../../../examples/kernels/", $name, ".vyre"))
    };
}

pub(crate) fn run(report: &Report) -> Result<(), Error> {
    let cpu = Device::open(&Cpu::default())?;
    let threads = cpu.capabilities().threads.unwrap_or(1);
    let line = |name: &'static str, baseline: &'static str, work: u64| Line {
        suite: "kernels",
        name,
        device: "cpu",
        threads,
        baseline,
        work,
        unit: "elements",
    };

    let count: u32 = if report.quick { 1 << 20 } else { 1 << 24 };
    let elements = launch::Grid::Elements([count, 1, 1]);
    let zeros = format!("zeros:{count}");
    let random = format!("random:{count}:1");

    let given = [("a", "1.5".into()), ("x", random.clone()), ("y", zeros.clone())];
    let saxpy = Job::new(&cpu, example!("saxpy"), "saxpy", elements, &given)?;
    let (x, mut y) = (saxpy.floats("x"), vec![0f32; count as usize]);
    report.compare(&line("saxpy_vs_rust", "rust", u64::from(count)), &mut || saxpy.run(), &mut || {
        for (y, x) in y.iter_mut().zip(&x) {
            *y += 1.5 * x;
        }
        black_box(&mut y);
    });

    let hash =
        Job::new(&cpu, example!("hash"), "hash", elements, &[("keys", random.clone()), ("hashes", zeros.clone())])?;
    let (keys, mut hashes) = (words(hash.buffer("keys")), vec![0u32; count as usize]);
    report.compare(&line("hash_vs_rust", "rust", u64::from(count)), &mut || hash.run(), &mut || {
        for (hash, key) in hashes.iter_mut().zip(&keys) {
            let mut h = *key;
            h = (h ^ (h >> 16)).wrapping_mul(0x85eb_ca6b);
            h = (h ^ (h >> 13)).wrapping_mul(0xc2b2_ae35);
            *hash = h ^ (h >> 16);
        }
        black_box(&mut hashes);
    });
    assert_eq!(words(hash.buffer("hashes")), hashes);

    let groups = launch::Grid::Groups([64, 1, 1]);
    let reduce =
        Job::new(&cpu, example!("reduce"), "reduce", groups, &[("data", random.clone()), ("sums", "zeros:64".into())])?;
    let data = reduce.floats("data");
    report.compare(&line("reduce_vs_rust", "rust", u64::from(count)), &mut || reduce.run(), &mut || {
        black_box(data.iter().sum::<f32>());
    });

    examples(report, &cpu, threads)?;

    let empty = "program empty workgroup(1) {\n}";
    let empty = Job::new(&cpu, empty, "empty", launch::Grid::Groups([1, 1, 1]), &[])?;
    let mut line = line("launch_empty", "3 us", 1);
    line.unit = "launches";
    report.against_limit(&line, 3000.0, Taken::Median, &mut || empty.run());
    Ok(())
}

/// The name of a line, the source and name of a program, its grid and its arguments.
type NamedJob<'a> = (&'static str, &'a str, &'a str, launch::Grid, Vec<(&'a str, String)>);

/// Every example kernel, at a size that the oracle can do in a moment.
fn examples(report: &Report, cpu: &Device, threads: u32) -> Result<(), Error> {
    let oracle = Device::open(&Oracle::default())?;
    let count = 1u32 << 16;
    let (zeros, random) = (format!("zeros:{count}"), format!("random:{count}:7"));
    let elements = launch::Grid::Elements([count, 1, 1]);
    let square = |side: u32| launch::Grid::Elements([side, side, 1]);
    let cells = format!("zeros:{}", 256 * 256);
    let matrix = format!("random:{}:3", 96 * 96);
    let product = format!("zeros:{}", 96 * 96);
    let jobs: Vec<NamedJob<'_>> = vec![
        (
            "saxpy",
            example!("saxpy"),
            "saxpy",
            elements,
            vec![("a", "2".into()), ("x", random.clone()), ("y", zeros.clone())],
        ),
        ("hash", example!("hash"), "hash", elements, vec![("keys", random.clone()), ("hashes", zeros.clone())]),
        ("mandelbrot", example!("mandelbrot"), "mandelbrot", square(1024), vec![]),
        (
            "gather",
            example!("gather"),
            "gather",
            elements,
            vec![("table", random.clone()), ("index", format!("iota:{count}")), ("out", zeros.clone())],
        ),
        (
            "reduce",
            example!("reduce"),
            "reduce",
            launch::Grid::Groups([16, 1, 1]),
            vec![("data", random.clone()), ("sums", "zeros:16".into())],
        ),
        (
            "scan",
            example!("scan"),
            "scan_blocks",
            elements,
            vec![("data", random.clone()), ("sums", zeros.clone()), ("totals", "zeros:256".into())],
        ),
        (
            "histogram",
            example!("histogram"),
            "histogram",
            launch::Grid::Groups([16, 1, 1]),
            vec![("data", random.clone())],
        ),
        (
            "matmul",
            example!("matmul"),
            "matmul",
            square(96),
            vec![
                ("m", "96".into()),
                ("n", "96".into()),
                ("k", "96".into()),
                ("a", matrix.clone()),
                ("b", matrix.clone()),
                ("c", product.clone()),
            ],
        ),
        (
            "matmul_tiled",
            example!("matmul_tiled"),
            "matmul_tiled",
            square(96),
            vec![
                ("m", "96".into()),
                ("n", "96".into()),
                ("k", "96".into()),
                ("a", matrix.clone()),
                ("b", matrix),
                ("c", product),
            ],
        ),
        (
            "nbody",
            example!("nbody"),
            "nbody",
            launch::Grid::Elements([512, 1, 1]),
            vec![
                ("dt", "0.01".into()),
                ("softening", "0.1".into()),
                ("bodies", "random:2048:1".into()),
                ("velocities", "zeros:1536".into()),
                ("moved", "zeros:2048".into()),
            ],
        ),
        (
            "life",
            example!("life"),
            "life",
            square(256),
            vec![("width", "256".into()), ("height", "256".into()), ("cells", cells.clone()), ("next", cells)],
        ),
        (
            "bitonic",
            example!("bitonic"),
            "bitonic",
            launch::Grid::Elements([count / 2, 1, 1]),
            vec![("k", "1024".into()), ("j", "256".into()), ("keys", random)],
        ),
    ];
    for (name, source, program, grid, given) in jobs {
        let (of_oracle, of_written) = (format!("{name}_vs_oracle"), format!("{name}_vs_as_written"));
        if !of_oracle.contains(&report.only) && !of_written.contains(&report.only) {
            continue;
        }
        let line = |name, baseline| Line {
            suite: "kernels",
            name,
            device: "cpu",
            threads,
            baseline,
            work: u64::from(count),
            unit: "elements",
        };
        let ours = Job::new(cpu, source, program, grid, &given)?;
        let written = Job::new(&cpu.as_written(), source, program, grid, &given)?;
        report.compare(&line(&of_written, "written"), &mut || ours.run(), &mut || written.run());
        let baseline = Job::new(&oracle, source, program, grid, &given)?;
        let few_rounds = Report { json: report.json, quick: true, only: report.only.clone() };
        few_rounds.compare(&line(&of_oracle, "oracle"), &mut || ours.run(), &mut || baseline.run());
    }
    Ok(())
}
