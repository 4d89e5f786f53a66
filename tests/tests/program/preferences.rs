//! What a plan optimises when goals bound bytes and times, and goals in a profile.

use std::fs;

use serde_json::{Value, json};
use shardwright::OpenOptions;
use shardwright_build::LossReport;
use shardwright_test_checkpoints::Spec;
use shardwright_tests::checkpoints::{DEMO_MODEL, TEXT_FIXTURES};
use shardwright_tests::program::{self, Run, shardwright};
use shardwright_tests::tree;

/// Prepares a plan of the demo model.
fn plan(more: &[&str]) -> Run {
    shardwright(["plan", "--no-measure", DEMO_MODEL]).arguments(more)
}

/// Returns the weight formats of the layers of a plan.
fn weights(plan: &Value) -> Vec<String> {
    let shards = plan["shards"].as_array().expect("shards").iter();
    let layers = shards.flat_map(|shard| shard["by_layer"].as_array().expect("layers"));
    let formats = layers.map(|layer| layer["formats"].as_str().expect("formats"));
    formats.map(|formats| formats.split('/').next().unwrap_or_default().to_owned()).collect()
}

/// Returns the bytes of all artefacts and tables, and the loss.
fn size_and_loss(plan: &Value) -> (u64, u64) {
    let totals = &plan["totals"];
    let loss = &totals["loss"];
    let micronats = if loss["known"] == "none" { Some(0) } else { loss["micronats"].as_u64() };
    let bytes = |of: &Value| of.as_u64().expect("bytes");
    (bytes(&totals["artefacts"]["bytes"]) + bytes(&totals["table_bytes"]), micronats.expect("a loss"))
}

#[test]
fn a_size_on_the_cpu_is_filled_with_what_loses_least() {
    let formats = |plan: &Value| -> Vec<String> {
        let tables = plan["tables"].as_array().expect("tables").iter();
        tables.map(|table| table["format"].as_str().expect("a format").to_owned()).collect()
    };
    let large = plan(&["--size", "20MB"]).json();
    assert_eq!((formats(&large), size_and_loss(&large).1), (vec!["bf16".to_owned(); 2], 0));
    assert!(size_and_loss(&large).0 <= 20_000_000, "{large}");
    assert!(weights(&large).iter().all(|format| format == "bf16"), "{large}");
    let small = plan(&["--size", "6MB"]).json();
    let (bytes, loss) = size_and_loss(&small);
    assert!(bytes <= 6_000_000 && loss > 0, "{bytes} bytes, {loss}");
    assert_eq!(small["totals"]["loss"]["known"], "expected", "{small}");
    // Quantising a table with half a layer's bytes loses less than quantising a layer.
    assert_eq!(formats(&small), ["w8-per-channel", "w4-block32"]);
    for format in ["w8-block32", "w4-block32"] {
        assert!(weights(&small).iter().any(|own| own == format), "{format}: {small}");
    }
    assert!(small["shards"].to_string().contains("the other layers are in other formats"), "{small}");
    assert!(small["reasons"].to_string().contains("table per-layer-embedding in w4-block32"), "{small}");
    // Without a goal no weight is rounded.
    assert_eq!(size_and_loss(&plan(&[]).json()).1, 0);
    // If tables that the user fixed are too wide, the error suggests the formats they need.
    let wide = ["--size", "6MB", "--table", "embedding=bf16", "--table", "per-layer=bf16"];
    let (_, stderr) = plan(&wide).refuses();
    for word in ["--table embedding=w8-per-channel", "--table per-layer=w4-block32"] {
        assert!(stderr.contains(word), "no `{word}`: {stderr}");
    }
    // Too small a size is refused with the smallest one that is enough.
    plan(&["--size", "3MB"]).refuses_with(7, &["the nearest that a plan meets is 5.0 MiB"]);
    // The mixture of formats runs.
    let text =
        shardwright(["run", DEMO_MODEL, "--size", "6MB", "--prompt", "The old house", "--max-tokens", "8"]);
    assert!(!text.arguments(["--rounding", "nearest"]).succeeds().trim().is_empty());
    // The planner does not change tables that the user fixed.
    let named = plan(&["--size", "9MB", "--table", "embedding=bf16"]).json();
    assert_eq!(named["tables"][0]["format"], "bf16", "{named}");
}

/// Weights stored as integers in blocks are multiplied with rounded activations, and a notice tells
/// how to keep floats.
#[test]
fn stored_blocks_of_integers_run_with_rounded_activations() {
    let plan = |more: &[&str]| {
        let plan = shardwright(["plan", "--no-measure", "tests/fixtures/quantised/gguf_q8_0"]);
        let plan = plan.arguments(more).json();
        let shards = plan["shards"].as_array().expect("shards").iter();
        let formats: Vec<_> = shards.map(|shard| shard["formats"].as_str().expect("formats")).collect();
        (formats.join(", "), plan["notices"].to_string())
    };
    let (formats, notices) = plan(&[]);
    assert_eq!(formats, "w8-block32/a8-dynamic-block32/f16");
    assert!(notices.contains("`--formats stored` keeps floats"), "{notices}");
    for more in [["--formats", "stored"], ["--prefer", "quality"]] {
        let (formats, notices) = plan(&more);
        assert!(formats == "w8-block32/f32/f32" && !notices.contains("llama.cpp"), "{formats}: {notices}");
    }
}

/// Losses measured for one goal are used for every later one, tables included.
#[test]
fn a_size_is_filled_by_what_an_earlier_goal_had_measured() {
    let cache = tempfile::tempdir().expect("a temporary folder");
    let checkpoint = tree::root().join(TEXT_FIXTURES[1]);
    let options = || {
        let options = OpenOptions::new().search_path(program::search_path()).cache_directory(cache.path());
        let formats = ["stored", "w8-per-channel"].map(|formats| formats.parse().expect("formats"));
        formats.into_iter().fold(options, OpenOptions::formats)
    };
    let plan = |options: OpenOptions| options.plan(&checkpoint).expect("a plan").report.totals;
    let whole = plan(options().size(1 << 40));
    assert_eq!(whole.loss, LossReport::None);
    let size = (whole.artefacts.bytes + whole.table_bytes) * 2 / 3;
    let expected = plan(options().size(size)).loss;
    assert!(matches!(expected, LossReport::Expected { .. }), "{expected:?}");
    plan(options().quality(1000));
    let measured = plan(options().size(size)).loss;
    assert!(matches!(measured, LossReport::Measured { .. }), "{measured:?}");
}

#[test]
fn without_a_goal_a_plan_for_a_chip_is_within_what_is_usual() {
    let plan = |more: &[&str]| {
        let run = plan(&["--soc", "sm8850", "--on", "cpu"]).environment("SHARDWRIGHT_QNN_LIB", "");
        run.arguments(more).json()
    };
    let named =
        |plan: &Value| weights(plan).iter().filter(|own| own.starts_with("w4-block32-stepped")).count();
    let usual = plan(&[]);
    let (_, loss) = size_and_loss(&usual);
    assert!((100_000..=150_000).contains(&loss), "{loss}");
    let strict = plan(&["--planner-option", "usual-quality=100"]);
    let (_, loss) = size_and_loss(&strict);
    assert!((60_000..=100_000).contains(&loss), "{loss}");
    assert!(strict.to_string().contains("loss ≤ 100 millinats"), "{strict}");
    let (all, few) = (weights(&strict).len(), named(&strict));
    assert!(few < all && few > 0, "{few} of {all}: {:?}", weights(&strict));
    // Formats and goals of the user are respected.
    let wide = plan(&["--planner-option", "usual-quality=1000"]);
    assert_eq!(named(&wide), weights(&wide).len(), "{wide}");
    let formats = ["--formats", "w4-block32-stepped[head=w8-per-channel]/a16/a8"];
    let asked = plan(&formats);
    assert!(
        named(&asked) == weights(&asked).len() && !asked.to_string().contains("usual-quality"),
        "{asked}"
    );
    let sized = plan(&["--size", "20MB"]);
    let (bytes, loss) = size_and_loss(&sized);
    assert!(bytes <= 20_000_000 && loss <= 150_000, "{bytes} {loss}");
    assert!(sized.to_string().contains("loss ≤ 150 millinats"), "{sized}");
}

/// Plans Qwen 3 0.6B from its configuration alone, for Snapdragon 8 Elite.
fn qwen(folder: &std::path::Path, more: &[&str]) -> Run {
    let configuration = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": false,
        "bos_token_id": 151_643, "eos_token_id": 151_645, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40_960,
        "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6, "rope_theta": 1_000_000, "tie_word_embeddings": true,
        "torch_dtype": "bfloat16", "vocab_size": 151_936,
    });
    fs::write(folder.join("config.json"), configuration.to_string()).expect("written");
    let run = shardwright(["plan", "--no-measure", "--soc", "sm8750", "--context", "2048"]);
    run.environment("SHARDWRIGHT_QNN_LIB", "").argument(folder).arguments(more)
}

#[test]
fn layers_have_weights_that_only_naming_offers() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let layers = |option: &str| weights(&qwen(folder.path(), &["--planner-option", option]).json());
    let named = layers("weights.decoder.2-6=w4-per-channel");
    let narrow = |own: &&String| own.starts_with("w4-per-channel[head=");
    assert!(named.iter().filter(narrow).count() == 4, "{named:?}");
    let role = layers("weights.decoder.0-2.mlp-output=w8-per-channel");
    assert!(role.iter().filter(|own| own.starts_with("w8-per-channel")).count() >= 2, "{role:?}");
    qwen(folder.path(), &["--planner-option", "weights.decoder.2-6=w3-per-channel"])
        .refuses_with(7, &["offered there: ", "w8-per-channel", "use `--formats` to offer others"]);
}

#[test]
fn a_size_on_a_chip_keeps_the_usual_loss_or_says_what_is_lost() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let plan = |size: &str| qwen(folder.path(), &["--size", size]).json();
    let kept = plan("620MB");
    let (bytes, loss) = size_and_loss(&kept);
    assert!(bytes <= 620_000_000 && loss <= 150_000, "{bytes} bytes, {loss} millionths");
    assert!(kept["reasons"].to_string().contains("loss ≤ 150 millinats"), "{}", kept["reasons"]);
    // No formats lose so little in so few bytes.
    let tight = plan("560MB");
    let (bytes, loss) = size_and_loss(&tight);
    assert!(bytes <= 560_000_000 && loss > 150_000, "{bytes} bytes, {loss} millionths");
    let reasons = tight["reasons"].as_array().expect("reasons").iter();
    let mut usual = reasons.filter(|reason| reason["choice"] == "loss ≤ 150 millinats");
    let because = usual.next().expect("a reason")["because"].to_string();
    let figure = format!("is {} millinats", (loss + 500) / 1000);
    assert!(because.contains("not met: ") && because.contains(&figure), "{figure}: {because}");
    let said =
        |plan: &Value| plan["notices"].to_string().contains("more than the 150 millinats that are usual");
    assert!(said(&tight) && !said(&kept), "{}", tight["notices"]);
}

/// The search for tables and layers within a size needs the most fuel.
#[test]
fn a_size_for_a_deep_model_is_planned_within_the_fuel() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = Spec::e2b().config().to_string();
    fs::write(folder.path().join("config.json"), config).expect("written");
    for (soc, planner) in [("sm8850", "qualcomm"), ("mt6989", "mediatek")] {
        // The estimates of a vendor's compiler would need minutes.
        let run = shardwright(["plan", "--no-measure"])
            .argument(folder.path())
            .environment("SHARDWRIGHT_QNN_LIB", "/nowhere");
        let plan = run.arguments(["--soc", soc, "--context", "4096", "--size", "4GB"]).json();
        assert_eq!(plan["planner"]["name"], planner, "{}", plan["notices"]);
        let (bytes, loss) = size_and_loss(&plan);
        assert!(bytes <= 4_000_000_000 && loss <= 150_000, "{soc}: {bytes} bytes, {loss} millionths");
    }
}

/// A public tool was refused this model at the count of operations of its own lowering. By the
/// count of the shim, the model is within the limit of that report.
#[test]
fn a_doubtful_limit_on_operations_is_hedged() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("config.json"), Spec::e2b().config().to_string()).expect("written");
    let plan = |options: &[&str]| {
        let run = shardwright(["plan", "--no-measure", "--soc", "mt6989", "--context", "4096"]);
        run.arguments(options).argument(folder.path()).json()
    };
    let hedges = |plan: &Value| {
        let choices = plan["reasons"].as_array().expect("reasons").iter().map(|reason| &reason["choice"]);
        choices.filter_map(Value::as_str).filter(|choice| choice.contains("a hedge with ops ≤")).count()
    };
    for (options, expected) in [(&[][..], 1), (&["--planner-option", "hedge=off"][..], 0)] {
        let plan = plan(options);
        assert_eq!(plan["planner"]["name"], "mediatek", "{}", plan["notices"]);
        assert_eq!((plan["shards"].as_array().map(Vec::len), hedges(&plan)), (Some(1), expected), "{plan}");
    }
}

#[test]
fn a_goal_on_memory_that_a_shorter_context_keeps_says_so() {
    let plan = |context: &str| {
        let formats = ["--formats", "w8-per-channel/a8-dynamic/f16", "--context", context];
        // Without this option, the planner would drop speculation before it shortens the context.
        plan(&formats).arguments(["--planner-option", "speculation=none"])
    };
    let totals = plan("512").json()["totals"].clone();
    let bytes = |of: &str| totals[of]["bytes"].as_u64().or(totals[of].as_u64()).expect("bytes");
    let memory = (bytes("artefacts") + bytes("state_bytes")).to_string();
    plan("512").arguments(["--memory", &memory]).succeeds();
    plan("1024").arguments(["--memory", &memory]).refuses_with(7, &["`--context 512` meets the goal"]);
    let stderr = plan("1024").arguments(["--memory", "1000"]).refuses_with(7, &[]);
    assert!(!stderr.contains("--context"), "{stderr}");
}

#[test]
fn speed_may_be_preferred_to_quality() {
    let plan = |prefer: &str| plan(&["--size", "7MB", "--prefer", prefer]).json();
    let (speed, quality) = (plan("speed"), plan("quality"));
    assert!(size_and_loss(&quality).1 <= size_and_loss(&speed).1, "{quality} {speed}");
    assert!(size_and_loss(&speed).0 <= 7_000_000, "{speed}");
}

#[test]
fn a_profile_states_goals_and_a_planner() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = fs::read(tree::root().join("plugins/profiles/mt6989.json")).expect("a profile");
    let mut profile: Value = serde_json::from_slice(&text).expect("JSON");
    (profile["name"], profile["aliases"]) = (json!("stated"), json!([]));
    let mut write = |planner: &str, goals: Option<Value>| {
        profile["planner"] = json!(planner);
        let fields = profile.as_object_mut().expect("an object");
        match goals {
            Some(goals) => fields.insert("goals".to_owned(), goals),
            None => fields.remove("goals"),
        };
        fs::write(folder.path().join("stated.json"), profile.to_string()).expect("written");
    };
    let plan = || plan(&["--soc", "stated", "--profiles"]).argument(folder.path());

    write("even", Some(json!({ "memory-bytes": 50_000_000 })));
    let stated = plan().json();
    assert_eq!(stated["planner"]["name"], "even", "{stated}");
    let goal = |plan: &Value| {
        let goals = plan["goals"].as_array().expect("goals").iter();
        goals.filter(|goal| goal["goal"] == "memory").map(|goal| goal["asked"].clone()).next()
    };
    assert_eq!(goal(&stated), Some(json!(50_000_000)), "{stated}");
    let said = stated["notices"].to_string();
    assert!(said.contains("planner even, memory 50000000 bytes"), "{said}");
    // A user's goals and planner override the profile's.
    let own = plan().arguments(["--memory", "60MB", "--planner", "generic"]).json();
    assert_eq!((goal(&own), &own["planner"]["name"]), (Some(json!(60_000_000)), &json!("generic")), "{own}");
    let own = plan().arguments(["--size", "60MB"]).json();
    assert_eq!(goal(&own), None, "a goal of the user's stands for all of the profile's: {own}");

    // A planner that cannot be used is replaced, and one notice reports that. Under `--strict` it
    // is an error.
    let planners = tempfile::tempdir().expect("a temporary folder");
    fs::write(planners.path().join("damaged.pack"), b"a planner").expect("written");
    let even = program::folder().join("planners/even.wasm");
    fs::copy(even, planners.path().join("renamed.wasm")).expect("copied");
    for (name, code, says) in [
        ("nowhere", 3, "planner `nowhere`: not found in the planner directories"),
        ("damaged", 4, "not a planner pack"),
        ("renamed", 6, "contains planner `even`, not `renamed`"),
    ] {
        write(name, None);
        let plan = || plan().argument("--planners").argument(planners.path());
        let replaced = plan().json();
        assert_eq!(replaced["planner"]["name"], "generic", "{replaced}");
        let notices = replaced["notices"].as_array().expect("notices").iter();
        let notices: Vec<&str> = notices.filter_map(|notice| notice["text"].as_str()).collect();
        let named: Vec<&str> = notices.iter().copied().filter(|text| text.contains(name)).collect();
        let [text] = named[..] else { panic!("not one notice about {name}: {notices:?}") };
        assert!(text.contains(says) && text.ends_with("; the built-in planner took over"), "{text}");
        let stderr = plan().argument("--strict").refuses_with(code, &[says]);
        let is_missing = stderr.contains("`--planner generic` uses the built-in planner");
        assert!(is_missing || name != "nowhere", "{stderr}");
    }

    // A path is refused: a profile from elsewhere must not name a file of this machine.
    write("../planner.wasm", None);
    let (_, stderr) = plan().refuses();
    assert!(stderr.contains("got `../planner.wasm`") && stderr.contains("stated.json"), "{stderr}");
}

/// Returns the prefill entry points of a plan, and its reason for them.
fn prefills(plan: &Value) -> (Vec<String>, String) {
    let entries = plan["shards"][0]["entries"].as_array().expect("entries").iter();
    let names = entries.map(|entry| entry["entry"].as_str().expect("a name").to_owned());
    let reasons = plan["reasons"].as_array().expect("reasons").iter();
    let mut said = reasons.filter(|reason| reason["cause"] == json!({ "goal": "usual-prompt" }));
    let because = said.next().map_or("", |reason| reason["because"].as_str().expect("text"));
    (names.filter(|name| name.starts_with("prefill")).collect(), because.to_owned())
}

#[test]
fn the_prefills_of_a_chip_suit_the_usual_prompts() {
    let chip = ["--soc", "mt6993", "--on", "cpu", "--usual-prompt"];
    let on_chip = |prompts: &str| plan(&chip).argument(prompts).json();
    assert_eq!(prefills(&on_chip("10")).0, ["prefill_16@1024"]);
    let short = on_chip("10:20,400");
    let (names, because) = prefills(&short);
    assert!(names.len() > 1 && names.contains(&"prefill_16@1024".to_owned()), "{names:?}");
    assert!(because.contains("with prefill_256@1024 alone"), "{because}");
    assert_eq!(short["forecast"]["speed"]["prompt_tokens"], 29, "the mean: {short}");
    // A CPU computes only the rows that are filled, whatever the size of an entry point.
    let cpu = plan(&["--usual-prompt", "10:20,400"]).json();
    assert_eq!(prefills(&cpu), (vec!["prefill_128@1024".to_owned()], String::new()));
    // The choice of prefill entry points does not change the answer.
    let text = "The old house stood at the end of a long road, and nobody had lived there for years.";
    let run = |prompts: &str| {
        let run = shardwright(["run", DEMO_MODEL]).arguments(chip).argument(prompts);
        run.arguments(["--greedy", "--max-tokens", "12", "--prompt", text]).succeeds()
    };
    assert_eq!(run("10:20,400"), run("400"));
    let many = vec!["9"; 65].join(",");
    let (_, stderr) = plan(&["--usual-prompt", &many]).refuses();
    assert!(stderr.contains("expected at most 64") && stderr.contains("similar lengths"), "{stderr}");
}
