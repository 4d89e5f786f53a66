//! Parts of context binaries.
//!
//! Sources: published bundles for Hexagon have parts of 1.1 to 1.7 GB. On SM8850, a part of 1.81 GB
//! loaded and one of 3.6 GB did not. The profiles list these sizes as the limit `artefact-bytes`
//! (reported), next to the room that addresses leave, `context-bytes` (modelled). The solver keeps
//! both. The entry points of a part share its weights, as the cost table states.
//!
//! If a model needs several parts, one full part and a small one load no faster than two of equal
//! size, and the full one is closer to the limits. So parts are balanced by bytes.

use shardwright_planner::Request;
use shardwright_planner::solver::{Balance, Settings};

/// Balances parts by bytes unless the user balances them otherwise.
pub(crate) fn balance(request: &Request, settings: &mut Settings) {
    if request.option("balance").is_none() && request.targets.iter().any(super::is_own) {
        settings.balance = Balance::Bytes;
    }
}

#[cfg(test)]
mod tests {
    use shardwright_planner::Planner;
    use shardwright_planner::testing::RequestBuilder;

    use crate::Qualcomm;
    use crate::tests::chip;

    fn layers(builder: RequestBuilder) -> Vec<u32> {
        let plan = Qualcomm::make_plan(&builder.build()).unwrap();
        let decoder = plan.shards.iter().filter_map(|shard| shard.segment(1));
        decoder.map(|segment| segment.end - segment.first).collect()
    }

    #[test]
    fn parts_have_similar_bytes() {
        // The first of six layers has three times the bytes of the others.
        let large = || chip(6).layer(0, 100, 3000).times(0, 10).option("join", "off");
        assert_eq!(layers(large()), [6]);
        let cut = || large().limit("npu", "artefact-bytes", 6000);
        assert_eq!(layers(cut()), [2, 4]);
        assert_eq!(layers(cut().option("balance", "time")), [3, 3]);
        // Of several limits the tightest cuts.
        assert_eq!(layers(cut().limit("npu", "context-bytes", 4100)).len(), 3);
    }
}
