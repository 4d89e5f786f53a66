//! Names from files that become part of a path or of a command.

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// A name that is one part of a path on every system, and one word of a shell: letters, digits and
/// `-_.+#`, with a letter, a digit or `_` first and last. Only a check creates one, also when it is
/// deserialized.
///
/// ```
/// use shardwright_vocabulary::PlainName;
///
/// let name = PlainName::new("demo-model.swb")?;
/// assert_eq!(name.as_str(), "demo-model.swb");
/// assert!(PlainName::new("../demo-model").is_err());
/// # Ok::<(), shardwright_vocabulary::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PlainName(String);

impl PlainName {
    /// Maximum length in bytes.
    const BYTES_MAX: usize = 128;

    /// Checks a name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if it has other characters, or is empty or
    /// too long.
    pub fn new(name: impl Into<String>) -> Result<PlainName> {
        let name = name.into();
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+#".contains(&byte);
        let is_end = |byte: Option<u8>| byte.is_some_and(|end| end.is_ascii_alphanumeric() || end == b'_');
        let ends = is_end(name.bytes().next()) && is_end(name.bytes().last());
        if ends && name.len() <= PlainName::BYTES_MAX && name.bytes().all(legal) {
            return Ok(PlainName(name));
        }
        let shown: String = name.chars().take(64).collect();
        Err(Error::invalid(format!("{shown:?} is not a plain name"))
            .with_help("use 1 to 128 letters, digits and `-_.+#`, with a letter or digit at both ends"))
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for PlainName {
    type Error = Error;

    fn try_from(name: String) -> Result<PlainName> {
        PlainName::new(name)
    }
}

impl From<PlainName> for String {
    fn from(name: PlainName) -> String {
        name.0
    }
}

impl Deref for PlainName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for PlainName {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for PlainName {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

impl fmt::Display for PlainName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use crate::ErrorKind;

    use super::*;

    #[test]
    fn names_are_one_part_of_a_path_and_one_word() {
        for name in ["sm8750", "demo_model-mt6989.swb", "model#group_other", "a+b", "_a", "A"] {
            assert_eq!(PlainName::new(name).unwrap(), name);
            let read: PlainName = serde_json::from_value(name.into()).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap(), name);
        }
        let long = "a".repeat(129);
        for name in [
            "", ".", "..", "../a", "a/b", "/a", "a\\b", "C:a", ".a", "a.", "-rf", "a b", "a\n", "`a`", "$a",
            "a;b", "é", "#a", "~", "a\0", &long,
        ] {
            let error = PlainName::new(name).unwrap_err();
            assert!(error.kind() == ErrorKind::Invalid && error.help().is_some(), "{error:?}");
            assert!(error.to_string().len() < 200, "{error}");
            assert!(serde_json::from_value::<PlainName>(name.into()).is_err(), "{name:?}");
        }
    }
}
