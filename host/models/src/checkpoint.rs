use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use sha2::{Digest, Sha256};
use shardwright_graph::{Graph, Pass};
use shardwright_vocabulary::{Ignored, Lora, Result};

use crate::facts::{Facts, FileFacts};
use crate::family::Family;
use crate::reader::{Reading, of_pass};
use crate::source::name_of;
use crate::store::Wanted;
use crate::{Adapter, UnusedTensor, register};

/// Bytes that one thread hashes at a time.
const HASHED_AT_ONCE: usize = 8 << 20;

/// A directory in Hugging Face layout, parsed and translated.
///
/// Weights stay in the files, which are mapped. So opening reads headers only, and the graph keeps
/// the files mapped. Quantised weights whose parts are in a different order in the file are
/// assembled in memory on first use, and stay there. The files must not be changed while in use: if
/// another program truncates one, reading its lost pages ends the process, as with every mapping.
#[derive(Debug)]
pub struct Checkpoint {
    directory: PathBuf,
    facts: Facts,
    graph: Graph,
    towers: Vec<Graph>,
    unused: Vec<UnusedTensor>,
    notes: Vec<String>,
    ignored: Vec<Ignored>,
    tower_ignored: Vec<(Pass, Vec<Ignored>)>,
    adapters: Vec<Adapter>,
    fingerprint: [u8; 32],
}

impl Checkpoint {
    /// Reads `config.json`, the weight files and, for a sentence model, its modules. Checks all of
    /// it and makes the graph.
    ///
    /// Weights are read from safetensors, or else from GGUF files. Quantised weights keep their
    /// integers and scales, or are refused.
    ///
    /// Tokenizer and chat template are not read here. A weight file that ends after its header is
    /// an error. An [`Outline`](crate::Outline) needs no more than that.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        Self::open_for(directory, &[Pass::Step])
    }

    /// Like [`Checkpoint::open`], but also reads the towers of `passes`.
    ///
    /// # Errors
    ///
    /// Also if the family has no tower for a pass.
    pub fn open_for(directory: impl AsRef<Path>, passes: &[Pass]) -> Result<Self> {
        Self::open_adapted(directory, passes, &[])
    }

    /// Like [`Checkpoint::open_for`], but also merges LoRA adapters into the weights, in this
    /// order. The result equals a checkpoint whose weights PEFT merged.
    ///
    /// A merged weight is computed when it is first read, and stays in memory from then on.
    ///
    /// # Errors
    ///
    /// Also if an adapter is invalid or unsupported, if the checkpoint does not have a tensor that
    /// an adapter changes, if their shapes differ, if the tensor is not stored as floats, and if it
    /// is the embedding or the output matrix of a model where these are tied.
    pub fn open_adapted(directory: impl AsRef<Path>, passes: &[Pass], adapters: &[Lora]) -> Result<Self> {
        let directory = directory.as_ref();
        let reading = Reading::of(directory, Wanted::Values, passes, adapters)?;
        let mut digest = Sha256::new();
        reading.documents().for_each(|(name, bytes)| add_to(&mut digest, name, bytes));
        let mut unused = Vec::new();
        let mut files = Vec::new();
        for (folder, store) in reading.stores() {
            for file in store.files() {
                let name = format!("{folder}{}", name_of(&file.path));
                digest.update(file.length().to_le_bytes());
                add_to(&mut digest, &name, file.header());
                files.push(FileFacts { name, bytes: file.length() });
            }
            unused.extend(
                store
                    .unused()
                    .into_iter()
                    .map(|tensor| UnusedTensor { name: format!("{folder}{}", tensor.name), ..tensor }),
            );
        }
        reading.adapters.iter().for_each(|adapter| adapter.add_to(&mut digest));
        let Reading { graph, towers, settings, name, notes, ignored, tower_ignored, adapters, .. } = reading;
        let tables = graph.assets.iter().map(|asset| &asset.table);
        let dtypes: BTreeSet<_> =
            graph.weights.iter().chain(tables).map(|weight| weight.dtype.name()).collect();
        let facts = Facts::new(name, &settings, &graph, files, dtypes.into_iter().collect(), &unused);
        let fingerprint = digest.finalize().into();
        Ok(Checkpoint {
            directory: directory.to_owned(),
            facts,
            graph,
            towers,
            unused,
            notes,
            ignored,
            tower_ignored,
            adapters,
            fingerprint,
        })
    }

    /// Returns the directory that the checkpoint was opened from.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the adapters that are merged into the weights, in order.
    pub fn adapters(&self) -> &[Adapter] {
        &self.adapters
    }

    /// Returns the checkpoint's family.
    pub fn family(&self) -> Family {
        self.facts.family
    }

    /// Returns sizes and structure, for reports.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Returns the graph of a step. Cloning it shares the mapped weights.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the graph of a pass, if the checkpoint was opened for that pass.
    pub fn graph_of(&self, pass: Pass) -> Option<&Graph> {
        std::iter::once(&self.graph).chain(&self.towers).find(|graph| graph.pass == pass)
    }

    /// Returns the graph, which keeps the mapped files open.
    pub fn into_graph(self) -> Graph {
        self.graph
    }

    /// Returns the tensors that no part of the graph reads, by file and name. Most are towers of a
    /// multimodal checkpoint, or unused keys and values of layers that share a donor's.
    /// [`Checkpoint::ignored`] lists the ones that may matter.
    pub fn unused_tensors(&self) -> &[UnusedTensor] {
        &self.unused
    }

    /// Returns the choices made where the checkpoint specifies none, as sentences for a report.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns whether a field of `config.json` with this name cannot change a result. A name with
    /// dots is the path of a field in an object. It cannot matter if any of its parts cannot.
    pub fn cannot_matter(field: &str) -> bool {
        register::cannot_matter(field) || field.split('.').any(register::cannot_matter)
    }

    /// Returns the fields of the settings, the files and the tensors that may matter and that were
    /// not read. Tensors with similar names have one entry.
    pub fn ignored(&self) -> &[Ignored] {
        &self.ignored
    }

    /// Returns the fields and the tensors of a tower that may matter and that it does not use. They
    /// are not in [`Checkpoint::ignored`]. Empty if the checkpoint was not opened for the pass.
    pub fn ignored_of(&self, pass: Pass) -> &[Ignored] {
        of_pass(&self.tower_ignored, pass)
    }

    /// Returns the SHA-256 of the settings and, for each weight file, of its length and header, and
    /// of adapters. It is quick to compute. It distinguishes checkpoints with different settings,
    /// names, shapes or types, but not two sets of values in otherwise equal files.
    pub fn weights_fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// Returns the SHA-256 of the settings and of every value the graph reads. It is the identity
    /// for calibrations and bundles. Reads all values, about a gigabyte per second and core.
    pub fn content_hash(&self) -> [u8; 32] {
        let tables = self.graph.assets.iter().map(|asset| &asset.table);
        let chunks: Vec<&[u8]> = self
            .graph
            .weights
            .iter()
            .chain(tables)
            .flat_map(|weight| weight.data.bytes().chunks(HASHED_AT_ONCE))
            .collect();
        let hashes: Vec<[u8; 32]> =
            chunks.into_par_iter().map(|chunk| Sha256::digest(chunk).into()).collect();
        let mut digest = Sha256::new();
        digest.update(self.fingerprint);
        hashes.iter().for_each(|hash| digest.update(hash));
        digest.finalize().into()
    }
}

/// Hashes a named document so that no two lists of documents have the same byte stream.
fn add_to(digest: &mut Sha256, name: &str, bytes: &[u8]) {
    for part in [name.as_bytes(), bytes] {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
}
