//! Measures and stores the losses of formats.

use std::time::Duration;

use shardwright::{Lora, OpenOptions};

use super::{isolation_of, loudness, print, search_path};
use crate::arguments::{Format, PlannerPlaces, SensitivityArguments};
use crate::outcome::{Failure, Outcome};
use crate::views;

const SECONDS_OF_A_MINUTE: f64 = 60.0;

/// Measures for as long as time allows, and shows all known losses.
pub fn sensitivity(arguments: &SensitivityArguments, format: Format) -> Result<Outcome, Failure> {
    let search = search_path(&arguments.shims, &PlannerPlaces::default(), &arguments.profiles);
    let mut options = OpenOptions::new()
        .search_path(search)
        .strict(arguments.strict.strict)
        .isolation(isolation_of(arguments.isolation));
    if let Some(soc) = &arguments.soc {
        options = options.soc(soc);
    }
    for formats in &arguments.formats {
        options = options.formats(formats.clone());
    }
    if let Some(rounding) = arguments.rounding {
        options = options.rounding(rounding);
    }
    if let Some(text) = &arguments.text {
        options = options.calibration_text(text);
    }
    for Lora { folder, scale } in &arguments.lora.adapters {
        options = options.lora(folder, *scale);
    }
    if let Some(millinats) = arguments.quality {
        options = options.quality(millinats);
    }
    if let Some(threads) = arguments.threads {
        options = options.threads(threads);
    }
    let time = arguments.minutes.map(|minutes| Duration::from_secs_f64(minutes * SECONDS_OF_A_MINUTE));
    let mut watch = views::ProgressLine::new("measuring", &arguments.checkpoint);
    let (report, notices) = options.measure_sensitivities(&arguments.checkpoint, time, &mut watch)?;
    drop(watch);
    for notice in notices {
        views::say(&format!("{}: {}", loudness(notice.kind), notice.text));
    }
    print(format, &report, views::sensitivity)
}
