//! SoC profiles: facts about chips, as data, each with its provenance.
//!
//! A profile is a JSON file, described in `plugins/README.md`. Some profiles are built in and
//! others are read from directories. Results are not cached between calls, so that added and
//! removed files take effect at once.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use shardwright_trust::{Kind, Trust};
use shardwright_vocabulary::{
    At, Error, Flag, FormatTuple, Limit, Overhead, Provenance, Result, TargetKind, UniqueKeys, overhead_names,
};

use crate::request::time_fault;

mod fallback;
mod memory;
#[cfg(test)]
mod tests;
mod times;

pub use memory::DeviceMemory;
pub use times::{Decimal, ProfileTimes, Roofline, TimeFactors};

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
    /// Times of the chip and of its CPU.
    #[serde(default, skip_serializing_if = "ProfileTimes::is_empty")]
    pub times: ProfileTimes,
    /// Memory of the devices with the chip. `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<DeviceMemory>,
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
    #[serde(default)]
    pub flags: Vec<ProfileFlag>,
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
    pub skipped: Vec<Error>,
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
    pub fn list(&self) -> Result<Profiles> {
        let Listed { found, skipped } = self.read()?;
        Ok(Profiles { found, skipped: skipped.into_iter().map(|(_, error)| error).collect() })
    }

    /// Returns the profile with this name or alias, or `None` if no profile has it.
    ///
    /// # Errors
    ///
    /// Fails if a directory cannot be read, if the chip's file is not a valid profile, or if two
    /// profiles have the name.
    pub fn get(&self, name: &str) -> Result<Option<FoundProfile>> {
        self.read()?.get(name)
    }

    /// Finds the profile with this name or alias.
    ///
    /// # Errors
    ///
    /// Fails like [`get`](Self::get), and if no profile has the name.
    pub fn find(&self, name: &str) -> Result<FoundProfile> {
        self.read()?.find(name)
    }

    fn read(&self) -> Result<Listed> {
        let mut all = Listed::default();
        let mut claimed: BTreeMap<String, ProfileSource> = BTreeMap::new();
        let mut add = |file: &Path, read: Result<FoundProfile>| {
            let candidate = match read {
                Ok(candidate) => candidate,
                Err(error) => {
                    // Only the name of the file is known.
                    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
                    all.skipped.push((normalise(&stem), error));
                    return;
                }
            };
            let own = names(&candidate.profile);
            match own.iter().find_map(|name| claimed.get_key_value(name)) {
                Some((name, first)) => {
                    let second = &candidate.source;
                    let message = format!("`{name}` is a name of two profiles: {first} and {second}");
                    let error = Error::missing(message).with_help("remove one of them, or rename it");
                    all.skipped.push((name.clone(), error));
                }
                None => {
                    claimed.extend(own.into_iter().map(|name| (name, candidate.source.clone())));
                    all.found.push(candidate);
                }
            }
        };
        for (name, text) in BUILTIN {
            let source = ProfileSource::Builtin(name);
            let parsed = parse(text.as_bytes(), &source);
            add(Path::new(name), parsed.map(|profile| FoundProfile { profile, source }));
        }
        for directory in &self.directories {
            for path in crate::registry::files(directory)? {
                if path.extension().is_some_and(|extension| extension == "json") {
                    add(&path, read_trusting(&path, &self.trust));
                }
            }
        }
        Ok(all)
    }
}

/// All profiles of a registry, and the errors of skipped files, each with the normalised name of
/// its chip.
#[derive(Default)]
struct Listed {
    found: Vec<FoundProfile>,
    skipped: Vec<(String, Error)>,
}

impl Listed {
    fn get(&self, name: &str) -> Result<Option<FoundProfile>> {
        let wanted = normalise(name);
        match self.skipped.iter().find(|(chip, _)| *chip == wanted) {
            Some((_, error)) => Err(error.clone()),
            None => Ok(self.found.iter().find(|found| names(&found.profile).contains(&wanted)).cloned()),
        }
    }

    fn find(&self, name: &str) -> Result<FoundProfile> {
        self.get(name)?.ok_or_else(|| self.unknown(name))
    }

    /// Creates the error for a name that no profile has. A skipped file may be the wanted profile.
    fn unknown(&self, name: &str) -> Error {
        let wanted = normalise(name);
        let quoted: String = name.chars().take(caps::NAME_BYTES).collect();
        let error = Error::missing(format!("no profile for SoC `{quoted}`"));
        if !self.skipped.is_empty() {
            let skipped = self.skipped.iter().map(|(_, error)| format!("skipped: {error}"));
            let help = "correct the profile; see plugins/README.md for its fields";
            return skipped.fold(error, Error::with_more).with_help(help);
        }
        let is_similar =
            |found: &&FoundProfile| names(&found.profile).iter().any(|known| is_near(known, &wanted));
        let name_of = |found: &FoundProfile| found.profile.name.clone();
        let near: Vec<String> = self.found.iter().filter(is_similar).map(name_of).collect();
        if !near.is_empty() {
            return error.with_help(format!("did you mean {}?", near.join(" or ")));
        }
        let known: Vec<String> = self.found.iter().map(name_of).collect();
        let known = known.join(", ");
        error.with_help(format!("known: {known}; add the profiles of a folder with `--profiles DIR`"))
    }
}

/// Reads one profile file.
///
/// # Errors
///
/// Fails if the file cannot be read or is not a valid profile.
pub fn read(path: &Path) -> Result<FoundProfile> {
    read_trusting(path, &Trust::off())
}

fn read_trusting(path: &Path, trust: &Trust) -> Result<FoundProfile> {
    let source = ProfileSource::File(path.to_owned());
    let bytes = shardwright_files::read(path, caps::FILE_BYTES).at(format!("profile {source}"))?;
    let signed = trust.expect_beside(path, Kind::Profile, &bytes)?;
    let profile = parse(&bytes, &source)?;
    if let Some(signed) = signed {
        trust.expect_name(path, &signed, &profile.name)?;
    }
    Ok(FoundProfile { profile, source })
}

fn parse(bytes: &[u8], source: &ProfileSource) -> Result<Profile> {
    // The parser's message ends with line and column.
    let refused = |error: serde_json::Error| invalid(source, error.to_string());
    let UniqueKeys = serde_json::from_slice(bytes).map_err(refused)?;
    let profile: Profile = serde_json::from_slice(bytes).map_err(refused)?;
    match fault(&profile) {
        None => Ok(profile),
        Some(reason) => Err(invalid(source, reason)),
    }
}

/// Creates the error of a file that is not a valid profile.
fn invalid(place: &impl fmt::Display, reason: impl Into<String>) -> Error {
    let error = Error::missing(reason).at(format!("profile {place}"));
    error.with_help("see plugins/README.md for the fields of a profile")
}

/// Returns the first fault of a parsed profile.
fn fault(profile: &Profile) -> Option<String> {
    if profile.schema != SCHEMA {
        return Some(format!("expected schema {SCHEMA}, got {}", profile.schema));
    }
    let legal =
        |character: char| character.is_ascii_lowercase() || character.is_ascii_digit() || character == '-';
    if profile.name.is_empty() || !profile.name.chars().all(legal) {
        let name = &profile.name;
        return Some(format!("expected a name of lower-case letters, digits and hyphens, got `{name}`"));
    }
    let lists = [
        ("aliases", profile.aliases.len()),
        ("Android names", profile.android.len()),
        ("limits", profile.limits.len()),
        ("overheads", profile.overheads.len()),
        ("formats", profile.formats.len()),
        ("flags", profile.flags.len()),
        ("facts", profile.facts.len()),
    ];
    if let Some((what, count)) = lists.into_iter().find(|(_, count)| *count > caps::ENTRIES) {
        return Some(format!("{count} {what}, expected at most {}", caps::ENTRIES));
    }
    if profile.fallback.len() > caps::FALLBACK {
        let count = profile.fallback.len();
        return Some(format!("{count} fallback chips, expected at most {}", caps::FALLBACK));
    }
    if profile.kind == TargetKind::Cpu && !profile.fallback.is_empty() {
        return Some("a CPU cannot have fallbacks, as it is always the last fallback".to_owned());
    }
    if let Some(fault) = name_fault(profile) {
        return Some(fault);
    }
    let repeated = |names: Vec<&str>| {
        let mut names = names;
        names.sort_unstable();
        names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].to_owned())
    };
    if let Some(name) = repeated(profile.limits.iter().map(|limit| limit.name.as_str()).collect()) {
        return Some(format!("limit `{name}` is listed twice"));
    }
    if let Some(name) = repeated(profile.overheads.iter().map(|known| known.name.as_str()).collect()) {
        return Some(format!("overhead `{name}` is listed twice"));
    }
    let unknown = |overhead: &&Overhead| !overhead_names::ALL.contains(&overhead.name.as_str());
    if let Some(overhead) = profile.overheads.iter().find(unknown) {
        let known = overhead_names::ALL.join(", ");
        return Some(format!("unknown overhead `{}`, expected one of {known}", overhead.name));
    }
    let wrong = |own: &Overhead| Some(format!("overhead `{}`: {}", own.name, time_fault(own.time())?));
    let fault = profile.overheads.iter().find_map(wrong).or_else(|| profile.times.fault());
    if let Some(fault) = fault.or_else(|| profile.memory.as_ref()?.fault()) {
        return Some(fault);
    }
    if let Some(name) = repeated(profile.flags.iter().map(|flag| flag.name.as_str()).collect()) {
        return Some(format!("flag `{name}` is listed twice"));
    }
    if let Some(name) = repeated(profile.facts.iter().map(|fact| fact.name.as_str()).collect()) {
        return Some(format!("fact `{name}` is listed twice"));
    }
    // The host itself parses this fact.
    if let Some(fact) = profile.fact(fact_names::POLLING_MICROSECONDS)
        && fact.value.parse::<u64>().is_err()
    {
        let quoted: String = fact.value.chars().take(32).collect();
        return Some(format!("fact `{}`: expected a number of microseconds, got `{quoted}`", fact.name));
    }
    let tuples: Vec<String> = profile.formats.iter().map(|entry| entry.formats.to_string()).collect();
    if let Some(name) = repeated(tuples.iter().map(String::as_str).collect()) {
        return Some(format!("formats {name} are listed twice"));
    }
    let unsorted = |tuple: &FormatTuple| tuple.roles.windows(2).any(|pair| pair[0].role >= pair[1].role);
    if let Some(entry) = profile.formats.iter().find(|entry| unsorted(&entry.formats)) {
        return Some(format!("roles of formats {} are not sorted, each at most once", entry.formats));
    }
    None
}

/// Returns the first fault of the names in a profile.
fn name_fault(profile: &Profile) -> Option<String> {
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
            return Some(format!("`{quoted}` is not a valid Android name of a chip"));
        }
    }
    if let Some(planner) = profile.planner.as_deref().filter(|name| name.contains(['/', '\\', '.'])) {
        return Some(format!("expected the name of a planner in a planner directory, got `{planner}`"));
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
