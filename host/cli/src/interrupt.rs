//! What an interrupt does: the first asks what is going on to stop, a second ends the program.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static ASKED: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

/// From now on interrupts are taken; before that, one ends the program.
pub fn listen() {
    static LISTENING: AtomicBool = AtomicBool::new(false);
    if LISTENING.swap(true, Ordering::Relaxed) {
        return;
    }
    let installed = ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        if let Some(asked) = ASKED.get() {
            asked();
        }
    });
    if let Err(error) = installed {
        tracing::warn!(%error, "an interrupt will end the program at once");
    }
}

/// The first interrupt calls `asked`, which is set once.
pub fn call(asked: impl Fn() + Send + Sync + 'static) {
    if ASKED.set(Box::new(asked)).is_ok() {
        listen();
    }
}

/// Whether there was one.
pub fn happened() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
