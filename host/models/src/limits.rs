//! Caps on the sizes and counts that a checkpoint may specify. Each is far above every published
//! model of the supported families, and low enough that refusing a hostile file costs little.

use std::ops::RangeInclusive;
use std::path::Path;

use shardwright_vocabulary::{Error, Result};

/// Bytes of `config.json` and of the other small JSON files. Published ones have a few kilobytes.
pub const CONFIG_BYTES: u64 = 4 << 20;

/// Bytes of `model.safetensors.index.json`: one line per tensor, a few megabytes for the largest
/// models.
pub const INDEX_BYTES: u64 = 64 << 20;

/// Bytes of a safetensors header. This is the format's own limit.
pub const HEADER_BYTES: u64 = 100_000_000;

/// Bytes of a weight file of which only the header is present. Whole files are limited by the disk.
/// Published files have tens of gigabytes at most.
pub const WEIGHT_FILE_BYTES: u64 = 1 << 44;

/// Files of a sharded checkpoint.
pub const WEIGHT_FILES: usize = 1024;

/// Tensors over all files of a checkpoint.
pub const TENSORS: usize = 1 << 20;

/// Axes of a stored tensor, used or not.
pub const TENSOR_RANK: usize = 8;

/// Layers of a decoder. The graph has about thirty nodes for each.
pub const LAYERS: RangeInclusive<u64> = 1..=512;

/// Values per row of the residual stream.
pub const HIDDEN: RangeInclusive<u64> = 1..=1 << 17;

/// Values per row inside the feed-forward block.
pub const INTERMEDIATE: RangeInclusive<u64> = 1..=1 << 20;

/// Query heads, and key/value heads.
pub const HEADS: RangeInclusive<u64> = 1..=1024;

/// Values per attention head.
pub const HEAD_DIM: RangeInclusive<u64> = 2..=4096;

/// Rows of the embedding table.
pub const VOCABULARY: RangeInclusive<u64> = 1..=1 << 22;

/// Positions. Rotary angles are computed from positions in f32, which counts exactly up to 2²⁴.
pub const CONTEXT: RangeInclusive<u64> = 1..=1 << 24;

/// Visible distance of sliding layers.
pub const WINDOW: RangeInclusive<u64> = 1..=1 << 24;

/// Visible distance in one direction, where 0 means that no row is visible in that direction.
pub const WINDOW_OR_NONE: RangeInclusive<u64> = 0..=1 << 24;

/// Pixels of a patch along a side.
pub const PATCH: RangeInclusive<u64> = 1..=256;

/// Patches along a side that are pooled. All of them are operands of one mean.
pub const POOL: RangeInclusive<u64> = 1..=16;

/// Most rows of a prompt that one picture becomes: the largest budget of the family.
pub const SOFT_TOKENS: u64 = 1120;

/// Most rows of a prompt that one clip becomes: 30 seconds, 25 a second.
pub const CLIP_ROWS: u64 = 750;

/// Columns, and rows, of patches that have their own position.
pub const GRID: RangeInclusive<u64> = 1..=1 << 20;

/// Rows of an audio tower that one row attends to. The row itself counts twice, as in the files.
pub const AUDIO_CONTEXT: RangeInclusive<u64> = 2..=1 << 12;

/// Rows that a convolution along rows spans.
pub const KERNEL: RangeInclusive<u64> = 1..=32;

/// Channels of a convolution over frames.
pub const CHANNELS: RangeInclusive<u64> = 1..=1 << 12;

/// Values per layer of the per-layer inputs. 0 switches them off.
pub const PER_LAYER_WIDTH: RangeInclusive<u64> = 0..=1 << 16;

/// Modules a sentence model lists.
pub const MODULES: usize = 64;

/// Inputs that share a scale in a quantised checkpoint. Published ones have 16 to 1024.
pub const GROUP: RangeInclusive<u64> = 1..=1 << 20;

/// Rank of the matrices of an adapter. Published ones have 4 to 512.
pub const LORA_RANK: RangeInclusive<u64> = 1..=1 << 16;

/// Bytes of a regular expression in the settings of an adapter. Published ones have a few hundred.
pub const LORA_EXPRESSION_BYTES: usize = 1 << 16;

/// Adapters that are merged into one checkpoint.
pub const LORA_ADAPTERS: usize = 64;

/// Entries of the metadata of a GGUF file. Published ones have about fifty.
pub const GGUF_METADATA: u64 = 1 << 16;

/// Nesting depth of lists in the metadata of a GGUF file.
pub const GGUF_NESTING: u32 = 4;

/// Bytes of a tensor's name in a GGUF file. This is the format's own limit.
pub const GGUF_NAME: usize = 64;

/// Axes of a tensor in a GGUF file. This is the format's own limit.
pub const GGUF_RANK: u32 = 4;

/// Largest alignment of the tensors of a GGUF file. Published files use 32.
pub const GGUF_ALIGNMENT: u32 = 1 << 20;

/// Checks a number of files, tensors or modules that `path` lists.
pub(crate) fn expect_at_most(cap: usize, what: &str, count: usize, path: &Path) -> Result<()> {
    if count <= cap {
        return Ok(());
    }
    Err(Error::invalid(format!("{count} {what}, more than {cap}")).at(path.display()))
}
