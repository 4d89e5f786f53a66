//! Scaling of rotary positions: both spellings have the same meaning, and meaningless combinations
//! are refused by name.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use shardwright_graph::{Op, Rope};
use shardwright_models::Checkpoint;
use shardwright_vocabulary::{ErrorKind, Result};
use tempfile::TempDir;

fn fixture() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama3")
}

/// Opens the fixture `llama3` with changed settings.
fn opened(change: impl FnOnce(&mut Value)) -> Result<Checkpoint> {
    opened_of(&fixture(), change)
}

/// Opens a fixture with changed settings.
fn opened_of(fixture: &Path, change: impl FnOnce(&mut Value)) -> Result<Checkpoint> {
    let folder = TempDir::new().unwrap();
    let mut config = serde_json::from_slice(&fs::read(fixture.join("config.json")).unwrap()).unwrap();
    change(&mut config);
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    fs::copy(fixture.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    Checkpoint::open(folder.path())
}

/// Returns the first rotation.
fn rope(checkpoint: &Checkpoint) -> Rope {
    let mut nodes = checkpoint.graph().components.iter().flat_map(|component| &component.nodes);
    nodes
        .find_map(|node| match &node.op {
            Op::Rope(rope) => Some(rope.clone()),
            _ => None,
        })
        .unwrap()
}

/// Returns the parameters of the fixture with one changed, or removed by `null`.
fn changed(name: &str, value: Value) -> Value {
    let mut scaling = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    });
    scaling[name] = value;
    scaling
}

/// Returns `longrope` parameters that divide every pair of the fixture by the same number.
fn longrope(short: f64, long: f64, attention: Value) -> Value {
    json!({
        "rope_type": "longrope", "short_factor": vec![short; 16], "long_factor": vec![long; 16],
        "attention_factor": attention,
    })
}

#[test]
fn slow_pairs_are_divided_and_fast_pairs_are_not() {
    let of_fixture = rope(&Checkpoint::open(fixture()).unwrap());
    let divisors = &of_fixture.divisors;
    // Wavelengths of 2π · 10^(i/4) positions: below 32 for three pairs, above 128 from pair 6 on.
    assert_eq!(divisors[..3], [1.0; 3]);
    assert!(divisors[3..6].is_sorted() && divisors[3] > 1.0 && divisors[5] < 8.0, "{divisors:?}");
    assert_eq!(divisors[6..], [8.0; 10]);

    let newer = opened(|config| {
        let mut parameters = config["rope_scaling"].take();
        parameters["rope_theta"] = config["rope_theta"].take();
        config["rope_parameters"] = parameters;
    });
    assert_eq!(rope(&newer.unwrap()), of_fixture);
    let older = opened(|config| {
        config["rope_scaling"]["type"] = config["rope_scaling"]["rope_type"].take();
    });
    assert_eq!(rope(&older.unwrap()), of_fixture);
    // Splitting matrices during training does not change sums.
    let cut = opened(|config| config["pretraining_tp"] = json!(2));
    assert_eq!(rope(&cut.unwrap()), of_fixture);
    let listed = opened(|config| {
        config["rope_scaling"] = longrope(1.0, 1.0, json!(1.0));
        for name in ["short_factor", "long_factor"] {
            config["rope_scaling"][name] = json!(divisors);
        }
    });
    assert_eq!(rope(&listed.unwrap()), of_fixture);
    let linear =
        rope(&opened(|config| config["rope_scaling"] = json!({"type": "linear", "factor": 4})).unwrap());
    assert_eq!((linear.factor, linear.divisors), (4.0, vec![]));
}

/// With two different lists, the short one applies, and the positions end where the long one would
/// begin.
#[test]
fn a_list_for_longer_texts_ends_the_positions() {
    let with = |short, long, extra: Value| {
        opened(|config| {
            config["rope_scaling"] = longrope(short, long, Value::Null);
            for (name, value) in extra.as_object().unwrap() {
                config["rope_scaling"][name] = value.clone();
            }
        })
        .unwrap()
    };
    let original = json!({ "original_max_position_embeddings": 256 });
    let both = with(2.0, 5.0, original.clone());
    assert_eq!(both.graph().context, 256);
    assert!(both.notes()[0].starts_with("256 of 2048 positions"), "{:?}", both.notes());
    let turned = rope(&both);
    assert_eq!(turned.divisors, [2.0; 16]);
    // √(1 + ln 8 / ln 256)
    assert_eq!(turned.magnitude, 1.375_f64.sqrt() as f32);
    // Numbers in the file have priority.
    let factor = with(2.0, 5.0, json!({ "original_max_position_embeddings": 256, "factor": 16.0 }));
    assert_eq!(rope(&factor).magnitude, 1.5_f64.sqrt() as f32);
    let attention = json!({ "original_max_position_embeddings": 256, "attention_factor": 1.2 });
    assert_eq!(rope(&with(2.0, 5.0, attention)).magnitude, 1.2);
    // One list for all texts, and no texts longer than in training.
    for (checkpoint, magnitude) in [
        (with(2.0, 2.0, original), 1.375_f64.sqrt() as f32),
        (with(2.0, 5.0, json!({ "original_max_position_embeddings": 4096 })), 1.0),
        (with(2.0, 5.0, json!({})), 1.0),
    ] {
        assert_eq!((checkpoint.graph().context, checkpoint.notes().len()), (2048, 0));
        assert_eq!(rope(&checkpoint).magnitude, magnitude);
    }
}

/// Divisors and magnitude come from `_compute_yarn_parameters` of transformers 5.23.0.
#[test]
fn yarn_divides_pairs_as_transformers_does() {
    type Case = (Value, f32, [f32; 16]);
    let cases: [Case; 3] = [
        (
            json!({ "factor": 4.0, "original_max_position_embeddings": 512 }),
            1.138_629_4,
            [1.0, 1.0, 1.12, 1.27273, 1.47368, 1.75, 2.15385, 2.8, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0],
        ),
        (
            json!({
                "factor": 8.0, "original_max_position_embeddings": 256, "beta_fast": 16.0, "beta_slow": 2.0,
                "truncate": false,
            }),
            1.207_944_2,
            [1.0, 1.0, 1.10027, 1.50006, 2.35617, 5.48865, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0],
        ),
        (
            json!({
                "factor": 3.0, "original_max_position_embeddings": 700, "mscale": 1.0, "mscale_all_dim": 0.7,
            }),
            1.030_604_8,
            [
                1.0, 1.0, 1.0, 1.10526, 1.23529, 1.4, 1.61538, 1.90909, 2.33333, 3.0, 3.0, 3.0, 3.0, 3.0,
                3.0, 3.0,
            ],
        ),
    ];
    for (mut parameters, magnitude, divisors) in cases {
        parameters["rope_type"] = json!("yarn");
        let older = rope(&opened(|config| config["rope_scaling"] = parameters.clone()).unwrap());
        assert!((older.magnitude - magnitude).abs() < 1e-6, "{parameters}: {}", older.magnitude);
        let near = |(one, other): (&f32, &f32)| (one - other).abs() < 1e-5;
        assert!(older.divisors.iter().zip(&divisors).all(near), "{parameters}: {:?}", older.divisors);
        // With both spellings, the older one applies.
        let both = opened(|config| {
            config["rope_scaling"] = parameters.clone();
            config["rope_parameters"] = json!({ "rope_type": "default", "rope_theta": config["rope_theta"] });
        });
        assert_eq!(rope(&both.unwrap()), older);
        let newer = opened(|config| {
            config["rope_scaling"] = Value::Null;
            parameters["rope_theta"] = config["rope_theta"].take();
            config["rope_parameters"] = parameters.clone();
        });
        assert_eq!(rope(&newer.unwrap()), older);
    }
}

/// Files of Qwen 3 have both spellings. The older one applies, as in transformers.
#[test]
fn the_older_spelling_applies_next_to_the_newer_one_in_qwen3() {
    let qwen3 = fixture().with_file_name("qwen3");
    let plain = rope(&Checkpoint::open(&qwen3).unwrap());
    for scaling in [
        json!({ "rope_type": "linear", "factor": 4.0 }),
        json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512 }),
    ] {
        let older = rope(&opened_of(&qwen3, |config| config["rope_scaling"] = scaling.clone()).unwrap());
        let both = opened_of(&qwen3, |config| {
            config["rope_scaling"] = scaling.clone();
            config["rope_parameters"] = json!({ "rope_type": "default", "rope_theta": config["rope_theta"] });
        });
        assert_eq!(rope(&both.unwrap()), older, "{scaling}");
        assert!(older != plain, "{scaling} is ignored");
    }
}

#[test]
fn combinations_that_mean_nothing_are_refused_by_name() {
    let missing = "is missing for rope_type `llama3`";
    let scaling = |scaling: Value| json!({ "rope_scaling": scaling });
    for (change, kind, words) in [
        (scaling(changed("factor", Value::Null)), ErrorKind::Invalid, ["`rope_scaling.factor`", missing]),
        (scaling(changed("low_freq_factor", Value::Null)), ErrorKind::Invalid, ["low_freq_factor`", missing]),
        (scaling(changed("high_freq_factor", Value::Null)), ErrorKind::Invalid, ["high_freq", missing]),
        (
            scaling(changed("original_max_position_embeddings", Value::Null)),
            ErrorKind::Invalid,
            ["original_max_position_embeddings`", missing],
        ),
        (
            scaling(changed("original_max_position_embeddings", json!(0))),
            ErrorKind::Invalid,
            ["original_max_position_embeddings`", "is 0, not within"],
        ),
        (
            scaling(changed("factor", json!(0.5))),
            ErrorKind::Invalid,
            ["`rope_scaling.factor`", "less than 1"],
        ),
        (
            scaling(changed("high_freq_factor", json!(1.0))),
            ErrorKind::Invalid,
            ["high_freq_factor` is 1", "more than `low_freq_factor`, which is 1"],
        ),
        (
            scaling(changed("low_freq_factor", json!(-1.0))),
            ErrorKind::Invalid,
            ["low_freq_factor`", "positive"],
        ),
        (scaling(changed("beta_fast", json!(32))), ErrorKind::Unsupported, ["beta_fast` is 32", ""]),
        (
            scaling(changed("partial_rotary_factor", json!(0.5))),
            ErrorKind::Unsupported,
            ["partial_rotary_factor` is 0.5", ""],
        ),
        (
            scaling(changed("rope_type", json!("linear"))),
            ErrorKind::Unsupported,
            ["`rope_scaling.high_freq_factor` is 4", ""],
        ),
        (
            scaling(changed("rope_type", json!("yarn"))),
            ErrorKind::Unsupported,
            ["`rope_scaling.high_freq_factor` is 4", ""],
        ),
        (
            scaling(json!({ "rope_type": "yarn" })),
            ErrorKind::Invalid,
            ["`rope_scaling.factor` is missing for `yarn`", ""],
        ),
        (
            scaling(json!({ "rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0 })),
            ErrorKind::Invalid,
            ["`rope_scaling.rope_theta` is 1", ""],
        ),
        (
            scaling(json!({ "rope_type": "yarn", "factor": 2.0, "partial_rotary_factor": 0.5 })),
            ErrorKind::Unsupported,
            ["partial_rotary_factor` is 0.5", ""],
        ),
        (
            json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 5e5 } }),
            ErrorKind::Unsupported,
            ["`rope_parameters.rope_theta` is 500000.0", ""],
        ),
        (json!({ "partial_rotary_factor": 0.5 }), ErrorKind::Unsupported, ["`partial_rotary_factor`", ""]),
        (
            json!({ "original_max_position_embeddings": 64 }),
            ErrorKind::Unsupported,
            ["`original_max_position_embeddings` is 64", ""],
        ),
        (
            scaling(longrope(1.0, 1.0, json!(0.0))),
            ErrorKind::Invalid,
            ["attention_factor` is 0.0", "positive"],
        ),
        (
            scaling(longrope(1.0, -2.0, json!(1.0))),
            ErrorKind::Invalid,
            ["`rope_scaling.long_factor`", "expected 16 positive numbers"],
        ),
        (
            scaling(longrope(0.0, 0.0, json!(1.0))),
            ErrorKind::Invalid,
            ["`rope_scaling.short_factor`", "expected 16 positive numbers"],
        ),
        (
            scaling(json!({ "rope_type": "longrope", "attention_factor": 1.0 })),
            ErrorKind::Invalid,
            ["short_factor` is missing for `longrope`", ""],
        ),
        (
            scaling(json!({
                "rope_type": "longrope", "short_factor": vec![1.0; 16], "long_factor": vec![2.0; 16],
                "original_max_position_embeddings": 1,
            })),
            ErrorKind::Invalid,
            ["original_max_position_embeddings` is less than 2", ""],
        ),
    ] {
        let error = opened(|config| {
            let Value::Object(fields) = change.clone() else { panic!("{change}") };
            config.as_object_mut().unwrap().extend(fields);
        })
        .unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(words.iter().all(|words| error.to_string().contains(words)), "{error} lacks {words:?}");
    }
}
