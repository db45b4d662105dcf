//! Builder of a naga module: types, literals, expressions in the current block.
//!
//! Expressions are emitted where they are created, so that evaluation follows program order; naga's back ends rely on
//! nothing else.

use half::f16;
use naga::{
    BinaryOperator, Block, Expression, Handle, Literal, LocalVariable, MathFunction, Range, ScalarKind, Span,
    Statement, TypeInner, UnaryOperator, VectorSize,
};
use rustc_hash::FxHashMap;
use vyre_foundation::ir::{self, Pure, Type};

/// An expression of the entry point.
pub(super) type Expr = Handle<Expression>;

/// naga's text writers inline expressions with a single use into their users, recursively. An expression of this depth
/// gets a name, which bounds the recursion.
const MAX_DEPTH: usize = 64;

/// A module and its entry point under construction.
#[derive(Default)]
pub(super) struct Builder {
    pub(super) module: naga::Module,
    pub(super) function: naga::Function,
    /// The device rounds `fma` twice.
    pub(super) emulate_fma: bool,
    /// Two u32 zeros that the driver loads at run time, if floats are to be opaque to its optimizer: for operands, and for results.
    pub(super) opaque_zeros: Option<[Expr; 2]>,
    /// Open blocks, innermost last.
    blocks: Vec<Block>,
    /// Nesting depth of each expression in text form.
    depths: Vec<usize>,
    literals: FxHashMap<ir::Literal, Expr>,
    /// Constants, by name.
    overrides: FxHashMap<String, Expr>,
    /// Variables that hold the bits of literals that naga does not allow.
    non_finite: FxHashMap<ir::Literal, Expr>,
}

/// naga scalar of a type.
pub(super) fn scalar(ty: Type) -> naga::Scalar {
    match ty {
        Type::Bool => naga::Scalar::BOOL,
        Type::I32 => naga::Scalar::I32,
        Type::U32 => naga::Scalar::U32,
        Type::F32 => naga::Scalar::F32,
        Type::I64 => naga::Scalar::I64,
        Type::U64 => naga::Scalar::U64,
        Type::F64 => naga::Scalar::F64,
        Type::F16 => naga::Scalar::F16,
    }
}

impl Builder {
    pub(super) fn new() -> Builder {
        Builder { blocks: vec![Block::new()], ..Builder::default() }
    }

    // Types.

    pub(super) fn ty(&mut self, inner: TypeInner) -> Handle<naga::Type> {
        self.module.types.insert(naga::Type { name: None, inner }, Span::UNDEFINED)
    }

    pub(super) fn scalar_ty(&mut self, ty: Type) -> Handle<naga::Type> {
        self.ty(TypeInner::Scalar(scalar(ty)))
    }

    /// Array type of fixed or runtime length, with plain or atomic elements.
    pub(super) fn array_ty(&mut self, element: Type, length: Option<u32>, atomic: bool) -> Handle<naga::Type> {
        let element = scalar(element);
        let base = self.ty(if atomic { TypeInner::Atomic(element) } else { TypeInner::Scalar(element) });
        let size = match length.and_then(std::num::NonZeroU32::new) {
            Some(length) => naga::ArraySize::Constant(length),
            None => naga::ArraySize::Dynamic,
        };
        self.ty(TypeInner::Array { base, size, stride: u32::from(element.width) })
    }

    pub(super) fn vector_ty(&mut self, element: Type, size: VectorSize) -> Handle<naga::Type> {
        self.ty(TypeInner::Vector { size, scalar: scalar(element) })
    }

    /// Array type of vectors, with runtime length.
    pub(super) fn vectors_ty(&mut self, element: Type, size: VectorSize) -> Handle<naga::Type> {
        let base = self.vector_ty(element, size);
        let stride = size as u32 * u32::from(scalar(element).width);
        self.ty(TypeInner::Array { base, size: naga::ArraySize::Dynamic, stride })
    }

    // Blocks and statements.

    pub(super) fn open(&mut self) {
        self.blocks.push(Block::new());
    }

    pub(super) fn close(&mut self) -> Block {
        self.blocks.pop().expect("every close has its open")
    }

    pub(super) fn push(&mut self, statement: Statement) {
        self.blocks.last_mut().expect("the body is open").push(statement, Span::UNDEFINED);
    }

    /// Builds `then` under a condition.
    pub(super) fn when(&mut self, condition: Expr, then: impl FnOnce(&mut Builder)) {
        self.open();
        then(self);
        let accept = self.close();
        self.push(Statement::If { condition, accept, reject: Block::new() });
    }

    /// Returns under a condition.
    pub(super) fn return_when(&mut self, condition: Expr) {
        self.when(condition, |b| b.push(Statement::Return { value: None }));
    }

    // Expressions.

    /// Adds an expression that needs no evaluation: a variable, an argument, a constant.
    pub(super) fn name(&mut self, expression: Expression) -> Expr {
        self.depths.push(0);
        self.function.expressions.append(expression, Span::UNDEFINED)
    }

    /// Adds the result of a statement.
    pub(super) fn result(&mut self, expression: Expression) -> Expr {
        self.name(expression)
    }

    /// Evaluates an expression here.
    pub(super) fn emit(&mut self, expression: Expression) -> Expr {
        let depth = 1 + self.depth_of_operands(&expression);
        let is_pointer = matches!(expression, Expression::Access { .. } | Expression::AccessIndex { .. });
        let handle = self.name(expression);
        if depth < MAX_DEPTH || is_pointer {
            self.depths[handle.index()] = depth;
        } else {
            self.function.named_expressions.insert(handle, "part".into());
        }
        let block = self.blocks.last_mut().expect("the body is open");
        let mut first = handle;
        if let Some(Statement::Emit(range)) = block.last()
            && let Some((earlier, last)) = range.first_and_last()
            && last.index() + 1 == handle.index()
        {
            first = earlier;
            let kept = block.len() - 1;
            block.cull(kept..);
        }
        block.push(Statement::Emit(Range::new_from_bounds(first, handle)), Span::UNDEFINED);
        handle
    }

    fn depth_of_operands(&self, expression: &Expression) -> usize {
        let depth = |operand: Expr| self.depths[operand.index()];
        let deepest = |operands: &[Option<Expr>]| operands.iter().flatten().map(|&operand| depth(operand)).max();
        match *expression {
            Expression::Access { base, index } => depth(base).max(depth(index)),
            Expression::AccessIndex { base: operand, .. }
            | Expression::Splat { value: operand, .. }
            | Expression::Swizzle { vector: operand, .. }
            | Expression::Load { pointer: operand }
            | Expression::Unary { expr: operand, .. }
            | Expression::Derivative { expr: operand, .. }
            | Expression::Relational { argument: operand, .. }
            | Expression::As { expr: operand, .. }
            | Expression::ArrayLength(operand) => depth(operand),
            Expression::Compose { ref components, .. } => {
                components.iter().map(|&component| depth(component)).max().unwrap_or(0)
            }
            Expression::Binary { left, right, .. } => depth(left).max(depth(right)),
            Expression::Select { condition, accept, reject } => depth(condition).max(depth(accept)).max(depth(reject)),
            Expression::Math { arg, arg1, arg2, arg3, .. } => deepest(&[Some(arg), arg1, arg2, arg3]).unwrap_or(0),
            // No other expressions with operands are built.
            _ => 0,
        }
    }

    pub(super) fn literal(&mut self, literal: ir::Literal) -> Expr {
        if let Some(&known) = self.literals.get(&literal) {
            return known;
        }
        let bits = literal.bits;
        let (value, finite) = match literal.ty {
            Type::Bool => (Literal::Bool(bits != 0), true),
            Type::I32 => (Literal::I32(bits as i32), true),
            Type::U32 => (Literal::U32(bits as u32), true),
            Type::I64 => (Literal::I64(bits as i64), true),
            Type::U64 => (Literal::U64(bits), true),
            Type::F32 => (Literal::F32(f32::from_bits(bits as u32)), f32::from_bits(bits as u32).is_finite()),
            Type::F64 => (Literal::F64(f64::from_bits(bits)), f64::from_bits(bits).is_finite()),
            Type::F16 => (Literal::F16(f16::from_bits(bits as u16)), f16::from_bits(bits as u16).is_finite()),
        };
        if !finite {
            return self.non_finite(literal);
        }
        if literal.ty == Type::F16 {
            // The WGSL writer derives extensions from the types.
            self.scalar_ty(Type::F16);
        }
        let expression = self.name(Expression::Literal(value));
        self.literals.insert(literal, expression);
        expression
    }

    /// Pipeline-overridable constant. naga has none of 64 bits.
    pub(super) fn overridable(&mut self, name: &str, default: ir::Literal) -> Expr {
        let finite = self.literal(default);
        let Expression::Literal(value) = self.function.expressions[finite] else { return finite };
        if default.ty.bits() == 64 {
            return finite;
        }
        if let Some(&known) = self.overrides.get(name) {
            return known;
        }
        let init = Some(self.module.global_expressions.append(Expression::Literal(value), Span::UNDEFINED));
        let ty = self.scalar_ty(default.ty);
        let handle = naga::Override { name: Some(name.into()), id: None, ty, init };
        let handle = self.module.overrides.append(handle, Span::UNDEFINED);
        let expression = self.name(Expression::Override(handle));
        self.overrides.insert(name.into(), expression);
        expression
    }

    /// An infinity or a NaN. WGSL has no constant expression for them, so the bits are loaded from a variable.
    fn non_finite(&mut self, literal: ir::Literal) -> Expr {
        let (carrier, from) = match literal.ty {
            Type::F64 => (ir::Literal { ty: Type::U64, bits: literal.bits }, Type::F64),
            Type::F16 => {
                let wide = f16::from_bits(literal.bits as u16).to_f32().to_bits();
                (ir::Literal { ty: Type::U32, bits: u64::from(wide) }, Type::F32)
            }
            _ => (ir::Literal { ty: Type::U32, bits: literal.bits }, Type::F32),
        };
        let variable = if let Some(&known) = self.non_finite.get(&literal) {
            known
        } else {
            let init = self.literal(carrier);
            let ty = self.scalar_ty(carrier.ty);
            let variable = LocalVariable { name: Some("bits".into()), ty, init: Some(init) };
            let variable = self.function.local_variables.append(variable, Span::UNDEFINED);
            let variable = self.name(Expression::LocalVariable(variable));
            self.non_finite.insert(literal, variable);
            variable
        };
        let bits = self.load(variable);
        let value = self.bitcast(bits, from);
        if literal.ty == Type::F16 { self.resize(value, Type::F16) } else { value }
    }

    pub(super) fn u32(&mut self, value: u32) -> Expr {
        self.literal(value.into())
    }

    /// Value of a literal u32.
    pub(super) fn known_u32(&self, expr: Expr) -> Option<u32> {
        self.known(expr)?.value()
    }

    pub(super) fn bool(&mut self, value: bool) -> Expr {
        self.literal(value.into())
    }

    pub(super) fn zero(&mut self, ty: Type) -> Expr {
        self.literal(ir::Literal::zero(ty))
    }

    /// Zero-initialized variable of the entry point.
    pub(super) fn variable(&mut self, name: &str, ty: Handle<naga::Type>) -> Expr {
        let variable = LocalVariable { name: Some(name.into()), ty, init: None };
        let variable = self.function.local_variables.append(variable, Span::UNDEFINED);
        self.name(Expression::LocalVariable(variable))
    }

    pub(super) fn scalar_variable(&mut self, name: &str, ty: Type) -> Expr {
        let ty = self.scalar_ty(ty);
        self.variable(name, ty)
    }

    pub(super) fn load(&mut self, pointer: Expr) -> Expr {
        self.emit(Expression::Load { pointer })
    }

    pub(super) fn store(&mut self, pointer: Expr, value: Expr) {
        self.push(Statement::Store { pointer, value });
    }

    pub(super) fn at(&mut self, base: Expr, index: Expr) -> Expr {
        self.emit(Expression::Access { base, index })
    }

    pub(super) fn field(&mut self, base: Expr, index: u32) -> Expr {
        self.emit(Expression::AccessIndex { base, index })
    }

    /// Value of a literal.
    pub(super) fn known(&self, expr: Expr) -> Option<ir::Literal> {
        let Expression::Literal(literal) = self.function.expressions[expr] else { return None };
        Some(match literal {
            Literal::Bool(value) => value.into(),
            Literal::I32(value) => value.into(),
            Literal::U32(value) => value.into(),
            Literal::I64(value) => value.into(),
            Literal::U64(value) => value.into(),
            Literal::F32(value) => value.into(),
            Literal::F64(value) => value.into(),
            Literal::F16(value) => value.into(),
            Literal::U16(_) | Literal::I16(_) | Literal::AbstractInt(_) | Literal::AbstractFloat(_) => return None,
        })
    }

    /// Constant-folds an operation on literals. WGSL evaluates such expressions at shader creation, and rejects
    /// overflow.
    pub(super) fn folded(&mut self, op: Pure, operands: &[Expr], result: Option<Type>) -> Option<Expr> {
        let operands: Vec<ir::Literal> = operands.iter().map(|&operand| self.known(operand)).collect::<Option<_>>()?;
        // Operand that determines `T`; for a selection not the first one.
        let class = operands[usize::from(op == Pure::Select)].ty;
        let ty = result.unwrap_or(class);
        let evaluate = op.info().evaluator(class, ty)?;
        let bits: Vec<u64> = operands.iter().map(|operand| operand.bits).collect();
        Some(self.literal(ir::Literal { ty, bits: evaluate(&bits) }))
    }

    pub(super) fn binary(&mut self, op: BinaryOperator, left: Expr, right: Expr) -> Expr {
        let (meaning, result) = match op {
            BinaryOperator::Add => (Pure::Add, None),
            BinaryOperator::Subtract => (Pure::Sub, None),
            BinaryOperator::Multiply => (Pure::Mul, None),
            BinaryOperator::Divide => (Pure::Div, None),
            BinaryOperator::Modulo => (Pure::Rem, None),
            BinaryOperator::And | BinaryOperator::LogicalAnd => (Pure::And, None),
            BinaryOperator::InclusiveOr | BinaryOperator::LogicalOr => (Pure::Or, None),
            BinaryOperator::ExclusiveOr => (Pure::Xor, None),
            BinaryOperator::ShiftLeft => (Pure::Shl, None),
            BinaryOperator::ShiftRight => (Pure::Shr, None),
            BinaryOperator::Equal => (Pure::Eq, Some(Type::Bool)),
            BinaryOperator::NotEqual => (Pure::Ne, Some(Type::Bool)),
            BinaryOperator::Less => (Pure::Lt, Some(Type::Bool)),
            BinaryOperator::LessEqual => (Pure::Le, Some(Type::Bool)),
            BinaryOperator::Greater => (Pure::Gt, Some(Type::Bool)),
            BinaryOperator::GreaterEqual => (Pure::Ge, Some(Type::Bool)),
        };
        if let Some(folded) = self.folded(meaning, &[left, right], result) {
            return folded;
        }
        self.emit(Expression::Binary { op, left, right })
    }

    pub(super) fn not(&mut self, expr: Expr, ty: Type) -> Expr {
        if let Some(folded) = self.folded(Pure::Not, &[expr], None) {
            return folded;
        }
        let op = if ty == Type::Bool { UnaryOperator::LogicalNot } else { UnaryOperator::BitwiseNot };
        self.emit(Expression::Unary { op, expr })
    }

    pub(super) fn negate(&mut self, expr: Expr) -> Expr {
        if let Some(folded) = self.folded(Pure::Neg, &[expr], None) {
            return folded;
        }
        self.emit(Expression::Unary { op: UnaryOperator::Negate, expr })
    }

    pub(super) fn select(&mut self, condition: Expr, accept: Expr, reject: Expr) -> Expr {
        if let Some(condition) = self.known(condition) {
            return if condition.bits != 0 { accept } else { reject };
        }
        self.emit(Expression::Select { condition, accept, reject })
    }

    pub(super) fn math(&mut self, fun: MathFunction, arguments: &[Expr]) -> Expr {
        let folded = match fun {
            MathFunction::Min => self.folded(Pure::Min, arguments, None),
            MathFunction::Max => self.folded(Pure::Max, arguments, None),
            _ => None,
        };
        if let Some(folded) = folded {
            return folded;
        }
        let arg = |position: usize| arguments.get(position).copied();
        self.emit(Expression::Math { fun, arg: arguments[0], arg1: arg(1), arg2: arg(2), arg3: arg(3) })
    }

    pub(super) fn min(&mut self, a: Expr, b: Expr) -> Expr {
        self.math(MathFunction::Min, &[a, b])
    }

    pub(super) fn max(&mut self, a: Expr, b: Expr) -> Expr {
        self.math(MathFunction::Max, &[a, b])
    }

    /// Bitcast between types of the same width.
    pub(super) fn bitcast(&mut self, expr: Expr, to: Type) -> Expr {
        if let Some(folded) = self.folded(Pure::Bitcast, &[expr], Some(to)) {
            return folded;
        }
        self.emit(Expression::As { expr, kind: scalar(to).kind, convert: None })
    }

    /// Bits of a value of type `from` as type `to` of the same width.
    pub(super) fn bits_as(&mut self, expr: Expr, from: Type, to: Type) -> Expr {
        if from == to { expr } else { self.bitcast(expr, to) }
    }

    /// naga's conversion, where it agrees with vyre's.
    pub(super) fn resize(&mut self, expr: Expr, to: Type) -> Expr {
        if let Some(folded) = self.folded(Pure::Cast, &[expr], Some(to)) {
            return folded;
        }
        let naga::Scalar { kind, width } = scalar(to);
        debug_assert_ne!(kind, ScalarKind::Bool, "bools are made by comparing");
        self.emit(Expression::As { expr, kind, convert: Some(width) })
    }
}

macro_rules! operators {
    ($($(#[$doc:meta])* $name:ident = $op:ident;)*) => {
        impl Builder { $(
            $(#[$doc])*
            pub(super) fn $name(&mut self, left: Expr, right: Expr) -> Expr {
                self.binary(BinaryOperator::$op, left, right)
            }
        )* }
    };
}
operators! {
    add = Add;
    sub = Subtract;
    mul = Multiply;
    and = And;
    or = InclusiveOr;
    xor = ExclusiveOr;
    /// The count must be below the width.
    shl = ShiftLeft;
    /// The count must be below the width.
    shr = ShiftRight;
    eq = Equal;
    /// Operands must be integers or bools: for floats, naga's back ends disagree about NaN.
    ne = NotEqual;
    lt = Less;
    le = LessEqual;
    gt = Greater;
    ge = GreaterEqual;
}

/// Nested expressions: `expr!(b, or(and(x, 0xff), y))` calls the methods `or` and `and` of the builder `b`, operands
/// first. A name is an expression, a number a u32 literal, and brackets contain any Rust expression.
macro_rules! expr {
    ($b:expr, $number:literal) => { $b.u32($number) };
    ($b:expr, $value:ident) => { $value };
    ($b:expr, [$any:expr]) => { $any };
    ($b:expr, $f:ident($x:tt $(($($xs:tt)*))?)) => {{
        let x = expr!($b, $x $(($($xs)*))?);
        $b.$f(x)
    }};
    ($b:expr, $f:ident($x:tt $(($($xs:tt)*))?, $y:tt $(($($ys:tt)*))?)) => {{
        let x = expr!($b, $x $(($($xs)*))?);
        let y = expr!($b, $y $(($($ys)*))?);
        $b.$f(x, y)
    }};
    ($b:expr, $f:ident($x:tt $(($($xs:tt)*))?, $y:tt $(($($ys:tt)*))?, $z:tt $(($($zs:tt)*))?)) => {{
        let x = expr!($b, $x $(($($xs)*))?);
        let y = expr!($b, $y $(($($ys)*))?);
        let z = expr!($b, $z $(($($zs)*))?);
        $b.$f(x, y, z)
    }};
}
pub(super) use expr;
