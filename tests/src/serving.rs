//! The program as a server, started the way a user does, on a free port of this machine.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::program::{Run, shardwright};

/// Longest time until a server listens.
const PATIENCE: Duration = Duration::from_secs(120);

/// The beginning of the address that a server prints.
const SCHEME: &str = "http://";

/// A running server, which ends with this value.
#[derive(Debug)]
pub struct Server {
    child: Child,
    host: String,
    output: Arc<Mutex<String>>,
}

impl Server {
    /// Starts `shardwright serve` with these arguments and waits until it listens.
    ///
    /// # Panics
    /// If it does not start, ends, or prints no address in time.
    pub fn start<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Server {
        Server::of(shardwright(["serve", "--port", "0"]).arguments(arguments))
    }

    /// Like [`Server::start`], but runs this command.
    ///
    /// # Panics
    /// As [`Server::start`].
    pub fn of(run: Run) -> Server {
        let mut child = run.started_with(Stdio::piped(), Stdio::piped());
        let output = Arc::new(Mutex::new(String::new()));
        let (sender, found) = mpsc::channel();
        watch(child.stdout.take().expect("piped"), output.clone(), sender.clone());
        watch(child.stderr.take().expect("piped"), output.clone(), sender);
        // Dropped senders mean that both streams ended.
        let host = found.recv_timeout(PATIENCE).unwrap_or_else(|error| {
            let _ = child.kill();
            panic!("the server printed no address: {error}\n{}", output.lock().expect("no panic"))
        });
        Server { child, host, output }
    }

    /// Returns the id of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the address and the port, such as `127.0.0.1:8080`.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the address of a path, such as `/v1`.
    pub fn address(&self, path: &str) -> String {
        format!("{SCHEME}{}{path}", self.host)
    }

    /// Returns both streams so far.
    ///
    /// # Panics
    /// If a thread that reads them panicked.
    pub fn output(&self) -> String {
        self.output.lock().expect("no panic").clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a stream to its end, so that the server never waits for it, and sends the first address.
fn watch(stream: impl Read + Send + 'static, output: Arc<Mutex<String>>, found: Sender<String>) {
    thread::spawn(move || {
        let mut found = Some(found);
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if let Some((_, rest)) = line.split_once(SCHEME)
                && let Some(sender) = found.take()
            {
                let is_host = |c: char| c.is_ascii_alphanumeric() || ".:[]".contains(c);
                // A second stream with an address is not an error.
                let _ = sender.send(rest.chars().take_while(|c| is_host(*c)).collect());
            }
            let mut output = output.lock().expect("no panic");
            output.push_str(&line);
            output.push('\n');
        }
    });
}
