//! Launch fusion planner: merges adjacent stages of a sequence into fewer launches.
//!
//! Greedy: a group takes the next stage as long as layouts are equal, no host materialization is in between, and the
//! group fits the budget. Greedy grouping is optimal where each stage reads no more than the previous one held.

use rustc_hash::FxHashSet;

use super::{part, reserve};
use crate::Error;

/// One dispatch of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Unique id in the sequence.
    pub id: u32,
    /// Only stages with equal layouts are merged.
    pub layout_hash: u64,
    /// Bytes read.
    pub input_bytes: u64,
    /// Bytes written.
    pub output_bytes: u64,
    /// Bytes of scratch memory.
    pub scratch_bytes: u64,
    /// The input must be on the host first, so the stage cannot join a group.
    pub requires_host_materialization: bool,
}

/// Stages that are launched together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<'p> {
    /// Stages, in order.
    pub stage_ids: &'p [u32],
    /// Common layout.
    pub layout_hash: u64,
    /// Bytes held by the group.
    pub required_bytes: u64,
    /// Bytes of results used only by the next stage of the group.
    pub avoided_intermediate_bytes: u64,
}

/// Planned launches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    stage_ids: Vec<u32>,
    spans: Vec<Span>,
    /// Number of launches, one for each group.
    pub launch_count: u32,
    /// Number of stages minus number of launches.
    pub avoided_launches: u32,
    /// Bytes of results that need not be written, over all groups.
    pub avoided_intermediate_bytes: u64,
}

impl Plan {
    /// Groups, in order.
    pub fn groups(&self) -> impl DoubleEndedIterator<Item = Group<'_>> + ExactSizeIterator {
        self.spans.iter().enumerate().map(|(index, span)| Group {
            stage_ids: part(&self.stage_ids, &self.spans, index, |span| span.end),
            layout_hash: span.layout_hash,
            required_bytes: span.required_bytes,
            avoided_intermediate_bytes: span.avoided_intermediate_bytes,
        })
    }
}

/// A group, as a range of the list of all stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Span {
    /// End of its range.
    end: usize,
    layout_hash: u64,
    required_bytes: u64,
    avoided_intermediate_bytes: u64,
}

/// Launch fusion planner, with reusable scratch memory.
#[derive(Clone, Debug, Default)]
pub struct Planner {
    seen: FxHashSet<u32>,
}

impl Planner {
    /// Creates a planner with memory for `stages` stages.
    pub fn with_capacity(stages: usize) -> Result<Planner, Error> {
        let mut planner = Planner::default();
        planner.reserve(stages)?;
        Ok(planner)
    }

    /// Number of stages that it has memory for.
    pub fn capacity(&self) -> usize {
        self.seen.capacity()
    }

    /// Groups stages so that no group exceeds `max_group_bytes`.
    ///
    /// Of several errors, reports the first of these kinds: a zero budget, a duplicate id, a stage over the budget by
    /// itself, an overflow.
    pub fn plan(&mut self, stages: &[Stage], max_group_bytes: u64) -> Result<Plan, Error> {
        if max_group_bytes == 0 {
            return Err(Error::ZeroBudget);
        }
        self.reserve(stages.len())?;
        let mut plan = Plan::default();
        reserve(&mut plan.stage_ids, "stage ids", stages.len())?;
        plan.stage_ids.extend(stages.iter().map(|stage| stage.id));
        if let Some(id) = self.duplicate(&plan.stage_ids) {
            return Err(Error::DuplicateStage { id });
        }
        let Some(first) = stages.first() else { return Ok(plan) };

        // Capacity for the case that each stage is a group; untouched pages cost nothing.
        reserve(&mut plan.spans, "groups", stages.len())?;
        // A later stage over the budget takes precedence over an overflow, which is deferred until all stages were
        // checked. A sum that overflows exceeds every budget.
        let mut overflow = None;
        let mut total_overflows = false;
        let mut group = Span::default();
        let mut previous = first;
        for (index, stage) in stages.iter().enumerate() {
            let saved_bytes = std::mem::replace(&mut previous, stage).output_bytes;
            if index > 0 && stage.layout_hash == group.layout_hash && !stage.requires_host_materialization {
                match joined(group, stage, saved_bytes) {
                    Ok(larger) if larger.required_bytes <= max_group_bytes => {
                        group = larger;
                        let (total, overflows) = plan.avoided_intermediate_bytes.overflowing_add(saved_bytes);
                        plan.avoided_intermediate_bytes = total;
                        total_overflows |= overflows;
                        continue;
                    }
                    Ok(_) => {}
                    Err(field) => overflow = overflow.or(Some(field)),
                }
            }
            if index > 0 {
                plan.spans.push(Span { end: index, ..group });
            }
            let required_bytes = match alone(stage) {
                Ok(required) if required > max_group_bytes => {
                    return Err(Error::StageOverBudget { id: stage.id, required, budget: max_group_bytes });
                }
                Ok(required) => required,
                Err(field) => {
                    overflow = overflow.or(Some(field));
                    u64::MAX
                }
            };
            group = Span { end: 0, layout_hash: stage.layout_hash, required_bytes, avoided_intermediate_bytes: 0 };
        }
        plan.spans.push(Span { end: stages.len(), ..group });
        if let Some(field) = overflow.or(total_overflows.then_some("total avoided intermediate bytes")) {
            return Err(Error::Overflow { field });
        }
        let counted = |count: usize, field| u32::try_from(count).map_err(|_| Error::Overflow { field });
        plan.launch_count = counted(plan.spans.len(), "launch count")?;
        plan.avoided_launches = counted(stages.len() - plan.spans.len(), "avoided launches")?;
        Ok(plan)
    }

    fn reserve(&mut self, stages: usize) -> Result<(), Error> {
        self.seen.clear();
        let reserved = self.seen.try_reserve(stages);
        reserved.map_err(|_| Error::Reservation { field: "seen stage ids", requested: stages })
    }

    /// Finds a duplicate id.
    fn duplicate(&mut self, ids: &[u32]) -> Option<u32> {
        // Most sequences are numbered in ascending order, and need no set.
        if ids.is_sorted_by(|id, next| id < next) {
            return None;
        }
        ids.iter().copied().find(|id| !self.seen.insert(*id))
    }
}

/// Bytes of a stage that starts a group, or the sum that overflows.
fn alone(stage: &Stage) -> Result<u64, &'static str> {
    let io = stage.input_bytes.checked_add(stage.output_bytes).ok_or("stage io bytes")?;
    io.checked_add(stage.scratch_bytes).ok_or("stage required bytes")
}

/// The group extended by a stage, whose input it already holds, or the sum that overflows.
fn joined(group: Span, stage: &Stage, saved_bytes: u64) -> Result<Span, &'static str> {
    let with_scratch = group.required_bytes.checked_add(stage.scratch_bytes).ok_or("fused scratch bytes")?;
    let required_bytes = with_scratch.checked_add(stage.output_bytes).ok_or("fused output bytes")?;
    let avoided = group.avoided_intermediate_bytes.checked_add(saved_bytes);
    let avoided_intermediate_bytes = avoided.ok_or("avoided intermediate bytes")?;
    Ok(Span { required_bytes, avoided_intermediate_bytes, ..group })
}
