//! Wraps text that arrives in pieces, between words at the edge of a terminal.

use std::io::{IsTerminal, Write};

/// Wraps the lines of one reply on standard output. A word is buffered until it ends.
///
/// Code between fences, indented lines and rows of tables stay as they are. So does all output to a
/// file or another program.
pub struct Flow {
    /// Columns of the terminal. `None` writes text as it arrives.
    width: Option<usize>,
    column: usize,
    /// Spaces before the word.
    gap: String,
    word: String,
    /// Whether the word started earlier: it is wider than the terminal, which wraps it.
    is_rest: bool,
    line: Line,
    /// The first characters of the line, as many as a fence has.
    head: String,
    in_fence: bool,
}

/// Start and end of a block of code.
const FENCE: &str = "```";

/// The kind of the current line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    /// No characters yet.
    Empty,
    /// Prose, whose spaces may become line ends.
    Prose,
    /// Code or a row of a table.
    Fixed,
}

impl Flow {
    /// Creates the flow of a reply on standard output.
    pub fn on_stdout() -> Flow {
        let shown = std::io::stdout().is_terminal();
        Flow::of(super::layout::width().filter(|_| shown))
    }

    fn of(width: Option<usize>) -> Flow {
        Flow {
            width,
            column: 0,
            gap: String::new(),
            word: String::new(),
            is_rest: false,
            line: Line::Empty,
            head: String::new(),
            in_fence: false,
        }
    }

    /// Returns the text that can be written after the next piece.
    pub fn push(&mut self, text: &str) -> String {
        let Some(width) = self.width else { return text.to_owned() };
        let mut out = String::new();
        for character in text.chars() {
            if self.line == Line::Empty && character != '\n' {
                let is_fixed = self.in_fence || matches!(character, ' ' | '\t' | '|');
                self.line = if is_fixed { Line::Fixed } else { Line::Prose };
            }
            if character != '\n' && self.head.len() < FENCE.len() {
                self.head.push(character);
            }
            match character {
                '\n' => {
                    self.finish_word(width, &mut out);
                    out.push_str(&std::mem::take(&mut self.gap));
                    out.push('\n');
                    self.in_fence ^= self.head == FENCE;
                    self.head.clear();
                    (self.column, self.line) = (0, Line::Empty);
                }
                _ if self.line == Line::Fixed => out.push(character),
                ' ' => {
                    self.finish_word(width, &mut out);
                    self.gap.push(' ');
                }
                // Characters of two columns are words of their own.
                wide if console::measure_text_width(wide.encode_utf8(&mut [0; 4])) > 1 => {
                    self.finish_word(width, &mut out);
                    self.word.push(wide);
                    self.finish_word(width, &mut out);
                }
                _ => {
                    self.word.push(character);
                    if console::measure_text_width(&self.word) >= width {
                        self.finish_word(width, &mut out);
                        self.is_rest = true;
                    }
                }
            }
        }
        out
    }

    /// Returns the buffered word, at the end of the reply.
    pub fn end(&mut self) -> String {
        let mut out = String::new();
        if let Some(width) = self.width {
            self.finish_word(width, &mut out);
            out.push_str(&std::mem::take(&mut self.gap));
        }
        out
    }

    fn finish_word(&mut self, width: usize, out: &mut String) {
        let word = std::mem::take(&mut self.word);
        let is_rest = std::mem::take(&mut self.is_rest);
        if word.is_empty() {
            return;
        }
        let gap = std::mem::take(&mut self.gap);
        let length = console::measure_text_width(&word);
        if is_rest {
            self.column = (self.column + length) % width;
        } else if self.column > 0 && self.column + gap.len() + length > width {
            out.push('\n');
            self.column = length;
        } else {
            out.push_str(&gap);
            self.column += gap.len() + length;
        }
        out.push_str(&word);
    }
}

/// A reply that fails in the middle of a word shows the word.
impl Drop for Flow {
    fn drop(&mut self) {
        let rest = self.end();
        if !rest.is_empty() {
            let _ = std::io::stdout().lock().write_all(rest.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the text after passing it in pieces of `piece` characters.
    fn flowed(text: &str, width: Option<usize>, piece: usize) -> String {
        let mut flow = Flow::of(width);
        let characters: Vec<char> = text.chars().collect();
        let pieces = characters.chunks(piece).map(|piece| flow.push(&piece.iter().collect::<String>()));
        let mut out: String = pieces.collect();
        out += &flow.end();
        out
    }

    #[test]
    fn lines_are_broken_between_words_whatever_the_pieces() {
        for (text, wanted) in [
            ("one two three four", "one two\nthree four"),
            ("one two\nthree four five", "one two\nthree four\nfive"),
            ("a-word-of-eighteen and", "a-word-of-eighteen\nand"),
            ("end with spaces  ", "end with\nspaces  "),
            (
                "```\nlong code line in a fence\n```\none two three",
                "```\nlong code line in a fence\n```\none two\nthree",
            ),
            ("    indented code stays whole", "    indented code stays whole"),
            ("| a row | of a table |", "| a row | of a table |"),
            (
                "\u{6f22}\u{5b57}\u{6f22}\u{5b57}\u{6f22}\u{5b57}",
                "\u{6f22}\u{5b57}\u{6f22}\u{5b57}\u{6f22}\n\u{5b57}",
            ),
        ] {
            for piece in [1, 2, 3, 7, 100] {
                assert_eq!(flowed(text, Some(10), piece), wanted, "in pieces of {piece}");
                assert_eq!(flowed(text, None, piece), text);
            }
        }
    }
}
