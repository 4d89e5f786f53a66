use crate::names::names;

names! {
    /// Element type of a tensor as stored in memory, little-endian.
    DType, "element type" {
        /// IEEE 754 binary32.
        F32 = "f32",
        /// IEEE 754 binary16.
        F16 = "f16",
        /// bfloat16: the upper half of a binary32.
        Bf16 = "bf16",
        /// Signed 32-bit integer.
        I32 = "i32",
        /// Signed 16-bit integer.
        I16 = "i16",
        /// Unsigned 16-bit integer.
        U16 = "u16",
        /// Signed 8-bit integer.
        I8 = "i8",
        /// Unsigned 8-bit integer.
        U8 = "u8",
        /// Signed 64-bit integer.
        I64 = "i64",
        /// Signed 4-bit integer, for weights only. See [`DType::packed_bytes`].
        I4 = "i4",
        /// Signed 2-bit integer, for weights only. See [`DType::packed_bytes`].
        I2 = "i2",
    }
}

impl DType {
    /// Returns the number of bits of one element.
    pub const fn bits(self) -> u64 {
        match self {
            DType::I64 => 64,
            DType::F32 | DType::I32 => 32,
            DType::F16 | DType::Bf16 | DType::I16 | DType::U16 => 16,
            DType::I8 | DType::U8 => 8,
            DType::I4 => 4,
            DType::I2 => 2,
        }
    }

    /// Returns the number of bytes of one element. For packed types this is 1, the byte that
    /// contains the element: use [`DType::packed_bytes`] for sizes.
    pub const fn bytes(self) -> u64 {
        self.bits().div_ceil(8)
    }

    /// Returns whether several elements share a byte. Only weights are stored this way: two's
    /// complement, low bits first, every row (the last axis) padded with zero bits to a whole byte.
    pub const fn is_packed(self) -> bool {
        self.bits() < 8
    }

    /// Returns the size in bytes of a dense row-major tensor, or `None` if it does not fit 64 bits.
    pub fn packed_bytes(self, shape: &[u64]) -> Option<u64> {
        let Some((last, outer)) = shape.split_last() else { return Some(self.bytes()) };
        let row = last.checked_mul(self.bits())?.div_ceil(8);
        outer.iter().try_fold(row, |bytes, &extent| bytes.checked_mul(extent))
    }

    /// Returns the smallest and largest stored value of the integer types that an encoded tensor
    /// may have, or `None` for floats and indices.
    pub const fn raw_range(self) -> Option<(i32, i32)> {
        match self {
            DType::I16 => Some((i16::MIN as i32, i16::MAX as i32)),
            DType::U16 => Some((0, u16::MAX as i32)),
            DType::I8 => Some((i8::MIN as i32, i8::MAX as i32)),
            DType::U8 => Some((0, u8::MAX as i32)),
            DType::I4 => Some((-8, 7)),
            DType::I2 => Some((-2, 1)),
            _ => None,
        }
    }

    /// Returns the frozen number that identifies the type in the shim contract. Numbers are never
    /// reassigned.
    pub const fn number(self) -> u32 {
        match self {
            DType::F32 => 1,
            DType::F16 => 2,
            DType::Bf16 => 3,
            DType::I32 => 4,
            DType::I16 => 5,
            DType::U16 => 6,
            DType::I8 => 7,
            DType::U8 => 8,
            DType::I64 => 9,
            DType::I4 => 10,
            DType::I2 => 11,
        }
    }

    /// Returns whether values are floating-point.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::Bf16)
    }

    /// Returns whether an activation, a state or a tensor at a shard boundary may have this type.
    /// True for floats and for integers of 8 and 16 bits, false for indices and packed weights.
    pub const fn is_encodable(self) -> bool {
        !matches!(self, DType::I32 | DType::I64 | DType::I4 | DType::I2)
    }
}
