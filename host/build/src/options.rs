//! Options of planning and building.

use std::path::{Path, PathBuf};
use std::str::FromStr;

#[cfg(feature = "checkpoints")]
use shardwright_bundle::Digest;
use shardwright_files::read_named;
use shardwright_graph::Graph;
#[cfg(feature = "checkpoints")]
use shardwright_graph::Weight;
use shardwright_planning::profile::{GENERIC, Preference, Profile};
use shardwright_planning::request::{DraftEstimate, PromptLength};
#[cfg(feature = "checkpoints")]
use shardwright_quantisation::Compensated;
use shardwright_shims::RegistryBuilder;
use shardwright_trust::{Trust, TrustOptions};
use shardwright_vocabulary::{
    ComponentKind, Error, ErrorKind, FormatTuple, Notice, Pass, Result, TargetKind, UnknownName, WeightFormat,
};
use shardwright_worker::{Isolation, Shims};

use crate::{MeasuredTimes, PlanSource, StatedDraft, drafts};

/// Formats that a plan may choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormatChoice {
    /// Every weight as the checkpoint stores it, everything else in 32-bit float.
    Stored,
    /// This combination of weight, activation and state formats.
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

    /// `stored`, or a tuple as reports spell it: `w4-block32[head=w8-per-channel]/f32/f32`. A
    /// weight format alone means f32 for the rest.
    fn from_str(text: &str) -> std::result::Result<Self, UnknownName> {
        match text {
            "stored" => Ok(FormatChoice::Stored),
            tuple => tuple.parse().map(FormatChoice::Tuple),
        }
    }
}

/// Formats of the gathered tables, which belong to no shard; `None` leaves the choice to the plan,
/// which keeps a table as stored unless a goal for the size asks for less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableFormats {
    /// The embedding table.
    pub embedding: Option<WeightFormat>,
    /// The per-layer embedding table.
    pub per_layer: Option<WeightFormat>,
}

/// What runs a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Executor {
    /// The chip itself, through its vendor's shim.
    Device,
    /// The vendor's simulator of the chip.
    Simulator,
    /// The CPU shim, with the chip's cut, formats and encodings. Every report is headed *emulated
    /// on cpu*.
    Cpu,
}

impl Executor {
    /// Lower-case name, as on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Executor::Device => "device",
            Executor::Simulator => "simulator",
            Executor::Cpu => "cpu",
        }
    }
}

/// What is asked of the towers that stand beside a model's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TowerOptions {
    /// The passes whose towers are planned and compiled with the text; `None` for all that the
    /// checkpoint has.
    pub passes: Option<Vec<Pass>>,
    /// Formats offered to the planner, best first. Empty: on the CPU as stored, for a chip those of
    /// its profile that keep eight bits of every weight.
    pub formats: Vec<FormatChoice>,
    /// Soft tokens of the pictures that entry points are made for; empty for as many as the
    /// checkpoint's processor makes.
    pub picture_tokens: Vec<u32>,
    /// Seconds of the clips that entry points are made for; empty for the longest that the
    /// checkpoint's processor takes.
    pub clip_seconds: Vec<u32>,
}

impl TowerOptions {
    /// What was asked beyond the defaults, by name: what [`TowerOptions::ask`] takes.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn asked(&self) -> Vec<(String, String)> {
        fn joined<T: ToString>(items: &[T]) -> String {
            items.iter().map(T::to_string).collect::<Vec<_>>().join(",")
        }
        let mut asked = Vec::new();
        asked.extend(self.passes.as_ref().map(|passes| ("tower.passes", joined(passes))));
        asked.extend((!self.formats.is_empty()).then(|| ("tower.formats", joined(&self.formats))));
        for (name, sizes) in
            [("tower.picture-tokens", &self.picture_tokens), ("tower.clip-seconds", &self.clip_seconds)]
        {
            asked.extend((!sizes.is_empty()).then(|| (name, joined(sizes))));
        }
        asked.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Takes what an earlier call asked for; `None` if that is not understood.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn ask(&mut self, name: &str, value: &str) -> Option<()> {
        fn each<T: FromStr>(value: &str) -> Option<Vec<T>> {
            value.split(',').filter(|item| !item.is_empty()).map(|item| item.parse().ok()).collect()
        }
        match name {
            "passes" => self.passes = Some(each(value)?),
            "formats" => self.formats = each(value)?,
            "picture-tokens" => self.picture_tokens = each(value)?,
            "clip-seconds" => self.clip_seconds = each(value)?,
            _ => return None,
        }
        Some(())
    }
}

/// How weights become integers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightRounding {
    /// Matrices of 4 bits and fewer as [`WeightRounding::Compensated`] in models of up to 512
    /// million weights, for which that takes some minutes at most; the rest to the nearest.
    #[default]
    Usual,
    /// Each to the nearest.
    Nearest,
    /// So that the errors of a row make up for each other, by what the weights are multiplied with
    /// over the calibration text (GPTQ).
    Compensated,
}

impl WeightRounding {
    /// The roundings that are asked for by name.
    const NAMED: [(&str, WeightRounding); 2] =
        [("nearest", WeightRounding::Nearest), ("compensated", WeightRounding::Compensated)];

    /// The name; `None` for the usual one.
    pub fn name(self) -> Option<&'static str> {
        WeightRounding::NAMED.iter().find(|(_, rounding)| *rounding == self).map(|(name, _)| *name)
    }

    /// The rounding of that name.
    pub fn named(name: &str) -> Option<WeightRounding> {
        WeightRounding::NAMED.iter().find(|(known, _)| *known == name).map(|(_, rounding)| *rounding)
    }
}

/// When the quality loss of a finished plan is measured by running it. A plan is only run if the
/// weights are available and its formats change values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlanMeasuring {
    /// Never.
    #[default]
    Never,
    /// For models of up to 2 billion weights. If the measurement fails, a notice reports why.
    Usual,
    /// For every model. If the measurement fails, planning fails.
    Always,
}

/// Options of a plan. The default plans for the generic profile and runs on this machine's CPU.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// Where shims are found.
    pub shims: RegistryBuilder,
    /// Directories of planners.
    pub planners: Vec<PathBuf>,
    /// Directories of profiles, in addition to the built-in ones.
    pub profiles: Vec<PathBuf>,
    /// Which shims' work runs in a separate process.
    pub isolation: Isolation,
    /// Whether a fallback is an error.
    pub strict: bool,
    /// Threads of the CPU engine; `None` for one per core.
    pub threads: Option<u32>,
    /// Cache directory; `None` to cache nothing.
    pub cache: Option<PathBuf>,
    /// Whose planner packs are run, and how bundles, shims, planners and profiles must be signed.
    pub trust: TrustOptions,
    /// A profile's name or alias; `None` for the generic one.
    pub soc: Option<String>,
    /// Whether the chip's own device alone is offered to the planner, without what its profile
    /// falls back to and without this machine's CPU.
    pub alone: bool,
    /// Whether the CPU that is planned for is another machine's, so that times of this one count
    /// for nothing.
    pub elsewhere: bool,
    /// What runs the plan; `None` for the device if its shim finds it.
    pub on: Option<Executor>,
    /// Limits of the user, by name.
    pub limits: Vec<(String, u64)>,
    /// Flags of the user, by name.
    pub flags: Vec<(String, String)>,
    /// Names of profile flags to leave out.
    pub flags_left_out: Vec<String>,
    /// A planner's file or name; `None` for the built-in one.
    pub planner: Option<String>,
    /// Whether `planner` is a name and never a path, because it comes from a bundle.
    pub planner_by_name: bool,
    /// Settings of the planner, by name.
    pub planner_options: Vec<(String, String)>,
    /// Context capacity in tokens.
    pub context: Option<u32>,
    /// Formats offered to the planner, best first; empty for those of the profile.
    pub formats: Vec<FormatChoice>,
    /// Formats of the gathered tables, where the planner is not to choose them.
    pub tables: TableFormats,
    /// How weights become integers.
    pub rounding: WeightRounding,
    /// When the loss of the whole plan is measured.
    pub measuring: PlanMeasuring,
    /// File for the request to the planner, written before the planner runs. Requests of towers go
    /// next to it. `None` writes no file.
    pub request_file: Option<PathBuf>,
    /// Text to calibrate on; `None` for the built-in texts.
    pub calibration_text: Option<PathBuf>,
    /// The most quality a plan may lose: KL divergence in millionths of a nat per token.
    pub quality_micronats: Option<u64>,
    /// What a plan is best in where goals bound bytes or times; `None` for what the chip's profile
    /// says.
    pub prefers: Option<Preference>,
    /// The most bytes that artefacts and KV cache of all shards may take together.
    pub memory_bytes: Option<u64>,
    /// The most bytes that the artefacts of all shards and the gathered tables may take together,
    /// with what the plan falls back to where that fits beside.
    pub size_bytes: Option<u64>,
    /// The most microseconds that a generated token may take, by the times that are known.
    pub token_microseconds: Option<u64>,
    /// The most microseconds from a usual prompt to the first token of its answer, by the times
    /// that are known.
    pub first_token_microseconds: Option<u64>,
    /// How long prompts usually are: for a chip, whose entry points compute all their rows,
    /// prefills are chosen that suit them, and the time to the first token is that of their mean.
    /// Empty for one of 512 tokens, or of the context if that is less, which chooses nothing. What
    /// exceeds the context counts as long as that.
    pub prompts: Vec<PromptLength>,
    /// Tokens of a usual answer: their share of the time to the first one counts beside the time of
    /// a token. `None`: the time of a token alone.
    pub answer_tokens: Option<u32>,
    /// What may propose tokens for a plan to verify, with how many of them are right; `None` for a
    /// lookup in prompt and reply with a modest guess. Models without states have none.
    pub drafts: Option<Vec<DraftEstimate>>,
    /// Smaller models with the same vocabulary that may propose tokens too, each as a checkpoint or
    /// a bundle, unless there are `drafts`: a plan counts on those that were measured
    /// (`DraftRecords`).
    pub draft_models: Vec<PathBuf>,
    /// A text of conversations like the application's, one a line, turns separated by tabs, user
    /// first: how often prompt lookup is right in its replies is measured and used, unless there
    /// are `drafts`.
    pub usual_text: Option<PathBuf>,
    /// Which measured times the plan rests on.
    pub times: MeasuredTimes,
    /// A bundle whose artefacts of the same work orders are taken, instead of compiling them.
    pub reuse: Option<PathBuf>,
    /// What is asked of the towers for pictures and sounds.
    pub towers: TowerOptions,
    /// Rows of an encoder's entry points; empty for one of the context.
    pub encode_rows: Vec<u32>,
    /// Whether entry graphs expose their layer outputs.
    pub taps: bool,
    /// Changes the graph before anything else sees it, for tests of verification.
    pub alter: Option<fn(&mut Graph)>,
}

/// Largest number of weights that are rounded with compensation by default. Gemma 3 270M has 268
/// million: moments, layers in 4 bits and a run of the plan took 271 s of a processor.
#[cfg(feature = "checkpoints")]
const COMPENSATED_WEIGHTS: u64 = 512_000_000;

/// Largest number of weights of a model whose plan is measured by default. The 268 million of Gemma
/// 3 270M in 8 bits took 19 s of a processor.
#[cfg(feature = "checkpoints")]
pub(crate) const MEASURED_WEIGHTS: u64 = 2_000_000_000;

/// Returns the number of weights of a model, without gathered tables.
#[cfg(feature = "checkpoints")]
pub(crate) fn weights_of(graph: &Graph) -> u64 {
    let count = |weight: &Weight| weight.shape.iter().copied().fold(1, u64::saturating_mul);
    graph.weights.iter().map(count).fold(0, u64::saturating_add)
}

impl PlanOptions {
    /// Which matrices of a model are rounded with compensation; `None` for none.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn compensated(&self, graph: &Graph) -> Option<Compensated> {
        match self.rounding {
            WeightRounding::Nearest => None,
            WeightRounding::Compensated => Some(Compensated::All),
            WeightRounding::Usual => {
                let suits = graph.is_generative() && weights_of(graph) <= COMPENSATED_WEIGHTS;
                suits.then_some(Compensated::FourBits)
            }
        }
    }

    /// The rules by which files are used. Those of each call keep their own warnings.
    ///
    /// # Errors
    ///
    /// A key that is none, and what is wrong with a list of revocations.
    pub fn rules(&self) -> Result<Trust> {
        self.trust.rules(self.cache.as_deref())
    }

    /// The shims that are signed as these rules ask.
    ///
    /// # Errors
    ///
    /// What makes isolation impossible that was asked for.
    pub fn shims_by(&self, rules: &Trust) -> Result<Shims> {
        Shims::open(self.shims.clone().trusting(rules.clone()), self.isolation)
    }

    /// The same for one of several chips. What has no chip has no simulator of one, and is not
    /// emulated.
    #[must_use]
    pub fn for_chip(&self, soc: &str) -> Self {
        let on = self.on.filter(|_| soc != GENERIC);
        PlanOptions { soc: Some(soc.to_owned()), on, ..self.clone() }
    }

    /// For the CPU of any machine, without what was asked of a chip, its compiler and a planner.
    pub(crate) fn without_a_chip(&self) -> PlanOptions {
        PlanOptions { soc: None, on: None, limits: Vec::new(), elsewhere: true, ..self.without_settings() }
    }

    /// For another chip alone, without what was asked of the first one's compiler and a planner.
    pub(crate) fn on_another(&self, soc: &str) -> PlanOptions {
        PlanOptions { soc: Some(soc.to_owned()), alone: true, ..self.without_settings() }
    }

    /// Without what was asked of a chip's compiler and a planner.
    pub(crate) fn without_settings(&self) -> PlanOptions {
        PlanOptions {
            flags: Vec::new(),
            flags_left_out: Vec::new(),
            planner: None,
            planner_options: self.about_speculation(),
            ..self.clone()
        }
    }

    /// Whether proposed tokens are verified is asked of the whole model, whatever runs it.
    fn about_speculation(&self) -> Vec<(String, String)> {
        let own = self.planner_options.iter().filter(|(name, _)| name == SPECULATION_OPTION);
        own.filter(|_| self.planner.is_none()).cloned().collect()
    }
}

/// Beginning of the built-in planner's options that place a component.
const PLACE_OPTION: &str = "place.";

/// The pass of the component that a planner's option of this name places, if it does.
pub(crate) fn placed(name: &str) -> Option<Pass> {
    let component: ComponentKind = name.strip_prefix(PLACE_OPTION)?.parse().ok()?;
    Some(component.pass())
}

/// Beginning of the built-in planner's options that name the weights of a component.
const WEIGHTS_OPTION: &str = "weights.";

/// The built-in planner's option that names a format; if it is set, the formats of a CPU are
/// offered too.
pub(crate) const FORMAT_OPTION: &str = "format";

/// The built-in planner's option for the loss that is usual where no goal is stated.
pub(crate) const USUAL_QUALITY_OPTION: &str = "usual-quality";

/// The built-in planner's option for whether proposed tokens are verified.
pub(crate) const SPECULATION_OPTION: &str = "speculation";

/// The built-in planner's option for what a plan falls back to, and its value for nothing.
pub(crate) const NO_FALLBACKS: (&str, &str) = ("fallbacks", "none");

/// Millinats of KL divergence a token: `good`.
pub(crate) const USUAL_QUALITY: u32 = 150;

/// The same: `near-lossless`.
pub(crate) const NEAR_LOSSLESS: u32 = 5;

/// The same: `small`.
pub(crate) const SMALL: u32 = 300;

/// Tokens of a prompt if nobody says how long they usually are.
const USUAL_PROMPT: u32 = 512;

/// Most bytes of a calibration text.
const CALIBRATION_TEXT_BYTES: u64 = 4 << 20;

/// Whether losses decide between formats, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossGoal {
    /// They do not.
    None,
    /// As little as possible within goals of bytes and times.
    Least,
    /// So much and no more, in millionths of a nat per token.
    Most(u64),
}

impl PlanOptions {
    /// The options with what a profile says where the user says nothing: its planner, and its goals
    /// unless the user states any; also which of them that are.
    pub(crate) fn completed_by(&self, profile: &Profile) -> (Self, Vec<String>) {
        let (mut options, mut taken) = (self.clone(), Vec::new());
        if let (None, Some(planner)) = (&self.planner, &profile.planner) {
            taken.push(format!("planner {planner}"));
            (options.planner, options.planner_by_name) = (Some(planner.clone()), true);
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

    /// What the goals and the preference of the profile, or the user's, make of losses. Of an
    /// encoder's nothing is expected, so that only a quality goal counts.
    pub(crate) fn loss_goal(&self, profile: &Profile, graph: &Graph) -> LossGoal {
        let bounds =
            [self.memory_bytes, self.size_bytes, self.token_microseconds, self.first_token_microseconds];
        match self.quality_micronats {
            Some(micronats) => LossGoal::Most(micronats),
            None if bounds.iter().all(Option::is_none) || !graph.is_generative() => LossGoal::None,
            None if self.prefers.unwrap_or(profile.prefers) == Preference::Quality => LossGoal::Least,
            None => LossGoal::None,
        }
    }

    /// The loss in millinats within which the built-in planner takes the fastest formats that a
    /// chip's profile offers, if nobody says anything about formats or quality. Goals of bytes and
    /// times leave it in force. Nothing is rounded unasked on the CPU, and of an encoder's losses
    /// nothing is expected.
    pub(crate) fn usual_quality(&self, profile: &Profile, graph: &Graph) -> Option<u32> {
        let said = self.planner.is_some()
            || self.prefers.is_some()
            || !self.formats.is_empty()
            || self.loss_goal(profile, graph) != LossGoal::None
            || self
                .planner_options
                .iter()
                .any(|(name, _)| name == FORMAT_OPTION || name == USUAL_QUALITY_OPTION);
        let usual = !said && profile.kind != TargetKind::Cpu && graph.is_generative();
        usual.then_some(USUAL_QUALITY)
    }

    /// The weight formats that options of the built-in planner name for parts of the model.
    pub(crate) fn named_weights(&self) -> impl Iterator<Item = WeightFormat> {
        let options = self.planner_options.iter();
        let named = options.filter(|(name, _)| name.starts_with(WEIGHTS_OPTION));
        named.filter_map(|(_, format)| format.parse().ok())
    }

    /// The usual prompts within a context, and their mean, which is 512 if nobody said. Lengths
    /// that never occur are left out.
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

    /// What may propose tokens to a model on the chip of a profile in a context, and what is to be
    /// said of it.
    pub(crate) fn usual_drafts(
        &self,
        source: &dyn PlanSource,
        soc: &str,
        context: u32,
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
                let found = source.accepted(&read_text(path)?)?.ok_or_else(|| {
                    let what =
                        format!("{} cannot be read as tokens: the tokenizer is not here", path.display());
                    Error::new(ErrorKind::Missing, what)
                        .with_help("plan the checkpoint with its tokenizer beside it")
                })?;
                drafts::measured(source.graph(), context, found)
            }
        };
        let (models, notices) = source.draft_models(soc, context)?;
        let mut all: Vec<StatedDraft> = Vec::new();
        for draft in lookup.map(StatedDraft::from).into_iter().chain(models) {
            let name = &draft.estimate.name;
            if all.iter().any(|other| other.estimate.name == *name) {
                let what = format!("two drafts are called `{name}`, as the last folder of a path");
                return Err(Error::new(ErrorKind::Argument, what).with_help("give each another name"));
            }
            all.push(draft);
        }
        Ok((all, notices))
    }

    /// For a smaller model that drafts for one that these options plan: on the same chip, in no
    /// larger context, otherwise planned as if nothing was asked.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn of_a_draft(&self, context: u32) -> PlanOptions {
        PlanOptions {
            shims: self.shims.clone(),
            planners: self.planners.clone(),
            profiles: self.profiles.clone(),
            isolation: self.isolation,
            strict: self.strict,
            threads: self.threads,
            cache: self.cache.clone(),
            trust: self.trust.clone(),
            soc: self.soc.clone(),
            elsewhere: self.elsewhere,
            on: self.on,
            context: Some(context),
            drafts: Some(Vec::new()),
            towers: TowerOptions { passes: Some(Vec::new()), ..TowerOptions::default() },
            ..PlanOptions::default()
        }
    }

    /// The text of usual conversations, if one was named.
    ///
    /// # Errors
    ///
    /// Of reading it.
    pub fn read_usual_text(&self) -> Result<Option<String>> {
        self.usual_text.as_deref().map(read_text).transpose()
    }

    /// The prompts that make a request's, as [`PlanOptions::usual_prompts`] did.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn prompts_of(request: &shardwright_planning::request::Request) -> Vec<PromptLength> {
        let tokens = request.goals.prompt_tokens;
        if request.prompts.is_empty() && tokens != USUAL_PROMPT.min(request.goals.context) {
            return vec![PromptLength { tokens, count: 1 }];
        }
        request.prompts.clone()
    }

    /// The digest of the user's calibration text, if one was named.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn calibration_digest(&self) -> Result<Option<Digest>> {
        Ok(self.read_calibration_text()?.map(|text| Digest::of(text.as_bytes())))
    }

    /// The user's calibration text, if one was named.
    pub(crate) fn read_calibration_text(&self) -> Result<Option<String>> {
        self.calibration_text.as_deref().map(read_text).transpose()
    }
}

/// A text that options name.
fn read_text(path: &Path) -> Result<String> {
    let fault = |error: std::string::FromUtf8Error| {
        let offset = error.utf8_error().valid_up_to();
        let byte = error.as_bytes()[offset];
        let what = format!("{} is not UTF-8: byte {byte:#04x} at offset {offset}", path.display());
        Error::new(ErrorKind::Argument, what).with_help("save the text as UTF-8")
    };
    String::from_utf8(read_named(path, CALIBRATION_TEXT_BYTES)?).map_err(fault)
}

#[cfg(all(test, feature = "checkpoints"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_of_towers_is_written_down_and_read_again() {
        let all = [
            TowerOptions::default(),
            TowerOptions { passes: Some(Vec::new()), ..TowerOptions::default() },
            TowerOptions {
                passes: Some(vec![Pass::Picture, Pass::Clip]),
                formats: vec![
                    "w8-per-channel[head=f16][mlp-output=f16]/a16/a8".parse().unwrap(),
                    FormatChoice::Stored,
                ],
                picture_tokens: vec![70, 280],
                clip_seconds: vec![5],
            },
            TowerOptions { formats: vec![FormatChoice::Stored], ..TowerOptions::default() },
        ];
        for asked in all {
            let mut read = TowerOptions::default();
            for (name, value) in asked.asked() {
                let name = name.strip_prefix("tower.").unwrap();
                assert_eq!(read.ask(name, &value), Some(()), "{name}={value}");
            }
            assert_eq!(read, asked);
        }
        let mut read = TowerOptions::default();
        for (name, value) in [("passes", "nose"), ("formats", "w9"), ("picture-tokens", "-1"), ("smell", "1")]
        {
            assert_eq!(read.ask(name, value), None, "{name}={value}");
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
            assert_eq!(placed(name), pass, "{name}");
        }
    }

    #[test]
    fn what_is_asked_of_proposals_is_asked_of_every_chain() {
        let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let asked = PlanOptions {
            planner_options: vec![setting("balance", "bytes"), setting(SPECULATION_OPTION, "none")],
            ..PlanOptions::default()
        };
        let kept = vec![setting(SPECULATION_OPTION, "none")];
        assert_eq!(asked.without_a_chip().planner_options, kept);
        assert_eq!(asked.on_another("sm8850").planner_options, kept);
        // Another planner may mean something else by it.
        let another = PlanOptions { planner: Some("even".to_owned()), ..asked };
        assert_eq!(another.without_a_chip().planner_options, Vec::new());
    }
}
