//! Describes untrusted bytes.
//!
//! The system library follows the offsets in a binary's head unchecked, so a flipped bit there
//! could crash the process. So untrusted bytes are described in a child, with a time limit and
//! little additional memory. A crash of the child counts as an error of the bytes.

use super::BinaryDescription;
use super::child::{Bounds, Ended, in_child};
use super::describe::{describe_trusted, invalid};
use crate::failure::{QnnError, Result};
use crate::library::System;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A description needs milliseconds. Its counts are capped, which bounds its memory.
const BOUNDS: Bounds = Bounds { patience: Duration::from_secs(20), memory: Some(2 << 30) };

/// Keeps other threads of ours out of the system library during a fork, so that the child does not
/// inherit a locked lock.
static ALONE: Mutex<()> = Mutex::new(());

/// Prevents concurrent descriptions.
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(serde::Serialize, serde::Deserialize)]
enum Answer {
    Description(BinaryDescription),
    Invalid(String),
}

/// Describes untrusted bytes in a child.
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
        what: "a child to read untrusted bytes in",
        reason: error.to_string(),
    })?;
    match ended {
        Ended::Answer(text) => match serde_json::from_slice(&text) {
            Ok(Answer::Description(description)) => Ok(description),
            Ok(Answer::Invalid(reason)) => Err(invalid(reason)),
            Err(_) => Err(invalid("the system library returns no valid description of it")),
        },
        Ended::Died(Some(signal)) => Err(invalid(format!(
            "the system library crashes on it with signal {signal}: its head is damaged"
        ))),
        Ended::Died(None) => Err(invalid("the system library returns no valid description of it")),
        Ended::Late => Err(invalid("the system library does not finish reading it")),
    }
}
