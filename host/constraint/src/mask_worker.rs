//! Computes the mask of the next token on a thread of its own, while the model runs.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use llguidance::Matcher;
use shardwright_vocabulary::{Error, Result};

use crate::constraint::STACK_BYTES;
use crate::faults;

/// The tokens that may follow.
#[derive(Clone)]
pub(crate) enum Next {
    /// The mask, in words of 32 tokens.
    Mask(Vec<u32>),
    /// The text is complete, and no token can follow.
    End,
    /// The text is incomplete, and no token can follow.
    Stuck,
    /// The parser failed.
    Failed(String),
}

/// A parser with the tokens that may follow.
type Masked = (Box<Matcher>, Next);

/// A thread that computes masks. It ends when this value is dropped.
pub(crate) struct Worker {
    parsers: Sender<Box<Matcher>>,
    masks: Receiver<Masked>,
}

impl Worker {
    /// Starts the thread, or returns `None` if the system lacks one.
    pub(crate) fn start() -> Option<Worker> {
        let (parsers, work) = channel::<Box<Matcher>>();
        let (done, masks) = channel();
        let run = move || {
            for mut parser in work {
                let mask = mask_of(&mut parser);
                if done.send((parser, mask)).is_err() {
                    return;
                }
            }
        };
        let builder = thread::Builder::new().name("grammar".to_owned()).stack_size(STACK_BYTES);
        builder.spawn(run).ok()?;
        Some(Worker { parsers, masks })
    }

    /// Passes the parser to the thread. Returns it if the thread has ended.
    pub(crate) fn begin(&self, parser: Box<Matcher>) -> Option<Box<Matcher>> {
        self.parsers.send(parser).err().map(|unsent| unsent.0)
    }

    /// Waits for the parser and its mask.
    pub(crate) fn end(&self) -> Result<Masked> {
        self.masks.recv().map_err(|_| ended())
    }
}

/// Computes the tokens that may follow. Without any, the parser fails from now on.
pub(crate) fn mask_of(parser: &mut Matcher) -> Next {
    let complete = parser.is_accepting();
    let message = match (complete, parser.compute_mask()) {
        (Ok(_), Ok(mask)) => return Next::Mask(mask.as_slice().to_vec()),
        (complete, Err(error)) => {
            let message = format!("{error:#}");
            match complete {
                Ok(complete) if message.contains("NoExtension") => {
                    return if complete { Next::End } else { Next::Stuck };
                }
                _ => message,
            }
        }
        (Err(error), Ok(_)) => format!("{error:#}"),
    };
    Next::Failed(message)
}

fn ended() -> Error {
    faults::of_library("cannot compute the next tokens of the grammar", "its thread has ended")
}
