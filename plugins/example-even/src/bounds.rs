//! Refuses plans that the host would refuse: unsupported layers, and exceeded limits and goals.

use shardwright_planner::names::apart;
use shardwright_planner::table::{CostTable, Prefix, RangeCost, call_of, units_of};
use shardwright_planner::{Format, Plan, Refusal, RefusalKind, Request, Shard, TableFormat};

/// Maximum shards of a plan, as in the host's check.
const SHARDS: u64 = 256;

/// Checks a plan whose shards are all on the first target, without flags.
///
/// # Errors
///
/// Refuses the plan for the first limit or goal that it exceeds.
pub fn check(request: &Request, plan: &Plan) -> Result<(), Refusal> {
    let table = CostTable::new(request);
    let costs: Vec<RangeCost> =
        plan.shards.iter().map(|shard| cost(request, &table, shard)).collect::<Result<_, _>>()?;
    limits(request, &costs)?;
    goals(request, plan, &costs)?;
    quality(request, &table, plan)
}

/// Returns the cost of a shard. Refuses if its target does not support all its layers, or if a sum
/// exceeds 64 bits.
fn cost(request: &Request, table: &CostTable<'_>, shard: &Shard) -> Result<RangeCost, Refusal> {
    let units = units_of(request, &shard.segments, shard.softcap);
    let illegal =
        |&(kind, formats): &(u32, u32)| table.illegal(request, kind, shard.target, formats, &shard.entries);
    if let Some(why) = units.iter().find_map(illegal) {
        let message = format!("the first target does not support a layer in the first formats: {why}");
        return Err(Refusal::new(RefusalKind::Unsupported, message));
    }
    let sum =
        |entries: &[_]| Prefix::of_units(request, table, &units, shard.target, entries).sum(0, units.len());
    let cost = sum(&shard.entries);
    // Sums saturate.
    let times = shard.entries.iter().map(|entry| sum(&[*entry]).time.high);
    let sums = times.chain([cost.ops, cost.context_bytes()]);
    if sums.max() == Some(u64::MAX) {
        return Err(Refusal::new(RefusalKind::OverLimit, "a sum of the cost table exceeds 64 bits"));
    }
    Ok(cost.called(call_of(request, shard.target)))
}

fn limits(request: &Request, costs: &[RangeCost]) -> Result<(), Refusal> {
    let Some(target) = request.targets.first() else { return Ok(()) };
    let largest = |of: fn(&RangeCost) -> u64| costs.iter().map(of).max().unwrap_or(0);
    let shards = u64::try_from(costs.len()).unwrap_or(u64::MAX);
    let values = [
        ("ops", largest(|cost| cost.ops)),
        ("weight-bytes", largest(|cost| cost.weight_bytes)),
        ("artefact-bytes", largest(|cost| cost.artefact_bytes)),
        ("context-bytes", largest(RangeCost::context_bytes)),
        ("call-microseconds", largest(|cost| cost.longest_run)),
        ("shards", shards),
        ("memory-bytes", total(costs, RangeCost::context_bytes)),
    ];
    for (name, value) in values {
        let limits = target.limits.iter().filter(|limit| limit.name == name);
        at_most(RefusalKind::OverLimit, name, value, limits.map(|limit| limit.value).min())?;
    }
    at_most(RefusalKind::OverLimit, "shards", shards, Some(SHARDS))
}

fn goals(request: &Request, plan: &Plan, costs: &[RangeCost]) -> Result<(), Refusal> {
    use RefusalKind::{OverMemory, OverSize, TooSlow};
    let goals = &request.goals;
    let memory = total(costs, RangeCost::context_bytes);
    let tables = tables(request, plan).map(|table| table.bytes).fold(0, u64::saturating_add);
    let size = total(costs, |cost| cost.artefact_bytes).saturating_add(tables);
    // The runtime needs time for every run of a shard. A plan keeps a goal if the lowest time does.
    let runs = total(costs, |cost| cost.prefill_runs).saturating_add(costs.len() as u64);
    let between = |runs: u64| request.boundary_nanoseconds.saturating_mul(runs) / 1000;
    let token = total(costs, |cost| cost.time.low);
    let first = total(costs, |cost| cost.prefill.low).saturating_add(token).saturating_add(between(runs));
    let token = token.saturating_add(between(costs.len() as u64));
    // The sum saturates, and the host refuses a sum of more than 64 bits.
    let most = goals.memory_bytes().unwrap_or(u64::MAX).min(u64::MAX - 1);
    at_most(OverMemory, "memory-bytes", memory, Some(most))?;
    at_most(OverSize, "size", size, goals.size_bytes())?;
    at_most(TooSlow, "token-microseconds", token, goals.token_microseconds())?;
    at_most(TooSlow, "first-token-microseconds", first, goals.first_token_microseconds())
}

fn quality(request: &Request, table: &CostTable<'_>, plan: &Plan) -> Result<(), Refusal> {
    let Some(goal) = request.goals.quality_micronats() else { return Ok(()) };
    let layers = plan.shards.iter().flat_map(|shard| shard_losses(request, table, shard));
    let tables = tables(request, plan).map(|table| table.micronats.map(u64::from));
    let add = |sum: u64, loss: Option<u64>| Some(sum.saturating_add(loss?));
    let Some(loss) = layers.chain(tables).try_fold(0, add) else {
        let message = "there is a quality goal, and some losses of the first formats are not known";
        return Err(Refusal::new(RefusalKind::OverQuality, message));
    };
    at_most(RefusalKind::OverQuality, "quality", loss, Some(goal))
}

/// Returns the loss of each layer of a shard. Layers without weights have none.
fn shard_losses(request: &Request, table: &CostTable<'_>, shard: &Shard) -> Vec<Option<u64>> {
    let layers = shard.segments.iter().flat_map(|segment| {
        (segment.first..).zip(&segment.formats).map(move |(layer, _)| (segment.component, layer))
    });
    let units = units_of(request, &shard.segments, shard.softcap);
    let losses = layers.zip(units).map(|((component, layer), (kind, formats))| {
        let mut rows =
            shard.entries.iter().filter_map(|entry| table.row(kind, shard.target, formats, *entry));
        let weighs = rows.any(|row| row.weight_bytes > 0);
        if weighs { loss(request, component, layer, formats) } else { Some(0) }
    });
    losses.collect()
}

/// Returns the loss of a layer in a format tuple, or `None` if the loss of its weights is unknown.
/// The host does not count unknown losses of activations and states.
fn loss(request: &Request, component: u32, layer: u32, formats: u32) -> Option<u64> {
    let tuple = request.formats.get(formats as usize)?;
    let values = request.value_sensitivities.iter().filter(|row| {
        (row.component, row.layer) == (component, layer)
            && match row.values.as_str() {
                "activations" => row.format == tuple.activations,
                "states" => row.format == tuple.states,
                _ => false,
            }
    });
    let values = values.map(|row| u64::from(row.micronats)).fold(0, u64::saturating_add);
    if request.weight_formats_of(formats).all(Format::is_float) {
        return Some(values);
    }
    let weights = request.sensitivities.iter().filter(|row| {
        (row.component, row.layer) == (component, layer) && tuple.weight(&row.role) == row.format
    });
    let mut weights = weights.map(|row| u64::from(row.micronats)).peekable();
    weights.peek()?;
    Some(weights.fold(values, u64::saturating_add))
}

/// Returns the chosen format of each gathered table.
fn tables<'r>(request: &'r Request, plan: &'r Plan) -> impl Iterator<Item = &'r TableFormat> {
    let chosen = request.tables.iter().zip(&plan.tables);
    chosen.filter_map(|(table, format)| table.formats.get(*format as usize))
}

fn total(costs: &[RangeCost], of: fn(&RangeCost) -> u64) -> u64 {
    costs.iter().map(of).fold(0, u64::saturating_add)
}

fn at_most(kind: RefusalKind, name: &str, value: u64, most: Option<u64>) -> Result<(), Refusal> {
    match most {
        Some(most) if value > most => {
            let [needed, allowed] = apart(name, [value, most]);
            let message = format!("{name} is {needed}, at most {allowed} allowed");
            Err(Refusal::new(kind, message).with("name", name).with("value", value).with("max", most))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use shardwright_planner::testing::{RequestBuilder, refuse, set_time};
    use shardwright_planner::{Goal, NumberKind, Planner, Provenance, Sensitivity, ValueSensitivity};

    use super::*;
    use crate::Even;

    fn refused(request: RequestBuilder) -> (RefusalKind, String) {
        let refusal = Even::make_plan(&request.build()).unwrap_err();
        (refusal.kind, refusal.message)
    }

    fn decoder() -> RequestBuilder {
        RequestBuilder::decoder(4).times(0, 10)
    }

    #[test]
    fn an_unsupported_layer_is_refused() {
        let illegal = decoder().change(|request| {
            request.costs.iter_mut().for_each(|cost| refuse(cost, "no such operation"));
        });
        let (kind, message) = refused(illegal);
        assert!(kind == RefusalKind::Unsupported && message.contains("no such operation"), "{message}");
        let missing = decoder().change(|request| request.costs.retain(|cost| cost.kind != 2));
        let (kind, message) = refused(missing);
        assert!(kind == RefusalKind::Unsupported && message.contains("no cost for"), "{message}");
    }

    #[test]
    fn every_limit_of_the_target_is_kept() {
        // The decoder has 400 operations, 4,000 bytes of weights, 80 of entry points and 200 of
        // states, and the head 4,000 and 10. A call has 40 microseconds.
        for (name, most) in [
            ("weight-bytes", 4000),
            ("artefact-bytes", 4080),
            ("context-bytes", 4280),
            ("call-microseconds", 40),
            ("shards", 3),
            ("memory-bytes", 4280 + 4010 + 30),
        ] {
            let request = |value: u64| decoder().limit("npu", name, value);
            assert!(Even::make_plan(&request(most).build()).is_ok(), "{name}");
            let (kind, message) = refused(request(most - 1));
            assert!(kind == RefusalKind::OverLimit && message.starts_with(name), "{name}: {message}");
        }
        // A single layer has more operations. The limit 0 is a limit too.
        for value in [99, 0] {
            let (kind, message) = refused(decoder().limit("npu", "ops", value));
            assert!(kind == RefusalKind::OverLimit && message.starts_with("ops"), "{message}");
        }
        let (kind, message) = refused(RequestBuilder::decoder(300).limit("npu", "ops", 100));
        assert!(kind == RefusalKind::OverLimit && message.contains("at most 256"), "{message}");
    }

    #[test]
    fn every_goal_is_kept() {
        type Bound = fn(u64) -> Goal;
        // Six layers decode, and five prefill 128 of 511 tokens in each of four runs. The runtime
        // needs 1 µs for each run of three shards, of which two prefill.
        let goals: [(Bound, u64, RefusalKind, &str); 4] = [
            (Goal::MemoryBytes, 8320, RefusalKind::OverMemory, "memory"),
            (Goal::SizeBytes, 8127, RefusalKind::OverSize, "size"),
            (Goal::TokenMicroseconds, 60 + 3, RefusalKind::TooSlow, "token-microseconds"),
            (
                Goal::FirstTokenMicroseconds,
                60 + 3 + 4 * (50 + 2),
                RefusalKind::TooSlow,
                "first-token-microseconds",
            ),
        ];
        for (bound, most, expected, name) in goals {
            let request = |most: u64| {
                let request = decoder().times_within(0, 10, 40, 90).table("rows", &[(7, None)]);
                request.change(|request| {
                    request.boundary_nanoseconds = 1000;
                    request.goals.set(bound(most));
                })
            };
            assert!(Even::make_plan(&request(most).build()).is_ok(), "{name}");
            let (kind, message) = refused(request(most - 1));
            assert!(kind == expected && message.starts_with(name), "{name}: {message}");
        }
    }

    #[test]
    fn known_losses_stay_within_a_quality_goal() {
        let request = |goal: u64, weights: &'static [u32], table: Option<u32>| {
            decoder().table("rows", &[(7, table)]).change(move |request| {
                request.goals.set(Goal::QualityMicronats(goal));
                request.weight_formats[0].numbers = NumberKind::Signed;
                let provenance = Provenance::Measured;
                request.value_sensitivities.push(ValueSensitivity {
                    component: 1,
                    layer: 3,
                    values: "states".to_owned(),
                    format: 0,
                    micronats: 5,
                    provenance,
                });
                for &component in weights {
                    for layer in 0..if component == 1 { 4 } else { 1 } {
                        let role = "other".to_owned();
                        let row =
                            Sensitivity { component, layer, role, format: 0, micronats: 10, provenance };
                        request.sensitivities.push(row);
                    }
                }
            })
        };
        // Six layers of 10, states of 5, and a table of 2.
        let all: &[u32] = &[0, 1, 2];
        assert!(Even::make_plan(&request(67, all, Some(2)).build()).is_ok());
        for unmet in [request(66, all, Some(2)), request(67, &[0, 1], Some(2)), request(67, all, None)] {
            assert_eq!(refused(unmet).0, RefusalKind::OverQuality);
        }
        // Floats lose nothing, except for their values.
        let floats = |goal: u64| {
            request(goal, &[], Some(0))
                .change(|request| request.weight_formats[0].numbers = NumberKind::Float)
                .build()
        };
        assert!(Even::make_plan(&floats(5)).is_ok());
        assert_eq!(Even::make_plan(&floats(4)).unwrap_err().kind, RefusalKind::OverQuality);
    }

    #[test]
    fn sums_beyond_64_bits_are_refused() {
        type Spoil = fn(&mut shardwright_planner::Cost);
        let spoils: [Spoil; 4] = [
            |cost| cost.ops = u64::MAX / 2,
            |cost| cost.weight_bytes = u64::MAX / 2,
            |cost| cost.state_bytes = u64::MAX / 2,
            |cost| set_time(cost, u64::MAX / 2),
        ];
        for spoil in spoils {
            let spoiled = decoder().change(|request| request.costs.iter_mut().for_each(spoil));
            assert_eq!(refused(spoiled).0, RefusalKind::OverLimit);
        }
        // Each shard is within 64 bits, and all of them together are not.
        let spoiled = decoder().change(|request| {
            request.costs.iter_mut().for_each(|cost| cost.weight_bytes = u64::MAX / 8);
        });
        assert!(Even::make_plan(&spoiled.clone().build()).is_ok());
        let spoiled = spoiled.change(|request| {
            let head = request.costs.iter_mut().filter(|cost| cost.kind == 1);
            head.for_each(|cost| cost.weight_bytes = u64::MAX - 100);
        });
        assert_eq!(refused(spoiled).0, RefusalKind::OverMemory);
    }
}
