//! Checkpoints as graphs: goldens, fixtures, generated shapes, hostile files,
//! outlines, quantised checkpoints.

mod fixtures;
mod generated;
mod goldens;
mod hostile;
mod outline;
mod quantised;
