//! Comparisons that all searches of one call share, so that every combination of goals ends within
//! the fuel of a sandbox.

use std::cell::Cell;
use std::rc::Rc;

/// Comparisons of one call of a planner, or of each call that [`goals_last`](crate::learn::goals_last)
/// makes. A sandbox allows two billion units of fuel per call, ten times as many for shipped
/// planners, and a comparison needs up to six hundred with the work around it.
const COMPARISONS: u64 = 1_500_000;

/// Part of the rest that a single search may use.
const SHARE: u64 = 4;

/// Comparisons that a search may use even if the budget is spent.
const LEAST: u64 = COMPARISONS / 100;

/// Comparisons of all searches together beyond their shares, while no plan is known.
const EXTRA: u64 = COMPARISONS / 8;

/// The rest of the comparisons of a call, or of a part of its searches. A clone shares it.
#[derive(Debug, Clone)]
pub struct Budget {
    rest: Rc<Cell<u64>>,
    /// Comparisons at the beginning.
    whole: u64,
    /// The rest of [`EXTRA`], which all parts share.
    extra: Rc<Cell<u64>>,
}

impl Default for Budget {
    /// Creates the budget of one call of a planner.
    fn default() -> Self {
        Self::of(COMPARISONS, Rc::new(Cell::new(EXTRA)))
    }
}

/// All budgets are equal: they are not a preference, and settings stay equal while they are spent.
impl PartialEq for Budget {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Budget {}

impl Budget {
    fn of(comparisons: u64, extra: Rc<Cell<u64>>) -> Self {
        Self { rest: Rc::new(Cell::new(comparisons)), whole: comparisons, extra }
    }

    /// Returns the comparisons that the next search may use.
    pub(super) fn share(&self) -> u64 {
        self.share_of(SHARE)
    }

    /// Returns the comparisons that the next of this many searches may use.
    pub(super) fn share_of(&self, searches: u64) -> u64 {
        (self.rest.get() / searches).max(LEAST)
    }

    /// Takes one of `parts` equal parts of the rest as a budget of its own, so that later searches
    /// have enough. Return its unused comparisons with [`take_back`](Self::take_back).
    #[must_use]
    pub fn part(&self, parts: u64) -> Budget {
        let part = self.rest.get() / parts.max(1);
        self.spend(part);
        Self::of(part, self.extra.clone())
    }

    /// Adds the unused comparisons of a part.
    pub fn take_back(&self, part: &Budget) {
        self.rest.set(self.rest.get().saturating_add(part.rest.replace(0)));
    }

    /// Records comparisons, or other work of the same cost.
    pub(super) fn spend(&self, comparisons: u64) {
        self.rest.set(self.rest.get().saturating_sub(comparisons));
    }

    /// Returns the comparisons that a search may use beyond its share if no plan is known.
    pub(super) fn extra(&self) -> u64 {
        self.extra.get()
    }

    /// Records comparisons beyond a share.
    pub(super) fn spend_extra(&self, comparisons: u64) {
        self.extra.set(self.extra.get().saturating_sub(comparisons));
    }

    /// Returns whether so little is left that alternatives to a known plan are no longer tried.
    pub(super) fn is_spent(&self) -> bool {
        self.rest.get() < self.whole.div_ceil(8).max(LEAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_share_a_budget_and_each_has_a_part_of_the_rest() {
        let budget = Budget::default();
        let clone = budget.clone();
        assert_eq!((budget.share(), budget.is_spent()), (COMPARISONS / SHARE, false));
        for _ in 0..8 {
            clone.spend(clone.share());
        }
        assert!(budget.is_spent() && budget.share() < COMPARISONS / 30);
        budget.spend(u64::MAX);
        assert_eq!(clone.share(), LEAST);
    }

    #[test]
    fn a_part_is_spent_by_itself_and_its_rest_is_taken_back() {
        let budget = Budget::default();
        let third = budget.part(3);
        let rest = COMPARISONS - COMPARISONS / 3;
        assert_eq!((third.rest.get(), budget.rest.get()), (COMPARISONS / 3, rest));
        third.spend(COMPARISONS / 6);
        assert!(!third.is_spent() && !budget.is_spent());
        budget.take_back(&third);
        assert_eq!(budget.rest.get(), COMPARISONS - COMPARISONS / 6);
        assert!(third.is_spent());
        let other = budget.part(1);
        other.spend(u64::MAX);
        budget.take_back(&other);
        assert_eq!(budget.rest.get(), 0);
        other.spend_extra(1);
        assert_eq!(budget.extra(), EXTRA - 1);
        budget.spend_extra(u64::MAX);
        assert_eq!(third.extra(), 0);
    }
}
