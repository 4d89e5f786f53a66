//! The turns of a session: how they are added and removed, and the prompt that they become.

use std::sync::Arc;
use std::time::{Duration, Instant};

use shardwright_runtime::{Prompt, SoftRows};
use shardwright_text::{Message, PartTokens};
use shardwright_vocabulary::{Part, Watch};

use super::reply::{DetachedReply, OnFailure, Reply};
use super::{Session, misplaced};
use crate::parts::{Prepared, Sense, prepare};
use crate::turns::{called, checked};
use crate::{ChatPart, Error, ErrorKind, Result, Role, Turn, TurnPart};

/// Rows of a picture or a sound in a prompt.
pub(super) type Soft = (Sense, Arc<SoftRows>);

impl Session {
    /// Adds a system turn. Chat templates support one only before the first user turn.
    pub fn system(&mut self, text: impl Into<String>) {
        self.push_turn(Turn::system(text));
    }

    /// Adds a user turn and starts the reply. The reply becomes a turn of the conversation when it
    /// is done or dropped. If it fails, or is stopped before it produced any text, the user turn is
    /// removed again and can be repeated.
    ///
    /// Control tokens that `text` spells out, such as `<|turn>`, are encoded as plain text and do
    /// not open or close a turn. This also applies to system turns, tools, their results and
    /// earlier replies. `template.control_tokens_in_text` encodes them as control tokens, as
    /// Hugging Face does.
    pub fn chat(&mut self, text: impl Into<String>) -> Result<Reply<'_>> {
        self.chat_parts([ChatPart::Text(text.into())])
    }

    /// Adds a user turn with pictures and sounds, in the order of its parts, and starts the reply
    /// like [`chat`](Self::chat). The first picture or sound opens its tower, and equal pictures
    /// and sounds are not run again.
    ///
    /// Unsupported parts and a conversation that exceeds the context are detected before any tower
    /// or shard runs.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for a model without such a tower or template, errors of reading
    /// the parts, [`ErrorKind::Context`], and [`ErrorKind::Cancelled`] if the cancel handle was
    /// used while a tower was opened or ran.
    pub fn chat_parts(&mut self, parts: impl IntoIterator<Item = ChatPart>) -> Result<Reply<'_>> {
        self.chat_parts_watched(parts, &mut ())
    }

    /// Starts the reply like [`chat_parts`](Self::chat_parts), with progress until the reply
    /// begins. The first time may take seconds: files of a bundle's tower are hashed unless proofs
    /// exist, see `verified_towers` of [`Model::report`](crate::Model::report). `watch` can also
    /// cancel opening a tower.
    ///
    /// # Errors
    ///
    /// The errors of [`chat_parts`](Self::chat_parts).
    pub fn chat_parts_watched(
        &mut self,
        parts: impl IntoIterator<Item = ChatPart>,
        watch: &mut dyn Watch,
    ) -> Result<Reply<'_>> {
        let reply = self.begin_parts(parts, watch)?;
        Ok(Reply::new(self, reply))
    }

    pub(super) fn begin_parts(
        &mut self,
        parts: impl IntoIterator<Item = ChatPart>,
        watch: &mut dyn Watch,
    ) -> Result<DetachedReply> {
        let (start, known) = (Instant::now(), self.soft.len());
        self.push_turn(Turn::new(Role::User, parts));
        match self.rows_after(self.turns.len() - 1, watch) {
            Ok(rows) => self.soft.extend(rows),
            Err(error) => {
                self.pop_turn();
                return Err(error);
            }
        }
        let took = if self.soft.len() > known { start.elapsed() } else { Duration::ZERO };
        self.start(took, OnFailure::RemovesTurn { rows: known })
    }

    /// Replaces the conversation by `turns`, and starts the reply to the last one. Tokens of an
    /// equal beginning are not run again, and pictures and sounds of equal first turns are not read
    /// again. The turns stay if the reply fails.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Argument`] for turns that do not fit together, such as a result without a call,
    /// and the errors of [`chat_parts`](Self::chat_parts). The conversation is then unchanged.
    pub fn reply_to(&mut self, turns: Vec<Turn>) -> Result<Reply<'_>> {
        self.reply_to_watched(turns, &mut ())
    }

    /// Starts the reply like [`reply_to`](Self::reply_to), with progress until the reply begins.
    ///
    /// # Errors
    ///
    /// The errors of [`reply_to`](Self::reply_to).
    pub fn reply_to_watched(&mut self, turns: Vec<Turn>, watch: &mut dyn Watch) -> Result<Reply<'_>> {
        let reply = self.begin_turns(turns, watch)?;
        Ok(Reply::new(self, reply))
    }

    pub(super) fn begin_turns(&mut self, turns: Vec<Turn>, watch: &mut dyn Watch) -> Result<DetachedReply> {
        let turns = checked(turns)?;
        expect_question(&turns)?;
        let start = Instant::now();
        let equal = turns.iter().zip(&self.turns).take_while(|(new, old)| new == old).count();
        let rows: usize = turns[..equal].iter().map(Turn::soft_parts).sum();
        let kept = self.soft.get(..rows).unwrap_or_default().to_vec();
        let messages = turns.iter().flat_map(Turn::messages).collect();
        let before = (
            std::mem::replace(&mut self.turns, turns),
            std::mem::replace(&mut self.messages, messages),
            std::mem::replace(&mut self.soft, kept),
        );
        let started = self.rows_after(equal, watch).and_then(|rows| {
            let took = if rows.is_empty() { Duration::ZERO } else { start.elapsed() };
            self.soft.extend(rows);
            let prompt = self.conversation(&self.soft)?;
            Ok(self.reply(prompt, true)?.after_parts(took))
        });
        match started {
            Ok(generation) => Ok(DetachedReply::new(generation, Some(OnFailure::KeepsTurns))),
            Err(error) => {
                (self.turns, self.messages, self.soft) = before;
                Err(error)
            }
        }
    }

    /// Adds the result of a call to the conversation, as a turn of the role `tool`. Once all calls
    /// of a reply have results, [`answer`](Self::answer) continues.
    ///
    /// Control tokens that `content` spells out are encoded as plain text.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Argument`] if no call of the conversation has this id.
    pub fn tool_result(&mut self, id: &str, content: impl Into<String>) -> Result<()> {
        let name = called(&self.turns, id)?.to_owned();
        let result = TurnPart::ToolResult { id: id.to_owned(), name, content: content.into() };
        self.push_turn(Turn { role: Role::Tool, parts: vec![result] });
        Ok(())
    }

    /// Starts the reply to the turns so far, which end with results of calls or with a turn of the
    /// user. The turns stay if the reply fails.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Argument`] if there are no turns or the last one is the model's, and the errors
    /// of [`chat`](Self::chat).
    pub fn answer(&mut self) -> Result<Reply<'_>> {
        let reply = self.begin_answer()?;
        Ok(Reply::new(self, reply))
    }

    pub(super) fn begin_answer(&mut self) -> Result<DetachedReply> {
        expect_question(&self.turns)?;
        self.start(Duration::ZERO, OnFailure::KeepsTurns)
    }

    /// Returns the turns so far.
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// Returns the turns so far as chat templates get them.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Removes the oldest user turn with its reply, and any turns in between. System turns stay.
    /// Returns `false` if there is no user turn. Use it before the next turn of a conversation that
    /// exceeds the context.
    pub fn forget_oldest_turn(&mut self) -> bool {
        let is_user = |turn: &Turn| turn.role == Role::User;
        let Some(first) = self.turns.iter().position(is_user) else { return false };
        let end = self.turns[first + 1..].iter().position(is_user);
        let end = end.map_or(self.turns.len(), |next| first + 1 + next);
        let parts: usize = self.turns.drain(first..end).map(|turn| turn.soft_parts()).sum();
        self.messages = self.turns.iter().flat_map(Turn::messages).collect();
        self.soft.drain(..parts);
        true
    }

    /// Removes all turns and the history.
    pub fn clear(&mut self) {
        self.forget_turns();
        self.inner.clear();
    }

    pub(super) fn forget_turns(&mut self) {
        self.turns.clear();
        self.messages.clear();
        self.soft.clear();
    }

    pub(super) fn push_turn(&mut self, turn: Turn) {
        self.messages.extend(turn.messages());
        self.turns.push(turn);
    }

    pub(super) fn pop_turn(&mut self) {
        if let Some(turn) = self.turns.pop() {
            self.messages.truncate(self.messages.len().saturating_sub(turn.messages().len()));
        }
    }

    /// Starts the reply to the turns. If it does not start, `failure` applies. `took` is the time
    /// spent on pictures and sounds.
    fn start(&mut self, took: Duration, failure: OnFailure) -> Result<DetachedReply> {
        match self.conversation(&self.soft).and_then(|prompt| self.reply(prompt, true)) {
            Ok(generation) => Ok(DetachedReply::new(generation.after_parts(took), Some(failure))),
            Err(error) => {
                self.undo(failure);
                Err(error)
            }
        }
    }

    pub(super) fn undo(&mut self, failure: OnFailure) {
        if let OnFailure::RemovesTurn { rows } = failure {
            self.pop_turn();
            self.soft.truncate(rows);
        }
    }

    /// Returns the rows of the pictures and sounds in the turns from `first` on. The session has
    /// the rows of earlier ones.
    fn rows_after(&self, first: usize, watch: &mut dyn Watch) -> Result<Vec<Soft>> {
        let parts = self.turns[first..].iter().flat_map(|turn| &turn.parts);
        let parts: Vec<&ChatPart> = parts.filter_map(TurnPart::chat_part).collect();
        if parts.is_empty() {
            return Ok(Vec::new());
        }
        let processor = self.towers.processor()?;
        parts.iter().filter_map(|part| part.sense()).try_for_each(|sense| self.towers.expect(sense))?;
        let mut prepared = Vec::new();
        for part in parts {
            let Some(part) = prepare(part, &processor, self.picture_tokens)? else { continue };
            self.towers.expect_room(&part, &processor)?;
            prepared.push(part);
        }
        self.fits(&prepared)?;
        let cancel = self.inner.cancel_handle();
        let (mut all, count) = (Part::new(watch, 0..1000), prepared.len().max(1));
        let encode = |(index, part): (usize, &Prepared)| {
            let end = u32::try_from((index + 1) * 1000 / count).unwrap_or(1000);
            let rows = self.towers.encode(part, &processor, &cancel, &mut all.then(end))?;
            Ok((part.sense, rows))
        };
        prepared.iter().enumerate().map(encode).collect()
    }

    /// Checks that the context has room for the conversation with these parts in its last turns.
    fn fits(&self, prepared: &[Prepared]) -> Result<()> {
        let cancel = self.inner.cancel_handle();
        let ids = self.text.encode_until(&self.messages, &self.render_options(), &cancel)?;
        let counts = self.soft.iter().map(|(_, rows)| rows.rows());
        let counts = counts.chain(prepared.iter().map(|part| part.soft_tokens));
        // Each placeholder is replaced with its rows, one token before them and one after.
        self.expect_context(ids.len() + counts.map(|count| count + 1).sum::<usize>(), true)
    }

    /// Returns the conversation with rows in place of its placeholders.
    pub(super) fn conversation(&self, soft: &[Soft]) -> Result<Prompt> {
        let cancel = self.inner.cancel_handle();
        let ids = self.text.encode_until(&self.messages, &self.render_options(), &cancel)?;
        if soft.is_empty() {
            return Ok(ids.into());
        }
        let tokens = self.text.prompt_tokens();
        let kinds = [(Sense::Picture, tokens.picture), (Sense::Sound, tokens.sound)];
        let mut prompt = Prompt::new();
        let mut left = soft.iter();
        for id in ids {
            let kind = kinds.iter().find_map(|(sense, tokens)| {
                Some((*sense, tokens.filter(|tokens| tokens.placeholder == id)?))
            });
            let Some((sense, PartTokens { placeholder, begin, end })) = kind else {
                prompt.push_tokens(&[id]);
                continue;
            };
            let Some((_, rows)) = left.next().filter(|(of, _)| *of == sense) else { return Err(misplaced()) };
            prompt.push_tokens(&[begin]);
            prompt.push_soft(placeholder, rows);
            prompt.push_tokens(&[end]);
        }
        match left.next() {
            None => Ok(prompt),
            Some(_) => Err(misplaced()),
        }
    }
}

/// Checks that a reply can follow the turns.
fn expect_question(turns: &[Turn]) -> Result<()> {
    let what = match turns.last().map(|turn| turn.role) {
        None => "the conversation has no turns",
        Some(Role::Assistant) => "the last turn is the model's",
        Some(_) => return Ok(()),
    };
    Err(Error::new(ErrorKind::Argument, what)
        .with_help("end with a turn of the user, or with results of calls"))
}
