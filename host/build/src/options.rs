//! Options of planning and building.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use shardwright_bundle::Digest;
use shardwright_files::{eviction, read_named};
use shardwright_graph::Graph;
use shardwright_planning::profile::{GENERIC, Preference, Profile};
use shardwright_planning::request::{DraftEstimate, PromptLength, Request};
use shardwright_planning::{builtin, hedge};
use shardwright_shims::RegistryBuilder;
use shardwright_trust::{Trust, TrustOptions};
use shardwright_vocabulary::{
    ComponentKind, Error, ErrorKind, FormatTuple, Lora, LoraScale, Notice, Pass, Result, TargetKind,
    UnknownName, Watch, WeightFormat,
};
use shardwright_worker::{Isolation, Shims};

use crate::{MeasuredTimes, PlanSource, StatedDraft, drafts};

/// Formats that a plan may choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormatChoice {
    /// Every weight as the checkpoint stores it, everything else in 32-bit float.
    Stored,
    /// This combination of weight, activation, state and attention formats.
    Tuple(FormatTuple),
}

impl std::fmt::Display for FormatChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FormatChoice::Stored => f.write_str("stored"),
            FormatChoice::Tuple(tuple) => tuple.fmt(f),
        }
    }
}

impl FromStr for FormatChoice {
    type Err = UnknownName;

    /// Parses `stored`, or a tuple as reports spell it: `w4-block32[head=w8-per-channel]/f32/f32`.
    /// A weight format alone means f32 for the rest.
    fn from_str(text: &str) -> std::result::Result<Self, UnknownName> {
        match text {
            "stored" => Ok(FormatChoice::Stored),
            tuple => tuple.parse().map(FormatChoice::Tuple),
        }
    }
}

impl Serialize for FormatChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FormatChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Formats of the gathered tables, which do not belong to a shard. `None` leaves the choice to the
/// plan, which keeps a table as stored unless a size goal requires a smaller format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TableFormats {
    #[serde(skip_serializing_if = "is_default")]
    pub embedding: Option<WeightFormat>,
    #[serde(skip_serializing_if = "is_default")]
    pub per_layer: Option<WeightFormat>,
}

/// The device that runs a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Executor {
    /// The chip itself, through its vendor's shim.
    Device,
    /// The vendor's simulator of the chip.
    Simulator,
    /// The CPU shim, with the chip's cut, formats and encodings. The heading of every report is
    /// *emulated on cpu*.
    Cpu,
}

impl Executor {
    /// Returns the lower-case name, as on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Executor::Device => "device",
            Executor::Simulator => "simulator",
            Executor::Cpu => "cpu",
        }
    }
}

/// The purpose of a plan, which decides what must be available for a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The plan is only shown.
    Plan,
    /// The plan is compiled, for devices that may be elsewhere.
    Compile,
    /// The plan is compiled and run here.
    Run,
}

/// Options of the towers of a model, which are planned in addition to its text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TowerOptions {
    /// The passes whose towers are planned and compiled with the text. `None` for all passes of the
    /// checkpoint.
    #[serde(skip_serializing_if = "is_default")]
    pub passes: Option<Vec<Pass>>,
    /// Formats offered to the planner, best first. If empty, weights on the CPU stay as stored, and
    /// a chip is offered the formats of its profile that keep eight bits of every weight.
    #[serde(skip_serializing_if = "is_default")]
    pub formats: Vec<FormatChoice>,
    /// Sizes of pictures for which entry points are made, in soft tokens. If empty, the size that
    /// the checkpoint's processor makes.
    #[serde(skip_serializing_if = "is_default")]
    pub picture_tokens: Vec<u32>,
    /// Lengths of clips for which entry points are made, in seconds. If empty, the longest clip
    /// that the checkpoint's processor accepts.
    #[serde(skip_serializing_if = "is_default")]
    pub clip_seconds: Vec<u32>,
}

/// How weights are rounded to integers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WeightRounding {
    /// Matrices of 4 bits and fewer are [`WeightRounding::Compensated`] in models of up to 512
    /// million weights, which needs at most a few minutes. Other matrices are rounded to nearest.
    #[default]
    Usual,
    /// Every weight is rounded to nearest.
    Nearest,
    /// GPTQ: errors within a row are compensated, using the inputs of the matrix over the
    /// calibration text.
    Compensated,
}

/// A LoRA adapter that is merged into the weights of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RecordedLora {
    /// The name of the adapter's folder.
    pub name: String,
    /// The factor of its changes.
    pub scale: LoraScale,
    /// Hash of `adapter_config.json`.
    pub config: Digest,
    /// Hash of `adapter_model.safetensors`.
    pub weights: Digest,
}

/// When the quality loss of a finished plan is measured by running it. A plan runs only if the
/// weights are available and its formats change values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlanMeasuring {
    #[default]
    Never,
    /// For models of up to 2 billion weights. If the measurement fails, a notice reports why.
    Usual,
    /// For every model. If the measurement fails, planning fails.
    Always,
}

/// Options of a plan as the user states them. A bundle's manifest stores their JSON, without those
/// that have their defaults. Goals, formats and drafts are read from the stored request instead,
/// which the chip's profile completes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RecordedOptions {
    /// Context capacity in tokens.
    #[serde(skip_serializing_if = "is_default")]
    pub context: Option<u32>,
    /// The executor of the plan. `None` for the device, if its shim finds it.
    #[serde(skip_serializing_if = "is_default")]
    pub on: Option<Executor>,
    /// Limits of the user, by name.
    #[serde(rename = "limit", with = "by_name", skip_serializing_if = "is_default")]
    pub limits: Vec<(String, u64)>,
    /// Flags of the user, by name.
    #[serde(rename = "flag", with = "by_name", skip_serializing_if = "is_default")]
    pub flags: Vec<(String, String)>,
    /// Names of profile flags to leave out.
    #[serde(rename = "without-flag", with = "names", skip_serializing_if = "is_default")]
    pub flags_left_out: Vec<String>,
    /// Settings of the planner, by name.
    #[serde(rename = "planner", with = "by_name", skip_serializing_if = "is_default")]
    pub planner_options: Vec<(String, String)>,
    /// Formats of the gathered tables that the planner must not choose itself.
    #[serde(rename = "table", skip_serializing_if = "is_default")]
    pub tables: TableFormats,
    /// How weights are rounded to integers.
    #[serde(skip_serializing_if = "is_default")]
    pub rounding: WeightRounding,
    /// Options of the towers for pictures and sounds.
    #[serde(rename = "tower", skip_serializing_if = "is_default")]
    pub towers: TowerOptions,
    /// Bytes of memory of the device that the plan is for. `None` for the smallest device of the
    /// chip's profile. An app can use a part of it, which the profile states.
    #[serde(skip_serializing_if = "is_default")]
    pub device_memory: Option<u64>,
    /// Hash of [`PlanOptions::calibration_text`], in a manifest only.
    #[serde(rename = "calibration-text", skip_serializing_if = "is_default")]
    pub calibration_digest: Option<Digest>,
    /// The adapters of [`PlanOptions::lora`], in a manifest only.
    #[serde(skip_serializing_if = "is_default")]
    pub lora: Vec<RecordedLora>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Writes pairs as an object with sorted members. Of several pairs with a name, the last counts.
mod by_name {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<V: Serialize, S: Serializer>(
        pairs: &[(String, V)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let members: BTreeMap<&String, &V> = pairs.iter().map(|pair| (&pair.0, &pair.1)).collect();
        serializer.collect_map(members)
    }

    pub fn deserialize<'de, V: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(String, V)>, D::Error> {
        let members: BTreeMap<String, V> = BTreeMap::deserialize(deserializer)?;
        Ok(members.into_iter().collect())
    }
}

/// Writes names as an object whose members are all `true`.
mod names {
    use serde::{Deserializer, Serializer};

    pub fn serialize<S: Serializer>(names: &[String], serializer: S) -> Result<S::Ok, S::Error> {
        let pairs: Vec<(String, bool)> = names.iter().map(|name| (name.clone(), true)).collect();
        super::by_name::serialize(&pairs, serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
        let pairs: Vec<(String, bool)> = super::by_name::deserialize(deserializer)?;
        Ok(pairs.into_iter().map(|(name, _)| name).collect())
    }
}

/// Options of a plan. The default plans for the generic profile and runs on this machine's CPU.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// Where shims are found.
    pub shims: RegistryBuilder,
    pub planners: Vec<PathBuf>,
    /// Directories of profiles, in addition to the built-in ones.
    pub profiles: Vec<PathBuf>,
    /// Which shims' work runs in a separate process.
    pub isolation: Isolation,
    /// Whether a fallback is an error.
    pub strict: bool,
    /// Threads of the CPU engine. `None` for one per core.
    pub threads: Option<u32>,
    /// Cache directory. `None` disables the cache.
    pub cache: Option<PathBuf>,
    /// Most bytes of the cache's files that can be made again. `None` for 24 GiB.
    pub cache_limit: Option<u64>,
    /// Whose planner packs are accepted, and how bundles, shims, planners and profiles must be
    /// signed.
    pub trust: TrustOptions,
    /// A profile's name or alias. `None` for the generic profile.
    pub soc: Option<String>,
    /// Whether the planner is offered only the chip's own device, without the fallbacks of its
    /// profile and without this machine's CPU.
    pub alone: bool,
    /// Whether the plan is for a CPU of another machine, so that times of this machine do not
    /// apply.
    pub elsewhere: bool,
    /// Options that a bundle's manifest records.
    pub recorded: RecordedOptions,
    /// A planner's file or name. `None` for the planner of the chip's profile or the built-in one.
    pub planner: Option<String>,
    /// Whether `planner` is a name and never a path, because it comes from a bundle or a profile.
    pub planner_by_name: bool,
    /// Whether `planner` comes from the profile of the chip.
    pub planner_of_profile: bool,
    /// Whether to plan without hedges, if the planner has an option for that.
    pub unhedged: bool,
    /// Limits of a hedge, which replace the chip's limits of these names.
    pub within: Vec<(String, u64)>,
    /// Formats offered to the planner, best first. If empty, the formats of the profile.
    pub formats: Vec<FormatChoice>,
    /// When the loss of the whole plan is measured.
    pub measuring: PlanMeasuring,
    /// File for the request to the planner, written before the planner runs. Requests of towers go
    /// next to it. `None` writes no file.
    pub request_file: Option<PathBuf>,
    /// LoRA adapters that are merged into the weights of the checkpoint, in order.
    pub lora: Vec<Lora>,
    /// Text to calibrate on. `None` for the built-in texts.
    pub calibration_text: Option<PathBuf>,
    /// Maximum quality loss of a plan: KL divergence in millionths of a nat per token.
    pub quality_micronats: Option<u64>,
    /// Whether a plan optimises quality or speed within goals of bytes or times. `None` for the
    /// preference of the chip's profile.
    pub prefers: Option<Preference>,
    /// Maximum bytes of artefacts and KV cache of all shards together.
    pub memory_bytes: Option<u64>,
    /// Maximum bytes of the artefacts of all shards and the gathered tables together. Hedges count
    /// too, and other fallback chains if they fit.
    pub size_bytes: Option<u64>,
    /// Maximum microseconds per generated token. Plans whose likely time is within it are
    /// preferred. Plans whose fastest expected run exceeds it are rejected.
    pub token_microseconds: Option<u64>,
    /// Maximum microseconds from a usual prompt to the first token of its answer. It is kept like
    /// `token_microseconds`.
    pub first_token_microseconds: Option<u64>,
    /// Usual lengths of prompts. On a chip, whose entry points compute all their rows, they decide
    /// which prefill entry points exist, and the time to the first token is predicted for their
    /// mean.
    ///
    /// If empty, one prompt of 512 tokens, or of the context if that is shorter, and the usual
    /// prefill entry points. Lengths beyond the context are reduced to it.
    pub prompts: Vec<PromptLength>,
    /// Tokens of a usual answer. The time to the first token, divided among them, is added to the
    /// time of a token. `None` counts only the time of a token.
    pub answer_tokens: Option<u32>,
    /// Drafts that may propose tokens for a plan to verify, with how many of them are right. `None`
    /// for a lookup in prompt and reply with a modest guess. Models without states have no drafts.
    pub drafts: Option<Vec<DraftEstimate>>,
    /// Smaller models with the same vocabulary that may also propose tokens, each as a checkpoint
    /// or a bundle. Ignored if `drafts` is set. A plan relies only on models that were measured
    /// (`DraftRecords`).
    pub draft_models: Vec<PathBuf>,
    /// A text of conversations like the application's, one per line, with turns separated by tabs,
    /// the user first. It is used to measure how often prompt lookup is right in replies, unless
    /// `drafts` is set.
    pub usual_text: Option<PathBuf>,
    /// Which measured times the plan uses.
    pub times: MeasuredTimes,
    /// A bundle whose artefacts are reused for the same work orders instead of compiling.
    pub reuse: Option<PathBuf>,
    /// Rows of an encoder's entry points. If empty, one entry point with the rows of the context.
    pub encode_rows: Vec<u32>,
    /// Whether entry graphs expose their layer outputs.
    pub taps: bool,
    /// Changes the graph before anything else sees it, for tests of verification.
    pub alter: Option<fn(&mut Graph)>,
}

impl PlanOptions {
    /// Returns the most bytes of the cache's files that can be made again.
    pub fn cache_bytes_max(&self) -> u64 {
        self.cache_limit.unwrap_or(eviction::CACHE_BYTES_MAX)
    }

    /// Returns the rules by which files are trusted. The rules of each call collect their own
    /// warnings.
    ///
    /// # Errors
    ///
    /// Fails for an invalid key or an invalid list of revocations.
    pub fn rules(&self) -> Result<Trust> {
        self.trust.rules(self.cache.as_deref())
    }

    /// Opens the shims whose signatures fulfil these rules.
    ///
    /// # Errors
    ///
    /// Fails if the requested isolation is not possible.
    pub fn shims_by(&self, rules: &Trust) -> Result<Shims> {
        Shims::open(self.shims.clone().trusting(rules.clone()), self.isolation)
    }

    /// Returns these options for one of several chips. `on` is dropped for the generic profile,
    /// which has no chip to simulate or emulate.
    #[must_use]
    pub fn for_chip(&self, soc: &str) -> Self {
        let mut own = PlanOptions { soc: Some(soc.to_owned()), ..self.clone() };
        own.recorded.on = own.recorded.on.filter(|_| soc != GENERIC);
        own
    }

    /// Returns these options for the CPU of any machine, without settings for a chip, its compiler
    /// and a planner.
    pub(crate) fn without_a_chip(&self) -> PlanOptions {
        let mut own = PlanOptions { soc: None, elsewhere: true, ..self.without_settings() };
        (own.recorded.on, own.recorded.limits) = (None, Vec::new());
        own
    }

    /// Returns these options for another chip alone, without settings for the first chip's compiler
    /// and a planner.
    pub(crate) fn on_another(&self, soc: &str) -> PlanOptions {
        PlanOptions { soc: Some(soc.to_owned()), alone: true, ..self.without_settings() }
    }

    /// Returns these options for a hedge on the chip alone. Settings of the planner apply, except
    /// for placements on other targets and its own option for hedges.
    #[must_use]
    pub fn hedged(&self, soc: &str) -> PlanOptions {
        let mut own = PlanOptions { soc: Some(soc.to_owned()), alone: true, ..self.clone() };
        let applies = |name: &str| !name.starts_with(PLACE_OPTION) && name != hedge::OFF.0;
        own.recorded.planner_options.retain(|(name, _)| applies(name));
        own
    }

    /// Returns these options without settings for a chip's compiler and a planner.
    pub(crate) fn without_settings(&self) -> PlanOptions {
        let recorded = RecordedOptions {
            flags: Vec::new(),
            flags_left_out: Vec::new(),
            planner_options: self.about_speculation(),
            ..self.recorded.clone()
        };
        PlanOptions { planner: None, recorded, ..self.clone() }
    }

    /// Returns whether the planner of the chip's profile or the built-in one decides, because the
    /// user named no other.
    pub(crate) fn has_usual_planner(&self) -> bool {
        self.planner_of_profile || self.planner.as_deref().is_none_or(|name| name == builtin::NAME)
    }

    /// Returns whether the user's settings of the planner exclude hedges.
    pub fn excludes_hedges(&self) -> bool {
        let mut settings = self.recorded.planner_options.iter();
        self.unhedged || settings.any(|(name, value)| (name.as_str(), value.as_str()) == hedge::OFF)
    }

    /// Returns the planner option that decides whether proposed tokens are verified. It applies to
    /// the whole model, whichever device runs it.
    fn about_speculation(&self) -> Vec<(String, String)> {
        let own = self.recorded.planner_options.iter().filter(|(name, _)| name == SPECULATION_OPTION);
        own.filter(|_| self.planner.is_none()).cloned().collect()
    }
}

/// Prefix of the built-in planner's options that place a component.
const PLACE_OPTION: &str = "place.";

/// Returns the pass of the component that a planner's option of this name places, if it places one.
pub fn placed_pass(name: &str) -> Option<Pass> {
    let component: ComponentKind = name.strip_prefix(PLACE_OPTION)?.parse().ok()?;
    Some(component.pass())
}

/// Prefix of the built-in planner's options that name the weights of a component.
const WEIGHTS_OPTION: &str = "weights.";

/// The built-in planner's option that names a format. If it is set, the formats of a CPU are
/// offered too.
pub(crate) const FORMAT_OPTION: &str = "format";

/// The built-in planner's option for the loss that is usual without a stated goal.
pub(crate) const USUAL_QUALITY_OPTION: &str = "usual-quality";

/// The built-in planner's option for whether proposed tokens are verified.
pub(crate) const SPECULATION_OPTION: &str = "speculation";

/// The built-in planner's option for fallbacks, with its value for no fallbacks.
pub(crate) const NO_FALLBACKS: (&str, &str) = ("fallbacks", "none");

/// KL divergence per token in millinats of the goal `good`.
pub const USUAL_QUALITY: u32 = 150;

/// KL divergence per token in millinats of the goal `near-lossless`.
pub(crate) const NEAR_LOSSLESS: u32 = 5;

/// KL divergence per token in millinats of the goal `small`.
pub(crate) const SMALL: u32 = 300;

/// Tokens of a prompt if the usual length is not specified.
const USUAL_PROMPT: u32 = 512;

/// Largest calibration text, in bytes.
const CALIBRATION_TEXT_BYTES: u64 = 4 << 20;

/// Whether losses decide between formats, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossGoal {
    /// Losses do not decide.
    None,
    /// The smallest loss within goals of bytes and times.
    Least,
    /// At most this loss, in millionths of a nat per token.
    Most(u64),
}

impl PlanOptions {
    /// Returns the options completed by a profile: its planner if the user names none, and its
    /// goals if the user states none. Also returns the goals that come from the profile, in words.
    pub(crate) fn completed_by(&self, profile: &Profile) -> (Self, Vec<String>) {
        let (mut options, mut taken) = (self.clone(), Vec::new());
        if let (None, Some(planner)) = (&self.planner, &profile.planner) {
            options.planner = Some(planner.clone());
            (options.planner_by_name, options.planner_of_profile) = (true, true);
        }
        let own = [
            self.quality_micronats,
            self.memory_bytes,
            self.size_bytes,
            self.token_microseconds,
            self.first_token_microseconds,
        ];
        if own.iter().any(Option::is_some) {
            return (options, taken);
        }
        let goals = &profile.goals;
        let mut take = |name: &str, unit: &str, goal: Option<u64>| {
            taken.extend(goal.map(|goal| format!("{name} {goal} {unit}")));
            goal
        };
        let quality = take("quality", "millinats", goals.quality.map(u64::from));
        options.quality_micronats = quality.map(|millinats| millinats * 1000);
        options.memory_bytes = take("memory", "bytes", goals.memory_bytes);
        options.size_bytes = take("size", "bytes", goals.size_bytes);
        options.token_microseconds = take("time of a token", "µs", goals.token_microseconds);
        options.first_token_microseconds =
            take("time to the first token", "µs", goals.first_token_microseconds);
        (options, taken)
    }

    /// Returns the options without goals.
    pub(crate) fn without_goals(&self) -> PlanOptions {
        PlanOptions {
            quality_micronats: None,
            memory_bytes: None,
            size_bytes: None,
            token_microseconds: None,
            first_token_microseconds: None,
            ..self.clone()
        }
    }

    /// Returns whether a goal limits bytes or times.
    pub(crate) fn bounds_cost(&self) -> bool {
        let bounds =
            [self.memory_bytes, self.size_bytes, self.token_microseconds, self.first_token_microseconds];
        bounds.iter().any(Option::is_some)
    }

    /// Returns how losses decide, according to the goals and the preference of the user or the
    /// profile. Losses of an encoder cannot be predicted, so only a quality goal counts for it.
    pub(crate) fn loss_goal(&self, profile: &Profile, graph: &Graph) -> LossGoal {
        match self.quality_micronats {
            Some(micronats) => LossGoal::Most(micronats),
            None if !self.bounds_cost() || !graph.is_generative() => LossGoal::None,
            None if self.prefers.unwrap_or(profile.prefers) == Preference::Quality => LossGoal::Least,
            None => LossGoal::None,
        }
    }

    /// Returns the loss in millinats within which the built-in planner chooses the fastest formats
    /// of a chip's profile, if the user specifies neither formats nor quality. Goals of bytes and
    /// times leave it in force. Returns `None` for a CPU, where weights are only rounded on
    /// request, and for an encoder, whose losses cannot be predicted.
    pub(crate) fn usual_quality(&self, profile: &Profile, graph: &Graph) -> Option<u32> {
        let said = !self.has_usual_planner()
            || self.prefers.is_some()
            || !self.formats.is_empty()
            || self.loss_goal(profile, graph) != LossGoal::None
            || self
                .recorded
                .planner_options
                .iter()
                .any(|(name, _)| name == FORMAT_OPTION || name == USUAL_QUALITY_OPTION);
        let usual = !said && profile.kind != TargetKind::Cpu && graph.is_generative();
        usual.then_some(USUAL_QUALITY)
    }

    /// Returns the weight formats that options of the built-in planner name for parts of the model.
    pub(crate) fn named_weights(&self) -> impl Iterator<Item = WeightFormat> {
        let options = self.recorded.planner_options.iter();
        let named = options.filter(|(name, _)| name.starts_with(WEIGHTS_OPTION));
        named.filter_map(|(_, format)| format.parse().ok())
    }

    /// Returns the usual prompts within a context, and their mean, which is 512 if none are
    /// specified. Lengths that never occur are left out.
    pub(crate) fn usual_prompts(&self, context: u32) -> (Vec<PromptLength>, u32) {
        let within = |prompt: &PromptLength| PromptLength { tokens: prompt.tokens.min(context), ..*prompt };
        let occurs = |prompt: &PromptLength| prompt.count > 0 && prompt.tokens > 0;
        let prompts: Vec<PromptLength> = self.prompts.iter().map(within).filter(occurs).collect();
        let sum = |of: fn(&PromptLength) -> u128| prompts.iter().map(of).sum::<u128>();
        let count = sum(|prompt| prompt.count.into());
        let tokens = sum(|prompt| u128::from(prompt.tokens) * u128::from(prompt.count));
        let mean = if count == 0 { USUAL_PROMPT.into() } else { tokens.div_ceil(count) };
        (prompts, u32::try_from(mean).unwrap_or(u32::MAX).min(context))
    }

    /// Returns the drafts that may propose tokens to a model on the chip of a profile in a context,
    /// and notices about them.
    pub(crate) fn usual_drafts(
        &self,
        source: &dyn PlanSource,
        soc: &str,
        context: u32,
        watch: &dyn Watch,
    ) -> Result<(Vec<StatedDraft>, Vec<Notice>)> {
        if !source.graph().is_generative() {
            return Ok((Vec::new(), Vec::new()));
        }
        if let Some(drafts) = &self.drafts {
            return Ok((drafts.iter().cloned().map(StatedDraft::from).collect(), Vec::new()));
        }
        let lookup = match &self.usual_text {
            None => drafts::lookup(source.graph(), context),
            Some(path) => {
                let found = source.accepted(&read_text(path)?, watch)?.ok_or_else(|| {
                    let what = format!("cannot encode {}: the tokenizer is missing", path.display());
                    Error::new(ErrorKind::Missing, what)
                        .with_help("put the tokenizer next to the checkpoint's other files")
                })?;
                drafts::measured(source.graph(), context, found)
            }
        };
        let (models, notices) = source.draft_models(soc, context)?;
        let mut all: Vec<StatedDraft> = Vec::new();
        for draft in lookup.map(StatedDraft::from).into_iter().chain(models) {
            let name = &draft.estimate.name;
            if all.iter().any(|other| other.estimate.name == *name) {
                let what = format!("two drafts have the name `{name}`, the last folder of their paths");
                return Err(Error::new(ErrorKind::Argument, what).with_help("rename one of the folders"));
            }
            all.push(draft);
        }
        Ok((all, notices))
    }

    /// Reads the text of usual conversations, if one was named.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read or is not UTF-8.
    pub fn read_usual_text(&self) -> Result<Option<String>> {
        self.usual_text.as_deref().map(read_text).transpose()
    }

    /// Returns prompt lengths that lead to the prompts of this request.
    pub fn prompts_of(request: &Request) -> Vec<PromptLength> {
        let tokens = request.goals.prompt_tokens;
        if request.prompts.is_empty() && tokens != USUAL_PROMPT.min(request.goals.context) {
            return vec![PromptLength { tokens, count: 1 }];
        }
        request.prompts.clone()
    }

    /// Returns the hash of the user's calibration text, if one was named.
    pub fn calibration_digest(&self) -> Result<Option<Digest>> {
        Ok(self.read_calibration_text()?.map(|text| Digest::of(text.as_bytes())))
    }

    /// Reads the user's calibration text, if one was named.
    pub fn read_calibration_text(&self) -> Result<Option<String>> {
        self.calibration_text.as_deref().map(read_text).transpose()
    }
}

/// Reads a text file that an option names.
fn read_text(path: &Path) -> Result<String> {
    let fault = |error: std::string::FromUtf8Error| {
        let offset = error.utf8_error().valid_up_to();
        let byte = error.as_bytes()[offset];
        let what = format!("{} is not UTF-8: byte {byte:#04x} at offset {offset}", path.display());
        Error::new(ErrorKind::Invalid, what).with_help("save the text as UTF-8")
    };
    String::from_utf8(read_named(path, CALIBRATION_TEXT_BYTES)?).map_err(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_options_are_written_by_name_and_read_again() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let towers = TowerOptions {
            passes: Some(vec![Pass::Picture, Pass::Clip]),
            formats: vec![
                "w8-per-channel[mlp-output=f16][head=f16]/a16/a8".parse().unwrap(),
                FormatChoice::Stored,
            ],
            picture_tokens: vec![70, 280],
            clip_seconds: vec![5],
        };
        let whole = RecordedOptions {
            context: Some(64),
            on: Some(Executor::Simulator),
            limits: vec![("ops".to_owned(), 400)],
            flags: vec![pair("opt", "3"), pair("power", "saver")],
            flags_left_out: vec!["fast".to_owned()],
            planner_options: vec![pair("place.head", "cpu")],
            tables: TableFormats { embedding: Some(WeightFormat::W8PerChannel), per_layer: None },
            rounding: WeightRounding::Compensated,
            towers,
            device_memory: Some(12 << 30),
            calibration_digest: Some(Digest::of(b"text")),
            lora: vec![RecordedLora {
                name: "terse".to_owned(),
                scale: LoraScale::new(0.5).unwrap(),
                config: Digest::of(b"config"),
                weights: Digest::of(b"weights"),
            }],
        };
        let written = serde_json::json!({
            "calibration-text": Digest::of(b"text").to_string(),
            "context": 64,
            "device-memory": 12_u64 << 30,
            "flag": {"opt": "3", "power": "saver"},
            "limit": {"ops": 400},
            "lora": [{
                "config": Digest::of(b"config").to_string(),
                "name": "terse",
                "scale": 0.5,
                "weights": Digest::of(b"weights").to_string(),
            }],
            "on": "simulator",
            "planner": {"place.head": "cpu"},
            "rounding": "compensated",
            "table": {"embedding": "w8-per-channel"},
            "tower": {
                "clip-seconds": [5],
                "formats": ["w8-per-channel[mlp-output=f16][head=f16]/a16/a8", "stored"],
                "passes": ["picture", "clip"],
                "picture-tokens": [70, 280],
            },
            "without-flag": {"fast": true},
        });
        let text_alone = TowerOptions { passes: Some(Vec::new()), ..TowerOptions::default() };
        let text_alone = RecordedOptions { towers: text_alone, ..RecordedOptions::default() };
        for (options, json) in [
            (whole, written),
            (RecordedOptions::default(), serde_json::json!({})),
            (text_alone, serde_json::json!({"tower": {"passes": []}})),
        ] {
            assert_eq!(serde_json::to_value(&options).unwrap(), json);
            assert_eq!(serde_json::from_value::<RecordedOptions>(json).unwrap(), options);
        }
        for wrong in [
            serde_json::json!({"smell": 1}),
            serde_json::json!({"context": "64"}),
            serde_json::json!({"on": "paper"}),
            serde_json::json!({"limit": {"ops": -1}}),
            serde_json::json!({"device-memory": "12GB"}),
            serde_json::json!({"table": {"third": "f32"}}),
            serde_json::json!({"tower": {"passes": ["nose"]}}),
            serde_json::json!({"lora": [{"name": "terse", "scale": "half"}]}),
            serde_json::json!({"tower": {"formats": ["w9"]}}),
        ] {
            assert!(serde_json::from_value::<RecordedOptions>(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_setting_that_places_a_component_is_of_its_pass() {
        for (name, pass) in [
            ("place.head", Some(Pass::Step)),
            ("place.vision-tower", Some(Pass::Picture)),
            ("place.audio-embed", Some(Pass::Clip)),
            ("place.nothing", None),
            ("format", None),
        ] {
            assert_eq!(placed_pass(name), pass, "{name}");
        }
    }

    #[test]
    fn a_hedge_keeps_planner_and_settings_without_places_on_other_targets() {
        let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut asked = PlanOptions { planner: Some("hedging".to_owned()), ..PlanOptions::default() };
        asked.recorded.flags = vec![setting("opt", "3")];
        asked.recorded.planner_options =
            vec![setting("place.head", "cpu"), setting("hedge", "on"), setting("build", "just-in-time")];
        let own = asked.hedged("mt6989");
        assert_eq!((own.soc.as_deref(), own.alone), (Some("mt6989"), true));
        assert_eq!((&own.planner, &own.recorded.flags), (&asked.planner, &asked.recorded.flags));
        assert_eq!(own.recorded.planner_options, [setting("build", "just-in-time")]);
        assert!(!asked.excludes_hedges());
        asked.recorded.planner_options[1] = setting("hedge", "off");
        assert!(asked.excludes_hedges());
        assert!(PlanOptions { unhedged: true, ..PlanOptions::default() }.excludes_hedges());
    }

    #[test]
    fn what_is_asked_of_proposals_is_asked_of_every_chain() {
        let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut asked = PlanOptions::default();
        asked.recorded.planner_options =
            vec![setting("balance", "bytes"), setting(SPECULATION_OPTION, "none")];
        let kept = vec![setting(SPECULATION_OPTION, "none")];
        assert_eq!(asked.without_a_chip().recorded.planner_options, kept);
        assert_eq!(asked.on_another("sm8850").recorded.planner_options, kept);
        // Another planner may have an option of that name with another meaning.
        let another = PlanOptions { planner: Some("even".to_owned()), ..asked };
        assert_eq!(another.without_a_chip().recorded.planner_options, Vec::new());
    }
}
