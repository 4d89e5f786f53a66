//! Operations that move elements without changing them: RESHAPE, TRANSPOSE, SLICE, STRIDED_SLICE,
//! SPLIT, CONCATENATION, PAD, TILE.

use std::borrow::Cow;

use super::tensor::{Elements, Tensor};

/// Runs `$body` on the elements of a tensor and wraps the new elements into the same type.
macro_rules! mapped {
    ($elements:expr, $slice:ident => $body:expr) => {
        match $elements {
            Elements::I8($slice) => Elements::I8(Cow::Owned($body)),
            Elements::U8($slice) => Elements::U8(Cow::Owned($body)),
            Elements::I16($slice) => Elements::I16(Cow::Owned($body)),
            Elements::U16($slice) => Elements::U16(Cow::Owned($body)),
            Elements::I32($slice) => Elements::I32(Cow::Owned($body)),
            Elements::F32($slice) => Elements::F32(Cow::Owned($body)),
            Elements::F16($slice) => Elements::F16(Cow::Owned($body)),
        }
    };
}

/// A selection of elements: a start, and a count and a stride for each dimension of the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walk {
    /// Index of the first element.
    pub start: usize,
    /// Dimensions of the output.
    pub counts: Vec<usize>,
    /// Distances in elements of the input, negative if backwards.
    pub strides: Vec<isize>,
}

/// Returns the row-major strides of dimensions.
pub fn row_major(dimensions: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dimensions.len()];
    for place in (1..dimensions.len()).rev() {
        strides[place - 1] = strides[place] * dimensions[place];
    }
    strides
}

impl Walk {
    fn over<T: Copy>(&self, elements: &[T]) -> Vec<T> {
        let mut out = Vec::with_capacity(self.counts.iter().product());
        let Some((&inner, outer)) = self.counts.split_last() else {
            return vec![elements[self.start]];
        };
        let stride = self.strides[outer.len()];
        let mut at = vec![0usize; outer.len()];
        let mut base = self.start as isize;
        loop {
            if stride == 1 {
                out.extend_from_slice(&elements[base as usize..][..inner]);
            } else {
                out.extend((0..inner as isize).map(|index| elements[(base + index * stride) as usize]));
            }
            let mut place = outer.len();
            loop {
                if place == 0 {
                    return out;
                }
                place -= 1;
                at[place] += 1;
                base += self.strides[place];
                if at[place] < outer[place] {
                    break;
                }
                base -= self.strides[place] * at[place] as isize;
                at[place] = 0;
            }
        }
    }

    /// Returns the selected elements.
    pub fn take(&self, x: &Tensor<'_>) -> Elements<'static> {
        mapped!(&x.elements, elements => self.over(elements))
    }
}

/// Copies the elements unchanged.
pub fn copied(x: &Tensor<'_>) -> Elements<'static> {
    x.elements.clone().into_owned()
}

/// Concatenates tensors of one type along a dimension. Each tensor contributes the product of its
/// dimensions from `axis` on to every row.
pub fn concatenated(tensors: &[Tensor<'_>], axis: usize) -> Elements<'static> {
    fn joined<T: Copy>(parts: &[(Cow<'_, [T]>, usize)]) -> Vec<T> {
        let rows = parts.first().map_or(0, |(elements, row)| elements.len() / (*row).max(1));
        let mut out = Vec::with_capacity(parts.iter().map(|(elements, _)| elements.len()).sum());
        for row in 0..rows {
            for (elements, length) in parts {
                out.extend_from_slice(&elements[row * length..][..*length]);
            }
        }
        out
    }
    let rows = |tensor: &Tensor<'_>| tensor.layout.dimensions[axis..].iter().product::<usize>();
    macro_rules! join {
        ($variant:ident) => {
            Elements::$variant(Cow::Owned(joined(
                &tensors
                    .iter()
                    .filter_map(|tensor| match &tensor.elements {
                        Elements::$variant(elements) => Some((Cow::Borrowed(&elements[..]), rows(tensor))),
                        _ => None,
                    })
                    .collect::<Vec<_>>(),
            )))
        };
    }
    match tensors.first().map(|tensor| &tensor.elements) {
        Some(Elements::I8(_)) => join!(I8),
        Some(Elements::I16(_)) => join!(I16),
        Some(Elements::U16(_)) => join!(U16),
        Some(Elements::I32(_)) => join!(I32),
        Some(Elements::F32(_)) => join!(F32),
        Some(Elements::F16(_)) => join!(F16),
        _ => join!(U8),
    }
}

/// Computes PAD. The padding encodes zero.
pub fn padded(x: &Tensor<'_>, before: &[usize], out: &[usize]) -> Elements<'static> {
    let (own, whole) = (row_major(&x.layout.dimensions), row_major(out));
    let total: usize = out.iter().product();
    let source = |at: usize| -> Option<usize> {
        let mut index = 0;
        for place in 0..out.len() {
            let here = (at / whole[place] % out[place]).checked_sub(before[place])?;
            if here >= x.layout.dimensions[place] {
                return None;
            }
            index += here * own[place];
        }
        Some(index)
    };
    fn filled<T: Copy>(
        elements: &[T],
        total: usize,
        nothing: T,
        source: impl Fn(usize) -> Option<usize>,
    ) -> Vec<T> {
        (0..total).map(|at| source(at).map_or(nothing, |at| elements[at])).collect()
    }
    let zero = x.layout.zero_point;
    match &x.elements {
        Elements::I8(elements) => Elements::I8(filled(elements, total, zero as i8, source).into()),
        Elements::U8(elements) => Elements::U8(filled(elements, total, zero as u8, source).into()),
        Elements::I16(elements) => Elements::I16(filled(elements, total, zero as i16, source).into()),
        Elements::U16(elements) => Elements::U16(filled(elements, total, zero as u16, source).into()),
        Elements::I32(elements) => Elements::I32(filled(elements, total, 0, source).into()),
        Elements::F32(elements) => Elements::F32(filled(elements, total, 0.0, source).into()),
        Elements::F16(elements) => Elements::F16(filled(elements, total, half::f16::ZERO, source).into()),
    }
}

/// Computes TILE, which repeats the tensor along each dimension.
pub fn tiled(x: &Tensor<'_>, out: &[usize]) -> Elements<'static> {
    let (own, whole) = (row_major(&x.layout.dimensions), row_major(out));
    let total: usize = out.iter().product();
    let source = |at: usize| -> usize {
        (0..out.len())
            .map(|place| at / whole[place] % out[place] % x.layout.dimensions[place] * own[place])
            .sum()
    };
    mapped!(&x.elements, elements => (0..total).map(|at| elements[source(at)]).collect())
}
