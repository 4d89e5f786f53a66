use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use shardwright_graph::{Weight, nearest_bound_value, nearest_value};
use shardwright_vocabulary::{DType, Encoding, Error, Result, ScaleBits};

/// A dense row-major tensor in its encoding.
#[derive(Clone, Debug)]
pub struct Array {
    shape: Vec<usize>,
    values: Values,
}

/// The elements of an [`Array`], as many as its shape has.
#[derive(Clone, Debug)]
enum Values {
    /// Floats that the element type represents exactly.
    Floats(DType, Vec<f32>),
    /// Stored integers of an integer encoding.
    Stored(Encoding, Vec<i32>),
    /// Positions or slots.
    Indices(Vec<i32>),
    /// A constant as the model stores it. It is decoded when it is read.
    Constant(Arc<Weight>),
}

/// The factors that turn the stored integers of a matrix into values.
pub(crate) enum RowScales<'a> {
    /// One scale for the whole matrix.
    One(f64),
    /// One scale per row: row `n` of the matrix has scale `n` of the weight.
    PerRow(&'a Weight),
    /// One scale per this many consecutive integers of a row.
    Blocks(&'a Weight, usize),
}

impl Array {
    /// Creates a tensor of f32 values. Fails if the number of `values` does not match `shape`.
    pub fn floats_of(shape: &[u64], values: Vec<f32>) -> Result<Self> {
        let shape = checked(shape, values.len())?;
        Ok(Array { shape, values: Values::Floats(DType::F32, values) })
    }

    /// Creates a tensor of i32 indices (positions, slots). Fails if the number of `values` does not
    /// match `shape`.
    pub fn integers_of(shape: &[u64], values: Vec<i32>) -> Result<Self> {
        let shape = checked(shape, values.len())?;
        Ok(Array { shape, values: Values::Indices(values) })
    }

    /// Creates a tensor of stored integers. Fails if their number does not match `shape`, if one is
    /// out of range, and for encodings other than 8-bit or 16-bit integers.
    pub fn stored_of(shape: &[u64], encoding: Encoding, stored: Vec<i32>) -> Result<Self> {
        let shape = checked(shape, stored.len())?;
        let range = encoding.element.raw_range().filter(|_| encoding.element.is_encodable());
        let (low, high) = range.unwrap_or((0, -1));
        match stored.iter().find(|value| !(low..=high).contains(*value)) {
            Some(value) => Err(Error::argument(format!("{value} is not a stored value of {encoding}"))),
            None => Ok(Array { shape, values: Values::Stored(encoding, stored) }),
        }
    }

    /// Creates a result in f32 whose length follows from the shape.
    pub(crate) fn made(shape: &[usize], values: Vec<f32>) -> Self {
        debug_assert_eq!(shape.iter().product::<usize>(), values.len());
        Array { shape: shape.to_vec(), values: Values::Floats(DType::F32, values) }
    }

    /// Creates a tensor of zeros in an encoding.
    pub(crate) fn zeros(shape: &[usize], encoding: Encoding) -> Self {
        let elements = shape.iter().product();
        let values = match encoding.element.is_float() {
            true => Values::Floats(encoding.element, vec![0.0; elements]),
            false => Values::Stored(encoding, vec![encoding.zero_point; elements]),
        };
        Array { shape: shape.to_vec(), values }
    }

    /// Creates a constant, whose bytes were checked against the shape.
    pub(crate) fn constant(weight: Weight) -> Self {
        let shape = weight.shape.iter().map(|&extent| extent as usize).collect();
        Array { shape, values: Values::Constant(Arc::new(weight)) }
    }

    /// Returns the extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        match &self.values {
            Values::Indices(_) => DType::I32,
            Values::Constant(weight) => weight.dtype,
            _ => self.encoding().map_or(DType::F32, |encoding| encoding.element),
        }
    }

    /// Returns the encoding of the values. `None` for indices and constants.
    pub fn encoding(&self) -> Option<Encoding> {
        match &self.values {
            Values::Floats(element, _) => Some(Encoding { element: *element, ..Encoding::F32 }),
            Values::Stored(encoding, _) => Some(*encoding),
            Values::Indices(_) | Values::Constant(_) => None,
        }
    }

    /// Returns the values as f32, decoded if they are encoded. Indices are converted.
    pub fn floats(&self) -> Cow<'_, [f32]> {
        match &self.values {
            Values::Floats(_, values) => Cow::Borrowed(values),
            Values::Stored(encoding, stored) => {
                let decode = decoder(encoding);
                Cow::Owned(stored.iter().map(|&stored| decode(stored)).collect())
            }
            Values::Indices(values) => Cow::Owned(values.iter().map(|&value| value as f32).collect()),
            Values::Constant(weight) => {
                let mut values = vec![0.0; self.elements()];
                for (row, values) in values.chunks_exact_mut(weight.row_width()).enumerate() {
                    weight.decode_row(row, values);
                }
                Cow::Owned(values)
            }
        }
    }

    /// Returns the values as f32, moved out.
    pub fn into_floats(self) -> Vec<f32> {
        match self.values {
            Values::Floats(_, values) => values,
            _ => self.floats().into_owned(),
        }
    }

    /// Returns the indices of a tensor of positions or slots. Empty for any other tensor.
    pub fn integers(&self) -> &[i32] {
        match &self.values {
            Values::Indices(values) => values,
            _ => &[],
        }
    }

    /// Returns the stored integers of a tensor with an integer encoding. Empty for any other
    /// tensor.
    pub fn stored(&self) -> &[i32] {
        match &self.values {
            Values::Stored(_, stored) => stored,
            _ => &[],
        }
    }

    /// Returns the bytes as in a buffer: little-endian, dense.
    pub fn bytes(&self) -> Vec<u8> {
        match &self.values {
            Values::Floats(DType::F16, values) => {
                values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect()
            }
            Values::Floats(DType::Bf16, values) => {
                values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect()
            }
            Values::Floats(_, values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            // In two's complement, the low bytes are the value in every width that is wide enough.
            Values::Stored(encoding, stored) => {
                let width = encoding.element.bytes() as usize;
                stored.iter().flat_map(|value| value.to_le_bytes().into_iter().take(width)).collect()
            }
            Values::Indices(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Values::Constant(weight) => weight.data.bytes().to_vec(),
        }
    }

    /// Multiplies every value of floats and encoded integers by a power of two.
    pub(crate) fn times(mut self, factor: f32) -> Array {
        match &mut self.values {
            Values::Floats(dtype, values) => {
                *dtype = DType::F32;
                values.iter_mut().for_each(|value| *value *= factor);
            }
            Values::Stored(encoding, _) => {
                *encoding = encoding.in_units(ScaleBits::new(factor).unwrap_or(ScaleBits::ONE));
            }
            Values::Indices(_) | Values::Constant(_) => {}
        }
        self
    }

    /// Converts the tensor to another encoding: decodes it, then rounds each value to the nearest
    /// representable one, as the result of an operation ([`nearest_value`]). Indices are not
    /// changed.
    #[must_use]
    pub fn encoded(self, encoding: Encoding) -> Array {
        self.converted(encoding, nearest_value)
    }

    /// Like [`Array::encoded`], but as the host stores a tensor that it binds
    /// ([`nearest_bound_value`]).
    #[must_use]
    pub fn bound(self, encoding: Encoding) -> Array {
        self.converted(encoding, nearest_bound_value)
    }

    fn converted(self, encoding: Encoding, nearest: fn(&Encoding, f32) -> f32) -> Array {
        if self.encoding() == Some(encoding) || matches!(self.values, Values::Indices(_)) {
            return self;
        }
        let shape = self.shape.clone();
        let mut floats = self.into_floats();
        let values = match encoding.element {
            DType::F32 => Values::Floats(DType::F32, floats),
            element if element.is_float() => {
                floats.iter_mut().for_each(|value| *value = nearest(&encoding, *value));
                Values::Floats(element, floats)
            }
            _ => Values::Stored(encoding, floats.into_iter().map(|value| encoding.raw(value)).collect()),
        };
        Array { shape, values }
    }

    /// Returns the tensor in memory: constants are read. Integers with one scale stay integers.
    pub(crate) fn in_memory(&self) -> Cow<'_, Array> {
        let Values::Constant(weight) = &self.values else { return Cow::Borrowed(self) };
        let values = match (weight.dtype, self.row_scales()) {
            (dtype, Some(RowScales::One(_))) => {
                let stored: Vec<i32> =
                    (0..weight.rows()).filter_map(|row| weight.raw_row(row)).flatten().collect();
                let dtype = if dtype.is_packed() { DType::I8 } else { dtype };
                match encoding_of(weight, dtype) {
                    Some(encoding) => Values::Stored(encoding, stored),
                    None => Values::Floats(DType::F32, self.floats().into_owned()),
                }
            }
            (DType::F16, _) => Values::Floats(DType::F16, self.floats().into_owned()),
            (DType::Bf16, _) => Values::Floats(DType::Bf16, self.floats().into_owned()),
            _ => Values::Floats(DType::F32, self.floats().into_owned()),
        };
        Cow::Owned(Array { shape: self.shape.clone(), values })
    }

    /// Returns the scales that turn the stored integers into values. `None` for floats, indices and
    /// blocks with minimums, which are not multiples of a scale.
    pub(crate) fn row_scales(&self) -> Option<RowScales<'_>> {
        use shardwright_vocabulary::Granularity::{PerBlock, PerChannel, PerTensor};
        match &self.values {
            Values::Stored(encoding, _) => Some(RowScales::One(f64::from(encoding.scale.get()))),
            Values::Constant(weight) => {
                let existing = weight.quantisation.as_ref()?;
                Some(match existing.granularity {
                    PerTensor => RowScales::One(f64::from(weight.scale(0, 0)?)),
                    PerChannel if weight.shape.len() > 1 => RowScales::PerRow(weight),
                    PerChannel => RowScales::Blocks(weight, 1),
                    PerBlock { minimum: true, .. } => return None,
                    PerBlock { size, minimum: false } => RowScales::Blocks(weight, size as usize),
                })
            }
            Values::Floats(..) | Values::Indices(_) => None,
        }
    }

    /// Writes the values `start + i · stride` into `into[i]`, in f64. Constants are read by whole
    /// rows.
    pub(crate) fn gather_values(&self, start: usize, stride: usize, into: &mut [f64]) {
        match &self.values {
            Values::Floats(_, values) if stride == 1 => widen_all(&values[start..], into),
            Values::Floats(_, values) => {
                for (to, from) in into.iter_mut().zip(values[start..].iter().step_by(stride)) {
                    *to = f64::from(*from);
                }
            }
            Values::Stored(encoding, stored) => {
                let decode = decoder(encoding);
                for (to, from) in into.iter_mut().zip(stored[start..].iter().step_by(stride)) {
                    *to = f64::from(decode(*from));
                }
            }
            Values::Indices(values) => {
                for (to, from) in into.iter_mut().zip(values[start..].iter().step_by(stride)) {
                    *to = f64::from(*from);
                }
            }
            Values::Constant(weight) => {
                debug_assert!(stride == 1 && into.len() == weight.row_width());
                let mut row = vec![0.0; into.len()];
                weight.decode_row(start / into.len(), &mut row);
                widen_all(&row, into);
            }
        }
    }

    /// Like [`Array::gather_values`], but writes `stored − zero point`. Writes zeros for floats.
    pub(crate) fn gather_steps(&self, start: usize, stride: usize, into: &mut [f64]) {
        match &self.values {
            Values::Stored(encoding, stored) => {
                for (to, from) in into.iter_mut().zip(stored[start..].iter().step_by(stride)) {
                    *to = f64::from(from - encoding.zero_point);
                }
            }
            Values::Constant(weight) => {
                debug_assert!(stride == 1 && into.len() == weight.row_width());
                let zero = weight.quantisation.as_ref().map_or(0, |existing| existing.zero_point);
                if let Some(stored) = weight.raw_row(start / into.len()) {
                    into.iter_mut().zip(stored).for_each(|(to, from)| *to = f64::from(from - zero));
                }
            }
            Values::Floats(..) | Values::Indices(_) => into.fill(0.0),
        }
    }

    /// Creates a tensor from runs of stored elements, in their order. All arrays must be in memory
    /// and have the same encoding.
    pub(crate) fn assembled<'a>(
        shape: &[usize],
        runs: impl IntoIterator<Item = (&'a Array, Range<usize>)>,
    ) -> Array {
        let mut runs = runs.into_iter().peekable();
        let elements = shape.iter().product();
        let mut values = match runs.peek().map(|(first, _)| &first.values) {
            Some(Values::Stored(encoding, _)) => Values::Stored(*encoding, Vec::with_capacity(elements)),
            Some(Values::Indices(_)) => Values::Indices(Vec::with_capacity(elements)),
            Some(Values::Floats(element, _)) => Values::Floats(*element, Vec::with_capacity(elements)),
            Some(Values::Constant(_)) | None => Values::Floats(DType::F32, Vec::new()),
        };
        for (array, run) in runs {
            match (&mut values, &array.values) {
                (Values::Floats(_, into), Values::Floats(_, from)) => into.extend_from_slice(&from[run]),
                (Values::Stored(_, into), Values::Stored(_, from))
                | (Values::Indices(into), Values::Indices(from)) => into.extend_from_slice(&from[run]),
                _ => debug_assert!(false, "moved between encodings"),
            }
        }
        let array = Array { shape: shape.to_vec(), values };
        debug_assert!(array.is_filled());
        array
    }

    /// Overwrites elements from `at` on with a run of another array of the same encoding.
    pub(crate) fn overwrite(&mut self, at: usize, from: &Array, run: Range<usize>) {
        let into = at..at + run.len();
        match (&mut self.values, &from.values) {
            (Values::Floats(_, existing), Values::Floats(_, from)) => {
                existing[into].copy_from_slice(&from[run]);
            }
            (Values::Stored(_, existing), Values::Stored(_, from)) => {
                existing[into].copy_from_slice(&from[run])
            }
            _ => debug_assert!(false, "moved between encodings"),
        }
    }

    fn is_filled(&self) -> bool {
        let existing = match &self.values {
            Values::Floats(_, values) => values.len(),
            Values::Stored(_, values) | Values::Indices(values) => values.len(),
            Values::Constant(_) => self.elements(),
        };
        existing == self.elements()
    }

    /// Returns the tensor with another shape that has the same number of elements.
    pub(crate) fn reshaped(mut self, shape: &[usize]) -> Self {
        debug_assert_eq!(shape.iter().product::<usize>(), self.elements());
        self.shape = shape.to_vec();
        self
    }

    /// Returns the first `rows` entries of axis `axis`.
    pub fn first_rows(&self, axis: usize, rows: usize) -> Array {
        if axis >= self.shape.len() || rows >= self.shape[axis] {
            return self.clone();
        }
        self.slice(axis, 0, rows)
    }

    /// Returns `count` entries of one axis, from `start`.
    pub(crate) fn slice(&self, axis: usize, start: usize, count: usize) -> Array {
        let mut shape = self.shape.clone();
        let extent = std::mem::replace(&mut shape[axis], count);
        let inner: usize = shape[axis + 1..].iter().product();
        let outer: usize = shape[..axis].iter().product();
        let x = self.in_memory();
        let runs = (0..outer).map(|index| {
            let from = (index * extent + start) * inner;
            (x.as_ref(), from..from + count * inner)
        });
        Array::assembled(&shape, runs)
    }

    /// Returns row `index` of the outermost axis, decoded.
    pub fn row(&self, index: usize) -> Vec<f32> {
        let width = self.elements() / self.shape[0].max(1);
        self.floats()[index * width..(index + 1) * width].to_vec()
    }
}

/// Returns a function like [`Encoding::value`] that reads the scale only once.
fn decoder(encoding: &Encoding) -> impl Fn(i32) -> f32 + use<> {
    let (zero, scale) = (encoding.zero_point, encoding.scale.get());
    move |stored| (stored - zero) as f32 * scale
}

fn widen_all(values: &[f32], into: &mut [f64]) {
    into.iter_mut().zip(values).for_each(|(to, from)| *to = f64::from(*from));
}

/// Returns the encoding of a constant with one scale, as integers of `dtype`.
fn encoding_of(weight: &Weight, dtype: DType) -> Option<Encoding> {
    let scale = shardwright_vocabulary::ScaleBits::new(weight.scale(0, 0)?)?;
    let zero_point = weight.quantisation.as_ref()?.zero_point;
    Encoding::of(dtype, Some(shardwright_vocabulary::Affine { scale, zero_point }))
}

fn checked(shape: &[u64], count: usize) -> Result<Vec<usize>> {
    let elements = shape.iter().try_fold(1_u64, |product, &extent| product.checked_mul(extent));
    if elements == Some(count as u64) {
        Ok(shape.iter().map(|&extent| extent as usize).collect())
    } else {
        Err(Error::argument(format!("{count} values do not fill a tensor of {shape:?}")))
    }
}
