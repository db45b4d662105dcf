//! Generated programs on a device and on the oracle: both must come to the same.
//!
//! [`check`] runs the program of a seed. What a device gets wrong is made small and kept as a file test, and the
//! [`Finding`] says how to see it again. [`campaign`] does that for many seeds, on several threads.

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

/// A program that a device gets wrong.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Which program it is.
    pub seed: u64,
    /// The name of the backend.
    pub backend: &'static str,
    /// Where the results differ.
    pub wrong: String,
    /// The file with a small program that shows it, or why there is none.
    pub kept: Result<PathBuf, NotKept>,
}

/// Reason why there is no file with a small program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotKept {
    /// The environment turns it off.
    TurnedOff,
    /// The file cannot be written.
    Unwritable {
        /// Error of the operating system.
        reason: String,
        /// The small program.
        source: String,
    },
}

impl fmt::Display for NotKept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotKept::TurnedOff => f.write_str("VYRE_SHRINK is 0"),
            NotKept::Unwritable { reason, source } => write!(f, "{reason}\n{source}"),
        }
    }
}

/// What was wrong, and how to see it again.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { seed, backend, wrong, kept } = self;
        writeln!(f, "the program of seed {seed} goes wrong: {wrong}")?;
        writeln!(f, "the whole program: vyre generate --seed {seed} --device {backend}")?;
        match kept {
            Ok(path) => {
                let path = path.display();
                writeln!(f, "a small one: vyre run {path} --replay --device {backend}, and --device reference")?;
                write!(f, "to keep it, copy it to tests/files/run and run the tests with UPDATE=1")
            }
            Err(reason) => write!(f, "a small one could not be kept: {reason}"),
        }
    }
}

/// Runs the program of one seed on a device of a backend. `None` if all is well, or if it needs what the device does not have.
///
/// # Panics
/// The generator has made an invalid program.
pub fn check(backend: &dyn Backend, device: &Device, seed: u64, features: &Features) -> Option<Finding> {
    let Generated { program, groups, inputs } = generate(seed, features);
    let program = validate::program(program).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    if device.capabilities().check(&program).is_err() {
        return None;
    }
    let grid = Grid::Groups(groups);
    let wrong = mistake(device, &program, grid, &inputs, Exactness::Ordered)?;
    let kept = match std::env::var("VYRE_SHRINK").as_deref() {
        Ok("0") => Err(NotKept::TurnedOff),
        _ => keep(device, seed, &program, groups, &inputs),
    };
    Some(Finding { seed, backend: backend.name(), wrong, kept })
}

/// Runs the programs of seeds from `first` on, on as many threads as there are cores, until `goes_on` returns false for the number of programs
/// so far, or a program goes wrong. Returns the number of programs that were run.
///
/// Threads share the device, but for a software GPU, which compiles shaders on one thread: there, each thread opens a device of its own.
///
/// # Errors
/// The first program that goes wrong.
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

/// A seed that moves on from run to run, by far more than a run uses.
pub fn seed_of_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    now.as_secs().wrapping_mul(100_000)
}

/// The ways to compile a program, which must all come to what the oracle says about it.
fn variants(device: &Device) -> [(&'static str, Device); 2] {
    [("optimized", device.clone()), ("as written", device.as_written())]
}

pub(crate) fn oracle_for(device: &Device) -> Device {
    oracle(device.capabilities().subgroup_size.unwrap_or(16))
}

/// Limits that end a test that has gone wrong, and room for every line: which ones are dropped is a device's own business.
pub(crate) fn limits() -> Limits {
    Limits { fuel: 1 << 32, deadline: Some(Duration::from_secs(60)), trace_capacity: 1 << 20, ..Limits::default() }
}

/// How the device differs from the oracle, if it does.
pub fn mistake(
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
            Ok(report) if !same_report(&right, &report) => Some(format!("{report:?}, should be {right:?}")),
            // Roundings add up along a program, so that without exact floats only what does not depend on them is compared.
            Ok(_) => difference(program, &expected, &actual, tolerance(floats, exactness), floats),
        };
        wrong.map(|wrong| format!("{variant}: {wrong}"))
    })
}

/// Keeps a small program that shows the mistake, as a file test.
fn keep(
    device: &Device,
    seed: u64,
    program: &Validated<Program>,
    groups: [u32; 3],
    inputs: &Inputs,
) -> Result<PathBuf, NotKept> {
    let grid = Grid::Groups(groups);
    let oracle = oracle_for(device);
    let still_wrong = &mut |candidate: &Validated<Program>| {
        let inputs = inputs.only(candidate);
        // What a smaller program leaves out may be what ended its loops.
        let few_trips = Limits { fuel: 1 << 18, ..limits() };
        let ends = run(&oracle, candidate, grid, &mut inputs.clone(), few_trips)
            .is_ok_and(|report| matches!(report.outcome, Outcome::Completed | Outcome::Trapped { .. }));
        ends && mistake(device, candidate, grid, &inputs, Exactness::Ordered).is_some()
    };
    let small = shrink(program, still_wrong).into_inner();
    let inputs = inputs.only(&small);
    let source = Generated { program: small, groups, inputs }.source();
    let create = |path: &Path| File::create_new(path);
    let written = create_unique(&std::env::temp_dir(), format!("vyre-seed-{seed}-"), ".vyre", create)
        .and_then(|(path, mut file)| file.write_all(source.as_bytes()).map(|()| path));
    written.map_err(|error| NotKept::Unwritable { reason: error.to_string(), source })
}

// Comparison.

/// How floats are compared.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Tolerance {
    Bits,
    Ulp(u64),
    Unchecked,
}

/// What a device may do to the floats of an operation.
fn tolerance(floats: Floats, exactness: Exactness) -> Tolerance {
    match exactness {
        _ if floats == Floats::EXACT => Tolerance::Bits,
        Exactness::Exact => Tolerance::Bits,
        Exactness::Rounded { ulp } => Tolerance::Ulp(u64::from(ulp).max(1)),
        Exactness::Ordered | Exactness::Composed => Tolerance::Unchecked,
    }
}

/// Where two results differ, if they do.
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
                return Some(format!("{}[{index}] is {b}, should be {a}", memory.name));
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
    // An operation that is exact has no excuse: no infinity or NaN is computed in it.
    let excused = tolerance != Tolerance::Bits && !floats.infinities_and_nans;
    if special && excused || tiny && !floats.subnormals {
        return true;
    }
    match tolerance {
        Tolerance::Bits => false,
        Tolerance::Unchecked => true,
        Tolerance::Ulp(ulp) => {
            // Bits of floats of one sign are ordered like the numbers.
            let sign = 1u64 << (ty.bits() - 1);
            (x == 0.0 && y == 0.0) || (a & sign == b & sign && a.abs_diff(b) <= ulp)
        }
    }
}

fn half_min_positive() -> f32 {
    // 2^-14
    1.0 / 16384.0
}

/// Reports must agree, except in what is not part of the meaning: how much was counted, and spans that a device cannot know.
pub(crate) fn same_report(expected: &Report, actual: &Report) -> bool {
    expected.outcome == actual.outcome
        && expected.trace == actual.trace
        && expected.dropped_lines == actual.dropped_lines
}
