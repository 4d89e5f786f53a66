//! Each entry point of a network has weights of its own.
//!
//! Sources: the shim's networks have one set of constants per entry point, 1.28 GB for a model of
//! 0.76 GB (`docs/benchmarks/mediatek.md`). ExecuTorch's example extracts the weights that its two
//! networks share (`ExtractSharedBlobKey`) to avoid that. The solver counts the weights of decode
//! once and adds the bytes that the cost table has for other entry points. If no shim reported
//! them, the table has no second set, and a goal for the size would allow too many entry points.

use shardwright_planner::{Cause, EntryKind, Reason, Request};

/// Adds the weights to the entry points whose costs lack them. Returns a reason if there are any.
pub(crate) fn count(request: &mut Request) -> Option<Reason> {
    let targets: Vec<bool> = request.targets.iter().map(super::is_own).collect();
    let mut is_short = false;
    for cost in &mut request.costs {
        let is_counted_once = match cost.entry.kind {
            EntryKind::Decode => cost.entry.rows == 1,
            EntryKind::Encode => true,
            EntryKind::Prefill => false,
        };
        let is_own = targets.get(cost.target as usize) == Some(&true);
        if is_own && !is_counted_once && cost.artefact_bytes < cost.weight_bytes {
            cost.artefact_bytes = cost.artefact_bytes.saturating_add(cost.weight_bytes);
            is_short = true;
        }
    }
    is_short.then(|| Reason {
        shard: None,
        choice: "weights count once for each entry point".to_owned(),
        because: "a network stores them for each entry point, which the estimates leave out".to_owned(),
        cause: Cause::Cost("artefact-bytes".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use shardwright_planner::testing::set_time;
    use shardwright_planner::{Cost, Entry, Goal, Planner, PromptLength};

    use super::*;
    use crate::MediaTek;
    use crate::tests::chip;

    const PREFILLS: [u32; 2] = [128, 16];

    /// Returns a request of two layers whose usual prompts are read fastest with both prefills. The
    /// artefact of decode has 6050 bytes. A prefill adds 30 bytes, and 2000 bytes of weights.
    fn request(size: Option<u64>) -> Request {
        chip(2)
            .change(|request| {
                let prefill = |rows| Entry { kind: EntryKind::Prefill, rows, context: 512 };
                let rows: Vec<Cost> =
                    request.costs.iter().filter(|cost| cost.entry == prefill(128)).cloned().collect();
                request.entries.push(prefill(16));
                request.costs.extend(rows.into_iter().map(|row| Cost { entry: prefill(16), ..row }));
                for cost in &mut request.costs {
                    set_time(cost, 1000 + 20 * u64::from(cost.entry.rows));
                }
                let prompts = [(17, 9), (129, 1)];
                request.prompts = prompts.map(|(tokens, count)| PromptLength { tokens, count }).to_vec();
                if let Some(size) = size {
                    request.goals.set(Goal::SizeBytes(size));
                }
            })
            .build()
    }

    fn prefills(request: &Request) -> Vec<u32> {
        let plan = MediaTek::make_plan(request).unwrap();
        let entries = || plan.shards.iter().flat_map(|shard| &shard.entries);
        let has = |rows: &u32| entries().any(|entry| entry.kind == EntryKind::Prefill && entry.rows == *rows);
        PREFILLS.into_iter().filter(has).collect()
    }

    #[test]
    fn a_goal_for_the_size_counts_each_set_of_weights() {
        assert_eq!(prefills(&request(None)), PREFILLS);
        assert_eq!(prefills(&request(Some(10_110))), PREFILLS);
        assert_eq!(prefills(&request(Some(10_109))).len(), 1);
    }

    #[test]
    fn estimates_with_their_own_weights_are_left_alone() {
        let mut whole = request(None);
        for cost in whole.costs.iter_mut().filter(|cost| cost.entry.kind == EntryKind::Prefill) {
            cost.artefact_bytes = cost.weight_bytes + 10;
        }
        let before = whole.clone();
        assert_eq!(count(&mut whole), None);
        assert_eq!(whole, before);
        let mut short = request(None);
        assert!(count(&mut short).is_some());
        let expected = |cost: &Cost| match cost.entry.kind {
            // The 10 bytes of the embedding's artefact may contain its 10 bytes of weights.
            EntryKind::Prefill if cost.weight_bytes > 10 => cost.weight_bytes + 10,
            _ => 10,
        };
        assert!(short.costs.iter().all(|cost| cost.artefact_bytes == expected(cost)));
    }
}
