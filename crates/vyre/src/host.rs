//! Kernels as plain Rust.
//!
//! What a kernel calls has a plain version here, so that rustc can check its body, and `host` can run it. What invocations do
//! together has no meaning for one of them alone, so kernels that do have no `host`; where they do it in a function that they call,
//! a use of `host` does not compile.
//!
//! ```compile_fail
//! #[vyre::kernel(inline)]
//! fn wait() {
//!     workgroup_barrier();
//! }
//!
//! #[vyre::kernel(workgroup = 64)]
//! fn waits(y: &mut [u32]) {
//!     wait();
//!     y[0] = 1;
//! }
//!
//! waits::host(1, &mut [0]);
//! ```

use std::cell::Cell;

use half::f16;
use vyre_foundation::build::Integer;
use vyre_foundation::ir::{Pure, Scalar};

use crate::IntoGrid;

/// A position or a size in three dimensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Id {
    pub x: usize,
    pub y: usize,
    pub z: usize,
}

impl Id {
    fn of([x, y, z]: [usize; 3]) -> Id {
        Id { x, y, z }
    }

    fn index(self, size: Id) -> usize {
        (self.z * size.y + self.y) * size.x + self.x
    }
}

/// Where the invocation stands that is being run.
#[derive(Clone, Copy, Default)]
struct Place {
    group: Id,
    local: Id,
    count: Id,
    size: Id,
}

thread_local! {
    static PLACE: Cell<Place> = Cell::new(Place::default());
}

/// Runs a body for every invocation of a grid, as a device would number them.
#[doc(hidden)]
pub fn run(grid: impl IntoGrid, size: [u32; 3], mut body: impl FnMut()) {
    let groups = grid.into_grid().and_then(|grid| Ok(grid.groups(size)?));
    let count = groups.unwrap_or_else(|error| panic!("{error}")).map(|count| count as usize);
    let size = size.map(|side| side as usize);
    let place = Place { count: Id::of(count), size: Id::of(size), ..Place::default() };
    for group in ids(count) {
        for local in ids(size) {
            PLACE.set(Place { group, local, ..place });
            body();
        }
    }
}

/// All positions in a box, in the order of their indices.
fn ids([x, y, z]: [usize; 3]) -> impl Iterator<Item = Id> {
    (0..z).flat_map(move |z| (0..y).flat_map(move |y| (0..x).map(move |x| Id::of([x, y, z]))))
}

/// The position of the invocation among all, workgroup by workgroup.
pub fn global_index() -> usize {
    let Place { size, .. } = PLACE.get();
    group_index() * size.x * size.y * size.z + local_index()
}

/// The position of the invocation in the grid.
pub fn global_id() -> Id {
    let Place { group, local, size, .. } = PLACE.get();
    Id { x: group.x * size.x + local.x, y: group.y * size.y + local.y, z: group.z * size.z + local.z }
}

/// The position of the invocation among those of its workgroup.
pub fn local_index() -> usize {
    let Place { local, size, .. } = PLACE.get();
    local.index(size)
}

/// The position of the invocation in its workgroup.
pub fn local_id() -> Id {
    PLACE.get().local
}

/// The position of the workgroup among all.
pub fn group_index() -> usize {
    let Place { group, count, .. } = PLACE.get();
    group.index(count)
}

/// The position of the workgroup in the grid.
pub fn group_id() -> Id {
    PLACE.get().group
}

/// How many workgroups there are.
pub fn group_count() -> Id {
    PLACE.get().count
}

/// How many invocations a workgroup has.
pub fn group_size() -> Id {
    PLACE.get().size
}

/// Ends the invocation, and makes the launch fail with a code.
pub fn trap(code: u32) -> ! {
    panic!("trap with code {code}");
}

/// Up to four neighbours in one access: `let [a, b] = load_wide(x, i);`.
pub fn load_wide<T: Copy, const N: usize>(slice: &[T], first: usize) -> [T; N] {
    std::array::from_fn(|position| slice[first + position])
}

/// Stores up to four neighbours in one access: `store_wide(y, i, [a, b]);`.
pub fn store_wide<T: Copy, const N: usize>(slice: &mut [T], first: usize, values: [T; N]) {
    slice[first..first + N].copy_from_slice(&values);
}

/// What a workgroup shares.
#[doc(hidden)]
pub fn shared<T, const N: usize>() -> [T; N] {
    panic!("a workgroup's memory has no meaning for one invocation alone");
}

macro_rules! together {
    ($($(#[doc = $doc:literal])+ $name:ident $(<$generic:ident>)? ($($argument:ident: $ty:ty),*) $(-> $result:ty)?;)*) => { $(
        $(#[doc = $doc])+
        pub fn $name $(<$generic>)? ($($argument: $ty),*) $(-> $result)? {
            $( let _ = $argument; )*
            panic!("`{}` has no meaning for one invocation alone: run the kernel on a device", stringify!($name));
        }
    )* };
}
together! {
    /// Waits for the workgroup; what was stored to shared memory before is seen after it.
    workgroup_barrier();
    /// Waits for the workgroup; what was stored to slices before is seen by it after it.
    storage_barrier();
    /// The value of the first invocation of the workgroup.
    broadcast<T>(value: T) -> T;
    /// How many invocations a subgroup has.
    subgroup_size() -> usize;
    /// The position of the subgroup in its workgroup.
    subgroup_id() -> usize;
    /// The position of the invocation in its subgroup.
    subgroup_lane() -> usize;
    /// The sum of the subgroup's values.
    subgroup_add<T>(value: T) -> T;
    /// The product of the subgroup's values.
    subgroup_mul<T>(value: T) -> T;
    /// The least of the subgroup's values.
    subgroup_min<T>(value: T) -> T;
    /// The greatest of the subgroup's values.
    subgroup_max<T>(value: T) -> T;
    /// The bits that all of the subgroup's values have.
    subgroup_and<T>(value: T) -> T;
    /// The bits that one of the subgroup's values has.
    subgroup_or<T>(value: T) -> T;
    /// The bits that an odd number of the subgroup's values have.
    subgroup_xor<T>(value: T) -> T;
    /// The sum of the values up to this invocation's.
    subgroup_inclusive_add<T>(value: T) -> T;
    /// The sum of the values before this invocation's.
    subgroup_exclusive_add<T>(value: T) -> T;
    /// The product of the values up to this invocation's.
    subgroup_inclusive_mul<T>(value: T) -> T;
    /// The product of the values before this invocation's.
    subgroup_exclusive_mul<T>(value: T) -> T;
    /// A bit for each invocation of the subgroup, which says whether its value is true.
    subgroup_ballot(value: bool) -> [u32; 4];
    /// The value of another invocation of the subgroup.
    subgroup_shuffle<T>(value: T, lane: usize) -> T;
    /// The value of the invocation `distance` lanes below; 0 if there is none.
    subgroup_shuffle_up<T>(value: T, distance: usize) -> T;
    /// The value of the invocation `distance` lanes above; 0 if there is none.
    subgroup_shuffle_down<T>(value: T, distance: usize) -> T;
    /// The value of the invocation whose lane differs in the bits of `mask`; 0 if there is none.
    subgroup_shuffle_xor<T>(value: T, mask: usize) -> T;
    /// The value of the subgroup's first invocation that has not ended.
    subgroup_broadcast_first<T>(value: T) -> T;
    /// Whether the value is true for all of the subgroup.
    subgroup_all(value: bool) -> bool;
    /// Whether the value is true for one of the subgroup.
    subgroup_any(value: bool) -> bool;
    /// Moves the values for which `keep` is true to the first lanes, in their order; the others get 0. Also returns how many there are.
    subgroup_compact<T>(value: T, keep: bool) -> (T, u32);
}

/// Methods of numbers that devices have and Rust has not, by the evaluators of the op table.
macro_rules! methods {
    ($(
        $(#[doc = $doc:literal])+
        $trait:ident($($ty:ty),+) { $($name:ident($($argument:ident: $argument_ty:ty),*) -> $result:ty = $op:ident;)* }
    )*) => { $(
        $(#[doc = $doc])+
        pub trait $trait: Scalar { $(
            #[doc = concat!("The operation `", stringify!($name), "`.")]
            #[must_use]
            fn $name(self $(, $argument: $argument_ty)*) -> $result {
                let evaluator = Pure::$op.info().evaluator(Self::TYPE, <$result>::TYPE);
                let evaluate = evaluator.expect("it is defined for all that have this method");
                Scalar::from_bits(evaluate(&[Scalar::to_bits(self) $(, Scalar::to_bits($argument))*]))
            }
        )* }
        $( impl $trait for $ty {} )+
    )* };
}
methods! {
    /// Words as four bytes, as two halves, or as normalized integers. The chapter on operations of the book defines these methods.
    Packed(u32) {
        unpack_f16_low() -> f32 = UnpackF16Low;
        unpack_f16_high() -> f32 = UnpackF16High;
        unpack_snorm16(lane: u32) -> f32 = UnpackSnorm16;
        unpack_unorm16(lane: u32) -> f32 = UnpackUnorm16;
        unpack_snorm8(lane: u32) -> f32 = UnpackSnorm8;
        unpack_unorm8(lane: u32) -> f32 = UnpackUnorm8;
        dot4_u8(b: u32, sum: u32) -> u32 = Dot4U8;
        dot4_i8(b: u32, sum: i32) -> i32 = Dot4I8;
        dot4_i8u8(b: u32, sum: i32) -> i32 = Dot4I8U8;
        add_u8x4(b: u32) -> u32 = AddU8x4;
        min_u8x4(b: u32) -> u32 = MinU8x4;
        max_u8x4(b: u32) -> u32 = MaxU8x4;
        min_i8x4(b: u32) -> u32 = MinI8x4;
        max_i8x4(b: u32) -> u32 = MaxI8x4;
        eq_u8x4(b: u32) -> u32 = EqU8x4;
        lt_u8x4(b: u32) -> u32 = LtU8x4;
        lookup_u8x4(t0: u32, t1: u32, t2: u32, t3: u32) -> u32 = LookupU8x4;
        pack_u8_clamp(b: u32, c: u32, d: u32) -> u32 = PackU8Clamp;
    }
    /// Signed integers as bytes of a word.
    PackSigned(i32) {
        pack_i8_clamp(b: i32, c: i32, d: i32) -> u32 = PackI8Clamp;
    }
    /// Floats rounded to fewer bits, and packed into words. The chapter on operations of the book defines these methods.
    PackFloats(f32) {
        pack_f16(high: f32) -> u32 = PackF16;
        quantize_f16() -> f32 = QuantizeF16;
        pack_snorm16(high: f32) -> u32 = PackSnorm16;
        pack_unorm16(high: f32) -> u32 = PackUnorm16;
        pack_snorm8(b: f32, c: f32, d: f32) -> u32 = PackSnorm8;
        pack_unorm8(b: f32, c: f32, d: f32) -> u32 = PackUnorm8;
    }
    /// Fraction and exponent of floats, and what is after the point.
    FloatParts(f16, f32, f64) {
        frexp_fraction() -> Self = FrexpFraction;
        frexp_exponent() -> i32 = FrexpExponent;
        modf_fraction() -> Self = ModfFraction;
    }
}

/// An integer that all invocations may change at once. All of its operations are relaxed.
#[derive(Clone, Debug, Default)]
pub struct Atomic<T: Copy>(Cell<T>);

macro_rules! fetch {
    ($($(#[doc = $doc:literal])+ $name:ident($old:ident, $value:ident) = $new:expr;)*) => { $(
        $(#[doc = $doc])+
        pub fn $name(&self, $value: T) -> T {
            let $old = self.0.get();
            self.0.set($new);
            $old
        }
    )* };
}

impl<T: Word> Atomic<T> {
    /// An integer with this value.
    pub fn new(value: T) -> Atomic<T> {
        Atomic(Cell::new(value))
    }

    /// What it is.
    pub fn load(&self) -> T {
        self.0.get()
    }

    /// Changes it.
    pub fn store(&self, value: T) {
        self.0.set(value);
    }

    fetch! {
        /// Adds, wrapping; gives what was there before.
        fetch_add(old, value) = old.plus(value);
        /// Subtracts, wrapping; gives what was there before.
        fetch_sub(old, value) = old.minus(value);
        /// Takes the lesser; gives what was there before.
        fetch_min(old, value) = old.min(value);
        /// Takes the greater; gives what was there before.
        fetch_max(old, value) = old.max(value);
        /// Keeps the bits that both have; gives what was there before.
        fetch_and(old, value) = old & value;
        /// Takes the bits that one of them has; gives what was there before.
        fetch_or(old, value) = old | value;
        /// Flips bits; gives what was there before.
        fetch_xor(old, value) = old ^ value;
        /// Changes it; gives what was there before.
        swap(old, value) = value;
    }

    /// Changes it if it is as expected; gives what was there before, and whether it was changed.
    pub fn compare_exchange(&self, expected: T, new: T) -> (T, bool) {
        let old = self.0.get();
        if old == expected {
            self.0.set(new);
        }
        (old, old == expected)
    }
}

/// Integers that can be atomic.
#[doc(hidden)]
#[allow(missing_docs)]
pub trait Word:
    Integer + Ord + std::ops::BitAnd<Output = Self> + std::ops::BitOr<Output = Self> + std::ops::BitXor<Output = Self>
{
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
}

macro_rules! words {
    ($($ty:ident)*) => { $(
        impl Word for $ty {
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
        }
    )* };
}
words! { i32 u32 i64 u64 }
