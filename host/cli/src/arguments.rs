//! Defines the command line with clap: commands, options and their help texts.

mod serve;
mod target;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use shardwright::{
    FormatChoice, Lora, LoraScale, PlanMeasuring, Preference, PromptLength, ToolChoice, WeightFormat,
    WeightRounding,
};
use shardwright_hub::HubId;
use shardwright_trust::{Kind, LeastRelease, PublicKey};

pub use serve::ServeArguments;
#[cfg(feature = "serve")]
pub use serve::{KeySource, ServedArgument};
pub use target::{TargetArguments, decided_before};

/// Run language models on phone NPUs. Each plan shows how the model is cut, in which formats and
/// with which flags it is compiled, and why.
#[derive(Parser, Debug)]
#[command(name = "shardwright", version, propagate_version = true)]
pub struct Arguments {
    /// Format of reports on standard output. `json` prints one document, or one per line while a
    /// reply streams.
    #[arg(long, global = true, value_name = "text|json", value_parser = format, default_value = "text")]
    pub format: Format,
    /// Show full reports, and log more to standard error (repeat for more).
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    #[command(subcommand)]
    pub command: Command,
}

impl Arguments {
    /// Parses a command line. A negative number after an option is its value, not an unknown
    /// option, so that the error states which values are accepted.
    ///
    /// # Errors
    ///
    /// Fails if the command line is invalid, or requests help or the version.
    pub fn read<W: Into<OsString> + Clone>(words: impl IntoIterator<Item = W>) -> Result<Self, clap::Error> {
        let matches = with_negative_values(Arguments::command()).try_get_matches_from(words)?;
        let mut arguments = Arguments::from_arg_matches(&matches)?;
        let is_chat = matches!(arguments.command, Command::Chat(_));
        if let (Command::Run(run) | Command::Chat(run), Some((_, matches))) =
            (&mut arguments.command, matches.subcommand())
        {
            run.parts = parts_in_order(run, matches);
            if is_chat && run.raw {
                let what = "`chat` holds a conversation, and `--raw` continues a text: use `run --raw`\n";
                return Err(Arguments::command().error(clap::error::ErrorKind::ArgumentConflict, what));
            }
            run.chat |= is_chat;
        }
        Ok(arguments)
    }
}

/// Returns the parts of a prompt in the order of the command line.
fn parts_in_order(run: &RunArguments, matches: &clap::ArgMatches) -> Vec<PromptPart> {
    let places = |name: &str| matches.indices_of(name).into_iter().flatten();
    let texts = run.prompt.iter().cloned().map(PromptPart::Text);
    let pictures = run.image.iter().cloned().map(PromptPart::Picture);
    let sounds = run.audio.iter().cloned().map(PromptPart::Sound);
    let placed = places("prompt").zip(texts).chain(places("image").zip(pictures));
    let mut parts: Vec<(usize, PromptPart)> = placed.chain(places("audio").zip(sounds)).collect();
    parts.sort_by_key(|(place, _)| *place);
    parts.into_iter().map(|(_, part)| part).collect()
}

/// A part of a prompt on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptPart {
    /// Text of `--prompt`.
    Text(String),
    /// File of `--image`.
    Picture(PathBuf),
    /// File of `--audio`.
    Sound(PathBuf),
}

/// Names of values with a unit. A negative one, such as `-3GB`, is not a number for clap.
const AMOUNTS: [&str; 2] = ["SIZE", "TIME"];

/// Lets the values of options begin with `-`, as far as they are numbers or amounts.
fn with_negative_values(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|option| {
        if option.is_positional() || !option.get_action().takes_values() {
            return option;
        }
        let names = option.get_value_names().unwrap_or_default();
        let is_amount = names.iter().any(|name| AMOUNTS.contains(&name.as_str()));
        option.allow_negative_numbers(true).allow_hyphen_values(is_amount)
    });
    command.mut_subcommands(with_negative_values)
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text for people.
    Text,
    /// JSON for programs: one document, or one per line while a reply streams.
    Json,
}

const RUN_EXAMPLES: &str = "Examples:
  shardwright run demo-model --prompt 'In the beginning' -n 32
  shardwright run demo-model --chat
  shardwright run demo-model --soc mt6989 --on simulator --prompt 'And'
  shardwright run path/to/bundle --prompt 'And' --format json";

const CHAT_EXAMPLES: &str = "Examples:
  shardwright chat demo-model
  shardwright chat demo-model --system 'Be brief.'";

const SERVE_EXAMPLES: &str = "Examples:
  shardwright serve demo-model
  shardwright serve chat=demo-model embed=path/to/embeddinggemma --memory-budget 6GB
  shardwright serve path/to/bundle --address 0.0.0.0 --api-key keys.txt";

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

const VERIFY_EXAMPLES: &str = "Examples:
  shardwright verify demo-model
  shardwright verify demo-model --bundle bundle
  shardwright verify demo-model --bundle bundle --repair -o repaired";

const TUNE_EXAMPLES: &str = "Examples:
  shardwright tune demo-model --minutes 10
  shardwright tune demo-model --soc mt6989 --on simulator
  shardwright plan demo-model --soc mt6989 --on simulator";

const DIFF_EXAMPLES: &str = "Example:
  shardwright plan demo-model --soc mt6989 --format json > before.json
  shardwright plan demo-model --soc mt6989 --limit ops=400 --format json > after.json
  shardwright plan diff before.json after.json";

/// Usages on several lines, since the generated ones are wider than a terminal.
const PACK_USAGE: &str = "shardwright pack [OPTIONS] <BUNDLE> --output <FILE>
       shardwright pack [OPTIONS] <BUNDLE> --ai-pack <DIR>
       shardwright pack [OPTIONS] <BUNDLE> --adb <DIR>
       shardwright pack [OPTIONS] <BUNDLE> --hf <DIR>";
const TRUST_REVOKE_USAGE: &str = "shardwright trust revoke [OPTIONS] --key <FILE> --list <NAME>
           --sequence <NUMBER> --output <FILE>";

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
    /// Generate text with a checkpoint or a bundle: one reply, or a conversation.
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArguments),
    /// Hold a conversation with a checkpoint or a bundle, like `run --chat`.
    #[command(after_help = CHAT_EXAMPLES)]
    Chat(RunArguments),
    /// Serve models over HTTP: the endpoints of OpenAI's interface, and a web page.
    ///
    /// The server listens on this machine only, unless it has API keys. Ctrl-C and SIGTERM let it
    /// finish open requests.
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeArguments),
    /// Fetch a model from a Hugging Face hub into the cache that `hf download` uses. Other commands
    /// then accept its id instead of a path.
    ///
    /// An interrupted pull resumes where it stopped.
    #[command(after_help = PULL_EXAMPLES)]
    Pull(PullArguments),
    /// Measure how fast a checkpoint or a bundle runs, with the same tests as llama.cpp's
    /// `llama-bench`.
    Bench(BenchArguments),
    /// Compile a checkpoint into a bundle, which runs without a compiler. An interrupted run
    /// resumes where it stopped.
    #[command(after_help = COMPILE_EXAMPLES)]
    Compile(CompileArguments),
    /// Pack a bundle into one file, or lay it out for delivery: as AI packs for Google Play, for
    /// adb, or for a model hub.
    ///
    /// The file is an uncompressed ZIP archive whose parts begin at page boundaries, so that they
    /// can be mapped. Commands accept it in place of the bundle's directory.
    #[command(after_help = PACK_EXAMPLES, override_usage = PACK_USAGE)]
    Pack(PackArguments),
    /// List the requirements of a bundle on a phone: shims, vendor libraries with their versions
    /// and licences, and declarations of the app.
    #[command(after_help = NEEDS_EXAMPLES)]
    Needs(NeedsArguments),
    /// Show which variant and chain of a bundle a machine runs, and why it does not run the others.
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArguments),
    /// Write a calibration text from the model's own replies to prompts, sampled at temperature 1.
    /// An interrupted run resumes where it stopped.
    #[command(after_help = CALIBRATION_TEXT_EXAMPLES)]
    CalibrationText(CalibrationTextArguments),
    /// Show the contents of a bundle, an artefact, a work order or a checkpoint. Files of vendor
    /// tools are described by the vendor's shim.
    Inspect {
        /// File or directory to inspect, or the id of a pulled model (OWNER/NAME).
        path: PathBuf,
        /// Verify every byte of a bundle. Default: verify the manifest and small files only.
        #[arg(long)]
        verify: bool,
        #[command(flatten)]
        strict: StrictArgument,
        /// Chip whose profile recommends compiler flags, for files that do not name their chip.
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
    /// Show how a checkpoint would be cut, placed and compiled, why, and whether it fits.
    /// `plan diff` compares two plans.
    ///
    /// The weights are not needed: the headers of their files, or `config.json` alone, are enough.
    #[command(
        after_help = PLAN_EXAMPLES,
        args_conflicts_with_subcommands = true,
        subcommand_negates_reqs = true,
        disable_help_subcommand = true
    )]
    Plan(PlanArguments),
    /// Measure and store the quality loss of each format, by layer and role. Later plans for the
    /// checkpoint use these losses instead of estimates.
    ///
    /// Losses that affect plans most are measured first. An interrupted run resumes where it
    /// stopped.
    #[command(after_help = SENSITIVITY_EXAMPLES)]
    Sensitivity(SensitivityArguments),
    /// Measure how well a model predicts a text, by the rules of llama.cpp's `llama-perplexity`,
    /// and how far it is from a reference model. An interrupted run resumes where it stopped.
    #[command(after_help = PERPLEXITY_EXAMPLES)]
    Perplexity(PerplexityArguments),
    /// Time plans where they run (device, simulator or CPU) and store the times. Later plans for
    /// the same chip, library and machine use them.
    ///
    /// An interrupted run resumes where it stopped.
    #[command(after_help = TUNE_EXAMPLES)]
    Tune(TuneArguments),
    /// Show the structure of a checkpoint: components, layers, tables and sizes.
    Show(ShowArguments),
    /// Turn text into sentence vectors with an embedding model.
    Embed(EmbedArguments),
    /// Compare the outputs of a checkpoint or a bundle with recorded ones, or with a reference
    /// evaluator. The exit code is 1 if they differ.
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify(VerifyArguments),
    /// Show available devices and shims, why others were skipped, and how a bundle would run.
    Doctor(DoctorArguments),
    /// List shims, create one, or write the hash of a library into its manifest.
    #[command(subcommand)]
    Shim(ShimCommand),
    /// Create, build, combine and check planners, and make signed packs for hosts without a
    /// compiler.
    #[command(subcommand)]
    Planner(PlannerCommand),
    /// Make keys, sign bundles, shims, planners and profiles, and revoke keys and releases.
    #[command(subcommand)]
    Trust(TrustCommand),
    /// Write a shell completion script to standard output.
    Completions {
        /// Shell to write the script for.
        shell: clap_complete::Shell,
    },
}

/// Directories of shims, in addition to the standard ones.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Places and trust")]
pub struct ShimPlaces {
    /// Additional directory of shims with their manifests (may be repeated).
    #[arg(long, value_name = "DIR")]
    pub shims: Vec<PathBuf>,
}

/// Directories of planners, in addition to the standard ones.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Places and trust")]
pub struct PlannerPlaces {
    /// Additional directory of planners (may be repeated).
    #[arg(long, value_name = "DIR")]
    pub planners: Vec<PathBuf>,
}

/// Directories of profiles, in addition to the standard ones.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Places and trust")]
pub struct ProfilePlaces {
    /// Additional directory of SoC profiles (may be repeated).
    #[arg(long, value_name = "DIR")]
    pub profiles: Vec<PathBuf>,
}

/// Trusted keys, and the policy for files without their signatures.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Places and trust")]
pub struct TrustArguments {
    /// Public key to trust (may be repeated). Planner packs run only if a trusted key signed them.
    #[arg(long = "trust", value_name = "KEY")]
    pub trusted_keys: Vec<String>,
    /// Policy for a bundle, shim, planner or profile that no trusted key signed: `off` uses it,
    /// `warn` uses it with a warning, `require` refuses it. Default: `warn` with `--trust` or
    /// `--revocations`, otherwise `off`.
    #[arg(long, value_enum, value_name = "off|warn|require", hide_possible_values = true)]
    pub signatures: Option<Signatures>,
    /// List of revoked keys and releases, signed by a trusted key (may be repeated).
    #[arg(long, value_name = "FILE")]
    pub revocations: Vec<PathBuf>,
}

/// The name under which the bundle must be signed.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Signatures")]
pub struct ExpectedArgument {
    /// Refuse the bundle unless a trusted key signed it under this name. This applies with every
    /// value of `--signatures`.
    #[arg(long, value_name = "NAME")]
    pub expect: Option<String>,
}

/// Whether fields and files without effect are errors, for commands that read a model and do not
/// run it.
#[derive(Args, Debug, Clone, Copy, Default)]
pub struct StrictArgument {
    /// Refuse a model with a field or file that is unknown or has no effect.
    #[arg(long)]
    pub strict: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signatures {
    /// The file is used and its signature is not checked.
    Off,
    /// The file is used with a warning.
    Warn,
    /// The file is refused.
    Require,
}

/// Whether the quality loss of a plan is measured.
#[derive(Args, Debug, Clone, Default)]
pub struct MeasuringArguments {
    /// Measure the quality loss of the plan for a model of any size. Default: measure it for models
    /// of up to 2 billion weights.
    ///
    /// The measurement runs the whole plan and the model as stored on the CPU, which may be slow.
    /// If it fails, planning fails.
    #[arg(long, conflicts_with = "no_measure")]
    pub measure: bool,
    /// Skip the measurement and report the estimated loss.
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

/// Drafts that propose tokens while a model runs.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Drafts")]
pub struct DraftArguments {
    /// Draft that proposes next tokens, several of which are verified in one step (may be repeated,
    /// tried in order). Default: `auto`, the choice of the plan.
    ///
    /// `off` disables drafts. `lookup` proposes the tokens that followed the same text earlier. A
    /// path names a smaller model with the same vocabulary: a bundle, or a checkpoint, which runs
    /// on this machine's CPU. Greedy replies do not change, and sampled replies keep their
    /// distribution.
    #[arg(long = "draft", value_name = "DRAFT", value_parser = draft)]
    pub drafts: Vec<DraftArgument>,
}

/// Drafts that a plan may rely on.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Drafts")]
pub struct PlannedDrafts {
    /// Draft that the plan may rely on to verify several tokens in one step (may be repeated):
    /// `lookup`, `off`, or a smaller model with the same vocabulary. Default: `auto`, which is
    /// `lookup`.
    ///
    /// A smaller model is a checkpoint or a bundle that `tune --draft` has measured. The plan uses
    /// it if it gains more than lookup.
    #[arg(long = "draft", value_name = "DRAFT", value_parser = draft)]
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

/// Options for running a bundle.
#[derive(Args, Debug, Clone, Default)]
pub struct BundledArguments {
    /// Checkpoint that the bundle was compiled from. Chains that are planned as just-in-time are
    /// compiled again from it if they cannot be loaded.
    #[arg(long = "checkpoint", value_name = "DIR")]
    pub compiled_from: Option<PathBuf>,
    /// Largest memory of a bundle and its sessions: artefacts, KV cache, buffers and logits
    /// together, such as `900MB`, `3GB`, or a number of bytes. Default: no limit.
    ///
    /// Chains that need more are skipped. To bound the plan of a checkpoint, use `--memory`.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory_budget: Option<u64>,
    #[command(flatten)]
    pub expected: ExpectedArgument,
}

/// How a plan is run.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Running")]
pub struct ExecutionArguments {
    /// Executor of the plan. Default: the device if its shim finds it, and the CPU without `--soc`.
    #[arg(long, value_enum)]
    pub on: Option<ExecutorArgument>,
    /// Number of threads of the CPU engine. Default: the number of cores.
    #[arg(short = 't', long, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Option<u32>,
    /// Work of shims that runs in a separate process.
    ///
    /// Files are mapped. If another program truncates an artefact while it runs, the process that
    /// runs it ends (SIGBUS). With `process` that is the worker, otherwise it is this program.
    #[arg(long, value_enum, default_value_t = IsolationArgument::Automatic)]
    pub isolation: IsolationArgument,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum IsolationArgument {
    /// Queries and compiling, if the worker program is found.
    Automatic,
    /// No work.
    Off,
    /// Queries and compiling. A missing worker program is an error.
    Compile,
    /// All work: if a driver crashes, the reply is delayed by about a second and this program
    /// continues.
    Process,
}

#[derive(Args, Debug)]
pub struct CompileArguments {
    /// Checkpoint to compile: a directory as published on Hugging Face, a GGUF file, or the id of a
    /// pulled model (OWNER/NAME).
    pub checkpoint: PathBuf,
    /// Directory for the bundle: an empty or new one, or an existing bundle, which is replaced.
    #[arg(short, long, value_name = "DIR", required_unless_present = "dry_run")]
    pub output: Option<PathBuf>,
    /// Show the plan, size and speed for each chip without compiling.
    #[arg(long)]
    pub dry_run: bool,
    /// Number of chips to compile for at once. Default: 1.
    ///
    /// The bundle does not depend on this number. Chips whose compiler can run only once at a time
    /// are still compiled one after another.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "dry_run")]
    pub jobs: Option<u32>,
    /// Largest memory that concurrent jobs are expected to need together, such as `16GB`. Default:
    /// three quarters of the available memory, if the system reports it.
    ///
    /// A single job always runs. A job is expected to need 12 times the weights of its largest
    /// shard (3 times on the CPU), 256 MiB, and the size of weights that are made in memory.
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "jobs")]
    pub jobs_memory: Option<u64>,
    /// Bundle whose artefacts are reused for equal work orders instead of compiling them again.
    ///
    /// Use it to add a chip, or to get the same bytes again from a compiler whose output varies.
    #[arg(long, value_name = "BUNDLE", conflicts_with = "dry_run")]
    pub reuse: Option<PathBuf>,
    /// Measure the quality loss of each plan on the CPU, for a model of any size. Default: no
    /// measurement.
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
    /// Bundle to pack: a directory or a packed file.
    pub bundle: PathBuf,
    #[command(flatten)]
    pub channel: Channel,
    /// Time at which AI packs are delivered. Default: `on-demand`.
    #[arg(
        long,
        value_enum,
        value_name = "MODE",
        conflicts_with_all = ["output", "adb", "hf"],
        default_value_if("ai_pack", clap::builder::ArgPredicate::IsPresent, "on-demand")
    )]
    pub delivery: Option<Delivery>,
    /// Name of the first AI pack. Default: the model's name.
    #[arg(long, conflicts_with_all = ["output", "adb", "hf"])]
    pub name: Option<String>,
    /// Largest size of an AI pack, such as `500MB` or a number of bytes, to try out a bundle in
    /// several packs. Default and maximum: 1.5 GB, the limit of Google Play.
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with_all = ["output", "adb", "hf"])]
    pub pack_size: Option<u64>,
    /// Largest size of all AI packs for one device: the limit of Google Play for an app version,
    /// minus the size of the app itself. Default and maximum: 4 GB.
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with_all = ["output", "adb", "hf"])]
    pub app_size: Option<u64>,
    /// Chip whose variant `--adb` pushes, by any of its names in the bundle. Default: all variants.
    #[arg(long, conflicts_with_all = ["output", "ai_pack", "hf"])]
    pub soc: Option<String>,
    /// Licence of the model in the hub's spelling, such as `gemma` or `apache-2.0`. `--hf` requires
    /// it, because a bundle does not contain it.
    #[arg(long, value_name = "ID", conflicts_with_all = ["output", "ai_pack", "adb"])]
    pub licence: Option<String>,
    /// Model on the hub that the bundle was made from, for the model card.
    #[arg(long, value_name = "OWNER/NAME", conflicts_with_all = ["output", "ai_pack", "adb"])]
    pub base_model: Option<String>,
    /// Sign the output with this key file, made by `trust key`. Default: a bundle that is packed
    /// whole keeps its signature, and output with some of its variants has none.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Name under which signed releases are numbered. Default: the model's name in lower case.
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

/// Destination and layout of a bundle.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct Channel {
    /// File to write. It appears only when it is complete.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Folder for AI packs of Google Play, with a device group for each chip.
    #[arg(long, value_name = "DIR")]
    pub ai_pack: Option<PathBuf>,
    /// Folder for the bundle and a script that pushes it to a phone over adb and runs it there.
    #[arg(long, value_name = "DIR")]
    pub adb: Option<PathBuf>,
    /// Folder for a model hub, with a packed bundle for each chip and a model card.
    #[arg(long, value_name = "DIR")]
    pub hf: Option<PathBuf>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Installed as part of the app.
    InstallTime,
    /// Downloaded right after the app.
    FastFollow,
    /// Downloaded when the app requests it.
    OnDemand,
}

#[derive(Args, Debug)]
pub struct NeedsArguments {
    /// Bundle to examine: a directory or a packed file.
    pub bundle: PathBuf,
    /// Chip to list requirements for. Default: all chips of the bundle.
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
    /// Bundle to explain: a directory or a packed file.
    pub bundle: PathBuf,
    /// Chip that the machine is assumed to have, by the name or an alias of its profile. Default:
    /// the chip that the shims find.
    #[arg(long, conflicts_with = "device")]
    pub soc: Option<String>,
    /// Explain the bundle for another machine, described by this file from `doctor --report`.
    /// Default: this machine.
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
pub enum ExecutorArgument {
    /// The chip itself.
    Device,
    /// The vendor's simulator of the chip.
    Simulator,
    /// This machine's CPU, with the chip's cut, formats and encodings.
    Cpu,
}

#[derive(Args, Debug)]
pub struct RunArguments {
    /// Model to run: a directory as published on Hugging Face (`config.json`, `*.safetensors`,
    /// `tokenizer.json`), a GGUF file, a bundle, or the id of a pulled model (OWNER/NAME).
    pub checkpoint: PathBuf,
    /// User's turn, or text to continue (may be repeated, around pictures and sounds). Default:
    /// standard input.
    #[arg(short, long)]
    pub prompt: Vec<String>,
    /// Reply in a conversation, which is the default for models with a chat template. Without
    /// `--prompt`, each line of standard input is a turn.
    #[arg(long)]
    pub chat: bool,
    /// Continue the prompt as plain text, without the chat template.
    #[arg(
        long,
        conflicts_with_all = ["chat", "image", "audio", "system", "thinking", "control_tokens_in_text", "tools"]
    )]
    pub raw: bool,
    /// Picture before or after the prompt, as on the command line (may be repeated): PNG, JPEG,
    /// WebP, GIF, BMP or TIFF. `-` reads standard input. Implies `--chat`.
    #[arg(long, value_name = "FILE", requires = "prompt")]
    pub image: Vec<PathBuf>,
    /// Sound before or after the prompt, as on the command line (may be repeated): WAV or FLAC of
    /// at most 30 seconds. `-` reads standard input. Implies `--chat`.
    #[arg(long, value_name = "FILE", requires = "prompt")]
    pub audio: Vec<PathBuf>,
    /// The texts, pictures and sounds in their order.
    #[arg(skip)]
    pub parts: Vec<PromptPart>,
    /// Largest number of soft tokens of a picture: 70, 140, 280, 560 or 1120. Default: the
    /// checkpoint's setting.
    #[arg(long, value_name = "TOKENS", requires = "image")]
    pub soft_tokens: Option<u32>,
    /// System turn before the first user turn. Implies `--chat`.
    #[arg(long)]
    pub system: Option<String>,
    /// Let the model think before it answers (implies `--chat`): `on`, `off`, or `on` with at most
    /// this many tokens of thoughts. Default: the chat template's setting.
    #[arg(long, value_name = "on|off|TOKENS", value_parser = thinking)]
    pub thinking: Option<Thinking>,
    /// Interpret control tokens such as `<|turn>` in the text of turns (implies `--chat`). Default:
    /// off, for safety.
    #[arg(long)]
    pub control_tokens_in_text: bool,
    /// Save the session to this file at the end: turns, tokens and KV cache. An earlier saved
    /// session is replaced as a whole.
    #[arg(help_heading = "Sessions", long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Continue a saved session. Without `--chat` and a chat template, the prompt is the whole
    /// text, and only its new tokens are run.
    #[arg(help_heading = "Sessions", long, value_name = "FILE", conflicts_with = "system")]
    pub restore: Option<PathBuf>,
    /// Largest number of tokens to generate, thoughts included. Default: the checkpoint's limit, or
    /// 512 without one.
    #[arg(help_heading = "Sampling", short = 'n', long, value_parser = tokens)]
    pub max_tokens: Option<u32>,
    /// Always choose the most likely token.
    #[arg(help_heading = "Sampling", long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p"])]
    pub greedy: bool,
    /// Sampling temperature. Default: the checkpoint's setting.
    #[arg(help_heading = "Sampling", long, value_parser = temperature)]
    pub temperature: Option<f32>,
    /// Sample only from this many of the most likely tokens. Default: the checkpoint's setting.
    #[arg(help_heading = "Sampling", long)]
    pub top_k: Option<u32>,
    /// Sample only from the most likely tokens that together reach this probability. Default: the
    /// checkpoint's setting.
    #[arg(help_heading = "Sampling", long, value_parser = top_p)]
    pub top_p: Option<f32>,
    /// Drop tokens that are less likely than this fraction of the most likely token's probability.
    /// Default: the checkpoint's setting, or 0.
    #[arg(help_heading = "Sampling", long, value_parser = min_p)]
    pub min_p: Option<f32>,
    /// Penalty for tokens that are already in the text: positive logits are divided by this number,
    /// negative ones multiplied. Default: the checkpoint's setting, or 1.
    #[arg(help_heading = "Sampling", long, value_parser = repetition_penalty)]
    pub repetition_penalty: Option<f32>,
    /// Seed of the random numbers. Default: 0.
    #[arg(help_heading = "Sampling", long)]
    pub seed: Option<u64>,
    /// Text before which the reply ends (may be repeated).
    #[arg(help_heading = "Sampling", long)]
    pub stop: Vec<String>,
    /// JSON file with the tools that the model may call, as in OpenAI's requests. Calls are printed
    /// as lines of JSON. Implies `--chat`.
    #[arg(help_heading = "Tools", long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// Tools that the reply may or must call. `required` or a name enforces calls that match the
    /// tool's schema. Default: auto.
    #[arg(
        help_heading = "Tools",
        long,
        value_name = "auto|none|required|NAME",
        value_parser = tool_choice,
        requires = "tools"
    )]
    pub tool_choice: Option<ToolChoice>,
    /// File with a JSON schema that the answer must match. Thoughts before the answer are free.
    #[arg(help_heading = "Structured output", long, value_name = "FILE", group = "structure")]
    pub json_schema: Option<PathBuf>,
    /// Regular expression that the whole answer must match, without anchors.
    #[arg(help_heading = "Structured output", long, value_name = "PATTERN", group = "structure")]
    pub regex: Option<String>,
    /// File with a Lark grammar that the answer must match. Its rule `start` is the whole answer.
    #[arg(help_heading = "Structured output", long, value_name = "FILE", group = "structure")]
    pub grammar: Option<PathBuf>,
    /// Do not print statistics, notes or thoughts to standard error. Warnings and fallbacks are
    /// still printed.
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
    /// Model to fetch: `OWNER/NAME`, optionally with `@REVISION`, and with `:FILE` or a
    /// quantisation of GGUF files such as `:Q4_K_M`.
    #[arg(value_parser = hub_id)]
    pub id: HubId,
    /// Branch, tag or commit to fetch. Default: `main`.
    #[arg(long)]
    pub revision: Option<String>,
    /// File to fetch, a pattern such as `*.safetensors`, or a quantisation. Default: settings,
    /// tokenizer and safetensors, otherwise the only GGUF model.
    #[arg(long, value_name = "FILE|GLOB")]
    pub file: Option<String>,
    /// Address of the hub. Default: the variable `HF_ENDPOINT`, or https://huggingface.co.
    #[arg(long, value_name = "URL")]
    pub hub: Option<String>,
    /// Cache directory. Default: the variable `HF_HUB_CACHE`, `$HF_HOME/hub`, or
    /// `~/.cache/huggingface/hub`.
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

fn hub_id(text: &str) -> Result<HubId, String> {
    text.parse::<HubId>().map_err(|error| format!("{error}; {}", error.help().unwrap_or_default()))
}

#[derive(Args, Debug)]
pub struct BenchArguments {
    /// Model to measure: a directory as published on Hugging Face, a GGUF file, a bundle, or the id
    /// of a pulled model (OWNER/NAME).
    pub checkpoint: PathBuf,
    /// Prompt lengths to measure, in tokens, separated by commas (`pp512`). Default: 512, or no
    /// prompts if `-n` is given.
    ///
    /// A prompt is run at once and ends with the logits after its last token.
    #[arg(short = 'p', long, value_name = "TOKENS", value_delimiter = ',')]
    pub prompt_tokens: Vec<u32>,
    /// Numbers of tokens to generate, separated by commas (`tg128`). Default: 128, or no generation
    /// if `-p` is given.
    ///
    /// Each step runs one token, which is not known before the step.
    #[arg(short = 'n', long, value_name = "TOKENS", value_delimiter = ',')]
    pub generated_tokens: Vec<u32>,
    /// Numbers of tokens in the context before a measurement begins, separated by commas.
    #[arg(short = 'd', long, value_name = "TOKENS", value_delimiter = ',', default_value = "0")]
    pub depth: Vec<u32>,
    /// Number of repetitions of each measurement.
    #[arg(short = 'r', long, default_value_t = 5)]
    pub repetitions: u32,
    /// Compute all logits during generation, as `llama-bench` does. Default: only the largest
    /// logit, as for a greedy choice.
    #[arg(long)]
    pub all_logits: bool,
    /// Prompt length of the first step, in tokens. It measures the time from the start of the
    /// program to the first token.
    #[arg(long, value_name = "TOKENS", default_value_t = 16)]
    pub first_tokens: u32,
    /// Also load the tokenizer and report when it is ready. A text needs it before its first token.
    #[arg(long)]
    pub text: bool,
    /// Also measure the read speed of memory, before and after each measurement.
    #[arg(long)]
    pub probe: bool,
    /// Memory that a probe reads, in MiB. It must be larger than the caches.
    #[arg(long, value_name = "MIB", default_value_t = 1024, requires = "probe")]
    pub probe_mebibytes: u32,
    #[command(flatten)]
    pub drafts: DraftArguments,
    /// Text file to reply to greedily, with and without the drafts, in pairs. The largest `-n` sets
    /// the length of the replies.
    #[arg(help_heading = "Drafts", long, value_name = "FILE", requires = "drafts")]
    pub draft_prompt: Option<PathBuf>,
    #[command(flatten)]
    pub bundled: BundledArguments,
    #[command(flatten)]
    pub target: TargetArguments,
    #[command(flatten)]
    pub execution: ExecutionArguments,
}

/// The adapters of a checkpoint.
#[derive(Args, Debug, Clone, Default)]
pub struct LoraArguments {
    /// Merge a LoRA adapter into the weights before they are quantised: a folder that PEFT wrote,
    /// and a factor of its changes, such as `adapter=0.5` (may be repeated: changes add up in this
    /// order). Default factor: 1.
    ///
    /// The folder has `adapter_config.json` and `adapter_model.safetensors`. The checkpoint must be
    /// stored as floats.
    #[arg(long = "lora", value_name = "DIR[=SCALE]", value_parser = lora)]
    pub adapters: Vec<Lora>,
}

#[derive(Args, Debug)]
pub struct SensitivityArguments {
    /// Checkpoint to measure: a directory as published on Hugging Face, a GGUF file, or the id of a
    /// pulled model (OWNER/NAME).
    pub checkpoint: PathBuf,
    /// Text to measure on: one conversation per line, turns separated by tabs. Default: built-in
    /// texts.
    ///
    /// Plans use these losses if `--calibration-text` names the same text.
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
    /// Stop after this number of minutes, once the current loss is measured. Default: stop when all
    /// losses are measured.
    #[arg(long, value_name = "NUMBER", value_parser = minutes)]
    pub minutes: Option<f64>,
    /// Chip whose formats are measured, by the name or an alias of its profile. Default: the
    /// formats of the CPU.
    #[arg(long)]
    pub soc: Option<String>,
    /// Formats to measure (may be repeated): WEIGHTS/ACTIVATIONS/STATES such as
    /// `w4-block32[head=w8-per-channel]/f32/f32`. Default: the formats of the chip's profile.
    #[arg(long, value_name = "FORMATS", value_parser = formats)]
    pub formats: Vec<FormatChoice>,
    /// Quality goal of later plans, as in `plan --quality`, which decides the order of
    /// measurements. Default: `good`.
    #[arg(long, value_name = "GOAL", value_parser = quality)]
    pub quality: Option<u32>,
    /// Rounding of weights to integers, `nearest` or `compensated`. Default: as in `compile`.
    #[arg(long, value_name = "nearest|compensated", value_parser = rounding)]
    pub rounding: Option<WeightRounding>,
    /// Number of threads of the CPU engine. Default: the number of cores.
    #[arg(short = 't', long, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Option<u32>,
    /// Work of shims that runs in a separate process.
    #[arg(long, value_enum, default_value_t = IsolationArgument::Automatic)]
    pub isolation: IsolationArgument,
    #[command(flatten)]
    pub lora: LoraArguments,
    #[command(flatten)]
    pub strict: StrictArgument,
    #[command(flatten)]
    pub shims: ShimPlaces,
    #[command(flatten)]
    pub profiles: ProfilePlaces,
}

#[derive(Args, Debug)]
pub struct PerplexityArguments {
    /// Model to measure: a directory as published on Hugging Face, a GGUF file, a bundle, or the id
    /// of a pulled model (OWNER/NAME).
    pub checkpoint: PathBuf,
    /// Text to predict, in UTF-8.
    #[arg(long, value_name = "FILE")]
    pub text: PathBuf,
    /// Reference model with the same vocabulary: a checkpoint, which runs as stored on this
    /// machine's CPU, or a bundle. The report then has KL(reference || model).
    #[arg(long, value_name = "MODEL")]
    pub against: Option<PathBuf>,
    /// Length of a window in tokens. Default: 512, or the context if that is smaller.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub window: Option<u32>,
    /// Distance in tokens from the start of a window to the next, and number of tokens scored at
    /// the end of each. Default: adjacent windows, whose second half is scored.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub stride: Option<u32>,
    /// Largest number of windows to measure. Default: all.
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
    /// Model to tune: a directory as published on Hugging Face, a GGUF file, a bundle, or the id of
    /// a pulled model (OWNER/NAME).
    pub checkpoint: PathBuf,
    /// Checkpoint that the bundle was compiled from. A bundle needs it, because other plans are
    /// made from it.
    #[arg(long = "checkpoint", value_name = "DIR")]
    pub compiled_from: Option<PathBuf>,
    /// Start no new trial after this number of minutes. Default: continue until the planner
    /// proposes no untimed plan.
    #[arg(long, value_name = "NUMBER", value_parser = minutes)]
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
    /// Checkpoint to plan for: a directory as published on Hugging Face, a GGUF file, or the id of
    /// a pulled model (OWNER/NAME). Write `./diff` for a directory named `diff`.
    #[arg(required = true)]
    pub checkpoint: Option<PathBuf>,
    /// Also write the plan to this file as a self-contained HTML page. An earlier page is replaced.
    ///
    /// Plans of towers are written next to it, with `picture` and `clip` before the extension. With
    /// several chips, this option is refused.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the request to the planner to this file before the planner runs, for `planner replay`.
    ///
    /// Requests for towers are written next to it, with `picture` and `clip` before the extension.
    /// With several chips, this option is refused.
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
    /// Compare two plans: cut, targets, formats, flags, entry points, limits, goals, times, bytes
    /// and loss. The exit code is 1 if anything differs.
    #[command(after_help = DIFF_EXAMPLES)]
    Diff {
        /// First plan: output of `plan --format json`, or a bundle, whose first chain is compared.
        before: PathBuf,
        /// Second plan: output of `plan --format json`, or a bundle, whose first chain is compared.
        after: PathBuf,
        #[command(flatten)]
        trust: TrustArguments,
        #[command(flatten)]
        expected: ExpectedArgument,
    },
}

#[derive(Args, Debug)]
pub struct ShowArguments {
    /// Checkpoint to show: a directory as published on Hugging Face, a GGUF file, or the id of a
    /// pulled model (OWNER/NAME).
    pub checkpoint: PathBuf,
    #[command(flatten)]
    pub strict: StrictArgument,
}

#[derive(Args, Debug)]
pub struct CalibrationTextArguments {
    /// Model that writes the text: a directory as published on Hugging Face, a GGUF file, a bundle,
    /// or the id of a pulled model (OWNER/NAME).
    pub checkpoint: PathBuf,
    /// Text file to write: one conversation per line, turns separated by tabs. An existing text of
    /// the same prompts is continued.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// File with one prompt per line. Default: the first turns of the built-in calibration texts.
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
    /// Stop when the replies have this number of tokens in total.
    #[arg(long, value_name = "TOKENS", default_value_t = 8192)]
    pub tokens: u64,
    /// Largest number of tokens of a reply.
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    pub longest: u32,
    /// Seed of the random numbers.
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
    /// Embedding model: a directory as published on Hugging Face, a GGUF file, a bundle, or the id
    /// of a pulled model (OWNER/NAME).
    pub checkpoint: PathBuf,
    /// Texts to embed. Default: one text per line of standard input.
    pub texts: Vec<String>,
    /// Named prompt of the checkpoint to put before each text, such as `query` or `document`.
    /// Default: the checkpoint's default prompt, if it has one.
    #[arg(long, value_name = "NAME")]
    pub prompt_name: Option<String>,
    /// Keep only this number of first values of each vector, and renormalise it. Default: all
    /// values.
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
    /// Checkpoint to verify: a directory as published on Hugging Face, a GGUF file, or the id of a
    /// pulled model (OWNER/NAME). For a bundle, name the checkpoint that it was compiled from here,
    /// and the bundle with `--bundle`.
    pub checkpoint: PathBuf,
    /// Directory of recorded outputs (`goldens.safetensors` and the files next to it). Default: the
    /// checkpoint's own outputs, otherwise the reference evaluator on prompts of a built-in text.
    #[arg(long, value_name = "DIR")]
    pub golden: Option<PathBuf>,
    /// Break one scale in one layer, and check that the verification names this layer.
    #[arg(long, conflicts_with = "bundle")]
    pub self_test: bool,
    /// Verify this bundle, which was compiled from the checkpoint, with the compile options that it
    /// records. If you set one of these options, set all of them.
    #[arg(long, value_name = "DIR")]
    pub bundle: Option<PathBuf>,
    /// Write the result of the verification into the bundle, or into the repaired one.
    #[arg(long, requires = "bundle")]
    pub store: bool,
    /// Repair a bundle that fails: find the faulty operation, plan a wider format there, compile
    /// and verify again, until a plan passes.
    ///
    /// Formats of `--formats` may be planned in addition to the formats that the bundle was
    /// compiled with.
    #[arg(long, requires = "bundle", requires = "output")]
    pub repair: bool,
    /// Directory for the repaired bundle, other than the directory of the bundle, which does not
    /// change. An interrupted repair resumes in it.
    #[arg(short, long, value_name = "DIR", requires = "repair")]
    pub output: Option<PathBuf>,
    /// Largest number of compilations of a repair, of shards and of parts of shards.
    #[arg(long, value_name = "COUNT", requires = "repair",
          default_value_t = shardwright_verify::COMPILATIONS)]
    pub compilations: usize,
    /// Set a bound (may be repeated): `row-p95`, `row-worst`, `cosine`, `nll`, `greedy` or `kl`.
    /// Default: by the formats, devices and measured loss of the plan, as reported.
    ///
    /// `row-p95` and `row-worst` are relative errors, of 95 % of rows and of the worst row.
    /// `cosine` must be reached by 95 % of rows. `nll` is a relative difference. `greedy` is the
    /// least share of equal tokens. `kl` is in nats per token.
    #[arg(long = "threshold", value_name = "NAME=VALUE", value_parser = name_and_bound)]
    pub thresholds: Vec<(String, f64)>,
    /// Run as much on a vendor's simulator as on other devices, except for amounts that other
    /// options set. This may need hours.
    #[arg(long)]
    pub all: bool,
    /// Largest number of rows of each prompt that are run through each shard alone. Default: 256,
    /// on a simulator 32.
    #[arg(long, value_name = "ROWS")]
    pub rows: Option<usize>,
    /// Number of positions of each prompt at which entry points of one row are run. Default: 8, on
    /// a simulator 2.
    #[arg(long, value_name = "COUNT")]
    pub steps: Option<usize>,
    /// Largest number of greedily chosen tokens for each prompt. Default: 64, on a simulator 8.
    #[arg(long, value_name = "TOKENS")]
    pub greedy: Option<usize>,
    /// Largest number of evaluation rows whose likelihood is compared. Default: all, on a simulator
    /// 4 rows.
    ///
    /// If there are more rows than this, each one is cut to `--rows` tokens. Otherwise all rows are
    /// used whole.
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
    /// Bundle for which to report how it would run on this machine.
    pub bundle: Option<PathBuf>,
    /// Also write a description of this machine to this file, for `explain --device` on another
    /// machine.
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
    /// List shims with their devices and limits, and every skipped library with the reason.
    List(ShimPlaces),
    /// Write the SHA-256 of a shim's library into its manifest. A library that is changed or
    /// stripped afterwards is refused.
    Hash {
        /// Manifest next to the library, `NAME.shim.json`.
        manifest: PathBuf,
    },
    /// Create a shim in a new folder, which builds, is listed and runs without changes. The folder
    /// does not need this source tree.
    #[command(after_help = SHIM_NEW_EXAMPLE)]
    New {
        /// Name of the shim, for its users: a letter of a-z, then letters, digits and hyphens.
        name: String,
        /// Language of the shim.
        #[arg(long, value_enum, default_value_t = Language::C)]
        language: Language,
        /// Directory for the new folder.
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
    /// C: whole models on the CPU, written against the plain header.
    C,
    /// Rust: the embed and head components, written with the safe layer.
    Rust,
}

const TRUST_SIGN_EXAMPLES: &str = "Example:
  shardwright trust key my.key
  shardwright trust sign demo.bundle --key my.key --name demo --release 3
  shardwright run demo.bundle --trust KEY --expect demo --prompt \"Once upon\"

`--signatures require` also needs signed shims: use `shim hash` and `trust sign` on their manifests.";

const TRUST_REVOKE_EXAMPLES: &str = "Example:
  shardwright trust revoke --key my.key --list acme --sequence 2 --least bundle:demo:3 -o acme.list
  shardwright run demo.bundle --trust KEY --expect demo --revocations acme.list --prompt And";

#[derive(Subcommand, Debug)]
pub enum TrustCommand {
    /// Make a random signing key in a file that only you can read, and show its public half.
    Key {
        /// File to write, which must not exist.
        file: PathBuf,
    },
    /// Sign a bundle, a shim's manifest, a planner's component or a SoC profile.
    #[command(after_help = TRUST_SIGN_EXAMPLES)]
    Sign {
        /// File to sign: a bundle (directory or packed), a shim's `.shim.json`, a planner's `.wasm`
        /// or a profile's `.json`.
        path: PathBuf,
        /// Signing key file, made by `trust key`.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// Name under which releases of a bundle are numbered. Default: the model's name in lower
        /// case.
        ///
        /// Shims, planners and profiles have names of their own.
        #[arg(long)]
        name: Option<String>,
        /// Number of the release. Increase it with every release, because a list of revocations may
        /// require a minimum.
        #[arg(long, value_name = "NUMBER", default_value_t = 1)]
        release: u64,
    },
    /// Write a signed list of revoked keys and releases. A later list replaces the earlier one, so
    /// it must repeat its entries.
    #[command(after_help = TRUST_REVOKE_EXAMPLES, override_usage = TRUST_REVOKE_USAGE)]
    Revoke {
        /// Signing key file, made by `trust key`.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// Name of the list. Lists with the same name are numbered together.
        #[arg(long, value_name = "NAME")]
        list: String,
        /// Number of the list, higher than the number of the previous list.
        #[arg(long, value_name = "NUMBER")]
        sequence: u64,
        /// Public key to revoke, with all its signatures (may be repeated).
        #[arg(long = "revoke", value_name = "KEY", value_parser = public_key)]
        keys: Vec<PublicKey>,
        /// Lowest release of a bundle, shim, planner or profile that may still be used, such as
        /// `bundle:demo:4` (may be repeated).
        #[arg(long, value_name = "KIND:NAME:RELEASE", value_parser = least_release)]
        least: Vec<LeastRelease>,
        /// File for the list.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Show who signed a file, under which name and release, and whether the signature is valid.
    /// The exit code is 1 if it is not.
    Show {
        /// Bundle, file with its signature next to it, or list of revocations.
        path: PathBuf,
    },
}

fn public_key(text: &str) -> Result<PublicKey, String> {
    text.parse::<PublicKey>().map_err(|error| error.to_string())
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
    /// Create a planner in a new folder, which builds and plans without changes. The folder does
    /// not need this source tree.
    #[command(after_help = PLANNER_NEW_EXAMPLE)]
    New {
        /// Name of the package: a letter of a-z, then letters, digits and hyphens.
        name: String,
        /// Directory for the new folder.
        #[arg(long, value_name = "DIR", default_value = ".")]
        within: PathBuf,
    },
    /// Compile a planner from a Rust package into a component. This requires cargo and the target
    /// `wasm32-unknown-unknown`.
    Build {
        /// Folder of the package, or its manifest.
        package: PathBuf,
        /// File for the component.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
        /// Directory for cargo's build output. Default: `target` in the package's folder.
        #[arg(long, value_name = "DIR")]
        target_dir: Option<PathBuf>,
    },
    /// Combine a policy with the planner that it calls into one component. A policy is a component
    /// that imports the interface of planners.
    Compose {
        /// Component of the policy.
        policy: PathBuf,
        /// Planner that the policy calls. Default: the built-in planner, whose options a policy can
        /// set.
        #[arg(long, value_name = "FILE")]
        solver: Option<PathBuf>,
        /// File for the component.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Check a planner against the numbered rules for planners, within the bounds of the sandbox.
    /// The exit code is 1 if it breaks a rule.
    ///
    /// The requests are plain, large, incomplete, contradictory and absurd.
    Check {
        /// Planner to check: a `.wasm` file, a pack, a name from a planner directory, or `generic`
        /// for the built-in planner.
        planner: String,
        /// Set an option of the planner in every request (may be repeated).
        #[arg(long = "planner-option", value_name = "NAME=VALUE", value_parser = name_and_text)]
        planner_options: Vec<(String, String)>,
        #[command(flatten)]
        planners: PlannerPlaces,
        #[command(flatten)]
        trust: TrustArguments,
    },
    /// Run a planner on a recorded request, and show the plan, the log, fuel, memory and time.
    Replay {
        /// Request file, written by `plan --write-request`.
        request: PathBuf,
        /// Planner to run: a `.wasm` file, a pack, a name from a planner directory, or `generic`
        /// for the built-in planner. Default: the planner that the request records.
        #[arg(long, value_name = "FILE|NAME")]
        planner: Option<String>,
        #[command(flatten)]
        planners: PlannerPlaces,
        #[command(flatten)]
        trust: TrustArguments,
    },
    /// Make a signed planner pack, which a host without a compiler can run.
    Pack {
        /// Component of the planner.
        planner: PathBuf,
        /// Signing key file, made by `trust key`.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// File for the pack.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
}

/// Parses a number of tokens. Rejects -1, which means no limit in llama.cpp.
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
    /// Largest number of tokens of thoughts, or `None` for no limit.
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
    match text {
        "nearest" => Ok(WeightRounding::Nearest),
        "compensated" => Ok(WeightRounding::Compensated),
        _ => Err("expected `nearest` or `compensated`".to_owned()),
    }
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

/// Largest accepted quality goal, in thousandths of a nat per token. An equal chance for each of
/// 262,144 tokens loses at most 12,477.
const QUALITY_MAX: u32 = 1_000_000;

/// Largest accepted number of minutes: a year.
const MINUTES_MAX: f64 = 366.0 * 24.0 * 60.0;

fn minutes(text: &str) -> Result<f64, String> {
    let minutes = text.parse().ok().filter(|minutes: &f64| (0.0..=MINUTES_MAX).contains(minutes));
    minutes.ok_or_else(|| format!("expected 0 to {MINUTES_MAX} minutes, such as 10 or 0.5"))
}

fn quality(text: &str) -> Result<u32, String> {
    let named = QUALITIES.iter().find(|(name, _)| *name == text).map(|(_, millinats)| *millinats);
    let number = || text.parse().ok().filter(|millinats: &u32| *millinats <= QUALITY_MAX);
    named.or_else(number).ok_or_else(|| {
        format!("expected near-lossless, good, small, or whole thousandths of a nat from 0 to {QUALITY_MAX}")
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
        false => Err("expected 1 byte to 9 PB, such as 3GB, 1.5GiB, 900MB or a number of bytes".to_owned()),
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
        false => Err("expected 1us to 24 hours with the unit us, ms or s, such as 500ms or 2s".to_owned()),
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
    value.ok_or_else(|| "expected tokens per second, such as 20, from one a day to 1000000".to_owned())
}

/// Parses the folder of an adapter and its scale. A folder of that whole name takes precedence.
fn lora(text: &str) -> Result<Lora, String> {
    let whole = Lora { folder: text.into(), scale: LoraScale::default() };
    match text.rsplit_once('=') {
        Some((folder, scale)) if !whole.folder.exists() && !folder.is_empty() => {
            let scale = scale.parse().map_err(|error: shardwright::Error| error.to_string())?;
            Ok(Lora { folder: folder.into(), scale })
        }
        _ if text.is_empty() => Err("expected the folder of an adapter".to_owned()),
        _ => Ok(whole),
    }
}

/// Parses a choice of tools. Every other word is the name of a tool.
fn tool_choice(text: &str) -> Result<ToolChoice, String> {
    Ok(match text {
        "" => return Err("expected auto, none, required or the name of a tool".to_owned()),
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::None,
        "required" => ToolChoice::Required,
        name => ToolChoice::Named(name.to_owned()),
    })
}

fn name_and_text(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

/// A tower to plan and compile with the text of a model.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TowerArgument {
    /// Encoder for pictures.
    Picture,
    /// Encoder for sounds.
    Clip,
    /// No tower, only the text.
    None,
}

/// A gathered table: its rows are read by token id.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    Embedding,
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
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    /// Finds the commands and their subcommands.
    fn paths(command: &clap::Command, above: &[&str], found: &mut Vec<Vec<String>>) {
        let path = [above, &[command.get_name()]].concat();
        found.push(path.iter().map(|name| (*name).to_owned()).collect());
        command.get_subcommands().for_each(|below| paths(below, &path, found));
    }

    #[test]
    fn every_command_has_a_version_and_helps_of_eighty_columns() {
        use clap::error::ErrorKind::{DisplayHelp, DisplayVersion};
        const COLUMNS: usize = 80;
        let mut commands = Vec::new();
        paths(&Arguments::command(), &[], &mut commands);
        assert!(commands.len() > 30, "{commands:?}");
        for command in &commands {
            for (option, kind) in
                [("-h", DisplayHelp), ("--help", DisplayHelp), ("--version", DisplayVersion)]
            {
                let words = command.iter().map(String::as_str).chain([option]);
                let shown = Arguments::command().term_width(COLUMNS).try_get_matches_from(words).unwrap_err();
                assert_eq!(shown.kind(), kind, "{command:?} {option}");
                let text = shown.to_string();
                match kind {
                    DisplayHelp => assert!(text.contains("Usage: shardwright"), "{command:?}: {text}"),
                    _ => assert!(text.trim_end().ends_with(env!("CARGO_PKG_VERSION")), "{command:?}: {text}"),
                }
                let wide = text.lines().find(|line| line.chars().count() > COLUMNS);
                assert_eq!(wide, None, "{command:?} {option}");
            }
        }
    }

    #[test]
    fn parts_of_a_prompt_keep_the_order_of_the_command_line() {
        let line = "run x --audio a --prompt b --image c -p d --image=e --tools t --tool-choice now";
        let read = Arguments::read(["shardwright"].into_iter().chain(line.split(' '))).unwrap();
        let Command::Run(run) = read.command else { panic!("another command") };
        let expected = [
            PromptPart::Sound("a".into()),
            PromptPart::Text("b".to_owned()),
            PromptPart::Picture("c".into()),
            PromptPart::Text("d".to_owned()),
            PromptPart::Picture("e".into()),
        ];
        assert_eq!(run.parts, expected);
        assert_eq!(run.tool_choice, Some(ToolChoice::Named("now".to_owned())));
    }

    /// An option that needs another one, belongs to another command, or has the value of another
    /// option.
    #[test]
    fn wrong_options_are_refused_and_the_right_one_is_named() {
        for (line, word) in [
            ("plan x --format w8-per-channel/a16/a8", "--formats w8-per-channel/a16/a8"),
            ("plan x --formats json", "--format json"),
            ("plan x --format yaml", "text or json"),
            ("bench x --probe-mebibytes 3", "--probe"),
            ("run x --raw --system y", "--raw"),
            ("run x --thinking much", "a number of tokens"),
            ("run x --image y", "--prompt"),
            ("run x --tool-choice required", "--tools"),
            ("run x --raw --tools y", "--raw"),
            ("run x --prompt y --soft-tokens 70", "--image"),
            ("run x --threads 0", "--threads"),
            ("run x --threads -1", "-1 is not in 1..=256"),
            ("shim list --planners x", "--planners"),
            ("shim list --trust x", "--trust"),
            ("inspect x --planners y", "--planners"),
            ("planner check generic --shims x", "--shims"),
        ] {
            let words = std::iter::once("shardwright").chain(line.split(' '));
            let error = Arguments::read(words).unwrap_err();
            assert!(error.use_stderr() && error.to_string().contains(word), "{line}: {error}");
        }
    }

    #[test]
    fn wrong_goals_are_answered_with_the_accepted_values() {
        let size = (["-1", "-1GB", "0", "1e16", "--strict"], "1 byte to 9 PB");
        let whole = "is not in 1..=4294967295";
        for (option, (wrong, accepted)) in [
            ("--size", size),
            ("--memory", size),
            ("--device-memory", size),
            ("--quality", (["-1", "0.5", "best", "1000001", "1000000000000"], "0 to 1000000")),
            ("--tokens-per-second", (["-1", "0", "fast", "1e7", "1000000000000"], "one a day to 1000000")),
            ("--first-token", (["-1", "-1s", "0", "500", "1000000000000s"], "1us to 24 hours")),
            ("--context", (["-1", "0", "-4096", "4294967296", "1000000000000"], whole)),
        ] {
            for value in wrong {
                let error = Arguments::read(["shardwright", "plan", "x", option, value]).unwrap_err();
                let text = error.to_string();
                let begin = format!("error: invalid value '{value}' for '{option} <");
                assert!(text.starts_with(&begin) && text.contains(accepted), "{option} {value}: {text}");
            }
        }
    }

    #[test]
    fn a_negative_number_is_never_an_unknown_option() {
        let root = Arguments::command();
        let (mut commands, mut options) = (Vec::new(), 0);
        paths(&root, &[], &mut commands);
        for path in &commands {
            let mut command = &root;
            for name in &path[1..] {
                command = command.find_subcommand(name).expect("a command");
            }
            let valued = command.get_arguments().filter(|option| option.get_action().takes_values());
            for option in valued.filter_map(clap::Arg::get_long) {
                let words = path.iter().cloned().chain([format!("--{option}"), "-1".to_owned()]);
                let refused = Arguments::read(words).err().map(|error| error.kind());
                let unknown = Some(clap::error::ErrorKind::UnknownArgument);
                assert_ne!(refused, unknown, "{path:?} --{option}");
                options += 1;
            }
        }
        assert!(options > 100, "{options} options");
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
        for chips in ["a,b,c", "a --soc b --soc c"] {
            assert_eq!(plan(&format!("shardwright plan x --soc {chips}")).target.socs(), ["a", "b", "c"]);
        }
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
        assert_eq!((minutes("0"), minutes("0.5")), (Ok(0.0), Ok(0.5)));
        for wrong in ["soon", "-1", "NaN"] {
            assert!(minutes(wrong).unwrap_err().contains("minutes"), "{wrong}");
        }
        assert!(preference("beauty").is_err_and(|said| said.contains("expected `speed` or `quality`")));
        assert!(prompt_length("20:0").is_err_and(|said| said.contains("how often each occurs")));
        assert!(draft("").is_err_and(|said| said.contains("`lookup`")));
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
