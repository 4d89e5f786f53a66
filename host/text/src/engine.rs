//! The encoder and decoder: the library over an index, or the library alone.

use crate::index::IndexedTokenizer;

/// A tokenizer of the library.
pub(crate) enum Engine {
    /// A tokenizer over an index.
    Indexed(Box<IndexedTokenizer>),
    /// A tokenizer with the library's own model.
    Library(Box<tokenizers::Tokenizer>),
}

/// Makes the same call on either variant.
macro_rules! each {
    ($engine:expr, $name:ident => $call:expr) => {
        match $engine {
            $crate::engine::Engine::Indexed($name) => $call,
            $crate::engine::Engine::Library($name) => $call,
        }
    };
}
pub(crate) use each;

impl Engine {
    /// Returns the number of tokens in the vocabulary, including added ones.
    pub(crate) fn vocabulary_size(&self) -> usize {
        match self {
            // Counting in a map of all tokens would read the whole index.
            Engine::Indexed(engine) => {
                let model = engine.get_vocab_size(false);
                let added = engine.get_added_tokens_decoder();
                model + added.keys().filter(|id| **id as usize >= model).count()
            }
            Engine::Library(engine) => engine.get_vocab_size(true),
        }
    }
}
