//! Target formats of a whole graph's weights and tables, and quantisation in memory.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use shardwright_graph::{Asset, ConstantFormat, Graph, Weight, WeightData};
use shardwright_vocabulary::{Error, FormatTuple, Result, Watch, WeightFormat};

use crate::compensation::PassedOn;
use crate::job::{Job, Rounding, Target};
use crate::{Moments, Note, RowSource};

/// Formats of the gathered tables. `None` leaves a table as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TableFormats {
    /// Format of the embedding. A head that is tied to it has its own format, as a weight of role
    /// `head`.
    pub embedding: Option<WeightFormat>,
    /// Format of every other table (per-layer embeddings).
    pub per_layer: Option<WeightFormat>,
}

impl TableFormats {
    /// Sets the format of one table by its position in [`Graph::assets`]: 0 is the embedding, any
    /// other the per-layer embeddings.
    pub const fn one(table: usize, format: WeightFormat) -> Self {
        match table {
            0 => TableFormats { embedding: Some(format), per_layer: None },
            _ => TableFormats { embedding: None, per_layer: Some(format) },
        }
    }

    fn of(self, index: usize) -> Option<WeightFormat> {
        if index == 0 { self.embedding } else { self.per_layer }
    }
}

/// Selection of the matrices rounded with error compensation, if they have moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compensated {
    /// All matrices.
    #[default]
    All,
    /// Matrices of 4 bits and fewer. With more bits there is little error to compensate.
    FourBits,
}

impl Compensated {
    /// Computes the identity of compensated rounding with moments of this identity.
    pub fn identity(self, moments: [u8; 32]) -> [u8; 32] {
        match self {
            Compensated::All => moments,
            Compensated::FourBits => {
                Sha256::new().chain_update("four bits").chain_update(moments).finalize().into()
            }
        }
    }

    /// Returns whether matrices in this format are compensated.
    pub fn takes(self, format: WeightFormat) -> bool {
        let integers = format.layout().filter(|(_, scales)| scales.is_some());
        integers.is_some_and(|(dtype, _)| self == Compensated::All || dtype.bits() <= 4)
    }
}

/// The target formats of every weight and table of a graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recipe {
    /// Formats by [`shardwright_graph::WeightId`]. Set [`ConstantFormat::Stored`] for weights that
    /// the caller does not need.
    pub weights: Vec<ConstantFormat>,
    /// Formats of the gathered tables.
    pub tables: TableFormats,
    /// Moments of the inputs of matrices. With moments, a matrix is rounded with error
    /// compensation. Without them, and in tables and vectors, each value is rounded to the nearest.
    pub moments: Option<Arc<Moments>>,
    /// The matrices to round with error compensation.
    pub compensated: Compensated,
}

impl Recipe {
    /// Creates a recipe for the weights of `graph` in the formats of a tuple.
    pub fn new(graph: &Graph, formats: &FormatTuple, tables: TableFormats) -> Self {
        Recipe { weights: graph.constant_formats(formats), tables, ..Recipe::default() }
    }

    /// Sets the moments of the inputs of matrices.
    #[must_use]
    pub fn with_moments(mut self, moments: Option<Arc<Moments>>) -> Self {
        self.moments = moments;
        self
    }

    /// Sets the matrices to round with error compensation.
    #[must_use]
    pub const fn compensating(mut self, compensated: Compensated) -> Self {
        self.compensated = compensated;
        self
    }

    /// Returns the moments for rounding a matrix, if it is compensated.
    fn moments_for(&self, target: Target) -> Option<&Moments> {
        let Target::Matrix(format) = target else { return None };
        self.moments.as_deref().filter(|_| self.compensated.takes(format))
    }
}

/// A counter of written bytes that reports to the watcher, and the notes so far.
pub(crate) struct Meter<'w> {
    pub watch: &'w mut dyn Watch,
    pub notes: &'w mut Vec<Note>,
    pub done: u64,
    pub total: u64,
}

impl Meter<'_> {
    /// Adds to the count.
    ///
    /// # Errors
    /// [`Cancelled`](shardwright_vocabulary::ErrorKind::Cancelled) if the watcher ends the work.
    pub fn made(&mut self, weight: &str, bytes: u64) -> Result<()> {
        self.done += bytes;
        let per_mille = (self.done.saturating_mul(1000) / self.total.max(1)) as u32;
        self.watch.progress(per_mille, "quantising");
        match self.watch.cancelled() {
            true => Err(cancelled(weight)),
            false => Ok(()),
        }
    }
}

/// Returns the error of a watcher that ended the work on a weight.
pub(crate) fn cancelled(weight: &str) -> Error {
    Error::cancelled()
        .at(format!("weight `{weight}`"))
        .with_help("run the command again: the store keeps finished parts, and the next run continues there")
}

/// A function that makes a weight, in memory or in a store.
pub(crate) type Make<'m> =
    dyn FnMut(&Weight, Target, Option<&Moments>, &mut Meter<'_>) -> Result<Weight> + 'm;

/// Applies a recipe to a graph. `make` produces each weight and table.
pub(crate) fn apply(
    graph: &Graph,
    recipe: &Recipe,
    watch: &mut dyn Watch,
    notes: &mut Vec<Note>,
    make: &mut Make<'_>,
) -> Result<Graph> {
    if recipe.weights.len() != graph.weights.len() {
        let (of, has) = (recipe.weights.len(), graph.weights.len());
        return Err(Error::invalid(format!("the recipe is for {of} weights, the graph has {has}"))
            .with_help("make the recipe from the same graph"));
    }
    let of_table = |(index, asset): (usize, &Asset)| {
        recipe.tables.of(index).filter(|&format| !asset.table.is_in(format)).and_then(Target::matrix)
    };
    let weights: Vec<Option<Target>> = recipe.weights.iter().map(|&format| Target::of(format)).collect();
    let tables: Vec<Option<Target>> = graph.assets.iter().enumerate().map(of_table).collect();
    let sources = graph.weights.iter().chain(graph.assets.iter().map(|asset| &asset.table));
    let mut total = 0;
    for (source, target) in sources.zip(weights.iter().chain(&tables)) {
        if let Some(target) = target {
            total += Job::new(source, *target, PassedOn::Nowhere)?.planned().bytes();
        }
    }
    let mut meter = Meter { watch, notes, done: 0, total };
    let mut made = graph.clone();
    for ((weight, source), target) in made.weights.iter_mut().zip(&graph.weights).zip(weights) {
        if let Some(target) = target {
            *weight = make(source, target, recipe.moments_for(target), &mut meter)?;
        }
    }
    for ((asset, source), target) in made.assets.iter_mut().zip(&graph.assets).zip(tables) {
        if let Some(target) = target {
            asset.table = make(&source.table, target, None, &mut meter)?;
        }
    }
    Ok(made)
}

/// Quantises a graph with a recipe in memory, and adds to `notes`. Unchanged weights are shared,
/// not copied.
///
/// The result must fit into memory. [`Store::graph`](crate::Store::graph) produces the same bytes
/// for models of any size.
pub fn quantise(
    graph: &Graph,
    recipe: &Recipe,
    watch: &mut dyn Watch,
    notes: &mut Vec<Note>,
) -> Result<Graph> {
    apply(graph, recipe, watch, notes, &mut in_memory)
}

/// Quantises one weight in memory.
pub fn quantise_weight(
    source: &dyn RowSource,
    format: WeightFormat,
    rounding: Rounding<'_>,
    watch: &mut dyn Watch,
) -> Result<Weight> {
    let job = Job::rounded(source, Target::Matrix(format), rounding)?;
    let total = job.planned().bytes();
    make_in_memory(&job, &mut Meter { watch, notes: &mut Vec::new(), done: 0, total })
}

/// Encodes one weight like an activation: `U16` with one scale and a zero point that cover its
/// range and zero.
pub fn quantise_constant(source: &dyn RowSource, watch: &mut dyn Watch) -> Result<Weight> {
    let job = Job::new(source, Target::Activation, PassedOn::Nowhere)?;
    let total = job.planned().bytes();
    make_in_memory(&job, &mut Meter { watch, notes: &mut Vec::new(), done: 0, total })
}

pub(crate) fn in_memory(
    source: &Weight,
    target: Target,
    moments: Option<&Moments>,
    meter: &mut Meter<'_>,
) -> Result<Weight> {
    let moments = moments.filter(|_| target.is_rounded());
    let factors = match moments {
        Some(moments) => {
            let (factors, remarks) = moments.factors_and_remarks(&source.name)?;
            meter.notes.extend(remarks.into_iter().map(|remark| remark.of(&source.name)));
            factors
        }
        None => None,
    };
    let passed_on = moments.map_or(PassedOn::Nowhere, |moments| moments.passed_on(&source.name));
    make_in_memory(&Job::new(source, target, passed_on)?.by(Rounding::by(factors.as_ref()))?, meter)
}

fn make_in_memory(job: &Job<'_>, meter: &mut Meter<'_>) -> Result<Weight> {
    let name = job.planned().name.clone();
    let whole = job.whole(&mut || meter.made(&name, 0).is_ok())?;
    let mut data = Vec::with_capacity(job.planned().data.length());
    let mut scales = whole.map_or_else(Vec::new, |whole| whole.scale.to_le_bytes().to_vec());
    meter.made(&name, scales.len() as u64)?;
    job.make(0..job.chunks(), whole, |_, chunk| {
        data.extend_from_slice(&chunk.data);
        scales.extend_from_slice(&chunk.scales);
        meter.made(&name, (chunk.data.len() + chunk.scales.len()) as u64)
    })?;
    let scales = job.planned().quantisation.is_some().then(|| WeightData::from_vec(scales));
    Ok(job.weight(WeightData::from_vec(data), scales, whole))
}
