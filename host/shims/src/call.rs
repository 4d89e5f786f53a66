//! Calls functions of a shim's table. Converts error objects to typed errors and collects the items
//! of sinks.

use std::ffi::{CString, c_char, c_void};

use shardwright_shim_abi::raw::*;
use shardwright_shim_abi::sized::{Ref, Struct};
use shardwright_vocabulary::FlagType;

use crate::convert;
use crate::error::{ShimError, ShimFailure};

/// A checked table. The library behind it is never unloaded.
#[derive(Clone, Copy)]
pub(crate) struct Table(pub(crate) &'static SwTable);

// SAFETY: the contract lets functions of the table be called from any thread. The table itself
// never changes.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

/// Maximum length of a shim's string. Log tails are the longest.
const TEXT_LIMIT: usize = 1 << 16;

/// Maximum length of an inspection's document.
const DOCUMENT_LIMIT: usize = SW_DOCUMENT_LIMIT as usize;

/// Maximum number of items a sink accepts in one call. A check reports one per node.
const ITEM_LIMIT: usize = 1 << 20;

/// Maximum number of details of an error.
const DETAIL_LIMIT: u64 = 256;

/// Copies a shim's string. Bytes that are not UTF-8 (vendor logs) are replaced.
///
/// # Safety
///
/// `pointer` is null or a NUL-terminated string.
pub(crate) unsafe fn text(pointer: *const c_char) -> Result<String, &'static str> {
    // SAFETY: promised by the caller.
    unsafe { text_within(pointer, TEXT_LIMIT) }
}

/// Copies at most `limit` bytes of a shim's string.
///
/// # Safety
///
/// As for [`text`].
unsafe fn text_within(pointer: *const c_char, limit: usize) -> Result<String, &'static str> {
    if pointer.is_null() {
        return Err("a string is null");
    }
    let mut length = 0;
    // SAFETY: no byte beyond the terminator is read.
    while length < limit && unsafe { pointer.add(length).read() } != 0 {
        length += 1;
    }
    // SAFETY: these bytes were just read.
    let bytes = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), length) };
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

/// Copies the document of an inspection. It is not truncated, because part of a document is
/// useless.
///
/// # Safety
///
/// As for [`text`].
pub(crate) unsafe fn document(pointer: *const c_char) -> Result<String, String> {
    // SAFETY: promised by the caller.
    let document = unsafe { text_within(pointer, DOCUMENT_LIMIT + 1) }?;
    if document.len() > DOCUMENT_LIMIT {
        return Err(format!("a document of more than {DOCUMENT_LIMIT} bytes"));
    }
    Ok(document)
}

/// Copies a shim's string if it is valid.
///
/// # Safety
///
/// `pointer` is null or a NUL-terminated string.
pub(crate) unsafe fn optional_text(pointer: *const c_char) -> Option<String> {
    // SAFETY: promised by the caller.
    unsafe { text(pointer) }.ok()
}

/// Copies a shim's struct. Members that the shim does not know are 0.
///
/// # Safety
///
/// `pointer` is null or points to a struct that starts with its size and has that many bytes.
pub(crate) unsafe fn value<T: Struct>(pointer: *const T) -> Result<T, String> {
    // SAFETY: promised by the caller.
    Ok(unsafe { Ref::new(pointer) }?.get())
}

/// Copies plain numbers of a shim.
///
/// # Safety
///
/// `pointer` is null or points to `count` numbers.
pub(crate) unsafe fn numbers<T: Copy>(pointer: *const T, count: u64) -> Result<Vec<T>, String> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if pointer.is_null() || count > ITEM_LIMIT as u64 {
        return Err(format!("an array of {count} items is null or too long"));
    }
    // SAFETY: promised by the caller.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count as usize) }.to_vec())
}

/// Converts a text to a C string. `what` names it in the error.
pub(crate) fn c_text(what: &str, text: &str) -> Result<CString, ShimError> {
    CString::new(text).map_err(|_| ShimError::Argument(format!("{what} contains a NUL byte")))
}

/// Converts an error object to an error and frees it.
///
/// # Safety
///
/// `error` was returned by a function of `table` and not freed.
pub(crate) unsafe fn take_error(
    table: Table,
    shim: &str,
    function: &'static str,
    error: *mut SwError,
) -> Result<(), ShimError> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: promised by the caller.
    let taken = match unsafe { value::<SwError>(error) } {
        Err(reason) => ShimError::contract(shim, function, format!("invalid error object: {reason}")),
        Ok(object) => {
            let mut details = Vec::new();
            if !object.details.is_null() {
                for index in 0..object.detail_count.min(DETAIL_LIMIT) {
                    // SAFETY: the contract specifies `detail_count` pointers.
                    let detail = unsafe { value(*object.details.add(index as usize)) };
                    let Ok(detail) = detail else { continue };
                    // SAFETY: the contract specifies that they are strings.
                    if let (Ok(key), Ok(value)) = unsafe { (text(detail.key), text(detail.value)) } {
                        details.push((key, value));
                    }
                }
            }
            ShimError::failed(ShimFailure {
                shim: shim.to_owned(),
                function: function.into(),
                class: convert::error_class(object.error_class),
                // SAFETY: the contract specifies that it is a string.
                message: unsafe { optional_text(object.message) }.unwrap_or_default(),
                details,
                vendor_code: object.vendor_code,
                // SAFETY: the contract specifies that it is a string or null.
                log_tail: unsafe { optional_text(object.log_tail) },
            })
        }
    };
    if let Some(free) = table.0.error_free {
        // SAFETY: freed once, as promised by the caller.
        unsafe { free(error) };
    }
    Err(taken)
}

/// The items that a sink received.
pub(crate) struct Collected<T> {
    items: Vec<T>,
    problem: Option<String>,
}

impl<T> Collected<T> {
    fn new() -> Self {
        Collected { items: Vec::new(), problem: None }
    }

    fn take(&mut self, item: Result<T, String>) {
        if self.problem.is_some() {
            return;
        }
        match item {
            Ok(_) if self.items.len() >= ITEM_LIMIT => {
                self.problem = Some(format!("more than {ITEM_LIMIT} items"));
            }
            Ok(item) => self.items.push(item),
            Err(problem) => self.problem = Some(problem),
        }
    }

    pub(crate) fn finish(self) -> Result<Vec<T>, String> {
        match self.problem {
            None => Ok(self.items),
            Some(problem) => Err(problem),
        }
    }
}

/// Maximum length of a flag's text value if the flag has no bound.
const FLAG_TEXT_LIMIT: u32 = 1024;

/// Returns the legal values of a flag or fact, from its kind, its range and its choices.
pub(crate) fn value_type(
    kind: u32,
    (minimum, maximum): (i64, i64),
    (choices, choice_count): (*const *const c_char, u64),
) -> Result<FlagType, String> {
    Ok(match kind {
        SW_FLAG_BOOLEAN => FlagType::Switch,
        SW_FLAG_INTEGER if minimum > maximum => FlagType::Integer { min: i64::MIN, max: i64::MAX },
        SW_FLAG_INTEGER => FlagType::Integer { min: minimum, max: maximum },
        SW_FLAG_CHOICE => {
            // SAFETY: the contract specifies that many strings.
            let pointers = unsafe { numbers::<*const c_char>(choices, choice_count) }?;
            let values = pointers
                .into_iter()
                // SAFETY: the contract specifies that they are strings.
                .map(|choice| unsafe { text(choice) }.map_err(str::to_owned))
                .collect::<Result<_, _>>()?;
            FlagType::Choice { values }
        }
        SW_FLAG_FLOAT | SW_FLAG_TEXT => FlagType::Text { max_bytes: FLAG_TEXT_LIMIT },
        other => return Err(format!("unknown flag kind {other}")),
    })
}

macro_rules! sinks {
    ($($function:ident: $sink:ident of $raw:ident;)*) => { $(
        /// Calls `call` with a sink and converts each item with `convert`.
        pub(crate) fn $function<T>(
            convert: fn(&$raw) -> Result<T, String>,
            call: impl FnOnce(*const $sink) -> *mut SwError,
        ) -> (*mut SwError, Collected<T>) {
            struct Context<T> {
                convert: fn(&$raw) -> Result<T, String>,
                collected: Collected<T>,
            }
            unsafe extern "C" fn item<T>(context: *mut c_void, item: *const $raw) {
                // SAFETY: the sink's context, alive until the call that uses the sink returns, on
                // its thread only.
                let context = unsafe { &mut *context.cast::<Context<T>>() };
                // SAFETY: the contract specifies that it is a struct of this kind.
                let item = unsafe { value(item) }.and_then(|item| (context.convert)(&item));
                context.collected.take(item);
            }
            let mut context = Context { convert, collected: Collected::new() };
            let sink = $sink {
                size: size_of::<$sink>() as u64,
                context: (&raw mut context).cast(),
                item: Some(item::<T>),
            };
            let error = call(&sink);
            (error, context.collected)
        }
    )* };
}

sinks! {
    descriptions: SwDescriptionSink of SwDescription;
    devices: SwDeviceSink of SwDevice;
    limits: SwLimitSink of SwLimit;
    flags: SwFlagSink of SwFlag;
    flag_verdicts: SwFlagVerdictSink of SwFlagVerdict;
    verdicts: SwVerdictSink of SwVerdict;
    estimates: SwEstimateSink of SwEstimate;
    compatibilities: SwCompatibilitySink of SwCompatibility;
    loaded_entries: SwLoadedEntrySink of SwLoadedEntry;
    bindings: SwBindingSink of SwBinding;
    inspections: SwInspectionSink of SwInspection;
    facts: SwFactSink of SwFact;
}
