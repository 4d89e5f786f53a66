//! What a planner answers, as plain data. A [`Plan`] is what an untrusted guest said; only
//! [`check`](crate::check::check) turns it into a [`CheckedPlan`](crate::check::CheckedPlan), which
//! is all a compiler ever sees.

use std::fmt;

use serde::{Deserialize, Serialize};
use shardwright_vocabulary::{Encoding, EntryName, Flag, SoftcapPlace};

/// How one boundary tensor of a shard is written.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Boundary {
    /// Name, as the component lists it.
    pub name: String,
    /// Its encoding; without one it has the encoding of the shard's activations, and is converted
    /// for a reader that uses another.
    pub encoding: Option<Encoding>,
}

/// When a shard is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BuildTime {
    /// Ahead of time alone.
    Ahead,
    /// Also on the device, if the artefact compiled ahead of time cannot be loaded.
    JustInTime,
}

impl BuildTime {
    /// The stable kebab-case name.
    pub const fn name(self) -> &'static str {
        match self {
            BuildTime::Ahead => "ahead",
            BuildTime::JustInTime => "just-in-time",
        }
    }
}

impl fmt::Display for BuildTime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A component, or adjacent layers of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedSegment {
    /// Index of the component in the request.
    pub component: u32,
    /// First layer; zero for a component without layers.
    pub first: u32,
    /// One past the last layer; zero for a component without layers.
    pub end: u32,
    /// Index of the format tuple of each layer in the request, in the order of the layers; one of a
    /// component without layers. All tuples of a shard agree in activations and states.
    pub formats: Vec<u32>,
}

/// One shard: adjacent segments of the model on one target.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// In the order of a step, at most one of each component.
    pub segments: Vec<PlannedSegment>,
    /// Index of the target in the request.
    pub target: u32,
    /// Context capacity in tokens; zero if the model has no states.
    pub context: u32,
    /// Entry points to build.
    pub entries: Vec<EntryName>,
    /// Boundary tensors that its segments read and none of them wrote before.
    pub inputs: Vec<Boundary>,
    /// Boundary tensors that its segments wrote and a later shard reads, or nothing reads.
    pub outputs: Vec<Boundary>,
    /// Where the soft-cap of its component that has one is computed; `None` if none has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softcap: Option<SoftcapPlace>,
    /// Compiler flags.
    pub flags: Vec<Flag>,
    /// When it is compiled.
    pub build: BuildTime,
}

impl Shard {
    /// The format tuple of every layer, and of every component without layers, in order.
    pub fn formats(&self) -> impl Iterator<Item = u32> + '_ {
        self.segments.iter().flat_map(|segment| segment.formats.iter().copied())
    }

    /// The one format tuple of all of it; `None` where its parts differ.
    pub fn uniform_formats(&self) -> Option<u32> {
        let first = self.formats().next()?;
        self.formats().all(|formats| formats == first).then_some(first)
    }
}

/// The basis of a choice.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The limit of this name.
    Limit(String),
    /// The cost of this name: `time`, `weight-bytes`, `ops`, …
    Cost(String),
    /// The goal of this name.
    Goal(String),
    /// Earlier feedback of this error class.
    Feedback(String),
    /// A preference of the planner, the profile or the user.
    Preference(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, name) = match self {
            Cause::Limit(name) => ("limit", name),
            Cause::Cost(name) => ("cost", name),
            Cause::Goal(name) => ("goal", name),
            Cause::Feedback(name) => ("feedback", name),
            Cause::Preference(name) => ("preference", name),
        };
        write!(formatter, "{kind} {name}")
    }
}

/// Why something was chosen.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// Index of the shard in the plan; `None` if it concerns the whole plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<u32>,
    /// What was chosen.
    pub choice: String,
    /// Why, in one sentence with numbers.
    pub because: String,
    /// The basis of the choice.
    pub cause: Cause,
}

/// The chain that goes on when a target is lost: the whole model on another.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fallback {
    /// Index of the target in the request.
    pub target: u32,
    /// Indices of the format tuples it may have, in order of preference; none for those that its
    /// profile has.
    pub formats: Vec<u32>,
}

/// That proposed tokens are verified, several in a step.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedSpeculation {
    /// Name of the draft in the request.
    pub draft: String,
    /// Rows of the `decode` entry point that verifies; every shard has it.
    pub rows: u32,
    /// Expected time of a generated token without it, in thousandths of that with it; `None` where
    /// times are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain_thousandths: Option<u32>,
}

/// The answer of a planner.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Shards in order of execution.
    pub shards: Vec<Shard>,
    /// The format of each gathered table: index in its list in the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<u32>,
    /// The chains to fail over to when a target is lost, in order of preference.
    pub fallback: Vec<Fallback>,
    /// That proposed tokens are verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speculation: Option<PlannedSpeculation>,
    /// Reasons for the choices.
    pub reasons: Vec<Reason>,
}

impl Plan {
    /// The plan as JSON without whitespace, fields in order of declaration: equal plans, equal
    /// bytes.
    pub fn canonical_bytes(&self) -> Vec<u8> {
        crate::canonical_json(self)
    }

    /// Whether `other` would build and run the same, whatever its reasons say.
    pub fn builds_same(&self, other: &Plan) -> bool {
        let verifies = |plan: &Plan| plan.speculation.as_ref().map(|own| (own.draft.clone(), own.rows));
        self.shards == other.shards
            && self.tables == other.tables
            && self.fallback == other.fallback
            && verifies(self) == verifies(other)
    }
}
