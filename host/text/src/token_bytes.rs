//! The bytes that each token of a vocabulary adds to a text.

use shardwright_vocabulary::{Error, Result};

use crate::decoding::{Decoding, Piece, byte_level_bytes};
use crate::tokenizer::Tokenizer;

impl Tokenizer {
    /// Returns the bytes that each token adds to a text, by id. Special tokens and ids without a
    /// token add none. Characters that the decoder strips from the start of a whole text are
    /// included.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](shardwright_vocabulary::ErrorKind::Unsupported) if the bytes of a
    /// token depend on its neighbours.
    pub fn token_bytes(&self) -> Result<Vec<Vec<u8>>> {
        let decoding = self.decoding();
        if *decoding == Decoding::Opaque {
            let what = "the decoder of the tokenizer does not define the bytes of a single token";
            return Err(Error::unsupported(what)
                .at(self.path().display())
                .with_help("use a model with a byte-level or byte-fallback tokenizer"));
        }
        let bytes = |id: u32| match (self.visible_token(id, true), decoding) {
            (None, _) => Vec::new(),
            (Some(token), Decoding::Pieces(pieces)) => match pieces.piece(token) {
                Piece::Text(text) => text.into_bytes(),
                Piece::Byte(byte) => vec![byte],
            },
            (Some(token), _) => byte_level_bytes(&token),
        };
        Ok((0..self.ids_end()).map(bytes).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use shardwright_vocabulary::ErrorKind;

    use super::*;

    #[test]
    fn the_bytes_of_tokens_together_are_the_text() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
        for name in ["gemma3_text", "gemma4_text", "qwen3", "llama3", "tinyllama"] {
            let tokenizer = Tokenizer::from_file(fixtures.join(name).join("tokenizer.json")).unwrap();
            let bytes = tokenizer.token_bytes().unwrap();
            for text in ["And it came to pass", "{\"name\": [1, 2.5]}", "naïve 日本 🦀\n\tend"] {
                let ids = tokenizer.encode(text, false).unwrap();
                let joined: Vec<u8> = ids.iter().flat_map(|id| bytes[*id as usize].clone()).collect();
                let expected = tokenizer.decode(&ids, true).unwrap();
                let joined = String::from_utf8(joined).unwrap();
                // Some decoders strip the space that their tokenizer puts before a text.
                let stripped = if tokenizer.prefixes_space() { joined.trim_start() } else { &joined };
                assert_eq!(stripped, expected, "{name}");
            }
            let special = tokenizer.special_ids();
            assert!(!special.is_empty() && special.iter().all(|id| bytes[*id as usize].is_empty()), "{name}");
        }
    }

    #[test]
    fn a_decoder_that_looks_at_neighbours_is_refused() {
        let json = br#"{"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":null,
            "post_processor":null,"decoder":{"type":"WordPiece","prefix":"@@","cleanup":true},
            "model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]}}"#;
        let error = Tokenizer::from_bytes(json, "tokenizer.json").unwrap().token_bytes().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("bytes of a single token"), "{error}");
        assert!(error.help().is_some_and(|help| help.contains("byte-level")));
    }
}
