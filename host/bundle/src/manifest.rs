//! The manifest of a bundle.

mod check;
mod read;
#[cfg(test)]
mod tests;
mod variant;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use shardwright_vocabulary::Table;

use crate::Digest;

pub(crate) use check::{FILE_BYTES, TEXT_FILE_BYTES};
pub use check::{NAME_BYTES_MAX, TEXT_BYTES_MAX};
pub(crate) use read::{MANIFEST_BYTES, canonical, parse};
pub use variant::{ChainEntry, Model, ShardEntry, Structure, TowerEntry, TwinEntry, Variant, Verification};

/// A file of the bundle, by its content. Its path follows from the hash alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileReference {
    /// Hash of its bytes.
    pub sha256: Digest,
    /// Its length.
    pub bytes: u64,
}

impl fmt::Display for FileReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.sha256, self.bytes)
    }
}

/// The content of a bundle: the model, what it is compiled into for each chip, and the files.
///
/// Equal manifests have equal bytes, and contain nothing specific to the time or machine of the
/// build.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The program that wrote it, with its version: `shardwright 0.1.0`.
    pub program: String,
    /// Which model it is.
    pub model: ModelIdentity,
    /// Files of the checkpoint for text processing.
    pub texts: BTreeMap<TextFile, FileReference>,
    /// The index of the tokenizer, by which it is loaded without reading `tokenizer.json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer_index: Option<FileReference>,
    /// What the model said to a fixed text when it was compiled: JSON of the crate that runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goldens: Option<FileReference>,
    /// What the model is compiled into, for one chip each; at least one. Their order means nothing.
    pub variants: Vec<Variant>,
}

/// The model of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelIdentity {
    /// Its name, for reports.
    pub name: String,
    /// The family that read it.
    pub family: String,
    /// Hash of the checkpoint, computed by its reader.
    pub checkpoint: Digest,
}

/// A gathered table and its files.
pub type AssetEntry = Table<FileReference>;

macro_rules! text_files {
    ($($(#[$meta:meta])* $case:ident = $name:literal,)+) => {
        /// A file of a checkpoint that text processing reads, under its name in the checkpoint. The
        /// list is closed: no other file of a checkpoint is added to a bundle.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum TextFile {
            $($(#[$meta])* #[serde(rename = $name)] $case,)+
        }

        impl TextFile {
            /// Every one, in alphabetical order of the names.
            pub const ALL: &'static [TextFile] = &[$(TextFile::$case,)+];

            /// Its name in a checkpoint.
            pub const fn name(self) -> &'static str {
                match self {
                    $(TextFile::$case => $name,)+
                }
            }
        }
    };
}

text_files! {
    /// Tokens beyond the vocabulary.
    AddedTokens = "added_tokens.json",
    /// The template of conversations.
    ChatTemplate = "chat_template.jinja",
    /// Settings of the model, with the stop ids if the generation settings lack them.
    Config = "config.json",
    /// Prompts of embedding models.
    SentenceTransformers = "config_sentence_transformers.json",
    /// Sampling and stop ids.
    GenerationConfig = "generation_config.json",
    /// How pictures and sounds become what towers read, as older checkpoints have it.
    Preprocessor = "preprocessor_config.json",
    /// How pictures and sounds become what towers read.
    Processor = "processor_config.json",
    /// Roles of special tokens.
    SpecialTokensMap = "special_tokens_map.json",
    /// The tokenizer.
    Tokenizer = "tokenizer.json",
    /// Settings of the tokenizer.
    TokenizerConfig = "tokenizer_config.json",
}

impl TextFile {
    /// The one of that name.
    pub fn from_name(name: &str) -> Option<TextFile> {
        TextFile::ALL.iter().copied().find(|file| file.name() == name)
    }
}

impl fmt::Display for TextFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Manifest {
    /// The variant of that name.
    pub fn variant(&self, soc: &str) -> Option<&Variant> {
        self.variants.iter().find(|variant| variant.soc == soc)
    }

    /// Every chain of every variant, of the text and of towers.
    pub fn all_chains(&self) -> impl Iterator<Item = &ChainEntry> {
        self.variants.iter().flat_map(Variant::all_chains)
    }

    /// Every file named, with the field that names it, in the order of the fields.
    pub fn references(&self) -> Vec<(String, FileReference)> {
        let texts = self.texts.iter().map(|(name, file)| (format!("texts.{name}"), *file));
        let mut found: Vec<(String, FileReference)> = texts.collect();
        found.extend(self.tokenizer_index.map(|file| ("tokenizer_index".to_owned(), file)));
        found.extend(self.goldens.map(|file| ("goldens".to_owned(), file)));
        for (index, variant) in self.variants.iter().enumerate() {
            let named = variant.references().into_iter();
            found.extend(named.map(|(field, file)| (format!("variants[{index}].{field}"), file)));
        }
        found
    }
}
