//! The math library: how far its results are from the true ones, and that its expansion computes the same.

use vyre_foundation::ir::ops::{Exactness, TABLE};
use vyre_foundation::math::{FUNCTIONS, Function};

/// Operands of functions of one: the edges of all binades and numbers within, numbers around the places where functions
/// change their method or their result changes its kind, and random ones.
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

#[test]
fn results_are_within_the_bounds() {
    let pairs: Vec<[f32; 2]> = (0..300_000).map(Function::sample).collect();
    let (first, second): (Vec<f32>, Vec<f32>) = pairs.iter().map(|[x, y]| (*x, *y)).unzip();
    let single = stratified();
    let mut broken = Vec::new();
    for function in FUNCTIONS {
        let operands = if function.arity == 1 { vec![single.as_slice()] } else { vec![first.as_slice(), &second] };
        let mut results = vec![0.0; operands[0].len()];
        function.evaluate(&operands, &mut results);
        let mut worst = (0.0, Vec::new(), 0.0);
        for (lane, &result) in results.iter().enumerate() {
            let operands: Vec<f32> = operands.iter().map(|list| list[lane]).collect();
            let error = function.error(&operands, result);
            if error > worst.0 {
                worst = (error, operands, result);
            }
        }
        let (error, operands, result) = worst;
        println!("{function:?}: {error} ULP at {operands:?} -> {result:e}");
        if error > function.bound {
            broken.push(format!("{function:?}: {error} ULP at {operands:?} -> {result:e}"));
        }
    }
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
