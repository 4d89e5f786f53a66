//! Fourth stage of a preparation: the entry points to choose from, the goals, the drafts and the
//! planner's options.

use shardwright_graph::Graph;
use shardwright_planning::hedge;
use shardwright_planning::request::{Goals, PlannerOption, PromptLength};
use shardwright_planning::session::PlanningSession;
use shardwright_vocabulary::{Error, ErrorKind, FormatTuple, TargetKind, Watch};

use super::Notices;
use super::chip_choice::ChipChoice;
use crate::options::{LossGoal, NO_FALLBACKS, USUAL_QUALITY_OPTION, placed_pass};
use crate::{EntryMenu, ModelFormats, PlanOptions, PlanSource, Result, StatedDraft};

/// Context in tokens if none is requested and the model allows more: long enough for a
/// conversation, small enough for a phone.
const DEFAULT_CONTEXT: u32 = 4096;

pub(super) struct PlanGoals {
    pub(super) menu: EntryMenu,
    pub(super) goals: Goals,
    pub(super) loss_goal: LossGoal,
    pub(super) prompts: Vec<PromptLength>,
    pub(super) drafts: Vec<StatedDraft>,
    pub(super) options: Vec<PlannerOption>,
    /// The model in each format of the request, counted.
    pub(super) formats: ModelFormats,
}

impl PlanGoals {
    pub(super) fn of(
        source: &dyn PlanSource,
        chosen: &ChipChoice,
        tuples: &[FormatTuple],
        session: &PlanningSession,
        notices: &mut Notices,
        watch: &dyn Watch,
    ) -> Result<PlanGoals> {
        let (graph, options, profile) = (source.graph(), &chosen.options, &chosen.chip.profile);
        let context = context(graph, options)?;
        let (mut prompts, prompt_tokens) = options.usual_prompts(context);
        let mut encode_rows = options.encode_rows.clone();
        if profile.kind == TargetKind::Cpu {
            // A CPU computes only the rows that are filled, so the largest entry point is best.
            prompts.clear();
            encode_rows = encode_rows.into_iter().max().into_iter().collect();
        }
        let menu = match graph.is_generative() {
            true => EntryMenu::for_prompts(graph, context, &prompts),
            false => EntryMenu::for_rows(graph, context, &encode_rows),
        };
        let menu = if profile.kind == TargetKind::Cpu { menu } else { menu.for_a_chip() };
        let loss_goal = options.loss_goal(profile, graph);
        let goals = Goals {
            quality_micronats: options.quality_micronats,
            least_loss: loss_goal == LossGoal::Least,
            memory_bytes: options.memory_bytes,
            context: if graph.is_generative() { context } else { 0 },
            max_prefill_rows: menu.largest_rows(),
            size_bytes: options.size_bytes,
            token_microseconds: options.token_microseconds,
            first_token_microseconds: options.first_token_microseconds,
            prompt_tokens,
            answer_tokens: options.answer_tokens.unwrap_or(0),
        };
        let formats = ModelFormats::counted(graph, tuples)?;
        let (drafts, said) = options.usual_drafts(source, &profile.name, context, watch)?;
        notices.passing.extend(said);
        let options = planner_options(graph, chosen, session);
        Ok(PlanGoals { menu, goals, loss_goal, prompts, drafts, options, formats })
    }
}

/// Returns the user's options of the planner, and defaults for options that the planner has.
fn planner_options(
    graph: &Graph,
    ChipChoice { options, chip, .. }: &ChipChoice,
    session: &PlanningSession,
) -> Vec<PlannerOption> {
    let mut planner_options: Vec<PlannerOption> = options
        .recorded
        .planner_options
        .iter()
        // Options that place components of other passes belong to the plans of those passes.
        .filter(|(name, _)| placed_pass(name).is_none_or(|pass| pass == graph.pass))
        .map(|(name, value)| PlannerOption { name: name.clone(), value: value.clone() })
        .collect();
    let usual = options.usual_quality(&chip.profile, graph).map(|millinats| millinats.to_string());
    // Without fallbacks, the plan needs no share of a size goal for them.
    let alone = options.strict && options.size_bytes.is_some();
    let (fallbacks, hedges) = (NO_FALLBACKS, hedge::OFF);
    let defaults = [
        (USUAL_QUALITY_OPTION, usual),
        (fallbacks.0, (alone && options.has_usual_planner()).then(|| fallbacks.1.to_owned())),
        (hedges.0, (alone || options.unhedged).then(|| hedges.1.to_owned())),
    ];
    for (name, value) in defaults {
        let is_open = planner_options.iter().all(|own| own.name != name);
        let value = value.filter(|_| is_open && session.options().any(|known| known.name == name));
        planner_options.extend(value.map(|value| PlannerOption { name: name.to_owned(), value }));
    }
    planner_options
}

fn context(graph: &Graph, options: &PlanOptions) -> Result<u32> {
    let model = u32::try_from(graph.context).unwrap_or(u32::MAX);
    match options.recorded.context {
        None => Ok(model.min(DEFAULT_CONTEXT)),
        Some(context) if context >= 1 && context <= model => Ok(context),
        Some(context) => {
            Err(Error::new(ErrorKind::Argument, format!("unsupported context of {context} tokens"))
                .with_help(format!("use 1 to {model} tokens")))
        }
    }
}
