use std::ops::Range;

use shardwright_vocabulary::{ComponentKind, DType, Error, Pass, Result};

use crate::{Asset, Op, Role, State, StateId, Weight, WeightId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A fixed number.
    Fixed(u64),
    /// Rows of the entry point.
    Rows,
    /// The rows multiplied by this factor.
    RowsTimes(u32),
    /// The rows divided by this number, of which the row count is a multiple.
    RowsOver(u32),
    /// Capacity of a state.
    Capacity(StateId),
}

/// Index of a value within its component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// Index of a node within its component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// Source of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum ValueSource {
    /// The single output of a node.
    Node(NodeId),
    /// An input from outside.
    Input(Role),
    /// The slice of the per-layer inputs that belongs to one layer, `[R, P]`.
    PerLayer(u32),
    /// A constant of the checkpoint.
    Constant(WeightId),
    /// A state before this step.
    State(StateId),
}

/// A tensor with a symbolic shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Unique within the component.
    pub name: String,
    /// Extents, outermost first.
    pub shape: Vec<Dim>,
    pub dtype: DType,
    /// Source of the value.
    pub source: ValueSource,
}

/// An operation with its operands and its single output.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Name, unique within the component, such as `layer.3.q`.
    pub name: String,
    /// The operation. A [`Op::Reshape`] over rows has its shape in `reshape` instead, since the
    /// shape is symbolic.
    pub op: Op,
    /// For reshapes: the symbolic target shape.
    pub reshape: Option<Vec<Dim>>,
    pub inputs: Vec<ValueId>,
    pub output: ValueId,
    /// The layer of the node, in components with layers.
    pub layer: Option<u32>,
    /// For [`Op::StateUpdate`]: the state it writes.
    pub writes: Option<StateId>,
}

/// A dataflow graph in topological order with a symbolic row count.
#[derive(Clone, Debug)]
pub struct Component {
    /// The part of the model.
    pub kind: ComponentKind,
    /// Number of layers. 0 if the component has none.
    pub layers: u32,
    pub values: Vec<Value>,
    /// Operations in an order in which they can run.
    pub nodes: Vec<Node>,
    /// The residual stream at each layer boundary, `layers + 1` values. Empty without layers.
    pub cuts: Vec<ValueId>,
    /// Results of the whole component, except states.
    pub outputs: Vec<(ValueId, Role)>,
    /// Values that can be added as outputs for verification, by tap name. Layer outputs (`layer.N`)
    /// are the cuts and are not listed here.
    pub taps: Vec<(String, ValueId)>,
}

impl Component {
    /// Returns the number of which the rows of its entry points must be a multiple.
    pub fn rows_multiple(&self) -> u64 {
        let divisors = self.values.iter().flat_map(|value| &value.shape).filter_map(|dim| match dim {
            Dim::RowsOver(divisor) => Some(u64::from(*divisor).max(1)),
            _ => None,
        });
        divisors.fold(1, common_multiple)
    }

    /// Returns whether a node of these layers produces the value. In a component without layers,
    /// any node counts.
    pub(crate) fn is_made_within(&self, value: ValueId, layers: &Range<u32>) -> bool {
        let ValueSource::Node(node) = self.values[value.0 as usize].source else { return false };
        self.layers == 0 || self.nodes[node.0 as usize].layer.is_some_and(|layer| layers.contains(&layer))
    }
}

/// The computation of one pass of a model: a sequence of components over one set of weights, assets
/// and states. Most models have one graph. A model that sees or hears has another graph per tower,
/// which produces rows for the prompt of the first.
#[derive(Clone, Debug)]
pub struct Graph {
    /// The pass that it computes.
    pub pass: Pass,
    /// Name for reports, without other meaning.
    pub name: String,
    /// Values per row of the residual stream.
    pub hidden: u64,
    /// Rows of the embedding table and of the logits. 0 without a head.
    pub vocabulary: u64,
    /// Number of positions it was made for. For a tower, the maximum number of rows of an entry
    /// point.
    pub context: u64,
    /// Values per layer and row of the per-layer inputs. 0 without them.
    pub per_layer_width: u64,
    pub weights: Vec<Weight>,
    /// Gathered tables. Index 0 is the embedding.
    pub assets: Vec<Asset>,
    /// Key/value states, in the order of the layers that write them.
    pub states: Vec<State>,
    /// Parts, in the order of [`ComponentKind::ALL`](shardwright_vocabulary::ComponentKind::ALL).
    pub components: Vec<Component>,
}

impl Graph {
    /// Returns the component of that kind.
    pub fn component(&self, kind: ComponentKind) -> Result<&Component> {
        let component = self.components.iter().find(|component| component.kind == kind);
        component.ok_or_else(|| Error::internal(format!("the graph has no component `{kind}`")))
    }

    /// Returns whether it has a component of that kind.
    pub fn has(&self, kind: ComponentKind) -> bool {
        self.components.iter().any(|component| component.kind == kind)
    }

    /// Returns the number of layers of the component that has layers.
    pub fn layers(&self) -> u32 {
        self.layered().map_or(0, |component| component.layers)
    }

    /// Returns the component that consists of layers.
    pub fn layered(&self) -> Option<&Component> {
        self.components.iter().find(|component| component.layers > 0)
    }

    /// Returns the number of a front end's features per row. Returns 1 if the graph does not read
    /// features.
    pub fn features_to_a_row(&self) -> u64 {
        let values = self.components.iter().flat_map(|component| &component.values);
        let mut features = values.filter(|value| value.source == ValueSource::Input(Role::Features));
        match features.next().and_then(|value| value.shape.first()) {
            Some(Dim::RowsTimes(factor)) => u64::from(*factor).max(1),
            _ => 1,
        }
    }

    /// Returns the number of which the rows of its entry points must be a multiple.
    pub fn rows_multiple(&self) -> u64 {
        self.components.iter().map(Component::rows_multiple).fold(1, common_multiple)
    }

    /// Returns whether text is generated step by step, which needs states, instead of encoded in
    /// one pass.
    pub fn is_generative(&self) -> bool {
        !self.states.is_empty()
    }

    /// Returns whether any layer in the range writes a state.
    pub fn writes_states(&self, layers: Range<u32>) -> bool {
        self.states.iter().any(|state| layers.contains(&state.layer))
    }

    /// Returns the layer whose states `layer` reads without writing them, if it shares states.
    pub fn donor_of(&self, layer: u32) -> Option<u32> {
        let decoder = self.layered()?;
        let reads = decoder.nodes.iter().filter(|node| node.layer == Some(layer));
        for node in reads.filter(|node| matches!(node.op, Op::Attention(_))) {
            for input in &node.inputs {
                if let ValueSource::Node(writer) = decoder.values[input.0 as usize].source {
                    let writer = &decoder.nodes[writer.0 as usize];
                    if writer.writes.is_some() && writer.layer != Some(layer) {
                        return writer.layer;
                    }
                }
            }
        }
        None
    }

    /// Returns the weight with that index.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0 as usize]
    }
}

/// Returns the least common multiple of two numbers that are not 0.
fn common_multiple(a: u64, b: u64) -> u64 {
    let (mut divisor, mut rest) = (a, b);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor).saturating_mul(b)
}
