//! The shim of a neural processor, for any [`Vendor`]: known chips and their devices, options,
//! artefacts' heads, and reports.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use shardwright_shim_abi::{
    Artefact, Buffer, Chip, Compatibility, CompileOutput, Description, Device, DeviceKind, EntryView, Error,
    Estimate, Fact, Flag, Import, Inspection, Limit, LoadedShard, Options, Result, Shim, Verdict,
    WorkOrderView,
};

use crate::error::{compiles_only, unsupported_memory};
use crate::vendor::{Vendor, Wishes};
use crate::{Choice as _, Lazy, Power, Priority};

/// Suffix of the name of a simulated device.
pub const SIMULATED: &str = ".simulated";

/// An instance of a vendor's shim.
pub struct NpuShim<V: Vendor> {
    pub vendor: V,
    driver: Lazy<V::Driver>,
    /// The chips that the host passed, by the names of their profiles.
    chips: Mutex<Vec<(String, Arc<V::Soc>)>>,
}

/// A device of a known chip, during one call.
pub struct On<'s, V: Vendor> {
    pub shim: &'s NpuShim<V>,
    pub soc: Arc<V::Soc>,
    pub is_simulated: bool,
    /// The library as prepared for this device, if [`Vendor::enter`] prepared it.
    pub prepared: Option<Arc<V::Driver>>,
}

impl<V: Vendor> On<'_, V> {
    /// Returns the library. Opens it first if necessary.
    pub fn driver(&self) -> Result<Arc<V::Driver>> {
        self.prepared.clone().map_or_else(|| self.shim.driver(), Ok)
    }
}

/// Describes a file of this format by an object that serialises to JSON.
pub fn inspection(format: String, content: &impl Serialize) -> Result<Inspection> {
    let document = serde_json::to_string(content).map_err(|error| Error::internal(error.to_string()))?;
    Ok(Inspection { format, document })
}

impl<V: Vendor> NpuShim<V> {
    /// Returns the library. Opens it first if necessary.
    pub fn driver(&self) -> Result<Arc<V::Driver>> {
        self.driver.get(|| self.vendor.driver())
    }

    fn chips(&self) -> MutexGuard<'_, Vec<(String, Arc<V::Soc>)>> {
        self.chips.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a device of a known chip.
    fn named(&self, name: &str) -> Result<On<'_, V>> {
        let (chip, is_simulated) = match name.strip_suffix(SIMULATED) {
            Some(chip) => (chip, true),
            None => (name, false),
        };
        let soc = self.chips().iter().find(|(known, _)| known == chip).map(|(_, soc)| soc.clone());
        match soc {
            Some(soc) if V::HAS_SIMULATOR || !is_simulated => {
                Ok(On { shim: self, soc, is_simulated, prepared: None })
            }
            _ => Err(Error::unknown_device(name, V::DEVICE_HELP)),
        }
    }

    /// Returns a device of a known chip that the library has.
    fn on(&self, name: &str) -> Result<On<'_, V>> {
        let mut on = self.named(name)?;
        match V::enter(&mut on)? {
            true => Ok(on),
            false => Err(Error::unknown_device(name, V::DEVICE_HELP)),
        }
    }
}

impl<V: Vendor> Shim for NpuShim<V> {
    fn describe() -> Description {
        Description {
            name: V::FORMAT.shim.to_owned(),
            vendor: V::NAME.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            // This would require opening the library, which may be a hundred megabytes and whose
            // initialisers may crash. The devices name it.
            vendor_library: None,
            instance_limit: 0,
        }
    }

    fn facts() -> Vec<Fact> {
        V::facts()
    }

    fn open(options: &Options<'_>) -> Result<Self> {
        options.only(V::OPTIONS)?;
        Ok(NpuShim { vendor: V::open(options)?, driver: Lazy::default(), chips: Mutex::default() })
    }

    fn chip(&self, chip: Chip<'_>) -> Result<()> {
        let soc = Arc::new(V::read(&chip)?);
        let mut chips = self.chips();
        chips.retain(|(known, _)| known != chip.name);
        chips.push((chip.name.to_owned(), soc));
        Ok(())
    }

    fn devices(&self, soc: Option<&str>) -> Result<Vec<Device>> {
        let mut chips = self.chips().clone();
        chips.retain(|(name, _)| soc.is_none_or(|soc| soc == name));
        // Not registered, because the chip is another vendor's.
        if soc.is_some() && chips.is_empty() {
            return Ok(Vec::new());
        }
        // Without a library there are no devices to offer, and the error gives the reason.
        let driver = self.driver()?;
        let mut devices = Vec::new();
        for (name, chip) in chips {
            let is_own = V::is_own(self, &chip)?;
            // Without a named chip, only this machine's devices are listed.
            if soc.is_none() && !is_own {
                continue;
            }
            for (kind, detail) in self.vendor.devices(&driver, &chip, is_own)? {
                let suffix = if kind == DeviceKind::Simulated { SIMULATED } else { "" };
                devices.push(Device {
                    name: format!("{name}{suffix}"),
                    soc: Some(name.clone()),
                    detail: Some(detail),
                    kind,
                    memory_kinds: V::MEMORY_KINDS,
                    memory_bytes: 0,
                });
            }
        }
        Ok(devices)
    }

    fn limits(&self, device: &str) -> Result<Vec<Limit>> {
        V::limits(&self.on(device)?)
    }

    fn flags(&self, device: &str) -> Result<Vec<Flag>> {
        V::flags(&self.on(device)?)
    }

    fn check(&self, device: &str, entry: EntryView<'_>) -> Result<Vec<Verdict>> {
        V::check(&self.on(device)?, entry)
    }

    fn estimate(&self, device: &str, entry: EntryView<'_>) -> Result<Option<Estimate>> {
        V::estimate(&self.on(device)?, entry)
    }

    fn compile(&self, device: &str, order: WorkOrderView<'_>, output: &mut CompileOutput<'_>) -> Result<()> {
        V::compile(&self.on(device)?, order, output)
    }

    fn compatibility(&self, device: &str, head: &[u8]) -> Result<Compatibility> {
        let on = self.on(device)?;
        let head = V::FORMAT.read_head(head)?;
        head.known(&V::FORMAT).map_or_else(Ok, |head| V::judge(&on, head))
    }

    fn load<'m>(
        &'m self,
        device: &str,
        artefact: Artefact<'m>,
        options: &Options<'_>,
    ) -> Result<Box<dyn LoadedShard + 'm>> {
        let on = self.on(device)?;
        options.only(V::LOAD_FLAGS)?;
        let wishes = Wishes { power: Power::read(options)?, priority: Priority::read(options)? };
        if !on.is_simulated && !V::is_own(self, &on.soc)? {
            return Err(compiles_only(device, &V::run_help(device)));
        }
        V::load(&on, artefact.bytes(), wishes)
    }

    fn allocate(&self, device: &str, length: usize, alignment: usize) -> Result<Box<dyn Buffer>> {
        V::allocate(&self.named(device)?, length, alignment)
    }

    fn import(&self, device: &str, import: Import) -> Result<Box<dyn Buffer>> {
        let on = self.on(device)?;
        match import {
            Import::DmaBuf { fd, offset, length } => V::import(&on, fd, offset, length),
            Import::HardwareBuffer { .. } => {
                Err(unsupported_memory("an AHardwareBuffer", V::NO_HARDWARE_BUFFER))
            }
        }
    }

    fn inspect(&self, bytes: &[u8]) -> Result<Option<Inspection>> {
        if !V::FORMAT.is_ours(bytes) {
            return V::inspect_foreign(self, bytes);
        }
        inspection(format!("{}-artefact", V::FORMAT.shim), &V::inspect(self, bytes)?).map(Some)
    }

    fn recover(&self, device: &str) -> Result<()> {
        V::recover(&self.on(device)?)
    }
}
