//! Settings of checkpoints and of applications.

use std::fs;

use serde_json::{Value, json};
use shardwright_preprocessing::*;
use shardwright_vocabulary::{ErrorKind, Result};

use crate::support::{assert_refused, fixture};

/// Writes one file to a directory and reads it.
fn read(name: &str, content: &Value) -> Result<ProcessorSettings> {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join(name), content.to_string()).expect("written");
    ProcessorSettings::read(folder.path()).map(|settings| settings.expect("a file"))
}

fn nested(content: &Value) -> Result<ProcessorSettings> {
    read("processor_config.json", content)
}

#[test]
fn the_fixture_says_what_its_towers_take() {
    let settings = ProcessorSettings::read(fixture()).expect("settings").expect("a file");
    assert_eq!(settings.picture, Some(PictureSettings { patch: 4, pool: 3, soft_tokens: 70 }));
    assert_eq!(settings.sound, Some(SoundSettings::default()));
    assert_eq!(settings.ignored, []);
}

#[test]
fn missing_fields_are_the_librarys_defaults() {
    let settings = nested(&json!({"image_processor": {}, "feature_extractor": {}})).expect("settings");
    assert_eq!(settings.picture, Some(PictureSettings::default()));
    assert_eq!(settings.sound, Some(SoundSettings::default()));
    let only = nested(&json!({"image_processor": {"patch_size": null}, "video_processor": {"fps": 1}}));
    assert_eq!(only.expect("settings").sound, None);
    let neither = nested(&json!({"processor_class": "Gemma4Processor"})).expect("settings");
    assert_eq!(neither, ProcessorSettings { picture: None, sound: None, ignored: Vec::new() });
}

#[test]
fn published_fields_without_effect_are_accepted() {
    let settings = nested(&json!({"image_processor": {
        "image_processor_type": "Gemma4ImageProcessor", "image_seq_length": 280, "do_normalize": false,
        "image_mean": [0.5, 0.5, 0.5], "size": {"height": 224, "width": 224}, "max_soft_tokens": 560,
    }}));
    assert_eq!(settings.expect("settings").picture.expect("of pictures").soft_tokens, 560);
    let identity =
        json!({"image_processor": {"do_normalize": true, "image_mean": 0.0, "image_std": [1, 1, 1]}});
    assert!(nested(&identity).is_ok());
}

#[test]
fn the_older_file_has_the_fields_of_both_at_the_top() {
    let both = json!({
        "image_processor_type": "Gemma4ImageProcessor", "patch_size": 8, "resample": 3,
        "feature_extractor_type": "Gemma4AudioFeatureExtractor", "feature_size": 64, "frame_length_ms": 32.0,
        "audio_seq_length": 100, "processor_class": "Gemma4Processor",
    });
    let settings = read("preprocessor_config.json", &both).expect("settings");
    assert_eq!(settings.picture.expect("of pictures").patch, 8);
    let sound = settings.sound.expect("of sounds");
    assert_eq!((sound.frame, sound.transform, sound.hop, sound.bins), (512, 512, 160, 64));
    assert_eq!(sound.longest, 64_000, "a hundred soft tokens of 40 ms");
    for field in [json!({"patch_size": 16}), json!({"do_resize": true})] {
        let one = read("preprocessor_config.json", &field).expect("settings");
        assert!(one.picture.is_some() && one.sound.is_none());
    }
}

#[test]
fn the_longest_clip_is_that_of_the_soft_tokens() {
    let sound = |tokens: u32| {
        let settings = nested(&json!({"feature_extractor": {}, "audio_seq_length": tokens}));
        settings.expect("settings").sound.expect("of sounds")
    };
    assert_eq!([750, 751, 375].map(|tokens| sound(tokens).longest), [480_000, 480_000, 240_000]);
    let settings = sound(375);
    assert_eq!(settings.soft_tokens(settings.valid_frames(settings.longest as usize)), 375);
}

#[test]
fn what_would_be_ignored_is_refused_with_its_field() {
    let of_pictures = [
        ("do_resize", json!(false)),
        ("do_rescale", json!(false)),
        ("do_convert_rgb", json!(false)),
        ("do_center_crop", json!(true)),
        ("do_pad", json!(true)),
        ("resample", json!(2)),
        ("rescale_factor", json!(0.5)),
        ("image_processor_type", json!("Gemma3ImageProcessor")),
        ("data_format", json!("channels_last")),
        ("do_pan_and_scan", json!(true)),
    ];
    let of_sounds = [
        ("preemphasis", json!(0.97)),
        ("dither", json!(1e-5)),
        ("input_scale_factor", json!(32768)),
        ("padding_side", json!("left")),
        ("padding_value", json!(1.0)),
        ("per_bin_mean", json!([0.0])),
        ("per_bin_stddev", json!([1.0])),
        ("fft_overdrive", json!(true)),
        ("feature_extractor_type", json!("WhisperFeatureExtractor")),
        ("chunk_length", json!(30)),
    ];
    let cases = of_pictures.map(|case| ("image_processor", case)).into_iter();
    for (object, (name, value)) in cases.chain(of_sounds.map(|case| ("feature_extractor", case))) {
        let error = assert_refused(
            nested(&json!({object: {name: value}})),
            ErrorKind::Unsupported,
            "which is not supported",
        );
        assert!(error.to_string().contains(&format!("processor_config.json: `{object}.{name}`")), "{error}");
    }
    for (name, value) in [("image_mean", json!([0.5, 0.5, 0.5])), ("image_std", json!(0.5))] {
        let normalised = json!({"image_processor": {"do_normalize": true, name: value}});
        assert_refused(nested(&normalised), ErrorKind::Unsupported, &format!(".{name}` is "));
    }
    let slow = json!({"feature_extractor": {}, "audio_ms_per_token": 80});
    assert_refused(nested(&slow), ErrorKind::Unsupported, "which is not supported");
    for mixed in [json!({"patch_size": 16, "preemphasis": 0.97}), json!({"do_resize": false})] {
        assert_refused(
            read("preprocessor_config.json", &mixed),
            ErrorKind::Unsupported,
            "which is not supported",
        );
    }
}

/// Fields without effect, with the reason.
const CANNOT_MATTER: [(&str, &[&str]); 3] = [
    ("names", &["processor_class"]),
    ("the budget decides", &["image_seq_length", "image_processor.image_seq_length"]),
    (
        "normalisation by 0 and 1 is none, and other fields turn them off",
        &[
            "image_processor.do_normalize",
            "image_processor.image_mean",
            "image_processor.image_std",
            "feature_extractor.preemphasis_htk_flavor",
            "feature_extractor.return_attention_mask",
        ],
    ),
];

/// Further accepted fields without effect, which the fixture does not have, with the reason.
const ALSO_CANNOT_MATTER: [(&str, &[&str]); 5] = [
    ("names", &["auto_map", "_name_or_path", "image_processor.auto_map"]),
    ("films are not read", &["video_processor"]),
    ("the budget decides", &["image_processor.size", "image_processor.default_to_square"]),
    ("pictures are not cropped", &["image_processor.crop_size"]),
    (
        "arrays and devices of Python",
        &[
            "image_processor.input_data_format",
            "image_processor.device",
            "image_processor.return_tensors",
            "image_processor.disable_grouping",
            "feature_extractor.return_tensors",
        ],
    ),
];

#[test]
fn accepted_fields_without_effect_have_a_reason() {
    let fields = || json!({"image_processor": {}, "feature_extractor": {}});
    let plain = nested(&fields()).expect("settings");
    for (reason, names) in ALSO_CANNOT_MATTER {
        for name in names {
            for value in [json!({"height": 224, "width": 7}), json!("other"), json!(true)] {
                let mut changed = fields();
                match name.split_once('.') {
                    Some((object, field)) => changed[object][field] = value,
                    None => changed[*name] = value,
                }
                assert_eq!(nested(&changed).expect(reason), plain, "{name}: {reason}");
            }
        }
    }
    let usual = json!({"image_processor": {"data_format": "channels_first"}, "feature_extractor": {}});
    assert_eq!(nested(&usual).expect("settings"), plain);
}

/// Returns a different value of the same kind.
fn other(value: &Value) -> Value {
    match value {
        Value::Bool(flag) => json!(!flag),
        Value::Number(number) if number.is_u64() => json!(number.as_u64().expect("whole") / 2),
        Value::Number(number) => json!(number.as_f64().expect("a number") * 0.5 + 0.25),
        Value::String(text) => json!(format!("{text}x")),
        Value::Array(_) => json!([3]),
        Value::Null | Value::Object(_) => json!([0.5]),
    }
}

#[test]
fn every_field_changes_the_settings_or_is_refused_or_is_listed() {
    let text = fs::read(fixture().join("processor_config.json")).expect("the fixture");
    let fields: Value = serde_json::from_slice(&text).expect("JSON");
    let before = format!("{:?}", nested(&fields));
    let mut places = Vec::new();
    for (name, value) in fields.as_object().expect("an object") {
        match value.as_object() {
            Some(inner) => places.extend(inner.keys().map(|field| vec![name.clone(), field.clone()])),
            None => places.push(vec![name.clone()]),
        }
    }
    let silent = places.iter().filter(|place| {
        let mut changed = fields.clone();
        let value = place.iter().fold(&mut changed, |value, name| &mut value[name]);
        *value = other(value);
        let name = place.join(".");
        let listed = CANNOT_MATTER.iter().any(|(_, names)| names.contains(&name.as_str()));
        format!("{:?}", nested(&changed)) == before && !listed
    });
    let silent: Vec<String> = silent.map(|place| place.join(".")).collect();
    assert!(places.len() > 30 && silent.is_empty(), "of {} fields: {silent:?}", places.len());
}

#[test]
fn unknown_fields_outside_of_pictures_and_sounds_are_reported() {
    let settings = nested(&json!({
        "image_processor": {}, "video_processor": {"fps": 1}, "audio_seq_length": 5, "size": {"height": 960},
        "chat_template": "x", "do_normalize": null,
    }));
    let folder = tempfile::tempdir().expect("a folder");
    let reported: Vec<String> = settings.expect("settings").ignored.iter().map(ToString::to_string).collect();
    assert_eq!(reported.len(), 2, "{reported:?}");
    let [template, size] = [&reported[0], &reported[1]];
    assert!(
        template.contains("processor_config.json: `chat_template` is ignored: templates are"),
        "{template}"
    );
    assert!(size.ends_with("`size` is ignored: the field is not known"), "{size}");

    // The older file describes the sounds that the current one does not.
    let current = json!({"image_processor": {"patch_size": 8}, "audio_seq_length": 100});
    fs::write(folder.path().join("processor_config.json"), current.to_string()).expect("written");
    let older = folder.path().join("preprocessor_config.json");
    fs::write(&older, json!({"patch_size": 16, "feature_size": 64}).to_string()).expect("written");
    let settings = ProcessorSettings::read(folder.path()).expect("settings").expect("a file");
    assert_eq!(settings.picture.expect("of pictures").patch, 8);
    let sound = settings.sound.expect("of sounds");
    assert_eq!((sound.bins, sound.longest), (64, 64_000));
    fs::write(&older, json!({"wobble": 1}).to_string()).expect("written");
    let refused = ProcessorSettings::read(folder.path());
    assert_refused(refused, ErrorKind::Unsupported, "preprocessor_config.json: `wobble` is ");
}

#[test]
fn impossible_values_are_refused_with_their_field() {
    let of_pictures = [
        ("patch_size", json!(0)),
        ("patch_size", json!(65)),
        ("patch_size", json!(-1)),
        ("pooling_kernel_size", json!(1.5)),
        ("max_soft_tokens", json!(1121)),
        ("max_soft_tokens", json!(71)),
        ("max_soft_tokens", json!("many")),
        ("do_resize", json!("yes")),
        ("resample", json!("bicubic")),
        ("image_processor_type", json!(1)),
    ];
    let of_sounds = [
        ("sampling_rate", json!(1e9)),
        ("sampling_rate", json!(0)),
        ("feature_size", json!(u64::MAX)),
        ("fft_length", json!(500)),
        ("fft_length", json!(256)),
        ("hop_length", json!(0)),
        ("hop_length_ms", json!(0.01)),
        ("hop_length_ms", json!(-1e300)),
        ("max_frequency", json!(8001)),
        ("min_frequency", json!(8000)),
        ("mel_floor", json!(0.0)),
    ];
    let cases = of_pictures.map(|case| ("image_processor", case)).into_iter();
    for (object, (name, value)) in cases.chain(of_sounds.map(|case| ("feature_extractor", case))) {
        let error =
            assert_refused(nested(&json!({object: {name: value}})), ErrorKind::Invalid, "` should be ");
        assert!(error.to_string().contains(&format!("`{object}.{name}`")), "{error}");
    }
    assert_refused(nested(&json!({"image_processor": 1})), ErrorKind::Invalid, "` should be ");
    let budget = nested(&json!({"image_processor": {"max_soft_tokens": 71}}));
    let error = assert_refused(budget, ErrorKind::Invalid, "` should be ");
    assert!(error.to_string().contains("should be one of 70, 140, 280, 560, 1120, but is 71"), "{error}");
}

#[test]
fn files_that_are_none_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(ProcessorSettings::read(folder.path()).expect("no fault"), None);
    let path = folder.path().join("processor_config.json");
    for content in ["", "{", "[]", "\u{0}", &"[".repeat(100_000)] {
        fs::write(&path, content).expect("written");
        assert_refused(ProcessorSettings::read(folder.path()), ErrorKind::Invalid, "not valid JSON: ");
    }
    fs::write(&path, "{\"image_processor\": {\"patch_size\": 4,\n \"patch_size\": 8}}").expect("written");
    let twice = "processor_config.json: a second key `patch_size` at line 2 column 13";
    assert_refused(ProcessorSettings::read(folder.path()), ErrorKind::Invalid, twice);
    fs::File::create(&path).and_then(|file| file.set_len(limits::SETTINGS_BYTES + 1)).expect("a long file");
    assert_refused(ProcessorSettings::read(folder.path()), ErrorKind::Invalid, "more than 4194304 bytes");
    fs::remove_file(&path).and_then(|()| fs::create_dir(&path)).expect("a folder of that name");
    assert_refused(
        ProcessorSettings::read(folder.path()),
        ErrorKind::Invalid,
        "a directory, not a regular file",
    );
}

#[test]
fn our_own_form_is_exact() {
    let picture = PictureSettings::default();
    let text = serde_json::to_string(&picture).expect("JSON");
    assert_eq!(text, r#"{"patch":16,"pool":3,"soft_tokens":280}"#);
    assert_eq!(serde_json::from_str::<PictureSettings>(&text).expect("settings"), picture);
    assert!(serde_json::from_str::<PictureSettings>(&text.replace('}', ",\"more\":1}")).is_err());
    let sound = SoundSettings::default();
    let text = serde_json::to_string(&sound).expect("JSON");
    assert_eq!(serde_json::from_str::<SoundSettings>(&text).expect("settings"), sound);
    assert!(serde_json::from_str::<SoundSettings>(&text.replace('}', ",\"more\":1}")).is_err());
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let picture = PictureSettings::default();
    for (settings, wrong) in [
        (PictureSettings { patch: 0, ..picture.clone() }, "patch"),
        (PictureSettings { pool: 17, ..picture.clone() }, "pool"),
        (PictureSettings { soft_tokens: 0, ..picture.clone() }, "soft_tokens"),
    ] {
        assert_refused(settings.check(), ErrorKind::Argument, &format!("`{wrong}` should be "));
        assert_refused(settings.grid(10, 10, 70), ErrorKind::Argument, "` should be ");
    }
    let sound = SoundSettings::default();
    for (settings, wrong) in [
        (SoundSettings { rate: 0, ..sound.clone() }, "rate"),
        (SoundSettings { frame: 1, ..sound.clone() }, "frame"),
        (SoundSettings { hop: 0, ..sound.clone() }, "hop"),
        (SoundSettings { transform: 511, ..sound.clone() }, "transform"),
        (SoundSettings { frame: 600, ..sound.clone() }, "transform"),
        (SoundSettings { bins: 0, ..sound.clone() }, "bins"),
        (SoundSettings { lowest_hertz: f64::NAN, ..sound.clone() }, "lowest_hertz"),
        (SoundSettings { highest_hertz: f64::INFINITY, ..sound.clone() }, "highest_hertz"),
        (SoundSettings { floor: -1.0, ..sound.clone() }, "floor"),
        (SoundSettings { longest: 0, ..sound.clone() }, "longest"),
    ] {
        assert_refused(settings.check(), ErrorKind::Argument, &format!("`{wrong}` should be "));
        assert_refused(settings.check_frames(&[0.0; 128]), ErrorKind::Argument, "` should be ");
    }
}

/// Samples, frames, valid frames, soft tokens: the numbers are the library's.
#[test]
fn frames_are_counted_as_the_library_does() {
    let settings = SoundSettings::default();
    for (samples, frames, valid, tokens) in [
        (0, 0, 0, 0),
        (128, 0, 0, 0),
        (129, 1, 0, 0),
        (160, 1, 0, 0),
        (161, 1, 1, 1),
        (320, 2, 1, 1),
        (321, 2, 2, 1),
        (800, 5, 4, 1),
        (801, 5, 5, 2),
        (17_418, 109, 108, 27),
        (480_000, 2999, 2999, 750),
    ] {
        assert_eq!(settings.frames(samples), frames, "{samples}");
        assert_eq!(settings.valid_frames(samples), valid, "{samples}");
        assert_eq!(settings.soft_tokens(valid), tokens, "{samples}");
    }
    assert_eq!((settings.frames_max(), settings.longest_seconds()), (2999, 30.0));
    // Counting with unchecked settings does not fail.
    let none = SoundSettings { hop: 0, ..settings.clone() };
    assert_eq!((none.frames(1000), none.valid_frames(1000), none.frames(usize::MAX)), (0, 0, 0));
    let huge = PictureSettings { patch: u32::MAX, pool: u32::MAX, soft_tokens: u32::MAX };
    assert_eq!((huge.patch_values(), huge.patches(u32::MAX)), (usize::MAX, usize::MAX));
    assert_eq!([0, 1, 4, 5, 8, 9].map(|frames| settings.soft_tokens(frames)), [0, 1, 1, 2, 2, 3]);
}

#[test]
fn features_of_an_application_are_checked() {
    let settings = SoundSettings::default();
    assert_eq!(settings.check_frames(&[0.5; 256]).expect("two frames"), 2);
    for length in [0, 127, 129, 3000 * 128] {
        assert_refused(settings.check_frames(&vec![0.0; length]), ErrorKind::Argument, " values; expected ");
    }
    let mut values = [0.0; 256];
    values[200] = f32::NEG_INFINITY;
    assert_refused(settings.check_frames(&values), ErrorKind::Argument, "the value at index 200 is ");
}
