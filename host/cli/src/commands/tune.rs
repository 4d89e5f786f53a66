//! Times plans where they run.

use std::time::Duration;

use shardwright::OpenOptions;
use shardwright_checkpoints::MeasuredDraft;

use super::{draft, expecting, is_bundle, loudness, nothing_decided_before, open, open_options, print};
use crate::arguments::{BundledArguments, Format, TuneArguments};
use crate::outcome::{Failure, Outcome};
use crate::views;

const SECONDS_OF_A_MINUTE: f64 = 60.0;

/// Times plans for as long as time allows, and shows the result.
pub fn tune(arguments: &TuneArguments, format: Format, detail: views::Detail) -> Result<Outcome, Failure> {
    let open = open_options(&arguments.target, &arguments.execution)?;
    let open = draft::planned(&arguments.drafts.drafts, open)?;
    let open = expecting(open, &arguments.checkpoint, &arguments.expected)?;
    let time = arguments.minutes.map(|minutes| Duration::from_secs_f64(minutes * SECONDS_OF_A_MINUTE));
    let drafts = measured(arguments, &open)?;
    let mut watch = views::ProgressLine::new("tuning", &arguments.checkpoint);
    let (path, compiled_from) = (&arguments.checkpoint, arguments.compiled_from.as_deref());
    let (mut report, notices) = match is_bundle(path, compiled_from)? {
        true => {
            nothing_decided_before(path, &arguments.target, &arguments.execution)?;
            shardwright_tune::tune_bundle(path, compiled_from, &open, time, &mut watch)?
        }
        false => shardwright_tune::tune(path, &open, time, &mut watch)?,
    };
    drop(watch);
    for notice in notices {
        views::say(&format!("{}: {}", loudness(notice.kind), notice.text));
    }
    report.drafts = drafts;
    print(format, &report, |report| views::tune(report, detail))
}

/// Measures the named smaller models, before plans are made that rely on them.
fn measured(arguments: &TuneArguments, options: &OpenOptions) -> Result<Vec<MeasuredDraft>, Failure> {
    let TuneArguments { checkpoint: path, compiled_from, target, execution, .. } = arguments;
    let checkpoint = compiled_from.as_ref().unwrap_or(path);
    let mut measured = Vec::new();
    // Tuning rejects a bundle without its checkpoint.
    if is_bundle(path, compiled_from.as_deref())? && compiled_from.is_none() {
        return Ok(measured);
    }
    let mut model = None;
    for draft in draft::models(&arguments.drafts.drafts) {
        let model = match &mut model {
            Some(model) => &*model,
            none => {
                let bundled = BundledArguments {
                    compiled_from: compiled_from.clone(),
                    expected: arguments.expected.clone(),
                    ..Default::default()
                };
                none.insert(open(target, execution, path, &bundled, &[])?)
            }
        };
        let small = draft::small_model(draft, model, target, execution, true)?;
        let mut watch = views::ProgressLine::new("measuring", draft);
        let found =
            shardwright_tune::measure_draft((checkpoint, model), (draft, &small), options, &mut watch)?;
        measured.push(found);
    }
    Ok(measured)
}
