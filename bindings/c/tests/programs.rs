//! Programs in C and C++ that are compiled with strict warnings against the header and the shared
//! library, and run a bundle of the demo model.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

/// Question that the programs ask.
const QUESTION: &str = "What does bug mean?";

/// Rounds of each of the 8 threads of the stress program: 1,000 opened models together.
const ROUNDS: &str = "125";

fn root() -> PathBuf {
    let folder = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    folder.ancestors().nth(2).expect("the crate is two folders below the root").to_owned()
}

/// Returns the folder with the library: this program is `<target>/<profile>/deps/<this>`, and cargo
/// puts the shared library of a tested crate next to it.
fn library_folder() -> PathBuf {
    let this = std::env::current_exe().expect("the test program's own path");
    this.parent().expect("a folder").to_owned()
}

/// Returns the folder of the program `shardwright` and its shims: `SHARDWRIGHT_BIN_DIR`, or one
/// that is built now.
fn program_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        if let Some(folder) = std::env::var_os("SHARDWRIGHT_BIN_DIR") {
            return folder.into();
        }
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        let target = library_folder().ancestors().nth(2).expect("the target folder").to_owned();
        build.current_dir(root()).args(["xtask", "build"]).env("CARGO_TARGET_DIR", &target);
        assert!(build.status().expect("cargo starts").success(), "the program does not build");
        target.join("debug")
    })
}

/// Runs a command and returns its output.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{stderr}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Returns the path of a bundle of the demo model. Its name is not ASCII.
fn bundle() -> &'static Path {
    static BUNDLE: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = BUNDLE.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("m\u{f6}del \u{6a21}\u{578b}");
        let mut compile = Command::new(program_folder().join("shardwright"));
        compile.current_dir(root()).args(["compile", "demo-model", "--context", "256", "-o"]).arg(&path);
        output(&mut compile);
        (folder, path)
    });
    path
}

/// Reports that a check was skipped. The line bypasses the capture of the test harness, and `cargo
/// xtask test --ci` fails because of it.
fn skipped(why: &str) {
    use std::io::Write;
    // A closed standard output must not fail a test.
    let _ = writeln!(std::io::stdout().lock(), "SKIPPED: {why}");
}

/// Compiles a source in the folder of this crate. Returns `None` without a compiler, which `cargo
/// xtask test` reports.
fn compiled(compiler: &str, source: &str, arguments: &[&str], into: &Path) -> Option<PathBuf> {
    if Command::new(compiler).arg("--version").output().is_err() {
        return None;
    }
    let program =
        into.join(Path::new(source).file_name().unwrap_or(OsStr::new("program"))).with_extension("run");
    let library = library_folder();
    let crate_folder = root().join("bindings/c");
    let mut command = Command::new(compiler);
    command.args(arguments).args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"]);
    command.arg(crate_folder.join("include")).arg(crate_folder.join(source)).arg("-o").arg(&program);
    command.arg("-L").arg(&library).args(["-lshardwright_c", "-pthread"]);
    let mut path = std::ffi::OsString::from("-Wl,-rpath,");
    path.push(&library);
    output(command.arg(path));
    Some(program)
}

/// Returns the command that runs a program with the shims of the project.
fn run(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("SHARDWRIGHT_SHIM_PATH", program_folder().join("shims"));
    command
}

#[test]
fn the_examples_answer_a_question() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (compiler, source, standard) in
        [("cc", "examples/chat.c", "-std=c11"), ("c++", "examples/chat.cc", "-std=c++17")]
    {
        let Some(program) = compiled(compiler, source, &[standard], folder.path()) else { continue };
        let said = output(run(&program).arg(bundle()).arg(QUESTION));
        assert!(said.trim().len() > 3, "{source}: `{said}`");
        let failed = run(&program).arg("absent").arg(QUESTION).output().expect("it runs");
        let stderr = String::from_utf8_lossy(&failed.stderr);
        assert!(failed.status.code() == Some(1) && stderr.contains("error: "), "{source}: {stderr}");
    }
}

#[test]
fn a_program_in_c_checks_the_library() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let standard = ["-std=c11", "-D_DEFAULT_SOURCE"];
    let Some(program) = compiled("cc", "tests/checks.c", &standard, folder.path()) else { return };
    let said = output(run(&program).arg(bundle()).arg(folder.path()));
    let (sizes, text) = said.split_at(said.find("sw_saved").expect("sizes"));
    let (last, text) = text.split_once('\n').expect("a line");
    let sizes = format!("{sizes}{last}\n");
    use shardwright_c::*;
    macro_rules! expected {
        ($($name:ident),*) => {
            [$(format!(concat!(stringify!($name), " {}\n"), size_of::<$name>())),*].concat()
        };
    }
    let expected = expected!(
        sw_error,
        sw_open_options,
        sw_memory,
        sw_embed_options,
        sw_part,
        sw_turn,
        sw_reply_settings,
        sw_event,
        sw_statistics,
        sw_saved
    );
    assert_eq!(sizes, expected, "structs are as large in C as in Rust");
    // The program of the project gives the same text.
    let mut same = Command::new(program_folder().join("shardwright"));
    same.arg("run").arg(bundle()).args(["--prompt", QUESTION, "--greedy", "-n", "24"]);
    assert_eq!(text.trim(), output(&mut same).trim());
}

#[test]
fn eight_threads_open_and_close_a_thousand_models() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(program) = compiled("cc", "tests/stress.c", &["-std=c11"], folder.path()) else { return };
    output(run(&program).arg(bundle()).arg(ROUNDS));
}

/// Runs both programs in C under AddressSanitizer. It finds wrong uses of memory by the programs,
/// uses of freed memory by either side, and leaks.
#[test]
fn the_sanitizer_finds_no_fault_and_no_leak() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let sanitized = ["-std=c11", "-D_DEFAULT_SOURCE", "-g", "-fsanitize=address,undefined"];
    let empty = folder.path().join("empty.c");
    std::fs::write(&empty, "int main(void) { return 0; }\n").expect("written");
    let mut probe = Command::new("cc");
    probe.args(sanitized).arg(&empty).arg("-o").arg(folder.path().join("empty.run"));
    if !probe.output().is_ok_and(|output| output.status.success()) {
        return skipped("the programs in C under AddressSanitizer: the compiler has none");
    }
    // The crate `abi_stable` keeps the path of each library of a shim, once for each process.
    let suppressions = folder.path().join("suppressions");
    std::fs::write(&suppressions, "leak:shardwright_shims::layout::compare\n").expect("written");
    for (source, argument) in
        [("tests/checks.c", folder.path().as_os_str()), ("tests/stress.c", "8".as_ref())]
    {
        let Some(program) = compiled("cc", source, &sanitized, folder.path()) else { return };
        let mut command = run(&program);
        command.env("LSAN_OPTIONS", format!("suppressions={}", suppressions.display()));
        // The whole stack of an allocation names the function to suppress.
        command.env("ASAN_OPTIONS", "fast_unwind_on_malloc=0");
        output(command.arg(bundle()).arg(argument));
    }
}

/// The library exports the functions of the header and no other functions of this interface.
#[test]
fn the_library_exports_the_functions_of_the_header() {
    let library = library_folder().join("libshardwright_c.so");
    let Ok(listed) = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output() else {
        return skipped("the functions that the library exports: there is no `nm`");
    };
    let listed = String::from_utf8(listed.stdout).expect("names");
    let mut exported: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().last()).collect();
    exported.retain(|name| name.starts_with("sw_"));
    exported.sort_unstable();
    let header =
        std::fs::read_to_string(root().join("bindings/c/include/shardwright.h")).expect("the header");
    let mut declared: Vec<&str> = header
        .lines()
        .filter(|line| !line.starts_with("//") && !line.starts_with("typedef") && !line.starts_with(' '))
        .filter_map(|line| line.split_once('(').and_then(|(before, _)| before.rsplit([' ', '*']).next()))
        .filter(|name| name.starts_with("sw_"))
        .collect();
    declared.sort_unstable();
    assert!(declared.len() > 40, "{declared:?}");
    assert_eq!(exported, declared);
}
