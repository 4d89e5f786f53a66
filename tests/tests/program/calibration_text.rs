//! `calibration-text`: a model's own replies, resumed after a run was killed, and their use in
//! calibration.

use std::path::Path;
use std::time::Duration;

use shardwright_test_checkpoints::cases;
use shardwright_tests::checkpoints::{DEMO_MODEL, EMBEDDING_FIXTURE};
use shardwright_tests::program::{Run, shardwright};

const SIZE: [&str; 6] = ["--tokens", "160", "--longest", "24", "--seed", "3"];

fn draw(output: &Path) -> Run {
    shardwright(["calibration-text", DEMO_MODEL, "-o"]).argument(output).arguments(SIZE)
}

#[test]
fn a_model_s_own_text_is_drawn_once_whenever_it_was_killed_and_calibrates() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let whole = folder.path().join("whole.txt");
    let report = draw(&whole).json();
    assert!(report["tokens"].as_u64().is_some_and(|tokens| (160..184).contains(&tokens)), "{report}");
    let text = std::fs::read_to_string(&whole).expect("a text");
    assert_eq!(report["conversations"].as_u64(), Some(text.lines().count() as u64));
    assert!(text.lines().all(|line| line.split('\t').count() <= 2), "{text}");
    let again = draw(&whole).json();
    assert_eq!((again["tokens"].as_u64(), &again["found"]), (Some(0), &report["conversations"]));
    assert_eq!(std::fs::read_to_string(&whole).expect("a text"), text);

    let killed = folder.path().join("killed.txt");
    for moment in 1..=cases(4, 50) as u64 {
        draw(&killed).killed_after(Duration::from_millis(150 + 90 * (moment % 9)));
    }
    draw(&killed).succeeds();
    assert_eq!(std::fs::read_to_string(&killed).expect("a text"), text);

    let text = whole.display().to_string();
    let plan = ["plan", DEMO_MODEL, "--formats", "w8-per-channel/a16/f32", "--calibration-text", &text];
    shardwright(plan).succeeds();
}

#[test]
fn texts_that_cannot_be_drawn_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let other = folder.path().join("other.txt");
    std::fs::write(&other, "nothing of this kind\n").expect("written");
    let refused = |run: Run, words: &str| {
        let (_, stderr) = run.refuses();
        assert!(stderr.contains(words), "{stderr}");
    };
    refused(draw(&other), "was not made from these prompts");
    assert_eq!(std::fs::read_to_string(&other).expect("left alone"), "nothing of this kind\n");
    let fresh = folder.path().join("fresh.txt");
    refused(draw(&fresh).argument("--prompts").argument(folder.path().join("missing.txt")), "missing.txt");
    refused(shardwright(["calibration-text", EMBEDDING_FIXTURE, "-o"]).argument(&fresh), "embed");
    assert!(!fresh.exists());
}
