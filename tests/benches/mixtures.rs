//! Quality of the mixtures that the planner chooses for a size, compared with other mixtures of
//! that size.
//!
//! ```text
//! cargo test -p shardwright-tests --bench mixtures -- [--soc soc-72] [--rows 32] [--format json] [--tables] [--head]
//!     [--compensated] [--text FILE]
//! ```
//!
//! Runs the demo model on the CPU or for a Qualcomm chip, in eight sizes between its smallest and
//! largest uniform formats. The loss of a mixture is the KL divergence on held-out rows between its
//! weights and the stored ones. The planner does not see these rows: it has the losses measured on
//! the calibration text. The plan is compared with the best uniform format that fits, the first
//! layers in the wider format, the largest layers in the narrower one, and twenty random mixtures.
//! Each has the same bytes to within one hundredth. The gathered tables stay as stored in all of
//! them.
//!
//! With `--compensated`, weights are rounded with error compensation (GPTQ), both in plans and in
//! measurements, using the built-in text or `--text`.
//!
//! With `--head`, only the narrowest format with an 8-bit head, which profiles name first, is
//! compared with the plan of its bytes.
//!
//! With `--tables`, the tables are part of the size: plans that may quantise them are compared with
//! plans that may not.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use shardwright::{FormatChoice, OpenOptions, WeightFormat, WeightRounding};
use shardwright_build::{PlanOptions, PlanReport};
use shardwright_checkpoints::{checkpoint_moments, open_checkpoint};
use shardwright_graph::{ComponentKind, ConstantFormat, Graph, WeightId};
use shardwright_planning::profile::Preference;
use shardwright_quantisation::{Baseline, Moments, Recipe, TableFormats, places, quantise};
use shardwright_shims::ShimRegistry;
use shardwright_tests::checkpoints::DEMO_MODEL;
use shardwright_tests::formats::held_out;
use shardwright_tests::{chain, program, tree};
use shardwright_vocabulary::FormatTuple;

/// Uniform formats in the order of the CPU's profile, from the widest.
const UNIFORM: [&str; 3] = ["stored", "w8-per-channel/a8-dynamic/f16", "w4-block32/a8-dynamic/f16"];

/// Uniform formats of a chip, from the widest.
const ON_CHIP: [&str; 3] = ["w8-per-channel/a16/a8", "w4-block32-stepped/a16/a8", "w4-per-channel/a16/a8"];

/// Number of sizes between the smallest and the largest.
const SIZES: u64 = 8;

/// Formats of the gathered tables in the demo model.
const TABLES: [WeightFormat; 2] = [WeightFormat::Bf16; 2];

/// Number of random mixtures of each size.
const RANDOM: usize = 20;

/// A layer, or a component without layers.
type Place = (ComponentKind, u32);

/// The format of the weights of every place. `None` leaves them as stored.
type Mixture = BTreeMap<Place, Option<WeightFormat>>;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let option = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name)?;
        arguments.get(place + 1)
    };
    let rows: usize = option("--rows").map_or(32, |rows| rows.parse().expect("a number of rows"));
    let as_json = option("--format").is_some_and(|format| format == "json");
    let cache = tempfile::tempdir().expect("a temporary folder");
    let soc = option("--soc");
    let forms = if soc.is_some() { ON_CHIP } else { UNIFORM };
    let is_compensated = arguments.iter().any(|argument| argument == "--compensated");
    let text = option("--text").map(|text| tree::root().join(text));
    let offered = |formats: &[&str]| {
        let options = OpenOptions::new().search_path(program::search_path()).cache_directory(cache.path());
        let options = match is_compensated {
            true => options.rounding(WeightRounding::Compensated),
            false => options,
        };
        let options = match &text {
            Some(text) => options.calibration_text(text),
            None => options,
        };
        let options = match soc {
            Some(soc) => options.soc(soc).prefer(Preference::Quality),
            None => options,
        };
        formats.iter().fold(options, |options, formats| {
            options.formats(formats.parse::<FormatChoice>().expect("formats"))
        })
    };
    // The CPU's profile offers its formats by itself.
    let free = || offered(if soc.is_some() { &forms } else { &[] });
    let [embedding, per_layer] = TABLES.map(Some);
    let stored = shardwright::TableFormats { embedding, per_layer };
    let options = || free().tables(stored);
    let checkpoint = tree::root().join(DEMO_MODEL);
    let plan = |options: OpenOptions| {
        options.plan(&checkpoint).unwrap_or_else(|error| panic!("{error} ({:?})", error.help())).report
    };
    // Measures the losses of formats and caches them for the plans below.
    plan(options().quality(1_000_000));
    plan(free().quality(1_000_000));

    let graph = chain::committed(DEMO_MODEL);
    let all = held_out();
    let step = (all.len() / rows.min(all.len())).max(1);
    let sequences: Vec<Vec<u32>> =
        all.into_iter().step_by(step).take(rows).map(|row| row[..row.len().min(128)].to_vec()).collect();
    let baseline = Baseline::of(&graph, &sequences).expect("the reference runs it");
    let weights = forms.map(|formats| match formats.parse().expect("formats") {
        FormatChoice::Tuple(tuple) => Some(tuple.weights),
        FormatChoice::Stored => None,
    });
    let moments = is_compensated.then(|| {
        let shims = ShimRegistry::builder().directory(program::folder().join("shims"));
        let cache = Some(cache.path().to_owned());
        let options = PlanOptions { shims, cache, calibration_text: text.clone(), ..PlanOptions::default() };
        let opened = open_checkpoint(&checkpoint).expect("the demo model");
        Arc::new(checkpoint_moments(&opened, &options, &mut ()).expect("moments").0)
    });
    let bench = Bench::new(&graph, baseline, weights, moments.as_ref());

    if arguments.iter().any(|argument| argument == "--tables") {
        let try_plan = |options: OpenOptions| options.plan(&checkpoint).ok().map(|planned| planned.report);
        return with_tables(&bench, &|size| try_plan(free().size(size)), &|size| {
            try_plan(options().size(size))
        });
    }
    let bytes_of = |report: &PlanReport| report.totals.artefacts.bytes;
    if arguments.iter().any(|argument| argument == "--head") {
        let narrowest = forms[forms.len() - 1];
        let (weights, rest) = narrowest.split_once('/').expect("a tuple");
        let form = plan(offered(&[&format!("{weights}[head=w8-per-channel]/{rest}")]).tables(stored));
        let mut theirs = mixture(&form);
        theirs.insert((ComponentKind::Head, 0), Some(WeightFormat::W8PerChannel));
        let ours = plan(options().size(bytes_of(&form) + form.totals.table_bytes));
        assert!(bytes_of(&ours) <= bytes_of(&form), "{} bytes", bytes_of(&ours));
        let (theirs, mixed) = (bench.measure(&theirs), bench.measure(&mixture(&ours)));
        let (difference, error) = mixed.less_than(&theirs);
        println!(
            "{weights} with a head in 8 bits: {:.2} in {} kB; ours: {:.2} in {} kB ({:.2} ± {:.2}): {}",
            1e3 * theirs.mean(),
            bytes_of(&form) / 1000,
            1e3 * mixed.mean(),
            bytes_of(&ours) / 1000,
            1e3 * difference,
            1e3 * error,
            shown(&mixture(&ours)),
        );
        assert!(difference < -2.0 * error, "{difference} ± {error}");
        return;
    }
    let uniform: Vec<(Mixture, u64)> = forms
        .iter()
        .map(|formats| {
            let report = plan(offered(&[formats]));
            (mixture(&report), bytes_of(&report))
        })
        .collect();
    let (largest, smallest) = (uniform[0].1, uniform[uniform.len() - 1].1);
    let uniform: Vec<(Measured, u64)> =
        uniform.into_iter().map(|(mixture, bytes)| (bench.measure(&mixture), bytes)).collect();

    let mut table = Vec::new();
    for step in 0..SIZES {
        let size = smallest + (largest - smallest) * step / (SIZES - 1);
        eprintln!("{} of {SIZES}: {size} bytes", step + 1);
        let tables = plan(options()).totals.table_bytes;
        let report = plan(options().size(size + tables));
        assert!(bytes_of(&report) <= size, "a plan of {} in {size} bytes", bytes_of(&report));
        let own = mixture(&report);
        let ours = bench.measure(&own);
        let fits = uniform.iter().filter(|(_, bytes)| *bytes <= size).map(|(measured, _)| measured);
        let best_uniform = fits.min_by(|a, b| a.mean().total_cmp(&b.mean())).expect("the smallest fits");
        let bytes = bench.bytes(&own);
        let best = |mixtures: Vec<Mixture>| {
            let measured = mixtures.iter().map(|mixture| bench.measure(mixture));
            measured.min_by(|a, b| a.mean().total_cmp(&b.mean()))
        };
        let mut random: Vec<Measured> =
            bench.random(bytes, RANDOM).iter().map(|mixture| bench.measure(mixture)).collect();
        random.sort_by(|a, b| a.mean().total_cmp(&b.mean()));
        table.push(Row {
            size,
            bytes: bytes_of(&report),
            mixture: shown(&own),
            predicted: report.totals.loss.micronats().unwrap_or(0) as f64 / 1e6,
            uniform: best_uniform.clone(),
            first: best(bench.first_wider(bytes)),
            by_bytes: best(bench.widest_narrower(bytes)),
            random: random.get(random.len() / 2).cloned(),
            ours,
        });
    }
    match as_json {
        true => println!("{:#}", serde_json::Value::from_iter(table.iter().map(Row::json))),
        false => print(&table),
    }
    // A mixture must not lose more than a uniform format that fits, within the error of the sample.
    for row in &table {
        let (difference, error) = row.ours.less_than(&row.uniform);
        assert!(difference <= 2.0 * error + 1e-6, "{}: {difference} ± {error}", row.size);
    }
}

/// Prints plans of a few sizes, tables included, and plans whose tables stay as stored.
fn with_tables(
    bench: &Bench<'_>,
    free: &dyn Fn(u64) -> Option<PlanReport>,
    stored: &dyn Fn(u64) -> Option<PlanReport>,
) {
    let measure = |report: &PlanReport| {
        let format = |table: usize| report.tables.get(table).map(|table| table.format);
        let tables = TableFormats { embedding: format(0), per_layer: format(1) };
        bench.measure_with(&mixture(report), tables)
    };
    let nats = |measured: &Measured| format!("{:.2}", 1000.0 * measured.mean());
    println!("| size (MB) | tables | layers | expected | measured | tables as stored: layers | measured |");
    println!("|---:|---|---|---:|---:|---|---:|");
    for tenths in [55, 60, 70, 80, 90, 100, 120, 140] {
        let Some(report) = free(tenths * 100_000) else { continue };
        let ours = measure(&report);
        let tables = report.tables.iter().map(|table| table.format.name()).collect::<Vec<_>>().join(", ");
        let expected = report.totals.loss.micronats().unwrap_or(0) as f64 / 1e3;
        let other = stored(tenths * 100_000).map(|other| (measure(&other), shown(&mixture(&other))));
        println!(
            "| {}.{} | {tables} | {} | {expected:.2} | {} | {} | {} |",
            tenths / 10,
            tenths % 10,
            shown(&mixture(&report)),
            nats(&ours),
            other.as_ref().map_or("none fits", |(_, layers)| layers),
            other.as_ref().map_or("-".to_owned(), |(other, _)| {
                let (difference, error) = ours.less_than(other);
                format!("{} ({:.2} ± {:.2})", nats(other), 1e3 * difference, 1e3 * error)
            }),
        );
        // The planner also compared plans with stored tables. Ours must not lose more, within the
        // error of the sample.
        if let Some((other, _)) = other {
            let (difference, error) = ours.less_than(&other);
            assert!(difference <= 2.0 * error + 1e-3, "{tenths}: {difference} ± {error}");
        }
    }
}

/// Divergence of one mixture, by held-out row: nats and tokens.
#[derive(Clone)]
struct Measured(Vec<(f64, u64)>);

impl Measured {
    /// Returns nats per token.
    fn mean(&self) -> f64 {
        let (sum, count) = self.0.iter().fold((0.0, 0), |all, own| (all.0 + own.0, all.1 + own.1));
        sum / count.max(1) as f64
    }

    /// Returns how much more it loses than another mixture, and the standard error of that
    /// difference, by a paired bootstrap over rows.
    fn less_than(&self, other: &Measured) -> (f64, f64) {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut differences = Vec::new();
        for _ in 0..500 {
            let (mut off, mut count) = (0.0, 0);
            for _ in 0..self.0.len() {
                let row = (next(&mut state) % self.0.len() as u64) as usize;
                off += self.0[row].0 - other.0[row].0;
                count += self.0[row].1;
            }
            differences.push(off / count.max(1) as f64);
        }
        let mean = differences.iter().sum::<f64>() / differences.len() as f64;
        let squares = differences.iter().map(|difference| (difference - mean).powi(2)).sum::<f64>();
        (self.mean() - other.mean(), (squares / differences.len() as f64).sqrt())
    }
}

/// Returns pseudo-random numbers, the same in every run.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state >> 8
}

/// The demo model and its predictions.
struct Bench<'g> {
    graph: &'g Graph,
    baseline: Baseline<'g>,
    places: BTreeMap<Place, Vec<WeightId>>,
    /// Formats that mixtures are made of, from the widest.
    formats: [Option<WeightFormat>; 3],
    /// Graphs with all matrices in one format.
    made: BTreeMap<WeightFormat, Graph>,
}

impl<'g> Bench<'g> {
    fn new(
        graph: &'g Graph,
        baseline: Baseline<'g>,
        formats: [Option<WeightFormat>; 3],
        moments: Option<&Arc<Moments>>,
    ) -> Self {
        let mut of_places: BTreeMap<Place, Vec<WeightId>> = BTreeMap::new();
        for ((component, layer, _), weights) in places(graph) {
            of_places.entry((component, layer)).or_default().extend(weights);
        }
        let all_in = |format: WeightFormat| {
            let mut weights = vec![ConstantFormat::Stored; graph.weights.len()];
            for weight in of_places.values().flatten() {
                weights[weight.0 as usize] = ConstantFormat::Matrix(format);
            }
            let recipe = Recipe { weights, moments: moments.cloned(), ..Recipe::default() };
            (format, quantise(graph, &recipe, &mut (), &mut Vec::new()).expect("a matrix in any format"))
        };
        let made = formats.into_iter().flatten().map(all_in).collect();
        Bench { graph, baseline, places: of_places, formats, made }
    }

    fn measure(&self, mixture: &Mixture) -> Measured {
        self.measure_with(mixture, TableFormats::default())
    }

    fn measure_with(&self, mixture: &Mixture, tables: TableFormats) -> Measured {
        let weights = vec![ConstantFormat::Stored; self.graph.weights.len()];
        let recipe = Recipe { weights, tables, ..Recipe::default() };
        let mut made = quantise(self.graph, &recipe, &mut (), &mut Vec::new()).expect("tables in any format");
        for (place, format) in mixture {
            let Some(of_format) = format.and_then(|format| self.made.get(&format)) else { continue };
            for weight in self.places.get(place).into_iter().flatten() {
                made.weights[weight.0 as usize] = of_format.weights[weight.0 as usize].clone();
            }
        }
        Measured(self.baseline.divergences_of(&made).expect("the reference runs it"))
    }

    fn bytes_of(&self, place: &Place, format: Option<WeightFormat>) -> u64 {
        let weights = self.places[place].iter().map(|weight| &self.graph.weights[weight.0 as usize]);
        let bytes = weights.map(|weight| match format {
            Some(format) => weight.planned(format).expect("a matrix in any format").bytes(),
            None => weight.bytes(),
        });
        bytes.sum()
    }

    fn bytes(&self, mixture: &Mixture) -> u64 {
        self.places.keys().map(|place| self.bytes_of(place, mixture.get(place).copied().flatten())).sum()
    }

    /// Returns pairs of formats, the wider first.
    fn pairs(&self) -> [(Option<WeightFormat>, Option<WeightFormat>); 3] {
        let [widest, middle, narrowest] = self.formats;
        [(widest, middle), (middle, narrowest), (widest, narrowest)]
    }

    /// Returns mixtures with the first places in the wider format. It tries every pair of formats,
    /// and every number of places that comes within a hundredth of these bytes.
    fn first_wider(&self, bytes: u64) -> Vec<Mixture> {
        self.in_order(self.places.keys().copied().collect(), bytes)
    }

    /// Returns mixtures chosen by bytes alone: the places with the fewest bytes are in the wider
    /// format.
    fn widest_narrower(&self, bytes: u64) -> Vec<Mixture> {
        let mut order: Vec<Place> = self.places.keys().copied().collect();
        order.sort_by_key(|place| self.bytes_of(place, None));
        self.in_order(order, bytes)
    }

    fn in_order(&self, order: Vec<Place>, bytes: u64) -> Vec<Mixture> {
        let mut found = Vec::new();
        for (wide, narrow) in self.pairs() {
            for count in 0..=order.len() {
                let format = |place: usize| if place < count { wide } else { narrow };
                let mixture: Mixture =
                    order.iter().enumerate().map(|(place, key)| (*key, format(place))).collect();
                // At most a hundredth more. If none is within a hundredth, the nearest one below is
                // used.
                if self.bytes(&mixture) * 100 <= bytes * 101 {
                    found.push(mixture);
                }
            }
        }
        found.sort_by_key(|mixture| std::cmp::Reverse(self.bytes(mixture)));
        let near = |mixture: &&Mixture| self.bytes(mixture) * 101 >= bytes * 100;
        match found.iter().filter(near).count() {
            0 => found.into_iter().take(1).collect(),
            count => found.into_iter().take(count).collect(),
        }
    }

    /// Returns up to `count` different random mixtures within a hundredth of these bytes.
    fn random(&self, bytes: u64, count: usize) -> Vec<Mixture> {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut found: Vec<Mixture> = Vec::new();
        for _ in 0..400_000 {
            let mut draw = |place: &Place| (*place, self.formats[(next(&mut state) % 3) as usize]);
            let mixture: Mixture = self.places.keys().map(&mut draw).collect();
            let off = self.bytes(&mixture).abs_diff(bytes);
            if off * 100 <= bytes && !found.contains(&mixture) {
                found.push(mixture);
            }
            if found.len() == count {
                break;
            }
        }
        found
    }
}

/// Returns the weight formats of a plan, by place.
fn mixture(report: &PlanReport) -> Mixture {
    let layers = report.shards.iter().flat_map(|shard| &shard.by_layer);
    let known = layers.filter(|layer| layer.weight_bytes > 0).map(|layer| {
        let component = layer.component.parse().expect("a component");
        let tuple: FormatTuple = layer.formats.parse().expect("formats");
        let format = Some(tuple.weights).filter(|format| format.is_quantised());
        ((component, layer.layer.unwrap_or(0)), format)
    });
    known.collect()
}

/// Formats the number of places of each format.
fn shown(mixture: &Mixture) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for format in mixture.values() {
        *counts.entry(format.map_or("stored".to_owned(), |format| format.to_string())).or_default() += 1;
    }
    let parts: Vec<String> = counts.iter().map(|(format, count)| format!("{count} {format}")).collect();
    parts.join(", ")
}

struct Row {
    size: u64,
    bytes: u64,
    mixture: String,
    /// Loss that the plan expects, in nats per token.
    predicted: f64,
    ours: Measured,
    uniform: Measured,
    first: Option<Measured>,
    by_bytes: Option<Measured>,
    random: Option<Measured>,
}

impl Row {
    fn json(&self) -> serde_json::Value {
        let other = |other: &Option<Measured>| {
            other.as_ref().map(|other| {
                let (difference, error) = self.ours.less_than(other);
                json!({ "divergence": other.mean(), "ours_more": difference, "error": error })
            })
        };
        json!({
            "size": self.size,
            "bytes": self.bytes,
            "mixture": self.mixture,
            "predicted": self.predicted,
            "divergence": self.ours.mean(),
            "uniform": other(&Some(self.uniform.clone())),
            "first_layers_wider": other(&self.first),
            "by_bytes": other(&self.by_bytes),
            "median_of_random": other(&self.random),
        })
    }
}

fn print(table: &[Row]) {
    println!(
        "| size (kB) | planned (kB) | places | expected | ours | best uniform | first layers wider | by bytes | random, median |"
    );
    println!("|---:|---:|---|---:|---:|---:|---:|---:|---:|");
    for row in table {
        let thousandths = |nats: f64| format!("{:.2}", 1000.0 * nats);
        let other = |other: Option<&Measured>| {
            other.map_or("-".to_owned(), |other| {
                let (difference, error) = row.ours.less_than(other);
                format!(
                    "{} ({} ± {})",
                    thousandths(other.mean()),
                    thousandths(difference),
                    thousandths(error)
                )
            })
        };
        println!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            row.size / 1000,
            row.bytes / 1000,
            row.mixture,
            thousandths(row.predicted),
            thousandths(row.ours.mean()),
            other(Some(&row.uniform)),
            other(row.first.as_ref()),
            other(row.by_bytes.as_ref()),
            other(row.random.as_ref()),
        );
    }
}
