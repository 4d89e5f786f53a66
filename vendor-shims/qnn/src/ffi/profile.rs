use std::ffi::c_char;

/// Names an event.
pub type EventId = u64;

/// What an event says.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct EventData {
    /// Which kind.
    pub kind: u32,
    /// Of the value.
    pub unit: u32,
    /// The value.
    pub value: u64,
    /// Null-terminated, may be null.
    pub name: *const c_char,
}
