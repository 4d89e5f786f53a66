//! Where a model's constants come from.

use shardwright_graph::{Asset, Graph, Ranges};
use shardwright_planning::check::CheckedPlan;
use shardwright_planning::request::{Sensitivity, ValueSensitivity};
use shardwright_shims::Watch;
use shardwright_vocabulary::{FormatTuple, Ignored, Notice};

use crate::report::{Download, MeasuredLoss};
use crate::{ModelFormats, ModelName, Result, StatedDraft, TableFormats, TableLoss};

/// A model that plans are made for, whether or not its constants are here: a checkpoint's outline
/// (`OutlineSource`) is one, and so is every [`ModelSource`].
pub trait PlanSource {
    /// Name of the model.
    fn name(&self) -> ModelName;

    /// The model with its constants as stored, or without their bytes.
    fn graph(&self) -> &Graph;

    /// What fetching the model takes; `None` if it comes from nowhere.
    fn download(&self) -> Option<Download> {
        None
    }

    /// Where constants in other formats are held.
    fn making(&self) -> Making {
        Making::InMemory
    }

    /// Whether gathered tables can be made in other formats than the one they are stored in.
    fn remakes_tables(&self) -> bool {
        false
    }

    /// The quality loss of every layer and role in each of the formats of `tuples`, and of every
    /// gathered table in the formats it may have.
    fn losses(&mut self, tuples: &[FormatTuple], ground: LossGround, watch: &mut dyn Watch)
    -> Result<Losses>;

    /// How often prompt lookup is right in conversations like the application's, one a line, turns
    /// separated by tabs; `None` of a model whose tokenizer is not here.
    ///
    /// # Errors
    ///
    /// Of its text files, and of a text without a reply.
    fn accepted(&self, conversations: &str) -> Result<Option<AcceptedSteps>>;

    /// What a plan for the chip of that profile, in this context, may expect of the smaller models
    /// that the options name as drafts, and what is to be said of them.
    ///
    /// # Errors
    ///
    /// Of opening and planning them.
    fn draft_models(&self, soc: &str, context: u32) -> Result<(Vec<StatedDraft>, Vec<Notice>)>;

    /// What the whole plan loses, run beside the model as stored; `None` where the options do not
    /// ask for it, or nothing is lost, or the weights are not here. `counted` is the model in the
    /// formats of the request.
    ///
    /// # Errors
    ///
    /// That an interrupt came; what else fails, where the options insist.
    fn measured(
        &mut self,
        counted: &ModelFormats,
        plan: &CheckedPlan,
        watch: &mut dyn Watch,
    ) -> Result<Option<MeasuredLoss>>;

    /// Fields of the model's settings that may matter and are not used.
    fn ignored(&self) -> &[Ignored] {
        &[]
    }

    /// Notices about work done since the last call.
    fn take_notices(&mut self) -> Vec<Notice>;
}

/// A model that plans are compiled from as well. A checkpoint is one (`CheckpointSource`); a device
/// supplies one that needs neither a checkpoint nor a quantiser.
pub trait ModelSource: PlanSource {
    /// The model as the shards of `plan` need it: constants in their formats, ranges where their
    /// integers need them. Reuses what was made for an earlier plan.
    fn made(
        &mut self,
        counted: &ModelFormats,
        plan: &CheckedPlan,
        watch: &mut dyn Watch,
    ) -> Result<ModelFormats>;

    /// The gathered tables in these formats.
    fn tables(&mut self, formats: TableFormats, watch: &mut dyn Watch) -> Result<Vec<Asset>>;

    /// The calibrated ranges, if anything needed them.
    fn ranges(&self) -> Option<&Ranges>;
}

/// How often what a draft proposes is right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptedSteps {
    /// Steps in which it proposes nothing.
    pub silent: u32,
    /// The others, by how many tokens are right before the first wrong one: 0, 1, 2, …
    pub accepted: Vec<u32>,
}

/// What formats lose.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Losses {
    /// Of layers and roles.
    pub layers: Vec<Sensitivity>,
    /// Of activations and states.
    pub values: Vec<ValueSensitivity>,
    /// Of gathered tables.
    pub tables: Vec<TableLoss>,
    /// What boundary tensors were calibrated to hold, where losses are measured and integers need
    /// it; else none.
    pub ranges: Ranges,
}

/// What losses are to rest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossGround {
    /// How far the weights are off: looks at a sample of them, or of none that are not here. Where
    /// the user has measured the checkpoint on purpose, as [`LossGround::Kept`].
    Expected,
    /// What was measured before and kept, and for the rest what is expected.
    Kept,
    /// A measurement, which runs the model where none is kept; without weights as
    /// [`LossGround::Expected`].
    Measured,
}

/// Where constants in other formats than stored are held until they are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Making {
    /// In memory, all at once.
    InMemory,
    /// In files that are mapped.
    InFiles,
}
