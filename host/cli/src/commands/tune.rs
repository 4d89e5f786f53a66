//! Plans, timed where they run.

use std::time::Duration;

use super::{is_bundle, loudness, nothing_decided_before, open_options, print};
use crate::arguments::{Format, TuneArguments};
use crate::outcome::{Failure, Outcome};
use crate::views;

const SECONDS_OF_A_MINUTE: f64 = 60.0;

/// Times plans for as long as there is time, and shows what came of it.
pub fn tune(arguments: &TuneArguments, format: Format, detail: views::Detail) -> Result<Outcome, Failure> {
    let open = open_options(&arguments.target, &arguments.execution)?;
    let time = arguments.minutes.map(|minutes| Duration::from_secs_f64(minutes * SECONDS_OF_A_MINUTE));
    let mut watch = views::Progress::new("tuning", &arguments.checkpoint);
    let (path, compiled_from) = (&arguments.checkpoint, arguments.compiled_from.as_deref());
    let (report, notices) = match is_bundle(path, compiled_from)? {
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
    print(format, &report, |report| views::tune(report, detail))
}
