//! `shardwright verify` on everything recorded, whole and cut: the numbers, the tokens, the texts.

use shardwright_tests::checkpoints::{DEMO_MODEL, EMBEDDING_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::program::shardwright;

#[test]
fn every_text_fixture_agrees_with_its_goldens() {
    for fixture in TEXT_FIXTURES {
        shardwright(["verify", fixture]).succeeds();
    }
}

#[test]
fn the_embedding_fixture_agrees_with_its_goldens() {
    shardwright(["verify", EMBEDDING_FIXTURE]).succeeds();
}

#[test]
fn the_demo_model_agrees_with_its_goldens_and_its_evaluation() {
    shardwright(["verify", DEMO_MODEL]).succeeds();
}

#[test]
fn fixtures_agree_when_cut_for_a_phone() {
    for fixture in TEXT_FIXTURES {
        let report =
            shardwright(["verify", fixture, "--soc", "mt6989", "--on", "cpu", "--limit", "ops=400"]).json();
        assert_eq!(report["passed"], true, "{report}");
        assert_eq!(report["emulated_on"], "cpu", "{report}");
        assert!(report["decoder_shards"].as_u64() > Some(1), "{report}");
    }
}

#[test]
fn verify_finds_the_layer_it_broke_itself() {
    for checkpoint in [TEXT_FIXTURES[1], DEMO_MODEL] {
        shardwright(["verify", checkpoint, "--self-test"]).succeeds();
    }
}

#[test]
fn goldens_of_another_model_are_a_difference_not_a_failure_to_compare() {
    // Same shapes of everything that is compared, other weights.
    let outcome = shardwright(["verify", TEXT_FIXTURES[0], "--golden", TEXT_FIXTURES[3]]).outcome();
    assert!(matches!(outcome.code, Some(code) if code != 0), "{}", outcome.stdout);
    assert!(!outcome.stdout.is_empty() || outcome.stderr.contains("error:"), "{}", outcome.stderr);
}
