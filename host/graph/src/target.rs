//! The plain data all rooms share about a target: what it is, what it allows, what it costs, how it fails.
//!
//! A *target* is one device of one shim (the HTP of a phone, the CPU engine loaded under some name). Nothing here
//! decides anything and nothing here talks to a device: profiles fill these types, shims report them, planners read
//! them, the plan check holds a plan against them.
//!
//! Every name is written in kebab-case and is stable: it appears in profiles, requests, bundles and on the command
//! line. `Display` writes that name, `FromStr` reads it, serde uses it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::EntryPoint;

pub use crate::EntryKind;

/// A word that is none of the names of a closed list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} `{value}`")]
pub struct UnknownName {
    /// What the word should have been, such as "provenance".
    pub what: &'static str,
    /// The word as given, cut to a printable length.
    pub value: String,
    /// Every name of the list, comma separated.
    pub expected: String,
}

impl UnknownName {
    /// Longest part of an unknown word that is repeated in a message; the word may come from a hostile file.
    const QUOTED_CHARS: usize = 64;

    fn new(what: &'static str, value: &str, expected: String) -> Self {
        Self { what, value: value.chars().take(Self::QUOTED_CHARS).collect(), expected }
    }

    /// What would help: the names that are known.
    pub fn help(&self) -> Option<String> {
        Some(format!("known names: {}", self.expected))
    }
}

macro_rules! names {
    ($(#[$meta:meta])* $type:ident, $what:literal { $($(#[$case_meta:meta])* $case:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $type {
            $($(#[$case_meta])* #[serde(rename = $name)] $case,)+
        }

        impl $type {
            /// Every member, in the order of declaration.
            pub const ALL: &'static [$type] = &[$($type::$case,)+];

            /// The stable kebab-case name.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$case => $name,)+
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.pad(self.name())
            }
        }

        impl FromStr for $type {
            type Err = UnknownName;

            fn from_str(text: &str) -> Result<Self, UnknownName> {
                match text {
                    $($name => Ok($type::$case),)+
                    _ => Err(UnknownName::new($what, text, [$($name),+].join(", "))),
                }
            }
        }
    };
}

names! {
    /// Where a number comes from, so that a reader knows how far to trust it.
    Provenance, "provenance" {
        /// The vendor's shim or manifest states it.
        Declared = "declared",
        /// Somebody observed it in the field and wrote it down; the profile's note says what was seen.
        Reported = "reported",
        /// The shim was asked by trying.
        Probed = "probed",
        /// A refusal taught it: in this very planning loop, or an earlier one with the same compiler.
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

names! {
    /// What kind of device a target is.
    TargetKind, "target kind" {
        /// A neural processing unit.
        Npu = "npu",
        /// A graphics processor.
        Gpu = "gpu",
        /// The general purpose cores.
        Cpu = "cpu",
        /// A program that stands in for a device; every report about it says so.
        Simulator = "simulator",
    }
}

/// One device of one shim.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Name under which a plan refers to it; unique in a request.
    pub name: String,
    /// Name of the shim instance that owns it. Two targets share buffers only if shim and device are equal.
    pub shim: String,
    /// The shim's name for the device, such as an SoC.
    pub device: String,
    /// Kind of device.
    pub kind: TargetKind,
}

/// Names of the limits the host itself knows how to check. A target may have others: they are passed on to planners
/// and learned from refusals, but only these can be checked before a compiler says no.
pub mod limit_names {
    /// Operations after legalisation in any single entry point of a shard.
    pub const OPS: &str = "ops";
    /// Weight bytes of a shard.
    pub const WEIGHT_BYTES: &str = "weight-bytes";
    /// Bytes of a shard's compiled artefact: its weights and what each entry point adds.
    pub const ARTEFACT_BYTES: &str = "artefact-bytes";
    /// Bytes a loaded shard occupies: artefact and states.
    pub const CONTEXT_BYTES: &str = "context-bytes";
    /// Shards on this target.
    pub const SHARDS: &str = "shards";
    /// Bytes all shards on this target occupy together: artefacts and states.
    pub const MEMORY_BYTES: &str = "memory-bytes";
    /// All of the above.
    pub const ALL: &[&str] = &[OPS, WEIGHT_BYTES, ARTEFACT_BYTES, CONTEXT_BYTES, SHARDS, MEMORY_BYTES];
}

/// An upper bound a target sets, inclusive.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// Kebab-case name, see [`limit_names`].
    pub name: String,
    /// Largest legal value; the unit follows from the name (operations, bytes, shards).
    pub value: u64,
    /// Where the number comes from.
    pub provenance: Provenance,
    /// What was observed, in one sentence; empty if the provenance says it all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Flags that were thought to raise it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relief: Vec<Relief>,
}

/// What is known of a limit under a compiler flag.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Relief {
    /// The flag.
    pub flag: Flag,
    /// The bound with the flag set; none if the flag does not move it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<u64>,
    /// What was observed, in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Limit {
    /// A limit without a note.
    pub fn new(name: impl Into<String>, value: u64, provenance: Provenance) -> Self {
        Self { name: name.into(), value, provenance, note: String::new(), relief: Vec::new() }
    }

    /// The bound for a shard compiled with these flags: the largest that one of them gives.
    pub fn under(&self, flags: &[Flag]) -> u64 {
        let raised = self.relief.iter().filter(|relief| flags.contains(&relief.flag));
        raised.filter_map(|relief| relief.value).fold(self.value, u64::max)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ≤ {} ({})", self.name, self.value, self.provenance)
    }
}

/// A compiler flag with the value asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flag {
    /// Name as the schema spells it.
    pub name: String,
    /// Value as text; `true`/`false` for a switch.
    pub value: String,
}

impl fmt::Display for Flag {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}={}", self.name, self.value)
    }
}

/// What values a flag takes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum FlagType {
    /// `true` or `false`.
    Switch,
    /// A decimal integer in an inclusive range.
    Integer {
        /// Smallest legal value.
        min: i64,
        /// Largest legal value.
        max: i64,
    },
    /// One of a list of words.
    Choice {
        /// The legal words.
        values: Vec<String>,
    },
    /// Free text of at most so many bytes.
    Text {
        /// Longest legal value in bytes.
        max_bytes: u32,
    },
}

/// When a flag takes effect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlagStage {
    /// It goes to the compiler, and artefacts may depend on it: a plan decides it.
    #[default]
    Compile,
    /// It is set when shards are loaded, and no artefact depends on it: a session decides it, of a bundle
    /// too.
    Load,
}

impl FlagStage {
    fn is_compile(&self) -> bool {
        *self == FlagStage::Compile
    }
}

/// One flag a shim understands.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlagSchema {
    /// Name, unique in the schema of a target.
    pub name: String,
    /// Legal values.
    pub values: FlagType,
    /// Value if the flag is not given; none if the vendor does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// What it does, in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// When it takes effect.
    #[serde(default, skip_serializing_if = "FlagStage::is_compile")]
    pub stage: FlagStage,
}

impl FlagSchema {
    /// Whether `value` is legal, and if not, what would be.
    pub fn accepts(&self, value: &str) -> Result<(), String> {
        match &self.values {
            FlagType::Switch if matches!(value, "true" | "false") => Ok(()),
            FlagType::Switch => Err("`true` or `false`".to_owned()),
            FlagType::Integer { min, max } => match value.parse::<i64>() {
                Ok(number) if (*min..=*max).contains(&number) => Ok(()),
                _ => Err(format!("an integer from {min} to {max}")),
            },
            FlagType::Choice { values } if values.iter().any(|known| known == value) => Ok(()),
            FlagType::Choice { values } => Err(format!("one of {}", values.join(", "))),
            FlagType::Text { max_bytes } if value.len() <= *max_bytes as usize => Ok(()),
            FlagType::Text { max_bytes } => Err(format!("text of at most {max_bytes} bytes")),
        }
    }
}

/// What became of a flag. An echo in an artefact proves nothing, hence *recorded* is not *applied*.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case", deny_unknown_fields)]
pub enum FlagVerdict {
    /// The flag had an effect.
    Applied {
        /// What shows it.
        evidence: String,
    },
    /// The compiler echoed it; no effect is shown.
    Recorded,
    /// Compiling with and without it gave the same code.
    Inert,
    /// The compiler rejected it.
    Refused,
    /// The compiler said nothing about it.
    Unknown,
}

impl FlagVerdict {
    /// The stable kebab-case name, without the evidence.
    pub const fn name(&self) -> &'static str {
        match self {
            FlagVerdict::Applied { .. } => "applied",
            FlagVerdict::Recorded => "recorded",
            FlagVerdict::Inert => "inert",
            FlagVerdict::Refused => "refused",
            FlagVerdict::Unknown => "unknown",
        }
    }
}

impl fmt::Display for FlagVerdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlagVerdict::Applied { evidence } => write!(formatter, "applied ({evidence})"),
            other => formatter.write_str(other.name()),
        }
    }
}

names! {
    /// How weights are stored.
    WeightFormat, "weight format" {
        /// 32-bit float.
        F32 = "f32",
        /// 16-bit float.
        F16 = "f16",
        /// bfloat16.
        Bf16 = "bf16",
        /// Signed 8 bit, one scale per output channel.
        W8PerChannel = "w8-per-channel",
        /// Signed 8 bit, one scale for the tensor.
        W8PerTensor = "w8-per-tensor",
        /// Signed 4 bit, one scale per output channel.
        W4PerChannel = "w4-per-channel",
        /// Signed 4 bit, one scale for the tensor.
        W4PerTensor = "w4-per-tensor",
        /// Signed 4 bit, one scale per 32 consecutive input values of an output channel.
        W4Block32 = "w4-block32",
        /// The same with scales that are 1 to 16 times one scale of the output channel, for chips whose blocks have small integers for scales.
        W4Block32Stepped = "w4-block32-stepped",
        /// Signed 2 bit, one scale per output channel.
        W2PerChannel = "w2-per-channel",
    }
}

names! {
    /// How activations inside a shard are held.
    ActivationFormat, "activation format" {
        /// 32-bit float.
        F32 = "f32",
        /// 16-bit float.
        F16 = "f16",
        /// Unsigned 16 bit, affine, calibrated.
        A16 = "a16",
        /// Signed 16 bit, zero point 0, calibrated.
        A16Symmetric = "a16-symmetric",
        /// 8 bit, scale found at run time per row.
        A8Dynamic = "a8-dynamic",
    }
}

names! {
    /// How states (KV) are held.
    StateFormat, "state format" {
        /// 32-bit float.
        F32 = "f32",
        /// 16-bit float.
        F16 = "f16",
        /// Unsigned 16 bit, affine, calibrated.
        A16 = "a16",
        /// Unsigned 8 bit, affine, calibrated.
        A8 = "a8",
    }
}

names! {
    /// Which weights of a layer, as far as formats and sensitivities tell them apart.
    WeightRole, "weight role" {
        /// Query, key and value projections.
        AttentionInput = "attention-input",
        /// The projection after attention.
        AttentionOutput = "attention-output",
        /// Gate and up projections.
        MlpInput = "mlp-input",
        /// The down projection.
        MlpOutput = "mlp-output",
        /// Projections of per-layer inputs.
        PerLayer = "per-layer",
        /// The vocabulary projection.
        Head = "head",
        /// Everything else (norms, scalars).
        Other = "other",
    }
}

/// A weight format for one role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoleFormat {
    /// The weights meant.
    pub role: WeightRole,
    /// Their format.
    pub format: WeightFormat,
}

/// The formats of one shard: what a target must take together or not at all.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FormatTuple {
    /// Format of every weight that no entry of `roles` names.
    pub weights: WeightFormat,
    /// Exceptions, sorted by role, each role at most once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<RoleFormat>,
    /// Format of activations.
    pub activations: ActivationFormat,
    /// Format of states.
    pub states: StateFormat,
}

impl FormatTuple {
    /// Everything in 32-bit float: the tuple every complete engine takes.
    pub const F32: FormatTuple =
        FormatTuple::uniform(WeightFormat::F32, ActivationFormat::F32, StateFormat::F32);

    /// One weight format for all roles.
    pub const fn uniform(weights: WeightFormat, activations: ActivationFormat, states: StateFormat) -> Self {
        Self { weights, roles: Vec::new(), activations, states }
    }

    /// The weight format of one role.
    pub fn weight(&self, role: WeightRole) -> WeightFormat {
        self.roles.iter().find(|entry| entry.role == role).map_or(self.weights, |entry| entry.format)
    }
}

/// Reads what `Display` writes, and `w8-per-channel` alone for weights in that format and everything else in f32.
impl FromStr for FormatTuple {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let mut parts = text.split('/');
        let weights = parts.next().unwrap_or_default();
        let activations = parts.next().map_or(Ok(ActivationFormat::F32), str::parse)?;
        let states = parts.next().map_or(Ok(StateFormat::F32), str::parse)?;
        let form =
            || UnknownName::new("format tuple", text, "WEIGHTS[ROLE=FORMAT]…/ACTIVATIONS/STATES".to_owned());
        if parts.next().is_some() {
            return Err(form());
        }
        let mut brackets = weights.split('[');
        let mut tuple =
            FormatTuple::uniform(brackets.next().unwrap_or_default().parse()?, activations, states);
        for bracket in brackets {
            let (role, format) =
                bracket.strip_suffix(']').and_then(|pair| pair.split_once('=')).ok_or_else(form)?;
            tuple.roles.push(RoleFormat { role: role.parse()?, format: format.parse()? });
        }
        tuple.roles.sort();
        if tuple.roles.windows(2).any(|pair| pair[0].role == pair[1].role) {
            return Err(form());
        }
        Ok(tuple)
    }
}

impl fmt::Display for FormatTuple {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.weights)?;
        for entry in &self.roles {
            write!(formatter, "[{}={}]", entry.role, entry.format)?;
        }
        write!(formatter, "/{}/{}", self.activations, self.states)
    }
}

names! {
    /// Where the soft-cap of the logits is computed.
    SoftcapPlace, "place of a soft-cap" {
        /// In the graph of the head, by its target.
        Graph = "graph",
        /// By the runtime, in f32, on the logits that the head gives.
        Runtime = "runtime",
    }
}

names! {
    /// Element type of a tensor that crosses a shard boundary.
    ElementType, "element type" {
        /// 32-bit float.
        F32 = "f32",
        /// 16-bit float.
        F16 = "f16",
        /// bfloat16.
        Bf16 = "bf16",
        /// Unsigned 16 bit.
        U16 = "u16",
        /// Signed 16 bit.
        I16 = "i16",
        /// Unsigned 8 bit.
        U8 = "u8",
        /// Signed 8 bit.
        I8 = "i8",
    }
}

impl ElementType {
    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            ElementType::F32 => 4,
            ElementType::F16 | ElementType::Bf16 | ElementType::U16 | ElementType::I16 => 2,
            ElementType::U8 | ElementType::I8 => 1,
        }
    }

    /// Whether values are floating point, so that scale and zero point must be one and zero.
    pub const fn is_float(self) -> bool {
        matches!(self, ElementType::F32 | ElementType::F16 | ElementType::Bf16)
    }

    /// Smallest and largest raw value of an integer type; none for floats.
    pub const fn raw_range(self) -> Option<(i32, i32)> {
        match self {
            ElementType::U16 => Some((0, u16::MAX as i32)),
            ElementType::I16 => Some((i16::MIN as i32, i16::MAX as i32)),
            ElementType::U8 => Some((0, u8::MAX as i32)),
            ElementType::I8 => Some((i8::MIN as i32, i8::MAX as i32)),
            ElementType::F32 | ElementType::F16 | ElementType::Bf16 => None,
        }
    }
}

/// A 32-bit float kept as its bits, so that values which contain one can be compared, hashed and written canonically.
/// Serialised as the bits, an integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScaleBits(u32);

impl ScaleBits {
    /// The scale 1.
    pub const ONE: ScaleBits = ScaleBits(0x3f80_0000);

    /// From a number; none unless it is finite, normal and above zero.
    pub fn new(scale: f32) -> Option<Self> {
        (scale.is_normal() && scale > 0.0).then_some(Self(scale.to_bits()))
    }

    /// From bits as written in a file; none unless they are a legal scale.
    pub fn from_bits(bits: u32) -> Option<Self> {
        Self::new(f32::from_bits(bits))
    }

    /// The number.
    pub fn get(self) -> f32 {
        f32::from_bits(self.0)
    }

    /// The bits.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl Serialize for ScaleBits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.0)
    }
}

impl<'de> Deserialize<'de> for ScaleBits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bits = u32::deserialize(deserializer)?;
        Self::from_bits(bits).ok_or_else(|| {
            serde::de::Error::custom(format!("scale bits {bits:#010x} are no finite number above zero"))
        })
    }
}

/// How one tensor at a shard boundary is written: dense, row-major, value = (raw − zero point) · scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Encoding {
    /// Element type.
    pub element: ElementType,
    /// Scale; one for floats.
    pub scale: ScaleBits,
    /// Raw value that stands for zero; zero for floats.
    pub zero_point: i32,
}

impl Encoding {
    /// Plain 32-bit float.
    pub const F32: Encoding = Encoding::float(ElementType::F32);
    /// Plain 16-bit float.
    pub const F16: Encoding = Encoding::float(ElementType::F16);

    const fn float(element: ElementType) -> Self {
        Self { element, scale: ScaleBits::ONE, zero_point: 0 }
    }

    /// Whether scale and zero point fit the element type.
    pub fn is_consistent(&self) -> bool {
        match self.element.raw_range() {
            None => self.scale == ScaleBits::ONE && self.zero_point == 0,
            Some((low, high)) => (low..=high).contains(&self.zero_point),
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.element.is_float() {
            write!(formatter, "{}", self.element)
        } else {
            write!(formatter, "{}(scale {}, zero {})", self.element, self.scale.get(), self.zero_point)
        }
    }
}

/// Name of an entry point: `prefill_128@4096`, `decode_1@4096`, `encode_256`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryName {
    /// Kind.
    pub kind: EntryKind,
    /// Static number of rows, at least one.
    pub rows: u32,
    /// Context capacity in tokens; zero for `encode`, which has no state.
    pub context: u32,
}

impl EntryName {
    /// The entry point of this name in a plan whose largest entry point has `largest_rows` rows.
    pub fn point(&self, largest_rows: u32) -> EntryPoint {
        let context = match self.kind {
            EntryKind::Encode => self.rows,
            EntryKind::Prefill | EntryKind::Decode => self.context,
        };
        EntryPoint {
            kind: self.kind,
            rows: self.rows.into(),
            context: context.into(),
            largest_rows: largest_rows.max(self.rows).into(),
        }
    }
}

impl fmt::Display for EntryName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            EntryKind::Encode => write!(formatter, "{}_{}", self.kind, self.rows),
            _ => write!(formatter, "{}_{}@{}", self.kind, self.rows, self.context),
        }
    }
}

impl FromStr for EntryName {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let unknown = || {
            let forms = "prefill_ROWS@CONTEXT, decode_ROWS@CONTEXT, encode_ROWS".to_owned();
            UnknownName::new("entry point", text, forms)
        };
        // A number in its one canonical spelling, so that reading and writing a name are inverse.
        let number = |digits: &str| match digits.parse::<u32>() {
            Ok(value) if value > 0 && value.to_string() == digits => Ok(value),
            _ => Err(unknown()),
        };
        let (kind, sizes) = text.split_once('_').ok_or_else(unknown)?;
        let kind = match kind {
            "prefill" => EntryKind::Prefill,
            "decode" => EntryKind::Decode,
            "encode" => EntryKind::Encode,
            _ => return Err(unknown()),
        };
        match (kind, sizes.split_once('@')) {
            (EntryKind::Encode, None) => Ok(Self { kind, rows: number(sizes)?, context: 0 }),
            (EntryKind::Prefill | EntryKind::Decode, Some((rows, context))) => {
                Ok(Self { kind, rows: number(rows)?, context: number(context)? })
            }
            _ => Err(unknown()),
        }
    }
}

impl Serialize for EntryName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EntryName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Whether a target takes a layer kind in a format.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Legality {
    /// It does.
    Legal,
    /// It does not, for this reason.
    Illegal(String),
}

/// What running something costs in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeCost {
    /// Microseconds for one run of the entry point.
    pub microseconds: u64,
    /// Where the number comes from.
    pub provenance: Provenance,
}

/// What a number of bytes that nobody says more of rests on.
const fn modelled() -> Provenance {
    Provenance::Modelled
}

/// One row of the cost table: one layer kind on one target in one format tuple at one entry point. Costs of a shard
/// are the sums over its layers, so a planner adds up any cut exactly.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostRow {
    /// Layer kind: layers of equal structure share one.
    pub kind: u32,
    /// Index of the target in the request.
    pub target: u32,
    /// Index of the format tuple in the request.
    pub formats: u32,
    /// Entry point.
    pub entry: EntryName,
    /// Operations after legalisation; zero where this kind takes no part in the entry point.
    pub ops: u64,
    /// Weight bytes. Entry points share one set, so a shard holds the largest of its entry points.
    pub weight_bytes: u64,
    /// Bytes this entry point adds to the compiled artefact beside one set of weights: its
    /// instructions, and weights again where the artefact holds them once for every entry point.
    pub artefact_bytes: u64,
    /// Where that number comes from.
    #[serde(default = "modelled")]
    pub artefact_provenance: Provenance,
    /// State bytes at the entry point's context capacity; a shard holds the largest of its entry points.
    pub state_bytes: u64,
    /// Whether the target takes it.
    pub legality: Legality,
    /// Time of one run; none if nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<TimeCost>,
    /// Operations the time does not cover.
    #[serde(default)]
    pub uncosted_ops: u64,
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<T>(all: &[T])
    where
        T: Copy
            + fmt::Display
            + fmt::Debug
            + FromStr<Err = UnknownName>
            + PartialEq
            + Serialize
            + serde::de::DeserializeOwned,
    {
        for &value in all {
            let name = value.to_string();
            assert!(
                name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            );
            assert_eq!(name.parse::<T>().unwrap(), value);
            let json = serde_json::to_string(&value).unwrap();
            assert_eq!(json, format!("\"{name}\""));
            assert_eq!(serde_json::from_str::<T>(&json).unwrap(), value);
        }
        let error = "no-such-name".parse::<T>().unwrap_err();
        assert!(error.help().unwrap().contains(&all[0].to_string()));
    }

    #[test]
    fn names_survive_text_and_json() {
        round_trip(Provenance::ALL);
        round_trip(TargetKind::ALL);
        round_trip(WeightFormat::ALL);
        round_trip(ActivationFormat::ALL);
        round_trip(StateFormat::ALL);
        round_trip(WeightRole::ALL);
        round_trip(ElementType::ALL);
        round_trip(ErrorClass::ALL);
    }

    #[test]
    fn an_unknown_word_is_quoted_in_part_only() {
        let error = "x".repeat(10_000).parse::<ErrorClass>().unwrap_err();
        assert!(error.to_string().len() < 200);
    }

    #[test]
    fn entry_names_have_one_spelling() {
        for name in ["prefill_128@4096", "decode_1@512", "encode_256"] {
            let entry = name.parse::<EntryName>().unwrap();
            assert_eq!(entry.to_string(), name);
            let json = serde_json::to_string(&entry).unwrap();
            assert_eq!(serde_json::from_str::<EntryName>(&json).unwrap(), entry);
        }
        for name in [
            "",
            "decode",
            "decode_1",
            "decode_01@4",
            "decode_+1@4",
            "decode_0@4",
            "decode_1@0",
            "encode_4@4",
            "encode_",
            "prefill_4294967296@1",
            "warm_1@1",
        ] {
            assert!(name.parse::<EntryName>().is_err(), "{name}");
        }
    }

    #[test]
    fn flag_schemas_say_what_they_take() {
        let schema = |values| FlagSchema {
            name: "opt".to_owned(),
            values,
            default: None,
            description: String::new(),
            stage: FlagStage::Compile,
        };
        let cases = [
            (FlagType::Switch, "true", "yes"),
            (FlagType::Integer { min: 0, max: 3 }, "3", "4"),
            (FlagType::Integer { min: -1, max: 3 }, "-1", "one"),
            (FlagType::Choice { values: vec!["lts".to_owned()] }, "lts", "LTS"),
            (FlagType::Text { max_bytes: 4 }, "abcd", "abcde"),
        ];
        for (values, good, bad) in cases {
            let schema = schema(values);
            assert_eq!(schema.accepts(good), Ok(()));
            assert!(schema.accepts(bad).is_err(), "{schema:?} took {bad}");
            let json = serde_json::to_string(&schema).unwrap();
            assert_eq!(serde_json::from_str::<FlagSchema>(&json).unwrap(), schema);
        }
    }

    #[test]
    fn flag_verdicts_keep_their_evidence() {
        let applied = FlagVerdict::Applied { evidence: "kernel count fell from 40 to 31".to_owned() };
        for verdict in
            [applied, FlagVerdict::Recorded, FlagVerdict::Inert, FlagVerdict::Refused, FlagVerdict::Unknown]
        {
            let json = serde_json::to_string(&verdict).unwrap();
            assert!(json.contains(verdict.name()));
            assert_eq!(serde_json::from_str::<FlagVerdict>(&json).unwrap(), verdict);
            assert!(verdict.to_string().starts_with(verdict.name()));
        }
    }

    #[test]
    fn scales_are_finite_and_positive() {
        for bad in [0.0, -1.0, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE / 2.0] {
            assert_eq!(ScaleBits::new(bad), None, "{bad}");
            assert!(serde_json::from_str::<ScaleBits>(&bad.to_bits().to_string()).is_err());
        }
        let scale = ScaleBits::new(0.125).unwrap();
        assert_eq!(scale.get(), 0.125);
        assert_eq!(serde_json::from_str::<ScaleBits>(&scale.bits().to_string()).unwrap(), scale);
    }

    #[test]
    fn encodings_of_floats_have_no_scale() {
        assert!(Encoding::F32.is_consistent());
        assert!(!Encoding { zero_point: 1, ..Encoding::F16 }.is_consistent());
        let scale = ScaleBits::new(0.5).unwrap();
        assert!(Encoding { element: ElementType::U8, scale, zero_point: 255 }.is_consistent());
        assert!(!Encoding { element: ElementType::U8, scale, zero_point: 256 }.is_consistent());
        assert!(!Encoding { element: ElementType::I8, scale, zero_point: 200 }.is_consistent());
        assert!(!Encoding { element: ElementType::F32, scale, zero_point: 0 }.is_consistent());
        assert_eq!(Encoding::F16.to_string(), "f16");
    }

    #[test]
    fn a_tuple_answers_per_role() {
        let mut tuple =
            FormatTuple::uniform(WeightFormat::W4PerChannel, ActivationFormat::A16, StateFormat::A8);
        tuple.roles = vec![RoleFormat { role: WeightRole::MlpOutput, format: WeightFormat::W8PerChannel }];
        assert_eq!(tuple.weight(WeightRole::MlpOutput), WeightFormat::W8PerChannel);
        assert_eq!(tuple.weight(WeightRole::MlpInput), WeightFormat::W4PerChannel);
        assert_eq!(tuple.to_string(), "w4-per-channel[mlp-output=w8-per-channel]/a16/a8");
        assert_eq!(tuple.to_string().parse::<FormatTuple>(), Ok(tuple.clone()));
        assert_eq!("f32".parse::<FormatTuple>(), Ok(FormatTuple::F32));
        let wrong =
            ["", "w8", "f32/f32/f32/f32", "f32[head]", "f32[head=w8-per-channel", "f32[head=f16][head=f32]"];
        for text in wrong {
            assert!(text.parse::<FormatTuple>().is_err(), "{text}");
        }
        let json = serde_json::to_string(&tuple).unwrap();
        assert_eq!(serde_json::from_str::<FormatTuple>(&json).unwrap(), tuple);
    }

    #[test]
    fn limits_refuse_unknown_fields() {
        let limit = Limit::new(limit_names::OPS, 2600, Provenance::Reported);
        assert_eq!(limit.to_string(), "ops ≤ 2600 (reported)");
        let json = serde_json::to_string(&limit).unwrap();
        assert_eq!(serde_json::from_str::<Limit>(&json).unwrap(), limit);
        assert!(
            serde_json::from_str::<Limit>(r#"{"name":"ops","value":1,"provenance":"user","x":1}"#).is_err()
        );
    }
}
