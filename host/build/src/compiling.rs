//! From a checkpoint to a bundle.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use shardwright_bundle::{
    AssetEntry, Bundle, BundleWriter, ChainEntry, Digest, Manifest, ModelIdentity, Structure, TextFile,
    TowerEntry,
};
use shardwright_graph::Graph;
use shardwright_models::Checkpoint;
use shardwright_shims::{Part, Watch};
use shardwright_text::Tokenizer;
use shardwright_vocabulary::{Error, ErrorKind, Notice, Pass};

use crate::checkpoint::passes_with;
use crate::{
    BundleStore, BundleTrying, CheckpointSource, PlanOptions, PlanReport, Purpose, Result, Settled,
    TowerScope, TowerSource, Trying, expect_checkpoint, on_the_cpu, settle, settle_trying, tower_weights,
    towers_of,
};

/// The result of compiling.
#[derive(Clone, Debug, Serialize)]
pub struct CompileReport {
    /// Identity of the bundle: the hash of its manifest.
    pub bundle: String,
    /// Path of the bundle.
    pub directory: String,
    /// Total bytes of its files.
    pub bytes: u64,
    /// Names of its chains, in the order in which they are tried.
    pub chains: Vec<String>,
    /// Number of artefacts reused from an earlier, interrupted run.
    pub artefacts_reused: usize,
    /// The plan of the first chain.
    pub plan: PlanReport,
}

/// Progress once the first chain is made, in thousandths; a chain for the CPU and the writing of
/// tables may follow.
const PRIMARY: u32 = 850;
/// The same where towers follow as well.
const PRIMARY_BESIDE_TOWERS: u32 = 500;
/// Progress once every chain is made, in thousandths.
const WRITTEN: u32 = 970;

/// Compiles a checkpoint into a bundle: the chain of the plan, and a CPU chain if the plan names
/// fallback targets; and the same of each tower that the options ask for.
pub fn compile(
    directory: &Path,
    into: &Path,
    options: &PlanOptions,
    watch: &mut dyn Watch,
) -> Result<CompileReport> {
    compile_trying(directory, into, options, None, BundleTrying::default(), watch)
}

/// The same, in which the plans of first chains also have to be proved, or are known. What
/// `earlier` holds of the same work orders is copied from there. Nothing but a whole bundle is ever
/// named by a manifest; what an interrupted or failed run compiled is there for the next.
pub fn compile_trying(
    directory: &Path,
    into: &Path,
    options: &PlanOptions,
    earlier: Option<&Bundle>,
    mut trying: BundleTrying<'_>,
    watch: &mut dyn Watch,
) -> Result<CompileReport> {
    expect_checkpoint(directory)?;
    let (scopes, left_out) = towers_of(directory, options)?;
    let checkpoint = Checkpoint::open_for(directory, &passes_with(&scopes))?;
    let mut writer = BundleWriter::create(into)?;
    let identity = Digest::from(checkpoint.content_hash());
    let mut store = BundleStore::new(&mut writer)?;
    if let Some(earlier) = earlier {
        store = store.reusing(earlier);
    }

    watch.progress(0, "reading");
    let mut all = Part::new(watch, 0..1000);
    let mut source = CheckpointSource::new(&checkpoint, options);
    let mut first = all.then(if scopes.is_empty() { PRIMARY } else { PRIMARY_BESIDE_TOWERS });
    let primary = settle_trying(&mut source, options, Purpose::Compile, &mut store, trying.text, &mut first)?;
    drop(first);
    let mut chains = vec![chain(&mut store, "primary", &primary)?];
    if let Some(cpu) = on_the_cpu(options, &primary) {
        let mut source = CheckpointSource::new(&checkpoint, &cpu);
        let fallback = settle(&mut source, &cpu, Purpose::Compile, &mut store, &mut all.most_of_the_rest())?;
        chains.push(chain(&mut store, "cpu", &fallback)?);
    }
    let mut towers = Vec::new();
    for scope in &scopes {
        let trying = trying.towers.remove(&scope.pass).unwrap_or_default();
        towers.push(tower(&checkpoint, scope, options, &mut store, trying, &mut all.most_of_the_rest())?);
    }
    let artefacts_reused = store.recalled();

    let mut plan = primary.report_now();
    let Settled { profile, graph, report, ranges, .. } = primary;
    all.progress(WRITTEN, "writing tables and texts");
    let mut add_assets = |graph: &Graph| -> Result<Vec<AssetEntry>> {
        let assets = graph.assets.iter().map(|asset| writer.add_asset(asset));
        Ok(assets.collect::<std::result::Result<_, _>>()?)
    };
    let assets = add_assets(&graph)?;
    let mut notices = report.notices.clone();
    let mut say = |said: &[Notice]| {
        for notice in said {
            if notices.iter().all(|known| known.text != notice.text) {
                notices.push(notice.clone());
            }
        }
    };
    say(left_out.as_slice());
    plan.notices.extend(left_out);
    let mut entries = Vec::new();
    for CompiledTower { pass, graph, chains, report, shown } in towers {
        say(&report.notices);
        plan.towers.push(shown);
        entries.push(TowerEntry {
            pass,
            weights: Digest::from(tower_weights(&graph)?),
            structure: Structure::of(&graph),
            assets: add_assets(&graph)?,
            chains,
        });
    }
    let calibration = match ranges.map(|ranges| serde_json::to_vec(&ranges)).transpose() {
        Ok(bytes) => bytes.map(|bytes| Digest::of(&bytes)),
        Err(error) => return Err(Error::new(ErrorKind::Internal, format!("ranges as JSON: {error}"))),
    };
    let texts = writer.add_texts(directory)?;
    let tokenizer_index = match texts.contains_key(&TextFile::Tokenizer) {
        true => Tokenizer::from_file(directory.join(TextFile::Tokenizer.name()))?
            .index()
            .map(|index| writer.add_bytes(index))
            .transpose()?,
        false => None,
    };
    let facts = checkpoint.facts();
    let manifest = Manifest {
        program: concat!("shardwright ", env!("CARGO_PKG_VERSION")).to_owned(),
        model: ModelIdentity {
            name: facts.name.clone(),
            family: facts.family.to_string(),
            checkpoint: identity,
            calibration,
        },
        soc: profile.name,
        planner: report.planner.clone(),
        options: asked(options),
        structure: Structure::of(&graph),
        assets,
        texts,
        tokenizer_index,
        chains,
        towers: entries,
        verifications: Vec::new(),
        notices,
    };
    let names = manifest.all_chains().map(|chain| chain.name.clone()).collect();
    let bundle = writer.finish(&manifest)?;
    Ok(CompileReport {
        bundle: bundle.sha256().to_string(),
        directory: into.display().to_string(),
        bytes: bundle.total_bytes(),
        chains: names,
        artefacts_reused,
        plan,
    })
}

/// A tower whose chains are compiled.
struct CompiledTower {
    pass: Pass,
    graph: Graph,
    chains: Vec<ChainEntry>,
    /// The plan of the first chain: the same for the same inputs.
    report: PlanReport,
    /// The same with all that is to be said of this run.
    shown: PlanReport,
}

/// Compiles a tower: the chain of its plan, and one for the CPU if the plan falls back to it.
fn tower(
    checkpoint: &Checkpoint,
    scope: &TowerScope,
    options: &PlanOptions,
    store: &mut BundleStore<'_>,
    trying: Trying<'_>,
    watch: &mut dyn Watch,
) -> Result<CompiledTower> {
    let mut watch = Part::new(watch, 0..1000);
    let own = scope.options(options);
    let pass = scope.pass;
    let mut compiled = |name: String, options: &PlanOptions, trying, watch: &mut dyn Watch| {
        let mut source = TowerSource::new(checkpoint, scope, options)?;
        let settled = settle_trying(&mut source, options, Purpose::Compile, store, trying, watch)?;
        Ok::<_, Error>((chain(store, &name, &settled)?, settled))
    };
    let (first, settled) = compiled(pass.to_string(), &own, trying, &mut watch.then(PRIMARY))?;
    let mut chains = vec![first];
    if let Some(cpu) = on_the_cpu(&own, &settled) {
        chains
            .push(compiled(format!("{pass}.cpu"), &cpu, Trying::default(), &mut watch.most_of_the_rest())?.0);
    }
    let shown = settled.report_now();
    let Settled { graph, report, .. } = settled;
    Ok(CompiledTower { pass, graph, chains, report, shown })
}

fn chain(store: &mut BundleStore<'_>, name: &str, settled: &Settled) -> Result<ChainEntry> {
    let Settled { request, plan, shards, report, .. } = settled;
    Ok(store.chain(name, request, plan, shards, report)?)
}

/// Everything the user asked for beyond the defaults, by name.
fn asked(options: &PlanOptions) -> BTreeMap<String, String> {
    let mut asked = BTreeMap::new();
    asked.extend(options.context.map(|context| ("context".to_owned(), context.to_string())));
    asked.extend(options.on.map(|on| ("on".to_owned(), on.name().to_owned())));
    asked.extend(options.limits.iter().map(|(name, value)| (format!("limit.{name}"), value.to_string())));
    asked.extend(options.flags.iter().map(|(name, value)| (format!("flag.{name}"), value.clone())));
    let left_out = options.flags_left_out.iter();
    asked.extend(left_out.map(|name| (format!("without-flag.{name}"), "true".to_owned())));
    let planner = options.planner_options.iter();
    asked.extend(planner.map(|(name, value)| (format!("planner.{name}"), value.clone())));
    let tables = [("embedding", options.tables.embedding), ("per-layer", options.tables.per_layer)];
    for (name, format) in tables {
        asked.extend(format.map(|format| (format!("table.{name}"), format.to_string())));
    }
    asked.extend(options.towers.asked());
    asked
}
