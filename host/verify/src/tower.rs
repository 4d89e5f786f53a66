//! Proving towers: every shard against the reference, and the soft rows of the whole.

use std::path::Path;

use shardwright_build::{
    ArtefactStore, NoArtefactStore, PlanOptions, Purpose, RecordedPlan, SampleSet, TowerScope, TowerSource,
    Trying, settle_trying, tower_samples, towers_of,
};
use shardwright_bundle::{Bundle, Digest};
use shardwright_graph::Graph;
use shardwright_models::Checkpoint;
use shardwright_reference::step::Features;
use shardwright_reference::{Arrangement, Array, ReferenceModel};
use shardwright_runtime::Tower;
use shardwright_shims::{Part, Watch};
use shardwright_vocabulary::{Beforehand, Error, ErrorKind, Pass, Result};

use crate::boundaries::{BoundaryCheck, Prompt};
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
        scopes.retain(|scope| bundle.manifest().model_of(scope.pass).is_some());
    }
    let mut all = Part::new(watch, 0..1000);
    for scope in &scopes {
        let mut own = all.most_of_the_rest();
        let tower = prove(checkpoint, scope, plan, options, bundled.as_mut(), &mut own)?;
        report.passed &= tower.passed;
        report.towers.push(tower);
    }
    Ok(())
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
    let mut source = TowerSource::new(&intact, scope, &plan)?;
    let graph = intact.graph_of(pass).ok_or_else(|| {
        Error::new(ErrorKind::Internal, format!("the checkpoint was opened without its tower of a {pass}"))
    })?;
    let mut all = Part::new(watch, 0..1000);
    let mut trying = Trying::default();
    let store: &mut dyn ArtefactStore = match bundled {
        Some(Bundled { bundle, store }) => {
            let towers = &bundle.manifest().towers;
            let tower = towers.iter().find(|tower| tower.pass == pass);
            if let Some(tower) = tower {
                same_weights(bundle, tower.weights, graph, pass)?;
            }
            let chain = tower.and_then(|tower| tower.chains.first());
            trying.first = chain.map(|chain| RecordedPlan::of(bundle, chain)).transpose()?;
            &mut **store
        }
        None => &mut NoArtefactStore,
    };
    let settled = settle_trying(&mut source, &plan, Purpose::Run, store, trying, &mut all.then(OPENED))?;
    let chain = shardwright::load(&settled, Beforehand::default())?;
    let formats = settled.report.shards.iter().map(|shard| shard.formats.clone()).collect();
    let compiled: Vec<_> = settled.shards.into_iter().map(|shard| shard.compiled).collect();
    let exact = is_exact(graph, &compiled, chain.assets());
    let thresholds = options.thresholds(match (exact, is_vendors(&chain)) {
        (true, _) => Thresholds::SAME_FLOATS,
        (false, false) => Thresholds::SAME_ENCODED,
        (false, true) => Thresholds::VENDOR,
    })?;

    let rows = plan.context.unwrap_or(u32::MAX);
    let made = tower_samples(pass, &scope.processor, rows, SampleSet::Verification)?;
    let count = if is_simulated(&chain) && !options.asked.all { SIMULATED } else { made.len() };
    let samples = made.into_iter().take(count).map(|(name, sample)| Sample::new(name, sample));
    let samples = samples.collect::<Result<Vec<_>>>()?;
    let mut progress = Progress(all.then(WHOLE));
    let soft_rows = whole(&mut chain.tower()?, graph, &samples, &thresholds, &mut progress)?;

    let features: Vec<Features<'_>> = samples.iter().map(Sample::features).collect();
    let prompts: Vec<Prompt<'_>> = samples
        .iter()
        .zip(&features)
        .map(|(sample, features)| Prompt { name: sample.name.to_owned(), given: Given::Features(features) })
        .collect();
    let check = BoundaryCheck {
        shards: &chain,
        graph,
        assets: chain.assets(),
        compiled: &compiled,
        exact,
        formats,
        thresholds,
        rows: usize::MAX,
        steps: 0,
    };
    let boundaries = check.run(&prompts, &mut Progress(all.then(1000)))?;
    let passed = (!exact || soft_rows.passed)
        && boundaries.iter().filter(|boundaries| boundaries.judged).all(|boundaries| boundaries.passed);
    Ok(TowerVerification { pass, samples: samples.len(), exact, soft_rows, boundaries, passed })
}

/// Refuses a tower whose weights are others than those that the bundle was compiled from.
fn same_weights(bundle: &Bundle, stored: Digest, graph: &Graph, pass: Pass) -> Result<()> {
    let own = Digest::from(shardwright_build::tower_weights(graph)?);
    if own == stored {
        return Ok(());
    }
    let what = format!(
        "{}: its tower of a {pass} was compiled from weights {stored}, and the checkpoint's are {own}",
        bundle.directory().display()
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
