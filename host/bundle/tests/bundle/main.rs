//! Bundles on disk: written, interrupted, damaged, copied, attacked.

mod hostile;
mod identify;
mod interrupted;
mod mutations;
mod packed;
mod reading;
mod signed;
mod support;
mod writing;
