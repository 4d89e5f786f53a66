//! Handles that cancel calls without a session.

use shardwright_bindings_core::Cancel;

use crate::handle::Table;
use crate::memory::Out;
use crate::status::{guard, sw_status};

/// Cancels calls without a session, such as opening a model, from any thread.
pub struct sw_cancel {
    _private: [u8; 0],
}

pub(crate) static CANCELS: Table<Cancel, sw_cancel> = Table::new("cancel handle");

/// Creates a cancel handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_cancel_new(cancel: *mut *mut sw_cancel) -> sw_status {
    guard(|| {
        Out::new(cancel, std::ptr::null_mut(), "the place for the cancel handle")?
            .set(CANCELS.add(Cancel::new()));
        Ok(())
    })
}

/// Requests the calls with this handle to stop with `SW_CANCELLED`. The request is permanent.
#[unsafe(no_mangle)]
pub extern "C" fn sw_cancel_request(cancel: *const sw_cancel) -> sw_status {
    guard(|| {
        CANCELS.get(cancel)?.cancel();
        Ok(())
    })
}

/// Closes a cancel handle. Calls that use it continue.
#[unsafe(no_mangle)]
pub extern "C" fn sw_cancel_close(cancel: *mut sw_cancel) -> sw_status {
    guard(|| CANCELS.remove(cancel).map(drop))
}
