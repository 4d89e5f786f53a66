use serde::{Deserialize, Serialize};

use crate::simd::LANES;

/// Stored type of panel values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PanelType {
    F32,
    Bf16,
    F16,
    I8,
    I4,
    I2,
}

impl PanelType {
    /// Returns the bits of one value.
    pub const fn bits(self) -> usize {
        match self {
            PanelType::F32 => 32,
            PanelType::Bf16 | PanelType::F16 => 16,
            PanelType::I8 => 8,
            PanelType::I4 => 4,
            PanelType::I2 => 2,
        }
    }

    /// Returns the bytes of one step of a panel, which is sixteen values.
    pub const fn step_bytes(self) -> usize {
        self.bits() * LANES / 8
    }

    /// Checks whether values are integers with scales.
    pub const fn is_integer(self) -> bool {
        matches!(self, PanelType::I8 | PanelType::I4 | PanelType::I2)
    }

    /// Returns the smallest stored integer, or zero for floats. The largest stored integer is one
    /// below its magnitude.
    pub const fn least(self) -> i32 {
        if self.is_integer() { -(1 << (self.bits() - 1)) } else { 0 }
    }

    /// Returns the lower-case name that reports use.
    pub const fn name(self) -> &'static str {
        match self {
            PanelType::F32 => "f32",
            PanelType::Bf16 => "bf16",
            PanelType::F16 => "f16",
            PanelType::I8 => "i8",
            PanelType::I4 => "i4",
            PanelType::I2 => "i2",
        }
    }
}

/// Returns the number of values of a packed `[outputs, inputs]` matrix, with the last panel padded.
///
/// # Panics
/// On overflow. Callers limit the dimensions first.
pub fn packed_elements(inputs: usize, outputs: usize) -> usize {
    outputs.div_ceil(LANES) * LANES * inputs
}

/// Packs one panel: `target[k][lane] = value(output = panel·16 + lane, k)`, and zero beyond the
/// outputs.
fn pack_panel<T: Copy + Default>(
    inputs: usize,
    outputs: usize,
    panel: usize,
    value: impl Fn(usize, usize) -> T,
    target: &mut [T],
) {
    for k in 0..inputs {
        for lane in 0..LANES {
            let output = panel * LANES + lane;
            target[k * LANES + lane] = if output < outputs { value(output, k) } else { T::default() };
        }
    }
}

/// Packs panel `panel` of a row-major `[outputs, inputs]` matrix into `target` (`inputs · 16`
/// values).
///
/// # Panics
/// When a slice is shorter than the dimensions require.
pub fn pack_from_rows<T: Copy + Default>(
    source: &[T],
    inputs: usize,
    outputs: usize,
    panel: usize,
    target: &mut [T],
) {
    pack_panel(inputs, outputs, panel, |output, k| source[output * inputs + k], target);
}

/// Packs one panel of integers. `rows` contains up to sixteen rows of `inputs` values, and missing
/// rows become zeros. `target` has [`PanelType::step_bytes`] per input.
///
/// # Panics
/// When `kind` is not an integer type, a value is outside its range, or the target is shorter than
/// the dimensions require.
pub fn pack_integers(kind: PanelType, rows: &[i8], inputs: usize, target: &mut [u8]) {
    assert!(kind.is_integer(), "integers in panels of {}", kind.name());
    let (bits, step) = (kind.bits(), kind.step_bytes());
    let mask = u8::MAX >> (8 - bits);
    let target = &mut target[..inputs * step];
    target.fill(0);
    for (lane, row) in rows.chunks_exact(inputs.max(1)).take(LANES).enumerate() {
        // Lanes that share a byte are `step` apart, so that widening shifts whole registers.
        let (byte, shift) = (lane % step, lane / step * bits);
        for (k, &value) in row.iter().enumerate() {
            let range = kind.least()..-kind.least();
            assert!(range.contains(&i32::from(value)), "{value} in panels of {}", kind.name());
            target[k * step + byte] |= (value as u8 & mask) << shift;
        }
    }
}

/// Packs panel `panel` of a row-major `[inputs, outputs]` matrix into `target` (`inputs · 16`
/// values).
///
/// # Panics
/// When a slice is shorter than the dimensions require.
pub fn pack_from_columns<T: Copy + Default>(
    source: &[T],
    inputs: usize,
    outputs: usize,
    panel: usize,
    target: &mut [T],
) {
    pack_panel(inputs, outputs, panel, |output, k| source[k * outputs + output], target);
}
