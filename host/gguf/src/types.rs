//! The element types of the format, with ggml's numbers.

use std::fmt;

macro_rules! types {
    ($($case:ident $number:literal $name:literal $values:literal $bytes:literal;)*) => {
        /// An element type: blocks with a fixed number of values and of bytes.
        ///
        /// This crate computes values only for types with [`TensorType::is_read`]. For the others
        /// it knows the size, so that a file with such a tensor can be checked and an error can
        /// name the tensor.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(non_camel_case_types, reason = "the format's own names")]
        pub enum TensorType {
            $($case = $number,)*
        }

        impl TensorType {
            pub const ALL: &'static [TensorType] = &[$(TensorType::$case,)*];

            /// Returns the format's spelling, for example `Q4_K`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(TensorType::$case => $name,)*
                }
            }

            /// Returns the number of values of a block and its number of bytes. Rows are whole
            /// blocks.
            pub const fn block(self) -> (u64, u64) {
                match self {
                    $(TensorType::$case => ($values, $bytes),)*
                }
            }
        }
    };
}

types! {
    F32 0 "F32" 1 4;
    F16 1 "F16" 1 2;
    Q4_0 2 "Q4_0" 32 18;
    Q4_1 3 "Q4_1" 32 20;
    Q5_0 6 "Q5_0" 32 22;
    Q5_1 7 "Q5_1" 32 24;
    Q8_0 8 "Q8_0" 32 34;
    Q8_1 9 "Q8_1" 32 40;
    Q2_K 10 "Q2_K" 256 84;
    Q3_K 11 "Q3_K" 256 110;
    Q4_K 12 "Q4_K" 256 144;
    Q5_K 13 "Q5_K" 256 176;
    Q6_K 14 "Q6_K" 256 210;
    Q8_K 15 "Q8_K" 256 292;
    IQ2_XXS 16 "IQ2_XXS" 256 66;
    IQ2_XS 17 "IQ2_XS" 256 74;
    IQ3_XXS 18 "IQ3_XXS" 256 98;
    IQ1_S 19 "IQ1_S" 256 50;
    IQ4_NL 20 "IQ4_NL" 32 18;
    IQ3_S 21 "IQ3_S" 256 110;
    IQ2_S 22 "IQ2_S" 256 82;
    IQ4_XS 23 "IQ4_XS" 256 136;
    I8 24 "I8" 1 1;
    I16 25 "I16" 1 2;
    I32 26 "I32" 1 4;
    I64 27 "I64" 1 8;
    F64 28 "F64" 1 8;
    IQ1_M 29 "IQ1_M" 256 56;
    BF16 30 "BF16" 1 2;
    TQ1_0 34 "TQ1_0" 256 54;
    TQ2_0 35 "TQ2_0" 256 66;
    MXFP4 39 "MXFP4" 32 17;
    NVFP4 40 "NVFP4" 64 36;
}

impl TensorType {
    /// Returns the type with that number.
    pub fn from_number(number: u32) -> Option<TensorType> {
        TensorType::ALL.iter().copied().find(|kind| *kind as u32 == number)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}
