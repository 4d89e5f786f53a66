//! Moves a mapped file into huge pages while its shard is in use.
//!
//! Weights are read again for every token, which is up to a quarter slower through small pages. If
//! memory was short when a file was written or first read, its pages are small and stay small,
//! although huge ones were requested.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use shardwright_files::{Mapping, Pages};

/// Fewest bytes of a file that is moved. Smaller files have few pages.
const LEAST: usize = 32 << 20;
/// Bytes that are moved at a time. The thread stops between pieces. No common huge page is larger.
const PIECE: usize = 32 << 20;
/// Time before the pages are looked at, so that the first token does not wait for it, and between
/// attempts.
const WAIT: Duration = Duration::from_secs(1);
/// Attempts for each piece. The system refuses pages of a new file until they are written to disk.
const ATTEMPTS: usize = 4;
/// Stack of the thread.
const STACK: usize = 256 << 10;

/// A thread that moves a mapping into huge pages. Dropping it stops the thread.
#[derive(Debug)]
pub(crate) struct HugePages {
    /// Stops the thread when it is dropped.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HugePages {
    /// Starts the thread. Returns `None` for a small file, on systems without such requests, and if
    /// no thread can be started.
    pub(crate) fn of(map: &Arc<Mapping>) -> Option<HugePages> {
        if map.len() < LEAST || !cfg!(target_os = "linux") {
            return None;
        }
        HugePages::start(Arc::clone(map), WAIT)
    }

    fn start(map: Arc<Mapping>, wait: Duration) -> Option<HugePages> {
        let (stop, stopped) = channel();
        let thread = Builder::new().name("huge-pages".to_owned()).stack_size(STACK);
        let thread = thread.spawn(move || improve(&map, wait, &stopped));
        let thread = thread.inspect_err(|error| tracing::debug!("pages stay as they are: {error}")).ok()?;
        Some(HugePages { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already printed, and the mapping is unchanged.
            let _ = thread.join();
        }
    }
}

/// Waits, and returns whether the thread must stop.
fn is_stopped_within(wait: Duration, stopped: &Receiver<()>) -> bool {
    stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout)
}

/// Moves the mapping into huge pages if most of it is in memory in small ones.
fn improve(map: &Mapping, wait: Duration, stopped: &Receiver<()>) {
    // A file of which little is in memory is not in use yet. Moving would read all of it.
    let mut pause = wait;
    let before = loop {
        if is_stopped_within(pause, stopped) {
            return;
        }
        let Some(pages) = Pages::of(map) else { return };
        if pages.resident >= map.len() as u64 / 2 {
            break pages;
        }
        pause = pause.saturating_mul(2);
    };
    if before.huge >= before.resident / 2 {
        return;
    }
    let mut pieces = pieces(map.len());
    for _ in 0..ATTEMPTS {
        pieces.retain(|piece| is_stopped_within(Duration::ZERO, stopped) || !map.collapse(piece.clone()));
        if pieces.is_empty() || is_stopped_within(wait, stopped) {
            break;
        }
    }
    tracing::debug!(
        path = %map.section().path().display(),
        refused = pieces.len(),
        "moved into huge pages: {before:?}, now {:?}",
        Pages::of(map)
    );
}

/// Divides a file into pieces.
fn pieces(length: usize) -> Vec<Range<usize>> {
    (0..length).step_by(PIECE).map(|start| start..length.min(start.saturating_add(PIECE))).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use shardwright_files::Section;

    use super::*;

    /// Maps a file that is a little larger than a piece.
    fn mapped() -> (Vec<u8>, Arc<Mapping>) {
        let bytes = (0..=250).collect::<Vec<u8>>().repeat(PIECE / 251 + 20);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        (bytes, Arc::new(Section::whole("numbers", file).unwrap().map().unwrap()))
    }

    /// Whether the system moves pages depends on the file system.
    #[test]
    fn bytes_stay_the_same_while_pages_are_moved() {
        let (bytes, map) = mapped();
        assert!(map[..] == bytes);
        let thread = HugePages::start(Arc::clone(&map), Duration::ZERO).unwrap();
        for _ in 0..20 {
            assert!(map[..] == bytes);
        }
        drop(thread);
        assert!(map[..] == bytes);
        assert_eq!(Arc::strong_count(&map), 1, "the thread has ended");
    }

    #[test]
    fn a_thread_that_waits_is_stopped() {
        let (_, map) = mapped();
        // The test would not end if the thread waited this long.
        drop(HugePages::start(Arc::clone(&map), Duration::from_secs(1 << 20)).unwrap());
        assert_eq!(Arc::strong_count(&map), 1);
        // The thread checks again and again whether the file is in use.
        let (stop, stopped) = channel();
        let waiting = std::thread::spawn(move || improve(&map, Duration::ZERO, &stopped));
        drop(stop);
        waiting.join().unwrap();
    }

    #[test]
    fn pieces_cover_a_file_once() {
        assert_eq!(pieces(PIECE + 1), [0..PIECE, PIECE..PIECE + 1]);
        assert_eq!((pieces(PIECE).len(), pieces(0).len()), (1, 0));
    }
}
