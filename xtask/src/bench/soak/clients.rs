//! The clients of a soak: their requests, and the checks of the answers.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Tally;
use crate::bench::chat::{self, ChatFailure, Reply};
use crate::bench::http;

const PROMPTS: [&str; 12] = [
    "What does bug mean?",
    "What is politics?",
    "Define happiness.",
    "What is faith?",
    "Define love.",
    "What is a lighthouse?",
    "What does foo mean?",
    "Define war.",
    "What is a hacker?",
    "What does kluge mean?",
    "Define patience.",
    "What is an idiot?",
];

/// Settings for each prompt: short, long, drawn at random from a seed, and by a schema.
const SETTINGS: usize = 4;

/// Number of different requests for a reply.
pub const CASES: usize = PROMPTS.len() * SETTINGS;

/// Longest time until the server answers again after a worker died.
const RECOVERY: Duration = Duration::from_secs(60);

/// Time between an error of the server and the next try.
const RETRY: Duration = Duration::from_millis(250);

/// Bytes that a slow client sends or reads at once, and the time between them.
const SLOW: (usize, Duration) = (64, Duration::from_millis(4));

/// Lines of a stream that a client reads before it leaves.
const READ: usize = 4;

/// The behaviour of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Plain,
    /// Sends and reads a few bytes at a time.
    Slow,
    /// Leaves before the reply ends.
    Cancelled,
    /// Sends a request that the server must refuse.
    Malformed,
}

impl Kind {
    /// Returns the kind of a request. Of ten, one is slow, one is cancelled and one is malformed.
    fn of(index: usize) -> Kind {
        match index % 10 {
            3 => Kind::Cancelled,
            6 => Kind::Malformed,
            9 => Kind::Slow,
            _ => Kind::Plain,
        }
    }
}

/// The requests of all clients, and the replies that a single client got.
pub struct Clients {
    address: SocketAddr,
    model: String,
    expected: Vec<Reply>,
}

impl Clients {
    /// Requests the reply of each case, one after the other.
    pub fn new(address: SocketAddr, model: &str) -> Result<Clients, ChatFailure> {
        let mut clients = Clients { address, model: model.to_owned(), expected: Vec::new() };
        for case in 0..CASES {
            let reply = chat::ask(address, &clients.body(case, true))?;
            clients.expected.push(reply);
        }
        Ok(clients)
    }

    /// Sends a request until it ends as expected. Only errors of the server are reason for another
    /// try.
    pub fn request(&self, index: usize, tally: &Tally) {
        let (kind, start) = (Kind::of(index), Instant::now());
        loop {
            let refused = match self.attempt(kind, index) {
                Ok(None) => return tally.done(kind),
                Ok(Some(wrong)) => return tally.wrong(format!("request {index} ({kind:?}): {wrong}")),
                Err(ChatFailure::Lost(problem)) => {
                    return tally.lost(format!("request {index} ({kind:?}): {problem}"));
                }
                Err(refused) => refused,
            };
            tally.failed();
            let is_late = start.elapsed() > RECOVERY;
            if is_late || tally.is_given_up.load(Ordering::Relaxed) {
                tally.is_given_up.store(true, Ordering::Relaxed);
                let seconds = start.elapsed().as_secs();
                return tally.lost(format!("request {index} ({kind:?}): after {seconds} s still {refused}"));
            }
            thread::sleep(RETRY);
        }
    }

    /// Sends a request once. Returns a wrong answer.
    fn attempt(&self, kind: Kind, index: usize) -> Result<Option<String>, ChatFailure> {
        // Each kind has all cases in turn.
        let case = (7 * (index / 10) + 5 * (index % 10)) % CASES;
        match kind {
            Kind::Plain => {
                let reply = chat::ask(self.address, &self.body(case, (index / 2).is_multiple_of(2)))?;
                Ok(self.difference(case, &reply))
            }
            Kind::Slow => Ok(self.difference(case, &self.slowly(case)?)),
            Kind::Cancelled => self.cancelled(case, (index / 10).is_multiple_of(2)),
            Kind::Malformed => self.malformed(index / 10),
        }
    }

    /// Returns a request for a reply.
    fn body(&self, case: usize, stream: bool) -> Value {
        let mut request = json!({
            "model": self.model,
            "messages": [{ "role": "user", "content": PROMPTS[case / SETTINGS] }],
            "temperature": 0,
            "stream": stream,
        });
        request["max_tokens"] = json!([8, 32, 24, 48][case % SETTINGS]);
        match case % SETTINGS {
            2 => (request["temperature"], request["seed"]) = (json!(1), json!(case)),
            3 => request["response_format"] = format(&json!({ "type": "string", "maxLength": 20 })),
            _ => {}
        }
        request
    }

    /// Describes a reply that differs from the one that a single client got.
    fn difference(&self, case: usize, reply: &Reply) -> Option<String> {
        let expected = self.expected.get(case)?;
        (!reply.is_same(expected)).then(|| {
            let shown = |reply: &Reply| format!("{:?} ({})", reply.text, reply.finish);
            format!("{}, expected {}", shown(reply), shown(expected))
        })
    }

    /// Sends and reads a few bytes at a time.
    fn slowly(&self, case: usize) -> Result<Reply, ChatFailure> {
        let (body, start) = (self.body(case, true).to_string(), Instant::now());
        let head = http::head(self.address, "POST", chat::PATH, JSON, body.len());
        let mut stream = http::connect(self.address)?;
        for piece in (head + &body).as_bytes().chunks(SLOW.0) {
            stream.write_all(piece)?;
            thread::sleep(SLOW.1);
        }
        let (status, body) = http::receive(stream)?;
        chat::read(status, Slowly(body), true, start)
    }

    /// Leaves at once, or after the first lines of the stream.
    fn cancelled(&self, case: usize, at_once: bool) -> Result<Option<String>, ChatFailure> {
        let mut request = self.body(case, true);
        request["max_tokens"] = json!(200);
        let stream = http::post(self.address, chat::PATH, request.to_string().as_bytes())?;
        if at_once {
            return Ok(None);
        }
        let (status, body) = http::receive(stream)?;
        if status != 200 {
            return chat::read(status, body, true, Instant::now()).map(|_| None);
        }
        BufReader::new(body).lines().take(READ).try_for_each(|line| line.map(drop))?;
        Ok(None)
    }

    /// Sends a request that the server must refuse, and checks the refusal.
    fn malformed(&self, number: usize) -> Result<Option<String>, ChatFailure> {
        let faults = self.faults();
        let Fault { request, status: expected } = &faults[number % faults.len()];
        let mut stream = http::connect(self.address)?;
        // The server may refuse the head before it reads the body.
        let _ = stream.write_all(request.as_bytes());
        if expected.is_none() {
            // No further byte follows.
            let _ = stream.shutdown(Shutdown::Write);
        }
        let answer = http::receive(stream).and_then(|(status, mut body)| {
            let mut text = String::new();
            body.read_to_string(&mut text)?;
            Ok((status, text))
        });
        match (answer, expected) {
            (Ok((status, text)), _) if status >= 500 => Err(ChatFailure::Refused { status, text }),
            (Ok((status, text)), Some(expected)) if status == *expected && text.contains("\"error\"") => {
                Ok(None)
            }
            (Ok((400..500, _)) | Err(_), None) => Ok(None),
            (Ok((status, text)), _) => Ok(Some(format!("{status} {text} after {request:?}"))),
            (Err(error), Some(_)) => Err(error.into()),
        }
    }

    /// Returns requests that the server must refuse.
    fn faults(&self) -> Vec<Fault> {
        let with = |name: &str, value: Value| {
            let mut request = self.body(0, false);
            request[name] = value;
            request.to_string()
        };
        let sent = |method: &str, kind: &str, body: &str, status: u16| Fault {
            request: http::head(self.address, method, chat::PATH, kind, body.len()) + body,
            status: Some(status),
        };
        let posted = |body: &str, status: u16| sent("POST", JSON, body, status);
        let whole = with("temperature", json!(0));
        let cut = http::head(self.address, "POST", chat::PATH, JSON, whole.len() + 10) + &whole;
        vec![
            posted("{\"model\":", 400),
            posted(&with("temprature", json!(0)), 400),
            posted(&with("temperature", json!("hot")), 400),
            posted(&with("model", json!("another")), 404),
            posted(&with("response_format", format(&json!({ "not": {} }))), 400),
            sent("POST", "text/plain", &whole, 415),
            sent("GET", JSON, "", 405),
            Fault { request: cut, status: None },
            Fault { request: "\0\0\0\0\r\n\r\n".to_owned(), status: None },
        ]
    }
}

/// The type of all bodies.
const JSON: &str = "application/json";

/// A request that the server must refuse.
struct Fault {
    request: String,
    /// Status of the refusal. `None` if the server may also close the connection.
    status: Option<u16>,
}

/// Returns the format of a reply that matches a schema.
fn format(schema: &Value) -> Value {
    json!({ "type": "json_schema", "json_schema": { "name": "reply", "schema": schema } })
}

/// Reads a few bytes at a time.
struct Slowly<R>(R);

impl<R: Read> Read for Slowly<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        thread::sleep(SLOW.1);
        let most = buffer.len().min(SLOW.0);
        self.0.read(&mut buffer[..most])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn clients() -> Clients {
        let reply = Reply { text: "a".to_owned(), ..Reply::default() };
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        Clients { address, model: "m".to_owned(), expected: vec![reply; CASES] }
    }

    #[test]
    fn of_ten_requests_three_are_unusual_and_all_cases_differ() {
        let kinds: Vec<Kind> = (0..1000).map(Kind::of).collect();
        for kind in [Kind::Slow, Kind::Cancelled, Kind::Malformed] {
            assert_eq!(kinds.iter().filter(|found| **found == kind).count(), 100, "{kind:?}");
        }
        let clients = clients();
        let bodies: BTreeSet<String> = (0..CASES).map(|case| clients.body(case, true).to_string()).collect();
        assert_eq!(bodies.len(), CASES);
    }

    #[test]
    fn another_text_is_described() {
        let (clients, other) = (clients(), Reply { text: "b".to_owned(), ..Reply::default() });
        assert_eq!(clients.difference(0, &clients.expected[0]), None);
        assert_eq!(clients.difference(0, &other).as_deref(), Some("\"b\" (), expected \"a\" ()"));
    }

    #[test]
    fn a_server_that_is_gone_loses_the_reply() {
        let tally = Tally::default();
        (0..10).for_each(|index| clients().request(index, &tally));
        let [wrong, lost] = tally.faults();
        assert_eq!((wrong.len(), lost.len()), (0, 10), "{wrong:?} {lost:?}");
    }

    #[test]
    fn malformed_requests_are_whole_heads_with_a_fault() {
        let faults = clients().faults();
        let statuses: Vec<Option<u16>> = faults.iter().map(|fault| fault.status).collect();
        let expected = [400, 400, 400, 404, 400, 415, 405].map(Some);
        assert_eq!(statuses, [&expected[..], &[None, None]].concat());
        assert!(faults.iter().take(8).all(|fault| fault.request.contains("\r\n\r\n")));
    }
}
