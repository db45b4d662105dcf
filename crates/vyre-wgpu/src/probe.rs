//! Driver probe: detects driver bugs by a small kernel, lowered like any other, with operands for which rounding errors show
//! and a loop whose counter wraps around.

use vyre_driver::backend::{Command, Device, Groups, Launch, Range};
use vyre_driver::{Error, Floats};
use vyre_foundation::launch::{Argument, Limits};
use vyre_foundation::{text, validate};

use crate::device::bind;

/// Stores results of each invocation for its three numbers. Uses few objects, because some devices limit them.
const PROGRAM: &str = include_str!("programs/probe.vyre");

/// Results of the probe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Findings {
    pub(crate) floats: Floats,
    /// Loops whose counter wraps around take the trips they should.
    pub(crate) wrapping_counters: bool,
}

/// Expected results, in the order in which they are stored.
fn expected(a: f32, b: f32, c: f32) -> [f32; RESULTS] {
    let there = a + b - a;
    let back = there + a - a;
    let seen = (back - there) + back;
    let other = (a / b) * b + 0.0;
    [a + b, a * b, a / b, a.sqrt(), a * b + c, seen, other, a.mul_add(b, c), a.to_bits() as f32, 6.0]
}

/// Number of results of an invocation.
const RESULTS: usize = 10;

/// Position of the `fma` result.
const FUSED: usize = 7;

/// Position of the trip count.
const TRIPS: usize = 9;

/// Runs the probe. A device that fails for a class of operations is still usable: its floats are compared less
/// strictly.
pub(crate) fn run(device: &dyn Device) -> Result<Findings, Error> {
    let inputs = inputs();
    let program = validate::program(text::parse(PROGRAM)?.programs.remove(0))?;
    let kernel = device.compile(&program)?;
    let range = |numbers: usize| -> Result<Range, Error> {
        let bytes = 4 * (numbers * inputs.len()) as u64;
        Ok(Range { memory: device.allocate(bytes.next_multiple_of(16))?, start: 0, bytes })
    };
    let (given, found) = (range(3)?, range(RESULTS)?);
    let data = inputs.iter().flatten().flat_map(|number| number.to_le_bytes()).collect();
    let arguments = bind(&program, [&given, &found].map(|range| Argument::Buffer(range.clone())))?;
    let groups = Groups::Fixed([(inputs.len() as u32).div_ceil(64), 1, 1]);
    let launch = Command::Launch(Launch { kernel, groups, arguments, limits: Limits::default() });
    let mut ticket = device.submit(vec![Command::Write(given, data), launch, Command::Read(found, 4)])?;
    let completion = loop {
        if let Some(completion) = ticket.wait(None) {
            break completion?;
        }
    };

    let (mut floats, mut wrapping_counters) = (Floats::EXACT, true);
    for (position, &[a, b, c]) in inputs.iter().enumerate() {
        for (operation, expected) in expected(a, b, c).into_iter().enumerate() {
            let at = 4 * (RESULTS * position + operation);
            let bytes = &completion.data[0].bytes()[at..at + 4];
            let found = f32::from_le_bytes(bytes.try_into().expect("four bytes"));
            if same(found, expected) {
                continue;
            }
            let numbers = [a, b, c, expected];
            // Attributes a failure to the first class that could explain it.
            if operation == TRIPS {
                wrapping_counters = false;
            } else if operation == FUSED && same(found, a * b + c) {
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
    Ok(Findings { floats, wrapping_counters })
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

/// Triples of numbers: special values in all combinations, and pseudo-random significands whose quotients, roots and
/// sums of products are rarely exact.
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
        // Nearly cancels the product, which exposes an intermediate rounding.
        inputs.push([a, b, -(a * b)]);
        inputs.push([a, b, random()]);
    }
    inputs
}
