//! Shows all layers as a table, with the numbers behind the colours of the strip.

use std::collections::HashMap;

use shardwright::PlanReport;
use shardwright_build::{EntryReport, LayerReport, ShardReport};

use super::formats::Formats;
use super::page::Page;
use super::{all_layers, duration, layer_name, loss};
use crate::views::bytes;

/// Writes one row for each layer.
pub fn table(page: &mut Page, report: &PlanReport, formats: &Formats<'_>) {
    let entries: Vec<String> = report.totals.times.iter().map(|time| time.entry.to_string()).collect();
    page.markup("<section aria-labelledby=\"layers\">\n<h2 id=\"layers\">Table of layers</h2>\n");
    page.markup("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"layers\">\n");
    page.markup("<table id=\"table\">\n<thead><tr>");
    let fixed = ["layer", "shard", "kind", "formats", "operations", "weights", "artefact", "KV cache"];
    for name in fixed.into_iter().chain(["loss"]) {
        page.markup("<th scope=\"col\">").markup(name).markup("</th>");
    }
    for entry in &entries {
        page.markup("<th scope=\"col\">").text(entry).markup("</th>");
    }
    page.markup("</tr></thead>\n<tbody>\n");
    for (index, (shard, layer)) in all_layers(report).enumerate() {
        row(page, index, shard, layer, formats, &entries);
    }
    page.markup("</tbody>\n</table>\n</div>\n</section>\n");
}

fn row(
    page: &mut Page,
    index: usize,
    shard: &ShardReport,
    layer: &LayerReport,
    formats: &Formats<'_>,
    entries: &[String],
) {
    let mark = formats.mark(&layer.formats);
    page.markup("<tr id=\"layer-").text(index).markup("\"><th scope=\"row\">").text(layer_name(layer));
    page.markup("</th><td><a href=\"#shard-").text(shard.index).markup("\">").text(shard.index);
    page.markup("</a> <span class=\"on\">on</span> ").text(&shard.target);
    page.markup("</td><td>")
        .text(&layer.kind)
        .markup("</td><td class=\"formats\"><span class=\"swatch p")
        .text(mark.colour());
    page.markup("\">").text(mark.letter()).markup("</span> ").text(&layer.formats);
    page.markup("</td><td class=\"number\">").text(layer.ops);
    for count in [layer.weight_bytes, layer.artefact_bytes, layer.state_bytes] {
        page.markup("</td><td class=\"number\">").text(bytes(count));
    }
    page.markup("</td><td class=\"number\">").text(loss(&layer.loss));
    let parts: HashMap<String, &EntryReport> =
        layer.entries.iter().map(|part| (part.entry.to_string(), part)).collect();
    for entry in entries {
        page.markup("</td><td class=\"number\">");
        let Some(part) = parts.get(entry).filter(|part| part.ops > 0) else {
            page.markup("takes no part");
            continue;
        };
        let Some(time) = part.time else {
            page.markup("not known <small>").text(part.ops).markup(" operations</small>");
            continue;
        };
        page.text(duration(time.microseconds)).markup(" <small>").text(time.provenance);
        if part.uncosted_ops > 0 {
            page.text(format_args!(", without {} operations", part.uncosted_ops));
        }
        page.markup("</small>");
    }
    page.markup("</td></tr>\n");
}
