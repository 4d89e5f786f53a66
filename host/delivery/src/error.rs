use std::path::PathBuf;

use shardwright_bundle::BundleError;
use shardwright_vocabulary::ErrorKind;

/// Why a bundle is not laid out for a channel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeliveryError {
    /// The bundle cannot be read, or its share not be written.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// A file or folder cannot be written.
    #[error("`{}`: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Something is there already.
    #[error("`{}` is not empty", path.display())]
    Occupied {
        /// The folder.
        path: PathBuf,
    },
    /// A file's name that would lie outside the folder.
    #[error("a file called `{name}` would not lie in the folder")]
    Outside {
        /// Its beginning.
        name: String,
    },
    /// A name that the channel does not take.
    #[error("`{name}` is no name of {of}: it begins with a letter and has letters, digits and underscores")]
    Name {
        /// What is named: `an AI pack`.
        of: &'static str,
        /// The name.
        name: String,
    },
    /// A name that cannot stand in a script.
    #[error("`{name}`, the name of {of}, would be more than a name to a shell")]
    ScriptName {
        /// What is named: `a vendor's library`.
        of: &'static str,
        /// Its beginning.
        name: String,
    },
    /// A chip whose names in Android nobody knows.
    #[error("nothing says how Android names {soc}, by which Google Play chooses")]
    NoChipName {
        /// The chip of the variant.
        soc: String,
    },
    /// Two groups would get the same devices.
    #[error("{chip} is of {first} and of {second}")]
    ChipTwice {
        /// The chip, as Android names it.
        chip: String,
        /// A variant.
        first: String,
        /// Another.
        second: String,
    },
    /// Two variants would have one group.
    #[error("{first} and {second} would both be the device group `{group}`")]
    GroupTwice {
        /// The group.
        group: String,
        /// A variant.
        first: String,
        /// Another.
        second: String,
    },
    /// A file that no pack can hold.
    #[error("{used_as} of {soc} has {bytes} bytes, and an AI pack holds {limit}")]
    FileTooLarge {
        /// The chip of the variant.
        soc: String,
        /// The field of the manifest that names the file.
        used_as: String,
        /// Its length.
        bytes: u64,
        /// The most that a pack holds.
        limit: u64,
    },
    /// More than a device may be given by one version of an app.
    #[error("devices with {soc} would get {bytes} bytes, and a version of an app may have {limit}")]
    AppTooLarge {
        /// The chip of the variant.
        soc: String,
        /// What they would get.
        bytes: u64,
        /// The most there may be.
        limit: u64,
    },
    /// Executable code where only models may be.
    #[error("{used_as} is {what}, and only models may be delivered this way")]
    Code {
        /// The field of the manifest that names the file.
        used_as: String,
        /// What its first bytes say it is.
        what: &'static str,
    },
    /// Terms under which nothing says that the model may be published.
    #[error("nothing says under which licence `{model}` may be published")]
    NoLicence {
        /// The model.
        model: String,
    },
    /// A text that a card does not take.
    #[error("`{value}` is no {what}")]
    CardText {
        /// What it should be.
        what: &'static str,
        /// The text.
        value: String,
    },
    /// A shim whose manifest is not there.
    #[error("`{soc}` needs the shim `{shim}`, of which no manifest was found")]
    NoShim {
        /// The chip of the variant.
        soc: String,
        /// The shim.
        shim: String,
    },
}

impl DeliveryError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> DeliveryError {
        let path = path.into();
        |source| DeliveryError::Io { path, source }
    }

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            // That of the bundle's error.
            DeliveryError::Bundle(_) | DeliveryError::ScriptName { .. } | DeliveryError::Outside { .. } => {
                ErrorKind::Invalid
            }
            DeliveryError::Io { .. } | DeliveryError::NoChipName { .. } | DeliveryError::NoShim { .. } => {
                ErrorKind::Missing
            }
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

    /// What would help.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            DeliveryError::Bundle(error) => error.help(),
            DeliveryError::Io { .. } => Some("check the path, the permissions and the free space"),
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

/// What an application can do about it.
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
