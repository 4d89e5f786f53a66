//! The loss of formats by place: one part of a model is in another format, everything else is as
//! stored.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use shardwright_graph::{Asset, ComponentKind, ConstantFormat, Graph, Op, ValueSource, WeightId};
use shardwright_vocabulary::{Result, StateFormat, ValueFormat, WeightFormat, WeightRole};

use crate::envelope::{HEAD, Kind, damaged};
use crate::job::ARITHMETIC;
use crate::{Recipe, TableFormats};

/// The content is a line of some hundred bytes.
const KIND: Kind = Kind { magic: b"sw-sensi", version: 5, name: "a measured loss", limit: 1 << 12 };
/// The limit is many times one line for every layer and role of the largest models.
const EXPECTED: Kind = Kind { magic: b"sw-expec", version: 1, name: "expected losses", limit: 1 << 24 };

/// A change of one part to another format, with the rest of the model as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Change {
    /// The matrices of one role in one layer, or in a component without layers.
    Weights {
        component: ComponentKind,
        /// Layer, or 0 for a component without layers.
        layer: u32,
        role: WeightRole,
        format: WeightFormat,
    },
    /// The results of a layer, or the states it writes.
    Values {
        component: ComponentKind,
        /// Layer, or 0 for a component without layers.
        layer: u32,
        /// The kind of values and their format.
        format: ValueFormat,
    },
    /// A gathered table.
    Table {
        /// Position of the table in [`Graph::assets`].
        table: u32,
        format: WeightFormat,
    },
}

impl Change {
    /// Returns the recipe for this change. It leaves all weights as stored if only computed values
    /// change.
    pub fn recipe(&self, graph: &Graph) -> Recipe {
        let mut recipe =
            Recipe { weights: vec![ConstantFormat::Stored; graph.weights.len()], ..Recipe::default() };
        match *self {
            Change::Weights { component, layer, role, format } => {
                for WeightId(id) in places(graph).remove(&(component, layer, role)).unwrap_or_default() {
                    if !graph.weights[id as usize].is_in(format) {
                        recipe.weights[id as usize] = ConstantFormat::Matrix(format);
                    }
                }
            }
            Change::Table { table, format } => recipe.tables = TableFormats::one(table as usize, format),
            Change::Values { .. } => {}
        }
        recipe
    }

    /// Returns whether the change needs calibrated scales.
    pub const fn needs_ranges(&self) -> bool {
        let Change::Values { format, .. } = self else { return false };
        match format {
            ValueFormat::Activations(format) => format.is_static(),
            ValueFormat::States(format) => matches!(format, StateFormat::A16 | StateFormat::A8),
            ValueFormat::Attention(_) => false,
        }
    }

    /// Returns a file name such as `decoder.3.mlp-input.w4-block32`.
    fn file_name(&self) -> String {
        match self {
            Change::Weights { component, layer, role, format } => {
                format!("{component}.{layer}.{role}.{format}")
            }
            Change::Values { component, layer, format } => {
                format!("{component}.{layer}.{}.{}", format.values(), format.name())
            }
            Change::Table { table, format } => format!("table.{table}.{format}"),
        }
    }
}

/// The measured loss of one change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    pub change: Change,
    /// Mean KL divergence from the predictions of the model as stored, in billionths of a nat per
    /// token. Unlike the difference of two likelihoods it is never negative and needs few tokens.
    /// For encoders, 1 − cosine in billionths. Rounded up, so that a nonzero loss is never reported
    /// as 0. The largest integer if predictions are not finite numbers.
    pub nanonats: u64,
}

impl Loss {
    /// The [`micronats`](Loss::micronats) of a change whose predictions are not finite numbers.
    pub const NOT_FINITE: f64 = u64::MAX as f64 / 1000.0;

    /// Creates a loss from a divergence in nats per token. NaN and values beyond the integer range
    /// become the largest integer.
    pub fn of(change: Change, divergence: f64) -> Self {
        let nanonats = if divergence.is_nan() { u64::MAX } else { (1e9 * divergence).ceil() as u64 };
        Loss { change, nanonats }
    }

    /// Returns the loss in millionths of a nat per token.
    pub fn micronats(&self) -> f64 {
        self.nanonats as f64 / 1000.0
    }

    /// Returns the path of a change's file in a folder.
    pub fn path(folder: &Path, change: &Change) -> PathBuf {
        folder.join(format!("{}.loss", change.file_name()))
    }

    /// Writes the loss into a folder atomically.
    ///
    /// # Errors
    /// If the folder cannot be written to.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let path = Loss::path(folder, &self.change);
        let content = serde_json::to_vec(self).map_err(|_| damaged(&path, HEAD, "the text"))?;
        KIND.write(&path, &content)
    }

    /// Reads the loss of a change from a folder.
    ///
    /// # Errors
    /// If the file is missing, damaged, or belongs to another change.
    pub fn read(folder: &Path, change: &Change) -> Result<Self> {
        let path = Loss::path(folder, change);
        let content = KIND.read(&path)?;
        let read: Loss = serde_json::from_slice(&content)
            .map_err(|error| damaged(&path, HEAD + error.column(), "the text"))?;
        match read.change == *change {
            true => Ok(read),
            false => Err(damaged(&path, HEAD, "the change, which is not that of its name")),
        }
    }
}

/// Version of the arithmetic of activations, which affects losses but not weights. 1: a residual
/// stream in 16-bit floats is divided by a power of two. 2: results beyond the range of a 16-bit
/// float are infinite. 3: stored integers are multiplied with activations that are rounded at run
/// time.
const VALUES: u32 = 3;

/// Computes a hash of everything that determines losses: the checkpoint, the ids of sequences in
/// order, the moments used for rounding (if any), and the version of the arithmetic.
pub fn losses_identity(checkpoint: [u8; 32], sequences: &[Vec<u32>], moments: Option<[u8; 32]>) -> [u8; 32] {
    let mut digest = Sha256::new();
    digest.update(ARITHMETIC.to_le_bytes());
    digest.update(VALUES.to_le_bytes());
    digest.update(checkpoint);
    digest.update((sequences.len() as u64).to_le_bytes());
    for ids in sequences {
        digest.update((ids.len() as u64).to_le_bytes());
        ids.iter().for_each(|id| digest.update(id.to_le_bytes()));
    }
    moments.iter().for_each(|moments| digest.update(moments));
    digest.finalize().into()
}

/// The loss of one format in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sensitivity {
    pub component: ComponentKind,
    /// Layer, or 0 for a component without layers.
    pub layer: u32,
    pub role: WeightRole,
    pub format: WeightFormat,
    /// KL divergence in millionths of a nat per token, rounded up.
    pub micronats: u64,
}

impl Sensitivity {
    /// Returns the corresponding change.
    pub const fn change(&self) -> Change {
        let Sensitivity { component, layer, role, format, .. } = *self;
        Change::Weights { component, layer, role, format }
    }
}

/// The loss of one gathered table in one format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableLoss {
    /// Position of the table in [`Graph::assets`].
    pub table: u32,
    pub format: WeightFormat,
    /// KL divergence in millionths of a nat per token, rounded up.
    pub micronats: u64,
}

impl TableLoss {
    /// Returns the corresponding change.
    pub const fn change(&self) -> Change {
        Change::Table { table: self.table, format: self.format }
    }
}

/// Returns the position of every gathered table with each of `formats` that suits its width.
pub fn table_pairs(graph: &Graph, formats: &[WeightFormat]) -> Vec<(usize, WeightFormat)> {
    let of = |(index, asset): (usize, &Asset)| {
        let suits = |format: &&WeightFormat| asset.table.planned(**format).is_ok();
        formats.iter().filter(suits).map(|format| (index, *format)).collect::<Vec<_>>()
    };
    graph.assets.iter().enumerate().flat_map(of).collect()
}

/// Returns the matrices of each component, layer (0 in a component without layers) and role.
pub fn places(graph: &Graph) -> BTreeMap<(ComponentKind, u32, WeightRole), Vec<WeightId>> {
    let mut places: BTreeMap<_, Vec<WeightId>> = BTreeMap::new();
    for component in &graph.components {
        for node in
            component.nodes.iter().filter(|node| matches!(node.op, Op::Linear | Op::DynamicLinear { .. }))
        {
            let operand = node.inputs.get(1).and_then(|input| component.values.get(input.0 as usize));
            let Some(ValueSource::Constant(id)) = operand.map(|value| &value.source) else { continue };
            let role = WeightRole::of_part(graph.weight(*id).part);
            let weights = places.entry((component.kind, node.layer.unwrap_or(0), role)).or_default();
            if !weights.contains(id) {
                weights.push(*id);
            }
        }
    }
    places
}

/// Returns the weights that each component and layer (0 in a component without layers) reads.
pub fn weights_read(graph: &Graph) -> BTreeMap<(ComponentKind, u32), BTreeSet<WeightId>> {
    let mut read: BTreeMap<_, BTreeSet<WeightId>> = BTreeMap::new();
    for component in &graph.components {
        for node in &component.nodes {
            let values = node.inputs.iter().filter_map(|input| component.values.get(input.0 as usize));
            for value in values {
                if let ValueSource::Constant(id) = value.source {
                    read.entry((component.kind, node.layer.unwrap_or(0))).or_default().insert(id);
                }
            }
        }
    }
    read
}

/// The expected loss of every change to one weight format, before measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedLosses {
    pub format: WeightFormat,
    /// Expected losses by place.
    pub losses: Vec<Sensitivity>,
}

impl ExpectedLosses {
    /// Returns the path of a format's file in a folder.
    pub fn path(folder: &Path, format: WeightFormat) -> PathBuf {
        folder.join(format!("{format}.expected"))
    }

    /// Writes the losses into a folder atomically.
    ///
    /// # Errors
    /// If the folder cannot be written to.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let path = ExpectedLosses::path(folder, self.format);
        let content = serde_json::to_vec(self).map_err(|_| damaged(&path, HEAD, "the text"))?;
        EXPECTED.write(&path, &content)
    }

    /// Reads the losses of a format from a folder.
    ///
    /// # Errors
    /// If the file is missing, damaged, or belongs to another format.
    pub fn read(folder: &Path, format: WeightFormat) -> Result<Self> {
        let path = ExpectedLosses::path(folder, format);
        let content = EXPECTED.read(&path)?;
        let read: ExpectedLosses = serde_json::from_slice(&content)
            .map_err(|error| damaged(&path, HEAD + error.column(), "the text"))?;
        match read.format == format {
            true => Ok(read),
            false => Err(damaged(&path, HEAD, "the format, which is not that of its name")),
        }
    }
}
