//! The flag `priority`: whose work goes first where several applications use the processor. Each
//! shim says when its vendor's library takes it.

use shardwright_shim_abi::{Flag, FlagOutcome, FlagReport, FlagStage, Options};

use crate::ShimError;
use crate::choice::{self, Choice};

/// The flag's name.
pub const PRIORITY: &str = "priority";

/// Priority among the processor's users; each shim defines what it passes to its vendor's library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Priority {
    /// After all others.
    Low,
    /// The libraries' default.
    Normal,
    /// Before all others. A library may restrict it to some applications.
    High,
}

impl Priority {
    /// Every one, least first.
    pub const ALL: [Priority; 3] = [Priority::Low, Priority::Normal, Priority::High];

    /// The flag's value.
    pub const fn name(self) -> &'static str {
        match self {
            Priority::Low => "low",
            Priority::Normal => "normal",
            Priority::High => "high",
        }
    }

    /// The priority of that name; `None` if there is none.
    pub fn named(name: &str) -> Option<Priority> {
        choice::named(name)
    }

    /// The names of all, for a message.
    pub fn names() -> String {
        choice::names::<Priority>()
    }

    /// The priority that a load requests; `None` if unset.
    ///
    /// # Errors
    ///
    /// [`ShimError::InvalidValue`].
    pub fn read(options: &Options<'_>) -> Result<Option<Priority>, ShimError> {
        choice::read(options)
    }

    /// The flag as reported to a host. `default` is the priority used if unset.
    pub fn schema(stage: FlagStage, default: Priority, description: &str) -> Flag {
        choice::schema(stage, Some(default), description)
    }

    /// A report of the flag's outcome.
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
