//! Passes the facts of a chip to a shim.
//!
//! A shim declares the facts it reads in the same way as its flags. Only these are passed, each
//! checked against its declaration. If the shim then rejects a fact, its error names the fact.

use std::collections::BTreeMap;

use crate::chip::{Chip, FactSchema};
use crate::error::{ChipError, ShimError};

/// Detail of a shim's error with the name of the fact that caused it.
const FACT: &str = "fact";

/// Selects and checks the facts of a chip that a shim reads.
pub(crate) fn read_by(schemas: &[FactSchema], shim: &str, chip: &Chip) -> Result<Chip, ChipError> {
    let mut facts = BTreeMap::new();
    for FactSchema { fact, required } in schemas {
        let Some(value) = chip.facts.get(&fact.name) else {
            if *required {
                return Err(ChipError::Missing {
                    chip: chip.name.clone(),
                    shim: shim.to_owned(),
                    fact: fact.name.clone(),
                    description: fact.description.clone(),
                });
            }
            continue;
        };
        fact.accepts(value).map_err(|expected| ChipError::Value {
            chip: chip.name.clone(),
            shim: shim.to_owned(),
            fact: fact.name.clone(),
            value: value.chars().take(64).collect(),
            expected,
        })?;
        facts.insert(fact.name.clone(), value.clone());
    }
    Ok(Chip { name: chip.name.clone(), aliases: chip.aliases.clone(), facts })
}

/// Converts an error that names a fact to an error about the profile.
pub(crate) fn about(chip: &str, error: ShimError) -> ShimError {
    match error.details().iter().find(|(key, _)| key == FACT) {
        Some((_, fact)) => {
            let fact = fact.clone();
            let refused = ChipError::Refused { chip: chip.to_owned(), fact, source: Box::new(error) };
            ShimError::Chip(Box::new(refused))
        }
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::{FlagSchema, FlagStage, FlagType};

    use super::*;
    use crate::error::Failure;

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
        Chip { name: "chip".to_owned(), aliases: vec!["other".to_owned()], facts: facts.collect() }
    }

    #[test]
    fn only_facts_that_a_shim_reads_are_passed_to_it() {
        let number = FlagType::Integer { min: 1, max: 9 };
        let schemas = [schema("id", number.clone(), true), schema("memory", number, false)];
        let full = chip(&[("id", "7"), ("colour", "red")]);
        assert_eq!(read_by(&schemas, "s", &full).unwrap(), chip(&[("id", "7")]));
        assert_eq!(read_by(&[], "s", &full).unwrap(), chip(&[]));
        let missing = read_by(&schemas, "s", &chip(&[("memory", "7")])).unwrap_err();
        assert!(matches!(&missing, ChipError::Missing { fact, .. } if fact == "id"), "{missing}");
        for value in ["0", "ten", ""] {
            let wrong = read_by(&schemas, "s", &chip(&[("id", value)])).unwrap_err();
            assert!(matches!(&wrong, ChipError::Value { fact, .. } if fact == "id"), "{wrong}");
            for part in ["`chip`", "`id`", "from 1 to 9"] {
                assert!(wrong.to_string().contains(part), "{wrong}");
            }
        }
    }

    #[test]
    fn an_error_that_names_a_fact_is_about_the_profile() {
        let failed = |details: &[(&str, &str)]| {
            ShimError::Failed(Box::new(Failure {
                shim: "s".to_owned(),
                function: "chip".into(),
                class: None,
                message: "no such number".to_owned(),
                details: details.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
                vendor_code: 0,
                log_tail: None,
            }))
        };
        match about("chip", failed(&[("help", "x"), ("fact", "id")])) {
            ShimError::Chip(error) => {
                assert!(matches!(&*error, ChipError::Refused { fact, .. } if fact == "id"));
                assert_eq!((error.chip(), error.is_unsupported()), ("chip", false));
                assert!(error.to_string().contains("no such number") && error.help().contains("`id`"));
            }
            other => panic!("{other}"),
        }
        match about("chip", failed(&[("fact", "id"), ("unsupported", "true")])) {
            ShimError::Chip(error) => assert!(error.is_unsupported()),
            other => panic!("{other}"),
        }
        assert!(matches!(about("chip", failed(&[])), ShimError::Failed(_)));
    }
}
