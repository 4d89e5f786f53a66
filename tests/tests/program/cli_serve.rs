//! `shardwright serve` as a process: its options, its output, and its end by signals. And `chat`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use shardwright_tests::checkpoints::{Copy, DEMO_MODEL, EMBEDDING_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::program::{executable, shardwright};
use shardwright_tests::serving::Server;
use shardwright_tests::tree;

use crate::serve::client::{get, metric, post, post_with, posted};
use crate::serve::long;

/// Longest wait for an effect, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn address(server: &Server) -> SocketAddr {
    server.host().parse().expect("an address")
}

fn chat(model: &str, more: &Value) -> Value {
    let mut request = json!({ "model": model, "temperature": 0,
        "messages": [{ "role": "user", "content": "What is politics?" }] });
    more.as_object().into_iter().flatten().for_each(|(name, value)| request[name] = value.clone());
    request
}

const CHAT: &str = "/v1/chat/completions";

#[test]
fn models_have_names_and_share_limits_of_the_command() {
    let small = format!("small={}", TEXT_FIXTURES[3]);
    let options =
        ["--memory-budget", "4GB", "--prefix-cache", "1B", "--open-requests", "1", "--threads", "1"];
    let models = [DEMO_MODEL, small.as_str(), EMBEDDING_FIXTURE];
    let server = Server::start(models.into_iter().chain(options));
    let address = address(&server);
    assert!(address.ip().is_loopback() && address.port() > 0, "{address}");
    let listed = get(address, "/v1/models").json();
    let ids: Vec<&str> =
        listed["data"].as_array().expect("models").iter().filter_map(|model| model["id"].as_str()).collect();
    assert_eq!(ids, ["demo-model", "small", "embeddinggemma"]);
    assert!(server.output().contains("serving demo-model, small, embeddinggemma"), "{}", server.output());
    assert_eq!(metric(address, "shardwright_memory_budget_bytes"), Some(4e9));
    let cached = || {
        let reply = post(address, CHAT, &chat("demo-model", &json!({ "max_tokens": 1 }))).json();
        reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64()
    };
    // A cache of one byte keeps no states.
    assert_eq!((cached(), cached()), (Some(0), Some(0)));
    let mut line = String::new();
    let mut busy = BufReader::new(posted(address, CHAT, &[], &long("demo-model")));
    busy.read_line(&mut line).expect("a status");
    assert_eq!(post(address, CHAT, &chat("demo-model", &json!({}))).status, 429);
}

#[test]
fn clients_are_admitted_as_the_command_says() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keys = folder.path().join("keys.txt");
    fs::write(&keys, "a-key-of-these-tests\n").expect("written");
    let keys = keys.to_str().expect("a path");
    let server = Server::start([DEMO_MODEL, "--api-key", keys, "--host-name", "box.local"]);
    let address = address(&server);
    assert_eq!(get(address, "/v1/models").status, 401);
    let bearer = ["Authorization: Bearer a-key-of-these-tests", "Host: box.local"];
    let reply = post_with(address, CHAT, &bearer, &chat("demo-model", &json!({ "max_tokens": 1 })));
    assert_eq!(reply.status, 200, "{reply:?}");
    let variable = ["serve", "--port", "0", DEMO_MODEL, "--api-key", "env:SHARDWRIGHT_TEST_KEY"];
    let run = shardwright(variable).environment("SHARDWRIGHT_TEST_KEY", "another-key-of-these-tests");
    let other = Server::of(run);
    let bearer = ["Authorization: Bearer another-key-of-these-tests"];
    let reply =
        post_with(self::address(&other), CHAT, &bearer, &chat("demo-model", &json!({ "max_tokens": 1 })));
    assert_eq!(reply.status, 200, "{reply:?}");

    let open = Server::start([DEMO_MODEL, "--address", "0.0.0.0", "--no-auth"]);
    assert!(open.host().starts_with("0.0.0.0:"), "{}", open.host());
    let port = open.host().rsplit(':').next().expect("a port");
    let local: SocketAddr = format!("127.0.0.1:{port}").parse().expect("an address");
    assert_eq!(get(local, "/v1/models").status, 200);
    shardwright(["serve", DEMO_MODEL, "--port", "0", "--address", "0.0.0.0"])
        .refuses_with(2, &["0.0.0.0:0 can be reached from other machines", "--api-key", "--no-auth"]);
    shardwright(["serve", DEMO_MODEL, "--no-auth", "--api-key", keys]).refuses_with(2, &["--no-auth"]);
    shardwright(["serve", DEMO_MODEL, "--port", port]).refuses_with(3, &[port, "another address or port"]);
    shardwright(["serve", DEMO_MODEL, "--api-key", "no/such/file"]).refuses_with(3, &["no/such/file"]);
    shardwright(["serve", DEMO_MODEL, "--api-key", "env:SHARDWRIGHT_NOT_SET"])
        .refuses_with(3, &["SHARDWRIGHT_NOT_SET"]);
    fs::write(folder.path().join("weak.txt"), "weak\n").expect("written");
    shardwright(["serve", DEMO_MODEL, "--api-key"])
        .argument(folder.path().join("weak.txt"))
        .refuses_with(4, &["weak.txt: line 1", "16 to 512"]);
    shardwright(["serve", DEMO_MODEL, "./demo-model"])
        .refuses_with(2, &["two models have the id `demo-model`"]);
    shardwright(["serve", "=x"]).refuses_with(2, &["expected a name and a model"]);
}

#[test]
fn a_model_that_cannot_be_opened_ends_the_command_and_options_are_checked_first() {
    let damaged = Copy::of(TEXT_FIXTURES[3]).without("config.json");
    shardwright(["serve", "--port", "0"]).argument(damaged.path()).refuses_with(3, &["config.json"]);
    let overflowing = ["serve", DEMO_MODEL, "--open-requests", "0"];
    shardwright(overflowing).refuses_with(2, &["--open-requests"]);
}

/// Starts a server whose exit code is awaited, and returns its address too.
fn started(more: &[&str]) -> (Child, SocketAddr) {
    let words = ["serve", DEMO_MODEL, "--port", "0", "--format", "json"];
    let mut command = Command::new(executable());
    command.current_dir(tree::root()).args(words).args(more).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    let announced: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
    assert_eq!(announced["models"], json!(["demo-model"]));
    let address = announced["listening"].as_str().and_then(|address| address.strip_prefix("http://"));
    (child, address.and_then(|address| address.parse().ok()).expect("an address"))
}

fn signal(child: &Child, name: &str) {
    let sent =
        Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().expect("kill");
    assert!(sent.success(), "the program is gone");
}

fn ended(child: &mut Child) -> Option<i32> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait().expect("waited for") {
            return status.code();
        }
        thread::sleep(Duration::from_millis(20));
    }
    // It hangs and is not needed any more.
    let _ = child.kill();
    panic!("the server does not end");
}

#[test]
fn a_signal_lets_open_requests_end_within_the_limit() {
    for name in ["TERM", "INT"] {
        let (mut child, address) = started(&[]);
        let more = json!({ "stream": true, "max_tokens": 40, "temperature": 1 });
        let mut reply = BufReader::new(posted(address, CHAT, &[], &chat("demo-model", &more)));
        reply.read_line(&mut String::new()).expect("a status");
        signal(&child, name);
        let rest: Vec<String> = reply.lines().map_while(Result::ok).collect();
        assert!(rest.iter().any(|line| line == "data: [DONE]"), "{name}: {rest:?}");
        assert_eq!(ended(&mut child), Some(0), "{name}");
    }
    let (mut child, address) = started(&["--drain", "1ms"]);
    let mut reply = BufReader::new(posted(address, CHAT, &[], &long("demo-model")));
    reply.read_line(&mut String::new()).expect("a status");
    signal(&child, "TERM");
    assert_eq!(ended(&mut child), Some(0));
    let rest: Vec<String> = reply.lines().map_while(Result::ok).collect();
    assert!(rest.iter().all(|line| line != "data: [DONE]"), "{rest:?}");
}

#[test]
fn chat_is_run_with_a_conversation() {
    let lines = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(lines.path(), "What is politics?\nDefine happiness.\n").expect("written");
    let reply = |words: &[&str]| {
        shardwright(words.iter().copied()).arguments(["--greedy", "-n", "8"]).input(lines.path()).succeeds()
    };
    let expected = reply(&["run", DEMO_MODEL, "--chat"]);
    assert_eq!(reply(&["chat", DEMO_MODEL]), expected);
    assert_eq!(expected.lines().count(), 2, "{expected}");
    let sampled = |command: &str, seed: &str| {
        let words = [command, DEMO_MODEL, "--chat", "--temperature", "6", "--seed", seed, "-n", "8"];
        let words = words.into_iter().filter(|word| command == "run" || *word != "--chat");
        shardwright(words).input(lines.path()).succeeds()
    };
    let first = sampled("chat", "3");
    assert_eq!(first, sampled("run", "3"));
    assert!(first != expected && first != sampled("chat", "4"), "{first}");
    shardwright(["chat", DEMO_MODEL, "--raw"]).refuses_with(2, &["run --raw"]);
}
