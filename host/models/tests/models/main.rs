//! Checkpoints as graphs: goldens, fixtures, generated shapes, hostile files,
//! outlines.

mod fixtures;
mod generated;
mod goldens;
mod hostile;
mod outline;
