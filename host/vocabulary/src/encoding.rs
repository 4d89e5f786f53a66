use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{DType, UnknownName};

/// A 32-bit float stored as its bits, so that values which contain one can be compared, hashed and
/// written canonically. Serialised as an integer, the bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScaleBits(u32);

impl ScaleBits {
    /// The scale 1.
    pub const ONE: ScaleBits = ScaleBits(0x3f80_0000);

    /// Creates a scale from a number. Returns `None` unless it is finite, normal and above zero.
    pub fn new(scale: f32) -> Option<Self> {
        (scale.is_normal() && scale > 0.0).then_some(Self(scale.to_bits()))
    }

    /// Creates a scale from bits as written in a file. Returns `None` unless they are a legal
    /// scale.
    pub fn from_bits(bits: u32) -> Option<Self> {
        Self::new(f32::from_bits(bits))
    }

    /// Returns the scale as a number.
    pub fn get(self) -> f32 {
        f32::from_bits(self.0)
    }

    /// Returns the bits of the number.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns 2 to the power of `exponent`, clamped to -126..=126.
    pub fn power_of_two(exponent: i8) -> Self {
        Self(((i32::from(exponent).clamp(-126, 126) + 127) as u32) << 23)
    }

    /// Returns whether the scale is a power of two. Multiplying a float by such a scale does not
    /// round.
    pub const fn is_power_of_two(self) -> bool {
        self.0 << 9 == 0
    }

    /// Returns the product, or `None` if it is not a legal scale.
    pub fn times(self, other: ScaleBits) -> Option<Self> {
        Self::new(self.get() * other.get())
    }
}

impl Serialize for ScaleBits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.0)
    }
}

impl<'de> Deserialize<'de> for ScaleBits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bits = u32::deserialize(deserializer)?;
        Self::from_bits(bits).ok_or_else(|| {
            serde::de::Error::custom(format!("scale bits {bits:#010x} are no finite number above zero"))
        })
    }
}

/// Encoding of one tensor at a shard boundary: dense, row-major, value = (raw − zero point) ·
/// scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Encoding {
    /// Element type, one that [is encodable](DType::is_encodable).
    #[serde(deserialize_with = "encodable")]
    pub element: DType,
    /// Scale. For floats a power of two, see [`Encoding::in_units`].
    pub scale: ScaleBits,
    /// Raw value that represents zero. 0 for floats.
    pub zero_point: i32,
}

impl Encoding {
    /// Plain 32-bit float.
    pub const F32: Encoding = Encoding::float(DType::F32);
    /// Plain 16-bit float.
    pub const F16: Encoding = Encoding::float(DType::F16);

    const fn float(element: DType) -> Self {
        Self { element, scale: ScaleBits::ONE, zero_point: 0 }
    }

    /// Returns this encoding with its scale multiplied by `unit`.
    ///
    /// A residual stream whose values exceed the range of a 16-bit float is stored divided by a
    /// power of two. The scale of its float encoding is that power.
    #[must_use]
    pub fn in_units(self, unit: ScaleBits) -> Self {
        Self { scale: self.scale.times(unit).unwrap_or(self.scale), ..self }
    }

    /// Returns whether scale and zero point fit the element type.
    pub fn is_consistent(&self) -> bool {
        self.element.is_encodable()
            && match self.element.raw_range() {
                None => self.scale.is_power_of_two() && self.zero_point == 0,
                Some((low, high)) => (low..=high).contains(&self.zero_point),
            }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.element.is_float() && self.scale == ScaleBits::ONE {
            write!(formatter, "{}", self.element)
        } else if self.element.is_float() {
            write!(formatter, "{}(scale {})", self.element, self.scale.get())
        } else {
            write!(formatter, "{}(scale {}, zero {})", self.element, self.scale.get(), self.zero_point)
        }
    }
}

fn encodable<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DType, D::Error> {
    let dtype = DType::deserialize(deserializer)?;
    if dtype.is_encodable() {
        return Ok(dtype);
    }
    let known: Vec<&str> =
        DType::ALL.iter().filter(|dtype| dtype.is_encodable()).map(|dtype| dtype.name()).collect();
    Err(serde::de::Error::custom(UnknownName::new("element type", dtype.name(), known.join(", "))))
}

/// Interpretation of the stored integers of an activation: value = (stored − zero point) · scale,
/// one f32 multiplication.
///
/// The inverse is stored = clamp(round(value / scale) + zero point), with the division in f32 and
/// ties to even.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Affine {
    /// Value of one step.
    pub scale: ScaleBits,
    /// Stored value that represents zero.
    pub zero_point: i32,
}

impl Encoding {
    /// Returns the encoding of a tensor with that type and quantisation, or `None` for indices,
    /// packed weights, integers without a scale and floats with one.
    pub fn of(element: DType, affine: Option<Affine>) -> Option<Encoding> {
        let encoding = match affine {
            None if element.is_float() => Encoding { element, scale: ScaleBits::ONE, zero_point: 0 },
            Some(Affine { scale, zero_point }) if !element.is_float() => {
                Encoding { element, scale, zero_point }
            }
            _ => return None,
        };
        encoding.is_consistent().then_some(encoding)
    }

    /// Returns the quantisation, or `None` for floats.
    pub const fn affine(&self) -> Option<Affine> {
        match self.element.is_float() {
            true => None,
            false => Some(Affine { scale: self.scale, zero_point: self.zero_point }),
        }
    }

    /// Returns the stored integer for a value. For integer encodings only. Values outside the range
    /// are clamped. NaN is stored as 0, clamped to the range.
    pub fn raw(&self, value: f32) -> i32 {
        let (low, high) = self.element.raw_range().unwrap_or((i32::MIN, i32::MAX));
        let raw = (value / self.scale.get()).round_ties_even() + self.zero_point as f32;
        (raw.clamp(low as f32, high as f32) as i32).clamp(low, high)
    }

    /// Returns the value of a stored integer. For integer encodings only.
    pub fn value(&self, raw: i32) -> f32 {
        (i64::from(raw) - i64::from(self.zero_point)) as f32 * self.scale.get()
    }

    /// Returns the unsigned encoding with a zero point that covers `low..=high` and zero. `bits` is
    /// 8 or 16.
    pub fn affine_over(low: f32, high: f32, bits: u32) -> Encoding {
        let (element, steps) =
            if bits == 8 { (DType::U8, f32::from(u8::MAX)) } else { (DType::U16, f32::from(u16::MAX)) };
        let (low, high) = (low.min(0.0), high.max(0.0));
        let scale = scale_of((f64::from(high) - f64::from(low)) / f64::from(steps));
        let zero_point = (-low / scale.get()).round_ties_even().clamp(0.0, steps) as i32;
        Encoding { element, scale, zero_point }
    }

    /// Returns the unsigned encoding that covers `low..=high` with its zero point at the middle of
    /// the range, 128 or 32768. `bits` is 8 or 16.
    pub fn centred_over(low: f32, high: f32, bits: u32) -> Encoding {
        let (element, middle) = if bits == 8 { (DType::U8, 1 << 7) } else { (DType::U16, 1 << 15) };
        let scale = scale_of(f64::from(low.abs().max(high.abs())) / f64::from(middle - 1));
        Encoding { element, scale, zero_point: middle }
    }

    /// Returns the signed encoding without a zero point that covers `low..=high`. `bits` is 8 or
    /// 16.
    pub fn symmetric_over(low: f32, high: f32, bits: u32) -> Encoding {
        let (element, steps) =
            if bits == 8 { (DType::I8, f32::from(i8::MAX)) } else { (DType::I16, f32::from(i16::MAX)) };
        let scale = scale_of(f64::from(low.abs().max(high.abs())) / f64::from(steps));
        Encoding { element, scale, zero_point: 0 }
    }
}

/// Returns a legal scale near `scale`, also for tensors of constant zero and for ranges beyond f32.
fn scale_of(scale: f64) -> ScaleBits {
    let scale = if scale.is_finite() { (scale as f32).clamp(1e-30, 1e37) } else { 1.0 };
    ScaleBits::new(scale).unwrap_or(ScaleBits::ONE)
}
