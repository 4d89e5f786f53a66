//! Why a file could not be read.

/// Why a file could not be read, and where in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContainerError {
    /// Something reaches beyond the end.
    #[error("{what} at offset {offset} needs {wanted} bytes and {available} are left")]
    Truncated {
        /// The item being read.
        what: &'static str,
        /// Where it begins.
        offset: u64,
        /// Its length.
        wanted: u64,
        /// Bytes available from that offset on.
        available: u64,
    },
    /// A value that cannot be.
    #[error("{what} at offset {offset}: {reason}")]
    Malformed {
        /// The item being read.
        what: &'static str,
        /// Its offset.
        offset: u64,
        /// The reason.
        reason: String,
    },
    /// More than is read.
    #[error("{what} at offset {offset}: {count}, and at most {most} are read")]
    TooMany {
        /// The item.
        what: &'static str,
        /// Its offset.
        offset: u64,
        /// The number in the file.
        count: u64,
        /// The cap.
        most: u64,
    },
    /// An unknown version of the format.
    #[error("{what} at offset {offset} has version {version}; what is read is {supported}")]
    UnknownVersion {
        /// The format.
        what: &'static str,
        /// Offset of the version.
        offset: u64,
        /// The version found.
        version: String,
        /// The supported version.
        supported: &'static str,
    },
    /// Compiled code of no bytes: a compiler that failed in silence leaves that.
    #[error("{what} at offset {offset} has no bytes: the compiler that wrote it failed without saying so")]
    Empty {
        /// The item.
        what: &'static str,
        /// Its offset.
        offset: u64,
    },
    /// Contents that do not add up to the sum that was written with them.
    #[error(
        "{what} at offset {offset} is damaged: its check sum is {found:#010x} and {said:#010x} was written"
    )]
    Damaged {
        /// The item.
        what: &'static str,
        /// Where it begins.
        offset: u64,
        /// The computed sum.
        found: u32,
        /// The recorded sum.
        said: u32,
    },
}

impl ContainerError {
    /// Advice.
    pub fn help(&self) -> &'static str {
        match self {
            ContainerError::Truncated { .. } | ContainerError::Damaged { .. } => {
                "the file is cut off or damaged: fetch or make it again"
            }
            ContainerError::Malformed { .. } | ContainerError::TooMany { .. } => {
                "the file is damaged, or not what its first bytes say: make it again with the tool that wrote it"
            }
            ContainerError::UnknownVersion { .. } => {
                "a newer tool wrote it: write it with the version named, or teach this reader the new one"
            }
            ContainerError::Empty { .. } => "compile again and look at the compiler's own log",
        }
    }
}
