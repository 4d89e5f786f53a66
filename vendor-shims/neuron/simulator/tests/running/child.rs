//! Cases that run with another version, on another processor or into a failure. Each is a test of
//! this program, started in its own process with a configuration.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const VARIABLE: &str = "SHARDWRIGHT_NEURON_SIMULATOR";

/// Reports whether this process was started for a case.
pub fn is_case() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

fn command(folder: &tempfile::TempDir, case: &str, configuration: &str) -> Command {
    let file = folder.path().join("configuration.json");
    std::fs::write(&file, configuration).expect("written");
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command
        .args([case, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, file)
        .env_remove("MTKNN_ADAPTER_DLA_PLATFORM")
        .env("RUST_BACKTRACE", "0");
    command
}

/// Runs a case to its end.
pub fn run(case: &str, configuration: &str) -> Output {
    let folder = tempfile::tempdir().expect("a temporary folder");
    command(&folder, case, configuration).output().expect("starts")
}

/// Runs a case and checks that it succeeds.
pub fn succeeds(case: &str, configuration: &str) {
    let output = run(case, configuration);
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{case} with {configuration}:\n{said}");
}

/// Runs the body of a test in a process of its own, with this configuration.
pub fn alone<F: FnOnce()>(configuration: &str, body: F) {
    if is_case() {
        return body();
    }
    // The closure's type is `running::rules::the_test::{{closure}}`.
    let path = std::any::type_name::<F>().split_once("::").map(|(_, path)| path);
    let case = path.and_then(|path| path.strip_suffix("::{{closure}}")).expect("a closure of a test");
    succeeds(case, configuration);
}

/// Runs a case that must hang, and ends it once its trace contains `mark`.
pub fn hangs_after(case: &str, configuration: &str, mark: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let trace = folder.path().join("trace");
    let configuration = configuration.replace("TRACE", &trace.to_string_lossy());
    let mut child = command(&folder, case, &configuration)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    let start = Instant::now();
    let reached = loop {
        if std::fs::read_to_string(&trace).is_ok_and(|trace| trace.contains(mark)) {
            break true;
        }
        if start.elapsed() > Duration::from_secs(120) {
            break false;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let ended = child.try_wait().expect("asked");
    child.kill().expect("ended");
    child.wait().expect("waited for");
    assert!(reached && ended.is_none(), "{case} was to hang: reached {reached}, ended {ended:?}");
}
