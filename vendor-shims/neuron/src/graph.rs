//! A graph in the adapter's form, before any library is called: numbered operands, operations over
//! them, and constants with the location of their bytes.

use std::collections::BTreeSet;

use shardwright_neuron_adapter::operand;

/// Index of an operand within its [`NeuronGraph`].
pub type OperandIndex = u32;

/// Operands and operations, in the order in which they are passed to the library.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NeuronGraph<'w> {
    /// Name of the graph, for logs.
    pub name: String,
    pub operands: Vec<Operand<'w>>,
    /// Operations in an order in which they can run. Limits on operations count these.
    pub operations: Vec<Operation>,
    /// Operands that are bound before a run, in order.
    pub inputs: Vec<OperandIndex>,
    /// Operands that a run writes, in order.
    pub outputs: Vec<OperandIndex>,
    /// Whether 32-bit floats may be computed in 16 bits.
    pub relaxed: bool,
}

/// A tensor or scalar.
#[derive(Clone, Debug, PartialEq)]
pub struct Operand<'w> {
    /// Name of the operand, for errors.
    pub name: String,
    pub kind: OperandKind,
    /// Dimensions. Empty for scalars.
    pub dims: Vec<u32>,
    /// Scale of types that are quantised per tensor, 0 for other types. All zero points are 0.
    pub scale: f32,
    /// Scales of types that are quantised per channel.
    pub channels: Option<Channels>,
    /// Value of a constant.
    pub value: Option<Value<'w>>,
}

/// Type of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperandKind {
    /// Type with a number in the interface.
    Numbered(i32),
    /// The string operand of the extension for operations without a number.
    ExtensionName,
}

/// Scales per channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Channels {
    /// Dimension of the channels.
    pub dimension: u32,
    /// One scale per channel.
    pub scales: Vec<f32>,
}

/// Bytes of a constant.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'w> {
    /// Borrowed from the work order.
    Borrowed(&'w [u8]),
    /// Created by the lowering.
    Owned(Vec<u8>),
    /// 4-bit integers, low bits first, with rows padded to bytes. They are passed to the library as
    /// one byte each.
    Packed {
        /// Bytes as they are stored in the work order.
        bytes: &'w [u8],
        /// Number of values per row.
        columns: usize,
    },
    /// Missing. A graph with missing bytes can be counted but not compiled.
    Absent {
        /// Length of the missing bytes.
        length: u64,
    },
}

impl Value<'_> {
    /// Returns the number of bytes that are passed to the library.
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

    /// Unpacks 4-bit integers to one byte each.
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

#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// Name of the operation, for errors.
    pub name: String,
    pub kind: OperationKind,
    /// Operands, including arguments.
    pub inputs: Vec<OperandIndex>,
    /// Operands that the operation computes.
    pub outputs: Vec<OperandIndex>,
    /// The entry's node from which the operation was lowered.
    pub origin: Option<u32>,
}

/// Type of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// Type with a number in the interface.
    Numbered(i32),
    /// Operation of the extension, named by its last operand.
    Extension,
}

impl Operand<'_> {
    /// Returns the number of elements, 1 for scalars.
    pub fn elements(&self) -> u64 {
        self.dims.iter().fold(1, |product, extent| product.saturating_mul(u64::from(*extent)))
    }

    /// Returns the bytes of the values, or `None` for types of the extension.
    pub fn bytes(&self) -> Option<u64> {
        let OperandKind::Numbered(kind) = self.kind else { return None };
        self.elements().checked_mul(operand::element_bytes(kind)? as u64)
    }

    /// Returns the bytes of a constant as the chip stores it, including scales. The library
    /// receives 4-bit values as a byte each, but the chip stores two per byte. Returns 0 for other
    /// operands.
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
    /// Returns the bytes of constants passed to the library, including scales.
    pub fn constant_bytes(&self) -> u64 {
        let of = |operand: &Operand<'_>| {
            operand.value.as_ref().map_or(0, Value::length).saturating_add(operand.scale_bytes())
        };
        self.operands.iter().map(of).fold(0, u64::saturating_add)
    }

    /// Returns the bytes that one run moves from and to memory. Every constant counts once, at its
    /// stored width. All inputs and outputs count, with states at their capacity.
    pub fn moved_bytes(&self) -> u64 {
        self.operands.iter().map(Operand::stored_bytes).fold(self.bound_bytes(), u64::saturating_add)
    }

    /// Returns the bytes of inputs and outputs.
    pub fn bound_bytes(&self) -> u64 {
        let bound = self.inputs.iter().chain(&self.outputs);
        let bytes = bound.filter_map(|index| self.operands.get(*index as usize)?.bytes());
        bytes.fold(0, u64::saturating_add)
    }

    /// Returns the nodes of the entry whose operations have values in f32, in order. Float
    /// constants in operations on integers do not count: the extension's norm has some.
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

    /// Returns the number of constants without bytes.
    pub fn absent(&self) -> usize {
        self.operands.iter().filter(|operand| matches!(operand.value, Some(Value::Absent { .. }))).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_bits_become_bytes_row_by_row() {
        // Two rows of three values. The second half of each row's last byte is padding.
        let bytes = [0x21, 0xf8, 0x7f, 0x03];
        let expected = [1i8, 2, -8, -1, 7, 3].map(|value| value as u8);
        assert_eq!(Value::unpacked(&bytes, 3), expected);
        assert_eq!(Value::Packed { bytes: &bytes, columns: 3 }.length(), 6);
    }
}
