use serde::{Deserialize, Serialize};
use shardwright_vocabulary::{Affine, DType, Encoding, EntryKind, EntryName, ScaleBits};

use crate::{GraphError, Op, Role, Segments, State, StateId, WeightId};

/// What is fixed when a component becomes a static graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EntryPoint {
    /// What it is for.
    pub kind: EntryKind,
    /// Static row count; a run may use fewer.
    pub rows: u64,
    /// Context capacity: rows of linear states. For [`EntryKind::Encode`] equal to `rows`.
    pub context: u64,
    /// The largest row count among all entry points that share the states; rings hold window +
    /// this.
    pub largest_rows: u64,
}

impl EntryPoint {
    /// The entry point of this name in a plan whose largest entry point has `largest_rows` rows.
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

    /// `prefill_128@4096`, `decode_1@4096`, `encode_256`.
    pub fn name(&self) -> EntryName {
        // Validation refuses what does not fit.
        let number = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let context = match self.kind {
            EntryKind::Encode => 0,
            EntryKind::Prefill | EntryKind::Decode => number(self.context),
        };
        EntryName { kind: self.kind, rows: number(self.rows), context }
    }

    pub(crate) fn validate(&self) -> Result<(), GraphError> {
        let fits = self.context <= u32::MAX.into();
        if !fits || self.rows == 0 || self.rows > self.context || self.largest_rows < self.rows {
            return Err(GraphError::EntryPoint { rows: self.rows, context: self.context });
        }
        Ok(())
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
    /// For encoded activations: what the stored integers stand for. Constants carry theirs with the
    /// weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affine: Option<Affine>,
    /// For constants: the weight of the graph (after work-order assembly: of the work order) it
    /// holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<WeightId>,
    /// For ports: power of two that decoded values are multiplied by to give the real ones. `None`
    /// means 1. A residual stream may be computed divided by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<ScaleBits>,
}

impl Tensor {
    /// A tensor of plain elements that is no constant.
    pub fn plain(name: impl Into<String>, shape: Vec<u64>, dtype: DType) -> Self {
        Tensor { name: name.into(), shape, dtype, affine: None, weight: None, unit: None }
    }

    /// Number of elements; saturates.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1_u64, |product, &extent| product.saturating_mul(extent))
    }

    /// Dense size in bytes; saturates.
    pub fn bytes(&self) -> u64 {
        self.dtype.packed_bytes(&self.shape).unwrap_or(u64::MAX)
    }

    /// Whether it holds positions or slots rather than values.
    pub fn is_index(&self) -> bool {
        matches!(self.dtype, DType::I32 | DType::I64)
    }

    /// How its values are stored, as far as floats and encoded integers go; `None` for indices and
    /// packed weights.
    pub fn encoding(&self) -> Option<Encoding> {
        Encoding::of(self.dtype, self.affine)
    }
}

/// An operation of an entry graph; one output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntryNode {
    /// Unique within the entry graph; `layer.3.q`.
    pub name: String,
    /// What it does.
    #[serde(flatten)]
    pub op: Op,
    /// Operands.
    pub inputs: Vec<TensorId>,
    /// Result.
    pub output: TensorId,
    /// The layer it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<u32>,
}

/// A state an entry point reads or writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatePort {
    /// Which state of the graph.
    pub id: StateId,
    /// Its declaration.
    #[serde(flatten)]
    pub state: State,
    /// Rows under this entry point.
    pub capacity: u64,
    /// Whether this entry writes it (in graph, or through the runtime).
    pub written: bool,
}

/// One entry point of a shard: static shapes, nodes in an order in which they can run.
///
/// A state that is written appears as input and as output with the same role; the two are one
/// buffer. No other tensor is both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntryGraph {
    /// Which parts of the model.
    pub segments: Segments,
    /// What was fixed.
    pub point: EntryPoint,
    /// All tensors.
    pub tensors: Vec<Tensor>,
    /// All operations.
    pub nodes: Vec<EntryNode>,
    /// What is bound before a run.
    pub inputs: Vec<(TensorId, Role)>,
    /// What a run gives.
    pub outputs: Vec<(TensorId, Role)>,
    /// States it reads or writes.
    pub states: Vec<StatePort>,
}

impl EntryGraph {
    /// The tensor of that index.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0 as usize]
    }

    /// The input with that role.
    pub fn input(&self, role: &Role) -> Option<TensorId> {
        self.inputs.iter().find(|(_, existing)| existing == role).map(|(id, _)| *id)
    }

    /// The output with that role.
    pub fn output(&self, role: &Role) -> Option<TensorId> {
        self.outputs.iter().find(|(_, existing)| existing == role).map(|(id, _)| *id)
    }

    /// Constants in order of first use.
    pub fn constants(&self) -> impl Iterator<Item = (TensorId, WeightId)> + '_ {
        self.tensors
            .iter()
            .enumerate()
            .filter_map(|(index, tensor)| tensor.weight.map(|weight| (TensorId(index as u32), weight)))
    }

    /// Node indices in report form: `layer.3.q (linear)`.
    pub fn describe_node(&self, index: usize) -> String {
        let node = &self.nodes[index];
        format!("{} ({})", node.name, node.op.name())
    }
}
