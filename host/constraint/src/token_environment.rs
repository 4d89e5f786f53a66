//! A tokenizer as the parser of grammars sees it.

use llguidance::toktrie::{TokTrie, TokenId, TokenizerEnv};
use shardwright_text::Tokenizer;

/// A tokenizer with the trie of the bytes of its tokens.
pub(crate) struct TokenEnvironment {
    tokenizer: Tokenizer,
    trie: TokTrie,
    /// Tokens that the tokenizer puts before every text, after [`SEPARATOR`].
    before: Option<Vec<u32>>,
}

/// A character before a text, so that the tokenizer does not put a space before the text itself.
const SEPARATOR: &str = "\u{2}";

impl TokenEnvironment {
    pub(crate) fn new(tokenizer: &Tokenizer, trie: TokTrie) -> TokenEnvironment {
        let before = tokenizer
            .prefixes_space()
            .then(|| tokenizer.encode(SEPARATOR, false).ok())
            .flatten()
            .filter(|ids| !ids.is_empty());
        TokenEnvironment { tokenizer: tokenizer.clone(), trie, before }
    }

    /// Returns the tokens of a text within a reply, as the tokenizer would write it.
    fn encode(&self, text: &str) -> Option<Vec<u32>> {
        let ids = match &self.before {
            None => self.tokenizer.encode(text, false).ok()?,
            Some(before) => {
                let ids = self.tokenizer.encode(&format!("{SEPARATOR}{text}"), false).ok()?;
                ids.strip_prefix(before.as_slice())?.to_vec()
            }
        };
        // A tokenizer may change its text, and it makes control tokens of their spelling.
        (self.trie.decode_raw(&ids) == text.as_bytes()).then_some(ids)
    }
}

impl TokenizerEnv for TokenEnvironment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let text = std::str::from_utf8(bytes).ok();
        text.and_then(|text| self.encode(text)).unwrap_or_else(|| self.trie.greedy_tokenize(bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::Vocabulary;

    use super::*;

    #[test]
    fn texts_within_a_reply_get_the_tokens_of_the_tokenizer_without_a_leading_space() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
        for name in ["gemma3_text", "qwen3", "llama3", "tinyllama"] {
            let tokenizer = Tokenizer::from_file(fixtures.join(name).join("tokenizer.json")).unwrap();
            let vocabulary = Vocabulary::new(&tokenizer).unwrap();
            let environment = vocabulary.environment();
            for text in ["{\"name\": ", "came to pass", " and", "naïve 日本"] {
                let ids = environment.tokenize_bytes(text.as_bytes());
                assert_eq!(environment.tok_trie().decode_raw(&ids), text.as_bytes(), "{name}: {text:?}");
            }
            // The spelling of a control token is text, and broken characters keep their bytes.
            let control = tokenizer.id_to_token(tokenizer.special_ids()[0]).unwrap();
            for bytes in [control.as_bytes(), b"a\xe6\x97"] {
                let ids = environment.tokenize_bytes(bytes);
                assert!(ids.iter().all(|id| !tokenizer.is_special(*id)), "{name}: {ids:?}");
            }
        }
    }
}
