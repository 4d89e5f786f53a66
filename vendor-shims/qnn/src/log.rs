//! The vendor's log, which contains the reasons of failures.
//!
//! The code of a failed call is not specific, and only the log contains the reason. So the last
//! lines are kept, each call extracts the lines it caused, and they become part of error objects.
//! The library's callback has no user pointer, so there is one ring buffer per process.
//! [`session`](crate::session) serialises the calls that extract lines.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum lines kept. A failing finalize writes about ten, one at debug level thousands.
const MAX_LINES: usize = 512;
/// Maximum bytes kept of a line.
const MAX_LINE: usize = 2048;
/// Maximum lines and bytes in an error object.
const TAIL_LINES: usize = 24;
const TAIL_BYTES: usize = 8 << 10;

/// Lines that the library logs at error level for every call, and that are unrelated to failures.
const HARMLESS: &[&str] = &["unexpected GraphHtpSettings option 66"];

/// Severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Level {
    Error = 1,
    /// Something differs from the request.
    Warning = 2,
    /// An action of the library.
    Info = 3,
    /// More actions.
    Verbose = 4,
    /// Everything.
    Debug = 5,
}

impl Level {
    fn from_raw(raw: u32) -> Level {
        match raw {
            0 | 1 => Level::Error,
            2 => Level::Warning,
            3 => Level::Info,
            4 => Level::Verbose,
            _ => Level::Debug,
        }
    }

    const fn letter(self) -> char {
        match self {
            Level::Error => 'E',
            Level::Warning => 'W',
            Level::Info => 'I',
            Level::Verbose => 'V',
            Level::Debug => 'D',
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The library's level, except that lines known to be harmless are [`Level::Info`].
    pub level: Level,
    /// Text without the final line break, at most 2048 bytes.
    pub text: String,
}

impl std::fmt::Display for Line {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "[{}] {}", self.level.letter(), self.text)
    }
}

/// A position in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

/// Receiver of forwarded lines.
pub type Sink = Arc<dyn Fn(&Line) + Send + Sync>;

#[derive(Default)]
struct Ring {
    lines: VecDeque<Line>,
    /// Number of lines ever written, and so the number of the next line.
    written: u64,
    sink: Option<Sink>,
}

static RING: Mutex<Option<Ring>> = Mutex::new(None);

/// Makes other threads that read or write the log wait, so that a fork does not copy a locked log.
pub(crate) fn paused() -> impl Sized {
    RING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with_ring<T>(use_it: impl FnOnce(&mut Ring) -> T) -> T {
    let mut ring = RING.lock().unwrap_or_else(PoisonError::into_inner);
    use_it(ring.get_or_insert_default())
}

/// Forwards every line to `sink` from now on. `None` stops forwarding. The sink is called on the
/// library's threads, outside of any lock of the log.
pub fn forward(sink: Option<Sink>) {
    with_ring(|ring| ring.sink = sink);
}

/// Returns the position after the last line.
pub fn mark() -> Mark {
    with_ring(|ring| Mark(ring.written))
}

/// Returns the kept lines since a position.
pub fn since(mark: Mark) -> Vec<Line> {
    with_ring(|ring| {
        let first = ring.written - ring.lines.len() as u64;
        let skip = mark.0.saturating_sub(first) as usize;
        ring.lines.iter().skip(skip).cloned().collect()
    })
}

/// Formats the last lines for an error object. Prefers lines at error and warning level. The result
/// has at most 24 lines and 8 KiB.
pub fn tail(lines: &[Line]) -> String {
    let worth: Vec<&Line> = lines.iter().filter(|line| line.level <= Level::Warning).collect();
    let chosen = if worth.is_empty() { lines.iter().collect() } else { worth };
    let mut text = Vec::new();
    let mut bytes = 0;
    for line in chosen.iter().rev().take(TAIL_LINES) {
        let line = line.to_string();
        bytes += line.len() + 1;
        if bytes > TAIL_BYTES {
            break;
        }
        text.push(line);
    }
    text.reverse();
    text.join("\n")
}

/// Adds a line of our own. For example, the search for the library gives context to its messages.
pub fn note(text: impl Into<String>) {
    push(Level::Info, text.into());
}

fn push(level: Level, mut text: String) {
    if text.len() > MAX_LINE {
        let end = (0..=MAX_LINE).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
    text.truncate(text.trim_end().len());
    // Half of the lines repeat their level at the start.
    let rest = text.trim_start();
    let rest = ["<E>", "<W>", "<I>", "<V>", "<D>"]
        .iter()
        .find_map(|prefix| rest.strip_prefix(prefix))
        .unwrap_or(rest);
    text.drain(..text.len() - rest.trim_start().len());
    let level = if HARMLESS.iter().any(|harmless| text.contains(harmless)) { Level::Info } else { level };
    let line = Line { level, text };
    let sink = with_ring(|ring| {
        if ring.lines.len() == MAX_LINES {
            ring.lines.pop_front();
        }
        ring.lines.push_back(line.clone());
        ring.written += 1;
        ring.sink.clone()
    });
    if let Some(sink) = sink {
        sink(&line);
    }
}

unsafe extern "C" {
    // The last argument is a `va_list`, a pointer as explained at `ffi::LogCallback`.
    fn vsnprintf(text: *mut c_char, size: usize, format: *const c_char, arguments: *mut c_void) -> c_int;
}

/// Receives a line of the library's log.
///
/// # Safety
/// `format` is null or a format string for `arguments`, a `va_list` not used before.
pub(crate) unsafe extern "C" fn receive(
    format: *const c_char,
    level: u32,
    _time: u64,
    arguments: *mut c_void,
) {
    if format.is_null() {
        return;
    }
    let mut buffer = [0u8; MAX_LINE];
    // SAFETY: the buffer has that size and is ended by a null. The format fits its arguments as the
    // caller promises, and they are used once.
    let length = unsafe { vsnprintf(buffer.as_mut_ptr().cast(), buffer.len(), format, arguments) };
    let length = usize::try_from(length).unwrap_or(0).min(MAX_LINE - 1);
    let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
    // A panicking sink must not unwind into the library.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| push(Level::from_raw(level), text)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns only the lines of this test. The ring is shared by the process, and other tests
    /// write into it.
    fn own(lines: Vec<Line>) -> Vec<Line> {
        lines
            .into_iter()
            .filter(|line| line.text.contains("GraphHtpSettings option 66") || line.text.contains("own"))
            .collect()
    }

    #[test]
    fn lines_and_their_number_are_bounded() {
        let start = mark();
        push(Level::Error, "\u{e9}".repeat(MAX_LINE));
        let line =
            since(start).into_iter().find(|line| line.text.starts_with('\u{e9}')).expect("it was written");
        assert_eq!(line.text.len(), MAX_LINE);
        for number in 0..2 * MAX_LINES {
            push(Level::Warning, format!("line {number}"));
        }
        let kept = since(start);
        assert_eq!(kept.len(), MAX_LINES);
        let text = tail(&kept);
        assert!(text.lines().count() <= TAIL_LINES && text.len() <= TAIL_BYTES, "{text}");
        let long: Vec<Line> =
            (0..20).map(|_| Line { level: Level::Error, text: "x".repeat(MAX_LINE) }).collect();
        assert!(tail(&long).len() <= TAIL_BYTES);
    }

    #[test]
    fn lines_known_to_be_harmless_are_no_errors() {
        let start = mark();
        push(Level::Error, " <E> unexpected GraphHtpSettings option 66\n".to_owned());
        push(Level::Error, " <E> an own error".to_owned());
        let lines = own(since(start));
        assert_eq!(
            lines[0],
            Line { level: Level::Info, text: "unexpected GraphHtpSettings option 66".to_owned() }
        );
        assert_eq!(lines[1], Line { level: Level::Error, text: "an own error".to_owned() });
        assert_eq!(tail(&lines), "[E] an own error");
        assert_eq!(tail(&lines[..1]), "[I] unexpected GraphHtpSettings option 66");
        assert_eq!(own(since(mark())), []);
    }

    #[test]
    fn a_sink_sees_every_line_and_may_write_lines_itself() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let into = seen.clone();
        forward(Some(Arc::new(move |line: &Line| {
            if line.text == "for the sink" {
                note("from the sink");
            }
            into.lock().unwrap().push(line.text.clone());
        })));
        push(Level::Info, "for the sink".to_owned());
        forward(None);
        push(Level::Info, "after the sink".to_owned());
        let seen = seen.lock().unwrap();
        assert!(seen.iter().any(|text| text == "for the sink"), "{seen:?}");
        assert!(seen.iter().any(|text| text == "from the sink"), "{seen:?}");
        assert!(!seen.iter().any(|text| text == "after the sink"));
    }
}
