//! Records of what was built and what ran: artefacts, bundles, runs and reports all carry them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{EntryName, Flag, FlagVerdict};

mod shard;

pub use shard::{Beforehand, CompiledHere, PassedOver, Place, ProcessPlacement, ShardOrigin};

/// The planner that answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannerIdentity {
    /// As it describes itself.
    pub name: String,
    /// As it describes itself.
    pub version: String,
    /// Whether it is the one the host carries.
    pub built_in: bool,
}

/// A shim at work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShimIdentity {
    /// Its name.
    pub shim: String,
    /// Its version.
    pub version: String,
    /// The device it compiled for.
    pub device: String,
    /// Whether that is a simulator of the planned target, not the target itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
}

/// The outcome of a flag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlagOutcome {
    /// The flag that was requested.
    pub flag: Flag,
    /// Its outcome.
    pub verdict: FlagVerdict,
    /// The shim's evidence or reason; empty when it gave none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// How a node or state deviates from the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RewriteKind {
    /// A node that the shim does not support as a whole was decomposed into primitives.
    Decomposed,
    /// A state that the runtime updates.
    ByRuntime,
}

/// A node or state that does not run as the graph has it, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rewrite {
    /// The entry point.
    pub entry: EntryName,
    /// Node or state.
    pub name: String,
    /// In which way.
    pub rewrite: RewriteKind,
    /// The shim's reason; empty when it gave none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// A node that runs elsewhere than on the device itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodePlacement {
    /// The entry point.
    pub entry: EntryName,
    /// Name of the node.
    pub node: String,
    /// `cpu`, `fused`, …
    pub place: String,
    /// Why; empty when the shim gave no reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// The importance of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoticeKind {
    /// A deviation from the request; `--strict` makes it an error.
    Fallback,
    /// A file was used in spite of the user's rules for signatures. It is reported even where notes
    /// are not.
    Warning,
    /// Worth knowing.
    Note,
}

/// A notice that every report must show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notice {
    /// Its importance.
    pub kind: NoticeKind,
    /// One sentence.
    pub text: String,
}

/// A field or a file of a checkpoint that is not used although it may change replies, or that is
/// not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ignored {
    /// The file.
    pub file: PathBuf,
    /// The field, with the names of the objects around it; `None` for the whole file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Why it has no effect.
    pub reason: String,
}

impl Ignored {
    /// A field of `file` and the reason why it has no effect.
    pub fn field(file: impl Into<PathBuf>, field: impl Into<String>, reason: impl Into<String>) -> Self {
        Ignored { field: Some(field.into()), ..Ignored::file(file, reason) }
    }

    /// A file and the reason why it has no effect.
    pub fn file(file: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Ignored { file: file.into(), field: None, reason: reason.into() }
    }
}

impl std::fmt::Display for Ignored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(field) = &self.field {
            write!(f, ": `{field}`")?;
        }
        write!(f, " is ignored: {}", self.reason)
    }
}

impl Notice {
    /// A deviation from the request.
    pub fn fallback(text: impl Into<String>) -> Self {
        Notice { kind: NoticeKind::Fallback, text: text.into() }
    }

    /// A file was used in spite of the user's rules for signatures.
    pub fn warning(text: impl Into<String>) -> Self {
        Notice { kind: NoticeKind::Warning, text: text.into() }
    }

    /// Worth knowing.
    pub fn note(text: impl Into<String>) -> Self {
        Notice { kind: NoticeKind::Note, text: text.into() }
    }
}
