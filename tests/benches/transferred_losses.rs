//! Fastest plan of Gemma 4 E2B that loses no more than a uniform plan, using losses measured on the
//! demo model and transferred to E2B's layers.
//!
//! ```text
//! SHARDWRIGHT_QNN_LIB=… cargo test -p shardwright-tests --bench transferred_losses -- [--format json]
//! ```
//!
//! No weights of E2B are available here, so the losses of its formats cannot be measured. The demo
//! model's can: for every layer and role in every format that the chip supports, rounded with error
//! compensation (GPTQ). They are transferred by one rule. A role of a layer of E2B loses as much as
//! the same role of a demo layer at the same relative depth. Layers with keys and values of their
//! own and layers that share them are counted separately, and losses between two layers are
//! interpolated. The loss is multiplied by the number of such layers in the demo model and divided
//! by their number in E2B, so that all layers of a role together lose the same in both. The head
//! loses as much as the demo model's.
//!
//! The goal is the loss of W4 per channel with every value rounded to the nearest, measured in the
//! same way for the whole demo model. Times are for one token, head included, in a context of 512,
//! simulated by Qualcomm's library for `soc-72`. Activations and KV cache are in 16 and 8 bits in
//! all plans, and their loss is not counted.

use std::collections::BTreeMap;
use std::fs;

use serde_json::json;
use shardwright::{FormatChoice, LossRow, OpenOptions, WeightRounding};
use shardwright_graph::ComponentKind;
use shardwright_planning::builtin;
use shardwright_planning::check::{CheckedPlan, check};
use shardwright_planning::plan::Plan;
use shardwright_planning::request::{Request, Sensitivity};
use shardwright_planning::sandbox::{EngineKind, Sandbox};
use shardwright_test_checkpoints::Spec;
use shardwright_tests::checkpoints::DEMO_MODEL;
use shardwright_tests::formats::OWN_TEXT;
use shardwright_tests::{program, tree};
use shardwright_vocabulary::{EntryKind, Provenance, WeightFormat, WeightRole};

/// The simulated chip.
const SOC: &str = "soc-72";

/// Tokens of the KV cache.
const CONTEXT: u32 = 512;

/// The uniform formats that the plan is compared with.
const UNIFORM: &str = "w4-per-channel/a16/a8";

/// Formats that the planner may use.
const OFFERED: [&str; 12] = [
    UNIFORM,
    "w8-per-channel/a16/a8",
    "w2-per-channel/a16/a8",
    "w4-block32-stepped/a16/a8",
    "w4-per-channel[mlp-input=w2-per-channel]/a16/a8",
    "w4-per-channel[mlp-output=w2-per-channel]/a16/a8",
    "w4-per-channel[mlp-input=w2-per-channel][mlp-output=w2-per-channel]/a16/a8",
    "w4-per-channel[attention-input=w2-per-channel][attention-output=w2-per-channel]/a16/a8",
    "w4-per-channel[attention-output=w2-per-channel][mlp-input=w2-per-channel][mlp-output=w2-per-channel]/a16/a8",
    "w4-per-channel[attention-input=w4-block32-stepped]/a16/a8",
    "w4-per-channel[mlp-input=w4-block32-stepped]/a16/a8",
    "w4-per-channel[mlp-input=w4-block32-stepped][mlp-output=w4-block32-stepped]/a16/a8",
];

/// Layers that keep keys and values, and layers that share the keys and values of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cache {
    Own,
    Shared,
}

/// The numbers of layers of a model.
#[derive(Clone, Copy)]
struct Layers {
    own: u32,
    shared: u32,
}

impl Layers {
    fn of(request: &Request) -> Layers {
        let decoder = decoder(request);
        let is_own: Vec<bool> = (0..decoder.layer_count()).map(|layer| is_own(request, layer)).collect();
        assert!(is_own.is_sorted_by(|before, after| before >= after), "layers that share come last");
        let own = is_own.iter().filter(|own| **own).count() as u32;
        Layers { own, shared: decoder.layer_count() - own }
    }

    fn count(self, cache: Cache) -> u32 {
        match cache {
            Cache::Own => self.own,
            Cache::Shared => self.shared,
        }
    }

    /// Returns the kind of a layer and its relative depth among layers of its kind, from 0 to 1.
    /// Layers that share come last.
    fn place(self, layer: u32) -> (Cache, f64) {
        let (cache, index) = match layer.checked_sub(self.own) {
            None => (Cache::Own, layer),
            Some(index) => (Cache::Shared, index),
        };
        (cache, (f64::from(index) + 0.5) / f64::from(self.count(cache)))
    }
}

/// Losses of a model's roles in each format, in millionths of a nat.
struct Losses {
    layers: Layers,
    /// Depths and losses, by depth.
    of_layers: BTreeMap<(Cache, WeightRole, WeightFormat), Vec<(f64, f64)>>,
    others: BTreeMap<(String, WeightRole, WeightFormat), f64>,
}

impl Losses {
    fn of(rows: &[LossRow], layers: Layers) -> Losses {
        let mut losses = Losses { layers, of_layers: BTreeMap::new(), others: BTreeMap::new() };
        for row in rows {
            // Rows of tables, activations and states are skipped.
            let (Some(component), Ok(role)) = (&row.component, row.what.parse::<WeightRole>()) else {
                continue;
            };
            assert_eq!(row.provenance, Provenance::Measured, "{component} {}", row.what);
            let (format, lost) = (row.format.parse().expect("a format"), row.micronats.expect("measured"));
            match row.layer {
                Some(layer) => {
                    let (cache, depth) = layers.place(layer);
                    losses.of_layers.entry((cache, role, format)).or_default().push((depth, lost.max(0.0)));
                }
                None => {
                    losses.others.insert((component.clone(), role, format), lost.max(0.0));
                }
            }
        }
        losses.of_layers.values_mut().for_each(|rows| rows.sort_by(|a, b| a.0.total_cmp(&b.0)));
        losses
    }

    /// Returns the sum of all losses in one format.
    fn all(&self, format: WeightFormat) -> f64 {
        let of_layers = self.of_layers.iter().filter(|((.., of), _)| *of == format);
        let others = self.others.iter().filter(|((.., of), _)| *of == format);
        of_layers.flat_map(|(_, rows)| rows).map(|(_, lost)| lost).sum::<f64>()
            + others.map(|(_, lost)| lost).sum::<f64>()
    }

    /// Returns the transferred loss of a role of a layer of another model.
    fn carried(&self, other: Layers, layer: u32, role: WeightRole, format: WeightFormat) -> Option<f64> {
        let (cache, depth) = other.place(layer);
        let rows = self.of_layers.get(&(cache, role, format))?;
        let part = f64::from(self.layers.count(cache)) / f64::from(other.count(cache));
        Some(part * between(rows, depth))
    }
}

/// Interpolates the value at a depth between its neighbouring rows.
fn between(rows: &[(f64, f64)], depth: f64) -> f64 {
    let after = rows.partition_point(|(other, _)| *other < depth);
    match (after.checked_sub(1).and_then(|before| rows.get(before)), rows.get(after)) {
        (Some(&(a, low)), Some(&(b, high))) => low + (high - low) * (depth - a) / (b - a),
        (Some(&(_, end)), None) | (None, Some(&(_, end))) => end,
        (None, None) => 0.0,
    }
}

fn decoder(request: &Request) -> &shardwright_planning::request::Component {
    let decoder = ComponentKind::Decoder.to_string();
    request.model.components.iter().find(|component| component.name == decoder).expect("a decoder")
}

fn is_own(request: &Request, layer: u32) -> bool {
    let shardwright_planning::request::Body::Layers(layers) = &decoder(request).body else {
        panic!("a decoder has layers")
    };
    layers[layer as usize].donor.is_none()
}

fn main() {
    let as_json = std::env::args().any(|argument| argument == "json");
    let cache = tempfile::tempdir().expect("a temporary folder");
    let options = || OpenOptions::new().search_path(program::search_path()).cache_directory(cache.path());
    let formats = |options: OpenOptions, formats: &[&str]| {
        formats.iter().fold(options, |options, formats| {
            options.formats(formats.parse::<FormatChoice>().expect("formats"))
        })
    };

    let demo = tree::root().join(DEMO_MODEL);
    let layers: Layers = {
        let planned = options().plan(&demo).expect("the demo model");
        Layers::of(&serde_json::from_slice(&planned.request).expect("a request of our own"))
    };
    let measured = |rounding: WeightRounding, offered: &[&str]| {
        eprintln!("measuring what the demo model loses, {rounding:?}");
        let options =
            formats(options(), offered).rounding(rounding).calibration_text(tree::root().join(OWN_TEXT));
        let (report, _) = options.measure_sensitivities(&demo, None, &mut ()).expect("it is measured");
        Losses::of(&report.losses, layers)
    };
    let nearest = measured(WeightRounding::Nearest, &["w4-per-channel/f32/f32"]);
    let weights = ["w8-per-channel", "w4-per-channel", "w4-block32-stepped", "w2-per-channel"];
    let plain: Vec<String> = weights.iter().map(|weights| format!("{weights}/f32/f32")).collect();
    let ours = measured(WeightRounding::Compensated, &plain.iter().map(String::as_str).collect::<Vec<_>>());
    let goal = nearest.all(WeightFormat::W4PerChannel);

    let folder = tempfile::tempdir().expect("a temporary folder");
    Spec::e2b().write(folder.path()).expect("written");
    let outline = tempfile::tempdir().expect("a temporary folder");
    fs::copy(folder.path().join("config.json"), outline.path().join("config.json")).expect("copied");
    eprintln!("simulating E2B's layers");
    let planned = formats(options(), &OFFERED)
        .soc(SOC)
        .context(CONTEXT)
        .quality(1_000)
        .plan(outline.path())
        .expect("E2B");
    let mut request: Request = serde_json::from_slice(&planned.request).expect("a request of our own");
    let theirs = Layers::of(&request);
    // Expected losses of activations and states do not count here.
    request.value_sensitivities.clear();
    request.sensitivities = request
        .sensitivities
        .iter()
        .map(|row| {
            let component = &request.model.components[row.component as usize].name;
            let lost = match component == "decoder" {
                true => ours.carried(theirs, row.layer, row.role, row.format),
                false => ours.others.get(&(component.clone(), row.role, row.format)).copied(),
            };
            // There is no loss if the component has no matrix of this role.
            let lost = lost.or((row.micronats == 0).then_some(0.0));
            let lost = lost.unwrap_or_else(|| panic!("{component} {} {}", row.role, row.format));
            Sensitivity { micronats: lost.ceil() as u32, provenance: Provenance::Modelled, ..row.clone() }
        })
        .collect();

    let sandbox = Sandbox::new(EngineKind::Native).expect("a sandbox");
    let planner = builtin::load(&sandbox, None).expect("the built-in planner");
    let mut rows = Vec::new();
    let index = |formats: &str| {
        let wanted: FormatChoice = formats.parse().expect("formats");
        let at = request.formats.iter().position(|tuple| wanted == FormatChoice::Tuple(tuple.clone()));
        at.expect("it is offered") as u32
    };
    let mut uniform = request.clone();
    uniform.goals.quality_micronats = None;
    let one = index(UNIFORM);
    uniform.costs.retain(|row| row.formats == one);
    let plans = [
        ("uniform", uniform),
        ("ours", {
            let mut ours = request.clone();
            ours.goals.quality_micronats = Some(goal as u64);
            ours
        }),
    ];
    for (name, request) in plans {
        let answer = planner.make_plan(&request);
        let plan: Plan = answer.plan.unwrap_or_else(|fault| panic!("{name}: {fault:?}"));
        let checked = check(plan, &request).expect("a plan that can be carried out");
        rows.push(Row::of(name, &request, &checked));
    }
    let asked = goal / 1e3;
    match as_json {
        true => println!(
            "{:#}",
            json!({ "goal_mnat": asked, "plans": rows.iter().map(Row::json).collect::<Vec<_>>() })
        ),
        false => {
            println!("W4 per channel, nearest, loses {asked:.1} mnat in all of the demo model.\n");
            println!("| plan | one token | lost | calls a token | artefacts | formats, by layers |");
            println!("|---|---:|---:|---:|---:|---|");
            rows.iter().for_each(|row| println!("{}", row.line()));
        }
    }
    let (uniform, ours) = (&rows[0], &rows[1]);
    assert!(ours.microseconds < uniform.microseconds, "{} µs", ours.microseconds);
    assert!(ours.micronats as f64 <= goal, "{} of {goal}", ours.micronats);
}

/// A plan in the table.
struct Row {
    name: &'static str,
    microseconds: u64,
    provenance: Option<Provenance>,
    micronats: u64,
    calls: usize,
    bytes: u64,
    mix: BTreeMap<String, usize>,
}

impl Row {
    fn of(name: &'static str, request: &Request, plan: &CheckedPlan) -> Row {
        let mut row = Row {
            name,
            microseconds: 0,
            provenance: None,
            micronats: plan.loss().micronats,
            calls: 0,
            bytes: 0,
            mix: BTreeMap::new(),
        };
        for shard in plan.shards() {
            row.bytes += shard.cost.artefact_bytes;
            for formats in shard.planned.segments.iter().flat_map(|segment| &segment.formats) {
                *row.mix.entry(request.formats[*formats as usize].to_string()).or_default() += 1;
            }
            let decode = shard.cost.entries.iter().filter(|entry| entry.entry.kind == EntryKind::Decode);
            let Some(decode) = decode.min_by_key(|entry| entry.entry.rows) else { continue };
            row.calls += 1;
            row.microseconds += decode.time.microseconds + shard.cost.call.microseconds;
            row.provenance = Some(decode.time.provenance);
        }
        row
    }

    fn mix(&self) -> String {
        let parts: Vec<String> =
            self.mix.iter().map(|(formats, count)| format!("{count} {formats}")).collect();
        parts.join(", ")
    }

    fn line(&self) -> String {
        format!(
            "| {} | {:.2} ms ({}) | {:.1} mnat | {} | {:.2} GB | {} |",
            self.name,
            self.microseconds as f64 / 1e3,
            self.provenance.map_or("-".to_owned(), |provenance| provenance.to_string()),
            self.micronats as f64 / 1e3,
            self.calls,
            self.bytes as f64 / 1e9,
            self.mix(),
        )
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "plan": self.name,
            "microseconds": self.microseconds,
            "micronats": self.micronats,
            "calls": self.calls,
            "artefact_bytes": self.bytes,
            "formats": self.mix,
        })
    }
}
