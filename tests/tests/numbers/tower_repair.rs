//! `verify` finds a tower that overflows on its chip, and `verify --repair` raises its precision.
//! The repaired bundle answers a sound like transformers.

use std::path::{Path, PathBuf};

use serde_json::Value;
use shardwright::{BundleOptions, ChatPart, GenerationEvent};
use shardwright_tests::chip::TestChip;
use shardwright_tests::program::{Run, shardwright};
use shardwright_tests::towers::{FIXTURE, Goldens};
use shardwright_tests::tree;
use tempfile::TempDir;

/// Formats that are offered, best first: half floats, half floats with down projections in single
/// precision, and single precision.
const FORMATS: [&str; 3] = ["f16", "f16[mlp-output=f32]", "f32"];

/// A chip with faults, and a bundle compiled by it.
struct Bench {
    chip: TestChip,
    folder: TempDir,
    tower: &'static str,
}

impl Bench {
    fn new(tower: &'static str, faults: &[&str]) -> Bench {
        let bench = Bench { chip: TestChip::new(), folder: tempfile::tempdir().expect("a folder"), tower };
        bench.chip.has_faults(faults);
        bench.runs("compile").argument("-o").argument(bench.path("bundle")).succeeds();
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn runs(&self, command: &str) -> Run {
        let run = self.chip.planned_by(shardwright([command]).argument(tree::root().join(FIXTURE)));
        let run = run.arguments(["--context", "512", "--towers", self.tower]);
        let run = run.environment("XDG_CACHE_HOME", self.path("cache"));
        FORMATS.iter().fold(run, |run, formats| run.arguments(["--tower-formats", formats]))
    }

    fn verifies(&self, bundle: &Path) -> Run {
        let few = ["--rows", "8", "--steps", "1", "--greedy", "1"];
        self.runs("verify").arguments(few).argument("--bundle").argument(bundle)
    }

    fn repairs(&self) -> Value {
        let run = self.verifies(&self.path("bundle")).argument("--repair");
        run.argument("-o").argument(self.path("repaired")).json()
    }

    /// Returns the tokens that a bundle answers to the recorded sound.
    fn hears(&self, bundle: &str, goldens: &Goldens) -> Vec<u32> {
        let options = BundleOptions::new().search_path(self.chip.search_path()).threads(2);
        let model = options.open(self.path(bundle)).unwrap_or_else(|error| panic!("{error}"));
        let mut session = model.session().expect("a session");
        session.options.sampling.do_sample = false;
        session.options.max_tokens = Some(64);
        session.options.stop = Default::default();
        let sound = ChatPart::SoundSamples { rate: 16_000, samples: goldens.floats("p2.waveform").1 };
        let reply = session.chat_parts(["Listen:".into(), sound]).unwrap_or_else(|error| panic!("{error}"));
        let mut tokens = Vec::new();
        for event in reply {
            if let GenerationEvent::Token { id } = event.unwrap_or_else(|error| panic!("{error}")) {
                tokens.push(id);
            }
        }
        tokens
    }
}

/// Lists pass, layer, role, values and evidence of every fault.
fn faults(report: &Value) -> Vec<String> {
    let word = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut found = Vec::new();
    for attempt in report["attempts"].as_array().expect("attempts") {
        for fault in attempt["faults"].as_array().expect("faults") {
            let place = ["layer", "role", "values", "evidence"].map(|name| word(&fault[name]));
            found.push(format!("{} {}", word(&attempt["pass"]), place.join(" ")));
        }
    }
    found
}

#[test]
fn a_clip_that_overflows_is_found_and_heard_again() {
    let bench = Bench::new("clip", &["overflow layer.1.second-down-projection 16 0.02"]);
    let goldens = Goldens::read();
    let wanted = goldens.ids("p2.greedy");
    assert_ne!(bench.hears("bundle", &goldens), wanted);

    let drifts = bench.verifies(&bench.path("bundle")).outcome();
    assert_eq!(drifts.code, Some(1), "{}{}", drifts.stdout, drifts.stderr);
    assert!(
        drifts.stdout.contains("the tower of a clip: recompiled with visible layers")
            && drifts.stdout.contains("layer 1 is the first that differs"),
        "{}",
        drifts.stdout
    );

    let report = bench.repairs();
    assert_eq!(faults(&report), ["clip 1 mlp-output activations own-error"], "{report}");
    assert_eq!(report["verification"]["passed"], true, "{report}");
    assert_eq!(report["verification"]["towers"][0]["passed"], true, "{report}");
    assert_eq!(bench.hears("repaired", &goldens), wanted);
    bench.verifies(&bench.path("repaired")).succeeds();
    let shown = shardwright(["inspect", "--verify"]).argument(bench.path("repaired")).succeeds();
    assert!(shown.contains("f16[mlp-output=f32]"), "{shown}");
}

/// The values are right when they are shown, so shorter shards are compiled. The text has a node of
/// the same name: both are repaired, each by a plan of its own.
#[test]
fn a_fault_of_text_and_picture_that_is_right_where_it_is_shown_is_found_in_shorter_shards() {
    let bench = Bench::new("picture", &["fused layer.1.down-projection 16 0.02"]);
    let report = bench.repairs();
    assert_eq!(faults(&report), ["step 1 - - range", "picture 1 - - range"], "{report}");
    assert_eq!(report["verification"]["passed"], true, "{report}");
    bench.verifies(&bench.path("repaired")).succeeds();
}
