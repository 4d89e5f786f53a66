//! Progress of long calls, and their cancellation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use shardwright::{CancelHandle, Watch};

use crate::{Error, ErrorKind, Result};

/// Observer of a long call. It runs on the thread of that call.
pub trait Progress: Send + Sync {
    /// Receives the progress of the whole work, 0 to 1000, and the current stage. Returns whether
    /// to continue.
    fn progress(&self, per_mille: u32, stage: &str) -> bool;

    /// Receives a message to show immediately, for example that the work is waiting for something.
    fn note(&self, text: &str) {
        let _ = text;
    }
}

/// Cancels calls without a session, such as opening a model, from any thread. A request is
/// permanent: later calls with the same handle fail too. Clones refer to the same request.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    requested: Arc<AtomicBool>,
    handle: CancelHandle,
}

impl Cancel {
    /// Creates a handle without a request.
    pub fn new() -> Self {
        Cancel::default()
    }

    /// Requests calls with this handle to stop.
    pub fn cancel(&self) {
        self.requested.store(true, Ordering::SeqCst);
        self.handle.cancel();
    }

    /// Returns whether [`cancel`](Self::cancel) was called.
    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }

    /// Returns the handle for a call of the host.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Cancelled`] after a request.
    pub(crate) fn handle(cancel: Option<&Cancel>) -> Result<CancelHandle> {
        match cancel {
            None => Ok(CancelHandle::default()),
            // The host withdraws a request that it honoured, so its own flag is not permanent.
            Some(cancel) if cancel.is_requested() => Err(cancelled()),
            Some(cancel) => Ok(cancel.handle.clone()),
        }
    }
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "cancelled before it began", "use a new cancel handle for each call")
}

/// Passes the progress of the host on, and requests it to stop.
pub(crate) struct Watching<'a> {
    progress: Option<&'a dyn Progress>,
    cancel: CancelHandle,
    stopped: bool,
}

impl<'a> Watching<'a> {
    pub(crate) fn new(progress: Option<&'a dyn Progress>, cancel: CancelHandle) -> Self {
        Watching { progress, cancel, stopped: false }
    }
}

impl Watch for Watching<'_> {
    fn progress(&mut self, per_mille: u32, stage: &str) {
        if let Some(progress) = self.progress.filter(|_| !self.stopped) {
            self.stopped = !progress.progress(per_mille, stage);
        }
    }

    fn note(&mut self, text: &str) {
        if let Some(progress) = self.progress {
            progress.note(text);
        }
    }

    fn cancelled(&self) -> bool {
        self.stopped || self.cancel.is_requested()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Until(Mutex<Vec<String>>);

    impl Progress for Until {
        fn progress(&self, per_mille: u32, stage: &str) -> bool {
            self.0.lock().unwrap().push(format!("{per_mille} {stage}"));
            per_mille < 500
        }
    }

    #[test]
    fn a_listener_stops_the_work_and_is_not_called_again() {
        let until = Until::default();
        let mut watching = Watching::new(Some(&until), CancelHandle::default());
        for per_mille in [100, 500, 600] {
            watching.progress(per_mille, "hashing");
        }
        watching.note("waiting");
        assert!(watching.cancelled());
        assert_eq!(*until.0.lock().unwrap(), ["100 hashing", "500 hashing"]);
    }

    #[test]
    fn a_request_is_permanent() {
        let cancel = Cancel::new();
        let handle = Cancel::handle(Some(&cancel)).unwrap();
        assert!(!Watching::new(None, handle.clone()).cancelled());
        cancel.clone().cancel();
        assert!(Watching::new(None, handle.clone()).cancelled());
        // As the host does when it honours a request.
        handle.reset();
        assert_eq!(Cancel::handle(Some(&cancel)).unwrap_err().kind, ErrorKind::Cancelled);
        assert!(Cancel::handle(None).is_ok());
    }
}
