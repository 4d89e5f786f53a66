//! Functions of a session.

use std::ffi::{c_char, c_void};

use shardwright_bindings_core::{Part, Progress, Reply, Result, Session};

use crate::handle::Table;
use crate::memory::{Out, Plain, counted_text, path, sized, text, values, write_sized};
use crate::model::{MODELS, sw_model};
use crate::open::{Listener, sw_progress_fn};
use crate::outcome::{Content, ResultOut, sw_result};
use crate::part::{sw_part, sw_turn};
use crate::reply::{add_reply, sw_reply};
use crate::settings::{grammar, reply_settings, sw_grammar, sw_reply_settings, sw_tool_choice, tool_choice};
use crate::status::{guard, sw_status};

/// A conversation or a text in progress, with its own KV cache.
///
/// A session has at most one reply in progress. A function that changes the conversation ends it,
/// as `sw_reply_close` does.
pub struct sw_session {
    _private: [u8; 0],
}

static SESSIONS: Table<Session, sw_session> = Table::new("session");

/// Result of saving a session.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sw_saved {
    /// Size of this struct.
    pub size: usize,
    /// Number of tokens of the history.
    pub tokens: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Whether the file has the KV cache. Otherwise restoring runs the tokens again.
    pub has_states: i32,
    /// 0.
    pub reserved: i32,
}

// SAFETY: all fields are numbers.
unsafe impl Plain for sw_saved {
    const FIRST_SIZE: usize = size_of::<Self>();
}

fn session_place(session: *mut *mut sw_session) -> Result<Out<*mut sw_session>> {
    Out::new(session, std::ptr::null_mut(), "the place for the session")
}

/// Starts a reply of a session. `reply` is set to NULL first.
fn start(
    session: *const sw_session,
    reply: *mut *mut sw_reply,
    begin: impl FnOnce(&Session) -> Result<Reply>,
) -> Result<()> {
    let reply = Out::new(reply, std::ptr::null_mut(), "the place for the reply")?;
    reply.set(add_reply(begin(&SESSIONS.get(session)?)?));
    Ok(())
}

/// Starts a session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_session_open(model: *const sw_model, session: *mut *mut sw_session) -> sw_status {
    guard(|| {
        let session = session_place(session)?;
        session.set(SESSIONS.add(MODELS.get(model)?.session()?));
        Ok(())
    })
}

/// Restores a session that `sw_session_save` wrote. `reason` may be NULL. If the tokens of the
/// session will be run again, it gets the reason as a text, otherwise NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_session_restore(
    model: *const sw_model,
    file: *const c_char,
    session: *mut *mut sw_session,
    reason: *mut *mut sw_result,
) -> sw_status {
    guard(|| {
        let (session, reason) = (session_place(session)?, ResultOut::optional(reason));
        let restored = MODELS.get(model)?.restore(path(file, "the path of the saved session")?)?;
        session.set(SESSIONS.add(restored.session));
        restored.recomputed.into_iter().for_each(|recomputed| reason.set(Content::text(recomputed)));
        Ok(())
    })
}

/// Starts a session with the turns, the history and the settings of `original`. Both continue
/// independently.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_session_fork(
    model: *const sw_model,
    original: *const sw_session,
    session: *mut *mut sw_session,
) -> sw_status {
    guard(|| {
        let session = session_place(session)?;
        let fork = MODELS.get(model)?.fork(&SESSIONS.get(original)?)?;
        session.set(SESSIONS.add(fork));
        Ok(())
    })
}

/// Closes a session. A call in progress is cancelled, and the memory is freed when that call ends.
/// The handles of its replies are still to be closed.
#[unsafe(no_mangle)]
pub extern "C" fn sw_session_close(session: *mut sw_session) -> sw_status {
    guard(|| {
        SESSIONS.remove(session)?.close();
        Ok(())
    })
}

/// Changes the settings of later replies. Applies all changes, or none if one is an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_session_configure(
    session: *const sw_session,
    settings: *const sw_reply_settings,
) -> sw_status {
    guard(|| SESSIONS.get(session)?.configure(&reply_settings(&sized(settings, "the settings")?)?))
}

/// Sets the grammar that later replies must match. `text` is the schema, the expression or the
/// grammar.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_session_constrain(
    session: *const sw_session,
    kind: sw_grammar,
    text: *const c_char,
) -> sw_status {
    guard(|| SESSIONS.get(session)?.constrain(grammar(kind, text)?.as_ref()))
}

/// Sets the tools that replies may call: a JSON list as in OpenAI's requests. "[]" disables calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_session_set_tools(session: *const sw_session, json: *const c_char) -> sw_status {
    guard(|| SESSIONS.get(session)?.set_tools(&text(json, "the list of tools")?))
}

/// Sets which tools replies may or must call. `name` is NULL except for `SW_TOOLS_NAMED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_session_choose_tool(
    session: *const sw_session,
    choice: sw_tool_choice,
    name: *const c_char,
) -> sw_status {
    guard(|| SESSIONS.get(session)?.choose_tool(tool_choice(choice, name)?))
}

/// Adds a system turn. Chat templates support one only before the first turn of the user.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_session_system(session: *const sw_session, text: *const c_char) -> sw_status {
    guard(|| SESSIONS.get(session)?.system(crate::memory::text(text, "the text")?))
}

/// Adds a turn of the user with a text, and starts the reply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_session_chat(
    session: *const sw_session,
    text: *const c_char,
    reply: *mut *mut sw_reply,
) -> sw_status {
    guard(|| {
        start(session, reply, |session| {
            session.chat(vec![Part::Text { text: crate::memory::text(text, "the text")? }], None)
        })
    })
}

/// Adds a turn of the user with texts, pictures and sounds, and starts the reply. The first picture
/// or sound of a model opens a tower, with `progress`, which may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_session_chat_parts(
    session: *const sw_session,
    parts: *const sw_part,
    count: usize,
    progress: sw_progress_fn,
    user: *mut c_void,
    reply: *mut *mut sw_reply,
) -> sw_status {
    guard(|| {
        start(session, reply, |session| {
            let listener = Listener::new(progress, user);
            let listener = listener.as_ref().map(|listener| listener as &dyn Progress);
            session.chat(crate::part::parts(parts, count)?, listener)
        })
    })
}

/// Replaces the conversation by `turns`, and starts the reply to the last one. An equal beginning
/// is not run again. `progress` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_session_reply_to(
    session: *const sw_session,
    turns: *const sw_turn,
    count: usize,
    progress: sw_progress_fn,
    user: *mut c_void,
    reply: *mut *mut sw_reply,
) -> sw_status {
    guard(|| {
        start(session, reply, |session| {
            let listener = Listener::new(progress, user);
            let listener = listener.as_ref().map(|listener| listener as &dyn Progress);
            session.reply_to(crate::part::turns(turns, count)?, listener)
        })
    })
}

/// Adds the result of a call. Once all calls of a reply have results, `sw_session_answer`
/// continues. `bytes` is the length of the result, or `SIZE_MAX` if it ends with a 0 byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_session_tool_result(
    session: *const sw_session,
    id: *const c_char,
    result: *const c_char,
    bytes: usize,
) -> sw_status {
    guard(|| {
        let session = SESSIONS.get(session)?;
        session.tool_result(&text(id, "the id of the call")?, counted_text(result, bytes, "the result")?)
    })
}

/// Starts the reply to the turns so far, which end with results of calls or with a turn of the
/// user.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_session_answer(
    session: *const sw_session,
    reply: *mut *mut sw_reply,
) -> sw_status {
    guard(|| start(session, reply, Session::answer))
}

/// Starts a continuation of a plain text. Earlier turns are forgotten. `bytes` is the length of the
/// text, or `SIZE_MAX` if it ends with a 0 byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_session_complete(
    session: *const sw_session,
    text: *const c_char,
    bytes: usize,
    reply: *mut *mut sw_reply,
) -> sw_status {
    guard(|| start(session, reply, |session| session.complete(counted_text(text, bytes, "the text")?)))
}

/// Starts a continuation of token ids. Earlier turns are forgotten.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_session_complete_tokens(
    session: *const sw_session,
    tokens: *const u32,
    count: usize,
    reply: *mut *mut sw_reply,
) -> sw_status {
    guard(|| {
        start(session, reply, |session| session.complete_tokens(values(tokens, count, "the list of tokens")?))
    })
}

/// Stops the reply or the call in progress, from any thread. No effect if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn sw_session_cancel(session: *const sw_session) -> sw_status {
    guard(|| {
        SESSIONS.get(session)?.cancel();
        Ok(())
    })
}

/// Returns the turns so far as JSON: a list of `role` and `parts`, each with its `type`. Pictures
/// and sounds have no content there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_session_turns(
    session: *const sw_session,
    turns: *mut *mut sw_result,
) -> sw_status {
    guard(|| {
        let out = ResultOut::new(turns)?;
        let turns = SESSIONS.get(session)?.turns()?;
        let turns: Vec<_> = turns.iter().map(shardwright_bindings_core::Turn::to_json).collect();
        out.set(Content::text(serde_json::Value::Array(turns).to_string()));
        Ok(())
    })
}

/// Returns the token ids of the history, as far as they were run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_session_tokens(
    session: *const sw_session,
    tokens: *mut *mut sw_result,
) -> sw_status {
    guard(|| {
        let out = ResultOut::new(tokens)?;
        out.set(Content::Tokens(SESSIONS.get(session)?.tokens()?));
        Ok(())
    })
}

/// Removes the oldest turn of the user with its reply. `found` may be NULL, and gets whether there
/// was one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_session_forget_oldest_turn(
    session: *const sw_session,
    found: *mut i32,
) -> sw_status {
    guard(|| {
        let found = Out::optional(found, 0);
        found.set(i32::from(SESSIONS.get(session)?.forget_oldest_turn()?));
        Ok(())
    })
}

/// Removes all turns from the turn `position` on.
#[unsafe(no_mangle)]
pub extern "C" fn sw_session_rewind(session: *const sw_session, position: u64) -> sw_status {
    guard(|| SESSIONS.get(session)?.rewind(position))
}

/// Removes all turns and the history.
#[unsafe(no_mangle)]
pub extern "C" fn sw_session_clear(session: *const sw_session) -> sw_status {
    guard(|| SESSIONS.get(session)?.clear())
}

/// Frees the memory of the KV cache and of all buffers, also between two events of a reply. The
/// next event or reply allocates it again and runs the history again.
#[unsafe(no_mangle)]
pub extern "C" fn sw_session_release(session: *const sw_session) -> sw_status {
    guard(|| SESSIONS.get(session)?.release())
}

/// Allocates the memory of a released session and runs its history again now. `tokens` may be NULL,
/// and gets the number of tokens that were run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_session_resume(session: *const sw_session, tokens: *mut u64) -> sw_status {
    guard(|| {
        let tokens = Out::optional(tokens, 0);
        tokens.set(SESSIONS.get(session)?.resume()?);
        Ok(())
    })
}

/// Saves a session to a file, which has the content of the conversation in the clear. `saved` may
/// be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_session_save(
    session: *const sw_session,
    file: *const c_char,
    saved: *mut sw_saved,
) -> sw_status {
    guard(|| {
        let session = SESSIONS.get(session)?;
        let found = session.save(path(file, "the path of the saved session")?)?;
        if saved.is_null() {
            return Ok(());
        }
        let (tokens, bytes, has_states) =
            (found.tokens, found.bytes, i32::from(found.without_states.is_none()));
        write_sized(saved, sw_saved { size: 0, tokens, bytes, has_states, reserved: 0 }, "the result")
    })
}

/// Returns where every step of a session ran so far, as JSON. `fallbacks` lists all deviations from
/// the request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_session_placement(
    session: *const sw_session,
    placement: *mut *mut sw_result,
) -> sw_status {
    guard(|| {
        let out = ResultOut::new(placement)?;
        out.set(Content::text(SESSIONS.get(session)?.placement()?.json));
        Ok(())
    })
}
