//! A bundle that several threads write at once.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use shardwright_bundle::BundleWriter;

/// A bundle's writer for several threads, one at a time, of which no two make the same artefact:
/// the second waits until the first has it, or does not get it.
#[derive(Debug)]
pub struct SharedWriter {
    writer: Mutex<BundleWriter>,
    /// Keys of artefacts that are being made.
    making: Mutex<BTreeSet<String>>,
    made: Condvar,
}

impl SharedWriter {
    /// Shares a writer.
    pub fn new(writer: BundleWriter) -> Self {
        SharedWriter { writer: Mutex::new(writer), making: Mutex::default(), made: Condvar::new() }
    }

    /// The writer, for this thread alone. Not held while something is compiled.
    pub fn lock(&self) -> MutexGuard<'_, BundleWriter> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer, once no other thread has it.
    pub fn into_inner(self) -> BundleWriter {
        self.writer.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while another thread makes the artefact of `key`, and from then on has others wait
    /// until the claim is dropped.
    pub(crate) fn claim(&self, key: &str) -> Claim<'_> {
        let mut making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        while !making.insert(key.to_owned()) {
            making = self.made.wait(making).unwrap_or_else(PoisonError::into_inner);
        }
        Claim { of: self, key: key.to_owned() }
    }
}

/// An artefact that this thread makes.
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
