//! Differential testing of devices against the oracle, on generated programs.
//!
//! [`check`] runs the program of a seed. A failing program is shrunk and saved as a file test, and the [`Finding`]
//! tells how to reproduce it. [`campaign`] does this for many seeds, on several threads.

use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use vyre_driver::atomic_file::create_unique;
use vyre_driver::backend::Backend;
use vyre_driver::{Device, DeviceKind, Floats};
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::ops::{Exactness, Pure};
use vyre_foundation::ir::{Program, Type};
use vyre_foundation::launch::{Grid, Limits, Outcome, Report};
use vyre_foundation::{Validated, validate};

use crate::{Features, Generated, generate, op_programs, oracle, run, shrink};

/// A program for which a device differs from the oracle.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Seed of the program.
    pub seed: u64,
    /// Name of the backend.
    pub backend: &'static str,
    /// First difference.
    pub difference: String,
    /// File with a reduced program, or the reason why there is none.
    pub saved: Result<PathBuf, NotSaved>,
}

/// Reason why no reduced program was saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotSaved {
    /// Turned off by the environment.
    TurnedOff,
    /// The file cannot be written.
    Unwritable {
        /// Error of the operating system.
        reason: String,
        /// Reduced program.
        source: String,
    },
}

impl fmt::Display for NotSaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotSaved::TurnedOff => f.write_str("VYRE_SHRINK is 0"),
            NotSaved::Unwritable { reason, source } => write!(f, "{reason}\n{source}"),
        }
    }
}

/// The difference, and the commands that reproduce it.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { seed, backend, difference, saved } = self;
        writeln!(f, "seed {seed} differs from the oracle: {difference}")?;
        writeln!(f, "full program: vyre generate --seed {seed} --device {backend}")?;
        match saved {
            Ok(path) => {
                let path = path.display();
                writeln!(f, "reduced program: vyre run {path} --replay --device {backend}, and --device reference")?;
                write!(f, "to keep it as a test, copy it to tests/files/run and run the tests with UPDATE=1")
            }
            Err(reason) => write!(f, "the reduced program could not be saved: {reason}"),
        }
    }
}

/// Runs the program of a seed on a device of a backend. Returns `None` if it agrees with the oracle, or if the device
/// does not support it.
///
/// # Panics
/// The generator has created an invalid program.
pub fn check(backend: &dyn Backend, device: &Device, seed: u64, features: &Features) -> Option<Finding> {
    let Generated { program, groups, inputs } = generate(seed, features);
    let program = validate::program(program).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    if device.capabilities().check(&program).is_err() {
        return None;
    }
    let grid = Grid::Groups(groups);
    let wrong = find_difference(device, &program, grid, &inputs, Exactness::Ordered)?;
    let kept = match std::env::var("VYRE_SHRINK").as_deref() {
        Ok("0") => Err(NotSaved::TurnedOff),
        _ => keep(device, seed, &program, groups, &inputs),
    };
    Some(Finding { seed, backend: backend.name(), difference: wrong, saved: kept })
}

/// Runs the programs of seeds from `first` on, on all cores, until `goes_on` returns false for the number of programs
/// so far, or a program fails. Returns the number of programs run.
///
/// Threads share the device, except on a software GPU, which compiles shaders on one thread: there, each thread opens
/// its own device.
///
/// # Errors
/// The first program that fails.
pub fn campaign(
    backend: &dyn Backend,
    device: &Device,
    first: u64,
    goes_on: &(dyn Fn(u64) -> bool + Sync),
) -> Result<u64, Box<Finding>> {
    let features = Features::of(device.capabilities());
    let (next, found) = (AtomicU64::new(0), Mutex::new(None));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let (next, found, features) = (&next, &found, &features);
        for thread in 0..threads {
            scope.spawn(move || {
                let is_shared = thread == 0 || device.capabilities().kind != DeviceKind::SoftwareGpu;
                let own = if is_shared { None } else { Device::open(backend).ok() };
                let device = own.as_ref().unwrap_or(device);
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let stop = || found.lock().map_or(true, |found| found.is_some());
                    if !goes_on(number) || stop() {
                        next.fetch_sub(1, Ordering::Relaxed);
                        return;
                    }
                    if let Some(finding) = check(backend, device, first.wrapping_add(number), features)
                        && let Ok(mut found) = found.lock()
                    {
                        found.get_or_insert(Box::new(finding));
                    }
                }
            });
        }
    });
    match found.into_inner() {
        Ok(Some(finding)) => Err(finding),
        _ => Ok(next.into_inner()),
    }
}

/// A seed that advances between runs by more than a run uses.
pub fn seed_of_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    now.as_secs().wrapping_mul(100_000)
}

/// Compilations of a program that must agree with the oracle.
fn variants(device: &Device) -> [(&'static str, Device); 2] {
    [("optimized", device.clone()), ("as written", device.as_written())]
}

pub(crate) fn oracle_for(device: &Device) -> Device {
    oracle(device.capabilities().subgroup_size.unwrap_or(16))
}

/// Limits that end a failing test, with room for all lines: the choice of dropped lines may differ between devices.
pub(crate) fn limits() -> Limits {
    Limits { fuel: 1 << 32, deadline: Some(Duration::from_secs(60)), trace_capacity: 1 << 20, ..Limits::default() }
}

/// First difference between the device and the oracle.
pub fn find_difference(
    device: &Device,
    program: &Validated<Program>,
    grid: Grid,
    inputs: &Inputs,
    exactness: Exactness,
) -> Option<String> {
    let mut expected = inputs.clone();
    let right = run(&oracle_for(device), program, grid, &mut expected, limits()).expect("the oracle runs everything");
    let floats = device.capabilities().floats;
    variants(device).into_iter().find_map(|(variant, device)| {
        let mut actual = inputs.clone();
        let wrong = match run(&device, program, grid, &mut actual, limits()) {
            Err(error) => Some(error.to_string()),
            Ok(report) if !same_report(&right, &report) => Some(format!("{report:?}, expected {right:?}")),
            // Rounding errors accumulate along a program, so without exact floats only values independent of them are
            // compared.
            Ok(_) => difference(program, &expected, &actual, tolerance(floats, exactness), floats),
        };
        wrong.map(|wrong| format!("{variant}: {wrong}"))
    })
}

/// Shrinks the program and saves it as a file test.
fn keep(
    device: &Device,
    seed: u64,
    program: &Validated<Program>,
    groups: [u32; 3],
    inputs: &Inputs,
) -> Result<PathBuf, NotSaved> {
    let grid = Grid::Groups(groups);
    let oracle = oracle_for(device);
    let still_wrong = &mut |candidate: &Validated<Program>| {
        let inputs = inputs.only(candidate);
        // The loop of a reduced program may be infinite, because its exit was removed.
        let few_trips = Limits { fuel: 1 << 18, ..limits() };
        let ends = run(&oracle, candidate, grid, &mut inputs.clone(), few_trips)
            .is_ok_and(|report| matches!(report.outcome, Outcome::Completed | Outcome::Trapped { .. }));
        ends && find_difference(device, candidate, grid, &inputs, Exactness::Ordered).is_some()
    };
    let small = shrink(program, still_wrong).into_inner();
    let inputs = inputs.only(&small);
    let source = Generated { program: small, groups, inputs }.source();
    let create = |path: &Path| File::create_new(path);
    let written = create_unique(&std::env::temp_dir(), format!("vyre-seed-{seed}-"), ".vyre", create)
        .and_then(|(path, mut file)| file.write_all(source.as_bytes()).map(|()| path));
    written.map_err(|error| NotSaved::Unwritable { reason: error.to_string(), source })
}

// Comparison.

/// Tolerance of float comparisons.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Tolerance {
    Bits,
    Ulp(u64),
    Unchecked,
}

/// Allowed deviation of a device for an operation.
fn tolerance(floats: Floats, exactness: Exactness) -> Tolerance {
    match exactness {
        _ if floats == Floats::EXACT => Tolerance::Bits,
        Exactness::Exact => Tolerance::Bits,
        Exactness::Rounded { ulp } => Tolerance::Ulp(u64::from(ulp).max(1)),
        Exactness::Ordered | Exactness::Composed => Tolerance::Unchecked,
    }
}

/// First difference between two results.
pub(crate) fn difference(
    program: &Program,
    expected: &Inputs,
    actual: &Inputs,
    tolerance: Tolerance,
    floats: Floats,
) -> Option<String> {
    for memory in program.memories().values() {
        let (Some(a), Some(b)) = (expected.contents(&memory.name), actual.contents(&memory.name)) else { continue };
        let (size, ty) = (memory.element.size(), memory.element.value_type());
        for (index, (a, b)) in a.chunks_exact(size).zip(b.chunks_exact(size)).enumerate() {
            let (a, b) = (memory.element.read(a), memory.element.read(b));
            if !same(ty, a, b, tolerance, floats) {
                let (a, b) = (op_programs::shown(ty, a), op_programs::shown(ty, b));
                return Some(format!("{}[{index}] is {b}, expected {a}", memory.name));
            }
        }
    }
    None
}

fn same(ty: Type, a: u64, b: u64, tolerance: Tolerance, floats: Floats) -> bool {
    if a == b {
        return true;
    }
    if !ty.is_float() {
        return false;
    }
    let as_f64 = Pure::Cast.info().evaluator(ty, Type::F64).expect("floats can be cast to each other");
    let number = |bits: u64| f64::from_bits(as_f64(&[bits]));
    let (x, y) = (number(a), number(b));
    if x.is_nan() && y.is_nan() {
        return true;
    }
    let special = !x.is_finite() || !y.is_finite();
    let smallest = match ty {
        Type::F16 => f64::from(half_min_positive()),
        Type::F32 => f64::from(f32::MIN_POSITIVE),
        _ => f64::MIN_POSITIVE,
    };
    let tiny = x.abs() < smallest && y.abs() <= smallest;
    // Exact operations have no tolerance: they compute no infinities or NaNs.
    let excused = tolerance != Tolerance::Bits && !floats.infinities_and_nans;
    if special && excused || tiny && !floats.subnormals {
        return true;
    }
    match tolerance {
        Tolerance::Bits => false,
        Tolerance::Unchecked => true,
        Tolerance::Ulp(ulp) => {
            // For equal signs, the bits of floats are ordered like the numbers.
            let sign = 1u64 << (ty.bits() - 1);
            (x == 0.0 && y == 0.0) || (a & sign == b & sign && a.abs_diff(b) <= ulp)
        }
    }
}

fn half_min_positive() -> f32 {
    // 2^-14
    1.0 / 16384.0
}

/// Compares reports, except for unspecified parts: counts, and spans that a device cannot know.
pub(crate) fn same_report(expected: &Report, actual: &Report) -> bool {
    expected.outcome == actual.outcome
        && expected.trace == actual.trace
        && expected.dropped_lines == actual.dropped_lines
}
