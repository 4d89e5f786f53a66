//! Runs the commands in fences of a page as written: by a shell, in the order of the page, in a
//! folder that looks like a fresh clone with a build, without any of the project's variables set.
//! Each page has a test and a folder of its own.
//!
//! The built program replaces `cargo xtask run --` and is found as `shardwright`. A fixture is at
//! `path/to/checkpoint`. Commands that are not run are listed, with the reason.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use shardwright_test_checkpoints::cases;
use shardwright_tests::checkpoints::{Copy, EMBEDDING_FIXTURE, MULTIMODAL_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::{program, qnn, skipped, tree};
use tempfile::TempDir;

/// Pages that are not instructions: one written with its model, and the output of benches.
const NO_INSTRUCTIONS: [&str; 2] = ["demo-model", "tests/benches/results"];

/// Commands that are not run, and why.
const NOT_RUN: &[(&str, &str)] = &[
    ("cargo xtask demo", "`.ci/run` runs it, and `first_page` reads its output"),
    ("cargo xtask demo --model smollm2", "fetches a model; `a_file_alone_answers` has its reply"),
    ("cargo xtask test", "is what runs this"),
    ("cargo xtask build --release", "builds in release and takes minutes"),
    ("cargo xtask vendor qnn", "fetches a library; where it was fetched, what needs it is run"),
    ("cargo xtask vendor models", "fetches models; tests that need them run where they were fetched"),
    (
        "cargo xtask run -- perplexity FOLDER/gemma3-270m/folder --formats as-stored/f32/f32/attention-bf16 --text TEXT --against FOLDER/gemma3-270m/folder",
        "needs the model; `attention_in_16_bits` measures the loss",
    ),
    ("cargo test -p shardwright-tests --bench formats", "takes nine minutes"),
    ("cargo test -p shardwright-tests --bench mixtures -- --compensated", "takes fifteen minutes"),
    ("cargo test -p shardwright-tests --bench mixtures -- --tables", "takes minutes"),
    ("cargo test -p shardwright-tests --bench ranks", "takes minutes"),
    ("cargo test -p shardwright-tests --bench ranks -- --compensated", "takes minutes"),
    ("cargo test -p shardwright-tests --bench plans", "takes minutes"),
    ("cargo test -p shardwright-tests --bench plans -- size=4000000000 e2b", "takes minutes"),
    (
        "SHARDWRIGHT_QNN_LIB=… cargo test -p shardwright-tests --bench plans -- e2b sm8850 texts=rewriting",
        "takes minutes the first time",
    ),
    ("SHARDWRIGHT_QNN_LIB=… cargo test -p shardwright-tests --bench transferred_losses", "takes six minutes"),
    (
        "cargo test --release -p shardwright-tests --bench speculation -- 4 16",
        "builds in release and takes minutes",
    ),
    (
        "cargo test --release -p shardwright-tests --bench speculation -- 16 w8-per-channel/a8-dynamic/f32",
        "builds in release and takes minutes",
    ),
    (
        "cargo test --release -p shardwright-tests --bench speculation -- deeper=96 stored \
         w8-per-channel/a8-dynamic/f32",
        "builds in release and takes minutes",
    ),
    ("cargo xtask bench lookup", "builds llama.cpp, and takes minutes"),
    ("cargo xtask bench quality ESSAY.txt MANUAL.txt QUIPS.txt", "builds llama.cpp, and takes hours"),
    (
        "cargo run --release -p shardwright-tests --example e2b_towers -- DIRECTORY",
        "builds in release and writes a gigabyte",
    ),
    ("python tests/examples/e2b_towers.py DIRECTORY", "needs PyTorch"),
    ("python3 -m venv venv", "is for the next lines"),
    ("venv/bin/pip install -r requirements.txt", "fetches PyTorch"),
    ("venv/bin/python make_lora.py --peft", "needs PyTorch"),
    (
        "shardwright run MODEL --tools tools.json --prompt \"How is the weather in Bern?\"",
        "needs a model that calls tools; `tools` has scripted ones",
    ),
    ("cargo xtask bench formats", "builds in release and takes minutes"),
    ("cargo xtask bench pair BUNDLE model.gguf", "builds llama.cpp; the tests of xtask play it"),
    (
        "cargo bench -p shardwright-shim-cpu --bench kernels -- integer head 2 8 16 32 64",
        "builds in release and takes minutes",
    ),
    ("shardwright bench BUNDLE -p 512 -n 128 -t 4", "is for other machines"),
    ("shardwright bench BUNDLE -p 512 -n 128 -t 8", "is for other machines"),
    ("cargo xtask sizes", "builds in release twice and takes minutes"),
    ("cargo xtask bench peers", "takes hours"),
    ("cargo xtask bench peers gemma3-270m", "takes hours"),
    ("cargo xtask bench peers published", "takes hours"),
    ("cargo xtask bench versions MODEL FOLDER", "needs an earlier program; the tests of xtask play pairs"),
    (
        "export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=0",
        "is for the build of the next line",
    ),
    (
        "cargo test --target x86_64-unknown-linux-gnu --target-dir target/sanitized -p shardwright-shim-cpu --lib --test engine",
        "builds everything again under a sanitizer",
    ),
    (
        "MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test --target-dir target/miri -p shardwright-shim-cpu --lib -- artefact integer::pack integer::split::tests::a_",
        "needs a nightly toolchain and takes hours",
    ),
    (
        "cargo test --manifest-path my-planner/Cargo.toml",
        "the tests of `plugins/example-policy` are those of the workspace",
    ),
    ("shardwright serve demo-model", "serves until it is stopped; `howto_serve` starts it"),
    ("shardwright serve demo-model --address 0.0.0.0 --api-key keys.txt", "serves until it is stopped"),
    (
        "shardwright serve demo-model --isolation process",
        "serves until it is stopped; `serve::losses` kills its workers",
    ),
    (
        "shardwright serve chat=demo-model embed=path/to/embeddinggemma --memory-budget 6GB",
        "serves until it is stopped",
    ),
    (
        "curl -sN http://127.0.0.1:8080/v1/chat/completions -H \"Content-Type: application/json\" -d '{\"model\": \"demo-model\", \"temperature\": 0, \"messages\": [{\"role\": \"user\", \"content\": \"What does bug mean?\"}]}'",
        "needs the server; see `howto_serve`",
    ),
    ("npm install --prefix plugins/javascript --no-package-lock", "`cargo xtask test` has what it installs"),
    (
        "npm run --prefix plugins/javascript build",
        "would write into the tree; `howto_javascript` does it, and what follows",
    ),
    ("shardwright planner check plugins/javascript/even-js.wasm", "see `howto_javascript`"),
    ("npm run --prefix plugins/javascript build-policy", "see `howto_javascript`"),
    (
        "shardwright planner compose plugins/javascript/policy-js.wasm -o policy.wasm",
        "see `howto_javascript`",
    ),
    ("shardwright planner check policy.wasm", "see `howto_javascript`"),
    ("shardwright plan CHECKPOINT --planner plugins/javascript/even-js.wasm", "see `howto_javascript`"),
    ("shardwright pull google/gemma-3-270m", "needs the network; `hub` pulls from a hub on this machine"),
    ("shardwright run google/gemma-3-270m --prompt \"In the beginning\"", "needs the model; see `hub`"),
    ("shardwright pull unsloth/gemma-3-270m-it-GGUF:Q4_K_M", "needs the network; see `hub`"),
    (
        "shardwright run unsloth/gemma-3-270m-it-GGUF:Q4_K_M --prompt \"What is a shard?\"",
        "needs the model; see `hub`",
    ),
    ("HUB=https://huggingface.co/Qwen/Qwen3-0.6B/resolve/main", "is for the next lines"),
    (
        "mkdir -p model && curl -fsSL \"$HUB/config.json\" -o model/config.json",
        "needs the network; a header is put there by hand",
    ),
    ("N=$(curl -fsSL -r 0-7 --max-filesize 8 \"$HUB/model.safetensors\" | od -An -tu8)", "needs the network"),
    (
        "curl -fsSL -r 0-$((7 + N)) --max-filesize $((8 + N)) \"$HUB/model.safetensors\" -o model/model.safetensors",
        "needs the network",
    ),
    ("rustup target add aarch64-linux-android", "downloads a target"),
    (
        "export CARGO_TARGET_AARCH64_LINUX_ANDROID_LINKER=\"$ANDROID_NDK_HOME/toolchains/llvm/prebuilt/linux-x86_64/bin/aarch64-linux-android30-clang\"",
        "is for the build of the next line",
    ),
    (
        "cargo build --release --target aarch64-linux-android -p shardwright-worker \
         -p shardwright-shim-cpu-library -p shardwright-shim-neuron-library -p shardwright-shim-qnn-library",
        "needs Android's NDK; `cargo xtask platforms` checks that the worker and these shims compile",
    ),
    (
        "shardwright planner build my-planner -o my-planner.wasm",
        "needs cargo: `howto_soc_and_planner` does it, and the built example replaces its result below",
    ),
];

/// The checkpoint of a reader. It is of the family whose headers a page fetches. Commands about
/// results for a trained model name the demo model.
const CHECKPOINT: &str = TEXT_FIXTURES[3];

const WEIGHTS: &str = "model.safetensors";

/// An action in the folder of a page's commands.
type Deed = fn(&Path);

/// Actions before a command of a page that a reader does by hand, or by a command that is not run.
const BY_HAND: &[(&str, Deed)] = &[
    ("shardwright run demo-model --json-schema person.json --prompt \"Who are you?\"", |folder| {
        write_from_page(folder, "docs/using.md", "person.json");
    }),
    ("shardwright run demo-model --grammar list.lark --prompt \"Name three colours.\"", |folder| {
        write_from_page(folder, "docs/using.md", "list.lark");
    }),
    ("shardwright plan CHECKPOINT --soc my-chip --profiles profiles-here", |folder| {
        let text = tree::read(Path::new("plugins/profiles/generic.json"));
        let named = text.replace("\"name\": \"generic\"", "\"name\": \"my-chip\"");
        fs::create_dir(folder.join("profiles-here")).expect("a folder");
        fs::write(folder.join("profiles-here/my-chip.json"), named).expect("written");
    }),
    ("cargo xtask run -- plan model --soc mt6989", |folder| {
        let checkpoint = Copy::of(CHECKPOINT);
        fs::create_dir(folder.join("model")).expect("a folder");
        fs::copy(checkpoint.file("config.json"), folder.join("model/config.json")).expect("copied");
        fs::copy(checkpoint.only_header().file(WEIGHTS), folder.join("model").join(WEIGHTS)).expect("copied");
    }),
    ("shardwright planner check my-planner.wasm", |folder| {
        let built = program::folder().join("planners/example-policy.wasm");
        fs::copy(built, folder.join("my-planner.wasm")).expect("the example planner was built");
    }),
];

/// Writes a file as the fence after ``The file `NAME`:`` of a page shows it.
fn write_from_page(folder: &Path, page: &str, name: &str) {
    let page = tree::read(page.as_ref());
    let (_, rest) = page.split_once(&format!("The file `{name}`:\n\n```")).expect("the file on the page");
    let (shown, _) = rest.split_once("\n```").expect("the end of the fence");
    let (_, text) = shown.split_once('\n').expect("a fence with lines");
    fs::write(folder.join(name), text).expect("written");
}

/// A command of a page.
struct PageCommand {
    line: usize,
    text: String,
}

/// Returns the pages with commands in fences, and those commands.
fn pages() -> Vec<(PathBuf, Vec<PageCommand>)> {
    let Some(files) = tree::files() else {
        skipped("commands of pages: no git repository to list the project's files");
        return Vec::new();
    };
    let is_page = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "md")
            && !NO_INSTRUCTIONS.iter().any(|folder| path.starts_with(folder))
    };
    let pages = files.into_iter().filter(is_page).map(|path| {
        let on_page = commands(&tree::read(&path));
        (path, on_page)
    });
    pages.filter(|(_, on_page)| !on_page.is_empty()).collect()
}

/// Returns the shell commands in the fences of a page, without comments and with continuation lines
/// joined.
fn commands(page: &str) -> Vec<PageCommand> {
    let (mut fence, mut found, mut begun) = (None, Vec::new(), None::<PageCommand>);
    for (index, line) in page.lines().enumerate() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            fence = if fence.is_some() { None } else { Some(language.trim()) };
            continue;
        }
        if !matches!(fence, Some("sh" | "bash" | "shell" | "console")) {
            continue;
        }
        let line = line.split(" #").next().unwrap_or_default().trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (part, continues) = match line.strip_suffix('\\') {
            Some(part) => (part, true),
            None => (line, false),
        };
        let command = begun.get_or_insert(PageCommand { line: index + 1, text: String::new() });
        command.text.extend(part.split_whitespace().flat_map(|word| [word, " "]));
        if !continues && let Some(mut command) = begun.take() {
            command.text.truncate(command.text.trim_end().len());
            found.push(command);
        }
    }
    found
}

/// Creates a clone with a build, as far as the commands of a page need it.
fn clone() -> TempDir {
    let clone = tempfile::tempdir().expect("a temporary folder");
    let root = tree::root();
    let link = |from: &Path, to: &str| symlink(from, clone.path().join(to)).expect("a link");
    for folder in ["demo-model", "host", "planner", "plugins", "tests", "vendor-shims", "wit"] {
        link(&root.join(folder), folder);
    }
    for folder in ["path/to", "target", "bin"] {
        fs::create_dir_all(clone.path().join(folder)).expect("a folder");
    }
    link(program::folder(), "target/debug");
    for name in ["path/to/checkpoint", "CHECKPOINT"] {
        link(&root.join(CHECKPOINT), name);
    }
    link(&root.join(EMBEDDING_FIXTURE), "path/to/embeddinggemma");
    link(&root.join(MULTIMODAL_FIXTURE), "path/to/multimodal");
    let files = root.join("host/preprocessing/tests/preprocessing/files");
    for name in ["picture.jpg", "cat.jpg", "dog.jpg"] {
        link(&files.join("smooth.jpg"), name);
    }
    link(&files.join("sine_16k.flac"), "sound.flac");
    link(&program::executable(), "bin/shardwright");
    // In addition to building, `cargo xtask run` sets the path of a fetched library.
    let fetched = std::env::var("SHARDWRIGHT_QNN_LIB").unwrap_or_default();
    let cargo = format!(
        "#!/bin/sh\n\
         if [ \"$1 $2 $3\" != 'xtask run --' ]; then echo \"not run here: cargo $*\" >&2; exit 97; fi\n\
         shift 3\n\
         if [ -n '{fetched}' ]; then export SHARDWRIGHT_QNN_LIB='{fetched}'; fi\n\
         exec shardwright \"$@\"\n"
    );
    let file = clone.path().join("bin/cargo");
    fs::write(&file, cargo).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("made a program");
    clone
}

/// Pages whose commands store measurements that change later plans of the same checkpoint. They use
/// a separate cache, because other tests plan for it meanwhile.
const KEEP_MEASUREMENTS: [&str; 2] = ["docs/sensitivity.md", "docs/tuning.md"];

/// A time limit in the pages, and the shorter one used here. Measuring begins in any case.
const MINUTES: (&str, &str) = ("--minutes 1", "--minutes 0.01");

/// Runs a command as a reader's shell would, with this cache or the user's.
fn run(text: &str, clone: &Path, cache: Option<&Path>) -> Result<(), String> {
    let text = &text.replace(MINUTES.0, cases(MINUTES.1, MINUTES.0));
    let mut path = clone.join("bin").into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut command = Command::new("sh");
    command.args(["-euc", text]).current_dir(clone).stdin(Stdio::null()).env("PATH", path);
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        if ["SHARDWRIGHT_", "MTKNN_", "CARGO"].iter().any(|prefix| name_text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    if let Some(cache) = cache {
        command.env("XDG_CACHE_HOME", cache);
    }
    let outcome = program::finished(command);
    match outcome.code {
        Some(0) => Ok(()),
        code => Err(format!("{code:?}\n{}{}", outcome.stdout, outcome.stderr)),
    }
}

/// Checks whether a command needs Qualcomm's library.
fn needs_qnn(text: &str) -> bool {
    text.contains("--soc sm8850")
}

fn is_listed(text: &str) -> bool {
    NOT_RUN.iter().any(|(listed, _)| *listed == text)
}

/// Runs the commands of a page for which `chosen` is true.
fn follow(page: &str, chosen: impl Fn(&str) -> bool) {
    let on_page = commands(&tree::read(page.as_ref()));
    let clone = clone();
    let cache = KEEP_MEASUREMENTS.contains(&page).then(|| clone.path().join("cache"));
    if let Some(cache) = &cache {
        program::share_planner(cache);
    }
    let mut failed = Vec::new();
    let run_here = |command: &&PageCommand| !is_listed(&command.text) && chosen(&command.text);
    for PageCommand { line, text } in on_page.iter().filter(run_here) {
        if let Some((_, by_hand)) = BY_HAND.iter().find(|(before, _)| before == text) {
            by_hand(clone.path());
        }
        if let Err(why) = run(text, clone.path(), cache.as_deref()) {
            failed.push(format!("{page}:{line}: `{text}`: {why}"));
        }
    }
    assert!(failed.is_empty(), "commands that fail:\n{}", failed.join("\n"));
}

/// Declares the test of each page.
macro_rules! pages {
    ($($test:ident: $page:literal,)*) => {
        /// The pages with commands to run.
        const PAGES: &[&str] = &[$($page),*];

        $(
            #[test]
            fn $test() {
                follow($page, |text| !needs_qnn(text));
            }
        )*
    };
}

pages! {
    the_commands_of_the_first_page_work: "README.md",
    the_commands_about_benchmarks_work: "docs/benchmarks/cpu.md",
    the_commands_about_delivery_work: "docs/delivery.md",
    the_commands_about_integration_work: "docs/how-to/integrate.md",
    the_commands_about_perplexity_work: "docs/perplexity.md",
    the_commands_about_sensitivity_work: "docs/sensitivity.md",
    the_commands_about_tuning_work: "docs/tuning.md",
    the_commands_about_using_the_program_work: "docs/using.md",
    the_commands_of_the_public_crate_work: "host/shardwright/README.md",
    the_commands_about_planners_work: "plugins/README.md",
    the_commands_about_shims_work: "vendor-shims/README.md",
}

/// Uses Qualcomm's simulator, which needs a second per token.
#[test]
fn the_commands_for_qualcomm_s_chips_work() {
    if qnn::library() {
        let has_some = |page: &&&str| commands(&tree::read(page.as_ref())).iter().any(|c| needs_qnn(&c.text));
        PAGES.iter().filter(has_some).for_each(|page| follow(page, needs_qnn));
    }
}

#[test]
fn every_page_with_commands_has_a_test() {
    let runs = |on_page: &[PageCommand]| on_page.iter().any(|command| !is_listed(&command.text));
    let found: BTreeSet<PathBuf> =
        pages().into_iter().filter(|(_, on_page)| runs(on_page)).map(|(page, _)| page).collect();
    if !found.is_empty() {
        assert_eq!(found, PAGES.iter().map(PathBuf::from).collect::<BTreeSet<_>>());
    }
}

/// Words of pages that tell a reader to use a phone or Android's tools.
const OF_PHONES: [&str; 3] = ["--adb", "bundletool", "aarch64-linux-android"];

/// No test has a phone, so these pages state that their steps are untested there.
#[test]
fn pages_with_steps_for_phones_state_that_they_are_untested() {
    let texts = PAGES.iter().map(|page| (page, tree::read(page.as_ref())));
    let of_phones: Vec<_> =
        texts.filter(|(_, text)| OF_PHONES.iter().any(|word| text.contains(word))).collect();
    assert!(of_phones.len() > 1, "{of_phones:?}");
    for (page, text) in of_phones {
        assert!(text.replace('\n', " ").contains("untested on a phone"), "{page}");
    }
}

#[test]
fn commands_that_are_not_run_are_on_a_page() {
    let pages = pages();
    if pages.is_empty() {
        return;
    }
    let all: Vec<&str> =
        pages.iter().flat_map(|(_, on_page)| on_page).map(|command| command.text.as_str()).collect();
    assert!(all.len() > 20, "{all:?}");
    let listed = NOT_RUN.iter().map(|(text, _)| *text).chain(BY_HAND.iter().map(|(text, _)| *text));
    let gone: Vec<&str> = listed.filter(|text| !all.contains(text)).collect();
    assert!(gone.is_empty(), "on no page any more: {gone:?}");
    assert!(NOT_RUN.iter().all(|(_, reason)| !reason.is_empty()));
}

/// Tests, files and commands that a reason names exist.
#[test]
fn reasons_name_what_exists() {
    let Some(files) = tree::rust_files() else {
        return skipped("reasons of commands that are not run: no git repository lists the project's files");
    };
    let tests: String =
        files.iter().filter(|file| file.starts_with("tests/tests")).map(|file| tree::read(file)).collect();
    let help = tree::read(Path::new("xtask/src/cli.rs"));
    let exists = |name: &str| {
        if let Some(command) = name.strip_prefix("cargo xtask ") {
            return help.contains(&format!("\n  {command} "));
        }
        let module = format!("{}.rs", name.replace("::", "/"));
        let is_module = |folder: &str| tree::root().join("tests/tests").join(folder).join(&module).is_file();
        tree::root().join(name).exists()
            || ["program", "numbers"].into_iter().any(is_module)
            || tests.contains(&format!("\nfn {name}() {{"))
    };
    let script = tree::read(Path::new(".ci/run"));
    for (command, reason) in NOT_RUN {
        for name in reason.split('`').skip(1).step_by(2) {
            assert!(exists(name), "`{command}`: {reason}: no `{name}`");
        }
        if reason.contains("`.ci/run` runs it") {
            assert!(script.contains(&format!("\n    {command} ")), "{command}");
        }
    }
}

#[test]
fn fences_are_read_as_a_shell_reads_them() {
    let page = "text\n```sh\n# a comment\none  two   # three\n\nfour \\\n  five\n```\n```json\n{}\n```\n   ```sh\n   six\n   ```\n";
    let found: Vec<(usize, String)> =
        commands(page).into_iter().map(|command| (command.line, command.text)).collect();
    let wanted = [(4, "one two"), (6, "four five"), (13, "six")];
    assert_eq!(found, wanted.map(|(line, text)| (line, text.to_owned())));
}
