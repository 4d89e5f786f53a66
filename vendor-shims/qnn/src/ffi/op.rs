use super::{Scalar, Tensor};
use std::ffi::c_char;

/// A parameter of an operation.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Param {
    /// Scalar or tensor.
    pub kind: u32,
    /// Its name.
    pub name: *const c_char,
    /// By the kind.
    pub value: ParamValue,
}

/// By [`Param::kind`].
#[derive(Clone, Copy)]
#[repr(C)]
pub union ParamValue {
    /// Kind 0.
    pub scalar: Scalar,
    /// Kind 1.
    pub tensor: Tensor,
}

/// An operation, first version of the struct.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpConfigV1 {
    /// Unique in the graph.
    pub name: *const c_char,
    /// `qti.aisw`.
    pub package: *const c_char,
    /// The operation.
    pub op: *const c_char,
    /// Count of `params`.
    pub param_count: u32,
    /// Parameters.
    pub params: *const Param,
    /// Count of `inputs`.
    pub input_count: u32,
    /// Operands.
    pub inputs: *const Tensor,
    /// Count of `outputs`.
    pub output_count: u32,
    /// Results.
    pub outputs: *const Tensor,
}

/// An operation: passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpConfig {
    /// 1.
    pub version: u32,
    /// The first.
    pub v1: OpConfigV1,
}

/// An operation the library lists.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OperationName {
    /// Package.
    pub package: *const c_char,
    /// The operation.
    pub name: *const c_char,
    /// Where the vendor says it runs.
    pub target: *const c_char,
}
