//! `shardwright serve` compared with llama.cpp's server, on the same GGUF file and two threads:
//! streamed chat completions of one and of several clients at once.
//!
//! The two runs of a pair are within a minute of each other, and the program that runs first
//! alternates. Each run starts its server, so that no prompt is known from an earlier run. Prompts
//! have only their first words in common.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};
use shardwright_measure::{median, percentile, range};

use super::cases::{ROUNDED, USUAL_CONTEXT};
use super::{PAIRS_VARIABLE, THREADS, Workshop, folder, llama, pairs, processor};
use crate::bench::chat::{self, ChatFailure, Reply};
use crate::bench::served::Served;
use crate::error::Error;
use crate::models;
use crate::workspace::{self, Workspace};

/// Subcommand for this comparison.
pub const NAME: &str = "server";

/// The model without an argument. It has a chat template.
const MODEL: &str = "smollm2-135m";

/// Name of the model in requests.
const SERVED: &str = "model";

/// Numbers of clients, each with the number of requests of a client.
const CLIENTS: [(usize, usize); 3] = [(1, 8), (4, 4), (16, 2)];

/// Pairs without the variable.
const USUAL_PAIRS: usize = 3;

/// Most tokens of a reply.
const TOKENS: u32 = 64;

/// Words of a prompt's passage.
const PASSAGE: usize = 160;

/// A page with enough words for all passages.
const TEXT: &str = "docs/using.md";

/// The measurements of one run.
struct Run {
    /// Replies by the numbers of their prompts.
    replies: Vec<(usize, Reply)>,
    /// Seconds from the first request to the last end.
    seconds: f64,
}

/// Our run and the peer's.
type Pair = [Run; 2];

/// Measures all numbers of clients and prints the table.
pub fn compare(workspace: &Workspace, words: &[String]) -> Result<(), Error> {
    let model = match words {
        [] => MODEL,
        [name] => name.as_str(),
        _ => return Err(Error::Usage("`bench server` takes the name of one model".to_owned())),
    };
    let count = match std::env::var_os(PAIRS_VARIABLE).filter(|said| !said.is_empty()) {
        None => USUAL_PAIRS,
        said => pairs(said.as_deref())?,
    };
    let folder = folder()?;
    let llama = llama::provide(&folder)?;
    let peer = llama::server(&llama, &folder)?;
    let (gguf, _) = models::one(model)?;
    let workshop = Workshop::new(workspace, folder)?;
    let formats = ["--formats".to_owned(), ROUNDED.to_owned()];
    let bundle = workshop.compiled(&gguf, &format!("{model} server"), &formats, USUAL_CONTEXT)?;
    let prompts = prompts(workspace)?;
    let servers = Servers { program: workshop.program, bundle, peer, gguf, folder: workshop.folder };

    let (mut rows, mut known) = (Vec::new(), BTreeMap::new());
    for (clients, each) in CLIENTS {
        let mut measured = Vec::new();
        for turn in 0..count {
            // The order changes from turn to turn.
            let runs = match turn % 2 {
                0 => {
                    let ours = servers.run(Side::Ours, clients, each, &prompts)?;
                    [ours, servers.run(Side::Peer, clients, each, &prompts)?]
                }
                _ => {
                    let peer = servers.run(Side::Peer, clients, each, &prompts)?;
                    [servers.run(Side::Ours, clients, each, &prompts)?, peer]
                }
            };
            expect_same(&mut known, &runs[0])?;
            measured.push(runs);
        }
        rows.push(row(clients, &measured));
    }
    print!("{}", markdown(model, &llama.built, count, &rows));
    Ok(())
}

/// Returns the prompts. Each has another passage of the page.
fn prompts(workspace: &Workspace) -> Result<Vec<String>, Error> {
    let path = workspace.root.join(TEXT);
    let text = String::from_utf8(workspace::read(&path)?);
    let text = text.map_err(|error| Error::Unexpected { path, problem: error.to_string() })?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let prompt = |words: &[&str]| format!("Summarise this text in a few sentences.\n\n{}", words.join(" "));
    Ok(words.chunks_exact(PASSAGE).map(prompt).collect())
}

/// The side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Ours,
    Peer,
}

/// Both programs, each with its model.
struct Servers {
    program: PathBuf,
    bundle: PathBuf,
    peer: PathBuf,
    gguf: PathBuf,
    /// Folder for the output of servers.
    folder: PathBuf,
}

impl Servers {
    /// Starts a server, and measures the requests of `clients` clients, which begin at once.
    fn run(&self, side: Side, clients: usize, each: usize, prompts: &[String]) -> Result<Run, Error> {
        let log = self.folder.join(format!("{side:?}-server.log").to_lowercase());
        let server = Served::start(&log, |port| self.command(side, port, clients))?;
        let ask = |prompt: usize| -> Result<(usize, Reply), ChatFailure> {
            let text = prompts.get(prompt).map_or("Hello.", String::as_str);
            chat::ask(server.address, &request(text)).map(|reply| (prompt, reply))
        };
        // The first request of a process is slower. Its prompt is the one after all others.
        let failed = |failure: ChatFailure| server.fault(&failure.to_string());
        ask(clients * each).map_err(failed)?;
        let start = Instant::now();
        let client = |client: usize| -> Result<Vec<(usize, Reply)>, ChatFailure> {
            (0..each).map(|request| ask(client * each + request)).collect()
        };
        let answered: Result<Vec<_>, ChatFailure> = thread::scope(|scope| {
            let client = &client;
            let threads: Vec<_> = (0..clients).map(|number| scope.spawn(move || client(number))).collect();
            let panicked = |_| Err(ChatFailure::Lost("a client panicked".to_owned()));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
        });
        let seconds = start.elapsed().as_secs_f64();
        let replies: Vec<(usize, Reply)> = answered.map_err(failed)?.into_iter().flatten().collect();
        match replies.iter().find(|(_, reply)| reply.text.is_empty() || reply.tokens == 0) {
            Some((prompt, _)) => Err(server.fault(&format!("the reply to prompt {prompt} is empty"))),
            None => Ok(Run { replies, seconds }),
        }
    }

    fn command(&self, side: Side, port: u16, clients: usize) -> Command {
        let (port, threads) = (port.to_string(), THREADS.to_string());
        let mut command = match side {
            Side::Ours => {
                let mut command = Command::new(&self.program);
                command.arg("serve").arg(named(&self.bundle)).args(["--threads", &threads]);
                command
            }
            Side::Peer => {
                let slots = clients.to_string();
                // The context is that of all slots together.
                let context = USUAL_CONTEXT.parse::<usize>().unwrap_or(1024) * clients;
                let mut command = Command::new(&self.peer);
                command.arg("-m").arg(&self.gguf).args(["-t", &threads, "-tb", &threads, "-np", &slots]);
                command.args(["-c", &context.to_string(), "--host", "127.0.0.1", "--no-ui"]);
                command
            }
        };
        command.args(["--port", &port]);
        command
    }
}

/// Returns the argument that serves a model under a fixed name.
fn named(path: &Path) -> std::ffi::OsString {
    let mut argument = std::ffi::OsString::from(format!("{SERVED}="));
    argument.push(path);
    argument
}

fn request(prompt: &str) -> Value {
    json!({
        "model": SERVED,
        "messages": [{ "role": "user", "content": prompt }],
        "temperature": 0,
        "max_tokens": TOKENS,
        "stream": true,
        "stream_options": { "include_usage": true },
    })
}

/// Checks that our greedy replies do not depend on the number of clients.
fn expect_same(known: &mut BTreeMap<usize, Reply>, run: &Run) -> Result<(), Error> {
    for (prompt, reply) in &run.replies {
        let first = known.entry(*prompt).or_insert_with(|| reply.clone());
        if !first.is_same(reply) {
            let problem =
                format!("the reply to prompt {prompt} was {:?}, and is {:?}", first.text, reply.text);
            return Err(Error::Wrong { what: "shardwright serve", problem });
        }
    }
    Ok(())
}

/// Figures of one side over all pairs.
struct Figures {
    /// Median and 95th percentile of the time to the first token, in seconds.
    first: [f64; 2],
    /// Median and 5th percentile of a client's tokens per second.
    speed: [f64; 2],
    /// Median of the tokens per second of all clients together.
    all: f64,
}

impl Figures {
    fn of(runs: &[&Run]) -> Figures {
        let replies = || runs.iter().flat_map(|run| &run.replies).map(|(_, reply)| reply);
        let sorted = |mut values: Vec<f64>| {
            values.sort_unstable_by(f64::total_cmp);
            values
        };
        let first = sorted(replies().map(|reply| reply.first.as_secs_f64()).collect());
        let speed = sorted(replies().filter_map(Reply::speed).collect());
        let all = runs
            .iter()
            .map(|run| run.replies.iter().map(|(_, reply)| reply.tokens as f64).sum::<f64>() / run.seconds);
        Figures {
            first: [median(&first), percentile(&first, 0.95)],
            speed: [median(&speed), percentile(&speed, 0.05)],
            all: median(&all.collect::<Vec<f64>>()),
        }
    }
}

/// One number of clients.
struct Row {
    clients: usize,
    ours: Figures,
    peer: Figures,
    /// Least and largest ratio of single pairs, of times to the first token and of speeds.
    spread: [(f64, f64); 2],
    /// Share of the peer's replies with the text of ours.
    equal: f64,
}

fn row(clients: usize, pairs: &[Pair]) -> Row {
    let side = |index: usize| Figures::of(&pairs.iter().map(|pair| &pair[index]).collect::<Vec<_>>());
    let single = pairs.iter().map(|pair| pair.each_ref().map(|run| Figures::of(&[run])));
    let single: Vec<[Figures; 2]> = single.collect();
    let of = |ratio: fn(&Figures, &Figures) -> f64| {
        range(&single.iter().map(|[ours, peer]| ratio(ours, peer)).collect::<Vec<f64>>())
    };
    let texts = pairs.iter().flat_map(|[ours, peer]| {
        let theirs: BTreeMap<usize, &str> =
            peer.replies.iter().map(|(prompt, reply)| (*prompt, reply.text.as_str())).collect();
        ours.replies
            .iter()
            .map(move |(prompt, reply)| theirs.get(prompt).is_some_and(|text| *text == reply.text))
    });
    let texts: Vec<f64> = texts.map(|is_equal| f64::from(u8::from(is_equal))).collect();
    Row {
        clients,
        ours: side(0),
        peer: side(1),
        spread: [of(first_ratio), of(speed_ratio)],
        equal: texts.iter().sum::<f64>() / texts.len().max(1) as f64,
    }
}

/// Returns how many times faster our first token is.
fn first_ratio(ours: &Figures, peer: &Figures) -> f64 {
    peer.first[0] / ours.first[0]
}

/// Returns how many times faster our further tokens are.
fn speed_ratio(ours: &Figures, peer: &Figures) -> f64 {
    ours.speed[0] / peer.speed[0]
}

fn markdown(model: &str, built: &str, pairs: usize, rows: &[Row]) -> String {
    let mut text = format!(
        "\n{model}, the published file in {ROUNDED}; {THREADS} threads; {}; llama.cpp: {} ({built}); {pairs} pairs of runs, {TOKENS} tokens a reply at most. Ratios are of medians, above 1 if Shardwright is faster, with the least and the largest of single pairs.\n\n",
        processor().as_deref().unwrap_or("unknown processor"),
        llama::SOURCE,
    );
    text += "| clients | first token, ms: median, 95th percentile | llama-server | ratio | tok/s of a client: median, 5th percentile | llama-server | ratio | tok/s of all | llama-server | equal replies |\n";
    text += "|---:|---:|---:|---|---:|---:|---|---:|---:|---:|\n";
    for Row { clients, ours, peer, spread, equal } in rows {
        let first =
            |figures: &Figures| figures.first.map(|seconds| format!("{:.0}", 1e3 * seconds)).join(", ");
        let speed = |figures: &Figures| figures.speed.map(|speed| format!("{speed:.1}")).join(", ");
        let ratio = |ratio: f64, (least, most): (f64, f64)| format!("{ratio:.2} ({least:.2} to {most:.2})");
        let _ = writeln!(
            text,
            "| {clients} | {} | {} | {} | {} | {} | {} | {:.1} | {:.1} | {:.0} % |",
            first(ours),
            first(peer),
            ratio(first_ratio(ours, peer), spread[0]),
            speed(ours),
            speed(peer),
            ratio(speed_ratio(ours, peer), spread[1]),
            ours.all,
            peer.all,
            100.0 * equal,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn run(text: &str, first: u64, last: u64) -> Run {
        let reply = Reply {
            text: text.to_owned(),
            finish: "stop".to_owned(),
            tokens: 11,
            first: Duration::from_millis(first),
            last: Duration::from_millis(last),
        };
        Run { replies: vec![(0, reply.clone()), (1, reply)], seconds: 2.0 }
    }

    #[test]
    fn rows_have_medians_and_ratios_of_both_sides() {
        let pairs = [
            [run("a", 100, 600), run("a", 200, 1200)],
            [run("a", 100, 600), run("b", 400, 1400)],
            [run("a", 100, 600), run("a", 300, 1300)],
        ];
        let page = markdown("a model", "a build", 3, &[row(2, &pairs)]);
        let line = "| 2 | 100, 100 | 300, 400 | 3.00 (2.00 to 4.00) | 20.0, 20.0 | 10.0, 10.0 | \
                    2.00 (2.00 to 2.00) | 11.0 | 11.0 | 67 % |";
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        assert!(page.contains("a model") && page.contains("a build"), "{page}");
    }

    #[test]
    fn our_replies_must_not_depend_on_other_clients() {
        let mut known = BTreeMap::new();
        expect_same(&mut known, &run("a", 1, 2)).expect("the first");
        expect_same(&mut known, &run("a", 3, 4)).expect("the same");
        let error = expect_same(&mut known, &run("b", 1, 2)).expect_err("another text");
        assert!(matches!(&error, Error::Wrong { .. }), "{error}");
        assert!(error.to_string().contains("prompt 0") && error.help().is_none(), "{error}");
    }

    #[test]
    fn both_servers_get_the_same_work() {
        let servers = Servers {
            program: "shardwright".into(),
            bundle: "there/bundle".into(),
            peer: "llama-server".into(),
            gguf: "there/m.gguf".into(),
            folder: "logs".into(),
        };
        let shown = |side| crate::process::shown(&servers.command(side, 8081, 4));
        assert_eq!(shown(Side::Ours), "shardwright serve model=there/bundle --threads 2 --port 8081");
        let peer =
            "llama-server -m there/m.gguf -t 2 -tb 2 -np 4 -c 4096 --host 127.0.0.1 --no-ui --port 8081";
        assert_eq!(shown(Side::Peer), peer);
        let root = Workspace::locate().expect("the workspace");
        let prompts = prompts(&root).expect("a page");
        let most = CLIENTS.iter().map(|(clients, each)| clients * each).max();
        assert!(Some(prompts.len()) > most, "{} prompts", prompts.len());
    }
}
