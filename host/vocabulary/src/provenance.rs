use crate::names::names;

names! {
    /// Source of a number, so that a reader knows how far to trust it.
    Provenance, "provenance" {
        /// The vendor's shim or manifest states it.
        Declared = "declared",
        /// Someone observed it in the field and recorded it. The profile's note describes the
        /// observation.
        Reported = "reported",
        /// Found by testing the shim.
        Probed = "probed",
        /// Learned from a refusal, in the current planning loop or in an earlier one with the same
        /// compiler.
        Learned = "learned",
        /// The user set it on the command line.
        User = "user",
        /// Measured on the device itself.
        Measured = "measured",
        /// A vendor's simulator computed it.
        Simulated = "simulated",
        /// A formula estimated it.
        Modelled = "modelled",
    }
}

impl Provenance {
    /// Returns the less trustworthy of two sources of numbers, which is the source of their sum.
    pub const fn weaker(self, other: Self) -> Self {
        if self.distrust() >= other.distrust() { self } else { other }
    }

    /// Returns the rank of the source: 0 for the most trustworthy.
    const fn distrust(self) -> u8 {
        match self {
            Provenance::Measured => 0,
            Provenance::Probed => 1,
            Provenance::Declared => 2,
            Provenance::Simulated => 3,
            Provenance::Learned => 4,
            Provenance::Reported => 5,
            Provenance::User => 6,
            Provenance::Modelled => 7,
        }
    }
}
