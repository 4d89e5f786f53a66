//! The stable kebab-case names of the closed lists, for reasons and messages.

use crate::{
    ActivationFormat, Entry, EntryKind, EntryShape, ErrorClass, FormatTuple, Provenance, StateFormat,
    WeightFormat, WeightRole,
};

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
named!(WeightFormat {
    Fp32 = "f32",
    Fp16 = "f16",
    Bf16 = "bf16",
    W8PerChannel = "w8-per-channel",
    W8PerTensor = "w8-per-tensor",
    W4PerChannel = "w4-per-channel",
    W4PerTensor = "w4-per-tensor",
    W4Block32 = "w4-block32",
    W4Block32Stepped = "w4-block32-stepped",
    W2PerChannel = "w2-per-channel",
});
named!(ActivationFormat {
    Fp32 = "f32",
    Fp16 = "f16",
    A16 = "a16",
    A16Symmetric = "a16-symmetric",
    A8Dynamic = "a8-dynamic",
});
named!(StateFormat {
    Fp32 = "f32",
    Fp16 = "f16",
    A16 = "a16",
    A8 = "a8",
});
named!(WeightRole {
    AttentionInput = "attention-input",
    AttentionOutput = "attention-output",
    MlpInput = "mlp-input",
    MlpOutput = "mlp-output",
    PerLayer = "per-layer",
    Head = "head",
    Other = "other",
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

/// `w8-per-channel/a16/a8`, with exceptions per role in brackets.
pub fn formats(tuple: &FormatTuple) -> String {
    let mut text = tuple.weights.name().to_owned();
    for entry in &tuple.roles {
        text.push_str(&format!("[{}={}]", entry.role.name(), entry.format.name()));
    }
    format!("{text}/{}/{}", tuple.activations.name(), tuple.states.name())
}

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
