use shardwright_vocabulary::{EntryKind, ErrorKind};

use crate::{ComponentKind, Segments};

/// Error when building or instantiating a graph.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// A weight's range exceeds its byte source.
    #[error("weight range {offset}+{length} exceeds the {available} bytes of its source")]
    WeightRange {
        /// First byte of the range.
        offset: usize,
        /// Requested bytes.
        length: usize,
        /// Available bytes.
        available: usize,
    },
    /// A weight's size in some format is too large for the machine.
    #[error("weight `{weight}` {shape:?} is too large to be stored")]
    WeightTooLarge { weight: String, shape: Vec<u64> },
    /// The operand shapes of an operation are outside its definition.
    #[error("node `{node}` ({op}): {reason}")]
    Shape {
        node: String,
        op: &'static str,
        /// The mismatch.
        reason: String,
    },
    /// The graph has no such component.
    #[error("the graph has no component `{0}`")]
    NoComponent(ComponentKind),
    /// The layer range is empty or exceeds the component.
    #[error("layers {start}..{end} are not a range of `{component}`, which has {layers}")]
    LayerRange {
        component: ComponentKind,
        start: u32,
        /// One past the last layer.
        end: u32,
        layers: u32,
    },
    /// A shard's segments are not in the order of one pass, or contain one component twice.
    #[error("`{segments}` are no segments of one shard")]
    Segments {
        /// The requested segments.
        segments: Segments,
    },
    /// A value other than the residual stream or a state would have to cross the cut.
    #[error(
        "value `{value}` of layer {layer} is needed beyond the cut; only the residual stream and states may cross"
    )]
    CrossesCut {
        value: String,
        /// The layer that produces it.
        layer: u32,
    },
    /// The component cannot run under this kind of entry point.
    #[error("`{component}` has no {entry} entry point: {reason}")]
    EntryKind {
        component: ComponentKind,
        /// The requested kind.
        entry: EntryKind,
        /// The reason.
        reason: &'static str,
    },
    /// A component that combines several rows to one requires row counts that are multiples of this
    /// number.
    #[error("`{component}` has no entry point of {rows} rows: they are no multiple of {multiple}")]
    Rows {
        /// The component.
        component: ComponentKind,
        /// Requested rows.
        rows: u64,
        /// Number of which they must be a multiple.
        multiple: u64,
    },
    /// Rows or context are zero, or rows exceed the context.
    #[error("an entry point of {rows} rows in a context of {context} is not possible")]
    EntryPoint {
        /// Requested rows.
        rows: u64,
        /// Requested context capacity.
        context: u64,
    },
}

impl GraphError {
    /// Returns advice for the user.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            GraphError::WeightRange { .. } => {
                Some("the checkpoint file is shorter than its header says; fetch it again")
            }
            GraphError::EntryPoint { .. } => {
                Some("rows and context must be positive, and rows at most the context")
            }
            GraphError::LayerRange { .. } | GraphError::Segments { .. } => {
                Some("`shardwright show` lists the components in the order of a step, and their layers")
            }
            GraphError::Rows { .. } => {
                Some("take the next multiple; rows beyond the valid ones change nothing")
            }
            _ => None,
        }
    }
}

/// Converts to an error with the kind on which an application acts.
impl From<GraphError> for shardwright_vocabulary::Error {
    fn from(error: GraphError) -> Self {
        let kind = match error {
            GraphError::EntryPoint { .. }
            | GraphError::Rows { .. }
            | GraphError::LayerRange { .. }
            | GraphError::Segments { .. } => ErrorKind::Argument,
            GraphError::WeightRange { .. } => ErrorKind::Invalid,
            _ => ErrorKind::Internal,
        };
        let help = error.help().map(str::to_owned);
        shardwright_vocabulary::Error::caused_by(kind, error, help)
    }
}
