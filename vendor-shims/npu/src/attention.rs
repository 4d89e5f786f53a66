//! Recognises whole attentions in an entry's matrix products and data movements, so that a shim can
//! lower each as one unit.
//!
//! Only the form that attention has in an entry is recognised: queries and keys are split into
//! heads, then a product, elementwise operations, a mask, a softmax, a second product, and the
//! heads are merged into rows. Everything else is lowered node by node.

use shardwright_shim_abi::raw;

use crate::{Encoding, Source};

/// The attention of one layer, by tensors and nodes of the entry. It has `kv` heads of keys and
/// values, `group` query heads for each, R rows, S slots and d values per head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attention {
    /// Queries `[R, kv · group · d]`.
    pub query: u32,
    /// Keys `[S, kv · d]`, all in one tensor.
    pub keys: u32,
    /// Values `[S, kv · d]`, all in one tensor.
    pub values: u32,
    /// Pairs of key and value tensors that are concatenated along the rows to `keys` and `values`.
    /// A single pair if they are not concatenated.
    pub parts: Vec<(u32, u32)>,
    /// Mask `[R, S]`.
    pub mask: u32,
    /// Scores, the result of the first product.
    pub scores: u32,
    /// Nodes between the first product and the mask.
    pub between: Vec<usize>,
    /// Result of adding the mask.
    pub masked: u32,
    /// Mixed values, the result of the second product.
    pub mixed: u32,
    /// Result `[R, kv · group · d]`.
    pub output: u32,
    /// Number of key and value heads.
    pub kv: u64,
    /// Number of query heads for each key head.
    pub group: u64,
    /// Number of rows, R.
    pub rows: u64,
    /// Number of values per head, d.
    pub width: u64,
    /// Number of rows of keys and values, S.
    pub slots: u64,
    /// All nodes that the attention replaces.
    pub nodes: Vec<usize>,
    /// The last of these nodes to run.
    pub last: usize,
}

/// Finds all attentions of an entry. No node belongs to two of them.
pub fn recognise<E: Encoding>(source: &Source<'_, E>) -> Vec<Attention> {
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

/// One step of lowering an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'f> {
    /// A node that is lowered on its own.
    Node,
    /// An attention whose last node is this one.
    Attention(&'f Attention),
}

/// Returns the steps of an entry in order, each with its last node. A node inside an attention has
/// no step of its own.
pub fn steps<'f, E>(source: &Source<'_, E>, found: &'f [Attention]) -> Vec<(usize, Step<'f>)> {
    let mut inside = vec![None; source.nodes.len()];
    for attention in found {
        attention.nodes.iter().for_each(|node| inside[*node] = Some(attention));
    }
    let step = |(index, attention): (usize, Option<&'f Attention>)| match attention {
        None => Some((index, Step::Node)),
        Some(attention) if attention.last == index => Some((index, Step::Attention(attention))),
        Some(_) => None,
    };
    inside.into_iter().enumerate().filter_map(step).collect()
}

struct Match<'s, 'a, E> {
    source: &'s Source<'a, E>,
    nodes: Vec<usize>,
}

impl<E: Encoding> Match<'_, '_, E> {
    fn shape(&self, tensor: u32) -> &[u64] {
        self.source.tensor(tensor).shape
    }

    fn operand(&self, node: usize, place: usize) -> Option<u32> {
        self.source.nodes[node].optional_input(place)
    }

    fn result(&self, node: usize) -> Option<u32> {
        self.source.nodes[node].output().ok()
    }

    /// Returns the node that computes a tensor, if it has this operation.
    fn maker(&self, tensor: u32, op: u32) -> Option<usize> {
        self.source.producer(tensor).filter(|node| self.source.nodes[*node].op() == op)
    }

    /// Returns the only node that reads a tensor, if it has this operation and the tensor is not an
    /// output.
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

    /// Returns the tensor `[S, kv · d]` from which a tensor `[kv, 1, S, d]` is made.
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
        let parts = self.parts(keys, values);
        let nodes = self.nodes;
        Some(Attention {
            query,
            keys,
            values,
            parts,
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

    /// Checks that no other node reads the inner values, and that `last` runs last.
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

    /// Returns the pairs of equally shaped tensors from which keys and values are concatenated.
    fn parts(&self, keys: u32, values: u32) -> Vec<(u32, u32)> {
        let whole = vec![(keys, values)];
        let joined = |tensor: u32| -> Option<Vec<u32>> {
            let node = &self.source.nodes[self.maker(tensor, raw::SW_OP_CONCAT)?];
            (node.attribute_i64("axis").ok()? == 0).then_some(())?;
            node.inputs().collect()
        };
        let (Some(keys), Some(values)) = (joined(keys), joined(values)) else { return whole };
        let same = |(key, value): (&u32, &u32)| self.shape(*key) == self.shape(*value);
        match keys.len() == values.len() && keys.iter().zip(&values).all(same) {
            true => keys.into_iter().zip(values).collect(),
            false => whole,
        }
    }
}
