//! Driver tests: pools, limits, capabilities and device selection.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use vyre_driver::backend::{self, Backend};
use vyre_driver::{
    Buffer, Cache, Capabilities, Device, DeviceKind, Error, Grid, Null, Oracle, Origin, PrivateFolder, Registry,
    Telemetry,
};
use vyre_foundation::ir::{Element, Module, Program, Span, Type, TypeSet};
use vyre_foundation::optimizer::{Decision, Reason};
use vyre_foundation::{Validated, text, validate};
use vyre_testkit::intercept::{Intercepted, Interceptor};

fn program(source: &str) -> Validated<Program> {
    validate::program(text::parse(source).unwrap().programs.remove(0)).unwrap()
}

/// A null device with modified capabilities or behaviour.
type Fake = Intercepted<Null, Deviation>;

struct Deviation {
    change: fn(&mut Capabilities),
    behaviour: Behaviour,
}

#[derive(Clone, Copy)]
enum Behaviour {
    /// Like the null device.
    Null,
    /// Opening fails.
    Absent,
    /// Lost at the first read.
    Fragile,
    /// Every dispatch reports this time.
    Takes(Duration),
}

fn fake(name: &'static str, change: fn(&mut Capabilities), behaviour: Behaviour) -> Fake {
    Intercepted { name, backend: Null::default(), interceptor: Arc::new(Deviation { change, behaviour }) }
}

fn pretended(name: &'static str, change: fn(&mut Capabilities)) -> Fake {
    fake(name, change, Behaviour::Null)
}

/// A processor that reports this time for every dispatch.
fn taking(time: Duration) -> Fake {
    fake("taking", |capabilities| capabilities.kind = DeviceKind::Cpu, Behaviour::Takes(time))
}

fn absent(name: &'static str) -> Fake {
    fake(name, |_| {}, Behaviour::Absent)
}

impl Interceptor for Deviation {
    fn open(&self, backend: &'static str) -> Result<(), Error> {
        match self.behaviour {
            Behaviour::Absent => Err(Error::NoAdapter { backend, reason: "it is not there".into() }),
            Behaviour::Null | Behaviour::Fragile | Behaviour::Takes(_) => Ok(()),
        }
    }

    fn capabilities(&self, capabilities: &mut Capabilities) {
        (self.change)(capabilities);
    }

    fn complete(&self, completion: &mut backend::Completion, reads: bool) -> Result<(), Error> {
        match self.behaviour {
            Behaviour::Fragile if reads => {
                return Err(Error::DeviceLost { reason: "on purpose".into(), unacknowledged: vec![] });
            }
            Behaviour::Takes(time) => completion.reports.iter_mut().for_each(|report| report.time = time),
            Behaviour::Null | Behaviour::Absent | Behaviour::Fragile => {}
        }
        Ok(())
    }
}

#[test]
fn memory_is_counted_pooled_and_limited() {
    let device = Device::open(&Null { memory_bytes: Some(1 << 20) }).unwrap();
    let first = device.allocate(Element::F32, 100_000).unwrap();
    let used = device.memory().used;
    assert!((400_000..=500_000).contains(&used), "{used}");
    assert_eq!(device.memory().total, Some(1 << 20));
    let error = device.allocate(Element::F64, 100_000).unwrap_err();
    assert_eq!(error, Error::OutOfMemory { requested: 800_000, available: (1 << 20) - used });
    let part = first.slice(10..20).unwrap();
    drop(first);
    assert_eq!(device.memory().used, used, "a part keeps the whole");
    drop(part);
    assert_eq!((device.memory().used, device.memory().pooled), (0, used));
    // A buffer of a similar size reuses the memory.
    let second = device.allocate(Element::U32, 99_000).unwrap();
    assert_eq!((device.memory().used, device.memory().pooled), (used, 0));
    drop(second);
    let third = device.allocate(Element::U8, 1000).unwrap();
    assert_eq!(device.peak_bytes(), used, "the high-water mark stays when buffers are dropped");
    device.reset_peak_bytes();
    assert_eq!(device.peak_bytes(), device.memory().used);
    drop(third);
    assert_eq!(device.peak_bytes(), Buffer::size_class(1000).unwrap());
}

#[test]
fn results_are_returned_once() {
    let device = Device::open(&Null::default()).unwrap();
    let kernel = device.compile(&program("program p workgroup(1) {\n}")).unwrap();
    let dispatch = kernel.dispatch(Grid::elements(1), []).unwrap();
    let mut submission = device.submit(&[dispatch]).unwrap();
    assert_eq!(submission.wait_timeout(Duration::ZERO).unwrap().unwrap().len(), 1);
    assert_eq!(submission.wait().unwrap_err(), Error::AlreadyTaken);
    let mut download = device.allocate(Element::U32, 4).unwrap().download().unwrap();
    assert_eq!(download.poll(Duration::ZERO).unwrap().unwrap().len(), 16);
    assert_eq!(download.wait().unwrap_err(), Error::AlreadyTaken);
}

#[test]
fn buffers_of_a_lost_device_are_stale() {
    let device = Device::open(&fake("fragile", |_| {}, Behaviour::Fragile)).unwrap();
    let kernel = device.compile(&program("program p workgroup(1) {\n    read x: [u32]\n}")).unwrap();
    let buffer = device.allocate(Element::U32, 4).unwrap();
    let dispatch = |buffer| kernel.dispatch(Grid::elements(1), [("x", buffer)]).unwrap();
    device.run(&dispatch((&buffer).into())).unwrap();
    assert_eq!(buffer.read().unwrap_err().code(), "D010");
    assert_eq!(buffer.read().unwrap_err().code(), "D005");
    assert_eq!(device.run(&dispatch((&buffer).into())).unwrap_err(), Error::Stale { name: "x".into() });
    // A new buffer is usable, and reuses no old memory.
    let fresh = device.allocate(Element::U32, 4).unwrap();
    drop(buffer);
    assert_eq!(device.memory().pooled, 0);
    device.run(&dispatch((&fresh).into())).unwrap();
}

#[test]
fn unsupported_requirements_are_named() {
    let lacks = |change: fn(&mut Capabilities), source: &str| {
        let device = Device::open(&pretended("pretended", change)).unwrap();
        match device.compile(&program(source)) {
            Err(Error::Unsupported { needed, available }) => (needed, available),
            _ => panic!("accepted"),
        }
    };
    let only_32_bits = |capabilities: &mut Capabilities| {
        capabilities.types = TypeSet::of(&[Type::Bool, Type::I32, Type::U32, Type::F32]);
    };
    let (needed, available) = lacks(only_32_bits, "program p workgroup(1) {\n    read x: [f64]\n}");
    assert_eq!((needed.as_str(), available.as_str()), ("values of type f64", "bool, i32, u32, f32"));
    let (needed, _) = lacks(only_32_bits, "program p workgroup(1) {\n    %a = add 1i64, 2i64\n}");
    assert_eq!(needed, "values of type i64");
    let source = "program p workgroup(64) {\n    %a = subgroup_add 1\n}";
    assert_eq!(lacks(|capabilities| capabilities.subgroup_size = None, source).0, "subgroup operations");
    let source = "program p workgroup(1) {\n    read_write atomic x: [u64]\n    atomic_add x[0], 1u64\n}";
    assert_eq!(lacks(|capabilities| capabilities.atomics_64 = false, source).0, "64-bit atomics");
    let source = "program p workgroup(32, 32) {\n}";
    let small = |capabilities: &mut Capabilities| capabilities.max_workgroup_invocations = 256;
    assert_eq!(lacks(small, source), ("workgroups of 1024 invocations".into(), "256".into()));
    let narrow = |capabilities: &mut Capabilities| capabilities.max_workgroup_size = [1024, 16, 16];
    assert_eq!(lacks(narrow, source).0, "workgroups of [32, 32, 1]");
    let source = "program p workgroup(1) {\n    workgroup x: [f32; 5000]\n}";
    assert_eq!(
        lacks(|capabilities| capabilities.max_workgroup_bytes = 16384, source).0,
        "20000 bytes of workgroup arrays"
    );
    let source = "program p workgroup(1) {\n    read x: [f32]\n    read y: [f32]\n}";
    assert_eq!(lacks(|capabilities| capabilities.max_storage_objects = 1, source).0, "2 storage objects");
}

#[test]
fn devices_are_selected_by_name() {
    let registry = Registry::default().with(Oracle::default()).with(Null::default());
    let choice = registry.choose(Some("null"), None).unwrap();
    assert_eq!((choice.name, choice.reasons.as_slice()), ("null", &[("null", "named explicitly".to_owned())][..]));
    let Err(Error::NoSuchDevice { name, known }) = registry.choose(Some("cuda"), None) else { panic!("accepted") };
    assert_eq!((name.as_str(), known), ("cuda", vec!["reference".to_owned(), "null".to_owned()]));
    assert!(registry.check_device(Some("reference")).is_ok());
    assert_eq!(registry.check_device(Some("cuda")).unwrap_err().code(), "D002");
}

#[test]
fn auto_selects_the_fastest_supporting_device() {
    let cpu = |capabilities: &mut Capabilities| capabilities.kind = DeviceKind::Cpu;
    let small = |capabilities: &mut Capabilities| {
        capabilities.kind = DeviceKind::Gpu;
        capabilities.types = TypeSet::of(&[Type::Bool, Type::I32, Type::U32, Type::F32]);
    };
    let folder = std::env::temp_dir().join(format!("vyre-routing-{}", std::process::id()));
    let record = folder.join("throughput");
    let private = PrivateFolder::open(&folder).unwrap();
    let registry = || {
        Registry::default()
            .with(absent("absent"))
            .with(Oracle::default())
            .with(pretended("small", small))
            .with(pretended("full", cpu))
            .remember(&private)
    };
    let wide = program("program p workgroup(1) {\n    read x: [f64]\n}");
    // Throughput is irrelevant for a program that only one device supports.
    for round in ["measured", "remembered"] {
        let choice = registry().choose(Some("auto"), Some(&wide)).unwrap();
        assert_eq!(choice.name, "full", "{round}");
        let reason = |name: &str| choice.reasons.iter().find(|(other, _)| *other == name).unwrap().1.clone();
        assert!(reason("full").starts_with("fastest"), "{round}: {}", reason("full"));
        assert!(reason("small").contains("f64") || reason("small").contains("slower"), "{round}: {}", reason("small"));
        assert!(!reason("absent").is_empty());
        assert_eq!(choice.reasons.len(), 4, "{round}");
    }
    assert!(std::fs::read_to_string(&record).unwrap().starts_with("vyre throughput"));
    // An invalid record is measured again.
    std::fs::write(&record, "vyre throughput 0\nsmall NaN\n\u{fffd}").unwrap();
    assert_eq!(registry().choose(Some("auto"), Some(&wide)).unwrap().name, "full");
    std::fs::remove_dir_all(folder).unwrap();

    let nothing = Registry::default().with(absent("absent")).with(Oracle::default());
    assert_eq!(nothing.choose(Some("auto"), None).err().unwrap().code(), "D003");
}

#[test]
fn a_driver_that_could_not_be_opened_is_tried_again() {
    let folder = std::env::temp_dir().join(format!("vyre-retried-{}", std::process::id()));
    let private = PrivateFolder::open(&folder).unwrap();
    let gpu = |capabilities: &mut Capabilities| capabilities.kind = DeviceKind::Gpu;
    let cpu = || taking(Duration::from_micros(1));
    let before = Registry::default().with(absent("gpu")).with(cpu()).remember(&private);
    let choice = before.choose(Some("auto"), None).unwrap();
    assert_eq!((choice.name, choice.reasons[0].1.as_str()), ("taking", "gpu has no device: it is not there"));
    let record = std::fs::read_to_string(folder.join("throughput")).unwrap();
    assert!(record.contains("\ntaking ") && !record.contains("gpu"), "{record}");

    let after = Registry::default().with(pretended("gpu", gpu)).with(cpu()).remember(&private);
    let choice = after.choose(Some("auto"), None).unwrap();
    let speed = choice.reasons[0].1.trim_start_matches("fastest: ").trim_start_matches("slower: ");
    assert!(speed.ends_with("million steps per second"), "it is measured: {speed}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// Compiles and runs a small program on a new device, like a new process, and returns the pass decisions.
fn decisions(folder: &std::path::Path, time: Duration) -> Vec<Decision> {
    let registry = Registry::default().with(taking(time)).remember(&PrivateFolder::open(folder).unwrap());
    let device = registry.open("taking").unwrap();
    let kernel = device.compile(&program("program small workgroup(1) {\n}")).unwrap();
    let dispatch = kernel.dispatch(Grid::elements(1), []).unwrap();
    device.run(&dispatch).unwrap();
    kernel.compilation().decisions.clone()
}

#[test]
fn slow_dispatches_influence_the_next_process() {
    let folder = std::env::temp_dir().join(format!("vyre-hints-{}", std::process::id()));
    let selected = |decisions: &[Decision]| decisions.iter().filter(|decision| decision.selected).count();
    let cold = decisions(&folder, Duration::from_micros(100));
    assert!(cold.iter().all(|decision| decision.reason != Reason::HotPathTelemetry));
    let hot = decisions(&folder, Duration::from_micros(100));
    assert!(selected(&hot) > selected(&cold));
    let reasons = hot.iter().filter(|decision| decision.selected).map(|decision| decision.reason);
    assert!(reasons.into_iter().all(|reason| reason == Reason::HotPathTelemetry));
    // Short dispatches lower the mean.
    decisions(&folder, Duration::from_micros(1));
    assert_eq!(decisions(&folder, Duration::ZERO), cold);

    // A damaged file is ignored as a whole, and replaced.
    let file = folder.join("hints");
    let good = std::fs::read(&file).unwrap();
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    for bad in [&good[..good.len() - 1], &flipped, &vec![0; 2 << 20]] {
        std::fs::write(&file, bad).unwrap();
        let telemetry = Telemetry::kept_in(PrivateFolder::open(&folder).unwrap());
        assert_eq!(telemetry.problem().map(Error::code), Some("D013"));
        assert!(telemetry.hints().records().is_empty());
        drop(telemetry);
        assert!(std::fs::read(&file).unwrap() == bad, "nothing was recorded");
        assert_eq!(decisions(&folder, Duration::from_micros(100)), cold);
        assert_eq!(Telemetry::inspect(&file), Ok(()));
        assert_eq!(selected(&decisions(&folder, Duration::ZERO)), selected(&hot));
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// A program that the passes change, whose trap has a span that depends on `margin`.
fn shifted(number: u32, margin: &str) -> Validated<Program> {
    program(&format!(
        "{margin}program p workgroup(1) {{
            read x: [u32]
            %i = global_index
            %a = load x[%i]
            %b = add %a, 0
            %c = ne %b, {number}
            {margin}if %c {{
                {margin}trap {number}
            }}
        }}"
    ))
}

fn spans(program: &Program) -> Vec<Span> {
    let mut spans: Vec<Span> = program.memories().values().map(|memory| memory.span).collect();
    program.walk(|id, _| spans.push(program.inst(id).span));
    spans
}

#[test]
fn a_device_compiles_a_program_once() {
    let device = Device::open(&taking(Duration::ZERO)).unwrap();
    let origin =
        |device: &Device, number, margin| device.compile(&shifted(number, margin)).unwrap().compilation().origin;
    let first = device.compile(&shifted(0, "")).unwrap();
    assert_eq!(first.compilation().origin, Origin::Optimized);
    let again = device.clone().compile(&shifted(0, "")).unwrap();
    assert_eq!(again.compilation().origin, Origin::Memory);
    assert_eq!(again.compilation().report, first.compilation().report);
    assert!(std::ptr::eq::<Program>(&**first.program(), &**again.program()));
    assert!(*first.program() != shifted(0, ""), "the passes have something to do");
    // Other spans, no optimization, or another device make another kernel.
    assert_eq!(origin(&device, 0, "  "), Origin::Optimized);
    assert_eq!(origin(&device.as_written(), 0, ""), Origin::AsWritten);
    assert_eq!(origin(&device.as_written(), 0, ""), Origin::Memory);
    assert_eq!(origin(&Device::open(&taking(Duration::ZERO)).unwrap(), 0, ""), Origin::Optimized);
    // LRU eviction.
    for number in 1..100 {
        assert_eq!(origin(&device, number, ""), Origin::Optimized);
        assert_eq!(origin(&device, 0, ""), Origin::Memory);
    }
    assert_eq!(origin(&device, 99, ""), Origin::Memory);
    assert_eq!(origin(&device, 1, ""), Origin::Optimized);
}

/// Programs that differ only in their file share cache entries, but not source locations.
#[test]
fn cached_programs_use_the_callers_source_locations() {
    let folder = std::env::temp_dir().join(format!("vyre-locations-{}", std::process::id()));
    let cache = Arc::new(Cache::kept_in(PrivateFolder::open(&folder).unwrap()));
    let named = |file: &str| {
        let mut module = Module::from(shifted(0, "").into_inner());
        module.set_file(file);
        validate::program(module.programs.remove(0)).unwrap()
    };
    let open = || Device::open(&taking(Duration::ZERO)).unwrap().with_cache(&cache);
    let device = open();
    let origins = [
        (&device, "a.vyre", Origin::Optimized),
        (&device, "b.vyre", Origin::Memory),
        (&open(), "c.vyre", Origin::Disk),
    ];
    for (device, file, origin) in origins {
        let kernel = device.compile(&named(file)).unwrap();
        assert_eq!(kernel.compilation().origin, origin);
        let program = kernel.program();
        let locs = spans(program).into_iter().filter_map(|span| program.locate(span));
        let traps: Vec<String> =
            locs.filter(|loc| loc.text().unwrap().contains("trap")).map(|loc| loc.to_string()).collect();
        assert_eq!(traps, [format!("{file}:8:17")]);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn optimized_programs_are_kept_for_the_next_process() {
    let folder = std::env::temp_dir().join(format!("vyre-programs-{}", std::process::id()));
    let cache = Arc::new(Cache::kept_in(PrivateFolder::open(&folder).unwrap()));
    let open = |backend: &dyn Backend| Device::open(backend).unwrap().with_cache(&cache);
    let compile = |margin| {
        let kernel = open(&taking(Duration::ZERO)).compile(&shifted(0, margin)).unwrap();
        (kernel.program().clone(), kernel.compilation().clone())
    };
    for margin in ["", "  ", "// a comment\n"] {
        let (cold, cold_compilation) = compile(margin);
        let (warm, warm_compilation) = compile(margin);
        assert_eq!((cold_compilation.origin, warm_compilation.origin), (Origin::Optimized, Origin::Disk));
        assert_eq!(warm_compilation.decisions, cold_compilation.decisions);
        assert!(cold_compilation.report.is_some() && warm_compilation.report.is_none());
        assert_eq!((spans(&warm), warm), (spans(&cold), cold));
    }
    let files = || std::fs::read_dir(&folder).unwrap().count();
    assert_eq!(files(), 3);
    // Another backend or pass selection misses the cache, and unoptimized programs are not stored.
    let other = pretended("other", |capabilities| capabilities.kind = DeviceKind::Cpu);
    assert_eq!(open(&other).compile(&shifted(0, "")).unwrap().compilation().origin, Origin::Optimized);
    let telemetry = Arc::new(Telemetry::default());
    telemetry.hints().record("p", u64::MAX, 0);
    let hot = open(&taking(Duration::ZERO)).with_telemetry(&telemetry);
    assert_eq!(hot.compile(&shifted(0, "")).unwrap().compilation().origin, Origin::Optimized);
    assert_eq!(files(), 5);
    open(&taking(Duration::ZERO)).as_written().compile(&shifted(1, "")).unwrap();
    open(&Null::default()).compile(&shifted(1, "")).unwrap();
    assert_eq!(files(), 5);
    // Damaged files are detected, reported and replaced.
    for file in std::fs::read_dir(&folder).unwrap() {
        std::fs::write(file.unwrap().path(), "damaged").unwrap();
    }
    assert_eq!((compile("").1.origin, compile("").1.origin), (Origin::Optimized, Origin::Disk));
    assert_eq!(cache.take_problems().iter().map(Error::code).collect::<Vec<_>>(), ["D014"]);
    std::fs::remove_dir_all(folder).unwrap();
}

fn element() -> impl Strategy<Value = Element> {
    prop::sample::select(&Element::ALL[..])
}

/// Small numbers, and those near the limits of their type.
fn index() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..40, Just(u32::MAX), Just(u32::MAX - 1), Just(1 << 31), any::<u32>()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn parts_and_contents_of_buffers_take_any_argument(
        of in element(), length in 0u32..40, start in index(), end in index(), other in element(), seen in index(), given in 0usize..400
    ) {
        let device = Device::open(&Oracle::default()).unwrap();
        let all = device.allocate(of, length.into()).unwrap();
        let part = all.slice(start..end);
        if start <= end && end <= length {
            prop_assert_eq!(part.as_ref().map(Buffer::len), Ok(end - start));
        } else {
            let (start, end, length) = (u64::from(start), u64::from(end), u64::from(length));
            prop_assert_eq!(part.as_ref().err(), Some(&Error::OutOfRange { start, end, length }));
        }
        let buffer = part.unwrap_or(all);
        let (elements, element, bytes) = (buffer.len(), buffer.element(), buffer.len() as usize * of.size());

        let write = buffer.write(&vec![7; given]);
        let refused = Error::WriteLength { given: given as u64, element, length: elements };
        prop_assert_eq!(write, if given == bytes { Ok(()) } else { Err(refused) });
        prop_assert_eq!(buffer.read().map(|contents| contents.len()), Ok(bytes));

        let view = buffer.view(other, seen);
        let fits = u64::from(seen) * other.size() as u64 <= bytes as u64;
        let codes = if fits { [None, Some("D026")] } else { [Some("D007"); 2] };
        prop_assert!(codes.contains(&view.as_ref().err().map(Error::code)), "{view:?}");
        if let Ok(view) = view {
            prop_assert_eq!(view.read().map(|contents| contents.len()), Ok(seen as usize * other.size()));
        }

        let counts = [
            (0, buffer.elements::<()>().map(|elements| elements.len())),
            (1, buffer.elements::<u8>().map(|elements| elements.len())),
            (2, buffer.elements::<u16>().map(|elements| elements.len())),
            (8, buffer.elements::<u64>().map(|elements| elements.len())),
            (12, buffer.elements::<[u32; 3]>().map(|elements| elements.len())),
            (16, buffer.elements::<u128>().map(|elements| elements.len())),
        ];
        for (size, count) in counts {
            let whole = bytes.checked_rem(size) == Some(0);
            let refused = Error::ElementSize { size, bytes: bytes as u64 };
            prop_assert_eq!(count, if whole { Ok(bytes / size) } else { Err(refused) });
        }
        prop_assert!(buffer.peek(start).is_none() || start < length.max(1) * 2);
        prop_assert!(!buffer.poke(u32::MAX, 1));
    }

    #[test]
    fn allocations_of_any_size_stay_within_memory(
        lengths in prop::collection::vec((element(), prop_oneof![0u64..4000, any::<u64>(), Just(u64::MAX), Just(1 << 32)]), 1..12)
    ) {
        const MEMORY: u64 = 20_000;
        let device = Device::open(&Null { memory_bytes: Some(MEMORY) }).unwrap();
        let mut kept = Vec::new();
        for (element, length) in lengths {
            let bytes = length.saturating_mul(element.size() as u64);
            let before = device.memory().used;
            match device.allocate(element, length) {
                Ok(buffer) => {
                    prop_assert!(bytes <= MEMORY.saturating_sub(before) && buffer.allocated_bytes() >= bytes);
                    kept.push(buffer);
                }
                Err(Error::OutOfMemory { requested, available }) => {
                    prop_assert_eq!((requested, available), (bytes, MEMORY.saturating_sub(before)));
                    prop_assert!(requested > available);
                }
                Err(error) => prop_assert_eq!((error.code(), length > u64::from(u32::MAX)), ("F006", true)),
            }
            prop_assert_eq!(device.memory().used, kept.iter().map(Buffer::allocated_bytes).sum::<u64>());
            // An empty buffer takes 16 bytes, also on a full device.
            prop_assert!(device.peak_bytes() <= MEMORY + 16 * kept.len() as u64);
        }
        drop(kept);
        prop_assert_eq!(device.memory().used, 0);
    }
}

#[test]
fn threads_that_allocate_at_once_stay_within_memory() {
    const MEMORY: u64 = 1 << 20;
    let device = Device::open(&Null { memory_bytes: Some(MEMORY) }).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let buffers: Vec<_> = (0..40).map_while(|_| device.allocate(Element::U8, 16 << 10).ok()).collect();
                    drop(buffers);
                }
            });
        }
    });
    assert!(device.peak_bytes() <= MEMORY, "{}", device.peak_bytes());
    assert_eq!(device.memory().used, 0);
}
