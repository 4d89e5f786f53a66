//! A planner's answer, as plain data. A [`Plan`] is the output of an untrusted guest. Only
//! [`check`](crate::check::check) turns it into a [`CheckedPlan`](crate::check::CheckedPlan), and
//! compilers only accept checked plans.

use std::fmt;

use serde::{Deserialize, Serialize};
use shardwright_vocabulary::{Encoding, EntryName, Flag, Lesson, SoftcapPlace};

/// A boundary tensor of a shard, with its encoding.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Boundary {
    /// Name, as listed by the component.
    pub name: String,
    /// Encoding. Without one, the tensor has the encoding of the shard's activations, and is
    /// converted for a reader that uses another.
    pub encoding: Option<Encoding>,
}

/// Time at which a shard is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BuildTime {
    /// Only ahead of time.
    Ahead,
    /// Also on the device, if the artefact compiled ahead of time cannot be loaded.
    JustInTime,
}

impl BuildTime {
    /// Returns the stable kebab-case name.
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
    /// First layer. Zero for a component without layers.
    pub first: u32,
    /// One past the last layer. Zero for a component without layers.
    pub end: u32,
    /// Indices of the format tuples of its layers in the request, in the order of the layers. A
    /// component without layers has one. All tuples of a shard agree in activations, states and
    /// attention.
    pub formats: Vec<u32>,
}

/// One shard: adjacent segments of the model on one target.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// Segments in the order of a step, at most one of each component.
    pub segments: Vec<PlannedSegment>,
    /// Index of the target in the request.
    pub target: u32,
    /// Context capacity in tokens. Zero if the model has no states.
    pub context: u32,
    /// Entry points to build.
    pub entries: Vec<EntryName>,
    /// Boundary tensors that its segments read and that no earlier segment of it wrote.
    pub inputs: Vec<Boundary>,
    /// Boundary tensors that its segments write and that a later shard or no segment at all reads.
    pub outputs: Vec<Boundary>,
    /// Place where the soft-cap of its component is computed. `None` if no component has a
    /// soft-cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softcap: Option<SoftcapPlace>,
    pub flags: Vec<Flag>,
    pub build: BuildTime,
}

impl Shard {
    /// Iterates over the format tuples of every layer and of every component without layers, in
    /// order.
    pub fn formats(&self) -> impl Iterator<Item = u32> + '_ {
        self.segments.iter().flat_map(|segment| segment.formats.iter().copied())
    }

    /// Returns the format tuple of the whole shard, or `None` if its parts differ.
    pub fn uniform_formats(&self) -> Option<u32> {
        let first = self.formats().next()?;
        self.formats().all(|formats| formats == first).then_some(first)
    }
}

/// Basis of a choice.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The limit with this name.
    Limit(String),
    /// The cost with this name: `time`, `weight-bytes`, `ops`, …
    Cost(String),
    /// The goal with this name.
    Goal(String),
    /// Earlier feedback with this error class.
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

/// Reason for a choice.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// Index of the shard in the plan. `None` if the choice concerns the whole plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<u32>,
    pub choice: String,
    /// The reason, in one sentence with numbers.
    pub because: String,
    pub cause: Cause,
}

/// A chain that takes over if the first one cannot be loaded or its target is lost: the whole model
/// on one target.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fallback {
    /// Index of the target in the request.
    pub target: u32,
    /// Indices of the format tuples that the chain may have, in order of preference. Empty for the
    /// formats of the target's profile.
    pub formats: Vec<u32>,
    /// Limits that replace the target's limits of these names. Each is below the plan's own use. A
    /// chain with limits is a hedge, in case the plan comes too close to an uncertain limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<(String, u64)>,
}

impl Fallback {
    /// Returns whether the chain replaces the plan on one of its own targets, within limits.
    pub fn is_hedge(&self) -> bool {
        !self.limits.is_empty()
    }
}

/// Choice to verify several proposed tokens per step.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedSpeculation {
    /// Name of the draft in the request.
    pub draft: String,
    /// Rows of the `decode` entry point that verifies. Every shard has this entry point.
    pub rows: u32,
    /// Expected speed-up: time per generated token without speculation divided by the time with it,
    /// in thousandths. `None` if the planner did not compute it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain_thousandths: Option<u32>,
}

/// A planner's answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Shards in order of execution.
    pub shards: Vec<Shard>,
    /// For each gathered table, the index of the chosen format in the table's list in the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<u32>,
    /// Fallback chains in order of preference.
    pub fallback: Vec<Fallback>,
    /// How proposed tokens are verified, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speculation: Option<PlannedSpeculation>,
    /// Reasons for the choices.
    pub reasons: Vec<Reason>,
    /// Limits that refusals of earlier plans showed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lessons: Vec<Lesson>,
}

impl Plan {
    /// Returns the plan as JSON without whitespace, with fields in order of declaration. Equal
    /// plans give equal bytes.
    pub fn canonical_bytes(&self) -> Vec<u8> {
        crate::canonical_json(self)
    }

    /// Returns whether `other` builds and runs in the same way. Reasons, lessons and the expected
    /// gain are ignored.
    pub fn builds_same(&self, other: &Plan) -> bool {
        let verifies = |plan: &Plan| plan.speculation.as_ref().map(|own| (own.draft.clone(), own.rows));
        self.shards == other.shards
            && self.tables == other.tables
            && self.fallback == other.fallback
            && verifies(self) == verifies(other)
    }
}
