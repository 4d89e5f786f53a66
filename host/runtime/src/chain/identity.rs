//! Identity of a chain: which chains compute states with the same bits.

use std::sync::{Arc, Weak};

use serde::Serialize;
use shardwright_bundle::Digest;
use shardwright_graph::{Asset, Segments, WeightData};
use shardwright_vocabulary::{Place, Table};

use super::{Chain, Shared};
use crate::storage::Storage;

/// A reference to a chain that does not keep it loaded.
#[derive(Clone)]
pub(crate) struct ChainMark(Weak<Shared>);

impl ChainMark {
    /// Checks whether it refers to this chain.
    pub(crate) fn is_of(&self, chain: &Chain) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&chain.shared))
    }

    /// Checks whether the chain is still loaded.
    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// Everything that determines the bits of a shard's results.
#[derive(Serialize)]
struct Shard<'c> {
    name: &'c str,
    segments: &'c Segments,
    place: &'c Place,
    engine: &'c str,
    artefact: String,
    logits_softcap: Option<f32>,
}

/// Everything that determines the bits of states, except for the tables.
#[derive(Serialize)]
struct Engine<'c> {
    architecture: &'static str,
    shards: Vec<Shard<'c>>,
    states: Vec<(u64, u64, Storage)>,
}

/// A gathered table, with the hashes of its values and scales.
type Hashed<'c> = (&'c Table<()>, Digest, Option<Digest>);

/// Identity of a loaded chain. Sessions on chains with equal identities can exchange states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainIdentity {
    /// SHA-256 of the gathered tables of the model.
    pub tables: [u8; 32],
    /// SHA-256 of the artefacts, the places of shards, the versions of their shims, the storage of
    /// states, and the processor architecture.
    pub engine: [u8; 32],
}

fn digest(data: &WeightData) -> Digest {
    let digest = Digest::of(data.bytes());
    // Only the rows of a step's tokens are needed again.
    data.release(0..data.bytes().len());
    digest
}

fn digests(asset: &Asset) -> (Digest, Option<Digest>) {
    let scales = asset.table.quantisation.as_ref().map(|quantisation| digest(&quantisation.scales));
    (digest(&asset.table.data), scales)
}

impl Chain {
    pub(crate) fn mark(&self) -> ChainMark {
        ChainMark(Arc::downgrade(&self.shared))
    }

    /// Returns the identity of everything that determines the bits of states. The first call hashes
    /// the gathered tables, about a gigabyte per second.
    ///
    /// Returns `None` if a shard was not loaded from an artefact, because its weights are then
    /// unknown.
    pub fn identity(&self) -> Option<ChainIdentity> {
        *self.shared.identity.get_or_init(|| self.identified())
    }

    fn identified(&self) -> Option<ChainIdentity> {
        let Shared { description, artefacts, engines, assets, layout, .. } = &*self.shared;
        if artefacts.len() != description.shards.len() {
            return None;
        }
        let shards = description.shards.iter().zip(artefacts).zip(engines);
        let shards = shards.map(|((shard, artefact), engine)| Shard {
            name: &shard.name,
            segments: &shard.segments,
            place: &shard.place,
            engine,
            artefact: artefact.name(),
            logits_softcap: shard.logits_softcap,
        });
        let states = layout.states.iter().map(|plan| (plan.capacity, plan.window, plan.storage));
        let engine = Engine {
            architecture: std::env::consts::ARCH,
            shards: shards.collect(),
            states: states.collect(),
        };
        let tables = description.assets.iter().zip(assets).map(|(table, asset)| {
            let (values, scales) = digests(asset);
            (table, values, scales)
        });
        let tables: Vec<Hashed<'_>> = tables.collect();
        let digest = |json: serde_json::Result<Vec<u8>>| Some(*Digest::of(&json.ok()?).bytes());
        let (tables, engine) = (serde_json::to_vec(&tables), serde_json::to_vec(&engine));
        Some(ChainIdentity { tables: digest(tables)?, engine: digest(engine)? })
    }
}
