use super::{ContextHandle, Preparation, checked};
use crate::failure::{QnnError, Result};
use crate::ffi::{self, Handle, number};
use crate::library::Library;
use crate::log::{self, Level};
use crate::simulation::Quiet;
use crate::soc::CodeFor;
use shardwright_shim_abi::ErrorClass;
use shardwright_shim_npu::library::text;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// The library's compiler and executor, with its log.
#[derive(Debug)]
pub struct Backend {
    library: Arc<Library>,
    log: Handle,
    handle: Handle,
}

// SAFETY: the handles are used only through the library's functions, which accept them on any
// thread.
unsafe impl Send for Backend {}
// SAFETY: as above. `Preparation` serialises the calls that change something.
unsafe impl Sync for Backend {}

impl Backend {
    /// Starts the backend with a log at warning level, which includes the reasons of failures.
    ///
    /// # Errors
    /// Returns the library's error.
    pub fn new(library: Arc<Library>) -> Result<Arc<Backend>> {
        Backend::with_level(library, Level::Warning)
    }

    /// Starts the backend with a log at a level.
    ///
    /// # Errors
    /// Returns the library's error.
    pub fn with_level(library: Arc<Library>, level: Level) -> Result<Arc<Backend>> {
        let preparation = Preparation::begin();
        let _quiet = Quiet::new();
        let functions = library.functions();
        let mut log = null_mut();
        // SAFETY: the callback lives as long as the process, the place as long as the call.
        let code = unsafe { (functions.log_create)(Some(log::receive), level as u32, &mut log) };
        checked(&library, "logCreate", code, preparation.mark())?;
        let mut handle = null_mut();
        // SAFETY: the log's handle is live, there is no config, and the place outlives the call.
        let code = unsafe { (functions.backend_create)(log, null(), &mut handle) };
        if let Err(error) = checked(&library, "backendCreate", code, preparation.mark()) {
            // SAFETY: created above, not used any more.
            unsafe { (functions.log_free)(log) };
            return Err(error);
        }
        Ok(Arc::new(Backend { library: library.clone(), log, handle }))
    }

    pub fn library(&self) -> &Arc<Library> {
        &self.library
    }

    /// Changes the log level.
    ///
    /// # Errors
    /// Returns the library's error.
    pub fn set_log_level(&self, level: Level) -> Result<()> {
        let preparation = Preparation::begin();
        // SAFETY: the handle is live.
        let code = unsafe { (self.library.functions().log_set_log_level)(self.log, level as u32) };
        checked(&self.library, "logSetLogLevel", code, preparation.mark())
    }

    /// Lists the names of the operations that the library reports.
    ///
    /// # Errors
    /// Returns the library's error.
    pub fn supported_operations(&self) -> Result<Vec<String>> {
        /// Sanity limit. The library has 130.
        const MOST: u32 = 1 << 16;
        let preparation = Preparation::begin();
        let mut count = 0;
        let mut list = null();
        // SAFETY: the handle is live, the places outlive the call.
        let code = unsafe {
            (self.library.functions().backend_get_supported_operations)(self.handle, &mut count, &mut list)
        };
        checked(&self.library, "backendGetSupportedOperations", code, preparation.mark())?;
        if list.is_null() {
            return Ok(Vec::new());
        }
        let names = (0..count.min(MOST)).map(|index| {
            // SAFETY: the library reports that many operations, and keeps them.
            let name = unsafe { (*list.add(index as usize)).name };
            // SAFETY: null, or text that the library keeps.
            unsafe { text(name) }
        });
        Ok(names.flatten().collect())
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    pub(crate) fn log(&self) -> Handle {
        self.log
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        let _preparation = Preparation::begin();
        // SAFETY: created by `new`. Everything created from it is gone, since it kept this value
        // alive.
        unsafe {
            (self.library.functions().backend_free)(self.handle);
            (self.library.functions().log_free)(self.log);
        }
    }
}

/// Target of compilation or execution: a chip by its number, or the chip of this phone.
#[derive(Debug)]
pub struct Device {
    backend: Arc<Backend>,
    handle: Handle,
    asked: CodeFor,
}

// SAFETY: as for `Backend`.
unsafe impl Send for Device {}
// SAFETY: as for `Backend`.
unsafe impl Sync for Device {}

impl Device {
    /// Creates a device to generate code for. For [`CodeFor::Own`] the library uses the phone's
    /// chip, and architecture 68 on a machine without a chip.
    ///
    /// # Errors
    /// Returns the library's error: 14001 for an unknown chip number.
    pub fn new(backend: Arc<Backend>, asked: CodeFor) -> Result<Arc<Device>> {
        let preparation = Preparation::begin();
        let _quiet = Quiet::new();
        let library = backend.library.clone();
        let (option, first, second) = match asked {
            CodeFor::Own => (number::DEVICE_SOC, 0, 0),
            CodeFor::Chip(id) => (number::DEVICE_SOC, id.0, 0),
            // For the device with number 0.
            CodeFor::Architecture(arch) => (number::DEVICE_ARCHITECTURE, 0, arch),
        };
        let long = ffi::DeviceCustomConfig16 { option, padding: 0, first, second };
        let short = ffi::DeviceCustomConfig12 { option, first, second };
        let custom: *const c_void = match library.has_long_device_config() {
            true => (&raw const long).cast(),
            false => (&raw const short).cast(),
        };
        let config = ffi::DeviceConfig { option: number::CONFIG_CUSTOM, value: custom };
        let list = [&raw const config, null()];
        let configs = if asked == CodeFor::Own { null() } else { list.as_ptr() };
        let mut handle = null_mut();
        // SAFETY: the log's handle is live. The list ends with null and outlives the call, as do
        // the values it points to.
        let code = unsafe { (library.functions().device_create)(backend.log, configs, &mut handle) };
        checked(&library, "deviceCreate", code, preparation.mark())?;
        Ok(Arc::new(Device { backend, handle, asked }))
    }

    pub fn backend(&self) -> &Arc<Backend> {
        &self.backend
    }

    pub fn library(&self) -> &Arc<Library> {
        &self.backend.library
    }

    pub fn asked(&self) -> CodeFor {
        self.asked
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _preparation = Preparation::begin();
        // SAFETY: created by `new`. Everything created from it is gone, since it kept this value
        // alive.
        unsafe { (self.library().functions().device_free)(self.handle) };
    }
}

/// Memory of the phone shared by processor and application, registered with a context by its file
/// descriptor.
///
/// **Untested**: the x86-64 library returns 1000 for every registration, and the layout of the
/// descriptor comes from public sources.
#[derive(Debug)]
pub struct RegisteredMemory {
    context: Arc<ContextHandle>,
    handle: Handle,
    bytes: u64,
}

// SAFETY: as for `Backend`.
unsafe impl Send for RegisteredMemory {}
// SAFETY: as for `Backend`.
unsafe impl Sync for RegisteredMemory {}

impl RegisteredMemory {
    /// Registers memory for a tensor of `dims` elements of `data_type`.
    ///
    /// # Errors
    /// [`QnnError::NotOffered`] if the library does not support it.
    pub(crate) fn new(
        context: Arc<ContextHandle>,
        kind: u32,
        fd: std::os::fd::RawFd,
        data: *mut c_void,
        data_type: u32,
        dims: &[u32],
        bytes: u64,
    ) -> Result<RegisteredMemory> {
        let preparation = Preparation::begin();
        let library = context.library().clone();
        let descriptor = ffi::MemoryDescriptor {
            rank: dims.len() as u32,
            dims: dims.as_ptr(),
            shape_config: null(),
            data_type,
            memory_kind: kind,
            fd,
            data,
        };
        let mut handle = null_mut();
        // SAFETY: the context is live. One descriptor and one place, which outlive the call.
        let code =
            unsafe { (library.functions().mem_register)(context.handle(), &descriptor, 1, &mut handle) };
        match checked(&library, "memRegister", code, preparation.mark()) {
            Ok(()) => Ok(RegisteredMemory { context, handle, bytes }),
            Err(QnnError::Call(failure))
                if failure.code == 1000 || failure.class == ErrorClass::UnsupportedOp =>
            {
                Err(QnnError::NotOffered { what: "registered memory", reason: failure.reason })
            }
            Err(error) => Err(error),
        }
    }

    /// Returns its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        let _preparation = Preparation::begin();
        // SAFETY: registered by `new` and not yet freed. The context is alive.
        unsafe { (self.context.library().functions().mem_de_register)(&self.handle, 1) };
    }
}
