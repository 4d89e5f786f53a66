//! The rules as a user states them.

use std::path::{Path, PathBuf};

use shardwright_vocabulary::{Error, ErrorKind, Result};

use crate::{KeyError, Policy, PublicKey, Trust};

/// Folder of the cache in which numbers of lists are remembered.
const MEMORY: &str = "trust";

/// Rules before anything of them was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustOptions {
    /// What becomes of a file without a good signature.
    pub policy: Policy,
    /// Public keys, in hexadecimal.
    pub keys: Vec<String>,
    /// Lists of revocations.
    pub lists: Vec<PathBuf>,
    /// The name that bundles must be signed as; `None` for any.
    pub expected: Option<String>,
}

impl TrustOptions {
    /// Reads keys and lists. Numbers of lists are remembered in `cache`, which is this user's own.
    ///
    /// # Errors
    ///
    /// A key that is none, and what is wrong with a list.
    pub fn rules(&self, cache: Option<&Path>) -> Result<Trust> {
        let key = |text: &String| {
            text.parse::<PublicKey>().map_err(|error: KeyError| {
                let help = "`shardwright trust key` prints the public key".to_owned();
                Error::caused_by(ErrorKind::Argument, error, Some(help))
            })
        };
        let keys: Vec<PublicKey> = self.keys.iter().map(key).collect::<Result<_>>()?;
        let memory = cache.map(|cache| cache.join(MEMORY));
        let rules = Trust::new(self.policy, keys).expecting(self.expected.clone());
        let mut lists = self.lists.iter();
        Ok(lists.try_fold(rules, |rules, list| rules.with_list(list, memory.as_deref()))?)
    }
}
