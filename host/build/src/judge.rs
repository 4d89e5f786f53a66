use shardwright_graph::{Encodings, EntryGraph, Graph, Legalised, decompose_all, encode, prepared};
use shardwright_vocabulary::{FormatTuple, Provenance, TimeCost, Watch};

/// A judge's estimate of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costing {
    /// Time as the judge estimates it, excluding uncosted operations. [`TimeModel`] adds the error
    /// of such estimates. `None` if every operation is uncosted.
    ///
    /// [`TimeModel`]: crate::TimeModel
    pub time: Option<TimeCost>,
    /// Number of operations that the time leaves out.
    pub uncosted: u64,
    /// Number of operations passed to the compiler, if that is not one per node.
    pub operations: Option<u64>,
    /// The entry's share of an artefact, or `None` if unknown.
    pub artefact: Option<ArtefactCost>,
}

/// An entry point's share of an artefact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArtefactCost {
    /// Bytes of an artefact of this entry point alone, weights included.
    pub bytes: u64,
    /// The part of `bytes` that an artefact stores once for all its entry points.
    pub shared_bytes: u64,
    /// Where the numbers come from.
    pub provenance: Provenance,
}

/// Decides which graphs and formats a target supports, and estimates their costs.
///
/// A loaded shim is the real judge. [`PrimitiveCount`] replaces a shim that is not available, and
/// all its numbers are *modelled*.
pub trait Judge: Send + Sync {
    /// Returns the graph as the target would accept it in `encodings`, or the reason of a refusal.
    /// `graph` is the model that the entry belongs to, with its constants in the formats in
    /// question.
    fn legalise(
        &self,
        graph: &Graph,
        entry: &EntryGraph,
        encodings: &Encodings<'_>,
    ) -> Result<Legalised, String>;

    /// Estimates the cost of one run with all rows. This may need seconds, and ends early if
    /// `watch` is cancelled.
    fn estimate(&self, graph: &Graph, entry: &EntryGraph, watch: &dyn Watch) -> Option<Costing>;

    /// Returns the number of operations that the target's compiler receives for a legalised entry,
    /// if that is not one per node. A limit on operations counts this number.
    fn operations(&self, graph: &Graph, entry: &EntryGraph) -> Option<u64> {
        let _ = (graph, entry);
        None
    }

    /// Checks whether the target supports these formats. The error is the reason if it does not.
    fn takes(&self, formats: &FormatTuple) -> Result<(), String>;

    /// Describes the source of the answers in one line.
    fn describe(&self) -> String;
}

/// Replaces a compiler that is not available: counts every operation in primitives and accepts
/// everything.
///
/// Vendors' compilers count the operations they receive. Without fused operations that is close to
/// the primitive count.
#[derive(Clone, Debug)]
pub struct PrimitiveCount {
    known: Vec<(FormatTuple, Result<(), String>)>,
    /// Why the compiler itself does not answer.
    why: String,
}

impl Default for PrimitiveCount {
    fn default() -> Self {
        PrimitiveCount { known: Vec::new(), why: "the target's shim was not found".to_owned() }
    }
}

impl PrimitiveCount {
    /// Creates a judge that accepts the tuples known to be supported and refuses all others, known
    /// refusals with their reason. If `known` is empty, it accepts everything.
    pub fn knowing(known: Vec<(FormatTuple, Result<(), String>)>) -> Self {
        PrimitiveCount { known, ..PrimitiveCount::default() }
    }

    /// Sets the reason why the compiler does not answer.
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
        if encodings.attention.is_rounded() {
            return Err(format!("attention in {} has no primitives: {}", encodings.attention, self.why));
        }
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
        let unknown = || Err(format!("the profile does not list {formats} as supported"));
        self.known.iter().find(|(known, _)| known == formats).map_or_else(unknown, |(_, taken)| taken.clone())
    }

    fn describe(&self) -> String {
        format!(
            "operations counted in primitives, artefacts with one set of weights each (modelled): {}",
            self.why
        )
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use shardwright_graph::{ComponentKind, EntryOptions, EntryPoint};
    use shardwright_models::Checkpoint;
    use shardwright_vocabulary::{EntryKind, EntryName};

    use super::*;

    #[test]
    fn attention_in_16_bits_is_not_counted_in_primitives() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen3");
        let graph = Checkpoint::open(path).unwrap().into_graph();
        let decode = EntryPoint::of(EntryName { kind: EntryKind::Decode, rows: 1, context: 16 }, 1);
        let entry = graph.entry(ComponentKind::Decoder, 0..1, decode, EntryOptions::default());
        let entry = entry.unwrap().unwrap();
        let judged = |formats: &str| {
            let tuple: FormatTuple = formats.parse().unwrap();
            PrimitiveCount::default().legalise(&graph, &entry, &Encodings::counting(&tuple))
        };
        assert!(judged("f32").is_ok());
        let error = judged("f32/attention-bf16").unwrap_err();
        assert!(error.starts_with("attention in bf16 has no primitives: "), "{error}");
    }
}
