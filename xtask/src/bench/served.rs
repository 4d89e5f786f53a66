//! A server as a process of this machine, and its state as Linux reports it.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::http;
use crate::error::Error;
use crate::process;

/// Longest time until a server answers.
const PATIENCE: Duration = Duration::from_secs(300);

/// Time between two looks at a server.
const PAUSE: Duration = Duration::from_millis(20);

/// A path that servers answer with status 200 when they are ready.
const HEALTH: &str = "/health";

/// A running server, which is killed with this value.
pub struct Served {
    child: Child,
    command: String,
    log: PathBuf,
    pub address: SocketAddr,
}

impl Served {
    /// Starts the command that `command` returns for a free port, and waits until it answers. Both
    /// streams of the server are written to `log`.
    pub fn start(log: &Path, command: impl FnOnce(u16) -> Command) -> Result<Served, Error> {
        let failed = |source| Error::File { path: log.to_owned(), source };
        let address = free_address().map_err(failed)?;
        let mut command = command(address.port());
        let output = File::create(log).map_err(failed)?;
        let errors = output.try_clone().map_err(failed)?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        process::announce(&command);
        let child = command.spawn().map_err(|source| process::not_started(&command, source))?;
        let mut served = Served { child, command: process::shown(&command), log: log.to_owned(), address };
        served.expect_ready()?;
        Ok(served)
    }

    /// Returns the id of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the error that a server does not work.
    pub fn fault(&self, problem: &str) -> Error {
        let problem = format!("{problem}; its output is in {}", self.log.display());
        Error::Answer { command: self.command.clone(), problem }
    }

    fn expect_ready(&mut self) -> Result<(), Error> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let ended = self.child.try_wait().map_err(|error| self.fault(&error.to_string()))?;
            if let Some(status) = ended {
                return Err(self.fault(&format!("it ended with {status}")));
            }
            // Before it listens, the connection is refused.
            if http::get(self.address, HEALTH).is_ok_and(|(status, _)| status == 200) {
                return Ok(());
            }
            thread::sleep(PAUSE);
        }
        Err(self.fault(&format!("it does not answer within {} s", PATIENCE.as_secs())))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns an address of this machine with a free port. Another program may take it meanwhile.
fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// Memory and descriptors of a process, as Linux reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of memory that no file provides: heap, stacks and shared memory.
    pub anonymous: u64,
    /// Resident bytes, mapped files included.
    pub resident: u64,
    /// Open descriptors.
    pub descriptors: usize,
}

impl Footprint {
    /// Reads the footprint of a process.
    pub fn of(id: u32) -> Result<Footprint, Error> {
        let folder = PathBuf::from(format!("/proc/{id}"));
        let path = folder.join("status");
        let status =
            fs::read_to_string(&path).map_err(|source| Error::File { path: path.clone(), source })?;
        let path = folder.join("fd");
        let entries = fs::read_dir(&path).map_err(|source| Error::File { path, source })?;
        let field = |name: &str| kilobytes(&status, name).unwrap_or(0) * 1024;
        Ok(Footprint {
            anonymous: field("RssAnon:") + field("RssShmem:"),
            resident: field("VmRSS:"),
            descriptors: entries.count(),
        })
    }
}

/// Parses a size in Linux's status of a process.
fn kilobytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the running children of a process whose name begins with `name`. Linux keeps 15
/// characters of a name.
pub fn children(parent: u32, name: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| {
        let id: u32 = entry.file_name().to_str()?.parse().ok()?;
        let (own, state, of) = described(&fs::read_to_string(entry.path().join("stat")).ok()?)?;
        (of == parent && state != 'Z' && own.starts_with(name)).then_some(id)
    });
    processes.collect()
}

/// Parses the name, the state and the parent of a process: `12 (name) S 1 …`.
fn described(stat: &str) -> Option<(String, char, u32)> {
    let (begin, rest) = stat.rsplit_once(')')?;
    let (_, name) = begin.split_once('(')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((name.to_owned(), state, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_processes_are_parsed() {
        let status = "Name:\tx\nVmRSS:\t    2048 kB\nRssAnon:\t 10 kB\nRssShmem:\tmany kB\n";
        let found = ["VmRSS:", "RssAnon:", "RssShmem:", "VmHWM:"].map(|name| kilobytes(status, name));
        assert_eq!(found, [Some(2048), Some(10), None, None]);
        let found = described("12 (a) (b c)) S 7 12 12 0 -1");
        assert_eq!(found, Some(("a) (b c)".to_owned(), 'S', 7)));
        for wrong in ["", "12 (a", "12 (a) S", "12 (a) S x"] {
            assert_eq!(described(wrong), None, "{wrong}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn children_and_footprints_are_of_running_processes() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("it starts");
        let own = std::process::id();
        // Until then, the child has the name of this program.
        while !children(own, "sleep").contains(&child.id()) {
            thread::sleep(PAUSE);
        }
        let footprint = Footprint::of(child.id()).expect("it runs");
        assert!(footprint.descriptors > 2 && footprint.resident > 0, "{footprint:?}");
        child.kill().expect("killed");
        child.wait().expect("ended");
        assert!(!children(own, "sleep").contains(&child.id()));
        assert!(matches!(Footprint::of(child.id()), Err(Error::File { .. })));
    }

    #[test]
    #[cfg(unix)]
    fn a_server_that_ends_is_named_with_its_output() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let log = folder.path().join("log");
        let started = Served::start(&log, |_| {
            let mut command = Command::new("sh");
            command.args(["-c", "echo cannot; exit 3"]);
            command
        });
        let error = started.err().expect("it ends").to_string();
        assert!(error.contains("exit status: 3") && error.contains("log"), "{error}");
        assert_eq!(fs::read_to_string(&log).expect("a log"), "cannot\n");
    }
}
