//! A profile's chip as shims see it, and what they compiled for instead.

use shardwright_planning::profile::{Profile, ProfileSource};
use shardwright_shims::{Chip, ShimError};
use shardwright_vocabulary::{Error, Notice};

use crate::BuiltShard;

/// A profile's chip. A shim receives only the facts that it reads.
pub fn chip_of(profile: &Profile) -> Chip {
    let facts = profile.facts.iter().map(|fact| (fact.name.clone(), fact.value.clone()));
    Chip { name: profile.name.clone(), aliases: profile.aliases.clone(), facts: facts.collect() }
}

/// An error about a profile, naming the file to correct.
pub(crate) fn about_profile(error: ShimError, source: &ProfileSource) -> Error {
    let help = match error.help() {
        Some(help) => format!("{help}; the profile is {source}"),
        None => format!("the profile is {source}"),
    };
    Error::from(error).with_help(help)
}

/// Notices about artefacts compiled for another chip fact than the profile names, or for one the
/// profile does not name.
pub(crate) fn made_otherwise(shard: &BuiltShard) -> Vec<Notice> {
    let head = shard.artefact.head();
    let profile = head.chip.as_ref().map_or("", |chip| chip.name.as_str());
    let reported = head.made_otherwise().map(|(fact, asked, made)| match asked {
        Some(asked) => Notice::fallback(format!(
            "shard {}: its code is made for {fact} {made}: the compiler does not know {asked}, which \
             profile {profile} says",
            shard.name
        )),
        None => Notice::note(format!(
            "shard {}: its code is made for {fact} {made}; profile {profile} does not say one",
            shard.name
        )),
    });
    reported.collect()
}

/// A shim's own error message without the shim's name, for where the name is already shown.
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
