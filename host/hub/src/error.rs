//! Errors of finding and fetching models.

use std::io;
use std::path::PathBuf;

use shardwright_files::shell_quoted;
use shardwright_vocabulary::{Error, ErrorKind, Shortage};

use crate::Candidate;

/// Reasons why a model was not found or not fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The text is not an id.
    #[error("`{text}` is not the id of a model on a hub: {reason}")]
    Id { text: String, reason: &'static str },
    /// The text is not the address of a hub.
    #[error("`{text}` is not the address of a hub: {reason}")]
    Endpoint { text: String, reason: &'static str },
    /// A token cannot be read or used.
    #[error("the token in {source_name}: {reason}")]
    Token {
        /// The variable or the file.
        source_name: String,
        /// The problem, without the token.
        reason: String,
    },
    /// No variable specifies a place for a cache.
    #[error("no folder is known for the cache of the hub")]
    NoCache,
    /// `HF_HUB_OFFLINE` forbids contacting a server.
    #[error("{id} cannot be fetched: HF_HUB_OFFLINE is set")]
    Offline { id: String },
    /// The hub denies this user access to the model.
    #[error("the hub denies access to {id} (status {status}){}", if *with_token { "" } else { ", and no token was sent" })]
    Denied {
        id: String,
        /// HTTP status, 401 or 403.
        status: u16,
        /// Page for accepting the model's terms.
        page: String,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// The model, revision or file does not exist.
    #[error("{url}: not found{}", if *maybe_private { ", or private" } else { "" })]
    NotFound {
        url: String,
        /// Whether the hub's answer may also mean a private model.
        maybe_private: bool,
    },
    /// The hub limits the rate of requests.
    #[error("{url}: too many requests{}", seconds.map_or_else(String::new, |seconds| format!(", retry after {seconds} s")))]
    RateLimited {
        url: String,
        /// Seconds to wait, if the hub specifies them.
        seconds: Option<u64>,
    },
    /// The server returned an unexpected status.
    #[error("{url}: unexpected status {status}")]
    Status { url: String, status: u16 },
    /// The server did not answer, or the answer was cut off.
    #[error("{url}: {reason}")]
    Network {
        url: String,
        /// The failed part: the name, the connection, TLS, the protocol.
        reason: String,
    },
    /// The machine has no certificates for checking servers.
    #[error("no certificate authorities were found on this machine: {reason}")]
    Certificates { reason: String },
    /// The server redirected to an address that is not followed.
    #[error("{url}: redirected to `{to}`: {reason}")]
    Redirect {
        url: String,
        /// Target of the redirect.
        to: String,
        /// The reason for not following it.
        reason: &'static str,
    },
    /// The list of files cannot be used.
    #[error("{url}: {reason}")]
    Listing { url: String, reason: String },
    /// The name of a file leads out of its folder.
    #[error("the hub lists the file {name:?}: {reason}")]
    Name { name: String, reason: &'static str },
    /// The repository has no weights in a supported format.
    #[error("{id} has neither safetensors nor GGUF files")]
    Nothing { id: String },
    /// There are several models to choose from.
    #[error("{id} has several GGUF models: {}", listed(candidates))]
    Choose { id: String, candidates: Vec<Candidate> },
    /// The repository has no matching file.
    #[error("{id} has no file that matches `{wanted}`{}", others(candidates))]
    NoMatch {
        id: String,
        /// The requested name, pattern or quantisation.
        wanted: String,
        /// The available GGUF models.
        candidates: Vec<Candidate>,
    },
    /// The server did not send as many bytes as it listed.
    #[error("{url}: expected {expected} bytes, got {got}")]
    Size {
        url: String,
        /// Number of bytes in the list.
        expected: u64,
        /// Number of bytes received, or the size that the server announced.
        got: String,
    },
    /// The hash of the bytes differs from the list.
    #[error("{url}: expected the hash {expected}, got {got}; the bytes were discarded")]
    Checksum {
        url: String,
        expected: String,
        /// The hash of the bytes.
        got: String,
    },
    /// A file of the cache cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The user interrupted the work.
    #[error("fetching {id} was interrupted")]
    Cancelled { id: String },
}

impl HubError {
    /// Creates the error for a file of the cache.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> HubError {
        let path = path.into();
        move |source| HubError::Io { path, source }
    }

    /// Returns the next step, for a `help:` line.
    pub fn help(&self) -> String {
        match self {
            HubError::Id { .. } => {
                "write OWNER/NAME, such as google/gemma-3-270m, and after it @REVISION or \
                                    :FILE if needed"
                    .to_owned()
            }
            HubError::Endpoint { .. } => "write https://HOST; http:// is for a hub on this machine, or one \
                                          that needs no token"
                .to_owned(),
            HubError::Token { .. } => "set HF_TOKEN, or log in again with `hf auth login`".to_owned(),
            HubError::NoCache => "set HF_HUB_CACHE, or pass `--cache DIR`".to_owned(),
            HubError::Offline { .. } => "unset HF_HUB_OFFLINE to use the network".to_owned(),
            HubError::Denied { page, with_token: true, .. } => {
                format!(
                    "accept the terms on {page} as the user of the token, and check that the token may read it"
                )
            }
            HubError::Denied { page, .. } => format!(
                "accept the terms on {page} if there are any, then set HF_TOKEN to a token of that user"
            ),
            HubError::NotFound { maybe_private: true, .. } => {
                "check owner, name and revision; a private model needs HF_TOKEN".to_owned()
            }
            HubError::NotFound { .. } => "check owner, name, revision and file".to_owned(),
            HubError::RateLimited { .. } => {
                "wait and pull again; a token in HF_TOKEN raises the limit".to_owned()
            }
            HubError::Status { .. } => "try again later; what was fetched is kept".to_owned(),
            HubError::Network { .. } => "check the connection, HF_ENDPOINT and HTTPS_PROXY, and pull again; \
                                         what was fetched is kept"
                .to_owned(),
            HubError::Certificates { .. } => {
                "install ca-certificates, or set SSL_CERT_FILE to a file of certificates".to_owned()
            }
            HubError::Redirect { .. } | HubError::Listing { .. } | HubError::Name { .. } => {
                "check HF_ENDPOINT: the server does not behave like a hub".to_owned()
            }
            HubError::Nothing { .. } => {
                "choose a repository with safetensors or GGUF files, or name files with `--file`".to_owned()
            }
            HubError::Choose { id, candidates } => choice_help(id, candidates),
            HubError::NoMatch { id, candidates, .. } if !candidates.is_empty() => choice_help(id, candidates),
            HubError::NoMatch { .. } => {
                "name one of its files, or a pattern such as `*.safetensors`".to_owned()
            }
            HubError::Size { .. } | HubError::Checksum { .. } => {
                "pull again; if it stays so, the server or a proxy changes what it sends".to_owned()
            }
            HubError::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                "free space, or name another folder with `--cache` or HF_HUB_CACHE; then pull again, which \
                 resumes"
                    .to_owned()
            }
            HubError::Io { source, .. } => {
                Shortage::of(source).map_or("check the permissions of the cache", Shortage::help).to_owned()
            }
            HubError::Cancelled { .. } => "pull again to resume where it stopped".to_owned(),
        }
    }

    /// Returns the kind of error for applications.
    pub fn kind(&self) -> ErrorKind {
        match self {
            HubError::Id { .. }
            | HubError::Endpoint { .. }
            | HubError::Token { .. }
            | HubError::Choose { .. }
            | HubError::NoMatch { .. } => ErrorKind::Argument,
            HubError::Redirect { .. }
            | HubError::Listing { .. }
            | HubError::Name { .. }
            | HubError::Size { .. }
            | HubError::Checksum { .. } => ErrorKind::Invalid,
            HubError::Nothing { .. } => ErrorKind::Unsupported,
            HubError::Cancelled { .. } => ErrorKind::Cancelled,
            HubError::Io { source, .. } => ErrorKind::of_io(source),
            _ => ErrorKind::Missing,
        }
    }
}

impl From<HubError> for Error {
    fn from(error: HubError) -> Error {
        let (kind, help) = (error.kind(), error.help());
        // The help of a full disk names the options of this crate.
        Error::caused_by(kind, error, None).with_help(help)
    }
}

/// Maximum number of models in a message.
const LISTED: usize = 40;

/// Formats candidates, such as `a.gguf (253 MB), b.gguf`.
fn listed(candidates: &[Candidate]) -> String {
    let one = |candidate: &Candidate| match candidate.bytes {
        Some(bytes) => format!("{} ({})", candidate.name, megabytes(bytes)),
        None => candidate.name.clone(),
    };
    let mut words: Vec<String> = candidates.iter().take(LISTED).map(one).collect();
    if candidates.len() > LISTED {
        words.push(format!("and {} more", candidates.len() - LISTED));
    }
    words.join(", ")
}

/// Formats a size in decimal units, as hubs do.
fn megabytes(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{bytes} bytes"),
        1_000_000..1_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

fn others(candidates: &[Candidate]) -> String {
    if candidates.is_empty() { String::new() } else { format!("; its GGUF models: {}", listed(candidates)) }
}

/// Returns a suggestion that names a file, and a quantisation if the names include one. The most
/// common quantisation is preferred.
fn choice_help(id: &str, candidates: &[Candidate]) -> String {
    let usual = candidates.iter().find(|candidate| candidate.name.to_ascii_uppercase().contains("Q4_K_M"));
    let Some(first) = usual.or(candidates.first()) else { return String::new() };
    let stem = first.name.rsplit('/').next().unwrap_or(&first.name).trim_end_matches(".gguf");
    let named = |name: &str| shell_quoted(format!("{id}:{name}"));
    match stem.rsplit(['-', '.']).find(|word| word.contains('_') || word.starts_with(['Q', 'q', 'F', 'B'])) {
        Some(tag) => format!("choose one: `{}`, or a file with `{}`", named(tag), named(&first.name)),
        None => format!("choose one: `{}`", named(&first.name)),
    }
}
