//! Signatures as a user sees them: made, required, revoked and withdrawn, with the reports on each.

pub(crate) mod commands;
mod variants;

use std::fs;
use std::path::{Path, PathBuf};

use shardwright_tests::bundles::Compiled;
use shardwright_tests::checkpoints::TEXT_FIXTURES;
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

pub(crate) fn refused(run: Run, code: i32, words: &[&str]) {
    run.refuses_with(code, words);
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
    let checked = named().outcome().stderr;
    assert!(notes(&checked) >= 2, "{checked}");
    assert_eq!(notes(&named().arguments(["--signatures", "off"]).outcome().stderr), 0);

    let signed = bench.signs(&bundle).arguments(["--name", "demo", "--release", "3"]).json();
    assert_eq!((&signed["kind"], &signed["name"]), (&"bundle".into(), &"demo".into()), "{signed}");
    // Now the bundle is signed, but the shim is not.
    refused(bench.requires(&bundle), MISSING, &["no shim is named `cpu`", "shim.json: not signed"]);
    refused(bench.signs(&bench.manifest()), UNTRUSTED, &["hash of its library", "shim hash"]);
    shardwright(["shim", "hash"]).argument(bench.manifest()).succeeds();
    bench.signs(&bench.manifest()).succeeds();
    assert_eq!(bench.requires(&bundle).arguments(["--isolation", "process"]).succeeds(), expected);
    let shown = shardwright(["trust", "show"]).argument(&bundle).succeeds();
    assert!(shown.contains("`demo`, release 3") && shown.contains(&bench.public), "{shown}");
    let inspected = shardwright(["inspect"]).argument(&bundle).succeeds();
    assert!(inspected.contains("signed as `demo`, release 3"), "{inspected}");

    // Another bundle signed with the same key is not the expected one, also where signatures are
    // not checked.
    let expects =
        |name: &str| bench.generates(&bundle).arguments(["--trust", &bench.public, "--expect", name]);
    let words = ["signed as `demo`, expected `gemma`"];
    refused(expects("gemma").arguments(["--signatures", "off"]), UNTRUSTED, &words);
    assert_eq!(expects("demo").succeeds(), expected);

    // Packing keeps the signature. A packed bundle is signed in place.
    let packed = bench.path("demo.swb");
    shardwright(["pack"]).argument(&bundle).argument("-o").argument(&packed).succeeds();
    assert_eq!(bench.requires(&packed).succeeds(), expected);
    bench.signs(&packed).arguments(["--name", "demo", "--release", "4"]).succeeds();
    assert_eq!(bench.requires(&packed).succeeds(), expected);
    a_share_is_signed(&bench, &expected);
    what_was_changed_or_signed_by_another_is_refused(&bench);
}

/// A bundle that is laid out for others is signed while it is written.
fn a_share_is_signed(bench: &Bench, expected: &str) {
    let hub = bench.path("hub");
    let run = shardwright(["pack", "--licence", "apache-2.0", "--signed-as", "demo", "--release", "5"]);
    let run = run.argument(bench.bundle.path()).argument("--hf").argument(&hub);
    run.argument("--key").argument(bench.path("my.key")).succeeds();
    let names = fs::read_dir(&hub).expect("a folder").map(|entry| entry.expect("an entry").path());
    let share = names.into_iter().find(|path| path.extension().is_some_and(|end| end == "swb"));
    let share = share.expect("a bundle");
    assert_eq!(bench.requires(&share).succeeds(), expected);
    let shown = shardwright(["trust", "show"]).argument(&share).succeeds();
    assert!(shown.contains("`demo`, release 5"), "{shown}");
}

fn what_was_changed_or_signed_by_another_is_refused(bench: &Bench) {
    let bundle = bench.bundle.path();
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
    the_list_of_one_key_does_not_replace_that_of_another(&bench, &second, withdrawn);
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

/// A list of another trusted key, in place of the list `own` that withdraws a release.
fn the_list_of_one_key_does_not_replace_that_of_another(bench: &Bench, own: &Path, withdrawn: &str) {
    let bundle = bench.bundle.path();
    let other = shardwright(["trust", "key"]).argument(bench.path("other.key")).json();
    let other = other["public"].as_str().expect("a key");
    let theirs = bench.path("theirs");
    let run = shardwright(["trust", "revoke", "--list", "acme", "--sequence", "1", "-o"]).argument(&theirs);
    run.argument("--key").argument(bench.path("other.key")).succeeds();
    let with = |run: Run, lists: &[&Path]| {
        let run = run.arguments(["--trust", other]);
        lists.iter().fold(run, |run, list| run.argument("--revocations").argument(list))
    };

    let missing = ["`acme`", &bench.public, "is not given", "help: give the latest list"];
    refused(with(bench.requires(&bundle), &[&theirs]), UNTRUSTED, &missing);
    refused(with(bench.requires(&bundle), &[&theirs, own]), UNTRUSTED, &[withdrawn]);
    let warns = with(bench.generates(&bundle), &[&theirs]).arguments(["--trust", &bench.public]).outcome();
    assert_eq!(warns.code, Some(0), "{}", warns.stderr);
    let mut warnings = warns.stderr.lines().filter(|line| line.starts_with("warning: "));
    let words = ["is not given", "give the latest list"];
    assert!(warnings.any(|line| words.iter().all(|word| line.contains(word))), "{}", warns.stderr);
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
    // If the key file exists, it is kept, and its public half is shown again.
    let again = shardwright(["trust", "key"]).argument(bench.path("my.key"));
    refused(again, 2, &["is already a key", &bench.public]);
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
