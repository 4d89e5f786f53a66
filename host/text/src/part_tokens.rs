//! `config.json`: the tokens for a part of a prompt that is not text. They come before the part,
//! after it, and in its place.

use std::path::Path;

use shardwright_vocabulary::{Error, Result};

use crate::generation::Section;
use crate::input::Files;

/// The tokens for one kind of part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartTokens {
    /// The token that a template writes for the part, and that each row of the part has as a
    /// placeholder.
    pub placeholder: u32,
    /// The token before the rows.
    pub begin: u32,
    /// The token after the rows.
    pub end: u32,
}

/// The kinds of parts for which a checkpoint has tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptTokens {
    /// The tokens for pictures.
    pub picture: Option<PartTokens>,
    /// The tokens for sounds.
    pub sound: Option<PartTokens>,
}

/// Names of each token's field in newer files and in older files.
type Names = [[&'static str; 2]; 3];

const PICTURE: Names = [
    ["image_token_id", "image_token_index"],
    ["boi_token_id", "boi_token_index"],
    ["eoi_token_id", "eoi_token_index"],
];

const SOUND: Names = [
    ["audio_token_id", "audio_token_index"],
    ["boa_token_id", "boa_token_index"],
    ["eoa_token_id", "eoa_token_index"],
];

impl PromptTokens {
    /// Reads `config.json` in `directory`. A kind counts as absent unless it has all three tokens.
    pub fn from_directory(directory: impl AsRef<Path>) -> Result<Self> {
        PromptTokens::read(&Files::of(directory.as_ref())?)
    }

    /// Like [`PromptTokens::from_directory`], but gets the contents of that file by name. Errors
    /// name it as a file of `directory`.
    pub fn from_files(directory: impl AsRef<Path>, file: impl Fn(&str) -> Option<Vec<u8>>) -> Result<Self> {
        PromptTokens::read(&Files::from_source(directory.as_ref(), &file))
    }

    fn read(files: &Files<'_>) -> Result<Self> {
        let config = Section::read(files, "config.json")?;
        let id = |names: [&'static str; 2]| match config.id(names[0])? {
            None => config.id(names[1]),
            found => Ok(found),
        };
        let part = |[placeholder, begin, end]: Names| {
            let found = (id(placeholder)?, id(begin)?, id(end)?);
            Ok::<_, Error>(match found {
                (Some(placeholder), Some(begin), Some(end)) => Some(PartTokens { placeholder, begin, end }),
                _ => None,
            })
        };
        Ok(PromptTokens { picture: part(PICTURE)?, sound: part(SOUND)? })
    }
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    fn read(config: &str) -> Result<PromptTokens> {
        PromptTokens::from_files("model", |name| (name == "config.json").then(|| config.as_bytes().to_vec()))
    }

    #[test]
    fn kinds_have_all_three_tokens_or_none() {
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/gemma4_mm");
        let found = PromptTokens::from_directory(fixture).unwrap();
        assert_eq!(found.picture, Some(PartTokens { placeholder: 19, begin: 17, end: 18 }));
        assert_eq!(found.sound, Some(PartTokens { placeholder: 22, begin: 20, end: 21 }));
        let old = r#"{"image_token_index": 5, "boi_token_index": 6, "eoi_token_id": 7, "audio_token_id": 8}"#;
        let found = read(old).unwrap();
        assert_eq!(found.picture, Some(PartTokens { placeholder: 5, begin: 6, end: 7 }));
        assert_eq!(found.sound, None);
        assert_eq!(PromptTokens::from_files("model", |_| None).unwrap(), PromptTokens::default());
        let error = read(r#"{"image_token_id": -1}"#).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().starts_with("`image_token_id` should be "), "{error}");
    }
}
