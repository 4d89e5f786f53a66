//! A read position in the head of a file.

use std::path::Path;

use crate::GgufError;

/// Reads the bytes of a file from a position on. Every read is checked against the file's length.
pub(crate) struct Cursor<'f> {
    pub path: &'f Path,
    pub bytes: &'f [u8],
    pub at: u64,
}

impl<'f> Cursor<'f> {
    pub fn invalid(&self, offset: u64, reason: String) -> GgufError {
        GgufError::Invalid { path: self.path.to_owned(), offset, reason }
    }

    pub fn capped(&self, what: &'static str, count: u64, cap: u64) -> Result<(), GgufError> {
        if count <= cap {
            return Ok(());
        }
        Err(GgufError::TooMany { path: self.path.to_owned(), what, count, cap })
    }

    /// Returns the next `count` bytes and moves behind them.
    pub fn take(&mut self, count: u64) -> Result<&'f [u8], GgufError> {
        let end = self.at.saturating_add(count);
        let range = usize::try_from(self.at).ok().zip(usize::try_from(end).ok());
        let found = range.and_then(|(at, end)| self.bytes.get(at..end));
        let found = found.ok_or_else(|| GgufError::Truncated {
            path: self.path.to_owned(),
            what: "the head".to_owned(),
            needed: end,
            available: self.bytes.len() as u64,
        })?;
        self.at = end;
        Ok(found)
    }

    pub fn u32(&mut self) -> Result<u32, GgufError> {
        Ok(self.take(4)?.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)))
    }

    pub fn u64(&mut self) -> Result<u64, GgufError> {
        Ok(self.take(8)?.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }

    /// Reads a string: its length, then its bytes, which need not be UTF-8.
    pub fn string(&mut self) -> Result<&'f [u8], GgufError> {
        let length = self.u64()?;
        self.take(length)
    }

    /// Reads a string that must be UTF-8.
    pub fn text(&mut self) -> Result<&'f str, GgufError> {
        let bytes = self.string()?;
        let at = self.at - bytes.len() as u64;
        std::str::from_utf8(bytes).map_err(|error| GgufError::NotUtf8 {
            path: self.path.to_owned(),
            offset: at + error.valid_up_to() as u64,
        })
    }
}
