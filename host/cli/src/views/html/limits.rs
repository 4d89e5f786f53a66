//! Shows the limits of each target and how close every shard comes to them.

use shardwright::PlanReport;
use shardwright_build::{LimitUse, TargetLimit};

use super::page::Page;
use super::{content, quantity};

/// Writes one block for each limit.
pub fn limits(page: &mut Page, report: &PlanReport) {
    page.markup("<section aria-labelledby=\"limits\">\n<h2 id=\"limits\">Limits</h2>\n");
    if report.limits.is_empty() {
        page.markup("<p>None is known.</p>\n");
    }
    for limit in &report.limits {
        block(page, report, limit);
    }
    page.markup("</section>\n");
}

fn block(page: &mut Page, report: &PlanReport, entry: &TargetLimit) {
    let limit = &entry.limit;
    let shown = |value| quantity(&limit.name, value);
    page.markup("<div class=\"limit\">\n<h3>").text(&entry.target).markup(": ").text(&limit.name);
    page.markup(" ≤ ").text(shown(limit.value)).markup(" <small>").text(limit.provenance);
    page.markup("</small></h3>\n");
    if !limit.note.is_empty() {
        page.markup("<p>").prose(&limit.note).markup("</p>\n");
    }
    for relief in &limit.relief {
        page.markup("<p>with ").text(&relief.flag).markup(": ");
        match relief.value {
            Some(value) => page.text(shown(value)),
            None => page.markup("no effect"),
        };
        if !relief.note.is_empty() {
            page.markup("; ").prose(&relief.note);
        }
        page.markup("</p>\n");
    }
    let of_shards = report.shards.iter().filter(|shard| shard.target == entry.target);
    let of_shards = of_shards.flat_map(|shard| {
        let name = format!("shard {}: {}", shard.index, content(shard));
        shard.limits.iter().map(move |used| (name.clone(), Some(shard.index), used))
    });
    let shared = report.shared_limits.iter().filter(|shared| shared.target == entry.target);
    let shared = shared.map(|shared| ("all shards together".to_owned(), None, &shared.limit));
    let mut uses = of_shards.chain(shared).filter(|(.., used)| used.name == limit.name).peekable();
    if uses.peek().is_none() {
        let planned = report.shards.iter().any(|shard| shard.target == entry.target);
        page.markup(match planned {
            true => "<p>Cannot be counted before compiling.</p>\n</div>\n",
            false => "<p>No shard is planned for this target.</p>\n</div>\n",
        });
        return;
    }
    page.markup("<ul class=\"uses\">\n");
    for (name, shard, used) in uses {
        line(page, &name, shard, used);
    }
    page.markup("</ul>\n</div>\n");
}

fn line(page: &mut Page, name: &str, shard: Option<usize>, used: &LimitUse) {
    let share = format!("{}.{} %", used.thousandths / 10, used.thousandths % 10);
    page.markup("<li><span class=\"what\">");
    match shard {
        Some(shard) => {
            page.markup("<a href=\"#shard-").text(shard).markup("\">").text(name).markup("</a>");
        }
        None => _ = page.text(name),
    }
    page.markup("</span>").bar(used.thousandths, &format!("{share} of the limit"));
    page.markup("<span class=\"share\">").text(&share).markup("</span><span class=\"value\">");
    page.text(quantity(&used.name, used.used)).markup(" of ").text(quantity(&used.name, used.limit));
    page.markup("</span></li>\n");
}
