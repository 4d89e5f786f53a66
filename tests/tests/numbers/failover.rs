//! A chip that dies costs the user a second, not the reply. The session continues on the CPU from
//! its history of tokens, gives the same text, and reports the move. Under `--strict` it fails
//! instead.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use shardwright::tools::ModelTools;
use shardwright::{
    BundleOptions, ChatPart, EmbedOptions, Error, ErrorKind, Isolation, Model, OpenOptions, Session,
};
use shardwright_runtime::FallbackChains;
use shardwright_shims::ShimRegistry;
use shardwright_tests::bundles::Compiled;
use shardwright_tests::chain::{Bench, Cut, committed, menu, tokens};
use shardwright_tests::checkpoints::{DEMO_MODEL, EMBEDDING_FIXTURE, MULTIMODAL_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::chip::{CHIP, TestChip};
use shardwright_tests::program::{self, Outcome, Run, shardwright};
use shardwright_tests::towers::Goldens;
use shardwright_tests::{skipped, tree};
use shardwright_vocabulary::ProcessPlacement;
use shardwright_worker::{Caps, Launcher, WorkerEnd, WorkerFailure};

const QUESTION: &str = "What does bug mean?";

/// Builds a command that sends the question to a model.
fn ask(checkpoint: &str) -> Run {
    shardwright(["run", checkpoint, "--chat", "--greedy", "--prompt", QUESTION])
}

/// Returns the demo model's answer on this machine's CPU, without a failure.
fn undisturbed() -> String {
    ask(DEMO_MODEL).succeeds()
}

fn lines<'o>(outcome: &'o Outcome, start: &str) -> Vec<&'o str> {
    outcome.stderr.lines().filter(|line| line.starts_with(start)).collect()
}

/// Returns the only line that reports where the reply resumed.
fn move_notice(outcome: &Outcome) -> &str {
    let notices = lines(outcome, "fallback:");
    assert_eq!(notices.len(), 1, "{}", outcome.stderr);
    for word in ["failed on", CHIP, "resumed on cpu (cpu on cpu)"] {
        assert!(notices[0].contains(word), "no `{word}` in {}", notices[0]);
    }
    notices[0]
}

#[test]
fn the_plan_for_the_chip_runs_on_it_and_names_the_cpu_to_go_on_with() {
    let chip = TestChip::new();
    let plan = chip.planned_by(shardwright(["plan", DEMO_MODEL])).json();
    let shards = plan["shards"].as_array().expect("shards");
    assert!(!shards.is_empty() && shards.iter().all(|shard| shard["target"] == CHIP), "{plan}");
    let chain = serde_json::json!([{ "target": "cpu", "formats": [shards[0]["formats"]] }]);
    assert_eq!(plan["fallback"], chain, "{plan}");

    // Without a failure the reply stays on the chip, and the text equals the CPU's.
    let outcome =
        chip.planned_by(ask(DEMO_MODEL)).arguments(["--isolation", "process", "--strict"]).outcome();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, undisturbed());
    assert_eq!(lines(&outcome, "fallback:"), Vec::<&str>::new());
}

#[test]
fn whatever_the_chip_dies_of_the_text_is_the_undisturbed_one() {
    let expected = undisturbed();
    let chip = TestChip::new();
    // Failures at the first run, during the prompt, and early and late in the reply.
    for (how, run, word) in [
        ("abort", 1, "SIGABRT"),
        ("abort", 4, "SIGABRT"),
        ("overrun", 30, "SIGSEGV"),
        ("abort", 90, "SIGABRT"),
        ("lost", 9, "fell off its bus"),
    ] {
        chip.fails_in(how, run);
        let outcome = chip.planned_by(ask(DEMO_MODEL)).arguments(["--isolation", "process"]).outcome();
        assert_eq!(outcome.code, Some(0), "{how} {run}: {}", outcome.stderr);
        assert_eq!(outcome.stdout, expected, "{how} {run}");
        let line = move_notice(&outcome);
        assert!(line.contains(word), "{how} {run}: {line}");
        println!("{how} {run}: {line}");
    }
}

#[test]
fn an_error_is_enough_no_process_has_to_die() {
    let expected = undisturbed();
    let chip = TestChip::that_dies("lost", 20);
    for isolation in ["off", "automatic"] {
        let outcome = chip.planned_by(ask(DEMO_MODEL)).arguments(["--isolation", isolation]).outcome();
        assert_eq!((outcome.code, &outcome.stdout), (Some(0), &expected), "{}", outcome.stderr);
        assert!(move_notice(&outcome).contains("fell off its bus"));
    }
    // `--quiet` hides statistics, but not this notice.
    let outcome = chip.planned_by(ask(DEMO_MODEL)).argument("--quiet").outcome();
    move_notice(&outcome);
}

#[test]
fn the_last_line_of_json_tells_the_move() {
    let chip = TestChip::that_dies("abort", 40);
    let outcome =
        chip.planned_by(ask(DEMO_MODEL)).arguments(["--isolation", "process", "--format", "json"]).outcome();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let lines: Vec<Value> =
        outcome.stdout.lines().map(|line| serde_json::from_str(line).expect("a document per line")).collect();
    let text: String = lines.iter().filter_map(|line| line["text"].as_str()).collect();
    assert_eq!(text, undisturbed().trim_end_matches('\n'));
    let moves = lines.last().expect("a last line")["moves"].as_array().expect("moves").clone();
    assert_eq!(moves.len(), 1, "{moves:?}");
    let moved = &moves[0];
    assert_eq!((&moved["from"]["shim"], &moved["to"][0]["shim"]), (&CHIP.into(), &"cpu".into()), "{moved}");
    assert!(moved["error"].as_str().is_some_and(|error| error.contains("SIGABRT")), "{moved}");
    assert!(moved["tokens"].as_u64() > Some(0), "{moved}");
    // The documented time is two seconds. A loaded machine may need longer, so the actual time is
    // printed.
    let seconds = moved["seconds_to_catch_up"].as_f64().unwrap_or_else(|| panic!("{moved}"));
    println!("{} tokens were run again; {seconds:.2} s from the loss to the next token", moved["tokens"]);
    assert!(seconds.is_finite() && seconds > 0.0);
    let pid = &moved["before"]["shards"][0]["pid"];
    assert!(pid.is_null() || pid.is_u64(), "{moved}");
    assert_eq!(moved["before"]["shards"][0]["process"], "worker", "{moved}");
    move_notice(&outcome);
}

#[test]
fn under_strict_it_is_an_error() {
    for (how, isolation) in [("abort", "process"), ("lost", "process"), ("lost", "off")] {
        let chip = TestChip::that_dies(how, 12);
        let outcome =
            chip.planned_by(ask(DEMO_MODEL)).arguments(["--strict", "--isolation", isolation]).outcome();
        assert_eq!(outcome.code, Some(8), "{how}, {isolation}: {}", outcome.stderr);
        for start in ["error:", "help:"] {
            assert_eq!(lines(&outcome, start).len(), 1, "{how}, {isolation}: {}", outcome.stderr);
        }
        assert!(lines(&outcome, "error:")[0].contains(CHIP), "{}", outcome.stderr);
    }
}

#[test]
fn a_bundle_goes_on_with_its_second_chain() {
    let expected = undisturbed();
    let chip = TestChip::new();
    let compile = |arguments: &[&str]| {
        let places =
            [chip.shims(), chip.shims().with_file_name("profiles")].map(|path| path.display().to_string());
        let mut all = vec!["--soc", CHIP, "--shims", &places[0], "--profiles", &places[1]];
        all.extend(arguments);
        Compiled::from(DEMO_MODEL, all)
    };
    let bundle = compile(&[]);
    let names = |bundle: &Compiled| -> Vec<String> {
        let manifest = bundle.variant_json();
        let chains = manifest["chains"].as_array().expect("chains");
        chains.iter().filter_map(|chain| Some(chain["name"].as_str()?.to_owned())).collect()
    };
    assert_eq!(names(&bundle), ["primary", "cpu"]);
    let directory = bundle.path().display().to_string();
    let run = |isolation: &str| chip.found_by(ask(&directory)).arguments(["--isolation", isolation]);

    assert_eq!(run("process").argument("--strict").succeeds(), expected);
    for (how, run_number, isolation) in
        [("abort", 25, "process"), ("overrun", 8, "process"), ("lost", 90, "off")]
    {
        chip.fails_in(how, run_number);
        let outcome = run(isolation).outcome();
        assert_eq!((outcome.code, &outcome.stdout), (Some(0), &expected), "{how}: {}", outcome.stderr);
        move_notice(&outcome);
        let outcome = run(isolation).argument("--strict").outcome();
        assert_eq!(outcome.code, Some(8), "{how}: {}", outcome.stderr);
    }

    // A bundle without a fallback: compiled to run only on the chip.
    let only = compile(&["--strict"]);
    assert_eq!(names(&only), ["primary"]);
    chip.fails_in("abort", 25);
    let directory = only.path().display().to_string();
    let outcome = chip.found_by(ask(&directory)).arguments(["--isolation", "process"]).outcome();
    assert_eq!(outcome.code, Some(8), "{}", outcome.stderr);
}

fn on_the_chip(chip: &TestChip, isolation: Isolation) -> OpenOptions {
    OpenOptions::new().search_path(chip.search_path()).soc(CHIP).isolation(isolation)
}

/// Returns options in the stored formats, which are the default for a chip without known formats.
fn on_the_cpu() -> OpenOptions {
    let options = OpenOptions::new().search_path(program::search_path()).isolation(Isolation::Off);
    options.formats("stored".parse().expect("a choice"))
}

fn opened(options: &OpenOptions, checkpoint: &str) -> Model {
    options.open(tree::root().join(checkpoint)).unwrap_or_else(|error| panic!("{checkpoint}: {error}"))
}

/// Returns the text of a reply of `tokens` tokens.
fn reply(session: &mut Session, text: &str, tokens: usize) -> shardwright::Result<String> {
    session.options.sampling.do_sample = false;
    session.options.max_tokens = Some(tokens);
    session.complete(text)?.text()
}

#[test]
fn an_embedding_survives_too() {
    let options = EmbedOptions::default();
    let expected = opened(&on_the_cpu(), EMBEDDING_FIXTURE).embed("a text", &options).expect("a vector");
    let chip = TestChip::that_dies("lost", 1);
    let model = opened(&on_the_chip(&chip, Isolation::Off), EMBEDDING_FIXTURE);
    assert_eq!(model.embed("a text", &options).expect("a vector"), expected);

    let chip = TestChip::that_dies("lost", 1);
    let strict = opened(&on_the_chip(&chip, Isolation::Off).strict(true), EMBEDDING_FIXTURE);
    let error = strict.embed("a text", &options).expect_err("strict");
    assert_eq!(error.kind(), ErrorKind::Shim, "{error}");
}

#[test]
fn without_a_fallback_the_loss_is_reported_with_what_was_tried() {
    let chip = TestChip::that_dies("lost", 5);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = folder.path().join("bundle");
    let options = on_the_chip(&chip, Isolation::Off);
    options
        .compile(tree::root().join(TEXT_FIXTURES[3]), &bundle, &mut ())
        .unwrap_or_else(|error| panic!("{error}"));
    let open = BundleOptions::new().search_path(chip.search_path()).isolation(Isolation::Off);
    let model = open.open(&bundle).unwrap_or_else(|error| panic!("{error}"));
    // The files of the second chain are removed after it was opened.
    for shard in &model.bundle().expect("a bundle").variant().chains[1].shards {
        fs::remove_file(bundle.join("files").join(shard.artefact.sha256.to_string())).expect("removed");
    }
    let mut session = model.session().unwrap_or_else(|error| panic!("{error}"));
    let error = reply(&mut session, "and so it goes", 12).expect_err("there is nothing to go on with");
    assert!(error.to_string().contains(CHIP), "{error}");
    assert!(error.to_string().contains("chain `cpu`"), "{error}");
    assert!(error.help().is_some(), "{error}");
}

#[test]
fn a_reply_continues_on_the_model_opened_again() {
    const PROMPT: &str = "and so it goes";
    let chip = Arc::new(TestChip::new());
    let (options, path) = (on_the_chip(&chip, Isolation::Off).strict(true), tree::root().join(DEMO_MODEL));
    let open = move || options.open(&path);
    let begun = || open().and_then(|model| model.session()).unwrap_or_else(|error| panic!("{error}"));
    let expected = reply(&mut begun(), PROMPT, 12).expect("a reply");

    chip.fails_in("lost", 6);
    let mut session = begun();
    let (healed, again) = (Arc::clone(&chip), open.clone());
    session.set_reopen(Some(Box::new(move |lost: &Error| {
        assert!(lost.is_device_lost() && lost.to_string().contains("fell off its bus"), "{lost}");
        healed.fails_in("nothing", 0);
        Some(again().map(|model| model.chains()))
    })));
    assert_eq!(reply(&mut session, PROMPT, 12).expect("a reply"), expected);
    assert_eq!(session.placement().moves.len(), 1);

    // A model that does not fit is not requested twice, and the callback may give up.
    chip.fails_in("lost", 6);
    let (other, calls) = (opened(&on_the_cpu(), TEXT_FIXTURES[3]), Arc::new(AtomicUsize::new(0)));
    let (mut session, counter) = (begun(), Arc::clone(&calls));
    session.set_reopen(Some(Box::new(move |_: &Error| {
        counter.fetch_add(1, Ordering::SeqCst);
        Some(Ok(other.chains()))
    })));
    let error = reply(&mut session, PROMPT, 12).expect_err("no model");
    assert!(error.is_device_lost() && error.to_string().contains("another model"), "{error}");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let mut session = begun();
    session.set_reopen(Some(Box::new(|_: &Error| None)));
    let error = reply(&mut session, PROMPT, 12).expect_err("no model");
    assert!(error.is_device_lost() && error.help().is_some(), "{error}");
}

#[test]
fn a_chip_that_hangs_is_left_at_its_cap() {
    let chip = TestChip::that_dies("hang", 9);
    let worker = program::folder().join("shardwright-worker");
    if !worker.is_file() {
        return skipped("there is no worker to hang in");
    }
    let caps = Caps { run_time: Duration::from_millis(1500), ..Caps::default() };
    let isolation = Launcher { worker, caps };
    let registry = ShimRegistry::builder()
        .isolated(isolation.clone())
        .directory(chip.shims())
        .directory(program::folder().join("shims"))
        .build();
    let open =
        |shim: &str| registry.open_isolated(shim, shim, &[], &isolation).unwrap_or_else(|e| panic!("{e}"));
    let graph = committed(TEXT_FIXTURES[3]);
    let menu = menu(96, &[16], &[1]);
    let ids = tokens(&graph, 40);
    let here = Bench::over(&graph, &menu, vec![open("cpu")]);
    let cpu = here.chain(&Cut::default());
    let expected = |ids: &[u32]| {
        let mut session = cpu.session().expect("a session");
        session.append(ids).expect("run");
        session.logits().expect("logits").to_vec()
    };
    let chips = Bench::over(&graph, &menu, vec![open(CHIP)]);
    let chain = chips.chain(&Cut::before(&[1]));
    let mut session =
        chain.session_with(Box::new(FallbackChains::new([cpu.clone()]))).unwrap_or_else(|e| panic!("{e}"));
    let started = Instant::now();
    for end in 20..ids.len() {
        let begin = if end == 20 { 0 } else { end - 1 };
        session.append(&ids[begin..end]).unwrap_or_else(|error| panic!("{error}"));
    }
    println!("went on after a hang within {:.1} s", started.elapsed().as_secs_f64());
    assert_eq!(session.logits().expect("logits"), expected(&ids[..ids.len() - 1]));
    let record = session.placement();
    assert_eq!(record.moves.len(), 1);
    let error = &record.moves[0].error;
    assert!(error.contains("run") && error.contains(CHIP), "{error}");
    assert!(matches!(record.moves[0].before.shards[0].process, ProcessPlacement::Worker { .. }));

    // Without a fallback, the error reports how the worker ended.
    let chip = TestChip::that_dies("hang", 1);
    let registry = ShimRegistry::builder().isolated(isolation.clone()).directory(chip.shims()).build();
    let alone = registry.open_isolated(CHIP, CHIP, &[], &isolation).unwrap_or_else(|error| panic!("{error}"));
    let chips = Bench::over(&graph, &menu, vec![alone]);
    let chain = chips.chain(&Cut::default());
    let mut session = chain.session().expect("a session");
    let error = session.append(&ids[..4]).expect_err("it hangs");
    let shardwright_runtime::SessionError::Run { source, .. } = &error else { panic!("{error:?}") };
    let end = &WorkerFailure::of(source).expect("a worker's end").end;
    assert!(matches!(end, WorkerEnd::OverTime { limit_ms: 1500 }), "{end:?}");
}

/// The tower that takes over computes the rows of the picture, the reply is unchanged, and the text
/// model stays on its chip. Applies to a checkpoint and to a bundle.
#[test]
fn a_tower_that_is_lost_is_run_again_elsewhere() {
    let chip = TestChip::new();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = folder.path().join("bundle");
    let options = on_the_chip(&chip, Isolation::Off).tower_formats("stored".parse().expect("a choice"));
    let checkpoint = tree::root().join(MULTIMODAL_FIXTURE);
    options.compile(&checkpoint, &bundle, &mut ()).unwrap_or_else(|error| panic!("{error}"));
    let of_bundle = BundleOptions::new().search_path(chip.search_path()).isolation(Isolation::Off);
    let goldens = Goldens::read();
    let pixels: Vec<u8> = goldens.integers("p1.image_rgb").into_iter().map(|value| value as u8).collect();
    let seen = |model: &Model| {
        let mut session = model.session().expect("a session");
        (session.options.sampling.do_sample, session.options.max_tokens) = (false, Some(12));
        let picture = ChatPart::PictureRgb8 { width: 50, height: 38, stride: 150, pixels: pixels.clone() };
        let text = session.chat_parts([picture, "What is this?".into()]).and_then(|reply| reply.text());
        text.map(|text| (text, session.placement().moves.len()))
    };
    let undisturbed = seen(&options.open(&checkpoint).expect("opened")).expect("a reply").0;
    let opened = [options.open(&checkpoint).expect("opened"), of_bundle.open(&bundle).expect("a bundle")];
    // Applies to instances opened from now on, so only to the towers.
    chip.fails_in("lost", 1);
    for model in opened {
        assert_eq!(seen(&model).expect("a reply"), (undisturbed.clone(), 0));
        let said = model.report().notices_of_towers.into_iter();
        let said: Vec<String> = said.map(|notice| notice.text).collect();
        let moved = said.iter().find(|text| text.contains("was lost and resumed on cpu"));
        assert!(moved.is_some_and(|text| text.contains("fell off its bus")), "{said:?}");
    }
    chip.fails_in("nothing", 0);
    let strict = options.clone().strict(true).open(&checkpoint).expect("opened");
    chip.fails_in("lost", 1);
    let error = seen(&strict).expect_err("a fallback is an error");
    assert!(error.to_string().contains("fell off its bus"), "{error}");
}
