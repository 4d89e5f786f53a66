//! The effect of a tokenizer's decoder on one token, for decoders that work token by token.

use serde_json::Value;

/// The method that turns ids into text.
#[derive(Debug, PartialEq)]
pub(crate) enum Decoding {
    /// Each character of a token represents one byte. The bytes of all tokens together are the
    /// text.
    ByteLevel,
    /// Each token is text after replacements, or one byte spelled `<0x41>`.
    Pieces(Pieces),
    /// Any other decoder. Only the library can run it.
    Opaque,
}

/// A decoder made of string replacements, byte fallback and a final fuse.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Pieces {
    /// Patterns and their replacements, in order.
    pub(crate) replacements: Vec<(String, String)>,
    /// Whether `<0x41>` is a byte. Consecutive bytes become text only if all of them together are
    /// valid UTF-8. Otherwise each becomes one U+FFFD.
    pub(crate) byte_fallback: bool,
    /// A character that is removed at most this many times from the start of the whole text.
    pub(crate) strip_start: Option<(char, usize)>,
}

impl Decoding {
    /// Recognises a decoder by its JSON.
    pub(crate) fn of(decoder: Option<&Value>) -> Decoding {
        let Some(decoder) = decoder else {
            return Decoding::Opaque;
        };
        match kind(decoder) {
            Some("ByteLevel") => Decoding::ByteLevel,
            Some("Sequence") => decoder["decoders"]
                .as_array()
                .and_then(|steps| Pieces::of(steps))
                .map_or(Decoding::Opaque, Decoding::Pieces),
            _ => Decoding::Opaque,
        }
    }
}

fn kind(decoder: &Value) -> Option<&str> {
    decoder["type"].as_str()
}

impl Pieces {
    /// Accepts Replace*, ByteFallback?, Fuse, Strip? in this order. Any other order has a different
    /// meaning.
    fn of(steps: &[Value]) -> Option<Pieces> {
        let mut pieces = Pieces::default();
        let mut steps = steps.iter().peekable();
        while let Some(step) = steps.next_if(|step| kind(step) == Some("Replace")) {
            let pattern = step["pattern"]["String"].as_str().filter(|pattern| !pattern.is_empty())?;
            pieces.replacements.push((pattern.to_owned(), step["content"].as_str()?.to_owned()));
        }
        pieces.byte_fallback = steps.next_if(|step| kind(step) == Some("ByteFallback")).is_some();
        steps.next_if(|step| kind(step) == Some("Fuse"))?;
        if let Some(step) = steps.next_if(|step| kind(step) == Some("Strip")) {
            let content = step["content"].as_str().map(|content| content.chars().collect::<Vec<_>>())?;
            let start = usize::try_from(step["start"].as_u64()?).ok()?;
            if content.len() != 1 || step["stop"].as_u64() != Some(0) {
                return None;
            }
            pieces.strip_start = Some((content[0], start));
        }
        steps.next().is_none().then_some(pieces)
    }

    /// Returns the token's text, or its byte.
    pub(crate) fn piece(&self, token: String) -> Piece {
        let text = self
            .replacements
            .iter()
            .fold(token, |text, (pattern, replacement)| text.replace(pattern.as_str(), replacement));
        match self.byte_fallback.then(|| fallback_byte(&text)).flatten() {
            Some(byte) => Piece::Byte(byte),
            None => Piece::Text(text),
        }
    }
}

/// The contribution of one token.
#[derive(Debug, PartialEq)]
pub(crate) enum Piece {
    /// Complete text.
    Text(String),
    /// One byte of a character.
    Byte(u8),
}

/// Parses a token such as `<0x41>`, by the same rule as the decoder.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (token.len() == 6).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// Returns the bytes of a byte-level token. Printable Latin-1 characters represent themselves. The
/// characters from U+0100 on represent the other bytes, in order. A token with any other character
/// becomes its own UTF-8.
pub(crate) fn byte_level_bytes(token: &str) -> Vec<u8> {
    token
        .chars()
        .map(byte_of_character)
        .collect::<Option<Vec<u8>>>()
        .unwrap_or_else(|| token.as_bytes().to_vec())
}

fn byte_of_character(character: char) -> Option<u8> {
    match character {
        '!'..='~' | '¡'..='¬' | '®'..='ÿ' => u8::try_from(u32::from(character)).ok(),
        // The 68 bytes without a printable character: controls and space, delete to U+00A0, soft
        // hyphen.
        'Ā'..='Ġ' => u8::try_from(u32::from(character) - 0x100).ok(),
        'ġ'..='ł' => u8::try_from(u32::from(character) - 0x100 - 0x21 + 0x7f).ok(),
        'Ń' => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn byte_level_characters_are_a_bijection() {
        let mut seen = [false; 256];
        let mut characters = 0;
        for character in (0..0x200u32).filter_map(char::from_u32) {
            if let Some(byte) = byte_of_character(character) {
                assert!(!seen[usize::from(byte)], "{byte} twice");
                seen[usize::from(byte)] = true;
                characters += 1;
            }
        }
        assert_eq!(characters, 256);
        assert_eq!(byte_level_bytes("ĠtheĊ"), b" the\n");
        assert_eq!(byte_level_bytes("a b"), b"a b", "a space is no byte character: taken as it is");
    }

    #[test]
    fn decoders_are_recognised() {
        let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
        let bytes = json!({"type": "ByteFallback"});
        let fuse = json!({"type": "Fuse"});
        let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
        let sequence = |steps: &[&Value]| Decoding::of(Some(&json!({"type": "Sequence", "decoders": steps})));
        let space = vec![("▁".to_owned(), " ".to_owned())];
        assert_eq!(
            sequence(&[&replace, &bytes, &fuse]),
            Decoding::Pieces(Pieces { replacements: space.clone(), byte_fallback: true, strip_start: None })
        );
        assert_eq!(
            sequence(&[&replace, &bytes, &fuse, &strip]),
            Decoding::Pieces(Pieces {
                replacements: space,
                byte_fallback: true,
                strip_start: Some((' ', 1))
            })
        );
        assert_eq!(Decoding::of(Some(&json!({"type": "ByteLevel"}))), Decoding::ByteLevel);
        for opaque in [
            sequence(&[&bytes, &replace, &fuse]),
            sequence(&[&replace, &bytes]),
            sequence(&[&json!({"type": "Replace", "pattern": {"Regex": "x"}, "content": ""}), &fuse]),
            Decoding::of(Some(&json!({"type": "Metaspace"}))),
            Decoding::of(None),
        ] {
            assert_eq!(opaque, Decoding::Opaque);
        }
    }

    #[test]
    fn bytes_are_spelled_with_two_digits() {
        for (token, byte) in [
            ("<0x41>", Some(0x41)),
            ("<0xfF>", Some(0xff)),
            ("<0x4>", None),
            ("<0x041>", None),
            ("<0xGG>", None),
            ("<0xé>", None),
            ("a<0x41>", None),
        ] {
            assert_eq!(fallback_byte(token), byte, "{token}");
        }
    }
}
