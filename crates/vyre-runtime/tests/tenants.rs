//! Fairness, quotas, aging and autotuning of megakernel tenants.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use vyre_cpu::Cpu;
use vyre_driver::backend::Command;
use vyre_driver::{Device, Error as DriverError};
use vyre_foundation::{text, validate};
use vyre_runtime::Error;
use vyre_runtime::megakernel::policy::Policy;
use vyre_runtime::megakernel::ring::{Otherwise, Pushed};
use vyre_runtime::megakernel::tune::Tuner;
use vyre_runtime::megakernel::{
    Canceller, Clock, Config, Failure, Handle, Op, Priority, Report, Segment, Session, Share, WorkItem,
};
use vyre_testkit::intercept::{Intercepted, Interceptor};
use vyre_wgpu::Wgpu;

const SCALE: u32 = 1;
const ACCUMULATE: u32 = 4;
const CHECKED: u32 = 7;
const SPIN: u32 = 8;

fn session(device: &Device, config: Config) -> Session {
    let mut session = Session::new(device, config).unwrap();
    for program in validate::module(text::parse(include_str!("../../../examples/megakernel/ops.vyre")).unwrap())
        .unwrap()
        .into_inner()
        .programs
    {
        session.register(Op::new(program).unwrap());
    }
    session
}

fn item(op_handle: u32, input: Handle, output: Handle) -> WorkItem {
    WorkItem { op_handle, input_handle: input.0, output_handle: output.0, param: 3 }
}

/// Share with a time quota of one slice per drain.
fn one_slice() -> Share {
    Share { time: Some(Duration::from_nanos(1)), ..Share::default() }
}

/// The CPU, and a GPU if there is one.
fn devices() -> Vec<Device> {
    let gpu = match Device::open(&Wgpu) {
        Ok(device) => Some(device),
        Err(DriverError::NoAdapter { .. }) => None,
        Err(error) => panic!("{error}"),
    };
    [Device::open(&Cpu::default()).unwrap()].into_iter().chain(gpu).collect()
}

#[test]
fn waiting_items_are_executed_within_the_bound() {
    const SLICE: usize = 10;
    const SLOTS: usize = 30;
    const THRESHOLD: u32 = 4;
    for device in devices() {
        let config = Config {
            plain_words: 8,
            slice: SLICE,
            tenants: vec![Share { slots: Some(SLOTS), ..one_slice() }],
            policy: Policy { priority_age_threshold: THRESHOLD, ..Config::of(&device).policy },
            ..Config::of(&device)
        };
        let mut session = session(&device, config);
        let [one, nowhere] = [0; 2].map(|_| session.allocate(Segment::Plain, 1).unwrap());
        session.write(one, &1u32.to_le_bytes()).unwrap();
        let producer = session.tenant(0).unwrap().producer();
        let urgent = item(ACCUMULATE, one, nowhere);
        let refill = |priority| {
            while producer.push(priority, &[urgent], Otherwise::Return) == Pushed::All {}
        };
        refill(Priority::Urgent);
        session.drain().unwrap();
        for (class, priority) in (0..).zip(Priority::ALL) {
            let waits = session.allocate(Segment::Plain, 1).unwrap();
            refill(Priority::Urgent);
            // Older items of the same class precede it, too.
            let ahead = vec![urgent; if priority == Priority::Urgent { 0 } else { SLOTS - 1 }];
            assert_eq!(producer.push(priority, &ahead, Otherwise::Return), Pushed::All);
            session.drain().unwrap();
            assert_eq!(producer.push(priority, &[item(ACCUMULATE, one, waits)], Otherwise::Return), Pushed::All);
            let bound = class * THRESHOLD + (Priority::ALL.len() * SLOTS).div_ceil(SLICE) as u32;
            let mut slices = 0;
            let (mut promoted, mut oldest) = (0, 0);
            while session.read(waits).unwrap() == [0] {
                refill(Priority::Urgent);
                let report = session.drain().unwrap();
                assert_eq!((report.items, report.tenants[0].slices), (SLICE as u64, 1));
                let recommendation = report.recommendation.unwrap();
                let is_old = report.priority.oldest_age >= u64::from(THRESHOLD);
                assert_eq!(recommendation.age_priority_work, is_old);
                promoted += report.priority.aged_promotions;
                oldest = oldest.max(report.priority.oldest_age);
                slices += 1;
                assert!(slices <= bound, "{priority:?} waits for {slices} slices");
            }
            assert_eq!(promoted > 0, priority != Priority::Urgent, "{priority:?}");
            println!("{priority:?}: {slices} slices of at most {bound}; maximum age {oldest}");
            session.free(waits).unwrap();
        }
    }
}

#[test]
fn urgent_items_come_first_and_raise_their_siblings() {
    let device = Device::open(&Cpu::default()).unwrap();
    let policy = Policy { priority_age_threshold: 8, ..Config::of(&device).policy };
    let config = Config { plain_words: 64, slice: 10, tenants: vec![one_slice()], policy, ..Config::of(&device) };
    let mut session = session(&device, config);
    let one = session.allocate(Segment::Plain, 1).unwrap();
    session.write(one, &1u32.to_le_bytes()).unwrap();
    let sums: Vec<Handle> = (0..5).map(|_| session.allocate(Segment::Plain, 1).unwrap()).collect();
    let producer = session.tenant(0).unwrap().producer();
    let push = |priority, sum: usize, items: usize| {
        assert_eq!(
            producer.push(priority, &vec![item(ACCUMULATE, one, sums[sum]); items], Otherwise::Return),
            Pushed::All
        );
    };
    let drain = |session: &mut Session| -> Vec<u32> {
        session.drain().unwrap();
        sums.iter().map(|&sum| session.read(sum).unwrap()[0]).collect()
    };
    push(Priority::Low, 3, 10);
    push(Priority::Normal, 2, 10);
    push(Priority::Urgent, 0, 10);
    assert_eq!(drain(&mut session), [10, 0, 0, 0, 0]);
    // Enqueued later and without urgent siblings: they keep their class.
    push(Priority::Normal, 4, 10);
    assert_eq!(drain(&mut session), [10, 0, 10, 0, 0]);
    // Low items with urgent siblings were raised, and have earlier deadlines than the later normal items.
    assert_eq!(drain(&mut session), [10, 0, 10, 10, 0]);
    assert_eq!(drain(&mut session), [10, 0, 10, 10, 10]);
}

/// Virtual clock, advanced by the work of a metered device only.
#[derive(Debug)]
struct Virtual {
    start: Instant,
    nanoseconds: AtomicU64,
    /// Time from which drains are cancelled.
    end: OnceLock<(u64, Canceller)>,
}

impl Virtual {
    fn advance(&self, nanoseconds: u64) {
        let now = self.nanoseconds.fetch_add(nanoseconds, SeqCst) + nanoseconds;
        if let Some((_, canceller)) = self.end.get().filter(|(end, _)| now >= *end) {
            canceller.cancel();
        }
    }
}

impl Clock for Virtual {
    fn now(&self) -> Instant {
        self.start + Duration::from_nanos(self.nanoseconds.load(SeqCst))
    }
}

/// Cost model of the device: 10 µs per command, and 1 µs per written byte, which are mostly columns of items.
impl Interceptor for Virtual {
    fn submit(&self, commands: &mut [Command]) -> Result<(), DriverError> {
        for command in commands {
            let bytes = if let Command::Write(_, bytes) = command { bytes.len() as u64 } else { 0 };
            self.advance(10_000 + 1_000 * bytes);
        }
        Ok(())
    }
}

#[test]
fn tenants_get_their_shares_independent_of_others() {
    const ITEMS: usize = 80_000;
    const TIME: Duration = Duration::from_millis(1500);
    let clock = Arc::new(Virtual { start: Instant::now(), nanoseconds: AtomicU64::new(0), end: OnceLock::new() });
    let (name, backend, interceptor) = ("metered", Cpu::default(), clock.clone());
    let device = Device::open(&Intercepted { name, backend, interceptor }).unwrap();
    let weights = [1, 2, 5];
    let tenants = weights.map(|weight| Share { weight, ..Share::default() }).to_vec();
    let policy = Policy { hot_window_threshold: u32::MAX, ..Config::default().policy };
    // A small slice: clearing the fault buffer, after slices with faults, costs time in proportion to the maximum slice.
    let (slice, plain_words) = (256, 4096);
    let config = Config {
        plain_words,
        queue: ITEMS,
        slice,
        fuel: 400,
        tenants,
        policy,
        clock: clock.clone(),
        ..Config::of(&device)
    };
    let mut session = session(&device, config);
    for id in 0..3 {
        let mut tenant = session.tenant(id).unwrap();
        let outputs: Vec<Handle> = (0..64).map(|_| tenant.allocate(Segment::Plain, 16).unwrap()).collect();
        let [trips, long, bad] = [200, u32::MAX, 666].map(|word: u32| {
            let handle = tenant.allocate(Segment::Plain, 16).unwrap();
            tenant.write(handle, &word.to_le_bytes().repeat(16)).unwrap();
            handle
        });
        let items: Vec<WorkItem> = (0..ITEMS)
            .map(|number| match (id, number % 4) {
                // The first tenant is well-behaved, the second runs out of fuel and traps, the third submits invalid items.
                (1, 0) => item(SPIN, long, outputs[number % 64]),
                (1, 1) => item(CHECKED, bad, outputs[number % 64]),
                (2, 2) => item(99, trips, outputs[number % 64]),
                _ => item(SPIN, trips, outputs[number % 64]),
            })
            .collect();
        let pushed = tenant.producer().push(Priority::ALL[id as usize], &items, Otherwise::Return);
        assert_eq!(pushed, Pushed::All);
    }
    let end = clock.nanoseconds.load(SeqCst) + TIME.as_nanos() as u64;
    clock.end.set((end, session.canceller())).unwrap();
    let report = session.drain().unwrap();
    // All tenants are backlogged for the whole drain.
    assert!(report.cancelled && report.tenants.iter().all(|usage| usage.queued > 0), "{:?}", report.tenants);
    let total: Duration = report.tenants.iter().map(|usage| usage.time).sum();
    assert!(total >= TIME && total == report.elapsed, "{total:?} of {:?}", report.elapsed);
    for (usage, weight) in report.tenants.iter().zip(weights) {
        let (share, due) = (usage.time.as_secs_f64() / total.as_secs_f64(), f64::from(weight) / 8.0);
        println!("{share:.4} of {due:.4}: {usage:?}");
        assert!((share / due - 1.0).abs() < 0.05, "{share} of {due}: {:?}", report.tenants);
    }
    assert_eq!(report.tenants[0].failures, 0);
    assert!(report.tenants[1].failures > 0 && report.tenants[2].failures > 0);
}

#[test]
fn quotas_and_handle_ownership_are_enforced() {
    for device in devices() {
        let small = Share { slots: Some(3), bytes: 24, ..one_slice() };
        let config =
            Config { plain_words: 64, slice: 2, tenants: vec![Share::default(), small], ..Config::of(&device) };
        let mut session = session(&device, config);
        let own = session.allocate(Segment::Plain, 2).unwrap();
        let result = session.allocate(Segment::Plain, 2).unwrap();
        assert!(matches!(session.tenant(2), Err(Error::NoSuchTenant { tenant: 2, count: 2 })));
        let mut tenant = session.tenant(1).unwrap();
        let theirs = tenant.allocate(Segment::Plain, 4).unwrap();
        let over = tenant.allocate(Segment::Plain, 3);
        assert!(matches!(over, Err(Error::OverQuota { tenant: 1, requested: 12, available: 8 })), "{over:?}");
        let foreign = |result: Result<(), Error>, by: u32| match result {
            Err(Error::ForeignHandle { tenant, .. }) => assert_eq!(tenant, by),
            other => panic!("{other:?}"),
        };
        foreign(tenant.read(own).map(|_| ()), 1);
        foreign(tenant.memory(own).map(|_| ()), 1);
        foreign(tenant.write(own, &[0; 8]), 1);
        foreign(tenant.free(own), 1);
        tenant.free(theirs).unwrap();
        let theirs = tenant.allocate(Segment::Plain, 2).unwrap();
        let to = tenant.allocate(Segment::Plain, 4).unwrap();
        tenant.write(theirs, bytemuck::cast_slice(&[1u32, 2])).unwrap();
        let producer = tenant.producer();
        foreign(session.read(theirs).map(|_| ()), 0);
        foreign(session.free(theirs), 0);

        // The fourth item exceeds the queue quota; other tenants and classes are not affected.
        let items = [item(SCALE, own, to), item(SCALE, theirs, to), item(SCALE, theirs, own), item(SCALE, theirs, to)];
        let pushed = producer.push(Priority::Normal, &items, Otherwise::Return);
        assert_eq!(pushed, Pushed::WouldBlock { accepted: 3 });
        assert_eq!(session.submit(&[item(SCALE, own, result), item(SCALE, theirs, result)]), Pushed::All);
        let report = session.drain().unwrap();
        assert_eq!(report.items, 4, "the second tenant's time quota is used up after a slice of two");
        let failed = |report: &Report| {
            let failures = report.failures.iter();
            failures.map(|failed| (failed.number, failed.tenant, failed.reason.clone())).collect::<Vec<_>>()
        };
        assert_eq!(failed(&report), [(1, 0, Failure::ForeignHandle), (2, 1, Failure::ForeignHandle)]);
        assert_eq!(report.failures[0].item, item(SCALE, theirs, result));
        assert_eq!(report.tenants.iter().map(|usage| usage.queued).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(failed(&session.drain().unwrap()), [(4, 1, Failure::ForeignHandle)]);
        assert_eq!(session.tenant(1).unwrap().read(to).unwrap(), [3, 6, 0, 0]);
        assert_eq!(session.read(own).unwrap(), [0, 0], "the other tenant's item did not write it");
    }
}

#[test]
fn a_flooding_tenant_starves_neither_drains_nor_tenants() {
    const SLOTS: usize = 1000;
    let device = Device::open(&Cpu::default()).unwrap();
    let tenants = vec![Share { slots: Some(SLOTS), ..Share::default() }, one_slice()];
    let config = Config { plain_words: 8, slice: 100, tenants, ..Config::of(&device) };
    let mut session = session(&device, config);
    let [one, nowhere] = [0; 2].map(|_| session.allocate(Segment::Plain, 1).unwrap());
    let mut tenant = session.tenant(1).unwrap();
    let [own, sum] = [0; 2].map(|_| tenant.allocate(Segment::Plain, 1).unwrap());
    tenant.write(own, &1u32.to_le_bytes()).unwrap();
    let (flood, modest) = (session.tenant(0).unwrap().producer(), session.tenant(1).unwrap().producer());
    std::thread::scope(move |scope| {
        let flood = scope.spawn(move || {
            let items = [item(ACCUMULATE, one, nowhere); 50];
            while flood.push(Priority::Urgent, &items, Otherwise::Wait) == Pushed::All {}
        });
        let own = vec![item(ACCUMULATE, own, sum); 500];
        assert_eq!(modest.push(Priority::Normal, &own, Otherwise::Return), Pushed::All);
        let mut served = 0;
        for drain in 0.. {
            let report = session.drain().unwrap();
            assert!(report.items as usize <= SLOTS + 500 + 100, "{}", report.items);
            assert!(report.tenants[1].slices <= 1, "its quota is one slice");
            served += report.tenants[1].items;
            assert_eq!(session.tenant(1).unwrap().read(sum).unwrap(), [served as u32]);
            if served >= 200 {
                break;
            }
            assert!(drain < 1000, "the tenant is starved");
        }
        // A shutdown lifts the time quotas.
        let shutdown = session.shutdown();
        assert_eq!((shutdown.left.len(), served + shutdown.report.tenants[1].items), (0, 500));
        flood.join().unwrap();
    });
}

#[test]
fn tuned_settings_are_remembered_for_the_next_session() {
    let device = Device::open(&Cpu::default()).unwrap();
    let config = Config { plain_words: 1 << 16, slice: 2048, tune: true, ..Config::of(&device) };
    let settle = |most: u32| {
        let mut session = session(&device, config.clone());
        let handles: Vec<Handle> = (0..512).map(|_| session.allocate(Segment::Plain, 64).unwrap()).collect();
        let one: Vec<u32> = vec![1; 64];
        handles.iter().for_each(|handle| session.write(*handle, bytemuck::cast_slice(&one)).unwrap());
        let items: Vec<WorkItem> =
            (0..8192).map(|i| item(ACCUMULATE, handles[i % 256], handles[256 + i % 256])).collect();
        let mut drains = 0;
        while !session.tuner().is_some_and(Tuner::is_settled) {
            assert_eq!(session.submit(&items), Pushed::All);
            session.drain().unwrap();
            drains += 1;
            assert!(drains <= most);
            let sum = session.read(handles[256]).unwrap()[0];
            assert_eq!(sum, 1 + 32 * drains, "tuning does not change results");
        }
        (drains, session.tuner().unwrap().settings())
    };
    let (drains, found) = settle(20);
    assert!(drains > 5 && found.batch <= 2048);
    assert_eq!(settle(1), (1, found), "the settings are in the hints of the device");
}
