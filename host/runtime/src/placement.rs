//! Record of where a model ran, and which tensors were copied between shards.

use serde::Serialize;
use shardwright_vocabulary::{Beforehand, Place, ProcessPlacement, ShardOrigin};

use crate::chain::Chain;

/// Placement of every shard, boundary and state of a session. Counts start when the session began
/// to use this chain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlacementRecord {
    /// Name of the model.
    pub model: String,
    /// Substitute for the planned targets, if any. Every report starts with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emulated_on: Option<String>,
    /// Events before the chain was opened: unusable other chains, and compilation for this chain on
    /// this machine.
    #[serde(skip_serializing_if = "Beforehand::is_nothing")]
    pub beforehand: Beforehand,
    /// Shards in the order in which a step runs them.
    pub shards: Vec<ShardPlacement>,
    /// Tensors passed between shards.
    pub boundaries: Vec<BoundaryPlacement>,
    /// States, which contain keys and values.
    pub states: Vec<StatePlacement>,
    /// Steps of each entry point.
    pub entries: Vec<EntryPlacement>,
    /// Failovers of the session, in order.
    pub moves: Vec<Move>,
}

/// A failover: the session resumed on another chain because its chain was lost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Move {
    /// Tokens of the history at that time. The new chain runs all of them again.
    pub tokens: usize,
    /// Shard that failed.
    pub shard: String,
    /// Place where the failed shard ran.
    pub from: Place,
    /// Places of the new chain's shards, each once, in the order of a step.
    pub to: Vec<Place>,
    /// Message of the error.
    pub error: String,
    /// Chains that were tried before and were unusable, with the reasons.
    pub passed_over: Vec<String>,
    /// Seconds from the error to the end of the first step on the new chain, `None` before that.
    pub seconds_to_first_step: Option<f64>,
    /// Seconds from the error until the history was complete again, `None` before that.
    pub seconds_to_catch_up: Option<f64>,
    /// Placement record at the time of the failure. Earlier moves are not included, since they are
    /// listed next to this one.
    pub before: PlacementRecord,
}

/// A deviation from the request. With `--strict` it is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fallback {
    /// Affected shard.
    pub shard: String,
    /// Description of the deviation.
    pub what: String,
    /// Reason for the deviation, empty if none was given.
    pub because: String,
}

impl std::fmt::Display for Fallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.shard, self.what)?;
        if self.because.is_empty() { Ok(()) } else { write!(f, ": {}", self.because) }
    }
}

impl PlacementRecord {
    /// Returns all deviations from the request: shards, nodes and flags of the chain, then the
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

/// Placement of a shard.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShardPlacement {
    /// Name of the shard.
    pub shard: String,
    /// Segments of the model in the shard.
    pub segments: shardwright_graph::Segments,
    /// Instance, shim and device.
    pub place: Place,
    /// Process that runs the shard.
    #[serde(flatten)]
    pub process: ProcessPlacement,
    /// The request, and its outcome up to loading.
    #[serde(skip_serializing_if = "ShardOrigin::is_unknown")]
    pub origin: ShardOrigin,
    /// Cap of a soft-cap, cap · tanh(logits / cap), that the runtime applied in f32 to the logits
    /// of this shard, as planned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logits_softcap: Option<f32>,
    /// Number of runs of any entry.
    pub runs: u64,
    /// Time spent in runs, in nanoseconds.
    pub nanoseconds: u64,
}

/// A tensor passed from one shard to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoundaryPlacement {
    /// Kind of tensor: `hidden` or `per-layer`.
    pub what: &'static str,
    /// Shard that produces the tensor.
    pub from: String,
    /// Shard that consumes the tensor.
    pub to: String,
    /// Storage at the producer.
    pub from_storage: String,
    /// Storage at the consumer.
    pub to_storage: String,
    /// Reason for the copy, or `None` if both shards bind the same buffer.
    pub copied_because: Option<&'static str>,
    /// Bytes written into copies.
    pub bytes_copied: u64,
}

/// Placement of a state.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StatePlacement {
    /// Name of the state, for example `layer.3.k`.
    pub state: String,
    /// Shard that writes the state.
    pub writer: String,
    /// Other shards that read the state.
    pub readers: Vec<String>,
    /// Capacity in rows.
    pub capacity: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Storage format of the values.
    pub storage: String,
    /// How the state is updated: `in-graph` or `by-runtime`.
    pub update: &'static str,
    /// Storage of new rows, if the runtime updates the state and converts them.
    pub converted_from: Option<String>,
    /// Bytes of new rows that the runtime wrote to their slots.
    pub bytes_placed: u64,
}

/// Steps of an entry point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EntryPlacement {
    /// Name of the entry, for example `decode_1@4096`.
    pub entry: String,
    /// Shards that run in a step of this entry.
    pub shards: Vec<String>,
    pub steps: u64,
    /// Valid rows of the completed steps.
    pub rows: u64,
    /// Bytes of step inputs written, including failed steps.
    pub input_bytes: u64,
}

/// Counters of a session, by index.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub shards: Vec<(u64, u64)>,
    pub boundaries: Vec<u64>,
    /// Bytes placed in each state.
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
