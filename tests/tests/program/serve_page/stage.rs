//! A server in front of the program. It plays the replies of a model from a script and passes all
//! other requests to the program, so that the page and its security policy are the real ones.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

/// A step of a scripted answer.
pub enum Step {
    /// Sends a chunk with this `delta`.
    Delta(Value),
    /// Sends the last chunk of the choice, with the reason.
    Finish(&'static str),
    /// Sends an event with these members.
    Event(Value),
    Wait(Duration),
    /// Ends the events in the way of the protocol. Without it the connection breaks.
    Done,
    /// Answers with this status and JSON instead.
    Refuse(u16, Value),
}

/// Returns the answer to the body of a request.
pub type Script = fn(&Value) -> Vec<Step>;

/// The server. Its threads end with the test.
pub struct Stage {
    host: String,
    /// Bodies of all completions.
    requests: Arc<Mutex<Vec<Value>>>,
    /// Number of replies that the client did not read to their end.
    left: Arc<AtomicUsize>,
}

impl Stage {
    /// Starts a server in front of the program at `behind`, such as `127.0.0.1:8080`.
    pub fn new(behind: &str, script: Script) -> Stage {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let host = listener.local_addr().expect("an address").to_string();
        let stage = Stage { host, requests: Arc::default(), left: Arc::default() };
        let (behind, requests, left) = (behind.to_owned(), stage.requests.clone(), stage.left.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (behind, requests, left) = (behind.clone(), requests.clone(), left.clone());
                thread::spawn(move || {
                    // A browser opens connections that it does not use.
                    let Ok(request) = Request::read(&stream) else { return };
                    if request.line.starts_with("POST /v1/chat/completions ") {
                        let body: Value = serde_json::from_slice(&request.body).expect("JSON");
                        let steps = script(&body);
                        requests.lock().expect("no panic").push(body);
                        if play(&stream, steps).is_err() {
                            left.fetch_add(1, Ordering::Relaxed);
                        }
                    } else {
                        let _ = pass_on(&request, &behind, &stream);
                    }
                });
            }
        });
        stage
    }

    /// Returns the address of the page.
    pub fn address(&self) -> String {
        format!("http://{}/", self.host)
    }

    /// Returns the bodies of all completions so far.
    pub fn requests(&self) -> Vec<Value> {
        self.requests.lock().expect("no panic").clone()
    }

    /// Returns the number of replies that the client did not read to their end.
    pub fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }
}

struct Request {
    line: String,
    headers: Vec<String>,
    body: Vec<u8>,
}

impl Request {
    fn read(stream: &TcpStream) -> io::Result<Request> {
        let mut reader = BufReader::new(stream);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let length = lines.iter().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("content-length").then(|| value.parse().ok())?
        });
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body)?;
        let headers = lines.split_off(1);
        Ok(Request { line: lines.remove(0), headers, body })
    }
}

/// Sends a request to the program, as if it came to the program's own address.
fn pass_on(request: &Request, behind: &str, mut client: &TcpStream) -> io::Result<u64> {
    let mut server = TcpStream::connect(behind)?;
    write!(server, "{}\r\nHost: {behind}\r\nConnection: close\r\n", request.line)?;
    let own = ["host:", "connection:", "origin:", "referer:"];
    for header in &request.headers {
        if !own.iter().any(|name| header.to_ascii_lowercase().starts_with(name)) {
            write!(server, "{header}\r\n")?;
        }
    }
    write!(server, "\r\n")?;
    server.write_all(&request.body)?;
    io::copy(&mut server, &mut client)
}

fn play(mut client: &TcpStream, steps: Vec<Step>) -> io::Result<()> {
    if let [Step::Refuse(status, body)] = &steps[..] {
        let text = body.to_string();
        let length = text.len();
        return write!(
            client,
            "HTTP/1.1 {status} Refused\r\nContent-Type: application/json\r\nRetry-After: 3\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{text}"
        );
    }
    write!(client, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")?;
    let chunk = |delta: Value, reason: Option<&str>| {
        let choice = json!({ "index": 0, "delta": delta, "finish_reason": reason });
        json!({ "choices": [choice] })
    };
    for step in steps {
        let event = match step {
            Step::Delta(delta) => chunk(delta, None).to_string(),
            Step::Finish(reason) => chunk(json!({}), Some(reason)).to_string(),
            Step::Event(event) => event.to_string(),
            Step::Done => "[DONE]".to_owned(),
            Step::Wait(time) => {
                thread::sleep(time);
                continue;
            }
            Step::Refuse(..) => unreachable!("a refusal is the only step"),
        };
        // The protocol allows both line ends and comments.
        write!(client, ": a comment\n\ndata: {event}\r\n\r\n")?;
        client.flush()?;
    }
    Ok(())
}
