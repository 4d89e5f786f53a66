//! A variant of a bundle: the model compiled for one chip.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use shardwright_graph::{ComponentKind, Graph, Segments, State};
use shardwright_vocabulary::{
    ChosenSpeculation, EntryName, Flag, FlagRecord, NodePlacement, Notice, Pass, PlainName, PlannerIdentity,
    Rewrite, ShardFormats, ShardOrigin, ShimIdentity, Target,
};

use super::{AssetEntry, FileReference};
use crate::Digest;

/// The model compiled for one chip: its shards, its compilers, and its verifications. Variants
/// share files with equal content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// The profile used for planning. It is unique within the bundle.
    pub soc: PlainName,
    /// Other names of that chip.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// The calibration that its activation formats use, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Digest>,
    /// The planner that decided about its first chain.
    pub planner: PlannerIdentity,
    /// Further options of the request by name, such as `context`, or `limit` with a member `ops`:
    /// JSON of the crate that built the variant.
    pub options: BTreeMap<String, Value>,
    /// Properties of the model that the runtime needs in addition to the shards.
    pub structure: Structure,
    /// Gathered tables, by [`AssetId`](shardwright_graph::AssetId).
    pub assets: Vec<AssetEntry>,
    /// The chain to run, followed by the fallback chains in order. There is at least one.
    pub chains: Vec<ChainEntry>,
    /// The towers that process pictures and sounds before the text. Each pass occurs once, in
    /// order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub towers: Vec<TowerEntry>,
    pub verifications: Vec<Verification>,
    /// Notices for the user.
    pub notices: Vec<Notice>,
}

/// The properties of the model that running shards needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Structure {
    /// Values per row of the residual stream.
    pub hidden: u64,
    /// Values per row of the logits, or 0 without a head.
    pub vocabulary: u64,
    /// Number of positions that the model supports.
    pub context: u64,
    /// Values per layer and row of the per-layer inputs, or 0 without them.
    pub per_layer_width: u64,
    /// Number of decoder layers.
    pub layers: u32,
    /// Required components, in the order in which a step runs them.
    pub components: Vec<ComponentKind>,
    /// All states, by [`StateId`](shardwright_graph::StateId).
    pub states: Vec<State>,
}

impl Structure {
    /// Returns the properties of a graph.
    pub fn of(graph: &Graph) -> Structure {
        Structure {
            hidden: graph.hidden,
            vocabulary: graph.vocabulary,
            context: graph.context,
            per_layer_width: graph.per_layer_width,
            layers: graph.layers(),
            components: graph.components.iter().map(|component| component.kind).collect(),
            states: graph.states.clone(),
        }
    }

    /// Returns whether text is generated step by step (there are states), or encoded in one pass.
    pub fn is_generative(&self) -> bool {
        !self.states.is_empty()
    }
}

/// Ordered shards that form the model, and their plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainEntry {
    /// A name that is unique within the variant, such as `primary` or `cpu`.
    pub name: String,
    /// The executor that replaces the planned targets, if any. Every report states it first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulated_on: Option<String>,
    /// Limits of a hedge, by name. A hedge is planned on the chip of the first chain within tighter
    /// limits, for a device that cannot load the first chain. Empty for other chains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<(String, u64)>,
    /// The planner of the chain, if it is not the variant's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planner: Option<PlannerIdentity>,
    /// The request to the planner: canonical JSON of the planning crate.
    pub request: FileReference,
    /// The planner's checked answer: canonical JSON of the planning crate.
    pub plan: FileReference,
    /// The plan in the form of reports: JSON of the crate that built it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<FileReference>,
    /// Set if tokens of a draft are verified, at an entry point that all of its shards have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speculation: Option<ChosenSpeculation>,
    /// The shards in the order in which a step runs them. There is at least one.
    pub shards: Vec<ShardEntry>,
}

impl ChainEntry {
    /// Returns whether the chain is a hedge.
    pub fn is_hedge(&self) -> bool {
        !self.within.is_empty()
    }
}

/// The tower of a pass: a separate model, whose output rows are inputs of the text model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TowerEntry {
    /// The pass of the tower, never that of a step.
    pub pass: Pass,
    /// Hash over the values of its weights and tables in the checkpoint.
    pub weights: Digest,
    /// Its properties, without states.
    pub structure: Structure,
    /// Its gathered tables, by [`AssetId`](shardwright_graph::AssetId).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assets: Vec<AssetEntry>,
    /// The chain to run, followed by others to try in order. There is at least one. Their names are
    /// unique within the variant.
    pub chains: Vec<ChainEntry>,
}

/// The text model or a tower, as run by chains.
#[derive(Clone, Copy, Debug)]
pub struct Model<'m> {
    pub pass: Pass,
    pub structure: &'m Structure,
    pub assets: &'m [AssetEntry],
    /// The chains, in the order in which they are tried.
    pub chains: &'m [ChainEntry],
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardEntry {
    /// A name that is unique within its chain, such as `decoder.0-12` or `head`.
    pub name: String,
    pub segments: Segments,
    /// The target in the plan.
    pub target: Target,
    /// The shim that compiled the shard and must load it.
    pub compiled_by: ShimIdentity,
    /// Formats of weights, activations and states.
    pub formats: ShardFormats,
    pub entries: Vec<EntryName>,
    /// The output of `compile`, in the artefact format of the shims.
    pub artefact: FileReference,
    /// The heads of the artefact, as the shims' crate writes them: its maker, its interface, its
    /// chip, and the shim's own head. Variants are chosen by this file, so that no unverified byte
    /// of an artefact is parsed.
    pub head: FileReference,
    /// Name of the work order that the shard was compiled from.
    pub work_order: Digest,
    /// The requested flags and their outcomes.
    pub flags: Vec<FlagRecord>,
    /// The flags for loading, unless a session overrides them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load_flags: Vec<Flag>,
    /// Nodes and states that run differently from the graph.
    pub rewritten: Vec<Rewrite>,
    /// The cap of a soft-cap, cap · tanh(logits / cap), that the runtime applies to the logits of
    /// this shard. `None` if it applies none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logits_softcap: Option<f32>,
    /// Nodes that do not run on the device itself.
    pub placements: Vec<NodePlacement>,
}

impl ShardEntry {
    /// Returns the requested properties of the shard and their outcome, as known at compile time.
    pub fn origin(&self) -> ShardOrigin {
        ShardOrigin {
            requested: Some(self.target.clone()),
            compiled_by: Some(self.compiled_by.clone()),
            formats: Some(self.formats.clone()),
            flags: self.flags.clone(),
            rewritten: self.rewritten.clone(),
            placements: self.placements.clone(),
            ..ShardOrigin::default()
        }
    }
}

/// The result of a verification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verification {
    /// A name that is unique within the variant, such as `boundaries` or `goldens`.
    pub name: String,
    pub chain: String,
    pub passed: bool,
    /// A summary in one sentence with numbers.
    pub summary: String,
    /// The full report: JSON of the crate that made it.
    pub report: FileReference,
    /// The artefacts that were run instead of the chain's own, if those do not run on the machine
    /// of the verification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twin: Option<TwinEntry>,
}

/// Artefacts compiled for another device from the same work orders of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TwinEntry {
    /// The device that they were compiled for and ran on.
    pub device: String,
    /// Hashes of the artefacts, in the order of the chain's shards. They are not part of the
    /// bundle.
    pub artefacts: Vec<Digest>,
    /// Their difference from the artefacts of the bundle, in one sentence.
    pub differs: String,
}

impl Variant {
    /// Returns whether the variant is for the chip with this name or alias.
    pub fn is_for(&self, chip: &str) -> bool {
        let mut names = self.aliases.iter().map(String::as_str).chain([self.soc.as_str()]);
        names.any(|name| name.eq_ignore_ascii_case(chip))
    }

    /// Returns the text model and the towers.
    pub fn models(&self) -> impl Iterator<Item = Model<'_>> {
        let text = Model {
            pass: Pass::Step,
            structure: &self.structure,
            assets: &self.assets,
            chains: &self.chains,
        };
        let towers = self.towers.iter().map(|tower| Model {
            pass: tower.pass,
            structure: &tower.structure,
            assets: &tower.assets,
            chains: &tower.chains,
        });
        std::iter::once(text).chain(towers)
    }

    /// Returns the text model or the tower that runs in a pass.
    pub fn model_of(&self, pass: Pass) -> Option<Model<'_>> {
        self.models().find(|model| model.pass == pass)
    }

    /// Returns every chain, of the text model and of towers.
    pub fn all_chains(&self) -> impl Iterator<Item = &ChainEntry> {
        self.models().flat_map(|model| model.chains)
    }

    /// Returns the chain with this name.
    pub fn chain(&self, name: &str) -> Option<&ChainEntry> {
        self.all_chains().find(|chain| chain.name == name)
    }

    /// Returns every file with the field that names it, in the order of the fields.
    pub fn references(&self) -> Vec<(String, FileReference)> {
        let mut found = Vec::new();
        assets_of(&mut found, "", &self.assets);
        chains_of(&mut found, "", &self.chains);
        for (index, tower) in self.towers.iter().enumerate() {
            let at = format!("towers[{index}].");
            assets_of(&mut found, &at, &tower.assets);
            chains_of(&mut found, &at, &tower.chains);
        }
        let verifications = self.verifications.iter().enumerate();
        found.extend(
            verifications.map(|(index, entry)| (format!("verifications[{index}].report"), entry.report)),
        );
        found
    }
}

/// Files with the fields that name them.
type Named = Vec<(String, FileReference)>;

fn assets_of(found: &mut Named, at: &str, assets: &[AssetEntry]) {
    for (index, asset) in assets.iter().enumerate() {
        found.push((format!("{at}assets[{index}].table"), asset.table));
        if let Some(quantisation) = &asset.quantisation {
            found.push((format!("{at}assets[{index}].quantisation.scales"), quantisation.scales));
        }
    }
}

fn chains_of(found: &mut Named, at: &str, chains: &[ChainEntry]) {
    for (index, chain) in chains.iter().enumerate() {
        let at = format!("{at}chains[{index}]");
        found.extend([(format!("{at}.request"), chain.request), (format!("{at}.plan"), chain.plan)]);
        found.extend(chain.report.map(|report| (format!("{at}.report"), report)));
        for (index, shard) in chain.shards.iter().enumerate() {
            found.push((format!("{at}.shards[{index}].artefact"), shard.artefact));
            found.push((format!("{at}.shards[{index}].head"), shard.head));
        }
    }
}
