//! Faults of a plan.

use std::fmt;

use shardwright_vocabulary::{
    Encoding, EntryKind, EntryName, Flag, Limit, SoftcapPlace, StateFormat, WeightFormat,
};

/// Side of a boundary tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The shard reads it.
    Input,
    /// The shard writes it.
    Output,
}

impl fmt::Display for Direction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Direction::Input => "input",
            Direction::Output => "output",
        })
    }
}

/// The first fault found in a plan. Shards are counted from zero in the plan's order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanFault {
    /// A list is longer than any valid plan needs.
    #[error("plan has {count} {what}, at most {cap} are read")]
    TooMany {
        /// The items that there are too many of.
        what: &'static str,
        count: usize,
        cap: usize,
    },
    /// A text is longer than any valid plan needs.
    #[error("a {what} of the plan has {bytes} bytes, at most {cap} are read")]
    TextTooLong {
        /// The kind of text.
        what: &'static str,
        bytes: usize,
        cap: usize,
    },
    /// A reason refers to a shard that does not exist.
    #[error("a reason names shard {shard}, which the plan does not have")]
    UnknownReasonShard { shard: u32 },
    /// A component index is out of range.
    #[error("shard {shard}: the model has no component {component}")]
    UnknownComponent { shard: u32, component: u32 },
    /// A target index is out of range.
    #[error("shard {shard}: the request has no target {target}")]
    UnknownTarget { shard: u32, target: u32 },
    /// A format tuple index is out of range.
    #[error("shard {shard}: the request has no format tuple {formats}")]
    UnknownFormats { shard: u32, formats: u32 },
    /// A shard has no segments.
    #[error("shard {shard} has no segments")]
    SegmentsMissing { shard: u32 },
    /// The number of format tuples differs from the number of layers.
    #[error("shard {shard}: {found} format tuples for {expected} layers of `{component}`, each has one")]
    FormatsCount {
        shard: u32,
        component: String,
        /// Number of tuples of the segment.
        found: usize,
        /// Number of layers of the segment. 1 for a component without layers.
        expected: usize,
    },
    /// Layers of one shard differ in activations or states.
    #[error("shard {shard}: {part} has formats {formats}; the activations and states of a shard are one")]
    FormatsDiffer {
        shard: u32,
        /// The first layer, or component without layers, that differs from the first of the shard.
        part: String,
        formats: String,
    },
    /// A component is placed after a later one.
    #[error("shard {shard}: component {component} comes too late, components run in order")]
    ComponentOrder { shard: u32, component: u32 },
    /// A component that cannot be cut appears twice, or one that can be cut appears twice in one
    /// shard.
    #[error("shard {shard}: component `{component}` was already placed")]
    ComponentRepeated {
        /// The second shard.
        shard: u32,
        component: String,
    },
    /// A component has no shard.
    #[error("component `{component}` has no shard")]
    ComponentMissing { component: String },
    /// A layer range is empty or exceeds the component.
    #[error("shard {shard}: layers {first}..{end} are no range inside {layers} layers")]
    LayerRange {
        shard: u32,
        first: u32,
        /// One past the last layer.
        end: u32,
        /// Number of layers of the component. Zero if it cannot be cut.
        layers: u32,
    },
    /// A layer is in two shards.
    #[error("shard {shard}: layer {layer} was already placed")]
    LayerRepeated {
        /// The second shard.
        shard: u32,
        layer: u32,
    },
    /// A layer is not in any shard.
    #[error("layer {layer} of component `{component}` is in no shard")]
    LayerSkipped { component: String, layer: u32 },
    /// A layer reads a state that is on another device.
    #[error(
        "shard {shard}: layer {layer} reads the state of layer {donor} in shard {donor_shard}, which is on another shim or \
         device (state-not-shareable)"
    )]
    StateNotShareable {
        /// Shard of the reader.
        shard: u32,
        /// The layer that reads the state.
        layer: u32,
        /// The layer that writes the state.
        donor: u32,
        /// Shard of the writer.
        donor_shard: u32,
    },
    /// A layer reads a state that is written in another format.
    #[error(
        "shard {shard}: layer {layer} reads the state of layer {donor} as {read}, which is written as {written}"
    )]
    StatesDiffer {
        /// Shard of the reader.
        shard: u32,
        /// The layer that reads the state.
        layer: u32,
        /// The layer that writes the state.
        donor: u32,
        /// The reader's format of states.
        read: StateFormat,
        /// The writer's format of states.
        written: StateFormat,
    },
    /// The target does not support a layer kind in the chosen formats.
    #[error("shard {shard}: `{target}` does not take `{kind}` as {formats} at {entry}: {why}")]
    IllegalFormats {
        shard: u32,
        kind: String,
        target: String,
        formats: String,
        entry: EntryName,
        why: String,
    },
    /// A shard exceeds a limit of its target.
    #[error("shard {shard}: {} is {value}, the limit is {} ({})", limit.name, limit.value, limit.provenance)]
    OverLimit { shard: u32, value: u64, limit: Limit },
    /// All shards of a target together exceed one of its limits.
    #[error("target `{target}`: {} is {value}, the limit is {} ({})", limit.name, limit.value, limit.provenance)]
    OverTargetLimit { target: String, value: u64, limit: Limit },
    /// The number of table formats differs from the number of gathered tables.
    #[error("{found} formats for {expected} gathered tables, each has one")]
    TablesCount {
        /// Number of formats in the plan.
        found: usize,
        /// Number of tables of the model.
        expected: usize,
    },
    /// A table format index is out of range.
    #[error("the request does not offer format {format} of table `{table}`")]
    UnknownTableFormat { table: String, format: u32 },
    /// There is a quality goal, but the loss of a table in its format is unknown.
    #[error("what table `{table}` loses as {format} is not known, and there is a quality goal")]
    UnmeasuredTable { table: String, format: WeightFormat },
    /// All artefacts and tables together exceed the goal.
    #[error("artefacts and tables together have {value} bytes, the goal allows {max}")]
    OverSize {
        /// Bytes of all artefacts and tables.
        value: u64,
        max: u64,
    },
    /// The known times of a step exceed a goal.
    #[error("{what} takes {value} µs at least, the goal allows {max}")]
    TooSlow {
        /// `a token` or `the first token`.
        what: &'static str,
        /// The known time in microseconds.
        value: u64,
        max: u64,
    },
    /// The plan exceeds the memory goal.
    #[error("the plan needs {value} bytes, the goal is {max}")]
    OverMemory {
        /// Required bytes.
        value: u64,
        /// Allowed bytes.
        max: u64,
    },
    /// The plan exceeds the quality goal.
    #[error("the plan loses {value} millionths of quality, the goal is {max}")]
    OverQuality {
        /// Predicted loss in millionths of a nat.
        value: u64,
        max: u64,
    },
    /// There is a quality goal, but the loss of these formats was not measured.
    #[error("shard {shard}: no sensitivity of {part} to {formats} was measured, and there is a quality goal")]
    UnmeasuredQuality {
        shard: u32,
        /// The layer, or the component without layers.
        part: String,
        formats: String,
    },
    /// A sum of costs exceeds 64 bits.
    #[error("shard {shard}: the costs do not fit in 64 bits")]
    CostOverflow { shard: u32 },
    /// A shard specifies a place for a soft-cap that its component does not have.
    #[error(
        "shard {shard}: component `{component}` ends with no soft-cap that could be computed by the {place}"
    )]
    NoSoftcap {
        shard: u32,
        component: String,
        /// The specified place.
        place: SoftcapPlace,
    },
    /// A component has a soft-cap, but the plan does not specify where to compute it.
    #[error("shard {shard}: where the soft-cap of component `{component}` is computed is not said")]
    SoftcapMissing { shard: u32, component: String },
    /// The target does not support a flag.
    #[error("shard {shard}: `{target}` knows no flag `{flag}`")]
    UnknownFlag { shard: u32, flag: String, target: String },
    /// The flag does not support the value.
    #[error("shard {shard}: flag `{flag}` takes {expected}")]
    FlagValue {
        shard: u32,
        flag: Flag,
        /// Description of the supported values.
        expected: String,
    },
    /// A flag is listed twice.
    #[error("shard {shard}: flag `{flag}` is given twice")]
    FlagRepeated { shard: u32, flag: String },
    /// A boundary tensor is not one of the component.
    #[error("shard {shard}: the component has no {direction} `{name}`")]
    UnknownBoundary { shard: u32, direction: Direction, name: String },
    /// A boundary tensor is listed twice.
    #[error("shard {shard}: {direction} `{name}` is given twice")]
    BoundaryRepeated { shard: u32, direction: Direction, name: String },
    /// A boundary tensor of the component is missing.
    #[error("shard {shard}: {direction} `{name}` has no encoding")]
    BoundaryMissing { shard: u32, direction: Direction, name: String },
    /// A scale is not a finite number above zero.
    #[error("shard {shard}: the scale of `{name}`, bits {bits:#010x}, is no finite number above zero")]
    ScaleInvalid { shard: u32, name: String, bits: u32 },
    /// Scale or zero point do not fit the element type.
    #[error("shard {shard}: encoding {encoding} of `{name}` does not fit its element type")]
    EncodingInvalid { shard: u32, name: String, encoding: Encoding },
    /// A reader and a writer use different encodings.
    #[error("`{name}` is written by shard {writer} as {written} and read by shard {reader} as {read}")]
    EncodingMismatch {
        name: String,
        /// The shard that writes.
        writer: u32,
        /// Encoding of the writer.
        written: Encoding,
        /// The shard that reads.
        reader: u32,
        /// Encoding of the reader.
        read: Encoding,
    },
    /// The request does not offer an entry point.
    #[error("shard {shard}: the request does not offer {entry}")]
    UnknownEntry { shard: u32, entry: EntryName },
    /// An entry point has another context than its shard.
    #[error("shard {shard}: {entry} does not have the shard's context {context}")]
    EntryContext {
        shard: u32,
        entry: EntryName,
        /// Context of the shard.
        context: u32,
    },
    /// An entry point is listed twice.
    #[error("shard {shard}: {entry} is given twice")]
    EntryRepeated { shard: u32, entry: EntryName },
    /// An entry point has more rows than the goal allows.
    #[error("shard {shard}: {entry} has more than {max} rows")]
    EntryTooLarge {
        shard: u32,
        entry: EntryName,
        /// Maximum number of rows.
        max: u32,
    },
    /// A kind of entry point that the shard must have is missing.
    #[error("shard {shard}: no {needed} entry point")]
    EntryMissing {
        shard: u32,
        /// The missing kind.
        needed: &'static str,
    },
    /// The shard has no work at an entry point.
    #[error("shard {shard}: {entry} has nothing to do there")]
    UnexpectedEntry { shard: u32, entry: EntryName },
    /// Two shards of the chain have different entry points.
    #[error("shard {shard}: other {kind} entry points than shard {other}, a chain needs the same in all")]
    EntriesDiffer {
        shard: u32,
        /// The shard it is compared with.
        other: u32,
        kind: EntryKind,
    },
    /// The context is smaller than requested.
    #[error("shard {shard}: context {context} is below the {goal} asked for")]
    ContextTooSmall { shard: u32, context: u32, goal: u32 },
    /// The context is larger than the model supports.
    #[error("shard {shard}: context {context} is above the model's {max}")]
    ContextTooLarge {
        shard: u32,
        context: u32,
        /// The maximum context of the model.
        max: u32,
    },
    /// Two shards of the chain have different contexts.
    #[error("shard {shard}: context {context}, the shards before have {expected}")]
    ContextDiffers {
        shard: u32,
        context: u32,
        /// Context of the preceding shards.
        expected: u32,
    },
    /// A fallback target index is out of range.
    #[error("the request has no target {target} to fall back to")]
    UnknownFallback { target: u32 },
    /// A format tuple of a fallback chain is not in the request, or is listed twice.
    #[error("the fallback to target {target} names formats {formats}, unknown or a second time")]
    FallbackFormats {
        target: u32,
        /// Index of the tuple.
        formats: u32,
    },
    /// The target of a fallback chain supports no part of the model in one of its format tuples.
    #[error("the fallback to `{target}` names {formats}, in which it takes nothing: {why}")]
    FallbackIllegal { target: String, formats: String, why: String },
    /// A draft is not in the request.
    #[error("proposals of `{draft}` are to be verified, and the request has no such draft")]
    UnknownDraft { draft: String },
    /// There are too few rows to verify a proposed token.
    #[error("proposals are to be verified in {rows} rows, and the first is the token that is certain")]
    SpeculationRows { rows: u32 },
    /// A shard does not have the verifying entry point.
    #[error("shard {shard}: proposals are to be verified in {rows} rows, and it has no decode_{rows}")]
    SpeculationEntry { shard: u32, rows: u32 },
    /// A fallback target is listed twice.
    #[error("target {target} is listed twice as a fallback")]
    FallbackRepeated { target: u32 },
}

impl PlanFault {
    /// Returns advice for a `help:` line.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            PlanFault::OverLimit { .. } | PlanFault::OverTargetLimit { .. } => Some(
                "the planner must cut into smaller shards; `--limit NAME=VALUE` replaces a limit that is known to be wrong",
            ),
            PlanFault::OverMemory { .. } => Some("allow more memory, or less context"),
            PlanFault::OverSize { .. } => Some("allow more bytes, or offer narrower weight formats"),
            PlanFault::TooSlow { .. } => Some("allow more time, or offer faster formats"),
            PlanFault::OverQuality { .. } => Some("allow a larger loss, or wider weight formats"),
            PlanFault::UnmeasuredQuality { .. } | PlanFault::UnmeasuredTable { .. } => {
                Some("measure sensitivities, or drop the quality goal")
            }
            PlanFault::StateNotShareable { .. } => Some("layers that share a state must be on one device"),
            PlanFault::UnknownFlag { .. } => Some("the shim's flag schema lists the flags it knows"),
            PlanFault::ContextTooLarge { .. } => Some("ask for less context"),
            _ => Some("this is a mistake of the planner; the built-in planner is `generic`"),
        }
    }
}
