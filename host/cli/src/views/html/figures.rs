//! The totals of a plan, the goals that it meets, and the provenance of its figures.

use std::collections::BTreeMap;

use minijinja::{Value, context};
use shardwright::PlanReport;
use shardwright_build::{IntervalText, LossReport, units};

use super::{all_layers, loss, millinats};
use crate::views::plan::rests_on;
use crate::views::{bytes, forecast};

/// Returns the totals: name, value and basis.
pub fn cards(report: &PlanReport) -> Vec<(String, String, String)> {
    let totals = &report.totals;
    let mut cards: Vec<(String, String, String)> = Vec::new();
    let mut card = |name: &str, value: String, ground: &str| {
        cards.push((name.to_owned(), value, ground.to_owned()));
    };
    if let Some(download) = &report.forecast.download {
        card("download", bytes(download.bytes), &forecast::download(download));
    }
    card("weights", bytes(totals.weight_bytes), "counted");
    card("artefacts", bytes(totals.artefacts.bytes), totals.artefacts.provenance.name());
    card("KV cache", bytes(totals.state_bytes), "counted");
    for table in &report.tables {
        let lost = match &table.loss {
            LossReport::None => "no loss".to_owned(),
            known => format!("loss {}", loss(known)),
        };
        let ground = format!("counted, {}, {lost}", table.format);
        card(&format!("table {}", table.name), bytes(table.bytes), &ground);
    }
    for (phases, held, ground) in memory(report) {
        card(&format!("memory, {}", phases.join(", ")), held, &ground);
    }
    for entry in &totals.times {
        let name = format!("time of {}", entry.entry);
        card(&name, IntervalText::time(&entry.time).to_string(), &rests_on(entry));
    }
    if let Some(loading) = &report.forecast.loading {
        card("loading", IntervalText::time(&loading.time()).to_string(), loading.provenance.name());
    }
    if let Some(measured) = &report.measured {
        let error = millinats(measured.error_micronats);
        let over = format!("± {error}, over {} tokens of {}", measured.tokens, measured.text);
        card("measured loss of quality", millinats(measured.micronats), &over);
    }
    let (value, ground) = match totals.loss {
        LossReport::None => ("none".to_owned(), "weights are as stored or floats, values are f32".to_owned()),
        LossReport::Measured { micronats } => (millinats(micronats), "the sum of measured losses".to_owned()),
        LossReport::Expected { micronats, .. } => {
            let ground = match totals.loss.measured_percent() {
                Some(percent) => format!("expected, {percent} % of it measured; sensitivity measures more"),
                None => "expected from the errors of the weights; --quality measures it".to_owned(),
            };
            (format!("about {}", millinats(micronats)), ground)
        }
        LossReport::NotMeasured { places } => {
            ("not measured".to_owned(), format!("in {places} places; --quality measures it"))
        }
    };
    card("loss of quality", value, &ground);
    cards
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

/// Returns each goal with the requested value, the predicted value, and the used part of a budget.
pub fn goals(report: &PlanReport) -> Vec<Value> {
    let goals = report.goals.iter().map(|goal| {
        let name = goal.goal.name();
        let bound = if goal.goal.is_least() { "at least" } else { "at most" };
        let budget = goal.predicted.filter(|_| is_budget(name));
        context! {
            name,
            bound => format!("{bound} {}", goal.bounding()),
            verdict => goal.verdict.map(|verdict| verdict.name()),
            predicted => goal.prediction(),
            spent => budget.map(|predicted| thousandths(predicted, goal.asked)),
            share => budget.map(|predicted| units::share(predicted, goal.asked)),
        }
    });
    goals.collect()
}

/// Checks whether a goal is a budget, of which a part is used.
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

/// Returns each word for a provenance with its meaning and the figures that have it.
pub fn grounds(report: &PlanReport) -> Vec<(&'static str, &'static str, String)> {
    let shown = |(figure, count): (&str, u64)| match count {
        1 => figure.to_owned(),
        count => format!("{figure} ({count})"),
    };
    let grounds = words(report).into_iter().map(|(word, figures)| {
        (word, meaning(word), figures.into_iter().map(shown).collect::<Vec<_>>().join(", "))
    });
    grounds.collect()
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
    for entry in &totals.times {
        add(entry.time.provenance.name(), "times of entry points");
        if entry.calls.microseconds > 0 {
            add(entry.calls.provenance.name(), "calls of shards");
        }
        if entry.hand_off_nanoseconds > 0 {
            add("modelled", "hand-off between shards");
        }
    }
    if let Some(loading) = &report.forecast.loading {
        add(loading.provenance.name(), "time of loading");
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
        for part in layer.entries.iter().filter(|part| part.ops > 0) {
            add(part.time.provenance.name(), "times of layers");
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
        "reported" => "observed on devices and recorded by hand",
        "probed" => "found by trying it on the shim",
        "learned" => "derived from a refusal of this compiler",
        "user" => "set on the command line",
        "measured" => "timed on the device, or measured on this checkpoint",
        "simulated" => "a vendor's simulator computed it",
        _ => "a formula estimated it",
    }
}
