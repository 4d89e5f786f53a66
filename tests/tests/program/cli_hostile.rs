//! Bad input through the program's own commands. Each input is refused with a message, a `help:`
//! line and a non-zero exit code, without a panic, a hang or an answer.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use shardwright_tests::bundles::Compiled;
use shardwright_tests::checkpoints::{Copy, DEMO_MODEL, EMBEDDING_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::program::{self, Run, shardwright};
use shardwright_tests::tree;

use crate::cli_options::help_of;

const FIXTURE: &str = "tests/fixtures/qwen3";

/// One way to damage a checkpoint, and a word that the refusal must contain.
type Case = (fn(Copy) -> Copy, &'static str);

/// A fault of each reader. The crates that read checkpoints test all others.
const SPOILED: [Case; 7] = [
    (|copy| copy.without("config.json"), "config.json"),
    (|copy| copy.json("config.json", |c| c["model_type"] = "mamba9".into()), "mamba9"),
    (|copy| copy.changed("model.safetensors", |b| b.truncate(40)), "model.safetensors"),
    (|copy| copy.with("tokenizer.json", "{}"), "tokenizer.json"),
    (|copy| copy.without("tokenizer.json"), "tokenizer.json"),
    (
        |copy| copy.with("generation_config.json", r#"{"top_k": 1, "top_k": 2}"#),
        "a second key `top_k` at line 1",
    ),
    (|copy| copy.with("preprocessor_config.json", "{"), "preprocessor_config.json"),
];

const ONE_TOKEN: [&str; 5] = ["run", "--prompt", "Hello", "--max-tokens", "1"];

#[test]
fn spoiled_checkpoints_are_refused_by_name() {
    for (spoil, says) in SPOILED {
        let copy = spoil(Copy::of(FIXTURE));
        let (_, stderr) = shardwright(ONE_TOKEN).argument(copy.path()).refuses();
        assert!(stderr.contains(says), "the refusal does not say `{says}`:\n{stderr}");
    }
}

#[test]
fn a_weight_that_is_not_finite_is_named_by_every_command_that_reads_it() {
    let name = "model.layers.0.self_attn.q_proj.weight";
    // A NaN in row 2, column 3 of a matrix of 64 columns.
    let at = 2 * (2 * 64 + 3);
    let copy = Copy::of(FIXTURE).stored(name, |bytes| bytes[at..at + 2].copy_from_slice(&[0xc0, 0x7f]));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = folder.path().join("bundle").display().to_string();
    let place = format!("weight `{name}`: row 2, column 3: expected a finite value, got NaN");
    for arguments in [
        &ONE_TOKEN[..],
        &["bench", "-p", "8", "-n", "4"],
        &["compile", "--on", "cpu", "-o", &bundle],
        &["verify", "--evaluation", "1", "--rows", "8", "--steps", "1", "--greedy", "1"],
    ] {
        shardwright(arguments).argument(copy.path()).refuses_with(4, &[&place]);
    }
}

/// Creates a pipe without a writer in place of a file.
fn pipe(path: &Path) {
    let _ = fs::remove_file(path);
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo starts").success());
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for() {
    for name in ["tokenizer.json", "model.safetensors"] {
        let copy = Copy::of(FIXTURE);
        pipe(&copy.file(name));
        let (_, stderr) = shardwright(ONE_TOKEN).argument(copy.path()).refuses();
        assert!(stderr.contains(name), "{name}: {stderr}");
    }

    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name);
    for name in ["pipe.wasm", "request.json", "key", "text"] {
        pipe(&at(name));
    }
    let planner = program::folder().join("planners/generic.wasm");
    let refused = |run: Run, word: &str| {
        let (_, stderr) = run.refuses();
        assert!(stderr.contains(word) && stderr.contains("a pipe"), "{stderr}");
    };
    refused(shardwright(["planner", "check"]).argument(at("pipe.wasm")), "pipe.wasm");
    refused(shardwright(["planner", "replay"]).argument(at("request.json")), "request.json");
    let pack = shardwright(["planner", "pack"]).argument(&planner).argument("--key").argument(at("key"));
    refused(pack.argument("--output").argument(at("out.pack")), "key");
    let plan = shardwright(["plan", FIXTURE, "--soc", "mt6989", "--quality", "100", "--calibration-text"]);
    refused(plan.argument(at("text")), "text");
}

/// Bytes that are not UTF-8 are refused with their place, and a conversation continues.
#[test]
fn bytes_that_are_not_utf8_cost_their_line() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let lines = folder.path().join("lines");
    fs::write(&lines, b"Hello\nna\xefve\nHi\n\xff").expect("written");
    let chat = ["run", FIXTURE, "--chat", "--greedy", "--max-tokens", "2", "--format", "json"];
    let program::Outcome { code, stdout, stderr } = shardwright(chat).input(&lines).outcome();
    assert!(code == Some(4) && stderr.contains("byte 0xef at offset 8"), "{stderr}");
    assert!(stderr.contains("byte 0xff at offset 15") && stderr.contains("2 of the lines"), "{stderr}");
    let replies = stdout.lines().filter(|line| line.contains("\"done\"")).count();
    assert_eq!(replies, 2, "{stdout}");
    for command in [["run", FIXTURE], ["embed", EMBEDDING_FIXTURE]] {
        let place = "standard input is not UTF-8: byte 0xef at offset 8";
        shardwright(command).input(&lines).refuses_with(4, &[place]);
    }
    let plan = shardwright(["plan", FIXTURE, "--soc", "mt6989", "--quality", "100", "--calibration-text"]);
    plan.argument(&lines).refuses_with(4, &["byte 0xef at offset 8"]);
}

/// Endless input is read up to its limit and no further.
#[test]
fn what_never_ends_is_read_to_its_cap() {
    let zero = Path::new("/dev/zero");
    for (command, says) in [
        (&["run", FIXTURE, "--max-tokens", "1"][..], "standard input has more than"),
        (&["run", FIXTURE, "--chat"], "a line of standard input has more than"),
        (&["embed", EMBEDDING_FIXTURE], "standard input has more than"),
    ] {
        shardwright(command).input(zero).refuses_with(4, &[says]);
    }

    // A device of length zero, and a file of a gigabyte.
    let copy = Copy::of(EMBEDDING_FIXTURE);
    let prompts = copy.file("config_sentence_transformers.json");
    let _ = fs::remove_file(&prompts);
    symlink(zero, &prompts).expect("a link");
    let embed_of = |word: &str| {
        let run =
            shardwright(["embed"]).argument(copy.path()).arguments(["a text", "--prompt-name", "query"]);
        let (_, stderr) = run.refuses();
        assert!(stderr.contains("config_sentence_transformers.json") && stderr.contains(word), "{stderr}");
    };
    embed_of("a device");
    fs::remove_file(&prompts).expect("removed");
    fs::File::create(&prompts).and_then(|file| file.set_len(1 << 30)).expect("a long file");
    embed_of("more than 16777216 bytes");
}

/// The documentation of the option must mention a risk that no check can rule out.
#[test]
fn the_help_says_what_isolation_does_not_save_from() {
    let help = help_of("run");
    assert!(help.contains("SIGBUS"), "{help}");
    let page = tree::read(Path::new("docs/using.md"));
    let section = page.split("`--isolation process`").nth(1).expect("a word about isolation");
    assert!(section.contains("SIGBUS"), "{section}");
}

/// Anyone who can read the key can run code in every host that trusts it.
#[test]
fn a_key_that_others_may_read_signs_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (key, pack) = (folder.path().join("key"), folder.path().join("out.pack"));
    fs::write(&key, "7".repeat(64) + "\n").expect("written");
    let planner = program::folder().join("planners/generic.wasm");
    let sign = || {
        let run = shardwright(["planner", "pack"]).argument(&planner).argument("--key").argument(&key);
        run.argument("--output").argument(&pack)
    };
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).expect("set");
    sign().refuses_with(4, &["others may read it", "chmod 600"]);
    assert!(!pack.exists());
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("set");
    sign().succeeds();
    assert!(pack.is_file());
    fs::write(&key, "no key").expect("written");
    sign().refuses_with(4, &["64 hexadecimal digits"]);
}

/// Every command that writes a file or folder refuses another file at its place before it works.
#[test]
fn files_that_a_command_did_not_write_are_not_replaced() {
    let bundle = Compiled::from(FIXTURE, ["--context", "64"]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("thesis"), "mine").expect("written");
    symlink(at("thesis"), at("link")).expect("a link");
    pipe(&at("pipe"));
    let (key, planner) = (at("key"), program::folder().join("planners/generic.wasm"));
    shardwright(["trust", "key"]).argument(&key).succeeds();

    let plan = |option: &str| shardwright(["plan", FIXTURE, "--no-measure", option]);
    let list = || shardwright(["trust", "revoke", "--list", "a", "--sequence", "1", "--key"]).argument(&key);
    let commands = [
        shardwright(["pack"]).argument(bundle.path()).argument("-o"),
        shardwright(["pack", "--licence", "gemma"]).argument(bundle.path()).argument("--hf"),
        shardwright(["compile", FIXTURE, "-o"]),
        plan("--html"),
        plan("--write-request"),
        shardwright(["doctor", "--report"]),
        shardwright(["calibration-text", FIXTURE, "-o"]),
        shardwright(["planner", "pack"]).argument(&planner).argument("--key").argument(&key).argument("-o"),
        shardwright(["planner", "build", "no-such-package", "-o"]),
        shardwright(["planner", "compose", "no-such-policy", "-o"]),
        shardwright(["trust", "key"]),
        list().argument("-o"),
    ];
    let refused = |command: Run, target: &Path, is: &str| {
        command.argument(target).refuses_with(2, &[&target.display().to_string(), is]);
        assert_eq!(fs::read(at("thesis")).expect("read"), b"mine");
    };
    for (command, target, is) in [
        (plan("--html"), at("link"), "a symbolic link"),
        (list().argument("-o"), at("pipe"), "a pipe"),
        (plan("--write-request"), "/dev/null".into(), "a device"),
    ] {
        refused(command, &target, is);
    }
    for command in commands {
        refused(command, &at("thesis"), "thesis");
    }
    // An earlier output is replaced.
    for _ in 0..2 {
        plan("--html").argument(at("plan.html")).succeeds();
        plan("--write-request").argument(at("request.json")).succeeds();
        shardwright(["doctor", "--report"]).argument(at("machine.json")).succeeds();
        list().argument("-o").argument(at("revoked")).succeeds();
    }
    let other = "request.json: the file exists and is not the page of a plan";
    plan("--html").argument(at("request.json")).refuses_with(2, &[other]);

    // A suggested command can be pasted.
    let begun = shardwright(["planner", "new", "thrifty", "--within"]).argument(at("my own")).json();
    let next = begun["next"][0].as_str().expect("a command");
    assert!(
        next.starts_with("shardwright planner build '") && next.contains("/my own/thrifty' -o"),
        "{next}"
    );
}

#[test]
fn a_template_that_never_ends_is_stopped() {
    let again = "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}";
    let copy = Copy::of(FIXTURE).json("tokenizer_config.json", |c| c["chat_template"] = again.into());
    let (_, stderr) = shardwright(ONE_TOKEN).argument(copy.path()).argument("--chat").refuses();
    assert!(stderr.contains("template"), "{stderr}");
}

#[test]
fn what_is_not_there_is_named() {
    for (arguments, says) in [
        (&["run", "no/such/checkpoint", "--prompt", "x"][..], "no/such/checkpoint"),
        (&["show", "README.md"], "README.md"),
        (&["plan", DEMO_MODEL, "--soc", "no-such-chip"], "no-such-chip"),
        (&["plan", DEMO_MODEL, "--planner", "no-such-planner", "--strict"], "no-such-planner"),
        (&["verify", DEMO_MODEL, "--golden", "no/such/goldens"], "no/such/goldens"),
        (&["embed", DEMO_MODEL, "a text"], "embed"),
        (&["planner", "check", "README.md"], "README.md"),
        (&["planner", "replay", "no/such/request.json"], "request.json"),
        (&["planner", "replay", "README.md"], "README.md"),
        (&["plan", DEMO_MODEL, "--limit", "ops=1"], "ops"),
    ] {
        let (_, stderr) = shardwright(arguments).refuses();
        assert!(stderr.contains(says), "{arguments:?}: the refusal does not say `{says}`:\n{stderr}");
    }
}

#[test]
fn prompts_that_cannot_be_run_are_refused() {
    let long = "word ".repeat(20_000);
    let (_, stderr) = shardwright(["run", DEMO_MODEL, "--prompt", &long]).refuses();
    assert!(stderr.contains("context"), "{stderr}");

    let outcome =
        shardwright(["run", DEMO_MODEL, "--prompt"]).argument(OsStr::from_bytes(b"caf\xe9")).outcome();
    assert!(matches!(outcome.code, Some(code) if code != 0), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("UTF-8"), "{}", outcome.stderr);
}

/// With so low a limit no shard fits on the chip. Its work moves to the CPU, which is a fallback.
#[test]
fn a_plan_that_leaves_the_chip_is_said_and_refused_under_strict() {
    let plan = || shardwright(["plan", DEMO_MODEL, "--soc", "mt6989", "--limit", "ops=3"]);
    let report = plan().json();
    assert!(report["notices"].to_string().contains("fallback"), "{report}");
    plan().argument("--strict").refuses();
}

/// Asserts that the built-in planner takes over from a planner that fails, and that reports have
/// the error, which begins with `error`. Under `--strict` the command ends with it and with `code`.
pub(crate) fn expect_replaced(planner: &Path, error: &str, code: i32) {
    let with = |words: &[&str]| shardwright(words).argument("--planner").argument(planner);
    let plan = || with(&["plan", "--no-measure", DEMO_MODEL, "--soc", "mt6989"]);
    let report = plan().json();
    let by = &report["planner"];
    assert!(by["name"] == "generic" && by["built_in"] == true, "{report}");
    let is_of_planner = |notice: &&Value| notice["text"].as_str().is_some_and(|text| text.starts_with(error));
    let notices = report["notices"].as_array().expect("notices").iter().filter(is_of_planner);
    let [notice] = notices.collect::<Vec<_>>()[..] else { panic!("not one notice with `{error}`: {report}") };
    let took_over = "; the built-in planner took over";
    let text = notice["text"].as_str().expect("a text");
    assert!(notice["kind"] == "fallback" && text.ends_with(took_over), "{notice}");

    // Even a quiet command reports it, and answers.
    let answer = ["run", DEMO_MODEL, "--prompt", "What is faith?", "-n", "8", "--greedy", "--quiet"];
    let program::Outcome { code: done, stdout, stderr } = with(&answer).outcome();
    assert!(done == Some(0) && stdout.starts_with("Belief"), "{done:?}: {stdout}{stderr}");
    let [line] = stderr.lines().collect::<Vec<_>>()[..] else { panic!("not one line: {stderr}") };
    assert!(line.starts_with(&format!("fallback: {error}")) && line.ends_with(took_over), "{line}");

    let stderr = plan().argument("--strict").refuses_with(code, &[&format!("error: {error}")]);
    assert!(!stderr.contains("took over"), "{stderr}");
    with(&answer).argument("--strict").refuses_with(code, &[error]);
}

/// The built-in planner replaces a planner that fails, and not a file that the user named by
/// mistake: see `expect_replaced`.
#[test]
fn files_that_are_not_planners_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let long = [&b"\0asm\x0d\0\x01\0"[..], &[0xff; 64]].concat();
    // A pack that ships with the program. Its key is not trusted, which is not the problem here.
    let mut altered = fs::read(program::folder().join("planners/mediatek.pack")).expect("a pack");
    let cut = altered[..altered.len() / 2].to_vec();
    let last = altered.len() - 100;
    altered[last] ^= 1;
    for (name, bytes, says) in [
        ("empty.wasm", &b""[..], "not a WebAssembly component: "),
        ("text.wasm", b"a planner", "not a WebAssembly component: "),
        ("other.wasm", b"\x7fELF and so on", "not a WebAssembly component: "),
        ("module.wasm", b"\0asm\x01\0\0\0", "a WebAssembly core module, not a component"),
        ("nothing.wasm", b"\0asm\x0d\0\x01\0", "the component does not export"),
        ("garbage.wasm", &long, "not a WebAssembly component: "),
        ("text.pack", b"a planner", "not a planner pack"),
        ("altered.pack", &altered, "damaged pack: the signature of "),
        ("cut.pack", &cut, "offset "),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("written");
        for words in [&["plan", "--no-measure", DEMO_MODEL][..], &["run", DEMO_MODEL, "--prompt", "a"]] {
            for more in [&[][..], &["--strict"]] {
                let run = shardwright(words).argument("--planner").argument(&path).arguments(more);
                let error = format!("planner `{name}`: {says}");
                let stderr = run.refuses_with(4, &[&error]);
                assert!(!stderr.contains("took over"), "{stderr}");
            }
        }
        // A planner that is named by its folder and name is named too.
        let stem = name.split('.').next().expect("a name");
        let plan = shardwright(["plan", "--no-measure", DEMO_MODEL, "--planner", stem, "--planners"]);
        if name.ends_with(".wasm") {
            plan.argument(folder.path()).refuses_with(4, &[says]);
        }
    }
}

#[test]
fn libraries_that_are_no_shims_are_listed_with_the_reason() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let manifest = |library: &str, abi: Value| {
        json!({"manifest": 1, "name": "odd", "vendor": "nobody", "abi": abi, "library": library}).to_string()
    };
    let now = json!({"min": "0.1", "max": "0.1"});
    for (stem, library, manifest) in [
        ("garbage", Some("not a library"), Some(manifest("garbage.so", now.clone()))),
        ("newer", Some("not looked at"), Some(manifest("newer.so", json!({"min": "9.0", "max": "9.0"})))),
        ("alone", None, Some(manifest("alone.so", now.clone()))),
        ("unsaid", Some("no manifest"), None),
        ("broken", Some("bad manifest"), Some("{".to_owned())),
    ] {
        if let Some(bytes) = library {
            fs::write(folder.path().join(format!("{stem}.so")), bytes).expect("written");
        }
        if let Some(text) = manifest {
            fs::write(folder.path().join(format!("{stem}.shim.json")), text).expect("written");
        }
    }
    pipe(&folder.path().join("odd.shim.json"));
    let listing = shardwright(["shim", "list", "--shims"]).argument(folder.path()).succeeds();
    for stem in ["garbage", "newer", "alone", "unsaid", "broken", "odd.shim.json", "a pipe"] {
        assert!(listing.contains(stem), "{stem} was skipped without a word:\n{listing}");
    }
    assert!(listing.contains("cpu"), "the good one is still there:\n{listing}");
}

#[test]
fn goldens_that_lie_are_refused() {
    let copy = Copy::of(TEXT_FIXTURES[3]).changed("goldens.safetensors", |bytes| bytes.truncate(64));
    let (_, stderr) = shardwright(["verify", TEXT_FIXTURES[3], "--golden"]).argument(copy.path()).refuses();
    assert!(stderr.contains("goldens"), "{stderr}");
}

/// One process compiles it, and the others wait. None falls back.
#[test]
fn several_first_starts_at_once_all_run() {
    let cache = tempfile::tempdir().expect("a folder");
    let start = || {
        let run =
            shardwright(["run", DEMO_MODEL, "--prompt", "a b", "--max-tokens", "2", "--greedy", "--quiet"]);
        run.environment("XDG_CACHE_HOME", cache.path()).outcome()
    };
    std::thread::scope(|scope| {
        let starts: Vec<_> = (0..3).map(|_| scope.spawn(start)).collect();
        for outcome in starts.into_iter().map(|start| start.join().expect("ended")) {
            assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
        }
    });
    let planners = fs::read_dir(cache.path().join("shardwright/planners")).expect("a folder");
    let names = planners.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    assert_eq!(names.filter(|name| name.ends_with(".cwasm")).count(), 1);
}
