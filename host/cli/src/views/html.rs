//! Shows a plan as one page of HTML that needs no other file and no network.
//!
//! Every text goes through [`Page::text`], which escapes it: names, flags and reasons come from
//! checkpoints, profiles, planners and shims. The page's own security policy forbids it to load
//! anything, and to run any script except its own.

mod formats;
mod layers;
mod limits;
mod page;
mod shards;
mod strip;
mod summary;
#[cfg(test)]
mod tests;

use shardwright::PlanReport;
use shardwright_build::units::{micronats as millinats, microseconds as duration, quantity};
use shardwright_build::{EntryReport, LayerReport, LossReport, ShardReport};

use self::formats::Formats;
use self::page::Page;

const STYLE: &str = include_str!("html/page.css");
const SCRIPT: &str = include_str!("html/page.js");

/// The element by which a page is recognised.
const GENERATOR: &str = "<meta name=\"generator\" content=\"shardwright plan\">\n";

/// Returns whether a file with this beginning is a page of a plan.
pub fn is_page(begin: &[u8]) -> bool {
    begin.windows(GENERATOR.len()).any(|window| window == GENERATOR.as_bytes())
}

pub fn page(report: &PlanReport) -> String {
    let formats = Formats::of(report);
    let mut page = Page::default();
    page.markup("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n").markup(GENERATOR);
    page.markup("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; ");
    page.markup("style-src 'unsafe-inline'; script-src 'sha256-").text(page::sha256_base64(SCRIPT));
    page.markup("'; base-uri 'none'; form-action 'none'\">\n");
    page.markup("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    page.markup("<meta name=\"color-scheme\" content=\"light dark\">\n<title>");
    let chip = report.soc_title.as_ref().unwrap_or(&report.soc);
    page.text(format_args!("{} for {chip}: plan", report.model)).markup("</title>\n<style>\n");
    page.markup(STYLE).markup("</style>\n</head>\n<body>\n");
    summary::head(&mut page, report);
    page.markup("<main>\n");
    summary::figures(&mut page, report);
    summary::goals(&mut page, report);
    strip::strip(&mut page, report, &formats);
    limits::limits(&mut page, report);
    shards::reasons_of_the_plan(&mut page, report);
    shards::shards(&mut page, report);
    layers::table(&mut page, report, &formats);
    summary::grounds(&mut page, report);
    page.markup("</main>\n<script>").markup(SCRIPT).markup("</script>\n</body>\n</html>\n");
    page.finish()
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
