//! Reports the progress of long work and notes for the user, and cancels it.

use std::ops::Range;

/// Observer of a compilation, or of longer work that contains it.
pub trait Watch {
    /// Receives the progress of the whole work, 0 to 1000, and the current stage.
    fn progress(&mut self, per_mille: u32, stage: &str) {
        let _ = (per_mille, stage);
    }

    /// Receives a message to show immediately, for example that the work is waiting for something.
    fn note(&mut self, text: &str) {
        let _ = text;
    }

    /// Returns whether to stop. Called often.
    fn cancelled(&self) -> bool {
        false
    }
}

impl Watch for () {}

/// A part of longer work. Its 0 to 1000 map to a range of the whole, and progress never decreases.
pub struct Part<'w> {
    whole: &'w mut dyn Watch,
    range: Range<u32>,
    /// Progress of this part, 0 to 1000.
    done: u32,
    name: Option<String>,
}

impl<'w> Part<'w> {
    /// Creates the part that covers this range of the whole's 1000.
    pub fn new(whole: &'w mut dyn Watch, range: Range<u32>) -> Self {
        Part { whole, range, done: 0, name: None }
    }

    /// Prefixes every stage with this name, such as `decoder.0-4`.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Returns a part of this part, from its current progress to `end`, both of 1000.
    pub fn then(&mut self, end: u32) -> Part<'_> {
        let start = self.done;
        self.done = end.clamp(start, 1000);
        let range = self.of_whole(start)..self.of_whole(self.done);
        Part { whole: &mut *self.whole, range, done: 0, name: self.name.clone() }
    }

    /// Returns the next part, with three quarters of the remainder. For work that may have to be
    /// repeated.
    pub fn most_of_the_rest(&mut self) -> Part<'_> {
        self.then(self.done + (1000 - self.done) * 3 / 4)
    }

    fn of_whole(&self, per_mille: u32) -> u32 {
        let length = u64::from(self.range.end.saturating_sub(self.range.start));
        self.range.start + (length * u64::from(per_mille) / 1000) as u32
    }
}

impl Watch for Part<'_> {
    fn progress(&mut self, per_mille: u32, stage: &str) {
        self.done = self.done.max(per_mille.min(1000));
        let now = self.of_whole(self.done);
        match &self.name {
            Some(name) => self.whole.progress(now, &format!("{name}: {stage}")),
            None => self.whole.progress(now, stage),
        }
    }

    fn note(&mut self, text: &str) {
        self.whole.note(text);
    }

    fn cancelled(&self) -> bool {
        self.whole.cancelled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Recorded(Vec<(u32, String)>);

    impl Watch for Recorded {
        fn progress(&mut self, per_mille: u32, stage: &str) {
            self.0.push((per_mille, stage.to_owned()));
        }
    }

    #[test]
    fn parts_of_a_whole_follow_each_other_and_never_go_back() {
        let mut reported = Recorded::default();
        let mut whole = Part::new(&mut reported, 0..1000);
        whole.then(200).progress(500, "costs");
        for attempt in ["first", "second"] {
            let mut part = whole.most_of_the_rest();
            part.progress(0, attempt);
            {
                let mut shard = part.then(500).named("decoder.0-4");
                shard.progress(1000, "serialising");
                shard.progress(10, "again");
            }
            part.progress(2000, "too far");
        }
        whole.then(5000).progress(1000, "loading");
        let places: Vec<u32> = reported.0.iter().map(|(place, _)| *place).collect();
        assert!(places.is_sorted(), "{places:?}");
        assert_eq!((places[0], *places.last().unwrap()), (100, 1000), "{places:?}");
        assert!(reported.0.iter().any(|(_, stage)| stage == "decoder.0-4: serialising"), "{:?}", reported.0);
    }

    /// A whole that is cancelled.
    struct Stopped;

    impl Watch for Stopped {
        fn cancelled(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_part_is_cancelled_with_its_whole() {
        assert!(Part::new(&mut Stopped, 0..1).cancelled());
    }
}
