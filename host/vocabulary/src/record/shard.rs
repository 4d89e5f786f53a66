//! Where a shard runs, where it came from, and what happened before its chain was used.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    FlagOutcome, FlagVerdict, NodePlacement, Rewrite, ShardFormats, ShimIdentity, Target, TargetKind,
};

/// Where a shard runs. Two shards with an equal place can bind the same memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The opened shim, as the session that opened it calls it: two instances of one shim are two
    /// places.
    pub instance: String,
    /// The shim.
    pub shim: String,
    /// The device within the shim.
    pub device: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} on {})", self.instance, self.shim, self.device)
    }
}

/// In which process the code of a shard runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "process")]
pub enum ProcessPlacement {
    /// In this process: a crash of the vendor's library crashes the application.
    #[default]
    InProcess,
    /// In a worker.
    Worker {
        /// Its id, as long as it lives.
        pid: Option<u32>,
    },
}

/// What was requested for a shard and what became of it before it was loaded. The runtime does not
/// know this: the opener of a chain supplies it, so that a placement record is complete.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardOrigin {
    /// The planned target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<Target>,
    /// Who compiled it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compiled_by: Option<ShimIdentity>,
    /// Formats of weights, activations and states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formats: Option<ShardFormats>,
    /// Why it deviates in place or manner, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
    /// Requested flags and their outcomes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<FlagOutcome>,
    /// Flags it was loaded with, which no artefact depends on, and their outcomes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loaded_with: Vec<FlagOutcome>,
    /// Nodes that were decomposed and states that the runtime updates, with the shim's reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rewritten: Vec<Rewrite>,
    /// Nodes that run elsewhere than on the device itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placements: Vec<NodePlacement>,
}

impl ShardOrigin {
    /// Whether nothing was recorded.
    pub fn is_unknown(&self) -> bool {
        *self == ShardOrigin::default()
    }

    /// Deviations from the request, with reasons. Under emulation neither the place nor the flags
    /// are the plan's.
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
        for FlagOutcome { flag, verdict, reason } in flags.filter(|_| !emulated) {
            if matches!(verdict, FlagVerdict::Refused | FlagVerdict::Unknown) {
                found.push((format!("flag {flag} is {}", verdict.name()), reason.clone()));
            }
        }
        found
    }

    /// Nodes that run where they were planned and on which the shim still remarks, such as the
    /// precision their floats are computed in.
    pub fn remarks(&self) -> impl Iterator<Item = &NodePlacement> {
        let on_device = |placement: &&NodePlacement| {
            self.is_where_asked(placement) && !matches!(placement.place.as_str(), "fused" | "none")
        };
        self.placements.iter().filter(on_device).filter(|placement| !placement.reason.is_empty())
    }

    /// On the device itself, fused into another node, or nowhere because nothing depends on it.
    fn is_where_asked(&self, placement: &NodePlacement) -> bool {
        let kind = self.requested.as_ref().map_or(TargetKind::Npu, |target| target.kind);
        matches!(placement.place.as_str(), "fused" | "none") || placement.place == kind.name()
    }
}

/// What preceded a chain: other chains that could not be used, and compiling for it on this
/// machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beforehand {
    /// Chains that come first and could not be used, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed_over: Vec<PassedOver>,
    /// Details of compiling on this machine when it was opened, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compiled_here: Option<CompiledHere>,
}

impl Beforehand {
    /// Whether nothing came before.
    pub fn is_nothing(&self) -> bool {
        *self == Beforehand::default()
    }
}

/// A chain that could not be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassedOver {
    /// Its name.
    pub chain: String,
    /// The error kind, as named by the opener of chains.
    pub kind: String,
    /// What went wrong.
    pub error: String,
}

/// Compiling on the machine that runs, because the plan allows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompiledHere {
    /// Why the artefacts compiled ahead of time were not used.
    pub because: String,
    /// Time from the checkpoint to loadable artefacts, planning included.
    pub nanoseconds: u64,
}
