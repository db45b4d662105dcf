//! Conformance suite that every backend must pass. A backend joins with one line in a test file:
//!
//! ```text
//! vyre_testkit::conformance!(vyre_cpu::Cpu::default());
//! ```
//!
//! [`checks`] is the same list for programs that report on a device, such as `vyre doctor --conformance`.
//!
//! Results are compared with the oracle, run with the device's subgroup size: integers bit by bit, floats according to
//! the exactness of the operation and the device's capabilities, all NaNs as equal.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vyre_driver::backend::Backend;
use vyre_driver::{Argument, Buffer, Device, DeviceKind, Dispatch, Error, Grid, Kernel, Null};
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::ops::Exactness;
use vyre_foundation::ir::{Element, Program, Span};
use vyre_foundation::launch::{self, Limits, Outcome};
use vyre_foundation::{Validated, text, validate};

use crate::differential::{self, find_difference, limits};
use crate::{Generated, corpus, files, kernels, op_programs};

/// Expands to a test for each check of the suite.
#[macro_export]
macro_rules! conformance {
    ($backend:expr) => {
        $crate::for_each_check!(conformance_tests, $backend);
    };
}

/// Expands to tests of the named checks.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ($backend:expr; $($check:ident),*) => { $(
        #[test]
        fn $check() {
            let backend = $backend;
            let subject = $crate::conformance::Subject::new(&backend);
            println!("{subject}");
            $crate::conformance::$check(&subject);
        }
    )* };
}

/// Expands to a list of the named checks.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_list {
    ($list:expr; $($check:ident),*) => {
        $list([$(Check { name: stringify!($check), run: $check }),*])
    };
}

/// Calls a macro with an expression and the names of all checks; the only list of them.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_check {
    ($with:ident, $argument:expr) => {
        $crate::$with! { $argument;
            example_kernels, file_tests, operations, generated_programs, wrong_dispatches, canaries, endless_programs,
            long_loops, large_grids, indirect_grids, parts_of_buffers, concurrent_submissions, cancellation,
            published_values, visible_dispatches, waiting_groups
        }
    };
}

/// A backend under test, and the amount of testing.
pub struct Subject<'b> {
    /// The backend.
    pub backend: &'b dyn Backend,
    /// Seed of the first generated program.
    pub first_seed: u64,
    /// Number of generated programs; by default it depends on the kind of the device.
    pub programs: Option<u64>,
}

impl<'b> Subject<'b> {
    /// Creates a subject with the seed from `VYRE_SEED`, by default one that changes between runs, and the number of
    /// programs from `VYRE_PROGRAMS`.
    pub fn new(backend: &'b dyn Backend) -> Subject<'b> {
        let variable = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
        let first_seed = variable("VYRE_SEED").unwrap_or_else(differential::seed_of_now);
        Subject { backend, first_seed, programs: variable("VYRE_PROGRAMS") }
    }
}

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: generated programs from seed {}", self.backend.name(), self.first_seed)
    }
}

/// A part of the suite.
#[derive(Clone, Copy)]
pub struct Check {
    /// Name, equal to that of the test.
    pub name: &'static str,
    run: fn(&Subject<'_>),
}

/// Result of a check.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// First failure; `None` if the check has passed.
    pub failure: Option<String>,
    /// Duration of the check.
    pub time: Duration,
}

/// All checks, in execution order.
pub fn checks() -> Vec<Check> {
    crate::for_each_check!(conformance_list, Vec::from)
}

impl Check {
    /// Runs the check. A panic in it, also in one of its threads, is a failure, and so are concurrent panics of other
    /// threads of the process.
    pub fn run(self, subject: &Subject<'_>) -> Verdict {
        let start = Instant::now();
        let first = Arc::new(Mutex::new(None));
        let hook = std::panic::take_hook();
        std::panic::set_hook({
            let first = first.clone();
            Box::new(move |panic| {
                first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| panic.to_string());
            })
        });
        let finished = catch_unwind(AssertUnwindSafe(|| (self.run)(subject))).is_ok();
        std::panic::set_hook(hook);
        let message = first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let failure = if finished { message } else { Some(message.unwrap_or_else(|| "it panicked".into())) };
        Verdict { failure, time: start.elapsed() }
    }
}

fn open(subject: &Subject<'_>) -> Device {
    match Device::open(subject.backend) {
        Ok(device) => device,
        Err(error) => panic!("{}: {error}\n  = help: {}", subject.backend.name(), error.help()),
    }
}

fn read(source: &str) -> Validated<Program> {
    let module = text::parse(source).unwrap_or_else(|error| panic!("{error}\n{source}"));
    validate::program(module.programs.into_iter().next().expect("a program")).expect("a valid program")
}

/// Program of the suite with a name.
fn program(name: &str) -> Validated<Program> {
    let module = text::parse(include_str!("conformance.vyre")).and_then(validate::module).expect("valid programs");
    module.program(name).expect("it is there").clone()
}

// Results.

/// Example kernels compute the same as plain Rust.
pub fn example_kernels(subject: &Subject<'_>) {
    kernels::check(&open(subject));
}

/// The cases of the file tests give the same results as on the oracle.
pub fn file_tests(subject: &Subject<'_>) {
    let device = open(subject);
    let mut count = 0;
    for (path, source) in corpus::FILES {
        for case in files::cases_in(source).unwrap_or_default() {
            let own_size = case.subgroup_size.is_none() || case.subgroup_size == device.capabilities().subgroup_size;
            // Fuel accounting and the choice of dropped lines may differ between devices.
            let own_limits = case.limits == Limits::default();
            if own_size && own_limits && device.capabilities().check(&case.program).is_ok() {
                compare(&device, &case.program, case.grid, &case.inputs, Exactness::Exact, path);
                count += 1;
            }
        }
    }
    assert!(count > 10, "only {count} file tests were run");
}

fn compare(
    device: &Device,
    program: &Validated<Program>,
    grid: launch::Grid,
    inputs: &Inputs,
    exactness: Exactness,
    name: &str,
) {
    if let Some(wrong) = find_difference(device, program, grid, inputs, exactness) {
        let program = (**program).clone();
        let source = match grid.groups(program.workgroup_size()) {
            Ok(groups) => Generated { program, groups, inputs: inputs.clone() }.source(),
            Err(_) => program.to_string(),
        };
        panic!("{name}: {wrong}\nto repeat it, save this program and run it with `vyre run FILE --replay`:\n{source}");
    }
}

/// Every operation on every type, on edge values, in uniform and divergent control flow, and every access to every kind
/// of memory.
pub fn operations(subject: &Subject<'_>) {
    let device = open(subject);
    let mut count = 0;
    for op in op_programs::all(device.capabilities().types) {
        if device.capabilities().check(&op.program).is_ok() {
            compare(&device, &op.program, op.grid, &op.inputs, op.row.exactness, &op.name);
            count += 1;
        }
    }
    assert!(count > 300, "only {count} programs were run");
}

/// Generated programs. Seeds change between runs; a failure reports its seed.
pub fn generated_programs(subject: &Subject<'_>) {
    let device = open(subject);
    // On a software GPU, compilation of shaders dominates.
    let usual = if device.capabilities().kind == DeviceKind::Cpu { 5_000 } else { 1_000 };
    let count = subject.programs.unwrap_or(usual);
    if let Err(finding) = differential::campaign(subject.backend, &device, subject.first_seed, &|number| number < count)
    {
        panic!("VYRE_SEED={} VYRE_PROGRAMS=1 reproduces it\n{finding}", finding.seed);
    }
}

// Invalid dispatches.

/// A dispatch of four invocations.
fn dispatch(kernel: &Kernel, arguments: Vec<(&str, Argument)>) -> Dispatch {
    over(Grid::elements(4), kernel, arguments)
}

fn over(grid: Grid, kernel: &Kernel, arguments: Vec<(&str, Argument)>) -> Dispatch {
    kernel.dispatch(grid, arguments).expect("arguments that fit").limits(limits())
}

fn floats(device: &Device, values: &[f32]) -> Buffer {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    device.upload(Element::F32, &bytes).expect("a few bytes")
}

/// Every mistake of a caller is a typed error, and the device stays usable.
pub fn wrong_dispatches(subject: &Subject<'_>) {
    let device = open(subject);
    let kernel = device.compile(&program("copy")).expect("a simple kernel");
    let (x, y) = (floats(&device, &[1.0, 2.0, 3.0, 4.0]), floats(&device, &[0.0; 4]));
    let words = device.upload(Element::U32, &[0; 16]).expect("a few bytes");
    let on = |grid, arguments: Vec<(&'static str, Argument)>| kernel.dispatch(grid, arguments).map(|_| ()).unwrap_err();
    let code = |arguments| on(Grid::elements(4), arguments).code();
    assert_eq!(code(vec![("x", (&x).into())]), "L004", "missing");
    assert_eq!(code(vec![("x", (&x).into()), ("y", (&y).into()), ("z", (&y).into())]), "L002", "unknown");
    assert_eq!(code(vec![("x", (&x).into()), ("x", (&x).into()), ("y", (&y).into())]), "L003", "twice");
    assert_eq!(code(vec![("x", (&words).into()), ("y", (&y).into())]), "L008", "element type");
    assert_eq!(code(vec![("x", 1.0f32.into()), ("y", (&y).into())]), "L006", "scalar for a buffer");
    assert_eq!(
        code(vec![("scale", (&x).into()), ("x", (&x).into()), ("y", (&y).into())]),
        "L005",
        "buffer for a scalar"
    );
    assert_eq!(code(vec![("scale", 1u32.into()), ("x", (&x).into()), ("y", (&y).into())]), "L007", "scalar type");
    assert_eq!(code(vec![("x", (&y).into()), ("y", (&y).into())]), "L011", "overlap");
    let part = |from: u32, to: u32| y.slice(from..to).expect("inside");
    assert_eq!(code(vec![("x", (&part(0, 3)).into()), ("y", (&part(2, 4)).into())]), "L011", "overlapping parts");

    let other = open(subject);
    let foreign = floats(&other, &[1.0; 4]);
    assert_eq!(code(vec![("x", (&foreign).into()), ("y", (&y).into())]), "D004", "foreign buffer");
    let null = Device::open(&Null::default()).expect("the null device opens");
    let foreign = null.compile(&program("copy")).expect("the null device compiles anything");
    let (of_null, to_null) = (floats(&null, &[0.0; 4]), floats(&null, &[0.0; 4]));
    let foreign = dispatch(&foreign, vec![("x", (&of_null).into()), ("y", (&to_null).into())]);
    assert_eq!(device.run(&foreign).unwrap_err().code(), "D004", "foreign kernel");

    let arguments = || vec![("x", (&x).into()), ("y", (&y).into())];
    assert_eq!(on(Grid::Groups([1 << 20, 1 << 20, 1]), arguments()).code(), "L001", "grid");
    assert_eq!(on(Grid::Indirect(words.clone()), arguments()).code(), "D008", "indirect grid of four words");
    let three = other.allocate(Element::U32, 3).expect("a few bytes");
    assert_eq!(on(Grid::Indirect(three), arguments()).code(), "D004", "foreign grid");
    assert_eq!(device.allocate(Element::F64, u64::from(u32::MAX) + 1).unwrap_err().code(), "F006", "elements");
    let capabilities = device.capabilities();
    let room = capabilities.memory_bytes.unwrap_or(u64::MAX).min(capabilities.max_buffer_bytes);
    let most = u64::from(u32::MAX);
    if room < 8 * most {
        let error = device.allocate(Element::F64, most).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { requested, .. } if requested == 8 * most), "{error}");
    }
    assert!(matches!(y.slice(2..5), Err(Error::OutOfRange { .. })));
    assert!(matches!(y.write(&[0; 3]), Err(Error::WriteLength { given: 3, .. })));

    device.run(&dispatch(&kernel, vec![("x", (&x).into()), ("y", (&y).into())])).expect("the device still works");
    assert_eq!(y.read().expect("and its buffers"), x.read().expect("too"));
}

/// Out-of-bounds accesses do not change memory around the objects.
pub fn canaries(subject: &Subject<'_>) {
    const GUARD: usize = 256;
    let device = open(subject);
    let elements = [Element::U8, Element::I16, Element::U32, Element::U64];
    for element in elements.into_iter().filter(|element| device.capabilities().types.contains(element.value_type())) {
        let source = format!(
            "program outside workgroup(32) {{
    read_write x: [{element}]
    uniform from: u32
    %i = global_index
    %base = load from
    %at = add %base, %i
    %v0, %v1, %v2 = load x[%at]
    store x[%at], %v0, %v1, %v2
    %wide = mul %at, 977
    %w = load x[%wide]
    store x[%wide], %w
}}"
        );
        let kernel = device.compile(&read(&source)).expect("a simple kernel");
        let size = element.size();
        let contents: Vec<u8> = (0..(2 * GUARD + 40) * size).map(|byte| (byte * 37 + 11) as u8).collect();
        for from in [0u32, 30, 38, 40, 1000, 0x3fff_fff0, 0x7fff_fff0, 0xffff_ffe0, 0u32.wrapping_sub(GUARD as u32)] {
            let whole = device.upload(element, &contents).expect("a few bytes");
            let middle = whole.slice(GUARD as u32..GUARD as u32 + 40).expect("inside");
            let arguments = vec![("x", (&middle).into()), ("from", from.into())];
            let report = device.run(&over(Grid::elements(64), &kernel, arguments));
            assert_eq!(report.expect("runs").outcome, Outcome::Completed);
            let after = whole.read().expect("a few bytes");
            assert_eq!(after[..GUARD * size], contents[..GUARD * size], "before {element} at {from}");
            let end = (GUARD + 40) * size;
            assert_eq!(after[end..], contents[end..], "behind {element} at {from}");
        }
    }
}

/// Infinite loops end, and the next program runs.
pub fn endless_programs(subject: &Subject<'_>) {
    let device = open(subject);
    let simple = device.compile(&program("copy")).expect("a simple kernel");
    let (x, y) = (floats(&device, &[1.0; 4]), floats(&device, &[0.0; 4]));
    let kinds = [
        "loop {\n}",
        "loop {\n    %i = local_index\n    %never = gt %i, 5000\n    if %never {\n        break\n    }\n}",
        "loop (%k = 0) {\n    %next = add %k, 2\n    %done = eq %k, 7\n    if %done {\n        break\n    }\n    continue %next\n}",
        "loop {\n    loop {\n        break\n    }\n}",
        "%i = local_index\n%one = eq %i, 0\nif %one {\n    loop {\n    }\n}",
        // The counter wraps past the bound.
        "loop (%k = 0) {\n    %done = ge %k, 3221225473\n    if %done {\n        break\n    }\n    %next = add %k, 1073741824\n    continue %next\n}",
    ];
    for number in 0..200 {
        let (round, kind) = (number / kinds.len(), number % kinds.len());
        let size = [1, 16, 64, 256][round % 4];
        let program = read(&format!("program endless workgroup({size}) {{\n{}\n}}", kinds[kind]));
        let kernel = device.compile(&program).expect("a simple kernel");
        let limits = if round % 3 == 0 {
            Limits { deadline: Some(Duration::from_millis(10)), ..Limits::default() }
        } else {
            Limits { fuel: 100_000, ..Limits::default() }
        };
        let dispatch = over(Grid::Groups([1 + number as u32 % 5, 1, 1]), &kernel, vec![]).limits(limits);
        let report = device.run(&dispatch).expect("a report");
        match report.outcome {
            Outcome::OutOfFuel { span } => assert_ne!(span, Span::NONE, "the loop is named"),
            Outcome::DeadlinePassed { .. } => {}
            outcome => panic!("{outcome:?}"),
        }
        if number % 20 == 0 {
            let report = device.run(&self::dispatch(&simple, vec![("x", (&x).into()), ("y", (&y).into())]));
            assert_eq!(report.expect("the next job runs").outcome, Outcome::Completed);
            assert_eq!(y.read().expect("a few bytes"), x.read().expect("a few bytes"));
        }
    }
}

/// Checks a loop of 200 000 trips; some drivers silently end loops earlier.
pub fn long_loops(subject: &Subject<'_>) {
    let device = open(subject);
    compare(
        &device,
        &program("long"),
        launch::Grid::Groups([1, 1, 1]),
        &Inputs::default(),
        Exactness::Exact,
        "long loop",
    );
}

/// Grids larger than one dimension of a device's grid.
pub fn large_grids(subject: &Subject<'_>) {
    let device = open(subject);
    let kernel = device.compile(&program("large")).expect("a simple kernel");
    // An odd number of workgroups, so that a device that folds them into two rows has one extra.
    let count = 70_001 * 32;
    let grid = Grid::elements(count as u32);
    // A device may dispatch a launch with a deadline in ranges, and one without as a whole.
    for deadline in [limits().deadline, None] {
        let out = device.allocate(Element::U32, count).expect("some megabytes");
        let beyond = device.allocate(Element::U32, 1).expect("four bytes");
        let arguments = vec![("out", (&out).into()), ("beyond", (&beyond).into())];
        let limits = Limits { deadline, ..limits() };
        device.run(&over(grid.clone(), &kernel, arguments).limits(limits)).expect("it runs");
        let bytes = out.read().expect("some megabytes");
        for (index, word) in bytes.chunks_exact(4).enumerate() {
            let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            assert_eq!(word, index as u32 ^ 2_863_311_530, "at {index}");
        }
        assert_eq!(beyond.read().expect("four bytes"), [0; 4], "no invocation runs beyond the grid");
    }
}

/// Grids computed by an earlier dispatch.
pub fn indirect_grids(subject: &Subject<'_>) {
    let device = open(subject);
    let (prepare, count) =
        (device.compile(&program("prepare")).expect("simple"), device.compile(&program("count")).expect("simple"));
    let grid = device.allocate(Element::U32, 3).expect("a few bytes");
    let total = device.allocate(Element::U32, 1).expect("a few bytes");
    let sizes = device.allocate(Element::U32, 3).expect("a few bytes");
    let first = over(Grid::elements(1), &prepare, vec![("grid", (&grid).into())]);
    let arguments = vec![("total", (&total).into()), ("sizes", (&sizes).into())];
    let second = over(Grid::Indirect(grid.clone()), &count, arguments);
    let submission = device.submit(&[first, second.clone()]).expect("two dispatches");
    assert_eq!(submission.wait().expect("two reports").len(), 2);
    assert_eq!(total.read().expect("four bytes"), 24u32.to_le_bytes());
    assert_eq!(sizes.read().expect("a few bytes"), [3u32, 2, 1].map(u32::to_le_bytes).concat());

    // Zero workgroups, and too many.
    grid.write(&[0; 12]).expect("three words");
    device.run(&second).expect("nothing to do");
    assert_eq!(total.read().expect("four bytes"), 24u32.to_le_bytes());
    grid.write(&[0xff; 12]).expect("three words");
    assert_eq!(device.run(&second).unwrap_err().code(), "L001");
    assert_eq!(total.read().expect("four bytes"), 24u32.to_le_bytes());
}

/// Slices of one buffer as separate objects, at every element offset.
pub fn parts_of_buffers(subject: &Subject<'_>) {
    let device = open(subject);
    let kernel = device.compile(&program("copy")).expect("a simple kernel");
    let whole = floats(&device, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
    let part = |from: u32, to: u32| whole.slice(from..to).expect("inside");
    let arguments = vec![("scale", 10.0f32.into()), ("x", (&part(1, 4)).into()), ("y", (&part(5, 8)).into())];
    device.run(&dispatch(&kernel, arguments)).expect("it runs");
    let expected = floats(&device, &[1.0, 2.0, 3.0, 4.0, 5.0, 20.0, 30.0, 40.0, 9.0]);
    assert_eq!(whole.read().expect("a few bytes"), expected.read().expect("a few bytes"));

    // Empty slices.
    let empty = part(3, 3);
    let report = device.run(&dispatch(&kernel, vec![("x", (&empty).into()), ("y", (&empty).into())]));
    assert_eq!(report.expect("it runs").outcome, Outcome::Completed);
    assert!(empty.read().expect("nothing").is_empty());
    // A reused allocation is zeroed.
    drop(floats(&device, &[7.0; 64]));
    let fresh = device.allocate(Element::F32, 64).expect("a few bytes");
    assert!(fresh.read().expect("a few bytes").iter().all(|&byte| byte == 0));
}

/// Concurrent submissions of several threads to one device.
pub fn concurrent_submissions(subject: &Subject<'_>) {
    let device = open(subject);
    let kernel = device.compile(&program("copy")).expect("a simple kernel");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (device, kernel) = (device.clone(), kernel.clone());
            scope.spawn(move || {
                let values: Vec<f32> = (0..1000).map(|index| (index * (thread + 1)) as f32).collect();
                let (x, y) = (floats(&device, &values), floats(&device, &[0.0; 1000]));
                for round in 1..=10 {
                    let arguments = vec![("scale", (round as f32).into()), ("x", (&x).into()), ("y", (&y).into())];
                    let dispatch = over(Grid::elements(1000), &kernel, arguments);
                    let submission = device.submit(&[dispatch.clone(), dispatch]).expect("submits");
                    let download = y.download().expect("begins");
                    assert_eq!(submission.wait().expect("reports").len(), 2);
                    let scaled: Vec<u8> = values.iter().flat_map(|v| (v * round as f32).to_le_bytes()).collect();
                    assert_eq!(download.wait().expect("contents"), scaled);
                }
            });
        }
    });
}

/// A cancelled submission ends exactly once, and the device stays usable.
pub fn cancellation(subject: &Subject<'_>) {
    let device = open(subject);
    let kernel = device.compile(&program("slow")).expect("a simple kernel");
    let out = device.allocate(Element::U32, 1).expect("four bytes");
    let limits = Limits { deadline: Some(Duration::from_secs(30)), ..Limits::default() };
    let dispatch = over(Grid::elements(1), &kernel, vec![("out", (&out).into())]).limits(limits);
    let mut submission = device.submit(&[dispatch.clone(), dispatch]).expect("submits");
    let early = submission.wait_timeout(Duration::from_millis(1));
    submission.cancel();
    // The submission may have completed already, or the device may not support cancellation.
    let result = early.unwrap_or_else(|| submission.wait());
    assert!(matches!(result, Ok(_) | Err(Error::Cancelled)), "{result:?}");
    let simple = device.compile(&program("copy")).expect("a simple kernel");
    let (x, y) = (floats(&device, &[1.0; 4]), floats(&device, &[0.0; 4]));
    let arguments = vec![("x", (&x).into()), ("y", (&y).into())];
    device.run(&self::dispatch(&simple, arguments)).expect("the next job runs");
    assert_eq!(y.read().expect("a few bytes"), x.read().expect("a few bytes"));
}

// Memory ordering between invocations and between dispatches.

/// Publication: values written after claiming a place by an atomic are visible to the workgroup after a barrier, in
/// workgroup memory and in storage.
pub fn published_values(subject: &Subject<'_>) {
    let device = open(subject);
    let kernel = device.compile(&program("publish")).expect("a simple kernel");
    let count = 64 * 500;
    let [board, out, again] = [0; 3].map(|_| device.allocate(Element::U32, count).expect("some kilobytes"));
    let expected: Vec<u8> = (0..count as u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    for _ in 0..20 {
        let arguments = vec![("board", (&board).into()), ("out", (&out).into()), ("again", (&again).into())];
        device.run(&over(Grid::elements(count as u32), &kernel, arguments)).expect("it runs");
        assert_eq!(out.read().expect("some kilobytes"), expected, "through workgroup memory");
        assert_eq!(again.read().expect("some kilobytes"), expected, "through storage");
    }
}

/// A dispatch sees all writes of earlier ones, whether submitted together or not.
pub fn visible_dispatches(subject: &Subject<'_>) {
    let device = open(subject);
    let kernel = device.compile(&program("step")).expect("a simple kernel");
    let count = 1000u32;
    let zeros = || device.allocate(Element::U32, u64::from(count)).expect("some kilobytes");
    let (a, b) = (zeros(), zeros());
    let step = |from: &Buffer, to: &Buffer| {
        let arguments = vec![("from", from.into()), ("to", to.into())];
        over(Grid::elements(count), &kernel, arguments)
    };
    let mut expected = vec![0u32; count as usize];
    let on_host = |values: &[u32]| -> Vec<u32> {
        let value = |i: u32| values[((i * 5 + 1) % count) as usize].wrapping_add(i);
        (0..count).map(value).collect()
    };
    for round in 0..100u32 {
        // In one submission, in separate ones without waiting, and with a write in between.
        match round % 3 {
            0 => drop(device.submit(&[step(&a, &b), step(&b, &a)]).expect("submits")),
            1 => {
                for dispatch in [step(&a, &b), step(&b, &a)] {
                    device.submit(&[dispatch]).expect("submits");
                }
            }
            _ => {
                a.slice(7..8).expect("inside").write(&round.to_le_bytes()).expect("writes");
                expected[7] = round;
                device.submit(&[step(&a, &b), step(&b, &a)]).expect("submits");
            }
        }
        expected = on_host(&on_host(&expected));
    }
    let found = a.read().expect("some kilobytes");
    assert_eq!(found, expected.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
}

/// Forward progress: workgroups that wait for earlier ones continue, and see their writes, on devices with
/// `independent_groups`.
pub fn waiting_groups(subject: &Subject<'_>) {
    let device = open(subject);
    if !device.capabilities().independent_groups {
        return;
    }
    // The loop exits by a comparison, by a value that went through a private array, and by ending the invocation; after
    // a barrier, workgroups also add to values stored by the previous one.
    let wait = |done: &str| format!("loop {{\n%t = load turn[0]\n%mine = ge %t, %g\nif %mine {{\n{done}\n}}\n}}");
    let through_private =
        "loop {\n%t = load turn[0]\nstore seen[0], %t\n%s = load seen[0]\n%mine = ge %s, %g\nif %mine {\nbreak\n}\n}";
    let next = "%first = eq %l, 0\nif %first {\natomic_add turn[0], 1\n}";
    let publish =
        "if %first {\n%prev = sub %g, 1\n%before = load sums[%prev]\n%sum = add %before, %g\nstore sums[%g], %sum\n}";
    let bodies = [
        format!("{}\n{next}", wait("break")),
        format!("{through_private}\n{next}"),
        wait(&format!("{next}\nreturn")),
        format!(
            "{}\n%first = eq %l, 0\n{publish}\nstorage_barrier\nif %first {{\natomic_add turn[0], 1\n}}",
            wait("break")
        ),
    ];
    let groups = 100;
    for (number, body) in bodies.iter().enumerate() {
        for size in [1, 3, 8, 32, 200] {
            let program = read(&format!(
                "program turns workgroup({size}) {{\nread_write atomic turn: [u32; 1]\nread_write sums: [u32]\n\
                 private seen: [u32; 1]\n%g = group_index\n%l = local_index\n{body}\n}}"
            ));
            let kernel = device.compile(&program).expect("a simple kernel");
            let turn = device.allocate(Element::U32, 1).expect("four bytes");
            let sums = device.allocate(Element::U32, groups).expect("a few bytes");
            // Unlimited fuel: spinning threads consume it while another one is not scheduled.
            let limits = Limits { fuel: u64::MAX, deadline: Some(Duration::from_secs(60)), ..Limits::default() };
            let arguments = vec![("turn", (&turn).into()), ("sums", (&sums).into())];
            let dispatch = over(Grid::Groups([groups as u32, 1, 1]), &kernel, arguments).limits(limits);
            let report = device.run(&dispatch).expect("it runs");
            assert_eq!(report.outcome, Outcome::Completed, "{}", *program);
            assert_eq!(turn.read().expect("four bytes"), (groups as u32).to_le_bytes());
            if number == bodies.len() - 1 {
                let expected: Vec<u8> = (0..groups as u32).flat_map(|g| (g * (g + 1) / 2).to_le_bytes()).collect();
                assert_eq!(sums.read().expect("a few bytes"), expected);
            }
        }
    }
}
