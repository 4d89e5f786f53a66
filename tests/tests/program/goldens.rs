//! Bundles that embed, see or hear are tested on a chip that they were not compiled for, like
//! bundles that generate. A chain runs there if it gives the results recorded on the CPU. Otherwise
//! the next chain runs.

use serde_json::{Value, json};
use shardwright::{BundleOptions, ChatPart, ErrorKind, Isolation, Model, OpenOptions};
use shardwright_tests::bundles::with_goldens;
use shardwright_tests::checkpoints::{EMBEDDING_FIXTURE, MULTIMODAL_FIXTURE};
use shardwright_tests::chip::{CHIP, TestChip};
use shardwright_tests::program::shardwright;
use shardwright_tests::tree;

/// Exit codes of incompatible and invalid bundles.
const INCOMPATIBLE: i32 = 6;
const INVALID: i32 = 4;

/// Changes the sign of all values in the rows.
fn turned(rows: &mut Value) {
    for row in rows.as_array_mut().expect("rows") {
        for value in row["values"].as_array_mut().expect("values") {
            *value = (-value.as_i64().expect("a number")).into();
        }
    }
}

/// Builds a chip with 4-bit weights, while its CPU chain has floats.
fn of_four_bits() -> TestChip {
    let formats = json!({ "weights": "w4-block32", "activations": "f32", "states": "f32" });
    TestChip::named(
        CHIP,
        &json!({ "formats": [{ "formats": formats, "legal": true, "provenance": "declared" }] }),
    )
}

#[test]
fn an_embedding_model_runs_on_a_sibling_if_its_vectors_are_near() {
    for (chip, fails) in [(TestChip::new(), false), (of_four_bits(), true)] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let bundle = folder.path().join("bundle");
        let compile = shardwright(["compile", EMBEDDING_FIXTURE, "--context", "64", "-o"]).argument(&bundle);
        let socs = format!("{CHIP},generic");
        chip.found_by(compile.arguments(["--soc", &socs])).succeeds();
        let embed = || {
            let run = shardwright(["embed"]).argument(&bundle).argument("a text");
            chip.found_by(run.environment("XDG_CACHE_HOME", folder.path().join("cache")))
        };
        let expected = embed().outcome();
        assert!(expected.code == Some(0) && !expected.stderr.contains("self-test"), "{}", expected.stderr);

        chip.behaves_as("sibling");
        let tested = "self-test of chain `primary` on this machine: ";
        let first = embed().outcome();
        assert_eq!((first.code, &first.stdout), (Some(0), &expected.stdout), "{}", first.stderr);
        assert!(first.stderr.contains(tested) && first.stderr.contains("over 3 rows"), "{}", first.stderr);
        let again = embed().argument("--strict").outcome();
        assert_eq!((again.code, &again.stdout), (Some(0), &expected.stdout), "{}", again.stderr);
        assert!(!again.stderr.contains(tested), "it was remembered: {}", again.stderr);
        if !fails {
            continue;
        }

        with_goldens(&bundle, |mut goldens| {
            assert_eq!(goldens["vectors"].as_array().map(Vec::len), Some(3), "{goldens}");
            turned(&mut goldens["vectors"]);
            Some(goldens)
        });
        let failed = embed().outcome();
        assert_eq!(failed.code, Some(0), "{}", failed.stderr);
        let said = "its self-test failed on this machine: ";
        assert!(failed.stderr.contains("fallback: ") && failed.stderr.contains(said), "{}", failed.stderr);
        let (code, said) = embed().argument("--strict").refuses();
        let bound = "a distance of at most 0.25 and a ratio of at most 2";
        assert!(code == INCOMPATIBLE && said.contains(bound), "{code} {said}");
        // Goldens of an older version, and a bundle without goldens.
        with_goldens(&bundle, |_| Some(json!({ "goldens": 1, "ids": [1, 2], "rows": [] })));
        let (code, said) = embed().refuses();
        assert!(code == INVALID && said.contains("expected version 2, got 1"), "{code} {said}");
        with_goldens(&bundle, |_| None);
        let (code, said) = embed().argument("--strict").refuses();
        assert!(code == INCOMPATIBLE && said.contains("no goldens to test it with"), "{code} {said}");
    }
}

/// Returns the reply to a picture and a sound, and the notices about the towers.
fn reply(model: &Model) -> shardwright::Result<(String, Vec<String>)> {
    let mut session = model.session()?;
    (session.options.sampling.do_sample, session.options.max_tokens) = (false, Some(4));
    let pixels = (0..150 * 38_u32).map(|index| (index * 7 % 256) as u8).collect();
    let picture = ChatPart::PictureRgb8 { width: 50, height: 38, stride: 150, pixels };
    let samples = (0..16_000_u32).map(|index| (index % 100) as f32 / 100.0 - 0.5).collect();
    let sound = ChatPart::SoundSamples { rate: 16_000, samples };
    let text = session.chat_parts([picture, sound, "What is this?".into()])?.text()?;
    Ok((text, model.report().notices_of_towers.into_iter().map(|notice| notice.text).collect()))
}

#[test]
fn a_tower_runs_on_a_sibling_if_its_rows_are_near_and_falls_back_alone_if_not() {
    let chip = TestChip::new();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = folder.path().join("bundle");
    let options = OpenOptions::new()
        .search_path(chip.search_path())
        .isolation(Isolation::Off)
        .formats("stored".parse().expect("a choice"))
        .tower_formats("stored".parse().expect("a choice"));
    let variants = [CHIP, "generic"].map(str::to_owned);
    let made = options.compile_for(&variants, tree::root().join(MULTIMODAL_FIXTURE), &bundle, &mut ());
    made.unwrap_or_else(|error| panic!("{error}"));
    let open = BundleOptions::new().search_path(chip.search_path()).isolation(Isolation::Off);
    let open = open.remember_no_proofs();
    let opened =
        |strict: bool| open.clone().strict(strict).open(&bundle).unwrap_or_else(|error| panic!("{error}"));
    let (expected, said) = reply(&opened(true)).expect("a reply");
    assert_eq!(said, Vec::<String>::new(), "compiled for this chip");
    chip.behaves_as("sibling");
    let model = opened(true);
    let placement = model.session().expect("a session").placement();
    assert_eq!(placement.shards[0].place.device, "testchip.other");
    let (text, said) = reply(&model).expect("a reply");
    assert_eq!((text, said.len()), (expected.clone(), 2), "{said:?}");
    for name in ["picture", "clip"] {
        let tested = format!("self-test of chain `{name}` on this machine: cosine distance of 0.0");
        assert!(said.iter().any(|line| line.starts_with(&tested)), "no `{tested}` in {said:?}");
    }
    // A tower that the chip does not accept any more falls back alone.
    let model = opened(false);
    chip.behaves_as("unsupported");
    let (text, said) = reply(&model).expect("a reply");
    assert_eq!(text, expected);
    let runs = "chain `picture.cpu` of the variant for testchip runs";
    assert!(said.iter().any(|line| line.contains(runs)), "{said:?}");
    chip.behaves_as("sibling");

    with_goldens(&bundle, |mut goldens| {
        turned(&mut goldens["towers"]["clip"]);
        Some(goldens)
    });
    let (text, said) = reply(&opened(false)).expect("a reply");
    assert_eq!(text, expected);
    let failed: Vec<&String> = said.iter().filter(|line| line.contains("its self-test failed")).collect();
    assert!(failed.len() == 1 && failed[0].contains("chain `clip` does not run here"), "{said:?}");
    let error = reply(&opened(true)).expect_err("no other chain is allowed");
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    // Goldens of the clip tower are missing. Those of the text and the other tower are not
    // mentioned.
    with_goldens(&bundle, |mut goldens| {
        goldens["towers"].as_object_mut().expect("towers").remove("clip");
        Some(goldens)
    });
    let error = reply(&opened(true)).expect_err("there is nothing to test it by");
    assert!(error.to_string().contains("no goldens to test it with"), "{error}");
}
