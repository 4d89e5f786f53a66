//! Where a model's constants come from.

use shardwright_graph::{Asset, Graph, Ranges};
use shardwright_planning::check::CheckedPlan;
use shardwright_planning::request::Sensitivity;
use shardwright_shims::Watch;
use shardwright_vocabulary::{FormatTuple, Notice};

use crate::{ModelFormats, ModelName, Result};

/// A model that plans are made for and carried out on. A checkpoint is one (`CheckpointSource`);
/// a device brings one that needs neither a checkpoint nor a quantiser.
pub trait ModelSource {
    /// What the model is called.
    fn name(&self) -> ModelName;

    /// The model, its constants as they are stored.
    fn graph(&self) -> &Graph;

    /// What every layer and role loses in each of the weight formats of `tuples`, for a planner
    /// that has a quality to keep.
    fn sensitivities(&mut self, tuples: &[FormatTuple], watch: &mut dyn Watch) -> Result<Vec<Sensitivity>>;

    /// The model as the shards of `plan` need it: constants in their formats, ranges where their
    /// integers need them. What was made for an earlier plan is not made again.
    fn made(
        &mut self,
        counted: &ModelFormats,
        plan: &CheckedPlan,
        watch: &mut dyn Watch,
    ) -> Result<ModelFormats>;

    /// The gathered tables in the formats asked for.
    fn tables(&mut self, watch: &mut dyn Watch) -> Result<Vec<Asset>>;

    /// What calibration found, if anything needed it.
    fn ranges(&self) -> Option<&Ranges>;

    /// What must be said of what was made since the last call.
    fn take_notices(&mut self) -> Vec<Notice>;
}
