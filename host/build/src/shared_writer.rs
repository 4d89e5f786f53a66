//! A bundle that several threads write at the same time.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use shardwright_bundle::BundleWriter;

/// A bundle's writer for several threads, used by one thread at a time. Two threads never compile
/// the same artefact: the second waits until the first has it or has failed.
#[derive(Debug)]
pub struct SharedWriter {
    writer: Mutex<BundleWriter>,
    /// Keys of artefacts that are being compiled.
    making: Mutex<BTreeSet<String>>,
    made: Condvar,
}

impl SharedWriter {
    pub fn new(writer: BundleWriter) -> Self {
        SharedWriter { writer: Mutex::new(writer), making: Mutex::default(), made: Condvar::new() }
    }

    /// Locks the writer for this thread. Threads do not keep the lock while they compile.
    pub fn lock(&self) -> MutexGuard<'_, BundleWriter> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn into_inner(self) -> BundleWriter {
        self.writer.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while another thread compiles the artefact of `key`. Then other threads wait until the
    /// returned claim is dropped.
    pub(crate) fn claim(&self, key: &str) -> Claim<'_> {
        let mut making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        while !making.insert(key.to_owned()) {
            making = self.made.wait(making).unwrap_or_else(PoisonError::into_inner);
        }
        Claim { of: self, key: key.to_owned() }
    }
}

/// The right to compile an artefact.
#[derive(Debug)]
pub(crate) struct Claim<'w> {
    of: &'w SharedWriter,
    key: String,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.of.making.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
        self.of.made.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_artefact_is_made_by_one_thread_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let writer = SharedWriter::new(BundleWriter::create(folder.path()).unwrap());
        let (making, order) = (Mutex::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let _claim = writer.claim("one");
                    let other = writer.claim("another of this thread");
                    drop(other);
                    *making.lock().unwrap() += 1;
                    std::thread::yield_now();
                    order.lock().unwrap().push(*making.lock().unwrap());
                    *making.lock().unwrap() -= 1;
                });
            }
        });
        assert_eq!(*order.lock().unwrap(), [1; 8]);
        writer.into_inner();
    }
}
