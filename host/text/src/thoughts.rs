//! Thoughts of a model, which it writes between two special tokens, separate from its answer.

use crate::tokenizer::Tokenizer;

/// The tokens around thoughts, and the text that begins them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThoughtTokens {
    /// The token that begins a thought.
    pub open: u32,
    /// The token that ends a thought.
    pub close: u32,
    /// Text after the opening token that belongs to the format, such as the name of a channel.
    label: &'static str,
}

/// Spelling of the tokens and the label: Gemma 4, then Qwen 3 and SmolLM3, then Ministral.
const KNOWN: [(&str, &str, &str); 3] =
    [("<|channel>", "<channel|>", "thought\n"), ("<think>", "</think>", ""), ("[THINK]", "[/THINK]", "")];

impl ThoughtTokens {
    /// Returns the tokens around thoughts that begin without a label.
    pub const fn new(open: u32, close: u32) -> ThoughtTokens {
        ThoughtTokens { open, close, label: "" }
    }

    /// Returns the tokens around thoughts of a vocabulary. `None` if it has no known pair.
    pub fn of(tokenizer: &Tokenizer) -> Option<ThoughtTokens> {
        KNOWN.into_iter().find_map(|(open, close, label)| {
            let (open, close) = (tokenizer.token_to_id(open)?, tokenizer.token_to_id(close)?);
            Some(ThoughtTokens { open, close, label })
        })
    }

    /// Returns whether a prompt ends within a thought, which the reply then continues.
    pub fn is_open_in(&self, prompt: &[u32]) -> bool {
        prompt.iter().rfind(|id| [self.open, self.close].contains(id)) == Some(&self.open)
    }
}

/// The growing text of one thought, without its label and without newlines at both ends.
#[derive(Debug, Clone)]
pub(crate) struct Thought {
    /// The label, until it was found or ruled out.
    expected: &'static str,
    held: String,
    begun: bool,
}

impl Thought {
    /// Starts a thought after its opening token.
    pub(crate) fn after(tokens: ThoughtTokens) -> Thought {
        Thought { expected: tokens.label, ..Thought::continued() }
    }

    /// Continues a thought that the prompt began.
    pub(crate) fn continued() -> Thought {
        Thought { expected: "", held: String::new(), begun: false }
    }

    /// Adds text and returns the final part.
    pub(crate) fn push(&mut self, text: &str) -> String {
        self.held.push_str(text);
        if !self.begun {
            if self.held.len() < self.expected.len() && self.expected.starts_with(&self.held) {
                return String::new();
            }
            let rest = self.held.strip_prefix(self.expected).unwrap_or(&self.held);
            self.held = rest.trim_start_matches('\n').to_owned();
            self.expected = "";
            self.begun = !self.held.is_empty();
        }
        let newlines = self.held.split_off(self.held.trim_end_matches('\n').len());
        std::mem::replace(&mut self.held, newlines)
    }

    /// Ends the thought and returns pending text, which could have become the label.
    pub(crate) fn finish(self) -> String {
        if self.begun { String::new() } else { self.held }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_newlines_at_both_ends_are_left_out_however_text_arrives() {
        let tokens = ThoughtTokens { open: 1, close: 2, label: "thought\n" };
        for (text, expected) in [
            ("thought\nA\n\nB\n", "A\n\nB"),
            ("thoughtful", "thoughtful"),
            ("\n\nQ", "Q"),
            ("thought\n", ""),
            ("thou", "thou"),
            ("", ""),
            ("\n", ""),
        ] {
            for size in 1..=text.len().max(1) {
                let mut thought = Thought::after(tokens);
                let mut said = String::new();
                for piece in text.as_bytes().chunks(size) {
                    said += &thought.push(std::str::from_utf8(piece).unwrap());
                }
                assert_eq!(said + &thought.finish(), expected, "{text:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn a_prompt_ends_within_a_thought_if_its_last_mark_opens() {
        let tokens = ThoughtTokens { open: 1, close: 2, label: "" };
        let open = [&[1][..], &[5, 1, 7], &[2, 1]];
        let closed = [&[][..], &[3], &[1, 2], &[2, 4]];
        assert!(open.iter().all(|prompt| tokens.is_open_in(prompt)));
        assert!(!closed.iter().any(|prompt| tokens.is_open_in(prompt)));
    }
}
