use super::{
    ComposedGraph, ContextBinary, ContextOptions, GraphOptions, Preparation, RegisteredMemory, checked,
};
use crate::failure::Result;
use crate::ffi::{self, Handle, number};
use crate::graph::{DataType, QnnGraph, QnnNode};
use crate::library::Library;
use crate::session::Device;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// A context of the library, which contains graphs.
#[derive(Debug)]
pub struct ContextHandle {
    device: Arc<Device>,
    handle: Handle,
}

// SAFETY: the handle is used only through the library's functions, which accept it on any thread.
unsafe impl Send for ContextHandle {}
// SAFETY: as above. `Preparation` serialises the calls that change something.
unsafe impl Sync for ContextHandle {}

impl ContextHandle {
    /// Wraps a context created by the library.
    pub(crate) fn adopt(device: Arc<Device>, handle: Handle) -> Arc<ContextHandle> {
        Arc::new(ContextHandle { device, handle })
    }

    pub(crate) fn library(&self) -> &Arc<Library> {
        self.device.library()
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }
}

impl Drop for ContextHandle {
    fn drop(&mut self) {
        let _preparation = Preparation::begin();
        // SAFETY: created by the library and not yet freed. Its graphs are gone, since they kept
        // this value.
        unsafe { (self.library().functions().context_free)(self.handle, null_mut()) };
    }
}

/// A context in which graphs are compiled.
#[derive(Debug)]
pub struct Context {
    handle: Arc<ContextHandle>,
}

impl Context {
    /// Creates an empty context.
    ///
    /// # Errors
    /// Returns the library's error.
    pub fn new(device: Arc<Device>, options: ContextOptions) -> Result<Context> {
        let preparation = Preparation::begin();
        let custom = ffi::ContextCustomConfig {
            option: number::CONTEXT_WEIGHT_SHARING,
            value: ffi::ContextCustomValue { all: [u64::from(options.weight_sharing), 0] },
        };
        let config = ffi::ContextConfig {
            option: number::CONFIG_CUSTOM,
            value: ffi::ContextValue { custom: (&raw const custom).cast::<c_void>() },
        };
        let list = [&raw const config, null()];
        let configs = if options.weight_sharing { list.as_ptr() } else { null() };
        let mut handle = null_mut();
        let library = device.library().clone();
        // SAFETY: backend and device are live. The list ends with null and outlives the call, as do
        // the values it points to.
        let code = unsafe {
            (library.functions().context_create)(
                device.backend().handle(),
                device.handle(),
                configs,
                &mut handle,
            )
        };
        checked(&library, "contextCreate", code, preparation.mark())?;
        Ok(Context { handle: ContextHandle::adopt(device, handle) })
    }

    /// Passes a graph to the library. Weights are copied one by one, so they need not outlive the
    /// call.
    ///
    /// # Errors
    /// [`QnnError::GraphInvalid`](crate::failure::QnnError::GraphInvalid) for an inconsistent
    /// graph. Otherwise the library's error, with the node at fault. After a failed graph, the
    /// context cannot be serialised.
    pub fn compose(&mut self, graph: &QnnGraph<'_>, options: &GraphOptions) -> Result<ComposedGraph> {
        super::compose::compose(&self.handle, graph, options)
    }

    /// Checks whether the library supports one node of a graph, without adding it. A positive
    /// result does not guarantee that finalize succeeds, and some nodes that work are rejected.
    ///
    /// # Errors
    /// Returns the reason for rejecting the node.
    pub fn validate(&self, graph: &QnnGraph<'_>, node: &QnnNode) -> Result<()> {
        super::compose::validate(&self.handle, graph, node)
    }

    /// Serialises all its graphs, which must be finalized.
    ///
    /// # Errors
    /// Returns the library's error, or an error if the binary is for another chip than requested.
    pub fn binary(&mut self) -> Result<ContextBinary> {
        super::binary::serialise(&self.handle)
    }

    /// Registers memory by the file descriptor of an ION buffer. **Untested**, see
    /// [`RegisteredMemory`].
    ///
    /// # Errors
    /// [`QnnError::NotOffered`](crate::failure::QnnError::NotOffered) if the library does not
    /// support it.
    pub fn register_ion(
        &self,
        fd: std::os::fd::BorrowedFd<'_>,
        data_type: DataType,
        dims: &[u32],
    ) -> Result<RegisteredMemory> {
        super::memory::register(&self.handle, number::MEMORY_ION, fd, null_mut(), data_type, dims)
    }

    /// Returns the context's handle, for values that keep it alive.
    pub fn handle(&self) -> &Arc<ContextHandle> {
        &self.handle
    }
}
