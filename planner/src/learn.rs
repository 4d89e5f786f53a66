//! Learns from the history of a planning loop, and plans again without repeating a plan.
//!
//! * `limit=NAME value=V max=M` becomes the learned limit NAME ≤ M. Without a maximum it becomes
//!   NAME ≤ V / 2.
//! * A refusal of the whole shard (`unmappable`, `deadline`, or `worker`: the compiler died) halves
//!   the operations of a shard on that target. If the shard cannot be cut, its kind becomes illegal
//!   there.
//! * `unsupported-op` with `layer=N`, or for a shard of one layer, makes that layer's kind illegal
//!   there.
//! * Drift at a place (`component`, `layer`, and if known `role` or `values=states`) bars the
//!   formats of that layer on that target that are not wider at this place. Drift without a place
//!   makes quantised formats illegal for all layers of the shard.
//! * A refusal may concern the entry point that verifies proposed tokens: it names that entry
//!   point, or it names neither an entry point nor a limit and the plan verifies. From then on no
//!   tokens are verified, and the refusal has no other effect.
//! * Measured times correct the cost table.
//! * The plan, or the refusal, lists the limits that refusals showed as its lessons, so that the
//!   host can store them.
//! * Any other failure forbids the shard. A target with two such failures is no longer used.

use crate::names::Named;
use crate::solver::{self, Barred, Budget, Forbidden, Settings, Solution, Speculate, solve};
use crate::table::{CostTable, Prefix, takes_part, units_of};
use crate::{
    Attempt, Cause, Cost, EntryKind, ErrorClass, Feedback, Flag, Lesson, Limit, Plan, Provenance, Reason,
    Refusal, RefusalKind, Relief, Request, Segment, Shard, Support, Target, TimeCost, names,
};

/// Maximum number of plans tried within one revision. Each round forbids one more shard, so more
/// rounds are unlikely to help.
const ROUNDS: usize = 64;

/// A request with everything learned from the history applied to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Learned {
    /// The request with learned limits, illegal rows and corrected times.
    pub request: Request,
    /// The limits that refusals showed, the tightest for each target and name.
    pub lessons: Vec<Lesson>,
    /// Shards that must not be planned again.
    pub forbidden: Vec<Forbidden>,
    /// Format tuples that layers must not have again on a target.
    pub barred: Vec<Barred>,
    /// Whether proposed tokens may be verified.
    pub speculates: bool,
    /// Everything learned, as reasons for the plan.
    pub reasons: Vec<Reason>,
}

/// Solves, or after refusals solves again with everything learned from them.
///
/// # Errors
///
/// The errors of [`solve`], or of [`revise`] with a history that is not empty.
pub fn plan(request: &Request, history: &[Attempt], settings: &Settings) -> Result<Plan, Refusal> {
    if history.is_empty() {
        return Ok(solve(request, settings)?.into_plan(request));
    }
    revise(request, history, settings)
}

/// Plans as if the request had no goals for bytes and times, and returns this plan if it meets
/// them, with the times that the history measured. Otherwise plans without goals for bytes, if
/// there are goals for times too, and then with all goals. So a goal that binds nothing changes no
/// plan.
///
/// `plan` makes a plan for a request after the attempts of a history, with a budget of comparisons,
/// for example with [`plan`]. The requests and histories of its calls may number formats
/// differently. Each of up to three calls has a whole [`Budget`], for which only the fuel of
/// shipped planners surely suffices.
///
/// # Errors
///
/// The errors of `plan` with all goals.
pub fn goals_last(
    request: &Request,
    history: &[Attempt],
    plan: impl Fn(&Request, &[Attempt], Budget) -> Result<Plan, Refusal>,
) -> Result<Plan, Refusal> {
    let learned = |request: &Request, history: &[Attempt]| Learned::new(request, history).request;
    solver::goals_last(request, history, learned, plan)
}

/// Solves again with everything learned from the history. Never returns a plan of the history.
///
/// # Errors
///
/// The errors of [`solve`], and `exhausted` if no untried plan is left.
pub fn revise(request: &Request, history: &[Attempt], settings: &Settings) -> Result<Plan, Refusal> {
    let learned = Learned::new(request, history);
    let lessons = learned.lessons.clone();
    match replan(learned, history, settings) {
        Ok(plan) => Ok(Plan { lessons, ..plan }),
        Err(refusal) => Err(Refusal { lessons, ..refusal }),
    }
}

fn replan(learned: Learned, history: &[Attempt], settings: &Settings) -> Result<Plan, Refusal> {
    let mut settings = settings.clone();
    settings.forbidden.extend(learned.forbidden.iter().cloned());
    settings.barred.extend(learned.barred.iter().copied());
    if !learned.speculates {
        settings.speculate = Speculate::No;
    }
    for _ in 0..ROUNDS {
        let solution =
            solve(&learned.request, &settings).map_err(|refusal| exhausted(refusal, history.len()))?;
        let next = avoid(&solution, history, &settings);
        let mut plan = solution.into_plan(&learned.request);
        if !history.iter().any(|attempt| attempt.plan.builds_same(&plan)) {
            plan.reasons.extend(learned.reasons);
            return Ok(plan);
        }
        match next {
            Some(forbidden) => settings.forbidden.push(forbidden),
            None => break,
        }
    }
    let message = format!("no untried plan is left after {}", attempts(history.len()));
    Err(Refusal::new(RefusalKind::Exhausted, message))
}

fn exhausted(refusal: Refusal, count: usize) -> Refusal {
    if refusal.kind == RefusalKind::InvalidRequest {
        return refusal;
    }
    let message = format!("no plan is left after {}: {}", attempts(count), refusal.message);
    Refusal { kind: RefusalKind::Exhausted, message, ..refusal }
}

fn attempts(count: usize) -> String {
    names::count(count as u64, "attempt")
}

/// Returns the shard of a repeated solution to forbid next: one that was refused, otherwise the
/// largest that is not yet forbidden.
fn avoid(solution: &Solution, history: &[Attempt], settings: &Settings) -> Option<Forbidden> {
    let refused = |shard: &Forbidden| {
        history.iter().any(|attempt| {
            attempt.feedback.iter().any(|feedback| {
                feedback.class.is_some()
                    && shard_of(&attempt.plan, feedback).map(forbid).as_ref() == Some(shard)
            })
        })
    };
    let shards = solution.shards.iter().map(|shard| {
        let key = shard.forbidden();
        (refused(&key), shard.units(), shard.cost.weight_bytes, key)
    });
    shards.filter(|(.., key)| !settings.forbidden.contains(key)).max().map(|(.., key)| key)
}

fn forbid(shard: &Shard) -> Forbidden {
    Forbidden { segments: shard.segments.clone(), target: shard.target, softcap: shard.softcap }
}

fn shard_of<'plan>(plan: &'plan Plan, feedback: &Feedback) -> Option<&'plan Shard> {
    plan.shards.get(feedback.shard? as usize)
}

fn detail<'feedback>(feedback: &'feedback Feedback, name: &str) -> Option<&'feedback str> {
    feedback.details.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

fn number(feedback: &Feedback, name: &str) -> Option<u64> {
    detail(feedback, name)?.trim().parse().ok()
}

/// Returns whether a refusal may be caused by the entry point that verifies proposed tokens: it
/// names that entry point, or neither an entry point nor a limit.
fn concerns_speculation(plan: &Plan, shard: &Shard, feedback: &Feedback) -> bool {
    let Some(speculation) = &plan.speculation else { return false };
    let named = detail(feedback, "entry");
    let own = shard
        .entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::Decode && entry.rows == speculation.rows);
    match named {
        Some(named) => own.into_iter().any(|entry| names::entry(*entry) == named),
        None => detail(feedback, "limit").is_none(),
    }
}

/// Returns the known effects of flags on a limit after a shard compiled with `flags` was refused:
/// these flags did not raise the limit.
fn relief_after(target: &Target, flags: &[Flag], name: &str) -> Vec<Relief> {
    let mut known: Vec<Relief> = Vec::new();
    for relief in target.limits.iter().filter(|limit| limit.name == name).flat_map(|limit| &limit.relief) {
        if known.iter().any(|existing| existing.flag == relief.flag) {
            continue;
        }
        known.push(match flags.contains(&relief.flag) {
            true => Relief {
                value: None,
                note: "a shard that was compiled with it was refused".to_owned(),
                ..relief.clone()
            },
            false => relief.clone(),
        });
    }
    known
}

impl Learned {
    /// Learns everything from the history.
    pub fn new(request: &Request, history: &[Attempt]) -> Self {
        let mut learned = Self {
            request: request.clone(),
            lessons: vec![],
            forbidden: vec![],
            barred: vec![],
            speculates: true,
            reasons: vec![],
        };
        let mut failures = vec![0_u32; request.targets.len()];
        for attempt in history {
            for feedback in &attempt.feedback {
                learned.read(attempt, feedback, &mut failures);
            }
        }
        learned
    }

    fn read(&mut self, attempt: &Attempt, feedback: &Feedback, failures: &mut [u32]) {
        let Some(shard) = shard_of(&attempt.plan, feedback) else { return };
        if shard.target as usize >= self.request.targets.len() {
            return;
        }
        self.correct_times(shard, feedback);
        match feedback.class {
            None => self.read_drift(shard, feedback),
            Some(class) if concerns_speculation(&attempt.plan, shard, feedback) => {
                let first = std::mem::replace(&mut self.speculates, false);
                if first {
                    let choice = "no proposals (learned)".to_owned();
                    self.note(class, choice, format!("a plan with them was refused: {}", feedback.message));
                }
            }
            Some(class) => {
                self.forbidden.push(forbid(shard));
                if let Some(name) = detail(feedback, "limit") {
                    self.read_limit(shard, feedback, class, name);
                    return;
                }
                match class {
                    ErrorClass::ResourceLimit | ErrorClass::Unmappable | ErrorClass::Deadline => {
                        self.refused_as_a_whole(shard, class, feedback);
                    }
                    ErrorClass::UnsupportedOp => self.read_unsupported(shard, feedback),
                    _ => {
                        failures[shard.target as usize] += 1;
                        if failures[shard.target as usize] >= 2 {
                            self.give_up_target(shard.target, class);
                        }
                    }
                }
            }
        }
    }

    fn note(&mut self, class: ErrorClass, choice: String, because: String) {
        let cause = Cause::Feedback(class.name().to_owned());
        self.reasons.push(Reason { shard: None, choice, because, cause });
    }

    fn learn_limit(&mut self, shard: &Shard, class: ErrorClass, name: &str, value: u64, because: String) {
        let target = &mut self.request.targets[shard.target as usize];
        let choice = format!("{}: {name} ≤ {} (learned)", target.name, names::quantity(name, value));
        let relief = relief_after(target, &shard.flags, name);
        target.limits.push(Limit {
            name: name.to_owned(),
            value,
            provenance: Provenance::Learned,
            note: because.clone(),
            relief,
        });
        self.note(class, choice, because);
    }

    /// Adds a lesson, unless a tighter one is known.
    fn teach(&mut self, target: u32, limit: &str, value: u64, because: &str) {
        let lesson = Lesson { target, limit: limit.to_owned(), value, because: because.to_owned() };
        let is_same = |own: &&mut Lesson| own.target == target && own.limit == limit;
        match self.lessons.iter_mut().find(is_same) {
            Some(known) if known.value <= value => {}
            Some(known) => *known = lesson,
            None => self.lessons.push(lesson),
        }
    }

    fn read_limit(&mut self, shard: &Shard, feedback: &Feedback, class: ErrorClass, name: &str) {
        let planned = self.planned(shard, name, detail(feedback, "entry"));
        let value = number(feedback, "value").or(planned);
        let Some(planned) = planned else {
            // This planner cannot compute the limited quantity, so it can only try smaller shards.
            self.refused_as_a_whole(shard, class, feedback);
            return;
        };
        // The compiler's count may differ from the table's. The learned limit uses the table's
        // count: scaled by the ratio of the two, and always below the refused count.
        let refused = value.unwrap_or(planned).max(1);
        let (limit, because) = match number(feedback, "max") {
            Some(max) => {
                let scaled = u128::from(planned) * u128::from(max) / u128::from(refused);
                let scaled = u64::try_from(scaled).unwrap_or(u64::MAX);
                let [refused, max] = names::apart(name, [refused, max]);
                let because = format!("{refused} was refused, the maximum is {max}");
                (scaled.min(planned.saturating_sub(1)), because)
            }
            None => {
                let refused = names::quantity(name, refused);
                (planned / 2, format!("{refused} was refused without a maximum, trying half of it"))
            }
        };
        self.teach(shard.target, name, limit, &because);
        self.learn_limit(shard, class, name, limit, because);
    }

    /// Returns the limited quantity of this shard according to the table. Operations and times are
    /// of the refused entry point if the refusal names it, otherwise of the largest.
    fn planned(&self, shard: &Shard, name: &str, entry: Option<&str>) -> Option<u64> {
        let cost = self.cost(shard, entry)?;
        match name {
            "ops" => Some(cost.ops),
            "weight-bytes" => Some(cost.weight_bytes),
            "artefact-bytes" => Some(cost.artefact_bytes),
            "context-bytes" => Some(cost.context_bytes()),
            "call-microseconds" => Some(cost.longest_run),
            _ => None,
        }
    }

    fn cost(&self, shard: &Shard, entry: Option<&str>) -> Option<crate::table::RangeCost> {
        let table = CostTable::new(&self.request);
        let entries = shard.entries.clone();
        let named: Vec<_> =
            entries.iter().copied().filter(|known| Some(names::entry(*known).as_str()) == entry).collect();
        let entries = if named.is_empty() { entries } else { named };
        let units = self.formatted(shard);
        if units.is_empty() {
            return None;
        }
        let prefix = Prefix::of_units(&self.request, &table, &units, shard.target, &entries);
        Some(prefix.sum(0, units.len()))
    }

    /// Returns the kind and format tuple of each unit of a shard.
    fn formatted(&self, shard: &Shard) -> Vec<(u32, u32)> {
        units_of(&self.request, &shard.segments, shard.softcap)
    }

    fn refused_as_a_whole(&mut self, shard: &Shard, class: ErrorClass, feedback: &Feedback) {
        if let &[unit] = &self.formatted(shard)[..] {
            self.forbid_units(shard, &[unit], class, &feedback.message);
            return;
        }
        let ops = self.planned(shard, "ops", None).unwrap_or(0);
        let because = match detail(feedback, "worker") {
            Some(end) => {
                format!("the process that compiled a shard of {ops} operations {end}, trying half as many")
            }
            None => format!("a shard of {ops} operations was refused as a whole, trying half as many"),
        };
        // Other causes, such as a deadline or a crash, do not show a limit.
        let is_limit = class == ErrorClass::Unmappable
            && ["worker", "limit"].iter().all(|name| detail(feedback, name).is_none());
        if is_limit {
            self.teach(shard.target, "ops", ops / 2, &because);
        }
        self.learn_limit(shard, class, "ops", ops / 2, because);
    }

    fn read_unsupported(&mut self, shard: &Shard, feedback: &Feedback) {
        let units = self.formatted(shard);
        let layer = number(feedback, "layer").and_then(|layer| u32::try_from(layer).ok());
        // In a shard of several components, names of nodes are prefixed with the component.
        let component = detail(feedback, "node").and_then(|node| node.split_once('/'));
        let component = component.and_then(|(name, _)| self.request.component_named(name));
        let is_named = |segment: &Segment| match layer {
            Some(layer) => (segment.first..segment.end).contains(&layer),
            None => segment.end == 0 && Some(segment.component) == component,
        };
        let mut before = 0;
        let named = shard.segments.iter().find_map(|segment| {
            let at = before + (layer.unwrap_or(0).saturating_sub(segment.first)) as usize;
            before += segment.formats.len();
            is_named(segment).then(|| units.get(at).copied())?
        });
        let single = (units.len() == 1).then(|| units[0]);
        let class = ErrorClass::UnsupportedOp;
        match named.or(single) {
            Some(unit) => self.forbid_units(shard, &[unit], class, &feedback.message),
            None => self.refused_as_a_whole(shard, class, feedback),
        }
    }

    fn read_drift(&mut self, shard: &Shard, feedback: &Feedback) {
        let Some(drift) = feedback.drift_per_mille else { return };
        if let Some((place, tuple)) = self.place(shard, feedback) {
            self.raise(shard, place, tuple, feedback, drift);
            return;
        }
        // The width of floats is not the cause of their drift, so only this shard is avoided.
        let units = self.formatted(shard);
        let is_lossy = |&(_, formats): &(u32, u32)| {
            self.request.weight_formats_of(formats).any(|format| !format.is_float())
        };
        let lossy: Vec<(u32, u32)> = units.into_iter().filter(is_lossy).collect();
        if lossy.is_empty() {
            self.forbidden.push(forbid(shard));
        } else {
            let why = format!("its results are off by {drift} thousandths");
            self.forbid_units(shard, &lossy, ErrorClass::Internal, &why);
        }
    }

    /// Returns the component and unit that drifted, and its format tuple.
    fn place(&self, shard: &Shard, feedback: &Feedback) -> Option<((u32, u32), u32)> {
        let component = self.request.component_named(detail(feedback, "component")?)?;
        let segment = shard.segments.iter().find(|segment| segment.component == component)?;
        let unit = match segment.end {
            0 => 0,
            end => {
                let layer = u32::try_from(number(feedback, "layer")?).ok()?;
                (segment.first..end).contains(&layer).then_some(layer)?
            }
        };
        let tuple = *segment.formats.get((unit - segment.first) as usize)?;
        Some(((component, unit), tuple))
    }

    /// Bars every tuple that is not wider than the current one at the place that drifted. If the
    /// drift names neither a role nor values, a wider tuple must be wider in all of its weights, or
    /// in its activations.
    fn raise(
        &mut self,
        shard: &Shard,
        (component, unit): (u32, u32),
        had: u32,
        feedback: &Feedback,
        drift: u32,
    ) {
        let (role, values) = (detail(feedback, "role"), detail(feedback, "values"));
        let states = values == Some("states");
        let count = u32::try_from(self.request.formats.len()).unwrap_or(u32::MAX);
        let target = shard.target;
        let barred: Vec<Barred> = (0..count)
            .filter(|&tuple| !self.is_wider(tuple, had, role, values))
            .map(|formats| Barred { component, unit, target, formats })
            .collect();
        self.barred.extend(barred);

        let request = &self.request;
        let component = &request.model.components[component as usize];
        let mut place = component.name.clone();
        if component.layer_count() > 0 {
            place.push_str(&format!(" layer {unit}"));
        }
        let of = match (values, role) {
            (Some("states"), _) => "wider states",
            (_, Some(_)) => "wider weights or activations",
            (Some("activations"), None) => "wider activations",
            (_, None) => "wider formats",
        };
        let of = role.filter(|_| !states).map_or(of.to_owned(), |role| format!("{of} of {role}"));
        let target = &request.targets[target as usize].name;
        let choice = format!("{place}: {of} than in {} on {target}", request.formats_name(had));
        let because = match drift {
            u32::MAX => "its results are off without bound".to_owned(),
            _ => format!("its results are off by {drift} thousandths"),
        };
        self.note(ErrorClass::Internal, choice, because);
    }

    fn is_wider(&self, tuple: u32, had: u32, role: Option<&str>, values: Option<&str>) -> bool {
        let request = &self.request;
        let bits = |list: &[crate::Format], index: u32| list.get(index as usize).map_or(0, |f| f.bits);
        let of = |tuple: u32| &request.formats[tuple as usize];
        if had as usize >= request.formats.len() {
            return tuple != had;
        }
        if values == Some("states") {
            let width = |tuple: u32| bits(&request.state_formats, of(tuple).states);
            return width(tuple) > width(had);
        }
        let activations = |tuple: u32| bits(&request.activation_formats, of(tuple).activations);
        let weights = |tuple: u32, role: &str| bits(&request.weight_formats, of(tuple).weight(role));
        let roles = || of(tuple).roles.iter().chain(&of(had).roles).map(|entry| entry.role.as_str());
        activations(tuple) > activations(had)
            || match (role, values) {
                (Some(role), _) => weights(tuple, role) > weights(had, role),
                // No weights are multiplied there.
                (None, Some("activations")) => false,
                // The empty role selects the format of all roles without an exception.
                (None, _) => roles().chain([""]).all(|role| weights(tuple, role) > weights(had, role)),
            }
    }

    /// Makes pairs of a kind and a format tuple illegal on the target of a shard.
    fn forbid_units(&mut self, shard: &Shard, units: &[(u32, u32)], class: ErrorClass, why: &str) {
        for cost in self.request.costs.iter_mut().filter(|cost| cost.target == shard.target) {
            if units.contains(&(cost.kind, cost.formats)) {
                cost.support = Support::Illegal(format!("refused before: {why}"));
            }
        }
        let target = self.request.targets[shard.target as usize].name.clone();
        let mut formats: Vec<String> =
            units.iter().map(|&(_, formats)| self.request.formats_name(formats)).collect();
        formats.sort();
        formats.dedup();
        let formats = formats.join(", ");
        let of = |segment: &Segment| match (
            segment.end,
            self.request.model.components.get(segment.component as usize),
        ) {
            (0, Some(component)) => component.name.clone(),
            _ => format!("kinds of layers {}..{}", segment.first, segment.end),
        };
        let what: Vec<String> = shard.segments.iter().map(of).collect();
        self.note(class, format!("not {formats} on {target} for {}", what.join(", ")), why.to_owned());
    }

    fn give_up_target(&mut self, target: u32, class: ErrorClass) {
        for cost in self.request.costs.iter_mut().filter(|cost| cost.target == target) {
            cost.support = Support::Illegal(format!("given up after repeated {}", class.name()));
        }
        let name = self.request.targets[target as usize].name.clone();
        self.note(
            class,
            format!("no more shards on {name}"),
            format!("the target failed twice, last with {}", class.name()),
        );
    }

    /// Scales the times of the shard's kinds so that their sum is the measured time. Other times of
    /// this target and entry point are scaled by the same factor, unless they were measured.
    /// Otherwise formats that have not run yet would look faster than the measured ones.
    fn correct_times(&mut self, shard: &Shard, feedback: &Feedback) {
        for measured in &feedback.times {
            let units = self.formatted(shard);
            let table = CostTable::new(&self.request);
            let mut predicted = 0_u128;
            let mut layers = 0_u128;
            for &(kind, formats) in &units {
                if !takes_part(&self.request, kind, measured.entry) {
                    continue;
                }
                layers += 1;
                let row = table.row(kind, shard.target, formats, measured.entry);
                predicted += u128::from(row.and_then(Cost::time).map_or(0, |time| time.likely));
            }
            let actual = u128::from(measured.microseconds);
            let scaled = |microseconds: u64| {
                let scaled = (u128::from(microseconds) * actual).checked_div(predicted);
                u64::try_from(scaled.unwrap_or(actual / layers.max(1))).unwrap_or(u64::MAX)
            };
            for cost in &mut self.request.costs {
                let same = (cost.target, cost.entry) == (shard.target, measured.entry);
                let Support::Legal(time) = &mut cost.support else { continue };
                if !same || layers == 0 {
                    continue;
                }
                if units.contains(&(cost.kind, cost.formats)) {
                    *time = TimeCost::exact(scaled(time.likely), Provenance::Measured);
                } else if predicted > 0 && time.provenance != Provenance::Measured {
                    let [low, likely, high] = [time.low, time.likely, time.high].map(scaled);
                    *time = TimeCost { low, likely, high, ..*time };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
