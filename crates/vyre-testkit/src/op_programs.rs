//! Small programs that cover the op table: every operation on every type, on edge values, in uniform and in divergent control
//! flow, and every kind of access to every kind of memory.

use vyre_foundation::Validated;
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::ops::{Exactness, Form, Kind, OpInfo, TABLE};
use vyre_foundation::ir::{Element, Literal, Program, Type, TypeSet};
use vyre_foundation::launch::Grid;
use vyre_foundation::{text, validate};

/// A program with inputs.
pub(crate) struct OpProgram {
    /// Covered operation and types.
    pub(crate) name: String,
    pub(crate) program: Validated<Program>,
    pub(crate) grid: Grid,
    pub(crate) inputs: Inputs,
    /// Operation whose exactness determines how floats are compared.
    pub(crate) row: &'static OpInfo,
}

/// All programs, for a device with these types.
pub(crate) fn all(types: TypeSet) -> Vec<OpProgram> {
    let mut programs = Vec::new();
    for row in TABLE.iter().filter(|row| row.kind == Kind::Pure) {
        for (class, operands, result) in row.uses() {
            if operands.iter().chain([&result]).all(|ty| types.contains(*ty)) {
                programs.extend(pure(row, class, result, &operands));
            }
        }
    }
    for element in Element::ALL.into_iter().filter(|element| types.contains(element.value_type())) {
        programs.extend(copies(element));
    }
    let elements = || Element::ALL.into_iter().filter(|element| types.contains(element.value_type()));
    for (declared, accessed) in elements().flat_map(|declared| elements().map(move |accessed| (declared, accessed))) {
        programs.push(retyped(declared, accessed));
    }
    for row in TABLE.iter().filter(|row| row.kind == Kind::Atomic) {
        let class = match row.form {
            Form::Atomic(class) => class,
            _ => TypeSet::INTEGERS,
        };
        for element in [Element::I32, Element::U32, Element::F32, Element::I64, Element::U64, Element::F64] {
            if types.contains(element.value_type()) && class.contains(element.value_type()) {
                programs.extend(atomics(row, element));
            }
        }
    }
    programs
}

/// Edge values of a type.
fn edge_values(ty: Type) -> Vec<u64> {
    let integer = |value: i128| (value as u64) & (u64::MAX >> (64 - ty.bits()));
    let top = 1i128 << (ty.bits() - 1);
    match ty {
        Type::Bool => vec![0, 1],
        Type::I32 | Type::U32 | Type::I64 | Type::U64 => {
            let mut values = vec![0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 255, 0x1234_5678, 0x80ff_7f01, 0x0a1f_f20b];
            values.extend([top - 1, top, top + 1, -1, -2, -7]);
            values.into_iter().map(integer).collect()
        }
        Type::F32 | Type::F64 | Type::F16 => {
            let cast = row_of("cast").evaluator(Type::F64, ty).expect("floats can be cast to each other");
            let numbers = [
                0.0,
                -0.0,
                1.0,
                -1.0,
                0.5,
                -0.5,
                1.5,
                2.5,
                -2.5,
                0.1,
                3.75,
                100.25,
                -7.0,
                65504.0,
                1e-5,
                6e-8,
                1e-40,
                1e10,
                -3e9,
                2_147_483_648.0,
                4_294_967_296.0,
                1e20,
                3e38,
                f64::INFINITY,
                f64::NEG_INFINITY,
                f64::NAN,
            ];
            numbers.iter().map(|number| cast(&[number.to_bits()])).collect()
        }
    }
}

fn row_of(name: &str) -> &'static OpInfo {
    OpInfo::named(name).expect("an operation of the table")
}

/// Element type for values of a type: words for bools.
fn element_of(ty: Type) -> Element {
    Element::from_name(ty.name()).unwrap_or(Element::U32)
}

/// Code that converts a loaded element to a value of the type.
fn unpacked(name: &str, ty: Type) -> String {
    match ty {
        Type::Bool => format!("    %{name} = ne %{name}_word, 0\n"),
        _ => String::new(),
    }
}

fn loaded(name: &str, ty: Type) -> String {
    if ty == Type::Bool { format!("%{name}_word") } else { format!("%{name}") }
}

/// An operation on edge values from every kind of memory, in uniform and divergent control flow.
fn pure(row: &'static OpInfo, class: Type, result: Type, operands: &[Type]) -> Vec<OpProgram> {
    let names = ["a", "b", "c", "d", "e"];
    let list = names[..operands.len()].iter().map(|name| format!("%{name}")).collect::<Vec<_>>().join(", ");
    let convert = if matches!(row.form, Form::Convert { .. }) { format!(" to {result}") } else { String::new() };
    let operation = format!("{} {list}{convert}", row.name);
    let packed = if result == Type::Bool { "    %word = cast %r to u32\n" } else { "" };
    let stored = if result == Type::Bool { "%word" } else { "%r" };

    // Operands cycle through their values with different periods, which covers many combinations.
    let counts: Vec<usize> = operands.iter().map(|ty| edge_values(*ty).len()).collect();
    let cases = counts.iter().product::<usize>().min(700) as u32;
    let contents: Vec<Vec<u8>> = operands
        .iter()
        .enumerate()
        .map(|(position, ty)| {
            let (values, element) = (edge_values(*ty), element_of(*ty));
            let pace: usize = counts[..position].iter().product();
            let mut bytes = vec![0; cases as usize * element.size()];
            for (case, bytes) in bytes.chunks_exact_mut(element.size()).enumerate() {
                // A stride coprime to the usual counts, if not all combinations fit.
                let case =
                    if counts.iter().product::<usize>() > 700 { case * 7919 + position * case / 3 } else { case };
                element.write(values[case / pace % values.len()], bytes);
            }
            bytes
        })
        .collect();

    let label = format!("{} {class} {result}", row.name);
    let out = format!("    write out: [{}]\n", element_of(result));
    let compute = format!("    %r = {operation}\n{packed}    store out[%i], {stored}\n");
    let mut programs = Vec::new();
    for space in ["storage", "workgroup", "private"] {
        let (mut declared, mut staged, mut loaded_text) = (String::new(), String::new(), String::new());
        for (name, ty) in names.iter().zip(operands) {
            let element = element_of(*ty);
            declared += &format!("    read {name}: [{element}]\n");
            let mut from = format!("{name}[%i]");
            if space != "storage" {
                let (length, slot) = if space == "workgroup" { (64, "%l") } else { (3, "2") };
                declared += &format!("    {space} {name}_{space}: [{element}; {length}]\n");
                staged += &format!("    %{name}_in = load {from}\n    store {name}_{space}[{slot}], %{name}_in\n");
                from = format!("{name}_{space}[{slot}]");
            }
            loaded_text += &format!("    {} = load {from}\n{}", loaded(name, *ty), unpacked(name, *ty));
        }
        if space == "workgroup" {
            staged = format!("    %l = local_index\n{staged}    workgroup_barrier\n");
        }
        let head = format!("program p workgroup(64) {{\n{declared}{out}    %i = global_index\n{staged}");
        let uniformly = format!("{head}{loaded_text}{compute}}}\n");
        let divergently = format!(
            "{head}    %bit = and %i, 5\n    %odd = ne %bit, 0\n    if %odd {{\n{loaded_text}{compute}    }}\n}}\n"
        );
        for (flow, source) in [("uniform", uniformly), ("divergent", divergently)] {
            let program = read(&source);
            let mut inputs = Inputs::default();
            for (name, bytes) in names.iter().zip(&contents) {
                inputs.bytes(&program, name, bytes.clone()).expect("declared above");
            }
            let results = vec![0; cases as usize * element_of(result).size()];
            inputs.bytes(&program, "out", results).expect("declared above");
            let grid = Grid::Elements([cases, 1, 1]);
            let name = format!("{label}, {space}, {flow} control flow");
            programs.push(OpProgram { name, program, grid, inputs, row });
        }
    }
    let (mut declared, mut loaded_text) = (String::new(), String::new());
    for (name, ty) in names.iter().zip(operands) {
        declared += &format!("    uniform {name}: {}\n", element_of(*ty));
        loaded_text += &format!("    {} = load {name}\n{}", loaded(name, *ty), unpacked(name, *ty));
    }
    let uniform =
        format!("program p workgroup(8) {{\n{declared}{out}    %i = global_index\n{loaded_text}{compute}}}\n");
    let program = read(&uniform);
    for case in 0..2 {
        let mut inputs = Inputs::default();
        for ((name, ty), bytes) in names.iter().zip(operands).zip(&contents) {
            let size = element_of(*ty).size();
            let at = (case * 5 + 2) % cases as usize * size;
            inputs.bytes(&program, name, bytes[at..at + size].to_vec()).expect("declared above");
        }
        inputs.bytes(&program, "out", vec![0; 16 * element_of(result).size()]).expect("declared above");
        programs.push(OpProgram {
            name: format!("{label}, uniform scalars {case}"),
            program: program.clone(),
            grid: Grid::Elements([16, 1, 1]),
            inputs,
            row,
        });
    }
    programs
}

/// Copies of one to four elements through every kind of memory, in and out of bounds.
fn copies(element: Element) -> Vec<OpProgram> {
    let mut programs = Vec::new();
    for width in 1..=4u32 {
        let values = (0..width).map(|k| format!("%v{k}")).collect::<Vec<_>>().join(", ");
        let moved = (0..width).map(|k| format!("%m{k}")).collect::<Vec<_>>().join(", ");
        let last = width - 1;
        let parts = [("ELEMENT", element.name()), ("VALUES", &values), ("MOVED", &moved)];
        let source = filled(include_str!("copies.txt"), &parts);
        let source = source.replace("WIDTH", &width.to_string()).replace("LAST", &last.to_string());
        let program = read(&source);
        let mut inputs = Inputs::default();
        let values = edge_values(element.value_type());
        let mut bytes = vec![0; 150 * element.size()];
        for (position, bytes) in bytes.chunks_exact_mut(element.size()).enumerate() {
            element.write(values[position % values.len()], bytes);
        }
        inputs.bytes(&program, "x", bytes.clone()).expect("declared above");
        inputs.bytes(&program, "y", bytes).expect("declared above");
        programs.push(OpProgram {
            name: format!("copies of {width} {element}"),
            program,
            grid: Grid::Elements([48, 1, 1]),
            inputs,
            row: row_of("load"),
        });
    }
    programs
}

/// Accesses in storage, workgroup and private objects with an element type other than the declared one, plain and
/// atomic.
fn retyped(declared: Element, accessed: Element) -> OpProgram {
    // Stores to neighbouring bytes are next to the atomics.
    let ty = accessed.value_type();
    let one = if ty.is_float() { format!("1.0{ty}") } else { format!("1{ty}") };
    let exchange = match ty.is_float() {
        true => format!("%exchanged = atomic_exchange own[%place] as {accessed}, {one}"),
        false => format!("%exchanged, %did = atomic_compare_exchange own[%place] as {accessed}, %old, {one}"),
    };
    let atomics = match accessed {
        Element::I32 | Element::U32 | Element::F32 | Element::I64 | Element::U64 | Element::F64 => format!(
            "    storage_barrier
    %place = add %i, 8
    %old = load own[%place] as atomic {accessed}
    store own[%place] as atomic {accessed}, %v
    atomic_add own[%place] as {accessed}, {one}
    atomic_min own[%place] as {accessed}, %old
    %before = atomic_max own[%place] as {accessed}, {one}
    {exchange}
    %there = add %i, 24
    store y[%there], %exchanged"
        ),
        Element::I8 | Element::U8 | Element::I16 | Element::U16 | Element::F16 | Element::BF16 => String::new(),
    };
    let parts = [("DECLARED", declared.name()), ("ACCESSED", accessed.name()), ("ATOMICS", &atomics)];
    let program = read(&filled(include_str!("retyped.txt"), &parts));
    let mut inputs = Inputs::default();
    // Bytes that form normal numbers of every float type. The last element of the largest type is incomplete.
    let bytes = |count: usize| (0..count).map(|byte| 0x31 + (byte * 7 % 16) as u8).collect::<Vec<u8>>();
    let long = (128 + 4usize).next_multiple_of(declared.size());
    inputs.bytes(&program, "x", bytes(68usize.next_multiple_of(declared.size()))).expect("declared above");
    inputs.bytes(&program, "own", bytes(long)).expect("declared above");
    inputs.bytes(&program, "y", bytes(32 * accessed.size())).expect("declared above");
    inputs.bytes(&program, "z", bytes(16 * declared.size())).expect("declared above");
    let name = format!("{accessed} in objects of {declared}");
    OpProgram { name, program, grid: Grid::Elements([8, 1, 1]), inputs, row: row_of("load") }
}

/// Atomics in storage and workgroup memory, from all invocations, also in divergent control flow.
fn atomics(row: &'static OpInfo, element: Element) -> Vec<OpProgram> {
    let ty = element.value_type();
    let (operands, results) = match row.form {
        Form::CompareExchange => ("%old_guess, %value", "%seen, %done"),
        _ => ("%value", "%seen"),
    };
    // One invocation per element, with comparable results; then all on one element, where only the final value is
    // comparable. Float sums are of small integers, which are exact in any order.
    let ordered = ty.is_float() && row.exactness == Exactness::Ordered;
    let added = if ordered { "%small" } else { "%value" };
    let small = match ordered {
        true => format!("    %low = and %i, 7\n    %small = cast %low to {ty}\n"),
        false => String::new(),
    };
    let commutes = !matches!(row.name, "atomic_exchange" | "atomic_compare_exchange");
    let together = if commutes {
        format!("{small}    {0} all[0], {added}\n        {0} shared[0], {added}", row.name)
    } else {
        String::new()
    };
    let parts = [("ELEMENT", element.name()), ("RESULTS", results), ("NAME", row.name), ("OPERANDS", operands)];
    let source = filled(include_str!("atomics.txt"), &parts).replace("TOGETHER", &together);
    let program = read(&source);
    let mut inputs = Inputs::default();
    let values = edge_values(ty);
    let contents = |step: usize| {
        let mut bytes = vec![0; 48 * element.size()];
        for (position, bytes) in bytes.chunks_exact_mut(element.size()).enumerate() {
            element.write(values[position * step % values.len()], bytes);
        }
        bytes
    };
    inputs.bytes(&program, "values", contents(1)).expect("declared above");
    inputs.bytes(&program, "own", contents(5)).expect("declared above");
    inputs.bytes(&program, "all", contents(1)[..element.size()].to_vec()).expect("declared above");
    inputs.bytes(&program, "seen", contents(1)).expect("declared above");
    inputs.bytes(&program, "shared_result", contents(1)).expect("declared above");
    vec![OpProgram { name: format!("{} {element}", row.name), program, grid: Grid::Elements([48, 1, 1]), inputs, row }]
}

/// Replaces placeholders in a text.
fn filled(text: &str, parts: &[(&str, &str)]) -> String {
    parts.iter().fold(text.to_owned(), |text, (name, part)| text.replace(name, part))
}

fn read(source: &str) -> Validated<Program> {
    let module = text::parse(source).unwrap_or_else(|error| panic!("{error}\n{source}"));
    let program = module.programs.into_iter().next().expect("one program was written");
    validate::program(program).unwrap_or_else(|error| panic!("{error}\n{source}"))
}

/// Formats a literal for messages.
pub(crate) fn shown(ty: Type, bits: u64) -> String {
    format!("{} (0x{bits:x})", Literal { ty, bits }.plain())
}

#[cfg(test)]
mod tests {
    use vyre_foundation::ir::ops::Payload;

    use super::*;

    #[test]
    fn every_pure_operation_is_covered() {
        let programs = all(TypeSet::ALL);
        for row in TABLE.iter().filter(|row| row.kind == Kind::Pure) {
            assert!(row.op(Payload::None).is_some(), "{} carries something", row.name);
            assert!(programs.iter().any(|program| std::ptr::eq(program.row, row)), "{} has no program", row.name);
        }
    }
}
