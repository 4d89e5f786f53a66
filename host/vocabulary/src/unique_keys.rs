use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Any value of which no object has a key twice. Deserialising checks the whole value and discards
/// it.
///
/// Parsers such as `serde_json` otherwise keep the last of two values silently.
///
/// ```
/// use shardwright_vocabulary::UniqueKeys;
///
/// assert!(serde_json::from_str::<UniqueKeys>(r#"[{"a": 1}, {"a": {"a": 2}}]"#).is_ok());
/// let error = serde_json::from_str::<UniqueKeys>("{\"a\": 1,\n \"a\": 2}").unwrap_err();
/// assert_eq!(error.to_string(), "a second key `a` at line 2 column 4");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniqueKeys;

impl UniqueKeys {
    /// The next step for the user of a file with a second key.
    pub const HELP: &'static str = "keep the entry that is meant, and remove the other one";
}

/// A key, borrowed from the input unless it has escapes.
#[derive(Deserialize, PartialEq, Eq, Hash)]
#[serde(transparent)]
struct Key<'k>(#[serde(borrow)] Cow<'k, str>);

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Checked)
    }
}

struct Checked;

impl<'de> Visitor<'de> for Checked {
    type Value = UniqueKeys;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys)
    }

    fn visit_i64<E>(self, _: i64) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys)
    }

    fn visit_u64<E>(self, _: u64) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys)
    }

    fn visit_f64<E>(self, _: f64) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys)
    }

    fn visit_str<E>(self, _: &str) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys)
    }

    fn visit_unit<E>(self) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<UniqueKeys, A::Error> {
        while list.next_element::<UniqueKeys>()?.is_some() {}
        Ok(UniqueKeys)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueKeys, A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = map.next_key::<Key<'de>>()? {
            if keys.contains(&key) {
                let shown: String = key.0.chars().take(80).collect();
                return Err(A::Error::custom(format!("a second key `{shown}`")));
            }
            keys.insert(key);
            map.next_value::<UniqueKeys>()?;
        }
        Ok(UniqueKeys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<(), serde_json::Error> {
        serde_json::from_str::<UniqueKeys>(text).map(|_| ())
    }

    #[test]
    fn a_second_key_is_found_at_any_depth_and_in_any_spelling() {
        for text in ["null", "true", "-1", "1.5", "\"a\"", "[]", "{}", r#"{"a": [1, "a"], "b": {"a": 0}}"#] {
            check(text).unwrap();
        }
        for (text, expected) in [
            (r#"{"a": 1, "a": 1}"#, "a second key `a` at line 1 column 12"),
            (r#"[0, {"x": {"b": [], "b": {}}}]"#, "a second key `b` at line 1 column 23"),
            ("{\n\"c\": 1,\n\n\"\\u0063\": 2}", "a second key `c` at line 4 column 8"),
        ] {
            let error = check(text).unwrap_err();
            assert!(error.is_data(), "{error}");
            assert_eq!(error.to_string(), expected, "{text}");
        }
        // Other faults are the parser's.
        let error = check("{\"a\": 1").unwrap_err();
        assert!(error.is_eof() && !error.is_data(), "{error}");
    }
}
