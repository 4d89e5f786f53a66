//! Predicts how a bundle would run on this machine. Every byte is verified, and shims examine its
//! artefacts, but no artefact is loaded or run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;
use shardwright_bundle::{Bundle, ChainEntry, FileReference, Model, ShardEntry, Variant, Verification};
use shardwright_shims::{Artefact, ShimInstance};
use shardwright_trust::Trust;
use shardwright_vocabulary::{ChosenSpeculation, Compatibility, Device, DeviceKind, Notice, Pass};
use shardwright_worker::Shims;

use crate::flag_advice::{Advisers, FlagAdvice};
use shardwright::tools::stray_notices;
use shardwright_selection::{Candidate, devices_for, heads_of, know_chip, only_compiles};
use shardwright_vocabulary::{Error, ErrorKind, Result};

use crate::report::Problem;
use crate::unloaded_chains;

/// Prediction of how a bundle would run on this machine.
#[derive(Clone, Debug, Serialize)]
pub struct BundlePrognosis {
    /// Path of the bundle.
    pub directory: String,
    /// Identity of the bundle: the hash of its manifest.
    pub sha256: String,
    /// The program that wrote the bundle.
    pub program: String,
    pub model: String,
    /// The compiled variants, one for each chip.
    pub variants: Vec<VariantPrognosis>,
    /// The problem with another file than an artefact or a table, if any. A chain that does not
    /// need the file may run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damaged_file: Option<String>,
    /// The chain that would run.
    pub would_run: Option<ChosenChain>,
    /// Number of artefact bytes that would be copied into memory, because they do not begin at a
    /// multiple of 4 KiB in their file.
    #[serde(skip_serializing_if = "is_zero")]
    pub copied_bytes: u64,
    /// Notices about entries of its folder that do not belong to it.
    #[serde(skip)]
    strays: Vec<Notice>,
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// A chain of a variant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChosenChain {
    /// The chip of the variant.
    pub soc: String,
    pub chain: String,
}

/// A variant of the bundle.
#[derive(Clone, Debug, Serialize)]
pub struct VariantPrognosis {
    /// The profile used for planning.
    pub soc: String,
    /// The chains, in the order in which they are tried.
    pub chains: Vec<ChainPrognosis>,
    /// The first chain whose shards can all be loaded. `None` if a table is damaged.
    pub would_run: Option<String>,
    /// The problem with the gathered tables, if any. Without them no chain runs.
    pub damaged_table: Option<String>,
    /// The towers for pictures and sounds, in addition to the text model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub towers: Vec<TowerPrognosis>,
    /// The stored verifications.
    pub verifications: Vec<ProofReport>,
}

/// A tower of the bundle.
#[derive(Clone, Debug, Serialize)]
pub struct TowerPrognosis {
    /// The pass of the tower.
    pub pass: Pass,
    /// The chains, in the order in which they are tried.
    pub chains: Vec<ChainPrognosis>,
    /// The first chain whose shards can all be loaded. `None` if a table is damaged.
    pub would_run: Option<String>,
    /// The problem with its tables, if any.
    pub damaged_table: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ChainPrognosis {
    pub name: String,
    /// The executor that replaces the planned targets, if any.
    pub emulated_on: Option<String>,
    /// Set if the chain verifies proposed tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculation: Option<ChosenSpeculation>,
    /// Whether every shard can be loaded.
    pub runs: bool,
    /// Why a start would skip the chain and run its hedge, if an earlier one could not load it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// The shards, in the order in which a step runs them.
    pub shards: Vec<ShardPrognosis>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ShardPrognosis {
    pub name: String,
    /// The shim that compiled the shard and must load it, with its version at that time.
    pub compiled_by: String,
    /// That shim's version on this machine. `None` if it is not available.
    pub shim_here: Option<String>,
    pub device: String,
    /// Whether the shard can be loaded.
    pub state: ShardState,
    /// The reason why the shard is not optimal, if so.
    pub reason: Option<String>,
    /// A suggestion for the user.
    pub help: Option<String>,
    /// Comparison of its flags with the flags that the chip's profile recommends. `None` if the
    /// shard was not compiled by the chip's compiler.
    pub advice: Option<FlagAdvice>,
}

/// Whether a shard can be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShardState {
    /// The shard loads, and compiling it again would not improve it.
    Optimal,
    /// The shard loads, but compiling it again would improve it.
    Recompile,
    /// The shim compiled the shard but cannot run it on this machine.
    Unsupported,
    /// Another shim compiled the shard.
    NotMine,
    /// The shim that compiled the shard is not available.
    NoShim,
    /// The shim is available but the device is not.
    NoDevice,
    /// The shim can only compile for the chip on this machine. The bundle does not open, even if it
    /// has other chains.
    Offline,
    /// The artefact was changed after it was written. The bundle does not open, even if it has
    /// other chains.
    Damaged,
    /// The shim could not be queried.
    Unknown,
}

impl ShardState {
    /// Returns the kebab-case name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            ShardState::Optimal => "optimal",
            ShardState::Recompile => "recompile",
            ShardState::Unsupported => "unsupported",
            ShardState::NotMine => "not-mine",
            ShardState::NoShim => "no-shim",
            ShardState::NoDevice => "no-device",
            ShardState::Offline => "offline",
            ShardState::Damaged => "damaged",
            ShardState::Unknown => "unknown",
        }
    }

    /// Returns whether the shard can be loaded.
    pub const fn loads(self) -> bool {
        matches!(self, ShardState::Optimal | ShardState::Recompile)
    }
}

/// A stored verification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProofReport {
    pub name: String,
    /// The verified chain.
    pub chain: String,
    pub passed: bool,
    /// A summary in one sentence with numbers.
    pub summary: String,
}

impl BundlePrognosis {
    /// Opens the bundle and queries the shims.
    ///
    /// # Errors
    ///
    /// If the path is not a bundle, or its signature does not comply with the rules.
    pub(crate) fn of(
        directory: &Path,
        shims: &Shims,
        advisers: &Advisers,
        trust: &Trust,
    ) -> Result<BundlePrognosis> {
        let bundle = Bundle::open_trusting(directory, trust)?;
        let mut asked = Asked { shims, advisers, opened: BTreeMap::new() };
        let manifest = bundle.manifest();
        let variants: Vec<VariantPrognosis> =
            manifest.variants.iter().map(|variant| asked.variant(&bundle, variant)).collect();
        let would_run = match variants.as_slice() {
            [only] => only.would_run.clone().map(|chain| ChosenChain { soc: only.soc.clone(), chain }),
            several => {
                let selection = crate::explain::on_this_machine(&bundle, shims, None)?;
                let loads = |candidate: &Candidate| {
                    let is_skipped =
                        |chain: &ChainPrognosis| chain.name == candidate.name && chain.skipped.is_some();
                    let own = several.iter().find(|variant| variant.soc == candidate.soc);
                    own.is_some_and(|own| own.damaged_table.is_none() && !own.chains.iter().any(is_skipped))
                };
                let chosen = selection.candidates.into_iter().find(loads);
                chosen.map(|chosen| ChosenChain { soc: chosen.soc, chain: chosen.name })
            }
        };
        let chain = would_run.as_ref().and_then(|chosen| manifest.variant(&chosen.soc)?.chain(&chosen.chain));
        let artefacts = chain.iter().flat_map(|chain| &chain.shards).map(|shard| shard.artefact);
        let is_copied = |artefact: &FileReference| {
            bundle.place(artefact).is_ok_and(|place| Artefact::is_copied_from(place.offset))
        };
        let copied_bytes = artefacts.filter(is_copied).map(|artefact| artefact.bytes).sum();
        Ok(BundlePrognosis {
            copied_bytes,
            directory: directory.display().to_string(),
            sha256: bundle.sha256().to_string(),
            program: manifest.program.clone(),
            model: manifest.model.name.clone(),
            variants,
            damaged_file: damaged_file(&bundle),
            would_run,
            strays: stray_notices(&bundle),
        })
    }

    /// Returns a problem for entries of its folder that do not belong to it.
    pub(crate) fn foreign_files(&self) -> impl Iterator<Item = Problem> {
        let help = || Some("move them out of the folder".to_owned());
        self.strays.iter().map(move |notice| Problem { what: notice.text.clone(), help: help() })
    }

    /// Returns a problem if artefacts would be copied into memory unnecessarily.
    pub(crate) fn wasted_memory(&self) -> Option<Problem> {
        (self.copied_bytes > 0).then(|| Problem {
            what: format!(
                "{} bytes of artefacts would be copied into memory, because {} does not start at a multiple of \
                 4096 bytes in its file",
                self.copied_bytes, self.directory
            ),
            help: Some("align it in the package, as `zipalign -p 4` does, to map it instead".to_owned()),
        })
    }

    /// Returns a problem for every shard compiled without recommended flags. Such shards run, but
    /// slowly.
    pub(crate) fn wanting_flags(&self) -> Vec<Problem> {
        let chains = self.variants.iter().flat_map(|variant| {
            variant.chains.iter().chain(variant.towers.iter().flat_map(|tower| &tower.chains))
        });
        let shards = chains.flat_map(|chain| &chain.shards);
        let advice = shards.filter_map(|shard| shard.advice.as_ref().filter(|advice| advice.is_wanting()));
        let problem = |advice: &FlagAdvice| Problem {
            what: format!("shard {}: {}", advice.name, advice.summary()),
            help: Some(match &advice.cost {
                Some(cost) => {
                    format!(
                        "compile it again with the flags of its profile; without them, other bundles ran {cost}"
                    )
                }
                None => "compile it again with the flags of its profile, or keep the chosen flags".to_owned(),
            }),
        };
        advice.map(problem).collect()
    }

    /// Returns an error if a file is damaged or no chain would run.
    pub fn verdict(&self) -> Result<()> {
        const AGAIN: &str = "copy or compile the bundle again";
        if let Some(reason) = &self.damaged_file {
            return Err(Error::invalid(reason.as_str()).with_help(AGAIN));
        }
        if self.would_run.is_some() {
            return Ok(());
        }
        let mut variants = self.variants.iter();
        if let Some(reason) = variants.find_map(|variant| variant.damaged_table.as_ref()) {
            let what = format!("no chain of {} runs here: {reason}", self.directory);
            return Err(Error::new(ErrorKind::Invalid, what).with_help(AGAIN));
        }
        let chains = self.variants.iter().flat_map(|variant| &variant.chains);
        let shards = chains.flat_map(|chain| &chain.shards);
        let stuck: Vec<&ShardPrognosis> = shards.filter(|shard| !shard.state.loads()).collect();
        let missing = |shard: &&ShardPrognosis| {
            matches!(shard.state, ShardState::NoShim | ShardState::NoDevice | ShardState::Offline)
        };
        let kind = if stuck.iter().any(|shard| shard.state == ShardState::Damaged) {
            ErrorKind::Invalid
        } else if stuck.iter().all(missing) {
            ErrorKind::Missing
        } else {
            ErrorKind::Incompatible
        };
        let first = stuck.first();
        let why = first.map_or_else(
            || "it has no chain".to_owned(),
            |shard| {
                let reason = shard.reason.as_deref().unwrap_or_else(|| shard.state.name());
                format!("shard {}: {reason}", shard.name)
            },
        );
        let error = Error::new(kind, format!("no chain of {} runs here: {why}", self.directory));
        Err(match first.and_then(|shard| shard.help.clone()) {
            Some(help) => error.with_help(help),
            None => error,
        })
    }
}

/// Returns the error of the first damaged file other than artefacts and tables, which are checked
/// with the chains that use them.
fn damaged_file(bundle: &Bundle) -> Option<String> {
    let models = || bundle.manifest().variants.iter().flat_map(|variant| variant.models());
    let chains = models().flat_map(|model| model.chains);
    let artefacts = chains.flat_map(|chain| &chain.shards).map(|shard| shard.artefact);
    let tables = models().flat_map(|model| model.assets).flat_map(|asset| {
        let scales = asset.quantisation.as_ref().map(|quantisation| quantisation.scales);
        std::iter::once(asset.table).chain(scales)
    });
    let checked: BTreeSet<FileReference> = artefacts.chain(tables).collect();
    let mut others = bundle.files().into_iter().filter(|file| !checked.contains(file));
    others.find_map(|file| bundle.proved(&file).err()).map(|error| error.to_string())
}

/// Returns the first chain whose shards all load. A damaged artefact or a chip without run support
/// in an earlier chain ends the search, because opening the bundle then fails without a fallback.
fn would_run(chains: &[ChainPrognosis]) -> Option<String> {
    for chain in chains.iter().filter(|chain| chain.skipped.is_none()) {
        if chain.runs {
            return Some(chain.name.clone());
        }
        let ends = |state| matches!(state, ShardState::Damaged | ShardState::Offline);
        if chain.shards.iter().any(|shard| ends(shard.state)) {
            return None;
        }
    }
    None
}

/// Target, shim, and whether the shim simulates.
type Key = (String, String, bool);

/// Opened shims.
struct Asked<'s> {
    shims: &'s Shims,
    advisers: &'s Advisers,
    opened: BTreeMap<Key, std::result::Result<Opened, Error>>,
}

fn key_of(shard: &ShardEntry) -> Key {
    let by = &shard.compiled_by;
    (shard.target.name.clone(), by.shim.clone(), by.simulated)
}

struct Opened {
    instance: ShimInstance,
    devices: Vec<Device>,
}

impl Asked<'_> {
    fn variant(&mut self, bundle: &Bundle, variant: &Variant) -> VariantPrognosis {
        let mut models: Vec<TowerPrognosis> =
            variant.models().map(|model| self.model(bundle, &variant.soc, model)).collect();
        let towers = models.split_off(1);
        let proof = |proof: &Verification| ProofReport {
            name: proof.name.clone(),
            chain: proof.chain.clone(),
            passed: proof.passed,
            summary: proof.summary.clone(),
        };
        let (chains, would_run, damaged_table) = match models.pop() {
            Some(text) => (text.chains, text.would_run, text.damaged_table),
            None => (Vec::new(), None, None),
        };
        VariantPrognosis {
            soc: variant.soc.to_string(),
            chains,
            would_run,
            damaged_table,
            towers,
            verifications: variant.verifications.iter().map(proof).collect(),
        }
    }

    fn model(&mut self, bundle: &Bundle, soc: &str, model: Model<'_>) -> TowerPrognosis {
        let chains = model.chains.iter().map(|chain| {
            let shards: Vec<ShardPrognosis> =
                chain.shards.iter().map(|shard| self.shard(bundle, shard)).collect();
            let runs = shards.iter().all(|shard| shard.state.loads());
            ChainPrognosis {
                name: chain.name.clone(),
                emulated_on: chain.emulated_on.clone(),
                speculation: chain.speculation.clone(),
                runs,
                skipped: None,
                shards,
            }
        });
        let mut chains: Vec<ChainPrognosis> = chains.collect();
        for index in 0..chains.len() {
            let later = chains[index + 1..].iter().zip(&model.chains[index + 1..]);
            let is_hedged = later.into_iter().any(|(known, chain)| chain.is_hedge() && known.runs);
            if chains[index].runs && is_hedged && (index == 0 || model.chains[index].is_hedge()) {
                chains[index].skipped = self.skipped(bundle, soc, &model.chains[index..]);
            }
        }
        let damaged_table = bundle.assets_of(model.assets).err().map(|error| error.to_string());
        let would_run = would_run(&chains).filter(|_| damaged_table.is_none());
        TowerPrognosis { pass: model.pass, chains, would_run, damaged_table }
    }

    /// Returns why a start would skip the first of `chains`, whose shims were opened before.
    fn skipped(&self, bundle: &Bundle, soc: &str, chains: &[ChainEntry]) -> Option<String> {
        let devices = vec![None; chains.first()?.shards.len()];
        let open = &mut |shard: &ShardEntry| match self.opened.get(&key_of(shard)) {
            Some(Ok(opened)) => Ok(opened.instance.clone()),
            Some(Err(error)) => Err(error.clone()),
            None => Err(Error::internal("a shim was not opened")),
        };
        unloaded_chains::skipped(bundle, soc, chains, &devices, open)
    }

    fn shard(&mut self, bundle: &Bundle, shard: &ShardEntry) -> ShardPrognosis {
        let by = &shard.compiled_by;
        let here = self.shims.registry.get(&by.shim).map(|shim| shim.description().version.clone());
        let (state, reason, help) = match here {
            None => (
                ShardState::NoShim,
                Some(format!("shim `{}` is missing", by.shim)),
                Some(
                    "put the shim into a directory of shims; `shardwright doctor` lists the searched directories"
                        .to_owned(),
                ),
            ),
            Some(_) => self.ask(bundle, shard),
        };
        ShardPrognosis {
            name: shard.name.clone(),
            compiled_by: format!("{} {}", by.shim, by.version),
            shim_here: here,
            device: by.device.clone(),
            state,
            reason,
            help,
            advice: self.advisers.on_shard(shard),
        }
    }

    fn ask(&mut self, bundle: &Bundle, shard: &ShardEntry) -> (ShardState, Option<String>, Option<String>) {
        let by = &shard.compiled_by;
        let shims = self.shims;
        let again = || Some("compile the checkpoint again with this machine's shims".to_owned());
        // Hashed and not opened, since an artefact between pages would be copied into memory.
        if let Err(error) = bundle.proved(&shard.artefact) {
            return (ShardState::Damaged, Some(error.to_string()), error.help().map(Into::into));
        }
        let heads = match heads_of(bundle, shard) {
            Ok(heads) => heads,
            Err(error) => {
                return (ShardState::Damaged, Some(error.to_string()), error.help().map(str::to_owned));
            }
        };
        // A shim may have devices of the chip that are not in this machine.
        let opened = self.opened.entry(key_of(shard)).or_insert_with(|| {
            let instance = shims.open_to_compile(&by.shim, "prognosis", &[], by.simulated)?;
            // The chip properties that the shim read from the profile when it compiled.
            know_chip(&instance, &heads)?;
            let devices = devices_for(&instance, shard)?;
            Ok(Opened { instance, devices })
        });
        let (instance, devices) = match opened {
            Ok(opened) => (&opened.instance, &opened.devices),
            Err(error) => {
                return (ShardState::Unknown, Some(error.to_string()), error.help().map(str::to_owned));
            }
        };
        match devices.iter().find(|device| device.name == by.device) {
            Some(device) if device.kind == DeviceKind::Offline => {
                let error = only_compiles(shard, device);
                return (ShardState::Offline, Some(error.to_string()), error.help().map(str::to_owned));
            }
            Some(_) => {}
            None => {
                let reason = format!("shim `{}` has no device `{}` here", by.shim, by.device);
                let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
                let help = match names.as_slice() {
                    [] => "the shim has no devices here".to_owned(),
                    names => format!("available devices: {}", names.join(", ")),
                };
                return (ShardState::NoDevice, Some(reason), Some(help));
            }
        }
        match instance.compatibility(&by.device, &heads) {
            Ok(Compatibility::Optimal) => (ShardState::Optimal, None, None),
            Ok(Compatibility::Recompile(reason)) => (ShardState::Recompile, Some(reason), again()),
            Ok(Compatibility::Unsupported(reason)) => (ShardState::Unsupported, Some(reason), again()),
            Ok(Compatibility::NotMine(reason)) => (ShardState::NotMine, Some(reason), again()),
            Err(error) => (ShardState::Unknown, Some(error.to_string()), error.help()),
        }
    }
}
