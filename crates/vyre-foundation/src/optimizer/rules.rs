//! The rewrite rules: data, each rule proved by an SMT solver.
//!
//! A rule replaces one expression by another, for a class of types and optionally `when` a condition on literals holds.
//! There are two files with one rule per line: `canonical.txt` brings equivalent expressions into one form,
//! `simplifying.txt` makes programs cheaper. Expressions are in prefix form, with the names of the [op
//! table](crate::ir::ops):
//!
//! * A lower-case name matches any value, an upper-case name any literal. `x` has the type `T`, which stands for each
//!   type of the rule's class in turn. Other types are inferred, or annotated after a colon: `c:bool`. A type that
//!   inference leaves open is `T`.
//! * Numbers have the inferred type. As an integer or a bool, `-1` is all ones. `T::MIN`, `T::MAX` and `T::BITS` are
//!   the least and greatest integer of the class and, as a u32, its width.
//! * The target of a conversion is written after a colon: `(cast:u32 x)`, `(cast:T c)`.
//! * Subexpressions of literals in the replacement and in the condition are evaluated when the rule is applied, by the
//!   evaluators of the op table.
//! * Operands of commutative operations (those in [`SWAPPED`]) are matched in either order, but literals only on the
//!   right, where `canonicalize` puts them.
//!
//! Rules use only operations with an SMT term in the op table. For every type of a rule's class, the solver proves that
//! no operands distinguish the two sides; a rule that it cannot prove is not in the table. Tests check that
//! [`simplifying`] rules lower the cost and [`canonical`] rules do not raise it, so rewriting terminates.

use std::sync::{Arc, LazyLock, OnceLock};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::cost;
use crate::ir::ops::{Form, OpInfo, Signature, Slot};
use crate::ir::{Pure, Type, TypeSet};

/// Rewrite rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Types that `T` stands for.
    pub class: TypeSet,
    /// Pattern.
    pub from: &'static str,
    /// Replacement.
    pub to: &'static str,
    /// Condition on the literals.
    pub when: Option<&'static str>,
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} → {}", self.from, self.to)?;
        self.when.map_or(Ok(()), |when| write!(f, " when {when}"))
    }
}

/// Error in the text of a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// A line that is not a rule.
    #[error("not a rule: {0}")]
    Line(&'static str),
    /// A name in the replacement or the condition that the pattern does not bind.
    #[error("`{0}` is not bound by the pattern")]
    Unbound(String),
    /// Conflicting types.
    #[error("conflicting types {0} and {1}")]
    Unequal(Type, Type),
    /// Text after the end of an expression.
    #[error("`{word}` after the end of {text}")]
    Trailing {
        /// First word after the expression.
        word: String,
        /// The expression.
        text: String,
    },
    /// Unexpected end of the text.
    #[error("expected {0} at the end")]
    Missing(&'static str),
    /// An unknown type.
    #[error("`{0}` is not a type")]
    UnknownType(String),
    /// An unknown operation.
    #[error("`{0}` is not an operation")]
    UnknownOp(String),
    /// An operation that is not pure, such as a memory access.
    #[error("`{0}` is not a pure operation")]
    Payload(String),
    /// Wrong number of operands.
    #[error("`{op}` with {operands} operands")]
    Operands {
        /// The operation.
        op: String,
        /// Number of operands.
        operands: usize,
    },
    /// Types for which the operation is not defined.
    #[error("`{op}` of {class} has no result of type {ty}")]
    Result {
        /// The operation.
        op: &'static str,
        /// Type of the operands.
        class: Type,
        /// Type of the result.
        ty: Type,
    },
    /// A word that is not a float.
    #[error("`{0}` is not a number")]
    Float(String),
    /// A word that is not an integer.
    #[error("`{0}` is not an integer")]
    Integer(String),
}

/// Names of type classes; a type is also the name of its own class.
const CLASSES: [(&str, TypeSet); 10] = [
    ("all", TypeSet::ALL),
    ("numbers", TypeSet::NUMBERS),
    ("integers", TypeSet::INTEGERS),
    // For rules whose 64-bit proof takes too long.
    ("integers_32", TypeSet::INTEGERS_32),
    ("floats", TypeSet::FLOATS),
    ("small_floats", TypeSet::of(&[Type::F16, Type::F32])),
    ("logic", TypeSet::LOGIC),
    ("signed", TypeSet::SIGNED),
    ("signed_integers", TypeSet::of(&[Type::I32, Type::I64])),
    ("unsigned", TypeSet::of(&[Type::U32, Type::U64])),
];

/// Parses rules, one per line: `class: from → to` or `class: from → to when condition`.
///
/// # Errors
/// A line does not have this form. Expressions are parsed when a rule is first used.
pub fn read(text: &'static str) -> Result<Vec<Rule>, RuleError> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
    let rule = |line: &'static str| {
        let (class, rule) = line.split_once(": ")?;
        let named = CLASSES.iter().find(|(name, _)| *name == class).map(|(_, types)| *types);
        let class = named.or_else(|| Type::from_name(class).map(|ty| TypeSet::of(&[ty])))?;
        let (from, to) = rule.split_once(" → ")?;
        let (to, when) = to.split_once(" when ").map_or((to, None), |(to, when)| (to, Some(when)));
        Some(Rule { class, from, to, when })
    };
    lines.map(|line| rule(line).ok_or(RuleError::Line(line))).collect()
}

/// Rules that bring equivalent expressions into one form.
pub fn canonical() -> &'static [Rule] {
    static RULES: LazyLock<Vec<Rule>> =
        LazyLock::new(|| read(include_str!("rules/canonical.txt")).expect("the rule tables are valid"));
    &RULES
}

/// Rules that make programs cheaper.
pub fn simplifying() -> &'static [Rule] {
    static RULES: LazyLock<Vec<Rule>> =
        LazyLock::new(|| read(include_str!("rules/simplifying.txt")).expect("the rule tables are valid"));
    &RULES
}

/// Operations whose two operands may be swapped: the operation, its form with swapped operands, and the types. Addition
/// and multiplication of floats are missing, because the solver does not terminate on them.
pub const SWAPPED: &[(Pure, Pure, TypeSet)] = &[
    (Pure::Add, Pure::Add, TypeSet::INTEGERS),
    (Pure::Mul, Pure::Mul, TypeSet::INTEGERS),
    (Pure::MulHigh, Pure::MulHigh, TypeSet::INTEGERS),
    (Pure::Min, Pure::Min, TypeSet::NUMBERS),
    (Pure::Max, Pure::Max, TypeSet::NUMBERS),
    (Pure::And, Pure::And, TypeSet::LOGIC),
    (Pure::Or, Pure::Or, TypeSet::LOGIC),
    (Pure::Xor, Pure::Xor, TypeSet::LOGIC),
    (Pure::Eq, Pure::Eq, TypeSet::ALL),
    (Pure::Ne, Pure::Ne, TypeSet::ALL),
    (Pure::Lt, Pure::Gt, TypeSet::NUMBERS),
    (Pure::Le, Pure::Ge, TypeSet::NUMBERS),
    (Pure::Gt, Pure::Lt, TypeSet::NUMBERS),
    (Pure::Ge, Pure::Le, TypeSet::NUMBERS),
];

/// The operation that is equivalent with swapped operands.
pub(super) fn swapped(op: Pure, class: Type) -> Option<Pure> {
    let row = SWAPPED.iter().find(|(known, _, types)| *known == op && types.contains(class));
    row.map(|&(_, swapped, _)| swapped)
}

/// Rule with its types resolved.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Pattern.
    pub from: Term,
    /// Replacement.
    pub to: Term,
    /// Condition on the literals.
    pub when: Option<Term>,
    /// Types of the names, by their number in the terms.
    pub names: Vec<Type>,
}

/// Typed expression.
#[derive(Clone, Debug)]
pub struct Term {
    /// Type of the value.
    pub ty: Type,
    /// Kind and children.
    pub node: Node,
}

/// Node of an expression.
#[derive(Clone, Debug)]
pub enum Node {
    /// Any value.
    Value(usize),
    /// Any literal.
    Literal(usize),
    /// A number, by its bits.
    Number(u64),
    /// An operation, the type `T` of its signature, and its operands.
    Apply(Pure, Type, Vec<Term>),
}

impl Term {
    /// Returns true if the term contains no values, so that it can be evaluated when a rule is applied.
    pub fn is_evaluable(&self) -> bool {
        match &self.node {
            Node::Value(_) => false,
            Node::Literal(_) | Node::Number(_) => true,
            Node::Apply(_, _, operands) => operands.iter().all(Term::is_evaluable),
        }
    }

    /// Evaluates a term without values, for these literals.
    pub(super) fn evaluate(&self, literal: &impl Fn(usize) -> u64) -> u64 {
        match &self.node {
            Node::Value(_) => unreachable!("terms with values are not evaluable"),
            Node::Literal(name) => literal(*name),
            Node::Number(bits) => *bits,
            Node::Apply(op, class, operands) => {
                let operands: SmallVec<[u64; 4]> = operands.iter().map(|operand| operand.evaluate(literal)).collect();
                let evaluate = op.info().evaluator(*class, self.ty).expect("rules are well-typed");
                evaluate(&operands)
            }
        }
    }

    /// Cost of all operations in the term.
    fn cost(&self) -> u64 {
        match &self.node {
            Node::Apply(op, _, operands) if !self.is_evaluable() => {
                cost::of_pure(*op) + operands.iter().map(Term::cost).sum::<u64>()
            }
            Node::Value(_) | Node::Literal(_) | Node::Number(_) | Node::Apply(..) => 0,
        }
    }

    /// All operand orders of commutative operations that may occur in canonical form.
    fn operand_orders(&self) -> Vec<Term> {
        let Node::Apply(op, class, operands) = &self.node else { return vec![self.clone()] };
        let mut lists = vec![Vec::new()];
        for operand in operands {
            let operand_orders = operand.operand_orders();
            let extended = |list: &Vec<Term>| -> Vec<Vec<Term>> {
                operand_orders.iter().map(|order| list.iter().chain([order]).cloned().collect()).collect()
            };
            lists = lists.iter().flat_map(extended).collect();
        }
        if swapped(*op, *class) == Some(*op) && !operands[1].is_evaluable() {
            let swapped: Vec<Vec<Term>> = lists.iter().map(|list| list.iter().rev().cloned().collect()).collect();
            lists.extend(swapped);
        }
        lists.into_iter().map(|list| Term { ty: self.ty, node: Node::Apply(*op, *class, list) }).collect()
    }

    /// Shapes that the first two operands must have.
    fn operand_shapes(&self) -> [Shape; 2] {
        let mut shapes = [Shape::Any; 2];
        if let Node::Apply(_, _, operands) = &self.node {
            for (shape, operand) in shapes.iter_mut().zip(operands) {
                *shape = match &operand.node {
                    Node::Value(_) => Shape::Any,
                    Node::Literal(_) | Node::Number(_) => Shape::Literal,
                    Node::Apply(op, _, _) => Shape::Result(*op),
                };
            }
        }
        shapes
    }

    /// Returns true if two terms are equal up to renaming (alpha equivalence).
    fn alpha_equivalent(&self, other: &Term, names: &mut Vec<(usize, usize)>) -> bool {
        match (&self.node, &other.node) {
            (Node::Value(a), Node::Value(b)) | (Node::Literal(a), Node::Literal(b)) => {
                let known = names.iter().find(|(of_a, of_b)| of_a == a || of_b == b);
                let same = known.is_none_or(|pair| pair == &(*a, *b));
                names.push((*a, *b));
                same
            }
            (Node::Number(a), Node::Number(b)) => a == b,
            (Node::Apply(a, _, of_a), Node::Apply(b, _, of_b)) => {
                let mut operands = || of_a.iter().zip(of_b).all(|(a, b)| a.alpha_equivalent(b, names));
                a == b && self.ty == other.ty && of_a.len() == of_b.len() && operands()
            }
            (Node::Value(_) | Node::Literal(_) | Node::Number(_) | Node::Apply(..), _) => false,
        }
    }
}

/// Pattern of an instance, with one operand order.
pub(super) struct Pattern {
    /// Pattern with this operand order.
    pub(super) from: Term,
    pub(super) instance: Arc<Instance>,
    /// Whether the rule pays only if the matched instructions have no other uses.
    pub(super) needs_single_use: bool,
}

/// Shape of an operand, which rules out most patterns cheaply.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Wildcard in a pattern. As the shape of a value: neither a literal nor the result of a pure operation.
    Any,
    /// A literal.
    Literal,
    /// The result of an operation.
    Result(Pure),
}

/// Patterns whose first two operands have these shapes.
struct Group {
    shapes: [Shape; 2],
    patterns: Vec<Pattern>,
}

/// Rules by their root operation. Rules are parsed when a program first contains the operation: parsing all would take
/// longer than optimizing most programs.
pub(super) struct Index {
    by_op: FxHashMap<Pure, (Vec<&'static Rule>, OnceLock<ByClass>)>,
}

/// Patterns by the type `T` in the signature of the root operation.
type ByClass = FxHashMap<Type, Vec<Group>>;

impl Index {
    /// Index of the [`canonical`] rules.
    pub(super) fn canonical() -> &'static Index {
        static INDEX: OnceLock<Index> = OnceLock::new();
        INDEX.get_or_init(|| Index::of(canonical()))
    }

    /// Index of the [`simplifying`] rules.
    pub(super) fn simplifying() -> &'static Index {
        static INDEX: OnceLock<Index> = OnceLock::new();
        INDEX.get_or_init(|| Index::of(simplifying()))
    }

    fn of(rules: &'static [Rule]) -> Index {
        let mut by_op: FxHashMap<_, (Vec<&Rule>, OnceLock<ByClass>)> = FxHashMap::default();
        for rule in rules {
            let op = rule.root().and_then(OpInfo::pure).expect("the rule tables are valid");
            by_op.entry(op).or_default().0.push(rule);
        }
        Index { by_op }
    }

    /// Parses the rules with a root operation.
    fn read(rules: &[&'static Rule], op: Pure) -> ByClass {
        let mut by_class = ByClass::default();
        for (rule, ty) in rules.iter().flat_map(|rule| rule.class.iter().map(move |ty| (rule, ty))) {
            let instance = Arc::new(rule.at(ty).expect("the rule tables are valid"));
            let Node::Apply(_, class, _) = instance.from.node else { continue };
            let groups = by_class.entry(class).or_default();
            let needs_single_use = instance.to.cost() > cost::of_pure(op);
            let mut operand_orders: Vec<Term> = Vec::new();
            for order in instance.from.operand_orders() {
                if !operand_orders.iter().any(|known| known.alpha_equivalent(&order, &mut Vec::new())) {
                    operand_orders.push(order);
                }
            }
            for from in operand_orders {
                let shapes = from.operand_shapes();
                let pattern = Pattern { from, instance: instance.clone(), needs_single_use };
                match groups.iter_mut().find(|group| group.shapes == shapes) {
                    Some(group) => group.patterns.push(pattern),
                    None => groups.push(Group { shapes, patterns: vec![pattern] }),
                }
            }
        }
        by_class
    }

    /// Patterns that an operation with these operand shapes may match.
    pub(super) fn candidates(&self, op: Pure, class: Type, shapes: [Shape; 2]) -> impl Iterator<Item = &Pattern> {
        let rules = self.by_op.get(&op);
        let by_class = rules.map(|(rules, read)| read.get_or_init(|| Index::read(rules, op)));
        let groups = by_class.and_then(|by_class| by_class.get(&class)).map_or(&[][..], Vec::as_slice);
        let fits = move |group: &&Group| {
            group.shapes.iter().zip(shapes).all(|(&wanted, found)| wanted == Shape::Any || wanted == found)
        };
        groups.iter().filter(fits).flat_map(|group| &group.patterns)
    }
}

impl Rule {
    /// Root operation.
    fn root(&self) -> Option<&'static OpInfo> {
        let name = self.from.strip_prefix('(')?.split([' ', ':']).next()?;
        OpInfo::named(name)
    }

    /// Resolves the rule for one type of its class.
    ///
    /// # Errors
    /// The rule is malformed or ill-typed.
    pub fn at(&self, class: Type) -> Result<Instance, RuleError> {
        let mut reader = Reader { class, names: Vec::new(), types: Vec::new() };
        reader.name("x", Some(Slot::T));
        let from = reader.read(self.from)?;
        let known = reader.names.len();
        let to = reader.read(self.to)?;
        reader.unify(from.ty, to.ty)?;
        let when = self.when.map(|when| reader.read(when)).transpose()?;
        if let Some(when) = &when {
            let bool = reader.fixed(Type::Bool);
            reader.unify(when.ty, bool)?;
        }
        if reader.names.len() > known {
            return Err(RuleError::Unbound(reader.names[known].0.clone()));
        }
        let names = reader.names.iter().map(|&(_, ty)| reader.resolve(ty)).collect();
        let when = when.map(|when| reader.typed(when)).transpose()?;
        Ok(Instance { from: reader.typed(from)?, to: reader.typed(to)?, when, names })
    }
}

/// Expression with type variables.
struct Untyped {
    ty: usize,
    node: Unresolved,
}

enum Unresolved {
    Value(usize),
    Literal(usize),
    Number(String),
    Apply(Pure, usize, Vec<Untyped>),
}

/// State of a type variable.
#[derive(Clone, Copy)]
enum TypeVar {
    Bound(Type),
    Unified(usize),
    Free,
}

type Words<'t> = std::iter::Peekable<std::str::SplitWhitespace<'t>>;

/// Parses expressions and infers their types by unification.
struct Reader {
    class: Type,
    /// Names with their type variables.
    names: Vec<(String, usize)>,
    types: Vec<TypeVar>,
}

impl Reader {
    fn fresh(&mut self, known: TypeVar) -> usize {
        self.types.push(known);
        self.types.len() - 1
    }

    fn fixed(&mut self, ty: Type) -> usize {
        self.fresh(TypeVar::Bound(ty))
    }

    fn name(&mut self, name: &str, ty: Option<Slot>) -> usize {
        if let Some(position) = self.names.iter().position(|(known, _)| known == name) {
            return position;
        }
        let known = match ty {
            None => TypeVar::Free,
            Some(Slot::T) => TypeVar::Bound(self.class),
            Some(Slot::Is(ty)) => TypeVar::Bound(ty),
        };
        let ty = self.fresh(known);
        self.names.push((name.into(), ty));
        self.names.len() - 1
    }

    fn root(&self, mut ty: usize) -> usize {
        while let TypeVar::Unified(other) = self.types[ty] {
            ty = other;
        }
        ty
    }

    fn unify(&mut self, a: usize, b: usize) -> Result<(), RuleError> {
        let (a, b) = (self.root(a), self.root(b));
        match (self.types[a], self.types[b]) {
            _ if a == b => Ok(()),
            (TypeVar::Bound(one), TypeVar::Bound(other)) if one != other => Err(RuleError::Unequal(one, other)),
            (TypeVar::Free, _) => {
                self.types[a] = TypeVar::Unified(b);
                Ok(())
            }
            _ => {
                self.types[b] = TypeVar::Unified(a);
                Ok(())
            }
        }
    }

    fn resolve(&self, ty: usize) -> Type {
        match self.types[self.root(ty)] {
            TypeVar::Bound(ty) => ty,
            TypeVar::Free | TypeVar::Unified(_) => self.class,
        }
    }

    fn read(&mut self, text: &str) -> Result<Untyped, RuleError> {
        let spaced = text.replace('(', " ( ").replace(')', " ) ");
        let mut words = spaced.split_whitespace().peekable();
        let term = self.term(&mut words)?;
        words.next().map_or(Ok(term), |word| Err(RuleError::Trailing { word: word.into(), text: text.into() }))
    }

    fn term(&mut self, words: &mut Words<'_>) -> Result<Untyped, RuleError> {
        let word = words.next().ok_or(RuleError::Missing("an expression"))?;
        if word == "(" {
            let name = words.next().ok_or(RuleError::Missing("an operation"))?;
            return self.apply(name, words);
        }
        let (name, annotation) = word.split_once(':').filter(|(name, _)| *name != "T").unwrap_or((word, ""));
        let annotation = if annotation.is_empty() { None } else { Some(self.annotated(annotation)?) };
        match name.as_bytes()[0] {
            _ if name == "true" || name == "false" => {
                Ok(Untyped { ty: self.fixed(Type::Bool), node: Unresolved::Number(name.into()) })
            }
            _ if name == "T::BITS" => Ok(Untyped { ty: self.fixed(Type::U32), node: Unresolved::Number(name.into()) }),
            _ if name.starts_with("T::") => {
                Ok(Untyped { ty: self.fixed(self.class), node: Unresolved::Number(name.into()) })
            }
            b'0'..=b'9' | b'-' => Ok(Untyped { ty: self.fresh(TypeVar::Free), node: Unresolved::Number(name.into()) }),
            first => {
                let position = self.name(name, annotation.map(Slot::Is));
                let ty = self.names[position].1;
                let is_literal = first.is_ascii_uppercase();
                let node = if is_literal { Unresolved::Literal(position) } else { Unresolved::Value(position) };
                Ok(Untyped { ty, node })
            }
        }
    }

    fn annotated(&self, name: &str) -> Result<Type, RuleError> {
        match name {
            "T" => Ok(self.class),
            name => Type::from_name(name).ok_or_else(|| RuleError::UnknownType(name.into())),
        }
    }

    fn apply(&mut self, name: &str, words: &mut Words<'_>) -> Result<Untyped, RuleError> {
        let (name, target) = name.split_once(':').unwrap_or((name, ""));
        let row = OpInfo::named(name).ok_or_else(|| RuleError::UnknownOp(name.into()))?;
        let op = row.pure().ok_or_else(|| RuleError::Payload(name.into()))?;
        let mut operands = Vec::new();
        while *words.peek().ok_or(RuleError::Missing("`)`"))? != ")" {
            operands.push(self.term(words)?);
        }
        words.next();
        let (class, ty) = match row.form {
            Form::Plain(Signature { operands: slots, results: &[result], .. }) if slots.len() == operands.len() => {
                let class = self.fresh(TypeVar::Free);
                for (slot, operand) in slots.iter().zip(&operands) {
                    let wanted = self.slot(*slot, class);
                    self.unify(wanted, operand.ty)?;
                }
                (class, self.slot(result, class))
            }
            Form::Convert { .. } if operands.len() == 1 => {
                let target = self.annotated(target)?;
                (operands[0].ty, self.fixed(target))
            }
            _ => return Err(RuleError::Operands { op: name.into(), operands: operands.len() }),
        };
        Ok(Untyped { ty, node: Unresolved::Apply(op, class, operands) })
    }

    fn slot(&mut self, slot: Slot, class: usize) -> usize {
        match slot {
            Slot::T => class,
            Slot::Is(ty) => self.fixed(ty),
        }
    }

    fn typed(&self, Untyped { ty, node }: Untyped) -> Result<Term, RuleError> {
        let ty = self.resolve(ty);
        let node = match node {
            Unresolved::Value(name) => Node::Value(name),
            Unresolved::Literal(name) => Node::Literal(name),
            Unresolved::Number(text) => Node::Number(self.number(&text, ty)?),
            Unresolved::Apply(op, class, operands) => {
                let class = self.resolve(class);
                if op.info().evaluator(class, ty).is_none() {
                    return Err(RuleError::Result { op: op.info().name, class, ty });
                }
                let operands = operands.into_iter().map(|operand| self.typed(operand)).collect::<Result<_, _>>()?;
                Node::Apply(op, class, operands)
            }
        };
        Ok(Term { ty, node })
    }

    /// The bits of a number.
    fn number(&self, text: &str, ty: Type) -> Result<u64, RuleError> {
        let mask = u64::MAX >> (64 - ty.bits());
        let top = 1u64 << (self.class.bits() - 1);
        let is_signed = matches!(self.class, Type::I32 | Type::I64);
        match (text, ty) {
            ("true", _) => Ok(1),
            ("false", _) => Ok(0),
            ("T::BITS", _) => Ok(self.class.bits().into()),
            ("T::MIN", _) => Ok(if is_signed { top } else { 0 }),
            ("T::MAX", _) => Ok(if is_signed { top - 1 } else { mask }),
            (_, Type::F16 | Type::F32 | Type::F64) => {
                let number: f64 = text.parse().map_err(|_| RuleError::Float(text.into()))?;
                let convert = Pure::Cast.info().evaluator(Type::F64, ty).expect("floats can be cast to each other");
                Ok(convert(&[number.to_bits()]))
            }
            (_, Type::Bool | Type::I32 | Type::U32 | Type::I64 | Type::U64) => {
                let number: i64 = text.parse().map_err(|_| RuleError::Integer(text.into()))?;
                Ok(number as u64 & mask)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instances(rules: &'static [Rule]) -> impl Iterator<Item = (&'static Rule, Type, Instance)> {
        rules.iter().flat_map(|rule| {
            let at = move |ty| (rule, ty, rule.at(ty).unwrap_or_else(|error| panic!("{rule}: {error}")));
            rule.class.iter().map(at)
        })
    }

    #[test]
    fn rules_do_not_raise_the_cost() {
        let more = |(_, _, instance): &(&Rule, Type, Instance)| instance.to.cost() > instance.from.cost();
        let no_less = |(_, _, instance): &(&Rule, Type, Instance)| instance.to.cost() >= instance.from.cost();
        let wrong = instances(simplifying()).filter(no_less).chain(instances(canonical()).filter(more));
        let wrong: Vec<String> = wrong.map(|(rule, ty, _)| format!("{rule} for {ty}")).collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn malformed_rules_are_rejected() {
        let wrong = "
            integers: (add x) → x
            integers: (plus x 0) → x
            integers: (add x 0 → x
            integers: (add x 0) 1 → x
            integers: (add x 0) → y
            integers: (add x 0.5) → x
            integers: (eq x 0) → x
            integers: (cast:u8 x) → x
            bool: (add x 0) → x
            integers: (add x C) → x when C
        ";
        for rule in read(wrong).unwrap() {
            assert!(rule.at(Type::U32).and(rule.at(Type::Bool)).is_err(), "{rule}");
        }
        for line in ["(add x 0) → x", "numeric: (add x 0) → x", "integers: (add x 0)"] {
            assert!(read(line).is_err(), "{line}");
        }
    }
}
