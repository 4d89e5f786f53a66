//! The solver against trying everything.

use proptest::prelude::*;

use super::*;
use crate::testing::RequestBuilder;
use crate::{Body, Plan, Sensitivity, TargetKind, WeightRole};

/// One shard of a candidate: component, first and end unit, target, formats.
type Piece = (usize, usize, usize, u32, u32);

/// The objective as the module documents it.
type Objective = ([u64; 3], u64, u128);

/// Every way to cut and place the model.
fn candidates(request: &Request) -> Vec<Vec<Piece>> {
    let mut chains: Vec<Vec<Piece>> = vec![vec![]];
    for (index, component) in request.model.components.iter().enumerate() {
        let units = unit_kinds(component).len();
        let mut next = vec![];
        for chain in chains {
            extend(request, index, units, 0, chain, &mut next);
        }
        chains = next;
    }
    chains
}

fn extend(
    request: &Request,
    index: usize,
    units: usize,
    first: usize,
    chain: Vec<Piece>,
    all: &mut Vec<Vec<Piece>>,
) {
    if first == units {
        all.push(chain);
        return;
    }
    for end in first + 1..=units {
        for target in 0..request.targets.len() {
            for formats in 0..request.formats.len() {
                let mut chain = chain.clone();
                chain.push((
                    index,
                    first,
                    end,
                    u32::try_from(target).unwrap(),
                    u32::try_from(formats).unwrap(),
                ));
                extend(request, index, units, end, chain, all);
            }
        }
    }
}

/// What a candidate is worth, straight from the rows of the table; none if it breaks a constraint.
fn judge(request: &Request, pieces: &[Piece], forbidden: &[Forbidden]) -> Option<Objective> {
    let decode = request.entries.iter().find(|entry| entry.kind == EntryKind::Decode).unwrap();
    let timed = request
        .costs
        .iter()
        .filter(|cost| cost.entry == *decode && cost.illegal.is_none())
        .all(|cost| cost.time.is_some());
    let (mut sums, mut largest, mut squares) = ([0_u64; 3], 0_u64, 0_u128);
    let (mut memory, mut loss) = (0, 0);
    let mut per_target = vec![(0_u64, 0_u64); request.targets.len()];
    let mut homes = std::collections::BTreeMap::new();
    for &(index, first, end, target, formats) in pieces {
        let component = &request.model.components[index];
        let kinds = &unit_kinds(component)[first..end];
        let (mut ops, mut states, mut extra, mut time) = (0, 0, 0, 0);
        let mut weights = vec![0; kinds.len()];
        for &entry in &request.entries {
            let (mut entry_ops, mut entry_states) = (0, 0);
            for (kind, weight) in kinds.iter().zip(&mut weights) {
                let prefill = request.kinds[*kind as usize].prefill;
                if entry.kind == EntryKind::Prefill && prefill == PrefillPart::None {
                    continue;
                }
                let row = request.costs.iter().find(|cost| {
                    (cost.kind, cost.target, cost.formats, cost.entry) == (*kind, target, formats, entry)
                })?;
                if row.illegal.is_some() {
                    return None;
                }
                entry_ops += row.ops;
                entry_states += row.state_bytes;
                extra += row.artefact_bytes;
                *weight = row.weight_bytes.max(*weight);
                if entry.kind == EntryKind::Decode {
                    time += row.time.map_or(0, |time| time.microseconds);
                }
            }
            ops = ops.max(entry_ops);
            states = states.max(entry_states);
        }
        let weight: u64 = weights.iter().sum();
        let artefact = weight + extra;
        for limit in &request.targets[target as usize].limits {
            let value = match limit.name.as_str() {
                "ops" => ops,
                "weight-bytes" => weight,
                "artefact-bytes" => artefact,
                "context-bytes" => artefact + states,
                _ => 0,
            };
            if value > limit.value {
                return None;
            }
        }
        memory += artefact + states;
        per_target[target as usize].0 += 1;
        per_target[target as usize].1 += artefact + states;

        let layered = component.layer_count() > 0;
        let key = |value: usize| if layered { u32::try_from(value).unwrap() } else { 0 };
        let shard = Forbidden {
            component: u32::try_from(index).unwrap(),
            first: key(first),
            end: key(end),
            target,
            formats,
            softcap: None,
        };
        if forbidden.contains(&shard) {
            return None;
        }
        if let Body::Layers(layers) = &component.body {
            let place = &request.targets[target as usize];
            for (position, layer) in layers.iter().enumerate().take(end).skip(first) {
                homes.insert(position, (&place.shim, &place.device));
                if let Some(donor) = layer.donor
                    && homes[&(donor as usize)] != (&place.shim, &place.device)
                {
                    return None;
                }
            }
        }
        let tuple = &request.formats[formats as usize];
        if tuple.weights != WeightFormat::Fp32 {
            for layer in first..end {
                let rows: Vec<_> = request
                    .sensitivities
                    .iter()
                    .filter(|row| (row.component as usize, row.layer as usize) == (index, layer))
                    .filter(|row| row.format == tuple.weights)
                    .collect();
                if rows.is_empty() && request.goals.quality_per_mille.is_some() {
                    return None;
                }
                loss += rows.iter().map(|row| row.per_mille).sum::<u32>();
            }
        }

        let units = (end - first) as u64;
        sums[0] += if timed { time } else { u64::from(target) * units };
        sums[1] += 1;
        sums[2] += u64::from(formats) * units;
        let balance = match (layered, timed) {
            (false, _) => 0,
            (true, true) => time,
            (true, false) => weight,
        };
        largest = largest.max(balance);
        squares += u128::from(balance) * u128::from(balance);
    }
    for (target, (shards, bytes)) in request.targets.iter().zip(per_target) {
        for limit in &target.limits {
            let over = match limit.name.as_str() {
                "shards" => shards > limit.value,
                "memory-bytes" => bytes > limit.value,
                _ => false,
            };
            if over {
                return None;
            }
        }
    }
    let over = |goal: Option<u64>, value: u64| goal.is_some_and(|goal| value > goal);
    if over(request.goals.memory_bytes, memory)
        || over(request.goals.quality_per_mille.map(u64::from), loss.into())
    {
        return None;
    }
    Some((sums, largest, squares))
}

fn pieces(request: &Request, solution: &Solution) -> Vec<Piece> {
    let piece = |shard: &Placement| {
        let index = shard.component as usize;
        let layered = request.model.components[index].layer_count() > 0;
        let (first, end) = if layered { (shard.first as usize, shard.end as usize) } else { (0, 1) };
        (index, first, end, shard.target, shard.formats)
    };
    solution.shards.iter().map(piece).collect()
}

#[derive(Debug, Clone)]
struct Draw {
    layers: Vec<(u64, u64)>,
    donors: Vec<Option<(usize, usize)>>,
    targets: usize,
    same_place: bool,
    formats: bool,
    limits: Vec<(usize, usize, u64)>,
    illegal: Vec<(usize, usize)>,
    times: Option<Vec<u64>>,
    memory: Option<u64>,
    quality: Option<(u32, Vec<u32>)>,
    forbidden: Vec<(u32, u32)>,
    no_prefill: Vec<usize>,
}

fn draw() -> impl Strategy<Value = Draw> {
    let layer = (1_u64..200, 1_u64..3000);
    let part = (
        prop::collection::vec(layer, 1..5),
        prop::collection::vec(proptest::option::weighted(0.3, (0_usize..4, 0_usize..4)), 2),
        1_usize..3,
        proptest::bool::weighted(0.3),
        any::<bool>(),
        prop::collection::vec((0_usize..2, 0_usize..6, 1_u64..8000), 0..3),
    );
    let rest = (
        prop::collection::vec((0_usize..16, 0_usize..2), 0..2),
        proptest::option::of(prop::collection::vec(1_u64..50, 16)),
        proptest::option::weighted(0.3, 4000_u64..20000),
        proptest::option::weighted(0.4, (0_u32..20, prop::collection::vec(0_u32..9, 6))),
        prop::collection::vec((0_u32..4, 1_u32..5), 0..2),
        prop::collection::vec(0_usize..4, 0..2),
    );
    (part, rest).prop_map(|((layers, donors, targets, same_place, formats, limits), rest)| {
        let (illegal, times, memory, quality, forbidden, no_prefill) = rest;
        Draw {
            layers,
            donors,
            targets,
            same_place,
            formats,
            limits,
            illegal,
            times,
            memory,
            quality,
            forbidden,
            no_prefill,
        }
    })
}

fn build(draw: &Draw) -> (Request, Vec<Forbidden>) {
    let count = u32::try_from(draw.layers.len()).unwrap();
    let mut builder = RequestBuilder::decoder(count);
    if draw.targets > 1 {
        builder = builder.target("cpu", TargetKind::Cpu);
    }
    for (layer, (ops, bytes)) in draw.layers.iter().enumerate() {
        builder = builder.layer(layer, *ops, *bytes);
    }
    if draw.formats {
        builder = builder.formats(WeightFormat::W8PerChannel, 1, 3);
    }
    for &(reader, donor) in draw.donors.iter().flatten() {
        if donor < reader && reader < draw.layers.len() {
            builder = builder.donor(reader, u32::try_from(donor).unwrap());
        }
    }
    for &(target, name, value) in &draw.limits {
        let names = ["ops", "weight-bytes", "artefact-bytes", "context-bytes", "shards", "memory-bytes"];
        let value = match names[name] {
            "ops" => value / 10,
            "shards" => value / 1500,
            _ => value,
        };
        builder = builder.limit(["npu", "cpu"][target], names[name], value);
    }
    let mut request = builder.build();
    if draw.same_place && draw.targets > 1 {
        request.targets[1].shim = request.targets[0].shim.clone();
    }
    for &(kind, target) in &draw.illegal {
        for cost in &mut request.costs {
            if (cost.kind as usize, cost.target as usize) == (kind, target) && cost.formats == 0 {
                cost.illegal = Some("drawn".to_owned());
            }
        }
    }
    if let Some(times) = &draw.times {
        for cost in &mut request.costs {
            let microseconds = times[(cost.kind as usize * 3 + cost.target as usize * 5) % times.len()];
            cost.time = Some(crate::TimeCost { microseconds, provenance: crate::Provenance::Simulated });
        }
    }
    // The head has no prefill rows, and needs none.
    request.costs.retain(|cost| (cost.kind, cost.entry.kind) != (1, EntryKind::Prefill));
    for &layer in draw.no_prefill.iter().filter(|&&layer| layer < draw.layers.len()) {
        // Layer kinds follow the three of the builder.
        request.kinds[3 + layer].prefill = PrefillPart::None;
    }
    request.goals.memory_bytes = draw.memory;
    if let Some((budget, losses)) = &draw.quality {
        request.goals.quality_per_mille = Some(*budget);
        for (layer, &per_mille) in losses.iter().enumerate().take(draw.layers.len() + 1) {
            let (component, layer) = if layer == draw.layers.len() { (2, 0) } else { (1, layer) };
            request.sensitivities.push(Sensitivity {
                component,
                layer: u32::try_from(layer).unwrap(),
                role: WeightRole::MlpInput,
                format: WeightFormat::W8PerChannel,
                per_mille,
            });
        }
    }
    let forbidden = draw.forbidden.iter().map(|&(first, end)| Forbidden {
        component: 1,
        first,
        end,
        target: 0,
        formats: 0,
        softcap: None,
    });
    (request, forbidden.collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The solver finds a plan if there is one, and none is better.
    #[test]
    fn no_plan_is_better_than_the_solvers(draw in draw()) {
        let (request, forbidden) = build(&draw);
        let settings = Settings { forbidden: forbidden.clone(), ..Settings::default() };
        let best = candidates(&request).iter().filter_map(|chain| judge(&request, chain, &forbidden)).min();
        match solve(&request, &settings) {
            Ok(solution) => {
                prop_assert!(solution.exact);
                prop_assert_eq!(judge(&request, &pieces(&request, &solution), &forbidden), best);
                let plan = solution.into_plan(&request);
                prop_assert!(!plan.reasons.is_empty());
            }
            Err(refusal) => {
                prop_assert_eq!(best, None, "{:?}", refusal);
                prop_assert!(refusal.kind != RefusalKind::InvalidRequest);
            }
        }
    }
}

fn solved(request: &Request) -> Vec<(u32, u32)> {
    let solution = solve(request, &Settings::default()).unwrap();
    let decoder = solution.shards.iter().filter(|shard| shard.component == 1);
    decoder.map(|shard| (shard.first, shard.end)).collect()
}

fn refusal(request: &Request) -> Refusal {
    solve(request, &Settings::default()).unwrap_err()
}

#[test]
fn shards_are_few_and_then_even() {
    assert_eq!(solved(&RequestBuilder::decoder(10).build()), [(0, 10)]);
    assert_eq!(solved(&RequestBuilder::decoder(10).limit("npu", "ops", 900).build()), [(0, 5), (5, 10)]);
    // The first layer weighs as much as four.
    let heavy = RequestBuilder::decoder(8).layer(0, 100, 4000).limit("npu", "ops", 600).build();
    assert_eq!(solved(&heavy), [(0, 2), (2, 8)]);
}

#[test]
fn a_real_depth_is_solved_exactly() {
    let request = RequestBuilder::decoder(35).limit("npu", "ops", 600).target("cpu", TargetKind::Cpu).build();
    let solution = solve(&request, &Settings::default()).unwrap();
    assert!(solution.exact);
    assert_eq!(solution.shards.len(), 2 + 6);
}

#[test]
fn prefill_rows_give_way_to_limits() {
    let request = RequestBuilder::decoder(1)
        .change(|request| {
            let smaller = Entry { kind: EntryKind::Prefill, rows: 16, context: 512 };
            let rows: Vec<_> = request
                .costs
                .iter()
                .filter(|cost| cost.entry.kind == EntryKind::Prefill)
                .map(|cost| crate::Cost { entry: smaller, ops: cost.ops / 2, ..cost.clone() })
                .collect();
            request.entries.push(smaller);
            request.costs.extend(rows);
            for cost in request.costs.iter_mut().filter(|cost| cost.entry.kind == EntryKind::Decode) {
                cost.ops = 1;
            }
        })
        .limit("npu", "ops", 40)
        .build();
    let solution = solve(&request, &Settings::default()).unwrap();
    assert_eq!(solution.entries.iter().map(|entry| entry.rows).collect::<Vec<_>>(), [1, 16]);
}

#[test]
fn every_kind_of_refusal_is_found() {
    let quantised = || RequestBuilder::decoder(3).formats(WeightFormat::W8PerChannel, 1, 4);
    let cases = [
        (
            RefusalKind::Unsupported,
            RequestBuilder::decoder(3).change(|request| {
                request.costs.iter_mut().for_each(|cost| cost.illegal = Some("no such operation".to_owned()));
            }),
            "no such operation",
        ),
        (RefusalKind::OverLimit, RequestBuilder::decoder(3).limit("npu", "ops", 99), "layer 0"),
        (RefusalKind::OverLimit, RequestBuilder::decoder(3).limit("npu", "shards", 2), "shards"),
        (
            RefusalKind::OverMemory,
            RequestBuilder::decoder(3).change(|request| request.goals.memory_bytes = Some(100)),
            "memory",
        ),
        (
            RefusalKind::OverQuality,
            quantised().limit("npu", "weight-bytes", 1000).change(|request| {
                request.goals.quality_per_mille = Some(0);
                for (component, layer) in [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)] {
                    request.sensitivities.push(Sensitivity {
                        component,
                        layer,
                        role: WeightRole::Other,
                        format: WeightFormat::W8PerChannel,
                        per_mille: 5,
                    });
                }
            }),
            "quality",
        ),
        (
            RefusalKind::StateNotShareable,
            RequestBuilder::decoder(3).target("cpu", TargetKind::Cpu).layer(2, 100, 1000).donor(2, 0).change(
                |request| {
                    for cost in &mut request.costs {
                        let (npu, cpu) = (cost.target == 0, cost.target == 1);
                        if npu && cost.kind == 3 || cpu && cost.kind == 2 {
                            cost.illegal = Some("no".to_owned());
                        }
                    }
                },
            ),
            "state",
        ),
        (
            RefusalKind::InvalidRequest,
            RequestBuilder::decoder(3).change(|request| request.goals.context = 4096),
            "4096",
        ),
        (
            RefusalKind::InvalidRequest,
            RequestBuilder::decoder(3).change(|request| request.goals.max_prefill_rows = 1),
            "prefill",
        ),
    ];
    for (kind, builder, words) in cases {
        let refusal = refusal(&builder.build());
        assert_eq!(refusal.kind, kind, "{}", refusal.message);
        assert!(refusal.message.contains(words), "{}", refusal.message);
    }
    let forbidden = vec![Forbidden { component: 1, first: 0, end: 1, target: 0, formats: 0, softcap: None }];
    let settings = Settings { forbidden, ..Settings::default() };
    let refusal = solve(&RequestBuilder::decoder(1).build(), &settings).unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::Exhausted);
}

fn reasons(request: &Request) -> (Plan, Vec<String>) {
    let plan = solve(request, &Settings::default()).unwrap().into_plan(request);
    let said = plan.reasons.iter().map(|reason| format!("{}: {}", reason.choice, reason.because)).collect();
    (plan, said)
}

fn says(said: &[String], words: &[&str]) -> bool {
    said.iter().any(|reason| words.iter().all(|word| reason.contains(word)))
}

#[test]
fn a_cut_says_whether_narrower_weights_would_help() {
    let model = || RequestBuilder::decoder(10).formats(WeightFormat::W4PerChannel, 1, 2);
    let (_, said) = reasons(&model().limit("npu", "ops", 400).build());
    assert!(
        says(
            &said,
            &[
                "decoder is cut, not given narrower weights",
                "1000 in f32",
                "does not change",
                "w4-per-channel"
            ]
        ),
        "{said:#?}"
    );
    // Of bytes the opposite holds: narrower weights are what the solver takes, and if they do not do either, that is said.
    let (plan, said) = reasons(&model().limit("npu", "weight-bytes", 5000).build());
    assert_eq!(plan.shards.len(), 3, "{said:#?}");
    let (_, said) = reasons(&model().limit("npu", "weight-bytes", 4000).build());
    assert!(says(&said, &["not given fewer operations", "bytes are counted", "w4-per-channel"]), "{said:#?}");
    // A number that does depend on the formats is only told.
    let fewer = model().limit("npu", "ops", 400).change(|request| {
        request
            .costs
            .iter_mut()
            .filter(|cost| cost.formats == 1 && cost.ops > 60)
            .for_each(|cost| cost.ops = 99);
    });
    let (_, said) = reasons(&fewer.build());
    assert!(!says(&said, &["does not change"]), "{said:#?}");
}

#[test]
fn a_flag_that_raises_a_limit_is_set_before_anything_is_cut() {
    let model = || RequestBuilder::decoder(10).limit("npu", "ops", 400);
    let raised =
        model().relief("ops", ("cores", "4"), Some(1600), "four cores plan four times as much").build();
    let (plan, said) = reasons(&raised);
    assert_eq!(plan.shards.len(), 3, "{said:#?}");
    let set = Flag { name: "cores".to_owned(), value: "4".to_owned() };
    assert!(plan.shards.iter().all(|shard| shard.flags == [set.clone()]));
    assert!(says(&said, &["npu: cores=4", "ops is then 1600, not 400", "four cores plan"]), "{said:#?}");

    // It is left alone where nothing has to be cut, and where it is not enough to save one.
    let (plan, _) = reasons(
        &RequestBuilder::decoder(4)
            .limit("npu", "ops", 400)
            .relief("ops", ("cores", "4"), Some(1600), "")
            .build(),
    );
    assert!(plan.shards.iter().all(|shard| shard.flags.is_empty()));
    let (plan, _) = reasons(&model().relief("ops", ("cores", "4"), Some(420), "").build());
    assert_eq!(plan.shards.len(), 5);
    assert!(plan.shards.iter().all(|shard| shard.flags.is_empty()));
    // Without it there is no plan at all.
    let only =
        RequestBuilder::decoder(2).limit("npu", "ops", 50).relief("ops", ("cores", "4"), Some(200), "");
    assert_eq!(reasons(&only.build()).0.shards.len(), 3);

    // A profile that recommends it has it from the start; one that wants another value keeps that.
    let recommending = |value: &str| {
        let flag = Flag { name: "cores".to_owned(), value: value.to_owned() };
        model()
            .relief("ops", ("cores", "4"), Some(1600), "")
            .change(move |request| request.targets[0].recommended.push(flag))
            .build()
    };
    assert_eq!(reasons(&recommending("4")).0.shards.len(), 3);
    assert_eq!(reasons(&recommending("2")).0.shards.len(), 5);
}

#[test]
fn a_flag_that_does_not_raise_a_limit_is_said_to_have_been_considered() {
    let request = |recommended: bool| {
        RequestBuilder::decoder(10)
            .limit("npu", "ops", 400)
            .relief("ops", ("cores", "4"), None, "the report says so")
            .change(|request| {
                if recommended {
                    let flag = Flag { name: "cores".to_owned(), value: "4".to_owned() };
                    request.targets[0].recommended.push(flag);
                }
            })
            .build()
    };
    let (_, said) = reasons(&request(true));
    assert!(
        says(&said, &["decoder is cut although cores=4 is set", "does not raise ops: the report says so"]),
        "{said:#?}"
    );
    let (plan, said) = reasons(&request(false));
    assert!(says(&said, &["cores=4 is not set instead"]), "{said:#?}");
    assert!(plan.shards.iter().all(|shard| shard.flags.is_empty()));
}

#[test]
fn a_reported_count_is_held_beside_the_counts_of_this_lowering() {
    let (_, said) = reasons(&RequestBuilder::decoder(10).limit("npu", "ops", 2600).build());
    let words = [
        "npu: ops ≤ 2600 (reported)",
        "a layer has 100 to 100",
        "all 10 have 1000",
        "within 2600",
        "may not apply",
    ];
    assert!(says(&said, &words), "{said:#?}");
    let (_, said) = reasons(&RequestBuilder::decoder(10).limit("npu", "ops", 400).build());
    assert!(says(&said, &["more than 400", "may not apply"]), "{said:#?}");
    let learned = RequestBuilder::decoder(10).limit("npu", "ops", 400).change(|request| {
        request.targets[0].limits[0].provenance = crate::Provenance::Learned;
    });
    let (_, said) = reasons(&learned.build());
    assert!(!says(&said, &["may not apply"]), "{said:#?}");
}
