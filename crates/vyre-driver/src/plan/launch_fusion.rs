//! Merges neighbours in a sequence of stages into fewer launches.
//!
//! A group takes the next stage as long as layouts agree, nothing has to reach the host in between, and all that the group holds
//! fits the budget. Taking as much as possible gives the fewest launches where each stage reads no more than the previous one
//! held.

use rustc_hash::FxHashSet;

use super::{part, reserve};
use crate::Error;

/// One dispatch of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Names the stage; no other stage of the sequence has it.
    pub id: u32,
    /// Stages are merged only where this is equal.
    pub layout_hash: u64,
    /// What it reads.
    pub input_bytes: u64,
    /// What it writes.
    pub output_bytes: u64,
    /// What it needs besides.
    pub scratch_bytes: u64,
    /// Its input has to be on the host first, so it cannot join the stages before it.
    pub requires_host_materialization: bool,
}

/// Stages that are launched as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<'p> {
    /// The stages, in order.
    pub stage_ids: &'p [u32],
    /// The layout of all of them.
    pub layout_hash: u64,
    /// What they hold together.
    pub required_bytes: u64,
    /// Results that only the next stage of the group sees.
    pub avoided_intermediate_bytes: u64,
}

/// The launches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    stage_ids: Vec<u32>,
    spans: Vec<Span>,
    /// How many launches there are: one for each group.
    pub launch_count: u32,
    /// How many launches fewer than stages that is.
    pub avoided_launches: u32,
    /// Results that need not be written, in all groups.
    pub avoided_intermediate_bytes: u64,
}

impl Plan {
    /// The groups, in order.
    pub fn groups(&self) -> impl DoubleEndedIterator<Item = Group<'_>> + ExactSizeIterator {
        self.spans.iter().enumerate().map(|(index, span)| Group {
            stage_ids: part(&self.stage_ids, &self.spans, index, |span| span.end),
            layout_hash: span.layout_hash,
            required_bytes: span.required_bytes,
            avoided_intermediate_bytes: span.avoided_intermediate_bytes,
        })
    }
}

/// A group, as a part of the list of all stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Span {
    /// One past its last stage.
    end: usize,
    layout_hash: u64,
    required_bytes: u64,
    avoided_intermediate_bytes: u64,
}

/// Plans launches, and keeps the memory that this takes.
#[derive(Clone, Debug, Default)]
pub struct Planner {
    seen: FxHashSet<u32>,
}

impl Planner {
    /// A planner that has the memory for this many stages.
    pub fn with_capacity(stages: usize) -> Result<Planner, Error> {
        let mut planner = Planner::default();
        planner.reserve(stages)?;
        Ok(planner)
    }

    /// For how many stages it has the memory.
    pub fn capacity(&self) -> usize {
        self.seen.capacity()
    }

    /// Groups stages so that no group needs more than `max_group_bytes`.
    ///
    /// Of several mistakes, the first of these is reported: a budget of zero, a duplicate id, a stage that is too large by itself,
    /// sums that overflow.
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

        // Each stage may be a group. What is not used of this is not touched either.
        reserve(&mut plan.spans, "groups", stages.len())?;
        // Whether a later stage is too large decides before an overflow does, so that is kept until all stages were seen. What
        // overflows does not fit any budget.
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

    /// The first id that was there before.
    fn duplicate(&mut self, ids: &[u32]) -> Option<u32> {
        // Most sequences are numbered in order, and need no set.
        if ids.is_sorted_by(|id, next| id < next) {
            return None;
        }
        ids.iter().copied().find(|id| !self.seen.insert(*id))
    }
}

/// What a stage needs that starts a group, or what overflows.
fn alone(stage: &Stage) -> Result<u64, &'static str> {
    let io = stage.input_bytes.checked_add(stage.output_bytes).ok_or("stage io bytes")?;
    io.checked_add(stage.scratch_bytes).ok_or("stage required bytes")
}

/// A group with one more stage, whose input it holds already, or what overflows.
fn joined(group: Span, stage: &Stage, saved_bytes: u64) -> Result<Span, &'static str> {
    let with_scratch = group.required_bytes.checked_add(stage.scratch_bytes).ok_or("fused scratch bytes")?;
    let required_bytes = with_scratch.checked_add(stage.output_bytes).ok_or("fused output bytes")?;
    let avoided = group.avoided_intermediate_bytes.checked_add(saved_bytes);
    let avoided_intermediate_bytes = avoided.ok_or("avoided intermediate bytes")?;
    Ok(Span { required_bytes, avoided_intermediate_bytes, ..group })
}
