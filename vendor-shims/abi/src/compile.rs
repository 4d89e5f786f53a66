use std::ffi::CString;
use std::io;
use std::marker::PhantomData;

use crate::error::{Error, ErrorClass, Result};
use crate::export::c_string;
use crate::raw;
use crate::shim::FlagOutcome;

/// The host's callbacks during a compilation. They receive the artefact's bytes, its head,
/// progress, flag verdicts and node placements.
pub struct CompileOutput<'a> {
    raw: raw::SwCompileOutput,
    _host: PhantomData<&'a raw::SwCompileOutput>,
}

impl CompileOutput<'_> {
    /// Wraps the callbacks. The caller guarantees that the functions in `raw` are valid.
    pub(crate) unsafe fn new(raw: raw::SwCompileOutput) -> Result<Self> {
        let complete = raw.write.is_some()
            && raw.head.is_some()
            && raw.progress.is_some()
            && raw.cancelled.is_some()
            && raw.flag.is_some()
            && raw.placement.is_some();
        if complete {
            Ok(CompileOutput { raw, _host: PhantomData })
        } else {
            Err(Error::invalid_argument("the compile output of the host lacks a function"))
        }
    }

    /// Appends to the artefact. On an error the host accepts no more bytes: return the error.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(write) = self.raw.write else { return Err(incomplete()) };
        // SAFETY: the caller of `new` guaranteed the function. `bytes` outlives the call.
        match unsafe { write(self.raw.context, bytes.as_ptr().cast(), bytes.len() as u64) } {
            0 => Ok(()),
            _ if self.cancelled() => Err(Error::new(ErrorClass::Cancelled, "the compilation was cancelled")),
            _ => Err(Error::internal("the host accepts no more of the artefact")),
        }
    }

    /// Sets the head, from which [`Shim::compatibility`](crate::Shim::compatibility) answers. Call
    /// it once, with at most 64 KiB.
    pub fn head(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() > raw::SW_HEAD_LIMIT as usize {
            return Err(Error::resource_limit(
                "head-bytes",
                bytes.len() as u64,
                u64::from(raw::SW_HEAD_LIMIT),
            ));
        }
        let Some(head) = self.raw.head else { return Err(incomplete()) };
        // SAFETY: the caller of `new` guaranteed the function. `bytes` outlives the call.
        match unsafe { head(self.raw.context, bytes.as_ptr().cast(), bytes.len() as u64) } {
            0 => Ok(()),
            _ => Err(Error::internal("the host refused the head, which can be set only once")),
        }
    }

    /// Reports progress.
    ///
    /// # Errors
    ///
    /// A [`Cancelled`](ErrorClass::Cancelled) error if the compilation should stop.
    pub fn progress(&mut self, per_mille: u32, stage: &str) -> Result<()> {
        let stage: CString = c_string(stage);
        if let Some(progress) = self.raw.progress {
            // SAFETY: the caller of `new` guaranteed the function. `stage` outlives the call.
            unsafe { progress(self.raw.context, per_mille.min(1000), stage.as_ptr()) }
        }
        if self.cancelled() {
            return Err(Error::new(ErrorClass::Cancelled, "the compilation was cancelled"));
        }
        Ok(())
    }

    /// Returns whether the host requested a stop.
    pub fn cancelled(&self) -> bool {
        // SAFETY: the caller of `new` guaranteed the function.
        self.raw.cancelled.is_some_and(|cancelled| unsafe { cancelled(self.raw.context) } != 0)
    }

    /// Reports the outcome of a flag, and the evidence for it or why there is no evidence.
    pub fn flag(&mut self, name: &str, outcome: FlagOutcome, evidence: &str) {
        let (name, evidence) = (c_string(name), c_string(evidence));
        let verdict = raw::SwFlagVerdict {
            size: size_of::<raw::SwFlagVerdict>() as u64,
            name: name.as_ptr(),
            verdict: outcome as u32,
            reserved: 0,
            evidence: evidence.as_ptr(),
        };
        if let Some(flag) = self.raw.flag {
            // SAFETY: the caller of `new` guaranteed the function. `verdict` and its strings
            // outlive the call.
            unsafe { flag(self.raw.context, &verdict) }
        }
    }

    /// Reports that a node does not run on the device itself, and where it runs instead.
    pub fn placement(&mut self, entry: u64, node: u64, place: &str, reason: Option<&str>) {
        let (place, reason) = (c_string(place), reason.map(c_string));
        let placement = raw::SwPlacement {
            size: size_of::<raw::SwPlacement>() as u64,
            entry,
            node,
            place: place.as_ptr(),
            reason: reason.as_ref().map_or(std::ptr::null(), |reason| reason.as_ptr()),
        };
        if let Some(function) = self.raw.placement {
            // SAFETY: the caller of `new` guaranteed the function. `placement` and its strings
            // outlive the call.
            unsafe { function(self.raw.context, &placement) }
        }
    }

    /// Reports a chip fact read back from the compiled code, under the name that the shim declared
    /// for it. The host reports a difference from the chip's profile.
    pub fn made_for(&mut self, fact: &str, value: &str) {
        let (key, value) = (c_string(fact), c_string(value));
        let fact = raw::SwOption {
            size: size_of::<raw::SwOption>() as u64,
            key: key.as_ptr(),
            value: value.as_ptr(),
        };
        if let Some(function) = self.raw.made_for {
            // SAFETY: the caller of `new` guaranteed the function. `fact` and its strings outlive
            // the call.
            unsafe { function(self.raw.context, &fact) }
        }
    }
}

impl io::Write for CompileOutput<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        CompileOutput::write(self, bytes).map(|()| bytes.len()).map_err(io::Error::other)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn incomplete() -> Error {
    Error::internal("the compile output of the host lacks a function")
}
