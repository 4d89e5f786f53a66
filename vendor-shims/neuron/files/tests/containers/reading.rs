//! Files of every container are written and read back.

use crate::support::samples::{self, BARE, PUBLISHED};
use crate::support::{self, Flex, Model};
use proptest::prelude::*;
use serde_json::{Value, json};
use shardwright_neuron_adapter::RuntimeVersion;
use shardwright_neuron_files::blob::{self, Kind};
use shardwright_neuron_files::budget::Budget;
use shardwright_neuron_files::bytes::Bytes;
use shardwright_neuron_files::inspect::inspect;
use shardwright_neuron_files::options::{CompilerOption, OptionString};
use shardwright_neuron_files::{ContainerError, flexbuffer, neuron_schema, record, tflite};

fn document(bytes: &[u8]) -> (&'static str, Value) {
    let inspected = inspect(bytes).unwrap_or_else(|error| panic!("{error}")).expect("recognised");
    (inspected.format, inspected.document)
}

fn warned(document: &Value, words: &str) -> bool {
    let warnings = document["warnings"].as_array().expect("a list");
    warnings.iter().any(|warning| warning.as_str().expect("a text").contains(words))
}

fn read_model(bytes: &[u8]) -> Result<tflite::Tflite, ContainerError> {
    tflite::read(Bytes::new(bytes), &mut Budget::of(bytes.len()))
}

#[test]
fn a_compiled_model_says_who_compiled_it_for_what_and_what_stayed_outside() {
    let (format, reported) = document(&samples::model("mt6989", [8, 2, 28], BARE).bytes());
    assert_eq!(format, "tflite");
    assert_eq!(reported["stamp"], json!({"manufacturer": "MediaTek", "soc": "mt6989"}));
    assert_eq!((&reported["dispatched"], &reported["outside"]), (&json!(2), &json!(2)));
    assert_eq!(reported["outside_by_kind"], json!({"GATHER": 1, "DYNAMIC_UPDATE_SLICE": 1}));
    assert_eq!(reported["functions"][0], json!({"name": "main_0", "operations": 3, "dispatched": 1}));
    assert_eq!(reported["dispatches"][1]["name"], "Partition_1");
    let container = &reported["containers"][0];
    assert_eq!(
        (&container["sdk_version"], &container["partitions"][0]["kind"]),
        (&json!("8.2.28"), &json!("adapter-cache"))
    );
    assert_eq!(container["partitions"][0]["stamp"], 212_205);
    assert_eq!(container["offset"].as_u64().expect("a number") % 16, 0);
    for (index, name) in ["Partition_0", "Partition_1"].into_iter().enumerate() {
        assert_eq!(
            reported["compilations"][index],
            json!({
                "name": name,
                "soc": "mt6989",
                "compiler": {"name": "adapter", "version": "8.2.28", "build": "2a9fa22c08"},
                "options": BARE,
                "flags": [
                    {"name": "relax-fp32", "value": "true"},
                    {"name": "dla-file", "value": "/build/dir/a.dla"},
                ],
            })
        );
    }
    assert!(
        warned(&reported, "`--dla-file /build/dir/a.dla` is a path of the machine that compiled it"),
        "{reported:#}"
    );
}

#[test]
fn both_spellings_of_the_record_and_all_published_flags_are_read() {
    let (_, reported) = document(&samples::model("mt6993", [9, 2, 1], PUBLISHED).bytes());
    let compilation = &reported["compilations"][0];
    assert_eq!(
        compilation["compiler"],
        json!({"name": "adapter", "version": "9.2.1", "build": "b3a8289961"})
    );
    assert_eq!(compilation["flags"].as_array().expect("a list").len(), 20);
    assert_eq!(compilation["options"], PUBLISHED);
}

#[test]
fn a_model_of_which_nothing_was_compiled_says_so() {
    let (format, reported) = document(&samples::untouched().bytes());
    assert_eq!((format, &reported["dispatched"], &reported["outside"]), ("tflite", &json!(0), &json!(4)));
    assert_eq!(reported["outside_by_kind"], json!({"ADD": 1, "FULLY_CONNECTED": 2, "GELU": 1}));
    assert!(warned(&reported, "no part of it was compiled for an accelerator"));
    // A model that is stamped but has no compiled part: its compilation failed without an error.
    let stamped = Model { stamp: Some(("MediaTek".to_owned(), "mt6993".to_owned())), ..samples::untouched() };
    assert!(warned(&document(&stamped.bytes()).1, "stamped as compiled, but no part of it runs"));
}

#[test]
fn code_of_no_bytes_is_an_error_that_says_so() {
    let files = samples::all();
    let (_, _, bytes) = files.iter().find(|(_, name, _)| *name == "no-code.tflite").expect("a sample");
    let error = inspect(bytes).expect_err("no code");
    assert!(matches!(error, ContainerError::Empty { what: "compiled code", .. }), "{error}");
    assert!(error.help().contains("compile again"));
}

#[test]
fn another_makers_container_is_named_and_not_read() {
    let other = Model {
        stamp: Some(("Qualcomm".to_owned(), "SM8750".to_owned())),
        container: vec![0xee; 64],
        ..samples::model("", [8, 2, 28], BARE)
    };
    let (_, reported) = document(&other.bytes());
    assert_eq!(reported["compilations"], json!([]));
    assert!(warned(&reported, "not MediaTek's and was not read"), "{reported:#}");
}

#[test]
fn a_partition_that_is_not_in_the_container_is_missed() {
    let mut model = samples::model("mt6989", [8, 2, 28], BARE);
    model.functions[0].0 = vec!["Partition_7".to_owned()];
    let (_, reported) = document(&model.bytes());
    assert!(warned(&reported, "needs `Partition_7`, which the container does not have"), "{reported:#}");
}

#[test]
fn a_container_without_a_version_and_one_that_contradicts_its_code_are_warned_of() {
    let cache = samples::cache([8, 2, 28], BARE);
    let silent = support::neuron_schema(None, &[("Partition_0", 2, &cache)]);
    let (format, reported) = document(&silent);
    assert_eq!(format, "neuron-container");
    assert!(warned(&reported, "names no version of the SDK"));
    let other = support::neuron_schema(Some([9, 0, 3]), &[("Partition_0", 0, &cache)]);
    let (_, reported) = document(&other);
    assert!(warned(&reported, "compiled by 8.2.28, but the container names SDK 9"), "{reported:#}");
    assert!(warned(&reported, "not of the kind that the container names"));
}

#[test]
fn a_language_models_file_is_read_section_by_section() {
    let bare = samples::model("mt6989", [8, 2, 28], BARE).bytes();
    let file = support::litertlm(&[
        (4, vec![], vec![1, 2, 3]),
        (3, vec![("model_type", "tf_lite_prefill_decode"), ("backend_constraint", "npu")], bare),
        (3, vec![("model_type", "tf_lite_embedder")], samples::untouched().bytes()),
        (77, vec![], vec![0]),
    ]);
    let (format, reported) = document(&file);
    assert_eq!((format, &reported["version"]), ("litertlm", &json!("1.7.0")));
    assert_eq!(reported["system"][1], json!({"key": "creation_timestamp", "value": "0"}));
    let kinds: Vec<&str> = reported["sections"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|section| section["kind"].as_str())
        .collect();
    assert_eq!(kinds, ["sentencepiece-tokenizer", "tflite-model", "tflite-model", "kind 77"]);
    assert_eq!(reported["sections"][1]["model"]["stamp"]["soc"], "mt6989");
    assert_eq!(reported["compilations"][0]["name"], "tf_lite_prefill_decode Partition_0");
    // An embedder is intended to stay outside, so there is no warning.
    assert!(!warned(&reported, "tf_lite_embedder"), "{reported:#}");
    assert!(warned(&document(&support::litertlm(&[])).1, "none of its models was compiled"));
}

#[test]
fn files_of_other_majors_and_sections_that_cannot_be_are_refused() {
    let error = inspect(&support::litertlm_with(2, 16, &[])).expect_err("another major");
    assert!(
        matches!(&error, ContainerError::UnknownVersion { version, offset: 8, .. } if version == "2.7.0")
    );
    assert!(error.help().contains("newer tool"));
    let untouched = samples::untouched().bytes();
    let mut cut = support::litertlm(&[(3, vec![], untouched.clone())]);
    cut.truncate(cut.len() - 1);
    assert!(matches!(inspect(&cut), Err(ContainerError::Truncated { what: "section", .. })));
    let no_model = support::litertlm(&[(3, vec![], vec![0; 64])]);
    assert!(matches!(inspect(&no_model), Err(ContainerError::Malformed { what: "model", .. })));
    assert!(matches!(
        inspect(&support::litertlm(&[(3, vec![], vec![])])),
        Err(ContainerError::Empty { what: "model", .. })
    ));
    // The section starts at an offset that third-party readers do not expect.
    let (_, reported) = document(&support::litertlm_with(1, 16, &[(3, vec![], untouched)]));
    assert!(warned(&reported, "not a multiple of 16384"));
}

#[test]
fn code_alone_is_recognised_by_its_first_words() {
    let record = support::record("adapter", [7, 3, 15]);
    let dla = support::dla(&[9; 100], &support::trailer(&record, "--relax-fp32"));
    let cases = [
        ("neuron-dla", dla.clone(), "7.3.15"),
        ("neuron-adapter-cache", samples::cache([8, 2, 28], "--opt 3"), "8.2.28"),
        ("executorch-neuron-payload", support::executorch(3, 2, &dla), "7.3.15"),
        (
            "shardwright-neuron-simulator",
            support::simulated([9, 0, 3], "mt6993", &[5; 9], "--opt 3"),
            "9.0.3",
        ),
    ];
    for (expected, bytes, version) in cases {
        let (format, reported) = document(&bytes);
        assert_eq!(format, expected);
        assert_eq!(reported["compilations"][0]["compiler"]["version"], version, "{reported:#}");
    }
    let (_, reported) = document(&support::simulated([9, 0, 3], "mt6993", &[5; 9], "--opt 3"));
    assert_eq!(
        (&reported["compilations"][0]["soc"], &reported["code"]["operations"]),
        (&json!("mt6993"), &json!(17))
    );
    assert!(warned(&reported, "no MediaTek chip runs it"));
    for nothing in [&b""[..], b"x", &[0; 1000], b"{\"Compiler\": \"adapter 1.2.3\"}", &[1; 13]] {
        assert_eq!(inspect(nothing).expect("no error"), None);
    }
}

#[test]
fn options_that_contradict_themselves_and_missing_records_are_warned_of() {
    let (_, reported) = document(&samples::cache([8, 2, 28], "--opt 3 --opt 2"));
    assert!(warned(&reported, "different values: opt"), "{reported:#}");
    let (_, reported) = document(&support::dla(&[0; 20], &[]));
    assert!(warned(&reported, "no record of a compiler"));
    assert_eq!(reported["compilations"][0]["flags"], Value::Null);
    let (_, reported) = document(&samples::cache([8, 2, 28], "--config \"open"));
    assert!(warned(&reported, "does not end"), "{reported:#}");
    let twice = [
        record::texts(&[&support::record("a", [1, 2, 3])]),
        support::trailer(&support::record("a", [1, 2, 4]), "--x"),
    ];
    assert!(warned(&document(&support::dla(&[], &twice.concat())).1, "2 records"));
}

#[test]
fn the_chip_stands_in_the_options_where_nothing_else_says() {
    let (_, reported) = document(&samples::cache([9, 2, 1], "--platform-config mt6993 --subsys npu"));
    assert_eq!(reported["compilations"][0]["soc"], "mt6993");
}

#[test]
fn a_damaged_simulators_blob_is_not_one_of_another_layout() {
    let sound = support::simulated([8, 2, 28], "mt6989", &[1; 50], "--opt 3");
    let damage = |at: usize| {
        let mut bytes = sound.clone();
        bytes[at] ^= 1;
        inspect(&bytes).expect_err("damaged")
    };
    assert!(matches!(damage(100), ContainerError::Damaged { offset: 64, .. }));
    assert!(damage(100).help().contains("again"));
    assert!(matches!(damage(8), ContainerError::UnknownVersion { offset: 8, .. }));
    assert!(matches!(damage(33), ContainerError::Truncated { .. }));
    let cut = inspect(&sound[..63]).expect_err("cut off");
    assert!(matches!(cut, ContainerError::Truncated { wanted: 64, available: 63, .. }));
}

#[test]
fn the_same_code_is_told_from_what_the_compiler_says_about_it() {
    for make in [
        (|options: &str| samples::cache([8, 2, 28], options)) as fn(&str) -> Vec<u8>,
        |options| support::dla(&[9; 100], &support::trailer(&support::record("a", [7, 3, 15]), options)),
        |options| support::simulated([8, 2, 28], "mt6989", &[1; 50], options),
    ] {
        let (bare, flagged) = (make(""), make("--opt 3 --relax-fp32"));
        assert_ne!(bare, flagged);
        assert_eq!(blob::code_of(&bare), blob::code_of(&flagged));
        assert!(!blob::code_of(&bare).is_empty());
    }
    let other = |code: &[u8]| blob::code_of(&support::simulated([8, 2, 28], "mt6989", code, ""));
    assert_ne!(other(&[1; 50]), other(&[2; 50]));
    assert!(blob::code_of(b"").is_empty());
}

#[test]
fn more_than_is_read_is_refused_with_its_count() {
    let operations = vec![36; 5000];
    let many = Model { functions: vec![(vec![], operations.clone()); 900], ..Model::default() };
    let error = read_model(&many.bytes()).expect_err("4.5 million operations");
    assert!(matches!(error, ContainerError::TooMany { what: "operations", .. }), "{error}");
    let few = Model { functions: vec![(vec![], operations); 3], ..Model::default() };
    assert_eq!(read_model(&few.bytes()).expect("15000").outside["GATHER"], 15_000);
    let dispatches = vec!["Partition_0".to_owned(); 1025];
    let many = Model { functions: vec![(dispatches, vec![])], ..samples::model("mt6989", [8, 2, 28], BARE) };
    assert!(matches!(read_model(&many.bytes()), Err(ContainerError::TooMany { most: 1024, .. })));
}

#[test]
fn a_container_of_another_version_or_with_dangling_references_is_refused() {
    let read = |bytes: &[u8]| neuron_schema::read(Bytes::new(bytes), &mut Budget::of(bytes.len()));
    let cache = samples::cache([8, 2, 28], BARE);
    let mut bytes = support::neuron_schema(Some([8, 2, 28]), &[("Partition_0", 2, &cache)]);
    assert_eq!(read(&bytes).expect("sound").sdk, Some([8, 2, 28]));
    let version = bytes.windows(2).position(|two| two == [1, 0]).expect("the version");
    bytes[version] = 2;
    assert!(matches!(
        read(&bytes),
        Err(ContainerError::UnknownVersion { .. } | ContainerError::Malformed { .. })
    ));
    assert!(matches!(read(&support::neuron_schema(None, &[])), Err(ContainerError::Malformed { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn models_are_read_back(
        names in proptest::collection::vec("[A-Za-z_]{1,12}_[0-9]", 0..4),
        outside in proptest::collection::vec(0i32..=161, 0..20),
        stamp in proptest::option::of(("[A-Za-z]{1,20}", "mt[0-9]{4}")),
        code in proptest::collection::vec(any::<u8>(), 1..100),
    ) {
        prop_assume!(!outside.contains(&32));
        let parts: Vec<(&str, i8, &[u8])> = names.iter().map(|name| (name.as_str(), 2, code.as_slice())).collect();
        let model = Model {
            stamp: stamp.clone(),
            functions: vec![(names.clone(), outside.clone())],
            container: if names.is_empty() { vec![] } else { support::neuron_schema(Some([8, 2, 28]), &parts) },
        };
        let read = read_model(&model.bytes()).unwrap();
        prop_assert_eq!(read.outside.values().sum::<u64>(), outside.len() as u64);
        let dispatched: Vec<_> = read.dispatches.iter().map(|dispatch| dispatch.name.clone().unwrap()).collect();
        prop_assert_eq!(&dispatched, &names);
        let said = read.stamp.map(|stamp| (stamp.manufacturer.unwrap(), stamp.soc.unwrap()));
        prop_assert_eq!(said, stamp);
        // Bytes that are not a container are skipped unless the stamp names MediaTek. In this test
        // they are always a container.
        let is_read = model.stamp.is_none_or(|(maker, _)| maker.eq_ignore_ascii_case("mediatek"));
        for container in &read.containers {
            prop_assert_eq!(container.held.is_some(), is_read);
            for (subgraph, name) in container.held.iter().flat_map(|held| &held.subgraphs).zip(&names) {
                prop_assert_eq!(&subgraph.entry_point, name);
                prop_assert_eq!(subgraph.blob.bytes, code.len() as u64);
            }
        }
    }

    #[test]
    fn maps_are_read_back_in_every_width(
        width in prop_oneof![Just(1usize), Just(2), Just(4), Just(8)],
        number in 0u64..200,
        text in "[ -~]{0,40}",
    ) {
        let entries = [("a", Flex::Number(number)), ("name", Flex::Text(text.clone()))];
        let bytes = support::flexbuffer(width, &entries);
        let read = flexbuffer::map(Bytes::new(&bytes)).unwrap();
        prop_assert_eq!(
            read,
            vec![
                ("a".to_owned(), flexbuffer::Value::Number(number.into())),
                ("name".to_owned(), flexbuffer::Value::Text(text)),
            ]
        );
    }

    #[test]
    fn option_strings_are_read_back(
        options in proptest::collection::vec(("[a-z][a-z0-9-]{0,15}", "[ -~]{0,20}"), 0..12)
    ) {
        let options: Vec<_> =
            options.into_iter().map(|(name, value)| CompilerOption::new(name, value)).collect();
        let options = OptionString(options);
        prop_assert_eq!(OptionString::parse(&options.to_string()).unwrap(), options);
    }

    #[test]
    fn simulators_blobs_are_read_back(
        version in any::<[u8; 3]>(),
        soc in "mt[0-9]{4}",
        code in proptest::collection::vec(any::<u8>(), 0..200),
        options in "(--[a-z]{1,8} ?){0,5}",
    ) {
        let bytes = support::simulated(version, &soc, &code, &options);
        let read = blob::read(Bytes::new(&bytes), &mut Budget::of(bytes.len())).unwrap();
        prop_assert_eq!(read.kind, Kind::Simulator);
        prop_assert_eq!(read.version, Some(RuntimeVersion::new(version[0], version[1], version[2])));
        prop_assert_eq!(read.soc.as_deref(), Some(soc.as_str()));
        prop_assert_eq!(&bytes[read.code.clone()], code.as_slice());
        let trailer = read.trailer.unwrap();
        prop_assert_eq!(trailer.options, Some(options));
        prop_assert_eq!(blob::code_of(&bytes), code);
    }

    #[test]
    fn payloads_are_read_back(inputs in 0u32..100, outputs in 0u32..100, code in proptest::collection::vec(any::<u8>(), 0..50)) {
        let dla = support::dla(&code, &support::trailer(&support::record("adapter", [8, 2, 28]), "--opt 3"));
        let (format, reported) = document(&support::executorch(inputs, outputs, &dla));
        prop_assert_eq!(format, "executorch-neuron-payload");
        prop_assert_eq!((&reported["inputs"], &reported["outputs"]), (&json!(inputs), &json!(outputs)));
        prop_assert_eq!(&reported["code"]["offset"], 13);
    }
}
