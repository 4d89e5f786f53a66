use super::*;
use crate::testing::{RequestBuilder, call};
use crate::{EntryKind, MeasuredTime};

/// Plans with every component in a separate shard: embedding, decoder, head.
fn first(request: &Request) -> Plan {
    let apart = Settings { join: false, ..Settings::default() };
    solve(request, &apart).unwrap().into_plan(request)
}

fn feedback(shard: u32, class: Option<ErrorClass>, details: &[(&str, &str)]) -> Feedback {
    Feedback {
        shard: Some(shard),
        class,
        message: "as reported".to_owned(),
        details: details.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect(),
        times: vec![],
        drift_per_mille: None,
        extensions: vec![],
    }
}

fn learned(request: &Request, plan: &Plan, feedback: Feedback) -> Learned {
    Learned::new(request, &[Attempt { plan: plan.clone(), feedback: vec![feedback] }])
}

/// Limits learned from one refusal of the whole decoder: ten layers, 1000 operations, 10,000 weight
/// bytes and 500 µs.
#[test]
fn refusals_become_limits() {
    let request = RequestBuilder::decoder(10).times_within(0, 10, 50, 90).build();
    let plan = first(&request);
    let resource = Some(ErrorClass::ResourceLimit);
    for (class, details, name, value) in [
        (resource, &[("limit", "ops"), ("value", "1000"), ("max", "400")][..], "ops", 400),
        // The compiler counts twice as many operations, so its maximum is halved in our counting.
        (resource, &[("limit", "ops"), ("value", "2000"), ("max", "800")], "ops", 400),
        // The refused entry point has 600 operations in the table, at the same rate.
        (
            resource,
            &[("limit", "ops"), ("value", "1200"), ("max", "800"), ("entry", "prefill_128@512")],
            "ops",
            400,
        ),
        (resource, &[("limit", "ops"), ("max", "400")], "ops", 400),
        // A maximum at or above the refused value is not credible, so only the refused value
        // counts.
        (resource, &[("limit", "ops"), ("value", "1000"), ("max", "5000")], "ops", 999),
        (resource, &[("limit", "ops")], "ops", 500),
        (resource, &[("limit", "ops"), ("value", "many"), ("max", "few")], "ops", 500),
        (resource, &[("limit", "weight-bytes"), ("value", "10000")], "weight-bytes", 5000),
        (
            resource,
            &[("limit", "artefact-bytes"), ("value", "10200"), ("max", "5100")],
            "artefact-bytes",
            5100,
        ),
        (resource, &[("limit", "context-bytes")], "context-bytes", 5350),
        (
            resource,
            &[("limit", "call-microseconds"), ("value", "1000"), ("max", "600")],
            "call-microseconds",
            300,
        ),
        // A limit on a quantity that is missing from the table leads to smaller shards.
        (resource, &[("limit", "vtcm-bytes"), ("value", "9"), ("max", "8")], "ops", 500),
        (resource, &[], "ops", 500),
        (Some(ErrorClass::Unmappable), &[], "ops", 500),
        (Some(ErrorClass::Deadline), &[], "ops", 500),
        (Some(ErrorClass::UnsupportedOp), &[], "ops", 500),
    ] {
        let lesson = learned(&request, &plan, feedback(1, class, details));
        let limits = &lesson.request.targets[0].limits;
        assert_eq!(limits.len(), 1, "{details:?}");
        assert_eq!((limits[0].name.as_str(), limits[0].value), (name, value), "{details:?}");
        assert_eq!(limits[0].provenance, Provenance::Learned);
        assert_eq!(lesson.reasons.len(), 1);
        // A limit that only halves the shards in search of another cause is not a lesson.
        let is_named = details.iter().any(|(detail, value)| *detail == "limit" && *value == name);
        let told = lesson.lessons.iter().map(|lesson| (lesson.target, &lesson.limit[..], lesson.value));
        let expected = (is_named || class == Some(ErrorClass::Unmappable)).then_some((0, name, value));
        assert_eq!(told.collect::<Vec<_>>(), Vec::from_iter(expected), "{details:?}");
    }
}

/// A plan and a refusal have the limits of all refusals, the tightest of each name.
#[test]
fn lessons_are_returned_with_the_plan_or_the_refusal() {
    let request = RequestBuilder::decoder(10).build();
    let mut plan = first(&request);
    let mut history = vec![];
    let mut refuse = |plan: &Plan, details: &[(&str, &str)]| {
        let decoder = plan.shards.iter().position(|shard| shard.segment(1).is_some()).unwrap();
        let shard = u32::try_from(decoder).unwrap();
        let feedback = vec![feedback(shard, Some(ErrorClass::ResourceLimit), details)];
        history.push(Attempt { plan: plan.clone(), feedback });
        revise(&request, &history, &Settings { join: false, ..Settings::default() })
    };
    let told = |lessons: &[Lesson]| {
        let told = lessons.iter().map(|lesson| (lesson.limit.clone(), lesson.value));
        told.collect::<Vec<_>>()
    };
    plan = refuse(&plan, &[("limit", "ops"), ("max", "800")]).unwrap();
    assert_eq!(told(&plan.lessons), [("ops".to_owned(), 800)]);
    assert!(plan.lessons[0].because.contains("the maximum is 800"), "{:?}", plan.lessons);
    plan = refuse(&plan, &[("limit", "ops"), ("max", "200")]).unwrap();
    assert_eq!(told(&plan.lessons), [("ops".to_owned(), 200)]);
    let refusal = refuse(&plan, &[("limit", "weight-bytes"), ("max", "900")]).unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::Exhausted, "{}", refusal.message);
    assert_eq!(told(&refusal.lessons), [("ops".to_owned(), 200), ("weight-bytes".to_owned(), 900)]);
}

/// A learned limit on the time of a call leaves out the overhead of the call, as the limit does.
#[test]
fn a_refused_time_of_a_call_is_that_of_its_computation() {
    let request = RequestBuilder::decoder(4).times(0, 10).change(|request| {
        request.targets[0].overheads.push(call(500));
    });
    let request = request.build();
    let plan = first(&request);
    let details = [("limit", "call-microseconds")];
    let lesson = learned(&request, &plan, feedback(1, Some(ErrorClass::ResourceLimit), &details));
    assert_eq!(lesson.lessons[0].value, 20);
}

#[test]
fn an_unsupported_layer_becomes_illegal_and_nothing_else() {
    let request = RequestBuilder::decoder(4).layer(2, 100, 1000).target("cpu", "cpu").build();
    let plan = first(&request);
    let lesson = learned(&request, &plan, feedback(1, Some(ErrorClass::UnsupportedOp), &[("layer", "2")]));
    let illegal: Vec<_> = lesson
        .request
        .costs
        .iter()
        .filter(|cost| cost.illegal().is_some())
        .map(|cost| (cost.kind, cost.target))
        .collect();
    assert!(!illegal.is_empty() && illegal.iter().all(|&place| place == (3, 0)));
    // A shard of one unit needs no hint.
    let lesson = learned(&request, &plan, feedback(0, Some(ErrorClass::UnsupportedOp), &[]));
    assert!(
        lesson
            .request
            .costs
            .iter()
            .all(|cost| cost.illegal().is_some() == ((cost.kind, cost.target) == (0, 0)))
    );
}

#[test]
fn drift_bars_quantised_formats_and_moves_exact_ones() {
    let request = RequestBuilder::decoder(3).formats("w8-per-channel", 1, 4).build();
    let mut plan = first(&request);
    let mut drifted = feedback(1, None, &[]);
    drifted.drift_per_mille = Some(80);
    let lesson = learned(&request, &plan, drifted.clone());
    assert_eq!((lesson.forbidden.len(), lesson.reasons.len()), (1, 0));

    plan.shards[1].segments[0].formats.fill(1);
    let lesson = learned(&request, &plan, drifted);
    let why = "refused before: its results are off by 80 thousandths";
    let barred = |cost: &&crate::Cost| cost.illegal() == Some(why);
    assert!(lesson.request.costs.iter().filter(barred).all(|cost| (cost.kind, cost.formats) == (2, 1)));
    assert_eq!(lesson.request.costs.iter().filter(barred).count(), 2);
}

#[test]
fn measured_times_replace_promised_ones() {
    let request = RequestBuilder::decoder(4).times_within(0, 5, 10, 20).build();
    let plan = first(&request);
    let decode = *request.entries.iter().find(|entry| entry.kind == EntryKind::Decode).unwrap();
    let mut slow = feedback(1, None, &[]);
    slow.times = vec![MeasuredTime { entry: decode, microseconds: 100 }];
    let lesson = learned(&request, &plan, slow.clone());
    let layer = |request: &Request| {
        request.costs.iter().find(|cost| cost.kind == 2 && cost.entry == decode).unwrap().time()
    };
    let measured = Some(TimeCost::exact(25, Provenance::Measured));
    assert_eq!(layer(&lesson.request), measured);

    let without = RequestBuilder::decoder(4).build();
    let lesson = learned(&without, &plan, slow);
    assert_eq!(layer(&lesson.request), measured);
}

/// Four layers of 100 µs took four times as long. The formats that did not run are not faster
/// only because their times were not measured.
#[test]
fn a_measurement_scales_the_times_of_other_formats() {
    let builder = RequestBuilder::decoder(4).times_within(0, 50, 100, 200);
    let request = builder.formats("w8-per-channel", 1, 2).target("cpu", "cpu").build();
    let plan = first(&request);
    let shard = plan.shards.iter().position(|shard| shard.segment(1).is_some()).unwrap();
    let entry = *request.entries.iter().find(|entry| entry.kind == EntryKind::Decode).unwrap();
    let of = |request: &Request, target: u32, formats: u32| {
        let is_own = |cost: &&crate::Cost| {
            (cost.kind, cost.target, cost.formats, cost.entry) == (2, target, formats, entry)
        };
        request.costs.iter().find(is_own).unwrap().time().unwrap()
    };
    let layers = |formats: u32| plan.shards[shard].formats().filter(|own| *own == formats).count() as u64;
    let all = layers(0) * of(&request, 0, 0).likely + layers(1) * of(&request, 0, 1).likely;
    let mut slow = feedback(u32::try_from(shard).unwrap(), None, &[]);
    // Shards of the embedding and the head have no times of their own here.
    slow.times = vec![MeasuredTime { entry, microseconds: 4 * all }];
    let corrected = learned(&request, &plan, slow).request;
    let ran = u32::from(layers(1) > 0);
    assert_eq!(of(&corrected, 0, ran).provenance, Provenance::Measured);
    let (before, after) = (of(&request, 0, 1 - ran), of(&corrected, 0, 1 - ran));
    let ratio = |after: u64, before: u64| after as f64 / before as f64;
    assert_eq!(after.provenance, before.provenance);
    for (after, before) in [(after.low, before.low), (after.likely, before.likely), (after.high, before.high)]
    {
        assert!((2.0..=4.0).contains(&ratio(after, before)), "{after} {before}");
    }
    assert_eq!(of(&corrected, 1, 0), of(&request, 1, 0), "another target");
}

#[test]
fn a_target_that_fails_twice_is_given_up() {
    let request = RequestBuilder::decoder(4).target("cpu", "cpu").build();
    let mut plan = first(&request);
    let mut history = vec![];
    for _ in 0..2 {
        assert!(plan.shards.iter().any(|shard| shard.target == 0));
        let shard = plan.shards.iter().position(|shard| shard.target == 0).unwrap();
        let failure = feedback(u32::try_from(shard).unwrap(), Some(ErrorClass::DeviceLost), &[]);
        history.push(Attempt { plan: plan.clone(), feedback: vec![failure] });
        plan = revise(&request, &history, &Settings::default()).unwrap();
    }
    assert!(plan.shards.iter().all(|shard| shard.target == 1));
    assert!(plan.reasons.iter().any(|reason| reason.choice == "no more shards on npu"));
}

#[test]
fn feedback_that_makes_no_sense_teaches_nothing() {
    let request = RequestBuilder::decoder(4).build();
    let plan = first(&request);
    let class = Some(ErrorClass::ResourceLimit);
    let mut without_shard = feedback(0, class, &[]);
    without_shard.shard = None;
    for feedback in [feedback(99, class, &[("limit", "ops")]), without_shard] {
        let lesson = learned(&request, &plan, feedback);
        assert_eq!(lesson.request, request);
    }
    // A plan of another request does not panic either.
    let mut foreign = plan.clone();
    (foreign.shards[1].segments[0].first, foreign.shards[1].segments[0].end) = (3, 900);
    foreign.shards[0].target = 7;
    foreign.shards[2].segments[0].component = 9;
    for shard in 0..3 {
        learned(&request, &foreign, feedback(shard, Some(ErrorClass::UnsupportedOp), &[("layer", "1")]));
        learned(&request, &foreign, feedback(shard, class, &[("limit", "ops")]));
    }
}

#[test]
fn a_history_without_lessons_still_gives_a_new_plan() {
    let request = RequestBuilder::decoder(3).build();
    let mut plan = first(&request);
    let mut history: Vec<Attempt> = vec![];
    let refusal = loop {
        history.push(Attempt { plan: plan.clone(), feedback: vec![] });
        match revise(&request, &history, &Settings::default()) {
            Ok(next) => plan = next,
            Err(refusal) => break refusal,
        }
        assert!(!history.iter().any(|attempt| attempt.plan.builds_same(&plan)));
    };
    assert_eq!(refusal.kind, RefusalKind::Exhausted);
    assert!(history.len() > 1);
}

/// Creates two tuples with quantised weights in addition to f32. The second has the down projection
/// in f32.
fn with_roles() -> (Request, Plan) {
    let mut request = RequestBuilder::decoder(3).formats("w8-per-channel", 1, 4).build();
    let wide = request.formats.len() as u32;
    let (narrow, float) = (1, request.formats[0].weights);
    let mut mixed = request.formats[narrow].clone();
    mixed.roles = vec![crate::RoleFormat { role: "mlp-output".to_owned(), format: float }];
    request.formats.push(mixed);
    let rows: Vec<_> = request.costs.iter().filter(|cost| cost.formats == 1).cloned().collect();
    request.costs.extend(rows.into_iter().map(|cost| crate::Cost { formats: wide, ..cost }));
    let settings = Settings { formats: Some(1), ..Settings::default() };
    let plan = solve(&request, &settings).unwrap().into_plan(&request);
    (request, plan)
}

fn drifted(request: &Request, plan: &Plan, details: &[(&str, &str)]) -> Learned {
    let decoder = request.component_named("decoder").unwrap();
    let holds = |shard: &Shard| shard.segments.iter().any(|segment| segment.component == decoder);
    let shard = plan.shards.iter().position(holds).unwrap() as u32;
    let feedback = Feedback { drift_per_mille: Some(80), ..feedback(shard, None, details) };
    learned(request, plan, feedback)
}

#[test]
fn drift_at_a_place_bars_what_is_no_wider_there_and_nothing_else() {
    let (request, plan) = with_roles();
    let barred = |details: &[(&str, &str)]| {
        let lesson = drifted(&request, &plan, details);
        assert_eq!(lesson.request, request);
        assert_eq!(lesson.reasons.len(), 1, "{:?}", lesson.reasons);
        assert!(lesson.barred.iter().all(|barred| barred.unit == 1), "{:?}", lesson.barred);
        lesson.barred.iter().map(|barred| barred.formats).collect::<Vec<_>>()
    };
    let place = [("component", "decoder"), ("layer", "1")];
    let at = |more: (&'static str, &'static str)| [place[0], place[1], more];
    assert_eq!(barred(&at(("role", "mlp-output"))), [1]);
    assert_eq!(barred(&at(("role", "attention-input"))), [1, 2]);
    assert_eq!(barred(&place), [1, 2]);
    // All tuples have states of the same width.
    assert_eq!(barred(&at(("values", "states"))), [0, 1, 2]);
}

#[test]
fn drift_at_a_place_raises_a_format_there_alone() {
    let (request, plan) = with_roles();
    let decoder = request.component_named("decoder").unwrap();
    let shard = plan.shards.iter().position(|shard| shard.segments.iter().any(|s| s.component == decoder));
    let details = [("component", "decoder"), ("layer", "1"), ("role", "mlp-output")];
    let feedback = Feedback { drift_per_mille: Some(80), ..feedback(shard.unwrap() as u32, None, &details) };
    let history = [Attempt { plan, feedback: vec![feedback] }];
    let settings = Settings { formats: None, ..Settings::default() };
    let mut request = request;
    // Puts the narrow tuples first.
    request.formats.rotate_left(1);
    for cost in &mut request.costs {
        cost.formats = (cost.formats + 2) % 3;
    }
    let mut history = history;
    for shard in &mut history[0].plan.shards {
        for segment in &mut shard.segments {
            segment.formats.iter_mut().for_each(|formats| *formats = (*formats + 2) % 3);
        }
    }
    let next = revise(&request, &history, &settings).unwrap();
    let layers: Vec<u32> = next
        .shards
        .iter()
        .flat_map(|shard| &shard.segments)
        .filter(|segment| segment.component == decoder)
        .flat_map(|segment| segment.formats.clone())
        .collect();
    assert_eq!(layers, [0, 1, 0]);
    assert_eq!(next.shards.len(), 1, "{:?}", next.shards);
    assert!(next.reasons.iter().any(|reason| reason.choice.contains("decoder layer 1")));
}

#[test]
fn a_place_outside_its_shard_is_no_place() {
    let (request, plan) = with_roles();
    for details in [
        &[("component", "decoder"), ("layer", "99")][..],
        &[("component", "decoder")],
        &[("component", "nothing"), ("layer", "1")],
        &[("component", "decoder"), ("layer", "-1")],
    ] {
        assert_eq!(drifted(&request, &plan, details).barred, [], "{details:?}");
    }
}
