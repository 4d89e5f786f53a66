//! Proves a chain: as a whole against recorded outputs, and shard by shard against the reference.

use std::path::Path;

use shardwright::tools::{ModelTools, OpenTools};
use shardwright::{Model, OpenOptions, PlanMeasuring};
use shardwright_build::{CPU_SHIM, CompiledGraphs, MeasuredLoss, PlanOptions};
use shardwright_checkpoints::{StoredAnswers, open_adapted};
use shardwright_graph::{
    Asset, ComponentKind, Graph, Op, ValueSource, Weight, WeightData, WeightId, unrounded,
};
use shardwright_models::Checkpoint;
use shardwright_runtime::Chain;
use shardwright_vocabulary::{DType, Error, ErrorKind, Part, Pass, Result, Watch};

use crate::boundaries::{BoundaryCheck, Prompt};
use crate::chain_comparison::ChainComparison;
use crate::divergence::{Bound, DivergenceVerification, divergence};
use crate::effort::EffortReport;
use crate::goldens::{Golden, Goldens};
use crate::options::VerifyOptions;
use crate::progress::PartProgress;
use crate::report::{SelfTestReport, VerifyReport};
use crate::thresholds::Thresholds;
use crate::tower::prove_towers;

/// Progress after the model is opened, in thousandths.
pub(crate) const OPENED: u32 = 300;
/// Progress after the text is proved, in thousandths. Towers follow.
pub(crate) const TEXT: u32 = 800;
/// Notice if the reference evaluator is the only reference.
const NOT_RECORDED: &str = "no recorded outputs of another program are next to the checkpoint, so prompts of a built-in text are compared with the reference evaluator; pass recorded outputs with `--golden DIR`";
/// Progress of a proof after the chain and the stored model have run, in thousandths.
const DIVERGENCE: u32 = 150;
/// Progress of a proof after the model has run as a whole, in thousandths. Its shards follow.
const WHOLE: u32 = 450;

/// Proves the model of `checkpoint`, opened with `open`.
///
/// As a whole, the running chain is compared with the recorded outputs in `goldens`: hidden states
/// of every layer, logits, greedy tokens, tokenizer, chat template, sentence vectors, and the
/// likelihood of the evaluation rows. If hidden states were not recorded and the model keeps all
/// values, the hidden states of the reference evaluator on the same checkpoint are used. Without
/// `goldens`, the prompts come from a built-in text and the reference evaluator is the only
/// reference.
///
/// A model that does not keep all values also runs over a built-in text and is compared with the
/// model as stored. The KL divergence must not exceed a bound that follows from the loss of its
/// formats on the CPU ([`DivergenceVerification`](crate::DivergenceVerification)).
///
/// Shard by shard ([`BoundaryVerification`]), every entry point of every shard gets the reference's
/// hidden rows, per-layer inputs and states as input, so that errors do not add up over shards. Its
/// results are compared with the reference's row by row. Within a shard errors do add up: the first
/// divergent layer is the first whose own output, or a state it writes, is out of bounds although
/// the shard's inputs were exact.
///
/// A difference is not an error. The report contains it, with the first divergent layer.
pub fn verify(
    checkpoint: &Path,
    goldens: Option<&Path>,
    open: &OpenOptions,
    options: &VerifyOptions,
    watch: &mut dyn Watch,
) -> Result<VerifyReport> {
    // Checked before any slow step.
    options.thresholds(Thresholds::SAME_FLOATS)?;
    let mut all = Part::new(watch, 0..1000);
    let open = open.clone().taps(true).measuring(PlanMeasuring::Usual);
    let model = open.open_watched(checkpoint, &mut all.then(OPENED))?;
    let plan = open.plan_options();
    let intact = open_adapted(checkpoint, &[Pass::Step], &plan)?;
    let goldens = Goldens::of(goldens, &intact)?;
    let (compiled, measured) = (model.compiled(), measured_of(&model));
    let verification =
        Verification { model: &model, compiled, intact: &intact, plan: &plan, measured, options };
    let mut report = verification.run(&goldens, &mut all.then(TEXT))?;
    prove_towers(&mut report, checkpoint, &plan, (options, &goldens), None, &mut all)?;
    Ok(report)
}

/// Verifies, then breaks one norm scale in one layer and verifies again. The second verification
/// must fail and name that layer, in the whole chain (if it is exact) and in the shard that
/// contains it.
pub fn self_test(
    checkpoint: &Path,
    goldens: Option<&Path>,
    open: &OpenOptions,
    options: &VerifyOptions,
    watch: &mut dyn Watch,
) -> Result<SelfTestReport> {
    options.thresholds(Thresholds::SAME_FLOATS)?;
    let checkpoint_as_is = open_adapted(checkpoint, &[Pass::Step], &open.plan_options())?;
    let tapped = open.clone().taps(true).measuring(PlanMeasuring::Usual);
    let mut all = Part::new(watch, 0..1000);
    let sound = tapped.open_watched(checkpoint, &mut all.then(OPENED / 2))?;
    // The shards of the broken model are compared with the graphs that the shards of the intact
    // model were compiled from.
    let (compiled, intact) = (sound.compiled(), &checkpoint_as_is);
    let (plan, goldens) = (&tapped.plan_options(), &Goldens::of(goldens, intact)?);
    let measured = measured_of(&sound);
    let first = Verification { model: &sound, compiled, intact, plan, measured, options };
    let first = first.run(goldens, &mut all.then(500))?;
    let broken_layer = break_middle_layer(&mut intact.graph().clone()).ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, "the model has no layer with a norm scale to break")
    })?;
    let broken = tapped.altered(|graph| {
        break_middle_layer(graph);
    });
    let model = broken.open_watched(checkpoint, &mut all.then(500 + OPENED / 2))?;
    let broken = Verification { model: &model, compiled, intact, plan, measured, options };
    let broken = broken.run(goldens, &mut all)?;
    let named = |layer: Option<u32>| layer == Some(broken_layer);
    let mut judged = broken.boundaries.iter().filter(|boundaries| boundaries.judged);
    let passed = first.passed
        && !broken.passed
        && (!broken.exact || named(broken.first_divergent_layer))
        && judged.all(|boundaries| named(boundaries.first_divergent_layer));
    Ok(SelfTestReport { intact: first, broken_layer, broken, passed })
}

pub(crate) struct Verification<'m> {
    pub(crate) model: &'m Model,
    /// The graphs that the shards should have been compiled from.
    pub(crate) compiled: &'m [CompiledGraphs],
    /// The unchanged checkpoint, whatever the model was made from.
    pub(crate) intact: &'m Checkpoint,
    /// The options that the model was opened with.
    pub(crate) plan: &'m PlanOptions,
    /// The measured loss of its formats on this machine's CPU.
    pub(crate) measured: Option<&'m MeasuredLoss>,
    pub(crate) options: &'m VerifyOptions,
}

impl Verification<'_> {
    pub(crate) fn run(&self, goldens: &Goldens, watch: &mut dyn Watch) -> Result<VerifyReport> {
        let graph = self.intact.graph();
        let no_plan =
            || Error::new(ErrorKind::Unsupported, "the bundle does not contain the report of its plan");
        let plan = self.model.plan().ok_or_else(no_plan)?;
        let ignored = self.model.ignored_fields().into_notices()?;
        let exact = is_exact(graph, self.compiled, self.model.chain().assets());
        let thresholds = self.options.thresholds(match (exact, is_vendors(self.model.chain())) {
            (true, _) => Thresholds::SAME_FLOATS,
            (false, false) => Thresholds::SAME_ENCODED,
            (false, true) => Thresholds::VENDOR,
        })?;

        let mut skipped: Vec<String> = goldens.skipped().collect();
        let context = self.model.chain().context();
        let fits = |golden: &Golden| golden.ids.len() as u64 <= context;
        let (usable, longer): (Vec<_>, Vec<_>) = goldens.usable().partition(|(_, golden)| fits(golden));
        skipped.extend(longer.into_iter().map(|(name, golden)| {
            format!("{name}: its {} tokens do not fit the context of {context}", golden.ids.len())
        }));

        let simulated = is_simulated(self.model.chain());
        let effort = self.options.asked.settled(simulated);
        let recorded: Vec<&Golden> = usable.iter().map(|(_, golden)| *golden).collect();
        let taken = EffortReport::of(
            effort,
            simulated,
            graph.is_generative(),
            &recorded,
            goldens.evaluation.as_ref(),
        );

        let mut all = Part::new(watch, 0..1000);
        let divergence = match exact && thresholds.kl.is_none() {
            true => None,
            false if effort.rows == 0 => {
                skipped.push("KL divergence from the model as stored: `--rows 0` leaves no text".to_owned());
                None
            }
            false => Some(self.divergence(thresholds.kl, effort.rows, all.then(DIVERGENCE))?),
        };
        let mut progress = PartProgress(all.then(WHOLE));
        let fixed = exact || self.options.sets("nll");
        let most = divergence.as_ref().filter(|_| !fixed).and_then(|divergence| divergence.bound);
        let mut whole = ChainComparison::new(self.model, graph, effort, thresholds, exact)?;
        whole.run(&usable, goldens, &mut progress)?;
        let found = whole.finish(most);

        let mut progress = PartProgress(all.then(1000));
        let prompts: Vec<Prompt<'_>> = usable
            .iter()
            .map(|(name, golden)| Prompt { name: name.clone(), given: golden.given() })
            .collect();
        // If the runtime caps the logits, the head's output is not capped. The whole chain is
        // compared with capped logits.
        let uncapped =
            self.model.chain().description().logits_softcap().map(|_| graph.without_logits_softcap());
        let boundaries = BoundaryCheck {
            shards: self.model.chain(),
            graph: uncapped.as_ref().unwrap_or(graph),
            assets: self.model.chain().assets(),
            compiled: self.compiled,
            exact,
            formats: plan.shards.iter().map(|shard| shard.formats.clone()).collect(),
            thresholds,
            rows: effort.rows,
            steps: effort.steps,
        };
        let boundaries = boundaries.run(&prompts, &mut progress)?;

        let mut judged = found.comparisons.iter().filter(|comparison| comparison.judged);
        let passed = (goldens.directory.is_none() || !found.comparisons.is_empty())
            && divergence.as_ref().is_none_or(|divergence| divergence.passed)
            && judged.all(|comparison| comparison.passed)
            && found.tokens.as_ref().is_none_or(|tokens| tokens.nll_passed && tokens.greedy_passed)
            && boundaries.iter().filter(|boundaries| boundaries.judged).all(|boundaries| boundaries.passed);
        Ok(VerifyReport {
            model: plan.model.clone(),
            soc: plan.soc.clone(),
            emulated_on: plan.emulated_on.clone(),
            shards: plan.shards.len(),
            decoder_shards: plan.shards.iter().filter(|shard| shard.segments.layers().1 > 0).count(),
            exact,
            passed,
            comparisons: found.comparisons,
            first_divergent_layer: found.first_divergent_layer.filter(|_| exact),
            tokens: found.tokens,
            divergence,
            boundaries,
            recorded: goldens.directory.as_ref().map(|directory| directory.display().to_string()),
            effort: taken,
            skipped,
            signature_notices: Vec::new(),
            bundle_chain: None,
            bundle_variant: None,
            twin: None,
            towers: Vec::new(),
            notices: {
                let planned = plan.notices.iter().map(|notice| notice.text.clone());
                let unused = self.options.asked.unused(graph.is_generative());
                let own = goldens.directory.is_none().then(|| NOT_RECORDED.to_owned());
                let mut notices: Vec<String> = planned.chain(unused).chain(own).collect();
                // A plan has notices about the settings of a checkpoint, but not about its
                // tokenizer, and not about the text files of a bundle.
                for ignored in ignored {
                    if !notices.contains(&ignored.text) {
                        notices.push(ignored.text);
                    }
                }
                notices
            },
        })
    }

    /// Runs the chain and the model as stored over `tokens` of a built-in text.
    fn divergence(
        &self,
        bound: Option<f64>,
        tokens: usize,
        mut watch: Part<'_>,
    ) -> Result<DivergenceVerification> {
        let stored = StoredAnswers::of(self.intact, self.plan, tokens, &mut watch.then(500))?;
        divergence(self.model, &stored, Bound::of(bound, self.measured), &mut PartProgress(watch.then(1000)))
    }
}

/// Returns the measured loss of a model's plan.
pub(crate) fn measured_of(model: &Model) -> Option<&MeasuredLoss> {
    model.plan()?.measured.as_ref()
}

/// Checks whether a shard runs on another device than this project's CPU shim, which rounds like
/// the reference.
pub(crate) fn is_vendors(chain: &Chain) -> bool {
    chain.description().shards.iter().any(|shard| shard.place.shim != CPU_SHIM)
}

/// Checks whether a vendor's simulator, which is slow, runs a shard.
pub(crate) fn is_simulated(chain: &Chain) -> bool {
    let shards = &chain.description().shards;
    shards.iter().any(|shard| shard.origin.compiled_by.as_ref().is_some_and(|made| made.simulated))
}

/// Checks whether shards compiled from these graphs, over these tables, compute the same as the
/// checkpoint's graph: no constant, activation, state or table has a lower precision, and no
/// operation rounds its operands.
pub(crate) fn is_exact(graph: &Graph, compiled: &[CompiledGraphs], assets: &[Asset]) -> bool {
    let keeps = |made: &Weight, from: &Weight| {
        made.quantisation.is_none() && (made.dtype == from.dtype || made.dtype == DType::F32)
    };
    let tables = assets.iter().zip(&graph.assets);
    let shard = |shard: &CompiledGraphs| {
        shard.graphs.iter().all(|entry| {
            let kept = |id: WeightId| {
                let pair = shard.weights.get(id.0 as usize).zip(graph.weights.get(id.0 as usize));
                pair.is_some_and(|(made, from)| keeps(made, from))
            };
            *entry == unrounded(entry) && entry.constants().all(|(_, weight)| kept(weight))
        })
    };
    let tables_kept = tables.clone().all(|(made, from)| keeps(&made.table, &from.table))
        && assets.len() == graph.assets.len();
    tables_kept && !compiled.is_empty() && compiled.iter().all(shard)
}

/// Adds 0.5 to the first norm scale of the middle layer, and returns the layer.
fn break_middle_layer(graph: &mut Graph) -> Option<u32> {
    let middle = graph.layers() / 2;
    let decoder = graph.component(ComponentKind::Decoder).ok()?;
    let norm = decoder
        .nodes
        .iter()
        .find(|node| node.layer == Some(middle) && matches!(node.op, Op::RmsNorm { .. }))?;
    let scale = norm.inputs.get(1)?;
    let ValueSource::Constant(weight) = decoder.values[scale.0 as usize].source else { return None };
    let weight = graph.weights.get_mut(weight.0 as usize)?;
    let bytes = weight.data.bytes();
    let widened: Vec<f32> = match weight.dtype {
        DType::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        DType::Bf16 => {
            bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
        }
        DType::F16 => {
            bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
        }
        _ => return None,
    };
    weight.data =
        WeightData::from_vec(widened.iter().flat_map(|value| (value + 0.5).to_le_bytes()).collect());
    weight.dtype = DType::F32;
    for component in &mut graph.components {
        let name = &weight.name;
        component
            .values
            .iter_mut()
            .filter(|value| value.name == *name)
            .for_each(|value| value.dtype = DType::F32);
    }
    Some(middle)
}
