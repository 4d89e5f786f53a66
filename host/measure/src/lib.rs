//! Tools for measurements on a shared machine, in addition to a clock.
//!
//! **Job.** Medians and spreads of a few samples ([`Speeds`], [`median`], [`range`],
//! [`percentile`]), the current speed of reading memory ([`Prober`]), and the resident memory of
//! this process ([`resident_memory`]).
//!
//! **Not its job.** It does not measure models or start programs.
//!
//! ```
//! assert_eq!(shardwright_measure::median(&[3.0, 1.0, 2.0]), 2.0);
//! ```

mod probe;
mod statistics;

pub use probe::{Probe, Prober};
pub use statistics::{Speeds, median, percentile, range};

/// Returns the resident bytes of this process, mapped files included, and their peak. Returns
/// `None` if the system does not report them (anything but Linux).
pub fn resident_memory() -> Option<(u64, u64)> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    Some((field(&status, "VmRSS:")?, field(&status, "VmHWM:")?))
}

/// Parses a size in Linux's status of a process, in bytes.
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_are_read_where_they_stand() {
        let status = "Name:\tshardwright\nVmHWM:\t    2048 kB\nVmRSS:\t 1024 kB\n";
        assert_eq!(super::field(status, "VmHWM:"), Some(2 << 20));
        assert_eq!(super::field(status, "VmRSS:"), Some(1 << 20));
        assert_eq!(super::field("", "VmRSS:"), None);
        assert_eq!(super::field("VmRSS: much kB", "VmRSS:"), None);
    }
}
