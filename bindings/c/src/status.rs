//! Statuses, and the last failure of each thread.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use shardwright_bindings_core::{Error, ErrorKind, Result};

use crate::memory::{Plain, terminated, write_sized};

/// Outcome of a call.
pub type sw_status = i32;

/// Success.
pub const SW_OK: sw_status = 0;
/// Invalid arguments.
pub const SW_ARGUMENT: sw_status = 1;
/// A file is damaged or inconsistent.
pub const SW_INVALID: sw_status = 2;
/// Valid, but not supported by this version or build.
pub const SW_UNSUPPORTED: sw_status = 3;
/// Made for another version, chip, model or shim.
pub const SW_INCOMPATIBLE: sw_status = 4;
/// A file or a named item does not exist, or cannot be read or written.
pub const SW_MISSING: sw_status = 5;
/// No plan was found, or every plan was refused.
pub const SW_PLANNING: sw_status = 6;
/// A shim failed while compiling or running.
pub const SW_SHIM: sw_status = 7;
/// Not signed as the policy requires, or revoked.
pub const SW_UNTRUSTED: sw_status = 8;
/// Under `strict`, a result would have deviated from the request.
pub const SW_STRICT: sw_status = 9;
/// The prompt and the reply do not fit the context.
pub const SW_CONTEXT: sw_status = 10;
/// The memory budget is too small, or the system had too little memory.
pub const SW_MEMORY: sw_status = 11;
/// The system had too little disk space, or too few open files, processes or threads.
pub const SW_RESOURCE: sw_status = 12;
/// Cancelled by the caller.
pub const SW_CANCELLED: sw_status = 13;
/// A bug in this library.
pub const SW_INTERNAL: sw_status = 14;
/// The handle is closed.
pub const SW_CLOSED: sw_status = 15;
/// Another call of the same session is in progress.
pub const SW_BUSY: sw_status = 16;

/// The last failure of a thread. Its texts are valid until the next failure of a call on this
/// thread.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sw_error {
    /// Size of this struct.
    pub size: usize,
    /// The status that the call returned. `SW_OK` if no call failed.
    pub status: sw_status,
    /// Whether a device or its worker process was lost. Opening the model again may help.
    pub is_device_lost: i32,
    /// The message without the place. Never NULL.
    pub message: *const c_char,
    /// The place of the failure, such as a file, or NULL.
    pub place: *const c_char,
    /// Advice for the user, one sentence, or NULL.
    pub help: *const c_char,
}

// SAFETY: all fields are numbers and pointers, for which any bits are valid.
unsafe impl Plain for sw_error {
    const FIRST_SIZE: usize = size_of::<Self>();
}

/// A failure with texts that C can read.
#[derive(Default)]
struct Last {
    status: sw_status,
    is_device_lost: bool,
    message: Vec<u8>,
    place: Option<Vec<u8>>,
    help: Option<Vec<u8>>,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
}

fn status_of(kind: ErrorKind) -> sw_status {
    match kind {
        ErrorKind::Argument => SW_ARGUMENT,
        ErrorKind::Invalid => SW_INVALID,
        ErrorKind::Unsupported => SW_UNSUPPORTED,
        ErrorKind::Incompatible => SW_INCOMPATIBLE,
        ErrorKind::Missing => SW_MISSING,
        ErrorKind::Planning => SW_PLANNING,
        ErrorKind::Shim => SW_SHIM,
        ErrorKind::Untrusted => SW_UNTRUSTED,
        ErrorKind::Strict => SW_STRICT,
        ErrorKind::Context => SW_CONTEXT,
        ErrorKind::Memory => SW_MEMORY,
        ErrorKind::Resource => SW_RESOURCE,
        ErrorKind::Cancelled => SW_CANCELLED,
        ErrorKind::Closed => SW_CLOSED,
        ErrorKind::Busy => SW_BUSY,
        _ => SW_INTERNAL,
    }
}

/// Runs the body of a function of the interface. Failures and panics become a status and the last
/// failure of this thread.
pub(crate) fn guard(call: impl FnOnce() -> Result<()>) -> sw_status {
    let error = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return SW_OK,
        Ok(Err(error)) => error,
        Err(panic) => {
            let error = bug(&*panic);
            // The destructor of a foreign value might panic again.
            std::mem::forget(panic);
            error
        }
    };
    remember(error)
}

fn bug(panic: &(dyn Any + Send)) -> Error {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic");
    let what = format!("a bug in this library ended the call: {said}");
    Error::new(ErrorKind::Internal, what, "close the handle, and report the bug with this message")
}

fn remember(error: Error) -> sw_status {
    let last = Last {
        status: status_of(error.kind),
        is_device_lost: error.is_device_lost,
        message: terminated(error.message),
        place: error.place.map(terminated),
        help: error.help.map(terminated),
    };
    let status = last.status;
    // A thread that ends has no last failure any more.
    let _ = LAST.try_with(|slot| slot.replace(last));
    status
}

/// Writes the last failure of a call on this thread. A call that succeeds does not change it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_last_error(error: *mut sw_error) -> sw_status {
    let write = || {
        let found = LAST.try_with(|slot| {
            let last = slot.borrow();
            let text =
                |text: &Option<Vec<u8>>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr().cast());
            let message = if last.message.is_empty() { c"".as_ptr() } else { last.message.as_ptr().cast() };
            let (place, help) = (text(&last.place), text(&last.help));
            let is_device_lost = i32::from(last.is_device_lost);
            sw_error { size: 0, status: last.status, is_device_lost, message, place, help }
        });
        let none = sw_error {
            size: 0,
            status: SW_OK,
            is_device_lost: 0,
            message: c"".as_ptr(),
            place: std::ptr::null(),
            help: std::ptr::null(),
        };
        write_sized(error, found.unwrap_or(none), "the error")
    };
    // Not through `guard`: a wrong argument of this function leaves the last failure as it is.
    match catch_unwind(AssertUnwindSafe(write)) {
        Ok(Ok(())) => SW_OK,
        Ok(Err(error)) => status_of(error.kind),
        Err(_) => SW_INTERNAL,
    }
}

/// Returns the name of a status, such as "context". "unknown" for other numbers. The text is
/// static.
#[unsafe(no_mangle)]
pub extern "C" fn sw_status_name(status: sw_status) -> *const c_char {
    let name: &CStr = match status {
        SW_OK => c"ok",
        SW_ARGUMENT => c"argument",
        SW_INVALID => c"invalid",
        SW_UNSUPPORTED => c"unsupported",
        SW_INCOMPATIBLE => c"incompatible",
        SW_MISSING => c"missing",
        SW_PLANNING => c"planning",
        SW_SHIM => c"shim",
        SW_UNTRUSTED => c"untrusted",
        SW_STRICT => c"strict",
        SW_CONTEXT => c"context",
        SW_MEMORY => c"memory",
        SW_RESOURCE => c"resource",
        SW_CANCELLED => c"cancelled",
        SW_INTERNAL => c"internal",
        SW_CLOSED => c"closed",
        SW_BUSY => c"busy",
        _ => c"unknown",
    };
    name.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_status_with_its_name() {
        for kind in ErrorKind::ALL {
            // SAFETY: the names are static texts with a 0 byte.
            let name = unsafe { CStr::from_ptr(sw_status_name(status_of(kind))) };
            assert_eq!(name.to_str().unwrap(), kind.name());
        }
    }

    #[test]
    fn a_panic_becomes_a_status() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let status = guard(|| panic!("odd {}", 7));
        std::panic::set_hook(hook);
        assert_eq!(status, SW_INTERNAL);
        let message = LAST.with_borrow(|last| String::from_utf8(last.message.clone()).unwrap());
        assert!(message.contains("a bug in this library") && message.contains("odd 7"), "{message}");
    }
}
