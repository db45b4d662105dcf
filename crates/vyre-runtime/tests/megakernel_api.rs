//! Fuzz tests of the public functions of the megakernel: random and extreme arguments give a value or a typed error, without panics or
//! hangs.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config as Cases, TestRunner};
use vyre_cpu::Cpu;
use vyre_driver::{Device, Error as DriverError, Oracle};
use vyre_foundation::{text, validate};
use vyre_runtime::Error;
use vyre_runtime::megakernel::policy::{self, Policy, Request, Sizing, Topology};
use vyre_runtime::megakernel::priority::{Accounting, Diffusion};
use vyre_runtime::megakernel::redundancy::{Pruner, detect};
use vyre_runtime::megakernel::ring::{Drained, Otherwise, Pushed, Ring};
use vyre_runtime::megakernel::tune::{self, Settings, Tuner};
use vyre_runtime::megakernel::{
    Access, Clock, Config, Handle, KernelStats, Latencies, Op, Order, Priority, Report, Segment, Session, Share, Span,
    Telemetry, Traits, Usage, WorkItem,
};

fn check<S: Strategy>(cases: u32, inputs: S, test: impl Fn(S::Value)) {
    let mut runner = TestRunner::new_with_rng(Cases::with_cases(cases), TestRunner::deterministic().new_rng());
    runner
        .run(&inputs, |input| {
            test(input);
            Ok(())
        })
        .unwrap();
}

/// Small, random and extreme numbers.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![0..20u32, any::<u32>(), select(vec![0, 1, 2, 255, 256, 1 << 24, u32::MAX - 1, u32::MAX])]
}

fn long() -> impl Strategy<Value = u64> {
    prop_oneof![0..20u64, any::<u64>(), select(vec![0, 1, u64::from(u32::MAX), u64::MAX - 1, u64::MAX])]
}

fn float() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<f64>(),
        select(vec![0.0, -0.0, 1.0, 100.0, f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY])
    ]
}

fn any_item() -> impl Strategy<Value = WorkItem> {
    let item = |[op_handle, input_handle, output_handle, param]: [u32; 4]| WorkItem {
        op_handle,
        input_handle,
        output_handle,
        param,
    };
    [number(), number(), number(), number()].prop_map(item)
}

fn policies() -> impl Strategy<Value = Policy> {
    let words = proptest::collection::vec(number(), 10);
    let bps = proptest::array::uniform3(prop_oneof![1 => any::<u16>(), 30 => 0..=10_000u16]);
    (words, bps, proptest::option::of(number())).prop_map(|(words, bps, width)| Policy {
        min_hit_capacity: words[0],
        hit_capacity_multiplier: words[1],
        saturated_waves: words[2],
        hot_opcode_threshold: words[3],
        hot_window_threshold: words[4],
        jit_queue_len_threshold: words[5],
        priority_age_threshold: words[6],
        sparse_frontier_threshold_bps: bps[0],
        dense_frontier_threshold_bps: bps[1],
        memory_pressure_threshold_bps: bps[2],
        fusion_edge_threshold: words[7],
        scratch_bytes_per_hit: words[8],
        sizing: width.and_then(NonZeroU32::new).map_or(Sizing::Widest, Sizing::Preferred),
    })
}

#[test]
fn policy_handles_arbitrary_requests() {
    use Topology::{DenseFrontier, Empty, FusedDense, HybridFrontier, MemoryConstrained, SparseFrontier};
    let all = vec![Empty, MemoryConstrained, SparseFrontier, HybridFrontier, DenseFrontier, FusedDense];
    let words = proptest::collection::vec(number(), 12);
    let longs = (long(), long(), long(), any::<u16>(), any::<u16>());
    check(3000, (policies(), words, longs, proptest::option::of(select(all))), |(policy, words, longs, previous)| {
        let (requeue_count, resident, budget, density, pressure) = longs;
        let request = Request {
            max_compute_workgroups_per_dimension: words[3],
            max_compute_invocations_per_workgroup: words[4],
            requested_hit_capacity: words[5],
            expected_hits_per_item: words[6],
            hot_opcode_count: words[7],
            hot_window_count: words[8],
            max_priority_age: words[9],
            graph_node_count: words[10],
            graph_edge_count: words[11],
            requeue_count,
            frontier_density_bps: density,
            memory_pressure_bps: pressure,
            resident_device_bytes: resident,
            device_memory_budget_bytes: budget,
            previous_topology: previous,
            ..Request::direct(words[0], words[1], words[2])
        };
        if let Ok(answer) = policy.recommend(&request) {
            assert!(answer.geometry.grid > 0 && answer.geometry.grid <= answer.worker_groups);
            assert!(budget == 0 || answer.estimated_peak_device_bytes <= budget);
            let _ = (answer.topology_evidence.is_complete(), answer.promotion_evidence.is_complete());
            assert!(!answer.promotion_evidence.describe().is_empty());
        }
        assert!(policy::cache_stats().entries <= 128);
    });
    policy::reset_cache();
    assert_eq!(policy::cache_stats().entries, 0);
}

#[test]
fn priority_accounting_handles_arbitrary_counts() {
    let counters = || {
        [long(), long(), long()].prop_map(|[requeues, aged_promotions, oldest_age]| Accounting {
            requeues,
            aged_promotions,
            oldest_age,
        })
    };
    check(1000, (counters(), counters(), long()), |(mut one, other, more)| {
        let before = one;
        assert!(one.requeue(more).is_ok() || one == before);
        let before = one;
        assert!(one.promote(more).is_ok() || one == before);
        let before = one;
        assert!(one.add(&other).is_ok() || one == before, "a failed addition is not partial");
        one.age(more);
        assert!(one.oldest_age >= more);
        let answer = one.recommend();
        assert_eq!(answer.requeue_headroom, u64::MAX - one.requeues);
    });
}

#[test]
fn diffusion_handles_arbitrary_steps() {
    let floats = || proptest::collection::vec(any::<f32>(), 0..6);
    check(1000, (floats(), floats(), any::<f32>(), number()), |(stalk, restriction, damping, steps)| {
        let mut diffusion = Diffusion::default();
        assert_eq!(diffusion.run(&stalk, &restriction, damping, steps).len(), stalk.len());
        assert!(diffusion.capacity() >= stalk.len());
    });
    let mut diffusion = Diffusion::default();
    assert_eq!(diffusion.run(&[1.0, 3.0], &[1.0, 0.0], 0.5, u32::MAX), [0.0, 3.0]);
    assert_eq!(diffusion.run(&[1.0], &[2.0], 1.0, u32::MAX), [-1.0], "an odd number of sign changes");
}

#[test]
fn redundancy_handles_arbitrary_items_and_traits() {
    let access = || select(vec![Access::None, Access::Read, Access::Write, Access::Update]);
    let traits = (any::<bool>(), access(), access(), access()).prop_map(|(pure, input, output, param)| Traits {
        pure,
        input,
        output,
        param,
    });
    let items = || proptest::collection::vec(any_item(), 0..100);
    check(
        500,
        (items(), items(), proptest::collection::vec(traits, 1..5), any::<bool>()),
        |(one, other, traits, varies)| {
            let report = detect(&[&one, &other, &[], &one]).unwrap();
            assert_eq!(report.redundant_pairs.len(), report.total_redundant_ops);
            let mut pruner = Pruner::default();
            let mut kept = Vec::new();
            // Traits that vary between calls give a meaningless result, but no panic or hang.
            let calls = AtomicU64::new(0);
            let of = |op: u32| {
                let call = if varies { calls.fetch_add(1, Relaxed) as usize } else { 0 };
                traits[(op as usize).wrapping_add(call) % traits.len()]
            };
            for items in [&one, &other] {
                let pruned = pruner.prune(items, of, &mut kept).unwrap();
                let redundant = pruned.total_redundant_ops;
                assert_eq!(kept.len(), if redundant == 0 { 0 } else { items.len() - redundant });
            }
            assert!(pruner.retained_capacity() < 1 << 12);
            for (item, traits) in one.iter().zip(&traits) {
                let fed = traits.accesses(item).iter().any(|(_, access)| access.reads() && access.writes());
                assert!(!fed || traits.feeds_itself(item));
            }
        },
    );
}

#[test]
fn rings_handle_arbitrary_sizes() {
    let sizes = || prop_oneof![0..50usize, select(vec![0, 1, 1 << 20, usize::MAX - 1, usize::MAX])];
    check(200, (sizes(), sizes(), 0..100usize, any::<bool>()), |(capacity, limit, items, closes)| {
        let ring = Ring::new(capacity);
        assert_eq!(ring.capacity(), capacity.max(1));
        let pushed = ring.push(&vec![WorkItem::default(); items], Otherwise::Return);
        let accepted = items.min(ring.capacity());
        assert_eq!(pushed, if accepted == items { Pushed::All } else { Pushed::WouldBlock { accepted } });
        if closes {
            ring.close();
            assert_eq!(ring.push(&[WorkItem::default()], Otherwise::Wait), Pushed::Closed { accepted: 0 });
        }
        assert_eq!(ring.queued(), accepted);
        let mut into = Vec::new();
        match ring.drain(&mut into, limit, Otherwise::Return) {
            Drained::Items(drained) => assert_eq!(drained, accepted.min(limit)),
            Drained::WouldBlock => assert!(accepted == 0 && !closes),
            Drained::Closed => assert!(accepted == 0 && closes),
        }
    });
}

#[test]
fn tuners_handle_arbitrary_settings_and_costs() {
    let settings = [number(), number(), number(), number()].prop_map(|[width, jit, multiplier, batch]| Settings {
        width,
        jit,
        multiplier,
        batch,
    });
    let costs = proptest::collection::vec(proptest::option::of(float()), 0..50);
    check(500, (settings, number(), number(), any::<bool>(), costs), |(settings, widest, most, reports, costs)| {
        for mut tuner in [Tuner::new(settings, widest, most, reports), Tuner::settled(settings)] {
            for cost in &costs {
                match cost {
                    Some(cost) => tuner.measured(*cost),
                    None => tuner.not_measured(),
                }
                let _ = tuner.settings();
            }
            assert!(tuner.is_settled() || costs.len() < 20);
        }
        let measured: Vec<f64> = costs.iter().copied().flatten().collect();
        let best = tune::best(&[1, 2, 3], &measured, 9);
        assert!(best == 9 || (1..=3).contains(&best));
    });
}

/// Returns a report with the given numbers in all numeric fields.
fn report([number, other]: [u64; 2], kernel: usize) -> Report {
    let (time, now) = (Duration::new(number, 999_999_999), Instant::now());
    let later = now.checked_add(Duration::from_secs(other)).unwrap_or(now);
    let span = |from, until| Span { worker: Some(number as u32), kernel: Some(kernel), from, until };
    Report {
        items: number,
        reruns: other,
        cuts: number,
        pruned: other,
        interpreted: number,
        ops: vec![("op".into(), number)],
        kernels: vec![KernelStats { name: "op".into(), units: number, launches: other, time }],
        tenants: vec![Usage { items: number, failures: other, hits: number, time, slices: other, queued: 3 }],
        priority: Accounting { requeues: number, aged_promotions: other, oldest_age: number },
        telemetry: Some(Telemetry {
            spans: vec![span(now, later), span(later, now), span(now, later)],
            dropped_spans: number,
            latencies: Latencies::default(),
        }),
        fused: other,
        groups: number,
        counted: other,
        launches: number,
        cancelled: number.is_multiple_of(2),
        elapsed: time,
        device: time,
        ..Report::default()
    }
}

#[test]
fn reports_add_arbitrary_numbers() {
    let numbers = || ([long(), long()], prop_oneof![Just(0), Just(usize::MAX)]);
    check(500, (numbers(), numbers(), float()), |((numbers, kernel), (others, other), percent)| {
        let mut sum = report(numbers, kernel);
        let is_counted = numbers[0].checked_add(others[0]).is_some() && numbers[1].checked_add(others[1]).is_some();
        assert_eq!(sum.add(report(others, other)).is_ok(), is_counted);
        assert!(sum.to_json().starts_with('{'));
        let mut telemetry = sum.telemetry.unwrap();
        let _ = telemetry.occupancy();
        for _ in 0..70 {
            let latencies = telemetry.latencies.clone();
            telemetry.latencies.merge(&latencies);
        }
        let _ = telemetry.latencies.percentile(percent);
    });
}

/// Non-monotonic clock.
#[derive(Debug)]
struct Erratic {
    start: Instant,
    readings: AtomicU64,
}

impl Clock for Erratic {
    fn now(&self) -> Instant {
        let reading = self.readings.fetch_add(1, Relaxed);
        let ahead = Duration::from_secs(reading.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 3);
        self.start.checked_add(ahead).unwrap_or(self.start)
    }
}

fn ops() -> Vec<Op> {
    let module = text::parse(include_str!("../../../examples/megakernel/ops.vyre")).unwrap();
    validate::module(module)
        .unwrap()
        .into_inner()
        .programs
        .into_iter()
        .map(|program| Op::new(program).unwrap().pure())
        .collect()
}

/// Random configurations with an arena of fixed size.
fn configs() -> impl Strategy<Value = Config> {
    let bytes = prop_oneof![3 => Just(u64::MAX), 1 => long()];
    let time = proptest::option::weighted(0.3, long());
    let share = (number(), proptest::option::of(0..50usize), bytes, time)
        .prop_map(|(weight, slots, bytes, time)| Share { weight, slots, bytes, time: time.map(Duration::from_nanos) });
    let sizes = (select(vec![0, 5, 40, 1000, usize::MAX]), select(vec![0, 1, 7, 100, 1 << 16]));
    let orders = select(vec![Order::Measured, Order::Barriers, Order::Counters]);
    let journal = select(vec![None, Some(0), Some(3), Some(usize::MAX)]);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let numbers = (number(), number(), prop_oneof![4 => Just(0), 1 => 1..200_000u64, 1 => long()]);
    let tenants = proptest::collection::vec(share, 0..3);
    // Bounds the hit capacity by the memory of a test.
    let policies = policies().prop_map(|policy| Policy {
        min_hit_capacity: policy.min_hit_capacity % 5000,
        hit_capacity_multiplier: policy.hit_capacity_multiplier % 100,
        ..policy
    });
    (tenants, sizes, orders, journal, flags, numbers, policies).prop_map(
        |(
            tenants,
            (queue, slice),
            order,
            journal,
            (tune, telemetry, erratic),
            (fuel, worker_groups, budget),
            policy,
        )| {
            let mut config = Config {
                plain_words: 1000,
                atomic_words: 20,
                queue,
                tenants,
                slice,
                fuel: fuel % 2000,
                worker_groups,
                budget,
                policy,
                tune,
                order,
                telemetry,
                journal,
                ..Config::default()
            };
            if erratic {
                config.clock = Arc::new(Erratic { start: Instant::now(), readings: AtomicU64::new(0) });
            }
            config
        },
    )
}

/// A call of a session or a tenant.
#[derive(Clone, Debug)]
enum Call {
    Allocate(u32, Segment, u32),
    AllocateMany(u32, Segment, Vec<u32>),
    WriteMany(u32, Vec<usize>, Option<usize>),
    Free(u32, usize),
    FreeAny(u32, u32),
    Write(u32, usize, usize),
    Read(u32, usize),
    Memory(u32, u32),
    Submit(Vec<WorkItem>),
    Push(u32, Priority, Vec<WorkItem>),
    Drain,
    Budget(u64),
    Cancel,
    Checkpoint,
    Resume,
    Tenant(u32),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let segment = || select(vec![Segment::Plain, Segment::Atomic]);
    // Mostly valid ops and handles.
    let item = prop_oneof![
        1 => any_item(),
        5 => (1..11u32, 1..10u32, 1..10u32, number()).prop_map(|(op_handle, input_handle, output_handle, param)| {
            WorkItem { op_handle, input_handle, output_handle, param }
        })
    ];
    let items = || proptest::collection::vec(item.clone(), 0..30);
    let call = prop_oneof![
        (0..3u32, segment(), prop_oneof![0..40u32, number()])
            .prop_map(|(tenant, segment, words)| Call::Allocate(tenant, segment, words)),
        (0..3u32, segment(), proptest::collection::vec(prop_oneof![9 => 0..9u32, 1 => number()], 0..6))
            .prop_map(|(tenant, segment, lengths)| Call::AllocateMany(tenant, segment, lengths)),
        (0..3u32, proptest::collection::vec(0..20usize, 0..6), proptest::option::of(0..100usize))
            .prop_map(|(tenant, which, bytes)| Call::WriteMany(tenant, which, bytes)),
        (0..3u32, 0..12usize).prop_map(|(tenant, which)| Call::Free(tenant, which)),
        (0..3u32, number()).prop_map(|(tenant, handle)| Call::FreeAny(tenant, handle)),
        (0..3u32, 0..12usize, 0..100usize).prop_map(|(tenant, which, bytes)| Call::Write(tenant, which, bytes)),
        (0..3u32, 0..12usize).prop_map(|(tenant, which)| Call::Read(tenant, which)),
        (0..3u32, number()).prop_map(|(tenant, handle)| Call::Memory(tenant, handle)),
        items().prop_map(Call::Submit),
        items().prop_map(Call::Submit),
        items().prop_map(Call::Submit),
        (0..3u32, select(Priority::ALL.to_vec()), items())
            .prop_map(|(tenant, class, items)| Call::Push(tenant, class, items)),
        Just(Call::Drain),
        Just(Call::Drain),
        Just(Call::Drain),
        Just(Call::Drain),
        prop_oneof![3 => Just(0), 1 => long()].prop_map(Call::Budget),
        Just(Call::Cancel),
        Just(Call::Checkpoint),
        Just(Call::Resume),
        number().prop_map(Call::Tenant),
    ];
    proptest::collection::vec(call, 0..30)
}

/// Runs calls, and returns the number of executed items. Handles are from allocations, freed or not.
fn call_all(device: &Device, config: Config, calls: Vec<Call>) -> u64 {
    let mut executed = 0;
    let mut session = match Session::new(device, config) {
        Ok(session) => session,
        Err(Error::Driver(DriverError::OverBudget { .. } | DriverError::Unsupported { .. })) => return executed,
        Err(error) => panic!("{error}"),
    };
    for op in ops() {
        session.register(op);
    }
    let mut handles = vec![Handle(0)];
    for words in [1, 1, 3, 16, 40, 64, 64] {
        handles.extend(session.allocate(Segment::Plain, words));
    }
    handles.extend(session.allocate(Segment::Atomic, 7));
    let on =
        |session: &mut Session, id: u32, call: &mut dyn FnMut(&mut vyre_runtime::megakernel::Tenant<'_>)| match session
            .tenant(id)
        {
            Ok(mut tenant) => call(&mut tenant),
            Err(Error::NoSuchTenant { tenant, count }) => assert!(tenant == id && count <= id),
            Err(error) => panic!("{error}"),
        };
    for call in calls {
        match call {
            Call::Allocate(id, segment, words) => {
                on(&mut session, id, &mut |tenant| match tenant.allocate(segment, words) {
                    Ok(handle) => {
                        assert_eq!(tenant.read(handle).unwrap(), vec![0; words as usize]);
                        handles.push(handle);
                    }
                    Err(Error::Driver(DriverError::OutOfMemory { requested, available })) => {
                        assert!(requested > available);
                    }
                    Err(Error::OverQuota { requested, available, .. }) => assert!(requested > available),
                    Err(error) => panic!("{error}"),
                });
            }
            Call::AllocateMany(id, segment, lengths) => {
                on(&mut session, id, &mut |tenant| match tenant.allocate_many(segment, &lengths) {
                    Ok(new) => {
                        assert_eq!(new.len(), lengths.len());
                        for (handle, words) in new.iter().zip(&lengths) {
                            assert_eq!(tenant.read(*handle).unwrap(), vec![0; *words as usize]);
                        }
                        handles.extend(new);
                    }
                    Err(Error::Driver(DriverError::OutOfMemory { requested, available })) => {
                        assert!(requested > available);
                    }
                    Err(Error::OverQuota { requested, available, .. }) => assert!(requested > available),
                    Err(error) => panic!("{error}"),
                });
            }
            // The last write wins where a handle is repeated.
            Call::WriteMany(id, which, bytes) => {
                let chosen: Vec<Handle> = which.iter().map(|which| handles[which % handles.len()]).collect();
                on(&mut session, id, &mut |tenant| {
                    let before: Vec<_> = chosen.iter().map(|handle| tenant.read(*handle).ok()).collect();
                    let words: Option<usize> = before.iter().map(|words| Some(words.as_ref()?.len())).sum();
                    let given = bytes.unwrap_or(words.map_or(4, |words| 4 * words));
                    let contents: Vec<u8> = (0..given).map(|byte| byte as u8).collect();
                    let written = tenant.write_many(&chosen, &contents).is_ok();
                    assert_eq!(written, words.is_some_and(|words| 4 * words == given));
                    let mut rest = &contents[..];
                    for (position, handle) in chosen.iter().enumerate() {
                        let Some(old) = &before[position] else { continue };
                        let expected: Vec<u32> = match written {
                            true => {
                                let (own, after) = rest.split_at(4 * old.len());
                                rest = after;
                                bytemuck::pod_collect_to_vec(own)
                            }
                            false => old.clone(),
                        };
                        if !written || !chosen[position + 1..].contains(handle) {
                            assert_eq!(tenant.read(*handle).unwrap(), expected);
                        }
                    }
                });
            }
            Call::Free(id, which) => {
                let handle = handles[which % handles.len()];
                on(&mut session, id, &mut |tenant| {
                    let known = tenant.read(handle).is_ok();
                    assert_eq!(tenant.free(handle).is_ok(), known);
                    assert!(matches!(
                        tenant.read(handle),
                        Err(Error::NoSuchHandle { .. } | Error::ForeignHandle { .. })
                    ));
                });
            }
            Call::FreeAny(id, handle) => on(&mut session, id, &mut |tenant| _ = tenant.free(Handle(handle))),
            Call::Write(id, which, bytes) => {
                let handle = handles[which % handles.len()];
                on(&mut session, id, &mut |tenant| {
                    let length = tenant.read(handle).map(|words| 4 * words.len());
                    assert_eq!(
                        tenant.write(handle, &vec![1; bytes]).is_ok(),
                        length.is_ok_and(|length| length == bytes)
                    );
                });
            }
            Call::Read(id, which) => {
                let handle = handles[which % handles.len()];
                on(&mut session, id, &mut |tenant| _ = tenant.read(handle));
            }
            Call::Memory(id, handle) => on(&mut session, id, &mut |tenant| _ = tenant.memory(Handle(handle))),
            Call::Submit(items) => _ = session.submit(&items),
            Call::Push(id, class, items) => on(&mut session, id, &mut |tenant| {
                let producer = tenant.producer();
                let _ = producer.push(class, &items, Otherwise::Return);
                let _ = producer.queued();
            }),
            Call::Drain => match session.drain() {
                Ok(report) => {
                    assert!(report.interpreted + report.fused <= report.items);
                    assert!(report.to_json().starts_with('{'));
                    executed += report.ops.iter().map(|(_, items)| items).sum::<u64>();
                }
                Err(
                    Error::Driver(
                        DriverError::OverBudget { .. } | DriverError::OutOfMemory { .. } | DriverError::Overflow { .. },
                    )
                    | Error::Threshold { .. },
                ) => {}
                Err(error) => panic!("{error}"),
            },
            Call::Budget(bytes) => session.set_budget(bytes),
            Call::Cancel => session.canceller().cancel(),
            Call::Checkpoint => session.checkpoint().unwrap(),
            Call::Resume => match session.resume(device) {
                Ok(()) | Err(Error::Driver(DriverError::Unsupported { .. })) => {}
                // The policy or the budget prevents every launch.
                Err(
                    Error::Driver(
                        DriverError::OverBudget { .. } | DriverError::OutOfMemory { .. } | DriverError::Overflow { .. },
                    )
                    | Error::Threshold { .. },
                ) => return executed,
                Err(error) => panic!("{error}"),
            },
            Call::Tenant(id) => on(&mut session, id, &mut |_| {}),
        }
        let _ = (session.pending().len(), session.tuner().map(Tuner::settings));
    }
    session.finish_compiling();
    assert!(session.programs().len() < 1000);
    let queue = session.queue();
    let shutdown = session.shutdown();
    assert!(shutdown.error.is_some() || shutdown.report.cancelled || shutdown.left.is_empty());
    assert!(matches!(queue.push(&[WorkItem::default()], Otherwise::Wait), Pushed::Closed { accepted: 0 }));
    executed
}

#[test]
fn sessions_handle_arbitrary_calls() {
    let executed = AtomicU64::new(0);
    let call_all = |device: &Device, config, calls| _ = executed.fetch_add(call_all(device, config, calls), Relaxed);
    let oracle = Device::open(&Oracle::default()).unwrap();
    check(400, (configs(), calls()), |(config, calls)| call_all(&oracle, config, calls));
    let cpu = Device::open(&Cpu { threads: Some(2), ..Cpu::default() }).unwrap();
    check(40, (configs(), calls()), |(config, calls)| call_all(&cpu, config, calls));
    // A time limit of 0 stops every item that is seen running; the maximum stops none.
    for time_limit in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        let watched = |config| Config { watchdog: Some(time_limit), ..config };
        check(3, (configs(), calls()), |(config, calls)| call_all(&cpu, watched(config), calls));
    }
    println!("{executed:?} items were executed");
    assert!(executed.into_inner() > 1000);
}

#[test]
fn writes_of_another_length_name_both_lengths() {
    let device = Device::open(&Oracle::default()).unwrap();
    let config = Config { plain_words: 16, atomic_words: 16, slice: 16, queue: 16, ..Config::default() };
    let mut session = Session::new(&device, config).unwrap();
    let handle = session.allocate(Segment::Plain, 4).unwrap();
    for bytes in [0, 1, 3, 4, 12, 15, 17, 20] {
        let error = session.write(handle, &vec![1; bytes]).unwrap_err();
        let message = format!("{bytes} bytes cannot replace the 16 bytes of [u32; 4]");
        assert!(
            matches!(error, Error::Driver(DriverError::WriteLength { given, length: 4, .. }) if given == bytes as u64),
            "{error}"
        );
        assert_eq!(error.to_string(), message);
    }
    assert_eq!(session.read(handle).unwrap(), [0; 4]);
}

#[test]
fn sessions_of_extreme_sizes_are_refused_or_small() {
    let device = Device::open(&Oracle::default()).unwrap();
    let config = Config { plain_words: 0, atomic_words: 0, slice: 0, queue: 0, fuel: 0, ..Config::default() };
    let mut session = Session::new(&device, config.clone()).unwrap();
    assert!(matches!(
        session.allocate(Segment::Plain, 0),
        Err(Error::Driver(DriverError::OutOfMemory { requested: 4, available: 0 }))
    ));
    assert_eq!(session.drain().unwrap().items, 0);
    assert_eq!(session.submit(&[WorkItem { op_handle: u32::MAX, ..WorkItem::default() }]), Pushed::All);
    assert_eq!(session.drain().unwrap().failures.len(), 1);
    assert!(matches!(session.resume(&device), Err(Error::Driver(DriverError::Unsupported { .. }))));
    // An arena beyond the budget, whatever the memory of the device.
    for words in [u32::MAX, 1 << 31] {
        let large = Config { plain_words: words, atomic_words: words, budget: 1 << 20, ..config.clone() };
        assert!(matches!(Session::new(&device, large), Err(Error::Driver(DriverError::OverBudget { .. }))));
    }
    let recommended = Config::of(&device);
    assert!(recommended.slice > 0 && recommended.queue > 0);
}
