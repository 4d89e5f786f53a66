//! Compares two plans fact by fact. Items in both plans are reported by the facts that differ,
//! items in only one plan as added or removed.

use std::collections::BTreeMap;

use serde::Serialize;
use shardwright_build::{LayerReport, PlanReport, ReasonReport, ShardReport};
use shardwright_vocabulary::TimeCost;

use super::facts::{self, Facts};

/// The topic of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlanTopic {
    /// The plan as a whole: model, profile, planner, cut.
    Plan,
    /// Totals of all shards.
    Totals,
    Goals,
    /// Limits of targets.
    Limits,
    Shards,
    Layers,
    /// Reasons for choices.
    Reasons,
    Notices,
}

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlanUnit {
    /// A count, or text.
    None,
    Bytes,
    Microseconds,
    Nanoseconds,
    /// Millionths of a nat per token.
    Micronats,
    /// Tokens in a thousand seconds.
    #[serde(rename = "tokens-per-1000-seconds")]
    TokensPer1000Seconds,
}

/// A number, a time or a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum PlanValue {
    /// A number in the unit of the change.
    Number(u64),
    /// A time with its interval and its source.
    Time(TimeCost),
    Text(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanChange {
    pub topic: PlanTopic,
    /// The changed item, such as `decoder 0-5` or `hexagon ops`. Empty for the plan as a whole.
    pub place: String,
    /// The changed fact. Empty if the item itself was added or removed.
    pub what: String,
    /// The old value. `None` if the item or fact was added.
    pub before: Option<PlanValue>,
    /// The new value. `None` if the item or fact was removed.
    pub after: Option<PlanValue>,
    /// The unit of both values.
    pub unit: PlanUnit,
}

/// Returns all changes, by topic.
pub fn between(before: &PlanReport, after: &PlanReport) -> Vec<PlanChange> {
    let whole = |facts| vec![(String::new(), facts)];
    let mut changes = Vec::new();
    let mut add = |topic, before, after| compare(topic, before, after, &mut changes);
    add(PlanTopic::Plan, whole(facts::of_plan(before)), whole(facts::of_plan(after)));
    add(PlanTopic::Totals, whole(facts::of_totals(before)), whole(facts::of_totals(after)));
    add(PlanTopic::Goals, goals(before), goals(after));
    add(PlanTopic::Limits, limits(before), limits(after));
    add(PlanTopic::Shards, shards(before), shards(after));
    add(PlanTopic::Reasons, reasons(before), reasons(after));
    add(PlanTopic::Notices, notices(before), notices(after));
    layers(before, after, &mut changes);
    changes.sort_by_key(|change| change.topic);
    changes
}

/// Facts of items, with the items' names.
type Named = Vec<(String, Facts)>;

fn goals(report: &PlanReport) -> Named {
    report.goals.iter().map(|goal| (goal.goal.name().to_owned(), facts::of_goal(goal))).collect()
}

fn limits(report: &PlanReport) -> Named {
    let limits = report.limits.iter();
    let limits =
        limits.map(|limit| (format!("{} {}", limit.target, limit.limit.name), facts::of_limit(limit)));
    let shared = report.shared_limits.iter();
    let shared = shared.map(|used| (format!("all shards on {}", used.target), facts::of_use(&used.limit)));
    limits.chain(shared).collect()
}

fn shards(report: &PlanReport) -> Named {
    report.shards.iter().map(|shard| (facts::shard_name(shard), facts::of_shard(shard))).collect()
}

fn reasons(report: &PlanReport) -> Named {
    let named = |place: &str, reason: &ReasonReport| {
        (format!("{place}: {}", reason.choice), facts::of_reason(reason))
    };
    let of_plan = report.reasons.iter().map(|reason| named("the plan", reason));
    let of_shard = |shard: &ShardReport| {
        let name = facts::shard_name(shard);
        shard.reasons.iter().map(|reason| named(&name, reason)).collect::<Vec<_>>()
    };
    of_plan.chain(report.shards.iter().flat_map(of_shard)).collect()
}

fn notices(report: &PlanReport) -> Named {
    let kind = |notice: &shardwright_vocabulary::Notice| match notice.kind {
        shardwright_vocabulary::NoticeKind::Fallback => "fallback",
        shardwright_vocabulary::NoticeKind::Warning => "warning",
        // Plans of earlier versions have only notes.
        shardwright_vocabulary::NoticeKind::Making | shardwright_vocabulary::NoticeKind::Note => "note",
    };
    report
        .notices
        .iter()
        .map(|notice| (format!("{}: {}", kind(notice), notice.text), Facts::default()))
        .collect()
}

/// Consecutive layers of a component, from the first to the last, with the same change.
struct Run {
    change: PlanChange,
    component: String,
    /// `None` for a component without layers.
    layers: Option<(u32, u32)>,
}

impl Run {
    /// Returns whether this layer is next and changed in the same way.
    fn goes_on(&self, layer: Option<u32>, change: &PlanChange) -> bool {
        let next = self.layers.and_then(|(_, last)| last.checked_add(1));
        next.is_some()
            && next == layer
            && (&self.change.before, &self.change.after) == (&change.before, &change.after)
            && self.change.unit == change.unit
    }
}

/// Collects changes of layers. Adjacent layers with the same change are merged.
fn layers(before: &PlanReport, after: &PlanReport, changes: &mut Vec<PlanChange>) {
    let mut found = Vec::new();
    compare(PlanTopic::Layers, layers_of(before), layers_of(after), &mut found);
    let mut runs: Vec<Run> = Vec::new();
    // The last run of each component and fact.
    let mut open: BTreeMap<(String, String), usize> = BTreeMap::new();
    for change in found {
        let (component, layer) = split_place(&change.place);
        let key = (component.clone(), change.what.clone());
        let run = open.get(&key).and_then(|index| runs.get_mut(*index));
        if let Some(run) = run.filter(|run| run.goes_on(layer, &change)) {
            run.layers = run.layers.zip(layer).map(|((first, _), last)| (first, last));
            continue;
        }
        open.insert(key, runs.len());
        runs.push(Run { change, component, layers: layer.map(|layer| (layer, layer)) });
    }
    changes.extend(runs.into_iter().map(|Run { change, component, layers }| PlanChange {
        place: match layers {
            Some((first, last)) if first < last => format!("{component} {first}-{last}"),
            _ => change.place.clone(),
        },
        ..change
    }));
}

/// Separator of the component and the number of a layer.
const BEFORE_NUMBER: &str = " ";

fn layers_of(report: &PlanReport) -> Named {
    let named = |shard: &ShardReport, layer: &LayerReport| {
        let name = match layer.layer {
            Some(number) => format!("{}{BEFORE_NUMBER}{number}", layer.component),
            None => layer.component.clone(),
        };
        (name, facts::of_layer(layer, &shard.target))
    };
    report
        .shards
        .iter()
        .flat_map(|shard| shard.by_layer.iter().map(move |layer| named(shard, layer)))
        .collect()
}

fn split_place(place: &str) -> (String, Option<u32>) {
    let split = place.rsplit_once(BEFORE_NUMBER);
    match split.and_then(|(component, number)| Some((component, number.parse().ok()?))) {
        Some((component, number)) => (component.to_owned(), Some(number)),
        None => (place.to_owned(), None),
    }
}

/// Adds the differences between items of one topic.
fn compare(topic: PlanTopic, before: Named, after: Named, changes: &mut Vec<PlanChange>) {
    for (place, before, after) in paired(before, after) {
        let came_or_went = |there: bool| there.then(|| PlanValue::Text("there".to_owned()));
        let (Some(before), Some(after)) = (&before, &after) else {
            changes.push(PlanChange {
                topic,
                place,
                what: String::new(),
                before: came_or_went(before.is_some()),
                after: came_or_went(after.is_some()),
                unit: PlanUnit::None,
            });
            continue;
        };
        let named = |facts: &Facts| facts.0.iter().map(|fact| (fact.what.clone(), fact.clone())).collect();
        for (what, before, after) in paired(named(before), named(after)) {
            let value = |fact: &Option<facts::Fact>| fact.as_ref().map(|fact| fact.value.clone());
            if value(&before) == value(&after) {
                continue;
            }
            let unit = before.iter().chain(&after).map(|fact| fact.unit).find(|unit| *unit != PlanUnit::None);
            changes.push(PlanChange {
                topic,
                place: place.clone(),
                what,
                before: value(&before),
                after: value(&after),
                unit: unit.unwrap_or(PlanUnit::None),
            });
        }
    }
}

/// Pairs items with the same name in order, following the order of `before`. Items that only
/// `after` has come last.
fn paired<T>(before: Vec<(String, T)>, after: Vec<(String, T)>) -> Vec<(String, Option<T>, Option<T>)> {
    let mut places: BTreeMap<String, (usize, Vec<usize>)> = BTreeMap::new();
    let mut pairs: Vec<(String, Option<T>, Option<T>)> = Vec::with_capacity(before.len());
    for (name, thing) in before {
        places.entry(name.clone()).or_default().1.push(pairs.len());
        pairs.push((name, Some(thing), None));
    }
    for (name, thing) in after {
        let (taken, known) = places.entry(name.clone()).or_default();
        let place = known.get(*taken).and_then(|place| pairs.get_mut(*place));
        *taken += 1;
        match place {
            Some(pair) => pair.2 = Some(thing),
            None => pairs.push((name, None, Some(thing))),
        }
    }
    pairs
}
