//! CPU kernel benchmarks, with resident data: the example kernels and `vyre::kernels` against hand-written kernels
//! (`expert`), plain Rust with rayon, libraries, and their unoptimized forms; scaling to a second thread; launch and
//! compile overhead.
//!
//! All contenders use all cores, except for `sprs`. Results are compared with those of hand-written kernels, rayon and
//! libraries before the measurement; in `spmv` and `matmul_1024`, after it.

use std::cell::RefCell;
use std::hint::black_box;

use vyre::kernels;
use vyre_cpu::Cpu;
use vyre_driver::backend::Backend;
use vyre_driver::{Argument, Buffer, Device, Error};
use vyre_foundation::Validated;
use vyre_foundation::fill::{Fill, parse_value};
use vyre_foundation::ir::{Element, Program, Space, total_invocations};
use vyre_foundation::launch;

use crate::baseline::{Huge, Image, Isa, Step, expert, plain};
use crate::compile;
use crate::host::driver_error;
use crate::job::{Job, arguments, elements, example, floats, groups, program, random, square, words};
use crate::line::{Contender, Line, Report, Statistic};

/// Common state of all lines.
struct Bench<'r> {
    report: &'r Report,
    cpu: Device,
    /// The same device in the API of `vyre::kernels`.
    typed: vyre::Device,
    threads: u32,
}

type Kernels = fn(&Bench<'_>) -> Result<(), Error>;

/// Names of lines, and the functions that measure them.
const KERNELS: [(&[&str], Kernels); 12] = [
    (&["saxpy", "saxpy_vs_rayon"], saxpy),
    (&["hash", "hash_vs_rayon"], hash),
    (&["mandelbrot", "mandelbrot_vs_rayon", "mandelbrot_two_threads_vs_one"], mandelbrot),
    (&["gather", "gather_vs_rayon"], gather),
    (&["nbody", "nbody_vs_rsqrt", "nbody_vs_rayon", "nbody_two_threads_vs_one"], nbody),
    (&["scan", "scan_vs_rayon"], scan),
    (&["reduce", "reduce_vs_rayon"], reduce),
    (&["histogram", "histogram_vs_rayon"], histogram),
    (&["matmul", "matmul_vs_rayon", "matmul_tiled", "matmul_tiled_vs_rayon"], matmul),
    (&["sort", "sort_vs_rayon"], sort),
    (&["spmv"], spmv),
    (&["matmul_1024"], matmul_1024),
];

pub(crate) fn run(report: &Report) -> Result<(), Error> {
    let cpu = Device::open(&Cpu::default())?;
    let threads = cpu.capabilities().threads.unwrap_or(1);
    let bench = Bench { report, typed: vyre::Device::from(cpu.clone()), cpu, threads };
    eprintln!("experts: {:?}", Isa::detect());
    for (names, measure) in KERNELS {
        if names.iter().any(|name| report.is_selected(name)) {
            measure(&bench)?;
        }
    }
    as_written(&bench)?;
    overheads(&bench)
}

impl Bench<'_> {
    /// 16 million elements, or one million with `--quick`.
    fn count(&self) -> u32 {
        if self.report.quick { 1 << 20 } else { 1 << 24 }
    }

    fn upload(&self, element: Element, bytes: &[u8]) -> Result<Buffer, Error> {
        self.cpu.upload(element, bytes)
    }

    fn zeros(&self, element: Element, count: u32) -> Result<Buffer, Error> {
        self.cpu.allocate(element, u64::from(count))
    }

    fn line<'a>(&self, name: &'a str, baseline: &'a str, work: u64, unit: &'a str) -> Line<'a> {
        Line { suite: "kernels", name, device: "cpu", threads: self.threads, baseline, work, unit }
    }

    /// Measures a kernel against both baselines.
    fn lines(
        &self,
        name: &str,
        (work, unit): (u64, &str),
        ours: &dyn Fn(),
        expert: Contender<'_>,
        plain: Contender<'_>,
    ) {
        let of_rayon = format!("{name}_vs_rayon");
        self.report.compare(
            &mut || ours(),
            &mut [(self.line(name, "expert", work, unit), expert), (self.line(&of_rayon, "rayon", work, unit), plain)],
        );
    }

    /// Measures a kernel on two threads against one thread.
    fn two_threads(
        &self,
        name: &str,
        (work, unit): (u64, &str),
        job: &dyn Fn(&Device) -> Result<Job, Error>,
    ) -> Result<(), Error> {
        let name = format!("{name}_two_threads_vs_one");
        if !self.report.is_selected(&name) {
            return Ok(());
        }
        let one = job(&Device::open(&Cpu { threads: Some(1), ..Cpu::default() })?)?;
        let two = job(&Device::open(&Cpu { threads: Some(2), ..Cpu::default() })?)?;
        let line = Line { threads: 2, ..self.line(&name, "1 thread", work, unit) };
        self.report.compare(&mut || two.run(), &mut [(line, &mut || one.run())]);
        Ok(())
    }
}

fn saxpy(bench: &Bench<'_>) -> Result<(), Error> {
    let count = bench.count();
    let (x, y) = (random(Element::F32, count, 1)?, random(Element::F32, count, 2)?);
    let of_ours = bench.upload(Element::F32, &y)?;
    let ours = Job::new(&bench.cpu).launch(
        &example("saxpy", "saxpy")?,
        elements(count),
        arguments![a: 1.5f32, x: &bench.upload(Element::F32, &x)?, y: &of_ours],
    )?;
    let (x, mut of_plain) = (floats(&x), floats(&y));
    let (huge_x, mut of_expert) = (Huge::of(&x), Huge::of(&of_plain));
    ours.run();
    expert::saxpy(1.5, &huge_x, &mut of_expert);
    plain::saxpy(1.5, &x, &mut of_plain);
    assert!(floats(&of_ours.read()?) == of_plain && of_plain == *of_expert, "saxpy: results differ");

    bench.lines(
        "saxpy",
        (u64::from(count), "elements"),
        &|| ours.run(),
        &mut || expert::saxpy(1.5, &huge_x, &mut of_expert),
        &mut || {
            plain::saxpy(1.5, &x, &mut of_plain);
        },
    );
    Ok(())
}

fn hash(bench: &Bench<'_>) -> Result<(), Error> {
    let count = bench.count();
    let keys = random(Element::U32, count, 1)?;
    let of_ours = bench.zeros(Element::U32, count)?;
    let ours = Job::new(&bench.cpu).launch(
        &example("hash", "hash")?,
        elements(count),
        arguments![keys: &bench.upload(Element::U32, &keys)?, hashes: &of_ours],
    )?;
    let (keys, mut of_plain) = (words(&keys), vec![0; count as usize]);
    let (huge_keys, mut of_expert) = (Huge::of(&keys), Huge::zeros(count as usize));
    ours.run();
    expert::hash(&huge_keys, &mut of_expert);
    plain::hash(&keys, &mut of_plain);
    assert!(words(&of_ours.read()?) == of_plain && of_plain == *of_expert, "hash: results differ");

    bench.lines(
        "hash",
        (u64::from(count), "elements"),
        &|| ours.run(),
        &mut || expert::hash(&huge_keys, &mut of_expert),
        &mut || {
            plain::hash(&keys, &mut of_plain);
        },
    );
    Ok(())
}

fn mandelbrot(bench: &Bench<'_>) -> Result<(), Error> {
    let image = Image { side: 1024, max_trips: 256, center: (-0.75, 0.0), span: 2.5 };
    let side = image.side as u32;
    let (program, of_ours) = (example("mandelbrot", "mandelbrot")?, bench.zeros(Element::U8, side * side)?);
    let job = |device: &Device, pixels: Buffer| {
        let view = [("center_x", image.center.0), ("center_y", image.center.1), ("span", image.span)];
        let view = view.map(|(name, value)| (name, Argument::from(value)));
        let arguments = view.into_iter().chain([("image", Argument::from(&pixels))]).collect();
        Job::new(device).launch(&program, square(side), arguments)
    };
    let ours = job(&bench.cpu, of_ours.clone())?;
    let (mut of_expert, mut of_plain) = (Huge::zeros(image.side * image.side), vec![0; image.side * image.side]);
    ours.run();
    expert::mandelbrot(&image, &mut of_expert);
    plain::mandelbrot(&image, &mut of_plain);
    assert!(of_ours.read()? == of_plain && of_plain == *of_expert, "mandelbrot: results differ");

    let work = (u64::from(side * side), "pixels");
    bench.lines("mandelbrot", work, &|| ours.run(), &mut || expert::mandelbrot(&image, &mut of_expert), &mut || {
        plain::mandelbrot(&image, &mut of_plain);
    });
    bench.two_threads("mandelbrot", work, &|device| job(device, device.allocate(Element::U8, u64::from(side * side))?))
}

fn gather(bench: &Bench<'_>) -> Result<(), Error> {
    let count = bench.count();
    let table = random(Element::F32, count, 1)?;
    let mut index = words(&random(Element::U32, count, 2)?);
    for index in &mut index {
        *index %= count;
    }
    let of_ours = bench.zeros(Element::F32, count)?;
    let bytes: Vec<u8> = index.iter().flat_map(|index| index.to_le_bytes()).collect();
    let ours = Job::new(&bench.cpu).launch(
        &example("gather", "gather")?,
        elements(count),
        arguments![
            table: &bench.upload(Element::F32, &table)?, index: &bench.upload(Element::U32, &bytes)?, out: &of_ours
        ],
    )?;
    let (table, mut of_plain) = (floats(&table), vec![0.0; count as usize]);
    let (huge_table, huge_index, mut of_expert) = (Huge::of(&table), Huge::of(&index), Huge::zeros(count as usize));
    ours.run();
    expert::gather(&huge_table, &huge_index, &mut of_expert);
    plain::gather(&table, &index, &mut of_plain);
    assert!(floats(&of_ours.read()?) == of_plain && of_plain == *of_expert, "gather: results differ");

    let mut expert = || expert::gather(&huge_table, &huge_index, &mut of_expert);
    bench.lines("gather", (u64::from(count), "elements"), &|| ours.run(), &mut expert, &mut || {
        plain::gather(&table, &index, &mut of_plain);
    });
    Ok(())
}

fn nbody(bench: &Bench<'_>) -> Result<(), Error> {
    let count: u32 = if bench.report.quick { 1024 } else { 4096 };
    let step = Step { dt: 0.01, softening: 0.1 };
    let bodies = random(Element::F32, 4 * count, 1)?;
    let program = example("nbody", "nbody")?;
    let (velocities, moved) = (bench.zeros(Element::F32, 3 * count)?, bench.zeros(Element::F32, 4 * count)?);
    let job = |device: &Device, velocities: Buffer, moved: Buffer| {
        let arguments = arguments![
            dt: step.dt, softening: step.softening, bodies: &device.upload(Element::F32, &bodies)?,
            velocities: &velocities, moved: &moved
        ];
        Job::new(device).launch(&program, elements(count), arguments)
    };
    let ours = job(&bench.cpu, velocities.clone(), moved.clone())?;
    let of_plain = floats(&bodies);
    let space = || (Huge::zeros(3 * count as usize), Huge::zeros(4 * count as usize));
    let (mut exact, mut near, mut by_rayon) = (space(), space(), space());
    ours.run();
    expert::nbody(step, &of_plain, &mut exact.0, &mut exact.1);
    expert::nbody_rsqrt(step, &of_plain, &mut near.0, &mut near.1);
    plain::nbody(step, &of_plain, &mut by_rayon.0, &mut by_rayon.1);
    assert!(floats(&velocities.read()?) == *exact.0 && floats(&moved.read()?) == *exact.1, "nbody: results differ");
    assert!(*by_rayon.1 == *exact.1, "nbody: the result with rayon differs");
    let is_near = |(near, exact): (&f32, &f32)| (near - exact).abs() <= 1e-4 * exact.abs().max(1.0);
    assert!(near.0.iter().zip(&*exact.0).all(is_near), "an approximate step is far from the exact one");

    let (work, unit) = (u64::from(count) * u64::from(count), "pairs");
    bench.report.compare(
        &mut || ours.run(),
        &mut [
            (bench.line("nbody", "expert", work, unit), &mut || {
                expert::nbody(step, &of_plain, &mut exact.0, &mut exact.1);
            }),
            (bench.line("nbody_vs_rsqrt", "rsqrt", work, unit), &mut || {
                expert::nbody_rsqrt(step, &of_plain, &mut near.0, &mut near.1);
            }),
            (bench.line("nbody_vs_rayon", "rayon", work, unit), &mut || {
                plain::nbody(step, &of_plain, &mut by_rayon.0, &mut by_rayon.1);
            }),
        ],
    );
    bench.two_threads("nbody", (work, unit), &|device| {
        let zeros = |count: u32| device.allocate(Element::F32, u64::from(count));
        job(device, zeros(3 * count)?, zeros(4 * count)?)
    })
}

fn scan(bench: &Bench<'_>) -> Result<(), Error> {
    let (count, device) = (bench.count(), &bench.typed);
    let data = words(&random(Element::U32, count, 1)?);
    let (x, sums) = (device.upload(&data).map_err(driver_error)?, device.zeros(data.len()).map_err(driver_error)?);
    let sums = RefCell::new(sums);
    let ours = || kernels::inclusive_scan(device, &x, &mut sums.borrow_mut(), 0, |a, b| a + b).expect("it fits");
    let mut of_plain = vec![0; data.len()];
    let (huge_data, mut of_expert) = (Huge::of(&data), Huge::zeros(data.len()));
    ours();
    expert::scan(&huge_data, &mut of_expert);
    plain::scan(&data, &mut of_plain);
    let of_ours = sums.borrow().download().map_err(driver_error)?;
    assert!(of_ours == of_plain && of_plain == *of_expert, "scan: results differ");

    let mut expert = || expert::scan(&huge_data, &mut of_expert);
    bench.lines("scan", (u64::from(count), "elements"), &ours, &mut expert, &mut || plain::scan(&data, &mut of_plain));
    Ok(())
}

fn reduce(bench: &Bench<'_>) -> Result<(), Error> {
    let (count, device) = (bench.count(), &bench.typed);
    let data = floats(&random(Element::F32, count, 1)?);
    let x = device.upload(&data).map_err(driver_error)?;
    let ours = || kernels::sum(device, &x).expect("it fits");
    let huge_data = Huge::of(&data);
    // The rounding of a sum depends on its order.
    let exact: f64 = data.iter().map(|element| f64::from(*element)).sum();
    for sum in [ours(), expert::reduce(&huge_data), plain::reduce(&data)] {
        assert!((f64::from(sum) - exact).abs() < 1e-4 * exact, "reduce gives {sum} instead of {exact}");
    }

    let ours = || {
        black_box(ours());
    };
    let mut expert = || {
        black_box(expert::reduce(&huge_data));
    };
    bench.lines("reduce", (u64::from(count), "elements"), &ours, &mut expert, &mut || {
        black_box(plain::reduce(&data));
    });
    Ok(())
}

fn histogram(bench: &Bench<'_>) -> Result<(), Error> {
    let (count, device) = (bench.count(), &bench.typed);
    let data = random(Element::U8, count, 1)?;
    let (x, bins) = (device.upload(&data).map_err(driver_error)?, device.zeros(256).map_err(driver_error)?);
    let bins = RefCell::new(bins);
    let ours = || kernels::histogram(device, &x, &mut bins.borrow_mut()).expect("it fits");
    let huge_data = Huge::of(&data);
    ours();
    let (of_expert, of_plain) = (expert::histogram(&huge_data), plain::histogram(&data));
    let of_ours = bins.borrow().download().map_err(driver_error)?;
    assert!(of_ours == of_plain && of_plain == of_expert, "histogram: results differ");

    let mut expert = || {
        black_box(expert::histogram(&huge_data));
    };
    bench.lines("histogram", (u64::from(count), "elements"), &ours, &mut expert, &mut || {
        black_box(plain::histogram(&data));
    });
    Ok(())
}

fn matmul(bench: &Bench<'_>) -> Result<(), Error> {
    let side: u32 = if bench.report.quick { 256 } else { 1024 };
    let (length, work) = (side as usize, (2 * u64::from(side).pow(3), "operations"));
    let (a, b) = (random(Element::F32, side * side, 1)?, random(Element::F32, side * side, 2)?);
    let (a_buffer, b_buffer) = (bench.upload(Element::F32, &a)?, bench.upload(Element::F32, &b)?);
    let (a, b, mut of_plain) = (floats(&a), floats(&b), vec![0.0; length * length]);
    let (huge_a, huge_b, mut of_expert) = (Huge::of(&a), Huge::of(&b), Huge::zeros(length * length));
    let mut packed = Huge::zeros(length * length);
    expert::matmul(length, &huge_a, &huge_b, &mut of_expert, &mut packed);
    plain::matmul(length, &a, &b, &mut of_plain);
    assert!(of_plain == *of_expert, "matmul: the result with rayon differs");

    for (name, program) in
        [("matmul", example("matmul", "matmul")?), ("matmul_tiled", example("matmul_tiled", "matmul_tiled")?)]
    {
        if !bench.report.is_selected(name) && !bench.report.is_selected(&format!("{name}_vs_rayon")) {
            continue;
        }
        let of_ours = bench.zeros(Element::F32, side * side)?;
        let arguments = arguments![m: side, n: side, k: side, a: &a_buffer, b: &b_buffer, c: &of_ours];
        let ours = Job::new(&bench.cpu).launch(&program, square(side), arguments)?;
        ours.run();
        assert!(floats(&of_ours.read()?) == of_plain, "{name}: results differ");

        let mut expert = || expert::matmul(length, &huge_a, &huge_b, &mut of_expert, &mut packed);
        bench.lines(name, work, &|| ours.run(), &mut expert, &mut || plain::matmul(length, &a, &b, &mut of_plain));
    }
    Ok(())
}

/// The matrix product of `vyre::kernels`, against a library that also uses all cores.
fn matmul_1024(bench: &Bench<'_>) -> Result<(), Error> {
    let (side, device) = (if bench.report.quick { 256 } else { 1024 }, &bench.typed);
    let (a, b) = (floats(&random(Element::F32, side * side, 1)?), floats(&random(Element::F32, side * side, 2)?));
    let n = side as usize;
    let upload = |elements: &[f32]| device.upload(elements).map_err(driver_error);
    let (a_buffer, b_buffer, c) = (upload(&a)?, upload(&b)?, RefCell::new(upload(&vec![0.0; n * n])?));
    let ours = || kernels::matmul(device, [n, n, n], &a_buffer, &b_buffer, &mut c.borrow_mut()).expect("it fits");
    let mut of_library = Huge::zeros(n * n);
    let (a, b) = (Huge::of(&a), Huge::of(&b));
    let mut library = || plain::matmul_of_library(n, &a, &b, &mut of_library);
    ours();
    library();
    let line = bench.line("matmul_1024", "matrixmultiply", 2 * u64::from(side).pow(3), "operations");
    bench.report.compare(&mut || ours(), &mut [(line, &mut library)]);
    let of_ours = c.borrow().download().map_err(driver_error)?;
    let is_near = |(ours, theirs): (&f32, &f32)| (ours - theirs).abs() <= 1e-4 * theirs.abs().max(1.0);
    assert!(of_ours.iter().zip(&*of_library).all(is_near), "matmul_1024: results differ");
    Ok(())
}

/// Product with a sparse matrix of up to 32 elements per row, against the library `sprs`, which uses one core.
fn spmv(bench: &Bench<'_>) -> Result<(), Error> {
    let (rows, device) = (if bench.report.quick { 1 << 16 } else { 1u32 << 20 }, &bench.typed);
    let mut starts = vec![0u32];
    let mut columns = Vec::new();
    for (row, word) in (0..rows).zip(words(&random(Element::U32, rows, 1)?)) {
        // Most neighbours are near, as in meshes, and some are random.
        let mut of_row: Vec<u32> = (0..word % 33)
            .map(|step| if step % 4 == 0 { word.rotate_left(step) % rows } else { (row + 3 * step) % rows })
            .collect();
        of_row.sort_unstable();
        of_row.dedup();
        columns.extend(of_row);
        starts.push(columns.len() as u32);
    }
    let (values, x) =
        (floats(&random(Element::F32, columns.len() as u32, 2)?), floats(&random(Element::F32, rows, 3)?));
    let upload = |elements: &[f32]| device.upload(elements).map_err(driver_error);
    let (values_buffer, x_buffer, y) = (upload(&values)?, upload(&x)?, RefCell::new(upload(&vec![0.0; x.len()])?));
    let [starts_buffer, columns_buffer] = [&starts, &columns].map(|words| device.upload(words).map_err(driver_error));
    let (starts_buffer, columns_buffer) = (starts_buffer?, columns_buffer?);
    let ours = || {
        let y = &mut y.borrow_mut();
        kernels::spmv(device, &starts_buffer, &columns_buffer, &values_buffer, &x_buffer, y).expect("it fits");
    };
    let work = values.len() as u64;
    let matrix = sprs::CsMatI::<f32, u32>::new((x.len(), x.len()), starts, columns, values);
    let mut of_library = vec![0.0; x.len()];
    let mut library = || {
        of_library.fill(0.0);
        sprs::prod::mul_acc_mat_vec_csr(matrix.view(), &*x, &mut *of_library);
    };
    ours();
    library();
    bench.report.compare(&mut || ours(), &mut [(bench.line("spmv", "sprs", work, "elements"), &mut library)]);
    let of_ours = y.borrow().download().map_err(driver_error)?;
    let is_near = |(ours, theirs): (&f32, &f32)| (ours - theirs).abs() <= 1e-4 * theirs.abs().max(1.0);
    assert!(of_ours.iter().zip(&of_library).all(is_near), "spmv: results differ");
    Ok(())
}

fn sort(bench: &Bench<'_>) -> Result<(), Error> {
    let (count, device) = (if bench.report.quick { 1 << 17 } else { 1 << 20 }, &bench.typed);
    let keys = words(&random(Element::U32, count, 1)?);
    let (unsorted, sorted) = (device.upload(&keys).map_err(driver_error)?, device.upload(&keys).map_err(driver_error)?);
    let sorted = RefCell::new(sorted);
    let ours = || {
        let sorted = &mut sorted.borrow_mut();
        // Each contender sorts a copy.
        kernels::copy(device, &unsorted, sorted).expect("it fits");
        kernels::sort(device, sorted).expect("it fits");
    };
    let mut of_plain = vec![0; keys.len()];
    let (huge_keys, mut of_expert, mut scratch) = (Huge::of(&keys), Huge::zeros(keys.len()), Huge::zeros(keys.len()));
    ours();
    expert::sort(&huge_keys, &mut of_expert, &mut scratch);
    plain::sort(&keys, &mut of_plain);
    let of_ours = sorted.borrow().download().map_err(driver_error)?;
    assert!(of_ours == of_plain && of_plain == *of_expert, "sort: results differ");

    let mut expert = || expert::sort(&huge_keys, &mut of_expert, &mut scratch);
    bench.lines("sort", (u64::from(count), "elements"), &ours, &mut expert, &mut || plain::sort(&keys, &mut of_plain));
    Ok(())
}

/// An example kernel, its grid, and its arguments in the notation of `vyre run`.
type Written = (&'static str, Result<Validated<Program>, Error>, launch::Grid, Vec<(&'static str, String)>);

/// Effect of the optimizer on the example kernels, at a size that fits into the caches.
fn as_written(bench: &Bench<'_>) -> Result<(), Error> {
    let count = 1u32 << 16;
    let (zeros, random) = (format!("zeros:{count}"), format!("random:{count}:7"));
    let cells = format!("zeros:{}", 256 * 256);
    let (matrix, product) = (format!("random:{}:3", 96 * 96), format!("zeros:{}", 96 * 96));
    let matrices = || {
        let sizes = ["m", "n", "k"].map(|name| (name, "96".to_owned()));
        sizes.into_iter().chain([("a", matrix.clone()), ("b", matrix.clone()), ("c", product.clone())]).collect()
    };
    let jobs: Vec<Written> = vec![
        (
            "saxpy",
            example("saxpy", "saxpy"),
            elements(count),
            vec![("a", "2".into()), ("x", random.clone()), ("y", zeros.clone())],
        ),
        ("hash", example("hash", "hash"), elements(count), vec![("keys", random.clone()), ("hashes", zeros.clone())]),
        ("mandelbrot", example("mandelbrot", "mandelbrot"), square(1024), vec![("image", "zeros:1048576".into())]),
        (
            "gather",
            example("gather", "gather"),
            elements(count),
            vec![("table", random.clone()), ("index", format!("iota:{count}")), ("out", zeros.clone())],
        ),
        (
            "reduce",
            example("reduce", "reduce"),
            groups(16),
            vec![("data", random.clone()), ("sums", "zeros:16".into())],
        ),
        (
            "scan",
            example("scan", "scan_blocks"),
            elements(count),
            vec![("data", random.clone()), ("sums", zeros.clone()), ("totals", "zeros:256".into())],
        ),
        (
            "histogram",
            example("histogram", "histogram"),
            groups(16),
            vec![("data", random.clone()), ("bins", "zeros:256".into())],
        ),
        ("matmul", example("matmul", "matmul"), square(96), matrices()),
        ("matmul_tiled", example("matmul_tiled", "matmul_tiled"), square(96), matrices()),
        (
            "nbody",
            example("nbody", "nbody"),
            elements(512),
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
            example("life", "life"),
            square(256),
            vec![("width", "256".into()), ("height", "256".into()), ("cells", cells.clone()), ("next", cells)],
        ),
        (
            "bitonic",
            example("bitonic", "bitonic"),
            elements(count / 2),
            vec![("k", "1024".into()), ("j", "256".into()), ("keys", random.clone())],
        ),
        (
            "count_digits",
            example("radix_sort", "count_digits"),
            groups(16),
            vec![("shift", "6".into()), ("keys", random), ("counts", "zeros:1024".into())],
        ),
    ];
    for (name, program, grid, given) in jobs {
        let name = format!("{name}_vs_as_written");
        if !bench.report.is_selected(&name) {
            continue;
        }
        let program = program?;
        let job = |device: &Device| -> Result<Job, Error> {
            let argument = |(name, notation): &(&'static str, String)| {
                let memory = program.memory(program.memory_named(name).expect("the program has it"));
                let argument = if memory.space == Space::Uniform {
                    Argument::Scalar(parse_value(notation, memory.element)?)
                } else {
                    let bytes = Fill::parse(notation)?.bytes(memory.element)?;
                    Argument::Buffer(device.upload(memory.element, &bytes)?)
                };
                Ok((*name, argument))
            };
            let arguments = given.iter().map(argument).collect::<Result<_, Error>>()?;
            Job::new(device).launch(&program, grid.widen(), arguments)
        };
        let (ours, written) = (job(&bench.cpu)?, job(&bench.cpu.as_written())?);
        let groups = grid.groups(program.workgroup_size())?;
        let work = total_invocations(groups, program.workgroup_size()).map_or(0, u64::from);
        let line = bench.line(&name, "written", work, "invocations");
        bench.report.compare(&mut || ours.run(), &mut [(line, &mut || written.run())]);
    }
    Ok(())
}

/// Overhead of launching an empty kernel, and of compiling an optimized program.
fn overheads(bench: &Bench<'_>) -> Result<(), Error> {
    let empty = program("program empty workgroup(1) {\n}", "empty")?;
    let empty = Job::new(&bench.cpu).launch(&empty, groups(1), vec![])?;
    let line = bench.line("launch_empty", "3 us", 1, "launches");
    bench.report.against_limit(&line, 3000.0, Statistic::Median, &mut || empty.run());

    // The programs are optimized already: only the backend is measured.
    let backend = Cpu::default().open()?;
    let programs = [
        ("compile_saxpy", "0.3 ms", 0.3e6, bench.cpu.compile(&example("saxpy", "saxpy")?)?.program().clone()),
        ("compile_1000", "3 ms", 3e6, compile::optimized_program_of(1_000)?),
    ];
    for (name, limit, limit_ns, program) in programs {
        let line = Line { threads: 1, ..bench.line(name, limit, program.stats().nodes as u64, "instructions") };
        bench.report.against_limit(&line, limit_ns, Statistic::Best, &mut || {
            black_box(backend.compile(&program).is_ok());
        });
    }
    Ok(())
}
