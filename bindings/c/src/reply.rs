//! Replies and their events.

use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shardwright_bindings_core::{EndReason, Error, Event, Reply, Statistics};

use crate::handle::Table;
use crate::memory::{Plain, terminated, write_sized};
use crate::outcome::{Content, ResultOut, sw_result};
use crate::status::{guard, sw_status};

/// A reply in progress.
pub struct sw_reply {
    _private: [u8; 0],
}

/// Kind of an event.
pub type sw_event_kind = i32;
/// There are no more events.
pub const SW_EVENT_END: sw_event_kind = 0;
/// Final text: `text`. Whole characters, never a part of a stop text.
pub const SW_EVENT_TEXT: sw_event_kind = 1;
/// Final text of a thought: `text`.
pub const SW_EVENT_THOUGHT: sw_event_kind = 2;
/// A call of a tool began: `index`, `id`, `name`.
pub const SW_EVENT_TOOL_CALL_BEGIN: sw_event_kind = 3;
/// More of the arguments of a call: `index`, `text`. The texts of a call together are JSON.
pub const SW_EVENT_TOOL_CALL_ARGUMENTS: sw_event_kind = 4;
/// A call is complete: `index`, `id`, `name`, and the arguments as JSON in `text`.
pub const SW_EVENT_TOOL_CALL: sw_event_kind = 5;
/// A call that had begun is not a call: `index`. Its text follows as text of the answer.
pub const SW_EVENT_TOOL_CALL_DROPPED: sw_event_kind = 6;
/// A draft was dropped: `name`, and the reason in `text`. The reply is the same, in more steps.
pub const SW_EVENT_DRAFT_DROPPED: sw_event_kind = 7;
/// A token was chosen: `token`. Only if `token_events` of the settings requests it.
pub const SW_EVENT_TOKEN: sw_event_kind = 8;
/// The reply ended: `reason`, the stop token in `token` or the stop text in `text`.
pub const SW_EVENT_DONE: sw_event_kind = 9;

/// Reason why a reply ended.
pub type sw_end_reason = i32;
/// The model generated a stop token.
pub const SW_END_STOP_TOKEN: sw_end_reason = 0;
/// A stop text was completed.
pub const SW_END_STOP_TEXT: sw_end_reason = 1;
/// The reply matches the grammar, which allows no further token.
pub const SW_END_GRAMMAR: sw_end_reason = 2;
/// The requested number of tokens was reached.
pub const SW_END_MAX_TOKENS: sw_end_reason = 3;
/// The context has no position for another token.
pub const SW_END_CONTEXT_FULL: sw_end_reason = 4;
/// The reply was cancelled.
pub const SW_END_CANCELLED: sw_end_reason = 5;
/// The deadline of the session passed.
pub const SW_END_DEADLINE: sw_end_reason = 6;

/// An event of a reply. Its texts are valid until the next call with the reply.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sw_event {
    /// Size of this struct.
    pub size: usize,
    /// A `SW_EVENT_` constant.
    pub kind: sw_event_kind,
    /// A token id.
    pub token: u32,
    /// A `SW_END_` constant.
    pub reason: sw_end_reason,
    /// Number of a call in the reply.
    pub index: u32,
    /// A text with a 0 byte at its end, or NULL.
    pub text: *const c_char,
    /// Length of `text`, without the 0 byte.
    pub text_bytes: usize,
    /// Id of a call, or NULL.
    pub id: *const c_char,
    /// Name of a tool or of a draft, or NULL.
    pub name: *const c_char,
}

// SAFETY: all fields are numbers and pointers, for which any bits are valid.
unsafe impl Plain for sw_event {
    const FIRST_SIZE: usize = size_of::<Self>();
}

/// Counts and times of a reply.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sw_statistics {
    /// Size of this struct.
    pub size: usize,
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
    /// Time to the first token, in microseconds.
    pub first_token_microseconds: u64,
    /// Time to run the prompt, in microseconds.
    pub prompt_microseconds: u64,
    /// Time from the first token to the last, in microseconds.
    pub decode_microseconds: u64,
    /// Whether the reply ended before it matched its grammar.
    pub incomplete: i32,
    /// 0.
    pub reserved: i32,
}

// SAFETY: all fields are numbers.
unsafe impl Plain for sw_statistics {
    const FIRST_SIZE: usize = size_of::<Self>();
}

/// Receives an event, which is valid during the callback. Returns 0 to continue, and any other
/// number to end the reply.
pub type sw_event_fn = Option<unsafe extern "C" fn(user: *mut c_void, event: *const sw_event) -> i32>;

/// The texts that an event points to.
#[derive(Default)]
struct Texts {
    text: Vec<u8>,
    id: Vec<u8>,
    name: Vec<u8>,
}

struct Entry {
    reply: Reply,
    /// The texts of the last event.
    texts: Mutex<Texts>,
}

impl Entry {
    fn texts(&self) -> MutexGuard<'_, Texts> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

static REPLIES: Table<Arc<Entry>, sw_reply> = Table::new("reply");

/// Adds a reply and returns its handle.
pub(crate) fn add_reply(reply: Reply) -> *mut sw_reply {
    REPLIES.add(Arc::new(Entry { reply, texts: Mutex::default() }))
}

/// Returns the text in `slot`, which replaces the text of the event before.
fn kept(slot: &mut Vec<u8>, text: String) -> *const c_char {
    *slot = terminated(text);
    slot.as_ptr().cast()
}

/// Converts an event. Its texts are kept in `texts`.
fn event_of(event: Option<Event>, texts: &mut Texts) -> sw_event {
    let null = std::ptr::null();
    let mut found = sw_event {
        size: 0,
        kind: SW_EVENT_END,
        token: 0,
        reason: 0,
        index: 0,
        text: null,
        text_bytes: 0,
        id: null,
        name: null,
    };
    let number = |index: u64| u32::try_from(index).unwrap_or(u32::MAX);
    let mut text = None;
    match event {
        None => {}
        Some(Event::Token { id }) => (found.kind, found.token) = (SW_EVENT_TOKEN, id),
        Some(Event::Text { text: said }) => (found.kind, text) = (SW_EVENT_TEXT, Some(said)),
        Some(Event::Thought { text: said }) => (found.kind, text) = (SW_EVENT_THOUGHT, Some(said)),
        Some(Event::ToolCallBegin { index, id, name }) => {
            (found.kind, found.index) = (SW_EVENT_TOOL_CALL_BEGIN, number(index));
            (found.id, found.name) = (kept(&mut texts.id, id), kept(&mut texts.name, name));
        }
        Some(Event::ToolCallArguments { index, text: said }) => {
            (found.kind, found.index, text) = (SW_EVENT_TOOL_CALL_ARGUMENTS, number(index), Some(said));
        }
        Some(Event::ToolCall { index, id, name, arguments }) => {
            (found.kind, found.index, text) = (SW_EVENT_TOOL_CALL, number(index), Some(arguments));
            (found.id, found.name) = (kept(&mut texts.id, id), kept(&mut texts.name, name));
        }
        Some(Event::ToolCallDropped { index }) => {
            (found.kind, found.index) = (SW_EVENT_TOOL_CALL_DROPPED, number(index));
        }
        Some(Event::DraftDropped { name, reason }) => {
            (found.kind, text) = (SW_EVENT_DRAFT_DROPPED, Some(reason));
            found.name = kept(&mut texts.name, name);
        }
        Some(Event::Done { reason, .. }) => {
            found.kind = SW_EVENT_DONE;
            found.reason = match reason {
                EndReason::StopToken { id } => {
                    found.token = id;
                    SW_END_STOP_TOKEN
                }
                EndReason::StopText { text: stop } => {
                    text = Some(stop);
                    SW_END_STOP_TEXT
                }
                EndReason::GrammarEnd => SW_END_GRAMMAR,
                EndReason::MaxTokens => SW_END_MAX_TOKENS,
                EndReason::ContextFull => SW_END_CONTEXT_FULL,
                EndReason::Cancelled => SW_END_CANCELLED,
                EndReason::Deadline => SW_END_DEADLINE,
            };
        }
    }
    if let Some(text) = text {
        found.text_bytes = text.len();
        found.text = kept(&mut texts.text, text);
    }
    found
}

/// Runs the session until the next event and writes it. After the last event and after an error,
/// the kind of the event is `SW_EVENT_END`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_reply_next(reply: *const sw_reply, event: *mut sw_event) -> sw_status {
    guard(|| {
        let entry = REPLIES.get(reply)?;
        // A place that cannot be written must not cost an event.
        write_sized(event, event_of(None, &mut Texts::default()), "the event")?;
        let found = entry.reply.next_event()?;
        write_sized(event, event_of(found, &mut entry.texts()), "the event")
    })
}

/// Passes all further events to `each`, on this thread. `SW_EVENT_END` is not passed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_reply_each(
    reply: *const sw_reply,
    each: sw_event_fn,
    user: *mut c_void,
) -> sw_status {
    guard(|| {
        let entry = REPLIES.get(reply)?;
        let call = each.ok_or_else(|| Error::argument("the callback is NULL", "pass a function"))?;
        // Texts of this call alone, so that a callback may use the reply.
        let mut texts = Texts::default();
        while let Some(event) = entry.reply.next_event()? {
            let event = sw_event { size: size_of::<sw_event>(), ..event_of(Some(event), &mut texts) };
            // SAFETY: the caller passes a function of this type, and the event and its texts
            // outlive the call.
            if unsafe { call(user, &raw const event) } != 0 {
                entry.reply.close();
                break;
            }
        }
        Ok(())
    })
}

/// Runs a reply to its end and returns the rest of its text, without thoughts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_reply_text(reply: *const sw_reply, text: *mut *mut sw_result) -> sw_status {
    guard(|| {
        let out = ResultOut::new(text)?;
        out.set(Content::text(REPLIES.get(reply)?.reply.text()?));
        Ok(())
    })
}

/// Ends a reply early, from any thread. The call in progress, if there is any, delivers its pending
/// text and then `SW_EVENT_DONE` with `SW_END_CANCELLED`.
#[unsafe(no_mangle)]
pub extern "C" fn sw_reply_cancel(reply: *const sw_reply) -> sw_status {
    guard(|| {
        REPLIES.get(reply)?.reply.cancel();
        Ok(())
    })
}

/// Writes counts and times of a reply so far.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_reply_statistics(
    reply: *const sw_reply,
    statistics: *mut sw_statistics,
) -> sw_status {
    guard(|| {
        let found = REPLIES.get(reply)?.reply.statistics()?;
        write_sized(statistics, statistics_of(&found), "the statistics")
    })
}

fn statistics_of(found: &Statistics) -> sw_statistics {
    sw_statistics {
        size: 0,
        prompt_tokens: found.prompt_tokens,
        reused_tokens: found.reused_tokens,
        run_tokens: found.run_tokens,
        recomputed_tokens: found.recomputed_tokens,
        generated_tokens: found.generated_tokens,
        thought_tokens: found.thought_tokens,
        steps: found.steps,
        drafted_tokens: found.drafted_tokens,
        accepted_tokens: found.accepted_tokens,
        first_token_microseconds: found.first_token_microseconds,
        prompt_microseconds: found.prompt_microseconds,
        decode_microseconds: found.decode_microseconds,
        incomplete: i32::from(found.incomplete),
        reserved: 0,
    }
}

/// Closes a reply, which ends it. The conversation keeps its text so far. Returns at once, also
/// while another thread waits for an event.
#[unsafe(no_mangle)]
pub extern "C" fn sw_reply_close(reply: *mut sw_reply) -> sw_status {
    guard(|| {
        REPLIES.remove(reply)?.reply.close();
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn read(pointer: *const c_char) -> Option<String> {
        // SAFETY: the texts of an event end with a 0 byte, and are kept by the caller of this
        // function.
        let text = || unsafe { CStr::from_ptr(pointer) }.to_str().unwrap().to_owned();
        (!pointer.is_null()).then(text)
    }

    #[test]
    fn every_event_has_the_fields_of_its_kind() {
        let mut texts = Texts::default();
        let (id, name, text) = (|| "i".to_owned(), || "n".to_owned(), || "t\0u".to_owned());
        let done = |reason| Event::Done { reason, statistics: Statistics::default() };
        for (event, kind, number, expected) in [
            (Event::Token { id: 7 }, SW_EVENT_TOKEN, 7, [None, None, None]),
            (Event::Text { text: text() }, SW_EVENT_TEXT, 0, [Some("t"), None, None]),
            (Event::Thought { text: text() }, SW_EVENT_THOUGHT, 0, [Some("t"), None, None]),
            (
                Event::ToolCallBegin { index: 1, id: id(), name: name() },
                SW_EVENT_TOOL_CALL_BEGIN,
                1,
                [None, Some("i"), Some("n")],
            ),
            (
                Event::ToolCallArguments { index: 2, text: text() },
                SW_EVENT_TOOL_CALL_ARGUMENTS,
                2,
                [Some("t"), None, None],
            ),
            (
                Event::ToolCall { index: 3, id: id(), name: name(), arguments: text() },
                SW_EVENT_TOOL_CALL,
                3,
                [Some("t"), Some("i"), Some("n")],
            ),
            (Event::ToolCallDropped { index: 4 }, SW_EVENT_TOOL_CALL_DROPPED, 4, [None, None, None]),
            (
                Event::DraftDropped { name: name(), reason: text() },
                SW_EVENT_DRAFT_DROPPED,
                0,
                [Some("t"), None, Some("n")],
            ),
            (done(EndReason::StopToken { id: 9 }), SW_EVENT_DONE, 9, [None, None, None]),
            (done(EndReason::StopText { text: text() }), SW_EVENT_DONE, 1, [Some("t"), None, None]),
            (done(EndReason::GrammarEnd), SW_EVENT_DONE, 2, [None, None, None]),
            (done(EndReason::MaxTokens), SW_EVENT_DONE, 3, [None, None, None]),
            (done(EndReason::ContextFull), SW_EVENT_DONE, 4, [None, None, None]),
            (done(EndReason::Cancelled), SW_EVENT_DONE, 5, [None, None, None]),
            (done(EndReason::Deadline), SW_EVENT_DONE, 6, [None, None, None]),
        ] {
            let shown = format!("{event:?}");
            let found = event_of(Some(event), &mut texts);
            let numbers = i64::from(found.token) + i64::from(found.index) + i64::from(found.reason);
            assert_eq!((found.kind, numbers), (kind, number), "{shown}");
            let read = [found.text, found.id, found.name].map(read);
            assert_eq!(read.each_ref().map(Option::as_deref), expected, "{shown}");
            // The whole text has a 0 byte inside.
            assert_eq!(found.text_bytes, if expected[0].is_some() { 3 } else { 0 }, "{shown}");
        }
        assert_eq!(event_of(None, &mut texts).kind, SW_EVENT_END);
    }
}
