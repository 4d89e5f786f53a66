use super::describe::describe_known;
use super::{
    BinaryDescription, ContextHandle, Device, GraphDescription, Preparation, RegisteredMemory, RunnableGraph,
    checked,
};
use crate::failure::{QnnError, Result};
use crate::ffi::{ContextConfig, ContextValue, number};
use crate::graph::DataType;
use crate::soc::CodeFor;
use shardwright_shim_npu::Priority;
use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// A compiled context.
#[derive(Clone, Debug)]
pub struct ContextBinary {
    /// Bytes in the vendor's format.
    pub bytes: Vec<u8>,
    /// The system library's description of the binary. `None` without a system library.
    pub description: Option<BinaryDescription>,
}

fn priority_config(priority: Priority) -> ContextConfig {
    let priority = match priority {
        Priority::Low => number::PRIORITY_LOW,
        Priority::Normal => number::PRIORITY_NORMAL,
        Priority::High => number::PRIORITY_HIGH,
    };
    ContextConfig { option: number::CONTEXT_PRIORITY, value: ContextValue { priority } }
}

pub(crate) fn serialise(context: &Arc<ContextHandle>) -> Result<ContextBinary> {
    let preparation = Preparation::begin();
    let library = context.library();
    let functions = library.functions();
    let mut size = 0;
    // SAFETY: the context is live, the place outlives the call.
    let code = unsafe { (functions.context_get_binary_size)(context.handle(), &mut size) };
    checked(library, "contextGetBinarySize", code, preparation.mark())?;
    let mut bytes = vec![0u8; size as usize];
    let mut written = 0;
    // SAFETY: the context is live, and the buffer has that size.
    let code = unsafe {
        (functions.context_get_binary)(
            context.handle(),
            bytes.as_mut_ptr().cast::<c_void>(),
            size,
            &mut written,
        )
    };
    checked(library, "contextGetBinary", code, preparation.mark())?;
    bytes.truncate(written as usize);
    drop(preparation);
    let description = match library.system() {
        Ok(system) => Some(describe_known(system, &bytes)?),
        Err(_) => None,
    };
    if let (Some(description), CodeFor::Chip(soc)) = (&description, context.device().asked())
        && description.soc_model != soc.0
    {
        return Err(QnnError::WrongTarget {
            asked: soc.0,
            made: description.soc_model,
            arch: description.arch,
        });
    }
    Ok(ContextBinary { bytes, description })
}

/// A context loaded from a binary.
#[derive(Debug)]
pub struct LoadedContext {
    handle: Arc<ContextHandle>,
    description: Option<BinaryDescription>,
}

impl LoadedContext {
    /// Loads a binary. **The bytes must be verified by their hash**, because the library follows
    /// offsets in them unchecked. Damaged ones load without an error or crash the process. The
    /// library checks the chip only for some chips. The bytes need not outlive the call. Without a
    /// priority, its graphs have the library's default.
    ///
    /// # Errors
    /// Returns the library's error: 30001 or 30010 for missing or damaged heads, 5005 for some
    /// other chips, 1000 on x86-64 for binaries with shared weights.
    pub fn from_binary(
        device: Arc<Device>,
        bytes: &[u8],
        priority: Option<Priority>,
    ) -> Result<LoadedContext> {
        let library = device.library().clone();
        let description = match library.system() {
            Ok(system) => Some(describe_known(system, bytes)?),
            Err(_) => None,
        };
        let preparation = Preparation::begin();
        let mut handle = null_mut();
        let config = priority.map(priority_config);
        let list = [config.as_ref().map_or(null(), std::ptr::from_ref), null()];
        // SAFETY: backend and device are live. The bytes have that length and are only read. The
        // list ends with null and outlives the call, as do the values it points to. There is no
        // profile.
        let code = unsafe {
            (library.functions().context_create_from_binary)(
                device.backend().handle(),
                device.handle(),
                if config.is_some() { list.as_ptr() } else { null() },
                bytes.as_ptr().cast::<c_void>(),
                bytes.len() as u64,
                &mut handle,
                null_mut(),
            )
        };
        checked(&library, "contextCreateFromBinary", code, preparation.mark())?;
        drop(preparation);
        Ok(LoadedContext { handle: ContextHandle::adopt(device, handle), description })
    }

    /// Returns the system library's description of the binary, or `None` without a system library.
    pub fn description(&self) -> Option<&BinaryDescription> {
        self.description.as_ref()
    }

    /// Looks up a graph by its name. Its tensors are as described by the system library.
    ///
    /// # Errors
    /// Returns [`QnnError::GraphMissing`], or the system library's error if it could not be opened.
    pub fn graph(&self, name: &str) -> Result<RunnableGraph> {
        let Some(description) = &self.description else {
            self.handle.library().system()?;
            return Err(QnnError::GraphMissing { name: name.to_owned(), available: Vec::new() });
        };
        match description.graphs.iter().find(|graph| graph.name == name) {
            Some(graph) => self.graph_as(graph),
            None => Err(QnnError::GraphMissing {
                name: name.to_owned(),
                available: description.graphs.iter().map(|graph| graph.name.clone()).collect(),
            }),
        }
    }

    /// Registers memory by the file descriptor of an ION buffer. **Untested**, see
    /// [`RegisteredMemory`].
    ///
    /// # Errors
    /// [`QnnError::NotOffered`] if the library does not support it.
    pub fn register_ion(
        &self,
        fd: std::os::fd::BorrowedFd<'_>,
        data_type: DataType,
        dims: &[u32],
    ) -> Result<RegisteredMemory> {
        super::memory::register(&self.handle, number::MEMORY_ION, fd, null_mut(), data_type, dims)
    }

    /// Looks up a graph whose tensors the caller describes. Binaries stored with a description thus
    /// need no system library.
    ///
    /// # Errors
    /// Returns the library's error.
    pub fn graph_as(&self, description: &GraphDescription) -> Result<RunnableGraph> {
        let missing = || QnnError::GraphMissing { name: description.name.clone(), available: Vec::new() };
        let name = CString::new(description.name.as_str()).map_err(|_| missing())?;
        let preparation = Preparation::begin();
        let library = self.handle.library();
        let mut handle = null_mut();
        // SAFETY: the context is live. Name and place outlive the call.
        let code =
            unsafe { (library.functions().graph_retrieve)(self.handle.handle(), name.as_ptr(), &mut handle) };
        checked(library, "graphRetrieve", code, preparation.mark())?;
        Ok(RunnableGraph {
            context: self.handle.clone(),
            handle,
            name: description.name.clone(),
            inputs: description.inputs.clone(),
            outputs: description.outputs.clone(),
        })
    }
}
