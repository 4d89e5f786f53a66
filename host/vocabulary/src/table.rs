use serde::{Deserialize, Serialize};

use crate::{DType, Granularity, scale_count};

/// How the stored integers of a weight or table represent values: value = (stored − zero point) ·
/// scale, one f32 multiplication, less the minimum of its block if blocks have one. `Scales` is the
/// storage of the scales: bytes, a file, or nothing if only the layout matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quantisation<Scales> {
    /// Which values share a scale.
    pub granularity: Granularity,
    /// Type of the scales: [`DType::F32`] or [`DType::F16`].
    pub scale_dtype: DType,
    /// Little-endian, row-major: one, one a channel, or `[rows, blocks of a row]`; with minimums
    /// `[rows, 2, blocks of a row]`, a row's scales before its minimums. Finite.
    pub scales: Scales,
    /// Stored value that stands for zero.
    pub zero_point: i32,
}

impl<Scales> Quantisation<Scales> {
    /// The same with scales stored elsewhere.
    pub fn with<Other>(&self, scales: Other) -> Quantisation<Other> {
        let Quantisation { granularity, scale_dtype, zero_point, .. } = *self;
        Quantisation { granularity, scale_dtype, scales, zero_point }
    }

    /// Bytes of the scales of a tensor of that shape; `None` if the granularity does not apply to
    /// it, or the size exceeds 64 bits.
    pub fn scale_bytes(&self, shape: &[u64]) -> Option<u64> {
        scale_count(self.granularity, shape)?.checked_mul(self.scale_dtype.bytes())
    }

    /// Whether stored values of that type can be quantised so.
    pub fn fits(&self, dtype: DType) -> bool {
        matches!(self.scale_dtype, DType::F32 | DType::F16)
            && dtype.raw_range().is_some_and(|(low, high)| (low..=high).contains(&self.zero_point))
    }
}

/// A gathered table. `Bytes` is the storage of its values and scales: memory, a file, or nothing if
/// the table is only described.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table<Bytes> {
    /// `embedding`, `per-layer-embedding`.
    pub name: String,
    /// Rows.
    pub entries: u64,
    /// Values per row.
    pub width: u64,
    /// Stored type.
    pub dtype: DType,
    /// The stored values: dense, row-major, little-endian, every row padded to a whole byte.
    pub table: Bytes,
    /// How stored integers represent values; `None` for floats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantisation: Option<Quantisation<Bytes>>,
    /// Token ids that read another row than their own, sorted.
    pub redirect: Vec<(u32, u32)>,
}

impl<Bytes> Table<Bytes> {
    /// The same with its bytes elsewhere.
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

    /// The same without its bytes.
    pub fn described(&self) -> Table<()> {
        let Ok(table) = self.try_map(|_| Ok::<_, std::convert::Infallible>(()));
        table
    }

    /// Bytes of the stored values and of the scales; `None` for a format that no table can have.
    pub fn sizes(&self) -> Option<[u64; 2]> {
        let shape = [self.entries, self.width];
        let scales = match &self.quantisation {
            None if self.dtype.is_float() => 0,
            Some(existing) if existing.fits(self.dtype) => existing.scale_bytes(&shape)?,
            _ => return None,
        };
        Some([self.dtype.packed_bytes(&shape)?, scales])
    }

    /// How values are stored, for messages: `bf16`, `i4 (per-channel, scales f32, zero 0)`.
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
