//! Generator of random programs: valid, terminating, and deterministic.
//!
//! [`generate`] turns a seed into a program with inputs. It uses every type, operation and kind of control flow, under
//! rules that make results comparable between devices:
//!
//! - Every loop has a bound that is checked on every path.
//! - No data races: some objects have elements for each invocation, which no other invocation accesses, except for
//!   reads between two barriers; workgroup tiles are written, then read after a barrier, and written again only after
//!   another.
//! - An atomic object either has elements for each invocation, or is used with one commutative operation only, whose
//!   results are unused. Atomic sums of floats are of small integers, which are exact in any order.
//! - Barriers are in workgroup-uniform control flow, subgroup operations in subgroup-uniform control flow. The
//!   generator tracks uniformity itself, more conservatively than the validator.
//! - A float that devices may round differently never affects control flow or integers: it is not compared, converted,
//!   reinterpreted or used as an index. Neither are the bits of a NaN.
//!
//! Operations are used with the frequency of their weight in the op table. [`Coverage`](crate::Coverage) measures that
//! every operation is used wherever it is allowed.

use vyre_driver::Capabilities;
use vyre_foundation::analysis::Scope;
use vyre_foundation::fill::Fill;
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::ops::{
    Barrier, Combined, Control, Exactness, Exchange, Form, Kind, Op, OpInfo, Payload, PerGroup, PerInvocation, Pure,
    ShuffleMode, Slot, Subgroup, TABLE, Terminator,
};
use vyre_foundation::ir::{
    Access, Axis, BlockId, Element, Literal, MemId, MemOperand, Memory, Module, Program, Space, Span, Type, TypeSet,
    ValueId, Values,
};
use vyre_foundation::launch::Grid;
use vyre_foundation::run_line::RunLine;
use vyre_foundation::text;

/// Features that generated programs may use.
#[derive(Clone, Debug)]
pub struct Features {
    /// Value types.
    pub types: TypeSet,
    /// Approximate number of instructions.
    pub size: u32,
    /// Subgroup operations.
    pub subgroups: bool,
    /// 64-bit atomics.
    pub atomics_64: bool,
    /// Prints, traps and early returns.
    pub effects: bool,
}

impl Default for Features {
    fn default() -> Self {
        Features { types: TypeSet::ALL, size: 60, subgroups: true, atomics_64: true, effects: true }
    }
}

impl Features {
    /// Features that a device supports.
    pub fn of(capabilities: &Capabilities) -> Self {
        Features {
            types: capabilities.types,
            subgroups: capabilities.subgroup_size.is_some(),
            atomics_64: capabilities.atomics_64,
            ..Features::default()
        }
    }
}

/// A program with its grid and inputs.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The program, which is valid.
    pub program: Program,
    /// Workgroups in each dimension.
    pub groups: [u32; 3],
    /// Bindings of its objects.
    pub inputs: Inputs,
}

impl Generated {
    /// Text of the program, with a `//@ run` line.
    pub fn source(&self) -> String {
        let (grid, bindings) = (Some(Grid::Groups(self.groups)), self.inputs.notations(&self.program));
        let source = text::print(&Module::from(self.program.clone()));
        format!("{source}{}\n", RunLine { grid, bindings, ..RunLine::default() })
    }
}

/// Generates the program of a seed.
pub fn generate(seed: u64, features: &Features) -> Generated {
    let mut random = Random(seed);
    let sizes = [[1, 1, 1], [7, 1, 1], [16, 1, 1], [32, 1, 1], [4, 4, 1], [3, 5, 2], [64, 1, 1], [16, 4, 1], [8, 2, 2]];
    let workgroup_size = *random.choose(&sizes);
    let groups = *random.choose(&[[1, 1, 1], [2, 1, 1], [3, 2, 1], [1, 2, 2]]);
    let invocations = groups.iter().chain(&workgroup_size).product::<u32>();
    let mut generator = Generator {
        random,
        features,
        program: Program::new(format!("seed_{seed}"), workgroup_size),
        values: Vec::new(),
        budget: i64::from(features.size),
        twists: 0,
        objects: Objects::default(),
        without_nan: Vec::new(),
        positions: None,
        open_tile: None,
        free_counters: 0..0,
    };
    generator.constants();
    let inputs = generator.memory(invocations);
    generator.body();
    Generated { program: generator.program, groups, inputs }
}

/// Pseudo-random number generator: SplitMix64.
pub struct Random(pub u64);

impl Random {
    /// Uniform 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `bound`, or 0 if that is 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        (self.bits() % u64::from(bound.max(1))) as u32
    }

    /// An index below `length`.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u32) as usize
    }

    /// True with probability 1/`one_in`.
    pub fn chance(&mut self, one_in: u32) -> bool {
        self.below(one_in) == 0
    }

    /// A random element of a list.
    pub fn choose<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.index(list.len())]
    }
}

/// Memory objects of the program, by use.
#[derive(Default)]
struct Objects {
    /// Read-only storage.
    read: Vec<MemId>,
    /// Storage with elements for each invocation.
    own: Vec<Own>,
    uniforms: Vec<MemId>,
    private: Vec<MemId>,
    /// Private elements that count the trips of loops without parameters.
    counters: Option<MemId>,
    /// Workgroup arrays for exchange between invocations.
    tiles: Vec<Own>,
    /// Workgroup arrays with elements for each invocation.
    own_workgroup: Vec<Own>,
    /// Shared atomic objects, each with its one operation and element.
    shared: Vec<(MemOperand, &'static OpInfo)>,
    /// Atomic objects with elements for each invocation.
    own_atomic: Vec<Own>,
    /// Objects accessed with several element types. They hold the same bits on every device.
    mixed: Vec<MemId>,
}

/// An object with elements for each invocation.
#[derive(Clone, Copy)]
struct Own {
    memory: MemId,
    /// Number of elements per invocation.
    stride: u32,
}

/// Degree to which devices agree on a value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Agreement {
    /// A float that devices may round differently.
    Rounded,
    /// The same value, up to the bits of a NaN.
    Value,
    /// The same bits.
    Bits,
}

/// A value visible at this point.
#[derive(Clone, Copy)]
struct Available {
    id: ValueId,
    ty: Type,
    /// Largest scope in which it is uniform; never the dispatch.
    scope: Scope,
    agreement: Agreement,
}

/// Ids of the invocation.
#[derive(Clone, Copy)]
struct Positions {
    global: Available,
    local: Available,
    group: Available,
}

/// Context of a block.
#[derive(Clone, Copy)]
struct Context<'a> {
    /// Largest scope whose invocations execute the block together; never the dispatch.
    scope: Scope,
    depth: u32,
    enclosing: Option<Enclosing<'a>>,
}

/// Innermost enclosing loop.
#[derive(Clone, Copy)]
struct Enclosing<'a> {
    carried: &'a [Type],
    results: &'a [Type],
    /// Next value of the counter, if it is carried: needed to bound the loop.
    next: Option<ValueId>,
    /// The loop may be left or continued from here.
    may_leave: bool,
}

struct Generator<'f> {
    random: Random,
    features: &'f Features,
    program: Program,
    values: Vec<Available>,
    budget: i64,
    /// Number of literals still to be changed in a copy of the previous arm.
    twists: u32,
    objects: Objects,
    /// Read-only objects without NaNs.
    without_nan: Vec<MemId>,
    /// Set at the start of the body.
    positions: Option<Positions>,
    /// Workgroup array that all invocations have written and may read.
    open_tile: Option<Own>,
    /// Elements of [`Objects::counters`] not used by a loop.
    free_counters: std::ops::Range<u32>,
}

/// Commutative atomic operations.
const COMMUTATIVE: [&str; 7] =
    ["atomic_add", "atomic_sub", "atomic_min", "atomic_max", "atomic_and", "atomic_or", "atomic_xor"];

/// Returns true if a read-modify-write is defined for elements of a type.
fn changes(row: &OpInfo, element: Element) -> bool {
    match row.form {
        Form::Atomic(class) => class.contains(element.value_type()),
        Form::CompareExchange => TypeSet::INTEGERS.contains(element.value_type()),
        _ => false,
    }
}

impl Generator<'_> {
    // Memory and its contents.

    fn constants(&mut self) {
        for number in 0..self.random.below(3) {
            let ty = self.ty();
            let default = Literal { ty, bits: self.literal_bits(ty) };
            let agreement = if is_nan(default) { Agreement::Value } else { Agreement::Bits };
            let id = self.program.add_constant(format!("C{number}"), default, Span::NONE);
            self.values.push(Available { id, ty, scope: Scope::Workgroup, agreement });
        }
    }

    fn memory(&mut self, invocations: u32) -> Inputs {
        let mut inputs = Inputs::default();
        let per_group = self.program.workgroup_size().iter().product();
        for number in 0..1 + self.random.below(3) {
            let (name, element, length) = (format!("in{number}"), self.element(), 1 + self.random.below(40));
            let fixed = self.random.chance(2).then_some(length);
            let access = *self.random.choose(&[Access::Read, Access::Read, Access::Constant]);
            let id = self.object(&name, Space::Storage(access), element, fixed, false);
            self.may_mix(id);
            self.objects.read.push(id);
            let contents = self.contents(id, length);
            inputs.bytes(&self.program, &name, contents).expect("declared above");
        }
        for number in 0..1 + self.random.below(3) {
            let (name, element) = (format!("u{number}"), self.element());
            let id = self.object(&name, Space::Uniform, element, Some(1), false);
            self.objects.uniforms.push(id);
            let contents = self.contents(id, 1);
            if self.random.chance(3) {
                let ty = element.value_type();
                self.program.memory_mut(id).default = Some(Literal { ty, bits: element.read(&contents) });
                if self.random.chance(2) {
                    continue;
                }
            }
            inputs.bytes(&self.program, &name, contents).expect("declared above");
        }
        for number in 0..1 + self.random.below(3) {
            let (name, element) = (format!("out{number}"), self.element());
            let access = *self.random.choose(&[Access::Write, Access::ReadWrite, Access::ReadWrite]);
            let own = self.own(&name, Space::Storage(access), element, invocations, false, &mut inputs);
            self.may_mix(own.memory);
            self.objects.own.push(own);
        }
        let mut atomics = vec![Element::I32, Element::U32, Element::F32];
        if self.features.atomics_64 {
            let wide = [Element::I64, Element::U64, Element::F64];
            atomics.extend(wide.iter().filter(|element| self.features.types.contains(element.value_type())));
        }
        let spaces = [("shared", Space::Storage(Access::ReadWrite)), ("votes", Space::Workgroup)];
        for (name, space) in spaces {
            if self.random.chance(2) {
                continue;
            }
            let (element, length) = (*self.random.choose(&atomics), 1 + self.random.below(8));
            // Some are declared with another element type.
            let declared = if self.random.chance(3) { self.element() } else { element };
            let atomic = declared == element;
            let length = (length * element.size() as u32).div_ceil(declared.size() as u32);
            let fixed = (space == Space::Workgroup || self.random.chance(2)).then_some(length);
            let id = self.object(name, space, declared, fixed, atomic);
            let rows = COMMUTATIVE.map(|name| OpInfo::named(name).expect("an operation of the table"));
            let rows: Vec<&OpInfo> = rows.into_iter().filter(|row| changes(row, element)).collect();
            let row = *self.random.choose(&rows);
            self.objects.shared.push((MemOperand::atomic(id, element), row));
            if space != Space::Workgroup {
                let bytes = length as usize * declared.size();
                let contents = match element.value_type().is_float() {
                    true => self.small_integers(element, bytes),
                    false => self.contents(id, length),
                };
                inputs.bytes(&self.program, name, contents).expect("declared above");
            }
        }
        let spaces =
            [("counts", Space::Storage(Access::ReadWrite), invocations), ("local_counts", Space::Workgroup, per_group)];
        for (name, space, count) in spaces {
            if self.random.chance(2) {
                let element = *self.random.choose(&atomics);
                let own = self.own(name, space, element, count, true, &mut inputs);
                if matches!(element, Element::I32 | Element::U32) {
                    self.may_mix(own.memory);
                }
                self.objects.own_atomic.push(own);
            }
        }
        for number in 0..1 + self.random.below(2) {
            let element = self.element();
            let tile = self.own(&format!("tile{number}"), Space::Workgroup, element, per_group, false, &mut inputs);
            self.may_mix(tile.memory);
            self.objects.tiles.push(tile);
        }
        let element = self.element();
        let own = self.own("slots", Space::Workgroup, element, per_group, false, &mut inputs);
        self.may_mix(own.memory);
        self.objects.own_workgroup.push(own);
        for number in 0..1 + self.random.below(2) {
            let (element, length) = (self.element(), 1 + self.random.below(9));
            let id = self.object(&format!("scratch{number}"), Space::Private, element, Some(length), false);
            self.may_mix(id);
            self.objects.private.push(id);
        }
        if self.random.chance(3) {
            self.free_counters = 0..4;
            let id = self.object("trips", Space::Private, Element::U32, Some(self.free_counters.end), false);
            self.objects.counters = Some(id);
        }
        inputs
    }

    fn element(&mut self) -> Element {
        let has = |element: &Element| self.features.types.contains(element.value_type());
        let elements: Vec<Element> = Element::ALL.into_iter().filter(has).collect();
        *self.random.choose(&elements)
    }

    /// Adds an object with elements for each of `count` invocations. Some are too short, which tests out-of-bounds
    /// accesses.
    fn own(
        &mut self,
        name: &str,
        space: Space,
        element: Element,
        count: u32,
        atomic: bool,
        inputs: &mut Inputs,
    ) -> Own {
        let stride = if atomic { 1 } else { *self.random.choose(&[1, 3, 4, 4]) };
        let missing = if self.random.chance(8) { 1 + self.random.below(3) } else { 0 };
        let length = (count * stride).saturating_sub(missing).max(1);
        let fixed = (space == Space::Workgroup || self.random.chance(2)).then_some(length);
        let memory = self.object(name, space, element, fixed, atomic);
        if space != Space::Workgroup {
            // Contents with a short notation, because there can be many.
            let count = u64::from(length);
            let fill = if self.random.chance(2) { Fill::Zeros(count) } else { Fill::Iota(count) };
            let bytes = fill.bytes(element).expect("a few elements");
            inputs.bytes(&self.program, name, bytes).expect("declared above");
        }
        Own { memory, stride }
    }

    fn object(&mut self, name: &str, space: Space, element: Element, length: Option<u32>, atomic: bool) -> MemId {
        let name = name.into();
        self.program.add_memory(Memory { name, space, element, length, atomic, default: None, span: Span::NONE })
    }

    fn may_mix(&mut self, memory: MemId) {
        if self.random.chance(2) {
            self.objects.mixed.push(memory);
        }
    }

    /// Memory operand of an access to an object, `region` bytes of which belong to the invocation (or all).
    fn operand(&mut self, memory: MemId, region: Option<u32>) -> MemOperand {
        let declared = self.program.operand(memory);
        if !self.objects.mixed.contains(&memory) || self.random.chance(4) {
            return declared;
        }
        let fits = |element: &Element| region.is_none_or(|bytes| bytes.is_multiple_of(element.size() as u32));
        let element = self.element();
        let element = if fits(&element) { element } else { declared.element };
        // Words of atomic objects are accessed plainly, too.
        let words = [Element::I32, Element::U32, Element::F32];
        let atomic = declared.atomic && words.contains(&element) && self.random.chance(2);
        MemOperand { memory, element, atomic }
    }

    /// Required agreement of values stored to an object.
    fn stores(&self, memory: MemId, otherwise: Agreement) -> Agreement {
        if self.objects.mixed.contains(&memory) { Agreement::Bits } else { otherwise }
    }

    /// Agreement of elements loaded from an object.
    fn loads(&self, at: MemOperand, otherwise: Agreement) -> Agreement {
        match self.objects.mixed.contains(&at.memory) {
            true if at.value_type().is_float() => Agreement::Value,
            true => Agreement::Bits,
            false => otherwise,
        }
    }

    /// Contents of a read-only or atomic object.
    fn contents(&mut self, memory: MemId, length: u32) -> Vec<u8> {
        let element = self.program.memory(memory).element;
        let ty = element.value_type();
        let mut bytes = vec![0; length as usize * element.size()];
        let mut nan = false;
        for bytes in bytes.chunks_exact_mut(element.size()) {
            let bits = self.literal_bits(ty);
            nan |= is_nan(Literal { ty, bits });
            element.write(bits, bytes);
        }
        if !nan {
            self.without_nan.push(memory);
        }
        bytes
    }

    /// Contents whose elements are small integers.
    fn small_integers(&mut self, element: Element, bytes: usize) -> Vec<u8> {
        let cast = Pure::Cast.info().evaluator(Type::U32, element.value_type()).expect("every type can be cast to");
        let mut contents = vec![0; bytes];
        for bytes in contents.chunks_exact_mut(element.size()) {
            element.write(cast(&[u64::from(self.random.below(8))]), bytes);
        }
        contents
    }

    /// Small numbers, special values, and random bits.
    fn literal_bits(&mut self, ty: Type) -> u64 {
        let cast = Pure::Cast.info().evaluator(Type::I32, ty).expect("every type can be cast to");
        match self.random.below(4) {
            0 | 1 => cast(&[u64::from((self.random.below(41) as i32 - 20) as u32)]),
            2 if ty.is_float() => {
                // Quarters, which are exact in every float type.
                let quarter = f64::from(self.random.below(2000) as i32 - 1000) / 4.0;
                let convert = Pure::Cast.info().evaluator(Type::F64, ty).expect("every type can be cast to");
                convert(&[quarter.to_bits()])
            }
            2 => {
                let top = 1u64 << (ty.bits() - 1);
                *self.random.choose(&[0, 1, top, top - 1, u64::MAX >> (64 - ty.bits())])
            }
            _ => self.random.bits() >> (64 - ty.bits()),
        }
    }

    // Values.

    fn literal(&mut self, ty: Type, agreement: Agreement) -> Available {
        let twist = self.twists.min(1);
        self.twists -= twist;
        let mut literal = Literal { ty, bits: self.literal_bits(ty) ^ u64::from(twist) };
        if is_nan(literal) && agreement == Agreement::Bits {
            literal = Literal::zero(ty);
        }
        self.known(literal)
    }

    fn known(&mut self, literal: impl Into<Literal>) -> Available {
        let literal = literal.into();
        let agreement = if is_nan(literal) { Agreement::Value } else { Agreement::Bits };
        Available { id: self.program.literal(literal), ty: literal.ty, scope: Scope::Workgroup, agreement }
    }

    /// A value of a type: a visible one, or a literal.
    fn value(&mut self, ty: Type, agreement: Agreement) -> Available {
        let fits = |value: &&Available| value.ty == ty && value.agreement >= agreement;
        let count = self.values.iter().filter(fits).count() as u32;
        if count > 0 && !self.random.chance(5) {
            // Prefers recent values: long dependency chains find more bugs than wide expressions.
            let skip = self.random.below(count).min(self.random.below(count));
            return *self.values.iter().rev().filter(fits).nth(skip as usize).expect("counted above");
        }
        self.literal(ty, agreement)
    }

    /// A value that is uniform in a scope.
    fn uniform_value(&mut self, ty: Type, scope: Scope) -> Available {
        let fits = |value: &&Available| value.ty == ty && value.agreement >= Agreement::Value && value.scope <= scope;
        let count = self.values.iter().filter(fits).count() as u32;
        match count {
            0 => self.literal(ty, Agreement::Value),
            _ => {
                let skip = self.random.below(count) as usize;
                *self.values.iter().filter(fits).nth(skip).expect("counted above")
            }
        }
    }

    fn ty(&mut self) -> Type {
        let types: Vec<Type> = self.features.types.iter().collect();
        // Half of the time one of the most common types.
        let usual = [Type::U32, Type::I32, Type::F32, Type::Bool];
        if self.random.chance(2) { *self.random.choose(&usual) } else { *self.random.choose(&types) }
    }

    fn push(&mut self, block: BlockId, op: impl Into<Op>, operands: &[Available], named: &[Type]) -> Vec<ValueId> {
        let ids: Values = operands.iter().map(|operand| operand.id).collect();
        let op = op.into();
        let types = self.program.result_types(&op, &ids, named).expect("operands are chosen to fit");
        let inst = self.program.push(block, op, ids, &types, [], Span::NONE);
        self.budget -= 1;
        self.program.inst(inst).results.to_vec()
    }

    /// Makes a value visible. Integers and bools have the same bits everywhere.
    fn add(&mut self, id: ValueId, scope: Scope, agreement: Agreement) {
        let ty = self.program.ty(id);
        let agreement = if ty.is_float() { agreement } else { Agreement::Bits };
        self.values.push(Available { id, ty, scope, agreement });
    }

    /// Makes the results of an operation visible; returns the first.
    fn give(&mut self, results: &[ValueId], scope: Scope, agreement: Agreement) -> Available {
        for &result in results {
            self.add(result, scope, agreement);
        }
        self.values[self.values.len() - results.len()]
    }

    /// Appends an operation whose results have the same bits everywhere; returns the first.
    fn apply(&mut self, block: BlockId, op: impl Into<Op>, operands: &[Available], scope: Scope) -> Available {
        let results = self.push(block, op, operands, &[]);
        self.give(&results, scope, Agreement::Bits)
    }

    // Statements.

    fn body(&mut self) {
        let body = self.program.body();
        let [global, local] = [PerInvocation::GlobalIndex, PerInvocation::LocalIndex]
            .map(|op| self.apply(body, op, &[], Scope::Invocation));
        let group = self.apply(body, PerGroup::GroupIndex, &[], Scope::Workgroup);
        self.positions = Some(Positions { global, local, group });
        let context = Context { scope: Scope::Workgroup, depth: 0, enclosing: None };
        while self.budget > 0 {
            self.statement(body, context);
        }
        // Only stored values are compared.
        for position in 0..self.objects.own.len() {
            self.store_own(body, self.objects.own[position]);
        }
        self.program.push(body, Terminator::Return, [], &[], [], Span::NONE);
    }

    fn positions(&self) -> Positions {
        self.positions.expect("the body begins with them")
    }

    /// Statements of a nested block; restores the visible values afterwards.
    fn nested(&mut self, block: BlockId, context: Context<'_>) {
        // Outermost nested blocks are longest; otherwise most statements would be in the body.
        let count = 1 + self.random.below(if context.depth == 1 { 20 } else { 6 });
        for _ in 0..count {
            self.statement(block, context);
        }
    }

    fn statement(&mut self, block: BlockId, context: Context<'_>) {
        let weights = TABLE.iter().map(|row| row.weight).sum();
        let mut ticket = self.random.below(weights);
        let row = TABLE
            .iter()
            .find(|row| {
                let found = ticket < row.weight;
                ticket = ticket.saturating_sub(row.weight);
                found
            })
            .expect("the ticket is below the sum");
        match row.kind {
            Kind::Pure => self.pure(block, row),
            Kind::PerInvocation | Kind::PerGroup => self.id_or_size(block, row),
            Kind::Access => self.access(block, row),
            Kind::Atomic => self.atomic(block, row),
            Kind::Collective => {
                let op = row.op(Payload::None).expect("collective operations carry nothing");
                if Scope::required_by(&op).is_some_and(|required| context.scope <= required) {
                    self.collective(block, row, context);
                }
            }
            Kind::Effect => {
                if self.features.effects {
                    self.print(block);
                }
            }
            Kind::Control => self.control(block, row, context),
        }
    }

    fn pure(&mut self, block: BlockId, row: &OpInfo) {
        let op = row.op(Payload::None).expect("pure operations carry nothing");
        let mut named = Vec::new();
        let (types, result): (Vec<Type>, Type) = match row.form {
            Form::Convert { same_size } => {
                let types: Vec<Type> = self.features.types.iter().collect();
                let from = *self.random.choose(&types);
                let fits: Vec<Type> = types.into_iter().filter(|to| !same_size || to.bits() == from.bits()).collect();
                let to = *self.random.choose(&fits);
                named.push(to);
                (vec![from], to)
            }
            Form::Plain(signature) => {
                let class: Vec<Type> = signature.class.iter().filter(|ty| self.features.types.contains(*ty)).collect();
                if class.is_empty() {
                    return;
                }
                let class = *self.random.choose(&class);
                (signature.operands.iter().map(|slot| slot.of(class)).collect(), signature.results[0].of(class))
            }
            _ => return,
        };
        // Non-float results depend on the value of float operands, or on every bit.
        let needed = match (result, row.form) {
            (Type::F32 | Type::F64 | Type::F16, Form::Plain(_)) => Agreement::Rounded,
            (_, Form::Convert { same_size: false }) | (Type::Bool, _) => Agreement::Value,
            _ => Agreement::Bits,
        };
        let operands: Vec<Available> = types.iter().map(|&ty| self.value(ty, needed)).collect();
        let results = self.push(block, op, &operands, &named);
        let floats = operands.iter().filter(|operand| operand.ty.is_float());
        let agreement = match floats.map(|operand| operand.agreement).min() {
            _ if row.exactness != Exactness::Exact => Agreement::Rounded,
            Some(agreement) => agreement,
            // Reinterpreted bits can become a NaN; a converted integer cannot.
            None if matches!(row.form, Form::Convert { same_size: false }) => Agreement::Bits,
            None => Agreement::Value,
        };
        self.give(&results, scope_of(&operands), agreement);
    }

    /// Appends an operation that reads an id or a size.
    fn id_or_size(&mut self, block: BlockId, row: &OpInfo) {
        let all: Vec<MemId> = self.program.memories().keys().collect();
        let payload = match row.form {
            Form::PerAxis => Payload::Axis(*self.random.choose(&Axis::ALL)),
            Form::Length => Payload::Object(*self.random.choose(&all)),
            _ => Payload::None,
        };
        let op = row.op(payload).expect("the form decides the payload");
        if !self.features.subgroups && op.needs_subgroups() {
            return;
        }
        let scope = match op {
            Op::PerGroup(_) => Scope::Workgroup,
            Op::PerInvocation(PerInvocation::SubgroupId) => Scope::Subgroup,
            _ => Scope::Invocation,
        };
        self.apply(block, op, &[], scope);
    }

    /// An index for an access of `width` elements, mostly in bounds.
    fn index(&mut self, block: BlockId, at: MemOperand, width: u32) -> Available {
        let length = self.program.memory(at.memory).static_bytes().map(|bytes| bytes as u32 / at.element.size() as u32);
        let length = length.filter(|&length| length > 0);
        if let Some(last) = length.and_then(|length| length.checked_sub(width))
            && self.random.chance(6)
        {
            let index = self.random.below(last + 1);
            return self.known(index);
        }
        let mut value = self.value(Type::U32, Agreement::Bits);
        if self.program.known(value.id).is_some() {
            // The validator rejects an index known to be out of bounds.
            value = self.positions().global;
        }
        if self.random.chance(4) {
            return value;
        }
        let length = self.known(length.unwrap_or(20));
        self.apply(block, Pure::Rem, &[value, length], value.scope)
    }

    /// Index of elements that only this invocation accesses.
    fn own_index(&mut self, block: BlockId, own: Own, at: MemOperand, width: u32) -> Available {
        let own = Own { stride: self.own_bytes(own) / at.element.size() as u32, ..own };
        let positions = self.positions();
        let workgroup = self.program.memory(own.memory).space == Space::Workgroup;
        let mut index = if workgroup { positions.local } else { positions.global };
        let offset = self.random.below(own.stride - width + 1);
        for (op, by) in [(Pure::Mul, own.stride), (Pure::Add, offset)] {
            if (op == Pure::Mul && by != 1) || (op == Pure::Add && by != 0) {
                let by = self.known(by);
                index = self.apply(block, op, &[index, by], Scope::Invocation);
            }
        }
        index
    }

    /// Bytes that only one invocation accesses.
    fn own_bytes(&self, own: Own) -> u32 {
        own.stride * self.program.memory(own.memory).element.size() as u32
    }

    /// Memory operand for elements that only this invocation accesses, and their maximum number.
    fn own_operand(&mut self, own: Own) -> (MemOperand, u32) {
        let bytes = self.own_bytes(own);
        let at = self.operand(own.memory, Some(bytes));
        (at, if at.atomic { 1 } else { (bytes / at.element.size() as u32).min(4) })
    }

    fn width(&mut self, most: u32) -> u32 {
        if self.random.chance(3) { most } else { 1 + self.random.below(most) }
    }

    fn access(&mut self, block: BlockId, row: &OpInfo) {
        if row.name == "store" { self.store(block) } else { self.load(block) }
    }

    fn store(&mut self, block: BlockId) {
        let own = match self.random.below(4) {
            0 => {
                let memory = *self.random.choose(&self.objects.private);
                let (at, width) = (self.operand(memory, None), self.width(4));
                let index = self.index(block, at, width);
                self.store_values(block, at, index, width, Agreement::Value);
                return;
            }
            1 => *self.random.choose(&self.objects.own_workgroup),
            2 if !self.objects.own_atomic.is_empty() => *self.random.choose(&self.objects.own_atomic),
            _ => *self.random.choose(&self.objects.own),
        };
        self.store_own(block, own);
    }

    fn store_own(&mut self, block: BlockId, own: Own) {
        let (at, most) = self.own_operand(own);
        let width = self.width(most);
        let index = self.own_index(block, own, at, width);
        self.store_values(block, at, index, width, Agreement::Rounded);
    }

    fn store_values(&mut self, block: BlockId, at: MemOperand, index: Available, width: u32, agreement: Agreement) {
        let (ty, agreement) = (at.value_type(), self.stores(at.memory, agreement));
        let mut operands = vec![index];
        operands.extend((0..width).map(|_| self.value(ty, agreement)));
        self.push(block, Op::Store(at), &operands, &[]);
    }

    fn load(&mut self, block: BlockId) {
        let readable = |own: &&Own| self.program.memory(own.memory).readable();
        let (own, agreement) = match self.random.below(6) {
            0 => {
                let memory = *self.random.choose(&self.objects.uniforms);
                let at = self.program.operand(memory);
                let results = self.push(block, Op::Load(at), &[], &[at.value_type()]);
                let agreement = self.agreement_of(memory);
                self.give(&results, Scope::Workgroup, agreement);
                return;
            }
            1 => {
                let memory = *self.random.choose(&self.objects.private);
                return self.load_any(block, memory, 4, Agreement::Value);
            }
            2 => {
                let memory = *self.random.choose(&self.objects.read);
                let agreement = self.agreement_of(memory);
                return self.load_any(block, memory, 4, agreement);
            }
            3 => match self.open_tile {
                Some(tile) => return self.load_any(block, tile.memory, 4, Agreement::Value),
                None => (self.random.choose(&self.objects.own_workgroup).to_owned(), Agreement::Rounded),
            },
            4 if !self.objects.own_atomic.is_empty() => {
                (self.random.choose(&self.objects.own_atomic).to_owned(), Agreement::Rounded)
            }
            _ => match self.objects.own.iter().filter(readable).collect::<Vec<_>>().as_slice() {
                [] => return,
                // Loaded values may have been rounded by the device.
                own => (**self.random.choose(own), Agreement::Rounded),
            },
        };
        let (at, most) = self.own_operand(own);
        let width = self.width(most);
        let index = self.own_index(block, own, at, width);
        let results = self.push(block, Op::Load(at), &[index], &vec![at.value_type(); width as usize]);
        let agreement = self.loads(at, agreement);
        self.give(&results, Scope::Invocation, agreement);
    }

    /// Emits a load at an arbitrary index, from an object that no invocation can write at the same time (no data race).
    fn load_any(&mut self, block: BlockId, memory: MemId, most: u32, agreement: Agreement) {
        let at = self.operand(memory, None);
        self.load_as(block, at, most, agreement);
    }

    fn load_as(&mut self, block: BlockId, at: MemOperand, most: u32, agreement: Agreement) {
        let Memory { space, .. } = *self.program.memory(at.memory);
        let width = self.width(most);
        let index = self.index(block, at, width);
        let results = self.push(block, Op::Load(at), &[index], &vec![at.value_type(); width as usize]);
        let agreement = self.loads(at, agreement);
        let scope = if matches!(space, Space::Storage(Access::Read | Access::Constant)) {
            index.scope
        } else {
            Scope::Invocation
        };
        self.give(&results, scope, agreement);
    }

    /// Agreement of values in a read-only object.
    fn agreement_of(&self, memory: MemId) -> Agreement {
        if self.without_nan.contains(&memory) { Agreement::Bits } else { Agreement::Value }
    }

    fn atomic(&mut self, block: BlockId, row: &'static OpInfo) {
        let shared: Vec<(MemOperand, &OpInfo)> = self.objects.shared.clone();
        let own = &self.objects.own_atomic;
        if !own.is_empty() && (shared.is_empty() || self.random.chance(2)) {
            let own = *self.random.choose(own);
            let mut at = self.program.operand(own.memory);
            let mixed = self.objects.mixed.contains(&own.memory);
            if mixed {
                let elements: &[Element] = match row.name {
                    "atomic_exchange" => &[Element::I32, Element::U32, Element::F32],
                    _ => &[Element::I32, Element::U32],
                };
                at.element = *self.random.choose(elements);
            }
            if !changes(row, at.element) {
                return;
            }
            let index = self.own_index(block, own, at, 1);
            let operand = self.value(at.value_type(), if mixed { Agreement::Bits } else { Agreement::Rounded });
            let results = self.read_modify_write(block, at, row, index, operand);
            let agreement = self.loads(at, Agreement::Rounded);
            self.give(&results, Scope::Invocation, agreement);
        } else if !shared.is_empty() {
            let (at, row) = *self.random.choose(&shared);
            let index = self.index(block, at, 1);
            let operand = match at.value_type() {
                ty if ty.is_float() && row.exactness == Exactness::Ordered => {
                    let (word, few) = (self.value(Type::U32, Agreement::Bits), self.known(7u32));
                    let small = self.apply(block, Pure::And, &[word, few], word.scope);
                    let exact = self.push(block, Pure::Cast, &[small], &[ty]);
                    self.give(&exact, word.scope, Agreement::Bits)
                }
                ty => self.value(ty, Agreement::Bits),
            };
            self.read_modify_write(block, at, row, index, operand);
        }
    }

    fn read_modify_write(
        &mut self,
        block: BlockId,
        at: MemOperand,
        row: &OpInfo,
        index: Available,
        operand: Available,
    ) -> Vec<ValueId> {
        let ty = at.value_type();
        let mut operands = vec![index, operand];
        if matches!(row.form, Form::CompareExchange) {
            operands.push(self.value(ty, Agreement::Bits));
        }
        let op = row.op(Payload::Memory(at)).expect("an atomic carries its memory operand");
        self.push(block, op, &operands, &[])
    }

    fn collective(&mut self, block: BlockId, row: &OpInfo, context: Context<'_>) {
        match row.name {
            "workgroup_barrier" => self.exchange(block, context),
            "storage_barrier" => self.exchange_in_storage(block),
            name => {
                let Form::Plain(signature) = row.form else { return };
                if !self.features.subgroups && name != "broadcast" {
                    return;
                }
                let class: Vec<Type> = signature.class.iter().filter(|ty| self.features.types.contains(*ty)).collect();
                let class = *self.random.choose(&class);
                let mut operands: Vec<Available> =
                    signature.operands.iter().map(|slot| self.value(slot.of(class), Agreement::Value)).collect();
                if signature.operands.get(1) == Some(&Slot::Is(Type::U32)) && !self.random.chance(3) {
                    // Mostly a lane that exists.
                    let few = self.known(16u32);
                    operands[1] = self.apply(block, Pure::Rem, &[operands[1], few], operands[1].scope);
                }
                let op = row.op(Payload::None).expect("collective operations carry nothing");
                let results = self.push(block, op.clone(), &operands, &[]);
                let agreement = if row.exactness == Exactness::Exact { Agreement::Value } else { Agreement::Rounded };
                let scope = match &op {
                    Op::Broadcast => Scope::Workgroup,
                    Op::Subgroup(op) => match op.exchange() {
                        Exchange::Ballot | Exchange::First | Exchange::Combine(_, Combined::All) => Scope::Subgroup,
                        Exchange::Shuffle(ShuffleMode::Lane) => operands[1].scope.max(Scope::Subgroup),
                        Exchange::Compact => {
                            self.add(results[0], Scope::Invocation, agreement);
                            self.add(results[1], Scope::Subgroup, agreement);
                            return;
                        }
                        Exchange::Shuffle(_) | Exchange::Combine(_, Combined::Inclusive | Combined::Exclusive) => {
                            Scope::Invocation
                        }
                    },
                    _ => Scope::Invocation,
                };
                self.give(&results, scope, agreement);
            }
        }
    }

    /// Reads workgroup memory between two barriers, after all invocations have written it.
    fn exchange(&mut self, block: BlockId, context: Context<'_>) {
        let votes = self.objects.shared.iter().map(|(at, _)| *at);
        let votes: Vec<MemOperand> =
            votes.filter(|at| self.program.memory(at.memory).space == Space::Workgroup).collect();
        if !votes.is_empty() && self.random.chance(3) {
            self.push(block, Barrier::Workgroup, &[], &[]);
            self.load_as(block, votes[0], 1, Agreement::Rounded);
            self.push(block, Barrier::Workgroup, &[], &[]);
            return;
        }
        if self.open_tile.is_some() {
            return;
        }
        let tile = *self.random.choose(&self.objects.tiles);
        let (at, most) = self.own_operand(tile);
        let width = self.width(most);
        let index = self.own_index(block, tile, at, width);
        self.store_values(block, at, index, width, Agreement::Value);
        self.push(block, Barrier::Workgroup, &[], &[]);
        self.load_any(block, tile.memory, 4, Agreement::Value);
        // The enclosing loop must not be left before the second barrier.
        let enclosing = context.enclosing.map(|enclosing| Enclosing { may_leave: false, ..enclosing });
        self.open_tile = Some(tile);
        for _ in 0..self.random.below(4) {
            self.statement(block, Context { enclosing, ..context });
        }
        self.open_tile = None;
        self.push(block, Barrier::Workgroup, &[], &[]);
    }

    /// Emits a load of an element that any invocation of the workgroup may have written, between two storage barriers: the
    /// first orders it after these writes (RAW), the second before later ones (WAR).
    fn exchange_in_storage(&mut self, block: BlockId) {
        let readable = |own: &&Own| self.program.memory(own.memory).readable();
        let own: Vec<Own> = self.objects.own.iter().filter(readable).copied().collect();
        self.push(block, Barrier::Storage, &[], &[]);
        if own.is_empty() {
            return;
        }
        let own = *self.random.choose(&own);
        let (at, _) = self.own_operand(own);
        let each = self.own_bytes(own) / at.element.size() as u32;
        let per_group = self.program.workgroup_size().iter().product::<u32>() * each;
        let (value, size) = (self.value(Type::U32, Agreement::Bits), self.known(per_group));
        let group = self.positions().group;
        let local = self.apply(block, Pure::Rem, &[value, size], value.scope);
        let group = self.apply(block, Pure::Mul, &[group, size], group.scope);
        let index = self.apply(block, Pure::Add, &[group, local], scope_of(&[group, local]));
        let results = self.push(block, Op::Load(at), &[index], &[at.value_type()]);
        let agreement = self.loads(at, Agreement::Rounded);
        self.give(&results, Scope::Invocation, agreement);
        self.push(block, Barrier::Storage, &[], &[]);
    }

    fn print(&mut self, block: BlockId) {
        let types: Vec<Type> = (0..self.random.below(4)).map(|_| self.ty()).collect();
        let text: String = (0..types.len()).map(|number| format!("\"{number}\" = {{}} ")).collect();
        let operands: Vec<Available> = types.into_iter().map(|ty| self.value(ty, Agreement::Value)).collect();
        self.push(block, Op::Print(text.into()), &operands, &[]);
    }

    // Control flow.

    fn control(&mut self, block: BlockId, row: &OpInfo, context: Context<'_>) {
        if context.depth >= 4 || self.budget <= 0 {
            return;
        }
        let inner = Context { depth: context.depth + 1, ..context };
        let results: Vec<Type> = (0..self.random.below(3)).map(|_| self.ty()).collect();
        let results: Vec<Type> = results.into_iter().filter(|ty| self.features.types.contains(*ty)).collect();
        match row.form {
            Form::If => {
                let condition = self.condition(block);
                let arms = [self.program.add_block(), self.program.add_block()];
                self.branches(block, Control::If, condition, &arms, &results, inner);
            }
            Form::Switch => {
                let ty = *self.random.choose(&[Type::U32, Type::I32]);
                let mut selector = if self.random.chance(3) {
                    self.uniform_value(ty, Scope::Workgroup)
                } else if self.features.subgroups && self.random.chance(4) {
                    let subgroup = self.apply(block, PerInvocation::SubgroupId, &[], Scope::Subgroup);
                    match ty {
                        Type::U32 => subgroup,
                        _ => self.uniform_value(ty, Scope::Subgroup),
                    }
                } else if ty == Type::U32 && self.random.chance(2) {
                    // Reaches several arms.
                    self.positions().global
                } else {
                    self.value(ty, Agreement::Bits)
                };
                if ty == Type::U32 && !self.random.chance(4) {
                    let few = self.known(6u32);
                    selector = self.apply(block, Pure::Rem, &[selector, few], selector.scope);
                }
                let mut cases: Vec<u32> = (0..self.random.below(4)).map(|_| self.random.below(6)).collect();
                cases.sort_unstable();
                cases.dedup();
                let arms: Vec<BlockId> = (0..=cases.len()).map(|_| self.program.add_block()).collect();
                self.branches(block, Control::Switch(cases.into()), selector, &arms, &results, inner);
            }
            Form::Region => {
                let arm = self.program.add_block();
                let always = self.known(true);
                self.branches(block, Control::Region("test.region".into()), always, &[arm], &results, inner);
            }
            Form::Loop => self.bounded_loop(block, &results, inner),
            Form::Exit | Form::Trap => self.early_exit(block, row, context),
            _ => {}
        }
    }

    /// Condition that is uniform in the workgroup, in the subgroup, or divergent. Divergent conditions are constructed,
    /// because few visible values differ between subgroups or invocations.
    fn condition(&mut self, block: BlockId) -> Available {
        if self.random.chance(3) {
            return self.uniform_value(Type::Bool, Scope::Workgroup);
        }
        let by_subgroup = self.features.subgroups && self.random.chance(3);
        let scope = if by_subgroup { Scope::Subgroup } else { Scope::Invocation };
        let divergent = |value: &&Available| value.ty == Type::Bool && value.scope == scope;
        let divergent: Vec<Available> = self.values.iter().filter(divergent).copied().collect();
        if !divergent.is_empty() && !self.random.chance(3) {
            return *self.random.choose(&divergent);
        }
        let (position, value) = if by_subgroup {
            let subgroup = self.apply(block, PerInvocation::SubgroupId, &[], Scope::Subgroup);
            (subgroup, self.uniform_value(Type::U32, Scope::Subgroup))
        } else {
            let Positions { global, local, .. } = self.positions();
            (*self.random.choose(&[global, local]), self.value(Type::U32, Agreement::Bits))
        };
        let mixed = *self.random.choose(&[Pure::Xor, Pure::Add, Pure::Rem, Pure::And]);
        let mixed = self.apply(block, mixed, &[position, value], scope);
        let most = if by_subgroup { 3 } else { 8 };
        let (compare, bound) = (*self.random.choose(&[Pure::Lt, Pure::Ne, Pure::Gt]), self.random.below(most));
        let bound = self.known(bound);
        self.apply(block, compare, &[mixed, bound], scope)
    }

    /// `if`, `switch` and `region`. A region has no operand.
    fn branches(
        &mut self,
        block: BlockId,
        op: Control,
        operand: Available,
        arms: &[BlockId],
        results: &[Type],
        context: Context<'_>,
    ) {
        let scope = operand.scope;
        // A uniform loop is left from uniform control flow only; others from anywhere.
        let enclosing = context
            .enclosing
            .map(|enclosing| Enclosing { may_leave: enclosing.may_leave && scope <= context.scope, ..enclosing });
        let context = Context { scope: context.scope.max(scope), enclosing, ..context };
        let mut given = vec![(scope, Agreement::Bits); results.len()];
        let mut start = self.random.0;
        for (number, &arm) in arms.iter().enumerate() {
            // Some arms repeat the previous one, with a few different literals.
            let again = number > 0 && self.random.chance(2);
            let twists = if again { self.random.below(4) } else { 0 };
            let next = self.random.0;
            if again {
                (self.random.0, self.twists) = (start, twists);
            } else {
                start = next;
            }
            let visible = self.values.len();
            self.nested(arm, context);
            let yielded: Vec<Available> = results.iter().map(|&ty| self.value(ty, Agreement::Rounded)).collect();
            for (given, value) in given.iter_mut().zip(&yielded) {
                *given = (given.0.max(value.scope), given.1.min(value.agreement));
            }
            self.push(arm, Terminator::Yield, &yielded, &[]);
            self.values.truncate(visible);
            if again {
                (self.random.0, self.twists) = (next, 0);
            }
        }
        let operands = if matches!(op, Control::Region(_)) { vec![] } else { vec![operand.id] };
        let inst = self.program.push(block, op, operands, results, arms.iter().copied(), Span::NONE);
        let ids = self.program.inst(inst).results.clone();
        for (id, (scope, agreement)) in ids.into_iter().zip(given) {
            self.add(id, scope, agreement);
        }
    }

    /// A bounded loop that checks its counter first in every trip. The counter is carried or in private memory.
    fn bounded_loop(&mut self, block: BlockId, results: &[Type], context: Context<'_>) {
        let body = self.program.add_block();
        let trips = 1 + self.random.below(5);
        let element = self.free_counters.next().zip(self.objects.counters).map(|(element, memory)| (memory, element));
        // Uniform loops are left from uniform control flow only, so that the workgroup or subgroup stays together.
        let mut scopes = vec![context.scope, Scope::Invocation];
        if self.features.subgroups {
            scopes.push(context.scope.max(Scope::Subgroup));
        }
        let scope = *self.random.choose(&scopes);
        let (zero, one, bound) = (self.known(0u32), self.known(1u32), self.known(trips));
        let mut carried: Vec<Type> = Vec::new();
        let mut initial: Vec<Available> = Vec::new();
        match element {
            Some((memory, element)) => {
                let element = self.known(element);
                self.push(block, Op::Store(self.program.operand(memory)), &[element, bound], &[]);
            }
            None => {
                carried.push(Type::U32);
                initial.push(zero);
                let others: Vec<Type> = (0..self.random.below(3)).map(|_| self.ty()).collect();
                carried.extend(others.into_iter().filter(|ty| self.features.types.contains(*ty)));
                for &ty in &carried[1..] {
                    initial.push(self.value(ty, Agreement::Rounded));
                }
            }
        }
        let visible = self.values.len();
        for (position, &ty) in carried.iter().enumerate() {
            let param = self.program.add_param(body, ty);
            // The counter is uniform; other parameters have any values.
            self.add(param, if position == 0 { scope } else { Scope::Invocation }, Agreement::Rounded);
        }
        let counter = self.values.get(visible).copied();
        let (done, left) = match (element, counter) {
            (Some((memory, element)), _) => {
                let element = self.known(element);
                let mut left = self.push(body, Op::Load(self.program.operand(memory)), &[element], &[Type::U32]);
                let own = self.give(&left, Scope::Invocation, Agreement::Bits);
                match scope {
                    // If invocation 0 has ended, the other invocations stop as well.
                    Scope::Dispatch | Scope::Workgroup => left = self.push(body, Op::Broadcast, &[own], &[]),
                    Scope::Subgroup => left = self.push(body, Subgroup::Max, &[own], &[]),
                    Scope::Invocation => {}
                }
                let left = self.give(&left, scope, Agreement::Bits);
                (self.push(body, Pure::Eq, &[left, zero], &[])[0], left)
            }
            (None, Some(counter)) => (self.push(body, Pure::Ge, &[counter, bound], &[])[0], counter),
            (None, None) => unreachable!("without an element, a counter is carried"),
        };
        let leave = self.program.add_block();
        let given: Vec<ValueId> = results.iter().map(|&ty| self.value(ty, Agreement::Rounded).id).collect();
        self.program.push(leave, Terminator::Break, given, &[], [], Span::NONE);
        let stay = self.program.add_block();
        self.program.push(stay, Terminator::Yield, [], &[], [], Span::NONE);
        self.program.push(body, Control::If, [done], &[], [leave, stay], Span::NONE);

        let next = if let Some((memory, element)) = element {
            let less = self.apply(body, Pure::Sub, &[left, one], scope);
            let element = self.known(element);
            self.push(body, Op::Store(self.program.operand(memory)), &[element, less], &[]);
            None
        } else {
            Some(self.apply(body, Pure::Add, &[left, one], scope).id)
        };
        let enclosing = Enclosing { carried: &carried, results, next, may_leave: true };
        self.nested(body, Context { scope, depth: context.depth, enclosing: Some(enclosing) });
        // Some bodies end in `break`: then only early `continue`s repeat the loop.
        if self.random.chance(4) {
            let given: Vec<ValueId> = results.iter().map(|&ty| self.value(ty, Agreement::Rounded).id).collect();
            self.program.push(body, Terminator::Break, given, &[], [], Span::NONE);
        } else {
            let handed = self.continue_operands(&carried, next);
            self.program.push(body, Terminator::Continue, handed, &[], [], Span::NONE);
        }
        self.values.truncate(visible);

        let operands: Vec<ValueId> = initial.iter().map(|value| value.id).collect();
        let inst = self.program.push(block, Control::Loop, operands, results, [body], Span::NONE);
        let ids = self.program.inst(inst).results.clone();
        self.budget -= 4;
        for id in ids {
            self.add(id, Scope::Invocation, Agreement::Rounded);
        }
    }

    /// Operands of `continue`: the counter, and visible values.
    fn continue_operands(&mut self, carried: &[Type], next: Option<ValueId>) -> Vec<ValueId> {
        let others = carried.iter().skip(usize::from(next.is_some()));
        let others: Vec<ValueId> = others.map(|&ty| self.value(ty, Agreement::Rounded).id).collect();
        next.into_iter().chain(others).collect()
    }

    /// `if c { break | continue | return | trap }`
    fn early_exit(&mut self, block: BlockId, row: &OpInfo, context: Context<'_>) {
        let op = row.op(Payload::None).expect("exits carry nothing");
        let condition = match (&op, context.enclosing) {
            (Op::Terminator(Terminator::Break | Terminator::Continue), Some(Enclosing { may_leave: true, .. })) => {
                match context.scope {
                    Scope::Invocation => self.condition(block),
                    scope => self.uniform_value(Type::Bool, scope),
                }
            }
            (Op::Terminator(Terminator::Return | Terminator::Trap), _)
                if self.features.effects && self.random.chance(3) =>
            {
                self.condition(block)
            }
            _ => return,
        };
        let given: Vec<ValueId> = match (&op, context.enclosing) {
            (Op::Terminator(Terminator::Break), Some(Enclosing { results, .. })) => {
                results.iter().map(|&ty| self.value(ty, Agreement::Rounded).id).collect()
            }
            (Op::Terminator(Terminator::Continue), Some(Enclosing { carried, next, .. })) => {
                self.continue_operands(carried, next)
            }
            (Op::Terminator(Terminator::Trap), _) => vec![self.literal(Type::U32, Agreement::Bits).id],
            _ => vec![],
        };
        let exit = self.program.add_block();
        self.program.push(exit, op, given, &[], [], Span::NONE);
        let stay = self.program.add_block();
        self.program.push(stay, Terminator::Yield, [], &[], [], Span::NONE);
        self.program.push(block, Control::If, [condition.id], &[], [exit, stay], Span::NONE);
        self.budget -= 2;
    }
}

/// Largest scope in which a function of some values is uniform.
fn scope_of(operands: &[Available]) -> Scope {
    operands.iter().map(|operand| operand.scope).max().unwrap_or(Scope::Workgroup)
}

/// A NaN does not equal itself.
fn is_nan(literal: Literal) -> bool {
    let equal = Pure::Eq.info().evaluator(literal.ty, Type::Bool).expect("everything can be compared");
    equal(&[literal.bits, literal.bits]) == 0
}
