//! Which variant and chain of a bundle a machine runs, and why not the others.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use shardwright::SearchPath;
use shardwright_build::chip_of;
use shardwright_bundle::{Bundle, ShardEntry};
use shardwright_planning::profile::ProfileRegistry;
use shardwright_selection::{OpenShims, Selection, select};
use shardwright_shims::{Chip, ShimInstance};
use shardwright_vocabulary::Result;
use shardwright_worker::Shims;

use crate::shims;

/// How the chains of a bundle stand on a machine.
#[derive(Clone, Debug, Serialize)]
pub struct ExplainReport {
    /// Path of the bundle.
    pub path: String,
    /// Its identity: the hash of its manifest.
    pub sha256: String,
    /// The model.
    pub model: String,
    /// The chip that the machine is taken for; `None` for the one its shims find.
    pub chip: Option<String>,
    /// Chips the bundle has variants for.
    pub variants: Vec<String>,
    /// What runs, the best first, and what does not.
    #[serde(flatten)]
    pub selection: Selection,
}

/// Asks the shims of `search` about every chain of a bundle; with `soc`, the chip of that profile,
/// as if the machine had it.
pub fn explain(path: &Path, soc: Option<&str>, search: &SearchPath) -> Result<ExplainReport> {
    let bundle = Bundle::open(path)?;
    let chip = soc.map(|soc| chip_named(soc, search)).transpose()?;
    let found = shims::open(search)?;
    let manifest = bundle.manifest();
    Ok(ExplainReport {
        path: path.display().to_string(),
        sha256: bundle.sha256().to_string(),
        model: manifest.model.name.clone(),
        chip: chip.as_ref().map(|chip| chip.name.clone()),
        variants: manifest.variants.iter().map(|variant| variant.soc.clone()).collect(),
        selection: on_this_machine(&bundle, &found, chip),
    })
}

/// The chip of a profile, by any of its names.
pub fn chip_named(soc: &str, search: &SearchPath) -> Result<Chip> {
    let directories = search.profiles.iter();
    let registry = directories.fold(ProfileRegistry::new(), |registry, path| registry.with_directory(path));
    Ok(chip_of(&registry.find(soc)?.profile))
}

pub(crate) fn on_this_machine(bundle: &Bundle, shims: &Shims, chip: Option<Chip>) -> Selection {
    let mut opened: BTreeMap<(String, String, bool), ShimInstance> = BTreeMap::new();
    let mut open = |shard: &ShardEntry| {
        let by = &shard.compiled_by;
        let key = (by.shim.clone(), shard.target.name.clone(), by.simulated);
        if let Some(known) = opened.get(&key) {
            return Ok(known.clone());
        }
        let instance = shims.open_to_compile(&by.shim, &shard.target.name, &[], by.simulated)?;
        opened.insert(key, instance.clone());
        Ok(instance)
    };
    select(bundle, &mut OpenShims::new(&mut open, chip))
}
