//! Math library functions give the same bits by evaluation and by expansion.

use vyre_foundation::Validated;
use vyre_foundation::inputs::Inputs;
use vyre_foundation::ir::{Op, Program};
use vyre_foundation::launch::{Grid, Limits};
use vyre_foundation::math::{FUNCTIONS, Function};
use vyre_foundation::transform::expand_math;
use vyre_foundation::{text, validate};
use vyre_testkit::{oracle, run};

#[test]
fn expansions_compute_the_functions() {
    const COUNT: u32 = 3000;
    // Edges of all binades, and pairs for functions of two operands.
    let edges = (0..256u32).flat_map(|exponent| [0, 1, 0x7f_ffff].map(|rest| f32::from_bits((exponent << 23) | rest)));
    let mut pairs: Vec<[f32; 2]> = edges.flat_map(|x| [[x, -x], [-x, 1.0]]).collect();
    pairs.extend((0..u64::from(COUNT) - pairs.len() as u64).map(Function::sample));
    let bytes = |place: usize| pairs.iter().flat_map(|pair| pair[place].to_le_bytes()).collect::<Vec<u8>>();

    for function in FUNCTIONS {
        let name = function.op.info().name;
        let operands = ["%x", "%x, %y"][function.arity - 1];
        // In the middle of a block and in a nested one, with results that are used.
        let source = format!(
            "program p workgroup(64) {{
    read x: [f32; {COUNT}]
    read y: [f32; {COUNT}]
    write out: [f32; {COUNT}]
    write again: [f32; {COUNT}]
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
        assert!(!composed, "{name} is left");
        let result = |program: &Validated<Program>| {
            let mut inputs = Inputs::default();
            inputs.bytes(program, "x", bytes(0)).unwrap();
            inputs.bytes(program, "y", bytes(1)).unwrap();
            run(&oracle(16), program, Grid::Elements([COUNT, 1, 1]), &mut inputs, Limits::default()).unwrap();
            let floats = |name| -> Vec<u32> {
                let words = inputs.contents(name).unwrap().chunks_exact(4);
                let words = words.map(|word| f32::from_le_bytes(word.try_into().unwrap()));
                // NaNs are not distinguished.
                words.map(|value| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }).collect()
            };
            [floats("out"), floats("again")]
        };
        assert_eq!(result(&program), result(&expanded), "{name}");
    }
}
