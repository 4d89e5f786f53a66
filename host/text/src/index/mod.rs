//! The index of a tokenizer: the data for merging byte pairs, in a layout that is used in place.
//!
//! **Job.** The library reads a vocabulary of 262,144 tokens and 520,853 merges into hash tables.
//! This needs 300 MB, and most of the time from a bundle to its first token. An index is made once,
//! stored, and mapped, so that its parts are read only when needed. Added tokens, normalizer,
//! pre-tokenizer, post-processor and decoder stay with the library.
//!
//! **Not its job.** Anything unusual: another kind of model, dropout, prefixes and suffixes, ids
//! with gaps, any error. Then there is no index, and the library reads the file.

pub(crate) mod cache;
mod layout;
mod merging;
mod source;

use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl,
};

use layout::{Layout, Merge, Rules, Writer};
pub(crate) use merging::IndexedModel;
pub(crate) use source::merge_without;

/// The bytes of an index, in memory or mapped.
pub type IndexBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A tokenizer of the library, based on an index.
pub(crate) type IndexedTokenizer =
    TokenizerImpl<IndexedModel, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// Checks whether `index` is a complete index of a `tokenizer.json` with this SHA-256.
pub fn is_index_of(index: &[u8], source: [u8; 32]) -> bool {
    Layout::read(index).is_some_and(|layout| layout.source(index) == source && layout.is_whole(index))
}

/// Reads a `tokenizer.json` into a tokenizer with an index in memory. `None` if the library must
/// read the file.
///
/// The index gets the hash `source`, or else that of the bytes.
pub(crate) fn read(bytes: &[u8], source: Option<[u8; 32]>) -> Option<IndexedTokenizer> {
    let source = source.unwrap_or_else(|| Sha256::digest(bytes).into());
    open(Arc::new(build(bytes, source)?), source).ok()
}

fn build(bytes: &[u8], source: [u8; 32]) -> Option<Vec<u8>> {
    let source::File {
        version, added_tokens, normalizer, pre_tokenizer, post_processor, decoder, model, ..
    } = serde_json::from_slice(bytes).ok()?;
    let usual = version == json!("1.0")
        && model.dropout.is_none_or(|dropout| dropout == 0.0)
        && model.continuing_subword_prefix.is_none()
        && model.end_of_word_suffix.is_none();
    if !usual {
        return None;
    }
    let rest = json!({
        "added_tokens": added_tokens,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": decoder,
    });
    // Ids of added tokens that the model does not have begin after its own. There must be no gap.
    let mut tokens: Vec<Option<&str>> = vec![None; model.vocab.0.len()];
    for (token, id) in &model.vocab.0 {
        let place = tokens.get_mut(usize::try_from(*id).ok()?)?;
        if place.replace(token).is_some() {
            return None;
        }
    }
    let tokens = tokens.into_iter().collect::<Option<Vec<&str>>>()?;
    let rules = Rules {
        fuse_unk: model.fuse_unk.unwrap_or(false),
        byte_fallback: model.byte_fallback.unwrap_or(false),
        ignore_merges: model.ignore_merges.unwrap_or(false),
    };
    let unknown = model.unk_token.as_deref();
    let rest = serde_json::to_vec(&rest).ok()?;
    let writer = Writer::new(source, &tokens, model.merges.len(), unknown, rules, &rest)?;
    let mut whole = String::new();
    let merges = model.merges.iter().enumerate().map(|(rank, source::Merge(left, right))| {
        whole.clear();
        whole.push_str(left);
        whole.push_str(right);
        let rank = u32::try_from(rank).ok()?;
        Some((writer.id(left)?, Merge { right: writer.id(right)?, rank, result: writer.id(&whole)? }))
    });
    let merges = merges.collect::<Option<_>>()?;
    writer.finish(merges)
}

/// The parts of a `tokenizer.json` except its model.
#[derive(Deserialize)]
struct Rest {
    added_tokens: Vec<Added>,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    post_processor: Option<PostProcessorWrapper>,
    decoder: Option<DecoderWrapper>,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    #[serde(flatten)]
    token: AddedToken,
}

/// Opens an index of a `tokenizer.json` with this SHA-256. The tokenizer behaves like the
/// library's. Returns a description of the fault if the index is invalid.
pub(crate) fn open(bytes: IndexBytes, source: [u8; 32]) -> Result<IndexedTokenizer, String> {
    let index = (*bytes).as_ref();
    let layout = Layout::read(index).ok_or_else(|| damaged("its head and its length do not agree"))?;
    if layout.source(index) != source {
        return Err("the index is of another tokenizer.json".to_owned());
    }
    let rest: Rest = serde_json::from_slice(layout.rest(index)).map_err(|error| error.to_string())?;
    let mut tokenizer = TokenizerImpl::new(IndexedModel::new(bytes, layout));
    tokenizer.with_normalizer(rest.normalizer);
    tokenizer.with_pre_tokenizer(rest.pre_tokenizer);
    tokenizer.with_post_processor(rest.post_processor);
    tokenizer.with_decoder(rest.decoder);
    // Added tokens are found in the vocabulary only after the model is set.
    let expected =
        |added: &Added| tokenizer.token_to_id(&added.token.content).is_none_or(|id| id == added.id);
    if !rest.added_tokens.iter().all(expected) {
        return Err(damaged("an added token has another id than in the vocabulary"));
    }
    let added: Vec<AddedToken> = rest.added_tokens.into_iter().map(|added| added.token).collect();
    tokenizer.add_tokens(&added);
    Ok(tokenizer)
}

fn damaged(what: &str) -> String {
    format!("the index of the tokenizer is damaged: {what}")
}
