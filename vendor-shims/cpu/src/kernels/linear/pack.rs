use crate::simd::LANES;

/// Stored type of panel values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PanelType {
    /// binary32
    F32,
    /// bfloat16
    Bf16,
    /// binary16
    F16,
}

impl PanelType {
    /// Bytes of one value.
    pub const fn bytes(self) -> usize {
        match self {
            PanelType::F32 => 4,
            PanelType::Bf16 | PanelType::F16 => 2,
        }
    }
}

/// Values that a packed `[outputs, inputs]` matrix takes, the last panel filled up.
///
/// # Panics
/// On overflow; callers bound the dimensions first.
pub fn packed_elements(inputs: usize, outputs: usize) -> usize {
    outputs.div_ceil(LANES) * LANES * inputs
}

/// Packs one panel: `target[k][lane] = value(output = panel·16 + lane, k)`, zero beyond the outputs.
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

/// Packs panel `panel` of a row-major `[outputs, inputs]` matrix into `target` (`inputs · 16` values).
///
/// # Panics
/// When a slice is shorter than the dimensions say.
pub fn pack_from_rows<T: Copy + Default>(
    source: &[T],
    inputs: usize,
    outputs: usize,
    panel: usize,
    target: &mut [T],
) {
    pack_panel(inputs, outputs, panel, |output, k| source[output * inputs + k], target);
}

/// Packs panel `panel` of a row-major `[inputs, outputs]` matrix into `target` (`inputs · 16` values).
///
/// # Panics
/// When a slice is shorter than the dimensions say.
pub fn pack_from_columns<T: Copy + Default>(
    source: &[T],
    inputs: usize,
    outputs: usize,
    panel: usize,
    target: &mut [T],
) {
    pack_panel(inputs, outputs, panel, |output, k| source[k * outputs + output], target);
}
