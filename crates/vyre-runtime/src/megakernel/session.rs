//! Sessions: the memory, operations and queue of a megakernel, and what drains the queue.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use vyre_driver::plan::frontier;
use vyre_driver::{Buffer, Device, DeviceKind, Error};
use vyre_foundation::ir::Element;

use super::arena::{Arena, Handle, Segment};
use super::hazards::Hazards;
use super::item::WorkItem;
use super::kernels::Kernels;
use super::launch::Batch;
use super::op::Op;
use super::policy::{Policy, Sizing};
use super::redundancy::Pruner;
use super::report::Report;
use super::ring::{Drained, Otherwise, Pushed, Ring};
use super::slice::{Pace, Resolved, Worth};
use super::window::Windows;

/// What a session has.
#[derive(Clone, Debug)]
pub struct Config {
    /// Words of the arena that are used plainly.
    pub plain_words: u32,
    /// Words of the arena that are used atomically.
    pub atomic_words: u32,
    /// Items that the queue holds.
    pub queue: usize,
    /// Items that are planned and submitted together.
    pub slice: usize,
    /// How many trips the loops of an invocation of an item may take.
    pub fuel: u32,
    /// The most workgroups of a launch; 0 leaves it to the policy.
    pub worker_groups: u32,
    /// What the session may take of the memory of its device, in bytes; 0 is all of it.
    pub budget: u64,
    /// Decides how slices are launched.
    pub policy: Policy,
    /// What items wait for.
    pub order: Order,
}

/// What items wait for that depend on others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// What takes less time, as measured.
    #[default]
    Measured,
    /// All items of the groups before theirs.
    Barriers,
    /// Only those that they depend on, where the device has [workgroups that can wait](vyre_driver::Capabilities::independent_groups).
    Counters,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            plain_words: 1 << 20,
            atomic_words: 1 << 12,
            queue: 1 << 20,
            slice: 1 << 16,
            fuel: 1 << 20,
            worker_groups: 0,
            budget: 0,
            order: Order::Measured,
            policy: Policy {
                sizing: NonZeroU32::new(64).map_or(Sizing::Widest, Sizing::Preferred),
                ..Policy::default()
            },
        }
    }
}

impl Config {
    /// What suits a device.
    pub fn of(device: &Device) -> Config {
        let mut config = Config::default();
        let capabilities = device.capabilities();
        // A processor that plays a GPU does for each vector of lanes again what is the same for the whole workgroup.
        if capabilities.kind == DeviceKind::SoftwareGpu
            && let Some(lanes) = capabilities.subgroup_size.and_then(NonZeroU32::new)
        {
            config.policy.sizing = Sizing::Preferred(lanes);
        }
        config
    }
}

/// The memory, operations and queue of a megakernel.
pub struct Session {
    pub(super) device: Device,
    pub(super) config: Config,
    pub(super) arena: Arena,
    pub(super) ops: Vec<Op>,
    /// How many items of each operation there were.
    pub(super) runs: Vec<u64>,
    pub(super) kernels: Kernels,
    pub(super) queue: Arc<Ring>,
    /// What was taken from the queue and is not done; what has run is an item of zeros.
    pub(super) pending: Vec<WorkItem>,
    /// What a drain did that failed.
    pub(super) unreported: Report,
    /// How many items are done.
    pub(super) done: u64,
    pub(super) faults: Buffer,
    pub(super) hits: [Buffer; 2],
    pub(super) hazards: Hazards,
    pub(super) windows: Windows,
    pub(super) pruner: Pruner,
    pub(super) worth: Worth,
    pub(super) pace: Pace,
    pub(super) planner: frontier::Planner,
    /// The memory of the slice before, which the next one uses again.
    pub(super) resolved: Vec<Resolved>,
    pub(super) batch: Batch,
}

impl Session {
    /// A session without operations on a device.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn new(device: &Device, config: Config) -> Result<Session, Error> {
        let arena = Arena::new(device, config.plain_words, config.atomic_words)?;
        let faults = device.allocate(Element::U32, 1 + config.slice as u64)?;
        let hits = [device.allocate(Element::U32, 0)?, device.allocate(Element::U32, 1)?];
        Ok(Session {
            device: device.clone(),
            arena,
            ops: Vec::new(),
            runs: Vec::new(),
            kernels: Kernels::new(device),
            queue: Arc::new(Ring::new(config.queue)),
            pending: Vec::new(),
            unreported: Report::default(),
            done: 0,
            faults,
            hits,
            hazards: Hazards::default(),
            windows: Windows::default(),
            pruner: Pruner::default(),
            worth: Worth::default(),
            pace: Pace::default(),
            planner: frontier::Planner::default(),
            resolved: Vec::new(),
            batch: Batch::default(),
            config,
        })
    }

    /// Adds an operation, and gives the handle by which items name it.
    pub fn register(&mut self, op: Op) -> u32 {
        self.ops.push(op);
        self.runs.push(0);
        self.kernels.forget_interpreters();
        self.ops.len() as u32
    }

    /// Takes zeroed words of the arena.
    ///
    /// # Errors
    /// There are not so many in one piece.
    pub fn allocate(&mut self, segment: Segment, words: u32) -> Result<Handle, Error> {
        let handle = self.arena.allocate(segment, words)?;
        self.arena.slice(handle)?.write(&vec![0; 4 * words as usize])?;
        Ok(handle)
    }

    /// Gives words back. What is in the queue must not name them.
    ///
    /// # Errors
    /// The handle names nothing.
    pub fn free(&mut self, handle: Handle) -> Result<(), Error> {
        self.arena.free(handle)
    }

    /// The words of a handle, to be written before a drain or read after it.
    ///
    /// # Errors
    /// The handle names nothing.
    pub fn memory(&self, handle: Handle) -> Result<Buffer, Error> {
        self.arena.slice(handle)
    }

    /// The queue, for threads that put items into it while this one drains it.
    pub fn queue(&self) -> Arc<Ring> {
        self.queue.clone()
    }

    /// Puts items into the queue, as far as there is room. Their effect is as if they were executed one after the other.
    pub fn submit(&self, items: &[WorkItem]) -> Pushed {
        self.queue.push(items, Otherwise::Return)
    }

    /// Waits until all kernels that were asked for are compiled. Nobody has to: meanwhile, items are interpreted.
    pub fn finish_compiling(&mut self) {
        self.kernels.finish_all();
    }

    /// Items that were taken from the queue and are not known to be done, because a drain failed. The next one begins with them. Those
    /// that had run before it failed are items of zeros.
    pub fn pending(&self) -> &[WorkItem] {
        &self.pending
    }

    /// Executes what is in the queue, until there is nothing in it.
    ///
    /// # Errors
    /// The device was lost, or it or the budget lacks something. An item that cannot be executed is no error of this function. What was
    /// done before the error is in the next report.
    pub fn drain(&mut self) -> Result<Report, Error> {
        let start = Instant::now();
        let mut report = std::mem::take(&mut self.unreported);
        let result = self.slices(&mut report);
        report.elapsed += start.elapsed();
        match result {
            Ok(()) => Ok(report),
            Err(error) => {
                self.unreported = report;
                Err(error)
            }
        }
    }

    fn slices(&mut self, report: &mut Report) -> Result<(), Error> {
        loop {
            if self.pending.is_empty() {
                let drained = self.queue.drain(&mut self.pending, self.config.slice, Otherwise::Return);
                if !matches!(drained, Drained::Items(1..)) {
                    return Ok(());
                }
            }
            self.slice(report)?;
            report.items += self.pending.len() as u64;
            self.done += self.pending.len() as u64;
            self.pending.clear();
        }
    }
}
