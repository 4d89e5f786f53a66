//! Blocks of a tensor, taken apart: integers by rows, and by rows the scales with the minimums.

use half::f16;
use shardwright_gguf::{Grouping, Levels, TensorType};
use shardwright_graph::GraphError;
use shardwright_vocabulary::{DType, Granularity, Quantisation};

/// Stored bytes whose blocks are taken apart together, at least one row.
const TOGETHER: usize = 1 << 16;

/// How a matrix of blocks lies in a graph: signed integers of four bits or eight and a scale per
/// group, for types with minimums those too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    kind: TensorType,
    /// Type of the integers.
    pub dtype: DType,
    /// Groups, scales and the zero point.
    pub quantisation: Quantisation<()>,
}

impl Blocks {
    /// The layout of a type of blocks; `None` for other types.
    pub fn of(kind: TensorType) -> Option<Self> {
        let Grouping { group, minimum, range: (low, high), .. } = kind.grouping()?;
        let (dtype, zero_point) = match (low, high) {
            (-8.., ..=7) => (DType::I4, 0),
            // In the four bits with a sign, which hold as many levels.
            (0, ..=15) => (DType::I4, -8),
            _ => (DType::I8, 0),
        };
        // A product of two scales has more digits than a binary16.
        let scale_dtype = if kind.has_half_scales() { DType::F16 } else { DType::F32 };
        let granularity = Granularity::PerBlock { size: group as u32, minimum };
        let quantisation = Quantisation { granularity, scale_dtype, scales: (), zero_point };
        Some(Blocks { kind, dtype, quantisation })
    }

    /// Bytes of the integers and of the scales of a matrix.
    pub fn sizes(&self, name: &str, shape: &[u64]) -> Result<[usize; 2], GraphError> {
        let sizes = [self.dtype.packed_bytes(shape), self.quantisation.scale_bytes(shape)];
        let here = sizes.map(|bytes| bytes.and_then(|bytes| usize::try_from(bytes).ok()));
        match here {
            [Some(integers), Some(scales)] => Ok([integers, scales]),
            _ => Err(GraphError::WeightTooLarge { weight: name.to_owned(), shape: shape.to_vec() }),
        }
    }

    /// The integers of rows of `width` values, whole blocks each, in the graph's order.
    pub fn integers(&self, stored: &[u8], width: usize) -> Vec<u8> {
        let mut integers = Vec::new();
        let zero = self.quantisation.zero_point as i8;
        self.apart(stored, width, |Levels { levels, .. }| match self.dtype {
            DType::I4 => {
                let half = |level: i8| (level + zero) as u8 & 0x0f;
                integers.extend(levels.as_chunks::<2>().0.iter().map(|[a, b]| half(*a) | (half(*b) << 4)));
            }
            _ => integers.extend(levels.iter().map(|level| *level as u8)),
        });
        integers
    }

    /// Of every row its scales, then its minimums.
    pub fn scales(&self, stored: &[u8], width: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut push = |numbers: &[f32]| match self.quantisation.scale_dtype {
            DType::F16 => {
                bytes.extend(numbers.iter().flat_map(|number| f16::from_f32(*number).to_le_bytes()))
            }
            _ => bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes())),
        };
        self.apart(stored, width, |Levels { levels, scales, minimums }| {
            let groups = width * scales.len() / levels.len().max(1);
            for row in 0..scales.len() / groups.max(1) {
                let row = row * groups..(row + 1) * groups;
                push(&scales[row.clone()]);
                push(minimums.get(row).unwrap_or_default());
            }
        });
        bytes
    }

    /// Takes rows apart, some at a time.
    fn apart(&self, stored: &[u8], width: usize, mut take: impl FnMut(&Levels)) {
        let (values, bytes) = self.kind.block();
        let row = (width / values as usize * bytes as usize).max(1);
        for rows in stored.chunks((TOGETHER / row).max(1) * row) {
            take(&self.kind.levels(rows).unwrap_or_default());
        }
    }
}
