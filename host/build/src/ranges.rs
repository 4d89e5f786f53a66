//! Converts calibrated ranges to the form of a request: by component and layer that read a tensor.

use shardwright_graph::{ComponentKind, Graph, LAST_HIDDEN, PER_LAYER, Range, Ranges, Role, hidden_key};
use shardwright_planning::request::BoundaryRange;

/// Returns the calibrated ranges of the tensors that one shard hands to another. Tensors without a
/// calibrated range are left out.
pub(crate) fn boundary_ranges(graph: &Graph, ranges: &Ranges) -> Vec<BoundaryRange> {
    let mut found = Vec::new();
    let mut add = |role: &Role, component: usize, layer: u32, key: &str| {
        let Some((least, most)) = ranges.get(key).map(|range: &Range| range.ends()) else { return };
        if least.is_finite() && most.is_finite() && least <= most {
            found.push(BoundaryRange {
                name: role.name().to_owned(),
                component: component as u32,
                layer,
                minimum_bits: least.to_bits(),
                maximum_bits: most.to_bits(),
            });
        }
    };
    let per_layer = Role::PerLayer { first: 0, layers: 0 };
    for (index, component) in graph.components.iter().enumerate() {
        match component.kind {
            kind if kind.ends_stream() => add(&Role::Hidden, index, 0, LAST_HIDDEN),
            kind if kind.is_layered() => {
                for layer in 0..component.layers {
                    add(&Role::Hidden, index, layer, &hidden_key(layer));
                    add(&per_layer, index, layer, PER_LAYER);
                }
            }
            ComponentKind::PerLayerInput => add(&Role::Hidden, index, 0, &hidden_key(0)),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_that_of_what_a_layer_reads() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/gemma4_text");
        let graph = shardwright_models::Checkpoint::open(folder).unwrap().graph().clone();
        let layers = graph.components.iter().map(|component| component.layers).max().unwrap();
        let range = |low, high| Range { low, high, masked: false };
        let mut ranges: Ranges =
            (0..layers).map(|layer| (hidden_key(layer), range(-1.0, layer as f32))).collect();
        ranges.insert(LAST_HIDDEN.to_owned(), range(-2.0, 2.0));
        ranges.insert(PER_LAYER.to_owned(), range(f32::NAN, 1.0));
        let found = boundary_ranges(&graph, &ranges);
        let of = |kind: ComponentKind, layer: u32| {
            let component = graph.components.iter().position(|own| own.kind == kind).unwrap() as u32;
            let own = found.iter().find(|own| (own.component, own.layer) == (component, layer));
            own.map(|own| (f32::from_bits(own.minimum_bits), f32::from_bits(own.maximum_bits)))
        };
        assert_eq!(of(ComponentKind::Decoder, 1), Some((-1.0, 1.0)));
        assert_eq!(of(ComponentKind::Head, 0), Some((-2.0, 2.0)));
        assert!(found.iter().all(|range| range.name == "hidden"), "what is no number is no range");
        assert!(boundary_ranges(&graph, &Ranges::new()).is_empty());
    }
}
