//! What proposes tokens for a plan to verify, as planners are told.

use serde::{Deserialize, Serialize};
use shardwright_graph::Graph;
use shardwright_planning::cost::CostTable;
use shardwright_planning::request::{DraftEstimate, Request};
use shardwright_vocabulary::{ChosenSpeculation, EntryKind, Provenance};

use crate::AcceptedSteps;

/// Of a thousand steps of mixed text, those in which nothing is found that the last tokens followed
/// before; see [`ACCEPTED`].
const SILENT: u32 = 900;

/// The other hundred, by how many of the tokens found are right. A guess, and meant to be a low
/// one: a step of 16 rows gives 1.2 tokens in these numbers, one of 4 rows 1.1. Where something is
/// found it is often wrong at once, and where it is not, a long quotation goes on: the last number
/// is of those with fifteen and more.
const ACCEPTED: [u32; 16] = [46, 18, 10, 6, 4, 3, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1];

/// Bytes of a lookup for each token that it knows: a suffix automaton has at most two states and
/// three transitions for each.
const LOOKUP_TOKEN_BYTES: u64 = 128;

/// The lookup in prompt and reply, as far as anything is known of it before it was measured. `None`
/// for a model without states.
pub(crate) fn lookup(graph: &Graph, context: u32) -> Option<DraftEstimate> {
    of(graph, context, (SILENT, ACCEPTED.to_vec()), Provenance::Modelled)
}

/// The same as it was measured.
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
        token_microseconds: 0,
        memory_bytes: u64::from(context).saturating_mul(LOOKUP_TOKEN_BYTES),
        row_bytes: row_bytes(graph),
    })
}

/// How long a draft takes beside the model, measured together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DraftTimes {
    /// Nanoseconds of a proposed token.
    pub proposed_nanoseconds: u64,
    /// Nanoseconds of a token of the model without drafts.
    pub model_nanoseconds: u64,
    /// Formats of the model's first shard then.
    pub formats: String,
}

/// A draft as it is stated to a planner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatedDraft {
    /// What is stated.
    pub estimate: DraftEstimate,
    /// What its time was measured beside; `None` where the time is no measured one.
    pub times: Option<DraftTimes>,
}

impl StatedDraft {
    /// A draft that nothing is known of, so that no plan counts on it.
    pub fn unknown(name: String) -> Self {
        let estimate = DraftEstimate {
            name,
            silent_steps: 0,
            accepted_steps: Vec::new(),
            provenance: Provenance::Modelled,
            token_microseconds: 0,
            memory_bytes: 0,
            row_bytes: 0,
        };
        StatedDraft { estimate, times: None }
    }

    /// What is stated in a request with these costs: a time that was measured beside the model is
    /// the same part of the model's there, whose times may be estimates that are off.
    pub(crate) fn estimate_in(&self, request: &Request) -> DraftEstimate {
        let mut estimate = self.estimate.clone();
        let Some(times) = &self.times else { return estimate };
        if let Some(token) = token_microseconds(request, &times.formats) {
            let scaled = u128::from(times.proposed_nanoseconds).saturating_mul(token.into());
            let scaled = scaled.div_ceil(u128::from(times.model_nanoseconds.max(1)));
            estimate.token_microseconds = u64::try_from(scaled).unwrap_or(u64::MAX);
        }
        estimate
    }
}

impl From<DraftEstimate> for StatedDraft {
    fn from(estimate: DraftEstimate) -> Self {
        StatedDraft { estimate, times: None }
    }
}

/// Microseconds of a token of the whole model on the first target, by the cost table: in these
/// formats, or the first ones where they are not offered.
fn token_microseconds(request: &Request, formats: &str) -> Option<u64> {
    let index = request.formats.iter().position(|tuple| tuple.to_string() == formats).unwrap_or(0);
    let index = u32::try_from(index).ok()?;
    let decode = request.entries.iter().filter(|entry| entry.kind == EntryKind::Decode);
    let decode = *decode.min_by_key(|entry| entry.rows)?;
    let kinds = request.model.components.iter().map(|part| part.kinds(0, part.layer_count()));
    let kinds: Vec<u32> = kinds.collect::<Option<Vec<_>>>()?.concat();
    let cost = CostTable::new(request).shard(&kinds, 0, &vec![index; kinds.len()], &[decode]).ok()?;
    cost.entries.first()?.time.map(|time| time.microseconds)
}

/// Logits of a row, and what shards hand over of it, as 32-bit floats.
pub(crate) fn row_bytes(graph: &Graph) -> u64 {
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
