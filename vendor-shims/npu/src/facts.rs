//! Facts of chips: the declaration of a fact that a shim reads, and reading numbers.

use std::str::FromStr;

use shardwright_shim_abi::{Chip, Error, Fact, FlagKind};

use crate::error::wrong_fact;

pub fn fact(name: &str, kind: FlagKind, required: bool, description: &str) -> Fact {
    Fact { name: name.to_owned(), description: description.to_owned(), kind, required }
}

/// Reads a fact that is a number. Returns `None` if the profile lacks it.
///
/// # Errors
///
/// `ErrorClass::InvalidArgument` with this reason if it is not a number in the range of the type.
pub fn number<T: FromStr>(chip: &Chip<'_>, fact: &str, reason: &str) -> Result<Option<T>, Error> {
    let value = chip.facts.get(fact).map(str::parse::<T>);
    value.transpose().map_err(|_| wrong_fact(chip.name, fact, reason))
}
