//! Arithmetic of the operations: integer arithmetic as TensorFlow Lite defines it, and real
//! arithmetic in 32 or 16 bits.
//!
//! TensorFlow Lite has no integer definition of some operations (16-bit DIV, normalisations, …).
//! For these the integers are decoded, the equation is evaluated in 64-bit floating point, and the
//! result is rounded to the nearest step. No hardware could be more exact.
//! `tests/running/interpreter.rs` compares all other operations with TensorFlow Lite's own kernels,
//! integer by integer. The behaviour of MediaTek's hardware is unknown.

pub mod convert;
pub mod elementwise;
pub mod fixed;
pub mod matrix;
pub mod movement;
pub mod normalise;
pub mod reduce;
pub mod softmax;
pub mod table;
pub mod tensor;
