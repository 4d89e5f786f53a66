//! Interrupt handling. While the program works, the first interrupt requests cancellation and the
//! second ends the program. While it waits for a line of input, the first interrupt ends it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of a program that an interrupt ended.
const ENDED: i32 = 130;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static WAITING: AtomicBool = AtomicBool::new(false);
static ASKED: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

/// Handles interrupts from now on. Before that, an interrupt ends the program.
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
        tracing::warn!("cannot handle interrupts, so the first one ends the program at once: {error}");
    }
}

/// Sets the function that the first interrupt of each piece of work calls. Only the first call sets
/// it. If an interrupt came since the work started, it is called now.
pub fn call(asked: impl Fn() + Send + Sync + 'static) {
    if ASKED.set(Box::new(asked)).is_ok() {
        listen();
        if let (true, Some(asked)) = (happened(), ASKED.get()) {
            asked();
        }
    }
}

/// Returns whether the current work was interrupted.
pub fn happened() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Starts new work. Earlier interrupts do not apply to it.
pub fn begin() {
    INTERRUPTED.store(false, Ordering::SeqCst);
}

/// Waits for external input. An interrupt then ends the program, because it loses no work and could
/// not be stopped otherwise.
pub fn while_waiting<R>(wait: impl FnOnce() -> R) -> R {
    WAITING.store(true, Ordering::SeqCst);
    let result = wait();
    WAITING.store(false, Ordering::SeqCst);
    result
}
