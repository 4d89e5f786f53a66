//! Checkpoints as what plans are carried out on.

mod given;
mod making;
mod measuring;

pub use given::{expect_checkpoint, open_checkpoint};
pub use making::CheckpointSource;
