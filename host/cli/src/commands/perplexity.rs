//! `perplexity`: how well a model predicts a text, and how far it is from a reference.

use std::path::Path;

use shardwright::{FormatChoice, Model, user_cache_directory};
use shardwright_perplexity::{PerplexityOptions, Text};

use super::{is_bundle, no_name_expected, open, print, say_each, say_notices_and_of_text};
use crate::arguments::{
    BundledArguments, ExecutionArguments, ExpectedArgument, Format, PerplexityArguments, TargetArguments,
};
use crate::outcome::{Failure, Outcome};
use crate::views;

/// The planner option for an entry point that returns the logits of many rows.
const LARGE_STEPS: &str = "speculation";

/// Rows of that entry point: the most that plans are offered.
const LARGE_STEP_ROWS: u32 = 16;

/// Opens one or two models and measures them.
pub fn perplexity(arguments: &PerplexityArguments, format: Format) -> Result<Outcome, Failure> {
    let PerplexityArguments { checkpoint, against, text, target, execution, bundled, .. } = arguments;
    let is_bundle = is_bundle(checkpoint, bundled.compiled_from.as_deref())?;
    if !is_bundle && !against.as_deref().is_some_and(shardwright::is_bundle) {
        no_name_expected(checkpoint, &bundled.expected)?;
    }
    let text = Text::read(text)?;
    let reference =
        against.as_ref().map(|path| reference(path, target, execution, &bundled.expected)).transpose()?;
    let model = match is_bundle {
        true => open(target, execution, checkpoint, bundled, &[])?,
        false => {
            // The name is of the reference.
            let bundled = BundledArguments { expected: ExpectedArgument::default(), ..bundled.clone() };
            open(&in_large_steps(target), execution, checkpoint, &bundled, &[])?
        }
    };
    say_notices_and_of_text(&model, false)?;
    let options =
        PerplexityOptions { window: arguments.window, stride: arguments.stride, chunks: arguments.chunks };
    let mut watch = views::ProgressLine::new("measuring", checkpoint);
    let cache = user_cache_directory();
    let (report, notices) = shardwright_perplexity::perplexity(
        &model,
        reference.as_ref(),
        &text,
        &options,
        cache.as_deref(),
        &mut watch,
    )?;
    drop(watch);
    say_each(&notices, false);
    print(format, &report, views::perplexity)
}

/// Opens the reference, whatever the model is planned for: a bundle as it is and with the expected
/// name, or a checkpoint as stored on this machine's CPU.
fn reference(
    path: &Path,
    target: &TargetArguments,
    execution: &ExecutionArguments,
    expected: &ExpectedArgument,
) -> Result<Model, Failure> {
    let execution = ExecutionArguments { on: None, ..execution.clone() };
    let (target, expected) = match is_bundle(path, None)? {
        true => (TargetArguments { towers: Vec::new(), ..target.of_a_draft(None) }, expected.clone()),
        false => {
            let formats = vec![FormatChoice::Stored];
            let stored = TargetArguments { formats, ..target.of_a_draft(target.context) };
            (in_large_steps(&stored), ExpectedArgument::default())
        }
    };
    let bundled = BundledArguments { expected, ..BundledArguments::default() };
    let reference = open(&target, &execution, path, &bundled, &[])?;
    say_notices_and_of_text(&reference, false)?;
    Ok(reference)
}

/// Adds an entry point of many rows if the CPU runs the plan, because it returns the same numbers
/// sooner. A chip's plan stays as for `run`, since an entry point needs a compilation and may move
/// layers.
fn in_large_steps(target: &TargetArguments) -> TargetArguments {
    let mut target = target.clone();
    let is_set = target.planner_options.iter().any(|(option, _)| option == LARGE_STEPS);
    let fits = target.context.is_none_or(|context| context >= LARGE_STEP_ROWS);
    if target.soc.is_empty() && target.planner.is_none() && fits && !is_set {
        target.planner_options.push((LARGE_STEPS.to_owned(), LARGE_STEP_ROWS.to_string()));
    }
    target
}
