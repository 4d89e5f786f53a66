//! Requests for testing planners. Numbers are small and round, so that expected plans can be
//! computed by hand.

use crate::{
    Body, Component, Cost, Entry, EntryKind, Fact, Flag, FlagSchema, FlagType, Format, FormatTuple,
    GatheredTable, Goals, Granularity, Layer, LayerKind, Limit, Model, NumberKind, Overhead, PrefillPart,
    Provenance, Quantisation, Relief, Request, ScaleType, Softcap, Support, TableFormat, Target, TimeCost,
};

/// Builds a request with `embed`, a `decoder` and a `head`, on one target `npu` that supports all
/// layers as 32-bit float. Each layer has 100 operations (60 in prefill), 1000 weight bytes, 10
/// artefact bytes per entry point and 50 state bytes. `embed` and `head` have 1 and 2 operations
/// and 10 and 4000 weight bytes. All likely times are 0, and times of later targets are uncertain,
/// so that the first target is preferred.
#[derive(Debug, Clone)]
pub struct RequestBuilder {
    request: Request,
}

/// Creates a format from the host's name for it: `f32`, `w8-per-channel`, `w4-block32`.
pub fn format(name: &str) -> Format {
    let bits = name.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit);
    let bits = bits.collect::<String>().parse().unwrap_or(32);
    let quantisation = name.starts_with('w').then(|| Quantisation {
        granularity: match name {
            _ if name.ends_with("tensor") => Granularity::Tensor,
            _ if name.contains("block32") => Granularity::Block(32),
            _ => Granularity::Channel,
        },
        scale: if name.contains("block32") { ScaleType::Fp16 } else { ScaleType::Fp32 },
        symmetric: true,
        dynamic: false,
    });
    let numbers = if quantisation.is_some() { NumberKind::Signed } else { NumberKind::Float };
    Format { name: name.to_owned(), numbers, bits, quantisation }
}

/// Returns the index of a weight format of a request. Adds the format if it is missing.
pub fn weight_format(request: &mut Request, name: &str) -> u32 {
    if let Some(index) = request.weight_format_named(name) {
        return index;
    }
    request.weight_formats.push(format(name));
    u32::try_from(request.weight_formats.len() - 1).unwrap_or(u32::MAX)
}

/// Makes a row of the cost table illegal.
pub fn refuse(cost: &mut Cost, why: &str) {
    cost.support = Support::Illegal(why.to_owned());
}

/// Makes a row of the cost table legal, with a time that does not vary.
pub fn set_time(cost: &mut Cost, microseconds: u64) {
    cost.support = Support::Legal(TimeCost::exact(microseconds, Provenance::Simulated));
}

/// Returns the overhead of each run of a shard, in microseconds.
pub fn call(microseconds: u64) -> Overhead {
    Overhead {
        name: "call-microseconds".to_owned(),
        low: microseconds,
        value: microseconds,
        high: microseconds,
        provenance: Provenance::Reported,
        note: String::new(),
    }
}

const EMBED: u32 = 0;
const HEAD: u32 = 1;

impl RequestBuilder {
    /// Creates a model with states and `layers` layers, all of one kind.
    pub fn decoder(layers: u32) -> Self {
        let kind = |name: &str, prefill| LayerKind { name: name.to_owned(), prefill };
        let component = |name: &str, body, inputs: &[&str], outputs: &[&str]| Component {
            name: name.to_owned(),
            runs: "step".to_owned(),
            body,
            softcap: None,
            inputs: inputs.iter().map(|&name| name.to_owned()).collect(),
            outputs: outputs.iter().map(|&name| name.to_owned()).collect(),
        };
        let layers = (0..layers).map(|_| Layer { kind: 2, donor: None, writes_state: true }).collect();
        let request = Request {
            model: Model {
                name: "sample".to_owned(),
                family: "sample".to_owned(),
                hidden: 8,
                max_context: 4096,
                heads: 0,
                towers: vec![],
                components: vec![
                    component("embed", Body::Whole(EMBED), &[], &["hidden"]),
                    component("decoder", Body::Layers(layers), &["hidden"], &["hidden"]),
                    component("head", Body::Whole(HEAD), &["hidden"], &["logits"]),
                ],
            },
            kinds: vec![
                kind("embed", PrefillPart::Full),
                kind("head", PrefillPart::None),
                kind("layer", PrefillPart::Full),
            ],
            targets: vec![],
            weight_formats: vec![format("f32")],
            activation_formats: vec![format("f32")],
            state_formats: vec![format("f32")],
            formats: vec![FormatTuple { weights: 0, roles: vec![], activations: 0, states: 0 }],
            entries: vec![
                Entry { kind: EntryKind::Prefill, rows: 128, context: 512 },
                Entry { kind: EntryKind::Decode, rows: 1, context: 512 },
            ],
            costs: vec![],
            sensitivities: vec![],
            value_sensitivities: vec![],
            tables: vec![],
            ranges: vec![],
            boundary_nanoseconds: 0,
            transfer_nanoseconds: 0,
            goals: Goals {
                bounds: vec![],
                least_loss: false,
                context: 512,
                max_prefill_rows: 128,
                prompt_tokens: 512,
                answer_tokens: 0,
            },
            prompts: vec![],
            drafts: vec![],
            options: vec![],
            extensions: vec![],
        };
        Self { request }.target("npu", "npu")
    }

    /// Adds a gathered table with formats of these sizes in bytes and losses in millionths of a
    /// nat. A loss of `None` is unknown. The names of the formats are their bytes.
    #[must_use]
    pub fn table(mut self, name: &str, formats: &[(u64, Option<u32>)]) -> Self {
        let of = |&(bytes, micronats): &(u64, Option<u32>)| TableFormat {
            format: format(&format!("b{bytes}")),
            place: "runtime".to_owned(),
            bytes,
            micronats,
            provenance: Provenance::Modelled,
        };
        let formats = formats.iter().map(of).collect();
        self.request.tables.push(GatheredTable { name: name.to_owned(), formats });
        self
    }

    /// Adds a target, on another shim, that supports all layers in the first format tuple.
    #[must_use]
    pub fn target(mut self, name: &str, kind: &str) -> Self {
        let target = u32::try_from(self.request.targets.len()).unwrap_or(u32::MAX);
        self.request.targets.push(Target {
            name: name.to_owned(),
            shim: format!("{name}-shim"),
            device: "0".to_owned(),
            kind: kind.to_owned(),
            limits: vec![],
            overheads: vec![],
            facts: vec![],
            schema: vec![],
            recommended: vec![],
            device_memory: None,
            extensions: vec![],
        });
        for kind in 0..u32::try_from(self.request.kinds.len()).unwrap_or(u32::MAX) {
            self.costs(kind, target, 0);
        }
        self
    }

    /// Adds the usual rows of one kind, replacing existing ones.
    fn costs(&mut self, kind: u32, target: u32, formats: u32) {
        self.request.costs.retain(|cost| (cost.kind, cost.target, cost.formats) != (kind, target, formats));
        for &entry in &self.request.entries {
            let prefill = entry.kind == EntryKind::Prefill;
            let (ops, weight_bytes, state_bytes) = match kind {
                EMBED => (1, 10, 0),
                HEAD => (2, 4000, 0),
                _ => (if prefill { 60 } else { 100 }, 1000, 50),
            };
            self.request.costs.push(Cost {
                kind,
                target,
                formats,
                entry,
                ops,
                weight_bytes,
                artefact_bytes: 10,
                artefact_provenance: Provenance::Modelled,
                state_bytes,
                support: Support::Legal(TimeCost {
                    low: 0,
                    likely: 0,
                    high: u64::from(target > 0),
                    provenance: Provenance::Simulated,
                }),
            });
        }
    }

    /// Sets a limit of a target, both given by name.
    #[must_use]
    pub fn limit(mut self, target: &str, name: &str, value: u64) -> Self {
        for candidate in self.request.targets.iter_mut().filter(|candidate| candidate.name == target) {
            candidate.limits.push(Limit {
                name: name.to_owned(),
                value,
                provenance: Provenance::Reported,
                note: String::new(),
                relief: vec![],
            });
        }
        self
    }

    /// Adds a reported fact about a target, given by name.
    #[must_use]
    pub fn fact(mut self, target: &str, name: &str, value: &str) -> Self {
        for candidate in self.request.targets.iter_mut().filter(|candidate| candidate.name == target) {
            candidate.facts.push(Fact {
                name: name.to_owned(),
                value: value.to_owned(),
                provenance: Provenance::Reported,
            });
        }
        self
    }

    /// Sets an option of the planner.
    #[must_use]
    pub fn option(mut self, name: &str, value: &str) -> Self {
        self.request.options.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the effect of a flag on the limits with that name: `value` is the bound with the flag,
    /// `None` if the flag does not change it. The schema of every target with such a limit gets the
    /// flag.
    #[must_use]
    pub fn relief(mut self, name: &str, flag: (&str, &str), value: Option<u64>, note: &str) -> Self {
        let flag = Flag { name: flag.0.to_owned(), value: flag.1.to_owned() };
        for target in &mut self.request.targets {
            for limit in target.limits.iter_mut().filter(|limit| limit.name == name) {
                limit.relief.push(Relief { flag: flag.clone(), value, note: note.to_owned() });
                target.schema.push(FlagSchema {
                    name: flag.name.clone(),
                    values: FlagType::Text(16),
                    default: None,
                    description: String::new(),
                    stage: "compile".to_owned(),
                });
            }
        }
        self
    }

    /// Makes layer `reader` read the state of layer `donor`.
    #[must_use]
    pub fn donor(mut self, reader: usize, donor: u32) -> Self {
        if let Body::Layers(layers) = &mut self.request.model.components[1].body {
            layers[reader].donor = Some(donor);
            layers[reader].writes_state = false;
        }
        self
    }

    /// Sets a separate kind for layer `layer`, with `weight_bytes` and `ops` operations at every
    /// entry point.
    #[must_use]
    pub fn layer(mut self, layer: usize, ops: u64, weight_bytes: u64) -> Self {
        let kind = u32::try_from(self.request.kinds.len()).unwrap_or(u32::MAX);
        self.request.kinds.push(LayerKind { name: format!("layer {layer}"), prefill: PrefillPart::Full });
        if let Body::Layers(layers) = &mut self.request.model.components[1].body {
            layers[layer].kind = kind;
        }
        for target in 0..u32::try_from(self.request.targets.len()).unwrap_or(u32::MAX) {
            for formats in 0..u32::try_from(self.request.formats.len()).unwrap_or(u32::MAX) {
                self.costs(kind, target, formats);
            }
        }
        for cost in self.request.costs.iter_mut().filter(|cost| cost.kind == kind) {
            cost.ops = ops;
            cost.weight_bytes = weight_bytes;
        }
        self
    }

    /// Adds a format tuple, which every target supports, with weights of `numerator / denominator`
    /// of the first tuple's size.
    #[must_use]
    pub fn formats(mut self, weights: &str, numerator: u64, denominator: u64) -> Self {
        let weights = weight_format(&mut self.request, weights);
        let formats = u32::try_from(self.request.formats.len()).unwrap_or(u32::MAX);
        self.request.formats.push(FormatTuple { weights, ..self.request.formats[0].clone() });
        let rows: Vec<Cost> = self
            .request
            .costs
            .iter()
            .filter(|cost| cost.formats == 0)
            .map(|cost| Cost {
                formats,
                weight_bytes: cost.weight_bytes * numerator / denominator.max(1),
                ..cost.clone()
            })
            .collect();
        self.request.costs.extend(rows);
        self
    }

    /// Sets the times of all legal rows on one target, in microseconds.
    #[must_use]
    pub fn times(self, target: u32, microseconds: u64) -> Self {
        self.times_within(target, microseconds, microseconds, microseconds)
    }

    /// Sets the times of all legal rows on one target to an interval, in microseconds.
    #[must_use]
    pub fn times_within(mut self, target: u32, low: u64, likely: u64, high: u64) -> Self {
        for cost in self.request.costs.iter_mut().filter(|cost| cost.target == target) {
            if let Support::Legal(time) = &mut cost.support {
                *time = TimeCost { low, likely, high, provenance: Provenance::Simulated };
            }
        }
        self
    }

    /// Ends the head with a soft-cap of one operation, for which the runtime needs `microseconds`
    /// per row.
    #[must_use]
    pub fn softcap(mut self, microseconds: u64) -> Self {
        let kind = u32::try_from(self.request.kinds.len()).unwrap_or(u32::MAX);
        self.request.kinds.push(LayerKind { name: "head without".to_owned(), prefill: PrefillPart::None });
        let runtime = TimeCost::exact(microseconds, Provenance::Modelled);
        self.request.model.components[2].softcap = Some(Softcap { kind_without: kind, runtime });
        let rows: Vec<Cost> = self.request.costs.iter().filter(|cost| cost.kind == HEAD).cloned().collect();
        let rows = rows.into_iter().map(|cost| Cost { kind, ops: cost.ops - 1, ..cost });
        self.request.costs.extend(rows);
        self
    }

    /// Applies any other change.
    #[must_use]
    pub fn change(mut self, change: impl FnOnce(&mut Request)) -> Self {
        change(&mut self.request);
        self
    }

    /// Returns the request.
    pub fn build(self) -> Request {
        self.request
    }
}
