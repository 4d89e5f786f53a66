//! Elementwise functions of one or two values.

mod binary;
mod gated;
mod unary;

pub use binary::{Binary, Broadcast, binary};
pub use gated::{Gate, gated, glu};
pub use unary::{Unary, unary};
