//! Drafts that propose tokens for a plan to verify, as stated to planners.

use serde::{Deserialize, Serialize};
use shardwright_graph::Graph;
use shardwright_planning::cost::CostTable;
use shardwright_planning::request::{DraftEstimate, Request};
use shardwright_vocabulary::{ChosenSpeculation, EntryKind, Provenance, TimeCost};

use crate::AcceptedSteps;

/// Of 1000 steps of mixed text, the steps in which the lookup finds no earlier occurrence of the
/// last tokens. See [`ACCEPTED`].
const SILENT: u32 = 900;

/// The other 100 steps, by the number of proposed tokens that are right.
///
/// A guess, deliberately low: in these numbers a step of 16 rows gives 1.2 tokens, and a step of 4
/// rows 1.1. A proposal is often wrong at the first token. If it is right, a long quotation often
/// follows: the last number counts steps with 15 or more right tokens.
const ACCEPTED: [u32; 16] = [46, 18, 10, 6, 4, 3, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1];

/// Bytes of a lookup for each token in it. A suffix automaton has at most two states and three
/// transitions for each token.
const LOOKUP_TOKEN_BYTES: u64 = 128;

/// Returns the estimate of the lookup in prompt and reply before it was measured. Returns `None`
/// for a model without states.
pub(crate) fn lookup(graph: &Graph, context: u32) -> Option<DraftEstimate> {
    of(graph, context, (SILENT, ACCEPTED.to_vec()), Provenance::Modelled)
}

/// Returns the estimate of the lookup in prompt and reply from measured steps. Returns `None` for a
/// model without states.
pub(crate) fn measured(graph: &Graph, context: u32, found: AcceptedSteps) -> Option<DraftEstimate> {
    of(graph, context, (found.silent, found.accepted), Provenance::Measured)
}

fn of(
    graph: &Graph,
    context: u32,
    (silent_steps, accepted_steps): (u32, Vec<u32>),
    provenance: Provenance,
) -> Option<DraftEstimate> {
    graph.is_generative().then(|| DraftEstimate {
        name: ChosenSpeculation::LOOKUP.to_owned(),
        silent_steps,
        accepted_steps,
        provenance,
        token_time: TimeCost::ZERO,
        memory_bytes: u64::from(context).saturating_mul(LOOKUP_TOKEN_BYTES),
        row_bytes: row_bytes(graph),
    })
}

/// Times of a draft and of its model, measured together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DraftTimes {
    /// Nanoseconds for one proposed token.
    pub proposed_nanoseconds: u64,
    /// Nanoseconds for one token of the model without drafts.
    pub model_nanoseconds: u64,
    /// Formats of the model's first shard during the measurement.
    pub formats: String,
}

/// A draft as it is stated to a planner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatedDraft {
    pub estimate: DraftEstimate,
    /// The times measured together with the model, or `None` if the estimate's time was not
    /// measured.
    pub times: Option<DraftTimes>,
}

impl StatedDraft {
    /// Returns a draft without any estimate, so that no plan relies on it.
    pub fn unknown(name: String) -> Self {
        let estimate = DraftEstimate {
            name,
            silent_steps: 0,
            accepted_steps: Vec::new(),
            provenance: Provenance::Modelled,
            token_time: TimeCost::ZERO,
            memory_bytes: 0,
            row_bytes: 0,
        };
        StatedDraft { estimate, times: None }
    }

    /// Returns the estimate for a request with these costs. A measured time is scaled, so that it
    /// stays the same fraction of the model's time in the request, whose times may be inaccurate
    /// estimates.
    pub(crate) fn estimate_in(&self, request: &Request) -> DraftEstimate {
        let mut estimate = self.estimate.clone();
        let Some(times) = &self.times else { return estimate };
        if let Some(token) = token_time(request, &times.formats) {
            let scaled = |token: u64| {
                let scaled = u128::from(times.proposed_nanoseconds).saturating_mul(token.into());
                u64::try_from(scaled.div_ceil(u128::from(times.model_nanoseconds.max(1)))).unwrap_or(u64::MAX)
            };
            estimate.token_time = TimeCost {
                low: scaled(token.low),
                microseconds: scaled(token.microseconds),
                high: scaled(token.high),
                provenance: token.provenance,
            };
        }
        estimate
    }
}

impl From<DraftEstimate> for StatedDraft {
    fn from(estimate: DraftEstimate) -> Self {
        StatedDraft { estimate, times: None }
    }
}

/// Returns the time of one token of the whole model on the first target, from the cost table. Uses
/// these formats, or the first formats of the request if these are not offered.
fn token_time(request: &Request, formats: &str) -> Option<TimeCost> {
    let index = request.formats.iter().position(|tuple| tuple.to_string() == formats).unwrap_or(0);
    let index = u32::try_from(index).ok()?;
    let decode = request.entries.iter().filter(|entry| entry.kind == EntryKind::Decode);
    let decode = *decode.min_by_key(|entry| entry.rows)?;
    let kinds = request.model.components.iter().map(|part| part.kinds(0, part.layer_count()));
    let kinds: Vec<u32> = kinds.collect::<Option<Vec<_>>>()?.concat();
    let cost = CostTable::new(request).shard(&kinds, 0, &vec![index; kinds.len()], &[decode]).ok()?;
    Some(cost.entries.first()?.time)
}

/// Returns the bytes of a row: its logits and the values that shards hand over, as 32-bit floats.
pub fn row_bytes(graph: &Graph) -> u64 {
    graph.vocabulary.saturating_add(graph.hidden).saturating_mul(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guess_is_of_a_thousand_steps_and_modest() {
        assert_eq!(SILENT + ACCEPTED.iter().sum::<u32>(), 1000);
        let tokens = |rows: u32| {
            1000 + (0..).zip(ACCEPTED).map(|(right, steps)| steps * right.min(rows - 1)).sum::<u32>()
        };
        assert_eq!([4, 16].map(tokens), [1116, 1213]);
    }
}
