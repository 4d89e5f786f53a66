//! Attention in the entry's products and movements, recognised as a whole and written anew with fewer of them.
//!
//! What is recognised is the one form attention falls into: queries and keys to heads, a product, operations value by value, a mask, a
//! softmax, a product, and back to rows. Anything else is lowered node by node.

use shardwright_shim_abi::raw;

use shardwright_neuron_adapter::operation;

use super::draft::ValueId;
use super::error::LowerError;
use super::import::Importer;
use super::source::Source;

/// Attention of one layer, in tensors of the entry.
pub(super) struct Attention {
    /// `[R, kv · group · d]`.
    query: u32,
    /// `[S, kv · d]`, all in one tensor.
    keys: u32,
    /// `[S, kv · d]`, all in one tensor.
    values: u32,
    /// `[R, S]` or what broadcasts to it.
    mask: u32,
    /// Result of the first product.
    scores: u32,
    /// Nodes between the first product and the mask.
    between: Vec<usize>,
    /// Result of adding the mask.
    masked: u32,
    /// Result of the second product.
    mixed: u32,
    /// `[R, kv · group · d]`.
    pub output: u32,
    kv: u64,
    group: u64,
    rows: u64,
    width: u64,
    slots: u64,
    /// Everything this stands for.
    pub nodes: Vec<usize>,
    /// The last of them.
    pub last: usize,
}

/// All attentions of an entry, none of which share a node.
pub(super) fn recognise(source: &Source<'_>) -> Vec<Attention> {
    let mut found: Vec<Attention> = Vec::new();
    let mut taken = vec![false; source.nodes.len()];
    for index in 0..source.nodes.len() {
        if source.nodes[index].op() != raw::SW_OP_SOFTMAX {
            continue;
        }
        if let Some(attention) = (Match { source, nodes: Vec::new() }).attention(index)
            && attention.nodes.iter().all(|node| !taken[*node])
        {
            attention.nodes.iter().for_each(|node| taken[*node] = true);
            found.push(attention);
        }
    }
    found
}

struct Match<'s, 'a> {
    source: &'s Source<'a>,
    nodes: Vec<usize>,
}

impl Match<'_, '_> {
    fn shape(&self, tensor: u32) -> &[u64] {
        self.source.tensor(tensor).shape
    }

    fn operand(&self, node: usize, place: usize) -> Option<u32> {
        self.source.nodes[node].optional_input(place)
    }

    fn result(&self, node: usize) -> Option<u32> {
        self.source.nodes[node].output().ok()
    }

    /// The node that makes a tensor, if it is of that kind.
    fn maker(&self, tensor: u32, op: u32) -> Option<usize> {
        self.source.producer(tensor).filter(|node| self.source.nodes[*node].op() == op)
    }

    /// The one node that reads a tensor which does not leave, if it is of that kind.
    fn reader(&self, tensor: u32, op: u32) -> Option<usize> {
        match (self.source.tensor(tensor).readers.as_slice(), self.source.tensor(tensor).is_output) {
            ([reader], false) if self.source.nodes[*reader].op() == op => Some(*reader),
            _ => None,
        }
    }

    fn perm(&self, node: usize, expected: &[i64]) -> Option<()> {
        let perm = self.source.nodes[node].attribute_list("perm").ok()?;
        (perm == expected).then_some(())
    }

    fn product(&self, node: usize, transposed: i64) -> Option<()> {
        (self.source.nodes[node].attribute_i64("transpose_b").ok()? == transposed).then_some(())
    }

    /// `[S, kv · d]` behind a tensor `[kv, 1, S, d]`.
    fn rows_of(&mut self, tensor: u32) -> Option<u32> {
        let last = self.maker(tensor, raw::SW_OP_RESHAPE)?;
        let transpose = self.maker(self.operand(last, 0)?, raw::SW_OP_TRANSPOSE)?;
        self.perm(transpose, &[1, 0, 2])?;
        let first = self.maker(self.operand(transpose, 0)?, raw::SW_OP_RESHAPE)?;
        let rows = self.operand(first, 0)?;
        let [kv, 1, slots, width] = *self.shape(tensor) else { return None };
        let apart: [u64; 3] = [slots, kv, width];
        (self.shape(rows) == [slots, kv * width] && self.shape(self.result(first)?) == apart).then_some(())?;
        self.nodes.extend([first, transpose, last]);
        Some(rows)
    }

    fn attention(mut self, softmax: usize) -> Option<Attention> {
        let masked = self.operand(softmax, 0)?;
        let add = self.maker(masked, raw::SW_OP_ADD)?;
        let (mut scores, mask) = (self.operand(add, 0)?, self.operand(add, 1)?);
        let mut between = Vec::new();
        let product = loop {
            let node = self.source.producer(scores)?;
            match self.source.nodes[node].op() {
                raw::SW_OP_MAT_MUL => break node,
                raw::SW_OP_MUL_SCALAR | raw::SW_OP_SOFTCAP | raw::SW_OP_TANH => {
                    between.push(node);
                    scores = self.operand(node, 0)?;
                }
                _ => return None,
            }
        };
        between.reverse();
        self.product(product, 1)?;
        let (queries, keys) = (self.operand(product, 0)?, self.operand(product, 1)?);
        let turn = self.maker(queries, raw::SW_OP_TRANSPOSE)?;
        self.perm(turn, &[1, 2, 0, 3])?;
        let apart = self.maker(self.operand(turn, 0)?, raw::SW_OP_RESHAPE)?;
        let query = self.operand(apart, 0)?;
        let [kv, group, rows, width] = *self.shape(queries) else { return None };
        (self.shape(query) == [rows, kv * group * width]).then_some(())?;
        (self.shape(self.result(apart)?) == [rows, kv, group, width]).then_some(())?;
        let keys = self.rows_of(keys)?;

        let weights = self.result(softmax)?;
        let second = self.reader(weights, raw::SW_OP_MAT_MUL)?;
        (self.operand(second, 0)? == weights).then_some(())?;
        self.product(second, 0)?;
        let values = self.rows_of(self.operand(second, 1)?)?;
        let mixed = self.result(second)?;
        let back = self.reader(mixed, raw::SW_OP_TRANSPOSE)?;
        self.perm(back, &[2, 0, 1, 3])?;
        let last = self.reader(self.result(back)?, raw::SW_OP_RESHAPE)?;
        let output = self.result(last)?;
        (self.shape(output) == [rows, kv * group * width]).then_some(())?;

        let slots = self.shape(keys)[0];
        let fits = self.shape(keys) == [slots, kv * width]
            && self.shape(values) == [slots, kv * width]
            && self.shape(scores) == [kv, group, rows, slots]
            && self.shape(masked) == [kv, group, rows, slots]
            && self.shape(mask) == [rows, slots]
            && self.source.weight(mask).is_none();
        fits.then_some(())?;
        self.nodes.extend([apart, turn, product, add, softmax, second, back, last]);
        self.nodes.extend(&between);
        self.nodes.sort_unstable();
        self.nodes.dedup();
        self.is_closed(last).then_some(())?;
        let nodes = self.nodes;
        Some(Attention {
            query,
            keys,
            values,
            mask,
            scores,
            between,
            masked,
            mixed,
            output,
            kv,
            group,
            rows,
            width,
            slots,
            nodes,
            last,
        })
    }

    /// Whether nothing else reads what lies inside, and the last node is the last to run.
    fn is_closed(&self, last: usize) -> bool {
        self.nodes.iter().all(|node| {
            *node == last
                || *node < last
                    && self.source.nodes[*node].outputs().iter().all(|output| {
                        let tensor = self.source.tensor(*output);
                        !tensor.is_output && tensor.readers.iter().all(|reader| self.nodes.contains(reader))
                    })
        })
    }
}

/// Writes an attention: `[R, kv · group · d]`.
///
/// Queries of one key head are rows of one product, row by row and head by head, so that both operands of a product have the same heads and nothing is broadcast
/// in it. With one row or one key head nothing is transposed. The mask is held as `[1, R, 1, S]`.
pub(super) fn write(importer: &mut Importer<'_, '_>, found: &Attention) -> Result<ValueId, LowerError> {
    let &Attention { kv, group, rows, width, slots, .. } = found;
    let query = importer.value(found.query)?;
    let query = match rows == 1 || kv == 1 {
        true => query,
        false => {
            let apart = importer.reshape(query, &[rows, kv, group, width]);
            importer.transpose(apart, &[1, 0, 2, 3])
        }
    };
    let query = importer.reshape(query, &[1, kv, rows * group, width]);
    let keys = heads(importer, found.keys, kv, slots, width)?;
    let values = heads(importer, found.values, kv, slots, width)?;

    let encoding = importer.encoding(found.scores)?;
    let mut scores = importer.mat_mul(query, keys, true, encoding);
    for &node in &found.between {
        let node = importer.source.nodes[node];
        let out = node.output().map_err(|error| importer.refused(error.message))?;
        let target = importer.encoding(out)?;
        scores = importer.pointwise(node, scores, target)?;
    }
    let mask = importer.held(found.mask)?;
    let mask = importer.reshape(mask, &[1, rows, 1, slots]);
    // With one row the mask is the same for all heads as it stands.
    let scores = match rows {
        1 => scores,
        _ => importer.reshape(scores, &[kv, rows, group, slots]),
    };
    let encoding = importer.encoding(found.masked)?;
    let masked = importer.binary(operation::ADD, scores, mask, encoding);
    let weights = importer.softmax(masked);
    let weights = importer.reshape(weights, &[1, kv, rows * group, slots]);
    let encoding = importer.encoding(found.mixed)?;
    let mixed = importer.mat_mul(weights, values, false, encoding);
    let mixed = match rows == 1 || kv == 1 {
        true => mixed,
        false => {
            let apart = importer.reshape(mixed, &[kv, rows, group, width]);
            importer.transpose(apart, &[1, 0, 2, 3])
        }
    };
    Ok(importer.reshape(mixed, &[rows, kv * group * width]))
}

/// `[S, kv · d]` as `[1, kv, S, d]`.
fn heads(
    importer: &mut Importer<'_, '_>,
    tensor: u32,
    kv: u64,
    slots: u64,
    width: u64,
) -> Result<ValueId, LowerError> {
    let value = importer.value(tensor)?;
    let apart = importer.reshape(value, &[1, slots, kv, width]);
    Ok(match kv {
        1 => importer.reshape(apart, &[1, 1, slots, width]),
        _ => importer.transpose(apart, &[0, 2, 1, 3]),
    })
}
