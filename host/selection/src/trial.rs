//! The driver on which the result of loading a chain depends.

use shardwright_bundle::{Bundle, ChainEntry, Driver, LoadTrial, ShardEntry};
use shardwright_shims::ShimInstance;
use shardwright_vocabulary::{Result, TargetKind};

use crate::compiled_for::{devices_for, heads_of, know_chip};

/// Returns what the result of loading a chain depends on, without loading it. `chip` is the chip of
/// its variant. `devices` has the device of each shard, `None` for the device that it was compiled
/// for. `open` opens the shim of a shard.
///
/// # Errors
///
/// A shim does not open or answer, or the bundle is damaged.
pub fn load_trial(
    bundle: &Bundle,
    chip: &str,
    chain: &ChainEntry,
    devices: &[Option<String>],
    open: &mut dyn FnMut(&ShardEntry) -> Result<ShimInstance>,
) -> Result<LoadTrial> {
    let is_on_a_chip = |shard: &ShardEntry| shard.target.kind != TargetKind::Cpu;
    let has_a_chip = chain.shards.iter().any(is_on_a_chip);
    let mut drivers: Vec<Driver> = Vec::new();
    for (shard, device) in chain.shards.iter().zip(devices) {
        // The CPU next to a chip can load its shards with any driver of the chip.
        if has_a_chip && !is_on_a_chip(shard) {
            continue;
        }
        let instance = open(shard)?;
        know_chip(&instance, &heads_of(bundle, shard)?)?;
        let device = device.as_deref().unwrap_or(&shard.compiled_by.device);
        let known = devices_for(&instance, shard)?.into_iter().find(|known| known.name == device);
        let description = instance.shim().description();
        let driver = Driver {
            shim: description.name.clone(),
            shim_version: description.version.clone(),
            library: description.vendor_library.clone(),
            device: device.to_owned(),
            detail: known.and_then(|known| known.detail),
        };
        if !drivers.contains(&driver) {
            drivers.push(driver);
        }
    }
    Ok(LoadTrial { bundle: bundle.sha256(), chip: chip.to_owned(), chain: chain.name.clone(), drivers })
}
