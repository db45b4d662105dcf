//! Fault injection into megakernels: device loss, out-of-memory, items that do not terminate, and extreme configurations.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vyre_cpu::Cpu;
use vyre_driver::backend::Command;
use vyre_driver::{Device, Error as DriverError, Oracle};
use vyre_foundation::{text, validate};
use vyre_runtime::Error;
use vyre_runtime::megakernel::policy::{Policy, Sizing};
use vyre_runtime::megakernel::ring::Pushed;
use vyre_runtime::megakernel::{
    Canceller, Clock, Config, Failed, Failure, Handle, Op, Order, Report, Segment, Session, WorkItem,
};
use vyre_testkit::intercept::{Intercepted, Interceptor};

const SCALE: u32 = 1;
const ACCUMULATE: u32 = 4;
const SCAN: u32 = 5;
const SPIN: u32 = 8;
const FIND: u32 = 9;
/// Time limit that is far above scheduling delays of workers on a busy machine, and far below the time of 2³² trips.
const TIME_LIMIT: Duration = Duration::from_secs(1);
const LENGTHS: [u32; 10] = [0, 1, 1, 3, 64, 100, 64, 300, 7, 16];

fn ops() -> Vec<Op> {
    let module = text::parse(include_str!("../../../examples/megakernel/ops.vyre")).unwrap();
    validate::module(module)
        .unwrap()
        .into_inner()
        .programs
        .into_iter()
        .map(|program| Op::new(program).unwrap())
        .collect()
}

fn op(source: &str) -> Op {
    Op::new(validate::program(text::parse(source).unwrap().programs.remove(0)).unwrap()).unwrap()
}

fn interpreting() -> Policy {
    let never = u32::MAX;
    Policy {
        jit_queue_len_threshold: never,
        hot_opcode_threshold: never,
        hot_window_threshold: never,
        ..Config::default().policy
    }
}

fn base() -> Config {
    Config { plain_words: 4096, atomic_words: 64, fuel: 1000, policy: interpreting(), ..Config::default() }
}

fn session(device: &Device, config: Config) -> (Session, Vec<Handle>) {
    let mut session = Session::new(device, config).unwrap();
    for op in ops() {
        session.register(op);
    }
    let handles = LENGTHS
        .iter()
        .enumerate()
        .skip(1)
        .map(|(handle, &length)| {
            let segment = if handle >= 8 { Segment::Atomic } else { Segment::Plain };
            session.allocate(segment, length).unwrap()
        })
        .collect();
    (session, handles)
}

fn item(op_handle: u32, input_handle: u32, output_handle: u32, param: u32) -> WorkItem {
    WorkItem { op_handle, input_handle, output_handle, param }
}

fn fill(session: &mut Session, handle: Handle, value: u32) {
    let n = session.read(handle).unwrap().len();
    session.write(handle, &value.to_le_bytes().repeat(n)).unwrap();
}

/// Creates a session with ones in all plain memory.
fn filled(device: &Device, config: Config) -> (Session, Vec<Handle>) {
    let (mut session, handles) = session(device, config);
    handles[..7].iter().for_each(|&handle| fill(&mut session, handle, 1));
    (session, handles)
}

/// Returns the least accepted budget of a configuration, as named by the error.
fn least_budget(device: &Device, config: &Config) -> u64 {
    match Session::new(device, Config { budget: 1, ..config.clone() }).map(|_| ()) {
        Err(Error::Driver(DriverError::OverBudget { required, budget: 1, .. })) => required,
        other => panic!("{other:?}"),
    }
}

/// Injected faults of a device. A counter of n > 0 fails the nth such command; flags are set if > 0.
#[derive(Default)]
struct Script {
    /// Counter: the device is lost at a launch.
    launches: AtomicI64,
    /// Counter: the device is lost at a read.
    reads: AtomicI64,
    /// Counter: a read runs out of memory.
    refused: AtomicI64,
    /// Flag: large allocations run out of memory.
    short: AtomicI64,
    /// The largest allocation.
    most: AtomicI64,
    /// Flag: the compiler runs out of memory.
    compiler_oom: AtomicI64,
    /// Flag: the compiler refuses all programs.
    unsupported: AtomicI64,
    /// Flag: launches have no fuel.
    no_fuel: AtomicI64,
    /// Cancels drains at each launch.
    canceller: Mutex<Option<Canceller>>,
}

impl Interceptor for Script {
    fn compile(&self) -> Result<(), DriverError> {
        if self.compiler_oom.load(SeqCst) > 0 {
            return Err(DriverError::OutOfMemory { requested: 1, available: 0 });
        }
        if self.unsupported.load(SeqCst) > 0 {
            return Err(DriverError::Unsupported { needed: "anything".into(), available: "nothing".into() });
        }
        Ok(())
    }

    fn allocate(&self, bytes: u64) -> Result<(), DriverError> {
        if bytes > 1024 && self.short.load(SeqCst) > 0 {
            return Err(DriverError::OutOfMemory { requested: bytes, available: 0 });
        }
        self.most.fetch_max(bytes as i64, SeqCst);
        Ok(())
    }

    fn submit(&self, commands: &mut [Command]) -> Result<(), DriverError> {
        for command in &mut *commands {
            if let Command::Launch(launch) = command {
                if self.no_fuel.load(SeqCst) > 0 {
                    launch.limits.fuel = 0;
                }
                self.canceller.lock().unwrap().iter().for_each(Canceller::cancel);
            }
        }
        for command in commands {
            let counter = match command {
                Command::Launch(_) => &self.launches,
                Command::Read(..) => &self.reads,
                Command::Write(..) | Command::Clear(_) => continue,
            };
            let fails = |counter: &AtomicI64| counter.load(SeqCst) > 0 && counter.fetch_sub(1, SeqCst) == 1;
            if fails(counter) {
                return Err(DriverError::DeviceLost { reason: "injected".into(), unacknowledged: vec![] });
            }
            if matches!(command, Command::Read(..)) && fails(&self.refused) {
                return Err(DriverError::OutOfMemory { requested: 1, available: 0 });
            }
        }
        Ok(())
    }
}

/// The oracle with injected faults.
fn faulty(script: &Arc<Script>) -> Device {
    let (name, backend, interceptor) = ("faulty", Oracle::default(), script.clone());
    Device::open(&Intercepted { name, backend, interceptor }).unwrap()
}

#[test]
fn the_watchdog_reports_a_stuck_item_once() {
    let device = Device::open(&Cpu { threads: Some(2), ..Cpu::default() }).unwrap();
    let config = Config { watchdog: Some(TIME_LIMIT), fuel: u32::MAX, order: Order::Barriers, ..base() };
    let (mut session, handles) = filled(&device, config);
    let mut forever = 1u32.to_le_bytes().repeat(300);
    forever[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    session.write(handles[6], &forever).unwrap();
    assert_eq!(session.submit(&[item(ACCUMULATE, 4, 6, 0), item(SPIN, 7, 5, 0)]), Pushed::All);
    assert_eq!(session.drain().unwrap().failures.len(), 1);
    assert_eq!(session.read(handles[5]).unwrap()[0], 2, "accumulated once");
}

#[test]
fn a_stuck_item_of_few_elements_blocks_no_others() {
    let device = Device::open(&Cpu { threads: Some(2), ..Cpu::default() }).unwrap();
    let config = Config { watchdog: Some(TIME_LIMIT), fuel: u32::MAX, order: Order::Barriers, ..base() };
    let mut session = Session::new(&device, config).unwrap();
    for op in ops() {
        session.register(op);
    }
    let mut items = Vec::new();
    let mut outs = Vec::new();
    for n in 0..32u32 {
        let input = session.allocate(Segment::Plain, 1).unwrap();
        let output = session.allocate(Segment::Plain, 1).unwrap();
        session.write(input, &(if n == 3 { u32::MAX } else { 5 }).to_le_bytes()).unwrap();
        items.push(item(SPIN, input.0, output.0, 0));
        outs.push(output);
    }
    assert_eq!(session.submit(&items), Pushed::All);
    let report = session.drain().unwrap();
    let results: Vec<u32> = outs.iter().map(|&o| session.read(o).unwrap()[0]).collect();
    assert!(results.iter().enumerate().all(|(n, &result)| result == if n == 3 { 0 } else { 5 }), "{results:?}");
    assert_eq!(report.failures.len(), 1, "{:?}", report.failures);
}

#[test]
fn pruned_items_are_not_replayed_too_early() {
    let script = Arc::new(Script::default());
    let device = faulty(&script);
    let (mut session, handles) = session(&device, Config { journal: Some(1000), ..base() });
    let pure = session.register(ops().swap_remove(0).pure());
    fill(&mut session, handles[3], 2);
    fill(&mut session, handles[5], 1);
    script.launches.store(1, SeqCst);
    assert_eq!(session.submit(&[item(SCALE, 6, 5, 1), item(pure, 4, 6, 3), item(pure, 4, 6, 3)]), Pushed::All);
    assert!(matches!(session.drain(), Err(Error::DeviceLost { .. })));
    session.resume(&Device::open(&Oracle::default()).unwrap()).unwrap();
    session.drain().unwrap();
    assert_eq!((session.read(handles[4]).unwrap()[0], session.read(handles[5]).unwrap()[0]), (1, 6));
}

#[test]
fn a_checkpoint_in_an_unfinished_slice_keeps_executed_items() {
    for refused in [1, 2] {
        let script = Arc::new(Script::default());
        let device = faulty(&script);
        let policy = Policy { min_hit_capacity: 2, ..interpreting() };
        let (mut session, handles) = filled(&device, Config { journal: Some(1000), policy, ..base() });
        assert_eq!(session.submit(&[item(ACCUMULATE, 4, 6, 0), item(FIND, 7, 0, 0)]), Pushed::All);
        // The hit count or the fault records cannot be read.
        script.refused.store(refused, SeqCst);
        assert!(matches!(session.drain(), Err(Error::Driver(DriverError::OutOfMemory { .. }))));
        session.checkpoint().unwrap();
        assert_eq!(session.submit(&[item(ACCUMULATE, 4, 6, 0)]), Pushed::All);
        script.launches.store(1, SeqCst);
        assert!(matches!(session.drain(), Err(Error::DeviceLost { .. })));
        session.resume(&Device::open(&Oracle::default()).unwrap()).unwrap();
        let report = session.drain().unwrap();
        assert_eq!(report.hits.len(), 300);
        assert_eq!(session.read(handles[5]).unwrap()[0], 3);
    }
}

#[test]
fn a_failed_checkpoint_keeps_the_previous_one() {
    let script = Arc::new(Script::default());
    let device = faulty(&script);
    let (mut session, handles) = filled(&device, Config { journal: Some(1000), ..base() });
    session.checkpoint().unwrap();
    assert_eq!(session.submit(&[item(ACCUMULATE, 4, 6, 0)]), Pushed::All);
    session.drain().unwrap();
    script.reads.store(2, SeqCst);
    assert!(matches!(session.checkpoint(), Err(Error::Driver(DriverError::DeviceLost { .. }))));
    session.resume(&Device::open(&Oracle::default()).unwrap()).unwrap();
    assert_eq!(session.read(handles[5]).unwrap()[0], 2);
}

#[test]
fn a_queue_of_capacity_0_holds_one_item() {
    let device = Device::open(&Oracle::default()).unwrap();
    let (session, _) = session(&device, Config { queue: 0, ..base() });
    assert_eq!(session.submit(&[item(SCALE, 4, 6, 1)]), Pushed::All);
    session.canceller().cancel();
    assert_eq!(session.shutdown().left.len(), 1);
}

#[test]
fn a_slice_size_of_0_is_1() {
    let device = Device::open(&Oracle::default()).unwrap();
    let (mut session, _) = session(&device, Config { slice: 0, ..base() });
    assert_eq!(session.submit(&[item(SCALE, 4, 6, 1)]), Pushed::All);
    assert_eq!(session.drain().unwrap().items, 1);
}

#[test]
fn local_indices_follow_the_declared_workgroup_size() {
    let device = Device::open(&Oracle::default()).unwrap();
    let source = "program op workgroup(32) {\nread input: [u32]\nwrite output: [u32]\n%i = global_index\n%l = local_index\nstore output[%i], %l\n}";
    let op = op(source);
    let (mut session, handles) = session(&device, base());
    let op = session.register(op);
    assert_eq!(session.submit(&[item(op, 4, 5, 1)]), Pushed::All);
    assert_eq!(session.drain().unwrap().failures, []);
    let expected: Vec<u32> = (0..100).map(|i| i % 32).collect();
    assert_eq!(session.read(handles[4]).unwrap(), expected);
}

#[test]
fn hits_of_many_slices_fit_the_budget() {
    let device = Device::open(&Oracle::default()).unwrap();
    let policy = Policy { min_hit_capacity: 2, ..interpreting() };
    let config = Config { slice: 20, policy, ..base() };
    let budget = least_budget(&device, &config) + 5_000;
    let (mut session, handles) = session(&device, Config { budget, ..config });
    fill(&mut session, handles[0], 7);
    let items = vec![item(FIND, 1, 0, 0); 600];
    assert_eq!(session.submit(&items), Pushed::All);
    assert_eq!(session.drain().unwrap().hits.len(), 600);
}

#[test]
fn items_on_empty_allocations_have_no_effect() {
    let device = Device::open(&Cpu::default()).unwrap();
    for width in [32, 64] {
        let sizing = Sizing::Preferred(NonZeroU32::new(width).unwrap());
        let config = Config {
            policy: Policy { sizing, jit_queue_len_threshold: 0, hot_window_threshold: 1, ..interpreting() },
            ..base()
        };
        let (mut session, handles) = session(&device, config);
        let empty = session.allocate(Segment::Plain, 0).unwrap();
        let full = handles[3].0;
        for _ in 0..5 {
            let mut items = Vec::new();
            for op in [1, 3, 4, 5, 7, 8, 9] {
                for [a, b] in [[empty.0, full], [full, empty.0]] {
                    items.push(item(op, a, b, 0));
                }
            }
            assert_eq!(session.submit(&items), Pushed::All);
            assert_eq!(session.drain().unwrap().failures, []);
            session.finish_compiling();
        }
        assert_eq!(session.read(empty).unwrap(), [0u32; 0]);
    }
}

#[test]
fn failures_of_reporting_ops_are_reported_once() {
    let device = Device::open(&Cpu { threads: Some(2), ..Cpu::default() }).unwrap();
    let source = "program op workgroup(64) {\nread input: [u32]\nwrite hits: [u32]\nread_write atomic hit_count: [u32]\n%i = global_index\n%x = load input[%i]\n%b = eq %x, 666\nif %b {\ntrap 5\n}\n%l = loop (%n = 0) -> u32 {\n%d = eq %n, %x\nif %d {\nbreak %n\n}\n%m = add %n, 1\ncontinue %m\n}\n}";
    let op = op(source);
    let config = Config { watchdog: Some(TIME_LIMIT), fuel: u32::MAX, order: Order::Barriers, ..base() };
    let (mut session, handles) = session(&device, config);
    let op = session.register(op);
    fill(&mut session, handles[3], 666);
    let mut forever = 1u32.to_le_bytes().repeat(300);
    forever[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    session.write(handles[6], &forever).unwrap();
    assert_eq!(session.submit(&[item(op, 4, 0, 0), item(op, 7, 0, 0)]), Pushed::All);
    let report = session.drain().unwrap();
    assert_eq!(report.failures.len(), 2, "{:?}", report.failures);
}

#[test]
fn windows_of_collective_and_other_ops_run_no_excess_invocations() {
    let device = Device::open(&Cpu::default()).unwrap();
    let source = "program count workgroup(32) {\nread input: [u32]\nwrite output: [u32]\nread_write atomic param: [u32]\n%i = global_index\n%x = load input[%i]\nstore output[%i], %x\n%o = atomic_add param[0], 1\n}";
    let op = op(source);
    let policy = Policy { jit_queue_len_threshold: 0, hot_window_threshold: 1, ..Config::default().policy };
    let config = Config { policy, order: Order::Barriers, ..base() };
    let (mut session, _) = session(&device, config);
    let op = session.register(op);
    let [a, b, c] = [0; 3].map(|_| session.allocate(Segment::Plain, 40).unwrap());
    let count = session.allocate(Segment::Atomic, 1).unwrap();
    for round in 1..6u32 {
        assert_eq!(session.submit(&[item(5, a.0, b.0, 0), item(op, b.0, c.0, count.0)]), Pushed::All);
        let report = session.drain().unwrap();
        session.finish_compiling();
        assert_eq!(session.read(count).unwrap()[0], 40 * round, "fused {}", report.fused);
    }
}

#[test]
fn failures_of_pure_ops_apply_to_pruned_items() {
    let device = Device::open(&Oracle::default()).unwrap();
    let (mut session, handles) = session(&device, base());
    let pure = session.register(ops().swap_remove(6).pure());
    fill(&mut session, handles[3], 666);
    assert_eq!(session.submit(&[item(pure, 4, 6, 0), item(SCALE, 1, 2, 0), item(pure, 4, 6, 0)]), Pushed::All);
    let report = session.drain().unwrap();
    assert_eq!((numbers(&report), report.pruned), (vec![0, 2], 1), "{:?}", report.failures);
    assert!(report.failures.iter().all(|failed| failed.reason == Failure::Trapped(5)), "{:?}", report.failures);
}

/// Sequence numbers of the failed items, sorted.
fn numbers(report: &Report) -> Vec<u64> {
    let mut numbers: Vec<u64> = report.failures.iter().map(|failed| failed.number).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn pruned_items_fail_with_their_twins() {
    let script = Arc::new(Script::default());
    let device = faulty(&script);
    for retries in [false, true] {
        // The launch of the twin runs out of fuel, or the device refuses the twin's op.
        for fault in [&script.no_fuel, &script.unsupported] {
            let (mut session, handles) = session(&device, base());
            let pure = session.register(ops().swap_remove(SCAN as usize - 1).pure());
            let scan = item(pure, 4, 6, 0);
            assert_eq!(session.submit(&[scan, scan, item(77, 1, 2, 0), scan, scan]), Pushed::All);
            fault.store(1, SeqCst);
            // The result of the twin cannot be read at first.
            script.refused.store(i64::from(retries), SeqCst);
            let report = loop {
                match session.drain() {
                    Ok(report) => break report,
                    Err(error) => {
                        assert!(matches!(error, Error::Driver(DriverError::OutOfMemory { .. })) && retries, "{error}");
                    }
                }
            };
            fault.store(0, SeqCst);
            script.refused.store(0, SeqCst);
            assert_eq!((numbers(&report), report.pruned), (vec![0, 1, 2, 3, 4], 3), "{:?}", report.failures);
            let reasons = report.failures.iter().filter(|failed| failed.number != 2);
            assert!(reasons.clone().all(|failed| failed.item == scan), "{:?}", report.failures);
            assert!(
                reasons.clone().all(|failed| matches!(failed.reason, Failure::Refused | Failure::Unfinished(_))),
                "{:?}",
                report.failures
            );
            assert_eq!((report.items, report.tenants[0].failures), (5, 5));
            // Later items are not affected.
            fill(&mut session, handles[3], 1);
            assert_eq!(session.submit(&[item(SCALE, 4, 6, 3); 6]), Pushed::All);
            assert_eq!(session.drain().unwrap().failures, []);
        }
    }
}

#[test]
fn traps_report_every_code() {
    let source = "program op workgroup(64) {\nread input: [u32]\nwrite output: [u32]\n%i = global_index\n%x = load input[%i]\n%z = ne %x, 7\nif %z {\ntrap %x\n}\nstore output[%i], %x\n}";
    for device in [Device::open(&Oracle::default()).unwrap(), Device::open(&Cpu::default()).unwrap()] {
        let (mut session, handles) = session(&device, base());
        let op = session.register(op(source));
        for code in [0, 1, 2, 3, u32::MAX - 3, u32::MAX - 2, u32::MAX - 1, u32::MAX] {
            // An item of few elements, and one of many.
            for (input, output, handle) in [(1, 2, handles[0]), (4, 6, handles[3])] {
                fill(&mut session, handle, 7);
                let mut words = session.read(handle).unwrap();
                *words.last_mut().unwrap() = code;
                session.write(handle, bytemuck::cast_slice(&words)).unwrap();
                assert_eq!(session.submit(&[item(op, input, output, 0)]), Pushed::All);
                let report = session.drain().unwrap();
                let reasons: Vec<_> = report.failures.iter().map(|failed| failed.reason.clone()).collect();
                assert_eq!(reasons, [Failure::Trapped(code)]);
            }
        }
    }
}

#[test]
fn a_freed_handle_is_never_valid_again() {
    let device = Device::open(&Oracle::default()).unwrap();
    let (mut session, handles) = session(&device, Config { journal: Some(1000), ..base() });
    let mut seen: Vec<Handle> = handles.clone();
    let one = session.allocate(Segment::Plain, 1).unwrap();
    let mut current = one;
    // More rounds than a slot has generations.
    for round in 0..600u32 {
        session.write(current, &round.to_le_bytes()).unwrap();
        let memory = session.memory(current).unwrap();
        session.free(current).unwrap();
        seen.push(current);
        let next = session.allocate(Segment::Plain, 1).unwrap();
        assert!(!seen.contains(&next), "{next:?} in round {round}");
        assert!(memory.overlaps(&session.memory(next).unwrap()), "memory is reused");
        assert!(matches!(session.read(current), Err(Error::NoSuchHandle { handle }) if handle == current.0));
        assert!(matches!(session.free(current), Err(Error::NoSuchHandle { .. })));
        assert!(matches!(session.write(current, &[0; 4]), Err(Error::NoSuchHandle { .. })));
        assert_eq!(session.read(next).unwrap(), [0]);
        current = next;
    }
}

#[test]
fn queued_items_with_a_freed_handle_fail() {
    let script = Arc::new(Script::default());
    let device = faulty(&script);
    let (mut session, handles) = filled(&device, Config { journal: Some(1000), ..base() });
    let [stale, to] = [0; 2].map(|_| session.allocate(Segment::Plain, 1).unwrap());
    let from_stale = item(ACCUMULATE, stale.0, handles[1].0, 0);
    session.write(stale, &5u32.to_le_bytes()).unwrap();
    assert_eq!(session.submit(&[from_stale, item(ACCUMULATE, handles[0].0, to.0, 0)]), Pushed::All);
    session.drain().unwrap();
    assert_eq!(session.submit(&[from_stale, item(ACCUMULATE, handles[0].0, stale.0, 0), from_stale]), Pushed::All);
    session.free(stale).unwrap();
    let fresh = session.allocate(Segment::Plain, 1).unwrap();
    assert_ne!(fresh, stale);
    assert_eq!(session.submit(&[item(ACCUMULATE, handles[0].0, fresh.0, 0)]), Pushed::All);
    let report = session.drain().unwrap();
    assert_eq!(numbers(&report), [2, 3, 4]);
    assert!(report.failures.iter().all(|failed| failed.reason == Failure::UnknownHandle));
    // The replay restores the contents, although handles have changed since the checkpoint.
    script.launches.store(1, SeqCst);
    assert_eq!(session.submit(&[item(ACCUMULATE, fresh.0, to.0, 0)]), Pushed::All);
    assert!(matches!(session.drain(), Err(Error::DeviceLost { .. })));
    session.resume(&Device::open(&Oracle::default()).unwrap()).unwrap();
    session.drain().unwrap();
    let words = [handles[1], fresh, to].map(|handle| session.read(handle).unwrap()[0]);
    assert_eq!(words, [6, 1, 2]);
}

#[test]
fn rerun_items_are_counted_once() {
    let script = Arc::new(Script::default());
    let device = faulty(&script);
    let policy = Policy { min_hit_capacity: 2, ..interpreting() };
    let (mut session, _) = filled(&device, Config { policy, ..base() });
    assert_eq!(session.submit(&[item(ACCUMULATE, 4, 6, 0), item(FIND, 7, 0, 0)]), Pushed::All);
    let report = session.drain().unwrap();
    assert_eq!((report.reruns, report.hits.len(), report.interpreted), (1, 300, 2));
    assert_eq!(report.ops, [("accumulate".to_owned(), 1), ("find".to_owned(), 1)]);
    // The slice fails after its first batch, and is retried.
    let (mut session, _) = filled(&device, base());
    assert_eq!(session.submit(&[item(ACCUMULATE, 4, 6, 0), item(FIND, 7, 0, 0)]), Pushed::All);
    script.short.store(1, SeqCst);
    assert!(matches!(session.drain(), Err(Error::Driver(DriverError::OutOfMemory { .. }))));
    script.short.store(0, SeqCst);
    let report = session.drain().unwrap();
    assert_eq!((report.items, report.interpreted), (2, 2));
    assert_eq!(report.ops, [("accumulate".to_owned(), 1), ("find".to_owned(), 1)]);
}

/// A session that lost its device after `ACCUMULATE` and `SCAN`, with `ACCUMULATE` pending.
fn lost_session(script: &Script, device: &Device) -> (Session, Vec<Handle>) {
    let (mut session, handles) = filled(device, Config { journal: Some(1000), ..base() });
    assert_eq!(session.submit(&[item(ACCUMULATE, 4, 6, 0), item(SCAN, 4, 5, 0)]), Pushed::All);
    assert_eq!(session.drain().unwrap().failures, []);
    assert_eq!(session.submit(&[item(ACCUMULATE, 4, 6, 0)]), Pushed::All);
    script.launches.store(1, SeqCst);
    assert!(matches!(session.drain(), Err(Error::DeviceLost { .. })));
    (session, handles)
}

#[test]
fn resume_on_a_device_that_cannot_replay_is_an_error() {
    let script = Arc::new(Script::default());
    let device = faulty(&script);
    for fault in [&script.unsupported, &script.no_fuel] {
        let (mut session, handles) = lost_session(&script, &device);
        fault.store(1, SeqCst);
        let result = session.resume(&faulty(&script));
        fault.store(0, SeqCst);
        match result {
            Err(Error::Driver(DriverError::Unsupported { needed, .. })) => assert_eq!(needed, "anything"),
            Err(Error::Driver(DriverError::Stopped { kernel, .. })) => assert_eq!(kernel, "accumulate"),
            other => panic!("{other:?}"),
        }
        // The arena is stale and inaccessible.
        assert!(matches!(session.read(handles[5]), Err(Error::Driver(DriverError::Stale { .. }))));
        assert!(matches!(session.write(handles[5], &[0; 256]), Err(Error::Driver(DriverError::Stale { .. }))));
        assert!(matches!(session.allocate(Segment::Plain, 1), Err(Error::Driver(DriverError::Stale { .. }))));
        assert!(matches!(session.free(handles[5]), Err(Error::Driver(DriverError::Stale { .. }))));
        assert!(matches!(session.checkpoint(), Err(Error::Driver(DriverError::Stale { .. }))));
        assert!(matches!(session.drain(), Err(Error::Driver(DriverError::Stale { .. }))));
        session.resume(&Device::open(&Oracle::default()).unwrap()).unwrap();
        assert_eq!(session.read(handles[5]).unwrap()[0], 2);
        assert_eq!(session.drain().unwrap().failures, []);
        assert_eq!((session.read(handles[5]).unwrap()[0], session.read(handles[4]).unwrap()[31]), (3, 32));
    }
}

#[test]
fn a_refused_op_runs_on_the_next_device() {
    let script = Arc::new(Script::default());
    let device = faulty(&script);
    let (mut session, handles) = filled(&device, Config { journal: Some(1000), ..base() });
    script.unsupported.store(1, SeqCst);
    assert_eq!(session.submit(&[item(ACCUMULATE, 4, 6, 0)]), Pushed::All);
    assert_eq!(session.drain().unwrap().failures[0].reason, Failure::Refused);
    script.unsupported.store(0, SeqCst);
    session.resume(&Device::open(&Oracle::default()).unwrap()).unwrap();
    assert_eq!(session.submit(&[item(ACCUMULATE, 4, 6, 0)]), Pushed::All);
    assert_eq!(session.drain().unwrap().failures, []);
    assert_eq!(session.read(handles[5]).unwrap()[0], 2, "refused items are not replayed");
}

#[test]
fn a_cancellation_during_a_replay_ends_the_next_drain() {
    let script = Arc::new(Script::default());
    let device = faulty(&script);
    let (mut session, handles) = lost_session(&script, &device);
    *script.canceller.lock().unwrap() = Some(session.canceller());
    session.resume(&faulty(&script)).unwrap();
    *script.canceller.lock().unwrap() = None;
    assert_eq!(session.read(handles[5]).unwrap()[0], 2, "the replay is complete");
    let report = session.drain().unwrap();
    assert_eq!((report.cancelled, report.items), (true, 0));
    let report = session.drain().unwrap();
    assert_eq!((report.cancelled, report.items), (false, 1));
    assert_eq!(session.read(handles[5]).unwrap()[0], 3);
}

#[test]
fn a_cancellation_outlives_a_failed_drain() {
    let script = Arc::new(Script::default());
    let device = faulty(&script);
    let (mut session, _) = filled(&device, Config { journal: Some(1000), ..base() });
    assert_eq!(session.submit(&[item(ACCUMULATE, 4, 6, 0)]), Pushed::All);
    *script.canceller.lock().unwrap() = Some(session.canceller());
    script.launches.store(1, SeqCst);
    assert!(matches!(session.drain(), Err(Error::DeviceLost { .. })));
    *script.canceller.lock().unwrap() = None;
    session.resume(&Device::open(&Oracle::default()).unwrap()).unwrap();
    let report = session.drain().unwrap();
    assert_eq!((report.cancelled, report.items), (true, 0));
    assert_eq!(session.drain().unwrap().items, 1);
}

#[test]
fn too_many_hits_fail_the_item() {
    let device = Device::open(&Oracle::default()).unwrap();
    let source = "program op workgroup(64) {\nread input: [u32]\nwrite hits: [u32]\nread_write atomic hit_count: [u32]\n%o = atomic_add hit_count[0], 3000000000\n}";
    let op = op(source);
    let (mut session, _) = session(&device, Config { budget: 1 << 20, ..base() });
    let op = session.register(op);
    assert_eq!(session.submit(&[item(op, 1, 0, 0)]), Pushed::All);
    let report = session.drain().unwrap();
    let [Failed { item: failed, reason: Failure::TooManyHits { requested, available }, .. }] = &report.failures[..]
    else {
        panic!("{report:?}");
    };
    assert_eq!((*failed, *available), (item(op, 1, 0, 0), 1 << 20));
    assert!(*requested > 12_000_000_000);
}

#[test]
fn fault_records_of_an_item_with_too_many_hits_do_not_leak() {
    let device = Device::open(&Oracle::default()).unwrap();
    let source = "program op workgroup(64) {\nread input: [u32]\nwrite hits: [u32]\nread_write atomic hit_count: [u32]\n%o = atomic_add hit_count[0], 3000000000\ntrap 9\n}";
    let op = op(source);
    let (mut session, _) = session(&device, Config { budget: 1 << 20, ..base() });
    let op = session.register(op);
    let mut items = vec![item(SCALE, 1, 2, 1); 5];
    items.push(item(op, 1, 0, 0));
    assert_eq!(session.submit(&items), Pushed::All);
    let report = session.drain().unwrap();
    assert!(matches!(report.failures[..], [Failed { number: 5, reason: Failure::TooManyHits { .. }, .. }]));
    assert_eq!(session.submit(&[item(SPIN, 1, 2, 0); 2]), Pushed::All);
    assert_eq!(session.drain().unwrap().failures, []);
}

#[test]
fn a_single_reporting_item_may_use_all_free_memory() {
    let device = Device::open(&Oracle::default()).unwrap();
    // Less than the recommended hit capacity of one item.
    let budget = least_budget(&device, &base()) + 7_500;
    let (mut session, handles) = session(&device, Config { budget, ..base() });
    fill(&mut session, handles[6], 7);
    assert_eq!(session.submit(&[item(FIND, 7, 0, 0), item(FIND, 7, 0, 0)]), Pushed::All);
    let report = session.drain().unwrap();
    assert_eq!((report.hits.len(), report.failures.len(), report.cuts), (600, 0, 1));
}

#[test]
fn a_slice_beyond_the_memory_is_cut() {
    let device = Device::open(&Oracle::default()).unwrap();
    // Memory for the hits of some items, but not of all.
    let policy = Policy { min_hit_capacity: 2, ..interpreting() };
    let config = Config { policy, ..base() };
    let budget = least_budget(&device, &config) + 5_000;
    let (mut session, handles) = session(&device, Config { budget, ..config });
    fill(&mut session, handles[0], 7);
    let mut items = vec![item(FIND, 1, 0, 0); 600];
    items.extend([item(99, 0, 0, 0), item(ACCUMULATE, 4, 6, 0)]);
    assert_eq!(session.submit(&items), Pushed::All);
    let report = session.drain().unwrap();
    assert_eq!((report.items, report.hits.len(), report.failures[0].number), (602, 600, 600));
    assert!(report.cuts > 0);
    assert_eq!(session.pending(), []);
}

#[test]
fn unreadable_results_are_read_by_a_later_drain() {
    let script = Arc::new(Script::default());
    let device = faulty(&script);
    for journal in [None, Some(1000)] {
        for read in 1..8 {
            let (mut session, handles) = filled(&device, Config { journal, ..base() });
            session.write(handles[0], &2000u32.to_le_bytes()).unwrap();
            let (accumulate, spin) = (item(ACCUMULATE, 4, 6, 0), item(SPIN, 1, 2, 0));
            // One slice with several batches: reporting items have their own.
            let items = [accumulate, spin, item(FIND, 7, 0, 0), accumulate, spin];
            assert_eq!(session.submit(&items), Pushed::All);
            script.refused.store(read, SeqCst);
            let mut reports = Vec::new();
            while reports.iter().map(|report: &Report| report.items).sum::<u64>() < 5 {
                match session.drain() {
                    Ok(report) => reports.push(report),
                    Err(Error::Driver(DriverError::OutOfMemory { .. })) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            script.refused.store(0, SeqCst);
            let failed: Vec<_> = reports.iter().flat_map(|report| &report.failures).collect();
            assert_eq!(failed.iter().map(|failed| failed.number).collect::<Vec<_>>(), [1, 4], "{read}");
            assert!(failed.iter().all(|failed| failed.item == spin && failed.reason == Failure::OutOfFuel));
            assert_eq!(reports.iter().map(|report| report.hits.len()).sum::<usize>(), 300, "{read}");
            assert_eq!(session.read(handles[5]).unwrap(), [3; 64], "{read}");
        }
    }
}

#[test]
fn a_cancelled_session_resumes() {
    let script = Arc::new(Script::default());
    let device = faulty(&script);
    let (mut session, _) = filled(&device, Config { journal: Some(1000), ..base() });
    assert_eq!(session.submit(&[item(ACCUMULATE, 4, 6, 0)]), Pushed::All);
    session.drain().unwrap();
    assert_eq!(session.submit(&[item(ACCUMULATE, 4, 6, 0)]), Pushed::All);
    script.launches.store(1, SeqCst);
    assert!(matches!(session.drain(), Err(Error::DeviceLost { .. })));
    session.canceller().cancel();
    session.resume(&Device::open(&Oracle::default()).unwrap()).unwrap();
}

#[test]
fn a_write_during_an_unfinished_slice_follows_executed_items() {
    for refused in [1, 2] {
        let script = Arc::new(Script::default());
        let device = faulty(&script);
        let policy = Policy { min_hit_capacity: 2, ..interpreting() };
        let (mut session, handles) = filled(&device, Config { journal: Some(1000), policy, ..base() });
        assert_eq!(session.submit(&[item(SCALE, 4, 6, 1), item(FIND, 7, 0, 0)]), Pushed::All);
        script.refused.store(refused, SeqCst);
        assert!(matches!(session.drain(), Err(Error::Driver(DriverError::OutOfMemory { .. }))));
        session.write(handles[3], &9u32.to_le_bytes().repeat(64)).unwrap();
        assert_eq!(session.pending()[0], WorkItem::default(), "was executed");
        script.launches.store(1, SeqCst);
        assert!(matches!(session.drain(), Err(Error::DeviceLost { .. })));
        session.resume(&Device::open(&Oracle::default()).unwrap()).unwrap();
        session.drain().unwrap();
        assert_eq!(session.read(handles[5]).unwrap()[0], 1);
    }
}

#[test]
fn only_the_stuck_item_fails() {
    let device = Device::open(&Cpu { threads: Some(2), ..Cpu::default() }).unwrap();
    let config =
        Config { watchdog: Some(TIME_LIMIT), fuel: u32::MAX, order: Order::Barriers, plain_words: 1 << 20, ..base() };
    let mut session = Session::new(&device, config).unwrap();
    for op in ops() {
        session.register(op);
    }
    let forever = session.allocate(Segment::Plain, 16).unwrap();
    let nowhere = session.allocate(Segment::Plain, 16).unwrap();
    session.write(forever, &u32::MAX.to_le_bytes().repeat(16)).unwrap();
    let input = session.allocate(Segment::Plain, 16).unwrap();
    session.write(input, &2000u32.to_le_bytes().repeat(16)).unwrap();
    let mut items = vec![item(SPIN, forever.0, nowhere.0, 0)];
    for _ in 0..60000 {
        items.push(item(SPIN, input.0, session.allocate(Segment::Plain, 9).unwrap().0, 0));
    }
    for _ in 0..3 {
        assert_eq!(session.submit(&items), Pushed::All);
        let report = session.drain().unwrap();
        assert_eq!(report.failures.len(), 1, "{:?}", report.failures);
    }
}

/// Clock that advances by an hour at every reading.
#[derive(Debug)]
struct Hours {
    start: Instant,
    readings: AtomicI64,
}

impl Clock for Hours {
    fn now(&self) -> Instant {
        self.start + Duration::from_secs(3600) * self.readings.fetch_add(1, SeqCst) as u32
    }
}

#[test]
fn watchdog_and_tenant_usage_follow_the_session_clock() {
    let device = Device::open(&Cpu { threads: Some(2), ..Cpu::default() }).unwrap();
    let time_limit = Duration::from_secs(10 * 3600);
    let clock = Arc::new(Hours { start: Instant::now(), readings: AtomicI64::new(0) });
    let config = Config { watchdog: Some(time_limit), fuel: u32::MAX, clock: clock.clone(), ..base() };
    let (mut session, handles) = session(&device, config);
    fill(&mut session, handles[0], u32::MAX);
    assert_eq!(session.submit(&[item(SPIN, 1, 2, 0)]), Pushed::All);
    let report = session.drain().unwrap();
    assert!(matches!(report.failures[..], [Failed { reason: Failure::Stuck { .. }, .. }]), "{:?}", report.failures);
    assert!(report.tenants[0].time >= time_limit && report.elapsed >= report.tenants[0].time);
}

#[test]
fn compilation_is_retried_after_out_of_memory() {
    let script = Arc::new(Script::default());
    let device = faulty(&script);
    let (mut session, _) = session(&device, base());
    script.compiler_oom.store(1, SeqCst);
    assert_eq!(session.submit(&[item(SCALE, 4, 6, 1)]), Pushed::All);
    assert!(session.drain().is_err());
    script.compiler_oom.store(0, SeqCst);
    session.drain().unwrap();
}

#[test]
fn the_slice_size_is_clamped() {
    let device = Device::open(&Oracle::default()).unwrap();
    assert!(Session::new(&device, Config { slice: usize::MAX, ..base() }).is_ok());
}

#[test]
fn a_huge_queue_allocates_on_demand() {
    let device = Device::open(&Oracle::default()).unwrap();
    assert!(Session::new(&device, Config { queue: usize::MAX, ..base() }).is_ok());
}

#[test]
fn hit_buffers_follow_the_hits_not_the_slice() {
    let script = Arc::new(Script::default());
    let device = faulty(&script);
    let (mut session, handles) = session(&device, Config { slice: 3000, plain_words: 10_000, ..base() });
    fill(&mut session, handles[6], 1);
    let mut items: Vec<WorkItem> =
        (0..2999).map(|_| item(SCALE, 1, session.allocate(Segment::Plain, 1).unwrap().0, 1)).collect();
    items.push(item(FIND, 7, 0, 0));
    let items = items.repeat(4);
    script.most.store(0, SeqCst);
    assert_eq!(session.submit(&items), Pushed::All);
    let report = session.drain().unwrap();
    assert_eq!(report.hits.len(), 1200);
    let most = script.most.load(SeqCst);
    assert!(most < 1 << 20, "{most} bytes for 300 hits");
}

#[test]
fn items_executed_before_an_error_are_not_repeated() {
    let script = Arc::new(Script::default());
    let device = faulty(&script);
    let (mut session, handles) = filled(&device, base());
    let accumulate = item(ACCUMULATE, 4, 6, 0);
    assert_eq!(session.submit(&[item(77, 4, 6, 0), accumulate, item(FIND, 7, 0, 0), accumulate]), Pushed::All);
    // The allocation of the hit buffer fails, for reasons unrelated to the items.
    script.short.store(1, SeqCst);
    assert!(matches!(session.drain(), Err(Error::Driver(DriverError::OutOfMemory { .. }))));
    script.short.store(0, SeqCst);
    assert_eq!(session.pending(), [item(FIND, 7, 0, 0), WorkItem::default()], "the rest was executed");
    let report = session.drain().unwrap();
    assert_eq!((report.items, report.hits.len(), report.cuts), (4, 300, 1));
    assert!(matches!(report.failures[..], [Failed { number: 0, reason: Failure::UnknownOp, .. }]));
    assert_eq!(session.read(handles[5]).unwrap(), [3; 64]);
}

#[test]
fn a_full_report_ends_a_drain_and_the_next_one_continues() {
    let device = Device::open(&Oracle::default()).unwrap();
    let slice = 1 << 16;
    let (mut session, _) = session(&device, Config { queue: 1 << 21, slice, ..base() });
    let items = Report::MOST_ENTRIES + slice;
    assert_eq!(session.submit(&vec![item(99, 1, 2, 0); items]), Pushed::All);
    let report = session.drain().unwrap();
    assert_eq!((report.failures.len(), report.tenants[0].queued), (Report::MOST_ENTRIES, slice));
    let next = session.drain().unwrap();
    assert_eq!((next.failures.len(), next.failures[0].number), (slice, Report::MOST_ENTRIES as u64));
    let mut all = report.clone();
    all.add(next).unwrap();
    assert_eq!((all.items, all.failures.len(), all.tenants[0].queued), (items as u64, items, 0));
    assert_eq!((all.tenants[0].items, all.tenants[0].failures), (items as u64, items as u64));
    assert!(all.elapsed > report.elapsed && all.tenants[0].slices > report.tenants[0].slices);
}
