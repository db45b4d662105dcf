//! Interface between generated code and the runtime: the context that code is called with, and the service function
//! that it calls.
//!
//! A call passes lanes in scratch memory: a mask at [`MASK`], the address of an array, and values in [`slot`]s. The
//! operation is a [`Site`], passed by number.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use smallvec::SmallVec;
use vyre_foundation::ir::ops::{Atomic, Eval, Exchange, Subgroup};
use vyre_foundation::ir::{Element, Literal, Span, Type};

use super::Level;
use crate::dispatch::Account;
use crate::memory::{Block, View, update_function};
use crate::subgroup;

/// Context of generated code. The entries of memory objects follow it: base address, or the bits of a uniform, and
/// length.
#[repr(C)]
pub(crate) struct Context {
    /// Loop trips before the next poll.
    pub(crate) budget: u32,
    /// Nonzero if the dispatch is abandoned.
    pub(crate) stopped: u32,
    /// Workgroups of the grid.
    pub(crate) counts: [u32; 3],
    /// Id of the next workgroup.
    pub(crate) group: [u32; 3],
    /// Its linear index.
    pub(crate) first: u32,
    /// Number of remaining workgroups.
    pub(crate) groups: u32,
    /// Number of invocations, if workgroups are merged.
    pub(crate) positions: u32,
    /// Address mask for non-temporal stores: a store streams if its address has none of these bits.
    pub(crate) stream: u32,
    /// Memory of tiles for values live across barriers.
    pub(crate) spill_area: *mut u8,
    /// Memory of the workgroup for values live across barriers.
    pub(crate) group_slots: *mut u8,
    /// Service function, called with the context in `r15` and the number of the site in `rsi`.
    pub(crate) service: unsafe extern "sysv64" fn(),
    /// Scratch memory of the code, which sets this on entry.
    pub(crate) scratch: *mut u8,
    /// Stack pointer of [`enter`], restored when a service panics.
    pub(crate) entered: *mut u8,
    pub(crate) worker: *const Worker<'static>,
}

pub(crate) const BUDGET: i32 = std::mem::offset_of!(Context, budget) as i32;
pub(crate) const STOPPED: i32 = std::mem::offset_of!(Context, stopped) as i32;
pub(crate) const COUNTS: i32 = std::mem::offset_of!(Context, counts) as i32;
pub(crate) const GROUP: i32 = std::mem::offset_of!(Context, group) as i32;
pub(crate) const FIRST: i32 = std::mem::offset_of!(Context, first) as i32;
pub(crate) const GROUPS: i32 = std::mem::offset_of!(Context, groups) as i32;
pub(crate) const POSITIONS: i32 = std::mem::offset_of!(Context, positions) as i32;
pub(crate) const STREAM: i32 = std::mem::offset_of!(Context, stream) as i32;
pub(crate) const SPILL_AREA: i32 = std::mem::offset_of!(Context, spill_area) as i32;
pub(crate) const GROUP_SLOTS: i32 = std::mem::offset_of!(Context, group_slots) as i32;
pub(crate) const SCRATCH_START: i32 = std::mem::offset_of!(Context, scratch) as i32;
const ENTERED: usize = std::mem::offset_of!(Context, entered);
pub(crate) const SERVICE: i32 = std::mem::offset_of!(Context, service) as i32;

/// Offset of an [entry](super::plan::entries) in the context: the base address, and 8 bytes further the length.
pub(crate) fn entry(position: usize) -> i32 {
    (size_of::<Context>() + 16 * position) as i32
}

/// Offset of the mask in scratch memory: 32 bits for each lane.
pub(crate) const MASK: i32 = 0;
/// Offset of the base address of a private array.
pub(crate) const START: i32 = 64;
/// Bytes of the lanes of a value.
pub(crate) const SLOT: i32 = 128;
/// Minimum size of scratch memory.
pub(crate) const SCRATCH: u32 = 128;

/// Offset of a value's lanes in scratch memory.
pub(crate) fn slot(number: usize) -> i32 {
    128 + SLOT * number as i32
}

/// Operation at a call site.
pub(crate) enum Site {
    /// Evaluates a pure operation, lane by lane.
    Evaluate { evaluator: Eval, operands: SmallVec<[Type; 4]>, result: Type },
    /// Loads elements. Slot 0: indices; then the elements.
    Gather { array: Array, count: usize },
    /// Stores elements. Slot 0: indices; then the elements.
    Scatter { array: Array, count: usize },
    /// Atomic update. Slot 0: indices; 1: operands; 3: results.
    Atomic { array: Array, op: Atomic, ty: Type, shared: bool, span: Span },
    /// Atomic compare-exchange. Slot 0: indices; 1 and 2: operands; 3 and 4: results.
    CompareExchange { array: Array, ty: Type },
    /// Subgroup operation. Slots 0 and 1: operands; 2: the first result.
    Subgroup { op: Subgroup, ty: Type },
    /// Prints. Slot 0: invocations; then the operands.
    Print { format: Box<str>, types: Vec<Type> },
    /// Traps. Slot 0: invocations; 1: codes.
    Trap { span: Span },
    /// Charges fuel: the number of active lanes is at the start of scratch memory.
    Poll { span: Span },
    /// Zeroes the memory of a workgroup.
    ClearGroup,
    /// Zeroes the private memory of a tile.
    ClearTile,
}

/// An array accessed lane by lane.
#[derive(Clone, Copy)]
pub(crate) struct Array {
    /// Offset of its entry in the context.
    pub(crate) entry: i32,
    /// Element type in memory.
    pub(crate) element: Element,
    pub(crate) private: Option<Private>,
}

/// A private array, whose base address the call passes.
#[derive(Clone, Copy)]
pub(crate) struct Private {
    /// Distance between the elements of a lane.
    pub(crate) stride: u64,
    /// Position of the pack's first lane in the tile.
    pub(crate) column: u64,
    pub(crate) length: u64,
}

/// Worker state during a call of generated code.
pub(crate) struct Worker<'a> {
    pub(crate) account: &'a Account<'a>,
    pub(crate) sites: &'a [Site],
    /// Lanes of a pack.
    pub(crate) lanes: usize,
    /// Loop trips between two polls.
    pub(crate) trips: u32,
    pub(crate) workgroup: &'a Block,
    pub(crate) private: &'a Block,
    pub(crate) spill_area: &'a Block,
    /// Panic of a service that ended the call.
    pub(crate) panic: Cell<Option<Box<dyn Any + Send>>>,
}

/// Lanes in scratch memory.
#[derive(Clone, Copy)]
struct Scratch {
    start: *mut u8,
    lanes: usize,
}

impl Scratch {
    /// # Safety
    /// The offset is inside scratch memory.
    unsafe fn word(self, offset: i32) -> u64 {
        // SAFETY: promised by the caller; offsets are multiples of 8 and scratch memory is aligned.
        unsafe { self.start.add(offset as usize).cast::<u64>().read() }
    }

    fn is_active(self, lane: usize) -> bool {
        // SAFETY: the mask is at the start of scratch memory.
        unsafe { self.start.cast::<u32>().add(lane).read() != 0 }
    }

    /// Bits of a passed value.
    fn get(self, number: usize, lane: usize, ty: Type) -> u64 {
        // SAFETY: code passes the slots that the site requires.
        unsafe {
            let start = self.start.add(slot(number) as usize);
            match ty {
                Type::I64 | Type::U64 | Type::F64 => start.cast::<u64>().add(lane).read(),
                Type::Bool => u64::from(start.cast::<u32>().add(lane).read() != 0),
                Type::I32 | Type::U32 | Type::F32 | Type::F16 => u64::from(start.cast::<u32>().add(lane).read()),
            }
        }
    }

    fn set(self, number: usize, lane: usize, ty: Type, bits: u64) {
        // SAFETY: as above; code reserves the slots of results.
        unsafe {
            let start = self.start.add(slot(number) as usize);
            match ty {
                Type::I64 | Type::U64 | Type::F64 => start.cast::<u64>().add(lane).write(bits),
                _ => start.cast::<u32>().add(lane).write(bits as u32),
            }
        }
    }

    fn active(self) -> impl Iterator<Item = usize> {
        (0..self.lanes).filter(move |&lane| self.is_active(lane))
    }

    /// View of an array.
    ///
    /// # Safety
    /// The context is that of the code.
    unsafe fn view(self, context: *const Context, array: &Array) -> View {
        // SAFETY: the entries of objects follow the context; code passes the base address of a private array.
        let (start, length) = unsafe {
            let entry = context.cast::<u8>().add(array.entry as usize).cast::<u64>();
            match array.private {
                Some(_) => (self.word(START), u64::from(u32::MAX)),
                None => (entry.read(), entry.add(1).read()),
            }
        };
        View {
            start: start as *mut u8,
            length: length as u32,
            element: array.element,
            lane_stride: 0,
            racing: array.private.is_none(),
        }
    }
}

impl Array {
    /// Position of a lane's element at an index; out of bounds of the view if the index is.
    fn position(&self, lane: usize, index: u64) -> u64 {
        match self.private {
            None => index,
            Some(private) if index < private.length => index * private.stride + private.column + lane as u64,
            Some(_) => u64::from(u32::MAX),
        }
    }
}

/// Calls generated code with its context. If a service panics, abandons the code and returns normally.
///
/// # Safety
/// The code was compiled for this context, and its worker outlives the call.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn enter(context: *mut Context, code: unsafe extern "sysv64" fn(*mut u8)) {
    std::arch::naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        // Space for the floating-point state; also aligns the stack to 16 bytes.
        "sub rsp, 8",
        "stmxcsr [rsp]",
        "mov [rdi + {entered}], rsp",
        "call rsi",
        "jmp {restore}",
        entered = const ENTERED,
        restore = sym restore,
    )
}

/// Leaves generated code from a service, with the context in `r15`, by returning from [`enter`]. The skipped frames, of
/// the code and of the function that called the service, own nothing.
///
/// # Safety
/// Only reached by a jump from a service.
#[unsafe(naked)]
unsafe extern "sysv64" fn leave() {
    std::arch::naked_asm!("mov rsp, [r15 + {entered}]", "jmp {restore}", entered = const ENTERED, restore = sym restore)
}

/// Epilogue of [`enter`].
///
/// # Safety
/// Only reached by a jump with the stack pointer of [`enter`].
#[unsafe(naked)]
unsafe extern "sysv64" fn restore() {
    std::arch::naked_asm!(
        "ldmxcsr [rsp]",
        "vzeroupper",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// Defines a function that preserves all registers and calls [`serve`]: rare calls must not force values of the
/// surrounding code into memory. Vector registers are saved from the stack pointer up, masks after them.
macro_rules! keeping {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $kind:literal of $size:literal: $($vector:literal)*; masks: $($mask:literal)*) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As for [`serve`].
        #[unsafe(naked)]
        unsafe extern "sysv64" fn $name() {
            std::arch::naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "push rax",
                "push rcx",
                "push rdx",
                "push rsi",
                "push rdi",
                "push r8",
                "push r9",
                "push r10",
                "push r11",
                concat!("sub rsp, ", $bytes),
                "and rsp, -64",
                $( concat!("vmovaps [rsp + ", $size, " * ", $vector, "], ", $kind, $vector), )*
                $( concat!("kmovq [rsp + 2048 + 8 * ", $mask, "], k", $mask), )*
                "vzeroupper",
                "mov rdi, r15",
                "call {serve}",
                "test al, al",
                "jz {leave}",
                $( concat!("vmovaps ", $kind, $vector, ", [rsp + ", $size, " * ", $vector, "]"), )*
                $( concat!("kmovq k", $mask, ", [rsp + 2048 + 8 * ", $mask, "]"), )*
                "lea rsp, [rbp - 72]",
                "pop r11",
                "pop r10",
                "pop r9",
                "pop r8",
                "pop rdi",
                "pop rsi",
                "pop rdx",
                "pop rcx",
                "pop rax",
                "pop rbp",
                "ret",
                serve = sym serve,
                leave = sym leave,
            )
        }
    };
}

keeping! {
    /// For code with AVX2.
    serve_avx2, 512, "ymm" of 32: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; masks:
}
keeping! {
    /// For code with AVX-512.
    serve_avx512, 2112, "zmm" of 64: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31;
    masks: 1 2 3 4 5 6 7
}

/// Service function, called by generated code. Returns whether the code may continue: not after a panic, because
/// results that the code assumes in range are missing, and code has no unwind tables.
///
/// # Safety
/// Called only by generated code, with its own context.
unsafe extern "sysv64" fn serve(context: *mut Context, site: u64) -> bool {
    // SAFETY: the context belongs to this call of generated code, and the worker lives as long.
    let worker = unsafe { &*(*context).worker };
    // SAFETY: promised by the caller.
    match catch_unwind(AssertUnwindSafe(|| unsafe { execute(context, worker, &worker.sites[site as usize]) })) {
        Ok(()) => true,
        Err(panic) => {
            worker.panic.set(Some(panic));
            false
        }
    }
}

/// Executes the operation of a site.
///
/// # Safety
/// The context is that of the code, and the worker that of the context.
unsafe fn execute(context: *mut Context, worker: &Worker<'_>, site: &Site) {
    // SAFETY: the code has set it on entry.
    let start = unsafe { (*context).scratch };
    let scratch = Scratch { start, lanes: worker.lanes };
    match site {
        Site::Evaluate { evaluator, operands, result } => {
            // Results overwrite the first operand, and may be wider.
            let mut computed = [0; subgroup::MAX_SUBGROUP_SIZE];
            for (lane, computed) in computed.iter_mut().enumerate().take(worker.lanes) {
                let given: SmallVec<[u64; 4]> =
                    operands.iter().enumerate().map(|(number, &ty)| scratch.get(number, lane, ty)).collect();
                *computed = evaluator(&given);
            }
            for (lane, &bits) in computed.iter().enumerate().take(worker.lanes) {
                scratch.set(0, lane, *result, bits);
            }
        }
        Site::Gather { array, count } => {
            // SAFETY: this is the code's context.
            let view = unsafe { scratch.view(context, array) };
            let ty = array.element.value_type();
            for lane in 0..worker.lanes {
                let index = scratch.get(0, lane, Type::U32);
                for number in 0..*count {
                    let position = array.position(lane, index + number as u64);
                    let bits = if scratch.is_active(lane) { view.load(0, position) } else { 0 };
                    scratch.set(1 + number, lane, ty, bits);
                }
            }
        }
        Site::Scatter { array, count } => {
            // SAFETY: this is the code's context.
            let view = unsafe { scratch.view(context, array) };
            let ty = array.element.value_type();
            for lane in scratch.active() {
                let index = scratch.get(0, lane, Type::U32);
                for number in 0..*count {
                    let position = array.position(lane, index + number as u64);
                    view.store(0, position, scratch.get(1 + number, lane, ty));
                }
            }
        }
        Site::Atomic { array, op, ty, shared, span } => {
            // SAFETY: this is the code's context.
            let view = unsafe { scratch.view(context, array) };
            let failed = atomic(&view, *op, *ty, *shared, scratch);
            if worker.account.charge(failed, *span).is_err() {
                // SAFETY: as above.
                unsafe { (*context).stopped = 1 };
            }
        }
        Site::CompareExchange { array, ty } => {
            // SAFETY: this is the code's context.
            let view = unsafe { scratch.view(context, array) };
            for lane in scratch.active() {
                let index = scratch.get(0, lane, Type::U32);
                let (expected, new) = (scratch.get(1, lane, *ty), scratch.get(2, lane, *ty));
                let inside = index < u64::from(view.length);
                let old = view.replace(index, |old| (old == expected).then_some(new));
                scratch.set(3, lane, *ty, old);
                scratch.set(4, lane, Type::Bool, u64::from(inside && old == expected));
            }
        }
        Site::Subgroup { op, ty } => {
            let given: SmallVec<[Option<u64>; subgroup::MAX_SUBGROUP_SIZE]> =
                (0..worker.lanes).map(|lane| scratch.is_active(lane).then(|| scratch.get(0, lane, *ty))).collect();
            let second_ty = match op.exchange() {
                Exchange::Shuffle(_) => Some(Type::U32),
                Exchange::Compact => Some(Type::Bool),
                Exchange::Ballot | Exchange::First | Exchange::Combine(..) => None,
            };
            let second = std::array::from_fn(|lane| match second_ty {
                Some(ty) if lane < worker.lanes => scratch.get(1, lane, ty),
                _ => 0,
            });
            let [gives, _] = subgroup::exchange(*op, *ty, &given, &second);
            for (lane, &bits) in gives.iter().enumerate().take(worker.lanes) {
                scratch.set(2, lane, *ty, bits);
            }
        }
        Site::Print { format, types } => {
            for lane in scratch.active() {
                let literals = types
                    .iter()
                    .enumerate()
                    .map(|(number, &ty)| Literal { ty, bits: scratch.get(1 + number, lane, ty) });
                worker.account.print(scratch.get(0, lane, Type::U32) as u32, format, literals);
            }
        }
        Site::Trap { span } => {
            if let Some(lane) = scratch.active().next() {
                let (invocation, code) = (scratch.get(0, lane, Type::U32), scratch.get(1, lane, Type::U32));
                worker.account.trap(invocation as u32, code as u32, *span, scratch.active().count() as u64);
            }
        }
        Site::Poll { span } => {
            // SAFETY: the count is at the start of scratch memory.
            let active = unsafe { scratch.start.cast::<u32>().read() };
            // SAFETY: as above.
            unsafe { (*context).budget = worker.trips };
            let paid = worker.account.charge(u64::from(active) * u64::from(worker.trips), *span);
            if paid.and_then(|()| worker.account.check(Some(*span))).is_err() {
                // SAFETY: as above.
                unsafe { (*context).stopped = 1 };
            }
        }
        Site::ClearGroup => {
            worker.workgroup.clear();
            worker.spill_area.clear();
            worker.private.clear();
        }
        Site::ClearTile => worker.private.clear(),
    }
}

/// Returns the number of failed compare-exchanges.
fn atomic(view: &View, op: Atomic, ty: Type, shared: bool, scratch: Scratch) -> u64 {
    let update = update_function(op, ty, shared);
    // SAFETY: indices, mask, operands and results have slots in scratch memory, which overlaps no object; the function
    // was selected for the type.
    unsafe {
        let indices = std::slice::from_raw_parts(scratch.start.add(slot(0) as usize).cast::<u32>(), scratch.lanes);
        let mask = std::slice::from_raw_parts(scratch.start.cast::<u32>(), scratch.lanes);
        let (given, taken) = (scratch.start.add(slot(1) as usize), scratch.start.add(slot(3) as usize));
        update(view, indices, mask, given, taken)
    }
}

impl Context {
    pub(crate) fn new(level: Level, counts: [u32; 3], trips: u32) -> Context {
        Context {
            budget: trips,
            stopped: 0,
            counts,
            group: [0; 3],
            first: 0,
            groups: 0,
            positions: 0,
            stream: u32::MAX,
            spill_area: std::ptr::null_mut(),
            group_slots: std::ptr::null_mut(),
            service: match level {
                Level::Avx2 => serve_avx2,
                Level::Avx512 => serve_avx512,
            },
            scratch: std::ptr::null_mut(),
            entered: std::ptr::null_mut(),
            worker: std::ptr::null(),
        }
    }
}
