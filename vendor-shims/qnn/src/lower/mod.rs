//! Lowers entries of a work order to graphs of the vendor's compiler.
//!
//! **Job.** Decides for every node whether it is supported, with a reason if it is not ([`check`]).
//! Lowers an entry to the processor's operations ([`lower`]), in the layout selected by
//! [`Variants`]. Weights are borrowed.
//!
//! **Not its job.** It does not call libraries. If the library refuses a graph from this module,
//! that is a bug of this module.
//!
//! Reading order: [`check`], [`Variants`], then the stages of an entry, which
//! `shardwright-shim-npu` has read: `import` and `attention` (conversion to the processor's
//! operations), `tidy` (rewriting), `output_split` (splitting outputs), `sixteen_rows`
//! (workaround for wrong results), `emit` (conversion to the compiler's graph). `parts` limits the
//! graph's size.

mod attention;
mod check;
mod draft;
mod emit;
mod encoding;
mod import;
mod output_split;
mod parts;
mod sixteen_rows;
mod tidy;
mod variants;
mod weights;

use shardwright_shim_abi::{EntryView, Error, Verdict};
use shardwright_shim_npu::check::{check_all, verdicts};
use shardwright_shim_npu::port::Port;

pub use self::attention::MOST_REPEATED_BYTES;
use self::check::Hexagon;
use self::draft::Source;
pub use self::parts::MAX_PARTS;
pub use self::variants::{Heads, KeyRows, Leaving, Product, Rotary, SharedMask, Variants, WIDEST};
use crate::graph::{QnnGraph, TensorIndex};
use crate::soc::Soc;

#[derive(Clone, Debug)]
pub struct Lowered<'w> {
    pub graph: QnnGraph<'w>,
    /// The entry's inputs, then its outputs, in the entry's order. Each has the tensor that a run
    /// binds, which has the port's extents.
    pub ports: Vec<Port<TensorIndex>>,
    /// Number of weights whose bytes or scales are not available and were made up. Such a graph is
    /// suitable for estimates but not for running.
    pub stand_ins: usize,
    /// Size in bytes of the largest mask that is broadcast because it is larger than
    /// [`MOST_REPEATED_BYTES`], although the variants request to repeat it for its heads.
    pub broadcast_mask: Option<u64>,
}

/// Returns one verdict per node, in the entry's order. It is the same for every known chip. If
/// weights have no bytes and no scales, their kinds and extents decide. Products that the default
/// variants split into more than [`MAX_PARTS`] parts are refused.
pub fn check(entry: EntryView<'_>, soc: &Soc) -> Vec<Verdict> {
    let _ = soc;
    let mut verdicts = verdicts(entry, &Hexagon);
    parts::refuse(entry, &mut verdicts);
    verdicts
}

/// Lowers an entry to a graph.
///
/// # Errors
///
/// Fails for an entry that [`check`] does not fully support, for weights whose bytes do not match
/// their type, and for variants that split the products into more than [`MAX_PARTS`] parts.
pub fn lower<'w>(entry: EntryView<'w>, soc: &Soc, variants: &Variants) -> Result<Lowered<'w>, Error> {
    let _ = soc;
    let source = Source::read(entry)?;
    check_all(&source, &Hexagon)?;
    parts::check(&source, variants)?;
    let (mut draft, broadcast_mask) = import::import(&source, variants)?;
    tidy::tidy(&mut draft);
    output_split::leave(&mut draft, variants.leaving);
    sixteen_rows::split(&mut draft);
    let lowered = emit::emit(&source, draft)?;
    Ok(Lowered { broadcast_mask, ..lowered })
}
