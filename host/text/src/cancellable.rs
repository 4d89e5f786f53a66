//! Encoding of long texts, which can take seconds and cannot be stopped within the tokenizer
//! library.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use shardwright_vocabulary::{Error, ErrorKind, Result};

/// Texts of at least this size are encoded on a separate thread: a megabyte takes about a second.
const LONG_BYTES: usize = 256 << 10;

/// Interval at which `cancelled` is polled.
const GLANCE: Duration = Duration::from_millis(50);

/// Calls `encode`, whose texts have `bytes` bytes in total, until `cancelled` returns true.
///
/// # Errors
///
/// The errors of `encode`, and [`ErrorKind::Cancelled`] once `cancelled` returns true while a long
/// text is encoded. The thread then keeps running until its text is encoded, and its result is
/// dropped.
pub(crate) fn cancellable(
    bytes: usize,
    cancelled: impl Fn() -> bool,
    encode: impl FnOnce() -> Result<Vec<u32>> + Send + 'static,
) -> Result<Vec<u32>> {
    if bytes < LONG_BYTES {
        return encode();
    }
    let (sender, receiver) = sync_channel(1);
    let thread = std::thread::Builder::new().name("encoding".into()).spawn(move || {
        // The receiver is gone if the caller was cancelled.
        let _ = sender.send(encode());
    });
    let failed = |error: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Memory, format!("a text of {bytes} bytes could not be encoded: {error}"))
            .with_help("encode less text at once")
    };
    thread.map_err(|error| failed(&error))?;
    loop {
        match receiver.recv_timeout(GLANCE) {
            Ok(ids) => return ids,
            Err(RecvTimeoutError::Timeout) if cancelled() => {
                let what = format!("encoding a text of {bytes} bytes was cancelled");
                let help = "run it again, or encode less text at once";
                return Err(Error::new(ErrorKind::Cancelled, what).with_help(help));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(failed(&"its thread panicked")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_long_text_is_left_behind_when_cancelled() {
        let (hold, held) = channel::<()>();
        // Ends only once `hold` is dropped.
        let encode = move || {
            let _ = held.recv();
            Ok(vec![1])
        };
        let polls = Cell::new(0);
        let at_the_second = || polls.replace(polls.get() + 1) == 1;
        let error = cancellable(LONG_BYTES, at_the_second, encode).unwrap_err();
        assert_eq!((error.kind(), polls.get()), (ErrorKind::Cancelled, 2));
        drop(hold);

        assert_eq!(cancellable(LONG_BYTES, || false, || Ok(vec![2])).unwrap(), [2]);
        assert_eq!(cancellable(1, || true, || Ok(vec![3])).unwrap(), [3]);
        let error = cancellable(LONG_BYTES, || false, || panic!("on purpose")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Memory);
    }
}
