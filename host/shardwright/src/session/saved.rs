//! Saving a session to a file, restoring it, forking and rewinding it, and the prefix cache.

mod format;
mod turn;

use std::collections::HashMap;
use std::fmt;
use std::io::{BufReader, BufWriter, Read};
use std::path::Path;
use std::sync::Arc;

use shardwright_bundle::Digest;
use shardwright_files::output::OutputKind;
use shardwright_files::{Links, open};
use shardwright_runtime::{ChainIdentity, PrefixCache, Prompt, SoftRows, Speculation};
use shardwright_text::Tokenizer;
use shardwright_vocabulary::At;

use super::Session;
use super::conversation::Soft;
use crate::parts::Sense;
use crate::turns::Turn;
use crate::{Error, ErrorKind, Model, Result};
use format::{Bounds, Head, MAGIC, PartHead, Reader, SavedSense, StatesHead, Writer, damaged};
use turn::{SavedTurn, restored_turn, saved_turn};

const SAVED: OutputKind =
    OutputKind { name: "a saved session", is_earlier: |begin| begin.starts_with(&MAGIC) };

/// Result of [`Session::save`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedSession {
    /// Number of tokens of the history.
    pub tokens: usize,
    /// Bytes of the file.
    pub bytes: u64,
    /// Why the file has no KV cache. `None` if it has one. Restoring then runs the tokens again.
    pub without_states: Option<String>,
}

impl SavedSession {
    /// Checks that [`Session::save`] may write to `path`: there is no file, or an earlier saved
    /// session. Call this before long work.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Argument`] if another file exists there.
    pub fn expect_at(path: impl AsRef<Path>) -> Result<()> {
        SAVED.expect_at(path.as_ref())
    }
}

/// A restored session, see [`Model::restore`].
pub struct Restored {
    /// The session.
    pub session: Session,
    /// Why the KV cache of the file is not used. The next reply or [`Session::resume`] runs the
    /// tokens again. `None` if the session continues without running them.
    pub recomputed: Option<RestoreReason>,
}

/// Why the tokens of a restored session are run again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestoreReason {
    /// The model has another name, or other tables.
    Model {
        /// Name of the model that the session was saved with.
        saved: String,
        /// Name of this model.
        own: String,
    },
    /// The model runs by another plan.
    Plan {
        /// Hash of the plan that the session was saved with.
        saved: String,
        /// Hash of this model's plan.
        own: String,
    },
    /// The compiled shards, a shim, a device or the processor architecture differ.
    Engine,
    /// The file has no KV cache, for this reason.
    NotSaved(String),
    /// The KV cache cannot be written into the memory of this model, for this reason.
    NotLoaded(String),
}

impl fmt::Display for RestoreReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreReason::Model { saved, own } if saved == own => {
                write!(f, "saved with other weights of `{own}`")
            }
            RestoreReason::Model { saved, own } => write!(f, "saved with the model `{saved}`, not `{own}`"),
            RestoreReason::Plan { saved, own } => write!(f, "saved with the plan {saved}, not {own}"),
            RestoreReason::Engine => f.write_str(
                "saved with other compiled shards, shims, devices or on another processor architecture",
            ),
            RestoreReason::NotSaved(reason) => write!(f, "the file has no KV cache: {reason}"),
            RestoreReason::NotLoaded(reason) => write!(f, "the KV cache cannot be used: {reason}"),
        }
    }
}

/// Returns the hash of the ids and texts of a vocabulary.
fn vocabulary(tokenizer: &Tokenizer) -> Digest {
    let mut text = Vec::new();
    for id in 0..tokenizer.vocabulary_size() {
        let token = u32::try_from(id).ok().and_then(|id| tokenizer.id_to_token(id));
        let length = token.as_ref().map_or(u32::MAX, |token| token.len() as u32);
        text.extend_from_slice(&length.to_le_bytes());
        text.extend_from_slice(token.unwrap_or_default().as_bytes());
    }
    Digest::of(&text)
}

/// Returns why states of a file do not fit this model.
fn difference(
    head: &Head,
    model: &str,
    plan: &str,
    identity: Option<ChainIdentity>,
) -> Option<RestoreReason> {
    let other_model = || RestoreReason::Model { saved: head.model.clone(), own: model.to_owned() };
    if head.model != model {
        return Some(other_model());
    }
    if let StatesHead::LeftOut(reason) = &head.states {
        return Some(RestoreReason::NotSaved(reason.clone()));
    }
    if head.plan != plan {
        return Some(RestoreReason::Plan { saved: head.plan.clone(), own: plan.to_owned() });
    }
    let Some(ChainIdentity { tables, engine }) = identity else { return Some(RestoreReason::Engine) };
    if head.tables != Some(tables.into()) {
        return Some(other_model());
    }
    (head.engine != Some(engine.into())).then_some(RestoreReason::Engine)
}

/// Pictures and sounds of a session, each once.
#[derive(Default)]
struct Parts {
    heads: Vec<PartHead>,
    rows: Vec<Arc<SoftRows>>,
    known: HashMap<[u8; 32], usize>,
}

impl Parts {
    /// Returns the index of a part. The sense of an unknown part is that of pictures, which only
    /// parts of forgotten turns are.
    fn index(&mut self, sense: Option<Sense>, rows: &Arc<SoftRows>) -> usize {
        if let Some(index) = self.known.get(&rows.origin()) {
            return *index;
        }
        let sense = match sense {
            Some(Sense::Sound) => SavedSense::Sound,
            Some(Sense::Picture) | None => SavedSense::Picture,
        };
        let (origin, count) = (rows.origin().into(), rows.rows() as u64);
        self.heads.push(PartHead { sense, origin, rows: count, begins: Vec::new() });
        self.rows.push(Arc::clone(rows));
        self.known.insert(rows.origin(), self.rows.len() - 1);
        self.rows.len() - 1
    }
}

impl Session {
    /// Saves the session to a file that [`Model::restore`] reads: turns, tokens, the rows of
    /// pictures and sounds, and the KV cache. Pictures and sounds themselves are not saved.
    /// Options, tools, template variables and drafts are settings of the restored session.
    ///
    /// The file is replaced as a whole: if writing fails or the process ends, an earlier saved
    /// session stays. Only this user can read the file. It has the content of the conversation in
    /// the clear.
    ///
    /// Without access to the KV cache, for example in a released session, the tokens are saved
    /// alone. [`SavedSession::without_states`] has the reason.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Argument`] if another file exists at `path`, [`ErrorKind::Unsupported`] for
    /// turns that are too large, and errors of writing.
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<SavedSession> {
        let path = path.as_ref();
        SAVED.expect_at(path)?;
        let history = self.inner.history();
        let mut parts = Parts::default();
        let indexes = self.soft.iter().map(|(sense, rows)| parts.index(Some(*sense), rows)).collect();
        for (begin, rows) in history.parts() {
            let index = parts.index(None, rows);
            parts.heads[index].begins.push(begin as u64);
        }
        let turns = saved_turns(&self.turns, indexes)?;
        let head = self.head(&history, turns.len() as u64, parts.heads)?;
        let mut bytes = 0;
        SAVED.write_private(path, &mut |file| {
            let mut writer = Writer::begin(BufWriter::new(file), &head, history.ids(), &turns)?;
            parts.rows.iter().try_for_each(|rows| writer.rows(rows.values()))?;
            if let StatesHead::Saved(_) = head.states {
                self.inner.write_states(&mut writer)?;
            }
            bytes = writer.finish()?;
            Ok(())
        })?;
        let without_states = match head.states {
            StatesHead::Saved(_) => None,
            StatesHead::LeftOut(reason) => Some(reason),
        };
        Ok(SavedSession { tokens: history.ids().len(), bytes, without_states })
    }

    fn head(&self, history: &Prompt, turns_bytes: u64, parts: Vec<PartHead>) -> Result<Head> {
        let chain = self.inner.chain();
        let identity = chain.identity();
        let rows = self.inner.state_rows();
        let states = match self.inner.expect_readable_states() {
            _ if identity.is_none() => {
                StatesHead::LeftOut("a shard has no artefact, so its weights are unknown".to_owned())
            }
            _ if rows.filled == 0 => StatesHead::LeftOut("the session had no complete states".to_owned()),
            Err(error) => StatesHead::LeftOut(error.to_string()),
            Ok(()) => StatesHead::Saved(rows),
        };
        Ok(Head {
            saved_by: env!("CARGO_PKG_VERSION").to_owned(),
            model: chain.description().model.clone(),
            vocabulary: vocabulary(self.text.tokenizer()?),
            tables: identity.map(|identity| identity.tables.into()),
            plan: self.plan.clone(),
            engine: identity.map(|identity| identity.engine.into()),
            tokens: history.ids().len() as u64,
            turns_bytes,
            parts,
            states,
        })
    }

    /// Creates a session with the same turns, history and settings, and its own copy of the KV
    /// cache. Both continue independently. The cancel handle, the deadline and the callback before
    /// steps stay with this session. If this session uses drafts, the fork uses prompt lookup.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Memory`] if the budget leaves too little for a session, and errors of
    /// allocation.
    pub fn fork(&mut self) -> Result<Session> {
        let mut inner = self.inner.fork()?;
        inner.set_next_chain(self.next.as_ref().map(|next| next()));
        let drafts = self.inner.speculation().is_some() && inner.decode_rows() > 1;
        inner.set_speculation(drafts.then(|| Speculation::new().lookup()));
        Ok(Session {
            inner,
            text: Arc::clone(&self.text),
            towers: Arc::clone(&self.towers),
            next: self.next.clone(),
            plan: self.plan.clone(),
            turns: self.turns.clone(),
            messages: self.messages.clone(),
            soft: self.soft.clone(),
            tools: self.tools.clone(),
            tool_choice: self.tool_choice.clone(),
            call_format: self.call_format,
            options: self.options.clone(),
            template: self.template.clone(),
            picture_tokens: self.picture_tokens,
        })
    }

    /// Removes all turns from the turn `position` on, so that the conversation continues from
    /// there. The KV cache of the remaining turns is reused, as far as sliding-window layers still
    /// have it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Argument`] if there are fewer turns.
    pub fn rewind(&mut self, position: usize) -> Result<()> {
        if position > self.turns.len() {
            let what = format!("cannot rewind to turn {position} of {}", self.turns.len());
            return Err(Error::argument(what).with_help("use a position in the turns of the session"));
        }
        self.turns.truncate(position);
        self.soft.truncate(self.turns.iter().map(Turn::soft_parts).sum());
        self.messages = self.turns.iter().flat_map(Turn::messages).collect();
        Ok(())
    }

    /// Sets a cache of the states of prompts and replies, `None` (the default) for none. A prompt
    /// copies the states of its longest known beginning from the cache instead of running it.
    /// [`GenerationStatistics::reused_tokens`] counts them. Only sessions of the same loaded model
    /// share states.
    ///
    /// [`GenerationStatistics::reused_tokens`]: crate::GenerationStatistics::reused_tokens
    pub fn set_prefix_cache(&mut self, cache: Option<PrefixCache>) {
        self.inner.set_prefix_cache(cache);
    }

    /// Returns the cache of the states of prompts.
    pub fn prefix_cache(&self) -> Option<&PrefixCache> {
        self.inner.prefix_cache()
    }
}

/// Returns turns as JSON. `indexes` are those of their pictures and sounds, in order.
fn saved_turns(turns: &[Turn], indexes: Vec<usize>) -> Result<Vec<u8>> {
    let mut indexes = indexes.into_iter();
    let saved: Vec<SavedTurn> = turns.iter().map(|turn| saved_turn(turn, &mut indexes)).collect();
    let json = serde_json::to_vec(&saved).map_err(|error| Error::internal(error.to_string()))?;
    format::expect_readable::<Vec<SavedTurn>>(&json)?;
    Ok(json)
}

/// The content of a file, before its states.
struct Content {
    history: Prompt,
    turns: Vec<Turn>,
    soft: Vec<Soft>,
}

impl Content {
    fn read(reader: &mut Reader<impl Read>, head: &Head, bounds: Bounds) -> Result<Content> {
        let ids = reader.tokens(head)?;
        let turns: Vec<SavedTurn> = reader.turns(head)?;
        let (mut parts, mut placed) = (Vec::new(), Vec::new());
        for part in &head.parts {
            let values = reader.rows(part, bounds.width)?;
            // A tower of this model may compute other rows for the same picture.
            let mut known_by: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            known_by.extend_from_slice(part.origin.bytes());
            let rows = SoftRows::new(bounds.width as usize, values, *Digest::of(&known_by).bytes());
            let rows = Arc::new(rows.map_err(|error| damaged(error.to_string()))?);
            let begins = part.begins.iter().map(|begin| usize::try_from(*begin).unwrap_or(usize::MAX));
            placed.extend(begins.map(|begin| (begin, Arc::clone(&rows))));
            let sense = match part.sense {
                SavedSense::Picture => Sense::Picture,
                SavedSense::Sound => Sense::Sound,
            };
            parts.push((sense, rows));
        }
        placed.sort_by_key(|(begin, _)| *begin);
        let history = Prompt::with_parts(ids, placed)?;
        let mut soft = Vec::new();
        let turns = turns.into_iter().map(|turn| restored_turn(turn, &parts, &mut soft));
        let turns = turns.collect::<Result<Vec<Turn>>>()?;
        turns.iter().try_for_each(Turn::check).map_err(|error| damaged(error.to_string()))?;
        Ok(Content { history, turns, soft })
    }
}

/// Reads a saved session without a model, for a context of at most `context` positions and rows of
/// `width` values, and returns the number of its turns and tokens. Tests of hostile files call it.
///
/// # Errors
///
/// The errors of [`Model::restore`] that do not depend on a model.
pub(crate) fn inspect(file: impl Read, length: u64, context: u64, width: u64) -> Result<(usize, usize)> {
    let mut reader = Reader::new(file);
    let (head, head_bytes) = reader.head()?;
    let bounds = Bounds { context, width };
    head.expect_bounds(bounds, length, head_bytes)?;
    let content = Content::read(&mut reader, &head, bounds)?;
    reader.finish(length)?;
    Ok((content.turns.len(), content.history.ids().len()))
}

impl Model {
    /// Restores a session that [`Session::save`] wrote. With the same model, plan and engine it
    /// continues with the same bits as the saved one, without running a token again. Otherwise its
    /// tokens are run again with the next reply, and [`Restored::recomputed`] has the reason.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a damaged file, [`ErrorKind::Incompatible`] if it was saved with
    /// another vocabulary, or has pictures or sounds of another model, [`ErrorKind::Context`] if it
    /// has more tokens than the context, and the errors of [`Model::session`].
    pub fn restore(&self, path: impl AsRef<Path>) -> Result<Restored> {
        let path = path.as_ref();
        let restore = || {
            let (file, length) = open(path, Links::Followed)?;
            self.restore_from(BufReader::new(file), length)
        };
        restore().at(path.display())
    }

    fn restore_from(&self, file: impl Read, length: u64) -> Result<Restored> {
        let mut reader = Reader::new(file);
        let (head, head_bytes) = reader.head()?;
        let (chain, own) = (&self.inner.chain, &self.inner.chain.description().model);
        if head.vocabulary != vocabulary(self.tokenizer()?) {
            let what =
                format!("saved with the model `{}`, which has another vocabulary than `{own}`", head.model);
            return Err(
                Error::incompatible(what).with_help("restore it with the model that it was saved with")
            );
        }
        let bounds = Bounds { context: chain.context(), width: chain.description().structure.hidden };
        let identity = chain.identity();
        let mut recomputed = difference(&head, own, &self.plan_id(), identity);
        if !head.parts.is_empty() && matches!(recomputed, Some(RestoreReason::Model { .. })) {
            let what = format!("the session has pictures or sounds that `{}` read, not `{own}`", head.model);
            return Err(
                Error::incompatible(what).with_help("restore it with the model that it was saved with")
            );
        }
        head.expect_bounds(bounds, length, head_bytes)?;
        let Content { history, turns, soft } = Content::read(&mut reader, &head, bounds)?;
        let mut session = self.session()?;
        session.inner.remember(&history)?;
        if let (None, StatesHead::Saved(states)) = (&recomputed, &head.states) {
            match session.inner.read_states(states, &mut reader).map_err(Error::from) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Shim => {
                    recomputed = Some(RestoreReason::NotLoaded(error.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        reader.finish(length)?;
        session.messages = turns.iter().flat_map(Turn::messages).collect();
        (session.turns, session.soft) = (turns, soft);
        Ok(Restored { session, recomputed })
    }
}

#[cfg(test)]
mod tests;
