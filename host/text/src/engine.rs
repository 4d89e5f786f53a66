//! What encodes and decodes: the library over an index, or the library alone.

use crate::index::IndexedTokenizer;

/// A tokenizer of the library.
pub(crate) enum Engine {
    /// Over an index.
    Indexed(Box<IndexedTokenizer>),
    /// With a model of its own.
    Library(Box<tokenizers::Tokenizer>),
}

/// The same of either.
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
    /// Tokens in the vocabulary, added ones included.
    pub(crate) fn vocabulary_size(&self) -> usize {
        match self {
            // Counting them in a map of all would read the whole index.
            Engine::Indexed(engine) => {
                let model = engine.get_vocab_size(false);
                let added = engine.get_added_tokens_decoder();
                model + added.keys().filter(|id| **id as usize >= model).count()
            }
            Engine::Library(engine) => engine.get_vocab_size(true),
        }
    }
}
