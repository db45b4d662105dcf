//! Planned and fused pipelines give the same bytes as unfused dispatches on the oracle, within the memory budget.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use proptest::prelude::*;
use vyre_cpu::Cpu;
use vyre_driver::backend::Command;
use vyre_driver::{Buffer, Device, Error as DriverError, Oracle};
use vyre_foundation::ir::pipeline::Role;
use vyre_foundation::ir::{BufferId, Element, Module, Program};
use vyre_foundation::launch::{self, Grid, Limits, Outcome};
use vyre_foundation::{Validated, text, validate, wire};
use vyre_runtime::Error;
use vyre_runtime::pipeline::{Argument, BufferRef, Compiled, Join, Pipeline, Plan};
use vyre_testkit::intercept::{Intercepted, Interceptor};

const PROGRAMS: &str = "
program scale workgroup(64) {
    uniform a: u32
    read x: [u32]
    write y: [u32]
    %i = global_index
    %n = length y
    %inside = lt %i, %n
    if %inside {
        %a = load a
        %x = load x[%i]
        %m = mul %x, %a
        %y = add %m, %i
        store y[%i], %y
    }
}
program mix workgroup(64) {
    read x: [u32]
    read z: [u32]
    write y: [u32]
    %i = global_index
    %x = load x[%i]
    %z = load z[%i]
    %m = xor %x, %z
    %y = add %m, 7
    store y[%i], %y
}
program gather workgroup(32) {
    read x: [u32]
    read z: [u32]
    write y: [u32]
    %i = global_index
    %n = length x
    %z = load z[%i]
    %k = rem %z, %n
    %y = load x[%k]
    store y[%i], %y
}
program reverse workgroup(64) {
    read x: [u32]
    write y: [u32]
    %i = global_index
    %n = length x
    %last = sub %n, 1
    %k = sub %last, %i
    %y = load x[%k]
    store y[%i], %y
}
program bump workgroup(64) {
    read_write y: [u32]
    %i = global_index
    %y = load y[%i]
    %m = mul %y, 5
    %r = add %m, 3
    store y[%i], %r
}
program sparse workgroup(64) {
    read x: [u32]
    write y: [u32]
    %i = global_index
    %k = mul %i, 2
    %x = load x[%i]
    store y[%k], %x
}
program sums workgroup(64) {
    workgroup tile: [u32; 64]
    read x: [u32]
    write y: [u32]
    %i = global_index
    %l = local_index
    %x = load x[%i]
    store tile[%l], %x
    workgroup_barrier
    %k = xor %l, 1
    %a = load tile[%l]
    %b = load tile[%k]
    %s = add %a, %b
    store y[%i], %s
}
program total workgroup(64) {
    read x: [u32]
    read_write atomic y: [u32]
    %i = global_index
    %n = length y
    %k = rem %i, %n
    %x = load x[%i]
    %old = atomic_add y[%k], %x
}
program early workgroup(64) {
    read x: [u32]
    write y: [u32]
    %i = global_index
    %x = load x[%i]
    %odd = and %x, 1
    %leave = eq %odd, 1
    if %leave {
        return
    }
    store y[%i], %x
}
";

fn programs() -> Vec<Validated<Program>> {
    let module = validate::module(text::parse(PROGRAMS).unwrap()).unwrap_or_else(|error| panic!("{error}"));
    module.programs.clone()
}

/// Seeded random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// Generates a pipeline of up to `dispatches` dispatches. Most have equal lengths and read the output of their predecessor.
fn generate(seed: u64, dispatches: usize) -> Pipeline {
    let programs = programs();
    let mut random = Random(seed);
    let mut pipeline = Pipeline::new("generated");
    let usual = [64, 100, 1000][random.below(3)];
    let declare = |pipeline: &mut Pipeline, random: &mut Random, name: &str, role: Role| {
        let length = if random.chance(80) { usual } else { [1, 63, 64, 300][random.below(4)] };
        pipeline.buffer(name, role, Element::U32, length)
    };
    let mut written = Vec::new();
    let mut readable = Vec::new();
    for (name, role) in [("in0", Role::In), ("in1", Role::In), ("out0", Role::Out), ("out1", Role::Out)] {
        let id = declare(&mut pipeline, &mut random, name, role);
        readable.push(id);
        if role != Role::In {
            written.push(id);
        }
    }
    if random.chance(40) {
        let id = declare(&mut pipeline, &mut random, "state", Role::InOut);
        readable.push(id);
        written.push(id);
    }
    let mut last = readable[0];
    for number in 0..dispatches {
        // Elementwise programs are more frequent.
        let program = &programs[[0, 0, 0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 8][random.below(13)]];
        let output = if random.chance(65) {
            let id = declare(&mut pipeline, &mut random, &format!("t{number}"), Role::Transient);
            readable.push(id);
            written.push(id);
            id
        } else {
            written[random.below(written.len())]
        };
        let mut arguments: Vec<(&str, Argument)> = Vec::new();
        let mut bind = |name: &'static str, random: &mut Random| {
            if program.memory_named(name).is_some() {
                let input = if random.chance(70) { last } else { readable[random.below(readable.len())] };
                let input = if input == output { readable[0] } else { input };
                arguments.push((name, input.into()));
            }
        };
        bind("x", &mut random);
        bind("z", &mut random);
        if program.memory_named("a").is_some() {
            arguments.push(("a", (random.below(9) as u32 + 1).into()));
        }
        arguments.push(("y", output.into()));
        let elements = if random.chance(80) { usual } else { [0, 1, 200][random.below(3)] };
        pipeline.dispatch(program.clone(), Grid::Elements([elements, 1, 1]), &arguments).unwrap();
        last = output;
    }
    // The last result is an output, so that few results are dead.
    let scale = &programs[0];
    let out = pipeline.buffer("last", Role::Out, Element::U32, usual);
    pipeline
        .dispatch(
            scale.clone(),
            Grid::Elements([usual, 1, 1]),
            &[("a", 3u32.into()), ("x", last.into()), ("y", out.into())],
        )
        .unwrap();
    pipeline
}

fn contents(buffer: &vyre_foundation::ir::pipeline::Buffer, salt: u32) -> Vec<u8> {
    let word = |index: u32| (index ^ salt).wrapping_mul(2_654_435_761).rotate_left(salt % 31);
    (0..buffer.length).flat_map(|index| word(index).to_le_bytes()).collect()
}

/// Outputs of unfused dispatches on the oracle.
fn expected(pipeline: &Pipeline, salt: u32) -> HashMap<String, Vec<u8>> {
    let oracle = Device::open(&Oracle::default()).unwrap();
    let programs = programs();
    let recorded = pipeline.recorded();
    let mut buffers: HashMap<BufferId, Buffer> = HashMap::new();
    for (id, buffer) in recorded.buffers.iter() {
        let on_device = oracle.allocate(buffer.element, buffer.length.into()).unwrap();
        if buffer.role.is_given() {
            on_device.write(&contents(buffer, salt)).unwrap();
        }
        buffers.insert(id, on_device);
    }
    for dispatch in &recorded.dispatches {
        let program = programs.iter().find(|program| program.name() == dispatch.program).unwrap();
        let kernel = oracle.compile(program).unwrap();
        let arguments = dispatch.named().map(|(name, argument)| match argument {
            launch::Argument::Buffer(id) => (name, (&buffers[&id]).into()),
            launch::Argument::Scalar(literal) => (name, vyre_driver::Argument::Scalar(literal)),
        });
        oracle.run(&kernel.dispatch(dispatch.grid.widen(), arguments).unwrap()).unwrap();
    }
    let seen = recorded.buffers.iter().filter(|(_, buffer)| matches!(buffer.role, Role::Out | Role::InOut));
    seen.map(|(id, buffer)| (buffer.name.clone(), buffers[&id].read().unwrap())).collect()
}

/// Outputs of a compiled plan.
fn outputs(compiled: &Compiled, pipeline: &Pipeline, salt: u32) -> HashMap<String, Vec<u8>> {
    let buffers = || pipeline.recorded().buffers.values();
    for buffer in buffers().filter(|buffer| buffer.role.is_given()) {
        compiled.buffer(&buffer.name).unwrap().write(&contents(buffer, salt)).unwrap();
    }
    let run = compiled.run(Limits::default()).unwrap();
    assert_eq!(run.outcome(), Outcome::Completed);
    let seen = buffers().filter(|buffer| matches!(buffer.role, Role::Out | Role::InOut));
    seen.map(|buffer| (buffer.name.clone(), compiled.buffer(&buffer.name).unwrap().read().unwrap())).collect()
}

/// Runs a pipeline twice, with other inputs the second time.
fn check(device: &Device, pipeline: &Pipeline) {
    let plan = pipeline.plan(device.capabilities()).unwrap();
    let before = device.memory().used;
    let compiled = plan.compile(device).unwrap();
    assert_eq!(device.memory().used - before, plan.memory.peak_bytes);
    assert!(plan.memory.over_time.iter().all(|bytes| *bytes <= plan.memory.peak_bytes));
    for salt in [1, 2] {
        assert_eq!(outputs(&compiled, pipeline, salt), expected(pipeline, salt), "{plan:#?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn plans_match_unfused_dispatches(seed: u64, dispatches in 0usize..12) {
        thread_local!(static CPU: Device = Device::open(&Cpu::default()).unwrap());
        CPU.with(|cpu| check(cpu, &generate(seed, dispatches)));
    }

    #[test]
    fn text_and_wire_round_trip(seed: u64, dispatches in 0usize..12) {
        let mut pipeline = generate(seed, dispatches);
        if seed.is_multiple_of(2) {
            pipeline.budget(seed);
        }
        let programs = programs().iter().map(|program| (**program).clone()).collect();
        let module = Module { programs, pipelines: vec![pipeline.recorded().clone()] };
        prop_assert_eq!(&text::parse(&text::print(&module)).unwrap(), &module);
        let bytes = wire::encode(&module);
        let decoded = wire::decode(&bytes).unwrap();
        prop_assert_eq!(&decoded, &module);
        prop_assert_eq!(wire::encode(&decoded), bytes);
        let valid = validate::module(module).unwrap();
        let loaded = Pipeline::load(&decoded.pipelines[0], &valid.programs).unwrap();
        prop_assert_eq!(loaded.recorded(), pipeline.recorded());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn plans_match_unfused_dispatches_on_a_gpu(seed: u64, dispatches in 0usize..12) {
        thread_local!(static GPU: Result<Device, DriverError> = Device::open(&vyre_wgpu::Wgpu));
        GPU.with(|gpu| match gpu {
            Ok(gpu) => check(gpu, &generate(seed, dispatches)),
            // Skipped without a GPU.
            Err(error) => assert!(matches!(error, DriverError::NoAdapter { .. }), "{error}"),
        });
    }

    #[test]
    fn a_lower_budget_is_kept_or_refused(seed: u64, dispatches in 4usize..12) {
        let oracle = Device::open(&Cpu::default()).unwrap();
        let mut pipeline = generate(seed, dispatches);
        let mut budget = pipeline.plan(oracle.capabilities()).unwrap().memory.peak_bytes;
        loop {
            pipeline.budget(budget);
            match pipeline.plan(oracle.capabilities()) {
                Ok(plan) => {
                    prop_assert!(plan.memory.peak_bytes <= budget);
                    check(&oracle, &pipeline);
                    budget = plan.memory.peak_bytes - 1;
                }
                Err(Error::Driver(DriverError::OverBudget { required, budget: given, .. })) => {
                    prop_assert_eq!(given, budget);
                    prop_assert!(required > budget);
                    pipeline.budget(required);
                    prop_assert_eq!(pipeline.plan(oracle.capabilities()).unwrap().memory.peak_bytes, required);
                    break;
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
}

/// Counters of backend calls.
#[derive(Default)]
struct Counts {
    compiled: AtomicUsize,
    allocated: AtomicUsize,
    /// Non-empty submissions.
    submitted: AtomicUsize,
}

impl Interceptor for Counts {
    fn compile(&self) -> Result<(), DriverError> {
        self.compiled.fetch_add(1, Relaxed);
        Ok(())
    }

    fn allocate(&self, _bytes: u64) -> Result<(), DriverError> {
        self.allocated.fetch_add(1, Relaxed);
        Ok(())
    }

    fn submit(&self, _commands: &mut [Command]) -> Result<(), DriverError> {
        self.submitted.fetch_add(1, Relaxed);
        Ok(())
    }
}

#[test]
fn runs_only_submit_once_per_group() {
    let counts = Arc::new(Counts::default());
    let (name, backend, interceptor) = ("counted", Oracle::default(), counts.clone());
    let device = Device::open(&Intercepted { name, backend, interceptor }).unwrap();
    let pipeline = generate(11, 11);
    let plan = pipeline.plan(device.capabilities()).unwrap();
    let compiled = plan.compile(&device).unwrap();
    let before = (counts.compiled.load(Relaxed), counts.allocated.load(Relaxed));
    for salt in 0..10 {
        let submitted = counts.submitted.load(Relaxed);
        let run = compiled.run(Limits::default()).unwrap();
        assert_eq!(run.groups.len(), plan.groups.len());
        assert_eq!(counts.submitted.load(Relaxed) - submitted, plan.groups.len());
        assert_eq!(outputs(&compiled, &pipeline, salt), expected(&pipeline, salt));
    }
    assert_eq!((counts.compiled.load(Relaxed), counts.allocated.load(Relaxed)), before);
}

/// `count` times `scale`, from `x` to `y`.
fn chain(count: usize, length: u32) -> Pipeline {
    let scale = programs().remove(0);
    let mut pipeline = Pipeline::new("chain");
    let mut last = pipeline.buffer("x", Role::In, Element::U32, length);
    for number in 1..=count {
        let (name, role) =
            if number == count { ("y".into(), Role::Out) } else { (format!("t{number}"), Role::Transient) };
        let next = pipeline.buffer(name, role, Element::U32, length);
        let arguments = [("a", 3u32.into()), ("x", last.into()), ("y", next.into())];
        pipeline.dispatch(scale.clone(), Grid::Elements([length, 1, 1]), &arguments).unwrap();
        last = next;
    }
    pipeline
}

#[test]
fn a_chain_is_one_launch() {
    let device = Device::open(&Cpu::default()).unwrap();
    let plan = chain(12, 1024).plan(device.capabilities()).unwrap();
    assert_eq!((plan.launches.len(), plan.avoided_launches(), plan.groups.len()), (1, 11, 1));
    assert_eq!((plan.avoided_bytes(), plan.memory.peak_bytes), (11 * 4096, 2 * 4096));
    assert!(plan.joins.iter().all(|join| *join == Join::Fused));
    check(&device, &chain(12, 1024));
}

/// Coverage check of the generator.
#[test]
fn generated_pipelines_reach_every_decision() {
    let device = Device::open(&Oracle::default()).unwrap();
    let plans: Vec<_> = (0..200).map(|seed| generate(seed, 11).plan(device.capabilities()).unwrap()).collect();
    let count = |reached: &dyn Fn(&Plan) -> bool| plans.iter().filter(|plan| reached(plan)).count();
    let counts = [
        count(&|plan| plan.launches.iter().any(|launch| launch.dispatches.len() > 3)),
        count(&|plan| plan.avoided_bytes() > 0),
        count(&|plan| plan.joins.iter().any(|join| matches!(join, Join::Refused(_)))),
        count(&|plan| plan.groups.iter().any(|group| group.len() > 1)),
        count(&|plan| plan.order.is_sorted()),
        count(&|plan| plan.memory.slots.len() > 1),
        count(&|plan| plan.memory.peak_bytes + 1024 < plan.memory.unshared_bytes),
    ];
    assert!(counts.iter().all(|count| *count > 20), "{counts:?}");
}

#[test]
fn independent_dispatches_share_a_barrier_group_unless_memory_is_short() {
    // Four independent chains: gather into a transient, and gather from it.
    let gather = programs().remove(2);
    let device = Device::open(&Oracle::default()).unwrap();
    let mut pipeline = Pipeline::new("lanes");
    let x = pipeline.buffer("x", Role::In, Element::U32, 1024);
    for lane in 0..4 {
        let t = pipeline.buffer(format!("t{lane}"), Role::Transient, Element::U32, 1024);
        let y = pipeline.buffer(format!("y{lane}"), Role::Out, Element::U32, 1);
        let mut dispatch = |from: BufferRef, to: BufferRef, elements| {
            let arguments = [("x", from.into()), ("z", from.into()), ("y", to.into())];
            pipeline.dispatch(gather.clone(), Grid::Elements([elements, 1, 1]), &arguments).unwrap();
        };
        dispatch(x, t, 1024);
        dispatch(t, y, 32);
    }
    let widths = |pipeline: &Pipeline| {
        let plan = pipeline.plan(device.capabilities()).unwrap();
        check(&device, pipeline);
        (plan.groups.iter().map(Vec::len).collect::<Vec<_>>(), plan.memory.peak_bytes)
    };
    let resident = 4096 + 4 * 256;
    assert_eq!(widths(&pipeline), (vec![4, 4], resident + 4 * 4096));
    pipeline.budget(resident + 2 * 4096);
    assert!(widths(&pipeline).1 <= resident + 2 * 4096);
    pipeline.budget(resident + 4096);
    assert_eq!(widths(&pipeline), (vec![1; 8], resident + 4096));
    pipeline.budget(resident + 4095);
    let refused = pipeline.plan(device.capabilities());
    let (required, budget) = (resident + 4096, resident + 4095);
    assert_eq!(
        refused.err(),
        Some(Error::Driver(DriverError::OverBudget { field: "pipeline bytes", required, budget }))
    );
}

/// Returns the least budget that the error names; `None` if `budget` is accepted.
fn need(pipeline: &Pipeline, device: &Device, budget: u64) -> Option<u64> {
    let mut limited = pipeline.clone();
    limited.budget(budget);
    match limited.plan(device.capabilities()) {
        Ok(_) => None,
        Err(Error::Driver(DriverError::OverBudget { required, budget: named, .. })) => {
            assert_eq!(named, budget);
            Some(required)
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn budgets_bound_the_high_water_mark_and_errors_name_the_least_accepted_budget() {
    let device = Device::open(&Cpu::default()).unwrap();
    for seed in 0..60 {
        let pipeline = generate(seed, 1 + seed as usize % 12);
        let least = need(&pipeline, &device, 0).expect("a budget of 0 is refused");
        for budget in [1, least / 2, least - 256, least - 1] {
            assert_eq!(need(&pipeline, &device, budget), Some(least), "seed {seed}, budget {budget}");
        }
        for budget in [least, least + 1, least + 255, least + 256, least + least / 3, 2 * least] {
            let mut limited = pipeline.clone();
            limited.budget(budget);
            let plan = limited.plan(device.capabilities()).unwrap();
            assert_eq!(device.memory().used, 0);
            device.reset_peak_bytes();
            let compiled = plan.compile(&device).unwrap();
            compiled.run(Limits::default()).unwrap();
            assert_eq!(device.peak_bytes(), plan.memory.peak_bytes, "seed {seed}, budget {budget}");
            assert!(device.peak_bytes() <= budget, "seed {seed}: {} > {budget}", device.peak_bytes());
        }
        let mut limited = pipeline.clone();
        limited.budget(least);
        check(&device, &limited);
    }
}

#[test]
fn attached_buffers_count_as_their_underlying_allocations() {
    let scale = programs().remove(0);
    let device = Device::open(&Cpu::default()).unwrap();
    let all = device.allocate(Element::U32, 10_000).unwrap();
    let mut pipeline = Pipeline::new("parts");
    let parts = [0..100, 200..300, 400..500].map(|part| pipeline.attach(&all.slice(part).unwrap()));
    let t = pipeline.buffer("t", Role::Transient, Element::U32, 100);
    for (from, to) in [(parts[0], parts[1]), (parts[1], t), (t, parts[2])] {
        let arguments = [("a", 3u32.into()), ("x", from.into()), ("y", to.into())];
        pipeline.dispatch(scale.clone(), Grid::Elements([100, 1, 1]), &arguments).unwrap();
    }
    let least = need(&pipeline, &device, 1).unwrap();
    assert_eq!(need(&pipeline, &device, least - 1), Some(least));
    pipeline.budget(least);
    let plan = pipeline.plan(device.capabilities()).unwrap();
    assert_eq!(plan.memory.resident_bytes, all.allocated_bytes());
    plan.compile(&device).unwrap().run(Limits::default()).unwrap();
    assert_eq!(device.peak_bytes(), least);
}

#[test]
fn invalid_calls_have_typed_errors() {
    let scale = programs().remove(0);
    let mut pipeline = Pipeline::new("wrong");
    let x = pipeline.buffer("x", Role::In, Element::U32, 4);
    let y = pipeline.buffer("y", Role::Out, Element::U32, 4);
    let grid = Grid::Elements([4, 1, 1]);
    let codes = [
        pipeline.dispatch(scale.clone(), grid, &[("x", x.into()), ("y", y.into())]),
        pipeline.dispatch(scale.clone(), grid, &[("a", 1u32.into()), ("x", y.into()), ("y", x.into())]),
        pipeline.dispatch(scale.clone(), grid, &[("a", 1u32.into()), ("x", y.into()), ("y", y.into())]),
        pipeline.dispatch(
            scale,
            Grid::Groups([1 << 26, 1, 1]),
            &[("a", 1u32.into()), ("x", x.into()), ("y", y.into())],
        ),
    ];
    assert_eq!(codes.map(|result| result.unwrap_err().code()), ["L004", "L012", "L011", "L001"]);
    let device = Device::open(&Oracle::default()).unwrap();
    let compiled = pipeline.plan(device.capabilities()).unwrap().compile(&device).unwrap();
    assert_eq!(compiled.buffer("z").unwrap_err().code(), "L002");
    pipeline.buffer("x", Role::Transient, Element::U32, 0);
    assert_eq!(pipeline.plan(device.capabilities()).unwrap_err().code(), "V028");
}
