//! Candidates for the next token: the best of a row, and of these the likeliest.

use std::cmp::Ordering;

use super::scan::{PIECE, largest_of};

/// A token that may be chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) id: u32,
    pub(super) logit: f32,
}

/// Orders candidates by larger logit, then by lower id.
pub(super) fn better_first(left: &Candidate, right: &Candidate) -> Ordering {
    right.logit.partial_cmp(&left.logit).unwrap_or(Ordering::Equal).then(left.id.cmp(&right.id))
}

/// Fills `candidates` with the `kept` best, in any order.
pub(super) fn best(logits: &[f32], kept: usize, candidates: &mut Vec<Candidate>) {
    candidates.clear();
    if kept >= logits.len() {
        let all = logits.iter().enumerate();
        candidates.extend(all.map(|(id, &logit)| Candidate { id: id as u32, logit }));
        return;
    }
    // At most twice `kept` candidates are stored. Whenever they are full, the better half is kept
    // and sets the bar.
    let mut bar = f32::NEG_INFINITY;
    for (piece, logits) in logits.chunks(PIECE).enumerate() {
        // Ids ascend, so a logit equal to the bar loses against all that set it.
        if largest_of(logits) <= bar {
            continue;
        }
        for (place, &logit) in logits.iter().enumerate() {
            if logit > bar {
                candidates.push(Candidate { id: (piece * PIECE + place) as u32, logit });
                if candidates.len() >= kept.saturating_mul(2) {
                    candidates.select_nth_unstable_by(kept - 1, better_first);
                    candidates.truncate(kept);
                    bar = candidates[kept - 1].logit;
                }
            }
        }
    }
    if candidates.len() > kept {
        candidates.select_nth_unstable_by(kept - 1, better_first);
        candidates.truncate(kept);
    }
}

/// Moves the likeliest candidates whose weights reach `wanted` to the front, best first, and
/// returns their number. Only as many as needed are sorted, a block at a time.
pub(super) fn nucleus(candidates: &mut [Candidate], weights: &mut [f64], sorted: bool, wanted: f64) -> usize {
    const FIRST_BLOCK: usize = 256;
    let mut reached = 0.0;
    if sorted {
        for (index, weight) in weights.iter().enumerate() {
            reached += weight;
            if reached >= wanted {
                return index + 1;
            }
        }
        return weights.len();
    }
    // The weights are in the order of candidates by id here, so they are moved by id.
    let by_id = weights.to_vec();
    let mut start = 0;
    let mut block = FIRST_BLOCK;
    while start < candidates.len() {
        let rest = &mut candidates[start..];
        let length = block.min(rest.len());
        if length < rest.len() {
            rest.select_nth_unstable_by(length - 1, better_first);
        }
        rest[..length].sort_unstable_by(better_first);
        for (offset, candidate) in rest[..length].iter().enumerate() {
            let weight = by_id[candidate.id as usize];
            weights[start + offset] = weight;
            reached += weight;
            if reached >= wanted {
                return start + offset + 1;
            }
        }
        start += length;
        block = block.saturating_mul(2);
    }
    candidates.len()
}
