use crate::names::names;

names! {
    /// What went wrong at a shim, as far as a program can act on it.
    ErrorClass, "error class" {
        /// An operation the target has not.
        UnsupportedOp = "unsupported-op",
        /// The compiler refused the graph as a whole.
        Unmappable = "unmappable",
        /// A limit was exceeded; the details name it.
        ResourceLimit = "resource-limit",
        /// An artefact of another version or chip.
        IncompatibleArtefact = "incompatible-artefact",
        /// A damaged artefact.
        CorruptArtefact = "corrupt-artefact",
        /// The device went away; every handle but the library's is dead.
        DeviceLost = "device-lost",
        /// Time ran out.
        Deadline = "deadline",
        /// State rows that were needed are gone.
        StateLost = "state-lost",
        /// The caller's mistake.
        InvalidArgument = "invalid-argument",
        /// The shim's mistake.
        Internal = "internal",
    }
}
