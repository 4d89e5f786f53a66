//! Profiles of chips by the places where they lie.

use shardwright::SearchPath;
use shardwright_build::chip_of;
use shardwright_planning::profile::ProfileRegistry;
use shardwright_shims::Chip;
use shardwright_trust::Trust;
use shardwright_vocabulary::Result;

/// The chip of a profile that is signed as the rules ask, by any of its names.
pub fn chip_named(soc: &str, search: &SearchPath, trust: &Trust) -> Result<Chip> {
    Ok(chip_of(&profiles_in(search, trust).find(soc)?.profile))
}

/// The profiles built in, and those of the directories that are signed as the rules ask.
pub fn profiles_in(search: &SearchPath, trust: &Trust) -> ProfileRegistry {
    let directories = search.profiles.iter();
    let registry = directories.fold(ProfileRegistry::new(), |registry, path| registry.with_directory(path));
    registry.trusting(trust.clone())
}
