//! A plan as it is shown: the numbers are those of the tables.

use shardwright_build::{BytesReport, EntryMenu, LossReport, PlanHeading, PrimitiveCount, report_plan};
use shardwright_planning::check::CheckedShard;
use shardwright_planning::cost::ShardCost;
use shardwright_planning::plan::{Cause, Reason};
use shardwright_planning::request::{Request, Sensitivity};
use shardwright_vocabulary::{
    Limit, Notice, NoticeKind, PlannerIdentity, Provenance, SoftcapPlace, TimeCost, WeightFormat, WeightRole,
};

use crate::common::{checked, fixture, offer, plan, request, weighed};

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
        planner: PlannerIdentity { name: "hand".to_owned(), version: "1".to_owned(), built_in: false },
        refused_plans: 3,
        notices: vec![Notice::note("a note"), Notice::fallback("a fallback")],
        emulated_on: Some("cpu".to_owned()),
    };
    let report = report_plan(&request, &plan, &graph, &weighed(&graph), heading);

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
    for (shown, CheckedShard { name, planned: shard, cost, .. }) in report.shards.iter().zip(plan.shards()) {
        assert_eq!(
            (shown.ops, shown.weight_bytes, shown.state_bytes),
            (cost.ops, cost.weight_bytes, cost.state_bytes)
        );
        assert_eq!(shown.target, if shard.target == 0 { "chip" } else { "cpu" });
        assert_eq!(shown.context, 64);
        assert_eq!(shown.ops, shown.entries.iter().map(|entry| entry.ops).max().unwrap());
        let layered = shown.layers.map(|(first, end)| format!("{}.{first}-{end}", shown.component));
        assert_eq!(*name, layered.unwrap_or_else(|| shown.component.clone()));
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
    let whole = checked(&request, crate::common::plan(&request, &[])).shards()[2].cost.weight_bytes;
    assert_eq!(weights, whole);
}

/// What the shards come to together, with what it rests on.
#[test]
fn a_report_adds_up_what_the_plan_costs() {
    let graph = fixture("gemma4_text");
    let mut request =
        request(&graph, &[offer("chip", PrimitiveCount::default())], &EntryMenu::usual(&graph, 64));
    let heading = || PlanHeading {
        soc: "a chip".to_owned(),
        planner: PlannerIdentity { name: "hand".to_owned(), version: "1".to_owned(), built_in: false },
        refused_plans: 0,
        notices: vec![],
        emulated_on: None,
    };
    let totals = |request: &Request, cuts: &[u32]| {
        let plan = checked(request, plan(request, cuts));
        report_plan(request, &plan, &graph, &weighed(&graph), heading()).totals
    };
    let plain = totals(&request, &[6]);
    let costs = checked(&request, plan(&request, &[6]));
    let sum = |of: fn(&ShardCost) -> u64| costs.shards().iter().map(|shard| of(&shard.cost)).sum::<u64>();
    assert_eq!(plain.weight_bytes, sum(|cost| cost.weight_bytes));
    assert_eq!(plain.state_bytes, sum(|cost| cost.state_bytes));
    let artefacts = BytesReport { bytes: sum(|cost| cost.artefact_bytes), provenance: Provenance::Modelled };
    assert_eq!(plain.artefacts, artefacts);
    assert_eq!(plain.boundary_nanoseconds, 5 * 588);
    assert_eq!(plain.times.len(), request.entries.len());
    assert!(plain.times.iter().all(|entry| entry.time.is_none()), "{:?}", plain.times);
    assert_eq!(plain.loss, LossReport::None);

    // Every row takes ten microseconds, those of the head by a formula: the weakest word counts for
    // the whole.
    let head = request.kinds.iter().position(|kind| kind.name == "head").unwrap() as u32;
    for row in &mut request.costs {
        let provenance = if row.kind == head { Provenance::Modelled } else { Provenance::Simulated };
        row.time = Some(TimeCost { microseconds: 10, provenance });
        row.uncosted_ops = 1;
    }
    let timed = totals(&request, &[6]);
    let of = |name: &str| timed.times.iter().find(|time| time.entry.to_string() == name).unwrap();
    // Embed, per-layer inputs, ten layers, head; in prefill six of the layers and no head.
    let time = |microseconds, provenance| Some(TimeCost { microseconds, provenance });
    assert_eq!(of("decode_1@64").time, time(130, Provenance::Modelled));
    assert_eq!(of("decode_1@64").uncosted_ops, 13);
    assert_eq!(of("prefill_64@64").time, time(80, Provenance::Simulated));
    // What a soft-cap takes the runtime is part of a token.
    let mut capped = plan(&request, &[6]);
    let last = capped.shards.last_mut().unwrap();
    last.softcap = Some(SoftcapPlace::Runtime);
    let runtime = request.model.components[last.component as usize].softcap.as_ref().unwrap().runtime;
    let plan_capped = checked(&request, capped);
    let capped = report_plan(&request, &plan_capped, &graph, &weighed(&graph), heading()).totals;
    let decode = capped.times.iter().find(|time| time.entry.to_string() == "decode_1@64").unwrap();
    assert_eq!(decode.time.unwrap().microseconds, 130 + runtime.microseconds);

    // What formats lose is the sum of what was measured; what was not, is said. Without a weight
    // nothing is lost.
    request.formats = vec!["w8-per-channel".parse().unwrap()];
    assert_eq!(totals(&request, &[6]).loss, LossReport::NotMeasured { places: 12 });
    for (component, layers) in [(0, 1), (1, 1), (2, 10), (3, 1)] {
        for layer in 0..layers {
            let (role, format) = (WeightRole::Other, WeightFormat::W8PerChannel);
            request.sensitivities.push(Sensitivity { component, layer, role, format, micronats: 3 });
        }
    }
    assert_eq!(totals(&request, &[6]).loss, LossReport::Measured { micronats: 36 });
    request.sensitivities.pop();
    assert_eq!(totals(&request, &[6]).loss, LossReport::NotMeasured { places: 1 });
}
