//! One step over a token and what a draft expects after it.

use std::ops::ControlFlow;

use shardwright_drafting::Speculation;
use shardwright_vocabulary::EntryKind;

use super::Session;
use crate::error::SessionError;

/// Sees the index of a row and the logits after it, and says whether the next row's token stands.
pub(crate) type Judge<'j> = &'j mut dyn FnMut(usize, &[f32]) -> ControlFlow<()>;

impl Session {
    /// Sets the drafts of the generations to come; `None`, as in a new session: none. What was
    /// learned of their acceptance is kept with them from reply to reply.
    pub fn set_speculation(&mut self, speculation: Option<Speculation>) {
        self.speculation = speculation;
    }

    /// The drafts.
    pub fn speculation(&self) -> Option<&Speculation> {
        self.speculation.as_ref()
    }

    /// The drafts, which the session has no more.
    pub fn take_speculation(&mut self) -> Option<Speculation> {
        self.speculation.take()
    }

    /// Most rows of a step with logits for each: those of the largest decode entry of the chain.
    pub fn decode_rows(&self) -> usize {
        let chain = &self.engine.chain;
        let rows = chain.schedules(EntryKind::Decode).map(|index| chain.layout().schedules[index].point.rows);
        rows.max().map_or(0, |rows| usize::try_from(rows).unwrap_or(usize::MAX))
    }

    /// Of `drafted`, the leading ones that can be run after one more token: those that fit into the
    /// context and into a decode entry, and that the model has embeddings for.
    pub(crate) fn runnable<'d>(&self, drafted: &'d [u32]) -> &'d [u32] {
        let room = self.decode_rows().min(self.remaining()).saturating_sub(1);
        let known = drafted.iter().take_while(|id| self.check_vocabulary(&[**id]).is_ok());
        &drafted[..known.take(room).count()]
    }

    /// Runs `certain` and `drafted` after the history in one step, and shows the logits after each
    /// row until the judge breaks. Rows that it has not seen are discarded, so that the history
    /// ends with the last row it saw, and [`Session::logits`] are those after that row. Returns the
    /// rows that stay.
    ///
    /// A chain whose decode entries have fewer rows, as the next chain after a loss may, runs the
    /// leading ones alone.
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
