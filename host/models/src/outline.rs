//! A checkpoint without its weights: what headers, an index or the configuration alone say of it.

use std::path::Path;

use shardwright_graph::{Graph, Pass};
use shardwright_vocabulary::Ignored;

use crate::family::Family;
use crate::json::CONFIG;
use crate::reading::{Reading, configured_dtype};
use crate::store::Wanted;
use crate::{Checkpoint, CheckpointError};

/// A directory whose weights are elsewhere: enough to plan, to count and to judge, and nothing that
/// needs a value. Its graph's weights have lengths; those that are not here have no bytes.
///
/// What reads values takes a [`Checkpoint`], which no outline becomes.
#[derive(Debug)]
pub struct Outline {
    graph: Graph,
    towers: Vec<Graph>,
    family: Family,
    name: String,
    notes: Vec<String>,
    ignored: Vec<Ignored>,
    basis: OutlineBasis,
    lack: Option<CheckpointError>,
    download_bytes: Option<u64>,
}

/// What an [`Outline`] rests on, strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OutlineBasis {
    /// The headers of all weight files: names, shapes, element types and lengths are the files'
    /// own.
    Headers,
    /// An index and `config.json`: names and the sum of bytes are the index's, shapes follow from
    /// the configuration, and so does the one element type.
    Index,
    /// `config.json` alone: shapes and the one element type follow from it, and what the text model
    /// does not read is not known of.
    Configuration,
}

impl Outline {
    /// Reads `config.json`, and what there is of weight files: headers, an index, or nothing.
    ///
    /// # Errors
    ///
    /// As [`Checkpoint::open`] without [`CheckpointError::NoWeights`]. A missing file is an error
    /// only where others of its index are here, and where `config.json` does not say its element
    /// type ([`CheckpointError::UnknownElementType`]).
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        Self::open_for(directory, &[Pass::Step])
    }

    /// The same with the towers of those passes; see [`Checkpoint::open_for`].
    pub fn open_for(directory: impl AsRef<Path>, passes: &[Pass]) -> Result<Self, CheckpointError> {
        let directory = directory.as_ref();
        // An element type that is not understood matters only where no header says it.
        let configured = configured_dtype(directory);
        let dtype = configured.as_ref().ok().copied().flatten();
        let reading = match Reading::of(directory, Wanted::Outline(dtype), passes) {
            Err(CheckpointError::MissingFile { path }) if dtype.is_none() && is_weights(&path) => {
                configured?;
                return Err(CheckpointError::UnknownElementType {
                    path: directory.join(CONFIG),
                    weights: path,
                });
            }
            reading => reading?,
        };
        let (mut basis, mut bytes) = (OutlineBasis::Headers, 0_u64);
        for (_, store) in reading.stores() {
            let files = store.files().iter().map(|file| file.length()).fold(0, u64::saturating_add);
            bytes = bytes.saturating_add(store.listed_bytes().unwrap_or(files));
            basis = basis.max(match (store.files().is_empty(), store.listed_bytes()) {
                (false, _) => OutlineBasis::Headers,
                (true, Some(_)) => OutlineBasis::Index,
                (true, None) => OutlineBasis::Configuration,
            });
        }
        let lack = reading.stores().find_map(|(_, store)| store.lack());
        let Reading { graph, towers, settings, name, notes, ignored, .. } = reading;
        Ok(Outline {
            family: settings.family(),
            lack,
            graph,
            towers,
            name,
            notes,
            ignored,
            basis,
            download_bytes: (basis != OutlineBasis::Configuration).then_some(bytes),
        })
    }

    /// Which family it belongs to.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Name of the directory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The graph. Its weights have their types and shapes; those that are not here have no bytes.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The graph of a pass, if it was asked for.
    pub fn graph_of(&self, pass: Pass) -> Option<&Graph> {
        std::iter::once(&self.graph).chain(&self.towers).find(|graph| graph.pass == pass)
    }

    /// Choices made where the checkpoint is silent, as sentences for a report.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Fields of the settings that may matter and that no family of this name reads.
    pub fn ignored(&self) -> &[Ignored] {
        &self.ignored
    }

    /// What it rests on; the weakest part counts.
    pub fn basis(&self) -> OutlineBasis {
        self.basis
    }

    /// Bytes of the weight files; `None` under [`OutlineBasis::Configuration`].
    pub fn download_bytes(&self) -> Option<u64> {
        self.download_bytes
    }

    /// The error of whatever needs a value: it names the first file whose weights are not here.
    /// `None` if all are.
    pub fn lack(&self) -> Option<&CheckpointError> {
        self.lack.as_ref()
    }
}

/// A directory in Hugging Face layout, with its weights or without.
#[derive(Debug)]
pub enum Opened {
    /// All weights are here.
    Whole(Box<Checkpoint>),
    /// Weights are missing.
    Outline(Box<Outline>),
}

impl Opened {
    /// Opens the checkpoint, or its outline where weights are missing.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        Self::open_for(directory, &[Pass::Step])
    }

    /// The same with the towers of those passes; see [`Checkpoint::open_for`].
    pub fn open_for(directory: impl AsRef<Path>, passes: &[Pass]) -> Result<Self, CheckpointError> {
        let directory = directory.as_ref();
        match Checkpoint::open_for(directory, passes) {
            Err(CheckpointError::NoWeights { .. }) => {}
            Err(CheckpointError::MissingFile { path }) if is_weights(&path) => {}
            checkpoint => return Ok(Opened::Whole(Box::new(checkpoint?))),
        }
        Ok(Opened::Outline(Box::new(Outline::open_for(directory, passes)?)))
    }
}

fn is_weights(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "safetensors")
}
