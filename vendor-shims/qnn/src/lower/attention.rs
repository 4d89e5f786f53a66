//! Attention in the entry's products and movements, recognised as a whole and written anew in the layout a variant asks for.
//!
//! What is recognised is the one form attention falls into: queries and keys to heads, a product, operations value by value, a mask, a
//! softmax, a product, and back to rows. Anything else is lowered node by node.

use shardwright_shim_abi::raw;

use super::draft::ValueId;
use super::encoding::Encoding;
use super::error::LowerError;
use super::import::{Importer, Layout};
use super::source::Source;
use super::variants::{Heads, KeyRows, SharedMask};

/// Heads for which a mask is written out.
const MOST_REPEATED: u64 = 64;

/// Attention of one layer, in tensors of the entry.
pub(super) struct Attention {
    /// `[R, kv · group · d]`.
    query: u32,
    /// `[S, kv · d]`, all in one tensor.
    keys: u32,
    /// `[S, kv · d]`, all in one tensor.
    values: u32,
    /// Tensors that `keys` and `values` are joined of, row by row; one each where they are not joined.
    parts: Vec<(u32, u32)>,
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

    /// Pairs of equal rows that keys and values are joined of.
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

/// Writes an attention in the layout of the variant; `[R, kv · group · d]`.
pub(super) fn write(importer: &mut Importer<'_, '_>, attention: &Attention) -> Result<ValueId, LowerError> {
    let parts = match importer.variants.keys {
        KeyRows::Split => attention.parts.clone(),
        KeyRows::Joined => vec![(attention.keys, attention.values)],
    };
    let query = importer.wide(attention.query)?;
    let mask = importer.wide(attention.mask)?;
    let keys = parts.iter().map(|(keys, _)| importer.second(*keys)).collect::<Result<Vec<_>, _>>()?;
    let values = parts.iter().map(|(_, values)| importer.second(*values)).collect::<Result<Vec<_>, _>>()?;
    let mut writer = Writer { importer, attention, mask };
    match writer.importer.variants.heads {
        Heads::Never => writer.in_rows(query, &keys, &values),
        Heads::Grouped => writer.in_heads(query, &keys, &values, true),
        Heads::BeforeNorm | Heads::AfterNorm | Heads::AfterRotary => {
            writer.in_heads(query, &keys, &values, false)
        }
    }
}

struct Writer<'i, 's, 'w> {
    importer: &'i mut Importer<'s, 'w>,
    attention: &'i Attention,
    mask: ValueId,
}

impl Writer<'_, '_, '_> {
    /// The heads of a key are rows of one product, in whatever order rows and heads have: nothing moves but where there are several keys.
    fn in_rows(
        &mut self,
        query: ValueId,
        keys: &[ValueId],
        values: &[ValueId],
    ) -> Result<ValueId, LowerError> {
        let &Attention { kv, group, rows, width, slots, .. } = self.attention;
        let mut heads = Vec::new();
        for head in 0..kv {
            let one = self.importer.slice(query, 1, head * group * width, (head + 1) * group * width);
            let query = self.importer.reshape(one, &[1, 1, rows * group, width]);
            let keys = self.head_of(keys, head);
            let values = self.head_of(values, head);
            let scores = self.scores(query, &keys)?;
            // One row's mask is every head's.
            let (shape, mask) = match (rows, group) {
                (1, _) => (vec![1, 1, rows * group, slots], vec![1, 1, 1, slots]),
                (_, 1) => (vec![1, 1, rows, slots], vec![1, 1, rows, slots]),
                _ => (vec![1, rows, group, slots], vec![1, rows, 1, slots]),
            };
            let weights = self.weights(scores, &shape, &mask)?;
            let weights = self.importer.reshape(weights, &[1, 1, rows * group, slots]);
            let mixed = self.mixed(weights, &values)?;
            heads.push(self.importer.reshape(mixed, &[rows, group * width]));
        }
        Ok(self.importer.concat(&heads, 1))
    }

    /// Rows `[S, kv · d]` of one head as `[1, 1, S, d]`.
    fn head_of(&mut self, parts: &[ValueId], head: u64) -> Vec<ValueId> {
        let width = self.attention.width;
        let mut of = |part: &ValueId| {
            let one = self.importer.slice(*part, 1, head * width, (head + 1) * width);
            let slots = self.importer.draft.shape(one)[0];
            self.importer.reshape(one, &[1, 1, slots, width])
        };
        parts.iter().map(&mut of).collect()
    }

    fn in_heads(
        &mut self,
        query: ValueId,
        keys: &[ValueId],
        values: &[ValueId],
        grouped: bool,
    ) -> Result<ValueId, LowerError> {
        let &Attention { kv, group, rows, width, slots, .. } = self.attention;
        let query = self.importer.apart(query, width, Layout::Heads);
        let (query_shape, key_axes) = match grouped {
            true => ([1, kv, group * rows, width], [1, kv]),
            false => ([kv, group, rows, width], [kv, 1]),
        };
        let query = self.importer.reshape(query, &query_shape);
        let keys = self.heads_of(keys, key_axes);
        let values = self.heads_of(values, key_axes);
        let scores = self.scores(query, &keys)?;
        let weights = self.weights(scores, &[kv, group, rows, slots], &[1, 1, rows, slots])?;
        let weights_shape = [query_shape[0], query_shape[1], query_shape[2], slots];
        let weights = self.importer.reshape(weights, &weights_shape);
        let mixed = self.mixed(weights, &values)?;
        let mixed = self.importer.reshape(mixed, &[1, kv * group, rows, width]);
        Ok(self.importer.together(mixed, Layout::Heads))
    }

    /// Rows `[S, kv · d]` as `[.., S, d]`.
    fn heads_of(&mut self, parts: &[ValueId], axes: [u64; 2]) -> Vec<ValueId> {
        let width = self.attention.width;
        let mut of = |part: &ValueId| {
            let slots = self.importer.draft.shape(*part)[0];
            let heads = self.importer.apart(*part, width, Layout::Heads);
            self.importer.reshape(heads, &[axes[0], axes[1], slots, width])
        };
        parts.iter().map(&mut of).collect()
    }

    fn scores(&mut self, query: ValueId, keys: &[ValueId]) -> Result<ValueId, LowerError> {
        let encoding = self.importer.encoding(self.attention.scores)?.computed();
        let turned = self.importer.variants.turned;
        let mut of = |keys: &ValueId| match turned {
            true => {
                let keys = self.importer.transpose(*keys, &[0, 1, 3, 2]);
                self.importer.mat_mul(query, keys, false, encoding)
            }
            false => self.importer.mat_mul(query, *keys, true, encoding),
        };
        let scores: Vec<ValueId> = keys.iter().map(&mut of).collect();
        Ok(self.importer.concat(&scores, 3))
    }

    /// The softmax of scores that take `shape` for a mask of the shape `mask`.
    fn weights(&mut self, mut scores: ValueId, shape: &[u64], mask: &[u64]) -> Result<ValueId, LowerError> {
        for &node in &self.attention.between {
            let node = self.importer.source.nodes[node];
            let out = node.output().ok().and_then(|out| self.importer.encoding(out).ok());
            let target = out.unwrap_or(Encoding::Half).computed();
            scores = self.importer.pointwise(node, scores, target)?;
        }
        let encoding = self.importer.encoding(self.attention.masked)?.computed();
        let scores = self.importer.reshape(scores, shape);
        let mask = self.mask_as(mask, shape);
        let masked = self.importer.binary("ElementWiseAdd", scores, mask, encoding);
        Ok(self.importer.softmax(masked))
    }

    /// The mask in extents that broadcast to `shape`, written out for every head where the variant asks for it.
    fn mask_as(&mut self, mask: &[u64], shape: &[u64]) -> ValueId {
        let mut value = self.importer.reshape(self.mask, mask);
        let is_shared = |axis: &usize| mask[*axis] == 1 && shape[*axis] > 1;
        let axes: Vec<usize> = (0..mask.len()).filter(is_shared).collect();
        let count: u64 = axes.iter().map(|axis| shape[*axis]).product();
        let form = self.importer.variants.mask;
        if form == SharedMask::Repeated && self.attention.rows > 1 && count <= MOST_REPEATED {
            for axis in axes {
                value = self.importer.concat(&vec![value; shape[axis] as usize], axis);
            }
        }
        value
    }

    fn mixed(&mut self, weights: ValueId, values: &[ValueId]) -> Result<ValueId, LowerError> {
        let encoding = self.importer.encoding(self.attention.mixed)?.computed();
        let [first, rest @ ..] = values else { return Ok(weights) };
        if rest.is_empty() {
            return Ok(self.importer.mat_mul(weights, *first, false, encoding));
        }
        let mut start = 0;
        let mut sum: Option<ValueId> = None;
        for (index, part) in values.iter().enumerate() {
            let slots = self.importer.draft.shape(*part)[2];
            let some = self.importer.slice(weights, 3, start, start + slots);
            start += slots;
            // Weights of a part sum to at most 1, so its context lies within its values and zero.
            let within = match self.importer.encoding_of(*part).ends() {
                Some((low, high)) => Encoding::covering(low, high),
                None => encoding,
            };
            let mixed = self.importer.mat_mul(some, *part, false, within);
            let is_last = index + 1 == values.len();
            sum = Some(match sum {
                None => mixed,
                Some(sum) => {
                    let target = if is_last { encoding } else { within };
                    self.importer.binary("ElementWiseAdd", sum, mixed, target)
                }
            });
        }
        Ok(sum.unwrap_or(weights))
    }
}
