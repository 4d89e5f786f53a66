//! Servers that send false data.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use shardwright_vocabulary::{Error, ErrorKind};

use crate::server::{COMMIT, End, Hub, Reply, sha256};
use crate::{blobs, bytes, cache, folder, gguf, is, pull, settings};

/// Returns the error of a pull from a hub with these answers. It must not leave a usable file.
fn refused(
    instead: impl Fn(&Hub, &crate::server::Request) -> Option<Reply> + Send + Sync + 'static,
) -> Error {
    let hub = Hub::serve(gguf(1000), instead);
    let cache = cache();
    let error = pull(&settings(&hub, cache.path()), "a/b").expect_err("a lie");
    let whole: Vec<String> = blobs(cache.path()).into_iter().filter(|name| !name.contains('.')).collect();
    assert!(whole.is_empty() && !cache.path().join("models--a--b/snapshots").exists(), "{error}: {whole:?}");
    assert!(error.help().is_some(), "{error:?}");
    error
}

/// Returns the error for a list with the files of `siblings`.
fn listing(siblings: serde_json::Value) -> Error {
    let list = json!({ "sha": COMMIT, "siblings": siblings }).to_string();
    refused(move |_, request| request.path.contains("/api/").then(|| Reply::new(200, list.clone())))
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in
        ["../../x.gguf", "/x.gguf", "a/../../x.gguf", "a\\x.gguf", "C:x.gguf", "a//x.gguf", "a\nb.gguf"]
    {
        let error = listing(json!([{ "rfilename": name, "size": 1, "blobId": "00".repeat(20) }]));
        is(&error, ErrorKind::Invalid, &format!("the hub lists the file {name:?}: "));
    }
    let one = json!({ "rfilename": "x.gguf", "size": 1, "blobId": "00".repeat(20) });
    let error = listing(json!([one, one]));
    is(&error, ErrorKind::Invalid, "the hub lists the file \"x.gguf\": it is listed twice");
}

#[test]
fn other_bytes_are_discarded() {
    let error = refused(|_, request| {
        let mut other = bytes(1000);
        other[999] ^= 1;
        request.store.then(|| Reply::new(200, other))
    });
    let mut other = bytes(1000);
    other[999] ^= 1;
    let [expected, got] = [bytes(1000), other].map(|bytes| sha256(&bytes));
    let words = format!("expected the hash sha256:{expected}, got sha256:{got}; the bytes were discarded");
    is(&error, ErrorKind::Invalid, &words);
}

#[test]
fn sizes_that_lie_are_refused() {
    for (size, got) in [(999, "999"), (1001, "1001"), (0, "0")] {
        let error = refused(move |_, request| request.store.then(|| Reply::new(200, bytes(size))));
        assert_eq!(error.message(), format!("expected 1000 bytes, got {got}"));
    }
    for range in ["bytes 0-9/10", "bytes 7-999/1000", "x"] {
        let error = refused(move |_, request| {
            request.store.then(|| Reply::new(206, bytes(1000)).header("Content-Range", range))
        });
        is(&error, ErrorKind::Invalid, &format!("expected 1000 bytes, got the range {range:?}"));
    }
    // An endless body without a length.
    let begun = Instant::now();
    let error =
        refused(|_, request| request.store.then(|| Reply::new(200, bytes(4096)).ending(End::Endless)));
    is(&error, ErrorKind::Invalid, "expected 1000 bytes, got more");
    assert!(begun.elapsed() < Duration::from_secs(20), "read on and on");
    // A list that claims more bytes than a disk has does not use any disk space.
    let huge = json!([{ "rfilename": "m.gguf", "size": u64::MAX, "lfs": { "sha256": "00".repeat(32), "size": u64::MAX } }]);
    let list = json!({ "sha": COMMIT, "siblings": huge }).to_string();
    let error = refused(move |_, request| match request.path.contains("/api/") {
        true => Some(Reply::new(200, list.clone())),
        false => Some(Reply::new(200, bytes(1000))),
    });
    is(&error, ErrorKind::Invalid, &format!("expected {} bytes, got 1000", u64::MAX));
}

/// Checks the error of an invalid list.
fn is_list(error: &Error, words: &str) {
    is(error, ErrorKind::Invalid, words);
    assert!(error.place().is_some_and(|place| place.contains("/api/models/a/b/")), "{error}");
}

#[test]
fn lists_that_are_none_are_refused() {
    let answer = |reply: Reply| refused(move |_, _| Some(reply.clone()));
    for text in ["", "[]", "{", "{\"sha\":1}", "<html>"] {
        is_list(&answer(Reply::new(200, text)), "");
    }
    for commit in ["main", "../../../../etc/x", &"A".repeat(40)] {
        let error = answer(Reply::new(200, json!({ "sha": commit, "siblings": [] }).to_string()));
        is_list(&error, "`sha` is not a commit");
    }
    let twice = format!(r#"{{"sha":"{COMMIT}","cardData":{{"license":"mit","license":"other"}}}}"#);
    is_list(&answer(Reply::new(200, twice)), "a second key `license`");
    // A commit other than the requested one.
    let (hub, cache) = (Hub::serve(gguf(100), |_, _| None), cache());
    let error = pull(&settings(&hub, cache.path()), &format!("a/b@{}", "0".repeat(40))).expect_err("a lie");
    is_list(&error, COMMIT);
    // Memory is limited, and so is the nesting depth of the parsed data.
    let hub = Hub::serve(gguf(100), |_, _| Some(Reply::new(200, " ".repeat(1 << 16)).ending(End::Endless)));
    let error = pull(&settings(&hub, cache.path()), "a/b").expect_err("a list without an end");
    is_list(&error, "more than");
    // This includes data in transit in the system's buffers.
    assert!(hub.sent() < 64 << 20, "{} bytes were read", hub.sent());
    let deep = format!("{{\"sha\":\"{COMMIT}\",\"cardData\":{}", "[".repeat(1 << 20));
    is_list(&answer(Reply::new(200, deep)), "recursion limit");
    let header = Reply::new(200, "").header("X-Long", "x".repeat(4 << 20));
    let error = answer(header);
    is(&error, ErrorKind::Missing, "/api/models/a/b/");
    assert!(error.help().is_some_and(|help| help.contains("HTTPS_PROXY")), "{error:?}");
}

#[test]
fn redirects_elsewhere_and_in_circles_are_refused() {
    for to in ["file:///etc/passwd", "ftp://h/x", "//h/x", "x", "", "http://u:p@h/x"] {
        let error = refused(move |_, request| {
            request.path.contains("resolve").then(|| Reply::new(302, "").header("Location", to))
        });
        is(&error, ErrorKind::Invalid, &format!("redirected to `{to}`: "));
    }
    let hub = Hub::serve(gguf(1000), |_, request| {
        let path = request.path.clone();
        path.contains("resolve").then(|| Reply::new(302, "").header("Location", path))
    });
    let error = pull(&settings(&hub, cache().path()), "a/b").expect_err("a circle");
    is(&error, ErrorKind::Invalid, "too many redirects");
    assert!(hub.asked("resolve") < 10, "{} requests", hub.asked("resolve"));
}

/// An existing file in the place of the repository's folder is reported and kept.
#[test]
fn a_file_in_the_place_of_a_folder_is_an_error() {
    let hub = Hub::serve(folder(), |_, _| None);
    let cache = cache();
    std::fs::write(cache.path().join("models--a--b"), b"a file").expect("written");
    let error = pull(&settings(&hub, cache.path()), "a/b").expect_err("no folder");
    assert_eq!(error.kind(), ErrorKind::Missing);
    assert!(error.place().is_some_and(|place| Path::new(place).starts_with(cache.path())), "{error}");
    assert_eq!(std::fs::read(Path::new(cache.path()).join("models--a--b")).expect("kept"), b"a file");
}
