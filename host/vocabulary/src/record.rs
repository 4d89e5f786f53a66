//! Records of what was built and what ran: artefacts, bundles, runs and reports all carry them.

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

impl Notice {
    /// A deviation from the request.
    pub fn fallback(text: impl Into<String>) -> Self {
        Notice { kind: NoticeKind::Fallback, text: text.into() }
    }

    /// Worth knowing.
    pub fn note(text: impl Into<String>) -> Self {
        Notice { kind: NoticeKind::Note, text: text.into() }
    }
}
