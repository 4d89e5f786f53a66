//! The built-in planner: works for any SoC from the request's facts alone.
//!
//! **Job.** Passes the request to the SDK's exact solver, with preferences from the options, and
//! after a refusal learns from the whole history. It respects every limit, balances shards by time
//! or by bytes, gives a reason for every choice, and names the obstacle if no plan is left.
//!
//! **Not its job.** It knows no vendor and no SoC: a chip's peculiarities are in its profile.
//!
//! Options:
//!
//! * `balance`: `automatic`, `time`, `bytes` or `ops`
//! * `build`: `ahead` or `just-in-time`
//! * `softcap`: `automatic`, `graph` or `runtime`
//! * `format`: the beginning of a tuple's name (`w8-per-channel/a8-dynamic`)
//! * `format-gain`: the percentage that formats must save compared with the formats listed first
//! * `usual-quality`: the loss in millinats within which formats are chosen if there is no goal
//! * `effort`: `thorough` or `simple`
//! * `fallbacks`: `all` or `none`
//! * `speculation`: `auto`, `none`, or a number of rows
//! * `place.COMPONENT`: the name of a target
//! * `most-shards.COMPONENT`: a number
//! * `weights.COMPONENT[.FIRST-END][.ROLE]`: a weight format, for layers from first to before end
//! * `order`: goals that come first

use shardwright_planner::solver::{
    self, Balance, Effort, Goal, Settings, Speculate, WantedFormat, loss_of as lost, solve,
};
use shardwright_planner::{
    Attempt, BuildTime, Cause, Description, Goals, Level, OptionDescription, Plan, Planner, Reason, Refusal,
    RefusalKind, Request, SoftcapPlace, learn, log, names,
};

/// The built-in planner.
#[derive(Debug)]
pub struct Generic;

shardwright_planner::export_planner!(Generic);

impl Planner for Generic {
    fn describe() -> Description {
        let option = |name: &str, values: &str, summary: &str| OptionDescription {
            name: name.to_owned(),
            values: values.to_owned(),
            summary: summary.to_owned(),
        };
        Description {
            name: "generic".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            summary: "fastest plan within the limits of any SoC, or the fewest balanced shards".to_owned(),
            options: vec![
                option(
                    "balance",
                    "automatic|time|bytes|ops",
                    "quantity by which the shards of a component are balanced (automatic)",
                ),
                option(
                    "build",
                    "ahead|just-in-time",
                    "when shards are compiled: just-in-time also on a device that cannot load them (ahead)",
                ),
                option(
                    "softcap",
                    "automatic|graph|runtime",
                    "place of the soft-cap of the logits (automatic: in the graph if supported and no slower)",
                ),
                option(
                    "format",
                    "WEIGHTS[/ACTIVATIONS[/STATES]]",
                    "formats of every shard: the first offered tuple whose name begins with this",
                ),
                option(
                    "format-gain",
                    "0..99",
                    "time in percent that formats not listed first must save, without a quality goal (25)",
                ),
                option(
                    "effort",
                    "thorough|simple",
                    "search for the best plan, or use the first legal one in the fewest shards (thorough)",
                ),
                option(USUAL_QUALITY, "MILLINATS", "maximum loss if neither a goal nor formats are set"),
                option(
                    "fallbacks",
                    "none or all",
                    "whether other targets take over if one is lost, as far as a size goal allows (all)",
                ),
                option(
                    SPECULATION,
                    "auto, none or ROWS",
                    "whether proposed tokens are verified, and in how many rows (auto: if that is faster)",
                ),
                option("join", "on|off", "whether a shard may contain several components (on)"),
                option("place.COMPONENT", "TARGET", "target of a component"),
                option("most-shards.COMPONENT", "1..", "maximum number of shards of a component"),
                option(
                    "weights.COMPONENT",
                    "FORMAT",
                    "weight format of a component, of layers from the first to before the last, or of a role: `weights.decoder.0-4.mlp-output`",
                ),
                option(
                    "order",
                    "targets|known-times|loss|modelled-formats|time|shards|formats, …",
                    "goals that come first, separated by commas",
                ),
            ],
        }
    }

    fn make_plan(request: &Request) -> Result<Plan, Refusal> {
        let settings = settings(request)?;
        usually(request, settings, |request, settings| Ok(solve(request, settings)?.into_plan(request)))
    }

    fn revise(request: &Request, _previous: &Plan, history: &[Attempt]) -> Result<Plan, Refusal> {
        let settings = settings(request)?;
        usually(request, settings, |request, settings| learn::revise(request, history, settings))
    }
}

const SPECULATION: &str = "speculation";
const USUAL_QUALITY: &str = "usual-quality";

/// Plans within the usual loss if neither a goal nor an option decides between formats. If no plan
/// is within it, plans with the least loss if goals bound bytes, otherwise without a bound.
fn usually(
    request: &Request,
    settings: Settings,
    plan: impl Fn(&Request, &Settings) -> Result<Plan, Refusal>,
) -> Result<Plan, Refusal> {
    let goals = &request.goals;
    let stated = goals.quality_micronats.is_some() || goals.least_loss;
    let chosen = settings.formats.is_some() || !settings.wanted.is_empty() || !settings.order.is_empty();
    let option = request.options.iter().find(|(name, _)| name == USUAL_QUALITY);
    let usual = option.and_then(|(_, value)| value.parse::<u32>().ok());
    let Some(usual) = usual.filter(|_| !stated && !chosen && request.formats.len() > 1) else {
        return plan(request, &settings);
    };
    let most = u64::from(usual) * 1000;
    let with = |goals: Goals| Request { goals, ..request.clone() };
    let bounded = with(Goals { quality_micronats: Some(most), ..*goals });
    let wary = Settings { gain_within_goal: settings.gain, loss_is_usual: true, ..settings.clone() };
    if goals.size_bytes.is_none() && goals.memory_bytes.is_none() {
        return match plan(&bounded, &wary) {
            Ok(plan) => Ok(bounded_by(plan, usual, "")),
            Err(refusal) => {
                let plan = plan(request, &settings)?;
                let lost = lost(request, &plan).map_or_else(
                    || "the loss of this plan is not known".to_owned(),
                    |micronats| format!("this plan loses {}", names::micronats(micronats)),
                );
                Ok(bounded_by(plan, usual, &format!(", but not met: {lost} ({})", refusal.message)))
            }
        };
    }
    // Finding the least loss needs little fuel. Proving that no plan is within a bound needs much.
    let Ok(least) = plan(&with(Goals { least_loss: true, ..*goals }), &settings) else {
        let plan = plan(request, &settings)?;
        return Ok(bounded_by(plan, usual, ", but not met: the loss of this plan is not known"));
    };
    match lost(request, &least) {
        Some(micronats) if micronats <= most => {
            // The remaining loss may be used for any gain.
            let wary = Settings { gain_within_goal: settings.gain_within_goal, ..wary };
            match plan(&bounded, &wary) {
                Ok(plan) => Ok(bounded_by(plan, usual, "")),
                Err(_) => Ok(bounded_by(least, usual, "; no faster plan meets it, so the loss is the least")),
            }
        }
        Some(micronats) => {
            let least_loss = names::micronats(micronats);
            let rest = format!(", but not met: the least loss within the other goals is {least_loss}");
            Ok(bounded_by(least, usual, &rest))
        }
        None => Ok(bounded_by(least, usual, ", but not met: the loss of this plan is not known")),
    }
}

/// Adds the reason that names the usual loss and whether the plan meets it.
fn bounded_by(plan: Plan, usual: u32, rest: &str) -> Plan {
    let reason = Reason {
        shard: None,
        choice: format!("loss ≤ {usual} millinats"),
        because: format!("the default without a goal{rest}"),
        cause: Cause::Goal(USUAL_QUALITY.to_owned()),
    };
    let reasons = plan.reasons.into_iter().chain([reason]).collect();
    Plan { reasons, ..plan }
}

/// Reads preferences from the options of a request.
fn settings(request: &Request) -> Result<Settings, Refusal> {
    let mut settings = Settings::default();
    for (name, value) in &request.options {
        let invalid = |expected: &str| {
            let message = format!("option `{name}` is `{value}`, expected {expected}");
            Refusal::new(RefusalKind::InvalidRequest, message).with("option", name)
        };
        match name.as_str() {
            "balance" => {
                settings.balance = match value.as_str() {
                    "automatic" => Balance::Automatic,
                    "time" => Balance::Time,
                    "bytes" => Balance::Bytes,
                    "ops" => Balance::Operations,
                    _ => return Err(invalid("automatic, time, bytes or ops")),
                };
            }
            "build" => {
                settings.build = match value.as_str() {
                    "ahead" => BuildTime::Ahead,
                    "just-in-time" => BuildTime::JustInTime,
                    _ => return Err(invalid("ahead or just-in-time")),
                };
            }
            "softcap" => {
                settings.softcap = match value.as_str() {
                    "automatic" => None,
                    "graph" => Some(SoftcapPlace::Graph),
                    "runtime" => Some(SoftcapPlace::Runtime),
                    _ => return Err(invalid("automatic, graph or runtime")),
                };
            }
            "effort" => {
                settings.effort = match value.as_str() {
                    "thorough" => Effort::Thorough,
                    "simple" => Effort::Simple,
                    _ => return Err(invalid("thorough or simple")),
                };
            }
            USUAL_QUALITY => {
                value.parse::<u32>().map_err(|_| invalid("a whole number of millinats"))?;
            }
            "fallbacks" => {
                settings.falls_back = match value.as_str() {
                    "all" => true,
                    "none" => false,
                    _ => return Err(invalid("all or none")),
                };
            }
            SPECULATION => {
                settings.speculate = match value.as_str() {
                    "auto" => Speculate::Automatic,
                    "none" => Speculate::No,
                    rows => {
                        let rows = rows.parse().ok().filter(|rows| *rows > 1);
                        Speculate::Rows(rows.ok_or_else(|| invalid("auto, none or a number above 1"))?)
                    }
                };
            }
            "join" => {
                settings.join = match value.as_str() {
                    "on" => true,
                    "off" => false,
                    _ => return Err(invalid("on or off")),
                };
            }
            "format-gain" => {
                let gain = value.parse().ok().filter(|gain| *gain < 100);
                settings.gain = gain.ok_or_else(|| invalid("a whole number below 100"))?;
            }
            "format" => {
                let tuples = 0..u32::try_from(request.formats.len()).unwrap_or(u32::MAX);
                let offered: Vec<String> = tuples.map(|formats| request.formats_name(formats)).collect();
                let index = offered.iter().position(|name| begins(name, value)).ok_or_else(|| {
                    invalid(&format!("the beginning of an offered tuple: {}", offered.join(", ")))
                })?;
                settings.formats = Some(u32::try_from(index).unwrap_or(u32::MAX));
            }
            "order" => {
                let goal = |word: &str| Goal::ALL.into_iter().find(|goal| goal.name() == word.trim());
                let order: Option<Vec<Goal>> = value.split(',').map(goal).collect();
                settings.order = order.ok_or_else(|| invalid("names of goals, separated by commas"))?;
            }
            _ => match name.split_once('.') {
                Some(("place", component)) => {
                    let component = request.component_named(component).ok_or_else(|| invalid(COMPONENT))?;
                    let target =
                        request.target_named(value).ok_or_else(|| invalid("the name of a target"))?;
                    settings.place.push((component, target));
                }
                Some(("most-shards", component)) => {
                    let component = request.component_named(component).ok_or_else(|| invalid(COMPONENT))?;
                    let most = value.parse().ok().filter(|most| *most > 0);
                    let most = most.ok_or_else(|| invalid("a whole number above zero"))?;
                    settings.most_shards.push((component, most));
                }
                Some(("weights", place)) => {
                    let wanted = wanted(request, place, value).ok_or_else(|| invalid(LAYERS))?;
                    if wanted.role.as_ref().is_some_and(|role| !names::ROLES.contains(&role.as_str())) {
                        return Err(invalid(&format!(
                            "a role after the layers: {}",
                            names::ROLES.join(", ")
                        )));
                    }
                    let possible = wanted.possible(request);
                    if !possible.contains(&value.as_str()) {
                        return Err(invalid(&format!("a weight format; {}", solver::offered(&possible))));
                    }
                    settings.wanted.push(wanted);
                }
                // Another planner's option, or an option of a newer version: logged, then ignored.
                _ => log(Level::Warn, format!("option `{name}` is unknown and has no effect")),
            },
        }
    }
    Ok(settings)
}

const COMPONENT: &str = "the name of a component after the dot";
const LAYERS: &str = "the name of a component after the dot, optionally with layers and a role, such as \
                      `decoder.0-4.mlp-output`";

/// Parses `decoder`, `decoder.0-4`, `decoder.mlp-output` or `decoder.0-4.mlp-output`: the
/// component, its layers from the first to before the last, and a role of weights in them.
fn wanted(request: &Request, place: &str, format: &str) -> Option<WantedFormat> {
    let mut words = place.split('.').peekable();
    let component = request.component_named(words.next()?)?;
    let layers = request.model.components[component as usize].layer_count();
    let range = |word: &str| {
        let (first, end) = word.split_once('-')?;
        Some((first.parse::<u32>().ok()?, end.parse::<u32>().ok()?))
    };
    let (mut first, mut end) = (0, layers);
    if let Some(layers_asked) = words.peek().copied().and_then(range) {
        words.next();
        (first, end) = layers_asked;
        if first >= end || end > layers {
            return None;
        }
    }
    let role = words.next().map(str::to_owned);
    let format = format.to_owned();
    words.next().is_none().then_some(WantedFormat { component, first, end, role, format })
}

/// Checks whether the name of a tuple is `beginning`, or continues after it with another part.
fn begins(name: &str, beginning: &str) -> bool {
    let rest = name.strip_prefix(beginning);
    !beginning.is_empty() && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use shardwright_planner::testing::RequestBuilder;
    use shardwright_planner::{ErrorClass, Feedback, Provenance, RoleFormat, Sensitivity};

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
        let of_head = |reason: &&shardwright_planner::Reason| {
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
        assert!(because.contains("the times to compare are not known"), "{because}");

        let refused_there = capped().change(|request| {
            for cost in request.costs.iter_mut().filter(|cost| cost.kind == 1) {
                cost.illegal = Some("no tanh".to_owned());
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
                cost.time.as_mut().unwrap().microseconds = 108;
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

    /// Returns a request with ten layers, embedding and head in 4 or 8 bits, without times. Each
    /// loses 20,000 millionths in 4 bits and 100 in 8.
    fn weighed(usual: &str) -> Request {
        let mut request = RequestBuilder::decoder(10)
            .formats("w4-per-channel", 1, 8)
            .formats("w8-per-channel", 1, 4)
            .change(|request| request.options.push((USUAL_QUALITY.to_owned(), usual.to_owned())))
            .build();
        request.boundary_nanoseconds = 100;
        request.formats.remove(0);
        request.costs.retain(|cost| cost.formats > 0);
        request.costs.iter_mut().for_each(|cost| cost.formats -= 1);
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
        assert!(said("for the bytes they save") && said("no times are known"), "{:?}", plan.reasons);
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
        stated.goals.quality_micronats = Some(1_000_000);
        assert_eq!(four_bits(&stated), (12, String::new()));
    }

    /// With a size goal, the usual loss is kept if possible. Otherwise the loss is as small as
    /// possible.
    #[test]
    fn a_size_leaves_the_usual_loss_in_force() {
        let sized = |size: u64| {
            let mut request = weighed("150");
            request.goals.size_bytes = Some(size);
            request.options.push(("fallbacks".to_owned(), "none".to_owned()));
            request
        };
        let ample = four_bits(&sized(1 << 40));
        assert_eq!(ample, (7, "the default without a goal".to_owned()));
        let (count, because) = four_bits(&sized(2200));
        assert!(count > 7, "{count}");
        assert!(because.contains("not met: the least loss within the other goals is"), "{because}");
        assert!(because.ends_with(" millinats"), "{because}");
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
                (cost.ops, cost.weight_bytes, cost.artefact_bytes, cost.state_bytes, cost.uncosted_ops) =
                    (u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX);
                cost.time = Some(shardwright_planner::TimeCost {
                    microseconds: u64::MAX,
                    provenance: shardwright_planner::Provenance::Measured,
                });
            }
            request.boundary_nanoseconds = u64::MAX;
            if goals {
                request.goals.token_microseconds = Some(u64::MAX);
                request.goals.first_token_microseconds = Some(u64::MAX);
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
