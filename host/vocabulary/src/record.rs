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

/// What became of a flag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlagOutcome {
    /// What was asked.
    pub flag: Flag,
    /// What became of it.
    pub verdict: FlagVerdict,
    /// The shim's evidence or reason; empty when it gave none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// In which way a node or state does not run as the graph has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RewriteKind {
    /// A node that the shim does not take whole became primitives.
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

/// How loudly something wants to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoticeKind {
    /// Something was done in another way than asked; `--strict` makes it an error.
    Fallback,
    /// Worth knowing.
    Note,
}

/// One thing that a report must not keep silent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notice {
    /// How loudly.
    pub kind: NoticeKind,
    /// One sentence.
    pub text: String,
}

impl Notice {
    /// Something was done in another way than asked.
    pub fn fallback(text: impl Into<String>) -> Self {
        Notice { kind: NoticeKind::Fallback, text: text.into() }
    }

    /// Worth knowing.
    pub fn note(text: impl Into<String>) -> Self {
        Notice { kind: NoticeKind::Note, text: text.into() }
    }
}
