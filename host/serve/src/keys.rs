//! API keys. A key is compared with all known ones in constant time, and decides which prefix cache
//! a request uses.

use std::path::Path;

use sha2::{Digest, Sha256};
use shardwright::{Error, ErrorKind, Result};
use subtle::{ConditionallySelectable, ConstantTimeEq};

/// Most keys of a server.
const KEYS_MAX: usize = 1024;

/// Fewest and most characters of a key.
const LENGTHS: std::ops::RangeInclusive<usize> = 16..=512;

/// Most bytes of a file of keys.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The keys of a server. Only their hashes are kept.
#[derive(Clone)]
pub struct Keys {
    digests: Vec<[u8; 32]>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("count", &self.digests.len()).finish_non_exhaustive()
    }
}

/// A key by its position. Without keys, all clients are the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct KeyIndex(pub u32);

impl Keys {
    /// Reads keys from text, one in each line. Empty lines are skipped.
    ///
    /// # Errors
    ///
    /// Fails without a key, and for keys that are too short, too long, not visible ASCII, or equal.
    pub fn from_text(text: &str) -> Result<Keys> {
        let mut digests: Vec<[u8; 32]> = Vec::new();
        for (index, key) in text.lines().map(str::trim).enumerate().filter(|(_, key)| !key.is_empty()) {
            let place = format!("line {}", index + 1);
            if !LENGTHS.contains(&key.len()) || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                let (least, most) = (LENGTHS.start(), LENGTHS.end());
                let what = format!("expected an API key of {least} to {most} visible ASCII characters");
                return Err(Error::new(ErrorKind::Invalid, what).at(place).with_help(HELP));
            }
            let digest = hash(key);
            if digests.contains(&digest) {
                let what = "a second API key with the same characters";
                return Err(Error::new(ErrorKind::Invalid, what).at(place).with_help("remove one of them"));
            }
            digests.push(digest);
        }
        match digests.len() {
            0 => Err(Error::new(ErrorKind::Invalid, "expected an API key, got none").with_help(HELP)),
            count if count > KEYS_MAX => {
                let what = format!("expected at most {KEYS_MAX} API keys, got {count}");
                Err(Error::new(ErrorKind::Invalid, what).with_help("remove unused keys"))
            }
            _ => Ok(Keys { digests }),
        }
    }

    /// Reads keys from a file, one in each line.
    ///
    /// # Errors
    ///
    /// The errors of [`Keys::from_text`] and of reading the file.
    pub fn from_file(path: &Path) -> Result<Keys> {
        use std::io::Read;
        let at = |error: Error| error.at(path.display());
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(|error| at(error.into()))?;
        file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| at(error.into()))?;
        if text.len() as u64 > FILE_BYTES_MAX {
            let what = format!("the file of API keys has more than {FILE_BYTES_MAX} bytes");
            return Err(at(Error::new(ErrorKind::Invalid, what).with_help("write one key in each line")));
        }
        Keys::from_text(&text).map_err(at)
    }

    /// Reads keys from an environment variable, one in each line.
    ///
    /// # Errors
    ///
    /// The errors of [`Keys::from_text`], and if the variable is not set.
    pub fn from_variable(name: &str) -> Result<Keys> {
        let place = format!("environment variable `{name}`");
        let value = std::env::var(name).map_err(|error| {
            Error::new(ErrorKind::Missing, error.to_string())
                .at(&place)
                .with_help(format!("set `{name}` to the key before the server starts"))
        })?;
        Keys::from_text(&value).map_err(|error| error.at(place))
    }

    pub(crate) fn len(&self) -> usize {
        self.digests.len()
    }

    /// Finds a key. The time depends neither on the key nor on its position.
    pub(crate) fn find(&self, key: &str) -> Option<KeyIndex> {
        let digest = hash(key);
        let (mut found, mut index) = (subtle::Choice::from(0), 0_u32);
        for (position, known) in (0_u32..).zip(&self.digests) {
            let is_equal = known[..].ct_eq(&digest[..]);
            index = u32::conditional_select(&index, &position, is_equal);
            found |= is_equal;
        }
        bool::from(found).then_some(KeyIndex(index))
    }
}

const HELP: &str = "write one key in each line, such as the output of `openssl rand -hex 32`";

fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_by_all_their_characters() {
        let keys = Keys::from_text("0123456789abcdef\n\n  fedcba9876543210  \n").unwrap();
        assert_eq!(keys.len(), 2);
        assert_eq!(keys.find("0123456789abcdef"), Some(KeyIndex(0)));
        assert_eq!(keys.find("fedcba9876543210"), Some(KeyIndex(1)));
        for other in ["", "0123456789abcde", "0123456789abcdef0", "0123456789ABCDEF"] {
            assert_eq!(keys.find(other), None, "{other}");
        }
        assert!(!format!("{keys:?}").contains("0123"), "{keys:?}");
    }

    #[test]
    fn weak_and_equal_keys_are_refused() {
        let long = "x".repeat(513);
        let many: String = (0..=KEYS_MAX).map(|index| format!("{index:016}\n")).collect();
        for (text, expected) in [
            ("", "got none"),
            ("short", "16 to 512"),
            (&long, "16 to 512"),
            ("0123456789 abcdef", "visible ASCII"),
            ("0123456789abcdef\n0123456789abcdef", "line 2: a second API key"),
            (&many, "at most 1024"),
        ] {
            let error = Keys::from_text(text).unwrap_err();
            assert!(error.to_string().contains(expected) && error.help().is_some(), "{error}");
        }
        let absent = Keys::from_file(Path::new("no/such/file")).unwrap_err();
        assert!(absent.kind() == ErrorKind::Missing, "{absent}");
        let unset = Keys::from_variable("SHARDWRIGHT_NO_SUCH_VARIABLE").unwrap_err();
        assert!(unset.kind() == ErrorKind::Missing && unset.help().is_some(), "{unset}");
    }
}
