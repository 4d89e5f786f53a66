//! Merges byte pairs using an index, token for token like the library's model.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::path::{Path, PathBuf};

use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::{Model, Token};

use super::IndexBytes;
use super::layout::Layout;

const NONE: usize = usize::MAX;

/// A model based on an index.
pub(crate) struct IndexedModel {
    bytes: IndexBytes,
    layout: Layout,
}

/// A piece of a text that is a token, in a linked list of pieces.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    /// Length in bytes, or 0 after the symbol was merged into its left neighbour.
    bytes: usize,
    before: usize,
    after: usize,
}

impl IndexedModel {
    pub(super) fn new(bytes: IndexBytes, layout: Layout) -> IndexedModel {
        IndexedModel { bytes, layout }
    }

    /// Returns the bytes of the index.
    pub(crate) fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    /// The parts of the `tokenizer.json` beside its model, as it has them.
    pub(crate) fn rest(&self) -> &[u8] {
        self.layout.rest(self.bytes())
    }

    fn find(&self, token: &[u8]) -> Option<u32> {
        self.layout.find(self.bytes(), token)
    }

    /// Returns the characters of a text as tokens. A character that is not a token becomes its
    /// bytes, or the unknown token.
    fn symbols(&self, text: &str) -> Vec<Symbol> {
        let rules = self.layout.head.rules;
        let mut symbols = Vec::with_capacity(text.len());
        let mut add = |id, bytes| {
            let at = symbols.len();
            symbols.push(Symbol { id, bytes, before: at.wrapping_sub(1), after: at + 1 });
        };
        // An unknown token is added when a known character follows, or when the text ends. Bytes
        // that come first in between are added before it, as in the library.
        let mut unknown: Option<(u32, usize)> = None;
        for (at, character) in text.char_indices() {
            let spelling = &text.as_bytes()[at..at + character.len_utf8()];
            if let Some(id) = self.find(spelling) {
                if let Some((id, bytes)) = unknown.take() {
                    add(id, bytes);
                }
                add(id, spelling.len());
                continue;
            }
            if rules.byte_fallback {
                let ids: Option<Vec<u32>> =
                    spelling.iter().map(|byte| self.find(format!("<{byte:#04X}>").as_bytes())).collect();
                if let Some(ids) = ids {
                    ids.into_iter().for_each(|id| add(id, 1));
                    continue;
                }
            }
            if let Some(id) = self.layout.head.unknown {
                unknown = match unknown {
                    Some((id, bytes)) if rules.fuse_unk => Some((id, bytes + spelling.len())),
                    before => {
                        if let Some((id, bytes)) = before {
                            add(id, bytes);
                        }
                        Some((id, spelling.len()))
                    }
                };
            }
        }
        if let Some((id, bytes)) = unknown {
            add(id, bytes);
        }
        if let Some(last) = symbols.last_mut() {
            last.after = NONE;
        }
        symbols
    }

    /// Merges pairs in the order of their rank, from left to right for equal ranks, until there are
    /// none.
    fn merge(&self, symbols: &mut Vec<Symbol>) {
        let bytes = self.bytes();
        let merged = |left: Symbol, right: Symbol| self.layout.merge(bytes, left.id, right.id);
        let pairs = symbols.windows(2).enumerate().filter_map(|(at, pair)| {
            let merge = merged(pair[0], pair[1])?;
            Some(Reverse((merge.rank, at, merge.result)))
        });
        let mut queue: BinaryHeap<_> = pairs.collect();
        while let Some(Reverse((_, at, result))) = queue.pop() {
            let left = symbols[at];
            let Some(right) = symbols.get(left.after).copied() else { continue };
            // A neighbour was merged meanwhile, so the pair is a different one.
            if left.bytes == 0 || merged(left, right).is_none_or(|merge| merge.result != result) {
                continue;
            }
            symbols[left.after].bytes = 0;
            symbols[at] = Symbol {
                id: result,
                bytes: left.bytes + right.bytes,
                before: left.before,
                after: right.after,
            };
            if let Some(after) = symbols.get_mut(right.after) {
                after.before = at;
            }
            for first in [left.before, at] {
                let Some(one) = symbols.get(first).copied() else { continue };
                let Some(other) = symbols.get(one.after).copied() else { continue };
                if let Some(merge) = merged(one, other) {
                    queue.push(Reverse((merge.rank, first, merge.result)));
                }
            }
        }
        symbols.retain(|symbol| symbol.bytes != 0);
    }
}

impl Model for IndexedModel {
    type Trainer = TrainerWrapper;

    /// Tokens have no spelling here, since only their ids are used.
    fn tokenize(&self, text: &str) -> tokenizers::Result<Vec<Token>> {
        if self.layout.head.rules.ignore_merges
            && let Some(id) = self.find(text.as_bytes())
        {
            return Ok(vec![Token::new(id, String::new(), (0, text.len()))]);
        }
        let mut symbols = self.symbols(text);
        self.merge(&mut symbols);
        let mut end = 0;
        let tokens = symbols.into_iter().map(|symbol| {
            let begin = end;
            end += symbol.bytes;
            Token::new(symbol.id, String::new(), (begin, end))
        });
        Ok(tokens.collect())
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.find(token.as_bytes())
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        let token = self.layout.token(self.bytes(), id)?;
        Some(std::str::from_utf8(token).ok()?.to_owned())
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        let ids = 0..self.layout.head.tokens;
        ids.filter_map(|id| Some((self.id_to_token(id)?, id))).collect()
    }

    fn get_vocab_size(&self) -> usize {
        self.layout.head.tokens as usize
    }

    fn save(&self, _folder: &Path, _prefix: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        Err("an index is not written as lists of tokens and merges".into())
    }

    fn get_trainer(&self) -> TrainerWrapper {
        BpeTrainer::default().into()
    }
}
