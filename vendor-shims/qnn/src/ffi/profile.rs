use std::ffi::c_char;

/// Identifies an event.
pub type EventId = u64;

/// Data of an event.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct EventData {
    pub kind: u32,
    pub unit: u32,
    pub value: u64,
    /// Null-terminated. May be null.
    pub name: *const c_char,
}
