//! Entries of a work order as graphs of the vendor's compiler.
//!
//! **Job.** Says of every node whether it is taken and why not ([`check`]), and writes an entry in
//! the operations the processor has ([`lower`]), in the layout that [`Variants`] choose. Weights
//! are borrowed.
//!
//! **Not its job.** It calls no library. What the library refuses of a graph made here is a mistake
//! of this module.
//!
//! Reading order: [`check`], [`Variants`], then the way of an entry, which `shardwright-shim-npu`
//! has read: `import` and `attention` (written in the processor's operations), `tidy` (rewritten),
//! `leaving` (its results cut), `emit` (made the compiler's).

mod attention;
mod check;
mod draft;
mod emit;
mod encoding;
mod import;
mod leaving;
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

/// An entry as the compiler is given it.
#[derive(Clone, Debug)]
pub struct Lowered<'w> {
    /// The graph.
    pub graph: QnnGraph<'w>,
    /// Its inputs, then its outputs, in the entry's order, each with the tensor a run binds. That
    /// has the port's extents.
    pub ports: Vec<Port<TensorIndex>>,
    /// Weights whose bytes or scales are not at hand, with made-up ones in their place: good for
    /// counting, not for running.
    pub stand_ins: usize,
    /// Bytes of the largest mask that the variants want written out for its heads and that is
    /// broadcast all the same, being larger than [`MOST_REPEATED_BYTES`].
    pub broadcast_mask: Option<u64>,
}

/// One verdict per node, in the entry's order, the same for every chip that is known. Weights may
/// have no bytes and no scales: then their kinds and extents decide.
pub fn check(entry: EntryView<'_>, soc: &Soc) -> Vec<Verdict> {
    let _ = soc;
    verdicts(entry, &Hexagon)
}

/// The graph of an entry.
///
/// # Errors
///
/// [`LowerError`], for an entry that [`check`] does not take whole, and for weights that do not
/// hold what their type promises.
pub fn lower<'w>(entry: EntryView<'w>, soc: &Soc, variants: &Variants) -> Result<Lowered<'w>, LowerError> {
    let _ = soc;
    let source = Source::read(entry)?;
    check_all(&source, &Hexagon)?;
    let (mut draft, broadcast_mask) = import::import(&source, variants)?;
    tidy::tidy(&mut draft);
    leaving::leave(&mut draft, variants.leaving);
    let lowered = emit::emit(&source, draft)?;
    Ok(Lowered { broadcast_mask, ..lowered })
}
