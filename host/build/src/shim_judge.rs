use shardwright_graph::target::{FormatTuple, TimeCost};
use shardwright_graph::{Encodings, EntryGraph, Graph, Legalised, legalise_encoded};
use shardwright_shims::ShimInstance;

use crate::Judge;

/// A loaded shim answers for its own device.
#[derive(Clone)]
pub struct ShimJudge {
    instance: ShimInstance,
    device: String,
}

impl ShimJudge {
    /// The judge for one device of an open shim.
    pub fn new(instance: ShimInstance, device: impl Into<String>) -> Self {
        ShimJudge { instance, device: device.into() }
    }
}

impl Judge for ShimJudge {
    fn legalise(
        &self,
        graph: &Graph,
        entry: &EntryGraph,
        encodings: &Encodings<'_>,
    ) -> Result<Legalised, String> {
        let check = |shown: &EntryGraph| self.instance.check(&self.device, shown, &graph.weights);
        legalise_encoded(entry, encodings, check).map_err(|error| error.to_string())
    }

    fn estimate(&self, graph: &Graph, entry: &EntryGraph) -> Option<(TimeCost, u64)> {
        match self.instance.estimate(&self.device, entry, &graph.weights) {
            Ok(Some(estimate)) => Some((
                TimeCost { microseconds: estimate.time_microseconds, provenance: estimate.provenance },
                estimate.uncosted.len() as u64,
            )),
            Ok(None) => None,
            Err(error) => {
                // A plan can be made without times; that one is missing is said.
                tracing::warn!(shim = self.instance.name(), %error, "no estimate");
                None
            }
        }
    }

    /// Formats are not asked about as such: the shim sees them in the graphs.
    fn takes(&self, _formats: &FormatTuple) -> Result<(), String> {
        Ok(())
    }

    fn describe(&self) -> String {
        format!("shim `{}` on {}", self.instance.shim().name(), self.device)
    }
}
