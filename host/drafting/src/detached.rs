//! A draft on a thread of its own: one that never answers must not take the reply with it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use shardwright_text::SamplingParameters;

use crate::draft::{DRAFTED_MAX, Draft, Proposal};
use crate::error::DraftError;

/// How long a draft is waited for, unless told otherwise.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// How many times as long a draft may read a prompt, while the reply goes on without it.
pub const READING_PATIENCE: u32 = 30;

/// How long is waited for that at first: a short prompt is read by then.
const READING_WAITED: Duration = Duration::from_millis(100);

/// Tokens that are more than a step can have added: they are a prompt, or what was generated while
/// the draft was not asked.
const UNREAD: usize = DRAFTED_MAX + 1;

/// How often it is looked whether the reply was cancelled meanwhile.
const LOOK: Duration = Duration::from_millis(5);

enum Question {
    Begin(SamplingParameters),
    Propose { number: u64, history: Vec<u32>, most: usize },
    Release { number: u64 },
}

struct Answer {
    number: u64,
    proposal: Result<Proposal, DraftError>,
    memory: u64,
}

/// What came of a question.
enum Awaited {
    Answered(Proposal),
    Interrupted,
    Late,
}

/// A proposal.
#[derive(Default)]
pub(crate) struct Answered {
    pub(crate) proposal: Proposal,
    /// Whether the draft read a prompt for it, so that it took longer than others.
    pub(crate) reads: bool,
}

/// Asks a draft on another thread. A draft that hangs keeps that thread.
pub(crate) struct Detached {
    name: String,
    questions: Sender<Question>,
    answers: Receiver<Answer>,
    /// Of the last question.
    number: u64,
    pub(crate) patience: Duration,
    pub(crate) memory: u64,
    /// Tokens of the history when it was last asked for this reply.
    read: usize,
    /// Since when it reads many tokens of which nobody waits for an answer.
    reading: Option<Instant>,
}

impl Detached {
    pub(crate) fn new(draft: Box<dyn Draft>, patience: Duration) -> Result<Self, DraftError> {
        let (name, memory) = (draft.name(), draft.memory_bytes());
        let (questions, asked) = channel();
        let (answer, answers) = channel();
        let started = thread::Builder::new()
            .name("draft".to_owned())
            .spawn(move || serve(draft, &asked, &answer))
            .map_err(|error| DraftError::Died { draft: name.clone(), reason: error.to_string() });
        started.map(|_| Detached {
            name,
            questions,
            answers,
            number: 0,
            patience,
            memory,
            read: 0,
            reading: None,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn begin(&mut self, sampling: &SamplingParameters) {
        // The reply may have another prompt, of any length.
        self.read = 0;
        // A thread that ended is noticed when it is asked.
        let _ = self.questions.send(Question::Begin(*sampling));
    }

    /// The draft's proposal; an empty one as soon as `interrupted` says so, and while it reads more
    /// tokens than a step adds, which nothing waits long for.
    pub(crate) fn propose(
        &mut self,
        history: &[u32],
        most: usize,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Answered, DraftError> {
        if let Some(since) = self.reading {
            if !self.has_read(since)? {
                return Ok(Answered::default());
            }
            self.reading = None;
        }
        let unread = history.len().checked_sub(self.read);
        let reads = unread.is_none_or(|unread| unread > UNREAD);
        self.read = history.len();
        self.number += 1;
        let question = Question::Propose { number: self.number, history: history.to_vec(), most };
        let start = Instant::now();
        self.questions.send(question).map_err(|_| self.died())?;
        if !reads {
            let proposal = self.answer(start, interrupted)?;
            return Ok(Answered { proposal, reads });
        }
        match self.awaited(start, self.patience.min(READING_WAITED), interrupted)? {
            Awaited::Answered(proposal) => Ok(Answered { proposal, reads }),
            Awaited::Interrupted | Awaited::Late => {
                self.reading = Some(start);
                Ok(Answered::default())
            }
        }
    }

    /// Whether it has read what it was given to read.
    fn has_read(&mut self, since: Instant) -> Result<bool, DraftError> {
        loop {
            match self.answers.try_recv() {
                Ok(answer) if answer.number == self.number => {
                    self.memory = answer.memory;
                    return answer.proposal.map(|_| true);
                }
                // Of a question whose answer was not waited for.
                Ok(_) => {}
                Err(TryRecvError::Disconnected) => return Err(self.died()),
                Err(TryRecvError::Empty) => break,
            }
        }
        let after = since.elapsed();
        match after < self.patience.saturating_mul(READING_PATIENCE) {
            true => Ok(false),
            false => Err(DraftError::NotAnswered { draft: self.name.clone(), after }),
        }
    }

    /// Has the draft give its memory back, and waits for that. One that does not answer in time is
    /// found when it is next asked.
    pub(crate) fn release(&mut self) {
        // Its states are gone, and an answer that comes later is not waited for.
        (self.read, self.reading) = (0, None);
        self.number += 1;
        if self.questions.send(Question::Release { number: self.number }).is_ok() {
            let _ = self.answer(Instant::now(), &|| false);
        }
    }

    /// The answer to the last question, asked at `start`; an empty one as soon as `interrupted`
    /// says so.
    fn answer(&mut self, start: Instant, interrupted: &dyn Fn() -> bool) -> Result<Proposal, DraftError> {
        match self.awaited(start, self.patience, interrupted)? {
            Awaited::Answered(proposal) => Ok(proposal),
            Awaited::Interrupted => Ok(Proposal::default()),
            Awaited::Late => Err(DraftError::NotAnswered { draft: self.name.clone(), after: self.patience }),
        }
    }

    fn awaited(
        &mut self,
        start: Instant,
        longest: Duration,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Awaited, DraftError> {
        loop {
            let left = longest.saturating_sub(start.elapsed());
            match self.answers.recv_timeout(left.min(LOOK)) {
                Ok(answer) if answer.number == self.number => {
                    self.memory = answer.memory;
                    return answer.proposal.map(Awaited::Answered);
                }
                // Of a question whose answer was not waited for.
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(self.died()),
                Err(RecvTimeoutError::Timeout) if interrupted() => return Ok(Awaited::Interrupted),
                Err(RecvTimeoutError::Timeout) if start.elapsed() >= longest => return Ok(Awaited::Late),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn died(&self) -> DraftError {
        DraftError::Died { draft: self.name.clone(), reason: "its thread ended".to_owned() }
    }
}

fn serve(mut draft: Box<dyn Draft>, asked: &Receiver<Question>, answer: &Sender<Answer>) {
    while let Ok(question) = asked.recv() {
        // A draft that panicked is not asked again, so that its state does not matter.
        let (number, proposal) = match question {
            Question::Begin(sampling) => {
                if catch_unwind(AssertUnwindSafe(|| draft.begin(&sampling))).is_err() {
                    return;
                }
                continue;
            }
            Question::Propose { number, history, most } => {
                (number, catch_unwind(AssertUnwindSafe(|| draft.propose(&history, most))))
            }
            Question::Release { number } => {
                let released = catch_unwind(AssertUnwindSafe(|| draft.release()));
                (number, released.map(|()| Ok(Proposal::default())))
            }
        };
        let (proposal, goes_on) = match proposal {
            Ok(proposal) => (proposal, true),
            Err(panic) => (Err(DraftError::Died { draft: draft.name(), reason: reason(&*panic) }), false),
        };
        let memory = draft.memory_bytes();
        if answer.send(Answer { number, proposal, memory }).is_err() || !goes_on {
            return;
        }
    }
}

/// What a panic said.
fn reason(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".to_owned())
}
