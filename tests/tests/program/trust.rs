//! Signatures as a user sees them: made, required, revoked and withdrawn, with the reports on each.

pub(crate) mod commands;
mod variants;

use std::fs;
use std::path::{Path, PathBuf};

use shardwright_tests::bundles::Compiled;
use shardwright_tests::checkpoints::{EMBEDDING_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::program::{self, Run, shardwright};
use tempfile::TempDir;

/// Exit code of a file that is not signed as the rules require.
const UNTRUSTED: i32 = 12;

/// Exit code of a missing shim, which includes an unsigned one.
const MISSING: i32 = 3;

/// Exit code of an invalid signature.
const INVALID: i32 = 4;

/// A bundle, a signed shim to run it, and a key.
struct Bench {
    folder: TempDir,
    bundle: Compiled,
    public: String,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let key = folder.path().join("my.key");
        let made = shardwright(["trust", "key"]).argument(&key).json();
        let public = made["public"].as_str().expect("a key").to_owned();
        let bench = Bench { bundle: Compiled::from(TEXT_FIXTURES[0], ["--context", "64"]), folder, public };
        let shims = bench.path("shims");
        fs::create_dir(&shims).expect("a folder");
        let library = format!("{}shardwright_shim_cpu", std::env::consts::DLL_PREFIX);
        for name in [format!("{library}{}", std::env::consts::DLL_SUFFIX), format!("{library}.shim.json")] {
            fs::copy(program::folder().join("shims").join(&name), shims.join(&name)).expect("built");
        }
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn manifest(&self) -> PathBuf {
        self.path("shims").join(format!("{}shardwright_shim_cpu.shim.json", std::env::consts::DLL_PREFIX))
    }

    fn signs(&self, path: &Path) -> Run {
        shardwright(["trust", "sign"]).argument(path).argument("--key").argument(self.path("my.key"))
    }

    fn generates(&self, bundle: &Path) -> Run {
        let run = shardwright(["run", "--prompt", "a b", "--max-tokens", "4", "--greedy"]).argument(bundle);
        run.environment("XDG_CACHE_HOME", self.path("cache"))
    }

    /// Prepares a run with the bench's shim alone, and signatures required.
    fn requires(&self, bundle: &Path) -> Run {
        let run = self.generates(bundle).arguments(["--signatures", "require", "--trust", &self.public]);
        run.argument("--shims").argument(self.path("shims"))
    }

    fn revokes(&self, sequence: u32, what: &[&str]) -> PathBuf {
        let list = self.path(&format!("list-{sequence}"));
        let run = shardwright(["trust", "revoke", "--list", "acme", "--sequence", &sequence.to_string()]);
        let run = run.argument("--key").argument(self.path("my.key")).arguments(what);
        run.argument("-o").argument(&list).succeeds();
        list
    }
}

fn refused(run: Run, code: i32, words: &[&str]) {
    let (found, said) = run.refuses();
    assert_eq!(found, code, "{said}");
    for word in words {
        assert!(said.contains(word), "no `{word}` in\n{said}");
    }
}

#[test]
fn what_is_required_is_signed_or_refused_and_a_person_sees_why() {
    let bench = Bench::new();
    let bundle = bench.bundle.path();
    let expected = bench.generates(&bundle).succeeds();
    refused(bench.requires(&bundle), UNTRUSTED, &["bundle: not signed", "trust sign"]);
    let warned = bench.generates(&bundle).arguments(["--signatures", "warn"]).outcome();
    assert_eq!((warned.code, &warned.stdout), (Some(0), &expected));
    let notes = |shown: &str| shown.lines().filter(|line| line.contains(": not signed")).count();
    assert!(notes(&warned.stderr) >= 2, "the bundle and the shim: {}", warned.stderr);
    // A warning is not a note that can be silenced.
    let quiet = bench.generates(&bundle).arguments(["--signatures", "warn", "--quiet"]).outcome();
    assert!(notes(&quiet.stderr) >= 2, "the bundle and the shim: {}", quiet.stderr);
    assert!(quiet.stderr.lines().all(|line| line.starts_with("warning: ")), "{}", quiet.stderr);
    // A user who names a key wants it to be checked.
    let named = || bench.generates(&bundle).arguments(["--trust", &bench.public]);
    assert!(notes(&named().outcome().stderr) >= 2, "{}", named().outcome().stderr);
    assert_eq!(notes(&named().arguments(["--signatures", "off"]).outcome().stderr), 0);

    let signed = bench.signs(&bundle).arguments(["--name", "demo", "--release", "3"]).json();
    assert_eq!((&signed["kind"], &signed["name"]), (&"bundle".into(), &"demo".into()), "{signed}");
    // Now the bundle is signed, but the shim is not.
    refused(bench.requires(&bundle), MISSING, &["no shim is named `cpu`", "shim.json: not signed"]);
    refused(bench.signs(&bench.manifest()), UNTRUSTED, &["hash of its library", "shim hash"]);
    shardwright(["shim", "hash"]).argument(bench.manifest()).succeeds();
    bench.signs(&bench.manifest()).succeeds();
    assert_eq!(bench.requires(&bundle).succeeds(), expected);
    assert_eq!(bench.requires(&bundle).arguments(["--isolation", "process"]).succeeds(), expected);
    let shown = shardwright(["trust", "show"]).argument(&bundle).succeeds();
    assert!(shown.contains("`demo`, release 3") && shown.contains(&bench.public), "{shown}");
    let inspected = shardwright(["inspect"]).argument(&bundle).succeeds();
    assert!(inspected.contains("signed as `demo`, release 3"), "{inspected}");

    // Another bundle signed with the same key is not the expected one.
    let expects =
        |name: &str| bench.generates(&bundle).arguments(["--trust", &bench.public, "--expect", name]);
    let words = ["signed as `demo`, expected `gemma`"];
    refused(expects("gemma"), UNTRUSTED, &words);
    refused(expects("gemma").arguments(["--signatures", "off"]), UNTRUSTED, &words);
    assert_eq!(expects("demo").succeeds(), expected);
    for command in ["explain", "inspect", "needs", "doctor"] {
        let asks = |name: &str| {
            let run = shardwright([command, "--trust", &bench.public, "--expect", name]).argument(&bundle);
            run.argument("--shims").argument(bench.path("shims"))
        };
        refused(asks("gemma"), UNTRUSTED, &words);
        asks("demo").succeeds();
    }
    let checkpoint = TEXT_FIXTURES[0];
    let measured: &[&str] = &["--text", "README.md", "--window", "16", "--chunks", "1"];
    let texts = bench.path("texts").display().to_string();
    let prompts = bench.path("prompts").display().to_string();
    fs::write(&prompts, "Hi\n").expect("written");
    for (before, after) in [
        (&["plan", "diff"][..], &[&*bundle.to_string_lossy()][..]),
        (&["tune"], &["--checkpoint", checkpoint, "--minutes", "0"]),
        (&["verify", checkpoint, "--bundle"], &["--rows", "4", "--steps", "1", "--greedy", "1"]),
        (&["bench"], &["-p", "4", "-n", "2", "-r", "1"]),
        (&["perplexity"], measured),
        (&["perplexity", checkpoint, "--against"], measured),
        (&["calibration-text"], &["-o", &texts, "--prompts", &prompts, "--tokens", "4", "--longest", "4"]),
    ] {
        let asks = |name: &str| {
            let run = shardwright(before).argument(&bundle).arguments(after);
            let run = run.environment("SHARDWRIGHT_SHIM_PATH", bench.path("shims"));
            run.arguments(["--trust", &bench.public, "--expect", name])
        };
        refused(asks("gemma"), UNTRUSTED, &words);
        asks("demo").succeeds();
    }
    let embeds = Compiled::from(EMBEDDING_FIXTURE, [] as [&str; 0]);
    bench.signs(&embeds.path()).arguments(["--name", "demo", "--release", "1"]).succeeds();
    let embeds = |name: &str| {
        let run = shardwright(["embed"]).argument(embeds.path()).argument("a text");
        run.arguments(["--trust", &bench.public, "--expect", name])
    };
    refused(embeds("gemma"), UNTRUSTED, &words);
    embeds("demo").succeeds();
    let laid_out = ["pack", "--trust", &bench.public, "--expect", "gemma", "-o"];
    refused(shardwright(laid_out).argument(bench.path("no.swb")).argument(&bundle), UNTRUSTED, &words);
    let usage = |run: Run| refused(run.arguments(["--expect", "demo"]), 2, &["--expect needs a bundle"]);
    usage(shardwright(["run", TEXT_FIXTURES[0], "-p", "a"]));
    usage(shardwright(["inspect", TEXT_FIXTURES[0]]));
    usage(shardwright(["doctor"]));
    usage(shardwright(["verify", TEXT_FIXTURES[0]]));
    usage(shardwright(["tune", TEXT_FIXTURES[0]]));
    usage(shardwright(["bench", TEXT_FIXTURES[0]]));
    usage(shardwright(["embed", EMBEDDING_FIXTURE, "a text"]));
    usage(shardwright(["calibration-text", TEXT_FIXTURES[0], "-o"]).argument(bench.path("others")));
    let compared = ["perplexity", TEXT_FIXTURES[0], "--text", "README.md"];
    usage(shardwright(compared));
    usage(shardwright(compared).arguments(["--against", TEXT_FIXTURES[0]]));
    let plan = bench.path("plan.json");
    let planned = shardwright(["plan", TEXT_FIXTURES[0], "--format", "json"]).succeeds();
    std::fs::write(&plan, planned).expect("written");
    usage(shardwright(["plan", "diff"]).argument(&plan).argument(&plan));

    // Packing keeps the signature. A packed bundle is signed in place.
    let packed = bench.path("demo.swb");
    shardwright(["pack"]).argument(&bundle).argument("-o").argument(&packed).succeeds();
    assert_eq!(bench.requires(&packed).succeeds(), expected);
    bench.signs(&packed).arguments(["--name", "demo", "--release", "4"]).succeeds();
    assert_eq!(bench.requires(&packed).succeeds(), expected);

    // A bundle that is laid out for others is signed while it is written.
    let hub = bench.path("hub");
    let run = shardwright(["pack", "--licence", "apache-2.0", "--signed-as", "demo", "--release", "5"]);
    let run = run.argument(&bundle).argument("--hf").argument(&hub);
    run.argument("--key").argument(bench.path("my.key")).succeeds();
    let names = fs::read_dir(&hub).expect("a folder").map(|entry| entry.expect("an entry").path());
    let share = names.into_iter().find(|path| path.extension().is_some_and(|end| end == "swb"));
    let share = share.expect("a bundle");
    assert_eq!(bench.requires(&share).succeeds(), expected);
    let shown = shardwright(["trust", "show"]).argument(&share).succeeds();
    assert!(shown.contains("`demo`, release 5"), "{shown}");

    // Another library in place of the signed one.
    let library = bench.manifest().with_extension("").with_extension("so");
    let mut bytes = fs::read(&library).expect("a library");
    bytes.push(0);
    fs::write(&library, bytes).expect("written");
    refused(bench.requires(&bundle), MISSING, &["no shim is named `cpu`", "SHA-256"]);

    // A changed bundle, a signature by another key, and an invalid signature.
    let manifest = bundle.join("bundle.json");
    let text = fs::read_to_string(&manifest).expect("a manifest");
    fs::write(&manifest, text.replacen("\"family\":\"", "\"family\":\"x", 1)).expect("written");
    refused(bench.requires(&bundle), UNTRUSTED, &[&format!("changed after {} signed it", bench.public)]);
    let shown = shardwright(["trust", "show"]).argument(bench.manifest()).json();
    assert_eq!((&shown["holds"], &shown["kind"]), (&true.into(), &"shim".into()), "{shown}");
    fs::write(&manifest, text).expect("written");
    let stranger = shardwright(["trust", "key"]).argument(bench.path("other.key")).json();
    let stranger = stranger["public"].as_str().expect("a key");
    let run = bench.generates(&bundle).arguments(["--signatures", "require", "--trust", stranger]);
    refused(run, UNTRUSTED, &["not a trusted key", &bench.public]);
    fs::write(bundle.join("bundle.json.sig"), "nonsense").expect("written");
    refused(bench.requires(&bundle), INVALID, &["damaged", "offset"]);
}

#[test]
fn a_withdrawn_release_a_revoked_key_and_an_older_list_are_refused() {
    let bench = Bench::new();
    let bundle = bench.bundle.path();
    bench.signs(&bundle).arguments(["--name", "demo", "--release", "3"]).succeeds();
    shardwright(["shim", "hash"]).argument(bench.manifest()).succeeds();
    bench.signs(&bench.manifest()).succeeds();
    let with = |list: &Path| bench.requires(&bundle).argument("--revocations").argument(list);

    let first = bench.revokes(1, &[]);
    let expected = with(&first).succeeds();
    let second = bench.revokes(2, &["--least", "bundle:demo:4"]);
    let withdrawn = "release 3 of bundle `demo` was withdrawn, expected release 4 or later";
    refused(with(&second), UNTRUSTED, &[withdrawn, "later release"]);
    // The older list, which allowed the bundle, is now refused.
    refused(with(&first), UNTRUSTED, &["number 1 is older than number 2", "latest list"]);
    bench.signs(&bundle).arguments(["--name", "demo", "--release", "4"]).succeeds();
    assert_eq!(with(&second).succeeds(), expected);

    // Another root revokes the key that signed.
    let root = shardwright(["trust", "key"]).argument(bench.path("root.key")).json();
    let root = root["public"].as_str().expect("a key");
    let list = bench.path("of-the-root");
    let run =
        shardwright(["trust", "revoke", "--list", "root", "--sequence", "1", "--revoke", &bench.public]);
    run.argument("--key").argument(bench.path("root.key")).argument("-o").argument(&list).succeeds();
    let shown = shardwright(["trust", "show"]).argument(&list).succeeds();
    assert!(shown.contains(&format!("revoked: {}", bench.public)), "{shown}");
    let run = bench.requires(&bundle).arguments(["--trust", root]).argument("--revocations").argument(&list);
    refused(run, UNTRUSTED, &["was revoked (list 1)", &bench.public]);
    // A list that was not signed with a trusted key.
    refused(with(&list), UNTRUSTED, &["not a trusted key", root]);
    fs::write(&list, "nonsense").expect("written");
    refused(with(&list), INVALID, &["damaged"]);
}

/// A list of another trusted key, in place of the list that withdraws a release.
#[test]
fn the_list_of_one_key_does_not_replace_that_of_another() {
    let bench = Bench::new();
    let bundle = bench.bundle.path();
    bench.signs(&bundle).arguments(["--name", "demo", "--release", "3"]).succeeds();
    shardwright(["shim", "hash"]).argument(bench.manifest()).succeeds();
    bench.signs(&bench.manifest()).succeeds();
    let other = shardwright(["trust", "key"]).argument(bench.path("other.key")).json();
    let other = other["public"].as_str().expect("a key");
    let theirs = bench.path("theirs");
    let run = shardwright(["trust", "revoke", "--list", "acme", "--sequence", "1", "-o"]).argument(&theirs);
    run.argument("--key").argument(bench.path("other.key")).succeeds();
    let with = |run: Run, lists: &[&Path]| {
        let run = run.arguments(["--trust", other]);
        lists.iter().fold(run, |run, list| run.argument("--revocations").argument(list))
    };

    let own = bench.revokes(1, &["--least", "bundle:demo:4"]);
    let withdrawn = ["release 3 of bundle `demo` was withdrawn, expected release 4 or later"];
    refused(with(bench.requires(&bundle), &[&own]), UNTRUSTED, &withdrawn);
    let missing = ["`acme`", &bench.public, "is not given", "help: give the latest list"];
    refused(with(bench.requires(&bundle), &[&theirs]), UNTRUSTED, &missing);
    refused(with(bench.requires(&bundle), &[&theirs, &own]), UNTRUSTED, &withdrawn);
    let warns = with(bench.generates(&bundle), &[&theirs]).arguments(["--trust", &bench.public]).outcome();
    assert_eq!(warns.code, Some(0), "{}", warns.stderr);
    let is_missing = |line: &str| {
        line.starts_with("warning: ")
            && line.contains("is not given")
            && line.contains("give the latest list")
    };
    assert!(warns.stderr.lines().any(is_missing), "{}", warns.stderr);
}

/// Returns the words of a command line, without the quotes around some of them.
fn words(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for (index, part) in line.split(['"', '\'']).enumerate() {
        match index % 2 {
            0 => words.extend(part.split_whitespace()),
            _ => words.push(part),
        }
    }
    words
}

#[test]
fn the_examples_of_the_help_succeed() {
    let bench = Bench::new();
    let bundle = bench.bundle.path().display().to_string();
    // The first example makes the key.
    fs::remove_file(bench.path("my.key")).expect("removed");
    let (mut public, mut ran) = (bench.public.clone(), 0);
    for command in ["sign", "revoke"] {
        let help = shardwright(["trust", command, "--help"]).succeeds();
        for line in help.lines().filter_map(|line| line.trim_start().strip_prefix("shardwright ")) {
            let words = words(line).into_iter().map(|word| match word {
                "demo.bundle" => &*bundle,
                "KEY" => &*public,
                word => word,
            });
            let run = shardwright(words).within(bench.folder.path());
            let run = run.environment("XDG_CACHE_HOME", bench.path("cache"));
            if line.starts_with("trust key ") {
                public = run.json()["public"].as_str().expect("a key").to_owned();
            } else {
                run.succeeds();
            }
            ran += 1;
        }
    }
    assert_eq!(ran, 5);
}

/// The built-in planner does not replace a planner that the rules refuse.
#[test]
fn a_planner_that_is_not_signed_as_required_ends_planning() {
    let bench = Bench::new();
    let planner = bench.path("even.wasm");
    fs::copy(program::folder().join("planners/even.wasm"), &planner).expect("built");
    let plans = || {
        let plan = shardwright(["plan", TEXT_FIXTURES[0], "--soc", "mt6989", "--no-measure", "--planner"]);
        plan.argument(&planner).arguments(["--signatures", "require", "--trust", &bench.public])
    };
    // The shims are not signed either, which did not stop the planner.
    let (code, said) = plans().refuses();
    assert!(code == UNTRUSTED && said.contains("even.wasm: not signed"), "{code}: {said}");
    assert!(!said.contains("shim.json"), "{said}");
    bench.signs(&planner).succeeds();
    let plan = plans().succeeds();
    assert!(plan.contains("even"), "{plan}");
    // The file of the planner was changed after signing.
    let mut bytes = fs::read(&planner).expect("read");
    *bytes.last_mut().expect("bytes") ^= 1;
    fs::write(&planner, bytes).expect("written");
    refused(plans(), UNTRUSTED, &["even.wasm"]);
}

/// If the key file exists, its public half is shown again.
#[test]
fn a_key_that_exists_is_kept_and_its_public_half_is_shown() {
    let bench = Bench::new();
    let again = shardwright(["trust", "key"]).argument(bench.path("my.key"));
    refused(again, 2, &["is already a key", &bench.public]);
}
