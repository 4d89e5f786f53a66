//! Plans, timed where they run.

use std::time::Duration;

use super::{loudness, open_options, print};
use crate::arguments::{Format, TuneArguments};
use crate::outcome::{Failure, Outcome};
use crate::views;

const SECONDS_OF_A_MINUTE: f64 = 60.0;

/// Times plans for as long as there is time, and shows what came of it.
pub fn tune(arguments: &TuneArguments, format: Format, detail: views::Detail) -> Result<Outcome, Failure> {
    let open = open_options(&arguments.target, &arguments.execution)?;
    let time = arguments.minutes.map(|minutes| Duration::from_secs_f64(minutes * SECONDS_OF_A_MINUTE));
    let mut watch = views::Progress::new("tuning", &arguments.checkpoint);
    let (report, notices) = shardwright_tune::tune(&arguments.checkpoint, &open, time, &mut watch)?;
    drop(watch);
    for notice in notices {
        views::say(&format!("{}: {}", loudness(notice.kind), notice.text));
    }
    print(format, &report, |report| views::tune(report, detail))
}
