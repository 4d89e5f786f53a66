//! The stable kebab-case names of the closed lists, for reasons and messages.

use crate::{Entry, EntryKind, EntryShape, ErrorClass, Provenance};

/// A member of a closed list with a stable name.
pub trait Named {
    /// The name, as profiles, reports and the command line write it.
    fn name(&self) -> &'static str;
}

macro_rules! named {
    ($type:ident { $($case:ident = $name:literal,)+ }) => {
        impl Named for $type {
            fn name(&self) -> &'static str {
                match self {
                    $($type::$case => $name,)+
                }
            }
        }
    };
}

named!(Provenance {
    Declared = "declared",
    Reported = "reported",
    Probed = "probed",
    Learned = "learned",
    User = "user",
    Measured = "measured",
    Simulated = "simulated",
    Modelled = "modelled",
});
named!(EntryKind {
    Prefill = "prefill",
    Decode = "decode",
    Encode = "encode",
});
named!(ErrorClass {
    UnsupportedOp = "unsupported-op",
    Unmappable = "unmappable",
    ResourceLimit = "resource-limit",
    IncompatibleArtefact = "incompatible-artefact",
    CorruptArtefact = "corrupt-artefact",
    DeviceLost = "device-lost",
    Deadline = "deadline",
    StateLost = "state-lost",
    InvalidArgument = "invalid-argument",
    Internal = "internal",
});

/// `prefill_128@4096`.
pub fn entry(entry: Entry) -> String {
    match entry.kind {
        EntryKind::Encode => format!("encode_{}", entry.rows),
        kind => format!("{}_{}@{}", kind.name(), entry.rows, entry.context),
    }
}

/// The entry point a shape means in a plan of this context.
pub fn entry_of(shape: EntryShape, context: u32) -> Entry {
    let context = if shape.kind == EntryKind::Encode { 0 } else { context };
    Entry { kind: shape.kind, rows: shape.rows, context }
}
