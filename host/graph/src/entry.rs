use serde::{Deserialize, Serialize};
use shardwright_vocabulary::{Affine, DType, Encoding, EntryKind, EntryName, Error, Result, ScaleBits};

use crate::{Op, Role, Segments, State, StateId, WeightId};

/// Values that are fixed when a component becomes a static graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EntryPoint {
    /// The kind of run.
    pub kind: EntryKind,
    /// Static row count. A run may use fewer rows.
    pub rows: u64,
    /// Context capacity: the rows of linear states. Equal to `rows` for [`EntryKind::Encode`].
    pub context: u64,
    /// The largest row count among all entry points that share the states. A ring has window plus
    /// this many rows.
    pub largest_rows: u64,
}

impl EntryPoint {
    /// Returns the entry point with this name in a plan whose largest entry point has
    /// `largest_rows` rows.
    pub fn of(name: EntryName, largest_rows: u32) -> Self {
        let context = match name.kind {
            EntryKind::Encode => name.rows,
            EntryKind::Prefill | EntryKind::Decode => name.context,
        };
        EntryPoint {
            kind: name.kind,
            rows: name.rows.into(),
            context: context.into(),
            largest_rows: largest_rows.max(name.rows).into(),
        }
    }

    /// Returns the name, such as `prefill_128@4096`, `decode_1@4096` or `encode_256`.
    pub fn name(&self) -> EntryName {
        // Validation refuses larger numbers.
        let number = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let context = match self.kind {
            EntryKind::Encode => 0,
            EntryKind::Prefill | EntryKind::Decode => number(self.context),
        };
        EntryName { kind: self.kind, rows: number(self.rows), context }
    }

    pub(crate) fn validate(&self) -> Result<()> {
        if self.is_possible() {
            return Ok(());
        }
        let EntryPoint { rows, context, .. } = self;
        let message = format!("an entry point of {rows} rows in a context of {context} is not possible");
        Err(Error::argument(message)
            .with_help("rows and context must be positive, and rows at most the context"))
    }

    pub(crate) fn is_possible(&self) -> bool {
        let fits = self.context <= u32::MAX.into();
        fits && self.rows > 0 && self.rows <= self.context && self.largest_rows >= self.rows
    }
}

/// Index of a tensor within its entry graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TensorId(pub u32);

/// Index of an input or output within [`EntryGraph::inputs`] or [`EntryGraph::outputs`].
pub type PortId = usize;

/// A tensor with a static shape, dense row-major.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tensor {
    /// Unique within the entry graph.
    pub name: String,
    /// Extents, outermost first.
    pub shape: Vec<u64>,
    /// Element type.
    pub dtype: DType,
    /// Encoding of the stored integers, for encoded activations. A constant's encoding is stored
    /// with its weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affine: Option<Affine>,
    /// For constants: index of the weight in the graph, or in the work order after its assembly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<WeightId>,
    /// For ports: power of two by which decoded values are multiplied to get the real ones. `None`
    /// means 1. A residual stream may be computed divided by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<ScaleBits>,
}

impl Tensor {
    /// Creates a tensor of plain elements that is not a constant.
    pub fn plain(name: impl Into<String>, shape: Vec<u64>, dtype: DType) -> Self {
        Tensor { name: name.into(), shape, dtype, affine: None, weight: None, unit: None }
    }

    /// Returns the number of elements, saturating.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1_u64, |product, &extent| product.saturating_mul(extent))
    }

    /// Returns the dense size in bytes, saturating.
    pub fn bytes(&self) -> u64 {
        self.dtype.packed_bytes(&self.shape).unwrap_or(u64::MAX)
    }

    /// Returns whether it contains positions or slots rather than values.
    pub fn is_index(&self) -> bool {
        matches!(self.dtype, DType::I32 | DType::I64)
    }

    /// Returns the encoding of its floats or encoded integers. Returns `None` for indices and
    /// packed weights.
    pub fn encoding(&self) -> Option<Encoding> {
        Encoding::of(self.dtype, self.affine)
    }
}

/// An operation of an entry graph with its single output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntryNode {
    /// Name, unique within the entry graph, such as `layer.3.q`.
    pub name: String,
    #[serde(flatten)]
    pub op: Op,
    /// Operands.
    pub inputs: Vec<TensorId>,
    pub output: TensorId,
    /// The layer of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<u32>,
}

/// A state that an entry point reads or writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatePort {
    /// Index of the state in the graph.
    pub id: StateId,
    /// Declaration of the state.
    #[serde(flatten)]
    pub state: State,
    /// Number of rows under this entry point.
    pub capacity: u64,
    /// Whether this entry writes it, in the graph or through the runtime.
    pub written: bool,
}

/// One entry point of a shard, with static shapes. Nodes are in an order in which they can run.
///
/// A written state is an input and an output with the same role. The two are one buffer. No other
/// tensor is both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntryGraph {
    /// The parts of the model that it computes.
    pub segments: Segments,
    /// Kind, rows and context size.
    pub point: EntryPoint,
    pub tensors: Vec<Tensor>,
    pub nodes: Vec<EntryNode>,
    /// Tensors bound before a run.
    pub inputs: Vec<(TensorId, Role)>,
    /// Results of a run.
    pub outputs: Vec<(TensorId, Role)>,
    /// States it reads or writes.
    pub states: Vec<StatePort>,
}

impl EntryGraph {
    /// Returns the tensor with that index.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0 as usize]
    }

    /// Returns the input with that role.
    pub fn input(&self, role: &Role) -> Option<TensorId> {
        self.inputs.iter().find(|(_, existing)| existing == role).map(|(id, _)| *id)
    }

    /// Returns the output with that role.
    pub fn output(&self, role: &Role) -> Option<TensorId> {
        self.outputs.iter().find(|(_, existing)| existing == role).map(|(id, _)| *id)
    }

    /// Lists the constants in order of first use.
    pub fn constants(&self) -> impl Iterator<Item = (TensorId, WeightId)> + '_ {
        self.tensors
            .iter()
            .enumerate()
            .filter_map(|(index, tensor)| tensor.weight.map(|weight| (TensorId(index as u32), weight)))
    }

    /// Describes a node for reports, such as `layer.3.q (linear)`.
    pub fn describe_node(&self, index: usize) -> String {
        let node = &self.nodes[index];
        format!("{} ({})", node.name, node.op.name())
    }
}
