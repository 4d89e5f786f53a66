use std::path::PathBuf;

use shardwright_bundle::BundleError;
use shardwright_files::output::OutputError;
use shardwright_vocabulary::{ErrorKind, Shortage};

/// Reasons why a bundle cannot be laid out for a channel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeliveryError {
    /// The bundle cannot be read, or a part of it cannot be written.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// A file or folder cannot be written.
    #[error("`{}`: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// The path of the target folder names something else.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The target folder is not empty.
    #[error("`{}` is not empty", path.display())]
    Occupied { path: PathBuf },
    /// The name of a file is a path outside the folder.
    #[error("a file called `{name}` would not lie in the folder")]
    Outside {
        /// Beginning of the name.
        name: String,
    },
    /// The channel does not accept a name.
    #[error("`{name}` is no name of {of}: it begins with a letter and has letters, digits and underscores")]
    Name {
        /// The named item, such as `an AI pack`.
        of: &'static str,
        name: String,
    },
    /// A name cannot be used in a script.
    #[error("`{name}`, the name of {of}, would be more than a name to a shell")]
    ScriptName {
        /// The named item, such as `a vendor's library`.
        of: &'static str,
        /// Beginning of the name.
        name: String,
    },
    /// The names that Android uses for a chip are unknown.
    #[error("nothing says how Android names {soc}, by which Google Play chooses")]
    NoChipName {
        /// The chip of the variant.
        soc: String,
    },
    /// Two groups would get the same devices.
    #[error("{chip} is of {first} and of {second}")]
    ChipTwice {
        /// The chip's name in Android.
        chip: String,
        /// One of the variants.
        first: String,
        /// The other variant.
        second: String,
    },
    /// Two variants would have the same group.
    #[error("{first} and {second} would both be the device group `{group}`")]
    GroupTwice {
        /// Name of the group.
        group: String,
        /// One of the variants.
        first: String,
        /// The other variant.
        second: String,
    },
    /// A file is too large for a pack.
    #[error("{used_as} of {soc} has {bytes} bytes, and an AI pack holds {limit}")]
    FileTooLarge {
        /// The chip of the variant.
        soc: String,
        /// The field of the manifest that names the file.
        used_as: String,
        /// Size of the file in bytes.
        bytes: u64,
        /// Largest size of a pack in bytes.
        limit: u64,
    },
    /// A device would get more bytes than one version of an app may have.
    #[error("devices with {soc} would get {bytes} bytes, and a version of an app may have {limit}")]
    AppTooLarge {
        /// The chip of the variant.
        soc: String,
        /// Bytes that devices would get.
        bytes: u64,
        /// Largest allowed number of bytes.
        limit: u64,
    },
    /// A file contains executable code, and the channel allows only models.
    #[error("{used_as} is {what}, and only models may be delivered this way")]
    Code {
        /// The field of the manifest that names the file.
        used_as: String,
        /// Kind of code, by its first bytes.
        what: &'static str,
    },
    /// No licence is given under which the model may be published.
    #[error("nothing says under which licence `{model}` may be published")]
    NoLicence {
        /// Name of the model.
        model: String,
    },
    /// A text is not accepted in a card.
    #[error("`{value}` is no {what}")]
    CardText {
        /// Expected kind of text.
        what: &'static str,
        /// Beginning of the text.
        value: String,
    },
    /// The manifest of a shim is missing.
    #[error("`{soc}` needs the shim `{shim}`, of which no manifest was found")]
    NoShim {
        /// The chip of the variant.
        soc: String,
        /// Name of the shim.
        shim: String,
    },
}

impl DeliveryError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> DeliveryError {
        let path = path.into();
        |source| DeliveryError::Io { path, source }
    }

    /// Returns the kind of error, for applications.
    pub fn kind(&self) -> ErrorKind {
        match self {
            // The conversion to `Error` keeps the bundle error's own kind.
            DeliveryError::Bundle(_) | DeliveryError::ScriptName { .. } | DeliveryError::Outside { .. } => {
                ErrorKind::Invalid
            }
            DeliveryError::Io { source, .. } => ErrorKind::of_io(source),
            DeliveryError::Output(error) => error.kind(),
            DeliveryError::NoChipName { .. } | DeliveryError::NoShim { .. } => ErrorKind::Missing,
            DeliveryError::Occupied { .. }
            | DeliveryError::Name { .. }
            | DeliveryError::NoLicence { .. }
            | DeliveryError::CardText { .. } => ErrorKind::Argument,
            DeliveryError::ChipTwice { .. }
            | DeliveryError::GroupTwice { .. }
            | DeliveryError::FileTooLarge { .. }
            | DeliveryError::AppTooLarge { .. }
            | DeliveryError::Code { .. } => ErrorKind::Unsupported,
        }
    }

    /// Returns a suggestion, if there is one.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            DeliveryError::Bundle(error) => error.help(),
            DeliveryError::Io { source, .. } => Some(
                Shortage::of(source)
                    .map_or("check the path, the permissions and the free space", Shortage::help),
            ),
            DeliveryError::Output(error) => Some(error.help()),
            DeliveryError::Occupied { .. } => Some("name a folder that is empty or does not exist yet"),
            DeliveryError::Outside { .. } => {
                Some("compile the bundle again: a name in its manifest is not a plain one")
            }
            DeliveryError::ScriptName { .. } => {
                Some("correct the shim's manifest, or the facts of the chip's profile")
            }
            DeliveryError::Name { .. } => Some("name the pack with `--name`"),
            DeliveryError::NoChipName { .. } => Some(
                "list them under `android` in the profile of the chip (`--profiles`), or compile without it",
            ),
            DeliveryError::ChipTwice { .. } => {
                Some("Play gives a device the content of one group: compile for one of the two")
            }
            DeliveryError::GroupTwice { .. } => Some("rename the profile of one of them"),
            DeliveryError::FileTooLarge { .. } => Some(
                "compile it in more shards: `--limit artefact-bytes=1400000000`, or a table in fewer bits",
            ),
            DeliveryError::AppTooLarge { .. } => {
                Some("compile it in fewer bits (`--size 4GB`), or deliver it outside of the app")
            }
            DeliveryError::Code { .. } => {
                Some("libraries and planners belong into the app's own modules; compile the bundle again")
            }
            DeliveryError::NoLicence { .. } => Some(
                "name it with `--licence`, as the hub spells it: `gemma`, `apache-2.0`; the checkpoint's publisher says which",
            ),
            DeliveryError::CardText { .. } => Some("letters, digits and `-_./` alone"),
            DeliveryError::NoShim { .. } => Some("name the folder of the shim's manifest with `--shims`"),
        }
    }
}

/// Converts to the common error type, with kind and help.
impl From<DeliveryError> for shardwright_vocabulary::Error {
    fn from(error: DeliveryError) -> Self {
        match error {
            DeliveryError::Bundle(error) => error.into(),
            error => {
                let help = error.help().map(str::to_owned);
                shardwright_vocabulary::Error::caused_by(error.kind(), error, help)
            }
        }
    }
}
