//! The tokenizer of a checkpoint: text to ids and back.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use serde_json::Value;
use shardwright_vocabulary::{Error, ErrorKind, Ignored, Result, Shortage};
use tokenizers::models::ModelWrapper;
use tokenizers::tokenizer::normalizer::Range as Slice;
use tokenizers::{
    AddedToken, Encoding, Model, NormalizedString, Normalizer, OffsetReferential, OffsetType, PostProcessor,
    PreTokenizedString, PreTokenizer, Token,
};

use crate::cancellable::cancellable;
use crate::contradictions::{contradictions, prefixes_space};
use crate::control_tokens::{ControlTokens, SeparatedText};
use crate::decoding::Decoding;
use crate::engine::{Engine, each};
use crate::gguf::{GgufTexts, TOKENIZER_FILE};
use crate::growth::{Growth, added, growth, unsupported};
use crate::index::{self, IndexBytes, IndexedTokenizer};
use crate::input::{TOKENIZER_BYTES_MAX, check_json, read_capped, too_large};
use crate::panics::{guarded, panic_message};
use crate::tokenizer_config::TokenizerConfig;
use crate::unknown_fields::Written;

/// Longest text that is encoded at once. A prompt of a million tokens has about 5 MB.
pub const TEXT_BYTES_MAX: usize = 16 << 20;

/// Most bytes that normalizers and pre-tokenizers may make from a text. Each needs up to 200 bytes
/// of memory (`tests/memory.rs`). Gemma's steps, which replace blanks by `▁` of three bytes, may
/// get the longest text. Byte-level ones may too if it is ASCII, and otherwise get half of it.
/// Llama's, which prepend `▁` too, get a quarter.
const GROWN_BYTES_MAX: u64 = 3 * TEXT_BYTES_MAX as u64;

/// A tokenizer read from `tokenizer.json`. Clones are cheap and share it.
///
/// Truncation and padding in the file are ignored, as Hugging Face ignores them unless a caller
/// requests them: a prompt is never truncated silently.
#[derive(Clone)]
pub struct Tokenizer {
    shared: Arc<Shared>,
    ignored: Arc<[Ignored]>,
}

struct Shared {
    path: PathBuf,
    engine: Engine,
    decoding: Decoding,
    special_ids: Vec<u32>,
    /// Factors by which normalizers and pre-tokenizers may lengthen a text.
    growth: Growth,
    /// Whether one of the steps puts a space before a text.
    prefixes_space: bool,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Tokenizer")
            .field("path", &self.shared.path)
            .field("vocabulary", &self.vocabulary_size())
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads the tokenizer of a checkpoint: `tokenizer.json` of a folder, or the metadata of a GGUF
    /// file.
    ///
    /// ```
    /// use shardwright_text::Tokenizer;
    ///
    /// let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo-model");
    /// assert!(Tokenizer::from_checkpoint(demo)?.vocabulary_size() > 0);
    /// # Ok::<(), shardwright_vocabulary::Error>(())
    /// ```
    pub fn from_checkpoint(path: impl AsRef<Path>) -> Result<Tokenizer> {
        let path = path.as_ref();
        match GgufTexts::at(path)? {
            None => {
                let config = TokenizerConfig::from_directory(path)?;
                Tokenizer::from_file(path.join(TOKENIZER_FILE))?.with_config(&config)
            }
            Some(texts) => Tokenizer::from_gguf(&texts, None),
        }
    }

    /// Compares the tokenizer with the other files of the checkpoint that name tokens. If they
    /// contradict `tokenizer.json`, it is used, and [`ignored`](Tokenizer::ignored) has their fields.
    ///
    /// The tokens before and after a text are the post-processor's. `transformers` 5.23 also uses
    /// `add_bos_token` and `add_eos_token` only if there is no `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// If a text should begin or end with a token that does not exist.
    pub fn with_config(self, config: &TokenizerConfig) -> Result<Tokenizer> {
        let found = contradictions(config, &self)?;
        let ignored = self.ignored.iter().cloned().chain(found).collect();
        Ok(Tokenizer { ignored, ..self })
    }

    /// Like [`Tokenizer::from_checkpoint`], but uses the tokenizer's index in `folder`, or makes
    /// one. See [`Tokenizer::from_file_indexed`].
    pub fn from_checkpoint_indexed(path: impl AsRef<Path>, folder: impl AsRef<Path>) -> Result<Tokenizer> {
        let path = path.as_ref();
        match GgufTexts::at(path)? {
            None => {
                let config = TokenizerConfig::from_directory(path)?;
                Tokenizer::from_file_indexed(path.join(TOKENIZER_FILE), folder)?.with_config(&config)
            }
            Some(texts) => index::cache::read(
                texts.path(),
                folder.as_ref(),
                || texts.identity().ok(),
                |identity| Tokenizer::from_gguf(&texts, identity),
            ),
        }
    }

    /// Makes the tokenizer of a GGUF file. The index gets the hash `source`, or else the
    /// document's.
    fn from_gguf(texts: &GgufTexts, source: Option<[u8; 32]>) -> Result<Tokenizer> {
        let document = texts.document(TOKENIZER_FILE)?.unwrap_or_default();
        Tokenizer::from_source(&document, texts.path(), source)
    }

    /// Reads `tokenizer.json` at `path`, which may have at most [`TOKENIZER_BYTES_MAX`] bytes.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Tokenizer> {
        let path = path.as_ref();
        Tokenizer::from_bytes(&read_capped(path, TOKENIZER_BYTES_MAX)?, path)
    }

    /// Reads the contents of a `tokenizer.json`. Errors name `path`.
    pub fn from_bytes(bytes: &[u8], path: impl AsRef<Path>) -> Result<Tokenizer> {
        Tokenizer::from_source(bytes, path.as_ref(), None)
    }

    /// Reads the contents of a `tokenizer.json`. The index gets the hash `source`, or else the
    /// contents'.
    fn from_source(bytes: &[u8], path: &Path, source: Option<[u8; 32]>) -> Result<Tokenizer> {
        if bytes.len() as u64 > TOKENIZER_BYTES_MAX {
            return Err(too_large(path, TOKENIZER_BYTES_MAX));
        }
        // The library keeps the last of two equal keys, panics on some malformed JSON, and does not
        // report positions in the rest.
        check_json(bytes, path)?;

        let invalid = |reason: String| invalid(path, &reason);
        if let Ok(Some(engine)) = guarded(|| Ok(index::read(bytes, source))) {
            return Tokenizer::of_index(engine, path);
        }
        // What is no tokenizer at all is refused by the library.
        let written: Written = serde_json::from_slice(bytes).unwrap_or_default();
        if let Some(name) = written.unknown_part() {
            return Err(invalid(format!("the field `{name}` is not known")));
        }
        // The library panics on such a merge.
        if let Some(prefix) = written.prefix()
            && let Some((left, right)) = index::merge_without(prefix, bytes)
        {
            return Err(invalid(format!("the merge of `{left}` and `{right}` lacks the prefix `{prefix}`")));
        }
        let mut engine = guarded(|| tokenizers::Tokenizer::from_bytes(bytes)).map_err(invalid)?;
        engine.with_padding(None);
        engine.with_truncation(None).map_err(|error| invalid(error.to_string()))?;
        if let ModelWrapper::BPE(model) = engine.get_model()
            && model.dropout.is_some_and(|dropout| dropout > 0.0)
        {
            return Err(unsupported(path, "dropout of merges (the same text would give different ids)"));
        }
        Tokenizer::of(Engine::Library(Box::new(engine)), &written, path)
    }

    /// Opens a stored [index](Tokenizer::index) of a `tokenizer.json` with the SHA-256 `source`.
    /// Errors name `path`. The index is used in place. Its own bytes are not hashed: the caller
    /// must have verified them, or must call [`is_index_of`](crate::is_index_of) first.
    pub fn from_index(index: IndexBytes, source: [u8; 32], path: impl AsRef<Path>) -> Result<Tokenizer> {
        let path = path.as_ref();
        let engine = guarded(|| index::open(index, source).map_err(Into::into))
            .map_err(|reason| invalid(path, &reason))?;
        Tokenizer::of_index(engine, path)
    }

    fn of_index(engine: IndexedTokenizer, path: &Path) -> Result<Tokenizer> {
        let written = Written::of_parts(engine.get_model().rest());
        Tokenizer::of(Engine::Indexed(Box::new(engine)), &written, path)
    }

    fn of(engine: Engine, written: &Written, path: &Path) -> Result<Tokenizer> {
        let invalid = |reason: String| invalid(path, &reason);
        // The library writes `null` for an absent step.
        let json = |step: serde_json::Result<Value>| step.map_err(|error| invalid(error.to_string()));
        let normalizer = json(each!(&engine, engine => serde_json::to_value(engine.get_normalizer())))?;
        let pieces = json(each!(&engine, engine => serde_json::to_value(engine.get_pre_tokenizer())))?;
        let decoder = json(each!(&engine, engine => serde_json::to_value(engine.get_decoder())))?;
        let post = json(each!(&engine, engine => serde_json::to_value(engine.get_post_processor())))?;
        let used = [
            ("normalizer", &normalizer),
            ("pre_tokenizer", &pieces),
            ("post_processor", &post),
            ("decoder", &decoder),
        ];
        if let Some(reason) = written.unknown_type(&used) {
            return Err(invalid(reason));
        }
        let unused = written.unused(&used).into_iter();
        let ignored = unused.map(|field| Ignored::field(path, field, "the field is not known")).collect();
        for (token, id) in written.added_tokens() {
            let found = each!(&engine, engine => engine.token_to_id(token));
            if let Some(found) = found.filter(|found| u64::from(*found) != id) {
                let reason =
                    format!("the added token `{token}` has id {id}, but id {found} in the vocabulary");
                return Err(invalid(reason));
            }
        }
        growth(&decoder, path)?;
        added(&post, path)?;
        let growth = growth(&normalizer, path)?.and(growth(&pieces, path)?);
        let added = each!(&engine, engine => engine.get_added_tokens_decoder());
        let mut special_ids: Vec<u32> =
            added.iter().filter(|(_, token)| token.special).map(|(&id, _)| id).collect();
        special_ids.sort_unstable();
        let decoding = Decoding::of(Some(&decoder).filter(|decoder| !decoder.is_null()));
        let prefixes_space = prefixes_space(&normalizer) || prefixes_space(&pieces);
        let path = path.to_owned();
        let shared = Arc::new(Shared { path, engine, decoding, special_ids, growth, prefixes_space });
        Ok(Tokenizer { shared, ignored })
    }

    /// Returns the index for [`Tokenizer::from_index`], to be stored. `None` if only the library
    /// can read the tokenizer.
    pub fn index(&self) -> Option<&[u8]> {
        match &self.shared.engine {
            Engine::Indexed(engine) => Some(engine.get_model().bytes()),
            Engine::Library(_) => None,
        }
    }

    /// Reads `tokenizer.json` at `path` using its index in `folder`. If the index is missing or
    /// damaged, it is made and stored there. Reading a large vocabulary needs a tenth of a second.
    /// Its index needs some milliseconds, plus the time to hash the file.
    ///
    /// An index is used only if no other user can have written it.
    pub fn from_file_indexed(path: impl AsRef<Path>, folder: impl AsRef<Path>) -> Result<Tokenizer> {
        let path = path.as_ref();
        index::cache::read(
            path,
            folder.as_ref(),
            || index::cache::hash_of(path).ok(),
            |_| Tokenizer::from_file(path),
        )
    }

    /// Starts `load` on a separate thread, so that the caller can map weights meanwhile. If the
    /// thread cannot be started, [`TokenizerLoading::join`] reports that with `path`.
    pub fn load_in_background(
        path: impl Into<PathBuf>,
        load: impl FnOnce() -> Result<Tokenizer> + Send + 'static,
    ) -> TokenizerLoading {
        TokenizerLoading::start(path.into(), load)
    }

    /// Returns the path of the file that the tokenizer was read from.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Returns the unknown fields of the file, which have no effect, and the fields of other files
    /// that contradict it (see [`with_config`](Tokenizer::with_config)).
    pub fn ignored(&self) -> &[Ignored] {
        &self.ignored
    }

    /// Returns the ids of `text`, which may have at most [`TEXT_BYTES_MAX`] bytes, or less if the
    /// tokenizer lengthens it much. With
    /// `add_special`, adds the tokens of the file's post-processor (`<bos>`, for some also
    /// `<eos>`). Special tokens spelled out in the text become their ids in either case, regardless
    /// of their origin. For a conversation use
    /// [`ChatTemplate::encode`](crate::ChatTemplate::encode).
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        self.expect_length(text)?;
        guarded(|| each!(&self.shared.engine, engine => engine.encode_fast(text, add_special)))
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|reason| self.not_encoded(&reason))
    }

    /// Encodes a text like [`Tokenizer::encode`], until `cancelled` returns true. The callback runs
    /// several times a second while a long text is encoded, and not for a short one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Cancelled`], and the errors of [`Tokenizer::encode`].
    pub fn encode_until(
        &self,
        text: &str,
        add_special: bool,
        cancelled: impl Fn() -> bool,
    ) -> Result<Vec<u32>> {
        let (tokenizer, text) = (self.clone(), text.to_owned());
        cancellable(text.len(), cancelled, move || tokenizer.encode(&text, add_special))
    }

    /// Returns the ids that the post-processor adds before and after a text.
    pub(crate) fn around(&self) -> Result<[Vec<u32>; 2]> {
        /// Placeholder for the text.
        const TEXT: u32 = u32::MAX;
        let post = each!(&self.shared.engine, engine => engine.get_post_processor());
        let Some(post) = post else { return Ok([Vec::new(), Vec::new()]) };
        let text = Encoding::from_tokens(vec![Token::new(TEXT, "a".to_owned(), (0, 1))], 0);
        let whole = guarded(|| post.process(text, None, true)).map_err(|reason| self.not_encoded(&reason))?;
        let ids = whole.get_ids();
        let at = ids.iter().position(|id| *id == TEXT).unwrap_or(ids.len());
        let after = ids.get(at + 1..).unwrap_or_default();
        Ok([ids[..at].to_vec(), after.to_vec()])
    }

    /// Returns the added tokens with their ids, by their text.
    pub(crate) fn added_tokens(&self) -> HashMap<String, (u32, AddedToken)> {
        let added = each!(&self.shared.engine, engine => engine.get_added_tokens_decoder());
        added.into_iter().map(|(id, token)| (token.content.clone(), (id, token))).collect()
    }

    /// Checks whether one of the steps puts a space before a text.
    pub fn prefixes_space(&self) -> bool {
        self.shared.prefixes_space
    }

    /// Returns the added tokens that a template may write and a message may not.
    pub(crate) fn control_tokens(&self, template: &str) -> ControlTokens {
        let added = each!(&self.shared.engine, engine => engine.get_added_tokens_decoder());
        ControlTokens::new(added.values().map(|token| (token.content.as_str(), token.special)), template)
    }

    /// Returns the ids of a rendered conversation. The template's own tokens become ids. The text
    /// between two of them is encoded in one piece, as by [`Tokenizer::encode`].
    pub(crate) fn encode_separated(&self, separated: &SeparatedText<'_>) -> Result<Vec<u32>> {
        self.expect_length(separated.broken())?;
        guarded(|| self.encode_pieces(separated)).map_err(|reason| self.not_encoded(&reason))
    }

    /// Returns the error of a text that the library cannot encode.
    pub(crate) fn not_encoded(&self, reason: &str) -> Error {
        Error::invalid(format!("cannot encode the text: {reason}")).at(self.shared.path.display())
    }

    /// Refuses a text that is too long, or becomes too long by the steps.
    fn expect_length(&self, text: &str) -> Result<()> {
        let growth = self.shared.growth;
        if text.len() <= TEXT_BYTES_MAX && growth.grown(text) <= GROWN_BYTES_MAX {
            return Ok(());
        }
        let most = (GROWN_BYTES_MAX / growth.of(text)).min(TEXT_BYTES_MAX as u64);
        let what = format!("the text has {} bytes; at most {most} are encoded at once", text.len());
        Err(Error::argument(what).with_help("shorten the text, or encode it in parts"))
    }

    fn encode_pieces(&self, separated: &SeparatedText<'_>) -> tokenizers::Result<Vec<u32>> {
        let engine = &self.shared.engine;
        let normalizer = each!(engine, engine => engine.get_normalizer());
        let added = each!(engine, engine => engine.get_added_vocabulary());
        let found = added.extract_and_normalize(normalizer, separated.broken());
        let found = found.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let found = found
            .into_iter()
            .filter_map(|(_, (start, end), tokens)| Some((start..end, tokens.as_ref()?.first()?.id)));
        let (text, found) = separated.text(found.collect());

        let mut pieces = PreTokenizedString::from(text.as_str());
        pieces.split(|_, whole| Ok(cut(&whole, &found)))?;
        if let Some(normalizer) = normalizer {
            pieces.normalize(|piece| normalizer.normalize(piece))?;
        }
        if let Some(pre_tokenizer) = each!(engine, engine => engine.get_pre_tokenizer()) {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        pieces.tokenize(|piece| each!(engine, engine => engine.get_model().tokenize(piece.get())))?;
        Ok(pieces.into_encoding(None, 0, OffsetType::None)?.get_ids().to_vec())
    }

    /// Returns the text of `ids`, without special tokens if `skip_special` is set. Ids outside the
    /// vocabulary give no text, as in Hugging Face. (A model's table may have more rows than its
    /// tokenizer has tokens.)
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        guarded(|| each!(&self.shared.engine, engine => engine.decode(ids, skip_special))).map_err(|reason| {
            Error::invalid(format!("cannot decode the ids: {reason}")).at(self.shared.path.display())
        })
    }

    /// Returns the number of tokens in the vocabulary, including added ones.
    pub fn vocabulary_size(&self) -> usize {
        self.shared.engine.vocabulary_size()
    }

    /// Returns the id of a token, spelled as in the vocabulary.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        each!(&self.shared.engine, engine => engine.token_to_id(token))
    }

    /// Returns the token of an id, spelled as in the vocabulary.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        each!(&self.shared.engine, engine => engine.id_to_token(id))
    }

    /// Returns the lowest id that has a different token in `other`, or a token in only one of the
    /// two. `None` if the vocabularies are equal. Comparing sizes is not enough: vocabularies of
    /// different families have equal sizes.
    pub fn first_difference(&self, other: &Tokenizer) -> Option<VocabularyDifference> {
        let end = self.ids_end().max(other.ids_end());
        (0..end).find_map(|id| {
            let (own, others) = (self.id_to_token(id), other.id_to_token(id));
            (own != others).then_some(VocabularyDifference { id, own, others })
        })
    }

    /// Returns one plus the largest id that may be a token.
    pub(crate) fn ids_end(&self) -> u32 {
        let added = each!(&self.shared.engine, engine => engine.get_added_tokens_decoder());
        let added = added.keys().max().map_or(0, |largest| largest.saturating_add(1));
        u32::try_from(self.vocabulary_size()).unwrap_or(u32::MAX).max(added)
    }

    /// Returns the ids of the special tokens, in ascending order.
    pub fn special_ids(&self) -> &[u32] {
        &self.shared.special_ids
    }

    /// Checks whether `id` is a special token.
    pub fn is_special(&self, id: u32) -> bool {
        self.shared.special_ids.binary_search(&id).is_ok()
    }

    pub(crate) fn decoding(&self) -> &Decoding {
        &self.shared.decoding
    }

    /// Returns the spelling of `id` that [`Tokenizer::decode`] passes to the decoder. `None` if it
    /// skips the id.
    pub(crate) fn visible_token(&self, id: u32, skip_special: bool) -> Option<String> {
        let token = self.id_to_token(id)?;
        let added = each!(&self.shared.engine, engine => engine.get_added_vocabulary());
        let hidden = skip_special && added.is_special_token(&token);
        (!hidden).then_some(token)
    }
}

fn invalid(path: &Path, reason: &str) -> Error {
    Error::invalid(format!("not a valid tokenizer: {reason}"))
        .at(path.display())
        .with_help("save the tokenizer again with a `tokenizers` release of the 0.2x line")
}

/// An id that is not the same token in two vocabularies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VocabularyDifference {
    pub id: u32,
    /// The token in this vocabulary, if it has one.
    pub own: Option<String>,
    /// The token in the other vocabulary, if it has one.
    pub others: Option<String>,
}

/// Splits `whole` into pieces: the tokens found in it, given with their ranges in bytes, and the
/// text between them.
fn cut(
    whole: &NormalizedString,
    found: &[(std::ops::Range<usize>, u32)],
) -> Vec<(NormalizedString, Option<Vec<Token>>)> {
    let mut pieces = Vec::with_capacity(found.len() * 2 + 1);
    let mut place = 0;
    let mut push = |range: std::ops::Range<usize>, id: Option<u32>| {
        if let Some(piece) = whole.slice(Slice::Original(range)) {
            let token = id.map(|id| vec![Token::new(id, piece.get().to_owned(), (0, piece.get().len()))]);
            pieces.push((piece, token));
        }
    };
    for (range, id) in found {
        push(place..range.start, None);
        push(range.clone(), Some(*id));
        place = range.end;
    }
    push(place..whole.get().len(), None);
    pieces
}

/// A tokenizer that a separate thread is reading.
#[derive(Debug)]
pub struct TokenizerLoading {
    path: PathBuf,
    thread: std::io::Result<JoinHandle<Result<Tokenizer>>>,
}

impl TokenizerLoading {
    fn start(path: PathBuf, read: impl FnOnce() -> Result<Tokenizer> + Send + 'static) -> Self {
        let thread = std::thread::Builder::new().name("tokenizer".into()).spawn(read);
        TokenizerLoading { path, thread }
    }

    /// Checks whether [`TokenizerLoading::join`] would return at once.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().map_or(true, JoinHandle::is_finished)
    }

    /// Waits for the tokenizer or its error.
    pub fn join(self) -> Result<Tokenizer> {
        let path = self.path;
        let failed = |reason: String, shortage: Option<Shortage>| {
            let kind = shortage.map_or(ErrorKind::Internal, Shortage::kind);
            let help = shortage.map_or("load the tokenizer on the calling thread instead", Shortage::help);
            Error::new(kind, format!("cannot load on a separate thread: {reason}"))
                .at(path.display())
                .with_help(help)
        };
        match self.thread {
            Ok(thread) => {
                thread.join().unwrap_or_else(|panic| Err(failed(panic_message(panic.as_ref()), None)))
            }
            Err(error) => Err(failed(error.to_string(), Shortage::of_start(&error))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control_tokens::Marks;

    /// Unmarked text gets the same tokens as from the library.
    #[test]
    fn without_a_mark_the_pieces_are_the_librarys() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
        for name in ["gemma3_text", "gemma4_text", "qwen3", "embeddinggemma"] {
            let tokenizer = Tokenizer::from_file(fixtures.join(name).join("tokenizer.json")).unwrap();
            let control = tokenizer.control_tokens("");
            let marks = Marks::unused_in(&[], std::iter::empty(), "", &control).unwrap();
            let mut texts = Vec::new();
            for (file, member) in [("tokenizer_goldens.json", "text"), ("chat_goldens.json", "rendered")] {
                let Ok(bytes) = std::fs::read(fixtures.join(name).join(file)) else { continue };
                let goldens: Vec<serde_json::Value> = serde_json::from_slice(&bytes).unwrap();
                texts.extend(goldens.iter().map(|golden| golden[member].as_str().unwrap().to_owned()));
            }
            assert!(texts.len() >= 20);
            for text in texts {
                let separated = marks.separate(&text, &control);
                let found = tokenizer.encode_separated(&separated).unwrap();
                assert_eq!(found, tokenizer.encode(&text, false).unwrap(), "{name}: {text:?}");
            }
        }
    }

    #[test]
    fn a_thread_that_does_not_start_or_dies_is_an_error() {
        let path = PathBuf::from("tokenizer.json");
        let dead = std::thread::spawn(|| -> Result<Tokenizer> { panic!("on purpose") });
        let none = std::io::Error::from(std::io::ErrorKind::WouldBlock);
        for (thread, words, help, kind) in [
            (Err(none), "would block", "ulimit -u", ErrorKind::Resource),
            (Ok(dead), "on purpose", "calling thread", ErrorKind::Internal),
        ] {
            let loading = TokenizerLoading { path: path.clone(), thread };
            let error = loading.join().unwrap_err();
            assert_eq!((error.kind(), error.place()), (kind, Some("tokenizer.json")));
            assert!(error.message().starts_with("cannot load on a separate thread: "), "{error}");
            assert!(error.message().contains(words), "{error}");
            assert!(error.help().is_some_and(|found| found.contains(help)), "{error}");
        }
    }
}
