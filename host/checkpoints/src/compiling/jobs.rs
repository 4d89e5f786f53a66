//! How many variants of a bundle are compiled at the same time, and in how much memory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use shardwright_build::PlanOptions;
use shardwright_files::Memory;
use shardwright_planning::profile::{GENERIC, Profile, ProfileRegistry};
use shardwright_vocabulary::{Error, ErrorKind, Result, TargetKind};
use shardwright_worker::Shims;

/// How many variants of a bundle are compiled at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jobs {
    /// Maximum number, at least 1.
    pub most: usize,
    /// Maximum of the bytes that all of them together are expected to need. A single one always
    /// runs. `None` for three quarters of the memory available to this process, if the system
    /// reports it.
    pub memory_bytes: Option<u64>,
}

impl Default for Jobs {
    /// Compiles one variant after another.
    fn default() -> Self {
        Jobs { most: 1, memory_bytes: None }
    }
}

impl Jobs {
    /// Returns the maximum bytes for all variants together, or `None` for no maximum.
    pub(super) fn budget(&self) -> Option<u64> {
        self.budget_on(Path::new("/"))
    }

    /// Returns the budget on a machine whose files are below `root`.
    fn budget_on(&self, root: &Path) -> Option<u64> {
        self.memory_bytes.or_else(|| Some(Memory::read(root).available? / 4 * 3))
    }
}

/// Facts about the chips that are known before compiling.
pub(super) struct Asked {
    /// Names of exclusive resources, by variant.
    pub alone: Vec<BTreeSet<String>>,
    /// Messages to report immediately.
    pub said: Vec<String>,
}

/// Inspects the chips of `variants`. Errors of a single variant are not reported here, but when it
/// is compiled.
///
/// # Errors
///
/// Fails if a chip is named twice.
pub(super) fn look_at(variants: &[PlanOptions], jobs: Jobs) -> Result<Asked> {
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    let mut asked = Asked { alone: vec![BTreeSet::new(); variants.len()], said: Vec::new() };
    let mut in_process = BTreeSet::new();
    for (options, alone) in variants.iter().zip(&mut asked.alone) {
        let soc = options.soc.as_deref().unwrap_or(GENERIC);
        let Ok(chips) = chips_of(soc, options) else { continue };
        let Some(chip) = chips.first() else { continue };
        if known.insert(chip.name.clone(), soc.to_owned()).is_some() {
            let what = format!("`{soc}` is chip {}, which was already named", chip.name);
            return Err(Error::new(ErrorKind::Argument, what).with_help("name each chip once"));
        }
        if jobs.most < 2 || chips.iter().all(|chip| chip.kind == TargetKind::Cpu) {
            continue;
        }
        let Ok(trust) = options.trust.rules(options.cache.as_deref()) else { continue };
        let Ok(shims) = Shims::open(options.shims.clone().trusting(trust), options.isolation) else {
            continue;
        };
        for chip in chips.iter().filter(|chip| chip.kind != TargetKind::Cpu) {
            let Some(shim) = shims.registry.get(&chip.shim) else { continue };
            let exclusive = shim.manifest().map(|manifest| manifest.exclusive.as_slice());
            alone.extend(exclusive.unwrap_or_default().iter().map(|name| format!("resource {name}")));
            if !shims.compiles_in_a_worker(&chip.shim) {
                in_process.insert(chip.shim.clone());
            } else if shim.description().instance_limit == 0 {
                continue;
            }
            alone.insert(format!("shim {}", chip.shim));
        }
    }
    asked.said.extend(in_process.into_iter().map(|shim| {
        format!(
            "shim `{shim}` compiles in this process: its chips are compiled one after another, regardless of \
             `--jobs`"
        )
    }));
    Ok(asked)
}

/// Returns a chip and its fallback chips.
fn chips_of(soc: &str, options: &PlanOptions) -> Result<Vec<Profile>> {
    let trust = options.trust.rules(options.cache.as_deref())?;
    let directories = options.profiles.iter();
    let profiles = directories.fold(ProfileRegistry::new(), |known, path| known.with_directory(path));
    let profiles = profiles.trusting(trust);
    let chip = profiles.find(soc)?;
    let further = if options.alone { Vec::new() } else { profiles.fallbacks(&chip)? };
    Ok(std::iter::once(chip).chain(further).map(|found| found.profile).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_quarters_of_the_available_memory_are_used_where_nothing_else_is_said() {
        assert_eq!(Jobs { most: 2, memory_bytes: Some(7) }.budget(), Some(7));
        let root = tempfile::tempdir().unwrap();
        for (name, content) in [
            ("proc/meminfo", "MemTotal: 4096 kB\nMemAvailable: 2048 kB\n"),
            ("proc/self/cgroup", "0::/app\n"),
            ("sys/fs/cgroup/app/memory.max", "1048576\n"),
            ("sys/fs/cgroup/app/memory.current", "524288\n"),
        ] {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        assert_eq!(Jobs::default().budget_on(root.path()), Some((1 << 19) / 4 * 3));
    }
}
