//! Choice whether to verify proposed tokens, several per step, and in how many rows.
//!
//! This is chosen after shards, targets and formats. It adds one entry point to each shard. If
//! there is no room for it, the shards are chosen again for both entry points. The new plan is used
//! only if no layer leaves its target, no fallback is dropped, and the loss does not grow.
//! Otherwise no tokens are verified.
//!
//! The gain follows from the likely times of a step with one row and with several, and from the
//! number of right tokens per proposal. It must be at least [`LEAST_GAIN`], and at least the
//! percentage by which the entry point enlarges the artefacts.

use super::bounds::TargetBounds;
use super::{Choice, Effort, LEAST_SAVED, Placement, Settings, Solution, Stage, fallback, in_stages, relief};
use crate::table::{CostTable, Prefix, RangeCost, call_of, runtime_of, units_of};
use crate::{
    Cause, Cost, Draft, Entry, EntryKind, Goal, Reason, Refusal, RefusalKind, Request, Speculation, Support,
    names,
};

#[cfg(test)]
mod tests;

/// Minimum gain by verifying, in thousandths, because estimates are not more precise.
pub const LEAST_GAIN: u64 = 20;

/// Tolerated growth of the loss, as one in this number.
const LOSS_NOISE: u64 = 50;

/// Whether proposed tokens are verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Speculate {
    /// If it is known to make tokens faster.
    #[default]
    Automatic,
    /// Never.
    No,
    /// With this number of rows, if there is room.
    Rows(u32),
}

/// A possible choice: verifying the tokens of a draft at an entry point.
struct Candidate<'r> {
    draft: &'r Draft,
    entry: Entry,
    /// Cost of each shard with this entry point added.
    costs: Vec<RangeCost>,
    /// Nanoseconds of a step with this entry point.
    step: u64,
    /// Expected speed-up, in thousandths of the time with it. `None` if the accepted
    /// proposals of the draft are unknown.
    gain: Option<u64>,
    /// Minimum gain that justifies the entry point, in the same unit.
    needed: u64,
}

/// Reason against verifying, with its cause.
type Obstacle = (String, Cause);

/// Finds the optimum, and chooses whether and how to verify tokens. Returns `None` if no stage has
/// a solution.
///
/// # Errors
///
/// The errors of a search, and `invalid-request` if requested rows are not offered, or there
/// is no draft.
pub(super) fn solve(
    request: &Request,
    settings: &Settings,
    stages: &[Stage],
) -> Result<Option<Solution>, Refusal> {
    let Some(plain) = in_stages(request, settings, stages, fallback::solve)? else {
        return Ok(None);
    };
    verifying(request, settings, plain).map(Some)
}

/// Chooses whether and how a solution verifies tokens.
fn verifying(request: &Request, settings: &Settings, plain: Solution) -> Result<Solution, Refusal> {
    if !request.has_states() {
        return Ok(plain);
    }
    let asked = match settings.speculate {
        Speculate::No => return Ok(plain),
        Speculate::Rows(rows) => Some(rows),
        Speculate::Automatic if request.drafts.is_empty() => return Ok(plain),
        Speculate::Automatic => None,
    };
    let entries = sizes(request, plain.context, asked)?;
    if entries.is_empty() {
        return Ok(plain);
    }
    if settings.effort == Effort::Simple && asked.is_none() {
        let why = "times were ignored, as requested".to_owned();
        return Ok(without(plain, (why, Cause::Preference("effort".to_owned()))));
    }
    let one = time_of_step(request, &plain.shards, decode(plain.context, 1));
    let (mut found, mut obstacle) = (Vec::new(), None);
    for entry in entries {
        match costs_with(request, &plain, entry) {
            Ok(costs) => {
                let of = |draft| Candidate::new(request, &plain, draft, (entry, &costs), one);
                found.extend(request.drafts.iter().map(of));
            }
            Err(why) => {
                obstacle.get_or_insert((why, Cause::Cost("legality".to_owned())));
            }
        }
    }
    // Of the candidates within the least gain of the fastest, prefer fewest rows, then the draft
    // listed first.
    found.sort_by_key(|candidate| std::cmp::Reverse(candidate.gain));
    let most = found.first().and_then(|candidate| candidate.gain);
    let near = |gain: u64| {
        most.is_some_and(|most| u128::from(gain) * (1000 + u128::from(LEAST_GAIN)) >= u128::from(most) * 1000)
    };
    let near = found.partition_point(|candidate| candidate.gain.is_some_and(near));
    found[..near].sort_by_key(|candidate| candidate.entry.rows);
    let Some(best) = found.first() else {
        return Ok(match obstacle {
            Some(obstacle) => without(plain, obstacle),
            None => plain,
        });
    };
    if asked.is_none() && !best.is_worth_it() {
        let obstacle = best.too_little();
        return Ok(without(plain, obstacle));
    }
    let worth = || found.iter().filter(|candidate| asked.is_some() || candidate.is_worth_it());
    let cause = if asked.is_some() { asked_for() } else { Cause::Cost("time".to_owned()) };
    if let Some(fits) = worth().find(|candidate| candidate.misfit(request, &plain).is_none()) {
        return Ok(fits.added_to(plain, one, cause));
    }
    match anew(request, settings, &plain, best, (one, asked)) {
        Some((solution, candidate)) => Ok(candidate.added_to(solution, one, cause)),
        None => {
            let (why, cause) =
                best.misfit(request, &plain).unwrap_or_else(|| ("it does not fit".to_owned(), asked_for()));
            let why = format!("with decode_{}, {why}", best.entry.rows);
            Ok(without(plain, (why, cause)))
        }
    }
}

fn asked_for() -> Cause {
    Cause::Preference("speculation".to_owned())
}

fn decode(context: u32, rows: u32) -> Entry {
    Entry { kind: EntryKind::Decode, rows, context }
}

/// Returns the entry points with several rows in this context, fewest rows first, or only the
/// requested one.
fn sizes(request: &Request, context: u32, asked: Option<u32>) -> Result<Vec<Entry>, Refusal> {
    let several = |entry: &&Entry| **entry == decode(context, entry.rows) && entry.rows > 1;
    let mut entries: Vec<Entry> = request.entries.iter().filter(several).copied().collect();
    entries.sort_by_key(|entry| entry.rows);
    entries.dedup();
    let Some(rows) = asked else { return Ok(entries) };
    let invalid = |why: String| {
        let message = format!("{rows} rows cannot verify proposed tokens: {why}");
        Refusal::new(RefusalKind::InvalidRequest, message).with("option", "speculation")
    };
    if request.drafts.is_empty() {
        return Err(invalid("the request has no draft".to_owned()));
    }
    if !entries.iter().any(|entry| entry.rows == rows) {
        let offered: Vec<String> = entries.iter().map(|entry| entry.rows.to_string()).collect();
        return Err(invalid(match &offered[..] {
            [] => "no decode entry point of several rows is offered".to_owned(),
            _ => format!("expected {}", offered.join(" or ")),
        }));
    }
    entries.retain(|entry| entry.rows == rows);
    Ok(entries)
}

/// Returns the cost of each shard with one more entry point. Fails with a message if a target does
/// not support it.
fn costs_with(request: &Request, solution: &Solution, entry: Entry) -> Result<Vec<RangeCost>, String> {
    let table = CostTable::new(request);
    let mut entries = solution.entries.clone();
    entries.push(entry);
    let of = |shard: &Placement| {
        let units = units_of(request, &shard.segments, shard.softcap);
        let illegal = || {
            let mut units = units.iter();
            let why = units
                .find_map(|&(kind, formats)| table.illegal(request, kind, shard.target, formats, &[entry]));
            let target = &request.targets[shard.target as usize].name;
            format!("`{target}` does not support {}: {}", names::entry(entry), why.unwrap_or_default())
        };
        let prefix = Prefix::of_units(request, &table, &units, shard.target, &entries);
        let computed = prefix.range(0, units.len()).ok_or_else(illegal)?;
        let runtime = runtime_of(request, &shard.segments, shard.softcap);
        Ok(Choice::with_runtime(computed, runtime).called(call_of(request, shard.target)))
    };
    solution.shards.iter().map(of).collect()
}

/// Returns the likely nanoseconds of a step at an entry point that all targets of the shards
/// support, including the runtime's work between shards.
fn time_of_step(request: &Request, shards: &[Placement], entry: Entry) -> u64 {
    let table = CostTable::new(request);
    let rows = u64::from(entry.rows);
    let mut nanoseconds = 0_u64;
    for shard in shards {
        let units = units_of(request, &shard.segments, shard.softcap);
        let prefix = Prefix::of_units(request, &table, &units, shard.target, &[entry]);
        // The runtime caps the logits of each row.
        let runtime = runtime_of(request, &shard.segments, shard.softcap).times(rows);
        let all = prefix.sum(0, units.len()).time.and(runtime).and(call_of(request, shard.target));
        nanoseconds = nanoseconds.saturating_add(all.likely.saturating_mul(1000));
        nanoseconds = nanoseconds.saturating_add(request.boundary_nanoseconds);
    }
    let place = |shard: &Placement| {
        let target = &request.targets[shard.target as usize];
        (&target.shim, &target.device)
    };
    let moves = shards.windows(2).filter(|pair| place(&pair[0]) != place(&pair[1])).count() as u64;
    let moved = request.transfer_nanoseconds.saturating_mul(rows).saturating_mul(moves);
    nanoseconds.saturating_add(moved)
}

/// Steps of a draft's usual replies, and the tokens that they produce with a number of rows.
struct Usual {
    silent: u128,
    proposing: u128,
    tokens: u128,
}

impl Usual {
    fn of(draft: &Draft, rows: u32) -> Usual {
        let most = u128::from(rows.saturating_sub(1));
        let silent = u128::from(draft.silent_steps);
        let (mut proposing, mut tokens) = (0, silent);
        for (right, &steps) in (0_u128..).zip(&draft.accepted_steps) {
            proposing += u128::from(steps);
            tokens += u128::from(steps) * (1 + right.min(most));
        }
        Usual { silent, proposing, tokens }
    }

    /// Returns the time per token in steps of one row, in thousandths of the time with proposals.
    /// Arguments are the nanoseconds of a step of one row, of a step of several rows, and of a
    /// proposal. Returns `None` if the draft's accepted proposals are unknown.
    fn gain(&self, one: u64, several: u64, proposal: u64) -> Option<u64> {
        let each = u128::from(several) + u128::from(proposal);
        let time = self.silent * u128::from(one) + self.proposing.checked_mul(each)?;
        let alone = u128::from(one).checked_mul(self.tokens)?.checked_mul(1000)?;
        if self.proposing == 0 {
            return None;
        }
        alone.checked_div(time).map(|gain| u64::try_from(gain).unwrap_or(u64::MAX))
    }
}

fn artefact_bytes<'c>(costs: impl Iterator<Item = &'c RangeCost>) -> u64 {
    costs.map(|cost| cost.artefact_bytes).fold(0, u64::saturating_add)
}

/// Formats a factor: `1.18x`.
fn times(thousandths: u64) -> String {
    format!("{}.{:02}x", thousandths / 1000, thousandths % 1000 / 10)
}

impl<'r> Candidate<'r> {
    /// Creates a candidate. `one` is the nanoseconds of a step of one row without it.
    fn new(
        request: &Request,
        solution: &Solution,
        draft: &'r Draft,
        (entry, costs): (Entry, &[RangeCost]),
        one: u64,
    ) -> Candidate<'r> {
        let step = time_of_step(request, &solution.shards, entry);
        let gain = Usual::of(draft, entry.rows).gain(one, step, proposal(draft, entry));
        let without = artefact_bytes(solution.shards.iter().map(|shard| &shard.cost));
        let added = artefact_bytes(costs.iter()).saturating_sub(without);
        let growth = u128::from(added) * 1000 / u128::from(without.max(1));
        let growth = u64::try_from(growth).unwrap_or(u64::MAX);
        let needed = LEAST_GAIN.max(growth).saturating_add(1000);
        Candidate { draft, entry, costs: costs.to_vec(), step, gain, needed }
    }

    fn is_worth_it(&self) -> bool {
        self.gain.is_some_and(|gain| gain >= self.needed)
    }

    fn too_little(&self) -> Obstacle {
        let rows = self.entry.rows;
        let why = match self.gain {
            Some(gain) if self.needed > 1000 + LEAST_GAIN => {
                let (gain, growth) = (times(gain), times(self.needed));
                format!("with decode_{rows} replies would be {gain} as fast, but artefacts {growth} as large")
            }
            Some(gain) => {
                let (gain, least) = (times(gain), times(self.needed));
                format!(
                    "with decode_{rows} replies would be {gain} as fast, and at least {least} is required"
                )
            }
            None => format!("the accepted proposals of draft `{}` are not known", self.draft.name),
        };
        (why, Cause::Cost("time".to_owned()))
    }

    /// Returns the first limit or goal that the shards of a solution exceed with it.
    fn misfit(&self, request: &Request, solution: &Solution) -> Option<Obstacle> {
        let relieved;
        let request = match solution.relieving.is_empty() {
            true => request,
            false => {
                relieved = relief::with_flags(request, &solution.relieving);
                &relieved
            }
        };
        let goals = &request.goals;
        let over_limit = |name: &str, of: &str, value: u64, most: u64| {
            let [value, most] = names::apart(name, [value, most]);
            (format!("{name} of {of} would be {value}, the limit is {most}"), limit(name))
        };
        let over_goal = |name: &str, value: u64, most: u64| {
            let [value, most] = names::against_goal(name, value, most);
            (format!("{name} would be {value}, the goal is {most}"), Cause::Goal(name.to_owned()))
        };
        let bounds: Vec<TargetBounds<'_>> =
            request.targets.iter().map(|target| TargetBounds::new(target, &[])).collect();
        let mut held = vec![0_u64; request.targets.len()];
        for (shard, cost) in solution.shards.iter().zip(&self.costs) {
            let target = shard.target as usize;
            if let Some((bound, value)) = bounds[target].exceeded(cost) {
                return Some(over_limit(&bound.limit.name, "a shard", value, bound.value));
            }
            held[target] = held[target].saturating_add(cost.context_bytes());
        }
        for (bounds, held) in bounds.iter().zip(&held) {
            if let Some(bound) = bounds.memory_bytes.filter(|bound| *held > bound.value) {
                return Some(over_limit(&bound.limit.name, "all shards", *held, bound.value));
            }
        }
        let memory = held.iter().copied().fold(own_bytes(self.draft, self.entry.rows), u64::saturating_add);
        if let Some(most) = goals.memory_bytes().filter(|most| memory > *most) {
            return Some(over_goal("memory", memory, most));
        }
        let tables = request.tables.iter().zip(&solution.tables);
        let tables = tables.filter_map(|(table, format)| table.formats.get(*format as usize));
        let size = tables
            .map(|format| format.bytes)
            .chain([artefact_bytes(self.costs.iter()), solution.reserve.bytes()])
            .fold(0, u64::saturating_add);
        let most = goals.size_bytes().filter(|most| size > *most)?;
        Some(over_goal("size", size, most))
    }

    fn added_to(&self, solution: Solution, one: u64, cause: Cause) -> Solution {
        let (entry, draft) = (self.entry, self.draft);
        let mut because = match self.gain {
            Some(gain) => {
                let usual = Usual::of(draft, entry.rows);
                let accepted = usual.tokens.saturating_sub(usual.silent).saturating_mul(10);
                let tokens = accepted.checked_div(usual.proposing).unwrap_or(0);
                let all = (usual.silent + usual.proposing).max(1);
                let digits = solution.time.digits();
                let [step, alone] = [self.step, one].map(|time| names::time_in(time, digits));
                let others = match step == alone {
                    true => "as long as the others take for one".to_owned(),
                    false => format!("the others take {alone} for one"),
                };
                format!(
                    "expected to be {} as fast: {} of 100 steps propose tokens and take {step} for {}.{} \
                     tokens, {others} ({})",
                    times(gain),
                    usual.proposing * 100 / all,
                    tokens / 10,
                    tokens % 10,
                    names::Named::name(&draft.provenance),
                )
            }
            None => "the gain is not known".to_owned(),
        };
        if cause == asked_for() {
            because.insert_str(0, "requested; ");
        }
        let choice = format!("{} verifies the proposals of {}", names::entry(entry), draft.name);
        let gain_thousandths = self.gain.map(|gain| u32::try_from(gain).unwrap_or(u32::MAX));
        let speculation = Speculation { draft: draft.name.clone(), rows: entry.rows, gain_thousandths };
        let mut shards = solution.shards;
        for (shard, cost) in shards.iter_mut().zip(&self.costs) {
            shard.cost = cost.clone();
        }
        Solution {
            shards,
            speculation: Some(speculation),
            note: Some(Reason { shard: None, choice, because, cause }),
            ..solution
        }
    }
}

fn limit(name: &str) -> Cause {
    Cause::Limit(name.to_owned())
}

/// Returns the likely nanoseconds of the proposals that a step at an entry point verifies.
fn proposal(draft: &Draft, entry: Entry) -> u64 {
    let tokens = u64::from(entry.rows.saturating_sub(1));
    tokens.saturating_mul(draft.token_time.likely).saturating_mul(1000)
}

/// Returns the bytes that the verifying of a plan needs in addition to its shards.
pub(super) fn bytes(request: &Request, chosen: Option<&Speculation>) -> u64 {
    let Some(chosen) = chosen else { return 0 };
    let draft = request.drafts.iter().find(|draft| draft.name == chosen.draft);
    draft.map_or(0, |draft| own_bytes(draft, chosen.rows))
}

/// Returns the bytes that verifying needs in addition to the shards.
fn own_bytes(draft: &Draft, rows: u32) -> u64 {
    draft.row_bytes.saturating_mul(rows.into()).saturating_add(draft.memory_bytes)
}

fn without(solution: Solution, (because, cause): Obstacle) -> Solution {
    let choice = "no proposals".to_owned();
    Solution { note: Some(Reason { shard: None, choice, because, cause }), ..solution }
}

/// Finds the optimum among plans that have both entry points, if verifying is worth it there and
/// the plan is not worse otherwise.
fn anew<'r>(
    request: &'r Request,
    settings: &Settings,
    plain: &Solution,
    candidate: &Candidate<'r>,
    (one, asked): (u64, Option<u32>),
) -> Option<(Solution, Candidate<'r>)> {
    let (draft, entry) = (candidate.draft, candidate.entry);
    let both = with_both(request, draft, entry);
    let mut found = fallback::solve(&both, settings, plain.stage).ok()??;
    let units = |solution: &Solution| -> Vec<u64> {
        (0_u32..).zip(&request.targets).map(|(target, _)| solution.units_on(target)).collect()
    };
    let (before, after) = (fallback::lost(request, plain), fallback::lost(request, &found));
    let tolerated = before.saturating_add(LEAST_SAVED.max(before / LOSS_NOISE));
    if units(&found) < units(plain) || !found.reserve.is_as_wide(&plain.reserve) || after > tolerated {
        return None;
    }
    // The gain is relative to the plan without verifying.
    let costs = costs_with(request, &found, entry).ok()?;
    let other = Candidate::new(request, plain, draft, (entry, &costs), one);
    let step = time_of_step(request, &found.shards, entry);
    let own = time_of_step(request, &found.shards, decode(found.context, 1));
    let gain = Usual::of(draft, entry.rows).gain(own, step, proposal(draft, entry)).map(|gain| {
        let gain = u128::from(gain) * u128::from(one) / u128::from(own.max(1));
        u64::try_from(gain).unwrap_or(u64::MAX)
    });
    let other = Candidate { step, gain, ..other };
    let worth = asked.is_some() || other.is_worth_it();
    found.entries.clone_from(&plain.entries);
    (worth && other.misfit(request, &found).is_none()).then_some((found, other))
}

/// Returns the request with the costs of the verifying entry point added to the costs of the entry
/// point that every shard has.
fn with_both(request: &Request, draft: &Draft, entry: Entry) -> Request {
    let table = CostTable::new(request);
    let both = |cost: &Cost| {
        if cost.entry != decode(entry.context, 1) {
            return cost.clone();
        }
        let Some(other) = table.row(cost.kind, cost.target, cost.formats, entry) else {
            let why = format!("no cost for {}", names::entry(entry));
            let support = if cost.time().is_some() { Support::Illegal(why) } else { cost.support.clone() };
            return Cost { support, ..cost.clone() };
        };
        let is_refused = cost.time().is_some() && other.time().is_none();
        Cost {
            ops: cost.ops.max(other.ops),
            weight_bytes: cost.weight_bytes.max(other.weight_bytes),
            artefact_bytes: cost.artefact_bytes.saturating_add(other.artefact_bytes),
            state_bytes: cost.state_bytes.max(other.state_bytes),
            support: if is_refused { other.support.clone() } else { cost.support.clone() },
            ..cost.clone()
        }
    };
    let own = own_bytes(draft, entry.rows);
    let goals = match request.goals.memory_bytes() {
        Some(most) => request.goals.with(Goal::MemoryBytes(most.saturating_sub(own))),
        None => request.goals.clone(),
    };
    Request { costs: request.costs.iter().map(both).collect(), goals, ..request.clone() }
}
