//! `plan` for several chips at once: a table, the full plans with `-v`, and the worst exit code.

use std::fs;

use serde_json::Value;
use shardwright_test_checkpoints::Spec;
use shardwright_tests::checkpoints::DEMO_MODEL;
use shardwright_tests::program::{Run, shardwright};

fn plan(socs: &[&str], more: &[&str]) -> Run {
    let named = socs.iter().flat_map(|soc| ["--soc", soc]);
    shardwright(["plan", "--no-measure", DEMO_MODEL]).arguments(named).arguments(more)
}

#[test]
fn several_chips_are_compared_in_one_table() {
    let names = ["mt6989", "sm8750", "generic"];
    let alone = names.map(|soc| shardwright(["plan", "--no-measure", DEMO_MODEL, "--soc", soc]).json());
    let report = plan(&["mt6989, sm8750", "generic"], &[]).json();
    let chips = report["chips"].as_array().expect("chips");
    let named: Vec<&str> = chips.iter().filter_map(|chip| chip["soc"].as_str()).collect();
    assert_eq!(named, names);
    for (chip, alone) in chips.iter().zip(&alone) {
        assert!(chip["bytes"].as_u64() > Some(0) && chip["held_bytes"].as_u64() > Some(0), "{chip}");
        assert!(chip["shards"].as_u64() > Some(0) && chip["fits"].is_string(), "{chip}");
        // The comparison reports the same values as a plan for the chip alone.
        let rate = &alone["forecast"]["speed"]["per_1000_seconds"];
        assert_eq!(&chip["tokens_per_1000_seconds"], rate, "{chip}");
        assert_eq!(chip["shards"].as_u64(), alone["shards"].as_array().map(|shards| shards.len() as u64));
        assert!(chip.get("plan").is_none(), "{chip}");
    }
    let text = plan(&["mt6989,sm8750"], &[]).succeeds();
    for word in ["chip", "verdict", "speed", "size", "hedge", "loss", "shards", "memory", "fits", "-v"] {
        assert!(text.contains(word), "no `{word}`: {text}");
    }
    assert!(!text.contains("reasons"), "{text}");
    let full = plan(&["mt6989,sm8750"], &["-v"]).succeeds();
    assert!(full.contains("== mt6989") && full.contains("== sm8750") && full.contains("reasons"), "{full}");
    let full = plan(&["mt6989,sm8750"], &["-v"]).json();
    assert_eq!(full["chips"][1]["plan"]["soc"], "sm8750", "{full}");
}

/// The weights of a hedge are an additional download, so the table lists their bytes.
#[test]
fn a_hedge_is_shown_with_its_bytes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("config.json"), Spec::e2b().config().to_string()).expect("written");
    let compare = || {
        // The estimates of a vendor's compiler would need minutes.
        let run = shardwright(["plan", "--no-measure", "--soc", "mt6989,sm8850", "--context", "4096"]);
        run.argument(folder.path()).environment("SHARDWRIGHT_QNN_LIB", "/nowhere")
    };
    let report = compare().argument("-v").json();
    let chips = report["chips"].as_array().expect("chips");
    let fallback = chips[0]["plan"]["fallback"].as_array().expect("chains");
    let hedge = fallback.iter().find(|chain| chain["within"].is_array()).expect("a hedge");
    assert_eq!(chips[0]["hedge_bytes"], hedge["bytes"], "{hedge}");
    assert!(hedge["bytes"].as_u64() > Some(1 << 30), "{hedge}");
    assert!(chips[1].get("hedge_bytes").is_none(), "{}", chips[1]["hedge_bytes"]);
    let text = compare().succeeds();
    let row = |soc: &str| text.lines().find(|line| line.starts_with(soc)).unwrap_or_default();
    assert!(row("mt6989").contains(" +") && !row("sm8850").contains('+'), "{text}");
}

#[test]
fn the_exit_code_is_that_of_the_worst_chip() {
    let outcome = plan(&["mt1,generic"], &[]).outcome();
    assert_eq!(outcome.code, Some(3), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("generic") && outcome.stdout.contains("no plan"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("mt1: ") && outcome.stdout.contains("help: "), "{}", outcome.stdout);
    plan(&["mt1,generic"], &[]).refuses_with(3, &["error: mt1: no profile for SoC `mt1`"]);
    // No chip can run the model in so few bytes (7), and one chip is unknown (3).
    let outcome = plan(&["mt1,mt6989"], &["--size", "100KB", "--format", "json"]).outcome();
    assert_eq!(outcome.code, Some(7), "{}", outcome.stderr);
    let failure: Value = serde_json::from_str(&outcome.stderr).expect("JSON");
    assert_eq!(failure["error"]["kind"], "planning", "{failure}");
    assert!(failure["error"]["message"].as_str().is_some_and(|text| text.starts_with("mt6989: ")));
    // An error without help of its own has the default help, after the report and in it.
    let strict = || plan(&["mt6989,sm8750"], &["--limit", "ops=3", "--strict"]);
    let stderr = strict().refuses_with(9, &["error: mt6989: "]);
    assert!(stderr.contains("help: leave `--strict` out"), "{stderr}");
    let outcome = strict().arguments(["--format", "json"]).outcome();
    let report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let failed = report["failed"].as_array().expect("chips");
    assert!(failed.len() == 2 && failed.iter().all(|chip| chip["help"].is_string()), "{report}");
    for option in ["--html", "--write-request"] {
        plan(&["mt6989,generic"], &[option, "x"]).refuses_with(2, &[option, "a single chip"]);
    }
    // Other commands read several names as one, which matches no chip.
    let run = shardwright(["run", DEMO_MODEL, "--prompt", "x", "--soc", "mt6989", "--soc", "generic"]);
    run.refuses_with(3, &["mt6989,generic"]);
}
