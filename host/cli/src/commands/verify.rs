use std::path::Path;

use shardwright::ErrorKind;
use shardwright_verify::{NotRun, VerifyOptions, VerifyReport};

use super::{decided_before, expecting, open_options, print};
use crate::arguments::{Format, LoraArguments, TargetArguments, VerifyArguments};
use crate::outcome::{Failure, Outcome};
use crate::views;

/// Compares outputs. A difference is a separate outcome.
pub fn verify(arguments: &VerifyArguments, format: Format) -> Result<Outcome, Failure> {
    let open = open_options(&arguments.target, &arguments.execution)?;
    let path = arguments.bundle.as_ref().unwrap_or(&arguments.checkpoint);
    let open = expecting(open, path, &arguments.expected)?;
    let mut options = verify_options(arguments)?;
    // Adapters belong to the checkpoint, with which the bundle is compared.
    let rest = TargetArguments { lora: LoraArguments::default(), ..arguments.target.clone() };
    if arguments.bundle.is_some() && decided_before(&rest, &arguments.execution).is_none() {
        options = options.as_recorded();
    }
    let goldens = goldens(arguments);
    let mut watch = views::ProgressLine::new("verifying", &arguments.checkpoint);
    let (passed, whole) = if arguments.self_test {
        let report =
            shardwright_verify::self_test(&arguments.checkpoint, goldens, &open, &options, &mut watch)?;
        drop(watch);
        print(format, &report, views::self_test)?;
        (report.passed, all_run(&report.intact, arguments.target.strict))
    } else if let (Some(bundle), Some(into), true) = (&arguments.bundle, &arguments.output, arguments.repair)
    {
        let (checkpoint, most) = (&arguments.checkpoint, arguments.compilations);
        let report =
            shardwright_verify::repair(checkpoint, goldens, bundle, into, &open, &options, most, &mut watch)?;
        drop(watch);
        print(format, &report, views::repair)?;
        if arguments.store {
            let identity = shardwright_verify::store_verification(into, &report.verification)?;
            views::say(&format!("stored in {}; its identity is now {identity}", into.display()));
        }
        (report.verification.passed, all_run(&report.verification, arguments.target.strict))
    } else if let Some(bundle) = &arguments.bundle {
        let checkpoint = &arguments.checkpoint;
        let report =
            shardwright_verify::verify_bundle(checkpoint, goldens, bundle, &open, &options, &mut watch)?;
        drop(watch);
        print(format, &report, views::verify)?;
        if arguments.store {
            let identity = shardwright_verify::store_verification(bundle, &report)?;
            views::say(&format!("stored in {}; its identity is now {identity}", bundle.display()));
        }
        (report.passed, all_run(&report, arguments.target.strict))
    } else {
        let report = shardwright_verify::verify(&arguments.checkpoint, goldens, &open, &options, &mut watch)?;
        drop(watch);
        print(format, &report, views::verify)?;
        (report.passed, all_run(&report, arguments.target.strict))
    };
    if !passed {
        return Ok(Outcome::Different);
    }
    whole?;
    Ok(Outcome::Done)
}

/// Returns the folder with recorded outputs. Outputs next to the checkpoint belong to the model
/// without adapters.
fn goldens(arguments: &VerifyArguments) -> Option<&Path> {
    let named = arguments.golden.as_deref();
    let beside = recorded_beside(&arguments.checkpoint).filter(|_| named.is_none());
    if beside.is_some() && !arguments.target.lora.adapters.is_empty() {
        views::say(
            "note: recorded outputs next to the checkpoint are not used, because they belong to the model \
             without adapters; pass recorded outputs with `--golden DIR`",
        );
        return None;
    }
    named.or(beside)
}

/// Returns the checkpoint's folder if it contains recorded outputs.
fn recorded_beside(checkpoint: &Path) -> Option<&Path> {
    let folder = if checkpoint.is_file() { checkpoint.parent() } else { Some(checkpoint) };
    folder.filter(|folder| folder.join("goldens.safetensors").exists())
}

/// Fails under `--strict` if an entry point was not run, because it is not verified.
fn all_run(report: &VerifyReport, strict: bool) -> Result<(), Failure> {
    let Some(NotRun { shard, entry, reason }) = report.not_run().next().filter(|_| strict) else {
        return Ok(());
    };
    Err(Failure::Refused {
        kind: ErrorKind::Strict,
        message: format!("{entry} of shard {shard} was not run: {reason}"),
        help: "drop `--strict` to allow skipped entry points, or raise `--rows` and `--steps`".to_owned(),
    })
}

fn verify_options(arguments: &VerifyArguments) -> Result<VerifyOptions, Failure> {
    let mut options = VerifyOptions::new();
    for (index, (name, bound)) in arguments.thresholds.iter().enumerate() {
        if arguments.thresholds[..index].iter().any(|(existing, _)| existing == name) {
            return Err(Failure::Arguments(format!("--threshold sets `{name}` twice")));
        }
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
    Ok(options)
}
