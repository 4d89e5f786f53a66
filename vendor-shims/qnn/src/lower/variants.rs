//! Mathematically equivalent ways to write an entry for the compiler, whose scheduler handles some
//! better than others.

use shardwright_shim_abi::EntryView;

/// How an entry is lowered where there is a choice. All choices compute the same, up to the
/// rounding of intermediate results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Variants {
    /// Rotary embedding.
    pub rotary: Rotary,
    /// Keys and values that a run adds to those of the state.
    pub keys: KeyRows,
    /// Whether keys are transposed to `[d, keys]` by an operation of their own, or by the product.
    pub turned: bool,
    /// Where queries are reordered from rows to heads.
    pub heads: Heads,
    /// A mask that all heads share.
    pub mask: SharedMask,
    /// Products with a constant matrix.
    pub product: Product,
    /// The last operation before outputs.
    pub leaving: Leaving,
    /// Most outputs of one product; wider ones are split and concatenated.
    pub widest: u64,
    /// Most rows of one product; more are taken in equal parts and concatenated.
    pub tallest: u64,
}

/// How rotary embedding is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rotary {
    /// The library's own operation, for which its estimate has no cost.
    Fused,
    /// Four products of half heads.
    Pairs,
    /// Two products of whole heads, one of them with its halves exchanged and one half of the sines
    /// negated.
    Exchanged,
    /// Two products of whole heads, one of them with its halves exchanged and one half negated.
    Negated,
    /// [`Rotary::Negated`] for heads of 512 values and more, [`Rotary::Pairs`] for smaller ones.
    ByWidth,
}

/// How new rows are combined with a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyRows {
    /// Concatenated to it: one product.
    Joined,
    /// Kept separate: two products, whose scores are concatenated and contexts added.
    Split,
}

/// Where `[rows, heads · d]` becomes `[heads, rows, d]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Heads {
    /// Before the norm of heads.
    BeforeNorm,
    /// Between norm and rotary embedding.
    AfterNorm,
    /// After rotary embedding.
    AfterRotary,
    /// Nowhere: the heads that share a key are rows of one product.
    Never,
    /// After rotary embedding, and the heads that share a key are rows of one product.
    Grouped,
}

/// Heads of at least this many values are wide.
const WIDE_HEAD: u64 = 512;

impl Rotary {
    /// The form for heads of `width` values.
    pub(super) fn of(self, width: u64) -> Rotary {
        match self {
            Rotary::ByWidth if width >= WIDE_HEAD => Rotary::Negated,
            Rotary::ByWidth => Rotary::Pairs,
            other => other,
        }
    }
}

/// How a mask is added to the scores of several heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SharedMask {
    /// Broadcast by the addition.
    Broadcast,
    /// Repeated for every head first, up to [`MOST_REPEATED_BYTES`](super::MOST_REPEATED_BYTES); a
    /// larger one is broadcast.
    Repeated,
}

/// How a product with a constant matrix is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Product {
    /// FullyConnected.
    FullyConnected,
    /// A convolution of one pixel.
    Convolution,
    /// MatMul.
    MatMul,
}

/// How the last operation before an output is written, if it is elementwise on several rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Leaving {
    /// In one piece.
    Whole,
    /// In two blocks of rows.
    Rows,
    /// In blocks of 256 values of each row.
    Columns,
}

/// Outputs of one product: the compiler takes minutes for much wider ones.
pub const WIDEST: u64 = 32_768;

/// Rows of one product. With 2,520 rows a layer of Gemma 4's tower for pictures, in eight bits, has
/// twelve times the simulated cycles (562 ms on SoC 72) of one whose products are taken in two
/// parts of 1,260 (44.7 ms): their operands and results then fit the fast memory.
pub const TALLEST: u64 = 1_280;

impl Default for Variants {
    fn default() -> Self {
        Variants {
            rotary: Rotary::ByWidth,
            keys: KeyRows::Joined,
            turned: true,
            heads: Heads::Never,
            mask: SharedMask::Repeated,
            product: Product::FullyConnected,
            leaving: Leaving::Columns,
            widest: WIDEST,
            tallest: TALLEST,
        }
    }
}

impl Variants {
    /// The default for an entry unless flags say otherwise: the variant with few simulated cycles
    /// in all decoder layers of Gemma 4 E2B, 1 and 64 rows, 8 and 4 bits, on SoC 72 in finalize
    /// mode 3. With one row all variants lie within 0.5 %. With 64, queries that are not reordered
    /// and keys transposed by an operation save up to a fifth of a layer, and outputs split into
    /// blocks 2 to 6 % of a graph of one layer.
    pub fn rules(_entry: EntryView<'_>) -> Variants {
        Variants::default()
    }
}
