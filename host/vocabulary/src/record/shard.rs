//! Where a shard runs, where it came from, and the events before its chain was used.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    FlagRecord, FlagVerdict, NodePlacement, Rewrite, ShardFormats, ShimIdentity, Target, TargetKind,
};

/// Where a shard runs. Two shards with an equal place can bind the same memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The opened shim, under the name that the session gave it. Two instances of one shim are two
    /// places.
    pub instance: String,
    /// Name of the shim.
    pub shim: String,
    /// The device within the shim.
    pub device: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} on {})", self.instance, self.shim, self.device)
    }
}

/// The process in which the code of a shard runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "process")]
pub enum ProcessPlacement {
    /// This process. A crash of the vendor's library crashes the application.
    #[default]
    InProcess,
    /// A worker process.
    Worker {
        /// Process id, while the worker runs.
        pid: Option<u32>,
    },
}

/// The request for a shard, and the deviations from it before the shard was loaded. The runtime
/// does not know these. The opener of a chain supplies them, so that a placement record is
/// complete.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardOrigin {
    /// The planned target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<Target>,
    /// The shim that compiled the shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compiled_by: Option<ShimIdentity>,
    /// Formats of weights, activations and states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formats: Option<ShardFormats>,
    /// Why the shard deviates from the plan, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
    /// Requested flags and their outcomes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<FlagRecord>,
    /// Flags set when the shard was loaded, with their outcomes. No artefact depends on these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loaded_with: Vec<FlagRecord>,
    /// Nodes that were decomposed and states that the runtime updates, with the shim's reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rewritten: Vec<Rewrite>,
    /// Nodes whose place the shim reported, such as nodes that run elsewhere than on the device
    /// itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placements: Vec<NodePlacement>,
}

impl ShardOrigin {
    /// Returns whether the origin is empty.
    pub fn is_unknown(&self) -> bool {
        *self == ShardOrigin::default()
    }

    /// Returns the deviations from the request, each with its reason. Under emulation, place and
    /// flags are skipped because they are not the plan's.
    pub fn fallbacks(&self, place: &Place, emulated: bool) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let elsewhere =
            self.requested.as_ref().filter(|target| !emulated && target.shim != place.shim).map(|target| {
                let Target { name, shim, .. } = target;
                format!("planned for {name} (shim `{shim}`), runs on {place}")
            });
        match (elsewhere, &self.fallback) {
            (Some(what), why) => {
                found.push((what, why.clone().unwrap_or_else(|| "no reason was given".to_owned())));
            }
            (None, Some(why)) => found.push((format!("runs on {place}"), why.clone())),
            (None, None) => {}
        }
        for placement in self.placements.iter().filter(|placement| !self.is_where_asked(placement)) {
            let NodePlacement { entry, node, place, reason } = placement;
            found.push((format!("{entry}: `{node}` runs on {place}"), reason.clone()));
        }
        let flags = self.flags.iter().chain(&self.loaded_with);
        for FlagRecord { flag, verdict, reason } in flags.filter(|_| !emulated) {
            if matches!(verdict, FlagVerdict::Refused | FlagVerdict::Unknown) {
                found.push((format!("flag {flag} is {}", verdict.name()), reason.clone()));
            }
        }
        found
    }

    /// Iterates over nodes that run where they were planned and that the shim remarks on, such as
    /// the precision of their floats.
    pub fn remarks(&self) -> impl Iterator<Item = &NodePlacement> {
        let on_device = |placement: &&NodePlacement| {
            self.is_where_asked(placement) && !matches!(placement.place.as_str(), "fused" | "none")
        };
        self.placements.iter().filter(on_device).filter(|placement| !placement.reason.is_empty())
    }

    /// Returns whether a node runs as planned: on the device itself, fused into another node, or
    /// nowhere because no other node depends on it.
    fn is_where_asked(&self, placement: &NodePlacement) -> bool {
        let kind = self.requested.as_ref().map_or(TargetKind::Npu, |target| target.kind);
        matches!(placement.place.as_str(), "fused" | "none") || placement.place == kind.name()
    }
}

/// Events before a chain was opened: other chains that could not be used, and compilation on this
/// machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beforehand {
    /// Chains with higher priority that could not be used, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed_over: Vec<PassedOver>,
    /// Details of the compilation on this machine when the chain was opened, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compiled_here: Option<CompiledHere>,
}

impl Beforehand {
    /// Returns whether there were no such events.
    pub fn is_nothing(&self) -> bool {
        *self == Beforehand::default()
    }
}

/// A chain that could not be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassedOver {
    /// Name of the chain.
    pub chain: String,
    /// The error kind, as named by the opener of chains.
    pub kind: String,
    /// Error message.
    pub error: String,
}

/// Compilation on the machine that runs the chain, because the plan allows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompiledHere {
    /// Why the artefacts compiled ahead of time were not used.
    pub because: String,
    /// Time from the checkpoint to loadable artefacts, planning included.
    pub nanoseconds: u64,
}
