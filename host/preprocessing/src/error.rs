//! The one error type of the crate.

use shardwright_vocabulary::ErrorKind;

/// Result of the functions of this crate.
pub type Result<T, E = PreprocessingError> = std::result::Result<T, E>;

/// A picture, a sound or their settings that cannot be used.
///
/// `origin` names the file, or is `the picture` or `the sound` where bytes, pixels or samples were
/// given. *Invalid* input violates its own format, *unsupported* input is well formed but asks for
/// what this crate does not do; [`PreprocessingError::kind`] keeps them apart.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PreprocessingError {
    /// A file is missing.
    #[error("{origin}: no such file")]
    MissingFile {
        /// The file.
        origin: String,
    },
    /// A file could not be read, or is no regular file.
    #[error("cannot read {origin}: {source}")]
    Read {
        /// The file.
        origin: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file is larger than its cap.
    #[error("{origin} is larger than {max} bytes")]
    FileTooLarge {
        /// The file, or the picture or sound given as bytes.
        origin: String,
        /// The cap.
        max: u64,
    },
    /// A settings file is not JSON.
    #[error("{origin} is not valid JSON: {reason}")]
    InvalidJson {
        /// The file.
        origin: String,
        /// The parser's message, with line and column.
        reason: String,
    },
    /// A field of a settings file has a value of the wrong type or out of range.
    #[error("{origin}: `{field}` should be {expected}, but is {found}")]
    InvalidField {
        /// The file.
        origin: String,
        /// The field, with the objects around it: `image_processor.patch_size`.
        field: String,
        /// What was expected.
        expected: String,
        /// The value found, shortened.
        found: String,
    },
    /// A field of a settings file asks for what is not done here and would be ignored.
    #[error("{origin}: `{field}` is {found}, which is not supported")]
    UnsupportedField {
        /// The file.
        origin: String,
        /// The field, with the objects around it.
        field: String,
        /// Its value, shortened.
        found: String,
        /// What is supported instead.
        supported: String,
    },
    /// A setting given in code is out of range.
    #[error("`{name}` should be {expected}, but is {found}")]
    InvalidSetting {
        /// The field of the settings.
        name: &'static str,
        /// The allowed range.
        expected: String,
        /// Its value.
        found: String,
    },
    /// The content is of another type than this build decodes.
    #[error("{origin} is {found}; understood are {understood}")]
    UnknownType {
        /// The file, or the picture or sound given as bytes.
        origin: String,
        /// What its first bytes look like.
        found: &'static str,
        /// The types that this build decodes.
        understood: String,
    },
    /// The content is of a known type but uses a variant of it that is not decoded.
    #[error("{origin}: {what} is not supported")]
    UnsupportedCoding {
        /// The file, or the picture or sound given as bytes.
        origin: String,
        /// The variant.
        what: String,
    },
    /// A picture that moves.
    #[error("{origin} is an animated {format}, and only single pictures are read")]
    Animated {
        /// The file, or the picture given as bytes.
        origin: String,
        /// The type of the file.
        format: &'static str,
    },
    /// The content contradicts its own format.
    #[error("{origin} is damaged: {reason}")]
    Damaged {
        /// The file, or the picture or sound given as bytes.
        origin: String,
        /// What a decoder says.
        reason: String,
    },
    /// The content ends too early.
    #[error("{origin} is cut short: {reason}")]
    Truncated {
        /// The file, or the picture or sound given as bytes.
        origin: String,
        /// What is missing.
        reason: String,
    },
    /// A side of a picture is zero.
    #[error("{origin} is {width} by {height} pixels, which is nothing to look at")]
    NoPixels {
        /// The file, or the picture given otherwise.
        origin: String,
        /// Its width.
        width: u32,
        /// Its height.
        height: u32,
    },
    /// A picture has more pixels than are decoded.
    #[error("{origin} is {width} by {height} pixels; at most {max} {unit} are decoded")]
    TooManyPixels {
        /// The file, or the picture given otherwise.
        origin: String,
        /// Its width.
        width: u32,
        /// Its height.
        height: u32,
        /// The cap.
        max: u64,
        /// The unit of the cap: `pixels`, or `bytes` of pixels as they are stored.
        unit: &'static str,
    },
    /// A picture is so narrow that resizing it would take long.
    #[error(
        "{width} by {height} pixels become {widened} pixels when they are as wide as patches; at most {max} are computed"
    )]
    TooNarrow {
        /// Its width.
        width: u32,
        /// Its height.
        height: u32,
        /// Pixels at the width of its patches and its own height.
        widened: u64,
        /// The cap.
        max: u64,
    },
    /// An array has another length than its sizes imply.
    #[error("{what} has {found} values; needed are {needed}")]
    WrongLength {
        /// The array.
        what: &'static str,
        /// The length it should have.
        needed: String,
        /// Its length.
        found: usize,
    },
    /// A number of soft tokens that a picture cannot be asked for.
    #[error("a picture cannot become {budget} soft tokens at most; choose {choices}")]
    UnsupportedBudget {
        /// The number asked for.
        budget: u32,
        /// The numbers that can be.
        choices: String,
    },
    /// No grid of patches within the budget has the sides of a picture.
    #[error("a picture of {width} by {height} pixels does not fit {budget} soft tokens")]
    DoesNotFit {
        /// Its width.
        width: u32,
        /// Its height.
        height: u32,
        /// The most soft tokens.
        budget: u32,
    },
    /// A grid was made for another picture or other settings.
    #[error("the grid is for a picture of {expected}, and this one is {found}")]
    OtherGrid {
        /// Width and height the grid was made for.
        expected: String,
        /// Those of the picture.
        found: String,
    },
    /// The positions of patches that an application made are no complete grid.
    #[error("position {index} of the patches: {reason}")]
    InvalidPositions {
        /// Index of the patch, from 0.
        index: usize,
        /// What is wrong.
        reason: String,
    },
    /// A value is NaN or infinite.
    #[error("{origin}: the value at index {index} is {value}")]
    NotFinite {
        /// The file, the sound, or the array.
        origin: String,
        /// Its index; samples of channels that alternate count one by one.
        index: usize,
        /// NaN or an infinity.
        value: f32,
    },
    /// A sound without samples.
    #[error("{origin} has no samples")]
    NoSamples {
        /// The file, or the sound given otherwise.
        origin: String,
    },
    /// A sound that is shorter than one frame of features.
    #[error("{origin} has {samples} samples at {rate} Hz; one frame needs {needed}")]
    TooShort {
        /// The file, or the sound given otherwise.
        origin: String,
        /// Its samples, at the rate of the settings.
        samples: usize,
        /// The rate of the settings.
        rate: u32,
        /// The fewest samples.
        needed: usize,
    },
    /// A sound that is longer than the longest clip.
    #[error("{origin} lasts longer than {longest_seconds} s, the longest that the model hears")]
    TooLong {
        /// The file, or the sound given otherwise.
        origin: String,
        /// The limit in seconds.
        longest_seconds: f64,
    },
    /// A rate that no sound is resampled from.
    #[error("{origin} has {rate} samples per second; {min} to {max} are resampled")]
    UnsupportedRate {
        /// The file, or the sound given otherwise.
        origin: String,
        /// Its rate.
        rate: u32,
        /// The lowest rate.
        min: u32,
        /// The highest rate.
        max: u32,
    },
    /// No channels, more than are mixed, or a number that does not divide the samples.
    #[error("{origin}: {samples} samples cannot be {channels} channels")]
    InvalidChannels {
        /// The file, or the sound given otherwise.
        origin: String,
        /// The number of channels.
        channels: u32,
        /// The number of samples.
        samples: usize,
    },
}

impl PreprocessingError {
    /// What a caller can act on.
    pub fn kind(&self) -> ErrorKind {
        match self {
            PreprocessingError::MissingFile { .. } | PreprocessingError::Read { .. } => ErrorKind::Missing,
            PreprocessingError::UnsupportedField { .. }
            | PreprocessingError::UnknownType { .. }
            | PreprocessingError::UnsupportedCoding { .. }
            | PreprocessingError::UnsupportedRate { .. }
            | PreprocessingError::Animated { .. } => ErrorKind::Unsupported,
            PreprocessingError::InvalidSetting { .. }
            | PreprocessingError::WrongLength { .. }
            | PreprocessingError::UnsupportedBudget { .. }
            | PreprocessingError::DoesNotFit { .. }
            | PreprocessingError::OtherGrid { .. }
            | PreprocessingError::InvalidPositions { .. }
            | PreprocessingError::InvalidChannels { .. }
            | PreprocessingError::NotFinite { .. } => ErrorKind::Argument,
            _ => ErrorKind::Invalid,
        }
    }

    /// What the user can do about it, for a `help:` line.
    pub fn help(&self) -> String {
        match self {
            PreprocessingError::MissingFile { origin } | PreprocessingError::Read { origin, .. } => {
                format!("check that {origin} exists, is a file and can be read")
            }
            PreprocessingError::FileTooLarge { .. } => "check which file this is".into(),
            PreprocessingError::InvalidJson { .. } => {
                "download the file again; it may be truncated, or a pointer to a file in large-file storage"
                    .into()
            }
            PreprocessingError::InvalidField { field, .. } => {
                format!("correct `{field}`, or remove it to use the default")
            }
            PreprocessingError::UnsupportedField { supported, .. } => format!("supported: {supported}"),
            PreprocessingError::InvalidSetting { name, expected, .. } => {
                format!("set `{name}` to {expected}")
            }
            PreprocessingError::UnknownType { understood, .. } => {
                format!("convert it to one of {understood}")
            }
            PreprocessingError::UnsupportedCoding { .. } => {
                "save it anew: pictures in RGB, sounds as plain PCM".into()
            }
            PreprocessingError::Animated { .. } => {
                "save the frame that is meant as a picture of its own".into()
            }
            PreprocessingError::Damaged { .. } | PreprocessingError::Truncated { .. } => {
                "fetch or save the file again".into()
            }
            PreprocessingError::NoPixels { .. } => "give a picture of at least one pixel".into(),
            PreprocessingError::TooManyPixels { .. } => {
                "make the picture smaller first: a model sees less than two megapixels of it".into()
            }
            PreprocessingError::WrongLength { .. } => "size the array by the grid or the settings".into(),
            PreprocessingError::UnsupportedBudget { choices, .. } => format!("choose {choices}"),
            PreprocessingError::TooNarrow { .. } => "crop the picture".into(),
            PreprocessingError::DoesNotFit { .. } => "crop the picture, or allow more soft tokens".into(),
            PreprocessingError::OtherGrid { .. } => "make the grid from the size of this picture".into(),
            PreprocessingError::InvalidPositions { .. } => {
                "give column and row of each patch once, and -1, -1 for padding".into()
            }
            PreprocessingError::NotFinite { .. } => "look at how the values were made".into(),
            PreprocessingError::NoSamples { .. } | PreprocessingError::TooShort { .. } => {
                "record a longer sound".into()
            }
            PreprocessingError::TooLong { .. } => "cut the sound into parts and ask about each".into(),
            PreprocessingError::UnsupportedRate { min, max, .. } => {
                format!("convert the sound to a rate from {min} to {max} Hz, best to that of the model")
            }
            PreprocessingError::InvalidChannels { .. } => "mix the sound down to one channel".into(),
        }
    }
}

/// Classified by what an application can do about it.
impl From<PreprocessingError> for shardwright_vocabulary::Error {
    fn from(error: PreprocessingError) -> Self {
        let (kind, help) = (error.kind(), error.help());
        shardwright_vocabulary::Error::caused_by(kind, error, Some(help))
    }
}
