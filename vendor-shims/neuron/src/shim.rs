//! Implements the contract with the vendor's library.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use shardwright_neuron_containers::Version;
use shardwright_shim_abi::{
    Artefact, Buffer, Chip, Compatibility, CompileOutput, Description, Device, DeviceKind, EntryView, Error,
    Estimate, Fact, Flag, Import, Inspection, Limit, LoadedShard, Options, Provenance, Result, Shim, Verdict,
    WorkOrderView,
};
use shardwright_shim_npu::Power;
use shardwright_shim_npu::artefact::{MAX_ENTRIES, MAX_PORTS};
use shardwright_shim_npu::error::{compiles_only, unsupported_memory};
use shardwright_shim_npu::instance::{Chips, Lazy, Named, SIMULATED};
use shardwright_shim_npu::power::POWER;

use crate::artefact::FORMAT;
use crate::compatibility::{self, Place};
use crate::compile;
use crate::driver::{Driver, Settings};
use crate::flags::{self, Trials};
use crate::inspect;
use crate::loaded::Shard;
use crate::lower::{self, Lowering, Target};
use crate::memory::{self, SharedBuffer, memory_kinds};
use crate::soc::{self, Soc};

const LIBRARY: &str = "library";
const LOWERING: &str = "lowering";
const STAND_IN: &str = "stand-in";
/// Variable that selects the lowering if the option does not.
const LOWERING_VARIABLE: &str = "SHARDWRIGHT_NEURON_LOWERING";

/// An instance of the shim.
///
/// Options:
///
/// * `library`: the adapter's file or its folder.
/// * `lowering` (`lean` or `plain`): how entries are lowered. The variable
///   `SHARDWRIGHT_NEURON_LOWERING` sets it otherwise.
/// * `stand-in`: a simulator of the library, relative to the shim's folder. It is used if neither
///   the option `library` nor the variable names a library.
pub struct NeuronShim {
    settings: Settings,
    driver: Lazy<Driver>,
    /// Code that was compiled to determine the effects of flags.
    trials: Mutex<Trials>,
    chips: Chips<Soc>,
}

fn unknown(name: &str) -> Error {
    let help = "use a chip that the host has registered: `mt6989` with MediaTek's library, `mt6989.simulated` with a simulator of it";
    Error::unknown_device(name, help)
}

fn lowering(place: &str, value: &str) -> std::result::Result<Lowering, Error> {
    Lowering::by_name(value).ok_or_else(|| Error::invalid_value(place, value, "lean, plain"))
}

impl NeuronShim {
    fn driver(&self) -> Result<Arc<Driver>> {
        Ok(self.driver.get(|| Driver::open(&self.settings))?)
    }

    /// Returns a device of a known chip.
    fn named(&self, name: &str) -> std::result::Result<Named<Soc>, Error> {
        self.chips.named(name).ok_or_else(|| unknown(name))
    }

    /// Returns the device and the library for it. A simulator serves only simulated devices, and
    /// MediaTek's library only real ones.
    fn device(&self, name: &str) -> Result<(Named<Soc>, Arc<Driver>)> {
        let named = self.named(name)?;
        let driver = self.driver()?;
        match named.is_simulated == driver.library().simulator().is_some() {
            true => Ok((named.clone(), driver.playing(&named.soc)?)),
            false => Err(unknown(name)),
        }
    }

    fn detail(&self, soc: &Soc, driver: &Driver, kind: DeviceKind) -> String {
        let place = match kind {
            DeviceKind::Present => "this phone's",
            DeviceKind::Offline => "compiles only",
            DeviceKind::Simulated => {
                "integers as TFLite defines them; says nothing of a chip's time or compiler"
            }
        };
        format!(
            "{}, {}, {} lowering; {place}",
            soc.platform,
            driver.library().describe(),
            self.settings.lowering.name()
        )
    }
}

fn target<'a>(named: &'a Named<Soc>, driver: &Driver) -> Target<'a> {
    Target { soc: &named.soc, version: driver.library().version() }
}

/// Estimated bytes of an operation in an artefact, excluding constants: its operands and
/// parameters, in the simulator's format.
const OPERATION_BYTES: u64 = 1024;

impl Shim for NeuronShim {
    fn describe() -> Description {
        Description {
            name: "neuron".to_owned(),
            vendor: "MediaTek".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            // This would require opening the library, whose initialisers may crash. The devices
            // name it.
            vendor_library: None,
            instance_limit: 0,
        }
    }

    fn facts() -> Vec<Fact> {
        soc::read_facts()
    }

    fn open(options: &Options<'_>) -> Result<Self> {
        options.only(&[LIBRARY, LOWERING, STAND_IN])?;
        let variable = std::env::var(LOWERING_VARIABLE).ok().filter(|value| !value.is_empty());
        let lowering = match (options.get(LOWERING), &variable) {
            (Some(value), _) => lowering(LOWERING, value)?,
            (None, Some(value)) => lowering(LOWERING_VARIABLE, value)?,
            (None, None) => Lowering::default(),
        };
        let path = |name| options.get(name).map(PathBuf::from);
        let settings = Settings { library: path(LIBRARY), stand_in: path(STAND_IN), lowering };
        Ok(NeuronShim {
            settings,
            driver: Lazy::default(),
            trials: Mutex::default(),
            chips: Chips::default(),
        })
    }

    fn chip(&self, chip: Chip<'_>) -> Result<()> {
        self.chips.add(chip.name, Soc::read(&chip)?);
        Ok(())
    }

    fn devices(&self, soc: Option<&str>) -> Result<Vec<Device>> {
        let chips = match soc.map(|name| self.chips.get(name)) {
            // The chip has no known profile, so it is another vendor's chip.
            Some(None) => return Ok(Vec::new()),
            Some(Some(soc)) => vec![soc],
            None => {
                let mut chips = self.chips.all();
                chips.retain(|soc| soc.is_of_this_machine());
                chips
            }
        };
        // Without a library there are no devices. The error contains the reason.
        let driver = self.driver()?;
        let device = |soc: Arc<Soc>| -> Result<Device> {
            let driver = driver.playing(&soc)?;
            let (name, kind) = match driver.library().simulator() {
                Some(_) => (format!("{}{SIMULATED}", soc.name), DeviceKind::Simulated),
                None if soc.is_of_this_machine() => (soc.name.clone(), DeviceKind::Present),
                None => (soc.name.clone(), DeviceKind::Offline),
            };
            Ok(Device {
                name,
                soc: Some(soc.name.clone()),
                detail: Some(self.detail(&soc, &driver, kind)),
                kind,
                memory_kinds: memory_kinds(),
                memory_bytes: 0,
            })
        };
        chips.into_iter().map(device).collect()
    }

    fn limits(&self, device: &str) -> Result<Vec<Limit>> {
        let (_, driver) = self.device(device)?;
        let limit = |name: &str, value: u64, note: &str| {
            Limit::new(name, value, Provenance::Declared).with_note(note)
        };
        let mut limits = vec![
            limit("entries", MAX_ENTRIES as u64, "entry points of one artefact"),
            limit("ports", MAX_PORTS as u64, "inputs and outputs of one entry point"),
        ];
        if let Some(kilobytes) = driver.library().l1_kilobytes() {
            limits.push(limit(
                "l1-kilobytes",
                kilobytes.into(),
                "what the library says of the memory nearest to the multipliers",
            ));
        }
        Ok(limits)
    }

    fn flags(&self, device: &str) -> Result<Vec<Flag>> {
        let (named, driver) = self.device(device)?;
        let version = driver.library().version();
        let version = Version::new(version.major, version.minor, version.patch);
        Ok(flags::schema(&named.soc, Some(version)))
    }

    fn check(&self, device: &str, entry: EntryView<'_>) -> Result<Vec<Verdict>> {
        let (named, driver) = self.device(device)?;
        Ok(lower::check(entry, &target(&named, &driver)))
    }

    /// Estimates operations and bytes, and the time by the chip's [roofline](crate::roofline).
    /// Without a roofline, every node is listed as uncosted.
    fn estimate(&self, device: &str, entry: EntryView<'_>) -> Result<Option<Estimate>> {
        let (named, driver) = self.device(device)?;
        let lowered = lower::lower(entry, &target(&named, &driver), self.settings.lowering)?;
        let operations = lowered.graph.operations.len() as u64;
        let roofline = named.soc.roofline.as_ref();
        let time = roofline.and_then(|roofline| roofline.microseconds(&lowered.graph));
        Ok(Some(Estimate {
            time_microseconds: time.unwrap_or(0),
            provenance: Provenance::Modelled,
            bytes_moved: lowered.graph.moved_bytes(),
            uncosted: match time {
                Some(_) => Vec::new(),
                None => (0..entry.nodes().len() as u64).collect(),
            },
            operations,
            artefact_bytes: lowered
                .graph
                .constant_bytes()
                .saturating_add(operations.saturating_mul(OPERATION_BYTES)),
            // Each entry point has its own copy of its weights.
            shared_bytes: 0,
        }))
    }

    fn compile(&self, device: &str, order: WorkOrderView<'_>, output: &mut CompileOutput<'_>) -> Result<()> {
        let (named, driver) = self.device(device)?;
        let mut trials = self.trials.lock().unwrap_or_else(PoisonError::into_inner);
        let target = target(&named, &driver);
        compile::compile(&driver, &target, self.settings.lowering, order, &mut trials, output)
    }

    fn compatibility(&self, device: &str, head: &[u8]) -> Result<Compatibility> {
        let (named, driver) = self.device(device)?;
        let head = FORMAT.read_head(head)?;
        Ok(compatibility::judge(&head, Place { soc: &named.soc.platform, library: driver.maker() }))
    }

    fn load<'m>(
        &'m self,
        device: &str,
        artefact: Artefact<'m>,
        options: &Options<'_>,
    ) -> Result<Box<dyn LoadedShard + 'm>> {
        options.only(&[POWER])?;
        let power = Power::read(options)?;
        let (named, driver) = self.device(device)?;
        if !named.is_simulated && !named.soc.is_of_this_machine() {
            let device = named.soc.name.clone();
            let help = format!(
                "carry the artefact to a phone with {device}, or open a simulator of the library and use `{device}{SIMULATED}`"
            );
            return Err(compiles_only(&device, &help));
        }
        Ok(Box::new(Shard::load(&driver, &named.soc.platform, artefact.bytes(), power)?))
    }

    fn allocate(&self, device: &str, length: usize, alignment: usize) -> Result<Box<dyn Buffer>> {
        self.named(device)?;
        memory::allocate(length, alignment)
    }

    fn import(&self, device: &str, import: Import) -> Result<Box<dyn Buffer>> {
        let (_, driver) = self.device(device)?;
        match import {
            Import::DmaBuf { fd, offset, length } => {
                Ok(Box::new(SharedBuffer::import(driver.library(), fd, offset, length)?))
            }
            Import::HardwareBuffer { .. } => {
                Err(unsupported_memory("an AHardwareBuffer", "it exists only on Android and is untested"))
            }
        }
    }

    fn inspect(&self, bytes: &[u8]) -> Result<Option<Inspection>> {
        inspect::inspect(bytes)
    }

    /// Does not recreate anything: the handles of a lost device are dropped with their shards, and
    /// the library opens the device again with the next shard.
    fn recover(&self, device: &str) -> Result<()> {
        self.device(device).map(drop)
    }
}
