//! Tests of the example kernels against plain Rust, on sizes that are and are not multiples of the workgroup size.

use vyre_driver::{Device, Floats};
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::Program;
use vyre_foundation::launch::{Grid, Limits, Outcome};
use vyre_foundation::{Validated, text, validate};

use crate::corpus;

/// Runs every example kernel on a device and compares it with plain Rust; panics on a difference.
pub(crate) fn check(device: &Device) {
    saxpy(device);
    // The escape condition depends on every rounding.
    if device.capabilities().floats == Floats::EXACT {
        mandelbrot(device);
    }
    reduce(device);
    scan_of_several_blocks(device);
    scan_of_chunks(device);
    sort(device);
    histogram(device);
    matrix_products(device);
    nbody(device);
    life(device);
    bitonic_steps_sort(device);
    gather(device);
    hash(device);
}

/// Program of an example file.
fn kernel(file: &str, name: &str) -> Validated<Program> {
    let source = corpus::example_kernels(file).unwrap();
    let module = validate::module(text::parse(source).unwrap()).unwrap();
    module.program(name).unwrap().clone()
}

/// Pseudo-random number from 0 to 2^32 − 1.
fn pseudo_random(index: usize) -> u32 {
    (index as u32).wrapping_mul(2_654_435_761).rotate_left(13) ^ 0x9e37_79b9
}

/// Floats between −4 and 4 with few significant bits, so that sums of many are exact.
fn coarse_floats(count: usize) -> Vec<f32> {
    (0..count).map(|index| (pseudo_random(index) % 33) as f32 / 4.0 - 4.0).collect()
}

fn bytes<T: bytemuck::NoUninit>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

/// Runs a kernel; returns the contents of its objects by name.
fn run(device: &Device, program: &Validated<Program>, elements: [u32; 3], given: &[(&str, Vec<u8>)]) -> Inputs {
    let mut inputs = Inputs::default();
    for (name, bytes) in given {
        inputs.bytes(program, name, bytes.clone()).unwrap();
    }
    let report = crate::run(device, program, Grid::Elements(elements), &mut inputs, Limits::default());
    let report = report.unwrap_or_else(|error| panic!("{}: {error}", program.name()));
    assert_eq!(report.outcome, Outcome::Completed, "{}", program.name());
    inputs
}

fn words(inputs: &Inputs, name: &str) -> Vec<u32> {
    let words = inputs.contents(name).unwrap().chunks_exact(4);
    words.map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn floats(inputs: &Inputs, name: &str) -> Vec<f32> {
    words(inputs, name).into_iter().map(f32::from_bits).collect()
}

fn saxpy(device: &Device) {
    let program = kernel("saxpy", "saxpy");
    for count in [1, 255, 1000] {
        let (x, y) = (coarse_floats(count), coarse_floats(2 * count)[count..].to_vec());
        let given = [("a", 1.5f32.to_le_bytes().to_vec()), ("x", bytes(&x)), ("y", bytes(&y))];
        let result = run(device, &program, [count as u32, 1, 1], &given);
        let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 1.5 * x + y).collect();
        assert_eq!(floats(&result, "y"), expected);
    }
}

fn mandelbrot(device: &Device) {
    let mut program = kernel("mandelbrot", "mandelbrot").into_inner();
    program.specialize("MAX_TRIPS", 50u32.into()).unwrap();
    let program = validate::program(program).unwrap();
    // A part of the image with points inside, outside and at the boundary; the rest stays 0.
    let (columns, rows) = (400, 48);
    let result = run(device, &program, [columns, rows, 1], &[]);
    let image = result.contents("image").unwrap();
    for row in 0..rows {
        for column in (0..columns).step_by(3) {
            let at = |pixel: u32, center: f32| ((pixel as f32 + 0.5) / 1024.0 - 0.5).mul_add(2.5, center);
            let (cx, cy) = (at(column, -0.75), at(row, 0.0));
            let (mut x, mut y, mut trips) = (0f32, 0f32, 0u32);
            while trips < 50 && x * x + y * y <= 4.0 {
                (x, y) = (x * x - y * y + cx, (x * y).mul_add(2.0, cy));
                trips += 1;
            }
            let expected = if trips == 50 { 0 } else { (trips * 5).min(255) };
            assert_eq!(u32::from(image[(row * 1024 + column) as usize]), expected, "pixel {column}, {row}");
        }
    }
}

fn reduce(device: &Device) {
    let program = kernel("reduce", "reduce");
    for (count, groups) in [(1, 1), (1000, 2), (4096, 3)] {
        let data = coarse_floats(count);
        let given = [("data", bytes(&data)), ("sums", vec![0; 4 * groups])];
        let result = run(device, &program, [256 * groups as u32, 1, 1], &given);
        let mut expected = vec![0.0; groups];
        for (index, value) in data.iter().enumerate() {
            expected[index / data.len().div_ceil(groups)] += value;
        }
        assert_eq!(floats(&result, "sums"), expected);
    }
}

fn prefix_sums(data: &[u32]) -> Vec<u32> {
    let add = |sum: &mut u32, value: &u32| {
        *sum = sum.wrapping_add(*value);
        Some(*sum)
    };
    data.iter().scan(0, add).collect()
}

/// Scan with one chunk for each subgroup.
fn scan_with_chunks(device: &Device, data: &[u32], groups: u32) -> Vec<u32> {
    let [sum, scan] = ["sum_chunks", "scan_chunks"].map(|name| kernel("scan", name));
    let zeros = |count: usize| vec![0; 4 * count];
    let grid = [64 * groups, 1, 1];
    let summed = run(device, &sum, grid, &[("data", bytes(data)), ("totals", zeros(64 * groups as usize))]);
    let given = [("data", bytes(data)), ("totals", bytes(&words(&summed, "totals"))), ("sums", zeros(data.len()))];
    words(&run(device, &scan, grid, &given), "sums")
}

fn scan_of_chunks(device: &Device) {
    for (count, groups) in [(4, 1), (1000, 2), (4096, 3)] {
        let data: Vec<u32> = (0..count).map(pseudo_random).collect();
        assert_eq!(scan_with_chunks(device, &data, groups), prefix_sums(&data));
    }
}

fn sort(device: &Device) {
    let [count, scatter] = ["count_digits", "scatter_digits"].map(|name| kernel("radix_sort", name));
    // Two blocks, the second incomplete, with many equal keys.
    let mut keys: Vec<u32> = (0..5000).map(|index| pseudo_random(index) % 3001 * 1_431_655).collect();
    let mut expected = keys.clone();
    expected.sort_unstable();
    for shift in [0u32, 8, 16, 24] {
        let given = |name, array: Vec<u8>| [("shift", bytes(&[shift])), ("keys", bytes(&keys)), (name, array)].to_vec();
        let counted = run(device, &count, [2 * 256, 1, 1], &given("counts", vec![0; 4 * 512]));
        let ends = scan_with_chunks(device, &words(&counted, "counts"), 1);
        let mut given = given("ends", bytes(&ends));
        given.push(("sorted", vec![0; 4 * keys.len()]));
        keys = words(&run(device, &scatter, [2 * 16, 1, 1], &given), "sorted");
    }
    assert_eq!(keys, expected);
}

fn scan_of_several_blocks(device: &Device) {
    let blocks = kernel("scan", "scan_blocks");
    let offsets = kernel("scan", "add_offsets");
    let count = 1234;
    let groups = 5;
    let data: Vec<u32> = (0..count).map(pseudo_random).collect();
    let scanned = run(
        device,
        &blocks,
        [count as u32, 1, 1],
        &[("data", bytes(&data)), ("sums", vec![0; 4 * count]), ("totals", vec![0; 4 * groups])],
    );
    let totals = words(&scanned, "totals");
    let totals = run(
        device,
        &blocks,
        [groups as u32, 1, 1],
        &[("data", bytes(&totals)), ("sums", vec![0; 4 * groups]), ("totals", vec![0; 4])],
    );
    let result = run(
        device,
        &offsets,
        [count as u32, 1, 1],
        &[("offsets", bytes(&words(&totals, "sums"))), ("sums", bytes(&words(&scanned, "sums")))],
    );
    assert_eq!(words(&result, "sums"), prefix_sums(&data));
}

fn histogram(device: &Device) {
    let program = kernel("histogram", "histogram");
    let data: Vec<u8> = (0..5000).map(|index| (pseudo_random(index) >> 24) as u8).collect();
    // Fewer invocations than elements, and more.
    for invocations in [512, 8192] {
        let given = [("data", data.clone()), ("bins", vec![0; 1024])];
        let result = run(device, &program, [invocations, 1, 1], &given);
        let mut expected = vec![0; 256];
        for &value in &data {
            expected[usize::from(value)] += 1;
        }
        assert_eq!(words(&result, "bins"), expected);
    }
}

fn matrix_products(device: &Device) {
    for name in ["matmul", "matmul_tiled"] {
        let program = kernel(name, name);
        for (m, n, k) in [(1usize, 1usize, 1usize), (16, 16, 16), (17, 33, 20)] {
            let (a, b) = (coarse_floats(m * k), coarse_floats(k * n));
            let size = |size: usize| (size as u32).to_le_bytes().to_vec();
            let given = [
                ("m", size(m)),
                ("n", size(n)),
                ("k", size(k)),
                ("a", bytes(&a)),
                ("b", bytes(&b)),
                ("c", vec![0; 4 * m * n]),
            ];
            let result = run(device, &program, [n as u32, m as u32, 1], &given);
            // Inputs have few significant bits, so sums are exact in any order.
            let dot = |row: usize, column: usize| -> f32 { (0..k).map(|p| a[row * k + p] * b[p * n + column]).sum() };
            let expected: Vec<f32> = (0..m * n).map(|index| dot(index / n, index % n)).collect();
            assert_eq!(floats(&result, "c"), expected, "{name} {m} × {n} × {k}");
        }
    }
}

fn nbody(device: &Device) {
    let program = kernel("nbody", "nbody");
    let count = 300;
    let (dt, softening) = (0.01f32, 0.5f32);
    let body = |index: usize, part: usize| pseudo_random(4 * index + part) as f32 / 4e9;
    let bodies: Vec<f32> = (0..4 * count).map(|index| body(index / 4, index % 4)).collect();
    let velocities: Vec<f32> = (0..3 * count).map(|index| body(index, 7) - 0.5).collect();
    let given = [
        ("dt", dt.to_le_bytes().to_vec()),
        ("softening", softening.to_le_bytes().to_vec()),
        ("bodies", bytes(&bodies)),
        ("velocities", bytes(&velocities)),
        ("moved", vec![0; 16 * count]),
    ];
    let result = run(device, &program, [count as u32, 1, 1], &given);
    let (moved, faster) = (floats(&result, "moved"), floats(&result, "velocities"));
    for i in 0..count {
        for axis in 0..3 {
            let pull = |j: usize| {
                let delta = |axis: usize| f64::from(bodies[4 * j + axis]) - f64::from(bodies[4 * i + axis]);
                let distance = (0..3).map(|axis| delta(axis).powi(2)).sum::<f64>() + f64::from(softening).powi(2);
                f64::from(bodies[4 * j + 3]) * delta(axis) / distance.powf(1.5)
            };
            let pull: f64 = (0..count).map(pull).sum();
            let velocity = f64::from(velocities[3 * i + axis]) + pull * f64::from(dt);
            let position = f64::from(bodies[4 * i + axis]) + velocity * f64::from(dt);
            // f32 rounding errors accumulate over the sum.
            assert!((f64::from(faster[3 * i + axis]) - velocity).abs() < 1e-4, "velocity of {i}");
            assert!((f64::from(moved[4 * i + axis]) - position).abs() < 1e-5, "position of {i}");
        }
        assert_eq!(moved[4 * i + 3], bodies[4 * i + 3], "mass of {i}");
    }
}

fn life(device: &Device) {
    let program = kernel("life", "life");
    let (width, height) = (37usize, 21usize);
    let cells: Vec<u8> = (0..width * height).map(|index| u8::from(pseudo_random(index).is_multiple_of(3))).collect();
    let given = [
        ("width", (width as u32).to_le_bytes().to_vec()),
        ("height", (height as u32).to_le_bytes().to_vec()),
        ("cells", cells.clone()),
        ("next", vec![0; width * height]),
    ];
    let result = run(device, &program, [width as u32, height as u32, 1], &given);
    let expected: Vec<u8> = (0..width * height)
        .map(|index| {
            let (x, y) = (index % width, index / width);
            let mut neighbours = 0;
            for dy in [height - 1, 0, 1] {
                for dx in [width - 1, 0, 1] {
                    if (dx, dy) != (0, 0) {
                        neighbours += cells[(y + dy) % height * width + (x + dx) % width];
                    }
                }
            }
            u8::from(neighbours == 3 || (neighbours == 2 && cells[index] == 1))
        })
        .collect();
    assert_eq!(result.contents("next").unwrap(), expected);
}

fn bitonic_steps_sort(device: &Device) {
    let program = kernel("bitonic", "bitonic");
    let count = 1024u32;
    let mut keys: Vec<u32> = (0..count as usize).map(pseudo_random).collect();
    let mut expected = keys.clone();
    expected.sort_unstable();
    let mut k = 2;
    while k <= count {
        let mut j = k / 2;
        while j > 0 {
            let given = [("k", k.to_le_bytes().to_vec()), ("j", j.to_le_bytes().to_vec()), ("keys", bytes(&keys))];
            keys = words(&run(device, &program, [count / 2, 1, 1], &given), "keys");
            j /= 2;
        }
        k *= 2;
    }
    assert_eq!(keys, expected);
}

fn gather(device: &Device) {
    let program = kernel("gather", "gather");
    let table = coarse_floats(100);
    let index: Vec<u32> = (0..700).map(|position| pseudo_random(position) % 120).collect();
    let given = [("table", bytes(&table)), ("index", bytes(&index)), ("out", vec![1; 2800])];
    let result = run(device, &program, [700, 1, 1], &given);
    let expected: Vec<f32> = index.iter().map(|&index| table.get(index as usize).copied().unwrap_or(0.0)).collect();
    assert_eq!(floats(&result, "out"), expected);
}

fn hash(device: &Device) {
    let program = kernel("hash", "hash");
    let keys: Vec<u32> = (0..1000).map(pseudo_random).collect();
    let result = run(device, &program, [1000, 1, 1], &[("keys", bytes(&keys)), ("hashes", vec![0; 4000])]);
    let expected: Vec<u32> = keys
        .iter()
        .map(|&key| {
            let mut hash = key;
            hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
            hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
            hash ^ (hash >> 16)
        })
        .collect();
    assert_eq!(words(&result, "hashes"), expected);
}
