//! What a session is doing now, so that a cancellation never reaches a later call.

use std::sync::{Mutex, MutexGuard, PoisonError};

use shardwright::CancelHandle;

use crate::{Error, Result};

/// The work in progress of a session, and the handle that stops it. The handle is used under the
/// lock, so that work cannot end in between.
pub(crate) struct Activity {
    handle: CancelHandle,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_closed: bool,
    /// Number of the last work.
    last: u64,
    /// Number of the work in progress.
    current: Option<u64>,
}

impl Activity {
    /// Creates the activity of a session with this cancel handle, without work.
    pub(crate) fn new(handle: CancelHandle) -> Self {
        Activity { handle, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins work and returns its number. Earlier requests to stop do not apply to it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) after [`close`](Self::close).
    pub(crate) fn begin(&self) -> Result<u64> {
        let mut state = self.state();
        if state.is_closed {
            return Err(Error::closed("session"));
        }
        self.handle.reset();
        state.last += 1;
        state.current = Some(state.last);
        Ok(state.last)
    }

    /// Ends work, if it is still the one in progress.
    pub(crate) fn end(&self, work: u64) {
        let mut state = self.state();
        if state.current == Some(work) {
            state.current = None;
            if !state.is_closed {
                self.handle.reset();
            }
        }
    }

    /// Stops the work in progress, if there is any.
    pub(crate) fn cancel(&self) {
        let state = self.state();
        if state.current.is_some() {
            self.handle.cancel();
        }
    }

    /// Stops this work, if it is the one in progress.
    pub(crate) fn cancel_work(&self, work: u64) {
        let state = self.state();
        if state.current == Some(work) {
            self.handle.cancel();
        }
    }

    /// Stops the work in progress and prevents any other.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.handle.cancel();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    pub(crate) fn handle(&self) -> CancelHandle {
        self.handle.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn a_cancellation_reaches_only_the_work_in_progress() {
        let handle = CancelHandle::default();
        let activity = Activity::new(handle.clone());
        activity.cancel();
        assert!(!handle.is_requested(), "nothing to cancel");
        let first = activity.begin().unwrap();
        activity.cancel();
        assert!(handle.is_requested());
        activity.end(first);
        assert!(!handle.is_requested(), "the request ended with its work");
        let second = activity.begin().unwrap();
        activity.cancel_work(first);
        activity.end(first);
        assert!(!handle.is_requested());
        activity.cancel_work(second);
        assert!(handle.is_requested());
        let third = activity.begin().unwrap();
        assert!(!handle.is_requested() && third != second);
        activity.close();
        assert!(handle.is_requested() && activity.is_closed());
        activity.end(third);
        assert!(handle.is_requested(), "closing is permanent");
        assert_eq!(activity.begin().unwrap_err().kind, ErrorKind::Closed);
    }
}
