//! Checkpoints as a source of models to plan and compile.

mod drafts;
mod losses;
mod making;
mod measuring;
mod moments;
mod outline;
mod path;
mod texts;
mod tower;

pub use drafts::{DRAFTS, DraftIdentity, DraftRecords, MeasuredDraft};
pub use losses::{
    FormatShare, LossRow, SensitivityReport, StoredAnswers, measure_sensitivities, sensitivity_text,
    unseen_text,
};
pub use making::CheckpointSource;
pub use measuring::calibration_text;
pub use moments::{checkpoint_moments, moment_text};
pub use outline::OutlineSource;
pub(crate) use path::passes_with;
pub use path::{
    ChainPlan, PRIMARY_CHAIN, expect_checkpoint, open_checkpoint, plan_all_chains, plan_checkpoint,
};
pub use texts::{calibration_prompts, messages_of, turns_of};
pub use tower::{SampleSet, TowerScope, TowerSource, expect_towers, tower_samples, tower_weights, towers_of};
