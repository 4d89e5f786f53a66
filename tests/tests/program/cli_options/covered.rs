//! A test for every option of every command.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use shardwright_tests::checkpoints::DEMO_MODEL;
use shardwright_tests::program::shardwright;
use shardwright_tests::tree;

use super::{help_of, options_of};
use crate::trust::commands::listed;

/// A file, then its tests with the options that they use. There is a test for each option. An
/// option without a command means the same in every command that has it. Each test has a check that
/// would fail if the option were ignored.
const COVERED: &str = "
tests/tests/program/calibration_text.rs
a_model_s_own_text_is_drawn_once_whenever_it_was_killed_and_calibrates: --tokens, --longest
a_model_s_own_text_is_drawn_once_whenever_it_was_killed_and_calibrates: calibration-text --seed
a_model_s_own_text_is_drawn_once_whenever_it_was_killed_and_calibrates: --calibration-text
texts_that_cannot_be_drawn_are_refused: --prompts
tests/tests/program/cli_bench.rs
a_bench_tells_speeds_phases_memory_and_the_plan: --prompt-tokens, --generated-tokens, --repetitions
a_bench_tells_speeds_phases_memory_and_the_plan: --depth, --probe, --probe-mebibytes
a_bundle_runs_by_the_plan_of_its_checkpoint: --all-logits, bench --text
what_cannot_be_measured_is_refused: --first-tokens
what_was_measured_is_kept_and_told: --flag, --verbose
tests/tests/program/cli_bundle.rs
a_bundle_embeds_what_its_checkpoint_embeds: --dimensions
a_dry_run_says_what_each_chip_would_get_and_makes_nothing: --dry-run
the_demo_model_answers_from_its_bundle_and_says_where: --chat, --stop
inspect_knows_everything_that_is_ours: --output, --verify
what_is_of_this_machine_is_an_argument_of_a_bundle_too: --isolation, --threads
tests/tests/program/cli_hostile.rs
what_never_ends_is_read_to_its_cap: --prompt-name
tests/tests/program/cli_lora.rs
adapters_change_replies_and_bundles_record_them: --lora
every_command_that_reads_weights_merges_adapters: sensitivity --lora
tests/tests/program/cli_options.rs
an_option_is_refused_where_it_says_nothing: --clip-lengths, --picture-sizes, --table, --towers
a_flag_of_a_profile_that_the_shim_does_not_know_is_a_fallback: --without-flag
effort_options_of_a_generating_model_are_refused_for_an_embedding_one: --all
tests/tests/program/cli_options/covered.rs
goals_for_answers_reach_the_planner: --first-token, --usual-answer
the_memory_of_the_device_decides_whether_a_plan_fits: --device-memory
sampling_options_change_the_reply: --min-p, --repetition-penalty, --temperature, --top-k, --top-p
sampling_options_change_the_reply: run --seed
help_version_and_completions_are_printed: --help, --version
tests/tests/program/cli_run.rs
pictures_and_sounds_stand_before_the_prompt: --image, --audio, --soft-tokens, --tower-formats
a_turn_that_spells_out_control_tokens_forges_none: --control-tokens-in-text
models_with_a_template_chat_unless_they_are_told_not_to: --raw, --system
thoughts_are_shown_apart_from_the_answer: --format, --thinking, --quiet
the_demo_answers_on_standard_output_alone: --prompt, run --greedy
a_memory_goal_is_kept_or_refused_with_the_least: --memory
a_quality_to_keep_decides_between_formats: --formats, --quality
every_command_reports_fields_without_effect_and_rejects_them_under_strict: show --strict
every_command_reports_fields_without_effect_and_rejects_them_under_strict: inspect --strict
every_command_reports_fields_without_effect_and_rejects_them_under_strict: sensitivity --strict
tests/tests/program/cli_serve.rs
models_have_names_and_share_limits_of_the_command: --port, --open-requests, --prefix-cache
models_have_names_and_share_limits_of_the_command: serve --memory-budget
clients_are_admitted_as_the_command_says: --address, --api-key, --host-name, --no-auth
a_signal_lets_open_requests_end_within_the_limit: --drain
chat_is_run_with_a_conversation: chat --greedy, chat --seed
tests/tests/program/cli_saved.rs
a_saved_conversation_continues: --restore, --save
tests/tests/program/cli_tools.rs
calls_are_lines_of_json_and_choices_force_them: --tools, --tool-choice
tests/tests/program/cli_verify.rs
bounds_decide_and_are_named: --threshold
how_much_is_run_can_be_said: --rows, --steps, verify --greedy
some_evaluation_rows_are_compared_with_the_reference: --evaluation
goldens_of_another_model_are_a_difference_not_a_failure_to_compare: --golden
verify_finds_the_layer_it_broke_itself: --self-test
a_bundles_own_artefacts_are_proved_and_the_proof_is_kept_in_it: --bundle, --store, --limit
tests/tests/program/drafts.rs
a_reply_with_drafts_is_the_reply_without: --draft
a_bench_shows_a_reply_with_drafts_beside_one_without: --draft-prompt
a_plan_rests_on_conversations_like_the_usual_ones: --usual-text
tests/tests/program/howto_javascript.rs
a_policy_in_javascript_asks_the_built_in_solver: --solver
tests/tests/program/howto_shim.rs
a_shim_begun_in_rust_runs_what_it_takes: --language, --within, --shims
tests/tests/program/howto_soc_and_planner.rs
a_profile_dropped_into_a_folder_is_a_chip: --profiles, --soc
a_planner_dropped_into_a_folder_plans: --planner, --planners, --planner-option, --strict
a_recorded_request_can_be_replayed_on_a_planner: --write-request
a_planner_that_was_begun_outside_plans_and_is_packed: --target-dir, planner pack --key, --trust
tests/tests/program/hub.rs
a_killed_pull_is_continued_and_its_model_runs_by_its_id_without_a_network: --cache
refusals_of_the_hub_reach_the_user_and_tokens_do_not: --file, --hub, --revision
tests/tests/program/just_in_time.rs
a_chain_compiled_here_is_kept_for_the_next_start: --checkpoint
tests/tests/program/opening.rs
a_chain_beyond_the_budget_is_passed_over_before_it_is_read: --memory-budget, --max-tokens
tests/tests/program/packed.rs
a_packed_bundle_answers_as_its_directory_does: --on
tests/tests/program/perplexity.rs
a_bundle_is_measured_as_the_checkpoint_that_it_was_compiled_from: --against, --chunks, --context
a_bundle_is_measured_as_the_checkpoint_that_it_was_compiled_from: --stride, --window
a_bundle_is_measured_as_the_checkpoint_that_it_was_compiled_from: perplexity --text
tests/tests/program/plan_page.rs
a_page_is_written_beside_the_usual_output: --html
tests/tests/program/preferences.rs
a_size_on_the_cpu_is_filled_with_what_loses_least: --size
speed_may_be_preferred_to_quality: --prefer
the_prefills_of_a_chip_suit_the_usual_prompts: --usual-prompt
tests/tests/program/repair.rs
where_no_plan_verifies_the_reason_is_given_and_no_bundle_is_left: --repair
an_operation_that_overflows_is_found_and_raised_alone: --compilations
measured_times_reach_the_planner: --tokens-per-second
tests/tests/program/rounding.rs
plans_are_run_and_lose_less_by_the_usual_rounding: --rounding, --measure, --no-measure
tests/tests/program/sensitivity.rs
plans_rest_on_what_is_measured: sensitivity --minutes, sensitivity --text
tests/tests/program/structured.rs
answers_match_a_schema_a_regular_expression_and_a_grammar: --json-schema, --regex, --grammar
tests/tests/program/trust.rs
what_is_required_is_signed_or_refused_and_a_person_sees_why: --expect, --signatures, --signed-as
what_is_required_is_signed_or_refused_and_a_person_sees_why: pack --key, pack --release
what_is_required_is_signed_or_refused_and_a_person_sees_why: trust sign --key, trust sign --name
what_is_required_is_signed_or_refused_and_a_person_sees_why: trust sign --release
a_withdrawn_release_a_revoked_key_and_an_older_list_are_refused: --least, --list, --revocations
a_withdrawn_release_a_revoked_key_and_an_older_list_are_refused: --revoke, --sequence
a_withdrawn_release_a_revoked_key_and_an_older_list_are_refused: trust revoke --key
tests/tests/program/tune.rs
on_a_simulator_times_count_for_the_simulator_alone: tune --minutes
tests/vendors/tests/vendors/delivery.rs
a_phone_for_development_gets_what_it_needs: --adb
a_hub_gets_a_file_for_each_chip_and_a_card: --hf, --licence, --base-model
groups_are_the_chips_as_android_names_them: --ai-pack, --app-size, --pack-size, --delivery
groups_are_the_chips_as_android_names_them: pack --name
tests/vendors/tests/vendors/jobs.rs
chips_are_compiled_for_at_once_unless_memory_or_their_compiler_forbids_it: --jobs, --jobs-memory
tests/vendors/tests/vendors/variants.rs
a_machine_elsewhere_is_asked_about_by_what_its_doctor_wrote: --device, --report
the_demo_model_for_two_vendors_is_one_bundle: --reuse
";

/// Returns the file and the name of each test, and its options.
fn tests() -> Vec<(&'static str, &'static str, Vec<&'static str>)> {
    let (mut file, mut found) = ("", Vec::new());
    for line in COVERED.lines().filter(|line| !line.is_empty()) {
        match line.split_once(": ") {
            Some((test, options)) => found.push((file, test, options.split(", ").collect())),
            None => file = line,
        }
    }
    found
}

/// Returns the short form of an option in the help of a command: `-n` of `--max-tokens`.
fn short(command: &str, option: &str) -> Option<String> {
    let help = help_of(command);
    let line = help.lines().find(|line| line.contains(&format!(", {option} ")))?;
    Some(line.trim_start().split(',').next()?.to_owned())
}

#[test]
fn every_option_has_a_test() {
    let mut commands = Vec::new();
    listed(&[], &mut commands);
    let tests = tests();
    let covered: BTreeSet<&str> = tests.iter().flat_map(|(.., options)| options).copied().collect();
    let (mut used, mut missing) = (BTreeSet::new(), Vec::new());
    let mut spelled = BTreeSet::new();
    for command in &commands {
        for option in options_of(command) {
            let own = format!("{command} {option}");
            match covered.get(&*own).or_else(|| covered.get(&*option)) {
                Some(key) => {
                    used.insert(*key);
                    spelled.insert((*key, command.clone()));
                }
                None => missing.push(own),
            }
        }
    }
    assert!(missing.is_empty(), "options without a test: {missing:?}");
    assert!(used == covered, "no such options: {:?}", covered.difference(&used));

    for (file, test, options) in &tests {
        let text = tree::read(Path::new(file));
        let before = text.split(&format!("\nfn {test}() {{\n")).next().filter(|before| *before != text);
        let before = before.unwrap_or_else(|| panic!("no test {test} in {file}"));
        let attributes = before.rsplit("\n\n").next().unwrap_or_default();
        assert!(attributes.contains("#[test]"), "{test} in {file} is not a test");
        for key in options {
            let option = key.rsplit(' ').next().unwrap_or(key);
            let written = |name: &str| text.contains(&format!("\"{name}\""));
            let has_short = || {
                let command = spelled.iter().find(|(spelled, _)| spelled == key);
                let short = command.and_then(|(_, command)| short(command, option));
                short.is_some_and(|short| written(&short))
            };
            assert!(written(option) || has_short(), "{file} does not use {option}");
        }
    }
}

/// Whether an option has an effect on the plan is seen in the request or in the refusal.
#[test]
fn goals_for_answers_reach_the_planner() {
    let plan = |more: &[&str]| shardwright(["plan", DEMO_MODEL, "--no-measure"]).arguments(more);
    let missed = ["the goal for the time to the first token is 1 µs"];
    plan(&["--first-token", "1us"]).refuses_with(7, &missed);
    let met = plan(&["--first-token", "500s"]).json();
    let goals = met["goals"].as_array().expect("goals");
    let goal = goals.iter().find(|goal| goal["goal"] == "first-token").expect("the goal");
    assert_eq!((&goal["asked"], &goal["verdict"]), (&500_000_000.into(), &"met".into()), "{goal}");

    let folder = tempfile::tempdir().expect("a temporary folder");
    let request = |name: &str, more: &[&str]| {
        let path = folder.path().join(name);
        plan(more).argument("--write-request").argument(&path).succeeds();
        std::fs::read(&path).expect("a request")
    };
    let usual = request("usual", &[]);
    assert!(usual == request("again", &[]), "equal requests");
    assert!(usual != request("answer", &["--usual-answer", "64"]), "the request has the length");
}

#[test]
fn the_memory_of_the_device_decides_whether_a_plan_fits() {
    let plan = |soc: &str, more: &[&str]| {
        shardwright(["plan", "--no-measure", DEMO_MODEL, "--soc", soc]).arguments(more)
    };
    let verdict = |soc: &str, more: &[&str]| plan(soc, more).json()["forecast"]["verdict"].clone();
    let large = verdict("mt6989", &["--device-memory", "12GiB"]);
    assert_eq!(large["fits"], "whole", "{large}");
    // An app can use a part of the memory.
    assert!(large["device_bytes"].as_u64().is_some_and(|bytes| bytes > 0 && bytes < 12 << 30), "{large}");
    assert_eq!(verdict("mt6989", &["--device-memory", "8MiB"])["fits"], "no");
    let text = plan("mt6989", &["--device-memory", "8MiB"]).succeeds();
    assert!(text.contains("\ndoes not fit mt6989: decode needs "), "{text}");
    // A goal for memory bounds artefacts and KV cache. The device also needs buffers and logits.
    let formats = ["--formats", "w8-per-channel/a16-symmetric/a16"];
    let totals = plan("mt6989", &formats).json()["totals"].clone();
    let bytes = |total: &Value| total.as_u64().expect("bytes");
    let goal = (bytes(&totals["artefacts"]["bytes"]) + bytes(&totals["state_bytes"])).to_string();
    let bounded = || plan("mt6989", &formats).arguments(["--memory", &goal]);
    let held = bounded().json()["forecast"]["verdict"].clone();
    assert!(held["fits"] == "whole" && held["held_bytes"].as_u64() > goal.parse().ok(), "{held}");
    let text = bounded().succeeds().split_whitespace().collect::<Vec<_>>().join(" ");
    let cache = "artefacts and KV cache";
    for words in ["fits mt6989: decode needs ", &format!("is for {cache} alone"), &format!(" of {cache}")] {
        assert!(text.contains(words) && !text.contains("does not fit"), "no `{words}` in {text}");
    }
    // The profile for any machine states no memory.
    let unknown = verdict("generic", &[]);
    assert_eq!((&unknown["fits"], &unknown["device_bytes"]), (&"unknown".into(), &Value::Null));
    let text = plan("generic", &[]).succeeds();
    assert!(text.contains("memory unknown for this chip"), "{text}");
}

/// Goals for times are judged by the interval of the prediction.
#[test]
fn an_unlikely_goal_is_a_fallback_and_refused_if_strict() {
    let plan = |more: &[&str]| {
        let run = shardwright(["plan", "--no-measure", DEMO_MODEL, "--soc", "mt6989"]);
        run.arguments(["--planner-option", "fallbacks=none"]).arguments(more)
    };
    let free = plan(&[]).json();
    let each = &free["forecast"]["speed"]["each"];
    let [low, likely] = ["low", "microseconds"].map(|name| each[name].as_f64().expect("a time"));
    assert!(low < likely && likely < each["high"].as_f64().expect("a time"), "{each}");
    // Hardly slower than the fastest run. Other formats may be likely to need somewhat less time.
    let rate = (1e6 / (0.9 * low + 0.1 * likely)).to_string();
    let goal = ["--tokens-per-second", rate.as_str()];
    let report = plan(&goal).json();
    let goals = report["goals"].as_array().expect("goals");
    let token = goals.iter().find(|goal| goal["goal"] == "token").expect("the goal");
    assert_eq!(token["verdict"], "unlikely", "{token}");
    assert_eq!(report["forecast"]["verdict"]["too_slow"], true, "{report}");
    let text = plan(&goal).succeeds();
    for part in ["fallback: the goal token ≤ ", "unlikely", "too slow"] {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
    plan(&goal).argument("--strict").refuses_with(9, &["unlikely to be met"]);
    // No run is that fast.
    plan(&["--tokens-per-second", "1000000"]).refuses_with(7, &["the time of a token"]);
}

#[test]
fn sampling_options_change_the_reply() {
    let reply = |more: &[&str]| {
        let run = shardwright(["run", DEMO_MODEL, "--prompt", "What is faith?", "-n", "8"]);
        run.arguments(more).succeeds()
    };
    let likely = reply(&["--greedy"]);
    let warm = ["--temperature", "6", "--seed", "3"];
    let sampled = reply(&warm);
    assert!(sampled != likely && sampled == reply(&warm), "{sampled} {likely}");
    assert_ne!(reply(&["--temperature", "6", "--seed", "4"]), sampled);
    // Only the likeliest token is left.
    for narrow in [["--min-p", "1"], ["--top-k", "1"], ["--top-p", "0.000001"]] {
        assert_eq!(reply(&[&warm[..], &narrow].concat()), likely, "{narrow:?}");
    }
    let repeated = |more: &[&str]| {
        let run = shardwright(["run", DEMO_MODEL, "--prompt", "a a a a", "--raw", "-n", "24", "--greedy"]);
        run.arguments(more).succeeds()
    };
    let plain = repeated(&[]);
    assert_ne!(repeated(&["--repetition-penalty", "5"]), plain);
    assert_eq!(repeated(&["--repetition-penalty", "1"]), plain);
}

#[test]
fn help_version_and_completions_are_printed() {
    assert!(shardwright(["plan", "--help"]).succeeds().contains("Usage: shardwright plan"));
    let version = shardwright(["plan", "--version"]).succeeds();
    let [program, planner] = version.lines().collect::<Vec<_>>()[..] else { panic!("{version}") };
    assert!(program.ends_with(env!("CARGO_PKG_VERSION")), "{version}");
    assert!(planner.starts_with("planner generic ") && planner.ends_with(" (built-in)"), "{version}");
    for shell in ["bash", "zsh", "fish"] {
        assert!(shardwright(["completions", shell]).succeeds().contains("shardwright"));
    }
}
