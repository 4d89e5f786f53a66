//! The parts of the shim that Qualcomm's library determines.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use shardwright_shim_abi::{
    Buffer, Chip, Compatibility, CompileOutput, DeviceKind, EntryView, Error, Estimate, Fact, Flag,
    Inspection, Limit, LoadedShard, MemoryKinds, Options, Provenance, Result, Verdict, WorkOrderView,
};
use shardwright_shim_npu::artefact::{Format, limits};
use shardwright_shim_npu::power::POWER;
use shardwright_shim_npu::priority::PRIORITY;
use shardwright_shim_npu::shim::SIMULATED;
use shardwright_shim_npu::vendor::Offers;
use shardwright_shim_npu::{Lazy, NpuShim, On, Vendor, Wishes};

use crate::artefact::{FORMAT, Head};
use crate::compatibility::{self, LoadTarget};
use crate::compile;
use crate::driver::{Driver, Settings};
use crate::estimate;
use crate::flags::{self, Flags};
use crate::inspect;
use crate::loaded::{MEMORY_KINDS, Shard};
use crate::log::Level;
use crate::lower;
use crate::memory::{self, Allocator};
use crate::recognise::{Recognised, recognise};
use crate::soc::{self, CodeFor, Soc};

const LIBRARY: &str = "library";
const SKEL: &str = "skel";
const LOG_LEVEL: &str = "log-level";

/// An instance of the shim.
///
/// Options:
/// * `library`: the file libQnnHtp.so or its folder.
/// * `skel`: on a phone, a folder with the processor's half of the library.
/// * `log-level`: level of the vendor's log (`error`, `warning`, `info`, `verbose`, `debug`).
pub type QnnShim = NpuShim<Qnn>;

/// Qualcomm, with its own state of an instance.
pub struct Qnn {
    settings: Settings,
    allocator: Lazy<Allocator>,
}

fn log_level(value: &str) -> Result<Level> {
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
fn use_skel(folder: &str) -> Result<()> {
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

impl Qnn {
    /// Returns the allocator of a phone, or `None` on other machines.
    fn allocator(&self) -> Result<Option<Arc<Allocator>>> {
        if !memory::IS_PHONE {
            return Ok(None);
        }
        Ok(Some(self.allocator.get(Allocator::open)?))
    }
}

/// Describes a device. The text contains the library's build, so a host's cached results of the
/// device become invalid when the library changes.
fn detail(driver: &Driver, soc: &Soc, known: Option<&Recognised>, kind: DeviceKind) -> String {
    let detail = match kind {
        DeviceKind::Present => "this phone's processor",
        DeviceKind::Offline => "compiles, entry points share their weights",
        DeviceKind::Simulated => "the x86-64 library's functional simulation, slow; weights are not shared",
    };
    let id = match (soc.id, known) {
        (Some(id), Some(Recognised { code: CodeFor::Architecture(_), made, .. })) => {
            format!("SoC id {id}, which the compiler does not know: code is made for id {}", made.soc)
        }
        (Some(id), _) => format!("SoC id {id}"),
        (None, Some(known)) => format!("no SoC id: code is made for id {}", known.made.soc),
        (None, None) => "no SoC id".to_owned(),
    };
    let build = driver.backend().library().build_id();
    format!("Hexagon v{}, {id}, compiler {build}; {detail}", soc.arch)
}

impl Vendor for Qnn {
    type Soc = Soc;
    type Driver = Driver;
    type Head = Head;

    const NAME: &'static str = "Qualcomm";
    const FORMAT: Format = FORMAT;
    const OPTIONS: &'static [&'static str] = &[LIBRARY, SKEL, LOG_LEVEL];
    const LOAD_FLAGS: &'static [&'static str] = &[POWER, PRIORITY];
    const MEMORY_KINDS: MemoryKinds = MEMORY_KINDS;
    const HAS_SIMULATOR: bool = cfg!(target_arch = "x86_64");
    const DEVICE_HELP: &'static str = "use a chip that the host has registered: `sm8850`, or `sm8850.simulated` to run on an x86-64 machine";
    const NO_HARDWARE_BUFFER: &'static str = "the library cannot read its descriptor";

    fn facts() -> Vec<Fact> {
        soc::read_facts()
    }

    fn open(options: &Options<'_>) -> Result<Qnn> {
        if let Some(folder) = options.get(SKEL) {
            use_skel(folder)?;
        }
        let settings = Settings {
            library: options.get(LIBRARY).map(PathBuf::from),
            log_level: options.get(LOG_LEVEL).map(log_level).transpose()?,
        };
        Ok(Qnn { settings, allocator: Lazy::default() })
    }

    fn read(chip: &Chip<'_>) -> Result<Soc> {
        Soc::read(chip)
    }

    fn driver(&self) -> Result<Arc<Driver>> {
        Ok(Driver::open(&self.settings)?)
    }

    /// Checks by its number whether this is a phone with that chip. **Untested**.
    fn is_own(shim: &QnnShim, soc: &Soc) -> Result<bool> {
        if !memory::IS_PHONE {
            return Ok(false);
        }
        let own = shim.driver()?.backend().own_soc()?;
        Ok(own.is_some() && own == soc.id)
    }

    fn devices(&self, driver: &Driver, soc: &Soc, is_own: bool) -> Result<Offers> {
        let known = if is_own { None } else { Some(recognise(driver, soc)?) };
        let kinds: &[DeviceKind] = match (is_own, Self::HAS_SIMULATOR) {
            (true, _) => &[DeviceKind::Present],
            (false, true) => &[DeviceKind::Offline, DeviceKind::Simulated],
            (false, false) => &[DeviceKind::Offline],
        };
        Ok(kinds.iter().map(|kind| (*kind, detail(driver, soc, known.as_ref(), *kind))).collect())
    }

    fn limits(_: &On<'_, Self>) -> Result<Vec<Limit>> {
        let masks = Limit::new("repeated-mask-bytes", lower::MOST_REPEATED_BYTES, Provenance::Reported)
            .with_note("on SM8850 and SM8750, a 16-bit mask joined from one part per head was silently added to other rows: with 1,081,344 bytes, but not with 1,048,576; larger masks are broadcast");
        Ok([masks].into_iter().chain(limits()).collect())
    }

    fn flags(on: &On<'_, Self>) -> Result<Vec<Flag>> {
        Ok(flags::schema(&on.soc))
    }

    fn check(on: &On<'_, Self>, entry: EntryView<'_>) -> Result<Vec<Verdict>> {
        Ok(lower::check(entry, &on.soc))
    }

    fn estimate(on: &On<'_, Self>, entry: EntryView<'_>) -> Result<Option<Estimate>> {
        let options = Flags::default().graph_options(&on.soc, None);
        // The simulation cannot load graphs that share weights.
        let shares_weights = !on.is_simulated;
        estimate::estimate(&*on.driver()?, &on.soc, entry, &options, shares_weights)
    }

    fn compile(on: &On<'_, Self>, order: WorkOrderView<'_>, output: &mut CompileOutput<'_>) -> Result<()> {
        compile::compile(on, order, output)
    }

    fn judge(on: &On<'_, Self>, head: &Head) -> Result<Compatibility> {
        let place = LoadTarget { soc: &on.soc, is_simulated: on.is_simulated, library: None };
        let without_library = compatibility::judge(head, place);
        if !matches!(without_library, Compatibility::Optimal) {
            return Ok(without_library);
        }
        let driver = on.driver()?;
        Ok(compatibility::judge(head, LoadTarget { library: Some(driver.versions()), ..place }))
    }

    fn load<'m>(on: &On<'_, Self>, bytes: &'m [u8], wishes: Wishes) -> Result<Box<dyn LoadedShard + 'm>> {
        Ok(Box::new(Shard::load(on, bytes, wishes)?))
    }

    fn run_help(device: &str) -> String {
        format!("compile for `{device}{SIMULATED}` and run it there, or carry the artefact to the phone")
    }

    fn allocate(on: &On<'_, Self>, length: usize, alignment: usize) -> Result<Box<dyn Buffer>> {
        memory::allocate(on.shim.vendor.allocator()?.as_ref(), length, alignment)
    }

    fn import(_: &On<'_, Self>, fd: i32, offset: u64, length: u64) -> Result<Box<dyn Buffer>> {
        memory::import(fd, offset, length)
    }

    fn inspect(shim: &QnnShim, bytes: &[u8]) -> Result<impl Serialize> {
        inspect::inspect(shim, bytes)
    }

    fn inspect_foreign(shim: &QnnShim, bytes: &[u8]) -> Result<Option<Inspection>> {
        inspect::inspect_foreign(shim, bytes)
    }

    fn recover(on: &On<'_, Self>) -> Result<()> {
        let driver = on.driver()?;
        let code = match !on.is_simulated && Self::is_own(on.shim, &on.soc)? {
            true => CodeFor::Own,
            false => recognise(&driver, &on.soc)?.code,
        };
        driver.forget(code);
        driver.device(code)?;
        Ok(())
    }
}
