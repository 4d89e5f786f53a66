//! Shows each shard with its formats, entry points, flags and reasons, and the reasons of the whole
//! plan.

use std::collections::HashMap;
use std::fmt::Display;

use shardwright::PlanReport;
use shardwright_build::{BoundaryReport, ReasonReport, ShardReport};

use super::page::Page;
use super::{content, duration};
use crate::views::bytes;

/// Writes the reasons that do not concern a single shard.
pub fn reasons_of_the_plan(page: &mut Page, report: &PlanReport) {
    page.markup(
        "<section aria-labelledby=\"reasons\">\n<h2 id=\"reasons\">Reasons for the whole plan</h2>\n",
    );
    reasons(page, &report.reasons);
    page.markup("<p class=\"hint\">Those for a shard stand with it.</p>\n</section>\n");
}

pub fn shards(page: &mut Page, report: &PlanReport) {
    page.markup("<section aria-labelledby=\"shards\">\n<h2 id=\"shards\">Shards</h2>\n");
    for shard in &report.shards {
        one(page, shard);
    }
    page.markup("</section>\n");
}

fn one(page: &mut Page, shard: &ShardReport) {
    page.markup("<details open class=\"shard\" id=\"shard-").text(shard.index).markup("\">\n<summary><h3>");
    page.text(format_args!("Shard {}: {}", shard.index, content(shard)));
    page.markup(" <span class=\"on\">on</span> ").text(&shard.target).markup("</h3></summary>\n<dl>\n");
    fact(page, "formats", &shard.formats);
    fact(page, "operations", shard.ops);
    let sizes = [
        ("weights", shard.weight_bytes),
        ("artefact", shard.artefact_bytes),
        ("KV cache", shard.state_bytes),
    ];
    for (name, count) in sizes {
        fact(page, name, bytes(count));
    }
    fact(page, "context", format_args!("{} tokens", shard.context));
    fact(page, "reads", boundaries(&shard.inputs));
    fact(page, "writes", boundaries(&shard.outputs));
    if let Some(place) = shard.softcap {
        fact(page, "soft-cap", format_args!("in the {place}"));
    }
    fact(page, "build", &shard.build);
    let entries = shard.entries.iter().filter(|entry| entry.ops > 0);
    let entries = entries.map(|entry| match (entry.time, entry.uncosted_ops) {
        (None, _) => format!("{} (time not known)", entry.entry),
        (Some(time), 0) => format!("{} ({}, {})", entry.entry, duration(time.microseconds), time.provenance),
        (Some(time), uncosted) => format!(
            "{} ({}, {}, without {uncosted} operations)",
            entry.entry,
            duration(time.microseconds),
            time.provenance
        ),
    });
    page.markup("<div class=\"wide\"><dt>entry points</dt><dd>").text(entries.collect::<Vec<_>>().join(", "));
    page.markup("</dd></div>\n");
    page.markup("<div class=\"wide\"><dt>flags</dt><dd>");
    if shard.flags.is_empty() {
        page.markup("none");
    }
    for flag in &shard.flags {
        page.markup("<code>").text(flag).markup("</code> ");
    }
    page.markup("</dd></div>\n</dl>\n<h4>Reasons</h4>\n<div class=\"reasons\">");
    reasons(page, &shard.reasons);
    page.markup("</div>\n</details>\n");
}

fn fact(page: &mut Page, name: &'static str, value: impl Display) {
    page.markup("<div><dt>").markup(name).markup("</dt><dd>").text(value).markup("</dd></div>\n");
}

fn boundaries(all: &[BoundaryReport]) -> String {
    let named = all.iter().map(|boundary| match &boundary.encoding {
        Some(encoding) => format!("{} as {encoding}", boundary.name),
        None => boundary.name.clone(),
    });
    match all.is_empty() {
        true => "nothing".to_owned(),
        false => named.collect::<Vec<_>>().join(", "),
    }
}

fn reasons(page: &mut Page, reasons: &[ReasonReport]) {
    if reasons.is_empty() {
        page.markup("<p>The planner gave none.</p>\n");
        return;
    }
    // Choices with the same ground are one sentence: a dozen flags of a profile have the same
    // ground.
    let mut grounds: Vec<(&ReasonReport, Vec<&str>)> = Vec::new();
    let mut known: HashMap<(&str, String), usize> = HashMap::new();
    for reason in reasons {
        let next = grounds.len();
        let index = *known.entry((&reason.because, reason.cause.to_string())).or_insert(next);
        match grounds.get_mut(index) {
            Some((_, choices)) => choices.push(&reason.choice),
            None => grounds.push((reason, vec![&reason.choice])),
        }
    }
    page.markup("<ul>\n");
    for (reason, choices) in grounds {
        let mut before = "<li><b>";
        for choice in choices {
            page.markup(before).prose(choice).markup("</b>");
            before = ", <b>";
        }
        page.markup(": ").prose(&reason.because).markup(" <small>").text(&reason.cause);
        page.markup("</small></li>\n");
    }
    page.markup("</ul>\n");
}
