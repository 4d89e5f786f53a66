use shardwright_graph::target::{ActivationFormat, FormatTuple, StateFormat, TimeCost, WeightFormat};
use shardwright_graph::{EntryGraph, Graph, Legalised, legalise};
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
    fn legalise(&self, graph: &Graph, entry: &EntryGraph) -> Result<Legalised, String> {
        legalise(entry, |shown| self.instance.check(&self.device, shown, &graph.weights))
            .map_err(|error| error.to_string())
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

    /// Float formats only: a graph of quantised weights is judged node by node, and none can be made yet.
    fn takes(&self, formats: &FormatTuple) -> Result<(), String> {
        let float = |format| matches!(format, WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16);
        let plain = float(formats.weights)
            && formats.roles.iter().all(|role| float(role.format))
            && formats.activations == ActivationFormat::F32
            && formats.states == StateFormat::F32;
        if plain {
            Ok(())
        } else {
            Err(format!("{formats} needs quantised weights, which cannot be made yet"))
        }
    }

    fn describe(&self) -> String {
        format!("shim `{}` on {}", self.instance.shim().name(), self.device)
    }
}
