use crate::names::names;

names! {
    /// Class of a shim's error, as far as a program can act on it.
    ErrorClass, "error class" {
        /// The target does not support an operation.
        UnsupportedOp = "unsupported-op",
        /// The compiler refused the graph as a whole.
        Unmappable = "unmappable",
        /// A limit was exceeded. The error's details name it.
        ResourceLimit = "resource-limit",
        /// The artefact was made for another version or chip.
        IncompatibleArtefact = "incompatible-artefact",
        /// The artefact is damaged.
        CorruptArtefact = "corrupt-artefact",
        /// The device was lost. Every handle except the library's is invalid.
        DeviceLost = "device-lost",
        /// The deadline has passed.
        Deadline = "deadline",
        /// Required state rows are lost.
        StateLost = "state-lost",
        /// The caller made a mistake.
        InvalidArgument = "invalid-argument",
        /// The shim has a bug.
        Internal = "internal",
    }
}
