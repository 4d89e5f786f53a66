//! Functions of an open model.

use std::ffi::c_char;

use serde_json::json;
use shardwright_bindings_core::{Cancel, EmbedSettings, Model, ModelReport, NoticeKind, NoticeStage, Result};

use crate::cancel::{CANCELS, sw_cancel};
use crate::handle::Table;
use crate::memory::{Out, Plain, counted_text, optional, optional_text, values, write_sized};
use crate::outcome::{Content, ResultOut, sw_result};
use crate::status::{guard, sw_status};

/// A loaded model.
pub struct sw_model {
    _private: [u8; 0],
}

pub(crate) static MODELS: Table<Model, sw_model> = Table::new("model");

/// Memory use of a model and its sessions, in bytes. Memory of drivers is unknown.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sw_memory {
    /// Size of this struct.
    pub size: usize,
    /// Artefacts of the text's chain.
    pub weights: u64,
    /// Its gathered tables, which are mapped and not counted.
    pub tables: u64,
    /// Each session.
    pub session: u64,
    /// The budget in use, by all chains and sessions. 0 for a checkpoint.
    pub used: u64,
    /// The budget. 0 if there is none.
    pub budget: u64,
}

// SAFETY: all fields are numbers.
unsafe impl Plain for sw_memory {
    const FIRST_SIZE: usize = size_of::<Self>();
}

/// Options to compute a sentence vector.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sw_embed_options {
    /// Size of this struct.
    pub size: usize,
    /// Name of a prompt of the model, such as "query". NULL for its default prompt, "" for no
    /// prompt.
    pub prompt_name: *const c_char,
    /// Number of leading values to keep. 0 for all.
    pub dimensions: u32,
    /// 0.
    pub reserved: u32,
    /// Cancels the call from any thread.
    pub cancel: *const sw_cancel,
}

// SAFETY: all fields are numbers and pointers, for which any bits are valid.
unsafe impl Plain for sw_embed_options {
    const FIRST_SIZE: usize = size_of::<Self>();
}

fn cancel_of(cancel: *const sw_cancel) -> Result<Option<Cancel>> {
    if cancel.is_null() { Ok(None) } else { CANCELS.get(cancel).map(Some) }
}

/// Closes a model and all of its sessions. Calls in progress are cancelled, and the memory is freed
/// when the last of them ends. The handles of the sessions are still to be closed.
#[unsafe(no_mangle)]
pub extern "C" fn sw_model_close(model: *mut sw_model) -> sw_status {
    guard(|| {
        MODELS.remove(model)?.close();
        Ok(())
    })
}

/// Returns what opening a model found, as JSON: `plan`, `variant`, `chain`, `chat`,
/// `opening-milliseconds`, `verified`, and `notices` with `kind`, `stage` and `text`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_model_report(model: *const sw_model, report: *mut *mut sw_result) -> sw_status {
    guard(|| {
        let out = ResultOut::new(report)?;
        out.set(Content::text(report_json(&MODELS.get(model)?.report()?)));
        Ok(())
    })
}

fn report_json(report: &ModelReport) -> String {
    let notices = report.notices.iter().map(|notice| {
        let kind = match notice.kind {
            NoticeKind::Fallback => "fallback",
            NoticeKind::Warning => "warning",
            NoticeKind::Making => "making",
            NoticeKind::Note => "note",
        };
        let stage = match notice.stage {
            NoticeStage::Making => "making",
            NoticeStage::Opening => "opening",
            NoticeStage::Tower => "tower",
        };
        json!({ "kind": kind, "stage": stage, "text": notice.text })
    });
    let notices: Vec<_> = notices.collect();
    let report = json!({
        "plan": report.plan_id,
        "variant": report.variant,
        "chain": report.chain,
        "chat": report.has_chat_template,
        "opening-milliseconds": report.opening_milliseconds,
        "verified": report.verified,
        "notices": notices,
    });
    report.to_string()
}

/// Writes the memory use of a model and its sessions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_model_memory(model: *const sw_model, memory: *mut sw_memory) -> sw_status {
    guard(|| {
        let found = MODELS.get(model)?.memory()?;
        let (weights, tables, session, used) = (found.weights, found.tables, found.session, found.used);
        let budget = found.budget.unwrap_or(0);
        write_sized(memory, sw_memory { size: 0, weights, tables, session, used, budget }, "the memory")
    })
}

/// Frees the memory of all sessions without a reply or a call in progress, for when the system is
/// short of memory. Their next reply runs their history again. `sessions` and `bytes` may be NULL,
/// and get the number of released sessions and the freed bytes of the budget.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_model_release_idle(
    model: *const sw_model,
    sessions: *mut u64,
    bytes: *mut u64,
) -> sw_status {
    guard(|| {
        let (sessions, bytes) = (Out::optional(sessions, 0), Out::optional(bytes, 0));
        let released = MODELS.get(model)?.release_idle()?;
        sessions.set(released.sessions);
        bytes.set(released.bytes);
        Ok(())
    })
}

/// Warms a model up, so that its first token takes no longer than the others. `cancel` and
/// `milliseconds` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_model_prewarm(
    model: *const sw_model,
    cancel: *const sw_cancel,
    milliseconds: *mut u64,
) -> sw_status {
    guard(|| {
        let milliseconds = Out::optional(milliseconds, 0);
        let time = MODELS.get(model)?.prewarm(cancel_of(cancel)?.as_ref())?;
        milliseconds.set(time);
        Ok(())
    })
}

/// Computes the sentence vector of a text, of length 1, with an embedding model. `bytes` is the
/// length of the text, or `SIZE_MAX` if it ends with a 0 byte. `options` may be NULL. The result
/// has floats.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_model_embed(
    model: *const sw_model,
    text: *const c_char,
    bytes: usize,
    options: *const sw_embed_options,
    vector: *mut *mut sw_result,
) -> sw_status {
    guard(|| {
        let out = ResultOut::new(vector)?;
        let model = MODELS.get(model)?;
        let text = counted_text(text, bytes, "the text")?;
        let (mut settings, mut cancel) = (EmbedSettings::default(), None);
        if let Some(given) = optional(options, "the options")? {
            settings.prompt_name = optional_text(given.prompt_name, "`prompt_name`")?;
            settings.dimensions = Some(given.dimensions).filter(|dimensions| *dimensions > 0);
            cancel = cancel_of(given.cancel)?;
        }
        out.set(Content::Floats(model.embed(&text, &settings, cancel.as_ref())?));
        Ok(())
    })
}

/// Encodes a text as token ids. `bytes` is the length of the text, or `SIZE_MAX` if it ends with a
/// 0 byte. If `special` is not 0, the special tokens that the tokenizer adds are included. The
/// result has tokens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_model_tokenize(
    model: *const sw_model,
    text: *const c_char,
    bytes: usize,
    special: i32,
    tokens: *mut *mut sw_result,
) -> sw_status {
    guard(|| {
        let out = ResultOut::new(tokens)?;
        let model = MODELS.get(model)?;
        let text = counted_text(text, bytes, "the text")?;
        out.set(Content::Tokens(model.tokenize(&text, special != 0)?));
        Ok(())
    })
}

/// Decodes token ids to a text. If `special` is 0, special tokens are left out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_model_detokenize(
    model: *const sw_model,
    tokens: *const u32,
    count: usize,
    special: i32,
    text: *mut *mut sw_result,
) -> sw_status {
    guard(|| {
        let out = ResultOut::new(text)?;
        let model = MODELS.get(model)?;
        let tokens = values(tokens, count, "the list of tokens")?;
        out.set(Content::text(model.detokenize(&tokens, special == 0)?));
        Ok(())
    })
}
