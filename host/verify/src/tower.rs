//! Proves towers: every shard against the reference, and the soft rows of the whole tower.

use std::path::Path;

use shardwright::tools::load;
use shardwright_build::{
    ArtefactStore, CompiledGraphs, LoopStart, NoArtefactStore, PlanOptions, Purpose, RecordedPlan,
};
use shardwright_bundle::{Bundle, Digest};
use shardwright_checkpoints::{
    Builder, FeatureSample, SampleSet, TowerScope, open_adapted, tower_samples, towers_of,
};
use shardwright_graph::Graph;
use shardwright_models::Checkpoint;
use shardwright_reference::step::Features;
use shardwright_reference::{Arrangement, Array, ReferenceModel};
use shardwright_runtime::{Chain, SoftRows, Tower};
use shardwright_vocabulary::{Beforehand, Error, ErrorKind, Part, Pass, Result, Watch};

use crate::boundaries::{BoundaryCheck, Prompt};
use crate::bundled::{named_layer, no_layer};
use crate::goldens::Goldens;
use crate::options::VerifyOptions;
use crate::progress::{PartProgress, reference_fault};
use crate::recorded_rows::{RecordedPart, ValidFeatures};
use crate::report::{RowComparison, TowerVerification, VerifyReport};
use crate::rows::RowErrors;
use crate::thresholds::Thresholds;
use crate::trace::Given;
use crate::verification::{OPENED, is_exact, is_simulated, is_vendors};

/// Progress after the tower has run by itself, in thousandths. Its shards follow.
const WHOLE: u32 = 400;

/// Number of pictures or sounds that a simulator runs. It needs minutes for one.
const SIMULATED: usize = 2;

/// A bundle whose towers are proved, and the store of its artefacts.
pub(crate) struct Bundled<'b> {
    pub(crate) bundle: &'b Bundle,
    pub(crate) store: &'b mut dyn ArtefactStore,
}

/// Proves the towers that `plan` requests, or the towers of a bundle, and adds the results to the
/// report of the text.
pub(crate) fn prove_towers(
    report: &mut VerifyReport,
    checkpoint: &Path,
    plan: &PlanOptions,
    (options, goldens): (&VerifyOptions, &Goldens),
    mut bundled: Option<Bundled<'_>>,
    watch: &mut dyn Watch,
) -> Result<()> {
    let (mut scopes, left_out) = towers_of(checkpoint, plan)?;
    report.notices.extend(left_out.map(|notice| notice.text));
    if let Some(Bundled { bundle, .. }) = &bundled {
        scopes.retain(|scope| bundle.variant().model_of(scope.pass).is_some());
    }
    let mut all = Part::new(watch, 0..1000);
    for scope in &scopes {
        let mut own = all.most_of_the_rest();
        let given = (options, goldens);
        let (tower, skipped) = prove(checkpoint, scope, plan, given, bundled.as_mut(), &mut own)?;
        report.skipped.extend(skipped);
        if bundled.is_some() && !tower.passed {
            let mut again = all.most_of_the_rest();
            report.notices.push(first_layer(checkpoint, scope, plan, given, &mut again)?);
        }
        report.passed &= tower.passed;
        report.towers.push(tower);
    }
    Ok(())
}

/// Compiles a tower once more with its layers shown, and returns a notice about the first divergent
/// layer.
fn first_layer(
    checkpoint: &Path,
    scope: &TowerScope,
    plan: &PlanOptions,
    given: (&VerifyOptions, &Goldens),
    watch: &mut dyn Watch,
) -> Result<String> {
    let tapped = PlanOptions { taps: true, ..plan.clone() };
    let said = match prove(checkpoint, scope, &tapped, given, None, watch) {
        Ok((again, _)) => {
            let named = again.boundaries.iter().find(|boundaries| boundaries.judged);
            named_layer(named.and_then(|boundaries| boundaries.first_divergent_layer))
        }
        Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
        Err(error) => no_layer(&error),
    };
    Ok(format!("the tower of a {}: {said}", scope.pass))
}

/// Proves a tower. Also returns descriptions of the data that was not compared.
fn prove(
    checkpoint: &Path,
    scope: &TowerScope,
    plan: &PlanOptions,
    (options, goldens): (&VerifyOptions, &Goldens),
    bundled: Option<&mut Bundled<'_>>,
    watch: &mut dyn Watch,
) -> Result<(TowerVerification, Vec<String>)> {
    let pass = scope.pass;
    let intact = open_adapted(checkpoint, &[Pass::Step, pass], plan)?;
    let plan = PlanOptions { taps: plan.taps, ..scope.options(plan) };
    let mut proof = TowerProof::new(&intact, scope, &plan, options)?;
    let pool = scope.processor.picture.as_ref().map_or(1, |picture| picture.pool);
    let skipped = proof.record(goldens, plan.recorded.context, pool)?;
    let mut all = Part::new(watch, 0..1000);
    let mut trying = LoopStart::default();
    let store: &mut dyn ArtefactStore = match bundled {
        Some(Bundled { bundle, store }) => {
            trying.first = recorded(bundle, &proof)?;
            &mut **store
        }
        None => &mut NoArtefactStore,
    };
    let builder = Builder::new(&intact, Some(scope));
    let settled = builder.chain(&plan, Purpose::Run, store, trying, &mut all.then(OPENED))?;
    let chain = load(&settled, Beforehand::default())?;
    let formats = settled.report.shards.iter().map(|shard| shard.formats.clone()).collect();
    let compiled: Vec<_> = settled.shards.into_iter().map(|shard| shard.compiled).collect();
    let left = proof.samples.iter().skip(proof.count(&chain)).filter(|sample| sample.wanted.is_some());
    let names =
        left.map(|sample| format!("{}: its {pass} is skipped on a simulator; `--all` runs it", sample.name));
    let skipped = skipped.into_iter().chain(names).collect();
    Ok((proof.run(&chain, &compiled, formats, &mut all)?, skipped))
}

/// Reads the plan of a bundle's tower, if the bundle has the tower.
///
/// # Errors
///
/// Fails if the tower was compiled from other weights than the proved ones.
pub(crate) fn recorded(bundle: &Bundle, proof: &TowerProof<'_>) -> Result<Option<RecordedPlan>> {
    let mut towers = bundle.variant().towers.iter();
    let Some(tower) = towers.find(|tower| tower.pass == proof.pass()) else { return Ok(None) };
    same_weights(bundle, tower.weights, proof.graph)?;
    tower.chains.first().map(|chain| RecordedPlan::of(bundle, chain)).transpose()
}

/// A tower to be proved, with its samples.
pub(crate) struct TowerProof<'p> {
    /// The tower's graph in the checkpoint.
    pub(crate) graph: &'p Graph,
    samples: Vec<Sample>,
    options: &'p VerifyOptions,
}

impl<'p> TowerProof<'p> {
    /// Creates the proof of a tower. `intact` must have been opened for its pass, and `plan` are
    /// its options.
    pub(crate) fn new(
        intact: &'p Checkpoint,
        scope: &TowerScope,
        plan: &PlanOptions,
        options: &'p VerifyOptions,
    ) -> Result<Self> {
        let pass = scope.pass;
        let graph = intact.graph_of(pass).ok_or_else(|| {
            let what = format!("the checkpoint was opened without its tower of a {pass}");
            Error::new(ErrorKind::Internal, what)
        })?;
        let rows = plan.recorded.context.unwrap_or(u32::MAX);
        let made = tower_samples(pass, &scope.processor, rows, SampleSet::Verification)?;
        let samples = made.into_iter().map(|(name, sample)| Sample::new(name, sample));
        Ok(TowerProof { graph, samples: samples.collect::<Result<_>>()?, options })
    }

    /// Adds the recorded samples of a tower of at most `most` rows, after the generated ones.
    /// Patches are pooled in squares of `pool` a side. Returns descriptions of the samples that
    /// cannot be run.
    fn record(&mut self, goldens: &Goldens, most: Option<u32>, pool: u32) -> Result<Vec<String>> {
        let (pass, most) = (self.pass(), u64::from(most.unwrap_or(u32::MAX)));
        let (mut recorded, mut skipped) = (Vec::new(), Vec::new());
        for (prompt, part) in goldens.parts_of(pass) {
            let Some(features) = &part.features else {
                skipped.push(format!("{prompt}: the features of its {pass} are not recorded"));
                continue;
            };
            let sample = Sample::recorded(prompt, features.valid(pass, pool), part)?;
            match sample.features().rows(self.graph) {
                rows if rows > most => {
                    let prompt = &sample.name;
                    skipped.push(format!(
                        "{prompt}: its {pass} has {rows} rows, but the tower supports at most {most}"
                    ));
                }
                _ => recorded.push(sample),
            }
        }
        self.samples.append(&mut recorded);
        Ok(skipped)
    }

    /// Returns the pass of the tower.
    pub(crate) fn pass(&self) -> Pass {
        self.graph.pass
    }

    /// Returns the first `count` samples as prompts.
    pub(crate) fn prompts(&self, count: usize) -> Vec<Prompt<'_>> {
        let samples = self.samples.iter().take(count);
        let prompts = samples
            .map(|sample| Prompt { name: sample.name.clone(), given: Given::Features(sample.features()) });
        prompts.collect()
    }

    /// Returns the number of samples to run.
    fn count(&self, chain: &Chain) -> usize {
        let every = self.samples.len();
        if is_simulated(chain) && !self.options.asked.all { SIMULATED.min(every) } else { every }
    }

    /// Runs a chain of the tower, compiled from these graphs in these formats.
    pub(crate) fn run(
        &self,
        chain: &Chain,
        compiled: &[CompiledGraphs],
        formats: Vec<String>,
        watch: &mut dyn Watch,
    ) -> Result<TowerVerification> {
        let mut all = Part::new(watch, 0..1000);
        let exact = is_exact(self.graph, compiled, chain.assets());
        let thresholds = self.options.thresholds(match (exact, is_vendors(chain)) {
            (true, _) => Thresholds::SAME_FLOATS,
            (false, false) => Thresholds::SAME_ENCODED,
            (false, true) => Thresholds::VENDOR,
        })?;
        let count = self.count(chain);
        let mut progress = PartProgress(all.then(WHOLE));
        let samples = &self.samples[..count];
        let (soft_rows, recorded) =
            whole(&mut chain.tower()?, self.graph, samples, &thresholds, &mut progress)?;
        let check = BoundaryCheck {
            shards: chain,
            graph: self.graph,
            assets: chain.assets(),
            compiled,
            exact,
            formats,
            thresholds,
            rows: usize::MAX,
            steps: 0,
        };
        let boundaries = check.run(&self.prompts(count), &mut PartProgress(all.then(1000)))?;
        let passed = (!exact || soft_rows.passed && recorded.as_ref().is_none_or(|rows| rows.passed))
            && boundaries.iter().filter(|boundaries| boundaries.judged).all(|boundaries| boundaries.passed);
        let pass = self.pass();
        Ok(TowerVerification { pass, samples: count, exact, soft_rows, recorded, boundaries, passed })
    }
}

/// Fails if the weights of a tower are not the weights that the bundle was compiled from.
fn same_weights(bundle: &Bundle, stored: Digest, graph: &Graph) -> Result<()> {
    let own = Digest::from(shardwright_checkpoints::tower_weights(graph)?);
    if own == stored {
        return Ok(());
    }
    let what = format!(
        "{}: its tower of a {} was compiled from weights {stored}, but the checkpoint has {own}",
        bundle.path().display(),
        graph.pass
    );
    Err(Error::new(ErrorKind::Incompatible, what)
        .with_help("name the checkpoint the bundle was compiled from"))
}

/// A front end's features of a picture or sound, in the form for the reference.
struct Sample {
    name: String,
    values: Array,
    columns: Vec<i32>,
    rows: Vec<i32>,
    origin: [u8; 32],
    /// The expected output of the tower, if it was recorded.
    wanted: Option<Vec<f32>>,
}

impl Sample {
    fn recorded(prompt: String, given: ValidFeatures, part: &RecordedPart) -> Result<Self> {
        let ValidFeatures { values, columns, rows } = given;
        let width = values.shape[1];
        let origin = *Digest::of(prompt.as_bytes()).bytes();
        let wanted = Some(part.rows.values.clone());
        let sample = FeatureSample { values: values.values, width, columns, rows, origin };
        Ok(Sample { name: prompt, wanted, ..Sample::new("", sample)? })
    }

    fn new(name: &'static str, sample: FeatureSample) -> Result<Self> {
        let count = (sample.values.len() / sample.width.max(1)) as u64;
        let values =
            Array::floats_of(&[count, sample.width as u64], sample.values).map_err(reference_fault)?;
        let FeatureSample { columns, rows, origin, .. } = sample;
        Ok(Sample { name: name.to_owned(), values, columns, rows, origin, wanted: None })
    }

    fn features(&self) -> Features<'_> {
        Features { values: &self.values, columns: &self.columns, rows: &self.rows }
    }
}

/// Compares the soft rows of a tower running by itself with the checkpoint in float, and with
/// recorded rows if there are any.
fn whole(
    tower: &mut Tower,
    graph: &Graph,
    samples: &[Sample],
    thresholds: &Thresholds,
    progress: &mut PartProgress<'_>,
) -> Result<(RowComparison, Option<RowComparison>)> {
    let (mut errors, mut from_recorded) = (RowErrors::default(), RowErrors::default());
    for (index, sample) in samples.iter().enumerate() {
        progress
            .step(index as f64 / samples.len() as f64, || format!("{} through the tower", sample.name))?;
        let values = sample.values.floats();
        let write = |into: &mut [f32]| into.copy_from_slice(&values);
        let count = sample.values.shape()[0];
        let given = shardwright_runtime::Features {
            count,
            columns: &sample.columns,
            rows: &sample.rows,
            write: &write,
        };
        let got = tower.encode(given, sample.origin)?;
        let features = sample.features();
        let rows = features.rows(graph);
        let reference = ReferenceModel::new(graph, Arrangement::whole(rows)).map_err(reference_fault)?;
        let trace = reference.soft_rows(&features, false).map_err(reference_fault)?;
        let wanted = trace.soft_rows.map(Array::into_floats).unwrap_or_default();
        add_rows(&mut errors, &sample.name, &got, &wanted);
        if let Some(wanted) = &sample.wanted {
            add_rows(&mut from_recorded, &sample.name, &got, wanted);
        }
    }
    let recorded = samples.iter().any(|sample| sample.wanted.is_some());
    let compare = |errors: RowErrors, what: &str| errors.compare(what.to_owned(), None, None, thresholds);
    let recorded = recorded.then(|| compare(from_recorded, "recorded soft rows"));
    Ok((compare(errors, "soft rows"), recorded))
}

/// Enters all rows of a sample. The error is infinite if the numbers of rows differ.
fn add_rows(errors: &mut RowErrors, name: &str, got: &SoftRows, wanted: &[f32]) {
    if got.values().len() != wanted.len() {
        errors.add(got.values(), wanted, || (name.to_owned(), 0, 0));
        return;
    }
    let width = got.width().max(1);
    for (row, (got, wanted)) in got.values().chunks(width).zip(wanted.chunks(width)).enumerate() {
        errors.add(got, wanted, || (name.to_owned(), row, 0));
    }
}
