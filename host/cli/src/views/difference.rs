//! Shows differences between two plans as text.

use std::fmt::Write;

use shardwright_build::units;
use shardwright_doctor::{PlanChange, PlanDifference, PlanTopic, PlanUnit, PlanValue};

use super::{Detail, bytes, printable, wrapped};

/// Shows changes by topic. Changed figures of single shards and layers, and changed texts of
/// reasons, are only counted. `-v` shows them.
pub fn difference(difference: &PlanDifference, detail: Detail) -> String {
    let mut text = String::new();
    for (side, plan) in [("before", &difference.before), ("after", &difference.after)] {
        let line = format!("{side:<8}{}: {} for {}", plan.path, plan.model, plan.soc);
        let _ = writeln!(text, "{}", wrapped(&printable(&line), 8));
    }
    if difference.same {
        text.push_str("\nnothing changed\n");
        return text;
    }
    let mut topic = None;
    let mut passed = 0;
    for change in &difference.changes {
        if !detail.is_full() && is_detail(change) {
            passed += 1;
            continue;
        }
        if topic != Some(change.topic) {
            let _ = writeln!(text, "\n{}", title(change.topic));
            topic = Some(change.topic);
        }
        let _ = writeln!(text, "{}", wrapped(&format!("  {}", printable(&line(change))), 4));
    }
    match passed {
        0 => {}
        1 => text.push_str("\n1 more change of a figure or a reason: -v\n"),
        passed => {
            let _ = writeln!(text, "\n{passed} more changes of figures and reasons: -v");
        }
    }
    text
}

/// Checks whether a change follows from others that are shown, or is too small to be seen.
fn is_detail(change: &PlanChange) -> bool {
    let is_seen = shown(&change.before, change.unit) != shown(&change.after, change.unit);
    if !is_seen && !change.what.is_empty() {
        return true;
    }
    let choices = ["", "target", "formats", "build", "context", "soft-cap"];
    let is_choice = choices.contains(&change.what.as_str())
        || ["flag ", "input ", "output "].iter().any(|start| change.what.starts_with(start));
    match change.topic {
        PlanTopic::Shards | PlanTopic::Layers => !is_choice,
        PlanTopic::Reasons => true,
        _ => false,
    }
}

fn title(topic: PlanTopic) -> &'static str {
    match topic {
        PlanTopic::Plan => "plan",
        PlanTopic::Totals => "in all",
        PlanTopic::Goals => "goals",
        PlanTopic::Limits => "limits",
        PlanTopic::Shards => "shards",
        PlanTopic::Layers => "layers",
        PlanTopic::Reasons => "reasons",
        PlanTopic::Notices => "notices",
    }
}

/// Formats `decoder 0-5: formats: w8/f32/f32 → w4/f32/f32`.
fn line(change: &PlanChange) -> String {
    let parts = [change.place.as_str(), change.what.as_str()];
    let name = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ");
    if change.what.is_empty() {
        let fate = if change.before.is_none() { "new" } else { "gone" };
        return format!("{name} ({fate})");
    }
    let words = [&change.before, &change.after].map(|value| shown(value, change.unit));
    let [before, after] = match words {
        // The rounded values are equal, so the exact numbers are shown.
        [before, after] if before == after => {
            [&change.before, &change.after].map(|value| shown(value, PlanUnit::None))
        }
        words => words,
    };
    format!("{name}: {before} → {after}{}", share(change))
}

fn shown(value: &Option<PlanValue>, unit: PlanUnit) -> String {
    let Some(value) = value else { return "nothing".to_owned() };
    match (value, unit) {
        (PlanValue::Text(text), _) if text.is_empty() => "nothing".to_owned(),
        (PlanValue::Text(text), _) => text.clone(),
        (PlanValue::Number(number), PlanUnit::Bytes) => bytes(*number),
        (PlanValue::Number(number), PlanUnit::Microseconds) => units::microseconds(*number),
        (PlanValue::Number(number), PlanUnit::Nanoseconds) => units::seconds(*number as f64 / 1e9),
        (PlanValue::Number(number), PlanUnit::Micronats) => units::micronats(*number),
        (PlanValue::Number(number), PlanUnit::TokensPer1000Seconds) => {
            units::tokens_per_second(*number as f64 / 1e3)
        }
        (PlanValue::Number(number), PlanUnit::None) => number.to_string(),
    }
}

/// Formats ` (-12.5 %)`, if both values are numbers.
fn share(change: &PlanChange) -> String {
    match (&change.before, &change.after) {
        (Some(PlanValue::Number(before)), Some(PlanValue::Number(after))) if *before > 0 => {
            let share = (*after as f64 / *before as f64 - 1.0) * 100.0;
            if share.abs() < 0.05 { String::new() } else { format!(" ({share:+.1} %)") }
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use shardwright_doctor::ComparedPlan;

    use super::*;

    fn change(
        topic: PlanTopic,
        what: &str,
        before: Option<PlanValue>,
        after: Option<PlanValue>,
    ) -> PlanChange {
        let place = "decoder 0-5".to_owned();
        PlanChange { topic, place, what: what.to_owned(), before, after, unit: PlanUnit::Bytes }
    }

    fn compared(changes: Vec<PlanChange>) -> PlanDifference {
        let plan = |path: &str| ComparedPlan {
            path: path.to_owned(),
            model: "m\u{1b}[2J".to_owned(),
            soc: "chip".to_owned(),
        };
        let same = changes.is_empty();
        PlanDifference { before: plan("a.json"), after: plan("b.json"), same, changes }
    }

    #[test]
    fn that_nothing_changed_is_said() {
        let text = difference(&compared(Vec::new()), Detail::Screen);
        assert!(text.ends_with("\nnothing changed\n"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn figures_of_layers_are_counted_and_choices_are_shown() {
        let number = |value| Some(PlanValue::Number(value));
        let word = |text: &str| Some(PlanValue::Text(text.to_owned()));
        let changes = compared(vec![
            change(PlanTopic::Totals, "weights", number(2048), number(1024)),
            change(PlanTopic::Totals, "artefacts", number(9_437_184), number(9_437_100)),
            change(PlanTopic::Shards, "", None, word("there")),
            change(PlanTopic::Layers, "formats", word("w8"), word("w4")),
            change(PlanTopic::Layers, "weights", number(10), None),
            change(PlanTopic::Reasons, "reason", word("a"), word("")),
        ]);
        let screen = difference(&changes, Detail::Screen);
        let wanted = [
            "in all\n  decoder 0-5: weights: 2.0 KiB → 1.0 KiB (-50.0 %)\n",
            "shards\n  decoder 0-5 (new)\n",
            "layers\n  decoder 0-5: formats: w8 → w4\n\n3 more changes",
        ];
        for wanted in wanted {
            assert!(screen.contains(wanted), "{wanted}\n{screen}");
        }
        assert!(!screen.contains("artefacts") && !screen.contains("-0.0"), "{screen}");
        let full = difference(&changes, Detail::Full);
        assert!(full.contains("artefacts: 9437184 → 9437100\n"), "{full}");
        assert!(full.contains("weights: 10 B → nothing\n") && full.contains("reason: a → nothing"), "{full}");
        assert!(!full.contains("more change"), "{full}");
    }
}
