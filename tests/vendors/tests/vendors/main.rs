//! Whole models through vendors' libraries and their simulators.

mod delivery;
mod far_chip;
mod jobs;
mod neuron;
mod neuron_flags;
mod neuron_limits;
mod qnn;
mod record;
mod speculation;
mod variants;
