//! Lowers entries of a work order to graphs of the adapter.
//!
//! **Job.** Checks for every node whether it is supported and why not ([`check`]). Lowers an entry
//! to the adapter's operations ([`lower`]), in one of two ways ([`Lowering`]). Weights are
//! borrowed. The number of operations depends only on an entry's nodes and shapes, never on ranges
//! or weights, and the operations of a shard's layers add up. So the planner knows the number
//! before anything is quantised.
//!
//! Embedding, the update of states, and the computation of sines and cosines stay outside the
//! graph, as in other clients. States are read together with the new rows, which are outputs.
//! Tables and masks are inputs.
//!
//! **Not its job.** Calls to the library.
//!
//! Reading order: [`check`], then the steps of lowering an entry that `shardwright-shim-npu` has
//! read: `import`, `attention`, `island` and `gelu` (lower to the adapter's operations), `draft`
//! (rewrites them), `emit` (creates operands and operations).

mod attention;
mod check;
mod draft;
mod emit;
mod encoding;
mod gelu;
mod import;
mod island;
mod weights;

use shardwright_neuron_adapter::RuntimeVersion;
use shardwright_neuron_adapter::version::FOUR_BITS_PER_CHANNEL;
use shardwright_shim_abi::{EntryView, Error, Verdict};
use shardwright_shim_npu::check::{check_all, verdicts};
use shardwright_shim_npu::port::Port;

use self::check::Adapter;
use self::draft::Source;
use crate::graph::NeuronGraph;
use crate::soc::{FourBits, Soc};

/// How an entry is lowered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lowering {
    /// As few operations as possible: norms by the extension's operation, GELU as one operation,
    /// attention with its heads in one product.
    #[default]
    Lean,
    /// No fused operations and no operations of the extension. Norms, GELU and rotary embedding are
    /// written out, and attention consists of the operations of its entry. The refusals reported in
    /// public counted graphs of this kind.
    Plain,
}

impl Lowering {
    /// Returns the name in options and files.
    pub const fn name(self) -> &'static str {
        match self {
            Lowering::Lean => "lean",
            Lowering::Plain => "plain",
        }
    }

    /// Returns the lowering with this name.
    pub fn by_name(name: &str) -> Option<Lowering> {
        [Lowering::Lean, Lowering::Plain].into_iter().find(|lowering| lowering.name() == name)
    }
}

/// Target of a lowering.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    pub soc: &'a Soc,
    /// Version of the adapter.
    pub version: RuntimeVersion,
}

/// Whether 4-bit weights with scales per channel may be sent.
enum FourBitsRule {
    Taken,
    Refused(String),
}

impl Target<'_> {
    fn four_bits_per_channel(&self) -> FourBitsRule {
        match self.soc.four_bits_per_channel {
            FourBits::Refused => FourBitsRule::Refused(format!(
                "{} refuses it at any size, according to the fact `four-bits-per-channel` of its profile",
                self.soc.name
            )),
            FourBits::ByVersion if self.version < FOUR_BITS_PER_CHANNEL => FourBitsRule::Refused(format!(
                "adapter {} has no type for it, its scales would be lost; from {FOUR_BITS_PER_CHANNEL} on it is sent (observed of Google's client)",
                self.version
            )),
            FourBits::ByVersion => FourBitsRule::Taken,
        }
    }
}

/// An entry in the form that is passed to the library.
#[derive(Clone, Debug)]
pub struct Lowered<'w> {
    pub graph: NeuronGraph<'w>,
    /// Inputs, then outputs, in the order of the entry and the graph. Each has its extents in the
    /// graph. The values and their order are the same as in the entry.
    pub ports: Vec<Port<Vec<u64>>>,
}

/// Returns one verdict per node, in the entry's order. Weights may have no bytes and no scales.
/// Then their types and extents decide.
pub fn check(entry: EntryView<'_>, target: &Target<'_>) -> Vec<Verdict> {
    verdicts(entry, &Adapter(target))
}

/// Lowers an entry to a graph. Weights without bytes are [absent](crate::graph::Value::Absent) in
/// the graph, which is sufficient for counting.
///
/// # Errors
///
/// Fails for an entry with a node that [`check`] refuses, and for weights whose bytes violate the
/// promise of their type.
pub fn lower<'w>(
    entry: EntryView<'w>,
    target: &Target<'_>,
    lowering: Lowering,
) -> Result<Lowered<'w>, Error> {
    let source = Source::read(entry)?;
    check_all(&source, &Adapter(target))?;
    let mut draft = import::import(&source, target, lowering)?;
    draft::leave(&mut draft);
    draft::tidy(&mut draft);
    emit::emit(&source, draft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_bits_per_channel_are_refused_with_where_that_is_known_from() {
        let reason = |name, version| {
            let target = Target { soc: &crate::soc::tests::of_profile(name), version };
            match target.four_bits_per_channel() {
                FourBitsRule::Taken => None,
                FourBitsRule::Refused(reason) => Some(reason),
            }
        };
        let (old, new) = (RuntimeVersion::new(8, 2, 27), RuntimeVersion::new(9, 0, 3));
        for version in [old, new] {
            let reason = reason("mt6989", version).expect("refused");
            assert!(reason.contains("mt6989") && reason.contains("of its profile"), "{reason}");
        }
        let reason_old = reason("mt6991", old).expect("refused");
        assert!(reason_old.contains("8.2.27") && reason_old.contains("8.2.28"), "{reason_old}");
        assert_eq!(reason("mt6991", RuntimeVersion::new(8, 2, 28)), None);
        assert_eq!(reason("mt6993", new), None);
    }

    #[test]
    fn lowerings_have_words() {
        for lowering in [Lowering::Lean, Lowering::Plain] {
            assert_eq!(Lowering::by_name(lowering.name()), Some(lowering));
        }
        assert_eq!(Lowering::by_name("fast"), None);
    }
}
