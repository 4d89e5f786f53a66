//! Tests a planner against numbered rules. Sends it simple, large, incomplete, contradictory and
//! absurd requests, and reports for every rule whether it is met and the observations.
//!
//! A refusal is a valid answer and does not violate a rule. An invalid plan, or a planner that
//! stops, violates the rule of its request.

use serde::Serialize;
use shardwright_vocabulary::{Lesson, limit_names};

use crate::check::{CheckedPlan, check};
use crate::error::{PlannerError, PlannerErrorKind};
use crate::feedback::{Attempt, Feedback};
use crate::hedge;
use crate::lessons;
use crate::plan::Fallback;
use crate::request::Request;
use crate::sandbox::{Answer, LogLine, Planner};

pub mod requests;

use requests::Case;

/// One rule of the conformance test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Stable identifier. The number of a removed rule is not used again.
    pub id: &'static str,
    pub sentence: &'static str,
}

/// The rules, in the order in which they are reported.
pub const RULES: [Rule; 14] = [
    Rule { id: "P1", sentence: "It loads, and describes itself within the sandbox's bounds." },
    Rule { id: "P2", sentence: "The same request gives the same answer twice." },
    Rule { id: "P3", sentence: "Machine code and the portable interpreter give the same answer." },
    Rule { id: "P4", sentence: "It plans a model of one layer." },
    Rule { id: "P5", sentence: "It plans a model of 200 layers." },
    Rule { id: "P6", sentence: "If the cost table lacks rows, it plans around the gaps, or refuses." },
    Rule { id: "P7", sentence: "It plans if all times are very uncertain." },
    Rule { id: "P8", sentence: "It refuses goals and limits that contradict each other." },
    Rule { id: "P9", sentence: "With an unknown option, it returns a valid plan, or refuses." },
    Rule { id: "P10", sentence: "With extreme numbers and names, it returns a valid plan, or refuses." },
    Rule { id: "P11", sentence: "After a refusal for a limit, `revise` returns another plan, or refuses." },
    Rule { id: "P12", sentence: "It never traps." },
    Rule { id: "P13", sentence: "It stays within the bounds of fuel, memory, output and log." },
    Rule { id: "P14", sentence: "It plans a hedge within its limits and without hedges, or refuses." },
];

/// Number of layers of the large model.
const MANY: u32 = 200;

/// Verdict on a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleVerdict {
    /// The planner met the rule.
    Held,
    /// The planner violated the rule.
    Broken,
    /// The rule could not be tested.
    NotApplicable,
}

impl RuleVerdict {
    /// Returns the verdict in words, for people.
    pub const fn name(self) -> &'static str {
        match self {
            RuleVerdict::Held => "held",
            RuleVerdict::Broken => "broken",
            RuleVerdict::NotApplicable => "not applicable",
        }
    }
}

/// A rule with its verdict and the observations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleReport {
    /// Stable identifier, as in [`Rule::id`].
    pub id: &'static str,
    pub rule: &'static str,
    pub verdict: RuleVerdict,
    /// Observations, with the requests by name.
    pub seen: String,
}

/// The maximum use of a bound by one call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MostUsed {
    pub used: u64,
    /// Value of the bound.
    pub limit: u64,
    /// Name of the request with this use.
    pub request: String,
}

/// Outcome of a conformance test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Conformance {
    /// Every rule of [`RULES`], in order.
    pub rules: Vec<RuleReport>,
    /// Fuel of the most expensive call. `None` if the planner was not called.
    pub fuel: Option<MostUsed>,
    /// Memory of the largest call, in bytes. `None` if the planner was not called.
    pub memory: Option<MostUsed>,
}

impl Conformance {
    /// Returns the number of rules with this verdict.
    pub fn count(&self, verdict: RuleVerdict) -> usize {
        self.rules.iter().filter(|rule| rule.verdict == verdict).count()
    }

    /// Returns whether no rule is violated.
    pub fn holds(&self) -> bool {
        self.count(RuleVerdict::Broken) == 0
    }

    /// Returns the outcome for a planner that stopped while it described itself: the first rule is
    /// violated and the others do not apply. Returns `None` if loading failed before that.
    pub fn of_stopped(error: &PlannerError) -> Option<Conformance> {
        stops_in_a_call(&error.kind).then(|| {
            let mut report = Reporter::default();
            report.add(RuleVerdict::Broken, short(&error.kind.to_string()));
            while report.rules.len() < RULES.len() {
                report.add(RuleVerdict::NotApplicable, "the planner did not load".to_owned());
            }
            Conformance { rules: report.rules, fuel: None, memory: None }
        })
    }
}

/// Runs all tests on `planner`, with the model and the targets of `base`, for example [`recorded`].
/// `portable` is the same planner in the portable interpreter, or `None` if `planner` itself runs
/// there.
///
/// [`recorded`]: requests::recorded
pub fn run(planner: &Planner, portable: Option<&Planner>, base: &Request) -> Conformance {
    let mut asked = Asked::new(planner);
    let mut report = Reporter::default();

    let description = planner.description();
    report.add(
        if description.name.is_empty() { RuleVerdict::Broken } else { RuleVerdict::Held },
        format!("`{}` {}, {} options", description.name, description.version, description.options.len()),
    );

    let mut twice = vec![];
    let mut engines = vec![];
    for case in [requests::plain(base), requests::layers(base, MANY)] {
        let first = asked.ask(&case);
        twice.push((case.name, difference(&first, &asked.ask(&case))));
        // The interpreter is slow, so only the plain request is compared.
        if let Some(portable) = portable.filter(|_| engines.is_empty()) {
            let mut there = Asked::new(portable);
            engines.push((case.name, difference(&first, &there.ask(&case))));
        }
    }
    report.differences(&twice);
    match portable {
        Some(_) => report.differences(&engines),
        None => report.add(RuleVerdict::NotApplicable, "the planner runs only in the interpreter".to_owned()),
    }

    let groups = [
        (Wanted::Plan, vec![requests::layers(base, 1)]),
        (Wanted::Plan, vec![requests::layers(base, MANY)]),
        (Wanted::Answer, requests::without_rows(base)),
        (Wanted::Plan, vec![requests::with_wide_times(base)]),
        (Wanted::Answer, requests::contradictory(base)),
        (Wanted::Answer, vec![requests::with_unknown_option(base)]),
        (Wanted::Answer, requests::extreme(base)),
    ];
    for (wanted, group) in groups {
        let outcomes = group.iter().map(|case| (case.name, asked.outcome(case))).collect::<Vec<_>>();
        report.outcomes(&outcomes, wanted);
    }
    report.outcomes(&asked.revise(&requests::plain(base)), Wanted::Answer);
    let hedge = asked.hedge(&requests::plain(base));

    report.stops(&asked, "no call stopped", |kind| stops_in_a_call(kind) && !exceeds_a_bound(kind));
    report.stops(&asked, &asked.spent(), exceeds_a_bound);
    report.outcomes(&hedge, Wanted::Answer);
    Conformance { rules: report.rules, fuel: asked.fuel, memory: asked.memory }
}

fn exceeds_a_bound(kind: &PlannerErrorKind) -> bool {
    matches!(kind, PlannerErrorKind::OverBound(_))
}

fn stops_in_a_call(kind: &PlannerErrorKind) -> bool {
    matches!(kind, PlannerErrorKind::OverBound(_) | PlannerErrorKind::Trapped(_))
}

/// Classified answer of a planner.
enum Outcome {
    Plan(Box<CheckedPlan>),
    Refused(String),
    /// The plan is invalid, or the planner stopped.
    Failed(String),
}

/// Kinds of answer that meet a rule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// Only a plan. If the planner declines, the rule does not apply.
    Plan,
    /// A valid plan or a refusal.
    Answer,
}

/// Classifies the answer to a history, which is empty for a first plan.
fn outcome(answer: Answer, request: &Request, history: &[Attempt]) -> Outcome {
    let fault_of = |lessons: &[Lesson]| lessons::fault_after(lessons, request, history);
    match answer.plan {
        Ok(plan) => match fault_of(&plan.lessons) {
            Some(fault) => Outcome::Failed(format!("invalid plan: {fault}")),
            None => match check(plan, request) {
                Ok(plan) => Outcome::Plan(Box::new(plan)),
                Err(fault) => Outcome::Failed(format!("invalid plan: {fault}")),
            },
        },
        Err(PlannerError { kind, .. }) => match &kind {
            PlannerErrorKind::Refused { lessons, .. } => match fault_of(lessons) {
                Some(fault) => Outcome::Failed(format!("invalid refusal: {fault}")),
                None => Outcome::Refused(kind.to_string()),
            },
            _ => Outcome::Failed(with_last_line(&kind, &answer.log)),
        },
    }
}

/// Formats the reason why a planner stopped, with its last line of log: the log of a panic contains
/// the message.
fn with_last_line(kind: &PlannerErrorKind, log: &[LogLine]) -> String {
    log.last().map_or_else(|| kind.to_string(), |line| format!("{kind}; planner log: {}", line.message))
}

/// Describes the difference of two answers. Returns `None` if they are equal.
fn difference(left: &Answer, right: &Answer) -> Option<String> {
    match (&left.plan, &right.plan) {
        (Ok(left), Ok(right)) => (left.canonical_bytes() != right.canonical_bytes())
            .then(|| format!("{} shards, then a different {}", left.shards.len(), right.shards.len())),
        (Err(left), Err(right)) => {
            let (left, right) = (left.kind.to_string(), right.kind.to_string());
            (left != right).then(|| format!("{left}, then {right}"))
        }
        (Ok(_), Err(error)) => Some(format!("a plan, then {}", error.kind)),
        (Err(error), Ok(_)) => Some(format!("{}, then a plan", error.kind)),
    }
}

/// A planner under test, with the maximum use of its bounds.
struct Asked<'planner> {
    planner: &'planner Planner,
    calls: u32,
    fuel: Option<MostUsed>,
    memory: Option<MostUsed>,
    /// Requests at which the planner stopped, by name, with the reason.
    stopped: Vec<(&'static str, PlannerErrorKind)>,
}

impl<'planner> Asked<'planner> {
    fn new(planner: &'planner Planner) -> Self {
        Self { planner, calls: 0, fuel: None, memory: None, stopped: vec![] }
    }

    fn ask(&mut self, case: &Case) -> Answer {
        let answer = self.planner.make_plan(&case.request);
        self.note(case.name, &answer);
        answer
    }

    fn outcome(&mut self, case: &Case) -> Outcome {
        outcome(self.ask(case), &case.request, &[])
    }

    /// Tests revisions of a plan whose largest shard was refused, and returns their outcomes by
    /// name.
    fn revise(&mut self, case: &Case) -> Vec<(&'static str, Outcome)> {
        let plan = match self.outcome(case) {
            Outcome::Plan(plan) => plan,
            other => return vec![(case.name, other)],
        };
        let Some((shard, ops)) = (0_u32..)
            .zip(plan.shards())
            .map(|(shard, checked)| (shard, checked.cost.ops))
            .max_by_key(|(shard, ops)| (*ops, std::cmp::Reverse(*shard)))
        else {
            return vec![];
        };
        let tried = plan.into_plan();
        let limits = [("a reported limit", Some(ops / 2)), ("an unreported limit", None)];
        let revision = |(name, max): (&'static str, Option<u64>)| {
            let feedback = vec![Feedback::over_limit(shard, limit_names::OPS, ops, max)];
            let history = [Attempt { plan: tried.clone(), feedback }];
            let answer = self.planner.revise(&case.request, &history);
            self.note(name, &answer);
            if answer.plan.as_ref().is_ok_and(|plan| plan.builds_same(&tried)) {
                return (name, Outcome::Failed("`revise` returned the refused plan".to_owned()));
            }
            (name, outcome(answer, &case.request, &history))
        };
        limits.map(revision).into()
    }

    /// Tests the request for a hedge of a plan, within half the operations of its largest shard.
    fn hedge(&mut self, case: &Case) -> Vec<(&'static str, Outcome)> {
        let plan = match self.outcome(case) {
            Outcome::Plan(plan) => plan,
            other => return vec![(case.name, other)],
        };
        let ops = plan.shards().iter().map(|shard| shard.cost.ops).max().unwrap_or(0);
        let options = &self.planner.description().options;
        let off = options.iter().any(|option| option.name == hedge::OFF.0);
        let hedge = requests::hedge(&case.request, ops / 2, off);
        let outcome = match self.outcome(&hedge) {
            Outcome::Plan(plan) if plan.plan().fallback.iter().any(Fallback::is_hedge) => {
                Outcome::Failed("the plan of a hedge has hedges".to_owned())
            }
            other => other,
        };
        vec![(hedge.name, outcome)]
    }

    fn note(&mut self, name: &'static str, answer: &Answer) {
        self.calls = self.calls.saturating_add(1);
        let bounds = self.planner.bounds();
        let memory = u64::try_from(answer.memory).unwrap_or(u64::MAX);
        let memory_bytes = u64::try_from(bounds.memory_bytes).unwrap_or(u64::MAX);
        let all = [(&mut self.fuel, answer.fuel, bounds.fuel), (&mut self.memory, memory, memory_bytes)];
        for (most, used, limit) in all {
            if most.as_ref().is_none_or(|most| used > most.used) {
                *most = Some(MostUsed { used, limit, request: name.to_owned() });
            }
        }
        if let Err(error) = &answer.plan
            && stops_in_a_call(&error.kind)
        {
            self.stopped.push((name, error.kind.clone()));
        }
    }

    fn spent(&self) -> String {
        let share = |what: &str, most: &Option<MostUsed>| {
            let most = most.as_ref()?;
            let percent = most.used.saturating_mul(1000) / most.limit.max(1);
            Some(format!("{what} {}.{} % (`{}`)", percent / 10, percent % 10, most.request))
        };
        let all = [share("fuel", &self.fuel), share("memory", &self.memory)];
        let all = all.into_iter().flatten().collect::<Vec<_>>().join(", ");
        format!("maximum of {} calls: {all}", self.calls)
    }
}

/// Collects the reports of rules in order.
#[derive(Default)]
struct Reporter {
    rules: Vec<RuleReport>,
}

impl Reporter {
    fn add(&mut self, verdict: RuleVerdict, seen: String) {
        if let Some(Rule { id, sentence }) = RULES.get(self.rules.len()) {
            self.rules.push(RuleReport { id, rule: sentence, verdict, seen });
        }
    }

    fn differences(&mut self, seen: &[(&'static str, Option<String>)]) {
        let broken = seen.iter().find_map(|(name, difference)| Some((name, difference.as_ref()?)));
        match broken {
            Some((name, difference)) => {
                self.add(RuleVerdict::Broken, short(&format!("`{name}`: {difference}")))
            }
            None => self.add(RuleVerdict::Held, format!("{} requests", seen.len())),
        }
    }

    fn outcomes(&mut self, outcomes: &[(&'static str, Outcome)], wanted: Wanted) {
        let failed = outcomes.iter().find(|(_, outcome)| matches!(outcome, Outcome::Failed(_)));
        let refused = outcomes.iter().find(|(_, outcome)| matches!(outcome, Outcome::Refused(_)));
        let seen = |(name, outcome): &(&'static str, Outcome)| match outcome {
            Outcome::Plan(plan) => format!("`{name}`: {} shards", plan.shards().len()),
            Outcome::Refused(why) | Outcome::Failed(why) => short(&format!("`{name}`: {why}")),
        };
        match (failed, refused) {
            (Some(failed), _) => self.add(RuleVerdict::Broken, seen(failed)),
            (None, Some(refused)) if wanted == Wanted::Plan => {
                self.add(RuleVerdict::NotApplicable, seen(refused));
            }
            _ => {
                let plans =
                    outcomes.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Plan(_))).count();
                let refusals = outcomes.len() - plans;
                let text = match outcomes {
                    [only] => seen(only),
                    _ => format!("{plans} valid plans, {refusals} refusals"),
                };
                self.add(RuleVerdict::Held, text);
            }
        }
    }

    fn stops(&mut self, asked: &Asked<'_>, otherwise: &str, counts: impl Fn(&PlannerErrorKind) -> bool) {
        match asked.stopped.iter().find(|(_, kind)| counts(kind)) {
            Some((name, kind)) => self.add(RuleVerdict::Broken, short(&format!("`{name}`: {kind}"))),
            None => self.add(RuleVerdict::Held, otherwise.to_owned()),
        }
    }
}

/// Maximum characters of an observation. It can contain a planner's own refusal text.
const SEEN_CHARACTERS: usize = 300;

fn short(text: &str) -> String {
    let mut short: String = text.chars().take(SEEN_CHARACTERS).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
