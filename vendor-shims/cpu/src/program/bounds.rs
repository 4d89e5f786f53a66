//! The memory of an entry, and the checks of operands that steps have in common.

use super::*;
use crate::kernels::elementwise::Broadcast;
use crate::kernels::integer::split::Split;
use crate::kernels::linear::PanelType;
use crate::simd::LANES;

pub type Checked = Result<(), String>;

/// The memory that steps of one entry may touch.
pub struct Bounds<'a> {
    pub entry: &'a Entry,
    /// Elements of each port.
    pub ports: Vec<u64>,
    /// Bytes of the weight section.
    pub constants: u64,
}

pub fn ensure(condition: bool, what: impl FnOnce() -> String) -> Checked {
    if condition { Ok(()) } else { Err(what()) }
}

/// Limit on empty loops: a step that loops over this many empty groups still ends quickly.
const MAX_EMPTY: u64 = 1 << 24;

pub fn product(factors: &[u64]) -> Result<u64, String> {
    // A zero factor must not hide a size that is otherwise unlimited, in memory or in time.
    let empty = factors.contains(&0);
    let most = if empty { MAX_EMPTY } else { MAX_VALUES };
    factors
        .iter()
        .filter(|factor| **factor != 0)
        .try_fold(1u64, |product, factor| product.checked_mul(*factor))
        .filter(|product| *product <= most)
        .map(|product| if empty { 0 } else { product })
        .ok_or_else(|| format!("{factors:?} values are too many"))
}

pub(super) fn at_most(count: usize, most: u64, what: &str) -> Checked {
    ensure(count as u64 <= most, || format!("{count} {what}, at most {most}"))
}

pub fn axes(lists: [&[usize]; 3]) -> Checked {
    for list in lists {
        at_most(list.len(), MAX_RANK as u64, "axes")?;
        ensure(list.iter().all(|size| *size as u64 <= MAX_VALUES), || {
            format!("{list:?} values are too many")
        })?;
    }
    Ok(())
}

impl Bounds<'_> {
    /// Checks that the operand is within its place and has at least `needed` elements, in any
    /// encoding.
    pub fn reads_stored(&self, operand: Operand, needed: u64) -> Checked {
        let end = operand.offset.checked_add(operand.elements);
        let available = match operand.place {
            OperandPlace::Arena => self.entry.arena,
            OperandPlace::Constant => self.constants / VALUE_BYTES,
            OperandPlace::Bound(port) => {
                *self.ports.get(port as usize).ok_or_else(|| format!("no binding {port}"))?
            }
        };
        ensure(end.is_some_and(|end| end <= available), || {
            format!("{operand:?} reaches beyond {available} values")
        })?;
        ensure(needed <= operand.elements, || format!("{needed} values are used of {operand:?}"))
    }

    /// Performs the checks of [`Bounds::reads_stored`] and requires unencoded values.
    pub fn reads(&self, operand: Operand, needed: u64) -> Checked {
        self.reads_stored(operand, needed)?;
        self.direct(operand)
    }

    fn direct(&self, operand: Operand) -> Checked {
        match operand.place {
            OperandPlace::Bound(port) if !self.entry.ports[port as usize].encoding.is_direct() => {
                Err(format!("{operand:?} is encoded"))
            }
            _ => Ok(()),
        }
    }

    /// Performs the checks of [`Bounds::writes_stored`] and requires unencoded values.
    pub fn writes(&self, operand: Operand, needed: u64, sources: &[Operand]) -> Checked {
        self.writes_stored(operand, needed, sources)?;
        self.direct(operand)
    }

    /// Performs the checks of [`Bounds::reads_stored`]. In addition, the place must be writable and
    /// must not overlap any of `sources`.
    pub fn writes_stored(&self, operand: Operand, needed: u64, sources: &[Operand]) -> Checked {
        self.reads_stored(operand, needed)?;
        let writable = match operand.place {
            OperandPlace::Arena => true,
            OperandPlace::Constant => false,
            OperandPlace::Bound(port) => self.entry.ports[port as usize].direction.is_writable(),
        };
        ensure(writable, || format!("{operand:?} is written"))?;
        for source in sources {
            let apart = source.place != operand.place
                || source.offset + source.elements <= operand.offset
                || operand.offset + operand.elements <= source.offset;
            ensure(apart || source.elements == 0 || operand.elements == 0, || {
                format!("{source:?} is read and {operand:?} written")
            })?;
        }
        Ok(())
    }

    pub fn most(&self, extent: Extent) -> Result<u64, String> {
        extent
            .most(self.entry.rows)
            .filter(|count| *count <= MAX_VALUES)
            .ok_or_else(|| format!("{extent:?} of {} rows", self.entry.rows))
    }

    pub fn broadcast(&self, broadcast: &Broadcast) -> Result<(u64, u64, u64), String> {
        let Broadcast { shape, a, b } = broadcast;
        axes([shape, a, b])?;
        ensure(!shape.is_empty() && shape.len() == a.len() && shape.len() == b.len(), || {
            "a broken broadcast".into()
        })?;
        let total = product(&shape.iter().map(|extent| *extent as u64).collect::<Vec<u64>>())?;
        let reach = |strides: &[usize]| {
            Broadcast::reach(shape, strides)
                .map(|reach| reach as u64)
                .ok_or_else(|| "a broadcast reaches too far".to_owned())
        };
        Ok((total, reach(a)?, reach(b)?))
    }

    pub fn packed(&self, weights: &PackedWeights) -> Checked {
        product(&[weights.outputs.div_ceil(LANES as u64), LANES as u64, weights.inputs])?;
        let fitting = match weights.scales {
            PackedScales::None => !weights.kind.is_integer() && weights.zero == 0,
            PackedScales::PerOutput { .. } => weights.kind.is_integer() && weights.zero == 0,
            PackedScales::Blocks { size, form, .. } => {
                matches!(weights.kind, PanelType::I8 | PanelType::I4)
                    && !matches!(form, NumberForm::Small { .. })
                    && (1..=weights.inputs.max(1)).contains(&size)
            }
        };
        ensure(fitting, || format!("{weights:?} do not fit their scales"))?;
        let bytes = weights.bytes().ok_or_else(|| format!("{weights:?} are too many"))?;
        self.in_section(weights.offset, weights.scales, bytes)
            .map_err(|reason| format!("{weights:?} {reason}"))
    }

    pub fn tiles(&self, weights: &PackedTiles) -> Checked {
        let fitting = match weights.scales {
            PackedScales::None => false,
            PackedScales::PerOutput { .. } => weights.kind.suits(weights.inputs, None),
            PackedScales::Blocks { size, .. } => {
                (1..=weights.inputs.max(1)).contains(&size) && weights.kind.suits(weights.inputs, Some(size))
            }
        };
        ensure(fitting, || format!("{:?} with {:?}", weights.kind, weights.scales))?;
        // Weights are at most 256 in magnitude, so the sums of units are within 32 bits.
        ensure((-128..=128).contains(&weights.base), || format!("integers plus {}", weights.base))?;
        // Padding makes a row at most sixteen times as long, so the kernels' computations cannot
        // overflow.
        product(&[weights.outputs.div_ceil(LANES as u64), LANES as u64, weights.inputs])?;
        let bytes = weights.bytes().ok_or_else(|| format!("{weights:?} have no layout"))?;
        self.in_section(weights.offset, weights.scales, bytes)
            .map_err(|reason| format!("{weights:?} {reason}"))
    }

    pub fn split(&self, weights: &PackedSplit) -> Checked {
        ensure(Split::takes(weights.inputs), || format!("{} inputs in two parts", weights.inputs))?;
        product(&[weights.outputs.div_ceil(LANES as u64), LANES as u64, weights.inputs])?;
        for (offset, bytes) in weights.parts() {
            let end = offset.checked_add(bytes);
            ensure(end.is_some_and(|end| end <= self.constants) && offset % 64 == 0, || {
                format!("{weights:?} reach beyond {} bytes", self.constants)
            })?;
        }
        Ok(())
    }

    /// Checks that weights and scales of these lengths are within the weight section.
    fn in_section(&self, weights: u64, scales: PackedScales, bytes: [u64; 2]) -> Checked {
        let scales = match scales {
            PackedScales::None => 0,
            PackedScales::PerOutput { offset } | PackedScales::Blocks { offset, .. } => offset,
        };
        for (offset, bytes) in [weights, scales].into_iter().zip(bytes) {
            let end = offset.checked_add(bytes);
            ensure(end.is_some_and(|end| end <= self.constants) && offset % 64 == 0, || {
                format!("reach beyond {} bytes", self.constants)
            })?;
        }
        Ok(())
    }
}
