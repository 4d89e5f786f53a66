use shardwright_graph::target::{FormatTuple, TimeCost};
use shardwright_graph::{EntryGraph, Graph, Legalised, decompose_all};

/// Who answers what a target takes.
///
/// A loaded shim is the real judge. For a target whose shim is not at hand, [`PrimitiveCount`] stands in, and every number that
/// comes from it is *modelled*.
pub trait Judge: Send + Sync {
    /// The graph as the target would take it, or why it does not.
    fn legalise(&self, graph: &Graph, entry: &EntryGraph) -> Result<Legalised, String>;

    /// Time of one run with all rows, and how many operations it leaves out.
    fn estimate(&self, graph: &Graph, entry: &EntryGraph) -> Option<(TimeCost, u64)>;

    /// Whether the target takes these formats, or why not.
    fn takes(&self, formats: &FormatTuple) -> Result<(), String>;

    /// One line on where the answers come from.
    fn describe(&self) -> String;
}

/// Counts every operation in primitives and takes everything: the stand-in for a compiler that is not here.
///
/// Vendors' compilers count what they are sent; without fused operations that is close to the primitive count.
#[derive(Clone, Copy, Debug, Default)]
pub struct PrimitiveCount;

impl Judge for PrimitiveCount {
    fn legalise(&self, _graph: &Graph, entry: &EntryGraph) -> Result<Legalised, String> {
        let reason = "counted in primitives: the target's shim is not at hand".to_owned();
        let decomposed = entry
            .nodes
            .iter()
            .filter(|node| node.op.is_semantic())
            .map(|node| (node.name.clone(), reason.clone()))
            .collect();
        Ok(Legalised { graph: decompose_all(entry), decomposed, by_runtime: Default::default() })
    }

    fn estimate(&self, _graph: &Graph, _entry: &EntryGraph) -> Option<(TimeCost, u64)> {
        None
    }

    fn takes(&self, _formats: &FormatTuple) -> Result<(), String> {
        Ok(())
    }

    fn describe(&self) -> String {
        "operations counted in primitives (modelled): the target's shim is not at hand".to_owned()
    }
}
