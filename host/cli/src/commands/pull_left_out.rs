//! `pull` in a program that was built without it.

use std::path::{Path, PathBuf};

use shardwright::ErrorKind;
use shardwright_hub::HubId;

use crate::arguments::{Format, PullArguments};
use crate::outcome::{Failure, Outcome};

/// Fails with the hint how to get a program that can pull.
pub fn pull(_: &PullArguments, _: Format) -> Result<Outcome, Failure> {
    Err(Failure::Refused {
        kind: ErrorKind::Unsupported,
        message: "this program was built without `pull`".to_owned(),
        help: "build it with `cargo xtask build`, or fetch the model with `hf download`".to_owned(),
    })
}

/// Makes no offer.
pub fn offered(_: &HubId, _: &Path, _: Format) -> Result<Option<PathBuf>, Failure> {
    Ok(None)
}
