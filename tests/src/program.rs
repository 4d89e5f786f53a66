//! Runs the program `shardwright` the way a user does: as a process, with a deadline.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use shardwright_files::private_files;
use shardwright_planning::builtin;
use shardwright_planning::sandbox::{CompiledCache, EngineKind, Sandbox};

use crate::tree;

/// Time limit of any single command of a test. The machine may be a loaded one with two cores. A
/// command that hangs must fail its test without blocking the test run.
const DEADLINE: Duration = Duration::from_secs(300);

/// Returns the folder of the program, which also contains `shims/`, `planners/` and `profiles/`. It
/// is `SHARDWRIGHT_BIN_DIR` if set, as `cargo xtask test` does, or is built now by
/// `cargo xtask build`.
///
/// # Panics
/// If there is no such folder and it cannot be built.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| match std::env::var_os("SHARDWRIGHT_BIN_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => build(),
    })
}

/// Returns the path of the program.
///
/// # Panics
/// As [`folder`].
pub fn executable() -> PathBuf {
    folder().join(format!("shardwright{}", std::env::consts::EXE_SUFFIX))
}

/// Returns the program's search path for shims, planners and profiles, for tests that use its
/// library.
///
/// # Panics
/// As [`folder`].
pub fn search_path() -> shardwright::SearchPath {
    shardwright::SearchPath {
        shims: vec![folder().join("shims")],
        libraries: Vec::new(),
        planners: vec![folder().join("planners")],
        profiles: vec![folder().join("profiles")],
    }
}

fn build() -> PathBuf {
    // This test program is in <target>/<profile>/deps. Benches use the release profile.
    let this = std::env::current_exe().expect("the test program's own path");
    let folder = this.parent().and_then(Path::parent).expect("deps lies in the profile's folder");
    let release = folder.ends_with("release").then_some("--release");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(tree::root())
        .args(["run", "--quiet", "--package", "xtask", "--", "build"])
        .args(release)
        .status()
        .expect("cargo starts");
    assert!(status.success(), "`cargo xtask build` failed");
    folder.to_owned()
}

/// Environment variable with the folder that contains caches.
const CACHE_VARIABLE: &str = "XDG_CACHE_HOME";

/// Copies the machine code of the built-in planner from the cache of the tests. Otherwise every
/// program with a cache of its own would compile it again.
///
/// # Panics
/// If there is no built-in planner.
pub fn share_planner(cache: &Path) {
    static NAME: OnceLock<PathBuf> = OnceLock::new();
    let name = NAME.get_or_init(|| {
        let sandbox = Sandbox::new(EngineKind::Native).expect("a sandbox");
        let component = builtin::component().expect("the built-in planner");
        CompiledCache::new("shardwright/planners").path(&sandbox, component)
    });
    // The program ignores a relative path, and it must not be created in a test's own folder.
    let Some(shared) = std::env::var_os(CACHE_VARIABLE).filter(|_| cache.is_absolute()) else { return };
    let to = cache.join(name);
    if !to.exists()
        && let Ok(Some(code)) = private_files::read(&Path::new(&shared).join(name), u64::MAX)
    {
        // A test may name a folder that is not writable.
        let _ = private_files::write(&to, &code);
    }
}

/// One run of the program, before it starts.
#[derive(Debug)]
pub struct Run {
    command: Command,
}

/// The results of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The exit code, or `None` if a signal ended the program.
    pub code: Option<i32>,
    /// All of standard output.
    pub stdout: String,
    /// All of standard error.
    pub stderr: String,
}

/// Prepares a run of the program with these arguments, in the root of the project.
pub fn shardwright<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Run {
    let mut command = Command::new(executable());
    command.current_dir(tree::root()).args(arguments).stdin(Stdio::null());
    // A shim sets the last variable for a chip, in this process if a test compiles without a
    // worker.
    let variables = [
        "SHARDWRIGHT_SHIM_PATH",
        "SHARDWRIGHT_PLANNER_PATH",
        "SHARDWRIGHT_PROFILE_PATH",
        "MTKNN_ADAPTER_DLA_PLATFORM",
    ];
    for name in variables {
        command.env_remove(name);
    }
    Run { command }
}

impl Run {
    pub fn argument(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    pub fn arguments<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.command.args(arguments);
        self
    }

    /// Sets an environment variable. A separate cache folder gets the built-in planner's machine
    /// code, if it is in the cache of the tests.
    pub fn environment(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        if name == CACHE_VARIABLE {
            share_planner(Path::new(value.as_ref()));
        }
        self.command.env(name, value);
        self
    }

    /// Uses this file as standard input.
    ///
    /// # Panics
    /// If it cannot be opened.
    pub fn input(mut self, file: impl AsRef<Path>) -> Self {
        self.command.stdin(std::fs::File::open(file).expect("an input"));
        self
    }

    /// Runs in this folder instead of the root of the project.
    pub fn within(mut self, folder: impl AsRef<Path>) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// Runs the program to its end.
    ///
    /// # Panics
    /// If the program cannot be started, does not end in time, panics, or writes text that is not
    /// UTF-8.
    pub fn outcome(self) -> Outcome {
        finished(self.command)
    }

    /// Starts the program without its output.
    ///
    /// # Panics
    /// If the program cannot be started.
    pub fn started(self) -> Child {
        self.started_with(Stdio::null(), Stdio::null())
    }

    /// Starts the program with these streams as standard output and standard error.
    ///
    /// # Panics
    /// As [`Run::started`].
    pub fn started_with(mut self, output: Stdio, errors: Stdio) -> Child {
        self.command.stdout(output).stderr(errors).spawn().expect("the program starts")
    }

    /// Starts the program as [`Run::started`] and waits until `is_there`, or at most two minutes.
    ///
    /// # Panics
    /// As [`Run::started`].
    pub fn started_until(self, is_there: impl Fn() -> bool) -> Child {
        let (child, start) = (self.started(), Instant::now());
        while !is_there() && start.elapsed() < Duration::from_secs(120) {
            thread::sleep(Duration::from_millis(1));
        }
        child
    }

    /// Runs the program and kills it after `time`. Returns whether it had ended by then.
    ///
    /// # Panics
    /// If the program cannot be started.
    pub fn killed_after(self, time: Duration) -> bool {
        let (mut child, start) = (self.started(), Instant::now());
        while start.elapsed() < time {
            if child.try_wait().expect("waiting for a child").is_some() {
                return true;
            }
            thread::sleep(Duration::from_millis(10));
        }
        // It may have ended just now.
        let _ = child.kill();
        child.wait().expect("waiting for a child").success()
    }

    /// Runs the program, expects success and returns its standard output.
    ///
    /// # Panics
    /// As [`Run::outcome`], and if it fails.
    pub fn succeeds(self) -> String {
        let shown = format!("{:?}", self.command);
        let outcome = self.outcome();
        assert_eq!(outcome.code, Some(0), "{shown}\n{}{}", outcome.stdout, outcome.stderr);
        outcome.stdout
    }

    /// Runs the program, expects success, and returns the JSON value on standard output.
    ///
    /// # Panics
    /// As [`Run::succeeds`], and if standard output is not JSON.
    pub fn json(self) -> serde_json::Value {
        let shown = format!("{:?}", self.command);
        let stdout = self.argument("--format").argument("json").succeeds();
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{shown}: {error}\n{stdout}"))
    }

    /// Expects a refusal like [`Run::refuses`], with this exit code and these words. Returns
    /// standard error.
    ///
    /// # Panics
    /// As [`Run::refuses`], and if the code or a word differs.
    pub fn refuses_with(self, code: i32, words: &[&str]) -> String {
        let shown = format!("{:?}", self.command);
        let (actual, stderr) = self.refuses();
        assert_eq!(actual, code, "{shown}: {stderr}");
        for word in words {
            assert!(stderr.contains(word), "{shown}: no `{word}` in {stderr}");
        }
        stderr
    }

    /// Runs the program and expects a refusal in the format of all commands: a specific exit code,
    /// no output that looks like an answer, an `error:` line and a `help:` line. Returns the code
    /// and standard error.
    ///
    /// # Panics
    /// As [`Run::outcome`], and if it succeeds, is ended by a signal or reports too little.
    pub fn refuses(self) -> (i32, String) {
        let shown = format!("{:?}", self.command);
        let Outcome { code, stdout, stderr } = self.outcome();
        let code = code.unwrap_or_else(|| panic!("{shown}: ended by a signal\n{stderr}"));
        assert_ne!(code, 0, "{shown} succeeded:\n{stdout}");
        for start in ["error:", "help:"] {
            assert!(
                stderr.lines().any(|line| line.trim_start().starts_with(start)),
                "{shown}: no `{start}` line\n{stderr}"
            );
        }
        (code, stderr)
    }
}

/// Runs any command to its end, with the same deadline as the program.
///
/// # Panics
/// As [`Run::outcome`].
pub fn finished(mut command: Command) -> Outcome {
    let shown = format!("{command:?}");
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{shown}: {error}"));
    let stdout = collect(child.stdout.take().expect("piped"));
    let stderr = collect(child.stderr.take().expect("piped"));
    let code = wait(&mut child, &shown);
    let text = |bytes: thread::JoinHandle<Vec<u8>>| {
        String::from_utf8(bytes.join().expect("reading a pipe"))
            .unwrap_or_else(|error| panic!("{shown}: {error}"))
    };
    let outcome = Outcome { code, stdout: text(stdout), stderr: text(stderr) };
    assert!(!outcome.stderr.contains("panicked at"), "{shown} panicked:\n{}", outcome.stderr);
    outcome
}

fn collect(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("reading a pipe");
        bytes
    })
}

fn wait(child: &mut Child, shown: &str) -> Option<i32> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait().expect("waiting for a child") {
            return status.code();
        }
        if start.elapsed() > DEADLINE {
            // It may have ended just now. In any case it is not needed any more.
            let _ = child.kill();
            let _ = child.wait();
            panic!("{shown}: not finished after {} s", DEADLINE.as_secs());
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
