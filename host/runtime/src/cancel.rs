use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shardwright_shims::Canceller;

/// Cancels a session's operations, from any thread.
///
/// If no operation is in progress, a request cancels the next one. The cancelled operation or the
/// end of a [`Generation`](crate::Generation) clears the request.
#[derive(Clone, Default)]
pub struct CancelHandle {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    requested: AtomicBool,
    /// Cancels the run in progress. Only set while this session's run is in progress.
    running: Mutex<Option<Canceller>>,
}

impl std::fmt::Debug for CancelHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CancelHandle").field("requested", &self.is_requested()).finish_non_exhaustive()
    }
}

impl CancelHandle {
    /// Requests the session to stop. It stops immediately if the shim can cancel a run, otherwise
    /// after the run in progress.
    pub fn cancel(&self) {
        self.shared.requested.store(true, Ordering::SeqCst);
        if let Some(run) = self.running().as_ref() {
            run.cancel();
        }
    }

    /// Reports whether a request is pending.
    pub fn is_requested(&self) -> bool {
        self.shared.requested.load(Ordering::SeqCst)
    }

    /// Withdraws a pending request.
    pub fn reset(&self) {
        self.shared.requested.store(false, Ordering::SeqCst);
    }

    /// Lets requests interrupt the run until the guard is dropped.
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
