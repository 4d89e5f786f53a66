//! SoC profiles: facts about chips, as data, each with its provenance.
//!
//! A profile is a JSON file, described in `plugins/README.md`. Some profiles are built in and
//! others are read from directories. Results are not cached between calls, so that added and
//! removed files take effect at once.

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

/// Name of the profile for no specific chip.
pub const GENERIC: &str = "generic";

/// File names and contents of `plugins/profiles`, from the build script.
const BUILTIN: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/profiles.rs"));

/// Names of facts that the host itself uses.
pub mod fact_names {
    /// Values of Android system properties that identify the chip of a phone, separated by commas.
    pub const SYSTEM_PROPERTIES: &str = "system-properties";
    /// Microseconds for which a caller polls for the result of a call.
    pub const POLLING_MICROSECONDS: &str = "polling-microseconds";
    /// The cost of compiling without the recommended flags, as observed elsewhere.
    pub const COST_OF_MISSING_FLAGS: &str = "cost-of-missing-flags";
}

/// Caps on a profile file. Our files have a few kilobytes and a handful of entries.
mod caps {
    /// Maximum bytes of a file.
    pub const FILE_BYTES: u64 = 256 << 10;
    /// Maximum entries of any list.
    pub const ENTRIES: usize = 256;
    /// Maximum bytes of a name.
    pub const NAME_BYTES: usize = 128;
    /// Maximum number of fallback chips. A bundle has a chain for each, and at most 16 chains.
    pub const FALLBACK: usize = 8;
}

/// The only version of the file format.
const SCHEMA: u32 = 1;

/// A fact about a chip. It is shown to people, and passed to shims that declare that they use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fact {
    /// Name, such as `l1-kilobytes`.
    pub name: String,
    /// Value, a number or a text.
    pub value: String,
    /// Source of the fact.
    pub provenance: Provenance,
    /// The observation behind the fact.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// Android's name of a chip. App stores match both parts literally to choose what to deliver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AndroidChip {
    /// `Build.SOC_MANUFACTURER`, such as `QTI`.
    pub manufacturer: String,
    /// `Build.SOC_MODEL`, such as `SM8650`.
    pub model: String,
    /// Source of the name.
    pub provenance: Provenance,
    /// The observation behind the name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// Condition under which a plan may choose formats that a chip supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Offer {
    /// The formats are always offered.
    #[default]
    Always,
    /// Offered only with a quality goal, or if the user names them. They lose more than the
    /// alternatives.
    QualityGoal,
    /// Offered only if the user names them. They lose more on published models than they save.
    Named,
}

/// Objective of plans for a chip, among the plans that meet all goals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preference {
    /// The fastest plan.
    #[default]
    Speed,
    /// The plan with the least loss.
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

    /// Returns whether a plan may choose these formats without the user naming them. `losses_count`
    /// is true for plans with a quality goal.
    const fn is_made(self, losses_count: bool) -> bool {
        match self {
            Offer::Always => true,
            Offer::QualityGoal => losses_count,
            Offer::Named => false,
        }
    }
}

/// Formats that a chip is known to support together, or known to refuse.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileFormat {
    pub formats: FormatTuple,
    /// Whether the chip supports them.
    pub legal: bool,
    /// Condition under which a plan may choose them.
    #[serde(default, skip_serializing_if = "Offer::is_always")]
    pub offer: Offer,
    /// Source of this knowledge.
    pub provenance: Provenance,
    /// The observation behind the entry.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// A recommended compiler flag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileFlag {
    /// Name as in the shim's schema.
    pub name: String,
    pub value: String,
    /// Source of the recommendation.
    pub provenance: Provenance,
    /// The observation behind the recommendation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl ProfileFlag {
    /// Returns the flag without provenance and note.
    pub fn flag(&self) -> Flag {
        Flag { name: self.name.clone(), value: self.value.clone() }
    }
}

/// Goals of plans for a chip, used if the user does not specify any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ProfileGoals {
    /// Maximum quality loss: KL divergence in thousandths of a nat per token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<u32>,
    /// Maximum bytes of artefacts and KV cache together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Maximum bytes of artefacts and gathered tables together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Maximum microseconds of a generated token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_microseconds: Option<u64>,
    /// Maximum microseconds from a prompt to the first token of its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token_microseconds: Option<u64>,
}

impl ProfileGoals {
    fn is_empty(&self) -> bool {
        *self == ProfileGoals::default()
    }
}

/// Profile of a chip.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Version of the file format: 1.
    pub schema: u32,
    /// Name for lookups: lower-case letters, digits, hyphens.
    pub name: String,
    /// Name for people.
    pub title: String,
    pub vendor: String,
    /// Other names for lookups. Case, spaces, hyphens and underscores are ignored when a name is
    /// looked up.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Android's names of the chip. A chip that is sold in several grades has a name for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub android: Vec<AndroidChip>,
    /// Name of the shim that supports it.
    pub shim: String,
    pub kind: TargetKind,
    /// Names of the profiles of further devices in the same machine, in fallback order, for the
    /// case that this device is missing or lost. This machine's CPU comes after them. Fallbacks of
    /// those profiles are ignored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallback: Vec<String>,
    #[serde(default)]
    pub limits: Vec<Limit>,
    /// Overheads of using the chip, in addition to the computation of shards. See
    /// [`overhead_names`](shardwright_vocabulary::overhead_names).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overheads: Vec<Overhead>,
    /// Formats that the chip supports or refuses, best first.
    #[serde(default)]
    pub formats: Vec<ProfileFormat>,
    /// Objective of plans with goals for bytes or times. With a quality goal this is ignored.
    #[serde(default, skip_serializing_if = "Preference::is_speed")]
    pub prefers: Preference,
    /// Goals that apply if the user does not specify any.
    #[serde(default, skip_serializing_if = "ProfileGoals::is_empty")]
    pub goals: ProfileGoals,
    /// Name of the planner, from a planner directory. `None` for the built-in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planner: Option<String>,
    /// Recommended flags.
    #[serde(default)]
    pub flags: Vec<ProfileFlag>,
    /// Further facts.
    #[serde(default)]
    pub facts: Vec<Fact>,
}

impl Profile {
    /// Iterates over the formats that the chip is known to support, best first.
    pub fn legal_formats(&self) -> impl Iterator<Item = &FormatTuple> {
        self.formats.iter().filter(|entry| entry.legal).map(|entry| &entry.formats)
    }

    /// Iterates over the supported formats that a plan may choose, best first. `losses_count` is
    /// true for plans with a quality goal.
    pub fn offered_formats(&self, losses_count: bool) -> impl Iterator<Item = &FormatTuple> {
        let offered = move |entry: &&ProfileFormat| entry.legal && entry.offer.is_made(losses_count);
        self.formats.iter().filter(offered).map(|entry| &entry.formats)
    }

    /// Returns the fact with this name.
    pub fn fact(&self, name: &str) -> Option<&Fact> {
        self.facts.iter().find(|fact| fact.name == name)
    }

    /// Returns the limits, overridden by a user's: a limit with the same name is replaced, another
    /// is added.
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

/// Source of a profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProfileSource {
    /// Built in, under this file name.
    Builtin(&'static str),
    /// A file with this path.
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
    pub profile: Profile,
    pub source: ProfileSource,
}

/// Why a profile could not be found or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// A directory could not be read.
    #[error(transparent)]
    Directory(#[from] RegistryError),
    /// A file could not be read or is too big.
    #[error("profile {source_file}: {reason}")]
    File { source_file: ProfileSource, reason: String },
    /// A file is not signed as the host's policy requires.
    #[error("profile {source_file}: {error}")]
    Trust { source_file: ProfileSource, error: TrustError },
    /// A file is not a profile.
    #[error("profile {source_file}, line {line}, column {column}: {reason}")]
    Syntax {
        source_file: ProfileSource,
        /// Line, starting at 1.
        line: usize,
        /// Column, starting at 1.
        column: usize,
        reason: String,
    },
    /// A profile is invalid.
    #[error("profile {source_file}: {reason}")]
    Invalid { source_file: ProfileSource, reason: String },
    /// Two profiles have the same name or alias.
    #[error("`{name}` is claimed by {first} and by {second}")]
    Duplicate {
        /// Name or alias.
        name: String,
        first: ProfileSource,
        second: ProfileSource,
    },
    /// No profile has the name.
    #[error("no profile for SoC `{name}`{}", skipped.iter().map(|why| format!("; skipped: {why}")).collect::<String>())]
    Unknown {
        /// The requested name.
        name: String,
        /// Errors of invalid profiles, one of which may be the requested one.
        skipped: Vec<String>,
        /// Similar names.
        near: Vec<String>,
        /// All known names.
        known: Vec<String>,
    },
}

impl ProfileError {
    /// Returns whether the error concerns the chip with this name.
    fn is_about(&self, wanted: &str) -> bool {
        match self {
            ProfileError::Duplicate { name, .. } => name == wanted,
            // If a file cannot be read, only its name can be compared.
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

    /// Returns advice for a `help:` line.
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

/// The built-in profiles and the profiles of directories.
#[derive(Debug, Clone, Default)]
pub struct ProfileRegistry {
    directories: Vec<PathBuf>,
    trust: Trust,
}

/// All profiles of a registry.
#[derive(Debug, Default)]
pub struct Profiles {
    /// Usable profiles.
    pub found: Vec<FoundProfile>,
    /// Errors of the others.
    pub skipped: Vec<ProfileError>,
}

/// Returns all names of a profile, normalised for comparison.
fn names(profile: &Profile) -> Vec<String> {
    let mut names = vec![normalise(&profile.name)];
    names.extend(profile.aliases.iter().map(|alias| normalise(alias)));
    names.sort();
    names.dedup();
    names
}

impl ProfileRegistry {
    /// Creates a registry of only the built-in profiles.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the signature policy for files of directories. Built-in profiles are part of the
    /// program and need no signature.
    #[must_use]
    pub fn trusting(mut self, trust: Trust) -> Self {
        self.trust = trust;
        self
    }

    /// Adds a directory, whose `.json` files are profiles. A directory that does not exist counts
    /// as empty.
    #[must_use]
    pub fn with_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directories.push(directory.into());
        self
    }

    /// Lists the current profiles, built-in ones first. A file that is not a profile, or that has
    /// the name of another profile, is skipped and its error returned. It does not affect other
    /// chips.
    ///
    /// # Errors
    ///
    /// Fails if a directory cannot be read.
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

    /// Finds the profile with this name or alias.
    ///
    /// # Errors
    ///
    /// Fails if there is none, if its file is not a valid profile, or if two profiles have the
    /// name.
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

/// Reads one profile file.
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

/// Returns the first fault of a parsed profile.
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
        // These names are written into settings of app stores without escaping.
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
    // The host itself parses this fact.
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

/// Normalises a name for lookups.
fn normalise(name: &str) -> String {
    name.chars()
        .filter(|character| !matches!(character, ' ' | '-' | '_'))
        .flat_map(char::to_lowercase)
        .collect()
}

/// Returns whether a name is probably a typing error of another: one contains the other, or the
/// edit distance is at most 2.
fn is_near(known: &str, wanted: &str) -> bool {
    let short = wanted.chars().count().min(known.chars().count());
    if short >= 4 && (known.contains(wanted) || wanted.contains(known)) {
        return true;
    }
    // The current row of the edit distance. A requested name is cut to 64 characters, because it
    // may be hostile.
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

/// Converts to an error for applications, with a kind that they can act on.
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
