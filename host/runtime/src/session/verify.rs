//! One step over a token and the drafted tokens after it.

use std::ops::ControlFlow;

use shardwright_drafting::Speculation;
use shardwright_vocabulary::EntryKind;

use super::Session;
use crate::error::{SessionError, no_tokens};

/// Callback that receives the index of a row and the logits after it, and returns whether the next
/// row's token is accepted.
pub(crate) type Judge<'j> = &'j mut dyn FnMut(usize, &[f32]) -> ControlFlow<()>;

impl Session {
    /// Sets the drafts for the next generations, `None` (the default) for none. The drafts keep
    /// their acceptance statistics from reply to reply.
    pub fn set_speculation(&mut self, speculation: Option<Speculation>) {
        self.speculation = speculation;
    }

    /// Returns the session's drafts.
    pub fn speculation(&self) -> Option<&Speculation> {
        self.speculation.as_ref()
    }

    /// Removes the drafts from the session and returns them.
    pub fn take_speculation(&mut self) -> Option<Speculation> {
        self.speculation.take()
    }

    /// Returns the largest number of rows of a step with logits for each row, which is the rows of
    /// the chain's largest decode entry.
    pub fn decode_rows(&self) -> usize {
        let chain = &self.engine.chain;
        let rows = chain.schedules(EntryKind::Decode).map(|index| chain.layout().schedules[index].point.rows);
        rows.max().map_or(0, |rows| usize::try_from(rows).unwrap_or(usize::MAX))
    }

    /// Returns the leading tokens of `drafted` that can run after one more token. They must fit
    /// into the context and into a decode entry, and the model must have embeddings for them.
    pub(crate) fn runnable<'d>(&self, drafted: &'d [u32]) -> &'d [u32] {
        let room = self.decode_rows().min(self.remaining()).saturating_sub(1);
        let known = drafted.iter().take_while(|id| self.check_vocabulary(&[**id]).is_ok());
        &drafted[..known.take(room).count()]
    }

    /// Runs the last token of the history again, so that all logits after it are exact.
    pub(crate) fn repeat_last(&mut self) -> Result<(), SessionError> {
        let Some(&last) = self.tokens.last() else { return Err(no_tokens()) };
        self.truncate(self.tokens.len() - 1)?;
        self.looking_at(None, |session| session.append(&[last])).map(drop)
    }

    /// Runs `certain` and `drafted` after the history in one step, and passes the logits after each
    /// row to the judge until it breaks. Rows that the judge has not seen are discarded. The
    /// history then ends with the last seen row, and [`Session::logits`] are the logits after that
    /// row. Returns the number of rows that stay.
    ///
    /// If the chain's decode entries have fewer rows, as may happen after a failover, only the
    /// leading tokens run.
    pub(crate) fn verify(
        &mut self,
        certain: u32,
        drafted: &[u32],
        judge: Judge<'_>,
    ) -> Result<usize, SessionError> {
        self.soft.trim(self.tokens.len());
        let ids = [&[certain], drafted].concat();
        self.check_generative(&ids)?;
        self.with_failover(self.tokens.len() + 1, &mut |session| {
            let unfilled = session.tokens[session.filled..].to_vec();
            session.prefill(&unfilled, unfilled.len(), &mut |_| {})?;
            let chain = session.engine.chain.clone();
            let rows = |index: &usize| chain.layout().schedules[*index].point.rows >= ids.len() as u64;
            let mut schedules = chain.schedules(EntryKind::Decode);
            let Some(schedule) = schedules.clone().find(rows).or_else(|| schedules.next_back()) else {
                return Ok(0);
            };
            // The next chain may have a shorter context.
            let ids = &ids[..ids.len().min(session.remaining().max(1))];
            session.step_keeping(schedule, ids, &mut |view| {
                for row in 0..view.rows() {
                    let goes_on =
                        view.logits(row).map_or(ControlFlow::Break(()), |logits| judge(row, logits));
                    if goes_on.is_break() {
                        return row + 1;
                    }
                }
                view.rows()
            })
        })
    }
}
