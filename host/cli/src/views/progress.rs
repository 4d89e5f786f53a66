use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use shardwright::Watch;

use super::{printable, say};
use crate::interrupt;

/// How far something is, on standard error, where that is a terminal; an interrupt asks it to stop. Gone when dropped.
pub struct Progress(ProgressBar);

impl Progress {
    /// At the beginning.
    pub fn new() -> Self {
        let bar = ProgressBar::new(1000);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {bar:30} {percent:>3}% {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        interrupt::listen();
        Progress(bar)
    }
}

impl Watch for Progress {
    fn progress(&mut self, per_mille: u32, stage: &str) {
        self.0.set_position(u64::from(per_mille));
        self.0.set_message(printable(stage));
    }

    fn note(&mut self, text: &str) {
        self.0.suspend(|| say(&format!("note: {text}")));
    }

    fn cancelled(&self) -> bool {
        interrupt::happened()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
