//! A plain client: one request on one connection, so that tests decide each byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longest time without a byte, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A response.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// Lines of the head, with names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the data of the events of a stream, without its end.
    pub fn events(&self) -> Vec<Value> {
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        let parse = |data: &str| serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"));
        data.filter(|data| *data != "[DONE]").map(parse).collect()
    }

    /// Expects an error object whose message ends with a help, and returns its code and field.
    pub fn refused(&self, status: u16) -> (String, String) {
        assert_eq!(self.status, status, "{self:?}");
        let error = &self.json()["error"];
        let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
        assert!(text("message").contains(". help: ") && !text("type").is_empty(), "{self:?}");
        (text("code"), text("param"))
    }
}

/// Opens a connection.
pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// Sends a request with these lines after the usual head, and returns the connection.
pub fn send(address: SocketAddr, method: &str, path: &str, lines: &[String], body: &[u8]) -> TcpStream {
    let mut stream = connect(address);
    let mut head = format!("{method} {path} HTTP/1.1\r\n");
    if !lines.iter().any(|line| line.starts_with("Host:")) {
        head += &format!("Host: {address}\r\n");
    }
    lines.iter().for_each(|line| head += &format!("{line}\r\n"));
    head += &format!("Connection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    // The server may refuse the head before it reads the body.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    stream
}

/// Reads a response to its end.
pub fn receive(stream: &TcpStream) -> Response {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).expect("a status");
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no status: {line:?}"));
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a header");
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut response = Response { status, headers, body: String::new() };
    let body = match response.header("transfer-encoding") {
        Some("chunked") => chunks(&mut reader),
        _ => {
            let length = response.header("content-length").and_then(|length| length.parse().ok());
            let mut bytes = vec![0; length.unwrap_or(0)];
            reader.read_exact(&mut bytes).expect("a body");
            bytes
        }
    };
    response.body = String::from_utf8(body).expect("text");
    response
}

fn chunks(reader: &mut impl BufRead) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("the length of a chunk");
        let length = usize::from_str_radix(line.trim(), 16).unwrap_or_else(|_| panic!("no length: {line:?}"));
        let mut chunk = vec![0; length + 2];
        reader.read_exact(&mut chunk).expect("a chunk");
        if length == 0 {
            return all;
        }
        all.extend_from_slice(&chunk[..length]);
    }
}

pub fn get(address: SocketAddr, path: &str) -> Response {
    receive(&send(address, "GET", path, &[], b""))
}

/// Sends JSON with further lines of the head.
pub fn post_with(address: SocketAddr, path: &str, lines: &[&str], body: &Value) -> Response {
    receive(&posted(address, path, lines, body))
}

pub fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    post_with(address, path, &[], body)
}

/// Sends JSON and returns the connection, whose response is not read yet.
pub fn posted(address: SocketAddr, path: &str, lines: &[&str], body: &Value) -> TcpStream {
    let mut all = vec!["Content-Type: application/json".to_owned()];
    all.extend(lines.iter().map(|line| (*line).to_owned()));
    send(address, "POST", path, &all, body.to_string().as_bytes())
}

/// Returns the value of a metric whose line begins so.
pub fn metric(address: SocketAddr, begin: &str) -> Option<f64> {
    let text = get(address, "/metrics").body;
    let line = text.lines().find(|line| line.starts_with(begin))?;
    line.rsplit(' ').next()?.parse().ok()
}
