//! Storage of proofs that files were verified, and reports about the files that an opening hashed.

use std::fmt;
use std::path::PathBuf;

use shardwright_bundle::{Bundle, Forgotten, Hashed, Proofs};
use shardwright_vocabulary::{Error, ErrorKind, units};

use crate::run_options::{PROOFS, RunOptions};

/// Location of the proofs that files were verified.
#[derive(Clone, Debug, Default)]
pub(crate) enum ProofsPlace {
    /// In the user's cache directory.
    #[default]
    Usual,
    At(PathBuf),
    Nowhere,
}

/// Files hashed to open a bundle or one of its towers, and whether the next opening must hash
/// again.
///
/// `Display` writes a sentence for people.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified {
    /// Artefacts, tables and the tokenizer's index that were hashed before they were used. Empty if
    /// proofs existed for all of them.
    pub hashed: Hashed,
    /// Directory of the proofs. `None` if there is no place for them or they are disabled.
    pub proofs: Option<PathBuf>,
    /// Why the next opening must hash again, if it must.
    pub again: Option<String>,
}

impl Verified {
    /// Returns the files hashed since the last call. Frees space in the cache of `run` for the
    /// proofs that were written since.
    pub(crate) fn of(
        bundle: &Bundle,
        refused: Option<&Error>,
        verify_all: bool,
        run: &RunOptions,
    ) -> Verified {
        let hashed = bundle.take_hashed();
        let directory = bundle.proofs().map(|proofs| proofs.directory().to_owned());
        if let Some(directory) = directory.as_deref().filter(|_| hashed.bytes > 0) {
            run.make_room_for(directory);
        }
        let again = match (verify_all, &hashed.forgotten) {
            (true, _) => Some("verification of every file was requested".to_owned()),
            (false, Some(Forgotten::NoPlace)) => {
                Some("no writable directory for proofs is known; set one".to_owned())
            }
            (false, Some(why)) => match refused {
                Some(refused) if refused.kind() == ErrorKind::Invalid => {
                    Some(format!("the proofs there were rejected: {refused}"))
                }
                _ => Some(why.to_string()),
            },
            (false, None) => None,
        };
        Verified { hashed, proofs: directory, again }
    }
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hashed { bytes, time, .. } = &self.hashed;
        if *bytes == 0 {
            return f.write_str("no file was hashed: all were verified before");
        }
        let (size, took) = (units::bytes(*bytes), units::seconds(time.as_secs_f64()));
        let rate = units::bytes(self.hashed.bytes_per_second() as u64);
        write!(f, "{size} were hashed in {took}, at {rate}/s; ")?;
        match (&self.again, &self.proofs) {
            (Some(why), _) => write!(f, "the next opening hashes them again: {why}"),
            (None, Some(place)) => write!(f, "remembered in {}, for the next opening", place.display()),
            (None, None) => f.write_str("the next opening hashes them again"),
        }
    }
}

impl ProofsPlace {
    /// Returns the proofs, where `cache` is the user's cache directory.
    pub(crate) fn proofs(&self, cache: Option<PathBuf>) -> Option<Proofs> {
        match self {
            ProofsPlace::Usual => cache.map(|cache| Proofs::kept_in(cache.join(PROOFS))),
            ProofsPlace::At(directory) => Some(Proofs::kept_in(directory)),
            ProofsPlace::Nowhere => None,
        }
    }
}
