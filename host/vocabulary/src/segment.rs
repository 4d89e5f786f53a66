//! Components of a model, and the parts of them that form a shard.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::names::names;

names! {
    /// A part of a model that is planned and placed on its own.
    ComponentKind, "component" {
        /// Gathered embedding rows → the first residual stream.
        Embed = "embed",
        /// Embeddings → the per-layer inputs of all layers.
        PerLayerInput = "per-layer-input",
        /// The stack of layers; the only component with cut points.
        Decoder = "decoder",
        /// Residual stream → logits.
        Head = "head",
        /// Residual stream of all rows → one sentence vector.
        Pooling = "pooling",
    }
}

impl ComponentKind {
    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        ComponentKind::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// Whether it consists of layers, between which it may be cut.
    pub const fn is_layered(self) -> bool {
        matches!(self, ComponentKind::Decoder)
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

/// What a shard computes: adjacent segments of the model in the order in which a step runs them, at
/// most one of each component. A sound list is not empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Segments(pub Vec<Segment>);

impl Segments {
    /// One segment.
    pub fn one(segment: Segment) -> Self {
        Segments(vec![segment])
    }

    /// Whether there is one, and all are consistent and in the order of a step.
    pub fn is_consistent(&self) -> bool {
        let ordered = self.0.windows(2).all(|pair| pair[0].component < pair[1].component);
        !self.0.is_empty() && ordered && self.0.iter().all(|segment| segment.is_consistent())
    }

    /// In the order of a step.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Segment> + Clone + '_ {
        self.0.iter().copied()
    }

    /// Whether it computes a part of that component.
    pub fn has(&self, component: ComponentKind) -> bool {
        self.iter().any(|segment| segment.component == component)
    }

    /// First layer of the decoder and one past the last; both 0 if it has none.
    pub fn layers(&self) -> (u32, u32) {
        self.iter().find(|segment| segment.component.is_layered()).map_or((0, 0), |segment| segment.layers)
    }

    /// Where the residual stream enters: the number of layers before it, in a decoder of `layers`.
    /// `None` for segments that begin the stream or read none.
    pub fn stream_enters(&self, layers: u32) -> Option<u32> {
        let first = self.0.first()?;
        Some(match first.component {
            ComponentKind::Embed => return None,
            ComponentKind::PerLayerInput => 0,
            ComponentKind::Decoder => first.layers.0,
            ComponentKind::Head | ComponentKind::Pooling => layers,
        })
    }

    /// Where the residual stream leaves: the number of layers before it. `None` for segments that
    /// do not pass one on.
    pub fn stream_leaves(&self) -> Option<u32> {
        match self.0.last()?.component {
            ComponentKind::Embed => Some(0),
            ComponentKind::PerLayerInput => self.has(ComponentKind::Embed).then_some(0),
            ComponentKind::Decoder => Some(self.layers().1),
            ComponentKind::Head | ComponentKind::Pooling => None,
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
