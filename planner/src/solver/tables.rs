//! Choice of the formats of gathered tables. They only share the goals for size and quality with
//! the shards, so each set of table formats leaves a rest of these goals for cuts and mixtures.

use std::borrow::Cow;

use super::goals::{Stage, stages};
use super::preferences::in_order;
use super::reach::Reach;
use super::search::{self, Sums};
use super::{
    Effort, Gap, Goal, Placement, Problem, Relaxed, Settings, Solution, Trade, diagnose, entry_sets,
    fallback, freer, mix,
};
use crate::{
    Cause, GatheredTable, Goal as Bound, Goals, Reason, Refusal, RefusalKind, Request, TableFormat, names,
};

/// Maximum number of sets of formats that are tried. Two tables in three formats have nine.
const MOST: usize = 16;

/// A format for each gathered table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Tables {
    /// For each table, the index of the format in its list.
    formats: Vec<u32>,
    /// Bytes of all tables together.
    bytes: u64,
    /// Known loss of all tables together.
    micronats: u64,
    /// Order of preference of sets: the loss if losses count, otherwise the positions in the lists.
    rank: u64,
}

impl Tables {
    /// Returns the request with the rest of its goals after these tables, or `None` if they alone
    /// exceed a goal.
    pub(super) fn rest_of<'r>(&self, request: &'r Request) -> Option<Cow<'r, Request>> {
        let goals = &request.goals;
        let holds = |goal: Option<u64>, own: u64| goal.is_none_or(|goal| own <= goal);
        let both = holds(goals.size_bytes(), self.bytes) && holds(goals.quality_micronats(), self.micronats);
        both.then(|| self.at_most_rest_of(request))
    }

    /// Returns the request like [`rest_of`](Self::rest_of), with a rest of 0 for a goal that these
    /// tables exceed.
    pub(super) fn at_most_rest_of<'r>(&self, request: &'r Request) -> Cow<'r, Request> {
        let mut goals = request.goals.clone();
        for bound in &mut goals.bounds {
            match bound {
                Bound::SizeBytes(most) => *most = most.saturating_sub(self.bytes),
                Bound::QualityMicronats(most) => *most = most.saturating_sub(self.micronats),
                _ => {}
            }
        }
        match goals == request.goals {
            true => Cow::Borrowed(request),
            false => Cow::Owned(Request { goals, ..request.clone() }),
        }
    }

    /// Returns the objective of a solution with these tables, for comparison with other tables. It
    /// is the objective of its shards, with plain times and with the loss of the tables.
    fn merit(&self, problem: &Problem<'_>, solution: &Solution) -> Sums {
        let losses = &problem.losses;
        let mut sums = Sums::default();
        let mut add = |goal: Goal, value: u64| {
            let sum = &mut sums[goal as usize];
            *sum = sum.saturating_add(value);
        };
        for pair in solution.shards.windows(2) {
            add(Goal::Time, problem.transfer(pair[0].target, pair[1].target));
        }
        for shard in &solution.shards {
            add(Goal::Targets, problem.ranks[shard.target as usize].saturating_mul(shard.units()));
            if problem.counts_loss() {
                add(Goal::Loss, losses.of_shard(shard).saturating_add(problem.loss_of_a_shard()));
            }
            add(Goal::Time, problem.nanoseconds(&shard.cost).saturating_add(problem.boundary));
            add(Goal::Shards, 1);
            add(Goal::Formats, shard.formats().map(u64::from).fold(0, u64::saturating_add));
        }
        if problem.counts_loss() {
            add(Goal::Loss, self.micronats);
        }
        in_order(sums, &problem.settings.order)
    }

    /// Adds the loss of these tables to a gap.
    fn gap(&self, gap: Option<Gap>) -> Option<Gap> {
        let gap = gap?;
        let more = if gap.goal == Goal::Loss { self.micronats } else { 0 };
        let with = |value: u64| value.saturating_add(more);
        Some(Gap { value: with(gap.value), least: with(gap.least), ..gap })
    }

    /// Returns the bytes of all tables together.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns these tables' amount of a quantity that a goal limits.
    pub(super) fn part_of(&self, kind: RefusalKind) -> u64 {
        match kind {
            RefusalKind::OverSize => self.bytes,
            RefusalKind::OverQuality => self.micronats,
            _ => 0,
        }
    }

    /// Returns why no plan has these tables: a goal that they alone exceed, or the refusal for the
    /// shards.
    fn refusal(&self, goals: &Goals, shards: impl FnOnce() -> Refusal) -> Refusal {
        let alone = |goal: Option<u64>, kind, what: &str, name: &str| {
            let own = self.part_of(kind);
            let goal = goal.filter(|goal| own > *goal)?;
            let [shown, most] = names::against_goal(name, own, goal);
            let message = format!("the gathered tables alone {what} {shown}, the goal is {most}");
            Some(Refusal::new(kind, message).with("goal", goal).with("tables", own))
        };
        let quality = alone(goals.quality_micronats(), RefusalKind::OverQuality, "lose", "quality");
        if let Some(quality) = quality {
            return quality;
        }
        let refusal = shards();
        let size = alone(goals.size_bytes(), RefusalKind::OverSize, "have", "size");
        match size.filter(|_| refusal.kind != RefusalKind::OverSize) {
            Some(size) => size,
            None => refusal,
        }
    }
}

/// Returns the sets of formats that a best plan may have, the preferred one first, the smallest
/// last. If sizes do not count there is only one.
///
/// Fails with `over-quality` if losses count and no loss of a table is known.
pub(super) fn sets(request: &Request) -> Result<Vec<Tables>, Refusal> {
    let mut sets = vec![Tables::default()];
    for table in &request.tables {
        let formats = candidates(request, table)?;
        let with = |set: &Tables| {
            let more = |(place, format, rank): &(u32, &TableFormat, u64)| Tables {
                formats: set.formats.iter().copied().chain([*place]).collect(),
                bytes: set.bytes.saturating_add(format.bytes),
                micronats: set.micronats.saturating_add(format.micronats.unwrap_or(0).into()),
                rank: set.rank.saturating_add(*rank),
            };
            formats.iter().map(more).collect::<Vec<_>>()
        };
        sets = frontier(sets.iter().flat_map(with).collect());
    }
    if request.goals.size_bytes().is_none() {
        sets.truncate(1);
    }
    Ok(sets)
}

/// Returns the formats of a table with their positions and ranks.
fn candidates<'t>(
    request: &Request,
    table: &'t GatheredTable,
) -> Result<Vec<(u32, &'t TableFormat, u64)>, Refusal> {
    let weighed = request.weighs_losses();
    let rank = |place: u32, format: &TableFormat| match weighed {
        true => format.micronats.map(u64::from),
        false => Some(place.into()),
    };
    let found: Vec<_> = (0_u32..)
        .zip(&table.formats)
        .filter_map(|(place, format)| Some((place, format, rank(place, format)?)))
        .collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let (kind, message) = match table.formats.is_empty() {
        true => (RefusalKind::InvalidRequest, format!("table `{}` has no format", table.name)),
        false => (
            RefusalKind::OverQuality,
            format!("no loss is known for any format of table `{}`, and losses count", table.name),
        ),
    };
    Err(Refusal::new(kind, message).with("table", &table.name))
}

/// Keeps only sets that are smaller than every preferred one, from the preferred one to the
/// smallest. If there are too many, chooses them evenly, including both ends.
fn frontier(mut sets: Vec<Tables>) -> Vec<Tables> {
    sets.sort_by(|a, b| (a.rank, a.bytes, &a.formats).cmp(&(b.rank, b.bytes, &b.formats)));
    let mut least = u64::MAX;
    sets.retain(|set| {
        let smaller = set.bytes < least || least == u64::MAX;
        least = least.min(set.bytes);
        smaller
    });
    if sets.len() > MOST {
        let last = sets.len() - 1;
        let mut places: Vec<usize> = (0..MOST).map(|place| place * last / (MOST - 1)).collect();
        places.dedup();
        sets = places.into_iter().filter_map(|place| sets.get(place).cloned()).collect();
    }
    sets
}

/// Finds the optimum of a stage with the flags that the request recommends. If the budget is spent,
/// no set is tried after a plan is found, and without a plan only the smallest tables are tried.
pub(super) fn solve(
    request: &Request,
    settings: &Settings,
    stage: Stage,
) -> Result<Option<Solution>, Refusal> {
    let sets = sets(request)?;
    let mut best: Option<(Solved, usize)> = None;
    let mut gaps: Vec<Gap> = Vec::new();
    let (mut exact, mut found_with, mut is_cut) = (true, 0, false);
    let turn = in_turn(request, settings, stage, &sets)?;
    let last = turn.iter().map(|(place, _)| *place).max().unwrap_or(0);
    for (place, least) in turn {
        let set = &sets[place];
        if best.as_ref().zip(least).is_some_and(|((best, _), least)| best.merit < least) {
            continue;
        }
        if settings.budget.is_spent() && (best.is_some() || place != last) {
            is_cut = true;
            continue;
        }
        let others = place + 1 < sets.len() && request.weighs_losses() && !request.goals.least_loss;
        let Some(found) = solve_within(request, settings, stage, (set, others))? else { continue };
        exact &= found.solution.exact;
        found_with += 1;
        gaps.extend(found.solution.gap);
        // If losses do not count, preferred tables come after targets, and before times.
        let (weighed, is_placed_best) = (request.weighs_losses(), found.rank == 0);
        let enough = if weighed { found.is_free_of_size } else { stage.stays || is_placed_best };
        let better = |(best, before): &(Solved, usize)| match weighed {
            true => (found.merit, place) < (best.merit, *before),
            false => found.rank < best.rank,
        };
        if best.as_ref().is_none_or(better) {
            best = Some((found, place));
        }
        if enough {
            break;
        }
    }
    let Some((best, _)) = best else { return Ok(None) };
    let own = best.solution.gap;
    if found_with == 1 && !is_cut {
        return Ok(Some(Solution { exact, ..best.solution }));
    }
    // Other tables are not proven to be worse.
    let goal = own.or(gaps.first().copied()).map(|gap| gap.goal);
    let least = gaps.iter().filter(|gap| Some(gap.goal) == goal).map(|gap| gap.least).min();
    let value = match goal {
        Some(Goal::Loss) => best.loss,
        Some(Goal::Time) => best.nanoseconds,
        _ => own.map_or(0, |own| own.value),
    };
    let gap = goal.zip(least).map(|(goal, least)| Gap { goal, value, least });
    let gap = if is_cut {
        // No bound is known for the sets that were not tried.
        let goal = Trade::of(request).map_or(Goal::Time, Trade::goal);
        let value = if goal == Goal::Loss { best.loss } else { best.nanoseconds };
        Some(Gap { goal, value, least: 0 })
    } else {
        gap
    };
    let exact = exact && !is_cut;
    Ok(Some(Solution { exact, gap: gap.filter(|gap| gap.value > gap.least), ..best.solution }))
}

/// Returns the sets in the order in which they are tried. If the loss is minimised, they are
/// ordered by a lower bound for plans with them, so that few are tried. Otherwise the preferred one
/// is first. The lower bound is known only if no parts of the objective except ranks of targets
/// come before losses.
fn in_turn(
    request: &Request,
    settings: &Settings,
    stage: Stage,
    sets: &[Tables],
) -> Result<Vec<(usize, Option<Sums>)>, Refusal> {
    let reach = match request.weighs_losses() && freer::bounds_bytes(request) {
        true => Some(Reach::new(request, settings, stage)?),
        false => None,
    };
    let is_allowed = |set: &Tables| {
        reach.as_ref().is_none_or(|reach| reach.iter().any(|reach| reach.allows(request, set)))
    };
    let sets: Vec<(usize, &Tables)> = (0..).zip(sets).filter(|(_, set)| is_allowed(set)).collect();
    let plain = || sets.iter().map(|(place, _)| (*place, None)).collect();
    let Some(trade) = Trade::of(request).filter(|trade| trade.goal() == Goal::Loss && sets.len() > 1) else {
        return Ok(plain());
    };
    let mut turn = Vec::with_capacity(sets.len());
    for &(place, set) in &sets {
        // A set that cannot meet a goal is tried last.
        let mut least = [u64::MAX; Goal::ALL.len()];
        let Some(rest) = set.rest_of(request) else { continue };
        for entries in entry_sets(request)? {
            let problem = Problem::new(&rest, settings, entries, unmixed(stage))?;
            if !problem.is_known_before_losses() {
                return Ok(plain());
            }
            let Some(layers) = mix::least(&problem, trade) else { continue };
            let mut own = mix::least_before_costs(&problem, trade);
            own[problem.place_of(Goal::Loss)] =
                layers.saturating_add(set.micronats).saturating_add(problem.loss_of_a_shard());
            least = own.min(least);
        }
        turn.push((place, Some(least)));
    }
    turn.sort_by_key(|(place, least)| (*least, *place));
    Ok(turn)
}

/// Returns the bytes of the gathered tables in the formats with these positions in their lists.
pub(super) fn bytes(request: &Request, formats: &[u32]) -> u64 {
    let chosen = request.tables.iter().zip(formats);
    let chosen = chosen.filter_map(|(table, format)| table.formats.get(*format as usize));
    chosen.map(|format| format.bytes).fold(0, u64::saturating_add)
}

/// Returns a lower bound on the size of plans without a goal for it. These have the preferred
/// tables.
pub(super) fn least_bytes(request: &Request) -> u64 {
    let tables = sets(request).ok().and_then(|sets| sets.into_iter().next());
    let shards = fallback::least_units(request, fallback::indices(request.targets.len()));
    tables.map_or(0, |tables| tables.bytes).saturating_add(shards)
}

/// Returns whether the first of two solutions is the better one: better placed, or equal there,
/// with room for as many fallbacks, and faster than one that is not proven optimal.
pub(super) fn is_better(
    request: &Request,
    settings: &Settings,
    (own, other): (&Solution, &Solution),
) -> Result<bool, Refusal> {
    if own.is_better_placed(other) {
        return Ok(true);
    }
    if other.is_better_placed(own) || other.exact || !own.reserve.is_as_wide(&other.reserve) {
        return Ok(false);
    }
    let merit = |solution: &Solution| {
        let problem = Problem::new(request, settings, solution.entries.clone(), unmixed(solution.stage))?;
        Ok(Tables::default().merit(&problem, solution))
    };
    Ok(merit(own)? < merit(other)?)
}

/// Returns the constraints of a stage for a problem that is not searched, without the mixtures of
/// formats, which cost most of its preparation.
pub(super) fn unmixed(stage: Stage) -> Relaxed {
    Relaxed { quality: true, ..within(stage) }
}

/// A solution with certain tables.
struct Solved {
    solution: Solution,
    merit: Sums,
    /// Sum of the ranks of targets, by layer.
    rank: u64,
    /// Known loss of shards and tables.
    loss: u64,
    /// Minimised time of a token, without transfers between shards.
    nanoseconds: u64,
    /// Whether a larger size goal would not improve the shards.
    is_free_of_size: bool,
}

/// Returns the constraints of a stage.
fn within(stage: Stage) -> Relaxed {
    Relaxed { stage, ..Relaxed::default() }
}

/// Finds the optimum of a stage with these tables, or `None` if there is none. `others` specifies
/// whether to check the effect of a larger size goal.
fn solve_within(
    request: &Request,
    settings: &Settings,
    stage: Stage,
    (tables, others): (&Tables, bool),
) -> Result<Option<Solved>, Refusal> {
    let Some(rest) = tables.rest_of(request) else { return Ok(None) };
    for entries in entry_sets(request)? {
        let mut problem = Problem::new(&rest, settings, entries.clone(), within(stage))?;
        let Some(found) = search::search(&mut problem) else { continue };
        let objective = found.objective();
        let mut solution = found.into_solution(&problem);
        if settings.effort == Effort::Thorough {
            solution.mixed = mix::polish(&problem, &mut solution);
        }
        solution.tables.clone_from(&tables.formats);
        solution.gap = tables.gap(solution.gap);
        let is_free_of_size = others && !settings.budget.is_spent() && {
            let relaxed = Relaxed { size: true, ..within(stage) };
            let mut freer = Problem::new(&rest, settings, entries, relaxed)?;
            search::search(&mut freer).is_some_and(|freer| freer.objective() == objective)
        };
        let losses = &problem.losses;
        let own = solution.shards.iter().map(|shard| losses.of_shard(shard)).fold(0, u64::saturating_add);
        let times = solution.shards.iter().map(|shard| problem.nanoseconds(&shard.cost));
        let ranks = |shard: &Placement| problem.ranks[shard.target as usize].saturating_mul(shard.units());
        return Ok(Some(Solved {
            rank: solution.shards.iter().map(ranks).fold(0, u64::saturating_add),
            merit: tables.merit(&problem, &solution),
            loss: own.saturating_add(tables.micronats),
            nanoseconds: times.fold(0, u64::saturating_add),
            is_free_of_size,
            solution,
        }));
    }
    Ok(None)
}

/// Returns why no stage has a plan: with the preferred tables, or, if the size prevents one, with
/// the smallest tables. `lost` is the least known loss of a plan without a goal for it.
pub(super) fn no_solution(request: &Request, settings: &Settings, lost: Option<u64>) -> Refusal {
    let sets = match sets(request) {
        Ok(sets) => sets,
        Err(refusal) => return refusal,
    };
    let of = |tables: &Tables| -> Result<Refusal, Refusal> {
        let rest = tables.at_most_rest_of(request);
        let Some(entries) = entry_sets(request)?.into_iter().next() else {
            let message = "the request offers no entry points that fit";
            return Err(Refusal::new(RefusalKind::InvalidRequest, message));
        };
        // The last stage allows most plans.
        let stage = stages(request, settings)?.last().copied().unwrap_or_default();
        let problem = Problem::new(&rest, settings, entries, within(stage))?;
        Ok(tables.refusal(&request.goals, || diagnose::diagnose(&problem, tables, (&request.goals, lost))))
    };
    let of = |tables| of(tables).unwrap_or_else(|refusal| refusal);
    let preferred = sets.first().map(of);
    let quality = request.goals.quality_micronats();
    let loses_less =
        |tables: &&Tables| quality.is_none_or(|goal| tables.part_of(RefusalKind::OverQuality) <= goal);
    let mut refusal = match sets.iter().skip(1).rfind(loses_less) {
        Some(smallest) if preferred.as_ref().is_some_and(|own| own.kind == RefusalKind::OverSize) => {
            of(smallest)
        }
        _ => preferred
            .unwrap_or_else(|| Refusal::new(RefusalKind::InvalidRequest, "there are no tables to choose")),
    };
    if settings.budget.is_spent() {
        refusal.message.push_str(" (the search was cut short)");
    }
    refusal
}

impl Solution {
    /// Explains the formats of tables with several formats.
    pub(super) fn explain_tables(&self, request: &Request, reasons: &mut Vec<Reason>) {
        for (table, &place) in request.tables.iter().zip(&self.tables) {
            let Some(format) = table.formats.get(place as usize) else { continue };
            if table.formats.len() == 1 {
                continue;
            }
            let lost = match format.micronats {
                Some(0) => "without loss".to_owned(),
                Some(micronats) => format!("with a loss of {}", names::micronats(micronats.into())),
                None => "its loss is not known".to_owned(),
            };
            let weighed = request.weighs_losses();
            let earlier = table.formats.iter().take(place as usize);
            let smaller = earlier.clone().all(|other| other.bytes > format.bytes);
            let unknown = earlier.clone().all(|other| other.micronats.is_none());
            let (because, cause) = match (place, request.goals.size_bytes()) {
                (0, None) if !weighed => (
                    format!("the format listed first, and no goal requires a smaller one; {lost}"),
                    Cause::Preference("formats-order".to_owned()),
                ),
                (0, Some(_)) => (
                    format!("the format listed first, and the size goal leaves room for the shards; {lost}"),
                    Cause::Goal("size".to_owned()),
                ),
                (1.., Some(_)) if smaller => {
                    let cut = if self.exact { "" } else { " before the search was cut short" };
                    let because = format!(
                        "smaller than formats listed earlier; no better plan within the size goal was found \
                         with those{cut}; {lost}"
                    );
                    (because, Cause::Goal("size".to_owned()))
                }
                (1.., _) if weighed && unknown => (
                    format!("the loss of formats listed earlier is not known; {lost}"),
                    Cause::Goal("quality".to_owned()),
                ),
                (0, None) => {
                    (format!("the least loss; {lost}"), Cause::Preference("formats-order".to_owned()))
                }
                _ => (format!("the least loss; {lost}"), Cause::Goal("quality".to_owned())),
            };
            reasons.push(Reason {
                shard: None,
                choice: format!(
                    "table {} in {}, {}",
                    table.name,
                    format.format.name,
                    names::bytes(format.bytes)
                ),
                because,
                cause,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::solve;
    use super::Settings;
    use crate::testing::RequestBuilder;
    use crate::{Goal, RefusalKind, Request};

    const TABLE: [(u64, Option<u32>); 3] = [(8000, Some(0)), (4000, Some(70)), (2000, Some(900))];

    /// Bytes of the artefacts in the only format.
    const SHARDS: u64 = 6080;

    fn sized(size: u64, change: impl FnOnce(&mut Request)) -> Request {
        let request = RequestBuilder::decoder(2).table("embedding", &TABLE);
        request
            .table("per-layer", &[(500, Some(0)), (250, None)])
            .change(|request| {
                request.goals.set(Goal::SizeBytes(size));
                request.goals.least_loss = true;
                change(request);
            })
            .build()
    }

    #[test]
    fn tables_are_rounded_where_the_size_asks_for_it_and_no_further() {
        let plan = |size: u64| {
            let request = sized(size, |_| ());
            let plan = solve(&request, &Settings::default()).map(|solution| solution.into_plan(&request));
            plan.map(|plan| (plan.tables.clone(), plan.reasons))
        };
        for (table, place, shown) in [(8000, 0, "7.8 KiB"), (4000, 1, "3.9 KiB"), (2000, 2, "2.0 KiB")] {
            let (tables, reasons) = plan(SHARDS + table + 500).unwrap();
            // The loss of the narrower per-layer table is unknown.
            assert_eq!(tables, [place, 0], "{table}");
            let said =
                reasons.iter().find(|reason| reason.choice.starts_with("table embedding in ")).unwrap();
            assert!(said.choice.ends_with(shown), "{said:?}");
            assert_eq!(said.cause, crate::Cause::Goal("size".to_owned()), "{said:?}");
        }
        let refused = plan(SHARDS + 2499).unwrap_err();
        assert_eq!(refused.kind, RefusalKind::OverSize, "{}", refused.message);
        let least = "the goal for the size is 8.378 KiB, and the nearest that a plan meets is 8.379 KiB";
        assert!(refused.message.contains(least), "{}", refused.message);
        let named: Vec<_> = refused.details.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(named, ["goal", "least"]);
    }

    #[test]
    fn what_tables_lose_is_a_part_of_the_quality_goal() {
        let within = |micronats: u64, size: Option<u64>| {
            let request = sized(0, |request| {
                request.goals.least_loss = false;
                request.goals.bounds = size.into_iter().map(Goal::SizeBytes).collect();
                request.goals.set(Goal::QualityMicronats(micronats));
            });
            solve(&request, &Settings::default())
        };
        let tight = Some(12_000);
        assert_eq!(within(70, tight).unwrap().tables, [1, 0]);
        assert_eq!(within(69, None).unwrap().tables, [0, 0], "without a size nothing is rounded");
        let refused = within(69, tight).unwrap_err();
        assert_eq!(refused.kind, RefusalKind::OverSize, "{}", refused.message);
    }

    /// If losses do not count, the formats listed first are used as long as they fit.
    #[test]
    fn where_losses_do_not_count_the_order_of_formats_does() {
        let plain = |size: Option<u64>| {
            let request = sized(0, |request| {
                request.goals.least_loss = false;
                request.goals.bounds = size.into_iter().map(Goal::SizeBytes).collect();
            });
            solve(&request, &Settings::default()).unwrap().tables
        };
        assert_eq!(plain(None), [0, 0]);
        assert_eq!(plain(Some(20_000)), [0, 0]);
        assert_eq!(plain(Some(SHARDS + 2500)), [2, 0]);
        assert_eq!(plain(Some(SHARDS + 2250)), [2, 1]);
    }

    #[test]
    fn a_table_without_a_known_loss_or_any_format_is_refused_by_its_name() {
        for (formats, kind) in
            [(&[(9, None)][..], RefusalKind::OverQuality), (&[][..], RefusalKind::InvalidRequest)]
        {
            let request = RequestBuilder::decoder(1).table("odd", formats);
            let request = request.change(|request| request.goals.set(Goal::QualityMicronats(10))).build();
            let refused = solve(&request, &Settings::default()).unwrap_err();
            assert_eq!(refused.kind, kind, "{}", refused.message);
            assert!(refused.message.contains("table `odd`"), "{}", refused.message);
        }
        // Goals that the tables alone exceed.
        let request = RequestBuilder::decoder(1).table("large", &[(9, Some(11))]);
        let request = request.change(|request| request.goals.set(Goal::QualityMicronats(10))).build();
        let refused = solve(&request, &Settings::default()).unwrap_err();
        assert_eq!(refused.kind, RefusalKind::OverQuality);
        assert!(refused.message.starts_with("the gathered tables alone lose"), "{}", refused.message);
    }

    /// If there are many sets, evenly spaced ones are tried, including both ends.
    #[test]
    fn of_many_sets_the_preferred_and_the_smallest_are_tried() {
        let formats: Vec<(u64, Option<u32>)> =
            (0..16).map(|place| (1600 - 100 * place, Some(place as u32))).collect();
        let request = (0..6).fold(RequestBuilder::decoder(1), |request, table| {
            request.table(&format!("table {table}"), &formats)
        });
        let request = request.change(|request| request.goals.set(Goal::SizeBytes(1 << 40))).build();
        let sets = super::sets(&request).unwrap();
        assert_eq!(sets.len(), super::MOST);
        assert_eq!((sets[0].bytes, sets[super::MOST - 1].bytes), (6 * 1600, 6 * 100));
        assert!(sets.is_sorted_by(|a, b| a.bytes > b.bytes && a.rank < b.rank));
    }
}
