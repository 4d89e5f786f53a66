//! Plans for checkpoints without their weights: they are equal to plans with weights, and lack only
//! what requires them.

use std::fs;
use std::path::{Path, PathBuf};

use shardwright_build::{DownloadBasis, LossReport, PlanOptions, PlanReport, Planned};
use shardwright_checkpoints::{compile, open_checkpoint, plan_checkpoint};
use shardwright_models::Checkpoint;
use shardwright_planning::request::Request;
use shardwright_vocabulary::{ErrorKind, Notice};
use tempfile::TempDir;

/// The committed fixtures that generate text.
const TEXT_FIXTURES: [&str; 7] =
    ["gemma3_text", "gemma4_text", "gemma4_mm", "llama3", "ministral", "qwen2", "qwen3"];

/// Makes a private copy of a fixture, including modules.
fn copy(name: &str) -> TempDir {
    fn copied(from: &Path, to: &Path) {
        for entry in fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            let to = to.join(path.file_name().unwrap());
            if path.is_dir() {
                fs::create_dir(&to).unwrap();
                copied(&path, &to);
            } else {
                fs::copy(&path, &to).unwrap();
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    copied(&fixtures.join(name), folder.path());
    folder
}

fn weight_files(folder: &Path) -> Vec<PathBuf> {
    let modules = ["2_Dense", "3_Dense"].map(|module| folder.join(module).join("model.safetensors"));
    let all = modules.into_iter().chain([folder.join("model.safetensors")]);
    all.filter(|path| path.exists()).collect()
}

/// Cuts weight files down to their headers, as range requests fetch them.
fn without_weights(folder: &Path) {
    for path in weight_files(folder) {
        let bytes = fs::read(&path).unwrap();
        let header = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
        fs::write(&path, &bytes[..8 + header]).unwrap();
    }
}

/// Losses do not affect the choice, because expected losses depend on the weights.
fn options(soc: &str) -> PlanOptions {
    let mut options = PlanOptions { soc: Some(soc.to_owned()), ..PlanOptions::default() };
    options.recorded.planner_options = vec![("usual-quality".to_owned(), "1000000".to_owned())];
    options
}

fn planned(folder: &Path, options: &PlanOptions) -> Planned {
    plan_checkpoint(folder, options, &mut ()).unwrap_or_else(|error| panic!("{error:?}"))
}

/// Returns the report as JSON without notices and losses, and the notices.
fn apart(mut report: PlanReport) -> (String, Vec<Notice>) {
    let notices = std::mem::take(&mut report.notices);
    // Expected losses depend on the weights, if these are available.
    report.totals.loss = LossReport::None;
    for layer in report.shards.iter_mut().flat_map(|shard| &mut shard.by_layer) {
        layer.loss = LossReport::None;
    }
    (serde_json::to_string(&report).unwrap(), notices)
}

/// Returns the request without losses.
fn asked(planned: &Planned) -> Request {
    let mut request: Request = serde_json::from_slice(&planned.request).unwrap();
    request.sensitivities.clear();
    request.value_sensitivities.clear();
    let tables = request.tables.iter_mut().flat_map(|table| &mut table.formats);
    tables.for_each(|format| format.micronats = None);
    request
}

#[test]
fn headers_give_the_plan_of_the_whole_checkpoint_byte_for_byte() {
    for name in TEXT_FIXTURES.into_iter().chain(["embeddinggemma"]) {
        let folder = copy(name);
        let sizes: u64 = weight_files(folder.path()).iter().map(|path| path.metadata().unwrap().len()).sum();
        let socs = if name == "embeddinggemma" { &["mt6989"][..] } else { &["sm8850", "mt6989"] };
        let whole: Vec<Planned> = socs.iter().map(|soc| planned(folder.path(), &options(soc))).collect();
        without_weights(folder.path());
        for (soc, whole) in socs.iter().zip(whole) {
            let outlined = planned(folder.path(), &options(soc));
            assert_eq!(asked(&outlined), asked(&whole), "{name} for {soc}");
            let download = outlined.report.forecast.download.unwrap();
            assert_eq!((download.bytes, download.rests_on), (sizes, DownloadBasis::Headers), "{name}");
            let ((outlined, mut said), (whole, notices)) = (apart(outlined.report), apart(whole.report));
            assert_eq!(outlined, whole, "{name} for {soc}");
            // One additional notice: the basis of the plan.
            let first = said.remove(0).text;
            assert!(first.contains("weights are missing") && first.contains("model.safetensors"), "{first}");
            assert!(first.contains("losses assume normally distributed weights"), "{first}");
            assert_eq!(said, notices, "{name} for {soc}");
        }
    }
}

#[test]
fn the_configuration_alone_gives_the_same_plan_of_a_download_of_unknown_size() {
    let folder = copy("qwen3");
    let mut whole = planned(folder.path(), &options("sm8850"));
    for path in weight_files(folder.path()) {
        fs::remove_file(path).unwrap();
    }
    let mut implied = planned(folder.path(), &options("sm8850"));
    assert_eq!(asked(&implied), asked(&whole));
    let (least, all) = (implied.report.forecast.download.take(), whole.report.forecast.download.take());
    let (least, all) = (least.unwrap(), all.unwrap());
    assert_eq!(least.rests_on, DownloadBasis::Configuration);
    assert!(least.bytes <= all.bytes && least.bytes > all.bytes / 2, "{least:?} of {all:?}");
    let ((implied, notices), (whole, _)) = (apart(implied.report), apart(whole.report));
    assert_eq!(implied, whole);
    assert!(notices[0].text.contains("element type come from config.json"), "{notices:?}");
}

#[test]
fn whatever_needs_a_value_refuses_and_names_the_file() {
    let folder = copy("gemma3_text");
    without_weights(folder.path());
    let file = folder.path().join("model.safetensors").display().to_string();
    let opened = open_checkpoint(folder.path()).map(|_: Checkpoint| ()).unwrap_err();
    let bundle = folder.path().join("bundle");
    let compiled = compile(folder.path(), &bundle, &options("sm8850"), &mut ()).map(|_| ()).unwrap_err();
    for error in [opened, compiled] {
        assert_eq!(error.kind(), ErrorKind::Missing, "{error:?}");
        assert!(error.to_string().contains(&file), "{error:?}");
        assert!(error.help().is_some_and(|help| help.starts_with("download the weights: ")), "{error:?}");
    }
    assert!(!bundle.exists());
    // Losses are expected, not measured.
    let lossy = PlanOptions {
        quality_micronats: Some(1_000_000),
        formats: vec!["w8-per-channel".parse().unwrap()],
        ..options("sm8850")
    };
    let lossy = planned(folder.path(), &lossy);
    assert!(matches!(lossy.report.totals.loss, LossReport::Expected { .. }), "{:?}", lossy.report.totals);
    let none = PlanOptions {
        quality_micronats: Some(0),
        formats: vec!["w8-per-channel".parse().unwrap()],
        ..options("sm8850")
    };
    let refused = plan_checkpoint(folder.path(), &none, &mut ()).map(|_| ()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Planning, "{refused:?}");
}

/// The model does not fit into the requested memory, and the refusal reports that verdict.
#[test]
fn a_refusal_says_that_it_does_not_fit() {
    let options = PlanOptions { memory_bytes: Some(1), ..options("sm8850") };
    let error = plan_checkpoint(copy("qwen3").path(), &options, &mut ()).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Planning);
    assert!(error.to_string().starts_with("does not fit sm8850: planner "), "{error}");
}
