//! Clients that share a model, models that share memory, and the end of a server.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use shardwright::{BundleOptions, Error, ErrorKind, Isolation, OpenOptions};
use shardwright_serve::{Limits, ServedModel};
use shardwright_tests::bundles::Compiled;
use shardwright_tests::checkpoints::DEMO_MODEL;
use shardwright_tests::chip::{CHIP, TestChip};
use shardwright_tests::program::search_path;
use shardwright_tests::tree;

use super::client::{get, metric, post, posted};
use super::{CHAT, Running, chat, long, model};

/// Longest wait for an effect, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is true.
fn until(what: &str, is_true: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Begins a long reply, and returns its connection after the first text.
fn long_reply(server: &Running) -> BufReader<TcpStream> {
    let stream = posted(server.address, CHAT, &[], &long("demo"));
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while !line.contains("\"content\":\"") || line.contains("\"role\"") {
        line.clear();
        assert!(reader.read_line(&mut line).expect("a line") > 0, "the reply ended before its first text");
    }
    reader
}

#[test]
fn a_long_reply_does_not_block_a_short_one() {
    let server = Running::demo();
    let mut long = long_reply(&server);
    let short = post(server.address, CHAT, &chat("What is politics?", &json!({ "max_tokens": 2 })));
    assert_eq!(short.status, 200, "{short:?}");
    // The short one ended while the long one goes on: most of its text is still to come.
    let open = metric(server.address, "shardwright_open_requests");
    let mut rest = String::new();
    long.read_to_string(&mut rest).expect("the rest");
    assert_eq!(open, Some(1.0));
    assert!(rest.matches("\"content\":\"").count() > 3, "{rest}");
    assert!(rest.contains("[DONE]"), "{rest}");
}

#[test]
fn clients_get_the_replies_of_their_own_requests() {
    let server = Running::demo();
    let questions = ["What is politics?", "Define happiness.", "What is faith?", "Define love."];
    let ask = |question: &str| {
        let reply = post(server.address, CHAT, &chat(question, &json!({ "max_tokens": 12 }))).json();
        reply["choices"][0]["message"]["content"].as_str().expect("text").to_owned()
    };
    let alone: Vec<String> = questions.iter().map(|question| ask(question)).collect();
    for _ in 0..3 {
        let together: Vec<String> = thread::scope(|scope| {
            let threads: Vec<_> = questions.iter().map(|question| scope.spawn(|| ask(question))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(together, alone);
    }
}

#[test]
fn a_client_that_leaves_ends_its_reply() {
    let server = Running::demo();
    let tokens = || metric(server.address, "shardwright_generated_tokens_total").unwrap_or(0.0);
    drop(long_reply(&server));
    until("the reply of a client that left goes on", || {
        metric(server.address, "shardwright_open_requests") == Some(0.0)
    });
    // The whole reply has hundreds.
    assert!(tokens() < 100.0, "{} tokens", tokens());
    assert_eq!(metric(server.address, "shardwright_cancelled_replies_total"), Some(1.0));
    // A client that waits for a whole reply counts too.
    let mut request = long("demo");
    request["stream"] = json!(false);
    let waiting = posted(server.address, CHAT, &[], &request);
    until("the request is not admitted", || metric(server.address, "shardwright_open_requests") == Some(1.0));
    drop(waiting);
    until("the request of a client that left stays open", || {
        metric(server.address, "shardwright_open_requests") == Some(0.0)
    });
    assert_eq!(metric(server.address, "shardwright_cancelled_replies_total"), Some(2.0));
}

/// Each run of a shard takes 100 ms, so that tokens after the client left can be counted.
#[test]
fn a_reply_ends_within_a_token_of_its_client() {
    let chip = TestChip::new();
    let options = OpenOptions::new().search_path(chip.search_path()).soc(CHIP).isolation(Isolation::Off);
    let options = options.planner_option("speculation", "none");
    let path = tree::root().join(DEMO_MODEL);
    let server =
        Running::with(|builder| builder.model(ServedModel::new("demo", move |_| options.open(&path))));
    // Each run reads the faults.
    chip.has_faults(&["slow - 100000 0"]);
    let request = chat("What does bug mean?", &json!({ "stream": true }));
    let mut reader = BufReader::new(posted(server.address, CHAT, &[], &request));
    let mut seen = 0;
    while seen < 3 {
        let mut line = String::new();
        assert!(reader.read_line(&mut line).expect("a line") > 0, "the reply ended early");
        seen += usize::from(line.contains("\"content\":\"") && !line.contains("\"role\""));
    }
    drop(reader);
    until("the reply of a client that left goes on", || {
        metric(server.address, "shardwright_open_requests") == Some(0.0)
    });
    let tokens = metric(server.address, "shardwright_generated_tokens_total").expect("a metric");
    // The whole reply has dozens. A token may have no visible text, one is in progress, and a busy
    // machine may need another to notice.
    assert!((3.0..=6.0).contains(&tokens), "{tokens} tokens, of which the client read {seen}");
    assert_eq!(metric(server.address, "shardwright_cancelled_replies_total"), Some(1.0));
}

#[test]
fn a_stopping_server_finishes_replies_and_accepts_no_more() {
    let server = Running::demo();
    let (address, stopper) = (server.address, server.stopper.clone());
    let mut reply = long_reply(&server);
    stopper.stop();
    let mut rest = String::new();
    reply.read_to_string(&mut rest).expect("the rest");
    assert!(rest.contains("[DONE]"), "{rest}");
    server.end();
    assert!(TcpStream::connect(address).is_err(), "it accepts connections");
}

#[test]
fn replies_longer_than_the_time_to_stop_are_cancelled_and_told_so() {
    let limits = |limits: &mut Limits| limits.drain_time = Duration::from_millis(100);
    let server = Running::limited(limits);
    let mut reply = long_reply(&server);
    let start = Instant::now();
    server.end();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let mut rest = String::new();
    reply.read_to_string(&mut rest).expect("the rest");
    assert!(rest.contains("\"code\":\"stopping\"") && !rest.contains("[DONE]"), "{rest}");
}

#[test]
fn models_share_a_budget_and_the_least_recently_used_one_is_reopened() {
    let bundle = Compiled::of(DEMO_MODEL);
    let opened = Arc::new(AtomicUsize::new(0));
    let open = |path: std::path::PathBuf| {
        let opened = Arc::clone(&opened);
        move |budget: Option<u64>| {
            opened.fetch_add(1, Ordering::SeqCst);
            let options = BundleOptions::new().search_path(search_path()).threads(1);
            let options = budget.map_or(options.clone(), |bytes| options.memory_budget(bytes));
            options.open(path.as_path())
        }
    };
    let memory = open(bundle.path())(None).expect("it opens").memory();
    // Room for one model with a session, and not for two.
    let budget = memory.weights + memory.weights / 2 + memory.session.bytes();
    let served = |id: &str| ServedModel::new(id, open(bundle.path()));
    let mut limits = Limits::default();
    limits.prefix_cache_bytes = 0;
    let server = Running::with(|builder| {
        builder.model(served("a")).model(served("b")).memory_budget(budget).limits(limits)
    });
    let ask = |id: &str| {
        let reply =
            post(server.address, CHAT, &chat("What is politics?", &json!({ "model": id, "max_tokens": 4 })));
        assert_eq!(reply.status, 200, "{id}: {reply:?}");
        reply.json()["choices"][0]["message"]["content"].clone()
    };
    let openings =
        |id: &str| metric(server.address, &format!("shardwright_openings_total{{model=\"{id}\"}}"));
    let loaded = |id: &str| metric(server.address, &format!("shardwright_model_loaded{{model=\"{id}\"}}"));
    // Opening the second one at the start released the first.
    assert_eq!((loaded("a"), loaded("b")), (Some(0.0), Some(1.0)));
    let before = opened.load(Ordering::SeqCst);
    assert_eq!(ask("a"), ask("b"));
    // Each switch releases the other model first, and opens once.
    assert_eq!(opened.load(Ordering::SeqCst) - before, 2);
    assert_eq!((loaded("a"), loaded("b")), (Some(0.0), Some(1.0)));
    assert_eq!((openings("a"), openings("b")), (Some(2.0), Some(2.0)));
    let placement = get(server.address, "/v1/placement").json();
    assert_eq!(
        (&placement["models"][0]["loaded"], &placement["models"][1]["loaded"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(placement["models"][1]["chain"].as_str().map(str::is_empty), Some(false));
    // While one is in use, there is no room for the other.
    let mut busy = posted(server.address, CHAT, &[], &long("b"));
    busy.read_exact(&mut [0; 15]).expect("a status");
    let refused = post(server.address, CHAT, &chat("x", &json!({ "model": "a" })));
    assert_eq!(refused.refused(503).0, "memory");
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    drop(busy);
}

#[test]
fn the_model_that_was_used_least_recently_goes_first() {
    let bundle = Compiled::of(DEMO_MODEL);
    let open = || {
        let path = bundle.path();
        move |budget: Option<u64>| {
            let options = BundleOptions::new().search_path(search_path()).threads(1);
            let options = budget.map_or(options.clone(), |bytes| options.memory_budget(bytes));
            options.open(path.as_path())
        }
    };
    let memory = open()(None).expect("it opens").memory();
    // Room for two models with a session each.
    let budget = 2 * (memory.weights + memory.session.bytes()) + memory.weights / 2;
    let mut limits = Limits::default();
    limits.prefix_cache_bytes = 0;
    let server = Running::with(|builder| {
        let builder = ["a", "b", "c"]
            .into_iter()
            .fold(builder, |builder, id| builder.model(ServedModel::new(id, open())));
        builder.memory_budget(budget).limits(limits)
    });
    let ask = |id: &str| {
        let more = json!({ "model": id, "max_tokens": 4 });
        assert_eq!(post(server.address, CHAT, &chat("What is politics?", &more)).status, 200, "{id}");
    };
    let loaded = || {
        ["a", "b", "c"].map(|id| {
            metric(server.address, &format!("shardwright_model_loaded{{model=\"{id}\"}}")) == Some(1.0)
        })
    };
    // All were opened at the start, which released the first.
    assert_eq!(loaded(), [false, true, true]);
    ask("b");
    ask("a");
    assert_eq!(loaded(), [true, true, false]);
    ask("c");
    assert_eq!(loaded(), [true, false, true]);
}

#[test]
fn of_many_requests_at_once_as_many_succeed_as_have_room() {
    let options = OpenOptions::new().search_path(search_path()).threads(1);
    let memory = options.open(tree::root().join(DEMO_MODEL)).expect("it opens").memory();
    let budget = memory.weights + 2 * memory.session.bytes();
    let mut limits = Limits::default();
    limits.prefix_cache_bytes = 0;
    let server = Running::with(|builder| {
        builder.model(model("demo", DEMO_MODEL)).memory_budget(budget).limits(limits)
    });
    let ask = || post(server.address, CHAT, &chat("What is politics?", &json!({ "max_tokens": 16 })));
    let responses: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let (answered, refused): (Vec<_>, Vec<_>) = responses.iter().partition(|response| response.status == 200);
    assert!(answered.len() >= 2, "{responses:?}");
    refused.iter().for_each(|response| assert_eq!(response.refused(503).0, "memory"));
    // Sessions that ended are not counted.
    assert_eq!(ask().status, 200);
}

#[test]
fn errors_of_opening_are_told_to_the_client_of_the_request() {
    let bundle = Compiled::of(DEMO_MODEL);
    let path = bundle.path();
    let memory =
        BundleOptions::new().search_path(search_path()).open(path.as_path()).expect("it opens").memory();
    let is_broken = Arc::new(AtomicBool::new(false));
    let served = |id: &str| {
        let (path, is_broken) = (path.clone(), Arc::clone(&is_broken));
        ServedModel::new(id, move |budget: Option<u64>| match is_broken.load(Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::Shim, "the driver is gone").with_help("restart the device")),
            false => {
                let options = BundleOptions::new().search_path(search_path()).threads(1);
                options.memory_budget(budget.unwrap_or(1)).open(path.as_path())
            }
        })
    };
    let budget = memory.weights + memory.weights / 2 + memory.session.bytes();
    let server = Running::with(|builder| builder.model(served("a")).model(served("b")).memory_budget(budget));
    is_broken.store(true, Ordering::SeqCst);
    // The first model was released for the second one.
    let refused = post(server.address, CHAT, &chat("x", &json!({ "model": "a" })));
    assert_eq!(refused.refused(500).0, "shim");
    assert!(refused.body.contains("restart the device"), "{refused:?}");
    is_broken.store(false, Ordering::SeqCst);
    assert_eq!(post(server.address, CHAT, &chat("x", &json!({ "model": "a", "max_tokens": 1 }))).status, 200);
}
