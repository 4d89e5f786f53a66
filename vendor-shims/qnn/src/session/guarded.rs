//! Describing bytes that nobody vouches for.
//!
//! The system library follows the offsets it finds in a binary's head without looking where they
//! lead: a flipped bit there is a fault that would end the process. So strange bytes are described
//! in a child, within a time and with little memory more than it was born with; what happens to it
//! is an error of the bytes.

use super::BinaryDescription;
use super::child::{Bounds, Ended, in_child};
use super::describe::{describe_trusted, invalid};
use crate::failure::{QnnError, Result};
use crate::library::System;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A description takes milliseconds; its counts are capped, and so is what it takes of memory.
const BOUNDS: Bounds = Bounds { patience: Duration::from_secs(20), memory: Some(2 << 30) };

/// No other thread of ours is inside the system library while a child is born, so the child finds
/// no lock of it held.
static ALONE: Mutex<()> = Mutex::new(());

/// Holds other descriptions off.
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the child says.
#[derive(serde::Serialize, serde::Deserialize)]
enum Answer {
    Description(BinaryDescription),
    Invalid(String),
}

/// Describes strange bytes in a child.
pub(super) fn describe(system: &System, bytes: &[u8]) -> Result<BinaryDescription> {
    let work = || {
        let answer = match describe_trusted(system, bytes) {
            Ok(description) => Answer::Description(description),
            Err(QnnError::BinaryInvalid { reason }) => Answer::Invalid(reason),
            Err(error) => Answer::Invalid(error.to_string()),
        };
        serde_json::to_vec(&answer).unwrap_or_default()
    };
    let ended = in_child(BOUNDS, alone(), work).map_err(|error| QnnError::NotOffered {
        what: "a child to read strange bytes in",
        reason: error.to_string(),
    })?;
    match ended {
        Ended::Answer(text) => match serde_json::from_slice(&text) {
            Ok(Answer::Description(description)) => Ok(description),
            Ok(Answer::Invalid(reason)) => Err(invalid(reason)),
            Err(_) => Err(invalid("the system library gives no sensible description of it")),
        },
        Ended::Died(Some(signal)) => {
            Err(invalid(format!("the system library dies of it with signal {signal}: its head is damaged")))
        }
        Ended::Died(None) => Err(invalid("the system library gives no sensible description of it")),
        Ended::Late => Err(invalid("the system library does not come to an end with it")),
    }
}
