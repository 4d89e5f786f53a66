//! The C table of a Rust shim: one `extern "C"` function per table entry, each catching panics.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ffi::{CString, c_char, c_void};
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use abi_stable::library::{CheckTypeLayout, LibHeader, RootModuleResult};
use abi_stable::prefix_type::PrefixTypeTrait;

use shardwright_vocabulary::Compatibility;

use crate::compile::CompileOutput;
use crate::error::{Error, Result};
use crate::module::{ShimModule, ShimModuleRef};
use crate::numbers;
use crate::raw::*;
use crate::run::{Artefact, Bound, Control, Memory, Run};
use crate::shim::{
    Buffer, Direction, FlagKind, FlagReport, Import, LoadedEntry, LoadedShard, Shim, SyncDirection, Verdict,
};
use crate::view::{self, EntryView, WorkOrderView};

/// Converts text to a C string. NUL bytes within it become spaces.
pub(crate) fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_else(|_| CString::new(text.replace('\0', " ")).unwrap_or_default())
}

fn optional(text: &Option<String>) -> Option<CString> {
    text.as_deref().map(c_string)
}

fn pointer(text: &Option<CString>) -> *const c_char {
    text.as_ref().map_or(ptr::null(), |text| text.as_ptr())
}

/// A `sw_error` and the data it points to. `raw` is the first member, so that a pointer to the one
/// is also a pointer to the other.
#[repr(C)]
struct OwnedError {
    raw: SwError,
    message: CString,
    log_tail: Option<CString>,
    strings: Vec<(CString, CString)>,
    details: Vec<SwDetail>,
    pointers: Vec<*const SwDetail>,
}

fn into_raw(error: Error) -> *mut SwError {
    let mut owned = Box::new(OwnedError {
        raw: SwError {
            size: size_of::<SwError>() as u64,
            error_class: error.class as u32,
            reserved: 0,
            vendor_code: error.vendor_code,
            message: ptr::null(),
            log_tail: ptr::null(),
            details: ptr::null(),
            detail_count: 0,
        },
        message: c_string(&error.message),
        log_tail: optional(&error.log_tail),
        strings: error.details.iter().map(|(key, value)| (c_string(key), c_string(value))).collect(),
        details: Vec::new(),
        pointers: Vec::new(),
    });
    owned.details = owned
        .strings
        .iter()
        .map(|(key, value)| SwDetail {
            size: size_of::<SwDetail>() as u64,
            key: key.as_ptr(),
            value: value.as_ptr(),
        })
        .collect();
    owned.pointers = owned.details.iter().map(ptr::from_ref).collect();
    owned.raw.message = owned.message.as_ptr();
    owned.raw.log_tail = pointer(&owned.log_tail);
    if !owned.pointers.is_empty() {
        owned.raw.details = owned.pointers.as_ptr();
        owned.raw.detail_count = owned.pointers.len() as u64;
    }
    Box::into_raw(owned).cast()
}

fn panic_text(payload: Box<dyn Any + Send>) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a payload that is not text".to_owned());
    // Dropping a payload runs foreign code, which may panic again.
    let _ = catch_unwind(AssertUnwindSafe(move || drop(payload)));
    text
}

/// Runs `body` and converts its error or panic to an error object.
fn guard(body: impl FnOnce() -> Result<()>) -> *mut SwError {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ptr::null_mut(),
        Ok(Err(error)) => into_raw(error),
        Err(payload) => into_raw(
            Error::internal(format!("the shim panicked: {}", panic_text(payload))).detail("panic", 1),
        ),
    }
}

/// Runs `body`, which can only report a failure to the log.
fn guard_silently(body: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(body)) {
        log(SW_LOG_ERROR, &format!("a shim panicked while freeing: {}", panic_text(payload)));
    }
}

struct HostLog {
    function: unsafe extern "C" fn(context: *mut c_void, level: u32, message: *const c_char),
    context: *mut c_void,
}

// SAFETY: the contract allows calling the log function with its context from any thread until the
// process ends.
unsafe impl Send for HostLog {}
// SAFETY: as above.
unsafe impl Sync for HostLog {}

static HOST_LOG: OnceLock<HostLog> = OnceLock::new();

/// Sends a line to the host's log, with a level `SW_LOG_…`. Drops it if the host has no log.
pub fn log(level: u32, message: &str) {
    if let Some(host) = HOST_LOG.get() {
        let message = c_string(message);
        // SAFETY: the host promised this when it passed the function. `message` outlives the call.
        unsafe { (host.function)(host.context, level, message.as_ptr()) }
    }
}

/// Implements `shardwright_shim_entry` for a Rust shim.
///
/// # Safety
///
/// The pointers are valid under the contract.
pub unsafe extern "C" fn entry<T: Shim>(host: *const SwHost, answer: *mut SwAnswer) {
    if answer.is_null() {
        return;
    }
    // SAFETY: every struct of the contract starts with its u64 size.
    if unsafe { answer.cast::<u64>().read() } < u64::from(SW_MINIMUM_ANSWER) {
        return;
    }
    // Written member by member: a later host's struct may be longer than this crate's. An earlier
    // host's struct has at least the minimum size, which covers all of these members.
    // SAFETY: not null, long enough, and owned by the host for this call.
    let (low, high, version, table, refusal) = unsafe {
        (
            &mut (*answer).version_min,
            &mut (*answer).version_max,
            &mut (*answer).version,
            &mut (*answer).table,
            &mut (*answer).refusal,
        )
    };
    (*low, *high) = (SW_VERSION_0_1, SW_VERSION);
    let result = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: guaranteed by the contract.
        let host = unsafe { view::value(host, "host") }?;
        if host.version_min > SW_VERSION || host.version_max < SW_VERSION_0_1 {
            return Err(Error::invalid_argument(format!(
                "this shim supports contract version {}, the host supports {} to {}",
                version_text(SW_VERSION),
                version_text(host.version_min),
                version_text(host.version_max)
            )));
        }
        if let Some(function) = host.log {
            let _ = HOST_LOG.set(HostLog { function, context: host.log_context });
        }
        Ok(())
    }));
    match result {
        Ok(Ok(())) => {
            *version = SW_VERSION;
            *table = &Table::<T>::TABLE;
        }
        // Leaked: the contract keeps refusals for the whole process, and there are only a few.
        Ok(Err(error)) => *refusal = CString::into_raw(c_string(&error.message)),
        Err(payload) => {
            let reason = format!("the shim panicked: {}", panic_text(payload));
            *refusal = CString::into_raw(c_string(&reason));
        }
    }
}

/// Formats a contract version, for example `0.1`.
pub fn version_text(version: u32) -> String {
    format!("{}.{}", version >> 16, version & 0xffff)
}

fn module<T: Shim>() -> ShimModuleRef {
    ShimModule { entry: entry::<T>, table: None }.leak_into_prefix()
}

extern "C" fn root_module<T: Shim>() -> RootModuleResult {
    abi_stable::library::__call_root_module_loader(module::<T>)
}

/// Builds the abi_stable export of a Rust shim. [`export_shim!`](crate::export_shim) uses it.
pub const fn lib_header<T: Shim>() -> LibHeader {
    // SAFETY: `root_module` always returns a `ShimModuleRef`.
    unsafe { LibHeader::from_constructor::<ShimModuleRef>(root_module::<T>, CheckTypeLayout::Yes) }
}

/// The Rust value behind `sw_shim *`.
struct Instance<T> {
    shim: T,
}

/// The Rust value behind `sw_shard *`.
struct Shard {
    /// Accessed only by unload and by the run that set `running`.
    inner: UnsafeCell<Box<dyn LoadedShard>>,
    entries: Vec<LoadedEntry>,
    flags: Vec<FlagReport>,
    running: AtomicBool,
    cancelled: AtomicBool,
}

/// The Rust value behind `sw_buffer *`.
struct BufferHandle {
    buffer: Box<dyn Buffer>,
}

fn null(what: &str) -> Error {
    Error::invalid_argument(format!("the {what} is null"))
}

/// Borrows the Rust value behind a handle.
///
/// # Safety
///
/// `handle` is null, or came from `Box::into_raw` of a `T` and was not freed.
unsafe fn handle<'a, T, H>(handle: *mut H, what: &str) -> Result<&'a T> {
    // SAFETY: promised by the caller.
    unsafe { handle.cast::<T>().as_ref() }.ok_or_else(|| null(what))
}

/// Returns the number, range and choices of a flag's kind.
fn raw_kind(kind: &FlagKind) -> (u32, i64, i64, &[String]) {
    match kind {
        FlagKind::Boolean => (SW_FLAG_BOOLEAN, 1, 0, &[]),
        FlagKind::Integer { minimum, maximum } => (SW_FLAG_INTEGER, *minimum, *maximum, &[]),
        FlagKind::Float => (SW_FLAG_FLOAT, 1, 0, &[]),
        FlagKind::Choice(choices) => (SW_FLAG_CHOICE, 1, 0, choices),
        FlagKind::Text => (SW_FLAG_TEXT, 1, 0, &[]),
    }
}

struct Table<T>(PhantomData<T>);

// SAFETY (all functions below): the host passes pointers as `shim.h` specifies. Handles come from
// this table.
impl<T: Shim> Table<T> {
    const TABLE: SwTable = SwTable {
        size: size_of::<SwTable>() as u64,
        version: SW_VERSION,
        draft: SW_DRAFT,
        error_free: Some(error_free),
        describe: Some(Self::describe),
        open: Some(Self::open),
        close: Some(Self::close),
        devices: Some(Self::devices),
        limits: Some(Self::limits),
        flags: Some(Self::flags),
        check: Some(Self::check),
        estimate: Some(Self::estimate),
        compile: Some(Self::compile),
        compatibility: Some(Self::compatibility),
        load: Some(Self::load),
        unload: Some(unload),
        entries: Some(entries),
        bindings: Some(bindings),
        run: Some(run),
        cancel: Some(cancel),
        buffer_allocate: Some(Self::buffer_allocate),
        buffer_import: Some(Self::buffer_import),
        buffer_free: Some(buffer_free),
        buffer_map: Some(buffer_map),
        buffer_sync: Some(buffer_sync),
        recover: Some(Self::recover),
        inspect: Some(Self::inspect),
        facts: Some(Self::facts),
        chip: Some(Self::chip),
        flag_verdicts: Some(flag_verdicts),
    };

    unsafe fn shim<'a>(pointer: *mut SwShim) -> Result<&'a T> {
        // SAFETY: the host passes back an instance that `open` made.
        Ok(&unsafe { handle::<Instance<T>, _>(pointer, "instance") }?.shim)
    }

    unsafe extern "C" fn describe(sink: *const SwDescriptionSink) -> *mut SwError {
        guard(|| {
            // SAFETY: guaranteed by the contract.
            let sink = unsafe { view::value(sink, "sink") }?;
            let reported = T::describe();
            let (name, vendor, version) =
                (c_string(&reported.name), c_string(&reported.vendor), c_string(&reported.version));
            let library = optional(&reported.vendor_library);
            let item = SwDescription {
                size: size_of::<SwDescription>() as u64,
                name: name.as_ptr(),
                vendor: vendor.as_ptr(),
                version: version.as_ptr(),
                vendor_library: pointer(&library),
                instance_limit: reported.instance_limit,
            };
            let function = sink.item.ok_or_else(|| null("sink function"))?;
            // SAFETY: the function is the host's, and the item outlives the call.
            unsafe { function(sink.context, &item) };
            Ok(())
        })
    }

    unsafe extern "C" fn facts(sink: *const SwFactSink) -> *mut SwError {
        guard(|| {
            // SAFETY: guaranteed by the contract.
            let sink = unsafe { view::value(sink, "sink") }?;
            let function = sink.item.ok_or_else(|| null("sink function"))?;
            for reported in T::facts() {
                let (name, description) = (c_string(&reported.name), c_string(&reported.description));
                let (kind, minimum, maximum, choices) = raw_kind(&reported.kind);
                let choices: Vec<CString> = choices.iter().map(|choice| c_string(choice)).collect();
                let pointers: Vec<*const c_char> = choices.iter().map(|choice| choice.as_ptr()).collect();
                let item = SwFact {
                    size: size_of::<SwFact>() as u64,
                    name: name.as_ptr(),
                    description: description.as_ptr(),
                    kind,
                    required: u32::from(reported.required),
                    choices: if pointers.is_empty() { ptr::null() } else { pointers.as_ptr() },
                    choice_count: pointers.len() as u64,
                    minimum,
                    maximum,
                };
                // SAFETY: the function is the host's, and the item outlives the call.
                unsafe { function(sink.context, &item) };
            }
            Ok(())
        })
    }

    unsafe extern "C" fn chip(shim: *mut SwShim, chip: *const SwChip) -> *mut SwError {
        guard(|| {
            // SAFETY: guaranteed by the contract.
            let (shim, chip) = unsafe { (Self::shim(shim)?, view::chip(chip)?) };
            shim.chip(chip)
        })
    }

    unsafe extern "C" fn open(
        _host: *const SwHost,
        options: *const *const SwOption,
        option_count: u64,
        shim: *mut *mut SwShim,
    ) -> *mut SwError {
        guard(|| {
            // SAFETY: guaranteed by the contract.
            let options = unsafe { view::options(options, option_count, "option") }?;
            if shim.is_null() {
                return Err(null("place for the instance"));
            }
            let instance = Box::new(Instance { shim: T::open(&options)? });
            // SAFETY: not null, and owned by the host for this call.
            unsafe { shim.write(Box::into_raw(instance).cast()) };
            Ok(())
        })
    }

    unsafe extern "C" fn close(shim: *mut SwShim) {
        guard_silently(|| {
            if !shim.is_null() {
                // SAFETY: made by `open`, closed once.
                drop(unsafe { Box::from_raw(shim.cast::<Instance<T>>()) });
            }
        });
    }

    unsafe extern "C" fn devices(
        shim: *mut SwShim,
        soc: *const c_char,
        sink: *const SwDeviceSink,
    ) -> *mut SwError {
        guard(|| {
            // SAFETY: guaranteed by the contract.
            let (shim, sink) = unsafe { (Self::shim(shim)?, view::value(sink, "sink")?) };
            let soc = match soc.is_null() {
                true => None,
                // SAFETY: guaranteed by the contract.
                false => Some(unsafe { view::text(soc, "SoC") }?),
            };
            let function = sink.item.ok_or_else(|| null("sink function"))?;
            for reported in shim.devices(soc)? {
                let (name, soc, detail) =
                    (c_string(&reported.name), optional(&reported.soc), optional(&reported.detail));
                let item = SwDevice {
                    size: size_of::<SwDevice>() as u64,
                    name: name.as_ptr(),
                    soc: pointer(&soc),
                    detail: pointer(&detail),
                    kind: numbers::device_kind(reported.kind),
                    memory_kinds: reported.memory_kinds.0,
                    memory_bytes: reported.memory_bytes,
                };
                // SAFETY: the function is the host's, and the item outlives the call.
                unsafe { function(sink.context, &item) };
            }
            Ok(())
        })
    }

    unsafe extern "C" fn limits(
        shim: *mut SwShim,
        device: *const c_char,
        sink: *const SwLimitSink,
    ) -> *mut SwError {
        guard(|| {
            // SAFETY: guaranteed by the contract.
            let (shim, sink) = unsafe { (Self::shim(shim)?, view::value(sink, "sink")?) };
            // SAFETY: guaranteed by the contract.
            let device = unsafe { view::text(device, "device") }?;
            let function = sink.item.ok_or_else(|| null("sink function"))?;
            for reported in shim.limits(device)? {
                let note = Some(reported.note).filter(|note| !note.is_empty());
                let (name, note) = (c_string(&reported.name), optional(&note));
                let item = SwLimit {
                    size: size_of::<SwLimit>() as u64,
                    name: name.as_ptr(),
                    value: reported.value,
                    provenance: numbers::provenance(reported.provenance),
                    reserved: 0,
                    note: pointer(&note),
                };
                // SAFETY: the function is the host's, and the item outlives the call.
                unsafe { function(sink.context, &item) };
            }
            Ok(())
        })
    }

    unsafe extern "C" fn flags(
        shim: *mut SwShim,
        device: *const c_char,
        sink: *const SwFlagSink,
    ) -> *mut SwError {
        guard(|| {
            // SAFETY: guaranteed by the contract.
            let (shim, sink) = unsafe { (Self::shim(shim)?, view::value(sink, "sink")?) };
            // SAFETY: guaranteed by the contract.
            let device = unsafe { view::text(device, "device") }?;
            let function = sink.item.ok_or_else(|| null("sink function"))?;
            for reported in shim.flags(device)? {
                let (name, description) = (c_string(&reported.name), c_string(&reported.description));
                let standard = optional(&reported.default);
                let (kind, minimum, maximum, choices) = raw_kind(&reported.kind);
                let choices: Vec<CString> = choices.iter().map(|choice| c_string(choice)).collect();
                let pointers: Vec<*const c_char> = choices.iter().map(|choice| choice.as_ptr()).collect();
                let item = SwFlag {
                    size: size_of::<SwFlag>() as u64,
                    name: name.as_ptr(),
                    description: description.as_ptr(),
                    kind,
                    stage: numbers::flag_stage(reported.stage),
                    standard: pointer(&standard),
                    choices: if pointers.is_empty() { ptr::null() } else { pointers.as_ptr() },
                    choice_count: pointers.len() as u64,
                    minimum,
                    maximum,
                };
                // SAFETY: the function is the host's, and the item outlives the call.
                unsafe { function(sink.context, &item) };
            }
            Ok(())
        })
    }

    unsafe extern "C" fn check(
        shim: *mut SwShim,
        device: *const c_char,
        entry: *const SwEntry,
        sink: *const SwVerdictSink,
    ) -> *mut SwError {
        guard(|| {
            // SAFETY: guaranteed by the contract.
            let (shim, sink) = unsafe { (Self::shim(shim)?, view::value(sink, "sink")?) };
            // SAFETY: guaranteed by the contract.
            let (device, entry) = unsafe { (view::text(device, "device")?, EntryView::new(entry)?) };
            let function = sink.item.ok_or_else(|| null("sink function"))?;
            for (node, reported) in shim.check(device, entry)?.into_iter().enumerate() {
                let (verdict, reason) = match reported {
                    Verdict::Taken => (SW_VERDICT_TAKEN, None),
                    Verdict::Refused(reason) => (SW_VERDICT_REFUSED, Some(c_string(&reason))),
                };
                let item = SwVerdict {
                    size: size_of::<SwVerdict>() as u64,
                    node: node as u64,
                    verdict,
                    reserved: 0,
                    reason: pointer(&reason),
                };
                // SAFETY: the function is the host's, and the item outlives the call.
                unsafe { function(sink.context, &item) };
            }
            Ok(())
        })
    }

    unsafe extern "C" fn estimate(
        shim: *mut SwShim,
        device: *const c_char,
        entry: *const SwEntry,
        sink: *const SwEstimateSink,
    ) -> *mut SwError {
        guard(|| {
            // SAFETY: guaranteed by the contract.
            let (shim, sink) = unsafe { (Self::shim(shim)?, view::value(sink, "sink")?) };
            // SAFETY: guaranteed by the contract.
            let (device, entry) = unsafe { (view::text(device, "device")?, EntryView::new(entry)?) };
            let function = sink.item.ok_or_else(|| null("sink function"))?;
            if let Some(reported) = shim.estimate(device, entry)? {
                let item = SwEstimate {
                    size: size_of::<SwEstimate>() as u64,
                    time_microseconds: reported.time_microseconds,
                    provenance: numbers::provenance(reported.provenance),
                    reserved: 0,
                    bytes_moved: reported.bytes_moved,
                    uncosted: if reported.uncosted.is_empty() {
                        ptr::null()
                    } else {
                        reported.uncosted.as_ptr()
                    },
                    uncosted_count: reported.uncosted.len() as u64,
                    operations: reported.operations,
                    artefact_bytes: reported.artefact_bytes,
                    shared_bytes: reported.shared_bytes,
                };
                // SAFETY: the function is the host's, and the item outlives the call.
                unsafe { function(sink.context, &item) };
            }
            Ok(())
        })
    }

    unsafe extern "C" fn compile(
        shim: *mut SwShim,
        device: *const c_char,
        order: *const SwWorkOrder,
        output: *const SwCompileOutput,
    ) -> *mut SwError {
        guard(|| {
            // SAFETY: guaranteed by the contract.
            let (shim, device) = unsafe { (Self::shim(shim)?, view::text(device, "device")?) };
            // SAFETY: guaranteed by the contract.
            let (order, output) = unsafe { (WorkOrderView::new(order)?, view::value(output, "output")?) };
            // SAFETY: guaranteed by the contract.
            shim.compile(device, order, &mut unsafe { CompileOutput::new(output) }?)
        })
    }

    unsafe extern "C" fn compatibility(
        shim: *mut SwShim,
        device: *const c_char,
        head: *const c_void,
        head_length: u64,
        sink: *const SwCompatibilitySink,
    ) -> *mut SwError {
        guard(|| {
            // SAFETY: guaranteed by the contract.
            let (shim, device) = unsafe { (Self::shim(shim)?, view::text(device, "device")?) };
            // SAFETY: guaranteed by the contract.
            let (head, sink) = unsafe { (bytes(head, head_length, "head")?, view::value(sink, "sink")?) };
            let (answer, reason) = match shim.compatibility(device, head)? {
                Compatibility::NotMine(reason) => (SW_COMPATIBILITY_NOT_MINE, Some(reason)),
                Compatibility::Optimal => (SW_COMPATIBILITY_OPTIMAL, None),
                Compatibility::Recompile(reason) => (SW_COMPATIBILITY_RECOMPILE, Some(reason)),
                Compatibility::Unsupported(reason) => (SW_COMPATIBILITY_UNSUPPORTED, Some(reason)),
            };
            let reason = optional(&reason);
            let item = SwCompatibility {
                size: size_of::<SwCompatibility>() as u64,
                answer,
                reserved: 0,
                reason: pointer(&reason),
            };
            let function = sink.item.ok_or_else(|| null("sink function"))?;
            // SAFETY: the function is the host's, and the item outlives the call.
            unsafe { function(sink.context, &item) };
            Ok(())
        })
    }

    unsafe extern "C" fn load(
        shim: *mut SwShim,
        device: *const c_char,
        artefact: *const SwArtefact,
        options: *const *const SwOption,
        option_count: u64,
        shard: *mut *mut SwShard,
    ) -> *mut SwError {
        guard(|| {
            // SAFETY: guaranteed by the contract.
            let (shim, device) = unsafe { (Self::shim(shim)?, view::text(device, "device")?) };
            // SAFETY: guaranteed by the contract.
            let artefact = unsafe { view::value(artefact, "artefact") }?;
            // SAFETY: guaranteed by the contract.
            let options = unsafe { view::options(options, option_count, "option") }?;
            if shard.is_null() {
                return Err(null("place for the shard"));
            }
            let mapped = Artefact {
                // SAFETY: guaranteed by the contract until unload.
                head: unsafe { bytes(artefact.head, artefact.head_length, "head") }?,
                // SAFETY: guaranteed by the contract until unload.
                bytes: unsafe { bytes(artefact.pointer, artefact.length, "artefact") }?,
                file: (artefact.fd >= 0).then_some((artefact.fd, artefact.fd_offset)),
            };
            let inner: Box<dyn LoadedShard + '_> = shim.load(device, mapped, &options)?;
            let entries = inner.entries()?;
            check_entries(&entries)?;
            let flags = inner.flag_verdicts();
            // SAFETY: only the lifetime changes. The shard borrows the instance and the mapping.
            // The contract keeps both until unload drops the shard.
            let inner: Box<dyn LoadedShard> =
                unsafe { std::mem::transmute::<Box<dyn LoadedShard + '_>, Box<dyn LoadedShard>>(inner) };
            let handle = Box::new(Shard {
                inner: UnsafeCell::new(inner),
                entries,
                flags,
                running: AtomicBool::new(false),
                cancelled: AtomicBool::new(false),
            });
            // SAFETY: not null, and owned by the host for this call.
            unsafe { shard.write(Box::into_raw(handle).cast()) };
            Ok(())
        })
    }

    unsafe extern "C" fn buffer_allocate(
        shim: *mut SwShim,
        device: *const c_char,
        length: u64,
        alignment: u64,
        buffer: *mut *mut SwBuffer,
    ) -> *mut SwError {
        guard(|| {
            // SAFETY: guaranteed by the contract.
            let (shim, device) = unsafe { (Self::shim(shim)?, view::text(device, "device")?) };
            let too_large = |_| Error::resource_limit("host-memory", length, isize::MAX as u64);
            let length = usize::try_from(length).map_err(too_large)?;
            let alignment = usize::try_from(alignment).map_err(too_large)?;
            // SAFETY: guaranteed by the contract.
            unsafe { give_buffer(shim.allocate(device, length, alignment)?, buffer) }
        })
    }

    unsafe extern "C" fn buffer_import(
        shim: *mut SwShim,
        device: *const c_char,
        import: *const SwImport,
        buffer: *mut *mut SwBuffer,
    ) -> *mut SwError {
        guard(|| {
            // SAFETY: guaranteed by the contract.
            let (shim, device) = unsafe { (Self::shim(shim)?, view::text(device, "device")?) };
            // SAFETY: guaranteed by the contract.
            let import = unsafe { view::value(import, "import") }?;
            let import = match import.kind {
                SW_MEMORY_DMA_BUF => {
                    Import::DmaBuf { fd: import.fd, offset: import.fd_offset, length: import.length }
                }
                SW_MEMORY_HARDWARE_BUFFER => {
                    Import::HardwareBuffer { handle: import.handle, length: import.length }
                }
                other => {
                    return Err(Error::invalid_argument(format!("memory kind {other} cannot be imported")));
                }
            };
            // SAFETY: guaranteed by the contract.
            unsafe { give_buffer(shim.import(device, import)?, buffer) }
        })
    }

    unsafe extern "C" fn recover(shim: *mut SwShim, device: *const c_char) -> *mut SwError {
        guard(|| {
            // SAFETY: guaranteed by the contract.
            let (shim, device) = unsafe { (Self::shim(shim)?, view::text(device, "device")?) };
            shim.recover(device)
        })
    }

    unsafe extern "C" fn inspect(
        shim: *mut SwShim,
        content: *const c_void,
        length: u64,
        sink: *const SwInspectionSink,
    ) -> *mut SwError {
        guard(|| {
            // SAFETY: guaranteed by the contract.
            let (shim, sink) = unsafe { (Self::shim(shim)?, view::value(sink, "sink")?) };
            // SAFETY: guaranteed by the contract.
            let content = unsafe { bytes(content, length, "file") }?;
            let function = sink.item.ok_or_else(|| null("sink function"))?;
            if let Some(reported) = shim.inspect(content)? {
                let length = reported.document.len() as u64;
                if length > u64::from(SW_DOCUMENT_LIMIT) {
                    return Err(Error::resource_limit(
                        "document-bytes",
                        length,
                        u64::from(SW_DOCUMENT_LIMIT),
                    ));
                }
                let (format, document) = (c_string(&reported.format), c_string(&reported.document));
                let item = SwInspection {
                    size: size_of::<SwInspection>() as u64,
                    format: format.as_ptr(),
                    document: document.as_ptr(),
                };
                // SAFETY: the function is the host's, and the item outlives the call.
                unsafe { function(sink.context, &item) };
            }
            Ok(())
        })
    }
}

/// Borrows untrusted bytes.
///
/// # Safety
///
/// `pointer` is null or `length` readable bytes for `'a`.
unsafe fn bytes<'a>(pointer: *const c_void, length: u64, what: &str) -> Result<&'a [u8]> {
    if length == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() || length > isize::MAX as u64 {
        return Err(null(what));
    }
    // SAFETY: promised by the caller.
    Ok(unsafe { std::slice::from_raw_parts(pointer.cast(), length as usize) })
}

/// Checks that bindings have a possible alignment, size and number of strides. The rest of this
/// file relies on that.
fn check_entries(entries: &[LoadedEntry]) -> Result<()> {
    for entry in entries {
        for binding in &entry.bindings {
            if !binding.alignment.is_power_of_two() || binding.bytes > isize::MAX as u64 {
                return Err(Error::internal(format!(
                    "the shim's binding `{}` of {} bytes aligned to {} is not possible",
                    binding.name, binding.bytes, binding.alignment
                )));
            }
            if binding.strides.as_ref().is_some_and(|strides| strides.len() != binding.shape.len()) {
                return Err(Error::internal(format!(
                    "the shim's binding `{}` has {} extents, but another number of strides",
                    binding.name,
                    binding.shape.len()
                )));
            }
        }
    }
    Ok(())
}

/// Passes a buffer to the host.
///
/// # Safety
///
/// `place` is null or owned by the host for this call.
unsafe fn give_buffer(buffer: Box<dyn Buffer>, place: *mut *mut SwBuffer) -> Result<()> {
    if place.is_null() {
        return Err(null("place for the buffer"));
    }
    // SAFETY: promised by the caller.
    unsafe { place.write(Box::into_raw(Box::new(BufferHandle { buffer })).cast()) };
    Ok(())
}

unsafe extern "C" fn error_free(error: *mut SwError) {
    guard_silently(|| {
        if !error.is_null() {
            // SAFETY: made by `into_raw`, freed once.
            drop(unsafe { Box::from_raw(error.cast::<OwnedError>()) });
        }
    });
}

unsafe extern "C" fn unload(shard: *mut SwShard) {
    guard_silently(|| {
        if !shard.is_null() {
            // SAFETY: made by `load`, unloaded once, not while it runs.
            drop(unsafe { Box::from_raw(shard.cast::<Shard>()) });
        }
    });
}

unsafe extern "C" fn entries(shard: *mut SwShard, sink: *const SwLoadedEntrySink) -> *mut SwError {
    guard(|| {
        // SAFETY: guaranteed by the contract.
        let (shard, sink) = unsafe { (handle::<Shard, _>(shard, "shard")?, view::value(sink, "sink")?) };
        let function = sink.item.ok_or_else(|| null("sink function"))?;
        for (index, reported) in shard.entries.iter().enumerate() {
            let name = c_string(&reported.name);
            let item = SwLoadedEntry {
                size: size_of::<SwLoadedEntry>() as u64,
                index: index as u64,
                name: name.as_ptr(),
                rows: reported.rows,
                context: reported.context,
                binding_count: reported.bindings.len() as u64,
            };
            // SAFETY: the function is the host's, and the item outlives the call.
            unsafe { function(sink.context, &item) };
        }
        Ok(())
    })
}

unsafe extern "C" fn flag_verdicts(shard: *mut SwShard, sink: *const SwFlagVerdictSink) -> *mut SwError {
    guard(|| {
        // SAFETY: guaranteed by the contract.
        let (shard, sink) = unsafe { (handle::<Shard, _>(shard, "shard")?, view::value(sink, "sink")?) };
        let function = sink.item.ok_or_else(|| null("sink function"))?;
        for reported in &shard.flags {
            let (name, evidence) = (c_string(&reported.name), c_string(&reported.evidence));
            let item = SwFlagVerdict {
                size: size_of::<SwFlagVerdict>() as u64,
                name: name.as_ptr(),
                verdict: reported.outcome as u32,
                reserved: 0,
                evidence: evidence.as_ptr(),
            };
            // SAFETY: the function is the host's, and the item outlives the call.
            unsafe { function(sink.context, &item) };
        }
        Ok(())
    })
}

fn entry_of(shard: &Shard, index: u64) -> Result<&LoadedEntry> {
    usize::try_from(index)
        .ok()
        .and_then(|index| shard.entries.get(index))
        .ok_or_else(|| Error::invalid_argument(format!("no entry {index} of {}", shard.entries.len())))
}

unsafe extern "C" fn bindings(shard: *mut SwShard, entry: u64, sink: *const SwBindingSink) -> *mut SwError {
    guard(|| {
        // SAFETY: guaranteed by the contract.
        let (shard, sink) = unsafe { (handle::<Shard, _>(shard, "shard")?, view::value(sink, "sink")?) };
        let function = sink.item.ok_or_else(|| null("sink function"))?;
        for (index, reported) in entry_of(shard, entry)?.bindings.iter().enumerate() {
            let name = c_string(&reported.name);
            let item = SwBinding {
                size: size_of::<SwBinding>() as u64,
                index: index as u64,
                name: name.as_ptr(),
                direction: reported.direction as u32,
                role: reported.role,
                dtype: reported.dtype,
                update: reported.update,
                shape: if reported.shape.is_empty() { ptr::null() } else { reported.shape.as_ptr() },
                strides: reported.strides.as_ref().map_or(ptr::null(), |strides| strides.as_ptr()),
                rank: reported.shape.len() as u64,
                bytes: reported.bytes,
                alignment: reported.alignment,
                memory_kinds: reported.memory_kinds.0,
                reserved: 0,
                scale: reported.scale,
                zero_point: reported.zero_point,
            };
            // SAFETY: the function is the host's, and the item outlives the call.
            unsafe { function(sink.context, &item) };
        }
        Ok(())
    })
}

/// Marks a shard as not running when dropped, even by a panic.
struct Running<'a>(&'a AtomicBool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

unsafe extern "C" fn run(shard: *mut SwShard, run: *const SwRun) -> *mut SwError {
    guard(|| {
        // SAFETY: guaranteed by the contract.
        let (shard, run) = unsafe { (handle::<Shard, _>(shard, "shard")?, view::value(run, "run")?) };
        if shard.running.swap(true, Ordering::Acquire) {
            return Err(Error::invalid_argument("the shard is already running"));
        }
        let _running = Running(&shard.running);
        shard.cancelled.store(false, Ordering::Relaxed);
        let entry = entry_of(shard, run.entry)?;
        if run.rows == 0 || run.rows > entry.rows {
            return Err(Error::invalid_argument(format!("{} rows, expected 1 to {}", run.rows, entry.rows)));
        }
        if run.bound_count != entry.bindings.len() as u64 {
            return Err(Error::invalid_argument(format!(
                "{} bindings for `{}`, expected {}",
                run.bound_count,
                entry.name,
                entry.bindings.len()
            )));
        }
        let mut bound = Vec::with_capacity(entry.bindings.len());
        for (index, binding) in entry.bindings.iter().enumerate() {
            // SAFETY: the array has `bound_count` elements, which was compared above.
            let passed = unsafe { view::value(*run.bounds.add(index), "bound") }?;
            // SAFETY: guaranteed by the contract.
            bound.push(unsafe { bind(binding, &passed) }?);
        }
        let deadline = match run.deadline_nanoseconds {
            0 => None,
            nanoseconds => Instant::now().checked_add(Duration::from_nanos(nanoseconds)),
        };
        // SAFETY: `running` was set above, so no other run is active. The host does not unload
        // during a run.
        let inner = unsafe { &mut *shard.inner.get() };
        inner.run(Run {
            entry: run.entry as usize,
            rows: run.rows as usize,
            bound,
            largest_logits: NonZeroUsize::new(usize::try_from(run.largest_logits).unwrap_or(usize::MAX)),
            control: Control { cancelled: &shard.cancelled, deadline },
        })
    })
}

/// Checks the memory for a binding and borrows it for a run.
///
/// # Safety
///
/// The bound memory is valid for `'a`. If it is written, it does not overlap other bound memory.
unsafe fn bind<'a>(binding: &crate::Binding, passed: &SwBound) -> Result<Bound<'a>> {
    let refuse = |text: String| {
        Err(Error::invalid_argument(format!("binding `{}`: {text}", binding.name))
            .detail("binding", &binding.name))
    };
    if passed.length < binding.bytes {
        return refuse(format!("expected {} bytes, got {}", binding.bytes, passed.length));
    }
    let length = binding.bytes as usize;
    let mut buffer = None;
    let start = if passed.buffer.is_null() {
        passed.pointer.cast::<u8>()
    } else {
        // SAFETY: the host passes back a handle that this table made.
        let existing = &unsafe { handle::<BufferHandle, _>(passed.buffer, "buffer") }?.buffer;
        let end = passed.offset.checked_add(binding.bytes);
        if end.is_none_or(|end| end > existing.length() as u64) {
            return refuse(format!(
                "{} bytes at offset {} exceed the buffer of {}",
                binding.bytes,
                passed.offset,
                existing.length()
            ));
        }
        buffer = Some((existing.as_ref(), passed.offset as usize));
        let pointer = existing.pointer();
        if pointer.is_null() {
            return Ok(Bound { memory: Memory::Opaque, buffer });
        }
        // SAFETY: within the buffer, which was compared above.
        unsafe { pointer.add(passed.offset as usize) }
    };
    if length > 0 && (start.is_null() || !(start as usize).is_multiple_of(binding.alignment as usize)) {
        return refuse(format!("memory at {start:p}, expected an alignment of {}", binding.alignment));
    }
    let memory = match binding.direction {
        _ if length == 0 => Memory::Read(&[]),
        Direction::Input | Direction::StateRead => {
            // SAFETY: promised by the caller.
            Memory::Read(unsafe { std::slice::from_raw_parts(start, length) })
        }
        Direction::Output | Direction::State => {
            // SAFETY: promised by the caller.
            Memory::Write(unsafe { std::slice::from_raw_parts_mut(start, length) })
        }
    };
    Ok(Bound { memory, buffer })
}

unsafe extern "C" fn cancel(shard: *mut SwShard) {
    guard_silently(|| {
        // SAFETY: guaranteed by the contract. Only the atomic is accessed.
        if let Ok(shard) = unsafe { handle::<Shard, _>(shard, "shard") } {
            shard.cancelled.store(true, Ordering::Relaxed);
        }
    });
}

unsafe extern "C" fn buffer_free(_shim: *mut SwShim, buffer: *mut SwBuffer) {
    guard_silently(|| {
        if !buffer.is_null() {
            // SAFETY: made by `give_buffer`, freed once.
            drop(unsafe { Box::from_raw(buffer.cast::<BufferHandle>()) });
        }
    });
}

unsafe extern "C" fn buffer_map(
    _shim: *mut SwShim,
    buffer: *mut SwBuffer,
    place: *mut *mut c_void,
) -> *mut SwError {
    guard(|| {
        // SAFETY: guaranteed by the contract.
        let existing = unsafe { handle::<BufferHandle, _>(buffer, "buffer") }?;
        let pointer = existing.buffer.pointer();
        if pointer.is_null() {
            return Err(Error::invalid_argument("this buffer cannot be mapped"));
        }
        if place.is_null() {
            return Err(null("place for the pointer"));
        }
        // SAFETY: not null, and owned by the host for this call.
        unsafe { place.write(pointer.cast()) };
        Ok(())
    })
}

unsafe extern "C" fn buffer_sync(
    _shim: *mut SwShim,
    buffer: *mut SwBuffer,
    offset: u64,
    length: u64,
    direction: u32,
) -> *mut SwError {
    guard(|| {
        // SAFETY: guaranteed by the contract.
        let existing = unsafe { handle::<BufferHandle, _>(buffer, "buffer") }?;
        let within = offset.checked_add(length).is_some_and(|end| end <= existing.buffer.length() as u64);
        if !within {
            return Err(Error::invalid_argument(format!(
                "{length} bytes at offset {offset} are outside the buffer"
            )));
        }
        for (bit, side) in
            [(SW_SYNC_BEFORE_HOST, SyncDirection::BeforeHost), (SW_SYNC_AFTER_HOST, SyncDirection::AfterHost)]
        {
            if direction & bit != 0 {
                existing.buffer.sync(offset as usize, length as usize, side)?;
            }
        }
        Ok(())
    })
}
