//! Tensors in memory: their layout, and views of their elements.

use std::borrow::Cow;

use half::f16;
use shardwright_neuron_adapter::operand as kind;

/// Scales and zero points along one dimension.
#[derive(Debug, Clone, PartialEq)]
pub struct Channels {
    /// The dimension of the channels.
    pub axis: usize,
    /// Scale of each channel.
    pub scales: Vec<f32>,
    /// Zero point of each channel.
    pub zero_points: Vec<i32>,
}

/// A tensor without its elements.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// The operand type.
    pub kind: i32,
    /// Dimensions from the outermost on, empty for a scalar.
    pub dimensions: Vec<usize>,
    /// The scale, or 0 if the type is not quantised or quantised per channel.
    pub scale: f32,
    /// The zero point, or 0 in the same cases as `scale`.
    pub zero_point: i32,
    /// Scales and zero points of types that are quantised per channel.
    pub channels: Option<Channels>,
}

/// The kind of arithmetic that elements need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// 32- or 16-bit floating point.
    Real,
    /// Integers that encode real numbers.
    Quantised,
    /// Plain integers.
    Integer,
    /// Truth values.
    Boolean,
    /// Bytes of an extension or a model, which are not computed with.
    Opaque,
}

impl Layout {
    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.dimensions.iter().product()
    }

    /// Returns the size of an element in bytes, 1 for bytes of an extension.
    pub fn element_bytes(&self) -> usize {
        kind::element_bytes(self.kind).unwrap_or(1)
    }

    /// Returns the size of all elements in bytes.
    pub fn bytes(&self) -> usize {
        self.elements() * self.element_bytes()
    }

    /// Returns the kind of arithmetic that the elements need.
    pub fn class(&self) -> Class {
        match self.kind {
            kind::FLOAT32 | kind::TENSOR_FLOAT32 | kind::FLOAT16 | kind::TENSOR_FLOAT16 => Class::Real,
            // A bias has its own scale or none. Its integers are added to accumulators unchanged.
            kind::INT32 | kind::UINT32 | kind::TENSOR_INT32 | kind::EXT_TENSOR_INT32_SYMM_PER_CHANNEL => {
                Class::Integer
            }
            kind::BOOL | kind::TENSOR_BOOL8 => Class::Boolean,
            other if kind::is_per_tensor(other) || kind::is_per_channel(other) => Class::Quantised,
            _ => Class::Opaque,
        }
    }

    /// Returns the smallest and largest stored integer of a quantised type.
    pub fn range(&self) -> (i32, i32) {
        match self.kind {
            kind::TENSOR_QUANT8_ASYMM => (0, 255),
            kind::TENSOR_QUANT16_SYMM | kind::EXT_TENSOR_QUANT16_ASYMM_SIGNED => (-32_768, 32_767),
            kind::TENSOR_QUANT16_ASYMM => (0, 65_535),
            kind::EXT_TENSOR_QUANT4_ASYMM_SIGNED
            | kind::EXT_TENSOR_QUANT4_SYMM
            | kind::EXT_TENSOR_QUANT4_SYMM_PER_CHANNEL
            | kind::TENSOR_QUANT4_ASYMM_SIGNED_PER_CHANNEL => (-8, 7),
            kind::EXT_TENSOR_QUANT2_ASYMM_SIGNED
            | kind::EXT_TENSOR_QUANT2_SYMM
            | kind::EXT_TENSOR_QUANT2_SYMM_PER_CHANNEL
            | kind::EXT_TENSOR_QUANT2_ASYMM_SIGNED_PER_CHANNEL => (-2, 1),
            kind::TENSOR_INT32 | kind::INT32 | kind::EXT_TENSOR_INT32_SYMM_PER_CHANNEL => {
                (i32::MIN, i32::MAX)
            }
            _ => (-128, 127),
        }
    }

    /// Reports whether equal stored integers mean equal values in both layouts.
    pub fn means_the_same(&self, other: &Layout) -> bool {
        self.class() == other.class()
            && self.range() == other.range()
            && self.element_bytes() == other.element_bytes()
            && (self.class() != Class::Quantised
                || self.scale == other.scale
                    && self.zero_point == other.zero_point
                    && self.channels == other.channels)
    }

    /// Returns the stored integer nearest to a real number. Numbers beyond the range give its end,
    /// and NaN gives the zero point.
    #[inline]
    pub fn encode(&self, real: f64) -> i32 {
        let (least, greatest) = self.range();
        // A cast saturates and converts NaN to 0.
        let steps = (real / f64::from(self.scale)).round() as i64;
        (steps.saturating_add(i64::from(self.zero_point))).clamp(i64::from(least), i64::from(greatest)) as i32
    }

    /// Returns the real number that a stored integer encodes.
    #[inline]
    pub fn decode(&self, stored: i32) -> f64 {
        (f64::from(stored) - f64::from(self.zero_point)) * f64::from(self.scale)
    }
}

/// Elements, owned or borrowed.
#[derive(Debug, Clone)]
pub enum Elements<'a> {
    /// Signed bytes, and narrower values, each stored in a byte.
    I8(Cow<'a, [i8]>),
    /// Unsigned bytes and truth values.
    U8(Cow<'a, [u8]>),
    /// Signed 16-bit integers.
    I16(Cow<'a, [i16]>),
    /// Unsigned 16-bit integers.
    U16(Cow<'a, [u16]>),
    /// 32-bit integers, signed or unsigned.
    I32(Cow<'a, [i32]>),
    /// 32-bit floating-point numbers.
    F32(Cow<'a, [f32]>),
    /// 16-bit floating-point numbers.
    F16(Cow<'a, [f16]>),
}

/// Runs `$body` with `$slice` bound to the elements of any type.
macro_rules! with_elements {
    ($elements:expr, $slice:ident => $body:expr) => {
        match $elements {
            Elements::I8($slice) => $body,
            Elements::U8($slice) => $body,
            Elements::I16($slice) => $body,
            Elements::U16($slice) => $body,
            Elements::I32($slice) => $body,
            Elements::F32($slice) => $body,
            Elements::F16($slice) => $body,
        }
    };
}

impl<'a> Elements<'a> {
    /// Interprets bytes as elements of a type. Aligned bytes are borrowed, others are copied.
    pub fn of(kind: i32, bytes: &'a [u8]) -> Elements<'a> {
        fn cast<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(bytes: &[u8]) -> Cow<'_, [T]> {
            match bytemuck::try_cast_slice(bytes) {
                Ok(elements) => Cow::Borrowed(elements),
                Err(_) => {
                    Cow::Owned(bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
                }
            }
        }
        match kind {
            kind::FLOAT32 | kind::TENSOR_FLOAT32 => Elements::F32(cast(bytes)),
            kind::FLOAT16 | kind::TENSOR_FLOAT16 => Elements::F16(cast(bytes)),
            kind::INT32 | kind::UINT32 | kind::TENSOR_INT32 | kind::EXT_TENSOR_INT32_SYMM_PER_CHANNEL => {
                Elements::I32(cast(bytes))
            }
            kind::TENSOR_QUANT16_SYMM | kind::EXT_TENSOR_QUANT16_ASYMM_SIGNED => Elements::I16(cast(bytes)),
            kind::TENSOR_QUANT16_ASYMM => Elements::U16(cast(bytes)),
            kind::TENSOR_QUANT8_ASYMM | kind::BOOL | kind::TENSOR_BOOL8 => Elements::U8(Cow::Borrowed(bytes)),
            other if kind::is_per_tensor(other) || kind::is_per_channel(other) => Elements::I8(cast(bytes)),
            _ => Elements::U8(Cow::Borrowed(bytes)),
        }
    }

    /// Returns the bytes as stored in memory.
    pub fn bytes(&self) -> &[u8] {
        with_elements!(self, slice => bytemuck::cast_slice(slice))
    }

    /// Copies borrowed elements.
    pub fn into_owned(self) -> Elements<'static> {
        match self {
            Elements::I8(elements) => Elements::I8(Cow::Owned(elements.into_owned())),
            Elements::U8(elements) => Elements::U8(Cow::Owned(elements.into_owned())),
            Elements::I16(elements) => Elements::I16(Cow::Owned(elements.into_owned())),
            Elements::U16(elements) => Elements::U16(Cow::Owned(elements.into_owned())),
            Elements::I32(elements) => Elements::I32(Cow::Owned(elements.into_owned())),
            Elements::F32(elements) => Elements::F32(Cow::Owned(elements.into_owned())),
            Elements::F16(elements) => Elements::F16(Cow::Owned(elements.into_owned())),
        }
    }
}

/// A layout and its elements.
#[derive(Debug, Clone)]
pub struct Tensor<'a> {
    /// Layout of the elements.
    pub layout: &'a Layout,
    /// Elements in row-major order.
    pub elements: Elements<'a>,
}

impl Tensor<'_> {
    /// Returns the stored integers. Floating-point elements are truncated, but no step uses this.
    pub fn stored(&self) -> Vec<i32> {
        match &self.elements {
            Elements::I8(elements) => elements.iter().map(|x| i32::from(*x)).collect(),
            Elements::U8(elements) => elements.iter().map(|x| i32::from(*x)).collect(),
            Elements::I16(elements) => elements.iter().map(|x| i32::from(*x)).collect(),
            Elements::U16(elements) => elements.iter().map(|x| i32::from(*x)).collect(),
            Elements::I32(elements) => elements.to_vec(),
            Elements::F32(elements) => elements.iter().map(|x| *x as i32).collect(),
            Elements::F16(elements) => elements.iter().map(|x| x.to_f32() as i32).collect(),
        }
    }

    /// Returns floating-point elements in 32 bits, rounded to 16-bit precision if `relaxed`.
    pub fn reals(&self, relaxed: bool) -> Cow<'_, [f32]> {
        match &self.elements {
            Elements::F32(elements) if !relaxed => Cow::Borrowed(elements),
            Elements::F32(elements) => elements.iter().map(|x| f16::from_f32(*x).to_f32()).collect(),
            Elements::F16(elements) => elements.iter().map(|x| x.to_f32()).collect(),
            _ => self.stored().iter().map(|x| *x as f32).collect(),
        }
    }

    /// Returns the exact real values of the elements.
    pub fn decoded(&self, relaxed: bool) -> Vec<f64> {
        match self.layout.class() {
            Class::Real => self.reals(relaxed).iter().map(|x| f64::from(*x)).collect(),
            Class::Quantised => self.stored().iter().map(|x| self.layout.decode(*x)).collect(),
            Class::Integer | Class::Boolean | Class::Opaque => {
                self.stored().iter().map(|x| f64::from(*x)).collect()
            }
        }
    }
}

/// Creates elements of a layout from stored integers within its range.
pub fn from_stored(layout: &Layout, stored: impl Iterator<Item = i32>) -> Elements<'static> {
    match Elements::of(layout.kind, &[]) {
        Elements::I8(_) => Elements::I8(stored.map(|x| x as i8).collect()),
        Elements::U8(_) => Elements::U8(stored.map(|x| x as u8).collect()),
        Elements::I16(_) => Elements::I16(stored.map(|x| x as i16).collect()),
        Elements::U16(_) => Elements::U16(stored.map(|x| x as u16).collect()),
        Elements::I32(_) => Elements::I32(stored.collect()),
        Elements::F32(_) => Elements::F32(stored.map(|x| x as f32).collect()),
        Elements::F16(_) => Elements::F16(stored.map(|x| f16::from_f32(x as f32)).collect()),
    }
}

/// Creates elements of a floating-point layout, rounded to 16-bit precision if `relaxed`.
pub fn from_reals(layout: &Layout, reals: impl Iterator<Item = f32>, relaxed: bool) -> Elements<'static> {
    if layout.kind == kind::TENSOR_FLOAT16 || layout.kind == kind::FLOAT16 {
        return Elements::F16(reals.map(f16::from_f32).collect());
    }
    if relaxed {
        return Elements::F32(reals.map(|x| f16::from_f32(x).to_f32()).collect());
    }
    Elements::F32(reals.collect())
}

/// Encodes real numbers as elements of any layout.
pub fn encoded(layout: &Layout, reals: impl Iterator<Item = f64>, relaxed: bool) -> Elements<'static> {
    match layout.class() {
        Class::Real => from_reals(layout, reals.map(|x| x as f32), relaxed),
        Class::Quantised => from_stored(layout, reals.map(|x| layout.encode(x))),
        Class::Boolean => from_stored(layout, reals.map(|x| i32::from(x != 0.0))),
        // The cast rounds towards zero and saturates.
        Class::Integer | Class::Opaque => from_stored(layout, reals.map(|x| x as i32)),
    }
}

/// Returns the range of a fused activation in real numbers.
pub fn fused(fuse: i32) -> (f64, f64) {
    use shardwright_neuron_adapter::setting::fuse as number;
    match fuse {
        number::RELU => (0.0, f64::INFINITY),
        number::RELU1 => (-1.0, 1.0),
        number::RELU6 => (0.0, 6.0),
        _ => (f64::NEG_INFINITY, f64::INFINITY),
    }
}

/// Returns the range of a fused activation in stored integers of a quantised layout.
pub fn fused_range(layout: &Layout, fuse: i32) -> (i32, i32) {
    let (least, greatest) = layout.range();
    let (low, high) = fused(fuse);
    (
        if low.is_finite() { layout.encode(low).max(least) } else { least },
        if high.is_finite() { layout.encode(high).min(greatest) } else { greatest },
    )
}
