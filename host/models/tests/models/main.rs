//! Checkpoints as graphs: goldens, fixtures, generated shapes, hostile files.

mod fixtures;
mod generated;
mod goldens;
mod hostile;
