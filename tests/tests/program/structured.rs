//! `shardwright run` with a JSON schema, a regular expression or a grammar: answers match it, cut
//! answers are reported, and bad grammars are refused before the model replies.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use shardwright::{ErrorKind, Grammar, OpenOptions};
use shardwright_test_checkpoints::cases;
use shardwright_tests::checkpoints::DEMO_MODEL;
use shardwright_tests::program::{Outcome, Run, search_path, shardwright};
use shardwright_tests::schemas::{Rejected, accepted, rejected};
use shardwright_tests::{skipped, tree};

fn ask(model: &str) -> Run {
    shardwright(["run", model, "--prompt", "What does bug mean?"])
}

/// Writes a file of the test.
fn file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).expect("a file");
    path.display().to_string()
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "meaning": { "type": "string", "maxLength": 30 },
            "kinds": { "type": "array", "items": { "enum": ["insect", "error"] }, "maxItems": 3 },
            "certain": { "type": "boolean" },
        },
        "required": ["meaning", "kinds", "certain"],
        "additionalProperties": false,
        "x-guidance": { "whitespace_flexible": false },
    })
}

/// Checks an answer, whose members are in the order of the schema.
fn assert_matches_schema(answer: &str) {
    let value: Value = serde_json::from_str(answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
    assert!(value["meaning"].as_str().expect("a text").chars().count() <= 30, "{answer}");
    let kinds = value["kinds"].as_array().expect("a list");
    assert!(kinds.len() <= 3 && kinds.iter().all(|kind| kind == "insect" || kind == "error"), "{answer}");
    assert!(value["certain"].is_boolean() && value.as_object().expect("members").len() == 3, "{answer}");
    let places = ["\"meaning\"", "\"kinds\"", "\"certain\""].map(|name| answer.find(name));
    assert!(places.is_sorted(), "{answer}");
}

fn succeeded(run: Run) -> Outcome {
    let outcome = run.outcome();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    outcome
}

#[test]
fn answers_match_a_schema_a_regular_expression_and_a_grammar() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let schema = file(folder.path(), "schema.json", &schema().to_string());
    let lark = "start: \"It is \" kind (\" and \" kind)? \".\"\nkind: \"an insect\" | \"an error\"\n";
    let grammar = file(folder.path(), "answer.lark", lark);
    for sampling in [&["--greedy"][..], &["--temperature", "1.4", "--seed", "3"]] {
        let answer = |option: &str, value: &str| {
            let outcome = succeeded(ask(DEMO_MODEL).arguments(sampling).arguments([option, value]));
            assert!(outcome.stderr.contains("forced by the grammar"), "{}", outcome.stderr);
            assert!(!outcome.stderr.contains("incomplete"), "{}", outcome.stderr);
            outcome.stdout.trim_end_matches('\n').to_owned()
        };
        assert_matches_schema(&answer("--json-schema", &schema));
        let text = answer("--regex", "[A-Z][a-z]{2,9} \\(certainly\\)");
        let name = text.strip_suffix(" (certainly)").expect("the end of the pattern");
        assert!((3..=10).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphabetic()), "{text}");
        let text = answer("--grammar", &grammar);
        let kinds = text.strip_prefix("It is ").and_then(|text| text.strip_suffix('.')).expect("a sentence");
        assert!(kinds.split(" and ").all(|kind| kind == "an insect" || kind == "an error"), "{text}");
    }
    // The number of rows in a step does not change the answer.
    let greedy = |more: &[&str]| {
        succeeded(ask(DEMO_MODEL).arguments(["--greedy", "--json-schema", &*schema]).arguments(more)).stdout
    };
    let plain = greedy(&[]);
    assert_eq!(greedy(&["--planner-option", "speculation=16"]), plain);
}

#[test]
fn json_output_reports_forced_tokens_and_incomplete_answers() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let schema = file(folder.path(), "schema.json", &schema().to_string());
    let done = |more: &[&str]| -> Value {
        let options = ["--greedy", "--format", "json", "--json-schema", &schema];
        let outcome = succeeded(ask(DEMO_MODEL).arguments(options).arguments(more));
        let lines: Vec<Value> =
            outcome.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let done = lines.last().expect("an end").clone();
        let text: String = lines.iter().filter_map(|line| line["text"].as_str()).collect();
        assert_eq!(done["reply"], text);
        assert_eq!(outcome.stderr.contains("incomplete: "), done["statistics"]["incomplete"] == true);
        done
    };
    let whole = done(&[]);
    assert_matches_schema(whole["reply"].as_str().expect("a reply"));
    assert_eq!(whole["done"]["reason"], "grammar-end");
    assert_eq!(whole["statistics"]["incomplete"], false);
    assert!(whole["statistics"]["forced_tokens"].as_u64() > Some(3), "{whole}");
    assert!(whole["statistics"]["repeated_steps"].is_u64(), "{whole}");

    let cut = done(&["-n", "6"]);
    assert_eq!(
        (&cut["done"]["reason"], &cut["statistics"]["incomplete"]),
        (&json!("max-tokens"), &json!(true))
    );
    let [cut, whole] = [&cut, &whole].map(|done| done["reply"].as_str().expect("a reply"));
    assert!(whole.starts_with(cut) && cut.len() < whole.len(), "{cut} {whole}");
    let stopped = done(&["--stop", "kinds"]);
    assert_eq!(
        (&stopped["done"]["reason"], &stopped["statistics"]["incomplete"]),
        (&json!("stop-text"), &json!(true))
    );
    // Without a grammar, no reply is incomplete.
    let free = ask(DEMO_MODEL).arguments(["--greedy", "--format", "json", "-n", "6"]).succeeds();
    let free: Value = serde_json::from_str(free.lines().last().expect("an end")).expect("JSON");
    assert_eq!(free["statistics"]["incomplete"], false);
    assert_eq!(free["statistics"]["forced_tokens"], 0);
}

#[test]
fn each_turn_of_a_chat_matches() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let turns = folder.path().join("turns");
    fs::write(&turns, "What does bug mean?\nAnd cat?\n").expect("a file");
    let chat = shardwright(["run", DEMO_MODEL, "--chat", "--greedy", "--quiet", "--regex", "(yes|no){2}"]);
    let answers = chat.input(&turns).succeeds();
    let answers: Vec<&str> = answers.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(answers.len(), 2, "{answers:?}");
    let words = ["yesyes", "yesno", "noyes", "nono"];
    assert!(answers.iter().all(|answer| words.contains(answer)), "{answers:?}");
}

#[test]
fn bad_grammars_are_refused_with_their_reason() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str, text: &str| file(folder.path(), name, text);
    let contradiction = path("contradiction.json", r#"{"type": "integer", "minimum": 3, "maximum": 2}"#);
    let endless = path(
        "endless.json",
        r##"{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}"##,
    );
    let keyword = path("keyword.json", r#"{"properties": {"a": {"not": {}}}}"#);
    let broken = path("broken.json", "{\"type\": ");
    let twice = path("twice.json", r#"{"type": "null", "type": "null"}"#);
    let lark = path("rules.lark", "start: unknown_rule\n");
    let missing = folder.path().join("missing.json").display().to_string();
    for (option, value, code, says) in [
        ("--json-schema", &*contradiction, 2, &["no reply can match the JSON schema"][..]),
        ("--json-schema", &endless, 2, &["never ends", "let the recursion end"]),
        ("--json-schema", &keyword, 5, &["`not` at `/properties/a/not`", "remove it"]),
        ("--json-schema", &broken, 4, &["not valid JSON", "broken.json"]),
        ("--json-schema", &twice, 4, &["second key `type`"]),
        ("--json-schema", &missing, 3, &["missing.json"]),
        ("--regex", "(a", 2, &["the regular expression is invalid"]),
        ("--regex", "", 2, &["the regular expression is empty"]),
        ("--grammar", &lark, 2, &["unknown_rule"]),
    ] {
        let refused = ask(DEMO_MODEL).arguments([option, value]).outcome();
        assert_eq!(refused.stdout, "", "{option} {value}");
        assert!(refused.stderr.contains("help: "), "{}", refused.stderr);
        ask(DEMO_MODEL).arguments([option, value]).refuses_with(code, says);
    }
    ask(DEMO_MODEL).arguments(["--regex", "a", "--grammar", &lark]).refuses_with(2, &["--grammar"]);

    // Unknown keywords have no effect, which is reported, or refused under `--strict`.
    let unknown = path("unknown.json", r#"{"type": "boolean", "nullable": true}"#);
    let run = || ask(DEMO_MODEL).arguments(["--greedy", "--json-schema", &*unknown]);
    let outcome = succeeded(run());
    assert!(outcome.stderr.contains("no effect: /nullable"), "{}", outcome.stderr);
    assert!(["true\n", "false\n"].contains(&&*outcome.stdout), "{}", outcome.stdout);
    run().argument("--strict").refuses_with(9, &["/nullable"]);
}

/// Returns the folder of a published model, if they were fetched.
fn published() -> Option<PathBuf> {
    let folder = std::env::var_os("SHARDWRIGHT_MODELS").map(PathBuf::from);
    if folder.is_none() {
        skipped("structured output of a published model: `cargo xtask vendor models` fetches them");
    }
    folder.map(|folder| folder.join("smollm2-135m").join("folder"))
}

#[test]
fn a_published_model_answers_in_json() {
    let Some(model) = published() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let schema = file(folder.path(), "schema.json", &schema().to_string());
    for seed in ["1", "2", "3"] {
        let run = ask(&model.display().to_string());
        let run = run.arguments(["--temperature", "1", "--seed", seed, "--json-schema", &*schema]);
        assert_matches_schema(succeeded(run).stdout.trim_end_matches('\n'));
    }
}

/// `cargo xtask bench structured` measures replies to the accepted ones.
#[test]
fn generated_schemas_compile_and_unsupported_keywords_are_named() {
    let options = OpenOptions::new().search_path(search_path()).threads(1);
    let model = options.open(tree::root().join(DEMO_MODEL)).expect("it opens");
    let mut session = model.session().expect("a session");
    for schema in accepted(54, cases(40, 300)) {
        let compiled = session.constrain(Some(&Grammar::json_schema(&schema)));
        compiled.unwrap_or_else(|error| panic!("{schema}: {error}"));
    }
    for Rejected { schema, keyword, pointer } in rejected() {
        let refusal = session.constrain(Some(&Grammar::json_schema(&schema))).expect_err("unsupported");
        assert_eq!(refusal.kind(), ErrorKind::Unsupported, "{schema}: {refusal}");
        let named = format!("`{keyword}` at `{pointer}`");
        assert!(refusal.message().contains(&named) && refusal.help().is_some(), "{schema}: {refusal}");
    }
}
