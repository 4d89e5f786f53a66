//! A variant of a bundle: what the model is compiled into for one chip.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardwright_graph::{ComponentKind, Graph, Segments, State};
use shardwright_vocabulary::{
    ChosenSpeculation, EntryName, Flag, FlagOutcome, NodePlacement, Notice, Pass, PlannerIdentity, Rewrite,
    ShardFormats, ShardOrigin, ShimIdentity, Target,
};

use super::{AssetEntry, FileReference};
use crate::Digest;

/// What the model is compiled into for one chip: how it is cut, who compiled it, how it was proved.
/// Variants share files by content: what two of them need is there once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// The profile planned for; unique within the bundle.
    pub soc: String,
    /// Other names of that chip.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// The calibration that its activation formats use, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Digest>,
    /// The planner.
    pub planner: PlannerIdentity,
    /// Further options of the request, by name: `context`, `limit.ops`, `planner.place.head`, …
    pub options: BTreeMap<String, String>,
    /// Properties of the model that the runtime needs besides the shards.
    pub structure: Structure,
    /// Gathered tables, by [`AssetId`](shardwright_graph::AssetId).
    pub assets: Vec<AssetEntry>,
    /// The chain to run, then those to continue on when it fails, in order; at least one.
    pub chains: Vec<ChainEntry>,
    /// What pictures and sounds go through before the text, each pass once, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub towers: Vec<TowerEntry>,
    /// Results of verification.
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
    /// Values per row of the logits; 0 without a head.
    pub vocabulary: u64,
    /// Positions the model was made for.
    pub context: u64,
    /// Values per layer and row of the per-layer inputs; 0 for none.
    pub per_layer_width: u64,
    /// Layers of the decoder.
    pub layers: u32,
    /// Components that must be there, in the order in which a step runs them.
    pub components: Vec<ComponentKind>,
    /// All states, by [`StateId`](shardwright_graph::StateId).
    pub states: Vec<State>,
}

impl Structure {
    /// From a graph.
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

    /// Whether text is generated step by step (there are states), or encoded in one pass.
    pub fn is_generative(&self) -> bool {
        !self.states.is_empty()
    }
}

/// Ordered shards that form the model, and their plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainEntry {
    /// Unique within the variant: `primary`, `cpu`.
    pub name: String,
    /// The executor that replaces the planned targets, if any; it heads every report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulated_on: Option<String>,
    /// The request to the planner: canonical JSON of the planning crate.
    pub request: FileReference,
    /// Its checked answer: canonical JSON of the planning crate.
    pub plan: FileReference,
    /// The plan in the form of reports: JSON of the crate that built it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<FileReference>,
    /// That tokens of a draft are verified, at an entry point that all of its shards have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speculation: Option<ChosenSpeculation>,
    /// In the order in which a step runs them; at least one.
    pub shards: Vec<ShardEntry>,
}

/// The tower of a pass: a model of its own, whose rows go into the text's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TowerEntry {
    /// When it runs; never that of a step.
    pub pass: Pass,
    /// Hash over the values of its weights and tables in the checkpoint.
    pub weights: Digest,
    /// Its properties; without states.
    pub structure: Structure,
    /// Its gathered tables, by [`AssetId`](shardwright_graph::AssetId).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assets: Vec<AssetEntry>,
    /// The chain to run, then others to try, in order; at least one. Their names are unique within
    /// the variant.
    pub chains: Vec<ChainEntry>,
}

/// What a chain runs: the text or a tower.
#[derive(Clone, Copy, Debug)]
pub struct Model<'m> {
    /// When it runs.
    pub pass: Pass,
    /// Its properties.
    pub structure: &'m Structure,
    /// Its gathered tables.
    pub assets: &'m [AssetEntry],
    /// Its chains, in the order in which they are tried.
    pub chains: &'m [ChainEntry],
}

/// One compiled shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardEntry {
    /// Unique within its chain: `decoder.0-12`, `head`.
    pub name: String,
    /// Its segments.
    pub segments: Segments,
    /// The target in the plan.
    pub target: Target,
    /// The shim that compiled it and must load it.
    pub compiled_by: ShimIdentity,
    /// Formats of weights, activations and states.
    pub formats: ShardFormats,
    /// Its entry points.
    pub entries: Vec<EntryName>,
    /// The output of `compile`, in the artefact format of the shims.
    pub artefact: FileReference,
    /// The heads of the artefact, as the shims' crate writes them: its maker, its interface, its
    /// chip, and the shim's own head. A variant is chosen by this file, so that no unverified byte
    /// of an artefact is parsed.
    pub head: FileReference,
    /// The work order it was compiled from, by its name.
    pub work_order: Digest,
    /// Flags that were requested, and their outcomes.
    pub flags: Vec<FlagOutcome>,
    /// Flags that it is loaded with, unless a session says otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load_flags: Vec<Flag>,
    /// Nodes and states that run differently from the graph.
    pub rewritten: Vec<Rewrite>,
    /// The cap of a soft-cap, cap · tanh(logits / cap), that the runtime applies to the logits of
    /// this shard; `None` if it applies none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logits_softcap: Option<f32>,
    /// Nodes that run elsewhere than on the device itself.
    pub placements: Vec<NodePlacement>,
}

impl ShardEntry {
    /// What was requested for the shard and the outcome, as known when it was compiled.
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

/// A verification that was run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verification {
    /// Unique within the variant: `boundaries`, `goldens`.
    pub name: String,
    /// The chain it ran on.
    pub chain: String,
    /// Whether it passed.
    pub passed: bool,
    /// One sentence with numbers.
    pub summary: String,
    /// The whole report, JSON of the crate that made it.
    pub report: FileReference,
    /// The artefacts that were run instead of the chain's own, if those do not run on the machine
    /// of the verification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twin: Option<TwinEntry>,
}

/// Artefacts compiled from the same work orders of a chain, for another device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TwinEntry {
    /// The device they were made for, and ran on.
    pub device: String,
    /// Their hashes, in the order of the chain's shards. They are no part of the bundle.
    pub artefacts: Vec<Digest>,
    /// How they differ from those of the bundle, in one sentence.
    pub differs: String,
}

impl Variant {
    /// Whether it is for the chip of that name, its own or another.
    pub fn is_for(&self, chip: &str) -> bool {
        let mut names = self.aliases.iter().chain([&self.soc]);
        names.any(|name| name.eq_ignore_ascii_case(chip))
    }

    /// The text and the towers.
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

    /// The text or the tower that runs in a pass.
    pub fn model_of(&self, pass: Pass) -> Option<Model<'_>> {
        self.models().find(|model| model.pass == pass)
    }

    /// Every chain, of the text and of towers.
    pub fn all_chains(&self) -> impl Iterator<Item = &ChainEntry> {
        self.models().flat_map(|model| model.chains)
    }

    /// The chain of that name.
    pub fn chain(&self, name: &str) -> Option<&ChainEntry> {
        self.all_chains().find(|chain| chain.name == name)
    }

    /// Every file named, with the field that names it, in the order of the fields.
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
