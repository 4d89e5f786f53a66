//! Arguments that no caller should pass. Tests with a model are in the tests of the project.

use std::ffi::{CStr, CString, c_char};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::*;

fn last() -> (sw_status, String, String) {
    let mut error = sw_error {
        size: size_of::<sw_error>(),
        status: 0,
        is_device_lost: 0,
        message: null(),
        place: null(),
        help: null(),
    };
    // SAFETY: the struct is valid.
    assert_eq!(unsafe { sw_last_error(&raw mut error) }, SW_OK);
    let read = |text: *const c_char| match text.is_null() {
        true => String::new(),
        // SAFETY: the texts of an error end with a 0 byte, and no call fails meanwhile.
        false => unsafe { CStr::from_ptr(text) }.to_str().expect("UTF-8").to_owned(),
    };
    (error.status, read(error.message), read(error.help))
}

/// Checks the status of the call and that the last failure explains it.
fn refused(status: sw_status, expected: sw_status, words: &str) {
    let (remembered, message, help) = last();
    assert_eq!((status, remembered), (expected, expected), "{message}");
    assert!(message.contains(words), "no `{words}` in `{message}`");
    assert!(!help.is_empty(), "no help: {message}");
}

/// Opens a path that the test expects to fail.
fn open(path: *const c_char) -> sw_status {
    let mut model = std::ptr::without_provenance_mut(1);
    // SAFETY: the arguments are NULL or valid.
    let status = unsafe { sw_model_open(path, null(), &raw mut model) };
    assert!(model.is_null(), "a failed call sets the handle to NULL");
    status
}

#[test]
fn null_is_an_error_of_every_function_with_a_handle() {
    let (mut reply, mut session, mut result) = (null_mut(), null_mut(), null_mut());
    let (reply, session, result) = (&raw mut reply, &raw mut session, &raw mut result);
    let text = c"[]".as_ptr();
    // SAFETY: the arguments are NULL or valid.
    let statuses = unsafe {
        [
            sw_cancel_new(null_mut()),
            sw_cancel_request(null()),
            sw_cancel_close(null_mut()),
            sw_model_open(null(), null(), null_mut()),
            sw_model_open_volumes(null(), null(), null_mut()),
            sw_model_open_descriptor(0, 0, 0, null(), null_mut()),
            sw_model_close(null_mut()),
            sw_model_report(null(), result),
            sw_model_notices(null(), None, null_mut()),
            sw_model_memory(null(), null_mut()),
            sw_model_release_idle(null(), null_mut(), null_mut()),
            sw_model_prewarm(null(), null(), null_mut()),
            sw_model_embed(null(), text, 1, null(), result),
            sw_model_tokenize(null(), text, 1, 0, result),
            sw_model_detokenize(null(), null(), 0, 0, result),
            sw_session_open(null(), session),
            sw_session_restore(null(), text, session, result),
            sw_session_fork(null(), null(), session),
            sw_session_close(null_mut()),
            sw_session_configure(null(), null()),
            sw_session_constrain(null(), 0, null()),
            sw_session_set_tools(null(), text),
            sw_session_choose_tool(null(), 0, null()),
            sw_session_system(null(), text),
            sw_session_chat(null(), text, reply),
            sw_session_chat_parts(null(), null(), 0, None, null_mut(), reply),
            sw_session_reply_to(null(), null(), 0, None, null_mut(), reply),
            sw_session_tool_result(null(), text, text, 1),
            sw_session_answer(null(), reply),
            sw_session_complete(null(), text, 1, reply),
            sw_session_complete_tokens(null(), null(), 0, reply),
            sw_session_cancel(null()),
            sw_session_turns(null(), result),
            sw_session_tokens(null(), result),
            sw_session_forget_oldest_turn(null(), null_mut()),
            sw_session_rewind(null(), 0),
            sw_session_clear(null()),
            sw_session_release(null()),
            sw_session_resume(null(), null_mut()),
            sw_session_save(null(), text, null_mut()),
            sw_session_placement(null(), result),
            sw_reply_next(null(), null_mut()),
            sw_reply_each(null(), None, null_mut()),
            sw_reply_text(null(), result),
            sw_reply_cancel(null()),
            sw_reply_statistics(null(), null_mut()),
            sw_reply_close(null_mut()),
            sw_result_close(null_mut()),
        ]
    };
    for (number, status) in statuses.into_iter().enumerate() {
        assert_eq!(status, SW_ARGUMENT, "call {number}");
    }
    let (_, message, help) = last();
    assert_eq!((message.as_str(), help.is_empty()), ("the result is NULL", false));
    let mut count = 7;
    // SAFETY: the arguments are NULL or valid.
    unsafe {
        assert!(sw_result_text(null(), &raw mut count).is_null() && count == 0);
        assert!(sw_result_floats(null(), null_mut()).is_null());
        assert!(sw_result_tokens(null(), null_mut()).is_null());
    }
}

#[test]
fn structs_of_wrong_sizes_and_unknown_constants_are_refused() {
    // SAFETY: all fields are numbers, pointers and functions that may be NULL.
    let mut options: sw_open_options = unsafe { std::mem::zeroed() };
    let mut model = null_mut();
    let path = c"absent".as_ptr();
    let mut open = |options: &sw_open_options| {
        // SAFETY: the arguments are valid.
        unsafe { sw_model_open(path, options, &raw mut model) }
    };
    refused(open(&options), SW_ARGUMENT, "the options has the size 0");
    options.size = usize::MAX;
    refused(open(&options), SW_ARGUMENT, "the options has the size");
    options.size = size_of::<sw_open_options>();
    options.signatures = 3;
    refused(open(&options), SW_ARGUMENT, "`signatures` is 3");
    options.signatures = SW_SIGNATURES_OFF;
    options.fallback = -1;
    refused(open(&options), SW_ARGUMENT, "`fallback` is -1");
    options.fallback = SW_FALLBACK_ANY;
    options.isolation = 9;
    refused(open(&options), SW_ARGUMENT, "`isolation` is 9");
    options.isolation = SW_ISOLATION_AUTOMATIC;
    let list = [c"a".as_ptr(), null()];
    options.fallback_chains = list.as_ptr();
    refused(open(&options), SW_ARGUMENT, "`fallback_chains` without");
    (options.fallback_chains, options.flags) = (null(), list.as_ptr());
    refused(open(&options), SW_ARGUMENT, "`flags`: `a` has no `=`");
    (options.flags, options.chip_shim) = (null(), c"qnn".as_ptr());
    refused(open(&options), SW_ARGUMENT, "without `chip`");
    (options.chip_shim, options.shim_libraries) = (null(), list.as_ptr());
    refused(open(&options), SW_ARGUMENT, "1 shim libraries have 0 manifests");
    (options.shim_libraries, options.no_proofs) = (null(), 1);
    options.proofs_directory = c"a".as_ptr();
    refused(open(&options), SW_ARGUMENT, "both `no_proofs`");
    options.proofs_directory = null();
    options.cancel = (&raw const options).cast();
    refused(open(&options), SW_ARGUMENT, "the cancel handle is not a handle");
}

#[test]
fn paths_may_have_any_bytes_and_are_named_in_errors() {
    refused(open(null()), SW_ARGUMENT, "the path of the model is NULL");
    refused(open(c"".as_ptr()), SW_ARGUMENT, "the path of the model is empty");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m\u{f6}del \u{6a21}\u{578b} \u{1f98a}.swb");
    std::fs::write(&path, "no bundle").expect("written");
    let path = CString::new(path.to_str().expect("UTF-8")).expect("no 0 byte");
    let status = open(path.as_ptr());
    let (_, message, _) = last();
    assert_ne!(status, SW_OK);
    let mut error = sw_error {
        size: size_of::<sw_error>(),
        status: 0,
        is_device_lost: 0,
        message: null(),
        place: null(),
        help: null(),
    };
    // SAFETY: the struct is valid, and the texts of an error end with a 0 byte.
    let place = unsafe {
        assert_eq!(sw_last_error(&raw mut error), SW_OK);
        if error.place.is_null() { c"" } else { CStr::from_ptr(error.place) }
    };
    let shown = format!("{}: {message}", place.to_string_lossy());
    assert!(shown.contains("m\u{f6}del \u{6a21}\u{578b} \u{1f98a}.swb"), "{shown}");
    assert_ne!(open(c"no\xff\xfe such".as_ptr()), SW_OK);
}

#[test]
fn descriptors_are_checked() {
    let mut model = null_mut();
    let mut open = |descriptor, offset, length| {
        // SAFETY: the arguments are NULL or valid.
        unsafe { sw_model_open_descriptor(descriptor, offset, length, null(), &raw mut model) }
    };
    if cfg!(unix) {
        refused(open(-1, 0, 0), SW_ARGUMENT, "-1 is not a file descriptor");
        refused(open(i32::MAX, 0, 0), SW_MISSING, "the file descriptor");
        let file = tempfile::tempfile().expect("a file");
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        refused(open(number, 0, 1), SW_ARGUMENT, "are not within the 0 bytes");
        refused(open(number, u64::MAX, 2), SW_ARGUMENT, "are not within the 0 bytes");
        assert_ne!(open(number, 0, u64::MAX), SW_OK, "an empty file is not a bundle");
        file.metadata().expect("the descriptor is still open");
    }
}

#[test]
fn handles_are_closed_once_and_cancelled_from_many_threads() {
    let mut cancel = null_mut();
    // SAFETY: the place is valid.
    assert_eq!(unsafe { sw_cancel_new(&raw mut cancel) }, SW_OK);
    let (number, closed) = (cancel.addr(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let cancel = std::ptr::without_provenance_mut(number);
                for _ in 0..1000 {
                    let status = sw_cancel_request(cancel);
                    assert!(status == SW_OK || status == SW_CLOSED, "{status}");
                }
                if sw_cancel_close(cancel) == SW_OK {
                    closed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(closed.into_inner(), 1);
    refused(sw_cancel_close(cancel), SW_CLOSED, "the cancel handle is closed");
    refused(sw_session_cancel(cancel.cast()), SW_CLOSED, "not of a session");
}

#[test]
fn a_request_before_the_call_cancels_it() {
    let mut cancel = null_mut();
    // SAFETY: the place is valid.
    assert_eq!(unsafe { sw_cancel_new(&raw mut cancel) }, SW_OK);
    assert_eq!(sw_cancel_request(cancel), SW_OK);
    // SAFETY: all fields are numbers, pointers and functions that may be NULL.
    let mut options: sw_open_options = unsafe { std::mem::zeroed() };
    (options.size, options.cancel) = (size_of::<sw_open_options>(), cancel);
    let mut model = null_mut();
    // SAFETY: the arguments are valid.
    let status = unsafe { sw_model_open(c"absent".as_ptr(), &options, &raw mut model) };
    refused(status, SW_CANCELLED, "cancelled before it began");
    assert_eq!(sw_cancel_close(cancel), SW_OK);
}

#[test]
fn the_last_failure_belongs_to_its_thread() {
    refused(open(null()), SW_ARGUMENT, "NULL");
    std::thread::spawn(|| assert_eq!(last(), (SW_OK, String::new(), String::new())))
        .join()
        .expect("no panic");
    // SAFETY: NULL is refused.
    assert_eq!(unsafe { sw_last_error(null_mut()) }, SW_ARGUMENT);
    assert_eq!(last().0, SW_ARGUMENT);
}
