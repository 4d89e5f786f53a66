use shardwright_graph::{
    Encodings, EntryGraph, Graph, Legalised, decompose_all, dynamic_activations, encode,
};
use shardwright_shims::Watch;
use shardwright_vocabulary::{FormatTuple, Provenance, TimeCost};

/// What a judge knows of the cost of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costing {
    /// Time, without what is not costed; none if nothing is.
    pub time: Option<TimeCost>,
    /// Operations that the time leaves out.
    pub uncosted: u64,
    /// Operations the compiler is handed, where that is not one to each node.
    pub operations: Option<u64>,
    /// What the entry takes of an artefact; none if that is not known.
    pub artefact: Option<ArtefactCost>,
}

/// What an entry point takes of an artefact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArtefactCost {
    /// Bytes of an artefact of this entry point alone, weights included.
    pub bytes: u64,
    /// Of those, what an artefact holds once for all its entry points.
    pub shared_bytes: u64,
    /// Where that comes from.
    pub provenance: Provenance,
}

/// Who answers what a target takes.
///
/// A loaded shim is the real judge. For a target whose shim is not at hand, [`PrimitiveCount`]
/// stands in, and every number that comes from it is *modelled*.
pub trait Judge: Send + Sync {
    /// The graph as the target would take it in `encodings`, or why it does not. `graph` is the
    /// model the entry is of, its constants in the formats asked about.
    fn legalise(
        &self,
        graph: &Graph,
        entry: &EntryGraph,
        encodings: &Encodings<'_>,
    ) -> Result<Legalised, String>;

    /// What one run with all rows costs. It may take seconds, and ends early where `watch` says so.
    fn estimate(&self, graph: &Graph, entry: &EntryGraph, watch: &dyn Watch) -> Option<Costing>;

    /// What the target's compiler is handed for a legalised entry, where that is not one operation
    /// to each node: what a limit of operations counts.
    fn operations(&self, graph: &Graph, entry: &EntryGraph) -> Option<u64> {
        let _ = (graph, entry);
        None
    }

    /// Whether the target takes these formats, or why not.
    fn takes(&self, formats: &FormatTuple) -> Result<(), String>;

    /// One line on where the answers come from.
    fn describe(&self) -> String;
}

/// Counts every operation in primitives and takes everything: the stand-in for a compiler that is
/// not here.
///
/// Vendors' compilers count what they are sent; without fused operations that is close to the
/// primitive count.
#[derive(Clone, Debug)]
pub struct PrimitiveCount {
    known: Vec<(FormatTuple, Result<(), String>)>,
    /// Why the compiler itself does not answer.
    why: String,
}

impl Default for PrimitiveCount {
    fn default() -> Self {
        PrimitiveCount { known: Vec::new(), why: "the target's shim is not at hand".to_owned() }
    }
}

impl PrimitiveCount {
    /// One that takes what is known to be taken and refuses everything else, what is known to be
    /// refused with the reason. Where nothing is known it takes everything.
    pub fn knowing(known: Vec<(FormatTuple, Result<(), String>)>) -> Self {
        PrimitiveCount { known, ..PrimitiveCount::default() }
    }

    /// The same, which says that this is why the compiler does not answer.
    #[must_use]
    pub fn since(self, why: &str) -> Self {
        PrimitiveCount { why: why.to_owned(), ..self }
    }
}

impl Judge for PrimitiveCount {
    fn legalise(
        &self,
        _graph: &Graph,
        entry: &EntryGraph,
        encodings: &Encodings<'_>,
    ) -> Result<Legalised, String> {
        let reason = format!("counted in primitives: {}", self.why);
        let decomposed = entry
            .nodes
            .iter()
            .filter(|node| node.op.is_semantic())
            .map(|node| (node.name.clone(), reason.clone()))
            .collect();
        let primitive = decompose_all(&dynamic_activations(entry, encodings.activations));
        let graph = encode(&primitive, encodings).map_err(|error| error.to_string())?;
        Ok(Legalised { graph, decomposed, by_runtime: Default::default() })
    }

    fn estimate(&self, _graph: &Graph, _entry: &EntryGraph, _watch: &dyn Watch) -> Option<Costing> {
        None
    }

    fn takes(&self, formats: &FormatTuple) -> Result<(), String> {
        if self.known.is_empty() {
            return Ok(());
        }
        let unknown = || Err(format!("nothing says that the chip takes {formats}"));
        self.known.iter().find(|(known, _)| known == formats).map_or_else(unknown, |(_, taken)| taken.clone())
    }

    fn describe(&self) -> String {
        format!(
            "operations counted in primitives, artefacts with one set of weights each (modelled): {}",
            self.why
        )
    }
}
