//! `shardwright serve` under many requests of many clients: some leave, some send malformed
//! requests, some are slow, and workers die meanwhile.
//!
//! Before the clients start, one client gets the reply of each case. Every later reply must have
//! the same text. After a worker died, the server may answer with an error. The client then sends
//! its request again, and must get the right reply within a minute. The bench fails if a reply is
//! wrong or lost, if the memory of the server grows by a percent, or if a descriptor leaks.

mod clients;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use self::clients::{CASES, Clients, Kind};
use super::served::{Footprint, Served, children};
use super::{http, peers};
use crate::error::Error;
use crate::process;
use crate::workspace::Workspace;

/// Subcommand of this bench.
pub const NAME: &str = "soak";

/// Requests without an argument.
const REQUESTS: usize = 10_000;

/// Clients at once.
const CLIENTS: usize = 32;

/// Parts of the requests. After each, the clients rest, and the server is looked at.
const PHASES: usize = 10;

/// Phases until the memory of the server must not grow any more.
const WARM: usize = 2;

/// Phases in whose middle a worker dies.
const DEATHS: [usize; 3] = [3, 5, 7];

/// Variable with the number of workers that die, 3 at most.
const DEATHS_VARIABLE: &str = "SHARDWRIGHT_SOAK_DEATHS";

/// Name of the worker program as far as Linux keeps it.
const WORKER: &str = "shardwright-wor";

/// Name of the model in requests.
const MODEL: &str = "model";

/// Bytes of the prefix cache, which the replies of all cases together fill.
const CACHE: &str = "16MB";

/// Growth of the server's memory that counts as a leak.
const GROWTH: f64 = 0.01;

/// Longest time until no request is open.
const PATIENCE: Duration = Duration::from_secs(60);

/// Size of a run.
#[derive(Debug, PartialEq, Eq)]
struct Size {
    requests: usize,
    deaths: usize,
    model: Option<PathBuf>,
}

impl Size {
    fn read(words: &[String], deaths: Option<&str>) -> Result<Size, Error> {
        let usage = || Error::Usage("`bench soak` takes a number of requests and a model".to_owned());
        let count =
            |word: &String| word.parse::<usize>().ok().filter(|count| *count >= PHASES).ok_or_else(usage);
        let (requests, model) = match words {
            [] => (REQUESTS, None),
            [requests] => (count(requests)?, None),
            [requests, model] => (count(requests)?, Some(PathBuf::from(model))),
            _ => return Err(usage()),
        };
        let deaths = match deaths {
            None | Some("") => DEATHS.len(),
            Some(said) => {
                said.parse::<usize>().ok().filter(|deaths| *deaths <= DEATHS.len()).ok_or_else(|| {
                    let value = said.to_owned();
                    Error::Variable { name: DEATHS_VARIABLE, value, expected: "a count of at most 3" }
                })?
            }
        };
        Ok(Size { requests, deaths, model })
    }

    /// Returns the first request of a phase.
    fn begin(&self, phase: usize) -> usize {
        self.requests * phase / PHASES
    }

    /// Returns the requests before which a worker dies.
    fn deaths(&self) -> Vec<usize> {
        let middle = |phase: usize| usize::midpoint(self.begin(phase), self.begin(phase + 1));
        DEATHS.into_iter().take(self.deaths).map(middle).collect()
    }
}

/// Runs the clients and prints the report.
pub fn soak(workspace: &Workspace, words: &[String]) -> Result<(), Error> {
    let size = Size::read(words, std::env::var(DEATHS_VARIABLE).ok().as_deref())?;
    if !cfg!(target_os = "linux") {
        let problem = "it reads the state of processes from Linux".to_owned();
        return Err(Error::NotForThisMachine { what: "the soak of the server", problem });
    }
    let program = peers::program(workspace)?;
    let model = size.model.clone().unwrap_or_else(|| workspace.root.join("demo-model"));
    let log = workspace.target.join("soak.log");
    let server = Served::start(&log, |port| command(&program, &model, port))?;
    let clients = Clients::new(server.address, MODEL)
        .map_err(|failure| server.fault(&format!("the reply to a single client failed: {failure}")))?;
    let tally = Tally::default();
    let mut looks = Vec::new();
    for phase in 0..PHASES {
        run(&clients, &tally, &size, phase, server.id());
        eprintln!("phase {} of {PHASES}: {}", phase + 1, tally.line());
        if tally.is_given_up.load(Ordering::Relaxed) {
            break;
        }
        expect_idle(&server)?;
        looks.push(Look::at(server.id())?);
    }
    let deaths = tally.deaths.load(Ordering::Relaxed);
    print!("{}", markdown(&tally, &looks, &model));
    eprintln!("the output of the server is in {}", log.display());
    expect_right(&tally, &looks, deaths == size.deaths)
}

/// Returns the command of the server, whose shards run in a worker.
fn command(program: &Path, model: &Path, port: u16) -> Command {
    let mut argument = std::ffi::OsString::from(format!("{MODEL}="));
    argument.push(model);
    let mut command = Command::new(program);
    command.arg("serve").arg(argument).args(["--port", &port.to_string()]);
    command.args(["--isolation", "process", "--threads", "2", "--prefix-cache", CACHE]);
    command
}

/// Runs the requests of a phase.
fn run(clients: &Clients, tally: &Tally, size: &Size, phase: usize, server: u32) {
    let (next, end) = (AtomicUsize::new(size.begin(phase)), size.begin(phase + 1));
    let deaths = size.deaths();
    let client = || loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        if index >= end || tally.is_given_up.load(Ordering::Relaxed) {
            return;
        }
        if deaths.contains(&index) {
            tally.died(kill_workers(server));
        }
        clients.request(index, tally);
    };
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(client);
        }
    });
}

/// Kills the workers of a server, as a driver that crashes would. Returns their number.
fn kill_workers(server: u32) -> usize {
    let workers = children(server, WORKER);
    let kill = |worker: &&u32| process::succeeds(Command::new("kill").args(["-KILL", &worker.to_string()]));
    workers.iter().filter(kill).count()
}

/// Waits until the server has no open request.
fn expect_idle(server: &Served) -> Result<(), Error> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let metrics = http::get(server.address, "/metrics");
        let (_, text) = metrics.map_err(|error| server.fault(&error.to_string()))?;
        if text.lines().any(|line| line == "shardwright_open_requests 0") {
            // Threads and connections of the last requests end.
            thread::sleep(Duration::from_millis(500));
            return Ok(());
        }
        thread::sleep(Duration::from_millis(50));
    }
    Err(server.fault("requests stay open although all clients are gone"))
}

/// The state of the server between two phases.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    server: Footprint,
    /// Memory of all workers together.
    workers: Footprint,
}

impl Look {
    fn at(server: u32) -> Result<Look, Error> {
        let mut look = Look { server: Footprint::of(server)?, workers: Footprint::default() };
        // A worker may end just now.
        for worker in children(server, WORKER).into_iter().filter_map(|id| Footprint::of(id).ok()) {
            look.workers.anonymous += worker.anonymous;
            look.workers.resident += worker.resident;
            look.workers.descriptors += worker.descriptors;
        }
        Ok(look)
    }
}

/// Counts of all requests.
#[derive(Default)]
struct Tally {
    /// Requests of each kind that ended as expected.
    done: Mutex<BTreeMap<Kind, usize>>,
    /// Errors of the server that a further try of the same request made up for.
    retried: AtomicUsize,
    /// Errors of the server before any worker died.
    unexplained: AtomicUsize,
    /// Workers that died.
    deaths: AtomicUsize,
    /// Deaths for which no worker was found.
    missed: AtomicUsize,
    /// Descriptions of wrong and lost replies.
    wrong: Mutex<Vec<String>>,
    lost: Mutex<Vec<String>>,
    /// Set if the server does not recover, so that the other requests are not sent.
    is_given_up: AtomicBool,
}

impl Tally {
    fn done(&self, kind: Kind) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        *done.entry(kind).or_default() += 1;
    }

    fn died(&self, workers: usize) {
        let counter = if workers > 0 { &self.deaths } else { &self.missed };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an error of the server.
    fn failed(&self) {
        let is_explained = self.deaths.load(Ordering::Relaxed) > 0;
        let counter = if is_explained { &self.retried } else { &self.unexplained };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn wrong(&self, what: String) {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    fn lost(&self, what: String) {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    fn counts(&self) -> BTreeMap<Kind, usize> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the wrong and the lost replies.
    fn faults(&self) -> [Vec<String>; 2] {
        [&self.wrong, &self.lost].map(|all| all.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn line(&self) -> String {
        let done: usize = self.counts().values().sum();
        let [wrong, lost] = self.faults().map(|faults| faults.len());
        let retried = self.retried.load(Ordering::Relaxed);
        format!("{done} requests as expected, {retried} errors retried, {wrong} wrong, {lost} lost")
    }
}

/// Returns the growth of the server's memory after the warm-up, as a share.
fn growth(looks: &[Look]) -> Option<f64> {
    let (before, after) = (looks.get(WARM - 1)?, looks.last()?);
    let bytes = |look: &Look| look.server.anonymous as f64;
    (looks.len() > WARM && bytes(before) > 0.0).then(|| bytes(after) / bytes(before) - 1.0)
}

/// Checks the results.
fn expect_right(tally: &Tally, looks: &[Look], all_died: bool) -> Result<(), Error> {
    let mut problems = Vec::new();
    for (faults, name) in tally.faults().into_iter().zip(["wrong", "lost"]) {
        if let Some(first) = faults.first() {
            problems.push(format!("{} replies are {name}, such as {first}", faults.len()));
        }
    }
    let unexplained = tally.unexplained.load(Ordering::Relaxed);
    if unexplained > 0 {
        problems.push(format!("{unexplained} errors before any worker died"));
    }
    if !all_died {
        problems.push("not every death of a worker took place".to_owned());
    }
    if let Some(growth) = growth(looks).filter(|growth| *growth >= GROWTH) {
        problems.push(format!("the memory of the server grew by {:.2} %", 100.0 * growth));
    }
    if let (Some(before), Some(after)) = (looks.get(WARM - 1), looks.last())
        && after.server.descriptors > before.server.descriptors
    {
        let [before, after] = [before, after].map(|look| look.server.descriptors);
        problems.push(format!("the server has {after} descriptors, and had {before} after the warm-up"));
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(Error::Wrong { what: "the soak of the server", problem: problems.join("; ") }),
    }
}

fn markdown(tally: &Tally, looks: &[Look], model: &Path) -> String {
    let counts = tally.counts();
    let count = |kind: Kind| counts.get(&kind).copied().unwrap_or(0);
    let [wrong, lost] = tally.faults().map(|faults| faults.len());
    let load = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    let name = model.file_name().unwrap_or_default().display();
    let mut text = format!(
        "\n`shardwright serve` with {name}, shards in a worker, {CLIENTS} clients, {CASES} cases.\n\n"
    );
    text += "| right replies | right, slow clients | cancelled | malformed, refused | workers died | errors retried | wrong | lost |\n";
    text += "|---:|---:|---:|---:|---:|---:|---:|---:|\n";
    let _ = writeln!(
        text,
        "| {} | {} | {} | {} | {} | {} | {wrong} | {lost} |\n",
        count(Kind::Plain),
        count(Kind::Slow),
        count(Kind::Cancelled),
        count(Kind::Malformed),
        load(&tally.deaths),
        load(&tally.retried) + load(&tally.unexplained),
    );
    text +=
        "| phase | memory of the server, MB | resident | descriptors | memory of workers, MB | resident |\n";
    text += "|---:|---:|---:|---:|---:|---:|\n";
    let megabytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
    for (index, Look { server, workers }) in looks.iter().enumerate() {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            index + 1,
            megabytes(server.anonymous),
            megabytes(server.resident),
            server.descriptors,
            megabytes(workers.anonymous),
            megabytes(workers.resident),
        );
    }
    let growth =
        growth(looks).map_or_else(|| "unknown".to_owned(), |growth| format!("{:.2} %", 100.0 * growth));
    let _ = writeln!(text, "\nGrowth of the server's memory after {WARM} phases: {growth}.");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(words: &[&str], deaths: Option<&str>) -> Result<Size, Error> {
        Size::read(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>(), deaths)
    }

    #[test]
    fn sizes_are_counts_or_refused() {
        let usual = size(&[], None).expect("the usual size");
        assert_eq!((usual.requests, usual.deaths, &usual.model), (10_000, 3, &None));
        assert_eq!(usual.deaths(), [3_500, 5_500, 7_500]);
        assert_eq!((usual.begin(0), usual.begin(PHASES)), (0, 10_000));
        let small = size(&["95", "m.gguf"], Some("0")).expect("a size");
        assert_eq!(small, Size { requests: 95, deaths: 0, model: Some("m.gguf".into()) });
        assert_eq!((small.begin(PHASES), small.deaths()), (95, vec![]));
        for words in [&["many"][..], &["9"], &["100", "m", "x"]] {
            assert!(matches!(size(words, None), Err(Error::Usage(_))), "{words:?}");
        }
        for deaths in ["4", "-1", "all"] {
            assert!(matches!(size(&[], Some(deaths)), Err(Error::Variable { .. })), "{deaths}");
        }
    }

    fn look(anonymous: u64, descriptors: usize) -> Look {
        let server = Footprint { anonymous, resident: anonymous, descriptors };
        Look { server, workers: Footprint::default() }
    }

    #[test]
    fn faults_growth_and_leaks_are_reported_together() {
        let tally = Tally::default();
        tally.done(Kind::Plain);
        let looks = [look(900, 9), look(1000, 10), look(1004, 10)];
        expect_right(&tally, &looks, true).expect("all is well");
        assert_eq!(growth(&looks[..2]), None);
        let page = markdown(&tally, &looks, Path::new("there/m.gguf"));
        assert!(page.contains("| 1 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |") && page.contains("0.40 %"), "{page}");

        tally.failed();
        tally.died(0);
        tally.died(1);
        tally.failed();
        tally.wrong("this one".to_owned());
        tally.lost("that one".to_owned());
        let error = expect_right(&tally, &[look(900, 9), look(1000, 10), look(1020, 11)], false);
        let error = error.expect_err("faults");
        assert!(matches!(&error, Error::Wrong { .. }), "{error}");
        let text = error.to_string();
        for part in [
            "1 replies are wrong, such as this one",
            "1 replies are lost, such as that one",
            "1 errors before any worker died",
            "not every death",
            "grew by 2.00 %",
            "has 11 descriptors, and had 10",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(tally.line().contains("1 errors retried, 1 wrong, 1 lost"), "{}", tally.line());
    }

    #[test]
    fn shards_run_in_a_worker_that_can_die() {
        let shown = process::shown(&command(Path::new("shardwright"), Path::new("there/m"), 81));
        let wanted =
            "shardwright serve model=there/m --port 81 --isolation process --threads 2 --prefix-cache 16MB";
        assert_eq!(shown, wanted);
        assert_eq!(kill_workers(std::process::id()), 0);
    }
}
