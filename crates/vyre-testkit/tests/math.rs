//! Math library functions give the same bits by evaluation and by expansion.

use vyre_foundation::Validated;
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::{Element, Op, Program, Type};
use vyre_foundation::launch::{Grid, Limits};
use vyre_foundation::math::{FUNCTIONS, FUNCTIONS_F16, FUNCTIONS_F64, Function, Measured};
use vyre_foundation::transform::expand_math;
use vyre_foundation::{text, validate};
use vyre_testkit::{oracle, run};

/// Number of invocations.
const COUNT: u32 = 3000;

#[test]
fn expansions_compute_the_functions() {
    FUNCTIONS.iter().for_each(same_bits);
    FUNCTIONS_F16.iter().for_each(same_bits);
    FUNCTIONS_F64.iter().for_each(same_bits);
}

/// Checks a function at boundaries of binades, and at operands that are measured.
fn same_bits<T: Measured>(function: &Function<T>) {
    let negated = |x: T| T::from_bits(x.to_bits() ^ (1 << (T::TYPE.bits() - 1)));
    let exponents = 2 * T::EXPONENTS[1] as u64 + 2;
    let last = (1 << T::FRACTION) - 1;
    let edges = (0..exponents).step_by((exponents / 256).max(1) as usize);
    let edges = edges.flat_map(|exponent| [0, 1, last].map(|rest| T::from_bits((exponent << T::FRACTION) | rest)));
    let one = T::from_bits((exponents / 2 - 1) << T::FRACTION);
    let mut pairs: Vec<[T; 2]> = edges.flat_map(|x| [[x, negated(x)], [negated(x), one]]).collect();
    let spread = function.seeds() / u64::from(COUNT);
    pairs.extend((pairs.len() as u64..u64::from(COUNT)).map(|k| function.operands(k * spread)));
    let element = Element::from_name(T::TYPE.name()).expect("floats are elements");
    let bytes = |place: usize| -> Vec<u8> {
        let mut bytes = vec![0; pairs.len() * element.size()];
        for (pair, bytes) in pairs.iter().zip(bytes.chunks_exact_mut(element.size())) {
            element.write(pair[place].to_bits(), bytes);
        }
        bytes
    };

    let (name, ty) = (function.op.info().name, T::TYPE);
    let operands = ["%x", "%x, %y"][function.arity - 1];
    // At the end of the body and in a nested block, with results that are used afterwards.
    let source = format!(
        "program p workgroup(64) {{
    read x: [{ty}; {COUNT}]
    read y: [{ty}; {COUNT}]
    write out: [{ty}; {COUNT}]
    write again: [{ty}; {COUNT}]
    %i = global_index
    %x = load x[%i]
    %y = load y[%i]
    %r = {name} {operands}
    store out[%i], %r
    %odd_bit = and %i, 1
    %odd = eq %odd_bit, 1
    if %odd {{
        %s = {name} {operands}
        store again[%i], %s
    }}
}}"
    );
    let program = validate::program(text::parse(&source).unwrap().programs.remove(0)).unwrap();
    let expanded = expand_math(&program, |_| false);
    let mut composed = false;
    expanded.walk(|inst, _| composed |= matches!(expanded.inst(inst).op, Op::Pure(op) if op.is_composed()));
    assert!(!composed, "{name} of {ty} is left");
    let result = |program: &Validated<Program>| {
        let mut inputs = Inputs::default();
        inputs.bytes(program, "x", bytes(0)).unwrap();
        inputs.bytes(program, "y", bytes(1)).unwrap();
        run(&oracle(16), program, Grid::Elements([COUNT, 1, 1]), &mut inputs, Limits::default()).unwrap();
        let floats = |name| -> Vec<Option<u64>> {
            let values = inputs.contents(name).unwrap().chunks_exact(element.size()).map(|bytes| element.read(bytes));
            // All NaNs are equal.
            values.map(|bits| Some(bits).filter(|&bits| !T::from_bits(bits).into().is_nan())).collect()
        };
        [floats("out"), floats("again")]
    };
    assert_eq!(result(&program), result(&expanded), "{name} of {ty}");
}

/// A function of f16 that a device computes in f32 is that function of f32 between two conversions.
#[test]
fn a_kept_function_of_f16_is_converted() {
    let source = "program p workgroup(1) {
    read_write x: [f16; 1]
    %x = load x[0]
    %r = sin %x
    store x[0], %r
}";
    let program = validate::program(text::parse(source).unwrap().programs.remove(0)).unwrap();
    let expanded = expand_math(&program, |_| true);
    let mut functions = Vec::new();
    expanded.walk(|inst, _| {
        let inst = expanded.inst(inst);
        if matches!(inst.op, Op::Pure(_)) {
            functions.push((inst.op.info().name, expanded.ty(inst.results[0])));
        }
    });
    assert_eq!(functions, [("cast", Type::F32), ("sin", Type::F32), ("cast", Type::F16)]);
}
