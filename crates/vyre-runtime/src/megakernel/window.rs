//! Windows: fusion of hot chains of dependent items into one kernel body.
//!
//! In a chain, each item after the first depends only on items of the chain. Chains of the same ops over memory of the same shape
//! recur, and a shape is fused once it has occurred as often as the policy's threshold. A window depends on what its first item depends on,
//! and dependents of any of its items depend on the window.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use vyre_driver::plan::barrier::Dependency;
use vyre_foundation::ir::BufferId;
use vyre_foundation::ir::entity::Entity;
use vyre_foundation::transform::embed;
use vyre_foundation::transform::fuse::{self, Bound, Stage};

use super::kernel::{Body, Field, Slot};
use super::op::Op;
use super::slice::{FEW, Resolved};

/// Maximum items of a window.
const MOST_ITEMS: usize = 8;

/// Maximum number of windows.
const MOST_WINDOWS: usize = 64;

/// Slices without use after which a window may be evicted.
const IDLE: u64 = 256;

/// Maximum number of counted shapes.
const MOST_COUNTED: usize = 256;

/// Shape of a chain: its ops, and for each handle the index of its memory within the window and its length.
type Shape = SmallVec<[u32; 64]>;

/// Unit of execution: an item or a window of items.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    /// Index of the first item among the resolved ones.
    pub(super) head: u32,
    /// The window; `None` for a single item.
    pub(super) window: Option<u32>,
}

/// A fused chain.
pub(super) struct Window {
    pub(super) body: Body,
    /// Has more than [`FEW`] elements.
    pub(super) many: bool,
    /// Number of items.
    members: usize,
    /// The kernel is compiled.
    pub(super) ready: bool,
    /// Last slice with this window.
    last_used: u64,
}

/// Window detection and cache.
#[derive(Default)]
pub(super) struct Windows {
    counts: FxHashMap<Shape, u32>,
    /// Windows by shape; `None` for shapes that cannot be fused.
    known: FxHashMap<Shape, Option<u32>>,
    pub(super) fused: Vec<Window>,
    /// Replaced windows, whose kernels must be evicted.
    pub(super) replaced: Vec<u32>,
    slices: u64,
    /// Number of hot chains among the last items.
    pub(super) hot: u32,
    /// Next item in the chain of each item, or the item itself.
    pub(super) next: Vec<u32>,
    pub(super) units: Vec<Unit>,
    unit_of: Vec<u32>,
    is_linked: Vec<bool>,
    /// Dependencies of units.
    pub(super) dependencies: Vec<Dependency>,
}

impl Windows {
    /// Finds the chains of items, and fuses shapes that have occurred `threshold` times.
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
            // Chains start at items without a predecessor.
            let mut at = (!self.is_linked[head]).then_some(head);
            while let Some(first) = at {
                let chain = self.chain(first);
                let window = if chain.len() > 1 { self.window(items, ops, &chain, threshold) } else { None };
                // Suffixes of a chain that is not fused are not tried.
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

    /// Maps the dependencies of items to units. Windows that are not promoted or not ready are split into items.
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

    /// Returns the items of a unit.
    pub(super) fn members(&self, unit: &Unit) -> impl Iterator<Item = u32> {
        let count = unit.window.map_or(1, |window| self.fused[window as usize].members);
        std::iter::successors(Some(unit.head), |&item| Some(self.next[item as usize])).take(count)
    }

    /// Appends each item whose dependencies are all in one chain to that chain.
    fn link(&mut self, items: &[Resolved], ops: &[Op], dependencies: &[Dependency]) {
        let is_fusable = |item: u32| {
            let op = items[item as usize].op(ops);
            !op.reports && !op.body.facts.faults
        };
        let mut chains: Vec<u32> = (0..items.len() as u32).collect();
        let mut lasts = chains.clone();
        for waits in dependencies.chunk_by(|one, other| one.after == other.after) {
            let after = waits[0].after as u32;
            let chain = chains[waits[0].before];
            let last = lasts[chain as usize];
            if waits.iter().all(|wait| chains[wait.before] == chain) && is_fusable(last) && is_fusable(after) {
                self.next[last as usize] = after;
                lasts[chain as usize] = after;
                chains[after as usize] = chain;
            }
        }
    }

    /// Returns the first [`MOST_ITEMS`] items of the chain from an item on.
    fn chain(&self, first: usize) -> SmallVec<[usize; MOST_ITEMS]> {
        let mut chain = SmallVec::from_slice(&[first]);
        let mut last = first;
        while chain.len() < MOST_ITEMS && self.next[last] as usize != last {
            last = self.next[last] as usize;
            chain.push(last);
        }
        chain
    }

    /// Returns the window of a prefix of a chain, if the chain is hot and can be fused.
    fn window(&mut self, items: &[Resolved], ops: &[Op], chain: &[usize], threshold: u32) -> Option<u32> {
        let shape = shape(items, ops, chain);
        if let Some(&known) = self.known.get(&shape) {
            if let Some(window) = known {
                self.fused[window as usize].last_used = self.slices;
            }
            return known;
        }
        if self.known.len() >= 16 * MOST_WINDOWS {
            self.known.retain(|_, window| window.is_some());
        }
        if !self.is_hot(shape.clone(), threshold) {
            return None;
        }
        let is_idle = |window: &Window| window.last_used + IDLE <= self.slices;
        let index = match self.fused.len() {
            MOST_WINDOWS.. => self.fused.iter().position(is_idle)?,
            next => next,
        };
        let fused = fuse(items, ops, chain).map(|(body, members)| {
            let head = &items[chain[0]];
            let many = head.length(head.op(ops).body.extent.handle) > FEW;
            let window = Window { body, many, members, ready: false, last_used: self.slices };
            let number = index as u32;
            if index < self.fused.len() {
                self.fused[index] = window;
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

    /// Counts a shape by the Misra–Gries algorithm for heavy hitters: when the table is full, an unknown shape decrements all counters, and
    /// those that reach zero are evicted. A shape that makes up more than 1/[`MOST_COUNTED`] of all stays.
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

/// Visits each used handle of a chain: the item, the handle, and the index of its memory in order of first use.
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

/// Fuses the longest legal prefix of a chain.
fn fuse(items: &[Resolved], ops: &[Op], chain: &[usize]) -> Option<(Body, usize)> {
    let mut bound: SmallVec<[Vec<Bound>; MOST_ITEMS]> = SmallVec::from_elem(Vec::new(), chain.len());
    each_handle(items, ops, chain, |stage, handle, number| {
        let item = &items[chain[stage]];
        let buffer = BufferId::from_index(number as usize);
        let memory = item.op(ops).views[handle].map(|view| view.object);
        bound[stage].extend(memory.map(|memory| Bound { memory, buffer, elements: item.length(handle) }));
    });
    let mut stages: Vec<Stage<'_>> = Vec::new();
    for (&item, buffers) in chain.iter().zip(bound) {
        let body = &items[item].op(ops).body;
        let invocations = items[item].length(body.extent.handle);
        let groups = invocations.div_ceil(body.program.workgroup_size()[0]);
        let next = Stage::new(&body.program, [groups, 1, 1], buffers, []);
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
    // A collective body has whole workgroups, so its excess invocations must not reach stages without collectives, which are unguarded.
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
    // The memory that determines the number of invocations may be bound to another handle in the fused program.
    let head = &items[chain[0]];
    let extent = head.handle(head.op(ops).body.extent.handle);
    let extent = slots.iter().find_map(|(_, slot)| match slot {
        Slot::Handle(field) if items[chain[field.item]].handle(field.handle) == extent => Some(*field),
        _ => None,
    })?;
    Some((Body { program: fused.program, facts, slots, extent }, stages.len()))
}
