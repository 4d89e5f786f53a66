//! A machine whose shims are queried.

use shardwright_bundle::{Bundle, ShardEntry, Variant};
use shardwright_shims::{Chip, Heads, ShimInstance};
use shardwright_vocabulary::{Compatibility, Device, DeviceKind, Result, TargetKind};

use crate::compiled_for::{devices_for, heads_of, is_for, know_chip, only_compiles};
use crate::shard_standing::{ShardStanding, Standing};

/// A machine, or a description of one.
pub trait Machine {
    /// Returns whether a shard of a bundle runs on the machine.
    ///
    /// # Errors
    ///
    /// The bundle is damaged, so it must not be used for a selection.
    fn stands(&mut self, bundle: &Bundle, variant: &Variant, shard: &ShardEntry) -> Result<ShardStanding>;

    /// Returns the chip that the user named for the machine. `None` if its shims find the chip
    /// themselves.
    fn chip(&self) -> Option<&Chip>;
}

/// This machine with its shims, which `open` opens.
pub struct OpenShims<'o> {
    open: &'o mut dyn FnMut(&ShardEntry) -> Result<ShimInstance>,
    chip: Option<Chip>,
}

impl<'o> OpenShims<'o> {
    /// Creates a machine. `open` is called for each shard and should reuse open shims. With a
    /// `chip`, the machine is treated as one with that chip, as for simulators.
    pub fn new(open: &'o mut dyn FnMut(&ShardEntry) -> Result<ShimInstance>, chip: Option<Chip>) -> Self {
        OpenShims { open, chip }
    }

    fn asked(&mut self, heads: &Heads, variant: &Variant, shard: &ShardEntry) -> Result<ShardStanding> {
        let by = &shard.compiled_by;
        // The shim of another chip cannot read the profile of the named chip.
        if let Some(chip) = self.other_chip(variant, shard)
            && let Some(own) = chip.shim.as_ref().filter(|own| **own != by.shim)
        {
            let reason = format!("shim `{}` does not support {}, whose shim is `{own}`", by.shim, chip.name);
            return Ok(ShardStanding::absent(&by.device, reason, Some(compile_for(&chip.name))));
        }
        let instance = (self.open)(shard)?;
        know_chip(&instance, heads)?;
        let devices = self.devices(&instance, variant, shard)?;
        if let Some(own) = devices.iter().find(|device| device.name == by.device) {
            return judged(&instance, heads, shard, own, Standing::Own);
        }
        // A shard compiled for a simulator needs a simulator, and other shards need a present
        // device.
        let wanted = if by.simulated { DeviceKind::Simulated } else { DeviceKind::Present };
        let mut first = None;
        for device in devices.iter().filter(|device| device.kind == wanted) {
            let stands = judged(&instance, heads, shard, device, Standing::Sibling)?;
            if stands.is_here() {
                return Ok(stands);
            }
            first.get_or_insert(stands);
        }
        Ok(first.unwrap_or_else(|| none_here(by, &devices, self.other_chip(variant, shard))))
    }

    /// Returns the chip that the user named, if it replaces the chip of a shard's device.
    fn named_chip(&self, variant: &Variant, shard: &ShardEntry) -> Option<&Chip> {
        // A stand-in for a chip, such as the CPU shim, has devices of its own. A further target of
        // the variant is not the chip that the user named.
        let is_chip = shard.compiled_by.shim == shard.target.shim && shard.target.name == *variant.soc;
        self.chip.as_ref().filter(|_| is_chip && shard.target.kind != TargetKind::Cpu)
    }

    /// Like [`named_chip`](Self::named_chip), if the variant is not for that chip.
    fn other_chip(&self, variant: &Variant, shard: &ShardEntry) -> Option<&Chip> {
        self.named_chip(variant, shard).filter(|chip| !is_for(variant, chip))
    }

    fn devices(&self, instance: &ShimInstance, variant: &Variant, shard: &ShardEntry) -> Result<Vec<Device>> {
        match self.named_chip(variant, shard) {
            Some(chip) => {
                instance.know(chip)?;
                Ok(instance.devices(Some(&chip.name))?)
            }
            None => Ok(devices_for(instance, shard)?),
        }
    }
}

impl Machine for OpenShims<'_> {
    fn stands(&mut self, bundle: &Bundle, variant: &Variant, shard: &ShardEntry) -> Result<ShardStanding> {
        let heads = heads_of(bundle, shard)?;
        let asked = self.asked(&heads, variant, shard);
        Ok(asked.unwrap_or_else(|error| ShardStanding::failed(&shard.compiled_by.device, &error)))
    }

    fn chip(&self) -> Option<&Chip> {
        self.chip.as_ref()
    }
}

/// Returns the shim's verdict on an artefact on one of its devices.
fn judged(
    instance: &ShimInstance,
    heads: &Heads,
    shard: &ShardEntry,
    device: &Device,
    standing: Standing,
) -> Result<ShardStanding> {
    if device.kind == DeviceKind::Offline {
        let error = only_compiles(shard, device);
        let help = error.help().map(str::to_owned);
        let refused = ShardStanding::refused(&device.name, device.kind, error.to_string(), help);
        return Ok(ShardStanding { standing: Standing::Offline, ..refused });
    }
    let again = || match (&standing, &device.soc) {
        (Standing::Sibling, Some(soc)) => compile_for(soc),
        _ => "compile the checkpoint again with this machine's shims".to_owned(),
    };
    Ok(match instance.compatibility(&device.name, heads)? {
        Compatibility::Optimal => ShardStanding::runs(standing, &device.name, device.kind, None),
        Compatibility::Recompile(reason) => {
            ShardStanding::runs(standing, &device.name, device.kind, Some(reason))
        }
        Compatibility::NotMine(reason) | Compatibility::Unsupported(reason) => {
            let refused = ShardStanding::refused(&device.name, device.kind, reason, Some(again()));
            // On a device of another chip, a refusal is normal.
            ShardStanding { hindered: standing == Standing::Own, ..refused }
        }
    })
}

/// Returns the advice for a chip without a variant.
fn compile_for(soc: &str) -> String {
    format!("compile the checkpoint for `{soc}` too")
}

/// Returns the result for a shim without a device that the shard could run on. `other` is the chip
/// that the user named, if the variant is for another one.
fn none_here(
    by: &shardwright_vocabulary::ShimIdentity,
    devices: &[Device],
    other: Option<&Chip>,
) -> ShardStanding {
    let reason = format!("shim `{}` has no device `{}` here", by.shim, by.device);
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    let help = match (other, names.as_slice()) {
        (Some(chip), _) => compile_for(&chip.name),
        (None, []) => "the shim has no devices here".to_owned(),
        (None, names) => format!("available devices: {}", names.join(", ")),
    };
    ShardStanding::absent(&by.device, reason, Some(help))
}
