//! Why the floor has no plan.

use shardwright_vocabulary::{EntryName, Error, ErrorKind, Legality};

use super::Unit;
use crate::cost::CostTable;
use crate::plan::{Cause, Reason};
use crate::request::Request;

/// Advice for a limit.
pub(super) const REPLACE_LIMIT: &str = "if the limit is wrong, replace it with `--limit NAME=VALUE`";
/// Advice for a quality goal.
const ALLOW_LOSS: &str = "allow a larger loss, or measure losses with `shardwright sensitivity`";

/// Creates the error for the first layer or component that could not be placed.
pub(super) fn refused(layer: &str, message: impl Into<String>, help: &str) -> Error {
    Error::new(ErrorKind::Planning, message).at(layer).with_help(help)
}

pub(super) fn no_entry(needed: &str, context: u32, rows: u32) -> Error {
    let limits = format!("a context of {context} tokens and at most {rows} rows of prefill");
    Error::new(ErrorKind::Planning, format!("no {needed} entry point has {limits}"))
        .with_help("request less context, or more rows of prefill")
}

/// Creates the error of a layer whose loss is unknown although there is a quality goal.
pub(super) fn unmeasured(layer: &str, formats: &str) -> Error {
    let message = format!("no loss is known for {formats}, and there is a quality goal");
    refused(layer, message, ALLOW_LOSS)
}

/// Creates the error of a layer that exceeds a goal together with the minimum for later layers.
/// The goal is `memory` or `size` in bytes, or `quality` in millionths of a nat.
pub(super) fn over_goal(layer: &str, goal: &str, value: u64, max: u64) -> Error {
    let help = match goal {
        "memory" => "allow more memory, or less context",
        "size" => "allow more bytes, or offer narrower weight formats",
        _ => ALLOW_LOSS,
    };
    let message = format!("with all later layers, {goal} would be at least {value}, the goal is {max}");
    refused(layer, message, help)
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
                (format!("{name} would be at least {value}, the goal is {max}"), Cause::Goal(name.to_owned()))
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
) -> Error {
    let layer = unit.name(request);
    let target = |target: u32| {
        let target = request.targets.get(target as usize);
        target.map_or_else(String::new, |target| target.target.name.clone())
    };
    let formats =
        |formats: u32| request.formats.get(formats as usize).map_or_else(String::new, ToString::to_string);
    match obstacle {
        Some(Obstacle::Readers | Obstacle::Donor) => {
            let message = "no device supports it together with all layers that share its state";
            refused(&layer, message, "layers that share a state must be on one device")
        }
        Some(Obstacle::Unmeasured { formats: index }) => unmeasured(&layer, &formats(index)),
        Some(Obstacle::Limit { target: index, name, value, max }) => {
            let message = format!("{name} of `{}` would be {value}, the limit is {max}", target(index));
            refused(&layer, message, REPLACE_LIMIT)
        }
        Some(Obstacle::Goal { name, value, max }) => over_goal(&layer, name, value, max),
        None => {
            let needed = entries.iter().filter(|entry| table.takes_part(unit.kind, **entry));
            let why = needed.map(|&entry| match table.row(unit.kind, 0, 0, entry).map(|row| &row.legality) {
                None => Some("the cost table has no row".to_owned()),
                Some(Legality::Illegal(why)) => Some(why.clone()),
                Some(Legality::Legal) => None,
            });
            let why = why.flatten().next().unwrap_or_default();
            let (target, formats) = (target(0), formats(0));
            let message = format!("no target supports it in any format; `{target}` as {formats}: {why}");
            refused(&layer, message, "add a target that may support it, such as the CPU")
        }
    }
}
