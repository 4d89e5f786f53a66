//! The repetition penalty.

/// Applies the penalty once to every token of the history.
pub(super) fn penalise(logits: &mut [f32], history: &[u32], penalty: f32) {
    let mut seen = vec![0u64; logits.len().div_ceil(64)];
    for &id in history {
        let id = id as usize;
        let Some(logit) = logits.get_mut(id) else {
            continue;
        };
        let bit = 1 << (id % 64);
        if seen[id / 64] & bit == 0 {
            seen[id / 64] |= bit;
            let changed = if *logit < 0.0 { *logit * penalty } else { *logit / penalty };
            // An extreme penalty must not turn a finite logit into an infinite one.
            *logit = changed.clamp(f32::MIN, f32::MAX);
        }
    }
}
