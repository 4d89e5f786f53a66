use shardwright_vocabulary::{EntryKind, ErrorKind};

use crate::{ComponentKind, Segments};

/// A graph that cannot be built or instantiated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// A weight's range lies outside its byte source.
    #[error("weight range {offset}+{length} exceeds the {available} bytes of its source")]
    WeightRange {
        /// First byte.
        offset: usize,
        /// Bytes asked for.
        length: usize,
        /// Bytes there.
        available: usize,
    },
    /// A weight whose size in some format does not fit the machine.
    #[error("weight `{weight}` {shape:?} is too large to be stored")]
    WeightTooLarge {
        /// Its name.
        weight: String,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// The operand shapes of an operation are outside its definition.
    #[error("node `{node}` ({op}): {reason}")]
    Shape {
        /// The node's name.
        node: String,
        /// The operation.
        op: &'static str,
        /// What does not fit.
        reason: String,
    },
    /// The graph has no such component.
    #[error("the graph has no component `{0}`")]
    NoComponent(ComponentKind),
    /// The layer range is empty or reaches beyond the component.
    #[error("layers {start}..{end} are not a range of `{component}`, which has {layers}")]
    LayerRange {
        /// The component.
        component: ComponentKind,
        /// First layer.
        start: u32,
        /// One past the last.
        end: u32,
        /// Layers there are.
        layers: u32,
    },
    /// A shard's segments are not in the order of one pass, or one component occurs twice.
    #[error("`{segments}` are no segments of one shard")]
    Segments {
        /// Those asked for.
        segments: Segments,
    },
    /// A value other than the residual stream or a state would have to cross the cut.
    #[error(
        "value `{value}` of layer {layer} is needed beyond the cut; only the residual stream and states may cross"
    )]
    CrossesCut {
        /// The value.
        value: String,
        /// The layer that makes it.
        layer: u32,
    },
    /// The component cannot run under this kind of entry point.
    #[error("`{component}` has no {entry} entry point: {reason}")]
    EntryKind {
        /// The component.
        component: ComponentKind,
        /// The kind asked for.
        entry: EntryKind,
        /// Why.
        reason: &'static str,
    },
    /// A component that makes one row of several has entry points of multiples of them alone.
    #[error("`{component}` has no entry point of {rows} rows: they are no multiple of {multiple}")]
    Rows {
        /// The component.
        component: ComponentKind,
        /// Rows asked for.
        rows: u64,
        /// What they must be a multiple of.
        multiple: u64,
    },
    /// Rows or context are zero, or rows exceed the context.
    #[error("an entry point of {rows} rows in a context of {context} is not possible")]
    EntryPoint {
        /// Rows asked for.
        rows: u64,
        /// Context capacity asked for.
        context: u64,
    },
}

impl GraphError {
    /// What would help.
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

/// What an application can do about it.
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
