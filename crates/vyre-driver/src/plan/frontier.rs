//! Plans the memory of waves that depend on each other: groups as [`barrier`] makes them, split until each fits.

use super::{barrier, reserve};
use crate::Error;

/// What a wave needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wave {
    /// The frontier that it works on.
    pub frontier_bytes: u64,
    /// What it needs besides.
    pub scratch_bytes: u64,
    /// What it writes.
    pub output_bytes: u64,
}

/// Waves that run together hold their scratch this many times.
const FUSED_SCRATCH: u64 = 4;

/// The groups of waves, and the memory that they take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The groups; each fits the budget.
    pub barriers: barrier::Plan,
    /// The frontiers of a group, in the group that has the most.
    pub peak_frontier_bytes: u64,
    /// The scratch of a group, in the group that has the most.
    pub peak_scratch_bytes: u64,
    /// The output of a group, in the group that has the most.
    pub peak_output_bytes: u64,
    /// A buffer of this size holds what the caller reads back, and the output of any group.
    pub amortized_readback_bytes: u64,
    /// How many waves the widest group has.
    pub max_group_width: usize,
}

/// Plans memory, and keeps the memory that this takes.
#[derive(Clone, Debug, Default)]
pub struct Planner {
    barriers: barrier::Planner,
    costs: Vec<u64>,
    ends: Vec<usize>,
}

impl Planner {
    /// Groups waves so that each group fits what the graph, which stays where it is, leaves of the budget.
    ///
    /// Dependencies that make no sense are reported first, then what waves cost if that overflows, then what is over the budget.
    pub fn plan(
        &mut self,
        waves: &[Wave],
        dependencies: &[barrier::Dependency],
        resident_graph_bytes: u64,
        budget_bytes: u64,
        readback_bytes: u64,
    ) -> Result<MemoryPlan, Error> {
        let mut barriers = self.barriers.plan(waves.len(), dependencies)?;
        reserve(&mut self.costs, "wave costs", waves.len())?;
        for wave in waves {
            self.costs.push(cost(wave)?);
        }
        let budget = budget_bytes.checked_sub(resident_graph_bytes).ok_or(Error::OverBudget {
            field: "resident graph bytes",
            required: resident_graph_bytes,
            budget: budget_bytes,
        })?;

        reserve(&mut self.ends, "group ends", waves.len())?;
        for group in barriers.groups() {
            let start = self.ends.last().copied().unwrap_or(0);
            let mut held = 0;
            for (position, wave) in (start..).zip(group) {
                let required = self.costs[*wave];
                held = sum(held, required, "barrier group fused wave budget bytes")?;
                if required > budget {
                    return Err(Error::OverBudget { field: "single fused frontier wave bytes", required, budget });
                }
                if held > budget {
                    self.ends.push(position);
                    held = required;
                }
            }
            self.ends.push(start + group.len());
        }
        // The waves keep their order; only where groups end is new.
        reserve(&mut barriers.ends, "groups", self.ends.len())?;
        barriers.ends.extend_from_slice(&self.ends);
        barriers.global_barriers = barriers.ends.len().saturating_sub(1);

        let mut plan = MemoryPlan::default();
        for group in barriers.groups() {
            let mut all = Wave::default();
            for wave in group.iter().map(|wave| &waves[*wave]) {
                all.frontier_bytes = sum(all.frontier_bytes, wave.frontier_bytes, "frontier wave bytes")?;
                all.scratch_bytes = sum(all.scratch_bytes, wave.scratch_bytes, "scratch wave bytes")?;
                all.output_bytes = sum(all.output_bytes, wave.output_bytes, "output wave bytes")?;
            }
            plan.peak_frontier_bytes = plan.peak_frontier_bytes.max(all.frontier_bytes);
            plan.peak_scratch_bytes = plan.peak_scratch_bytes.max(all.scratch_bytes);
            plan.peak_output_bytes = plan.peak_output_bytes.max(all.output_bytes);
            plan.max_group_width = plan.max_group_width.max(group.len());
        }
        plan.amortized_readback_bytes = readback_bytes.max(plan.peak_output_bytes);
        plan.barriers = barriers;
        Ok(plan)
    }
}

/// What a wave takes in a group.
fn cost(wave: &Wave) -> Result<u64, Error> {
    let scratch = wave.scratch_bytes.checked_mul(FUSED_SCRATCH);
    let scratch = scratch.ok_or(Error::Overflow { field: "fused wave scratch bytes" })?;
    sum(sum(wave.frontier_bytes, scratch, "fused wave bytes")?, wave.output_bytes, "fused wave bytes")
}

fn sum(a: u64, b: u64, field: &'static str) -> Result<u64, Error> {
    a.checked_add(b).ok_or(Error::Overflow { field })
}
