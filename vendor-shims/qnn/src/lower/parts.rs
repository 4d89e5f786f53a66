//! Limits the number of parts into which products, attentions and outputs are split.
//!
//! Each part becomes operations of the graph, and a tensor of an entry has up to 2³² rows. Without
//! a limit, an entry of a few hundred bytes would become a graph that fills the memory.

use shardwright_shim_abi::{EntryView, Error, NodeView, Verdict, raw};
use shardwright_shim_npu::attention::Attention;

use super::draft::Source;
use super::variants::{Heads, KeyRows, Variants};

/// Maximum number of parts of all products of an entry. A product that is not split is one part.
/// The same limit applies to the parts of all attentions and to the blocks of all outputs. Real
/// entries are far below it. For example, 27 layers with seven products of 2,520 rows each have 378
/// parts. A decoder with 126 layers, 8 key heads and 53,248 inner values has fewer than 5,000.
pub const MAX_PARTS: u64 = 1 << 16;

/// Extents of the parts of a product with a constant matrix. The last parts may be smaller.
pub(super) struct Split {
    /// Number of outputs of a part.
    pub widest: u64,
    /// Number of rows of a part.
    pub tallest: u64,
    /// Number of parts.
    pub parts: u64,
}

impl Split {
    /// Splits a product as the variants require, with rows in equal parts.
    pub fn of(rows: u64, outputs: u64, variants: &Variants) -> Split {
        let widest = variants.widest.max(1);
        let tallest = rows.div_ceil(rows.div_ceil(variants.tallest.max(1)).max(1)).max(1);
        let parts = outputs.div_ceil(widest).saturating_mul(rows.div_ceil(tallest));
        Split { widest, tallest, parts }
    }

    /// Returns the split of a node, if it is a product with a constant matrix.
    fn of_node(source: &Source<'_>, node: NodeView<'_>, variants: &Variants) -> Option<Split> {
        matches!(node.op(), raw::SW_OP_LINEAR | raw::SW_OP_MAT_MUL).then_some(())?;
        source.weight(node.optional_input(1)?)?;
        let (_, rows) = source.tensor(node.optional_input(0)?).shape.split_last()?;
        let outputs = source.tensor(node.output().ok()?).last();
        Some(Split::of(rows.iter().product(), outputs, variants))
    }
}

/// Refuses each supported product with which the entry's remaining products would have more than
/// [`MAX_PARTS`] parts, with the default variants. Smaller products after it may still fit.
pub(super) fn refuse(entry: EntryView<'_>, verdicts: &mut [Verdict]) {
    let Ok(source) = Source::read(entry) else { return };
    let variants = Variants::rules(entry);
    let mut total = 0u64;
    for (node, verdict) in source.nodes.iter().zip(verdicts) {
        if *verdict != Verdict::Taken {
            continue;
        }
        let Some(split) = Split::of_node(&source, *node, &variants) else { continue };
        let sum = total.saturating_add(split.parts);
        if sum <= MAX_PARTS {
            total = sum;
            continue;
        }
        *verdict = Verdict::Refused(format!(
            "it is split into {} products of at most {} outputs and {} rows, and the products before it have \
             {total} parts; all products of an entry may have at most {MAX_PARTS}",
            split.parts, split.widest, split.tallest
        ));
    }
}

/// Checks that the products of an entry have at most [`MAX_PARTS`] parts.
///
/// # Errors
///
/// `ErrorClass::ResourceLimit` with the limit `product-parts`. With the default variants,
/// [`refuse`] refuses a node of each such entry.
pub(super) fn check(source: &Source<'_>, variants: &Variants) -> Result<(), Error> {
    let parts = |node: &NodeView<'_>| Split::of_node(source, *node, variants).map_or(0, |split| split.parts);
    let total = source.nodes.iter().map(parts).fold(0, u64::saturating_add);
    if total <= MAX_PARTS {
        return Ok(());
    }
    Err(Error::resource_limit("product-parts", total, MAX_PARTS)
        .help("cut the model into smaller shards, or raise the flags `widest` and `tallest`"))
}

/// Number of parts that attentions have so far.
#[derive(Debug, Default)]
pub(super) struct AttentionParts(u64);

impl AttentionParts {
    /// Chooses the layout of an attention and adds its parts. It is the layout of the variants, or
    /// one with fewer parts if all attentions together would have more than [`MAX_PARTS`].
    pub fn layout(&mut self, attention: &Attention, variants: &Variants) -> (Heads, KeyRows) {
        let Variants { heads, keys, .. } = *variants;
        let fallback = (Heads::Grouped, KeyRows::Joined);
        for (heads, keys) in [(heads, keys), (heads, KeyRows::Joined), fallback] {
            let heads_apart = if heads == Heads::Never { attention.kv } else { 1 };
            let key_parts = if keys == KeyRows::Split { attention.parts.len() } else { 1 };
            let of_one = (key_parts + attention.between.len()) as u64;
            let total = self.0.saturating_add(heads_apart.saturating_mul(of_one));
            if total <= MAX_PARTS {
                self.0 = total;
                return (heads, keys);
            }
        }
        fallback
    }
}
