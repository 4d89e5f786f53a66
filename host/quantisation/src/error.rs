use std::io;
use std::path::PathBuf;

use shardwright_graph::GraphError;

/// Why a weight or a graph cannot be made in other formats.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantiseError {
    /// Sizes that do not fit the machine.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A value that no integer stands for.
    #[error("weight `{weight}` holds {value} at row {row}, column {column}")]
    NotFinite {
        /// The weight.
        weight: String,
        /// Row, counted over all axes but the last.
        row: usize,
        /// Place in the row.
        column: usize,
        /// The value.
        value: f32,
    },
    /// The weight's bytes are not there.
    #[error("row {row} of weight `{weight}` lies beyond the {bytes} bytes that are there")]
    MissingBytes {
        /// The weight.
        weight: String,
        /// The row.
        row: usize,
        /// Bytes there are.
        bytes: u64,
    },
    /// Values that share a scale do not fit the memory set aside for them.
    #[error("weight `{weight}` has {values} values in one channel, more than {limit} are not supported")]
    ChannelTooLarge {
        /// The weight.
        weight: String,
        /// Values of one channel.
        values: u64,
        /// Largest number.
        limit: u64,
    },
    /// Importances of other columns than the weight has, or such as no mean square can be.
    #[error(
        "weight `{weight}` has {columns} columns; its importances are {given}, or not all of them finite and ≥ 0"
    )]
    Importance {
        /// The weight.
        weight: String,
        /// Columns it has.
        columns: usize,
        /// Importances given.
        given: usize,
    },
    /// A recipe made for another graph.
    #[error("the recipe is for {recipe} weights, the graph has {graph}")]
    Recipe {
        /// Weights of the recipe.
        recipe: usize,
        /// Weights of the graph.
        graph: usize,
    },
    /// The watcher ended the work.
    #[error("cancelled at weight `{weight}`")]
    Cancelled {
        /// The weight in work.
        weight: String,
    },
    /// The directory of made weights.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl QuantiseError {
    /// What would help.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            QuantiseError::Graph(source) => source.help(),
            QuantiseError::NotFinite { .. } => {
                Some("the checkpoint is damaged or its training diverged; fetch it again")
            }
            QuantiseError::MissingBytes { .. } => Some("quantise the checkpoint's graph, not a planned one"),
            QuantiseError::ChannelTooLarge { .. } => Some("choose a format with a scale per tensor or block"),
            QuantiseError::Importance { .. } => Some("calibrate this checkpoint again"),
            QuantiseError::Recipe { .. } => Some("make the recipe with the graph it is used for"),
            QuantiseError::Cancelled { .. } => {
                Some("the store keeps what is made; the next run continues there")
            }
            QuantiseError::Store(source) => source.help(),
        }
    }
}

/// What is wrong with the directory of made weights or a file of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file is something else.
    #[error("{} is not a file of made weights", path.display())]
    NotAWeight {
        /// The file.
        path: PathBuf,
    },
    /// The file is of another version of the format.
    #[error("{} has version {found} of the format, this program reads version {supported}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The version that can be read.
        supported: u32,
    },
    /// The file is sound and holds another weight, format or content than asked for.
    #[error("{} holds {found}, wanted is {wanted}", path.display())]
    OtherWeight {
        /// The file.
        path: PathBuf,
        /// What it holds.
        found: String,
        /// What was asked for.
        wanted: String,
    },
    /// The file is shorter or longer than its header says.
    #[error("{} has {found} bytes, its header says {wanted}", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes it has.
        found: u64,
        /// Bytes it should have.
        wanted: u64,
    },
    /// Bytes of the file changed after they were written.
    #[error("{} is damaged at byte {offset}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What does not fit.
        what: &'static str,
    },
    /// Another program is making the same weight.
    #[error("{} is being written by another program", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
}

impl StoreError {
    /// What would help.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            StoreError::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                Some("free some disk space, or name a directory on another disk; what is made is kept")
            }
            StoreError::Io { .. } => None,
            StoreError::Busy { .. } => Some("wait for the other program, or name another directory"),
            StoreError::NotAWeight { .. }
            | StoreError::Version { .. }
            | StoreError::OtherWeight { .. }
            | StoreError::Length { .. }
            | StoreError::Damaged { .. } => Some("remove the file; the next run makes it again"),
        }
    }

    /// Whether the file, and not the system, is at fault, so that making it again helps.
    pub(crate) fn is_of_content(&self) -> bool {
        !matches!(self, StoreError::Io { .. } | StoreError::Busy { .. })
    }
}
