//! Comparisons that all searches of one call share, so that every combination of goals ends within
//! the fuel of a sandbox.

use std::cell::Cell;
use std::rc::Rc;

/// Comparisons of one call of a planner. A sandbox allows two billion units of fuel per call, and a
/// comparison needs up to six hundred with the work around it.
const COMPARISONS: u64 = 2_000_000;

/// Part of the rest that a single search may use.
const SHARE: u64 = 4;

/// Comparisons that a search may use even if the budget is spent.
const LEAST: u64 = COMPARISONS / 100;

/// The rest of a call's comparisons. A clone shares it.
#[derive(Debug, Clone)]
pub struct Budget(Rc<Cell<u64>>);

impl Default for Budget {
    /// Creates the budget of one call of a planner.
    fn default() -> Self {
        Self(Rc::new(Cell::new(COMPARISONS)))
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
    /// Returns the comparisons that the next search may use.
    pub(super) fn share(&self) -> u64 {
        (self.0.get() / SHARE).max(LEAST)
    }

    /// Takes a third of the rest for searches that may make the others unnecessary.
    pub(super) fn third(&self) -> Budget {
        let third = self.0.get() / 3;
        self.spend(third);
        Self(Rc::new(Cell::new(third)))
    }

    /// Records comparisons, or other work of the same cost.
    pub(super) fn spend(&self, comparisons: u64) {
        self.0.set(self.0.get().saturating_sub(comparisons));
    }

    /// Returns whether so little is left that alternatives to a known plan are no longer tried.
    pub(super) fn is_spent(&self) -> bool {
        self.0.get() < COMPARISONS / 8
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
        let (rest, third) = (budget.0.get(), budget.third());
        third.spend(u64::MAX);
        assert_eq!((third.0.get(), budget.0.get()), (0, rest - rest / 3));
        budget.spend(u64::MAX);
        assert_eq!(clone.share(), LEAST);
    }
}
