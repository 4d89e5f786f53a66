//! The chip that a bundled shard was compiled for, among the devices that a shim has here.

use shardwright_bundle::{Bundle, ShardEntry, Variant};
use shardwright_shims::{Chip, Heads, ShimError, ShimInstance};
use shardwright_vocabulary::{Device, DeviceKind, Error, ErrorKind, Result, TargetKind};

/// Returns the heads of a shard's artefact. The bytes are verified against the manifest before they
/// are parsed, and the artefact is not opened.
///
/// # Errors
///
/// The heads are damaged or invalid.
pub fn heads_of(bundle: &Bundle, shard: &ShardEntry) -> Result<Heads> {
    let bytes = bundle.read(&shard.head)?;
    let path = bundle.place(&shard.head)?.path;
    Heads::parse(&path, &bytes)
}

/// Announces the chip of a shard to a shim, with the facts from its profile at the time of
/// compiling. The profile itself is not needed here. The facts are checked like any profile's.
pub fn know_chip(instance: &ShimInstance, heads: &Heads) -> Result<()> {
    match &heads.head.chip {
        Some(chip) => Ok(instance.know(chip)?),
        None => Ok(()),
    }
}

/// Checks whether a variant is for a chip, by any of the chip's names.
pub(crate) fn is_for(variant: &Variant, chip: &Chip) -> bool {
    chip.aliases.iter().chain([&chip.name]).any(|name| variant.is_for(name))
}

/// Returns devices of the shim that compiled a shard: the devices of this machine, and the devices
/// it offers for the shard's chip.
pub fn devices_for(
    instance: &ShimInstance,
    shard: &ShardEntry,
) -> std::result::Result<Vec<Device>, ShimError> {
    let mut devices = instance.devices(None)?;
    if shard.target.kind != TargetKind::Cpu && shard.compiled_by.shim == shard.target.shim {
        // A target other than the CPU has the name of its chip: the variant's own, or a chip that
        // it falls back to.
        for device in instance.devices(Some(&shard.target.name))? {
            if devices.iter().all(|existing| existing.name != device.name) {
                devices.push(device);
            }
        }
    }
    Ok(devices)
}

/// Returns the device that a shard was compiled for, if the shim can only compile for it here.
pub fn only_compiled_for(
    instance: &ShimInstance,
    shard: &ShardEntry,
) -> std::result::Result<Option<Device>, ShimError> {
    let mut devices = devices_for(instance, shard)?.into_iter();
    let own = devices.find(|device| device.name == shard.compiled_by.device);
    Ok(own.filter(|device| device.kind == DeviceKind::Offline))
}

/// Creates the error that the shard's chip is not in this machine.
pub fn only_compiles(shard: &ShardEntry, device: &Device) -> Error {
    let (shim, chip) = (&shard.compiled_by.shim, device.soc.as_deref().unwrap_or(&device.name));
    let what = format!(
        "shard {} is for {chip}, which is not in this machine: shim `{shim}` can only compile for it here",
        shard.name
    );
    Error::new(ErrorKind::Incompatible, what).with_help(format!(
        "run the bundle on a device with {chip}, or compile with `--on simulator` or `--on cpu` for a bundle \
         that runs here; `shardwright verify --bundle` can verify this bundle on a simulator of the chip"
    ))
}
