//! A faulty place, for reports and as feedback for a planner.

use shardwright_build::{Detail, Feedback, MeasuredTime};
use shardwright_graph::{Component, ComponentKind, Graph, Op, Role, Segments, ValueSource};
use shardwright_vocabulary::WeightRole;

use super::{Evidence, FaultyPlace};

impl FaultyPlace {
    /// Makes the place of the shard as a whole.
    pub(super) fn whole(shard: &str, error: f64) -> Self {
        FaultyPlace {
            shard: shard.to_owned(),
            component: None,
            layer: None,
            role: None,
            values: None,
            value: None,
            relative_error: error,
            evidence: Evidence::Shard,
        }
    }

    /// Makes the place of a layer, or of a component without layers.
    pub(super) fn part(shard: &str, component: ComponentKind, layer: Option<u32>, error: f64) -> Self {
        FaultyPlace {
            component: Some(component.name().to_owned()),
            layer,
            evidence: Evidence::Range,
            ..FaultyPlace::whole(shard, error)
        }
    }

    /// Makes the place of the value that leaves a shard in this role.
    pub(super) fn value(
        shard: &str,
        segments: &Segments,
        graph: &Graph,
        role: &Role,
        error: f64,
    ) -> Option<Self> {
        let layered = |layer: u32| {
            let segment = segments.iter().find(|segment| segment.layers.1 > 0)?;
            Some(FaultyPlace::part(shard, segment.component, Some(layer), error))
        };
        let mut place = match role {
            Role::State { state } | Role::StateRows { state } => {
                let state = graph.states.get(state.0 as usize)?;
                FaultyPlace {
                    values: Some("states".to_owned()),
                    value: Some(state.name.clone()),
                    ..layered(state.layer)?
                }
            }
            Role::Tap { name } => tapped(shard, segments, graph, name, error)
                .or_else(|| layered(name.strip_prefix("layer.")?.parse().ok()?))?,
            Role::Hidden => match segments.stream_leaves().and_then(|end| end.checked_sub(1)) {
                Some(layer) => layered(layer)?,
                None => last(shard, segments, error)?,
            },
            _ => output(shard, segments, graph, role, error)?,
        };
        place.evidence = Evidence::OwnError;
        if place.value.is_none() {
            place.value = Some(role.name().to_owned());
        }
        if place.values.is_none() {
            place.values = Some("activations".to_owned());
        }
        Some(place)
    }

    /// Makes the feedback for a planner, with the times of the shard.
    pub(super) fn feedback(&self, index: usize, times: Vec<MeasuredTime>) -> Feedback {
        let mut details = vec![Detail::new("evidence", self.evidence.name())];
        let mut tell = |name: &str, value: Option<String>| {
            details.extend(value.map(|value| Detail::new(name, value)));
        };
        tell("component", self.component.clone());
        tell("layer", self.layer.map(|layer| layer.to_string()));
        tell("role", self.role.clone());
        tell("values", self.values.clone());
        tell("value", self.value.clone());
        // The cast of a float saturates.
        let drift = (self.relative_error * 1000.0).ceil() as u32;
        Feedback {
            shard: Some(index as u32),
            class: None,
            message: self.to_string(),
            details,
            times,
            drift_per_mille: Some(drift.max(1)),
        }
    }
}

impl std::fmt::Display for FaultyPlace {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "shard {}: ", self.shard)?;
        match &self.component {
            Some(component) => write!(formatter, "{component}")?,
            None => write!(formatter, "the whole shard")?,
        }
        if let Some(layer) = self.layer {
            write!(formatter, " layer {layer}")?;
        }
        if let Some(role) = &self.role {
            write!(formatter, " {role}")?;
        }
        if let Some(value) = &self.value {
            write!(formatter, " `{value}`")?;
        }
        match self.relative_error.is_finite() {
            true => write!(formatter, " is off by {:.1e}", self.relative_error)?,
            false => write!(formatter, " has an unbounded error")?,
        }
        formatter.write_str(match self.evidence {
            Evidence::OwnError => ", although its inputs agree",
            Evidence::Range => ", when compiled in shorter shards",
            Evidence::Shard => ", but no part of it alone",
        })
    }
}

/// Returns the components of a shard.
fn components<'g>(segments: &Segments, graph: &'g Graph) -> impl Iterator<Item = &'g Component> {
    let kinds: Vec<ComponentKind> = segments.iter().map(|segment| segment.component).collect();
    graph.components.iter().filter(move |component| kinds.contains(&component.kind))
}

/// Makes the place of the node that computes a value.
fn made(shard: &str, component: &Component, value: usize, graph: &Graph, error: f64) -> Option<FaultyPlace> {
    let value = component.values.get(value)?;
    let ValueSource::Node(node) = value.source else { return None };
    let node = &component.nodes[node.0 as usize];
    let weight = node.inputs.get(1).and_then(|weight| match component.values[weight.0 as usize].source {
        ValueSource::Constant(weight) if matches!(node.op, Op::Linear) => Some(graph.weight(weight)),
        _ => None,
    });
    Some(FaultyPlace {
        role: weight.map(|weight| WeightRole::of_part(weight.part).name().to_owned()),
        value: Some(value.name.clone()),
        ..FaultyPlace::part(shard, component.kind, node.layer, error)
    })
}

fn tapped(shard: &str, segments: &Segments, graph: &Graph, name: &str, error: f64) -> Option<FaultyPlace> {
    components(segments, graph).find_map(|component| {
        let (_, value) = component.taps.iter().find(|(tap, _)| tap == name)?;
        made(shard, component, value.0 as usize, graph, error)
    })
}

fn output(shard: &str, segments: &Segments, graph: &Graph, role: &Role, error: f64) -> Option<FaultyPlace> {
    components(segments, graph).find_map(|component| {
        let (value, _) = component.outputs.iter().find(|(_, own)| own == role)?;
        made(shard, component, value.0 as usize, graph, error)
    })
}

fn last(shard: &str, segments: &Segments, error: f64) -> Option<FaultyPlace> {
    let segment = segments.iter().last()?;
    Some(FaultyPlace::part(shard, segment.component, None, error))
}
