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
    let mut skipped = profiles.list()?.skipped.into_iter();
    match skipped.next() {
        Some(error) if strict => Err(error.with_kind(ErrorKind::Strict)),
        first => {
            let all = first.into_iter().chain(skipped);
            let all = all.map(|error| error.with_more("the profile is skipped"));
            Ok(all.map(|error| Notice::note(error.to_string())).collect())
        }
    }
}
