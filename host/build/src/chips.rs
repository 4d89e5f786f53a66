//! Converts a profile to the chip that shims receive, and reports chip facts that a compiler
//! replaced.

use shardwright_planning::profile::{Profile, ProfileSource};
use shardwright_shims::{Chip, ShimError};
use shardwright_vocabulary::{Error, Notice};

use crate::BuiltShard;

/// Returns the chip of a profile with all its facts. A shim receives only the facts that it reads.
pub fn chip_of(profile: &Profile) -> Chip {
    let facts = profile.facts.iter().map(|fact| (fact.name.clone(), fact.value.clone()));
    Chip {
        name: profile.name.clone(),
        aliases: profile.aliases.clone(),
        facts: facts.collect(),
        shim: Some(profile.shim.clone()),
    }
}

/// Adds to the help of a shim's error which profile the user has to correct.
pub(crate) fn about_profile(error: ShimError, source: &ProfileSource) -> Error {
    let help = match error.help() {
        Some(help) => format!("{help}; the profile is {source}"),
        None => format!("the profile is {source}"),
    };
    Error::from(error).with_help(help)
}

/// Returns a notice for each chip fact for which the artefact was compiled with another value than
/// the profile's, or with a value that the profile does not have.
pub(crate) fn made_otherwise(shard: &BuiltShard) -> Vec<Notice> {
    let head = shard.artefact.head();
    let profile = head.chip.as_ref().map_or("", |chip| chip.name.as_str());
    let reported = head.made_otherwise().map(|(fact, asked, made)| match asked {
        Some(asked) => Notice::fallback(format!(
            "shard {}: compiled for {fact} {made}, because the compiler does not know {asked} of profile \
             {profile}",
            shard.name
        )),
        None => Notice::making(format!(
            "shard {}: compiled for {fact} {made}, because profile {profile} does not have this fact",
            shard.name
        )),
    });
    reported.collect()
}

/// Returns a shim's own error message without the shim's name, for places that already show the
/// name.
pub fn in_its_words(error: ShimError) -> Error {
    let said = match &error {
        ShimError::Failed(failure) => failure.message.clone(),
        error => error.to_string(),
    };
    let reported = Error::from(error);
    let shortened = Error::new(reported.kind(), said);
    match reported.help() {
        Some(help) => shortened.with_help(help),
        None => shortened,
    }
}
