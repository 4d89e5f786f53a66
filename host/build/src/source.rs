//! Sources of models and their constants.

use shardwright_graph::{Asset, Graph, Ranges};
use shardwright_planning::check::CheckedPlan;
use shardwright_planning::request::{Sensitivity, ValueSensitivity};
use shardwright_report::{Download, Making, MeasuredLoss};
use shardwright_vocabulary::{FormatTuple, Ignored, Notice, Watch};

use crate::{ModelFormats, ModelName, Result, StatedDraft, TableFormats, TableLoss};

/// A model that plans are made for, with or without its constants. Examples are a checkpoint
/// without its weights and every [`ModelSource`].
pub trait PlanSource {
    /// Returns the name of the model.
    fn name(&self) -> ModelName;

    /// Returns the model with its constants as stored, or without their bytes.
    fn graph(&self) -> &Graph;

    /// Returns the download of the model, or `None` if it cannot be downloaded.
    fn download(&self) -> Option<Download> {
        None
    }

    /// Returns where constants in other formats are stored before they are compiled.
    fn making(&self) -> Making {
        Making::InMemory
    }

    /// Returns whether gathered tables can be converted to other formats than the stored one.
    fn remakes_tables(&self) -> bool {
        false
    }

    /// Returns the quality loss of every layer and role in each of the formats of `tuples`, and of
    /// every gathered table in each of its possible formats.
    fn losses(&mut self, tuples: &[FormatTuple], ground: LossGround, watch: &mut dyn Watch)
    -> Result<Losses>;

    /// Measures how often prompt lookup is right in conversations like the application's, one per
    /// line, with turns separated by tabs. Returns `None` if the model's tokenizer is not
    /// available.
    ///
    /// # Errors
    ///
    /// Fails if the model's text files cannot be read, if the text contains no reply, or if it was
    /// interrupted.
    fn accepted(&self, conversations: &str, watch: &dyn Watch) -> Result<Option<AcceptedSteps>>;

    /// Returns estimates of the smaller models that the options name as drafts, for a plan for the
    /// chip of that profile in this context, and notices about them.
    ///
    /// # Errors
    ///
    /// Fails if a draft cannot be opened or planned.
    fn draft_models(&self, soc: &str, context: u32) -> Result<(Vec<StatedDraft>, Vec<Notice>)>;

    /// Measures the loss of the whole plan compared with the model as stored. Returns `None` if the
    /// options do not request it, if the plan is lossless, or if the weights are not available.
    /// `counted` is the model in the formats of the request.
    ///
    /// # Errors
    ///
    /// Fails if it was interrupted. Other failures are errors only if the options require the
    /// measurement.
    fn measured(
        &mut self,
        counted: &ModelFormats,
        plan: &CheckedPlan,
        watch: &mut dyn Watch,
    ) -> Result<Option<MeasuredLoss>>;

    /// Returns fields of the model's settings that may matter but are not used.
    fn ignored(&self) -> &[Ignored] {
        &[]
    }

    /// Returns the notices about work done since the last call.
    fn take_notices(&mut self) -> Vec<Notice>;
}

/// A model that plans are also compiled from. A checkpoint is one. A device supplies one that needs
/// neither a checkpoint nor a quantiser.
pub trait ModelSource: PlanSource {
    /// Returns the model as the shards of `plan` need it: constants in their formats, and ranges if
    /// their integers need them. Constants made for an earlier plan are reused.
    fn made(
        &mut self,
        counted: &ModelFormats,
        plan: &CheckedPlan,
        watch: &mut dyn Watch,
    ) -> Result<ModelFormats>;

    /// Returns the gathered tables in these formats.
    fn tables(&mut self, formats: TableFormats, watch: &mut dyn Watch) -> Result<Vec<Asset>>;

    /// Returns the calibrated ranges, if they were needed.
    fn ranges(&self) -> Option<&Ranges>;
}

/// How often the proposals of a draft are right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptedSteps {
    /// Number of steps without a proposal.
    pub silent: u32,
    /// Numbers of the other steps, by how many tokens are right before the first wrong one: 0, 1,
    /// 2, …
    pub accepted: Vec<u32>,
}

/// The quality losses of formats.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Losses {
    /// Losses of layers and roles.
    pub layers: Vec<Sensitivity>,
    /// Losses of activations, states and attention.
    pub values: Vec<ValueSensitivity>,
    pub tables: Vec<TableLoss>,
    /// Calibrated ranges of boundary tensors, if losses are measured and integers need ranges.
    /// Empty otherwise.
    pub ranges: Ranges,
}

/// The basis of losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossGround {
    /// The errors of a sample of the weights, or a model of them if the weights are not available.
    /// If the user measured the checkpoint explicitly, like [`LossGround::Kept`].
    Expected,
    /// Cached measurements, and expected losses for the rest.
    Kept,
    /// Measurements. The model is run where none is cached. Without weights, like
    /// [`LossGround::Expected`].
    Measured,
}
