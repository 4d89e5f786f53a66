//! The first page of a file of quantised weights, and the offsets of the other parts.
//!
//! A file consists of this page, the data, the scales, and a table with one SHA-256 per chunk. Each
//! part begins on a page boundary. The page describes the content and includes its own hash. Once
//! the file is complete, it also has the hash of the table. So every byte is covered, chunks can be
//! verified one by one, and a file in progress records which of its chunks are valid.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use shardwright_vocabulary::{Result, WeightFormat};

use super::{damaged, unusable};
use crate::compensation::MomentWarning;
use crate::job::Job;

/// Alignment of all parts, and size of the header. It is a page, so that mapped data are aligned
/// for any element.
pub(crate) const PAGE: u64 = 4096;
/// Size of a hash in bytes.
pub(crate) const HASH: usize = 32;
/// Version of the files and of the arithmetic. Another version writes other files and leaves old
/// ones unchanged.
pub(crate) const VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"sw-made\n";
/// Size of magic, version, length of the text, and hash of all of it.
const FIXED: usize = 8 + 4 + 4 + HASH;
/// Names are truncated to this length in the header. The file's own name is a hash over the full
/// name.
const NAME_CHARS: usize = 200;

/// The content of the header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    /// Name of the weight, possibly truncated.
    pub weight: String,
    pub shape: Vec<u64>,
    pub format: WeightFormat,
    /// Hash of everything that determines the content. It is also the file's name.
    pub address: String,
    pub chunks: u64,
    pub data: u64,
    pub scales: u64,
    /// Hash over the table of hashes in hexadecimal digits. Empty in an incomplete file.
    pub table: String,
    /// Remarks about the moments used for rounding. Empty in an incomplete file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<MomentWarning>,
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
    /// Creates the header of an incomplete file.
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

    /// Returns the offsets of the parts, or `None` if sizes overflow.
    pub fn parts(&self) -> Option<Parts> {
        let page = |offset: u64| offset.checked_next_multiple_of(PAGE);
        let scales = page(PAGE.checked_add(self.data)?)?;
        let table = page(scales.checked_add(self.scales)?)?;
        // One more for the properties of the whole tensor.
        let end = table.checked_add(self.chunks.checked_add(1)?.checked_mul(HASH as u64)?)?;
        Some(Parts { data: PAGE, scales, table, end })
    }

    /// Returns the gaps between the parts, which are all zeros.
    pub fn gaps(&self, parts: Parts) -> [std::ops::Range<u64>; 2] {
        [parts.data + self.data..parts.scales, parts.scales + self.scales..parts.table]
    }

    /// Returns the first page, or `None` if the text does not fit. Capped names and ranks rule that
    /// out.
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

    /// Reads the header at the start of a file and verifies its hash.
    pub fn read(bytes: &[u8]) -> Result<Header> {
        let foreign = || unusable("not a file of quantised weights".to_owned());
        let page = bytes.get(..PAGE as usize).filter(|page| page.starts_with(MAGIC)).ok_or_else(foreign)?;
        let number = |at: usize| u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]]);
        if number(8) != VERSION {
            let found = number(8);
            return Err(unusable(format!(
                "version {found} of the format, this program reads version {VERSION}"
            )));
        }
        let end = FIXED.saturating_add(number(12) as usize);
        let text = page.get(FIXED..end).ok_or_else(|| damaged(12, "the header's length"))?;
        if hash(&[&page[..16], text]) != page[16..FIXED] {
            return Err(damaged(16, "the header's hash"));
        }
        if page[end..].iter().any(|&byte| byte != 0) {
            return Err(damaged(end as u64, "the end of the header"));
        }
        serde_json::from_slice(text).map_err(|_| damaged(FIXED as u64, "the header's text"))
    }

    /// Describes the content for messages.
    pub fn describe(&self) -> String {
        format!("`{}` {:?} as {} ({})", self.weight, self.shape, self.format, self.address)
    }
}

/// Computes the SHA-256 of the concatenated parts.
pub(crate) fn hash(parts: &[&[u8]]) -> [u8; HASH] {
    let mut digest = Sha256::new();
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize().into()
}
