use std::io;
use std::path::PathBuf;

use shardwright_graph::GraphError;
use shardwright_reference::ReferenceError;

/// Reasons why a weight or a graph cannot be quantised.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantiseError {
    /// The sizes do not fit the machine.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A value is not finite, so no integer represents it.
    #[error("weight `{weight}` holds {value} at row {row}, column {column}")]
    NotFinite {
        weight: String,
        /// Row, counted over all axes but the last.
        row: usize,
        column: usize,
        value: f32,
    },
    /// The weight's bytes are missing.
    #[error("row {row} of weight `{weight}` lies beyond the {bytes} bytes that are there")]
    MissingBytes { weight: String, row: usize, bytes: u64 },
    /// The values that share a scale exceed the memory reserved for them.
    #[error("weight `{weight}` has {values} values in one channel, more than {limit} are not supported")]
    ChannelTooLarge {
        weight: String,
        /// Number of values in one channel.
        values: u64,
        /// Largest supported number of values.
        limit: u64,
    },
    /// The requested format leaves weights unchanged, so it is not a valid target.
    #[error("weight `{weight}` cannot be made in `as-stored`, which is how its checkpoint has it")]
    AsStored { weight: String },
    /// The factors belong to another number of columns or rows.
    #[error("weight `{weight}` has {wanted} {what}; the moments it is to be rounded by, {found}")]
    Factors {
        weight: String,
        /// Either "columns" or "rows".
        what: &'static str,
        /// Number that the weight has.
        wanted: usize,
        /// Number that the factors have.
        found: usize,
    },
    /// A file of moments cannot be used.
    #[error(transparent)]
    Moments(#[from] MeasuredError),
    /// The recipe was made for another graph.
    #[error("the recipe is for {recipe} weights, the graph has {graph}")]
    Recipe {
        /// Number of weights in the recipe.
        recipe: usize,
        /// Number of weights in the graph.
        graph: usize,
    },
    /// The watcher cancelled the work.
    #[error("cancelled at weight `{weight}`")]
    Cancelled {
        /// The weight being made at that time.
        weight: String,
    },
    /// The store directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl QuantiseError {
    /// Returns a suggestion for the user, if there is one.
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

/// Problems with the directory of quantised weights or with a file in it.
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
        source: io::Error,
    },
    /// The file has another type.
    #[error("{} is not a file of made weights", path.display())]
    NotAWeight { path: PathBuf },
    /// The file has another version of the format.
    #[error("{} has version {found} of the format, this program reads version {supported}", path.display())]
    Version {
        path: PathBuf,
        /// Version of the file.
        found: u32,
        /// Version that this program supports.
        supported: u32,
    },
    /// The file is intact but belongs to another weight, format or content.
    #[error("{} holds {found}, wanted is {wanted}", path.display())]
    OtherWeight {
        path: PathBuf,
        /// Content of the file.
        found: String,
        /// Requested content.
        wanted: String,
    },
    /// The file's length does not match its header.
    #[error("{} has {found} bytes, its header says {wanted}", path.display())]
    Length {
        path: PathBuf,
        /// Actual length in bytes.
        found: u64,
        /// Length in bytes according to the header.
        wanted: u64,
    },
    /// Bytes of the file changed after they were written.
    #[error("{} is damaged at byte {offset}: {what}", path.display())]
    Damaged {
        path: PathBuf,
        offset: u64,
        /// The part that does not match.
        what: &'static str,
    },
    /// Another user may have written the file.
    #[error("{} {reason}", path.display())]
    NotOwn {
        path: PathBuf,
        /// The owner, or the file mode.
        reason: String,
    },
}

impl StoreError {
    /// Returns a suggestion for the user, if there is one.
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

    /// Returns whether the file, not the system, is at fault, so that recreating it helps.
    pub(crate) fn is_of_content(&self) -> bool {
        !matches!(self, StoreError::Io { .. })
    }
}

/// Reasons why a model cannot be calibrated or measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationError {
    /// The reference implementation cannot run the model.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// Weights cannot be quantised for the measurement.
    #[error(transparent)]
    Quantise(#[from] QuantiseError),
    /// A tensor contains a value that no range covers.
    #[error("`{key}` took the value {value}")]
    NotFinite {
        /// Key of the tensor.
        key: String,
        value: f32,
    },
    /// No sequences were given.
    #[error("no token sequences were given")]
    NoSequences,
    /// Every sequence is too short to contain a prediction of a next token.
    #[error("no sequence has two tokens, so there is no likelihood to compare")]
    NoPredictions,
    /// The share of values to keep is at most one half, or greater than 1.
    #[error("{share} is no share of the values to keep")]
    Percentile { share: f64 },
    /// The calibrations belong to different models.
    #[error("the calibrations belong to different models")]
    OtherModel,
    /// A matrix is too wide for the memory reserved for its second moments.
    #[error("weight `{weight}` has {columns} columns, moments of more than {limit} are not summed")]
    TooWide {
        weight: String,
        columns: usize,
        /// Largest supported number of columns.
        limit: usize,
    },
    /// The watcher cancelled the work.
    #[error("cancelled")]
    Cancelled,
}

impl CalibrationError {
    /// Returns a suggestion for the user, if there is one.
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

/// Problems with a file of measurements.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasuredError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The attempted action.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The file has another type.
    #[error("{} holds no {wanted}", path.display())]
    OtherKind {
        path: PathBuf,
        /// Expected content.
        wanted: &'static str,
    },
    /// The file has another version of the format.
    #[error("{} has version {found} of the format, this program reads version {supported}", path.display())]
    Version {
        path: PathBuf,
        /// Version of the file.
        found: u32,
        /// Version that this program supports.
        supported: u32,
    },
    /// The length in the file's header is larger than any valid one.
    #[error("{} says it holds {bytes} bytes, more than {limit} are not read", path.display())]
    TooLarge {
        path: PathBuf,
        /// Length in bytes according to the header.
        bytes: u64,
        /// Largest accepted length in bytes.
        limit: u64,
    },
    /// The content was damaged after writing, or was never valid.
    #[error("{} is damaged at byte {offset}: {what}", path.display())]
    Damaged {
        path: PathBuf,
        offset: u64,
        /// The part that does not match.
        what: &'static str,
    },
    /// The file is valid but was measured on another checkpoint.
    #[error("{} was measured on checkpoint {found}, not on {wanted}", path.display())]
    OtherCheckpoint {
        path: PathBuf,
        /// Hash of the checkpoint that the file belongs to.
        found: String,
        /// Hash of the current checkpoint.
        wanted: String,
    },
}

impl MeasuredError {
    /// Returns a suggestion for the user, if there is one.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            MeasuredError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("check the path; the next run makes missing files of the cache again")
            }
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
