//! The request to a planner: all information that it receives about a model and its targets, as
//! plain data.
//!
//! It has the same information as `wit/v0.2/planner.wit`. It is separate from the generated
//! bindings, so that a new version of the interface only changes the conversion. `serde_json`
//! serialises the fields in order of declaration, so equal requests have equal bytes
//! ([`Request::canonical_bytes`]).

use serde::{Deserialize, Serialize};
use shardwright_vocabulary::{
    CostRow, EntryName, Flag, FlagSchema, FormatTuple, Limit, Overhead, Pass, Provenance, Result,
    SoftcapPlace, Target, TimeCost, ValueFormat, WeightFormat, WeightRole,
};

mod validate;

pub use validate::{caps, time_fault};

/// Part of a layer that runs in `prefill`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PrefillPart {
    /// The whole layer.
    Full,
    /// Only the part that its states need: the last layer that writes a state.
    StatesOnly,
    /// No part: no state and no wanted output depends on it.
    None,
}

/// A kind of layer. Layers of equal structure share a kind. A component without layers has its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerKind {
    /// Name for reports, such as `sliding` or `head`.
    pub name: String,
    /// Part that runs in prefill. Layers that differ in this are of different kinds.
    pub prefill: PrefillPart,
}

/// One layer of a component.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Index of its kind in [`Request::kinds`].
    pub kind: u32,
    /// Layer of the same component whose state this one reads instead of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub donor: Option<u32>,
    /// Whether the layer writes a state.
    pub writes_state: bool,
}

/// Structure of a component.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Body {
    /// A component that cannot be cut, with the index of its kind in [`Request::kinds`].
    Whole(u32),
    /// Layers. The component may be cut before any of them.
    Layers(Vec<Layer>),
}

/// A soft-cap: the last operation of a component, which the runtime can compute instead.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Softcap {
    /// Index in [`Request::kinds`] of the component without the soft-cap.
    pub kind_without: u32,
    /// Time that the runtime needs for one row.
    pub runtime: TimeCost,
}

/// A component of the model, in order of execution.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Component {
    /// Name: `embed`, `per-layer-input`, `decoder`, `head`, `pooling`, …
    pub name: String,
    /// Its layers, or the kind of the whole component.
    pub body: Body,
    /// The soft-cap at its end, if it has one. Only for components that cannot be cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softcap: Option<Softcap>,
    /// Names of the boundary tensors that it reads (`hidden`, `per-layer`). A shard reads a tensor
    /// from the nearest earlier shard that wrote its name.
    pub inputs: Vec<String>,
    /// Names of the boundary tensors that it writes (`hidden`, `per-layer`, `logits`, `embedding`).
    /// A name that is both input and output passes through every shard of a component with layers.
    pub outputs: Vec<String>,
}

impl Component {
    /// Returns the number of layers. Zero for a component that cannot be cut.
    pub fn layer_count(&self) -> u32 {
        match &self.body {
            Body::Whole(_) => 0,
            Body::Layers(layers) => u32::try_from(layers.len()).unwrap_or(u32::MAX),
        }
    }

    /// Returns the kinds like [`kinds`](Self::kinds), with the component's soft-cap, if any,
    /// computed at `softcap`.
    pub fn shard_kinds(&self, first: u32, end: u32, softcap: Option<SoftcapPlace>) -> Option<Vec<u32>> {
        let kinds = self.kinds(first, end)?;
        match (&self.softcap, softcap) {
            (Some(existing), Some(SoftcapPlace::Runtime)) => Some(vec![existing.kind_without]),
            _ => Some(kinds),
        }
    }

    /// Returns the kinds of the layers `first..end`, or of the whole component. Returns `None` if
    /// the range is not within the component.
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

/// The model, as far as planning needs it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSummary {
    /// Name for reports.
    pub name: String,
    /// Model family, such as `gemma4_text`.
    pub family: String,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Largest context in tokens. Zero if the model has no states.
    pub max_context: u32,
    /// Largest number of query heads of a layer. Zero if unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub heads: u32,
    /// Passes of the towers that are planned with the text and write rows of its prompts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub towers: Vec<Pass>,
    /// Components in order of execution.
    pub components: Vec<Component>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A target with all known facts about it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetSummary {
    pub target: Target,
    /// Upper bounds. If two have the same name, the smaller one counts.
    pub limits: Vec<Limit>,
    /// Overheads of using the target, in addition to the computation of shards. An overhead that is
    /// not listed counts as 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overheads: Vec<Overhead>,
    /// Further facts of its profile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<TargetFact>,
    /// Flags that the shim supports.
    pub schema: Vec<FlagSchema>,
    /// Flags that are set for the target: recommended by its profile or requested by the user.
    pub recommended: Vec<Flag>,
    /// Bytes of memory that an app can use on the device. `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<u64>,
}

/// A further fact about a target.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetFact {
    /// Name, such as `hexagon-arch`.
    pub name: String,
    /// Value, a number or a text.
    pub value: String,
    /// Source of the fact.
    pub provenance: Provenance,
}

impl TargetSummary {
    /// Creates a summary without any facts about the target.
    pub fn of(target: Target) -> Self {
        Self {
            target,
            limits: Vec::new(),
            overheads: Vec::new(),
            facts: Vec::new(),
            schema: Vec::new(),
            recommended: Vec::new(),
            device_memory: None,
        }
    }

    /// Returns the overhead with this name, if it is known.
    pub fn overhead(&self, name: &str) -> Option<&Overhead> {
        self.overheads.iter().find(|overhead| overhead.name == name)
    }
}

/// Range of values of a boundary tensor during calibration.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoundaryRange {
    /// Name of the tensor, as listed by components.
    pub name: String,
    /// Index of the component that reads it.
    pub component: u32,
    /// Layer of the component that reads it. Zero for a component without layers.
    pub layer: u32,
    /// Smallest value, as the bits of a 32-bit float.
    pub minimum_bits: u32,
    /// Largest value, as the bits of a 32-bit float.
    pub maximum_bits: u32,
}

/// Quality loss of a weight format at one place.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sensitivity {
    /// Index of the component.
    pub component: u32,
    /// Layer. Zero for a component without layers.
    pub layer: u32,
    pub role: WeightRole,
    pub format: WeightFormat,
    /// Loss as KL divergence in millionths of a nat per token, rounded up. Losses add up.
    pub micronats: u32,
    /// Measured, or modelled from the errors of the weights.
    pub provenance: Provenance,
}

/// Quality loss of a format of computed values at one place.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueSensitivity {
    /// Index of the component.
    pub component: u32,
    /// Layer. Zero for a component without layers.
    pub layer: u32,
    /// Format of activations, of states or of attention.
    pub format: ValueFormat,
    /// Loss in the unit of [`Sensitivity::micronats`]. It is added to losses of weights.
    pub micronats: u32,
    pub provenance: Provenance,
}

/// A possible format of a gathered table.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableFormat {
    pub format: WeightFormat,
    /// Bytes of the table in this format.
    pub bytes: u64,
    /// Loss as KL divergence in millionths of a nat per token, rounded up. `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micronats: Option<u32>,
    /// Source of the loss: measured, or modelled from the errors of the values.
    pub provenance: Provenance,
}

/// A table from which the runtime gathers rows. It does not belong to any shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatheredTable {
    /// Name: `embedding` or `per-layer-embedding`.
    pub name: String,
    /// Possible formats, in order of preference.
    pub formats: Vec<TableFormat>,
}

/// Goals of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goals {
    /// Maximum sum of losses, in millionths of a nat per token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality_micronats: Option<u64>,
    /// Whether the best plan that meets the goals is the one with the least loss. Otherwise the
    /// fastest is.
    #[serde(default)]
    pub least_loss: bool,
    /// Maximum bytes of artefacts and states of all shards together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Maximum bytes of artefacts of all shards and gathered tables together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Minimum context in tokens. Zero if the model has no states.
    pub context: u32,
    /// Maximum rows of a prefill (or encode) entry point.
    pub max_prefill_rows: u32,
    /// Maximum microseconds of a generated token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_microseconds: Option<u64>,
    /// Maximum microseconds from a prompt of `prompt_tokens` to the first token of its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token_microseconds: Option<u64>,
    /// Tokens of the prompt that `first_token_microseconds` and `answer_tokens` refer to.
    #[serde(default)]
    pub prompt_tokens: u32,
    /// Usual length of an answer in tokens. The objective is the time of a token, plus the time to
    /// the first token divided by this length. 0: only the time of a token.
    #[serde(default)]
    pub answer_tokens: u32,
}

/// Frequency of prompts of one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptLength {
    pub tokens: u32,
    /// Number of prompts of this length.
    pub count: u32,
}

/// A draft, which proposes tokens that a step verifies next to the one that is certain, and how
/// many of its tokens were right in usual replies without a limit on their number.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DraftEstimate {
    /// [`ChosenSpeculation::LOOKUP`](shardwright_vocabulary::ChosenSpeculation::LOOKUP), or the
    /// name of a smaller model.
    pub name: String,
    /// Steps without a proposal.
    pub silent_steps: u32,
    /// Histogram of the other steps: entry `n` counts the steps in which exactly `n` tokens of the
    /// proposal were right before the first wrong one.
    pub accepted_steps: Vec<u32>,
    /// Source of these numbers of steps: modelled or measured.
    pub provenance: Provenance,
    /// Time to propose a token.
    #[serde(default)]
    pub token_time: TimeCost,
    /// Bytes that the draft needs in addition to all shards.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Bytes that each row of a verifying step needs in addition to the shards, such as its logits.
    #[serde(default)]
    pub row_bytes: u64,
}

impl DraftEstimate {
    /// Returns the bytes that verifying in `rows` rows needs in addition to the shards.
    pub fn held_bytes(&self, rows: u32) -> u64 {
        self.row_bytes.saturating_mul(rows.into()).saturating_add(self.memory_bytes)
    }
}

/// An option of the planner. Its description lists them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannerOption {
    pub name: String,
    pub value: String,
}

/// A request in a file, with the planner that it was made for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedRequest {
    #[serde(flatten)]
    pub request: Request,
    /// Name that the planner reports. `None` in files of earlier versions, or if no planner could
    /// be loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planner: Option<String>,
}

impl RecordedRequest {
    /// Returns the content of the file: the canonical JSON of the request, and the planner as the
    /// last field.
    pub fn canonical_bytes(&self) -> Vec<u8> {
        crate::canonical_json(self)
    }
}

/// The request to a planner.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    pub model: ModelSummary,
    /// Kinds of layers, which other fields refer to by index.
    pub kinds: Vec<LayerKind>,
    /// Targets in order of preference.
    pub targets: Vec<TargetSummary>,
    /// Format tuples in order of preference.
    pub formats: Vec<FormatTuple>,
    /// Indices of the tuples that the request would have without goals, in order of preference.
    /// Empty if these are all tuples in the same order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub usual_formats: Vec<u32>,
    /// Entry points that the cost table covers.
    pub entries: Vec<EntryName>,
    /// The cost table: kind × target × formats × entry. A missing row means that the target does
    /// not support the combination. Exception: a kind that does not run in prefill needs no prefill
    /// rows.
    pub costs: Vec<CostRow>,
    /// Losses of weight formats.
    pub sensitivities: Vec<Sensitivity>,
    /// Losses of formats of activations, states and attention. A format without any row is unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub value_sensitivities: Vec<ValueSensitivity>,
    /// Gathered tables of the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<GatheredTable>,
    /// Ranges of calibrated boundary tensors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<BoundaryRange>,
    /// Runtime cost of each shard in a step, independent of its computation, in nanoseconds.
    /// Modelled.
    #[serde(default)]
    pub boundary_nanoseconds: u64,
    /// Additional runtime cost, for each row of a step, of a shard that follows one on another
    /// target, in nanoseconds. Modelled.
    #[serde(default)]
    pub transfer_nanoseconds: u64,
    pub goals: Goals,
    /// Usual lengths of prompts, used to choose prefill entry points. Empty if not specified.
    /// Otherwise `prompt_tokens` of the goals is their mean.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prompts: Vec<PromptLength>,
    /// Drafts that may propose tokens. Empty for models without states.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drafts: Vec<DraftEstimate>,
    /// Options of the planner.
    pub options: Vec<PlannerOption>,
}

impl Request {
    /// Checks that every index, name and table is valid. Planners are called only after this.
    ///
    /// # Errors
    ///
    /// Returns the first fault, with `request` or a part of it as the place.
    pub fn validate(&self) -> Result<()> {
        validate::validate(self)
    }

    /// Returns the request as JSON without whitespace, with fields in order of declaration. Equal
    /// requests give equal bytes.
    pub fn canonical_bytes(&self) -> Vec<u8> {
        crate::canonical_json(self)
    }
}
