//! Shows the plan's title, its totals, the goals that it meets, and the provenance of its figures.

use std::collections::BTreeMap;

use shardwright::{NoticeKind, PlanReport};
use shardwright_build::LossReport;
use shardwright_build::units::seconds;

use super::page::Page;
use super::{all_layers, duration, loss, millinats, quantity};
use crate::views::plan::rests_on;
use crate::views::{bytes, forecast};

/// Writes the title, notices, and links to the sections.
pub fn head(page: &mut Page, report: &PlanReport) {
    page.markup("<header>\n<h1>").text(&report.model).markup(" <span class=\"on\">for</span> ");
    match &report.soc_title {
        Some(title) => page.text(title).markup(" <span class=\"on\">").text(&report.soc).markup("</span>"),
        None => page.text(&report.soc),
    };
    page.markup("</h1>\n<p class=\"verdict\">").text(forecast::verdict(report)).markup("</p>\n<p>");
    page.text(forecast::speed(&report.forecast.speed, report.pass())).markup("</p>\n<p>");
    page.text(&report.family).markup(", planned by ");
    let planner = &report.planner;
    page.text(format_args!("{} {}", planner.name, planner.version));
    if planner.built_in {
        page.markup(" (built-in)");
    }
    match report.refused_plans {
        0 => {}
        1 => _ = page.markup("; 1 earlier plan was refused and revised"),
        plans => _ = page.text(format_args!("; {plans} earlier plans were refused and revised")),
    }
    if !report.fallback.is_empty() {
        let chains: Vec<String> = report.fallback.iter().map(ToString::to_string).collect();
        page.markup("; if a target is lost, ").text(chains.join(", then "));
    }
    if let Some(speculation) = &report.speculation {
        page.markup("; proposed tokens are verified: ").text(speculation);
    }
    page.markup("</p>\n");
    if let Some(executor) = &report.emulated_on {
        page.markup("<p class=\"notice fallback\">emulated on ").text(executor).markup("</p>\n");
    }
    for notice in &report.notices {
        match notice.kind {
            NoticeKind::Fallback => page.markup("<p class=\"notice fallback\"><b>fallback:</b> "),
            _ => page.markup("<p class=\"notice\"><b>note:</b> "),
        };
        page.prose(&notice.text).markup("</p>\n");
    }
    page.markup("<nav aria-label=\"Parts of this page\"><a href=\"#strip\">layers</a> ");
    page.markup("<a href=\"#limits\">limits</a> <a href=\"#reasons\">reasons</a> ");
    page.markup("<a href=\"#shards\">shards</a> <a href=\"#layers\">table of layers</a> ");
    page.markup("<a href=\"#grounds\">what figures rest on</a></nav>\n</header>\n");
}

/// Writes the totals as cards.
pub fn figures(page: &mut Page, report: &PlanReport) {
    let totals = &report.totals;
    page.markup(
        "<section aria-labelledby=\"figures\">\n<h2 id=\"figures\">In all</h2>\n<dl class=\"cards\">\n",
    );
    let mut card = |name: &str, value: &str, ground: &str| {
        page.markup("<div><dt>").text(name).markup("</dt><dd>").text(value);
        page.markup(" <small>").text(ground).markup("</small></dd></div>\n");
    };
    if let Some(download) = &report.forecast.download {
        card("download", &bytes(download.bytes), &forecast::download(download));
    }
    card("weights", &bytes(totals.weight_bytes), "counted");
    card("artefacts", &bytes(totals.artefacts.bytes), totals.artefacts.provenance.name());
    card("KV cache", &bytes(totals.state_bytes), "counted");
    for table in &report.tables {
        let lost = match &table.loss {
            LossReport::None => "nothing is lost".to_owned(),
            known => format!("loss {}", loss(known)),
        };
        let name = format!("table {}", table.name);
        card(&name, &bytes(table.bytes), &format!("{}, {lost}", table.format));
    }
    for (phases, held, ground) in memory(report) {
        card(&format!("memory, {}", phases.join(", ")), &held, &ground);
    }
    for entry in &totals.times {
        let name = format!("time of {}", entry.entry);
        match (entry.time, entry.uncosted_ops) {
            (None, _) => match rests_on(entry).strip_prefix("not known, as ") {
                Some(why) => card(&name, "not known", why),
                None => card(&name, "not known", ""),
            },
            (Some(time), 0) => card(&name, &duration(time.microseconds), &rests_on(entry)),
            (Some(time), uncosted) => card(
                &name,
                &duration(time.microseconds),
                &format!("{}, without {uncosted} operations", rests_on(entry)),
            ),
        }
    }
    if let Some(loading) = &report.forecast.loading {
        card("loading", &duration(loading.microseconds), loading.provenance.name());
    }
    let boundary = format!("{} a step", seconds(totals.boundary_nanoseconds as f64 / 1e9));
    card("hand-off between shards", &boundary, "modelled, in addition to the times");
    if let Some(measured) = &report.measured {
        let error = millinats(measured.error_micronats);
        let over = format!("± {error}, over {} tokens of {}", measured.tokens, measured.text);
        card("measured loss of quality", &millinats(measured.micronats), &over);
    }
    match totals.loss {
        LossReport::None => {
            card("loss of quality", "none", "weights are as stored or floats, values are f32")
        }
        LossReport::Measured { micronats } => {
            card("loss of quality", &millinats(micronats), "the sum of measured losses");
        }
        LossReport::Expected { micronats, .. } => {
            let about = format!("about {}", millinats(micronats));
            let ground = match totals.loss.measured_percent() {
                Some(percent) => format!("expected, {percent} % of it measured; sensitivity measures more"),
                None => "expected from how far weights are off; --quality measures it".to_owned(),
            };
            card("loss of quality", &about, &ground);
        }
        LossReport::NotMeasured { places } => {
            let ground = format!("in {places} places; --quality measures it");
            card("loss of quality", "not measured", &ground);
        }
    }
    page.markup("</dl>\n<p class=\"hint\">millinat: a thousandth of a nat of KL divergence per token. ");
    page.markup("Peak memory is artefacts and KV cache, without tables and what a driver takes.</p>\n");
    page.markup("</section>\n");
}

/// Returns the shown memory of the phases and its basis. Phases that show the same are together.
fn memory(report: &PlanReport) -> Vec<(Vec<&'static str>, String, String)> {
    let mut cards: Vec<(Vec<&str>, String, String)> = Vec::new();
    for phase in &report.forecast.memory {
        let held = bytes(phase.held_bytes);
        let ground = phase.provenance.map_or("counted", |provenance| provenance.name());
        let ground = match phase.mapped_bytes {
            0 => ground.to_owned(),
            mapped => format!("{ground}; {} mapped", bytes(mapped)),
        };
        let name = phase.phase.name();
        match cards.iter_mut().find(|(_, known, basis)| *known == held && *basis == ground) {
            Some((names, ..)) => names.push(name),
            None => cards.push((vec![name], held, ground)),
        }
    }
    cards
}

/// Writes each goal with the requested value, the predicted value, and the used part of the budget.
pub fn goals(page: &mut Page, report: &PlanReport) {
    page.markup("<section aria-labelledby=\"goals\">\n<h2 id=\"goals\">Goals</h2>\n");
    if report.goals.is_empty() {
        page.markup("<p>None was set.</p>\n</section>\n");
        return;
    }
    page.markup("<ul class=\"uses\">\n");
    for goal in &report.goals {
        let name = goal.goal.name();
        let bound = if goal.goal.is_least() { "at least" } else { "at most" };
        page.markup("<li><span class=\"what\"><b>").text(name).markup("</b> ").text(bound).markup(" ");
        page.text(quantity(name, goal.asked)).markup("</span>");
        match (goal.predicted, goal.met) {
            (Some(predicted), Some(met)) => {
                let verdict = if met { "met" } else { "missed" };
                let shown = match goal.provenance {
                    Some(provenance) => format!("{} ({provenance})", quantity(name, predicted)),
                    None => quantity(name, predicted),
                };
                if is_budget(name) {
                    let spent = thousandths(predicted, goal.asked);
                    page.bar(spent, &format!("{} % spent", spent / 10));
                    page.markup("<span class=\"share\">").text(spent / 10).markup(" %</span>");
                }
                page.markup("<span class=\"value\">").text(shown).markup("</span> <b class=\"").text(verdict);
                page.markup("\">").text(verdict).markup("</b>");
            }
            _ => _ = page.markup("<span class=\"value\">not known</span>"),
        }
        page.markup("</li>\n");
    }
    page.markup("</ul>\n</section>\n");
}

/// Checks whether a goal is a budget. Other goals are met or missed.
fn is_budget(goal: &str) -> bool {
    matches!(goal, "quality" | "memory" | "size" | "token" | "first-token")
}

/// Returns a part in thousandths of the whole. If the whole is 0, any part exceeds it.
fn thousandths(part: u64, whole: u64) -> u64 {
    match (part, whole) {
        (0, _) => 0,
        (_, 0) => u64::MAX,
        _ => u64::try_from(u128::from(part) * 1000 / u128::from(whole)).unwrap_or(u64::MAX),
    }
}

/// Writes every figure with the word for its provenance, and the meaning of the words.
pub fn grounds(page: &mut Page, report: &PlanReport) {
    page.markup("<section aria-labelledby=\"grounds\">\n<h2 id=\"grounds\">What the figures rest on</h2>\n");
    page.markup("<p>Operations, weight bytes and bytes of the KV cache are counted. ");
    page.markup("A sum has the weakest word of its parts.</p>\n<dl class=\"grounds\">\n");
    for (word, figures) in words(report) {
        page.markup("<div><dt>").text(word).markup("</dt><dd>").text(meaning(word)).markup(": ");
        let mut first = true;
        for (figure, count) in figures {
            if !first {
                page.markup(", ");
            }
            first = false;
            page.text(figure);
            if count > 1 {
                page.text(format_args!(" ({count})"));
            }
        }
        page.markup("</dd></div>\n");
    }
    page.markup("</dl>\n</section>\n");
}

/// Returns for each word of provenance the figures that have it, and how often.
fn words(report: &PlanReport) -> BTreeMap<&'static str, BTreeMap<&'static str, u64>> {
    let mut words: BTreeMap<_, BTreeMap<_, u64>> = BTreeMap::new();
    let mut add = |word: &'static str, figure: &'static str| {
        *words.entry(word).or_default().entry(figure).or_default() += 1;
    };
    let totals = &report.totals;
    add(totals.artefacts.provenance.name(), "bytes of all artefacts");
    for phase in &report.forecast.memory {
        add(phase.provenance.map_or("counted", |provenance| provenance.name()), "memory of phases");
    }
    add("modelled", "hand-off between shards");
    for calls in totals.times.iter().filter_map(|entry| entry.calls) {
        add(calls.provenance.name(), "calls of shards");
    }
    if let Some(loading) = &report.forecast.loading {
        add(loading.provenance.name(), "time of loading");
    }
    for time in totals.times.iter().filter_map(|entry| entry.time) {
        add(time.provenance.name(), "times of entry points");
    }
    for table in &report.tables {
        match table.loss {
            LossReport::Measured { .. } => add("measured", "losses of tables"),
            LossReport::Expected { .. } => add("modelled", "losses of tables"),
            LossReport::None | LossReport::NotMeasured { .. } => {}
        }
    }
    for limit in &report.limits {
        add(limit.limit.provenance.name(), "limits");
    }
    for (_, layer) in all_layers(report) {
        for time in layer.entries.iter().filter(|part| part.ops > 0).filter_map(|part| part.time) {
            add(time.provenance.name(), "times of layers");
        }
        match layer.loss {
            LossReport::Measured { .. } => add("measured", "losses of layers"),
            LossReport::Expected { .. } => add("modelled", "losses of layers"),
            LossReport::None | LossReport::NotMeasured { .. } => {}
        }
    }
    words
}

fn meaning(word: &str) -> &'static str {
    match word {
        "counted" => "counted in the model and the plan",
        "declared" => "the vendor's shim or manifest states it",
        "reported" => "somebody observed it in the field and wrote it down",
        "probed" => "the shim was asked by trying",
        "learned" => "a refusal of this compiler taught it",
        "user" => "set on the command line",
        "measured" => "timed on the device, or measured on this checkpoint",
        "simulated" => "a vendor's simulator computed it",
        _ => "a formula estimated it",
    }
}
