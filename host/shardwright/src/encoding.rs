//! Encoding of long texts, which can take seconds and cannot be stopped within the tokenizer.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use crate::{Error, ErrorKind, Result};

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
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use shardwright_runtime::CancelHandle;

    use super::*;

    #[test]
    fn a_long_text_is_left_behind_when_cancelled() {
        let cancel = CancelHandle::default();
        let (hold, held) = channel::<()>();
        let encode = move || {
            let _ = held.recv();
            Ok(vec![1])
        };
        let other = cancel.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            other.cancel();
        });
        let begun = Instant::now();
        let requested = || cancel.is_requested();
        let error = cancellable(LONG_BYTES, requested, encode).expect_err("cancelled");
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        drop(hold);
        cancel.reset();
        assert_eq!(cancellable(LONG_BYTES, requested, || Ok(vec![2])).expect("ids"), [2]);
        assert_eq!(cancellable(1, requested, || Ok(vec![3])).expect("ids"), [3]);
        let error = cancellable(LONG_BYTES, requested, || panic!("on purpose")).expect_err("a dead thread");
        assert_eq!(error.kind(), ErrorKind::Memory);
    }
}
