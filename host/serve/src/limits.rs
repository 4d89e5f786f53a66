//! Limits of the server.

use std::time::Duration;

/// Limits of requests and connections. A request beyond a limit is refused with the limit.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Most bytes of a request's body, pictures and sounds included.
    pub body_bytes: usize,
    /// Deepest nesting of arrays and objects in a body.
    pub json_depth: usize,
    /// Most messages of a conversation.
    pub messages: usize,
    /// Most pictures and sounds of a conversation.
    pub media: usize,
    /// Most tools of a request.
    pub tools: usize,
    /// Most bytes of a JSON schema.
    pub schema_bytes: usize,
    /// Most texts of a request for embeddings.
    pub embedding_texts: usize,
    /// Most stop strings of a request.
    pub stop_strings: usize,
    /// Most requests that generate or embed at once. Further ones get status 429.
    pub open_requests: usize,
    /// Most open connections. Further ones wait until one closes.
    pub connections: usize,
    /// Longest time to receive the head of a request, and longest idle time of a connection.
    pub head_time: Duration,
    /// Longest time to receive the body of a request.
    pub body_time: Duration,
    /// Longest time in which a client reads no byte of its response.
    pub write_time: Duration,
    /// Longest time that a stopping server waits for open requests.
    pub drain_time: Duration,
    /// Most bytes of the prefix cache of each model. Keys share it in equal parts.
    pub prefix_cache_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body_bytes: 32 << 20,
            json_depth: 64,
            messages: 2048,
            media: 32,
            tools: 128,
            schema_bytes: 256 << 10,
            embedding_texts: 2048,
            stop_strings: 16,
            open_requests: 64,
            connections: 512,
            head_time: Duration::from_secs(10),
            body_time: Duration::from_secs(30),
            write_time: Duration::from_secs(30),
            drain_time: Duration::from_secs(20),
            prefix_cache_bytes: 512 << 20,
        }
    }
}
