//! Lowering variants of an entry that are worth comparing.

use std::collections::HashSet;

use shardwright_shim_abi::{EntryView, raw};
use shardwright_shim_qnn::lower::{Heads, Leaving, Rotary, SharedMask, Variants};

/// Returns the rules' choice first, then the variants that were best for Gemma 4 E2B's decoder
/// layers and similar ones.
pub fn candidates(entry: EntryView<'_>) -> Vec<Variants> {
    let rule = Variants::rules(entry);
    let mut all = vec![rule];
    // Without attention only the form of products differs, which does not change the cost.
    if !entry.nodes().any(|node| node.op() == raw::SW_OP_SOFTMAX) {
        return all;
    }
    let heads: &[Heads] = match entry.rows() {
        // One row does not need reordering.
        1 => &[Heads::AfterNorm, Heads::Never],
        _ => &[Heads::BeforeNorm, Heads::AfterRotary, Heads::Never, Heads::Grouped],
    };
    for rotary in [Rotary::Pairs, Rotary::Exchanged, Rotary::Negated] {
        for &heads in heads {
            let turned = Variants { rotary, heads, ..rule };
            all.push(turned);
            // With the other head orders, keys transposed by the product were never the fastest.
            if matches!(heads, Heads::AfterNorm | Heads::Grouped) {
                all.push(Variants { turned: false, ..turned });
            }
        }
    }
    if entry.rows() > 1 {
        for (rotary, heads) in [
            (Rotary::Pairs, Heads::Never),
            (Rotary::Exchanged, Heads::Never),
            (Rotary::Exchanged, Heads::Grouped),
        ] {
            all.push(Variants { rotary, heads, mask: SharedMask::Broadcast, ..rule });
        }
        for leaving in [Leaving::Rows, Leaving::Whole] {
            all.push(Variants { leaving, ..rule });
        }
        all.push(Variants {
            rotary: Rotary::Negated,
            heads: Heads::BeforeNorm,
            leaving: Leaving::Rows,
            ..rule
        });
    }
    let mut seen = HashSet::new();
    all.retain(|variants| seen.insert(*variants));
    all
}
