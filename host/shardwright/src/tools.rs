//! Parts for tools that accompany this crate, such as the program `shardwright`. An app needs none
//! of them. They name types of internal crates and may change without notice.

#[cfg(feature = "build")]
use std::sync::Arc;

#[cfg(feature = "build")]
pub use shardwright_build::CompiledGraphs;
#[cfg(feature = "planning")]
pub use shardwright_build::LoadedPart;
pub use shardwright_bundle::Bundle;
#[cfg(feature = "planning")]
pub use shardwright_graph::Graph;
#[cfg(feature = "build")]
pub use shardwright_models::Checkpoint;
pub use shardwright_runtime::Chain;
pub use shardwright_shims::RegistryBuilder;
#[cfg(feature = "planning")]
pub use shardwright_vocabulary::Beforehand;

use crate::Model;
use crate::Notice;
pub use crate::ignored_fields::IgnoredFields;
#[cfg(feature = "planning")]
pub use crate::loading::{join, load};
use crate::model::Origin;
#[cfg(feature = "build")]
use crate::model::{BuiltOrigin, OpeningTimes};
pub use crate::run_options::registry_with_measured;
pub use crate::strays::{expect_no_strays, stray_notices};
#[cfg(feature = "build")]
use crate::text_side::{TextSide, TokenizerStart};
#[cfg(feature = "build")]
use crate::towers::Towers;
#[cfg(feature = "build")]
use crate::{OpenOptions, PlanOptions, PlanReport, Result};

/// Reads a saved session without a model, for a context of at most `context` positions and rows of
/// `width` values. Returns the number of its turns and tokens.
///
/// # Errors
///
/// The errors of [`Model::restore`] that do not depend on a model.
pub fn read_saved_session(bytes: &[u8], context: u64, width: u64) -> crate::Result<(usize, usize)> {
    crate::session::saved::inspect(bytes, bytes.len() as u64, context, width)
}

/// The parts of a model.
pub trait ModelTools: Sized {
    /// Creates a model from a chain that was loaded separately and the texts of `bundle`.
    #[cfg(feature = "build")]
    fn of_chain(chain: Chain, bundle: &Arc<Bundle>, plan: PlanReport, plan_id: String) -> Result<Self>;

    /// Returns the bundle that the model was opened from. `None` for a checkpoint.
    fn bundle(&self) -> Option<&Bundle>;

    /// Returns the chain of loaded shards.
    fn chain(&self) -> &Chain;

    /// Returns the graphs that each shard was compiled from, if the model was opened with
    /// [`OpenOptions::taps`]. Empty otherwise.
    #[cfg(feature = "build")]
    fn compiled(&self) -> &[CompiledGraphs];

    /// Returns the notices of planning, of opening, and of the towers that were opened so far.
    fn notices(&self) -> Vec<Notice>;

    /// Returns the fields of the model's text files that have no effect. Waits until the tokenizer
    /// is loaded, but does not require one.
    fn ignored_fields(&self) -> IgnoredFields;
}

impl ModelTools for Model {
    #[cfg(feature = "build")]
    fn of_chain(chain: Chain, bundle: &Arc<Bundle>, plan: PlanReport, plan_id: String) -> Result<Self> {
        let text = TextSide::of_bundle(bundle, TokenizerStart::Beside, None)?;
        let origin = Origin::Built(Box::new(BuiltOrigin { plan, plan_id, compiled: Vec::new() }));
        let towers = Towers::absent(Arc::clone(bundle));
        Ok(Model::new(chain, None, text, towers, origin, OpeningTimes::default()))
    }

    fn bundle(&self) -> Option<&Bundle> {
        self.origin().map(|bundled| &*bundled.bundle)
    }

    fn chain(&self) -> &Chain {
        &self.inner.chain
    }

    #[cfg(feature = "build")]
    fn compiled(&self) -> &[CompiledGraphs] {
        match &self.inner.origin {
            Origin::Built(built) => &built.compiled,
            Origin::Bundle(_) => &[],
        }
    }

    fn notices(&self) -> Vec<Notice> {
        let report = self.report();
        let mut notices: Vec<Notice> = match &self.inner.origin {
            #[cfg(feature = "build")]
            Origin::Built(built) => built.plan.notices.clone(),
            Origin::Bundle(_) => report.bundle_notices().cloned().collect(),
        };
        notices.extend(report.notices_of_towers);
        notices
    }

    fn ignored_fields(&self) -> IgnoredFields {
        self.inner.text.ignored_fields()
    }
}

/// Further options to open a checkpoint.
#[cfg(feature = "build")]
pub trait OpenTools {
    /// Returns the options in the form of the build crate.
    fn plan_options(&self) -> PlanOptions;

    /// Replaces all options of the plan.
    #[must_use]
    fn with_plan_options(self, plan: PlanOptions) -> Self;

    /// Changes the graph of the checkpoint before any other step, for tests of verification.
    #[must_use]
    fn altered(self, alter: fn(&mut Graph)) -> Self;
}

#[cfg(feature = "build")]
impl OpenTools for OpenOptions {
    fn plan_options(&self) -> PlanOptions {
        self.run.fill(self.plan.clone())
    }

    fn with_plan_options(mut self, plan: PlanOptions) -> Self {
        self.plan = plan;
        self
    }

    fn altered(mut self, alter: fn(&mut Graph)) -> Self {
        self.plan.alter = Some(alter);
        self
    }
}
