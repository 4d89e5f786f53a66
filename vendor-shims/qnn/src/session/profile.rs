use super::{Backend, Preparation, checked};
use crate::failure::Result;
use crate::ffi::{self, Handle, number};
use crate::log::Mark;
use shardwright_shim_npu::library::text;
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// The library's estimate during compilation, for the chips it supports. The graph is not run for
/// it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Processor cycles. `None` if the library has no estimate for the chip.
    pub cycles: Option<u64>,
    /// Microseconds of one run.
    pub microseconds: Option<u64>,
    /// Bytes read from memory: weights and inputs.
    pub read_bytes: Option<u64>,
    /// Bytes that did not fit the fast memory and are written to memory and read again.
    pub spilled_bytes: Option<u64>,
    /// Operations without a cost, which the estimate counts as free.
    pub uncosted: Vec<String>,
    /// Number of operations without a cost.
    pub uncosted_count: u64,
}

/// The library's numbers of event kinds.
mod event {
    pub const CYCLES: u32 = 2006;
    pub const FILL_BYTES: u32 = 2011;
    pub const SPILL_BYTES: u32 = 2013;
    pub const UNCOSTED: u32 = 2017;
    pub const UNCOSTED_NAME: u32 = 2018;
    pub const MICROSECONDS: u32 = 2019;
}

/// Events nested deeper than this are ignored. The library nests three levels.
const MAX_DEPTH: u32 = 8;
/// Maximum number of events. Further events are ignored.
const MAX_EVENTS: usize = 1 << 20;

pub(crate) struct ProfileHandle {
    backend: Arc<Backend>,
    handle: Handle,
}

impl ProfileHandle {
    pub(crate) fn new(backend: &Arc<Backend>, preparation: &Preparation) -> Result<ProfileHandle> {
        let mut handle = null_mut();
        let functions = backend.library().functions();
        // SAFETY: the backend is live, the place outlives the call.
        let code =
            unsafe { (functions.profile_create)(backend.handle(), number::PROFILE_DETAILED, &mut handle) };
        checked(backend.library(), "profileCreate", code, preparation.mark())?;
        Ok(ProfileHandle { backend: backend.clone(), handle })
    }

    pub(crate) fn raw(&self) -> Handle {
        self.handle
    }

    pub(crate) fn read(&self, mark: Mark) -> Result<Profile> {
        let mut profile = Profile::default();
        let mut seen = 0;
        self.walk(None, 0, &mut seen, mark, &mut |data, name| match data.kind {
            event::CYCLES => profile.cycles = Some(data.value),
            event::MICROSECONDS => profile.microseconds = Some(data.value),
            event::FILL_BYTES => profile.read_bytes = Some(unsigned(data.value)),
            event::SPILL_BYTES => profile.spilled_bytes = Some(unsigned(data.value)),
            event::UNCOSTED => profile.uncosted_count = data.value,
            event::UNCOSTED_NAME => profile.uncosted.extend(name),
            _ => {}
        })?;
        Ok(profile)
    }

    fn walk(
        &self,
        parent: Option<ffi::EventId>,
        depth: u32,
        seen: &mut usize,
        mark: Mark,
        see: &mut dyn FnMut(&ffi::EventData, Option<String>),
    ) -> Result<()> {
        let library = self.backend.library();
        let functions = library.functions();
        let (mut list, mut count) = (null(), 0);
        // SAFETY: the profile is live and the event belongs to it. The places outlive the call.
        let (function, code) = unsafe {
            match parent {
                None => {
                    ("profileGetEvents", (functions.profile_get_events)(self.handle, &mut list, &mut count))
                }
                Some(parent) => {
                    ("profileGetSubEvents", (functions.profile_get_sub_events)(parent, &mut list, &mut count))
                }
            }
        };
        checked(library, function, code, mark)?;
        if list.is_null() {
            return Ok(());
        }
        for index in 0..count as usize {
            *seen += 1;
            if *seen > MAX_EVENTS {
                return Ok(());
            }
            // SAFETY: the library reports that many events, and keeps them with the profile.
            let id = unsafe { list.add(index).read() };
            let mut data = ffi::EventData { kind: 0, unit: 0, value: 0, name: null() };
            // SAFETY: an event of the live profile. The place outlives the call.
            let code = unsafe { (functions.profile_get_event_data)(id, &mut data) };
            checked(library, "profileGetEventData", code, mark)?;
            // SAFETY: null, or text kept with the profile.
            let name = unsafe { text(data.name) };
            see(&data, name);
            if depth < MAX_DEPTH {
                self.walk(Some(id), depth + 1, seen, mark, see)?;
            }
        }
        Ok(())
    }
}

/// Converts a byte count. Counts from 2 to 4 GiB are sign-extended from 32 bits.
fn unsigned(value: u64) -> u64 {
    match (value as i64) < 0 {
        true => value & 0xffff_ffff,
        false => value,
    }
}

impl Drop for ProfileHandle {
    fn drop(&mut self) {
        // SAFETY: created by `new`, not used any more. The backend is alive.
        unsafe { (self.backend.library().functions().profile_free)(self.handle) };
    }
}
