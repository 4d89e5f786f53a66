//! Where everything ran, and what was copied in between.

use serde::Serialize;

use crate::chain::Chain;
use crate::description::Place;

/// What became of every shard, boundary and state of a session. Counts are since the session began.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlacementRecord {
    /// The model's name.
    pub model: String,
    /// In the order in which a step runs them.
    pub shards: Vec<ShardPlacement>,
    /// What passes between shards.
    pub boundaries: Vec<BoundaryPlacement>,
    /// Keys and values.
    pub states: Vec<StatePlacement>,
    /// Steps under each entry point.
    pub entries: Vec<EntryPlacement>,
}

/// Where a shard runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShardPlacement {
    /// Its name.
    pub shard: String,
    /// Its component.
    pub component: shardwright_graph::ComponentKind,
    /// First layer and one past the last.
    pub layers: (u32, u32),
    /// Instance, shim and device.
    pub place: Place,
    /// Runs of any entry.
    pub runs: u64,
    /// Time spent in runs, in nanoseconds.
    pub nanoseconds: u64,
}

/// What passes from one shard to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoundaryPlacement {
    /// `hidden`, `per-layer`
    pub what: &'static str,
    /// Who gives it.
    pub from: String,
    /// Who takes it.
    pub to: String,
    /// As it is given.
    pub from_storage: String,
    /// As it is taken.
    pub to_storage: String,
    /// Why it is copied; `None` where both bind one buffer.
    pub copied_because: Option<&'static str>,
    /// Bytes written into copies.
    pub bytes_copied: u64,
}

/// Where a state lies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StatePlacement {
    /// `layer.3.k`
    pub state: String,
    /// The shard that writes it.
    pub writer: String,
    /// Other shards that read it.
    pub readers: Vec<String>,
    /// Rows.
    pub capacity: u64,
    /// Size.
    pub bytes: u64,
    /// `in-graph` or `by-runtime`
    pub update: &'static str,
}

/// Steps under an entry point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EntryPlacement {
    /// `decode_1@4096`
    pub entry: String,
    /// Shards that take part.
    pub shards: Vec<String>,
    /// Completed steps.
    pub steps: u64,
    /// Valid rows of those.
    pub rows: u64,
    /// Bytes of step inputs written, those of failed steps included.
    pub input_bytes: u64,
}

/// Counts of a session, by index.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub shards: Vec<(u64, u64)>,
    pub boundaries: Vec<u64>,
    pub entries: Vec<EntryCounter>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EntryCounter {
    pub steps: u64,
    pub rows: u64,
    pub input_bytes: u64,
}

impl Counters {
    pub(crate) fn new(chain: &Chain) -> Self {
        Counters {
            shards: vec![(0, 0); chain.description().shards.len()],
            boundaries: vec![0; chain.layout().boundaries.len()],
            entries: vec![EntryCounter::default(); chain.layout().schedules.len()],
        }
    }

    pub(crate) fn record(&self, chain: &Chain) -> PlacementRecord {
        let (description, layout) = (chain.description(), chain.layout());
        let name = |shard: usize| description.shards[shard].name.clone();
        PlacementRecord {
            model: description.model.clone(),
            shards: description
                .shards
                .iter()
                .zip(&self.shards)
                .map(|(shard, &(runs, nanoseconds))| ShardPlacement {
                    shard: shard.name.clone(),
                    component: shard.component,
                    layers: shard.layers,
                    place: shard.place.clone(),
                    runs,
                    nanoseconds,
                })
                .collect(),
            boundaries: layout
                .boundaries
                .iter()
                .zip(&self.boundaries)
                .map(|(boundary, &bytes_copied)| BoundaryPlacement {
                    what: boundary.what,
                    from: name(boundary.from),
                    to: name(boundary.to),
                    from_storage: boundary.from_storage.to_string(),
                    to_storage: boundary.to_storage.to_string(),
                    copied_because: boundary.copied_because,
                    bytes_copied,
                })
                .collect(),
            states: description
                .states
                .iter()
                .zip(&layout.states)
                .map(|(state, plan)| StatePlacement {
                    state: state.name.clone(),
                    writer: name(plan.writer),
                    readers: plan.readers.iter().map(|&shard| name(shard)).collect(),
                    capacity: plan.capacity,
                    bytes: plan.bytes,
                    update: if plan.by_runtime { "by-runtime" } else { "in-graph" },
                })
                .collect(),
            entries: layout
                .schedules
                .iter()
                .zip(&self.entries)
                .map(|(schedule, counter)| EntryPlacement {
                    entry: schedule.name.clone(),
                    shards: schedule.runs.iter().map(|run| name(run.shard)).collect(),
                    steps: counter.steps,
                    rows: counter.rows,
                    input_bytes: counter.input_bytes,
                })
                .collect(),
        }
    }
}
