//! Unpacked blocks of a tensor: the integers of each row, and the scales and minimums of each row.

use half::f16;
use shardwright_gguf::{Grouping, Levels, TensorType};
use shardwright_graph::too_large;
use shardwright_vocabulary::{DType, Granularity, Quantisation, Result};

/// Stored bytes whose blocks are unpacked together. At least one row is unpacked.
const TOGETHER: usize = 1 << 16;

/// The layout of a matrix of blocks in a graph: signed integers of four or eight bits, and a scale
/// per group. Types with minimums also have a minimum per group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    kind: TensorType,
    /// Type of the integers.
    pub dtype: DType,
    /// Groups, scales and the zero point.
    pub quantisation: Quantisation<()>,
}

impl Blocks {
    /// Returns the layout of a type of blocks. `None` for other types.
    pub fn of(kind: TensorType) -> Option<Self> {
        let Grouping { group, minimum, range: (low, high), .. } = kind.grouping()?;
        let (dtype, zero_point) = match (low, high) {
            (-8.., ..=7) => (DType::I4, 0),
            // The levels fit into four bits as signed integers.
            (0, ..=15) => (DType::I4, -8),
            _ => (DType::I8, 0),
        };
        // A product of two scales has more digits than a binary16.
        let scale_dtype = if kind.has_half_scales() { DType::F16 } else { DType::F32 };
        let granularity = Granularity::PerBlock { size: group as u32, minimum };
        let quantisation = Quantisation { granularity, scale_dtype, scales: (), zero_point };
        Some(Blocks { kind, dtype, quantisation })
    }

    /// Returns the bytes of the integers and of the scales of a matrix.
    pub fn sizes(&self, name: &str, shape: &[u64]) -> Result<[usize; 2]> {
        let sizes = [self.dtype.packed_bytes(shape), self.quantisation.scale_bytes(shape)];
        let here = sizes.map(|bytes| bytes.and_then(|bytes| usize::try_from(bytes).ok()));
        match here {
            [Some(integers), Some(scales)] => Ok([integers, scales]),
            _ => Err(too_large(name, shape)),
        }
    }

    /// Returns the integers of rows in the graph's order. Rows have `width` values, which are whole
    /// blocks.
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

    /// Returns the scales of each row, each followed by the minimums of that row.
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

    /// Unpacks rows, a few at a time, and passes them to `take`.
    fn apart(&self, stored: &[u8], width: usize, mut take: impl FnMut(&Levels)) {
        let (values, bytes) = self.kind.block();
        let row = (width / values as usize * bytes as usize).max(1);
        for rows in stored.chunks((TOGETHER / row).max(1) * row) {
            take(&self.kind.levels(rows).unwrap_or_default());
        }
    }
}
