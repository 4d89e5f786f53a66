//! Comparison of each shard with its alternatives, as the search compares them: with the same
//! checks and the same objective, and with the shard's target, formats or soft-cap replaced.
//! Reasons are derived only from this.

use super::search::Sums;
use super::{Choice, Goal, Placement, Problem, Relaxed, Settings, Solution, relief};
use crate::table::{RangeCost, unit_kinds_at};
use crate::{Refusal, Request, Segment, SoftcapPlace};

/// The alternatives to the choices of a solution.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Decided {
    /// Alternatives of each shard, in order.
    pub(super) shards: Vec<Rivals>,
    /// Nanoseconds that one additional shard must save.
    pub(super) boundary: u64,
}

/// The alternatives to one shard.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Rivals {
    /// Amounts of the shard itself.
    pub(super) own: Amounts,
    /// The shard on the other targets, in the order of the request.
    pub(super) targets: Vec<Rival>,
    /// The shard on its own target in each other format tuple, in the order of the request.
    pub(super) formats: Vec<Rival>,
    /// The shard with its soft-cap at the other place.
    pub(super) softcap: Option<Rival>,
}

/// One alternative to a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rival {
    pub(super) target: u32,
    /// Format tuple of its first unit.
    pub(super) formats: u32,
    pub(super) verdict: Verdict,
    /// `None` if the target does not support the shard.
    pub(super) amounts: Option<Amounts>,
}

/// Amounts that the objective compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Amounts {
    /// Nanoseconds that the objective counts, with transfers between devices, but without the
    /// savings required of formats and shards.
    pub(super) nanoseconds: u64,
    /// Loss in millionths of a nat.
    pub(super) loss: u64,
}

/// Why an alternative was not chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The target does not support it, for this reason.
    Illegal(String),
    /// A preference requires other formats for some of its layers.
    Unwanted,
    /// The target computes some of its layers wrongly in these formats.
    Barred,
    /// The loss of some layers is needed but unknown.
    UnknownLoss,
    /// It exceeds a limit of its target.
    Limit { name: String, value: u64, most: u64 },
    /// The compiler or device refused this shard before.
    Refused,
    /// Other shards read its states elsewhere or in another format.
    States,
    /// The chain would exceed a goal.
    Goal { name: &'static str, value: u64, most: u64 },
    /// It is worse in this part of the objective, and equal in the parts before.
    Worse(Goal),
    /// It is equal in every part of the objective. The one listed first is chosen.
    Equal,
    /// It is better by itself. The search was cut short, or compared whole chains of other shards.
    Better,
}

impl Verdict {
    /// Returns whether the alternative is a legal plan, so that the objective decided.
    pub(super) fn is_legal(&self) -> bool {
        matches!(self, Verdict::Worse(_) | Verdict::Equal | Verdict::Better)
    }
}

/// Compares a solution with its alternatives, one shard at a time.
///
/// # Errors
///
/// The errors of [`solve`](super::solve) for the request.
pub(super) fn compare(request: &Request, settings: &Settings, found: &Solution) -> Result<Decided, Refusal> {
    let request = &relief::with_flags(request, &found.relieving);
    let relaxed = Relaxed { stage: found.stage, ..Relaxed::default() };
    let problem = Problem::new(request, settings, found.entries.clone(), relaxed)?;
    let compared = Comparison { problem: &problem, found };
    Ok(Decided {
        shards: (0..found.shards.len()).map(|index| compared.rivals(index)).collect(),
        boundary: problem.boundary,
    })
}

struct Comparison<'a> {
    problem: &'a Problem<'a>,
    found: &'a Solution,
}

/// A shard's contribution to the objective, with its cost and loss.
struct Weighed {
    sums: Sums,
    cost: RangeCost,
    loss: u64,
}

impl Comparison<'_> {
    fn rivals(&self, index: usize) -> Rivals {
        let shard = &self.found.shards[index];
        let Ok(own) = self.weigh(index, shard) else { return Rivals::default() };
        let others = (0..self.problem.request.targets.len()).map(|target| target as u32);
        let others = others.filter(|target| *target != shard.target);
        let formats = self.problem.usable.iter().copied();
        let formats = formats.filter(|formats| shard.uniform_formats() != Some(*formats));
        let softcap = shard.softcap.map(|place| match place {
            SoftcapPlace::Graph => SoftcapPlace::Runtime,
            SoftcapPlace::Runtime => SoftcapPlace::Graph,
        });
        let rival = |other: &Placement| self.rival(index, &own, other);
        Rivals {
            own: self.amounts(index, shard, &own),
            targets: others.map(|target| self.on_target(index, &own, target)).collect(),
            formats: formats.map(|formats| rival(&in_formats(shard, formats))).collect(),
            softcap: softcap.map(|place| rival(&Placement { softcap: Some(place), ..shard.clone() })),
        }
    }

    /// Compares the shard on another target: in its own formats, otherwise in the first tuple in
    /// which it is a legal plan there.
    fn on_target(&self, index: usize, own: &Weighed, target: u32) -> Rival {
        let shard = &self.found.shards[index];
        let moved = Placement { target, ..shard.clone() };
        let first = self.rival(index, own, &moved);
        if first.verdict.is_legal() {
            return first;
        }
        let formats = self.problem.usable.iter();
        let mut others = formats.map(|formats| self.rival(index, own, &in_formats(&moved, *formats)));
        others.find(|rival| rival.verdict.is_legal()).unwrap_or(first)
    }

    fn rival(&self, index: usize, own: &Weighed, other: &Placement) -> Rival {
        let weighed = self.weigh(index, other);
        let amounts = weighed.as_ref().ok().map(|weighed| self.amounts(index, other, weighed));
        let verdict = match weighed {
            Err(verdict) => verdict,
            Ok(weighed) => {
                self.obstacle(index, other, &weighed).unwrap_or_else(|| self.verdict(own, &weighed))
            }
        };
        let formats = other.formats().next().unwrap_or(0);
        Rival { target: other.target, formats, verdict, amounts }
    }

    fn amounts(&self, index: usize, shard: &Placement, weighed: &Weighed) -> Amounts {
        Amounts {
            nanoseconds: self
                .problem
                .nanoseconds(&weighed.cost)
                .saturating_add(self.transfers(index, shard.target)),
            loss: weighed.loss,
        }
    }

    /// Returns the time of transfers from and to the adjacent shards if this shard is on a target.
    fn transfers(&self, index: usize, target: u32) -> u64 {
        let at = |index: usize| self.found.shards.get(index).map(|shard| shard.target);
        let before = index.checked_sub(1).and_then(at).map(|before| self.problem.transfer(before, target));
        let after = at(index + 1).map(|after| self.problem.transfer(target, after));
        before.unwrap_or(0).saturating_add(after.unwrap_or(0))
    }

    /// Computes the shard's part of the objective, component by component as the search does.
    fn weigh(&self, index: usize, shard: &Placement) -> Result<Weighed, Verdict> {
        let problem = self.problem;
        let one = problem.one_shard();
        let mut sums = problem.in_time(self.transfers(index, shard.target));
        let (mut open, mut loss) = (None::<RangeCost>, 0_u64);
        for segment in &shard.segments {
            let (choice, first, end) = self.choice(segment, shard)?;
            let Some(cost) = choice.cost(first, end) else { return Err(self.illegal_parts(shard)) };
            if choice.unmeasured[end] > choice.unmeasured[first] {
                return Err(Verdict::UnknownLoss);
            }
            loss = loss.saturating_add(choice.loss[end].saturating_sub(choice.loss[first]));
            let added = open.as_ref().map(|before| cost.joining(before.prefill_runs));
            let mut own = problem.objective(&choice, added.as_ref().unwrap_or(&cost), (first, end));
            if added.is_some() {
                own.iter_mut().zip(&one).for_each(|(sum, one)| *sum = sum.saturating_sub(*one));
            }
            sums.iter_mut().zip(own).for_each(|(sum, own)| *sum = sum.saturating_add(own));
            open = Some(open.map_or_else(|| cost.clone(), |before| before.joined(&cost)));
        }
        Ok(Weighed { sums, cost: open.unwrap_or_default(), loss })
    }

    /// Returns the formats of a segment on a target as a choice of its whole component, with the
    /// range of its units.
    fn choice(&self, segment: &Segment, shard: &Placement) -> Result<(Choice, usize, usize), Verdict> {
        let missing = || Verdict::Illegal("not part of the model".to_owned());
        let part = self.problem.parts.iter().find(|part| part.component == segment.component);
        let part = part.ok_or_else(missing)?;
        let component = &self.problem.request.model.components[segment.component as usize];
        let softcap = component.softcap.as_ref().and(shard.softcap);
        let (first, end) = match part.layered {
            true => (segment.first as usize, segment.end as usize),
            false => (0, part.units),
        };
        let mut formats = vec![segment.formats.first().copied().unwrap_or(0); part.units];
        let own = formats.get_mut(first..end).filter(|own| own.len() == segment.formats.len());
        own.ok_or_else(missing)?.copy_from_slice(&segment.formats);
        let kinds = unit_kinds_at(component, softcap);
        let units = self.problem.units_of(part, &kinds, shard.target);
        Ok((Choice::new(&units, formats, softcap), first, end))
    }

    /// Returns why some segments of a shard have no cost. If their reasons differ, or other
    /// segments have a cost, each reason names its component.
    fn illegal_parts(&self, shard: &Placement) -> Verdict {
        let has_cost = |segment: &Segment| {
            let Ok((choice, first, end)) = self.choice(segment, shard) else { return false };
            choice.cost(first, end).is_some()
        };
        let illegal: Vec<(&Segment, Verdict)> = shard
            .segments
            .iter()
            .filter(|segment| !has_cost(segment))
            .map(|segment| (segment, self.illegal(segment, shard)))
            .collect();
        let whys = illegal.iter().map(|(segment, verdict)| match verdict {
            Verdict::Illegal(why) => Some((*segment, why)),
            _ => None,
        });
        let Some(whys) = whys.collect::<Option<Vec<_>>>().filter(|whys| !whys.is_empty()) else {
            let other = illegal.into_iter().find(|(_, verdict)| !matches!(verdict, Verdict::Illegal(_)));
            return other.map_or(Verdict::Unwanted, |(_, verdict)| verdict);
        };
        let same = whys.iter().all(|(_, why)| *why == whys[0].1);
        if same && whys.len() == shard.segments.len() {
            return Verdict::Illegal(whys[0].1.clone());
        }
        let components = &self.problem.request.model.components;
        let named = |(segment, why): &(&Segment, &String)| {
            format!("`{}`: {why}", components[segment.component as usize].name)
        };
        Verdict::Illegal(whys.iter().map(named).collect::<Vec<_>>().join("; "))
    }

    /// Returns why a segment has no cost.
    fn illegal(&self, segment: &Segment, shard: &Placement) -> Verdict {
        let problem = self.problem;
        let request = problem.request;
        let component = &request.model.components[segment.component as usize];
        let kinds = unit_kinds_at(component, component.softcap.as_ref().and(shard.softcap));
        let layered = component.layer_count() > 0;
        let units = (segment.first as usize..).zip(&segment.formats);
        for (unit, &formats) in units {
            let Some(&kind) = kinds.get(unit) else { continue };
            let why = problem.table.illegal(request, kind, shard.target, formats, &problem.entries);
            if let Some(why) = why {
                return Verdict::Illegal(why);
            }
            let barred = super::Barred {
                component: segment.component,
                unit: if layered { unit as u32 } else { 0 },
                target: shard.target,
                formats,
            };
            if problem.settings.barred.contains(&barred) {
                return Verdict::Barred;
            }
        }
        Verdict::Unwanted
    }

    /// Returns the first limit, refusal or goal that rules out an alternative.
    fn obstacle(&self, index: usize, other: &Placement, weighed: &Weighed) -> Option<Verdict> {
        let problem = self.problem;
        let limits = &problem.limits[other.target as usize];
        let over = |name: &str, value: u64, most: u64| Verdict::Limit { name: name.to_owned(), value, most };
        if let Some((bound, value)) = limits.exceeded(&weighed.cost) {
            return Some(over(&bound.limit.name, value, bound.value));
        }
        if problem.settings.forbidden.contains(&other.forbidden()) {
            return Some(Verdict::Refused);
        }
        let rest = || self.found.shards.iter().enumerate().filter(move |(place, _)| *place != index);
        let there = || rest().filter(|(_, shard)| shard.target == other.target);
        let (shards, bytes) = (there().count() as u64 + 1, |shard: &Placement| shard.cost.context_bytes());
        if let Some(most) = limits.shards.filter(|most| shards > most.value) {
            return Some(over(&most.limit.name, shards, most.value));
        }
        let held = there().fold(weighed.cost.context_bytes(), |sum, (_, own)| sum.saturating_add(bytes(own)));
        if let Some(most) = limits.memory_bytes.filter(|most| held > most.value) {
            return Some(over(&most.limit.name, held, most.value));
        }
        if self.moves_states(index, other) {
            return Some(Verdict::States);
        }
        let mut costs: Vec<(u32, &RangeCost)> =
            self.found.shards.iter().map(|own| (own.target, &own.cost)).collect();
        costs[index] = (other.target, &weighed.cost);
        let losses = rest().map(|(_, own)| problem.losses.of_shard(own));
        self.goal_exceeded(&costs, losses.fold(weighed.loss, u64::saturating_add))
    }

    /// Returns the first goal that shards with these targets and costs and this loss exceed,
    /// including the tables and the reserve for other chains.
    fn goal_exceeded(&self, costs: &[(u32, &RangeCost)], loss: u64) -> Option<Verdict> {
        let problem = self.problem;
        let (goals, stage) = (&problem.request.goals, problem.relaxed.stage);
        let tables = problem.request.tables.iter().zip(&self.found.tables);
        let tables: Vec<_> =
            tables.filter_map(|(table, format)| table.formats.get(*format as usize)).collect();
        let table_bytes = tables.iter().map(|table| table.bytes).fold(0, u64::saturating_add);
        let table_loss = tables.iter().filter_map(|table| table.micronats).map(u64::from);
        let beside = table_bytes.saturating_add(self.found.reserve.bytes());
        let sum =
            |of: fn(&RangeCost) -> u64| costs.iter().map(|(_, cost)| of(cost)).fold(0, u64::saturating_add);
        let times = problem.times(costs.iter().copied());
        let (token, first) = (times.token.microseconds(), times.first_token.microseconds());
        let held = [
            ("memory-bytes", goals.memory_bytes(), sum(RangeCost::context_bytes)),
            ("size", goals.size_bytes(), sum(|cost| cost.artefact_bytes).saturating_add(beside)),
            ("token-microseconds", goals.token_microseconds(), stage.of(token)),
            ("first-token-microseconds", goals.first_token_microseconds(), stage.of(first)),
            ("quality", goals.quality_micronats(), table_loss.fold(loss, u64::saturating_add)),
        ];
        held.into_iter().find_map(|(name, most, value)| {
            let most = most.filter(|most| value > *most)?;
            Some(Verdict::Goal { name, value, most })
        })
    }

    /// Returns whether an alternative moves states that other shards read or write.
    fn moves_states(&self, index: usize, other: &Placement) -> bool {
        let home = |shard: &Placement, segment: &Segment| {
            let place = self.problem.places.get(shard.target as usize);
            let tuple =
                segment.formats.first().and_then(|own| self.problem.request.formats.get(*own as usize));
            (place.copied(), tuple.map(|tuple| tuple.states))
        };
        let shard = &self.found.shards[index];
        shard.segments.iter().zip(&other.segments).any(|(own, moved)| {
            let Some(part) = self.problem.parts.iter().find(|part| part.component == own.component) else {
                return false;
            };
            let range = own.first..own.end;
            let crosses = (0_u32..).zip(&part.donors).any(|(reader, donor)| {
                donor.is_some_and(|donor| range.contains(&reader) != range.contains(&donor))
            });
            crosses && home(shard, own) != home(other, moved)
        })
    }

    fn verdict(&self, own: &Weighed, other: &Weighed) -> Verdict {
        let place = (0..own.sums.len()).find(|place| own.sums[*place] != other.sums[*place]);
        let Some(place) = place else { return Verdict::Equal };
        if other.sums[place] < own.sums[place] {
            return Verdict::Better;
        }
        let goal = Goal::ALL.into_iter().find(|goal| self.problem.place_of(*goal) == place);
        goal.map_or(Verdict::Equal, Verdict::Worse)
    }
}

/// Returns a shard with one format tuple for all its units.
fn in_formats(shard: &Placement, formats: u32) -> Placement {
    let of = |segment: &Segment| Segment { formats: vec![formats; segment.formats.len()], ..segment.clone() };
    Placement { segments: shard.segments.iter().map(of).collect(), ..shard.clone() }
}
