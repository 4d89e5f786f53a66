//! From a checkpoint to a bundle.

use std::path::Path;

use serde::Serialize;
use shardwright_bundle::Bundle;
use shardwright_shims::Watch;

use crate::{BundleTrying, PlanOptions, PlanReport, Result};

mod bundle;
mod gate;
mod gated;
mod jobs;
mod later;
mod several;

use bundle::Compiling;
pub use jobs::Jobs;
pub use several::compile_variants;

/// The result of compiling.
#[derive(Clone, Debug, Serialize)]
pub struct CompileReport {
    /// Identity of the bundle: the hash of its manifest.
    pub bundle: String,
    /// Path of the bundle.
    pub directory: String,
    /// Total bytes of its files.
    pub bytes: u64,
    /// Number of artefacts reused: of another variant, or of an earlier, interrupted run.
    pub artefacts_reused: usize,
    /// What it was compiled into, in the order of the chips that were asked for.
    pub variants: Vec<CompiledVariant>,
    /// Chips it was not compiled for, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedVariant>,
}

/// A variant of a compiled bundle.
#[derive(Clone, Debug, Serialize)]
pub struct CompiledVariant {
    /// The chip.
    pub soc: String,
    /// Names of its chains, in the order in which they are tried.
    pub chains: Vec<String>,
    /// Bytes of what a device of that chip needs: its artefacts, tables and texts.
    pub bytes: u64,
    /// How many of them no other variant has.
    pub own_bytes: u64,
    /// The plan of its first chain.
    pub plan: PlanReport,
}

/// A chip that a checkpoint was not compiled for.
#[derive(Clone, Debug, Serialize)]
pub struct FailedVariant {
    /// The chip, as it was asked for.
    pub soc: String,
    /// Why.
    pub error: String,
    /// What would help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

/// Compiles a checkpoint into a bundle: the chain of the plan, and one for each target that it
/// falls back to; and the same of each tower that the options ask for.
pub fn compile(
    directory: &Path,
    into: &Path,
    options: &PlanOptions,
    watch: &mut dyn Watch,
) -> Result<CompileReport> {
    compile_trying(directory, into, options, None, BundleTrying::default(), watch)
}

/// The same, in which the plans of first chains also have to be proved, or are known. What
/// `earlier` holds of the same work orders is copied from there. Nothing but a whole bundle is ever
/// named by a manifest; what an interrupted or failed run compiled is there for the next. Variants
/// of `earlier` for other chips and its goldens are copied too: it is of the same checkpoint.
pub fn compile_trying(
    directory: &Path,
    into: &Path,
    options: &PlanOptions,
    earlier: Option<&Bundle>,
    trying: BundleTrying<'_>,
    watch: &mut dyn Watch,
) -> Result<CompileReport> {
    let compiling = Compiling::begin(directory, into)?;
    let made = compiling.variant(options, earlier, trying, None, watch)?;
    let others = earlier.map(|earlier| compiling.copy(earlier, made.soc())).transpose()?;
    compiling.finish(vec![made], others.unwrap_or_default(), Vec::new())
}
