//! A machine described by a file that `doctor` wrote there, for queries about it on another
//! machine.

use std::path::Path;

use serde::{Deserialize, Serialize};
use shardwright_bundle::{Bundle, ShardEntry, Variant};
use shardwright_files::read_named;
use shardwright_selection::{Machine, ShardStanding, Standing};
use shardwright_shims::Chip;
use shardwright_vocabulary::{DeviceKind, Error, ErrorKind, Result};

use crate::report::DoctorReport;

/// Version of the file format.
const VERSION: u32 = 1;

/// Maximum size of such a file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A machine, described by its shims and their devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DescribedMachine {
    device: u32,
    /// The version of the program that wrote the file.
    pub version: String,
    /// Operating system and architecture, such as `linux aarch64`.
    pub system: String,
    /// Profiles of chips that match the machine's own names.
    pub chips: Vec<String>,
    /// The shims on the machine.
    pub shims: Vec<DescribedShim>,
}

/// A shim on the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DescribedShim {
    pub name: String,
    pub version: String,
    /// The vendor's library that the shim uses, with its version.
    pub vendor_library: Option<String>,
    pub devices: Vec<DescribedDevice>,
    /// The reason why devices could not be queried.
    pub error: Option<String>,
}

/// A device of a shim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DescribedDevice {
    pub name: String,
    /// The chip, if the device belongs to one.
    pub soc: Option<String>,
    /// One of `present`, `offline` or `simulated`.
    pub kind: String,
}

impl DescribedMachine {
    /// Extracts the machine from a report.
    pub fn of(report: &DoctorReport) -> Self {
        let device = |device: &crate::DeviceReport| DescribedDevice {
            name: device.name.clone(),
            soc: device.soc.clone(),
            kind: device.kind.clone(),
        };
        let shim = |shim: &crate::ShimReport| DescribedShim {
            name: shim.name.clone(),
            version: shim.version.clone(),
            vendor_library: shim.vendor_library.clone(),
            devices: shim.devices.iter().map(device).collect(),
            error: shim.error.clone(),
        };
        DescribedMachine {
            device: VERSION,
            version: report.version.clone(),
            system: report.machine.system.clone(),
            chips: report.machine.profiles.clone(),
            shims: report.shims.shims.iter().map(shim).collect(),
        }
    }

    /// Returns whether a file begins like the JSON of a description.
    pub fn begins(bytes: &[u8]) -> bool {
        let system = br#","system":"#;
        bytes.starts_with(br#"{"device":"#) && bytes.windows(system.len()).any(|window| window == system)
    }

    /// Reads a file that `doctor --report` wrote.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = read_named(path, FILE_BYTES_MAX)?;
        let wrong = |what: String| {
            Error::new(ErrorKind::Invalid, format!("{}: {what}", path.display()))
                .with_help("create one with `shardwright doctor --report FILE` on that machine")
        };
        let machine: DescribedMachine = serde_json::from_slice(&bytes)
            .map_err(|error| wrong(format!("not a machine description: {error}")))?;
        match machine.device {
            VERSION => Ok(machine),
            other => Err(wrong(format!("expected version {VERSION}, got version {other}"))),
        }
    }
}

impl DescribedMachine {
    fn judged(&self, variant: &Variant, shard: &ShardEntry) -> ShardStanding {
        let by = &shard.compiled_by;
        let absent = |hindered, reason: String, help: Option<String>| ShardStanding {
            standing: Standing::Absent,
            device: by.device.clone(),
            kind: None,
            hindered,
            reason: Some(reason),
            help,
        };
        let Some(shim) = self.shims.iter().find(|shim| shim.name == by.shim) else {
            // A machine with another chip may need another shim.
            let is_other = !self.chips.is_empty() && !self.chips.iter().any(|chip| variant.is_for(chip));
            let help = match is_other && by.shim == shard.target.shim && shard.target.name == *variant.soc {
                true => format!("compile the checkpoint for {} too", self.chips.join(" or ")),
                false => "put the shim into a directory of shims on that machine".to_owned(),
            };
            return absent(false, format!("shim `{}` is missing there", by.shim), Some(help));
        };
        if let Some(error) = &shim.error {
            return absent(true, error.clone(), None);
        }
        let Some(device) = shim.devices.iter().find(|device| device.name == by.device) else {
            let names: Vec<&str> = shim.devices.iter().map(|device| device.name.as_str()).collect();
            let help = match names.as_slice() {
                [] => "it has no devices there".to_owned(),
                names => format!(
                    "available devices: {}; only the shim on that machine can tell whether one of them supports it",
                    names.join(", ")
                ),
            };
            let reason = format!("shim `{}` has no device `{}` there", by.shim, by.device);
            return absent(false, reason, Some(help));
        };
        let kind = match device.kind.as_str() {
            "present" => DeviceKind::Present,
            "simulated" => DeviceKind::Simulated,
            _ => DeviceKind::Offline,
        };
        let reason = (shim.version != by.version).then(|| {
            format!(
                "compiled by {} {}, but version {} is there; whether it supports the artefact is checked on opening",
                by.shim, by.version, shim.version
            )
        });
        match kind {
            DeviceKind::Offline => ShardStanding {
                standing: Standing::Offline,
                kind: Some(kind),
                ..absent(false, "its shim only compiles for it there".to_owned(), None)
            },
            DeviceKind::Present | DeviceKind::Simulated => ShardStanding {
                standing: Standing::Own,
                device: by.device.clone(),
                kind: Some(kind),
                hindered: false,
                reason,
                help: None,
            },
        }
    }
}

impl Machine for DescribedMachine {
    fn stands(&mut self, _: &Bundle, variant: &Variant, shard: &ShardEntry) -> Result<ShardStanding> {
        Ok(self.judged(variant, shard))
    }

    fn chip(&self) -> Option<&Chip> {
        None
    }
}
