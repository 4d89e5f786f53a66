//! Shows a model's thoughts on standard error, separate from its answer.

use std::io::{IsTerminal, Write};

/// Writes the thoughts of one reply as they arrive, dimmed on a terminal.
#[derive(Default)]
pub struct Thoughts {
    open: bool,
}

impl Thoughts {
    /// Writes more of the thoughts.
    pub fn show(&mut self, text: &str) {
        let mut out = std::io::stderr().lock();
        let begin = match (self.open, out.is_terminal()) {
            (true, _) => "",
            (false, true) => "\u{1b}[2mthoughts: ",
            (false, false) => "thoughts: ",
        };
        self.open = true;
        // A reply continues even if its thoughts cannot be shown.
        let _ = write!(out, "{begin}{}", super::printable_view(text)).and_then(|()| out.flush());
    }

    /// Ends the thoughts, if there are any.
    pub fn end(&mut self) {
        if std::mem::take(&mut self.open) {
            let mut out = std::io::stderr().lock();
            let end = if out.is_terminal() { "\u{1b}[0m\n" } else { "\n" };
            let _ = out.write_all(end.as_bytes());
        }
    }
}

/// A reply that fails within a thought resets the terminal.
impl Drop for Thoughts {
    fn drop(&mut self) {
        self.end();
    }
}
