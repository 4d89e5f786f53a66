//! Bundles on disk: written, interrupted, damaged, copied, attacked.

mod hostile;
mod identify;
mod interrupted;
mod packed;
mod reading;
mod support;
mod writing;
