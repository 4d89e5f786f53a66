//! A bundle that is being compiled: its separate variants, and their shared files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use shardwright_build::{
    BundleLoopStart, BundleStore, LoopStart, PlanOptions, PlanReport, Purpose, RecordedLora, RecordedOptions,
    Settled, SharedWriter, settle_from,
};
use shardwright_bundle::{
    AssetEntry, Bundle, BundleWriter, ChainEntry, Digest, FileReference, Manifest, ModelIdentity, Structure,
    TextFile, TowerEntry, Variant,
};
use shardwright_files::output::expect_folder;
use shardwright_gguf::model_at;
use shardwright_graph::{Asset, Graph};
use shardwright_models::Checkpoint;
use shardwright_text::{TOKENIZER_BYTES_MAX, Tokenizer, text_file};
use shardwright_vocabulary::{Error, ErrorKind, Notice, Part, Pass, PlainName, Result, Watch};

use super::fallback_chains::LaterChains;
use super::gate::Seat;
use super::throttled_source::ThrottledSource;
use super::{CompileReport, CompiledVariant, FailedVariant};
use crate::path::passes_with;
use crate::{Builder, TowerScope, expect_checkpoint, open_adapted, tower_weights, towers_of};

/// Progress after the first chain is made, in thousandths. Fallback chains and the writing of
/// tables may follow.
const PRIMARY: u32 = 850;
/// Progress after the first chain is made, in thousandths, if towers follow too.
const PRIMARY_BESIDE_TOWERS: u32 = 500;
/// Progress after every chain is made, in thousandths.
const WRITTEN: u32 = 970;

/// A bundle that is being compiled. Several threads compile its variants.
pub(super) struct Compiling<'c> {
    directory: &'c Path,
    into: &'c Path,
    /// Created when the first variant can be compiled, so that a rejected request leaves no folder
    /// behind.
    writer: Mutex<Option<Arc<SharedWriter>>>,
}

pub(super) struct Made {
    variant: Variant,
    /// The plan of its first chain.
    plan: PlanReport,
    model: ModelIdentity,
    /// Number of artefacts that were reused.
    reused: usize,
}

impl Made {
    /// Returns the chip of the variant.
    pub fn soc(&self) -> &str {
        &self.variant.soc
    }
}

/// Contents copied from an earlier bundle.
#[derive(Default)]
pub(super) struct Others {
    variants: Vec<Variant>,
    goldens: Option<FileReference>,
}

impl<'c> Compiling<'c> {
    /// Starts a bundle. Fails if `directory` is not a checkpoint.
    pub fn begin(directory: &'c Path, into: &'c Path) -> Result<Self> {
        expect_checkpoint(directory)?;
        // A link to a folder is followed.
        if !into.is_dir() {
            expect_folder(into)?;
        }
        Ok(Compiling { directory, into, writer: Mutex::default() })
    }

    fn writer(&self) -> Result<Arc<SharedWriter>> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = match writer.take() {
            Some(writer) => writer,
            None => Arc::new(SharedWriter::new(BundleWriter::create(self.into)?)),
        };
        Ok(writer.insert(shared).clone())
    }

    /// Compiles a variant. With a seat, it waits for its turn among variants that are compiled at
    /// the same time.
    pub fn variant(
        &self,
        options: &PlanOptions,
        earlier: Option<&Bundle>,
        mut trying: BundleLoopStart<'_>,
        seat: Option<&Seat<'_>>,
        watch: &mut dyn Watch,
    ) -> Result<Made> {
        let (scopes, left_out) = towers_of(self.directory, options)?;
        let checkpoint = open_adapted(self.directory, &passes_with(&scopes), options)?;
        let writer = &*self.writer()?;
        let rules = options.trust.rules(options.cache.as_deref())?;
        let named = options.reuse.as_ref().map(|path| Bundle::open_trusting(path, &rules)).transpose()?;
        let mut store = BundleStore::new(writer)?;
        if let Some(earlier) = earlier.or(named.as_ref()) {
            store = store.reusing(earlier);
        }

        watch.progress(0, "reading");
        let mut all = Part::new(watch, 0..1000);
        let end = if scopes.is_empty() { PRIMARY } else { PRIMARY_BESIDE_TOWERS };
        let text = (Builder::new(&checkpoint, None), options);
        let (first, primary, mut later) = chains(text, &mut store, trying.text, seat, end, &mut all)?;
        let mut towers = Vec::new();
        for scope in &scopes {
            let trying = trying.towers.remove(&scope.pass).unwrap_or_default();
            let mut watch = all.most_of_the_rest();
            towers.push(tower(&checkpoint, (scope, options), &mut store, trying, seat, &mut watch)?);
        }
        let reused = store.recalled();

        let mut plan = primary.report_now();
        plan.notices.append(&mut later.said);
        plan.notices.extend(rules.take_notices());
        let Settled { profile, graph, report, ranges, .. } = primary;
        all.progress(WRITTEN, "writing tables");
        let assets = add_assets(writer, &graph)?;
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
                assets: add_assets(writer, &graph)?,
                chains,
            });
        }
        let calibration = match ranges.map(|ranges| serde_json::to_vec(&ranges)).transpose() {
            Ok(bytes) => bytes.map(|bytes| Digest::of(&bytes)),
            Err(error) => return Err(Error::internal(format!("cannot serialise the ranges: {error}"))),
        };
        let facts = checkpoint.facts();
        let model = ModelIdentity {
            name: facts.name.clone(),
            family: facts.family.to_string(),
            checkpoint: Digest::from(checkpoint.content_hash()),
        };
        let mut variant = Variant {
            soc: PlainName::new(profile.name)?,
            aliases: profile.aliases,
            calibration,
            planner: report.planner.clone(),
            options: recorded(options, &checkpoint)?,
            structure: Structure::of(&graph),
            assets,
            chains: later.after(first),
            towers: entries,
            verifications: Vec::new(),
            notices,
        };
        let towers = variant.towers.iter_mut().flat_map(|tower| &mut tower.chains);
        for chain in variant.chains.iter_mut().chain(towers) {
            chain.planner = chain.planner.take().filter(|own| *own != variant.planner);
        }
        Ok(Made { variant, plan, model, reused })
    }

    /// Copies the variants of another bundle for chips other than `soc` with their files, and its
    /// goldens.
    pub fn copy(&self, earlier: &Bundle, soc: &str) -> Result<Others> {
        let others = earlier.manifest().variants.iter().filter(|variant| variant.soc != *soc);
        let variants: Vec<Variant> = others.cloned().collect();
        let goldens = earlier.manifest().goldens;
        let writer = self.writer()?;
        for file in variants.iter().flat_map(files_of).chain(goldens) {
            writer.lock().add_reader(earlier.proved(&file)?.reader())?;
        }
        Ok(Others { variants, goldens })
    }

    /// Writes the files that all variants share, and the manifest.
    pub fn finish(
        self,
        compiled: Vec<Made>,
        others: Others,
        failed: Vec<FailedVariant>,
    ) -> Result<CompileReport> {
        let shared = self.writer.into_inner().unwrap_or_else(PoisonError::into_inner);
        let shared = shared.and_then(Arc::into_inner).ok_or_else(nothing_compiled)?;
        let mut writer = shared.into_inner();
        let model = compiled.first().map(|made| made.model.clone()).ok_or_else(nothing_compiled)?;
        let artefacts_reused = compiled.iter().map(|made| made.reused).sum();
        let texts = texts_of(self.directory, &mut writer)?;
        let tokenizer_index = match texts.contains_key(&TextFile::Tokenizer) {
            true => Tokenizer::from_checkpoint(self.directory)?
                .index()
                .map(|index| writer.add_bytes(index))
                .transpose()?,
            false => None,
        };
        let made = compiled.into_iter().map(|Made { variant, plan, .. }| (variant, plan));
        let (mut variants, plans): (Vec<Variant>, Vec<PlanReport>) = made.unzip();
        let shared: BTreeSet<FileReference> = texts.values().copied().chain(tokenizer_index).collect();
        let reports = variants.iter().zip(plans).map(|(variant, plan)| {
            let files = files_of(variant);
            let others = variants.iter().filter(|other| other.soc != variant.soc);
            let others: BTreeSet<FileReference> = others.flat_map(files_of).collect();
            CompiledVariant {
                soc: variant.soc.to_string(),
                chains: variant.all_chains().map(|chain| chain.name.clone()).collect(),
                bytes: files.union(&shared).map(|file| file.bytes).sum(),
                own_bytes: files.difference(&others).map(|file| file.bytes).sum(),
                hedge_bytes: hedge_bytes(variant),
                plan,
            }
        });
        let reports: Vec<CompiledVariant> = reports.collect();
        variants.extend(others.variants);
        // Equal variants give equal bytes, whatever the order of the request.
        variants.sort_by(|one, other| one.soc.cmp(&other.soc));
        let manifest = Manifest {
            program: concat!("shardwright ", env!("CARGO_PKG_VERSION")).to_owned(),
            model,
            texts,
            tokenizer_index,
            goldens: others.goldens,
            variants,
        };
        let bundle = writer.finish(&manifest)?;
        Ok(CompileReport {
            bundle: bundle.sha256().to_string(),
            directory: self.into.display().to_string(),
            bytes: bundle.total_bytes(),
            artefacts_reused,
            variants: reports,
            failed,
        })
    }
}

/// Adds the gathered tables of a model, whose values must be finite.
fn add_assets(writer: &SharedWriter, graph: &Graph) -> Result<Vec<AssetEntry>> {
    let add = |asset: &Asset| {
        asset.table.expect_finite()?;
        writer.lock().add_asset(asset)
    };
    graph.assets.iter().map(add).collect()
}

/// Adds the text files of a folder, or the text files made from a GGUF file's metadata.
fn texts_of(checkpoint: &Path, writer: &mut BundleWriter) -> Result<BTreeMap<TextFile, FileReference>> {
    if checkpoint.is_dir() && model_at(checkpoint)?.is_none() {
        return writer.add_texts(checkpoint);
    }
    let mut texts = BTreeMap::new();
    for &text in TextFile::ALL {
        if let Some(bytes) = text_file(checkpoint, text.name(), TOKENIZER_BYTES_MAX)? {
            texts.insert(text, writer.add_bytes(&bytes)?);
        }
    }
    Ok(texts)
}

fn nothing_compiled() -> Error {
    Error::new(ErrorKind::Internal, "nothing was compiled")
}

/// Returns the files that a variant names.
fn files_of(variant: &Variant) -> BTreeSet<FileReference> {
    variant.references().into_iter().map(|(_, file)| file).collect()
}

/// Returns the bytes of the artefacts that only hedges of a variant have.
fn hedge_bytes(variant: &Variant) -> u64 {
    let artefacts = |hedges: bool| {
        let chains = variant.all_chains().filter(move |chain| chain.is_hedge() == hedges);
        chains.flat_map(|chain| &chain.shards).map(|shard| shard.artefact).collect::<BTreeSet<_>>()
    };
    artefacts(true).difference(&artefacts(false)).map(|file| file.bytes).sum()
}

/// A tower whose chains are compiled.
struct CompiledTower {
    pass: Pass,
    graph: Graph,
    chains: Vec<ChainEntry>,
    /// The plan of the first chain. It is equal for equal inputs.
    report: PlanReport,
    /// The plan of the first chain with all notices of this run.
    shown: PlanReport,
    /// Notices about fallback chains of the plan that were not made.
    lacking: Vec<Notice>,
}

/// Compiles a tower: the chain of its plan, and its fallback chains.
fn tower(
    checkpoint: &Checkpoint,
    (scope, options): (&TowerScope, &PlanOptions),
    store: &mut BundleStore<'_>,
    trying: LoopStart<'_>,
    seat: Option<&Seat<'_>>,
    watch: &mut dyn Watch,
) -> Result<CompiledTower> {
    let mut watch = Part::new(watch, 0..1000);
    let own = scope.options(options);
    let pass = scope.pass;
    let builder = (Builder::new(checkpoint, Some(scope)), &own);
    let (first, settled, mut later) = chains(builder, store, trying, seat, PRIMARY, &mut watch)?;
    let mut shown = settled.report_now();
    shown.notices.append(&mut later.said);
    let lacking = std::mem::take(&mut later.lacking);
    let Settled { graph, report, .. } = settled;
    Ok(CompiledTower { pass, graph, chains: later.after(first), report, shown, lacking })
}

/// Compiles the first chain of a model, which ends at a progress of `end`, and its fallback chains.
fn chains(
    (builder, options): (Builder<'_>, &PlanOptions),
    store: &mut BundleStore<'_>,
    trying: LoopStart<'_>,
    seat: Option<&Seat<'_>>,
    end: u32,
    watch: &mut Part<'_>,
) -> Result<(ChainEntry, Settled, LaterChains)> {
    let mut compiled = |name: &str, options: &PlanOptions, trying: LoopStart<'_>, watch: &mut dyn Watch| {
        let within = options.within.as_slice();
        let mut source = ThrottledSource::new(builder.source(options)?, options, seat, watch)?;
        let settled = settle_from(&mut source, options, Purpose::Compile, store, trying, watch)?;
        let Settled { request, plan, shards, report, .. } = &settled;
        Ok::<_, Error>((store.chain((name, within), request, plan, shards, report)?, settled))
    };
    let (first, settled) = compiled(builder.first_name(), options, trying, &mut watch.then(end))?;
    let mut later = LaterChains::of(&settled.report);
    for one in settled.fallbacks(options) {
        let mut watch = watch.most_of_the_rest();
        later.take(&one.name, compiled(&one.name, &one.options, LoopStart::default(), &mut watch))?;
    }
    Ok((first, settled, later))
}

/// Returns the options to record. Defaults are left out.
fn recorded(options: &PlanOptions, checkpoint: &Checkpoint) -> Result<BTreeMap<String, serde_json::Value>> {
    let calibration_digest = options.calibration_digest()?;
    let lora = checkpoint.adapters().iter().map(|adapter| RecordedLora {
        name: adapter.name.clone(),
        scale: adapter.scale,
        config: adapter.config.into(),
        weights: adapter.weights.into(),
    });
    let recorded = RecordedOptions { calibration_digest, lora: lora.collect(), ..options.recorded.clone() };
    serde_json::to_value(&recorded)
        .and_then(|mut options| {
            // Sorted, as in a program without the text crate, which keeps the order of members.
            options.sort_all_objects();
            serde_json::from_value(options)
        })
        .map_err(|error| Error::new(ErrorKind::Internal, format!("cannot serialise the options: {error}")))
}
