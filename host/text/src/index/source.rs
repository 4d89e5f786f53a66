//! The source of an index: the parts of a `tokenizer.json` whose model merges byte pairs.
//!
//! Strings are borrowed from the file, which may have 262,144 tokens and 520,853 merges.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File<'f> {
    pub version: Value,
    #[serde(rename = "truncation")]
    _truncation: Value,
    #[serde(rename = "padding")]
    _padding: Value,
    pub added_tokens: Value,
    pub normalizer: Value,
    pub pre_tokenizer: Value,
    pub post_processor: Value,
    pub decoder: Value,
    #[serde(borrow)]
    pub model: Model<'f>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Model<'f> {
    #[serde(rename = "type")]
    _kind: Kind,
    pub dropout: Option<f32>,
    pub unk_token: Option<String>,
    pub continuing_subword_prefix: Option<String>,
    pub end_of_word_suffix: Option<String>,
    pub fuse_unk: Option<bool>,
    pub byte_fallback: Option<bool>,
    pub ignore_merges: Option<bool>,
    #[serde(borrow)]
    pub vocab: Vocabulary<'f>,
    #[serde(borrow)]
    pub merges: Vec<Merge<'f>>,
}

#[derive(Deserialize)]
enum Kind {
    #[serde(rename = "BPE")]
    BytePairs,
}

/// Tokens with their ids, in the order of the file.
pub(super) struct Vocabulary<'f>(pub Vec<(Cow<'f, str>, u32)>);

impl<'de: 'f, 'f> Deserialize<'de> for Vocabulary<'f> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tokens;
        impl<'de> Visitor<'de> for Tokens {
            type Value = Vocabulary<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("tokens with their ids")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut tokens = Vec::new();
                while let Some((Text(token), id)) = map.next_entry()? {
                    tokens.push((token, id));
                }
                Ok(Vocabulary(tokens))
            }
        }
        deserializer.deserialize_map(Tokens)
    }
}

/// Two tokens that are merged into one: a pair of strings, or one string with a space between them.
pub(super) struct Merge<'f>(pub Cow<'f, str>, pub Cow<'f, str>);

impl<'de: 'f, 'f> Deserialize<'de> for Merge<'f> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pair;
        impl<'de> Visitor<'de> for Pair {
            type Value = Merge<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a pair of tokens")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<Self::Value, A::Error> {
                let first = pair.next_element::<Text<'de>>()?;
                match (first, pair.next_element::<Text<'de>>()?, pair.next_element::<Text<'de>>()?) {
                    (Some(left), Some(right), None) => Ok(Merge(left.0, right.0)),
                    _ => Err(A::Error::custom("a merge is of two tokens")),
                }
            }
            fn visit_borrowed_str<E: Error>(self, pair: &'de str) -> Result<Self::Value, E> {
                let (left, right) = halves(pair)?;
                Ok(Merge(Cow::Borrowed(left), Cow::Borrowed(right)))
            }
            fn visit_str<E: Error>(self, pair: &str) -> Result<Self::Value, E> {
                let (left, right) = halves(pair)?;
                Ok(Merge(Cow::Owned(left.to_owned()), Cow::Owned(right.to_owned())))
            }
        }
        /// Splits a merge at its space. Lines that may be comments in a list of merges are left to
        /// the library.
        fn halves<E: Error>(pair: &str) -> Result<(&str, &str), E> {
            let halves = pair.split_once(' ').filter(|(_, right)| !right.contains(' '));
            halves
                .filter(|_| !pair.starts_with("#version"))
                .ok_or_else(|| E::custom("two tokens and a space"))
        }
        deserializer.deserialize_any(Pair)
    }
}

/// Returns a merge whose right half cannot begin with `prefix`, the prefix of tokens inside words.
pub(crate) fn merge_without(prefix: &str, bytes: &[u8]) -> Option<(String, String)> {
    #[derive(Deserialize)]
    struct Merging<'f> {
        #[serde(borrow)]
        model: Merges<'f>,
    }
    #[derive(Deserialize)]
    struct Merges<'f> {
        #[serde(borrow, default)]
        merges: Vec<Merge<'f>>,
    }
    let Merging { model } = serde_json::from_slice(bytes).ok()?;
    let mut merges = model.merges.into_iter();
    let Merge(left, right) = merges.find(|Merge(_, right)| right.get(prefix.len()..).is_none())?;
    Some((left.into_owned(), right.into_owned()))
}

/// A string of the file, borrowed unless it has escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct Text<'f>(#[serde(borrow)] Cow<'f, str>);
