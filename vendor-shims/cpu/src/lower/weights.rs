use std::collections::HashMap;

use shardwright_shim_abi::WeightView;
use shardwright_shim_abi::raw::{SW_DTYPE_BF16, SW_DTYPE_F16, SW_DTYPE_F32};

use crate::error::CpuError;
use crate::kernels::linear::{PanelType, pack_from_columns, pack_from_rows, packed_elements};
use crate::program::{MAX_VALUES, Operand, PackedWeights, Place, VALUE_BYTES};
use crate::simd::{LANES, widen_bf16, widen_f16};

/// Packed matrices start on pages, so that each can be mapped, locked or dropped alone.
const PAGE: u64 = 4096;
/// Small values start on cache lines.
const LINE: u64 = 64;

/// The weight section: every form of every weight once, laid out in the order of first use.
#[derive(Default)]
pub struct Weights<'a> {
    items: Vec<Item<'a>>,
    known: HashMap<Key, usize>,
    length: u64,
}

struct Item<'a> {
    offset: u64,
    length: u64,
    form: Form<'a>,
}

enum Form<'a> {
    Panels { weight: WeightView<'a>, packed: PackedWeights, by_columns: bool },
    Wide { weight: WeightView<'a> },
    Literal(Vec<f32>),
}

#[derive(PartialEq, Eq, Hash)]
enum Key {
    Panels { weight: usize, by_columns: bool },
    Wide { weight: usize },
    Literal(Vec<u32>),
}

/// Type of panels for a stored type.
fn panel_type(dtype: u32) -> Option<PanelType> {
    match dtype {
        SW_DTYPE_F32 => Some(PanelType::F32),
        SW_DTYPE_BF16 => Some(PanelType::Bf16),
        SW_DTYPE_F16 => Some(PanelType::F16),
        _ => None,
    }
}

fn elements(weight: &WeightView<'_>) -> Result<u64, CpuError> {
    let elements = weight.shape().iter().try_fold(1u64, |product, extent| product.checked_mul(*extent));
    let elements = elements.filter(|elements| *elements <= MAX_VALUES);
    let invalid = |reason: String| CpuError::InvalidWeight { name: weight.name().to_owned(), reason };
    let elements = elements.ok_or_else(|| invalid(format!("{:?} values are too many", weight.shape())))?;
    let kind = panel_type(weight.dtype())
        .filter(|_| weight.quantisation().is_none())
        .ok_or_else(|| invalid(format!("element type {} is not floating-point", weight.dtype())))?;
    if weight.length() != elements * kind.bytes() as u64 {
        return Err(invalid(format!(
            "{} bytes for {:?} of {} bytes each",
            weight.length(),
            weight.shape(),
            kind.bytes()
        )));
    }
    Ok(elements)
}

impl<'a> Weights<'a> {
    /// Bytes of the section.
    pub fn length(&self) -> u64 {
        self.length
    }

    fn place(
        &mut self,
        key: Key,
        length: u64,
        alignment: u64,
        form: impl FnOnce(u64) -> Form<'a>,
    ) -> Result<u64, CpuError> {
        if let Some(&index) = self.known.get(&key) {
            return Ok(self.items[index].offset);
        }
        let offset = self.length.next_multiple_of(alignment);
        let end = offset.checked_add(length).filter(|end| *end <= MAX_VALUES * VALUE_BYTES);
        let limit =
            || CpuError::Limit { limit: "weight-bytes", value: u64::MAX, max: MAX_VALUES * VALUE_BYTES };
        self.length = end.ok_or_else(limit)?;
        self.known.insert(key, self.items.len());
        self.items.push(Item { offset, length, form: form(offset) });
        Ok(offset)
    }

    /// A matrix in panels, in its own type. Stored `[outputs, inputs]`, or `[inputs, outputs]` when `by_columns`.
    pub fn panels(&mut self, weight: WeightView<'a>, by_columns: bool) -> Result<PackedWeights, CpuError> {
        elements(&weight)?;
        let (&[rows, columns], Some(kind)) = (weight.shape(), panel_type(weight.dtype())) else {
            let reason = format!("{:?} is no matrix", weight.shape());
            return Err(CpuError::InvalidWeight { name: weight.name().to_owned(), reason });
        };
        let (outputs, inputs) = if by_columns { (columns, rows) } else { (rows, columns) };
        // Within bounds: at most fifteen more rows than the weight has, each as long as one of its own.
        let length = packed_elements(inputs as usize, outputs as usize) as u64 * kind.bytes() as u64;
        let packed = |offset| PackedWeights { offset, kind, inputs, outputs };
        let key = Key::Panels { weight: weight.identity(), by_columns };
        let offset = self.place(key, length, PAGE, |offset| Form::Panels {
            weight,
            packed: packed(offset),
            by_columns,
        })?;
        Ok(packed(offset))
    }

    /// Any weight as dense f32.
    pub fn wide(&mut self, weight: WeightView<'a>) -> Result<Operand, CpuError> {
        let elements = elements(&weight)?;
        let key = Key::Wide { weight: weight.identity() };
        let offset = self.place(key, elements * VALUE_BYTES, LINE, |_| Form::Wide { weight })?;
        Ok(Operand { place: Place::Constant, offset: offset / VALUE_BYTES, elements })
    }

    /// Numbers that follow from attributes.
    pub fn literal(&mut self, values: Vec<f32>) -> Result<Operand, CpuError> {
        let elements = values.len() as u64;
        let key = Key::Literal(values.iter().map(|value| value.to_bits()).collect());
        let offset = self.place(key, elements * VALUE_BYTES, LINE, |_| Form::Literal(values))?;
        Ok(Operand { place: Place::Constant, offset: offset / VALUE_BYTES, elements })
    }

    /// Writes the section from its first byte to its last; `sink` gets pieces of at most a few panels.
    pub fn write<E: From<CpuError>>(&self, mut sink: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut at = 0u64;
        for item in &self.items {
            let gap = vec![0u8; (item.offset - at) as usize];
            sink(&gap)?;
            let mut written = 0u64;
            match &item.form {
                Form::Literal(values) => {
                    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                    written += bytes.len() as u64;
                    sink(&bytes)?;
                }
                Form::Wide { weight } => {
                    let bytes = stored(weight)?;
                    let step =
                        weight.length() as usize / weight.shape().iter().product::<u64>().max(1) as usize;
                    let dtype = weight.dtype();
                    for chunk in bytes.chunks(step << 14) {
                        let wide: Vec<u8> = chunk
                            .chunks_exact(step)
                            .flat_map(|value| match (dtype, value) {
                                (SW_DTYPE_BF16, &[a, b]) => {
                                    widen_bf16(u16::from_le_bytes([a, b])).to_le_bytes()
                                }
                                (SW_DTYPE_F16, &[a, b]) => {
                                    widen_f16(u16::from_le_bytes([a, b])).to_le_bytes()
                                }
                                (_, &[a, b, c, d]) => [a, b, c, d],
                                _ => [0; 4],
                            })
                            .collect();
                        written += wide.len() as u64;
                        sink(&wide)?;
                    }
                }
                Form::Panels { weight, packed, by_columns } => {
                    let bytes = stored(weight)?;
                    let step = packed.kind.bytes();
                    let (inputs, outputs) = (packed.inputs as usize, packed.outputs as usize);
                    let mut panel = vec![0u8; inputs * LANES * step];
                    for index in 0..outputs.div_ceil(LANES) {
                        match step {
                            4 => {
                                pack(elements_of::<4>(bytes), inputs, outputs, index, *by_columns, &mut panel)
                            }
                            _ => {
                                pack(elements_of::<2>(bytes), inputs, outputs, index, *by_columns, &mut panel)
                            }
                        }
                        written += panel.len() as u64;
                        sink(&panel)?;
                    }
                }
            }
            debug_assert_eq!(written, item.length, "the layout foresaw what was written");
            at = item.offset + written;
        }
        Ok(())
    }
}

fn stored<'a>(weight: &WeightView<'a>) -> Result<&'a [u8], CpuError> {
    weight
        .bytes()
        .map_err(|error| CpuError::InvalidWeight { name: weight.name().to_owned(), reason: error.message })
}

/// The stored values as little-endian byte groups, which need no alignment.
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
