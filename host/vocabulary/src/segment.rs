//! Components of a model, and the segments of them that form a shard.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::names::names;

names! {
    /// Purpose of a run through components. The components of one pass run one after the other over
    /// the same rows. The output of one pass is read by another pass when that runs next.
    Pass, "pass" {
        /// Every step of generated text, and every text of a model without states.
        Step = "step",
        /// Every picture of a prompt: patches to soft rows.
        Picture = "picture",
        /// Every clip of sound in a prompt: frames to soft rows.
        Clip = "clip",
    }
}

names! {
    /// A part of a model that is planned and placed on its own.
    ComponentKind, "component" {
        /// Gathered embedding rows → the first residual stream.
        Embed = "embed",
        /// Embeddings → the per-layer inputs of all layers.
        PerLayerInput = "per-layer-input",
        /// The stack of layers of a step.
        Decoder = "decoder",
        /// Residual stream → logits.
        Head = "head",
        /// Residual stream of all rows → one sentence vector.
        Pooling = "pooling",
        /// Patches of a picture → the tower's first stream.
        VisionEmbed = "vision-embed",
        /// The stack of layers over patches.
        VisionTower = "vision-tower",
        /// The tower's last stream → soft rows.
        VisionProjector = "vision-projector",
        /// Frames of a clip → the tower's first stream.
        AudioEmbed = "audio-embed",
        /// The stack of layers over audio frames.
        AudioTower = "audio-tower",
        /// The tower's last stream → soft rows.
        AudioProjector = "audio-projector",
    }
}

impl ComponentKind {
    /// Returns the kind with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        ComponentKind::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// Returns whether the component consists of layers, between which it may be cut.
    pub const fn is_layered(self) -> bool {
        matches!(self, ComponentKind::Decoder | ComponentKind::VisionTower | ComponentKind::AudioTower)
    }

    /// Returns the pass in which the component runs.
    pub const fn pass(self) -> Pass {
        match self {
            ComponentKind::Embed
            | ComponentKind::PerLayerInput
            | ComponentKind::Decoder
            | ComponentKind::Head
            | ComponentKind::Pooling => Pass::Step,
            ComponentKind::VisionEmbed | ComponentKind::VisionTower | ComponentKind::VisionProjector => {
                Pass::Picture
            }
            ComponentKind::AudioEmbed | ComponentKind::AudioTower | ComponentKind::AudioProjector => {
                Pass::Clip
            }
        }
    }

    /// Returns whether the component begins the residual stream of its pass.
    const fn begins_stream(self) -> bool {
        matches!(self, ComponentKind::Embed | ComponentKind::VisionEmbed | ComponentKind::AudioEmbed)
    }

    /// Returns whether the component ends the residual stream of its pass: it reads the stream and
    /// does not pass one on.
    pub const fn ends_stream(self) -> bool {
        matches!(
            self,
            ComponentKind::Head
                | ComponentKind::Pooling
                | ComponentKind::VisionProjector
                | ComponentKind::AudioProjector
        )
    }
}

impl Pass {
    /// Returns the component of this pass that consists of layers.
    pub const fn layered(self) -> ComponentKind {
        match self {
            Pass::Step => ComponentKind::Decoder,
            Pass::Picture => ComponentKind::VisionTower,
            Pass::Clip => ComponentKind::AudioTower,
        }
    }
}

/// A component, or a range of its layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Segment {
    /// Component that the segment belongs to.
    pub component: ComponentKind,
    /// First layer and one past the last. Both are 0 for components without layers.
    #[serde(default, skip_serializing_if = "has_no_layers")]
    pub layers: (u32, u32),
}

fn has_no_layers(layers: &(u32, u32)) -> bool {
    *layers == (0, 0)
}

impl Segment {
    /// Returns the segment of a component without layers.
    pub const fn whole(component: ComponentKind) -> Self {
        Segment { component, layers: (0, 0) }
    }

    /// Returns the segment of the decoder layers from `first` to `end`, exclusive.
    pub const fn decoder(first: u32, end: u32) -> Self {
        Segment { component: ComponentKind::Decoder, layers: (first, end) }
    }

    /// Returns whether `layers` is a valid range: not empty for components with layers, `(0, 0)`
    /// for others.
    pub fn is_consistent(self) -> bool {
        let (first, end) = self.layers;
        if self.component.is_layered() { first < end } else { self.layers == (0, 0) }
    }
}

/// Writes the segment as in `decoder.0-12` or `head`.
impl fmt::Display for Segment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layers {
            (0, 0) => fmt::Display::fmt(&self.component, formatter),
            (first, end) => write!(formatter, "{}.{first}-{end}", self.component),
        }
    }
}

/// Segments of a shard: adjacent segments of one pass in the order in which they run, at most one
/// of each component. A valid list is not empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Segments(pub Vec<Segment>);

impl Segments {
    /// Creates a list of one segment.
    pub fn one(segment: Segment) -> Self {
        Segments(vec![segment])
    }

    /// Returns whether the list is ordered, see [`Segments::is_ordered`], and every segment is
    /// consistent.
    pub fn is_consistent(&self) -> bool {
        self.is_ordered() && self.0.iter().all(|segment| segment.is_consistent())
    }

    /// Returns whether the list is not empty and its segments are of one pass and in its order.
    pub fn is_ordered(&self) -> bool {
        let follows = |pair: &[Segment]| {
            let [before, after] = [pair[0].component, pair[1].component];
            before < after && before.pass() == after.pass()
        };
        !self.0.is_empty() && self.0.windows(2).all(follows)
    }

    /// Returns the pass of the segments, or [`Pass::Step`] if the list is empty.
    pub fn pass(&self) -> Pass {
        self.0.first().map_or(Pass::Step, |segment| segment.component.pass())
    }

    /// Iterates over the segments in the order of the pass.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Segment> + Clone + '_ {
        self.0.iter().copied()
    }

    /// Returns whether the list has a segment of that component.
    pub fn has(&self, component: ComponentKind) -> bool {
        self.iter().any(|segment| segment.component == component)
    }

    /// Returns the first layer and one past the last of the component with layers. Both are 0 if
    /// there is none.
    pub fn layers(&self) -> (u32, u32) {
        self.iter().find(|segment| segment.component.is_layered()).map_or((0, 0), |segment| segment.layers)
    }

    /// Returns the number of layers before the point where the residual stream enters, in a pass of
    /// `layers`. Returns `None` for segments that begin the stream or do not read one.
    pub fn stream_enters(&self, layers: u32) -> Option<u32> {
        let first = self.0.first()?;
        match first.component {
            component if component.begins_stream() => None,
            component if component.ends_stream() => Some(layers),
            component if component.is_layered() => Some(first.layers.0),
            _ => Some(0),
        }
    }

    /// Returns the number of layers before the point where the residual stream leaves. Returns
    /// `None` for segments that do not pass one on.
    pub fn stream_leaves(&self) -> Option<u32> {
        match self.0.last()?.component {
            component if component.begins_stream() => Some(0),
            component if component.ends_stream() => None,
            component if component.is_layered() => Some(self.layers().1),
            // This component runs next to the stream, which a segment before it may have begun.
            _ => self.0.first()?.component.begins_stream().then_some(0),
        }
    }
}

impl From<Segment> for Segments {
    fn from(segment: Segment) -> Self {
        Segments::one(segment)
    }
}

/// Writes the segments as in `decoder.0-12` or `embed+per-layer-input+decoder.0-35+head`.
impl fmt::Display for Segments {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, segment) in self.iter().enumerate() {
            let separator = if place == 0 { "" } else { "+" };
            write!(formatter, "{separator}{segment}")?;
        }
        Ok(())
    }
}
