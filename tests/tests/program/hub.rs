//! Models of a hub, pulled from a hub on this machine and used by their ids.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use shardwright_tests::checkpoints::{DEMO_MODEL, TEXT_FIXTURES};
use shardwright_tests::program::{self, Run, shardwright};
use shardwright_tests::tree;
use tempfile::TempDir;

use self::server::{COMMIT, End, Hub, LARGE, Model, Reply, Request};
use crate::terminal::Terminal;

#[path = "../../../host/hub/tests/hub/server.rs"]
mod server;

/// The id of the demo model on the test hub.
const ID: &str = "shard/wright-demo";

/// Longest wait, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Serves a checkpoint of the tree as a model on a hub.
fn hub(checkpoint: &str, instead: impl Fn(&Hub, &Request) -> Option<Reply> + Send + Sync + 'static) -> Hub {
    let folder = tree::root().join(checkpoint);
    let entries = fs::read_dir(&folder).expect("a checkpoint").map(|entry| entry.expect("an entry").path());
    let files = entries.filter(|path| path.is_file()).map(|path| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, fs::read(&path).expect("a file"))
    });
    Hub::serve(Model { id: ID.to_owned(), files: files.collect() }, instead)
}

/// Prepares a command with its own cache and hub, and no token.
fn at(hub: &str, cache: &TempDir, arguments: &[&str]) -> Run {
    shardwright(arguments)
        .environment("HF_HUB_CACHE", cache.path())
        .environment("HF_ENDPOINT", hub)
        .environment("HF_HOME", cache.path())
        .environment("HF_TOKEN", "")
        .environment("HF_HUB_OFFLINE", "")
}

/// An address without a hub.
const NOWHERE: &str = "http://127.0.0.1:1";

fn cache() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// Returns the file of an unfinished pull.
fn partial(cache: &TempDir) -> Option<PathBuf> {
    let blobs = fs::read_dir(cache.path().join("models--shard--wright-demo/blobs")).ok()?;
    let found = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "incomplete");
    blobs.filter_map(|entry| Some(entry.ok()?.path())).find(found)
}

/// Stops a pull with this signal once it has a part of the weights. Returns its exit code.
fn stopped_with(signal: &str, hub: &Hub, cache: &TempDir) -> (Option<i32>, String) {
    let child = Command::new(program::executable())
        .args(["pull", ID])
        .env("HF_HUB_CACHE", cache.path())
        .env("HF_HOME", cache.path())
        .env("HF_ENDPOINT", &hub.url)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let begun = Instant::now();
    while !partial(cache).is_some_and(|path| path.metadata().is_ok_and(|found| found.len() >= SENT as u64)) {
        assert!(begun.elapsed() < PATIENCE, "no part of a file: {:?}", hub.requests());
        thread::sleep(Duration::from_millis(10));
    }
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill");
    assert!(sent.success(), "it ended: {:?}", child.wait_with_output());
    let ended = child.wait_with_output().expect("waited for");
    (ended.status.code(), String::from_utf8(ended.stderr).expect("UTF-8"))
}

/// Bytes of the weights that a connection sends before it stalls.
const SENT: usize = 1_000_000;

/// Serves a hub with the demo model that stalls in the weights for the first `times` connections.
fn stalling(times: usize) -> Hub {
    hub(DEMO_MODEL, move |hub, request| {
        let reply = hub.own(request);
        let stalls = request.store && request.before < times && reply.body.len() > SENT;
        let full = reply.body.len();
        stalls.then(|| {
            let mut reply = reply.header("Content-Length", full).ending(End::Silent);
            reply.body.truncate(SENT);
            reply
        })
    })
}

#[test]
fn a_killed_pull_is_continued_and_its_model_runs_by_its_id_without_a_network() {
    let (hub, cache) = (stalling(1), cache());
    let (code, _) = stopped_with("-KILL", &hub, &cache);
    assert_eq!(code, None, "it was not killed");
    let left = partial(&cache).expect("a part of the weights").metadata().expect("a file").len();

    let report = at(&hub.url, &cache, &["pull", ID]).json();
    let resumed = hub.requests().iter().filter(|request| request.store).map(Request::from).max();
    assert_eq!(resumed, Some(left as usize), "begun again");
    assert_eq!((report["commit"].as_str(), report["licence"].as_str()), (Some(COMMIT), Some("apache-2.0")));
    let snapshot = PathBuf::from(report["snapshot"].as_str().expect("a path"));
    let names: Vec<&str> =
        report["files"].as_array().expect("files").iter().filter_map(|file| file["name"].as_str()).collect();
    assert!(names.contains(&"model.safetensors") && !names.contains(&"goldens.safetensors"), "{names:?}");
    for name in names {
        let (pulled, own) = (snapshot.join(name), tree::root().join(DEMO_MODEL).join(name));
        assert!(fs::read(pulled).expect("pulled") == fs::read(own).expect("a file"), "{name}");
    }

    let reply = |path: &str| {
        let arguments = ["run", path, "--prompt", "In the beginning", "-n", "24", "--greedy", "--quiet"];
        at(NOWHERE, &cache, &arguments).environment("HF_HUB_OFFLINE", "1").succeeds()
    };
    assert_eq!(reply(ID), reply(DEMO_MODEL));
    assert_eq!(reply(&format!("{ID}@{COMMIT}")), reply(DEMO_MODEL));
    // The name is the model's, not its commit's. Other commands accept the id too.
    let shown = at(NOWHERE, &cache, &["show", ID]).succeeds();
    assert!(shown.contains("wright-demo") && !shown.contains(COMMIT), "{shown}");
    at(NOWHERE, &cache, &["plan", ID]).succeeds();
    // A folder of that name is used whatever was pulled.
    let place = tempfile::tempdir().expect("a temporary folder");
    let folder = place.path().join(ID);
    fs::create_dir_all(folder.parent().expect("a folder")).expect("made");
    std::os::unix::fs::symlink(tree::root().join(TEXT_FIXTURES[0]), &folder).expect("a link");
    assert_ne!(at(NOWHERE, &cache, &["show", ID]).within(place.path()).succeeds(), shown);

    // Another cache has its own files.
    let other = tempfile::tempdir().expect("a folder");
    let pull = at(&hub.url, &cache, &["pull", ID, "--cache"]).argument(other.path()).json();
    let there = PathBuf::from(pull["snapshot"].as_str().expect("a path"));
    assert!(there.starts_with(other.path()) && there.join("config.json").exists(), "{pull}");

    // The files are not fetched again, and the output shows their path and licence.
    let text = at(&hub.url, &cache, &["pull", ID]).succeeds();
    assert!(text.contains("licence: apache-2.0") && text.contains(&snapshot.display().to_string()), "{text}");
    assert!(!text.contains(" fetched") && text.contains("already there"), "{text}");
}

#[test]
fn an_interrupt_ends_a_pull_with_what_helps() {
    let (hub, cache) = (stalling(1), cache());
    let (code, stderr) = stopped_with("-INT", &hub, &cache);
    assert_eq!(code, Some(130), "{stderr}");
    assert!(stderr.contains("was interrupted") && stderr.contains("help: pull again to resume"), "{stderr}");
}

#[test]
fn what_was_not_pulled_is_named_with_the_command_that_does() {
    let (hub, cache) = (hub(TEXT_FIXTURES[0], |_, _| None), cache());
    for command in ["run", "plan", "inspect", "bench", "show", "embed", "verify", "compile"] {
        let more: &[&str] = if command == "compile" { &["-o", "unused"] } else { &[] };
        let run = at(&hub.url, &cache, &[&[command, ID], more].concat());
        run.refuses_with(3, &[&format!("`shardwright pull {ID}`")]);
    }
    assert!(hub.requests().is_empty(), "a hub was contacted unasked");
}

#[test]
fn refusals_of_the_hub_reach_the_user_and_tokens_do_not() {
    let cache = cache();
    let gated = hub(TEXT_FIXTURES[0], |_, _| Some(Reply::new(403, "").header("X-Error-Code", "GatedRepo")));
    let secret = "hf_secret";
    for format in ["text", "json"] {
        let run = at(&gated.url, &cache, &["pull", ID, "-vvv", "--format", format]);
        let outcome = run.environment("HF_TOKEN", secret).outcome();
        assert_eq!(outcome.code, Some(3), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(&format!("{}/{ID}", gated.url)), "{}", outcome.stderr);
        assert!(!format!("{}{}", outcome.stdout, outcome.stderr).contains(secret));
    }
    assert!(gated.requests().iter().all(|request| request.header("authorization").is_some()));

    let offline = at(NOWHERE, &cache, &["pull", ID]).environment("HF_HUB_OFFLINE", "1");
    assert!(offline.refuses().1.contains("HF_HUB_OFFLINE"));
    // Options override the environment.
    let (_, stderr) = at(NOWHERE, &cache, &["pull", ID, "--hub", "ftp://elsewhere"]).refuses();
    assert!(stderr.contains("ftp://elsewhere"), "{stderr}");
    for twice in [["--revision", "x"], ["--file", "y"]] {
        let arguments = [&["pull", "a/b@main:Q4_0"], &twice[..]].concat();
        assert_eq!(at(NOWHERE, &cache, &arguments).refuses().0, 2);
    }
    assert_eq!(at(NOWHERE, &cache, &["pull", "../x"]).refuses().0, 2);
    // A machine without certificates, such as a container.
    let (_, stderr) = at("https://127.0.0.1:1", &cache, &["pull", ID])
        .environment("SSL_CERT_FILE", "/dev/null")
        .environment("SSL_CERT_DIR", cache.path())
        .refuses();
    assert!(stderr.contains("no certificate authorities") && stderr.contains("ca-certificates"), "{stderr}");
}

/// Certificate and key of `localhost`.
const LOCALHOST: &str = "tests/fixtures/localhost.pem";

/// Serves a hub over TLS as well, with one request per connection. Returns the address.
fn encrypted(hub: &Hub) -> String {
    let pem = tree::root().join(LOCALHOST);
    let certificate = CertificateDer::from_pem_file(&pem).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(&pem).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = versions.expect("versions of TLS").with_no_client_auth();
    let config = Arc::new(config.with_single_cert(vec![certificate], key).expect("a pair"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let plain = hub.url.trim_start_matches("http://").to_owned();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let connection = ServerConnection::new(Arc::clone(&config)).expect("a connection");
            let mut stream = StreamOwned::new(connection, stream);
            // The client may refuse the certificate.
            let _ = forward(&mut stream, &plain);
        }
    });
    format!("https://localhost:{port}")
}

/// Forwards one request, and returns its answer.
fn forward(stream: &mut (impl Read + Write), plain: &str) -> std::io::Result<()> {
    let (mut request, mut byte) = (Vec::new(), [0]);
    while !request.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        request.extend(byte);
    }
    let mut hub = TcpStream::connect(plain)?;
    hub.write_all(&request)?;
    let mut answer = Vec::new();
    hub.read_to_end(&mut answer)?;
    stream.write_all(&answer)?;
    stream.flush()
}

#[test]
fn a_hub_is_used_over_tls_if_this_machine_trusts_its_certificate() {
    let files = [("config.json", vec![b' '; LARGE - 1]), ("model.safetensors", vec![7; LARGE])];
    let (hub, cache) = (Hub::serve(Model::new(ID, files), |_, _| None), cache());
    let url = encrypted(&hub);
    let pull = |certificates: &str, file: &str| {
        let run = at(&url, &cache, &["pull", ID, "--file", file]).environment("HF_TOKEN", "secret");
        run.environment("SSL_CERT_DIR", cache.path())
            .environment("SSL_CERT_FILE", tree::root().join(certificates))
    };
    let (_, stderr) = pull(LOCALHOST, "model.safetensors").refuses();
    assert!(stderr.contains("to one that is not"), "the store is not encrypted: {stderr}");
    let report = pull(LOCALHOST, "config.json").json();
    assert_eq!(report["files"][0]["fetched"], true, "{report}");
    let authorised = |request: &Request| request.header("authorization") == Some("Bearer secret");
    assert!(hub.requests().iter().all(authorised), "{:?}", hub.requests());
    // The certificate is self-signed, so the system's authorities do not trust it.
    if let Some(system) = ["/etc/ssl/certs/ca-certificates.crt"].iter().find(|path| Path::new(path).is_file())
    {
        let before = hub.requests().len();
        let (_, stderr) = pull(system, "config.json").refuses();
        assert!(stderr.contains("UnknownIssuer") && hub.requests().len() == before, "{stderr}");
    }
}

#[test]
fn at_a_terminal_a_missing_model_is_offered_and_fetched_if_accepted() {
    let (hub, cache) = (hub(TEXT_FIXTURES[0], |_, _| None), cache());
    let place = cache.path().to_str().expect("UTF-8");
    let variables =
        [("HF_HUB_CACHE", place), ("HF_HOME", place), ("HF_ENDPOINT", hub.url.as_str()), ("HF_TOKEN", "")];
    let begin = || {
        let arguments = ["run", ID, "--prompt", "a", "-n", "2", "--greedy"];
        let mut terminal = Terminal::begin_with(&variables, &arguments);
        terminal.until("iB from http://127.0.0.1", 0);
        terminal.until("fetch it now? [y/N]", 0);
        terminal
    };
    let mut terminal = begin();
    terminal.press("\r");
    let (code, shown) = terminal.ended();
    assert_eq!(code, Some(3), "{shown}");
    assert!(shown.contains("shardwright pull") && hub.asked("resolve") == 0, "{shown}");
    let mut terminal = begin();
    terminal.press("y\r");
    let (code, shown) = terminal.ended();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("licence: apache-2.0") && shown.contains("2 tokens"), "{shown}");
    assert!(hub.model.files.iter().any(|(_, bytes)| bytes.len() >= LARGE) && hub.asked("store") > 0);
}
