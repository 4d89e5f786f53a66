//! Profiles that are skipped because their files are not valid.

use shardwright_planning::profile::ProfileRegistry;
use shardwright_vocabulary::{ErrorKind, Notice};

use crate::Result;

/// Returns a note for each profile that is skipped.
///
/// # Errors
///
/// Fails if a directory cannot be read. Under `strict`, also with the first skipped profile.
pub fn skipped_profiles(profiles: &ProfileRegistry, strict: bool) -> Result<Vec<Notice>> {
    let skipped = profiles.list()?.skipped.into_iter();
    let mut skipped = skipped.map(|error| error.with_more("the profile is skipped"));
    match skipped.next() {
        Some(error) if strict => Err(error.with_kind(ErrorKind::Strict)),
        first => Ok(first.into_iter().chain(skipped).map(|error| Notice::note(error.to_string())).collect()),
    }
}
