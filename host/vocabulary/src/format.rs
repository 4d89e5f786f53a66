use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::names::names;
use crate::{DType, Segment, UnknownName};

names! {
    /// The format of stored weights.
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
        /// Signed 8 bit, one scale per 32 consecutive input values of an output channel.
        W8Block32 = "w8-block32",
        /// Signed 4 bit, one scale per output channel.
        W4PerChannel = "w4-per-channel",
        /// Signed 4 bit, one scale for the tensor.
        W4PerTensor = "w4-per-tensor",
        /// Signed 4 bit, one scale per 32 consecutive input values of an output channel.
        W4Block32 = "w4-block32",
        /// Like `W4Block32`, but each scale is 1 to 16 times one scale of the output channel. For
        /// chips whose block scales are small integers.
        W4Block32Stepped = "w4-block32-stepped",
        /// Signed 2 bit, one scale per output channel.
        W2PerChannel = "w2-per-channel",
        /// As stored in the checkpoint, weight by weight: block formats that no other name covers,
        /// or a mix of formats.
        AsStored = "as-stored",
    }
}

/// The set of weight values that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "granularity")]
pub enum Granularity {
    /// All values of the weight.
    PerTensor,
    /// The values of one output channel: index 0 of the shape. For a gathered table this is a row.
    PerChannel,
    /// `size` consecutive values of the last axis. The last block of a row may be shorter.
    PerBlock {
        /// Values per scale.
        size: u32,
        /// Whether a block also has a minimum, which is subtracted from its values.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        minimum: bool,
    },
}

impl Granularity {
    /// Returns the granularity with one scale per `size` consecutive values and no minimum.
    pub const fn blocks(size: u32) -> Granularity {
        Granularity::PerBlock { size, minimum: false }
    }
}

/// Stored type, with granularity and scale type for integers.
pub type WeightLayout = (DType, Option<(Granularity, DType)>);

impl WeightFormat {
    /// Every format that the quantiser can produce: all except [`WeightFormat::AsStored`].
    pub const MADE: &'static [WeightFormat] = Self::ALL.split_at(Self::ALL.len() - 1).0;

    /// Returns the stored type, with granularity and scale type for integers. Returns `None` for
    /// [`WeightFormat::AsStored`], which covers several layouts.
    pub const fn layout(self) -> Option<WeightLayout> {
        const CHANNEL: Option<(Granularity, DType)> = Some((Granularity::PerChannel, DType::F32));
        const TENSOR: Option<(Granularity, DType)> = Some((Granularity::PerTensor, DType::F32));
        const BLOCK: Option<(Granularity, DType)> = Some((Granularity::blocks(32), DType::F16));
        // The scales are stored in f32 although each is an f16. The type distinguishes them from
        // the unrestricted scales of `BLOCK` before any scale exists.
        const STEPPED: Option<(Granularity, DType)> = Some((Granularity::blocks(32), DType::F32));
        Some(match self {
            WeightFormat::F32 => (DType::F32, None),
            WeightFormat::F16 => (DType::F16, None),
            WeightFormat::Bf16 => (DType::Bf16, None),
            WeightFormat::W8PerChannel => (DType::I8, CHANNEL),
            WeightFormat::W8PerTensor => (DType::I8, TENSOR),
            WeightFormat::W8Block32 => (DType::I8, BLOCK),
            WeightFormat::W4PerChannel => (DType::I4, CHANNEL),
            WeightFormat::W4PerTensor => (DType::I4, TENSOR),
            WeightFormat::W4Block32 => (DType::I4, BLOCK),
            WeightFormat::W4Block32Stepped => (DType::I4, STEPPED),
            WeightFormat::W2PerChannel => (DType::I2, CHANNEL),
            WeightFormat::AsStored => return None,
        })
    }

    /// Returns whether values are integers with scales.
    pub const fn is_quantised(self) -> bool {
        !matches!(self, WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16)
    }
}

/// Returns the number of scales of a weight of that shape, minimums included. The minimums of a row
/// follow its scales.
pub fn scale_count(granularity: Granularity, shape: &[u64]) -> Option<u64> {
    match granularity {
        Granularity::PerTensor => Some(1),
        Granularity::PerChannel => shape.first().copied(),
        Granularity::PerBlock { size: 0, .. } => None,
        Granularity::PerBlock { size, minimum } => {
            let (last, outer) = shape.split_last()?;
            let row = last.div_ceil(u64::from(size)).checked_mul(if minimum { 2 } else { 1 })?;
            outer.iter().try_fold(row, |count, &extent| count.checked_mul(extent))
        }
    }
}

names! {
    /// The format of activations inside a shard.
    ActivationFormat, "activation format" {
        /// 32-bit float.
        F32 = "f32",
        /// 16-bit float.
        F16 = "f16",
        /// Unsigned 16 bit, affine, calibrated.
        A16 = "a16",
        /// Signed 16 bit without a zero point, calibrated.
        A16Symmetric = "a16-symmetric",
        /// 8 bit, with a scale per row computed at run time.
        A8Dynamic = "a8-dynamic",
        /// 8 bit, with a scale per 32 consecutive values of a row computed at run time.
        A8DynamicBlock32 = "a8-dynamic-block32",
        /// Like [`ActivationFormat::A16`], with the residual stream, its summands and its norms in
        /// 16-bit floats.
        A16F16Stream = "a16-f16-stream",
        /// Like [`ActivationFormat::A16F16Stream`], with signed integers without a zero point.
        A16SymmetricF16Stream = "a16-symmetric-f16-stream",
    }
}

impl ActivationFormat {
    /// Returns whether values are integers with calibrated ranges, apart from the residual stream.
    pub const fn is_static(self) -> bool {
        matches!(self, Self::A16 | Self::A16Symmetric | Self::A16F16Stream | Self::A16SymmetricF16Stream)
    }

    /// Returns whether static integers are signed and have no zero point.
    pub const fn is_symmetric(self) -> bool {
        matches!(self, Self::A16Symmetric | Self::A16SymmetricF16Stream)
    }

    /// Returns how many consecutive values of a row share a scale computed at run time: 0 for the
    /// whole row, `None` for formats without such scales.
    pub const fn dynamic_block(self) -> Option<u32> {
        match self {
            Self::A8Dynamic => Some(0),
            Self::A8DynamicBlock32 => Some(32),
            _ => None,
        }
    }

    /// Returns whether the residual stream is in 16-bit floats and products are in integers.
    pub const fn has_float_stream(self) -> bool {
        matches!(self, Self::A16F16Stream | Self::A16SymmetricF16Stream)
    }
}

names! {
    /// The format of states (KV cache).
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
    /// The format in which attention multiplies: queries with keys, and weights with values.
    AttentionFormat, "attention format" {
        /// 32-bit float.
        F32 = "f32",
        /// bfloat16, summed in 32-bit floats.
        Bf16 = "bf16",
        /// 16-bit float, summed in 32-bit floats.
        F16 = "f16",
    }
}

impl AttentionFormat {
    /// Returns whether operands are rounded to 16 bits.
    pub const fn is_rounded(self) -> bool {
        !matches!(self, Self::F32)
    }

    /// Returns whether products are in 32-bit floats, as if no format were named.
    // Serde passes a reference.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
    fn is_default(&self) -> bool {
        !self.is_rounded()
    }
}

#[allow(clippy::derivable_impls, reason = "the macro declares the cases without attributes")]
impl Default for AttentionFormat {
    fn default() -> Self {
        Self::F32
    }
}

/// The format of values that a shard computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ValueFormat {
    /// Format of activations.
    Activations(ActivationFormat),
    /// Format of states.
    States(StateFormat),
    /// Format of the products of attention.
    Attention(AttentionFormat),
}

impl ValueFormat {
    /// Returns whether values are stored exactly as the float model computes them.
    pub const fn is_exact(self) -> bool {
        match self {
            Self::Activations(format) => matches!(format, ActivationFormat::F32),
            Self::States(format) => matches!(format, StateFormat::F32),
            Self::Attention(format) => !format.is_rounded(),
        }
    }

    /// Returns the name of the values: `activations`, `states` or `attention`.
    pub const fn values(self) -> &'static str {
        match self {
            Self::Activations(_) => "activations",
            Self::States(_) => "states",
            Self::Attention(_) => "attention",
        }
    }

    /// Returns the name of the format.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Activations(format) => format.name(),
            Self::States(format) => format.name(),
            Self::Attention(format) => format.name(),
        }
    }
}

names! {
    /// Groups of a layer's weights that formats and sensitivities distinguish.
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

impl WeightRole {
    /// Returns the role of a layer's part, by its name in graphs: `q`, `gate`, `head`.
    pub fn of_part(part: &str) -> WeightRole {
        match part {
            "q" | "k" | "v" => WeightRole::AttentionInput,
            "o" => WeightRole::AttentionOutput,
            "gate" | "up" => WeightRole::MlpInput,
            "down" => WeightRole::MlpOutput,
            "head" => WeightRole::Head,
            part if part.starts_with("per-layer") => WeightRole::PerLayer,
            _ => WeightRole::Other,
        }
    }
}

/// A weight format for one role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoleFormat {
    /// Role of the weights.
    pub role: WeightRole,
    /// Format of the weights.
    pub format: WeightFormat,
}

/// The formats of one shard: a combination that a target supports or refuses as a whole.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FormatTuple {
    /// Format of every weight that no entry of `roles` names.
    pub weights: WeightFormat,
    /// Exceptions, sorted by role, each role at most once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<RoleFormat>,
    /// Format of all activations of the shard.
    pub activations: ActivationFormat,
    /// Format of all states of the shard.
    pub states: StateFormat,
    /// Format of the products of all attentions of the shard.
    #[serde(default, skip_serializing_if = "AttentionFormat::is_default")]
    pub attention: AttentionFormat,
}

impl FormatTuple {
    /// All values in 32-bit float: the tuple that every complete engine supports.
    pub const F32: FormatTuple =
        FormatTuple::uniform(WeightFormat::F32, ActivationFormat::F32, StateFormat::F32);

    /// Returns a tuple with one weight format for all roles, and attention in 32-bit floats.
    pub const fn uniform(weights: WeightFormat, activations: ActivationFormat, states: StateFormat) -> Self {
        Self { weights, roles: Vec::new(), activations, states, attention: AttentionFormat::F32 }
    }

    /// Returns the formats of all values that a shard computes. A shard has each of them once.
    pub const fn values(&self) -> [ValueFormat; 3] {
        [
            ValueFormat::Activations(self.activations),
            ValueFormat::States(self.states),
            ValueFormat::Attention(self.attention),
        ]
    }

    /// Returns the weight format of one role.
    pub fn weight(&self, role: WeightRole) -> WeightFormat {
        self.roles.iter().find(|entry| entry.role == role).map_or(self.weights, |entry| entry.format)
    }

    /// Returns the tuple with activations in 8 bits, one scale per 32 values, and states in 16-bit
    /// floats. llama.cpp rounds so for weights in blocks of integers. Returns `None` for other
    /// weights. Some roles may be in floats, and their products are not rounded.
    pub fn rounded(&self) -> Option<FormatTuple> {
        let in_blocks = |format: WeightFormat| {
            matches!(format.layout(), Some((_, Some((Granularity::PerBlock { .. }, _)))))
        };
        let suits = |role: &RoleFormat| in_blocks(role.format) || !role.format.is_quantised();
        let (activations, states) = (ActivationFormat::A8DynamicBlock32, StateFormat::F16);
        let is_rounded = in_blocks(self.weights) && self.roles.iter().all(suits);
        is_rounded.then(|| FormatTuple { activations, states, ..self.clone() })
    }
}

/// Prefix of the part of a tuple that names the format of attention: `attention-bf16`.
const ATTENTION: &str = "attention-";

/// Parses the output of `Display`. Also accepts a weight format alone, such as `w8-per-channel`,
/// with f32 for all other values. The last part may name the format of attention:
/// `w8-per-channel/a8-dynamic/f16/attention-bf16`.
impl FromStr for FormatTuple {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let (values, attention) = match text.rsplit_once('/') {
            Some((values, last)) => match last.strip_prefix(ATTENTION) {
                Some(format) => (values, format.parse()?),
                None => (text, AttentionFormat::F32),
            },
            None => (text, AttentionFormat::F32),
        };
        let mut parts = values.split('/');
        let weights = parts.next().unwrap_or_default();
        let activations = parts.next().map_or(Ok(ActivationFormat::F32), str::parse)?;
        let states = parts.next().map_or(Ok(StateFormat::F32), str::parse)?;
        let form = || {
            let expected = "WEIGHTS[ROLE=FORMAT]…/ACTIVATIONS/STATES/attention-FORMAT";
            UnknownName::new("format tuple", text, expected.to_owned())
        };
        if parts.next().is_some() {
            return Err(form());
        }
        let mut brackets = weights.split('[');
        let uniform = FormatTuple::uniform(brackets.next().unwrap_or_default().parse()?, activations, states);
        let mut tuple = FormatTuple { attention, ..uniform };
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
        write!(formatter, "/{}/{}", self.activations, self.states)?;
        match self.attention.is_rounded() {
            true => write!(formatter, "/{ATTENTION}{}", self.attention),
            false => Ok(()),
        }
    }
}

/// Adjacent layers of a shard, or a component without layers, in equal formats.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentFormats {
    /// The layers or the component.
    pub segment: Segment,
    /// Format tuple of the segment.
    pub formats: FormatTuple,
}

/// The formats of a shard. Segments may differ in their weight formats. Activations, states and
/// attention have one format in the whole shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ShardFormats {
    /// One tuple for the whole shard.
    Uniform(FormatTuple),
    /// All segments in order. Adjacent layers in equal formats form one segment.
    Mixed(Vec<SegmentFormats>),
}

impl ShardFormats {
    /// Combines the formats of single layers and components without layers, in order. Returns
    /// `None` if there are no units or if they differ in activations, states or attention.
    pub fn of<'a>(units: impl IntoIterator<Item = (Segment, &'a FormatTuple)>) -> Option<Self> {
        let mut runs: Vec<SegmentFormats> = Vec::new();
        for (segment, formats) in units {
            match runs.last_mut() {
                Some(run)
                    if run.formats == *formats
                        && run.segment.component == segment.component
                        && run.segment.layers.1 == segment.layers.0 =>
                {
                    run.segment.layers.1 = segment.layers.1;
                }
                _ => runs.push(SegmentFormats { segment, formats: formats.clone() }),
            }
        }
        let first = runs.first()?.formats.clone();
        if runs.iter().any(|run| run.formats.values() != first.values()) {
            return None;
        }
        match runs.iter().all(|run| run.formats == first) {
            true => Some(ShardFormats::Uniform(first)),
            false => Some(ShardFormats::Mixed(runs)),
        }
    }

    /// Iterates over the tuples, in the order of the segments.
    pub fn tuples(&self) -> impl Iterator<Item = &FormatTuple> {
        let (one, runs) = match self {
            ShardFormats::Uniform(formats) => (Some(formats), &[][..]),
            ShardFormats::Mixed(runs) => (None, &runs[..]),
        };
        one.into_iter().chain(runs.iter().map(|run| &run.formats))
    }

    /// Returns the tuple of the whole shard, or `None` if its segments differ.
    pub fn uniform(&self) -> Option<&FormatTuple> {
        match self {
            ShardFormats::Uniform(formats) => Some(formats),
            ShardFormats::Mixed(_) => None,
        }
    }
}

impl From<FormatTuple> for ShardFormats {
    fn from(formats: FormatTuple) -> Self {
        ShardFormats::Uniform(formats)
    }
}

/// Writes a uniform tuple in its own spelling. Several tuples are written with their segments,
/// where `0-4` excludes layer 4: `decoder.0-4 w8-per-channel/a16/a8, decoder.4-35
/// w4-per-channel/a16/a8`.
impl fmt::Display for ShardFormats {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShardFormats::Uniform(formats) => fmt::Display::fmt(formats, formatter),
            ShardFormats::Mixed(runs) => {
                for (place, SegmentFormats { segment, formats }) in runs.iter().enumerate() {
                    let separator = if place == 0 { "" } else { ", " };
                    write!(formatter, "{separator}{segment} {formats}")?;
                }
                Ok(())
            }
        }
    }
}

names! {
    /// The place where the soft-cap of the logits is computed.
    SoftcapPlace, "place of a soft-cap" {
        /// In the graph of the head, by its target.
        Graph = "graph",
        /// By the runtime, in f32, on the logits that the head returns.
        Runtime = "runtime",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_weights_in_blocks_of_integers_have_a_rounded_tuple() {
        for (stored, rounded) in [
            ("w8-block32", Some("w8-block32/a8-dynamic-block32/f16")),
            ("w4-block32-stepped/a16/a8", Some("w4-block32-stepped/a8-dynamic-block32/f16")),
            ("w4-block32[head=w8-block32]", Some("w4-block32[head=w8-block32]/a8-dynamic-block32/f16")),
            ("w4-block32[head=bf16]", Some("w4-block32[head=bf16]/a8-dynamic-block32/f16")),
            ("w4-block32[head=w8-per-channel]", None),
            ("w8-per-channel[mlp-output=w8-block32]", None),
            ("bf16[mlp-output=w8-block32]", None),
            ("as-stored", None),
            ("f32", None),
        ] {
            let found = stored.parse::<FormatTuple>().unwrap().rounded();
            assert_eq!(found.map(|tuple| tuple.to_string()).as_deref(), rounded, "{stored}");
        }
    }
}
