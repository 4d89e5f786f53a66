//! A plan as it is shown: the numbers are those of the tables.

use shardwright_build::graph::target::{Limit, Provenance};
use shardwright_build::planning::plan::{Cause, Reason};
use shardwright_build::{
    EntryMenu, Notice, NoticeKind, PlanHeading, PlannerName, PrimitiveCount, report_plan, shard_name,
};

use crate::common::{checked, fixture, offer, plan, request};

#[test]
fn a_report_has_the_numbers_of_the_plan() {
    let graph = fixture("gemma4_text");
    let mut offers = vec![offer("chip", PrimitiveCount::default()), offer("cpu", PrimitiveCount::default())];
    offers[0].summary.limits.push(Limit::new("ops", 100_000, Provenance::User));
    let request = request(&graph, &offers, &EntryMenu::usual(&graph, 64));
    let reason = |shard, choice: &str| Reason {
        shard,
        choice: choice.to_owned(),
        because: "it fits".to_owned(),
        cause: Cause::Goal("context".to_owned()),
    };
    let mut cut = plan(&request, &[6]);
    cut.fallback = vec![1];
    cut.reasons = vec![reason(Some(2), "this shard"), reason(None, "the whole"), reason(Some(2), "again")];
    cut.shards[2].target = 1;
    // Its readers run where it does: states are not shared across targets.
    cut.shards[3].target = 1;
    let plan = checked(&request, cut);
    let heading = PlanHeading {
        soc: "a chip".to_owned(),
        planner: PlannerName { name: "hand".to_owned(), version: "1".to_owned(), built_in: false },
        refused_plans: 3,
        notices: vec![Notice::note("a note"), Notice::fallback("a fallback")],
        emulated_on: Some("cpu".to_owned()),
    };
    let report = report_plan(&request, &plan, heading);

    assert_eq!((report.model.as_str(), report.family.as_str()), ("a model", "a family"));
    assert_eq!((report.soc.as_str(), report.refused_plans), ("a chip", 3));
    assert_eq!(
        report.notices.iter().map(|notice| notice.kind).collect::<Vec<_>>(),
        [NoticeKind::Note, NoticeKind::Fallback]
    );
    assert_eq!(report.emulated_on.as_deref(), Some("cpu"));
    assert_eq!(report.fallback, ["cpu"]);
    assert_eq!(report.limits.len(), 1);
    assert_eq!((report.limits[0].target.as_str(), report.limits[0].limit.value), ("chip", 100_000));
    assert_eq!(report.reasons.len(), 1);
    assert_eq!(report.reasons[0].choice, "the whole");

    assert_eq!(report.shards.len(), 5);
    for (shown, (shard, cost)) in report.shards.iter().zip(plan.shards()) {
        assert_eq!(
            (shown.ops, shown.weight_bytes, shown.state_bytes),
            (cost.ops, cost.weight_bytes, cost.state_bytes)
        );
        assert_eq!(shown.target, if shard.target == 0 { "chip" } else { "cpu" });
        assert_eq!(shown.context, 64);
        assert_eq!(shown.ops, shown.entries.iter().map(|entry| entry.ops).max().unwrap());
        let layered = shown.layers.map(|(first, end)| format!("{}.{first}-{end}", shown.component));
        assert_eq!(shard_name(&request, shard), layered.unwrap_or_else(|| shown.component.clone()));
        assert_eq!(shown.formats, "bf16/f32/f32");
        assert_eq!(shown.build, "ahead");
    }
    let reasons: Vec<_> = report.shards[2].reasons.iter().map(|reason| reason.choice.as_str()).collect();
    assert_eq!(reasons, ["this shard", "again"]);
    let layers: Vec<_> = report.shards.iter().map(|shard| shard.layers).collect();
    assert_eq!(layers, [None, None, Some((0, 6)), Some((6, 10)), None]);
    // The readers write no state and take no part in prefill.
    assert_eq!(report.shards[3].state_bytes, 0);
    assert!(report.shards[3].entries.iter().all(|entry| entry.entry.to_string().starts_with("decode")));
    let weights: u64 = report.shards[2..4].iter().map(|shard| shard.weight_bytes).sum();
    let whole = checked(&request, crate::common::plan(&request, &[])).cost(2).unwrap().weight_bytes;
    assert_eq!(weights, whole);
}
