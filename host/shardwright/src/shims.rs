use serde::Serialize;
use shardwright_build::graph::target::{FlagSchema, Limit};
use shardwright_build::shims::{DeviceKind, LayoutCheck, ShimRegistry};

use crate::SearchPath;

/// The shims there are, and what was passed over.
#[derive(Clone, Debug, Serialize)]
pub struct ShimsReport {
    /// Shims that can be used.
    pub shims: Vec<ShimReport>,
    /// Libraries and manifests that cannot, each with the reason.
    pub skipped: Vec<SkippedReport>,
}

/// One usable shim.
#[derive(Clone, Debug, Serialize)]
pub struct ShimReport {
    /// Its name.
    pub name: String,
    /// Who made it.
    pub vendor: String,
    /// Its version.
    pub version: String,
    /// Contract version that was agreed on.
    pub abi: String,
    /// Where it lies.
    pub path: String,
    /// The vendor's library it drives, with version.
    pub vendor_library: Option<String>,
    /// Outcome of the layout comparison.
    pub layout: String,
    /// Whether it can compile.
    pub compiles: bool,
    /// Whether it can run what it compiled.
    pub runs: bool,
    /// Its devices in this machine.
    pub devices: Vec<DeviceReport>,
    /// Why devices could not be asked for.
    pub error: Option<String>,
}

/// One device.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    /// Its name.
    pub name: String,
    /// The chip, where it is one of a chip.
    pub soc: Option<String>,
    /// `present`, `offline` or `simulated`.
    pub kind: String,
    /// What it cannot exceed.
    pub limits: Vec<Limit>,
    /// Flags of its compiler.
    pub flags: Vec<FlagSchema>,
}

/// Something that is no usable shim.
#[derive(Clone, Debug, Serialize)]
pub struct SkippedReport {
    /// Where it lies.
    pub path: String,
    /// Why it was passed over.
    pub reason: String,
    /// What would help.
    pub help: Option<String>,
}

/// Every shim that is found, with its devices, and everything that was passed over with the reason.
pub fn list_shims(search: &SearchPath) -> ShimsReport {
    report(&registry(search))
}

/// Opens the directories of `search`; with feature `static-cpu` the linked CPU shim is there too.
pub(crate) fn registry(search: &SearchPath) -> ShimRegistry {
    let mut builder = ShimRegistry::builder();
    #[cfg(feature = "static-cpu")]
    {
        builder = builder.linked("cpu", shardwright_shim_cpu::shim_entry());
    }
    for directory in &search.shims {
        builder = builder.directory(directory);
    }
    builder.build()
}

/// Asks every shim about itself and its devices.
fn report(registry: &ShimRegistry) -> ShimsReport {
    let shims = registry
        .shims()
        .iter()
        .map(|shim| {
            let described = shim.description();
            let devices = shim.open("listing", &[]).and_then(|instance| {
                let devices = instance.devices(None)?;
                devices
                    .into_iter()
                    .map(|device| {
                        Ok(DeviceReport {
                            limits: instance.limits(&device.name)?,
                            flags: instance.flags(&device.name)?,
                            kind: match device.kind {
                                DeviceKind::Present => "present",
                                DeviceKind::Offline => "offline",
                                DeviceKind::Simulated => "simulated",
                            }
                            .to_owned(),
                            name: device.name,
                            soc: device.soc,
                        })
                    })
                    .collect::<Result<Vec<_>, _>>()
            });
            let (devices, error) = match devices {
                Ok(devices) => (devices, None),
                Err(error) => (Vec::new(), Some(error.to_string())),
            };
            ShimReport {
                name: described.name.clone(),
                vendor: described.vendor.clone(),
                version: described.version.clone(),
                abi: shim.abi_version(),
                path: shim.path().display().to_string(),
                vendor_library: described.vendor_library.clone(),
                layout: layout_text(shim.layout()),
                compiles: shim.compiles(),
                runs: shim.runs(),
                devices,
                error,
            }
        })
        .collect();
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

fn layout_text(layout: &LayoutCheck) -> String {
    match layout {
        LayoutCheck::Skipped(reason) => format!("{} ({reason})", layout.name()),
        _ => layout.name().to_owned(),
    }
}
