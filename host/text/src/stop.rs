//! Stop rules of a reply: ids, and strings found in the text across token boundaries.

use shardwright_vocabulary::{Error, Result};

use crate::generation::GenerationConfig;

/// Most stop strings in a set of rules.
pub const STOP_STRINGS_MAX: usize = 64;

/// Longest stop string, in bytes. Up to this much text can be pending while it may still become the
/// string.
pub const STOP_STRING_BYTES_MAX: usize = 1024;

/// The ids and strings that end a reply.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopRules {
    ids: Vec<u32>,
    strings: Vec<String>,
}

impl StopRules {
    /// Returns rules that stop at `ids`.
    pub fn new(ids: impl IntoIterator<Item = u32>) -> StopRules {
        let mut ids: Vec<u32> = ids.into_iter().collect();
        ids.sort_unstable();
        ids.dedup();
        StopRules { ids, strings: Vec::new() }
    }

    /// Returns rules that stop at the checkpoint's own stop ids and stop strings.
    ///
    /// # Errors
    ///
    /// The errors of [`StopRules::with_strings`].
    pub fn from_generation(config: &GenerationConfig) -> Result<StopRules> {
        StopRules::new(config.stop_ids.iter().copied()).with_strings(&config.stop_strings)
    }

    /// Also stops at `strings`. Each must have 1 to [`STOP_STRING_BYTES_MAX`] bytes, and there may
    /// be at most [`STOP_STRINGS_MAX`].
    pub fn with_strings<S: Into<String>>(
        mut self,
        strings: impl IntoIterator<Item = S>,
    ) -> Result<StopRules> {
        for string in strings {
            let string = string.into();
            let index = self.strings.len();
            let fault = if string.is_empty() {
                Some("is empty".to_owned())
            } else if string.len() > STOP_STRING_BYTES_MAX {
                Some(format!("has {} bytes; at most {STOP_STRING_BYTES_MAX} are allowed", string.len()))
            } else if index >= STOP_STRINGS_MAX {
                Some(format!("is one too many; at most {STOP_STRINGS_MAX} are allowed"))
            } else {
                None
            };
            if let Some(reason) = fault {
                return Err(Error::argument(format!("stop string {index} {reason}")).with_help(format!(
                    "give at most {STOP_STRINGS_MAX} stop strings of 1 to {STOP_STRING_BYTES_MAX} bytes"
                )));
            }
            self.strings.push(string);
        }
        Ok(self)
    }

    /// Returns the stop ids in ascending order.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Returns the stop strings in the order they were passed.
    pub fn strings(&self) -> &[String] {
        &self.strings
    }

    /// Checks whether `id` ends a reply.
    pub fn is_stop_id(&self, id: u32) -> bool {
        self.ids.binary_search(&id).is_ok()
    }

    /// Creates a matcher for one reply.
    pub fn matcher(&self) -> StopMatcher {
        StopMatcher { strings: self.strings.clone(), pending: String::new(), stopped: None }
    }
}

/// Finds stop strings in text that comes in chunks.
///
/// The stop string that is completed first wins. If two end at the same position, the one that
/// starts earlier wins. So the result does not depend on the chunk boundaries. Only the text before
/// the stop string is delivered. A tail that may be the start of a stop string stays pending until
/// it is decided.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    strings: Vec<String>,
    pending: String,
    stopped: Option<usize>,
}

/// The result of a chunk of text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopMatch {
    /// Text to deliver now.
    pub text: String,
    /// The stop string found, as its index in [`StopRules::strings`]. No text is delivered after
    /// it.
    pub stopped: Option<usize>,
}

impl StopMatcher {
    /// Processes the next chunk.
    pub fn push(&mut self, text: &str) -> StopMatch {
        if self.stopped.is_some() {
            return StopMatch { text: String::new(), stopped: self.stopped };
        }
        self.pending.push_str(text);
        let found = self
            .strings
            .iter()
            .enumerate()
            .filter_map(|(index, stop)| {
                let start = self.pending.find(stop.as_str())?;
                Some((start + stop.len(), start, index))
            })
            .min();
        if let Some((_, start, index)) = found {
            self.stopped = Some(index);
            self.pending.truncate(start);
            return StopMatch { text: std::mem::take(&mut self.pending), stopped: self.stopped };
        }
        let rest = self.pending.split_off(self.pending.len() - self.undecided_bytes());
        StopMatch { text: std::mem::replace(&mut self.pending, rest), stopped: None }
    }

    /// Ends the reply and returns the pending text, unless a stop string was found.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.pending)
    }

    /// Returns the length of the longest tail with which a stop string may begin.
    fn undecided_bytes(&self) -> usize {
        let pending = self.pending.as_bytes();
        self.strings
            .iter()
            .map(|stop| {
                let longest = pending.len().min(stop.len() - 1);
                (1..=longest)
                    .rev()
                    .find(|&length| {
                        stop.is_char_boundary(length) && pending.ends_with(&stop.as_bytes()[..length])
                    })
                    .unwrap_or(0)
            })
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;
    use crate::random::Random;

    fn run(stops: &[&str], chunks: &[&str]) -> (String, Option<usize>) {
        let rules = StopRules::default().with_strings(stops.iter().copied()).unwrap();
        let mut matcher = rules.matcher();
        let mut text = String::new();
        let mut stopped = None;
        for chunk in chunks {
            let found = matcher.push(chunk);
            text += &found.text;
            stopped = found.stopped;
        }
        text += &matcher.finish();
        (text, stopped)
    }

    #[test]
    fn strings_are_found_across_chunks() {
        struct Case {
            stops: &'static [&'static str],
            chunks: &'static [&'static str],
            expected: (&'static str, Option<usize>),
        }
        let cases = [
            Case { stops: &["END"], chunks: &["abcE", "N", "Dxyz", "more"], expected: ("abc", Some(0)) },
            Case { stops: &["END"], chunks: &["abE", "NE", "ND!"], expected: ("abEN", Some(0)) },
            Case { stops: &["END"], chunks: &["abcEN"], expected: ("abcEN", None) },
            Case { stops: &["END"], chunks: &["EN", "d"], expected: ("ENd", None) },
            Case { stops: &["abcd", "bc"], chunks: &["abcd"], expected: ("a", Some(1)) },
            Case { stops: &["abcd", "bc"], chunks: &["ab", "c", "d"], expected: ("a", Some(1)) },
            Case { stops: &["c", "abc"], chunks: &["abc"], expected: ("", Some(1)) },
            Case { stops: &["aab"], chunks: &["aa", "aab"], expected: ("aa", Some(0)) },
            Case { stops: &["日本"], chunks: &["x日", "本語"], expected: ("x", Some(0)) },
            Case { stops: &["日本"], chunks: &["日", "曜"], expected: ("日曜", None) },
            Case { stops: &[], chunks: &["any", ""], expected: ("any", None) },
        ];
        for case in cases {
            let (text, stopped) = run(case.stops, case.chunks);
            assert_eq!((text.as_str(), stopped), case.expected, "{:?} in {:?}", case.stops, case.chunks);
        }
    }

    #[test]
    fn text_that_cannot_become_a_stop_string_is_not_pending() {
        let mut matcher = StopRules::default().with_strings(["\n\n"]).unwrap().matcher();
        assert_eq!(matcher.push("one\n").text, "one");
        assert_eq!(matcher.push("two").text, "\ntwo");
        assert_eq!(matcher.push("\n\nthree"), StopMatch { text: String::new(), stopped: Some(0) });
        assert_eq!(matcher.push("four"), StopMatch { text: String::new(), stopped: Some(0) });
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn chunking_does_not_change_the_result() {
        let mut random = Random::new(3);
        let mut below = |bound: u64| (random.next_u64() % bound) as usize;
        for _ in 0..3000 {
            let letters = |below: &mut dyn FnMut(u64) -> usize, most: u64| -> String {
                (0..1 + below(most)).map(|_| ["a", "b", "é"][below(3)]).collect()
            };
            let stops: Vec<String> = (0..1 + below(3)).map(|_| letters(&mut below, 4)).collect();
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let text = letters(&mut below, 20);
            let whole = run(&stops, &[&text]);
            let characters: Vec<String> = text.chars().map(String::from).collect();
            let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
            assert_eq!(run(&stops, &characters).0, whole.0, "{stops:?} in {text:?}");
            assert_eq!(run(&stops, &characters).1.is_some(), whole.1.is_some());
        }
    }

    #[test]
    fn bad_strings_are_refused() {
        let too_many = vec!["x".to_owned(); STOP_STRINGS_MAX + 1];
        for (strings, index) in [
            (vec!["ok".to_owned(), String::new()], 1),
            (vec!["x".repeat(STOP_STRING_BYTES_MAX + 1)], 0),
            (too_many, STOP_STRINGS_MAX),
        ] {
            let error = StopRules::default().with_strings(strings).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument);
            assert!(error.message().starts_with(&format!("stop string {index} ")), "{error}");
            assert!(error.help().is_some());
        }
    }

    #[test]
    fn ids_are_looked_up() {
        let rules = StopRules::new([106, 1, 106]);
        assert_eq!(rules.ids(), [1, 106]);
        assert!(rules.is_stop_id(1) && rules.is_stop_id(106) && !rules.is_stop_id(2));
    }
}
