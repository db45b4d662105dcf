//! Megakernels when something goes wrong in the middle: devices that are lost or short of memory, items that do not end, and settings that
//! nobody would choose.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::Duration;

use vyre_cpu::Cpu;
use vyre_driver::backend;
use vyre_driver::{Capabilities, Device, Error, Oracle};
use vyre_foundation::ir::Program;
use vyre_foundation::{Validated, text, validate};
use vyre_runtime::megakernel::policy::{Policy, Sizing};
use vyre_runtime::megakernel::ring::Pushed;
use vyre_runtime::megakernel::{Config, Failed, Failure, Handle, Op, Order, Report, Segment, Session, WorkItem};

const SCALE: u32 = 1;
const ACCUMULATE: u32 = 4;
const SPIN: u32 = 8;
const FIND: u32 = 9;
const LENGTHS: [u32; 10] = [0, 1, 1, 3, 64, 100, 64, 300, 7, 16];

fn ops() -> Vec<Op> {
    let module = text::parse(include_str!("../../../examples/megakernel/ops.vyre")).unwrap();
    validate::module(module).unwrap().into_iter().map(|program| Op::new(program).unwrap()).collect()
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

/// The same, with ones in all memory that is used plainly.
fn filled(device: &Device, config: Config) -> (Session, Vec<Handle>) {
    let (mut session, handles) = session(device, config);
    handles[..7].iter().for_each(|&handle| fill(&mut session, handle, 1));
    (session, handles)
}

/// What fails: from how many launches and reads from now on the last one does, or for reads whether there was no memory, and whether there
/// is memory, and for programs; and the most that was allocated at once.
#[derive(Default)]
struct Script {
    launches: AtomicI64,
    reads: AtomicI64,
    refused: AtomicI64,
    short: AtomicI64,
    most: AtomicI64,
    dull: AtomicI64,
}
struct Faulty(Arc<Script>);
struct FaultyDevice {
    oracle: Box<dyn backend::Device>,
    script: Arc<Script>,
}
impl backend::Backend for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }
    fn description(&self) -> &'static str {
        "fails when it is told to"
    }
    fn open(&self) -> Result<Box<dyn backend::Device>, Error> {
        Ok(Box::new(FaultyDevice { oracle: Oracle::default().open()?, script: self.0.clone() }))
    }
}
impl backend::Device for FaultyDevice {
    fn capabilities(&self) -> &Capabilities {
        self.oracle.capabilities()
    }
    fn compile(&self, program: &Arc<Validated<Program>>) -> Result<Arc<dyn backend::Kernel>, Error> {
        if self.script.dull.load(SeqCst) > 0 {
            return Err(Error::OutOfMemory { requested: 1, available: 0 });
        }
        self.oracle.compile(program)
    }
    fn allocate(&self, bytes: u64) -> Result<Arc<dyn backend::Memory>, Error> {
        if bytes > 1024 && self.script.short.load(SeqCst) > 0 {
            return Err(Error::OutOfMemory { requested: bytes, available: 0 });
        }
        self.script.most.fetch_max(bytes as i64, SeqCst);
        self.oracle.allocate(bytes)
    }
    fn submit(&self, commands: Vec<backend::Command>) -> Result<Box<dyn backend::Ticket>, Error> {
        let lost = || Err(Error::DeviceLost { reason: "it was told to".into(), unacknowledged: vec![] });
        for command in &commands {
            let counter = match command {
                backend::Command::Launch(_) => &self.script.launches,
                backend::Command::Read(..) => &self.script.reads,
                _ => continue,
            };
            // n > 0: the nth from now fails
            let fails = |counter: &AtomicI64| counter.load(SeqCst) > 0 && counter.fetch_sub(1, SeqCst) == 1;
            if fails(counter) {
                return lost();
            }
            if matches!(command, backend::Command::Read(..)) && fails(&self.script.refused) {
                return Err(Error::OutOfMemory { requested: 1, available: 0 });
            }
        }
        self.oracle.submit(commands)
    }
}

#[test]
fn a_watchdog_and_an_op_that_reports() {
    let device = Device::open(&Cpu { threads: Some(2), execution: None }).unwrap();
    let config =
        Config { watchdog: Some(Duration::from_millis(200)), fuel: u32::MAX, order: Order::Barriers, ..base() };
    let (mut session, handles) = filled(&device, config);
    let mut forever = 1u32.to_le_bytes().repeat(300);
    forever[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    session.write(handles[6], &forever).unwrap();
    assert_eq!(session.submit(&[item(ACCUMULATE, 4, 6, 0), item(SPIN, 7, 5, 0)]), Pushed::All);
    assert_eq!(session.drain().unwrap().failures.len(), 1);
    assert_eq!(session.read(handles[5]).unwrap()[0], 2, "accumulated once");
}

#[test]
fn few_elements_and_a_watchdog() {
    let device = Device::open(&Cpu { threads: Some(2), execution: None }).unwrap();
    let config =
        Config { watchdog: Some(Duration::from_millis(200)), fuel: u32::MAX, order: Order::Barriers, ..base() };
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
    let device = Device::open(&Faulty(script.clone())).unwrap();
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
fn checkpoint_of_half_a_slice() {
    for refused in [1, 2] {
        let script = Arc::new(Script::default());
        let device = Device::open(&Faulty(script.clone())).unwrap();
        let policy = Policy { min_hit_capacity: 2, ..interpreting() };
        let (mut session, handles) = filled(&device, Config { journal: Some(1000), policy, ..base() });
        assert_eq!(session.submit(&[item(ACCUMULATE, 4, 6, 0), item(FIND, 7, 0, 0)]), Pushed::All);
        // How many hits there are cannot be read, or what became of the first item.
        script.refused.store(refused, SeqCst);
        assert!(matches!(session.drain(), Err(Error::OutOfMemory { .. })));
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
fn half_a_checkpoint() {
    let script = Arc::new(Script::default());
    let device = Device::open(&Faulty(script.clone())).unwrap();
    let (mut session, handles) = filled(&device, Config { journal: Some(1000), ..base() });
    session.checkpoint().unwrap();
    assert_eq!(session.submit(&[item(ACCUMULATE, 4, 6, 0)]), Pushed::All);
    session.drain().unwrap();
    script.reads.store(2, SeqCst);
    assert!(matches!(session.checkpoint(), Err(Error::DeviceLost { .. })));
    session.resume(&Device::open(&Oracle::default()).unwrap()).unwrap();
    assert_eq!(session.read(handles[5]).unwrap()[0], 2);
}

#[test]
fn a_queue_of_nothing() {
    let device = Device::open(&Oracle::default()).unwrap();
    let (session, _) = session(&device, Config { queue: 0, ..base() });
    assert_eq!(session.submit(&[item(SCALE, 4, 6, 1)]), Pushed::All);
    session.canceller().cancel();
    assert_eq!(session.shutdown().left.len(), 1);
}

#[test]
fn a_slice_of_nothing() {
    let device = Device::open(&Oracle::default()).unwrap();
    let (mut session, _) = session(&device, Config { slice: 0, ..base() });
    assert_eq!(session.submit(&[item(SCALE, 4, 6, 1)]), Pushed::All);
    assert_eq!(session.drain().unwrap().items, 1);
}

#[test]
fn local_indices() {
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
fn budget_and_hits_of_many_slices() {
    let device = Device::open(&Oracle::default()).unwrap();
    let policy = Policy { min_hit_capacity: 2, ..interpreting() };
    let config = Config { slice: 20, budget: 4 * (4096 + 64 + 21) + 5_000, policy, ..base() };
    let (mut session, handles) = session(&device, config);
    fill(&mut session, handles[0], 7);
    let items = vec![item(FIND, 1, 0, 0); 600];
    assert_eq!(session.submit(&items), Pushed::All);
    assert_eq!(session.drain().unwrap().hits.len(), 600);
}

#[test]
fn empty_handles() {
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
fn failures_of_reporting_ops_come_once() {
    let device = Device::open(&Cpu { threads: Some(2), execution: None }).unwrap();
    let source = "program op workgroup(64) {\nread input: [u32]\nwrite hits: [u32]\nread_write atomic hit_count: [u32]\n%i = global_index\n%x = load input[%i]\n%b = eq %x, 666\nif %b {\ntrap 5\n}\n%l = loop (%n = 0) -> u32 {\n%d = eq %n, %x\nif %d {\nbreak %n\n}\n%m = add %n, 1\ncontinue %m\n}\n}";
    let op = op(source);
    let config =
        Config { watchdog: Some(Duration::from_millis(200)), fuel: u32::MAX, order: Order::Barriers, ..base() };
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
fn a_window_of_a_collective_op_and_another() {
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
fn failures_of_pure_ops() {
    let device = Device::open(&Oracle::default()).unwrap();
    let (mut session, handles) = session(&device, base());
    let pure = session.register(ops().swap_remove(6).pure());
    fill(&mut session, handles[3], 666);
    assert_eq!(session.submit(&[item(pure, 4, 6, 0), item(pure, 4, 6, 0)]), Pushed::All);
    let report = session.drain().unwrap();
    assert_eq!(report.failures.len(), 2, "{:?}", report.failures);
}

#[test]
fn a_lot_of_hits() {
    let device = Device::open(&Oracle::default()).unwrap();
    let source = "program op workgroup(64) {\nread input: [u32]\nwrite hits: [u32]\nread_write atomic hit_count: [u32]\n%o = atomic_add hit_count[0], 3000000000\n}";
    let op = op(source);
    let (mut session, _) = session(&device, Config { budget: 1 << 20, ..base() });
    let op = session.register(op);
    assert_eq!(session.submit(&[item(op, 1, 0, 0)]), Pushed::All);
    let report = session.drain().unwrap();
    let [Failed { item: failed, why: Failure::TooManyHits { requested, available }, .. }] = &report.failures[..] else {
        panic!("{report:?}");
    };
    assert_eq!((*failed, *available), (item(op, 1, 0, 0), 1 << 20));
    assert!(*requested > 12_000_000_000);
}

#[test]
fn what_is_noted_of_an_item_without_room_is_not_of_others() {
    let device = Device::open(&Oracle::default()).unwrap();
    let source = "program op workgroup(64) {\nread input: [u32]\nwrite hits: [u32]\nread_write atomic hit_count: [u32]\n%o = atomic_add hit_count[0], 3000000000\ntrap 9\n}";
    let op = op(source);
    let (mut session, _) = session(&device, Config { budget: 1 << 20, ..base() });
    let op = session.register(op);
    let mut items = vec![item(SCALE, 1, 2, 1); 5];
    items.push(item(op, 1, 0, 0));
    assert_eq!(session.submit(&items), Pushed::All);
    let report = session.drain().unwrap();
    assert!(matches!(report.failures[..], [Failed { number: 5, why: Failure::TooManyHits { .. }, .. }]));
    assert_eq!(session.submit(&[item(SPIN, 1, 2, 0); 2]), Pushed::All);
    assert_eq!(session.drain().unwrap().failures, []);
}

#[test]
fn who_is_alone_may_take_what_there_is() {
    let device = Device::open(&Oracle::default()).unwrap();
    // Less than what is expected that an item needs.
    let (mut session, handles) = session(&device, Config { budget: 4 * (4096 + 64 + 65_537) + 8000, ..base() });
    fill(&mut session, handles[6], 7);
    assert_eq!(session.submit(&[item(FIND, 7, 0, 0), item(FIND, 7, 0, 0)]), Pushed::All);
    let report = session.drain().unwrap();
    assert_eq!((report.hits.len(), report.failures.len(), report.cuts), (600, 0, 1));
}

#[test]
fn a_slice_that_there_is_no_memory_for_is_cut() {
    let device = Device::open(&Oracle::default()).unwrap();
    // Room for the hits of some items, but not of all.
    let policy = Policy { min_hit_capacity: 2, ..interpreting() };
    let config = Config { budget: 4 * (4096 + 64 + 65_537) + 5_000, policy, ..base() };
    let (mut session, handles) = session(&device, config);
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
fn results_that_cannot_be_read_are_read_later() {
    let script = Arc::new(Script::default());
    let device = Device::open(&Faulty(script.clone())).unwrap();
    for journal in [None, Some(1000)] {
        for read in 1..8 {
            let (mut session, handles) = filled(&device, Config { journal, ..base() });
            session.write(handles[0], &2000u32.to_le_bytes()).unwrap();
            let (accumulate, spin) = (item(ACCUMULATE, 4, 6, 0), item(SPIN, 1, 2, 0));
            // One slice with several batches: what reports hits runs apart.
            let items = [accumulate, spin, item(FIND, 7, 0, 0), accumulate, spin];
            assert_eq!(session.submit(&items), Pushed::All);
            script.refused.store(read, SeqCst);
            let mut reports = Vec::new();
            while reports.iter().map(|report: &Report| report.items).sum::<u64>() < 5 {
                match session.drain() {
                    Ok(report) => reports.push(report),
                    Err(Error::OutOfMemory { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            script.refused.store(0, SeqCst);
            let failed: Vec<_> = reports.iter().flat_map(|report| &report.failures).collect();
            assert_eq!(failed.iter().map(|failed| failed.number).collect::<Vec<_>>(), [1, 4], "{read}");
            assert!(failed.iter().all(|failed| failed.item == spin && failed.why == Failure::OutOfFuel));
            assert_eq!(reports.iter().map(|report| report.hits.len()).sum::<usize>(), 300, "{read}");
            assert_eq!(session.read(handles[5]).unwrap(), [3; 64], "{read}");
        }
    }
}

#[test]
fn resume_when_somebody_cancelled() {
    let script = Arc::new(Script::default());
    let device = Device::open(&Faulty(script.clone())).unwrap();
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
fn a_write_after_half_a_slice() {
    for refused in [1, 2] {
        let script = Arc::new(Script::default());
        let device = Device::open(&Faulty(script.clone())).unwrap();
        let policy = Policy { min_hit_capacity: 2, ..interpreting() };
        let (mut session, handles) = filled(&device, Config { journal: Some(1000), policy, ..base() });
        assert_eq!(session.submit(&[item(SCALE, 4, 6, 1), item(FIND, 7, 0, 0)]), Pushed::All);
        script.refused.store(refused, SeqCst);
        assert!(matches!(session.drain(), Err(Error::OutOfMemory { .. })));
        session.write(handles[3], &9u32.to_le_bytes().repeat(64)).unwrap();
        assert_eq!(session.pending()[0], WorkItem::default(), "has run");
        script.launches.store(1, SeqCst);
        assert!(matches!(session.drain(), Err(Error::DeviceLost { .. })));
        session.resume(&Device::open(&Oracle::default()).unwrap()).unwrap();
        session.drain().unwrap();
        assert_eq!(session.read(handles[5]).unwrap()[0], 1);
    }
}

#[test]
fn uploads_within_the_budget() {
    let script = Arc::new(Script::default());
    let device = Device::open(&Faulty(script.clone())).unwrap();
    let slice = 200;
    let left = 1000 + 4 * (slice as i64 + 1);
    let config = Config { slice, budget: 4 * (4096 + 64) + left as u64, ..base() };
    let (mut session, _) = session(&device, config);
    let items: Vec<WorkItem> =
        (0..200).map(|_| item(SCALE, 1, session.allocate(Segment::Plain, 1).unwrap().0, 1)).collect();
    script.most.store(0, SeqCst);
    assert_eq!(session.submit(&items), Pushed::All);
    let report = session.drain().unwrap();
    let most = script.most.load(SeqCst);
    assert!(most <= left, "{} groups, {} launches, {most} > {left}", report.groups, report.launches);
}

#[test]
fn only_the_stuck_one() {
    let device = Device::open(&Cpu { threads: Some(2), execution: None }).unwrap();
    let config = Config {
        watchdog: Some(Duration::from_secs(1)),
        fuel: u32::MAX,
        order: Order::Barriers,
        plain_words: 1 << 20,
        ..base()
    };
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

#[test]
fn a_compiler_that_was_short_of_memory_once() {
    let script = Arc::new(Script::default());
    let device = Device::open(&Faulty(script.clone())).unwrap();
    let (mut session, _) = session(&device, base());
    script.dull.store(1, SeqCst);
    assert_eq!(session.submit(&[item(SCALE, 4, 6, 1)]), Pushed::All);
    assert!(session.drain().is_err());
    script.dull.store(0, SeqCst);
    session.drain().unwrap();
}

#[test]
fn a_huge_slice() {
    let device = Device::open(&Oracle::default()).unwrap();
    assert!(Session::new(&device, Config { slice: usize::MAX, ..base() }).is_ok());
}

#[test]
fn a_huge_queue() {
    let device = Device::open(&Oracle::default()).unwrap();
    assert!(Session::new(&device, Config { queue: usize::MAX, ..base() }).is_ok());
}

#[test]
fn memory_for_hits() {
    let script = Arc::new(Script::default());
    let device = Device::open(&Faulty(script.clone())).unwrap();
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
fn what_ran_before_an_error_does_not_run_again() {
    let script = Arc::new(Script::default());
    let device = Device::open(&Faulty(script.clone())).unwrap();
    let (mut session, handles) = filled(&device, base());
    let accumulate = item(ACCUMULATE, 4, 6, 0);
    assert_eq!(session.submit(&[item(77, 4, 6, 0), accumulate, item(FIND, 7, 0, 0), accumulate]), Pushed::All);
    // There is no memory for any hits, which is not the fault of who reports some.
    script.short.store(1, SeqCst);
    assert!(matches!(session.drain(), Err(Error::OutOfMemory { .. })));
    script.short.store(0, SeqCst);
    assert_eq!(session.pending(), [item(FIND, 7, 0, 0), WorkItem::default()], "the rest has run");
    let report = session.drain().unwrap();
    assert_eq!((report.items, report.hits.len(), report.cuts), (4, 300, 1));
    assert!(matches!(report.failures[..], [Failed { number: 0, why: Failure::UnknownOp, .. }]));
    assert_eq!(session.read(handles[5]).unwrap(), [3; 64]);
}

#[test]
fn a_full_report_ends_a_drain_and_the_next_one_goes_on() {
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
