use super::{
    BackendConfig, Code, ContextConfig, DeviceConfig, EventData, EventId, GraphConfig, Handle,
    Infrastructure, LogCallback, MemoryDescriptor, OpConfig, OperationName, PlatformInfo, Tensor,
};
use std::ffi::{c_char, c_void};

/// A version of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct Version {
    /// Incremented by incompatible changes.
    pub major: u32,
    /// Incremented by additions.
    pub minor: u32,
    /// Incremented by fixes.
    pub patch: u32,
}

impl std::fmt::Display for Version {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Versions of the common interface and of the backend's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ApiVersion {
    pub core: Version,
    /// HTP's own structs.
    pub backend: Version,
}

/// A provider listed by `QnnInterface_getProviders`: a head, then the function table.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Provider {
    /// 6 for HTP.
    pub backend_id: u32,
    /// `HTP_QTI_AISW`.
    pub name: *const c_char,
    pub api: ApiVersion,
    /// First slot. The number of slots depends on the version, and new slots are only appended.
    pub table: [*const c_void; 1],
}

/// A provider listed by `QnnSystemInterface_getProviders`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SystemProvider {
    /// Always 0.
    pub backend_id: u32,
    /// `SYSTEM_QTI_AISW`.
    pub name: *const c_char,
    pub version: Version,
    pub table: [*const c_void; 1],
}

macro_rules! functions {
    ($(#[$doc:meta])* $table:ident { $($slot:literal $name:ident($($argument:ty),* $(,)?);)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $table {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> Code,)*
        }

        impl $table {
            /// Slot and name of each function that is used.
            pub const SLOTS: &'static [(usize, &'static str)] = &[$(($slot, stringify!($name)),)*];

            /// Reads the functions that are used. Returns slot and name of the first null function
            /// as an error.
            ///
            /// # Safety
            /// `table` points to as many slots as the highest in [`SLOTS`](Self::SLOTS) plus one,
            /// each null or a function of the declared type.
            pub unsafe fn read(table: *const *const c_void) -> Result<Self, (usize, &'static str)> {
                Ok($table {
                    $($name: {
                        // SAFETY: the caller promises that many slots.
                        let pointer = unsafe { table.add($slot).read() };
                        if pointer.is_null() {
                            return Err(($slot, stringify!($name)));
                        }
                        // SAFETY: not null, and the caller promises the type.
                        unsafe {
                            std::mem::transmute::<*const c_void, unsafe extern "C" fn($($argument),*) -> Code>(pointer)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    /// The functions of the backend's table that are used.
    Functions {
        1 backend_create(Handle, *const *const BackendConfig, *mut Handle);
        3 backend_get_api_version(*mut ApiVersion);
        4 backend_get_build_id(*mut *const c_char);
        6 backend_get_supported_operations(Handle, *mut u32, *mut *const OperationName);
        7 backend_validate_op_config(Handle, OpConfig);
        8 backend_free(Handle);
        9 context_create(Handle, Handle, *const *const ContextConfig, *mut Handle);
        11 context_get_binary_size(Handle, *mut u64);
        12 context_get_binary(Handle, *mut c_void, u64, *mut u64);
        13 context_create_from_binary(Handle, Handle, *const *const ContextConfig, *const c_void, u64, *mut Handle, Handle);
        14 context_free(Handle, Handle);
        15 graph_create(Handle, *const c_char, *const *const GraphConfig, *mut Handle);
        18 graph_add_node(Handle, OpConfig);
        19 graph_finalize(Handle, Handle, Handle);
        20 graph_retrieve(Handle, *const c_char, *mut Handle);
        21 graph_execute(Handle, *const Tensor, u32, *mut Tensor, u32, Handle, Handle);
        24 tensor_create_graph_tensor(Handle, *mut Tensor);
        25 log_create(Option<LogCallback>, u32, *mut Handle);
        26 log_set_log_level(Handle, u32);
        27 log_free(Handle);
        28 profile_create(Handle, u32, *mut Handle);
        30 profile_get_events(Handle, *mut *const EventId, *mut u32);
        31 profile_get_sub_events(EventId, *mut *const EventId, *mut u32);
        32 profile_get_event_data(EventId, *mut EventData);
        34 profile_free(Handle);
        35 mem_register(Handle, *const MemoryDescriptor, u32, *mut Handle);
        36 mem_de_register(*const Handle, u32);
        37 device_get_platform_info(Handle, *mut *const PlatformInfo);
        38 device_free_platform_info(Handle, *const PlatformInfo);
        39 device_get_infrastructure(*mut *const Infrastructure);
        40 device_create(Handle, *const *const DeviceConfig, *mut Handle);
        43 device_free(Handle);
        48 error_get_message(Code, *mut *const c_char);
    }
}

functions! {
    /// The functions of the system library's table that are used.
    SystemFunctions {
        0 context_create(*mut Handle);
        1 context_get_binary_info(Handle, *mut c_void, u64, *mut *const super::BinaryInfo, *mut u64);
        2 context_get_metadata(Handle, *const c_void, u64, *mut *const super::BinaryInfo);
        3 context_free(Handle);
    }
}
