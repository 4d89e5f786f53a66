//! The options of a plan: as arguments, as options of the library, and which of them a bundle has
//! decided.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use shardwright::{FormatChoice, Pass, Preference, PromptLength, TableFormats, WeightFormat, WeightRounding};
use shardwright_build::{self as build, PlanOptions, RecordedOptions, TowerOptions};

use super::{
    ExecutionArguments, ExecutorArgument, LoraArguments, PlannerPlaces, ProfilePlaces, ShimPlaces, Table,
    TowerArgument, TrustArguments, formats, name_and_number, name_and_text, preference, prompt_length,
    quality, rounding, size, table_format, time, tokens_per_second,
};

/// The chip to plan for, and the goals and settings of the plan.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Chip and plan")]
pub struct TargetArguments {
    /// Chip to plan for, by the name or an alias of its profile. Default: the profile `generic`, on
    /// the CPU.
    ///
    /// `compile` and `plan` accept several chips, repeated or separated by commas. `compile` then
    /// writes a variant for each chip, and `plan` compares them. For a bundle, this option
    /// overrides the detected chip of the machine.
    #[arg(long, value_name = "SOC")]
    pub soc: Vec<String>,
    /// Override or add a limit of the chip, such as `ops=400` (may be repeated). The plan reports
    /// its provenance as `user`.
    ///
    /// A number may end in `k`, `KiB`, `MiB` or `GiB`.
    #[arg(long = "limit", value_name = "NAME=VALUE", value_parser = name_and_number)]
    pub limits: Vec<(String, u64)>,
    /// Set a flag of the chip's compiler, in addition to the flags of the chip's profile (may be
    /// repeated). Flags of a session, such as `power`, can be set for a bundle too.
    #[arg(long = "flag", value_name = "NAME=VALUE", value_parser = name_and_text)]
    pub flags: Vec<(String, String)>,
    /// Remove a flag of the chip's profile (may be repeated).
    #[arg(long = "without-flag", value_name = "NAME")]
    pub flags_left_out: Vec<String>,
    /// Formats to offer to the planner, best first (may be repeated): `stored`, or
    /// WEIGHTS/ACTIVATIONS/STATES such as `w4-block32[head=w8-per-channel]/f32/f32`. Default: the
    /// formats of the chip's profile, then `stored`, or only `stored` without a chip.
    ///
    /// States are the KV cache. Brackets set the format of a role. A last part `attention-bf16` or
    /// `attention-f16` rounds the operands of attention to 16 bits. Without a chip, weights that
    /// are stored as integers in blocks of 32 are multiplied with activations in
    /// `a8-dynamic-block32`.
    #[arg(long, value_name = "FORMATS", value_parser = formats)]
    pub formats: Vec<FormatChoice>,
    /// Towers (encoders for pictures and sounds) to plan and compile with the text, separated by
    /// commas. Default: all towers of the checkpoint.
    ///
    /// `run` ignores this option for a checkpoint: it opens a tower when a picture or sound needs
    /// it.
    #[arg(long, value_name = "TOWER", value_delimiter = ',')]
    pub towers: Vec<TowerArgument>,
    /// Formats to offer for the towers, best first, written as in `--formats` (may be repeated).
    /// Default: as stored on a CPU, and for a chip the formats of its profile that keep eight bits
    /// of every weight.
    #[arg(long, value_name = "FORMATS", value_parser = formats)]
    pub tower_formats: Vec<FormatChoice>,
    /// Picture sizes, in soft tokens, for which towers get entry points, such as `70,140,280`.
    /// Default: the size that the checkpoint's processor produces.
    ///
    /// A chip computes all rows of an entry point, so it runs the smallest one that fits a picture.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub picture_sizes: Vec<u32>,
    /// Sound lengths, in seconds, for which towers get entry points, such as `5,30`. Default: the
    /// longest sound that the checkpoint's processor accepts.
    #[arg(long, value_name = "SECONDS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub clip_lengths: Vec<u32>,
    /// Format of a table whose rows are read by token id, `embedding` or `per-layer` (may be
    /// repeated). Default: as stored, or narrower if `--size` requires it.
    #[arg(long = "table", value_name = "NAME=FORMAT", value_parser = table_format)]
    pub tables: Vec<(Table, WeightFormat)>,
    /// Largest quality loss of the plan: `near-lossless` (5), `good` (150), `small` (300), or a
    /// number, as KL divergence in thousandths of a nat per token. Default: no measured limit.
    ///
    /// The losses are measured once for a checkpoint, which needs minutes. Without this option,
    /// `--prefer` and `--formats`, a plan for a chip stays within `good` by estimated losses if it
    /// can.
    #[arg(long, value_name = "GOAL", value_parser = quality)]
    pub quality: Option<u32>,
    /// Objective among the plans that meet the goals for bytes and times. Default: `speed` on a
    /// chip, unless its profile sets `quality`, and `quality` on a CPU.
    ///
    /// On a CPU, weights stay as stored unless a goal requires smaller ones.
    #[arg(long, value_name = "speed|quality", value_parser = preference)]
    pub prefer: Option<Preference>,
    /// Largest size of artefacts and KV cache of all shards together, such as `900MB`, `3GB`, or a
    /// number of bytes. Default: the limits of the chip.
    ///
    /// Gathered tables are mapped and not counted. This option bounds the plan of a checkpoint.
    /// `--memory-budget` of `run` bounds the memory of a finished bundle.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// Largest size of artefacts and gathered tables together, which an app ships, such as `900MB`,
    /// `3GB`, or a number of bytes. Default: the limits of the chip.
    ///
    /// Sizes that a formula estimates are at best `likely` to be within the limit. Tables are
    /// rounded if that leaves more bytes for the layers. Fallback chains and hedges count too. They
    /// are left out if they do not fit, and with `--strict`.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Memory of the device, such as `12GiB`, to report whether the plan fits. Default: the
    /// smallest memory of devices with the chip, if its profile has it.
    ///
    /// An app can use a part of the memory. The chip's profile has the part. Otherwise it is 60 %.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub device_memory: Option<u64>,
    /// Longest time from a prompt to the first token of its answer, such as `500ms` or `2s`.
    /// Default: no limit.
    ///
    /// Times are predicted as intervals, and plans whose likely time is within the limit are
    /// preferred. If only the fastest expected run is within it, the plan is reported as
    /// `unlikely`, and refused with `--strict`.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub first_token: Option<Duration>,
    /// Lowest speed of an answer in tokens per second, judged like `--first-token`. Default: no
    /// limit.
    #[arg(long, value_name = "NUMBER", value_parser = tokens_per_second)]
    pub tokens_per_second: Option<f64>,
    /// Usual length of a prompt in tokens, or several lengths and how often each occurs, such as
    /// `20:5,300:2,2000`. Default: 512, with the largest prefill entry point.
    ///
    /// A chip computes all rows of an entry point, so the planner chooses prefill entry points that
    /// suit these lengths. The time to the first token is the mean over them.
    #[arg(long, value_name = "TOKENS[:TIMES]", value_delimiter = ',', value_parser = prompt_length)]
    pub usual_prompt: Vec<PromptLength>,
    /// Usual length of an answer in tokens, to plan for the time of the whole answer with its first
    /// token. Default: plan for the time of one further token.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub usual_answer: Option<u32>,
    /// Text of usual conversations, to measure how often prompt lookup predicts their replies.
    /// Default: a modest guess.
    ///
    /// The text has one conversation per line, turns separated by tabs, user first. The measured
    /// rate decides whether the plan verifies several tokens in a step, and how many.
    #[arg(long, value_name = "FILE")]
    pub usual_text: Option<PathBuf>,
    /// Rounding of weights to integers: `nearest`, or `compensated`, where the errors of a row
    /// compensate each other over the calibration text. Default: `compensated` at 4 bits and fewer
    /// in models of up to 512 million weights, otherwise `nearest`.
    ///
    /// Compensated rounding needs minutes, once for a checkpoint and a text.
    #[arg(long, value_name = "nearest|compensated", value_parser = rounding)]
    pub rounding: Option<WeightRounding>,
    #[command(flatten)]
    pub lora: LoraArguments,
    /// Calibration text, used if formats or the rounding need one: one conversation per line, turns
    /// separated by tabs. Default: built-in texts.
    #[arg(long, value_name = "FILE")]
    pub calibration_text: Option<PathBuf>,
    /// Planner to use: a `.wasm` file, a planner pack, a name from a planner directory, or
    /// `generic` for the built-in planner. Default: the planner of the chip's profile, or the
    /// built-in one.
    #[arg(long, value_name = "FILE|NAME")]
    pub planner: Option<String>,
    /// Set an option of the planner (may be repeated). `planner check` lists a planner's options.
    #[arg(long = "planner-option", value_name = "NAME=VALUE", value_parser = name_and_text)]
    pub planner_options: Vec<(String, String)>,
    /// Capacity of the context in tokens. Default: the capacity that the model was trained for, at
    /// most 4096.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub context: Option<u32>,
    /// Turn every fallback into an error, and every field or file of the model that is unknown or
    /// has no effect. A fallback runs something elsewhere or otherwise than planned, or uses a plan
    /// that is unlikely to meet a goal.
    #[arg(long)]
    pub strict: bool,
    #[command(flatten)]
    pub shims: ShimPlaces,
    #[command(flatten)]
    pub planners: PlannerPlaces,
    #[command(flatten)]
    pub profiles: ProfilePlaces,
    #[command(flatten)]
    pub trust: TrustArguments,
}

impl TargetArguments {
    /// Returns the named chips, in order.
    pub fn socs(&self) -> Vec<String> {
        let names = self.soc.iter().flat_map(|soc| soc.split(','));
        names.map(|soc| soc.trim().to_owned()).collect()
    }

    /// Returns the chip for commands that accept only one. Several names are joined, so that they
    /// are reported as an unknown chip.
    pub fn one_soc(&self) -> Option<String> {
        (!self.soc.is_empty()).then(|| self.soc.join(","))
    }

    /// Returns arguments for planning a draft with that context: the same places and rules, and
    /// defaults for all other options. A bundle has its own context.
    pub fn of_a_draft(&self, context: Option<u32>) -> TargetArguments {
        TargetArguments {
            towers: vec![TowerArgument::None],
            context,
            strict: self.strict,
            shims: self.shims.clone(),
            planners: self.planners.clone(),
            profiles: self.profiles.clone(),
            trust: self.trust.clone(),
            ..TargetArguments::default()
        }
    }

    /// Returns the options of the library. Places, trust and `strict` are not among them.
    pub fn plan_options(&self, execution: &ExecutionArguments) -> PlanOptions {
        let passes = self.towers.iter().filter_map(|tower| match tower {
            TowerArgument::Picture => Some(Pass::Picture),
            TowerArgument::Clip => Some(Pass::Clip),
            TowerArgument::None => None,
        });
        let table =
            |wanted: Table| self.tables.iter().find(|(table, _)| *table == wanted).map(|(_, format)| *format);
        let token_time = self.tokens_per_second.map(|tokens| Duration::from_secs_f64(1.0 / tokens));
        PlanOptions {
            soc: self.one_soc(),
            recorded: RecordedOptions {
                context: self.context,
                on: execution.on.map(|on| match on {
                    ExecutorArgument::Device => build::Executor::Device,
                    ExecutorArgument::Simulator => build::Executor::Simulator,
                    ExecutorArgument::Cpu => build::Executor::Cpu,
                }),
                limits: self.limits.clone(),
                flags: self.flags.clone(),
                flags_left_out: self.flags_left_out.clone(),
                planner_options: self.planner_options.clone(),
                tables: TableFormats {
                    embedding: table(Table::Embedding),
                    per_layer: table(Table::PerLayer),
                },
                rounding: self.rounding.unwrap_or_default(),
                towers: TowerOptions {
                    passes: (!self.towers.is_empty()).then(|| passes.collect()),
                    formats: self.tower_formats.clone(),
                    picture_tokens: self.picture_sizes.clone(),
                    clip_seconds: self.clip_lengths.clone(),
                },
                device_memory: self.device_memory,
                calibration_digest: None,
                lora: Vec::new(),
            },
            formats: self.formats.clone(),
            quality_micronats: self.quality.map(|millinats| u64::from(millinats) * 1000),
            prefers: self.prefer,
            memory_bytes: self.memory,
            size_bytes: self.size,
            first_token_microseconds: self.first_token.map(microseconds),
            token_microseconds: token_time.map(microseconds),
            prompts: self.usual_prompt.clone(),
            answer_tokens: self.usual_answer,
            usual_text: self.usual_text.clone(),
            lora: self.lora.adapters.clone(),
            calibration_text: self.calibration_text.clone(),
            planner: self.planner.clone(),
            ..PlanOptions::default()
        }
    }

    /// Rejects an option that has no effect: because another one sets the same name, so that one
    /// value would be lost silently, or because `--towers` leaves its tower out.
    pub fn expect_effects(&self) -> Result<(), String> {
        self.expect_once()?;
        self.expect_towers()
    }

    fn expect_once(&self) -> Result<(), String> {
        let named =
            |option: &'static str, names: Vec<String>| names.into_iter().map(move |name| (option, name));
        let table = |table: Table| match table {
            Table::Embedding => "embedding".to_owned(),
            Table::PerLayer => "per-layer".to_owned(),
        };
        // Leaving a flag out also sets it.
        let flags = self.flags.iter().map(|(name, _)| name).chain(&self.flags_left_out);
        let all = named("--limit", self.limits.iter().map(|(name, _)| name.clone()).collect())
            .chain(named("--flag", flags.cloned().collect()))
            .chain(named("--table", self.tables.iter().map(|(name, _)| table(*name)).collect()))
            .chain(named(
                "--planner-option",
                self.planner_options.iter().map(|(name, _)| name.clone()).collect(),
            ));
        let mut seen = Vec::new();
        for pair in all {
            if seen.contains(&pair) {
                let (option, name) = pair;
                return Err(match option {
                    "--flag" => format!("flag `{name}` is set twice, or set and left out"),
                    option => format!("{option} sets `{name}` twice"),
                });
            }
            seen.push(pair);
        }
        Ok(())
    }

    fn expect_towers(&self) -> Result<(), String> {
        let has = |tower: TowerArgument| self.towers.is_empty() || self.towers.contains(&tower);
        let (pictures, clips) = (has(TowerArgument::Picture), has(TowerArgument::Clip));
        let settings = [
            ("--tower-formats", !self.tower_formats.is_empty(), pictures || clips),
            ("--picture-sizes", !self.picture_sizes.is_empty(), pictures),
            ("--clip-lengths", !self.clip_lengths.is_empty(), clips),
        ];
        match settings.into_iter().find(|(_, is_set, has_effect)| *is_set && !has_effect) {
            Some((name, ..)) => Err(format!("{name} sets a tower that --towers leaves out")),
            None => Ok(()),
        }
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the first option that a bundle has already decided. Not decided are the chip that the
/// machine is assumed to have, flags, some of which have an effect when shards are loaded, and
/// where to look for files and which keys to trust.
pub fn decided_before(target: &TargetArguments, execution: &ExecutionArguments) -> Option<&'static str> {
    let decided = [
        ("--limit", !target.limits.is_empty()),
        ("--without-flag", !target.flags_left_out.is_empty()),
        ("--formats", !target.formats.is_empty()),
        ("--towers", !target.towers.is_empty()),
        ("--tower-formats", !target.tower_formats.is_empty()),
        ("--picture-sizes", !target.picture_sizes.is_empty()),
        ("--clip-lengths", !target.clip_lengths.is_empty()),
        ("--table", !target.tables.is_empty()),
        ("--quality", target.quality.is_some()),
        ("--prefer", target.prefer.is_some()),
        ("--memory", target.memory.is_some()),
        ("--size", target.size.is_some()),
        ("--device-memory", target.device_memory.is_some()),
        ("--first-token", target.first_token.is_some()),
        ("--tokens-per-second", target.tokens_per_second.is_some()),
        ("--usual-prompt", !target.usual_prompt.is_empty()),
        ("--usual-answer", target.usual_answer.is_some()),
        ("--usual-text", target.usual_text.is_some()),
        ("--rounding", target.rounding.is_some()),
        ("--lora", !target.lora.adapters.is_empty()),
        ("--calibration-text", target.calibration_text.is_some()),
        ("--planner", target.planner.is_some()),
        ("--planner-option", !target.planner_options.is_empty()),
        ("--context", target.context.is_some()),
        ("--on", execution.on.is_some()),
    ];
    decided.into_iter().find(|(_, asked)| *asked).map(|(name, _)| name)
}
