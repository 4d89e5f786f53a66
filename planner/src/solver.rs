//! Exact solver: chooses cuts, targets and formats.
//!
//! The solver is a dynamic programme over cut points. Every partial chain is a *label*. It has the
//! cost so far, the memory, quality and shards used, and the location of the states that later
//! layers read. Where a component ends, the next one begins a shard, or joins the last shard if
//! target, activations, states and limits allow it. A label that another one matches or beats in
//! every respect is dropped. The best label at the end is the optimum.
//!
//! **Objective**, most important first:
//! 1. As many layers as possible on the targets of the first rank. A target has the rank of the
//!    target that the request lists before it, unless its times are less certain: unless its sum of
//!    `high` relative to its sum of `low` is larger by more than 5 percent. Targets of one rank are
//!    compared by time.
//! 2. Least loss, if the request requires it. Every additional shard must save [`LEAST_SAVED`] of
//!    it.
//! 3. Least likely time per generated token. With a usual answer length, a share of the time to the
//!    first token is added. Without a goal for losses, a format that is not listed first must save
//!    [`Settings::gain`] percent, with one [`Settings::gain_within_goal`]. Every shard adds the
//!    cost of its boundary and a hundredth of the whole, because estimates are not more precise
//!    than that.
//! 4. Fewest shards.
//! 5. Formats that the request lists first.
//! 6. Balance: the largest shard of a component with layers as small as possible, then the sum of
//!    squares, by time or by weight bytes.
//!
//! Ties are resolved to the earliest target, then the earliest formats, then the earliest cuts, so
//! that the solution is unique.
//!
//! **Gathered tables**: each set of table formats that a best plan may have leaves a part of the
//! goals for size and quality to the shards. The best of the resulting plans is used.
//!
//! **Speculation**: whether tokens of a draft are verified, and in how many rows, is chosen after
//! the shards. See [`Speculate`].
//!
//! **Constraints**: limits of the request, legal rows of the cost table, donors on the reader's
//! shim and device and in its format of states, goals for memory, size, quality and times, context
//! and prefill rows. Weights of two bits lose so much quality that they need a goal for losses,
//! unless no other format is offered.
//!
//! **Goals for bytes and times** are kept in up to four stages. The first stage that has a plan
//! ends the search. First every layer stays on the first rank that supports it, with smaller tables
//! and formats if needed. After that layers may be on any target. A goal for times is kept by the
//! likely time or, if no plan of these targets does so, by the lowest time. A goal that even the
//! lowest time exceeds is refused as `too-slow`.
//!
//! The solution is exact if no cut point has more than [`LABELS_PER_CUT`] incomparable labels and
//! comparing them does not exceed the [`Budget`] of the call. Otherwise fewer labels are kept and
//! [`Solution::exact`] is false. This keeps a planner within its fuel.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use crate::table::{
    CostTable, Interval, Prefix, RangeCost, call_of, prefill_runs, unit_kinds, unit_kinds_at,
};
use crate::{
    BuildTime, Entry, EntryKind, Flag, Format, Plan, PrefillPart, Reason, Refusal, RefusalKind, Request,
    Segment, Sensitivity, SoftcapPlace, Speculation, ValueSensitivity,
};

mod bounded;
mod bounds;
mod budget;
mod decided;
mod diagnose;
mod explain;
mod fallback;
mod freer;
mod goals;
mod goals_last;
mod mix;
mod moved;
mod preferences;
mod prefills;
mod reach;
mod relief;
mod remainder;
mod search;
mod speculation;
mod tables;
#[cfg(test)]
mod tests;

use bounds::TargetBounds;
pub use budget::Budget;
use goals::{GoalBounds, Stage, stages};
pub(crate) use goals_last::goals_last;
pub use mix::{MixBound, Trade};
pub use preferences::{Barred, Goal, WantedFormat, offered};
pub use remainder::Gap;
pub use speculation::{LEAST_GAIN, Speculate};

/// Maximum number of incomparable labels kept at one cut point. A few dozen is usual, and many
/// formats with a quality goal give more.
pub const LABELS_PER_CUT: usize = 256;

/// Minimum saving of loss by an additional shard if losses are the objective, in millionths of a
/// nat per token. This is a hundredth of the strictest named goal. Losses are estimated, or
/// measured on a few hundred tokens, and not more precise than that.
pub const LEAST_SAVED: u64 = 50;

/// Default of [`Settings::gain`], in percent: the error of the times of two formats relative to
/// each other. It is larger than the extra cost of a finer format of the same width, and smaller
/// than the saving of half the width.
pub const GAIN: u32 = 25;

/// Comparisons that cost as much as the preparation of a unit of a choice.
const PREPARED: u64 = 4;

/// Effort of the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Effort {
    /// The optimum, as far as the fuel permits.
    #[default]
    Thorough,
    /// The first legal target and formats, in the fewest shards within the limits. Uses almost no
    /// fuel and ignores times.
    Simple,
}

/// Quantity by which shards of one component are balanced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Balance {
    /// By time if the first target has times above 0, otherwise by weight bytes, otherwise by
    /// operations.
    #[default]
    Automatic,
    /// Likely time of one generated token.
    Time,
    /// Bytes of weights.
    Bytes,
    /// Operations of the largest entry point.
    Operations,
}

impl Balance {
    /// Returns the name in options and reasons.
    pub const fn name(self) -> &'static str {
        match self {
            Balance::Automatic => "automatic",
            Balance::Time => "time",
            Balance::Bytes => "bytes",
            Balance::Operations => "ops",
        }
    }
}

/// A shard that must not be planned again, with any flags and entry points.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Forbidden {
    /// Segments of the shard.
    pub segments: Vec<Segment>,
    /// Index of the target.
    pub target: u32,
    /// Place where its soft-cap is computed. `None` if it has none.
    pub softcap: Option<SoftcapPlace>,
}

/// Preferences of a planner. The facts are in the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Quantity to balance by.
    pub balance: Balance,
    /// Components that must go to one target: (component index, target index).
    pub place: Vec<(u32, u32)>,
    /// Shards that must not be planned again.
    pub forbidden: Vec<Forbidden>,
    /// Time at which shards are compiled.
    pub build: BuildTime,
    /// Place where soft-caps must be computed. `None`: in the graph, unless no target supports them
    /// there or the runtime is faster.
    pub softcap: Option<SoftcapPlace>,
    /// Whether a plan has fallbacks to the other targets that support the whole model.
    pub falls_back: bool,
    /// Whether proposed tokens are verified.
    pub speculate: Speculate,
    /// Whether the loss counts only by default, so that no work moves to keep it low.
    pub loss_is_usual: bool,
    /// Whether the likely time must keep a goal for times. Otherwise the lowest time may.
    pub only_likely: bool,
    /// The format tuple of every shard, by index. `None`: chosen by the objective from the tuples
    /// that the request offers.
    pub formats: Option<u32>,
    /// Weight formats that some layers must have.
    pub wanted: Vec<WantedFormat>,
    /// Format tuples that some layers must not have on some targets.
    pub barred: Vec<Barred>,
    /// Maximum number of shards of a component: (component index, shards).
    pub most_shards: Vec<(u32, u32)>,
    /// Whether a shard may contain several components.
    pub join: bool,
    /// Goals that come first, in this order. The others follow in their default order.
    pub order: Vec<Goal>,
    /// Likely time, in percent below 100, that formats not listed first must save if no quality
    /// goal limits their loss.
    pub gain: u32,
    /// Time, in percent below 100, that formats not listed first must save, layer by layer, if a
    /// quality goal limits their loss. If only the lowest time keeps a goal for times, at most
    /// [`gain`](Self::gain).
    pub gain_within_goal: u32,
    /// Effort of the search.
    pub effort: Effort,
    /// Comparisons of all searches with these settings and their clones.
    pub budget: Budget,
}

impl Default for Settings {
    /// Automatic balance, no fixed targets, no forbidden shards, compilation ahead of time,
    /// soft-caps where they are cheaper, any formats in any number of shards of any components,
    /// goals in the order of the objective, a gain of [`GAIN`] percent, and a thorough search with
    /// the budget of one call of a planner.
    fn default() -> Self {
        Self {
            balance: Balance::Automatic,
            place: vec![],
            forbidden: vec![],
            build: BuildTime::Ahead,
            softcap: None,
            falls_back: true,
            speculate: Speculate::Automatic,
            loss_is_usual: false,
            only_likely: false,
            formats: None,
            wanted: vec![],
            barred: vec![],
            most_shards: vec![],
            join: true,
            order: vec![],
            gain: GAIN,
            gain_within_goal: 0,
            effort: Effort::Thorough,
            budget: Budget::default(),
        }
    }
}

/// One shard of a solution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Segments, in the order of a step.
    pub segments: Vec<Segment>,
    /// Index of the target.
    pub target: u32,
    /// Place where its soft-cap is computed. `None` if it has none.
    pub softcap: Option<SoftcapPlace>,
    /// Cost, including the runtime's share.
    pub cost: RangeCost,
}

impl Placement {
    /// Iterates over the format tuples of every layer and of every component without layers, in
    /// order.
    pub fn formats(&self) -> impl Iterator<Item = u32> + '_ {
        self.segments.iter().flat_map(|segment| segment.formats.iter().copied())
    }

    /// Returns the format tuple of the whole shard, or `None` if its parts differ.
    pub fn uniform_formats(&self) -> Option<u32> {
        let first = self.formats().next()?;
        self.formats().all(|formats| formats == first).then_some(first)
    }

    /// Returns the shard's segment of a component.
    pub fn segment(&self, component: u32) -> Option<&Segment> {
        self.segments.iter().find(|segment| segment.component == component)
    }

    /// Returns the number of its layers and components without layers.
    pub(crate) fn units(&self) -> u64 {
        self.segments.iter().map(|segment| segment.formats.len() as u64).sum()
    }

    /// Returns the constraint that forbids this shard.
    pub(crate) fn forbidden(&self) -> Forbidden {
        Forbidden { segments: self.segments.clone(), target: self.target, softcap: self.softcap }
    }
}

/// An optimal chain of shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Solution {
    /// Shards in order of execution.
    pub shards: Vec<Placement>,
    /// Entry points of the chain. The first one is the one whose time is minimised. A shard without
    /// work in prefill has no prefill entry point. The entry point that verifies proposed tokens is
    /// not included.
    pub entries: Vec<Entry>,
    /// Context capacity in tokens. Zero without states.
    pub context: u32,
    /// Time per generated token, or per encode run, with the time of the runtime between shards.
    pub time: Interval,
    /// Time from a prompt of the goals' length to the first token of its answer.
    pub first_token: Interval,
    /// Whether no label had to be dropped.
    pub exact: bool,
    /// Upper bound, by a relaxation, on the distance of the chain from the best one. `None` if the
    /// relaxation proves it optimal, and for a simple search.
    pub gap: Option<Gap>,
    /// Quantity that was balanced.
    pub balanced_by: Balance,
    /// For each gathered table, the index of the chosen format in the table's list.
    pub tables: Vec<u32>,
    /// How proposed tokens are verified, if they are.
    pub speculation: Option<Speculation>,
    /// Flags set because they raise a limit that would otherwise require a cut: (target index,
    /// flag).
    pub relieving: Vec<(u32, Flag)>,
    /// Upper bound on the distance of the mixture of formats from the best one for these shards.
    /// `None` if formats were not mixed.
    pub mixed: Option<MixBound>,
    /// Why proposed tokens are verified or not, or why no faster plan was found.
    note: Option<Reason>,
    /// The part of a size goal that was reserved for fallbacks.
    reserve: fallback::Reserve,
    /// For every target, the sum of the times of its legal rows. `None` without such a row.
    intervals: Vec<Option<Interval>>,
    /// How goals for times are kept.
    stage: Stage,
    /// Comparison of each shard with its alternatives.
    decided: decided::Decided,
    settings: Settings,
}

/// Finds the optimum, or the reason why there is none.
///
/// Before cutting to a limit, flags that are known to raise it are tried. They are set if that
/// saves shards. A size goal also covers the fallbacks of the plan, if possible. With a quality
/// goal and a goal for bytes, the least loss is found first. It decides whether there is a plan.
///
/// # Errors
///
/// `invalid-request` for invalid indices or entry points, `unsupported` if no target supports a
/// layer, `over-limit` if a single layer exceeds a limit or there are too many shards,
/// `state-not-shareable`, `over-memory`, `over-size`, `over-quality`, `too-slow`, and `exhausted`
/// if every solution is forbidden.
pub fn solve(request: &Request, settings: &Settings) -> Result<Solution, Refusal> {
    if let Some(found) = freer::solve(request, settings)? {
        return Ok(found);
    }
    bounded::solve(request, settings, &stages(request, settings)?)?
        .map_err(|lost| tables::no_solution(request, settings, lost))
}

/// Finds a solution in one stage. `None` if there is none.
type Find = fn(&Request, &Settings, Stage) -> Result<Option<Solution>, Refusal>;

/// Returns the solution of the first stage that has one.
fn in_stages(
    request: &Request,
    settings: &Settings,
    stages: &[Stage],
    find: Find,
) -> Result<Option<Solution>, Refusal> {
    for &stage in stages {
        if let Some(found) = find(request, settings, stage)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Computes the loss of a plan, in millionths of a nat per token. Returns `None` if a part of it is
/// unknown.
pub fn loss_of(request: &Request, plan: &Plan) -> Option<u64> {
    let losses = Losses::new(request);
    let shards = plan.shards.iter().flat_map(|shard| losses.units(&shard.segments));
    let tables = request.tables.iter().zip(&plan.tables);
    let tables = tables.map(|(table, format)| table.formats.get(*format as usize)?.micronats);
    let mut all = shards.chain(tables.map(|micronats| micronats.map(u64::from)));
    all.try_fold(0_u64, |sum, loss| Some(sum.saturating_add(loss?)))
}

/// Finds the optimum of a stage without reserving a part of a size goal for fallbacks.
fn solve_whole(request: &Request, settings: &Settings, stage: Stage) -> Result<Option<Solution>, Refusal> {
    let plain = tables::solve(request, settings, stage)?;
    if stage.moved.is_some() {
        return Ok(plain);
    }
    let relieving = relief::candidates(request, plain.as_ref());
    if relieving.is_empty() || plain.is_some() && settings.budget.is_spent() {
        return Ok(plain);
    }
    let relieved = tables::solve(&relief::with_flags(request, &relieving), settings, stage)?;
    Ok(match (plain, relieved) {
        (Some(plain), Some(relieved)) if plain.shards.len() <= relieved.shards.len() => Some(plain),
        (_, Some(relieved)) => Some(Solution { relieving, ..relieved }),
        (plain, None) => plain,
    })
}

/// Returns sets of entry points that a chain may have, best first. A set has the smallest
/// sufficient context, decode of one row, and either the largest prefill that the goal allows or
/// the prefills that suit the usual prompts. Without states it has all encode entry points, or else
/// one of them.
fn entry_sets(request: &Request) -> Result<Vec<Vec<Entry>>, Refusal> {
    let invalid = |message: String| Refusal::new(RefusalKind::InvalidRequest, message);
    let rows = |kind: EntryKind, context: u32| {
        let mut rows: Vec<Entry> = request
            .entries
            .iter()
            .copied()
            .filter(|entry| entry.kind == kind && entry.context == context)
            .filter(|entry| entry.rows <= request.goals.max_prefill_rows)
            .collect();
        rows.sort_by_key(|entry| std::cmp::Reverse(entry.rows));
        rows
    };
    if !request.has_states() {
        let encodes = rows(EntryKind::Encode, 0);
        if encodes.is_empty() {
            return Err(invalid(format!(
                "no encode entry point has at most {} rows",
                request.goals.max_prefill_rows
            )));
        }
        let all = (encodes.len() > 1).then(|| encodes.clone());
        return Ok(all.into_iter().chain(encodes.into_iter().map(|encode| vec![encode])).collect());
    }
    let decode = request
        .entries
        .iter()
        .copied()
        .filter(|entry| entry.kind == EntryKind::Decode && entry.rows == 1)
        .filter(|entry| entry.context >= request.goals.context)
        .min_by_key(|entry| entry.context)
        .ok_or_else(|| {
            invalid(format!("no decode entry point of one row has a context of {}", request.goals.context))
        })?;
    if !request.kinds.iter().any(|kind| kind.prefill != PrefillPart::None) {
        return Ok(vec![vec![decode]]);
    }
    let prefills = rows(EntryKind::Prefill, decode.context);
    if prefills.is_empty() {
        return Err(invalid(format!(
            "no prefill entry point with a context of {} has at most {} rows",
            decode.context, request.goals.max_prefill_rows
        )));
    }
    let with_decode = |set: Vec<Entry>| std::iter::once(decode).chain(set).collect();
    Ok(prefills::sets(request, &prefills).into_iter().map(with_decode).collect())
}

/// The stage of a search, and constraints that are ignored to find out which one makes a request
/// unsolvable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Relaxed {
    stage: Stage,
    preferences: bool,
    forbidden: bool,
    admission: bool,
    quality: bool,
    memory: bool,
    size: bool,
    times: bool,
    target_totals: bool,
    donors: bool,
}

/// One component, prepared for cutting.
struct Part {
    component: u32,
    /// Number of layers, or 1 for the whole component.
    units: usize,
    layered: bool,
    /// Donor of each unit.
    donors: Vec<Option<u32>>,
    /// For each unit that is a donor, one past its last reader.
    last_reader: Vec<u32>,
    most_shards: Option<u32>,
    choices: Vec<Choice>,
    /// For each unit, the least and the largest rank of the targets that it may be on. If empty, it
    /// may be on any.
    ranks: Vec<(u64, u64)>,
}

/// A target that a component may use, with a format tuple for each unit. The tuples agree in
/// activations and states.
struct Choice {
    target: u32,
    formats: Vec<u32>,
    /// Cumulative indices of the tuples, used to prefer the tuples listed first.
    later: Vec<u64>,
    /// Cumulative nanoseconds of the units whose tuple is not the first.
    later_time: Vec<u64>,
    softcap: Option<SoftcapPlace>,
    prefix: Prefix,
    /// Work of the runtime per row.
    runtime: Interval,
    /// Overhead of each run of a shard in addition to the computation.
    call: Interval,
    /// Cumulative loss in millionths of a nat up to each unit, and cumulative number of units whose
    /// loss is needed but was not measured.
    loss: Vec<u64>,
    unmeasured: Vec<u32>,
    /// Cumulative number of units that require other formats, or stay on another target.
    unwanted: Vec<u32>,
    /// Formats of activations and states of all units.
    values: (u32, u32),
}

impl Choice {
    /// Creates the choice of these tuples for the units of a component.
    fn new(units: &mix::Units<'_>, formats: Vec<u32>, softcap: Option<SoftcapPlace>) -> Self {
        let request = units.request;
        let each: Vec<(u32, u32)> = units.kinds.iter().copied().zip(formats.iter().copied()).collect();
        let (loss, unmeasured) = units.losses.cumulative(units.component, &formats);
        let tuple = formats.first().and_then(|formats| request.formats.get(*formats as usize));
        let component = request.model.components.get(units.component as usize);
        let capped = component.and_then(|component| component.softcap.as_ref());
        let later_time = units.kinds.iter().zip(&formats).map(|(&kind, &formats)| match formats {
            0 => 0,
            _ => units.nanoseconds(kind, formats),
        });
        Self {
            later_time: cumulative(later_time),
            target: units.target,
            values: tuple.map_or((0, 0), |tuple| (tuple.activations, tuple.states)),
            later: cumulative(formats.iter().map(|&formats| u64::from(formats))),
            unwanted: units.demands().violations(units.component, units.layered, &formats),
            softcap,
            prefix: Prefix::of_units(request, units.table, &each, units.target, units.entries),
            call: call_of(request, units.target),
            runtime: capped.filter(|_| softcap == RUNTIME).map(|own| own.runtime.into()).unwrap_or_default(),
            loss,
            unmeasured,
            formats,
        }
    }

    /// Returns the format tuples of the units.
    fn formats(&self, first: usize, end: usize) -> Vec<u32> {
        self.formats[first..end].to_vec()
    }

    /// Returns the cost of the units as a separate shard, including the runtime's share. Returns
    /// `None` if the target does not support one of them.
    fn cost(&self, first: usize, end: usize) -> Option<RangeCost> {
        if self.unwanted[end] > self.unwanted[first] {
            return None;
        }
        Some(Self::with_runtime(self.prefix.range(first, end)?, self.runtime).called(self.call))
    }

    /// Returns the cost that one unit adds to a shard, or `None` if the target does not support it.
    fn cost_of_unit(&self, unit: usize) -> Option<RangeCost> {
        let is_wanted = self.unwanted[unit + 1] == self.unwanted[unit];
        self.prefix.range(unit, unit + 1).filter(|_| is_wanted)
    }

    fn with_runtime(cost: RangeCost, runtime: Interval) -> RangeCost {
        RangeCost { time: cost.time.and(runtime), ..cost }
    }
}

struct Problem<'request> {
    request: &'request Request,
    settings: &'request Settings,
    table: CostTable<'request>,
    losses: Losses<'request>,
    entries: Vec<Entry>,
    relaxed: Relaxed,
    goals: GoalBounds,
    /// Whether a goal concerns losses.
    weighs_losses: bool,
    /// Rows of all runs of prefill entry points before the first token of an answer.
    prompt_rows: u64,
    /// Format tuples that may be used.
    usable: Vec<u32>,
    parts: Vec<Part>,
    limits: Vec<TargetBounds<'request>>,
    /// For every target, an upper bound on the cost of a shard of the whole model.
    most: Vec<RangeCost>,
    /// Place of every target. Targets of one shim and device have the same place.
    places: Vec<u32>,
    /// For every target, the sum of the times of its legal rows.
    intervals: Vec<Option<Interval>>,
    /// Rank of every target. See [`ranks`].
    ranks: Vec<u64>,
    /// Time that each additional shard must save, in nanoseconds.
    boundary: u64,
    balanced_by: Balance,
}

impl<'request> Problem<'request> {
    fn new(
        request: &'request Request,
        settings: &'request Settings,
        entries: Vec<Entry>,
        relaxed: Relaxed,
    ) -> Result<Self, Refusal> {
        let invalid = |message: String| Refusal::new(RefusalKind::InvalidRequest, message);
        let caps = request.model.components.iter().any(|component| component.softcap.is_some());
        if settings.softcap == RUNTIME && !caps {
            let message = "the runtime cannot compute a soft-cap, because the model has none";
            return Err(invalid(message.to_owned()));
        }
        preferences::check(request, &settings.wanted)?;
        let wanted: &[WantedFormat] = if relaxed.preferences { &[] } else { &settings.wanted };
        let barred: &[Barred] = if relaxed.forbidden { &[] } else { &settings.barred };
        let table = CostTable::new(request);
        let losses = Losses::new(request);
        let usable: Vec<u32> = (0..request.formats.len())
            .map(|formats| u32::try_from(formats).unwrap_or(u32::MAX))
            .filter(|formats| match settings.formats {
                Some(wanted) => wanted == *formats,
                None => relaxed.admission || is_admitted(request, *formats),
            })
            .collect();
        let goals = GoalBounds::new(&request.goals, relaxed.stage);
        let mut parts = Vec::new();
        for (component, index) in request.model.components.iter().zip(0_u32..) {
            let kinds = unit_kinds(component);
            if kinds.iter().any(|&kind| kind as usize >= request.kinds.len()) {
                return Err(invalid(format!("component `{}` has an unknown layer kind", component.name)));
            }
            if kinds.is_empty() {
                return Err(invalid(format!("component `{}` has no layers", component.name)));
            }
            let mut donors = vec![None; kinds.len()];
            let mut last_reader = vec![0; kinds.len()];
            if let crate::Body::Layers(layers) = &component.body {
                for ((layer, position), donor) in layers.iter().zip(0_u32..).zip(&mut donors) {
                    let Some(from) = layer.donor else { continue };
                    if from >= position {
                        return Err(invalid(format!(
                            "layer {position} reads the state of layer {from}, which is not earlier"
                        )));
                    }
                    *donor = Some(from);
                    last_reader[from as usize] = position + 1;
                }
            }
            let placed =
                settings.place.iter().find(|(placed, _)| *placed == index).map(|(_, target)| *target);
            let most_shards = settings.most_shards.iter().filter(|_| !relaxed.preferences);
            let most_shards = most_shards.filter(|(of, _)| *of == index).map(|(_, most)| *most).min();
            let layered = component.layer_count() > 0;
            let mut choices = Vec::new();
            for target in 0..request.targets.len() {
                let target = u32::try_from(target).unwrap_or(u32::MAX);
                if placed.is_some_and(|placed| placed != target) {
                    continue;
                }
                // The graph comes first, because the earlier of two equals wins.
                for &softcap in &softcap_places(component, settings) {
                    let kinds = unit_kinds_at(component, softcap);
                    if kinds.iter().any(|&kind| kind as usize >= request.kinds.len()) {
                        let message = format!("component `{}` has an unknown kind", component.name);
                        return Err(invalid(message));
                    }
                    settings.budget.spend((kinds.len() as u64).saturating_mul(usable.len() as u64));
                    let units = mix::Units {
                        request,
                        table: &table,
                        component: index,
                        kinds: &kinds,
                        layered,
                        target,
                        goals,
                        stage: relaxed.stage,
                        gain: relaxed.stage.gain(settings),
                        entries: &entries,
                        wanted,
                        barred,
                        losses: &losses,
                        costs: OnceCell::new(),
                    };
                    for formats in units.assignments(&usable, !relaxed.quality) {
                        choices.push(Choice::new(&units, formats, softcap));
                    }
                }
            }
            settings.budget.spend(PREPARED * (choices.len() * kinds.len()) as u64);
            parts.push(Part {
                component: index,
                units: kinds.len(),
                layered,
                donors,
                last_reader,
                most_shards,
                choices,
                ranks: Vec::new(),
            });
        }
        // Independent of the stage, so that plans of all stages are compared alike.
        let least = least_nanoseconds(&parts);
        let noise = (least / search::NOISE).max(search::ROUNDED);
        let boundary = request.boundary_nanoseconds.saturating_add(noise);
        let is_simple = settings.effort == Effort::Simple;
        let intervals = intervals(request, &entries);
        let ranks = if is_simple { (0..request.targets.len() as u64).collect() } else { ranks(&intervals) };
        if relaxed.stage.stays {
            let mut before = 0;
            for part in &mut parts {
                let moves = relaxed
                    .stage
                    .moved
                    .map(|(first, end)| first.saturating_sub(before)..end.saturating_sub(before));
                part.stay(&ranks, moves.unwrap_or_default());
                before += part.units;
            }
        }
        // The first target, which runs most layers, decides which quantity is balanced.
        let first = intervals.first().copied().flatten().filter(|_| !is_simple);
        let balanced_by = match settings.balance {
            Balance::Automatic if first.is_some_and(|time| time.likely > 0) => Balance::Time,
            Balance::Automatic if request.costs.iter().any(|cost| cost.weight_bytes > 0) => Balance::Bytes,
            Balance::Automatic => Balance::Operations,
            chosen => chosen,
        };
        let runs = prefill_runs(&entries, request.goals.prompt_tokens);
        let rows = entries.iter().zip(runs).map(|(entry, runs)| runs.saturating_mul(entry.rows.into()));
        let places = request
            .targets
            .iter()
            .map(|target| {
                let same = |other: &crate::Target| other.shim == target.shim && other.device == target.device;
                u32::try_from(request.targets.iter().position(same).unwrap_or(0)).unwrap_or(u32::MAX)
            })
            .collect();
        let most = (0..request.targets.len()).map(|target| most(&parts, target)).collect();
        Ok(Self {
            request,
            settings,
            table,
            losses,
            relaxed,
            goals,
            weighs_losses: request.weighs_losses(),
            prompt_rows: rows.fold(0, u64::saturating_add),
            entries,
            usable,
            parts,
            most,
            limits: request.targets.iter().map(|target| TargetBounds::new(target, &[])).collect(),
            places,
            intervals,
            ranks,
            boundary,
            balanced_by,
        })
    }

    /// Adds the formats of these shards as choices, for each component that one target runs
    /// completely.
    fn offer(&mut self, shards: &[Placement]) {
        for place in 0..self.parts.len() {
            let part = &self.parts[place];
            let own = || shards.iter().filter_map(|shard| Some((shard, shard.segment(part.component)?)));
            let formats: Vec<u32> = own().flat_map(|(_, segment)| segment.formats.iter().copied()).collect();
            let Some((first, _)) = own().next() else { continue };
            let component = &self.request.model.components[part.component as usize];
            let (target, softcap) = (first.target, component.softcap.as_ref().and(first.softcap));
            let alike = |(shard, segment): (&Placement, &Segment)| {
                let class = segment.formats.first().zip(formats.first());
                let same = class.is_some_and(|(own, first)| mix::is_same_class(self.request, *own, *first));
                shard.target == target && same
            };
            let offered = |choice: &Choice| {
                (choice.target, choice.softcap, &choice.formats) == (target, softcap, &formats)
            };
            if formats.len() != part.units || !own().all(alike) || part.choices.iter().any(offered) {
                continue;
            }
            let kinds = unit_kinds_at(component, softcap);
            let choice = Choice::new(&self.units_of(part, &kinds, target), formats, softcap);
            self.parts[place].choices.push(choice);
        }
    }

    /// Returns the units of a part on a target, with these kinds.
    fn units_of<'a>(&'a self, part: &Part, kinds: &'a [u32], target: u32) -> mix::Units<'a> {
        mix::Units {
            request: self.request,
            table: &self.table,
            component: part.component,
            kinds,
            layered: part.layered,
            target,
            goals: self.goals,
            stage: self.relaxed.stage,
            gain: self.relaxed.stage.gain(self.settings),
            entries: &self.entries,
            wanted: if self.relaxed.preferences { &[] } else { &self.settings.wanted },
            barred: if self.relaxed.forbidden { &[] } else { &self.settings.barred },
            losses: &self.losses,
            costs: OnceCell::new(),
        }
    }

    /// Returns the location and format of the states of a choice. They must be equal for a reader.
    fn home(&self, choice: &Choice) -> u32 {
        let formats = u32::try_from(self.request.state_formats.len()).unwrap_or(u32::MAX);
        self.places[choice.target as usize].saturating_mul(formats).saturating_add(choice.values.1)
    }

    /// Returns whether losses are part of the objective.
    fn counts_loss(&self) -> bool {
        self.request.goals.least_loss || self.settings.order.contains(&Goal::Loss)
    }

    /// Returns the contribution of a shard to the objective.
    fn objective(&self, choice: &Choice, cost: &RangeCost, range: (usize, usize)) -> search::Sums {
        preferences::in_order(self.sums(choice, cost, range), &self.settings.order)
    }

    /// Returns the number of units of all parts.
    fn units(&self) -> usize {
        self.parts.iter().map(|part| part.units).sum()
    }

    /// Returns whether only ranks of targets come before losses in the objective.
    fn is_known_before_losses(&self) -> bool {
        let before = self.place_of(Goal::Loss);
        Goal::ALL.into_iter().all(|goal| goal == Goal::Targets || self.place_of(goal) >= before)
    }

    /// Returns the position of a goal in the objective.
    fn place_of(&self, goal: Goal) -> usize {
        let mut places = [0; Goal::ALL.len()];
        places[goal as usize] = 1;
        let places = preferences::in_order(places, &self.settings.order);
        places.iter().position(|place| *place == 1).unwrap_or(0)
    }

    /// Returns the contribution of a shard to the objective, in the order of [`Goal::ALL`].
    fn sums(&self, choice: &Choice, cost: &RangeCost, (first, end): (usize, usize)) -> search::Sums {
        let (place, units) = (choice.target as usize, (end - first) as u64);
        let later = choice.later[end] - choice.later[first];
        if self.settings.effort == Effort::Simple {
            return [self.ranks[place].saturating_mul(units), 0, 0, 1, later];
        }
        let loss = match self.counts_loss() {
            true => choice.loss[end].saturating_sub(choice.loss[first]).saturating_add(LEAST_SAVED),
            false => 0,
        };
        let nanoseconds = self.nanoseconds(cost);
        let priced = match (self.weighs_losses, later) {
            // If only some layers must not have the first formats, the other layers are not charged
            // for that.
            (false, 1..) if choice.formats[first..end].contains(&0) => {
                let later = choice.later_time[end] - choice.later_time[first];
                nanoseconds.saturating_add(with_gain(later, self.settings.gain))
            }
            (false, 1..) => nanoseconds.saturating_add(with_gain(nanoseconds, self.settings.gain)),
            (false, 0) => nanoseconds,
            (true, _) => {
                let later = choice.later_time[end] - choice.later_time[first];
                nanoseconds.saturating_add(with_gain(later, self.relaxed.stage.gain(self.settings)))
            }
        };
        let rank = self.ranks[place].saturating_mul(units);
        [rank, loss, priced.saturating_add(self.boundary), 1, later]
    }

    /// Returns the time that is minimised: the likely time of a token, plus, with a usual answer
    /// length, a share of the time to the first token.
    fn nanoseconds(&self, cost: &RangeCost) -> u64 {
        let token = cost.time.likely.saturating_mul(1000);
        match u64::from(self.request.goals.answer_tokens) {
            0 => token,
            answer => {
                let first = cost.prefill.likely.saturating_add(cost.time.likely);
                token.saturating_add(first.saturating_mul(1000) / answer)
            }
        }
    }

    /// Returns the quantity by which a shard of a component with layers is balanced.
    fn weight(&self, cost: &RangeCost) -> u64 {
        match self.balanced_by {
            Balance::Time => cost.time.likely,
            Balance::Operations => cost.ops,
            Balance::Bytes | Balance::Automatic => cost.weight_bytes,
        }
    }

    fn is_forbidden(&self, segments: Vec<Segment>, target: u32, softcap: Option<SoftcapPlace>) -> bool {
        self.settings.forbidden.contains(&Forbidden { segments, target, softcap })
    }

    /// Returns the indices of forbidden shards that begin with these segments and continue.
    fn at_risk(&self, segments: &[Segment], target: u32) -> Vec<usize> {
        let begins = |shard: &Forbidden| {
            shard.target == target
                && shard.segments.len() > segments.len()
                && shard.segments.starts_with(segments)
        };
        let forbidden = self.settings.forbidden.iter().enumerate();
        forbidden.filter(|(_, shard)| begins(shard)).map(|(index, _)| index).collect()
    }

    /// Returns whether a search must check for forbidden shards.
    fn forbids(&self) -> bool {
        !self.relaxed.forbidden && !self.settings.forbidden.is_empty()
    }

    /// Returns the contribution of a separate shard to the objective in addition to its cost.
    fn one_shard(&self) -> search::Sums {
        self.shard_and(0)
    }

    /// Returns the contribution of a separate shard like [`one_shard`](Self::one_shard), plus the
    /// smallest overhead of its calls.
    fn least_shard(&self) -> search::Sums {
        let calls = self.calls().map(|call| call.likely);
        self.shard_and(calls.min().unwrap_or(0).saturating_mul(1000))
    }

    /// Iterates over the overheads of a run of a shard on each target.
    fn calls(&self) -> impl Iterator<Item = Interval> {
        let targets = 0..self.request.targets.len();
        targets.map(|target| call_of(self.request, u32::try_from(target).unwrap_or(u32::MAX)))
    }

    /// Returns an upper bound on the saving of a component that joins the previous shard.
    fn most_saved(&self) -> search::Sums {
        let runs = |part: &Part| {
            part.choices.iter().map(|choice| choice.prefix.sum(0, part.units).prefill_runs).max()
        };
        let prefill_runs = self.parts.iter().filter_map(runs).max().unwrap_or(0);
        let alone = RangeCost { prefill_runs, ..RangeCost::default() };
        let most = self.calls().map(|call| self.nanoseconds(&alone.called(call))).max().unwrap_or(0);
        let gain = if self.weighs_losses { 0 } else { self.settings.gain };
        // Each share is rounded separately.
        let rounded = u64::from(self.request.goals.answer_tokens > 0) + u64::from(gain > 0);
        self.shard_and(most.saturating_add(with_gain(most, gain)).saturating_add(rounded))
    }

    fn shard_and(&self, nanoseconds: u64) -> search::Sums {
        let (loss, more) = match self.settings.effort {
            Effort::Simple => (0, 0),
            Effort::Thorough => (self.loss_of_a_shard(), self.boundary.saturating_add(nanoseconds)),
        };
        preferences::in_order([0, loss, more, 1, 0], &self.settings.order)
    }

    /// Returns the loss that an additional shard must save.
    fn loss_of_a_shard(&self) -> u64 {
        if self.counts_loss() { LEAST_SAVED } else { 0 }
    }

    /// Returns a time as part of the objective.
    fn in_time(&self, nanoseconds: u64) -> search::Sums {
        let nanoseconds = if self.settings.effort == Effort::Simple { 0 } else { nanoseconds };
        preferences::in_order([0, 0, nanoseconds, 0, 0], &self.settings.order)
    }

    /// Returns the additional time of the runtime per step if one shard follows another, in
    /// nanoseconds.
    fn transfer(&self, before: u32, after: u32) -> u64 {
        let place = |target: u32| self.places.get(target as usize);
        if place(before) == place(after) { 0 } else { self.request.transfer_nanoseconds }
    }
}

impl Part {
    /// Keeps every unit on the targets of the first rank that supports it. Units in a range whose
    /// donors and readers are in it too must be on the other targets that support them.
    fn stay(&mut self, ranks: &[u64], moves: std::ops::Range<usize>) {
        let rank = |choice: &Choice| ranks.get(choice.target as usize).copied().unwrap_or(u64::MAX);
        let donors = self.donors.iter().map(|donor| donor.map(|own| own as usize));
        let moves = moved::closed(&donors.collect::<Vec<_>>(), moves);
        let allowed = |(unit, moves): (usize, &bool)| {
            let able = self.choices.iter().filter(|choice| choice.cost_of_unit(unit).is_some());
            let able = able.map(rank);
            let first = able.clone().min().unwrap_or(u64::MAX);
            match able.filter(|rank| *moves && *rank > first).min() {
                Some(second) => (second, u64::MAX),
                None => (0, first),
            }
        };
        self.ranks = moves.iter().enumerate().map(allowed).collect();
        for choice in &mut self.choices {
            let (own, mut more) = (rank(choice), 0);
            for (unwanted, (least, most)) in choice.unwanted[1..].iter_mut().zip(&self.ranks) {
                more += u32::from(!(*least..=*most).contains(&own));
                *unwanted += more;
            }
        }
    }

    /// Returns whether a unit may be on a target of this rank.
    fn may_be_on(&self, rank: u64, unit: usize) -> bool {
        self.ranks.get(unit).is_none_or(|(least, most)| (*least..=*most).contains(&rank))
    }

    /// Returns units as the segment of a plan: a range of layers, or 0..0 for the whole component.
    fn segment(&self, first: usize, end: usize, choice: &Choice) -> Segment {
        let formats = choice.formats(first, end);
        let layer = |unit: usize| if self.layered { u32::try_from(unit).unwrap_or(u32::MAX) } else { 0 };
        Segment { component: self.component, first: layer(first), end: layer(end), formats }
    }
}

const RUNTIME: Option<SoftcapPlace> = Some(SoftcapPlace::Runtime);

/// Returns the places where the soft-cap of a component may be computed, best first. A component
/// without one gets a single `None`.
fn softcap_places(component: &crate::Component, settings: &Settings) -> Vec<Option<SoftcapPlace>> {
    match (&component.softcap, settings.softcap) {
        (None, _) => vec![None],
        (Some(_), Some(asked)) => vec![Some(asked)],
        (Some(_), None) => vec![Some(SoftcapPlace::Graph), RUNTIME],
    }
}

/// Returns for every target the sum of the times of its legal rows of the main entry point, or
/// `None` if it has no such row.
fn intervals(request: &Request, entries: &[Entry]) -> Vec<Option<Interval>> {
    let main = entries.first().copied();
    let mut sums: Vec<Option<Interval>> = vec![None; request.targets.len()];
    for cost in request.costs.iter().filter(|cost| Some(cost.entry) == main) {
        let Some((sum, time)) = sums.get_mut(cost.target as usize).zip(cost.time()) else { continue };
        *sum = Some(sum.unwrap_or_default().and(time.into()));
    }
    sums
}

/// Returns the rank of every target in the order of the request. A target has the rank of the one
/// before it unless its interval is wider. Targets without a legal row are skipped.
fn ranks(intervals: &[Option<Interval>]) -> Vec<u64> {
    let mut before: Option<(u64, Interval)> = None;
    let targets = intervals.iter().zip(0_u64..);
    let rank = targets.map(|(own, index)| match (*own, before) {
        (None, before) => before.map_or(index, |(rank, _)| rank),
        (Some(own), Some((rank, width))) if !own.is_wider_than(&width) => {
            before = Some((rank, own));
            rank
        }
        (Some(own), _) => {
            before = Some((index, own));
            index
        }
    });
    rank.collect()
}

/// Returns an upper bound on the cost of a shard of the whole model on a target: for every
/// component and quantity, the most expensive formats.
fn most(parts: &[Part], target: usize) -> RangeCost {
    let of = |part: &Part| {
        let choices = part.choices.iter().filter(|choice| choice.target as usize == target);
        let costs = choices.map(|choice| choice.prefix.sum(0, part.units));
        costs.fold(RangeCost::default(), |most, cost| RangeCost {
            ops: most.ops.max(cost.ops),
            weight_bytes: most.weight_bytes.max(cost.weight_bytes),
            artefact_bytes: most.artefact_bytes.max(cost.artefact_bytes),
            state_bytes: most.state_bytes.max(cost.state_bytes),
            longest_run: most.longest_run.max(cost.longest_run),
            ..most
        })
    };
    parts.iter().map(of).fold(RangeCost::default(), |sum, cost| sum.joined(&cost))
}

/// Returns the sum of the least likely times of all units.
fn least_nanoseconds(parts: &[Part]) -> u64 {
    let unit = |part: &Part, unit: usize| {
        let times = part.choices.iter().filter_map(|choice| {
            let cost = choice.cost(unit, unit + 1)?.computed();
            Some(cost.time.likely.saturating_mul(1000))
        });
        times.min().unwrap_or(0)
    };
    let units = parts.iter().flat_map(|part| (0..part.units).map(move |index| unit(part, index)));
    units.fold(0, u64::saturating_add)
}

/// Returns the time to add to formats so that they must save `percent` of the time.
fn with_gain(nanoseconds: u64, percent: u32) -> u64 {
    let rest = u64::from(100_u32.saturating_sub(percent).max(1));
    nanoseconds.saturating_mul(100 - rest) / rest
}

/// Returns whether the solver may choose a tuple by itself. Two-bit weights are allowed only if
/// losses count, or if no other format is offered.
fn is_admitted(request: &Request, formats: u32) -> bool {
    request.weighs_losses()
        || !has_two_bits(request, formats)
        || (0..request.formats.len() as u32).all(|formats| has_two_bits(request, formats))
}

fn has_two_bits(request: &Request, formats: u32) -> bool {
    let narrow = |format: &Format| !format.is_float() && format.bits <= 2;
    request.weight_formats_of(formats).any(narrow)
}

/// Returns the sums up to each item, beginning with 0.
fn cumulative(items: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut sums = vec![0_u64];
    for item in items {
        sums.push(sums.last().copied().unwrap_or(0).saturating_add(item));
    }
    sums
}

/// The losses of a request, by component and unit.
pub(super) struct Losses<'request> {
    request: &'request Request,
    /// For each component, the losses by unit and format tuple, in this order.
    known: Vec<Vec<Option<u64>>>,
}

impl<'request> Losses<'request> {
    fn new(request: &'request Request) -> Self {
        let mut weights: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for row in &request.sensitivities {
            weights.entry((row.component, row.layer)).or_default().push(row);
        }
        let mut values: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for row in &request.value_sensitivities {
            values.entry((row.component, row.layer)).or_default().push(row);
        }
        let tuples = 0..u32::try_from(request.formats.len()).unwrap_or(u32::MAX);
        let components = (0_u32..).zip(&request.model.components);
        let known = components.map(|(index, component)| {
            let units = 0..u32::try_from(unit_kinds(component).len()).unwrap_or(u32::MAX);
            let of_unit = |unit: u32| {
                let weights = weights.get(&(index, unit)).map_or(&[][..], Vec::as_slice);
                let values = values.get(&(index, unit)).map_or(&[][..], Vec::as_slice);
                tuples.clone().map(move |formats| loss(request, weights, values, formats))
            };
            units.flat_map(of_unit).collect()
        });
        Self { request, known: known.collect() }
    }

    /// Returns the loss of a unit in a format tuple, in millionths of a nat, or `None` if the loss
    /// of its weights is unknown. Float weights have no loss, and unknown losses of values are not
    /// counted.
    fn of(&self, component: u32, unit: u32, formats: u32) -> Option<u64> {
        let tuples = self.request.formats.len();
        let place = (unit as usize).checked_mul(tuples)?.checked_add(formats as usize)?;
        let known = self.known.get(component as usize).filter(|_| (formats as usize) < tuples)?;
        known.get(place).copied().flatten()
    }

    /// Returns the loss of all units of a shard, as far as it is known.
    fn of_shard(&self, shard: &Placement) -> u64 {
        self.units(&shard.segments).flatten().fold(0, u64::saturating_add)
    }

    /// Returns whether the loss of every unit of a shard is known.
    fn knows(&self, shard: &Placement) -> bool {
        self.units(&shard.segments).all(|loss| loss.is_some())
    }

    fn units<'s>(&'s self, segments: &'s [Segment]) -> impl Iterator<Item = Option<u64>> + 's {
        segments.iter().flat_map(move |segment| {
            let units = (segment.first..).zip(&segment.formats);
            units.map(move |(unit, formats)| self.of(segment.component, unit, *formats))
        })
    }

    /// Returns the cumulative losses of the units of a component in these format tuples, and the
    /// cumulative number of units whose loss is needed but unknown.
    fn cumulative(&self, component: u32, formats: &[u32]) -> (Vec<u64>, Vec<u32>) {
        let needed = self.request.weighs_losses();
        let (mut loss, mut unmeasured) = (vec![0_u64], vec![0_u32]);
        for (unit, &formats) in (0_u32..).zip(formats) {
            let own = self.of(component, unit, formats);
            loss.push(loss[unit as usize].saturating_add(own.unwrap_or(0)));
            unmeasured.push(unmeasured[unit as usize] + u32::from(needed && own.is_none()));
        }
        (loss, unmeasured)
    }
}

/// Returns the loss of a unit with these rows in a format tuple.
fn loss(
    request: &Request,
    weights: &[&Sensitivity],
    values: &[&ValueSensitivity],
    formats: u32,
) -> Option<u64> {
    let tuple = request.formats.get(formats as usize)?;
    let has = |row: &&&ValueSensitivity| match row.values.as_str() {
        "activations" => row.format == tuple.activations,
        "states" => row.format == tuple.states,
        _ => false,
    };
    let values = values.iter().filter(has).map(|row| u64::from(row.micronats)).fold(0, u64::saturating_add);
    if request.weight_formats_of(formats).all(Format::is_float) {
        return Some(values);
    }
    let mut here = weights.iter().filter(|row| tuple.weight(&row.role) == row.format).peekable();
    here.peek()?;
    Some(here.fold(values, |sum, row| sum.saturating_add(row.micronats.into())))
}
