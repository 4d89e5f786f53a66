//! Rewrites an entry graph until a shim accepts it.

use std::collections::{BTreeMap, HashMap};

use shardwright_vocabulary::{Error, ErrorKind, OpKind, Result};

use crate::decompose::decompose_where;
use crate::operations::Rewrite;
use crate::operations::attention::with_mask;
use crate::{
    Attention, Encodings, EntryGraph, EntryNode, Keys, Op, Role, StateId, TensorId, encode, prepared,
};

/// A shim's verdict on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeVerdict {
    /// Whether the shim supports the node as it is.
    pub accepted: bool,
    /// The reason for refusing it. Empty if accepted.
    pub reason: String,
}

impl NodeVerdict {
    /// Creates the verdict that the shim supports the node.
    pub fn accepted() -> Self {
        NodeVerdict { accepted: true, reason: String::new() }
    }

    /// Creates the verdict that the shim does not support the node.
    pub fn refused(reason: impl Into<String>) -> Self {
        NodeVerdict { accepted: false, reason: reason.into() }
    }
}

/// A graph that a shim accepts as a whole, with the changes that were necessary.
#[derive(Clone, Debug)]
pub struct Legalised {
    pub graph: EntryGraph,
    /// Names of semantic nodes that were decomposed, with the shim's reasons.
    pub decomposed: BTreeMap<String, String>,
    /// States whose new rows are outputs that the runtime copies to their slots, with the shim's
    /// reasons.
    pub by_runtime: BTreeMap<StateId, String>,
}

/// A semantic node that a shim refused as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedWhole {
    pub node: String,
    pub op: &'static str,
    /// The shim's reason.
    pub reason: String,
}

/// Returns how far an operation was decomposed when it was refused. Only attention whose products
/// are rounded is refused before its primitives.
fn even(op: &str) -> &'static str {
    if op == OpKind::Attention.name() { "" } else { " even as a primitive" }
}

fn refused_before(within: &[RefusedWhole]) -> String {
    let reported = |RefusedWhole { node, op, reason }: &RefusedWhole| {
        format!("; it is a step of {op} `{node}`, which was refused: {reason}")
    };
    within.iter().rev().map(reported).collect()
}

/// Error for a graph that a shim refuses even in primitives, as far as it has them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LegaliseError<E> {
    /// The shim's check failed.
    #[error("{0}")]
    Check(E),
    /// A primitive was refused, or an operation that is not [replaceable](Op::is_replaceable).
    #[error("{}{op} `{node}` is refused{}: {reason}{}", layer.map(|layer| format!("layer {layer}: ")).unwrap_or_default(), even(op), refused_before(within))]
    Refused {
        node: String,
        op: &'static str,
        layer: Option<u32>,
        /// The shim's reason.
        reason: String,
        /// The operations of which it is a step, outermost first. All of them were refused before
        /// it.
        within: Vec<RefusedWhole>,
    },
    /// The graph cannot be encoded in the formats, the number of verdicts is wrong, or neither the
    /// shim nor the runtime can update a state.
    #[error(transparent)]
    Other(#[from] Error),
}

impl<E> LegaliseError<E> {
    /// Returns advice for the user.
    pub fn help(&self) -> Option<&str> {
        match self {
            LegaliseError::Check(_) => None,
            LegaliseError::Refused { .. } => Some("place the layer on another target, or cut before it"),
            LegaliseError::Other(error) => error.help(),
        }
    }
}

/// Passes the whole entry point to `check`, keeps accepted nodes and decomposes refused ones by one
/// level. Repeats this until no node is refused.
///
/// A refused `StateUpdate` becomes `update: by-runtime`. The following attention, itself one level
/// down, reads `[state ‖ new rows]`, and the new rows become an output. In a key and value pair,
/// the update of the other one is moved too. Each round replaces at least one semantic node by
/// strictly lower ones (`Attention` and `Rope` by `Softcap`, `Softmax`, `Rotate` and primitives,
/// and the first three by primitives). It does not add nodes of the same level, so it terminates.
///
/// An `Attention` whose products are rounded has no decomposition that rounds them. A shim must
/// support it, and its state updates, as a whole.
///
/// A `Rope` with a divisor for each pair, or a magnitude, is decomposed before the shim sees the
/// graph, because the contract has no attributes for them.
pub fn legalise<E>(
    entry: &EntryGraph,
    check: impl FnMut(&EntryGraph) -> Result<Vec<NodeVerdict>, E>,
) -> Result<Legalised, LegaliseError<E>> {
    legalise_shown(entry, |graph| Ok(graph.clone()), check)
}

/// Like [`legalise`], but for an f32 graph that is encoded before each check. The shim sees the
/// encoded graph, which is also the result.
///
/// Encoding follows each round, since the steps of a decomposed operation need their own encodings.
/// A refused conversion at a port is an error, like any refused primitive.
pub fn legalise_encoded<E>(
    entry: &EntryGraph,
    encodings: &Encodings<'_>,
    check: impl FnMut(&EntryGraph) -> Result<Vec<NodeVerdict>, E>,
) -> Result<Legalised, LegaliseError<E>> {
    let entry = prepared(entry, encodings);
    legalise_shown(&entry, |graph| encode(graph, encodings), check)
}

fn legalise_shown<E>(
    entry: &EntryGraph,
    show: impl Fn(&EntryGraph) -> Result<EntryGraph>,
    mut check: impl FnMut(&EntryGraph) -> Result<Vec<NodeVerdict>, E>,
) -> Result<Legalised, LegaliseError<E>> {
    let mut legal =
        Legalised { graph: entry.clone(), decomposed: BTreeMap::new(), by_runtime: BTreeMap::new() };
    let mut ops: HashMap<String, &'static str> = HashMap::new();
    let inexpressible = |node: &EntryNode| matches!(&node.op, Op::Rope(rope) if !rope.is_in_contract());
    for node in legal.graph.nodes.iter().filter(|node| inexpressible(node)) {
        ops.insert(node.name.clone(), node.op.name());
        let reason = "the shim contract has no attribute for divisors or a magnitude of pairs".to_owned();
        legal.decomposed.insert(node.name.clone(), reason);
    }
    if !legal.decomposed.is_empty() {
        legal.graph = decompose_where(&legal.graph, |_, node| inexpressible(node));
    }
    loop {
        let shown = show(&legal.graph)?;
        let verdicts = check(&shown).map_err(LegaliseError::Check)?;
        if verdicts.len() != shown.nodes.len() {
            let (nodes, found) = (shown.nodes.len(), verdicts.len());
            let error =
                Error::new(ErrorKind::Shim, format!("expected {nodes} verdicts of the shim, got {found}"))
                    .with_help("a shim returns one verdict per node, in the order of the nodes");
            return Err(error.into());
        }
        let place: HashMap<&str, usize> =
            legal.graph.nodes.iter().enumerate().map(|(index, node)| (node.name.as_str(), index)).collect();
        let mut refused = HashMap::new();
        let mut updates = Vec::new();
        for (node, verdict) in shown.nodes.iter().zip(&verdicts) {
            if verdict.accepted {
                continue;
            }
            // The graph passed to the shim differs only by conversions.
            match place.get(node.name.as_str()) {
                Some(&index) if node.op == Op::StateUpdate => updates.push((index, verdict.reason.clone())),
                Some(&index) if node.op.is_replaceable() => {
                    refused.insert(index, verdict.reason.clone());
                }
                _ => {
                    let products = match &node.op {
                        Op::Attention(attention) => format!("; {}", in_16_bits(attention)),
                        _ => String::new(),
                    };
                    let whole = |(name, reason): (&String, &String)| {
                        let step = node.name.strip_prefix(name.as_str())?.starts_with('.');
                        let op = ops.get(name).copied().unwrap_or("operation");
                        step.then(|| RefusedWhole { node: name.clone(), op, reason: reason.clone() })
                    };
                    return Err(LegaliseError::Refused {
                        node: node.name.clone(),
                        op: node.op.name(),
                        layer: node.layer,
                        reason: format!("{}{products}", verdict.reason),
                        within: legal.decomposed.iter().filter_map(whole).collect(),
                    });
                }
            }
        }
        if updates.is_empty() && refused.is_empty() {
            legal.graph = shown;
            return Ok(legal);
        }
        ops.extend(legal.graph.nodes.iter().map(|node| (node.name.clone(), node.op.name())));
        // State updates are handled first, while the attention that reads them is still semantic.
        if updates.is_empty() {
            for (&index, reason) in &refused {
                legal.decomposed.insert(legal.graph.nodes[index].name.clone(), reason.clone());
            }
            legal.graph = decompose_where(&legal.graph, |index, _| refused.contains_key(&index));
        } else {
            let moved = moved_updates(&legal.graph, &updates)?;
            legal.graph = update_by_runtime(&legal.graph, &moved, &mut legal.decomposed);
            legal.by_runtime.extend(moved.into_values());
        }
    }
}

/// Returns the refused updates and the updates that must be moved with them, since an attention
/// reads keys and values with the same slots. The result maps the output tensor to the state and
/// the reason.
fn moved_updates(
    graph: &EntryGraph,
    refused: &[(usize, String)],
) -> Result<HashMap<TensorId, (StateId, String)>> {
    let updates: HashMap<TensorId, usize> = graph
        .nodes
        .iter()
        .enumerate()
        .filter(|(_, node)| node.op == Op::StateUpdate)
        .map(|(index, node)| (node.output, index))
        .collect();
    let mut moved = HashMap::new();
    // The last one is taken first. The first obstacle of the graph is reported.
    let mut waiting: Vec<_> = refused.iter().rev().cloned().collect();
    while let Some((index, reason)) = waiting.pop() {
        let update = &graph.nodes[index];
        let obstacle = |obstacle: String| {
            let message = format!("the state update is refused ({reason}), and {obstacle}");
            Error::new(ErrorKind::Shim, message).at(format!("node `{}`", update.name)).with_help(
                "a shim that leaves state updates to the runtime refuses them when it first sees the graph",
            )
        };
        let Some(state) = written_state(graph, update.output) else {
            return Err(obstacle("its result is not output as a state".to_owned()));
        };
        if moved.insert(update.output, (state, reason.clone())).is_some() {
            continue;
        }
        for reader in graph.nodes.iter().filter(|node| node.inputs.contains(&update.output)) {
            let Op::Attention(attention) = &reader.op else {
                return Err(obstacle(format!("`{}` ({}) reads its result", reader.name, reader.op.name())));
            };
            if attention.products.is_rounded() {
                let what = in_16_bits(attention);
                return Err(obstacle(format!("`{}` reads its result, but {what}", reader.name)));
            }
            for other in &reader.inputs[1..3] {
                match updates.get(other) {
                    Some(_) if moved.contains_key(other) => {}
                    Some(&other) => {
                        waiting.push((other, format!("`{}` is written by the runtime", update.name)));
                    }
                    None => {
                        let tensor = &graph.tensor(*other).name;
                        return Err(obstacle(format!(
                            "`{}` reads it with `{tensor}` from elsewhere",
                            reader.name
                        )));
                    }
                }
            }
        }
    }
    Ok(moved)
}

/// Returns the reason why an attention with rounded products is not decomposed.
fn in_16_bits(attention: &Attention) -> String {
    format!("attention in {} has no decomposition", attention.products)
}

fn written_state(graph: &EntryGraph, output: TensorId) -> Option<StateId> {
    graph.outputs.iter().find_map(|(tensor, role)| match role {
        Role::State { state } if *tensor == output => Some(*state),
        _ => None,
    })
}

/// Removes these updates. Attention over them reads `[state ‖ new rows]`, and the new rows become
/// outputs.
fn update_by_runtime(
    entry: &EntryGraph,
    moved: &HashMap<TensorId, (StateId, String)>,
    decomposed: &mut BTreeMap<String, String>,
) -> EntryGraph {
    let mut rewrite = Rewrite::new(entry);
    // state-update output → (state before, new rows)
    let mut replaced: HashMap<TensorId, (TensorId, TensorId)> = HashMap::new();
    let mut joined: HashMap<TensorId, TensorId> = HashMap::new();
    for node in &entry.nodes {
        if moved.contains_key(&node.output) {
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
                        *input = *joined.entry(*input).or_insert_with(|| rewrite.joined(before, rows));
                    }
                }
                with_mask(&mut rewrite, &inputs, attention, Keys::StateAndRows { capacity });
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
