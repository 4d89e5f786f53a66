//! `verify --golden` for prompts with pictures and sounds: the towers and the text are compared
//! with recordings of transformers.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use shardwright_tests::program::{Run, shardwright};
use shardwright_tests::towers::FIXTURE;
use shardwright_tests::tree;
use tempfile::TempDir;

/// Exit codes of failed comparisons and of invalid input.
const FAILED: i32 = 1;
const INVALID: i32 = 4;

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// Writes the recorded tensors after a change into a folder of their own.
fn recorded(change: impl FnOnce(&mut Tensors)) -> TempDir {
    let bytes = std::fs::read(tree::root().join(FIXTURE).join("goldens.safetensors")).expect("goldens");
    let read = SafeTensors::deserialize(&bytes).expect("tensors");
    let mut tensors: Tensors = read
        .iter()
        .map(|(name, view)| (name.into(), (view.dtype(), view.shape().to_vec(), view.data().to_vec())))
        .collect();
    change(&mut tensors);
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        (name, TensorView::new(*dtype, shape.clone(), data).expect("a tensor"))
    });
    let folder = tempfile::tempdir().expect("a folder");
    let written = safetensors::serialize(views, None).expect("serialised");
    std::fs::write(folder.path().join("goldens.safetensors"), written).expect("written");
    folder
}

fn verifies(goldens: &Path, context: &str) -> Run {
    let run = shardwright(["verify", FIXTURE, "--steps", "1", "--greedy", "8", "--context", context]);
    run.arguments(["--format", "json", "--golden"]).argument(goldens)
}

fn report(run: Run, code: i32) -> Value {
    let outcome = run.outcome();
    assert_eq!(outcome.code, Some(code), "{}", outcome.stderr);
    serde_json::from_str(&outcome.stdout).expect("a report")
}

/// Returns the names of failed comparisons of the whole chain.
fn differ(report: &Value) -> Vec<&str> {
    let all = report["comparisons"].as_array().expect("comparisons");
    all.iter().filter(|one| one["passed"] == false).filter_map(|one| one["what"].as_str()).collect()
}

#[test]
fn pictures_and_sounds_are_compared_from_their_features_to_the_last_token() {
    let found = report(verifies(&tree::root().join(FIXTURE), "256"), 0);
    assert_eq!(found["skipped"], serde_json::json!([]), "{found:#}");
    assert_eq!(
        (&found["tokens"]["greedy_tokens"], &found["tokens"]["greedy_agreed"]),
        (&32.into(), &32.into())
    );
    for (tower, (pass, rows)) in
        found["towers"].as_array().expect("towers").iter().zip([("picture", 63), ("clip", 27)])
    {
        let recorded = &tower["recorded"];
        assert_eq!((&tower["pass"], &recorded["rows"]), (&pass.into(), &rows.into()), "{tower:#}");
        assert!(recorded["passed"] == true && recorded["relative_worst"].as_f64() > Some(0.0), "{tower:#}");
    }
}

#[test]
fn a_recorded_row_that_is_another_is_found_in_the_tower_and_in_the_text() {
    let goldens = recorded(|tensors| {
        let (_, _, rows) = tensors.get_mut("p1.image.soft").expect("rows");
        // Flips the signs in the first row.
        rows[..64 * 4].chunks_exact_mut(4).for_each(|value| value[3] ^= 0x80);
    });
    let found = report(verifies(goldens.path(), "256"), FAILED);
    assert!(differ(&found).contains(&"hidden") && differ(&found).contains(&"logits"), "{found:#}");
    let recorded = &found["towers"][0]["recorded"];
    assert_eq!((&recorded["passed"], &recorded["worst_at"]), (&false.into(), &"p1 position 0".into()));
    assert_eq!(found["towers"][1]["recorded"]["passed"], true, "{found:#}");
}

#[test]
fn prompts_that_cannot_be_run_are_named_with_the_reason() {
    let goldens = recorded(|tensors| {
        let (_, shape, rows) = tensors.get_mut("p1.image.soft").expect("rows");
        shape[0] -= 1;
        rows.truncate(rows.len() - 64 * 4);
        tensors.remove("p2.input_features");
    });
    let found = report(verifies(goldens.path(), "64"), FAILED);
    let skipped: Vec<&str> =
        found["skipped"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    let picture = "its prompt has 63 placeholders of a picture, but `image.soft` has 62 rows";
    for wanted in [
        &format!("p1: {picture}"),
        &format!("p3: {picture}"),
        "p2: the features of its clip are not recorded",
    ] {
        assert!(skipped.contains(&wanted), "no `{wanted}` in {skipped:#?}");
    }
    // The tower returns one row more than recorded.
    assert_eq!(found["towers"][0]["recorded"]["passed"], false, "{found:#}");
    assert_eq!(found["towers"][1]["recorded"], Value::Null, "{found:#}");
    let found = report(verifies(&tree::root().join(FIXTURE), "64"), 0);
    let skipped = found["skipped"].to_string();
    assert!(skipped.contains("p1: its 89 tokens do not fit the context of 64"), "{skipped}");
    assert!(!skipped.contains("p2"), "{skipped}");
}

#[test]
fn recordings_of_another_shape_are_refused() {
    for (tensor, said) in [
        ("p1.image_position_ids", "does not have a position for each feature"),
        ("p2.audio.mask", "does not have one number per row"),
        ("p2.audio.soft", "is not [rows, width]"),
    ] {
        let goldens = recorded(|tensors| {
            let (_, shape, bytes) = tensors.get_mut(tensor).expect("recorded");
            match tensor.ends_with("soft") {
                true => *shape = vec![shape.iter().product()],
                false => {
                    bytes.truncate(bytes.len() / shape[0] * (shape[0] - 1));
                    shape[0] -= 1;
                }
            }
        });
        let refused = verifies(goldens.path(), "256").outcome();
        assert_eq!(refused.code, Some(INVALID), "{}", refused.stderr);
        assert!(refused.stderr.contains(&format!("tensor `{tensor}` {said}")), "{}", refused.stderr);
    }
}
