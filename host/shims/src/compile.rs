//! Writes the output of a compilation, from the shim's callbacks to an artefact.

use std::any::Any;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use shardwright_shim_abi::raw::*;
use shardwright_vocabulary::{Description, Error, FlagRecord, FlagVerdict, NodePlacement, Watch};

use crate::artefact::{Artefact, ArtefactDestination, ArtefactHead, ArtefactWriter};
use crate::call;
use crate::chip::{Chip, FACTS_LIMIT, FactSchema};
use crate::error::ShimError;
use crate::interface::EntryInterface;
use crate::work_order::WorkOrder;

/// Maximum number of verdicts and of placements in one compilation.
pub const REPORT_LIMIT: usize = 1 << 20;

/// Receives the output of a compilation.
pub trait Output {
    /// Appends to the artefact. Returns false to stop.
    fn write(&mut self, bytes: &[u8]) -> bool;
    /// Sets the shim's head, whose length was checked. Called at most once.
    fn head(&mut self, bytes: &[u8]);
    fn progress(&mut self, per_mille: u32, stage: &str);
    /// Returns whether to stop.
    fn cancelled(&mut self) -> bool;
    /// Reports the verdict on a flag.
    fn flag(&mut self, name: String, verdict: FlagVerdict, evidence: String);
    /// Reports the placement of a node, identified by the indices of entry and node.
    fn placement(&mut self, placement: Placement);
    /// Reports a fact of the chip, read back from the compiler's output.
    fn made_for(&mut self, fact: String, value: String);
}

/// Placement of a node as a shim reports it: index of the entry, index of the node, place, reason.
pub type Placement = (u64, u64, String, String);

/// The artefact being written, and the caller's watch.
pub(crate) struct Compilation<'a> {
    writer: ArtefactWriter,
    watch: &'a mut dyn Watch,
    failed: Option<Error>,
    flags: BTreeMap<String, (FlagVerdict, String)>,
    placements: Vec<Placement>,
    written: u64,
    /// The first violation of the contract in the verdicts on flags.
    contract: Option<String>,
    made_for: BTreeMap<String, String>,
}

impl<'a> Compilation<'a> {
    pub(crate) fn new(
        place: ArtefactDestination<'_>,
        watch: &'a mut dyn Watch,
    ) -> Result<Compilation<'a>, ShimError> {
        Ok(Compilation {
            writer: ArtefactWriter::new(place).map_err(ShimError::artefact)?,
            watch,
            failed: None,
            flags: BTreeMap::new(),
            placements: Vec::new(),
            written: 0,
            contract: None,
            made_for: BTreeMap::new(),
        })
    }

    /// Completes the artefact after the shim's function returned `result`. On failure the file is
    /// removed.
    pub(crate) fn finish(
        self,
        result: Result<(), ShimError>,
        order: &WorkOrder,
        entries: Vec<EntryInterface>,
        (instance, device, description): (&str, &str, &Description),
        (chip, facts): (Option<Chip>, &[FactSchema]),
    ) -> Result<Artefact, ShimError> {
        let Compilation { writer, watch, failed, mut flags, placements, made_for, written, contract: broken } =
            self;
        // The host's own failure is the cause. The shim's error is then only a consequence.
        if let Some(failed) = failed {
            return Err(ShimError::artefact(failed));
        }
        // If its bytes are rejected, a shim cannot know why, and returns a failure.
        result.map_err(|error| if watch.cancelled() { error.cancelled() } else { error })?;
        if let Some(reason) = broken {
            return Err(ShimError::contract(instance, "compile", reason));
        }
        if !writer.has_head() {
            return Err(ShimError::contract(instance, "compile", "success without a head"));
        }
        if written == 0 {
            return Err(ShimError::contract(instance, "compile", "success without any code"));
        }
        let declared = |name: &String| facts.iter().any(|schema| schema.fact.name == *name);
        if let Some(other) = made_for.keys().find(|name| !declared(name)) {
            let reason = format!("reported the fact `{other}`, which the shim does not declare");
            return Err(ShimError::contract(instance, "compile", reason));
        }
        let flags = order
            .head()
            .flags
            .iter()
            .map(|flag| {
                let (verdict, reason) = flags
                    .remove(&flag.name)
                    .unwrap_or((FlagVerdict::Unknown, "the shim did not report it".to_owned()));
                FlagRecord { flag: flag.clone(), verdict, reason }
            })
            .collect();
        let named = |&(entry, node, ref place, ref reason): &Placement| {
            let entry = order.head().entries.get(usize::try_from(entry).ok()?)?;
            let node = entry.nodes.get(usize::try_from(node).ok()?)?;
            Some(NodePlacement {
                entry: entry.point.name(),
                node: node.name.clone(),
                place: place.clone(),
                reason: reason.clone(),
            })
        };
        let placements = placements.iter().map(named).collect::<Option<Vec<_>>>().ok_or_else(|| {
            ShimError::contract(instance, "compile", "a placement of a node that does not exist")
        })?;
        let head = ArtefactHead {
            shim: description.name.clone(),
            shim_version: description.version.clone(),
            device: device.to_owned(),
            work_order: order.name(),
            payload_length: 0,
            head_length: 0,
            entries,
            flags,
            placements,
            chip,
            made_for,
        };
        writer.finish(head).map_err(ShimError::artefact)
    }
}

impl Output for Compilation<'_> {
    fn write(&mut self, bytes: &[u8]) -> bool {
        if self.failed.is_some() {
            return false;
        }
        self.failed = self.writer.write(bytes).err();
        self.written = self.written.saturating_add(bytes.len() as u64);
        self.failed.is_none()
    }

    fn head(&mut self, bytes: &[u8]) {
        self.writer.set_head(bytes);
    }

    fn progress(&mut self, per_mille: u32, stage: &str) {
        self.watch.progress(per_mille.min(1000), stage);
    }

    fn cancelled(&mut self) -> bool {
        self.failed.is_some() || self.watch.cancelled()
    }

    /// Records a verdict. *Applied* is the only verdict that promises an effect, so it requires
    /// evidence.
    fn flag(&mut self, name: String, verdict: FlagVerdict, evidence: String) {
        if self.flags.len() >= REPORT_LIMIT || self.contract.is_some() {
            return;
        }
        if matches!(verdict, FlagVerdict::Applied { .. }) && evidence.trim().is_empty() {
            self.contract = Some(format!("flag `{name}` is reported as applied without evidence"));
            return;
        }
        match self.flags.entry(name) {
            Entry::Vacant(place) => {
                place.insert((verdict, evidence));
            }
            Entry::Occupied(reported) => {
                self.contract = Some(format!("two verdicts on flag `{}`", reported.key()));
            }
        }
    }

    fn placement(&mut self, placement: Placement) {
        if self.placements.len() < REPORT_LIMIT {
            self.placements.push(placement);
        }
    }

    fn made_for(&mut self, fact: String, value: String) {
        // To detect too many facts, one more than can be declared is enough.
        if self.made_for.len() <= FACTS_LIMIT {
            self.made_for.insert(fact, value);
        }
    }
}

/// Outcome of a shim's compile function.
pub(crate) struct Called {
    /// The returned error object, not yet freed.
    pub(crate) error: *mut SwError,
    /// The first violation of the contract in its callbacks.
    pub(crate) contract: Option<String>,
    /// A panic of the caller, to be resumed after freeing the error.
    pub(crate) panic: Option<Box<dyn Any + Send>>,
}

/// State of the callbacks.
struct Context<'a> {
    output: &'a mut dyn Output,
    stopped: bool,
    has_head: bool,
    contract: Option<String>,
    panic: Option<Box<dyn Any + Send>>,
}

/// Calls `compile` with callbacks that forward to `output`.
pub(crate) fn call(
    output: &mut dyn Output,
    compile: impl FnOnce(*const SwCompileOutput) -> *mut SwError,
) -> Called {
    let mut context = Context { output, stopped: false, has_head: false, contract: None, panic: None };
    let shown = SwCompileOutput {
        size: size_of::<SwCompileOutput>() as u64,
        context: (&raw mut context).cast(),
        write: Some(compile_write),
        head: Some(compile_head),
        progress: Some(compile_progress),
        cancelled: Some(compile_cancelled),
        flag: Some(compile_flag),
        placement: Some(compile_placement),
        made_for: Some(compile_made_for),
    };
    let error = compile(&shown);
    Called { error, contract: context.contract, panic: context.panic }
}

/// Runs `body` on the context. A panic of the caller's `Watch` must not unwind through foreign
/// code. So it is stored, and resumed after the shim has returned.
///
/// # Safety
///
/// `context` is the one passed with the callbacks, on the thread that called compile.
unsafe fn within<T>(context: *mut c_void, stopped: T, body: impl FnOnce(&mut Context<'_>) -> T) -> T {
    // SAFETY: promised by the caller. Callbacks do not nest.
    let found = unsafe { &mut *context.cast::<Context<'_>>() };
    match catch_unwind(AssertUnwindSafe(|| body(found))) {
        Ok(value) => value,
        Err(payload) => {
            // SAFETY: as above. The panicking borrow has ended.
            unsafe { &mut *context.cast::<Context<'_>>() }.panic.get_or_insert(payload);
            stopped
        }
    }
}

/// Returns the bytes at `pointer`, unless it is null.
///
/// # Safety
///
/// `pointer` is null or points to `length` readable bytes.
unsafe fn bytes_at<'a>(pointer: *const c_void, length: u64) -> Option<&'a [u8]> {
    match length {
        0 => Some(&[]),
        _ if pointer.is_null() || length > isize::MAX as u64 => None,
        // SAFETY: promised by the caller.
        _ => Some(unsafe { std::slice::from_raw_parts(pointer.cast(), length as usize) }),
    }
}

unsafe extern "C" fn compile_write(raw: *mut c_void, bytes: *const c_void, length: u64) -> u32 {
    // SAFETY: as the contract specifies.
    unsafe {
        within(raw, 1, |context| {
            let Some(bytes) = bytes_at(bytes, length) else {
                context.contract.get_or_insert("the bytes are null".to_owned());
                return 1;
            };
            if !context.stopped && context.panic.is_none() {
                context.stopped = !context.output.write(bytes);
            }
            u32::from(context.stopped || context.panic.is_some())
        })
    }
}

unsafe extern "C" fn compile_head(raw: *mut c_void, bytes: *const c_void, length: u64) -> u32 {
    // SAFETY: as the contract specifies.
    unsafe {
        within(raw, 1, |context| {
            let possible = !context.has_head && length <= u64::from(SW_HEAD_LIMIT);
            match bytes_at(bytes, length).filter(|_| possible) {
                Some(bytes) => {
                    context.has_head = true;
                    context.output.head(bytes);
                    0
                }
                None => {
                    context.contract.get_or_insert(format!(
                        "a head of {length} bytes that is null, too long or not the first"
                    ));
                    1
                }
            }
        })
    }
}

unsafe extern "C" fn compile_progress(raw: *mut c_void, per_mille: u32, stage: *const c_char) {
    // SAFETY: as the contract specifies.
    unsafe {
        within(raw, (), |context| {
            let stage = call::optional_text(stage).unwrap_or_default();
            context.output.progress(per_mille.min(1000), &stage);
        });
    }
}

unsafe extern "C" fn compile_cancelled(raw: *mut c_void) -> u32 {
    // SAFETY: as the contract specifies.
    unsafe {
        within(raw, 1, |context| {
            u32::from(context.stopped || context.panic.is_some() || context.output.cancelled())
        })
    }
}

/// Converts the number of a verdict. Returns an error for an unknown number.
pub(crate) fn flag_verdict(number: u32, evidence: &str) -> Result<FlagVerdict, String> {
    Ok(match number {
        SW_FLAG_APPLIED => FlagVerdict::Applied { evidence: evidence.to_owned() },
        SW_FLAG_RECORDED => FlagVerdict::Recorded,
        SW_FLAG_INERT => FlagVerdict::Inert,
        SW_FLAG_REFUSED => FlagVerdict::Refused,
        SW_FLAG_UNKNOWN => FlagVerdict::Unknown,
        other => return Err(format!("unknown flag verdict {other}")),
    })
}

unsafe extern "C" fn compile_flag(raw: *mut c_void, verdict: *const SwFlagVerdict) {
    // SAFETY: as the contract specifies.
    unsafe {
        within(raw, (), |context| {
            let read = || -> Result<(String, FlagVerdict, String), String> {
                let item = call::value(verdict)?;
                let name = call::text(item.name)?;
                let evidence = match call::optional_text(item.evidence) {
                    Some(evidence) => evidence,
                    None => return Err(format!("no evidence for the verdict on flag `{name}`")),
                };
                let verdict = flag_verdict(item.verdict, &evidence)?;
                Ok((name, verdict, evidence))
            };
            match read() {
                Ok((name, verdict, evidence)) => context.output.flag(name, verdict, evidence),
                Err(reason) => {
                    context.contract.get_or_insert(reason);
                }
            }
        });
    }
}

unsafe extern "C" fn compile_placement(raw: *mut c_void, placement: *const SwPlacement) {
    // SAFETY: as the contract specifies.
    unsafe {
        within(raw, (), |context| {
            let read = || -> Result<Placement, String> {
                let item = call::value(placement)?;
                let reason = call::optional_text(item.reason).unwrap_or_default();
                Ok((item.entry, item.node, call::text(item.place)?, reason))
            };
            match read() {
                Ok(item) => context.output.placement(item),
                Err(reason) => {
                    context.contract.get_or_insert(reason);
                }
            }
        });
    }
}

unsafe extern "C" fn compile_made_for(raw: *mut c_void, fact: *const SwOption) {
    // SAFETY: as the contract specifies.
    unsafe {
        within(raw, (), |context| {
            let read = || -> Result<(String, String), String> {
                let item = call::value(fact)?;
                Ok((call::text(item.key)?, call::text(item.value)?))
            };
            match read() {
                Ok((fact, value)) => context.output.made_for(fact, value),
                Err(reason) => {
                    context.contract.get_or_insert(reason);
                }
            }
        });
    }
}
