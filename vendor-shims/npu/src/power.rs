//! The flag `power`: how much power a session requests. It applies when a shard is loaded, and
//! artefacts do not depend on it.

use crate::Choice;

pub const POWER: &str = "power";

/// Power mode of a session. Each shim defines the corresponding settings of its vendor's library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Power {
    /// Highest speed, for a few seconds.
    Burst,
    /// Highest sustainable speed.
    Sustained,
    /// Between the highest speed and the lowest power.
    Balanced,
    /// Lowest power.
    Saver,
}

impl Choice for Power {
    const FLAG: &'static str = POWER;
    const ALL: &'static [Power] = &[Power::Burst, Power::Sustained, Power::Balanced, Power::Saver];

    fn name(self) -> &'static str {
        match self {
            Power::Burst => "burst",
            Power::Sustained => "sustained",
            Power::Balanced => "balanced",
            Power::Saver => "saver",
        }
    }
}
