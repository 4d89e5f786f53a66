//! The soft-cap of the logits, computed in the graph of the head or by the runtime as the plan
//! specifies. Tokens and numbers are the same, and every report names the place.

use serde_json::Value;
use shardwright::tools::ModelTools;
use shardwright::{BundleOptions, Model, OpenOptions};
use shardwright_runtime::Session;
use shardwright_tests::bundles::{Compiled, logits, some_tokens};
use shardwright_tests::checkpoints::TEXT_FIXTURES;
use shardwright_tests::program::{Run, search_path, shardwright};
use shardwright_tests::tree;

/// Gemma 4, whose logits are capped at 30.
const CHECKPOINT: &str = TEXT_FIXTURES[1];
/// Gemma 3, whose logits are not capped.
const UNCAPPED: &str = TEXT_FIXTURES[0];

fn open(place: &str) -> Model {
    let options = OpenOptions::new().search_path(search_path()).threads(2).planner_option("softcap", place);
    options.open(tree::root().join(CHECKPOINT)).unwrap_or_else(|error| panic!("{place}: {error}"))
}

fn generate(what: &str) -> Run {
    shardwright(["run", what, "--prompt", "And it came to pass", "--max-tokens", "16", "--greedy"])
}

fn likeliest(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|one, other| one.1.total_cmp(other.1));
    best.map_or(0, |(token, _)| token as u32)
}

fn near(one: &[f32], other: &[f32]) {
    assert!(!one.is_empty() && one.len() == other.len());
    let size = one.iter().fold(0.0f32, |size, value| size.max(value.abs()));
    for (one, other) in one.iter().zip(other) {
        assert!((one - other).abs() <= 1e-5 * size, "{one} and {other} of at most {size}");
    }
}

fn caps(session: &Session) -> Vec<Option<f32>> {
    session.placement().shards.iter().map(|shard| shard.logits_softcap).collect()
}

#[test]
fn both_ways_give_the_same_tokens_and_logits() {
    let models = ["graph", "runtime"].map(open);
    let [mut graph, mut runtime] = models.each_ref().map(|model| model.chain().session().expect("a session"));
    let prompt = some_tokens(&models[0], 24);
    for session in [&mut graph, &mut runtime] {
        session.append(&prompt).expect("a prompt");
    }
    for _ in 0..32 {
        let [one, other] = [&graph, &runtime].map(|session| session.logits().expect("logits").to_vec());
        near(&one, &other);
        assert!(one.iter().all(|logit| logit.abs() <= 30.0));
        let token = likeliest(&one);
        assert_eq!(likeliest(&other), token);
        for session in [&mut graph, &mut runtime] {
            session.append(&[token]).expect("a step");
        }
    }
    assert!(caps(&graph).iter().all(Option::is_none));
    let (head, others) = caps(&runtime).split_last().map(|(head, others)| (*head, others.to_vec())).unwrap();
    assert_eq!(head, Some(30.0));
    assert!(others.iter().all(Option::is_none));

    // Every scored row is capped, not only the last.
    let [one, other] = [graph, runtime].map(|mut session| {
        session.clear();
        let mut rows = Vec::new();
        let visit = &mut |view: &mut shardwright_runtime::StepView<'_>| {
            rows.extend((0..view.rows()).filter_map(|row| view.logits(row).map(<[f32]>::to_vec)));
        };
        session.score(&prompt, visit).expect("scored");
        rows
    });
    assert_eq!((one.len(), other.len()), (prompt.len(), prompt.len()));
    for (one, other) in one.iter().zip(&other) {
        near(one, other);
    }
}

#[test]
fn a_bundle_runs_as_its_plan_says() {
    let asked = ["--planner-option", "softcap=runtime"];
    let bundle = Compiled::from(CHECKPOINT, asked);
    let path = bundle.path().display().to_string();
    let shards = bundle.variant_json()["chains"][0]["shards"].as_array().expect("shards").clone();
    let caps: Vec<&Value> = shards.iter().map(|shard| &shard["logits_softcap"]).collect();
    let (head, others) = caps.split_last().expect("shards");
    assert_eq!(head.as_f64(), Some(30.0), "{caps:?}");
    assert!(others.iter().all(|cap| cap.is_null()), "{caps:?}");

    let opened = BundleOptions::new().search_path(search_path()).threads(2).open(bundle.path());
    let opened = opened.unwrap_or_else(|error| panic!("{error}"));
    let made = open("runtime");
    let (prompt, further) = (some_tokens(&made, 12), some_tokens(&made, 3));
    assert_eq!(logits(&opened, &prompt, &further), logits(&made, &prompt, &further));
    assert_eq!(generate(&path).succeeds(), generate(CHECKPOINT).succeeds());
    let text = shardwright(["inspect", &path]).succeeds();
    assert!(text.contains("soft-cap 30 of the output of") && text.contains("head: by the runtime"), "{text}");

    let few = ["--rows", "8", "--steps", "2"];
    let verify = |more: &[&str]| {
        shardwright(["verify", CHECKPOINT]).arguments(more).arguments(asked).arguments(few).json()
    };
    for report in [verify(&["--bundle", &path]), verify(&["--formats", "w8-per-channel"])] {
        assert_eq!(report["passed"], true, "{report}");
        assert!(report["boundaries"].to_string().contains("logits before their soft-cap"), "{report}");
    }
    // A bundle is verified against its recorded plan, whatever the planner would choose now.
    let report = shardwright(["verify", CHECKPOINT, "--bundle", &path]).arguments(few).json();
    assert_eq!(report["passed"], true, "{report}");
    assert!(report["boundaries"].to_string().contains("logits before their soft-cap"), "{report}");
}

#[test]
fn the_plan_says_where_and_why_and_what_makes_no_sense_is_refused() {
    let head = |more: &[&str]| -> Value {
        let report = shardwright(["plan", CHECKPOINT]).arguments(more).json();
        report["shards"].as_array().expect("shards").last().expect("a head").clone()
    };
    let reason = |head: &Value| head["reasons"].to_string();
    let chosen = head(&[]);
    assert_eq!(chosen["softcap"], "graph", "{chosen}");
    assert!(reason(&chosen).contains("soft-cap in the graph"), "{chosen}");
    let forced = head(&["--planner-option", "softcap=runtime"]);
    assert_eq!(forced["softcap"], "runtime", "{forced}");
    assert!(reason(&forced).contains("requested"), "{forced}");
    let ops = |head: &Value| head["ops"].as_u64().expect("operations");
    assert_eq!(ops(&forced) + 1, ops(&chosen));
    let bare = shardwright(["plan", UNCAPPED]).json();
    assert!(!bare.to_string().contains("softcap"), "{bare}");
    for (checkpoint, place, words) in [
        (UNCAPPED, "runtime", "the model has none"),
        (CHECKPOINT, "nowhere", "expected automatic, graph or runtime"),
    ] {
        let option = format!("softcap={place}");
        let (_, stderr) = shardwright(["plan", checkpoint, "--planner-option", &option]).refuses();
        assert!(stderr.contains(words), "{stderr}");
    }
}
