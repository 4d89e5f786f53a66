//! Answers of a well-behaved hub.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::json;
use shardwright_hub::{PullWatch, Token, open, open_if_available};
use shardwright_vocabulary::ErrorKind;

use crate::server::{COMMIT, Hub, Model, Reply, git, sha256};
use crate::{WEIGHTS, blobs, bytes, cache, folder, gguf, id, is, pull, settings};

#[test]
fn a_model_is_pulled_once_in_the_layout_of_the_hub() {
    let hub = Hub::serve(folder(), |_, _| None);
    let cache = cache();
    let settings = settings(&hub, cache.path());
    let report = pull(&settings, "a/b").expect("pulled");
    let repository = cache.path().join("models--a--b");
    assert_eq!(report.snapshot, repository.join("snapshots").join(COMMIT));
    assert_eq!((&report.path, report.commit.as_str()), (&report.snapshot, COMMIT));
    assert_eq!(report.licence.as_deref(), Some("apache-2.0"));
    let names: Vec<&str> = report.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["config.json", "tokenizer.json", "1_Pooling/config.json", "model.safetensors"]);
    for file in &report.files {
        let (_, expected) = hub.model.files.iter().find(|(name, _)| *name == file.name).expect("listed");
        assert!(fs::read(report.snapshot.join(&file.name)).expect("a file") == *expected, "{}", file.name);
        assert!(file.fetched && file.bytes == expected.len() as u64);
    }
    let target = |name: &str| fs::read_link(report.snapshot.join(name)).expect("a link");
    let weights = sha256(&bytes(WEIGHTS));
    assert_eq!(target("model.safetensors"), Path::new("../../blobs").join(&weights));
    assert_eq!(target("1_Pooling/config.json"), Path::new("../../../blobs").join(git(b"{\"x\":1}")));
    assert_eq!(fs::read_to_string(repository.join("refs/main")).expect("a reference"), COMMIT);
    assert_eq!(blobs(cache.path()).len(), 4, "nothing else: {:?}", blobs(cache.path()));

    // The model is found without the hub, and not fetched again.
    let found = settings.cache.find(&id("a/b")).expect("readable").expect("found");
    assert_eq!((&found.path, found.commit.as_str()), (&report.snapshot, COMMIT));
    let before = hub.asked("resolve");
    let again = pull(&settings, &format!("a/b@{COMMIT}")).expect("pulled");
    assert!(again.files.iter().all(|file| !file.fetched) && hub.asked("resolve") == before);
    assert_eq!(fs::read_dir(repository.join("refs")).expect("a folder").count(), 1);
}

#[test]
fn a_gguf_file_is_chosen_by_its_quantisation() {
    let model = || {
        let files = [("m-Q4_0.gguf", bytes(100)), ("m-Q8_0.gguf", bytes(200)), ("mmproj.gguf", bytes(300))];
        Hub::serve(Model::new("a/b", files), |_, _| None)
    };
    let (hub, cache) = (model(), cache());
    let settings = settings(&hub, cache.path());
    let error = pull(&settings, "a/b").expect_err("several");
    is(&error, ErrorKind::Argument, "a/b has several GGUF models: ");
    is(&error, ErrorKind::Argument, "m-Q8_0.gguf (200 bytes)");
    assert!(error.help().is_some_and(|help| help.contains("a/b:Q4_0")), "{error:?}");
    let report = pull(&settings, "a/b:q8_0").expect("pulled");
    assert_eq!(report.path, report.snapshot.join("m-Q8_0.gguf"));
    assert_eq!(fs::read(&report.path).expect("a file"), bytes(200));
    let found = settings.cache.find(&id("a/b:Q8_0")).expect("readable").expect("found");
    assert_eq!(found.path, report.path);
    assert_eq!(settings.cache.find(&id("a/b:Q4_0")).expect("readable"), None);
    let matched = open(&settings, &id("a/b"), Some("*.gguf"), &()).expect("listed");
    assert_eq!(matched.bytes(), 600);
    let error = open(&settings, &id("a/b"), Some("*.bin"), &()).expect_err("no match");
    is(&error, ErrorKind::Argument, "no file that matches `*.bin`");
    let nothing = Hub::serve(Model::new("a/b", [("x.onnx", bytes(9))]), |_, _| None);
    let error = pull(&crate::settings(&nothing, cache.path()), "a/b").expect_err("nothing");
    is(&error, ErrorKind::Unsupported, "neither safetensors nor GGUF files");
}

#[test]
fn the_token_goes_to_the_hub_alone() {
    let hub = Hub::serve(gguf(100), |hub, request| {
        (request.header("authorization") != Some("Bearer secret") && !request.store).then(|| {
            let _ = hub;
            Reply::new(401, "").header("X-Error-Code", "GatedRepo")
        })
    });
    let cache = cache();
    let mut settings = settings(&hub, cache.path());
    let error = pull(&settings, "a/b").expect_err("gated");
    is(&error, ErrorKind::Missing, "denies access to a/b (status 401), and no token was sent");
    let help = error.help().expect("help");
    assert!(help.contains(&format!("{}/a/b", hub.url)) && help.contains("HF_TOKEN"), "{help}");
    settings.token = Token::parse("wrong", "a test").expect("a token");
    let error = pull(&settings, "a/b").expect_err("gated");
    is(&error, ErrorKind::Missing, "denies access to a/b (status 401)");
    assert!(!error.message().contains("no token"), "{error}");
    assert!(!format!("{error:?} {error:#?}").contains("wrong"));
    settings.token = Token::parse("secret", "a test").expect("a token");
    pull(&settings, "a/b").expect("pulled");
    let to_store: Vec<_> = hub.requests().into_iter().filter(|request| request.store).collect();
    assert!(!to_store.is_empty() && to_store.iter().all(|request| request.header("authorization").is_none()));
}

#[test]
fn what_is_not_there_is_named() {
    let answers = |status: u16, code: &'static str| {
        Hub::serve(gguf(100), move |_, _| Some(Reply::new(status, "").header("X-Error-Code", code)))
    };
    let refused = |hub: &Hub| pull(&settings(hub, cache().path()), "a/b").expect_err("no model");
    for (status, code, private) in
        [(401, "RepoNotFound", true), (404, "RepoNotFound", true), (404, "RevisionNotFound", false)]
    {
        let (hub, cache) = (answers(status, code), cache());
        let settings = settings(&hub, cache.path());
        let error = pull(&settings, "a/b").expect_err("no model");
        let message = if private { "not found, or private" } else { "not found" };
        assert_eq!((error.kind(), error.message()), (ErrorKind::Missing, message));
        assert!(error.place().is_some_and(|place| place.starts_with(&hub.url)), "{error}");
        assert_eq!((hub.requests().len(), blobs(cache.path()).len()), (1, 0), "asked again");
        assert!(open_if_available(&settings, &id("a/b"), None, &()).expect("no error").is_none());
    }
    let denied = answers(403, "");
    let error = refused(&denied);
    is(&error, ErrorKind::Missing, "denies access to a/b (status 403)");
    let available = open_if_available(&settings(&denied, cache().path()), &id("a/b"), None, &());
    is(&available.expect_err("denied"), ErrorKind::Missing, "denies access");
    let error = refused(&answers(418, ""));
    is(&error, ErrorKind::Missing, "unexpected status 418");
    // A file that is in the list but not on the hub.
    let hub =
        Hub::serve(gguf(100), |_, request| request.path.contains("resolve").then(|| Reply::new(404, "")));
    assert_eq!(refused(&hub).message(), "not found");
}

/// Collects notes.
#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl PullWatch for Notes {
    fn note(&self, text: &str) {
        self.0.lock().expect("no panic").push(text.to_owned());
    }
}

#[test]
fn servers_that_are_busy_are_asked_again_and_not_for_ever() {
    let hub = Hub::serve(gguf(100), |_, request| {
        let busy =
            if request.store { Reply::new(503, "") } else { Reply::new(429, "").header("Retry-After", 0) };
        (request.before < 2).then_some(busy)
    });
    let (folder, notes) = (cache(), Notes::default());
    crate::pull_watched(&settings(&hub, folder.path()), "a/b", &notes).expect("pulled");
    let notes = notes.0.into_inner().expect("no panic");
    assert!(notes.iter().any(|note| note.contains("too many requests")), "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("503") && note.contains("again in")), "{notes:?}");

    let always = |reply: Reply| Hub::serve(gguf(100), move |_, _| Some(reply.clone()));
    let refused = |hub: &Hub| pull(&settings(hub, cache().path()), "a/b").expect_err("busy");
    let hub = always(Reply::new(500, ""));
    let error = refused(&hub);
    is(&error, ErrorKind::Missing, "unexpected status 500");
    assert_eq!(hub.requests().len(), 5);
    // The program does not wait for an hour.
    let hub = always(Reply::new(429, "").header("Retry-After", 3600));
    let error = refused(&hub);
    is(&error, ErrorKind::Missing, "too many requests, retry after 3600 s");
    assert_eq!(hub.requests().len(), 1);
}

#[test]
fn a_renamed_model_is_found_and_its_licence_and_state_are_told() {
    let hub = Hub::serve(gguf(100), |hub, request| {
        if let Some(rest) = request.path.strip_prefix("/api/models/old/name/") {
            return Some(Reply::new(307, "").header("Location", format!("/api/models/a/b/{rest}")));
        }
        if let Some(rest) = request.path.strip_prefix("/old/name/") {
            return Some(Reply::new(307, "").header("Location", format!("/a/b/{rest}")));
        }
        let mut list = hub.list();
        list["gated"] = json!("manual");
        list["cardData"] = json!({ "license": "other", "license_name": "house-terms" });
        request.path.contains("/api/").then(|| Reply::new(200, list.to_string()))
    });
    let cache = cache();
    let report = pull(&settings(&hub, cache.path()), "old/name").expect("pulled");
    assert_eq!(report.licence.as_deref(), Some("house-terms"));
    assert_eq!(report.gated.as_deref(), Some("manual"));
    assert!(report.snapshot.starts_with(cache.path().join("models--old--name")));
}

#[test]
fn a_mirror_that_lists_names_alone_is_asked_for_each_file() {
    let names = |hub: &Hub| {
        let names: Vec<_> = hub.model.files.iter().map(|(name, _)| json!({ "rfilename": name })).collect();
        Reply::new(200, json!({ "sha": COMMIT, "siblings": names, "tags": ["license:mit"] }).to_string())
    };
    let hub = Hub::serve(folder(), move |hub, request| request.path.contains("/api/").then(|| names(hub)));
    let cache = cache();
    let report = pull(&settings(&hub, cache.path()), "a/b").expect("pulled");
    assert_eq!(report.licence.as_deref(), Some("mit"));
    assert_eq!(fs::read(report.snapshot.join("model.safetensors")).expect("a file"), bytes(WEIGHTS));
    assert!(hub.requests().iter().any(|request| request.method == "HEAD"));
    let silent = Hub::serve(folder(), move |hub, request| {
        if request.path.contains("/api/") { Some(names(hub)) } else { Some(Reply::new(200, "")) }
    });
    let error = pull(&settings(&silent, cache.path()), "a/b").expect_err("no hash");
    is(&error, ErrorKind::Invalid, "neither hash");
}

#[test]
fn without_a_network_the_failure_is_named() {
    let hub = Hub::serve(gguf(100), |_, _| None);
    let cache = cache();
    let refused = |endpoint: &str| {
        let mut settings = settings(&hub, cache.path());
        settings.endpoint = endpoint.to_owned();
        // If no server has ever answered, the program does not wait for one.
        settings.backoff = Duration::from_secs(50);
        let error = pull(&settings, "a/b").expect_err(endpoint);
        is(&error, ErrorKind::Missing, endpoint);
        assert!(error.help().is_some_and(|help| help.contains("HTTPS_PROXY")), "{error:?}");
        assert!(open_if_available(&settings, &id("a/b"), None, &()).expect("no error").is_none());
        error.to_string()
    };
    assert!(refused("http://127.0.0.1:1").contains("refused"));
    refused("http://nothing.invalid");
    // A server without TLS.
    refused(&hub.url.replace("http:", "https:"));
    let mut offline = settings(&hub, cache.path());
    offline.offline = true;
    is(&pull(&offline, "a/b").expect_err("offline"), ErrorKind::Missing, "HF_HUB_OFFLINE is set");
    assert!(open_if_available(&offline, &id("a/b"), None, &()).expect("no error").is_none());
    assert_eq!(hub.requests().len(), 0);
    let silent = Hub::serve(gguf(100), |_, _| {
        Some(Reply::new(200, "").header("Content-Length", 5).ending(crate::server::End::Silent))
    });
    let begun = Instant::now();
    let mut impatient = settings(&silent, cache.path());
    impatient.patience = Duration::from_millis(50);
    let error = pull(&impatient, "a/b").expect_err("silent");
    assert!(error.help().is_some_and(|help| help.contains("HTTPS_PROXY")), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(10));
}
