//! Mathematically equivalent ways to write an entry for the compiler. Its scheduler handles some
//! better than others.

use shardwright_shim_abi::EntryView;

/// Choices in lowering an entry. All choices compute the same, up to the rounding of intermediate
/// results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Variants {
    pub rotary: Rotary,
    /// Combination of a run's new keys and values with the state's.
    pub keys: KeyRows,
    /// Whether a separate operation transposes keys to `[d, keys]`. Otherwise the product does.
    pub turned: bool,
    /// Where queries are reordered from rows to heads.
    pub heads: Heads,
    /// Form of a mask that all heads share.
    pub mask: SharedMask,
    /// Form of products with a constant matrix.
    pub product: Product,
    /// Form of the last operation before outputs.
    pub leaving: Leaving,
    /// Maximum number of outputs of one product. Wider ones are split and concatenated.
    pub widest: u64,
    /// Maximum number of rows of one product. More rows are split into equal parts and
    /// concatenated.
    pub tallest: u64,
}

/// Form of rotary embedding.
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
    /// [`Rotary::Negated`] for heads of at least 512 values, otherwise [`Rotary::Pairs`].
    ByWidth,
}

/// Combination of new rows with a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyRows {
    /// Concatenated to the state: one product.
    Joined,
    /// Kept separate: two products, whose scores are concatenated and contexts added.
    Split,
}

/// Place where `[rows, heads · d]` becomes `[heads, rows, d]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Heads {
    /// Before the norm of heads.
    BeforeNorm,
    /// Between norm and rotary embedding.
    AfterNorm,
    /// After rotary embedding.
    AfterRotary,
    /// Nowhere. The heads that share a key are rows of one product.
    Never,
    /// After rotary embedding, and the heads that share a key are rows of one product.
    Grouped,
}

/// Minimum number of values of a wide head.
const WIDE_HEAD: u64 = 512;

impl Rotary {
    /// Returns the form for heads of `width` values.
    pub(super) fn of(self, width: u64) -> Rotary {
        match self {
            Rotary::ByWidth if width >= WIDE_HEAD => Rotary::Negated,
            Rotary::ByWidth => Rotary::Pairs,
            other => other,
        }
    }
}

/// Form of a mask that is added to the scores of several heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SharedMask {
    /// Broadcast by the addition.
    Broadcast,
    /// First repeated for every head, up to [`MOST_REPEATED_BYTES`](super::MOST_REPEATED_BYTES). A
    /// larger mask is broadcast.
    Repeated,
}

/// Form of a product with a constant matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Product {
    FullyConnected,
    /// A convolution of one pixel.
    Convolution,
    MatMul,
}

/// Form of the last operation before an output, if it is elementwise on several rows.
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

/// Default number of outputs of one product. Much wider products compile for minutes.
pub const WIDEST: u64 = 32_768;

/// Default number of rows of one product. With 2,520 rows, an 8-bit layer of Gemma 4's picture
/// tower has twelve times the simulated cycles (562 ms on SoC 72) of a layer with two parts of
/// 1,260 rows (44.7 ms), whose operands and results fit the fast memory.
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
    /// Returns the default for an entry, which flags may override. It has few simulated cycles in
    /// all decoder layers of Gemma 4 E2B with 1 and 64 rows and 8 and 4 bits, on SoC 72 in finalize
    /// mode 3. With one row all variants differ by at most 0.5 %. With 64 rows, queries that are
    /// not reordered and keys transposed by an operation save up to a fifth of a layer. Outputs
    /// split into blocks save 2 to 6 % of a graph of one layer.
    pub fn rules(_entry: EntryView<'_>) -> Variants {
        Variants::default()
    }
}
