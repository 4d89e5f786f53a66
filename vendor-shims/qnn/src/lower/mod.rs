//! Entries of a work order as graphs of the vendor's compiler.
//!
//! **Job.** Decides for every node whether it is supported, with the reason if not ([`check`]), and
//! lowers an entry to the processor's operations ([`lower`]), in the layout that [`Variants`]
//! select. Weights are borrowed.
//!
//! **Not its job.** It calls no library. If the library refuses a graph made here, that is a bug of
//! this module.
//!
//! Reading order: [`check`], [`Variants`], then the stages of an entry, which
//! `shardwright-shim-npu` has read: `import` and `attention` (conversion to the processor's
//! operations), `tidy` (rewriting), `leaving` (splitting outputs), `sixteen_rows` (what the
//! compiler gets wrong), `emit` (conversion to the compiler's graph).

mod attention;
mod check;
mod draft;
mod emit;
mod encoding;
mod import;
mod leaving;
mod sixteen_rows;
mod tidy;
mod variants;
mod weights;

use shardwright_shim_abi::{EntryView, Verdict};
pub use shardwright_shim_npu::LowerError;
use shardwright_shim_npu::check::{check_all, verdicts};
use shardwright_shim_npu::port::Port;

pub use self::attention::MOST_REPEATED_BYTES;
use self::check::Hexagon;
use self::draft::Source;
pub use self::variants::{Heads, KeyRows, Leaving, Product, Rotary, SharedMask, Variants, WIDEST};
use crate::graph::{QnnGraph, TensorIndex};
use crate::soc::Soc;

/// A lowered entry.
#[derive(Clone, Debug)]
pub struct Lowered<'w> {
    /// The graph.
    pub graph: QnnGraph<'w>,
    /// Its inputs, then its outputs, in the entry's order, each with the tensor a run binds, which
    /// has the port's extents.
    pub ports: Vec<Port<TensorIndex>>,
    /// Number of weights whose bytes or scales are not available and were made up: good for
    /// estimates, not for running.
    pub stand_ins: usize,
    /// Bytes of the largest mask that the variants want repeated for its heads but that is
    /// broadcast, because it is larger than [`MOST_REPEATED_BYTES`].
    pub broadcast_mask: Option<u64>,
}

/// One verdict per node, in the entry's order, the same for every known chip. Weights may have no
/// bytes and no scales: then their kinds and extents decide.
pub fn check(entry: EntryView<'_>, soc: &Soc) -> Vec<Verdict> {
    let _ = soc;
    verdicts(entry, &Hexagon)
}

/// The graph of an entry.
///
/// # Errors
///
/// [`LowerError`], for an entry that [`check`] does not fully support, and for weights whose bytes
/// do not match their type.
pub fn lower<'w>(entry: EntryView<'w>, soc: &Soc, variants: &Variants) -> Result<Lowered<'w>, LowerError> {
    let _ = soc;
    let source = Source::read(entry)?;
    check_all(&source, &Hexagon)?;
    let (mut draft, broadcast_mask) = import::import(&source, variants)?;
    tidy::tidy(&mut draft);
    leaving::leave(&mut draft, variants.leaving);
    sixteen_rows::split(&mut draft);
    let lowered = emit::emit(&source, draft)?;
    Ok(Lowered { broadcast_mask, ..lowered })
}
