//! The command line, as clap sees it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use shardwright::{FormatChoice, PlanMeasuring, Preference, PromptLength, WeightFormat, WeightRounding};
use shardwright_hub::{HubError, HubId};
use shardwright_trust::{Kind, LeastRelease, PublicKey};

/// Runs language models on phone NPUs by plan: what is cut where, in which format, with which
/// flags, and why.
#[derive(Parser, Debug)]
#[command(name = "shardwright", version, propagate_version = true)]
pub struct Arguments {
    /// How reports are written to standard output.
    #[arg(long, global = true, value_name = "text|json", value_parser = format, default_value = "text")]
    pub format: Format,
    /// Say more on standard error (repeat for more).
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// For programs; one document, or one per line while streaming.
    Json,
}

const RUN_EXAMPLES: &str = "Examples:
  shardwright run demo-model --prompt 'In the beginning' -n 32
  shardwright run demo-model --chat
  shardwright run demo-model --soc mt6989 --on simulator --prompt 'And'
  shardwright run path/to/bundle --prompt 'And' --format json";

const PULL_EXAMPLES: &str = "Examples:
  shardwright pull google/gemma-3-270m
  shardwright run google/gemma-3-270m --prompt 'In the beginning'
  shardwright pull unsloth/gemma-3-270m-it-GGUF:Q4_K_M
  shardwright pull google/gemma-3-270m --revision v1.0 --format json";

const COMPILE_EXAMPLES: &str = "Examples:
  shardwright compile demo-model --soc sm8850 -o bundle
  shardwright compile demo-model --soc sm8850,sm8750,generic --jobs 2 -o bundle";

const CALIBRATION_TEXT_EXAMPLES: &str = "Example:
  shardwright calibration-text demo-model --tokens 256 -o own.txt
  shardwright compile demo-model --rounding compensated --calibration-text own.txt -o bundle";

const PLAN_EXAMPLES: &str = "Examples:
  shardwright plan demo-model --soc sm8850
  shardwright plan demo-model --soc sm8850,mt6989,generic
  shardwright plan demo-model --soc mt6989 --limit ops=400 -v
  shardwright plan demo-model --soc mt6989 --html plan.html
  shardwright plan diff before.json after.json";

const SENSITIVITY_EXAMPLES: &str = "Examples:
  shardwright sensitivity demo-model --minutes 10
  shardwright sensitivity demo-model --soc sm8850 --rounding compensated";

const PERPLEXITY_EXAMPLES: &str = "Examples:
  shardwright perplexity demo-model --text text.txt
  shardwright perplexity demo-model --soc mt6989 --text text.txt --against demo-model
  shardwright perplexity path/to/bundle --text text.txt --against demo-model --format json";

const TUNE_EXAMPLES: &str = "Examples:
  shardwright tune demo-model --minutes 10
  shardwright tune demo-model --soc mt6989 --on simulator
  shardwright plan demo-model --soc mt6989 --on simulator";

const DIFF_EXAMPLES: &str = "Example:
  shardwright plan demo-model --soc mt6989 --format json > before.json
  shardwright plan demo-model --soc mt6989 --limit ops=400 --format json > after.json
  shardwright plan diff before.json after.json";

const PACK_EXAMPLES: &str = "Examples:
  shardwright pack demo.bundle -o demo.swb
  shardwright run demo.swb --prompt \"Once upon\"
  shardwright run app.apk!/assets/demo.swb --prompt \"Once upon\"
  shardwright pack demo.bundle --ai-pack packs --delivery fast-follow
  shardwright pack demo.bundle --adb phone --soc sm8750
  shardwright pack demo.bundle --hf hub --licence gemma";

const NEEDS_EXAMPLES: &str = "Examples:
  shardwright needs demo.bundle
  shardwright needs demo.bundle --soc sm8750 --format json";

const EXPLAIN_EXAMPLES: &str = "Example:
  shardwright compile demo-model --soc mt6989,sm8750,generic --on simulator -o demo.bundle
  shardwright explain demo.bundle
  shardwright explain demo.bundle --soc sm8750
  shardwright doctor --report phone.json      # on the phone
  shardwright explain demo.bundle --device phone.json";

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Generate text from a checkpoint or a bundle.
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArguments),
    /// Fetch a model from a Hugging Face hub into the cache that `hf download` uses. Other commands
    /// then accept its id in place of a path. An interrupted pull resumes where it stopped.
    #[command(after_help = PULL_EXAMPLES)]
    Pull(PullArguments),
    /// Measure how fast a checkpoint or a bundle runs, alone or in turns with llama.cpp's
    /// `llama-bench`.
    Bench(BenchArguments),
    /// Compile a checkpoint into a bundle, which runs without a compiler. An interrupted run goes
    /// on where it stopped.
    #[command(after_help = COMPILE_EXAMPLES)]
    Compile(CompileArguments),
    /// Pack a bundle into one file, an uncompressed ZIP archive, in which everything lies where a
    /// page of memory begins; the same commands take it as take the directory. Or lay it out for a
    /// way to phones: AI packs of Google Play, adb, a hub of models.
    #[command(after_help = PACK_EXAMPLES)]
    Pack(PackArguments),
    /// List what a bundle needs beside it on a phone: shims, vendors' libraries with their versions
    /// and licences, and what an app declares.
    #[command(after_help = NEEDS_EXAMPLES)]
    Needs(NeedsArguments),
    /// Show which variant and chain of a bundle a machine runs, and why not the others.
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArguments),
    /// Let a model write text to calibrate on: its own replies to prompts, drawn as it would say
    /// them. An interrupted run goes on where it stopped.
    #[command(after_help = CALIBRATION_TEXT_EXAMPLES)]
    CalibrationText(CalibrationTextArguments),
    /// Show what a bundle, an artefact, a work order or a checkpoint says of itself, or what a shim
    /// says of a file of its vendor's tools.
    Inspect {
        /// The file or directory.
        path: PathBuf,
        /// Prove every byte of a bundle, not the manifest and small files alone.
        #[arg(long)]
        verify: bool,
        /// The chip whose profile says which flags are worth setting, for files that do not name
        /// theirs.
        #[arg(long)]
        soc: Option<String>,
        #[command(flatten)]
        shims: ShimPlaces,
        #[command(flatten)]
        profiles: ProfilePlaces,
        #[command(flatten)]
        expected: ExpectedArgument,
        #[command(flatten)]
        trust: TrustArguments,
    },
    /// Show how a checkpoint would be cut, placed and built, and why, and whether it fits; or what
    /// differs between two plans. Weights need not be here: headers of the files or `config.json`
    /// alone do.
    #[command(
        after_help = PLAN_EXAMPLES,
        args_conflicts_with_subcommands = true,
        subcommand_negates_reqs = true,
        disable_help_subcommand = true
    )]
    Plan(PlanArguments),
    /// Measure what a checkpoint loses in each format, by layer and role, and keep it: plans rest
    /// on what is measured. The most valuable losses come first; an interrupted run goes on where
    /// it stopped.
    #[command(after_help = SENSITIVITY_EXAMPLES)]
    Sensitivity(SensitivityArguments),
    /// Measure how well a model predicts a text, counted as llama.cpp's `llama-perplexity` counts,
    /// and how far it is from a reference. An interrupted run resumes where it stopped.
    #[command(after_help = PERPLEXITY_EXAMPLES)]
    Perplexity(PerplexityArguments),
    /// Time plans where they run, and keep what was measured: later plans for the same chip,
    /// library and machine rest on it. An interrupted run goes on where it stopped.
    #[command(after_help = TUNE_EXAMPLES)]
    Tune(TuneArguments),
    /// Show what a checkpoint consists of.
    Show(ShowArguments),
    /// Turn text into sentence vectors.
    Embed(EmbedArguments),
    /// Compare a checkpoint's outputs with recorded ones. Exits with 1 if they differ.
    Verify(VerifyArguments),
    /// Show what there is to run on here, what was passed over and why, and what would come of a
    /// bundle.
    Doctor(DoctorArguments),
    /// Shims: list them and why others were skipped, begin one, state a hash.
    #[command(subcommand)]
    Shim(ShimCommand),
    /// Planners: begin, build, join and check them, and make signed packs for hosts without a
    /// compiler.
    #[command(subcommand)]
    Planner(PlannerCommand),
    /// Signatures: make a key, sign a bundle, shim, planner or profile, revoke what must not be
    /// used any more.
    #[command(subcommand)]
    Trust(TrustCommand),
    /// Write a completion script for a shell to standard output.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// Where shims are looked for besides the usual places.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Places and trust")]
pub struct ShimPlaces {
    /// A further directory of shims with their manifests (may be repeated).
    #[arg(long, value_name = "DIR")]
    pub shims: Vec<PathBuf>,
}

/// Where planners are looked for besides the usual places.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Places and trust")]
pub struct PlannerPlaces {
    /// A further directory of planners (may be repeated).
    #[arg(long, value_name = "DIR")]
    pub planners: Vec<PathBuf>,
}

/// Where profiles are looked for besides the usual places.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Places and trust")]
pub struct ProfilePlaces {
    /// A further directory of SoC profiles (may be repeated).
    #[arg(long, value_name = "DIR")]
    pub profiles: Vec<PathBuf>,
}

/// Whose signatures count, and of what.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Places and trust")]
pub struct TrustArguments {
    /// A public key whose signatures count (may be repeated). Planner packs are run only if signed
    /// by one.
    #[arg(long = "trust", value_name = "KEY")]
    pub trusted_keys: Vec<String>,
    /// What becomes of a bundle, shim, planner or profile without a signature of a trusted key: it
    /// is used, used with a notice, or refused. Default: with a notice where a key or a list is
    /// named.
    #[arg(long, value_enum, value_name = "off|warn|require", hide_possible_values = true)]
    pub signatures: Option<Signatures>,
    /// A list, signed by a trusted key, of what must not be used any more (may be repeated).
    #[arg(long, value_name = "FILE")]
    pub revocations: Vec<PathBuf>,
}

/// Which bundle is meant.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Signatures")]
pub struct ExpectedArgument {
    /// Refuse a bundle that no trusted key signed under this name, whatever `--signatures` says of
    /// other files.
    #[arg(long, value_name = "NAME")]
    pub expect: Option<String>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signatures {
    /// Not looked at.
    Off,
    /// Told of.
    Warn,
    /// Required.
    Require,
}

/// What is planned for.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Chip and plan")]
pub struct TargetArguments {
    /// The chip to plan for (a profile's name or alias). Default: the generic profile on the CPU.
    /// `compile` and `plan` take several, separated by commas or repeated: the bundle has a variant
    /// for each, and `plan` compares them. With a bundle, the chip that the machine is taken for.
    #[arg(long, value_name = "SOC")]
    pub soc: Vec<String>,
    /// Override or add a limit of the chip; its provenance becomes `user`.
    #[arg(long = "limit", value_name = "NAME=VALUE", value_parser = name_and_number)]
    pub limits: Vec<(String, u64)>,
    /// Set a flag of the chip's compiler, beside those of the chip's profile, or one of the session
    /// such as `power`, for a bundle too (may be repeated).
    #[arg(long = "flag", value_name = "NAME=VALUE", value_parser = name_and_text)]
    pub flags: Vec<(String, String)>,
    /// Leave a flag of the chip's profile out (may be repeated).
    #[arg(long = "without-flag", value_name = "NAME")]
    pub flags_left_out: Vec<String>,
    /// Offer these formats, best first (may be repeated): `stored`, or WEIGHTS/ACTIVATIONS/STATES
    /// such as `w4-block32[head=w8-per-channel]/f32/f32`. Default: those of the chip's profile,
    /// then `stored`; without a chip `stored` alone.
    #[arg(long, value_name = "FORMATS", value_parser = formats)]
    pub formats: Vec<FormatChoice>,
    /// The towers that are planned and compiled beside the text. Default: all that the checkpoint
    /// has. A checkpoint that is run opens a tower when a picture or sound needs it.
    #[arg(long, value_name = "WHICH", value_delimiter = ',')]
    pub towers: Vec<TowerArgument>,
    /// Offer these formats for the towers, best first (may be repeated), as `--formats` has them.
    /// Default: on a CPU as stored, for a chip those of its profile that keep eight bits of every
    /// weight.
    #[arg(long, value_name = "FORMATS", value_parser = formats)]
    pub tower_formats: Vec<FormatChoice>,
    /// Soft tokens of the pictures that entry points are made for: `70,140,280`. A chip, whose
    /// entry points compute all their rows, takes the smallest that holds a picture. Default: as
    /// many as the checkpoint's processor makes.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub picture_sizes: Vec<u32>,
    /// Seconds of the sounds that entry points are made for: `5,30`. Default: the longest that the
    /// checkpoint's processor takes.
    #[arg(long, value_name = "SECONDS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub clip_lengths: Vec<u32>,
    /// The format of a gathered table (`embedding`, `per-layer`). Default: as stored, or narrower
    /// where `--size` asks for it.
    #[arg(long = "table", value_name = "NAME=FORMAT", value_parser = table_format)]
    pub tables: Vec<(Table, WeightFormat)>,
    /// The most quality a plan may lose: `near-lossless` (5), `good` (150), `small` (300), or a
    /// number: KL divergence in thousandths of a nat per token. Measured once for a checkpoint.
    #[arg(long, value_name = "GOAL", value_parser = quality)]
    pub quality: Option<u32>,
    /// What a plan is best in, of those that keep the goals of bytes and times. Default: `speed` on
    /// a chip, `quality` on a CPU, where weights stay as stored unless a goal needs less.
    #[arg(long, value_name = "WHAT", value_parser = preference)]
    pub prefer: Option<Preference>,
    /// The most that artefacts and KV cache of all shards may take together: `900MB`, `3GB`, or
    /// bytes. Gathered tables are mapped and not counted. A plan is made within it; what a bundle
    /// may take where it runs is `--memory-budget`, of `run`.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// The most that artefacts and gathered tables may take together: what an app carries. Tables
    /// are rounded where that leaves more to the layers. What the plan falls back to is within it,
    /// or left out where it does not fit beside; `--strict` leaves it out.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// The most time from a prompt to the first token of its answer: `500ms`, `2s`. Held against
    /// the times that are known of the chip.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub first_token: Option<Duration>,
    /// The fewest tokens a second of an answer, by the times that are known of the chip.
    #[arg(long, value_name = "NUMBER", value_parser = tokens_per_second)]
    pub tokens_per_second: Option<f64>,
    /// Tokens of a usual prompt, or several lengths and how often each occurs: `20:5,300:2,2000`.
    /// For a chip, whose entry points compute all their rows, prefills are chosen that suit them;
    /// the time to the first token is that of their mean. Default: the largest prefill, and 512.
    #[arg(long, value_name = "TOKENS[:TIMES]", value_delimiter = ',', value_parser = prompt_length)]
    pub usual_prompt: Vec<PromptLength>,
    /// Tokens of a usual answer: formats and cuts are then chosen for the time of the whole answer,
    /// its first token included, instead of that of a further token alone.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub usual_answer: Option<u32>,
    /// Conversations like the usual ones, one a line, turns separated by tabs, user first: how
    /// often prompt lookup is right in their replies decides whether the plan verifies several
    /// tokens in a step, and how many. Default: a modest guess.
    #[arg(long, value_name = "FILE")]
    pub usual_text: Option<PathBuf>,
    /// How weights become integers: each to the nearest, or compensated, so that the errors of a
    /// row make up for each other over the calibration text. Default: compensated at 4 bits and
    /// fewer in models of up to 512 million weights, which takes minutes once; otherwise nearest.
    #[arg(long, value_name = "HOW", value_parser = rounding)]
    pub rounding: Option<WeightRounding>,
    /// A text to calibrate on, one conversation a line, turns separated by tabs, where formats or
    /// the rounding need it. Default: texts that come with the program.
    #[arg(long, value_name = "FILE")]
    pub calibration_text: Option<PathBuf>,
    /// The planner: a `.wasm` file, a planner pack, or a name from a planner directory. Default:
    /// the built-in one.
    #[arg(long, value_name = "FILE|NAME")]
    pub planner: Option<String>,
    /// A setting for the planner, as `planner check` lists them.
    #[arg(long = "planner-option", value_name = "NAME=VALUE", value_parser = name_and_text)]
    pub planner_options: Vec<(String, String)>,
    /// Context capacity in tokens. Default: what the model was made for, at most 4096.
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<u32>,
    /// Turn every fallback into an error.
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

/// Whether what a plan loses is measured.
#[derive(Args, Debug, Clone, Default)]
pub struct MeasuringArguments {
    /// Run the whole plan on the CPU beside the model as stored, to measure what it loses, however
    /// long that takes. Without it that is done for models of up to 2 billion weights.
    #[arg(long, conflicts_with = "no_measure")]
    pub measure: bool,
    /// Do not run the plan: say what it is expected to lose.
    #[arg(long)]
    pub no_measure: bool,
}

impl MeasuringArguments {
    pub const fn measuring(&self) -> PlanMeasuring {
        match (self.measure, self.no_measure) {
            (true, _) => PlanMeasuring::Always,
            (_, true) => PlanMeasuring::Never,
            _ => PlanMeasuring::Usual,
        }
    }
}

/// What expects the next tokens.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Drafts")]
pub struct DraftArguments {
    /// What expects the next tokens, of which a step then verifies several (may be repeated: asked
    /// in order): `auto` for what the plan chose, `off`, `lookup` for what followed in the text
    /// before, or a smaller model with the same vocabulary, as a checkpoint, which runs on this
    /// machine's CPU, or a bundle. The reply is the same. Default: `auto`.
    #[arg(long = "draft", value_name = "WHICH", value_parser = draft)]
    pub drafts: Vec<DraftArgument>,
}

/// What a plan counts on to expect the next tokens.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Drafts")]
pub struct PlannedDrafts {
    /// What may expect the next tokens beside lookup, of which a step then verifies several, if the
    /// plan gains by it (may be repeated): a smaller model with the same vocabulary, as a
    /// checkpoint or a bundle, as `tune` measured it; or `lookup` alone, or `off`. Default: `auto`,
    /// which is `lookup`.
    #[arg(long = "draft", value_name = "WHICH", value_parser = draft)]
    pub drafts: Vec<DraftArgument>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DraftArgument {
    Auto,
    Off,
    Lookup,
    Model(PathBuf),
}

fn draft(text: &str) -> Result<DraftArgument, String> {
    Ok(match text {
        "auto" => DraftArgument::Auto,
        "off" => DraftArgument::Off,
        "lookup" => DraftArgument::Lookup,
        "" => return Err("`auto`, `off`, `lookup`, or the folder of a model".to_owned()),
        path => DraftArgument::Model(path.into()),
    })
}

/// How a bundle is run.
#[derive(Args, Debug, Clone, Default)]
pub struct BundledArguments {
    /// The checkpoint a bundle was compiled from: chains that cannot be loaded are compiled anew
    /// here, where their plan says just-in-time.
    #[arg(long = "checkpoint", value_name = "DIR")]
    pub compiled_from: Option<PathBuf>,
    /// The most memory that a bundle and its sessions may take here, artefacts, KV cache, buffers
    /// and logits together: `900MB`, `3GB`, or bytes. A chain that needs more is passed over.
    /// `--memory` is another bound: on what is planned for a checkpoint.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory_budget: Option<u64>,
    #[command(flatten)]
    pub expected: ExpectedArgument,
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
            soc: Vec::new(),
            limits: Vec::new(),
            flags: Vec::new(),
            flags_left_out: Vec::new(),
            formats: Vec::new(),
            towers: vec![TowerArgument::None],
            tower_formats: Vec::new(),
            picture_sizes: Vec::new(),
            clip_lengths: Vec::new(),
            tables: Vec::new(),
            quality: None,
            prefer: None,
            memory: None,
            size: None,
            first_token: None,
            tokens_per_second: None,
            usual_prompt: Vec::new(),
            usual_answer: None,
            usual_text: None,
            rounding: None,
            calibration_text: None,
            planner: None,
            planner_options: Vec::new(),
            context,
            strict: self.strict,
            shims: self.shims.clone(),
            planners: self.planners.clone(),
            profiles: self.profiles.clone(),
            trust: self.trust.clone(),
        }
    }
}

/// What runs it.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Running")]
pub struct ExecutionArguments {
    /// What runs the plan. Default: the device, where its shim finds it.
    #[arg(long, value_enum)]
    pub on: Option<Executor>,
    /// Threads of the CPU engine. Default: the cores there are.
    #[arg(short = 't', long, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Option<u32>,
    /// Which work of shims happens in a process of its own. Files are mapped: an artefact that
    /// another program cuts short while it runs ends the process it runs in (SIGBUS), which is this
    /// one except with `process`.
    #[arg(long, value_enum, default_value_t = Isolation::Automatic)]
    pub isolation: Isolation,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Questions and compiling, where the worker program is found.
    Automatic,
    /// None.
    Off,
    /// Questions and compiling.
    Compile,
    /// Running too: a driver that dies costs a second, not this program.
    Process,
}

#[derive(Args, Debug)]
pub struct CompileArguments {
    /// A directory as Hugging Face publishes it, or a GGUF file.
    pub checkpoint: PathBuf,
    /// Where the bundle goes: a directory that is empty, or does not exist, or holds a bundle.
    #[arg(short, long, value_name = "DIR", required_unless_present = "dry_run")]
    pub output: Option<PathBuf>,
    /// Compile nothing: show what each chip would get, how large and how fast.
    #[arg(long)]
    pub dry_run: bool,
    /// Compile for as many chips at once: the same bundle, sooner. Chips whose compiler runs once
    /// follow each other all the same. [default: 1]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "dry_run")]
    pub jobs: Option<u32>,
    /// Bytes that those are expected to hold together at most (`16GB`); one alone always runs. A
    /// chip is expected to hold 12 times the weights of its largest shard, on the CPU 3 times, with
    /// 256 MiB and weights that were made in memory on top. Default: three quarters of the memory
    /// that is available, where the system says so.
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "jobs")]
    pub jobs_memory: Option<u64>,
    /// Take artefacts of the same work orders from this bundle instead of compiling them: for a
    /// further chip, or for the same bytes again from a compiler that gives others each time
    #[arg(long, value_name = "BUNDLE", conflicts_with = "dry_run")]
    pub reuse: Option<PathBuf>,
    /// Run each plan on the CPU beside the model as stored, to measure what it loses, as `plan`
    /// does without being asked.
    #[arg(long, conflicts_with = "dry_run")]
    pub measure: bool,
    #[command(flatten)]
    pub drafts: PlannedDrafts,
    #[command(flatten)]
    pub target: TargetArguments,
    #[command(flatten)]
    pub execution: ExecutionArguments,
}

#[derive(Args, Debug)]
pub struct PackArguments {
    /// A bundle, in a directory or packed.
    pub bundle: PathBuf,
    #[command(flatten)]
    pub channel: Channel,
    /// When AI packs come: with the app, right after it, or when it asks for them, the default.
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        conflicts_with_all = ["output", "adb", "hf"],
        default_value_if("ai_pack", clap::builder::ArgPredicate::IsPresent, "on-demand")
    )]
    pub delivery: Option<Delivery>,
    /// Name of the first AI pack. Default: that of the model.
    #[arg(long, conflicts_with_all = ["output", "adb", "hf"])]
    pub name: Option<String>,
    /// The most bytes of an AI pack, of which there are more then: less than Google Play takes, for
    /// trying it out (`500MB`, or bytes).
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with_all = ["output", "adb", "hf"])]
    pub pack_size: Option<u64>,
    /// The most bytes that a device may get of all AI packs: what the app itself leaves of the 4 GB
    /// that Google Play takes for a version of it.
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with_all = ["output", "adb", "hf"])]
    pub app_size: Option<u64>,
    /// Push the variant for this chip alone (a name of it that the bundle knows).
    #[arg(long, conflicts_with_all = ["output", "ai_pack", "hf"])]
    pub soc: Option<String>,
    /// The licence of the model, as the hub spells it (`gemma`, `apache-2.0`): a bundle does not
    /// know it.
    #[arg(long, value_name = "ID", conflicts_with_all = ["output", "ai_pack", "adb"])]
    pub licence: Option<String>,
    /// The model on the hub that the bundle was made from.
    #[arg(long, value_name = "OWNER/NAME", conflicts_with_all = ["output", "ai_pack", "adb"])]
    pub base_model: Option<String>,
    /// Sign what is written with this key, as `trust key` makes one. A bundle that is packed whole
    /// keeps the signature that it has; what is made of variants of it has none otherwise.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Name under which signed releases are counted. Default: that of the model.
    #[arg(long, value_name = "NAME", requires = "key")]
    pub signed_as: Option<String>,
    /// Number of the signed release.
    #[arg(long, value_name = "NUMBER", requires = "key", default_value_t = 1)]
    pub release: u64,
    #[command(flatten)]
    pub shims: ShimPlaces,
    #[command(flatten)]
    pub profiles: ProfilePlaces,
    #[command(flatten)]
    pub expected: ExpectedArgument,
    #[command(flatten)]
    pub trust: TrustArguments,
}

/// Where a bundle goes.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct Channel {
    /// The file to write. It appears whole or not at all.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write AI packs of Google Play, a device group for each chip, into this folder.
    #[arg(long, value_name = "DIR")]
    pub ai_pack: Option<PathBuf>,
    /// Write a script that pushes it to a phone over adb and runs it there, into this folder.
    #[arg(long, value_name = "DIR")]
    pub adb: Option<PathBuf>,
    /// Write a file for each chip and a card, as a hub of models has them, into this folder.
    #[arg(long, value_name = "DIR")]
    pub hf: Option<PathBuf>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// With the app.
    InstallTime,
    /// Right after the app.
    FastFollow,
    /// When the app asks.
    OnDemand,
}

#[derive(Args, Debug)]
pub struct NeedsArguments {
    /// A bundle, in a directory or packed.
    pub bundle: PathBuf,
    /// What the variant for this chip needs, not all of them.
    #[arg(long)]
    pub soc: Option<String>,
    #[command(flatten)]
    pub shims: ShimPlaces,
    #[command(flatten)]
    pub profiles: ProfilePlaces,
    #[command(flatten)]
    pub expected: ExpectedArgument,
    #[command(flatten)]
    pub trust: TrustArguments,
}

#[derive(Args, Debug)]
pub struct ExplainArguments {
    /// A bundle, in a directory or packed.
    pub bundle: PathBuf,
    /// A chip that the machine is taken for (a profile's name or alias). Default: the one that the
    /// shims find.
    #[arg(long, conflicts_with = "device")]
    pub soc: Option<String>,
    /// Ask about the machine on which `doctor --report` wrote this file, not about this one.
    #[arg(long, value_name = "FILE")]
    pub device: Option<PathBuf>,
    #[command(flatten)]
    pub shims: ShimPlaces,
    #[command(flatten)]
    pub profiles: ProfilePlaces,
    #[command(flatten)]
    pub expected: ExpectedArgument,
    #[command(flatten)]
    pub trust: TrustArguments,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executor {
    /// The chip itself.
    Device,
    /// The vendor's simulator of the chip.
    Simulator,
    /// This machine's CPU, with the chip's cut, formats and encodings.
    Cpu,
}

#[derive(Args, Debug)]
pub struct RunArguments {
    /// A directory as Hugging Face publishes it (config.json, *.safetensors, tokenizer.json), a
    /// GGUF file, a bundle, or the id of a model that was pulled (OWNER/NAME).
    pub checkpoint: PathBuf,
    /// The user's turn, or the text to continue. Default: standard input.
    #[arg(short, long)]
    pub prompt: Option<String>,
    /// Reply in a conversation, as models with a chat template do by default. Without a prompt,
    /// each line of standard input is a turn.
    #[arg(long)]
    pub chat: bool,
    /// Continue the prompt as plain text, without the chat template.
    #[arg(long, conflicts_with_all = ["chat", "image", "audio", "system", "thinking", "control_tokens_in_text"])]
    pub raw: bool,
    /// A picture before the prompt of a turn: PNG, JPEG, WebP, GIF, BMP or TIFF (may be repeated).
    /// Implies --chat.
    #[arg(long, value_name = "FILE", requires = "prompt")]
    pub image: Vec<PathBuf>,
    /// A sound before the prompt of a turn, after the pictures: WAV or FLAC, up to 30 seconds (may
    /// be repeated). Implies --chat.
    #[arg(long, value_name = "FILE", requires = "prompt")]
    pub audio: Vec<PathBuf>,
    /// Most soft tokens that a picture becomes: 70, 140, 280, 560 or 1120. Default: the
    /// checkpoint's.
    #[arg(long, value_name = "TOKENS", requires = "image")]
    pub soft_tokens: Option<u32>,
    /// A system turn before the first user turn. Implies --chat.
    #[arg(long)]
    pub system: Option<String>,
    /// Let the model think first: `on`, `off`, or `on` with at most this many tokens of thoughts.
    /// Default: the template's. Implies --chat.
    #[arg(long, value_name = "on|off|TOKENS", value_parser = thinking)]
    pub thinking: Option<Thinking>,
    /// Interpret control tokens such as `<|turn>` in the text of turns. Off by default, for safety.
    /// Implies --chat.
    #[arg(long)]
    pub control_tokens_in_text: bool,
    /// Most tokens to generate, thoughts included. Default: the checkpoint's, or 512.
    #[arg(help_heading = "Sampling", short = 'n', long, allow_negative_numbers = true, value_parser = tokens)]
    pub max_tokens: Option<u32>,
    /// Always the most likely token.
    #[arg(help_heading = "Sampling", long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p"])]
    pub greedy: bool,
    /// Sampling temperature. Default: the checkpoint's.
    #[arg(help_heading = "Sampling", long, allow_negative_numbers = true, value_parser = temperature)]
    pub temperature: Option<f32>,
    /// Keep the K most likely tokens. Default: the checkpoint's.
    #[arg(help_heading = "Sampling", long, allow_negative_numbers = true)]
    pub top_k: Option<u32>,
    /// Keep the most likely tokens that together reach this probability. Default: the checkpoint's.
    #[arg(help_heading = "Sampling", long, allow_negative_numbers = true, value_parser = top_p)]
    pub top_p: Option<f32>,
    /// Keep tokens at least this fraction as likely as the most likely one.
    #[arg(help_heading = "Sampling", long, allow_negative_numbers = true, value_parser = min_p)]
    pub min_p: Option<f32>,
    /// Divide the logits of tokens seen before by this.
    #[arg(help_heading = "Sampling", long, allow_negative_numbers = true, value_parser = repetition_penalty)]
    pub repetition_penalty: Option<f32>,
    /// Seed of the random numbers. Default: 0.
    #[arg(help_heading = "Sampling", long)]
    pub seed: Option<u64>,
    /// End the reply before this text (may be repeated).
    #[arg(help_heading = "Sampling", long)]
    pub stop: Vec<String>,
    /// Do not print statistics to standard error.
    #[arg(long)]
    pub quiet: bool,
    #[command(flatten)]
    pub drafts: DraftArguments,
    #[command(flatten)]
    pub bundled: BundledArguments,
    #[command(flatten)]
    pub target: TargetArguments,
    #[command(flatten)]
    pub execution: ExecutionArguments,
}

#[derive(Args, Debug)]
pub struct PullArguments {
    /// The model: OWNER/NAME, optionally @REVISION, optionally :FILE or a quantisation of GGUF
    /// files such as :Q4_K_M.
    #[arg(value_parser = hub_id)]
    pub id: HubId,
    /// The branch, tag or commit. Default: `main`.
    #[arg(long)]
    pub revision: Option<String>,
    /// The file to fetch, a pattern such as `*.safetensors`, or a quantisation. Default: settings,
    /// tokenizer and safetensors, otherwise the only GGUF model.
    #[arg(long, value_name = "FILE|GLOB")]
    pub file: Option<String>,
    /// Address of the hub. Default: `HF_ENDPOINT`, or https://huggingface.co.
    #[arg(long, value_name = "URL")]
    pub hub: Option<String>,
    /// The cache. Default: `HF_HUB_CACHE`, `HF_HOME/hub`, or ~/.cache/huggingface/hub.
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

fn hub_id(text: &str) -> Result<HubId, String> {
    text.parse().map_err(|error: HubError| format!("{error}; {}", error.help()))
}

#[derive(Args, Debug)]
pub struct BenchArguments {
    /// A directory as Hugging Face publishes it, a GGUF file, or a bundle.
    pub checkpoint: PathBuf,
    /// Prompts of so many tokens (`pp512`): given at once, answered by the logits after the last.
    /// Default: 512, or none beside `-n`.
    #[arg(short = 'p', long, value_name = "TOKENS", value_delimiter = ',')]
    pub prompt_tokens: Vec<u32>,
    /// Generation of so many tokens (`tg128`): one at a time, none of them known to the step
    /// before. Default: 128, or none beside `-p`.
    #[arg(short = 'n', long, value_name = "TOKENS", value_delimiter = ',')]
    pub generated_tokens: Vec<u32>,
    /// Tokens that are there already when a measurement begins.
    #[arg(short = 'd', long, value_name = "TOKENS", value_delimiter = ',', default_value = "0")]
    pub depth: Vec<u32>,
    /// How often each is measured.
    #[arg(short = 'r', long, default_value_t = 5)]
    pub repetitions: u32,
    /// Generate with all logits, as `llama-bench` does. Otherwise a step is asked for the largest
    /// alone, as a greedy choice asks.
    #[arg(long)]
    pub all_logits: bool,
    /// Given tokens of the first step of all, which tells how long the program takes to its first
    /// token.
    #[arg(long, value_name = "TOKENS", default_value_t = 16)]
    pub first_tokens: u32,
    /// Load the tokenizer too, beside the weights, and tell when it was ready: what a text pays
    /// before its first token.
    #[arg(long)]
    pub text: bool,
    /// Also measure how fast memory can be read, before and after each measurement.
    #[arg(long)]
    pub probe: bool,
    /// Memory that a probe reads; more than the caches hold.
    #[arg(long, value_name = "MIB", default_value_t = 1024, requires = "probe")]
    pub probe_mebibytes: u32,
    #[command(flatten)]
    pub drafts: DraftArguments,
    /// A text that is replied to, greedily and with `-n` tokens, with the drafts and without, in
    /// pairs.
    #[arg(help_heading = "Drafts", long, value_name = "FILE", requires = "drafts")]
    pub draft_prompt: Option<PathBuf>,
    #[command(flatten)]
    pub bundled: BundledArguments,
    #[command(flatten)]
    pub target: TargetArguments,
    #[command(flatten)]
    pub execution: ExecutionArguments,
}

#[derive(Args, Debug)]
pub struct SensitivityArguments {
    /// A directory as Hugging Face publishes it, or a GGUF file.
    pub checkpoint: PathBuf,
    /// The text to measure on, one conversation a line, turns separated by tabs. Plans rest on it
    /// with the same `--calibration-text`. Default: texts that come with the program.
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
    /// Stop after so many minutes, once the loss at hand is measured. Default: when all are.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = minutes)]
    pub minutes: Option<f64>,
    /// The chip whose formats are measured (a profile's name or alias). Default: the formats of
    /// the CPU.
    #[arg(long)]
    pub soc: Option<String>,
    /// Measure these formats (may be repeated): WEIGHTS/ACTIVATIONS/STATES such as
    /// `w4-block32[head=w8-per-channel]/f32/f32`. Default: those of the chip's profile.
    #[arg(long, value_name = "FORMATS", value_parser = formats)]
    pub formats: Vec<FormatChoice>,
    /// The loss that a plan will be allowed, as of `plan`: what decides least at it comes last.
    /// Default: `good`.
    #[arg(long, value_name = "GOAL", value_parser = quality)]
    pub quality: Option<u32>,
    /// How weights become integers, as of `compile`.
    #[arg(long, value_name = "HOW", value_parser = rounding)]
    pub rounding: Option<WeightRounding>,
    /// Threads of the CPU engine. Default: the cores there are.
    #[arg(short = 't', long, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Option<u32>,
    /// Which work of shims happens in a process of its own.
    #[arg(long, value_enum, default_value_t = Isolation::Automatic)]
    pub isolation: Isolation,
    #[command(flatten)]
    pub shims: ShimPlaces,
    #[command(flatten)]
    pub profiles: ProfilePlaces,
}

#[derive(Args, Debug)]
pub struct PerplexityArguments {
    /// A directory as Hugging Face publishes it, a GGUF file, or a bundle.
    pub checkpoint: PathBuf,
    /// The text to predict, as UTF-8.
    #[arg(long, value_name = "FILE")]
    pub text: PathBuf,
    /// Also run the windows through this reference, with the same vocabulary: a checkpoint as
    /// stored on this machine's CPU, or a bundle. Reports KL(reference || model).
    #[arg(long, value_name = "MODEL")]
    pub against: Option<PathBuf>,
    /// Tokens of a window. Default: 512, or the context if that is smaller.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub window: Option<u32>,
    /// Begin a window every so many tokens and score as many at its end. Default: windows side by
    /// side, of which the second half is scored.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub stride: Option<u32>,
    /// Measure at most so many windows. Default: all.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub chunks: Option<u32>,
    #[command(flatten)]
    pub bundled: BundledArguments,
    #[command(flatten)]
    pub target: TargetArguments,
    #[command(flatten)]
    pub execution: ExecutionArguments,
}

#[derive(Args, Debug)]
pub struct TuneArguments {
    /// A directory as Hugging Face publishes it, a GGUF file, or a bundle.
    pub checkpoint: PathBuf,
    /// The checkpoint a bundle was compiled from: other plans are made of it.
    #[arg(long = "checkpoint", value_name = "DIR")]
    pub compiled_from: Option<PathBuf>,
    /// Begin to time no other plan after so many minutes. Default: when the planner names none.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = minutes)]
    pub minutes: Option<f64>,
    #[command(flatten)]
    pub drafts: PlannedDrafts,
    #[command(flatten)]
    pub target: TargetArguments,
    #[command(flatten)]
    pub execution: ExecutionArguments,
    #[command(flatten)]
    pub expected: ExpectedArgument,
}

#[derive(Args, Debug)]
pub struct PlanArguments {
    #[command(subcommand)]
    pub command: Option<PlanCommand>,
    /// The checkpoint directory; `./diff` for one of that name.
    #[arg(required = true)]
    pub checkpoint: Option<PathBuf>,
    /// Also write the plan to this file as one page of HTML that needs no other file, in place of
    /// what is there; those of towers beside it, with `picture` and `clip` before the ending.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the request to the planner to this file before it is asked, for `planner replay`.
    /// Those of towers are next to it, with `picture` and `clip` before the ending.
    #[arg(long, value_name = "FILE")]
    pub write_request: Option<PathBuf>,
    #[command(flatten)]
    pub measuring: MeasuringArguments,
    #[command(flatten)]
    pub drafts: PlannedDrafts,
    #[command(flatten)]
    pub target: TargetArguments,
    #[command(flatten)]
    pub execution: ExecutionArguments,
}

#[derive(Subcommand, Debug)]
pub enum PlanCommand {
    /// Show what differs between two plans: cut, targets, formats, flags, entry points, limits,
    /// goals, times, bytes and loss. Exits with 1 if anything does.
    #[command(after_help = DIFF_EXAMPLES)]
    Diff {
        /// A plan as `plan --format json` prints it, or a bundle, whose first chain counts.
        before: PathBuf,
        /// The plan to compare it with, likewise.
        after: PathBuf,
        #[command(flatten)]
        trust: TrustArguments,
        #[command(flatten)]
        expected: ExpectedArgument,
    },
}

#[derive(Args, Debug)]
pub struct ShowArguments {
    /// The checkpoint directory.
    pub checkpoint: PathBuf,
}

#[derive(Args, Debug)]
pub struct CalibrationTextArguments {
    /// The checkpoint directory, or a bundle of it.
    pub checkpoint: PathBuf,
    /// The text to write: one conversation a line, turns separated by tabs. One that was begun is
    /// continued.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Prompts, one a line. Default: the first turns of the built-in calibration texts.
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
    /// Stop when replies have so many tokens.
    #[arg(long, value_name = "TOKENS", default_value_t = 8192)]
    pub tokens: u64,
    /// Longest reply.
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    pub longest: u32,
    /// Seed of what is drawn.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    #[command(flatten)]
    pub bundled: BundledArguments,
    #[command(flatten)]
    pub target: TargetArguments,
    #[command(flatten)]
    pub execution: ExecutionArguments,
}

#[derive(Args, Debug)]
pub struct EmbedArguments {
    /// The checkpoint directory of an embedding model, or its bundle.
    pub checkpoint: PathBuf,
    /// Texts to embed. Default: one per line of standard input.
    pub texts: Vec<String>,
    /// A named prompt of the checkpoint to put in front (`query`, `document`, …).
    #[arg(long, value_name = "NAME")]
    pub prompt_name: Option<String>,
    /// Keep only the first values of each vector and renormalise.
    #[arg(long, value_name = "VALUES")]
    pub dimensions: Option<usize>,
    #[command(flatten)]
    pub bundled: BundledArguments,
    #[command(flatten)]
    pub target: TargetArguments,
    #[command(flatten)]
    pub execution: ExecutionArguments,
}

#[derive(Args, Debug)]
pub struct VerifyArguments {
    /// The checkpoint directory.
    pub checkpoint: PathBuf,
    /// Directory of recorded outputs (goldens.safetensors and what lies beside it). Default: the
    /// checkpoint's own. Without any, prompts of a built-in text are compared with the reference
    /// evaluator.
    #[arg(long, value_name = "DIR")]
    pub golden: Option<PathBuf>,
    /// Break one scale in one layer and check that this layer is named.
    #[arg(long, conflicts_with = "bundle")]
    pub self_test: bool,
    /// Verify this bundle's own artefacts. The options of compiling come from the bundle, unless
    /// you name one: then repeat all of them.
    #[arg(long, value_name = "DIR")]
    pub bundle: Option<PathBuf>,
    /// Write the outcome into the bundle.
    #[arg(long, requires = "bundle")]
    pub store: bool,
    /// Where the bundle drifts, find the operation, have a wider format planned there, compile and
    /// verify again, until a plan holds. Formats that `--formats` offers beyond those it was
    /// compiled with may be planned.
    #[arg(long, requires = "bundle", requires = "output")]
    pub repair: bool,
    /// Where the repaired bundle goes: another directory than the bundle's, which stays as it is.
    /// An interrupted repair goes on there.
    #[arg(short, long, value_name = "DIR", requires = "repair")]
    pub output: Option<PathBuf>,
    /// Most shards, and parts of shards, that a repair compiles.
    #[arg(long, value_name = "COUNT", requires = "repair",
          default_value_t = shardwright_verify::COMPILATIONS)]
    pub compilations: usize,
    /// Set a bound: row-p95, row-worst (relative error of a row), cosine (of 95 % of rows), nll
    /// (relative), greedy (least share of tokens), kl (nats per token). Default: by the formats of
    /// the plan and the loss it states; the report says which.
    #[arg(long = "threshold", value_name = "NAME=VALUE", value_parser = name_and_bound)]
    pub thresholds: Vec<(String, f64)>,
    /// Take as much on a vendor's simulator as elsewhere, in all that no other option says. That
    /// may take hours.
    #[arg(long)]
    pub all: bool,
    /// Most rows of each prompt that shards are run over one by one [default: 256, on a simulator
    /// 32].
    #[arg(long, value_name = "ROWS")]
    pub rows: Option<usize>,
    /// Positions of each prompt at which entry points of one row are run [default: 8, on a
    /// simulator 2].
    #[arg(long, value_name = "COUNT")]
    pub steps: Option<usize>,
    /// Most tokens of each prompt chosen greedily [default: 64, on a simulator 8].
    #[arg(long, value_name = "TOKENS")]
    pub greedy: Option<usize>,
    /// Most evaluation rows whose likelihood is compared, of each as many tokens as `--rows`; all
    /// are taken whole where there are no more [default: all, on a simulator 4].
    #[arg(long, value_name = "ROWS")]
    pub evaluation: Option<usize>,
    #[command(flatten)]
    pub target: TargetArguments,
    #[command(flatten)]
    pub execution: ExecutionArguments,
    #[command(flatten)]
    pub expected: ExpectedArgument,
}

#[derive(Args, Debug)]
pub struct DoctorArguments {
    /// A bundle to look at.
    pub bundle: Option<PathBuf>,
    /// Also write what the machine has into a file, for `explain --device` on another.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    #[command(flatten)]
    pub shims: ShimPlaces,
    #[command(flatten)]
    pub planners: PlannerPlaces,
    #[command(flatten)]
    pub profiles: ProfilePlaces,
    #[command(flatten)]
    pub expected: ExpectedArgument,
    #[command(flatten)]
    pub trust: TrustArguments,
}

#[derive(Subcommand, Debug)]
pub enum ShimCommand {
    /// List shims, their devices and limits, and every library that was skipped with the reason.
    List(ShimPlaces),
    /// Write the hash of its library into a shim's manifest: whoever changes the library then, or
    /// strips it, has one that is refused.
    Hash {
        /// The manifest, `NAME.shim.json`, beside the library.
        manifest: PathBuf,
    },
    /// Begin a shim: a folder of that name, outside this tree, that builds, is listed and runs as
    /// it is.
    #[command(after_help = SHIM_NEW_EXAMPLE)]
    New {
        /// What users will ask for: a letter of a-z, then letters, digits and hyphens.
        name: String,
        /// In which language.
        #[arg(long, value_enum, default_value_t = Language::C)]
        language: Language,
        /// Where the folder is made.
        #[arg(long, value_name = "DIR", default_value = ".")]
        within: PathBuf,
    },
}

const SHIM_NEW_EXAMPLE: &str = "Example:
  shardwright shim new acme-npu
  sh acme-npu/build.sh
  shardwright shim list --shims acme-npu/shims";

const PLANNER_NEW_EXAMPLE: &str = "Example:
  shardwright planner new thrifty
  shardwright planner build thrifty -o thrifty.wasm
  shardwright plan demo-model --planner thrifty.wasm";

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// Whole models on the CPU, against the plain header.
    C,
    /// The embed and head components, on the safe layer.
    Rust,
}

const TRUST_SIGN_EXAMPLES: &str = "Example:
  shardwright trust key my.key
  shardwright trust sign demo.bundle --key my.key --name demo --release 3
  shardwright run demo.bundle --trust KEY --signatures require --prompt \"Once upon\"";

const TRUST_REVOKE_EXAMPLES: &str = "Example:
  shardwright trust revoke --key my.key --list acme --sequence 2 --least bundle:demo:4 -o revoked.list
  shardwright run demo.bundle --trust KEY --signatures require --revocations revoked.list --prompt 'And'";

#[derive(Subcommand, Debug)]
pub enum TrustCommand {
    /// Make a signing key of chance, in a file that only you can read, and show its public half.
    Key {
        /// The file, which must not be there yet.
        file: PathBuf,
    },
    /// Sign a bundle, a shim's manifest, a planner's component or a SoC profile.
    #[command(after_help = TRUST_SIGN_EXAMPLES)]
    Sign {
        /// A bundle, in a directory or packed, a `.shim.json`, a `.wasm` or a profile's `.json`.
        path: PathBuf,
        /// The file of the signing key, as `trust key` makes one.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// Name under which releases of a bundle are counted. Default: its model's. Shims,
        /// planners and profiles have their own.
        #[arg(long)]
        name: Option<String>,
        /// Number of the release, which grows: a list of revocations may ask for at least some.
        #[arg(long, value_name = "NUMBER", default_value_t = 1)]
        release: u64,
    },
    /// Write a signed list of what must not be used any more. A later list says all that an earlier
    /// one did.
    #[command(after_help = TRUST_REVOKE_EXAMPLES)]
    Revoke {
        /// The file of the signing key, as `trust key` makes one.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// Name of the list: lists of one name are numbered together.
        #[arg(long, value_name = "NAME")]
        list: String,
        /// Number of the list, higher than that of the last.
        #[arg(long, value_name = "NUMBER")]
        sequence: u64,
        /// A public key whose signatures count no more (may be repeated).
        #[arg(long = "revoke", value_name = "KEY", value_parser = public_key)]
        keys: Vec<PublicKey>,
        /// The least release that may be used of a bundle, shim, planner or profile (may be
        /// repeated).
        #[arg(long, value_name = "KIND:NAME:RELEASE", value_parser = least_release)]
        least: Vec<LeastRelease>,
        /// The list to write.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Show who signed a file, as what, and whether the signature is one of it.
    Show {
        /// A bundle, a file with its signature beside it, or a list of revocations.
        path: PathBuf,
    },
}

fn public_key(text: &str) -> Result<PublicKey, String> {
    text.parse().map_err(|error: shardwright_trust::KeyError| error.to_string())
}

fn least_release(text: &str) -> Result<LeastRelease, String> {
    let mut parts = text.splitn(3, ':');
    let (kind, name, release) = (parts.next(), parts.next(), parts.next());
    let kind = kind.and_then(Kind::of_name).filter(|kind| *kind != Kind::Revocations);
    let kind = kind.ok_or_else(|| "it begins with bundle, shim, planner or profile".to_owned())?;
    let name = name.filter(|name| !name.is_empty()).ok_or_else(|| "it has no name".to_owned())?.to_owned();
    let release = release.and_then(|number| number.parse().ok());
    let release = release.ok_or_else(|| "it does not end in the number of a release".to_owned())?;
    Ok(LeastRelease { kind, name, release })
}

#[derive(Subcommand, Debug)]
pub enum PlannerCommand {
    /// Begin a planner: a folder of that name, outside this tree, that builds and plans as it is.
    #[command(after_help = PLANNER_NEW_EXAMPLE)]
    New {
        /// Name of the package: a letter of a-z, then letters, digits and hyphens.
        name: String,
        /// Where the folder is made.
        #[arg(long, value_name = "DIR", default_value = ".")]
        within: PathBuf,
    },
    /// Compile a planner that is a Rust package into a component. Needs cargo and
    /// `wasm32-unknown-unknown`.
    Build {
        /// The folder of the package, or its manifest.
        package: PathBuf,
        /// The component to write.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
        /// Where cargo keeps what it builds. Default: `target` in the package's folder.
        #[arg(long, value_name = "DIR")]
        target_dir: Option<PathBuf>,
    },
    /// Join a policy, a component that imports what planners export, with the planner that it asks.
    Compose {
        /// The policy.
        policy: PathBuf,
        /// The planner to ask. Default: the built-in one, whose options a policy can give.
        #[arg(long, value_name = "FILE")]
        solver: Option<PathBuf>,
        /// The component to write.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Hold a planner to the numbered rules for planners, under the sandbox's bounds: what it makes
    /// of requests that are plain, large, incomplete, contradictory and absurd. The exit status is
    /// 1 where it breaks one.
    Check {
        /// A `.wasm` file, a pack, or a name from a planner directory.
        planner: String,
        /// A setting in every request.
        #[arg(long = "planner-option", value_name = "NAME=VALUE", value_parser = name_and_text)]
        planner_options: Vec<(String, String)>,
        #[command(flatten)]
        planners: PlannerPlaces,
        #[command(flatten)]
        trust: TrustArguments,
    },
    /// Ask a planner a request that was recorded, and show the plan, the log, fuel, memory and
    /// time.
    Replay {
        /// The request, as `plan --write-request` writes it.
        request: PathBuf,
        /// A `.wasm` file, a pack, or a name from a planner directory. Default: the built-in one.
        #[arg(long, value_name = "FILE|NAME")]
        planner: Option<String>,
        #[command(flatten)]
        planners: PlannerPlaces,
        #[command(flatten)]
        trust: TrustArguments,
    },
    /// Make a signed pack that a host without a compiler can run.
    Pack {
        /// The planner component.
        planner: PathBuf,
        /// The file of a signing key, as `trust key` makes one.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// The pack to write.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
}

/// Parses a number of tokens. Rejects llama.cpp's -1 for no limit.
fn tokens(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(tokens) => Ok(tokens),
        Err(_) if text.starts_with('-') => {
            Err("a limit is a whole number; one larger than the context leaves it to the context".to_owned())
        }
        Err(_) => Err(format!("expected a whole number of at most {}", u32::MAX)),
    }
}

/// Whether the model thinks before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    Off,
    /// At most this many tokens of thoughts, if there is a limit.
    On(Option<usize>),
}

fn thinking(text: &str) -> Result<Thinking, String> {
    match text {
        "off" => Ok(Thinking::Off),
        "on" => Ok(Thinking::On(None)),
        number => match number.parse() {
            Ok(most) => Ok(Thinking::On(Some(most))),
            Err(_) => Err("expected `on`, `off` or a number of tokens".to_owned()),
        },
    }
}

fn temperature(text: &str) -> Result<f32, String> {
    number(text, |value| value >= 0.0, "a number from 0 up; 0 always takes the most likely token")
}

fn top_p(text: &str) -> Result<f32, String> {
    number(text, |value| value > 0.0 && value <= 1.0, "a number above 0 and at most 1; 1 keeps all tokens")
}

fn min_p(text: &str) -> Result<f32, String> {
    number(text, |value| (0.0..=1.0).contains(&value), "a number from 0 to 1; 0 keeps all tokens")
}

fn repetition_penalty(text: &str) -> Result<f32, String> {
    number(text, |value| value > 0.0, "a number above 0; 1 changes nothing")
}

fn number(text: &str, fits: impl Fn(f32) -> bool, expected: &str) -> Result<f32, String> {
    let value = text.parse().ok().filter(|value: &f32| value.is_finite() && fits(*value));
    value.ok_or_else(|| format!("expected {expected}"))
}

fn rounding(text: &str) -> Result<WeightRounding, String> {
    WeightRounding::named(text).ok_or_else(|| "expected `nearest` or `compensated`".to_owned())
}

fn preference(text: &str) -> Result<Preference, String> {
    match text {
        "speed" => Ok(Preference::Speed),
        "quality" => Ok(Preference::Quality),
        _ => Err("expected `speed` or `quality`".to_owned()),
    }
}

/// Quality goals by name, in thousandths of a nat per token.
const QUALITIES: [(&str, u32); 3] = [("near-lossless", 5), ("good", 150), ("small", 300)];

/// Largest accepted number of minutes: a year.
const MINUTES_MAX: f64 = 366.0 * 24.0 * 60.0;

fn minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|_| "a number of minutes such as `10` or `0.5`".to_owned())?;
    match (0.0..=MINUTES_MAX).contains(&minutes) {
        true => Ok(minutes),
        false => Err(format!("0 to {MINUTES_MAX} minutes")),
    }
}

fn quality(text: &str) -> Result<u32, String> {
    let named = QUALITIES.iter().find(|(name, _)| *name == text).map(|(_, millinats)| *millinats);
    named.or_else(|| text.parse().ok()).ok_or_else(|| {
        "expected near-lossless, good, small, or a whole number of thousandths of a nat per token".to_owned()
    })
}

/// Parses `3GB`, `1.5GiB`, `900MB`, or a number of bytes.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "kib" => 1024.0,
        "mib" => 1048576.0,
        "gib" => 1073741824.0,
        _ => f64::NAN,
    };
    let bytes = digits.trim().parse::<f64>().map_or(f64::NAN, |number| number * unit);
    // Below the first number that f64 cannot distinguish from its neighbours.
    match bytes.is_finite() && (1.0..9e15).contains(&bytes) {
        true => Ok(bytes as u64),
        false => Err("expected a size such as 3GB, 1.5GiB or 900MB, or a number of bytes".to_owned()),
    }
}

/// Parses `500ms`, `2s` or `750us`.
fn time(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_alphabetic());
    let unit = match &text[digits.len()..] {
        "s" => 1.0,
        "ms" => 1e-3,
        "us" | "µs" => 1e-6,
        _ => f64::NAN,
    };
    let seconds = digits.trim().parse::<f64>().map_or(f64::NAN, |number| number * unit);
    // From a microsecond to a day.
    match (1e-6..=86_400.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err("expected a time such as 500ms or 2s".to_owned()),
    }
}

/// Parses `300`, or `300:2` for a length that occurs twice.
fn prompt_length(text: &str) -> Result<PromptLength, String> {
    let (tokens, count) = text.split_once(':').unwrap_or((text, "1"));
    let number = |text: &str| text.trim().parse().ok().filter(|number: &u32| *number > 0);
    match (number(tokens), number(count)) {
        (Some(tokens), Some(count)) => Ok(PromptLength { tokens, count }),
        _ => Err("expected tokens, such as 512, or lengths and how often each occurs: 20:5,300:2".to_owned()),
    }
}

/// Parses tokens per second. The time of a token is derived from it, so the minimum is one per day.
fn tokens_per_second(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value: &f64| (1.0 / 86_400.0..=1e6).contains(value));
    value.ok_or_else(|| "expected a number of tokens a second, such as 20".to_owned())
}

fn name_and_text(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

/// What stands beside the text of a model.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TowerArgument {
    /// The tower of pictures.
    Picture,
    /// The tower of sounds.
    Clip,
    /// No tower: the text alone.
    None,
}

/// A gathered table.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// The embedding.
    Embedding,
    /// The per-layer embeddings.
    PerLayer,
}

fn format(text: &str) -> Result<Format, String> {
    Format::from_str(text, true).map_err(|_| match text.parse::<FormatChoice>() {
        Ok(_) => {
            format!("weights are in `--formats {text}`; `--format` is how reports are written, text or json")
        }
        Err(_) => "reports are written as text or json".to_owned(),
    })
}

fn formats(text: &str) -> Result<FormatChoice, String> {
    if Format::from_str(text, true).is_ok() {
        return Err(format!("how reports are written is `--format {text}`; `--formats` is about weights"));
    }
    text.parse().map_err(|error: shardwright::UnknownName| with_help(&error))
}

/// Parses a table and its format, such as `embedding=w8-per-channel`.
fn table_format(text: &str) -> Result<(Table, WeightFormat), String> {
    let (table, format) = name_and_text(text)?;
    let format = format.parse().map_err(|error: shardwright::UnknownName| with_help(&error))?;
    Ok((Table::from_str(&table, false)?, format))
}

fn with_help(error: &shardwright::UnknownName) -> String {
    format!("{error}; {}", error.help().unwrap_or_default())
}

/// Parses a threshold, such as `row-worst=1e-3`.
fn name_and_bound(text: &str) -> Result<(String, f64), String> {
    let (name, value) = name_and_text(text)?;
    let bound = value.parse().map_err(|_| format!("`{value}` is not a number"))?;
    Ok((name, bound))
}

/// Parses a limit, such as `ops=2600` or `context-bytes=2GiB`.
fn name_and_number(text: &str) -> Result<(String, u64), String> {
    let (name, value) = name_and_text(text)?;
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor: u64 = match &value[digits.len()..] {
        "" => 1,
        "k" | "K" => 1000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        unit => return Err(format!("unknown unit `{unit}`; use none, k, KiB, MiB or GiB")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{digits}` is not a whole number"))?;
    let number = number.checked_mul(factor).ok_or("the number does not fit in 64 bits")?;
    Ok((name, number))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    /// A folder with the subcommand's name is a checkpoint if it is written as a path.
    #[test]
    fn a_plan_is_of_a_checkpoint_or_a_comparison() {
        let parsed = |line: &str| Arguments::try_parse_from(line.split(' '));
        let plan = |line: &str| match parsed(line).map(|arguments| arguments.command) {
            Ok(Command::Plan(arguments)) => arguments,
            other => panic!("{line}: {other:?}"),
        };
        let compared = plan("shardwright --format json plan diff a b");
        assert!(matches!(
            compared.command,
            Some(PlanCommand::Diff { before, after, .. }) if before.ends_with("a") && after.ends_with("b")
        ));
        let planned = plan("shardwright plan ./diff --html page.html");
        assert!(planned.command.is_none() && planned.html.is_some());
        assert_eq!(planned.checkpoint, Some(PathBuf::from("./diff")));
        for wrong in ["plan", "plan diff", "plan diff a", "plan diff a b c", "plan --soc x diff a b"] {
            assert!(parsed(&format!("shardwright {wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn errors_about_numbers_out_of_range_name_the_range() {
        assert_eq!((tokens("7"), temperature("0"), top_p("1")), (Ok(7), Ok(0.0), Ok(1.0)));
        assert_eq!((min_p("0.5"), repetition_penalty("1.1")), (Ok(0.5), Ok(1.1)));
        assert!(tokens("-1").is_err_and(|said| said.contains("larger than the context")));
        assert!(tokens("many").is_err_and(|said| said.contains("whole number")));
        for (parse, text) in [
            (temperature as fn(&str) -> Result<f32, String>, "-1"),
            (temperature, "inf"),
            (top_p, "0"),
            (top_p, "2"),
            (min_p, "NaN"),
            (min_p, "-0.1"),
            (repetition_penalty, "0"),
        ] {
            assert!(parse(text).is_err_and(|said| said.contains("expected a number")), "{text}");
        }
    }

    #[test]
    fn bounds_are_named_fractions() {
        assert_eq!(name_and_bound("row-worst=1e-3"), Ok(("row-worst".to_owned(), 1e-3)));
        for text in ["row-worst", "=1", "row-worst=small"] {
            assert!(name_and_bound(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_and_qualities_are_words_or_numbers() {
        for (text, bytes) in
            [("3GB", 3_000_000_000), ("1.5gib", 1_610_612_736), ("900 MB", 900_000_000), ("12", 12)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "GB", "3 apples", "-1GB", "0", "1e300GB", "nanGB"] {
            assert!(size(wrong).unwrap_err().contains("such as 3GB"), "{wrong}");
        }
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(
            (time("2 s"), time("1.5µs")),
            (Ok(Duration::from_secs(2)), Ok(Duration::from_nanos(1500)))
        );
        for wrong in ["", "ms", "5", "-1s", "0ms", "1e9s", "2min", "nans"] {
            assert!(time(wrong).unwrap_err().contains("such as 500ms"), "{wrong}");
        }
        assert_eq!(tokens_per_second("20"), Ok(20.0));
        for wrong in ["", "0", "-2", "nan", "1e12"] {
            assert!(tokens_per_second(wrong).is_err(), "{wrong}");
        }
        assert_eq!((quality("good"), quality("near-lossless"), quality("12")), (Ok(150), Ok(5), Ok(12)));
        assert!(quality("best").unwrap_err().contains("near-lossless"));
    }

    #[test]
    fn limits_are_named_numbers() {
        let cases = [
            ("ops=2600", Ok(("ops", 2600))),
            ("context-bytes=2GiB", Ok(("context-bytes", 2 << 30))),
            ("ops=3k", Ok(("ops", 3000))),
            ("ops", Err("NAME=VALUE")),
            ("=3", Err("NAME=VALUE")),
            ("ops=", Err("whole number")),
            ("ops=-1", Err("whole number")),
            ("ops=1.5", Err("whole number")),
            ("ops=3lb", Err("unit")),
            ("ops=99999999999GiB", Err("64 bits")),
        ];
        for (text, wanted) in cases {
            match (name_and_number(text), wanted) {
                (Ok((name, value)), Ok(wanted)) => assert_eq!((name.as_str(), value), wanted, "{text}"),
                (Err(got), Err(wanted)) => assert!(got.contains(wanted), "{text}: {got}"),
                (got, wanted) => panic!("{text}: {got:?} instead of {wanted:?}"),
            }
        }
    }
}
