//! An operation in the library's C structs.

use super::check::Composer;
use super::tensor::TensorParts;
use crate::failure::{QnnError, Result};
use crate::ffi::{self, number};
use crate::graph::{DataType, Param, QnnEncoding, QnnNode, TensorIndex};
use std::ffi::{CString, c_void};

/// The package of the operations that every backend has.
const PACKAGE: &std::ffi::CStr = c"qti.aisw";

/// Converts a parameter list to a constant.
fn list_parts(name: CString, param: &Param) -> Option<(TensorParts, Vec<u8>)> {
    let (data_type, dims, bytes): (_, Vec<u32>, Vec<u8>) = match param {
        Param::U32s(values) => (
            DataType::Uint32,
            vec![values.len() as u32],
            values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        ),
        Param::I32s(values, dims) => {
            (DataType::Int32, dims.clone(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
        }
        Param::U32Block(values, dims) => {
            (DataType::Uint32, dims.clone(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
        }
        Param::U32(_) | Param::I32(_) | Param::F32(_) | Param::Bool(_) => return None,
    };
    let mut parts = TensorParts::new(0, name, number::STATIC, data_type as u32, &dims, &QnnEncoding::None);
    let buffer =
        ffi::RawBuffer { data: bytes.as_ptr().cast_mut().cast::<c_void>(), size: bytes.len() as u32 };
    parts.tensor.v1.memory = ffi::MemoryHandleOrBuffer { buffer };
    Some((parts, bytes))
}

pub(super) fn scalar(param: &Param) -> Option<ffi::Scalar> {
    let (data_type, value) = match param {
        Param::U32(value) => (DataType::Uint32, ffi::ScalarValue { bits: u64::from(*value) }),
        Param::I32(value) => (DataType::Int32, ffi::ScalarValue { bits: u64::from(*value as u32) }),
        Param::F32(value) => (DataType::Float32, ffi::ScalarValue { bits: u64::from(value.to_bits()) }),
        Param::Bool(value) => (DataType::Bool8, ffi::ScalarValue { bits: u64::from(*value) }),
        Param::U32s(_) | Param::I32s(..) | Param::U32Block(..) => return None,
    };
    Some(ffi::Scalar { data_type: data_type as u32, value })
}

/// The strings and lists of a node, to which the config points.
pub(super) struct NodeParts {
    name: CString,
    op: CString,
    params: Vec<ffi::Param>,
    inputs: Vec<ffi::Tensor>,
    outputs: Vec<ffi::Tensor>,
    _names: Vec<CString>,
    _lists: Vec<(TensorParts, Vec<u8>)>,
}

impl NodeParts {
    /// Converts a node. `with_list` is called for every constant created for a list, before the
    /// node refers to it.
    pub(super) fn new(
        composer: &Composer<'_, '_>,
        node: &QnnNode,
        tensor_of: impl Fn(TensorIndex) -> ffi::Tensor,
        mut with_list: impl FnMut(&mut ffi::Tensor) -> Result<()>,
    ) -> Result<NodeParts> {
        let place = format!("node `{}`", node.name);
        let (mut names, mut lists, mut params) = (Vec::new(), Vec::new(), Vec::new());
        for (param_name, param) in &node.params {
            let name = composer.text(&place, param_name)?;
            let (kind, value) = match scalar(param) {
                Some(scalar) => (number::PARAM_SCALAR, ffi::ParamValue { scalar }),
                None => {
                    let list_name = composer.text(&place, &format!("{}.{param_name}", node.name))?;
                    let Some((mut parts, bytes)) = list_parts(list_name, param) else { continue };
                    with_list(&mut parts.tensor)?;
                    let tensor = parts.tensor;
                    lists.push((parts, bytes));
                    (number::PARAM_TENSOR, ffi::ParamValue { tensor })
                }
            };
            params.push(ffi::Param { kind, name: name.as_ptr(), value });
            names.push(name);
        }
        Ok(NodeParts {
            name: composer.text(&place, &node.name)?,
            op: composer.text(&place, node.op)?,
            params,
            inputs: node.inputs.iter().map(|index| tensor_of(*index)).collect(),
            outputs: node.outputs.iter().map(|index| tensor_of(*index)).collect(),
            _names: names,
            _lists: lists,
        })
    }

    /// Returns the config, which is valid as long as this value lives.
    pub(super) fn config(&self) -> ffi::OpConfig {
        ffi::OpConfig {
            version: 1,
            v1: ffi::OpConfigV1 {
                name: self.name.as_ptr(),
                package: PACKAGE.as_ptr(),
                op: self.op.as_ptr(),
                param_count: self.params.len() as u32,
                params: self.params.as_ptr(),
                input_count: self.inputs.len() as u32,
                inputs: self.inputs.as_ptr(),
                output_count: self.outputs.len() as u32,
                outputs: self.outputs.as_ptr(),
            },
        }
    }
}

/// Adds the node at fault to an error.
pub(super) fn blame(error: QnnError, node: &QnnNode) -> QnnError {
    match error {
        QnnError::Call(mut failure) => {
            failure.node = Some(node.name.clone());
            failure.op = Some(node.op.to_owned());
            QnnError::Call(failure)
        }
        error => error,
    }
}
