//! Runs a draft on a separate thread, so that a draft that never answers cannot block the reply.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use shardwright_text::SamplingParameters;
use shardwright_vocabulary::{Error, ErrorKind, Result};

use crate::draft::{DRAFTED_MAX, Draft, Proposal};
use crate::speculation::CONTINUE;

/// Default time limit for a draft's answer.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Multiple of the time limit that a draft may use to read a prompt. The reply continues without
/// the draft meanwhile.
pub const READING_PATIENCE: u32 = 30;

/// Initial wait for reading, which is sufficient for a short prompt.
const READING_WAITED: Duration = Duration::from_millis(100);

/// Number of unread tokens that exceeds one step. They are a prompt, or were generated while the
/// draft was paused.
const UNREAD: usize = DRAFTED_MAX + 1;

/// Interval for checking whether the reply was cancelled.
const LOOK: Duration = Duration::from_millis(5);

enum Question {
    Begin(SamplingParameters),
    Propose { number: u64, history: Vec<u32>, most: usize },
    Release { number: u64 },
}

struct Answer {
    number: u64,
    proposal: Result<Proposal>,
    memory: u64,
}

/// Result of waiting for an answer.
enum Awaited {
    Answered(Proposal),
    Interrupted,
    Late,
}

/// A proposal with its circumstances.
#[derive(Default)]
pub(crate) struct Answered {
    pub(crate) proposal: Proposal,
    /// Whether the draft read a prompt for it, which takes longer than other proposals.
    pub(crate) reads: bool,
}

/// A draft on another thread. A draft that hangs keeps that thread.
pub(crate) struct Detached {
    name: String,
    questions: Sender<Question>,
    answers: Receiver<Answer>,
    /// Number of the last request.
    number: u64,
    pub(crate) patience: Duration,
    pub(crate) memory: u64,
    /// Length of the history at the last request for this reply.
    read: usize,
    /// Start of reading many tokens, during which no request waits for an answer.
    reading: Option<Instant>,
}

impl Detached {
    pub(crate) fn new(draft: Box<dyn Draft>, patience: Duration) -> Result<Self> {
        let (name, memory) = (draft.name(), draft.memory_bytes());
        let (questions, asked) = channel();
        let (answer, answers) = channel();
        let started = thread::Builder::new()
            .name("draft".to_owned())
            .spawn(move || serve(draft, &asked, &answer))
            .map_err(|error| died(&error.to_string()));
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
        // The reply may have another prompt of any length.
        self.read = 0;
        // The next request detects a thread that ended.
        let _ = self.questions.send(Question::Begin(*sampling));
    }

    /// Returns the draft's proposal. It is empty if `interrupted` returns true, and while the draft
    /// reads more tokens than a step adds, after a short wait.
    pub(crate) fn propose(
        &mut self,
        history: &[u32],
        most: usize,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Answered> {
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
        self.questions.send(question).map_err(|_| died(ENDED))?;
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

    /// Returns whether the draft has finished reading.
    fn has_read(&mut self, since: Instant) -> Result<bool> {
        loop {
            match self.answers.try_recv() {
                Ok(answer) if answer.number == self.number => {
                    self.memory = answer.memory;
                    return answer.proposal.map(|_| true);
                }
                // The answer belongs to an earlier request.
                Ok(_) => {}
                Err(TryRecvError::Disconnected) => return Err(died(ENDED)),
                Err(TryRecvError::Empty) => break,
            }
        }
        let after = since.elapsed();
        match after < self.patience.saturating_mul(READING_PATIENCE) {
            true => Ok(false),
            false => Err(not_answered(after)),
        }
    }

    /// Makes the draft release its memory, and waits for it. The next request detects a draft that
    /// does not answer in time.
    pub(crate) fn release(&mut self) {
        // The draft's states are gone, and later answers are ignored.
        (self.read, self.reading) = (0, None);
        self.number += 1;
        if self.questions.send(Question::Release { number: self.number }).is_ok() {
            let _ = self.answer(Instant::now(), &|| false);
        }
    }

    /// Waits for the answer to the last request, made at `start`. Returns an empty one if
    /// `interrupted` returns true.
    fn answer(&mut self, start: Instant, interrupted: &dyn Fn() -> bool) -> Result<Proposal> {
        match self.awaited(start, self.patience, interrupted)? {
            Awaited::Answered(proposal) => Ok(proposal),
            Awaited::Interrupted => Ok(Proposal::default()),
            Awaited::Late => Err(not_answered(self.patience)),
        }
    }

    fn awaited(
        &mut self,
        start: Instant,
        longest: Duration,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Awaited> {
        loop {
            let left = longest.saturating_sub(start.elapsed());
            match self.answers.recv_timeout(left.min(LOOK)) {
                Ok(answer) if answer.number == self.number => {
                    self.memory = answer.memory;
                    return answer.proposal.map(Awaited::Answered);
                }
                // The answer belongs to an earlier request.
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(died(ENDED)),
                Err(RecvTimeoutError::Timeout) if interrupted() => return Ok(Awaited::Interrupted),
                Err(RecvTimeoutError::Timeout) if start.elapsed() >= longest => return Ok(Awaited::Late),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

const ENDED: &str = "its thread ended";

/// Returns the error of a draft that panicked, or whose thread could not be started.
fn died(reason: &str) -> Error {
    Error::new(ErrorKind::Shim, format!("died: {reason}")).with_help(CONTINUE)
}

fn not_answered(after: Duration) -> Error {
    Error::new(ErrorKind::Shim, format!("gave no answer within {} ms", after.as_millis()))
        .with_help("use a faster draft, or wait longer for it")
}

fn serve(mut draft: Box<dyn Draft>, asked: &Receiver<Question>, answer: &Sender<Answer>) {
    while let Ok(question) = asked.recv() {
        // A draft that panicked is not used again, so its state does not matter.
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
            Err(panic) => (Err(died(&reason(&*panic))), false),
        };
        let memory = draft.memory_bytes();
        if answer.send(Answer { number, proposal, memory }).is_err() || !goes_on {
            return;
        }
    }
}

/// Returns the message of a panic.
fn reason(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".to_owned())
}
