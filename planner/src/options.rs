//! Options that policies on the solver share: how they are described, and how they become settings.
//!
//! * `balance`: `automatic`, `time`, `bytes` or `ops`
//! * `build`: `ahead` or `just-in-time`
//! * `softcap`: `automatic`, `graph` or `runtime`
//! * `format`: the beginning of a tuple's name (`w8-per-channel/a8-dynamic`)
//! * `format-gain`: the percentage that formats must save compared with the formats listed first
//! * `usual-quality`: the largest loss of formats, in millinats, without a goal for losses
//! * `effort`: `thorough` or `simple`
//! * `fallbacks`: `all` or `none`
//! * `speculation`: `auto`, `none`, or a number of rows
//! * `join`: `on` or `off`
//! * `place.COMPONENT`: the name of a target
//! * `most-shards.COMPONENT`: a number
//! * `weights.COMPONENT[.FIRST-END][.ROLE]`: a weight format, for layers from first to before end
//! * `order`: goals that come first
//!
//! A policy with an option of its own adds its description, and names it to [`settings`].

use crate::solver::{self, Balance, Effort, Goal, Settings, Speculate, WantedFormat, loss_of as lost};
use crate::{
    BuildTime, Cause, Goals, Level, OptionDescription, Plan, Reason, Refusal, RefusalKind, Request,
    SoftcapPlace, log, names,
};

/// Option for whether proposed tokens are verified, and in how many rows.
pub const SPECULATION: &str = "speculation";

/// Option for the loss, in millinats, within which [`usually`] chooses formats without a goal.
pub const USUAL_QUALITY: &str = "usual-quality";

/// Names, values and summaries of the options.
const DESCRIBED: [(&str, &str, &str); 14] = [
    (
        "balance",
        "automatic|time|bytes|ops",
        "quantity by which the shards of a component are balanced (automatic)",
    ),
    (
        "build",
        "ahead|just-in-time",
        "when shards are compiled: just-in-time also on a device that cannot load them (ahead)",
    ),
    (
        "softcap",
        "automatic|graph|runtime",
        "place of the soft-cap of the logits (automatic: in the graph if supported and no slower)",
    ),
    (
        "format",
        "WEIGHTS[/ACTIVATIONS[/STATES]]",
        "formats of every shard: the first offered tuple whose name begins with this",
    ),
    (
        "format-gain",
        "0..99",
        "time in percent that formats not listed first must save, without a quality goal (25)",
    ),
    (
        "effort",
        "thorough|simple",
        "search for the best plan, or use the first legal one in the fewest shards (thorough)",
    ),
    (USUAL_QUALITY, "MILLINATS", "maximum loss if neither a goal nor formats are set"),
    (
        "fallbacks",
        "none or all",
        "whether other targets take over if one is lost, as far as a size goal allows (all)",
    ),
    (
        SPECULATION,
        "auto, none or ROWS",
        "whether proposed tokens are verified, and in how many rows (auto: if that is faster)",
    ),
    ("join", "on|off", "whether a shard may contain several components (on)"),
    ("place.COMPONENT", "TARGET", "target of a component"),
    ("most-shards.COMPONENT", "1..", "maximum number of shards of a component"),
    (
        "weights.COMPONENT",
        "FORMAT",
        "weight format of a component, of layers from the first to before the last, or of a role: \
         `weights.decoder.0-4.mlp-output`",
    ),
    ("order", "targets|loss|time|shards|formats, …", "goals that come first, separated by commas"),
];

/// Returns the descriptions of all options of this module.
pub fn descriptions() -> Vec<OptionDescription> {
    DESCRIBED.map(describe).into()
}

/// Creates the description of an option from its name, its values and a summary.
pub fn describe((name, values, summary): (&str, &str, &str)) -> OptionDescription {
    OptionDescription { name: name.to_owned(), values: values.to_owned(), summary: summary.to_owned() }
}

/// Time, in percent, that formats not listed first must save to be used under a goal for times that
/// the formats listed first keep.
const NEEDED: u32 = 75;

/// Plans within the usual loss if neither a goal nor an option decides between formats. If no plan
/// is within it, plans with the least loss if goals bound bytes, otherwise without a bound.
///
/// `plan` makes a plan by settings: with [`solve`](solver::solve), or after a refusal with
/// [`learn::revise`](crate::learn::revise).
///
/// # Errors
///
/// The errors of `plan`.
pub fn usually(
    request: &Request,
    settings: Settings,
    plan: impl Fn(&Request, &Settings) -> Result<Plan, Refusal>,
) -> Result<Plan, Refusal> {
    let goals = &request.goals;
    let chosen = settings.formats.is_some() || !settings.wanted.is_empty() || !settings.order.is_empty();
    let is_open = !request.weighs_losses() && !chosen && request.formats.len() > 1;
    let option = request.options.iter().find(|(name, _)| name == USUAL_QUALITY);
    let usual = option.and_then(|(_, value)| value.parse::<u32>().ok());
    let Some(usual) = usual.filter(|_| is_open) else {
        return plan(request, &settings);
    };
    let most = u64::from(usual) * 1000;
    let with = |goals: Goals| Request { goals, ..request.clone() };
    let bounded = with(goals.with(crate::Goal::QualityMicronats(most)));
    let wary = Settings { gain_within_goal: settings.gain, loss_is_usual: true, ..settings.clone() };
    if goals.size_bytes().or(goals.memory_bytes()).is_none() {
        return within_usual(request, &bounded, (&settings, &wary), usual, plan);
    }
    // A plan that is likely to keep goals for times comes before the usual loss.
    let is_timed = goals.token_microseconds().or(goals.first_token_microseconds()).is_some();
    // Finding the least loss needs little fuel. Proving that no plan is within a bound needs much.
    let weighed = with(Goals { least_loss: true, ..goals.clone() });
    let likely = Settings { only_likely: is_timed, ..settings.clone() };
    let (only_likely, least) = match plan(&weighed, &likely) {
        Err(_) if is_timed => (false, plan(&weighed, &settings)),
        least => (is_timed, least),
    };
    let least = match least {
        Ok(least) => least,
        Err(refusal) => return unweighed(request, &settings, (usual, refusal), plan),
    };
    let Some(micronats) = lost(request, &least) else {
        return Ok(bounded_by(least, usual, ", but not met: the loss of this plan is not known"));
    };
    // A search for the least loss may miss plans that the next one finds, but hardly by this much.
    if micronats > most.saturating_mul(2) {
        return Ok(bounded_by(least, usual, &not_met(most, micronats)));
    }
    // The remaining loss may be used for any gain.
    let wary = Settings { gain_within_goal: settings.gain_within_goal, only_likely, ..wary };
    match plan(&bounded, &wary) {
        Ok(plan) => Ok(bounded_by(plan, usual, "")),
        Err(_) if micronats <= most => {
            Ok(bounded_by(least, usual, "; no faster plan meets it, so the loss is the least"))
        }
        Err(_) => Ok(bounded_by(least, usual, &not_met(most, micronats))),
    }
}

/// Says that the least loss that was found is more than the usual one.
fn not_met(most: u64, micronats: u64) -> String {
    let [_, least] = names::apart("quality", [most, micronats]);
    format!(", but not met: the least loss found within the other goals is {least}")
}

/// Plans without goals for bytes. A plan exceeds the usual loss only if a goal for times is not
/// likely to be met within it, or if there is no plan within it.
fn within_usual(
    request: &Request,
    bounded: &Request,
    (settings, wary): (&Settings, &Settings),
    usual: u32,
    plan: impl Fn(&Request, &Settings) -> Result<Plan, Refusal>,
) -> Result<Plan, Refusal> {
    let goals = &request.goals;
    let is_timed = goals.token_microseconds().or(goals.first_token_microseconds()).is_some();
    let least = Request { goals: Goals { least_loss: true, ..goals.clone() }, ..request.clone() };
    let refused = if is_timed {
        // Formats that lose more are for goals that need them.
        let wary = Settings { gain_within_goal: NEEDED, ..wary.clone() };
        let likely = Settings { only_likely: true, ..wary.clone() };
        if let Ok(plan) = plan(bounded, &likely) {
            return Ok(bounded_by(plan, usual, ""));
        }
        let likely = Settings { only_likely: true, loss_is_usual: true, ..settings.clone() };
        if let Ok(plan) = plan(&least, &likely) {
            return Ok(beyond(request, plan, usual));
        }
        plan(bounded, &wary)
    } else {
        plan(bounded, wary)
    };
    let refusal = match refused {
        Ok(plan) => return Ok(bounded_by(plan, usual, "")),
        Err(refusal) => refusal,
    };
    if is_timed {
        return match plan(&least, settings) {
            Ok(plan) => Ok(beyond(request, plan, usual)),
            Err(refusal) => unweighed(request, settings, (usual, refusal), plan),
        };
    }
    let plan = plan(request, settings)?;
    let lost = lost(request, &plan).map_or_else(
        || "the loss of this plan is not known".to_owned(),
        |micronats| format!("this plan loses {}", names::micronats(micronats)),
    );
    Ok(bounded_by(plan, usual, &format!(", but not met: {lost} ({})", refusal.message)))
}

/// Adds the reason that a plan with the least loss exceeds the usual loss.
fn beyond(request: &Request, plan: Plan, usual: u32) -> Plan {
    let unknown = || ", but not met: the loss of this plan is not known".to_owned();
    let most = u64::from(usual) * 1000;
    let rest = lost(request, &plan).map_or_else(unknown, |micronats| not_met(most, micronats));
    bounded_by(plan, usual, &rest)
}

/// Plans without regard to losses, because `refusal` says that no plan has a known loss. If that
/// fails too, returns `refusal`, which also considered weights of two bits.
fn unweighed(
    request: &Request,
    settings: &Settings,
    (usual, refusal): (u32, Refusal),
    plan: impl Fn(&Request, &Settings) -> Result<Plan, Refusal>,
) -> Result<Plan, Refusal> {
    match plan(request, settings) {
        Ok(plan) => Ok(bounded_by(plan, usual, ", but not met: the loss of this plan is not known")),
        Err(_) => Err(refusal),
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

/// Reads settings from the options of a request. Ignores the options in `own`, which the policy
/// reads itself. Unknown options are logged and ignored.
///
/// # Errors
///
/// `invalid-request` for an option with an invalid value.
pub fn settings(request: &Request, own: &[&str]) -> Result<Settings, Refusal> {
    let mut settings = Settings::default();
    for (name, value) in request.options.iter().filter(|(name, _)| !own.contains(&name.as_str())) {
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
