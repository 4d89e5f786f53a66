//! Ids of models on a hub.

use std::fmt;
use std::str::FromStr;

use shardwright_vocabulary::{Error, Result};

use crate::name;

/// Maximum length of an owner or a name in characters, as on the hub.
const PART_CHARACTERS: usize = 96;

/// The default branch of a hub.
const MAIN: &str = "main";

/// `OWNER/NAME`, optionally `@REVISION`, optionally `:FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubId {
    /// The user or organisation.
    pub owner: String,
    /// The repository.
    pub name: String,
    /// A branch, a tag or a commit. Default: `main`.
    pub revision: Option<String>,
    /// A file, a pattern with `*`, or a quantisation such as `Q4_K_M`.
    pub file: Option<String>,
}

impl HubId {
    /// Returns the revision, or `main`.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(MAIN)
    }

    /// Returns `OWNER/NAME`.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }

    /// Returns the name of the repository's folder in a cache.
    pub fn folder(&self) -> String {
        format!("models--{}--{}", self.owner, self.name)
    }

    /// Returns the id with another revision.
    ///
    /// # Errors
    /// If it cannot be a branch, a tag or a commit.
    pub fn at(mut self, revision: &str) -> Result<HubId> {
        if !is_revision(revision) {
            return Err(not_an_id(revision, "expected a branch, a tag or a commit"));
        }
        self.revision = Some(revision.to_owned());
        Ok(self)
    }
}

impl FromStr for HubId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refused = |reason| not_an_id(text, reason);
        let (rest, file) = match text.split_once(':') {
            Some((rest, file)) => (rest, Some(file)),
            None => (text, None),
        };
        let (rest, revision) = match rest.split_once('@') {
            Some((rest, revision)) => (rest, Some(revision)),
            None => (rest, None),
        };
        let (owner, name) = rest.split_once('/').ok_or_else(|| refused("expected OWNER/NAME"))?;
        if !is_part(owner) || !is_part(name) {
            return Err(refused(
                "an owner and a name have letters, digits, `-`, `_` and `.` alone, begin and end with a \
                 letter, a digit or `_`, and contain neither `--` nor `..`",
            ));
        }
        if file.is_some_and(|file| name::check(file).is_err()) {
            return Err(refused("`:` is followed by the path of a file in the repository or a quantisation"));
        }
        let id = HubId {
            owner: owner.to_owned(),
            name: name.to_owned(),
            revision: None,
            file: file.map(str::to_owned),
        };
        match revision {
            Some(revision) => {
                id.at(revision).map_err(|_| refused("`@` is followed by a branch, a tag or a commit"))
            }
            None => Ok(id),
        }
    }
}

fn not_an_id(text: &str, reason: &str) -> Error {
    Error::argument(format!("`{text}` is not the id of a model on a hub: {reason}"))
        .with_help("write OWNER/NAME, such as google/gemma-3-270m, and after it @REVISION or :FILE if needed")
}

impl fmt::Display for HubId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)?;
        self.revision.iter().try_for_each(|revision| write!(f, "@{revision}"))?;
        self.file.iter().try_for_each(|file| write!(f, ":{file}"))
    }
}

/// Returns whether the hub accepts this as an owner or a name. Two hyphens are excluded, as they
/// separate the parts of a folder's name in the cache.
fn is_part(text: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    text.len() <= PART_CHARACTERS
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && ends(text.chars().next())
        && ends(text.chars().next_back())
        && !text.contains("--")
        && !text.contains("..")
}

/// Returns whether this may be the name of a git reference, or a commit. It becomes a path in the
/// cache.
fn is_revision(text: &str) -> bool {
    name::check(text).is_ok() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./+".contains(c))
}

/// Returns whether this is a full commit hash.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    #[test]
    fn ids_are_read_and_written() {
        for text in [
            "google/gemma-3-270m",
            "a/b@main",
            "a/b@refs/pr/1",
            "a/b:Q4_K_M",
            "a/b@v1.0:sub/x-Q8_0.gguf",
            "_a/b.c_",
        ] {
            assert_eq!(text.parse::<HubId>().expect(text).to_string(), text);
        }
        let id: HubId = "a/b".parse().expect("an id");
        assert_eq!((id.revision(), id.folder().as_str()), ("main", "models--a--b"));
        assert_eq!(id.at("v2").expect("a tag").revision(), "v2");
    }

    #[test]
    fn other_texts_are_refused() {
        let long = format!("a/{}", "b".repeat(97));
        for text in [
            "", "a", "/", "a/", "/a", "a/b/c", "../b", "a/..", "./a", "a/b--c", "a/b..c", "-a/b", "a/b.",
            "a b/c", "a/é", "a/b@", "a/b@../x", "a/b@a b", "a/b:", "a/b:../x", "a/b:/x", "a/b:x\\y", "a/b\n",
            &long,
        ] {
            let error = text.parse::<HubId>().expect_err(text);
            assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
            let message = format!("`{text}` is not the id of a model on a hub: ");
            assert!(error.message().starts_with(&message), "{error}");
        }
        let id: HubId = "a/b".parse().expect("an id");
        let error = id.at("a/../b").expect_err("a path");
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(error.message().starts_with("`a/../b` is not the id of a model"), "{error}");
    }

    #[test]
    fn commits_are_forty_digits() {
        assert!(is_commit(&"0f".repeat(20)));
        for wrong in ["", "main", &"0F".repeat(20), &"0".repeat(39), &"0".repeat(41)] {
            assert!(!is_commit(wrong), "{wrong}");
        }
    }
}
