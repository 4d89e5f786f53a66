//! Bundles on disk: written, interrupted, damaged, copied, attacked.

mod hostile;
mod identify;
mod interrupted;
mod mutations;
mod packed;
mod reading;
mod shares;
mod signed;
mod support;
mod volumes;
mod writing;
