//! What proposes tokens for a plan to verify, where nobody measured it.

use shardwright_graph::Graph;
use shardwright_planning::request::DraftEstimate;
use shardwright_vocabulary::{ChosenSpeculation, Provenance};

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

/// Logits of a row, and what shards hand over of it, as 32-bit floats.
fn row_bytes(graph: &Graph) -> u64 {
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
