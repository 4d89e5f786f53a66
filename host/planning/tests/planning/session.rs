//! Fallback, revision, planner directories and packs, through real planners in the sandbox.

#![cfg(feature = "compiler")]

use shardwright_planning::builtin;
use shardwright_planning::check::check;
use shardwright_planning::error::{PlannerError, PlannerErrorKind as Kind, RefusalKind};
use shardwright_planning::feedback::{Attempt, Detail, Feedback};
use shardwright_planning::pack;
use shardwright_planning::plan::{PlannedSegment, Shard};
use shardwright_planning::profile::Profile;
use shardwright_planning::registry::{PlannerEntry, PlannerFile, PlannerRegistry};
use shardwright_planning::request::{Request, Sensitivity};
use shardwright_planning::sandbox::{Bounds, EngineKind, Planner, Sandbox};
use shardwright_planning::session::{LoopError, Planned, PlanningSession, RevisionLoop, Trial};
use shardwright_trust::{PublicKey, SecretKey, Trust};
use shardwright_vocabulary::{
    ActivationFormat, DType, Encoding, Error, ErrorClass, ErrorKind, FormatTuple, Limit, Provenance,
    StateFormat, TimeCost, WeightFormat, WeightRole,
};

use crate::common::{self, cache, cuts, even, hostile, request, with_limit, with_option};

fn sandbox() -> Sandbox {
    Sandbox::new(EngineKind::Native).unwrap()
}

fn generic() -> Planner {
    builtin::load(&sandbox(), Some(&cache())).unwrap()
}

fn mean() -> Planner {
    sandbox().load("hostile.wasm", hostile(), Some(&cache())).unwrap()
}

/// Creates a session that calls the given planner and falls back to the generic one.
fn session(planner: Result<Planner, PlannerError>, strict: bool) -> PlanningSession {
    PlanningSession::with_planner(planner, Some(Ok(generic()))).strict(strict)
}

fn is_garbage(error: &PlannerError) -> bool {
    matches!(&error.kind, Kind::Other(error) if error.message().starts_with("not a WebAssembly component"))
}

#[test]
fn any_failure_of_a_planner_is_reported_and_the_built_in_one_takes_over() {
    for behave in ["panic", "skip-layer", "bad-scale", "flood-lines"] {
        let request = with_option(request(6), "behave", behave);
        let planned = session(Ok(mean()), false).plan(&request).unwrap();
        assert_eq!(planned.by.name, "generic", "{behave}");
        assert_eq!(cuts(planned.plan.plan()), [(0, 6)]);
        let error = planned.fallback.expect(behave);
        assert!(error.to_string().starts_with("planner `hostile` 6.6.6: "), "{error}");

        let error = session(Ok(mean()), true).plan(&request).unwrap_err();
        assert_eq!(error.planner, "hostile");
    }
    // A request that it refuses is not passed to another planner.
    let refusing = with_option(request(6), "behave", "refuse");
    let error = session(Ok(mean()), false).plan(&refusing).unwrap_err();
    assert!(error.planner == "hostile" && matches!(error.kind, Kind::Refused { .. }), "{error}");

    let broken = || sandbox().load("broken.wasm", b"not a planner", None);
    let planned = session(broken(), false).plan(&request(6)).unwrap();
    assert!(is_garbage(&planned.fallback.unwrap()));
    assert!(is_garbage(&session(broken(), true).plan(&request(6)).unwrap_err()));

    // Without another planner the floor takes over, unless fallbacks are disabled.
    let planned = PlanningSession::with_planner(broken(), None).plan(&request(6)).unwrap();
    assert!(is_garbage(&planned.floor.unwrap()));
    assert!(planned.fallback.is_none() && planned.by.name == "floor");
    // A built-in planner that does not load counts as one that fails.
    let lost = || Err(sandbox().load("lost.wasm", b"none", None).unwrap_err());
    let planned = PlanningSession::with_planner(broken(), Some(lost())).plan(&request(6)).unwrap();
    assert_eq!(
        (planned.by.name.as_str(), planned.fallback.unwrap().planner.as_str()),
        ("floor", "broken.wasm")
    );
    assert_eq!(planned.floor.unwrap().planner, "lost.wasm");
    let alone = PlanningSession::with_planner(broken(), None).strict(true);
    assert!(is_garbage(&alone.plan(&request(6)).unwrap_err()));
}

/// Creates layers with different losses in every format. Each format needs half the time of the one
/// before it.
fn of_many_formats(layers: u32, formats: usize) -> Request {
    let lossy = [
        WeightFormat::W8PerChannel,
        WeightFormat::W4Block32,
        WeightFormat::W4PerChannel,
        WeightFormat::W4PerTensor,
    ];
    let mut request = request(layers);
    for row in &mut request.costs {
        row.time = Some(TimeCost::exact(6400, Provenance::Simulated));
    }
    for (position, format) in lossy.into_iter().take(formats - 1).enumerate() {
        request.formats.push(FormatTuple::uniform(format, ActivationFormat::F32, StateFormat::F32));
        let rows: Vec<_> = request.costs.iter().filter(|row| row.formats == 0).cloned().collect();
        for mut row in rows {
            row.formats = position as u32 + 1;
            row.time = Some(TimeCost::exact(6400 >> (position + 1), Provenance::Simulated));
            request.costs.push(row);
        }
        let scale = [20, 1500, 9000, 20_000][position];
        for (component, layer) in (0..layers).map(|layer| (1, layer)).chain([(0, 0), (2, 0)]) {
            // Noise, so that a cut cannot follow a pattern.
            let noise =
                u64::from(layer).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695) >> 33;
            let micronats = scale + (noise % u64::from(scale)) as u32;
            let role = WeightRole::Other;
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
    request.goals.quality_micronats = Some(300_000);
    request
}

/// Real model sizes with a quality goal: the formats of all layers are mixed before the fuel runs
/// out.
#[test]
fn the_built_in_planner_does_not_run_out_of_fuel() {
    for (layers, formats) in [(42, 3), (35, 5), (64, 5)] {
        let request = of_many_formats(layers, formats);
        let planned = PlanningSession::new(generic()).plan(&request).unwrap();
        assert!(planned.floor.is_none(), "{layers} layers: {}", planned.floor.unwrap());
        let loss = planned.plan.loss();
        assert!(loss.micronats > 0 && loss.micronats <= 300_000 && loss.unmeasured == 0, "{loss:?}");
        let reasons = &planned.plan.plan().reasons;
        // With three tuples, the fastest meets the goal for every layer.
        let mixed = reasons.iter().any(|reason| reason.choice.contains("layers in w4-"));
        assert_eq!(mixed, formats > 3, "{reasons:#?}");
        assert_eq!(planned.plan.shards().len(), 1, "formats cut nothing");
    }
}

/// Loads the built-in planner with this bound on fuel, of which it gets ten times as much.
fn with_fuel(fuel: u64) -> Planner {
    let bounds = Bounds { fuel, ..Bounds::default() };
    let sandbox = Sandbox::with_bounds(EngineKind::Native, bounds).unwrap();
    builtin::load(&sandbox, Some(&cache())).unwrap()
}

/// Ten times this fuel is enough for the built-in planner to describe itself, but not to search.
const LITTLE_FUEL: u64 = 800_000;

/// The floor backs every planner, and the answer names the author of the plan.
#[test]
fn a_planner_that_comes_to_the_end_of_its_means_has_the_floor_behind_it() {
    let request = of_many_formats(42, 3);
    let planned = PlanningSession::new(with_fuel(LITTLE_FUEL)).plan(&request).unwrap();
    let Kind::OverBound(stop) = &planned.floor.as_ref().unwrap().kind else { panic!("{:?}", planned.floor) };
    assert!(stop.message().contains("units of fuel"), "{stop}");
    assert!(planned.fallback.is_none());
    assert_eq!((planned.by.name.as_str(), cuts(planned.plan.plan())), ("floor", vec![(0, 42)]));
    assert!(planned.plan.plan().shards.iter().all(|shard| shard.uniform_formats() == Some(0)));
    assert!(planned.plan.plan().reasons.iter().any(|reason| reason.choice == "no search"));
    // With more fuel the floor is not needed.
    assert!(PlanningSession::new(generic()).plan(&request).unwrap().floor.is_none());
    // A failing planner is backed by both.
    let session = PlanningSession::with_planner(Ok(mean()), Some(Ok(with_fuel(LITTLE_FUEL))));
    let planned = session.plan(&with_option(request.clone(), "behave", "panic")).unwrap();
    assert!(planned.fallback.is_some_and(|error| error.planner == "hostile"));
    assert!(planned.floor.is_some_and(|error| error.planner == "generic"));
    // If the floor has no plan either, both errors are reported.
    let mut none = with_limit(request.clone(), "ops", 50);
    none.targets.truncate(1);
    none.costs.retain(|row| row.target == 0);
    let none = with_option(none, "behave", "panic");
    let error = PlanningSession::with_planner(Ok(mean()), None).plan(&none).unwrap_err();
    let Kind::Other(both) = &error.kind else { panic!("{error}") };
    assert!(both.kind() == ErrorKind::Planning && error.planner == "hostile", "{error}");
    assert!(both.message().starts_with("stopped in `make-plan`: "), "{error}");
    let floor = "; planning without a planner failed too: layer 0 of `decoder`: ops of `npu` would be 100, \
                 the limit is 50";
    assert!(both.message().ends_with(floor), "{error}");
    assert!(error.help().unwrap().contains("--limit"), "{error}");
    // A planner's refusal is final.
    let mut refused = with_limit(request, "ops", 50);
    refused.targets.truncate(1);
    refused.costs.retain(|row| row.target == 0);
    let error = PlanningSession::new(generic()).plan(&refused).unwrap_err();
    assert!(matches!(error.kind, Kind::Refused { .. }), "{error}");
}

#[test]
fn a_planner_that_works_is_used_and_named() {
    let even = sandbox().load("even.wasm", even(), None);
    let planned = session(even, true).plan(&with_limit(request(7), "ops", 300)).unwrap();
    assert_eq!((planned.by.name.as_str(), planned.by.version.as_str()), ("even", "2.1.0"));
    assert!(planned.fallback.is_none());
    assert_eq!(cuts(planned.plan.plan()), [(0, 2), (2, 4), (4, 7)]);

    let hedged = with_option(request(7), "behave", "hedge-every-plan");
    let planned = session(Ok(mean()), true).plan(&hedged).unwrap();
    let hedges = planned.plan.plan().fallback.iter().filter(|chain| chain.is_hedge());
    let hedges: Vec<_> = hedges.map(|chain| (chain.target, chain.limits.as_slice())).collect();
    assert_eq!(hedges, [(0, &[("shards".to_owned(), 1)][..])]);
}

#[test]
fn no_planner_is_asked_an_unsound_request() {
    let mut request = request(3);
    request.formats.clear();
    let error = PlanningSession::new(generic()).plan(&request).unwrap_err();
    assert!(matches!(error.kind, Kind::Request(_)), "{error}");
    assert_eq!(error.to_string(), "request: no format tuples");
    assert_eq!(Error::from(error).place(), Some("request"));

    let mut reversed = common::request(3);
    reversed.costs[2].time = Some(TimeCost::within(9, 5, 1, Provenance::Measured));
    let error = PlanningSession::new(generic()).plan(&reversed).unwrap_err();
    assert!(matches!(error.kind, Kind::Request(_)), "{error}");
    assert_eq!(error.to_string(), "request: cost row 2: expected low ≤ likely ≤ high, got 9, 5, 1");
}

#[test]
fn a_refusal_of_the_built_in_planner_says_what_is_in_the_way() {
    let mut request = with_limit(request(3), "ops", 50);
    request.targets.truncate(1);
    request.costs.retain(|row| row.target == 0);
    let error = PlanningSession::new(generic()).plan(&request).unwrap_err();
    let Kind::Refused { kind: RefusalKind::OverLimit, message, details, .. } = &error.kind else {
        panic!("{error}")
    };
    assert!(message.contains("layer 0 of `decoder` alone has ops 100"), "{message}");
    assert!(details.contains(&("max".to_owned(), "50".to_owned())));
    assert!(error.help().unwrap().contains("--limit"));
}

/// Imitates a compiler that refuses shards of more than `max` operations. `tells` reports the
/// maximum.
fn compiler(max: u64, tells: bool) -> impl FnMut(&Planned) -> Result<Trial<usize>, String> {
    move |planned| {
        let mut feedback = vec![];
        for (position, shard) in planned.plan.shards().iter().enumerate() {
            let cost = &shard.cost;
            if cost.ops > max {
                let shard = u32::try_from(position).unwrap();
                feedback.push(Feedback::over_limit(shard, "ops", cost.ops, tells.then_some(max)));
            }
        }
        Ok(if feedback.is_empty() {
            Trial::Accepted(planned.plan.shards().len())
        } else {
            Trial::Refused(feedback)
        })
    }
}

#[test]
fn the_loop_learns_limits_from_refusals() {
    let session = PlanningSession::new(generic());
    let settled = RevisionLoop::new(&session).run(&request(12), compiler(450, true)).unwrap();
    assert_eq!(settled.history.len(), 1);
    assert_eq!(cuts(settled.planned.plan.plan()), [(0, 4), (4, 8), (8, 12)]);
    let lessons = &settled.planned.plan.plan().lessons;
    let told: Vec<_> = lessons.iter().map(|own| (own.target, own.limit.as_str(), own.value)).collect();
    assert_eq!(told, [(0, "ops", 450)]);

    // Without a reported maximum: first 1203 in one shard, then shards of at most 601, of which the
    // largest has 402, then of half of that.
    let settled = RevisionLoop::new(&session).run(&request(12), compiler(250, false)).unwrap();
    assert_eq!(settled.history.len(), 2);
    assert_eq!(cuts(settled.planned.plan.plan()).len(), 7);
    assert!(settled.planned.plan.plan().reasons.iter().any(|reason| reason.choice.contains("(learned)")));
}

/// Lessons are stored for later requests, so a planner cannot make them up.
#[test]
fn a_lesson_that_no_refusal_supports_is_a_failure_of_the_planner() {
    let early = with_option(request(12), "behave", "early-lesson");
    let planned = session(Ok(mean()), false).plan(&early).unwrap();
    let error = planned.fallback.unwrap();
    assert!(error.to_string().contains("a lesson is about `npu`, which refused no shard"), "{error}");
    for (behave, words) in [
        ("lesson-about-another-target", "a lesson is about `cpu`, which refused no shard"),
        ("lesson-about-no-target", "a lesson is about target 999, which the request does not have"),
        ("lesson-about-no-limit", "a lesson is about limit `colour`, expected one of ops, "),
        ("lessons-without-end", " lessons, expected at most 256"),
        ("refuse-with-a-lesson", "a lesson is about target 999, which the request does not have"),
    ] {
        let request = with_option(request(12), "behave", behave);
        let lenient = session(Ok(mean()), false);
        let settled = RevisionLoop::new(&lenient).run(&request, compiler(450, true)).unwrap();
        assert_eq!(settled.planned.by.name, "generic", "{behave}");
        let error = settled.planned.fallback.expect(behave);
        let Kind::Other(fault) = &error.kind else { panic!("{behave}: {error}") };
        assert!(fault.message().contains(words) && fault.help().is_some(), "{behave}: {fault:?}");
        let strict = session(Ok(mean()), true);
        let error = RevisionLoop::new(&strict).run(&request, compiler(450, true)).unwrap_err();
        assert!(matches!(&error, LoopError::Planner { history, .. } if history.len() == 1), "{error}");
        assert!(error.to_string().contains(words), "{behave}: {error}");
    }
}

/// The floor behind a planner that always stops keeps reported limits and does not repeat a plan.
#[test]
fn the_floor_keeps_the_limits_that_refusals_showed() {
    let request = request(12);
    let session = PlanningSession::with_planner(sandbox().load("broken.wasm", b"none", None), None);
    let settled = RevisionLoop::new(&session).run(&request, compiler(450, true)).unwrap();
    assert_eq!(cuts(settled.planned.plan.plan()), [(0, 4), (4, 8), (8, 12)]);
    assert_eq!((settled.history.len(), settled.planned.by.name.as_str()), (1, "floor"));
    let lessons = &settled.planned.plan.plan().lessons;
    let told: Vec<_> = lessons.iter().map(|own| (own.target, own.limit.as_str(), own.value)).collect();
    assert_eq!(told, [(0, "ops", 450)]);
    // It cannot learn from a refusal without a maximum, so its plan would be the same.
    let error = RevisionLoop::new(&session).run(&request, compiler(450, false)).unwrap_err();
    assert!(matches!(&error, LoopError::Planner { history, .. } if history.len() == 1), "{error}");
    // It keeps the lessons that a planner derived before it failed.
    let settled =
        RevisionLoop::new(&PlanningSession::new(generic())).run(&request, compiler(250, false)).unwrap();
    let learned = settled.planned.plan.plan().lessons.clone();
    assert!(!learned.is_empty());
    let feedback = vec![Feedback::refused(0, ErrorClass::Internal, "no", vec![])];
    let history = vec![Attempt { plan: settled.planned.plan.into_plan(), feedback }];
    let accept = |_: &Planned| Ok::<_, String>(Trial::Accepted(()));
    let planned = RevisionLoop::new(&session).after(history).run(&request, accept).unwrap().planned;
    assert_eq!(planned.by.name, "floor");
    let least = learned.iter().map(|own| own.value).min();
    let kept: Vec<_> = planned.plan.plan().lessons.iter().map(|own| (own.target, Some(own.value))).collect();
    assert_eq!(kept, [(0, least)]);
    assert!(planned.plan.shards().iter().all(|shard| shard.cost.ops <= 250));

    let refuse_all = |_: &Planned| Ok::<Trial<()>, String>(Trial::Refused(vec![]));
    let error = RevisionLoop::new(&session).run(&request, refuse_all).unwrap_err();
    let LoopError::Planner { error, history } = error else { panic!("{error}") };
    assert!(history.len() == 1 && is_garbage(&error), "{error}");
}

#[test]
fn the_loop_falls_back_to_another_target_and_ends_typed() {
    let session = PlanningSession::new(generic());
    // The NPU refuses every shard, without further details.
    let settled = RevisionLoop::new(&session)
        .run(&request(4), |planned| {
            let on_npu = planned.plan.plan().shards.iter().position(|shard| shard.target == 0);
            Ok::<_, String>(match on_npu {
                Some(shard) => {
                    let shard = u32::try_from(shard).unwrap();
                    Trial::Refused(vec![Feedback::refused(shard, ErrorClass::Internal, "no", vec![])])
                }
                None => Trial::Accepted(()),
            })
        })
        .unwrap();
    assert!(settled.planned.plan.plan().shards.iter().all(|shard| shard.target == 1));

    let refuse_all = |_: &Planned| Ok::<Trial<()>, String>(Trial::Refused(vec![]));
    let error = RevisionLoop::new(&session).rounds(3).run(&request(2), refuse_all).unwrap_err();
    assert!(matches!(&error, LoopError::Rounds { rounds: 3, history } if history.len() == 3), "{error}");
    assert!(error.help().is_some());
    assert_eq!(error.history()[0].feedback.len(), 1, "an empty refusal is filled in");

    let mut request = request(2);
    request.targets.truncate(1);
    request.costs.retain(|row| row.target == 0);
    let error = RevisionLoop::new(&session).run(&request, compiler(3, false)).unwrap_err();
    let LoopError::Planner { error, history } = error else { panic!("{error}") };
    assert!(matches!(error.kind, Kind::Refused { kind: RefusalKind::Exhausted, .. }), "{error}");
    assert!(history.len() > 1);

    let broken = |_: &Planned| Err::<Trial<()>, _>("disk full".to_owned());
    let error = RevisionLoop::new(&session).run(&request, broken).unwrap_err();
    assert!(matches!(error, LoopError::Trial(reason) if reason == "disk full"));
}

#[test]
fn a_planner_that_goes_in_circles_is_replaced() {
    for (behave, rounds) in [("stubborn", 1), ("oscillate", 2)] {
        let request = with_option(request(12), "behave", behave);
        let session = PlanningSession::with_planner(Ok(mean()), Some(Ok(generic())));
        let settled = RevisionLoop::new(&session).run(&request, compiler(250, false)).unwrap();
        assert_eq!(settled.planned.by.name, "generic", "{behave}");
        let error = settled.planned.fallback.expect(behave);
        assert!(matches!(error.kind, Kind::RepeatedPlan { .. }), "{behave}: {error}");
        assert!(settled.history.len() >= rounds);

        let session = PlanningSession::with_planner(Ok(mean()), Some(Ok(generic()))).strict(true);
        let error = RevisionLoop::new(&session).run(&request, compiler(250, false)).unwrap_err();
        assert!(matches!(error, LoopError::Planner { .. }), "{error}");
    }
}

#[test]
fn measured_times_and_drift_change_the_plan() {
    let session = PlanningSession::new(generic());
    let request = common::with_times(request(6), 10, 20);
    let slow = |planned: &Planned| {
        let shards = &planned.plan.plan().shards;
        let layered = |shard: &Shard| shard.segments.iter().any(|segment| segment.component == 1);
        let decoder = shards.iter().position(layered).unwrap();
        if shards[decoder].target == 1 {
            return Ok::<_, String>(Trial::Accepted(()));
        }
        let shard = Some(u32::try_from(decoder).unwrap());
        let times = vec![shardwright_planning::feedback::MeasuredTime {
            entry: "decode_1@512".parse().unwrap(),
            microseconds: 600,
        }];
        let message = "slower than promised".to_owned();
        let feedback =
            Feedback { shard, class: None, message, details: vec![], times, drift_per_mille: None };
        Ok(Trial::Refused(vec![feedback]))
    };
    // Six layers at 100 µs instead of 10 µs are slower than the CPU's 20 µs.
    RevisionLoop::new(&session).run(&request, slow).unwrap();
}

#[test]
fn unsupported_layers_move_alone() {
    let session = PlanningSession::new(generic());
    let mut request = request(5);
    // Layer 2 has its own kind.
    let odd = u32::try_from(request.kinds.len()).unwrap();
    let mut kind = request.kinds[2].clone();
    kind.name = "odd".to_owned();
    request.kinds.push(kind);
    let rows: Vec<_> = request.costs.iter().filter(|row| row.kind == 2).cloned().collect();
    request.costs.extend(rows.into_iter().map(|mut row| {
        row.kind = odd;
        row
    }));
    if let shardwright_planning::request::Body::Layers(layers) = &mut request.model.components[1].body {
        layers[2].kind = odd;
    }
    let settled = RevisionLoop::new(&session)
        .run(&request, |planned| {
            let shards = &planned.plan.plan().shards;
            let odd = |segment: &PlannedSegment| {
                segment.component == 1 && (segment.first..segment.end).contains(&2)
            };
            let refused = shards.iter().position(|shard| shard.target == 0 && shard.segments.iter().any(odd));
            Ok::<_, String>(match refused {
                None => Trial::Accepted(()),
                Some(shard) => {
                    let shard = u32::try_from(shard).unwrap();
                    let details = vec![Detail::new("op", "odd"), Detail::new("layer", 2)];
                    let class = ErrorClass::UnsupportedOp;
                    Trial::Refused(vec![Feedback::refused(shard, class, "no such operation", details)])
                }
            })
        })
        .unwrap();
    let placed: Vec<_> = settled
        .planned
        .plan
        .plan()
        .shards
        .iter()
        .flat_map(|shard| shard.segments.iter().map(move |segment| (segment, shard.target)))
        .filter(|(segment, _)| segment.component == 1)
        .map(|(segment, target)| (segment.first, segment.end, target))
        .collect();
    assert_eq!(placed, [(0, 2, 0), (2, 3, 1), (3, 5, 0)]);
}

#[test]
fn a_plan_read_from_a_file_is_checked_like_any_other() {
    let request = request(4);
    let plan = PlanningSession::new(generic()).plan(&request).unwrap().plan.into_plan();
    let mut read: shardwright_planning::plan::Plan = serde_json::from_slice(&plan.canonical_bytes()).unwrap();
    assert_eq!(check(read.clone(), &request).unwrap().plan(), &plan);
    read.shards.pop();
    assert!(check(read, &request).is_err());
}

#[test]
fn planners_dropped_into_a_directory_are_found_and_gone_when_removed() {
    let directory = tempfile::tempdir().unwrap();
    let registry = PlannerRegistry::new()
        .with_directory(directory.path())
        .with_directory(directory.path().join("does-not-exist"));
    assert_eq!(registry.list().unwrap(), []);
    let missing = "not found in the planner directories";
    let is_unknown = |error: &Error| (error.kind(), error.message()) == (ErrorKind::Missing, missing);
    let error = registry.find("even").unwrap_err();
    assert!(is_unknown(&error), "{error}");
    assert!(error.help().unwrap().contains("empty"));

    let path = directory.path().join("even.wasm");
    std::fs::write(&path, even()).unwrap();
    std::fs::write(directory.path().join("README.md"), "no planner").unwrap();
    let entry = registry.find("even").unwrap();
    let (name, file) = ("even".to_owned(), PlannerFile::Wasm);
    assert_eq!(entry, PlannerEntry { name, path: path.clone(), file, by_name: true });
    let planner = entry.load(&sandbox(), None, &Trust::off()).unwrap();
    assert_eq!(planner.description().name, "even");
    assert!(matches!(entry.open(&Trust::off()).unwrap_err().kind, Kind::NoCompiler));
    assert!(registry.find("odd").unwrap_err().help().unwrap().contains("even"));

    // A planner that was found by name must have that name. One that was found by path need not.
    let renamed = directory.path().join("odd.wasm");
    std::fs::copy(&path, &renamed).unwrap();
    let error = registry.find("odd").unwrap().load(&sandbox(), None, &Trust::off()).unwrap_err();
    let Kind::Other(other) = &error.kind else { panic!("{error}") };
    let expected = format!("{} contains planner `even`, not `odd`", renamed.display());
    assert_eq!((other.kind(), other.message()), (ErrorKind::Incompatible, expected.as_str()));
    assert!(other.help().unwrap().contains("`even`"), "{other:?}");
    PlannerEntry::from_path(&renamed).load(&sandbox(), None, &Trust::off()).unwrap();
    std::fs::remove_file(renamed).unwrap();

    let copy = directory.path().join("even.pack");
    std::fs::write(&copy, "").unwrap();
    let error = registry.list().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing);
    assert!(error.message().starts_with("two planners `even`: ") && error.help().is_some(), "{error}");
    std::fs::remove_file(copy).unwrap();

    std::fs::remove_file(&path).unwrap();
    assert!(is_unknown(&registry.find("even").unwrap_err()));
    assert!(matches!(entry.load(&sandbox(), None, &Trust::off()).unwrap_err().kind, Kind::MissingFile(_)));

    std::fs::write(&path, "").unwrap();
    let not_a_directory = PlannerRegistry::new().with_directory(&path);
    let error = not_a_directory.list().unwrap_err();
    assert_eq!((error.kind(), error.place()), (ErrorKind::Missing, path.to_str()));

    let crowd = tempfile::tempdir().unwrap();
    for number in 0..4097 {
        std::fs::write(crowd.path().join(number.to_string()), "").unwrap();
    }
    let crowded = PlannerRegistry::new().with_directory(crowd.path());
    let error = crowded.list().unwrap_err();
    let expected = "expected at most 4096 files, got more";
    assert_eq!((error.kind(), error.message()), (ErrorKind::Missing, expected));
}

fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed([seed; 32])
}

fn open(bytes: &[u8], trusted: &[PublicKey]) -> Error {
    match pack::open("given.pack", bytes, trusted) {
        Err(PlannerError { kind: Kind::Other(error), .. }) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pack_runs_if_and_only_if_nothing_about_it_is_wrong() {
    let bytes = pack::write("even.wasm", even(), &key(1)).unwrap();
    assert!(pack::is_pack(&bytes) && !pack::is_pack(even()));
    let trusted = [key(2).public(), key(1).public()];
    let planner = pack::open("even.pack", &bytes, &trusted).unwrap();
    assert_eq!((planner.description().name.as_str(), planner.engine()), ("even", EngineKind::Pulley));
    let native = sandbox().load("even.wasm", even(), None).unwrap();
    let ask = |planner: &Planner| planner.make_plan(&request(9)).plan.unwrap().canonical_bytes();
    assert_eq!(ask(&planner), ask(&native));
    assert_eq!(pack::write("even.wasm", even(), &key(1)).unwrap(), bytes, "packs are reproducible");

    let untrusted = format!("the pack is signed by {}, which is not a trusted key", key(1).public());
    assert_eq!(open(&bytes, &[key(2).public()]).message(), untrusted);
    assert_eq!(open(&bytes[..bytes.len() - 64], &trusted).message(), "the pack is not signed");
    assert_eq!(open(even(), &trusted).message(), "not a planner pack");
    for cut in [0, 4, 11, 12, 100, bytes.len() / 2, bytes.len() - 65, bytes.len() - 1] {
        assert_eq!(open(&bytes[..cut], &trusted).kind(), ErrorKind::Invalid);
    }

    // Check all bytes of the head, a sample of the rest, and all of the signature.
    let positions = (0..2000).chain((2000..bytes.len()).step_by(997)).chain(bytes.len() - 64..bytes.len());
    for position in positions {
        for bit in [0x01, 0x80] {
            let mut altered = bytes.clone();
            altered[position] ^= bit;
            let error = pack::verify(&altered, &trusted).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "byte {position}: {error}");
        }
    }
    // Damage is not mistaken for a stranger's key, and the error does not use the damaged manifest.
    let mut altered = bytes.clone();
    altered[bytes.len() / 2] ^= 1;
    let error = pack::open("given.pack", &altered, &[]).map(drop).unwrap_err();
    let expected = format!("damaged pack: the signature of {} does not match", key(1).public());
    assert_eq!(error.to_string(), format!("planner `given.pack`: {expected}"));
    assert_eq!(open(&altered, &[]).kind(), ErrorKind::Invalid);
    assert_eq!(open(&bytes, &[]).kind(), ErrorKind::Planning);
    let mut longer = bytes.clone();
    longer.push(0);
    let damaged = open(&longer, &trusted);
    assert_eq!(damaged.place(), Some(&*format!("offset {}", bytes.len() - 64)));
    assert_eq!(damaged.message(), "damaged pack: the signature does not have 64 bytes");
}

#[test]
fn a_stale_pack_is_refused_although_it_is_signed() {
    let bytes = pack::write("even.wasm", even(), &key(1)).unwrap();
    let trusted = [key(1).public()];
    let manifest = pack::inspect(&bytes).unwrap();
    for (old, new) in [
        (format!("\"wasmtime\":\"{}\"", manifest.wasmtime), "\"wasmtime\":\"48.0.7\"".to_owned()),
        (manifest.settings.clone(), manifest.settings.replace(|digit: char| digit.is_ascii_digit(), "0")),
        ("api@0.2.0-draft".to_owned(), "api@0.0.9".to_owned()),
    ] {
        let stale = pack::resign_for_tests(&bytes, &old, &new, &key(1));
        let error = open(&stale, &trusted);
        assert!(error.message().starts_with("the pack was compiled for "), "{new}: {error}");
        assert!(error.help().unwrap().contains("planner pack"));
    }
}

#[test]
fn the_bound_version_of_wasmtime_is_the_one_in_use() {
    let lock = std::fs::read_to_string(common::workspace().join("Cargo.lock")).unwrap();
    let manifest = pack::inspect(&pack::write("even.wasm", even(), &key(1)).unwrap()).unwrap();
    assert!(lock.contains(&format!("name = \"wasmtime\"\nversion = \"{}\"", manifest.wasmtime)));
}

#[test]
fn keys_are_read_and_written_as_digits() {
    let secret = SecretKey::generate().unwrap();
    assert_eq!(secret.to_hex().parse::<SecretKey>().unwrap().public(), secret.public());
    let public = secret.public();
    assert_eq!(public.to_string().parse::<PublicKey>().unwrap(), public);
    assert!(!format!("{secret:?}").contains(&secret.to_hex()));
    for text in ["", "00", &"g".repeat(64), &"é".repeat(32)] {
        assert!(text.parse::<PublicKey>().is_err() && text.parse::<SecretKey>().is_err());
    }
}

#[test]
fn a_limit_of_the_user_replaces_the_profiles() {
    let text = r#"{"schema": 1, "name": "x", "title": "X", "vendor": "v", "shim": "cpu", "kind": "cpu",
        "limits": [{"name": "ops", "value": 10, "provenance": "reported"}]}"#;
    let profile: Profile = serde_json::from_str(text).unwrap();
    let user = [Limit::new("ops", 300, Provenance::User), Limit::new("shards", 9, Provenance::User)];
    let limits = profile.limits_with(&user);
    assert_eq!(limits, user);
    assert_eq!(profile.limits_with(&[]), profile.limits);
}

/// A checked plan has no such encoding. An attempt that was made by hand fails, instead of being
/// passed to the planner without the encoding.
#[test]
fn an_attempt_with_an_encoding_that_none_is_never_reaches_a_planner() {
    let request = request(6);
    let planner = generic();
    let mut plan = planner.make_plan(&request).plan.unwrap();
    let encoding = Encoding { element: DType::I32, ..Encoding::F32 };
    plan.shards[0].outputs[0].encoding = Some(encoding);
    let history = [Attempt { plan, feedback: Vec::new() }];
    let error = planner.revise(&request, &history).plan.unwrap_err();
    let Kind::Other(fault) = error.kind else { panic!("{error}") };
    assert_eq!(fault.place(), Some("plan: shard 0"));
    assert!(fault.message().ends_with("does not fit its element type"), "{fault}");
}
