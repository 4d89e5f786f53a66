use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use shardwright_graph::{Encodings, EntryGraph, Graph, Legalised, legalise_encoded};
use shardwright_shims::ShimInstance;
use shardwright_vocabulary::{Device, FormatTuple, Provenance, Watch};

use crate::costs::{Costs, row_key};
use crate::{ArtefactCost, Costing, Judge};

/// Judge that queries a loaded shim about its own device.
#[derive(Clone)]
pub struct ShimJudge {
    instance: ShimInstance,
    device: String,
    /// The shim's description of the device.
    described: Option<Device>,
    costs: Arc<Costs>,
    timed: bool,
    /// Whether an estimate reported operations that differ from nodes.
    counts: Arc<AtomicBool>,
}

impl ShimJudge {
    /// Creates the judge for one device of an open shim.
    pub fn new(instance: ShimInstance, device: impl Into<String>) -> Self {
        let costs = Arc::new(Costs::unkept());
        ShimJudge {
            instance,
            device: device.into(),
            described: None,
            costs,
            timed: true,
            counts: Arc::default(),
        }
    }

    /// Creates the judge for one device of an open shim, with estimates cached in `costs`.
    pub fn keeping(instance: ShimInstance, device: Device, costs: Arc<Costs>) -> Self {
        ShimJudge {
            instance,
            device: device.name.clone(),
            described: Some(device),
            costs,
            timed: true,
            counts: Arc::default(),
        }
    }

    /// Reports rejected estimates in the notices of `costs`.
    #[must_use]
    pub fn reporting_to(mut self, costs: &Costs) -> Self {
        self.costs = Arc::new(costs.beside());
        self
    }

    /// Leaves out times, for a device of this machine that stands in for one of another machine.
    #[must_use]
    pub fn without_times(mut self) -> Self {
        self.timed = false;
        self
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

    fn estimate(&self, graph: &Graph, entry: &EntryGraph, watch: &dyn Watch) -> Option<Costing> {
        let ask =
            || self.instance.estimate_watched(&self.device, entry, &graph.weights, &|| watch.cancelled());
        let key = || row_key(&self.instance, self.described.as_ref(), entry, &graph.weights);
        let row = self.costs.row(&self.instance, key, ask)?;
        if row.operations > 0 {
            self.counts.store(true, Ordering::Relaxed);
        }
        let time = || {
            let weights: BTreeSet<_> = entry.constants().map(|(_, weight)| weight).collect();
            let bytes = weights.into_iter().map(|weight| graph.weight(weight).bytes());
            let bytes = bytes.fold(0, u64::saturating_add);
            self.costs.time(self.instance.shim().name(), &row, entry.nodes.len() as u64, bytes)
        };
        Some(Costing {
            time: if self.timed { time() } else { None },
            uncosted: if self.timed { row.uncosted } else { 0 },
            operations: (row.operations > 0).then_some(row.operations),
            artefact: (row.artefact_bytes > 0).then_some(ArtefactCost {
                bytes: row.artefact_bytes,
                shared_bytes: row.shared_bytes.min(row.artefact_bytes),
                // The shim calculated this without compiling.
                provenance: Provenance::Modelled,
            }),
        })
    }

    /// Queries only shims whose estimates already reported operations that differ from nodes. Other
    /// shims may need seconds to answer.
    fn operations(&self, graph: &Graph, entry: &EntryGraph) -> Option<u64> {
        if !self.counts.load(Ordering::Relaxed) {
            return None;
        }
        self.estimate(graph, entry, &())?.operations
    }

    /// Always accepts: the shim sees the formats in the graphs.
    fn takes(&self, _formats: &FormatTuple) -> Result<(), String> {
        Ok(())
    }

    fn describe(&self) -> String {
        format!("shim `{}` on {}", self.instance.shim().name(), self.device)
    }
}
