//! Caps on counts and sizes of a file. Each is far above every published file.

use std::path::Path;

use shardwright_vocabulary::{Error, Result};

/// Tensors of one file.
pub const TENSORS: u64 = 1 << 20;

/// Entries of the metadata. Published files have about fifty.
pub const METADATA: u64 = 1 << 16;

/// Bytes of metadata and descriptions. Published files have up to 20 MB, most of them tokens.
pub const HEAD_BYTES: u64 = 256 << 20;

/// Nesting depth of lists in the metadata.
pub const NESTING: u32 = 4;

/// Bytes of a tensor's name. This is the format's own limit.
pub const NAME: usize = 64;

/// Axes of a tensor. This is the format's own limit.
pub const RANK: u32 = 4;

/// Largest alignment of tensors. Published files use 32.
pub const ALIGNMENT: u32 = 1 << 20;

/// Files of a split model.
pub const FILES: u64 = 1024;

/// Checks the number of `tensors`, `metadata entries` or `files`.
pub(crate) fn expect_at_most(cap: u64, what: &str, count: u64, path: &Path) -> Result<()> {
    if count <= cap {
        return Ok(());
    }
    Err(Error::invalid(format!("{count} {what}, more than {cap}")).at(path.display()))
}
