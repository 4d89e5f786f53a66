//! Kills the work at random moments and restarts it. The bytes must be the same as after an
//! uninterrupted run, and memory must stay at a few chunks. `examples/real_shapes.rs` does this at
//! the shapes of real models.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use shardwright_models::Checkpoint;
use shardwright_quantisation::{
    MatrixInputs, MomentSums, Moments, Recipe, Store, TableFormats, content_hash,
};
use shardwright_test_checkpoints::{Fill, Spec};
use shardwright_vocabulary::{ActivationFormat, FormatTuple, StateFormat, WeightFormat};
use tempfile::TempDir;

use crate::killed::{files_and_hashes, make_all, peak_kib, until_done};
use crate::support::{Synthetic, planned, values};

/// Environment variables for the directory and format of the child's work.
const DIRECTORY: &str = "SHARDWRIGHT_TEST_STORE";
const FORMAT: &str = "SHARDWRIGHT_TEST_FORMAT";

/// Number of kills.
const KILLS: usize = 20;

/// Returns a table of many chunks, a matrix of one chunk and a matrix of some.
fn sources() -> Vec<Synthetic> {
    let of = |name: &str, shape: [u64; 2]| Synthetic {
        name: name.to_owned(),
        part: "up",
        shape: shape.to_vec(),
        seed: shape[0],
    };
    vec![of("table", [16_384, 512]), of("q", [64, 512]), of("up", [1024, 1536])]
}

/// Returns constant moments of the matrices' inputs for one of the formats, which tests error
/// compensation.
fn moments_for(format: WeightFormat) -> Option<Moments> {
    let sums = |width: usize| {
        let mut sums = MomentSums::new(width);
        sums.add(&values(64 * width, 11));
        (width.to_string(), sums.finish())
    };
    let of = [("q", "512"), ("up", "1536")].map(|(weight, key)| (weight.to_owned(), key.to_owned())).into();
    let widths = [512, 1536].map(|width| (width.to_string(), width)).into();
    let inputs = MatrixInputs { of, widths, gradients: BTreeMap::new() };
    (format == WeightFormat::W4PerChannel)
        .then(|| Moments::new([5; 32], inputs, [sums(512), sums(1536)].into()))
}

#[test]
#[ignore = "the child of the test below"]
fn child() {
    let (Ok(directory), Ok(format)) = (std::env::var(DIRECTORY), std::env::var(FORMAT)) else { return };
    let format: WeightFormat = format.parse().unwrap();
    let moments = moments_for(format);
    make_all(&sources(), format, moments.as_ref(), &PathBuf::from(directory), Duration::from_millis(2));
}

/// Creates a command that runs one of the ignored tests of this program.
fn child_named(name: &str, directory: &Path, format: WeightFormat) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(DIRECTORY, directory).env(FORMAT, format.name());
    command
}

#[test]
fn killed_at_many_moments_the_bytes_are_the_same() {
    for (seed, format) in
        [(1, WeightFormat::W8PerChannel), (2, WeightFormat::W4Block32), (3, WeightFormat::W4PerChannel)]
    {
        let total = sources().iter().map(|source| planned(source, format).bytes()).sum();
        let directory = TempDir::new().unwrap();
        let outcome = until_done(|| child_named("kill::child", directory.path(), format), total, KILLS, seed);
        assert!(outcome.kills > 10, "{outcome:?}");
        let whole = TempDir::new().unwrap();
        let store = Store::open(whole.path()).unwrap();
        for source in &sources() {
            store.weight(source, format, moments_for(format).as_ref(), &mut (), &mut Vec::new()).unwrap();
        }
        assert!(files_and_hashes(directory.path()) == files_and_hashes(whole.path()), "{format}");
        // The table alone has 32 MiB as f32. A child needs memory for 2 chunks per thread and for
        // the program.
        if cfg!(target_os = "linux") {
            let chunks = 2 * std::thread::available_parallelism().unwrap().get() as u64;
            let bound = 40 * 1024 + chunks * 4 * 1024;
            assert!(outcome.peak_kib > 0 && outcome.peak_kib < bound, "{outcome:?}");
        }
    }
}

#[test]
#[ignore = "the child of the test below"]
fn child_of_a_checkpoint() {
    let (Ok(directory), Ok(format)) = (std::env::var(DIRECTORY), std::env::var(FORMAT)) else { return };
    let (directory, format): (PathBuf, WeightFormat) = (directory.into(), format.parse().unwrap());
    let graph = Checkpoint::open(directory.join("checkpoint")).unwrap().into_graph();
    let formats = FormatTuple::uniform(format, ActivationFormat::F32, StateFormat::F32);
    let tables = TableFormats { embedding: Some(format), per_layer: Some(format) };
    let store = Store::open(directory.join("store")).unwrap();
    content_hash(&graph).unwrap();
    store.graph(&graph, &Recipe::new(&graph, &formats, tables), &mut (), &mut Vec::new()).unwrap();
    println!("\nmade 1 {}", peak_kib());
}

/// Tables of 200 MiB and more, mapped from a checkpoint, are hashed, read and written without
/// staying resident.
#[test]
fn a_mapped_checkpoint_gives_its_memory_back() {
    let directory = TempDir::new().unwrap();
    let spec = Spec { vocabulary: 1 << 17, hidden: 512, per_layer: 64, fill: Fill::Sparse, ..Spec::gemma4() };
    std::fs::create_dir(directory.path().join("checkpoint")).unwrap();
    spec.write(&directory.path().join("checkpoint")).unwrap();
    let child = || child_named("kill::child_of_a_checkpoint", directory.path(), WeightFormat::W4Block32);
    let outcome = until_done(child, 1, 0, 0);
    if cfg!(target_os = "linux") {
        let threads = std::thread::available_parallelism().unwrap().get() as u64;
        assert!(outcome.peak_kib > 0 && outcome.peak_kib < (48 + 16 * threads) * 1024, "{outcome:?}");
    }
}
