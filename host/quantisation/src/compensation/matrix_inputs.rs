//! Collects the second moments of the inputs of a model's matrices.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};
use shardwright_graph::{ComponentKind, EntryOptions, EntryPoint, Graph, Op, WeightId, range_key};
use shardwright_reference::{Arrangement, ReferenceModel};
use shardwright_vocabulary::{EntryKind, Error, Result};

use super::model::Moments;
use super::moments::MomentSums;
use crate::calibration::no_sequences;

/// Largest number of columns of a matrix whose moments are summed, in 7.2 GB. It is more than twice
/// the columns of any model that runs on a phone.
const COLUMNS_LIMIT: usize = 30_000;

/// Largest number of rows of a matrix that are compensated with gradients: attention and matrices
/// that write the residual stream. For the many rows of an MLP and of a head, no gain was measured,
/// and the cost is quadratic in the rows.
const ROWS_LIMIT: usize = 4096;

/// The inputs of a model's matrices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatrixInputs {
    /// The input tensor of each matrix, by name of the weight: its [`range_key`], or several keys
    /// separated by spaces.
    pub of: BTreeMap<String, String>,
    /// Number of columns of the matrices that read a tensor.
    pub widths: BTreeMap<String, usize>,
    /// Number of rows of each matrix whose output gradients are used, by name of the weight. Such a
    /// matrix is used once and has few rows.
    pub gradients: BTreeMap<String, usize>,
}

/// The destination of rounding errors. It determines the chunks, independently of the factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PassedOn {
    Nowhere,
    ToColumns,
    /// To later columns and to later rows.
    ToRows,
}

impl MatrixInputs {
    /// Collects the inputs of every matrix of a model.
    pub fn new(graph: &Graph) -> Result<Self> {
        let kind = if graph.is_generative() { EntryKind::Decode } else { EntryKind::Encode };
        let point = EntryPoint { kind, rows: 1, context: 1, largest_rows: 1 };
        let mut keys: BTreeMap<WeightId, BTreeSet<String>> = BTreeMap::new();
        let mut products: BTreeMap<WeightId, usize> = BTreeMap::new();
        for component in &graph.components {
            let layers = if component.kind == ComponentKind::Decoder { 0..component.layers } else { 0..0 };
            let entry = graph.entry(component.kind, layers, point, EntryOptions::default())?;
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
                let what = format!(
                    "moments of {} columns are not supported, at most {COLUMNS_LIMIT}",
                    weight.row_width()
                );
                return Err(Error::invalid(what)
                    .at(format!("weight `{}`", weight.name))
                    .with_help("round each value to the nearest"));
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

    /// Returns the key of the second moments of a matrix's output gradients.
    pub fn gradient_key(weight: &str) -> String {
        format!("gradient {weight}")
    }

    /// Returns where errors of a weight are passed on to, assuming that its inputs and gradients
    /// were observed.
    pub(crate) fn passed_on(&self, weight: &str) -> PassedOn {
        match (self.of.contains_key(weight), self.gradients.contains_key(weight)) {
            (false, _) => PassedOn::Nowhere,
            (true, false) => PassedOn::ToColumns,
            (true, true) => PassedOn::ToRows,
        }
    }

    /// Returns the tensors that contribute to moments, each with the keys of these moments.
    pub fn readers(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut readers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for joined in self.widths.keys() {
            joined.split(' ').for_each(|key| readers.entry(key).or_default().push(joined));
        }
        readers
    }
}

impl Moments {
    /// Computes a hash of everything that determines moments: a checkpoint and the ids of sequences
    /// in order.
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

    /// Collects the moments of a model by running the reference implementation on token sequences
    /// in order, without gradients. `checkpoint` is a hash of the model, see
    /// [`content_hash`](crate::content_hash).
    ///
    /// Memory: 8 bytes for every pair of columns of every tensor that a matrix is multiplied with.
    pub fn by_reference(graph: &Graph, checkpoint: [u8; 32], sequences: &[Vec<u32>]) -> Result<Self> {
        if sequences.is_empty() {
            return Err(no_sequences());
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
