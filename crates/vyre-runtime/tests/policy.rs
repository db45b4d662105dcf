//! The launch policy: cases computed by hand, boundaries of every rule, and properties.

use std::num::NonZeroU32;
use std::thread;

use proptest::prelude::*;
use vyre_driver::Error as DriverError;
use vyre_runtime::Error;
use vyre_runtime::megakernel::policy::{
    CacheStats, Class, EVIDENCE_VERSION, Mode, Policy, Pressure, Recommendation, Request, Route, Sizing, Topology,
    cache_stats, reset_cache,
};

const POLICY: fn() -> Policy = Policy::default;

/// 300 items, on a device with 65 535 groups of up to 256 lanes.
fn request() -> Request {
    Request { max_compute_workgroups_per_dimension: 65_535, ..Request::direct(300, 64, 256) }
}

/// A request with a graph and a frontier of this density.
fn frontier(density: u16) -> Request {
    Request { graph_node_count: 1 << 20, frontier_density_bps: density, ..request() }
}

fn recommend(request: Request) -> Recommendation {
    POLICY().recommend(&request).unwrap()
}

fn topology(request: Request) -> Topology {
    let recommendation = recommend(request);
    assert_eq!(recommendation.topology, recommendation.topology_evidence.topology);
    recommendation.topology
}

#[test]
fn recommendations_equal_cases_computed_by_hand() {
    let recommendation = recommend(Request { expected_hits_per_item: 3, ..Request::direct(300, 64, 256) });
    assert_eq!(recommendation.hit_capacity, 1800);
    assert_eq!(recommendation.estimated_peak_device_bytes, 28_800);
    let short = Request { memory_pressure_bps: 10_000, requested_worker_groups: 128, ..request() };
    assert_eq!(recommend(short).worker_groups, 64);
    assert_eq!(recommend(Request { requested_worker_groups: 256, ..frontier(100) }).worker_groups, 51);
    assert_eq!(recommend(Request { requested_worker_groups: 256, ..frontier(1) }).worker_groups, 32);
    let large = Request {
        expected_hits_per_item: 4,
        resident_device_bytes: 1024,
        device_memory_budget_bytes: 65_536,
        ..Request::direct(1024, 64, 256)
    };
    let error = Error::from(DriverError::OutOfMemory { requested: 132_096, available: 65_536 });
    assert_eq!(POLICY().recommend(&large), Err(error.clone()));
    assert_eq!(error.code(), "D006");
}

#[test]
fn a_direct_request_leaves_the_rest_unknown() {
    let direct = Request::direct(7, 3, 64);
    assert_eq!([direct.queue_len, direct.requested_worker_groups, direct.max_workgroup_size_x], [7, 3, 64]);
    assert_eq!([direct.max_compute_workgroups_per_dimension, direct.max_compute_invocations_per_workgroup], [3, 64]);
    assert_eq!((direct.expected_hits_per_item, direct.previous_topology), (1, None));
    let others = [
        direct.requested_hit_capacity,
        direct.hot_opcode_count,
        direct.hot_window_count,
        direct.max_priority_age,
        direct.graph_node_count,
        direct.graph_edge_count,
    ];
    assert_eq!(others, [0; 6]);
    assert_eq!([direct.frontier_density_bps, direct.memory_pressure_bps], [0; 2]);
    assert_eq!([direct.requeue_count, direct.resident_device_bytes, direct.device_memory_budget_bytes], [0; 3]);
}

#[test]
fn density_is_inferred() {
    let density = |queue_len, nodes, given| {
        let request = Request { queue_len, graph_node_count: nodes, frontier_density_bps: given, ..request() };
        let evidence = recommend(request).topology_evidence;
        assert_eq!(evidence.frontier_density_bps, evidence.semiring_density_bps);
        evidence.frontier_density_bps
    };
    assert_eq!(density(25, 100, 0), 2500);
    assert_eq!(density(2, 3, 0), 6666);
    assert_eq!(density(200, 100, 0), 10_000);
    assert_eq!(density(1, u32::MAX, 0), 1);
    assert_eq!(density(1 << 30, 1 << 30, 0), 10_000);
    // Not inferred: given, no queue, or no graph.
    assert_eq!(density(25, 100, 7), 7);
    assert_eq!(density(0, 100, 0), 0);
    assert_eq!(density(25, 0, 0), 0);
}

#[test]
fn pressure_is_inferred() {
    let constrained = |resident, budget, given| {
        let request = Request {
            resident_device_bytes: resident,
            device_memory_budget_bytes: budget,
            memory_pressure_bps: given,
            requested_hit_capacity: 1,
            ..request()
        };
        topology(request) == Topology::MemoryConstrained
    };
    assert!(constrained(85_000_000, 100_000_000, 0));
    assert!(!constrained(84_999_999, 100_000_000, 0));
    assert!(!constrained(85_000_000, 100_000_000, 1));
    assert!(constrained(1, 100_000_000, 8500));
    assert!(!constrained(0, 100_000_000, 0));
    assert!(!constrained(85_000_000, 0, 0));
    // Products of more than 64 bits.
    assert!(constrained(u64::MAX / 20 * 19, u64::MAX, 0));
    assert!(!constrained(u64::MAX / 20 * 16, u64::MAX, 0));
    // Pressure saturates at 100 %.
    let full = Request { resident_device_bytes: u64::MAX - 16, device_memory_budget_bytes: 1, ..request() };
    let full = Request { requested_hit_capacity: 1, ..full };
    let error = Error::from(DriverError::OutOfMemory { requested: u64::MAX, available: 1 });
    assert_eq!(POLICY().recommend(&full), Err(error));
}

#[test]
fn hot_ops_and_windows_are_promoted() {
    let promoted = |ops, windows| {
        let recommendation = recommend(Request { hot_opcode_count: ops, hot_window_count: windows, ..request() });
        let evidence = recommendation.promotion_evidence;
        assert_eq!(evidence.needs_fused_window, recommendation.promote_hot_windows);
        assert_eq!(evidence.promote_hot_opcodes, recommendation.promote_hot_opcodes);
        assert_eq!(evidence.promote_hot_windows, recommendation.promote_hot_windows);
        assert_eq!(evidence.execution_mode, recommendation.execution_mode);
        assert_eq!([evidence.hot_opcode_count, evidence.hot_window_count], [ops, windows]);
        assert_eq!([evidence.hot_opcode_threshold, evidence.hot_window_threshold], [8, 4]);
        assert_eq!([evidence.queue_len, evidence.jit_queue_len_threshold], [300, 4096]);
        assert!(evidence.is_complete());
        (recommendation.promote_hot_opcodes, recommendation.promote_hot_windows, evidence.route)
    };
    assert_eq!(promoted(7, 3), (false, false, Route::Interpreter));
    assert_eq!(promoted(8, 3), (true, false, Route::OpcodeJit));
    assert_eq!(promoted(7, 4), (false, true, Route::WindowJit));
    assert_eq!(promoted(8, 4), (true, true, Route::OpcodeAndWindowJit));
}

#[test]
fn topologies_follow_the_thresholds() {
    let dense = Request { hot_opcode_count: 8, graph_edge_count: 65_536, ..frontier(4000) };
    assert_eq!(topology(dense), Topology::FusedDense);
    assert_eq!(topology(Request { hot_opcode_count: 0, hot_window_count: 4, ..dense }), Topology::FusedDense);
    assert_eq!(topology(Request { hot_opcode_count: 7, ..dense }), Topology::DenseFrontier);
    assert_eq!(topology(Request { graph_edge_count: 65_535, ..dense }), Topology::DenseFrontier);
    assert_eq!(topology(Request { graph_node_count: 0, ..dense }), Topology::DenseFrontier);
    assert_eq!(topology(Request { frontier_density_bps: 3999, ..dense }), Topology::HybridFrontier);
    assert_eq!(topology(Request { frontier_density_bps: 501, ..dense }), Topology::HybridFrontier);
    assert_eq!(topology(Request { frontier_density_bps: 500, ..dense }), Topology::SparseFrontier);
    assert_eq!(topology(Request { memory_pressure_bps: 8500, ..dense }), Topology::MemoryConstrained);
    assert_eq!(topology(Request { memory_pressure_bps: 8499, ..dense }), Topology::FusedDense);
    assert_eq!(topology(Request { memory_pressure_bps: 8500, queue_len: 0, ..dense }), Topology::Empty);
    // Unknown density.
    assert_eq!(topology(request()), Topology::SparseFrontier);
}

#[test]
fn topologies_have_hysteresis() {
    use Topology::{DenseFrontier, Empty, FusedDense, HybridFrontier, MemoryConstrained, SparseFrontier};
    let hot = Request { hot_opcode_count: 8, graph_edge_count: 65_536, ..frontier(0) };
    let cold = frontier(0);
    // Request, density, pressure, previous topology, and expected topology.
    let cases = [
        (cold, 8250, 600, MemoryConstrained, MemoryConstrained),
        (cold, 8249, 600, MemoryConstrained, HybridFrontier),
        (cold, 8250, 600, DenseFrontier, HybridFrontier),
        (cold, 0, 750, SparseFrontier, SparseFrontier),
        (cold, 0, 751, SparseFrontier, HybridFrontier),
        (cold, 0, 4000, SparseFrontier, DenseFrontier),
        (cold, 0, 250, HybridFrontier, HybridFrontier),
        (cold, 0, 249, HybridFrontier, SparseFrontier),
        (cold, 0, 4250, HybridFrontier, HybridFrontier),
        (cold, 0, 4251, HybridFrontier, DenseFrontier),
        (hot, 0, 4250, HybridFrontier, HybridFrontier),
        (hot, 0, 4251, HybridFrontier, FusedDense),
        (cold, 0, 3750, DenseFrontier, DenseFrontier),
        (cold, 0, 3749, DenseFrontier, HybridFrontier),
        (hot, 0, 3750, DenseFrontier, DenseFrontier),
        (hot, 0, 4000, DenseFrontier, FusedDense),
        (hot, 0, 3750, FusedDense, FusedDense),
        (hot, 0, 3749, FusedDense, HybridFrontier),
        (cold, 0, 3750, FusedDense, HybridFrontier),
        (cold, 0, 4000, FusedDense, DenseFrontier),
        (cold, 0, 300, DenseFrontier, SparseFrontier),
        (cold, 0, 600, Empty, HybridFrontier),
    ];
    for (request, pressure, density, previous, expected) in cases {
        let request = Request {
            memory_pressure_bps: pressure,
            frontier_density_bps: density,
            previous_topology: Some(previous),
            ..request
        };
        assert_eq!(topology(request), expected, "{previous:?} {density} {pressure}");
        // `Empty` and `MemoryConstrained` override hysteresis.
        assert_eq!(topology(Request { queue_len: 0, ..request }), Empty);
        assert_eq!(topology(Request { memory_pressure_bps: 8500, ..request }), MemoryConstrained);
    }
}

#[test]
fn hysteresis_bounds_saturate() {
    let policy = Policy { sparse_frontier_threshold_bps: 100, memory_pressure_threshold_bps: 100, ..POLICY() };
    let of = |pressure, density, previous| {
        let request = Request { memory_pressure_bps: pressure, previous_topology: Some(previous), ..frontier(density) };
        policy.recommend(&request).unwrap().topology
    };
    assert_eq!(of(1, 1, Topology::HybridFrontier), Topology::HybridFrontier);
    assert_eq!(of(0, 200, Topology::MemoryConstrained), Topology::MemoryConstrained);
    let all = Policy { sparse_frontier_threshold_bps: 10_000, dense_frontier_threshold_bps: 10_000, ..POLICY() };
    let request = Request { previous_topology: Some(Topology::SparseFrontier), ..frontier(10_250) };
    assert_eq!(all.recommend(&request).unwrap().topology, Topology::SparseFrontier);
}

#[test]
fn memory_pressure_sheds_workers() {
    let groups = |pressure, requested| {
        let short = Request { memory_pressure_bps: pressure, requested_worker_groups: requested, ..request() };
        recommend(short).worker_groups
    };
    assert_eq!(groups(8499, 128), 128);
    assert_eq!(groups(8500, 128), 96);
    assert_eq!(groups(9250, 128), 80);
    assert_eq!(groups(10_000, 128), 64);
    assert_eq!(groups(20_000, 128), 64);
    // 8501 bps shed 2500 + ⌊1 × 2500 ÷ 1500⌋ = 2501 bps, which are ⌊100 000 × 2501 ÷ 10 000⌋ groups.
    let many = Request { max_compute_workgroups_per_dimension: 100_003, ..request() };
    let many = Request { memory_pressure_bps: 8501, requested_worker_groups: 100_003, ..many };
    assert_eq!(recommend(many).worker_groups, 100_003 - 25_010);
    assert_eq!(groups(10_000, 2), 1);
    assert_eq!(groups(8500, 3), 3);
    assert_eq!(groups(10_000, 1), 1);
    // Held by hysteresis.
    let held = Request {
        memory_pressure_bps: 8300,
        requested_worker_groups: 128,
        previous_topology: Some(Topology::MemoryConstrained),
        ..request()
    };
    assert_eq!(recommend(held).worker_groups, 96);
    // Unknown pressure.
    let policy = Policy { memory_pressure_threshold_bps: 0, ..POLICY() };
    let recommendation = policy.recommend(&Request { requested_worker_groups: 128, ..request() }).unwrap();
    assert_eq!((recommendation.topology, recommendation.worker_groups), (Topology::MemoryConstrained, 128));
    // A threshold of 100 %.
    let policy = Policy { memory_pressure_threshold_bps: 10_000, ..POLICY() };
    let full = |pressure| Request { memory_pressure_bps: pressure, requested_worker_groups: 128, ..request() };
    assert_eq!(policy.recommend(&full(10_000)).unwrap().worker_groups, 96);
    assert_eq!(policy.recommend(&full(10_001)).unwrap().worker_groups, 64);
    // Device limits apply after shedding.
    let small = Request { max_compute_workgroups_per_dimension: 70, ..full(10_000) };
    assert_eq!(recommend(small).worker_groups, 64);
    assert_eq!(recommend(Request { max_compute_workgroups_per_dimension: 60, ..small }).worker_groups, 60);
}

#[test]
fn sparse_frontiers_have_fewer_workers() {
    let groups = |density, requested| {
        recommend(Request { requested_worker_groups: requested, ..frontier(density) }).worker_groups
    };
    assert_eq!(groups(500, 256), 256);
    assert_eq!(groups(499, 256), 255);
    assert_eq!(groups(501, 256), 256);
    assert_eq!(groups(62, 256), 32);
    assert_eq!(groups(65, 256), 33);
    assert_eq!(groups(1, 20), 20);
    assert_eq!(groups(1, 33), 32);
    assert_eq!(groups(1, 1), 1);
    // Without a graph, density does not scale workers.
    let without = Request { graph_node_count: 0, requested_worker_groups: 256, ..frontier(100) };
    assert_eq!(recommend(without).worker_groups, 256);
    // Held by hysteresis above the threshold, and a threshold of 0.
    let held = Request { previous_topology: Some(Topology::SparseFrontier), ..frontier(250) };
    let held = Request { requested_worker_groups: 256, ..held };
    let policy = Policy { sparse_frontier_threshold_bps: 0, ..POLICY() };
    for policy in [policy, Policy { sparse_frontier_threshold_bps: 1, ..policy }] {
        let recommendation = policy.recommend(&held).unwrap();
        assert_eq!((recommendation.topology, recommendation.worker_groups), (Topology::SparseFrontier, 256));
    }
}

#[test]
fn unrequested_workers_follow_device_limits() {
    let groups = |requested, per_dimension, invocations| {
        let request = Request {
            requested_worker_groups: requested,
            max_compute_workgroups_per_dimension: per_dimension,
            max_compute_invocations_per_workgroup: invocations,
            ..request()
        };
        recommend(request).worker_groups
    };
    assert_eq!(groups(64, 65_535, 256), 64);
    assert_eq!(groups(64, 63, 256), 63);
    assert_eq!(groups(0, 65_535, 256), 255);
    assert_eq!(groups(0, 255, 256), 1);
    assert_eq!(groups(0, 512, 256), 2);
    assert_eq!(groups(0, u32::MAX, 256), 1024);
    assert_eq!(groups(0, 512, 4095), 2);
    assert_eq!(groups(0, 512, 4096), 64);
    assert_eq!(groups(0, 65_535, 4096), 255);
    assert_eq!(groups(0, 63, 4096), 63);
    // Defaults are not shed.
    let short = Request { memory_pressure_bps: 10_000, requested_worker_groups: 0, ..request() };
    assert_eq!(recommend(short).worker_groups, 255);
}

#[test]
fn lanes_do_not_depend_on_groups() {
    let shape = |sizing, queue_len, groups, width, invocations| {
        let request = Request {
            max_compute_invocations_per_workgroup: invocations,
            max_compute_workgroups_per_dimension: u32::MAX,
            ..Request::direct(queue_len, groups, width)
        };
        // The default hit capacity of such queues would overflow.
        let request = Request { requested_hit_capacity: 1, ..request };
        let geometry = Policy { sizing, ..POLICY() }.recommend(&request).unwrap().geometry;
        (geometry.width, geometry.grid, geometry.slots)
    };
    let preferred = |width| Sizing::Preferred(NonZeroU32::new(width).unwrap());
    assert_eq!(shape(Sizing::Widest, 300, 64, 256, 1024), (256, 2, 512));
    assert_eq!(shape(Sizing::Widest, 300, 64, 256, 128), (128, 3, 384));
    assert_eq!(shape(Sizing::Widest, 300, 2, 100, 128), (100, 2, 300));
    assert_eq!(shape(Sizing::Widest, 0, 64, 256, 256), (256, 1, 256));
    assert_eq!(shape(preferred(64), 256, 64, 256, 256), (64, 4, 256));
    assert_eq!(shape(preferred(64), 257, 64, 256, 256), (64, 5, 320));
    assert_eq!(shape(preferred(64), 257, 3, 256, 256), (64, 3, 320));
    assert_eq!(shape(preferred(512), 257, 64, 256, 256), (256, 2, 512));
    assert_eq!(shape(preferred(1000), u32::MAX, u32::MAX, 1000, 1000), (1000, 4_294_968, 4_294_968_000));
}

#[test]
fn queue_pressure() {
    let pressure = |queue_len, groups| {
        let recommendation = recommend(Request { queue_len, requested_worker_groups: groups, ..request() });
        assert_eq!(recommendation.topology_evidence.pressure, recommendation.pressure);
        recommendation.pressure
    };
    assert_eq!(pressure(0, 2), Pressure::Empty);
    assert_eq!(pressure(511, 2), Pressure::Light);
    assert_eq!(pressure(512, 2), Pressure::Balanced);
    assert_eq!(pressure(2047, 2), Pressure::Balanced);
    assert_eq!(pressure(2048, 2), Pressure::Saturated);
    let again = Request { requeue_count: 1, ..request() };
    assert_eq!(recommend(Request { queue_len: 1, ..again }).pressure, Pressure::Saturated);
    assert_eq!(recommend(Request { queue_len: 0, ..again }).pressure, Pressure::Empty);
    let policy = Policy { saturated_waves: u32::MAX, ..POLICY() };
    let large = Request { queue_len: u32::MAX, requested_hit_capacity: 1, ..request() };
    assert_eq!(policy.recommend(&large).unwrap().pressure, Pressure::Balanced);
}

#[test]
fn hit_capacity() {
    let capacity = |request: Request| POLICY().recommend(&request).map(|recommendation| recommendation.hit_capacity);
    assert_eq!(capacity(Request { requested_hit_capacity: 5, ..request() }), Ok(5));
    assert_eq!(capacity(Request { queue_len: 0, ..request() }), Ok(1024));
    assert_eq!(capacity(Request { queue_len: 512, ..request() }), Ok(1024));
    assert_eq!(capacity(Request { queue_len: 513, ..request() }), Ok(1026));
    assert_eq!(capacity(Request { queue_len: 513, expected_hits_per_item: 0, ..request() }), Ok(1026));
    let hits = Request { queue_len: 1000, expected_hits_per_item: 3, ..request() };
    assert_eq!(capacity(hits), Ok(6000));
    assert_eq!(capacity(Request { memory_pressure_bps: 8499, ..hits }), Ok(6000));
    assert_eq!(capacity(Request { memory_pressure_bps: 8500, ..hits }), Ok(3000));
    // Memory pressure disables the multiplier for an empty queue, too; the minimum is not multiplied.
    assert_eq!(capacity(Request { queue_len: 0, memory_pressure_bps: 8500, ..hits }), Ok(1024));
    // Held at `MemoryConstrained` by hysteresis, below the pressure threshold.
    let held = Request { previous_topology: Some(Topology::MemoryConstrained), ..hits };
    assert_eq!(capacity(Request { memory_pressure_bps: 8499, ..held }), Ok(6000));

    let overflow = Err(Error::Driver(DriverError::Overflow { field: "hit capacity" }));
    assert_eq!(capacity(Request { queue_len: 1 << 31, ..request() }), overflow);
    assert_eq!(capacity(Request { queue_len: (1 << 31) - 1, ..request() }), Ok(u32::MAX - 1));
    assert_eq!(capacity(Request { queue_len: u32::MAX, expected_hits_per_item: u32::MAX, ..request() }), overflow);
    let policy = Policy { hit_capacity_multiplier: u32::MAX, ..POLICY() };
    let all = Request { queue_len: u32::MAX, expected_hits_per_item: u32::MAX, ..request() };
    assert_eq!(policy.recommend(&all).unwrap_err(), Error::Driver(DriverError::Overflow { field: "hit capacity" }));
    assert_eq!(capacity(Request { queue_len: u32::MAX, requested_hit_capacity: 1, ..request() }), Ok(1));
}

#[test]
fn the_peak_must_fit_the_budget() {
    let peak = |resident, budget| {
        let request = Request {
            requested_hit_capacity: 100,
            resident_device_bytes: resident,
            device_memory_budget_bytes: budget,
            ..request()
        };
        let recommendation = POLICY().recommend(&request)?;
        assert_eq!(recommendation.device_memory_budget_bytes, budget);
        let evidence = recommendation.topology_evidence;
        assert_eq!(evidence.resident_device_bytes, resident);
        assert_eq!(evidence.estimated_peak_device_bytes, recommendation.estimated_peak_device_bytes);
        Ok(recommendation.estimated_peak_device_bytes)
    };
    assert_eq!(peak(1000, 2600), Ok(2600));
    assert_eq!(peak(1000, 2599), Err(Error::Driver(DriverError::OutOfMemory { requested: 2600, available: 2599 })));
    assert_eq!(peak(1 << 40, 0), Ok((1 << 40) + 1600));
    assert_eq!(peak(u64::MAX - 1600, 0), Ok(u64::MAX));
    assert_eq!(peak(u64::MAX - 1599, 0), Err(Error::Driver(DriverError::Overflow { field: "peak device bytes" })));
}

#[test]
fn execution_modes_and_aging_start_at_their_thresholds() {
    let of = |request: Request| {
        let recommendation = recommend(request);
        (recommendation.execution_mode, recommendation.promotion_evidence.route)
    };
    assert_eq!(of(Request { queue_len: 4095, ..request() }), (Mode::Interpreter, Route::Interpreter));
    assert_eq!(of(Request { queue_len: 4096, ..request() }), (Mode::Jit, Route::QueueJit));
    assert_eq!(of(Request { hot_opcode_count: 8, ..request() }), (Mode::Jit, Route::OpcodeJit));
    let ages = |request: Request| recommend(request).age_priority_work;
    assert!(!ages(Request { max_priority_age: 31, ..request() }));
    assert!(ages(Request { max_priority_age: 32, ..request() }));
    assert!(ages(Request { requeue_count: 1, ..request() }));
}

#[test]
fn incomplete_evidence_is_detected() {
    let classes = [
        (Request { queue_len: 0, ..request() }, Class::Empty),
        (Request { memory_pressure_bps: 9000, ..request() }, Class::MemoryConstrained),
        (frontier(500), Class::Sparse),
        (frontier(501), Class::Hybrid),
        (frontier(10_000), Class::Dense),
        (Request { hot_opcode_count: 8, graph_edge_count: 65_536, ..frontier(4000) }, Class::Dense),
    ];
    for (request, class) in classes {
        let Recommendation { topology_evidence, promotion_evidence, .. } = recommend(request);
        assert_eq!(topology_evidence.class, class);
        assert_eq!([topology_evidence.schema_version, promotion_evidence.schema_version], [EVIDENCE_VERSION; 2]);
        assert!(topology_evidence.oracle_parity_required && promotion_evidence.oracle_parity_required);
        assert!(topology_evidence.is_complete() && promotion_evidence.is_complete());
    }
    assert_eq!(EVIDENCE_VERSION, 1);

    let whole = recommend(frontier(10_000)).topology_evidence;
    let mut broken = [whole; 4];
    broken[0].schema_version = 2;
    broken[1].frontier_density_bps = 10_001;
    broken[2].semiring_density_bps = 10_001;
    broken[3].oracle_parity_required = false;
    assert!(broken.iter().all(|evidence| !evidence.is_complete()));
    assert!(!recommend(frontier(10_001)).topology_evidence.is_complete());

    let whole = recommend(request()).promotion_evidence;
    let mut broken = [whole; 6];
    broken[0].schema_version = 0;
    broken[1].jit_queue_len_threshold = 0;
    broken[2].hot_opcode_threshold = 0;
    broken[3].hot_window_threshold = 0;
    broken[4].oracle_parity_required = false;
    broken[5].needs_fused_window = true;
    assert!(broken.iter().all(|evidence| !evidence.is_complete()));
    let policy = Policy { hot_opcode_threshold: 0, ..POLICY() };
    assert!(!policy.recommend(&request()).unwrap().promotion_evidence.is_complete());
}

#[test]
fn invalid_limits_and_thresholds_are_refused() {
    let error = |policy: Policy, request: Request| policy.recommend(&request).unwrap_err();
    for (broken, field) in [
        (Request { max_workgroup_size_x: 0, ..request() }, "max_workgroup_size_x"),
        (Request { max_compute_workgroups_per_dimension: 0, ..request() }, "max_compute_workgroups_per_dimension"),
        (Request { max_compute_invocations_per_workgroup: 0, ..request() }, "max_compute_invocations_per_workgroup"),
    ] {
        let error = error(POLICY(), broken);
        assert_eq!(error, Error::ZeroLimit { field });
        assert_eq!(error.code(), "D024");
    }
    for (policy, field) in [
        (Policy { sparse_frontier_threshold_bps: 10_001, ..POLICY() }, "the sparse frontier threshold"),
        (Policy { dense_frontier_threshold_bps: 10_001, ..POLICY() }, "the dense frontier threshold"),
        (Policy { memory_pressure_threshold_bps: 10_001, ..POLICY() }, "the memory pressure threshold"),
    ] {
        let error = error(policy, request());
        assert_eq!(error, Error::Threshold { field, bps: 10_001 });
        assert_eq!(error.code(), "D025");
    }
}

fn stats(entries: usize, hits: u64, misses: u64) -> CacheStats {
    CacheStats { entries, hits, misses }
}

/// A distinct request for each number.
fn numbered(number: u32) -> Request {
    Request { queue_len: number, ..request() }
}

#[test]
fn repeated_requests_hit_the_cache() {
    reset_cache();
    let first = recommend(numbered(1));
    assert_eq!(cache_stats(), stats(1, 0, 1));
    assert_eq!(recommend(numbered(1)), first);
    assert_eq!(cache_stats(), stats(1, 1, 1));
    // Another policy is another key.
    let policy = Policy { min_hit_capacity: 1, ..POLICY() };
    assert_eq!(policy.recommend(&numbered(1)).unwrap().hit_capacity, 2);
    assert_eq!(recommend(numbered(1)), first);
    assert_eq!(cache_stats(), stats(2, 2, 2));
    // Requests with a previous topology bypass the cache.
    let held = Request { previous_topology: Some(Topology::Empty), ..numbered(1) };
    assert_eq!(recommend(held), first);
    assert_eq!(cache_stats(), stats(2, 2, 2));
    // Errors are not cached.
    for misses in [3, 4] {
        assert!(POLICY().recommend(&Request { max_workgroup_size_x: 0, ..numbered(1) }).is_err());
        assert_eq!(cache_stats(), stats(2, 2, misses));
    }
    // Caches are thread-local.
    thread::spawn(|| assert_eq!(cache_stats(), stats(0, 0, 0))).join().unwrap();
    reset_cache();
    assert_eq!(cache_stats(), stats(0, 0, 0));
    assert_eq!(recommend(numbered(1)), first);
    assert_eq!(cache_stats(), stats(1, 0, 1));
}

#[test]
fn every_field_is_part_of_the_cache_key() {
    let base = Request { device_memory_budget_bytes: 1 << 40, ..request() };
    let requests = [
        Request { queue_len: 301, ..base },
        Request { requested_worker_groups: 65, ..base },
        Request { max_workgroup_size_x: 257, ..base },
        Request { max_compute_workgroups_per_dimension: 65_534, ..base },
        Request { max_compute_invocations_per_workgroup: 257, ..base },
        Request { requested_hit_capacity: 1, ..base },
        Request { expected_hits_per_item: 2, ..base },
        Request { hot_opcode_count: 1, ..base },
        Request { hot_window_count: 1, ..base },
        Request { max_priority_age: 1, ..base },
        Request { graph_node_count: 1, ..base },
        Request { graph_edge_count: 1, ..base },
        Request { requeue_count: 1, ..base },
        Request { frontier_density_bps: 1, ..base },
        Request { memory_pressure_bps: 1, ..base },
        Request { resident_device_bytes: 1, ..base },
        Request { device_memory_budget_bytes: 1 << 41, ..base },
    ];
    let policies = [
        Policy { min_hit_capacity: 1, ..POLICY() },
        Policy { hit_capacity_multiplier: 1, ..POLICY() },
        Policy { saturated_waves: 1, ..POLICY() },
        Policy { hot_opcode_threshold: 1, ..POLICY() },
        Policy { hot_window_threshold: 1, ..POLICY() },
        Policy { jit_queue_len_threshold: 1, ..POLICY() },
        Policy { priority_age_threshold: 1, ..POLICY() },
        Policy { sparse_frontier_threshold_bps: 1, ..POLICY() },
        Policy { dense_frontier_threshold_bps: 1, ..POLICY() },
        Policy { memory_pressure_threshold_bps: 1, ..POLICY() },
        Policy { fusion_edge_threshold: 1, ..POLICY() },
        Policy { scratch_bytes_per_hit: 1, ..POLICY() },
        Policy { sizing: Sizing::Preferred(NonZeroU32::MIN), ..POLICY() },
    ];
    let keys = requests.map(|request| (POLICY(), request)).into_iter().chain(policies.map(|policy| (policy, base)));
    reset_cache();
    recommend(base);
    for (misses, (policy, request)) in (2..).zip(keys) {
        policy.recommend(&request).unwrap();
        assert_eq!(cache_stats(), stats(misses as usize, 0, misses));
    }
}

#[test]
fn hash_collisions_are_resolved() {
    // Enough requests of each kind that some collide.
    let kinds: [fn(u16) -> Request; 8] = [
        |number| Request { queue_len: number.into(), ..request() },
        |number| Request { requested_worker_groups: number.into(), ..request() },
        |number| Request { hot_window_count: number.into(), ..request() },
        |number| Request { max_priority_age: number.into(), ..request() },
        |number| Request { requeue_count: number.into(), ..request() },
        |number| Request { frontier_density_bps: number, ..request() },
        |number| Request { memory_pressure_bps: number, ..request() },
        |number| Request { resident_device_bytes: number.into(), ..request() },
    ];
    for kind in kinds {
        reset_cache();
        for number in 0..128 {
            recommend(kind(number));
        }
        assert_eq!(cache_stats(), stats(128, 0, 128));
    }
}

#[test]
fn the_least_recently_used_entry_is_evicted() {
    reset_cache();
    let is_known = |number| {
        let before = cache_stats().hits;
        recommend(numbered(number));
        cache_stats().hits > before
    };
    assert!((0..128).all(|number| !is_known(number)));
    assert_eq!(cache_stats().entries, 128);
    assert!((0..128).all(is_known));
    // The first entry was refreshed, so the second is evicted.
    assert!(is_known(0));
    assert!(!is_known(128));
    assert_eq!(cache_stats().entries, 128);
    assert!(is_known(0) && is_known(128) && is_known(2));
    assert!(!is_known(1));
    assert!(!is_known(3));
    // The most recent entry is not evicted.
    assert!((1000..2000).all(|number| !is_known(number) && is_known(number)));
    assert!((2000 - 128..2000).all(is_known));
    assert_eq!(cache_stats().entries, 128);
}

prop_compose! {
    fn device()(width in 1u32..2048, per_dimension in 1u32..70_000, invocations in 1u32..8192) -> Request {
        Request {
            max_compute_workgroups_per_dimension: per_dimension,
            max_compute_invocations_per_workgroup: invocations,
            ..Request::direct(0, 0, width)
        }
    }
}

prop_compose! {
    fn requests()(
        device in device(),
        queue in prop_oneof![0u32..10_000, any::<u32>()],
        groups in prop_oneof![0u32..600, any::<u32>()],
        [hits, ops, windows, age] in proptest::array::uniform4(0u32..40),
        [capacity, nodes, edges] in proptest::array::uniform3(prop_oneof![Just(0u32), 1u32..100_000]),
        requeued in 0u64..2,
        [density, pressure] in proptest::array::uniform2(prop_oneof![Just(0u16), 0u16..=10_000]),
        resident in prop_oneof![Just(0u64), 0u64..1 << 40],
        budget in prop_oneof![Just(0u64), (1u64 << 30)..1 << 42],
        previous in proptest::option::of(proptest::sample::select(vec![
            Topology::Empty, Topology::MemoryConstrained, Topology::SparseFrontier, Topology::HybridFrontier,
            Topology::DenseFrontier, Topology::FusedDense,
        ])),
    ) -> Request {
        Request {
            queue_len: queue,
            requested_worker_groups: groups,
            requested_hit_capacity: capacity,
            expected_hits_per_item: hits,
            hot_opcode_count: ops,
            hot_window_count: windows,
            max_priority_age: age,
            graph_node_count: nodes,
            graph_edge_count: edges,
            requeue_count: requeued,
            frontier_density_bps: density,
            memory_pressure_bps: pressure,
            resident_device_bytes: resident,
            device_memory_budget_bytes: budget,
            previous_topology: previous,
            ..device
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn recommendations_fit_the_device_and_the_queue(request in requests(), preferred in 0u32..512) {
        let sizing = NonZeroU32::new(preferred).map_or(Sizing::Widest, Sizing::Preferred);
        let policy = Policy { sizing, ..POLICY() };
        let Ok(found) = policy.recommend(&request) else { return Ok(()) };
        let Recommendation { geometry, worker_groups, .. } = found;
        let widest = request.max_workgroup_size_x.min(request.max_compute_invocations_per_workgroup);
        prop_assert!((1..=widest).contains(&geometry.width));
        prop_assert!((1..=request.max_compute_workgroups_per_dimension).contains(&worker_groups));
        prop_assert!((1..=worker_groups).contains(&geometry.grid));
        if request.requested_worker_groups > 0 {
            prop_assert!(worker_groups <= request.requested_worker_groups);
            prop_assert!(u64::from(worker_groups) >= u64::from(
                request.requested_worker_groups.div_ceil(2).min(request.max_compute_workgroups_per_dimension).min(32)));
        }
        // The slots are the queue length rounded up to whole groups. All groups are launched, unless workers have to loop.
        let width = u64::from(geometry.width);
        let queue = u64::from(request.queue_len.max(1));
        prop_assert!(geometry.slots % width == 0 && geometry.slots >= queue && geometry.slots - queue < width);
        prop_assert!(u64::from(geometry.grid) * width == geometry.slots || geometry.grid == worker_groups);
        let scratch = u64::from(found.hit_capacity) * 16;
        prop_assert_eq!(found.estimated_peak_device_bytes, request.resident_device_bytes + scratch);
        let budget = request.device_memory_budget_bytes;
        prop_assert!(budget == 0 || found.estimated_peak_device_bytes <= budget);
        prop_assert!(found.topology_evidence.is_complete() && found.promotion_evidence.is_complete());
        prop_assert_eq!(found.execution_mode == Mode::Interpreter, found.promotion_evidence.route == Route::Interpreter);
        prop_assert_eq!(found.topology == Topology::Empty, request.queue_len == 0);
    }

    #[test]
    fn recommendations_are_monotonic(request in requests(), other in any::<u32>(), pressures in any::<[u16; 2]>()) {
        let recommend = |request: Request| POLICY().recommend(&request).ok();
        let request = Request { previous_topology: None, ..request };
        // Higher memory pressure gives no more workers and no more hits.
        let [low, high] = [pressures[0].min(pressures[1]), pressures[0].max(pressures[1])].map(|bps| bps % 10_001);
        let (low, high) = (low.min(high).max(8500), high.max(low).max(8500));
        let under = |bps| recommend(Request { memory_pressure_bps: bps, ..request });
        if let (Some(low), Some(high)) = (under(low), under(high)) {
            prop_assert!(high.worker_groups <= low.worker_groups && high.hit_capacity <= low.hit_capacity);
        }
        // A longer queue gives no smaller hit capacity, and no smaller grid for the same topology.
        let longer = Request { queue_len: request.queue_len.max(other), ..request };
        if let (Some(short), Some(long)) = (recommend(request), recommend(longer)) {
            prop_assert!(long.hit_capacity >= short.hit_capacity);
            if long.worker_groups == short.worker_groups {
                prop_assert!(long.geometry.grid >= short.geometry.grid);
            }
            prop_assert!(long.execution_mode == Mode::Jit || short.execution_mode == Mode::Interpreter);
        }
        // More requested groups give no fewer workers.
        let wider = Request { requested_worker_groups: request.requested_worker_groups.max(other), ..request };
        if let (Some(few), Some(many)) = (recommend(request), recommend(wider)) && request.requested_worker_groups > 0 {
            prop_assert!(many.worker_groups >= few.worker_groups);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    #[test]
    fn cached_recommendations_equal_computed_ones(requests in proptest::collection::vec(requests(), 1..300)) {
        let requests = requests.into_iter().map(|request| Request { previous_topology: None, ..request });
        // Computed with an empty cache.
        let expected: Vec<_> = requests
            .map(|request| {
                reset_cache();
                (request, POLICY().recommend(&request))
            })
            .collect();
        reset_cache();
        for (request, expected) in expected.iter().chain(&expected[expected.len() / 2..]).chain(&expected) {
            prop_assert_eq!(&POLICY().recommend(request), expected);
            prop_assert_eq!(&POLICY().recommend(request), expected);
        }
        prop_assert!(cache_stats().entries <= 128);
    }
}
