//! Relaxations that prove without a search that no plan of a stage meets two goals at once.

use super::goals::{GoalBounds, Stage};
use super::tables::{self, Tables};
use super::{Problem, Settings, Trade, entry_sets, mix};
use crate::{Refusal, Request};

/// Amounts of each unit by which relaxations decide whether a plan may meet two goals at once. This
/// needs no search.
#[derive(Clone)]
pub(super) struct Reach {
    /// Bytes, nanoseconds and loss of each unit, in all formats and on all targets.
    amounts: Vec<Vec<[u64; 3]>>,
    stage: Stage,
}

impl Reach {
    /// Returns the amounts of a stage for each set of entry points.
    pub(super) fn new(request: &Request, settings: &Settings, stage: Stage) -> Result<Vec<Self>, Refusal> {
        let of = |entries| {
            let problem = Problem::new(request, settings, entries, tables::unmixed(stage))?;
            Ok(Self { amounts: mix::amounts(&problem), stage })
        };
        entry_sets(request)?.into_iter().map(of).collect()
    }

    /// Returns these amounts, with those of `other` for the units that move.
    pub(super) fn moving(&self, other: &Self, moves: &[bool]) -> Self {
        let pairs = self.amounts.iter().zip(&other.amounts).zip(moves);
        let amounts = pairs.map(|((own, other), moves)| if *moves { other } else { own }.clone());
        Self { amounts: amounts.collect(), ..*self }
    }

    /// Returns whether a plan with these tables may meet each two of the goals for bytes, for the
    /// time of a token, and for losses.
    pub(super) fn allows(&self, request: &Request, tables: &Tables) -> bool {
        tables.rest_of(request).is_some_and(|rest| {
            let bounds = GoalBounds::new(&rest.goals, self.stage);
            self.keeps(&bounds, bounds.quality.unwrap_or(u64::MAX))
        })
    }

    /// Returns whether a plan with these tables may meet the goals for bytes and for the time of a
    /// token.
    pub(super) fn fits(&self, request: &Request, tables: &Tables) -> bool {
        let bounds = GoalBounds::new(&tables.at_most_rest_of(request).goals, self.stage);
        let is_small = request.goals.size_bytes().is_none_or(|most| tables.bytes() <= most);
        is_small && self.keeps(&bounds, u64::MAX)
    }

    /// Returns whether each two of the bounds may be kept, with this bound on the loss.
    fn keeps(&self, bounds: &GoalBounds, loss: u64) -> bool {
        let most = [Trade::BytesForLoss.bound(bounds), bounds.token.unwrap_or(u64::MAX), loss];
        [(0, 2), (1, 2), (0, 1)].into_iter().all(|(spent, value)| {
            let least = self.least((spent, most[spent]), value);
            least.is_some_and(|least| least <= most[value])
        })
    }

    /// Returns a lower bound on one amount with at most `most` of another.
    fn least(&self, (spent, most): (usize, u64), value: usize) -> Option<u64> {
        let candidate = |own: &[u64; 3]| mix::Candidate { formats: 0, spent: own[spent], value: own[value] };
        let units = self.amounts.iter().map(|unit| unit.iter().map(candidate).collect());
        mix::least_within(&units.collect::<Vec<_>>(), most)
    }
}
