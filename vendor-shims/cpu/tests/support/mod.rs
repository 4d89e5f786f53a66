//! The shim under test, called as a host does.
#![allow(unused_imports, dead_code, reason = "every test file uses another part")]

pub mod samples;
pub mod towers;

pub use shardwright_shim_testing::host::EstimateInfo;
pub use shardwright_shim_testing::*;

/// Opens an instance on the shim's only device.
pub fn open(options: &[(&str, &str)]) -> Result<Host, ErrorObject> {
    Host::open(shardwright_shim_cpu::shim_entry(), "cpu", options)
}
