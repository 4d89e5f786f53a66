use shardwright::VerifyOptions;

use super::{open_options, print};
use crate::arguments::{Format, VerifyArguments};
use crate::outcome::{Failure, Outcome};
use crate::views;

/// Compares; a difference is an outcome of its own.
pub fn verify(arguments: &VerifyArguments, format: Format) -> Result<Outcome, Failure> {
    let open = open_options(&arguments.target, &arguments.execution);
    let options = verify_options(arguments);
    let goldens = arguments.golden.as_deref().unwrap_or(&arguments.checkpoint);
    let mut watch = views::Progress::new();
    let passed = if arguments.self_test {
        let report = shardwright::self_test(&arguments.checkpoint, goldens, &open, &options, &mut watch)?;
        drop(watch);
        print(format, &report, views::self_test)?;
        report.passed
    } else if let Some(bundle) = &arguments.bundle {
        let checkpoint = &arguments.checkpoint;
        let report = shardwright::verify_bundle(checkpoint, goldens, bundle, &open, &options, &mut watch)?;
        drop(watch);
        print(format, &report, views::verify)?;
        if arguments.store {
            let identity = shardwright::store_verification(bundle, &report)?;
            eprintln!("stored in {}, which is now {identity}", bundle.display());
        }
        report.passed
    } else {
        let report = shardwright::verify(&arguments.checkpoint, goldens, &open, &options, &mut watch)?;
        drop(watch);
        print(format, &report, views::verify)?;
        report.passed
    };
    Ok(if passed { Outcome::Done } else { Outcome::Different })
}

fn verify_options(arguments: &VerifyArguments) -> VerifyOptions {
    let mut options = VerifyOptions::new();
    for (name, bound) in &arguments.thresholds {
        options = options.threshold(name, *bound);
    }
    if arguments.all {
        options = options.all();
    }
    if let Some(rows) = arguments.rows {
        options = options.rows(rows);
    }
    if let Some(steps) = arguments.steps {
        options = options.steps(steps);
    }
    if let Some(tokens) = arguments.greedy {
        options = options.greedy(tokens);
    }
    if let Some(rows) = arguments.evaluation {
        options = options.evaluation(rows);
    }
    options
}
