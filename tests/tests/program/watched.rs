//! Late work of an opening is watched too: a tower that a turn opens is hashed with progress, and a
//! self-test can be stopped between its runs.

use std::cell::Cell;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use shardwright::tools::ModelTools;
use shardwright::{
    BundleOptions, CancelHandle, ChatPart, Error, ErrorKind, Isolation, Model, OpenOptions, Pass, Session,
    Watch,
};
use shardwright_tests::bundles::Compiled;
use shardwright_tests::checkpoints::{MULTIMODAL_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::chip::TestChip;
use shardwright_tests::program::{self, shardwright};
use shardwright_tests::towers::Goldens;
use shardwright_tests::{skipped, tree};

/// A watcher that records progress.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) places: Vec<u32>,
    pub(crate) stages: Vec<String>,
    /// Start of the name of the stage to watch. If it is empty, everything is watched.
    of: &'static str,
    /// Number of cancellation queries in that stage.
    asked: Cell<u32>,
    /// Number of queries after which it requests a stop.
    patience: Option<u32>,
    /// Handle to cancel with in that stage, instead of a query.
    handle: Option<CancelHandle>,
}

impl Seen {
    fn of(stage: &'static str) -> Seen {
        Seen { of: stage, ..Seen::default() }
    }

    /// Requests a stop after this many queries in that stage.
    pub(crate) fn patient(stage: &'static str, patience: u32) -> Seen {
        Seen { patience: Some(patience), ..Seen::of(stage) }
    }

    fn is_there(&self) -> bool {
        self.of.is_empty() || self.stages.last().is_some_and(|stage| stage.starts_with(self.of))
    }

    pub(crate) fn hashes(&self) -> bool {
        self.stages.iter().any(|stage| stage.starts_with("hashing"))
    }
}

impl Watch for Seen {
    fn progress(&mut self, per_mille: u32, stage: &str) {
        self.places.push(per_mille);
        self.stages.push(stage.to_owned());
        if let Some(handle) = self.handle.as_ref().filter(|_| self.is_there()) {
            handle.cancel();
        }
    }

    fn cancelled(&self) -> bool {
        if !self.is_there() {
            return false;
        }
        let asked = self.asked.replace(self.asked.get() + 1);
        self.patience.is_some_and(|patience| asked >= patience)
    }
}

fn session(model: &Model) -> Session {
    let mut session = model.session().expect("a session");
    (session.options.sampling.do_sample, session.options.max_tokens) = (false, Some(12));
    session
}

/// Runs a turn with a picture and returns the reply.
fn looks(session: &mut Session, watch: &mut dyn Watch) -> Result<String, Error> {
    let goldens = Goldens::read();
    let pixels: Vec<u8> = goldens.integers("p1.image_rgb").into_iter().map(|value| value as u8).collect();
    let picture = ChatPart::PictureRgb8 { width: 50, height: 38, stride: 150, pixels };
    session.chat_parts_watched([picture, "What is this?".into()], watch)?.text()
}

/// Returns the bytes of the files that a tower uses, each counted once.
fn bytes_of_tower(model: &Model) -> u64 {
    let variant = model.bundle().expect("a bundle").variant();
    let tower = variant.model_of(Pass::Picture).expect("a tower");
    let mut files: Vec<_> = tower.chains[0].shards.iter().map(|shard| shard.artefact).collect();
    for asset in tower.assets {
        files.push(asset.table);
        files.extend(asset.quantisation.as_ref().map(|quantisation| quantisation.scales));
    }
    files.sort();
    files.dedup();
    files.iter().map(|file| file.bytes).sum()
}

#[test]
fn a_tower_is_hashed_with_progress_and_once() {
    let compiled = Compiled::of(MULTIMODAL_FIXTURE);
    std::thread::sleep(Duration::from_secs(5));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = |proofs: &Path| {
        BundleOptions::new().search_path(program::search_path()).threads(2).remember_proofs(proofs)
    };
    let open =
        |proofs: &Path| options(proofs).open(compiled.path()).unwrap_or_else(|error| panic!("{error}"));

    let proofs = folder.path().join("proofs");
    let model = open(&proofs);
    assert!(model.report().verified_towers.is_empty());
    let mut seen = Seen::of("hashing");
    let expected = looks(&mut session(&model), &mut seen).expect("a reply");
    assert!(seen.places.is_sorted() && seen.places.last() <= Some(&1000), "{:?}", seen.places);
    for stage in ["hashing", "loading", "reading a picture"] {
        assert!(seen.stages.iter().any(|seen| seen.starts_with(stage)), "{stage}: {:?}", seen.stages);
    }
    let verified = model.report().verified_towers;
    let [(Pass::Picture, first)] = verified.as_slice() else { panic!("one tower: {verified:?}") };
    assert_eq!(first.hashed.bytes, bytes_of_tower(&model));
    assert!(first.to_string().contains("B/s; "), "{first}");
    // The next turn opens no tower.
    let mut seen = Seen::of("hashing");
    assert_eq!(looks(&mut session(&model), &mut seen).expect("a reply"), expected);
    assert!(seen.asked.get() == 0 && model.report().verified_towers == verified, "{:?}", seen.stages);
    drop(model);

    match &first.again {
        Some(why) => skipped(&format!("opening a tower again without hashing: {why}")),
        None => {
            let model = open(&proofs);
            let mut seen = Seen::of("hashing");
            assert_eq!(looks(&mut session(&model), &mut seen).expect("a reply"), expected);
            assert_eq!((seen.asked.get(), model.report().verified_towers[0].1.hashed.bytes), (0, 0));
        }
    }

    // The program reports it too.
    let look = |more: &[&str]| {
        let run = shardwright(["run", "--prompt", "What is this?", "-n", "2", "--greedy", "--image"]);
        let run = run.argument("host/preprocessing/tests/preprocessing/files/smooth.jpg");
        let run = run.argument(compiled.path()).arguments(more);
        let outcome = run.environment("XDG_CACHE_HOME", folder.path().join("cache")).outcome();
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        outcome.stderr.lines().filter(|line| line.contains("were hashed")).map(str::to_owned).collect()
    };
    assert_eq!(look(&["--quiet"]), Vec::<String>::new());
    std::fs::remove_dir_all(folder.path().join("cache")).expect("removed");
    let said: Vec<String> = look(&[]);
    let [text, tower] = said.as_slice() else { panic!("of the text, and of the tower: {said:?}") };
    assert!(!text.contains("tower") && tower.starts_with("note: the tower of a picture: "), "{said:?}");

    // A watcher can cancel at any point, and the next turn is not affected.
    let mut cancelled = 0;
    for patience in 0..100 {
        let model = open(&folder.path().join(format!("watched-{patience}")));
        let mut session = session(&model);
        let mut seen = Seen::patient("", patience);
        match looks(&mut session, &mut seen) {
            Ok(_) => break,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}"),
        }
        cancelled += 1;
        assert!(model.report().verified_towers.is_empty());
        assert_eq!(looks(&mut session, &mut ()).expect("a reply"), expected);
    }
    assert!(cancelled >= 3, "cancelled {cancelled} times");
    // The session's handle cancels once as well.
    let model = open(&folder.path().join("handle"));
    let mut session = session(&model);
    let mut seen = Seen { handle: Some(session.cancel_handle()), ..Seen::of("hashing") };
    let error = looks(&mut session, &mut seen).expect_err("cancelled");
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    assert_eq!(looks(&mut session, &mut ()).expect("a reply"), expected);
}

#[test]
fn a_self_test_ends_between_its_runs_and_is_done_whole_the_next_time() {
    let chip = TestChip::named("alpha", &json!({}));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = folder.path().join("bundle");
    let options = OpenOptions::new()
        .search_path(chip.search_path())
        .isolation(Isolation::Off)
        .formats("stored".parse().expect("a choice"));
    let variants = ["alpha", "generic"].map(str::to_owned);
    let report = options.compile_for(&variants, tree::root().join(TEXT_FIXTURES[0]), &bundle, &mut ());
    report.unwrap_or_else(|error| panic!("{error}"));
    chip.behaves_as("sibling");
    const TESTING: &str = "testing its output";
    let open = |proofs: &str, seen: &mut Seen| {
        let proofs = folder.path().join(proofs);
        let options = BundleOptions::new().search_path(chip.search_path()).isolation(Isolation::Off);
        options.remember_proofs(proofs).open_watched(&bundle, seen)
    };
    let tested = |model: &Model| {
        let notices = model.report().notices_of_opening;
        notices.iter().filter(|notice| notice.text.contains("self-test of chain")).count()
    };
    let mut seen = Seen::of(TESTING);
    let model = open("whole", &mut seen).unwrap_or_else(|error| panic!("{error}"));
    let runs = seen.asked.get();
    assert!(runs > 6 && tested(&model) == 1, "{runs} {:?}", seen.stages);
    for patience in [0, 1, runs - 1] {
        let proofs = format!("proofs-{patience}");
        let mut seen = Seen::patient(TESTING, patience);
        let error = open(&proofs, &mut seen).err().expect("cancelled");
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
        assert_eq!(seen.asked.get(), patience + 1);
        assert!(seen.places.last() != Some(&1000), "{:?}", seen.places);
        // The cancelled test leaves no proof. The next opening runs the whole test, and later ones
        // do not.
        for expected in [(runs, 1), (0, 0)] {
            let mut seen = Seen::of(TESTING);
            let model = open(&proofs, &mut seen).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!((seen.asked.get(), tested(&model)), expected, "{patience}");
        }
    }
}
