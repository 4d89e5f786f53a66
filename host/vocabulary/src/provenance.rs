use crate::names::names;

names! {
    /// Where a number comes from, so that a reader knows how far to trust it.
    Provenance, "provenance" {
        /// The vendor's shim or manifest states it.
        Declared = "declared",
        /// Somebody observed it in the field and wrote it down; the profile's note says what was
        /// seen.
        Reported = "reported",
        /// The shim was asked by trying.
        Probed = "probed",
        /// A refusal taught it: in this very planning loop, or an earlier one with the same
        /// compiler.
        Learned = "learned",
        /// The person at the command line set it.
        User = "user",
        /// Timed on the device itself.
        Measured = "measured",
        /// A vendor's simulator computed it.
        Simulated = "simulated",
        /// A formula estimated it.
        Modelled = "modelled",
    }
}
