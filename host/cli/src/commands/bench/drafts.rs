//! Compares replies with drafts and the same replies without, in pairs.

use serde::Serialize;
use shardwright::tools::ModelTools;
use shardwright::{Error, ErrorKind, GenerationOptions, Model, Speculation};
use shardwright_measure::Speeds;
use shardwright_runtime::{GenerationEvent, GenerationStatistics, Session};

use super::interrupted;
use crate::arguments::BenchArguments;
use crate::interrupt;
use crate::outcome::Failure;

/// A reply to one text, with drafts and without.
#[derive(Debug, Serialize)]
pub struct DraftsReport {
    /// Names of the drafts, in the order in which they are tried.
    pub drafts: Vec<String>,
    /// Number of tokens of the prompt.
    pub prompt_tokens: usize,
    /// Number of tokens of each reply.
    pub generated_tokens: usize,
    /// Speeds of replies without drafts.
    pub without: Speeds,
    /// Speeds of replies with drafts.
    pub with: Speeds,
    /// Ratio of each pair, with drafts divided by without.
    pub ratios: Speeds,
    /// Number of steps of a reply with drafts, the last one measured.
    pub steps: u64,
    /// Number of its drafted tokens that were verified.
    pub drafted: u64,
    /// Number of its drafted tokens that were accepted.
    pub accepted: u64,
    /// Its steps that verified drafted tokens, by the number of accepted tokens.
    pub by_accepted: Vec<u64>,
    /// Bytes of memory of the drafts.
    pub memory_bytes: u64,
}

/// Measures greedy replies to a prompt, which must be the same with drafts and without.
pub fn measure(
    arguments: &BenchArguments,
    model: &Model,
    prompt: &str,
    speculation: Speculation,
) -> Result<DraftsReport, Failure> {
    let prompt = model.encode_until(prompt, true, interrupt::happened)?;
    let generated = arguments.generated_tokens.iter().copied().max().unwrap_or(128);
    let options = GenerationOptions { max_tokens: Some(generated as usize), ..GenerationOptions::default() };
    let mut session = model.chain().session().map_err(Error::from)?;
    let drafts = speculation.drafts();
    let mut speculation = Some(speculation);
    let (mut without, mut with, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut last = GenerationStatistics::default();
    // One additional pair is not counted: it touches memory pages and adapts to the acceptance.
    for repetition in 0..=arguments.repetitions {
        interrupted()?;
        let (plain_ids, plain) = reply(&mut session, model, &prompt, &options)?;
        session.set_speculation(speculation.take());
        let (ids, drafted) = reply(&mut session, model, &prompt, &options)?;
        speculation = session.take_speculation();
        if ids != plain_ids {
            return Err(Failure::Refused {
                kind: ErrorKind::Internal,
                message: "the reply with drafts differs from the reply without".to_owned(),
                help: "measure without drafts, and report this with the model and the prompt".to_owned(),
            });
        }
        if repetition > 0 {
            let speeds = [plain, drafted].map(|done| done.decode_tokens_per_second());
            without.push(speeds[0]);
            with.push(speeds[1]);
            ratios.push(speeds[1] / speeds[0].max(f64::MIN_POSITIVE));
        }
        last = drafted;
    }
    let counted = last.speculation;
    Ok(DraftsReport {
        drafts,
        prompt_tokens: prompt.len(),
        generated_tokens: last.generated_tokens,
        without: Speeds::of(without),
        with: Speeds::of(with),
        ratios: Speeds::of(ratios),
        steps: counted.steps,
        drafted: counted.drafted,
        accepted: counted.accepted,
        by_accepted: counted.by_accepted.to_vec(),
        memory_bytes: speculation.map_or(0, |speculation| speculation.memory_bytes()),
    })
}

fn reply(
    session: &mut Session,
    model: &Model,
    prompt: &[u32],
    options: &GenerationOptions,
) -> Result<(Vec<u32>, GenerationStatistics), Failure> {
    session.clear();
    let mut ids = Vec::new();
    let mut dropped = None;
    let done = session.generate(model.tokenizer()?, prompt, options, &mut |event| {
        match event {
            GenerationEvent::Token { id } => ids.push(*id),
            GenerationEvent::DraftDropped { draft } => dropped = Some(draft.clone()),
            _ => {}
        }
        std::ops::ControlFlow::Continue(())
    });
    let (_, statistics) = done.map_err(Error::from)?;
    interrupted()?;
    match dropped {
        None => Ok((ids, statistics)),
        Some(draft) => {
            Err(Failure::Refused { kind: ErrorKind::Shim, message: draft.because, help: draft.help })
        }
    }
}
