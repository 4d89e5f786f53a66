//! Plain data about models and replies.

use std::time::Duration;

use serde_json::Value;
use shardwright::PlacementRecord;

use crate::{Error, ErrorKind, Result};

/// Importance of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoticeKind {
    /// A deviation from the request. Under `strict` it is an error.
    Fallback,
    /// A file was used although it violates the policy of signatures.
    Warning,
    /// How a plan was made or a bundle was compiled.
    Making,
    /// Other useful information.
    Note,
}

/// When a notice came up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoticeStage {
    /// When the bundle was compiled, or the checkpoint was planned.
    Making,
    /// When the bundle was opened on this machine.
    Opening,
    /// When a tower for pictures or sounds was opened.
    Tower,
}

/// A notice for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Importance.
    pub kind: NoticeKind,
    /// When it came up.
    pub stage: NoticeStage,
    /// The text, one sentence.
    pub text: String,
}

/// What opening a model found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelReport {
    /// Hash of the plan that the model runs by.
    pub plan_id: String,
    /// Chip of the running variant of a bundle.
    pub variant: Option<String>,
    /// Name of the running chain of a bundle.
    pub chain: Option<String>,
    /// Whether the model supports conversations.
    pub has_chat_template: bool,
    /// Time to open the model, in milliseconds.
    pub opening_milliseconds: u64,
    /// Files that were hashed to open a bundle, as a sentence.
    pub verified: Option<String>,
    /// All notices so far.
    pub notices: Vec<Notice>,
}

impl ModelReport {
    pub(crate) fn of(model: &shardwright::Model) -> ModelReport {
        let report = model.report();
        let mut notices = Vec::new();
        let mut add = |stage: NoticeStage, found: &[shardwright::Notice]| {
            notices.extend(found.iter().map(|notice| Notice {
                kind: match notice.kind {
                    shardwright::NoticeKind::Fallback => NoticeKind::Fallback,
                    shardwright::NoticeKind::Warning => NoticeKind::Warning,
                    shardwright::NoticeKind::Making => NoticeKind::Making,
                    shardwright::NoticeKind::Note => NoticeKind::Note,
                },
                stage,
                text: notice.text.clone(),
            }));
        };
        // The plan of a checkpoint has its notices. A bundle has them in its report.
        #[cfg(feature = "build")]
        if let (None, Some(plan)) = (report.bundle_variant, model.plan()) {
            add(NoticeStage::Making, &plan.notices);
        }
        add(NoticeStage::Making, report.notices_of_making);
        add(NoticeStage::Opening, report.notices_of_opening);
        add(NoticeStage::Tower, &report.notices_of_towers);
        let times = report.times;
        let opening = [times.reading, times.planning, times.quantising, times.compiling, times.loading];
        ModelReport {
            plan_id: model.plan_id(),
            variant: report.bundle_variant.map(str::to_owned),
            chain: report.bundle_chain.map(str::to_owned),
            has_chat_template: model.has_chat_template(),
            opening_milliseconds: opening.iter().map(|time| milliseconds(*time)).sum(),
            verified: report.verified.map(ToString::to_string),
            notices,
        }
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Memory use of a model and its sessions, in bytes. Memory of drivers is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Artefacts of the text's chain.
    pub weights: u64,
    /// Its gathered tables, which are mapped and not counted.
    pub tables: u64,
    /// Each session.
    pub session: u64,
    /// The budget in use, by all chains and sessions. 0 for a checkpoint.
    pub used: u64,
    /// The budget, if there is one.
    pub budget: Option<u64>,
}

impl From<shardwright::ModelMemory> for Memory {
    fn from(memory: shardwright::ModelMemory) -> Self {
        let shardwright::ModelMemory { weights, tables, session, used, budget } = memory;
        Memory { weights, tables, session: session.bytes(), used, budget }
    }
}

/// Counts and times of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Tokens of the prompt, including the conversation so far.
    pub prompt_tokens: u64,
    /// Tokens of the prompt whose states already existed.
    pub reused_tokens: u64,
    /// Tokens of the prompt that were run.
    pub run_tokens: u64,
    /// Tokens that were run again, because their states were released or lost.
    pub recomputed_tokens: u64,
    /// Generated tokens, including a stop token.
    pub generated_tokens: u64,
    /// Generated tokens of thoughts.
    pub thought_tokens: u64,
    /// Steps that generated tokens.
    pub steps: u64,
    /// Drafted tokens that were verified.
    pub drafted_tokens: u64,
    /// Drafted tokens that were accepted.
    pub accepted_tokens: u64,
    /// Whether the reply ended before it matched its grammar.
    pub incomplete: bool,
    /// Time to the first token, in microseconds.
    pub first_token_microseconds: u64,
    /// Time to run the prompt, in microseconds.
    pub prompt_microseconds: u64,
    /// Time from the first token to the last, in microseconds.
    pub decode_microseconds: u64,
}

impl From<shardwright::GenerationStatistics> for Statistics {
    fn from(found: shardwright::GenerationStatistics) -> Self {
        Statistics {
            prompt_tokens: found.prompt_tokens as u64,
            reused_tokens: found.reused_tokens as u64,
            run_tokens: found.run_tokens as u64,
            recomputed_tokens: found.recomputed_tokens as u64,
            generated_tokens: found.generated_tokens as u64,
            thought_tokens: found.thought_tokens as u64,
            steps: found.speculation.steps,
            drafted_tokens: found.speculation.drafted,
            accepted_tokens: found.speculation.accepted,
            incomplete: found.incomplete,
            first_token_microseconds: microseconds(found.time_to_first_token),
            prompt_microseconds: microseconds(found.prompt_time),
            decode_microseconds: microseconds(found.decode_time),
        }
    }
}

/// Where the shards of a session ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Name of the model.
    pub model: String,
    /// The shards in the order of a step.
    pub shards: Vec<ShardPlace>,
    /// All deviations from the request, each as a sentence.
    pub fallbacks: Vec<String>,
    /// The whole record as JSON text, with the field `fallbacks` in addition.
    pub json: String,
}

/// Where a shard runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardPlace {
    /// Name of the shard.
    pub shard: String,
    /// Instance, shim and device.
    pub place: String,
    /// Number of runs.
    pub runs: u64,
    /// Time of all runs, in nanoseconds.
    pub nanoseconds: u64,
}

impl Placement {
    /// Converts a record.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Internal`] if the record cannot be written as JSON.
    pub(crate) fn of(record: &PlacementRecord) -> Result<Placement> {
        let fallbacks: Vec<String> = record.fallbacks().iter().map(ToString::to_string).collect();
        let mut json = serde_json::to_value(record)
            .map_err(|error| Error::new(ErrorKind::Internal, error.to_string(), "report the bug"))?;
        if let Value::Object(fields) = &mut json {
            fields.insert("fallbacks".to_owned(), fallbacks.clone().into());
        }
        let shards = record.shards.iter().map(|shard| ShardPlace {
            shard: shard.shard.clone(),
            place: shard.place.to_string(),
            runs: shard.runs,
            nanoseconds: shard.nanoseconds,
        });
        Ok(Placement {
            model: record.model.clone(),
            shards: shards.collect(),
            fallbacks,
            json: json.to_string(),
        })
    }
}
