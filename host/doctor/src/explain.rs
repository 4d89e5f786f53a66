//! Which variant and chain of a bundle a machine runs, and why not the others.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use shardwright::SearchPath;
use shardwright_bundle::{Bundle, ShardEntry};
use shardwright_selection::{OpenShims, Selection, select};
use shardwright_shims::{Chip, ShimInstance};
use shardwright_trust::Trust;
use shardwright_vocabulary::Result;
use shardwright_worker::Shims;

use crate::described::DescribedMachine;
use crate::profiles::chip_named;
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
    /// The machine elsewhere that is asked about; `None` for this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<DescribedMachine>,
    /// Chips the bundle has variants for.
    pub variants: Vec<String>,
    /// What was not checked of the bundle, each with the command that checks it.
    pub unchecked: Vec<String>,
    /// What runs, the best first, and what does not.
    #[serde(flatten)]
    pub selection: Selection,
}

/// The machine that is asked about.
#[derive(Clone, Copy, Debug)]
pub enum About<'a> {
    /// This one, as it is.
    Here,
    /// This one, as if it had the chip of that profile.
    Chip(&'a str),
    /// One that a file describes, written there by `doctor --report`.
    Described(&'a Path),
}

/// Asks the shims of `search` about every chain of a bundle, or a file about those of a machine
/// elsewhere. Bundle, shims and profiles are those that are signed as the rules ask.
pub fn explain(path: &Path, about: About<'_>, search: &SearchPath, trust: &Trust) -> Result<ExplainReport> {
    let bundle = Bundle::open_trusting(path, trust)?;
    let chip = match about {
        About::Chip(soc) => Some(chip_named(soc, search, trust)?),
        About::Here | About::Described(_) => None,
    };
    let manifest = bundle.manifest();
    let (machine, selection) = match about {
        About::Described(file) => {
            let mut machine = DescribedMachine::read(file)?;
            let selection = select(&bundle, &mut machine)?;
            (Some(machine), selection)
        }
        About::Here | About::Chip(_) => {
            let found = shims::open(search, trust)?;
            (None, on_this_machine(&bundle, &found, chip.clone())?)
        }
    };
    Ok(ExplainReport {
        path: path.display().to_string(),
        sha256: bundle.sha256().to_string(),
        model: manifest.model.name.clone(),
        chip: chip.as_ref().map(|chip| chip.name.clone()),
        variants: manifest.variants.iter().map(|variant| variant.soc.clone()).collect(),
        machine,
        unchecked: unchecked(&bundle),
        selection,
    })
}

/// The heads of artefacts say what runs, so nothing else was read.
fn unchecked(bundle: &Bundle) -> Vec<String> {
    let content = "the content of artefacts and tables (`shardwright inspect --verify` hashes it)";
    let maker = bundle.signed().is_none().then_some("who made it (`--trust KEY` checks its signature)");
    [content].into_iter().chain(maker).map(str::to_owned).collect()
}

pub(crate) fn on_this_machine(bundle: &Bundle, shims: &Shims, chip: Option<Chip>) -> Result<Selection> {
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
