//! Characters and marks of a reply, whether a mark is a token or spelled out.

use super::format::{CallFormat, Mark};

/// A character of the text, or a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Symbol {
    Character(char),
    Mark(Mark),
}

/// Finds marks that are spelled out in text that comes in pieces. The end of a piece waits if it
/// may begin a mark.
#[derive(Clone, Debug)]
pub(crate) struct Symbols {
    spelled: Vec<(Mark, &'static str)>,
    /// The start of a spelled mark: shorter than every mark.
    held: String,
}

impl Symbols {
    pub(crate) fn new(format: CallFormat) -> Symbols {
        Symbols { spelled: format.spelled(), held: String::new() }
    }

    /// Passes the symbols of the next piece to `each`.
    pub(crate) fn push(&mut self, text: &str, each: &mut dyn FnMut(Symbol)) {
        for character in text.chars() {
            self.held.push(character);
            loop {
                let complete = self.spelled.iter().find(|(_, spelling)| *spelling == self.held);
                if let Some((mark, _)) = complete {
                    each(Symbol::Mark(*mark));
                    self.held.clear();
                }
                let may_begin = |(_, spelling): &(Mark, &str)| spelling.starts_with(&self.held);
                if self.held.is_empty() || self.spelled.iter().any(may_begin) {
                    break;
                }
                each(Symbol::Character(self.held.remove(0)));
            }
        }
    }

    /// Passes the held characters to `each`: no mark continues after them.
    pub(crate) fn flush(&mut self, each: &mut dyn FnMut(Symbol)) {
        std::mem::take(&mut self.held).chars().for_each(|character| each(Symbol::Character(character)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::CallFamily;

    fn symbols(format: CallFormat, pieces: &[&str]) -> String {
        let (mut symbols, mut seen) = (Symbols::new(format), String::new());
        let mut each = |symbol| match symbol {
            Symbol::Character(character) => seen.push(character),
            Symbol::Mark(mark) => seen += &format!("[{mark:?}]"),
        };
        pieces.iter().for_each(|piece| symbols.push(piece, &mut each));
        symbols.flush(&mut each);
        seen
    }

    #[test]
    fn marks_are_found_across_pieces_and_their_starts_stay_text() {
        let spelled = CallFormat::with_ids(CallFamily::Hermes, |_| None);
        for (text, expected) in [
            ("a<tool_call>b</tool_call>c", "a[Open]b[Close]c"),
            ("<<tool_call>", "<[Open]"),
            ("<tool_<tool_call>", "<tool_[Open]"),
            ("</tool_cal", "</tool_cal"),
            ("</<", "</<"),
            ("é<tool_call", "é<tool_call"),
        ] {
            for size in 1..=text.chars().count() {
                let characters: Vec<char> = text.chars().collect();
                let pieces: Vec<String> =
                    characters.chunks(size).map(|piece| piece.iter().collect()).collect();
                let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
                assert_eq!(symbols(spelled, &pieces), expected, "{text} in pieces of {size}");
            }
        }
        let tokens = CallFormat::with_ids(CallFamily::Hermes, |_| Some(1));
        assert_eq!(symbols(tokens, &["<tool_call>"]), "<tool_call>", "only tokens are marks");
    }
}
