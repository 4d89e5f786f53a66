//! State that all requests share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::generation::OpenRequests;
use crate::guard::Hosts;
use crate::keys::Keys;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::models::Models;
use crate::refusal::Refusal;

/// Bytes that a permit for bodies stands for.
pub(crate) const BODY_UNIT: usize = 1024;

/// Bodies of the largest size that are received at once.
const BODIES: usize = 8;

/// State that all requests share.
pub(crate) struct App {
    pub models: Models,
    pub limits: Limits,
    pub keys: Option<Keys>,
    pub hosts: Hosts,
    pub metrics: Metrics,
    pub open: OpenRequests,
    /// A permit for each request that may generate or embed.
    permits: Arc<Semaphore>,
    /// A permit for each unit of bodies in memory.
    pub bodies: Arc<Semaphore>,
    is_stopping: AtomicBool,
}

impl App {
    pub fn new(models: Models, limits: Limits, keys: Option<Keys>, hosts: Hosts) -> Self {
        let bodies = (limits.body_bytes / BODY_UNIT + 1).saturating_mul(BODIES);
        App {
            permits: Arc::new(Semaphore::new(limits.open_requests.min(Semaphore::MAX_PERMITS))),
            bodies: Arc::new(Semaphore::new(bodies.min(Semaphore::MAX_PERMITS))),
            models,
            limits,
            keys,
            hosts,
            metrics: Metrics::default(),
            open: OpenRequests::default(),
            is_stopping: AtomicBool::new(false),
        }
    }

    /// Admits a request, or refuses it if there are too many.
    pub fn admit(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        if self.is_stopping() {
            return Err(Refusal::stopping());
        }
        Arc::clone(&self.permits).try_acquire_owned().map_err(|_| {
            let what = format!("{} requests are open, which is the limit", self.limits.open_requests);
            let status = axum::http::StatusCode::TOO_MANY_REQUESTS;
            Refusal::busy(status, "too_many_requests", what, "retry after the time in `Retry-After`")
        })
    }

    /// Returns the number of open requests.
    pub fn open_requests(&self) -> usize {
        self.limits.open_requests.saturating_sub(self.permits.available_permits())
    }

    /// Waits until no request is open.
    pub async fn idle(&self) {
        let all = u32::try_from(self.limits.open_requests).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let _ = self.permits.acquire_many(all).await;
    }

    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }

    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
    }
}
