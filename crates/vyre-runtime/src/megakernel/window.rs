//! Windows: chains of items, each of which waits only for others of its chain. The same chain of operations over memory of the same
//! shape comes again and again, and what comes often is fused into one body.
//!
//! An item that waits for nobody outside of a chain can as well run right behind the last of it, in the same launch. So a window waits
//! for what its first item waits for, and those who wait for any of its items wait for the window.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use vyre_driver::plan::barrier::Dependency;
use vyre_foundation::ir::BufferId;
use vyre_foundation::ir::entity::Entity;
use vyre_foundation::transform::embed;
use vyre_foundation::transform::fuse::{self, Bound, ScalarId, Stage};

use super::kernel::{Body, Field, Slot};
use super::op::Op;
use super::slice::{FEW, Resolved};

/// The most items of a window.
const MOST_ITEMS: usize = 8;

/// The most windows that are fused.
const MOST_WINDOWS: usize = 64;

/// A window that did not come in so many slices makes room for others.
const IDLE: u64 = 256;

/// The most shapes that are counted at once.
const MOST_COUNTED: usize = 256;

/// The operations of a chain, and for each handle that they use which memory of the window it names and how long that is.
type Shape = SmallVec<[u32; 64]>;

/// What is launched for one or more items.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    /// The first item, by its position among those that are resolved.
    pub(super) head: u32,
    /// What is run, if it is a window.
    pub(super) window: Option<u32>,
}

/// A chain that was fused.
pub(super) struct Window {
    pub(super) body: Body,
    /// Whether it has more than a few elements.
    pub(super) many: bool,
    /// How many items it has.
    members: usize,
    /// Whether its kernel is there.
    pub(super) ready: bool,
    /// The slice that it was last in.
    came: u64,
}

/// Finds windows, and keeps count of them.
#[derive(Default)]
pub(super) struct Windows {
    counts: FxHashMap<Shape, u32>,
    /// What was fused; `None` cannot be.
    known: FxHashMap<Shape, Option<u32>>,
    pub(super) fused: Vec<Window>,
    /// The numbers of windows that are not what they were: kernels of the old ones must be forgotten.
    pub(super) replaced: Vec<u32>,
    slices: u64,
    /// How many chains of the last items came often.
    pub(super) hot: u32,
    /// For each item the next one of its chain, or itself.
    pub(super) next: Vec<u32>,
    pub(super) units: Vec<Unit>,
    unit_of: Vec<u32>,
    is_linked: Vec<bool>,
    /// Of units.
    pub(super) dependencies: Vec<Dependency>,
}

impl Windows {
    /// Counts the chains of items, and fuses those that have come `threshold` times.
    pub(super) fn find(&mut self, items: &[Resolved], ops: &[Op], dependencies: &[Dependency], threshold: u32) {
        self.next.clear();
        self.next.extend(0..items.len() as u32);
        self.units.clear();
        self.hot = 0;
        self.slices += 1;
        if dependencies.is_empty() {
            self.units.extend((0..items.len() as u32).map(|head| Unit { head, window: None }));
            return;
        }
        self.link(items, ops, dependencies);
        self.is_linked.clear();
        self.is_linked.resize(items.len(), false);
        for (item, &next) in self.next.iter().enumerate() {
            self.is_linked[next as usize] |= next as usize != item;
        }
        for head in 0..items.len() {
            // What is behind another item comes with the first of its chain.
            let mut at = (!self.is_linked[head]).then_some(head);
            while let Some(first) = at {
                let chain = self.chain(first);
                let window = if chain.len() > 1 { self.window(items, ops, &chain, threshold) } else { None };
                // What is not fused as it is, is not looked at again from its second item on.
                let members = window.map_or(chain.len(), |window| self.fused[window as usize].members);
                match window {
                    Some(window) => self.units.push(Unit { head: first as u32, window: Some(window) }),
                    None => self.units.extend(chain.iter().map(|&item| Unit { head: item as u32, window: None })),
                }
                self.hot += u32::from(window.is_some());
                let last = chain[members - 1];
                at = Some(self.next[last] as usize).filter(|&next| next != last);
            }
        }
    }

    /// Makes of the dependencies of items those of units. Windows that are not to be run, or not ready, come apart.
    pub(super) fn merge(&mut self, items: &[Dependency], promoted: bool) {
        self.dependencies.clear();
        if items.is_empty() {
            return;
        }
        let mut units = Vec::with_capacity(self.units.len());
        self.unit_of.clear();
        self.unit_of.resize(self.next.len(), 0);
        for unit in std::mem::take(&mut self.units) {
            let window = unit.window.filter(|&window| promoted && self.fused[window as usize].ready);
            let members: SmallVec<[u32; MOST_ITEMS]> = self.members(&unit).collect();
            for item in members {
                if item == unit.head || window.is_none() {
                    units.push(Unit { head: item, window });
                }
                self.unit_of[item as usize] = units.len() as u32 - 1;
            }
        }
        self.units = units;
        for &Dependency { before, after } in items {
            let [before, after] = [before, after].map(|item| self.unit_of[item] as usize);
            if before != after {
                self.dependencies.push(Dependency { before, after });
            }
        }
    }

    /// The items of a unit.
    pub(super) fn members(&self, unit: &Unit) -> impl Iterator<Item = u32> {
        let count = unit.window.map_or(1, |window| self.fused[window as usize].members);
        std::iter::successors(Some(unit.head), |&item| Some(self.next[item as usize])).take(count)
    }

    /// Puts items that wait for nobody outside of a chain behind the last of it.
    fn link(&mut self, items: &[Resolved], ops: &[Op], dependencies: &[Dependency]) {
        let alone = |item: u32| {
            let op = items[item as usize].op(ops);
            !op.reports && !op.body.facts.faults
        };
        let mut chains: Vec<u32> = (0..items.len() as u32).collect();
        let mut lasts = chains.clone();
        for waits in dependencies.chunk_by(|one, other| one.after == other.after) {
            let after = waits[0].after as u32;
            let chain = chains[waits[0].before];
            let last = lasts[chain as usize];
            if waits.iter().all(|wait| chains[wait.before] == chain) && alone(last) && alone(after) {
                self.next[last as usize] = after;
                lasts[chain as usize] = after;
                chains[after as usize] = chain;
            }
        }
    }

    /// A chain from an item on, of as many as a window may have.
    fn chain(&self, first: usize) -> SmallVec<[usize; MOST_ITEMS]> {
        let mut chain = SmallVec::from_slice(&[first]);
        let mut last = first;
        while chain.len() < MOST_ITEMS && self.next[last] as usize != last {
            last = self.next[last] as usize;
            chain.push(last);
        }
        chain
    }

    /// The window that a chain begins with, if the chain has come often enough and can be fused.
    fn window(&mut self, items: &[Resolved], ops: &[Op], chain: &[usize], threshold: u32) -> Option<u32> {
        let shape = shape(items, ops, chain);
        if let Some(&known) = self.known.get(&shape) {
            if let Some(window) = known {
                self.fused[window as usize].came = self.slices;
            }
            return known;
        }
        if self.known.len() >= 16 * MOST_WINDOWS {
            self.known.retain(|_, window| window.is_some());
        }
        if !self.is_hot(shape.clone(), threshold) {
            return None;
        }
        let is_idle = |window: &Window| window.came + IDLE <= self.slices;
        let place = match self.fused.len() {
            MOST_WINDOWS.. => self.fused.iter().position(is_idle)?,
            next => next,
        };
        let fused = fuse(items, ops, chain).map(|(body, members)| {
            let head = &items[chain[0]];
            let many = head.length(head.op(ops).body.extent.handle) > FEW;
            let window = Window { body, many, members, ready: false, came: self.slices };
            let number = place as u32;
            if place < self.fused.len() {
                self.fused[place] = window;
                self.known.retain(|_, known| *known != Some(number));
                self.replaced.push(number);
            } else {
                self.fused.push(window);
            }
            number
        });
        self.known.insert(shape, fused);
        fused
    }

    /// Counts a shape. Where there are too many to count, all count for less, and those that came least are forgotten: whatever makes
    /// up more than a small part of all stays.
    fn is_hot(&mut self, shape: Shape, threshold: u32) -> bool {
        if self.counts.len() >= MOST_COUNTED && !self.counts.contains_key(&shape) {
            self.counts.retain(|_, count| {
                *count -= 1;
                *count > 0
            });
            return false;
        }
        let count = self.counts.entry(shape).or_default();
        *count = count.saturating_add(1);
        *count >= threshold
    }
}

/// Gives for each handle that is used in a chain the item, the handle, and the number of what it names: the first has number 0.
fn each_handle(items: &[Resolved], ops: &[Op], chain: &[usize], mut visit: impl FnMut(usize, usize, u32)) {
    let mut seen: SmallVec<[u32; 3 * MOST_ITEMS]> = SmallVec::new();
    for (stage, &item) in chain.iter().enumerate() {
        let item = &items[item];
        for (handle, _) in item.op(ops).views.iter().enumerate().filter(|(_, view)| view.is_some()) {
            let name = item.handle(handle);
            let number = seen.iter().position(|known| *known == name).unwrap_or_else(|| {
                seen.push(name);
                seen.len() - 1
            });
            visit(stage, handle, number as u32);
        }
    }
}

fn shape(items: &[Resolved], ops: &[Op], chain: &[usize]) -> Shape {
    let mut shape: Shape = chain.iter().map(|&item| items[item].op_number()).collect();
    each_handle(items, ops, chain, |stage, handle, number| {
        shape.extend_from_slice(&[number, items[chain[stage]].length(handle)]);
    });
    shape
}

/// Fuses as many items of a chain as may be.
fn fuse(items: &[Resolved], ops: &[Op], chain: &[usize]) -> Option<(Body, usize)> {
    let mut bound: SmallVec<[Vec<Bound>; MOST_ITEMS]> = SmallVec::from_elem(Vec::new(), chain.len());
    each_handle(items, ops, chain, |stage, handle, number| {
        let item = &items[chain[stage]];
        let buffer = BufferId::from_index(number as usize);
        let memory = item.op(ops).views[handle].map(|view| view.object);
        bound[stage].extend(memory.map(|memory| Bound { memory, buffer, elements: item.length(handle) }));
    });
    let mut stages: Vec<Stage<'_>> = Vec::new();
    for (number, (&item, buffers)) in chain.iter().zip(bound).enumerate() {
        let body = &items[item].op(ops).body;
        let invocations = items[item].length(body.extent.handle);
        let groups = invocations.div_ceil(body.program.workgroup_size()[0]);
        let scalars = body.slots.iter().filter(|(_, slot)| *slot == Slot::Param(0));
        let scalars = scalars.map(|(object, _)| (*object, ScalarId(number as u32))).collect();
        let next = Stage::new(&body.program, [groups, 1, 1], buffers, scalars);
        let head = &items[chain[0]];
        if head.length(head.op(ops).body.extent.handle) != invocations || fuse::may_join(&stages, &next).is_err() {
            break;
        }
        stages.push(next);
    }
    if stages.len() < 2 {
        return None;
    }
    let names: Vec<&str> = chain[..stages.len()].iter().map(|&item| items[item].op(ops).name()).collect();
    let fused = fuse::fuse(&names.join("_"), &stages, &|_| false);
    let facts = embed::facts(&fused.program).ok().filter(|facts| !facts.faults)?;
    // Where invocations work together, there are as many as fill whole workgroups, and only who takes part in that may be one too many.
    let of_head = items[chain[0]].op(ops).body.extent.handle;
    let is_ragged = !items[chain[0]].length(of_head).is_multiple_of(fused.program.workgroup_size()[0]);
    let work_apart = chain[..stages.len()].iter().any(|&item| !items[item].op(ops).body.facts.collective);
    if facts.collective && is_ragged && work_apart {
        return None;
    }
    let slots = fused.objects.iter().map(|&(object, stage, of_stage)| {
        let mut slots = items[chain[stage]].op(ops).body.slots.iter();
        let slot = slots.find(|(known, _)| *known == of_stage).map(|(_, slot)| *slot)?;
        Some((
            object,
            match slot {
                Slot::Handle(field) => Slot::Handle(Field { item: stage, ..field }),
                Slot::Param(_) => Slot::Param(stage),
                Slot::Hits | Slot::HitCount => return None,
            },
        ))
    });
    let slots = slots.collect::<Option<Vec<_>>>()?;
    // The memory that says how many invocations there are may be known by another handle.
    let head = &items[chain[0]];
    let extent = head.handle(head.op(ops).body.extent.handle);
    let extent = slots.iter().find_map(|(_, slot)| match slot {
        Slot::Handle(field) if items[chain[field.item]].handle(field.handle) == extent => Some(*field),
        _ => None,
    })?;
    Some((Body { program: fused.program, facts, slots, extent }, stages.len()))
}
