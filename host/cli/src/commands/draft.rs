//! `--draft`: drafts for the next tokens.

use std::path::Path;

use shardwright::tools::ModelTools;
use shardwright::{ChosenSpeculation, ErrorKind, Model, OpenOptions, Speculation};

use super::{is_bundle, open, say_notices_and_of_text};
use crate::arguments::{BundledArguments, DraftArgument, ExecutionArguments, TargetArguments};
use crate::outcome::Failure;
use crate::views;

/// Drafts according to the command line.
pub enum Drafts {
    /// The plan's choice, with `auto` or without the option.
    Planned,
    Off,
    These(Box<Speculation>),
}

/// Opens the drafts for replies of `model`. A checkpoint as a draft is planned for this machine. A
/// bundle runs on the target that it was compiled for.
pub fn drafts(
    asked: &[DraftArgument],
    model: &Model,
    target: &TargetArguments,
    execution: &ExecutionArguments,
    quiet: bool,
) -> Result<Drafts, Failure> {
    alone(asked)?;
    match asked {
        [] | [DraftArgument::Auto] => {
            if !quiet {
                say_missing(model);
            }
            return Ok(Drafts::Planned);
        }
        [DraftArgument::Off] => return Ok(Drafts::Off),
        _ => {}
    }
    let mut speculation = Speculation::new();
    for draft in asked {
        speculation = match draft {
            DraftArgument::Auto | DraftArgument::Off => speculation,
            DraftArgument::Lookup => speculation.lookup(),
            DraftArgument::Model(path) => {
                speculation.draft(Box::new(model_draft(path, model, target, execution, quiet)?))
            }
        };
    }
    Ok(Drafts::These(Box::new(speculation)))
}

/// Rejects `auto` and `off` in combination with other drafts.
fn alone(asked: &[DraftArgument]) -> Result<(), Failure> {
    let stands_alone = |draft: &DraftArgument| matches!(draft, DraftArgument::Auto | DraftArgument::Off);
    match asked.len() > 1 && asked.iter().any(stands_alone) {
        true => {
            let what = "--draft auto and --draft off cannot be combined with other drafts";
            Err(Failure::Arguments(what.to_owned()))
        }
        false => Ok(()),
    }
}

/// Reports that the plan relies on a smaller model, which has to be named with `--draft`.
fn say_missing(model: &Model) {
    let Some(ChosenSpeculation { draft, .. }) = model.speculation() else { return };
    if draft != ChosenSpeculation::LOOKUP {
        views::say(&format!(
            "note: the plan uses `{draft}` as a draft, and `--draft` does not give its path: lookup \
             replaces it"
        ));
    }
}

/// Returns the paths of the smaller models among the drafts.
pub fn models(asked: &[DraftArgument]) -> impl Iterator<Item = &Path> {
    asked.iter().filter_map(|draft| match draft {
        DraftArgument::Model(path) => Some(path.as_path()),
        _ => None,
    })
}

/// Sets the drafts of a plan: smaller models in addition to lookup, or no drafts for `off`.
pub fn planned(asked: &[DraftArgument], mut options: OpenOptions) -> Result<OpenOptions, Failure> {
    alone(asked)?;
    if asked == [DraftArgument::Off] {
        options = options.drafts([]);
    }
    Ok(stating(asked, options))
}

/// Adds only the smaller models to the drafts of a plan.
pub fn stating(asked: &[DraftArgument], options: OpenOptions) -> OpenOptions {
    models(asked).fold(options, |options, path| options.draft_model(path))
}

fn model_draft(
    path: &Path,
    model: &Model,
    target: &TargetArguments,
    execution: &ExecutionArguments,
    quiet: bool,
) -> Result<shardwright::ModelDraft, Failure> {
    let small = small_model(path, model, target, execution, quiet)?;
    Ok(small.draft_for(model)?)
}

/// Opens a draft for replies of `model`.
pub fn small_model(
    path: &Path,
    model: &Model,
    target: &TargetArguments,
    execution: &ExecutionArguments,
    quiet: bool,
) -> Result<Model, Failure> {
    let context = match is_bundle(path, None)? {
        true => None,
        false => u32::try_from(model.chain().context()).ok(),
    };
    // A bundle keeps its towers.
    let mut target = target.of_a_draft(context);
    target.towers.retain(|_| context.is_some());
    let small = open(&target, execution, path, &BundledArguments::default(), &[])?;
    say_notices_and_of_text(&small, quiet)?;
    if !small.chain().is_generative() {
        return Err(Failure::Refused {
            kind: ErrorKind::Unsupported,
            message: format!("{} computes embeddings and cannot be a draft", path.display()),
            help: "use a smaller model of the same family, or `--draft lookup`".to_owned(),
        });
    }
    Ok(small)
}
