//! Measures smaller models as drafts: the acceptance of their proposals, and their times.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use shardwright::tools::{ModelTools, OpenTools};
use shardwright::{
    Draft, GenerationEvent, GenerationOptions, Model, OpenOptions, Proposal, RenderOptions,
    SamplingParameters,
};
use shardwright_build::{DraftTimes, Executor, PlanOptions, PlanReport};
use shardwright_checkpoints::{
    DraftIdentity, DraftRecords, MeasuredDraft, PRIMARY_CHAIN, messages_of, open_adapted, turns_of,
};
use shardwright_files::private_files;
use shardwright_measure::median;
use shardwright_planning::profile::GENERIC;
use shardwright_runtime::{Acceptance, DRAFTED_MAX, Session, acceptance_of};
use shardwright_vocabulary::{At, Error, ErrorKind, Pass, Result, Watch};

use crate::timing::interrupted;

/// Approximate number of tokens in all replies: some hundred steps.
const TOKENS: usize = 512;

/// Maximum number of tokens in a reply, so that there are several replies.
const REPLY_TOKENS: usize = 64;

/// Measures a draft on greedy replies of a model. The prompts come from the options' usual text, or
/// are built in. The result is the acceptance of the draft's proposals, and the time of a proposed
/// token. It is stored in the cache, for plans of the same checkpoint with this draft. Returns all
/// stored results.
///
/// `checkpoint` belongs to the model, and `path` is the draft's checkpoint or bundle. The time is
/// used by later plans only if the model runs on its planned targets.
///
/// # Errors
///
/// If the vocabularies differ, if no prompt of the text fits into both contexts, if the draft
/// fails, if running either model fails, if the cache cannot be written, and
/// [`ErrorKind::Cancelled`].
pub fn measure_draft(
    (checkpoint, model): (&Path, &Model),
    (path, draft): (&Path, &Model),
    open: &OpenOptions,
    watch: &mut dyn Watch,
) -> Result<MeasuredDraft> {
    let options = open.plan_options();
    let conversations = options.read_usual_text()?;
    let text = match &options.usual_text {
        Some(path) => path.display().to_string(),
        None => "built-in prompts".to_owned(),
    };
    let lines: Vec<&str> = match &conversations {
        Some(text) => text.lines().filter(|line| !line.trim().is_empty()).collect(),
        None => shardwright::calibration_prompts(),
    };
    let mut timed = Timed { draft: draft.draft_for(model)?, each: Vec::new(), memory_bytes: 0 };
    let mut replies = Replies::of(model)?;
    let room = model.chain().context().min(draft.chain().context()) as usize;
    let (mut found, mut tokens) = (Acceptance::default(), 0);
    'all: for line in lines {
        for prompt in prompts(model, line)? {
            if prompt.len() + REPLY_TOKENS + DRAFTED_MAX >= room {
                continue;
            }
            watch.progress((tokens * 1000 / TOKENS).min(1000) as u32, "measuring the draft");
            let reply = replies.to(&prompt, watch)?;
            found = found.and(&timed.acceptance(&prompt, &reply)?);
            interrupted(watch)?;
            tokens += reply.len();
            if tokens >= TOKENS {
                break 'all;
            }
        }
    }
    if timed.each.is_empty() {
        let what = format!("{text}: no prompt leaves room to draft a reply in a context of {room} tokens");
        return Err(Error::new(ErrorKind::Argument, what)
            .with_help("pass conversations, one per line, that leave room for a reply, or raise --context"));
    }
    let steps = |count: &u64| u32::try_from(*count).unwrap_or(u32::MAX);
    let planned = model.plan().map(|plan| plan.soc.as_str());
    let soc = model.report().bundle_variant.or(planned).unwrap_or(GENERIC).to_owned();
    let times = DraftTimes {
        proposed_nanoseconds: median(&timed.each) as u64,
        model_nanoseconds: median(&replies.each) as u64,
        formats: model.plan().map_or_else(String::new, first_formats),
    };
    let measured = MeasuredDraft {
        draft: DraftIdentity::of(path, &options)?,
        model: open_adapted(checkpoint, &[Pass::Step], &options)?.content_hash().into(),
        text,
        silent_steps: steps(&found.without),
        accepted_steps: found.accepted.iter().map(steps).collect(),
        times: runs_as_planned(model, &options).then_some((soc, times)).into_iter().collect(),
        memory_bytes: timed.memory_bytes,
    };
    let records = DraftRecords::of_cache(options.cache.as_deref());
    records.keep(measured).map_err(|error| {
        let folder = records.folder().unwrap_or(Path::new(""));
        private_files::not_kept(error, folder, "use a cache folder of your own to store measurements")
    })
}

fn first_formats(plan: &PlanReport) -> String {
    plan.shards.first().map_or_else(String::new, |shard| shard.formats.clone())
}

/// Returns whether a model runs on its planned targets, so that a draft's times belong to the chip.
fn runs_as_planned(model: &Model, options: &PlanOptions) -> bool {
    if model.plan().is_none_or(|plan| plan.emulated_on.is_some()) {
        return false;
    }
    let simulator = Executor::Simulator;
    match model.bundle() {
        None => options.recorded.on != Some(simulator),
        Some(bundle) => {
            let on = bundle.variant().options.get("on");
            model.report().bundle_chain == Some(PRIMARY_CHAIN) && on.is_none_or(|on| on != simulator.name())
        }
    }
}

/// Returns the prompts of a line as ids: the text before each of its replies, present or missing.
fn prompts(model: &Model, line: &str) -> Result<Vec<Vec<u32>>> {
    let turns = turns_of(line);
    let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    let ids = |end: usize| {
        if !model.has_chat_template() {
            return model.tokenizer()?.encode(&turns[..end].join("\n"), true);
        }
        model.encode_chat(&messages_of(&turns[..end]), &options)
    };
    (1..=turns.len()).step_by(2).map(ids).collect()
}

/// Generates greedy replies of a model.
struct Replies<'m> {
    model: &'m Model,
    session: Session,
    options: GenerationOptions,
    /// Nanoseconds per token after the first, one entry per reply with several tokens.
    each: Vec<f64>,
}

impl<'m> Replies<'m> {
    fn of(model: &'m Model) -> Result<Self> {
        let options = GenerationOptions {
            max_tokens: Some(REPLY_TOKENS),
            sampling: SamplingParameters::greedy(),
            ..model.session()?.options
        };
        Ok(Replies { model, session: model.chain().session()?, options, each: Vec::new() })
    }

    fn to(&mut self, prompt: &[u32], watch: &dyn Watch) -> Result<Vec<u32>> {
        let mut reply = Vec::new();
        let (_, statistics) =
            self.session.generate(self.model.tokenizer()?, prompt, &self.options, &mut |event| {
                if let GenerationEvent::Token { id } = event {
                    reply.push(*id);
                }
                if watch.cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
        interrupted(watch)?;
        if statistics.generated_tokens > 1 {
            let tokens = statistics.generated_tokens as f64 - 1.0;
            self.each.push(statistics.decode_time.as_nanos() as f64 / tokens);
        }
        Ok(reply)
    }
}

/// A draft that measures the times of its proposals.
struct Timed<D> {
    draft: D,
    /// Nanoseconds per token, one entry per proposal.
    each: Vec<f64>,
    memory_bytes: u64,
}

impl<D: Draft> Timed<D> {
    /// Counts the acceptance of the draft on a reply.
    fn acceptance(&mut self, prompt: &[u32], reply: &[u32]) -> Result<Acceptance> {
        let place = format!("the draft `{}`", self.draft.name());
        self.draft.begin(&SamplingParameters::greedy());
        // The draft reads a prompt in parallel with the model, not in a step.
        self.draft.propose(prompt, 1).at(&place)?;
        let found = acceptance_of(self, prompt, reply).at(&place)?;
        self.memory_bytes = self.memory_bytes.max(self.draft.memory_bytes());
        Ok(found)
    }
}

impl<D: Draft> Draft for Timed<D> {
    fn name(&self) -> String {
        self.draft.name()
    }

    fn propose(&mut self, history: &[u32], most: usize) -> Result<Proposal> {
        let begun = Instant::now();
        let proposal = self.draft.propose(history, most)?;
        if !proposal.tokens.is_empty() {
            self.each.push(begun.elapsed().as_nanos() as f64 / proposal.tokens.len() as f64);
        }
        Ok(proposal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A draft with given proposals, possibly none.
    struct Told(Vec<u32>);

    impl Draft for Told {
        fn name(&self) -> String {
            "told".to_owned()
        }

        fn propose(&mut self, history: &[u32], most: usize) -> Result<Proposal> {
            let tokens = self.0.get(history.len()..).unwrap_or(&[]).iter().copied().take(most).collect();
            Ok(Proposal { tokens, ..Proposal::default() })
        }

        fn memory_bytes(&self) -> u64 {
            7
        }
    }

    #[test]
    fn proposals_are_timed_and_the_prompt_is_not() {
        let text: Vec<u32> = (0..40).collect();
        let mut timed = Timed { draft: Told(text.clone()), each: Vec::new(), memory_bytes: 0 };
        let found = timed.acceptance(&text[..7], &text[7..]).expect("nothing fails");
        assert_eq!((found.without, found.tokens()), (0, 32));
        // Fifteen proposed tokens and the one after them, and the remaining tokens.
        assert_eq!((timed.each.len(), timed.memory_bytes), (2, 7));
        let mut silent = Timed { draft: Told(Vec::new()), each: Vec::new(), memory_bytes: 0 };
        let found = silent.acceptance(&text[..7], &text[7..]).expect("nothing fails");
        assert_eq!((found.without, silent.each.len()), (32, 0));
    }
}
