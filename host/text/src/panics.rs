//! Panics of the tokenizer library: they become errors, and the terminal does not show them.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::Once;

/// A function that the standard library calls for every panic of the process.
type Hook = Box<dyn Fn(&PanicHookInfo<'_>) + Send + Sync>;

thread_local! {
    /// Whether a panic of this thread becomes an error.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Calls the tokenizer library and turns panics into errors. It asserts properties of its input
/// that a hostile file can violate. A panic leaves no state behind that is read later: the
/// tokenizer is only borrowed immutably, or dropped.
pub(crate) fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    static INSTALLED: Once = Once::new();
    // A thread that panics cannot change the hook.
    if !std::thread::panicking() {
        INSTALLED.call_once(|| set_hook(silencing(take_hook())));
    }
    let outer = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    GUARDED.set(outer);
    match result {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => Err(panic_message(panic.as_ref())),
    }
}

/// Returns a hook that calls `previous`, usually the application's own, for panics that do not
/// become errors.
fn silencing(previous: Hook) -> Hook {
    Box::new(move |panic| {
        if !GUARDED.try_with(Cell::get).unwrap_or(false) {
            previous(panic);
        }
    })
}

/// Returns the message of a caught panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let words = panic
        .downcast_ref::<&str>()
        .map(|words| (*words).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    format!("internal failure: {}", words.as_deref().unwrap_or("no message"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn a_panic_that_becomes_an_error_reaches_no_hook() {
        // The hook of this crate is installed first, so that no other test replaces the one below.
        guarded(|| Ok(())).unwrap();
        let seen = Arc::new(AtomicUsize::new(0));
        let (count, here, previous) = (Arc::clone(&seen), thread::current().id(), take_hook());
        set_hook(silencing(Box::new(move |panic| {
            if thread::current().id() == here {
                count.fetch_add(1, Ordering::Relaxed);
            } else {
                previous(panic);
            }
        })));
        let error = guarded::<()>(|| panic!("on purpose")).unwrap_err();
        assert_eq!((error.as_str(), seen.load(Ordering::Relaxed)), ("internal failure: on purpose", 0));
        assert!(catch_unwind(|| panic!("on purpose")).is_err());
        assert_eq!(seen.load(Ordering::Relaxed), 1);
    }
}
