//! A draft on a thread of its own: one that never answers must not take the reply with it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use shardwright_text::SamplingParameters;

use crate::draft::{Draft, Proposal};
use crate::error::DraftError;

/// How long a draft is waited for, unless told otherwise.
pub const PATIENCE: Duration = Duration::from_secs(2);

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

/// Asks a draft on another thread. A draft that hangs keeps that thread.
pub(crate) struct Detached {
    name: String,
    questions: Sender<Question>,
    answers: Receiver<Answer>,
    /// Of the last question.
    number: u64,
    pub(crate) patience: Duration,
    pub(crate) memory: u64,
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
        started.map(|_| Detached { name, questions, answers, number: 0, patience, memory })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn begin(&mut self, sampling: &SamplingParameters) {
        // A thread that ended is noticed when it is asked.
        let _ = self.questions.send(Question::Begin(*sampling));
    }

    /// The draft's proposal; an empty one as soon as `interrupted` says so.
    pub(crate) fn propose(
        &mut self,
        history: &[u32],
        most: usize,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Proposal, DraftError> {
        self.number += 1;
        let question = Question::Propose { number: self.number, history: history.to_vec(), most };
        self.answer(question, interrupted)
    }

    /// Has the draft give its memory back, and waits for that. One that does not answer in time is
    /// found when it is next asked.
    pub(crate) fn release(&mut self) {
        self.number += 1;
        let _ = self.answer(Question::Release { number: self.number }, &|| false);
    }

    fn answer(&mut self, question: Question, interrupted: &dyn Fn() -> bool) -> Result<Proposal, DraftError> {
        let start = Instant::now();
        if self.questions.send(question).is_err() {
            return Err(self.died());
        }
        loop {
            let left = self.patience.saturating_sub(start.elapsed());
            match self.answers.recv_timeout(left.min(LOOK)) {
                Ok(answer) if answer.number == self.number => {
                    self.memory = answer.memory;
                    return answer.proposal;
                }
                // Of a question whose answer was not waited for.
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(self.died()),
                Err(RecvTimeoutError::Timeout) if interrupted() => return Ok(Proposal::default()),
                Err(RecvTimeoutError::Timeout) if start.elapsed() >= self.patience => {
                    return Err(DraftError::NotAnswered { draft: self.name.clone(), after: self.patience });
                }
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
