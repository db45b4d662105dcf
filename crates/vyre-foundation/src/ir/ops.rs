//! Op table: one row for each operation.
//!
//! A row has the name of the operation, its [`Form`] (syntax and typing), its evaluator (of pure operations), its [`Exactness`], its weight
//! in generated programs, and its definition. The parser, the printer, the validator, the oracle, constant folding, the program generator
//! and the operations chapter of the book are driven by the table. A new operation is a row here and its lowerings, to which exhaustive
//! matches lead.
//!
//! # Semantics
//!
//! Every operation is total: its result is defined for all operands.
//!
//! * Integers wrap. Shift and rotate counts are taken modulo the width. `x / 0 = x`, `x % 0 = 0`, `MIN / -1 = MIN`,
//!   `MIN % -1 = 0`.
//! * `add`, `sub`, `mul`, `div`, `fma`, `sqrt` and conversions of floats are IEEE 754, rounded to nearest, ties to
//!   even, never contracted or reassociated. The payload and sign of a NaN result are unspecified; where results are compared, all
//!   NaNs are equal. Read as an integer (by `bitcast`, `pack_f16` or an access of another type), they may differ between devices.
//! * `min` and `max` of floats prefer a number to a NaN and order −0 below +0, so they are commutative and associative, and a reduction
//!   with them is independent of the order.
//! * Comparisons with a NaN are false, except `ne`, which is true.
//! * A float converted to an integer is truncated and saturates; NaN gives 0. Integers convert to integers by keeping the low bits. A
//!   number converted to bool is true if it differs from zero.
//! * Accesses carry their type: `load m[i] as f16` reads the two bytes from byte `2 × i` of `m`, little-endian, whatever the elements of
//!   `m` are. Without `as`, it is the type that `m` is declared with. `as atomic u32` makes an access atomic; read-modify-writes always are.
//! * An access is in bounds if its last byte is within the object. A load out of bounds gives 0. A store or atomic out of bounds has no
//!   effect, and the atomic gives 0. A wide access checks each element on its own, and its indices do not wrap.

use std::sync::OnceLock;

use half::f16;
use rustc_hash::FxHashMap;

use super::entity::MemId;
use super::eval::{self, F16Math, Scale, Split, UnsignedShift, field, lesser};
use super::types::{Element, Scalar, Type, TypeSet};
use crate::math::direct as math;

/// A dimension of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// The fastest-varying dimension.
    X,
    /// The second dimension.
    Y,
    /// The slowest-varying dimension.
    Z,
}

impl Axis {
    /// Every axis, in order.
    pub const ALL: [Axis; 3] = [Axis::X, Axis::Y, Axis::Z];

    /// The name in the text format.
    pub const fn name(self) -> &'static str {
        match self {
            Axis::X => "x",
            Axis::Y => "y",
            Axis::Z => "z",
        }
    }
}

/// Memory operand of an access: the object, the type of the element that is accessed, and whether the access is atomic.
///
/// An object is bytes. The index of an access counts elements of the access's own type from the first byte of the object, so an access is
/// naturally aligned, and it is in bounds if its last byte is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemOperand {
    /// The object.
    pub memory: MemId,
    /// Type of the element in memory.
    pub element: Element,
    /// True if the access is atomic. Read-modify-writes always are.
    pub atomic: bool,
}

impl MemOperand {
    /// The operand of a plain access.
    pub const fn plain(memory: MemId, element: Element) -> MemOperand {
        MemOperand { memory, element, atomic: false }
    }

    /// The operand of an atomic access.
    pub const fn atomic(memory: MemId, element: Element) -> MemOperand {
        MemOperand { memory, element, atomic: true }
    }

    /// Type of the values that are loaded or stored.
    pub const fn value_type(self) -> Type {
        self.element.value_type()
    }
}

/// The lanes that a subgroup operation combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combined {
    /// All lanes: a reduction.
    All,
    /// The lanes up to and including this one: an inclusive scan.
    Inclusive,
    /// The lanes before this one: an exclusive scan.
    Exclusive,
}

/// The associative operation of a reduction or a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combiner {
    /// Sum.
    Add,
    /// Product.
    Mul,
    /// Smaller value.
    Min,
    /// Larger value.
    Max,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
}

impl Combiner {
    /// The operation on two values.
    pub const fn op(self) -> Pure {
        match self {
            Combiner::Add => Pure::Add,
            Combiner::Mul => Pure::Mul,
            Combiner::Min => Pure::Min,
            Combiner::Max => Pure::Max,
            Combiner::And => Pure::And,
            Combiner::Or => Pure::Or,
            Combiner::Xor => Pure::Xor,
        }
    }

    /// The evaluator of the operation on two values of a type.
    pub fn evaluator(self, ty: Type) -> Eval {
        self.op().info().evaluator(ty, ty).expect("validated for this type")
    }

    /// The equivalent vote of bools, for which only the bitwise operations are defined.
    pub const fn vote(self) -> Option<Vote> {
        match self {
            Combiner::And => Some(Vote::All),
            Combiner::Or => Some(Vote::Any),
            Combiner::Xor => Some(Vote::Odd),
            Combiner::Add | Combiner::Mul | Combiner::Min | Combiner::Max => None,
        }
    }

    /// The bits of the identity element.
    pub fn identity(self, ty: Type) -> u64 {
        let (top, ones) = (1 << (ty.bits() - 1), u64::MAX >> (64 - ty.bits()));
        let cast = |from, bits| Pure::Cast.info().evaluator(from, ty).expect("every type can be cast to")(&[bits]);
        match self {
            // −0, because −0 + +0 = +0.
            Combiner::Add if ty.is_float() => top,
            Combiner::Mul => cast(Type::U32, 1),
            // NaN, because `min` and `max` prefer a number.
            Combiner::Min | Combiner::Max if ty.is_float() => cast(Type::F64, f64::NAN.to_bits()),
            Combiner::Min | Combiner::Max if matches!(ty, Type::I32 | Type::I64) => {
                top - u64::from(self == Combiner::Min)
            }
            Combiner::Min | Combiner::And => ones,
            Combiner::Add | Combiner::Max | Combiner::Or | Combiner::Xor => 0,
        }
    }
}

/// Reduction of bools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    /// All are true.
    All,
    /// At least one is true.
    Any,
    /// An odd number is true.
    Odd,
}

/// Relation that a comparison of two values tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `==`
    Eq,
    /// `!=`
    Ne,
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
}

impl Comparison {
    /// The opposite relation. For floats, only `==` and `!=` are opposites, because of NaNs.
    #[must_use]
    pub const fn negated(self) -> Comparison {
        match self {
            Comparison::Eq => Comparison::Ne,
            Comparison::Ne => Comparison::Eq,
            Comparison::Lt => Comparison::Ge,
            Comparison::Le => Comparison::Gt,
            Comparison::Gt => Comparison::Le,
            Comparison::Ge => Comparison::Lt,
        }
    }

    /// The same relation with swapped operands.
    #[must_use]
    pub const fn swapped(self) -> Comparison {
        match self {
            Comparison::Eq | Comparison::Ne => self,
            Comparison::Lt => Comparison::Gt,
            Comparison::Le => Comparison::Ge,
            Comparison::Gt => Comparison::Lt,
            Comparison::Ge => Comparison::Le,
        }
    }

    /// This relation if `holds`, else the [negated](Comparison::negated) one.
    #[must_use]
    pub const fn when(self, holds: bool) -> Comparison {
        if holds { self } else { self.negated() }
    }
}

/// Source lane of a shuffle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShuffleMode {
    /// The operand.
    Lane,
    /// The own lane minus the operand.
    Up,
    /// The own lane plus the operand.
    Down,
    /// The own lane with the bits of the operand flipped.
    Xor,
}

impl ShuffleMode {
    /// Source lane of a lane; `None` if it does not exist for any subgroup size.
    pub const fn source(self, lane: u32, operand: u32) -> Option<u32> {
        match self {
            ShuffleMode::Lane => Some(operand),
            ShuffleMode::Up => lane.checked_sub(operand),
            ShuffleMode::Down => lane.checked_add(operand),
            ShuffleMode::Xor => Some(lane ^ operand),
        }
    }
}

/// The data that lanes of a subgroup exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// A bit of each lane.
    Ballot,
    /// The value of another lane.
    Shuffle(ShuffleMode),
    /// The value of the lowest active lane.
    First,
    /// Stream compaction.
    Compact,
    /// A reduction or a scan.
    Combine(Combiner, Combined),
}

/// Type of an operand or result in a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// The type parameter: all such slots have the same type.
    T,
    /// A fixed type.
    Is(Type),
}

impl Slot {
    /// `T`, or the type.
    fn name(self) -> &'static str {
        match self {
            T => "T",
            Is(ty) => ty.name(),
        }
    }

    /// The type of this slot for a type parameter.
    pub fn of(self, class: Type) -> Type {
        match self {
            T => class,
            Is(ty) => ty,
        }
    }
}

/// Operand and result types of an operation on values.
#[derive(Clone, Copy, Debug)]
pub struct Signature {
    /// The types that `T` may stand for.
    pub class: TypeSet,
    /// One slot per operand.
    pub operands: &'static [Slot],
    /// One slot per result.
    pub results: &'static [Slot],
}

/// Syntax and typing of an operation.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// `name a, b`: values in, values out.
    Plain(Signature),
    /// `name a to type`: converts a value to the named type.
    Convert {
        /// True if both types must have the same width.
        same_size: bool,
    },
    /// `name.x`: a u32 for each dimension.
    PerAxis,
    /// `load m[i]`: one to four results.
    Load,
    /// `store m[i], a, …`: one to four values.
    Store,
    /// `length m`.
    Length,
    /// `name m[i], a`: gives the old value. The element has one of these types.
    Atomic(TypeSet),
    /// `name m[i], expected, new`: gives the old value, and true if it was replaced. The element is an integer.
    CompareExchange,
    /// `print "…", a, …`.
    Print,
    /// `if c { … } else { … }`.
    If,
    /// `switch s { case 0 { … } default { … } }`.
    Switch,
    /// `loop (p = a, …) { … }`.
    Loop,
    /// `region "op" { … }`.
    Region,
    /// `name a, …`: ends a block and passes values to its target.
    Exit,
    /// `trap code`.
    Trap,
}

/// Semantic category of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Pure function of its operands; it has an evaluator.
    Pure,
    /// Position of the invocation.
    PerInvocation,
    /// Workgroup-uniform position or size.
    PerGroup,
    /// Load or store.
    Access,
    /// Atomic read-modify-write.
    Atomic,
    /// Executed by all invocations of a workgroup or a subgroup together.
    Collective,
    /// Output in the report of the dispatch.
    Effect,
    /// Control flow.
    Control,
}

/// Permitted difference of results between devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exactness {
    /// Bit-identical on all devices.
    Exact,
    /// Floats are correctly rounded on the oracle, on the CPU and on devices with exact floats; elsewhere the error is at most `ulp`.
    Rounded {
        /// Maximum error in ULP on devices without exact floats.
        ulp: u32,
    },
    /// Float results depend on the order of accumulation: that of subgroup operations is fixed on the oracle and the CPU only, that of
    /// atomics nowhere.
    Ordered,
    /// A function of the [math library](crate::math), made of other float operations: the same bits on the oracle, on the CPU
    /// and on devices with exact floats. Elsewhere what these operations are off adds up, and nothing is promised.
    Composed,
}

/// Evaluator: computes the bits of a result from the bits of the operands.
pub type Eval = fn(&[u64]) -> u64;

/// Maximum number of operands of a pure operation.
pub const MAX_OPERANDS: usize = 5;

/// Static data of an operation besides its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// Nothing.
    None,
    /// The dimension.
    Axis(Axis),
    /// The object of a `length`.
    Object(MemId),
    /// The memory operand of an access.
    Memory(MemOperand),
    /// The format of a `print`, or the operation name of a `region`.
    Text(&'a str),
    /// The selector values of a `switch`, as bits, in the order of its blocks.
    Cases(&'a [u32]),
}

macro_rules! payload {
    ($($ty:ty, $variant:ident, $value:ident => $borrowed:expr;)*) => { $(
        impl<'a> From<&'a $ty> for Payload<'a> {
            fn from($value: &'a $ty) -> Self {
                Payload::$variant($borrowed)
            }
        }

        impl TryFrom<Payload<'_>> for $ty {
            type Error = ();
            fn try_from(payload: Payload<'_>) -> Result<Self, ()> {
                match payload {
                    Payload::$variant(value) => Ok(value.into()),
                    _ => Err(()),
                }
            }
        }
    )* };
}
payload! {
    Axis, Axis, axis => *axis;
    MemId, Object, memory => *memory;
    MemOperand, Memory, operand => *operand;
    Box<str>, Text, text => text;
    Box<[u32]>, Cases, cases => cases;
}

/// One row of the op table.
pub struct OpInfo {
    /// The name in the text format.
    pub name: &'static str,
    /// Definition.
    pub doc: &'static str,
    /// Syntax and typing.
    pub form: Form,
    /// Semantic category.
    pub kind: Kind,
    /// Permitted difference of results between devices.
    pub exactness: Exactness,
    /// Relative frequency in generated programs.
    pub weight: u32,
    evaluator: fn(Type, Type) -> Option<Eval>,
    make: fn(Payload<'_>) -> Option<Op>,
}

impl OpInfo {
    /// The evaluator for a type parameter `class` and a result of type `result`; `None` unless the operation is pure and defined for them.
    pub fn evaluator(&self, class: Type, result: Type) -> Option<Eval> {
        (self.evaluator)(class, result)
    }

    /// The operation of this row; `None` if it takes another kind of payload.
    pub fn op(&self, payload: Payload<'_>) -> Option<Op> {
        (self.make)(payload)
    }

    /// The operation of this row, if it is pure.
    pub fn pure(&self) -> Option<Pure> {
        match self.op(Payload::None) {
            Some(Op::Pure(op)) => Some(op),
            _ => None,
        }
    }

    /// Syntax of the operation and constraints on its types: `add T, T -> T` and `T: i32, …`.
    pub fn written(&self) -> (String, String) {
        let (written, types) = match self.form {
            Form::Plain(Signature { class, operands, results }) => {
                let names = |slots: &[Slot]| slots.iter().map(|slot| slot.name()).collect::<Vec<_>>().join(", ");
                let given = if operands.is_empty() { String::new() } else { format!(" {}", names(operands)) };
                let gives = if results.is_empty() { String::new() } else { format!(" -> {}", names(results)) };
                let generic = operands.iter().chain(results).any(|slot| *slot == T);
                let types = if generic { format!("T: {class}") } else { String::new() };
                return (format!("{}{given}{gives}", self.name), types);
            }
            Form::Convert { same_size: false } => (" value to TYPE -> TYPE", "any two types"),
            Form::Convert { same_size: true } => (" value to TYPE -> TYPE", "two types of the same width"),
            Form::PerAxis => (".x -> u32", "also .y and .z"),
            Form::Load => (" m[u32] as T -> T, …", "T: any element, left out if it is that of m; 1 to 4 results"),
            Form::Store => (" m[u32] as T, T, …", "T: any element, left out if it is that of m; 1 to 4 values"),
            Form::Length => (" m -> u32", ""),
            Form::Atomic(class) => {
                let types = format!("T: {class}, left out if it is that of m");
                return (format!("{} m[u32] as T, T -> T", self.name), types);
            }
            Form::CompareExchange => {
                (" m[u32] as T, T, T -> T, bool", "T: i32, u32, i64, u64, left out if it is that of m")
            }
            Form::Print => (" \"text with {}\", value, …", "any types"),
            Form::If => (" bool -> TYPE, … { … } else { … }", ""),
            Form::Switch => (" T -> TYPE, … { case 0 { … } default { … } }", "T: i32, u32"),
            Form::Loop => (" (%name = value, …) -> TYPE, … { … }", ""),
            Form::Region => (" \"operation\" -> TYPE, … { … }", ""),
            Form::Exit => (" [value, …]", "what its target takes"),
            Form::Trap => (" u32", ""),
        };
        (format!("{}{written}", self.name), types.into())
    }

    /// Type instances of an operation on values: type parameter, operand types, type of the first result.
    pub fn uses(&self) -> Vec<(Type, Vec<Type>, Type)> {
        let all = || Type::ALL.into_iter();
        match self.form {
            Form::Plain(Signature { class, operands, results }) => {
                let used =
                    |class: Type| (class, operands.iter().map(|slot| slot.of(class)).collect(), results[0].of(class));
                match operands[..] {
                    [Is(ty), ..] if !operands.contains(&T) => vec![used(ty)],
                    _ => class.iter().map(used).collect(),
                }
            }
            Form::Convert { same_size } => {
                let pairs = all().flat_map(|from| all().map(move |to| (from, vec![from], to)));
                pairs.filter(|(from, _, to)| !same_size || from.bits() == to.bits()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The row with this name.
    pub fn named(name: &str) -> Option<&'static OpInfo> {
        static BY_NAME: OnceLock<FxHashMap<&str, &OpInfo>> = OnceLock::new();
        BY_NAME.get_or_init(|| TABLE.iter().map(|row| (row.name, row)).collect()).get(name).copied()
    }
}

impl std::fmt::Debug for OpInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

use Exactness::{Composed, Exact, Ordered};
use Slot::{Is, T};

const BOOL: Slot = Is(Type::Bool);
const I32: Slot = Is(Type::I32);
const U32: Slot = Is(Type::U32);
const F32: Slot = Is(Type::F32);

/// Correctly rounded where floats are exact; elsewhere with an error of at most `ulp`.
const fn ulp(ulp: u32) -> Exactness {
    Exactness::Rounded { ulp }
}

const fn plain(class: TypeSet, operands: &'static [Slot], results: &'static [Slot]) -> Form {
    Form::Plain(Signature { class, operands, results })
}

const fn unary(class: TypeSet) -> Form {
    plain(class, &[T], &[T])
}

const fn binary(class: TypeSet) -> Form {
    plain(class, &[T, T], &[T])
}

const fn compare(class: TypeSet) -> Form {
    plain(class, &[T, T], &[BOOL])
}

const fn shift() -> Form {
    plain(INTEGERS, &[T, U32], &[T])
}

const fn count() -> Form {
    plain(INTEGERS, &[T], &[U32])
}

/// An operation on fixed types, without a type parameter.
const fn fixed(operands: &'static [Slot], results: &'static [Slot]) -> Form {
    plain(ALL, operands, results)
}

const NUMBERS: TypeSet = TypeSet::NUMBERS;
const INTEGERS: TypeSet = TypeSet::INTEGERS;
const FLOATS: TypeSet = TypeSet::FLOATS;
const SIGNED: TypeSet = TypeSet::SIGNED;
const LOGIC: TypeSet = TypeSet::LOGIC;
const ALL: TypeSet = TypeSet::ALL;
const ATOMIC: TypeSet = TypeSet::ATOMIC;

/// Turns `group: |a: T, b: T| body, …` into a function that selects the evaluator for a type. `T` is the Rust type of the type parameter.
macro_rules! evaluator {
    () => { |_, _| None };
    (by_types $function:path) => { $function };
    ($($group:ident: |$($arg:ident: $ty:ty),*| $body:expr),+ $(,)?) => {
        |class, _| { $( evaluator!(@group $group class (($($arg: $ty),*) $body)); )+ None }
    };
    (@group integer $class:ident $f:tt) => { evaluator!(@types $class $f I32 i32, U32 u32, I64 i64, U64 u64) };
    (@group float $class:ident $f:tt) => { evaluator!(@types $class $f F32 f32, F64 f64, F16 f16) };
    (@group signed_integer $class:ident $f:tt) => { evaluator!(@types $class $f I32 i32, I64 i64) };
    (@group bool $class:ident $f:tt) => { evaluator!(@types $class $f Bool bool) };
    (@group any $class:ident $f:tt) => {
        evaluator!(@types $class $f
            Bool bool, I32 i32, U32 u32, F32 f32, I64 i64, U64 u64, F64 f64, F16 f16)
    };
    (@types $class:ident $f:tt $($variant:ident $rust:ty),*) => {
        $( if $class == Type::$variant { return Some(evaluator!(@function $rust, $f)); } )*
    };
    (@function $rust:ty, (($($arg:ident: $ty:ty),*) $body:expr)) => {{
        fn eval(operands: &[u64]) -> u64 {
            #[allow(dead_code)] // Unused by operations on fixed types.
            type T = $rust;
            let [$($arg),*] = *operands else { unreachable!("the number of operands is validated") };
            $( let $arg = <$ty as Scalar>::from_bits($arg); )*
            Scalar::to_bits($body)
        }
        eval as Eval
    }};
}

/// `$value`, as a pattern or an expression that repeats as `$ty` does.
macro_rules! named {
    ($ty:ty, $value:ident) => {
        $value
    };
}

macro_rules! op_table {
    ($(
        section $kind:ident
        $($(#[doc = $variant_doc:literal])+ $(#[derive($copy:ident)])? enum $variant:ident $(($common:ty))? { $(
            $(#[doc = $doc:literal])+
            $op:ident $(($payload:ty))? = $name:literal, $form:expr, $exactness:expr, $weight:literal
            $(, eval { $($eval:tt)* })?;
        )* })?
        $(single { $(
            $(#[doc = $single_doc:literal])+
            $single:ident $(($single_payload:ty))? = $single_name:literal, $single_form:expr, $single_exactness:expr,
                $single_weight:literal;
        )* })?
    )*) => {
        /// An operation and its payload. Its row of the op table defines it.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Op { $(
            $($(#[doc = $variant_doc])+ $variant($variant $(, $common)?),)?
            $($($(#[doc = $single_doc])+ $single $(($single_payload))?,)*)?
        )* }

        /// The variants of [`Op`], in the order of the table.
        enum Variant { $( $($variant,)? $($($single,)*)? )* }

        /// Number of rows of each variant of [`Op`].
        const ROWS: &[usize] = &[ $( $([$($name),*].len(),)? $($([$single_name].len(),)*)? )* ];

        /// The op table, in the order of the [`Op`] variants.
        pub static TABLE: &[OpInfo] = &[ $(
            $($(OpInfo {
                name: $name,
                doc: concat!($($doc),+),
                form: $form,
                kind: Kind::$kind,
                exactness: $exactness,
                weight: $weight,
                evaluator: evaluator!($($($eval)*)?),
                make: op_table!(@make $variant $op $(($payload))?),
            },)*)?
            $($(OpInfo {
                name: $single_name,
                doc: concat!($($single_doc),+),
                form: $single_form,
                kind: Kind::$kind,
                exactness: $single_exactness,
                weight: $single_weight,
                evaluator: evaluator!(),
                make: op_table!(@make_single $single $($single_payload)?),
            },)*)?
        )* ];

        $($(
            $(#[doc = $variant_doc])+
            #[derive(Clone, $($copy,)? Debug, PartialEq, Eq, Hash)]
            pub enum $variant { $( $(#[doc = $doc])+ $op $(($payload))?, )* }

            impl $variant {
                /// The row of the op table that defines this operation.
                pub fn info(&self) -> &'static OpInfo {
                    enum Position { $( $op, )* }
                    const START: usize = start(Variant::$variant);
                    let position = match self { $( $variant::$op { .. } => Position::$op, )* };
                    &TABLE[START + position as usize]
                }

                fn payload(&self) -> Payload<'_> {
                    match self { $(
                        $variant::$op $((named!($payload, payload)))? => {
                            op_table!(@payload $(named!($payload, payload))?)
                        }
                    )* }
                }
            }

            op_table!(@wrap $variant $($common)?);
        )?)*

        impl Op {
            /// The row of the op table that defines this operation.
            pub fn info(&self) -> &'static OpInfo {
                match self { $(
                    $(Op::$variant(op, ..) => op.info(),)?
                    $($(Op::$single { .. } => &TABLE[const { start(Variant::$single) }],)*)?
                )* }
            }

            /// Semantic category.
            pub fn kind(&self) -> Kind {
                match self { $( $(Op::$variant(..))? $($(| Op::$single { .. })*)? => Kind::$kind, )* }
            }

            /// Static data besides the operands.
            pub fn payload(&self) -> Payload<'_> {
                match self { $(
                    $(Op::$variant(op $(, named!($common, payload))?) => {
                        op_table!(@common op $(named!($common, payload))?)
                    })?
                    $($(Op::$single $((named!($single_payload, payload)))? => {
                        op_table!(@payload $(named!($single_payload, payload))?)
                    })*)?
                )* }
            }
        }
    };
    (@payload) => { Payload::None };
    (@payload $payload:expr) => { $payload.into() };
    (@common $op:ident) => { $op.payload() };
    (@common $op:ident $payload:expr) => {
        match $op.payload() {
            Payload::None => $payload.into(),
            own => own,
        }
    };
    (@make $variant:ident $op:ident) => { |payload| $variant::$op.with(payload) };
    (@make $variant:ident $op:ident ($payload:ty)) => {
        |payload| <$payload>::try_from(payload).ok().map(|payload| $variant::$op(payload).into())
    };
    (@make_single $single:ident) => { |payload| (payload == Payload::None).then_some(Op::$single) };
    (@make_single $single:ident $payload:ty) => { |payload| <$payload>::try_from(payload).ok().map(Op::$single) };
    (@wrap $variant:ident $common:ty) => {
        impl $variant {
            fn with(self, payload: Payload<'_>) -> Option<Op> {
                <$common>::try_from(payload).ok().map(|payload| Op::$variant(self, payload))
            }
        }
    };
    (@wrap $variant:ident) => {
        impl $variant {
            fn with(self, payload: Payload<'_>) -> Option<Op> {
                (payload == Payload::None).then_some(Op::$variant(self))
            }
        }

        impl From<$variant> for Op {
            fn from(op: $variant) -> Self {
                Op::$variant(op)
            }
        }

        impl PartialEq<$variant> for Op {
            fn eq(&self, other: &$variant) -> bool {
                matches!(self, Op::$variant(op) if op == other)
            }
        }
    };
}

/// Index of the first row of a variant of [`Op`].
const fn start(variant: Variant) -> usize {
    let (mut start, mut before) = (0, 0);
    let variant = variant as usize;
    while before < variant {
        start += ROWS[before];
        before += 1;
    }
    start
}

op_table! {
    section Pure
    /// A function of the operands.
    #[derive(Copy)]
    enum Pure {
        // Arithmetic.

        /// Sum.
        Add = "add", binary(NUMBERS), ulp(0), 10,
            eval { integer: |a: T, b: T| a.wrapping_add(b), float: |a: T, b: T| a + b };
        /// Difference.
        Sub = "sub", binary(NUMBERS), ulp(0), 10,
            eval { integer: |a: T, b: T| a.wrapping_sub(b), float: |a: T, b: T| a - b };
        /// Product; integers keep the low half.
        Mul = "mul", binary(NUMBERS), ulp(0), 10,
            eval { integer: |a: T, b: T| a.wrapping_mul(b), float: |a: T, b: T| a * b };
        /// High half of the product of integers, taken at twice the width.
        MulHigh = "mul_high", binary(INTEGERS), Exact, 3,
            eval { integer: |a: T, b: T| (i128::from(a).wrapping_mul(i128::from(b)) >> T::BITS) as T };
        /// Quotient, truncated for integers; `x / 0 = x` and `MIN / -1 = MIN`.
        Div = "div", binary(NUMBERS), ulp(3), 5, eval {
            integer: |a: T, b: T| a.checked_div(b).unwrap_or(a),
            float: |a: T, b: T| a / b,
        };
        /// Remainder of the truncated quotient; it has the sign of the dividend, and `x % 0 = 0`.
        Rem = "rem", binary(INTEGERS), Exact, 5,
            eval { integer: |a: T, b: T| a.checked_rem(b).unwrap_or(0) };
        /// Negation; of a float, a flip of its sign bit.
        Neg = "neg", unary(SIGNED), Exact, 3,
            eval { signed_integer: |a: T| a.wrapping_neg(), float: |a: T| -a };
        /// Absolute value; `abs(MIN) = MIN`.
        Abs = "abs", unary(SIGNED), Exact, 3,
            eval { signed_integer: |a: T| a.wrapping_abs(), float: |a: T| a.abs() };
        /// The smaller value. Of a float and a NaN, the float; −0 is below +0.
        Min = "min", binary(NUMBERS), Exact, 4,
            eval { integer: |a: T, b: T| a.min(b), float: |a: T, b: T| lesser!(a, b) };
        /// The larger value. Of a float and a NaN, the float; −0 is below +0.
        Max = "max", binary(NUMBERS), Exact, 4,
            eval { integer: |a: T, b: T| a.max(b), float: |a: T, b: T| -lesser!(-a, -b) };
        /// `a × b + c`, rounded once.
        Fma = "fma", plain(FLOATS, &[T, T, T], &[T]), ulp(1), 4,
            eval { float: |a: T, b: T, c: T| a.mul_add(b, c) };
        /// `x × 2^e`, rounded once: also into subnormals, and to infinity beyond the largest number. Zeros, infinities and NaNs
        /// pass through.
        Ldexp = "ldexp", plain(FLOATS, &[T, I32], &[T]), ulp(0), 2, eval { float: |x: T, e: i32| x.ldexp(e) };
        /// Square root; of a negative number, NaN.
        Sqrt = "sqrt", unary(FLOATS), ulp(3), 3, eval { float: |a: T| a.sqrt() };
        /// Largest integral float not above the operand.
        Floor = "floor", unary(FLOATS), Exact, 2, eval { float: |a: T| a.floor() };
        /// Smallest integral float not below the operand.
        Ceil = "ceil", unary(FLOATS), Exact, 2, eval { float: |a: T| a.ceil() };
        /// The operand without its fraction.
        Trunc = "trunc", unary(FLOATS), Exact, 2, eval { float: |a: T| a.trunc() };
        /// Nearest integral float, ties to even.
        Round = "round", unary(FLOATS), Exact, 2, eval { float: |a: T| a.round_ties_even() };
        /// Fraction `f` of `x = f × 2^e`, with the sign of `x` and a magnitude in [½, 1), also of subnormals. A zero, infinity or
        /// NaN is its own fraction.
        FrexpFraction = "frexp_fraction", unary(FLOATS), Exact, 1, eval { float: |x: T| x.frexp().0 };
        /// Exponent `e` of `x = f × 2^e` for a magnitude of `f` in [½, 1), also of subnormals; of a zero, infinity or NaN, 0.
        FrexpExponent = "frexp_exponent", plain(FLOATS, &[T], &[I32]), Exact, 1, eval { float: |x: T| x.frexp().1 };
        /// Fractional part `x − trunc(x)`, with the sign of `x`, also if it is 0; of an infinity, a zero of that sign.
        ModfFraction = "modf_fraction", unary(FLOATS), Exact, 1, eval { float: |x: T| x.modf_fraction() };

        // Functions of the math library. `math::FUNCTIONS` has their bounds.

        /// e to the power of the operand. At most 0.76 ULP off.
        Exp = "exp", unary(FLOATS), Composed, 1, eval { float: |a: T| math::exp(a) };
        /// 2 to the power of the operand. At most 0.76 ULP off.
        Exp2 = "exp2", unary(FLOATS), Composed, 1, eval { float: |a: T| math::exp2(a) };
        /// Natural logarithm; of 0, −∞, and of a negative number, NaN. At most 0.51 ULP off.
        Log = "log", unary(FLOATS), Composed, 1, eval { float: |a: T| math::log(a) };
        /// Logarithm to base 2; of 0, −∞, and of a negative number, NaN. At most 0.51 ULP off.
        Log2 = "log2", unary(FLOATS), Composed, 1, eval { float: |a: T| math::log2(a) };
        /// Sine of an angle in radians, however large; of an infinity, NaN. At most 0.76 ULP off.
        Sin = "sin", unary(FLOATS), Composed, 1, eval { float: |a: T| math::sin(a) };
        /// Cosine of an angle in radians, however large; of an infinity, NaN. At most 0.76 ULP off.
        Cos = "cos", unary(FLOATS), Composed, 1, eval { float: |a: T| math::cos(a) };
        /// Tangent of an angle in radians, however large; of an infinity, NaN. At most 0.95 ULP off.
        Tan = "tan", unary(FLOATS), Composed, 1, eval { float: |a: T| math::tan(a) };
        /// Angle from −π/2 to π/2 with this sine; outside of −1 to 1, NaN. At most 0.65 ULP off.
        Asin = "asin", unary(FLOATS), Composed, 1, eval { float: |a: T| math::asin(a) };
        /// Angle from 0 to π with this cosine; outside of −1 to 1, NaN. At most 0.63 ULP off.
        Acos = "acos", unary(FLOATS), Composed, 1, eval { float: |a: T| math::acos(a) };
        /// Angle from −π/2 to π/2 with this tangent. At most 0.67 ULP off.
        Atan = "atan", unary(FLOATS), Composed, 1, eval { float: |a: T| math::atan(a) };
        /// Angle from −π to π of the point whose y is the first operand and whose x the second. The signs of zeros count, and
        /// infinities are on the axes and diagonals. At most 0.9 ULP off.
        Atan2 = "atan2", binary(FLOATS), Composed, 1, eval { float: |y: T, x: T| math::atan2(y, x) };
        /// Hyperbolic sine. At most 0.79 ULP off.
        Sinh = "sinh", unary(FLOATS), Composed, 1, eval { float: |a: T| math::sinh(a) };
        /// Hyperbolic cosine. At most 0.61 ULP off.
        Cosh = "cosh", unary(FLOATS), Composed, 1, eval { float: |a: T| math::cosh(a) };
        /// Hyperbolic tangent. At most 0.78 ULP off.
        Tanh = "tanh", unary(FLOATS), Composed, 1, eval { float: |a: T| math::tanh(a) };
        /// Inverse hyperbolic sine. At most 0.53 ULP off.
        Asinh = "asinh", unary(FLOATS), Composed, 1, eval { float: |a: T| math::asinh(a) };
        /// Inverse hyperbolic cosine, at least 0; below 1, NaN. At most 0.51 ULP off.
        Acosh = "acosh", unary(FLOATS), Composed, 1, eval { float: |a: T| math::acosh(a) };
        /// Inverse hyperbolic tangent; of ±1, an infinity, and outside of −1 to 1, NaN. At most 0.55 ULP off.
        Atanh = "atanh", unary(FLOATS), Composed, 1, eval { float: |a: T| math::atanh(a) };
        /// The first operand to the power of the second. `pow(x, 0)` and `pow(1, y)` are 1 even for a NaN; a negative number to
        /// a power that is not integral gives NaN. At most 0.8 ULP off.
        Pow = "pow", binary(FLOATS), Composed, 1, eval { float: |a: T, b: T| math::pow(a, b) };
        /// Cube root, with the sign of the operand. At most 0.51 ULP off.
        Cbrt = "cbrt", unary(FLOATS), Composed, 1, eval { float: |a: T| math::cbrt(a) };
        /// Square root of the sum of the squares, which do not overflow. With an infinity it is infinite, even for
        /// a NaN. At most 0.76 ULP off.
        Hypot = "hypot", binary(FLOATS), Composed, 1, eval { float: |a: T, b: T| math::hypot(a, b) };

        // Bits.

        /// Bitwise and; of bools, logical and.
        And = "and", binary(LOGIC), Exact, 5,
            eval { integer: |a: T, b: T| a & b, bool: |a: T, b: T| a & b };
        /// Bitwise or; of bools, logical or.
        Or = "or", binary(LOGIC), Exact, 5,
            eval { integer: |a: T, b: T| a | b, bool: |a: T, b: T| a | b };
        /// Bitwise exclusive or.
        Xor = "xor", binary(LOGIC), Exact, 5,
            eval { integer: |a: T, b: T| a ^ b, bool: |a: T, b: T| a ^ b };
        /// Bitwise complement; of a bool, negation.
        Not = "not", unary(LOGIC), Exact, 3,
            eval { integer: |a: T| !a, bool: |a: T| !a };
        /// Shift to the left; the count is taken modulo the width.
        Shl = "shl", shift(), Exact, 4,
            eval { integer: |a: T, count: u32| a.wrapping_shl(count) };
        /// Shift to the right, keeping the sign of signed integers; the count is taken modulo the width.
        Shr = "shr", shift(), Exact, 4,
            eval { integer: |a: T, count: u32| a.wrapping_shr(count) };
        /// Rotation to the left; the count is taken modulo the width.
        RotateLeft = "rotate_left", shift(), Exact, 2,
            eval { integer: |a: T, count: u32| a.rotate_left(count % T::BITS) };
        /// Number of one bits.
        CountOnes = "count_ones", count(), Exact, 2, eval { integer: |a: T| a.count_ones() };
        /// Number of zero bits above the highest one; of 0, the width.
        LeadingZeros = "leading_zeros", count(), Exact, 2, eval { integer: |a: T| a.leading_zeros() };
        /// Number of zero bits below the lowest one; of 0, the width.
        TrailingZeros = "trailing_zeros", count(), Exact, 2, eval { integer: |a: T| a.trailing_zeros() };
        /// The bits in reverse order.
        ReverseBits = "reverse_bits", unary(INTEGERS), Exact, 2, eval { integer: |a: T| a.reverse_bits() };
        /// `count` bits of `a` from bit `offset` up, sign-extended for signed integers. The field is clamped to the width; an
        /// empty field gives 0.
        ExtractBits = "extract_bits", plain(INTEGERS, &[T, U32, U32], &[T]), Exact, 2, eval { integer: |a: T, offset: u32, count: u32| {
            let (offset, count) = field(offset, count, T::BITS);
            if count == 0 { 0 } else { a << (T::BITS - offset - count) >> (T::BITS - count) }
        } };
        /// `a` with its `count` bits from bit `offset` up replaced by the low bits of `b`. The field is clamped to the width.
        InsertBits = "insert_bits", plain(INTEGERS, &[T, T, U32, U32], &[T]), Exact, 2, eval { integer: |a: T, b: T, offset: u32, count: u32| {
            let (offset, count) = field(offset, count, T::BITS);
            if count == 0 { a } else {
                let mask = (!0 as T).unsigned_shr(T::BITS - count) << offset;
                (a & !mask) | ((b << offset) & mask)
            }
        } };
        /// Two floats rounded to f16, the first in the low half of the word.
        PackF16 = "pack_f16", fixed(&[F32, F32], &[U32]), Exact, 1, eval { any: |low: f32, high: f32| {
            u32::from(f16::from_f32(low).to_bits()) | u32::from(f16::from_f32(high).to_bits()) << 16
        } };
        /// The f16 in the low half of a word, as f32.
        UnpackF16Low = "unpack_f16_low", fixed(&[U32], &[F32]), Exact, 1,
            eval { any: |word: u32| f16::from_bits(word as u16).to_f32() };
        /// The f16 in the high half of a word, as f32.
        UnpackF16High = "unpack_f16_high", fixed(&[U32], &[F32]), Exact, 1,
            eval { any: |word: u32| f16::from_bits((word >> 16) as u16).to_f32() };
        /// Rounding to f16 and back, as by `cast` to f16 and to f32: to nearest, ties to even; magnitudes from 65520 up give
        /// infinities, and small ones the subnormals of f16.
        QuantizeF16 = "quantize_f16", fixed(&[F32], &[F32]), Exact, 1, eval { any: |a: f32| f16::from_f32(a).to_f32() };
        /// Two floats as signed normalized 16-bit integers (snorm), `floor(½ + 32767 × clamp(x, −1, 1))` without rounding in between; the
        /// first in the low half of the word. NaN gives 0.
        PackSnorm16 = "pack_snorm16", fixed(&[F32, F32], &[U32]), Exact, 1,
            eval { any: |low: f32, high: f32| eval::pack_norm([low, high], -1.0, 32767) };
        /// Two floats as unsigned normalized 16-bit integers (unorm), `floor(½ + 65535 × clamp(x, 0, 1))` without rounding in between; the
        /// first in the low half of the word. NaN gives 0.
        PackUnorm16 = "pack_unorm16", fixed(&[F32, F32], &[U32]), Exact, 1,
            eval { any: |low: f32, high: f32| eval::pack_norm([low, high], 0.0, 65535) };
        /// Four floats as signed normalized bytes, `floor(½ + 127 × clamp(x, −1, 1))` without rounding in between; the first in the
        /// lowest byte. NaN gives 0.
        PackSnorm8 = "pack_snorm8", fixed(&[F32, F32, F32, F32], &[U32]), Exact, 1,
            eval { any: |a: f32, b: f32, c: f32, d: f32| eval::pack_norm([a, b, c, d], -1.0, 127) };
        /// Four floats as unsigned normalized bytes, `floor(½ + 255 × clamp(x, 0, 1))` without rounding in between; the first in the
        /// lowest byte. NaN gives 0.
        PackUnorm8 = "pack_unorm8", fixed(&[F32, F32, F32, F32], &[U32]), Exact, 1,
            eval { any: |a: f32, b: f32, c: f32, d: f32| eval::pack_norm([a, b, c, d], 0.0, 255) };
        /// Half `lane` modulo 2 of a word, as a signed normalized integer `v`: `max(v / 32767, −1)`.
        UnpackSnorm16 = "unpack_snorm16", fixed(&[U32, U32], &[F32]), ulp(3), 1, eval { any: |word: u32, lane: u32| {
            (f32::from((word >> (16 * (lane % 2))) as i16) / 32767.0).max(-1.0)
        } };
        /// Half `lane` modulo 2 of a word, as an unsigned normalized integer `v`: `v / 65535`.
        UnpackUnorm16 = "unpack_unorm16", fixed(&[U32, U32], &[F32]), ulp(3), 1,
            eval { any: |word: u32, lane: u32| f32::from((word >> (16 * (lane % 2))) as u16) / 65535.0 };
        /// Byte `lane` modulo 4 of a word, as a signed normalized integer `v`: `max(v / 127, −1)`.
        UnpackSnorm8 = "unpack_snorm8", fixed(&[U32, U32], &[F32]), ulp(3), 1, eval { any: |word: u32, lane: u32| {
            (f32::from((word >> (8 * (lane % 4))) as i8) / 127.0).max(-1.0)
        } };
        /// Byte `lane` modulo 4 of a word, as an unsigned normalized integer `v`: `v / 255`.
        UnpackUnorm8 = "unpack_unorm8", fixed(&[U32, U32], &[F32]), ulp(3), 1,
            eval { any: |word: u32, lane: u32| f32::from((word >> (8 * (lane % 4))) as u8) / 255.0 };

        // Packed bytes: a word is a vector of four, the first in the lowest bits.

        /// Dot product of two vectors of four unsigned bytes, plus the third operand; the sum wraps.
        Dot4U8 = "dot4_u8", fixed(&[U32, U32, U32], &[U32]), Exact, 2, eval { any: |a: u32, b: u32, sum: u32| {
            eval::dot4(a.to_le_bytes(), b.to_le_bytes(), sum as i32) as u32
        } };
        /// Dot product of two vectors of four signed bytes, plus the third operand; the sum wraps.
        Dot4I8 = "dot4_i8", fixed(&[U32, U32, I32], &[I32]), Exact, 2, eval { any: |a: u32, b: u32, sum: i32| {
            eval::dot4(a.to_le_bytes().map(|a| a as i8), b.to_le_bytes().map(|b| b as i8), sum)
        } };
        /// Dot product of four signed bytes, of the first operand, and four unsigned bytes, of the second, plus the third operand; the
        /// sum wraps.
        Dot4I8U8 = "dot4_i8u8", fixed(&[U32, U32, I32], &[I32]), Exact, 2, eval { any: |a: u32, b: u32, sum: i32| {
            eval::dot4(a.to_le_bytes().map(|a| a as i8), b.to_le_bytes(), sum)
        } };
        /// Byte-wise sum of two words; each byte wraps.
        AddU8x4 = "add_u8x4", fixed(&[U32, U32], &[U32]), Exact, 1,
            eval { any: |a: u32, b: u32| eval::bytes(a, b, u8::wrapping_add) };
        /// Byte-wise minimum of two words, unsigned.
        MinU8x4 = "min_u8x4", fixed(&[U32, U32], &[U32]), Exact, 1,
            eval { any: |a: u32, b: u32| eval::bytes(a, b, u8::min) };
        /// Byte-wise maximum of two words, unsigned.
        MaxU8x4 = "max_u8x4", fixed(&[U32, U32], &[U32]), Exact, 1,
            eval { any: |a: u32, b: u32| eval::bytes(a, b, u8::max) };
        /// Byte-wise minimum of two words, signed.
        MinI8x4 = "min_i8x4", fixed(&[U32, U32], &[U32]), Exact, 1,
            eval { any: |a: u32, b: u32| eval::bytes(a, b, |a, b| (a as i8).min(b as i8) as u8) };
        /// Byte-wise maximum of two words, signed.
        MaxI8x4 = "max_i8x4", fixed(&[U32, U32], &[U32]), Exact, 1,
            eval { any: |a: u32, b: u32| eval::bytes(a, b, |a, b| (a as i8).max(b as i8) as u8) };
        /// Byte-wise equality of two words: 0xff where bytes are equal, 0 elsewhere.
        EqU8x4 = "eq_u8x4", fixed(&[U32, U32], &[U32]), Exact, 1,
            eval { any: |a: u32, b: u32| eval::bytes(a, b, |a, b| if a == b { 0xff } else { 0 }) };
        /// Byte-wise unsigned comparison of two words: 0xff where the byte of the first is less, 0 elsewhere.
        LtU8x4 = "lt_u8x4", fixed(&[U32, U32], &[U32]), Exact, 1,
            eval { any: |a: u32, b: u32| eval::bytes(a, b, |a, b| if a < b { 0xff } else { 0 }) };
        /// Byte-wise lookup in a table of 16 bytes: each byte of the first operand, modulo 16, is an index into the bytes of the other
        /// four operands, from the lowest byte of the second operand up.
        LookupU8x4 = "lookup_u8x4", fixed(&[U32, U32, U32, U32, U32], &[U32]), Exact, 2,
            eval { any: |index: u32, t0: u32, t1: u32, t2: u32, t3: u32| eval::lookup(index, [t0, t1, t2, t3]) };
        /// Four unsigned integers saturated to 0…255, as bytes of a word; the first in the lowest byte.
        PackU8Clamp = "pack_u8_clamp", fixed(&[U32, U32, U32, U32], &[U32]), Exact, 1, eval { any: |a: u32, b: u32, c: u32, d: u32| {
            u32::from_le_bytes([a, b, c, d].map(|value| value.min(255) as u8))
        } };
        /// Four signed integers saturated to −128…127, as bytes of a word; the first in the lowest byte.
        PackI8Clamp = "pack_i8_clamp", fixed(&[I32, I32, I32, I32], &[U32]), Exact, 1, eval { any: |a: i32, b: i32, c: i32, d: i32| {
            u32::from_le_bytes([a, b, c, d].map(|value| value.clamp(-128, 127) as u8))
        } };

        // Comparison, choice, conversion.

        /// Equal. A NaN equals nothing; −0 equals +0.
        Eq = "eq", compare(ALL), Exact, 4, eval { any: |a: T, b: T| a == b };
        /// Not equal.
        Ne = "ne", compare(ALL), Exact, 4, eval { any: |a: T, b: T| a != b };
        /// Less.
        Lt = "lt", compare(NUMBERS), Exact, 4, eval { integer: |a: T, b: T| a < b, float: |a: T, b: T| a < b };
        /// Less or equal.
        Le = "le", compare(NUMBERS), Exact, 4, eval { integer: |a: T, b: T| a <= b, float: |a: T, b: T| a <= b };
        /// Greater.
        Gt = "gt", compare(NUMBERS), Exact, 4, eval { integer: |a: T, b: T| a > b, float: |a: T, b: T| a > b };
        /// Greater or equal.
        Ge = "ge", compare(NUMBERS), Exact, 4, eval { integer: |a: T, b: T| a >= b, float: |a: T, b: T| a >= b };
        /// The second operand if the first is true, else the third. Both are evaluated.
        Select = "select", plain(ALL, &[BOOL, T, T], &[T]), Exact, 6,
            eval { any: |condition: bool, a: T, b: T| if condition { a } else { b } };
        /// The number as another type: integers wrap, floats round to nearest even, a float to an integer truncates and
        /// saturates (NaN gives 0), and a bool is true if the number differs from zero.
        Cast = "cast", Form::Convert { same_size: false }, Exact, 6, eval { by_types eval::cast };
        /// The same bits as another type of the same width.
        Bitcast = "bitcast", Form::Convert { same_size: true }, Exact, 3, eval { by_types eval::bitcast };
    }

    section PerInvocation
    /// A position that differs between the invocations of a workgroup.
    #[derive(Copy)]
    enum PerInvocation {
        /// Linear index of the invocation: `group_index × invocations per group + local_index`.
        GlobalIndex = "global_index", fixed(&[], &[U32]), Exact, 4;
        /// Position of the invocation in the grid: `group_id × group_size + local_id`.
        GlobalId(Axis) = "global_id", Form::PerAxis, Exact, 2;
        /// Position of the invocation in its workgroup.
        LocalId(Axis) = "local_id", Form::PerAxis, Exact, 2;
        /// Linear index of the invocation in its workgroup, x fastest.
        LocalIndex = "local_index", fixed(&[], &[U32]), Exact, 2;
        /// Index of the subgroup in its workgroup.
        SubgroupId = "subgroup_id", fixed(&[], &[U32]), Exact, 1;
        /// Lane of the invocation in its subgroup.
        SubgroupLane = "subgroup_lane", fixed(&[], &[U32]), Exact, 1;
    }

    section PerGroup
    /// A position or size that is the same for all invocations of a workgroup.
    #[derive(Copy)]
    enum PerGroup {
        /// Position of the workgroup in the grid.
        GroupId(Axis) = "group_id", Form::PerAxis, Exact, 2;
        /// Linear index of the workgroup, x fastest.
        GroupIndex = "group_index", fixed(&[], &[U32]), Exact, 1;
        /// Number of workgroups.
        GroupCount(Axis) = "group_count", Form::PerAxis, Exact, 1;
        /// Number of invocations of a workgroup.
        GroupSize(Axis) = "group_size", Form::PerAxis, Exact, 1;
        /// Number of elements of an object.
        Length(MemId) = "length", Form::Length, Exact, 3;
        /// Number of lanes of a subgroup: a power of two that the device chooses, from 1 to 128.
        SubgroupSize = "subgroup_size", fixed(&[], &[U32]), Exact, 1;
    }

    section Access
    single {
        /// One to four consecutive elements from an index up; 0 for those outside. A uniform scalar has no index.
        Load(MemOperand) = "load", Form::Load, Exact, 10;
        /// Writes one to four consecutive elements from an index up; those outside are dropped.
        Store(MemOperand) = "store", Form::Store, Exact, 8;
    }

    section Atomic
    /// A relaxed atomic read-modify-write (fetch-and-op) of an element with one operand, which gives the old value.
    #[derive(Copy)]
    enum Atomic(MemOperand) {
        /// Adds to an element as `add` does and gives the old value. Sums of floats are rounded in the order in which invocations come.
        Add = "atomic_add", Form::Atomic(ATOMIC), Ordered, 2;
        /// Subtracts from an element as `sub` does and gives the old value. Differences of floats are rounded in the order in which
        /// invocations come.
        Sub = "atomic_sub", Form::Atomic(ATOMIC), Ordered, 1;
        /// Stores the minimum of an element and the operand, as `min` does, and gives the old value.
        Min = "atomic_min", Form::Atomic(ATOMIC), Exact, 1;
        /// Stores the maximum of an element and the operand, as `max` does, and gives the old value.
        Max = "atomic_max", Form::Atomic(ATOMIC), Exact, 1;
        /// Bitwise and with an element; gives the old value.
        And = "atomic_and", Form::Atomic(INTEGERS), Exact, 1;
        /// Bitwise or with an element; gives the old value.
        Or = "atomic_or", Form::Atomic(INTEGERS), Exact, 1;
        /// Bitwise exclusive or with an element; gives the old value.
        Xor = "atomic_xor", Form::Atomic(INTEGERS), Exact, 1;
        /// Replaces an element and gives the old value.
        Exchange = "atomic_exchange", Form::Atomic(ATOMIC), Exact, 1;
    }

    section Atomic
    single {
        /// Replaces an element if it equals the first operand; gives the old value and whether it was
        /// replaced. It never fails spuriously.
        CompareExchange(MemOperand) = "atomic_compare_exchange", Form::CompareExchange, Exact, 1;
    }

    // Collectives: barriers and `broadcast` need workgroup-uniform control flow, the others subgroup-uniform control flow.

    section Collective
    /// A barrier of the workgroup.
    #[derive(Copy)]
    enum Barrier {
        /// Barrier of the workgroup; earlier stores to workgroup memory are visible after it.
        Workgroup = "workgroup_barrier", fixed(&[], &[]), Exact, 2;
        /// Barrier of the workgroup; its earlier stores to storage are visible to the workgroup after it.
        Storage = "storage_barrier", fixed(&[], &[]), Exact, 1;
    }

    section Collective
    single {
        /// The value of invocation 0 of the workgroup, or 0 if it has ended. The result is workgroup-uniform; includes both
        /// barriers.
        Broadcast = "broadcast", unary(ALL), Exact, 1;
    }

    section Collective
    /// An exchange between the invocations of a subgroup.
    #[derive(Copy)]
    enum Subgroup {
        /// A bit for each lane: 1 if the lane is active and its operand is true; lanes 0–31 in the first word, and so on.
        Ballot = "subgroup_ballot", fixed(&[BOOL], &[U32, U32, U32, U32]), Exact, 1;
        /// The value of the lane that the second operand names; 0 if there is no such lane or it has ended.
        Shuffle = "subgroup_shuffle", plain(ALL, &[T, U32], &[T]), Exact, 1;
        /// The value of the lane whose number is lower by the second operand; 0 if there is no such lane or it has ended.
        ShuffleUp = "subgroup_shuffle_up", plain(ALL, &[T, U32], &[T]), Exact, 1;
        /// The value of the lane whose number is higher by the second operand; 0 if there is no such lane or it has ended.
        ShuffleDown = "subgroup_shuffle_down", plain(ALL, &[T, U32], &[T]), Exact, 1;
        /// The value of the lane whose number is the bitwise exclusive or of the own one and the second operand; 0 if there is no
        /// such lane or it has ended.
        ShuffleXor = "subgroup_shuffle_xor", plain(ALL, &[T, U32], &[T]), Exact, 1;
        /// The value of the lowest active lane.
        BroadcastFirst = "subgroup_broadcast_first", unary(ALL), Exact, 1;
        /// True if the operand is true in all active lanes. Lanes that have ended are inactive; true if there are none.
        All = "subgroup_all", fixed(&[BOOL], &[BOOL]), Exact, 1;
        /// True if the operand is true in at least one active lane. Lanes that have ended are inactive; false if there are none.
        Any = "subgroup_any", fixed(&[BOOL], &[BOOL]), Exact, 1;
        /// Stream compaction: the values of the active lanes whose second operand is true, moved to the front in lane order, and their
        /// number n. Lane k gets the k-th value, counted from 0, or 0 if k ≥ n; values for lanes that have ended are dropped.
        Compact = "subgroup_compact", plain(ALL, &[T, BOOL], &[T, U32]), Exact, 1;
        /// Sum over the active lanes. Floats are added in a tree that halves the subgroup: lane k adds lane k + size/2, then
        /// k + size/4, …; inactive lanes count as −0.
        Add = "subgroup_add", unary(NUMBERS), Ordered, 1;
        /// Product over the active lanes, in the same order as `subgroup_add`.
        Mul = "subgroup_mul", unary(NUMBERS), Ordered, 1;
        /// Smallest value of the active lanes.
        Min = "subgroup_min", unary(NUMBERS), Exact, 1;
        /// Largest value of the active lanes.
        Max = "subgroup_max", unary(NUMBERS), Exact, 1;
        /// Bitwise and over the active lanes.
        And = "subgroup_and", unary(LOGIC), Exact, 1;
        /// Bitwise or over the active lanes.
        Or = "subgroup_or", unary(LOGIC), Exact, 1;
        /// Bitwise exclusive or over the active lanes.
        Xor = "subgroup_xor", unary(LOGIC), Exact, 1;
        /// Sum over the active lanes up to and including this one. Floats are added in doubling steps: lane k adds lane
        /// k − 1, then k − 2, k − 4, ….
        InclusiveAdd = "subgroup_inclusive_add", unary(NUMBERS), Ordered, 1;
        /// The inclusive sum of the previous lane; 0 in lane 0.
        ExclusiveAdd = "subgroup_exclusive_add", unary(NUMBERS), Ordered, 1;
        /// Product over the active lanes up to and including this one, in the same order as `subgroup_inclusive_add`.
        InclusiveMul = "subgroup_inclusive_mul", unary(NUMBERS), Ordered, 1;
        /// The inclusive product of the previous lane; 1 in lane 0.
        ExclusiveMul = "subgroup_exclusive_mul", unary(NUMBERS), Ordered, 1;
    }

    section Effect
    single {
        /// Appends a line to the bounded trace of the dispatch; each `{}` of the text is replaced by an operand.
        Print(Box<str>) = "print", Form::Print, Exact, 1;
    }

    section Control
    /// Control flow: the operation has nested blocks.
    enum Control {
        /// Executes the first block if the condition is true, else the second; the results are the values that it yields.
        If = "if", Form::If, Exact, 5;
        /// Executes the block of the case that equals the selector, else the last block; the results are the values that it yields.
        Switch(Box<[u32]>) = "switch", Form::Switch, Exact, 2;
        /// Executes its block until `break`. The block's parameters are the operands in the first iteration, then the values that
        /// `continue` passes; the results are the values that `break` passes.
        Loop = "loop", Form::Loop, Exact, 4;
        /// Executes its block, which came from the named operation; the results are the values that it yields.
        Region(Box<str>) = "region", Form::Region, Exact, 2;
    }

    section Control
    /// The last operation of a block: it leaves the block.
    #[derive(Copy)]
    enum Terminator {
        /// Ends a block of an `if`, `switch` or `region` and passes its results.
        Yield = "yield", Form::Exit, Exact, 0;
        /// Leaves the innermost loop and passes its results.
        Break = "break", Form::Exit, Exact, 1;
        /// Starts the next iteration of the innermost loop and passes its parameters.
        Continue = "continue", Form::Exit, Exact, 1;
        /// Ends the invocation. It counts as present at later barriers and has no other effect.
        Return = "return", Form::Exit, Exact, 1;
        /// Ends the invocation as `return` does, and makes the dispatch fail with the code.
        Trap = "trap", Form::Trap, Exact, 1;
    }
}

impl Op {
    /// Returns true if this ends a block.
    pub fn is_terminator(&self) -> bool {
        matches!(self, Op::Terminator(_))
    }

    /// The object of an access or of `length`.
    pub fn memory(&self) -> Option<MemId> {
        match self.payload() {
            Payload::Object(memory) => Some(memory),
            Payload::Memory(operand) => Some(operand.memory),
            Payload::None | Payload::Axis(_) | Payload::Text(_) | Payload::Cases(_) => None,
        }
    }

    /// The memory operand of a load, store or atomic.
    pub fn operand(&self) -> Option<MemOperand> {
        match *self {
            Op::Load(operand) | Op::Store(operand) | Op::Atomic(_, operand) | Op::CompareExchange(operand) => {
                Some(operand)
            }
            _ => None,
        }
    }

    /// The memory operand of an atomic read-modify-write.
    pub fn atomic(&self) -> Option<MemOperand> {
        match *self {
            Op::Atomic(_, operand) | Op::CompareExchange(operand) => Some(operand),
            _ => None,
        }
    }

    /// The same operation on another object.
    #[must_use]
    pub fn on(&self, memory: MemId) -> Op {
        match *self {
            Op::PerGroup(PerGroup::Length(_)) => PerGroup::Length(memory).into(),
            Op::Load(operand) => Op::Load(MemOperand { memory, ..operand }),
            Op::Store(operand) => Op::Store(MemOperand { memory, ..operand }),
            Op::Atomic(op, operand) => Op::Atomic(op, MemOperand { memory, ..operand }),
            Op::CompareExchange(operand) => Op::CompareExchange(MemOperand { memory, ..operand }),
            _ => self.clone(),
        }
    }

    /// Returns true if the operation requires subgroup support.
    pub fn needs_subgroups(&self) -> bool {
        match self {
            Op::Subgroup(_) => true,
            Op::PerInvocation(op) => matches!(op, PerInvocation::SubgroupId | PerInvocation::SubgroupLane),
            Op::PerGroup(op) => *op == PerGroup::SubgroupSize,
            _ => false,
        }
    }

    /// Element types of a read-modify-write.
    pub fn atomic_class(&self) -> Option<TypeSet> {
        match self.info().form {
            Form::Atomic(class) => Some(class),
            Form::CompareExchange => Some(INTEGERS),
            _ => None,
        }
    }

    /// Returns true if all invocations of the workgroup or subgroup must execute this together.
    pub fn is_collective(&self) -> bool {
        self.kind() == Kind::Collective
    }
}

impl Pure {
    /// Returns true for functions of the [math library](crate::math), which are expanded into other operations.
    pub fn is_composed(self) -> bool {
        self.info().exactness == Composed
    }

    /// The relation that this tests, if it is a comparison.
    pub const fn comparison(self) -> Option<Comparison> {
        match self {
            Pure::Eq => Some(Comparison::Eq),
            Pure::Ne => Some(Comparison::Ne),
            Pure::Lt => Some(Comparison::Lt),
            Pure::Le => Some(Comparison::Le),
            Pure::Gt => Some(Comparison::Gt),
            Pure::Ge => Some(Comparison::Ge),
            _ => None,
        }
    }
}

impl Atomic {
    /// Function of the old value and the operand that gives the new value; `None` for an exchange, which stores the operand.
    pub const fn function(self) -> Option<Pure> {
        match self {
            Atomic::Add => Some(Pure::Add),
            Atomic::Sub => Some(Pure::Sub),
            Atomic::Min => Some(Pure::Min),
            Atomic::Max => Some(Pure::Max),
            Atomic::And => Some(Pure::And),
            Atomic::Or => Some(Pure::Or),
            Atomic::Xor => Some(Pure::Xor),
            Atomic::Exchange => None,
        }
    }
}

impl Subgroup {
    /// The data that the lanes exchange.
    pub const fn exchange(self) -> Exchange {
        use Combined::{All, Exclusive, Inclusive};
        match self {
            Subgroup::Ballot => Exchange::Ballot,
            Subgroup::Shuffle => Exchange::Shuffle(ShuffleMode::Lane),
            Subgroup::ShuffleUp => Exchange::Shuffle(ShuffleMode::Up),
            Subgroup::ShuffleDown => Exchange::Shuffle(ShuffleMode::Down),
            Subgroup::ShuffleXor => Exchange::Shuffle(ShuffleMode::Xor),
            Subgroup::BroadcastFirst => Exchange::First,
            Subgroup::Compact => Exchange::Compact,
            Subgroup::All => Exchange::Combine(Combiner::And, All),
            Subgroup::Any => Exchange::Combine(Combiner::Or, All),
            Subgroup::Add => Exchange::Combine(Combiner::Add, All),
            Subgroup::Mul => Exchange::Combine(Combiner::Mul, All),
            Subgroup::Min => Exchange::Combine(Combiner::Min, All),
            Subgroup::Max => Exchange::Combine(Combiner::Max, All),
            Subgroup::And => Exchange::Combine(Combiner::And, All),
            Subgroup::Or => Exchange::Combine(Combiner::Or, All),
            Subgroup::Xor => Exchange::Combine(Combiner::Xor, All),
            Subgroup::InclusiveAdd => Exchange::Combine(Combiner::Add, Inclusive),
            Subgroup::InclusiveMul => Exchange::Combine(Combiner::Mul, Inclusive),
            Subgroup::ExclusiveAdd => Exchange::Combine(Combiner::Add, Exclusive),
            Subgroup::ExclusiveMul => Exchange::Combine(Combiner::Mul, Exclusive),
        }
    }
}
