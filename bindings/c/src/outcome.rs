//! Results of any length: texts, numbers and tokens.

use std::ffi::c_char;
use std::sync::Arc;

use crate::handle::Table;
use crate::memory::{Out, terminated};
use crate::status::{guard, sw_status};

/// A text, numbers or tokens that a function returned.
pub struct sw_result {
    _private: [u8; 0],
}

/// The content of a result, which never changes.
pub(crate) enum Content {
    /// A text with a 0 byte at its end.
    Text(Vec<u8>),
    Floats(Vec<f32>),
    Tokens(Vec<u32>),
}

static RESULTS: Table<Arc<Content>, sw_result> = Table::new("result");

impl Content {
    pub(crate) fn text(text: String) -> Content {
        Content::Text(terminated(text))
    }
}

/// A place for the handle of a result.
pub(crate) struct ResultOut(Out<*mut sw_result>);

impl ResultOut {
    pub(crate) fn new(result: *mut *mut sw_result) -> shardwright_bindings_core::Result<ResultOut> {
        Ok(ResultOut(Out::new(result, std::ptr::null_mut(), "the place for the result")?))
    }

    /// Returns a place that may be NULL.
    pub(crate) fn optional(result: *mut *mut sw_result) -> ResultOut {
        ResultOut(Out::optional(result, std::ptr::null_mut()))
    }

    /// Creates the result, unless the place is NULL.
    pub(crate) fn set(&self, content: Content) {
        if self.0.is_wanted() {
            self.0.set(RESULTS.add(Arc::new(content)));
        }
    }
}

/// Writes the length of `found` and returns its place, which stays valid until the result is
/// closed.
fn placed<T>(found: Option<&[T]>, count: *mut usize) -> *const T {
    Out::optional(count, 0).set(found.map_or(0, <[T]>::len));
    found.map_or(std::ptr::null(), <[T]>::as_ptr)
}

/// Returns the object behind a handle. The table keeps it, so pointers into it outlive the returned
/// one.
fn content(result: *const sw_result) -> Option<Arc<Content>> {
    let mut found = None;
    guard(|| {
        found = Some(RESULTS.get(result)?);
        Ok(())
    });
    found
}

/// Returns the text of a result, valid until the result is closed. `bytes` may be NULL, and gets
/// the length without the 0 byte at the end. Returns NULL if the handle is not of an open result
/// with a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_result_text(result: *const sw_result, bytes: *mut usize) -> *const c_char {
    match content(result).as_deref() {
        Some(Content::Text(text)) => placed(text.split_last().map(|(_, text)| text), bytes).cast(),
        _ => placed::<u8>(None, bytes).cast(),
    }
}

/// Returns the numbers of a result, valid until the result is closed. `count` may be NULL. Returns
/// NULL if the handle is not of an open result with numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_result_floats(result: *const sw_result, count: *mut usize) -> *const f32 {
    match content(result).as_deref() {
        Some(Content::Floats(floats)) => placed(Some(floats), count),
        _ => placed(None, count),
    }
}

/// Returns the token ids of a result, valid until the result is closed. `count` may be NULL.
/// Returns NULL if the handle is not of an open result with tokens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_result_tokens(result: *const sw_result, count: *mut usize) -> *const u32 {
    match content(result).as_deref() {
        Some(Content::Tokens(tokens)) => placed(Some(tokens), count),
        _ => placed(None, count),
    }
}

/// Closes a result and frees its memory.
#[unsafe(no_mangle)]
pub extern "C" fn sw_result_close(result: *mut sw_result) -> sw_status {
    guard(|| RESULTS.remove(result).map(drop))
}
