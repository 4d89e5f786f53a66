//! Gets a checked plan, whatever a planner does: the built-in planner takes over when another
//! fails, the floor when no planner is left, and refused plans are revised a bounded number of
//! times.
//!
//! Mechanism only. The caller finds out whether a plan works by trying it in a callback.

use crate::check::{CheckedPlan, check};
use crate::error::{PlannerError, PlannerErrorKind};
use crate::feedback::{Attempt, Feedback};
use crate::floor::{self, floor};
use crate::plan::Plan;
use crate::request::Request;
use crate::sandbox::{Answer, LogLine, OptionDescription, Planner};
use shardwright_vocabulary::{ErrorKind, Limit, Provenance, limit_names};

/// Who made a plan: a planner, or the [`floor`](floor::NAME) in the version of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedBy {
    /// Name of the planner.
    pub name: String,
    /// Its version.
    pub version: String,
}

impl PlannedBy {
    fn new(planner: &Planner) -> Self {
        let description = planner.description();
        Self { name: description.name.clone(), version: description.version.clone() }
    }

    fn floor() -> Self {
        Self { name: floor::NAME.to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

/// A checked plan with its origin.
#[derive(Debug)]
pub struct Planned {
    /// The plan.
    pub plan: CheckedPlan,
    /// Who made it.
    pub by: PlannedBy,
    /// Why the built-in planner took over from the requested one; the caller must report it. `None`
    /// if it did not.
    pub fallback: Option<PlannerError>,
    /// Why the floor took over from the last planner; the caller must report it. `None` if a
    /// planner planned.
    pub floor: Option<PlannerError>,
    /// What planners logged on the way.
    pub log: Vec<LogLine>,
}

/// The planner asked for and the one that takes over.
#[derive(Debug)]
pub struct PlanningSession {
    asked: Option<Result<Planner, PlannerError>>,
    builtin: Option<Result<Planner, PlannerError>>,
    strict: bool,
}

impl PlanningSession {
    /// Plan with the built-in planner alone.
    pub fn new(builtin: Planner) -> Self {
        Self { asked: None, builtin: Some(Ok(builtin)), strict: false }
    }

    /// Plan with `asked`, even if loading it failed: the failure is then reported like any other.
    /// `builtin` takes over. The floor takes over if it failed to load too, or if there is none.
    pub fn with_planner(
        asked: Result<Planner, PlannerError>,
        builtin: Option<Result<Planner, PlannerError>>,
    ) -> Self {
        Self { asked: Some(asked), builtin, strict: false }
    }

    fn builtin(&self) -> Option<&Planner> {
        self.builtin.as_ref()?.as_ref().ok()
    }

    /// Whether a failure of the planner asked for is an error instead of a reason to fall back. Off
    /// unless set.
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// What the caller must report of how planners were loaded: see [`Planner::load_notice`].
    pub fn load_notices(&self) -> impl Iterator<Item = &str> {
        let asked = self.asked.as_ref().and_then(|asked| asked.as_ref().ok());
        asked.into_iter().chain(self.builtin()).filter_map(Planner::load_notice)
    }

    /// Settings of the planner that is asked first.
    pub fn options(&self) -> impl Iterator<Item = &OptionDescription> {
        let asked = self.asked.as_ref().and_then(|asked| asked.as_ref().ok());
        asked.or(self.builtin()).into_iter().flat_map(|planner| &planner.description().options)
    }

    /// A plan for `request`.
    ///
    /// Errors: the fault of the request; what a planner refused; the error of the planner asked for
    /// if strict; otherwise that of the last planner, if the floor has no plan either.
    pub fn plan(&self, request: &Request) -> Result<Planned, PlannerError> {
        self.next(request, &[], &mut vec![])
    }

    /// A plan of the planner that would be asked, from before; `None` if it does not fit the
    /// request.
    fn planned_before(&self, request: &Request, plan: Plan) -> Option<Planned> {
        request.validate().ok()?;
        let plan = check(plan, request).ok()?;
        let asked = self.asked.as_ref().and_then(|asked| asked.as_ref().ok());
        let by = asked.or(self.builtin()).map_or_else(PlannedBy::floor, PlannedBy::new);
        Some(Planned { plan, by, fallback: None, floor: None, log: Vec::new() })
    }

    /// A plan that no attempt of `history` tried.
    fn next(
        &self,
        request: &Request,
        history: &[Attempt],
        log: &mut Vec<LogLine>,
    ) -> Result<Planned, PlannerError> {
        if let Err(fault) = request.validate() {
            let planner = "none".to_owned();
            return Err(PlannerError {
                planner,
                version: None,
                kind: PlannerErrorKind::Request(Box::new(fault)),
            });
        }
        let planned = |plan, by, fallback, floor, log: &mut Vec<LogLine>| {
            Ok(Planned { plan, by, fallback, floor, log: std::mem::take(log) })
        };
        let mut fallback = None;
        if let Some(asked) = &self.asked {
            let asked = asked.as_ref().map_err(PlannerError::clone);
            match asked.and_then(|planner| Ok((planner, ask(planner, request, history, log)?))) {
                Ok((planner, plan)) => return planned(plan, PlannedBy::new(planner), None, None, log),
                // No other planner must answer a question that this one declined, or take the place
                // of one that the rules of signatures refuse.
                Err(error) if self.strict || is_final(&error.kind) => return Err(error),
                Err(error) => fallback = Some(error),
            }
        }
        let error = match (&self.builtin, fallback.take()) {
            (Some(Ok(planner)), asked) => {
                fallback = asked;
                match ask(planner, request, history, log) {
                    Ok(plan) => return planned(plan, PlannedBy::new(planner), fallback, None, log),
                    // A planner's considered refusal is final; a planner that was stopped need not
                    // prevent a plan.
                    Err(error) if is_answer(&error.kind) => return Err(error),
                    Err(error) => error,
                }
            }
            (Some(Err(error)), asked) => {
                fallback = asked;
                error.clone()
            }
            (None, Some(error)) => error,
            (None, None) => {
                let kind = PlannerErrorKind::Sandbox { reason: "no planner was given".to_owned() };
                return Err(PlannerError { planner: "none".to_owned(), version: None, kind });
            }
        };
        match floor(&taught(request, history)) {
            Ok(plan) if history.iter().any(|attempt| attempt.plan.builds_same(plan.plan())) => Err(error),
            Ok(plan) => planned(plan, PlannedBy::floor(), fallback, Some(error), log),
            Err(floor) => {
                let kind = PlannerErrorKind::NoFloor { kind: Box::new(error.kind), floor: Box::new(floor) };
                Err(PlannerError { kind, ..error })
            }
        }
    }
}

/// Whether a failure of the planner that was asked for ends planning.
fn is_final(kind: &PlannerErrorKind) -> bool {
    matches!(kind, PlannerErrorKind::Refused { .. } | PlannerErrorKind::Trust(_))
}

/// Whether a failure is the planner's answer rather than a sandbox bound or fault.
fn is_answer(kind: &PlannerErrorKind) -> bool {
    matches!(kind, PlannerErrorKind::Refused { .. } | PlannerErrorKind::RepeatedPlan { .. })
}

/// The request with the limits that refused plans showed: the maximum that was told, or half of
/// what was refused. Other refusals teach the floor nothing; its plan is then one that was tried.
fn taught(request: &Request, history: &[Attempt]) -> Request {
    let mut request = request.clone();
    for attempt in history {
        for feedback in &attempt.feedback {
            let detail = |name: &str| {
                let detail = feedback.details.iter().find(|detail| detail.name == name);
                detail.map(|detail| detail.value.trim())
            };
            let number = |name: &str| detail(name)?.parse::<u64>().ok();
            let known = limit_names::ALL.iter().find(|name| Some(**name) == detail("limit"));
            let max = number("max").or_else(|| Some(number("value")? / 2));
            let shard = feedback.shard.and_then(|shard| attempt.plan.shards.get(shard as usize));
            let target = shard.and_then(|shard| request.targets.get_mut(shard.target as usize));
            if let (Some(name), Some(max), Some(target)) = (known, max, target) {
                target.limits.push(Limit::new(*name, max, Provenance::Learned));
            }
        }
    }
    request
}

/// Ask one planner, check what it says, and refuse what was tried before.
fn ask(
    planner: &Planner,
    request: &Request,
    history: &[Attempt],
    log: &mut Vec<LogLine>,
) -> Result<CheckedPlan, PlannerError> {
    let Answer { plan, log: lines, .. } =
        if history.is_empty() { planner.make_plan(request) } else { planner.revise(request, history) };
    log.extend(lines);
    let plan = plan?;
    if let Some(position) = history.iter().position(|attempt| attempt.plan.builds_same(&plan)) {
        return Err(planner.error(PlannerErrorKind::RepeatedPlan { attempt: position + 1 }));
    }
    check(plan, request).map_err(|fault| planner.error(PlannerErrorKind::Plan(Box::new(fault))))
}

/// What trying a plan came to.
#[derive(Debug)]
pub enum Trial<T> {
    /// It works; this is what came of it.
    Accepted(T),
    /// It does not; this is why.
    Refused(Vec<Feedback>),
}

/// A plan that works, and how it was found.
#[derive(Debug)]
pub struct Settled<T> {
    /// What the trial returned.
    pub result: T,
    /// The plan, who made it, and whether it is a fallback.
    pub planned: Planned,
    /// The attempts before it, oldest first.
    pub history: Vec<Attempt>,
}

/// Why the loop ended without a plan that works.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoopError<E> {
    /// No planner has another plan. The history says what was tried.
    Planner {
        /// The error.
        error: Box<PlannerError>,
        /// The attempts, oldest first.
        history: Vec<Attempt>,
    },
    /// Every round was used up.
    Rounds {
        /// Rounds allowed.
        rounds: usize,
        /// The attempts, oldest first.
        history: Vec<Attempt>,
    },
    /// The trial itself failed, for a reason no plan can change.
    Trial(E),
}

impl<E> LoopError<E> {
    /// What would help, for a `help:` line.
    pub fn help(&self) -> Option<String> {
        if self.last().is_some_and(|feedback| feedback.drift_per_mille.is_some()) {
            let wider = "offer wider formats with `--formats`, or leave it to the CPU with `--on cpu`";
            return Some(wider.to_owned());
        }
        match self {
            LoopError::Planner { error, .. } => error.help(),
            LoopError::Rounds { .. } => {
                Some("`--limit NAME=VALUE` tells the planner what the refusals did not".to_owned())
            }
            LoopError::Trial(_) => None,
        }
    }

    /// The first outcome of the last attempt.
    fn last(&self) -> Option<&Feedback> {
        self.history().last()?.feedback.first()
    }

    /// The attempts, oldest first.
    pub fn history(&self) -> &[Attempt] {
        match self {
            LoopError::Planner { history, .. } | LoopError::Rounds { history, .. } => history,
            LoopError::Trial(_) => &[],
        }
    }
}

impl<E: std::fmt::Display> std::fmt::Display for LoopError<E> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LoopError::Planner { error, history } if history.is_empty() => error.fmt(formatter),
            LoopError::Planner { error, history } => {
                write!(formatter, "{error} (after {} attempts)", history.len())?;
                self.last().map_or(Ok(()), |feedback| write!(formatter, "; last: {}", feedback.message))
            }
            LoopError::Rounds { rounds, .. } => {
                write!(formatter, "no plan works after {rounds} rounds")?;
                self.last().map_or(Ok(()), |feedback| write!(formatter, "; last: {}", feedback.message))
            }
            LoopError::Trial(error) => error.fmt(formatter),
        }
    }
}

impl<E: std::fmt::Debug + std::fmt::Display> std::error::Error for LoopError<E> {}

/// Plan, try, revise, a bounded number of times.
#[derive(Debug)]
pub struct RevisionLoop<'session> {
    session: &'session PlanningSession,
    rounds: usize,
    before: Vec<Attempt>,
    first: Option<Plan>,
}

/// Default number of rounds: halving a limit eight times reaches a 256th of it.
const ROUNDS: usize = 10;
/// Longest part of a refusal passed on to a planner; compilers can be verbose.
const MESSAGE_BYTES: usize = 4096;

impl<'session> RevisionLoop<'session> {
    /// A loop of at most ten rounds.
    pub fn new(session: &'session PlanningSession) -> Self {
        Self { session, rounds: ROUNDS, before: Vec::new(), first: None }
    }

    /// At most so many rounds; at least one.
    #[must_use]
    pub fn rounds(mut self, rounds: usize) -> Self {
        self.rounds = rounds.max(1);
        self
    }

    /// Goes on after these attempts, oldest first. They count as rounds.
    #[must_use]
    pub fn after(mut self, attempts: Vec<Attempt>) -> Self {
        self.before = attempts;
        self
    }

    /// Begins with this plan, which was made for the same request before, and asks no planner for
    /// it. A plan that does not pass the check is left out.
    #[must_use]
    pub fn first(mut self, plan: Option<Plan>) -> Self {
        self.first = plan;
        self
    }

    /// Plan and `attempt` until a plan is accepted. Every revision sees the whole history; a plan
    /// that was tried before is an error of its planner, after which the built-in one takes over
    /// with the same history.
    pub fn run<T, E>(
        &self,
        request: &Request,
        mut attempt: impl FnMut(&Planned) -> Result<Trial<T>, E>,
    ) -> Result<Settled<T>, LoopError<E>> {
        let mut history = self.before.clone();
        let mut first = self.first.clone().and_then(|plan| self.session.planned_before(request, plan));
        for _ in history.len()..self.rounds {
            let next = match first.take() {
                Some(planned) => Ok(planned),
                None => self.session.next(request, &history, &mut vec![]),
            };
            let planned = match next {
                Ok(planned) => planned,
                Err(error) => return Err(LoopError::Planner { error: Box::new(error), history }),
            };
            match attempt(&planned).map_err(LoopError::Trial)? {
                Trial::Accepted(result) => return Ok(Settled { result, planned, history }),
                Trial::Refused(feedback) => {
                    history.push(Attempt { plan: planned.plan.into_plan(), feedback: tidy(feedback) });
                }
            }
        }
        Err(LoopError::Rounds { rounds: self.rounds, history })
    }
}

/// Feedback as a planner gets it: never empty, no message of unbounded length.
fn tidy(mut feedback: Vec<Feedback>) -> Vec<Feedback> {
    if feedback.is_empty() {
        feedback.push(Feedback {
            shard: None,
            class: Some(shardwright_vocabulary::ErrorClass::Internal),
            message: "refused without a reason".to_owned(),
            details: vec![],
            times: vec![],
            drift_per_mille: None,
        });
    }
    for entry in &mut feedback {
        let end = (0..=MESSAGE_BYTES.min(entry.message.len())).rev();
        let end = end.into_iter().find(|&end| entry.message.is_char_boundary(end)).unwrap_or(0);
        entry.message.truncate(end);
    }
    feedback
}

/// What an application can do about it.
impl From<LoopError<shardwright_vocabulary::Error>> for shardwright_vocabulary::Error {
    fn from(error: LoopError<shardwright_vocabulary::Error>) -> Self {
        match error {
            LoopError::Trial(error) => error,
            LoopError::Planner { error, history } if history.is_empty() => (*error).into(),
            error => {
                let help = error.help();
                shardwright_vocabulary::Error::caused_by(ErrorKind::Planning, error, help)
            }
        }
    }
}
