//! Which towers a checkpoint has, and how large their entry points are.

use std::path::Path;

use shardwright_build::{
    PlanOptions, RecordedOptions, TableFormats, TowerOptions, WeightRounding, placed_pass,
};
use shardwright_models::passes_of;
use shardwright_preprocessing::ProcessorSettings;
use shardwright_vocabulary::{Error, ErrorKind, Notice, Pass, Result};

/// A tower to plan, with the settings of its front end and the sizes of its inputs.
#[derive(Clone, Debug)]
pub struct TowerScope {
    pub pass: Pass,
    /// How pictures and sounds are converted to the tower's input.
    pub processor: ProcessorSettings,
    /// Rows of the entry points in ascending order: patches of pictures, or soft tokens of clips.
    rows: Vec<u32>,
}

impl TowerScope {
    /// Creates the scope of a pass with an entry point for each of `sizes`: the largest number of
    /// soft tokens of a picture, or of seconds of a clip. If `sizes` is empty, uses pictures of the
    /// processor's own size, or the longest clip.
    ///
    /// # Errors
    ///
    /// Fails with [`ErrorKind::Unsupported`] if the processor does not support the pass, and with
    /// [`ErrorKind::Argument`] if a size is 0 or beyond the longest clip.
    pub fn new(pass: Pass, processor: &ProcessorSettings, sizes: &[u32]) -> Result<Self> {
        let lacking = || {
            let what = format!("the checkpoint's processor has no settings for a {pass}");
            Error::new(ErrorKind::Unsupported, what).with_help(
                "processor_config.json has `image_processor` for pictures and `feature_extractor` for sounds",
            )
        };
        let argument = |what: String, help: &str| Error::new(ErrorKind::Argument, what).with_help(help);
        if sizes.contains(&0) {
            return Err(argument(
                format!("expected a size of at least 1 for a {pass}, got 0"),
                "name sizes of at least 1",
            ));
        }
        let mut rows = Vec::new();
        match pass {
            Pass::Picture => {
                let picture = processor.picture.as_ref().ok_or_else(lacking)?;
                let usual = [picture.soft_tokens];
                let budgets = if sizes.is_empty() { &usual[..] } else { sizes };
                // Budgets that the processor does not support are rejected.
                budgets.iter().try_for_each(|budget| picture.grid(1, 1, *budget).map(drop))?;
                rows.extend(budgets.iter().map(|budget| picture.patches(*budget)));
            }
            _ => {
                let sound = processor.sound.as_ref().ok_or_else(lacking)?;
                let longest = sound.longest_seconds();
                if let Some(seconds) = sizes.iter().find(|seconds| f64::from(**seconds) > longest) {
                    let help = format!("the checkpoint's processor supports at most {longest:.0} seconds");
                    let what = format!("unsupported entry point for clips of {seconds} seconds");
                    return Err(argument(what, &help));
                }
                let frames = |seconds: &u32| sound.frames(*seconds as usize * sound.rate as usize);
                match sizes {
                    [] => rows.push(sound.soft_tokens(sound.frames_max())),
                    sizes => rows.extend(sizes.iter().map(|seconds| sound.soft_tokens(frames(seconds)))),
                }
            }
        }
        let mut rows: Vec<u32> =
            rows.into_iter().map(|rows| u32::try_from(rows).unwrap_or(u32::MAX)).collect();
        rows.sort_unstable();
        rows.dedup();
        Ok(TowerScope { pass, processor: processor.clone(), rows })
    }

    /// Returns the options of this tower for a text that is planned with `options`: the same chip
    /// and executor, the same limits and flags, but its own formats. The goals apply only to the
    /// text and are left out. So are a planner of the user and its settings, except for settings
    /// that place components of the tower or exclude hedges.
    pub fn options(&self, options: &PlanOptions) -> PlanOptions {
        PlanOptions {
            recorded: RecordedOptions {
                context: self.rows.last().copied(),
                tables: TableFormats::default(),
                planner_options: placements(options, self.pass),
                rounding: WeightRounding::Nearest,
                ..options.recorded.clone()
            },
            encode_rows: self.rows.clone(),
            unhedged: options.excludes_hedges(),
            formats: options.recorded.towers.formats.clone(),
            planner: None,
            calibration_text: None,
            quality_micronats: None,
            prefers: None,
            memory_bytes: None,
            size_bytes: None,
            token_microseconds: None,
            first_token_microseconds: None,
            prompts: Vec::new(),
            answer_tokens: None,
            taps: false,
            alter: None,
            ..options.clone()
        }
    }
}

/// Returns the settings that place components of a pass.
fn placements(options: &PlanOptions, pass: Pass) -> Vec<(String, String)> {
    let settings = options.recorded.planner_options.iter();
    settings.filter(|(name, _)| placed_pass(name) == Some(pass)).cloned().collect()
}

/// Rejects settings of towers that the checkpoint does not have, because they have no effect.
///
/// # Errors
///
/// Fails with [`ErrorKind::Argument`] for such a setting, and with errors of reading `config.json`.
pub fn expect_towers(directory: &Path, towers: &TowerOptions) -> Result<()> {
    let TowerOptions { passes: _, formats, picture_tokens, clip_seconds } = towers;
    if formats.is_empty() && picture_tokens.is_empty() && clip_seconds.is_empty() {
        return Ok(());
    }
    let there = passes_of(directory)?;
    let lacks = |pass: Pass| !there.contains(&pass);
    let of = |pass: Pass| format!("tower of a {pass}");
    let settings = [
        (
            "--tower-formats",
            formats.is_empty(),
            lacks(Pass::Picture) && lacks(Pass::Clip),
            "tower".to_owned(),
        ),
        ("--picture-sizes", picture_tokens.is_empty(), lacks(Pass::Picture), of(Pass::Picture)),
        ("--clip-lengths", clip_seconds.is_empty(), lacks(Pass::Clip), of(Pass::Clip)),
    ];
    match settings.into_iter().find(|(_, is_unset, has_no_effect, _)| !is_unset && *has_no_effect) {
        Some((name, .., tower)) => {
            let what =
                format!("{}: the model has no {tower}, so `{name}` has no effect", directory.display());
            Err(Error::new(ErrorKind::Argument, what).with_help(format!("drop `{name}`")))
        }
        None => Ok(()),
    }
}

/// Returns the towers of a checkpoint that `options` request, and a notice if towers are left out.
///
/// # Errors
///
/// Fails with [`ErrorKind::Unsupported`] if a tower requested by name does not exist, like
/// [`expect_towers`], and with errors of reading `config.json` and the processor's settings.
pub fn towers_of(directory: &Path, options: &PlanOptions) -> Result<(Vec<TowerScope>, Option<Notice>)> {
    let towers = &options.recorded.towers;
    let asked = towers.passes.as_deref();
    if asked == Some(&[]) {
        return Ok((Vec::new(), None));
    }
    expect_towers(directory, towers)?;
    let there: Vec<Pass> = passes_of(directory)?.into_iter().filter(|pass| *pass != Pass::Step).collect();
    let lacking = asked.and_then(|asked| asked.iter().find(|pass| !there.contains(pass)));
    if let Some(pass) = lacking {
        let what = format!("{}: config.json does not describe a tower of a {pass}", directory.display());
        return Err(Error::new(ErrorKind::Unsupported, what).with_help("drop the tower"));
    }
    if there.is_empty() {
        return Ok((Vec::new(), None));
    }
    let processor = match ProcessorSettings::read(directory)? {
        Some(processor) => processor,
        None if asked.is_none() => {
            // The notice has no path, because notices go into a bundle, which must be equal
            // wherever it is made.
            let what = "towers for pictures and sounds are left out: processor_config.json, which describes \
                        their inputs, is missing";
            return Ok((Vec::new(), Some(Notice::note(what))));
        }
        None => {
            return Err(Error::missing("no such file")
                .at(directory.join("processor_config.json").display())
                .with_help("check that the file exists and can be read"));
        }
    };
    let is_asked = |pass: &Pass| asked.is_none_or(|asked| asked.contains(pass));
    let scopes = there.into_iter().filter(is_asked).map(|pass| {
        let sizes = match pass {
            Pass::Picture => &towers.picture_tokens,
            _ => &towers.clip_seconds,
        };
        TowerScope::new(pass, &processor, sizes)
    });
    Ok((scopes.collect::<Result<_>>()?, None))
}
