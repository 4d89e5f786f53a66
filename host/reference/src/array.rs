use std::borrow::Cow;

use shardwright_graph::{DType, WeightData};

use crate::ReferenceError;
use crate::weights::widen_element;

/// A dense row-major tensor.
#[derive(Clone, Debug)]
pub struct Array {
    shape: Vec<usize>,
    values: Values,
}

/// Elements of an [`Array`], as many as its shape says.
#[derive(Clone, Debug)]
enum Values {
    F32(Vec<f32>),
    I32(Vec<i32>),
    /// A constant as the checkpoint stores it; widened when read.
    Stored(DType, WeightData),
}

impl Array {
    /// A tensor of f32 values; refused when `values` are not as many as `shape` says.
    pub fn floats_of(shape: &[u64], values: Vec<f32>) -> Result<Self, ReferenceError> {
        let shape = checked(shape, values.len())?;
        Ok(Array { shape, values: Values::F32(values) })
    }

    /// A tensor of i32 values; refused when `values` are not as many as `shape` says.
    pub fn integers_of(shape: &[u64], values: Vec<i32>) -> Result<Self, ReferenceError> {
        let shape = checked(shape, values.len())?;
        Ok(Array { shape, values: Values::I32(values) })
    }

    /// A result whose length follows from the shape.
    pub(crate) fn made(shape: &[usize], values: Vec<f32>) -> Self {
        debug_assert_eq!(shape.iter().product::<usize>(), values.len());
        Array { shape: shape.to_vec(), values: Values::F32(values) }
    }

    /// Zeros.
    pub(crate) fn zeros(shape: &[usize]) -> Self {
        Array::made(shape, vec![0.0; shape.iter().product()])
    }

    /// A constant; its bytes were checked against the shape.
    pub(crate) fn stored(shape: Vec<usize>, dtype: DType, data: WeightData) -> Self {
        Array { shape, values: Values::Stored(dtype, data) }
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        match &self.values {
            Values::F32(_) => DType::F32,
            Values::I32(_) => DType::I32,
            Values::Stored(dtype, _) => *dtype,
        }
    }

    /// The values as f32, widened where they are stored narrower; integers are converted.
    pub fn floats(&self) -> Cow<'_, [f32]> {
        match &self.values {
            Values::F32(values) => Cow::Borrowed(values),
            Values::I32(values) => Cow::Owned(values.iter().map(|&value| value as f32).collect()),
            Values::Stored(dtype, data) => Cow::Owned(crate::weights::widen_bytes(*dtype, data.bytes())),
        }
    }

    /// The values of an integer tensor; empty for any other.
    pub fn integers(&self) -> &[i32] {
        match &self.values {
            Values::I32(values) => values,
            _ => &[],
        }
    }

    /// The f32 values, moved out.
    pub fn into_floats(self) -> Vec<f32> {
        match self.values {
            Values::F32(values) => values,
            _ => self.floats().into_owned(),
        }
    }

    /// The f32 values for writing in place; only for tensors that are f32 in memory.
    pub(crate) fn floats_mut(&mut self) -> &mut [f32] {
        match &mut self.values {
            Values::F32(values) => values,
            _ => &mut [],
        }
    }

    /// Element `start + i · stride` into `into[i]`, in f64.
    pub(crate) fn gather_f64(&self, start: usize, stride: usize, into: &mut [f64]) {
        match &self.values {
            Values::F32(values) if stride == 1 => {
                for (to, from) in into.iter_mut().zip(&values[start..]) {
                    *to = f64::from(*from);
                }
            }
            Values::F32(values) => {
                for (to, from) in into.iter_mut().zip(values[start..].iter().step_by(stride)) {
                    *to = f64::from(*from);
                }
            }
            Values::I32(values) => {
                for (to, from) in into.iter_mut().zip(values[start..].iter().step_by(stride)) {
                    *to = f64::from(*from);
                }
            }
            Values::Stored(dtype, data) => widen_element(*dtype, data.bytes(), start, stride, into),
        }
    }

    /// The same elements under another shape of equal extent.
    pub(crate) fn reshaped(mut self, shape: &[usize]) -> Self {
        debug_assert_eq!(shape.iter().product::<usize>(), self.elements());
        self.shape = shape.to_vec();
        self
    }

    /// The first `rows` of axis `axis`, of f32 tensors.
    pub fn first_rows(&self, axis: usize, rows: usize) -> Array {
        if axis >= self.shape.len() || rows >= self.shape[axis] {
            return self.clone();
        }
        crate::ops::layout::slice(self, axis, 0, rows)
    }

    /// Row `index` of the outermost axis, of f32 tensors.
    pub fn row(&self, index: usize) -> Vec<f32> {
        let width = self.elements() / self.shape[0].max(1);
        self.floats()[index * width..(index + 1) * width].to_vec()
    }
}

fn checked(shape: &[u64], given: usize) -> Result<Vec<usize>, ReferenceError> {
    let elements = shape.iter().try_fold(1_u64, |product, &extent| product.checked_mul(extent));
    if elements == Some(given as u64) {
        Ok(shape.iter().map(|&extent| extent as usize).collect())
    } else {
        Err(ReferenceError::ArrayLength { shape: shape.to_vec(), given })
    }
}
