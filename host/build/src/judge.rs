use shardwright_graph::{Encodings, EntryGraph, Graph, Legalised, decompose_all, encode, prepared};
use shardwright_shims::Watch;
use shardwright_vocabulary::{FormatTuple, Provenance, TimeCost};

/// A judge's estimate of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costing {
    /// Time, excluding uncosted operations; `None` if every operation is uncosted.
    pub time: Option<TimeCost>,
    /// Operations that the time leaves out.
    pub uncosted: u64,
    /// Operations passed to the compiler, if that is not one per node.
    pub operations: Option<u64>,
    /// The entry's share of an artefact; `None` if unknown.
    pub artefact: Option<ArtefactCost>,
}

/// An entry point's share of an artefact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArtefactCost {
    /// Bytes of an artefact of this entry point alone, weights included.
    pub bytes: u64,
    /// Of those, the bytes an artefact stores once for all its entry points.
    pub shared_bytes: u64,
    /// Where the numbers come from.
    pub provenance: Provenance,
}

/// Answers which graphs and formats a target supports, and what they cost.
///
/// A loaded shim is the real judge. For a target whose shim is not available, [`PrimitiveCount`]
/// stands in, and all its numbers are *modelled*.
pub trait Judge: Send + Sync {
    /// The graph as the target would accept it in `encodings`, or why it is refused. `graph` is the
    /// model the entry belongs to, with its constants in the formats in question.
    fn legalise(
        &self,
        graph: &Graph,
        entry: &EntryGraph,
        encodings: &Encodings<'_>,
    ) -> Result<Legalised, String>;

    /// Cost of one run with all rows. It may take seconds, and ends early if `watch` is cancelled.
    fn estimate(&self, graph: &Graph, entry: &EntryGraph, watch: &dyn Watch) -> Option<Costing>;

    /// Operations the target's compiler receives for a legalised entry, if that is not one per
    /// node: the number that a limit on operations counts.
    fn operations(&self, graph: &Graph, entry: &EntryGraph) -> Option<u64> {
        let _ = (graph, entry);
        None
    }

    /// Whether the target supports these formats, or why not.
    fn takes(&self, formats: &FormatTuple) -> Result<(), String>;

    /// One line on the source of the answers.
    fn describe(&self) -> String;
}

/// Counts every operation in primitives and accepts everything: the stand-in for a compiler that is
/// not available.
///
/// Vendors' compilers count the operations they receive; without fused operations that is close to
/// the primitive count.
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
    /// Accepts the tuples known to be supported and refuses all others, known refusals with their
    /// reason. If `known` is empty, everything is accepted.
    pub fn knowing(known: Vec<(FormatTuple, Result<(), String>)>) -> Self {
        PrimitiveCount { known, ..PrimitiveCount::default() }
    }

    /// The same, with the reason why the compiler does not answer.
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
        let primitive = decompose_all(&prepared(entry, encodings));
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
