//! Checkpoints as graphs: goldens, fixtures, generated shapes, hostile files,
//! outlines, quantised checkpoints, unused tensors.

mod decoders;
mod fixtures;
mod generated;
mod gguf_alone;
mod gguf_file;
mod goldens;
mod hostile;
mod hostile_quantised;
mod lora;
mod outline;
mod quantised;
mod register;
mod scaling;
mod tied;
mod towers;
mod unused;
