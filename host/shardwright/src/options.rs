use std::path::{Path, PathBuf};

use shardwright_build::{
    ChainPlan, CompileReport, CompiledVariant, DraftEstimate, Executor, FormatChoice, Jobs, PlanMeasuring,
    PlanOptions, Planned, Preference, PromptLength, TableFormats, WeightRounding,
};
use shardwright_shims::Watch;
use shardwright_vocabulary::Pass;

use crate::run_options::{RunOptions, run_option_setters};
use crate::{Model, Notice, Result, SensitivityReport};

/// How to open a checkpoint. The default plans for the generic profile and runs on this machine's
/// CPU.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    pub(crate) run: RunOptions,
    /// What is asked of the plan; what `run` says is filled in when it is made.
    plan: PlanOptions,
    jobs: Jobs,
}

impl OpenOptions {
    /// The defaults.
    pub fn new() -> Self {
        OpenOptions::default()
    }

    run_option_setters!();

    /// The chip to plan for: a profile's name or alias. Default: `generic`.
    #[must_use]
    pub fn soc(mut self, soc: impl Into<String>) -> Self {
        self.plan.soc = Some(soc.into());
        self
    }

    /// The same for one of several chips: of `generic` nothing is simulated or emulated.
    #[must_use]
    pub fn for_chip(&self, soc: &str) -> Self {
        OpenOptions { plan: self.plan.for_chip(soc), ..self.clone() }
    }

    /// What runs the plan. Default: the device where its shim finds it, else an error that names
    /// the alternatives; without [`OpenOptions::soc`] the CPU.
    #[must_use]
    pub fn on(mut self, executor: Executor) -> Self {
        self.plan.on = Some(executor);
        self
    }

    /// Overrides or adds a limit of the chip; its provenance becomes *user*.
    #[must_use]
    pub fn limit(mut self, name: impl Into<String>, value: u64) -> Self {
        self.plan.limits.push((name.into(), value));
        self
    }

    /// A flag for the chip's compiler, in addition to those of its profile; it replaces the
    /// profile's value of the same flag, with a notice. A flag that the shim does not know, or a
    /// value it does not support, is an error. A flag that takes effect when shards are loaded,
    /// such as `power`, is a part of the plan too: a bundle is loaded with it unless a session
    /// says otherwise, and opening reports its outcome in a notice.
    #[must_use]
    pub fn flag(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.plan.flags.push((name.into(), value.into()));
        self
    }

    /// Leaves out a flag of the profile, with a notice.
    #[must_use]
    pub fn without_flag(mut self, name: impl Into<String>) -> Self {
        self.plan.flags_left_out.push(name.into());
        self
    }

    /// The planner: a path to a `.wasm` component or pack, or a name from a planner directory.
    /// Default: the built-in one.
    #[must_use]
    pub fn planner(mut self, planner: impl Into<String>) -> Self {
        self.plan.planner = Some(planner.into());
        self
    }

    /// A setting for the planner, as its description lists them.
    #[must_use]
    pub fn planner_option(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.plan.planner_options.push((name.into(), value.into()));
        self
    }

    /// Context capacity in tokens. States grow with it. Default: what the model was made for, at
    /// most 4096.
    #[must_use]
    pub fn context(mut self, tokens: u32) -> Self {
        self.plan.context = Some(tokens);
        self
    }

    /// Offers these formats to the planner, best first, instead of those of the chip's profile and
    /// the stored ones. May be called several times. Formats that a shim does not support are still
    /// refused.
    #[must_use]
    pub fn formats(mut self, choice: FormatChoice) -> Self {
        self.plan.formats.push(choice);
        self
    }

    /// The towers that are planned and compiled with the text, by their passes; none for the text
    /// alone. Default: all that the checkpoint has. Where a checkpoint is opened, towers are opened
    /// when a picture or sound needs them, whatever is said here.
    #[must_use]
    pub fn towers(mut self, passes: impl IntoIterator<Item = Pass>) -> Self {
        self.plan.towers.passes = Some(passes.into_iter().filter(|pass| *pass != Pass::Step).collect());
        self
    }

    /// Offers these formats for the towers for pictures and sounds, best first, such as
    /// `w8-per-channel/a8-dynamic/f32`. May be called several times. Default: on a CPU as stored,
    /// for a chip those of its profile that keep eight bits of every weight.
    #[must_use]
    pub fn tower_formats(mut self, choice: FormatChoice) -> Self {
        self.plan.towers.formats.push(choice);
        self
    }

    /// Soft tokens of pictures that entry points of the tower are made for. A chip, whose entry
    /// points compute all their rows, takes the smallest that holds a picture. Default: as many as
    /// the checkpoint's processor makes.
    #[must_use]
    pub fn picture_sizes(mut self, soft_tokens: impl IntoIterator<Item = u32>) -> Self {
        self.plan.towers.picture_tokens = soft_tokens.into_iter().collect();
        self
    }

    /// Seconds of clips that entry points of the tower are made for, as
    /// [`picture_sizes`](Self::picture_sizes). Default: the longest that the checkpoint's processor
    /// takes.
    #[must_use]
    pub fn clip_lengths(mut self, seconds: impl IntoIterator<Item = u32>) -> Self {
        self.plan.towers.clip_seconds = seconds.into_iter().collect();
        self
    }

    /// Formats of the gathered tables. Default: as stored, or narrower where [`Self::size`] asks
    /// for it.
    #[must_use]
    pub fn tables(mut self, formats: TableFormats) -> Self {
        self.plan.tables = formats;
        self
    }

    /// The most quality a plan may lose, as KL divergence in thousandths of a nat per token. The
    /// loss of each layer and role in each format is measured once per checkpoint, which takes
    /// minutes. Default: no bound, nothing is measured.
    #[must_use]
    pub fn quality(mut self, millinats: u32) -> Self {
        self.plan.quality_micronats = Some(u64::from(millinats) * 1000);
        self
    }

    /// What a plan is best in, of those that keep goals of bytes and times: the fastest, or the one
    /// that loses least by what is expected of its formats. Default: what the chip's profile says;
    /// on a CPU the least loss.
    #[must_use]
    pub fn prefer(mut self, preference: Preference) -> Self {
        self.plan.prefers = Some(preference);
        self
    }

    /// The most bytes that artefacts and KV cache of all shards may take together. Gathered tables
    /// are mapped and not counted. Default: no bound but the chip's.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.plan.memory_bytes = Some(bytes);
        self
    }

    /// The most bytes that artefacts and gathered tables may take together: what an app carries.
    /// What the plan falls back to is within it, or left out where it does not fit beside. Default:
    /// no bound but the chip's.
    #[must_use]
    pub fn size(mut self, bytes: u64) -> Self {
        self.plan.size_bytes = Some(bytes);
        self
    }

    /// The most time that a generated token may take, by the times that are known of the chip.
    /// Default: no bound.
    #[must_use]
    pub fn token_time(mut self, time: std::time::Duration) -> Self {
        self.plan.token_microseconds = Some(micros(time));
        self
    }

    /// The most time from a prompt to the first token of its answer, by the times that are known
    /// of the chip. Default: no bound.
    #[must_use]
    pub fn first_token(mut self, time: std::time::Duration) -> Self {
        self.plan.first_token_microseconds = Some(micros(time));
        self
    }

    /// How long prompts usually are, each length with the number of prompts that have it. For a
    /// chip, whose entry points compute all their rows, prefills are chosen that suit them; the
    /// time to the first token is that of their mean. Default: the largest prefill, and a prompt of
    /// 512 tokens, or of the context if that is less.
    #[must_use]
    pub fn prompts(mut self, lengths: impl IntoIterator<Item = PromptLength>) -> Self {
        self.plan.prompts = lengths.into_iter().collect();
        self
    }

    /// The same of prompts that all have so many tokens.
    #[must_use]
    pub fn prompt_tokens(self, tokens: u32) -> Self {
        self.prompts([PromptLength { tokens, count: 1 }])
    }

    /// What may propose tokens that a plan verifies several of in a step, with how many of them are
    /// right; none for nothing. Default: a lookup in prompt and reply, with a modest guess.
    #[must_use]
    pub fn drafts(mut self, drafts: impl IntoIterator<Item = DraftEstimate>) -> Self {
        self.plan.drafts = Some(drafts.into_iter().collect());
        self
    }

    /// A smaller model with the same vocabulary that may propose tokens beside a lookup, as a
    /// checkpoint or a bundle (may be repeated). The plan counts on it if it was measured before,
    /// as `shardwright tune --draft` does, and says so if not. Sessions are given it with
    /// [`Session::set_speculation`](crate::Session::set_speculation).
    #[must_use]
    pub fn draft_model(mut self, path: impl Into<PathBuf>) -> Self {
        self.plan.draft_models.push(path.into());
        self
    }

    /// Tokens of a usual answer: their share of the time to the first one counts beside the time
    /// of a token. Default: the time of a token alone counts.
    #[must_use]
    pub fn answer_tokens(mut self, tokens: u32) -> Self {
        self.plan.answer_tokens = Some(tokens);
        self
    }

    /// Whether what a whole plan loses is measured once it is made. Default: it is not.
    #[must_use]
    pub fn measuring(mut self, measuring: PlanMeasuring) -> Self {
        self.plan.measuring = measuring;
        self
    }

    /// Writes the request to the planner to a file before the planner runs, and the requests of
    /// towers next to it. Authors of planners need it most when a planner refuses.
    #[must_use]
    pub fn request_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.plan.request_file = Some(path.into());
        self
    }

    /// How weights become integers. Default: [`WeightRounding::Usual`].
    #[must_use]
    pub fn rounding(mut self, rounding: WeightRounding) -> Self {
        self.plan.rounding = rounding;
        self
    }

    /// A text of conversations like the application's, one a line, turns separated by tabs, user
    /// first. How often prompt lookup is right in its replies decides whether the plan verifies
    /// proposed tokens, and in how many rows. Default: a modest guess.
    #[must_use]
    pub fn usual_text(mut self, path: impl Into<PathBuf>) -> Self {
        self.plan.usual_text = Some(path.into());
        self
    }

    /// A text file to calibrate on, one conversation turn a line, where formats need ranges.
    /// Default: texts that come with the program. It goes through the checkpoint's chat template.
    #[must_use]
    pub fn calibration_text(mut self, path: impl Into<PathBuf>) -> Self {
        self.plan.calibration_text = Some(path.into());
        self
    }

    /// How many chips [`OpenOptions::compile_for`] compiles for at once: the same bundle for any
    /// number. Default: 1.
    #[must_use]
    pub fn jobs(mut self, most: usize) -> Self {
        self.jobs.most = most;
        self
    }

    /// Bytes that those together are expected to hold at most; one alone always runs. Default:
    /// three quarters of what the machine has available, where it says so.
    #[must_use]
    pub fn jobs_memory(mut self, bytes: u64) -> Self {
        self.jobs.memory_bytes = Some(bytes);
        self
    }

    /// Whether layer outputs can be read after a step, for verification. Costs a copy per layer.
    /// Default: off.
    #[must_use]
    pub fn taps(mut self, taps: bool) -> Self {
        self.plan.taps = taps;
        self
    }

    /// Changes the graph of the checkpoint before anything else sees it, for tests of verification.
    #[must_use]
    pub fn altered(mut self, alter: fn(&mut shardwright_graph::Graph)) -> Self {
        self.plan.alter = Some(alter);
        self
    }

    /// Plans, compiles and loads a checkpoint directory as Hugging Face publishes it.
    pub fn open(&self, checkpoint: impl AsRef<Path>) -> Result<Model> {
        self.open_watched(checkpoint, &mut ())
    }

    /// [`OpenOptions::open`] with progress and cancellation.
    pub fn open_watched(&self, checkpoint: impl AsRef<Path>, watch: &mut dyn Watch) -> Result<Model> {
        crate::opening::open(checkpoint.as_ref(), &self.plan_options(), self.run.tokenizer_start(), watch)
    }

    /// Plans, compiles and writes a bundle into `directory`, which
    /// [`BundleOptions`](crate::BundleOptions) opens. Calling it again after an interruption
    /// resumes the work.
    pub fn compile(
        &self,
        checkpoint: impl AsRef<Path>,
        directory: impl AsRef<Path>,
        watch: &mut dyn Watch,
    ) -> Result<CompileReport> {
        let into = directory.as_ref();
        let report = shardwright_build::compile(checkpoint.as_ref(), into, &self.plan_options(), watch)?;
        self.with_goldens(report, into)
    }

    /// Adds what the model says on the CPU to a bundle for a chip, by which machines test
    /// themselves.
    fn with_goldens(&self, report: CompileReport, directory: &Path) -> Result<CompileReport> {
        let Some(bundle) = crate::goldens::add(directory, &self.bundle_options())? else { return Ok(report) };
        let goldens = bundle.manifest().goldens.map_or(0, |file| file.bytes);
        let with = |variant: CompiledVariant| CompiledVariant { bytes: variant.bytes + goldens, ..variant };
        Ok(CompileReport {
            bundle: bundle.sha256().to_string(),
            bytes: bundle.total_bytes(),
            variants: report.variants.into_iter().map(with).collect(),
            ..report
        })
    }

    /// The same with a variant for each of several chips. A chip that the checkpoint cannot be
    /// compiled for loses no other; the report has the reason. See [`OpenOptions::jobs`].
    pub fn compile_for(
        &self,
        socs: &[String],
        checkpoint: impl AsRef<Path>,
        directory: impl AsRef<Path>,
        watch: &mut dyn Watch,
    ) -> Result<CompileReport> {
        let variants: Vec<PlanOptions> = socs.iter().map(|soc| self.for_chip(soc).plan_options()).collect();
        let into = directory.as_ref();
        let report =
            shardwright_build::compile_variants(checkpoint.as_ref(), into, &variants, self.jobs, watch)?;
        self.with_goldens(report, into)
    }

    /// Plans without compiling. Where the weights are elsewhere, the headers of their files or
    /// `config.json` alone do.
    pub fn plan(&self, checkpoint: impl AsRef<Path>) -> Result<Planned> {
        self.plan_watched(checkpoint, &mut ())
    }

    /// [`OpenOptions::plan`] with progress and cancellation: a vendor's compiler may be asked for
    /// times.
    pub fn plan_watched(&self, checkpoint: impl AsRef<Path>, watch: &mut dyn Watch) -> Result<Planned> {
        shardwright_build::plan_checkpoint(checkpoint.as_ref(), &self.plan_options(), watch)
    }

    /// The same, also with the plans of all chains in the order of a bundle: of the text and of
    /// each tower the first one, and those that it falls back to.
    pub fn plan_all_chains(
        &self,
        checkpoint: impl AsRef<Path>,
        watch: &mut dyn Watch,
    ) -> Result<(Planned, Vec<ChainPlan>)> {
        shardwright_build::plan_all_chains(checkpoint.as_ref(), &self.plan_options(), watch)
    }

    /// Measures what formats lose on a checkpoint, for as long as `time` allows (`None`: until all
    /// is measured), and keeps it in the cache for later plans with the same text and rounding; an
    /// interrupted call is resumed by the next. Returns all that is known by then, and notices.
    ///
    /// # Errors
    /// A checkpoint that cannot be opened or is without weights, formats that lose nothing, errors
    /// of the CPU shim, and cancellation.
    pub fn measure_sensitivities(
        &self,
        checkpoint: impl AsRef<Path>,
        time: Option<std::time::Duration>,
        watch: &mut dyn Watch,
    ) -> Result<(SensitivityReport, Vec<Notice>)> {
        shardwright_build::measure_sensitivities(checkpoint.as_ref(), &self.plan_options(), time, watch)
    }

    /// Takes artefacts of the same work orders from this bundle instead of compiling them, made by
    /// the same version of a shim for the same device.
    #[must_use]
    pub fn reuse(mut self, bundle: impl Into<PathBuf>) -> Self {
        self.plan.reuse = Some(bundle.into());
        self
    }

    /// The options as the build crate takes them. For tools that accompany this crate.
    pub fn plan_options(&self) -> PlanOptions {
        self.run.fill(self.plan.clone())
    }

    /// Replaces everything that is asked of the plan. For tools that accompany this crate.
    #[must_use]
    pub fn with_plan_options(mut self, plan: PlanOptions) -> Self {
        self.plan = plan;
        self
    }

    /// What opening a bundle is asked in the same way.
    pub fn bundle_options(&self) -> crate::BundleOptions {
        crate::BundleOptions::of(self.run.clone())
    }
}

fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
