use std::path::{Path, PathBuf};

use shardwright_build::{
    DraftEstimate, Executor, FormatChoice, PlanMeasuring, PlanOptions, Planned, Preference, PromptLength,
    TableFormats, WeightRounding,
};
use shardwright_checkpoints::{ChainPlan, CompileReport, CompiledVariant, Jobs};
use shardwright_vocabulary::{Lora, LoraScale, Pass, Watch};

use crate::ignored_fields::reading_texts;
use crate::run_options::{RunOptions, run_option_setters};
use crate::tools::OpenTools;
use crate::{Model, Notice, Result, SensitivityReport};

/// Options to open a checkpoint. The default plans for the generic profile and runs on this
/// machine's CPU.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    pub(crate) run: RunOptions,
    /// Options of the plan. Fields that `run` specifies are filled in by `plan_options`.
    pub(crate) plan: PlanOptions,
    jobs: Jobs,
}

impl OpenOptions {
    /// Returns the default options.
    pub fn new() -> Self {
        OpenOptions::default()
    }

    run_option_setters!();

    /// Sets the chip to plan for: a profile's name or alias. Default: `generic`.
    #[must_use]
    pub fn soc(mut self, soc: impl Into<String>) -> Self {
        self.plan.soc = Some(soc.into());
        self
    }

    /// Returns these options for one of several chips. `generic` is never simulated or emulated.
    #[must_use]
    pub fn for_chip(&self, soc: &str) -> Self {
        OpenOptions { plan: self.plan.for_chip(soc), ..self.clone() }
    }

    /// Sets what runs the plan. Default: the device if its shim finds it, otherwise an error that
    /// lists the alternatives. Without [`OpenOptions::soc`] the default is the CPU.
    #[must_use]
    pub fn on(mut self, executor: Executor) -> Self {
        self.plan.recorded.on = Some(executor);
        self
    }

    /// Overrides or adds a limit of the chip. Its provenance becomes *user*.
    #[must_use]
    pub fn limit(mut self, name: impl Into<String>, value: u64) -> Self {
        self.plan.recorded.limits.push((name.into(), value));
        self
    }

    /// Sets a flag for the chip's compiler, in addition to the flags of its profile. It replaces
    /// the profile's value of the same flag, with a notice. An unknown flag and an unsupported
    /// value are errors.
    ///
    /// A flag that takes effect when shards are loaded, such as `power`, is a part of the plan too.
    /// A bundle is loaded with it unless a session overrides it, and opening reports its outcome in
    /// a notice.
    #[must_use]
    pub fn flag(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.plan.recorded.flags.push((name.into(), value.into()));
        self
    }

    /// Removes a flag of the profile, with a notice.
    #[must_use]
    pub fn without_flag(mut self, name: impl Into<String>) -> Self {
        self.plan.recorded.flags_left_out.push(name.into());
        self
    }

    /// Sets the planner: a path to a `.wasm` component or pack, a name from a planner directory, or
    /// `generic` for the built-in one. Default: the planner of the chip's profile, or the built-in
    /// one.
    #[must_use]
    pub fn planner(mut self, planner: impl Into<String>) -> Self {
        self.plan.planner = Some(planner.into());
        self
    }

    /// Sets an option of the planner. A planner's description lists its options.
    #[must_use]
    pub fn planner_option(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.plan.recorded.planner_options.push((name.into(), value.into()));
        self
    }

    /// Sets the context capacity in tokens. States grow with it. Default: the capacity that the
    /// model was trained for, at most 4096.
    #[must_use]
    pub fn context(mut self, tokens: u32) -> Self {
        self.plan.recorded.context = Some(tokens);
        self
    }

    /// Offers these formats to the planner, best first, instead of the formats of the chip's
    /// profile and the stored ones. May be called several times. Formats that a shim does not
    /// support are still refused.
    #[must_use]
    pub fn formats(mut self, choice: FormatChoice) -> Self {
        self.plan.formats.push(choice);
        self
    }

    /// Sets the towers to plan and compile with the text, by their passes. An empty list selects
    /// only the text. Default: all towers of the checkpoint. When a checkpoint is opened, this
    /// setting has no effect: towers are opened when a picture or sound needs them.
    #[must_use]
    pub fn towers(mut self, passes: impl IntoIterator<Item = Pass>) -> Self {
        let passes = passes.into_iter().filter(|pass| *pass != Pass::Step);
        self.plan.recorded.towers.passes = Some(passes.collect());
        self
    }

    /// Offers these formats for the towers for pictures and sounds, best first, such as
    /// `w8-per-channel/a8-dynamic/f32`. May be called several times. Default: on a CPU the stored
    /// formats, for a chip the formats of its profile that keep eight bits of every weight. Opening
    /// a model without towers fails with this setting, as it does with sizes of towers.
    #[must_use]
    pub fn tower_formats(mut self, choice: FormatChoice) -> Self {
        self.plan.recorded.towers.formats.push(choice);
        self
    }

    /// Sets the picture sizes, in soft tokens, for which the tower gets entry points. A chip
    /// computes all rows of an entry point, so it runs the smallest one that fits a picture.
    /// Default: the size that the checkpoint's processor produces.
    #[must_use]
    pub fn picture_sizes(mut self, soft_tokens: impl IntoIterator<Item = u32>) -> Self {
        self.plan.recorded.towers.picture_tokens = soft_tokens.into_iter().collect();
        self
    }

    /// Sets the clip lengths, in seconds, for which the tower gets entry points, as in
    /// [`picture_sizes`](Self::picture_sizes). Default: the longest clip that the checkpoint's
    /// processor accepts.
    #[must_use]
    pub fn clip_lengths(mut self, seconds: impl IntoIterator<Item = u32>) -> Self {
        self.plan.recorded.towers.clip_seconds = seconds.into_iter().collect();
        self
    }

    /// Sets the formats of the gathered tables. Default: as stored, or narrower if [`Self::size`]
    /// requires it.
    #[must_use]
    pub fn tables(mut self, formats: TableFormats) -> Self {
        self.plan.recorded.tables = formats;
        self
    }

    /// Limits the quality loss of a plan, as KL divergence in thousandths of a nat per token. The
    /// loss of each layer and role in each format is measured once per checkpoint, which takes
    /// minutes. Default: no limit and no measurements.
    #[must_use]
    pub fn quality(mut self, millinats: u32) -> Self {
        self.plan.quality_micronats = Some(u64::from(millinats) * 1000);
        self
    }

    /// Sets the objective among plans that meet the goals for bytes and times: the fastest plan, or
    /// the one with the least expected loss of its formats. Default: the objective of the chip's
    /// profile, and on a CPU the least loss.
    #[must_use]
    pub fn prefer(mut self, preference: Preference) -> Self {
        self.plan.prefers = Some(preference);
        self
    }

    /// Limits the bytes of artefacts and KV cache of all shards together. Gathered tables are
    /// mapped and not counted. Default: only the chip's limits.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.plan.memory_bytes = Some(bytes);
        self
    }

    /// Limits the bytes of artefacts and gathered tables together, which is the size that an app
    /// ships. Fallbacks of the plan count too and are dropped if they do not fit. Default: only the
    /// chip's limits.
    #[must_use]
    pub fn size(mut self, bytes: u64) -> Self {
        self.plan.size_bytes = Some(bytes);
        self
    }

    /// Sets the memory of the device in bytes, to report whether the plan fits. Default: the
    /// smallest memory of devices with the chip, if its profile has it.
    #[must_use]
    pub fn device_memory(mut self, bytes: u64) -> Self {
        self.plan.recorded.device_memory = Some(bytes);
        self
    }

    /// Limits the time of a generated token. Plans whose likely time is within the limit are
    /// preferred. If only the fastest expected run is within the limit, the plan has a fallback
    /// notice, which is an error under [`strict`](Self::strict). Default: no limit.
    #[must_use]
    pub fn token_time(mut self, time: std::time::Duration) -> Self {
        self.plan.token_microseconds = Some(micros(time));
        self
    }

    /// Limits the time from a prompt to the first token of its answer, like
    /// [`token_time`](Self::token_time). Default: no limit.
    #[must_use]
    pub fn first_token(mut self, time: std::time::Duration) -> Self {
        self.plan.first_token_microseconds = Some(micros(time));
        self
    }

    /// Sets the usual lengths of prompts, each with the number of prompts of that length. On a
    /// chip, where entry points compute all their rows, prefill entry points are chosen to suit
    /// them. The time to the first token is the mean over these prompts. Default: the largest
    /// prefill, and one prompt of 512 tokens, or of the context if that is less.
    #[must_use]
    pub fn prompts(mut self, lengths: impl IntoIterator<Item = PromptLength>) -> Self {
        self.plan.prompts = lengths.into_iter().collect();
        self
    }

    /// Sets the length of all prompts, in tokens. See [`prompts`](Self::prompts).
    #[must_use]
    pub fn prompt_tokens(self, tokens: u32) -> Self {
        self.prompts([PromptLength { tokens, count: 1 }])
    }

    /// Sets the drafts that may propose tokens, with their acceptance rates. A plan may verify
    /// several proposed tokens in one step. An empty list disables this. Default: a lookup in
    /// prompt and reply, with a modest guess of its acceptance.
    #[must_use]
    pub fn drafts(mut self, drafts: impl IntoIterator<Item = DraftEstimate>) -> Self {
        self.plan.drafts = Some(drafts.into_iter().collect());
        self
    }

    /// Adds a smaller model with the same vocabulary that may propose tokens in addition to a
    /// lookup, as a checkpoint or a bundle. May be called several times. The plan uses it only if
    /// it was measured before, as with `shardwright tune --draft`, and reports if it was not. Add
    /// it to sessions with [`Session::set_speculation`](crate::Session::set_speculation).
    #[must_use]
    pub fn draft_model(mut self, path: impl Into<PathBuf>) -> Self {
        self.plan.draft_models.push(path.into());
        self
    }

    /// Sets the usual length of an answer in tokens. A plan is then rated by the time of a token
    /// plus the time to the first token divided by this length. Default: only the time of a token
    /// counts.
    #[must_use]
    pub fn answer_tokens(mut self, tokens: u32) -> Self {
        self.plan.answer_tokens = Some(tokens);
        self
    }

    /// Sets whether the loss of the whole plan is measured once the plan is made. Default: no.
    #[must_use]
    pub fn measuring(mut self, measuring: PlanMeasuring) -> Self {
        self.plan.measuring = measuring;
        self
    }

    /// Writes the request to the planner to a file before the planner runs, and the requests of
    /// towers next to it. This helps authors of planners to debug refusals.
    #[must_use]
    pub fn request_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.plan.request_file = Some(path.into());
        self
    }

    /// Sets how weights are rounded to integers. Default: [`WeightRounding::Usual`].
    #[must_use]
    pub fn rounding(mut self, rounding: WeightRounding) -> Self {
        self.plan.recorded.rounding = rounding;
        self
    }

    /// Sets a text of conversations like the application's, one per line, turns separated by tabs,
    /// user first. The accuracy of prompt lookup in its replies decides whether the plan verifies
    /// proposed tokens, and in how many rows. Default: a modest guess.
    #[must_use]
    pub fn usual_text(mut self, path: impl Into<PathBuf>) -> Self {
        self.plan.usual_text = Some(path.into());
        self
    }

    /// Adds a LoRA adapter in PEFT layout: a folder with `adapter_config.json` and
    /// `adapter_model.safetensors`. Its changes are merged into the weights of the checkpoint
    /// before these are quantised, as by PEFT's `merge_and_unload`. May be called several times:
    /// the changes add up in this order. `scale` multiplies the changes. 1 applies the adapter as
    /// it was trained.
    ///
    /// Opening the checkpoint fails if the adapter does not fit it or is of another kind, such as
    /// DoRA.
    #[must_use]
    pub fn lora(mut self, folder: impl Into<PathBuf>, scale: LoraScale) -> Self {
        self.plan.lora.push(Lora { folder: folder.into(), scale });
        self
    }

    /// Sets a text file for calibration, one conversation turn per line, used if formats need
    /// ranges. The text goes through the checkpoint's chat template. Default: built-in texts.
    #[must_use]
    pub fn calibration_text(mut self, path: impl Into<PathBuf>) -> Self {
        self.plan.calibration_text = Some(path.into());
        self
    }

    /// Sets how many chips [`OpenOptions::compile_for`] compiles for at once. The bundle does not
    /// depend on this number. Default: 1.
    #[must_use]
    pub fn jobs(mut self, most: usize) -> Self {
        self.jobs.most = most;
        self
    }

    /// Limits the expected memory of these concurrent jobs together, in bytes. A single job always
    /// runs. Default: three quarters of the machine's available memory, if the system reports it.
    #[must_use]
    pub fn jobs_memory(mut self, bytes: u64) -> Self {
        self.jobs.memory_bytes = Some(bytes);
        self
    }

    /// Sets whether layer outputs can be read after a step, for verification. Costs a copy per
    /// layer. Default: off.
    #[must_use]
    pub fn taps(mut self, taps: bool) -> Self {
        self.plan.taps = taps;
        self
    }

    /// Plans, compiles and loads a checkpoint directory as published on Hugging Face.
    pub fn open(&self, checkpoint: impl AsRef<Path>) -> Result<Model> {
        self.open_watched(checkpoint, &mut ())
    }

    /// Opens a checkpoint like [`OpenOptions::open`], with progress and cancellation.
    pub fn open_watched(&self, checkpoint: impl AsRef<Path>, watch: &mut dyn Watch) -> Result<Model> {
        crate::opening::open(checkpoint.as_ref(), &self.plan_options(), self.run.tokenizer_start(), watch)
    }

    /// Plans, compiles and writes a bundle into `directory`, for
    /// [`BundleOptions`](crate::BundleOptions) to open. A repeated call after an interruption
    /// resumes the work.
    pub fn compile(
        &self,
        checkpoint: impl AsRef<Path>,
        directory: impl AsRef<Path>,
        watch: &mut dyn Watch,
    ) -> Result<CompileReport> {
        let (from, into, options) = (checkpoint.as_ref(), directory.as_ref(), self.plan_options());
        let compile = || shardwright_checkpoints::compile(from, into, &options, watch);
        let (report, notices) = reading_texts(from, &options, compile)?;
        self.with_goldens(noting(report, &notices), into)
    }

    /// Adds goldens to a bundle for a chip: outputs of the model on the CPU, which machines use for
    /// a self-test.
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

    /// Compiles a bundle with a variant for each of several chips, like [`compile`](Self::compile)
    /// for one. If the checkpoint cannot be compiled for a chip, the other variants are kept and
    /// the report has the reason. See [`OpenOptions::jobs`].
    pub fn compile_for(
        &self,
        socs: &[String],
        checkpoint: impl AsRef<Path>,
        directory: impl AsRef<Path>,
        watch: &mut dyn Watch,
    ) -> Result<CompileReport> {
        let variants: Vec<PlanOptions> = socs.iter().map(|soc| self.for_chip(soc).plan_options()).collect();
        let (from, into) = (checkpoint.as_ref(), directory.as_ref());
        let compile = || shardwright_checkpoints::compile_variants(from, into, &variants, self.jobs, watch);
        let (report, notices) = reading_texts(from, &self.plan_options(), compile)?;
        self.with_goldens(noting(report, &notices), into)
    }

    /// Plans without compiling. If the weights are missing, the headers of their files or
    /// `config.json` alone are enough.
    pub fn plan(&self, checkpoint: impl AsRef<Path>) -> Result<Planned> {
        self.plan_watched(checkpoint, &mut ())
    }

    /// Plans like [`OpenOptions::plan`], with progress and cancellation. A vendor's compiler may be
    /// queried for times.
    pub fn plan_watched(&self, checkpoint: impl AsRef<Path>, watch: &mut dyn Watch) -> Result<Planned> {
        let (from, options) = (checkpoint.as_ref(), self.plan_options());
        let plan = || shardwright_checkpoints::plan_checkpoint(from, &options, watch);
        let (mut planned, notices) = reading_texts(from, &options, plan)?;
        planned.report.notices.extend(notices);
        Ok(planned)
    }

    /// Plans like [`plan_watched`](Self::plan_watched), and also returns the plans of all chains in
    /// the order of a bundle: for the text and for each tower the first chain and its fallbacks.
    pub fn plan_all_chains(
        &self,
        checkpoint: impl AsRef<Path>,
        watch: &mut dyn Watch,
    ) -> Result<(Planned, Vec<ChainPlan>)> {
        let (from, options) = (checkpoint.as_ref(), self.plan_options());
        let plan = || shardwright_checkpoints::plan_all_chains(from, &options, watch);
        let ((mut planned, chains), notices) = reading_texts(from, &options, plan)?;
        planned.report.notices.extend(notices);
        Ok((planned, chains))
    }

    /// Measures the losses of formats on a checkpoint, for as long as `time` allows. `None`
    /// measures all of them. The results stay in the cache for later plans with the same text and
    /// rounding, and a repeated call resumes an interrupted one. Returns all losses known by then,
    /// and notices.
    ///
    /// # Errors
    ///
    /// A checkpoint that cannot be opened or has no weights, formats without loss, errors of the
    /// CPU shim, and cancellation. Under [`strict`](Self::strict), a field or file without effect.
    pub fn measure_sensitivities(
        &self,
        checkpoint: impl AsRef<Path>,
        time: Option<std::time::Duration>,
        watch: &mut dyn Watch,
    ) -> Result<(SensitivityReport, Vec<Notice>)> {
        let (from, options) = (checkpoint.as_ref(), self.plan_options());
        let measure = || shardwright_checkpoints::measure_sensitivities(from, &options, time, watch);
        let ((report, mut notices), ignored) = reading_texts(from, &options, measure)?;
        notices.extend(ignored);
        Ok((report, notices))
    }

    /// Reuses artefacts of this bundle instead of compiling them again, if their work orders are
    /// equal and the same version of a shim made them for the same device.
    #[must_use]
    pub fn reuse(mut self, bundle: impl Into<PathBuf>) -> Self {
        self.plan.reuse = Some(bundle.into());
        self
    }

    /// Returns options to open a bundle with the same shared settings.
    pub fn bundle_options(&self) -> crate::BundleOptions {
        crate::BundleOptions::of(self.run.clone())
    }
}

/// Adds notices about the checkpoint to the plan of each variant.
fn noting(mut report: CompileReport, notices: &[Notice]) -> CompileReport {
    for variant in &mut report.variants {
        variant.plan.notices.extend(notices.iter().cloned());
    }
    report
}

fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
