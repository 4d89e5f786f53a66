//! Who may call the server, and how much at once.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::json;
use shardwright_serve::Keys;
use shardwright_tests::checkpoints::DEMO_MODEL;

use super::client::{connect, get, post, post_with, posted, receive, send};
use super::{CHAT, Running, chat, embedding, long, model};

fn head(address: std::net::SocketAddr, method: &str, path: &str, lines: &[&str]) -> super::client::Response {
    let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
    receive(&send(address, method, path, &lines, b""))
}

#[test]
fn other_hosts_origins_and_preflights_are_refused() {
    let server = Running::with(|builder| builder.model(model("demo", DEMO_MODEL)).host("box.local"));
    let address = server.address;
    for (lines, status) in [
        (&["Host: evil.example"][..], 421),
        (&["Host: localhost.evil.example"], 421),
        (&["Host: localhost"], 200),
        (&["Host: box.local:1234"], 200),
        (&["Host: [::1]"], 200),
        (&["Origin: http://evil.example"], 403),
        (&["Origin: null"], 403),
        (&["Sec-Fetch-Site: cross-site"], 403),
        (&["Sec-Fetch-Site: same-origin"], 200),
    ] {
        let response = head(address, "GET", "/v1/models", lines);
        assert_eq!(response.status, status, "{lines:?}: {response:?}");
        assert_eq!(response.header("access-control-allow-origin"), None);
    }
    let preflight = ["Origin: http://evil.example", "Access-Control-Request-Method: POST"];
    let response = head(address, "OPTIONS", CHAT, &preflight);
    assert_eq!(response.status, 403);
    assert!(response.headers.iter().all(|(name, _)| !name.starts_with("access-control")), "{response:?}");
    assert_eq!(head(address, "OPTIONS", CHAT, &[]).refused(405).0, "method_not_allowed");
    // A form can send text without a preflight request.
    let form = ["Content-Type: text/plain".to_owned()];
    let sent = send(address, "POST", CHAT, &form, chat("x", &json!({})).to_string().as_bytes());
    assert_eq!(receive(&sent).refused(415).0, "unsupported_media_type");
    let mut raw = connect(address);
    raw.write_all(b"GET /v1/models HTTP/1.0\r\n\r\n").expect("sent");
    assert_eq!(receive(&raw).refused(400).0, "invalid_header");
}

#[test]
fn requests_need_a_key_and_keys_share_no_prefixes() {
    let keys = Keys::from_text("key-of-the-first-user\nkey-of-the-second-user").expect("keys");
    let server = Running::with(|builder| builder.model(model("demo", DEMO_MODEL)).keys(keys));
    let address = server.address;
    let missing = get(address, "/v1/models");
    assert_eq!(missing.refused(401).0, "invalid_api_key");
    assert_eq!(missing.header("www-authenticate"), Some("Bearer"));
    for path in ["/metrics", "/v1/placement", "/v1/other"] {
        assert_eq!(get(address, path).status, 401, "{path}");
    }
    for path in ["/", "/page.js", "/health"] {
        assert_eq!(get(address, path).status, 200, "{path}");
    }
    let ask = |key: &str| {
        let line = format!("Authorization: Bearer {key}");
        let request = chat("What is politics, and what is it not?", &json!({ "max_tokens": 2 }));
        post_with(address, CHAT, &[&line], &request)
    };
    assert_eq!(ask("key-of-the-third-user").refused(401).0, "invalid_api_key");
    assert_eq!(ask("").refused(401).0, "invalid_api_key");
    let cached = |key: &str| {
        let reply = ask(key).json();
        reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count")
    };
    assert_eq!(cached("key-of-the-first-user"), 0);
    assert!(cached("key-of-the-first-user") > 4);
    assert_eq!(cached("key-of-the-second-user"), 0);
}

#[test]
fn requests_beyond_a_limit_are_refused_with_it() {
    let server = Running::limited(|limits| {
        limits.body_bytes = 20_000;
        limits.messages = 3;
        limits.tools = 2;
        limits.stop_strings = 2;
        limits.schema_bytes = 200;
        limits.json_depth = 10;
    });
    let address = server.address;
    let ask = |more: serde_json::Value| post(address, CHAT, &chat("x", &more));
    let message = json!({ "role": "user", "content": "x" });
    assert_eq!(ask(json!({ "messages": [message, message, message, message] })).refused(400).1, "messages");
    let tool = json!({ "type": "function", "function": { "name": "f" } });
    assert_eq!(ask(json!({ "tools": [tool, tool, tool] })).refused(400).1, "tools");
    assert_eq!(ask(json!({ "stop": ["a", "b", "c"] })).refused(400).1, "stop");
    let schema = json!({ "enum": vec!["x"; 200] });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "s", "schema": schema } });
    assert_eq!(
        ask(json!({ "response_format": format })).refused(400).1,
        "response_format.json_schema.schema"
    );
    let deep = format!("{{\"model\":{}1{}}}", "[".repeat(5000), "]".repeat(5000));
    let kind = ["Content-Type: application/json".to_owned()];
    let deep = receive(&send(address, "POST", CHAT, &kind, deep.as_bytes()));
    assert_eq!(deep.refused(400).0, "json_too_deep");
    let many = chat("x", &json!({ "metadata": vec![0; 300_000] }));
    assert_eq!(post(Running::demo().address, CHAT, &many).refused(400).0, "json_too_large");
    let large = ask(json!({ "user": "x".repeat(30_000) }));
    assert_eq!(large.refused(413).0, "body_too_large");
    let long = chat(&"politics ".repeat(1900), &json!({}));
    assert_eq!(post(address, CHAT, &long).refused(400).0, "context_length_exceeded");
}

#[test]
fn too_many_open_requests_get_429_and_a_time_to_retry() {
    let server = Running::limited(|limits| limits.open_requests = 1);
    let address = server.address;
    let mut first = posted(address, CHAT, &[], &long("demo"));
    // Its first bytes show that it is admitted.
    first.read_exact(&mut [0; 15]).expect("a status");
    let second = post(address, CHAT, &chat("x", &json!({ "max_tokens": 1 })));
    assert_eq!(second.refused(429).0, "too_many_requests");
    assert_eq!(second.header("retry-after"), Some("1"));
    // Reports are not affected.
    assert_eq!(get(address, "/v1/models").status, 200);
    drop(first);
    let start = Instant::now();
    while post(address, CHAT, &chat("x", &json!({ "max_tokens": 1 }))).status == 429 {
        assert!(start.elapsed() < Duration::from_secs(60), "the request of the client that left stays open");
    }
}

#[test]
fn clients_that_send_one_request_after_another_are_never_refused() {
    let mut limits = shardwright_serve::Limits::default();
    limits.open_requests = 1;
    let server =
        Running::with(|builder| builder.model(model("demo", DEMO_MODEL)).model(embedding()).limits(limits));
    for round in 0..20 {
        let streamed = chat("x", &json!({ "max_tokens": 1, "stream": round % 2 == 0 }));
        let response = post(server.address, CHAT, &streamed);
        assert_eq!(response.status, 200, "{round}: {response:?}");
        let texts = json!({ "model": "embeds", "input": "a" });
        let response = post(server.address, "/v1/embeddings", &texts);
        assert_eq!(response.status, 200, "{round}: {response:?}");
    }
}

#[test]
fn slow_heads_and_bodies_are_ended() {
    let server = Running::limited(|limits| {
        limits.head_time = Duration::from_millis(400);
        limits.body_time = Duration::from_millis(400);
        limits.connections = 2;
    });
    let address = server.address;
    let mut slow = connect(address);
    slow.write_all(b"GET /health HTTP/1.1\r\nHost: loc").expect("sent");
    let mut rest = Vec::new();
    // The server closes the connection, possibly with a status.
    let _ = slow.read_to_end(&mut rest);
    assert!(!rest.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&rest));
    let mut slow = connect(address);
    let kind = "Content-Type: application/json";
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: {address}\r\n{kind}\r\nContent-Length: 99\r\n\r\n{{");
    slow.write_all(head.as_bytes()).expect("sent");
    assert_eq!(receive(&slow).refused(408).0, "timeout");
    // A connection is closed if no further request follows.
    let mut idle = connect(address);
    idle.write_all(format!("GET /health HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).expect("sent");
    let mut all = Vec::new();
    let _ = idle.read_to_end(&mut all);
    assert!(all.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&all));
    // Idle connections give their place to others.
    let _idle = [connect(address), connect(address)];
    assert_eq!(get(address, "/health").status, 200);
}
