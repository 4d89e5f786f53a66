use crate::error::{Error, Result};

/// Key and value pairs passed to an instance, a work order or a load.
#[derive(Clone, Debug, Default)]
pub struct Options<'a> {
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> FromIterator<(&'a str, &'a str)> for Options<'a> {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(pairs: I) -> Self {
        Options::new(pairs.into_iter().collect())
    }
}

impl<'a> Options<'a> {
    pub(crate) fn new(pairs: Vec<(&'a str, &'a str)>) -> Self {
        Options { pairs }
    }

    /// Returns all pairs in the order in which they were passed.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> + '_ {
        self.pairs.iter().copied()
    }

    /// Returns the value of a key. If the key appears twice, returns the last value.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        self.pairs.iter().rev().find(|(existing, _)| *existing == key).map(|(_, value)| *value)
    }

    /// Parses the value of a key as a number.
    ///
    /// # Errors
    ///
    /// If the value is not a number in range.
    pub fn number<T: std::str::FromStr>(&self, key: &str) -> Result<Option<T>> {
        self.get(key)
            .map(|value| {
                value.parse().map_err(|_| {
                    Error::invalid_argument(format!("option `{key}`: `{value}` is not a number in range"))
                        .detail("option", key)
                })
            })
            .transpose()
    }

    /// Rejects any key that is not listed, so that a misspelt option is never ignored.
    pub fn only(&self, known: &[&str]) -> Result<()> {
        match self.pairs.iter().find(|(key, _)| !known.contains(key)) {
            None => Ok(()),
            Some((key, _)) => {
                let list = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                Err(Error::invalid_argument(format!("unknown option `{key}`, available options: {list}"))
                    .detail("option", key))
            }
        }
    }
}
