//! The vendor's library behind the contract.

use std::path::PathBuf;
use std::sync::Arc;

use shardwright_shim_abi::{
    Artefact, Buffer, Chip, Compatibility, CompileOutput, Description, Device, DeviceKind, EntryView, Error,
    Estimate, Fact, Flag, Import, Inspection, Limit, LoadedShard, Options, Provenance, Result, Shim, Verdict,
    WorkOrderView,
};
use shardwright_shim_npu::artefact::{MAX_ENTRIES, MAX_PORTS};
use shardwright_shim_npu::error::{compiles_only, unsupported_memory};
use shardwright_shim_npu::instance::{Chips, Lazy, Named, SIMULATED};
use shardwright_shim_npu::power::POWER;
use shardwright_shim_npu::priority::PRIORITY;
use shardwright_shim_npu::{Power, Priority};

use crate::artefact::FORMAT;
use crate::compatibility::{self, Place};
use crate::compile::{self, Target};
use crate::driver::{Driver, Settings};
use crate::estimate;
use crate::flags::{self, Flags};
use crate::inspect;
use crate::loaded::{Shard, Wishes, memory_kinds};
use crate::log::Level;
use crate::lower;
use crate::memory::{self, Allocator};
use crate::recognise::{Recognised, recognise};
use crate::soc::{self, CodeFor, Soc};

const LIBRARY: &str = "library";
const SKEL: &str = "skel";
const LOG_LEVEL: &str = "log-level";

/// Whether this platform's library is a simulator.
const HAS_SIMULATOR: bool = cfg!(target_arch = "x86_64");

/// An instance of the shim.
///
/// Options:
/// * `library`: the file libQnnHtp.so or its folder.
/// * `skel`: on a phone, a folder with the processor's half of the library.
/// * `log-level`: level of the vendor's log (`error`, `warning`, `info`, `verbose`, `debug`).
pub struct QnnShim {
    settings: Settings,
    driver: Lazy<Driver>,
    allocator: Lazy<Allocator>,
    chips: Chips<Soc>,
}

fn target(named: &Named<Soc>) -> Target<'_> {
    Target { soc: &named.soc, is_simulated: named.is_simulated }
}

fn log_level(value: &str) -> std::result::Result<Level, Error> {
    let levels = [
        ("error", Level::Error),
        ("warning", Level::Warning),
        ("info", Level::Info),
        ("verbose", Level::Verbose),
        ("debug", Level::Debug),
    ];
    let found = levels.iter().find(|(name, _)| *name == value).map(|(_, level)| *level);
    found.ok_or_else(|| Error::invalid_value(LOG_LEVEL, value, levels.map(|(name, _)| name).join(", ")))
}

/// Passes the folder with the processor's half of the library to the transport. **Untested**,
/// because no phone is available here.
fn use_skel(folder: &str) -> std::result::Result<(), Error> {
    let wrong = |expected: &str| Error::invalid_value(SKEL, folder, expected);
    if !memory::IS_PHONE {
        return Err(wrong("no value: only a phone's processor has its own half of the library"));
    }
    if !std::path::Path::new(folder).is_dir() {
        return Err(wrong("a folder"));
    }
    let others = std::env::var("ADSP_LIBRARY_PATH").unwrap_or_default();
    let path = if others.is_empty() { folder.to_owned() } else { format!("{folder};{others}") };
    // SAFETY: the transport is opened after this, and no other code reads this variable. The host
    // makes one call at a time while it opens instances.
    unsafe { std::env::set_var("ADSP_LIBRARY_PATH", path) };
    Ok(())
}

impl QnnShim {
    /// Looks up a device of a registered chip.
    fn named(&self, name: &str) -> std::result::Result<Named<Soc>, Error> {
        let named = self.chips.named(name).filter(|named| HAS_SIMULATOR || !named.is_simulated);
        let help = "use a chip that the host has registered: `sm8850`, or `sm8850.simulated` to run on an x86-64 machine";
        named.ok_or_else(|| Error::unknown_device(name, help))
    }

    fn driver(&self) -> Result<Arc<Driver>> {
        Ok(self.driver.get(|| Driver::open(&self.settings))?)
    }

    /// Returns the allocator of a phone, or `None` on other machines.
    fn allocator(&self) -> Result<Option<Arc<Allocator>>> {
        if !memory::IS_PHONE {
            return Ok(None);
        }
        Ok(Some(self.allocator.get(Allocator::open)?))
    }

    /// Checks by its number whether this is a phone with that chip. **Untested**.
    fn is_own(&self, soc: &Soc) -> Result<bool> {
        if !memory::IS_PHONE {
            return Ok(false);
        }
        let own = self.driver()?.backend().own_soc()?;
        Ok(own.is_some() && own == soc.id)
    }

    /// Describes a device. `build` is the library's build, so a host's cached results of the device
    /// become invalid when the library changes.
    fn device_of(
        build: &str,
        soc: &Soc,
        known: Option<&Recognised>,
        name: String,
        kind: DeviceKind,
    ) -> Device {
        let detail = match kind {
            DeviceKind::Present => "this phone's processor",
            DeviceKind::Offline => "compiles, entry points share their weights",
            DeviceKind::Simulated => {
                "the x86-64 library's functional simulation, slow; weights are not shared"
            }
        };
        let id = match (soc.id, known) {
            (Some(id), Some(Recognised { code: CodeFor::Architecture(_), made, .. })) => {
                format!("SoC id {id}, which the compiler does not know: code is made for id {}", made.soc)
            }
            (Some(id), _) => format!("SoC id {id}"),
            (None, Some(known)) => format!("no SoC id: code is made for id {}", known.made.soc),
            (None, None) => "no SoC id".to_owned(),
        };
        Device {
            name,
            soc: Some(soc.name.clone()),
            detail: Some(format!("Hexagon v{}, {id}, compiler {build}; {detail}", soc.arch)),
            kind,
            memory_kinds: memory_kinds(),
            memory_bytes: 0,
        }
    }
}

impl Shim for QnnShim {
    fn describe() -> Description {
        Description {
            name: "qnn".to_owned(),
            vendor: "Qualcomm".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            // To determine it, a hundred megabytes would be loaded.
            vendor_library: None,
            instance_limit: 0,
        }
    }

    fn facts() -> Vec<Fact> {
        soc::read_facts()
    }

    fn open(options: &Options<'_>) -> Result<Self> {
        options.only(&[LIBRARY, SKEL, LOG_LEVEL])?;
        if let Some(folder) = options.get(SKEL) {
            use_skel(folder)?;
        }
        let settings = Settings {
            library: options.get(LIBRARY).map(PathBuf::from),
            log_level: options.get(LOG_LEVEL).map(log_level).transpose()?,
        };
        Ok(QnnShim { settings, driver: Lazy::default(), allocator: Lazy::default(), chips: Chips::default() })
    }

    fn chip(&self, chip: Chip<'_>) -> Result<()> {
        self.chips.add(chip.name, Soc::read(&chip)?);
        Ok(())
    }

    fn devices(&self, soc: Option<&str>) -> Result<Vec<Device>> {
        let asked = match soc.map(|name| self.chips.get(name)) {
            // Not registered, because the chip is another vendor's.
            Some(None) => return Ok(Vec::new()),
            asked => asked.flatten(),
        };
        // Without a library there are no devices to offer, and the error gives the reason.
        let driver = self.driver()?;
        let build = driver.backend().library().build_id();
        let Some(soc) = asked else {
            let mut devices = Vec::new();
            for soc in self.chips.all() {
                if self.is_own(&soc)? {
                    let name = soc.name.clone();
                    devices.push(Self::device_of(build, &soc, None, name, DeviceKind::Present));
                }
            }
            return Ok(devices);
        };
        if self.is_own(&soc)? {
            return Ok(vec![Self::device_of(build, &soc, None, soc.name.clone(), DeviceKind::Present)]);
        }
        let known = recognise(&driver, &soc)?;
        let device = |name, kind| Self::device_of(build, &soc, Some(&known), name, kind);
        let mut devices = vec![device(soc.name.clone(), DeviceKind::Offline)];
        if HAS_SIMULATOR {
            devices.push(device(format!("{}{SIMULATED}", soc.name), DeviceKind::Simulated));
        }
        Ok(devices)
    }

    fn limits(&self, device: &str) -> Result<Vec<Limit>> {
        self.named(device)?;
        let limit = |name: &str, value: u64, provenance: Provenance, note: &str| {
            Limit::new(name, value, provenance).with_note(note)
        };
        Ok(vec![
            limit(
                "repeated-mask-bytes",
                lower::MOST_REPEATED_BYTES,
                Provenance::Reported,
                "a 16-bit mask joined from one part for each head met the scores of other rows on SM8850 and SM8750, in silence: 1,081,344 bytes did, 1,048,576 did not; larger ones are broadcast",
            ),
            limit("entries", MAX_ENTRIES as u64, Provenance::Declared, "entry points of one artefact"),
            limit("ports", MAX_PORTS as u64, Provenance::Declared, "inputs and outputs of one entry point"),
        ])
    }

    fn flags(&self, device: &str) -> Result<Vec<Flag>> {
        Ok(flags::schema(&self.named(device)?.soc))
    }

    fn check(&self, device: &str, entry: EntryView<'_>) -> Result<Vec<Verdict>> {
        Ok(lower::check(entry, &self.named(device)?.soc))
    }

    fn estimate(&self, device: &str, entry: EntryView<'_>) -> Result<Option<Estimate>> {
        let named = self.named(device)?;
        let options = Flags::default().graph_options(&named.soc, None);
        // The simulation cannot load graphs that share weights.
        let shares_weights = !named.is_simulated;
        estimate::estimate(&*self.driver()?, &named.soc, entry, &options, shares_weights)
    }

    fn compile(&self, device: &str, order: WorkOrderView<'_>, output: &mut CompileOutput<'_>) -> Result<()> {
        let named = self.named(device)?;
        compile::compile(&*self.driver()?, target(&named), order, output)
    }

    fn compatibility(&self, device: &str, head: &[u8]) -> Result<Compatibility> {
        let named = self.named(device)?;
        let head = FORMAT.read_head(head)?;
        let place = Place { soc: &named.soc, is_simulated: named.is_simulated, library: None };
        let without_library = compatibility::judge(&head, place);
        if !matches!(without_library, Compatibility::Optimal) {
            return Ok(without_library);
        }
        let driver = self.driver()?;
        Ok(compatibility::judge(&head, Place { library: Some(driver.versions()), ..place }))
    }

    fn load<'m>(
        &'m self,
        device: &str,
        artefact: Artefact<'m>,
        options: &Options<'_>,
    ) -> Result<Box<dyn LoadedShard + 'm>> {
        let named = self.named(device)?;
        options.only(&[POWER, PRIORITY])?;
        let wishes = Wishes { power: Power::read(options)?, priority: Priority::read(options)? };
        if !named.is_simulated && !self.is_own(&named.soc)? {
            let device = named.soc.name.clone();
            let help = format!(
                "compile for `{device}{SIMULATED}` and run it there, or carry the artefact to the phone"
            );
            return Err(compiles_only(&device, &help));
        }
        Ok(Box::new(Shard::load(&*self.driver()?, target(&named), artefact.bytes(), wishes)?))
    }

    fn allocate(&self, device: &str, length: usize, alignment: usize) -> Result<Box<dyn Buffer>> {
        self.named(device)?;
        memory::allocate(self.allocator()?.as_ref(), length, alignment)
    }

    fn import(&self, device: &str, import: Import) -> Result<Box<dyn Buffer>> {
        self.named(device)?;
        match import {
            Import::DmaBuf { fd, offset, length } => Ok(memory::import(fd, offset, length)?),
            Import::HardwareBuffer { .. } => {
                Err(unsupported_memory("an AHardwareBuffer", "the library cannot read its descriptor"))
            }
        }
    }

    fn inspect(&self, bytes: &[u8]) -> Result<Option<Inspection>> {
        inspect::inspect(bytes, || self.driver())
    }

    fn recover(&self, device: &str) -> Result<()> {
        let named = self.named(device)?;
        let driver = self.driver()?;
        let code = match !named.is_simulated && self.is_own(&named.soc)? {
            true => CodeFor::Own,
            false => recognise(&driver, &named.soc)?.code,
        };
        driver.forget(code);
        driver.device(code)?;
        Ok(())
    }
}
