//! Shows differences between two plans as text.

use std::fmt::Write;

use shardwright::TimeCost;
use shardwright_build::{IntervalText, units};
use shardwright_doctor::{PlanChange, PlanDifference, PlanTopic, PlanUnit, PlanValue};

use super::{Detail, bytes, printable, wrapped};

/// Begin of the names of forecast figures, which are paths in the report.
const FORECAST: &str = "forecast, ";

/// Readable begins of these names.
const FORECAST_NAMES: &[(&str, &str)] = &[
    ("verdict, fits", "verdict"),
    ("verdict, held bytes", "largest memory"),
    ("verdict, mapped bytes", "largest memory, mapped"),
    ("verdict, largest", "phase with the largest memory"),
    ("verdict, asked bytes", "memory goal"),
    ("verdict, device bytes", "memory that an app can use"),
    ("verdict, too slow", "too slow"),
    ("verdict, elsewhere", "shards elsewhere"),
    ("speed, first", "time to the first token"),
    ("speed, each", "time of each"),
    ("speed, rate", "token rate"),
    ("speed, ", ""),
    ("loading", "loading time"),
];

/// Readable ends of these names.
const FORECAST_ENDS: &[(&str, &str)] = &[
    (", held bytes", ""),
    (", mapped bytes", ", mapped"),
    (", bytes", ""),
    (", rests on", ", basis"),
    (", uncosted ops", ", operations estimated by share"),
];

/// Larger changes are not shown as a percentage, because both values show more.
const PERCENT_MOST: f64 = 1000.0;

/// Shows changes by topic. Changed figures of single shards and layers, and changed texts of
/// reasons, are only counted. `-v` shows them.
pub fn difference(difference: &PlanDifference, detail: Detail) -> String {
    let mut text = String::new();
    for (side, plan) in [("before", &difference.before), ("after", &difference.after)] {
        let line = format!("{side:<8}{}: {} for {}", plan.path, plan.model, plan.soc);
        let _ = writeln!(text, "{}", wrapped(&printable(&line), 8));
    }
    if difference.same {
        text.push_str("\nno changes\n");
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
        let line = line(change, &difference.changes);
        let _ = writeln!(text, "{}", wrapped(&format!("  {}", printable(&line)), 4));
    }
    match passed {
        0 => {}
        1 => text.push_str("\n1 more change of a figure or a reason, shown with -v\n"),
        passed => {
            let _ = writeln!(text, "\n{passed} more changes of figures and reasons, shown with -v");
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
    // The name of a part of the memory is in the names of its figures.
    if change.what.starts_with(FORECAST) && change.what.ends_with(", name") {
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
fn line(change: &PlanChange, all: &[PlanChange]) -> String {
    let what = readable(&change.what);
    let parts = [change.place.as_str(), &what];
    let name = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ");
    if change.what.is_empty() {
        let fate = if change.before.is_none() { "new" } else { "removed" };
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
    format!("{name}: {before} → {after}{}", share(change, all))
}

/// Returns the name of a fact, with words in place of the path of a forecast figure:
/// `memory, decode: KV cache`.
fn readable(what: &str) -> String {
    let Some(path) = what.strip_prefix(FORECAST) else { return what.to_owned() };
    let begin = FORECAST_NAMES.iter().find_map(|(begin, name)| Some((*name, path.strip_prefix(*begin)?)));
    let path = begin.map_or_else(|| path.to_owned(), |(name, rest)| format!("{name}{rest}"));
    let end = FORECAST_ENDS.iter().find_map(|(end, name)| Some((path.strip_suffix(*end)?, *name)));
    let path = end.map_or_else(|| path.clone(), |(rest, name)| format!("{rest}{name}"));
    path.replacen(", parts, ", ": ", 1)
}

/// Returns whether the provenance of a figure changed too, so that its values cannot be compared.
fn has_other_provenance(figure: &PlanChange, all: &[PlanChange]) -> bool {
    let what = figure.what.as_str();
    let own = match what {
        "value" => "provenance",
        "predicted" => "provenance of the prediction",
        "expected gain in thousandths" => "provenance of the gain",
        _ => "",
    };
    let of_figure = format!("provenance of the {what}");
    let path = what.rsplit_once(", ").filter(|_| what.starts_with(FORECAST)).map(|(path, _)| path);
    let beside = |name: &str| {
        let end = path.and_then(|path| name.strip_prefix(path));
        end == Some(", provenance") || end == Some(", rests on")
    };
    let is_provenance = |name: &str| name == own || name == of_figure || beside(name);
    all.iter().any(|change| {
        change.topic == figure.topic
            && !change.what.is_empty()
            && is_provenance(&change.what)
            && overlap(&change.place, &figure.place)
    })
}

/// Checks whether two places are equal, or have layers of a component in common.
fn overlap(one: &str, other: &str) -> bool {
    let layers = |place: &str| -> Option<(String, u32, u32)> {
        let (component, numbers) = place.rsplit_once(' ')?;
        let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
        Some((component.to_owned(), first.parse().ok()?, last.parse().ok()?))
    };
    let (Some(this), Some(that)) = (layers(one), layers(other)) else { return one == other };
    this.0 == that.0 && this.1 <= that.2 && that.1 <= this.2
}

fn shown(value: &Option<PlanValue>, unit: PlanUnit) -> String {
    let Some(value) = value else { return "nothing".to_owned() };
    match (value, unit) {
        (PlanValue::Text(text), _) if text.is_empty() => "nothing".to_owned(),
        (PlanValue::Text(text), _) => text.clone(),
        (PlanValue::Time(time), PlanUnit::None) => {
            let TimeCost { low, microseconds, high, provenance } = time;
            format!("{microseconds} µs ({low} to {high}; {provenance})")
        }
        (PlanValue::Time(time), _) => IntervalText::time(time).with(time.provenance.name()),
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

/// Formats ` (-12 %)`, or ` (+0.4 %)` below 10 percent, if both values are numbers that can be
/// compared.
fn share(change: &PlanChange, all: &[PlanChange]) -> String {
    let (before, after) = match (&change.before, &change.after) {
        (Some(PlanValue::Number(before)), Some(PlanValue::Number(after))) => (*before, *after),
        (Some(PlanValue::Time(before)), Some(PlanValue::Time(after)))
            if before.provenance == after.provenance =>
        {
            (before.microseconds, after.microseconds)
        }
        _ => return String::new(),
    };
    let share = (after as f64 / before as f64 - 1.0) * 100.0;
    let digits = usize::from(share.abs() < 9.95);
    match before > 0 && (0.05..=PERCENT_MOST).contains(&share.abs()) && !has_other_provenance(change, all) {
        true => format!(" ({share:+.digits$} %)"),
        false => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use shardwright::Provenance;
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
        assert!(text.ends_with("\nno changes\n"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn forecasts_have_names_instead_of_paths() {
        for (path, name) in [
            ("forecast, memory, decode, held bytes", "memory, decode"),
            ("forecast, memory, decode, mapped bytes", "memory, decode, mapped"),
            ("forecast, memory, decode, parts, KV cache, bytes", "memory, decode: KV cache"),
            (
                "forecast, memory, compile, parts, artefacts, written to files, rests on",
                "memory, compile: artefacts, written to files, basis",
            ),
            ("forecast, verdict, held bytes", "largest memory"),
            ("forecast, download, bytes", "download"),
            ("forecast, speed, first", "time to the first token"),
            ("forecast, speed, each, uncosted ops", "time of each, operations estimated by share"),
            ("forecast, speed, rate", "token rate"),
            ("forecast, speed, prompt tokens", "prompt tokens"),
            ("forecast, loading", "loading time"),
            ("time of decode_1@64", "time of decode_1@64"),
        ] {
            assert_eq!(readable(path), name);
        }
    }

    #[test]
    fn percentages_compare_only_values_that_can_be_compared() {
        let number = |value| Some(PlanValue::Number(value));
        let word = |text: &str| Some(PlanValue::Text(text.to_owned()));
        let at = |place: &str, change: PlanChange| PlanChange { place: place.to_owned(), ..change };
        let figure = |what: &str| change(PlanTopic::Layers, what, number(1024), number(2048));
        let other = |what: &str| change(PlanTopic::Layers, what, word("modelled"), word("measured"));
        for (what, basis) in [
            ("time of decode_1@64", "provenance of the time of decode_1@64"),
            ("artefacts", "provenance of the artefacts"),
            ("loss", "provenance of the loss"),
            ("value", "provenance"),
            ("forecast, memory, decode, held bytes", "forecast, memory, decode, provenance"),
            ("forecast, download, bytes", "forecast, download, rests on"),
        ] {
            assert_eq!(share(&figure(what), &[figure(what)]), " (+100 %)");
            assert_eq!(share(&figure(what), &[figure(what), other(basis)]), "", "{what}");
            // Another figure, other layers, and a layer among several.
            let elsewhere = [other("provenance of the other figure"), at("decoder 6-7", other(basis))];
            assert_eq!(share(&figure(what), &elsewhere), " (+100 %)", "{what}");
            assert_eq!(share(&at("decoder 3", figure(what)), &[other(basis)]), "", "{what}");
        }
        let grown = |after| share(&change(PlanTopic::Totals, "loss", number(100), number(after)), &[]);
        assert_eq!((grown(1100).as_str(), grown(1101).as_str()), (" (+1000 %)", ""));
        assert_eq!((grown(105).as_str(), grown(119).as_str()), (" (+5.0 %)", " (+19 %)"));
    }

    #[test]
    fn times_are_compared_by_their_likely_values_if_their_sources_agree() {
        let time = |likely: u64, provenance| {
            Some(PlanValue::Time(TimeCost::within(likely / 2, likely, likely * 2, provenance)))
        };
        let of = |after| PlanChange {
            unit: PlanUnit::Microseconds,
            ..change(PlanTopic::Totals, "time of decode_1@64", time(50_000, Provenance::Modelled), after)
        };
        let begin = "decoder 0-5: time of decode_1@64: about 50 ms (25 to 100; modelled) → ";
        for (after, end) in [
            (time(60_000, Provenance::Modelled), "about 60 ms (30 to 120; modelled) (+20 %)"),
            (time(60_000, Provenance::Reported), "about 60 ms (30 to 120; reported)"),
        ] {
            assert_eq!(line(&of(after), &[]), format!("{begin}{end}"));
        }
        // Rounded values are equal.
        let near = line(&of(time(50_010, Provenance::Modelled)), &[]);
        let exact = "50000 µs (25000 to 100000; modelled) → 50010 µs (25005 to 100020; modelled)";
        assert!(near.ends_with(exact), "{near}");
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
            "in all\n  decoder 0-5: weights: 2.0 KiB → 1.0 KiB (-50 %)\n",
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
