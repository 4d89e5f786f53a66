//! Requests of attackers: mutated bytes, forged heads, control tokens. The server refuses them with
//! an error object or a closed connection, and continues to answer others.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use shardwright_test_checkpoints::{Random, cases};
use shardwright_tests::checkpoints::DEMO_MODEL;

use super::client::{connect, post};
use super::{CHAT, Running, calling, chat, model};

/// Sends bytes and returns the answer, if there is one.
fn raw(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = connect(address);
    // The server may close the connection while it reads.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn request(address: SocketAddr, path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Valid requests of all endpoints, each of at most two tokens.
fn valid() -> Vec<(&'static str, Value)> {
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } });
    vec![
        (CHAT, chat("x", &json!({ "max_tokens": 1, "tools": [tool], "stream": true, "stop": ["a"] }))),
        (CHAT, chat("x", &json!({ "max_tokens": 1, "logprobs": true, "top_logprobs": 2 }))),
        (CHAT, chat("x", &json!({ "max_tokens": 2, "response_format": { "type": "json_object" } }))),
        ("/v1/completions", json!({ "model": "demo", "prompt": "a", "max_tokens": 1, "seed": 5 })),
        ("/v1/responses", json!({ "model": "demo", "input": "a", "max_output_tokens": 1 })),
        ("/v1/embeddings", json!({ "model": "demo", "input": ["a", "b"] })),
    ]
}

#[test]
fn mutated_requests_are_answered_or_refused_and_none_harms_the_next() {
    let server = Running::demo();
    let mut random = Random::new(54, "requests");
    let mut below = |end: usize| random.below(end as u64) as usize;
    let requests = cases(400, 100_000);
    let (mut refused, mut answered) = (0, 0);
    for index in 0..requests {
        let all = valid();
        let (path, body) = &all[index % all.len()];
        let mut body = body.to_string().into_bytes();
        for _ in 0..1 + below(3) {
            let at = below(body.len());
            match below(5) {
                0 => body[at] = below(256) as u8,
                1 => drop(body.remove(at)),
                2 => body.insert(at, b"{}[]\",:0-e\\\0\xff"[below(13)]),
                3 => body.truncate(at.max(1)),
                _ => {
                    let (from, length) = (below(body.len()), below(20));
                    let piece: Vec<u8> = body[from..].iter().take(length).copied().collect();
                    body.splice(at..at, piece);
                }
            }
        }
        let answer = raw(server.address, &request(server.address, path, &body));
        let text = String::from_utf8_lossy(&body).into_owned();
        let status = answer.split(' ').nth(1).unwrap_or_default().to_owned();
        match status.as_str() {
            "200" => answered += 1,
            "400" | "404" => {
                refused += 1;
                assert!(answer.contains("\"error\"") && answer.contains("help: "), "{text}: {answer}");
            }
            _ => panic!("{text}: {answer}"),
        }
    }
    assert!(refused > requests / 2 && answered > 0, "{refused} refused, {answered} answered");
    let reply = post(server.address, CHAT, &chat("What is politics?", &json!({ "max_tokens": 2 })));
    assert_eq!(reply.status, 200, "{reply:?}");
}

#[test]
fn forged_heads_end_in_an_error_or_a_closed_connection() {
    let server = Running::limited(|limits| {
        limits.head_time = Duration::from_millis(300);
        limits.body_time = Duration::from_millis(300);
    });
    let address = server.address;
    let host = format!("Host: {address}\r\n");
    let begin = format!("POST {CHAT} HTTP/1.1\r\n{host}Content-Type: application/json\r\n");
    let body = chat("x", &json!({ "max_tokens": 1 })).to_string();
    let cases: Vec<Vec<u8>> = vec![
        b"\0\0\0\0".to_vec(),
        b"GET".to_vec(),
        format!("GET / HTTP/9.9\r\n{host}\r\n").into_bytes(),
        format!("GET /\r\n bad HTTP/1.1\r\n{host}\r\n").into_bytes(),
        format!("GET / HTTP/1.1\r\n{host}{host}\r\n").into_bytes(),
        format!("GET / HTTP/1.1\r\n{host}{}\r\n", "A: b\r\n".repeat(1000)).into_bytes(),
        format!("GET / HTTP/1.1\r\n{host}A: {}\r\n\r\n", "x".repeat(1 << 20)).into_bytes(),
        format!("GET http://evil.example/ HTTP/1.1\r\n{host}\r\n").into_bytes(),
        format!("{begin}Content-Length: 5\r\nContent-Length: 6\r\n\r\n{body}").into_bytes(),
        format!("{begin}Content-Length: -1\r\n\r\n{body}").into_bytes(),
        format!("{begin}Content-Length: 99999999999\r\n\r\n").into_bytes(),
        format!("{begin}Transfer-Encoding: chunked\r\n\r\nzz\r\n").into_bytes(),
        format!("{begin}Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{{}}").into_bytes(),
    ];
    for case in cases {
        let answer = raw(address, &case);
        let shown = String::from_utf8_lossy(&case[..case.len().min(80)]).into_owned();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{shown:?}: {answer}");
    }
    assert_eq!(post(address, CHAT, &chat("x", &json!({ "max_tokens": 1 }))).status, 200);
}

#[test]
fn control_tokens_in_messages_and_results_stay_text() {
    let (calls, _folder) = calling();
    let server = Running::with(|builder| builder.model(model("demo", DEMO_MODEL)).model(calls));
    let count = |request: &Value| {
        let reply = post(server.address, CHAT, request).json();
        reply["usage"]["prompt_tokens"].as_u64().unwrap_or_else(|| panic!("{reply}"))
    };
    let message = |text: &str| count(&chat(text, &json!({ "max_tokens": 1 })));
    let tool = json!({ "type": "function", "function": { "name": "f" } });
    let call = json!({ "id": "c1", "type": "function", "function": { "name": "f", "arguments": "{}" } });
    let result = |text: &str| {
        let mut request = chat("x", &json!({ "model": "calls", "tools": [tool], "max_tokens": 1 }));
        let messages = request["messages"].as_array_mut().expect("messages");
        messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] }));
        messages.push(json!({ "role": "tool", "tool_call_id": "c1", "content": text }));
        count(&request)
    };
    let (in_message, in_result) = (message("a"), result("a"));
    // Control tokens of this vocabulary. As such, each would be one token.
    for forged in ["<turn|>", "<|turn>", "<|tool_call>", "<|tool_response>", "<|channel>", "<bos>", "<eos>"] {
        assert!(message(&format!("a{forged}")) > in_message + 1, "{forged} in a message");
        assert!(result(&format!("a{forged}")) > in_result + 1, "{forged} in a result");
    }
}

#[test]
fn deeply_nested_and_endless_schemas_are_refused_before_the_first_token() {
    let server = Running::demo();
    let ask = |schema: Value| {
        let format = json!({ "type": "json_schema", "json_schema": { "name": "s", "schema": schema } });
        post(server.address, CHAT, &chat("x", &json!({ "response_format": format })))
    };
    let mut deep = json!({ "type": "string" });
    for _ in 0..40 {
        deep = json!({ "type": "object", "properties": { "a": deep }, "required": ["a"] });
    }
    assert_eq!(ask(deep).refused(400).0, "json_too_deep");
    let endless = json!({ "$ref": "#" });
    assert_eq!(ask(endless).refused(400).1, "response_format");
    let impossible = json!({ "type": "integer", "minimum": 5, "maximum": 4 });
    assert_eq!(ask(impossible).refused(400).1, "response_format");
}
