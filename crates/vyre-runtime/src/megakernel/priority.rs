//! Priorities of items, with aging, and counters of requeues, aged promotions and the maximum age.
//!
//! Counters do not wrap: an overflow is an error, and [`Accounting::recommend`] advises to drain them before.

use vyre_driver::Error as DriverError;

use crate::Error;

/// Priority class of an item. A waiting item ages by one class for each
/// [`priority_age_threshold`](super::policy::Policy::priority_age_threshold) slices of its tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// The highest priority.
    Urgent,
    /// High priority.
    High,
    /// Normal priority.
    #[default]
    Normal,
    /// The lowest priority.
    Low,
}

impl Priority {
    /// All classes, the most urgent first.
    pub const ALL: [Priority; 4] = [Priority::Urgent, Priority::High, Priority::Normal, Priority::Low];
}

/// Counters of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accounting {
    /// Items of unfinished slices, which wait again.
    pub requeues: u64,
    /// Items that overtook more urgent ones because of their age.
    pub aged_promotions: u64,
    /// Maximum age of an item when it was taken, in slices of its tenant.
    pub oldest_age: u64,
}

/// Advice to drain the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recommendation {
    /// The counters should be drained.
    pub should_drain: bool,
    /// Reason for the advice.
    pub reason: Reason,
    /// The counters.
    pub counters: Accounting,
    /// Requeues that can be counted before an overflow.
    pub requeue_headroom: u64,
    /// Promotions that can be counted before an overflow.
    pub promotion_headroom: u64,
    /// Recommended action.
    pub fix: &'static str,
}

/// Reason to drain the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The counter of requeues is full.
    RequeuesExhausted,
    /// The counter of promotions is full.
    PromotionsExhausted,
    /// The counter of requeues is nearly full.
    RequeuesNearLimit,
    /// The counter of promotions is nearly full.
    PromotionsNearLimit,
    /// There are counts.
    Pending,
    /// All counters are zero.
    Nothing,
}

impl Reason {
    /// Returns true if a session must end its drain to report the counters.
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

/// Headroom up to which a counter is near its limit.
const NEAR: u64 = 1024;

impl Accounting {
    /// Counts requeued items.
    ///
    /// # Errors
    /// The counter would overflow; it is unchanged.
    pub fn requeue(&mut self, items: u64) -> Result<(), Error> {
        Ok(count(&mut self.requeues, items, "requeues")?)
    }

    /// Counts aged promotions.
    ///
    /// # Errors
    /// The counter would overflow; it is unchanged.
    pub fn promote(&mut self, items: u64) -> Result<(), Error> {
        Ok(count(&mut self.aged_promotions, items, "aged promotions")?)
    }

    /// Records the age of a taken item.
    pub fn age(&mut self, slices: u64) {
        self.oldest_age = self.oldest_age.max(slices);
    }

    /// Adds other counters.
    ///
    /// # Errors
    /// A counter would overflow; all are unchanged.
    pub fn add(&mut self, other: &Accounting) -> Result<(), Error> {
        let mut sum = *self;
        sum.age(other.oldest_age);
        sum.requeue(other.requeues)?;
        sum.promote(other.aged_promotions)?;
        *self = sum;
        Ok(())
    }

    /// Advises whether to drain the counters.
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
            Reason::RequeuesExhausted | Reason::PromotionsExhausted => "drain the counters before the next slice",
            Reason::RequeuesNearLimit | Reason::PromotionsNearLimit => "drain the counters now",
            Reason::Pending => "drain the counters when the drain of the queue ends",
            Reason::Nothing => "nothing to do",
        };
        let should_drain = reason != Reason::Nothing;
        Recommendation { should_drain, reason, counters: *self, requeue_headroom, promotion_headroom, fix }
    }
}

/// Checked addition to a counter.
pub(super) fn count(counter: &mut u64, more: u64, field: &'static str) -> Result<(), DriverError> {
    *counter = counter.checked_add(more).ok_or(DriverError::Overflow { field })?;
    Ok(())
}

/// Diffusion of priorities among siblings, which are items enqueued together.
#[derive(Debug, Default)]
pub struct Diffusion {
    values: Vec<f32>,
}

impl Diffusion {
    /// Multiplies each value by (1 − `damping` × its restriction)^`steps`, in O(log `steps`). Returns the values unchanged if the slices
    /// differ in length.
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

    /// Returns the capacity of the scratch memory.
    pub fn capacity(&self) -> usize {
        self.values.capacity()
    }

    /// Returns the effective class of the siblings of each class, from their counts: less urgent ones are pulled towards the most urgent
    /// class present, in proportion to its share. That class is not moved, so no item is delayed.
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
    fn drain_is_recommended_before_counters_overflow() {
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
        assert_eq!(counters.requeues, max, "counters do not wrap");
        assert!(counters.add(&Accounting { requeues: 1, ..Accounting::default() }).is_err());
    }

    #[test]
    fn diffusion_damps_by_restriction() {
        let mut diffusion = Diffusion::default();
        assert_eq!(diffusion.run(&[8.0, 4.0, 2.0], &[1.0, 0.5, 0.0], 0.5, 2), [2.0, 2.25, 2.0]);
        assert_eq!(diffusion.run(&[8.0, 4.0], &[1.0], 0.5, 2), [8.0, 4.0]);
        let capacity = diffusion.capacity();
        diffusion.run(&[1.0; 3], &[1.0; 3], 0.1, 9);
        assert_eq!(diffusion.capacity(), capacity);
    }

    #[test]
    fn urgent_siblings_raise_effective_classes() {
        let mut diffusion = Diffusion::default();
        assert_eq!(diffusion.classes([0, 0, 7, 0])[2], 2.0, "alone");
        let [urgent, _, normal, low] = diffusion.classes([4, 0, 2, 2]);
        assert_eq!(urgent, 0.0);
        assert!(normal < 2.0 && low < 3.0 && normal < low);
        assert!(diffusion.classes([1, 0, 0, 1000])[3] > 2.9, "a small share pulls little");
    }
}
