//! The thread pool for the values of a checkpoint.

use std::io;
use std::sync::Once;
use std::sync::mpsc::{self, Sender};
use std::thread;

use rayon::{ThreadBuilder, ThreadPoolBuilder};

/// Starts the pool once per process, with one thread per processor, or as many as the system
/// allows. If it allows none, the calling thread does the work. Without this, rayon panics on first
/// use if it cannot start all threads.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // A pool that could not be started cannot be replaced, so its threads are started first.
        let mut waiting = start_waiting(count());
        let pool = ThreadPoolBuilder::new();
        // An application may have started the pool already. Then this call has no effect, and the
        // threads end.
        let _ = match waiting.len() {
            0 => pool.num_threads(1).use_current_thread().build_global(),
            started => pool
                .num_threads(started)
                .spawn_handler(move |place| {
                    let sent = waiting.pop().map(|thread| thread.send(place));
                    sent.and_then(Result::ok).ok_or_else(|| io::Error::other("no thread is left"))
                })
                .build_global(),
        };
    });
}

/// Returns the number of threads that rayon starts by default.
fn count() -> usize {
    let wanted = std::env::var("RAYON_NUM_THREADS").ok().and_then(|count| count.parse().ok());
    let processors = || thread::available_parallelism().map_or(1, usize::from);
    wanted.filter(|&count| count > 0).unwrap_or_else(processors)
}

/// Starts up to `count` threads, each of which waits for its place in the pool.
fn start_waiting(count: usize) -> Vec<Sender<ThreadBuilder>> {
    let start = |index: usize| {
        let (sender, receiver) = mpsc::channel::<ThreadBuilder>();
        let run = move || {
            if let Ok(place) = receiver.recv() {
                place.run();
            }
        };
        let started = thread::Builder::new().name(format!("values-{index}")).spawn(run);
        started.ok().map(|_| sender)
    };
    (0..count).map_while(start).collect()
}
