//! Reports of plans: their numbers are the numbers of the tables.

use shardwright_build::{
    BytesReport, EntryMenu, FallbackReport, Goal, GoalReport, LossReport, PlanHeading, PlanReport,
    PrimitiveCount, Speed, TimeShare, forecast, report_plan, units,
};
use shardwright_planning::check::{CheckedPlan, CheckedShard};
use shardwright_planning::cost::ShardCost;
use shardwright_planning::plan::{Cause, Fallback, Reason};
use shardwright_planning::request::{Request, Sensitivity};
use shardwright_vocabulary::{
    CostRow, Flag, FlagSchema, FlagStage, FlagType, GoalVerdict, Limit, Notice, NoticeKind, Overhead,
    PlannerIdentity, Provenance, Relief, SoftcapPlace, TimeCost, WeightFormat, WeightRole, overhead_names,
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
    let hedge = vec![("shards".to_owned(), 1)];
    cut.fallback = vec![
        Fallback { target: 1, formats: vec![0], limits: hedge.clone() },
        Fallback { target: 0, formats: vec![0], limits: vec![] },
    ];
    cut.reasons = vec![reason(Some(2), "this shard"), reason(None, "the whole"), reason(Some(2), "again")];
    cut.shards[2].target = 1;
    // The readers of its states run where it does, because states are not shared across targets.
    cut.shards[3].target = 1;
    let plan = checked(&request, cut);
    let heading = PlanHeading {
        soc: "a chip".to_owned(),
        planner: PlannerIdentity { name: "hand".to_owned(), version: "1".to_owned(), built_in: false },
        refused_plans: 3,
        notices: vec![Notice::note("a note"), Notice::fallback("a fallback")],
        emulated_on: Some("cpu".to_owned()),
    };
    let report = report_plan(&request, &plan, forecast(&request, &plan, &graph, &weighed(&graph)), heading);

    assert_eq!((report.model.as_str(), report.family.as_str()), ("a model", "a family"));
    assert_eq!((report.soc.as_str(), report.refused_plans), ("a chip", 3));
    assert_eq!(
        report.notices.iter().map(|notice| notice.kind).collect::<Vec<_>>(),
        [NoticeKind::Note, NoticeKind::Fallback]
    );
    assert_eq!(report.emulated_on.as_deref(), Some("cpu"));
    let formats = vec![report.shards[2].formats.clone()];
    let chain = |target: &str, within, bytes: Option<u64>| FallbackReport {
        target: target.to_owned(),
        formats: formats.clone(),
        within,
        bytes,
        provenance: bytes.map(|_| report.totals.artefacts.provenance),
    };
    // Cuts do not change the bytes of a hedge. It need not verify proposals, as this plan could.
    let bytes = report.fallback[0].bytes.unwrap();
    let totals = &report.totals;
    assert!(bytes > totals.weight_bytes && bytes <= totals.artefacts.bytes, "{bytes}: {totals:?}");
    assert_eq!(report.fallback, [chain("cpu", hedge, Some(bytes)), chain("chip", vec![], None)]);
    let shown: Vec<String> = report.fallback.iter().map(ToString::to_string).collect();
    let added = format!("+{}, {}", units::bytes(bytes), totals.artefacts.provenance);
    let hedged = format!("cpu within shards ≤ 1 ({added}), in bf16/f32/f32");
    assert_eq!(shown, [hedged, "chip takes over, in bf16/f32/f32".to_owned()]);
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
        assert_eq!(*name, shown.segments.to_string());
        assert_eq!(shown.formats, "bf16/f32/f32");
        assert_eq!(shown.build, "ahead");
    }
    let reasons: Vec<_> = report.shards[2].reasons.iter().map(|reason| reason.choice.as_str()).collect();
    assert_eq!(reasons, ["this shard", "again"]);
    let layers: Vec<_> = report.shards.iter().map(|shard| shard.segments.layers()).collect();
    assert_eq!(layers, [(0, 0), (0, 0), (0, 6), (6, 10), (0, 0)]);
    // The readers write no state and do not run in prefill.
    assert_eq!(report.shards[3].state_bytes, 0);
    assert!(report.shards[3].entries.iter().all(|entry| entry.entry.to_string().starts_with("decode")));
    let weights: u64 = report.shards[2..4].iter().map(|shard| shard.weight_bytes).sum();
    let whole = checked(&request, crate::common::plan(&request, &[])).shards()[2].cost.weight_bytes;
    assert_eq!(weights, whole);
}

/// The totals of all shards, with their provenance.
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
        report_plan(request, &plan, forecast(request, &plan, &graph, &weighed(&graph)), heading()).totals
    };
    let plain = totals(&request, &[6]);
    let costs = checked(&request, plan(&request, &[6]));
    let sum = |of: fn(&ShardCost) -> u64| costs.shards().iter().map(|shard| of(&shard.cost)).sum::<u64>();
    assert_eq!(plain.weight_bytes, sum(|cost| cost.weight_bytes));
    assert_eq!(plain.state_bytes, sum(|cost| cost.state_bytes));
    let artefacts = BytesReport { bytes: sum(|cost| cost.artefact_bytes), provenance: Provenance::Modelled };
    assert_eq!(plain.artefacts, artefacts);
    assert_eq!(plain.times.len(), request.entries.len());
    let is_known = |time: &TimeCost| time.is_ordered() && time.low < time.high;
    assert!(plain.times.iter().all(|entry| is_known(&entry.time)), "{:?}", plain.times);
    assert_eq!(plain.loss, LossReport::None);

    // Every row needs five to thirty microseconds. The time of the head comes from a formula, and
    // the weakest provenance counts for the whole.
    let head = request.kinds.iter().position(|kind| kind.name == "head").unwrap() as u32;
    for row in &mut request.costs {
        let provenance = if row.kind == head { Provenance::Modelled } else { Provenance::Simulated };
        row.time = Some(TimeCost::within(5, 10, 30, provenance));
        row.uncosted_ops = 1;
    }
    let timed = totals(&request, &[6]);
    let of = |name: &str| timed.times.iter().find(|time| time.entry.to_string() == name).unwrap();
    // Embed, per-layer inputs, ten layers, head, and five hand-offs. In prefill, six of the layers
    // and no head.
    assert_eq!(of("decode_1@64").hand_off_nanoseconds, 5 * 588);
    assert_eq!(of("prefill_64@64").hand_off_nanoseconds, 3 * 588);
    assert_eq!(of("decode_1@64").time, TimeCost::within(65 + 2, 130 + 3, 390 + 3, Provenance::Modelled));
    assert_eq!(of("decode_1@64").uncosted_ops, 13);
    assert_eq!(of("prefill_64@64").time, TimeCost::within(40 + 1, 80 + 2, 240 + 2, Provenance::Simulated));
    let share = |provenance, places, microseconds| TimeShare { provenance, places, microseconds };
    let simulated = share(Provenance::Simulated, 12, 120);
    assert_eq!(of("decode_1@64").shares, [simulated, share(Provenance::Modelled, 1, 10)]);
    assert_eq!(of("prefill_64@64").shares, [share(Provenance::Simulated, 8, 80)]);
    assert_eq!(of("decode_1@64").calls, TimeCost::ZERO);
    // Times of calls are included: five in a decode, and in a prefill three, for the shards that
    // have work in it.
    let mut called = request.clone();
    called.targets[0].overheads = vec![Overhead {
        name: overhead_names::CALL.to_owned(),
        low: Some(100),
        value: 300,
        high: None,
        provenance: Provenance::Reported,
        note: String::new(),
    }];
    let called = totals(&called, &[6]);
    let of = |name: &str| called.times.iter().find(|time| time.entry.to_string() == name).unwrap();
    let calls = TimeCost::within(500, 1500, 1500, Provenance::Reported);
    assert_eq!(of("decode_1@64").calls, calls);
    assert_eq!(of("decode_1@64").time, TimeCost::within(567, 1633, 1893, Provenance::Modelled));
    assert_eq!(of("decode_1@64").shares[0], share(Provenance::Reported, 0, 1500));
    assert_eq!(of("prefill_64@64").time, TimeCost::within(341, 982, 1142, Provenance::Reported));
    // Between shards on two devices the runtime converts the values that it hands over.
    let mut elsewhere = request.clone();
    elsewhere.targets.push(elsewhere.targets[0].clone());
    elsewhere.targets[1].target.name = "elsewhere".to_owned();
    elsewhere.targets[1].target.device = "elsewhere".to_owned();
    elsewhere.transfer_nanoseconds = 1000;
    let other = elsewhere.costs.iter().map(|row| CostRow { target: 1, ..row.clone() });
    let other: Vec<CostRow> = other.collect();
    elsewhere.costs.extend(other);
    let speed = |first: usize| {
        let mut moved = plan(&elsewhere, &[6]);
        moved.shards[first..].iter_mut().for_each(|shard| shard.target = 1);
        let moved = checked(&elsewhere, moved);
        match forecast(&elsewhere, &moved, &graph, &weighed(&graph)).speed {
            Speed::Tokens { first: Some(first), each, prompt_tokens: 64, .. } => (first, each),
            other => panic!("{other:?}"),
        }
    };
    // The head does not run in prefill. The layers before it move the rows of one. A prompt of 64
    // is four prefills of 16 and a decode.
    let token = 130_000_u64 + 5 * 588 + 1000;
    for (moved, rows) in [(4, 0), (2, 16)] {
        let (first, each) = speed(moved);
        assert_eq!(each.microseconds, token.div_ceil(1000), "from shard {moved} on");
        let filled = 80_000_u64 + 3 * 588 + rows * 1000;
        assert_eq!(first.microseconds, (4 * filled + token).div_ceil(1000), "from shard {moved} on");
    }

    // The time of the runtime for a soft-cap is part of a token.
    let mut capped = plan(&request, &[6]);
    let last = capped.shards.last_mut().unwrap();
    last.softcap = Some(SoftcapPlace::Runtime);
    let runtime =
        request.model.components[last.segments[0].component as usize].softcap.as_ref().unwrap().runtime;
    let plan_capped = checked(&request, capped);
    let capped = report_plan(
        &request,
        &plan_capped,
        forecast(&request, &plan_capped, &graph, &weighed(&graph)),
        heading(),
    )
    .totals;
    let decode = capped.times.iter().find(|time| time.entry.to_string() == "decode_1@64").unwrap();
    assert_eq!(decode.time.microseconds, 133 + runtime.microseconds);

    // The loss of formats is the sum of the measured losses, and the report counts unmeasured
    // places. A shard without weights is lossless.
    request.formats = vec!["w8-per-channel".parse().unwrap()];
    assert_eq!(totals(&request, &[6]).loss, LossReport::NotMeasured { places: 12 });
    for (component, layers) in [(0, 1), (1, 1), (2, 10), (3, 1)] {
        for layer in 0..layers {
            let (role, format) = (WeightRole::Other, WeightFormat::W8PerChannel);
            request.sensitivities.push(Sensitivity {
                component,
                layer,
                role,
                format,
                micronats: 3,
                provenance: Provenance::Measured,
            });
        }
    }
    assert_eq!(totals(&request, &[6]).loss, LossReport::Measured { micronats: 36 });
    request.sensitivities.pop();
    assert_eq!(totals(&request, &[6]).loss, LossReport::NotMeasured { places: 1 });
}

/// Returns the report of a plan for the fixture that these tests plan for.
fn reported(request: &Request, plan: &CheckedPlan) -> PlanReport {
    let heading = PlanHeading {
        soc: "a chip".to_owned(),
        planner: PlannerIdentity { name: "hand".to_owned(), version: "1".to_owned(), built_in: false },
        refused_plans: 0,
        notices: vec![],
        emulated_on: None,
    };
    let graph = fixture("gemma4_text");
    report_plan(request, plan, forecast(request, plan, &graph, &weighed(&graph)), heading)
}

/// The layers of a shard add up to the shard, in every figure, and their losses to the plan's.
#[test]
fn layers_add_up_to_their_shards() {
    let graph = fixture("gemma4_text");
    let mut request =
        request(&graph, &[offer("chip", PrimitiveCount::default())], &EntryMenu::usual(&graph, 64));
    for (index, row) in request.costs.iter_mut().enumerate() {
        row.time = Some(TimeCost::exact(10 + index as u64, Provenance::Simulated));
        row.uncosted_ops = index as u64 % 3;
    }
    // The last layer of each shard is in other formats.
    let bits = "w8-per-channel".parse().unwrap();
    let rows: Vec<_> = request
        .costs
        .iter()
        .map(|row| {
            let mut row = row.clone();
            row.formats = 1;
            row.weight_bytes /= 2;
            row
        })
        .collect();
    request.costs.extend(rows);
    request.formats.push(bits);
    let mut cut = plan(&request, &[6]);
    for (micronats, shard) in (3..).zip(&mut cut.shards) {
        if let Some(formats) = shard.segments[0].formats.last_mut() {
            *formats = 1;
        }
        let (component, layer) = (shard.segments[0].component, shard.segments[0].end.saturating_sub(1));
        for (role, format) in
            [(WeightRole::Other, WeightFormat::W8PerChannel), (WeightRole::Other, WeightFormat::Bf16)]
        {
            request.sensitivities.push(Sensitivity {
                component,
                layer,
                role,
                format,
                micronats,
                provenance: Provenance::Measured,
            });
        }
    }
    // The loss of the last shard is unknown.
    request.sensitivities.truncate(8);
    let plan = checked(&request, cut);
    let report = reported(&request, &plan);

    let names: Vec<_> = report
        .shards
        .iter()
        .flat_map(|shard| &shard.by_layer)
        .map(|layer| (layer.component.as_str(), layer.layer))
        .collect();
    let layers = (0..10).map(|layer| ("decoder", Some(layer)));
    let expected: Vec<_> = [("embed", None), ("per-layer-input", None)]
        .into_iter()
        .chain(layers)
        .chain([("head", None)])
        .collect();
    assert_eq!(names, expected);
    for shard in &report.shards {
        let sum = |of: fn(&shardwright_build::LayerReport) -> u64| shard.by_layer.iter().map(of).sum::<u64>();
        assert_eq!(sum(|layer| layer.weight_bytes), shard.weight_bytes);
        assert_eq!(sum(|layer| layer.artefact_bytes), shard.artefact_bytes);
        assert_eq!(sum(|layer| layer.state_bytes), shard.state_bytes);
        for (index, entry) in shard.entries.iter().enumerate() {
            let parts: Vec<_> = shard.by_layer.iter().map(|layer| &layer.entries[index]).collect();
            assert!(parts.iter().all(|part| part.entry == entry.entry));
            assert_eq!(parts.iter().map(|part| part.ops).sum::<u64>(), entry.ops);
            assert_eq!(parts.iter().map(|part| part.uncosted_ops).sum::<u64>(), entry.uncosted_ops);
            let times = parts.iter().map(|part| part.time.microseconds).sum::<u64>();
            assert_eq!(times, entry.time.microseconds);
        }
        let (last, others) = shard.by_layer.split_last().unwrap();
        assert_eq!(last.formats, "w8-per-channel/f32/f32");
        assert!(others.iter().all(|layer| layer.formats == "bf16/f32/f32" && layer.loss == LossReport::None));
        assert!(shard.by_layer.iter().all(|layer| !layer.kind.is_empty() && layer.ops > 0));
    }
    // A float format is lossless, whatever was measured. The report counts places without a number.
    // The sum of the layers is the plan's loss.
    let losses: Vec<_> = report.shards.iter().map(|shard| shard.by_layer.last().unwrap().loss).collect();
    let measured = |micronats| LossReport::Measured { micronats };
    assert_eq!(losses[1..], [measured(4), measured(5), measured(6), LossReport::NotMeasured { places: 1 }]);
    let added: u64 = losses
        .iter()
        .map(|loss| if let LossReport::Measured { micronats } = loss { *micronats } else { 0 })
        .sum();
    assert_eq!(plan.loss().micronats, added);
    assert_eq!(report.totals.loss, LossReport::NotMeasured { places: 1 });

    let json = serde_json::to_vec(&report).unwrap();
    assert_eq!(serde_json::from_slice::<PlanReport>(&json).unwrap(), report);
}

/// How close each shard comes to each countable limit, under its own flags.
#[test]
fn limits_have_their_use() {
    let graph = fixture("gemma4_text");
    let mut offers = vec![offer("chip", PrimitiveCount::default()), offer("cpu", PrimitiveCount::default())];
    let large = Flag { name: "large".to_owned(), value: "true".to_owned() };
    let mut ops = Limit::new("ops", 1_000, Provenance::Reported);
    ops.relief.push(Relief { flag: large.clone(), value: Some(2_000), note: String::new() });
    offers[0].summary.schema.push(FlagSchema {
        name: "large".to_owned(),
        values: FlagType::Switch,
        default: None,
        description: String::new(),
        stage: FlagStage::Compile,
    });
    offers[0].summary.limits = vec![
        ops,
        Limit::new("context-bytes", u64::MAX, Provenance::User),
        // Of two limits with the same name the smaller counts.
        Limit::new("shards", 9, Provenance::Declared),
        Limit::new("shards", 5, Provenance::Probed),
        Limit::new("memory-bytes", u64::MAX / 2, Provenance::Modelled),
        // Only the compiler can count this one.
        Limit::new("odd", 3, Provenance::Learned),
    ];
    let request = request(&graph, &offers, &EntryMenu::usual(&graph, 64));
    let mut cut = plan(&request, &[6]);
    cut.shards[2].flags = vec![large];
    let report = reported(&request, &checked(&request, cut));
    for shard in &report.shards {
        let [ops, context] = shard.limits.as_slice() else { panic!("{:?}", shard.limits) };
        let limit = if shard.index == 2 { 2_000 } else { 1_000 };
        assert_eq!((ops.name.as_str(), ops.used, ops.limit), ("ops", shard.ops, limit));
        assert_eq!((ops.thousandths, ops.provenance), (shard.ops * 1000 / limit, Provenance::Reported));
        assert!(ops.thousandths > 0, "{ops:?}");
        assert_eq!(
            (context.name.as_str(), context.limit, context.thousandths),
            ("context-bytes", u64::MAX, 0)
        );
        assert_eq!(context.used, shard.artefact_bytes + shard.state_bytes);
    }
    let shared: Vec<_> = report
        .shared_limits
        .iter()
        .map(|used| {
            (
                used.target.as_str(),
                used.limit.name.as_str(),
                used.limit.used,
                used.limit.limit,
                used.limit.thousandths,
            )
        })
        .collect();
    let bytes = report.totals.artefacts.bytes + report.totals.state_bytes;
    assert_eq!(shared, [("chip", "shards", 5, 5, 1000), ("chip", "memory-bytes", bytes, u64::MAX / 2, 0)]);
}

#[test]
fn goals_have_what_the_plan_makes_of_them() {
    let graph = fixture("gemma4_text");
    let mut request =
        request(&graph, &[offer("chip", PrimitiveCount::default())], &EntryMenu::usual(&graph, 64));
    let goals = |request: &Request| {
        let report = reported(request, &checked(request, plan(request, &[])));
        report
            .goals
            .into_iter()
            .map(|goal| (goal.goal, (goal.asked, goal.predicted, goal.verdict)))
            .collect::<Vec<_>>()
    };
    let met = Some(GoalVerdict::Met);
    let rows = (Goal::PrefillRows, (64, Some(64), met));
    assert_eq!(goals(&request), [(Goal::Context, (64, Some(64), met)), rows]);

    // A goal that is met, and a goal for memory, which a formula estimates.
    let totals = reported(&request, &checked(&request, plan(&request, &[]))).totals;
    let peak = totals.artefacts.bytes + totals.state_bytes;
    request.goals.quality_micronats = Some(7);
    request.goals.memory_bytes = Some(peak);
    let found = goals(&request);
    assert!(found.contains(&(Goal::Quality, (7, Some(0), met))), "{found:?}");
    let likely = (peak, Some(peak), Some(GoalVerdict::Likely));
    assert!(found.contains(&(Goal::Memory, likely)), "{found:?}");

    // 13 rows of five to thirty microseconds, and four hand-offs between shards.
    for row in &mut request.costs {
        row.time = Some(TimeCost::within(5, 10, 30, Provenance::Simulated));
    }
    for (most, verdict) in [(393, GoalVerdict::Met), (133, GoalVerdict::Likely), (67, GoalVerdict::Unlikely)]
    {
        request.goals.token_microseconds = Some(most);
        let report = reported(&request, &checked(&request, plan(&request, &[])));
        let token = report.goals.iter().find(|goal| goal.goal == Goal::Token).unwrap();
        assert_eq!((token.low, token.predicted, token.high), (Some(67), Some(133), Some(393)));
        assert_eq!((token.verdict, token.provenance), (Some(verdict), Some(Provenance::Simulated)));
        assert_eq!(report.forecast.verdict.too_slow, verdict == GoalVerdict::Unlikely);
        let notices = report.goals.iter().filter_map(GoalReport::notice).count();
        assert_eq!(notices, usize::from(verdict == GoalVerdict::Unlikely));
    }
    let report = reported(&request, &checked(&request, plan(&request, &[])));
    for goal in &report.goals {
        assert_eq!(serde_json::to_value(goal.goal).unwrap(), goal.goal.name());
    }
}
