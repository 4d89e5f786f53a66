//! Each shard with its layers, formats, entry points, flags and reasons, and the limits that it
//! comes close to.

use std::collections::HashMap;

use minijinja::{Value, context};
use shardwright::PlanReport;
use shardwright_build::units::{self, apart, quantity};
use shardwright_build::{
    BoundaryReport, EntryReport, IntervalText, LayerReport, LimitUse, ReasonReport, ShardReport,
};

use super::formats::Formats;
use super::strip::Scales;
use super::{content, layer_name, loss};
use crate::views::{bytes, forecast};

/// Number of styles for the line above a shard. Further targets share styles, but never names.
const LINES: usize = 4;

/// Returns all shards in order of execution.
pub fn shards(report: &PlanReport, formats: &Formats, scales: &Scales) -> Vec<Value> {
    let mut targets: Vec<&str> = Vec::new();
    let mut next = 0;
    let shards = report.shards.iter().map(|shard| {
        let target = targets.iter().position(|target| *target == shard.target).unwrap_or_else(|| {
            targets.push(&shard.target);
            targets.len() - 1
        });
        let first = next;
        next += shard.by_layer.len();
        let layers = shard.by_layer.iter().enumerate();
        let layers = layers.map(|(index, layer)| self::layer(report, layer, first + index, formats, scales));
        context! {
            index => shard.index,
            content => content(shard),
            target => &*shard.target,
            line => target % LINES,
            closest => shard.limits.iter().max_by_key(|used| used.thousandths).map(limit_use),
            layers => layers.collect::<Vec<_>>(),
            facts => facts(report, shard),
            entries => shard
                .entries
                .iter()
                .filter(|entry| entry.ops > 0)
                .map(|entry| {
                    let (value, ground) = time(entry);
                    format!("{} ({value}, {ground})", entry.entry)
                })
                .collect::<Vec<_>>()
                .join(", "),
            flags => shard.flags.iter().map(ToString::to_string).collect::<Vec<_>>(),
            reasons => reasons(&shard.reasons),
        }
    });
    shards.collect()
}

/// Returns a layer for its cell of the strip and its row of the table.
fn layer(
    report: &PlanReport,
    layer: &LayerReport,
    index: usize,
    formats: &Formats,
    scales: &Scales,
) -> Value {
    let shown = layer.shown_formats();
    let mark = formats.mark(&shown);
    let (name, weights, loss) = (layer_name(layer), bytes(layer.weight_bytes), loss(&layer.loss));
    let parts: HashMap<String, &EntryReport> =
        layer.entries.iter().map(|part| (part.entry.to_string(), part)).collect();
    let times = report.totals.times.iter().map(|total| {
        match parts.get(&total.entry.to_string()).filter(|part| part.ops > 0) {
            None => ("not used".to_owned(), None),
            Some(part) => {
                let (value, ground) = time(part);
                (value, Some(ground))
            }
        }
    });
    context! {
        index,
        label => format!("{name}: {shown}, {weights}, {}, loss {loss}", scales.time(layer)),
        short => layer.layer.map_or_else(|| layer.component.clone(), |number| number.to_string()),
        kind => &*layer.kind,
        formats => shown,
        colour => mark.colour(),
        letter => mark.letter(),
        tracks => scales.tracks(layer),
        times => times.collect::<Vec<_>>(),
        numbers => [
            layer.ops.to_string(),
            weights,
            bytes(layer.artefact_bytes),
            bytes(layer.state_bytes),
            loss,
        ],
        name,
    }
}

/// Returns the time of an entry point and its basis.
fn time(entry: &EntryReport) -> (String, String) {
    let source = forecast::source(entry.time.provenance.name(), entry.uncosted_ops);
    (IntervalText::time(&entry.time).to_string(), source)
}

fn facts(report: &PlanReport, shard: &ShardReport) -> Vec<(&'static str, String)> {
    let artefacts = report.totals.artefacts.provenance;
    let mut facts = vec![
        ("formats", shard.shown_formats()),
        ("operations", shard.ops.to_string()),
        ("weights", format!("{} (counted)", bytes(shard.weight_bytes))),
        ("artefact", format!("{} ({artefacts})", bytes(shard.artefact_bytes))),
        ("KV cache", format!("{} (counted)", bytes(shard.state_bytes))),
        ("context", format!("{} tokens", shard.context)),
        ("reads", boundaries(&shard.inputs)),
        ("writes", boundaries(&shard.outputs)),
    ];
    facts.extend(shard.softcap.map(|place| ("soft-cap", format!("in the {place}"))));
    facts.push(("build", shard.build.to_string()));
    facts
}

fn boundaries(all: &[BoundaryReport]) -> String {
    let named = all.iter().map(|boundary| match &boundary.encoding {
        Some(encoding) => format!("{} as {encoding}", boundary.name),
        None => boundary.name.clone(),
    });
    if all.is_empty() { "nothing".to_owned() } else { named.collect::<Vec<_>>().join(", ") }
}

/// Returns the choices of a planner, grouped by their ground: a dozen flags of a profile have the
/// same ground.
pub fn reasons(reasons: &[ReasonReport]) -> Vec<Value> {
    let mut grounds: Vec<(&ReasonReport, Vec<String>)> = Vec::new();
    let mut known: HashMap<(&str, String), usize> = HashMap::new();
    for reason in reasons {
        let next = grounds.len();
        let index = *known.entry((&reason.because, reason.cause.to_string())).or_insert(next);
        match grounds.get_mut(index) {
            Some((_, choices)) => choices.push(reason.choice.clone()),
            None => grounds.push((reason, vec![reason.choice.clone()])),
        }
    }
    let grounds = grounds.into_iter().map(|(reason, choices)| {
        context! { choices, because => &*reason.because, cause => reason.cause.to_string() }
    });
    grounds.collect()
}

/// Returns the limits of all targets, each with the shards that it applies to.
pub fn limits(report: &PlanReport) -> Vec<Value> {
    let limits = report.limits.iter().map(|entry| {
        let limit = &entry.limit;
        let shown = |value| quantity(&limit.name, value);
        let of_target = || report.shards.iter().filter(|shard| shard.target == entry.target);
        let of_shards = of_target().flat_map(|shard| {
            let name = format!("shard {}: {}", shard.index, content(shard));
            shard.limits.iter().map(move |used| (name.clone(), Some(shard.index), used))
        });
        let shared = report.shared_limits.iter().filter(|shared| shared.target == entry.target);
        let shared = shared.map(|shared| ("all shards together".to_owned(), None, &shared.limit));
        let uses = of_shards.chain(shared).filter(|(.., used)| used.name == limit.name);
        let uses = uses.map(|(of, shard, used)| context! { of, shard, ..limit_use(used) });
        let relief = limit.relief.iter().map(|relief| {
            context! { flag => relief.flag.to_string(), value => relief.value.map(shown), note => &*relief.note }
        });
        context! {
            target => &*entry.target,
            name => &*limit.name,
            value => shown(limit.value),
            provenance => limit.provenance.name(),
            note => &*limit.note,
            relief => relief.collect::<Vec<_>>(),
            uses => uses.collect::<Vec<_>>(),
            is_planned => of_target().next().is_some(),
        }
    });
    limits.collect()
}

fn limit_use(used: &LimitUse) -> Value {
    context! {
        name => &*used.name,
        thousandths => used.thousandths,
        share => units::share(used.used, used.limit),
        value => apart(&used.name, [used.used, used.limit]).join(" of "),
    }
}
