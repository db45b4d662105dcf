//! Budgets of megakernel sessions: the device's high-water mark never exceeds [`Config::budget`], and errors name an accepted budget.

use std::time::Duration;

use vyre_cpu::Cpu;
use vyre_driver::{Device, Error as DriverError, Oracle};
use vyre_foundation::{text, validate};
use vyre_runtime::Error;
use vyre_runtime::megakernel::policy::Policy;
use vyre_runtime::megakernel::ring::Pushed;
use vyre_runtime::megakernel::{Config, Failure, Handle, Op, Report, Segment, Session, WorkItem};

const ACCUMULATE: u32 = 4;
const FIND: u32 = 9;

/// Lengths of the handles' allocations; the last two are atomic.
const LENGTHS: [u32; 9] = [1, 1, 3, 64, 100, 64, 300, 7, 16];
const PLAIN: u32 = 7;

fn session(device: &Device, config: Config) -> (Session, Vec<Handle>) {
    let mut session = Session::new(device, config).unwrap();
    for program in validate::module(text::parse(include_str!("../../../examples/megakernel/ops.vyre")).unwrap())
        .unwrap()
        .into_inner()
        .programs
    {
        session.register(Op::new(program).unwrap());
    }
    let handles = LENGTHS.iter().zip(0..).map(|(&words, number)| {
        let segment = if number < PLAIN { Segment::Plain } else { Segment::Atomic };
        let handle = session.allocate(segment, words).unwrap();
        let contents: Vec<u32> = (0..words).map(|word| (number * 7919 + word * 104_729) % 1500).collect();
        session.write(handle, bytemuck::cast_slice(&contents)).unwrap();
        handle
    });
    let handles = handles.collect();
    (session, handles)
}

/// Items of all ops, with dependencies, chains, faults and hits.
fn items() -> Vec<WorkItem> {
    (0..90u32)
        .map(|number| {
            let (op_handle, plain) = (1 + number % 9, |number: u32| 1 + number % PLAIN);
            let [input_handle, output_handle] = [plain(number * 5 / 3), plain(number * 5 / 3 + 1)];
            match op_handle {
                // A sum has a third handle.
                2 => WorkItem { op_handle, input_handle, output_handle, param: plain(number) },
                6 => WorkItem { op_handle, input_handle, output_handle: 1 + PLAIN, param: 0 },
                // The hits fit the least budget.
                FIND => WorkItem { op_handle, input_handle: 3, output_handle: 0, param: 0 },
                _ => WorkItem { op_handle, input_handle, output_handle, param: 3 },
            }
        })
        .collect()
}

/// Contents of all allocations after three drains, and the number of hits and the failures of each drain.
#[derive(Debug, PartialEq)]
struct Results {
    memory: Vec<Vec<u32>>,
    drains: Vec<(usize, Vec<(u64, Failure)>)>,
}

fn run(device: &Device, config: &Config) -> Results {
    let (mut session, handles) = session(device, config.clone());
    let mut drains = Vec::new();
    for _ in 0..3 {
        assert_eq!(session.submit(&items()), Pushed::All);
        let report: Report = session.drain().unwrap();
        session.finish_compiling();
        let mut failures: Vec<_> =
            report.failures.iter().map(|failed| (failed.number, failed.reason.clone())).collect();
        failures.sort_by_key(|(number, _)| *number);
        drains.push((report.hits.len(), failures));
    }
    let memory = handles.iter().map(|&handle| session.read(handle).unwrap()).collect();
    Results { memory, drains }
}

/// Returns the least accepted budget of a configuration, as named by the error.
fn least_budget(device: &Device, config: &Config) -> u64 {
    let refused = |budget| match Session::new(device, Config { budget, ..config.clone() }).map(|_| ()) {
        Err(Error::Driver(DriverError::OverBudget { required, budget: named, .. })) => {
            assert_eq!(named, budget);
            required
        }
        other => panic!("{other:?}"),
    };
    let least = refused(1);
    assert_eq!(refused(least - 1), least);
    assert!(Session::new(device, Config { budget: least, ..config.clone() }).is_ok());
    least
}

/// Asserts that sessions with budgets from the least one upwards give the results of a session without budget, within their budget.
fn walk_budgets(device: &Device, config: &Config, above: &[u64]) {
    let expected = run(device, config);
    let least = least_budget(device, config);
    for more in above {
        let budget = least + more;
        device.reset_peak_bytes();
        let found = run(device, &Config { budget, ..config.clone() });
        assert_eq!(found, expected, "budget {budget}: {more} more than the least");
        assert!(device.peak_bytes() <= budget, "{} of {budget}: {more} more than the least", device.peak_bytes());
        assert_eq!(device.memory().used, 0);
    }
}

fn compiling() -> Policy {
    Policy { jit_queue_len_threshold: 0, hot_window_threshold: 1, min_hit_capacity: 2, ..Config::default().policy }
}

#[test]
fn sessions_stay_within_every_accepted_budget() {
    const ABOVE: [u64; 10] = [0, 1, 255, 256, 511, 512, 1000, 4096, 20_000, 1 << 20];
    let config = Config { plain_words: 4096, atomic_words: 64, fuel: 1000, ..Config::default() };
    let cpu = Device::open(&Cpu { threads: Some(2), ..Cpu::default() }).unwrap();
    walk_budgets(&cpu, &Config { slice: 40, policy: compiling(), ..config.clone() }, &ABOVE);
    let watchdog = Some(Duration::from_secs(600));
    walk_budgets(&cpu, &Config { slice: 7, plain_words: 5000, watchdog, ..config.clone() }, &[0, 256, 5000]);
    let oracle = Device::open(&Oracle::default()).unwrap();
    walk_budgets(&oracle, &Config { slice: 1000, journal: Some(50), ..config }, &[0, 300, 3000]);
}

#[test]
fn arenas_of_rounded_sizes_stay_within_the_budget() {
    let device = Device::open(&Cpu::default()).unwrap();
    for plain_words in [1 << 18, (1 << 18) + 1000, 300_000] {
        let config = Config { plain_words, atomic_words: 64, slice: 4096, ..Config::default() };
        let least = least_budget(&device, &config);
        for more in [0, 1 << 14, 1 << 16] {
            let budget = least + more;
            device.reset_peak_bytes();
            let (mut session, _) = session(&device, Config { budget, ..config.clone() });
            let handles: Vec<u32> = (0..4000).map(|_| session.allocate(Segment::Plain, 16).unwrap().0).collect();
            for op_handle in [ACCUMULATE, FIND] {
                let item =
                    |&handle: &u32| WorkItem { op_handle, input_handle: handle, output_handle: handle, param: 3 };
                assert_eq!(session.submit(&handles.iter().map(item).collect::<Vec<_>>()), Pushed::All);
                let report = session.drain().unwrap();
                assert_eq!((report.items, report.failures.len()), (4000, 0));
            }
            assert!(device.peak_bytes() <= budget, "{} of {budget}", device.peak_bytes());
        }
    }
}

#[test]
fn too_many_hits_name_the_required_budget() {
    let device = Device::open(&Oracle::default()).unwrap();
    let config = Config { plain_words: 4096, atomic_words: 64, slice: 16, ..Config::default() };
    let least = least_budget(&device, &config);
    let (mut session, _) = session(&device, Config { budget: least, ..config });
    // Reports 299 hits: all but the first of 300 words are greater than 0.
    let find = WorkItem { op_handle: FIND, input_handle: PLAIN, output_handle: 0, param: 0 };
    let mut drain = |budget: u64| {
        session.set_budget(budget);
        assert_eq!(session.submit(&[find, find]), Pushed::All);
        device.reset_peak_bytes();
        let report = session.drain().unwrap();
        assert!(device.peak_bytes() <= budget, "{} of {budget}", device.peak_bytes());
        report
    };
    let report = drain(least);
    let [one, other] = &report.failures[..] else { panic!("{report:?}") };
    assert_eq!(one.reason, other.reason);
    let Failure::TooManyHits { requested, available } = one.reason else { panic!("{report:?}") };
    assert!(available == least && requested > least);
    assert_eq!(drain(requested - 1).failures.len(), 2);
    let report = drain(requested);
    assert_eq!((report.failures.len(), report.hits.len() % 2), (0, 0));
    assert!(report.hits.len() > 500, "{}", report.hits.len());
}

#[test]
fn a_session_that_resumes_on_the_same_device_stays_within_its_budget() {
    let device = Device::open(&Cpu::default()).unwrap();
    let config = Config { plain_words: 100_000, slice: 100, journal: Some(1000), ..Config::default() };
    let budget = least_budget(&device, &config);
    let (mut session, handles) = session(&device, Config { budget, ..config });
    assert_eq!(session.submit(&items()), Pushed::All);
    session.drain().unwrap();
    let contents = session.read(handles[3]).unwrap();
    device.reset_peak_bytes();
    session.resume(&device).unwrap();
    assert_eq!(session.read(handles[3]).unwrap(), contents);
    assert!(device.peak_bytes() <= budget, "{} of {budget}", device.peak_bytes());
}
