//! Errors of reading a file.

/// The reason why a file could not be read, with the offset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContainerError {
    /// An item extends beyond the end of the file.
    #[error("{what} at offset {offset} needs {wanted} bytes, but only {available} are left")]
    Truncated {
        /// The item being read.
        what: &'static str,
        offset: u64,
        /// Length of the item in bytes.
        wanted: u64,
        /// Bytes available from that offset.
        available: u64,
    },
    /// A value is impossible.
    #[error("{what} at offset {offset}: {reason}")]
    Malformed {
        /// The item being read.
        what: &'static str,
        offset: u64,
        reason: String,
    },
    /// A number exceeds the limit for reading.
    #[error("{what} at offset {offset}: {count}, at most {most} are supported")]
    TooMany {
        what: &'static str,
        offset: u64,
        /// The number in the file.
        count: u64,
        /// Maximum number that is read.
        most: u64,
    },
    /// The version of the format is unknown.
    #[error("{what} at offset {offset} has version {version}, expected {supported}")]
    UnknownVersion {
        what: &'static str,
        /// Offset of the version.
        offset: u64,
        version: String,
        supported: &'static str,
    },
    /// Compiled code is empty. A compiler that fails without an error leaves such code.
    #[error("{what} at offset {offset} is empty: the compiler that wrote it failed silently")]
    Empty { what: &'static str, offset: u64 },
    /// The content does not match the checksum that was written with it.
    #[error("{what} at offset {offset} is damaged: its checksum is {found:#010x}, expected {said:#010x}")]
    Damaged {
        what: &'static str,
        /// Offset of the content.
        offset: u64,
        /// The computed checksum.
        found: u32,
        /// The recorded checksum.
        said: u32,
    },
}

impl ContainerError {
    /// Returns the advice for a `help:` line.
    pub fn help(&self) -> &'static str {
        match self {
            ContainerError::Truncated { .. } | ContainerError::Damaged { .. } => {
                "the file is truncated or damaged: fetch or create it again"
            }
            ContainerError::Malformed { .. } | ContainerError::TooMany { .. } => {
                "the file is damaged, or not of the format that its first bytes indicate: create it again"
            }
            ContainerError::UnknownVersion { .. } => {
                "a newer tool wrote it: use a tool that writes a supported version"
            }
            ContainerError::Empty { .. } => "compile again and look at the compiler's own log",
        }
    }
}
