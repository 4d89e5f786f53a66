//! Encodings of f32 values in memory, and the conversions in both directions.
//!
//! During a run, values are f32 and always representable in their tensor's encoding. For integers,
//! `value = (stored − zero point) · scale` with one multiplication, and `stored = clamp(round(value
//! / scale) + zero point)` with ties to even. Values beyond the range of binary16 become infinite.

use serde::{Deserialize, Serialize};
use shardwright_shim_abi::raw::{
    SW_DTYPE_BF16, SW_DTYPE_F16, SW_DTYPE_F32, SW_DTYPE_I8, SW_DTYPE_I16, SW_DTYPE_I32, SW_DTYPE_U8,
    SW_DTYPE_U16,
};
use shardwright_shim_abi::{typed, typed_mut};

use crate::pool::{Pool, SharedOutput};
use crate::simd::{LANES, Level, Simd, dispatch, widen_bf16};

/// Type of an element in bound memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Element {
    F32,
    F16,
    Bf16,
    U16,
    I16,
    U8,
    I8,
    /// Signed 32 bit, for positions and slots, never for values.
    I32,
}

impl Element {
    /// Returns the type for a `SW_DTYPE_…` number, or `None` if it is unsupported.
    pub const fn of(dtype: u32) -> Option<Element> {
        Some(match dtype {
            SW_DTYPE_F32 => Element::F32,
            SW_DTYPE_F16 => Element::F16,
            SW_DTYPE_BF16 => Element::Bf16,
            SW_DTYPE_U16 => Element::U16,
            SW_DTYPE_I16 => Element::I16,
            SW_DTYPE_U8 => Element::U8,
            SW_DTYPE_I8 => Element::I8,
            SW_DTYPE_I32 => Element::I32,
            _ => return None,
        })
    }

    /// Returns the `SW_DTYPE_…` number.
    pub const fn dtype(self) -> u32 {
        match self {
            Element::F32 => SW_DTYPE_F32,
            Element::F16 => SW_DTYPE_F16,
            Element::Bf16 => SW_DTYPE_BF16,
            Element::U16 => SW_DTYPE_U16,
            Element::I16 => SW_DTYPE_I16,
            Element::U8 => SW_DTYPE_U8,
            Element::I8 => SW_DTYPE_I8,
            Element::I32 => SW_DTYPE_I32,
        }
    }

    /// Returns the bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Element::F32 | Element::I32 => 4,
            Element::F16 | Element::Bf16 | Element::U16 | Element::I16 => 2,
            Element::U8 | Element::I8 => 1,
        }
    }

    /// Returns the smallest and largest stored value, for integers that have a scale.
    pub const fn range(self) -> Option<(i32, i32)> {
        match self {
            Element::U16 => Some((0, u16::MAX as i32)),
            Element::I16 => Some((i16::MIN as i32, i16::MAX as i32)),
            Element::U8 => Some((0, u8::MAX as i32)),
            Element::I8 => Some((i8::MIN as i32, i8::MAX as i32)),
            Element::F32 | Element::F16 | Element::Bf16 | Element::I32 => None,
        }
    }

    /// Returns the lower-case name that reports use.
    pub const fn name(self) -> &'static str {
        match self {
            Element::F32 => "f32",
            Element::F16 => "f16",
            Element::Bf16 => "bf16",
            Element::U16 => "u16",
            Element::I16 => "i16",
            Element::U8 => "u8",
            Element::I8 => "i8",
            Element::I32 => "i32",
        }
    }
}

/// The encoding of the elements of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ElementEncoding {
    pub element: Element,
    /// Value of one step, 1 for floats and indices.
    pub scale: f32,
    /// Stored value that represents zero, 0 for floats and indices.
    pub zero_point: i32,
}

impl ElementEncoding {
    /// Unencoded f32 values.
    pub const F32: ElementEncoding = ElementEncoding::plain(Element::F32);

    /// Returns the encoding of floats or indices, without scale and zero point.
    pub const fn plain(element: Element) -> ElementEncoding {
        ElementEncoding { element, scale: 1.0, zero_point: 0 }
    }

    /// Checks whether memory stores plain f32 or i32 values of four bytes each. Only steps that
    /// convert encodings may read other encodings.
    pub const fn is_direct(&self) -> bool {
        matches!(self.element, Element::F32 | Element::I32)
    }

    /// Checks whether scale and zero point fit the element.
    pub fn is_consistent(&self) -> bool {
        match self.element.range() {
            Some((low, high)) => {
                self.scale.is_normal() && self.scale > 0.0 && (low..=high).contains(&self.zero_point)
            }
            None => self.scale == 1.0 && self.zero_point == 0,
        }
    }

    /// Returns the stored integer for a value, clamped to `low..=high`. It is an f32, which
    /// represents all stored integers exactly. NaN becomes 0.
    #[inline(always)]
    fn raw(&self, value: f32, low: f32, high: f32) -> f32 {
        let raw = (value / self.scale).round_ties_even() + self.zero_point as f32;
        let raw = if raw < low { low } else { raw };
        let raw = if raw > high { high } else { raw };
        if raw.is_nan() { 0.0 } else { raw }
    }

    /// Returns the value of a stored integer.
    #[inline(always)]
    fn value(&self, raw: f32) -> f32 {
        (raw - self.zero_point as f32) * self.scale
    }
}

/// Encoded elements to read.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    encoding: ElementEncoding,
    bytes: &'a [u8],
}

impl<'a> Stored<'a> {
    /// Wraps whole elements at an address aligned for them. Returns `None` if the bytes are
    /// misaligned or not whole elements, or if scale or zero point does not fit the element.
    pub fn new(encoding: ElementEncoding, bytes: &'a [u8]) -> Option<Stored<'a>> {
        let width = encoding.element.bytes();
        let whole = bytes.len().is_multiple_of(width) && (bytes.as_ptr() as usize).is_multiple_of(width);
        (whole && encoding.is_consistent()).then_some(Stored { encoding, bytes })
    }

    /// Wraps unencoded f32 values.
    pub fn values(values: &'a [f32]) -> Stored<'a> {
        // SAFETY: every f32 is four bytes.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) };
        Stored { encoding: ElementEncoding::F32, bytes }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.encoding.element.bytes()
    }

    /// Checks whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the values if they are stored unencoded.
    pub fn direct(&self) -> Option<&'a [f32]> {
        match self.encoding.element {
            Element::F32 => typed(self.bytes).ok(),
            _ => None,
        }
    }

    /// Returns the encoding of the elements.
    pub fn encoding(&self) -> ElementEncoding {
        self.encoding
    }

    /// Returns the elements without the first `count`. Empty if there are fewer.
    pub fn skip(&self, count: usize) -> Stored<'a> {
        let bytes = self.bytes.get(count * self.encoding.element.bytes()..).unwrap_or_default();
        Stored { bytes, ..*self }
    }

    /// Returns the bits of the elements if they are binary16.
    pub fn halves(&self) -> Option<&'a [u16]> {
        match self.encoding.element {
            Element::F16 => typed(self.bytes).ok(),
            _ => None,
        }
    }
}

/// Encoded elements to write.
#[derive(Debug)]
pub struct StoredMut<'a> {
    encoding: ElementEncoding,
    bytes: &'a mut [u8],
}

impl<'a> StoredMut<'a> {
    /// Wraps elements under the same conditions as [`Stored::new`].
    pub fn new(encoding: ElementEncoding, bytes: &'a mut [u8]) -> Option<StoredMut<'a>> {
        Stored::new(encoding, bytes)?;
        Some(StoredMut { encoding, bytes })
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.encoding.element.bytes()
    }

    /// Checks whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Encodes and writes values, starting at element `first`.
    ///
    /// # Panics
    /// When the values reach beyond the end.
    pub fn write(&mut self, level: Level, first: usize, values: &[f32]) {
        let width = self.encoding.element.bytes();
        narrow_at(
            level,
            self.encoding,
            values,
            &mut self.bytes[first * width..(first + values.len()) * width],
        );
    }
}

/// Values of one task.
const GRAIN: usize = 1 << 14;
/// Approximate cost of a conversion, in multiply-adds.
const COST: u64 = 4;

/// Decodes the first `count` elements of `source` into `out`.
///
/// # Panics
/// When `source` or `out` is shorter than `count`.
pub fn decode(level: Level, pool: &Pool, source: Stored<'_>, count: usize, out: &mut [f32]) {
    assert!(source.len() >= count && out.len() >= count, "elements shorter than the count");
    if !pool.worth(COST * count as u64) {
        return widen_at(level, source, 0, &mut out[..count]);
    }
    let out = SharedOutput::new(out);
    pool.run_pieces(count, GRAIN, &|start, length| {
        // SAFETY: every task has its own values.
        widen_at(level, source, start, unsafe { out.part(start, length) });
    });
}

/// Encodes the first `count` values of `x`, each to the nearest element.
///
/// # Panics
/// When `x` or `target` is shorter than `count`.
pub fn encode(level: Level, pool: &Pool, x: &[f32], count: usize, target: StoredMut<'_>) {
    assert!(x.len() >= count && target.len() >= count, "elements shorter than the count");
    let StoredMut { encoding, bytes } = target;
    let width = encoding.element.bytes();
    if !pool.worth(COST * count as u64) {
        return narrow_at(level, encoding, &x[..count], &mut bytes[..count * width]);
    }
    let bytes = SharedOutput::new(bytes);
    pool.run_pieces(count, GRAIN, &|start, length| {
        // SAFETY: every task has its own elements.
        let part = unsafe { bytes.part(start * width, length * width) };
        narrow_at(level, encoding, &x[start..start + length], part);
    });
}

/// Rounds each of the first `count` values to the nearest value that the encoding can represent.
///
/// # Panics
/// When there are fewer values.
pub fn nearest(level: Level, pool: &Pool, encoding: ElementEncoding, count: usize, values: &mut [f32]) {
    let values = &mut values[..count];
    if !pool.worth(COST * count as u64) {
        return nearest_at(level, encoding, values);
    }
    let values = SharedOutput::new(values);
    pool.run_pieces(count, GRAIN, &|start, length| {
        // SAFETY: every task has its own values.
        nearest_at(level, encoding, unsafe { values.part(start, length) });
    });
}

dispatch! { fn widen_at => widen(source: Stored<'_>, first: usize, out: &mut [f32]) }
dispatch! { fn narrow_at => narrow(encoding: ElementEncoding, x: &[f32], target: &mut [u8]) }
dispatch! { pub fn nearest_at => round(encoding: ElementEncoding, values: &mut [f32]) }

/// Computes `out[i] = f(x[i])` in a loop that compilers vectorise if `f` is inlined and cannot
/// fail.
#[inline(always)]
fn each<A: Copy, B>(x: &[A], out: &mut [B], f: impl Fn(A) -> B) {
    for (x, out) in x.iter().zip(out) {
        *out = f(*x);
    }
}

/// Decodes elements from `first` on until `out` is full.
///
/// # Panics
/// When there are fewer elements than places.
#[inline(always)]
pub fn widen<S: Simd>(s: S, source: Stored<'_>, first: usize, out: &mut [f32]) {
    let Stored { encoding, bytes } = source;
    let width = encoding.element.bytes();
    let bytes = &bytes[first * width..(first + out.len()) * width];
    macro_rules! integers {
        ($type:ty) => {
            each(
                typed::<$type>(bytes).unwrap_or_default(),
                out,
                #[inline(always)]
                |raw| encoding.value(f32::from(raw)),
            )
        };
    }
    match encoding.element {
        Element::F32 | Element::I32 => out.copy_from_slice(typed(bytes).unwrap_or_default()),
        Element::F16 => {
            let stored = typed::<u16>(bytes).unwrap_or_default();
            let (whole, rest) = stored.as_chunks::<LANES>();
            let (whole_out, rest_out) = out.as_chunks_mut::<LANES>();
            for (out, stored) in whole_out.iter_mut().zip(whole) {
                // SAFETY: sixteen elements and sixteen places.
                unsafe { s.store(out.as_mut_ptr(), s.load_f16(stored.as_ptr())) };
            }
            let mut all = [0; LANES];
            all[..rest.len()].copy_from_slice(rest);
            // SAFETY: sixteen elements, of which the first `rest_out.len()` are stored.
            unsafe { s.store_partial(rest_out.as_mut_ptr(), rest_out.len(), s.load_f16(all.as_ptr())) };
        }
        Element::Bf16 => {
            for (out, stored) in out.iter_mut().zip(typed(bytes).unwrap_or_default()) {
                *out = widen_bf16(*stored);
            }
        }
        Element::U16 => integers!(u16),
        Element::I16 => integers!(i16),
        Element::U8 => integers!(u8),
        Element::I8 => integers!(i8),
    }
}

/// Rounds at most sixteen values to the nearest binary16. NaN stays NaN.
#[inline(always)]
fn halves<S: Simd>(s: S, x: &[f32]) -> [u16; LANES] {
    let mut all = [0; LANES];
    // SAFETY: `x` has at most sixteen values, of which as many are read, and `all` has sixteen
    // places.
    unsafe {
        let value = match x.len() {
            LANES.. => s.load(x.as_ptr()),
            count => s.load_partial(x.as_ptr(), count),
        };
        s.store_f16(all.as_mut_ptr(), value);
    }
    all
}

/// Rounds to the nearest bfloat16, ties to even.
#[inline(always)]
fn narrow_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    (if value.is_nan() { bits | 0x0040_0000 } else { rounded } >> 16) as u16
}

#[inline(always)]
fn narrow<S: Simd>(s: S, encoding: ElementEncoding, x: &[f32], target: &mut [u8]) {
    macro_rules! integers {
        ($type:ty) => {
            each(
                x,
                typed_mut::<$type>(target).unwrap_or_default(),
                #[inline(always)]
                |x| {
                    let raw = encoding.raw(x, <$type>::MIN.into(), <$type>::MAX.into());
                    // SAFETY: `raw` is not NaN and is within the range of the type.
                    unsafe { raw.to_int_unchecked::<i32>() as $type }
                },
            )
        };
    }
    match encoding.element {
        Element::F32 | Element::I32 => typed_mut(target).unwrap_or_default().copy_from_slice(x),
        Element::F16 => {
            let target = typed_mut::<u16>(target).unwrap_or_default();
            for (out, x) in target.chunks_mut(LANES).zip(x.chunks(LANES)) {
                out.copy_from_slice(&halves(s, x)[..out.len()]);
            }
        }
        Element::Bf16 => {
            for (out, x) in typed_mut(target).unwrap_or_default().iter_mut().zip(x) {
                *out = narrow_bf16(*x);
            }
        }
        Element::U16 => integers!(u16),
        Element::I16 => integers!(i16),
        Element::U8 => integers!(u8),
        Element::I8 => integers!(i8),
    }
}

/// Rounds each value to the nearest value that the encoding can represent.
#[inline(always)]
pub fn round<S: Simd>(s: S, encoding: ElementEncoding, values: &mut [f32]) {
    match (encoding.element, encoding.element.range()) {
        (_, Some((low, high))) => {
            let (low, high) = (low as f32, high as f32);
            for value in values {
                *value = encoding.value(encoding.raw(*value, low, high));
            }
        }
        (Element::F16, _) => {
            for chunk in values.chunks_mut(LANES) {
                let narrow = halves(s, chunk);
                // SAFETY: sixteen elements, of which as many are kept as the chunk has places.
                unsafe { s.store_partial(chunk.as_mut_ptr(), chunk.len(), s.load_f16(narrow.as_ptr())) };
            }
        }
        (Element::Bf16, _) => {
            for value in values {
                *value = widen_bf16(narrow_bf16(*value));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALES: [(Element, f32, i32); 10] = [
        (Element::F32, 1.0, 0),
        (Element::F16, 1.0, 0),
        (Element::Bf16, 1.0, 0),
        (Element::U16, 0.001, 30_000),
        (Element::U16, 3e-5, 0),
        (Element::I16, 0.0007, 0),
        (Element::U8, 0.1, 255),
        (Element::U8, 0.013, 77),
        (Element::I8, 0.05, -128),
        (Element::I8, 1.0, 3),
    ];

    fn samples() -> Vec<f32> {
        let mut out: Vec<f32> = (0..1000).map(|i| ((i * 7919) % 4001) as f32 / 50.0 - 40.0).collect();
        // The samples include halves of steps, ends of ranges, and values outside every encoding.
        out.extend([
            0.0, -0.0, 0.5, 1.5, 2.5, -2.5, 0.15, 65504.0, 65519.9, 65520.0, 1e30, -1e30, 6e-8, 3e-8, 1e-40,
        ]);
        out.extend([f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE]);
        out
    }

    /// Rounds by definition, in f64 if that is exact, and step by step if f32 rounding matters.
    fn expected(encoding: ElementEncoding, value: f32) -> f32 {
        match encoding.element.range() {
            Some((low, high)) => {
                let steps = f64::from((value / encoding.scale).round_ties_even());
                let raw = (steps + f64::from(encoding.zero_point)).clamp(low.into(), high.into());
                (raw - f64::from(encoding.zero_point)) as f32 * encoding.scale
            }
            None if encoding.element == Element::F16 && value.abs() >= 65520.0 => {
                f32::INFINITY.copysign(value)
            }
            None if encoding.element == Element::F16 => {
                // The nearest binary16, with ties to even.
                let value = f64::from(value);
                let all = (0..0x7c00u16).map(|bits| (bits, f64::from(crate::simd::widen_f16(bits))));
                let distance = |candidate: f64| (candidate - value.abs()).abs();
                let best = all
                    .min_by(|a, b| distance(a.1).total_cmp(&distance(b.1)).then((a.0 & 1).cmp(&(b.0 & 1))));
                (best.expect("one of many").1 as f32).copysign(value as f32)
            }
            None if encoding.element == Element::Bf16 => {
                let (low, high) = (value.to_bits() & 0xffff_0000, (value.to_bits() & 0xffff_0000) + 0x1_0000);
                if !value.is_finite() {
                    return value;
                }
                let (below, above) = (f32::from_bits(low), f32::from_bits(high));
                let above_f64 =
                    if above.is_infinite() { 2f64.powi(128).copysign(value.into()) } else { above.into() };
                let (down, up) =
                    ((f64::from(value) - f64::from(below)).abs(), (above_f64 - f64::from(value)).abs());
                if down < up || (down == up && (low >> 16) & 1 == 0) { below } else { above }
            }
            None => value,
        }
    }

    #[test]
    fn every_encoding_holds_the_nearest_value_at_every_level() {
        for (element, scale, zero_point) in SCALES {
            let encoding = ElementEncoding { element, scale, zero_point };
            assert!(encoding.is_consistent());
            let x = samples();
            // The search through all binary16 is slow, so only a part of the samples is tested.
            let thin = if element == Element::F16 { 7 } else { 1 };
            for level in Level::available() {
                let mut near = x.clone();
                nearest(level, &Pool::eager(2), encoding, x.len(), &mut near);
                for (index, (value, near)) in x.iter().zip(&near).enumerate() {
                    if index % thin == 0 || index >= 1000 {
                        assert_eq!(
                            *near,
                            expected(encoding, *value),
                            "{value} as {encoding:?}, {}",
                            level.name()
                        );
                    }
                }
                let mut bytes = vec![0u32; x.len()];
                let width = element.bytes();
                // SAFETY: plain bytes.
                let bytes = unsafe {
                    std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast::<u8>(), x.len() * width)
                };
                encode(
                    level,
                    &Pool::eager(3),
                    &x,
                    x.len(),
                    StoredMut::new(encoding, bytes).expect("aligned"),
                );
                let mut back = vec![f32::NAN; x.len()];
                let stored = Stored::new(encoding, bytes).expect("aligned");
                decode(level, &Pool::eager(3), stored, x.len(), &mut back);
                assert_eq!(back, near, "{encoding:?}, {}", level.name());
                // Representable values stay unchanged.
                nearest(level, &Pool::eager(1), encoding, x.len(), &mut near);
                assert_eq!(back, near, "{encoding:?}, {}", level.name());
                // Attention reads parts of rows like this.
                let mut part = vec![f32::NAN; 21];
                widen_at(level, stored, 5, &mut part);
                assert_eq!(part, back[5..26]);
            }
        }
    }

    #[test]
    fn nan_and_infinity_are_encoded_the_same_at_every_level() {
        for (element, scale, zero_point) in SCALES {
            let encoding = ElementEncoding { element, scale, zero_point };
            for level in Level::available() {
                let mut values = [f32::NAN, 1.0];
                nearest(level, &Pool::eager(1), encoding, 1, &mut values);
                match element.range() {
                    Some(_) => assert_eq!(values[0], (0 - zero_point) as f32 * scale, "{encoding:?}"),
                    None => assert!(values[0].is_nan(), "{encoding:?}"),
                }
                assert_eq!(values[1], 1.0, "only the first was asked for");
            }
        }
    }

    #[test]
    fn inconsistent_encodings_are_refused() {
        for (scale, zero_point, element) in [
            (0.0, 0, Element::U8),
            (-1.0, 0, Element::U8),
            (f32::NAN, 0, Element::I16),
            (f32::INFINITY, 0, Element::I16),
            (1e-40, 0, Element::I16),
            (1.0, 256, Element::U8),
            (1.0, -1, Element::U16),
            (1.0, 128, Element::I8),
            (2.0, 0, Element::F16),
            (1.0, 1, Element::F32),
        ] {
            let encoding = ElementEncoding { element, scale, zero_point };
            assert!(!encoding.is_consistent() && Stored::new(encoding, &[]).is_none(), "{encoding:?}");
        }
        let halves = ElementEncoding::plain(Element::F16);
        let bytes = [0u32; 2];
        // SAFETY: plain bytes.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<u8>(), 8) };
        assert!(Stored::new(halves, &bytes[..3]).is_none() && Stored::new(halves, &bytes[1..3]).is_none());
        for dtype in 0..20 {
            assert!(Element::of(dtype).is_none_or(|element| element.dtype() == dtype));
        }
    }
}
