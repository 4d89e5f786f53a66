//! A local hub: the API, files by `resolve`, and a store of large files on another port, to which
//! the hub redirects. Tests can replace any answer.

#![allow(dead_code, reason = "two test programs use parts of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::json;
use sha2::Digest;

/// The commit of all models on the hub.
pub const COMMIT: &str = "00112233445566778899aabbccddeeff00112233";

/// A model on the hub.
#[derive(Clone)]
pub struct Model {
    /// The id as `OWNER/NAME`.
    pub id: String,
    /// Files with names. Files of at least [`LARGE`] bytes are in the store.
    pub files: Vec<NamedFile>,
}

/// Path in the repository, and bytes.
pub type NamedFile = (String, Vec<u8>);

/// Minimum size in bytes of files in the store.
pub const LARGE: usize = 64;

impl Model {
    pub fn new(id: &str, files: impl IntoIterator<Item = (&'static str, Vec<u8>)>) -> Model {
        let files = files.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
        Model { id: id.to_owned(), files }
    }
}

/// A received request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    /// Path including the query.
    pub path: String,
    /// Headers with names in lower case.
    pub headers: Vec<(String, String)>,
    /// Whether the request was sent to the store.
    pub store: bool,
    /// Number of earlier requests for the same path.
    pub before: usize,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Returns the first byte of the requested range.
    pub fn from(&self) -> usize {
        let range = self.header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
        range.map_or(0, |from| from.parse().expect("a number"))
    }
}

#[derive(Clone, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Behaviour after the body.
    pub end: End,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum End {
    /// `Content-Length` is right, unless the headers have another.
    #[default]
    Honest,
    /// The connection closes after this many bytes of the body.
    Cut(usize),
    /// The connection stays open without sending a byte.
    Silent,
    /// The body is repeated forever, without a length.
    Endless,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Reply {
        Reply { status, body: body.into(), ..Reply::default() }
    }

    pub fn header(mut self, name: &str, value: impl ToString) -> Reply {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    pub fn ending(mut self, end: End) -> Reply {
        self.end = end;
        self
    }
}

/// Replaces answers of the hub. Returns `None` for the hub's own answer.
pub type Instead = dyn Fn(&Hub, &Request) -> Option<Reply> + Send + Sync;

/// The hub and its store.
#[derive(Clone)]
pub struct Hub {
    pub url: String,
    pub store: String,
    pub model: Model,
    requests: Arc<Mutex<Vec<Request>>>,
    /// Number of sent bytes of endless bodies.
    endless: Arc<AtomicU64>,
}

impl Hub {
    /// Serves a model until the process ends.
    pub fn serve(
        model: Model,
        instead: impl Fn(&Hub, &Request) -> Option<Reply> + Send + Sync + 'static,
    ) -> Hub {
        let listen = || TcpListener::bind("127.0.0.1:0").expect("a port");
        let (api, store) = (listen(), listen());
        let url = |listener: &TcpListener| format!("http://{}", listener.local_addr().expect("an address"));
        let hub = Hub {
            url: url(&api),
            store: url(&store),
            model,
            requests: Arc::default(),
            endless: Arc::default(),
        };
        let instead: Arc<Instead> = Arc::new(instead);
        for (listener, store) in [(api, false), (store, true)] {
            let (hub, instead) = (hub.clone(), Arc::clone(&instead));
            thread::spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    let (hub, instead) = (hub.clone(), Arc::clone(&instead));
                    thread::spawn(move || hub.answer(stream, store, &*instead));
                }
            });
        }
        hub
    }

    /// Returns all requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of requests for a path that contains this.
    pub fn asked(&self, part: &str) -> usize {
        self.requests().iter().filter(|request| request.path.contains(part)).count()
    }

    /// Returns the number of bytes sent of endless bodies.
    pub fn sent(&self) -> u64 {
        self.endless.load(Ordering::Relaxed)
    }

    fn answer(&self, stream: TcpStream, store: bool, instead: &Instead) {
        let Some(request) = self.read(&stream, store) else { return };
        let reply = instead(self, &request).unwrap_or_else(|| self.own(&request));
        // The other side may be gone.
        let _ = send(stream, &request, &reply, &self.endless);
    }

    fn read(&self, stream: &TcpStream, store: bool) -> Option<Request> {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let first = lines.next()?;
        let mut words = first.split(' ').map(str::to_owned);
        let (method, path) = (words.next()?, words.next()?);
        let headers = lines
            .take_while(|line| !line.is_empty())
            .filter_map(|line| {
                let (name, value) = line.split_once(": ")?;
                Some((name.to_ascii_lowercase(), value.to_owned()))
            })
            .collect();
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let before = requests.iter().filter(|earlier| earlier.path == path).count();
        let request = Request { method, path, headers, store, before };
        requests.push(request.clone());
        Some(request)
    }

    /// Returns the answer of a well-behaved hub.
    pub fn own(&self, request: &Request) -> Reply {
        let file = |found: &dyn Fn(&NamedFile) -> bool| self.model.files.iter().find(|file| found(file));
        if let Some(digits) = request.path.strip_prefix("/store/").filter(|_| request.store) {
            let digits = digits.split('?').next().unwrap_or_default();
            return file(&|(_, bytes)| sha256(bytes) == digits)
                .map_or_else(|| Reply::new(404, ""), |(_, bytes)| ranged(request, bytes));
        }
        if request.path.starts_with(&format!("/api/models/{}/revision/", self.model.id)) {
            return Reply::new(200, self.list().to_string());
        }
        let prefix = format!("/{}/resolve/{COMMIT}/", self.model.id);
        let wanted = request.path.strip_prefix(&prefix);
        let Some((_, bytes)) = wanted.and_then(|wanted| file(&|(name, _)| name == wanted)) else {
            return Reply::new(404, "no such entry").header("X-Error-Code", "EntryNotFound");
        };
        if bytes.len() < LARGE {
            let reply = ranged(request, bytes).header("ETag", format!("\"{}\"", git(bytes)));
            return reply.header("X-Repo-Commit", COMMIT);
        }
        Reply::new(302, "")
            .header("Location", format!("{}/store/{}?signature=x", self.store, sha256(bytes)))
            .header("X-Repo-Commit", COMMIT)
            .header("X-Linked-Etag", format!("\"{}\"", sha256(bytes)))
            .header("X-Linked-Size", bytes.len())
    }

    /// Returns the answer of the API.
    pub fn list(&self) -> serde_json::Value {
        let one = |(name, bytes): &NamedFile| {
            let mut file = json!({ "rfilename": name, "size": bytes.len(), "blobId": git(bytes) });
            if bytes.len() >= LARGE {
                file["lfs"] = json!({ "sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 134 });
            }
            file
        };
        json!({
            "id": self.model.id,
            "sha": COMMIT,
            "gated": false,
            "tags": ["text-generation", "license:apache-2.0"],
            "cardData": { "license": "apache-2.0" },
            "siblings": self.model.files.iter().map(one).collect::<Vec<_>>(),
        })
    }
}

fn ranged(request: &Request, bytes: &[u8]) -> Reply {
    let from = request.from();
    match bytes.get(from..) {
        Some(_) if from == 0 => Reply::new(200, bytes),
        Some(rest) if !rest.is_empty() => Reply::new(206, rest)
            .header("Content-Range", format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len())),
        _ => Reply::new(416, "").header("Content-Range", format!("bytes */{}", bytes.len())),
    }
}

fn send(mut stream: TcpStream, request: &Request, reply: &Reply, endless: &AtomicU64) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    let has_length = reply.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    if !has_length && reply.end != End::Endless {
        head += &format!("Content-Length: {}\r\n", reply.body.len());
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    if request.method == "HEAD" {
        return Ok(());
    }
    match reply.end {
        End::Honest => stream.write_all(&reply.body),
        End::Cut(bytes) => stream.write_all(&reply.body[..bytes.min(reply.body.len())]),
        End::Silent => {
            stream.write_all(&reply.body)?;
            // Wait until the other side closes the connection.
            stream.set_read_timeout(Some(Duration::from_secs(60)))?;
            stream.read(&mut [0; 1]).map(drop)
        }
        End::Endless => loop {
            stream.write_all(&reply.body)?;
            endless.fetch_add(reply.body.len() as u64, Ordering::Relaxed);
        },
    }
}

/// Returns the digits of a file in the store.
pub fn sha256(bytes: &[u8]) -> String {
    digits(&sha2::Sha256::digest(bytes))
}

/// Returns the digits of a file in git.
pub fn git(bytes: &[u8]) -> String {
    digits(&sha1::Sha1::digest([format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat()))
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
