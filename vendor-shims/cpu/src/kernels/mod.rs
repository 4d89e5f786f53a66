//! The arithmetic. Each kernel is a safe function that checks the lengths of its operands. It is
//! written once over [`crate::simd::Simd`] and documents the order in which it reduces.

pub mod attention;
pub mod axial;
pub mod convolution;
pub mod depthwise;
pub mod elementwise;
pub mod encoding;
pub mod integer;
pub mod linear;
pub mod math;
pub mod norm;
pub mod pooling;
pub mod reduce;
pub mod relative;
pub mod rotary;
pub mod shape;
#[cfg(test)]
mod simulated;
