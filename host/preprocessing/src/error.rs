//! The error type of the crate.

use shardwright_vocabulary::ErrorKind;

pub type Result<T, E = PreprocessingError> = std::result::Result<T, E>;

/// A picture, a sound or their settings that cannot be used.
///
/// `origin` names the file. For bytes, pixels or samples it is `the picture` or `the sound`.
/// *Invalid* input violates its own format. *Unsupported* input is well formed but needs a feature
/// that this crate does not have. [`PreprocessingError::kind`] distinguishes them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PreprocessingError {
    /// A file is missing.
    #[error("{origin}: no such file")]
    MissingFile { origin: String },
    /// A file could not be read, or is not a regular file.
    #[error("cannot read {origin}: {source}")]
    Read { origin: String, source: std::io::Error },
    /// A file is larger than its cap.
    #[error("{origin} is larger than {max} bytes")]
    FileTooLarge {
        /// The file, or the picture or sound passed as bytes.
        origin: String,
        max: u64,
    },
    /// A settings file is not JSON.
    #[error("{origin} is not valid JSON: {reason}")]
    InvalidJson {
        origin: String,
        /// The parser's message, with line and column.
        reason: String,
    },
    /// A field of a settings file has a value of the wrong type or out of range.
    #[error("{origin}: `{field}` should be {expected}, but is {found}")]
    InvalidField {
        origin: String,
        /// The field, with the objects around it: `image_processor.patch_size`.
        field: String,
        expected: String,
        /// The value in the file, shortened.
        found: String,
    },
    /// A field of a settings file requires an unsupported feature.
    #[error("{origin}: `{field}` is {found}, which is not supported")]
    UnsupportedField {
        origin: String,
        /// The field, with the objects around it.
        field: String,
        /// The value, shortened.
        found: String,
        /// The supported values.
        supported: String,
    },
    /// A setting passed in code is out of range.
    #[error("`{name}` should be {expected}, but is {found}")]
    InvalidSetting {
        /// The field of the settings.
        name: &'static str,
        expected: String,
        found: String,
    },
    /// This build does not decode the type of the content.
    #[error("{origin} is {found}; understood are {understood}")]
    UnknownType {
        /// The file, or the picture or sound passed as bytes.
        origin: String,
        /// The type that the first bytes suggest.
        found: &'static str,
        /// The types that this build decodes.
        understood: String,
    },
    /// The type of the content is known, but uses a variant that is not supported.
    #[error("{origin}: unsupported: {what}")]
    UnsupportedCoding {
        /// The file, or the picture or sound passed as bytes.
        origin: String,
        what: String,
    },
    /// The picture is animated.
    #[error("{origin} is an animated {format}, and only single pictures are read")]
    Animated {
        /// The file, or the picture passed as bytes.
        origin: String,
        /// The type of the file.
        format: &'static str,
    },
    /// The content contradicts its own format.
    #[error("{origin} is damaged: {reason}")]
    Damaged {
        /// The file, or the picture or sound passed as bytes.
        origin: String,
        /// The decoder's message.
        reason: String,
    },
    /// The content ends too early.
    #[error("{origin} is cut short: {reason}")]
    Truncated {
        /// The file, or the picture or sound passed as bytes.
        origin: String,
        /// The missing part.
        reason: String,
    },
    /// A side of a picture is zero.
    #[error("{origin} is {width} by {height} pixels, which is nothing to look at")]
    NoPixels {
        /// The file, or the picture passed in another form.
        origin: String,
        width: u32,
        height: u32,
    },
    /// A picture has more pixels than are decoded.
    #[error("{origin} is {width} by {height} pixels; at most {max} {unit} are decoded")]
    TooManyPixels {
        /// The file, or the picture passed in another form.
        origin: String,
        width: u32,
        height: u32,
        max: u64,
        /// The unit of the cap: `pixels`, or `bytes` of pixels as they are stored.
        unit: &'static str,
    },
    /// Decoding a picture needs more memory than is allowed.
    #[error("{origin} needs more than {max} bytes of memory to decode, the most that are allowed")]
    TooMuchMemory {
        /// The file, or the picture passed as bytes.
        origin: String,
        max: u64,
    },
    /// A picture is so narrow that resizing it would be slow.
    #[error(
        "{width} by {height} pixels become {widened} pixels when they are as wide as patches; at most {max} are computed"
    )]
    TooNarrow {
        width: u32,
        height: u32,
        /// Number of pixels with the width of its patches and its own height.
        widened: u64,
        max: u64,
    },
    /// The length of an array differs from the length that its sizes imply.
    #[error("{what} has {found} values; needed are {needed}")]
    WrongLength {
        what: &'static str,
        /// The required length.
        needed: String,
        /// The actual length.
        found: usize,
    },
    /// The requested number of soft tokens per picture is not supported.
    #[error("a picture cannot become {budget} soft tokens at most; choose {choices}")]
    UnsupportedBudget {
        /// The requested number.
        budget: u32,
        /// The supported numbers.
        choices: String,
    },
    /// No grid of patches within the budget has the proportions of the picture.
    #[error("a picture of {width} by {height} pixels does not fit {budget} soft tokens")]
    DoesNotFit {
        width: u32,
        height: u32,
        /// The largest number of soft tokens.
        budget: u32,
    },
    /// A grid was made for a different picture or different settings.
    #[error("the grid is for a picture of {expected}, and this one is {found}")]
    OtherGrid {
        /// Width and height that the grid was made for.
        expected: String,
        /// Width and height of the picture.
        found: String,
    },
    /// The positions of patches from an application are not a complete grid.
    #[error("position {index} of the patches: {reason}")]
    InvalidPositions {
        /// Index of the patch, counted from 0.
        index: usize,
        reason: String,
    },
    /// A value is NaN or infinite.
    #[error("{origin}: the value at index {index} is {value}")]
    NotFinite {
        /// The file, the sound, or the array.
        origin: String,
        /// The value's index. Samples of alternating channels count one by one.
        index: usize,
        /// NaN or an infinity.
        value: f32,
    },
    /// A sound has no samples.
    #[error("{origin} has no samples")]
    NoSamples {
        /// The file, or the sound passed in another form.
        origin: String,
    },
    /// A sound is shorter than one frame of features.
    #[error("{origin} has {samples} samples at {rate} Hz; one frame needs {needed}")]
    TooShort {
        /// The file, or the sound passed in another form.
        origin: String,
        /// Number of samples, at the rate of the settings.
        samples: usize,
        /// The rate of the settings.
        rate: u32,
        /// The smallest number of samples.
        needed: usize,
    },
    /// A sound is longer than the longest clip.
    #[error("{origin} lasts longer than {longest_seconds} s, the longest that the model hears")]
    TooLong {
        /// The file, or the sound passed in another form.
        origin: String,
        /// The limit in seconds.
        longest_seconds: f64,
    },
    /// Sounds with this sample rate cannot be resampled.
    #[error("{origin} has {rate} samples per second; {min} to {max} are resampled")]
    UnsupportedRate {
        /// The file, or the sound passed in another form.
        origin: String,
        rate: u32,
        min: u32,
        max: u32,
    },
    /// The number of channels is 0, more than can be mixed, or does not divide the number of
    /// samples.
    #[error("{origin}: {samples} samples cannot be {channels} channels")]
    InvalidChannels {
        /// The file, or the sound passed in another form.
        origin: String,
        channels: u32,
        samples: usize,
    },
}

impl PreprocessingError {
    /// Returns the kind of error, by which a caller can decide how to react.
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

    /// Returns advice for a `help:` line.
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
            PreprocessingError::TooManyPixels { .. } | PreprocessingError::TooMuchMemory { .. } => {
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

/// Classifies the error by the application's possible reaction.
impl From<PreprocessingError> for shardwright_vocabulary::Error {
    fn from(error: PreprocessingError) -> Self {
        let (kind, help) = (error.kind(), error.help());
        shardwright_vocabulary::Error::caused_by(kind, error, Some(help))
    }
}
