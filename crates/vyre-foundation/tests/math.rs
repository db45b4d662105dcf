//! Errors of the math library stay within the documented bounds.

use half::f16;
use vyre_foundation::ir::ops::{Exactness, TABLE};
use vyre_foundation::math::{FUNCTIONS, FUNCTIONS_F16, FUNCTIONS_F64, Function, Measured};

/// Operands of functions of one operand: boundaries and interior of all binades, neighbourhoods of the limits between methods and between
/// kinds of results, and random ones.
fn stratified() -> Vec<f32> {
    let mut magnitudes = Vec::new();
    for exponent in 0..256u32 {
        let binade = exponent << 23;
        magnitudes.extend([0, 1, 2, 3, 0x3f_ffff, 0x40_0000, 0x7f_fffe, 0x7f_ffff].map(|fraction| binade | fraction));
        magnitudes.extend((0..200u32).map(|step| binade | (step.wrapping_mul(0x9e37_79b9) >> 9)));
    }
    let places = [
        0.25,
        0.5,
        0.55,
        std::f32::consts::FRAC_PI_4,
        std::f32::consts::FRAC_1_SQRT_2,
        1.0,
        std::f32::consts::SQRT_2,
        0.414_213_57,
        std::f32::consts::LN_2 / 2.0,
        std::f32::consts::FRAC_PI_2,
        std::f32::consts::PI,
        2.414_213_7,
        20.0,
        40.0,
        87.336_55,
        88.722_84,
        89.416_0,
        90.0,
        92.0,
        103.972_08,
        110.0,
        126.0,
        128.0,
        149.0,
        150.0,
        200.0,
        1_073_741_824.0,
    ];
    for place in places {
        magnitudes.extend((0..2000).map(|step| place.to_bits() - 1000 + step));
    }
    // Multiples of π/2, small and large, and their neighbours.
    for k in 1..2000u32 {
        let near = (f64::from(k * k) * std::f64::consts::FRAC_PI_2) as f32;
        magnitudes.extend([near.to_bits() - 1, near.to_bits(), near.to_bits() + 1]);
    }
    // The f32 that is nearest to a multiple of π/2.
    magnitudes.push(0x6f79_be45);
    magnitudes.extend((0..60_000u32).map(|step| step.wrapping_mul(0x9e37_79b9) & 0x7fff_ffff));
    magnitudes.into_iter().flat_map(|bits| [f32::from_bits(bits), -f32::from_bits(bits)]).collect()
}

/// Measures a function, and describes the operands of the largest error if that exceeds the bound.
fn beyond_bound<T: Measured>(function: &Function<T>, operands: &[[T; 2]]) -> Option<String> {
    let [first, second]: [Vec<T>; 2] = [0, 1].map(|place| operands.iter().map(|pair| pair[place]).collect());
    let mut results = first.clone();
    function.evaluate(&[first.as_slice(), &second][..function.arity], &mut results);
    let errors = operands.iter().zip(&results).map(|(pair, &result)| function.error(&pair[..function.arity], result));
    let (lane, error) = errors.enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).expect("there are operands");
    let shown = |value: T| format!("{:?} (0x{:x})", value.into(), value.to_bits());
    let operands: Vec<String> = operands[lane][..function.arity].iter().copied().map(shown).collect();
    let worst =
        format!("{function:?} of {}: {error} ULP at {} -> {}", T::TYPE, operands.join(", "), shown(results[lane]));
    println!("{worst}");
    (error > function.bound).then_some(worst)
}

#[test]
fn results_are_within_the_bounds() {
    let single: Vec<[f32; 2]> = stratified().into_iter().map(|x| [x, 0.0]).collect();
    let broken = FUNCTIONS.iter().filter_map(|function| match function.arity {
        1 => beyond_bound(function, &single),
        _ => beyond_bound(function, &(0..300_000).map(|seed| function.operands(seed)).collect::<Vec<_>>()),
    });
    let broken: Vec<String> = broken.collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// All operands of functions of one operand, and pairs that differ in all bits.
#[test]
fn results_of_f16_are_within_the_bounds() {
    let broken = FUNCTIONS_F16.iter().filter_map(|function| {
        let seed = |k: u64| if function.arity == 1 { k } else { k.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 };
        let count = function.seeds().min(300_000);
        beyond_bound(function, &(0..count).map(|k| function.operands(seed(k))).collect::<Vec<[f16; 2]>>())
    });
    let broken: Vec<String> = broken.collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn results_of_f64_are_within_the_bounds() {
    let broken = FUNCTIONS_F64.iter().filter_map(|function| {
        beyond_bound(function, &(0..300_000).map(|seed| function.operands(seed)).collect::<Vec<[f64; 2]>>())
    });
    let broken: Vec<String> = broken.collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_op_table_states_the_bounds() {
    let library: Vec<&str> = FUNCTIONS.iter().map(|function| function.op.info().name).collect();
    let composed = TABLE.iter().filter(|row| row.exactness == Exactness::Composed);
    assert_eq!(library, composed.map(|row| row.name).collect::<Vec<_>>());
    for function in FUNCTIONS {
        let (stated, doc) = (format!("At most {} ULP off.", function.bound), function.op.info().doc);
        assert!(doc.ends_with(&stated), "{function:?}: {doc:?} should end with {stated:?}");
    }
}
