//! Quantities in reports have three digits in a suitable unit, and nouns in the right number.

use std::fs;

use shardwright_test_checkpoints::cases;
use shardwright_tests::checkpoints::{DEMO_MODEL, EMBEDDING_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::program::shardwright;
use tempfile::TempDir;

/// Returns words that must not be in a report: numbers with too many digits for their unit, decimal
/// megabytes (reports use binary units), and a plural after 1.
fn faults(text: &str) -> Vec<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let bare =
        |word: &str| word.trim_matches(|c: char| !c.is_alphanumeric() && c != '%' && c != '/').to_owned();
    let mut found = Vec::new();
    for pair in words.windows(2) {
        let (number, unit) = (pair[0].trim_start_matches(['(', '~', '[', '≤']), bare(pair[1]));
        let Ok(value) = number.parse::<f64>() else { continue };
        let digits = number.chars().filter(char::is_ascii_digit).collect::<String>();
        let digits = digits.trim_matches('0').len();
        let fault = match unit.as_str() {
            "µs" | "ms" => value >= 1000.0 || digits > 3,
            "s" | "tokens/s" | "tok/s" | "millinats" | "millinat" => digits > 3,
            "MB" | "GB" => true,
            _ => false,
        };
        let plural = ["shards", "millinats", "layers", "operations", "chains", "artefacts", "runs", "tokens"];
        if fault || (number == "1" && plural.contains(&unit.as_str())) {
            found.push(pair.join(" "));
        }
    }
    found
}

#[test]
fn faults_are_found() {
    let text = "9726.5 ms, 213427 µs (8474.6 tokens/s) about 1 millinats; 1 shards of 520.0 MB, 1 layers";
    assert_eq!(faults(text).len(), 7, "{:?}", faults(text));
    let fine = "9.73 s, 213 ms, 8470 tokens/s, 1 millinat, 1 shard, 495.9 MiB, 1230 s, 12 layers, 0.54 ms";
    assert!(faults(fine).is_empty(), "{:?}", faults(fine));
}

/// Returns the visible text of a page.
fn without_markup(page: &str) -> String {
    let mut text = String::new();
    let mut is_inside = false;
    for c in page.chars() {
        match c {
            '<' => is_inside = true,
            '>' => (is_inside, text) = (false, text + " "),
            c if !is_inside => text.push(c),
            _ => {}
        }
    }
    text
}

#[test]
fn reports_of_all_fixtures_are_readable() {
    let folder = TempDir::new().expect("a folder");
    let page = folder.path().join("page.html");
    let chips: [&[&str]; 3] = [&[], &["--soc", "mt6989"], &["--soc", "sm8750"]];
    let check = |checkpoint: &str, text: &str| {
        assert!(faults(text).is_empty(), "{checkpoint}: {:?}\n{text}", faults(text));
    };
    for checkpoint in TEXT_FIXTURES.into_iter().chain([EMBEDDING_FIXTURE, DEMO_MODEL]) {
        // A loss of a random model, which is large, and one of a trained model.
        let is_measured = [TEXT_FIXTURES[0], DEMO_MODEL].contains(&checkpoint) || cases(false, true);
        let measure: &[&str] = if is_measured { &[] } else { &["--no-measure"] };
        for chip in &chips[..cases(2, 3)] {
            let plan = || shardwright(["plan", checkpoint]).arguments(*chip).arguments(measure);
            check(checkpoint, &plan().argument("--html").argument(&page).succeeds());
            let html = fs::read_to_string(&page).expect("a page");
            let figures = html.split("<main>").nth(1).and_then(|main| main.split("<h2").next());
            check(checkpoint, &without_markup(figures.expect("figures")));
            if is_measured {
                // A profile's notes are quotations.
                let text = plan().argument("-v").succeeds();
                let (own, _) = text.split_once("\nreasons").expect("reasons");
                let shown: Vec<&str> = own.lines().filter(|line| !line.starts_with("  ")).collect();
                check(checkpoint, &shown.join("\n"));
            }
        }
    }
    let said = shardwright(["run", DEMO_MODEL, "--prompt", "The", "--max-tokens", "1"]).outcome();
    assert!(said.stderr.contains("tokens/s") && said.stderr.contains(" 1 token,"), "{}", said.stderr);
    assert!(faults(&said.stderr).is_empty(), "{:?}", faults(&said.stderr));
}
