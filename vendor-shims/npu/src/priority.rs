//! The flag `priority`: whose work runs first if several applications use the processor. Each shim
//! defines at which stage its vendor's library accepts the flag.

use shardwright_shim_abi::{Error, Flag, FlagOutcome, FlagReport, FlagStage, Options};

use crate::choice::{self, Choice};

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

impl Priority {
    /// All priorities, lowest first.
    pub const ALL: [Priority; 3] = [Priority::Low, Priority::Normal, Priority::High];

    /// Returns the flag's value for this priority.
    pub const fn name(self) -> &'static str {
        match self {
            Priority::Low => "low",
            Priority::Normal => "normal",
            Priority::High => "high",
        }
    }

    /// Returns the priority with this name, if any.
    pub fn named(name: &str) -> Option<Priority> {
        choice::named(name)
    }

    /// Lists the names of all priorities, for a message.
    pub fn names() -> String {
        choice::names::<Priority>()
    }

    /// Returns the priority that a load requests, or `None` if unset.
    ///
    /// # Errors
    ///
    /// `ErrorClass::InvalidArgument` for an unknown priority.
    pub fn read(options: &Options<'_>) -> Result<Option<Priority>, Error> {
        choice::read(options)
    }

    /// Returns the flag as it is reported to a host. `default` is the priority used if unset.
    pub fn schema(stage: FlagStage, default: Priority, description: &str) -> Flag {
        choice::schema(stage, Some(default), description)
    }

    /// Creates a report of the flag's outcome.
    pub fn report(outcome: FlagOutcome, evidence: String) -> FlagReport {
        FlagReport { name: PRIORITY.to_owned(), outcome, evidence }
    }
}

impl Choice for Priority {
    const FLAG: &'static str = PRIORITY;
    const ALL: &'static [Priority] = &Priority::ALL;

    fn name(self) -> &'static str {
        Priority::name(self)
    }
}
