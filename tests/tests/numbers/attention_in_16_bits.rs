//! Attention whose operands are rounded to 16 bits: cuts, chunks and threads change no bit, and
//! little is lost.

use std::fs;

use shardwright::{Model, OpenOptions};
use shardwright_perplexity::{PerplexityOptions, Text, perplexity};
use shardwright_runtime::Chain;
use shardwright_tests::chain::{Bench, Cut, committed, menu, tokens};
use shardwright_tests::checkpoints::{DEMO_MODEL, text_fixtures};
use shardwright_tests::program::search_path;
use shardwright_tests::{skipped, tree};
use shardwright_vocabulary::FormatTuple;

/// Most thousandths of a nat per token that attention in 16 bits may lose on a published model.
const MOST_MILLINATS: f64 = 0.5;

fn logits(chain: &Chain, ids: &[u32], chunk: usize) -> Vec<u32> {
    let mut session = chain.session().expect("a session");
    for ids in ids.chunks(chunk) {
        session.append(ids).unwrap_or_else(|error| panic!("{error}"));
    }
    session.logits().expect("logits").iter().map(|value| value.to_bits()).collect()
}

#[test]
fn cuts_chunks_and_threads_change_no_bit() {
    for folder in text_fixtures() {
        let graph = committed(folder);
        // More than a block of 64 keys.
        let ids = tokens(&graph, 90);
        let mut seen = Vec::new();
        for formats in ["f32", "f32/f32/f32/attention-bf16", "f32/f32/f16/attention-f16"] {
            let tuple: FormatTuple = formats.parse().expect("formats");
            let menu = menu(96, &[16, 4], &[1, 16]);
            let bench = |threads| Bench::cpu_in_formats(&graph, &menu, threads, std::slice::from_ref(&tuple));
            let one = bench(1);
            let expected = logits(&one.chain(&Cut::default()), &ids, 90);
            for cut in one.cuts() {
                let found = logits(&one.chain(&Cut::before(&[cut])), &ids, 7);
                assert_eq!(found, expected, "{folder} in {formats}, cut before {cut}");
            }
            let found = logits(&bench(3).chain(&Cut::default()), &ids, 1);
            assert_eq!(found, expected, "{folder} in {formats}, three threads");
            assert!(!seen.contains(&expected), "{folder}: {formats} computes the same as other formats");
            seen.push(expected);
        }
    }
}

fn open(checkpoint: &std::path::Path, formats: &str) -> Model {
    let options = OpenOptions::new().search_path(search_path()).threads(2).context(128);
    let options = options.formats(formats.parse().expect("formats"));
    options.open(checkpoint).unwrap_or_else(|error| panic!("{}: {error}", checkpoint.display()))
}

/// Returns the loss of attention in a format, in thousandths of a nat per token.
fn millinats(checkpoint: &std::path::Path, attention: &str) -> f64 {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("text");
    fs::write(&file, tree::read("docs/architecture.md".as_ref())).expect("written");
    let text = Text::read(&file).expect("a text");
    let formats = |attention: &str| format!("as-stored/f32/f32/attention-{attention}");
    let (plain, rounded) = (open(checkpoint, &formats("f32")), open(checkpoint, &formats(attention)));
    let options = PerplexityOptions { window: Some(128), chunks: Some(4), ..PerplexityOptions::default() };
    let (report, _) = perplexity(&rounded, Some(&plain), &text, &options, None, &mut ()).expect("a report");
    report.against.expect("a comparison").kl.mean.value
}

#[test]
fn little_is_lost() {
    let demo = tree::root().join(DEMO_MODEL);
    let losses = ["bf16", "f16"].map(|attention| millinats(&demo, attention));
    assert!(losses.iter().all(|loss| *loss > 0.0 && *loss <= MOST_MILLINATS), "{losses:?}");
    assert!(losses[1] < losses[0], "{losses:?}");
    let Some(models) = std::env::var_os("SHARDWRIGHT_MODELS").map(std::path::PathBuf::from) else {
        return skipped("published models: `cargo xtask vendor models` fetches them");
    };
    let folder = models.join("gemma3-270m").join("folder");
    let losses = ["bf16", "f16"].map(|attention| millinats(&folder, attention));
    println!("Gemma 3 270M loses {losses:?} thousandths of a nat per token with attention in bf16 and f16");
    assert!(losses.iter().all(|loss| *loss <= MOST_MILLINATS), "{losses:?}");
}
