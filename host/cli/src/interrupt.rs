//! Interrupt handling: while the program works, the first interrupt requests cancellation and a
//! second ends the program. While it waits for a line of input, one ends it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of a program that an interrupt ended.
const ENDED: i32 = 130;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static WAITING: AtomicBool = AtomicBool::new(false);
static ASKED: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

/// Handles interrupts from now on; before that, one ends the program.
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
        tracing::warn!("an interrupt will end the program at once: {error}");
    }
}

/// The first interrupt of each piece of work calls `asked`, which is set once; if one came since
/// the work began, it is called now.
pub fn call(asked: impl Fn() + Send + Sync + 'static) {
    if ASKED.set(Box::new(asked)).is_ok() {
        listen();
        if let (true, Some(asked)) = (happened(), ASKED.get()) {
            asked();
        }
    }
}

/// Whether the current work was interrupted.
pub fn happened() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Begins new work: earlier interrupts do not apply to it.
pub fn begin() {
    INTERRUPTED.store(false, Ordering::SeqCst);
}

/// Waits for external input. If an interrupt ends the program meanwhile nothing is lost, and
/// nothing else would end the wait.
pub fn while_waiting<R>(wait: impl FnOnce() -> R) -> R {
    WAITING.store(true, Ordering::SeqCst);
    let result = wait();
    WAITING.store(false, Ordering::SeqCst);
    result
}
