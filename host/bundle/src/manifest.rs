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

/// A file of the bundle, identified by its content. Its path depends only on the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileReference {
    /// Hash of the file's bytes.
    pub sha256: Digest,
    pub bytes: u64,
}

impl fmt::Display for FileReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.sha256, self.bytes)
    }
}

/// The content of a bundle: the model, its compiled variants for chips, and the files.
///
/// Equal manifests have equal bytes. They contain no information about the time or machine of the
/// build.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The program that wrote the manifest, with its version: `shardwright 0.1.0`.
    pub program: String,
    /// Identity of the model.
    pub model: ModelIdentity,
    /// Files of the checkpoint for text processing.
    pub texts: BTreeMap<TextFile, FileReference>,
    /// The index of the tokenizer, which allows loading it without reading `tokenizer.json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer_index: Option<FileReference>,
    /// The model's output for a fixed text at compile time: JSON of the crate that runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goldens: Option<FileReference>,
    /// The compiled variants, one for each chip. There is at least one, and their order has no
    /// meaning.
    pub variants: Vec<Variant>,
}

/// The model of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelIdentity {
    /// Name for reports.
    pub name: String,
    /// The model family whose reader was used.
    pub family: String,
    /// Hash of the checkpoint, computed by its reader.
    pub checkpoint: Digest,
}

/// A gathered table and its files.
pub type AssetEntry = Table<FileReference>;

macro_rules! text_files {
    ($($(#[$meta:meta])* $case:ident = $name:literal,)+) => {
        /// A checkpoint file for text processing, under its name in the checkpoint. The list is
        /// complete: no other file of a checkpoint is added to a bundle.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum TextFile {
            $($(#[$meta])* #[serde(rename = $name)] $case,)+
        }

        impl TextFile {
            /// All files, in alphabetical order of their names.
            pub const ALL: &'static [TextFile] = &[$(TextFile::$case,)+];

            /// Returns the name in a checkpoint.
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
    /// The template for conversations.
    ChatTemplate = "chat_template.jinja",
    /// Settings of the model, with the stop ids if the generation settings lack them.
    Config = "config.json",
    /// Prompts of embedding models.
    SentenceTransformers = "config_sentence_transformers.json",
    /// Sampling and stop ids.
    GenerationConfig = "generation_config.json",
    /// Conversion of pictures and sounds to the input of towers, in the form of older checkpoints.
    Preprocessor = "preprocessor_config.json",
    /// Conversion of pictures and sounds to the input of towers.
    Processor = "processor_config.json",
    /// Roles of special tokens.
    SpecialTokensMap = "special_tokens_map.json",
    Tokenizer = "tokenizer.json",
    /// Settings of the tokenizer.
    TokenizerConfig = "tokenizer_config.json",
}

impl TextFile {
    /// Returns the file with this name.
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
    /// Returns the variant with this name.
    pub fn variant(&self, soc: &str) -> Option<&Variant> {
        self.variants.iter().find(|variant| variant.soc == *soc)
    }

    /// Returns every chain of every variant, of the text model and of towers.
    pub fn all_chains(&self) -> impl Iterator<Item = &ChainEntry> {
        self.variants.iter().flat_map(Variant::all_chains)
    }

    /// Returns every file with the field that names it, in the order of the fields.
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
