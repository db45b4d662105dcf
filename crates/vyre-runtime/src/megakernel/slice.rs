//! Planning of a slice: handle resolution, pruning, hazards, windows and assignment to kernels.

use std::time::Instant;

use tracing::field::{Empty, debug};
use vyre_driver::Error as DriverError;
use vyre_driver::plan::frontier::Wave;

use super::arena::{Arena, Part};
use super::item::{Traits, WorkItem};
use super::kernel::{Body, Worker};
use super::kernels::{Key, Runs};
use super::launch::Launching;
use super::op::Op;
use super::policy::{Mode, Recommendation, Request};
use super::report::{Failure, Report};
use super::session::{Order, Session, allocated, largest_class};
use super::telemetry::Span;
use super::window::Unit;
use crate::Error;

/// Cost and benefit of redundancy pruning, as exponential moving averages of measurements.
#[derive(Default)]
pub(super) struct PruningEstimate {
    slices: u64,
    /// Nanoseconds to check an item for redundancy.
    pruning_ns: f64,
    /// Nanoseconds to execute an item.
    executing_ns: f64,
    /// Fraction of redundant items.
    pruned_part: f64,
}

impl PruningEstimate {
    /// Returns true if the next slice is to be pruned. Every 16th slice explores, whatever the estimate.
    fn pays(&self) -> bool {
        self.slices.is_multiple_of(16) || self.pruned_part * self.executing_ns > self.pruning_ns
    }
}

/// Nanoseconds per item of slices with dependencies, for each synchronization; 0 before the first measurement.
#[derive(Default)]
pub(super) struct OrderEstimate {
    slices: u64,
    barriers_ns: f64,
    counters_ns: f64,
}

impl OrderEstimate {
    /// Returns true if the next slice is to use dependency counters instead of barriers. Every 16th slice explores the slower one.
    fn do_counters_pay(&mut self) -> bool {
        self.slices += 1;
        (self.counters_ns < self.barriers_ns) != self.slices.is_multiple_of(16)
    }
}

fn update(known: &mut f64, measured: f64) {
    *known = if *known == 0.0 { measured } else { 0.75 * *known + 0.25 * measured };
}

/// An item with resolved handles.
#[derive(Clone, Copy)]
pub(super) struct Resolved {
    pub(super) item: WorkItem,
    /// Position in the slice.
    pub(super) position: u32,
    /// 2 × number of the op, plus 1 if it has more than [`FEW`] elements.
    pub(super) bucket: u32,
    pub(super) operands: [WordRange; 3],
}

/// Words of a segment.
#[derive(Clone, Copy, Default)]
pub(super) struct WordRange {
    pub(super) first: u32,
    pub(super) length: u32,
}

/// Maximum elements of an item that is executed by a single invocation.
pub(super) const FEW: u32 = 8;

/// Executed items from which an op is hot.
const HOT: u64 = 64;

impl Resolved {
    pub(super) fn op<'o>(&self, ops: &'o [Op]) -> &'o Op {
        &ops[self.op_number() as usize]
    }

    pub(super) fn op_number(&self) -> u32 {
        self.bucket / 2
    }

    /// Returns one of its handles.
    pub(super) fn handle(&self, handle: usize) -> u32 {
        [self.item.input_handle, self.item.output_handle, self.item.param][handle]
    }

    /// Returns the length of one of its operands.
    pub(super) fn length(&self, handle: usize) -> u32 {
        self.operands[handle].length
    }
}

/// Resolves the handles of an item, and returns its bucket and operands.
#[inline]
fn resolve_operands(
    item: WorkItem,
    tenant: u32,
    ops: &[Op],
    arena: &Arena,
    is_watched: bool,
) -> Result<(u32, [WordRange; 3]), Failure> {
    let number = item.op_handle.wrapping_sub(1);
    let op = ops.get(number as usize).ok_or(Failure::UnknownOp)?;
    if op.refusal.is_some() {
        return Err(Failure::Refused);
    }
    let handles = [item.input_handle, item.output_handle, item.param];
    let mut operands = [WordRange::default(); 3];
    for ((operand, view), handle) in operands.iter_mut().zip(&op.views).zip(handles) {
        let Some(view) = view else { continue };
        match arena.get(handle) {
            Some(part) if part.owner != tenant => return Err(Failure::ForeignHandle),
            Some(Part { segment, first, length, .. }) if segment == view.segment => {
                *operand = WordRange { first, length };
            }
            _ => return Err(Failure::UnknownHandle),
        }
    }
    if !op.elementwise {
        // Operands that alias and are written would be a race between invocations.
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            if let (Some(a), Some(b)) = (&op.views[one], &op.views[other])
                && handles[one] == handles[other]
                && (a.writes || b.writes)
            {
                return Err(Failure::Overlap);
            }
        }
    }
    // An invocation that does not terminate blocks the items of its whole workgroup, so with a watchdog, items that may loop forever get a
    // workgroup each.
    let many = operands[op.body.extent.handle].length > FEW || (is_watched && op.body.facts.faults);
    Ok((2 * number + u32::from(many), operands))
}

/// Formats the evidence of the topology.
fn why_topology(recommendation: &Recommendation) -> String {
    let evidence = &recommendation.topology_evidence;
    let density = f64::from(evidence.frontier_density_bps) / 100.0;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let budget = match recommendation.device_memory_budget_bytes {
        0 => String::new(),
        budget => format!(" of {:.1}", mib(budget)),
    };
    format!("density {density:.2} %, memory {:.1}{budget} MiB", mib(evidence.estimated_peak_device_bytes))
}

impl Session {
    /// Plans and executes the current cut of the pending items.
    pub(super) fn slice(&mut self, report: &mut Report) -> Result<(), Error> {
        self.fits_budget()?;
        let (start, begun) = (self.config.clock.now(), Instant::now());
        let span = tracing::info_span!(
            "slice",
            items = Empty,
            topology = Empty,
            topology_why = Empty,
            mode = Empty,
            mode_why = Empty
        );
        let span = span.entered();
        let planning = tracing::info_span!("plan").entered();
        self.lacks_room_for_hits = false;
        if self.are_faults_unread {
            self.take_unread(report)?;
        }
        if let Some(watch) = &self.watch {
            watch.reset()?;
        }
        let mut resolved = std::mem::take(&mut self.resolved);
        self.resolve(&mut resolved, report);
        if self.pruning.pays() {
            report.pruned += self.prune(&mut resolved)?;
        }
        self.mix.clear();
        self.mix.resize(2 * self.ops.len(), 0);
        resolved.iter().for_each(|item| self.mix[item.bucket as usize] += 1);
        self.hazards.find(&resolved, &self.ops, self.arena.slots());
        let threshold = self.config.policy.hot_window_threshold;
        self.windows.find(&resolved, &self.ops, self.hazards.dependencies(), threshold);
        for window in self.windows.replaced.drain(..) {
            self.kernels.forget_window(window);
        }
        let recommendation = self.recommend(resolved.len(), report)?;
        report.recommendation = Some(recommendation);
        if !span.is_disabled() {
            span.record("items", resolved.len()).record("topology", debug(recommendation.topology));
            span.record("topology_why", why_topology(&recommendation));
            span.record("mode", debug(recommendation.execution_mode));
            span.record("mode_why", recommendation.promotion_evidence.describe());
        }
        let compiles = recommendation.execution_mode == Mode::Jit;
        let width = recommendation.geometry.width;
        if compiles && recommendation.promote_hot_windows {
            for (number, window) in (0..).zip(&mut self.windows.fused) {
                let key = Key::new(Runs::Window(number), &window.body, window.many, width);
                window.ready = self.kernels.request(key, || vec![(number, window.body.clone())]);
            }
        }
        self.windows.merge(self.hazards.dependencies(), compiles && recommendation.promote_hot_windows);

        let buckets = self.buckets(compiles, width)?;
        let launching = Launching { buckets, width, groups: recommendation.worker_groups };
        let ordering = self.config.clock.now();
        drop(planning);
        if let Some(telemetry) = &mut report.telemetry {
            telemetry.span(Span { worker: None, kernel: None, from: begun, until: Instant::now() });
        }
        let counted = self.ready_queue_kernel(&resolved, width);
        if let Some(key) = counted {
            self.fill_counted(key, &resolved);
        } else if self.windows.dependencies.is_empty() && self.config.budget == 0 {
            // Without dependencies and budget, the plan is a single group.
            self.group(self.windows.units.clone(), &resolved, &launching, report)?;
        } else {
            let units = self.windows.units.iter();
            let waves: Vec<Wave> = units.map(|unit| self.wave(&launching, &resolved, unit)).collect();
            let room = self.room_for_columns(recommendation.hit_capacity);
            let plan = self.planner.plan(&waves, &self.windows.dependencies, 0, room, 0)?;
            for group in plan.barriers.groups() {
                let units = group.iter().map(|&wave| self.windows.units[wave]).collect();
                self.group(units, &resolved, &launching, report)?;
                if self.config.budget != 0 {
                    // The budget has room for the columns of one group only.
                    self.run(&launching, false, report)?;
                }
            }
        }
        self.run(&launching, true, report)?;
        let now = self.config.clock.now();
        let each = |since: Instant| now.duration_since(since).as_nanos() as f64 / resolved.len().max(1) as f64;
        if !self.windows.dependencies.is_empty() {
            let order = &mut self.order;
            let known = if counted.is_some() { &mut order.counters_ns } else { &mut order.barriers_ns };
            update(known, each(ordering));
        }
        self.pruning.slices += 1;
        update(&mut self.pruning.executing_ns, each(start));
        self.resolved = resolved;
        Ok(())
    }

    /// Appends a group of independent units to the batch.
    fn group(
        &mut self,
        mut units: Vec<Unit>,
        items: &[Resolved],
        launching: &Launching,
        report: &mut Report,
    ) -> Result<(), Error> {
        report.groups += 1;
        let mut reporting = Vec::new();
        if self.reports() {
            reporting = units.extract_if(.., |unit| items[unit.head as usize].op(&self.ops).reports).collect();
        }
        self.fill(launching, items, &units);
        if !reporting.is_empty() {
            // A reporting unit may have to be rerun, so it gets a batch of its own, before later units overwrite its inputs.
            self.run(launching, false, report)?;
            self.fill(launching, items, &reporting);
            self.batch.reports = true;
            self.run(launching, false, report)?;
        }
        Ok(())
    }

    /// Returns true if the slice has items of reporting ops.
    fn reports(&self) -> bool {
        self.ops.iter().zip(self.mix.chunks(2)).any(|(op, mix)| op.reports && mix != [0; 2])
    }

    /// Prunes redundant items, and returns their number.
    fn prune(&mut self, resolved: &mut Vec<Resolved>) -> Result<u64, Error> {
        let start = self.config.clock.now();
        let items: Vec<WorkItem> = resolved.iter().map(|item| item.item).collect();
        let traits: Vec<Traits> = self.ops.iter().map(Op::traits).collect();
        let mut kept = Vec::new();
        let pruned = self.pruner.prune(&items, |op| traits[op as usize - 1], &mut kept)?;
        let mut left_out = pruned.redundant_pairs.iter().map(|pair| pair.late).peekable();
        if !pruned.redundant_pairs.is_empty() {
            let number = |index: usize| self.done + u64::from(resolved[index].position);
            let pairs = pruned.redundant_pairs.iter().map(|pair| (number(pair.early), number(pair.late)));
            self.duplicates.extend(pairs);
            self.duplicates.sort_unstable();
            let mut index = 0;
            resolved.retain(|item| {
                let stays = left_out.next_if_eq(&index).is_none();
                if !stays {
                    self.leave_out(item.position as usize);
                }
                index += 1;
                stays
            });
        }
        let count = items.len().max(1) as f64;
        let time = self.config.clock.now().duration_since(start);
        update(&mut self.pruning.pruning_ns, time.as_nanos() as f64 / count);
        update(&mut self.pruning.pruned_part, pruned.redundant_pairs.len() as f64 / count);
        Ok(pruned.redundant_pairs.len() as u64)
    }

    /// Replaces an item that has no effects by a no-op, also in the journal.
    pub(super) fn leave_out(&mut self, position: usize) {
        self.pending[position] = WorkItem::default();
        if let Some(journal) = &mut self.journal {
            journal.leave_out(position);
        }
    }

    /// Requests a recommendation of the policy.
    fn recommend(&mut self, items: usize, report: &Report) -> Result<Recommendation, Error> {
        let capabilities = self.device.capabilities();
        let (mut hot, mut reporting) = (0, 0);
        for ((op, runs), mix) in self.ops.iter().zip(&self.runs).zip(self.mix.chunks(2)) {
            hot += if *runs >= HOT { mix[0] + mix[1] } else { 0 };
            reporting += if op.reports { mix[0] + mix[1] } else { 0 };
        }
        let request = Request {
            requested_worker_groups: self.config.worker_groups,
            max_compute_workgroups_per_dimension: u32::from(u16::MAX),
            max_compute_invocations_per_workgroup: capabilities.max_workgroup_invocations,
            expected_hits_per_item: self.total_hits.div_ceil(self.reporting_items.max(1)).clamp(1, 1 << 10) as u32,
            hot_opcode_count: hot,
            hot_window_count: self.windows.hot,
            max_priority_age: u32::try_from(self.accounting.oldest_age).unwrap_or(u32::MAX),
            // Includes requeues of earlier, failed drains.
            requeue_count: self.accounting.requeues.saturating_add(report.priority.requeues),
            resident_device_bytes: self.resident(),
            device_memory_budget_bytes: self.config.budget,
            ..Request::direct(u32::try_from(items).unwrap_or(u32::MAX), 0, capabilities.max_workgroup_size[0])
        };
        // Only reporting ops need a hit buffer.
        self.lacks_room_for_hits = reporting > 0;
        let hits = match reporting {
            0 => 1,
            _ => {
                let most = self.most_hits();
                let wanted = match self.config.policy.recommend(&Request { queue_len: reporting, ..request }) {
                    Ok(recommendation) => recommendation.hit_capacity,
                    // The hits of a single item are only known after it has run, so it gets all free memory.
                    Err(Error::Driver(DriverError::OutOfMemory { .. })) if items == 1 => {
                        let free = self.config.budget.saturating_sub(self.resident());
                        let hits = free / u64::from(self.config.policy.scratch_bytes_per_hit.max(1));
                        u32::try_from(hits).unwrap_or(u32::MAX).max(1)
                    }
                    Err(error) => return Err(error),
                };
                if wanted > most && items > 1 {
                    let requested = self.resident() + allocated(1) + allocated(wanted.into());
                    return Err(DriverError::OutOfMemory { requested, available: self.config.budget }.into());
                }
                wanted.min(most)
            }
        };
        let recommendation = self.config.policy.recommend(&Request { requested_hit_capacity: hits, ..request })?;
        self.lacks_room_for_hits = false;
        Ok(recommendation)
    }

    /// Returns the memory of a unit: its columns.
    fn wave(&self, launching: &Launching, items: &[Resolved], unit: &Unit) -> Wave {
        let columns = &self.kernels.get(self.key(launching, items, unit)).columns;
        Wave { frontier_bytes: 4 * columns.len() as u64, ..Wave::default() }
    }

    /// Returns the maximum hit capacity within the budget, besides the columns of one unit.
    fn most_hits(&self) -> u32 {
        let hits = match self.config.budget {
            0 => u64::MAX,
            budget => largest_class(budget.saturating_sub(self.resident() + allocated(1))) / 4,
        };
        u32::try_from(hits).unwrap_or(u32::MAX)
    }

    /// Returns the maximum size of the columns of a batch within the budget, besides `hits` hits if the slice reports any.
    fn room_for_columns(&self, hits: u32) -> u64 {
        let hits = if self.reports() { allocated(hits.into()) } else { 0 };
        match self.config.budget {
            0 => u64::MAX,
            budget => largest_class(budget.saturating_sub(self.resident() + hits)),
        }
    }

    /// Resolves the handles of items. No-ops are skipped, and invalid items fail.
    fn resolve(&mut self, resolved: &mut Vec<Resolved>, report: &mut Report) {
        resolved.clear();
        resolved.reserve(self.cut);
        for position in 0..self.cut {
            let item = self.pending[position];
            if item == WorkItem::default() {
                continue;
            }
            match resolve_operands(item, self.tenant, &self.ops, &self.arena, self.watch.is_some()) {
                Ok((bucket, operands)) => {
                    resolved.push(Resolved { item, position: position as u32, bucket, operands });
                }
                Err(reason) => {
                    self.fail(position as u32, &reason, &mut report.failures);
                    self.leave_out(position);
                }
            }
        }
    }

    /// Returns the ready-queue kernel, if the slice can use one and it is estimated to be faster than barriers.
    fn ready_queue_kernel(&mut self, items: &[Resolved], width: u32) -> Option<Key> {
        let possible = self.device.capabilities().independent_groups
            && self.config.order != Order::Barriers
            && self.config.budget == 0
            && !self.windows.dependencies.is_empty()
            && self.windows.units.len() == items.len();
        let key = Key { runs: Runs::All, worker: Worker::ReadyQueue, width };
        let fits = |op: &Op| key.takes(&op.body) && !op.reports && op.refusal.is_none();
        if !possible || !items.iter().all(|item| fits(item.op(&self.ops))) {
            return None;
        }
        let taken = (0..).zip(&self.ops).filter(|(_, op)| fits(op));
        let bodies = taken.map(|(number, op)| (number, op.body.clone()));
        let is_there = self.kernels.request(key, || bodies.collect());
        let pays = self.config.order == Order::Counters || self.order.do_counters_pay();
        (is_there && pays).then_some(key)
    }

    /// Assigns a kernel to each bucket. Ops without a compiled kernel are interpreted.
    fn buckets(&mut self, compiles: bool, width: u32) -> Result<Vec<Key>, DriverError> {
        let mut buckets = Vec::with_capacity(self.mix.len());
        for (number, op) in (0..).zip(&self.ops) {
            let mut keys = [false, true].map(|many| Key::new(Runs::Op(number), &op.body, many, width));
            for (key, items) in keys.iter_mut().zip(&self.mix[2 * number as usize..]) {
                if *items == 0 || (compiles && self.kernels.request(*key, || vec![(number, op.body.clone())])) {
                    continue;
                }
                let all = Key { runs: Runs::All, ..*key };
                let taken = (0..).zip(&self.ops).filter(|(_, op)| all.takes(&op.body) && op.refusal.is_none());
                let bodies: Vec<(u32, &Body)> = taken.map(|(number, op)| (number, &op.body)).collect();
                // If the interpreter cannot be compiled, the op gets a kernel of its own.
                match self.kernels.require(all, &bodies) {
                    Ok(()) => *key = all,
                    Err(_) => {
                        let result = self.kernels.require(*key, &[(number, &op.body)]);
                        if let Some(refusal) = self.kernels.refusal(*key) {
                            // Its items fail when the slice is resolved again.
                            self.ops[number as usize].refusal = Some(refusal);
                            self.kernels.forget_interpreters();
                            return Err(DriverError::Cancelled);
                        }
                        result?;
                    }
                }
            }
            buckets.extend(keys);
        }
        Ok(buckets)
    }
}
