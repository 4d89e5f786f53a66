//! Compares towers with numbers of the library that defines them: the stream before and after every
//! layer, the pooled rows, soft rows, and the text that follows from them.

use std::path::PathBuf;

use safetensors::{Dtype, SafeTensors};
use shardwright_graph::{ComponentKind, EntryOptions, EntryPoint, Graph, Pass, decompose_all, layer_kinds};
use shardwright_models::{Checkpoint, Outline};
use shardwright_reference::step::Features;
use shardwright_reference::{Arrangement, Array, Form, ReferenceModel, Trace};
use shardwright_vocabulary::{EntryKind, EntryName, Error, ErrorKind};

/// Largest accepted differences of towers. Hidden states and logits have the same as without
/// towers.
const TOWER: f32 = 5e-4;
const HIDDEN: f32 = 5e-3;
const LOGITS: f32 = 1e-2;

fn fixture() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/gemma4_mm")
}

fn checkpoint() -> Checkpoint {
    Checkpoint::open_for(fixture(), &[Pass::Step, Pass::Picture, Pass::Clip]).unwrap()
}

struct Goldens(Vec<u8>);

impl Goldens {
    fn read() -> Self {
        Goldens(std::fs::read(fixture().join("goldens.safetensors")).unwrap())
    }

    fn floats(&self, name: &str) -> (Vec<u64>, Vec<f32>) {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let tensor = tensors.tensor(name).unwrap();
        assert_eq!(tensor.dtype(), Dtype::F32, "{name}");
        let values = tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        (tensor.shape().iter().map(|&extent| extent as u64).collect(), values.collect())
    }

    fn integers(&self, name: &str) -> Vec<i64> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let tensor = tensors.tensor(name).unwrap();
        match tensor.dtype() {
            Dtype::U8 => tensor.data().iter().map(|&byte| byte.into()).collect(),
            Dtype::I64 => {
                tensor.data().as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
            }
            other => panic!("{name} is {other:?}"),
        }
    }

    fn has(&self, name: &str) -> bool {
        SafeTensors::deserialize(&self.0).unwrap().tensor(name).is_ok()
    }
}

/// The valid patches of a picture, or the valid frames of a clip.
struct Given {
    values: Array,
    columns: Vec<i32>,
    rows: Vec<i32>,
    /// The index in the goldens of each patch.
    places: Vec<usize>,
}

impl Given {
    fn features(&self) -> Features<'_> {
        Features { values: &self.values, columns: &self.columns, rows: &self.rows }
    }

    /// Returns the patches of a prompt. The patches of each soft row are consecutive.
    fn patches(goldens: &Goldens, prompt: &str) -> Given {
        let (shape, pixels) = goldens.floats(&format!("{prompt}.pixel_values"));
        let positions = goldens.integers(&format!("{prompt}.image_position_ids"));
        let position = |place: usize| (positions[2 * place] as i32, positions[2 * place + 1] as i32);
        let mut places: Vec<usize> = (0..shape[0] as usize).filter(|&place| position(place).0 >= 0).collect();
        places.sort_by_key(|&place| {
            let (column, row) = position(place);
            (row / 3, column / 3, row % 3, column % 3)
        });
        let width = shape[1] as usize;
        let values = places.iter().flat_map(|&place| &pixels[place * width..][..width]).copied().collect();
        let (columns, rows) = places.iter().map(|&place| position(place)).unzip();
        let values = Array::floats_of(&[places.len() as u64, width as u64], values).unwrap();
        Given { values, columns, rows, places }
    }

    /// Returns the frames of a prompt.
    fn frames(goldens: &Goldens, prompt: &str) -> Given {
        let (shape, frames) = goldens.floats(&format!("{prompt}.input_features"));
        let valid = goldens.integers(&format!("{prompt}.input_features_mask"));
        let count = valid.iter().filter(|&&valid| valid != 0).count();
        let width = shape[1] as usize;
        let values = Array::floats_of(&[count as u64, shape[1]], frames[..count * width].to_vec()).unwrap();
        Given { values, columns: Vec::new(), rows: Vec::new(), places: (0..count).collect() }
    }
}

/// Returns a tower with one entry point of `rows` rows.
fn tower<'g>(graph: &'g Graph, rows: u64, cuts: &[u32], form: Form) -> ReferenceModel<'g> {
    let arrangement = Arrangement { form, cuts: cuts.to_vec(), ..Arrangement::whole(rows) };
    ReferenceModel::new(graph, arrangement).unwrap()
}

fn compare(what: &str, found: &[f32], wanted: &[f32], limit: f32) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    let worst = found.iter().zip(wanted).map(|(a, b)| (a - b).abs());
    let worst = worst.fold(0.0_f32, |worst, d| if d.is_nan() { f32::INFINITY } else { worst.max(d) });
    assert!(worst <= limit, "{what} differs by {worst:e}, more than {limit:e}");
    println!("{what}: {worst:.1e}");
}

/// Returns soft rows as in the library: scaled like embedding rows.
fn scaled(checkpoint: &Checkpoint, trace: &Trace) -> Vec<f32> {
    let scale = (checkpoint.graph().hidden as f64).sqrt() as f32;
    trace.soft_rows.as_ref().unwrap().floats().iter().map(|value| value * scale).collect()
}

const FORMS: [Form; 3] = [Form::Semantic, Form::HalfWay, Form::Decomposed];

#[test]
fn pictures_become_the_rows_that_transformers_makes_of_them() {
    let (checkpoint, goldens) = (checkpoint(), Goldens::read());
    let graph = checkpoint.graph_of(Pass::Picture).unwrap();
    let given = Given::patches(&goldens, "p1");
    // The patches in the order of the goldens.
    let golden = |name: &str| {
        let (shape, values) = goldens.floats(&format!("p1.image.{name}"));
        let width = shape[1] as usize;
        let placed = given.places.iter().flat_map(|&place| values[place * width..][..width].iter().copied());
        if shape[0] == 630 { placed.collect::<Vec<f32>>() } else { values }
    };
    for form in FORMS {
        // Both sizes have rows beyond the valid ones.
        for rows in [576, 630] {
            let trace = tower(graph, rows, &[], form).soft_rows(&given.features(), true).unwrap();
            let name = |what: &str| format!("{form:?} in {rows} rows: {what}");
            compare(&name("embedded"), &trace.hidden[0].floats(), &golden("patch_embed"), TOWER);
            for layer in [0, 2] {
                let wanted = golden(&format!("layer{layer}"));
                compare(&name("layer"), &trace.hidden[layer + 1].floats(), &wanted, TOWER);
            }
            compare(&name("pooled"), &trace.taps["pooled"].floats(), &golden("pooled"), TOWER);
            compare(&name("soft rows"), &scaled(&checkpoint, &trace), &golden("soft"), TOWER);
        }
    }
}

#[test]
fn clips_become_the_rows_that_transformers_makes_of_them() {
    let (checkpoint, goldens) = (checkpoint(), Goldens::read());
    let graph = checkpoint.graph_of(Pass::Clip).unwrap();
    let given = Given::frames(&goldens, "p2");
    let golden = |name: &str| goldens.floats(&format!("p2.audio.{name}")).1;
    for form in FORMS {
        for rows in [28, 32, 750] {
            if rows == 750 && form != Form::Semantic {
                continue;
            }
            let trace = tower(graph, rows, &[], form).soft_rows(&given.features(), true).unwrap();
            let name = |what: &str| format!("{form:?} in {rows} rows: {what}");
            // The last row of the goldens is beyond the valid frames.
            let valid = trace.hidden[0].shape()[0];
            let cut = |values: Vec<f32>| values[..valid * values.len() / 28].to_vec();
            compare(&name("embedded"), &trace.hidden[0].floats(), &cut(golden("subsample")), TOWER);
            for layer in 0..3 {
                let wanted = cut(golden(&format!("layer{layer}")));
                compare(&name("layer"), &trace.hidden[layer + 1].floats(), &wanted, TOWER);
            }
            compare(&name("tower"), &trace.taps["output-projection"].floats(), &cut(golden("tower")), TOWER);
            compare(&name("soft rows"), &scaled(&checkpoint, &trace), &cut(golden("soft")), TOWER);
        }
    }
}

/// Rows beyond the valid ones and cuts between layers change no bit of the result.
#[test]
fn padding_and_cuts_change_nothing() {
    let (checkpoint, goldens) = (checkpoint(), Goldens::read());
    for (pass, given, rows) in [
        (Pass::Picture, Given::patches(&goldens, "p1"), [576, 585, 630]),
        (Pass::Clip, Given::frames(&goldens, "p2"), [28, 29, 64]),
    ] {
        let bits = |rows: u64, cuts: &[u32]| {
            let graph = checkpoint.graph_of(pass).unwrap();
            let trace = tower(graph, rows, cuts, Form::Semantic).soft_rows(&given.features(), false).unwrap();
            let values = trace.soft_rows.unwrap();
            values.floats().iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
        };
        let whole = bits(rows[0], &[]);
        for rows in rows {
            for cuts in [&[][..], &[1], &[2], &[1, 2]] {
                assert_eq!(bits(rows, cuts), whole, "{pass} in {rows} rows, cut before {cuts:?}");
            }
        }
    }
}

#[test]
fn prompts_with_pictures_and_sounds_are_continued_as_transformers_continues_them() {
    let (checkpoint, goldens) = (checkpoint(), Goldens::read());
    let graph = checkpoint.graph();
    let model = ReferenceModel::new(graph, Arrangement::whole(256)).unwrap();
    let placeholders = [(19, Pass::Picture), (22, Pass::Clip)];
    // The third prompt has the picture of the first and the sound of the second.
    for prompt in ["p1", "p2", "p3"] {
        let ids: Vec<u32> =
            goldens.integers(&format!("{prompt}.input_ids")).into_iter().map(|id| id as u32).collect();
        let mut sequence = model.start();
        for (placeholder, pass) in placeholders {
            let mut places = (0..ids.len()).filter(|&place| ids[place] == placeholder).peekable();
            if places.peek().is_none() {
                continue;
            }
            let given = match pass {
                Pass::Picture => Given::patches(&goldens, "p1"),
                _ => Given::frames(&goldens, "p2"),
            };
            let graph = checkpoint.graph_of(pass).unwrap();
            let rows = given.values.shape()[0] as u64;
            let rows = rows.div_ceil(graph.features_to_a_row()).next_multiple_of(graph.rows_multiple());
            let trace = tower(graph, rows, &[], Form::Semantic).soft_rows(&given.features(), false).unwrap();
            let soft = trace.soft_rows.unwrap();
            assert_eq!(soft.shape()[0], places.clone().count(), "{prompt}");
            for (row, place) in places.enumerate() {
                sequence.soft.insert(place as u64, soft.row(row));
            }
        }
        let greedy = goldens.integers(&format!("{prompt}.greedy"));
        let mut continued = sequence.clone();
        let trace = model.decode(&mut sequence, &ids, true).unwrap();
        let name = |what: &str| format!("{prompt} {what}");
        if goldens.has(&format!("{prompt}.hidden")) {
            let (shape, hidden) = goldens.floats(&format!("{prompt}.hidden"));
            let of_layer = (shape[1] * shape[2]) as usize;
            for (layer, wanted) in hidden.chunks_exact(of_layer).enumerate() {
                compare(&name("hidden"), &trace.hidden[layer].floats(), wanted, HIDDEN);
            }
        }
        let start = goldens.integers(&format!("{prompt}.logits_start"))[0] as usize;
        let (shape, wanted) = goldens.floats(&format!("{prompt}.logits"));
        let logits = trace.logits.unwrap().into_floats();
        compare(&name("logits"), &logits[start * shape[1] as usize..], &wanted, LOGITS);
        // The tokens again, but through prefill and one at a time.
        let (last, before) = ids.split_last().unwrap();
        model.prefill(&mut continued, before).unwrap();
        let mut next = *last;
        for (step, &wanted) in greedy.iter().enumerate() {
            let logits = model.decode(&mut continued, &[next], false).unwrap().logits.unwrap().into_floats();
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
            next = best.unwrap() as u32;
            assert_eq!(i64::from(next), wanted, "{prompt} step {step}");
        }
    }
}

/// Towers exist only on request, and text does not depend on them.
#[test]
fn text_alone_has_no_towers() {
    let text = Checkpoint::open(fixture()).unwrap();
    let all = checkpoint();
    assert!(text.graph_of(Pass::Picture).is_none() && text.graph_of(Pass::Clip).is_none());
    assert!(text.unused_tensors().iter().any(|tensor| tensor.name.starts_with("model.vision_tower.")));
    assert!(all.unused_tensors().iter().all(|tensor| !tensor.name.contains("tower")));
    let names = |checkpoint: &Checkpoint| {
        checkpoint.graph().weights.iter().map(|weight| weight.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&text), names(&all));
    let sounds = Checkpoint::open_for(fixture(), &[Pass::Step, Pass::Clip]).unwrap();
    assert!(sounds.graph_of(Pass::Picture).is_none() && sounds.graph_of(Pass::Clip).is_some());
}

#[test]
fn entry_points_of_towers_are_sound_in_every_form() {
    let (checkpoint, outline) = (checkpoint(), outline());
    for (pass, rows) in [(Pass::Picture, 18), (Pass::Clip, 5)] {
        for graph in [checkpoint.graph_of(pass), outline.graph_of(pass)] {
            let graph = graph.unwrap();
            assert_eq!(layer_kinds(graph).unwrap().representative, [0]);
            for component in &graph.components {
                let point = EntryPoint::of(EntryName { kind: EntryKind::Encode, rows, context: 0 }, rows);
                let options = EntryOptions { taps: true };
                let entry =
                    graph.entry(component.kind, 0..component.layers, point, options).unwrap().unwrap();
                entry.validate().unwrap();
                decompose_all(&entry).validate().unwrap();
                for kind in [EntryKind::Prefill, EntryKind::Decode] {
                    let point = EntryPoint::of(EntryName { kind, rows, context: 64 }, rows);
                    let refused = graph.entry(component.kind, 0..component.layers, point, options);
                    assert!(refused.unwrap_err().to_string().contains("has no states"));
                }
            }
        }
    }
    let graph = checkpoint.graph_of(Pass::Picture).unwrap();
    let point = EntryPoint::of(EntryName { kind: EntryKind::Encode, rows: 10, context: 0 }, 10);
    let refused = graph.entry(ComponentKind::VisionProjector, 0..0, point, EntryOptions::default());
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Argument);
    assert_eq!(error.message(), "expected a multiple of 9 rows, got 10");
}

fn outline() -> Outline {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(fixture().join("config.json"), folder.path().join("config.json")).unwrap();
    let passes = [Pass::Step, Pass::Picture, Pass::Clip];
    Outline::open_for(folder.path(), &passes).unwrap()
}

/// Writes the settings with one field of one object replaced, and opens them.
fn altered(object: &str, field: &str, value: serde_json::Value) -> Error {
    let folder = tempfile::tempdir().unwrap();
    for file in ["model.safetensors", "config.json"] {
        std::fs::copy(fixture().join(file), folder.path().join(file)).unwrap();
    }
    let path = folder.path().join("config.json");
    let mut settings: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    match object {
        "" => settings[field] = value,
        _ => settings[object][field] = value,
    }
    std::fs::write(&path, settings.to_string()).unwrap();
    // Text does not need any of these settings.
    Checkpoint::open(folder.path()).unwrap();
    Checkpoint::open_for(folder.path(), &[Pass::Step, Pass::Picture, Pass::Clip]).unwrap_err()
}

#[test]
fn towers_that_are_not_understood_are_refused() {
    use serde_json::json;
    let cases = [
        (
            "vision_config",
            "hidden_activation",
            json!("relu"),
            ErrorKind::Unsupported,
            "vision_config.hidden_activation",
        ),
        ("vision_config", "model_type", json!("siglip"), ErrorKind::Unsupported, "vision_config.model_type"),
        ("vision_config", "head_dim", json!(18), ErrorKind::Invalid, "no two halves"),
        ("vision_config", "num_key_value_heads", json!(2), ErrorKind::Invalid, "does not divide"),
        ("vision_config", "hidden_size", json!(64), ErrorKind::Invalid, "has the shape"),
        ("vision_config", "pooling_kernel_size", json!(0), ErrorKind::Invalid, "pooling_kernel_size"),
        (
            "vision_config",
            "rope_parameters",
            json!({"rope_type": "yarn"}),
            ErrorKind::Unsupported,
            "rope_type",
        ),
        ("vision_config", "standardize", json!(true), ErrorKind::Missing, "std_bias"),
        ("audio_config", "model_type", json!("whisper"), ErrorKind::Unsupported, "audio_config.model_type"),
        ("audio_config", "gradient_clipping", json!(100.0), ErrorKind::Unsupported, "gradient_clipping"),
        (
            "audio_config",
            "attention_invalid_logits_value",
            json!(-10.0),
            ErrorKind::Unsupported,
            "attention_invalid_logits_value",
        ),
        ("audio_config", "hidden_act", json!("gelu"), ErrorKind::Unsupported, "audio_config.hidden_act"),
        (
            "audio_config",
            "attention_context_right",
            json!(1),
            ErrorKind::Unsupported,
            "attention_context_right",
        ),
        ("audio_config", "num_attention_heads", json!(5), ErrorKind::Invalid, "no such heads"),
        ("audio_config", "subsampling_conv_channels", json!([128]), ErrorKind::Invalid, "two numbers"),
        ("audio_config", "conv_kernel_size", json!(7), ErrorKind::Invalid, "has the shape"),
        ("", "vision_config", json!(null), ErrorKind::Invalid, "its tower is requested"),
        ("", "audio_config", json!(null), ErrorKind::Invalid, "its tower is requested"),
    ];
    for (object, field, value, kind, says) in cases {
        let error = altered(object, field, value);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
    let text = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/gemma3_text");
    let error = Checkpoint::open_for(text, &[Pass::Step, Pass::Picture]).unwrap_err();
    assert_eq!(error.message(), "this family has no tower for a picture");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.help().unwrap().contains("gemma4"));
}
