//! Where everything ran, and what was copied in between.

use serde::Serialize;
use shardwright_vocabulary::{Beforehand, Place, ProcessPlacement, ShardOrigin};

use crate::chain::Chain;

/// Placement of every shard, boundary and state of a session. Counts start when the session began
/// on this chain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlacementRecord {
    /// The model's name.
    pub model: String,
    /// The substitute for the planned targets, if any; it heads every report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emulated_on: Option<String>,
    /// What happened before the chain was opened: other chains that could not be used, compilation
    /// that was done for it here.
    #[serde(skip_serializing_if = "Beforehand::is_nothing")]
    pub beforehand: Beforehand,
    /// In the order in which a step runs them.
    pub shards: Vec<ShardPlacement>,
    /// Tensors passed between shards.
    pub boundaries: Vec<BoundaryPlacement>,
    /// Keys and values.
    pub states: Vec<StatePlacement>,
    /// Steps under each entry point.
    pub entries: Vec<EntryPlacement>,
    /// Failovers of the session, first to last.
    pub moves: Vec<Move>,
}

/// A failover: the session resumed on another chain because its chain was lost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Move {
    /// Tokens of the history at that time, all of which the new chain runs again.
    pub tokens: usize,
    /// The shard that failed.
    pub shard: String,
    /// Where it ran.
    pub from: Place,
    /// Where the shards of the new chain run; each place once, in the order of a step.
    pub to: Vec<Place>,
    /// What went wrong.
    pub error: String,
    /// Chains tried before and unusable, with the reason.
    pub passed_over: Vec<String>,
    /// From the error to the end of the first step on the new chain; `None` before that.
    pub seconds_to_first_step: Option<f64>,
    /// From the error to the time when the history was complete again; `None` before that.
    pub seconds_to_catch_up: Option<f64>,
    /// The placement record until then; without earlier moves, which are listed beside this one.
    pub before: PlacementRecord,
}

/// A deviation from what was requested; `--strict` makes it an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fallback {
    /// The shard concerned.
    pub shard: String,
    /// The deviation.
    pub what: String,
    /// The reason; empty if none was given.
    pub because: String,
}

impl std::fmt::Display for Fallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.shard, self.what)?;
        if self.because.is_empty() { Ok(()) } else { write!(f, ": {}", self.because) }
    }
}

impl PlacementRecord {
    /// All deviations from what was requested: shards, nodes and flags of the chain, then the
    /// moves.
    pub fn fallbacks(&self) -> Vec<Fallback> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let reported = shard.origin.fallbacks(&shard.place, self.emulated_on.is_some());
            found.extend(reported.into_iter().map(|(what, because)| Fallback {
                shard: shard.shard.clone(),
                what,
                because,
            }));
        }
        found.extend(self.moves.iter().map(|moved| {
            let to: Vec<String> = moved.to.iter().map(Place::to_string).collect();
            Fallback {
                shard: moved.shard.clone(),
                what: format!(
                    "failed on {} at token {}; resumed on {}",
                    moved.from,
                    moved.tokens,
                    to.join(", ")
                ),
                because: moved.error.clone(),
            }
        }));
        found
    }
}

/// Where a shard runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShardPlacement {
    /// Its name.
    pub shard: String,
    /// Its segments.
    pub segments: shardwright_graph::Segments,
    /// Instance, shim and device.
    pub place: Place,
    /// Its process.
    #[serde(flatten)]
    pub process: ProcessPlacement,
    /// What was requested, and the outcome up to loading.
    #[serde(skip_serializing_if = "ShardOrigin::is_unknown")]
    pub origin: ShardOrigin,
    /// The cap of a soft-cap, cap · tanh(logits / cap), that the runtime applied in f32 to the
    /// logits of this shard, as planned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logits_softcap: Option<f32>,
    /// Runs of any entry.
    pub runs: u64,
    /// Time spent in runs, in nanoseconds.
    pub nanoseconds: u64,
}

/// A tensor passed from one shard to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoundaryPlacement {
    /// `hidden`, `per-layer`
    pub what: &'static str,
    /// The shard that produces it.
    pub from: String,
    /// The shard that consumes it.
    pub to: String,
    /// Storage at the producer.
    pub from_storage: String,
    /// Storage at the consumer.
    pub to_storage: String,
    /// Why it is copied; `None` where both bind one buffer.
    pub copied_because: Option<&'static str>,
    /// Bytes written into copies.
    pub bytes_copied: u64,
}

/// Placement of a state.
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
    /// How a value is stored.
    pub storage: String,
    /// `in-graph` or `by-runtime`
    pub update: &'static str,
    /// Storage of new rows, if the runtime updates the state and converts them.
    pub converted_from: Option<String>,
    /// Bytes of new rows that the runtime wrote to their slots.
    pub bytes_placed: u64,
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
    /// Bytes placed.
    pub states: Vec<u64>,
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
            states: vec![0; chain.layout().states.len()],
            entries: vec![EntryCounter::default(); chain.layout().schedules.len()],
        }
    }

    pub(crate) fn record(&self, chain: &Chain) -> PlacementRecord {
        let (description, layout) = (chain.description(), chain.layout());
        let name = |shard: usize| description.shards[shard].name.clone();
        PlacementRecord {
            model: description.model.clone(),
            emulated_on: description.emulated_on.clone(),
            beforehand: description.beforehand.clone(),
            shards: description
                .shards
                .iter()
                .zip(&self.shards)
                .enumerate()
                .map(|(index, (shard, &(runs, nanoseconds)))| ShardPlacement {
                    shard: shard.name.clone(),
                    segments: shard.segments.clone(),
                    place: shard.place.clone(),
                    process: chain.process(index),
                    origin: shard.origin.clone(),
                    logits_softcap: shard.logits_softcap,
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
                .structure
                .states
                .iter()
                .zip(&layout.states)
                .zip(&self.states)
                .map(|((state, plan), &bytes_placed)| StatePlacement {
                    state: state.name.clone(),
                    writer: name(plan.writer),
                    readers: plan.readers.iter().map(|&shard| name(shard)).collect(),
                    capacity: plan.capacity,
                    bytes: plan.bytes,
                    storage: plan.storage.to_string(),
                    update: if plan.by_runtime { "by-runtime" } else { "in-graph" },
                    converted_from: plan.rows_storage.map(|storage| storage.to_string()),
                    bytes_placed,
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
            moves: Vec::new(),
        }
    }
}
