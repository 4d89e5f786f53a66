//! Checkpoints as a source of models to plan and compile.

mod making;
mod measuring;
mod outline;
mod path;

pub use making::CheckpointSource;
pub use outline::OutlineSource;
pub use path::{expect_checkpoint, open_checkpoint, plan_checkpoint};
