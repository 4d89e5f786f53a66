//! What the library makes code for, found out by asking it: a graph of one operation is compiled,
//! which takes milliseconds, and its binary read.
//!
//! The library takes any architecture and makes code for v68 where it knows none of that version,
//! and it takes a chip's number over its architecture, all without a word. So a profile is held to
//! what the binary says, before anything is planned for it.

use std::sync::PoisonError;

use crate::driver::Driver;
use crate::failure::{QnnError, Result};
use crate::graph::{
    DataType, QnnEncoding, QnnGraph, QnnNode, QnnTensor, ScaleOffset, TensorIndex, TensorKind,
};
use crate::session::{Context, ContextOptions, GraphOptions};
use crate::soc::{CodeFor, Soc, SocId, facts};

/// What a binary says it was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// The chip, by number.
    pub soc: SocId,
    /// Its architecture.
    pub arch: u32,
}

/// What the library knows of a chip that a profile describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recognised {
    /// What it is asked to make code for.
    pub code: CodeFor,
    /// What it then makes code for.
    pub made: Made,
    /// Whether the chip that stands in for this one's cycles is of the same architecture; none
    /// where none does.
    pub stand_in_is_alike: Option<bool>,
}

/// One addition.
fn smallest() -> QnnGraph<'static> {
    let tensor = |name: &str, kind| QnnTensor {
        name: name.to_owned(),
        kind,
        dtype: DataType::Ufixed16,
        dims: vec![1, 16],
        encoding: QnnEncoding::PerTensor(ScaleOffset { scale: 1.0 / 32768.0, offset: -32768 }),
    };
    QnnGraph {
        name: "recognise".to_owned(),
        tensors: vec![
            tensor("a", TensorKind::Input),
            tensor("b", TensorKind::Input),
            tensor("sum", TensorKind::Output),
        ],
        nodes: vec![QnnNode {
            name: "add".to_owned(),
            op: "ElementWiseAdd",
            params: vec![],
            inputs: vec![TensorIndex(0), TensorIndex(1)],
            outputs: vec![TensorIndex(2)],
            origin: None,
        }],
    }
}

/// What code comes out when it is asked for `code`; asked once for each.
fn made(driver: &Driver, code: CodeFor) -> Result<Made> {
    if let Some(made) = driver.made.lock().unwrap_or_else(PoisonError::into_inner).get(&code) {
        return Ok(*made);
    }
    let mut context = Context::new(driver.device(code)?, ContextOptions::default())?;
    context.compose(&smallest(), &GraphOptions::default())?.finalize(false)?;
    let unread = || QnnError::NotOffered {
        what: "the architecture a binary was made for",
        reason: "its description does not say it".to_owned(),
    };
    let description = context.binary()?.description.ok_or_else(unread)?;
    let made = Made { soc: SocId(description.soc_model), arch: description.arch.ok_or_else(unread)? };
    driver.made.lock().unwrap_or_else(PoisonError::into_inner).insert(code, made);
    Ok(made)
}

/// Whether the library said at once that it does not know a number.
fn is_unknown(error: &QnnError) -> bool {
    matches!(error, QnnError::Call(failure) if failure.function == "deviceCreate")
}

/// Holds a profile to what the library makes of it. A number the library does not know is compiled
/// by its architecture.
///
/// # Errors
///
/// [`QnnError::WrongFact`] where number and architecture contradict each other and for a stand-in
/// that there is not, [`QnnError::Unprepared`] where nothing is prepared for the number or the
/// architecture.
pub fn recognise(driver: &Driver, soc: &Soc) -> Result<Recognised> {
    let wrong = |fact, reason| QnnError::WrongFact { chip: soc.name.clone(), fact, reason };
    let unprepared = |fact, reason| QnnError::Unprepared { chip: soc.name.clone(), fact, reason };
    let asked = soc.arch;
    let by_number = match soc.id {
        None => None,
        Some(id) => match made(driver, CodeFor::Chip(id)) {
            Ok(made) if made.arch == asked => Some((CodeFor::Chip(id), made)),
            Ok(made) => {
                let reason =
                    format!("it says v{asked}, and the library makes v{} code for soc-id {id}", made.arch);
                return Err(wrong(facts::ARCHITECTURE, reason));
            }
            Err(error) if is_unknown(&error) => None,
            Err(error) => {
                let reason = format!("the library prepares nothing for soc-id {id}: {error}");
                return Err(unprepared(facts::SOC_ID, reason));
            }
        },
    };
    let (code, made_for) = match by_number {
        Some(known) => known,
        None => match made(driver, CodeFor::Architecture(asked)) {
            Ok(made) if made.arch == asked => (CodeFor::Architecture(asked), made),
            Ok(made) => {
                let reason = format!("asked for v{asked}, the library makes v{} code", made.arch);
                return Err(unprepared(facts::ARCHITECTURE, reason));
            }
            Err(error) => {
                let reason = format!("the library prepares nothing for v{asked}: {error}");
                return Err(unprepared(facts::ARCHITECTURE, reason));
            }
        },
    };
    let stand_in_is_alike = match soc.stand_in {
        None => None,
        Some(id) => match made(driver, CodeFor::Chip(id)) {
            Ok(made) => Some(made.arch == asked),
            Err(error) => {
                let reason = format!("the library makes no code for soc-id {id}: {error}");
                return Err(wrong(facts::STAND_IN, reason));
            }
        },
    };
    Ok(Recognised { code, made: made_for, stand_in_is_alike })
}
