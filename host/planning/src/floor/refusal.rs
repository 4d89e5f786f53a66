//! Why the floor has no plan.

use shardwright_vocabulary::{EntryName, Legality};

use super::Unit;
use crate::check::PlanFault;
use crate::cost::CostTable;
use crate::plan::{Cause, Reason};
use crate::request::Request;

/// The obstacle for the first layer that could not be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FloorRefusal {
    /// No entry point fits the goals.
    #[error("no {needed} entry point holds {context} tokens with at most {rows} rows of prefill")]
    Entries {
        /// The missing kind of entry point.
        needed: &'static str,
        /// Minimum context in tokens.
        context: u32,
        /// Maximum rows of prefill.
        rows: u32,
    },
    /// No target supports the layer in any format.
    #[error("no target takes {layer} in any format; {target} as {formats}: {why}")]
    Illegal {
        /// The layer or component.
        layer: String,
        /// Name of the first target.
        target: String,
        /// The first format tuple.
        formats: String,
        /// Why the first target does not support it in the first format tuple.
        why: String,
    },
    /// The layer exceeds a limit.
    #[error("{layer} takes {limit} of {target} to {value}, the limit is {max}")]
    OverLimit {
        /// The layer or component.
        layer: String,
        target: String,
        limit: &'static str,
        /// Value with this layer.
        value: u64,
        max: u64,
    },
    /// This layer and the minimum for all following ones exceed a goal.
    #[error("{layer} and what follows it take {goal} to {value} at least, the goal is {max}")]
    OverGoal {
        /// The layer or component.
        layer: String,
        /// `memory` in bytes, or `quality` in millionths of a nat.
        goal: &'static str,
        /// Minimum value.
        value: u64,
        max: u64,
    },
    /// There is a quality goal, but the loss of the layer was not measured.
    #[error("what {layer} loses as {formats} was not measured, and there is a quality goal")]
    Unmeasured {
        /// The layer or component.
        layer: String,
        formats: String,
    },
    /// No device supports all layers that share one state.
    #[error("no device takes {layer} with all layers that share its state")]
    StateNotShareable { layer: String },
    /// The plan would have more shards than allowed.
    #[error("{layer} begins a shard beyond the {max} that a plan may have")]
    Shards {
        /// The layer or component.
        layer: String,
        /// Maximum number of shards.
        max: usize,
    },
    /// The plan fails the check because of the request.
    #[error("the plan does not hold: {0}")]
    Plan(Box<PlanFault>),
}

impl FloorRefusal {
    /// Returns advice for a `help:` line.
    pub fn help(&self) -> &'static str {
        match self {
            FloorRefusal::Entries { .. } => "ask for less context, or for more rows of prefill",
            FloorRefusal::Illegal { .. } => "another target, or the CPU as a second one, may take it",
            FloorRefusal::OverLimit { .. } | FloorRefusal::Shards { .. } => {
                "`--limit NAME=VALUE` replaces a limit that is known to be wrong"
            }
            FloorRefusal::OverGoal { goal: "memory", .. } => "allow more memory, or less context",
            FloorRefusal::OverGoal { .. } | FloorRefusal::Unmeasured { .. } => {
                "allow a larger loss, or measure sensitivities"
            }
            FloorRefusal::StateNotShareable { .. } => "layers that share a state must be on one device",
            FloorRefusal::Plan(fault) => fault.help().unwrap_or("correct what the message names"),
        }
    }
}

/// The obstacle for one layer on one target in one tuple.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// The device does not support all layers that read its state.
    Readers,
    /// The state that it reads is elsewhere.
    Donor,
    Unmeasured {
        formats: u32,
    },
    Limit {
        target: u32,
        name: &'static str,
        value: u64,
        max: u64,
    },
    Goal {
        name: &'static str,
        value: u64,
        max: u64,
    },
}

impl Obstacle {
    /// Returns the reason of a choice that avoided the obstacle.
    pub(super) fn reason(self, shard: u32, choice: &str) -> Reason {
        let (because, cause) = match self {
            Obstacle::Readers | Obstacle::Donor => {
                ("layers that share a state are on one device".to_owned(), Cause::Cost("states".to_owned()))
            }
            Obstacle::Unmeasured { formats } => (
                format!("the loss of format tuple {formats} was not measured"),
                Cause::Goal("quality".to_owned()),
            ),
            Obstacle::Limit { name, value, max, .. } => {
                (format!("{name} would be {value}, the limit is {max}"), Cause::Limit(name.to_owned()))
            }
            Obstacle::Goal { name, value, max } => {
                (format!("{name} would be {value} at least, the goal is {max}"), Cause::Goal(name.to_owned()))
            }
        };
        Reason { shard: Some(shard), choice: choice.to_owned(), because, cause }
    }
}

/// Returns the refusal for a unit that could not be placed: its first obstacle, or that no target
/// supports it.
pub(super) fn of(
    request: &Request,
    table: &CostTable<'_>,
    entries: &[EntryName],
    unit: &Unit<'_>,
    obstacle: Option<Obstacle>,
) -> FloorRefusal {
    let layer = unit.name(request);
    let target = |target: u32| {
        let target = request.targets.get(target as usize);
        target.map_or_else(String::new, |target| target.target.name.clone())
    };
    let formats =
        |formats: u32| request.formats.get(formats as usize).map_or_else(String::new, ToString::to_string);
    match obstacle {
        Some(Obstacle::Readers | Obstacle::Donor) => FloorRefusal::StateNotShareable { layer },
        Some(Obstacle::Unmeasured { formats: index }) => {
            FloorRefusal::Unmeasured { layer, formats: formats(index) }
        }
        Some(Obstacle::Limit { target: index, name, value, max }) => {
            FloorRefusal::OverLimit { layer, target: target(index), limit: name, value, max }
        }
        Some(Obstacle::Goal { name, value, max }) => FloorRefusal::OverGoal { layer, goal: name, value, max },
        None => {
            let needed = entries.iter().filter(|entry| table.takes_part(unit.kind, **entry));
            let why = needed.map(|&entry| match table.row(unit.kind, 0, 0, entry).map(|row| &row.legality) {
                None => Some("the cost table has no row".to_owned()),
                Some(Legality::Illegal(why)) => Some(why.clone()),
                Some(Legality::Legal) => None,
            });
            let why = why.flatten().next().unwrap_or_default();
            FloorRefusal::Illegal { layer, target: target(0), formats: formats(0), why }
        }
    }
}
