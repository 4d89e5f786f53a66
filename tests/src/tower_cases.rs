//! Towers through a vendor's compiler and its simulator, compared with the reference's numbers.

use shardwright::{OpenOptions, Pass};
use shardwright_verify::{TowerVerification, VerifyOptions, verify};

use crate::checkpoints::MULTIMODAL_FIXTURE;
use crate::qnn::{COSINE, ROW_P95, ROW_WORST};
use crate::tree;

/// Verifies one tower of the multimodal fixture. As little text as possible is run.
///
/// # Panics
/// If it cannot be run, or differs from the graph that its shards were compiled from.
pub fn tower(open: &OpenOptions, pass: Pass, formats: &str) -> TowerVerification {
    let open = open
        .clone()
        .context(32)
        .strict(true)
        .towers([pass])
        .tower_formats(formats.parse().expect("formats"))
        .picture_sizes([70])
        .clip_lengths([2]);
    let options = VerifyOptions::new().rows(1).steps(1).greedy(1).evaluation(1);
    let options =
        options.threshold("row-p95", ROW_P95).threshold("row-worst", ROW_WORST).threshold("cosine", COSINE);
    let checkpoint = tree::root().join(MULTIMODAL_FIXTURE);
    let mut report = verify(&checkpoint, Some(&checkpoint), &open, &options, &mut ())
        .unwrap_or_else(|error| panic!("{pass} in {formats}: {error} ({:?})", error.help()));
    let tower = report.towers.pop().expect("a tower");
    let rows = &tower.soft_rows;
    println!(
        "{pass} in {formats}: {} rows, against float error of 95 % {:.1e}, cosine {:.6}",
        rows.rows, rows.relative_p95, rows.cosine_mean
    );
    assert!(tower.pass == pass && tower.passed && rows.rows > 0, "{pass} in {formats}: {tower:#?}");
    assert!(tower.boundaries.iter().any(|boundaries| boundaries.judged), "{tower:#?}");
    tower
}
