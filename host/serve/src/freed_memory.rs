//! Memory that requests have freed goes back to the system.
//!
//! Requests, and models that are opened again after a loss, need more memory for a moment than the
//! server needs afterwards. The allocator would keep it.

use std::sync::Arc;
use std::time::Duration;

use shardwright_files::allocator;
use tokio::{task, time};

use crate::app::App;

/// Time between two looks at the requests.
const PAUSE: Duration = Duration::from_secs(1);

/// Gives freed memory back, again and again while requests are answered, and once after them.
pub(crate) async fn give_back(app: Arc<App>) {
    let mut pause = time::interval(PAUSE);
    let mut seen = None;
    loop {
        pause.tick().await;
        let state = (app.models.uses(), app.open_requests());
        let is_idle = state.1 == 0 && seen == Some(state);
        if !is_idle {
            // Without a thread for it, the next look tries again.
            let _ = task::spawn_blocking(allocator::give_back).await;
        }
        seen = Some(state);
    }
}
