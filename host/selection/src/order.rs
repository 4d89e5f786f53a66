//! The order in which the chains of a bundle are tried on a machine.

use serde::Serialize;
use shardwright_bundle::{Bundle, ChainEntry, ShardEntry, Variant};
use shardwright_vocabulary::{DeviceKind, Pass, Result, TargetKind};

use crate::compiled_for::is_for;
use crate::machine::Machine;
use crate::shard_standing::{ShardStanding, Standing};

/// How well a chain suits a machine, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// The first chain of the chip's own variant, or one of its hedges.
    Own,
    /// The first chain of the chip's own variant, if compiling again would give a better artefact,
    /// or one of its hedges.
    OwnRecompile,
    /// The first chain of a variant for another chip, which the shim accepts on this one.
    Sibling,
    /// A later chain of one of these variants.
    Fallback,
    /// The first chain of a variant for any machine.
    General,
    /// The first chain of a variant for a chip that is simulated or emulated here.
    StandIn,
    /// A later chain of a variant for a chip that is not here.
    Elsewhere,
}

impl Tier {
    /// Returns a description for a column of a table.
    pub const fn meaning(self) -> &'static str {
        match self {
            Tier::Own => "own variant",
            Tier::OwnRecompile => "own variant, recompile advised",
            Tier::Sibling => "variant of a similar chip",
            Tier::Fallback => "fallback",
            Tier::General => "generic variant",
            Tier::StandIn => "simulated or emulated chip",
            Tier::Elsewhere => "variant of another chip",
        }
    }
}

/// A chain that runs on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// Position of the variant in the manifest.
    #[serde(skip)]
    pub variant: usize,
    /// Position of the chain in the variant.
    #[serde(skip)]
    pub chain: usize,
    /// The chip of the variant.
    pub soc: String,
    pub name: String,
    /// How well it suits the machine.
    pub tier: Tier,
    /// Results of its shards.
    pub shards: Vec<ShardStanding>,
}

impl Candidate {
    /// Returns why the chain is not optimal, if there is a reason.
    pub fn reason(&self) -> Option<&str> {
        self.shards.iter().find_map(|shard| shard.reason.as_deref())
    }
}

/// A chain that does not run on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Passed {
    /// Position of the variant in the manifest.
    #[serde(skip)]
    pub variant: usize,
    /// Position of the chain in the variant.
    #[serde(skip)]
    pub chain: usize,
    /// How well it would suit the machine after compiling again. A device is here, but it refuses
    /// the artefact. `None` if compiling cannot help.
    #[serde(skip)]
    pub anew: Option<Tier>,
    /// The chip of the variant.
    pub soc: String,
    pub name: String,
    /// Name of the first shard that does not run.
    pub shard: String,
    /// Result of that shard.
    #[serde(flatten)]
    pub standing: ShardStanding,
}

/// Chains that run on a machine, and chains that do not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Selection {
    /// Chains that run, the best first.
    pub candidates: Vec<Candidate>,
    /// Chains that do not run, in the order of their chips' names, then of the variant.
    pub passed: Vec<Passed>,
}

/// Orders the chains of a bundle's text model for a machine. Chains that suit it equally well are
/// in the order of the variant's own fallbacks, then of the names of chips.
///
/// # Errors
///
/// The bundle is damaged.
pub fn select(bundle: &Bundle, machine: &mut dyn Machine) -> Result<Selection> {
    let mut selection = Selection::default();
    for index in 0..bundle.manifest().variants.len() {
        selection.add(bundle, index, Pass::Step, machine)?;
    }
    Ok(selection.ordered())
}

/// Orders the chains of one pass of one variant, for a tower whose text variant was selected
/// before.
///
/// # Errors
///
/// The bundle is damaged.
pub fn select_of(
    bundle: &Bundle,
    variant: usize,
    pass: Pass,
    machine: &mut dyn Machine,
) -> Result<Selection> {
    let mut selection = Selection::default();
    selection.add(bundle, variant, pass, machine)?;
    Ok(selection.ordered())
}

impl Selection {
    fn add(&mut self, bundle: &Bundle, index: usize, pass: Pass, machine: &mut dyn Machine) -> Result<()> {
        let Some(variant) = bundle.manifest().variants.get(index) else { return Ok(()) };
        let chains = variant.model_of(pass).map_or(&[][..], |model| model.chains);
        let stands: Vec<Vec<ShardStanding>> = chains
            .iter()
            .map(|chain| chain.shards.iter().map(|shard| machine.stands(bundle, variant, shard)).collect())
            .collect::<Result<_>>()?;
        let (Some(chain), Some(shards)) = (chains.first(), stands.first()) else { return Ok(()) };
        let first = tier(variant, chain, shards, machine);
        let refuses = |shard: &ShardStanding| shard.hindered && shard.kind == Some(DeviceKind::Present);
        // The chip is here and refuses all its shards, or another device of its machine is here.
        let is_present = shards.iter().any(refuses)
            || chains.iter().zip(&stands).any(|(chain, shards)| is_on_a_chip(chain, shards));
        let later = match first {
            Some(Tier::Own | Tier::OwnRecompile | Tier::Sibling) => Tier::Fallback,
            None if is_named(variant, machine) || is_present => Tier::Fallback,
            _ => Tier::Elsewhere,
        };
        for (position, (chain, shards)) in chains.iter().zip(stands).enumerate() {
            let (soc, name) = (variant.soc.to_string(), chain.name.clone());
            let stuck = shards.iter().zip(&chain.shards).find(|(shard, _)| !shard.is_here());
            if let Some((standing, shard)) = stuck {
                let (standing, shard) = (standing.clone(), shard.name.clone());
                let own = if position == 0 { refused_tier(variant, &standing, machine) } else { Some(later) };
                let anew = own.filter(|_| standing.hindered && standing.kind.is_some());
                self.passed.push(Passed {
                    variant: index,
                    chain: position,
                    anew,
                    soc,
                    name,
                    shard,
                    standing,
                });
                continue;
            }
            // A hedge suits the machine as well as the chain that it replaces.
            let tier = match first {
                Some(first) if position == 0 || chain.is_hedge() => first,
                None if position == 0 => Tier::Elsewhere,
                _ => later,
            };
            self.candidates.push(Candidate { variant: index, chain: position, soc, name, tier, shards });
        }
        Ok(())
    }

    fn ordered(mut self) -> Self {
        self.candidates.sort_by(|one, other| {
            (one.tier, one.chain, &one.soc).cmp(&(other.tier, other.chain, &other.soc))
        });
        // The sort is stable, so chains of a variant stay in its order.
        self.passed.sort_by(|one, other| one.soc.cmp(&other.soc));
        self
    }
}

/// Checks whether a chain runs on a device of this machine other than the CPU, and was compiled for
/// that device.
fn is_on_a_chip(chain: &ChainEntry, shards: &[ShardStanding]) -> bool {
    let own = |(stands, shard): (&ShardStanding, &ShardEntry)| {
        shard.target.kind != TargetKind::Cpu
            && shard.compiled_by.shim == shard.target.shim
            && stands.standing == Standing::Own
            && stands.kind == Some(DeviceKind::Present)
    };
    shards.iter().all(ShardStanding::is_here) && shards.iter().zip(&chain.shards).any(own)
}

/// Checks whether the variant is for the chip that was named for the machine.
fn is_named(variant: &Variant, machine: &dyn Machine) -> bool {
    machine.chip().is_some_and(|chip| is_for(variant, chip))
}

/// Returns how well the first chain of a variant would suit if its device accepted it, or `None` if
/// another chip was named for the machine.
fn refused_tier(variant: &Variant, standing: &ShardStanding, machine: &dyn Machine) -> Option<Tier> {
    match machine.chip() {
        Some(_) => is_named(variant, machine).then_some(Tier::Own),
        None if standing.kind == Some(DeviceKind::Present) => Some(Tier::Own),
        None => Some(Tier::StandIn),
    }
}

/// Returns how well the first chain of a variant suits, or `None` if it does not run.
fn tier(
    variant: &Variant,
    chain: &ChainEntry,
    shards: &[ShardStanding],
    machine: &dyn Machine,
) -> Option<Tier> {
    if !shards.iter().all(ShardStanding::is_here) {
        return None;
    }
    let is_for_a_chip = chain.shards.iter().any(|shard| shard.target.kind != TargetKind::Cpu);
    if !is_for_a_chip {
        return Some(if is_named(variant, machine) { Tier::Own } else { Tier::General });
    }
    let is_sibling = shards.iter().any(|shard| shard.standing == Standing::Sibling);
    let is_best = shards.iter().all(|shard| shard.reason.is_none());
    let own = if is_best { Tier::Own } else { Tier::OwnRecompile };
    if machine.chip().is_some() {
        return Some(match (is_named(variant, machine), is_sibling) {
            (true, _) => own,
            (false, true) => Tier::Sibling,
            // Emulated on this machine's CPU, for a chip other than the named one.
            (false, false) => Tier::Elsewhere,
        });
    }
    // Only shards on chips count, because the CPU shim of any machine can run the others.
    let chips = shards.iter().zip(&chain.shards);
    let mut chips = chips.filter(|(_, shard)| shard.target.kind != TargetKind::Cpu).map(|(stands, shard)| {
        stands.kind == Some(DeviceKind::Present) && shard.compiled_by.shim == shard.target.shim
    });
    Some(match (chips.all(|is_present| is_present), is_sibling) {
        (true, true) => Tier::Sibling,
        (true, false) => own,
        (false, _) => Tier::StandIn,
    })
}
