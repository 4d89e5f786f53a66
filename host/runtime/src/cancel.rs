use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shardwright_shims::Canceller;

/// Cancels a session's operations, from any thread.
///
/// A request that finds nothing in progress ends the next operation. It is consumed by the
/// operation that it ends, or by the end of a [`Generation`](crate::Generation).
#[derive(Clone, Default)]
pub struct CancelHandle {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    requested: AtomicBool,
    /// Cancels the run in progress; present only while that run is this session's.
    running: Mutex<Option<Canceller>>,
}

impl std::fmt::Debug for CancelHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CancelHandle").field("requested", &self.is_requested()).finish_non_exhaustive()
    }
}

impl CancelHandle {
    /// Asks the session to stop: at once if the shim can cancel a run, else when the run in
    /// progress is done.
    pub fn cancel(&self) {
        self.shared.requested.store(true, Ordering::SeqCst);
        if let Some(run) = self.running().as_ref() {
            run.cancel();
        }
    }

    /// Whether a request is pending.
    pub fn is_requested(&self) -> bool {
        self.shared.requested.load(Ordering::SeqCst)
    }

    /// Withdraws a request.
    pub fn reset(&self) {
        self.shared.requested.store(false, Ordering::SeqCst);
    }

    /// Until the guard is dropped, a request interrupts the run.
    pub(crate) fn during(&self, run: Canceller) -> Running<'_> {
        *self.running() = Some(run);
        Running { handle: self }
    }

    fn running(&self) -> MutexGuard<'_, Option<Canceller>> {
        self.shared.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct Running<'a> {
    handle: &'a CancelHandle,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        *self.handle.running() = None;
    }
}
