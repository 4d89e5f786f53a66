//! Reads settings and tensors of a directory and translates them. Shared by checkpoints and
//! outlines.

use std::collections::BTreeSet;
use std::path::Path;

use shardwright_graph::Graph;
use shardwright_vocabulary::{DType, Granularity, Ignored, Lora, Pass, Result};

use crate::embeddinggemma::Stack;
use crate::json::CONFIG;
use crate::lora::{Adapter, Adapters};
use crate::quantised::{self, Scheme};
use crate::register::TOWERS;
use crate::settings::{Settings, WITH_TOWERS};
use crate::source::{Source, name_of};
use crate::store::{Origin, TensorStore, Wanted};
use crate::unused_tensors::Reader;
use crate::{embeddinggemma, folder_files, threads};

/// A directory, parsed and translated.
pub(crate) struct Reading {
    pub settings: Settings,
    pub graph: Graph,
    /// The graphs of the requested passes.
    pub towers: Vec<Graph>,
    pub name: String,
    /// Choices made where the checkpoint specifies none.
    pub notes: Vec<String>,
    /// Fields, files and tensors that may matter and were not read.
    pub ignored: Vec<Ignored>,
    /// Fields and tensors of towers that may matter and were not read, by pass.
    pub tower_ignored: Vec<(Pass, Vec<Ignored>)>,
    /// The adapters that are merged into the weights.
    pub adapters: Vec<Adapter>,
    config: Vec<u8>,
    store: TensorStore,
    /// The tensors of modules, by folder.
    module_stores: Vec<(String, TensorStore)>,
}

impl Reading {
    /// Reads the folder or file at a path, as far as `wanted`, and merges adapters.
    pub fn of(path: &Path, wanted: Wanted, passes: &[Pass], adapters: &[Lora]) -> Result<Self> {
        threads::start();
        let source = Source::of(path)?;
        let document = source.document()?;
        let top = document.fields()?;
        let settings = Settings::read(&source, top, passes)?;
        let scheme = Scheme::read(top)?;
        let mut notes: Vec<String> = scheme.iter().filter_map(Scheme::note).collect();
        notes.extend_from_slice(&document.assumed);
        let origin = Origin { family: settings.family(), scheme };
        let store = match &source {
            Source::Folder(folder) => TensorStore::open(folder, &origin, wanted)?,
            Source::Gguf(files) => TensorStore::of_gguf(source.folder(), files.clone(), &origin, wanted)?,
        };
        let adapters = Adapters::open(adapters)?;
        let store = store.merged_with(&adapters)?;
        let name = name_of(path);
        let name = name.strip_suffix(".gguf").unwrap_or(&name).to_owned();
        let (mut translation, module_stores) = match &settings {
            Settings::Gemma3 { stack, redirect } => {
                (stack.translate(store, name.clone(), redirect.clone())?, Vec::new())
            }
            Settings::Gemma4 { stack, placeholders, .. } => {
                (stack.translate(store, name.clone(), placeholders)?, Vec::new())
            }
            Settings::PreNorm(stack) => {
                notes.extend_from_slice(&stack.notes);
                (stack.translate(store, name.clone())?, Vec::new())
            }
            Settings::EmbeddingGemma { stack, sentence } => {
                notes.extend(sentence.note());
                embeddinggemma::translate(Stack::First(stack), sentence, store, name.clone())?
            }
            Settings::EmbeddingGemma2 { stack, placeholders, sentence } => {
                notes.extend(sentence.note());
                let stack = Stack::Second(stack, placeholders);
                embeddinggemma::translate(stack, sentence, store, name.clone())?
            }
        };
        notes.extend(translation.take_notes());
        let prefix = translation.prefix();
        let (graph, store) = translation.finish();
        notes.extend(quantised::unused_scales(&store.unused()));
        let (towers, store) = match &settings {
            Settings::Gemma4 { towers, .. } => towers.translate(store, &name)?,
            _ => (Vec::new(), store),
        };
        notes.extend(nameless(&graph));
        let mut ignored = document.ignored();
        let mut tower_ignored = take_of_towers(&mut ignored);
        ignored.extend_from_slice(settings.sentence().map_or(&[], |sentence| sentence.ignored.as_slice()));
        if let Source::Folder(folder) = &source {
            let weights = store.files().iter().map(|file| name_of(&file.path)).collect();
            ignored.extend(folder_files::ignored(folder, &weights)?);
        }
        let scheme = origin.scheme.as_ref();
        let reader = Reader { settings: &settings, scheme, graph: &graph, towers: &towers, prefix };
        ignored.extend(reader.ignored(&store, top)?);
        ignored.extend(adapters.ignored(&name, source.folder()));
        ignored.extend(reader.unread_changes(&store));
        ignored.extend(module_stores.iter().flat_map(|(_, store)| reader.ignored_of_module(store)));
        for (pass, own) in &mut tower_ignored {
            own.extend(reader.ignored_of_tower(&store, *pass));
        }
        let config = document.bytes;
        Ok(Reading {
            settings,
            graph,
            towers,
            name,
            notes,
            ignored,
            tower_ignored,
            adapters: adapters.described(),
            config,
            store,
            module_stores,
        })
    }

    /// Iterates over the settings files, by name.
    pub fn documents(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let modules = self.settings.sentence().into_iter().flat_map(|sentence| &sentence.documents);
        let modules = modules.map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
        std::iter::once((CONFIG, self.config.as_slice())).chain(modules)
    }

    /// Iterates over the tensor stores, each with the prefix of its folder: empty, or the folder's
    /// name and a slash.
    pub fn stores(&self) -> impl Iterator<Item = (String, &TensorStore)> {
        let modules = self.module_stores.iter().map(|(folder, store)| (format!("{folder}/"), store));
        std::iter::once((String::new(), &self.store)).chain(modules)
    }
}

/// Takes the fields of towers out of `ignored`, by pass.
fn take_of_towers(ignored: &mut Vec<Ignored>) -> Vec<(Pass, Vec<Ignored>)> {
    let take = |(pass, object): (Pass, &str)| {
        let within = format!("{object}.");
        let is_own = |found: &Ignored| found.field.as_ref().is_some_and(|field| field.starts_with(&within));
        let (own, rest): (Vec<_>, Vec<_>) = std::mem::take(ignored).into_iter().partition(is_own);
        *ignored = rest;
        (pass, own)
    };
    TOWERS.into_iter().map(take).collect()
}

/// Returns the fields of one tower.
pub(crate) fn of_pass(fields: &[(Pass, Vec<Ignored>)], pass: Pass) -> &[Ignored] {
    fields.iter().find(|(of, _)| *of == pass).map_or(&[], |(_, found)| found.as_slice())
}

/// Returns the passes for which a checkpoint's settings describe a graph: a step, and each tower
/// that is described.
///
/// # Errors
///
/// The errors of reading the file, and of an unsupported family.
pub fn passes_of(path: impl AsRef<Path>) -> Result<Vec<Pass>> {
    let document = Source::of(path.as_ref())?.document()?;
    let top = document.fields()?;
    let mut passes = vec![Pass::Step];
    if top.text("model_type")? == Some(WITH_TOWERS) {
        for (pass, field) in TOWERS {
            passes.extend(top.object(field)?.map(|_| pass));
        }
    }
    Ok(passes)
}

/// Returns a note on weights in formats that have no name.
fn nameless(graph: &Graph) -> Option<String> {
    let stored = graph.weights.iter().filter_map(|weight| {
        let quantisation = weight.quantisation.as_ref().filter(|_| weight.format().is_none())?;
        match quantisation.granularity {
            Granularity::PerBlock { size, minimum } => {
                let minimums = if minimum { " with minimums" } else { "" };
                Some(format!("{} in blocks of {size}{minimums}", weight.dtype))
            }
            _ => Some(weight.dtype.to_string()),
        }
    });
    let kinds: BTreeSet<String> = stored.clone().collect();
    let kinds = kinds.into_iter().collect::<Vec<_>>().join(", ");
    (!kinds.is_empty()).then(|| {
        let count = stored.count();
        format!(
            "weights stored as {kinds}: {count}; formats have no name for these, a plan keeps them as stored"
        )
    })
}

/// Returns the element type of the weights according to `config.json`, under either of its names.
/// `None` if it specifies none. The text part of a multimodal checkpoint may have its own.
pub(crate) fn configured_dtype(path: &Path) -> Result<Option<DType>> {
    const NAMES: [&str; 2] = ["dtype", "torch_dtype"];
    let document = Source::of(path)?.document()?;
    let top = document.fields()?;
    let text = top.object("text_config")?;
    for fields in text.into_iter().chain([top]) {
        for name in NAMES {
            return match fields.text(name)? {
                None => continue,
                Some("float32") => Ok(Some(DType::F32)),
                Some("float16") => Ok(Some(DType::F16)),
                Some("bfloat16") => Ok(Some(DType::Bf16)),
                Some(_) => Err(fields.unsupported(name, "`bfloat16`, `float16`, `float32`")),
            };
        }
    }
    Ok(None)
}
