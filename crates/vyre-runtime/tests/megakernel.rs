//! Megakernels are equivalent to the sequential execution of their items.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use vyre_cpu::{Cpu, Execution};
use vyre_driver::{Device, Error as DriverError, Oracle};
use vyre_foundation::ir::{Element, Program};
use vyre_foundation::transform::embed::Refusal;
use vyre_foundation::{Validated, text, validate};
use vyre_runtime::Error;
use vyre_runtime::megakernel::policy::{Policy, Sizing};
use vyre_runtime::megakernel::ring::{Otherwise, Pushed};
use vyre_runtime::megakernel::{
    BadOp, Canceller, Clock, Config, Failed, Failure, Handle, Hit, Op, Order, Report, Segment, Session, WorkItem,
};
use vyre_wgpu::Wgpu;

use shared::shared;

#[path = "../../vyre-wgpu/tests/shared/mod.rs"]
mod shared;

const OPS: [&str; 9] = ["scale", "sum", "rotate", "accumulate", "scan", "histogram", "checked", "spin", "find"];
const SCALE: u32 = 1;
const SUM: u32 = 2;
const ROTATE: u32 = 3;
const ACCUMULATE: u32 = 4;
const SCAN: u32 = 5;
const HISTOGRAM: u32 = 6;
const CHECKED: u32 = 7;
const SPIN: u32 = 8;
const FIND: u32 = 9;

fn ops() -> Vec<Op> {
    let module = text::parse(include_str!("../../../examples/megakernel/ops.vyre")).unwrap();
    let programs = validate::module(module).unwrap().into_inner().programs;
    assert!(programs.iter().map(|program| program.name()).eq(OPS));
    let op = |program: Validated<Program>| {
        let is_pure = ["scale", "sum", "rotate", "scan"].contains(&program.name());
        let op = Op::new(program).unwrap();
        if is_pure { op.pure() } else { op }
    };
    programs.into_iter().map(op).collect()
}

/// Fuel of an invocation.
const FUEL: u32 = 1000;

/// Sequential model of a session.
struct Model {
    memory: Vec<Vec<u32>>,
    hits: Vec<u32>,
    failures: Vec<(u64, Failure)>,
}

impl Model {
    fn run(&mut self, number: u64, item: WorkItem) {
        let WorkItem { op_handle, input_handle, output_handle, param } = item;
        let input = self.memory[input_handle as usize].clone();
        let at = |index: usize| input.get(index).copied().unwrap_or(0);
        let third = self.memory.get(param as usize).cloned().unwrap_or_default();
        let output = &mut self.memory[output_handle as usize];
        let mut failed = None;
        let length = output.len();
        let mut each = |value: &dyn Fn(usize, u32) -> u32| {
            for (i, output) in output.iter_mut().enumerate() {
                *output = value(i, *output);
            }
        };
        match op_handle {
            0 => {}
            SCALE => each(&|i, _| at(i).wrapping_mul(param)),
            SUM => each(&|i, _| at(i).wrapping_add(third.get(i).copied().unwrap_or(0))),
            ROTATE => each(&|i, _| at((i + 1) % input.len())),
            ACCUMULATE => each(&|i, old| old.wrapping_add(at(i))),
            SCAN => each(&|i, _| (i / 32 * 32..=i).fold(0, |sum, j| sum.wrapping_add(at(j)))),
            HISTOGRAM => {
                input.iter().for_each(|x| output[*x as usize % length] += 1);
            }
            CHECKED => {
                failed = (0..length).any(|i| at(i) == 666).then_some(Failure::Trapped(5));
                each(&|i, old| if at(i) == 666 { old } else { at(i) });
            }
            SPIN => {
                // The last trip takes fuel, too.
                failed = (0..length).any(|i| at(i) >= FUEL).then_some(Failure::OutOfFuel);
                each(&|i, old| if at(i) >= FUEL { old } else { at(i) });
            }
            _ => self.hits.extend(input.iter().filter(|x| **x > param)),
        }
        self.failures.extend(failed.map(|failure| (number, failure)));
    }
}

/// Reported words, sorted.
fn words(hits: &[Hit]) -> Vec<u32> {
    let mut words: Vec<u32> = hits.iter().map(|hit| hit.word).collect();
    words.sort_unstable();
    words
}

/// Failures by sequence number, sorted.
fn reasons(failures: &[Failed]) -> Vec<(u64, Failure)> {
    let mut reasons: Vec<_> = failures.iter().map(|failed| (failed.number, failed.reason.clone())).collect();
    reasons.sort_by_key(|(number, _)| *number);
    reasons
}

/// Lengths of the handles' allocations; the last two are atomic, and handle 0 is invalid.
const LENGTHS: [u32; 10] = [0, 1, 1, 3, 64, 100, 64, 300, 7, 16];
const ATOMIC: usize = 8;

/// Derives a valid item from random numbers.
fn item([op, input, output, param]: [u32; 4]) -> WorkItem {
    let op = op % 10;
    let plain = |number: u32| 1 + number % (ATOMIC as u32 - 1);
    let mut item = WorkItem { op_handle: op, input_handle: plain(input), output_handle: plain(output), param };
    match op {
        0 => item = WorkItem::default(),
        SUM => item.param = plain(param),
        HISTOGRAM => item.output_handle = ATOMIC as u32 + output % 2,
        FIND => item.param = param % 3000,
        _ => {}
    }
    // Only elementwise ops work in place.
    if matches!(op, ROTATE | SCAN | CHECKED | SPIN) && item.input_handle == item.output_handle {
        item.input_handle = item.output_handle % 7 + 1;
    }
    item
}

fn session(device: &Device, config: Config) -> (Session, Vec<Handle>) {
    let mut session = Session::new(device, config).unwrap();
    for op in ops() {
        session.register(op);
    }
    let handles = LENGTHS.iter().enumerate().skip(1).map(|(handle, &length)| {
        let segment = if handle >= ATOMIC { Segment::Atomic } else { Segment::Plain };
        session.allocate(segment, length).unwrap()
    });
    let handles: Vec<Handle> = handles.collect();
    assert!(handles.iter().map(|handle| handle.0).eq(1..LENGTHS.len() as u32));
    (session, handles)
}

fn contents() -> Vec<Vec<u32>> {
    let value = |handle: u32, i: u32| (handle * 7919 + i * 104_729) % 1500;
    (0..LENGTHS.len() as u32).map(|handle| (0..LENGTHS[handle as usize]).map(|i| value(handle, i)).collect()).collect()
}

fn read(session: &Session, handle: Handle) -> Vec<u32> {
    session.read(handle).unwrap()
}

/// Compares a session with the model over three rounds of the same items, so that hot ops are compiled and used.
fn check(device: &Device, config: &Config, items: &[WorkItem]) -> Report {
    let (mut session, handles) = session(device, config.clone());
    let mut model = Model { memory: contents(), hits: Vec::new(), failures: Vec::new() };
    for handle in &handles {
        let bytes: &[u8] = bytemuck::cast_slice(&model.memory[handle.0 as usize]);
        session.write(*handle, bytes).unwrap();
    }
    let mut last = Report::default();
    for round in 0..3 {
        assert_eq!(session.submit(items), Pushed::All);
        let report = session.drain().unwrap();
        let first = (round * items.len()) as u64;
        (first..).zip(items).for_each(|(number, item)| model.run(number, *item));
        for handle in &handles {
            assert_eq!(read(&session, *handle), model.memory[handle.0 as usize], "handle {}", handle.0);
        }
        model.hits.sort_unstable();
        assert_eq!(words(&report.hits), model.hits);
        assert_eq!(reasons(&report.failures), model.failures);
        assert_eq!(report.items, items.len() as u64);
        model.hits.clear();
        model.failures.clear();
        session.finish_compiling();
        last = report;
    }
    last
}

/// Policy that always compiles.
fn compiling() -> Policy {
    Policy { jit_queue_len_threshold: 0, min_hit_capacity: 2, ..Config::default().policy }
}

/// Policy that never compiles.
fn interpreting() -> Policy {
    let never = u32::MAX;
    Policy {
        jit_queue_len_threshold: never,
        hot_opcode_threshold: never,
        hot_window_threshold: never,
        ..Config::default().policy
    }
}

fn configs() -> [Config; 3] {
    let config = Config { plain_words: 4096, atomic_words: 64, fuel: FUEL, policy: compiling(), ..Config::default() };
    [
        config.clone(),
        Config { policy: interpreting(), ..config.clone() },
        // Minimal slices, worker groups and window threshold.
        Config { slice: 5, worker_groups: 1, policy: Policy { hot_window_threshold: 1, ..compiling() }, ..config },
    ]
}

fn random_items(device: &Device, cases: u32) {
    for config in configs() {
        let mut runner = TestRunner::new_with_rng(Cases::with_cases(cases), TestRunner::deterministic().new_rng());
        let items = proptest::collection::vec(proptest::array::uniform4(any::<u32>()), 0..60);
        runner
            .run(&items, |items| {
                let items: Vec<WorkItem> = items.into_iter().map(item).collect();
                check(device, &config, &items);
                Ok(())
            })
            .unwrap();
    }
}

#[test]
fn items_take_effect_sequentially() {
    random_items(&Device::open(&Cpu::default()).unwrap(), 60);
    random_items(&Device::open(&Oracle::default()).unwrap(), 10);
}

#[test]
fn items_take_effect_sequentially_on_a_gpu() {
    match Device::open(&Wgpu) {
        Ok(device) => {
            random_items(&device, 4);
            let narrow = Config {
                policy: Policy { sizing: Config::of(&device).policy.sizing, ..compiling() },
                ..configs()[0].clone()
            };
            check(&device, &narrow, &(0..60).map(|i| item([i, i / 3, i * 7, i])).collect::<Vec<_>>());
        }
        // Missing drivers are reported by the tests of the backend.
        Err(DriverError::NoAdapter { .. }) => eprintln!("not run"),
        Err(error) => panic!("{error}"),
    }
}

/// The number of arms selects the megakernel passes, which merge arms that differ in a constant.
#[test]
fn merged_interpreter_arms_keep_their_semantics() {
    let op = |number: u32| {
        let sum = if number.is_multiple_of(2) { "%y = mul %x, 7" } else { &format!("%y = add %x, {number}") };
        let body = format!("%i = global_index\n%x = load input[%i]\n{sum}\nstore output[%i], %y");
        let source = format!("program op workgroup(64) {{\nread input: [u32]\nwrite output: [u32]\n{body}\n}}");
        Op::new(validate::program(text::parse(&source).unwrap().programs.remove(0)).unwrap()).unwrap()
    };
    for device in [Device::open(&Cpu::default()).unwrap(), Device::open(&Oracle::default()).unwrap()] {
        for length in [3, 500] {
            let config = Config { policy: interpreting(), plain_words: 50_000, ..configs()[0].clone() };
            let mut session = Session::new(&device, config).unwrap();
            (1..40).for_each(|number| assert_eq!(session.register(op(number)), number));
            let handles: Vec<Handle> = (0..40).map(|_| session.allocate(Segment::Plain, length).unwrap()).collect();
            let input: Vec<u32> = (0..length).collect();
            session.memory(handles[0]).unwrap().write(bytemuck::cast_slice(&input)).unwrap();
            let item = |number: u32| {
                let [input_handle, output_handle] = [0, number].map(|handle| handles[handle as usize].0);
                WorkItem { op_handle: number, input_handle, output_handle, param: 0 }
            };
            assert_eq!(session.submit(&(1..40).map(item).collect::<Vec<_>>()), Pushed::All);
            assert_eq!(session.drain().unwrap().failures, []);
            for number in 1..40u32 {
                let apply = |x: &u32| if number.is_multiple_of(2) { x * 7 } else { x + number };
                let expected: Vec<u32> = input.iter().map(apply).collect();
                assert_eq!(read(&session, handles[number as usize]), expected, "{number}");
            }
        }
    }
}

#[test]
fn hot_chains_are_fused() {
    let device = Device::open(&Cpu::default()).unwrap();
    let [config, interpreter, _] = configs().map(|config| Config { order: Order::Barriers, ..config });
    // Two interleaved chains, repeated: 4 → 6 → 4 → 6, and 2 → 1 → 2.
    let link =
        |op_handle, input_handle, output_handle, param| WorkItem { op_handle, input_handle, output_handle, param };
    let chains = [
        link(SCALE, 4, 6, 3),
        link(SCALE, 2, 1, 7),
        link(SUM, 6, 4, 5),
        link(SCALE, 1, 2, 9),
        link(ACCUMULATE, 4, 6, 0),
    ];
    let items = chains.repeat(20);
    let report = check(&device, &config, &items);
    assert!(report.fused >= 40, "{report:?}");
    let apart = Policy { hot_window_threshold: u32::MAX, ..compiling() };
    let apart = check(&device, &Config { policy: apart, ..config }, &items);
    assert_eq!((apart.fused, apart.interpreted), (0, 0));
    assert!(report.groups < apart.groups);
    let interpreted = check(&device, &interpreter, &items);
    assert_eq!((interpreted.fused, interpreted.interpreted), (0, items.len() as u64));
    // An op that reads other elements of its input cannot be fused.
    let across = [link(SCALE, 4, 6, 3), link(ROTATE, 6, 4, 0)].repeat(20);
    assert_eq!(check(&device, &configs()[0], &across).fused, 0);
}

#[test]
fn idle_windows_are_evicted() {
    const SHAPES: u32 = 150;
    let device = Device::open(&Cpu::default()).unwrap();
    let policy = Policy { hot_window_threshold: 1, ..compiling() };
    let config = Config { plain_words: 1 << 16, order: Order::Barriers, policy, ..Config::of(&device) };
    let (mut session, _) = session(&device, config);
    // Each length is another shape: a → b → c.
    let mut chain = |length| {
        let [a, b, c] = [0; 3].map(|_| session.allocate(Segment::Plain, length).unwrap());
        session.write(a, &1u32.to_le_bytes().repeat(length as usize)).unwrap();
        let link = |from: Handle, to: Handle| WorkItem {
            op_handle: ACCUMULATE,
            input_handle: from.0,
            output_handle: to.0,
            param: 0,
        };
        let items = [link(a, b), link(b, c)];
        let (mut rounds, mut fused, mut sum) = (0, 0, 0);
        while fused == 0 {
            assert_eq!(session.submit(&items), Pushed::All);
            fused = session.drain().unwrap().fused;
            session.finish_compiling();
            rounds += 1;
            sum += rounds;
            assert!(rounds < 1000, "length {length}");
        }
        assert_eq!(session.read(c).unwrap(), vec![sum; length as usize]);
        rounds
    };
    let rounds: Vec<u32> = (9..9 + SHAPES).map(&mut chain).collect();
    assert!(rounds[..64].iter().all(|rounds| *rounds <= 3), "{rounds:?}");
    assert!(rounds[64..].iter().any(|rounds| *rounds > 3), "some wait for an eviction: {rounds:?}");
}

#[test]
fn dependency_counters_order_items() {
    // The ready queue requires equal workgroup sizes and no hits.
    let sizing = Sizing::Preferred(NonZeroU32::new(32).unwrap());
    let policy = Policy { hot_window_threshold: u32::MAX, sizing, ..compiling() };
    let config = Config { order: Order::Counters, policy, ..configs()[0].clone() };
    for execution in [None, Some(Execution::Portable)] {
        let device = Device::open(&Cpu { threads: Some(3), execution, ..Cpu::default() }).unwrap();
        let mut runner = TestRunner::new_with_rng(Cases::with_cases(25), TestRunner::deterministic().new_rng());
        let items = proptest::collection::vec(proptest::array::uniform4(any::<u32>()), 2..200);
        runner
            .run(&items, |items| {
                let items = items.into_iter().map(|[op, rest @ ..]| item([op % 9, rest[0], rest[1], rest[2]]));
                let items: Vec<WorkItem> = items.collect();
                let report = check(&device, &config, &items);
                assert!(report.counted > 0 || report.groups <= 1, "{report:?}");
                Ok(())
            })
            .unwrap();
    }
}

#[test]
fn invalid_items_fail_individually() {
    let device = Device::open(&Cpu::default()).unwrap();
    let good = WorkItem { op_handle: SCALE, input_handle: 3, output_handle: 4, param: 2 };
    let (mut session, handles) = session(&device, configs()[0].clone());
    let items = [
        WorkItem { op_handle: 77, ..good },
        good,
        WorkItem { input_handle: 0, ..good },
        WorkItem { output_handle: 1000, ..good },
        WorkItem { output_handle: ATOMIC as u32, ..good },
        WorkItem { op_handle: ROTATE, input_handle: 4, ..good },
        WorkItem { op_handle: SUM, param: 1000, ..good },
    ];
    assert_eq!(session.submit(&items), Pushed::All);
    let report = session.drain().unwrap();
    let expected = [
        (0, Failure::UnknownOp),
        (2, Failure::UnknownHandle),
        (3, Failure::UnknownHandle),
        (4, Failure::UnknownHandle),
        (5, Failure::Overlap),
        (6, Failure::UnknownHandle),
    ];
    assert_eq!(reasons(&report.failures), expected);
    assert_eq!(report.failures[1].item, items[2]);
    assert_eq!((report.items, report.launches), (7, 1));

    // Sequence numbers continue in the next drain.
    assert_eq!(session.submit(&[good, WorkItem { op_handle: 77, ..good }]), Pushed::All);
    assert_eq!(reasons(&session.drain().unwrap().failures), [(8, Failure::UnknownOp)]);
    assert!(matches!(session.read(Handle(0)), Err(Error::NoSuchHandle { handle: 0 })));
    session.free(handles[0]).unwrap();
    assert!(matches!(session.free(handles[0]), Err(Error::NoSuchHandle { .. })));
    assert_ne!(session.allocate(Segment::Plain, 1).unwrap(), handles[0], "a handle is issued once");
}

#[test]
fn redundant_items_are_pruned() {
    let device = Device::open(&Cpu::default()).unwrap();
    let (mut session, _) = session(&device, configs()[0].clone());
    let pure = SCALE;
    let scale = text::parse(include_str!("../../../examples/megakernel/ops.vyre")).unwrap().programs.remove(0);
    let undeclared = session.register(Op::new(validate::program(scale).unwrap()).unwrap());
    let item = |op_handle, input_handle, output_handle| WorkItem { op_handle, input_handle, output_handle, param: 3 };
    // The second item repeats the first. The fourth does not, because the third overwrote its input.
    let items = [
        item(pure, 4, 6),
        item(pure, 4, 6),
        item(pure, 7, 4),
        item(pure, 4, 6),
        item(undeclared, 4, 5),
        item(undeclared, 4, 5),
    ];
    assert_eq!(session.submit(&items), Pushed::All);
    assert_eq!(session.drain().unwrap().pruned, 1);
}

#[test]
fn pruning_preserves_results() {
    let device = Device::open(&Cpu::default()).unwrap();
    let mut runner = TestRunner::new_with_rng(Cases::with_cases(60), TestRunner::deterministic().new_rng());
    // A small domain, so that many items repeat: pure ops of two and three handles, in place, and writers of their inputs.
    let items = proptest::collection::vec((0..6u32, 0..3u32, 0..3u32), 0..120);
    let pruned = std::cell::Cell::new(0);
    runner
        .run(&items, |items| {
            let of_one_length = [4, 6, 5];
            let items = items.into_iter().map(|(op, input, output)| {
                let [input, output] = [input, output].map(|handle| of_one_length[handle as usize] - 1);
                item([op, input, output, of_one_length[op as usize % 3] - 1])
            });
            pruned.set(pruned.get() + check(&device, &configs()[0], &items.collect::<Vec<_>>()).pruned);
            Ok(())
        })
        .unwrap();
    assert!(pruned.get() > 0);
}

#[test]
fn items_stay_pending_until_the_budget_suffices() {
    let device = Device::open(&Cpu::default()).unwrap();
    let config = Config { plain_words: 4096, atomic_words: 64, slice: 16, ..Config::default() };
    let (mut session, _) = session(&device, config);
    let item = WorkItem { op_handle: SCALE, input_handle: 3, output_handle: 4, param: 2 };
    assert_eq!(session.submit(&[item]), Pushed::All);
    session.set_budget(16_000);
    let required = match session.drain() {
        Err(Error::Driver(DriverError::OverBudget { required, budget: 16_000, .. })) => required,
        other => panic!("{other:?}"),
    };
    assert_eq!(session.pending(), [item], "no item is lost");
    session.set_budget(required - 1);
    assert!(matches!(session.drain(), Err(Error::Driver(DriverError::OverBudget { .. }))));
    session.set_budget(required);
    assert_eq!(session.drain().unwrap().items, 1);
}

#[test]
fn producers_submit_during_drains() {
    let device = Device::open(&Cpu::default()).unwrap();
    let config = Config { queue: 100, ..configs()[0].clone() };
    let (mut session, handles) = session(&device, config);
    let (threads, items) = (4, 500);
    let queue = session.queue();
    let item = WorkItem { op_handle: ACCUMULATE, input_handle: 3, output_handle: 4, param: 0 };
    let one: &[u8] = bytemuck::cast_slice(&[1u32, 0, 0]);
    session.write(handles[2], one).unwrap();
    let mut drained = 0;
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let queue = queue.clone();
            scope.spawn(move || (0..items).for_each(|_| assert_eq!(queue.push(&[item], Otherwise::Wait), Pushed::All)));
        }
        while drained < threads * items {
            drained += session.drain().unwrap().items;
        }
    });
    assert_eq!(read(&session, handles[3])[0], (threads * items) as u32);
}

#[test]
fn the_watchdog_reports_the_stuck_item() {
    let device = Device::open(&Cpu { threads: Some(2), ..Cpu::default() }).unwrap();
    // Far above scheduling delays of workers on a busy machine.
    let time_limit = Duration::from_secs(1);
    for order in [Order::Barriers, Order::Counters] {
        let sizing = Sizing::Preferred(NonZeroU32::new(32).unwrap());
        let policy = Policy { hot_window_threshold: u32::MAX, sizing, ..compiling() };
        let watchdog = Some(time_limit);
        let config = Config { watchdog, order, fuel: u32::MAX, policy, ..configs()[0].clone() };
        let (mut session, handles) = session(&device, config);
        let item =
            |op_handle, input_handle, output_handle| WorkItem { op_handle, input_handle, output_handle, param: 3 };
        // The second item depends on the first, `SPIN` on none, and the fourth on `SPIN`.
        let items = [item(SCALE, 4, 6), item(ACCUMULATE, 6, 5), item(SPIN, 7, 7), item(SCALE, 7, 4), item(SCAN, 6, 5)];
        let ones = |handle: usize| 1u32.to_le_bytes().repeat(LENGTHS[handle] as usize);
        for round in 0..3 {
            for handle in 4..8 {
                session.write(handles[handle - 1], &ones(handle)).unwrap();
            }
            let mut forever = ones(7);
            forever[..4].copy_from_slice(&u32::MAX.to_le_bytes());
            session.write(handles[6], &forever).unwrap();
            assert_eq!(session.submit(&items), Pushed::All);
            let report = session.drain().unwrap();
            let stuck = 5 * round + 2;
            assert!(
                matches!(&reasons(&report.failures)[..], [(number, Failure::Stuck { .. })] if *number == stuck),
                "{report:?}"
            );
            assert_eq!(report.items, 5);
            assert_eq!(read(&session, handles[5]), [3; 64]);
            assert_eq!(read(&session, handles[3])[1..], [3; 63], "dependents of the stuck item are executed");
            session.finish_compiling();
        }
    }
    let config = Config { watchdog: Some(time_limit), ..Config::default() };
    let oracle = Device::open(&Oracle::default()).unwrap();
    assert!(matches!(Session::new(&oracle, config), Err(Error::Driver(DriverError::Unsupported { .. }))));
}

/// Monotonic clock that cancels the drain at every 97th reading, between slices and during planning.
#[derive(Debug, Default)]
struct Cancelling {
    readings: AtomicU64,
    canceller: OnceLock<Canceller>,
}

impl Clock for Cancelling {
    fn now(&self) -> Instant {
        if self.readings.fetch_add(1, Relaxed) % 97 == 96 {
            self.canceller.get().unwrap().cancel();
        }
        Instant::now()
    }
}

#[test]
fn cancellation_and_shutdown_lose_no_items() {
    let device = Device::open(&Cpu::default()).unwrap();
    for watchdog in [None, Some(Duration::from_secs(600))] {
        let clock = Arc::new(Cancelling::default());
        let config = Config { slice: 100, watchdog, clock: clock.clone(), ..configs()[0].clone() };
        let (mut session, handles) = session(&device, config);
        session.write(handles[2], &1u32.to_le_bytes().repeat(3)).unwrap();
        let item = WorkItem { op_handle: ACCUMULATE, input_handle: 3, output_handle: 4, param: 0 };
        let items = vec![item; 20_000];
        let canceller = session.canceller();
        clock.canceller.set(canceller.clone()).unwrap();
        let mut drains = 0;
        let mut executed = 0;
        assert_eq!(session.submit(&items), Pushed::All);
        while executed < 15_000 {
            executed += session.drain().unwrap().items;
            drains += 1;
        }
        assert!(drains > 5, "{drains}");
        // A cancellation between drains applies to the next one: the shutdown.
        canceller.cancel();
        let handle = handles[3];
        let queue = session.queue();
        let before = session.pending().iter().filter(|item| **item != WorkItem::default()).count();
        let done = read(&session, handle)[0];
        let shutdown = session.shutdown();
        assert!(shutdown.error.is_none() && shutdown.report.cancelled);
        assert_eq!(done as usize + shutdown.left.len(), items.len(), "{before} were pending");
        assert!(matches!(queue.push(&[item], Otherwise::Wait), Pushed::Closed { accepted: 0 }));
    }
}

#[test]
fn telemetry_of_a_drain_is_consistent() {
    let device = Device::open(&Cpu { threads: Some(2), ..Cpu::default() }).unwrap();
    let config = Config { telemetry: true, slice: 64, ..configs()[0].clone() };
    let (mut session, _) = session(&device, config);
    let items: Vec<WorkItem> = (0..300).map(|i| item([i, i / 3, i * 7, i])).collect();
    for part in items.chunks(7) {
        assert_eq!(session.submit(part), Pushed::All);
    }
    let report = session.drain().unwrap();
    let telemetry = report.telemetry.as_ref().unwrap();
    assert_eq!(telemetry.latencies.count, 300);
    assert!(telemetry.latencies.percentile(50.0) <= telemetry.latencies.percentile(99.0));
    assert!(telemetry.latencies.percentile(99.0) <= telemetry.latencies.longest);
    let occupancy = telemetry.occupancy();
    assert!(occupancy > 0.0 && occupancy <= 1.0, "{occupancy}");
    let launched = telemetry.spans.iter().filter(|span| span.worker.is_some()).count() as u64;
    assert!(launched >= report.launches && launched <= 2 * report.launches);
    let json = report.to_json();
    assert!(json.starts_with("{\"items\":300,") && json.contains("\"p99\":"), "{json}");
}

#[test]
fn a_journaled_session_resumes_after_a_device_loss() {
    let config = Config { journal: Some(150), slice: 40, ..configs()[0].clone() };
    let lost = match Device::open(&Wgpu) {
        Ok(_) => shared(|_| {}),
        Err(DriverError::NoAdapter { .. }) => return eprintln!("not run"),
        Err(error) => panic!("{error}"),
    };
    let (mut session, handles) = session(&Device::open(&lost).unwrap(), config);
    let mut model = Model { memory: contents(), hits: Vec::new(), failures: Vec::new() };
    for handle in &handles {
        session.write(*handle, bytemuck::cast_slice(&model.memory[handle.0 as usize])).unwrap();
    }
    let items: Vec<WorkItem> = (0..100).map(|i| item([i, i / 3, i * 7, i])).collect();
    let (mut hits, mut failures) = (Vec::new(), Vec::new());
    for round in 0..3 {
        if round == 2 {
            lost.device.destroy();
        }
        assert_eq!(session.submit(&items), Pushed::All);
        let report = match session.drain() {
            Ok(report) => report,
            Err(Error::DeviceLost { items: numbers, .. }) if round == 2 => {
                let pending = session.pending().iter().zip(200..);
                let pending = pending.filter(|(item, _)| **item != WorkItem::default()).map(|(_, number)| number);
                assert!(numbers.iter().copied().eq(pending), "{numbers:?}");
                assert!(!numbers.is_empty());
                session.resume(&Device::open(&Cpu::default()).unwrap()).unwrap();
                session.drain().unwrap()
            }
            Err(error) => panic!("{error}"),
        };
        hits.extend(report.hits);
        failures.extend(report.failures);
        (100 * round..).zip(&items).for_each(|(number, item)| model.run(number, *item));
    }
    for handle in &handles {
        assert_eq!(read(&session, *handle), model.memory[handle.0 as usize], "handle {}", handle.0);
    }
    model.hits.sort_unstable();
    assert_eq!(words(&hits), model.hits, "hits are reported exactly once");
    assert_eq!(reasons(&failures), model.failures);
}

#[test]
fn programs_that_cannot_be_ops_are_refused() {
    let reason = |source: &str| {
        let program = validate::module(text::parse(source).unwrap()).unwrap().programs[0].clone();
        match Op::new(program) {
            Err(Error::NotAnOp { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    };
    let program = |objects: &str, body: &str| format!("program p workgroup(8) {{\n{objects}\n{body}\n}}");
    let cases = [
        (program("write result: [u32]", ""), BadOp::UnknownObject("result".into())),
        (
            program("read input: [u8]", ""),
            BadOp::Embed(Refusal::Element { object: "input".into(), element: Element::U8 }),
        ),
        (program("uniform param: u32", ""), BadOp::NoExtent),
        (program("read input: [u32]\nwrite hits: [u32]", ""), BadOp::HalfOfHits),
        (
            program(
                "read input: [u32]\nwrite output: [u32]\nwrite hits: [u32]\nread_write atomic hit_count: [u32]",
                "",
            ),
            BadOp::WritesBesideHits,
        ),
        (
            program(
                "read input: [u32]\nwrite output: [u32]",
                "%i = global_index\n%x = load input[%i]\n%z = eq %x, 0\nif %z {\nreturn\n}\nworkgroup_barrier",
            ),
            BadOp::Embed(Refusal::EndsEarly),
        ),
        ("program p workgroup(4, 4) {\nread input: [u32]\n}".into(), BadOp::Embed(Refusal::Dimensions)),
    ];
    for (source, expected) in cases {
        assert_eq!(reason(&source), expected);
    }
}
