//! The rules as specified by a user.

use std::path::{Path, PathBuf};

use shardwright_vocabulary::Result;

use crate::{Policy, PublicKey, Trust};

/// Folder in the cache with the numbers of lists.
const MEMORY: &str = "trust";

/// Rules before their files are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustOptions {
    /// Policy for files without a good signature.
    pub policy: Policy,
    /// Public keys, in hexadecimal.
    pub keys: Vec<String>,
    /// Paths of lists of revocations.
    pub lists: Vec<PathBuf>,
    /// The name that bundles must be signed as. `None` accepts any name.
    pub expected: Option<String>,
}

impl TrustOptions {
    /// Reads keys and lists. Numbers of lists are stored in `cache`, which must belong to this
    /// user.
    ///
    /// # Errors
    ///
    /// If a key is invalid, a list cannot be used, or a list that was used before is missing under
    /// [`Policy::Require`].
    pub fn rules(&self, cache: Option<&Path>) -> Result<Trust> {
        let key = |text: &String| {
            let key = text.parse::<PublicKey>();
            key.map_err(|error| error.with_help("`shardwright trust key` prints the public key"))
        };
        let keys: Vec<PublicKey> = self.keys.iter().map(key).collect::<Result<_>>()?;
        let memory = cache.map(|cache| cache.join(MEMORY));
        let rules = Trust::new(self.policy, keys).expecting(self.expected.clone());
        rules.with_lists(&self.lists, memory.as_deref())
    }
}
