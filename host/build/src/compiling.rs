//! From a checkpoint to a bundle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;
use shardwright_bundle::{
    AssetEntry, Bundle, BundleWriter, ChainEntry, Digest, FileReference, Manifest, ModelIdentity, Structure,
    TextFile, TowerEntry, Variant,
};
use shardwright_graph::Graph;
use shardwright_models::Checkpoint;
use shardwright_planning::profile::GENERIC;
use shardwright_shims::{Part, Watch};
use shardwright_text::Tokenizer;
use shardwright_vocabulary::{Error, ErrorKind, Notice, Pass};

use crate::checkpoint::{PRIMARY_CHAIN, passes_with};
use crate::{
    BundleStore, BundleTrying, CheckpointSource, PlanOptions, PlanReport, Purpose, Result, Settled,
    TowerScope, TowerSource, Trying, expect_checkpoint, settle_trying, tower_weights, towers_of,
};

mod later;
use later::LaterChains;

/// The result of compiling.
#[derive(Clone, Debug, Serialize)]
pub struct CompileReport {
    /// Identity of the bundle: the hash of its manifest.
    pub bundle: String,
    /// Path of the bundle.
    pub directory: String,
    /// Total bytes of its files.
    pub bytes: u64,
    /// Number of artefacts reused: of another variant, or of an earlier, interrupted run.
    pub artefacts_reused: usize,
    /// What it was compiled into, in the order of the chips that were asked for.
    pub variants: Vec<CompiledVariant>,
    /// Chips it was not compiled for, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedVariant>,
}

/// A variant of a compiled bundle.
#[derive(Clone, Debug, Serialize)]
pub struct CompiledVariant {
    /// The chip.
    pub soc: String,
    /// Names of its chains, in the order in which they are tried.
    pub chains: Vec<String>,
    /// Bytes of what a device of that chip needs: its artefacts, tables and texts.
    pub bytes: u64,
    /// How many of them no other variant has.
    pub own_bytes: u64,
    /// The plan of its first chain.
    pub plan: PlanReport,
}

/// A chip that a checkpoint was not compiled for.
#[derive(Clone, Debug, Serialize)]
pub struct FailedVariant {
    /// The chip, as it was asked for.
    pub soc: String,
    /// Why.
    pub error: String,
    /// What would help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

/// Progress once the first chain is made, in thousandths; those that it falls back to and the
/// writing of tables may follow.
const PRIMARY: u32 = 850;
/// The same where towers follow as well.
const PRIMARY_BESIDE_TOWERS: u32 = 500;
/// Progress once every chain is made, in thousandths.
const WRITTEN: u32 = 970;

/// Compiles a checkpoint into a bundle: the chain of the plan, and one for each target that it
/// falls back to; and the same of each tower that the options ask for.
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
/// named by a manifest; what an interrupted or failed run compiled is there for the next. Variants
/// of `earlier` for other chips and its goldens are copied too: it is of the same checkpoint.
pub fn compile_trying(
    directory: &Path,
    into: &Path,
    options: &PlanOptions,
    earlier: Option<&Bundle>,
    trying: BundleTrying<'_>,
    watch: &mut dyn Watch,
) -> Result<CompileReport> {
    let mut compiling = Compiling::begin(directory, into)?;
    let made = compiling.variant(options, earlier, trying, watch)?;
    let others = earlier.map(|earlier| compiling.copy(earlier, &made.0.soc)).transpose()?;
    compiling.finish(vec![made], others.unwrap_or_default(), Vec::new())
}

/// Compiles a checkpoint into a bundle with a variant for each of several chips. A chip that it
/// cannot be compiled for loses no other: the bundle has those that it can.
///
/// # Errors
///
/// The first failure if there is no variant at all, and at once that of a cancellation.
pub fn compile_variants(
    directory: &Path,
    into: &Path,
    variants: &[PlanOptions],
    watch: &mut dyn Watch,
) -> Result<CompileReport> {
    let mut compiling = Compiling::begin(directory, into)?;
    let mut all = Part::new(watch, 0..1000);
    let (mut compiled, mut failed) = (Vec::new(), Vec::new());
    let mut first_error = None;
    for (index, options) in variants.iter().enumerate() {
        let soc = options.soc.clone().unwrap_or_else(|| GENERIC.to_owned());
        let end = 1000 * (index as u32 + 1) / variants.len().max(1) as u32;
        let mut watch = all.then(end).named(format!("for {soc}"));
        match compiling.variant(options, None, BundleTrying::default(), &mut watch) {
            Ok((variant, _)) if compiled.iter().any(|(known, _): &(Variant, _)| known.soc == variant.soc) => {
                let what = format!("`{soc}` is {}, which was asked for already", variant.soc);
                return Err(Error::new(ErrorKind::Argument, what).with_help("name each chip once"));
            }
            Ok(made) => compiled.push(made),
            Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
            Err(error) => {
                let help = error.help().map(str::to_owned);
                failed.push(FailedVariant { soc, error: error.to_string(), help });
                first_error.get_or_insert(error);
            }
        }
    }
    match first_error.filter(|_| compiled.is_empty()) {
        Some(error) => Err(error),
        None => compiling.finish(compiled, Vec::new(), failed),
    }
}

/// A bundle that is being compiled.
struct Compiling<'c> {
    directory: &'c Path,
    into: &'c Path,
    /// There once something can be compiled: what is refused before leaves no folder.
    writer: Option<BundleWriter>,
    reused: usize,
    model: Option<ModelIdentity>,
    /// Those of an earlier bundle.
    goldens: Option<FileReference>,
}

impl<'c> Compiling<'c> {
    fn begin(directory: &'c Path, into: &'c Path) -> Result<Self> {
        expect_checkpoint(directory)?;
        Ok(Compiling { directory, into, writer: None, reused: 0, model: None, goldens: None })
    }

    /// Compiles a variant; also gives the plan of its first chain.
    fn variant(
        &mut self,
        options: &PlanOptions,
        earlier: Option<&Bundle>,
        mut trying: BundleTrying<'_>,
        watch: &mut dyn Watch,
    ) -> Result<(Variant, PlanReport)> {
        let (scopes, left_out) = towers_of(self.directory, options)?;
        let checkpoint = Checkpoint::open_for(self.directory, &passes_with(&scopes))?;
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => none.insert(BundleWriter::create(self.into)?),
        };
        let mut store = BundleStore::new(writer)?;
        if let Some(earlier) = earlier {
            store = store.reusing(earlier);
        }

        watch.progress(0, "reading");
        let mut all = Part::new(watch, 0..1000);
        let mut compiled = |name: &str, options: &PlanOptions, trying: Trying<'_>, watch: &mut dyn Watch| {
            let mut source = CheckpointSource::new(&checkpoint, options);
            let settled = settle_trying(&mut source, options, Purpose::Compile, &mut store, trying, watch)?;
            Ok::<_, Error>((chain(&mut store, name, &settled)?, settled))
        };
        let end = if scopes.is_empty() { PRIMARY } else { PRIMARY_BESIDE_TOWERS };
        let (first, primary) = compiled(PRIMARY_CHAIN, options, trying.text, &mut all.then(end))?;
        let mut later = LaterChains::default();
        for one in primary.fallbacks(options) {
            let mut watch = all.most_of_the_rest();
            later.take(&one.name, compiled(&one.name, &one.options, Trying::default(), &mut watch))?;
        }
        let mut towers = Vec::new();
        for scope in &scopes {
            let trying = trying.towers.remove(&scope.pass).unwrap_or_default();
            towers.push(tower(&checkpoint, scope, options, &mut store, trying, &mut all.most_of_the_rest())?);
        }
        self.reused += store.recalled();

        let mut plan = primary.report_now();
        plan.notices.append(&mut later.said);
        let Settled { profile, graph, report, ranges, .. } = primary;
        all.progress(WRITTEN, "writing tables");
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
        say(&later.lacking);
        say(left_out.as_slice());
        plan.notices.extend(left_out);
        let mut entries = Vec::new();
        for CompiledTower { pass, graph, chains, report, shown, lacking } in towers {
            say(&report.notices);
            say(&lacking);
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
        let facts = checkpoint.facts();
        self.model = Some(ModelIdentity {
            name: facts.name.clone(),
            family: facts.family.to_string(),
            checkpoint: Digest::from(checkpoint.content_hash()),
        });
        let variant = Variant {
            soc: profile.name,
            aliases: profile.aliases,
            calibration,
            planner: report.planner.clone(),
            options: asked(options),
            structure: Structure::of(&graph),
            assets,
            chains: later.after(first),
            towers: entries,
            verifications: Vec::new(),
            notices,
        };
        Ok((variant, plan))
    }

    /// Copies the variants of another bundle for other chips than `soc` with their files, and its
    /// goldens.
    fn copy(&mut self, earlier: &Bundle, soc: &str) -> Result<Vec<Variant>> {
        let others = earlier.manifest().variants.iter().filter(|variant| variant.soc != soc);
        let others: Vec<Variant> = others.cloned().collect();
        let writer = self.writer.as_mut().ok_or_else(nothing_compiled)?;
        self.goldens = earlier.manifest().goldens;
        for file in others.iter().flat_map(files_of).chain(self.goldens) {
            writer.add_reader(earlier.proved(&file)?.reader())?;
        }
        Ok(others)
    }

    /// Writes what all variants share, and the manifest.
    fn finish(
        self,
        compiled: Vec<(Variant, PlanReport)>,
        others: Vec<Variant>,
        failed: Vec<FailedVariant>,
    ) -> Result<CompileReport> {
        let mut writer = self.writer.ok_or_else(nothing_compiled)?;
        let texts = writer.add_texts(self.directory)?;
        let tokenizer_index = match texts.contains_key(&TextFile::Tokenizer) {
            true => Tokenizer::from_file(self.directory.join(TextFile::Tokenizer.name()))?
                .index()
                .map(|index| writer.add_bytes(index))
                .transpose()?,
            false => None,
        };
        let (mut variants, plans): (Vec<Variant>, Vec<PlanReport>) = compiled.into_iter().unzip();
        let shared: BTreeSet<FileReference> = texts.values().copied().chain(tokenizer_index).collect();
        let reports = variants.iter().zip(plans).map(|(variant, plan)| {
            let files = files_of(variant);
            let others = variants.iter().filter(|other| other.soc != variant.soc);
            let others: BTreeSet<FileReference> = others.flat_map(files_of).collect();
            CompiledVariant {
                soc: variant.soc.clone(),
                chains: variant.all_chains().map(|chain| chain.name.clone()).collect(),
                bytes: files.union(&shared).map(|file| file.bytes).sum(),
                own_bytes: files.difference(&others).map(|file| file.bytes).sum(),
                plan,
            }
        });
        let reports: Vec<CompiledVariant> = reports.collect();
        variants.extend(others);
        // Equal variants give equal bytes, in whatever order they were asked for.
        variants.sort_by(|one, other| one.soc.cmp(&other.soc));
        let manifest = Manifest {
            program: concat!("shardwright ", env!("CARGO_PKG_VERSION")).to_owned(),
            model: self.model.ok_or_else(nothing_compiled)?,
            texts,
            tokenizer_index,
            goldens: self.goldens,
            variants,
        };
        let bundle = writer.finish(&manifest)?;
        Ok(CompileReport {
            bundle: bundle.sha256().to_string(),
            directory: self.into.display().to_string(),
            bytes: bundle.total_bytes(),
            artefacts_reused: self.reused,
            variants: reports,
            failed,
        })
    }
}

fn nothing_compiled() -> Error {
    Error::new(ErrorKind::Internal, "nothing was compiled")
}

/// The files that a variant names.
fn files_of(variant: &Variant) -> BTreeSet<FileReference> {
    variant.references().into_iter().map(|(_, file)| file).collect()
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
    /// Chains that its plan falls back to and that were not made.
    lacking: Vec<Notice>,
}

/// Compiles a tower: the chain of its plan, and those that the plan falls back to.
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
    let mut compiled = |name: &str, options: &PlanOptions, trying: Trying<'_>, watch: &mut dyn Watch| {
        let mut source = TowerSource::new(checkpoint, scope, options)?;
        let settled = settle_trying(&mut source, options, Purpose::Compile, store, trying, watch)?;
        Ok::<_, Error>((chain(store, name, &settled)?, settled))
    };
    let (first, settled) = compiled(pass.name(), &own, trying, &mut watch.then(PRIMARY))?;
    let mut later = LaterChains::default();
    for one in settled.fallbacks(&own) {
        let name = scope.chain_name(&one.name);
        let mut watch = watch.most_of_the_rest();
        later.take(&name, compiled(&name, &one.options, Trying::default(), &mut watch))?;
    }
    let mut shown = settled.report_now();
    shown.notices.append(&mut later.said);
    let lacking = std::mem::take(&mut later.lacking);
    let Settled { graph, report, .. } = settled;
    Ok(CompiledTower { pass, graph, chains: later.after(first), report, shown, lacking })
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
