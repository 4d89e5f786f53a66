//! Why a file could not be read.

/// Why a file could not be read, and where in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContainerError {
    /// Something reaches beyond the end.
    #[error("{what} at offset {offset} needs {wanted} bytes and {available} are left")]
    Truncated {
        /// What was read.
        what: &'static str,
        /// Where it begins.
        offset: u64,
        /// Its length.
        wanted: u64,
        /// What there is from there on.
        available: u64,
    },
    /// A value that cannot be.
    #[error("{what} at offset {offset}: {reason}")]
    Malformed {
        /// What was read.
        what: &'static str,
        /// Where it stands.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// More than is read.
    #[error("{what} at offset {offset}: {count}, and at most {most} are read")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// Where they stand.
        offset: u64,
        /// How many the file says there are.
        count: u64,
        /// The cap.
        most: u64,
    },
    /// A version of the format that nobody described.
    #[error("{what} at offset {offset} has version {version}; what is read is {supported}")]
    UnknownVersion {
        /// Of what.
        what: &'static str,
        /// Where it says so.
        offset: u64,
        /// What it says.
        version: String,
        /// What is read.
        supported: &'static str,
    },
    /// Compiled code of no bytes: a compiler that failed in silence leaves that.
    #[error("{what} at offset {offset} has no bytes: the compiler that wrote it failed without saying so")]
    Empty {
        /// What.
        what: &'static str,
        /// Where it would stand.
        offset: u64,
    },
    /// Contents that do not add up to the sum that was written with them.
    #[error(
        "{what} at offset {offset} is damaged: its check sum is {found:#010x} and {said:#010x} was written"
    )]
    Damaged {
        /// What.
        what: &'static str,
        /// Where it begins.
        offset: u64,
        /// The sum of what is there.
        found: u32,
        /// The sum of what was written.
        said: u32,
    },
}

impl ContainerError {
    /// What would help.
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
