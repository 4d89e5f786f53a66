//! The first page of a file of quantised weights, and the offsets of the other parts.
//!
//! A file consists of this page, the data, the scales, and a table of one SHA-256 per chunk; each
//! part begins on a page. The page describes the content and, once the file is complete, has the
//! hash of the table; it includes its own hash. So every byte is covered, chunks can be checked one
//! by one, and a file in progress records which of its chunks are valid.

use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use shardwright_vocabulary::WeightFormat;

use crate::StoreError;
use crate::compensation::Remark;
use crate::job::Job;

/// Alignment of all parts, and size of the header: a page, so that mapped data are aligned for any
/// element.
pub(crate) const PAGE: u64 = 4096;
/// Bytes of a hash.
pub(crate) const HASH: usize = 32;
/// Version of the files and of the arithmetic; another version makes other files and leaves old
/// ones alone.
pub(crate) const VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"sw-made\n";
/// Magic, version, length of the text, hash of all of it.
const FIXED: usize = 8 + 4 + 4 + HASH;
/// A name is cut to this length in the header; the file's own name is a hash over all of it.
const NAME_CHARS: usize = 200;

/// What the header says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    /// Name of the weight, possibly cut.
    pub weight: String,
    pub shape: Vec<u64>,
    pub format: WeightFormat,
    /// Hash of everything that determines the content; also the file's name.
    pub address: String,
    pub chunks: u64,
    pub data: u64,
    pub scales: u64,
    /// Hash over the table of hashes in hexadecimal digits; empty in a file that is not whole.
    pub table: String,
    /// What there is to say of the moments that a whole weight was rounded by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<Remark>,
}

/// Offsets of the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    pub data: u64,
    pub scales: u64,
    pub table: u64,
    pub end: u64,
}

impl Header {
    /// Header of a weight to be made, not complete yet.
    pub fn new(job: &Job<'_>, format: WeightFormat, address: String) -> Self {
        let planned = job.planned();
        Header {
            weight: planned.name.chars().take(NAME_CHARS).collect(),
            shape: planned.shape.clone(),
            format,
            address,
            chunks: job.chunks() as u64,
            data: planned.data.length() as u64,
            scales: planned.quantisation.as_ref().map_or(0, |existing| existing.scales.length()) as u64,
            table: String::new(),
            remarks: Vec::new(),
        }
    }

    /// Offsets of the parts; `None` if sizes overflow.
    pub fn parts(&self) -> Option<Parts> {
        let page = |offset: u64| offset.checked_next_multiple_of(PAGE);
        let scales = page(PAGE.checked_add(self.data)?)?;
        let table = page(scales.checked_add(self.scales)?)?;
        // One more for the properties of the whole tensor.
        let end = table.checked_add(self.chunks.checked_add(1)?.checked_mul(HASH as u64)?)?;
        Some(Parts { data: PAGE, scales, table, end })
    }

    /// The gaps between the parts, all zeros.
    pub fn gaps(&self, parts: Parts) -> [std::ops::Range<u64>; 2] {
        [parts.data + self.data..parts.scales, parts.scales + self.scales..parts.table]
    }

    /// The first page; `None` if the text does not fit, which capped names and ranks rule out.
    pub fn page(&self) -> Option<Vec<u8>> {
        let text = serde_json::to_vec(self).ok()?;
        let mut page = Vec::with_capacity(PAGE as usize);
        page.extend(MAGIC);
        page.extend(VERSION.to_le_bytes());
        page.extend((text.len() as u32).to_le_bytes());
        page.extend(hash(&[&page, &text]));
        page.extend(&text);
        let fits = page.len() <= PAGE as usize;
        page.resize(PAGE as usize, 0);
        fits.then_some(page)
    }

    /// The header at the start of a file, verified by its hash.
    pub fn read(path: &Path, bytes: &[u8]) -> Result<Header, StoreError> {
        let foreign = || StoreError::NotAWeight { path: path.to_owned() };
        let damaged =
            |offset: usize, what| StoreError::Damaged { path: path.to_owned(), offset: offset as u64, what };
        let page = bytes.get(..PAGE as usize).filter(|page| page.starts_with(MAGIC)).ok_or_else(foreign)?;
        let number = |at: usize| u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]]);
        if number(8) != VERSION {
            return Err(StoreError::Version { path: path.to_owned(), found: number(8), supported: VERSION });
        }
        let end = FIXED.saturating_add(number(12) as usize);
        let text = page.get(FIXED..end).ok_or_else(|| damaged(12, "the header's length"))?;
        if hash(&[&page[..16], text]) != page[16..FIXED] {
            return Err(damaged(16, "the header's hash"));
        }
        if page[end..].iter().any(|&byte| byte != 0) {
            return Err(damaged(end, "the end of the header"));
        }
        serde_json::from_slice(text).map_err(|_| damaged(FIXED, "the header's text"))
    }

    /// The content, for messages.
    pub fn describe(&self) -> String {
        format!("`{}` {:?} as {} ({})", self.weight, self.shape, self.format, self.address)
    }
}

/// SHA-256 over the parts one after the other.
pub(crate) fn hash(parts: &[&[u8]]) -> [u8; HASH] {
    let mut digest = Sha256::new();
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize().into()
}
