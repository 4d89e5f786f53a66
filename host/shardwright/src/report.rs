//! What opening a model found on this machine.

use shardwright_selection::Selection;
use shardwright_vocabulary::{Notice, Pass};

use crate::policy::FallbackPolicy;
use crate::verified_files::Verified;
use crate::{Model, OpeningTimes};

/// What opening a model found, and what its towers added so far.
///
/// For a checkpoint, only `times` and `notices_of_towers` have content: its plan has the other
/// notices.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelReport<'m> {
    /// Time spent to open the model.
    pub times: OpeningTimes,
    /// Chip of the bundle's running variant.
    pub bundle_variant: Option<&'m str>,
    /// Name of the bundle's running chain.
    pub bundle_chain: Option<&'m str>,
    /// Notices of the bundle's compilation. They are the same at every opening and are meant for
    /// the author of the bundle. Notices of the kind
    /// [`NoticeKind::Making`](crate::NoticeKind::Making) do not concern a run.
    pub notices_of_making: &'m [Notice],
    /// Notices of this opening on this machine, such as running the second chain. They are suitable
    /// for a user.
    pub notices_of_opening: &'m [Notice],
    /// Notices of the towers for pictures and sounds that were opened so far. A tower is opened
    /// when the first part of a turn needs it.
    pub notices_of_towers: Vec<Notice>,
    /// Bytes of the bundle that were hashed to open it, the speed, and whether the next opening
    /// must hash them again.
    pub verified: Option<&'m Verified>,
    /// Like `verified`, for each tower of the bundle that was opened so far, in that order.
    pub verified_towers: Vec<(Pass, Verified)>,
    /// Ratings of the bundle's chains on this machine, best first. `None` for a bundle for one chip
    /// that was opened without naming a chip.
    pub selection: Option<&'m Selection>,
    /// Policy for running a chain of the bundle other than the first.
    pub fallback_policy: Option<&'m FallbackPolicy>,
}

impl Model {
    /// Returns what opening the model found on this machine.
    pub fn report(&self) -> ModelReport<'_> {
        let bundled = self.origin();
        let variant = bundled.map(|bundled| bundled.bundle.variant());
        let chain = bundled.and_then(|bundled| bundled.bundle.variant().chains.get(bundled.chain));
        let notices = bundled.map(|bundled| bundled.notices.split_at(bundled.made));
        let (notices_of_making, notices_of_opening) = notices.unwrap_or_default();
        ModelReport {
            times: self.inner.times,
            bundle_variant: variant.map(|variant| variant.soc.as_str()),
            bundle_chain: chain.map(|chain| chain.name.as_str()),
            notices_of_making,
            notices_of_opening,
            notices_of_towers: self.inner.towers.notices(),
            verified: bundled.map(|bundled| &bundled.verified),
            verified_towers: self.inner.towers.verified(),
            selection: bundled.and_then(|bundled| bundled.selection.as_ref()),
            fallback_policy: bundled.map(|bundled| &bundled.policy),
        }
    }
}

impl<'m> ModelReport<'m> {
    /// Returns the notices of making the bundle, followed by the notices of opening it.
    pub fn bundle_notices(&self) -> impl Iterator<Item = &'m Notice> + use<'m> {
        self.notices_of_making.iter().chain(self.notices_of_opening)
    }
}
