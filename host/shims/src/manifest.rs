//! The small file next to a library that is read before the library is opened.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use shardwright_files::{Links, open, read_from};
use shardwright_shim_abi::{raw, version_text};
use shardwright_trust::{Kind, Trust, unbound};
use shardwright_vocabulary::{AndroidNeeds, ErrorKind, NeededLibrary, ShimNeeds, UniqueKeys};

use crate::LoadError;

/// Maximum size of a manifest. It has only a few lines, so a larger file is a mistake.
const MANIFEST_LIMIT: u64 = 64 * 1024;

/// Suffix of every manifest's file name.
pub const MANIFEST_SUFFIX: &str = ".shim.json";

/// Contents of a shim's manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of this format: 1.
    pub manifest: u32,
    /// Name of the shim in lower case, such as `cpu`.
    pub name: String,
    pub vendor: String,
    /// Contract versions that it supports.
    pub abi: AbiRange,
    /// File name of the library. Without a dot it gets the platform's prefix and suffix.
    pub library: String,
    /// Place where the library is searched.
    #[serde(default)]
    pub search: Search,
    /// SHA-256 of the library in lower-case hex, checked before it is opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Options of every instance, which a caller's options override. Here a user specifies the
    /// location of the vendor's library.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// Additional options of an instance that should offer a simulated device. An example is the
    /// path of a stand-in for the vendor's library, which no other instance should find.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub simulator: BTreeMap<String, String>,
    /// Exclusive resources, which only one instance at a time may use, such as `neuron-device`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclusive: Vec<String>,
    /// Terms under which the shim itself may be redistributed, such as `Apache-2.0 OR MIT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub licence: Option<String>,
    /// Libraries of its vendor that it needs on a phone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<NeededLibrary>,
    /// Declarations that an Android app needs for it.
    #[serde(default, skip_serializing_if = "AndroidNeeds::is_empty")]
    pub android: AndroidNeeds,
}

/// Range of contract versions as text `major.minor`, inclusive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AbiRange {
    /// Oldest version.
    pub min: String,
    /// Newest version.
    pub max: String,
}

/// Place where the library of a manifest is searched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Search {
    /// Only in the manifest's own directory.
    #[default]
    Beside,
    /// By bare name through the system loader's search path. Its hash cannot be checked.
    System,
}

/// Contract versions that the host supports, inclusive.
pub(crate) const HOST_VERSIONS: (u32, u32) = (raw::SW_VERSION_0_1, raw::SW_VERSION);

pub(crate) fn range_text((min, max): (u32, u32)) -> String {
    if min == max { version_text(min) } else { format!("{} to {}", version_text(min), version_text(max)) }
}

/// Rejects a range that does not overlap the host's.
pub(crate) fn check_range(path: &Path, shim: (u32, u32)) -> Result<(), LoadError> {
    let (reason, than) = match HOST_VERSIONS {
        (_, newest) if shim.0 > newest => ("too-new", "newer"),
        (oldest, _) if shim.1 < oldest => ("too-old", "older"),
        _ => return Ok(()),
    };
    let (shim, host) = (range_text(shim), range_text(HOST_VERSIONS));
    let message = format!("the shim supports contract {shim}, {than} than the host's {host}");
    Err(LoadError::new(reason, path, message))
}

fn invalid(path: &Path, reason: &str) -> LoadError {
    LoadError::new("manifest-invalid", path, format!("invalid manifest: {reason}"))
}

fn parse_version(text: &str) -> Option<u32> {
    let (major, minor) = text.split_once('.')?;
    let (major, minor) = (major.parse::<u16>().ok()?, minor.parse::<u16>().ok()?);
    Some(u32::from(major) << 16 | u32::from(minor))
}

impl Manifest {
    /// Returns the path of a library's manifest: the library's path with the last extension
    /// replaced.
    pub fn path_for(library: &Path) -> PathBuf {
        let mut path = library.with_extension("");
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(MANIFEST_SUFFIX);
        path.set_file_name(name);
        path
    }

    /// Reads and checks a manifest. Its versions must overlap the host's.
    pub fn read(path: &Path) -> Result<Manifest, LoadError> {
        Manifest::read_trusting(path, &Trust::off())
    }

    /// Like [`Manifest::read`], but the manifest must be signed as the rules require: under its own
    /// name, and with the hash of its library, so that the signature covers the library too.
    pub fn read_trusting(path: &Path, trust: &Trust) -> Result<Manifest, LoadError> {
        let (file, _) = open(path, Links::Followed).map_err(|error| match error.is_not_found() {
            true => LoadError::not_found(path),
            false => LoadError::unreadable(path, error),
        })?;
        let text = read_from(file, MANIFEST_LIMIT).map_err(|error| match error.kind() {
            ErrorKind::Invalid => invalid(path, &error.to_string()),
            _ => LoadError::unreadable(path, error),
        })?;
        let untrusted = |error| LoadError::caused_by("untrusted", error);
        let signed = trust.expect_beside(path, Kind::Shim, &text).map_err(untrusted)?;
        let manifest = Manifest::parse(path, &text)?;
        if let Some(signed) = signed {
            let bound = || {
                trust.expect_name(path, &signed, &manifest.name)?;
                trust.expect_that(Kind::Shim, manifest.sha256.is_some(), || unbound(path))
            };
            bound().map_err(untrusted)?;
        }
        Ok(manifest)
    }

    /// Checks the text of a manifest. `path` is for messages.
    pub fn parse(path: &Path, text: &[u8]) -> Result<Manifest, LoadError> {
        let invalid = |reason: String| invalid(path, &reason);
        let unique = serde_json::from_slice::<UniqueKeys>(text);
        let read = unique.and_then(|UniqueKeys| serde_json::from_slice::<Manifest>(text));
        let manifest = read.map_err(|error| invalid(error.to_string()))?;
        manifest.check().map_err(invalid)?;
        check_range(path, manifest.versions().ok_or_else(|| invalid("invalid versions".to_owned()))?)?;
        Ok(manifest)
    }

    fn versions(&self) -> Option<(u32, u32)> {
        Some((parse_version(&self.abi.min)?, parse_version(&self.abi.max)?))
    }

    fn check(&self) -> Result<(), String> {
        if self.manifest != 1 {
            return Err(format!("expected `manifest` 1, got {}", self.manifest));
        }
        check_name("name", &self.name)?;
        match self.versions() {
            Some((min, max)) if min <= max => {}
            _ => {
                return Err(format!("`abi` {} to {} is not a range of versions", self.abi.min, self.abi.max));
            }
        }
        let plain = Path::new(&self.library).components().count() == 1
            && Path::new(&self.library).file_name().is_some_and(|name| name == self.library.as_str())
            && !self.library.contains(['/', '\\', '\0']);
        if !plain {
            return Err(format!("`library` must be a plain file name, got `{}`", self.library));
        }
        if let Some(hash) = &self.sha256 {
            let hexadecimal = hash.len() == 64
                && hash.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
            if !hexadecimal {
                return Err("`sha256` must be 64 lower-case hexadecimal digits".to_owned());
            }
            if self.search == Search::System {
                return Err("`sha256` requires `search: beside`, which locates the file".to_owned());
            }
        }
        for (member, options) in [("options", &self.options), ("simulator", &self.simulator)] {
            options.keys().try_for_each(|key| check_name(member, key))?;
            if let Some((key, _)) = options.iter().find(|(_, value)| value.contains('\0')) {
                return Err(format!("the value of option `{key}` contains a NUL"));
            }
        }
        self.needs.iter().try_for_each(|needed| check_file(&needed.file))?;
        self.android.variables.iter().try_for_each(|(name, value)| check_variable(name, value))?;
        self.android.device_folders.iter().try_for_each(|folder| check_folder(folder))?;
        self.exclusive.iter().try_for_each(|resource| check_name("exclusive", resource))
    }

    pub fn to_needs(&self) -> ShimNeeds {
        let stem = self.library.rsplit_once('.').map_or(self.library.as_str(), |(stem, _)| stem);
        let stem = stem.strip_prefix(std::env::consts::DLL_PREFIX).unwrap_or(stem);
        ShimNeeds {
            name: self.name.clone(),
            vendor: self.vendor.clone(),
            library: stem.to_owned(),
            licence: self.licence.clone(),
            needs: self.needs.clone(),
            android: self.android.clone(),
        }
    }

    /// Returns the library's file name on this platform.
    pub fn library_name(&self) -> String {
        if self.library.contains('.') {
            self.library.clone()
        } else {
            format!("{}{}{}", std::env::consts::DLL_PREFIX, self.library, std::env::consts::DLL_SUFFIX)
        }
    }
}

/// Checks a file name. Such names are written to scripts and to the manifests of apps.
fn check_file(name: &str) -> Result<(), String> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+{}".contains(&byte);
    match (1..=128).contains(&name.len()) && name.bytes().all(legal) && !name.starts_with('-') {
        true => Ok(()),
        false => {
            let shown: String = name.chars().take(64).collect();
            Err(format!(
                "`needs` must have file names of a-z, A-Z, 0-9, `-_.+` and facts in braces, got `{shown}`"
            ))
        }
    }
}

fn check_variable(name: &str, value: &str) -> Result<(), String> {
    let legal = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    let begins = name.starts_with(|first: char| first.is_ascii_uppercase());
    if !begins || name.len() > 64 || !name.bytes().all(legal) {
        let shown: String = name.chars().take(64).collect();
        return Err(format!("`android` must have variable names of A-Z, 0-9 and `_`, got `{shown}`"));
    }
    match value.bytes().all(|byte| is_of_a_path(byte) || b":;{}".contains(&byte)) {
        true => Ok(()),
        false => Err(format!("`android`: the value of `{name}` is not a list of folders")),
    }
}

fn check_folder(folder: &str) -> Result<(), String> {
    match folder.starts_with('/') && folder.bytes().all(is_of_a_path) {
        true => Ok(()),
        false => {
            let shown: String = folder.chars().take(64).collect();
            Err(format!("`android` must have absolute folders, got `{shown}`"))
        }
    }
}

fn is_of_a_path(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte)
}

fn check_name(what: &str, name: &str) -> Result<(), String> {
    let legal = (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte));
    if legal {
        Ok(())
    } else {
        let shown: String = name.chars().take(64).collect();
        Err(format!("`{what}` must be 1 to 64 characters of a-z, 0-9, `-`, `_`, `.`, got `{shown}`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(change: impl FnOnce(&mut serde_json::Value)) -> Result<Manifest, LoadError> {
        let mut value = serde_json::json!({
            "manifest": 1, "name": "cpu", "vendor": "us", "abi": {"min": "0.1", "max": "0.1"}, "library": "shim_cpu"
        });
        change(&mut value);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.shim.json");
        std::fs::write(&path, value.to_string()).unwrap();
        Manifest::read(&path)
    }

    fn needed(file: &str) -> serde_json::Value {
        serde_json::json!({ "file": file, "brought_by": "app", "licence": "l", "obtained": "o" })
    }

    #[test]
    fn what_it_needs_is_read() {
        let read = manifest(|m| {
            m["licence"] = "MIT".into();
            m["needs"] = serde_json::json!([needed("lib{arch}.so")]);
            m["android"] =
                serde_json::json!({ "extracted_libraries": true, "variables": {"A_B": "{libraries}"} });
        });
        let read = read.unwrap();
        assert_eq!((read.licence.as_deref(), read.needs.len()), (Some("MIT"), 1));
        assert!(read.android.extracted_libraries && read.android.variables.contains_key("A_B"));
        assert_eq!(read.to_needs().library, "shim_cpu");
        let laid_out = manifest(|m| m["library"] = "libshim_cpu.so".into()).unwrap();
        assert_eq!(laid_out.to_needs().library, "shim_cpu");
    }

    #[test]
    fn a_plain_manifest_is_read() {
        let read = manifest(|_| {}).unwrap();
        assert_eq!(read.search, Search::Beside);
        assert!(read.library_name().contains("shim_cpu."));
        assert_eq!(Manifest::path_for(Path::new("/a/libx.so")), Path::new("/a/libx.shim.json"));
    }

    #[test]
    fn faults_are_named() {
        type Change = fn(&mut serde_json::Value);
        let cases: &[(Change, &str)] = &[
            (|m| m["manifest"] = 2.into(), "expected `manifest` 1, got 2"),
            (|m| m["name"] = "C P U".into(), "`name`"),
            (|m| m["name"] = "".into(), "`name`"),
            (|m| m["abi"]["min"] = "one".into(), "range of versions"),
            (|m| m["abi"]["min"] = "0.2".into(), "range of versions"),
            (|m| m["library"] = "../evil.so".into(), "plain file name"),
            (|m| m["library"] = "/lib/evil.so".into(), "plain file name"),
            (|m| m["library"] = "..".into(), "plain file name"),
            (|m| m["library"] = "".into(), "plain file name"),
            (|m| m["sha256"] = "ABC".into(), "hexadecimal"),
            (
                |m| {
                    m["sha256"] = "0".repeat(64).into();
                    m["search"] = "system".into();
                },
                "search: beside",
            ),
            (|m| m["exclusive"] = serde_json::json!(["a b"]), "`exclusive`"),
            (|m| m["options"] = serde_json::json!({"Library": "x"}), "`options`"),
            (|m| m["options"] = serde_json::json!({"library": "a\0b"}), "option `library` contains a NUL"),
            (|m| m["options"] = serde_json::json!({"threads": 4}), "string"),
            (|m| m["simulator"] = serde_json::json!({"Library": "x"}), "`simulator`"),
            (|m| m["simulator"] = serde_json::json!({"library": "a\0b"}), "contains a NUL"),
            (|m| m["search"] = "everywhere".into(), "everywhere"),
            (|m| m["extra"] = 1.into(), "extra"),
            (|m| m["needs"] = serde_json::json!([needed("lib x; rm.so")]), "`needs`"),
            (|m| m["needs"] = serde_json::json!([needed("-x")]), "`needs`"),
            (|m| m["needs"] = serde_json::json!([{ "file": "x.so" }]), "brought_by"),
            (|m| m["android"] = serde_json::json!({"variables": {"A=B": "x"}}), "`android`"),
            (|m| m["android"] = serde_json::json!({"variables": {"A": "$(rm)"}}), "not a list of folders"),
            (|m| m["android"] = serde_json::json!({"device_folders": ["lib"]}), "absolute folders"),
            (|m| *m = serde_json::json!([]), ""),
        ];
        for (change, expected) in cases {
            match manifest(change) {
                Err(error) if error.reason() == "manifest-invalid" => {
                    assert!(error.to_string().contains(expected), "{error}");
                }
                other => panic!("{expected}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_second_key_is_named() {
        let sound = r#"{"manifest": 1, "name": "cpu", "vendor": "us", "abi": {"min": "0.1", "max": "0.1"},
            "library": "shim_cpu", "options": {"a": "1"}, "android": {"variables": {"A": "x"}}}"#;
        let parse = |text: &str| Manifest::parse(Path::new("x.shim.json"), text.as_bytes());
        parse(sound).unwrap();
        for (once, twice, key) in [
            (r#""a": "1""#, r#""a": "0", "a": "1""#, "a"),
            (r#""A": "x""#, r#""A": "x", "A": "y""#, "A"),
            (r#""max": "0.1""#, r#""max": "0.1", "max": "0.1""#, "max"),
        ] {
            let error = parse(&sound.replacen(once, twice, 1)).unwrap_err();
            assert_eq!(error.reason(), "manifest-invalid");
            let text = error.to_string();
            assert!(
                text.contains("x.shim.json") && text.contains(&format!("a second key `{key}`")),
                "{text}"
            );
        }
    }

    #[test]
    fn versions_decide_before_the_library_is_opened() {
        let newer = manifest(|m| m["abi"] = serde_json::json!({"min": "0.2", "max": "1.0"}));
        assert_eq!(newer.unwrap_err().reason(), "too-new");
        let older = manifest(|m| m["abi"] = serde_json::json!({"min": "0.0", "max": "0.0"}));
        assert_eq!(older.unwrap_err().reason(), "too-old");
        assert!(manifest(|m| m["abi"] = serde_json::json!({"min": "0.0", "max": "7.3"})).is_ok());
    }

    #[test]
    fn a_huge_manifest_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.shim.json");
        std::fs::write(&path, vec![b' '; MANIFEST_LIMIT as usize + 1]).unwrap();
        assert_eq!(Manifest::read(&path).unwrap_err().reason(), "manifest-invalid");
    }
}
