//! Replaces ids of models on a hub by paths.

use std::path::{Path, PathBuf};

use shardwright::ErrorKind;
use shardwright_hub::{Cache, HubId};

use super::pull::offered;
use crate::arguments::{BundledArguments, Command, DraftArgument, Format};
use crate::outcome::Failure;

/// Replaces the ids of pulled models among a command's checkpoints by their paths. An existing path
/// always takes precedence over an id.
pub fn find(command: &mut Command, format: Format) -> Result<(), Failure> {
    checkpoints(command).into_iter().try_for_each(|path| find_one(path, format))
}

fn find_one(path: &mut PathBuf, format: Format) -> Result<(), Failure> {
    let id = path.to_str().and_then(|text| text.parse::<HubId>().ok());
    let Some(id) = id.filter(|_| path.symlink_metadata().is_err()) else { return Ok(()) };
    // Without a cache directory no model can have been pulled.
    let Ok(cache) = Cache::from_environment() else { return Ok(()) };
    *path = match cache.find(&id)? {
        Some(found) => found.path,
        None => offered(&id, path, format)?.ok_or_else(|| absent(&id, path, &cache))?,
    };
    Ok(())
}

fn absent(id: &HubId, path: &Path, cache: &Cache) -> Failure {
    Failure::Refused {
        kind: ErrorKind::Missing,
        message: format!(
            "{}: no such file or directory, and no such model in {}",
            path.display(),
            cache.folder().display()
        ),
        help: format!("check the path, or fetch the model: `shardwright pull {id}`"),
    }
}

/// Returns the arguments of a command that name a checkpoint.
fn checkpoints(command: &mut Command) -> Vec<&mut PathBuf> {
    fn drafts(drafts: &mut [DraftArgument]) -> impl Iterator<Item = &mut PathBuf> {
        drafts.iter_mut().filter_map(|draft| match draft {
            DraftArgument::Model(path) => Some(path),
            DraftArgument::Auto | DraftArgument::Off | DraftArgument::Lookup => None,
        })
    }
    fn bundled(bundled: &mut BundledArguments) -> Option<&mut PathBuf> {
        bundled.compiled_from.as_mut()
    }
    match command {
        Command::Run(run) | Command::Chat(run) => {
            let more = drafts(&mut run.drafts.drafts).chain(bundled(&mut run.bundled));
            std::iter::once(&mut run.checkpoint).chain(more).collect()
        }
        Command::Bench(bench) => {
            let more = drafts(&mut bench.drafts.drafts).chain(bundled(&mut bench.bundled));
            std::iter::once(&mut bench.checkpoint).chain(more).collect()
        }
        Command::Compile(compile) => {
            std::iter::once(&mut compile.checkpoint).chain(drafts(&mut compile.drafts.drafts)).collect()
        }
        Command::Plan(plan) => plan.checkpoint.iter_mut().chain(drafts(&mut plan.drafts.drafts)).collect(),
        Command::Tune(tune) => {
            let more = drafts(&mut tune.drafts.drafts).chain(&mut tune.compiled_from);
            std::iter::once(&mut tune.checkpoint).chain(more).collect()
        }
        Command::Perplexity(measured) => {
            let more = measured.against.iter_mut().chain(bundled(&mut measured.bundled));
            std::iter::once(&mut measured.checkpoint).chain(more).collect()
        }
        Command::CalibrationText(text) => {
            std::iter::once(&mut text.checkpoint).chain(bundled(&mut text.bundled)).collect()
        }
        Command::Embed(embed) => {
            std::iter::once(&mut embed.checkpoint).chain(bundled(&mut embed.bundled)).collect()
        }
        Command::Serve(serve) => serve.models.iter_mut().map(|model| &mut model.path).collect(),
        Command::Inspect { path, .. } => vec![path],
        Command::Sensitivity(sensitivity) => vec![&mut sensitivity.checkpoint],
        Command::Show(show) => vec![&mut show.checkpoint],
        Command::Verify(verify) => vec![&mut verify.checkpoint],
        // Commands for bundles or for files that are not checkpoints, and commands without such an
        // argument.
        Command::Pull(_)
        | Command::Pack(_)
        | Command::Needs(_)
        | Command::Explain(_)
        | Command::Doctor(_)
        | Command::Shim(_)
        | Command::Planner(_)
        | Command::Trust(_)
        | Command::Completions { .. } => Vec::new(),
    }
}
