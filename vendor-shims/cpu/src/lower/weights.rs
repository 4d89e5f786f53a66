use std::collections::{HashMap, HashSet};

use shardwright_shim_abi::{EntryView, Error, WeightView};

use super::constant::{Constant, Scaling};
use crate::error::limit;
use crate::kernels::integer::split::{self, Split, pack_high, pack_low, panel_bytes, row_bytes};
use crate::kernels::integer::{Geometry, IntegerType, pack_tiles};
use crate::kernels::linear::{PanelType, pack_from_columns, pack_from_rows, pack_integers, packed_elements};
use crate::program::{
    MAX_VALUES, Operand, PackedScales, PackedSplit, PackedTiles, PackedWeights, Place, VALUE_BYTES,
};
use crate::simd::LANES;

/// Alignment of packed matrices. Page boundaries allow each matrix to be mapped, locked or dropped
/// separately.
const PAGE: u64 = 4096;
/// Alignment of small values, the size of a cache line.
const LINE: u64 = 64;
/// Number of values written at a time.
const PIECE: usize = 1 << 14;

/// The weight section. It contains every form of every weight once, in the order of first use.
#[derive(Default)]
pub struct Weights<'a> {
    items: Vec<Item<'a>>,
    known: HashMap<Key, usize>,
    /// Completely checked constants, by identity of the weight.
    complete: HashMap<usize, Constant<'a>>,
    length: u64,
    /// Identities of weights that entries of many rows use.
    many: HashSet<usize>,
}

struct Item<'a> {
    offset: u64,
    length: u64,
    form: Form<'a>,
}

enum Form<'a> {
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
        /// Whether the numbers are written as binary16 rather than binary32.
        half: bool,
        /// Number of scales and minimums of a row.
        numbers: usize,
        blocks: usize,
        outputs: usize,
    },
    /// Dense f32 values.
    Wide {
        constant: Constant<'a>,
    },
    Literal(Vec<f32>),
}

#[derive(PartialEq, Eq, Hash)]
enum Key {
    Panels { weight: usize, by_columns: bool, kind: PanelType },
    Tiles { weight: usize },
    HighParts { weight: usize },
    LowParts { weight: usize },
    Spreads { weight: usize },
    Scales { weight: usize },
    Wide { weight: usize },
    Literal(Vec<u32>),
}

impl<'a> Weights<'a> {
    /// Creates an empty section for the weights of these entries.
    pub fn of(entries: impl Iterator<Item = EntryView<'a>>) -> Self {
        let many = entries.filter(|entry| entry.rows() > split::ROWS as u64);
        let many = many.flat_map(|entry| entry.constants()).map(|(_, weight)| weight.identity()).collect();
        Weights { many, ..Weights::default() }
    }

    /// Returns the bytes of the section.
    pub fn length(&self) -> u64 {
        self.length
    }

    fn complete(&mut self, weight: WeightView<'a>) -> Result<Constant<'a>, Error> {
        if let Some(constant) = self.complete.get(&weight.identity()) {
            return Ok(*constant);
        }
        let constant = Constant::complete(weight)?;
        self.complete.insert(weight.identity(), constant);
        Ok(constant)
    }

    fn place(
        &mut self,
        key: Key,
        length: u64,
        alignment: u64,
        form: impl FnOnce() -> Form<'a>,
    ) -> Result<u64, Error> {
        if let Some(&index) = self.known.get(&key) {
            return Ok(self.items[index].offset);
        }
        let offset = self.length.next_multiple_of(alignment);
        let end = offset.checked_add(length).filter(|end| *end <= MAX_VALUES * VALUE_BYTES);
        self.length = end.ok_or_else(|| limit("weight-bytes", u64::MAX, MAX_VALUES * VALUE_BYTES))?;
        self.known.insert(key, self.items.len());
        self.items.push(Item { offset, length, form: form() });
        Ok(offset)
    }

    /// Adds a matrix in panels, in its own type if panels support it, otherwise as f32. The matrix
    /// is stored as `[outputs, inputs]`, or as `[inputs, outputs]` with `by_columns`.
    pub fn panels(&mut self, weight: WeightView<'a>, by_columns: bool) -> Result<PackedWeights, Error> {
        let constant = self.complete(weight)?;
        let kind =
            constant.matrix(!by_columns).map_err(|reason| Error::invalid_weight(weight.name(), reason))?;
        let &[rows, columns] = weight.shape() else {
            let reason = format!("{:?} is not a matrix", weight.shape());
            return Err(Error::invalid_weight(weight.name(), reason));
        };
        let (outputs, inputs) = if by_columns { (columns, rows) } else { (rows, columns) };
        let identity = weight.identity();
        // The length is limited: at most fifteen more rows than the weight has, each of the same
        // length.
        let length = packed_elements(inputs as usize, outputs as usize) as u64 / LANES as u64
            * kind.step_bytes() as u64;
        let key = Key::Panels { weight: identity, by_columns, kind };
        let offset = self.place(key, length, PAGE, || Form::Panels {
            constant,
            kind,
            inputs: inputs as usize,
            outputs: outputs as usize,
            by_columns,
        })?;
        let scales = match kind.is_integer() {
            true => self.scales(identity, constant, inputs, outputs)?,
            false => PackedScales::None,
        };
        Ok(PackedWeights { offset, kind, scales, inputs, outputs })
    }

    /// Adds a matrix `[outputs, inputs]` of integers in tiles.
    pub fn tiles(&mut self, weight: WeightView<'a>) -> Result<PackedTiles, Error> {
        let constant = self.complete(weight)?;
        let invalid = |reason: String| Error::invalid_weight(weight.name(), reason);
        let kind = constant.integers().map_err(invalid)?;
        let &[outputs, inputs] = weight.shape() else {
            return Err(invalid(format!("{:?} is not a matrix", weight.shape())));
        };
        let identity = weight.identity();
        let size = match constant.scaling() {
            Some(Scaling::Block { size, .. }) => Some(size.min(inputs.max(1)) as usize),
            _ => None,
        };
        let geometry = Geometry::new(inputs as usize, size);
        // The length is limited: at most sixteen times the rows of the weight, each at most sixteen
        // times as long.
        let length = outputs.div_ceil(LANES as u64) * geometry.panel_bytes(kind) as u64;
        let outputs_here = outputs as usize;
        let offset = self.place(Key::Tiles { weight: identity }, length, PAGE, || Form::Tiles {
            constant,
            kind,
            geometry,
            outputs: outputs_here,
        })?;
        let scales = self.scales(identity, constant, inputs, outputs)?;
        Ok(PackedTiles { offset, kind, scales, inputs, outputs })
    }

    /// Checks whether a matrix `[outputs, inputs]` of signed bytes can be split. Entries of many
    /// rows need whole bytes, and no weight is stored twice.
    pub fn splits(&mut self, weight: WeightView<'a>) -> Result<bool, Error> {
        let constant = self.complete(weight)?;
        let &[_, inputs] = weight.shape() else { return Ok(false) };
        let whole = !matches!(constant.scaling(), Some(Scaling::Block { .. }));
        let few = !self.many.contains(&weight.identity());
        Ok(constant.integers() == Ok(IntegerType::I8) && whole && few && Split::takes(inputs))
    }

    /// Adds a matrix `[outputs, inputs]` of signed bytes in two parts. Returns `None` if it [cannot
    /// be split](Weights::splits).
    pub fn split(&mut self, weight: WeightView<'a>) -> Result<Option<PackedSplit>, Error> {
        let &[outputs, inputs] = weight.shape() else { return Ok(None) };
        if !self.splits(weight)? {
            return Ok(None);
        }
        let constant = self.complete(weight)?;
        let weight = weight.identity();
        let PackedScales::PerOutput { offset: scales } = self.scales(weight, constant, inputs, outputs)?
        else {
            return Ok(None);
        };
        // The dimensions alone determine the lengths of the parts.
        let lengths = PackedSplit { high: 0, low: 0, spread: 0, scales: 0, inputs, outputs }.parts();
        let [high, low, spread, _] = lengths.map(|(_, length)| length);
        let [inputs_here, outputs_here] = [inputs, outputs].map(|extent| extent as usize);
        let high = self.place(Key::HighParts { weight }, high, PAGE, || Form::HighParts {
            constant,
            inputs: inputs_here,
            outputs: outputs_here,
        })?;
        let low = self.place(Key::LowParts { weight }, low, PAGE, || Form::LowParts {
            constant,
            inputs: inputs_here,
            outputs: outputs_here,
        })?;
        let spread = self.place(Key::Spreads { weight }, spread, LINE, || Form::Spreads {
            constant,
            inputs: inputs_here,
            outputs: outputs_here,
        })?;
        Ok(Some(PackedSplit { high, low, spread, scales, inputs, outputs }))
    }

    /// Adds the scales of integers, per output or per block.
    fn scales(
        &mut self,
        weight: usize,
        constant: Constant<'a>,
        inputs: u64,
        outputs: u64,
    ) -> Result<PackedScales, Error> {
        if let Some(Scaling::Block { size, minimum }) = constant.scaling() {
            // A block that is longer than a row covers the whole row.
            let size = size.min(inputs.max(1));
            let blocks = inputs.div_ceil(size);
            let numbers = blocks * if minimum { 2 } else { 1 };
            let half = constant.has_half_scales();
            let bytes = if half { 2 } else { VALUE_BYTES };
            let length = outputs.div_ceil(LANES as u64) * LANES as u64 * numbers * bytes;
            let offset = self.place(Key::Scales { weight }, length, LINE, || Form::Blocks {
                constant,
                half,
                numbers: numbers as usize,
                blocks: blocks as usize,
                outputs: outputs as usize,
            })?;
            let zero = constant.zero_point();
            return Ok(match constant.is_affine() {
                true => PackedScales::Affine { offset, size, zero, minimum, half },
                false => PackedScales::PerBlock { offset, size },
            });
        }
        let offset = self.place(Key::Scales { weight }, outputs * VALUE_BYTES, LINE, || {
            Form::OutputScales { constant, outputs: outputs as usize }
        })?;
        Ok(PackedScales::PerOutput { offset })
    }

    /// Adds any weight as dense f32.
    pub fn wide(&mut self, weight: WeightView<'a>) -> Result<Operand, Error> {
        let constant = self.complete(weight)?;
        constant.values().map_err(|reason| Error::invalid_weight(weight.name(), reason))?;
        let elements = constant.elements();
        let key = Key::Wide { weight: weight.identity() };
        let offset = self.place(key, elements * VALUE_BYTES, LINE, || Form::Wide { constant })?;
        Ok(Operand { place: Place::Constant, offset: offset / VALUE_BYTES, elements })
    }

    /// Returns the first value of a weight, which becomes part of a step.
    pub fn scalar(&mut self, weight: WeightView<'a>) -> Result<f32, Error> {
        let mut value = [0.0];
        self.complete(weight)?.read(0, &mut value)?;
        Ok(value[0])
    }

    /// Adds values that are computed from attributes.
    pub fn literal(&mut self, values: Vec<f32>) -> Result<Operand, Error> {
        let elements = values.len() as u64;
        let key = Key::Literal(values.iter().map(|value| value.to_bits()).collect());
        let offset = self.place(key, elements * VALUE_BYTES, LINE, || Form::Literal(values))?;
        Ok(Operand { place: Place::Constant, offset: offset / VALUE_BYTES, elements })
    }

    /// Writes the section from its first byte to its last. `sink` receives pieces of at most a few
    /// panels.
    pub fn write<E: From<Error>>(&self, mut sink: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut at = 0u64;
        for item in &self.items {
            let gap = vec![0u8; (item.offset - at) as usize];
            sink(&gap)?;
            let mut written = 0u64;
            let mut give = |bytes: &[u8]| {
                written += bytes.len() as u64;
                sink(bytes)
            };
            match &item.form {
                Form::Literal(values) => give(&little_endian(values))?,
                Form::Wide { constant } => {
                    let elements = constant.elements() as usize;
                    let mut values = vec![0.0; PIECE.min(elements)];
                    for first in (0..elements).step_by(PIECE) {
                        let count = PIECE.min(elements - first);
                        constant.read(first, &mut values[..count])?;
                        give(&little_endian(&values[..count]))?;
                    }
                }
                Form::OutputScales { constant, outputs } => {
                    let scales = constant.scales()?;
                    let of = |output: usize| scales.get(output).or(scales.first()).copied().unwrap_or(0.0);
                    give(&little_endian(&(0..*outputs).map(of).collect::<Vec<f32>>()))?;
                }
                Form::Blocks { constant, half, numbers, blocks, outputs } => {
                    let (numbers, blocks, outputs) = (*numbers, *blocks, *outputs);
                    match half {
                        true => {
                            let stored = constant.half_scales()?.into_iter().map(u16::to_le_bytes).collect();
                            by_block::<2, E>(stored, numbers, blocks, outputs, &mut give)?;
                        }
                        false => {
                            let stored = constant.scales()?.into_iter().map(f32::to_le_bytes).collect();
                            by_block::<4, E>(stored, numbers, blocks, outputs, &mut give)?;
                        }
                    }
                }
                Form::Tiles { constant, kind, geometry, outputs } => {
                    tiles(constant, *kind, *geometry, *outputs, &mut give)?;
                }
                Form::HighParts { constant, inputs, outputs } => {
                    high_parts(constant, *inputs, *outputs, &mut give)?;
                }
                Form::LowParts { constant, inputs, outputs } => {
                    low_parts(constant, *inputs, *outputs, |low, _| give(low))?;
                }
                Form::Spreads { constant, inputs, outputs } => {
                    low_parts(constant, *inputs, *outputs, |_, spread| give(&[spread]))?;
                }
                Form::Panels { constant, kind, inputs, outputs, by_columns } => {
                    panels(constant, *kind, *inputs, *outputs, *by_columns, &mut give)?;
                }
            }
            debug_assert_eq!(written, item.length, "the layout foresaw what was written");
            at = item.offset + written;
        }
        Ok(())
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

/// Writes a matrix of integers in tiles, panel by panel.
fn tiles<E: From<Error>>(
    constant: &Constant<'_>,
    kind: IntegerType,
    geometry: Geometry,
    outputs: usize,
    mut give: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut panel = vec![0u8; geometry.panel_bytes(kind)];
    let mut rows = vec![0i8; LANES * geometry.inputs];
    for index in 0..outputs.div_ceil(LANES) {
        let rows = &mut rows[..LANES.min(outputs - index * LANES) * geometry.inputs];
        for (lane, row) in rows.chunks_exact_mut(geometry.inputs.max(1)).enumerate() {
            constant.read_integers(index * LANES + lane, row)?;
        }
        pack_tiles(kind, geometry, rows, &mut panel);
        give(&panel)?;
    }
    Ok(())
}

/// Writes the first parts of signed bytes, panel by panel.
fn high_parts<E: From<Error>>(
    constant: &Constant<'_>,
    inputs: usize,
    outputs: usize,
    mut give: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut panel = vec![0u8; panel_bytes(inputs)];
    let mut rows = vec![0i8; LANES * inputs];
    for index in 0..outputs.div_ceil(LANES) {
        let rows = &mut rows[..LANES.min(outputs - index * LANES) * inputs];
        for (lane, row) in rows.chunks_exact_mut(inputs).enumerate() {
            constant.read_integers(index * LANES + lane, row)?;
        }
        pack_high(rows, inputs, &mut panel);
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
