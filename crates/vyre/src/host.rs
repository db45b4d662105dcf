//! Host versions of the functions that kernels call.
//!
//! rustc type-checks kernel bodies against these functions, and `saxpy::host(…)` runs the body with them, one invocation at a time.
//! Barriers, subgroup operations and workgroup memory need several invocations at once: kernels that use them directly have no `host`,
//! and if an inline function uses them, a call of `host` does not compile.
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
use vyre_foundation::build::{AtomicNumber, Integer};
use vyre_foundation::ir::{Pure, Scalar};

use crate::IntoGrid;

/// An index or a size in three dimensions.
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

/// Ids of the invocation that `host` is running.
#[derive(Clone, Copy, Default)]
struct InvocationIds {
    group: Id,
    local: Id,
    count: Id,
    size: Id,
}

thread_local! {
    static CURRENT: Cell<InvocationIds> = Cell::new(InvocationIds::default());
}

/// Runs a body for every invocation of a grid, in the order of their global indices.
#[doc(hidden)]
pub fn run(grid: impl IntoGrid, size: [u32; 3], mut body: impl FnMut()) {
    let groups = grid.into_grid().and_then(|grid| Ok(grid.groups(size)?));
    let count = groups.unwrap_or_else(|error| panic!("{error}")).map(|count| count as usize);
    let size = size.map(|side| side as usize);
    let shape = InvocationIds { count: Id::of(count), size: Id::of(size), ..InvocationIds::default() };
    for group in ids(count) {
        for local in ids(size) {
            CURRENT.set(InvocationIds { group, local, ..shape });
            body();
        }
    }
}

/// Iterates over all ids of a box, x fastest.
fn ids([x, y, z]: [usize; 3]) -> impl Iterator<Item = Id> {
    (0..z).flat_map(move |z| (0..y).flat_map(move |y| (0..x).map(move |x| Id::of([x, y, z]))))
}

/// Linear index of the invocation in the dispatch; workgroups are consecutive.
pub fn global_index() -> usize {
    let InvocationIds { size, .. } = CURRENT.get();
    group_index() * size.x * size.y * size.z + local_index()
}

/// Three-dimensional id of the invocation in the grid.
pub fn global_id() -> Id {
    let InvocationIds { group, local, size, .. } = CURRENT.get();
    Id { x: group.x * size.x + local.x, y: group.y * size.y + local.y, z: group.z * size.z + local.z }
}

/// Linear index of the invocation in its workgroup.
pub fn local_index() -> usize {
    let InvocationIds { local, size, .. } = CURRENT.get();
    local.index(size)
}

/// Three-dimensional id of the invocation in its workgroup.
pub fn local_id() -> Id {
    CURRENT.get().local
}

/// Linear index of the workgroup in the grid.
pub fn group_index() -> usize {
    let InvocationIds { group, count, .. } = CURRENT.get();
    group.index(count)
}

/// Three-dimensional id of the workgroup in the grid.
pub fn group_id() -> Id {
    CURRENT.get().group
}

/// Number of workgroups of the grid, per dimension.
pub fn group_count() -> Id {
    CURRENT.get().count
}

/// Number of invocations of a workgroup, per dimension.
pub fn group_size() -> Id {
    CURRENT.get().size
}

/// Ends the invocation and makes the launch fail with `code`.
pub fn trap(code: u32) -> ! {
    panic!("trap with code {code}");
}

/// Loads up to four consecutive elements in one access: `let [a, b] = load_wide(x, i);`.
pub fn load_wide<T: Copy, const N: usize>(slice: &[T], first: usize) -> [T; N] {
    std::array::from_fn(|position| slice[first + position])
}

/// Stores up to four consecutive elements in one access: `store_wide(y, i, [a, b]);`.
pub fn store_wide<T: Copy, const N: usize>(slice: &mut [T], first: usize, values: [T; N]) {
    slice[first..first + N].copy_from_slice(&values);
}

/// An array in workgroup memory.
#[doc(hidden)]
pub fn shared<T, const N: usize>() -> [T; N] {
    panic!("workgroup memory is not available on the host: run the kernel on a device");
}

macro_rules! collectives {
    ($($(#[doc = $doc:literal])+ $name:ident $(<$generic:ident>)? ($($argument:ident: $ty:ty),*) $(-> $result:ty)?;)*) => { $(
        $(#[doc = $doc])+
        pub fn $name $(<$generic>)? ($($argument: $ty),*) $(-> $result)? {
            $( let _ = $argument; )*
            panic!("`{}` needs several invocations, but `host` runs one at a time: run the kernel on a device", stringify!($name));
        }
    )* };
}
collectives! {
    /// Workgroup barrier that orders workgroup memory: stores before it are visible to the workgroup after it.
    workgroup_barrier();
    /// Workgroup barrier that orders storage: stores to slices before it are visible to the workgroup after it.
    storage_barrier();
    /// Broadcasts the value of invocation 0 to the workgroup.
    broadcast<T>(value: T) -> T;
    /// Number of lanes of a subgroup.
    subgroup_size() -> usize;
    /// Index of the subgroup in its workgroup.
    subgroup_id() -> usize;
    /// Lane of the invocation in its subgroup.
    subgroup_lane() -> usize;
    /// Sum over the active lanes.
    subgroup_add<T>(value: T) -> T;
    /// Product over the active lanes.
    subgroup_mul<T>(value: T) -> T;
    /// Minimum over the active lanes.
    subgroup_min<T>(value: T) -> T;
    /// Maximum over the active lanes.
    subgroup_max<T>(value: T) -> T;
    /// Bitwise and over the active lanes.
    subgroup_and<T>(value: T) -> T;
    /// Bitwise or over the active lanes.
    subgroup_or<T>(value: T) -> T;
    /// Bitwise exclusive or over the active lanes.
    subgroup_xor<T>(value: T) -> T;
    /// Inclusive prefix sum over the active lanes.
    subgroup_inclusive_add<T>(value: T) -> T;
    /// Exclusive prefix sum over the active lanes.
    subgroup_exclusive_add<T>(value: T) -> T;
    /// Inclusive prefix product over the active lanes.
    subgroup_inclusive_mul<T>(value: T) -> T;
    /// Exclusive prefix product over the active lanes.
    subgroup_exclusive_mul<T>(value: T) -> T;
    /// Ballot: a bit per lane that is set if the lane is active and its value is true.
    subgroup_ballot(value: bool) -> [u32; 4];
    /// Value of lane `lane`.
    subgroup_shuffle<T>(value: T, lane: usize) -> T;
    /// Value of the lane `distance` below; 0 if there is none.
    subgroup_shuffle_up<T>(value: T, distance: usize) -> T;
    /// Value of the lane `distance` above; 0 if there is none.
    subgroup_shuffle_down<T>(value: T, distance: usize) -> T;
    /// Value of the lane whose number is this lane's number xor `mask`; 0 if there is none.
    subgroup_shuffle_xor<T>(value: T, mask: usize) -> T;
    /// Value of the lowest active lane.
    subgroup_broadcast_first<T>(value: T) -> T;
    /// Vote: true if the value is true in all active lanes.
    subgroup_all(value: bool) -> bool;
    /// Vote: true if the value is true in any active lane.
    subgroup_any(value: bool) -> bool;
    /// Stream compaction: moves the values with `keep` to the lowest lanes, in lane order, and zero to the others. Also returns their
    /// number.
    subgroup_compact<T>(value: T, keep: bool) -> (T, u32);
}

/// Defines methods for operations that Rust's numbers lack, by the evaluators of the op table.
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
                let evaluate = evaluator.expect("each type with this method has an evaluator");
                Scalar::from_bits(evaluate(&[Scalar::to_bits(self) $(, Scalar::to_bits($argument))*]))
            }
        )* }
        $( impl $trait for $ty {} )+
    )* };
}
methods! {
    /// Operations on a `u32` as four bytes, as two halves, or as normalized integers; the book's chapter on operations defines them.
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
    /// Packing of signed integers into the bytes of a word.
    PackSigned(i32) {
        pack_i8_clamp(b: i32, c: i32, d: i32) -> u32 = PackI8Clamp;
    }
    /// Quantization of floats and packing into words; the book's chapter on operations defines these methods.
    PackFloats(f32) {
        pack_f16(high: f32) -> u32 = PackF16;
        quantize_f16() -> f32 = QuantizeF16;
        pack_snorm16(high: f32) -> u32 = PackSnorm16;
        pack_unorm16(high: f32) -> u32 = PackUnorm16;
        pack_snorm8(b: f32, c: f32, d: f32) -> u32 = PackSnorm8;
        pack_unorm8(b: f32, c: f32, d: f32) -> u32 = PackUnorm8;
    }
    /// Functions of f16 by the names of those of f32 and f64.
    HalfMath(f16) {
        abs() -> f16 = Abs;
        sqrt() -> f16 = Sqrt;
        floor() -> f16 = Floor;
        ceil() -> f16 = Ceil;
        trunc() -> f16 = Trunc;
        round_ties_even() -> f16 = Round;
        mul_add(factor: f16, summand: f16) -> f16 = Fma;
        exp() -> f16 = Exp;
        exp2() -> f16 = Exp2;
        ln() -> f16 = Log;
        log2() -> f16 = Log2;
        sin() -> f16 = Sin;
        cos() -> f16 = Cos;
        tan() -> f16 = Tan;
        asin() -> f16 = Asin;
        acos() -> f16 = Acos;
        atan() -> f16 = Atan;
        atan2(x: f16) -> f16 = Atan2;
        sinh() -> f16 = Sinh;
        cosh() -> f16 = Cosh;
        tanh() -> f16 = Tanh;
        asinh() -> f16 = Asinh;
        acosh() -> f16 = Acosh;
        atanh() -> f16 = Atanh;
        powf(exponent: f16) -> f16 = Pow;
        cbrt() -> f16 = Cbrt;
        hypot(other: f16) -> f16 = Hypot;
    }
    /// Decomposition of floats into fraction and exponent (`frexp`), or integral and fractional part (`modf`).
    FloatParts(f16, f32, f64) {
        frexp_fraction() -> Self = FrexpFraction;
        frexp_exponent() -> i32 = FrexpExponent;
        modf_fraction() -> Self = ModfFraction;
    }
}

/// Atomic number. All operations have relaxed ordering.
#[derive(Clone, Debug, Default)]
pub struct Atomic<T: Copy>(Cell<T>);

macro_rules! fetch {
    ($($(#[doc = $doc:literal])+ $name:ident = $op:ident;)*) => { $(
        $(#[doc = $doc])+
        pub fn $name(&self, value: T) -> T {
            let evaluate = Pure::$op.info().evaluator(T::TYPE, T::TYPE).expect("it is defined for all that have this method");
            self.swap_bits(evaluate(&[Scalar::to_bits(self.0.get()), Scalar::to_bits(value)]))
        }
    )* };
}

impl<T: AtomicNumber> Atomic<T> {
    /// Creates an atomic with an initial value.
    pub fn new(value: T) -> Atomic<T> {
        Atomic(Cell::new(value))
    }

    /// Loads the value.
    pub fn load(&self) -> T {
        self.0.get()
    }

    /// Stores a value.
    pub fn store(&self, value: T) {
        self.0.set(value);
    }

    fetch! {
        /// Addition; returns the previous value. Integers wrap; float sums are rounded in the order in which invocations arrive.
        fetch_add = Add;
        /// Subtraction; returns the previous value. Integers wrap; floats are rounded in the order in which invocations arrive.
        fetch_sub = Sub;
        /// Minimum; returns the previous value.
        fetch_min = Min;
        /// Maximum; returns the previous value.
        fetch_max = Max;
    }

    /// Exchange; returns the previous value.
    pub fn swap(&self, value: T) -> T {
        self.0.replace(value)
    }

    fn swap_bits(&self, bits: u64) -> T {
        self.0.replace(Scalar::from_bits(bits))
    }
}

impl<T: AtomicNumber + Integer> Atomic<T> {
    fetch! {
        /// Bitwise and; returns the previous value.
        fetch_and = And;
        /// Bitwise or; returns the previous value.
        fetch_or = Or;
        /// Bitwise exclusive or; returns the previous value.
        fetch_xor = Xor;
    }

    /// Compare and exchange; returns the previous value, and whether the exchange happened.
    pub fn compare_exchange(&self, expected: T, new: T) -> (T, bool) {
        let old = self.0.get();
        let equal = Scalar::to_bits(old) == Scalar::to_bits(expected);
        if equal {
            self.0.set(new);
        }
        (old, equal)
    }
}
