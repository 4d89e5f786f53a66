//! What an interrupt does: while the program works, the first asks what is going on to stop and a
//! second ends the program. While it waits for a line of the user's, one ends it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of a program that an interrupt ended.
const ENDED: i32 = 130;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static WAITING: AtomicBool = AtomicBool::new(false);
static ASKED: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

/// From now on interrupts are taken; before that, one ends the program.
pub fn listen() {
    static LISTENING: AtomicBool = AtomicBool::new(false);
    if LISTENING.swap(true, Ordering::Relaxed) {
        return;
    }
    let installed = ctrlc::set_handler(|| {
        if WAITING.load(Ordering::SeqCst) || INTERRUPTED.swap(true, Ordering::SeqCst) {
            std::process::exit(ENDED);
        }
        if let Some(asked) = ASKED.get() {
            asked();
        }
    });
    if let Err(error) = installed {
        tracing::warn!(%error, "an interrupt will end the program at once");
    }
}

/// The first interrupt of each work calls `asked`, which is set once; one that came since the work
/// began calls it now.
pub fn call(asked: impl Fn() + Send + Sync + 'static) {
    if ASKED.set(Box::new(asked)).is_ok() {
        listen();
        if let (true, Some(asked)) = (happened(), ASKED.get()) {
            asked();
        }
    }
}

/// Whether there was one in the work that is going on.
pub fn happened() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// What comes now is work of its own: no earlier interrupt was meant for it.
pub fn begin() {
    INTERRUPTED.store(false, Ordering::SeqCst);
}

/// Waits for what only somebody else can give. Nothing is lost if an interrupt ends the program
/// meanwhile, and nothing else would end the waiting.
pub fn while_waiting<R>(wait: impl FnOnce() -> R) -> R {
    WAITING.store(true, Ordering::SeqCst);
    let given = wait();
    WAITING.store(false, Ordering::SeqCst);
    given
}
