use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shardwright_vocabulary::{DType, Error, Result, Table};

use crate::WeightQuantisation;

/// Index of a weight within its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WeightId(pub u32);

/// Index of a gathered table within its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AssetId(pub u32);

/// Source of weight bytes: a mapped file, or memory.
pub trait WeightBytes: Send + Sync {
    /// Returns all bytes of the source.
    fn bytes(&self) -> &[u8];

    /// Returns the number of bytes. A source that creates its bytes on first read knows it before.
    fn length(&self) -> usize {
        self.bytes().len()
    }

    /// Copies the bytes from `offset` on without keeping them in memory. If the file is mapped,
    /// they are read. Returns false if the source is too short or cannot be read.
    fn copy(&self, offset: usize, into: &mut [u8]) -> bool {
        let bytes = offset.checked_add(into.len()).and_then(|end| self.bytes().get(offset..end));
        bytes.map(|bytes| into.copy_from_slice(bytes)).is_some()
    }

    /// Reports that a range was read and is not needed soon. A mapped file frees the memory and
    /// reads it again if needed. Other sources do nothing.
    fn release(&self, _range: Range<usize>) {}
}

impl WeightBytes for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// A range of a shared byte source. Cloning shares it.
#[derive(Clone)]
pub struct WeightData {
    source: Arc<dyn WeightBytes>,
    offset: usize,
    length: usize,
}

impl WeightData {
    /// Creates a range of `source`. Returns an error if it exceeds the source.
    pub fn new(source: Arc<dyn WeightBytes>, offset: usize, length: usize) -> Result<Self> {
        let available = source.length();
        match offset.checked_add(length) {
            Some(end) if end <= available => Ok(WeightData { source, offset, length }),
            _ => Err(beyond(offset, length, available)),
        }
    }

    /// Creates data that owns its bytes.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let length = bytes.len();
        WeightData { source: Arc::new(bytes), offset: 0, length }
    }

    /// Creates a length without bytes, for a weight that is counted and checked before it exists.
    pub fn planned(length: usize) -> Self {
        WeightData { source: Arc::new(Vec::new()), offset: 0, length }
    }

    /// Returns a range of it. Returns an error if the range exceeds it.
    pub fn part(&self, range: Range<usize>) -> Result<Self> {
        let (offset, length) = (range.start, range.end.saturating_sub(range.start));
        if range.end > self.length {
            return Err(beyond(offset, length, self.length));
        }
        Ok(WeightData { source: Arc::clone(&self.source), offset: self.offset + offset, length })
    }

    /// Returns the bytes, little-endian and row-major. Empty for planned data.
    pub fn bytes(&self) -> &[u8] {
        self.source.bytes().get(self.offset..self.offset + self.length).unwrap_or_default()
    }

    /// Copies the bytes from `offset` on, counted within this data. See [`WeightBytes::copy`].
    pub fn copy(&self, offset: usize, into: &mut [u8]) -> bool {
        offset.checked_add(into.len()).is_some_and(|end| end <= self.length)
            && self.source.copy(self.offset + offset, into)
    }

    /// Reports that bytes of a range, counted within this data, are not needed soon. See
    /// [`WeightBytes::release`].
    pub fn release(&self, range: Range<usize>) {
        let end = range.end.min(self.bytes().len());
        if range.start < end {
            self.source.release(self.offset + range.start..self.offset + end);
        }
    }

    /// Returns the number of bytes it has, or will have if it is planned.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the number of available bytes: all, or 0 for planned data.
    pub fn available(&self) -> usize {
        if self.is_present() { self.length } else { 0 }
    }

    /// Returns whether the bytes are available.
    pub fn is_present(&self) -> bool {
        self.offset + self.length <= self.source.length()
    }
}

fn beyond(offset: usize, length: usize, available: usize) -> Error {
    Error::invalid(format!("weight range {offset}+{length} exceeds the {available} bytes of its source"))
        .with_help("the checkpoint file is shorter than its header specifies; fetch it again")
}

impl fmt::Debug for WeightData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {}", self.length, self.offset)
    }
}

/// A constant tensor of the checkpoint.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Name in the checkpoint.
    pub name: String,
    /// Role in the network, independent of the family: `q`, `k`, `v`, `o`, `gate`, `up`, `down`,
    /// `norm`, `head`, … A plan chooses formats by this word.
    pub part: &'static str,
    /// Dense row-major shape of rank ≥ 1.
    pub shape: Vec<u64>,
    /// Stored type.
    pub dtype: DType,
    /// Stored bytes: exactly [`DType::packed_bytes`] of `shape`.
    pub data: WeightData,
    /// Representation of values by the stored integers. `None` for floats.
    pub quantisation: Option<WeightQuantisation>,
}

impl Weight {
    /// Returns the stored size in bytes, including scales.
    pub fn bytes(&self) -> u64 {
        let scales = self.quantisation.as_ref().map_or(0, |quantisation| quantisation.scales.length);
        (self.data.length + scales) as u64
    }
}

/// A table that is only gathered by token id. It does not belong to an artefact. The runtime maps
/// it, gathers the rows of a step and widens them to f32.
#[derive(Clone, Debug)]
pub struct Asset {
    /// Name, such as `embedding` or `per-layer-embedding`.
    pub name: String,
    /// The table: shape `[entries, width]`.
    pub table: Weight,
    /// Token ids that read another row than their own (placeholders read the padding row).
    pub redirect: Vec<(u32, u32)>,
}

impl From<Table<WeightData>> for Asset {
    fn from(table: Table<WeightData>) -> Self {
        Asset {
            name: table.name.clone(),
            table: Weight {
                name: table.name,
                part: "embedding",
                shape: vec![table.entries, table.width],
                dtype: table.dtype,
                data: table.table,
                quantisation: table.quantisation,
            },
            redirect: table.redirect,
        }
    }
}

impl Asset {
    /// Returns its description, wherever its bytes are stored. The table has no rows if the shape
    /// is not two-dimensional.
    pub fn to_table(&self) -> Table<WeightData> {
        let Weight { shape, dtype, data, quantisation, .. } = &self.table;
        let (entries, width) = match shape[..] {
            [entries, width] => (entries, width),
            _ => (0, 0),
        };
        Table {
            name: self.name.clone(),
            entries,
            width,
            dtype: *dtype,
            table: data.clone(),
            quantisation: quantisation.clone(),
            redirect: self.redirect.clone(),
        }
    }

    /// Returns the number of values per row.
    pub fn width(&self) -> u64 {
        self.table.shape[1]
    }

    /// Returns the number of rows.
    pub fn entries(&self) -> u64 {
        self.table.shape[0]
    }

    /// Returns the row that `token` reads.
    pub fn row_of(&self, token: u32) -> u32 {
        self.redirect.iter().find(|(from, _)| *from == token).map_or(token, |(_, to)| *to)
    }
}
