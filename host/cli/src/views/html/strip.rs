//! Shows the layers as a strip: coloured by format, divided by shard and target, with bars for
//! time, bytes and loss.

use shardwright::PlanReport;
use shardwright_build::{LayerReport, ShardReport};

use super::formats::Formats;
use super::page::Page;
use super::{all_layers, content, duration, layer_name, loss, main_entry, millinats, part};
use crate::views::bytes;

/// Number of styles for the line above a shard. Further targets share styles, but never names.
const LINES: usize = 4;

/// The scales of the bars. Components without layers have their own, because a head may be many
/// times larger than a layer.
struct Scale {
    entry: Option<String>,
    layers: Largest,
    components: Largest,
}

/// The values of full bars.
#[derive(Default)]
struct Largest {
    time: u64,
    bytes: u64,
    loss: u64,
    /// Whether a loss is missing.
    unmeasured: bool,
}

impl Scale {
    fn of(report: &PlanReport) -> Self {
        let entry = main_entry(report);
        let (mut layers, mut components) = (Largest::default(), Largest::default());
        for (_, layer) in all_layers(report) {
            let largest = if layer.layer.is_some() { &mut layers } else { &mut components };
            largest.time = largest.time.max(time(layer, entry.as_deref()).unwrap_or(0));
            largest.bytes = largest.bytes.max(layer.weight_bytes);
            largest.loss = largest.loss.max(layer.loss.micronats().unwrap_or(0));
            largest.unmeasured |= layer.loss.micronats().is_none();
        }
        Scale { entry, layers, components }
    }

    fn for_layer(&self, layer: &LayerReport) -> &Largest {
        if layer.layer.is_some() { &self.layers } else { &self.components }
    }
}

fn time(layer: &LayerReport, entry: Option<&str>) -> Option<u64> {
    Some(part(layer, entry?)?.time?.microseconds)
}

/// Writes the strip, a legend of its colours and bars, and a panel for the selected layer.
pub fn strip(page: &mut Page, report: &PlanReport, formats: &Formats<'_>) {
    let scale = Scale::of(report);
    page.markup("<section aria-labelledby=\"strip\">\n<h2 id=\"strip\">Layers</h2>\n<ul class=\"legend\">\n");
    for (mark, formats) in formats.all() {
        let layers = if formats.layers == 1 { "layer" } else { "layers" };
        page.markup("<li><span class=\"swatch p").text(mark.colour()).markup("\">").text(mark.letter());
        page.markup("</span> <code>").text(formats.formats).markup("</code> <small>");
        page.text(format_args!("{} {layers}, {} of weights", formats.layers, bytes(formats.weight_bytes)));
        page.markup("</small></li>\n");
    }
    page.markup("</ul>\n");
    scales(page, report, &scale);
    let mut targets: Vec<&str> = Vec::new();
    let mut next = 0;
    page.markup("<div class=\"strip\">\n");
    for shard in &report.shards {
        let target = targets.iter().position(|target| *target == shard.target).unwrap_or_else(|| {
            targets.push(&shard.target);
            targets.len() - 1
        });
        group(page, shard, target, next, &scale, formats);
        next += shard.by_layer.len();
    }
    page.markup("</div>\n<div id=\"detail\" role=\"status\" hidden></div>\n</section>\n");
}

/// Writes the value of a full bar of each kind.
fn scales(page: &mut Page, report: &PlanReport, scale: &Scale) {
    page.markup("<p class=\"hint\">Bars, full at the largest layer: ");
    full(page, scale.entry.as_deref(), &scale.layers);
    if all_layers(report).any(|(_, layer)| layer.layer.is_none()) {
        page.markup(". Components without layers have a scale of their own: ");
        full(page, scale.entry.as_deref(), &scale.components);
    }
    page.markup(". A question mark is a number that is not known. ");
    page.markup("Point at a layer or go to it for its numbers and the reasons of its shard.</p>\n");
}

fn full(page: &mut Page, entry: Option<&str>, largest: &Largest) {
    match entry {
        Some(entry) if largest.time > 0 => {
            page.markup("<b>time</b> of ").text(entry).markup(", ").text(duration(largest.time));
        }
        Some(entry) => _ = page.markup("<b>time</b> of ").text(entry).markup(", not known"),
        None => _ = page.markup("no <b>time</b>"),
    }
    page.markup("; <b>bytes</b> of weights, ").text(bytes(largest.bytes)).markup("; <b>loss</b>, ");
    match (largest.loss, largest.unmeasured) {
        (0, false) => page.markup("none"),
        (0, true) => page.markup("not measured"),
        (loss, _) => page.text(millinats(loss)),
    };
}

fn group(
    page: &mut Page,
    shard: &ShardReport,
    target: usize,
    first: usize,
    scale: &Scale,
    formats: &Formats<'_>,
) {
    page.markup("<div class=\"group t").text(target % LINES).markup("\" role=\"group\" aria-label=\"");
    page.text(format_args!("shard {}, {}, on {}", shard.index, content(shard), shard.target));
    page.markup("\">\n<a class=\"head\" href=\"#shard-").text(shard.index).markup("\" data-shard=\"");
    page.text(shard.index).markup("\"><b>").text(shard.index).markup("</b> ").text(content(shard));
    page.markup("<br><span class=\"on\">on</span> ").text(&shard.target);
    closest_limit(page, shard);
    page.markup("</a>\n<div class=\"cells\">");
    page.markup("<span class=\"gutter\" aria-hidden=\"true\"><span>format</span><span>time</span>");
    page.markup("<span>bytes</span><span>loss</span></span>\n");
    for (index, layer) in shard.by_layer.iter().enumerate() {
        cell(page, shard, layer, first + index, scale, formats);
    }
    page.markup("</div>\n</div>\n");
}

/// Writes the limit that the shard comes closest to.
fn closest_limit(page: &mut Page, shard: &ShardReport) {
    let Some(used) = shard.limits.iter().max_by_key(|used| used.thousandths) else { return };
    let share = format!("{}.{} % of the limit", used.thousandths / 10, used.thousandths % 10);
    page.markup("<br><small>").text(format_args!("{}: {share}", used.name)).markup("</small>");
    page.bar(used.thousandths, &share);
}

fn cell(
    page: &mut Page,
    shard: &ShardReport,
    layer: &LayerReport,
    index: usize,
    scale: &Scale,
    formats: &Formats<'_>,
) {
    let mark = formats.mark(&layer.formats);
    let time = time(layer, scale.entry.as_deref());
    let takes_part = scale.entry.as_deref().is_none_or(|entry| part(layer, entry).is_some());
    let told = match (time, takes_part) {
        (Some(time), _) => duration(time),
        (None, true) => "time not known".to_owned(),
        (None, false) => "takes no part".to_owned(),
    };
    page.markup("<a class=\"cell\" href=\"#layer-").text(index).markup("\" data-layer=\"").text(index);
    page.markup("\" data-shard=\"").text(shard.index).markup("\" aria-label=\"");
    page.text(format_args!(
        "{}: {}, {}, {told}, loss {}",
        layer_name(layer),
        layer.formats,
        bytes(layer.weight_bytes),
        loss(&layer.loss)
    ));
    page.markup("\"><span class=\"swatch p").text(mark.colour()).markup("\">").text(mark.letter());
    page.markup("</span>");
    let largest = scale.for_layer(layer);
    track(page, time.or((!takes_part).then_some(0)), largest.time);
    track(page, Some(layer.weight_bytes), largest.bytes);
    track(page, layer.loss.micronats(), largest.loss);
    page.markup("<span class=\"name\">");
    match layer.layer {
        Some(number) => page.text(number),
        None => page.text(&layer.component),
    };
    page.markup("</span></a>\n");
}

/// Writes an upright bar, whose height is its part of the largest value.
fn track(page: &mut Page, value: Option<u64>, largest: u64) {
    let Some(value) = value else {
        page.markup("<span class=\"track\">?</span>");
        return;
    };
    let percent = if largest == 0 { 0.0 } else { 100.0 * value as f64 / largest as f64 };
    page.markup("<span class=\"track\"><span style=\"height:").text(format_args!("{percent:.1}%"));
    page.markup("\"></span></span>");
}
