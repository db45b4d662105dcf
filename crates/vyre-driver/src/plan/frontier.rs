//! Memory planning of dependent waves: splits the groups of [`barrier`] until each fits the budget.

use super::{barrier, reserve};
use crate::Error;

/// Memory demand of a wave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wave {
    /// Size of the frontier that it processes.
    pub frontier_bytes: u64,
    /// Size of its scratch memory.
    pub scratch_bytes: u64,
    /// Size of its output.
    pub output_bytes: u64,
}

/// Factor by which the scratch memory of a wave grows if it shares a group.
const FUSED_SCRATCH: u64 = 4;

/// Groups of waves, and their memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Groups, each within the budget.
    pub barriers: barrier::Plan,
    /// Largest total size of the frontiers in one group.
    pub peak_frontier_bytes: u64,
    /// Largest total size of scratch memory in one group.
    pub peak_scratch_bytes: u64,
    /// Largest total size of the outputs in one group.
    pub peak_output_bytes: u64,
    /// Size of a buffer for the caller's readback and the output of any group.
    pub amortized_readback_bytes: u64,
    /// Number of waves in the widest group.
    pub max_group_width: usize,
}

/// Memory planner, with reusable scratch memory.
#[derive(Clone, Debug, Default)]
pub struct Planner {
    barriers: barrier::Planner,
    costs: Vec<u64>,
    ends: Vec<usize>,
}

impl Planner {
    /// Groups waves so that each group fits the budget minus the resident graph.
    ///
    /// Reports invalid dependencies first, then overflow of costs, then waves over the budget.
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
        // The order of waves is kept; only the ends of groups change.
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

/// Cost of a wave in a group.
fn cost(wave: &Wave) -> Result<u64, Error> {
    let scratch = wave.scratch_bytes.checked_mul(FUSED_SCRATCH);
    let scratch = scratch.ok_or(Error::Overflow { field: "fused wave scratch bytes" })?;
    sum(sum(wave.frontier_bytes, scratch, "fused wave bytes")?, wave.output_bytes, "fused wave bytes")
}

fn sum(a: u64, b: u64, field: &'static str) -> Result<u64, Error> {
    a.checked_add(b).ok_or(Error::Overflow { field })
}
