//! Which weights of a model are rounded with compensation.

use shardwright_build::{PlanOptions, WeightRounding};
use shardwright_graph::{Graph, Weight};
use shardwright_quantisation::Compensated;

/// Largest number of weights that are rounded with compensation by default. For Gemma 3 270M (268
/// million weights), moments, layers in 4 bits and a run of the plan needed 271 s of processor
/// time.
const COMPENSATED_WEIGHTS: u64 = 512_000_000;

/// Returns the number of weights of a model, without gathered tables.
pub(super) fn weights_of(graph: &Graph) -> u64 {
    let count = |weight: &Weight| weight.shape.iter().copied().fold(1, u64::saturating_mul);
    graph.weights.iter().map(count).fold(0, u64::saturating_add)
}

/// Returns which matrices of a model are rounded with compensation, or `None` if there are none.
pub(super) fn compensated(options: &PlanOptions, graph: &Graph) -> Option<Compensated> {
    match options.recorded.rounding {
        WeightRounding::Nearest => None,
        WeightRounding::Compensated => Some(Compensated::All),
        WeightRounding::Usual => {
            let suits = graph.is_generative() && weights_of(graph) <= COMPENSATED_WEIGHTS;
            suits.then_some(Compensated::FourBits)
        }
    }
}
