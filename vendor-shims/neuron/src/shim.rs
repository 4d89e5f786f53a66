//! The parts of the shim that MediaTek's library determines.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use shardwright_shim_abi::{
    Buffer, Chip, Compatibility, CompileOutput, DeviceKind, EntryView, Error, Estimate, Fact, Flag,
    Inspection, Limit, LoadedShard, MemoryKinds, Options, Provenance, Result, Verdict, WorkOrderView,
};
use shardwright_shim_npu::artefact::{Format, limits};
use shardwright_shim_npu::power::POWER;
use shardwright_shim_npu::shim::SIMULATED;
use shardwright_shim_npu::vendor::Offers;
use shardwright_shim_npu::{NpuShim, On, Vendor, Wishes};

use crate::artefact::{FORMAT, Head};
use crate::compatibility;
use crate::compile;
use crate::driver::Driver;
use crate::flags::{self, Trials};
use crate::inspect;
use crate::library::{Library, LibraryChoice};
use crate::loaded::Shard;
use crate::lower::{self, Lowering, Target};
use crate::memory::{self, MEMORY_KINDS, SharedBuffer};
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
pub type NeuronShim = NpuShim<Neuron>;

/// MediaTek, with its own state of an instance.
pub struct Neuron {
    library: Option<PathBuf>,
    stand_in: Option<PathBuf>,
    lowering: Lowering,
    /// Code that was compiled to determine the effects of flags.
    trials: Mutex<Trials>,
}

fn lowering(place: &str, value: &str) -> Result<Lowering> {
    Lowering::by_name(value).ok_or_else(|| Error::invalid_value(place, value, "lean, plain"))
}

fn target<'a>(on: &'a On<'_, Neuron>, driver: &Driver) -> Target<'a> {
    Target { soc: &on.soc, version: driver.library().version() }
}

/// Estimated bytes of an operation in an artefact, excluding constants: its operands and
/// parameters, in the simulator's format.
const OPERATION_BYTES: u64 = 1024;

impl Vendor for Neuron {
    type Soc = Soc;
    type Driver = Driver;
    type Head = Head;

    const NAME: &'static str = "MediaTek";
    const FORMAT: Format = FORMAT;
    const OPTIONS: &'static [&'static str] = &[LIBRARY, LOWERING, STAND_IN];
    const LOAD_FLAGS: &'static [&'static str] = &[POWER];
    const MEMORY_KINDS: MemoryKinds = MEMORY_KINDS;
    const DEVICE_HELP: &'static str = "use a chip that the host has registered: `mt6989` with MediaTek's library, `mt6989.simulated` with a simulator of it";
    const NO_HARDWARE_BUFFER: &'static str = "it exists only on Android and is untested";

    fn facts() -> Vec<Fact> {
        soc::read_facts()
    }

    fn open(options: &Options<'_>) -> Result<Neuron> {
        let variable = std::env::var(LOWERING_VARIABLE).ok().filter(|value| !value.is_empty());
        let lowering = match (options.get(LOWERING), &variable) {
            (Some(value), _) => lowering(LOWERING, value)?,
            (None, Some(value)) => lowering(LOWERING_VARIABLE, value)?,
            (None, None) => Lowering::default(),
        };
        let path = |name| options.get(name).map(PathBuf::from);
        Ok(Neuron { library: path(LIBRARY), stand_in: path(STAND_IN), lowering, trials: Mutex::default() })
    }

    fn read(chip: &Chip<'_>) -> Result<Soc> {
        Soc::read(chip)
    }

    fn driver(&self) -> Result<Arc<Driver>> {
        let choice = LibraryChoice::here(self.library.clone(), self.stand_in.clone());
        Ok(Driver::of(Library::open(&choice)?))
    }

    fn is_own(_: &NeuronShim, soc: &Soc) -> Result<bool> {
        Ok(soc.is_of_this_machine())
    }

    fn devices(&self, driver: &Driver, soc: &Soc, is_own: bool) -> Result<Offers> {
        let driver = driver.playing(soc)?;
        let (kind, place) = match driver.library().simulator() {
            Some(_) => {
                let place = "integers as defined by TFLite; does not simulate a chip's time or compiler";
                (DeviceKind::Simulated, place)
            }
            None if is_own => (DeviceKind::Present, "this phone's"),
            None => (DeviceKind::Offline, "compiles only"),
        };
        let (library, lowering) = (driver.library().describe(), self.lowering.name());
        Ok(vec![(kind, format!("{}, {library}, {lowering} lowering; {place}", soc.platform))])
    }

    /// A simulator serves only simulated devices, and MediaTek's library only real ones.
    fn enter(on: &mut On<'_, Self>) -> Result<bool> {
        let driver = on.shim.driver()?;
        let has_device = on.is_simulated == driver.library().simulator().is_some();
        if has_device {
            on.prepared = Some(driver.playing(&on.soc)?);
        }
        Ok(has_device)
    }

    fn limits(on: &On<'_, Self>) -> Result<Vec<Limit>> {
        let l1 = on.driver()?.library().l1_kilobytes().map(|kilobytes| {
            Limit::new("l1-kilobytes", kilobytes.into(), Provenance::Declared)
                .with_note("what the library reports about the memory nearest to the multipliers")
        });
        Ok(limits().into_iter().chain(l1).collect())
    }

    fn flags(on: &On<'_, Self>) -> Result<Vec<Flag>> {
        Ok(flags::schema(&on.soc, Some(on.driver()?.library().version())))
    }

    fn check(on: &On<'_, Self>, entry: EntryView<'_>) -> Result<Vec<Verdict>> {
        Ok(lower::check(entry, &target(on, &*on.driver()?)))
    }

    /// Estimates operations and bytes, and the time by the chip's [roofline](crate::roofline).
    /// Without a roofline, every node is listed as uncosted.
    fn estimate(on: &On<'_, Self>, entry: EntryView<'_>) -> Result<Option<Estimate>> {
        let driver = on.driver()?;
        let lowered = lower::lower(entry, &target(on, &driver), on.shim.vendor.lowering)?;
        let operations = lowered.graph.operations.len() as u64;
        let roofline = on.soc.roofline.as_ref();
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

    fn compile(on: &On<'_, Self>, order: WorkOrderView<'_>, output: &mut CompileOutput<'_>) -> Result<()> {
        let (driver, Neuron { lowering, trials, .. }) = (on.driver()?, &on.shim.vendor);
        let mut trials = trials.lock().unwrap_or_else(PoisonError::into_inner);
        compile::compile(&driver, &target(on, &driver), *lowering, order, &mut trials, output)
    }

    fn judge(on: &On<'_, Self>, head: &Head) -> Result<Compatibility> {
        Ok(compatibility::judge(head, &on.soc.platform, on.driver()?.maker()))
    }

    fn load<'m>(on: &On<'_, Self>, bytes: &'m [u8], wishes: Wishes) -> Result<Box<dyn LoadedShard + 'm>> {
        Ok(Box::new(Shard::load(&*on.driver()?, &on.soc.platform, bytes, wishes.power)?))
    }

    fn run_help(device: &str) -> String {
        format!(
            "carry the artefact to a phone with {device}, or open a simulator of the library and use `{device}{SIMULATED}`"
        )
    }

    fn allocate(_: &On<'_, Self>, length: usize, alignment: usize) -> Result<Box<dyn Buffer>> {
        memory::allocate(length, alignment)
    }

    fn import(on: &On<'_, Self>, fd: i32, offset: u64, length: u64) -> Result<Box<dyn Buffer>> {
        Ok(Box::new(SharedBuffer::import(on.driver()?.library(), fd, offset, length)?))
    }

    fn inspect(_: &NeuronShim, bytes: &[u8]) -> Result<impl Serialize> {
        inspect::inspect(bytes)
    }

    fn inspect_foreign(_: &NeuronShim, bytes: &[u8]) -> Result<Option<Inspection>> {
        inspect::inspect_foreign(bytes)
    }
}
