//! The thread pool for the values of a checkpoint.

use std::sync::Once;

use rayon::ThreadPoolBuilder;

/// Starts the pool once per process, with one thread per processor. If the system allows fewer
/// threads, there is one, or the calling thread does the work. Without this, rayon panics on first
/// use if it cannot start all threads.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let count = |threads: usize| ThreadPoolBuilder::new().num_threads(threads);
        // An application may have started the pool already. Then this call has no effect. A pool
        // that could not be started cannot be replaced, so that a temporary pool is tried first.
        // Its threads have ended before the next pool starts.
        let starts = |threads: usize| count(threads).build_scoped(|thread| thread.run(), |_| ()).is_ok();
        let _ = match [0, 1].into_iter().find(|&threads| starts(threads)) {
            Some(threads) => count(threads).build_global(),
            None => count(1).use_current_thread().build_global(),
        };
    });
}
