//! The built-in planner: works for any SoC from the request's facts alone.
//!
//! **Job.** Passes the request to the SDK's exact solver, with preferences from the SDK's
//! [`options`], and after a refusal learns from the whole history. It respects every limit,
//! balances shards by time or by bytes, gives a reason for every choice, and names the obstacle if
//! no plan is left.
//!
//! **Not its job.** It knows no vendor and no SoC: a chip's peculiarities are in its profile, and
//! rules for the chips of a vendor are in planners of their own.

use shardwright_planner::learn::{self, goals_last};
use shardwright_planner::solver::{Budget, Settings};
use shardwright_planner::{Attempt, Description, Plan, Planner, Refusal, Request, options};

/// The built-in planner.
#[derive(Debug)]
pub struct Generic;

shardwright_planner::export_planner!(Generic);

impl Planner for Generic {
    fn describe() -> Description {
        Description {
            name: "generic".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            summary: "fastest plan within the limits of any SoC, or the fewest balanced shards".to_owned(),
            options: options::descriptions(),
        }
    }

    fn make_plan(request: &Request) -> Result<Plan, Refusal> {
        goals_last(request, &[], plan)
    }

    fn revise(request: &Request, _previous: &Plan, history: &[Attempt]) -> Result<Plan, Refusal> {
        goals_last(request, history, plan)
    }
}

/// Plans with settings from the options of a request.
fn plan(request: &Request, history: &[Attempt], budget: Budget) -> Result<Plan, Refusal> {
    let settings = Settings { budget, ..options::settings(request, &[])? };
    options::usually(request, settings, |request, settings| learn::plan(request, history, settings))
}

#[cfg(test)]
mod tests {
    use shardwright_planner::options::{SPECULATION, USUAL_QUALITY};
    use shardwright_planner::testing::{RequestBuilder, refuse, set_time};
    use shardwright_planner::{
        BuildTime, Cause, Entry, EntryKind, ErrorClass, Extension, Feedback, Goal as Bound, MeasuredTime,
        Provenance, Reason, RefusalKind, RoleFormat, Sensitivity, Shard, SoftcapPlace,
    };

    use super::*;

    fn decoder_shards(plan: &Plan) -> Vec<(u32, u32)> {
        let decoder = plan.shards.iter().filter_map(|shard| shard.segment(1));
        decoder.map(|segment| (segment.first, segment.end)).collect()
    }

    /// Returns a request with every component in shards of its own.
    fn apart(layers: u32) -> RequestBuilder {
        let off = |request: &mut Request| request.options.push(("join".to_owned(), "off".to_owned()));
        RequestBuilder::decoder(layers).change(off)
    }

    fn refused(shard: u32, details: &[(&str, &str)]) -> Feedback {
        Feedback {
            shard: Some(shard),
            class: Some(ErrorClass::ResourceLimit),
            message: "refused".to_owned(),
            details: details.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect(),
            times: vec![],
            drift_per_mille: None,
            extensions: vec![],
        }
    }

    #[test]
    fn layers_have_the_weights_and_components_the_shards_that_options_ask_for() {
        let plan = |options: &[(&str, &str)]| {
            let options: Vec<(String, String)> =
                options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let request = RequestBuilder::decoder(6).formats("w8-per-channel", 1, 4);
            Generic::make_plan(&request.change(|request| request.options = options).build())
        };
        let ends = [("weights.decoder.0-2", "w8-per-channel"), ("order", "targets, formats")];
        let mixed = plan(&ends).unwrap();
        assert_eq!(decoder_shards(&mixed), [(0, 6)], "other formats need no cut");
        assert_eq!(mixed.shards[0].segment(1).unwrap().formats, [1, 1, 0, 0, 0, 0]);
        let whole = plan(&[("weights.decoder", "w8-per-channel")]).unwrap();
        let decoder = whole.shards.iter().filter_map(|shard| shard.segment(1));
        assert!(decoder.flat_map(|segment| &segment.formats).all(|formats| *formats == 1));
        let one = plan(&[ends[0], ends[1], ("most-shards.decoder", "1")]).unwrap();
        assert_eq!(decoder_shards(&one), [(0, 6)]);
        for wrong in [
            ("weights.decoder.2-1", "w8-per-channel"),
            ("weights.decoder.0-7", "w8-per-channel"),
            ("weights.decoder", "w3"),
            ("weights.nobody", "w8-per-channel"),
            ("weights.decoder.mlp-out", "w8-per-channel"),
            ("weights.decoder.0-2.mlp-output.0-2", "w8-per-channel"),
            ("most-shards.decoder", "0"),
            ("most-shards.nobody", "1"),
            ("order", "beauty"),
        ] {
            let refusal = plan(&[wrong]).unwrap_err();
            assert_eq!(refusal.kind, RefusalKind::InvalidRequest, "{wrong:?}: {}", refusal.message);
            assert!(refusal.message.contains(wrong.0), "{}", refusal.message);
        }
    }

    #[test]
    fn a_role_has_the_weights_that_an_option_asks_for() {
        let request = RequestBuilder::decoder(4)
            .formats("w4-per-channel", 1, 8)
            .formats("w8-per-channel", 1, 4)
            .change(|request| {
                let format = request.weight_format_named("w8-per-channel").unwrap();
                request.formats[1].roles.push(RoleFormat { role: "mlp-output".to_owned(), format });
                let option = ("weights.decoder.1-3.mlp-output", "w8-per-channel");
                request.options = vec![(option.0.to_owned(), option.1.to_owned())];
                request.options.push(("order".to_owned(), "targets, formats".to_owned()));
            });
        let plan = Generic::make_plan(&request.build()).unwrap();
        assert_eq!(plan.shards[0].segment(1).unwrap().formats, [0, 1, 1, 0]);
    }

    /// A tuple with an exception for the head can be used for layers, which have no head, but not
    /// for the head.
    #[test]
    fn layers_may_have_a_tuple_whose_exceptions_are_for_other_components() {
        let plan = |option: (&str, &str), known: bool| {
            let request = RequestBuilder::decoder(4).formats("w4-per-channel", 1, 8).change(|request| {
                let format = 0;
                request.formats[1].roles.push(RoleFormat { role: "head".to_owned(), format });
                request.options = vec![(option.0.to_owned(), option.1.to_owned())];
                request.options.push(("order".to_owned(), "targets, formats".to_owned()));
                let roles = [(1, "mlp-output"), (1, "other"), (2, "head")];
                let places = roles.into_iter().flat_map(|(component, role)| {
                    (0..if component == 1 { 4 } else { 1 }).map(move |layer| (component, layer, role))
                });
                request.sensitivities.extend(places.filter(|_| known).map(|(component, layer, role)| {
                    let (role, provenance) = (role.to_owned(), Provenance::Modelled);
                    Sensitivity { component, layer, role, format: 1, micronats: 1, provenance }
                }));
            });
            Generic::make_plan(&request.build())
        };
        for known in [false, true] {
            let layers = plan(("weights.decoder.1-3", "w4-per-channel"), known).unwrap();
            assert_eq!(layers.shards[0].segment(1).unwrap().formats, [0, 1, 1, 0], "{known}");
            let role = plan(("weights.decoder.0-2.mlp-output", "w4-per-channel"), known).unwrap();
            assert_eq!(role.shards[0].segment(1).unwrap().formats, [1, 1, 0, 0], "{known}");
            let head = plan(("weights.head", "w4-per-channel"), known).unwrap_err();
            assert!(head.message.contains("offered there: f32; use `--formats` to offer others"), "{head:?}");
        }
        let role = plan(("weights.decoder.0-2.mouth", "w4-per-channel"), false).unwrap_err();
        assert!(role.message.contains("a role after the layers: attention-input"), "{role:?}");
    }

    /// Returns a request in three formats, of which each is faster and smaller than the one before.
    /// Without goals, the host would offer only the formats in `usual`.
    fn with_formats_for_goals(usual: &str, bounds: &[Bound]) -> Request {
        let mut request = RequestBuilder::decoder(6)
            .formats("w8-per-channel", 1, 4)
            .formats("w4-per-channel", 1, 8)
            .build();
        for cost in &mut request.costs {
            set_time(cost, 4000 >> (2 * cost.formats));
        }
        let (name, value) = ("usual-formats".to_owned(), usual.to_owned());
        request.extensions.push(Extension { name, value });
        bounds.iter().for_each(|bound| request.goals.set(*bound));
        request
    }

    fn formats(plan: &Plan) -> Vec<u32> {
        let mut formats: Vec<u32> = plan.shards.iter().flat_map(Shard::formats).collect();
        formats.dedup();
        formats
    }

    #[test]
    fn goals_that_bind_nothing_change_no_plan() {
        const AMPLE: u64 = 1_000_000;
        let kept = "the plan without goals for bytes and times";
        let said = |plan: &Plan| plan.reasons.iter().find(|own| own.choice == kept).cloned();
        let plan = |usual: &str, bounds: &[Bound]| {
            Generic::make_plan(&with_formats_for_goals(usual, bounds)).unwrap()
        };
        let (size, memory) = (Bound::SizeBytes(AMPLE), Bound::MemoryBytes(AMPLE));
        let (token, first) = (Bound::TokenMicroseconds(AMPLE), Bound::FirstTokenMicroseconds(AMPLE));
        for bounds in [&[size][..], &[memory], &[token], &[first], &[size, memory, token, first]] {
            for (usual, format) in [("0,1", 1), ("1,0", 1), ("0", 0)] {
                let plan = plan(usual, bounds);
                assert_eq!(formats(&plan), [format], "{usual}, {bounds:?}");
                assert!(said(&plan).is_some(), "{:?}", plan.reasons);
            }
            // A list that names unknown formats is ignored.
            assert_eq!(formats(&plan("0,3", bounds)), [2], "{bounds:?}");
        }
        let why = said(&plan("0,1", &[size, token])).unwrap();
        assert_eq!(why.cause, Cause::Goal("size".to_owned()));
        assert!(why.because.contains("a token takes 8 ms; within the goal of 1 s"), "{}", why.because);
        // A goal that binds may use all formats.
        for bound in [Bound::SizeBytes(2000), Bound::MemoryBytes(2500), Bound::TokenMicroseconds(7000)] {
            let plan = plan("0,1", &[bound]);
            assert!(formats(&plan).contains(&2) && said(&plan).is_none(), "{bound:?}: {:?}", plan.reasons);
            assert_eq!(formats(&with_ample_goals(bound, AMPLE)), formats(&plan), "{bound:?}");
        }
    }

    /// Plans with a goal that binds, and with others that do not.
    fn with_ample_goals(bound: Bound, ample: u64) -> Plan {
        let mut request = with_formats_for_goals("0,1", &[bound]);
        for other in [Bound::SizeBytes(ample), Bound::TokenMicroseconds(ample)] {
            let is_same = |own: &Bound| std::mem::discriminant(own) == std::mem::discriminant(&other);
            if !request.goals.bounds.iter().any(is_same) {
                request.goals.set(other);
            }
        }
        Generic::make_plan(&request).unwrap()
    }

    #[test]
    fn a_revision_keeps_the_plan_without_goals_too() {
        let request = with_formats_for_goals("1,0", &[Bound::SizeBytes(1_000_000)]);
        let free = with_formats_for_goals("1,0", &[]);
        let feedback = || vec![refused(0, &[("limit", "ops"), ("value", "603"), ("max", "400")])];
        let first = Generic::make_plan(&request).unwrap();
        assert_eq!((first.shards.len(), formats(&first)), (1, vec![1]));
        let history = [Attempt { plan: first.clone(), feedback: feedback() }];
        let second = Generic::revise(&request, &first, &history).unwrap();
        assert_eq!(formats(&second), [1]);
        assert!(second.shards.len() > 1, "{second:?}");
        assert_eq!(second.lessons.len(), 1);
        // After an attempt in another format, goals have bound something.
        let mut other = first.clone();
        let segments = other.shards.iter_mut().flat_map(|shard| &mut shard.segments);
        segments.flat_map(|segment| &mut segment.formats).for_each(|format| *format = 2);
        let history = [Attempt { plan: other.clone(), feedback: feedback() }];
        let third = Generic::revise(&request, &other, &history).unwrap();
        let learned = Generic::revise(&free, &other, &history).unwrap();
        assert_eq!(third.shards, learned.shards);
    }

    #[test]
    fn goals_bind_if_measured_times_exceed_them() {
        let request = with_formats_for_goals("1,0", &[Bound::TokenMicroseconds(15_000)]);
        let first = Generic::make_plan(&request).unwrap();
        assert_eq!(formats(&first), [1]);
        // The table promises 8 ms, so format 2 takes 12.5 ms.
        let decode = |entry: &&Entry| entry.kind == EntryKind::Decode;
        let entry = *first.shards[0].entries.iter().find(decode).unwrap();
        let times = vec![MeasuredTime { entry, microseconds: 50_000 }];
        let feedback = vec![Feedback { class: None, times, ..refused(0, &[]) }];
        let history = [Attempt { plan: first.clone(), feedback }];
        let second = Generic::revise(&request, &first, &history).unwrap();
        assert_eq!(formats(&second), [2]);
    }

    #[test]
    fn limits_cut_the_decoder_and_the_reasons_name_them() {
        let request = apart(10).limit("npu", "ops", 400).build();
        let plan = Generic::make_plan(&request).unwrap();
        assert_eq!(decoder_shards(&plan).len(), 3);
        let reason = plan.reasons.iter().find(|reason| reason.choice.starts_with("layers")).unwrap();
        assert!(reason.because.contains("ops 1000, the limit is 400 (reported)"), "{}", reason.because);
    }

    #[test]
    fn a_refusal_with_a_maximum_teaches_the_limit() {
        let request = apart(10).build();
        let first = Generic::make_plan(&request).unwrap();
        assert_eq!(decoder_shards(&first), [(0, 10)]);
        let feedback = refused(1, &[("limit", "ops"), ("value", "1000"), ("max", "500")]);
        let history = [Attempt { plan: first.clone(), feedback: vec![feedback] }];
        let second = Generic::revise(&request, &first, &history).unwrap();
        assert_eq!(decoder_shards(&second), [(0, 5), (5, 10)]);
        assert!(second.reasons.iter().any(|reason| reason.choice == "npu: ops ≤ 500 (learned)"));
        let lesson = &second.lessons[..];
        assert!(matches!(lesson, [own] if (own.target, &own.limit[..], own.value) == (0, "ops", 500)));
    }

    #[test]
    fn refusals_without_a_maximum_halve_until_nothing_is_left() {
        let request = apart(8).build();
        let mut plan = Generic::make_plan(&request).unwrap();
        let mut history: Vec<Attempt> = vec![];
        let mut counts = vec![];
        let refusal = loop {
            counts.push(decoder_shards(&plan).len());
            let feedback = refused(1, &[("limit", "ops")]);
            history.push(Attempt { plan: plan.clone(), feedback: vec![feedback] });
            match Generic::revise(&request, &plan, &history) {
                Ok(next) => {
                    assert!(!history.iter().any(|attempt| attempt.plan.builds_same(&next)));
                    plan = next;
                }
                Err(refusal) => break refusal,
            }
        };
        assert_eq!(counts, [1, 2, 4, 8]);
        assert_eq!(refusal.kind, RefusalKind::Exhausted);
        assert!(refusal.message.contains("layer 0"), "{}", refusal.message);
    }

    #[test]
    fn a_target_that_is_refused_to_the_end_gives_way_to_the_next() {
        let request = apart(2).target("cpu", "cpu").build();
        let mut plan = Generic::make_plan(&request).unwrap();
        let mut history: Vec<Attempt> = vec![];
        let refuses = |shard: &shardwright_planner::Shard| shard.target == 0 && shard.segment(1).is_some();
        while let Some(shard) = plan.shards.iter().position(refuses) {
            let shard = u32::try_from(shard).unwrap();
            history.push(Attempt { plan: plan.clone(), feedback: vec![refused(shard, &[])] });
            plan = Generic::revise(&request, &plan, &history).unwrap();
            assert!(history.len() < 8);
        }
        assert_eq!(decoder_shards(&plan), [(0, 2)]);
    }

    fn head(plan: &Plan) -> (Option<SoftcapPlace>, String) {
        let index = plan.shards.len() - 1;
        let of_head = |reason: &&Reason| {
            reason.shard.is_some_and(|shard| shard as usize == index) && reason.choice.starts_with("soft-cap")
        };
        let because =
            plan.reasons.iter().find(of_head).map_or(String::new(), |reason| reason.because.clone());
        (plan.shards[index].softcap, because)
    }

    #[test]
    fn a_soft_cap_is_in_the_graph_unless_it_is_refused_there_or_slower() {
        let (graph, runtime) = (Some(SoftcapPlace::Graph), Some(SoftcapPlace::Runtime));
        assert_eq!(head(&Generic::make_plan(&apart(2).build()).unwrap()), (None, String::new()));
        let capped = || apart(2).softcap(7);
        let (place, because) = head(&Generic::make_plan(&capped().build()).unwrap());
        assert_eq!(place, graph);
        assert_eq!(because, "0 µs instead of 7 µs by the runtime");

        let refused_there = capped().change(|request| {
            for cost in request.costs.iter_mut().filter(|cost| cost.kind == 1) {
                refuse(cost, "no tanh");
            }
        });
        let (place, because) = head(&Generic::make_plan(&refused_there.build()).unwrap());
        assert_eq!(place, runtime);
        assert!(because.contains("`npu` does not support it in the graph: no tanh"), "{because}");

        let (place, because) = head(&Generic::make_plan(&capped().times(0, 100).build()).unwrap());
        assert_eq!(place, graph);
        assert_eq!(because, "100 µs instead of 107 µs by the runtime");
        let slow = capped().times(0, 100).change(|request| {
            for cost in request.costs.iter_mut().filter(|cost| cost.kind == 1) {
                set_time(cost, 108);
            }
        });
        let (place, because) = head(&Generic::make_plan(&slow.build()).unwrap());
        assert_eq!(place, runtime);
        assert_eq!(because, "107 µs, including 7 µs per row in the runtime, instead of 108 µs in the graph");

        let over = capped().change(|request| {
            for cost in request.costs.iter_mut().filter(|cost| cost.kind == 1) {
                cost.ops = 500;
            }
        });
        let (place, because) = head(&Generic::make_plan(&over.limit("npu", "ops", 400).build()).unwrap());
        assert_eq!(place, runtime);
        assert_eq!(because, "in the graph ops would be 500, the limit is 400");
    }

    #[test]
    fn a_compiler_that_refuses_the_head_with_its_soft_cap_is_tried_without() {
        let request = apart(2).softcap(7).build();
        let first = Generic::make_plan(&request).unwrap();
        let feedback = Feedback { class: Some(ErrorClass::UnsupportedOp), ..refused(2, &[]) };
        let history = [Attempt { plan: first.clone(), feedback: vec![feedback] }];
        let second = Generic::revise(&request, &first, &history).unwrap();
        assert_eq!(second.shards.len(), first.shards.len());
        let (place, because) = head(&second);
        assert_eq!(place, Some(SoftcapPlace::Runtime));
        assert!(because.contains("refused before"), "{because}");
    }

    #[test]
    fn where_a_soft_cap_is_computed_may_be_asked_for() {
        for (asked, place) in [("graph", SoftcapPlace::Graph), ("runtime", SoftcapPlace::Runtime)] {
            let options = vec![("softcap".to_owned(), asked.to_owned())];
            let capped = apart(2).softcap(7).change(|request| request.options = options.clone());
            let plan = Generic::make_plan(&capped.build()).unwrap();
            assert_eq!(head(&plan), (Some(place), "requested".to_owned()));
            let bare = apart(2).change(|request| request.options = options).build();
            match place {
                SoftcapPlace::Graph => assert!(Generic::make_plan(&bare).is_ok()),
                SoftcapPlace::Runtime => {
                    let refusal = Generic::make_plan(&bare).unwrap_err();
                    assert_eq!(refusal.kind, RefusalKind::InvalidRequest);
                    assert!(refusal.message.contains("the model has none"), "{}", refusal.message);
                }
            }
        }
    }

    #[test]
    fn formats_are_asked_for_by_the_beginning_of_their_name() {
        let plan = |format: &str| {
            let options = vec![("format".to_owned(), format.to_owned())];
            let request = apart(4)
                .formats("w8-per-channel", 1, 4)
                .formats("w4-block32", 1, 8)
                .change(|request| request.options = options)
                .build();
            Generic::make_plan(&request)
        };
        for (format, index) in
            [("f32", 0), ("w8-per-channel", 1), ("w8-per-channel/f32", 1), ("w4-block32/f32/f32", 2)]
        {
            let plan = plan(format).unwrap();
            assert!(plan.shards.iter().all(|shard| shard.uniform_formats() == Some(index)), "{format}");
            let reason = plan.reasons.iter().find(|reason| reason.because == "requested").unwrap();
            assert!(reason.choice.starts_with(format), "{}", reason.choice);
        }
        for format in ["", "w8", "w4-block", "w8-per-channel/a8-dynamic"] {
            let refusal = plan(format).unwrap_err();
            assert_eq!(refusal.kind, RefusalKind::InvalidRequest, "{format}");
            assert!(refusal.message.contains("w4-block32/f32/f32"), "{}", refusal.message);
        }
    }

    /// Returns a request with ten layers, embedding and head in 4 or 8 bits, with times that follow
    /// their bytes. Each loses 20,000 millionths in 4 bits and 100 in 8.
    fn weighed(usual: &str) -> Request {
        let mut request = RequestBuilder::decoder(10)
            .formats("w4-per-channel", 1, 8)
            .formats("w8-per-channel", 1, 4)
            .change(|request| request.options.push((USUAL_QUALITY.to_owned(), usual.to_owned())))
            .build();
        request.boundary_nanoseconds = 100;
        request.formats.remove(0);
        request.costs.retain(|cost| cost.formats > 0);
        for cost in &mut request.costs {
            cost.formats -= 1;
            let time = cost.weight_bytes;
            set_time(cost, time);
        }
        for (format, micronats) in [("w4-per-channel", 20_000), ("w8-per-channel", 100)] {
            let format = request.weight_format_named(format).unwrap();
            let places = (0..10).map(|layer| (1, layer)).chain([(0, 0), (2, 0)]);
            request.sensitivities.extend(places.map(|(component, layer)| Sensitivity {
                component,
                layer,
                role: "other".to_owned(),
                format,
                micronats,
                provenance: Provenance::Modelled,
            }));
        }
        request
    }

    fn four_bits(request: &Request) -> (usize, String) {
        let plan = Generic::make_plan(request).unwrap();
        let formats = plan.shards.iter().flat_map(|shard| &shard.segments).flat_map(|own| &own.formats);
        let usual = |reason: &&Reason| reason.cause == Cause::Goal(USUAL_QUALITY.to_owned());
        let said = plan.reasons.iter().find(usual).map(|reason| reason.because.clone());
        (formats.filter(|formats| **formats == 0).count(), said.unwrap_or_default())
    }

    #[test]
    fn without_a_goal_losses_stay_within_what_is_usual() {
        let unasked = "the default without a goal".to_owned();
        assert_eq!(four_bits(&weighed("1000")), (12, unasked.clone()));
        // 150,000 millionths allow seven places in four bits, and five in eight.
        let request = weighed("150");
        assert_eq!(four_bits(&request), (7, unasked));
        let plan = Generic::make_plan(&request).unwrap();
        let said = |words: &str| plan.reasons.iter().any(|reason| reason.because.contains(words));
        assert!(said("lose least for the time they save"), "{:?}", plan.reasons);
        // A refusal does not change that.
        let feedback = refused(0, &[]);
        let history = [Attempt { plan: plan.clone(), feedback: vec![feedback] }];
        let next = Generic::revise(&request, &plan, &history).unwrap();
        assert!(next.reasons.iter().any(|reason| reason.choice == "loss ≤ 150 millinats"));
        // A bound that cannot be met is reported, and planning continues.
        let (count, because) = four_bits(&weighed("1"));
        let figures = ", but not met: this plan loses 240 millinats (";
        assert!(count == 12 && because.contains(figures), "{count}: {because}");
        // Requested formats, or a goal, override the usual loss.
        let mut asked = weighed("150");
        asked.options.push(("format".to_owned(), "w8-per-channel".to_owned()));
        assert_eq!(four_bits(&asked), (0, String::new()));
        let mut stated = weighed("150");
        stated.goals.set(Bound::QualityMicronats(1_000_000));
        assert_eq!(four_bits(&stated), (12, String::new()));
    }

    /// With a size goal, the usual loss is kept if possible. Otherwise the loss is as small as
    /// possible.
    #[test]
    fn a_size_leaves_the_usual_loss_in_force() {
        let sized = |size: u64| {
            let mut request = weighed("150");
            request.goals.set(Bound::SizeBytes(size));
            request.options.push(("fallbacks".to_owned(), "none".to_owned()));
            request
        };
        let ample = four_bits(&sized(1 << 40));
        assert_eq!(ample, (7, "the default without a goal".to_owned()));
        let (count, because) = four_bits(&sized(2200));
        assert!(count > 7, "{count}");
        assert!(because.contains("not met: the least loss found within the other goals is"), "{because}");
        assert!(because.ends_with(" millinats"), "{because}");
    }

    /// Weights of two bits are used if a goal for times cannot be kept otherwise, and a refusal
    /// names that goal.
    #[test]
    fn a_time_that_only_two_bits_keep_is_planned_with_them() {
        let mut request = weighed("150");
        let narrow = request.weight_format_named("w4-per-channel").unwrap();
        request.weight_formats[narrow as usize].bits = 2;
        let time = |kind: u32| {
            let mut rows = request.costs.iter().filter(|cost| (cost.kind, cost.formats) == (kind, 0));
            rows.find(|cost| cost.entry.kind == EntryKind::Decode).unwrap().weight_bytes
        };
        // The kinds of the embedding, the head and the layers.
        let fastest = time(0) + time(1) + 10 * time(2) + 1;
        request.goals.set(Bound::TokenMicroseconds(fastest));
        let (count, because) = four_bits(&request);
        let words = "not met: the least loss found within the other goals is 240 millinats";
        assert!(count == 12 && because.contains(words), "{count}: {because}");
        request.goals.set(Bound::TokenMicroseconds(fastest / 2));
        let refusal = Generic::make_plan(&request).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::TooSlow, "{}", refusal.message);
    }

    /// Sums that exceed 64 bits saturate, whatever a policy requests.
    #[test]
    fn costs_of_64_bits_end_in_an_answer() {
        let request = |options: &[(&str, &str)], goals: bool| {
            let options: Vec<(String, String)> =
                options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let builder = RequestBuilder::decoder(8).target("cpu", "cpu").formats("w8-per-channel", 1, 4);
            let mut request = builder.softcap(7).times(0, 1).times(1, 1).build();
            for cost in &mut request.costs {
                (cost.ops, cost.weight_bytes, cost.artefact_bytes, cost.state_bytes) =
                    (u64::MAX, u64::MAX, u64::MAX, u64::MAX);
                set_time(cost, u64::MAX);
            }
            request.boundary_nanoseconds = u64::MAX;
            if goals {
                request.goals.set(Bound::TokenMicroseconds(u64::MAX));
                request.goals.set(Bound::FirstTokenMicroseconds(u64::MAX));
                (request.goals.prompt_tokens, request.goals.answer_tokens) = (u32::MAX, u32::MAX);
            }
            request.options = options;
            request
        };
        let ends = [
            ("order", "targets,formats"),
            ("place.head", "cpu"),
            ("weights.decoder.0-1", "w8-per-channel"),
            ("weights.decoder.7-8", "w8-per-channel"),
        ];
        for options in [&[][..], &ends, &[("join", "off")], &[("balance", "bytes")]] {
            for goals in [false, true] {
                let _ = Generic::make_plan(&request(options, goals));
            }
        }
    }

    #[test]
    fn options_are_read_or_refused() {
        let with = |name: &str, value: &str| {
            let options = vec![(name.to_owned(), value.to_owned())];
            apart(4).target("cpu", "cpu").change(|request| request.options.extend(options)).build()
        };
        let plan = Generic::make_plan(&with("place.embed", "cpu")).unwrap();
        assert_eq!(plan.shards.iter().map(|shard| shard.target).collect::<Vec<_>>(), [1, 0, 0]);
        let plan = Generic::make_plan(&with("build", "just-in-time")).unwrap();
        assert!(plan.shards.iter().all(|shard| shard.build == BuildTime::JustInTime));
        for value in ["auto", "none"] {
            assert_eq!(Generic::make_plan(&with(SPECULATION, value)).unwrap().speculation, None, "{value}");
        }
        // The request offers no such rows.
        assert!(Generic::make_plan(&with(SPECULATION, "4")).unwrap_err().message.starts_with("4 rows"));
        assert!(Generic::make_plan(&with("somebody-elses", "1")).is_ok());
        for (name, value) in [
            ("balance", "luck"),
            ("build", "never"),
            ("join", "perhaps"),
            ("usual-quality", "good"),
            ("speculation", "1"),
            ("speculation", "sometimes"),
            ("softcap", "nowhere"),
            ("format", "f16"),
            ("place.embed", "gpu"),
            ("place.tail", "cpu"),
        ] {
            let refusal = Generic::make_plan(&with(name, value)).unwrap_err();
            assert_eq!(refusal.kind, RefusalKind::InvalidRequest, "{name}={value}");
            assert!(refusal.message.contains(value));
        }
    }
}
