//! A checkpoint without its weights, derived from headers, an index or the configuration alone.

use std::path::Path;

use shardwright_graph::{Graph, Pass};
use shardwright_vocabulary::{Error, ErrorKind, Ignored, Lora, Result};

use crate::Checkpoint;
use crate::family::Family;
use crate::reader::{Reading, configured_dtype, of_pass};
use crate::store::Wanted;

/// A directory whose weights are elsewhere. This is enough to plan, to count and to judge, but not
/// to compute values. Weights of the graph have lengths. Missing ones have no bytes.
///
/// Functions that read values require a [`Checkpoint`]. An outline never becomes one.
#[derive(Debug)]
pub struct Outline {
    graph: Graph,
    towers: Vec<Graph>,
    family: Family,
    name: String,
    notes: Vec<String>,
    ignored: Vec<Ignored>,
    tower_ignored: Vec<(Pass, Vec<Ignored>)>,
    basis: OutlineBasis,
    lack: Option<Error>,
    download_bytes: Option<u64>,
}

/// The source of an [`Outline`], strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OutlineBasis {
    /// The headers of all weight files, which contain names, shapes, element types and lengths.
    Headers,
    /// An index and `config.json`. The index contains names and the sum of bytes. Shapes and the
    /// single element type follow from the configuration.
    Index,
    /// `config.json` alone. Shapes and the single element type follow from it. Tensors that the
    /// text model does not read are unknown.
    Configuration,
}

impl Outline {
    /// Reads `config.json` and whatever weight files exist: headers, an index, or neither.
    ///
    /// # Errors
    ///
    /// The errors of [`Checkpoint::open`], except that files may end after their headers. A missing
    /// file is an error only if other files of its index exist, or if `config.json` does not
    /// specify its element type.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        Self::open_for(directory, &[Pass::Step])
    }

    /// Like [`Outline::open`], but also reads the towers of `passes`. See [`Checkpoint::open_for`].
    pub fn open_for(directory: impl AsRef<Path>, passes: &[Pass]) -> Result<Self> {
        Self::open_adapted(directory, passes, &[])
    }

    /// Like [`Outline::open_for`], but also checks adapters as far as the tensors are known. See
    /// [`Checkpoint::open_adapted`].
    pub fn open_adapted(directory: impl AsRef<Path>, passes: &[Pass], adapters: &[Lora]) -> Result<Self> {
        let directory = directory.as_ref();
        let configured = configured_dtype(directory);
        let dtype = configured.as_ref().ok().copied().flatten();
        let reading = match Reading::of(directory, Wanted::Outline(dtype), passes, adapters) {
            // An unsupported element type matters only if no header specifies the types.
            Err(error) if error.kind() == ErrorKind::Missing => {
                configured?;
                return Err(error);
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
        let Reading { graph, towers, settings, name, notes, ignored, tower_ignored, .. } = reading;
        Ok(Outline {
            family: settings.family(),
            lack,
            graph,
            towers,
            name,
            notes,
            ignored,
            tower_ignored,
            basis,
            download_bytes: (basis != OutlineBasis::Configuration).then_some(bytes),
        })
    }

    /// Returns the checkpoint's family.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Returns the name of the directory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the graph. Its weights have types and shapes. Missing weights have no bytes.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the graph of a pass, if the outline was opened for that pass.
    pub fn graph_of(&self, pass: Pass) -> Option<&Graph> {
        std::iter::once(&self.graph).chain(&self.towers).find(|graph| graph.pass == pass)
    }

    /// Returns the choices made where the checkpoint specifies none, as sentences for a report.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the fields of the settings, the files and the tensors that may matter and that were
    /// not read. Names of tensors are known from headers or an index.
    pub fn ignored(&self) -> &[Ignored] {
        &self.ignored
    }

    /// Returns the fields and the tensors of a tower that may matter and that it does not use. They
    /// are not in [`Outline::ignored`]. Empty if the outline was not opened for the pass.
    pub fn ignored_of(&self, pass: Pass) -> &[Ignored] {
        of_pass(&self.tower_ignored, pass)
    }

    /// Returns the source of the outline. If its parts have different sources, the weakest counts.
    pub fn basis(&self) -> OutlineBasis {
        self.basis
    }

    /// Returns the bytes of the weight files. `None` for [`OutlineBasis::Configuration`].
    pub fn download_bytes(&self) -> Option<u64> {
        self.download_bytes
    }

    /// Returns the error for callers that need values. It names the first file whose weights are
    /// missing. `None` if all weights are present.
    pub fn lack(&self) -> Option<&Error> {
        self.lack.as_ref()
    }
}

/// A directory in Hugging Face layout, with its weights or without.
#[derive(Debug)]
pub enum Opened {
    /// All weights are present.
    Whole(Box<Checkpoint>),
    /// Some weights are missing.
    Outline(Box<Outline>),
}

impl Opened {
    /// Opens the checkpoint, or its outline if weights are missing.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        Self::open_for(directory, &[Pass::Step])
    }

    /// Like [`Opened::open`], but also reads the towers of `passes`. See [`Checkpoint::open_for`].
    pub fn open_for(directory: impl AsRef<Path>, passes: &[Pass]) -> Result<Self> {
        Self::open_adapted(directory, passes, &[])
    }

    /// Like [`Opened::open_for`], but also merges adapters. See [`Checkpoint::open_adapted`].
    pub fn open_adapted(directory: impl AsRef<Path>, passes: &[Pass], adapters: &[Lora]) -> Result<Self> {
        let directory = directory.as_ref();
        match Checkpoint::open_adapted(directory, passes, adapters) {
            // If more than weights is missing, this is the error of the outline too.
            Err(error) if error.kind() == ErrorKind::Missing => {
                Ok(Opened::Outline(Box::new(Outline::open_adapted(directory, passes, adapters)?)))
            }
            checkpoint => Ok(Opened::Whole(Box::new(checkpoint?))),
        }
    }
}
