//! One value from one or two.

mod binary;
mod gated;
mod unary;

pub use binary::{Binary, Broadcast, binary};
pub use gated::{Gate, gated};
pub use unary::{Unary, unary};
