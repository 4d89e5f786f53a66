//! Interruptions, and programs that pull at the same time.

use std::fs;
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use shardwright_hub::PullWatch;
use shardwright_vocabulary::ErrorKind;

use crate::server::{End, Hub, Reply, sha256};
use crate::{WEIGHTS, blobs, bytes, cache, folder, gguf, is, pull, pull_watched, settings};

/// A partial file from a killed program is continued at any byte.
#[test]
fn a_partial_file_of_any_length_is_continued() {
    const BYTES: usize = 80;
    let hub = Hub::serve(gguf(BYTES), |_, _| None);
    for left in 0..=BYTES + 1 {
        let cache = cache();
        let folder = cache.path().join("models--a--b/blobs");
        fs::create_dir_all(&folder).expect("made");
        let whole = bytes(BYTES);
        // With one byte too many, it is another file.
        let partial = [whole.as_slice(), b"x"].concat();
        fs::write(folder.join(format!("{}.incomplete", sha256(&whole))), &partial[..left]).expect("written");
        let before = hub.asked("store");
        let report = pull(&settings(&hub, cache.path()), "a/b").expect("pulled");
        assert_eq!(fs::read(&report.path).expect("a file"), whole, "after {left}");
        let asked: Vec<usize> = hub
            .requests()
            .iter()
            .filter(|request| request.store)
            .skip(before)
            .map(|request| request.from())
            .collect();
        let from = if left > BYTES { 0 } else { left };
        assert_eq!(asked, if left == BYTES { Vec::new() } else { vec![from] }, "after {left}");
        assert_eq!(blobs(cache.path()), [sha256(&whole)]);
    }
}

#[test]
fn a_connection_that_is_cut_is_continued_in_the_same_pull() {
    // Each connection gives a hundred thousand bytes.
    let hub = Hub::serve(folder(), |hub, request| {
        request.store.then(|| hub.own(request).ending(End::Cut(100_000)))
    });
    let cache = cache();
    let report = pull(&settings(&hub, cache.path()), "a/b").expect("pulled");
    assert_eq!(fs::read(report.path.join("model.safetensors")).expect("a file"), bytes(WEIGHTS));
    let from: Vec<usize> = hub
        .requests()
        .iter()
        .filter(|request| request.path.contains(&sha256(&bytes(WEIGHTS))))
        .map(|request| request.from())
        .collect();
    assert_eq!(from, [0, 100_000, 200_000]);
}

/// A server that ends each connection after a few bytes is not queried forever.
#[test]
fn too_little_progress_ends_a_pull_which_can_be_continued() {
    let hub = Hub::serve(gguf(1000), |hub, request| {
        (request.store && request.before < 7).then(|| hub.own(request).ending(End::Cut(10)))
    });
    let cache = cache();
    let settings = settings(&hub, cache.path());
    let error = pull(&settings, "a/b").expect_err("cut");
    is(&error, ErrorKind::Missing, "the connection ended after 50 of 1000 bytes");
    assert_eq!(blobs(cache.path()), [format!("{}.incomplete", sha256(&bytes(1000)))]);
    assert!(!cache.path().join("models--a--b/snapshots").exists(), "a snapshot of part of a model");
    pull(&settings, "a/b").expect("continued");
    assert_eq!(blobs(cache.path()), [sha256(&bytes(1000))]);
}

#[test]
fn a_server_without_ranges_begins_again() {
    for status in [200, 416] {
        let hub = Hub::serve(gguf(1000), move |_, request| {
            request.store.then(|| match (request.before, status) {
                (0, _) => Reply::new(200, bytes(1000)).ending(End::Cut(500)),
                (1, 416) => Reply::new(416, ""),
                _ => Reply::new(200, bytes(1000)),
            })
        });
        let cache = cache();
        let report = pull(&settings(&hub, cache.path()), "a/b").expect("pulled");
        assert_eq!(fs::read(report.path).expect("a file"), bytes(1000), "{status}");
    }
}

/// Cancels some time after a number of bytes arrived, when no further bytes arrive.
struct After(u64, OnceLock<Instant>);

impl PullWatch for After {
    fn progress(&self, done: u64, _: u64, _: &str) {
        if done >= self.0 {
            self.1.get_or_init(Instant::now);
        }
    }

    fn cancelled(&self) -> bool {
        self.1.get().is_some_and(|reached| reached.elapsed() > Duration::from_millis(200))
    }
}

#[test]
fn an_interrupt_ends_a_wait_and_keeps_what_is_there() {
    let hub = Hub::serve(gguf(1000), |hub, request| {
        (request.store && request.before == 0).then(|| {
            let mut reply = hub.own(request).header("Content-Length", 1000).ending(End::Silent);
            reply.body.truncate(300);
            reply
        })
    });
    let cache = cache();
    let settings = settings(&hub, cache.path());
    let begun = Instant::now();
    let error = pull_watched(&settings, "a/b", &After(300, OnceLock::new())).expect_err("cancelled");
    is(&error, ErrorKind::Cancelled, "fetching a/b was interrupted");
    assert!(begun.elapsed() < Duration::from_secs(10), "waited for a silent server");
    let report = pull(&settings, "a/b").expect("continued");
    assert_eq!(fs::read(report.path).expect("a file"), bytes(1000));
    assert_eq!(hub.requests().last().expect("a request").from(), 300);
}

#[test]
fn two_pulls_at_once_fetch_each_file_once() {
    let hub = Hub::serve(folder(), |_, request| {
        // Long enough for the other request to arrive.
        if request.store {
            thread::sleep(Duration::from_millis(200));
        }
        None
    });
    let cache = cache();
    let settings = settings(&hub, cache.path());
    let reports: Vec<_> = thread::scope(|scope| {
        let both: Vec<_> = (0..2).map(|_| scope.spawn(|| pull(&settings, "a/b"))).collect();
        both.into_iter().map(|one| one.join().expect("no panic").expect("pulled")).collect()
    });
    assert_eq!(reports[0].path, reports[1].path);
    assert_eq!(fs::read(reports[0].path.join("model.safetensors")).expect("a file"), bytes(WEIGHTS));
    for (name, bytes) in &hub.model.files {
        assert!(hub.asked(&format!("store/{}", sha256(bytes))) <= 1, "{name} was fetched twice");
    }
}

/// Cancels when notified of a wait.
#[derive(Default)]
struct Impatient(Mutex<Vec<String>>);

impl PullWatch for Impatient {
    fn note(&self, text: &str) {
        self.0.lock().expect("no panic").push(text.to_owned());
    }

    fn cancelled(&self) -> bool {
        !self.0.lock().expect("no panic").is_empty()
    }
}

#[test]
fn the_lock_of_another_program_is_waited_for() {
    let hub = Hub::serve(gguf(100), |_, _| None);
    let cache = cache();
    let locks = cache.path().join(".locks/models--a--b");
    fs::create_dir_all(&locks).expect("made");
    let lock = fs::File::create(locks.join(format!("{}.lock", sha256(&bytes(100))))).expect("made");
    lock.lock().expect("locked");
    let watch = Impatient::default();
    let error = pull_watched(&settings(&hub, cache.path()), "a/b", &watch).expect_err("cancelled");
    is(&error, ErrorKind::Cancelled, "fetching a/b was interrupted");
    let notes = watch.0.into_inner().expect("no panic");
    assert!(notes[0].contains("another program fetches m-Q4_0.gguf"), "{notes:?}");
    drop(lock);
    pull(&settings(&hub, cache.path()), "a/b").expect("pulled");
}

/// Simulates a full disk by linking the partial file to `/dev/full`.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named_with_what_helps() {
    let hub = Hub::serve(gguf(100), |_, _| None);
    let cache = cache();
    let folder = cache.path().join("models--a--b/blobs");
    fs::create_dir_all(&folder).expect("made");
    let partial = folder.join(format!("{}.incomplete", sha256(&bytes(100))));
    std::os::unix::fs::symlink("/dev/full", &partial).expect("a link");
    let error = pull(&settings(&hub, cache.path()), "a/b").expect_err("full");
    assert_eq!((error.kind(), error.place()), (ErrorKind::Resource, partial.to_str()), "{error}");
    let help = error.help().expect("help");
    assert!(help.contains("free space") && help.contains("--cache"), "{help}");
    assert_eq!(hub.asked("store"), 1, "asked again");
    fs::remove_file(&partial).expect("removed");
    pull(&settings(&hub, cache.path()), "a/b").expect("pulled");
}
