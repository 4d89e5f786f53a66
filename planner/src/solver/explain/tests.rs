//! Tests each reason where it is true, and where the obvious sentence would be false.

use super::super::{Barred, Effort, Settings, WantedFormat, solve};
use crate::testing::{RequestBuilder, refuse, set_time, weight_format};
use crate::{Cause, EntryKind, Format, Goal, Provenance, Request, Sensitivity, SoftcapPlace};

fn said_with(request: &Request, settings: &Settings) -> Vec<String> {
    let plan = solve(request, settings).unwrap().into_plan(request);
    plan.reasons.iter().map(|reason| format!("{}: {}", reason.choice, reason.because)).collect()
}

fn said(request: &Request) -> Vec<String> {
    said_with(request, &Settings::default())
}

#[track_caller]
fn says(said: &[String], sentence: &str) {
    assert!(said.iter().any(|own| own.contains(sentence)), "{sentence}: {said:#?}");
}

#[track_caller]
fn never_says(said: &[String], words: &str) {
    assert!(!said.iter().any(|own| own.contains(words)), "{words}: {said:#?}");
}

/// Sets a time for every layer of a target in a format tuple. Embedding and head need no time.
fn timed(request: &mut Request, target: u32, formats: u32, microseconds: u64) {
    let own = |cost: &&mut crate::Cost| (cost.target, cost.formats) == (target, formats);
    for cost in request.costs.iter_mut().filter(own) {
        let time = if cost.kind < 2 { 0 } else { microseconds };
        set_time(cost, time);
    }
}

/// Sets the loss of every unit in a weight format.
fn loses(request: &mut Request, format: &str, layers: u32, micronats: u32) {
    let format = weight_format(request, format);
    let places = (0..layers).map(|layer| (1, layer)).chain([(0, 0), (2, 0)]);
    request.sensitivities.extend(places.map(|(component, layer)| Sensitivity {
        component,
        layer,
        role: "other".to_owned(),
        format,
        micronats,
        provenance: Provenance::Measured,
    }));
}

#[test]
fn a_target_is_chosen_for_the_reason_that_decided() {
    says(&said(&RequestBuilder::decoder(2).build()), "target npu: the only target of the request");
    let two = || RequestBuilder::decoder(2).target("cpu", "cpu");
    let uncertain = two().times_within(0, 90, 100, 180).times_within(1, 1, 10, 90);
    let words = "target npu: listed before `cpu`; the times of `cpu` are less certain: up to 90x apart, \
                 here up to 2x apart";
    says(&said(&uncertain.clone().build()), words);
    let between = uncertain.target("gpu", "gpu").times_within(2, 1, 10, 90).times_within(0, 1, 10, 90);
    let between = said(&between.times_within(1, 50, 50, 50).build());
    says(&between, "listed before `gpu`; a target listed between them has more certain times");
    let faster = two().times(0, 900).times(1, 100).build();
    says(&said(&faster), "target cpu: 400 µs instead of 3.6 ms on `npu`");
    let simple = Settings { effort: Effort::Simple, ..Settings::default() };
    says(&said_with(&faster, &simple), "target npu: listed before `cpu`; times were ignored, as requested");
    never_says(&said_with(&faster, &simple), "the least");
    // Each shard fits by itself, but not all together: `cpu` is not the first target that supports
    // the head.
    let full = two().limit("npu", "memory-bytes", 4000).change(|request| {
        request.targets[0].limits[0].provenance = Provenance::Declared;
    });
    says(&said(&full.build()), "target cpu: `npu` cannot be used: memory-bytes");
    let illegal = two().change(|request| {
        let mut head = request.costs.iter_mut().filter(|cost| (cost.kind, cost.target) == (1, 0));
        head.by_ref().for_each(|cost| refuse(cost, "no such operation"));
    });
    let illegal = said(&illegal.build());
    says(&illegal, "target cpu: `npu` cannot be used: no such operation");
    // The order of targets does not matter if a goal decides.
    let small = Settings { falls_back: false, ..Settings::default() };
    let request = two().change(|request| {
        request.costs.iter_mut().filter(|cost| cost.target == 0).for_each(|cost| cost.weight_bytes *= 9);
        request.goals.set(Goal::SizeBytes(7000));
    });
    let sized = said_with(&request.build(), &small);
    says(&sized, "target cpu: `npu` cannot be used: size would be");
}

#[test]
fn layers_on_another_target_are_there_for_the_reason_that_decided() {
    let apart = |change: fn(&mut Request)| {
        RequestBuilder::decoder(4).layer(3, 100, 1000).target("cpu", "cpu").change(change).build()
    };
    let illegal = apart(|request| {
        let own = |cost: &&mut crate::Cost| cost.kind == 3 && cost.target == 0;
        request.costs.iter_mut().filter(own).for_each(|cost| refuse(cost, "too new"));
    });
    let illegal = said(&illegal);
    says(&illegal, "the other layers are on `cpu`: `npu` cannot be used: too new");
    never_says(&illegal, "better on another");
    let faster = apart(|request| {
        timed(request, 0, 0, 100);
        timed(request, 1, 0, 200);
        let own = |cost: &&mut crate::Cost| cost.kind == 3 && cost.target == 0;
        request.costs.iter_mut().filter(own).for_each(|cost| set_time(cost, 5000));
    });
    says(&said(&faster), "the other layers are on `cpu`: 200 µs instead of 5 ms on `npu`");
}

/// Creates a request with the given microseconds in the first formats and in the others.
fn near(first: u64, other: u64) -> Request {
    RequestBuilder::decoder(1)
        .formats("w8-per-channel", 1, 4)
        .change(|request| {
            timed(request, 0, 0, first);
            timed(request, 0, 1, other);
        })
        .build()
}

#[test]
fn formats_named_first_stay_for_the_reason_that_decided() {
    says(&said(&near(257, 267)), "no others are faster: 257 µs, w8-per-channel/f32/f32 takes 267 µs");
    // Either order keeps the formats listed first. The reason reports a gain within the error of
    // the times.
    let slower = said(&near(267, 257));
    let words = "the formats listed first; w8-per-channel/f32/f32 saves 4 %, which is within the error of \
                 the times";
    says(&slower, words);
    never_says(&slower, "no others are faster");
    let mut refused = near(257, 100);
    let others = refused.costs.iter_mut().filter(|cost| cost.formats == 1);
    others.for_each(|cost| refuse(cost, "no integers"));
    says(&said(&refused), "listed first; w8-per-channel/f32/f32 cannot be used here: no integers");
    // The others are much faster but exceed the goal: not "no gain", and not "no others are
    // faster".
    let mut lossy = near(400, 100);
    loses(&mut lossy, "w8-per-channel", 1, 9000);
    lossy.goals.set(Goal::QualityMicronats(8000));
    let lossy = said(&lossy);
    says(
        &lossy,
        "w8-per-channel/f32/f32 cannot be used here: quality would be 27 millinats, the goal is 8 millinats",
    );
    never_says(&lossy, "no gain within");
}

#[test]
fn formats_named_later_are_chosen_for_the_reason_that_decided() {
    says(&said(&near(400, 100)), "100 µs instead of 400 µs in f32/f32/f32, listed first");
    // The others are as fast as the first, which a limit excludes.
    let mut limited = near(100, 100);
    let first = limited.costs.iter_mut().filter(|cost| cost.formats == 0);
    first.for_each(|cost| refuse(cost, "no floats"));
    says(&said(&limited), "f32/f32/f32, listed first, cannot be used here: no floats");
    let size = RequestBuilder::decoder(2).formats("w8-per-channel", 1, 4).change(|request| {
        request.goals.set(Goal::SizeBytes(2000));
    });
    let size = said(&size.build());
    says(&size, "in f32/f32/f32 alone: size would be 5.9 KiB, the goal is 2.0 KiB");
    says(&size, "in w8-per-channel/f32/f32 alone: more layers would be in formats listed later");
}

#[test]
fn the_least_loss_is_said_with_what_stands_against_less() {
    let least = |size: u64, falls_back: bool| {
        let request = RequestBuilder::decoder(1).formats("w8-per-channel", 1, 4).change(|request| {
            loses(request, "w8-per-channel", 1, 9000);
            request.goals.least_loss = true;
            request.goals.set(Goal::SizeBytes(size));
        });
        let settings = Settings { falls_back, ..Settings::default() };
        said_with(&request.build(), &settings)
    };
    says(&least(50_000, false), "no formats offered here lose less: 0 millinats");
    let tight = least(1400, false);
    says(&tight, "no mixture of formats for these shards loses less within the goals");
    says(&least(50_000, true), "no formats offered here lose less: 0 millinats");
}

#[test]
fn layers_in_other_formats_are_there_for_what_was_asked_or_found_wrong() {
    let request = RequestBuilder::decoder(3).formats("w8-per-channel", 1, 4).build();
    let format = "w8-per-channel".to_owned();
    let wanted = WantedFormat { component: 1, first: 0, end: 1, role: None, format };
    let asked = Settings { wanted: vec![wanted], ..Settings::default() };
    says(&said_with(&request, &asked), "some of its layers require other formats");
    let barred = Barred { component: 1, unit: 0, target: 0, formats: 0 };
    let wrong = Settings { barred: vec![barred], ..Settings::default() };
    let wrong = said_with(&request, &wrong);
    says(&wrong, "computes some of its layers wrongly in the formats of the others");
    never_says(&wrong, "require other formats");
}

#[test]
fn a_soft_cap_is_where_it_is_for_the_reason_that_decided() {
    let capped = |runtime: u64| RequestBuilder::decoder(1).softcap(runtime).times(0, 100).build();
    says(&said(&capped(7)), "soft-cap in the graph: 300 µs instead of 307 µs by the runtime");
    let faster = |request: &mut Request| {
        let without = u32::try_from(request.kinds.len() - 1).unwrap();
        let own = |cost: &&mut crate::Cost| cost.kind == without;
        request.costs.iter_mut().filter(own).for_each(|cost| set_time(cost, 50));
    };
    let mut request = capped(7);
    faster(&mut request);
    says(
        &said(&request),
        "soft-cap by the runtime: 257 µs, including 7 µs per row in the runtime, instead of",
    );
    // The runtime is faster, but a goal excludes it, so the time is not the reason.
    let mut bounded = request.clone();
    let without = u32::try_from(bounded.kinds.len() - 1).unwrap();
    let heavier = bounded.costs.iter_mut().filter(|cost| cost.kind == without);
    heavier.for_each(|cost| cost.artefact_bytes += 5000);
    bounded.goals.set(Goal::SizeBytes(9000));
    let bounded = said(&bounded);
    says(&bounded, "soft-cap in the graph: it cannot move to the runtime: size would be");
    let asked = Settings { softcap: Some(SoftcapPlace::Runtime), ..Settings::default() };
    says(&said_with(&capped(7), &asked), "soft-cap by the runtime: requested");
}

#[test]
fn a_table_is_in_its_format_for_the_reason_that_decided() {
    let table = |formats: &[(u64, Option<u32>)], size: Option<u64>, quality: Option<u64>| {
        let request = RequestBuilder::decoder(1).table("words", formats).change(|request| {
            request.goals.bounds.extend(size.map(Goal::SizeBytes));
            request.goals.bounds.extend(quality.map(Goal::QualityMicronats));
        });
        said_with(&request.build(), &Settings { falls_back: false, ..Settings::default() })
    };
    let both = [(8000, Some(0)), (4000, Some(70))];
    says(&table(&both, None, None), "the format listed first, and no goal requires a smaller one");
    says(&table(&both, Some(20_000), None), "the size goal leaves room");
    says(&table(&both, Some(10_000), None), "smaller than formats listed earlier");
    says(&table(&both, None, Some(100)), "the least loss; without loss");
    // It is larger than the first format, whose loss is unknown.
    let unknown = table(&[(4000, None), (8000, Some(70))], Some(20_000), Some(100));
    says(&unknown, "the loss of formats listed earlier is not known");
    never_says(&unknown, "smaller than");
}

#[test]
fn other_formats_that_would_fit_are_named_with_what_speaks_against_them() {
    let request =
        RequestBuilder::decoder(4).formats("w8-per-channel", 1, 4).limit("npu", "weight-bytes", 4500);
    let free = said(&request.clone().build());
    says(
        &free,
        "1 layer in f32/f32/f32, 5 layers in w8-per-channel/f32/f32: in f32/f32/f32 alone: weight-bytes",
    );
    never_says(&free, "require other formats");
    let lossy = request.change(|request| {
        loses(request, "w8-per-channel", 4, 9000);
        request.goals.set(Goal::QualityMicronats(1000));
        request.costs.iter_mut().filter(|cost| cost.kind == 1).for_each(|cost| cost.weight_bytes = 100);
        request.targets[0].limits[0].value = 2500;
    });
    says(&said(&lossy.build()), "which would fit, but cannot be used here: quality would be");
}

#[test]
fn limits_with_the_same_alternative_share_a_reason() {
    let request = RequestBuilder::decoder(8).limit("npu", "weight-bytes", 4500);
    let said = said(&request.limit("npu", "artefact-bytes", 4600).build());
    let cut: Vec<&String> = said.iter().filter(|own| own.starts_with("decoder is cut instead")).collect();
    let words = "decoder is cut instead of using fewer operations: the limits weight-bytes and \
                 artefact-bytes count bytes, not operations: weight-bytes are 7.8 KiB in f32/f32/f32";
    assert_eq!(cut, [words], "{said:#?}");
}

#[test]
fn a_shard_without_weights_has_no_reason_for_their_format() {
    let request = RequestBuilder::decoder(2).formats("w8-per-channel", 1, 4).change(|request| {
        request.costs.iter_mut().filter(|cost| cost.kind == 0).for_each(|cost| cost.weight_bytes = 0);
    });
    let request = request.build();
    let settings = Settings { join: false, ..Settings::default() };
    let plan = solve(&request, &settings).unwrap().into_plan(&request);
    let formats = |shard: u32| {
        let own = plan.reasons.iter().filter(|reason| reason.shard == Some(shard));
        own.filter(|reason| reason.choice.ends_with("/f32/f32")).count()
    };
    assert_eq!([formats(0), formats(1)], [0, 1]);
}

#[test]
fn a_chain_without_prefill_has_no_reason_for_one() {
    let request = RequestBuilder::decoder(1).change(|request| {
        request.entries.retain(|entry| entry.kind == EntryKind::Decode);
        request.costs.retain(|cost| cost.entry.kind == EntryKind::Decode);
        request.kinds.iter_mut().for_each(|kind| kind.prefill = crate::PrefillPart::None);
    });
    let request = request.build();
    never_says(&said(&request), "the largest within the limits");
    assert!(request.weight_formats_of(0).all(Format::is_float));
}

#[test]
fn the_time_is_the_least_of_what_was_compared() {
    let one = RequestBuilder::decoder(1).times(0, 100).build();
    says(&said(&one), "300 µs per run: the least of all legal plans");
    let placed = Settings { place: vec![(0, 0)], ..Settings::default() };
    says(&said_with(&one, &placed), "the least of all legal plans with the requested settings");
    let ordered = Settings { order: vec![super::Goal::Shards], ..Settings::default() };
    says(&said_with(&one, &ordered), "the least that the higher-ranked goals allow");
    let plan = solve(&one, &Settings::default()).unwrap().into_plan(&one);
    assert!(plan.reasons.iter().any(|reason| reason.cause == Cause::Cost("time".to_owned())));
}
