//! Determines by trial for which target the library generates code. It compiles a graph of one
//! operation, which needs milliseconds, and reads the binary.
//!
//! The library accepts any architecture and generates code for v68 if it does not know the version.
//! A chip's number overrides its architecture. Neither is reported. So a profile is checked against
//! the binary before anything is planned for it.

use std::sync::PoisonError;
use std::time::Duration;

use shardwright_shim_npu::error::{unprepared, wrong_fact};

use crate::driver::Driver;
use crate::failure::{QnnError, Result};
use crate::graph::{
    DataType, QnnEncoding, QnnGraph, QnnNode, QnnTensor, ScaleOffset, TensorIndex, TensorKind,
};
use crate::log;
use crate::session::child::{Bounds, Ended, in_child_again};
use crate::session::guarded::alone;
use crate::session::{Context, ContextOptions, Device, GraphOptions, Preparation};
use crate::soc::{CodeFor, Soc, SocId, facts};

/// The target that a binary reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// Number of the chip.
    pub soc: SocId,
    pub arch: u32,
}

/// The library's view of a chip that a profile describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recognised {
    pub code: CodeFor,
    /// The target of the generated code.
    pub made: Made,
    /// Whether the stand-in chip, which supplies this chip's cycles, has the same architecture.
    /// `None` without a stand-in.
    pub stand_in_is_alike: Option<bool>,
}

/// Builds a graph with one addition.
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

/// A child's report on its compilation.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
enum Answer {
    Made {
        soc: SocId,
        arch: u32,
    },
    /// The library rejects the number as unknown.
    Unknown,
    Failed(String),
}

/// An idle machine needs only milliseconds.
const BOUNDS: Bounds = Bounds { patience: Duration::from_secs(60), memory: None };

/// Reason for missing code.
enum Unmade {
    Unknown,
    Failed(String),
}

impl Unmade {
    fn reason(self) -> String {
        match self {
            Unmade::Unknown => "the library does not know it".to_owned(),
            Unmade::Failed(reason) => reason,
        }
    }
}

fn compiled(driver: &Driver, code: CodeFor) -> Result<Made> {
    let device = Device::new(driver.backend().clone(), code)?;
    let mut context = Context::new(device, ContextOptions::default())?;
    context.compose(&smallest(), &GraphOptions::default())?.finalize(false)?;
    let unread = || QnnError::NotOffered {
        what: "the architecture a binary was made for",
        reason: "its description does not state it".to_owned(),
    };
    let description = context.binary()?.description.ok_or_else(unread)?;
    Ok(Made { soc: SocId(description.soc_model), arch: description.arch.ok_or_else(unread)? })
}

/// Determines the target of the code generated for `code`. Each `code` is tried once, in a child
/// process. A v89 device disturbs compilations for other devices of its process, and the numbers
/// consumed by a compilation would change the bytes of the next one.
fn made(driver: &Driver, code: CodeFor) -> Result<std::result::Result<Made, Unmade>> {
    if let Some(made) = driver.made.lock().unwrap_or_else(PoisonError::into_inner).get(&code) {
        return Ok(Ok(*made));
    }
    let work = || {
        log::forward(None);
        let answer = match compiled(driver, code) {
            Ok(made) => Answer::Made { soc: made.soc, arch: made.arch },
            Err(QnnError::Call(failure)) if failure.function == "deviceCreate" => Answer::Unknown,
            Err(error) => Answer::Failed(error.to_string()),
        };
        serde_json::to_vec(&answer).unwrap_or_default()
    };
    // During the fork, no other thread of ours may be inside the libraries, open one or write to
    // the log. The child would wait forever for a lock held by such a thread. A new process would
    // not inherit locks, but a shim has no program to start.
    let locks = || (Preparation::begin(), alone(), log::paused());
    let ended = in_child_again(BOUNDS, locks, work)
        .map_err(|error| QnnError::NotOffered { what: "a child to compile in", reason: error.to_string() })?;
    let answer = match ended {
        Ended::Answer(text) => serde_json::from_slice(&text)
            .unwrap_or_else(|_| Answer::Failed("it returns no valid answer".to_owned())),
        Ended::Died(signal) => Answer::Failed(format!("it crashes (signal {signal:?})")),
        Ended::Late => Answer::Failed("it does not finish".to_owned()),
    };
    Ok(match answer {
        Answer::Made { soc, arch } => {
            let made = Made { soc, arch };
            driver.made.lock().unwrap_or_else(PoisonError::into_inner).insert(code, made);
            Ok(made)
        }
        Answer::Unknown => Err(Unmade::Unknown),
        Answer::Failed(reason) => Err(Unmade::Failed(reason)),
    })
}

/// Checks a profile against the code that the library generates. If the library does not know the
/// chip's number, the architecture is used.
///
/// # Errors
///
/// `ErrorClass::InvalidArgument` if number and architecture contradict each other, if the library
/// generates no code for the stand-in, or if it does not support the number or the architecture.
/// In the last case, the error has the detail `unsupported`.
pub fn recognise(driver: &Driver, soc: &Soc) -> Result<Recognised> {
    let chip = &soc.name;
    let wrong = |fact, reason: String| QnnError::from(wrong_fact(chip, fact, &reason));
    let unprepared = |fact, reason: String| QnnError::from(unprepared(chip, fact, &reason));
    let asked = soc.arch;
    let by_number = match soc.id {
        None => None,
        Some(id) => match made(driver, CodeFor::Chip(id))? {
            Ok(made) if made.arch == asked => Some((CodeFor::Chip(id), made)),
            Ok(made) => {
                let reason =
                    format!("it is v{asked}, but the library makes v{} code for soc-id {id}", made.arch);
                return Err(wrong(facts::ARCHITECTURE, reason));
            }
            Err(Unmade::Unknown) => None,
            Err(Unmade::Failed(error)) => {
                let reason = format!("the library cannot compile for soc-id {id}: {error}");
                return Err(unprepared(facts::SOC_ID, reason));
            }
        },
    };
    let (code, made_for) = match by_number {
        Some(known) => known,
        None => match made(driver, CodeFor::Architecture(asked))? {
            Ok(made) if made.arch == asked => (CodeFor::Architecture(asked), made),
            Ok(made) => {
                let reason = format!("requested v{asked}, the library makes v{} code", made.arch);
                return Err(unprepared(facts::ARCHITECTURE, reason));
            }
            Err(unmade) => {
                let reason = format!("the library cannot compile for v{asked}: {}", unmade.reason());
                return Err(unprepared(facts::ARCHITECTURE, reason));
            }
        },
    };
    let stand_in_is_alike = match soc.stand_in {
        None => None,
        Some(id) => match made(driver, CodeFor::Chip(id))? {
            Ok(made) => Some(made.arch == asked),
            Err(unmade) => {
                let reason = format!("the library cannot compile for soc-id {id}: {}", unmade.reason());
                return Err(wrong(facts::STAND_IN, reason));
            }
        },
    };
    Ok(Recognised { code, made: made_for, stand_in_is_alike })
}
