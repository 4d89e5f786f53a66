//! Operations and their attributes, as defined in the project's one list.

use shardwright_shim_abi::raw::*;
use shardwright_shim_abi::{Error, NodeView, Result};
use shardwright_shim_testing::Attribute;
use shardwright_vocabulary::{AttributeKind, OpKind};

pub(crate) fn op_name(op: u32) -> &'static str {
    OpKind::from_number(op).map_or("an unknown operation", OpKind::name)
}

pub(crate) fn op_named(name: &str) -> Option<u32> {
    OpKind::ALL.iter().find(|kind| kind.name() == name).map(|kind| kind.number())
}

/// Checks whether an operation moves stored values unchanged.
pub(crate) fn moves(op: u32) -> bool {
    [SW_OP_RESHAPE, SW_OP_TRANSPOSE, SW_OP_SLICE, SW_OP_CONCAT].contains(&op)
}

/// Returns the attributes of a primitive as numbers, with floats as bits.
///
/// # Errors
/// If the operation is not a primitive.
pub(crate) fn numbers(node: NodeView<'_>) -> Result<Vec<Vec<i64>>> {
    let op = node.op();
    if node.op_version() != 1 {
        let what = format!("version {} of {} is newer than this shim", node.op_version(), op_name(op));
        return Err(Error::unsupported_op(what));
    }
    let Some(kind) = OpKind::from_number(op) else {
        return Err(Error::unsupported_op(format!("unknown operation {op}")));
    };
    let each = kind.attributes().iter().map(|attribute| match attribute.kind {
        AttributeKind::Integer => Ok(vec![node.attribute_i64(attribute.name)?]),
        AttributeKind::Float => Ok(vec![node.attribute_f32(attribute.name)?.to_bits().into()]),
        AttributeKind::Integers => Ok(node.attribute_list(attribute.name)?.to_vec()),
        AttributeKind::Text => Err(Error::unsupported_op(format!("{} is not a primitive", kind.name()))),
    });
    each.collect()
}

/// Converts numbers from [`numbers`] to the evaluator's form.
pub(crate) fn attributes(op: u32, numbers: &[Vec<i64>]) -> Vec<Attribute> {
    let declared = OpKind::from_number(op).map_or(&[][..], OpKind::attributes);
    let each =
        declared.iter().zip(numbers).map(|(attribute, numbers)| match (attribute.kind, &numbers[..]) {
            (AttributeKind::Integer, [number]) => Attribute::Integer(attribute.name, *number),
            (AttributeKind::Float, [bits]) => {
                Attribute::Float(attribute.name, f32::from_bits(*bits as u32).into())
            }
            _ => Attribute::Integers(attribute.name, numbers.clone()),
        });
    each.collect()
}
