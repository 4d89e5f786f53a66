//! Notices of a model, passed to a callback.

use std::ffi::{c_char, c_void};

use shardwright_bindings_core::{Error, NoticeKind, NoticeStage};

use crate::memory::terminated;
use crate::model::{MODELS, sw_model};
use crate::status::{guard, sw_status};

/// Importance of a notice.
pub type sw_notice_kind = i32;
/// A deviation from the request. Under `strict` it is an error.
pub const SW_NOTICE_FALLBACK: sw_notice_kind = 0;
/// A file was used although it violates the policy of signatures.
pub const SW_NOTICE_WARNING: sw_notice_kind = 1;
/// How a plan was made or a bundle was compiled.
pub const SW_NOTICE_MAKING: sw_notice_kind = 2;
/// Other useful information.
pub const SW_NOTICE_NOTE: sw_notice_kind = 3;

/// When a notice came up.
pub type sw_notice_stage = i32;
/// When the bundle was compiled, or the checkpoint was planned.
pub const SW_STAGE_MAKING: sw_notice_stage = 0;
/// When the model was opened on this machine.
pub const SW_STAGE_OPENING: sw_notice_stage = 1;
/// When a tower for pictures or sounds was opened.
pub const SW_STAGE_TOWER: sw_notice_stage = 2;

/// Receives a notice, one sentence. The text is valid during the call.
pub type sw_notice_fn = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        kind: sw_notice_kind,
        stage: sw_notice_stage,
        text: *const c_char,
    ),
>;

/// Passes all notices of a model so far to `notice`, on this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_model_notices(
    model: *const sw_model,
    notice: sw_notice_fn,
    user: *mut c_void,
) -> sw_status {
    guard(|| {
        let report = MODELS.get(model)?.report()?;
        let call = notice.ok_or_else(|| Error::argument("the callback is NULL", "pass a function"))?;
        for notice in report.notices {
            let kind = match notice.kind {
                NoticeKind::Fallback => SW_NOTICE_FALLBACK,
                NoticeKind::Warning => SW_NOTICE_WARNING,
                NoticeKind::Making => SW_NOTICE_MAKING,
                NoticeKind::Note => SW_NOTICE_NOTE,
            };
            let stage = match notice.stage {
                NoticeStage::Making => SW_STAGE_MAKING,
                NoticeStage::Opening => SW_STAGE_OPENING,
                NoticeStage::Tower => SW_STAGE_TOWER,
            };
            let text = terminated(notice.text);
            // SAFETY: the caller passes a function of this type, and the text ends with a 0 byte.
            unsafe { call(user, kind, stage, text.as_ptr().cast()) };
        }
        Ok(())
    })
}
