//! Gets a checked plan even if planners fail. The built-in planner takes over if another fails, and
//! the floor takes over if no planner is left. Refused plans are revised a bounded number of times.
//!
//! This module is only mechanism: the caller tries each plan in a callback to find out whether it
//! works.

use crate::check::{self, CheckedPlan, check};
use crate::error::{PlannerError, PlannerErrorKind};
use crate::feedback::{Attempt, Feedback};
use crate::floor::{self, floor};
use crate::lessons;
use crate::plan::Plan;
use crate::request::Request;
use crate::sandbox::{Answer, LogLine, OptionDescription, Planner};
use shardwright_vocabulary::{At, Error, ErrorKind, Lesson};

/// Author of a plan: a planner, or the [`floor`](floor::NAME) in the version of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedBy {
    /// Name of the planner.
    pub name: String,
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
    pub plan: CheckedPlan,
    /// Author of the plan.
    pub by: PlannedBy,
    /// Why the built-in planner took over from the requested one. The caller must report it. `None`
    /// if it did not.
    pub fallback: Option<PlannerError>,
    /// Why the floor took over from the last planner. The caller must report it. `None` if a
    /// planner made the plan.
    pub floor: Option<PlannerError>,
    /// Log of all planners that were called.
    pub log: Vec<LogLine>,
}

/// The requested planner and the one that takes over.
#[derive(Debug)]
pub struct PlanningSession {
    asked: Option<Result<Planner, PlannerError>>,
    builtin: Option<Result<Planner, PlannerError>>,
    strict: bool,
}

impl PlanningSession {
    /// Creates a session with only the built-in planner.
    pub fn new(builtin: Planner) -> Self {
        Self { asked: None, builtin: Some(Ok(builtin)), strict: false }
    }

    /// Creates a session with the planner `asked`, even if loading it failed: that failure is
    /// reported like any other. `builtin` takes over from it. The floor takes over if `builtin`
    /// failed to load too, or is `None`.
    pub fn with_planner(
        asked: Result<Planner, PlannerError>,
        builtin: Option<Result<Planner, PlannerError>>,
    ) -> Self {
        Self { asked: Some(asked), builtin, strict: false }
    }

    /// Returns whether the built-in planner is called first.
    pub fn is_built_in(&self) -> bool {
        self.asked.is_none()
    }

    fn builtin(&self) -> Option<&Planner> {
        self.builtin.as_ref()?.as_ref().ok()
    }

    /// Returns the planner that is called first, or `None` if none could be loaded.
    pub fn first(&self) -> Option<&Planner> {
        let asked = self.asked.as_ref().and_then(|asked| asked.as_ref().ok());
        asked.or(self.builtin())
    }

    /// Sets whether a failure of the requested planner is an error instead of a reason to fall
    /// back. Default: off.
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Returns notices about loading planners that the caller must report, see
    /// [`Planner::load_notice`].
    pub fn load_notices(&self) -> impl Iterator<Item = &str> {
        let asked = self.asked.as_ref().and_then(|asked| asked.as_ref().ok());
        asked.into_iter().chain(self.builtin()).filter_map(Planner::load_notice)
    }

    /// Returns the options of the planner that is called first.
    pub fn options(&self) -> impl Iterator<Item = &OptionDescription> {
        self.first().into_iter().flat_map(|planner| &planner.description().options)
    }

    /// Makes a plan for `request`.
    ///
    /// # Errors
    ///
    /// Returns the fault of the request, a planner's refusal, or under `strict` the error of the
    /// requested planner. Otherwise fails only if the floor has no plan either, with the error of
    /// the last planner.
    pub fn plan(&self, request: &Request) -> Result<Planned, PlannerError> {
        self.next(request, &[], &mut vec![])
    }

    /// Presents an earlier plan as one of the planner that would be called. Returns `None` if the
    /// plan does not fit the request.
    fn planned_before(&self, request: &Request, plan: Plan) -> Option<Planned> {
        request.validate().ok()?;
        let plan = check(plan, request).ok()?;
        let by = self.first().map_or_else(PlannedBy::floor, PlannedBy::new);
        Some(Planned { plan, by, fallback: None, floor: None, log: Vec::new() })
    }

    /// Makes a plan that no attempt of `history` has tried.
    fn next(
        &self,
        request: &Request,
        history: &[Attempt],
        log: &mut Vec<LogLine>,
    ) -> Result<Planned, PlannerError> {
        if let Err(fault) = request.validate() {
            return Err(without_planner(PlannerErrorKind::Request(fault)));
        }
        let planned = |plan, by, fallback, floor, log: &mut Vec<LogLine>| {
            Ok(Planned { plan, by, fallback, floor, log: std::mem::take(log) })
        };
        let mut fallback = None;
        if let Some(asked) = &self.asked {
            let asked = asked.as_ref().map_err(PlannerError::clone);
            match asked.and_then(|planner| Ok((planner, ask(planner, request, history, log)?))) {
                Ok((planner, plan)) => return planned(plan, PlannedBy::new(planner), None, None, log),
                // Another planner must not take over if this one declined, or if the signature
                // policy refuses it.
                Err(error) if self.strict || is_final(&error.kind) => return Err(error),
                Err(error) => fallback = Some(error),
            }
        }
        let error = match (&self.builtin, fallback.take()) {
            (Some(Ok(planner)), asked) => {
                fallback = asked;
                match ask(planner, request, history, log) {
                    Ok(plan) => return planned(plan, PlannedBy::new(planner), fallback, None, log),
                    // A planner's deliberate refusal is final. A planner that was stopped need not
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
            (None, None) => return Err(without_planner(Error::internal("no planner was given").into())),
        };
        let lessons = lessons::without_planner(history);
        match floor(&lessons::taught(request, &lessons)) {
            Ok(plan) if history.iter().any(|attempt| attempt.plan.builds_same(plan.plan())) => Err(error),
            Ok(plan) => planned(plan.with_lessons(lessons), PlannedBy::floor(), fallback, Some(error), log),
            Err(refusal) => {
                let more = format!("planning without a planner failed too: {refusal}");
                let both = Error::from(error.kind).with_more(more);
                let both = refusal.help().into_iter().fold(both, Error::with_help);
                Err(PlannerError { kind: both.with_kind(ErrorKind::Planning).into(), ..error })
            }
        }
    }
}

/// Creates the error of planning that calls no planner.
fn without_planner(kind: PlannerErrorKind) -> PlannerError {
    PlannerError { planner: "none".to_owned(), version: None, kind }
}

/// Returns whether this failure of the requested planner ends planning.
fn is_final(kind: &PlannerErrorKind) -> bool {
    matches!(kind, PlannerErrorKind::Refused { .. } | PlannerErrorKind::Trust(_))
}

/// Returns whether a failure is the planner's answer rather than a bound or fault of the sandbox.
fn is_answer(kind: &PlannerErrorKind) -> bool {
    matches!(kind, PlannerErrorKind::Refused { .. } | PlannerErrorKind::RepeatedPlan { .. })
}

/// Calls one planner and checks its plan and lessons. Refuses plans that were tried before.
fn ask(
    planner: &Planner,
    request: &Request,
    history: &[Attempt],
    log: &mut Vec<LogLine>,
) -> Result<CheckedPlan, PlannerError> {
    let Answer { plan, log: lines, .. } =
        if history.is_empty() { planner.make_plan(request) } else { planner.revise(request, history) };
    log.extend(lines);
    let lessons: &[Lesson] = match &plan {
        Ok(plan) => &plan.lessons,
        Err(PlannerError { kind: PlannerErrorKind::Refused { lessons, .. }, .. }) => lessons,
        Err(_) => &[],
    };
    if let Some(fault) = lessons::fault_after(lessons, request, history) {
        return Err(planner.error(check::fault(fault)));
    }
    let plan = plan?;
    if let Some(position) = history.iter().position(|attempt| attempt.plan.builds_same(&plan)) {
        return Err(planner.error(PlannerErrorKind::RepeatedPlan { attempt: position + 1 }));
    }
    check(plan, request).at("plan").map_err(|fault| planner.error(fault))
}

/// Outcome of trying a plan.
#[derive(Debug)]
pub enum Trial<T> {
    /// The plan works, with this result.
    Accepted(T),
    /// The plan does not work, for these reasons.
    Refused(Vec<Feedback>),
}

/// A plan that works, and its history.
#[derive(Debug)]
pub struct Settled<T> {
    /// Result of the trial.
    pub result: T,
    /// The plan, its author, and whether it is a fallback.
    pub planned: Planned,
    /// Earlier attempts, oldest first.
    pub history: Vec<Attempt>,
}

/// Why the loop ended without a working plan.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoopError<E> {
    /// No planner has another plan. The history contains the attempts.
    Planner {
        error: Box<PlannerError>,
        /// Attempts, oldest first.
        history: Vec<Attempt>,
    },
    /// All rounds were used up.
    Rounds {
        /// Maximum number of rounds.
        rounds: usize,
        /// Attempts, oldest first.
        history: Vec<Attempt>,
    },
    /// The trial itself failed, for a reason that no plan can change.
    Trial(E),
}

impl<E> LoopError<E> {
    /// Returns advice for a `help:` line.
    pub fn help(&self) -> Option<String> {
        if self.last().is_some_and(|feedback| feedback.drift_per_mille.is_some()) {
            let wider = "offer wider formats with `--formats`, or run the model on the CPU with `--on cpu`";
            return Some(wider.to_owned());
        }
        match self {
            LoopError::Planner { error, .. } => error.help(),
            LoopError::Rounds { .. } => {
                Some("set the limit that the refusals did not report with `--limit NAME=VALUE`".to_owned())
            }
            LoopError::Trial(_) => None,
        }
    }

    /// Returns the first outcome of the last attempt.
    fn last(&self) -> Option<&Feedback> {
        self.history().last()?.feedback.first()
    }

    /// Returns the attempts, oldest first.
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

/// A bounded loop that plans, tries and revises.
#[derive(Debug)]
pub struct RevisionLoop<'session> {
    session: &'session PlanningSession,
    rounds: usize,
    before: Vec<Attempt>,
    first: Option<Plan>,
}

/// Default number of rounds. Halving a limit eight times reaches a 256th of it.
const ROUNDS: usize = 10;
/// Maximum bytes of a refusal that are passed on to a planner. Messages of compilers can be long.
const MESSAGE_BYTES: usize = 4096;

impl<'session> RevisionLoop<'session> {
    /// Creates a loop of at most ten rounds.
    pub fn new(session: &'session PlanningSession) -> Self {
        Self { session, rounds: ROUNDS, before: Vec::new(), first: None }
    }

    /// Sets the maximum number of rounds, at least one.
    #[must_use]
    pub fn rounds(mut self, rounds: usize) -> Self {
        self.rounds = rounds.max(1);
        self
    }

    /// Continues after these attempts, oldest first. They count as rounds.
    #[must_use]
    pub fn after(mut self, attempts: Vec<Attempt>) -> Self {
        self.before = attempts;
        self
    }

    /// Begins with this plan, which was made earlier for the same request, without calling a
    /// planner. A plan that does not pass the check is ignored.
    #[must_use]
    pub fn first(mut self, plan: Option<Plan>) -> Self {
        self.first = plan;
        self
    }

    /// Plans and calls `attempt` until a plan is accepted. Every revision receives the whole
    /// history. If a planner returns a plan that was tried before, that is its error, and the
    /// built-in planner takes over with the same history.
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

/// Prepares feedback for a planner: never empty, and with messages of limited length.
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

/// Converts to an error for applications, with a kind that they can act on.
impl From<LoopError<Error>> for Error {
    fn from(error: LoopError<Error>) -> Self {
        match error {
            LoopError::Trial(error) => error,
            LoopError::Planner { error, history } if history.is_empty() => (*error).into(),
            error => {
                let help = error.help();
                Error::caused_by(ErrorKind::Planning, error, help)
            }
        }
    }
}
