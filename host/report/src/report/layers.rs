//! The formats and costs of each layer of a plan.

use serde::{Deserialize, Serialize};
use shardwright_planning::check::CheckedShard;
use shardwright_planning::cost::CostTable;
use shardwright_planning::losses::{Losses, UnitLoss};
use shardwright_planning::plan::PlannedSegment;
use shardwright_planning::request::Request;
use shardwright_vocabulary::Segment;

use super::{EntryReport, LossReport};

/// One layer of a shard, or a component without layers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerReport {
    pub component: String,
    /// Index of the layer, or `None` for a component without layers.
    pub layer: Option<u32>,
    /// Kind of the layer, such as `sliding`.
    pub kind: String,
    /// Formats as one word.
    pub formats: String,
    /// Number of operations of the largest entry point.
    pub ops: u64,
    pub weight_bytes: u64,
    /// Bytes of weights and of the additions of each entry point.
    pub artefact_bytes: u64,
    /// Bytes of states of the largest entry point.
    pub state_bytes: u64,
    /// The shard's entry points, with this layer's costs.
    pub entries: Vec<EntryReport>,
    /// Quality loss of the layer's formats.
    pub loss: LossReport,
}

impl LayerReport {
    /// Returns the formats as one word, without a weight format if the layer has no weights:
    /// `no weights/a16/a8`.
    pub fn shown_formats(&self) -> String {
        shown(&self.formats, self.weight_bytes)
    }
}

/// Returns formats as one word, without a weight format if there are no weights.
pub(super) fn shown(formats: &str, weight_bytes: u64) -> String {
    match (weight_bytes, formats.split_once('/')) {
        (0, Some((_, values))) => format!("no weights/{values}"),
        _ => formats.to_owned(),
    }
}

/// The indexed tables that rows are made from.
pub(super) struct LayerTables<'request> {
    request: &'request Request,
    costs: CostTable<'request>,
    losses: Losses<'request>,
}

impl<'request> LayerTables<'request> {
    pub(super) fn new(request: &'request Request) -> Self {
        Self { request, costs: CostTable::new(request), losses: Losses::new(request) }
    }

    /// Returns the layers of a shard, in order of execution.
    pub(super) fn rows(&self, shard: &CheckedShard) -> Vec<LayerReport> {
        let planned = &shard.planned;
        let of_segment = |(planned_segment, segment): (&PlannedSegment, Segment)| {
            let index = planned_segment.component;
            let component = self.request.model.components.get(index as usize);
            let (first, end) = segment.layers;
            let kinds = component.and_then(|component| component.shard_kinds(first, end, planned.softcap));
            let places = (first..).zip(kinds.unwrap_or_default()).zip(planned_segment.formats.clone());
            places.map(move |((layer, kind), formats)| (segment, index, layer, kind, formats))
        };
        let segments = planned.segments.iter().zip(shard.segments.iter());
        segments
            .flat_map(of_segment)
            .map(|(segment, component, layer, kind, formats)| {
                // The check added up the same rows, so every row exists and no sum overflows.
                let cost = self
                    .costs
                    .shard(&[kind], planned.target, &[formats], &planned.entries)
                    .unwrap_or_default();
                let tuple = self.request.formats.get(formats as usize);
                LayerReport {
                    component: segment.component.to_string(),
                    layer: (segment.layers.1 > 0).then_some(layer),
                    kind: self
                        .request
                        .kinds
                        .get(kind as usize)
                        .map_or_else(String::new, |kind| kind.name.clone()),
                    formats: tuple.map_or_else(String::new, ToString::to_string),
                    ops: cost.ops,
                    weight_bytes: cost.weight_bytes,
                    artefact_bytes: cost.artefact_bytes,
                    state_bytes: cost.state_bytes,
                    loss: match cost.weight_bytes {
                        // A layer without weights is lossless.
                        0 => LossReport::None,
                        _ => self.loss(component, layer, formats),
                    },
                    entries: cost.entries.iter().map(EntryReport::of).collect(),
                }
            })
            .collect()
    }

    /// Returns the loss of one layer by the rule of the plan's check, whose total is the sum of
    /// these.
    fn loss(&self, component: u32, layer: u32, formats: u32) -> LossReport {
        let Some(tuple) = self.request.formats.get(formats as usize) else { return LossReport::None };
        match self.losses.of(component, layer, tuple) {
            UnitLoss::None => LossReport::None,
            UnitLoss::Known { micronats, measured, modelled: true } => {
                LossReport::Expected { micronats, measured }
            }
            UnitLoss::Known { micronats, modelled: false, .. } => LossReport::Measured { micronats },
            UnitLoss::Unknown | UnitLoss::UnknownValues { .. } => LossReport::NotMeasured { places: 1 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn formats_of_a_layer_without_weights_have_no_weight_format() {
        let formats = "w8-per-channel[head=w4-block32]/a16/a8";
        assert_eq!([shown(formats, 1), shown(formats, 0)], [formats, "no weights/a16/a8"]);
        assert_eq!(shown("f32/f32/f16/attention-bf16", 0), "no weights/f32/f16/attention-bf16");
    }
}
