use serde::{Deserialize, Serialize};

use crate::{DType, Granularity, scale_count};

/// Interpretation of the stored integers of a weight or table: value = (stored − zero point) ·
/// scale, one f32 multiplication, less the minimum of its block if blocks have one. `Scales` is the
/// storage of the scales: bytes, a file, or `()` if only the layout matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quantisation<Scales> {
    /// Set of values that share a scale.
    pub granularity: Granularity,
    /// Type of the scales: [`DType::F32`] or [`DType::F16`].
    pub scale_dtype: DType,
    /// Scales, little-endian, row-major and finite: one, one per channel, or
    /// `[rows, blocks of a row]`. With minimums `[rows, 2, blocks of a row]`, a row's scales before
    /// its minimums.
    pub scales: Scales,
    /// Stored value that represents zero.
    pub zero_point: i32,
}

impl<Scales> Quantisation<Scales> {
    /// Returns a copy with its scales stored in `scales`.
    pub fn with<Other>(&self, scales: Other) -> Quantisation<Other> {
        let Quantisation { granularity, scale_dtype, zero_point, .. } = *self;
        Quantisation { granularity, scale_dtype, scales, zero_point }
    }

    /// Returns the bytes of the scales of a tensor of that shape, or `None` if the granularity does
    /// not apply to the shape or the size exceeds 64 bits.
    pub fn scale_bytes(&self, shape: &[u64]) -> Option<u64> {
        scale_count(self.granularity, shape)?.checked_mul(self.scale_dtype.bytes())
    }

    /// Returns whether stored values of that type can have this quantisation.
    pub fn fits(&self, dtype: DType) -> bool {
        matches!(self.scale_dtype, DType::F32 | DType::F16)
            && dtype.raw_range().is_some_and(|(low, high)| (low..=high).contains(&self.zero_point))
    }
}

/// A gathered table. `Bytes` is the storage of its values and scales: memory, a file, or `()` if
/// the table is only described.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table<Bytes> {
    /// Name: `embedding` or `per-layer-embedding`.
    pub name: String,
    /// Number of rows.
    pub entries: u64,
    /// Values per row.
    pub width: u64,
    /// Stored element type.
    pub dtype: DType,
    /// The stored values: dense, row-major, little-endian, every row padded to a whole byte.
    pub table: Bytes,
    /// Interpretation of stored integers. `None` for floats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantisation: Option<Quantisation<Bytes>>,
    /// Pairs of a token id and the row that it reads instead of its own, sorted.
    pub redirect: Vec<(u32, u32)>,
}

impl<Bytes> Table<Bytes> {
    /// Converts the storage of values and scales with `place`. Passes on the first error of
    /// `place`.
    pub fn try_map<Other, Error>(
        &self,
        mut place: impl FnMut(&Bytes) -> Result<Other, Error>,
    ) -> Result<Table<Other>, Error> {
        let quantisation = match &self.quantisation {
            None => None,
            Some(existing) => Some(existing.with(place(&existing.scales)?)),
        };
        Ok(Table {
            name: self.name.clone(),
            entries: self.entries,
            width: self.width,
            dtype: self.dtype,
            table: place(&self.table)?,
            quantisation,
            redirect: self.redirect.clone(),
        })
    }

    /// Returns a description of the table without its bytes.
    pub fn described(&self) -> Table<()> {
        let Ok(table) = self.try_map(|_| Ok::<_, std::convert::Infallible>(()));
        table
    }

    /// Returns the bytes of the stored values and of the scales, or `None` if a table cannot have
    /// this format.
    pub fn sizes(&self) -> Option<[u64; 2]> {
        let shape = [self.entries, self.width];
        let scales = match &self.quantisation {
            None if self.dtype.is_float() => 0,
            Some(existing) if existing.fits(self.dtype) => existing.scale_bytes(&shape)?,
            _ => return None,
        };
        Some([self.dtype.packed_bytes(&shape)?, scales])
    }

    /// Describes the stored format for messages: `bf16`, `i4 (per-channel, scales f32, zero 0)`.
    pub fn format(&self) -> String {
        let Some(existing) = &self.quantisation else { return self.dtype.to_string() };
        let granularity = match existing.granularity {
            Granularity::PerTensor => "per-tensor".to_owned(),
            Granularity::PerChannel => "per-channel".to_owned(),
            Granularity::PerBlock { size, minimum: false } => format!("per-block of {size}"),
            Granularity::PerBlock { size, minimum: true } => format!("per-block of {size} with minimums"),
        };
        format!(
            "{} ({granularity}, scales {}, zero {})",
            self.dtype, existing.scale_dtype, existing.zero_point
        )
    }
}
