//! Counts and times the calls to functions of the contract.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::shim::lock;

/// Number and duration of the calls to a function of the contract.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallTimes {
    /// Number of calls, including failed ones.
    pub calls: u64,
    /// Total time of all calls.
    pub total: Duration,
    /// Time of the longest call.
    pub longest: Duration,
}

/// The calls of an instance and its shards.
#[derive(Default)]
pub(crate) struct CallLog(Mutex<BTreeMap<&'static str, CallTimes>>);

impl CallLog {
    /// Returns the calls so far, by function.
    pub(crate) fn times(&self) -> BTreeMap<&'static str, CallTimes> {
        lock(&self.0).clone()
    }

    pub(crate) fn timed<T>(&self, function: &'static str, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = call();
        let time = start.elapsed();
        let mut times = lock(&self.0);
        let times = times.entry(function).or_default();
        times.calls += 1;
        times.total += time;
        times.longest = times.longest.max(time);
        result
    }
}
