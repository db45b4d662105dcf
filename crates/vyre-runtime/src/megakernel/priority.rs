//! How urgent items are, and what is known of those that wait: how many were put back, how many came before more urgent ones because
//! they had waited for longer, and how old the oldest was.
//!
//! Counters do not overflow: who adds too much is told, and whoever owns them is told before that to take what was counted and to begin anew.

use vyre_driver::Error as DriverError;

use crate::Error;

/// How urgent an item is. What waits becomes more urgent: a class for each
/// [`priority_age_threshold`](super::policy::Policy::priority_age_threshold) slices of its tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// Before all others.
    Urgent,
    /// Before most.
    High,
    /// What is not said to be anything else.
    #[default]
    Normal,
    /// When there is nothing else to do, or after a while.
    Low,
}

impl Priority {
    /// All of them, the most urgent first.
    pub const ALL: [Priority; 4] = [Priority::Urgent, Priority::High, Priority::Normal, Priority::Low];
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accounting {
    /// Items that were taken from the queue and had to wait again, because the slice that they were in was not finished.
    pub requeues: u64,
    /// Items that were taken before more urgent ones, because they had waited for longer.
    pub aged_promotions: u64,
    /// How many slices of its tenant the oldest item had waited when it was taken.
    pub oldest_age: u64,
}

/// Whether the counters should be taken, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recommendation {
    /// Whether they should.
    pub should_drain: bool,
    /// Why.
    pub reason: Reason,
    /// The counters.
    pub counters: Accounting,
    /// How many requeues can still be counted.
    pub requeue_headroom: u64,
    /// How many promotions can still be counted.
    pub promotion_headroom: u64,
    /// What to do.
    pub fix: &'static str,
}

/// Why counters should be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No more requeues can be counted.
    RequeuesExhausted,
    /// No more promotions can be counted.
    PromotionsExhausted,
    /// Few more requeues can be counted.
    RequeuesNearLimit,
    /// Few more promotions can be counted.
    PromotionsNearLimit,
    /// Something was counted.
    Pending,
    /// There is nothing to take.
    Nothing,
}

impl Reason {
    /// Whether counters cannot wait for the end of a drain: a session ends the drain, whose report takes them.
    pub(super) fn is_pressing(self) -> bool {
        match self {
            Reason::RequeuesExhausted
            | Reason::PromotionsExhausted
            | Reason::RequeuesNearLimit
            | Reason::PromotionsNearLimit => true,
            Reason::Pending | Reason::Nothing => false,
        }
    }
}

/// A counter with no more than this left is near its limit.
const NEAR: u64 = 1024;

impl Accounting {
    /// Counts items that have to wait again.
    ///
    /// # Errors
    /// There are too many to be counted, and nothing was.
    pub fn requeue(&mut self, items: u64) -> Result<(), Error> {
        Ok(count(&mut self.requeues, items, "requeues")?)
    }

    /// Counts items that came before more urgent ones.
    ///
    /// # Errors
    /// There are too many to be counted, and nothing was.
    pub fn promote(&mut self, items: u64) -> Result<(), Error> {
        Ok(count(&mut self.aged_promotions, items, "aged promotions")?)
    }

    /// Notes how long an item has waited.
    pub fn age(&mut self, slices: u64) {
        self.oldest_age = self.oldest_age.max(slices);
    }

    /// Adds what was counted elsewhere.
    ///
    /// # Errors
    /// There is too much to be counted, and nothing was.
    pub fn add(&mut self, other: &Accounting) -> Result<(), Error> {
        let mut sum = *self;
        sum.age(other.oldest_age);
        sum.requeue(other.requeues)?;
        sum.promote(other.aged_promotions)?;
        *self = sum;
        Ok(())
    }

    /// Says whether to take what was counted.
    pub fn recommend(&self) -> Recommendation {
        let [requeue_headroom, promotion_headroom] =
            [self.requeues, self.aged_promotions].map(|count| u64::MAX - count);
        let reason = match (requeue_headroom, promotion_headroom) {
            (0, _) => Reason::RequeuesExhausted,
            (_, 0) => Reason::PromotionsExhausted,
            (..=NEAR, _) => Reason::RequeuesNearLimit,
            (_, ..=NEAR) => Reason::PromotionsNearLimit,
            _ if *self != Accounting::default() => Reason::Pending,
            _ => Reason::Nothing,
        };
        let fix = match reason {
            Reason::RequeuesExhausted | Reason::PromotionsExhausted => {
                "take the counters before anything else is counted"
            }
            Reason::RequeuesNearLimit | Reason::PromotionsNearLimit => "take the counters now",
            Reason::Pending => "take the counters when the drain ends",
            Reason::Nothing => "nothing to do",
        };
        let should_drain = reason != Reason::Nothing;
        Recommendation { should_drain, reason, counters: *self, requeue_headroom, promotion_headroom, fix }
    }
}

/// Adds to a counter that must not overflow.
pub(super) fn count(counter: &mut u64, more: u64, field: &'static str) -> Result<(), DriverError> {
    *counter = counter.checked_add(more).ok_or(DriverError::Overflow { field })?;
    Ok(())
}

/// Diffusion of priorities among siblings.
#[derive(Debug, Default)]
pub struct Diffusion {
    values: Vec<f32>,
}

impl Diffusion {
    /// Repeats `steps` times: subtracts from each value `damping` times its restriction times itself. That multiplies a value by a factor
    /// in each step, so that the power of the factor takes time logarithmic in `steps`. Returns the values unchanged if there are not as
    /// many restrictions as values.
    pub fn run(&mut self, stalk: &[f32], restriction: &[f32], damping: f32, steps: u32) -> &[f32] {
        self.values.clear();
        self.values.extend(stalk);
        if stalk.len() == restriction.len() {
            for (value, restriction) in self.values.iter_mut().zip(restriction) {
                let factor = 1.0 - f64::from(damping) * f64::from(*restriction);
                *value = (f64::from(*value) * power(factor, steps)) as f32;
            }
        }
        &self.values
    }

    /// How many values it has room for.
    pub fn capacity(&self) -> usize {
        self.values.capacity()
    }

    /// The classes of siblings, of which there are so many each, when those with more urgent siblings have come closer to the most urgent.
    /// The larger the part of those is, the closer. They themselves are not moved, so nobody waits for longer for the sake of others.
    pub(super) fn classes(&mut self, items: [usize; Priority::ALL.len()]) -> [f32; Priority::ALL.len()] {
        let first = items.iter().position(|items| *items > 0).unwrap_or(0);
        let pull = items[first] as f32 / items.iter().sum::<usize>().max(1) as f32;
        let restriction = [pull; Priority::ALL.len()];
        let first = first as f32;
        let distances: [f32; Priority::ALL.len()] = std::array::from_fn(|class| class as f32 - first);
        let closer = self.run(&distances, &restriction, 0.5, 2);
        std::array::from_fn(|class| first + closer[class])
    }
}

/// Exponentiation by squaring.
fn power(mut base: f64, mut exponent: u32) -> f64 {
    let mut power = 1.0;
    while exponent > 0 {
        if exponent % 2 == 1 {
            power *= base;
        }
        base *= base;
        exponent /= 2;
    }
    power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_taken_before_they_are_full() {
        let max = u64::MAX;
        let reason = |requeues, aged_promotions, oldest_age| {
            let counters = Accounting { requeues, aged_promotions, oldest_age };
            let answer = counters.recommend();
            assert_eq!((answer.requeue_headroom, answer.promotion_headroom), (max - requeues, max - aged_promotions));
            assert_eq!((answer.counters, answer.should_drain), (counters, answer.reason != Reason::Nothing));
            answer.reason
        };
        assert_eq!(reason(0, 0, 0), Reason::Nothing);
        assert_eq!(reason(0, 0, 1), Reason::Pending);
        assert_eq!(reason(max - 1025, 1, 0), Reason::Pending);
        assert_eq!(reason(max - 1024, max - 1024, 0), Reason::RequeuesNearLimit);
        assert_eq!(reason(0, max - 1024, 0), Reason::PromotionsNearLimit);
        assert_eq!(reason(max - 1, max, 0), Reason::PromotionsExhausted);
        assert_eq!(reason(max, max, 0), Reason::RequeuesExhausted);

        let mut counters = Accounting { requeues: max - 2, ..Accounting::default() };
        counters.requeue(2).unwrap();
        assert!(matches!(counters.requeue(1), Err(Error::Driver(DriverError::Overflow { field: "requeues" }))));
        assert_eq!(counters.requeues, max, "nothing wraps");
        assert!(counters.add(&Accounting { requeues: 1, ..Accounting::default() }).is_err());
    }

    #[test]
    fn diffusion_damps_by_restriction() {
        let mut diffusion = Diffusion::default();
        assert_eq!(diffusion.run(&[8.0, 4.0, 2.0], &[1.0, 0.5, 0.0], 0.5, 2), [2.0, 2.25, 2.0]);
        assert_eq!(diffusion.run(&[8.0, 4.0], &[1.0], 0.5, 2), [8.0, 4.0]);
        let room = diffusion.capacity();
        diffusion.run(&[1.0; 3], &[1.0; 3], 0.1, 9);
        assert_eq!(diffusion.capacity(), room);
    }

    #[test]
    fn siblings_of_urgent_items_come_closer() {
        let mut diffusion = Diffusion::default();
        assert_eq!(diffusion.classes([0, 0, 7, 0])[2], 2.0, "alone");
        let [urgent, _, normal, low] = diffusion.classes([4, 0, 2, 2]);
        assert_eq!(urgent, 0.0);
        assert!(normal < 2.0 && low < 3.0 && normal < low);
        assert!(diffusion.classes([1, 0, 0, 1000])[3] > 2.9, "one does not pull a thousand");
    }
}
