//! Detects the chip of this machine.

use super::{Backend, Preparation, checked};
use crate::failure::Result;
use crate::ffi::DeviceExtension;
use crate::soc::SocId;
use std::ptr::null;

/// Sanity limit on the number of processors.
const MOST_DEVICES: u32 = 64;
/// Number of an extension that describes a processor of the chip itself.
const ON_CHIP: u32 = 0;

impl Backend {
    /// Returns the chip that the library detects, or `None` if it reports no processor's chip.
    ///
    /// **Untested** on a phone. On x86-64 the library describes the chip it simulates by default,
    /// not a machine.
    ///
    /// # Errors
    /// Returns the library's error.
    pub fn own_soc(&self) -> Result<Option<SocId>> {
        let preparation = Preparation::begin();
        let functions = self.library().functions();
        let mut info = null();
        // SAFETY: the log's handle is live, the place outlives the call.
        let code = unsafe { (functions.device_get_platform_info)(self.log(), &mut info) };
        checked(self.library(), "deviceGetPlatformInfo", code, preparation.mark())?;
        if info.is_null() {
            return Ok(None);
        }
        // SAFETY: not null. The struct lives until it is freed below.
        let reported = unsafe { (*info).v1 };
        let count = if reported.devices.is_null() { 0 } else { reported.device_count.min(MOST_DEVICES) };
        let extensions = (0..count as usize).filter_map(|index| {
            // SAFETY: the library reports that many devices.
            let extension = unsafe { (*reported.devices.add(index)).v1.extension };
            // SAFETY: null, or an extension that lives as long as the struct.
            unsafe { extension.as_ref() }
        });
        let chips =
            extensions.filter(|extension: &&DeviceExtension| extension.kind == ON_CHIP && extension.soc != 0);
        let chip = chips.map(|extension| SocId(extension.soc)).next();
        // SAFETY: created by the library above, freed once, not used any more.
        unsafe { (functions.device_free_platform_info)(self.log(), info) };
        Ok(chip)
    }
}
