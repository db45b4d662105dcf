//! What generated code and the runtime know of each other: the context that code is called with, and the one function that it
//! calls back.
//!
//! A call passes lanes in scratch memory: a mask at [`MASK`], where an array is, and values in [`slot`]s. What is to be done
//! is a [`Site`], by its number.

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

/// What generated code is called with. The entries of memory objects follow it: where each starts, or the bits of a uniform,
/// and its length.
#[repr(C)]
pub(crate) struct Context {
    /// Loop trips before the next poll.
    pub(crate) budget: u32,
    /// Not 0 if everything is given up.
    pub(crate) stopped: u32,
    /// Workgroups of the grid.
    pub(crate) counts: [u32; 3],
    /// The workgroup that comes next.
    pub(crate) group: [u32; 3],
    /// Its linear index.
    pub(crate) first: u32,
    /// How many workgroups are left.
    pub(crate) groups: u32,
    /// How many invocations there are, if workgroups are merged.
    pub(crate) positions: u32,
    /// Bits that an address must not have for a store to go past the caches.
    pub(crate) stream: u32,
    /// What tiles keep between segments.
    pub(crate) kept: *mut u8,
    /// What a workgroup keeps between segments.
    pub(crate) group_slots: *mut u8,
    /// What the code calls, with its context in `r15` and the number of the site in `rsi`.
    pub(crate) service: unsafe extern "sysv64" fn(),
    /// The scratch memory of the code, which says so when it starts.
    pub(crate) scratch: *mut u8,
    /// The stack pointer of [`enter`], to which it returns when a service panics.
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
pub(crate) const KEPT: i32 = std::mem::offset_of!(Context, kept) as i32;
pub(crate) const GROUP_SLOTS: i32 = std::mem::offset_of!(Context, group_slots) as i32;
pub(crate) const SCRATCH_START: i32 = std::mem::offset_of!(Context, scratch) as i32;
const ENTERED: usize = std::mem::offset_of!(Context, entered);
pub(crate) const SERVICE: i32 = std::mem::offset_of!(Context, service) as i32;

/// Offset of an [entry](super::plan::entries) in the context: its start, and 8 bytes further its length.
pub(crate) fn entry(position: usize) -> i32 {
    (size_of::<Context>() + 16 * position) as i32
}

/// The mask in scratch memory: 32 bits for each lane.
pub(crate) const MASK: i32 = 0;
/// Where the elements of a private array start.
pub(crate) const START: i32 = 64;
/// Bytes of the lanes of a value.
pub(crate) const SLOT: i32 = 128;
/// The least scratch memory.
pub(crate) const SCRATCH: u32 = 128;

/// Where lanes of a value are in scratch memory.
pub(crate) fn slot(number: usize) -> i32 {
    128 + SLOT * number as i32
}

/// Something generated code has the runtime do.
pub(crate) enum Site {
    /// Computes, lane by lane.
    Evaluate { evaluator: Eval, operands: SmallVec<[Type; 4]>, result: Type },
    /// Loads elements. Slot 0: indices; then the elements.
    Gather { array: Array, count: usize },
    /// Stores elements. Slot 0: indices; then the elements.
    Scatter { array: Array, count: usize },
    /// Changes elements. Slot 0: indices; 1: operands; 3: results.
    Atomic { array: Array, op: Atomic, ty: Type, shared: bool },
    /// Replaces elements that have an expected value. Slot 0: indices; 1 and 2: operands; 3 and 4: results.
    CompareExchange { array: Array, ty: Type },
    /// Exchanges between lanes. Slots 0 and 1: operands; 2: the first result.
    Subgroup { op: Subgroup, ty: Type },
    /// Prints. Slot 0: invocations; then the operands.
    Print { format: Box<str>, types: Vec<Type> },
    /// Traps. Slot 0: invocations; 1: codes.
    Trap { span: Span },
    /// Pays for trips: the number of active lanes is at the start of scratch memory.
    Poll { span: Span },
    /// Makes memory of a workgroup zero.
    ClearGroup,
    /// Makes private memory of a tile zero.
    ClearTile,
}

/// An array that is accessed lane by lane.
#[derive(Clone, Copy)]
pub(crate) struct Array {
    /// Offset of its entry in the context.
    pub(crate) entry: i32,
    /// The element in memory.
    pub(crate) element: Element,
    pub(crate) private: Option<Private>,
}

/// A private array, which starts where the call says.
#[derive(Clone, Copy)]
pub(crate) struct Private {
    /// How far apart the elements of a lane are.
    pub(crate) stride: u64,
    /// The place of the first lane among those of the tile.
    pub(crate) column: u64,
    pub(crate) length: u64,
}

/// A worker while it executes generated code.
pub(crate) struct Worker<'a> {
    pub(crate) account: &'a Account<'a>,
    pub(crate) sites: &'a [Site],
    /// Lanes of a pack.
    pub(crate) lanes: usize,
    /// How many trips between two polls.
    pub(crate) trips: u32,
    pub(crate) workgroup: &'a Block,
    pub(crate) private: &'a Block,
    pub(crate) kept: &'a Block,
    /// The panic because of which the code was left.
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
    /// The offset lies inside.
    unsafe fn word(self, offset: i32) -> u64 {
        // SAFETY: promised by the caller; offsets are multiples of 8 and scratch memory is aligned.
        unsafe { self.start.add(offset as usize).cast::<u64>().read() }
    }

    fn is_active(self, lane: usize) -> bool {
        // SAFETY: the mask is at the start of scratch memory.
        unsafe { self.start.cast::<u32>().add(lane).read() != 0 }
    }

    /// The bits of a value that was passed.
    fn get(self, number: usize, lane: usize, ty: Type) -> u64 {
        // SAFETY: code passes what the site asks for.
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
        // SAFETY: as above; code leaves room for what it gets back.
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

    /// The elements of an array.
    ///
    /// # Safety
    /// The context is that of the code.
    unsafe fn view(self, context: *const Context, array: &Array) -> View {
        // SAFETY: the entries of objects follow the context; code passes where a private array starts.
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
    /// The position of a lane's element at an index; outside of every view if the index is.
    fn position(&self, lane: usize, index: u64) -> u64 {
        match self.private {
            None => index,
            Some(private) if index < private.length => index * private.stride + private.column + lane as u64,
            Some(_) => u64::from(u32::MAX),
        }
    }
}

/// Calls generated code with its context. If a service panics, the code is not continued, and this returns as if it had.
///
/// # Safety
/// The code was made for such a context, and its worker lives as long as the call.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn enter(context: *mut Context, code: unsafe extern "sysv64" fn(*mut u8)) {
    std::arch::naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        // Holds the floating point state, and aligns the stack to 16 bytes.
        "sub rsp, 8",
        "stmxcsr [rsp]",
        "mov [rdi + {entered}], rsp",
        "call rsi",
        "jmp {restore}",
        entered = const ENTERED,
        restore = sym restore,
    )
}

/// Leaves generated code from a service, with the context in `r15`, by returning from [`enter`]. The frames that are skipped are those
/// of the code and of the function that called the service, which own nothing.
///
/// # Safety
/// Jumped to from a service only.
#[unsafe(naked)]
unsafe extern "sysv64" fn leave() {
    std::arch::naked_asm!("mov rsp, [r15 + {entered}]", "jmp {restore}", entered = const ENTERED, restore = sym restore)
}

/// The end of [`enter`].
///
/// # Safety
/// Jumped to with the stack pointer of [`enter`] only.
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

/// Writes a function that keeps all registers and calls [`serve`]: a call that is rarely made must not make the code around it
/// keep values in memory. Vector registers are saved from the stack pointer up, and masks behind them.
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

/// The runtime function that generated code calls. Returns whether the code may go on: not after a panic, since results that code
/// relies on to be in range are missing then, and there is no way to unwind through code.
///
/// # Safety
/// Called for generated code only, with its own context.
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

/// Does what a site asks for.
///
/// # Safety
/// The context is that of the code, and the worker that of the context.
unsafe fn execute(context: *mut Context, worker: &Worker<'_>, site: &Site) {
    // SAFETY: code has set it when it started.
    let start = unsafe { (*context).scratch };
    let scratch = Scratch { start, lanes: worker.lanes };
    match site {
        Site::Evaluate { evaluator, operands, result } => {
            // Results go where the first operand was, and may be wider.
            let mut computed = [0; subgroup::LARGEST];
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
        Site::Atomic { array, op, ty, shared } => {
            // SAFETY: this is the code's context.
            let view = unsafe { scratch.view(context, array) };
            atomic(&view, *op, *ty, *shared, scratch);
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
            let given: SmallVec<[Option<u64>; subgroup::LARGEST]> =
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
            let paid = worker.account.pay(u64::from(active) * u64::from(worker.trips), *span);
            if paid.and_then(|()| worker.account.check(Some(*span))).is_err() {
                // SAFETY: as above.
                unsafe { (*context).stopped = 1 };
            }
        }
        Site::ClearGroup => {
            worker.workgroup.clear();
            worker.kept.clear();
            worker.private.clear();
        }
        Site::ClearTile => worker.private.clear(),
    }
}

fn atomic(view: &View, op: Atomic, ty: Type, shared: bool, scratch: Scratch) {
    let update = update_function(op, ty, shared);
    // SAFETY: indices, mask, operands and results have their places in scratch memory, which is no object's; the function is
    // for the type.
    unsafe {
        let indices = std::slice::from_raw_parts(scratch.start.add(slot(0) as usize).cast::<u32>(), scratch.lanes);
        let mask = std::slice::from_raw_parts(scratch.start.cast::<u32>(), scratch.lanes);
        let (given, taken) = (scratch.start.add(slot(1) as usize), scratch.start.add(slot(3) as usize));
        update(view, indices, mask, given, taken);
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
            kept: std::ptr::null_mut(),
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
