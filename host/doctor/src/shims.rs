use std::path::Path;

use serde::Serialize;
use shardwright_bundle::Digest;
use shardwright_shims::{
    Chip, FactSchema, LayoutCheck, Manifest, MeasuredFlag, Running, Search, Shim, ShimError, ShimInstance,
    manifests_in,
};
use shardwright_trust::Trust;
use shardwright_vocabulary::{DeviceKind, FlagSchema, Limit, ShimNeeds};
use shardwright_worker::Shims;

use shardwright::{Isolation, SearchPath};
use shardwright_files::output::OutputKind;
use shardwright_files::read_named;
use shardwright_vocabulary::{Error, ErrorKind, Result};

/// The shims found, and the skipped ones.
#[derive(Clone, Debug, Serialize)]
pub struct ShimsReport {
    pub shims: Vec<ShimReport>,
    /// Unusable libraries and manifests, each with the reason.
    pub skipped: Vec<SkippedReport>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ShimReport {
    pub name: String,
    pub vendor: String,
    pub version: String,
    /// The negotiated contract version.
    pub abi: String,
    pub path: String,
    /// The reason for searching that place.
    pub search: String,
    /// The vendor's library that the shim uses, with its version.
    pub vendor_library: Option<String>,
    /// Outcome of the layout comparison.
    pub layout: String,
    /// Whether the shim can compile.
    pub compiles: bool,
    /// Whether the shim can run its artefacts.
    pub runs: bool,
    /// The process of the query: `in a worker`, `in this process`, `not at all`.
    pub asked: String,
    /// The profile facts that the shim reads.
    pub facts: Vec<FactSchema>,
    /// The shim's devices in this machine.
    pub devices: Vec<DeviceReport>,
    /// The reason why devices could not be queried.
    pub error: Option<String>,
    /// A suggestion for the user.
    pub help: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    pub name: String,
    /// The chip, if the device belongs to one.
    pub soc: Option<String>,
    /// One of `present`, `offline` or `simulated`.
    pub kind: String,
    pub limits: Vec<Limit>,
    /// Flags of its compiler.
    pub flags: Vec<FlagSchema>,
    /// Description by the shim.
    pub detail: Option<String>,
    /// Load-time flags whose values were measured and stored.
    pub measured: Vec<MeasuredFlag>,
}

#[derive(Clone, Debug, Serialize)]
pub struct SkippedReport {
    pub path: String,
    /// The reason for skipping the shim.
    pub reason: String,
    /// A suggestion for the user.
    pub help: Option<String>,
}

/// Lists every shim with its devices, and everything that was skipped, with the reason.
///
/// Shims are queried in a worker process if that program is found, or else in this one.
pub fn list_shims(search: &SearchPath) -> Result<ShimsReport> {
    Ok(report(&open(search, &Trust::off())?, &[]))
}

/// Returns the requirements of shims according to their manifests, and the reasons why some
/// manifests were not read. Signatures must comply with the rules. Libraries are not opened. If two
/// shims have the same name, the first counts.
pub fn shim_needs(search: &SearchPath, trust: &Trust) -> (Vec<ShimNeeds>, Vec<String>) {
    let (mut found, mut skipped): (Vec<ShimNeeds>, Vec<String>) = (Vec::new(), Vec::new());
    let single = search.libraries.iter().map(|(path, text)| Manifest::parse(path, text.as_bytes()));
    for read in search.shims.iter().flat_map(|directory| manifests_in(directory, trust)).chain(single) {
        match read {
            Ok(manifest) if found.iter().any(|known| known.name == manifest.name) => {}
            Ok(manifest) => found.push(manifest.to_needs()),
            Err(error) => skipped.push(error.to_string()),
        }
    }
    (found, skipped)
}

/// Opens the shims whose signatures comply with the rules, with their earlier measurements.
pub(crate) fn open(search: &SearchPath, trust: &Trust) -> Result<Shims> {
    let registry = shardwright::tools::registry_with_measured(search).trusting(trust.clone());
    Shims::open(registry, Isolation::Automatic)
}

/// A manifest with the hash of its library.
#[derive(Clone, Debug, Serialize)]
pub struct ShimHash {
    /// Path of the manifest.
    pub manifest: String,
    /// The library next to the manifest.
    pub library: String,
    /// SHA-256 in lower-case hexadecimal.
    pub sha256: String,
}

/// Writes the hash of the library into a shim's manifest. After that a changed library is rejected.
///
/// # Errors
///
/// If the manifest or library cannot be read or is invalid, or if the library is not next to its
/// manifest.
pub fn hash_shim(manifest: &Path) -> Result<ShimHash> {
    let invalid = |what: String| Error::new(ErrorKind::Invalid, format!("{}: {what}", manifest.display()));
    let read = Manifest::read(manifest)?;
    if read.search == Search::System {
        return Err(invalid("`search` is `system`, so the library is unknown".to_owned())
            .with_help("put the library next to its manifest and set `search` to `beside`"));
    }
    let library = manifest.with_file_name(read.library_name());
    let sha256 = Digest::of(&read_named(&library, LIBRARY_BYTES_MAX)?).to_string();
    let read = Manifest { sha256: Some(sha256.clone()), ..read };
    let text = serde_json::to_string_pretty(&read).map_err(|error| invalid(error.to_string()))?;
    // It was read as a manifest just before.
    let kind = OutputKind { name: "the manifest of a shim", is_earlier: |_| true };
    kind.write(manifest, (text + "\n").as_bytes())?;
    let (manifest, library) = (manifest.display().to_string(), library.display().to_string());
    Ok(ShimHash { manifest, library, sha256 })
}

/// Largest library that is hashed, in bytes. Vendors' own libraries have some hundred megabytes.
const LIBRARY_BYTES_MAX: u64 = 2 << 30;

/// Queries every shim for its description and devices. `chips` are the possible chips of this
/// machine, each with its shim.
pub(crate) fn report(found: &Shims, chips: &[(&str, Chip)]) -> ShimsReport {
    let registry = &found.registry;
    let shims = registry.shims().iter().map(|shim| shim_report(found, shim, chips)).collect();
    let skipped = registry
        .skipped()
        .iter()
        .map(|skipped| SkippedReport {
            path: skipped.path.display().to_string(),
            reason: skipped.error.to_string(),
            help: skipped.error.help().map(str::to_owned),
        })
        .collect();
    ShimsReport { shims, skipped }
}

fn shim_report(found: &Shims, shim: &Shim, chips: &[(&str, Chip)]) -> ShimReport {
    let own: Vec<&Chip> =
        chips.iter().filter(|(serves, _)| *serves == shim.name()).map(|(_, chip)| chip).collect();
    let described = shim.description();
    let (devices, asked, error) = match found.open_to_compile(shim.name(), "listing", &[], false) {
        Ok(instance) => {
            let devices = devices(&instance, &own);
            let asked = match instance.running() {
                Running::InProcess => "in this process",
                Running::Worker(_) => "in a worker",
            };
            match devices {
                Ok(devices) => (devices, asked, None),
                Err(error) => (Vec::new(), asked, Some(shardwright_build::in_its_words(error))),
            }
        }
        Err(error) => (Vec::new(), "not at all", Some(error)),
    };
    ShimReport {
        name: described.name.clone(),
        vendor: described.vendor.clone(),
        version: described.version.clone(),
        abi: shim.abi_version(),
        path: shim.path().display().to_string(),
        search: match shim.manifest().map(|manifest| manifest.search) {
            Some(Search::Beside) => "next to its manifest",
            Some(Search::System) => "by the system's loader",
            None => "linked into the program",
        }
        .to_owned(),
        vendor_library: described.vendor_library.clone(),
        layout: layout_text(shim.layout()),
        compiles: shim.compiles(),
        runs: shim.runs(),
        facts: shim.chip_facts().to_vec(),
        asked: asked.to_owned(),
        devices,
        help: error.as_ref().and_then(Error::help).map(str::to_owned),
        error: error.map(|error| error.to_string()),
    }
}

fn devices(instance: &ShimInstance, chips: &[&Chip]) -> Result<Vec<DeviceReport>, ShimError> {
    for chip in chips {
        instance.know(chip)?;
    }
    let devices = instance.devices(None)?.into_iter().map(|device| {
        Ok(DeviceReport {
            limits: instance.limits(&device.name)?,
            flags: instance.flags(&device.name)?,
            measured: instance.measured(&device.name)?,
            detail: device.detail,
            kind: match device.kind {
                DeviceKind::Present => "present",
                DeviceKind::Offline => "offline",
                DeviceKind::Simulated => "simulated",
            }
            .to_owned(),
            name: device.name,
            soc: device.soc,
        })
    });
    devices.collect()
}

fn layout_text(layout: &LayoutCheck) -> String {
    match layout {
        LayoutCheck::Skipped(reason) => format!("{} ({reason})", layout.name()),
        _ => layout.name().to_owned(),
    }
}
