//! `--draft`: what expects the next tokens.

use std::path::Path;

use shardwright::{ErrorKind, Model, Speculation};

use super::{is_bundle, open, say_notices};
use crate::arguments::{BundledArguments, DraftArgument, ExecutionArguments, TargetArguments};
use crate::outcome::Failure;

/// What the command line says of drafts.
pub enum Drafts {
    /// Nothing, or `auto`: what the plan chose.
    Planned,
    Off,
    These(Box<Speculation>),
}

/// Opens the drafts for replies of `model`. A draft that is a checkpoint is planned for this
/// machine, and a bundle runs where it was compiled for.
pub fn drafts(
    asked: &[DraftArgument],
    model: &Model,
    target: &TargetArguments,
    execution: &ExecutionArguments,
    quiet: bool,
) -> Result<Drafts, Failure> {
    match asked {
        [] | [DraftArgument::Auto] => return Ok(Drafts::Planned),
        [DraftArgument::Off] => return Ok(Drafts::Off),
        _ => {}
    }
    let mut speculation = Speculation::new();
    for draft in asked {
        speculation = match draft {
            DraftArgument::Auto | DraftArgument::Off => {
                return Err(Failure::Arguments("--draft auto and --draft off stand alone".to_owned()));
            }
            DraftArgument::Lookup => speculation.lookup(),
            DraftArgument::Model(path) => {
                speculation.draft(Box::new(model_draft(path, model, target, execution, quiet)?))
            }
        };
    }
    Ok(Drafts::These(Box::new(speculation)))
}

fn model_draft(
    path: &Path,
    model: &Model,
    target: &TargetArguments,
    execution: &ExecutionArguments,
    quiet: bool,
) -> Result<shardwright::ModelDraft, Failure> {
    let context = match is_bundle(path, None)? {
        true => None,
        false => u32::try_from(model.chain().context()).ok(),
    };
    // A bundle keeps the towers that it has.
    let mut target = target.of_a_draft(context);
    target.towers.retain(|_| context.is_some());
    let small = open(&target, execution, path, &BundledArguments::default())?;
    say_notices(&small, quiet);
    if !small.chain().is_generative() {
        return Err(Failure::Refused {
            kind: ErrorKind::Unsupported,
            message: format!("{} embeds, and a draft generates", path.display()),
            help: "use a smaller model of the same family, or `--draft lookup`".to_owned(),
        });
    }
    Ok(small.draft_for(model)?)
}
