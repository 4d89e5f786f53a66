//! Compiles a checkpoint into a bundle.

use std::path::Path;

use serde::Serialize;
use shardwright_build::{BundleLoopStart, PlanOptions, PlanReport};
use shardwright_bundle::Bundle;
use shardwright_vocabulary::{Error, ErrorKind, Result, Watch};

mod bundle;
mod fallback_chains;
mod gate;
mod jobs;
mod throttled_source;
mod variants;

use bundle::Compiling;
pub use jobs::Jobs;
pub use variants::compile_variants;

/// The result of compiling.
#[derive(Clone, Debug, Serialize)]
pub struct CompileReport {
    /// Identity of the bundle: the hash of its manifest.
    pub bundle: String,
    /// Path of the bundle.
    pub directory: String,
    /// Total bytes of its files.
    pub bytes: u64,
    /// Number of artefacts reused from another variant or from an earlier, interrupted run.
    pub artefacts_reused: usize,
    /// Compiled variants, in the order of the requested chips.
    pub variants: Vec<CompiledVariant>,
    /// Chips for which compiling failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedVariant>,
}

/// A variant of a compiled bundle.
#[derive(Clone, Debug, Serialize)]
pub struct CompiledVariant {
    pub soc: String,
    /// Names of its chains, in the order in which they are tried.
    pub chains: Vec<String>,
    /// Bytes that a device of that chip needs: artefacts, tables and texts.
    pub bytes: u64,
    /// Bytes of files that no other variant has.
    pub own_bytes: u64,
    /// Bytes of artefacts that only hedges have, which a device stores in addition.
    #[serde(skip_serializing_if = "is_zero")]
    pub hedge_bytes: u64,
    /// The plan of its first chain.
    pub plan: PlanReport,
}

/// Returns whether a number is 0 and left out of a report.
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A chip that a checkpoint was not compiled for.
#[derive(Clone, Debug, Serialize)]
pub struct FailedVariant {
    /// The chip, as requested.
    pub soc: String,
    pub error: String,
    /// The kind of the error.
    #[serde(skip)]
    pub kind: ErrorKind,
    /// The next step for the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

impl FailedVariant {
    /// Creates the record of a chip for which compiling or planning failed.
    pub fn of(soc: String, error: &Error) -> Self {
        let help = error.help().map(str::to_owned);
        FailedVariant { soc, error: error.to_string(), kind: error.kind(), help }
    }
}

/// Compiles a checkpoint into a bundle: the chain of the plan and one chain for each fallback
/// target. Also compiles the chains of each tower that the options request.
pub fn compile(
    directory: &Path,
    into: &Path,
    options: &PlanOptions,
    watch: &mut dyn Watch,
) -> Result<CompileReport> {
    compile_trying(directory, into, options, None, BundleLoopStart::default(), watch)
}

/// Compiles a checkpoint into a bundle like [`compile`], but plans of first chains also have to be
/// proved, or are known from `trying`.
///
/// Artefacts of `earlier` with the same work orders are copied, and so are its variants for other
/// chips and its goldens. It must be a bundle of the same checkpoint. A manifest is written only
/// for a complete bundle. Artefacts of an interrupted or failed run are reused by the next run.
pub fn compile_trying(
    directory: &Path,
    into: &Path,
    options: &PlanOptions,
    earlier: Option<&Bundle>,
    trying: BundleLoopStart<'_>,
    watch: &mut dyn Watch,
) -> Result<CompileReport> {
    let compiling = Compiling::begin(directory, into)?;
    let made = compiling.variant(options, earlier, trying, None, watch)?;
    let others = earlier.map(|earlier| compiling.copy(earlier, made.soc())).transpose()?;
    compiling.finish(vec![made], others.unwrap_or_default(), Vec::new())
}
