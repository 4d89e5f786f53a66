//! SoC profiles: what is known about a chip, as data, each fact with its provenance.
//!
//! A profile is a JSON file; `plugins/README.md` describes it. Some are built in, more come from
//! directories. Nothing is remembered between calls: a file that is added is found, one that is
//! taken away is gone.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use shardwright_trust::{Kind, Trust, TrustError};
use shardwright_vocabulary::{
    ErrorKind, Flag, FormatTuple, Limit, Overhead, Provenance, TargetKind, overhead_names,
};

use crate::error::PlannerErrorKind;
use crate::registry::RegistryError;

/// Name of the profile that stands for no chip in particular.
pub const GENERIC: &str = "generic";

/// File names and contents of `plugins/profiles`, as listed by the build script.
const BUILTIN: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/profiles.rs"));

/// Names of facts that the host itself reads.
pub mod fact_names {
    /// Values of system properties that identify the chip of a phone, separated by commas.
    pub const SYSTEM_PROPERTIES: &str = "system-properties";
    /// For how many microseconds a caller polls for the result of a call.
    pub const POLLING_MICROSECONDS: &str = "polling-microseconds";
    /// The cost of compiling without the recommended flags, as observed elsewhere.
    pub const COST_OF_MISSING_FLAGS: &str = "cost-of-missing-flags";
}

/// Caps on a profile file; ours have a few kilobytes and a handful of entries.
mod caps {
    /// Bytes of a file.
    pub const FILE_BYTES: u64 = 256 << 10;
    /// Entries of any list.
    pub const ENTRIES: usize = 256;
    /// Bytes of a name.
    pub const NAME_BYTES: usize = 128;
    /// Further chips that take over: a bundle has a chain for each, and at most sixteen.
    pub const FALLBACK: usize = 8;
}

/// The one version of the file format there is.
const SCHEMA: u32 = 1;

/// A fact about a chip: shown to people, and passed to a shim that declares that it reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fact {
    /// What, such as `l1-kilobytes`.
    pub name: String,
    /// How much or which.
    pub value: String,
    /// Where it comes from.
    pub provenance: Provenance,
    /// What was observed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// How Android names a chip: a shop delivers by these two, letter for letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AndroidChip {
    /// `Build.SOC_MANUFACTURER`: `QTI`.
    pub manufacturer: String,
    /// `Build.SOC_MODEL`: `SM8650`.
    pub model: String,
    /// Where the name comes from.
    pub provenance: Provenance,
    /// What was observed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// When a plan may choose formats that a chip supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Offer {
    /// Always.
    #[default]
    Always,
    /// Only where losses count, or if named: they lose more than the alternatives.
    QualityGoal,
    /// Offered only to users who name them: they lose more on published models than they save.
    Named,
}

/// What a plan for a chip is best in, of those that keep all goals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preference {
    /// The fastest.
    #[default]
    Speed,
    /// The one that loses least.
    Quality,
}

impl Preference {
    fn is_speed(&self) -> bool {
        *self == Preference::Speed
    }
}

impl Offer {
    fn is_always(&self) -> bool {
        *self == Offer::Always
    }

    /// Returns whether a plan may choose these formats unnamed. `losses_count` is true for plans
    /// with a quality goal.
    const fn is_made(self, losses_count: bool) -> bool {
        match self {
            Offer::Always => true,
            Offer::QualityGoal => losses_count,
            Offer::Named => false,
        }
    }
}

/// Formats a chip is known to support together, or known to refuse.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileFormat {
    /// The formats.
    pub formats: FormatTuple,
    /// Whether they are supported.
    pub legal: bool,
    /// When a plan may choose them.
    #[serde(default, skip_serializing_if = "Offer::is_always")]
    pub offer: Offer,
    /// Where that knowledge comes from.
    pub provenance: Provenance,
    /// What was observed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// A recommended compiler flag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileFlag {
    /// Name as the shim's schema spells it.
    pub name: String,
    /// Value.
    pub value: String,
    /// Where the recommendation comes from.
    pub provenance: Provenance,
    /// What was observed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl ProfileFlag {
    /// The flag alone.
    pub fn flag(&self) -> Flag {
        Flag { name: self.name.clone(), value: self.value.clone() }
    }
}

/// Goals of plans for a chip, where the user states none of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ProfileGoals {
    /// The most quality that may be lost: KL divergence in thousandths of a nat per token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<u32>,
    /// The most bytes of artefacts and KV cache together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The most bytes of artefacts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// The most microseconds of a generated token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_microseconds: Option<u64>,
    /// The most microseconds from a prompt to the first token of its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token_microseconds: Option<u64>,
}

impl ProfileGoals {
    fn is_empty(&self) -> bool {
        *self == ProfileGoals::default()
    }
}

/// A chip.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Version of the file format: 1.
    pub schema: u32,
    /// Name it is called by: lower-case letters, digits, hyphens.
    pub name: String,
    /// Name for people.
    pub title: String,
    /// Who makes it.
    pub vendor: String,
    /// Other names it goes by. Case, spaces, hyphens and underscores do not matter when a name is
    /// looked up.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// How Android names it. A chip that is sold in several grades has a name for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub android: Vec<AndroidChip>,
    /// Name of the shim that serves it.
    pub shim: String,
    /// Kind of device.
    pub kind: TargetKind,
    /// Names of the profiles of further devices in the same machine, in the order in which they
    /// take over where this one is not there or is lost; this machine's CPU comes after them. What
    /// those profiles fall back to does not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallback: Vec<String>,
    /// Upper bounds.
    #[serde(default)]
    pub limits: Vec<Limit>,
    /// What its use takes beside what shards compute; see
    /// [`overhead_names`](shardwright_vocabulary::overhead_names).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overheads: Vec<Overhead>,
    /// Formats it takes or refuses, best first.
    #[serde(default)]
    pub formats: Vec<ProfileFormat>,
    /// What a plan is best in where goals bound bytes or times; a quality goal decides by itself.
    #[serde(default, skip_serializing_if = "Preference::is_speed")]
    pub prefers: Preference,
    /// Goals where the user states none.
    #[serde(default, skip_serializing_if = "ProfileGoals::is_empty")]
    pub goals: ProfileGoals,
    /// Name of the planner to ask, from a planner directory; `None` for the built-in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planner: Option<String>,
    /// Flags worth setting.
    #[serde(default)]
    pub flags: Vec<ProfileFlag>,
    /// What else is known.
    #[serde(default)]
    pub facts: Vec<Fact>,
}

impl Profile {
    /// The formats it is known to support, best first.
    pub fn legal_formats(&self) -> impl Iterator<Item = &FormatTuple> {
        self.formats.iter().filter(|entry| entry.legal).map(|entry| &entry.formats)
    }

    /// Those of them that a plan may choose, best first.
    pub fn offered_formats(&self, losses_count: bool) -> impl Iterator<Item = &FormatTuple> {
        let offered = move |entry: &&ProfileFormat| entry.legal && entry.offer.is_made(losses_count);
        self.formats.iter().filter(offered).map(|entry| &entry.formats)
    }

    /// The fact of a name.
    pub fn fact(&self, name: &str) -> Option<&Fact> {
        self.facts.iter().find(|fact| fact.name == name)
    }

    /// The limits with those a user set in their place: one of the same name replaces, another is
    /// added.
    pub fn limits_with(&self, user: &[Limit]) -> Vec<Limit> {
        let mut limits: Vec<Limit> = self
            .limits
            .iter()
            .filter(|limit| user.iter().all(|user| user.name != limit.name))
            .cloned()
            .collect();
        limits.extend(user.iter().cloned());
        limits
    }
}

/// Where a profile comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProfileSource {
    /// Built in, under this file name.
    Builtin(&'static str),
    /// A file.
    File(PathBuf),
}

impl fmt::Display for ProfileSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProfileSource::Builtin(name) => write!(formatter, "built-in {name}"),
            ProfileSource::File(path) => write!(formatter, "{}", path.display()),
        }
    }
}

/// A profile with its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundProfile {
    /// The profile.
    pub profile: Profile,
    /// Its source.
    pub source: ProfileSource,
}

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// A directory could not be read.
    #[error(transparent)]
    Directory(#[from] RegistryError),
    /// A file could not be read or is too big.
    #[error("profile {source_file}: {reason}")]
    File {
        /// The file.
        source_file: ProfileSource,
        /// Why.
        reason: String,
    },
    /// A file is not signed as the host's rules ask.
    #[error("profile {source_file}: {error}")]
    Trust {
        /// The file.
        source_file: ProfileSource,
        /// What is missing.
        error: TrustError,
    },
    /// A file is not a profile.
    #[error("profile {source_file}, line {line}, column {column}: {reason}")]
    Syntax {
        /// The file.
        source_file: ProfileSource,
        /// Line, from one.
        line: usize,
        /// Column, from one.
        column: usize,
        /// What is wrong.
        reason: String,
    },
    /// A profile that makes no sense.
    #[error("profile {source_file}: {reason}")]
    Invalid {
        /// The file.
        source_file: ProfileSource,
        /// What is wrong.
        reason: String,
    },
    /// Two profiles claim one name.
    #[error("`{name}` is claimed by {first} and by {second}")]
    Duplicate {
        /// Name or alias.
        name: String,
        /// One profile.
        first: ProfileSource,
        /// The other.
        second: ProfileSource,
    },
    /// No such chip.
    #[error("no profile for SoC `{name}`{}", skipped.iter().map(|why| format!("; skipped: {why}")).collect::<String>())]
    Unknown {
        /// The name.
        name: String,
        /// Profiles that have mistakes, one of which may be meant.
        skipped: Vec<String>,
        /// Names much like it.
        near: Vec<String>,
        /// Every name there is.
        known: Vec<String>,
    },
}

impl ProfileError {
    /// Whether the error is relevant to someone who asks for the chip of this name.
    fn is_about(&self, wanted: &str) -> bool {
        match self {
            ProfileError::Duplicate { name, .. } => name == wanted,
            // Of what cannot be read, the file's name is all there is.
            ProfileError::File { source_file, .. }
            | ProfileError::Trust { source_file, .. }
            | ProfileError::Syntax { source_file, .. }
            | ProfileError::Invalid { source_file, .. } => match source_file {
                ProfileSource::File(path) => {
                    path.file_stem().is_some_and(|stem| normalise(&stem.to_string_lossy()) == wanted)
                }
                ProfileSource::Builtin(_) => false,
            },
            ProfileError::Directory(_) | ProfileError::Unknown { .. } => false,
        }
    }

    /// What would help, for a `help:` line.
    pub fn help(&self) -> Option<String> {
        match self {
            ProfileError::Unknown { skipped, .. } if !skipped.is_empty() => {
                Some("correct the profile; plugins/README.md describes every field".to_owned())
            }
            ProfileError::Unknown { near, .. } if !near.is_empty() => {
                Some(format!("did you mean {}?", near.join(" or ")))
            }
            ProfileError::Unknown { known, .. } => {
                Some(format!("known: {}; `--profiles DIR` adds those of a folder", known.join(", ")))
            }
            ProfileError::Duplicate { .. } => Some("remove one of them, or rename it".to_owned()),
            ProfileError::Directory(error) => error.help(),
            ProfileError::Trust { error, .. } => Some(error.help().to_owned()),
            ProfileError::Syntax { .. } | ProfileError::Invalid { .. } => {
                Some("plugins/README.md describes every field".to_owned())
            }
            ProfileError::File { .. } => None,
        }
    }
}

/// The built-in profiles and those of directories.
#[derive(Debug, Clone, Default)]
pub struct ProfileRegistry {
    directories: Vec<PathBuf>,
    trust: Trust,
}

/// What there is of profiles.
#[derive(Debug, Default)]
pub struct Profiles {
    /// Those that can be used.
    pub found: Vec<FoundProfile>,
    /// What is wrong with the others.
    pub skipped: Vec<ProfileError>,
}

/// All names of a profile, as they are compared.
fn names(profile: &Profile) -> Vec<String> {
    let mut names = vec![normalise(&profile.name)];
    names.extend(profile.aliases.iter().map(|alias| normalise(alias)));
    names.sort();
    names.dedup();
    names
}

impl ProfileRegistry {
    /// The built-in profiles.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses a file of a directory only if it is signed as the rules ask. Built-in profiles are part
    /// of the program.
    #[must_use]
    pub fn trusting(mut self, trust: Trust) -> Self {
        self.trust = trust;
        self
    }

    /// One more directory; its `.json` files are profiles. One that does not exist counts as empty.
    #[must_use]
    pub fn with_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directories.push(directory.into());
        self
    }

    /// Every profile there is now, built-in ones first. A file that is not a profile, or that
    /// claims the name of another, is skipped with its error, so that it does not affect other
    /// chips.
    ///
    /// Errors: a directory that cannot be read.
    pub fn list(&self) -> Result<Profiles, ProfileError> {
        let mut all = Profiles::default();
        let mut claimed: BTreeMap<String, ProfileSource> = BTreeMap::new();
        let mut add = |read: Result<FoundProfile, ProfileError>| {
            let sound = read.and_then(|candidate| {
                let own = names(&candidate.profile);
                match own.iter().find_map(|name| claimed.get_key_value(name)) {
                    Some((name, first)) => Err(ProfileError::Duplicate {
                        name: name.clone(),
                        first: first.clone(),
                        second: candidate.source,
                    }),
                    None => {
                        claimed.extend(own.into_iter().map(|name| (name, candidate.source.clone())));
                        Ok(candidate)
                    }
                }
            });
            match sound {
                Ok(candidate) => all.found.push(candidate),
                Err(error) => all.skipped.push(error),
            }
        };
        for (name, text) in BUILTIN {
            let source = ProfileSource::Builtin(name);
            add(parse(text.as_bytes(), &source).map(|profile| FoundProfile { profile, source }));
        }
        for directory in &self.directories {
            for path in crate::registry::files(directory)? {
                if path.extension().is_some_and(|extension| extension == "json") {
                    add(read_trusting(&path, &self.trust));
                }
            }
        }
        Ok(all)
    }

    /// The profile of this name or alias.
    ///
    /// Errors: there is none; its file is no sound profile; two claim the name.
    pub fn find(&self, name: &str) -> Result<FoundProfile, ProfileError> {
        let wanted = normalise(name);
        let Profiles { found: mut profiles, mut skipped } = self.list()?;
        if let Some(position) = skipped.iter().position(|error| error.is_about(&wanted)) {
            return Err(skipped.swap_remove(position));
        }
        if let Some(position) = profiles.iter().position(|found| names(&found.profile).contains(&wanted)) {
            return Ok(profiles.swap_remove(position));
        }
        let near = profiles
            .iter()
            .filter(|found| names(&found.profile).iter().any(|known| is_near(known, &wanted)))
            .map(|found| found.profile.name.clone())
            .collect();
        let name = name.chars().take(caps::NAME_BYTES).collect();
        Err(ProfileError::Unknown {
            name,
            skipped: skipped.iter().map(ToString::to_string).collect(),
            near,
            known: profiles.into_iter().map(|found| found.profile.name).collect(),
        })
    }
}

/// Read one profile file.
pub fn read(path: &Path) -> Result<FoundProfile, ProfileError> {
    read_trusting(path, &Trust::off())
}

fn read_trusting(path: &Path, trust: &Trust) -> Result<FoundProfile, ProfileError> {
    let source = ProfileSource::File(path.to_owned());
    let bytes = crate::read_capped(path, caps::FILE_BYTES).map_err(|kind| ProfileError::File {
        source_file: source.clone(),
        reason: match kind {
            PlannerErrorKind::MissingFile { source, .. } => source.to_string(),
            other => other.to_string(),
        },
    })?;
    let untrusted = |error| ProfileError::Trust { source_file: source.clone(), error };
    let signed = trust.expect_beside(path, Kind::Profile, &bytes).map_err(untrusted)?;
    let profile = parse(&bytes, &source)?;
    if let Some(signed) = signed {
        trust.expect_name(path, &signed, &profile.name).map_err(untrusted)?;
    }
    Ok(FoundProfile { profile, source })
}

fn parse(bytes: &[u8], source: &ProfileSource) -> Result<Profile, ProfileError> {
    let profile: Profile = serde_json::from_slice(bytes).map_err(|error| ProfileError::Syntax {
        source_file: source.clone(),
        line: error.line(),
        column: error.column(),
        reason: error.to_string(),
    })?;
    match fault(&profile) {
        None => Ok(profile),
        Some(reason) => Err(ProfileError::Invalid { source_file: source.clone(), reason }),
    }
}

/// The first fault of a profile that can be parsed.
fn fault(profile: &Profile) -> Option<String> {
    if profile.schema != SCHEMA {
        return Some(format!("schema {} is unknown, this host reads {SCHEMA}", profile.schema));
    }
    let legal =
        |character: char| character.is_ascii_lowercase() || character.is_ascii_digit() || character == '-';
    if profile.name.is_empty() || !profile.name.chars().all(legal) {
        return Some(format!("name `{}` is not of lower-case letters, digits and hyphens", profile.name));
    }
    let lists = [
        ("aliases", profile.aliases.len()),
        ("names in Android", profile.android.len()),
        ("limits", profile.limits.len()),
        ("overheads", profile.overheads.len()),
        ("formats", profile.formats.len()),
        ("flags", profile.flags.len()),
        ("facts", profile.facts.len()),
    ];
    if let Some((what, count)) = lists.into_iter().find(|(_, count)| *count > caps::ENTRIES) {
        return Some(format!("{count} {what}, at most {} are read", caps::ENTRIES));
    }
    if profile.fallback.len() > caps::FALLBACK {
        let count = profile.fallback.len();
        return Some(format!("it falls back to {count} others, at most {} are taken", caps::FALLBACK));
    }
    if profile.kind == TargetKind::Cpu && !profile.fallback.is_empty() {
        return Some("it is for a CPU, which is the last that takes over".to_owned());
    }
    let names = [&profile.name, &profile.title, &profile.vendor, &profile.shim];
    let names = names.into_iter().chain(&profile.aliases).chain(&profile.planner).chain(&profile.fallback);
    for name in names {
        if name.is_empty() || name.len() > caps::NAME_BYTES || normalise(name).is_empty() {
            let quoted: String = name.chars().take(32).collect();
            return Some(format!("name `{quoted}` is empty or longer than {} bytes", caps::NAME_BYTES));
        }
    }
    let android = profile.android.iter().flat_map(|chip| [&chip.manufacturer, &chip.model]);
    for name in android {
        // They go into the settings of a shop as they are.
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || b" -_./+".contains(&byte);
        if name.is_empty() || name.len() > caps::NAME_BYTES || !name.bytes().all(legal) {
            let quoted: String = name.chars().take(32).collect();
            return Some(format!("`{quoted}` is no name that Android gives a chip"));
        }
    }
    if let Some(planner) = profile.planner.as_deref().filter(|name| name.contains(['/', '\\', '.'])) {
        return Some(format!(
            "planner `{planner}` is a path; a profile names a planner of a planner directory"
        ));
    }
    let repeated = |names: Vec<&str>| {
        let mut names = names;
        names.sort_unstable();
        names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].to_owned())
    };
    if let Some(name) = repeated(profile.limits.iter().map(|limit| limit.name.as_str()).collect()) {
        return Some(format!("limit `{name}` is given twice"));
    }
    if let Some(name) = repeated(profile.overheads.iter().map(|known| known.name.as_str()).collect()) {
        return Some(format!("overhead `{name}` is given twice"));
    }
    let unknown = |overhead: &&Overhead| !overhead_names::ALL.contains(&overhead.name.as_str());
    if let Some(overhead) = profile.overheads.iter().find(unknown) {
        let known = overhead_names::ALL.join(", ");
        return Some(format!("there is no overhead `{}`, only {known}", overhead.name));
    }
    if let Some(name) = repeated(profile.flags.iter().map(|flag| flag.name.as_str()).collect()) {
        return Some(format!("flag `{name}` is given twice"));
    }
    if let Some(name) = repeated(profile.facts.iter().map(|fact| fact.name.as_str()).collect()) {
        return Some(format!("fact `{name}` is given twice"));
    }
    // The host reads it.
    if let Some(fact) = profile.fact(fact_names::POLLING_MICROSECONDS)
        && fact.value.parse::<u64>().is_err()
    {
        let quoted: String = fact.value.chars().take(32).collect();
        return Some(format!("fact `{}` is `{quoted}`, which is no number of microseconds", fact.name));
    }
    let tuples: Vec<String> = profile.formats.iter().map(|entry| entry.formats.to_string()).collect();
    if let Some(name) = repeated(tuples.iter().map(String::as_str).collect()) {
        return Some(format!("formats {name} are given twice"));
    }
    let unsorted = |tuple: &FormatTuple| tuple.roles.windows(2).any(|pair| pair[0].role >= pair[1].role);
    if let Some(entry) = profile.formats.iter().find(|entry| unsorted(&entry.formats)) {
        return Some(format!("roles of formats {} are not sorted, each at most once", entry.formats));
    }
    None
}

/// A name as it is looked up.
fn normalise(name: &str) -> String {
    name.chars()
        .filter(|character| !matches!(character, ' ' | '-' | '_'))
        .flat_map(char::to_lowercase)
        .collect()
}

/// Whether a name is likely a slip of another: one contains the other, or at most two letters
/// differ.
fn is_near(known: &str, wanted: &str) -> bool {
    let short = wanted.chars().count().min(known.chars().count());
    if short >= 4 && (known.contains(wanted) || wanted.contains(known)) {
        return true;
    }
    // Rows of an edit distance; a hostile name is not worth more than this.
    let (known, wanted): (Vec<char>, Vec<char>) =
        (known.chars().collect(), wanted.chars().take(64).collect());
    let mut row: Vec<usize> = (0..=wanted.len()).collect();
    for (position, left) in known.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = position + 1;
        for (column, right) in wanted.iter().enumerate() {
            let changed = diagonal + usize::from(left != right);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[wanted.len()] <= 2 && short >= 3
}

/// What an application can do about it.
impl From<ProfileError> for shardwright_vocabulary::Error {
    fn from(error: ProfileError) -> Self {
        let help = error.help();
        let kind = match &error {
            ProfileError::Trust { error, .. } => error.kind(),
            _ => ErrorKind::Missing,
        };
        shardwright_vocabulary::Error::caused_by(kind, error, help)
    }
}

mod fallback;
#[cfg(test)]
mod tests;
