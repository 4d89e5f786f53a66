//! Checks whether a path is a checkpoint, and suggests a remedy if it is not.

use std::path::Path;

use shardwright_build::{PRIMARY_CHAIN, PlanOptions, PlanReport, PlanSource, Planned, plan};
use shardwright_bundle::is_bundle;
use shardwright_gguf::is_gguf;
use shardwright_models::{Checkpoint, Opened};
use shardwright_vocabulary::{Error, ErrorKind, Notice, Part, Pass, Result, Watch};

use super::tower::{TowerScope, TowerSource, towers_of};
use crate::{CheckpointSource, OutlineSource};

/// Progress after the text is planned and before towers are, in thousandths.
const TEXT_PLANNED: u32 = 500;

/// Progress after first chains are planned and before their fallback chains are, in thousandths.
const FIRST_PLANNED: u32 = 700;

/// Opens a checkpoint.
///
/// # Errors
/// Fails like [`expect_checkpoint`], and with errors of reading the checkpoint.
pub fn open_checkpoint(path: &Path) -> Result<Checkpoint> {
    expect_checkpoint(path)?;
    Checkpoint::open(path)
}

/// Opens a checkpoint for these passes, with the adapters of `options` merged into its weights.
///
/// # Errors
/// Fails like [`open_checkpoint`], with errors of the adapters, and if the checkpoint has no tower
/// for a pass.
pub fn open_adapted(path: &Path, passes: &[Pass], options: &PlanOptions) -> Result<Checkpoint> {
    expect_checkpoint(path)?;
    Checkpoint::open_adapted(path, passes, &options.lora)
}

/// Plans for a checkpoint without compiling: its text, and each tower that the options request.
/// Without its weights, headers or `config.json` are enough, and the report contains a notice about
/// that.
///
/// # Errors
/// Fails like [`open_checkpoint`], except for missing weights, and with errors of planning.
pub fn plan_checkpoint(path: &Path, options: &PlanOptions, watch: &mut dyn Watch) -> Result<Planned> {
    let mut checkpoint = Whole::open(path, options)?;
    let share = if checkpoint.scopes.is_empty() { 1000 } else { TEXT_PLANNED };
    let mut watch = Part::new(watch, 0..1000);
    let mut planned = checkpoint.text(options, &mut watch.then(share))?;
    planned.report.notices.extend(checkpoint.left_out.take());
    for scope in &checkpoint.scopes {
        let tower = checkpoint.tower(scope, &scope.options(options), &mut watch.most_of_the_rest())?;
        planned.report.towers.push(tower.report.clone());
        planned.towers.push(tower);
    }
    Ok(planned)
}

/// The plan of one of the chains of a model.
#[derive(Debug)]
pub struct ChainPlan {
    /// The name of the chain in a bundle.
    pub name: String,
    /// The plan, or the reason why it could not be made. A bundle does not need every fallback
    /// chain.
    pub made: Result<PlanReport>,
}

/// Plans for a checkpoint like [`plan_checkpoint`], and also returns the plans of all chains in the
/// order of a bundle: for the text and for each tower, the first chain and its fallback chains.
///
/// # Errors
/// Fails like [`plan_checkpoint`], and if it is cancelled.
pub fn plan_all_chains(
    path: &Path,
    options: &PlanOptions,
    watch: &mut dyn Watch,
) -> Result<(Planned, Vec<ChainPlan>)> {
    let mut watch = Part::new(watch, 0..1000);
    let planned = plan_checkpoint(path, options, &mut watch.then(FIRST_PLANNED))?;
    let checkpoint = Whole::open(path, options)?;
    let mut chains = Vec::new();
    let mut take = |name: String, made: Result<PlanReport>| match made {
        Err(error) if error.kind() == ErrorKind::Cancelled => Err(error),
        made => {
            chains.push(ChainPlan { name, made });
            Ok(())
        }
    };
    take(PRIMARY_CHAIN.to_owned(), Ok(planned.report.clone()))?;
    for chain in &planned.fallbacks {
        let made = checkpoint.text(&chain.options, &mut watch.most_of_the_rest());
        take(chain.name.clone(), made.map(|planned| planned.report))?;
    }
    for (scope, tower) in checkpoint.scopes.iter().zip(&planned.towers) {
        take(scope.pass.name().to_owned(), Ok(tower.report.clone()))?;
        for chain in &tower.fallbacks {
            let made = checkpoint.tower(scope, &chain.options, &mut watch.most_of_the_rest());
            take(chain.name.clone(), made.map(|planned| planned.report))?;
        }
    }
    Ok((planned, chains))
}

/// A checkpoint with the towers that are planned in addition to its text.
struct Whole {
    opened: Opened,
    scopes: Vec<TowerScope>,
    left_out: Option<Notice>,
}

impl Whole {
    fn open(path: &Path, options: &PlanOptions) -> Result<Whole> {
        expect_checkpoint(path)?;
        let (scopes, left_out) = towers_of(path, options)?;
        let opened = Opened::open_adapted(path, &passes_with(&scopes), &options.lora)?;
        Ok(Whole { opened, scopes, left_out })
    }

    fn text(&self, options: &PlanOptions, watch: &mut dyn Watch) -> Result<Planned> {
        let mut source: Box<dyn PlanSource + '_> = match &self.opened {
            Opened::Whole(checkpoint) => Box::new(CheckpointSource::new(checkpoint, options)),
            Opened::Outline(outline) => Box::new(OutlineSource::new(outline, options)),
        };
        plan(&mut *source, options, watch)
    }

    fn tower(&self, scope: &TowerScope, options: &PlanOptions, watch: &mut dyn Watch) -> Result<Planned> {
        let mut source = match &self.opened {
            Opened::Whole(checkpoint) => TowerSource::new(checkpoint, scope, options)?,
            Opened::Outline(outline) => TowerSource::of_outline(outline, scope, options)?,
        };
        plan(&mut source, options, watch)
    }
}

/// Returns the passes of a step and of towers.
pub(crate) fn passes_with(scopes: &[TowerScope]) -> Vec<Pass> {
    std::iter::once(Pass::Step).chain(scopes.iter().map(|scope| scope.pass)).collect()
}

/// Rejects a path that is not a checkpoint, and reports what it is instead.
pub fn expect_checkpoint(path: &Path) -> Result<()> {
    let shown = path.display();
    let refused = |kind, what: String, help: &str| Err(Error::new(kind, what).with_help(help));
    if is_bundle(path) {
        return refused(
            ErrorKind::Argument,
            format!("{shown} is a bundle, not a checkpoint"),
            "`run`, `bench` and `embed` accept a bundle; `verify CHECKPOINT --bundle BUNDLE` verifies it, and \
             `inspect` shows it",
        );
    }
    if path.is_dir() {
        return Ok(());
    }
    let Ok(metadata) = path.metadata() else {
        let help = match of_the_hub(path) {
            Some(name) => format!(
                "for a model of Hugging Face's hub: `hf download {name} --local-dir DIR`, then name that directory"
            ),
            None => "name a GGUF file, or a directory with config.json, *.safetensors and tokenizer.json"
                .to_owned(),
        };
        return refused(ErrorKind::Missing, format!("{shown}: no such file or directory"), &help);
    };
    if metadata.is_file() && is_gguf(path) {
        return Ok(());
    }
    refused(
        ErrorKind::Invalid,
        format!("{shown} is a file, not a checkpoint"),
        "name a GGUF file, or the directory with config.json, *.safetensors and tokenizer.json",
    )
}

/// Returns the path as a model name on the hub, `organisation/model`, if it looks like one.
fn of_the_hub(path: &Path) -> Option<&str> {
    let name = path.to_str()?;
    let (organisation, model) = name.split_once('/')?;
    let plain = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '~'])
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    // If a folder with the organisation's name exists, the user meant a path.
    (plain(organisation) && plain(model) && !Path::new(organisation).exists()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_path_that_is_no_checkpoint_has_its_own_error() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).expect("written");
            path
        };
        for (path, kind, what, help) in [
            (at("model.gguf", b"GG"), ErrorKind::Invalid, "is a file", "directory"),
            (folder.path().join("nothing"), ErrorKind::Missing, "no such file or directory", "config.json"),
            ("nobody-here/gemma-3-270m-it".into(), ErrorKind::Missing, "no such file", "hf download"),
        ] {
            let error = expect_checkpoint(&path).expect_err(what);
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(what), "{error}");
            assert!(error.help().is_some_and(|said| said.contains(help)), "{error:?}");
        }
        assert!(expect_checkpoint(folder.path()).is_ok());
        assert!(expect_checkpoint(&at("model.bin", b"GGUF\x03\0\0\0")).is_ok());
    }

    #[test]
    fn names_on_the_hub_are_distinguished_from_paths() {
        assert_eq!(of_the_hub(Path::new("google/gemma-4-E2B-it")), Some("google/gemma-4-E2B-it"));
        for path in ["model", "./a/b", "/a/b", "a/b/c", "a b/c", "~/model", "src/model", "../model"] {
            assert_eq!(of_the_hub(Path::new(path)), None, "{path}");
        }
    }
}
