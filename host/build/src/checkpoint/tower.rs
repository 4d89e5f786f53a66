//! The tower of a checkpoint as a source of a model to plan and compile.

use shardwright_graph::{Asset, Graph, Pass, Ranges};
use shardwright_models::Checkpoint;
use shardwright_planning::check::CheckedPlan;
use shardwright_quantisation::{Recipe, Unwatched, quantise};
use shardwright_shims::Watch;
use shardwright_vocabulary::{Error, ErrorKind, FormatTuple, Notice};

use crate::{
    FormatChoice, LossGround, Losses, ModelFormats, ModelName, ModelSource, PlanOptions, PlanSource, Result,
    TableFormats,
};

/// What a pass of a checkpoint computes beside the steps of text. Its constants are those of the
/// checkpoint, in the formats they are stored in.
pub struct TowerSource<'a> {
    graph: &'a Graph,
    name: ModelName,
}

impl<'a> TowerSource<'a> {
    /// The tower of a pass, which the checkpoint was opened for.
    ///
    /// # Errors
    ///
    /// That it was not.
    pub fn new(checkpoint: &'a Checkpoint, pass: Pass) -> Result<Self> {
        let graph = checkpoint.graph_of(pass).ok_or_else(|| {
            Error::new(
                ErrorKind::Internal,
                format!("the checkpoint was opened without its tower of a {pass}"),
            )
        })?;
        let name = ModelName { name: graph.name.clone(), family: checkpoint.facts().family.to_string() };
        Ok(TowerSource { graph, name })
    }
}

/// The options of a tower beside a model that is planned by `options`: on this machine's CPU, with
/// an entry point of so many rows, in formats of its own. Goals, limits and flags are the text's
/// and left out.
pub fn tower_options(options: &PlanOptions, rows: u32) -> PlanOptions {
    PlanOptions {
        context: Some(rows),
        formats: vec![options.tower_formats.clone().unwrap_or(FormatChoice::Stored)],
        tables: TableFormats::default(),
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
        ..options.without_a_chip()
    }
}

impl PlanSource for TowerSource<'_> {
    fn name(&self) -> ModelName {
        self.name.clone()
    }

    fn graph(&self) -> &Graph {
        self.graph
    }

    fn losses(&mut self, _: &[FormatTuple], _: LossGround, _: &mut dyn Watch) -> Result<Losses> {
        Ok(Losses::default())
    }

    fn take_notices(&mut self) -> Vec<Notice> {
        Vec::new()
    }
}

impl ModelSource for TowerSource<'_> {
    fn made(
        &mut self,
        counted: &ModelFormats,
        plan: &CheckedPlan,
        _: &mut dyn Watch,
    ) -> Result<ModelFormats> {
        if ModelFormats::needs_ranges(plan) {
            let what =
                format!("the tower of a {} needs calibrated ranges, and is not calibrated", self.graph.pass);
            return Err(Error::new(ErrorKind::Unsupported, what)
                .with_help("give towers activations in f32 or a8-dynamic"));
        }
        let make = |graph: &Graph, weights| {
            Ok(quantise(graph, &Recipe { weights, ..Recipe::default() }, &mut Unwatched)?)
        };
        Ok(counted.made(self.graph, plan, None, make)?)
    }

    fn tables(&mut self, _: TableFormats, _: &mut dyn Watch) -> Result<Vec<Asset>> {
        Ok(self.graph.assets.clone())
    }

    fn ranges(&self) -> Option<&Ranges> {
        None
    }
}
