//! Types of values, elements of memory, and literals.

use std::fmt;

use half::{bf16, f16};

/// Type of a value. All values are scalars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Type {
    /// Boolean. Memory has no bool elements.
    Bool,
    /// 32-bit signed integer.
    I32,
    /// 32-bit unsigned integer: the type of every index and size.
    U32,
    /// IEEE binary32.
    F32,
    /// 64-bit signed integer, on devices that support it.
    I64,
    /// 64-bit unsigned integer, on devices that support it.
    U64,
    /// IEEE binary64, on devices that support it.
    F64,
    /// IEEE binary16, on devices that support it.
    F16,
}

impl Type {
    /// Every type.
    pub const ALL: [Type; 8] =
        [Type::Bool, Type::I32, Type::U32, Type::F32, Type::I64, Type::U64, Type::F64, Type::F16];

    /// Name in the text format.
    pub const fn name(self) -> &'static str {
        match self {
            Type::Bool => "bool",
            Type::I32 => "i32",
            Type::U32 => "u32",
            Type::F32 => "f32",
            Type::I64 => "i64",
            Type::U64 => "u64",
            Type::F64 => "f64",
            Type::F16 => "f16",
        }
    }

    /// The type with this name.
    pub fn from_name(name: &str) -> Option<Type> {
        Type::ALL.into_iter().find(|ty| ty.name() == name)
    }

    /// Width in bits; a bool has one.
    pub const fn bits(self) -> u32 {
        match self {
            Type::Bool => 1,
            Type::F16 => 16,
            Type::I32 | Type::U32 | Type::F32 => 32,
            Type::I64 | Type::U64 | Type::F64 => 64,
        }
    }

    /// Returns true for floating-point types.
    pub const fn is_float(self) -> bool {
        TypeSet::FLOATS.contains(self)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of types, for which an operation is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeSet(u8);

impl TypeSet {
    /// The set of exactly these types.
    pub const fn of(types: &[Type]) -> TypeSet {
        let mut bits = 0;
        let mut i = 0;
        while i < types.len() {
            bits |= 1 << types[i] as u8;
            i += 1;
        }
        TypeSet(bits)
    }

    /// Signed and unsigned integers.
    pub const INTEGERS: TypeSet = TypeSet::of(&[Type::I32, Type::U32, Type::I64, Type::U64]);
    /// Floating-point numbers.
    pub const FLOATS: TypeSet = TypeSet::of(&[Type::F32, Type::F64, Type::F16]);
    /// Integers and floats.
    pub const NUMBERS: TypeSet = TypeSet(Self::INTEGERS.0 | Self::FLOATS.0);
    /// Signed integers and floats.
    pub const SIGNED: TypeSet = TypeSet(Self::FLOATS.0 | TypeSet::of(&[Type::I32, Type::I64]).0);
    /// Integers and bool.
    pub const LOGIC: TypeSet = TypeSet(Self::INTEGERS.0 | TypeSet::of(&[Type::Bool]).0);
    /// Every type.
    pub const ALL: TypeSet = TypeSet::of(&Type::ALL);
    /// Types of elements that are accessed atomically: numbers of 32 and 64 bits.
    pub const ATOMIC: TypeSet = TypeSet(Self::INTEGERS.0 | TypeSet::of(&[Type::F32, Type::F64]).0);
    /// 32-bit integers.
    pub const INTEGERS_32: TypeSet = TypeSet::of(&[Type::I32, Type::U32]);

    /// Returns true if `ty` is in the set.
    pub const fn contains(self, ty: Type) -> bool {
        self.0 & (1 << ty as u8) != 0
    }

    /// The types of the set.
    pub fn iter(self) -> impl Iterator<Item = Type> {
        Type::ALL.into_iter().filter(move |&ty| self.contains(ty))
    }
}

impl fmt::Display for TypeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(Type::name).collect();
        f.write_str(&names.join(", "))
    }
}

/// Element type of a memory object. Integers of 8 and 16 bits are extended when loaded and truncated when stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Element {
    /// 8-bit signed integer, loaded as i32.
    I8,
    /// 8-bit unsigned integer, loaded as u32.
    U8,
    /// 16-bit signed integer, loaded as i32.
    I16,
    /// 16-bit unsigned integer, loaded as u32.
    U16,
    /// 32-bit signed integer.
    I32,
    /// 32-bit unsigned integer.
    U32,
    /// IEEE binary32.
    F32,
    /// 64-bit signed integer.
    I64,
    /// 64-bit unsigned integer.
    U64,
    /// IEEE binary64.
    F64,
    /// IEEE binary16.
    F16,
    /// bfloat16, loaded as f32: the upper half of its bits. A store rounds to nearest, ties to even.
    BF16,
}

impl Element {
    /// Every element type.
    pub const ALL: [Element; 12] = [
        Element::I8,
        Element::U8,
        Element::I16,
        Element::U16,
        Element::I32,
        Element::U32,
        Element::F32,
        Element::I64,
        Element::U64,
        Element::F64,
        Element::F16,
        Element::BF16,
    ];

    /// Name in the text format.
    pub const fn name(self) -> &'static str {
        match self {
            Element::I8 => "i8",
            Element::U8 => "u8",
            Element::I16 => "i16",
            Element::U16 => "u16",
            Element::BF16 => "bf16",
            Element::I32 | Element::U32 | Element::F32 | Element::I64 | Element::U64 | Element::F64 | Element::F16 => {
                self.value_type().name()
            }
        }
    }

    /// The element with this name.
    pub fn from_name(name: &str) -> Option<Element> {
        Element::ALL.into_iter().find(|element| element.name() == name)
    }

    /// Size in bytes.
    pub const fn size(self) -> usize {
        match self {
            Element::I8 | Element::U8 => 1,
            Element::I16 | Element::U16 | Element::F16 | Element::BF16 => 2,
            Element::I32 | Element::U32 | Element::F32 => 4,
            Element::I64 | Element::U64 | Element::F64 => 8,
        }
    }

    /// Type of the values that are loaded from such an element or stored to it.
    pub const fn value_type(self) -> Type {
        match self {
            Element::I8 | Element::I16 | Element::I32 => Type::I32,
            Element::U8 | Element::U16 | Element::U32 => Type::U32,
            Element::F32 | Element::BF16 => Type::F32,
            Element::I64 => Type::I64,
            Element::U64 => Type::U64,
            Element::F64 => Type::F64,
            Element::F16 => Type::F16,
        }
    }

    /// Returns true if elements have fewer bits than the values that are loaded from them, so that a store may change a value.
    pub const fn is_narrow(self) -> bool {
        8 * (self.size() as u32) < self.value_type().bits()
    }

    /// Returns true if an element can represent a literal.
    pub fn holds(self, literal: Literal) -> bool {
        literal.ty == self.value_type() && self.truncate(literal) == literal
    }

    /// Returns the value that a load gives after a store of `value`: narrow integers lose their upper bits, and bf16 is rounded.
    pub fn truncate(self, value: Literal) -> Literal {
        let mut bytes = [0; 8];
        self.write(value.bits, &mut bytes);
        Literal { bits: self.read(&bytes), ..value }
    }

    /// Reads one element from its little-endian bytes as the bits of a value.
    pub fn read(self, bytes: &[u8]) -> u64 {
        let mut word = [0; 8];
        word[..self.size()].copy_from_slice(&bytes[..self.size()]);
        let raw = u64::from_le_bytes(word);
        match self {
            Element::I8 => u64::from(raw as u8 as i8 as i32 as u32),
            Element::I16 => u64::from(raw as u16 as i16 as i32 as u32),
            Element::BF16 => raw << 16,
            Element::U8
            | Element::U16
            | Element::I32
            | Element::U32
            | Element::F32
            | Element::I64
            | Element::U64
            | Element::F64
            | Element::F16 => raw,
        }
    }

    /// Writes the bits of a value as one little-endian element: integers are truncated, and bf16 is rounded to nearest, ties to even.
    pub fn write(self, bits: u64, bytes: &mut [u8]) {
        let bits = match self {
            Element::BF16 => bf16::from_f32(f32::from_bits(bits as u32)).to_bits().into(),
            _ => bits,
        };
        bytes[..self.size()].copy_from_slice(&bits.to_le_bytes()[..self.size()]);
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The Rust type of a value [`Type`].
///
/// The bits of a value are the low bits of a `u64`, zero-extended; a bool is 0 or 1.
pub trait Scalar: Copy {
    /// The IR type.
    const TYPE: Type;
    /// The value with these bits.
    fn from_bits(bits: u64) -> Self;
    /// The bits of the value.
    fn to_bits(self) -> u64;
}

macro_rules! scalar {
    ($($rust:ty, $ty:ident, $bits:ident => $from:expr, $value:ident => $to:expr;)*) => { $(
        impl Scalar for $rust {
            const TYPE: Type = Type::$ty;
            fn from_bits($bits: u64) -> Self {
                $from
            }
            fn to_bits(self) -> u64 {
                let $value = self;
                $to
            }
        }

        impl From<$rust> for Literal {
            fn from(value: $rust) -> Literal {
                Literal { ty: Type::$ty, bits: Scalar::to_bits(value) }
            }
        }
    )* };
}

scalar! {
    bool, Bool, bits => bits & 1 != 0, value => u64::from(value);
    i32, I32, bits => bits as i32, value => u64::from(value as u32);
    u32, U32, bits => bits as u32, value => u64::from(value);
    f32, F32, bits => f32::from_bits(bits as u32), value => u64::from(value.to_bits());
    i64, I64, bits => bits as i64, value => value as u64;
    u64, U64, bits => bits, value => value;
    f64, F64, bits => f64::from_bits(bits), value => value.to_bits();
    f16, F16, bits => f16::from_bits(bits as u16), value => u64::from(value.to_bits());
}

/// A typed constant. Equality compares types and bits: `0.0` differs from `-0.0`, and a NaN equals itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Literal {
    /// The type.
    pub ty: Type,
    /// The bits, in the representation of [`Scalar`].
    pub bits: u64,
}

impl Literal {
    /// The zero of a type: the initial value of memory, and the result of a load out of bounds.
    pub const fn zero(ty: Type) -> Literal {
        Literal { ty, bits: 0 }
    }

    /// Returns true if the bits represent a value of the type.
    pub const fn is_value(self) -> bool {
        self.bits <= u64::MAX >> (64 - self.ty.bits())
    }

    /// The Rust value, if the literal has that type.
    pub fn value<T: Scalar>(self) -> Option<T> {
        (self.ty == T::TYPE).then(|| T::from_bits(self.bits))
    }

    /// Formats the value without a type suffix, and infinities and NaNs as `inf` and `NaN`.
    pub fn plain(self) -> String {
        let bits = self.bits;
        match self.ty {
            Type::Bool => (bits != 0).to_string(),
            Type::I32 => (bits as i32).to_string(),
            Type::U32 => (bits as u32).to_string(),
            Type::I64 => (bits as i64).to_string(),
            Type::U64 => bits.to_string(),
            Type::F32 => format!("{:?}", f32::from_bits(bits as u32)),
            Type::F64 => format!("{:?}", f64::from_bits(bits)),
            Type::F16 => format!("{:?}", f16::from_bits(bits as u16).to_f32()),
        }
    }

    /// Returns true unless the literal is an infinity or a NaN.
    pub fn is_finite(self) -> bool {
        match self.ty {
            Type::F32 => f32::from_bits(self.bits as u32).is_finite(),
            Type::F64 => f64::from_bits(self.bits).is_finite(),
            Type::F16 => f16::from_bits(self.bits as u16).is_finite(),
            Type::Bool | Type::I32 | Type::U32 | Type::I64 | Type::U64 => true,
        }
    }
}

/// Formats the literal for the text format: `7`, `-7i32`, `1.5`, `1.5f64`, `true`, `f32(0x7fc00000)`.
impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Literal { ty, bits } = *self;
        if !self.is_finite() {
            // Infinities and NaNs are printed as bits, which preserves NaN payloads.
            return write!(f, "{ty}(0x{bits:x})");
        }
        match ty {
            Type::Bool => write!(f, "{}", bits != 0),
            Type::U32 => write!(f, "{bits}"),
            Type::I32 => write!(f, "{}i32", bits as i32),
            Type::I64 => write!(f, "{}i64", bits as i64),
            Type::U64 => write!(f, "{bits}u64"),
            Type::F32 => write!(f, "{:?}", f32::from_bits(bits as u32)),
            Type::F64 => write!(f, "{:?}f64", f64::from_bits(bits)),
            Type::F16 => write!(f, "{:?}f16", f16::from_bits(bits as u16).to_f32()),
        }
    }
}

impl fmt::Debug for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
