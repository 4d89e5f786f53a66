//! Prepares the planner's request in five stages, each with the results of the stages before it.

use shardwright_bundle::Digest;
use shardwright_planning::profile::Profile;
use shardwright_planning::request::Request;
use shardwright_planning::session::PlanningSession;
use shardwright_vocabulary::{FormatTuple, Notice, Watch};
use shardwright_worker::Shims;

use crate::offers::rounded_by_default;
use crate::placement::RunPlaces;
use crate::planners::planning_session;
use crate::{
    Compiler, Learned, ModelFormats, PlanOptions, PlanSource, Purpose, Result, TargetExecutor, TargetOffer,
    Weighed, stored_formats,
};

mod answer;
mod candidates;
mod chip_choice;
mod completed_request;
mod goals;
mod offers;

use candidates::Candidates;
use chip_choice::ChipChoice;
use completed_request::CompletedRequest;
use goals::PlanGoals;
use offers::Offers;

/// The results of all steps up to the planner's request.
pub(crate) struct Preparation {
    /// The user's options, completed by the profile.
    options: PlanOptions,
    /// The goals that come from the profile, in words.
    goals: Vec<String>,
    pub(crate) profile: Profile,
    shims: Shims,
    pub(crate) offers: Vec<TargetOffer>,
    /// The model in each format of the request, counted.
    pub(crate) formats: ModelFormats,
    /// Properties of the model for a forecast.
    weighed: Weighed,
    /// The rounded formats of stored integers, if they are offered by default.
    rounded: Option<FormatTuple>,
    /// One executor per target. Empty if the plan is not going to run.
    pub(crate) executors: Vec<TargetExecutor>,
    /// Limits learned from refusals, and the compilers that they belong to. There is one compiler
    /// per target, `None` if a substitute replaces the target.
    pub(crate) learned: Learned,
    pub(crate) compilers: Vec<Option<Compiler>>,
    pub(crate) request: Request,
    /// For each row of the cost table, the key of its measured time, if it has one.
    pub(crate) time_keys: Vec<Option<Digest>>,
    pub(crate) session: PlanningSession,
    notices: Vec<Notice>,
    /// Notices about this machine and run only.
    pub(crate) passing: Vec<Notice>,
    /// Notices about skipped shims, if the shim of a target is missing, because it may be among
    /// them.
    skipped: Vec<Notice>,
    emulated_on: Option<String>,
}

/// Notices of the stages.
#[derive(Default)]
struct Notices {
    /// Notices that belong to the plan.
    lasting: Vec<Notice>,
    /// Notices about this machine and run only.
    passing: Vec<Notice>,
}

impl Preparation {
    pub(crate) fn new(
        source: &mut dyn PlanSource,
        options: &PlanOptions,
        purpose: Purpose,
        watch: &mut dyn Watch,
    ) -> Result<Self> {
        let mut notices = Notices::default();
        let chosen = ChipChoice::of(source, options, &mut notices)?;
        let candidates = Candidates::of(source.graph(), &chosen);
        let offers = Offers::of(&candidates, &chosen, purpose, &mut notices)?;
        let session = planning_session(&chosen.options, &chosen.trust, watch)?;
        let wanted = PlanGoals::of(source, &chosen, &candidates.tuples, &session, &mut notices, watch)?;
        let graph = source.graph();
        let weighed = Weighed::of(graph, stored_formats(graph), source.making(), source.download());
        let rounded = rounded_by_default(graph, &chosen.chip.profile, &chosen.options);
        let mut requested = CompletedRequest::of(source, &chosen, &offers, wanted, &mut notices, watch)?;
        requested.request.usual_formats = candidates.usual_formats(&requested.request.formats);

        let Notices { lasting, mut passing } = notices;
        passing.extend(session.load_notices().map(Notice::note));
        passing.extend(chosen.trust.take_notices());
        let skipped = chosen.shims.skipped_notices(&passing);
        passing.extend(skipped.iter().cloned());
        Ok(Preparation {
            options: chosen.options,
            goals: chosen.goals,
            profile: chosen.chip.profile,
            shims: chosen.shims,
            offers: offers.each,
            formats: requested.formats,
            weighed,
            rounded,
            executors: offers.executors,
            learned: offers.learned,
            compilers: offers.compilers,
            request: requested.request,
            time_keys: requested.time_keys,
            session,
            notices: lasting,
            passing,
            skipped: if offers.is_any_missing { skipped } else { Vec::new() },
            emulated_on: offers.emulated_on,
        })
    }

    /// Returns the parts that are needed once everything is compiled.
    pub(crate) fn let_go(self) -> (Request, Profile, RunPlaces) {
        // A chip may be open only once, so the instances that answered questions are closed.
        drop(self.offers);
        let places = RunPlaces::of(self.shims, self.executors, self.options.threads);
        (self.request, self.profile, places)
    }
}
