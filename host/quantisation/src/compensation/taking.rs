//! Takes the second moments of a model's matrices.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};
use shardwright_graph::{ComponentKind, EntryOptions, EntryPoint, Graph, Op, WeightId, range_key};
use shardwright_reference::{Arrangement, ReferenceModel};
use shardwright_vocabulary::EntryKind;

use super::model::Moments;
use super::moments::MomentSums;
use crate::CalibrationError;

/// Most columns of a matrix whose moments are summed, in 7.2 GB: more than twice as many as any
/// model has that runs on a phone.
const COLUMNS_LIMIT: usize = 30_000;

/// Most rows of a matrix that are rounded one after the other by derivatives: attention and what
/// writes the residual stream. For the many rows of an MLP and of a head it wins nothing that was
/// measured, and costs the square of them.
const ROWS_LIMIT: usize = 4096;

/// What the matrices of a model are multiplied with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatrixInputs {
    /// The tensor of each matrix, by name of the weight: its [`range_key`], or those of several
    /// with a space between.
    pub of: BTreeMap<String, String>,
    /// Columns of the matrices that a tensor is multiplied with.
    pub widths: BTreeMap<String, usize>,
    /// Rows of each matrix the derivatives by whose results are taken, by name of the weight; of
    /// one that is used once and has few rows.
    pub gradients: BTreeMap<String, usize>,
}

/// Where errors of rounding are passed on to. Chunks are cut by this, whatever the factors are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PassedOn {
    Nowhere,
    ToColumns,
    /// To later columns and later rows.
    ToRows,
}

impl MatrixInputs {
    /// Of every matrix of a model.
    pub fn new(graph: &Graph) -> Result<Self, CalibrationError> {
        let kind = if graph.is_generative() { EntryKind::Decode } else { EntryKind::Encode };
        let point = EntryPoint { kind, rows: 1, context: 1, largest_rows: 1 };
        let mut keys: BTreeMap<WeightId, BTreeSet<String>> = BTreeMap::new();
        let mut products: BTreeMap<WeightId, usize> = BTreeMap::new();
        for component in &graph.components {
            let layers = if component.kind == ComponentKind::Decoder { 0..component.layers } else { 0..0 };
            let entry = graph
                .entry(component.kind, layers, point, EntryOptions::default())
                .map_err(|source| CalibrationError::Reference(source.into()))?;
            let Some(entry) = entry else { continue };
            for node in
                entry.nodes.iter().filter(|node| matches!(node.op, Op::Linear | Op::DynamicLinear { .. }))
            {
                let weight = node.inputs.get(1).and_then(|&weight| entry.tensor(weight).weight);
                if let (Some(weight), Some(&input)) = (weight, node.inputs.first()) {
                    keys.entry(weight).or_default().insert(range_key(&entry, input));
                    *products.entry(weight).or_default() += 1;
                }
            }
        }
        let (mut of, mut widths, mut gradients) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for (id, keys) in keys {
            let weight = graph.weight(id);
            if weight.row_width() > COLUMNS_LIMIT {
                let (weight, columns) = (weight.name.clone(), weight.row_width());
                return Err(CalibrationError::TooWide { weight, columns, limit: COLUMNS_LIMIT });
            }
            let joined = keys.into_iter().collect::<Vec<_>>().join(" ");
            widths.insert(joined.clone(), weight.row_width());
            if graph.is_generative() && weight.rows() <= ROWS_LIMIT && products.get(&id) == Some(&1) {
                gradients.insert(weight.name.clone(), weight.rows());
            }
            of.insert(weight.name.clone(), joined);
        }
        Ok(MatrixInputs { of, widths, gradients })
    }

    /// What the second moments of the derivatives by the results of a matrix are kept as.
    pub fn gradient_key(weight: &str) -> String {
        format!("gradient {weight}")
    }

    /// Where errors of a weight are passed on to, as far as all that counts was seen.
    pub(crate) fn passed_on(&self, weight: &str) -> PassedOn {
        match (self.of.contains_key(weight), self.gradients.contains_key(weight)) {
            (false, _) => PassedOn::Nowhere,
            (true, false) => PassedOn::ToColumns,
            (true, true) => PassedOn::ToRows,
        }
    }

    /// The tensors that add to some moments, each with what it adds to.
    pub fn readers(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut readers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for joined in self.widths.keys() {
            joined.split(' ').for_each(|key| readers.entry(key).or_default().push(joined));
        }
        readers
    }
}

impl Moments {
    /// Hash of a checkpoint and of the ids of sequences in their order: all that moments follow
    /// from.
    pub fn identity_of(checkpoint: [u8; 32], sequences: &[Vec<u32>]) -> [u8; 32] {
        let mut digest = Sha256::new();
        digest.update(b"moments and gradients, 1");
        digest.update(checkpoint);
        for ids in sequences {
            digest.update((ids.len() as u64).to_le_bytes());
            ids.iter().for_each(|id| digest.update(id.to_le_bytes()));
        }
        digest.finalize().into()
    }

    /// Takes those of a model by running the reference over token sequences, in their order,
    /// without derivatives; `checkpoint` is a hash of the model, see
    /// [`content_hash`](crate::content_hash).
    ///
    /// Memory: 8 bytes for every pair of columns of every tensor that a matrix is multiplied with.
    pub fn by_reference(
        graph: &Graph,
        checkpoint: [u8; 32],
        sequences: &[Vec<u32>],
    ) -> Result<Self, CalibrationError> {
        if sequences.is_empty() {
            return Err(CalibrationError::NoSequences);
        }
        let inputs = MatrixInputs { gradients: BTreeMap::new(), ..MatrixInputs::new(graph)? };
        let mut sums: BTreeMap<&str, MomentSums> =
            inputs.widths.iter().map(|(key, &width)| (key.as_str(), MomentSums::new(width))).collect();
        let readers = inputs.readers();
        let model = ReferenceModel::new(graph, Arrangement::whole(1))?;
        for ids in sequences {
            model.observe(ids, &mut |key, values| {
                for joined in readers.get(key).into_iter().flatten() {
                    if let Some(sums) = sums.get_mut(joined) {
                        sums.add(values);
                    }
                }
            })?;
        }
        let moments = sums.into_iter().map(|(key, sums)| (key.to_owned(), sums.finish())).collect();
        Ok(Moments::new(Moments::identity_of(checkpoint, sequences), inputs, moments))
    }
}
