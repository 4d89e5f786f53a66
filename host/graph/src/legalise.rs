//! Making an entry graph acceptable to a shim.

use std::collections::{BTreeMap, HashMap};

use crate::decompose::{Rewrite, decompose_where};
use crate::{EntryGraph, EntryNode, Keys, Op, Role, StateId, TensorId};

/// What a shim says of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it takes the node as it stands.
    pub accepted: bool,
    /// Why not; empty when accepted.
    pub reason: String,
}

impl Verdict {
    /// It takes the node.
    pub fn accepted() -> Self {
        Verdict { accepted: true, reason: String::new() }
    }

    /// It does not.
    pub fn refused(reason: impl Into<String>) -> Self {
        Verdict { accepted: false, reason: reason.into() }
    }
}

/// A graph that a shim takes whole, with what was changed to get there.
#[derive(Clone, Debug)]
pub struct Legalised {
    /// The graph.
    pub graph: EntryGraph,
    /// Semantic nodes that were decomposed, with the shim's reason.
    pub decomposed: BTreeMap<String, String>,
    /// States whose new rows leave as outputs for the runtime to place, with the shim's reason.
    pub by_runtime: BTreeMap<StateId, String>,
}

/// A graph that a shim does not take even in primitives.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LegaliseError<E> {
    /// The shim could not answer.
    #[error("{0}")]
    Check(E),
    /// The shim answered for another number of nodes than it was asked about.
    #[error("the shim gave {given} verdicts for {asked} nodes")]
    VerdictCount {
        /// Nodes shown.
        asked: usize,
        /// Verdicts given.
        given: usize,
    },
    /// A primitive was refused.
    #[error("{}{op} `{node}` is refused even as a primitive: {reason}", layer.map(|layer| format!("layer {layer}: ")).unwrap_or_default())]
    Refused {
        /// The node.
        node: String,
        /// Its operation.
        op: &'static str,
        /// Its layer.
        layer: Option<u32>,
        /// The shim's reason.
        reason: String,
    },
}

/// Shows the whole entry point to `check`, keeps what is taken, decomposes the rest, and asks again until nothing is refused.
///
/// A refused `StateUpdate` becomes `update: by-runtime`: the attention that follows it reads `[state ‖ new rows]` in
/// primitives and the new rows leave as an output. Each round removes at least one semantic node, so it ends.
pub fn legalise<E>(
    entry: &EntryGraph,
    mut check: impl FnMut(&EntryGraph) -> Result<Vec<Verdict>, E>,
) -> Result<Legalised, LegaliseError<E>> {
    let mut legal =
        Legalised { graph: entry.clone(), decomposed: BTreeMap::new(), by_runtime: BTreeMap::new() };
    loop {
        let verdicts = check(&legal.graph).map_err(LegaliseError::Check)?;
        if verdicts.len() != legal.graph.nodes.len() {
            return Err(LegaliseError::VerdictCount {
                asked: legal.graph.nodes.len(),
                given: verdicts.len(),
            });
        }
        let mut refused = HashMap::new();
        let mut updates = Vec::new();
        for (index, (node, verdict)) in legal.graph.nodes.iter().zip(&verdicts).enumerate() {
            if verdict.accepted {
                continue;
            }
            if node.op == Op::StateUpdate {
                updates.push((index, verdict.reason.clone()));
            } else if node.op.is_semantic() {
                refused.insert(index, verdict.reason.clone());
            } else {
                return Err(LegaliseError::Refused {
                    node: node.name.clone(),
                    op: node.op.name(),
                    layer: node.layer,
                    reason: verdict.reason.clone(),
                });
            }
        }
        if updates.is_empty() && refused.is_empty() {
            return Ok(legal);
        }
        // State updates first, while the attention that reads them is still semantic.
        if updates.is_empty() {
            for (&index, reason) in &refused {
                legal.decomposed.insert(legal.graph.nodes[index].name.clone(), reason.clone());
            }
            legal.graph = decompose_where(&legal.graph, |index, _| refused.contains_key(&index));
        } else {
            for (index, reason) in updates {
                let output = legal.graph.nodes[index].output;
                if let Some(state) = written_state(&legal.graph, output) {
                    legal.by_runtime.insert(state, reason);
                }
            }
            legal.graph = update_by_runtime(&legal.graph, &legal.by_runtime, &mut legal.decomposed);
        }
    }
}

fn written_state(graph: &EntryGraph, output: TensorId) -> Option<StateId> {
    graph.outputs.iter().find_map(|(tensor, role)| match role {
        Role::State { state } if *tensor == output => Some(*state),
        _ => None,
    })
}

/// Replaces updates of the given states: attention over them reads `[state ‖ new rows]`, the new rows become outputs.
fn update_by_runtime(
    entry: &EntryGraph,
    states: &BTreeMap<StateId, String>,
    decomposed: &mut BTreeMap<String, String>,
) -> EntryGraph {
    let mut rewrite = Rewrite::new(entry);
    // state-update output → (state before, new rows)
    let mut replaced: HashMap<TensorId, (TensorId, TensorId)> = HashMap::new();
    let mut joined: HashMap<TensorId, TensorId> = HashMap::new();
    for node in &entry.nodes {
        let by_runtime = node.op == Op::StateUpdate
            && written_state(entry, node.output).is_some_and(|state| states.contains_key(&state));
        if by_runtime {
            replaced.insert(node.output, (node.inputs[0], node.inputs[1]));
            continue;
        }
        match &node.op {
            Op::Attention(attention) if replaced.contains_key(&node.inputs[1]) => {
                rewrite.replacing(node);
                let capacity = entry.tensor(node.inputs[1]).shape[0];
                let mut inputs = node.inputs.clone();
                for input in &mut inputs[1..3] {
                    if let Some(&(before, rows)) = replaced.get(input) {
                        *input = *joined
                            .entry(*input)
                            .or_insert_with(|| rewrite.step(Op::Concat { axis: 0 }, &[before, rows]));
                    }
                }
                rewrite.attention(&inputs, attention, Keys::StateAndRows { capacity });
                rewrite.deliver(node.output);
                decomposed.insert(node.name.clone(), "its keys are written by the runtime".to_owned());
            }
            _ => rewrite.graph.nodes.push(EntryNode::clone(node)),
        }
    }
    for (tensor, role) in &mut rewrite.graph.outputs {
        if let (Some(&(_, rows)), Role::State { state }) = (replaced.get(tensor), &*role) {
            *role = Role::StateRows { state: *state };
            *tensor = rows;
        }
    }
    rewrite.finish()
}
