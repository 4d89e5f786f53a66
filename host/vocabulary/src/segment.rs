//! Components of a model, and the parts of them that form a shard.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::names::names;

names! {
    /// What a run through components is for. Components of one pass run in a line, one after the
    /// other, over the same rows; what one pass gives another reads when it runs next.
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
        /// The stack of layers over what frames became.
        AudioTower = "audio-tower",
        /// The tower's last stream → soft rows.
        AudioProjector = "audio-projector",
    }
}

impl ComponentKind {
    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        ComponentKind::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// Whether it consists of layers, between which it may be cut.
    pub const fn is_layered(self) -> bool {
        matches!(self, ComponentKind::Decoder | ComponentKind::VisionTower | ComponentKind::AudioTower)
    }

    /// The pass in which it runs.
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

    /// Whether it begins the stream of its pass.
    const fn begins_stream(self) -> bool {
        matches!(self, ComponentKind::Embed | ComponentKind::VisionEmbed | ComponentKind::AudioEmbed)
    }

    /// Whether it ends the stream of its pass: it reads the last one and passes none on.
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
    /// The component of it that consists of layers.
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
    /// Which component.
    pub component: ComponentKind,
    /// First layer and one past the last; both 0 for components without layers.
    #[serde(default, skip_serializing_if = "has_no_layers")]
    pub layers: (u32, u32),
}

fn has_no_layers(layers: &(u32, u32)) -> bool {
    *layers == (0, 0)
}

impl Segment {
    /// A component without layers.
    pub const fn whole(component: ComponentKind) -> Self {
        Segment { component, layers: (0, 0) }
    }

    /// Layers of the decoder.
    pub const fn decoder(first: u32, end: u32) -> Self {
        Segment { component: ComponentKind::Decoder, layers: (first, end) }
    }

    /// Whether the layers are a range where the component has some, and none elsewhere.
    pub fn is_consistent(self) -> bool {
        let (first, end) = self.layers;
        if self.component.is_layered() { first < end } else { self.layers == (0, 0) }
    }
}

/// `decoder.0-12`, `head`
impl fmt::Display for Segment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layers {
            (0, 0) => fmt::Display::fmt(&self.component, formatter),
            (first, end) => write!(formatter, "{}.{first}-{end}", self.component),
        }
    }
}

/// What a shard computes: adjacent segments of one pass in the order in which it runs them, at most
/// one of each component. A sound list is not empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Segments(pub Vec<Segment>);

impl Segments {
    /// One segment.
    pub fn one(segment: Segment) -> Self {
        Segments(vec![segment])
    }

    /// Whether there is one, and all are consistent and in the order of one pass.
    pub fn is_consistent(&self) -> bool {
        self.is_ordered() && self.0.iter().all(|segment| segment.is_consistent())
    }

    /// Whether there is one, and all are of one pass and in its order.
    pub fn is_ordered(&self) -> bool {
        let follows = |pair: &[Segment]| {
            let [before, after] = [pair[0].component, pair[1].component];
            before < after && before.pass() == after.pass()
        };
        !self.0.is_empty() && self.0.windows(2).all(follows)
    }

    /// The pass they are of; that of a step where there is none.
    pub fn pass(&self) -> Pass {
        self.0.first().map_or(Pass::Step, |segment| segment.component.pass())
    }

    /// In the order of the pass.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Segment> + Clone + '_ {
        self.0.iter().copied()
    }

    /// Whether it computes a part of that component.
    pub fn has(&self, component: ComponentKind) -> bool {
        self.iter().any(|segment| segment.component == component)
    }

    /// First layer of the component with layers and one past the last; both 0 if it has none.
    pub fn layers(&self) -> (u32, u32) {
        self.iter().find(|segment| segment.component.is_layered()).map_or((0, 0), |segment| segment.layers)
    }

    /// Where the residual stream enters: the number of layers before it, in a pass of `layers`.
    /// `None` for segments that begin the stream or read none.
    pub fn stream_enters(&self, layers: u32) -> Option<u32> {
        let first = self.0.first()?;
        match first.component {
            component if component.begins_stream() => None,
            component if component.ends_stream() => Some(layers),
            component if component.is_layered() => Some(first.layers.0),
            _ => Some(0),
        }
    }

    /// Where the residual stream leaves: the number of layers before it. `None` for segments that
    /// do not pass one on.
    pub fn stream_leaves(&self) -> Option<u32> {
        match self.0.last()?.component {
            component if component.begins_stream() => Some(0),
            component if component.ends_stream() => None,
            component if component.is_layered() => Some(self.layers().1),
            // Beside the stream, which a segment before it began.
            _ => self.0.first()?.component.begins_stream().then_some(0),
        }
    }
}

impl From<Segment> for Segments {
    fn from(segment: Segment) -> Self {
        Segments::one(segment)
    }
}

/// `decoder.0-12`, `embed+per-layer-input+decoder.0-35+head`
impl fmt::Display for Segments {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, segment) in self.iter().enumerate() {
            let separator = if place == 0 { "" } else { "+" };
            write!(formatter, "{separator}{segment}")?;
        }
        Ok(())
    }
}
