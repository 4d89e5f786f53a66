//! Reported speeds of phones, each compared with a prediction that does not know it.
//! `SHARDWRIGHT_WRITE_PAGES=1` writes the page of the results again.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

use serde::Deserialize;
use shardwright_build::IntervalText;
use shardwright_planning::profile::{Decimal, Profile, ProfileRegistry, Roofline, TimeFactors};
use shardwright_vocabulary::{TargetKind, TimeCost};

use crate::common::root;

/// Contents of the data file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Reports {
    figures: Vec<Figure>,
    left_out: Vec<LeftOut>,
}

/// A reported speed.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Figure {
    chip: String,
    device: TargetKind,
    model: String,
    formats: String,
    /// Weights that a token is multiplied with.
    millions_of_weights: f64,
    /// Bytes of these weights, in millions.
    megabytes: f64,
    /// Tokens of a run.
    rows: u32,
    value: f64,
    unit: Unit,
    source: String,
    #[serde(default)]
    note: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
enum Unit {
    #[serde(rename = "tokens/s")]
    Tokens,
    #[serde(rename = "prompt tokens/s")]
    PromptTokens,
    /// Milliseconds of a run.
    #[serde(rename = "ms")]
    Milliseconds,
}

/// A reported speed that cannot be compared, and why.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LeftOut {
    chip: String,
    what: String,
    value: String,
    source: String,
    because: String,
}

impl Figure {
    /// Returns the microseconds of a run.
    fn reported(&self) -> f64 {
        match self.unit {
            Unit::Tokens | Unit::PromptTokens => f64::from(self.rows) * 1e6 / self.value,
            Unit::Milliseconds => self.value * 1e3,
        }
    }

    fn shown(&self) -> String {
        match self.unit {
            Unit::Tokens => format!("{} tokens/s", self.value),
            Unit::PromptTokens => format!("{} prompt tokens/s", self.value),
            Unit::Milliseconds => format!("{} ms", self.value),
        }
    }

    /// Returns the prediction of a device with these rates.
    fn predicted(&self, rates: &Roofline) -> TimeCost {
        let multiply_adds = self.millions_of_weights * 1e6 * f64::from(self.rows);
        rates.time((self.megabytes * 1e6) as u64, multiply_adds as u64)
    }
}

/// A reported speed, with the rates of its device.
struct Known {
    figure: Figure,
    /// The vendor of the chip, or `CPU`. Devices of a group share their factors.
    group: String,
    rates: Roofline,
    /// The reported time divided by the time at the stated rates.
    ratio: f64,
}

/// Factors of a group.
#[derive(Clone, Copy, Debug)]
struct Fit {
    low: f64,
    likely: f64,
    high: f64,
}

impl Fit {
    /// Returns the factors that cover the most ratios with `widest` as the quotient of both bounds.
    /// The bounds have the same distance from the covered ratios. The median is the likely one.
    fn of(mut ratios: Vec<f64>, widest: f64) -> Fit {
        ratios.sort_by(f64::total_cmp);
        let covered = |first: usize| {
            let count = ratios[first..].iter().filter(|ratio| **ratio <= ratios[first] * widest).count();
            (first, first + count - 1)
        };
        // Of several ranges with as many ratios, the first one counts.
        let ranges = (0..ratios.len()).rev().map(covered);
        let (first, last) = ranges.max_by_key(|(first, last)| last - first).expect("a ratio");
        let middle = (ratios[first] * ratios[last]).sqrt();
        let (low, high) = (middle / widest.sqrt(), middle * widest.sqrt());
        let half = ratios.len() / 2;
        let median = match ratios.len() % 2 {
            1 => ratios[half],
            _ => (ratios[half - 1] * ratios[half]).sqrt(),
        };
        Fit { low, likely: median.clamp(low, high), high }
    }

    /// Returns these rates with the factors. Rounds the bounds inwards.
    fn of_rates(self, rates: &Roofline) -> Roofline {
        let [low, likely, high] = [self.low, self.likely, self.high].map(|factor| factor * 1000.0);
        let thousandths = [low.ceil(), likely.round(), high.floor()];
        let [low, likely, high] = thousandths.map(|factor| Decimal::of_thousandths(factor as u64));
        Roofline { low, likely, high, ..rates.clone() }
    }
}

/// Returns the widest interval that a group may have, as the quotient of its bounds. Few speeds of
/// CPUs are reported.
fn widest(group: &str) -> f64 {
    match group {
        "MediaTek" | "Qualcomm" => 4.0,
        _ => 10.0,
    }
}

fn read() -> (Vec<Known>, Vec<LeftOut>) {
    let file = fs::read(root().join("docs/benchmarks/predictions.json")).unwrap();
    let Reports { figures, left_out } = serde_json::from_slice(&file).unwrap();
    let registry = ProfileRegistry::new();
    let known = |figure: Figure| {
        let Profile { times, vendor, .. } = registry.find(&figure.chip).unwrap().profile;
        let (group, rates) = match figure.device {
            TargetKind::Cpu => ("CPU".to_owned(), times.cpu),
            _ => (vendor, times.roofline),
        };
        let rates = rates.unwrap_or_else(|| panic!("{} states no rates", figure.chip));
        let one = Fit { low: 1.0, likely: 1.0, high: 1.0 }.of_rates(&rates);
        let ratio = figure.reported() / figure.predicted(&one).microseconds as f64;
        Known { figure, group, rates, ratio }
    };
    (figures.into_iter().map(known).collect(), left_out)
}

/// Returns the factors of a group from its figures, without the one with index `without`.
fn fit(all: &[Known], group: &str, without: Option<usize>) -> Fit {
    let own = all.iter().enumerate().filter(|(index, known)| known.group == group && Some(*index) != without);
    Fit::of(own.map(|(_, known)| known.ratio).collect(), widest(group))
}

/// Returns the prediction for each figure, with the factors that the other figures of its group
/// give.
fn predictions(all: &[Known]) -> Vec<TimeCost> {
    let predicted = |(index, known): (usize, &Known)| {
        known.figure.predicted(&fit(all, &known.group, Some(index)).of_rates(&known.rates))
    };
    all.iter().enumerate().map(predicted).collect()
}

fn is_inside(figure: &Figure, time: &TimeCost) -> bool {
    (time.low as f64..=time.high as f64).contains(&figure.reported())
}

/// Returns the reported time divided by the likely one.
fn ratio(figure: &Figure, time: &TimeCost) -> f64 {
    figure.reported() / time.microseconds as f64
}

#[test]
fn reported_speeds_are_inside_intervals_that_do_not_know_them() {
    let (all, _) = read();
    let predicted = predictions(&all);
    let mut outside = Vec::new();
    for (Known { figure, group, .. }, time) in all.iter().zip(&predicted) {
        assert!(time.is_ordered() && time.low > 0, "{time:?}");
        // Both bounds are rounded to a microsecond.
        let width = time.high.saturating_sub(1) as f64 / (time.low + 1) as f64;
        assert!(width <= widest(group), "{} {}: {time:?}", figure.chip, figure.model);
        if !is_inside(figure, time) {
            outside.push(format!("{} {}: {} µs, {time:?}", figure.chip, figure.model, figure.reported()));
        }
    }
    assert!(outside.len() * 5 <= all.len(), "{} of {} figures: {outside:#?}", outside.len(), all.len());
}

/// Bandwidth that the simulator of id 72 has in its estimates, in 10⁹ bytes per second.
const SIMULATED_GIGABYTES: f64 = 67.0;

#[test]
fn the_profiles_state_the_factors_that_all_figures_give() {
    let (all, _) = read();
    let groups: Vec<&str> = all.iter().map(|known| known.group.as_str()).collect();
    for name in ["MediaTek", "Qualcomm", "CPU"] {
        assert!(groups.iter().filter(|group| **group == name).count() > 1, "{name}");
    }
    let near = |what: &str, stated: &TimeFactors, Fit { low, likely, high }: Fit| {
        let stated = [stated.low, stated.likely, stated.high];
        for (stated, fitted) in stated.into_iter().zip([low, likely, high]) {
            let error = stated.thousandths() as f64 / 1000.0 / fitted - 1.0;
            assert!(error.abs() < 0.02, "{what}: {stated}, fitted {low:.3}, {likely:.3}, {high:.3}");
        }
        let [shortest, _, longest] = stated.map(|factor| factor.thousandths() as f64);
        assert!(longest <= shortest * high / low + 1e-6, "{what}");
    };
    for found in ProfileRegistry::new().list().unwrap().found {
        let Profile { name, vendor, kind, times, .. } = found.profile;
        near(&format!("{name}, CPU"), &times.cpu.expect("every profile").factors(), fit(&all, "CPU", None));
        if kind == TargetKind::Cpu {
            continue;
        }
        let (rates, fitted) = (times.roofline.expect("every chip"), fit(&all, &vendor, None));
        near(&name, &rates.factors(), fitted);
        let Some(estimates) = times.estimates else {
            // The shim estimates times if the profile has facts about the chip's rates.
            assert_eq!(vendor, "MediaTek", "{name}");
            continue;
        };
        let scale = match name.as_str() {
            // The chip of the estimates itself, and one whose simulated rates are unknown.
            "soc-72" | "sa8295" => continue,
            _ if vendor == "Qualcomm" => {
                SIMULATED_GIGABYTES * 1000.0 / rates.gigabytes_per_second.thousandths() as f64
            }
            // The estimates of the shim are at the stated rates.
            _ => 1.0,
        };
        let Fit { low, likely, high } = fitted;
        let own = Fit { low: low * scale, likely: likely * scale, high: high * scale };
        near(&format!("{name}, estimates"), &estimates, own);
    }
}

#[test]
fn a_fit_covers_the_most_figures_with_the_width_that_is_allowed() {
    let near = |fit: Fit, expected: [f64; 3]| {
        for (value, expected) in [fit.low, fit.likely, fit.high].into_iter().zip(expected) {
            assert!((value - expected).abs() < 1e-9, "{fit:?}, expected {expected}");
        }
    };
    near(Fit::of(vec![3.0], 4.0), [1.5, 3.0, 6.0]);
    near(Fit::of(vec![4.0, 1.0], 4.0), [1.0, 2.0, 4.0]);
    near(Fit::of(vec![2.0, 8.0, 4.0], 16.0), [1.0, 4.0, 16.0]);
    // One ratio is too far from the others.
    near(Fit::of(vec![1.0, 1.0, 100.0], 4.0), [0.5, 1.0, 2.0]);
    near(Fit::of(vec![1.0, 100.0, 100.0], 4.0), [50.0, 100.0, 200.0]);
    // Without a majority, the first ratio is covered. The likely one is moved into the interval.
    near(Fit::of(vec![1.0, 100.0], 4.0), [0.5, 2.0, 2.0]);
}

/// Returns the first part of the page, with the results in total.
fn summary(all: &[Known], predicted: &[TimeCost]) -> String {
    let inside = all.iter().zip(predicted).filter(|(known, time)| is_inside(&known.figure, time)).count();
    let is_near = |(known, time): &(&Known, &TimeCost)| (0.5..=2.0).contains(&ratio(&known.figure, time));
    let near = all.iter().zip(predicted).filter(is_near).count();
    let mut text = format!(
        "# Predicted and reported speeds

This page compares predicted times of chips with every usable speed that others reported. No phone
was measured for this project. The data is in [predictions.json](predictions.json). The test
`predictions` of `shardwright-build` checks the numbers, and writes this page with
`SHARDWRIGHT_WRITE_PAGES=1`.

A prediction is the longer of moving the weights of a run at the bandwidth of the chip and of
multiplying them at its rate, times three factors: the lowest, the likely and the highest. The
factors are fitted to the reported speeds of a vendor's chips, or of CPUs. **For each row, they are
fitted without that row.** Of {total} speeds, {inside} are inside their interval, and {near} are
within a factor of 2 of the likely time. The predictions leave out calls, attention and sampling.

| group | speeds | lowest factor | likely | highest | highest / lowest |
|---|---:|---:|---:|---:|---:|
",
        total = all.len(),
    );
    let mut groups: BTreeMap<&str, usize> = BTreeMap::new();
    for known in all {
        *groups.entry(&known.group).or_default() += 1;
    }
    for (group, count) in groups {
        let Fit { low, likely, high } = fit(all, group, None);
        let widest = widest(group);
        let _ = writeln!(text, "| {group} | {count} | {low:.2} | {likely:.2} | {high:.2} | {widest} |");
    }
    text += "
The profiles state these factors, fitted to all speeds of the group. Chips without a reported speed
have the factors of their relatives. `shardwright tune` on a device replaces them by measurements.
";
    text
}

/// Returns the page of the results.
fn page() -> String {
    let (all, left_out) = read();
    let predicted = predictions(&all);
    let mut text = summary(&all, &predicted);
    text += "
## Compared

The ratio is the reported time divided by the likely time. Notes list assumptions where a report
does not state widths, rows or sizes.

| chip | model | formats, program | run | reported | predicted | ratio | inside | source | notes |
|---|---|---|---|---:|---|---:|---|---|---|
";
    for (known, time) in all.iter().zip(&predicted) {
        let Figure { chip, model, formats, rows, source, note, .. } = &known.figure;
        let chip = if known.figure.device == TargetKind::Cpu { format!("{chip}, CPU") } else { chip.clone() };
        let run = if *rows == 1 { "a token".to_owned() } else { format!("{rows} rows") };
        let (shown, reported) = (known.figure.shown(), known.figure.reported() / 1000.0);
        let reported = match known.figure.unit {
            Unit::Milliseconds => shown,
            _ => format!("{shown}: {reported:.1} ms"),
        };
        let (predicted, ratio) = (IntervalText::time(time), ratio(&known.figure, time));
        let inside = if is_inside(&known.figure, time) { "yes" } else { "**no**" };
        let _ = writeln!(
            text,
            "| {chip} | {model} | {formats} | {run} | {reported} | {predicted} | {ratio:.2} | {inside} | \
             {source} | {note} |"
        );
    }
    text += "
## Not compared

| chip | what | reported | source | reason |
|---|---|---|---|---|
";
    for LeftOut { chip, what, value, source, because } in &left_out {
        let _ = writeln!(text, "| {chip} | {what} | {value} | {source} | {because} |");
    }
    text
}

#[test]
fn the_page_has_the_predictions() {
    let path = root().join("docs/benchmarks/predictions.md");
    let page = page();
    if std::env::var_os("SHARDWRIGHT_WRITE_PAGES").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap();
    let differs = page.lines().zip(written.lines()).find(|(new, old)| new != old);
    assert_eq!(differs, None, "`SHARDWRIGHT_WRITE_PAGES=1` writes the page again");
    assert_eq!(page.len(), written.len(), "`SHARDWRIGHT_WRITE_PAGES=1` writes the page again");
}
