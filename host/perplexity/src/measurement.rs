//! Runs a measurement, from reading the text to the report.

use std::path::Path;

use shardwright::tools::ModelTools;
use shardwright::{Error, ErrorKind, Model, Notice, Result};
use shardwright_bundle::Digest;
use shardwright_files::private_files;
use shardwright_vocabulary::Watch;

use crate::predictor::{Predictor, name, score};
use crate::question::question;
use crate::report::{AgainstReport, Likelihood, ModelReport, PerplexityReport, ResamplingReport, TextReport};
use crate::score::WindowScore;
use crate::text::{Text, Tokens};
use crate::window_cache::WindowCache;
use crate::windows::Windows;

/// Default number of tokens in a window, as in `llama-perplexity`.
const WINDOW: usize = 512;

/// How a text is cut into windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerplexityOptions {
    /// Tokens in a window. Default: 512, or the context if that is smaller.
    pub window: Option<u32>,
    /// Distance between the beginnings of windows in tokens. As many tokens at the end of each
    /// window are scored. Default: adjacent windows whose second half is scored.
    pub stride: Option<u32>,
    /// Maximum number of windows. Default: all windows of the text.
    pub chunks: Option<u32>,
}

/// Measures how well `model` predicts a text, like `llama-perplexity`. Each window starts with an
/// empty KV cache. The BOS token replaces its first token if the tokenizer adds one, and only its
/// end is scored. With a reference, both models run the same windows in the same steps, and the
/// report has KL(reference ‖ model).
///
/// Finished windows are kept in `cache` until all are measured, so that an interrupted call resumes
/// with the same models and the same libraries of shims. Also returns notices about kept files.
///
/// # Errors
///
/// * The text is shorter than a window.
/// * A window is longer than the context.
/// * The model computes embeddings.
/// * The reference has another vocabulary ([`ErrorKind::Incompatible`]).
/// * A run fails, or a logit is not finite.
/// * The cache cannot be written.
/// * `watch` cancels the measurement ([`ErrorKind::Cancelled`]).
pub fn perplexity(
    model: &Model,
    reference: Option<&Model>,
    text: &Text,
    options: &PerplexityOptions,
    cache: Option<&Path>,
    watch: &mut dyn Watch,
) -> Result<(PerplexityReport, Vec<Notice>)> {
    let mut predictor = Predictor::new(model)?;
    let mut compared = reference.map(Predictor::new).transpose()?;
    let (path, text) = (text.path.as_path(), &text.content);
    let tokens = Tokens::of(model, text, watch)?;
    if let Some(reference) = reference {
        same_tokens((model, reference), text, &tokens, watch)?;
    }
    let windows = cut(model, reference, &tokens, options).map_err(|error| about(path, &error))?;
    let sha256 = Digest::of(text.as_bytes());
    let models: Vec<&Model> = std::iter::once(model).chain(reference).collect();
    let mut notices = Vec::from_iter(spelled(&tokens));
    let question = cache.map(|cache| Ok((cache, question(&models, sha256, &windows)?))).transpose();
    let kept = WindowCache::of(question.unwrap_or_else(|fault| {
        notices.push(fault);
        None
    }));
    let (mut scores, mut resumed) = (Vec::with_capacity(windows.count), 0);
    for window in 0..windows.count {
        if watch.cancelled() {
            return Err(interrupted(&kept));
        }
        watch.progress(
            per_mille(window, windows.count),
            &format!("window {} of {}", window + 1, windows.count),
        );
        let found = recall(&kept, window, &windows, &mut notices);
        resumed += usize::from(found.is_some());
        scores.push(match found {
            Some(found) => found,
            None => {
                let ids = windows.ids(&tokens.ids, window);
                let found = score(&mut predictor, compared.as_mut(), (&ids, windows.scored), watch)?;
                let found = found.ok_or_else(|| interrupted(&kept))?;
                keep(&kept, window, &found)?;
                found
            }
        });
    }
    if let Err(error) = kept.clear() {
        let folder = kept.folder().unwrap_or(path).display();
        notices.push(Notice::note(format!("finished windows stay in {folder}: {error}")));
    }
    let text = TextReport {
        path: path.display().to_string(),
        sha256: sha256.to_string(),
        tokens: tokens.ids.len(),
        bos: windows.begin_with_bos(),
        window: windows.length,
        stride: options.stride,
        windows: windows.count,
        resumed,
        scored: windows.scored_in_all(),
        left: windows.left,
    };
    Ok((report(model, reference, text, &scores), notices))
}

fn report(
    model: &Model,
    reference: Option<&Model>,
    text: TextReport,
    scores: &[WindowScore],
) -> PerplexityReport {
    let nll: Vec<&[f64]> = scores.iter().map(|score| &score.nll[..]).collect();
    PerplexityReport {
        model: ModelReport::of(model),
        text,
        likelihood: Likelihood::of(&nll),
        against: reference.and_then(|reference| AgainstReport::of(ModelReport::of(reference), scores)),
        errors: ResamplingReport::OF_WINDOWS,
    }
}

/// Creates a notice about special tokens in the text, which `llama-perplexity` reads as text.
fn spelled(tokens: &Tokens) -> Option<Notice> {
    let count = tokens.spelled;
    (count > 0).then(|| {
        Notice::note(format!(
            "{count} special tokens spelled out in the text are run as special tokens; llama-perplexity reads them as text"
        ))
    })
}

/// Refuses a reference with another vocabulary, or whose tokenizer splits the text differently.
fn same_tokens(
    (model, reference): (&Model, &Model),
    text: &str,
    tokens: &Tokens,
    watch: &dyn Watch,
) -> Result<()> {
    let refused = |what: String| {
        Err(Error::new(ErrorKind::Incompatible, what).with_help(
            "compare with a model that has the same tokenizer, such as the same checkpoint in float",
        ))
    };
    if let Some(difference) = reference.vocabulary_difference(model)? {
        return refused(format!("the reference {difference}"));
    }
    let others = Tokens::of(reference, text, watch)?;
    if others == *tokens {
        return Ok(());
    }
    let place = tokens.ids.iter().zip(&others.ids).take_while(|(one, other)| one == other).count();
    refused(format!(
        "the tokenizers of `{}` and `{}` split the text differently from token {place} on",
        name(model),
        name(reference)
    ))
}

/// Cuts the text into windows that fit the contexts of both models.
fn cut(
    model: &Model,
    reference: Option<&Model>,
    tokens: &Tokens,
    options: &PerplexityOptions,
) -> Result<Windows> {
    let contexts = std::iter::once(model).chain(reference).map(|model| model.chain().context());
    let context = usize::try_from(contexts.min().unwrap_or(0)).unwrap_or(usize::MAX);
    let length = options.window.map_or(WINDOW.min(context), as_usize);
    if length > context {
        let what = format!("a window of {length} tokens does not fit into a context of {context}");
        return Err(Error::new(ErrorKind::Context, what)
            .with_help("use a smaller `--window` or a larger `--context`"));
    }
    let (count, most) = (tokens.ids.len(), options.chunks.map(as_usize));
    match options.stride {
        None => Windows::adjacent(count, length, most, tokens.bos),
        Some(stride) => Windows::strided(count, length, as_usize(stride), most),
    }
}

fn as_usize(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Adds the path of the text to an error.
fn about(path: &Path, error: &Error) -> Error {
    let named = Error::new(error.kind(), format!("{}: {error}", path.display()));
    match error.help() {
        Some(help) => named.with_help(help),
        None => named,
    }
}

fn recall(
    kept: &WindowCache,
    window: usize,
    windows: &Windows,
    notices: &mut Vec<Notice>,
) -> Option<WindowScore> {
    kept.recall(window, windows.scored).unwrap_or_else(|fault| {
        notices.push(Notice::note(fault));
        None
    })
}

fn keep(kept: &WindowCache, window: usize, found: &WindowScore) -> Result<()> {
    kept.keep(window, found).map_err(|error| {
        let folder = kept.folder().unwrap_or(Path::new(""));
        private_files::not_kept(error, folder, "use a cache folder of your own to store windows")
    })
}

fn interrupted(kept: &WindowCache) -> Error {
    let help = match kept.folder() {
        Some(folder) => {
            format!("run the command again to resume: finished windows are in {}", folder.display())
        }
        None => "run the command again from the start: no finished window was kept".to_owned(),
    };
    Error::new(ErrorKind::Cancelled, "the measurement was interrupted").with_help(help)
}

fn per_mille(done: usize, of: usize) -> u32 {
    (done * 1000 / of.max(1)) as u32
}
