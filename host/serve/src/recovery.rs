//! Losses of devices and workers while requests run: the lost model is dropped once for all of its
//! requests and opened again, and each request continues or is repeated.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shardwright::{Chains, Error, Reopen, Result};

use crate::app::App;
use crate::models::{Entry, Lease};
use crate::refusal::Refusal;
use crate::step_queue::Seat;

/// Most losses of a request that it was the first to find, or that prevented its own opening. Such
/// a request may be the cause.
const OWN_LOSSES_MAX: u32 = 3;

/// Most losses of a request together with those found first by other requests.
const LOSSES_MAX: u32 = 12;

/// Reason why a request cannot be answered now.
#[derive(Debug)]
pub(crate) enum Fault {
    /// A device or a worker was lost before the reply began, so the request can be repeated.
    Lost(Error),
    Refused(Refusal),
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        Fault::Refused(refusal)
    }
}

impl Fault {
    /// Creates the fault for an error of a model or of the machine.
    pub fn of_server(error: Error) -> Self {
        match error.is_device_lost() {
            true => Fault::Lost(error),
            false => Fault::Refused(Refusal::of_server(&error)),
        }
    }

    /// Creates the fault for an error about the data of a request, in this field.
    pub fn of_request(error: Error, param: &str) -> Self {
        match error.is_device_lost() {
            true => Fault::Lost(error),
            false => Fault::Refused(Refusal::of_request(&error).at(param)),
        }
    }
}

/// Losses of a request so far.
#[derive(Debug, Default)]
struct Losses {
    own: u32,
    all: u32,
}

impl Losses {
    /// Counts a loss. Returns whether the request may go on.
    fn add(&mut self, is_own: bool) -> bool {
        self.own += u32::from(is_own);
        self.all += 1;
        self.own <= OWN_LOSSES_MAX && self.all <= LOSSES_MAX
    }
}

/// The open model of a request. After a loss, it is replaced by the model opened again.
pub(crate) struct Held {
    app: Arc<App>,
    entry: Arc<Entry>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    lease: Option<Arc<Lease>>,
    losses: Losses,
}

impl Held {
    pub fn new(app: &Arc<App>, entry: &Arc<Entry>) -> Arc<Self> {
        Arc::new(Held { app: Arc::clone(app), entry: Arc::clone(entry), state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the open model, and opens it if needed.
    pub fn lease(&self) -> Result<Arc<Lease>> {
        if let Some(lease) = &self.state().lease {
            return Ok(Arc::clone(lease));
        }
        let lease = Arc::new(self.app.models.lease(&self.entry)?);
        self.state().lease = Some(Arc::clone(&lease));
        Ok(lease)
    }

    /// Runs `attempt`. After a loss it is repeated with the model opened again, within the limits
    /// of a request.
    pub fn retry<T>(
        &self,
        mut attempt: impl FnMut() -> std::result::Result<T, Fault>,
    ) -> std::result::Result<T, Refusal> {
        loop {
            match attempt() {
                Ok(done) => return Ok(done),
                Err(Fault::Refused(refusal)) => return Err(refusal),
                Err(Fault::Lost(error)) if self.lost(&error) => {}
                Err(Fault::Lost(error)) => return Err(Refusal::of_server(&error)),
            }
        }
    }

    /// Drops the lost model. Returns whether the request may go on.
    fn lost(&self, error: &Error) -> bool {
        let lease = self.state().lease.take();
        // An opening that fails counts as a loss of this request.
        let is_own = lease.is_none_or(|lease| self.app.models.lose(&lease, error));
        let may_go_on = self.state().losses.add(is_own);
        if may_go_on {
            self.entry.metrics.recovered();
        }
        may_go_on
    }

    /// Returns a callback with which the session of this request continues on the model opened
    /// again. `seat` is its place among the requests of the model.
    pub fn reopen(self: &Arc<Self>, seat: &Arc<Seat>) -> Reopen {
        let (held, seat) = (Arc::clone(self), Arc::clone(seat));
        Box::new(move |error: &Error| {
            // Other requests find the loss meanwhile, and free the memory of their sessions.
            seat.leave();
            held.lost(error).then(|| held.opened_again())
        })
    }

    /// Opens the model for a session that exists already.
    fn opened_again(&self) -> Result<Chains> {
        let lease = self.lease()?;
        if let Err(error) = self.app.models.hold_session(&lease) {
            // The model is not lost. Other requests keep it.
            self.state().lease = None;
            return Err(error);
        }
        Ok(lease.loaded.model.chains())
    }
}

#[cfg(test)]
mod tests {
    use shardwright::ErrorKind;

    use super::*;

    #[test]
    fn a_request_goes_on_after_a_bounded_number_of_losses() {
        let until_the_end = |is_own: bool| {
            let mut losses = Losses::default();
            (0..100).take_while(|_| losses.add(is_own)).count()
        };
        assert_eq!(until_the_end(true), OWN_LOSSES_MAX as usize);
        assert_eq!(until_the_end(false), LOSSES_MAX as usize);
    }

    #[test]
    fn only_losses_are_repeated() {
        let odd = || Error::new(ErrorKind::Shim, "odd");
        for fault in
            [Fault::of_server(odd().of_lost_device()), Fault::of_request(odd().of_lost_device(), "x")]
        {
            assert!(matches!(&fault, Fault::Lost(error) if error.is_device_lost()), "{fault:?}");
        }
        let refused = [Fault::of_server(odd()), Fault::of_request(Error::argument("odd"), "x")];
        let statuses = refused.map(|fault| match fault {
            Fault::Refused(refusal) => refusal.status().as_u16(),
            Fault::Lost(error) => panic!("{error}"),
        });
        assert_eq!(statuses, [500, 400]);
    }
}
