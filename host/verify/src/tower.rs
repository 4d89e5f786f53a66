//! Proving towers: every shard against the reference, and the soft rows of the whole.

use std::path::Path;

use shardwright_build::{
    ArtefactStore, CompiledGraphs, NoArtefactStore, PlanOptions, Purpose, RecordedPlan, SampleSet,
    TowerScope, TowerSource, Trying, settle_trying, tower_samples, towers_of,
};
use shardwright_bundle::{Bundle, Digest};
use shardwright_graph::Graph;
use shardwright_models::Checkpoint;
use shardwright_reference::step::Features;
use shardwright_reference::{Arrangement, Array, ReferenceModel};
use shardwright_runtime::{Chain, Tower};
use shardwright_shims::{Part, Watch};
use shardwright_vocabulary::{Beforehand, Error, ErrorKind, Pass, Result};

use crate::boundaries::{BoundaryCheck, Prompt};
use crate::bundled::{named_layer, no_layer};
use crate::options::VerifyOptions;
use crate::progress::{Progress, reference_fault};
use crate::report::{RowComparison, TowerVerification, VerifyReport};
use crate::rows::RowErrors;
use crate::thresholds::Thresholds;
use crate::trace::Given;
use crate::verification::{OPENED, is_exact, is_simulated, is_vendors};

/// How far proving is when the tower has run by itself, of 1000: its shards follow.
const WHOLE: u32 = 400;

/// Pictures or sounds that a simulator runs: it takes minutes for one.
const SIMULATED: usize = 2;

/// A bundle whose towers are proved, and what hands out its artefacts.
pub(crate) struct Bundled<'b> {
    pub(crate) bundle: &'b Bundle,
    pub(crate) store: &'b mut dyn ArtefactStore,
}

/// Proves the towers that `plan` asks for, or those of a bundle, and enters what was found into
/// the report of the text beside them.
pub(crate) fn prove_towers(
    report: &mut VerifyReport,
    checkpoint: &Path,
    plan: &PlanOptions,
    options: &VerifyOptions,
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
        let tower = prove(checkpoint, scope, plan, options, bundled.as_mut(), &mut own)?;
        if bundled.is_some() && !tower.passed {
            let mut again = all.most_of_the_rest();
            report.notices.push(first_layer(checkpoint, scope, plan, options, &mut again)?);
        }
        report.passed &= tower.passed;
        report.towers.push(tower);
    }
    Ok(())
}

/// What compiling a tower once more with its layers shown says of the first that differs.
fn first_layer(
    checkpoint: &Path,
    scope: &TowerScope,
    plan: &PlanOptions,
    options: &VerifyOptions,
    watch: &mut dyn Watch,
) -> Result<String> {
    let tapped = PlanOptions { taps: true, ..plan.clone() };
    let said = match prove(checkpoint, scope, &tapped, options, None, watch) {
        Ok(again) => {
            let named = again.boundaries.iter().find(|boundaries| boundaries.judged);
            named_layer(named.and_then(|boundaries| boundaries.first_divergent_layer))
        }
        Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
        Err(error) => no_layer(&error),
    };
    Ok(format!("the tower of a {}: {said}", scope.pass))
}

fn prove(
    checkpoint: &Path,
    scope: &TowerScope,
    plan: &PlanOptions,
    options: &VerifyOptions,
    bundled: Option<&mut Bundled<'_>>,
    watch: &mut dyn Watch,
) -> Result<TowerVerification> {
    let pass = scope.pass;
    let intact = Checkpoint::open_for(checkpoint, &[Pass::Step, pass])?;
    let plan = PlanOptions { taps: plan.taps, ..scope.options(plan) };
    let proof = TowerProof::new(&intact, scope, &plan, options)?;
    let mut source = TowerSource::new(&intact, scope, &plan)?;
    let mut all = Part::new(watch, 0..1000);
    let mut trying = Trying::default();
    let store: &mut dyn ArtefactStore = match bundled {
        Some(Bundled { bundle, store }) => {
            trying.first = recorded(bundle, &proof)?;
            &mut **store
        }
        None => &mut NoArtefactStore,
    };
    let settled = settle_trying(&mut source, &plan, Purpose::Run, store, trying, &mut all.then(OPENED))?;
    let chain = shardwright::load(&settled, Beforehand::default())?;
    let formats = settled.report.shards.iter().map(|shard| shard.formats.clone()).collect();
    let compiled: Vec<_> = settled.shards.into_iter().map(|shard| shard.compiled).collect();
    proof.run(&chain, &compiled, formats, &mut all)
}

/// The plan of a bundle's tower, if the bundle has it.
///
/// # Errors
///
/// That it was compiled from other weights than those that are proved.
pub(crate) fn recorded(bundle: &Bundle, proof: &TowerProof<'_>) -> Result<Option<RecordedPlan>> {
    let mut towers = bundle.variant().towers.iter();
    let Some(tower) = towers.find(|tower| tower.pass == proof.pass()) else { return Ok(None) };
    same_weights(bundle, tower.weights, proof.graph)?;
    tower.chains.first().map(|chain| RecordedPlan::of(bundle, chain)).transpose()
}

/// A tower to be proved, with what it is run over.
pub(crate) struct TowerProof<'p> {
    /// As it is in the checkpoint.
    pub(crate) graph: &'p Graph,
    samples: Vec<Sample>,
    options: &'p VerifyOptions,
}

impl<'p> TowerProof<'p> {
    /// Of a checkpoint that was opened for its pass, planned by `plan`.
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
        let rows = plan.context.unwrap_or(u32::MAX);
        let made = tower_samples(pass, &scope.processor, rows, SampleSet::Verification)?;
        let samples = made.into_iter().map(|(name, sample)| Sample::new(name, sample));
        Ok(TowerProof { graph, samples: samples.collect::<Result<_>>()?, options })
    }

    /// When it runs.
    pub(crate) fn pass(&self) -> Pass {
        self.graph.pass
    }

    /// What it is run over, the first `count`.
    pub(crate) fn prompts(&self, count: usize) -> Vec<Prompt<'_>> {
        let samples = self.samples.iter().take(count);
        let prompts = samples
            .map(|sample| Prompt { name: sample.name.to_owned(), given: Given::Features(sample.features()) });
        prompts.collect()
    }

    /// Runs a chain of it, compiled from these graphs in these formats.
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
        let every = self.samples.len();
        let count = if is_simulated(chain) && !self.options.asked.all { SIMULATED.min(every) } else { every };
        let mut progress = Progress(all.then(WHOLE));
        let samples = &self.samples[..count];
        let soft_rows = whole(&mut chain.tower()?, self.graph, samples, &thresholds, &mut progress)?;
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
        let boundaries = check.run(&self.prompts(count), &mut Progress(all.then(1000)))?;
        let passed = (!exact || soft_rows.passed)
            && boundaries.iter().filter(|boundaries| boundaries.judged).all(|boundaries| boundaries.passed);
        Ok(TowerVerification { pass: self.pass(), samples: count, exact, soft_rows, boundaries, passed })
    }
}

/// Refuses a tower whose weights are others than those that the bundle was compiled from.
fn same_weights(bundle: &Bundle, stored: Digest, graph: &Graph) -> Result<()> {
    let own = Digest::from(shardwright_build::tower_weights(graph)?);
    if own == stored {
        return Ok(());
    }
    let what = format!(
        "{}: its tower of a {} was compiled from weights {stored}, and the checkpoint's are {own}",
        bundle.path().display(),
        graph.pass
    );
    Err(Error::new(ErrorKind::Incompatible, what)
        .with_help("name the checkpoint the bundle was compiled from"))
}

/// What a front end made of a picture or sound, as the reference takes it.
struct Sample {
    name: &'static str,
    values: Array,
    columns: Vec<i32>,
    rows: Vec<i32>,
    origin: [u8; 32],
}

impl Sample {
    fn new(name: &'static str, sample: shardwright_build::FeatureSample) -> Result<Self> {
        let count = (sample.values.len() / sample.width.max(1)) as u64;
        let values =
            Array::floats_of(&[count, sample.width as u64], sample.values).map_err(reference_fault)?;
        Ok(Sample { name, values, columns: sample.columns, rows: sample.rows, origin: sample.origin })
    }

    fn features(&self) -> Features<'_> {
        Features { values: &self.values, columns: &self.columns, rows: &self.rows }
    }
}

/// The soft rows of a tower that runs by itself, beside those of the checkpoint in float.
fn whole(
    tower: &mut Tower,
    graph: &Graph,
    samples: &[Sample],
    thresholds: &Thresholds,
    progress: &mut Progress<'_>,
) -> Result<RowComparison> {
    let mut errors = RowErrors::default();
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
        let width = got.width().max(1);
        if got.values().len() != wanted.len() {
            errors.add(got.values(), &wanted, || (sample.name.to_owned(), 0, 0));
            continue;
        }
        for (row, (got, wanted)) in got.values().chunks(width).zip(wanted.chunks(width)).enumerate() {
            errors.add(got, wanted, || (sample.name.to_owned(), row, 0));
        }
    }
    Ok(errors.compare("soft rows".to_owned(), None, None, thresholds))
}
