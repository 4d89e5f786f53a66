//! The threads that work on the values of a checkpoint.

use std::sync::Once;

use rayon::ThreadPoolBuilder;

/// Starts them, once for the process and as many as there are processors. Where the system allows
/// fewer, one works, or the calling thread does. The library itself panics at its first use if it
/// cannot start all of them.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let count = |threads: usize| ThreadPoolBuilder::new().num_threads(threads);
        // An application may have started them itself. Then the rest has no effect. A pool that
        // could not be started cannot be replaced, so that one that is not kept is tried first.
        let _ = match [0, 1].into_iter().find(|&threads| count(threads).build().is_ok()) {
            Some(threads) => count(threads).build_global(),
            None => count(1).use_current_thread().build_global(),
        };
    });
}
