//! The stored forms of weights, and how they are written.

use shardwright_shim_abi::Error;

use super::constant::Constant;
use super::narrow::factors;
use crate::kernels::integer::split::{pack_high, pack_low, panel_bytes, row_bytes};
use crate::kernels::integer::{Geometry, IntegerType, pack_tiles};
use crate::kernels::linear::{PanelType, pack_from_columns, pack_from_rows, pack_integers};
use crate::program::NumberForm;
use crate::simd::LANES;

/// Number of values written at a time.
const PIECE: usize = 1 << 14;

/// Stored form of a weight, or of a part of it.
pub enum Form<'a> {
    /// A matrix in panels.
    Panels {
        constant: Constant<'a>,
        kind: PanelType,
        inputs: usize,
        outputs: usize,
        by_columns: bool,
    },
    /// A matrix of integers in tiles.
    Tiles {
        constant: Constant<'a>,
        kind: IntegerType,
        /// Integer that is stored as zero.
        low: i32,
        geometry: Geometry,
        outputs: usize,
    },
    /// The first parts of signed bytes, in panels.
    HighParts {
        constant: Constant<'a>,
        inputs: usize,
        outputs: usize,
    },
    /// The second parts, row by row.
    LowParts {
        constant: Constant<'a>,
        inputs: usize,
        outputs: usize,
    },
    /// The norms of the distances between the second parts and their middle value.
    Spreads {
        constant: Constant<'a>,
        inputs: usize,
        outputs: usize,
    },
    /// The scales of a matrix, one per output.
    OutputScales {
        constant: Constant<'a>,
        outputs: usize,
    },
    /// The scales and minimums of a matrix in blocks, in the order of its panels and tiles.
    Blocks {
        constant: Constant<'a>,
        form: NumberForm,
        /// Number of blocks of a row.
        blocks: usize,
        /// 1 for scales, 2 for scales and minimums.
        kinds: usize,
        outputs: usize,
    },
    /// Dense f32 values.
    Wide {
        constant: Constant<'a>,
    },
    Literal(Vec<f32>),
}

impl Form<'_> {
    /// Passes the bytes to `give`, in pieces of at most a few panels.
    pub fn write<E: From<Error>>(&self, give: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        match self {
            Form::Literal(values) => give(&little_endian(values)),
            Form::Wide { constant } => {
                let elements = constant.elements() as usize;
                let mut values = vec![0.0; PIECE.min(elements)];
                for first in (0..elements).step_by(PIECE) {
                    let count = PIECE.min(elements - first);
                    constant.read(first, &mut values[..count])?;
                    give(&little_endian(&values[..count]))?;
                }
                Ok(())
            }
            Form::OutputScales { constant, outputs } => {
                let scales = constant.scales()?;
                let of = |output: usize| scales.get(output).or(scales.first()).copied().unwrap_or(0.0);
                give(&little_endian(&(0..*outputs).map(of).collect::<Vec<f32>>()))
            }
            Form::Blocks { constant, form, blocks, kinds, outputs } => {
                let (blocks, kinds, outputs) = (*blocks, *kinds, *outputs);
                match form {
                    NumberForm::F16 => {
                        let stored = constant.half_scales()?.into_iter().map(u16::to_le_bytes).collect();
                        by_block::<2, E>(stored, blocks * kinds, blocks, outputs, give)
                    }
                    NumberForm::F32 => {
                        let stored = constant.scales()?.into_iter().map(f32::to_le_bytes).collect();
                        by_block::<4, E>(stored, blocks * kinds, blocks, outputs, give)
                    }
                    NumberForm::Small { group } => {
                        for numbers in constant.scales()?.chunks((LANES * blocks * kinds).max(1)) {
                            let panel = small(numbers, blocks, kinds, *group as usize);
                            give(&panel.ok_or_else(|| constant.invalid("scales have no common factor"))?)?;
                        }
                        Ok(())
                    }
                }
            }
            Form::Tiles { constant, kind, low, geometry, outputs } => {
                tiles(constant, (*kind, *low), *geometry, *outputs, give)
            }
            Form::HighParts { constant, inputs, outputs } => high_parts(constant, *inputs, *outputs, give),
            Form::LowParts { constant, inputs, outputs } => {
                low_parts(constant, *inputs, *outputs, |low, _| give(low))
            }
            Form::Spreads { constant, inputs, outputs } => {
                low_parts(constant, *inputs, *outputs, |_, spread| give(&[spread]))
            }
            Form::Panels { constant, kind, inputs, outputs, by_columns } => {
                panels(constant, *kind, *inputs, *outputs, *by_columns, give)
            }
        }
    }
}

fn little_endian(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Writes the scales and minimums of blocks, panel by panel. `stored` has `numbers` values per row,
/// scales before minimums. In the output each block's minimum follows its scale.
fn by_block<const N: usize, E>(
    stored: Vec<[u8; N]>,
    numbers: usize,
    blocks: usize,
    outputs: usize,
    give: &mut impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    for first in (0..outputs).step_by(LANES) {
        let of = |at: usize, output: usize| match output < outputs {
            true => stored[output * numbers + at],
            false => [0; N],
        };
        let places = (0..blocks).flat_map(|block| (block..numbers).step_by(blocks));
        let panel = places.flat_map(|at| (first..first + LANES).map(move |output| (at, output)));
        give(&panel.flat_map(|(at, output)| of(at, output)).collect::<Vec<u8>>())?;
    }
    Ok(())
}

/// Returns the numbers of a panel's blocks as products (see
/// [`Numbers::Small`](crate::kernels::linear::Numbers::Small)), or `None` if the numbers of a group
/// have no common factor. `numbers` has the scales of each output, followed by its minimums if
/// there are two `kinds`.
fn small(numbers: &[f32], blocks: usize, kinds: usize, group: usize) -> Option<Vec<u8>> {
    let mut panel = Vec::new();
    for first in (0..blocks).step_by(group) {
        let count = group.min(blocks - first);
        // The scales of sixteen outputs, then their minimums. Missing outputs have zeros.
        let of = |at: usize| {
            let place = (at % LANES * kinds + at / LANES) * blocks + first;
            factors(numbers.get(place..place + count).unwrap_or_default())
        };
        let parts = (0..kinds * LANES).map(of).collect::<Option<Vec<_>>>()?;
        panel.extend(parts.iter().flat_map(|(factor, _)| factor.to_le_bytes()));
        for parts in parts.chunks(LANES) {
            for block in 0..count {
                panel.extend(parts.iter().map(|(_, bytes)| bytes[block] as u8));
            }
        }
    }
    Some(panel)
}

/// Writes a matrix of integers in tiles, panel by panel.
fn tiles<E: From<Error>>(
    constant: &Constant<'_>,
    (kind, low): (IntegerType, i32),
    geometry: Geometry,
    outputs: usize,
    give: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let pack = |rows: &[i8], panel: &mut [u8]| pack_tiles(kind, low, geometry, rows, panel);
    pack_all(constant, (geometry.inputs, outputs), geometry.panel_bytes(kind), pack, give)
}

/// Writes the first parts of signed bytes, panel by panel.
fn high_parts<E: From<Error>>(
    constant: &Constant<'_>,
    inputs: usize,
    outputs: usize,
    give: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let pack = |rows: &[i8], panel: &mut [u8]| pack_high(rows, inputs, panel);
    pack_all(constant, (inputs, outputs), panel_bytes(inputs), pack, give)
}

/// Packs the integers of sixteen outputs at a time into a panel of `bytes`, and passes it to
/// `give`.
fn pack_all<E: From<Error>>(
    constant: &Constant<'_>,
    (inputs, outputs): (usize, usize),
    bytes: usize,
    pack: impl Fn(&[i8], &mut [u8]),
    mut give: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let (mut panel, mut rows) = (vec![0u8; bytes], vec![0i8; LANES * inputs]);
    for index in 0..outputs.div_ceil(LANES) {
        let rows = &mut rows[..LANES.min(outputs - index * LANES) * inputs];
        for (lane, row) in rows.chunks_exact_mut(inputs.max(1)).enumerate() {
            constant.read_integers(index * LANES + lane, row)?;
        }
        pack(rows, &mut panel);
        give(&panel)?;
    }
    Ok(())
}

/// Passes the second parts of every row, with the row's spread, to `give`.
fn low_parts<E: From<Error>>(
    constant: &Constant<'_>,
    inputs: usize,
    outputs: usize,
    mut give: impl FnMut(&[u8], u8) -> Result<(), E>,
) -> Result<(), E> {
    let (mut row, mut low) = (vec![0i8; inputs], vec![0u8; row_bytes(inputs)]);
    for index in 0..outputs {
        constant.read_integers(index, &mut row)?;
        let spread = pack_low(&row, &mut low);
        give(&low, spread)?;
    }
    Ok(())
}

/// Writes a matrix panel by panel.
fn panels<E: From<Error>>(
    constant: &Constant<'_>,
    kind: PanelType,
    inputs: usize,
    outputs: usize,
    by_columns: bool,
    mut give: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut panel = vec![0u8; inputs * kind.step_bytes()];
    let count = outputs.div_ceil(LANES);
    let lanes = |index: usize| LANES.min(outputs - index * LANES);
    if kind.is_integer() {
        let mut rows = vec![0i8; LANES * inputs];
        for index in 0..count {
            let rows = &mut rows[..lanes(index) * inputs];
            for (lane, row) in rows.chunks_exact_mut(inputs.max(1)).enumerate() {
                constant.read_integers(index * LANES + lane, row)?;
            }
            pack_integers(kind, rows, inputs, &mut panel);
            give(&panel)?;
        }
        return Ok(());
    }
    if constant.is_quantised() {
        // A panel by columns needs a part of every row, so all rows are decoded at once. Such a
        // matrix is small, because a large one would have its own panel type.
        let mut values = vec![0.0; if by_columns { inputs * outputs } else { inputs * LANES }];
        let mut decoded = vec![0.0; inputs * LANES];
        if by_columns {
            constant.read(0, &mut values)?;
        }
        for index in 0..count {
            if by_columns {
                pack_from_columns(&values, inputs, outputs, index, &mut decoded);
            } else {
                let rows = &mut values[..lanes(index) * inputs];
                constant.read(index * LANES * inputs, rows)?;
                pack_from_rows(rows, inputs, lanes(index), 0, &mut decoded);
            }
            give(&little_endian(&decoded))?;
        }
        return Ok(());
    }
    let bytes = constant.stored()?;
    for index in 0..count {
        match kind {
            PanelType::F32 => pack(elements_of::<4>(bytes), inputs, outputs, index, by_columns, &mut panel),
            _ => pack(elements_of::<2>(bytes), inputs, outputs, index, by_columns, &mut panel),
        }
        give(&panel)?;
    }
    Ok(())
}

/// Returns the stored values as little-endian byte groups, which need no alignment.
fn elements_of<const N: usize>(bytes: &[u8]) -> &[[u8; N]] {
    bytes.as_chunks::<N>().0
}

fn pack<const N: usize>(
    values: &[[u8; N]],
    inputs: usize,
    outputs: usize,
    index: usize,
    by_columns: bool,
    panel: &mut [u8],
) where
    [u8; N]: Default,
{
    let target = panel.as_chunks_mut::<N>().0;
    if by_columns {
        pack_from_columns(values, inputs, outputs, index, target);
    } else {
        pack_from_rows(values, inputs, outputs, index, target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{narrow_f16, widen_f16};

    #[test]
    fn small_numbers_are_products_at_their_places() {
        let mut random = fastrand::Rng::with_seed(9);
        for (outputs, blocks, kinds, group) in
            [(16_usize, 16_usize, 1, 16), (16, 8, 2, 8), (5, 21, 2, 8), (1, 1, 1, 2)]
        {
            let groups = blocks.div_ceil(group);
            let halves: Vec<f32> =
                (0..outputs * kinds * groups).map(|_| widen_f16(narrow_f16(random.f32() - 0.5))).collect();
            let numbers: Vec<f32> = (0..outputs * kinds * blocks)
                .map(|at| halves[at / blocks * groups + at % blocks / group] * f32::from(random.i8(-127..)))
                .collect();
            let panel = small(&numbers, blocks, kinds, group).expect("common factors");
            assert_eq!(panel.len(), kinds * (2 * groups + blocks) * LANES);
            for (at, number) in numbers.iter().enumerate() {
                let (lane, kind, block) = (at / blocks / kinds, at / blocks % kinds, at % blocks);
                let (start, first) = (block / group * kinds * (2 + group) * LANES, block / group * group);
                let count = group.min(blocks - first);
                let factor = &panel[start + 2 * (kind * LANES + lane)..][..2];
                let bytes = &panel[start + 2 * kinds * LANES..];
                let byte = bytes[(kind * count + block - first) * LANES + lane] as i8;
                let factor = widen_f16(u16::from_le_bytes([factor[0], factor[1]]));
                assert_eq!(factor * f32::from(byte), *number, "{outputs} outputs, number {at}");
            }
            // Numbers of missing outputs are zero.
            let factors = &panel[..2 * LANES];
            assert!(factors[2 * outputs..].iter().all(|byte| *byte == 0));
        }
        assert_eq!(small(&[1.0, 0.3], 2, 1, 2), None);
    }
}
