//! Shows a plan as one page of HTML that needs no other file and no network.
//!
//! `page.html` is the template. The modules prepare its texts. Every text is escaped where the
//! template shows it, because names, flags and reasons come from checkpoints, profiles, planners
//! and shims. The page's own security policy forbids it to load anything, and to run any script
//! except its own.

mod figures;
mod formats;
mod page;
mod shards;
mod strip;
#[cfg(test)]
mod tests;

use minijinja::{Value, context};
use shardwright::{NoticeKind, PlanReport};
use shardwright_build::units::micronats as millinats;
use shardwright_build::{EntryReport, LayerReport, LossReport, ShardReport};

use self::formats::Formats;
use crate::views::forecast;

const STYLE: &str = include_str!("html/page.css");
const SCRIPT: &str = include_str!("html/page.js");

/// The element by which a page is recognised.
const GENERATOR: &str = "<meta name=\"generator\" content=\"shardwright plan\">";

/// Returns whether a file with this beginning is a page of a plan.
pub fn is_page(begin: &[u8]) -> bool {
    begin.windows(GENERATOR.len()).any(|window| window == GENERATOR.as_bytes())
}

/// Returns the page of a plan.
pub fn page(report: &PlanReport) -> String {
    let formats = Formats::of(report);
    let safe = |text: &str| Value::from_safe_string(text.to_owned());
    let notices = report.notices.iter().map(|notice| {
        context! { is_fallback => matches!(notice.kind, NoticeKind::Fallback), text => &*notice.text }
    });
    let artefact = format!("artefact ({})", report.totals.artefacts.provenance);
    let columns =
        ["layer", "shard", "kind", "formats", "operations", "weights", artefact.as_str(), "KV cache", "loss"];
    let entries = report.totals.times.iter().map(|time| time.entry.to_string());
    let scales = strip::Scales::of(report);
    page::rendered(context! {
        generator => safe(GENERATOR),
        script_hash => page::sha256_base64(SCRIPT),
        style => safe(STYLE),
        script => safe(SCRIPT),
        model => &*report.model,
        soc => &*report.soc,
        soc_title => report.soc_title.as_deref(),
        verdict => forecast::verdict(report),
        speed => forecast::speed(&report.forecast.speed, report.pass()),
        planned => planned(report),
        emulated_on => report.emulated_on.as_deref(),
        notices => notices.collect::<Vec<_>>(),
        cards => figures::cards(report),
        goals => figures::goals(report),
        grounds => figures::grounds(report),
        legend => formats.legend(),
        entry => scales.entry.as_deref(),
        scale => scales.layers.shown(),
        component_scale => all_layers(report)
            .any(|(_, layer)| layer.layer.is_none())
            .then(|| scales.components.shown()),
        shards => shards::shards(report, &formats, &scales),
        limits => shards::limits(report),
        plan_reasons => shards::reasons(&report.reasons),
        columns => columns.map(str::to_owned).into_iter().chain(entries).collect::<Vec<_>>(),
    })
}

/// Describes the family, the planner, and what takes over.
fn planned(report: &PlanReport) -> String {
    let mut text = format!("{}, planned by {}", report.family, report.planner);
    match report.refused_plans {
        0 => {}
        1 => text += "; 1 earlier plan was refused and revised",
        plans => text += &format!("; {plans} earlier plans were refused and revised"),
    }
    for (what, is_hedge) in [("if the plan cannot be loaded", true), ("if a target is lost", false)] {
        let chains = report.fallback.iter().filter(|chain| chain.is_hedge() == is_hedge);
        let chains: Vec<String> = chains.map(ToString::to_string).collect();
        if !chains.is_empty() {
            text += &format!("; {what}, {}", chains.join(", then "));
        }
    }
    if let Some(speculation) = &report.speculation {
        text += &format!("; proposed tokens are verified: {speculation}");
    }
    text
}

/// Adjacent layers of one component in a shard.
struct Segment<'r> {
    component: &'r str,
    first: Option<u32>,
    last: Option<u32>,
}

impl Segment<'_> {
    /// Formats the name: `embed`, `decoder 0-5`.
    fn name(&self) -> String {
        match (self.first, self.last) {
            (Some(first), Some(last)) if first == last => format!("{} {first}", self.component),
            (Some(first), Some(last)) => format!("{} {first}-{last}", self.component),
            _ => self.component.to_owned(),
        }
    }
}

/// Returns the parts of a shard, in order.
fn segments(shard: &ShardReport) -> Vec<Segment<'_>> {
    let mut segments: Vec<Segment<'_>> = Vec::new();
    for layer in &shard.by_layer {
        let follows = |last: Option<u32>| last.and_then(|last| last.checked_add(1)) == layer.layer;
        match segments.last_mut() {
            Some(segment)
                if segment.component == layer.component && layer.layer.is_some() && follows(segment.last) =>
            {
                segment.last = layer.layer;
            }
            _ => {
                segments.push(Segment { component: &layer.component, first: layer.layer, last: layer.layer })
            }
        }
    }
    segments
}

/// Formats the contents of a shard: `embed, decoder 0-5`.
fn content(shard: &ShardReport) -> String {
    segments(shard).iter().map(Segment::name).collect::<Vec<_>>().join(", ")
}

/// Formats the name of a layer: `decoder 7`.
fn layer_name(layer: &LayerReport) -> String {
    match layer.layer {
        Some(index) => format!("{} {index}", layer.component),
        None => layer.component.clone(),
    }
}

/// Returns all layers in order of execution, each with its shard.
fn all_layers(report: &PlanReport) -> impl Iterator<Item = (&ShardReport, &LayerReport)> {
    report.shards.iter().flat_map(|shard| shard.by_layer.iter().map(move |layer| (shard, layer)))
}

/// Returns the most interesting entry point: the one for one token, or else the first one.
fn main_entry(report: &PlanReport) -> Option<String> {
    let mut names = report.totals.times.iter().map(|time| time.entry.to_string());
    let first = names.clone().next();
    names.find(|name| name.starts_with("decode_1@")).or(first)
}

/// Returns the part of a layer in the entry point of this name, if it has work there.
fn part<'r>(layer: &'r LayerReport, entry: &str) -> Option<&'r EntryReport> {
    layer.entries.iter().find(|part| part.ops > 0 && part.entry.to_string() == entry)
}

fn loss(loss: &LossReport) -> String {
    match loss {
        LossReport::None => "none".to_owned(),
        LossReport::Measured { micronats } => millinats(*micronats),
        LossReport::Expected { micronats, .. } => format!("about {}", millinats(*micronats)),
        LossReport::NotMeasured { .. } => "not measured".to_owned(),
    }
}
