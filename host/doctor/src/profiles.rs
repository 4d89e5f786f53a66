//! Finds profiles of chips in a search path.

use shardwright::SearchPath;
use shardwright_build::chip_of;
use shardwright_planning::profile::ProfileRegistry;
use shardwright_shims::Chip;
use shardwright_trust::Trust;
use shardwright_vocabulary::Result;

/// Returns the chip of a profile, by any of its names. The profile's signature must comply with the
/// rules.
pub fn chip_named(soc: &str, search: &SearchPath, trust: &Trust) -> Result<Chip> {
    Ok(chip_of(&profiles_in(search, trust).find(soc)?.profile))
}

/// Returns the built-in profiles and the profiles in directories. Their signatures must comply with
/// the rules.
pub fn profiles_in(search: &SearchPath, trust: &Trust) -> ProfileRegistry {
    let directories = search.profiles.iter();
    let registry = directories.fold(ProfileRegistry::new(), |registry, path| registry.with_directory(path));
    registry.trusting(trust.clone())
}
