//! What can be wrong with a plan.

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

/// The first thing found wrong with a plan. Shards are counted from zero in the plan's order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanFault {
    /// A list is longer than any sound plan needs.
    #[error("plan has {count} {what}, at most {cap} are read")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many.
        count: usize,
        /// The cap.
        cap: usize,
    },
    /// A text is longer than any sound plan needs.
    #[error("a {what} of the plan has {bytes} bytes, at most {cap} are read")]
    TextTooLong {
        /// What is too long.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The cap.
        cap: usize,
    },
    /// A reason names a shard that is not there.
    #[error("a reason names shard {shard}, which the plan does not have")]
    UnknownReasonShard {
        /// The index.
        shard: u32,
    },
    /// A component index out of range.
    #[error("shard {shard}: the model has no component {component}")]
    UnknownComponent {
        /// The shard.
        shard: u32,
        /// The index.
        component: u32,
    },
    /// A target index out of range.
    #[error("shard {shard}: the request has no target {target}")]
    UnknownTarget {
        /// The shard.
        shard: u32,
        /// The index.
        target: u32,
    },
    /// A format tuple index out of range.
    #[error("shard {shard}: the request has no format tuple {formats}")]
    UnknownFormats {
        /// The shard.
        shard: u32,
        /// The index.
        formats: u32,
    },
    /// A shard without segments.
    #[error("shard {shard} has no segments")]
    SegmentsMissing {
        /// The shard.
        shard: u32,
    },
    /// Another number of format tuples than of layers.
    #[error("shard {shard}: {found} format tuples for {expected} layers of `{component}`, each has one")]
    FormatsCount {
        /// The shard.
        shard: u32,
        /// Name of the component.
        component: String,
        /// Tuples of the segment.
        found: usize,
        /// Layers of the segment; 1 of a component without layers.
        expected: usize,
    },
    /// Layers of one shard with different activations or states.
    #[error("shard {shard}: {part} has formats {formats}; the activations and states of a shard are one")]
    FormatsDiffer {
        /// The shard.
        shard: u32,
        /// The first layer, or component without layers, that differs from the first of the shard.
        part: String,
        /// Its formats.
        formats: String,
    },
    /// A component comes after a later one.
    #[error("shard {shard}: component {component} comes too late, components run in order")]
    ComponentOrder {
        /// The shard.
        shard: u32,
        /// The component.
        component: u32,
    },
    /// A component that is never cut appears twice, or one that may be cut twice in one shard.
    #[error("shard {shard}: component `{component}` was already placed")]
    ComponentRepeated {
        /// The second shard.
        shard: u32,
        /// The component.
        component: String,
    },
    /// A component without any shard.
    #[error("component `{component}` has no shard")]
    ComponentMissing {
        /// The component.
        component: String,
    },
    /// A layer range that is empty or leaves the component.
    #[error("shard {shard}: layers {first}..{end} are no range inside {layers} layers")]
    LayerRange {
        /// The shard.
        shard: u32,
        /// First layer.
        first: u32,
        /// One past the last.
        end: u32,
        /// Layers of the component, zero if it is never cut.
        layers: u32,
    },
    /// A layer in two shards.
    #[error("shard {shard}: layer {layer} was already placed")]
    LayerRepeated {
        /// The second shard.
        shard: u32,
        /// The layer.
        layer: u32,
    },
    /// A layer in no shard.
    #[error("layer {layer} of component `{component}` is in no shard")]
    LayerSkipped {
        /// The component.
        component: String,
        /// The layer.
        layer: u32,
    },
    /// A layer reads a state that lives on another device.
    #[error(
        "shard {shard}: layer {layer} reads the state of layer {donor} in shard {donor_shard}, which is on another shim or \
         device (state-not-shareable)"
    )]
    StateNotShareable {
        /// Shard of the reader.
        shard: u32,
        /// The reader.
        layer: u32,
        /// The writer.
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
        /// The reader.
        layer: u32,
        /// The writer.
        donor: u32,
        /// The reader's format of states.
        read: StateFormat,
        /// The writer's.
        written: StateFormat,
    },
    /// The target does not take a layer kind in the chosen formats.
    #[error("shard {shard}: `{target}` does not take `{kind}` as {formats} at {entry}: {why}")]
    IllegalFormats {
        /// The shard.
        shard: u32,
        /// Name of the layer kind.
        kind: String,
        /// Name of the target.
        target: String,
        /// The tuple.
        formats: String,
        /// The entry point.
        entry: EntryName,
        /// The target's reason.
        why: String,
    },
    /// A shard exceeds a limit of its target.
    #[error("shard {shard}: {} is {value}, the limit is {} ({})", limit.name, limit.value, limit.provenance)]
    OverLimit {
        /// The shard.
        shard: u32,
        /// Its value.
        value: u64,
        /// The limit.
        limit: Limit,
    },
    /// All shards of a target together exceed one of its limits.
    #[error("target `{target}`: {} is {value}, the limit is {} ({})", limit.name, limit.value, limit.provenance)]
    OverTargetLimit {
        /// Name of the target.
        target: String,
        /// The value.
        value: u64,
        /// The limit.
        limit: Limit,
    },
    /// Another number of table formats than of gathered tables.
    #[error("{found} formats for {expected} gathered tables, each has one")]
    TablesCount {
        /// Formats of the plan.
        found: usize,
        /// Tables of the model.
        expected: usize,
    },
    /// A table format index out of range.
    #[error("the request does not offer format {format} of table `{table}`")]
    UnknownTableFormat {
        /// The table.
        table: String,
        /// The index.
        format: u32,
    },
    /// There is a quality goal, but what a table loses in its format is not known.
    #[error("what table `{table}` loses as {format} is not known, and there is a quality goal")]
    UnmeasuredTable {
        /// The table.
        table: String,
        /// Its format.
        format: WeightFormat,
    },
    /// All artefacts and tables together exceed the goal.
    #[error("artefacts and tables together have {value} bytes, the goal allows {max}")]
    OverSize {
        /// Bytes of all artefacts and tables.
        value: u64,
        /// The goal.
        max: u64,
    },
    /// The known times of a step exceed a goal.
    #[error("{what} takes {value} µs at least, the goal allows {max}")]
    TooSlow {
        /// `a token`, `the first token`.
        what: &'static str,
        /// The known time.
        value: u64,
        /// The goal.
        max: u64,
    },
    /// The plan needs more memory than the goal allows.
    #[error("the plan needs {value} bytes, the goal is {max}")]
    OverMemory {
        /// Bytes needed.
        value: u64,
        /// Bytes allowed.
        max: u64,
    },
    /// The plan loses more quality than the goal allows.
    #[error("the plan loses {value} millionths of quality, the goal is {max}")]
    OverQuality {
        /// Predicted loss in millionths.
        value: u64,
        /// The goal.
        max: u64,
    },
    /// There is a quality goal, but the loss of these formats was not measured.
    #[error("shard {shard}: no sensitivity of {part} to {formats} was measured, and there is a quality goal")]
    UnmeasuredQuality {
        /// The shard.
        shard: u32,
        /// The layer, or the component without layers.
        part: String,
        /// The tuple.
        formats: String,
    },
    /// A sum of costs leaves 64 bits.
    #[error("shard {shard}: the costs do not fit in 64 bits")]
    CostOverflow {
        /// The shard.
        shard: u32,
    },
    /// A place for a soft-cap that the component does not have.
    #[error(
        "shard {shard}: component `{component}` ends with no soft-cap that could be computed by the {place}"
    )]
    NoSoftcap {
        /// The shard.
        shard: u32,
        /// The component.
        component: String,
        /// Where it would be computed.
        place: SoftcapPlace,
    },
    /// A component with a soft-cap, of which the plan does not say where it is computed.
    #[error("shard {shard}: where the soft-cap of component `{component}` is computed is not said")]
    SoftcapMissing {
        /// The shard.
        shard: u32,
        /// The component.
        component: String,
    },
    /// A flag the target does not know.
    #[error("shard {shard}: `{target}` knows no flag `{flag}`")]
    UnknownFlag {
        /// The shard.
        shard: u32,
        /// The flag.
        flag: String,
        /// Name of the target.
        target: String,
    },
    /// A flag with a value it does not take.
    #[error("shard {shard}: flag `{flag}` takes {expected}")]
    FlagValue {
        /// The shard.
        shard: u32,
        /// Flag and value.
        flag: Flag,
        /// What it takes.
        expected: String,
    },
    /// A flag given twice.
    #[error("shard {shard}: flag `{flag}` is given twice")]
    FlagRepeated {
        /// The shard.
        shard: u32,
        /// The flag.
        flag: String,
    },
    /// A boundary the component does not have.
    #[error("shard {shard}: the component has no {direction} `{name}`")]
    UnknownBoundary {
        /// The shard.
        shard: u32,
        /// Which side.
        direction: Direction,
        /// The name.
        name: String,
    },
    /// A boundary given twice.
    #[error("shard {shard}: {direction} `{name}` is given twice")]
    BoundaryRepeated {
        /// The shard.
        shard: u32,
        /// Which side.
        direction: Direction,
        /// The name.
        name: String,
    },
    /// A boundary of the component without an encoding.
    #[error("shard {shard}: {direction} `{name}` has no encoding")]
    BoundaryMissing {
        /// The shard.
        shard: u32,
        /// Which side.
        direction: Direction,
        /// The name.
        name: String,
    },
    /// A scale that is no finite number above zero.
    #[error("shard {shard}: the scale of `{name}`, bits {bits:#010x}, is no finite number above zero")]
    ScaleInvalid {
        /// The shard.
        shard: u32,
        /// The boundary.
        name: String,
        /// Bits of the scale.
        bits: u32,
    },
    /// Scale or zero point do not fit the element type.
    #[error("shard {shard}: encoding {encoding} of `{name}` does not fit its element type")]
    EncodingInvalid {
        /// The shard.
        shard: u32,
        /// The boundary.
        name: String,
        /// The encoding.
        encoding: Encoding,
    },
    /// A reader expects another encoding than the writer writes.
    #[error("`{name}` is written by shard {writer} as {written} and read by shard {reader} as {read}")]
    EncodingMismatch {
        /// The boundary.
        name: String,
        /// Writing shard.
        writer: u32,
        /// Its encoding.
        written: Encoding,
        /// Reading shard.
        reader: u32,
        /// Its encoding.
        read: Encoding,
    },
    /// An entry point the request does not offer.
    #[error("shard {shard}: the request does not offer {entry}")]
    UnknownEntry {
        /// The shard.
        shard: u32,
        /// The entry point.
        entry: EntryName,
    },
    /// An entry point for another context than its shard's.
    #[error("shard {shard}: {entry} does not have the shard's context {context}")]
    EntryContext {
        /// The shard.
        shard: u32,
        /// The entry point.
        entry: EntryName,
        /// Context of the shard.
        context: u32,
    },
    /// An entry point given twice.
    #[error("shard {shard}: {entry} is given twice")]
    EntryRepeated {
        /// The shard.
        shard: u32,
        /// The entry point.
        entry: EntryName,
    },
    /// More rows than the goal allows.
    #[error("shard {shard}: {entry} has more than {max} rows")]
    EntryTooLarge {
        /// The shard.
        shard: u32,
        /// The entry point.
        entry: EntryName,
        /// Largest number of rows.
        max: u32,
    },
    /// A kind of entry point the shard must have.
    #[error("shard {shard}: no {needed} entry point")]
    EntryMissing {
        /// The shard.
        shard: u32,
        /// What is missing.
        needed: &'static str,
    },
    /// An entry point the shard has no use for.
    #[error("shard {shard}: {entry} has nothing to do there")]
    UnexpectedEntry {
        /// The shard.
        shard: u32,
        /// The entry point.
        entry: EntryName,
    },
    /// Two shards of the chain with different entry points.
    #[error("shard {shard}: other {kind} entry points than shard {other}, a chain needs the same in all")]
    EntriesDiffer {
        /// The shard.
        shard: u32,
        /// The shard it is compared with.
        other: u32,
        /// Kind of entry point.
        kind: EntryKind,
    },
    /// Less context than asked for.
    #[error("shard {shard}: context {context} is below the {goal} asked for")]
    ContextTooSmall {
        /// The shard.
        shard: u32,
        /// Its context.
        context: u32,
        /// The goal.
        goal: u32,
    },
    /// More context than the model has.
    #[error("shard {shard}: context {context} is above the model's {max}")]
    ContextTooLarge {
        /// The shard.
        shard: u32,
        /// Its context.
        context: u32,
        /// The model's.
        max: u32,
    },
    /// Two shards of the chain with different contexts.
    #[error("shard {shard}: context {context}, the shards before have {expected}")]
    ContextDiffers {
        /// The shard.
        shard: u32,
        /// Its context.
        context: u32,
        /// That of the shards before.
        expected: u32,
    },
    /// A fallback target index out of range.
    #[error("the request has no target {target} to fall back to")]
    UnknownFallback {
        /// The index.
        target: u32,
    },
    /// Format tuples of a fallback chain that the request does not have, or twice.
    #[error("the fallback to target {target} names formats {formats}, unknown or a second time")]
    FallbackFormats {
        /// Target index.
        target: u32,
        /// Index of the tuple.
        formats: u32,
    },
    /// Format tuples of a fallback chain in which its target takes no part of the model.
    #[error("the fallback to `{target}` names {formats}, in which it takes nothing: {why}")]
    FallbackIllegal {
        /// Name of the target.
        target: String,
        /// The tuple.
        formats: String,
        /// The target's reason.
        why: String,
    },
    /// A draft that the request does not have.
    #[error("proposals of `{draft}` are to be verified, and the request has no such draft")]
    UnknownDraft {
        /// Its name.
        draft: String,
    },
    /// Too few rows to verify anything.
    #[error("proposals are to be verified in {rows} rows, and the first is the token that is certain")]
    SpeculationRows {
        /// The rows.
        rows: u32,
    },
    /// A shard without the entry point that verifies.
    #[error("shard {shard}: proposals are to be verified in {rows} rows, and it has no decode_{rows}")]
    SpeculationEntry {
        /// The shard.
        shard: u32,
        /// The rows.
        rows: u32,
    },
    /// A fallback target given twice.
    #[error("target {target} is listed twice as a fallback")]
    FallbackRepeated {
        /// The index.
        target: u32,
    },
}

impl PlanFault {
    /// What would help, for a `help:` line.
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
