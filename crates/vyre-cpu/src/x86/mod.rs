//! Code generator for x86-64 processors with AVX2 or AVX-512.
//!
//! # Terms
//!
//! - A *lane* is an invocation's slot in a vector register: 8 lanes of 32 bits with AVX2, 16 with AVX-512.
//! - A *pack* is a vector of lanes: one subgroup.
//! - A *tile* is the packs that the code computes together: `columns` side by side, which have consecutive invocations, and `rows` of
//!   them. A value has one copy for each position along the axes that it varies on; a value that is the same in all rows is computed
//!   once for them, which blocks a matrix product in registers.
//! - A *segment* is the code between two barriers. All tiles of a workgroup execute a segment before the first of them goes on with
//!   the next one; values that are live across the barrier are in memory, or are rematerialized.
//! - A *version* is one of several forms of the same block or loop. The *fast path* is the version for tiles whose lanes agree and
//!   whose accesses are known to be in bounds: it has neither masks nor checks. The *slow path* is the masked version, in cold blocks
//!   behind all others; the fast path jumps to it.
//!
//! ```text
//!   workgroup(32, 4), AVX2, tiles of 2 columns and 2 rows         code of a workgroup
//!
//!        x = 0..7   8..15    16..23   24..31                      for each tile ──────────────────┐
//!       ┌────────┬────────┬────────┬────────┐                       segment 0                     │
//!  y=0  │  pack  │  pack  │        │        │                       fast path ──┐ lanes differ,   │
//!       ├────────┼────────┤  tile 1         │                           │       │ or an access    │
//!  y=1  │  pack  │  pack  │        │        │                           │       ▼ out of bounds   │
//!       ├──── tile 0 ─────┼────────┼────────┤                           │   slow path (cold)      │
//!  y=2  │        │        │        │        │                           ▼       │                 │
//!       │     tile 2      │  tile 3         │                       live values → memory ◄────────┘
//!  y=3  │        │        │        │        │                     barrier
//!       └────────┴────────┴────────┴────────┘                     for each tile: segment 1 …
//! ```
//!
//! # Flow
//!
//! ```text
//!  Validated<Program> ──► plan::Plan ──► lower::Lowered ─────► machine::encode::Encoded ──► pages::Executable
//!                         decisions      Function over          bytes, constants             r-x pages
//!                                        virtual registers
//! ```
//!
//! [`plan`] decides without emitting code: tile, axes, bounds, segments, versions. [`lower`] walks the program once and
//! selects instructions according to the plan, which it does not change. [`machine`] is independent of the program:
//! dead-code elimination, sinking into slow paths, register allocation, encoding. [`service`] is the interface between
//! code and runtime, for operations that are rare or too complex to inline.

mod error;
mod lower;
mod machine;
mod plan;
mod service;

use std::cell::{Cell, RefCell};
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};

use rustc_hash::FxHashMap;
use vyre_foundation::Validated;
use vyre_foundation::ir::entity::SecondaryMap;
use vyre_foundation::ir::{Element, MemId, Program, Space};
use vyre_foundation::launch::Report;
use vyre_foundation::text;
use vyre_foundation::transform::private_words;

use crate::dispatch::{Account, Launch};
use crate::memory::{Block, View};
use crate::pool::Pool;
pub(crate) use error::Error;
use machine::assemble::Assembler;
use machine::encode::Encoded;
use machine::listing::listing as print_code;
use machine::pages::{self, Executable};
use plan::Plan;
use plan::entries::Entries;
use plan::shape::Tile;
use service::{Context, Site, Worker};

/// Vector instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Avx2,
    Avx512,
}

impl Level {
    /// Returns the best level that this processor has.
    pub(crate) fn detect() -> Option<Level> {
        macro_rules! has {
            ($($feature:tt),*) => { true $( && is_x86_feature_detected!($feature) )* };
        }
        if !has!("avx2", "fma", "bmi1", "bmi2", "lzcnt", "popcnt", "f16c") {
            return None;
        }
        let wide = has!("avx512f", "avx512bw", "avx512dq", "avx512vl");
        Some(if wide { Level::Avx512 } else { Level::Avx2 })
    }

    /// Number of 32-bit lanes of a vector; also the subgroup size.
    pub(crate) fn lanes(self) -> u32 {
        match self {
            Level::Avx2 => 8,
            Level::Avx512 => 16,
        }
    }
}

/// Elements of the longest object that code can access: indices are signed 32-bit integers.
pub(crate) const MAX_LENGTH: u64 = i32::MAX as u64;

/// Loop trips of a worker between two polls of fuel, deadline and cancellation.
const TRIPS_PER_POLL: u32 = 1 << 10;

/// Approximate number of invocations between two polls if no loop polls.
const INVOCATIONS_PER_CALL: u32 = 1 << 16;

/// Objects from this size on do not stay in the caches.
const STREAMED_BYTES: u64 = 32 << 20;

/// A program as machine code.
pub(crate) struct Kernel {
    level: Level,
    code: Executable,
    sites: Vec<Site>,
    tile: Tile,
    workgroup_size: u32,
    layout: MemoryLayout,
    entries: Entries,
    only_stored: SecondaryMap<MemId, bool>,
    /// Free list of worker frames.
    idle: Mutex<Vec<Frame>>,
}

/// Memory layout of a worker.
struct MemoryLayout {
    /// Location of each object; offsets of workgroup and private arrays in their memory.
    objects: SecondaryMap<MemId, Placed>,
    workgroup_bytes: u64,
    private_bytes: u64,
    spill_bytes: u64,
    group_bytes: u64,
}

#[derive(Clone, Copy)]
enum Placed {
    Storage,
    Uniform,
    Workgroup { offset: u64, length: u32 },
    Private { offset: u64, length: u32 },
}

/// Memory of a worker.
struct Frame {
    /// A [`Context`] and its [`Entries`].
    context: Block,
    workgroup: Block,
    private: Block,
    spill_area: Block,
    group: Block,
}

thread_local! {
    /// Buffers kept between programs.
    static ASSEMBLER: RefCell<Assembler> = RefCell::default();
}

/// Lowers and assembles a planned program; returns its code and call sites.
fn assemble(plan: &Plan<'_>) -> Result<(Encoded, Vec<Site>), Error> {
    let mut lowered = lower::lower(plan);
    let encoded = ASSEMBLER.with_borrow_mut(|assembler| assembler.assemble(&mut lowered.function))?;
    Ok((encoded, lowered.sites))
}

/// Maximum size of the values of a workgroup that are live across barriers, in bytes: offsets are computed in 32 bits.
const MAX_SPILL_BYTES: u64 = 1 << 30;

/// Compiles a program without functions of the math library.
///
/// # Errors
/// The code generator does not support the program, for the reason given.
pub(crate) fn compile(program: &Validated<Program>, level: Level) -> Result<Kernel, Error> {
    let program = &private_words(program)?;
    let plan = Plan::of(program, level);
    let (encoded, sites) = assemble(&plan)?;
    let layout = MemoryLayout::new(&plan);
    if layout.spill_bytes > MAX_SPILL_BYTES {
        return Err(Error::Spill { bytes: layout.spill_bytes });
    }
    let code = Executable::new(&encoded.bytes)?;
    pages::name_for_perf(&code, encoded.bytes.len(), program.name());
    Ok(Kernel {
        level,
        code,
        sites,
        tile: plan.shape.tile,
        workgroup_size: program.workgroup_size().iter().product(),
        layout,
        entries: plan.entries,
        only_stored: plan.only_stored,
        idle: Mutex::new(Vec::new()),
    })
}

/// Assembly listing, with each IR instruction printed before the machine instructions that it was lowered to.
///
/// # Errors
/// The code generator does not support the program.
pub(crate) fn listing(program: &Validated<Program>, level: Level) -> Result<String, Error> {
    let program = &private_words(program)?;
    let plan = Plan::of(program, level);
    let (encoded, _) = assemble(&plan)?;
    let lines = text::lines(program).into_iter();
    let lines: FxHashMap<u32, String> =
        lines.filter_map(|(line, inst)| Some((lower::origin(inst?), line.trim().to_owned()))).collect();
    let tile = plan.shape.tile;
    let shape = format!(
        "; {}: {} invocations at a time, {} rows of {} vectors of {} lanes\n",
        program.name(),
        tile.size(),
        tile.rows,
        tile.columns,
        tile.lanes
    );
    Ok(shape + &print_code(&encoded, |origin| lines.get(&origin).cloned()))
}

impl MemoryLayout {
    fn new(plan: &Plan<'_>) -> MemoryLayout {
        let (program, tile, segments) = (plan.program, plan.shape.tile, &plan.segments);
        let size: u32 = program.workgroup_size().iter().product();
        let tiles = u64::from(size.div_ceil(tile.size()));
        let private_tiles = if segments.split { tiles } else { 1 };
        let mut layout = MemoryLayout {
            objects: SecondaryMap::with_capacity(program.memories().len(), Placed::Storage),
            workgroup_bytes: 0,
            private_bytes: 0,
            spill_bytes: tiles * segments.bytes_per_tile as u64,
            group_bytes: segments.bytes_per_group as u64,
        };
        for (id, memory) in program.memories().iter() {
            let length = memory.length.unwrap_or(0);
            layout.objects[id] = match memory.space {
                Space::Storage(_) => Placed::Storage,
                Space::Uniform => Placed::Uniform,
                Space::Workgroup => {
                    let offset = layout.workgroup_bytes;
                    layout.workgroup_bytes += aligned(u64::from(length) * memory.element.size() as u64);
                    Placed::Workgroup { offset, length }
                }
                Space::Private => {
                    let offset = layout.private_bytes;
                    // Private elements have at least 32 bits.
                    let element = memory.element.size().max(Element::U32.size()) as u64;
                    let lanes = private_tiles * u64::from(tile.size());
                    layout.private_bytes += aligned(u64::from(length) * element * lanes);
                    Placed::Private { offset, length }
                }
            };
        }
        layout
    }
}

fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(64)
}

impl Kernel {
    fn frame(&self) -> Frame {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.unwrap_or_else(|| {
            let block = |bytes: u64| Block::new(bytes).expect("workgroup memory is limited");
            Frame {
                context: block((size_of::<Context>() + 16 * self.entries.count()) as u64),
                workgroup: block(self.layout.workgroup_bytes),
                private: block(self.layout.private_bytes),
                spill_area: block(self.layout.spill_bytes),
                group: block(self.layout.group_bytes),
            }
        })
    }

    fn recycle(&self, frame: Frame) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(frame);
    }

    /// First object with more than [`MAX_LENGTH`] elements of a type that it is accessed as, and their number. `length`
    /// returns the number of elements of the declared type.
    pub(crate) fn too_long(&self, length: impl Fn(MemId) -> Option<u64>) -> Option<(MemId, u64)> {
        let lengths = self
            .entries
            .iter()
            .filter_map(|(memory, element)| Some((memory, self.entries.length(memory, element, length(memory)?))));
        lengths.into_iter().find(|(_, length)| *length > MAX_LENGTH)
    }

    /// Executes a dispatch on all threads of the pool.
    pub(crate) fn run(&self, launch: &Launch<'_>, pool: &Pool) -> Report {
        let account = Account::new(launch);
        let groups = launch.groups.iter().map(|&groups| u64::from(groups)).product::<u64>();
        let per_piece = (groups / (8 * pool.threads() as u64)).max(1);
        let pieces = groups.div_ceil(per_piece) as u32;
        let body = |piece| {
            let first = u64::from(piece) * per_piece;
            let count = per_piece.min(groups - first);
            account.stopping_on_panic(|| self.piece(launch, &account, first as u32, count as u32));
        };
        pool.for_each_timed(pieces, &body, account.worker_spans.as_ref());
        account.report()
    }

    /// Address mask for non-temporal stores: a store streams if its address has none of these bits. 63 selects whole
    /// cache lines of an object larger than the caches, where streaming saves the read for ownership.
    fn stream(&self, launch: &Launch<'_>) -> u32 {
        let bytes = |(id, view): (MemId, &Option<View>)| match (view, self.only_stored[id]) {
            (Some(view), true) => u64::from(view.length) * view.element.size() as u64,
            _ => 0,
        };
        let largest = launch.storage.iter().map(bytes).max().unwrap_or(0);
        if largest >= STREAMED_BYTES { 63 } else { u32::MAX }
    }

    /// Executes a range of workgroups.
    fn piece(&self, launch: &Launch<'_>, account: &Account<'_>, first: u32, count: u32) {
        let frame = self.frame();
        // Small fuel limits are charged trip by trip, so that the report names the loop that exceeds them.
        let trips = if launch.limits.fuel < 1 << 20 { 1 } else { TRIPS_PER_POLL };
        let worker = Worker {
            account,
            sites: &self.sites,
            lanes: self.tile.lanes as usize,
            trips,
            workgroup: &frame.workgroup,
            private: &frame.private,
            spill_area: &frame.spill_area,
            panic: Cell::new(None),
        };
        let header = frame.context.at(0).cast::<Context>();
        let mut fields = Context::new(self.level, launch.groups, trips);
        fields.stream = self.stream(launch);
        fields.spill_area = frame.spill_area.at(0);
        fields.group_slots = frame.group.at(0);
        fields.worker = (&raw const worker).cast();
        // SAFETY: the block has room for a context and for an entry for each object, and `Kernel::frame` has taken the frame for this call alone.
        unsafe {
            header.write(fields);
            for (position, (id, element)) in self.entries.iter().enumerate() {
                let entry = frame.context.at(service::entry(position) as u64).cast::<u64>();
                let (start, length) = match self.layout.objects[id] {
                    Placed::Storage => {
                        let view = launch.storage[id].expect("storage is bound");
                        (view.start as u64, view.length)
                    }
                    Placed::Uniform => (launch.scalars[id], 1),
                    Placed::Workgroup { offset, length } => (frame.workgroup.at(offset) as u64, length),
                    Placed::Private { offset, length } => (frame.private.at(offset) as u64, length),
                };
                entry.write(start);
                entry.add(1).write(self.entries.length(id, element, length.into()));
            }
        }
        let per_call = (INVOCATIONS_PER_CALL / self.workgroup_size).max(1);
        let [x, y, _] = launch.groups;
        let mut done = 0;
        while done < count && account.check(None).is_ok() {
            let next = per_call.min(count - done);
            let index = first + done;
            // SAFETY: `enter` requires that the code was made for this context and that the worker outlives the call;
            // the writes to the header require exclusive access.
            // - Exclusive: `Kernel::frame` takes the frame out of `idle`, and `Kernel::recycle` returns it below.
            // - Context: the entries above are where `service::entry` places them, from which `lower` takes every
            //   address; `Kernel::too_long` has checked that lengths fit into the signed 32-bit indices of the code.
            // - Accesses stay inside the objects of the entries: `Plan::bounds` alone decides where a check is left
            //   out, `Lower::precheck`, `Object::skip_unless_inside`, `Object::load_or_zero` and `Emit::inside_mask`
            //   are the checks, and services check in `View::load`, `View::store` and `View::replace`.
            // - Workgroup, private and spill memory has the size of `MemoryLayout::new`, which has the same plan as the
            //   code.
            // - Code calls back only `Context::service`, with the numbers of sites that `Services::call` has pushed to
            //   `self.sites`.
            // - The stack: `Frame::new` of the encoder limits frames to `MAX_FRAME`, for which `stack::THREAD_STACK_SIZE` has
            //   room and `stack::holds_kernels` checks.
            unsafe {
                (*header).first = index;
                (*header).group = [index % x, index / x % y, index / x / y];
                (*header).groups = next;
                (*header).positions = next * self.workgroup_size;
                service::enter(header, self.code.entry());
                if (*header).stopped != 0 {
                    break;
                }
            }
            // A service panicked and left the code; the unwinding continues here.
            if let Some(panic) = worker.panic.take() {
                resume_unwind(panic);
            }
            done += next;
        }
        self.recycle(frame);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicBool;

    use vyre_foundation::launch::{Limits, Outcome};
    use vyre_foundation::{text, validate};

    use super::*;
    use crate::process::Process;

    /// Calls a service (the 64-bit remainder). Workgroup `g` spins until `g` workgroups are done, so a panic of one leaves others waiting.
    const REMAINDERS: &str = "program remainders workgroup(8) {
    read_write x: [u64]
    read_write atomic turn: [u32; 1]
    %g = group_index
    %i = global_index
    %v = load x[%i]
    %n = add %v, 3u64
    %r = rem %v, %n
    store x[%i], %r
    loop {
        %t = load turn[0]
        %mine = ge %t, %g
        if %mine {
            break
        }
    }
    %l = local_index
    %first = eq %l, 0
    if %first {
        atomic_add turn[0], 1
    }
}";

    #[test]
    fn a_panic_of_a_service_unwinds_from_the_dispatch_and_stops_waiting_workgroups() {
        let Some(level) = Level::detect() else { return };
        let program = validate::program(text::parse(REMAINDERS).unwrap().programs.swap_remove(0)).unwrap();
        let mut kernel = compile(&program, level).unwrap();
        let pool = Pool::new(2, Process::current().unwrap());
        let cancelled = AtomicBool::new(false);
        let run = |kernel: &Kernel| {
            let (x, turn) = (Block::new(8 * 64).unwrap(), Block::new(4).unwrap());
            let view = |block: &Block, length, element| {
                Some(View { start: block.at(0), length, element, lane_stride: 0, racing: true })
            };
            let mut storage = SecondaryMap::with_capacity(program.memories().len(), None);
            for (id, memory) in program.memories().iter() {
                storage[id] =
                    if memory.name == "x" { view(&x, 64, Element::U64) } else { view(&turn, 1, Element::U32) };
            }
            let scalars = SecondaryMap::with_capacity(program.memories().len(), 0);
            let launch =
                Launch { groups: [8, 1, 1], storage, scalars, limits: Limits::default(), cancelled: &cancelled };
            catch_unwind(AssertUnwindSafe(|| kernel.run(&launch, &pool).outcome))
        };
        assert!(matches!(run(&kernel), Ok(Outcome::Completed)));
        for site in &mut kernel.sites {
            if let Site::Evaluate { evaluator, .. } = site {
                *evaluator = |_| panic!("the evaluator is broken");
            }
        }
        let panic = run(&kernel).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"the evaluator is broken"));
    }
}
