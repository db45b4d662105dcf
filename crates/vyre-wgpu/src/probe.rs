//! How the floats of a device behave, found by trying: a small kernel, through the same lowering as everything else, over
//! numbers that are hard to round.

use std::sync::Arc;

use vyre_driver::backend::{Bound, Command, Device, Groups, Launch, Range};
use vyre_driver::{Error, Floats};
use vyre_foundation::ir::entity::Arena;
use vyre_foundation::launch::Limits;
use vyre_foundation::{text, validate};

/// Each operation has its own object, so that a driver cannot see one through another.
const PROGRAM: &str = "program probe workgroup(64) {
    read a: [f32]
    read b: [f32]
    read c: [f32]
    write sum: [f32]
    write product: [f32]
    write quotient: [f32]
    write root: [f32]
    write chain: [f32]
    write back: [f32]
    write other: [f32]
    write fused: [f32]
    write converted: [f32]
    %i = global_index
    %a = load a[%i]
    %b = load b[%i]
    %c = load c[%i]
    %sum = add %a, %b
    store sum[%i], %sum
    %product = mul %a, %b
    store product[%i], %product
    %quotient = div %a, %b
    store quotient[%i], %quotient
    %root = sqrt %a
    store root[%i], %root
    // A driver that contracts does it here.
    %chain = add %product, %c
    store chain[%i], %chain
    // One that reassociates takes these for %b and %a, and thinks that nothing is left of them.
    %there = sub %sum, %a
    %again = add %there, %a
    %back = sub %again, %a
    %gone = sub %back, %there
    %seen = add %gone, %back
    store back[%i], %seen
    %ratio = mul %quotient, %b
    %other = add %ratio, 0.0
    store other[%i], %other
    %fused = fma %a, %b, %c
    store fused[%i], %fused
    %bits = bitcast %a to u32
    %converted = cast %bits to f32
    store converted[%i], %converted
}";

/// What the results should be, in the order of the objects.
fn expected(a: f32, b: f32, c: f32) -> [f32; 9] {
    let there = a + b - a;
    let back = there + a - a;
    let seen = (back - there) + back;
    let other = (a / b) * b + 0.0;
    [a + b, a * b, a / b, a.sqrt(), a * b + c, seen, other, a.mul_add(b, c), a.to_bits() as f32]
}

/// Which of the results is that of fma.
const FUSED: usize = 7;

/// Runs the probe. A device that fails it in some class is still a device: its floats are compared less strictly.
pub(crate) fn floats(device: &dyn Device) -> Result<Floats, Error> {
    let inputs = inputs();
    let program = Arc::new(validate::program(text::parse(PROGRAM)?.programs.remove(0))?);
    let kernel = device.compile(&program)?;
    let bytes = 4 * inputs.len() as u64;
    let mut commands = Vec::new();
    let mut arguments = Arena::default();
    let mut outputs = Vec::new();
    for position in 0..program.memory.len() {
        let range = Range { memory: device.allocate(bytes.next_multiple_of(16))?, start: 0, bytes };
        if position < 3 {
            let data = inputs.iter().flat_map(|input| input[position].to_le_bytes()).collect();
            commands.push(Command::Write(range.clone(), data));
        } else {
            outputs.push(range.clone());
        }
        arguments.push(Some(Bound::Range(range)));
    }
    let groups = Groups::Fixed([(inputs.len() as u32).div_ceil(64), 1, 1]);
    commands.push(Command::Launch(Launch { kernel, groups, arguments, limits: Limits::default() }));
    commands.extend(outputs.into_iter().map(Command::Read));
    let mut ticket = device.submit(commands)?;
    let completion = loop {
        if let Some(completion) = ticket.wait(None) {
            break completion?;
        }
    };

    let mut floats = Floats::EXACT;
    for (position, &[a, b, c]) in inputs.iter().enumerate() {
        for (operation, expected) in expected(a, b, c).into_iter().enumerate() {
            let bytes = &completion.data[operation][4 * position..4 * position + 4];
            let found = f32::from_le_bytes(bytes.try_into().expect("four bytes"));
            if same(found, expected) {
                continue;
            }
            let numbers = [a, b, c, expected];
            // A failure belongs to the first class that could explain it.
            if operation == FUSED && same(found, a * b + c) {
                floats.fused_fma = false;
            } else if numbers.iter().any(|number| !number.is_finite()) {
                floats.infinities_and_nans = false;
            } else if numbers.iter().any(|number| number.is_subnormal()) {
                floats.subnormals = false;
            } else if operation == FUSED {
                floats.fused_fma = false;
            } else {
                floats.exact_f32 = false;
            }
        }
    }
    Ok(floats)
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

/// Triples of numbers: special ones in all combinations, and pseudo-random significands, whose quotients, roots and sums of
/// products are rarely exact.
fn inputs() -> Vec<[f32; 3]> {
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        f32::MAX,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        -f32::from_bits(0x0000_1234),
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    let mut inputs = Vec::new();
    for a in special {
        for b in special {
            inputs.extend([[a, b, 1.0], [a, b, -0.0], [a, 3.0, b]]);
        }
    }
    let mut state = 0x9e37_79b9_u32;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        // Exponents near 0, so that sums round as well.
        f32::from_bits((state & 0x007f_ffff) | ((120 + (state >> 24) % 14) << 23))
    };
    for _ in 0..512 {
        let [a, b] = [random(), random()];
        // Almost cancels the product, so that rounding it first shows.
        inputs.push([a, b, -(a * b)]);
        inputs.push([a, b, random()]);
    }
    inputs
}
