//! The text as token ids, as `llama-perplexity` reads it.

use std::path::{Path, PathBuf};

use shardwright::{Model, Result};
use shardwright_files::read_named;
use shardwright_text::{TEXT_BYTES_MAX, utf8_text};
use shardwright_vocabulary::{Error, ErrorKind, Watch};

/// A text to predict.
#[derive(Debug)]
pub struct Text {
    pub(crate) path: PathBuf,
    /// The text without the line break at its end.
    pub(crate) content: String,
}

impl Text {
    /// Reads a text of at most [`TEXT_BYTES_MAX`] bytes. Call this before opening models, which
    /// needs longer.
    ///
    /// # Errors
    ///
    /// The file does not exist, is too long, is not UTF-8, or is empty.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = read_named(path, TEXT_BYTES_MAX as u64)?;
        let text = utf8_text(&bytes, &path.display().to_string())?;
        let text = text.strip_suffix('\n').unwrap_or(text);
        if text.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, format!("{}: the text is empty", path.display()))
                .with_help("use a text of a few thousand words like the model's usual input"));
        }
        Ok(Text { path: path.to_owned(), content: text.to_owned() })
    }
}

/// A text as token ids.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tokens {
    /// Token ids, with the BOS token first if the tokenizer adds one.
    pub ids: Vec<u32>,
    /// The BOS token, if the tokenizer adds one.
    pub bos: Option<u32>,
    /// Number of special tokens that the text itself contains, such as `<bos>`.
    pub spelled: usize,
}

impl Tokens {
    /// Encodes `text` without the EOS token that a tokenizer may add, because the text continues
    /// from window to window. `watch` can cancel it.
    pub fn of(model: &Model, text: &str, watch: &dyn Watch) -> Result<Self> {
        let tokenizer = model.tokenizer()?;
        // The special tokens are the same for every text.
        let (plain, special) = (tokenizer.encode("a", false)?, tokenizer.encode("a", true)?);
        let before = special.windows(plain.len().max(1)).position(|ids| ids == plain).unwrap_or(0);
        let bos = special.first().copied().filter(|_| before > 0);
        let text = model.encode_until(text, false, || watch.cancelled())?;
        let spelled = text.iter().filter(|id| tokenizer.is_special(**id)).count();
        let ids = special[..before].iter().copied().chain(text).collect();
        Ok(Tokens { ids, bos, spelled })
    }
}
