//! Perplexity and KL divergence, compared with sums computed here from the logits of the plain
//! evaluator and of single steps.

use std::fs;

use shardwright::tools::ModelTools;
use shardwright::{ErrorKind, Model, OpenOptions, Result, Watch, WeightRounding};
use shardwright_models::Checkpoint;
use shardwright_perplexity::{Estimate, PerplexityOptions, PerplexityReport, Text, perplexity};
use shardwright_reference::{Arrangement, ReferenceModel};
use shardwright_tests::checkpoints::{Copy, DEMO_MODEL, EMBEDDING_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::program::search_path;
use shardwright_tests::tree;
use tempfile::TempDir;

const TEXT: &str = "In the beginning God created the heaven and the earth. And the earth was without \
                    form, and void; and darkness was upon the face of the deep. What is politics? A \
                    strife of interests masquerading as a contest of principles. Define a bug: an \
                    unwanted and unintended property of a program or piece of hardware.\n";

/// Tokens of a window. The number is odd, so that its halves differ.
const WINDOW: u32 = 23;

fn open(checkpoint: &str, formats: &str) -> Model {
    let options = OpenOptions::new().search_path(search_path()).threads(2).context(64);
    // How weights are rounded does not matter here, and compensation needs most of the time.
    let options = options.formats(formats.parse().expect("formats")).rounding(WeightRounding::Nearest);
    options.open(tree::root().join(checkpoint)).unwrap_or_else(|error| panic!("{checkpoint}: {error}"))
}

struct TextFile {
    folder: TempDir,
}

impl TextFile {
    fn new(text: &[u8]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join("text"), text).expect("written");
        TextFile { folder }
    }

    fn read(&self) -> Result<Text> {
        Text::read(&self.folder.path().join("text"))
    }

    fn measured(
        &self,
        model: &Model,
        against: Option<&Model>,
        options: PerplexityOptions,
    ) -> PerplexityReport {
        let found = perplexity(model, against, &self.read().expect("a text"), &options, None, &mut ());
        let (report, notices) = found.expect("a report");
        assert!(notices.is_empty(), "{notices:?}");
        report
    }
}

/// Returns the ids of the text, with the BOS token and without the line break at its end.
fn ids(model: &Model) -> Vec<u32> {
    let tokenizer = model.tokenizer().expect("a tokenizer");
    tokenizer.encode(TEXT.trim_end(), true).expect("ids")
}

/// Computes the logarithm of the softmax in f64.
fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
    logits.iter().map(|&logit| f64::from(logit) - sum.ln()).collect()
}

/// Computes the mean and its standard error as `llama-perplexity` does.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| value * value).sum::<f64>() / count - mean * mean;
    (mean, (variance / (count - 1.0)).sqrt())
}

fn close(got: f64, wanted: f64, tolerance: f64) {
    assert!((got - wanted).abs() <= tolerance * wanted.abs(), "{got}, expected {wanted}");
}

/// Computes the nats of the tokens from `first` on in each window, using the plain evaluator.
fn nats_by_evaluator(windows: &[Vec<u32>], first: usize) -> Vec<f64> {
    let checkpoint = Checkpoint::open(tree::root().join(DEMO_MODEL)).expect("a checkpoint");
    let evaluator = ReferenceModel::new(checkpoint.graph(), Arrangement::whole(64)).expect("an evaluator");
    let nats = |ids: &Vec<u32>| {
        let logits = evaluator.logits(ids).expect("logits");
        (first..ids.len()).map(|token| -log_softmax(&logits.row(token - 1))[ids[token] as usize]).collect()
    };
    windows.iter().flat_map(|ids| -> Vec<f64> { nats(ids) }).collect()
}

#[test]
fn second_halves_of_windows_are_scored_behind_a_bos_token() {
    let model = open(DEMO_MODEL, "f32/f32/f32");
    let options = PerplexityOptions { window: Some(WINDOW), ..PerplexityOptions::default() };
    let report = TextFile::new(TEXT.as_bytes()).measured(&model, None, options);
    let ids = ids(&model);
    let windows: Vec<Vec<u32>> =
        ids.chunks_exact(WINDOW as usize).map(|window| [&ids[..1], &window[1..]].concat()).collect();
    assert!(windows.len() >= 3 && !ids.len().is_multiple_of(WINDOW as usize), "{} ids", ids.len());
    // There are 11 tokens of context. The logits after the twelfth token are the first that count.
    let nats = nats_by_evaluator(&windows, 12);
    let (mean, error) = mean_and_error(&nats);
    close(report.likelihood.nll.value, mean, 1e-4);
    close(report.likelihood.perplexity, mean.exp(), 1e-3);
    close(report.likelihood.perplexity_error.expect("an error"), mean.exp() * error, 1e-3);
    let text = &report.text;
    assert_eq!((text.tokens, text.windows, text.scored), (ids.len(), windows.len(), nats.len()));
    assert_eq!((text.left, text.bos, text.stride), (ids.len() % WINDOW as usize, true, None));
    assert_eq!((text.resumed, report.against), (0, None));
}

#[test]
fn strided_windows_score_their_last_tokens() {
    let model = open(DEMO_MODEL, "f32/f32/f32");
    let options = PerplexityOptions { window: Some(24), stride: Some(9), chunks: Some(3) };
    let report = TextFile::new(TEXT.as_bytes()).measured(&model, None, options);
    let ids = ids(&model);
    let windows: Vec<Vec<u32>> = (0..3).map(|window| ids[window * 9..window * 9 + 24].to_vec()).collect();
    let nats = nats_by_evaluator(&windows, 24 - 9);
    close(report.likelihood.nll.value, mean_and_error(&nats).0, 1e-4);
    let text = &report.text;
    assert_eq!((text.windows, text.scored, text.left), (3, 27, ids.len() - 42));
    assert_eq!((text.bos, text.stride), (false, Some(9)));
}

#[test]
fn divergences_are_sums_over_all_tokens_of_the_vocabulary() {
    let (model, reference) = (open(DEMO_MODEL, "w4-block32/f32/f32"), open(DEMO_MODEL, "f32/f32/f32"));
    let options = PerplexityOptions { window: Some(WINDOW), ..PerplexityOptions::default() };
    let report = TextFile::new(TEXT.as_bytes()).measured(&model, Some(&reference), options);
    let against = report.against.expect("a comparison");
    let ids = ids(&model);
    let (mut own, mut others) =
        (model.chain().session().expect("a session"), reference.chain().session().expect("a session"));
    let (mut kl, mut same, mut nats) = (Vec::new(), 0, [Vec::new(), Vec::new()]);
    for window in ids.chunks_exact(WINDOW as usize) {
        own.clear();
        others.clear();
        for (place, pair) in [&ids[..1], &window[1..]].concat().windows(2).enumerate() {
            own.append(&pair[..1]).expect("a step");
            others.append(&pair[..1]).expect("a step");
            if place < 11 {
                continue;
            }
            let [q, p] = [&own, &others].map(|session| log_softmax(session.logits().expect("logits")));
            kl.push(1000.0 * p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>());
            let top = |of: &[f64]| (0..of.len()).max_by(|&a, &b| of[a].total_cmp(&of[b])).expect("a token");
            same += usize::from(top(&p) == top(&q));
            nats[0].push(-q[pair[1] as usize]);
            nats[1].push(-p[pair[1] as usize]);
        }
    }
    close(against.kl.mean.value, mean_and_error(&kl).0, 1e-5);
    kl.sort_by(f64::total_cmp);
    close(against.kl.max, kl[kl.len() - 1], 1e-5);
    close(against.same_top.value, same as f64 / kl.len() as f64, 1e-9);
    let [own, others] = nats.map(|nats| mean_and_error(&nats).0);
    close(report.likelihood.nll.value, own, 1e-6);
    close(against.likelihood.nll.value, others, 1e-6);
    assert!((against.nll_difference.value - (own - others)).abs() < 1e-5, "{against:?}");
    let middle = (kl[(kl.len() - 1) / 2] + kl[kl.len() / 2]) / 2.0;
    close(against.kl.median.value, middle, 1e-5);
    let errors = [against.kl.mean, against.kl.median, against.kl.p95, against.kl.p99, against.nll_difference];
    assert!(errors.iter().all(|figure| figure.error.is_some_and(|error| error > 0.0)), "{errors:?}");
    // The comparison with itself must report no divergence.
    let report = TextFile::new(TEXT.as_bytes()).measured(&reference, Some(&reference), options);
    let against = report.against.expect("a comparison");
    assert_eq!((against.kl.max, against.same_top.value), (0.0, 1.0));
    assert_eq!(against.nll_difference, Estimate { value: 0.0, error: Some(0.0) });
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let model = open(DEMO_MODEL, "f32/f32/f32");
    let refused = |model: &Model, against: Option<&Model>, text: &[u8], options: PerplexityOptions| {
        let text = TextFile::new(text);
        let found = text.read().and_then(|text| perplexity(model, against, &text, &options, None, &mut ()));
        let error = found.map(|(report, _)| report).expect_err("refused");
        assert!(error.help().is_some(), "{error}");
        (error.kind(), error.to_string())
    };
    let default = PerplexityOptions::default();
    let wanted = |(kind, text): (ErrorKind, String), expected: ErrorKind, words: &str| {
        assert!(kind == expected && text.contains(words), "{kind:?}: {text}");
    };
    let of_text = |text: &[u8]| refused(&model, None, text, default);
    wanted(of_text(b"\n"), ErrorKind::Invalid, "the text is empty");
    wanted(of_text(b"too short"), ErrorKind::Argument, "at least 64 are needed");
    wanted(of_text(b"not \xff UTF-8"), ErrorKind::Invalid, "offset 4");
    let large = PerplexityOptions { window: Some(65), ..default };
    wanted(refused(&model, None, TEXT.as_bytes(), large), ErrorKind::Context, "context of 64");
    let strided = PerplexityOptions { stride: Some(64), ..default };
    wanted(refused(&model, None, TEXT.as_bytes(), strided), ErrorKind::Argument, "stride of 64");
    let missing = Text::read("no-such-file".as_ref());
    assert_eq!(missing.expect_err("missing").kind(), ErrorKind::Missing);

    struct Interrupted;
    impl Watch for Interrupted {
        fn cancelled(&self) -> bool {
            true
        }
    }
    let small = PerplexityOptions { window: Some(WINDOW), ..default };
    let text = TextFile::new(TEXT.as_bytes());
    let interrupted = perplexity(&model, None, &text.read().expect("a text"), &small, None, &mut Interrupted);
    let error = interrupted.map(|(report, _)| report).expect_err("interrupted");
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert!(error.help().is_some_and(|help| help.contains("no finished window was kept")), "{error:?}");

    let embeds = open(EMBEDDING_FIXTURE, "stored");
    wanted(refused(&embeds, None, TEXT.as_bytes(), default), ErrorKind::Unsupported, "computes embeddings");
    let other = open(TEXT_FIXTURES[3], "stored");
    let differs = refused(&model, Some(&other), TEXT.as_bytes(), default);
    wanted(differs, ErrorKind::Incompatible, "id 0 is `!`, expected `<pad>`");
    let broken = Copy::of(DEMO_MODEL).overflowing();
    let broken = open(broken.path().to_str().expect("UTF-8"), "stored");
    let not_finite = "the logit of token 0 after token 11 of a window is not finite";
    wanted(refused(&broken, None, TEXT.as_bytes(), small), ErrorKind::Shim, not_finite);
    wanted(refused(&model, Some(&broken), TEXT.as_bytes(), small), ErrorKind::Shim, not_finite);
}

/// Two tokenizers with the same tokens that split a text differently.
#[test]
fn tokenizers_that_split_differently_are_refused() {
    let model = open(DEMO_MODEL, "stored");
    let without_bos = Copy::of(DEMO_MODEL)
        .json("tokenizer_config.json", |config| config["add_bos_token"] = false.into())
        .json("tokenizer.json", |tokenizer| tokenizer["post_processor"] = serde_json::Value::Null);
    let other = open(without_bos.path().to_str().expect("UTF-8"), "stored");
    let options = PerplexityOptions { window: Some(WINDOW), ..PerplexityOptions::default() };
    let text = TextFile::new(TEXT.as_bytes());
    let error = perplexity(&model, Some(&other), &text.read().expect("a text"), &options, None, &mut ())
        .expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.to_string().contains("differently from token 0 on"), "{error}");
    // Alone it can be measured, and no window begins with a BOS token that its tokenizer does not
    // add.
    assert!(!text.measured(&other, None, options).text.bos);
}

#[test]
fn special_tokens_that_a_text_spells_out_are_noted() {
    let model = open(DEMO_MODEL, "stored");
    let text = TextFile::new(format!("<eos> and <eos>. {TEXT}").as_bytes());
    let options = PerplexityOptions { window: Some(WINDOW), ..PerplexityOptions::default() };
    let found = perplexity(&model, None, &text.read().expect("a text"), &options, None, &mut ());
    let (_, notices) = found.expect("a report");
    assert!(notices.len() == 1 && notices[0].text.starts_with("2 special tokens"), "{notices:?}");
}
