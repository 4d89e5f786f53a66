//! The flag `priority`: whose work runs first if several applications use the processor. Each shim
//! defines at which stage its vendor's library accepts the flag.

use crate::Choice;

pub const PRIORITY: &str = "priority";

/// Priority among the processor's users. Each shim defines the corresponding setting of its
/// vendor's library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Priority {
    /// Runs after all others.
    Low,
    /// Default of the vendors' libraries.
    Normal,
    /// Runs before all others. A library may restrict it to some applications.
    High,
}

impl Choice for Priority {
    const FLAG: &'static str = PRIORITY;
    const ALL: &'static [Priority] = &[Priority::Low, Priority::Normal, Priority::High];

    fn name(self) -> &'static str {
        match self {
            Priority::Low => "low",
            Priority::Normal => "normal",
            Priority::High => "high",
        }
    }
}
