//! `serve` in a program that was built without it.

use shardwright::ErrorKind;

use crate::arguments::{Format, ServeArguments};
use crate::outcome::{Failure, Outcome};

/// Fails with the hint how to get a program that can serve.
pub fn serve(_: &ServeArguments, _: Format) -> Result<Outcome, Failure> {
    Err(Failure::Refused {
        kind: ErrorKind::Unsupported,
        message: "this program was built without `serve`".to_owned(),
        help: "build it with `cargo xtask build`".to_owned(),
    })
}
