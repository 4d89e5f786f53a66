use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use shardwright::Watch;

use super::{printable, say};
use crate::interrupt;

/// Shows progress on standard error if that is a terminal. Reports an interrupt as a cancellation.
/// It is removed when dropped.
pub struct ProgressLine {
    bar: ProgressBar,
    /// The current work: `preparing demo-model`.
    what: String,
}

impl ProgressLine {
    /// Starts to show `what`, such as "preparing", of a checkpoint or bundle.
    pub fn new(what: &str, of: &Path) -> Self {
        let bar = ProgressBar::new(1000);
        // The stage is cut to the rest of the line.
        if let Ok(style) =
            ProgressStyle::with_template("{spinner} {bar:20} {percent:>3}% {elapsed:>4} {wide_msg}")
        {
            bar.set_style(style);
        }
        let name = of.file_name().unwrap_or(of.as_os_str()).to_string_lossy();
        let what = printable(&format!("{what} {name}"));
        bar.set_message(what.clone());
        // The elapsed time moves even if a single stage lasts minutes.
        super::tick(&bar);
        interrupt::listen();
        ProgressLine { bar, what }
    }
}

impl Watch for ProgressLine {
    fn progress(&mut self, per_mille: u32, stage: &str) {
        let reached = self.bar.position().max(u64::from(per_mille));
        self.bar.set_position(reached);
        self.bar.set_message(format!("{}: {}", self.what, printable(stage)));
    }

    fn note(&mut self, text: &str) {
        self.bar.suspend(|| say(&format!("note: {text}")));
    }

    fn cancelled(&self) -> bool {
        interrupt::happened()
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
