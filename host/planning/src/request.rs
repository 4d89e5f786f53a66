//! A planner's request: everything it may know about a model and its targets, as plain data.
//!
//! The same information as `wit/v0.2/planner.wit`, kept apart from the generated bindings so that a
//! new version of the interface changes the conversion and nothing else. Serialised with
//! `serde_json`; the fields are written in the order of declaration, hence equal requests have
//! equal bytes ([`Request::canonical_bytes`]).

use serde::{Deserialize, Serialize};
use shardwright_vocabulary::{
    CostRow, EntryName, Flag, FlagSchema, FormatTuple, Limit, Overhead, Provenance, SoftcapPlace, Target,
    TimeCost, ValueFormat, WeightFormat, WeightRole,
};

mod validate;

pub use validate::{RequestFault, caps};

/// Part a layer takes in `prefill`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PrefillPart {
    /// The whole layer.
    Full,
    /// Only what its states need: the last layer that writes one.
    StatesOnly,
    /// Nothing: no state and no wanted output depends on it.
    None,
}

/// Layers of equal structure share a kind; a component without layers has one of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerKind {
    /// Name for reports, such as `sliding` or `head`.
    pub name: String,
    /// Part it takes in prefill. Layers that differ in this are of different kinds.
    pub prefill: PrefillPart,
}

/// One layer of a component.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Index in [`Request::kinds`].
    pub kind: u32,
    /// Layer of the same component whose state this one reads instead of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub donor: Option<u32>,
    /// Whether it writes a state.
    pub writes_state: bool,
}

/// What a component consists of.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Body {
    /// It is never cut; index of its kind in [`Request::kinds`].
    Whole(u32),
    /// It may be cut before any layer.
    Layers(Vec<Layer>),
}

/// The last operation of a component soft-caps what it gives, and the runtime can do that instead.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Softcap {
    /// Index in [`Request::kinds`] of the component without it.
    pub kind_without: u32,
    /// What it takes the runtime for one row.
    pub runtime: TimeCost,
}

/// A component of the model, in order of execution.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Component {
    /// `embed`, `per-layer-input`, `decoder`, `head`, `pooling`, …
    pub name: String,
    /// Its layers, or the kind of the whole.
    pub body: Body,
    /// That it ends with a soft-cap; only where it is never cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softcap: Option<Softcap>,
    /// Names of the boundary tensors it reads (`hidden`, `per-layer`). A shard reads what the
    /// nearest earlier shard wrote under that name.
    pub inputs: Vec<String>,
    /// Names of the boundary tensors it writes (`hidden`, `per-layer`, `logits`, `embedding`). A
    /// name that is both input and output runs through every shard of a layered component.
    pub outputs: Vec<String>,
}

impl Component {
    /// Number of layers; zero for a component that is never cut.
    pub fn layer_count(&self) -> u32 {
        match &self.body {
            Body::Whole(_) => 0,
            Body::Layers(layers) => u32::try_from(layers.len()).unwrap_or(u32::MAX),
        }
    }

    /// The same with the soft-cap, if it has one, computed at `softcap`.
    pub fn shard_kinds(&self, first: u32, end: u32, softcap: Option<SoftcapPlace>) -> Option<Vec<u32>> {
        let kinds = self.kinds(first, end)?;
        match (&self.softcap, softcap) {
            (Some(existing), Some(SoftcapPlace::Runtime)) => Some(vec![existing.kind_without]),
            _ => Some(kinds),
        }
    }

    /// Kinds of the layers `first..end`, or of the whole component; `None` if the range is not
    /// inside the component.
    pub fn kinds(&self, first: u32, end: u32) -> Option<Vec<u32>> {
        match &self.body {
            Body::Whole(kind) => (first == 0 && end == 0).then(|| vec![*kind]),
            Body::Layers(layers) => {
                let range = layers.get(first as usize..end as usize)?;
                Some(range.iter().map(|layer| layer.kind).collect())
            }
        }
    }
}

/// The model as far as planning needs it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSummary {
    /// Name for reports.
    pub name: String,
    /// Model family, such as `gemma4_text`.
    pub family: String,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Largest context in tokens; zero if the model has no states.
    pub max_context: u32,
    /// Components in order of execution.
    pub components: Vec<Component>,
}

/// A target with all that is known about it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetSummary {
    /// Which device of which shim.
    pub target: Target,
    /// Upper bounds. If two have one name, the smaller counts.
    pub limits: Vec<Limit>,
    /// What its use takes beside what shards compute; what is not named is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overheads: Vec<Overhead>,
    /// What else its profile says of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<TargetFact>,
    /// The flags the shim knows.
    pub schema: Vec<FlagSchema>,
    /// Flags that are set for the target: those its profile recommends and those that were asked
    /// for.
    pub recommended: Vec<Flag>,
}

/// Something else that is known of a target.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetFact {
    /// What, such as `hexagon-arch`.
    pub name: String,
    /// How much or which.
    pub value: String,
    /// Where it comes from.
    pub provenance: Provenance,
}

impl TargetSummary {
    /// A target of which nothing is known.
    pub fn of(target: Target) -> Self {
        Self {
            target,
            limits: Vec::new(),
            overheads: Vec::new(),
            facts: Vec::new(),
            schema: Vec::new(),
            recommended: Vec::new(),
        }
    }

    /// The overhead of this name, if it is known.
    pub fn overhead(&self, name: &str) -> Option<&Overhead> {
        self.overheads.iter().find(|overhead| overhead.name == name)
    }
}

/// Values that a boundary tensor had in calibration.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoundaryRange {
    /// Name of the tensor, as components list it.
    pub name: String,
    /// Index of the component that reads it.
    pub component: u32,
    /// The layer of it that does; zero for a component without layers.
    pub layer: u32,
    /// The least value, as the bits of a 32-bit float.
    pub minimum_bits: u32,
    /// The largest.
    pub maximum_bits: u32,
}

/// The quality cost of a weight format at one place.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sensitivity {
    /// Index of the component.
    pub component: u32,
    /// Layer; zero for a component without layers.
    pub layer: u32,
    /// Which weights.
    pub role: WeightRole,
    /// In which format.
    pub format: WeightFormat,
    /// Loss as KL divergence in millionths of a nat per token, rounded up; losses add up.
    pub micronats: u32,
    /// Measured, or modelled from how far the weights are off.
    pub provenance: Provenance,
}

/// The quality cost of a format of computed values at one place.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueSensitivity {
    /// Index of the component.
    pub component: u32,
    /// Layer; zero for a component without layers.
    pub layer: u32,
    /// Which values, in which format.
    pub format: ValueFormat,
    /// Loss as of [`Sensitivity::micronats`], to which it adds.
    pub micronats: u32,
    /// Measured, or modelled.
    pub provenance: Provenance,
}

/// A format that a gathered table can be kept in.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableFormat {
    /// The format.
    pub format: WeightFormat,
    /// Bytes of the table in it.
    pub bytes: u64,
    /// Loss as KL divergence in millionths of a nat per token, rounded up; `None` if it is not
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micronats: Option<u32>,
    /// Of the loss: measured, or modelled from how far the values are off.
    pub provenance: Provenance,
}

/// A table that the runtime gathers rows of. It belongs to no shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatheredTable {
    /// `embedding`, `per-layer-embedding`.
    pub name: String,
    /// In order of preference.
    pub formats: Vec<TableFormat>,
}

/// What the plan should achieve.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goals {
    /// Largest sum of losses, in millionths of a nat per token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality_micronats: Option<u64>,
    /// Of the plans that hold, the one that loses least is the best; otherwise the fastest.
    #[serde(default)]
    pub least_loss: bool,
    /// Bytes for artefacts and states of all shards together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Bytes for artefacts of all shards and gathered tables together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Least context in tokens; zero if the model has no states.
    pub context: u32,
    /// Largest number of rows a prefill (or encode) entry may have.
    pub max_prefill_rows: u32,
    /// Most microseconds of a generated token. What is not known of a time does not count against a
    /// goal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_microseconds: Option<u64>,
    /// Most microseconds from a prompt of `prompt_tokens` to the first token of its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token_microseconds: Option<u64>,
    /// Tokens of the prompt that `first_token_microseconds` is for, and that `answer_tokens`
    /// follow.
    #[serde(default)]
    pub prompt_tokens: u32,
    /// Tokens of a usual answer: what is minimised is the time of a token and that share of the
    /// time to the first one. 0: the time of a token alone.
    #[serde(default)]
    pub answer_tokens: u32,
}

/// How often prompts of one length occur, beside those of other lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptLength {
    /// Tokens of such a prompt.
    pub tokens: u32,
    /// How many of them there are.
    pub count: u32,
}

/// What proposes tokens that a step verifies beside the one that is certain, and how many of them
/// were right in usual replies if nothing bounded their number.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DraftEstimate {
    /// [`ChosenSpeculation::LOOKUP`](shardwright_vocabulary::ChosenSpeculation::LOOKUP), or the name of a
    /// smaller model.
    pub name: String,
    /// Steps in which it proposed nothing.
    pub silent_steps: u32,
    /// The other steps, by how many tokens of the proposal were right before the first wrong one:
    /// 0, 1, 2, …
    pub accepted_steps: Vec<u32>,
    /// Of these numbers of steps: modelled or measured.
    pub provenance: Provenance,
    /// Microseconds of a proposed token.
    #[serde(default)]
    pub token_microseconds: u64,
    /// Bytes that it holds beside all shards.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Bytes that each row of a step that verifies holds beside the shards, such as its logits.
    #[serde(default)]
    pub row_bytes: u64,
}

impl DraftEstimate {
    /// Bytes that verifying in so many rows holds beside the shards.
    pub fn held_bytes(&self, rows: u32) -> u64 {
        self.row_bytes.saturating_mul(rows.into()).saturating_add(self.memory_bytes)
    }
}

/// One setting for the planner, as its description lists them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannerOption {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
}

/// The request to a planner.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The model.
    pub model: ModelSummary,
    /// Kinds of layers.
    pub kinds: Vec<LayerKind>,
    /// Targets in order of preference.
    pub targets: Vec<TargetSummary>,
    /// Format tuples in order of preference.
    pub formats: Vec<FormatTuple>,
    /// Entry points the cost table covers.
    pub entries: Vec<EntryName>,
    /// The cost table: kind × target × formats × entry. A missing row means the target does not
    /// take it, except that a kind which takes no part in prefill needs no prefill rows.
    pub costs: Vec<CostRow>,
    /// Measured sensitivities.
    pub sensitivities: Vec<Sensitivity>,
    /// Of activations and states; none where nothing is known of a format.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub value_sensitivities: Vec<ValueSensitivity>,
    /// The gathered tables of the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<GatheredTable>,
    /// Of boundary tensors that were calibrated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<BoundaryRange>,
    /// What one more shard costs the runtime in a step, whatever it computes, in nanoseconds.
    /// Modelled.
    #[serde(default)]
    pub boundary_nanoseconds: u64,
    /// What it costs the runtime more in a step of one row where a shard follows one on another
    /// target, in nanoseconds. Modelled.
    #[serde(default)]
    pub transfer_nanoseconds: u64,
    /// Goals.
    pub goals: Goals,
    /// How long prompts usually are, so that prefill entry points can be chosen for them; empty if
    /// nobody said. `prompt_tokens` of the goals is their mean then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prompts: Vec<PromptLength>,
    /// What may propose tokens; none for models without states.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drafts: Vec<DraftEstimate>,
    /// Settings for the planner.
    pub options: Vec<PlannerOption>,
}

impl Request {
    /// Whether every index, name and table is sound, and if not, the first fault. Planners are
    /// asked only after this.
    pub fn validate(&self) -> Result<(), RequestFault> {
        validate::validate(self)
    }

    /// The request as JSON without whitespace, fields in order of declaration: equal requests,
    /// equal bytes.
    pub fn canonical_bytes(&self) -> Vec<u8> {
        crate::canonical_json(self)
    }
}
