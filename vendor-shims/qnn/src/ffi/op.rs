use super::{Scalar, Tensor};
use std::ffi::c_char;

/// A parameter of an operation.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Param {
    /// Scalar or tensor.
    pub kind: u32,
    pub name: *const c_char,
    pub value: ParamValue,
}

/// Member selected by [`Param::kind`].
#[derive(Clone, Copy)]
#[repr(C)]
pub union ParamValue {
    /// For kind 0.
    pub scalar: Scalar,
    /// For kind 1.
    pub tensor: Tensor,
}

/// An operation, first version of the struct.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpConfigV1 {
    /// Unique in the graph.
    pub name: *const c_char,
    /// The package, `qti.aisw`.
    pub package: *const c_char,
    pub op: *const c_char,
    pub param_count: u32,
    pub params: *const Param,
    pub input_count: u32,
    pub inputs: *const Tensor,
    pub output_count: u32,
    pub outputs: *const Tensor,
}

/// An operation, passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OpConfig {
    /// Always 1.
    pub version: u32,
    pub v1: OpConfigV1,
}

/// An operation the library lists.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct OperationName {
    pub package: *const c_char,
    pub name: *const c_char,
    /// The vendor's name for the hardware on which it runs.
    pub target: *const c_char,
}
