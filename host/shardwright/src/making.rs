//! What a plan is compiled from: constants in the formats it names, each made once, and calibrated ranges where integers need them.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use shardwright_build::graph::{Asset, ConstantFormat, Graph, Range, Ranges, Weight};
use shardwright_build::models::Checkpoint;
use shardwright_build::planning::check::CheckedPlan;
use shardwright_build::planning::request::Request;
use shardwright_build::quantisation::{Progress, Recipe, Store, TableFormats as Tables, Watch, quantise};
use shardwright_build::reference::{Arrangement, ReferenceModel};
use shardwright_build::shims::Watch as BuildWatch;
use shardwright_build::{BuildError, ModelFormats, Notice};
use shardwright_runtime::text::{Message, RenderOptions};

use crate::text_side::TextSide;
use crate::{Error, ErrorKind, OpenOptions, Result};

/// Made weights that are kept in memory at most; more go to a store in the cache directory, from which they are mapped.
const MEMORY_BYTES: u64 = 256 << 20;

/// Tokens of a calibration at most, and of one conversation of it: ranges settle long before.
const CALIBRATION_TOKENS: usize = 2048;
const CONVERSATION_TOKENS: usize = 128;

/// Bytes of a calibration text at most.
const CALIBRATION_TEXT_BYTES: u64 = 4 << 20;

/// One conversation a line, turns separated by tabs, user first.
const CALIBRATION_TEXT: &str = include_str!("calibration.txt");

/// Makes constants and ranges on demand, and keeps them for the next plan of a revision.
pub(crate) struct Making<'a> {
    checkpoint: &'a Checkpoint,
    graph: &'a Graph,
    options: &'a OpenOptions,
    /// Recipes carried out so far.
    made: Vec<(Recipe, Graph)>,
    ranges: Option<Ranges>,
    notices: Vec<Notice>,
}

impl<'a> Making<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint, graph: &'a Graph, options: &'a OpenOptions) -> Self {
        Making { checkpoint, graph, options, made: Vec::new(), ranges: None, notices: Vec::new() }
    }

    /// The model as the shards of `plan` need it.
    pub(crate) fn materials(
        &mut self,
        counted: &ModelFormats,
        request: &Request,
        plan: &CheckedPlan,
        watch: &mut dyn BuildWatch,
    ) -> Result<ModelFormats> {
        if counted.needs_ranges(plan) && self.ranges.is_none() {
            self.ranges = Some(self.calibrate(watch)?);
        }
        let (graph, ranges) = (self.graph, self.ranges.clone());
        let make = |from: &Graph, weights| {
            let recipe = Recipe { weights, tables: Tables::default(), ..Recipe::default() };
            self.make(from, recipe, watch)
        };
        Ok(counted.made(graph, request, plan, ranges, make)?)
    }

    /// The gathered tables in the formats asked for.
    pub(crate) fn tables(&mut self, watch: &mut dyn BuildWatch) -> Result<Vec<Asset>> {
        let tables =
            Tables { embedding: self.options.tables.embedding, per_layer: self.options.tables.per_layer };
        if tables == Tables::default() {
            return Ok(self.graph.assets.clone());
        }
        let weights = vec![ConstantFormat::Stored; self.graph.weights.len()];
        let recipe = Recipe { weights, tables, ..Recipe::default() };
        Ok(self.make(self.graph, recipe, watch)?.assets)
    }

    /// What calibration found, if anything needed it.
    pub(crate) fn ranges(&self) -> Option<&Ranges> {
        self.ranges.as_ref()
    }

    /// What must be said of it.
    pub(crate) fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    fn make(
        &mut self,
        graph: &Graph,
        recipe: Recipe,
        watch: &mut dyn BuildWatch,
    ) -> std::result::Result<Graph, BuildError> {
        if let Some((_, made)) = self.made.iter().find(|(held, _)| *held == recipe) {
            return Ok(made.clone());
        }
        let mut told = Told { watch };
        let tables: Vec<&Weight> = graph.assets.iter().map(|asset| &asset.table).collect();
        let stored: u64 = graph.weights.iter().chain(tables).map(Weight::bytes).sum();
        let store = self.options.cache_directory_path().map(|cache| cache.join("weights"));
        let made = match store.filter(|_| stored > MEMORY_BYTES) {
            Some(directory) => Store::open(directory)?.graph(graph, &recipe, &mut told)?,
            None => quantise(graph, &recipe, &mut told)?,
        };
        self.made.push((recipe, made.clone()));
        Ok(made)
    }

    /// Runs the float model over conversations and keeps the range of every tensor.
    fn calibrate(&mut self, watch: &mut dyn BuildWatch) -> Result<Ranges> {
        let started = Instant::now();
        let conversations = self.conversations()?;
        let tokens: usize = conversations.iter().map(Vec::len).sum();
        let context = conversations.iter().map(Vec::len).max().unwrap_or(1) as u64;
        let model = ReferenceModel::new(self.graph, Arrangement::whole(context)).map_err(told)?;
        let mut ranges = Ranges::new();
        for (index, ids) in conversations.iter().enumerate() {
            if watch.cancelled() {
                return Err(Error::new(ErrorKind::Cancelled, "calibration was cancelled"));
            }
            watch.progress((index * 1000 / conversations.len()) as u32, "calibrating");
            model.observe(ids, &mut |key, values| widen(&mut ranges, key, values)).map_err(told)?;
        }
        self.notices.push(Notice::note(format!(
            "ranges of integers were calibrated on {tokens} tokens in {:.1} s",
            started.elapsed().as_secs_f64()
        )));
        Ok(ranges)
    }

    /// The calibration text as token ids, through the chat template where there is one, special tokens included.
    fn conversations(&self) -> Result<Vec<Vec<u32>>> {
        let text = match &self.options.calibration_text {
            Some(path) => read_text(path)?,
            None => CALIBRATION_TEXT.to_owned(),
        };
        let side = TextSide::load(self.checkpoint.directory())?;
        let mut conversations = Vec::new();
        let mut tokens = 0;
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let turns: Vec<String> = line.split('\t').map(|turn| turn.replace("\\n", "\n")).collect();
            let messages: Vec<Message> = turns
                .iter()
                .enumerate()
                .map(|(index, turn)| match index % 2 {
                    0 => Message::user(turn),
                    _ => Message::assistant(turn),
                })
                .collect();
            let mut ids = match side.has_template() {
                true => {
                    let options = RenderOptions { add_generation_prompt: false, ..RenderOptions::default() };
                    side.tokenizer()?.encode(&side.render(&messages, &options)?, false)?
                }
                false => side.tokenizer()?.encode(&turns.join("\n"), true)?,
            };
            ids.truncate(CONVERSATION_TOKENS.min(self.graph.context as usize));
            tokens += ids.len();
            if !ids.is_empty() {
                conversations.push(ids);
            }
            if tokens >= CALIBRATION_TOKENS {
                break;
            }
        }
        if conversations.is_empty() {
            return Err(Error::new(ErrorKind::Argument, "the calibration text is empty")
                .with_help("give a text of at least one line"));
        }
        Ok(conversations)
    }
}

fn widen(ranges: &mut Ranges, key: &str, values: &[f32]) {
    let mut seen: Option<Range> = None;
    for &value in values {
        let masked = Range::is_masked(value);
        let own = match (masked, value.is_finite()) {
            (false, true) => Range { low: value, high: value, masked: false },
            _ => continue,
        };
        seen = Some(seen.map_or(own, |range| range.union(own)));
    }
    let masked = values.iter().any(|&value| Range::is_masked(value));
    if let Some(mut range) = seen {
        range.masked = masked;
        match ranges.get_mut(key) {
            Some(held) => *held = held.union(range),
            None => {
                ranges.insert(key.to_owned(), range);
            }
        }
    }
}

fn told(error: shardwright_build::reference::ReferenceError) -> Error {
    let help = error.help().map(str::to_owned);
    Error::from_room(ErrorKind::Invalid, error, help)
}

fn read_text(path: &PathBuf) -> Result<String> {
    let fault = |kind, what: &dyn std::fmt::Display| Error::new(kind, format!("{}: {what}", path.display()));
    let length = std::fs::metadata(path).map_err(|error| fault(ErrorKind::Missing, &error))?.len();
    if length > CALIBRATION_TEXT_BYTES {
        let reason = format!("{length} bytes are more than the {CALIBRATION_TEXT_BYTES} a calibration reads");
        return Err(fault(ErrorKind::Argument, &reason));
    }
    std::fs::read_to_string(path).map_err(|error| fault(ErrorKind::Missing, &error))
}

/// Progress of making, told to whoever watches the build.
struct Told<'w> {
    watch: &'w mut dyn BuildWatch,
}

impl Watch for Told<'_> {
    fn progress(&mut self, progress: &Progress<'_>) -> ControlFlow<()> {
        let per_mille = (progress.done.saturating_mul(1000) / progress.total.max(1)) as u32;
        self.watch.progress(per_mille, "quantising");
        if self.watch.cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
