//! A graph in the adapter's form, before any library is called: operands by number, operations over
//! them, and constants with the location of their bytes.

use std::collections::BTreeSet;

use shardwright_neuron_adapter::operand;

/// Index of an operand within its [`NeuronGraph`].
pub type OperandIndex = u32;

/// Operands and operations, in the order in which they are handed over.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NeuronGraph<'w> {
    /// For logs.
    pub name: String,
    /// By index.
    pub operands: Vec<Operand<'w>>,
    /// In an order in which they can run. Limits on operations count these.
    pub operations: Vec<Operation>,
    /// Bound before a run, in order.
    pub inputs: Vec<OperandIndex>,
    /// Written by a run, in order.
    pub outputs: Vec<OperandIndex>,
    /// Whether 32-bit floats may be computed in 16 bits.
    pub relaxed: bool,
}

/// A tensor or scalar.
#[derive(Clone, Debug, PartialEq)]
pub struct Operand<'w> {
    /// For errors.
    pub name: String,
    /// Type.
    pub kind: OperandKind,
    /// Empty for scalars.
    pub dims: Vec<u32>,
    /// Of types quantised per tensor; 0 for others. Zero points are 0 throughout.
    pub scale: f32,
    /// Of types quantised per channel.
    pub channels: Option<Channels>,
    /// Of constants.
    pub value: Option<Value<'w>>,
}

/// Type of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperandKind {
    /// A number of the interface.
    Numbered(i32),
    /// The string operand of the extension of operations without a number.
    ExtensionName,
}

/// Scales per channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Channels {
    /// Which dimension has the channels.
    pub dimension: u32,
    /// One each.
    pub scales: Vec<f32>,
}

/// Bytes of a constant.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'w> {
    /// Borrowed from the work order.
    Borrowed(&'w [u8]),
    /// Made by the lowering.
    Owned(Vec<u8>),
    /// Integers of 4 bits, low ones first, rows padded to bytes; handed over as one byte each.
    Packed {
        /// As stored.
        bytes: &'w [u8],
        /// Values of a row.
        columns: usize,
    },
    /// Missing: such a graph can be counted but not compiled.
    Absent {
        /// Length of the bytes.
        length: u64,
    },
}

impl Value<'_> {
    /// Bytes the library is handed.
    pub fn length(&self) -> u64 {
        match self {
            Value::Borrowed(bytes) => bytes.len() as u64,
            Value::Owned(bytes) => bytes.len() as u64,
            Value::Packed { bytes, columns } => {
                let stride = columns.div_ceil(2).max(1);
                (bytes.len() / stride * columns) as u64
            }
            Value::Absent { length } => *length,
        }
    }

    /// Integers of 4 bits with a byte each.
    pub fn unpacked(bytes: &[u8], columns: usize) -> Vec<u8> {
        let stride = columns.div_ceil(2).max(1);
        let mut out = Vec::with_capacity(bytes.len() / stride * columns);
        for row in bytes.chunks_exact(stride) {
            let values = row.iter().flat_map(|byte| [(byte << 4) as i8 >> 4, *byte as i8 >> 4]);
            out.extend(values.take(columns).map(|value| value as u8));
        }
        out
    }
}

/// An operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// For errors.
    pub name: String,
    /// Which one.
    pub kind: OperationKind,
    /// Operands, arguments included.
    pub inputs: Vec<OperandIndex>,
    /// Results.
    pub outputs: Vec<OperandIndex>,
    /// The entry's node it was lowered from.
    pub origin: Option<u32>,
}

/// Which operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// A number of the interface.
    Numbered(i32),
    /// Named by its last operand.
    Extension,
}

impl Operand<'_> {
    /// Elements; 1 of scalars.
    pub fn elements(&self) -> u64 {
        self.dims.iter().fold(1, |product, extent| product.saturating_mul(u64::from(*extent)))
    }

    /// Bytes of its values; `None` for types of the extension.
    pub fn bytes(&self) -> Option<u64> {
        let OperandKind::Numbered(kind) = self.kind else { return None };
        self.elements().checked_mul(operand::element_bytes(kind)? as u64)
    }

    /// Bytes of a constant as the chip stores it, scales included: values of 4 bits are handed over
    /// as a byte each and stored two to a byte. 0 for what is no constant.
    fn stored_bytes(&self) -> u64 {
        let length = self.value.as_ref().map_or(0, Value::length);
        let has_four_bits = matches!(
            self.kind,
            OperandKind::Numbered(
                operand::EXT_TENSOR_QUANT4_SYMM | operand::EXT_TENSOR_QUANT4_SYMM_PER_CHANNEL
            )
        );
        let values = if has_four_bits { length.div_ceil(2) } else { length };
        values.saturating_add(self.scale_bytes())
    }

    fn scale_bytes(&self) -> u64 {
        self.channels.as_ref().map_or(0, |channels| 4 * channels.scales.len() as u64)
    }
}

impl NeuronGraph<'_> {
    /// Bytes of constants handed to the library, scales included.
    pub fn constant_bytes(&self) -> u64 {
        let of = |operand: &Operand<'_>| {
            operand.value.as_ref().map_or(0, Value::length).saturating_add(operand.scale_bytes())
        };
        self.operands.iter().map(of).fold(0, u64::saturating_add)
    }

    /// Bytes that one run moves from and to memory: every constant once, at the width it is stored
    /// with, and all inputs and outputs, states at their capacity.
    pub fn moved_bytes(&self) -> u64 {
        self.operands.iter().map(Operand::stored_bytes).fold(self.bound_bytes(), u64::saturating_add)
    }

    /// Bytes of inputs and outputs.
    pub fn bound_bytes(&self) -> u64 {
        let bound = self.inputs.iter().chain(&self.outputs);
        let bytes = bound.filter_map(|index| self.operands.get(*index as usize)?.bytes());
        bytes.fold(0, u64::saturating_add)
    }

    /// Nodes of the entry whose operations have values in f32, in order. Float constants beside
    /// integers do not count: the extension's norm has some.
    pub fn nodes_in_single_precision(&self) -> BTreeSet<u32> {
        let is_single = |index: &OperandIndex| {
            self.operands.get(*index as usize).is_some_and(|operand| {
                operand.kind == OperandKind::Numbered(operand::TENSOR_FLOAT32) && operand.value.is_none()
            })
        };
        let touches =
            |operation: &&Operation| operation.inputs.iter().chain(&operation.outputs).any(is_single);
        self.operations.iter().filter(touches).filter_map(|operation| operation.origin).collect()
    }

    /// Number of constants without bytes.
    pub fn absent(&self) -> usize {
        self.operands.iter().filter(|operand| matches!(operand.value, Some(Value::Absent { .. }))).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_bits_become_bytes_row_by_row() {
        // Two rows of three: the second half of each row's last byte is padding.
        let bytes = [0x21, 0xf8, 0x7f, 0x03];
        let expected = [1i8, 2, -8, -1, 7, 3].map(|value| value as u8);
        assert_eq!(Value::unpacked(&bytes, 3), expected);
        assert_eq!(Value::Packed { bytes: &bytes, columns: 3 }.length(), 6);
    }
}
