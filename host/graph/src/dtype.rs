use serde::{Deserialize, Serialize};

/// Element type of a tensor as it lies in memory, little-endian.
///
/// The numbers are part of the shim contract and are never renumbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u32)]
pub enum DType {
    /// IEEE 754 binary32.
    F32 = 1,
    /// IEEE 754 binary16.
    F16 = 2,
    /// The upper half of a binary32.
    Bf16 = 3,
    /// Signed 32 bit.
    I32 = 4,
    /// Signed 16 bit.
    I16 = 5,
    /// Unsigned 16 bit.
    U16 = 6,
    /// Signed 8 bit.
    I8 = 7,
    /// Unsigned 8 bit.
    U8 = 8,
    /// Signed 64 bit.
    I64 = 9,
}

impl DType {
    /// Every type, in number order.
    pub const ALL: [DType; 9] = [
        DType::F32,
        DType::F16,
        DType::Bf16,
        DType::I32,
        DType::I16,
        DType::U16,
        DType::I8,
        DType::U8,
        DType::I64,
    ];

    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::Bf16 | DType::I16 | DType::U16 => 2,
            DType::I8 | DType::U8 => 1,
        }
    }

    /// The frozen number that crosses the shim contract.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Whether values are floating-point.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::Bf16)
    }

    /// Lower-case name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::I32 => "i32",
            DType::I16 => "i16",
            DType::U16 => "u16",
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::I64 => "i64",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
