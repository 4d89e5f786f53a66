//! The tokens of a model, prepared for grammars.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use shardwright_text::Tokenizer;
use shardwright_vocabulary::{Error, Result};

use crate::faults;
use crate::token_environment::TokenEnvironment;

/// Longest token, in bytes, that a constrained reply may contain. The trie of tokens has at most
/// 1,024 levels.
const TOKEN_BYTES_MAX: usize = 1000;

/// Most bytes of all tokens together. The largest published vocabularies have about 2 MB.
const VOCABULARY_BYTES_MAX: usize = 4_000_000;

/// Most tokens of a vocabulary.
const TOKENS_MAX: usize = 1 << 20;

/// Most states of the lexer of one reply, of 1 to 2 kB each. Usual schemas need some hundreds.
const LEXER_STATES_MAX: usize = 50_000;

/// The tokens of a model with their bytes, prepared once for all grammars. Clones are cheap and
/// share it.
#[derive(Clone)]
pub struct Vocabulary {
    factory: Arc<ParserFactory>,
    /// The special tokens, in ascending order.
    special: Arc<[u32]>,
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Vocabulary").field("tokens", &self.tokens()).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// Prepares the tokens of `tokenizer`. This takes up to a second for 262,144 tokens.
    ///
    /// Special tokens are not part of the text that a grammar describes. A Lark grammar can name
    /// them: `<|im_end|>` or `<[5]>`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](shardwright_vocabulary::ErrorKind::Unsupported) if the tokenizer
    /// does not define the bytes of single tokens, or is too large.
    pub fn new(tokenizer: &Tokenizer) -> Result<Vocabulary> {
        let mut words = tokenizer.token_bytes()?;
        let special: Arc<[u32]> = tokenizer.special_ids().into();
        // Bytes that begin like the name of a special token. They occur in no text.
        let confusing = |word: &[u8]| word.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER);
        for word in words.iter_mut().filter(|word| word.len() > TOKEN_BYTES_MAX || confusing(word)) {
            word.clear();
        }
        for &id in special.iter() {
            if let (Some(word), Some(name)) = (words.get_mut(id as usize), tokenizer.id_to_token(id))
                && name.len() < TOKEN_BYTES_MAX
            {
                *word = [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat();
            }
        }
        let bytes: usize = words.iter().map(Vec::len).sum();
        if words.len() > TOKENS_MAX || bytes > VOCABULARY_BYTES_MAX {
            let what = format!("a vocabulary of {} tokens with {bytes} bytes", words.len());
            return Err(Error::unsupported(format!("{what} is too large for grammars"))
                .at(tokenizer.path().display())
                .with_help("generate without a grammar"));
        }
        let factory = catch_unwind(AssertUnwindSafe(|| {
            let info = TokRxInfo::new(words.len() as u32, INVALID_TOKEN);
            let trie = TokTrie::from(&info, &words);
            let environment: TokEnv = Arc::new(TokenEnvironment::new(tokenizer, trie));
            let capabilities = InferenceCapabilities { ff_tokens: true, ..InferenceCapabilities::default() };
            let slices = SlicedBiasComputer::general_slices();
            let mut factory = ParserFactory::new(&environment, capabilities, &slices)?;
            factory.quiet();
            let limits = factory.limits_mut();
            limits.verbose_errors = false;
            limits.max_lexer_states = LEXER_STATES_MAX;
            Ok(factory)
        }));
        match factory {
            Ok(factory) => Ok(Vocabulary { factory: Arc::new(factory), special }),
            Err(error) => Err(faults::of_library("cannot prepare the vocabulary", &format!("{error:#}"))),
        }
    }

    pub(crate) fn factory(&self) -> &ParserFactory {
        &self.factory
    }

    /// Returns one plus the largest id.
    pub(crate) fn tokens(&self) -> usize {
        self.factory.tok_env().tok_trie().vocab_size()
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.special.binary_search(&id).is_ok()
    }

    #[cfg(test)]
    pub(crate) fn environment(&self) -> &TokEnv {
        self.factory.tok_env()
    }
}
