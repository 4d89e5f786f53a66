//! Chips that are lost and workers that die while the server replies: the model is opened again
//! once, each reply continues with the same text, and a model that stays lost is a typed error.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use shardwright::{Error, ErrorKind, Isolation, Model, OpenOptions, Result};
use shardwright_serve::ServedModel;
use shardwright_tests::checkpoints::{DEMO_MODEL, EMBEDDING_FIXTURE, MULTIMODAL_FIXTURE};
use shardwright_tests::chip::{CHIP, TestChip};
use shardwright_tests::tree;

use super::client::{Response, get, metric, post};
use super::{CHAT, Running, chat};

const QUESTION: &str = "What does bug mean?";

/// Most losses that a single request survives.
const SURVIVED: usize = 3;

/// The fate of an opening of a model.
#[derive(Clone, Copy)]
enum Fate {
    /// The chip stays.
    Stays,
    /// The chip is lost in this run, counted from 1.
    LostIn(u32),
    /// The model cannot be opened.
    NotOpened,
}

/// A model on a chip, without a fallback.
struct Doomed {
    chip: TestChip,
    options: OpenOptions,
    /// The fates of the next openings, and of all further ones.
    fates: Mutex<(VecDeque<Fate>, Fate)>,
    opened: AtomicUsize,
}

impl Doomed {
    fn new(fates: &[Fate], further: Fate) -> Arc<Self> {
        let chip = TestChip::new();
        let options = OpenOptions::new().search_path(chip.search_path()).soc(CHIP);
        let options = options.isolation(Isolation::Off).strict(true);
        let fates = Mutex::new((fates.iter().copied().collect(), further));
        Arc::new(Doomed { chip, options, fates, opened: AtomicUsize::new(0) })
    }

    /// Decides the fates from now on.
    fn set_fates(&self, fates: &[Fate], further: Fate) {
        *self.fates.lock().expect("no panic") = (fates.iter().copied().collect(), further);
    }

    fn open(&self, checkpoint: &Path, options: &OpenOptions) -> Result<Model> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        let fate = {
            let (next, further) = &mut *self.fates.lock().expect("no panic");
            next.pop_front().unwrap_or(*further)
        };
        match fate {
            Fate::Stays => self.chip.fails_in("nothing", 0),
            Fate::LostIn(run) => self.chip.fails_in("lost", run),
            Fate::NotOpened => {
                let error = Error::new(ErrorKind::Shim, "the driver is gone");
                return Err(error.with_help("restart the device"));
            }
        }
        options.open(checkpoint)
    }

    fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }

    /// Starts a server of this checkpoint as `demo`.
    fn serve(self: &Arc<Self>, checkpoint: &str, options: OpenOptions) -> Running {
        let (doomed, path) = (Arc::clone(self), tree::root().join(checkpoint));
        Running::with(|builder| {
            builder.model(ServedModel::new("demo", move |_| doomed.open(&path, &options)))
        })
    }

    /// Starts a server of the demo model.
    fn demo(self: &Arc<Self>) -> Running {
        self.serve(DEMO_MODEL, self.options.clone())
    }
}

fn count(server: &Running, name: &str) -> Option<f64> {
    metric(server.address, &format!("shardwright_{name}{{model=\"demo\"}}"))
}

/// Requests a reply of 40 tokens, with further fields.
fn ask(server: &Running, more: &Value) -> Response {
    let mut request = chat(QUESTION, &json!({ "max_tokens": 40 }));
    more.as_object().into_iter().flatten().for_each(|(name, value)| request[name] = value.clone());
    post(server.address, CHAT, &request)
}

/// Returns the text of a whole reply.
fn text_of(reply: &Response) -> String {
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()["choices"][0]["message"]["content"].as_str().expect("text").to_owned()
}

/// Returns the text of the events of a stream.
fn streamed(events: &[Value]) -> String {
    events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
}

/// Returns the reply without a loss.
fn undisturbed() -> String {
    text_of(&ask(&Doomed::new(&[], Fate::Stays).demo(), &json!({})))
}

#[test]
fn a_reply_survives_losses_before_and_within_its_text() {
    let expected = undisturbed();
    for stream in [false, true] {
        let fates = [Fate::LostIn(1), Fate::LostIn(6), Fate::LostIn(12)];
        let doomed = Doomed::new(&fates, Fate::Stays);
        let server = doomed.demo();
        let reply = ask(&server, &json!({ "stream": stream }));
        let found = match stream {
            false => text_of(&reply),
            true => {
                assert!(reply.body.ends_with("data: [DONE]\n\n"), "{}", reply.body);
                streamed(&reply.events())
            }
        };
        assert_eq!(found, expected, "stream: {stream}");
        for (name, times) in [("losses", 3.0), ("recoveries", 3.0), ("openings", 4.0), ("moves", 3.0)] {
            assert_eq!(count(&server, &format!("{name}_total")), Some(times), "{name}");
        }
        assert_eq!(doomed.opened(), 1 + SURVIVED);
        let placement = get(server.address, "/v1/placement").json();
        let model = &placement["models"][0];
        let notices = model["notices"].as_array().expect("notices");
        let is_loss = |notice: &&Value| {
            let text = notice["text"].as_str().unwrap_or_default();
            text.contains("lost its device or worker") && text.contains("fell off its bus")
        };
        assert_eq!(notices.iter().filter(is_loss).count(), 3, "{placement}");
        assert_eq!(model["moves"].as_array().map(Vec::len), Some(3), "{placement}");
        // The model that was opened last stays.
        assert_eq!(text_of(&ask(&server, &json!({}))), expected);
        assert_eq!(doomed.opened(), 1 + SURVIVED);
        server.end();
    }
}

#[test]
fn a_model_that_is_lost_in_each_run_is_a_typed_error_until_it_works_again() {
    let expected = undisturbed();
    let doomed = Doomed::new(&[], Fate::LostIn(1));
    let server = doomed.demo();
    let lost = ask(&server, &json!({}));
    assert_eq!(lost.refused(503).0, "device_lost");
    assert!(lost.header("retry-after").is_some() && lost.body.contains("fell off its bus"), "{lost:?}");
    assert_eq!(doomed.opened(), 1 + SURVIVED);
    assert_eq!((count(&server, "losses_total"), count(&server, "recoveries_total")), (Some(4.0), Some(3.0)));
    assert_eq!(count(&server, "model_loaded"), Some(0.0));

    // A stream has begun, so that the error is an event of it. Its text so far is right.
    doomed.set_fates(&[Fate::LostIn(24)], Fate::NotOpened);
    let cut = ask(&server, &json!({ "stream": true }));
    assert_eq!(cut.status, 200, "{cut:?}");
    let events = cut.events();
    assert_eq!(events.last().map(|event| &event["error"]["code"]), Some(&json!("device_lost")), "{cut:?}");
    assert!(!cut.body.contains("[DONE]"), "{}", cut.body);
    let text = streamed(&events);
    assert!(!text.is_empty() && text != expected && expected.starts_with(&text), "{text}");

    doomed.set_fates(&[], Fate::Stays);
    assert_eq!(text_of(&ask(&server, &json!({}))), expected);
}

#[test]
fn a_model_that_cannot_be_opened_after_a_loss_is_tried_a_few_times() {
    let doomed = Doomed::new(&[Fate::LostIn(1)], Fate::NotOpened);
    let server = doomed.demo();
    // The first request finds the loss. The second one finds no model.
    for tries in [1, 2] {
        let lost = ask(&server, &json!({}));
        assert_eq!(lost.refused(503).0, "device_lost");
        assert!(lost.body.contains("the driver is gone"), "{lost:?}");
        assert_eq!(doomed.opened(), tries * (1 + SURVIVED));
    }
    assert_eq!(count(&server, "losses_total"), Some(1.0));
    doomed.set_fates(&[], Fate::Stays);
    assert_eq!(ask(&server, &json!({})).status, 200);
}

#[test]
fn vectors_survive_losses() {
    let ask = |fates: &[Fate]| {
        let doomed = Doomed::new(fates, Fate::Stays);
        let server = doomed.serve(EMBEDDING_FIXTURE, doomed.options.clone());
        let body = json!({ "model": "demo", "input": ["a text", "another"] });
        let reply = post(server.address, "/v1/embeddings", &body);
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(count(&server, "losses_total"), Some(fates.len() as f64));
        reply.json()
    };
    assert_eq!(ask(&[Fate::LostIn(1), Fate::LostIn(2)]), ask(&[]));
    let doomed = Doomed::new(&[], Fate::LostIn(1));
    let server = doomed.serve(EMBEDDING_FIXTURE, doomed.options.clone());
    let lost = post(server.address, "/v1/embeddings", &json!({ "model": "demo", "input": "a text" }));
    assert_eq!(lost.refused(503).0, "device_lost");
    assert_eq!(doomed.opened(), 1 + SURVIVED);
}

/// A tower runs before the reply begins, so the request is begun again.
#[test]
fn a_request_whose_tower_is_lost_is_begun_again() {
    let picture = tree::root().join("host/preprocessing/tests/preprocessing/files/smooth.jpg");
    let picture = STANDARD.encode(std::fs::read(picture).expect("a picture"));
    let content = json!([{ "type": "text", "text": "What is this?" },
        { "type": "image_url", "image_url": { "url": format!("data:image/jpeg;base64,{picture}") } }]);
    let more = json!({ "messages": [{ "role": "user", "content": content }], "max_tokens": 4 });
    let doomed = Doomed::new(&[], Fate::Stays);
    let options = doomed.options.clone().tower_formats("stored".parse().expect("a choice"));
    let server = doomed.serve(MULTIMODAL_FIXTURE, options.clone());
    let expected = text_of(&ask(&server, &more));
    let doomed = Doomed::new(&[], Fate::Stays);
    let options = options.search_path(doomed.chip.search_path());
    let server = doomed.serve(MULTIMODAL_FIXTURE, options);
    // Applies to instances opened from now on, so only to the tower of the open model.
    doomed.chip.fails_in("lost", 1);
    assert_eq!(text_of(&ask(&server, &more)), expected);
    assert_eq!((count(&server, "losses_total"), count(&server, "recoveries_total")), (Some(1.0), Some(1.0)));
    assert_eq!(doomed.opened(), 2);
}

#[cfg(target_os = "linux")]
mod workers {
    use std::io::{BufRead, BufReader, Read};
    use std::net::SocketAddr;
    use std::thread;
    use std::time::{Duration, Instant};

    use serde_json::json;
    use shardwright_tests::checkpoints::DEMO_MODEL;
    use shardwright_tests::serving::Server;
    use shardwright_tests::worker;
    use shardwright_tests::{program, skipped};

    use super::super::client::{metric, post, posted};
    use super::super::{CHAT, chat, long};
    use super::{streamed, text_of};

    const QUESTIONS: [&str; 4] = ["What is politics?", "Define happiness.", "What is faith?", "Define love."];

    fn ask(address: SocketAddr, question: &str) -> String {
        text_of(&post(address, CHAT, &chat(question, &json!({ "model": "demo-model", "max_tokens": 32 }))))
    }

    /// Begins a reply of hundreds of tokens, kills the workers after its first text if `is_killed`,
    /// and returns the whole text.
    fn long_text(server: &Server, address: SocketAddr, is_killed: bool) -> String {
        let mut reader = BufReader::new(posted(address, CHAT, &[], &long("demo-model")));
        let mut all = String::new();
        let is_text = |line: &str| line.contains("\"content\":\"") && !line.contains("\"role\"");
        while !all.lines().next_back().is_some_and(is_text) {
            assert!(reader.read_line(&mut all).expect("a line") > 0, "no text in {all}");
        }
        if is_killed {
            assert!(worker::kill_all_of(server.id()) > 0, "no worker");
        }
        reader.read_to_string(&mut all).expect("the rest");
        assert!(all.contains("[DONE]") && !all.contains("\"error\""), "{all}");
        let data = all.lines().filter_map(|line| line.strip_prefix("data: "));
        let events = data.filter_map(|data| serde_json::from_str(data).ok());
        streamed(&events.collect::<Vec<_>>())
    }

    #[test]
    fn workers_that_die_between_and_during_requests_cost_no_reply() {
        if !program::folder().join("shardwright-worker").is_file() {
            return skipped("there is no worker that could die");
        }
        let server = Server::start([DEMO_MODEL, "--isolation", "process", "--threads", "1"]);
        let address: SocketAddr = server.host().parse().expect("an address");
        let losses = || metric(address, "shardwright_losses_total").expect("a metric");
        let alone: Vec<String> = QUESTIONS.iter().map(|question| ask(address, question)).collect();
        let long = long_text(&server, address, false);
        assert_eq!(losses(), 0.0);

        assert!(worker::kill_all_of(server.id()) > 0, "no worker");
        assert_eq!(ask(address, QUESTIONS[0]), alone[0]);
        assert_eq!(losses(), 1.0);

        for round in 2..4 {
            let together: Vec<String> = thread::scope(|scope| {
                let ask = |question: &'static str| move || ask(address, question);
                let threads = QUESTIONS.map(|question| scope.spawn(ask(question)));
                assert_eq!(long_text(&server, address, true), long);
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            });
            assert_eq!(together, alone);
            assert_eq!(losses(), f64::from(round));
        }
        assert_eq!(metric(address, "shardwright_responses_total{endpoint=\"chat\",status=\"503\"}"), None);
        let is_note = |line: &&str| line.starts_with("note: model `demo-model` lost its device");
        let notes = || server.output().lines().filter(is_note).count();
        let start = Instant::now();
        // Another thread reads the output.
        while notes() < 3 && start.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(notes(), 3, "{}", server.output());
    }
}
