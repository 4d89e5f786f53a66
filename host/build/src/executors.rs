//! Selects the shim and device that compile and run a target: its own shim's device, a simulator of
//! it, or the CPU.

use shardwright_planning::profile::{FoundProfile, Profile};
use shardwright_shims::{ShimError, ShimInstance};
use shardwright_vocabulary::{Device, DeviceKind, Error, ErrorKind, Target, TargetKind};
use shardwright_worker::Shims;

use crate::chips::{about_profile, chip_of, in_its_words};
use crate::placement::thread_options;
use crate::{CPU_SHIM, Executor, PlanOptions, Purpose, Result, TargetExecutor};

/// The shim of a target.
pub(crate) enum OwnShim {
    /// The shim was not found.
    Absent,
    /// The shim was found, but its vendor's library is missing or does not work. The simulator that
    /// comes with the shim then answers questions about costs, and is used for that only.
    Unusable { error: Error, stand_in: Option<Result<Box<(ShimInstance, Device)>>> },
    /// The shim is open. It may have no device for the target.
    Open { instance: ShimInstance, devices: Vec<Device> },
}

impl OwnShim {
    /// Finds and opens the shim, and passes it the profile's chip. Fails if the CPU shim does not
    /// open, since there is no replacement for it, or if the shim contradicts the profile.
    pub(crate) fn of(
        shims: &Shims,
        target: &Target,
        FoundProfile { profile, source }: &FoundProfile,
        options: &PlanOptions,
    ) -> Result<OwnShim> {
        if shims.registry.get(&target.shim).is_none() {
            return Ok(OwnShim::Absent);
        }
        let is_chip = target.kind != TargetKind::Cpu;
        let threads = thread_options(&target.shim, options.threads);
        let simulated = options.recorded.on == Some(Executor::Simulator) && is_chip;
        let instance = match shims.open_to_compile(&target.shim, &target.name, &threads, simulated) {
            Err(error) if is_chip => return Ok(OwnShim::Unusable { error, stand_in: None }),
            opened => opened?,
        };
        let asked = || -> std::result::Result<Vec<Device>, ShimError> {
            if is_chip {
                instance.know(&chip_of(profile))?;
            }
            instance.devices(is_chip.then_some(target.device.as_str()))
        };
        match asked() {
            Ok(mut devices) => {
                devices.retain(|device| {
                    device.name == target.device || device.soc.as_deref() == Some(target.device.as_str())
                });
                Ok(OwnShim::Open { instance, devices })
            }
            Err(error @ ShimError::Chip(_)) => Err(about_profile(error, source)),
            Err(error) if is_chip => {
                let error = in_its_words(error);
                let asks = error.kind() != ErrorKind::Cancelled && !simulated;
                let stand_in = if asks { stand_in(shims, target, profile) } else { None };
                Ok(OwnShim::Unusable { error, stand_in })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns why the shim does not answer for its own target.
    pub(crate) fn why_it_does_not_answer(&self) -> String {
        match self {
            OwnShim::Absent => "the target's shim was not found".to_owned(),
            OwnShim::Unusable { .. } => "the target's shim cannot be used".to_owned(),
            OwnShim::Open { instance, .. } => {
                format!("shim `{}` has no device for the target", instance.shim().name())
            }
        }
    }

    /// Returns the first device of one of these kinds. Kinds listed first are preferred.
    fn device(&self, kinds: &[DeviceKind]) -> Option<(&ShimInstance, &Device)> {
        let OwnShim::Open { instance, devices } = self else { return None };
        let found = kinds.iter().find_map(|kind| devices.iter().find(|device| device.kind == *kind));
        found.map(|device| (instance, device))
    }

    /// Returns the simulated device that answers questions about costs in place of the vendor's
    /// library. It does not report limits and flags, which depend on that library.
    pub(crate) fn stand_in(&self) -> Option<(&ShimInstance, &Device)> {
        match self {
            OwnShim::Unusable { stand_in: Some(Ok(stand_in)), .. } => Some((&stand_in.0, &stand_in.1)),
            _ => None,
        }
    }

    /// Returns the device that answers questions about the target. It is the same for a run on the
    /// device and a run in a simulator, so that the plan is the same.
    pub(crate) fn judge(&self) -> Option<(&ShimInstance, &Device)> {
        self.device(&[DeviceKind::Present, DeviceKind::Offline, DeviceKind::Simulated])
    }
}

/// Opens the simulator that comes with a target's shim, if there is one and it simulates the chip.
fn stand_in(
    shims: &Shims,
    target: &Target,
    profile: &Profile,
) -> Option<Result<Box<(ShimInstance, Device)>>> {
    if !shims.has_simulator(&target.shim) {
        return None;
    }
    let open = || -> Result<Option<Box<(ShimInstance, Device)>>> {
        let instance = shims.open_to_compile(&target.shim, &target.name, &[], true)?;
        let devices = instance
            .know(&chip_of(profile))
            .and_then(|()| instance.devices(Some(target.device.as_str())))
            .map_err(in_its_words)?;
        let device = devices.into_iter().find(|device| device.kind == DeviceKind::Simulated);
        Ok(device.map(|device| Box::new((instance, device))))
    };
    open().transpose()
}

pub(crate) fn unusable(target: &Target, error: &Error) -> String {
    format!("target {}: shim `{}` cannot be used: {error}", target.name, target.shim)
}

/// Fails if the user requested the device or its simulator and the shim cannot be used, even if the
/// command runs no model.
pub(crate) fn demand(target: &Target, own: &OwnShim, on: Option<Executor>) -> Result<()> {
    match own {
        OwnShim::Unusable { error, .. } if matches!(on, Some(Executor::Device | Executor::Simulator)) => {
            Err(not_here(target, &unusable(target, error), error.help()))
        }
        _ => Ok(()),
    }
}

/// Returns the error for a target without an executor.
fn not_here(target: &Target, what: &str, help: Option<&str>) -> Error {
    let instead = format!("use `--on cpu` to run the plan for {} on this machine's CPU", target.name);
    let help = help.map_or_else(|| instead.clone(), |help| format!("{help}; {instead}"));
    Error::new(ErrorKind::Missing, what).with_help(help)
}

/// Returns the executor that compiles and runs a target: the target itself, a simulator of it, or
/// the CPU in its place.
pub(crate) fn executor(
    shims: &Shims,
    target: &Target,
    own: OwnShim,
    purpose: Purpose,
    options: &PlanOptions,
) -> Result<TargetExecutor> {
    let on = options.recorded.on;
    let kinds: &[DeviceKind] = match (target.kind, on, purpose) {
        (TargetKind::Cpu, ..) => &[DeviceKind::Present],
        (_, Some(Executor::Cpu), _) => &[],
        (_, Some(Executor::Simulator), _) => &[DeviceKind::Simulated],
        (_, None | Some(Executor::Device), Purpose::Compile) => &[DeviceKind::Present, DeviceKind::Offline],
        (_, None | Some(Executor::Device), _) => &[DeviceKind::Present],
    };
    let kept = purpose == Purpose::Compile;
    if let Some((instance, device)) = own.device(kinds) {
        return Ok(TargetExecutor {
            instance: instance.clone(),
            device: device.name.clone(),
            detail: device.detail.clone(),
            simulated: device.kind == DeviceKind::Simulated,
            loads: kept && device.kind == DeviceKind::Present,
            is_target: true,
        });
    }
    if on != Some(Executor::Cpu) && target.kind != TargetKind::Cpu {
        let named = format!("target {} ({} through shim `{}`)", target.name, target.device, target.shim);
        let offline = own.device(&[DeviceKind::Offline]).is_some();
        let simulated = own.device(&[DeviceKind::Simulated]).is_some();
        let (what, help) = match (&own, on) {
            (OwnShim::Unusable { error, .. }, on) => {
                let stands_in = on != Some(Executor::Simulator) && shims.has_simulator(&target.shim);
                let simulator =
                    stands_in.then_some("use `--on simulator` to run it in the shim's own simulator");
                let help: Vec<&str> = error.help().into_iter().chain(simulator).collect();
                (unusable(target, error), (!help.is_empty()).then(|| help.join("; ")))
            }
            (OwnShim::Absent, _) => {
                let missing = shims.registry.missing(&target.shim);
                let help = missing.help();
                (format!("target {}: {missing}", target.name), help)
            }
            (_, Some(Executor::Simulator)) => (
                format!("{named}: no simulator was found"),
                Some("use `--on device` on a machine with the chip".to_owned()),
            ),
            (OwnShim::Open { devices, .. }, _) if devices.is_empty() => (
                format!("{named}: the shim reports no device for this chip"),
                Some(
                    "for a device without a chip (see `shardwright shim list`), use a profile of kind `cpu`"
                        .to_owned(),
                ),
            ),
            _ => {
                let mut help = Vec::new();
                if offline && purpose == Purpose::Run {
                    help.push("use `shardwright compile` to make a bundle for the device".to_owned());
                }
                help.push(match simulated {
                    true => "use `--on simulator` to run it in the vendor's simulator".to_owned(),
                    false => "`--on simulator` requires a shim that simulates the chip".to_owned(),
                });
                (format!("{named}: the device was not found"), Some(help.join("; ")))
            }
        };
        return Err(not_here(target, &what, help.as_deref()));
    }
    let threads = thread_options(CPU_SHIM, options.threads);
    let opened = shims.open_to_compile(CPU_SHIM, &target.name, &threads, false);
    let instance = opened.map_err(|error| match error.kind() {
        ErrorKind::Missing => error.with_help(
            "`shardwright shim list` lists the searched places; `cargo xtask build` builds the CPU shim",
        ),
        _ => error,
    })?;
    let devices = instance.devices(None)?;
    let device = devices.iter().find(|device| device.kind == DeviceKind::Present).ok_or_else(|| {
        Error::new(ErrorKind::Shim, format!("shim `{CPU_SHIM}` has no device in this machine"))
    })?;
    let (device, detail) = (device.name.clone(), device.detail.clone());
    Ok(TargetExecutor { instance, device, detail, simulated: false, loads: kept, is_target: false })
}
