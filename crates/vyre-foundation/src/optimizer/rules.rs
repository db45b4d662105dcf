//! The rewrite rules: data, each of them proved.
//!
//! A rule says that one expression may stand for another, for some types and perhaps only `when` something holds of literals.
//! They stand in two files, a line each: `canonical.txt` has those that bring equal things into equal form, `simplifying.txt`
//! those that make programs cheaper. Expressions are written with the names of the [op table](crate::ir::ops), in prefix form:
//!
//! * A lower-case name is any value, an upper-case name any literal. `x` has the type `T`, which is each type of the rule's
//!   class in turn; the types of the others follow from where they stand, or are written after a colon: `c:bool`.
//!   What is still open then is a `T` too.
//! * Numbers have the type of their place. As an integer or a bool, `-1` is all ones. `T::MIN`, `T::MAX` and `T::BITS` are
//!   the least and greatest integer of the class and, as a u32, its width.
//! * The target of a conversion is written after a colon: `(cast:u32 x)`, `(cast:T c)`.
//! * What consists of literals only, in the replacement and in the condition, is computed when the rule is applied, by the
//!   evaluators of the op table.
//! * Operands of the operations in [`SWAPPED`] that commute are matched in either order, except that literals stand on the right, where
//!   `canonicalize` puts them.
//!
//! Rules, conditions and operands are all in terms of the op table, and so are the proofs: for every type of its class, an
//! SMT solver shows that no operands tell a rule's two sides apart. A rule that it cannot prove is not in the table. The tests
//! also check that what [`simplifying`] rules build costs less than what they match, and that [`canonical`] ones do not make
//! it cost more, so that the two cannot undo each other's work forever.

use std::sync::{Arc, LazyLock, OnceLock};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::cost;
use crate::ir::ops::{Form, OpInfo, Signature, Slot};
use crate::ir::{Pure, Type, TypeSet};

/// One expression that may stand for another.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// What `T` stands for.
    pub class: TypeSet,
    /// What is replaced.
    pub from: &'static str,
    /// What it is replaced by.
    pub to: &'static str,
    /// What must hold of the literals.
    pub when: Option<&'static str>,
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} → {}", self.from, self.to)?;
        self.when.map_or(Ok(()), |when| write!(f, " when {when}"))
    }
}

/// Mistake in the text of a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mistake {
    /// A line that is not of the form of a rule.
    #[error("not a rule: {0}")]
    Line(&'static str),
    /// A name in the replacement or the condition that is not in the pattern.
    #[error("`{0}` stands only in the replacement")]
    Unbound(String),
    /// Types that have to be equal and are not.
    #[error("{0} is not {1}")]
    Unequal(Type, Type),
    /// A word after the end of an expression.
    #[error("`{word}` after the end of {text}")]
    Trailing {
        /// The word.
        word: String,
        /// The expression.
        text: String,
    },
    /// The end of the text where something else is expected.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// An unknown type.
    #[error("`{0}` is not a type")]
    UnknownType(String),
    /// An unknown operation.
    #[error("`{0}` is not an operation")]
    UnknownOp(String),
    /// An operation with a payload, such as a memory access.
    #[error("`{0}` cannot stand in a rule")]
    Payload(String),
    /// Another number of operands than the operation has.
    #[error("`{op}` with {operands} operands")]
    Operands {
        /// The operation.
        op: String,
        /// Number of operands.
        operands: usize,
    },
    /// A result that the operation does not have for these operands.
    #[error("`{op}` of {class} does not give {ty}")]
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

/// The names of classes, beside those of types.
const CLASSES: [(&str, TypeSet); 10] = [
    ("all", TypeSet::ALL),
    ("numbers", TypeSet::NUMBERS),
    ("integers", TypeSet::INTEGERS),
    // Of some rules, the proof for 64 bits takes too long.
    ("integers_32", TypeSet::INTEGERS_32),
    ("floats", TypeSet::FLOATS),
    ("small_floats", TypeSet::of(&[Type::F16, Type::F32])),
    ("logic", TypeSet::LOGIC),
    ("signed", TypeSet::SIGNED),
    ("signed_integers", TypeSet::of(&[Type::I32, Type::I64])),
    ("unsigned", TypeSet::of(&[Type::U32, Type::U64])),
];

/// Reads rules, a line each: `class: from → to when condition`, the last of which most have not.
///
/// # Errors
/// A line is not of this form. What is in an expression is not looked at before the rule is used.
pub fn read(text: &'static str) -> Result<Vec<Rule>, Mistake> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
    let rule = |line: &'static str| {
        let (class, rule) = line.split_once(": ")?;
        let named = CLASSES.iter().find(|(name, _)| *name == class).map(|(_, types)| *types);
        let class = named.or_else(|| Type::from_name(class).map(|ty| TypeSet::of(&[ty])))?;
        let (from, to) = rule.split_once(" → ")?;
        let (to, when) = to.split_once(" when ").map_or((to, None), |(to, when)| (to, Some(when)));
        Some(Rule { class, from, to, when })
    };
    lines.map(|line| rule(line).ok_or(Mistake::Line(line))).collect()
}

/// Rules that bring equal things into equal form.
pub fn canonical() -> &'static [Rule] {
    static RULES: LazyLock<Vec<Rule>> =
        LazyLock::new(|| read(include_str!("rules/canonical.txt")).expect("the rules are tested"));
    &RULES
}

/// Rules that make programs cheaper.
pub fn simplifying() -> &'static [Rule] {
    static RULES: LazyLock<Vec<Rule>> =
        LazyLock::new(|| read(include_str!("rules/simplifying.txt")).expect("the rules are tested"));
    &RULES
}

/// Operations that may be applied to their two operands in the other order, what they are then, and for which types. Sums and
/// products of floats are not among them: the solver does not come to an end with those.
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

/// What an operation is when its two operands are swapped.
pub(super) fn swapped(op: Pure, class: Type) -> Option<Pure> {
    let row = SWAPPED.iter().find(|(known, _, types)| *known == op && types.contains(class));
    row.map(|&(_, swapped, _)| swapped)
}

/// A rule for one type.
#[derive(Clone, Debug)]
pub struct Instance {
    /// What is replaced.
    pub from: Term,
    /// What it is replaced by.
    pub to: Term,
    /// What must hold of the literals.
    pub when: Option<Term>,
    /// The type of each value and literal, by the number that stands for its name in the terms.
    pub names: Vec<Type>,
}

/// An expression with types.
#[derive(Clone, Debug)]
pub struct Term {
    /// The type of its value.
    pub ty: Type,
    /// What it is.
    pub node: Node,
}

/// What an expression is.
#[derive(Clone, Debug)]
pub enum Node {
    /// Any value.
    Value(usize),
    /// Any literal.
    Literal(usize),
    /// A number, by its bits.
    Number(u64),
    /// An operation, what `T` stands for in its signature, and what it is applied to.
    Apply(Pure, Type, Vec<Term>),
}

impl Term {
    /// Whether it is known when the literals are.
    pub fn is_known(&self) -> bool {
        match &self.node {
            Node::Value(_) => false,
            Node::Literal(_) | Node::Number(_) => true,
            Node::Apply(_, _, operands) => operands.iter().all(Term::is_known),
        }
    }

    /// The bits of a term that is known, from those of the literals.
    pub(super) fn evaluate(&self, literal: &impl Fn(usize) -> u64) -> u64 {
        match &self.node {
            Node::Value(_) => unreachable!("only known terms are evaluated"),
            Node::Literal(name) => literal(*name),
            Node::Number(bits) => *bits,
            Node::Apply(op, class, operands) => {
                let operands: SmallVec<[u64; 4]> = operands.iter().map(|operand| operand.evaluate(literal)).collect();
                let evaluate = op.info().evaluator(*class, self.ty).expect("rules apply operations to what they take");
                evaluate(&operands)
            }
        }
    }

    /// What it costs to compute, if every operation in it is computed.
    fn cost(&self) -> u64 {
        match &self.node {
            Node::Apply(op, _, operands) if !self.is_known() => {
                cost::of_pure(*op) + operands.iter().map(Term::cost).sum::<u64>()
            }
            Node::Value(_) | Node::Literal(_) | Node::Number(_) | Node::Apply(..) => 0,
        }
    }

    /// The term with the operands of commutative operations in every order that `canonicalize` leaves.
    fn orders(&self) -> Vec<Term> {
        let Node::Apply(op, class, operands) = &self.node else { return vec![self.clone()] };
        let mut lists = vec![Vec::new()];
        for operand in operands {
            let orders = operand.orders();
            let extended = |list: &Vec<Term>| -> Vec<Vec<Term>> {
                orders.iter().map(|order| list.iter().chain([order]).cloned().collect()).collect()
            };
            lists = lists.iter().flat_map(extended).collect();
        }
        if swapped(*op, *class) == Some(*op) && !operands[1].is_known() {
            let swapped: Vec<Vec<Term>> = lists.iter().map(|list| list.iter().rev().cloned().collect()).collect();
            lists.extend(swapped);
        }
        lists.into_iter().map(|list| Term { ty: self.ty, node: Node::Apply(*op, *class, list) }).collect()
    }

    /// What the first two operands of an operation must be.
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

    /// Whether two terms match the same: they are equal but for their names.
    fn alike(&self, other: &Term, names: &mut Vec<(usize, usize)>) -> bool {
        match (&self.node, &other.node) {
            (Node::Value(a), Node::Value(b)) | (Node::Literal(a), Node::Literal(b)) => {
                let known = names.iter().find(|(of_a, of_b)| of_a == a || of_b == b);
                let same = known.is_none_or(|pair| pair == &(*a, *b));
                names.push((*a, *b));
                same
            }
            (Node::Number(a), Node::Number(b)) => a == b,
            (Node::Apply(a, _, of_a), Node::Apply(b, _, of_b)) => {
                let mut operands = || of_a.iter().zip(of_b).all(|(a, b)| a.alike(b, names));
                a == b && self.ty == other.ty && of_a.len() == of_b.len() && operands()
            }
            (Node::Value(_) | Node::Literal(_) | Node::Number(_) | Node::Apply(..), _) => false,
        }
    }
}

/// An instance that is looked for.
pub(super) struct Pattern {
    /// One of the orders of what is replaced.
    pub(super) from: Term,
    pub(super) instance: Arc<Instance>,
    /// Whether it pays only if what is matched is not needed otherwise.
    pub(super) replaces_all: bool,
}

/// What an operand is, at a glance: most patterns are ruled out by it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Of a pattern, anything; of a value, something that no rule looks into.
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

/// Rules by the operation that they begin with. They are read when a program first uses that operation: few programs use
/// many, and reading all would take longer than optimizing most of them.
pub(super) struct Index {
    by_op: FxHashMap<Pure, (Vec<&'static Rule>, OnceLock<ByClass>)>,
}

/// Patterns by what `T` stands for in the signature of the operation that they begin with.
type ByClass = FxHashMap<Type, Vec<Group>>;

impl Index {
    /// The rules that bring equal things into equal form.
    pub(super) fn canonical() -> &'static Index {
        static INDEX: OnceLock<Index> = OnceLock::new();
        INDEX.get_or_init(|| Index::of(canonical()))
    }

    /// The rules that make programs cheaper.
    pub(super) fn simplifying() -> &'static Index {
        static INDEX: OnceLock<Index> = OnceLock::new();
        INDEX.get_or_init(|| Index::of(simplifying()))
    }

    fn of(rules: &'static [Rule]) -> Index {
        let mut by_op: FxHashMap<_, (Vec<&Rule>, OnceLock<ByClass>)> = FxHashMap::default();
        for rule in rules {
            let op = rule.root().and_then(OpInfo::pure).expect("the rules are tested");
            by_op.entry(op).or_default().0.push(rule);
        }
        Index { by_op }
    }

    /// Reads the rules that begin with an operation.
    fn read(rules: &[&'static Rule], op: Pure) -> ByClass {
        let mut by_class = ByClass::default();
        for (rule, ty) in rules.iter().flat_map(|rule| rule.class.iter().map(move |ty| (rule, ty))) {
            let instance = Arc::new(rule.at(ty).expect("the rules are tested"));
            let Node::Apply(_, class, _) = instance.from.node else { continue };
            let groups = by_class.entry(class).or_default();
            let replaces_all = instance.to.cost() > cost::of_pure(op);
            let mut orders: Vec<Term> = Vec::new();
            for order in instance.from.orders() {
                if !orders.iter().any(|known| known.alike(&order, &mut Vec::new())) {
                    orders.push(order);
                }
            }
            for from in orders {
                let shapes = from.operand_shapes();
                let pattern = Pattern { from, instance: instance.clone(), replaces_all };
                match groups.iter_mut().find(|group| group.shapes == shapes) {
                    Some(group) => group.patterns.push(pattern),
                    None => groups.push(Group { shapes, patterns: vec![pattern] }),
                }
            }
        }
        by_class
    }

    /// The patterns that an operation may match whose first two operands have these shapes.
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
    /// The operation that it begins with.
    fn root(&self) -> Option<&'static OpInfo> {
        let name = self.from.strip_prefix('(')?.split([' ', ':']).next()?;
        OpInfo::named(name)
    }

    /// The rule for one type of its class.
    ///
    /// # Errors
    /// It does not follow the language.
    pub fn at(&self, class: Type) -> Result<Instance, Mistake> {
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
            return Err(Mistake::Unbound(reader.names[known].0.clone()));
        }
        let names = reader.names.iter().map(|&(_, ty)| reader.resolve(ty)).collect();
        let when = when.map(|when| reader.typed(when)).transpose()?;
        Ok(Instance { from: reader.typed(from)?, to: reader.typed(to)?, when, names })
    }
}

/// An expression whose types are still variables.
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

/// What is known about a type variable.
#[derive(Clone, Copy)]
enum Known {
    Is(Type),
    Same(usize),
    Nothing,
}

type Words<'t> = std::iter::Peekable<std::str::SplitWhitespace<'t>>;

/// Reads expressions and finds their types.
struct Reader {
    class: Type,
    /// Names with their type variables.
    names: Vec<(String, usize)>,
    types: Vec<Known>,
}

impl Reader {
    fn fresh(&mut self, known: Known) -> usize {
        self.types.push(known);
        self.types.len() - 1
    }

    fn fixed(&mut self, ty: Type) -> usize {
        self.fresh(Known::Is(ty))
    }

    fn name(&mut self, name: &str, ty: Option<Slot>) -> usize {
        if let Some(position) = self.names.iter().position(|(known, _)| known == name) {
            return position;
        }
        let known = match ty {
            None => Known::Nothing,
            Some(Slot::T) => Known::Is(self.class),
            Some(Slot::Is(ty)) => Known::Is(ty),
        };
        let ty = self.fresh(known);
        self.names.push((name.into(), ty));
        self.names.len() - 1
    }

    fn root(&self, mut ty: usize) -> usize {
        while let Known::Same(other) = self.types[ty] {
            ty = other;
        }
        ty
    }

    fn unify(&mut self, a: usize, b: usize) -> Result<(), Mistake> {
        let (a, b) = (self.root(a), self.root(b));
        match (self.types[a], self.types[b]) {
            _ if a == b => Ok(()),
            (Known::Is(one), Known::Is(other)) if one != other => Err(Mistake::Unequal(one, other)),
            (Known::Nothing, _) => {
                self.types[a] = Known::Same(b);
                Ok(())
            }
            _ => {
                self.types[b] = Known::Same(a);
                Ok(())
            }
        }
    }

    fn resolve(&self, ty: usize) -> Type {
        match self.types[self.root(ty)] {
            Known::Is(ty) => ty,
            Known::Nothing | Known::Same(_) => self.class,
        }
    }

    fn read(&mut self, text: &str) -> Result<Untyped, Mistake> {
        let spaced = text.replace('(', " ( ").replace(')', " ) ");
        let mut words = spaced.split_whitespace().peekable();
        let term = self.term(&mut words)?;
        words.next().map_or(Ok(term), |word| Err(Mistake::Trailing { word: word.into(), text: text.into() }))
    }

    fn term(&mut self, words: &mut Words<'_>) -> Result<Untyped, Mistake> {
        let word = words.next().ok_or(Mistake::Missing("an expression"))?;
        if word == "(" {
            let name = words.next().ok_or(Mistake::Missing("an operation"))?;
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
            b'0'..=b'9' | b'-' => Ok(Untyped { ty: self.fresh(Known::Nothing), node: Unresolved::Number(name.into()) }),
            first => {
                let position = self.name(name, annotation.map(Slot::Is));
                let ty = self.names[position].1;
                let is_literal = first.is_ascii_uppercase();
                let node = if is_literal { Unresolved::Literal(position) } else { Unresolved::Value(position) };
                Ok(Untyped { ty, node })
            }
        }
    }

    fn annotated(&self, name: &str) -> Result<Type, Mistake> {
        match name {
            "T" => Ok(self.class),
            name => Type::from_name(name).ok_or_else(|| Mistake::UnknownType(name.into())),
        }
    }

    fn apply(&mut self, name: &str, words: &mut Words<'_>) -> Result<Untyped, Mistake> {
        let (name, target) = name.split_once(':').unwrap_or((name, ""));
        let row = OpInfo::named(name).ok_or_else(|| Mistake::UnknownOp(name.into()))?;
        let op = row.pure().ok_or_else(|| Mistake::Payload(name.into()))?;
        let mut operands = Vec::new();
        while *words.peek().ok_or(Mistake::Missing("`)`"))? != ")" {
            operands.push(self.term(words)?);
        }
        words.next();
        let (class, ty) = match row.form {
            Form::Plain(Signature { operands: slots, results: &[result], .. }) if slots.len() == operands.len() => {
                let class = self.fresh(Known::Nothing);
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
            _ => return Err(Mistake::Operands { op: name.into(), operands: operands.len() }),
        };
        Ok(Untyped { ty, node: Unresolved::Apply(op, class, operands) })
    }

    fn slot(&mut self, slot: Slot, class: usize) -> usize {
        match slot {
            Slot::T => class,
            Slot::Is(ty) => self.fixed(ty),
        }
    }

    fn typed(&self, Untyped { ty, node }: Untyped) -> Result<Term, Mistake> {
        let ty = self.resolve(ty);
        let node = match node {
            Unresolved::Value(name) => Node::Value(name),
            Unresolved::Literal(name) => Node::Literal(name),
            Unresolved::Number(text) => Node::Number(self.number(&text, ty)?),
            Unresolved::Apply(op, class, operands) => {
                let class = self.resolve(class);
                if op.info().evaluator(class, ty).is_none() {
                    return Err(Mistake::Result { op: op.info().name, class, ty });
                }
                let operands = operands.into_iter().map(|operand| self.typed(operand)).collect::<Result<_, _>>()?;
                Node::Apply(op, class, operands)
            }
        };
        Ok(Term { ty, node })
    }

    /// The bits of a number.
    fn number(&self, text: &str, ty: Type) -> Result<u64, Mistake> {
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
                let number: f64 = text.parse().map_err(|_| Mistake::Float(text.into()))?;
                let convert = Pure::Cast.info().evaluator(Type::F64, ty).expect("floats can be cast to each other");
                Ok(convert(&[number.to_bits()]))
            }
            (_, Type::Bool | Type::I32 | Type::U32 | Type::I64 | Type::U64) => {
                let number: i64 = text.parse().map_err(|_| Mistake::Integer(text.into()))?;
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
            let at = move |ty| (rule, ty, rule.at(ty).unwrap_or_else(|mistake| panic!("{rule}: {mistake}")));
            rule.class.iter().map(at)
        })
    }

    #[test]
    fn rules_make_nothing_more_expensive() {
        let more = |(_, _, instance): &(&Rule, Type, Instance)| instance.to.cost() > instance.from.cost();
        let no_less = |(_, _, instance): &(&Rule, Type, Instance)| instance.to.cost() >= instance.from.cost();
        let wrong = instances(simplifying()).filter(no_less).chain(instances(canonical()).filter(more));
        let wrong: Vec<String> = wrong.map(|(rule, ty, _)| format!("{rule} for {ty}")).collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn mistakes_in_rules_are_found() {
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
