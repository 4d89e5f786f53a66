//! Entries of a work order as graphs of the vendor's compiler.
//!
//! **Job.** Says of every node whether it is taken and why not ([`check`]), and writes an entry in the operations the processor has
//! ([`lower`]), in the layout that [`Variants`] choose. Weights are borrowed.
//!
//! **Not its job.** It calls no library. What the library refuses of a graph made here is a mistake of this module.
//!
//! Reading order: [`check`], [`Variants`], then the way of an entry: `source` (read), `import` and `attention` (written in the processor's
//! operations), `tidy` (rewritten), `leaving` (its results cut),
//! `emit` (made the compiler's).

mod attention;
mod check;
mod draft;
mod emit;
mod encoding;
mod error;
mod import;
mod leaving;
mod source;
mod tidy;
mod variants;
mod weights;

use shardwright_shim_abi::{EntryView, PortView, Verdict};

use self::encoding::Encoding;
pub use self::error::LowerError;
pub use self::variants::{Heads, KeyRows, Leaving, Product, Rotary, SharedMask, Variants, WIDEST};
use crate::graph::{QnnGraph, TensorIndex};
use crate::soc::Soc;

/// An entry as the compiler is given it.
#[derive(Clone, Debug)]
pub struct Lowered<'w> {
    /// The graph.
    pub graph: QnnGraph<'w>,
    /// Its inputs, then its outputs, in the entry's order.
    pub ports: Vec<LoweredPort>,
    /// Weights whose bytes or scales are not at hand, with made-up ones in their place: good for counting, not for running.
    pub stand_ins: usize,
}

/// What a run binds, and the tensor it is bound to. The tensor's extents are the port's.
#[derive(Clone, Debug, PartialEq)]
pub struct LoweredPort {
    /// Of the entry's port; the two sides of a state share one.
    pub name: String,
    /// `SW_ROLE_…`
    pub role: u32,
    /// Which side.
    pub direction: PortDirection,
    /// In the graph.
    pub tensor: TensorIndex,
    /// `SW_DTYPE_…`
    pub dtype: u32,
    /// Extents.
    pub shape: Vec<u64>,
    /// 1 for floats.
    pub scale: f64,
    /// 0 for floats.
    pub zero_point: i64,
}

/// A side of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortDirection {
    /// Bound before a run.
    Input,
    /// Written by a run.
    Output,
}

impl LoweredPort {
    fn new(
        port: &PortView<'_>,
        direction: PortDirection,
        tensor: TensorIndex,
        shape: &[u64],
        encoding: Option<Encoding>,
    ) -> Self {
        let (scale, zero_point) = match encoding {
            Some(Encoding::Fixed16(affine) | Encoding::Fixed8(affine)) => {
                (f64::from(affine.scale), i64::from(affine.zero))
            }
            _ => (1.0, 0),
        };
        LoweredPort {
            name: port.name().to_owned(),
            role: port.role(),
            direction,
            tensor,
            dtype: port.dtype(),
            shape: shape.to_vec(),
            scale,
            zero_point,
        }
    }
}

/// One verdict per node, in the entry's order, the same for every chip that is known. Weights may have no bytes and no scales: then their
/// kinds and extents decide.
pub fn check(entry: EntryView<'_>, soc: &Soc) -> Vec<Verdict> {
    let _ = soc;
    check::verdicts(entry)
}

/// The graph of an entry.
///
/// # Errors
///
/// [`LowerError`], for an entry that [`check`] does not take whole, and for weights that do not hold what their type promises.
pub fn lower<'w>(entry: EntryView<'w>, soc: &Soc, variants: &Variants) -> Result<Lowered<'w>, LowerError> {
    let _ = soc;
    let source = source::Source::read(entry)?;
    check::check_all(&source)?;
    let mut draft = import::import(&source, variants)?;
    tidy::tidy(&mut draft);
    leaving::leave(&mut draft, variants.leaving);
    emit::emit(&source, draft)
}
