//! Subgroup operations, evaluated lane by lane.

use vyre_foundation::ir::Type;
use vyre_foundation::ir::ops::{Combined, Combiner, Eval, Exchange, Subgroup};

/// Largest supported subgroup size.
pub(crate) const MAX_SUBGROUP_SIZE: usize = 16;

/// One value for each lane.
pub(crate) type Lanes = [u64; MAX_SUBGROUP_SIZE];

/// Evaluates a subgroup operation: returns the first two results of each present lane. The other results of a ballot
/// are 0.
///
/// `given` holds the first operand of each lane, `None` for lanes that have ended; `second` the second operand.
pub(crate) fn exchange(op: Subgroup, ty: Type, given: &[Option<u64>], second: &Lanes) -> [Lanes; 2] {
    let size = given.len();
    let first = match op.exchange() {
        Exchange::Ballot => {
            [given.iter().enumerate().fold(0, |word, (lane, bits)| word | bits.unwrap_or(0) << lane); MAX_SUBGROUP_SIZE]
        }
        Exchange::Shuffle(mode) => std::array::from_fn(|lane| {
            let source = mode.source(lane as u32, second[lane] as u32).map_or(usize::MAX, |source| source as usize);
            given.get(source).copied().flatten().unwrap_or(0)
        }),
        Exchange::First => [given.iter().copied().flatten().next().unwrap_or(0); MAX_SUBGROUP_SIZE],
        Exchange::Compact => {
            let kept = given.iter().zip(second).filter_map(|(bits, &keep)| bits.filter(|_| keep != 0));
            let (mut front, mut count) = ([0; MAX_SUBGROUP_SIZE], 0);
            for (to, bits) in front.iter_mut().zip(kept) {
                *to = bits;
                count += 1;
            }
            return [front, [count; MAX_SUBGROUP_SIZE]];
        }
        Exchange::Combine(op, whose) => {
            let nothing = op.identity(ty);
            let lanes = std::array::from_fn(|lane| given.get(lane).copied().flatten().unwrap_or(nothing));
            let combine = op.evaluator(ty);
            match whose {
                Combined::All => [tree(combine, lanes, size); MAX_SUBGROUP_SIZE],
                Combined::Inclusive => scan(combine, lanes, size),
                Combined::Exclusive => {
                    let first = if op == Combiner::Add { 0 } else { nothing };
                    shifted(first, scan(combine, lanes, size))
                }
            }
        }
    };
    [first, [0; MAX_SUBGROUP_SIZE]]
}

/// Tree reduction.
fn tree(combine: Eval, mut lanes: Lanes, size: usize) -> u64 {
    let mut half = size / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = combine(&[lanes[lane], lanes[lane + half]]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Inclusive scan in log₂(size) steps.
fn scan(combine: Eval, mut lanes: Lanes, size: usize) -> Lanes {
    let mut distance = 1;
    while distance < size {
        for lane in (distance..size).rev() {
            lanes[lane] = combine(&[lanes[lane - distance], lanes[lane]]);
        }
        distance *= 2;
    }
    lanes
}

fn shifted(first: u64, lanes: Lanes) -> Lanes {
    std::array::from_fn(|lane| if lane == 0 { first } else { lanes[lane - 1] })
}
