//! Bundles on disk: written, interrupted, damaged, copied, attacked.

mod hostile;
mod identify;
mod interrupted;
mod packed;
mod reading;
mod shares;
mod support;
mod volumes;
mod writing;
