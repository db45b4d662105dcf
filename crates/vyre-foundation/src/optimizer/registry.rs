//! Pass registry and scheduling.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::OnceLock;

use super::{Decision, Metadata, Pass, Profile, passes};
use crate::Error;

/// Passes whose requirements can all be met.
#[derive(Clone, Debug)]
pub struct Registry {
    passes: Vec<&'static Pass>,
    /// Positions of the passes in topological order of their requirements.
    order: Vec<usize>,
}

impl Registry {
    /// The standard passes.
    pub fn standard() -> &'static Registry {
        static STANDARD: OnceLock<Registry> = OnceLock::new();
        STANDARD.get_or_init(|| Registry::new(passes::ALL.to_vec()).expect("the standard list can be scheduled"))
    }

    /// Creates a registry of other passes.
    ///
    /// # Errors
    /// Two passes have the same name, a requirement is unknown or cyclic, or a profile accepts a pass but rejects its
    /// requirement.
    pub fn new(passes: Vec<&'static Pass>) -> Result<Registry, Error> {
        let metadata: Vec<Metadata> = passes.iter().map(|pass| pass.metadata).collect();
        for (position, row) in metadata.iter().enumerate() {
            if metadata[..position].iter().any(|earlier| earlier.name == row.name) {
                return Err(Error::DuplicatePass { pass: row.name.into() });
            }
        }
        let order = order(&metadata)?;
        for profile in Profile::ALL {
            // Topological order: requirements are decided before their dependents.
            let mut rejected = vec![false; metadata.len()];
            for &position in &order {
                let row = &metadata[position];
                rejected[position] = !profile.accepts(row);
                let needed =
                    row.requires.iter().find(|name| position_of(&metadata, name).is_some_and(|at| rejected[at]));
                if let (false, Some(&needed)) = (rejected[position], needed) {
                    return Err(Error::RejectedRequirement {
                        pass: row.name.into(),
                        requires: needed.into(),
                        profile: profile.name(),
                    });
                }
            }
        }
        Ok(Registry { passes, order })
    }

    /// Properties of each pass, in list order.
    pub fn metadata(&self) -> Vec<Metadata> {
        self.passes.iter().map(|pass| pass.metadata).collect()
    }

    /// The passes, in list order.
    pub fn passes(&self) -> &[&'static Pass] {
        &self.passes
    }

    /// The pass with a name.
    ///
    /// # Errors
    /// There is no pass with this name.
    pub fn named(&self, name: &str) -> Result<&'static Pass, Error> {
        let found = self.passes.iter().find(|pass| pass.metadata.name == name).copied();
        found.ok_or_else(|| Error::UnknownPass {
            name: name.into(),
            known: self.passes.iter().map(|pass| pass.metadata.name.to_owned()).collect(),
        })
    }

    /// All passes in execution order.
    pub fn schedule_all(&self) -> Vec<&'static Pass> {
        self.order.iter().map(|&position| self.passes[position]).collect()
    }

    /// The selected passes in execution order.
    pub fn schedule(&self, decisions: &[Decision]) -> Vec<&'static Pass> {
        let selected = |name| decisions.iter().any(|decision| decision.metadata.name == name && decision.selected);
        let mut scheduled = self.schedule_all();
        scheduled.retain(|pass| selected(pass.metadata.name));
        scheduled
    }
}

pub(super) fn position_of(metadata: &[Metadata], name: &str) -> Option<usize> {
    metadata.iter().position(|row| row.name == name)
}

/// Topological sort by requirements; ties are broken by phase, then by list order.
fn order(metadata: &[Metadata]) -> Result<Vec<usize>, Error> {
    let mut waiting_for = vec![0usize; metadata.len()];
    let mut needed_by = vec![Vec::new(); metadata.len()];
    for (position, row) in metadata.iter().enumerate() {
        for &name in row.requires {
            let Some(required) = position_of(metadata, name) else {
                return Err(Error::UnknownRequirement { pass: row.name.into(), requires: name.into() });
            };
            waiting_for[position] += 1;
            needed_by[required].push(position);
        }
    }
    let entry = |position: usize| Reverse((metadata[position].phase, position));
    let mut ready: BinaryHeap<_> = (0..metadata.len()).filter(|&at| waiting_for[at] == 0).map(entry).collect();
    let mut order = Vec::with_capacity(metadata.len());
    while let Some(Reverse((_, position))) = ready.pop() {
        order.push(position);
        for &dependent in &needed_by[position] {
            waiting_for[dependent] -= 1;
            if waiting_for[dependent] == 0 {
                ready.push(entry(dependent));
            }
        }
    }
    if order.len() < metadata.len() {
        let passes = (0..metadata.len()).filter(|&at| waiting_for[at] > 0).map(|at| metadata[at].name.into()).collect();
        return Err(Error::RequirementCycle { passes });
    }
    Ok(order)
}
