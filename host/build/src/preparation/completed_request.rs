//! Fifth stage of a preparation: the request with measured times and losses.

use shardwright_bundle::Digest;
use shardwright_planning::request::Request;
use shardwright_vocabulary::{Part, Watch};

use super::Notices;
use super::chip_choice::ChipChoice;
use super::goals::PlanGoals;
use super::offers::Offers;
use crate::options::LossGoal;
use crate::ranges::boundary_ranges;
use crate::request::make_keyed_request;
use crate::tables::gathered_tables;
use crate::{LossGround, ModelFormats, PlanSource, Question, Result};

pub(super) struct CompletedRequest {
    pub(super) request: Request,
    /// For each row of the cost table, the key of its measured time, if it has one.
    pub(super) time_keys: Vec<Option<Digest>>,
    pub(super) formats: ModelFormats,
}

impl CompletedRequest {
    pub(super) fn of(
        source: &mut dyn PlanSource,
        chosen: &ChipChoice,
        offers: &Offers,
        wanted: PlanGoals,
        notices: &mut Notices,
        watch: &mut dyn Watch,
    ) -> Result<CompletedRequest> {
        let options = &chosen.options;
        let PlanGoals { menu, goals, loss_goal, prompts, drafts, options: settings, formats } = wanted;
        let model = source.name();
        let estimates = drafts.iter().map(|draft| draft.estimate.clone()).collect();
        let question =
            Question { model: &model, menu: &menu, goals, prompts, drafts: estimates, options: settings };
        let mut watch = Part::new(watch, 0..1000);
        let asked = if matches!(loss_goal, LossGoal::Most(_)) { 500 } else { 1000 };
        let (mut request, time_keys) = make_keyed_request(
            source.graph(),
            &offers.each,
            &formats,
            question,
            &offers.timers,
            &mut watch.then(asked),
        )?;
        notices.passing.extend(offers.costs.notices());
        let cache = options.cache.as_deref();
        notices.passing.extend(options.times.apply(&mut request, &time_keys, cache));
        request.drafts = drafts.iter().map(|draft| draft.estimate_in(&request)).collect();
        let ground = match loss_goal {
            LossGoal::None => LossGround::Expected,
            LossGoal::Least => LossGround::Kept,
            LossGoal::Most(_) => LossGround::Measured,
        };
        let losses = source.losses(formats.tuples(), ground, &mut watch)?;
        let graph = source.graph();
        let stated = options.recorded.tables;
        request.tables = gathered_tables(graph, stated, source.remakes_tables(), &losses.tables)?;
        (request.sensitivities, request.value_sensitivities) = (losses.layers, losses.values);
        request.ranges = boundary_ranges(graph, &losses.ranges);
        if loss_goal != LossGoal::None {
            notices.passing.extend(source.take_notices());
        }
        Ok(CompletedRequest { request, time_keys, formats })
    }
}
