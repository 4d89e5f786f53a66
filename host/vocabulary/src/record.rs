//! Records of builds and runs, used in artefacts, bundles, runs and reports.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{EntryName, Flag, FlagVerdict};

mod shard;

pub use shard::{Beforehand, CompiledHere, PassedOver, Place, ProcessPlacement, ShardOrigin};

/// Identity of the planner that made the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannerIdentity {
    /// Name that the planner reports.
    pub name: String,
    /// Version that the planner reports.
    pub version: String,
    /// Whether the planner is the host's built-in one.
    pub built_in: bool,
}

impl std::fmt::Display for PlannerIdentity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let origin = if self.built_in { "built-in" } else { "from a file" };
        write!(formatter, "{} {} ({origin})", self.name, self.version)
    }
}

/// Identity of a shim that compiled or ran a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShimIdentity {
    /// Name of the shim.
    pub shim: String,
    /// Version of the shim.
    pub version: String,
    /// Device that the shim compiled for.
    pub device: String,
    /// Whether the device is a simulator of the planned target.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
}

/// A requested flag with its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlagRecord {
    /// The flag that was requested.
    pub flag: Flag,
    /// Outcome of the flag.
    pub verdict: FlagVerdict,
    /// The shim's evidence or reason. Empty if the shim gave none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// How a node or state deviates from the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RewriteKind {
    /// The shim does not support the node as a whole, so it was decomposed into primitives.
    Decomposed,
    /// The runtime updates the state.
    ByRuntime,
}

/// A node or state that runs differently from the graph, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rewrite {
    /// Entry point that contains the node or state.
    pub entry: EntryName,
    /// Name of the node or state.
    pub name: String,
    /// Kind of deviation.
    pub rewrite: RewriteKind,
    /// The shim's reason. Empty if the shim gave none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// The place of a node as the shim reports it, usually one other than the device itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodePlacement {
    /// Entry point that contains the node.
    pub entry: EntryName,
    /// Name of the node.
    pub node: String,
    /// Place, such as `cpu` or `fused`.
    pub place: String,
    /// The shim's reason. Empty if the shim gave none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// The importance of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoticeKind {
    /// A deviation from the request. `--strict` makes it an error.
    Fallback,
    /// A file was used although it violates the user's signature policy. Reported even if notes are
    /// hidden.
    Warning,
    /// How a plan was made or a bundle was compiled. Reported then and by `inspect`, and not each
    /// time the bundle runs.
    Making,
    /// Other useful information.
    Note,
}

impl NoticeKind {
    /// Returns whether the notice is neither a deviation nor a warning, so that a short report may
    /// omit it.
    pub const fn is_note(self) -> bool {
        matches!(self, NoticeKind::Making | NoticeKind::Note)
    }
}

/// A notice that every report must show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notice {
    /// Importance of the notice.
    pub kind: NoticeKind,
    /// Text, one sentence.
    pub text: String,
}

/// An unused file, field or tensor of a checkpoint, either because it is unknown or although it may
/// change replies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ignored {
    /// Path of the file.
    pub file: PathBuf,
    /// The field, with the names of the enclosing objects. `None` for a tensor or the whole file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The tensor, or the first of a group of tensors. `None` for a field or the whole file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor: Option<String>,
    /// Why it has no effect.
    pub reason: String,
}

impl Ignored {
    /// Creates an entry for a field of `file` with the reason why it has no effect.
    pub fn field(file: impl Into<PathBuf>, field: impl Into<String>, reason: impl Into<String>) -> Self {
        Ignored { field: Some(field.into()), ..Ignored::file(file, reason) }
    }

    /// Creates an entry for a tensor of `file` with the reason why it has no effect.
    pub fn tensor(file: impl Into<PathBuf>, tensor: impl Into<String>, reason: impl Into<String>) -> Self {
        Ignored { tensor: Some(tensor.into()), ..Ignored::file(file, reason) }
    }

    /// Creates an entry for a whole file with the reason why it has no effect.
    pub fn file(file: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Ignored { file: file.into(), field: None, tensor: None, reason: reason.into() }
    }
}

impl std::fmt::Display for Ignored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(field) = &self.field {
            write!(f, ": `{field}`")?;
        }
        if let Some(tensor) = &self.tensor {
            write!(f, ": tensor `{tensor}`")?;
        }
        write!(f, " is ignored: {}", self.reason)
    }
}

impl Notice {
    /// Creates a notice of a deviation from the request.
    pub fn fallback(text: impl Into<String>) -> Self {
        Notice { kind: NoticeKind::Fallback, text: text.into() }
    }

    /// Creates a notice that a file was used although it violates the user's signature policy.
    pub fn warning(text: impl Into<String>) -> Self {
        Notice { kind: NoticeKind::Warning, text: text.into() }
    }

    /// Creates a notice about how a plan was made or a bundle was compiled.
    pub fn making(text: impl Into<String>) -> Self {
        Notice { kind: NoticeKind::Making, text: text.into() }
    }

    /// Creates a notice with other useful information.
    pub fn note(text: impl Into<String>) -> Self {
        Notice { kind: NoticeKind::Note, text: text.into() }
    }
}
