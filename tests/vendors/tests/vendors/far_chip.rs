//! Chips that are not in this machine: one whose vendor's library is missing, one that is only
//! compiled for and simulated here, one whose compiler estimates times, and files that only its
//! shim can read.

use std::fs;
use std::path::Path;

use serde_json::Value;
use shardwright_tests::checkpoints::TEXT_FIXTURES;
use shardwright_tests::chip::{CHIP, TestChip};
use shardwright_tests::plans;
use shardwright_tests::program::{Run, shardwright};

const CHECKPOINT: &str = TEXT_FIXTURES[1];

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn generate(what: &str) -> Run {
    shardwright(["run", what, "--prompt", "And it came to pass", "--max-tokens", "8", "--greedy"])
}

fn refused(run: Run, code: i32, words: &[&str]) {
    run.refuses_with(code, words);
}

fn notices(report: &Value) -> Vec<&str> {
    let notices = report["notices"].as_array().expect("a list of notices").iter();
    notices.filter_map(|notice| notice["text"].as_str().or(notice.as_str())).collect()
}

#[test]
fn a_shim_without_its_library_is_said_and_the_plan_is_made_without_it() {
    let chip = TestChip::new();
    chip.behaves_as("broken");
    const REASON: [&str; 2] = ["cannot be used", "libchip.so is not where it should be"];
    // Both ways to call a shim, in a worker and in this process, each with two of the requests.
    for (isolation, requests) in [
        ("automatic", [("plan", "device"), ("run", "simulator")]),
        ("off", [("plan", "simulator"), ("run", "device")]),
    ] {
        let on = |command: &str| {
            chip.planned_by(shardwright([command, CHECKPOINT])).arguments(["--isolation", isolation])
        };
        let report = on("plan").json();
        let said = notices(&report);
        assert!(said.iter().any(|text| REASON.iter().all(|word| text.contains(word))), "{said:?}");
        assert!(said.iter().any(|text| text.contains("counted in primitives")), "{said:?}");
        for (command, executor) in requests {
            refused(on(command).arguments(["--on", executor]), 3, &[REASON[0], REASON[1], "--on cpu"]);
        }
        refused(on("run").arguments(["--prompt", "x"]), 3, &REASON);
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = shown(&folder.path().join("bundle"));
    refused(chip.planned_by(shardwright(["compile", CHECKPOINT, "-o", &bundle])), 3, &REASON);
    assert!(!Path::new(&bundle).exists(), "a folder without artefacts is not left behind");
    let emulated = chip.planned_by(generate(CHECKPOINT)).arguments(["--on", "cpu"]).outcome();
    assert_eq!(emulated.code, Some(0), "{}", emulated.stderr);
    // Unneeded libraries are not reported missing.
    assert!(!emulated.stderr.contains(REASON[1]), "{}", emulated.stderr);
    assert_eq!(emulated.stdout, generate(CHECKPOINT).succeeds());

    let list = shardwright(["shim", "list"]).argument("--shims").argument(chip.shims()).json();
    let shims = list["shims"].as_array().expect("a list of shims");
    let own = shims.iter().find(|shim| shim["name"] == CHIP).expect("the chip's shim is listed");
    assert!(own["error"].as_str().is_some_and(|error| error.contains(REASON[1])), "{own}");
    let doctor = chip.found_by(shardwright(["doctor"])).json();
    assert!(doctor["problems"].to_string().contains(REASON[1]), "{}", doctor["problems"]);
}

#[test]
fn a_bundle_for_a_chip_elsewhere_is_made_here_proved_by_a_twin_and_not_run() {
    let chip = TestChip::new();
    chip.behaves_as("offline");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = shown(&folder.path().join("bundle"));
    let report = chip.planned_by(shardwright(["compile", CHECKPOINT, "-o", &bundle])).json();
    assert!(report["variants"][0]["plan"]["emulated_on"].is_null(), "{report}");
    let inspect = |bundle: &str| chip.found_by(shardwright(["inspect", bundle])).json();
    let before = inspect(&bundle);
    for shard in before["manifest"]["variants"][0]["chains"][0]["shards"].as_array().expect("shards") {
        assert_eq!(
            (&shard["compiled_by"]["device"], &shard["target"]["device"]),
            (&CHIP.into(), &CHIP.into())
        );
        assert!(shard["compiled_by"]["simulated"].is_null(), "{shard}");
    }

    // None of the bundle runs here, not even its CPU chain. That chain is for machines that lose
    // the chip, and this one never had it.
    refused(chip.found_by(generate(&bundle)), 6, &["can only compile for it here", "--on simulator", CHIP]);
    refused(chip.found_by(shardwright(["doctor", &bundle])), 3, &["can only compile for it here"]);
    refused(
        chip.planned_by(generate(CHECKPOINT)),
        3,
        &["the device was not found", "shardwright compile", "--on simulator", "--on cpu"],
    );

    // A simulator reports itself as one, and computes the same.
    let simulated = chip.planned_by(generate(CHECKPOINT)).arguments(["--on", "simulator"]).outcome();
    assert_eq!(simulated.code, Some(0), "{}", simulated.stderr);
    assert!(simulated.stderr.contains("is simulated"), "{}", simulated.stderr);
    assert_eq!(simulated.stdout, generate(CHECKPOINT).succeeds());
    let other = shown(&folder.path().join("simulated"));
    chip.planned_by(shardwright(["compile", CHECKPOINT, "-o", &other]))
        .arguments(["--on", "simulator"])
        .succeeds();
    let other_report = inspect(&other);
    let compiled_by = &other_report["manifest"]["variants"][0]["chains"][0]["shards"][0]["compiled_by"];
    assert_eq!(
        (&compiled_by["device"], &compiled_by["simulated"]),
        (&format!("{CHIP}.simulated").into(), &true.into()),
        "{other_report}"
    );
    let ran = chip.found_by(generate(&other)).outcome();
    assert_eq!((ran.code, &ran.stdout), (Some(0), &simulated.stdout), "{}", ran.stderr);
    assert!(ran.stderr.contains("is simulated"), "{}", ran.stderr);
    // Device and simulator share one plan, so their work orders are the same.
    let orders = |document: &Value| -> Vec<Value> {
        let shards =
            document["manifest"]["variants"][0]["chains"][0]["shards"].as_array().expect("shards").iter();
        shards.map(|shard| shard["work_order"].clone()).collect()
    };
    assert_eq!(orders(&before), orders(&other_report));

    let verify = |bundle: &str| {
        chip.planned_by(shardwright([
            "verify", CHECKPOINT, "--bundle", bundle, "--rows", "8", "--steps", "2",
        ]))
    };
    let proof = verify(&bundle).argument("--store").json();
    assert_eq!((&proof["passed"], &proof["bundle_chain"]), (&true.into(), &"primary".into()), "{proof}");
    let twin = &proof["twin"];
    assert_eq!(twin["device"], format!("{CHIP}.simulated"), "{twin}");
    assert_eq!(twin["differs"], "its weights are not shared", "{twin}");
    let after = inspect(&bundle);
    let stored = &after["manifest"]["variants"][0]["verifications"][0];
    assert_eq!(stored["passed"], true, "{stored}");
    assert!(stored["summary"].as_str().is_some_and(|text| text.contains("by a twin on")), "{stored}");
    let hashes: Vec<&Value> =
        twin["artefacts"].as_array().expect("artefacts").iter().map(|shard| &shard["sha256"]).collect();
    assert_eq!(stored["twin"]["artefacts"].as_array().expect("hashes").iter().collect::<Vec<_>>(), hashes);
    let text = chip.found_by(shardwright(["inspect", &bundle])).succeeds();
    assert!(
        text.contains("by a twin compiled from its work orders") && text.contains("not shared"),
        "{text}"
    );

    // Other work orders have no twin. These are for another context.
    refused(verify(&bundle).arguments(["--context", "64"]), 6, &["has no artefact for", "of work order"]);
}

#[test]
fn what_a_compiler_refuses_is_planned_anew_around_its_layer() {
    let chip = TestChip::new();
    chip.fails_in("refuses", 3);
    let report = chip.planned_by(shardwright(["verify", CHECKPOINT, "--rows", "4", "--steps", "1"])).json();
    let said = notices(&report);
    let revised = said.iter().find(|text| text.contains("refused and revised"));
    assert!(revised.is_some_and(|text| text.contains("no place for a linear operation")), "{said:?}");
    // Layers of that kind moved to the CPU, which is reported. The rest stayed on the chip.
    assert!(said.iter().any(|text| text.contains(" on the CPU, not on ")), "{said:?}");
    let shards = report["boundaries"][0]["shards"].as_array().expect("shards");
    let on = |shard: &Value, what: &str| shard["place"].as_str().is_some_and(|place| place.starts_with(what));
    let layers = |shard: &Value| -> Option<(u64, u64)> {
        Some((shard["layers"][0].as_u64()?, shard["layers"][1].as_u64()?))
    };
    for shard in shards {
        if layers(shard).is_some_and(|(first, end)| (first..end).contains(&3)) {
            assert!(on(shard, "cpu"), "{shard}");
        }
    }
    assert!(shards.iter().any(|shard| on(shard, CHIP)), "{report}");
    assert_eq!(report["passed"], true, "{report}");
}

#[test]
fn a_soft_cap_that_a_chip_refuses_is_left_to_the_runtime_and_the_plan_says_why() {
    let chip = TestChip::new();
    let head = || {
        let report = chip.planned_by(shardwright(["plan", CHECKPOINT])).json();
        let shards = report["shards"].as_array().expect("shards");
        let head = shards.last().expect("a head").clone();
        assert!(plans::holds(&head, "head") && head["target"] == CHIP, "{report}");
        let reasons = head["reasons"].as_array().expect("reasons").iter();
        let mut reasons = reasons
            .filter(|reason| reason["choice"].as_str().is_some_and(|choice| choice.starts_with("soft-cap")));
        let because = reasons.next().expect("a reason")["because"].as_str().expect("text").to_owned();
        (head["softcap"].as_str().expect("a place").to_owned(), because)
    };
    let (place, because) = head();
    assert_eq!(place, "graph");
    assert!(because.ends_with(" by the runtime"), "{because}");

    chip.behaves_as("no-tangent");
    let (place, because) = head();
    assert_eq!(place, "runtime");
    assert!(because.contains("the chip has no hyperbolic tangent"), "{because}");
    let text = chip.planned_by(shardwright(["plan", CHECKPOINT])).succeeds();
    assert!(text.contains("soft-cap  by the runtime, in f32, of the logits"), "{text}");
    assert_eq!(chip.planned_by(generate(CHECKPOINT)).succeeds(), generate(CHECKPOINT).succeeds());
}

/// One shard falls back, and the reason of each of its parts is reported.
#[test]
fn parts_that_a_chip_refuses_for_different_reasons_are_told_with_their_own() {
    let chip = TestChip::new();
    chip.behaves_as("gaps");
    let report = chip.planned_by(shardwright(["plan", "tests/fixtures/gemma4_text"])).json();
    let said = notices(&report);
    let left: Vec<&&str> = said.iter().filter(|text| text.contains(" on the CPU, not on testchip")).collect();
    let of = |component: &str, words: &str| {
        let own = left
            .iter()
            .filter(|text| text.split(" on the CPU").next().is_some_and(|of| of.contains(component)));
        let own: Vec<_> = own.collect();
        assert!(!own.is_empty(), "{component}: {said:?}");
        assert!(own.iter().all(|text| text.contains(words)), "{component}: {own:?}");
    };
    of("per-layer-input", "moves no axes");
    of("decoder", "the chip has no GELU");
}

#[test]
fn times_are_asked_for_once() {
    let chip = TestChip::new();
    chip.behaves_as("estimates");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let request = folder.path().join("request.json");
    let plan = || {
        let run =
            chip.planned_by(shardwright(["plan", CHECKPOINT])).environment("XDG_CACHE_HOME", folder.path());
        let report = run.argument("--write-request").argument(&request).json();
        let said = notices(&report).into_iter().find(|text| text.starts_with("times: ")).map(str::to_owned);
        (said.expect("a word on times"), fs::read(&request).expect("the request"))
    };
    let (said, first) = plan();
    let asked = chip.estimated().len();
    assert!(asked > 4, "{asked}");
    assert_eq!(said.split(' ').nth(1), Some("0"), "{said}");
    let rows: Value = serde_json::from_slice(&first).expect("JSON");
    assert!(rows["costs"].to_string().contains("simulated"), "a kept time has its provenance");

    let (said, second) = plan();
    assert_eq!(chip.estimated().len(), asked, "{said}");
    assert!(said.contains(", 0 estimated now"), "{said}");
    assert!(first == second, "a row from the cache is the row");

    // A damaged row is computed and stored again.
    let kept: Vec<_> = fs::read_dir(folder.path().join("shardwright/costs")).expect("rows").collect();
    let kept: Vec<_> = kept.into_iter().map(|entry| entry.expect("an entry").path()).collect();
    for (index, path) in kept.iter().enumerate() {
        let bytes = fs::read(path).expect("a row");
        fs::write(path, if index % 2 == 0 { &bytes[..bytes.len() / 2] } else { b"\0" }).expect("written");
    }
    let (_, third) = plan();
    assert_eq!(chip.estimated().len(), 2 * asked);
    assert!(third == first);
    let (said, _) = plan();
    assert_eq!(chip.estimated().len(), 2 * asked, "{said}");
}

#[test]
fn a_vendors_file_is_shown_by_its_shim() {
    let chip = TestChip::new();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("written");
        shown(&path)
    };
    let known = file("known", b"CHIP0000");
    let inspect = |path: &str| chip.found_by(shardwright(["inspect", path]));
    let report = inspect(&known).json();
    assert_eq!((&report["kind"], &report["shim"]), (&"foreign".into(), &CHIP.into()), "{report}");
    assert_eq!((&report["format"], &report["bytes"]), (&"chip-binary".into(), &8.into()), "{report}");
    assert_eq!(report["document"]["graphs"][0]["inputs"][0]["shape"], serde_json::json!([1, 64]));
    let text = inspect(&known).succeeds();
    for words in ["chip-binary of 8 B", "build.id: v1", "graphs[decode_1].inputs", "[1, 64]"] {
        assert!(text.contains(words), "no `{words}` in {text}");
    }
    refused(inspect(&file("cut", b"CHIP")), 4, &["the file of the chip ends early"]);
    refused(inspect(&file("empty", b"")), 5, &["unrecognised file type"]);
    refused(inspect(&file("unknown", b"CHOP0000")), 5, &["unrecognised file type", "a shim here recognises"]);
    // Without the shim the file is unknown. A shim that cannot be queried is named.
    refused(shardwright(["inspect", &known]), 5, &["unrecognised file type"]);
    chip.behaves_as("broken");
    refused(inspect(&known), 5, &["cannot query shim", "libchip.so"]);
}
