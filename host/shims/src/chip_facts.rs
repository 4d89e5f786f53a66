//! Passes the facts of a chip to a shim.
//!
//! A shim declares the facts it reads in the same way as its flags. Only these are passed, each
//! checked against its declaration. If the shim then rejects a fact, its error names the fact.

use std::collections::BTreeMap;

use shardwright_vocabulary::{Error, ErrorKind, Result};

use crate::chip::{Chip, FactSchema};
use crate::error::ShimError;

/// Detail of a shim's error with the name of the fact that caused it.
const FACT: &str = "fact";

/// Detail of a shim's error. It marks a fact that may be correct although the shim does not compile
/// for such a chip.
const UNSUPPORTED: &str = "unsupported";

/// Selects and checks the facts of a chip that a shim reads.
pub(crate) fn read_by(schemas: &[FactSchema], shim: &str, chip: &Chip) -> Result<Chip> {
    let mut facts = BTreeMap::new();
    for FactSchema { fact, required } in schemas {
        let Some(value) = chip.facts.get(&fact.name) else {
            if *required {
                let (name, description) = (&fact.name, &fact.description);
                let message = format!("no fact `{name}`, which shim `{shim}` needs: {description}");
                let error = Error::invalid(message).at(format_args!("profile `{}`", chip.name));
                return Err(error.with_help(correct(&chip.name, name)));
            }
            continue;
        };
        fact.accepts(value).map_err(|expected| {
            let value: String = value.chars().take(64).collect();
            let message = format!("expected {expected} for shim `{shim}`, got `{value}`");
            of_fact(&chip.name, &fact.name, Error::invalid(message))
        })?;
        facts.insert(fact.name.clone(), value.clone());
    }
    Ok(Chip { name: chip.name.clone(), aliases: chip.aliases.clone(), facts, shim: None })
}

/// Converts an error that names a fact to an error about the profile.
pub(crate) fn about(chip: &str, error: ShimError) -> ShimError {
    match error.details().iter().find(|(key, _)| key == FACT) {
        Some((_, fact)) => {
            let is_unsupported = error.details().iter().any(|(key, _)| key == UNSUPPORTED);
            let kind = if is_unsupported { ErrorKind::Unsupported } else { ErrorKind::Invalid };
            ShimError::Chip(of_fact(chip, fact, Error::new(kind, error.to_string())))
        }
        None => error,
    }
}

/// Adds the place of a fact and help to an error about it.
fn of_fact(chip: &str, fact: &str, error: Error) -> Error {
    error.at(format_args!("profile `{chip}`, fact `{fact}`")).with_help(correct(chip, fact))
}

fn correct(chip: &str, fact: &str) -> String {
    format!(
        "correct the fact `{fact}` in the profile `{chip}`; `shardwright shim list` lists the facts that \
         a shim reads"
    )
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::{FlagSchema, FlagStage, FlagType};

    use super::*;
    use crate::error::ShimFailure;

    fn schema(name: &str, values: FlagType, required: bool) -> FactSchema {
        let fact = FlagSchema {
            name: name.to_owned(),
            values,
            default: None,
            description: "x".to_owned(),
            stage: FlagStage::Compile,
        };
        FactSchema { fact, required }
    }

    fn chip(facts: &[(&str, &str)]) -> Chip {
        let facts = facts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Chip {
            name: "chip".to_owned(),
            aliases: vec!["other".to_owned()],
            facts: facts.collect(),
            ..Chip::default()
        }
    }

    #[test]
    fn only_facts_that_a_shim_reads_are_passed_to_it() {
        let number = FlagType::Integer { min: 1, max: 9 };
        let schemas = [schema("id", number.clone(), true), schema("memory", number, false)];
        let full = chip(&[("id", "7"), ("colour", "red")]);
        assert_eq!(read_by(&schemas, "s", &full).unwrap(), chip(&[("id", "7")]));
        assert_eq!(read_by(&[], "s", &full).unwrap(), chip(&[]));
        let missing = read_by(&schemas, "s", &chip(&[("memory", "7")])).unwrap_err();
        assert_eq!((missing.kind(), missing.place()), (ErrorKind::Invalid, Some("profile `chip`")));
        assert!(missing.message().contains("no fact `id`"), "{missing}");
        for value in ["0", "ten", ""] {
            let wrong = read_by(&schemas, "s", &chip(&[("id", value)])).unwrap_err();
            assert_eq!(wrong.kind(), ErrorKind::Invalid);
            assert_eq!(wrong.place(), Some("profile `chip`, fact `id`"));
            assert!(wrong.message().contains("from 1 to 9"), "{wrong}");
        }
    }

    #[test]
    fn an_error_that_names_a_fact_is_about_the_profile() {
        let failed = |details: &[(&str, &str)]| {
            ShimError::Failed(Box::new(ShimFailure {
                shim: "s".to_owned(),
                function: "chip".into(),
                class: None,
                message: "no such number".to_owned(),
                details: details.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
                vendor_code: 0,
                log_tail: None,
            }))
        };
        for (details, kind) in [
            (&[("help", "x"), ("fact", "id")], ErrorKind::Invalid),
            (&[("fact", "id"), ("unsupported", "true")], ErrorKind::Unsupported),
        ] {
            let ShimError::Chip(error) = about("chip", failed(details)) else { panic!("{details:?}") };
            assert_eq!((error.kind(), error.place()), (kind, Some("profile `chip`, fact `id`")));
            assert!(error.message().contains("no such number"), "{error}");
            assert!(error.help().is_some_and(|help| help.contains("`id`")), "{error:?}");
        }
        assert!(matches!(about("chip", failed(&[])), ShimError::Failed(_)));
    }
}
