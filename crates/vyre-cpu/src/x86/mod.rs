//! Code for x86-64 processors with AVX2 or AVX-512.
//!
//! [`shape`] says how the invocations of a workgroup are laid out over vector registers and along which directions each value
//! differs, and [`tiling`] chooses among layouts. [`lower`] goes through the program and writes [`machine`] code over virtual
//! registers: [`segments`] between barriers, [`flow`] of control and masks, [`select`] for operations, [`place`] for positions,
//! [`subgroup`] for what lanes exchange, [`access`] for memory and [`ahead`] for checks of it. [`mod@assemble`] removes what nobody
//! needs, chooses registers and encodes; [`pages`] makes the bytes executable. What code cannot do, or rarely does, it has
//! [`service`] do.

mod access;
mod ahead;
mod allocate;
mod assemble;
mod emit;
mod encode;
mod flow;
mod fuse;
mod listing;
mod local;
mod lower;
mod machine;
mod pages;
mod place;
mod prune;
mod segments;
mod select;
mod service;
mod shape;
mod sink;
mod subgroup;
mod tiling;

use std::cell::{Cell, RefCell};
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};

use rustc_hash::FxHashMap;
use vyre_foundation::Validated;
use vyre_foundation::ir::entity::SecondaryMap;
use vyre_foundation::ir::{Element, MemId, Program, Space};
use vyre_foundation::launch::Report;
use vyre_foundation::text;

use crate::dispatch::{Account, Launch};
use crate::memory::{Block, View};
use crate::pool::Pool;
use assemble::Assembler;
use encode::Encoded;
use pages::Executable;
use service::{Context, Site, Worker};
use shape::Tile;

/// What vector instructions code may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Avx2,
    Avx512,
}

impl Level {
    /// The best that this processor has.
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

    /// Lanes of 32 bits of a vector; also the size of subgroups.
    pub(crate) fn lanes(self) -> u32 {
        match self {
            Level::Avx2 => 8,
            Level::Avx512 => 16,
        }
    }
}

/// How many loop trips a worker takes between two looks at the clock and at what others do.
const TRIPS_PER_POLL: u32 = 1 << 10;

/// About how many invocations are executed between two looks at the clock, if no loop looks.
const INVOCATIONS_PER_CALL: u32 = 1 << 16;

/// An object of so many bytes does not stay in the caches.
const STREAMED_BYTES: u64 = 32 << 20;

/// A program as machine code.
pub(crate) struct Kernel {
    level: Level,
    code: Executable,
    sites: Vec<Site>,
    tile: Tile,
    workgroup_size: u32,
    layout: MemoryLayout,
    only_stored: SecondaryMap<MemId, bool>,
    /// Memory of workers that is not in use.
    idle: Mutex<Vec<Frame>>,
}

/// Where arrays of a worker are.
struct MemoryLayout {
    /// What each object is; offsets of workgroup and private arrays in their memory.
    objects: SecondaryMap<MemId, Placed>,
    workgroup_bytes: u64,
    private_bytes: u64,
    kept_bytes: u64,
    group_bytes: u64,
}

#[derive(Clone, Copy)]
enum Placed {
    Storage,
    Uniform,
    Workgroup { offset: u64, length: u32 },
    Private { offset: u64, length: u32 },
}

/// The memory of a worker.
struct Frame {
    /// A [`Context`] and an entry for each object.
    context: Block,
    workgroup: Block,
    private: Block,
    kept: Block,
    group: Block,
}

thread_local! {
    /// Tables and buffers that are worth keeping from one program to the next.
    static ASSEMBLER: RefCell<Assembler> = RefCell::default();
}

/// Lowers a program and assembles its code.
fn assemble(program: &Validated<Program>, level: Level) -> Result<(lower::Lowered, Encoded), String> {
    let tile = tiling::choose(program, level);
    let mut lowered = lower::lower(program, tile);
    let encoded = ASSEMBLER.with_borrow_mut(|assembler| assembler.assemble(&mut lowered.function))?;
    Ok((lowered, encoded))
}

/// Bytes that a workgroup may keep over barriers. Code finds them by 32-bit arithmetic.
const MOST_KEPT: u64 = 1 << 30;

/// Compiles a program without functions of the math library.
///
/// # Errors
/// There is no code for it, for the reason given; that is no fault of the program.
pub(crate) fn compile(program: &Validated<Program>, level: Level) -> Result<Kernel, String> {
    let (lowered, encoded) = assemble(program, level)?;
    let layout = MemoryLayout::new(program, &lowered);
    if layout.kept_bytes > MOST_KEPT {
        return Err(format!("its workgroups keep {} bytes over barriers", layout.kept_bytes));
    }
    let code = Executable::new(&encoded.bytes)?;
    pages::name_for_perf(&code, encoded.bytes.len(), &program.name);
    Ok(Kernel {
        level,
        code,
        sites: lowered.sites,
        tile: lowered.tile,
        workgroup_size: program.workgroup_size.iter().product(),
        layout,
        only_stored: lowered.only_stored,
        idle: Mutex::new(Vec::new()),
    })
}

/// The code of a program as text: before the instructions of the processor, those of the program that they were made for.
///
/// # Errors
/// There is no code for it.
pub(crate) fn listing(program: &Validated<Program>, level: Level) -> Result<String, String> {
    let (lowered, encoded) = assemble(program, level)?;
    let lines = text::lines(program).into_iter();
    let lines: FxHashMap<u32, String> =
        lines.filter_map(|(line, inst)| Some((lower::origin(inst?), line.trim().to_owned()))).collect();
    let tile = lowered.tile;
    let shape = format!(
        "; {}: {} invocations at a time, {} rows of {} vectors of {} lanes\n",
        program.name,
        tile.size(),
        tile.rows,
        tile.columns,
        tile.lanes
    );
    Ok(shape + &listing::listing(&encoded, |origin| lines.get(&origin).cloned()))
}

impl MemoryLayout {
    fn new(program: &Program, lowered: &lower::Lowered) -> MemoryLayout {
        let size: u32 = program.workgroup_size.iter().product();
        let tiles = u64::from(size.div_ceil(lowered.tile.size()));
        let private_tiles = if lowered.split { tiles } else { 1 };
        let mut layout = MemoryLayout {
            objects: SecondaryMap::with_capacity(program.memory.len(), Placed::Storage),
            workgroup_bytes: 0,
            private_bytes: 0,
            kept_bytes: tiles * lowered.bytes_per_tile as u64,
            group_bytes: lowered.bytes_per_group as u64,
        };
        for (id, memory) in program.memory.iter() {
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
                    // Elements of less than 32 bits have 32.
                    let element = memory.element.size().max(Element::U32.size()) as u64;
                    let lanes = private_tiles * u64::from(lowered.tile.size());
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
                context: block((size_of::<Context>() + 16 * self.layout.objects.values().count()) as u64),
                workgroup: block(self.layout.workgroup_bytes),
                private: block(self.layout.private_bytes),
                kept: block(self.layout.kept_bytes),
                group: block(self.layout.group_bytes),
            }
        })
    }

    fn give_back(&self, frame: Frame) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(frame);
    }

    /// Whether objects are short enough: code has signed indices of 32 bits.
    pub(crate) fn can_run(launch: &Launch<'_>) -> bool {
        launch.storage.values().flatten().all(|view| i32::try_from(view.length).is_ok())
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
        pool.for_each_timed(pieces, &body, account.worked.as_ref());
        account.report()
    }

    /// The bits that an address must not have for a store to go past the caches: into an object that is larger than they are, such
    /// a store saves reading what it overwrites.
    fn stream(&self, launch: &Launch<'_>) -> u32 {
        let bytes = |(id, view): (MemId, &Option<View>)| match (view, self.only_stored[id]) {
            (Some(view), true) => u64::from(view.length) * view.element.size() as u64,
            _ => 0,
        };
        let largest = launch.storage.iter().map(bytes).max().unwrap_or(0);
        if largest >= STREAMED_BYTES { 63 } else { u32::MAX }
    }

    /// Executes some workgroups.
    fn piece(&self, launch: &Launch<'_>, account: &Account<'_>, first: u32, count: u32) {
        let frame = self.frame();
        // A small budget is paid trip by trip, so that it ends where it is used up.
        let trips = if launch.limits.fuel < 1 << 20 { 1 } else { TRIPS_PER_POLL };
        let worker = Worker {
            account,
            sites: &self.sites,
            lanes: self.tile.lanes as usize,
            trips,
            workgroup: &frame.workgroup,
            private: &frame.private,
            kept: &frame.kept,
            panic: Cell::new(None),
        };
        let header = frame.context.at(0).cast::<Context>();
        let mut fields = Context::new(self.level, launch.groups, trips);
        fields.stream = self.stream(launch);
        fields.kept = frame.kept.at(0);
        fields.group_slots = frame.group.at(0);
        fields.worker = (&raw const worker).cast();
        // SAFETY: the block has room for a context and for an entry for each object, and nobody else has the frame.
        unsafe {
            header.write(fields);
            for (id, &placed) in self.layout.objects.iter() {
                let entry = frame.context.at(service::object(id) as u64).cast::<u64>();
                let (start, length) = match placed {
                    Placed::Storage => {
                        let view = launch.storage[id].expect("storage is bound");
                        (view.start as u64, view.length)
                    }
                    Placed::Uniform => (launch.scalars[id], 1),
                    Placed::Workgroup { offset, length } => (frame.workgroup.at(offset) as u64, length),
                    Placed::Private { offset, length } => (frame.private.at(offset) as u64, length),
                };
                entry.write(start);
                entry.add(1).write(u64::from(length));
            }
        }
        let per_call = (INVOCATIONS_PER_CALL / self.workgroup_size).max(1);
        let [x, y, _] = launch.groups;
        let mut done = 0;
        while done < count && account.check(None).is_ok() {
            let next = per_call.min(count - done);
            let index = first + done;
            // SAFETY: nobody else has the context. The code was made for such a context, keeps to the memory of the objects
            // in it, and calls back only what stands in it.
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
            // A panic of a service has left the code; it goes on to unwind from here.
            if let Some(panic) = worker.panic.take() {
                resume_unwind(panic);
            }
            done += next;
        }
        self.give_back(frame);
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

    /// The runtime computes the remainder of 64-bit integers; workgroup 3 waits for workgroup 2.
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
            let mut storage = SecondaryMap::with_capacity(program.memory.len(), None);
            for (id, memory) in program.memory.iter() {
                storage[id] =
                    if memory.name == "x" { view(&x, 64, Element::U64) } else { view(&turn, 1, Element::U32) };
            }
            let scalars = SecondaryMap::with_capacity(program.memory.len(), 0);
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
