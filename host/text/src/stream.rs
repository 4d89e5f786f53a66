//! Converts ids to text, one token at a time.

use shardwright_vocabulary::Result;

use crate::decoding::{Decoding, Piece, byte_level_bytes};
use crate::tokenizer::Tokenizer;

/// Longest run of byte tokens whose text stays pending, in tokens (and bytes): 16 to 64 characters.
///
/// The byte-fallback decoder turns a whole run into U+FFFD if any byte in it is invalid, so the
/// text of a run is final only when the run ends. Longer runs occur in whole sentences, if a
/// vocabulary lacks a script's characters. They are emitted character by character from this length
/// on.
pub const PENDING_BYTE_TOKENS_MAX: usize = 64;

/// Number of tokens that an opaque decoder may leave undecided before their text is emitted as it
/// is. A character has at most four bytes, hence at most four tokens.
const UNDECIDED_TOKENS_MAX: usize = 8;

/// Converts ids into text as they come. The chunks together equal [`Tokenizer::decode`] of all the
/// ids. A character split over tokens comes out whole and once. Leading spaces equal the whole
/// text's, and U+FFFD appears only where decoding the whole text has it. There is one exception,
/// for the better: if a run of more than [`PENDING_BYTE_TOKENS_MAX`] byte tokens turns out to be
/// broken, it keeps the characters emitted before the break.
///
/// The cost of a token does not depend on the number of tokens before it.
#[derive(Debug, Clone)]
pub struct TextStream {
    tokenizer: Tokenizer,
    skip_special: bool,
    pending: Pending,
    /// Character and number of its occurrences still to be stripped from the start of the text.
    strip: Option<(char, usize)>,
}

/// Input whose text is not final yet.
#[derive(Debug, Clone)]
enum Pending {
    /// Bytes of a character that may still be completed: at most three.
    Incomplete(Vec<u8>),
    /// A run of byte tokens.
    Run(Vec<u8>),
    /// Tokens whose text is final but affects later text, then tokens whose text is undecided.
    Window { context: Vec<u32>, undecided: Vec<u32> },
}

impl TextStream {
    /// Starts a stream of `tokenizer`'s text, without special tokens if `skip_special` is set.
    pub fn new(tokenizer: &Tokenizer, skip_special: bool) -> TextStream {
        let (pending, strip) = match tokenizer.decoding() {
            Decoding::ByteLevel => (Pending::Incomplete(Vec::new()), None),
            Decoding::Pieces(pieces) => (Pending::Run(Vec::new()), pieces.strip_start),
            Decoding::Opaque => (Pending::Window { context: Vec::new(), undecided: Vec::new() }, None),
        };
        TextStream { tokenizer: tokenizer.clone(), skip_special, pending, strip }
    }

    /// Processes the next id and returns the text that is now final, which is often empty.
    pub fn push(&mut self, id: u32) -> Result<String> {
        let Some(token) = self.tokenizer.visible_token(id, self.skip_special) else {
            return Ok(String::new());
        };
        let text = match (&mut self.pending, self.tokenizer.decoding()) {
            (Pending::Incomplete(bytes), _) => {
                bytes.extend(byte_level_bytes(&token));
                take_decided(bytes)
            }
            (Pending::Run(run), Decoding::Pieces(pieces)) => match pieces.piece(token) {
                Piece::Byte(byte) => {
                    run.push(byte);
                    if run.len() > PENDING_BYTE_TOKENS_MAX { take_characters(run) } else { String::new() }
                }
                Piece::Text(text) => take_run(run) + &text,
            },
            (Pending::Window { context, undecided }, _) => {
                undecided.push(id);
                return take_window(&self.tokenizer, self.skip_special, context, undecided, false);
            }
            (Pending::Run(_), _) => unreachable!("runs occur with decoders made of pieces only"),
        };
        Ok(self.stripped(text))
    }

    /// Returns the pending text before a token that is not text. The text continues after it.
    pub(crate) fn flush(&mut self) -> Result<String> {
        let text = match &mut self.pending {
            Pending::Incomplete(bytes) => String::from_utf8_lossy(&std::mem::take(bytes)).into_owned(),
            Pending::Run(run) => take_run(run),
            Pending::Window { context, undecided } => {
                take_window(&self.tokenizer, self.skip_special, context, undecided, true)?
            }
        };
        Ok(self.stripped(text))
    }

    /// Returns whether the token is part of the text.
    pub(crate) fn shows(&self, id: u32) -> bool {
        self.tokenizer.visible_token(id, self.skip_special).is_some()
    }

    /// Ends the text and returns the pending text, with U+FFFD for an incomplete character. The
    /// stream can be reused for another text.
    pub fn finish(&mut self) -> Result<String> {
        let text = self.flush()?;
        if let Pending::Window { context, .. } = &mut self.pending {
            context.clear();
        }
        if let Decoding::Pieces(pieces) = self.tokenizer.decoding() {
            self.strip = pieces.strip_start;
        }
        Ok(text)
    }

    /// Strips the remaining characters from the start of the whole text.
    fn stripped(&mut self, mut text: String) -> String {
        if let Some((character, left)) = &mut self.strip {
            while *left > 0 && text.starts_with(*character) {
                text.drain(..character.len_utf8());
                *left -= 1;
            }
            if *left == 0 || !text.is_empty() {
                self.strip = None;
            }
        }
        text
    }
}

/// Removes and returns the text that lossy decoding has decided. The bytes of a character that may
/// still be completed stay.
fn take_decided(bytes: &mut Vec<u8>) -> String {
    let mut kept = 0;
    if let Some(last) = bytes.utf8_chunks().last() {
        let tail = last.invalid();
        // A tail is incomplete rather than invalid if some byte could still continue it.
        if std::str::from_utf8(tail).is_err_and(|error| error.error_len().is_none()) {
            kept = tail.len();
        }
    }
    let rest = bytes.split_off(bytes.len() - kept);
    String::from_utf8_lossy(&std::mem::replace(bytes, rest)).into_owned()
}

/// Removes and returns the whole run: its text, or one U+FFFD for each of its bytes.
fn take_run(run: &mut Vec<u8>) -> String {
    String::from_utf8(std::mem::take(run)).unwrap_or_else(|error| "\u{fffd}".repeat(error.as_bytes().len()))
}

/// Removes and returns the complete characters at the start of a run that is too long to keep
/// pending. If there is no complete character, returns one U+FFFD.
fn take_characters(run: &mut Vec<u8>) -> String {
    let decided = match std::str::from_utf8(run) {
        Ok(_) => run.len(),
        Err(error) => error.valid_up_to(),
    };
    let rest = run.split_off(decided);
    let mut text = String::from_utf8(std::mem::replace(run, rest)).unwrap_or_default();
    if run.len() > PENDING_BYTE_TOKENS_MAX {
        run.remove(0);
        text.push('\u{fffd}');
    }
    text
}

/// Removes the undecided tokens and returns the text that an opaque decoder adds for them after
/// their context.
fn take_window(
    tokenizer: &Tokenizer,
    skip_special: bool,
    context: &mut Vec<u32>,
    undecided: &mut Vec<u32>,
    all: bool,
) -> Result<String> {
    if undecided.is_empty() {
        return Ok(String::new());
    }
    let before = if context.is_empty() { String::new() } else { tokenizer.decode(context, skip_special)? };
    let ids: Vec<u32> = context.iter().chain(undecided.iter()).copied().collect();
    let after = tokenizer.decode(&ids, skip_special)?;
    let all = all || undecided.len() >= UNDECIDED_TOKENS_MAX;
    match after.strip_prefix(before.as_str()) {
        Some(new) if all || !new.ends_with('\u{fffd}') => {
            let new = new.to_owned();
            *context = std::mem::take(undecided);
            Ok(new)
        }
        Some(_) => Ok(String::new()),
        // The tokens changed text that was already emitted. No correct addition exists, so they are
        // decoded alone.
        None if all => {
            let new = tokenizer.decode(undecided, skip_special)?;
            *context = std::mem::take(undecided);
            Ok(new)
        }
        None => Ok(String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_characters_wait_and_wrong_bytes_do_not() {
        struct Case {
            pushes: &'static [&'static [u8]],
            chunks: &'static [&'static str],
            rest: &'static [u8],
        }
        let cases = [
            Case { pushes: &[b"a\xe6", b"\x9d", b"\xb1!"], chunks: &["a", "", "東!"], rest: b"" },
            Case { pushes: &[b"\xf0\x9f", b"a"], chunks: &["", "\u{fffd}a"], rest: b"" },
            Case { pushes: &[b"\xff", b"\x80"], chunks: &["\u{fffd}", "\u{fffd}"], rest: b"" },
            Case { pushes: &[b"\xf0\x9f", b"\xe6"], chunks: &["", "\u{fffd}"], rest: b"\xe6" },
        ];
        for case in cases {
            let mut bytes = Vec::new();
            for (push, chunk) in case.pushes.iter().zip(case.chunks) {
                bytes.extend_from_slice(push);
                assert_eq!(&take_decided(&mut bytes), chunk, "{push:?}");
            }
            assert_eq!(bytes, case.rest);
        }
    }

    #[test]
    fn long_runs_come_out_character_by_character() {
        let mut run = "東".repeat(21).into_bytes();
        run.extend(b"\xe6\x9d");
        assert_eq!(take_characters(&mut run), "東".repeat(21));
        assert_eq!(run, b"\xe6\x9d");

        let mut broken = vec![0xff; PENDING_BYTE_TOKENS_MAX + 1];
        assert_eq!(take_characters(&mut broken), "\u{fffd}");
        assert_eq!(broken.len(), PENDING_BYTE_TOKENS_MAX);
    }
}
