use std::io;
use std::path::PathBuf;

use shardwright_graph::GraphError;
use shardwright_reference::ReferenceError;

/// Why a weight or a graph cannot be quantised.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantiseError {
    /// Sizes that do not fit the machine.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A value that no integer represents.
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
    /// The weight's bytes are missing.
    #[error("row {row} of weight `{weight}` lies beyond the {bytes} bytes that are there")]
    MissingBytes {
        /// The weight.
        weight: String,
        /// The row.
        row: usize,
        /// Number of bytes present.
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
    /// Weights are not made in the format that leaves them as they are.
    #[error("weight `{weight}` cannot be made in `as-stored`, which is how its checkpoint has it")]
    AsStored {
        /// The weight.
        weight: String,
    },
    /// Factors of moments for another number of columns or rows.
    #[error("weight `{weight}` has {wanted} {what}; the moments it is to be rounded by, {found}")]
    Factors {
        /// The weight.
        weight: String,
        /// Columns or rows.
        what: &'static str,
        /// How many it has.
        wanted: usize,
        /// How many the moments are of.
        found: usize,
    },
    /// Moments that are kept in files.
    #[error(transparent)]
    Moments(#[from] MeasuredError),
    /// A recipe made for another graph.
    #[error("the recipe is for {recipe} weights, the graph has {graph}")]
    Recipe {
        /// Weights of the recipe.
        recipe: usize,
        /// Weights of the graph.
        graph: usize,
    },
    /// The watcher cancelled the work.
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
            QuantiseError::AsStored { .. } => Some("keep the weight, or choose another format"),
            QuantiseError::Factors { .. } => Some("take the moments of this checkpoint again"),
            QuantiseError::Moments(source) => source.help(),
            QuantiseError::Recipe { .. } => Some("make the recipe with the graph it is used for"),
            QuantiseError::Cancelled { .. } => {
                Some("the store keeps what is made; the next run continues there")
            }
            QuantiseError::Store(source) => source.help(),
        }
    }
}

/// What is wrong with the directory of quantised weights or a file in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The attempted action.
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
    /// The file is intact but is for another weight, format or content than requested.
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
    /// Another user may have written the file.
    #[error("{} {reason}", path.display())]
    NotOwn {
        /// The file.
        path: PathBuf,
        /// Which user, or the file mode.
        reason: String,
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
            StoreError::NotAWeight { .. }
            | StoreError::Version { .. }
            | StoreError::OtherWeight { .. }
            | StoreError::Length { .. }
            | StoreError::Damaged { .. }
            | StoreError::NotOwn { .. } => Some("remove the file; the next run makes it again"),
        }
    }

    /// Whether the file, not the system, is at fault, so that recreating it helps.
    pub(crate) fn is_of_content(&self) -> bool {
        !matches!(self, StoreError::Io { .. })
    }
}

/// Why a model cannot be calibrated or measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationError {
    /// The reference cannot run the model.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// Weights cannot be made in a format to be measured.
    #[error(transparent)]
    Quantise(#[from] QuantiseError),
    /// A tensor took a value that no range covers.
    #[error("`{key}` took the value {value}")]
    NotFinite {
        /// The tensor's key.
        key: String,
        /// The value.
        value: f32,
    },
    /// Nothing was run.
    #[error("no token sequences were given")]
    NoSequences,
    /// Every sequence is too short to say anything about the next token.
    #[error("no sequence has two tokens, so there is no likelihood to compare")]
    NoPredictions,
    /// A share of at most half of the values, or more than all.
    #[error("{share} is no share of the values to keep")]
    Percentile {
        /// The share.
        share: f64,
    },
    /// Calibrations of two models.
    #[error("the calibrations belong to different models")]
    OtherModel,
    /// A matrix whose second moments do not fit the memory set aside for them.
    #[error("weight `{weight}` has {columns} columns, moments of more than {limit} are not summed")]
    TooWide {
        /// The weight.
        weight: String,
        /// Columns it has.
        columns: usize,
        /// Most columns.
        limit: usize,
    },
    /// The watcher cancelled the work.
    #[error("cancelled")]
    Cancelled,
}

impl CalibrationError {
    /// What would help.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            CalibrationError::Reference(source) => source.help(),
            CalibrationError::Quantise(source) => source.help(),
            CalibrationError::NotFinite { .. } => {
                Some("the checkpoint is damaged or overflows on this text; fetch it again, or try other text")
            }
            CalibrationError::NoSequences => Some("pass at least one sequence of ids"),
            CalibrationError::NoPredictions => Some("pass a sequence of at least two ids"),
            CalibrationError::Percentile { .. } => {
                Some("more than 0.5 and at most 1; 0.9999 leaves out outliers")
            }
            CalibrationError::OtherModel => Some("merge only what one checkpoint was calibrated with"),
            CalibrationError::TooWide { .. } => Some("round each value to the nearest"),
            CalibrationError::Cancelled => None,
        }
    }
}

/// What is wrong with a file of measurements.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasuredError {
    /// The system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file is something else.
    #[error("{} holds no {wanted}", path.display())]
    OtherKind {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        wanted: &'static str,
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
    /// The file says it is larger than any sensible one.
    #[error("{} says it holds {bytes} bytes, more than {limit} are not read", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes it says.
        bytes: u64,
        /// Most that are read.
        limit: u64,
    },
    /// The content is not as it was written, or never was sound.
    #[error("{} is damaged at byte {offset}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What does not fit.
        what: &'static str,
    },
    /// The file is sound and was measured on another checkpoint.
    #[error("{} was measured on checkpoint {found}, not on {wanted}", path.display())]
    OtherCheckpoint {
        /// The file.
        path: PathBuf,
        /// Hash of the checkpoint it belongs to.
        found: String,
        /// Hash of the checkpoint at hand.
        wanted: String,
    },
}

impl MeasuredError {
    /// What would help.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            MeasuredError::Io { .. } => None,
            MeasuredError::OtherKind { .. } => Some("name a file that this program wrote for that purpose"),
            MeasuredError::Version { .. } => Some("measure again with this version of the program"),
            MeasuredError::TooLarge { .. } | MeasuredError::Damaged { .. } => {
                Some("remove the file and measure again")
            }
            MeasuredError::OtherCheckpoint { .. } => {
                Some("measure this checkpoint; values of another say nothing about it")
            }
        }
    }
}
