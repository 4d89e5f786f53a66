//! Rewrites attention in the layout selected by the variants.

use shardwright_shim_abi::Error;
use shardwright_shim_npu::attention::Attention;
use shardwright_shim_npu::lowering::Binary;
use shardwright_shim_npu::{Encoding as _, Lowering as _, ValueId};

use super::encoding::TensorEncoding;
use super::import::{Importer, Layout};
use super::variants::{Heads, KeyRows, SharedMask};

/// Maximum number of heads for which a mask is repeated.
const MOST_REPEATED: u64 = 64;

/// Maximum size in bytes of a mask repeated for its heads. Reported from phones with SM8850 and
/// SM8750: a 16-bit mask of 1,081,344 bytes, concatenated from one copy per head, was added to the
/// scores of other rows. A mask of 1,048,576 bytes was added correctly. No call fails, but the
/// model's output is wrong. The x86-64 library computes both correctly. A larger mask is broadcast.
/// A single attention then has between 7 % fewer and 10 % more simulated cycles on SoC 72.
pub const MOST_REPEATED_BYTES: u64 = 1 << 20;

/// Writes an attention in the layout of the variants, or in one with fewer parts if its parts are
/// too many. The result is `[R, kv · group · d]`.
pub(super) fn write(importer: &mut Importer<'_, '_>, attention: &Attention) -> Result<ValueId, Error> {
    let (heads, keys) = importer.attention_parts.layout(attention, importer.variants);
    let parts = match keys {
        KeyRows::Split => attention.parts.clone(),
        KeyRows::Joined => vec![(attention.keys, attention.values)],
    };
    let query = importer.value(attention.query)?;
    let mask = importer.value(attention.mask)?;
    let keys = parts.iter().map(|(keys, _)| importer.second(*keys)).collect::<Result<Vec<_>, _>>()?;
    let values = parts.iter().map(|(_, values)| importer.second(*values)).collect::<Result<Vec<_>, _>>()?;
    let mut writer = Writer { importer, attention, mask };
    match heads {
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
    /// Writes the attention with the heads of a key as rows of one product, in any order of rows
    /// and heads. Data moves only if there are several keys.
    fn in_rows(&mut self, query: ValueId, keys: &[ValueId], values: &[ValueId]) -> Result<ValueId, Error> {
        let &Attention { kv, group, rows, width, slots, .. } = self.attention;
        let mut heads = Vec::new();
        for head in 0..kv {
            let one = self.importer.work.slice(query, 1, head * group * width, (head + 1) * group * width);
            let query = self.importer.work.reshape(one, &[1, 1, rows * group, width]);
            let keys = self.head_of(keys, head);
            let values = self.head_of(values, head);
            let scores = self.scores(query, &keys)?;
            // The mask of one row is the same for every head.
            let (shape, mask) = match (rows, group) {
                (1, _) => (vec![1, 1, rows * group, slots], vec![1, 1, 1, slots]),
                (_, 1) => (vec![1, 1, rows, slots], vec![1, 1, rows, slots]),
                _ => (vec![1, rows, group, slots], vec![1, rows, 1, slots]),
            };
            let weights = self.weights(scores, &shape, &mask)?;
            let weights = self.importer.work.reshape(weights, &[1, 1, rows * group, slots]);
            let mixed = self.mixed(weights, &values)?;
            heads.push(self.importer.work.reshape(mixed, &[rows, group * width]));
        }
        Ok(self.importer.work.concat(&heads, 1))
    }

    /// Reshapes the rows `[S, kv · d]` of one head to `[1, 1, S, d]`.
    fn head_of(&mut self, parts: &[ValueId], head: u64) -> Vec<ValueId> {
        let width = self.attention.width;
        let mut of = |part: &ValueId| {
            let one = self.importer.work.slice(*part, 1, head * width, (head + 1) * width);
            let slots = self.importer.work.draft.shape(one)[0];
            self.importer.work.reshape(one, &[1, 1, slots, width])
        };
        parts.iter().map(&mut of).collect()
    }

    fn in_heads(
        &mut self,
        query: ValueId,
        keys: &[ValueId],
        values: &[ValueId],
        grouped: bool,
    ) -> Result<ValueId, Error> {
        let &Attention { kv, group, rows, width, slots, .. } = self.attention;
        let query = self.importer.apart(query, width, Layout::Heads);
        let (query_shape, key_axes) = match grouped {
            true => ([1, kv, group * rows, width], [1, kv]),
            false => ([kv, group, rows, width], [kv, 1]),
        };
        let query = self.importer.work.reshape(query, &query_shape);
        let keys = self.heads_of(keys, key_axes);
        let values = self.heads_of(values, key_axes);
        let scores = self.scores(query, &keys)?;
        let weights = self.weights(scores, &[kv, group, rows, slots], &[1, 1, rows, slots])?;
        let weights_shape = [query_shape[0], query_shape[1], query_shape[2], slots];
        let weights = self.importer.work.reshape(weights, &weights_shape);
        let mixed = self.mixed(weights, &values)?;
        let mixed = self.importer.work.reshape(mixed, &[1, kv * group, rows, width]);
        Ok(self.importer.together(mixed, Layout::Heads))
    }

    /// Reshapes rows `[S, kv · d]` to `[.., S, d]`.
    fn heads_of(&mut self, parts: &[ValueId], axes: [u64; 2]) -> Vec<ValueId> {
        let width = self.attention.width;
        let mut of = |part: &ValueId| {
            let slots = self.importer.work.draft.shape(*part)[0];
            let heads = self.importer.apart(*part, width, Layout::Heads);
            self.importer.work.reshape(heads, &[axes[0], axes[1], slots, width])
        };
        parts.iter().map(&mut of).collect()
    }

    fn scores(&mut self, query: ValueId, keys: &[ValueId]) -> Result<ValueId, Error> {
        let encoding = self.importer.work.encoding(self.attention.scores)?.computed();
        let turned = self.importer.variants.turned;
        let mut of = |keys: &ValueId| match turned {
            true => {
                let keys = self.importer.work.transpose(*keys, &[0, 1, 3, 2]);
                self.importer.mat_mul(query, keys, false, encoding)
            }
            false => self.importer.mat_mul(query, *keys, true, encoding),
        };
        let scores: Vec<ValueId> = keys.iter().map(&mut of).collect();
        Ok(self.importer.work.concat(&scores, 3))
    }

    /// Adds the mask of shape `mask` to the scores, reshaped to `shape`, and applies the softmax.
    fn weights(&mut self, scores: ValueId, shape: &[u64], mask: &[u64]) -> Result<ValueId, Error> {
        let scores = self.importer.between(self.attention, scores)?;
        let encoding = self.importer.work.encoding(self.attention.masked)?.computed();
        let scores = self.importer.work.reshape(scores, shape);
        let mask = self.mask_as(mask, shape);
        let masked = self.importer.binary(Binary::Add, scores, mask, encoding);
        Ok(self.importer.softmax(masked))
    }

    /// Returns the mask in extents that broadcast to `shape`. It is repeated for every head if the
    /// variant requests it and the result has at most [`MOST_REPEATED_BYTES`].
    fn mask_as(&mut self, mask: &[u64], shape: &[u64]) -> ValueId {
        let mut value = self.importer.work.reshape(self.mask, mask);
        let is_shared = |axis: &usize| mask[*axis] == 1 && shape[*axis] > 1;
        let axes: Vec<usize> = (0..mask.len()).filter(is_shared).collect();
        let count: u64 = axes.iter().map(|axis| shape[*axis]).product();
        let form = self.importer.variants.mask;
        if form == SharedMask::Repeated && self.attention.rows > 1 && (2..=MOST_REPEATED).contains(&count) {
            let element = self.importer.work.encoding_of(value).dtype().bytes();
            let bytes = shape.iter().fold(element, |bytes, extent| bytes.saturating_mul(*extent));
            if bytes > MOST_REPEATED_BYTES {
                self.importer.broadcast_mask = self.importer.broadcast_mask.max(Some(bytes));
                return value;
            }
            for axis in axes {
                value = self.importer.work.concat(&vec![value; shape[axis] as usize], axis);
            }
        }
        value
    }

    fn mixed(&mut self, weights: ValueId, values: &[ValueId]) -> Result<ValueId, Error> {
        let encoding = self.importer.work.encoding(self.attention.mixed)?.computed();
        let [first, rest @ ..] = values else { return Ok(weights) };
        if rest.is_empty() {
            return Ok(self.importer.mat_mul(weights, *first, false, encoding));
        }
        let mut start = 0;
        let mut sum: Option<ValueId> = None;
        for (index, part) in values.iter().enumerate() {
            let slots = self.importer.work.draft.shape(*part)[2];
            let some = self.importer.work.slice(weights, 3, start, start + slots);
            start += slots;
            // The weights of a part sum to at most 1, so its context is between zero and its
            // values.
            let within = match self.importer.work.encoding_of(*part).ends() {
                Some((low, high)) => TensorEncoding::covering(low, high),
                None => encoding,
            };
            let mixed = self.importer.mat_mul(some, *part, false, within);
            let is_last = index + 1 == values.len();
            sum = Some(match sum {
                None => mixed,
                Some(sum) => {
                    let target = if is_last { encoding } else { within };
                    self.importer.binary(Binary::Add, sum, mixed, target)
                }
            });
        }
        Ok(sum.unwrap_or(weights))
    }
}
