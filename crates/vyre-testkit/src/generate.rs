//! Random programs: valid, terminating, and with one right answer.
//!
//! [`generate`] turns a seed into a program with inputs. It uses every type, operation and kind of control flow, and keeps to
//! rules that make results comparable between devices:
//!
//! * Every loop has a bound that no path around it avoids.
//! * No races: an invocation stores only to its own element of a storage object; workgroup arrays are written, then read
//!   after a barrier, and written again only after another; an atomic object is used with one operation only, whose results
//!   are not looked at.
//! * Collective operations stand where control flow is uniform. The generator keeps track of that itself, more strictly than
//!   the validator does.
//! * A float that devices may round differently never decides anything: it is not compared, converted, reinterpreted or
//!   used as an index.

use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::ops::{Exactness, Form, Kind, Op, Payload, Row, Slot, TABLE};
use vyre_foundation::ir::{
    Access, Axis, BlockId, Element, Literal, MemId, Memory, Program, Space, Span, Type, TypeSet, ValueId, Values,
};

/// What generated programs may use.
#[derive(Clone, Debug)]
pub struct Features {
    /// Types of values.
    pub types: TypeSet,
    /// About how many instructions there are.
    pub size: u32,
    /// Whether subgroup operations are used.
    pub subgroups: bool,
    /// Whether programs print, trap and return early.
    pub effects: bool,
}

impl Default for Features {
    fn default() -> Self {
        Features { types: TypeSet::ALL, size: 60, subgroups: true, effects: true }
    }
}

/// A program with everything that is needed to run it.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The program. It passes validation.
    pub program: Program,
    /// Workgroups in each dimension.
    pub groups: [u32; 3],
    /// What its objects are bound to.
    pub inputs: Inputs,
}

/// The program of a seed.
pub fn generate(seed: u64, features: &Features) -> Generated {
    let mut random = Random(seed);
    let sizes = [[1, 1, 1], [7, 1, 1], [16, 1, 1], [32, 1, 1], [4, 4, 1], [3, 5, 2], [64, 1, 1]];
    let workgroup_size = *random.choose(&sizes);
    let groups = *random.choose(&[[1, 1, 1], [2, 1, 1], [3, 2, 1], [1, 2, 2]]);
    let invocations = groups.iter().chain(&workgroup_size).product::<u32>();
    let mut generator = Generator {
        random,
        features,
        program: Program::new(format!("seed_{seed}"), workgroup_size),
        values: Vec::new(),
        budget: i64::from(features.size),
        objects: Objects::default(),
        global_index: None,
    };
    let inputs = generator.memory(invocations);
    generator.body();
    Generated { program: generator.program, groups, inputs }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn below(&mut self, bound: u32) -> u32 {
        (self.bits() % u64::from(bound.max(1))) as u32
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.below(one_in) == 0
    }

    fn choose<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len() as u32) as usize]
    }
}

/// The memory objects of the program, by what they are used for.
#[derive(Default)]
struct Objects {
    /// Storage that is only read.
    read: Vec<MemId>,
    /// One element for each invocation.
    own: Vec<MemId>,
    uniforms: Vec<MemId>,
    private: Vec<MemId>,
    /// One element for each invocation of the workgroup.
    workgroup: Vec<MemId>,
    /// With the one operation that each is used with.
    atomic: Vec<(MemId, &'static Row)>,
}

/// A value that can be used.
#[derive(Clone, Copy)]
struct Available {
    id: ValueId,
    ty: Type,
    uniform: bool,
    exact: bool,
}

/// Where a block stands.
#[derive(Clone, Copy)]
struct Place<'a> {
    uniform: bool,
    depth: u32,
    enclosing: Option<Enclosing<'a>>,
}

/// The innermost loop around a block.
#[derive(Clone, Copy)]
struct Enclosing<'a> {
    carried: &'a [Type],
    results: &'a [Type],
    /// The counter of the next trip: without it, the loop would have no bound.
    next: ValueId,
    /// Whether this place may leave it or go on to its next trip.
    may_leave: bool,
}

struct Generator<'f> {
    random: Random,
    features: &'f Features,
    program: Program,
    values: Vec<Available>,
    budget: i64,
    objects: Objects,
    global_index: Option<ValueId>,
}

impl Generator<'_> {
    // Memory and its contents.

    fn memory(&mut self, invocations: u32) -> Inputs {
        let mut inputs = Inputs::default();
        let elements: Vec<Element> =
            Element::ALL.into_iter().filter(|element| self.features.types.contains(element.value_type())).collect();
        let per_group = self.program.workgroup_size.iter().product();
        for number in 0..3 {
            let element = *self.random.choose(&elements);
            let length = 1 + self.random.below(40);
            let fixed = self.random.chance(2).then_some(length);
            let id = self.object(format!("in{number}"), Space::Storage(Access::Read), element, fixed, false);
            self.objects.read.push(id);
            let bytes = self.contents(element, length);
            inputs.bytes(&self.program, &format!("in{number}"), bytes).expect("declared above");
        }
        for number in 0..2 {
            let element = *self.random.choose(&elements);
            let id = self.object(format!("u{number}"), Space::Uniform, element, Some(1), false);
            self.objects.uniforms.push(id);
            let bytes = self.contents(element, 1);
            inputs.bytes(&self.program, &format!("u{number}"), bytes).expect("declared above");
        }
        for number in 0..3 {
            let element = *self.random.choose(&elements);
            let access = *self.random.choose(&[Access::Write, Access::ReadWrite]);
            let id = self.object(format!("out{number}"), Space::Storage(access), element, None, false);
            self.objects.own.push(id);
            let bytes = self.contents(element, invocations);
            inputs.bytes(&self.program, &format!("out{number}"), bytes).expect("declared above");
        }
        let atomics = [Element::I32, Element::U32, Element::I64, Element::U64];
        let operations =
            ["atomic_add", "atomic_sub", "atomic_min", "atomic_max", "atomic_and", "atomic_or", "atomic_xor"];
        for number in 0..2 {
            let element = *self.random.choose(&atomics);
            if !self.features.types.contains(element.value_type()) {
                continue;
            }
            let length = 1 + self.random.below(8);
            let access = Space::Storage(Access::ReadWrite);
            let id = self.object(format!("atomic{number}"), access, element, None, true);
            let row = Row::named(self.random.choose::<&str>(&operations)).expect("an operation of the table");
            self.objects.atomic.push((id, row));
            let bytes = self.contents(element, length);
            inputs.bytes(&self.program, &format!("atomic{number}"), bytes).expect("declared above");
        }
        let element = *self.random.choose(&elements);
        let id = self.object("tile".into(), Space::Workgroup, element, Some(per_group), false);
        self.objects.workgroup.push(id);
        let element = *self.random.choose(&elements);
        let length = 1 + self.random.below(9);
        let id = self.object("scratch".into(), Space::Private, element, Some(length), false);
        self.objects.private.push(id);
        inputs
    }

    fn object(&mut self, name: String, space: Space, element: Element, length: Option<u32>, atomic: bool) -> MemId {
        self.program.memory.push(Memory { name, space, element, length, atomic, default: None, span: Span::NONE })
    }

    fn contents(&mut self, element: Element, length: u32) -> Vec<u8> {
        let mut bytes = vec![0; length as usize * element.size()];
        for bytes in bytes.chunks_exact_mut(element.size()) {
            let bits = self.literal_bits(element.value_type());
            element.write(bits, bytes);
        }
        bytes
    }

    /// Small numbers, special ones, and any bits at all.
    fn literal_bits(&mut self, ty: Type) -> u64 {
        let cast = Op::Cast.row().evaluator(Type::I32, ty).expect("every type can be cast to");
        match self.random.below(4) {
            0 | 1 => cast(&[u64::from((self.random.below(41) as i32 - 20) as u32)]),
            2 if ty.is_float() => {
                // Quarters: exact in every float type.
                let quarter = f64::from(self.random.below(2000) as i32 - 1000) / 4.0;
                let convert = Op::Cast.row().evaluator(Type::F64, ty).expect("every type can be cast to");
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

    fn literal(&mut self, ty: Type) -> ValueId {
        let bits = self.literal_bits(ty);
        self.program.literal(Literal { ty, bits })
    }

    /// A value of a type: one that is there, or a literal. `exact` asks for one that no device rounds differently.
    fn value(&mut self, ty: Type, exact: bool) -> Available {
        let fits = |value: &&Available| value.ty == ty && (value.exact || !exact);
        let count = self.values.iter().filter(fits).count() as u32;
        if count > 0 && !self.random.chance(5) {
            // Rather one that was made recently: chains of operations find more than bushes.
            let skip = self.random.below(count).min(self.random.below(count));
            return *self.values.iter().rev().filter(fits).nth(skip as usize).expect("counted above");
        }
        Available { id: self.literal(ty), ty, uniform: true, exact: true }
    }

    fn uniform_value(&mut self, ty: Type) -> Available {
        let fits = |value: &&Available| value.ty == ty && value.exact && value.uniform;
        let count = self.values.iter().filter(fits).count() as u32;
        match count {
            0 => Available { id: self.literal(ty), ty, uniform: true, exact: true },
            _ => {
                let skip = self.random.below(count) as usize;
                *self.values.iter().filter(fits).nth(skip).expect("counted above")
            }
        }
    }

    fn ty(&mut self) -> Type {
        let types: Vec<Type> = self.features.types.iter().collect();
        // Half of the time one that the language is mostly about.
        let usual = [Type::U32, Type::I32, Type::F32, Type::Bool];
        if self.random.chance(2) { *self.random.choose(&usual) } else { *self.random.choose(&types) }
    }

    fn push(&mut self, block: BlockId, op: Op, operands: &[Available], named: &[Type]) -> Vec<ValueId> {
        let ids: Values = operands.iter().map(|operand| operand.id).collect();
        let types = self.program.result_types(&op, &ids, named).expect("operands are chosen to fit");
        let inst = self.program.push(block, op, ids, &types, [], Span::NONE);
        self.budget -= 1;
        self.program.insts[inst].results.to_vec()
    }

    fn add(&mut self, id: ValueId, uniform: bool, exact: bool) {
        let ty = self.program.ty(id);
        self.values.push(Available { id, ty, uniform, exact });
    }

    // Statements.

    fn body(&mut self) {
        let body = self.program.body;
        let index = self.push(body, Op::GlobalIndex, &[], &[])[0];
        self.global_index = Some(index);
        self.add(index, false, true);
        let place = Place { uniform: true, depth: 0, enclosing: None };
        while self.budget > 0 {
            self.statement(body, place);
        }
        // What was computed counts only if it is seen.
        for position in 0..self.objects.own.len() {
            self.store_own(body, self.objects.own[position]);
        }
        self.program.push(body, Op::Return, [], &[], [], Span::NONE);
    }

    /// Statements of a nested block, and the values that were visible before.
    fn nested(&mut self, block: BlockId, place: Place<'_>) {
        let count = 1 + self.random.below(5);
        for _ in 0..count {
            self.statement(block, place);
        }
    }

    fn statement(&mut self, block: BlockId, place: Place<'_>) {
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
            Kind::PerInvocation | Kind::PerGroup => self.question(block, row),
            Kind::Access => self.access(block, row),
            Kind::Atomic => self.atomic(block),
            Kind::Collective => {
                if place.uniform {
                    self.collective(block, row);
                }
            }
            Kind::Effect => {
                if self.features.effects {
                    self.print(block);
                }
            }
            Kind::Control => self.control(block, row, place),
        }
    }

    fn pure(&mut self, block: BlockId, row: &Row) {
        let op = row.op(Payload::None).expect("pure operations carry nothing");
        let mut named = Vec::new();
        let operands: Vec<Available> = match row.form {
            Form::Convert { same_size } => {
                let from = self.ty();
                let to: Vec<Type> =
                    self.features.types.iter().filter(|to| !same_size || to.bits() == from.bits()).collect();
                if !self.features.types.contains(from) {
                    return;
                }
                named.push(*self.random.choose(&to));
                vec![self.value(from, true)]
            }
            Form::Plain(signature) => {
                let class: Vec<Type> = signature.class.iter().filter(|ty| self.features.types.contains(*ty)).collect();
                let class = *self.random.choose(&class);
                // Comparing and packing look at every bit.
                let exact = !class.is_float() || signature.results != [Slot::T];
                let slots = signature.operands.iter();
                let types: Vec<Type> = slots.map(|slot| if let Slot::Is(ty) = slot { *ty } else { class }).collect();
                types.into_iter().map(|ty| self.value(ty, exact || !ty.is_float())).collect()
            }
            _ => return,
        };
        let result = self.push(block, op, &operands, &named)[0];
        let float = operands.iter().any(|operand| operand.ty.is_float()) || self.program.ty(result).is_float();
        let exact = operands.iter().all(|operand| operand.exact) && (!float || row.exactness == Exactness::Exact);
        let uniform = operands.iter().all(|operand| operand.uniform);
        self.add(result, uniform, exact);
    }

    /// Where the invocation is, and how large things are.
    fn question(&mut self, block: BlockId, row: &Row) {
        let all: Vec<MemId> = self.program.memory.keys().collect();
        let payload = match row.form {
            Form::PerAxis => Payload::Axis(*self.random.choose(&Axis::ALL)),
            Form::Length => Payload::Memory(*self.random.choose(&all)),
            _ => Payload::None,
        };
        let op = row.op(payload).expect("the form decides the payload");
        if !self.features.subgroups && op.needs_subgroups() {
            return;
        }
        let result = self.push(block, op, &[], &[])[0];
        self.add(result, row.kind == Kind::PerGroup, true);
    }

    /// An index into an object: mostly inside.
    fn index(&mut self, block: BlockId, length: u32) -> Available {
        let mut value = self.value(Type::U32, true);
        if self.program.known(value.id).is_some() {
            // The validator rejects an index that it knows to be outside.
            let id = self.global_index.expect("the body begins with it");
            value = Available { id, ty: Type::U32, uniform: false, exact: true };
        }
        if self.random.chance(4) {
            return value;
        }
        let length = self.program.literal(length.max(1));
        let length = Available { id: length, ty: Type::U32, uniform: true, exact: true };
        let id = self.push(block, Op::Rem, &[value, length], &[])[0];
        Available { id, ty: Type::U32, uniform: value.uniform, exact: true }
    }

    fn access(&mut self, block: BlockId, row: &Row) {
        if row.name == "store" {
            match self.random.below(2) {
                0 => {
                    let memory = *self.random.choose(&self.objects.own);
                    self.store_own(block, memory);
                }
                _ => {
                    let memory = *self.random.choose(&self.objects.private);
                    let width = 1 + self.random.below(4);
                    let element = self.program.memory[memory].element.value_type();
                    let mut operands = vec![self.index(block, 9)];
                    operands.extend((0..width).map(|_| self.value(element, true)));
                    self.push(block, Op::Store(memory), &operands, &[]);
                }
            }
            return;
        }
        let (memory, operands, uniform) = match self.random.below(4) {
            0 => (*self.random.choose(&self.objects.uniforms), vec![], true),
            1 => (*self.random.choose(&self.objects.private), vec![self.index(block, 9)], false),
            2 => {
                let memory = *self.random.choose(&self.objects.own);
                let index = self.global_index.expect("the body begins with it");
                if !self.program.memory[memory].readable() {
                    return;
                }
                (memory, vec![Available { id: index, ty: Type::U32, uniform: false, exact: true }], false)
            }
            _ => {
                let index = self.index(block, 20);
                (*self.random.choose(&self.objects.read), vec![index], index.uniform)
            }
        };
        // Own elements of a written object are next to those of other invocations: a wide load would race with them.
        let wide = !operands.is_empty() && !self.objects.own.contains(&memory) && self.random.chance(3);
        let width = if wide { 2 + self.random.below(3) } else { 1 };
        let element = self.program.memory[memory].element.value_type();
        let results = self.push(block, Op::Load(memory), &operands, &vec![element; width as usize]);
        for result in results {
            // What is loaded back from an own element may have been rounded by the device.
            let exact = !element.is_float() || !self.objects.own.contains(&memory);
            self.add(result, uniform, exact);
        }
    }

    fn store_own(&mut self, block: BlockId, memory: MemId) {
        let index = self.global_index.expect("the body begins with it");
        let element = self.program.memory[memory].element.value_type();
        let index = Available { id: index, ty: Type::U32, uniform: false, exact: true };
        let value = self.value(element, false);
        self.push(block, Op::Store(memory), &[index, value], &[]);
    }

    fn atomic(&mut self, block: BlockId) {
        if self.objects.atomic.is_empty() {
            return;
        }
        let (memory, row) = *self.random.choose(&self.objects.atomic);
        let element = self.program.memory[memory].element.value_type();
        let operands = [self.index(block, 8), self.value(element, true)];
        let op = row.op(Payload::Memory(memory)).expect("an atomic carries its object");
        self.push(block, op, &operands, &[]);
    }

    fn collective(&mut self, block: BlockId, row: &Row) {
        match row.name {
            // Everybody writes an element, and after a barrier reads any.
            "workgroup_barrier" => {
                let memory = *self.random.choose(&self.objects.workgroup);
                let element = self.program.memory[memory].element.value_type();
                let local = self.push(block, Op::LocalIndex, &[], &[])[0];
                let local = Available { id: local, ty: Type::U32, uniform: false, exact: true };
                let value = self.value(element, true);
                self.push(block, Op::Store(memory), &[local, value], &[]);
                self.push(block, Op::WorkgroupBarrier, &[], &[]);
                let index = self.index(block, 64);
                let result = self.push(block, Op::Load(memory), &[index], &[element])[0];
                self.push(block, Op::WorkgroupBarrier, &[], &[]);
                self.add(result, false, true);
            }
            "storage_barrier" => {
                self.push(block, Op::StorageBarrier, &[], &[]);
            }
            name => {
                let Form::Plain(signature) = row.form else { return };
                if !self.features.subgroups && name != "broadcast" {
                    return;
                }
                let class: Vec<Type> = signature.class.iter().filter(|ty| self.features.types.contains(*ty)).collect();
                let class = *self.random.choose(&class);
                let slots = signature.operands.iter();
                let types: Vec<Type> = slots.map(|slot| if let Slot::Is(ty) = slot { *ty } else { class }).collect();
                let operands: Vec<Available> = types.into_iter().map(|ty| self.value(ty, true)).collect();
                let op = row.op(Payload::None).expect("collective operations carry nothing");
                let results = self.push(block, op, &operands, &[]);
                for result in results {
                    let exact = row.exactness == Exactness::Exact || !self.program.ty(result).is_float();
                    self.add(result, name == "broadcast", exact);
                }
            }
        }
    }

    fn print(&mut self, block: BlockId) {
        let (a, b) = (self.ty(), self.ty());
        let operands = [self.value(a, true), self.value(b, true)];
        self.push(block, Op::Print("a = {}, \"b\" = {}".into()), &operands, &[]);
    }

    // Control flow.

    fn control(&mut self, block: BlockId, row: &Row, place: Place<'_>) {
        if place.depth >= 4 || self.budget <= 0 {
            return;
        }
        let inner = Place { depth: place.depth + 1, ..place };
        let results: Vec<Type> = (0..self.random.below(3)).map(|_| self.ty()).collect();
        let results: Vec<Type> = results.into_iter().filter(|ty| self.features.types.contains(*ty)).collect();
        match row.form {
            Form::If => {
                let condition = self.condition();
                let arms = [self.program.block(), self.program.block()];
                self.branches(block, Op::If, condition, &arms, &results, inner);
            }
            Form::Switch => {
                let ty = *self.random.choose(&[Type::U32, Type::I32]);
                let selector = if self.random.chance(3) { self.uniform_value(ty) } else { self.value(ty, true) };
                let mut cases: Vec<u32> = (0..self.random.below(4)).map(|_| self.random.below(6)).collect();
                cases.sort_unstable();
                cases.dedup();
                let arms: Vec<BlockId> = (0..=cases.len()).map(|_| self.program.block()).collect();
                self.branches(block, Op::Switch(cases.into()), selector, &arms, &results, inner);
            }
            Form::Region => {
                let arm = self.program.block();
                let uniform = Available { id: self.literal(Type::Bool), ty: Type::Bool, uniform: true, exact: true };
                self.branches(block, Op::Region("test.region".into()), uniform, &[arm], &results, inner);
            }
            Form::Loop => self.bounded_loop(block, &results, inner),
            Form::Exit | Form::Trap => self.early_exit(block, row, place),
            _ => {}
        }
    }

    fn condition(&mut self) -> Available {
        if self.random.chance(3) { self.uniform_value(Type::Bool) } else { self.value(Type::Bool, true) }
    }

    /// `if`, `switch` and `region`. A region has no operand.
    fn branches(
        &mut self,
        block: BlockId,
        op: Op,
        operand: Available,
        arms: &[BlockId],
        results: &[Type],
        place: Place<'_>,
    ) {
        let uniform = operand.uniform;
        // A loop in which the workgroup stays together is not left where it does not; others may be left from anywhere.
        let enclosing = place
            .enclosing
            .map(|enclosing| Enclosing { may_leave: enclosing.may_leave && (uniform || !place.uniform), ..enclosing });
        let place = Place { uniform: place.uniform && uniform, enclosing, ..place };
        let mut given = vec![(uniform, true); results.len()];
        for &arm in arms {
            let visible = self.values.len();
            self.nested(arm, place);
            let yielded: Vec<Available> = results.iter().map(|&ty| self.value(ty, false)).collect();
            for (given, value) in given.iter_mut().zip(&yielded) {
                *given = (given.0 && value.uniform, given.1 && value.exact);
            }
            self.push(arm, Op::Yield, &yielded, &[]);
            self.values.truncate(visible);
        }
        let operands = if matches!(op, Op::Region(_)) { vec![] } else { vec![operand.id] };
        let inst = self.program.push(block, op, operands, results, arms.iter().copied(), Span::NONE);
        let ids = self.program.insts[inst].results.clone();
        for (id, (uniform, exact)) in ids.into_iter().zip(given) {
            self.add(id, uniform, exact);
        }
    }

    /// A loop with a counter and a bound, checked first in every trip.
    fn bounded_loop(&mut self, block: BlockId, results: &[Type], place: Place<'_>) {
        let body = self.program.block();
        let bound = 1 + self.random.below(5);
        let carried: Vec<Type> =
            std::iter::once(Type::U32).chain((0..self.random.below(3)).map(|_| self.ty())).collect();
        let carried: Vec<Type> = carried.into_iter().filter(|ty| self.features.types.contains(*ty)).collect();
        let mut initial = vec![Available { id: self.program.literal(0u32), ty: Type::U32, uniform: true, exact: true }];
        for &ty in &carried[1..] {
            initial.push(self.value(ty, false));
        }
        // In a uniform loop only uniform places may leave, so that the whole workgroup stays together.
        let stays_together = place.uniform && self.random.chance(2);
        let visible = self.values.len();
        let mut params = Vec::new();
        for (position, &ty) in carried.iter().enumerate() {
            let param = self.program.param(body, ty);
            params.push(param);
            // The counter is exact; others may take anything in.
            self.add(param, position == 0 && stays_together, !ty.is_float());
        }
        let counter = Available { id: params[0], ty: Type::U32, uniform: stays_together, exact: true };
        let bound = Available { id: self.program.literal(bound), ty: Type::U32, uniform: true, exact: true };
        let done = self.push(body, Op::Ge, &[counter, bound], &[])[0];
        let leave = self.program.block();
        let given: Vec<ValueId> = results.iter().map(|&ty| self.value(ty, false).id).collect();
        self.program.push(leave, Op::Break, given, &[], [], Span::NONE);
        let stay = self.program.block();
        self.program.push(stay, Op::Yield, [], &[], [], Span::NONE);
        self.program.push(body, Op::If, [done], &[], [leave, stay], Span::NONE);

        let one = Available { id: self.program.literal(1u32), ty: Type::U32, uniform: true, exact: true };
        let next = self.push(body, Op::Add, &[counter, one], &[])[0];
        self.add(next, stays_together, true);
        let enclosing = Enclosing { carried: &carried, results, next, may_leave: true };
        self.nested(body, Place { uniform: stays_together, depth: place.depth, enclosing: Some(enclosing) });
        // Some bodies end in `break`: then only what continues early goes on.
        if self.random.chance(4) {
            let given: Vec<ValueId> = results.iter().map(|&ty| self.value(ty, false).id).collect();
            self.program.push(body, Op::Break, given, &[], [], Span::NONE);
        } else {
            let mut handed = vec![next];
            handed.extend(carried[1..].iter().map(|&ty| self.value(ty, false).id));
            self.program.push(body, Op::Continue, handed, &[], [], Span::NONE);
        }
        self.values.truncate(visible);

        let operands: Vec<ValueId> = initial.iter().map(|value| value.id).collect();
        let inst = self.program.push(block, Op::Loop, operands, results, [body], Span::NONE);
        let ids = self.program.insts[inst].results.clone();
        for id in ids {
            let exact = !self.program.ty(id).is_float();
            self.add(id, false, exact);
        }
        self.budget -= 4;
    }

    /// `if c { break | continue | return | trap }`
    fn early_exit(&mut self, block: BlockId, row: &Row, place: Place<'_>) {
        let op = row.op(Payload::None).expect("exits carry nothing");
        let condition = match (&op, place.enclosing) {
            (Op::Break | Op::Continue, Some(Enclosing { may_leave: true, .. })) => match place.uniform {
                true => self.uniform_value(Type::Bool),
                false => self.value(Type::Bool, true),
            },
            (Op::Return | Op::Trap, _) if self.features.effects && self.random.chance(3) => {
                self.value(Type::Bool, true)
            }
            _ => return,
        };
        let given: Vec<ValueId> = match (&op, place.enclosing) {
            (Op::Break, Some(Enclosing { results, .. })) => {
                results.iter().map(|&ty| self.value(ty, false).id).collect()
            }
            (Op::Continue, Some(Enclosing { carried, next, .. })) => {
                let others = carried[1..].iter().map(|&ty| self.value(ty, false).id);
                std::iter::once(next).chain(others).collect()
            }
            (Op::Trap, _) => vec![self.literal(Type::U32)],
            _ => vec![],
        };
        let exit = self.program.block();
        self.program.push(exit, op, given, &[], [], Span::NONE);
        let stay = self.program.block();
        self.program.push(stay, Op::Yield, [], &[], [], Span::NONE);
        self.program.push(block, Op::If, [condition.id], &[], [exit, stay], Span::NONE);
        self.budget -= 2;
    }
}
