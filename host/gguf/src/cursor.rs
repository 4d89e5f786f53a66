//! A read position in the head of a file.

use std::path::Path;

use shardwright_vocabulary::{Error, Result};

pub(crate) const DAMAGED: &str = "the file is damaged or not a GGUF file; fetch it again";

/// Reads the bytes of a file from a position on. Every read is checked against the file's length.
pub(crate) struct Cursor<'f> {
    pub path: &'f Path,
    pub bytes: &'f [u8],
    pub at: u64,
}

impl<'f> Cursor<'f> {
    pub fn invalid(&self, offset: u64, reason: impl Into<String>) -> Error {
        Error::invalid(reason).at(format_args!("at byte {offset}")).at(self.path.display()).with_help(DAMAGED)
    }

    /// Returns the next `count` bytes and moves behind them.
    pub fn take(&mut self, count: u64) -> Result<&'f [u8]> {
        let end = self.at.saturating_add(count);
        let range = usize::try_from(self.at).ok().zip(usize::try_from(end).ok());
        let found = range.and_then(|(at, end)| self.bytes.get(at..end));
        let found = found.ok_or_else(|| truncated(self.path, "the head", end, self.bytes.len() as u64))?;
        self.at = end;
        Ok(found)
    }

    pub fn u32(&mut self) -> Result<u32> {
        Ok(self.take(4)?.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)))
    }

    pub fn u64(&mut self) -> Result<u64> {
        Ok(self.take(8)?.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }

    /// Reads a string: its length, then its bytes, which need not be UTF-8.
    pub fn string(&mut self) -> Result<&'f [u8]> {
        let length = self.u64()?;
        self.take(length)
    }

    /// Reads a string that must be UTF-8.
    pub fn text(&mut self) -> Result<&'f str> {
        let bytes = self.string()?;
        let at = self.at - bytes.len() as u64;
        std::str::from_utf8(bytes).map_err(|error| {
            let offset = at + error.valid_up_to() as u64;
            Error::invalid(format!("not UTF-8 at byte {offset}")).at(self.path.display()).with_help(DAMAGED)
        })
    }
}

/// Returns the error of a file that ends before the head or a tensor.
pub(crate) fn truncated(path: &Path, what: &str, needed: u64, available: u64) -> Error {
    Error::invalid(format!("{what} ends at byte {needed}, but the file has {available}"))
        .at(path.display())
        .with_help("the download is incomplete or mixed with another one; fetch the file again")
}
