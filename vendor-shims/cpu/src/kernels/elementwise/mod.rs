//! One value from one or two.

mod binary;
mod unary;

pub use binary::{Binary, Broadcast, binary};
pub use unary::{Unary, unary};
