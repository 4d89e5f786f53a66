//! A plain HTTP client: one request on one connection, whose bytes and times a bench decides.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longest time without a byte from a server.
const PATIENCE: Duration = Duration::from_secs(180);

/// Opens a connection.
pub fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Returns the head of a request with a body of `length` bytes.
pub fn head(address: SocketAddr, method: &str, path: &str, kind: &str, length: usize) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: {kind}\r\n\
         Content-Length: {length}\r\n\r\n"
    )
}

/// Sends JSON, and returns the connection.
pub fn post(address: SocketAddr, path: &str, body: &[u8]) -> io::Result<TcpStream> {
    let mut stream = connect(address)?;
    let head = head(address, "POST", path, "application/json", body.len());
    stream.write_all(&[head.as_bytes(), body].concat())?;
    Ok(stream)
}

/// Requests a path, and returns the status and the body.
pub fn get(address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let mut stream = connect(address)?;
    stream.write_all(head(address, "GET", path, "text/plain", 0).as_bytes())?;
    let (status, mut body) = receive(stream)?;
    let mut text = String::new();
    body.read_to_string(&mut text)?;
    Ok((status, text))
}

/// Receives the head of a response. Returns its status and its body, which arrives as it is read.
pub fn receive(stream: TcpStream) -> io::Result<(u16, Body<BufReader<TcpStream>>)> {
    respond(BufReader::new(stream))
}

fn respond<S: BufRead>(mut stream: S) -> io::Result<(u16, Body<S>)> {
    let first = line(&mut stream)?;
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| invalid(format!("no status in {first:?}")))?;
    let mut length = Length::Open;
    loop {
        let header = line(&mut stream)?;
        if header.is_empty() {
            break;
        }
        let pair = header.split_once(':');
        let (name, value) = pair.ok_or_else(|| invalid(format!("the header {header:?}")))?;
        match (name.to_ascii_lowercase().as_str(), value.trim()) {
            ("transfer-encoding", value) if value.eq_ignore_ascii_case("chunked") => {
                length = Length::Chunks { left: 0, is_done: false };
            }
            ("content-length", value) => {
                let bytes = value.parse().map_err(|_| invalid(format!("a length of {value:?}")))?;
                length = Length::Bytes(bytes);
            }
            _ => {}
        }
    }
    Ok((status, Body { stream, length }))
}

/// The body of a response.
pub struct Body<S> {
    stream: S,
    length: Length,
}

enum Length {
    /// Chunks, of which the current one has `left` more bytes.
    Chunks { left: u64, is_done: bool },
    /// A known number of further bytes.
    Bytes(u64),
    /// Up to the end of the connection.
    Open,
}

impl<S: BufRead> Read for Body<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Length::Chunks { left, is_done } = &mut self.length
            && *left == 0
            && !*is_done
        {
            *left = next_chunk(&mut self.stream)?;
            *is_done = *left == 0;
        }
        let left = match &mut self.length {
            Length::Open => return self.stream.read(buffer),
            Length::Chunks { left, .. } | Length::Bytes(left) => left,
        };
        let most = usize::try_from(*left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        match self.stream.read(&mut buffer[..most])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                *left -= read as u64;
                Ok(read)
            }
        }
    }
}

/// Reads the length of the next chunk. An empty line ends the chunk before.
fn next_chunk(stream: &mut impl BufRead) -> io::Result<u64> {
    loop {
        let line = line(stream)?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        if !digits.is_empty() {
            return u64::from_str_radix(digits, 16).map_err(|_| invalid(format!("a chunk of {digits:?}")));
        }
    }
}

/// Reads a line without its end.
fn line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    match stream.read_line(&mut line)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(line.trim_end_matches(['\r', '\n']).to_owned()),
    }
}

fn invalid(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(response: &str) -> io::Result<(u16, String)> {
        let (status, mut body) = respond(response.as_bytes())?;
        let mut text = String::new();
        body.read_to_string(&mut text)?;
        Ok((status, text))
    }

    #[test]
    fn bodies_are_read_by_length_in_chunks_or_to_the_end() {
        for (response, expected) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcd", (200, "abc")),
            ("HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", (404, "")),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n",
                (200, "abc"),
            ),
            ("HTTP/1.0 500 No\r\nServer: x\r\n\r\nabc", (500, "abc")),
        ] {
            let found = received(response).expect(response);
            assert_eq!((found.0, found.1.as_str()), expected, "{response}");
        }
    }

    #[test]
    fn cut_and_malformed_responses_are_errors() {
        for response in [
            "",
            "HTTP/1.1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
            "HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nab",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxy\r\nab\r\n",
            "HTTP/1.1 200 OK\r\nContent-Len",
        ] {
            assert!(received(response).is_err(), "{response}");
        }
    }
}
