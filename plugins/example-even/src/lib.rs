//! An example of a planner to copy: equal numbers of layers, written without the solver.
//!
//! **Job.** Puts everything on the request's first target in its first formats, with every
//! component in shards of its own. Cuts each layered component into as few equal pieces as the
//! `ops` limit of that target allows, or into the number in the option `pieces`. It fills in only
//! the fields that a planner must. It refuses a request if this plan exceeds a limit or a goal.
//!
//! **Not its job.** It does not search: bytes, time and loss do not change its plan. After a
//! refusal it only cuts finer.

use shardwright_planner::{
    Attempt, Body, Boundary, BuildTime, Cause, Cost, Description, Entry, EntryKind, OptionDescription, Plan,
    Planner, PrefillPart, Reason, Refusal, RefusalKind, Request, Segment, Shard, SoftcapPlace,
};

mod bounds;

/// A planner that cuts evenly.
#[derive(Debug)]
pub struct Even;

shardwright_planner::export_planner!(Even);

impl Planner for Even {
    fn describe() -> Description {
        Description {
            name: "even".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            summary: "equal numbers of layers per shard".to_owned(),
            options: vec![OptionDescription {
                name: "pieces".to_owned(),
                values: "1..".to_owned(),
                summary: "number of shards of each layered component".to_owned(),
            }],
        }
    }

    fn make_plan(request: &Request) -> Result<Plan, Refusal> {
        let pieces = match request.option("pieces") {
            Some(text) => text.parse().ok().filter(|&pieces| pieces > 0),
            None => Some(least_pieces(request)),
        };
        let pieces = pieces.ok_or_else(|| {
            Refusal::new(RefusalKind::InvalidRequest, "option `pieces`: expected a number above zero")
        })?;
        plan(request, pieces)
    }

    fn revise(request: &Request, previous: &Plan, history: &[Attempt]) -> Result<Plan, Refusal> {
        // Every earlier attempt used fewer pieces than the last one, so one more is new.
        let layered = |segment: &Segment| {
            let component = request.model.components.get(segment.component as usize);
            component.is_some_and(|component| component.layer_count() > 0)
        };
        let pieces = previous.shards.iter().filter(|shard| shard.segments.iter().any(layered)).count();
        let most =
            request.model.components.iter().map(|component| component.layer_count()).max().unwrap_or(0);
        let pieces = u32::try_from(pieces).unwrap_or(u32::MAX);
        if pieces >= most {
            let message = format!("refused {} times, and shards of one layer cannot be cut", history.len());
            return Err(Refusal::new(RefusalKind::Exhausted, message));
        }
        plan(request, pieces + 1)
    }
}

/// Returns the operations of a layer at its largest entry point.
fn operations(request: &Request, kind: u32) -> u64 {
    let rows =
        request.costs.iter().filter(|cost: &&Cost| (cost.kind, cost.target, cost.formats) == (kind, 0, 0));
    rows.map(|cost| cost.ops).max().unwrap_or(0)
}

fn least_pieces(request: &Request) -> u32 {
    let limits = request.targets.iter().take(1).flat_map(|target| &target.limits);
    let limit = limits.filter(|limit| limit.name == "ops").map(|limit| limit.value).min();
    let Some(limit) = limit.filter(|&limit| limit > 0) else { return 1 };
    let mut pieces = 1;
    for component in &request.model.components {
        if let Body::Layers(layers) = &component.body {
            let ops: Vec<u64> = layers.iter().map(|layer| operations(request, layer.kind)).collect();
            let most = u32::try_from(ops.len()).unwrap_or(u32::MAX);
            let sum = |ops: &[u64]| ops.iter().copied().fold(0, u64::saturating_add);
            let fits = |pieces: &u32| {
                ranges(most, *pieces)
                    .iter()
                    .all(|&(first, end)| sum(&ops[first as usize..end as usize]) <= limit)
            };
            pieces = pieces.max((1..=most).find(fits).unwrap_or(most));
        }
    }
    pieces
}

/// Cuts `layers` into `pieces` ranges whose lengths differ by at most one.
fn ranges(layers: u32, pieces: u32) -> Vec<(u32, u32)> {
    let pieces = pieces.min(layers).max(1);
    let cut = |piece: u32| {
        u32::try_from(u64::from(layers) * u64::from(piece) / u64::from(pieces)).unwrap_or(layers)
    };
    (0..pieces).map(|piece| (cut(piece), cut(piece + 1))).collect()
}

fn plan(request: &Request, pieces: u32) -> Result<Plan, Refusal> {
    let missing = |what: &str| {
        let message = format!("no {what} entry point is offered within the goals");
        Refusal::new(RefusalKind::InvalidRequest, message)
    };
    let goals = &request.goals;
    let largest = |kind: EntryKind, context: u32| {
        let fits = |entry: &&Entry| {
            entry.kind == kind && entry.context == context && entry.rows <= goals.max_prefill_rows
        };
        request.entries.iter().filter(fits).max_by_key(|entry| entry.rows).copied()
    };
    let mut chain = Vec::new();
    let mut context = 0;
    if request.has_states() {
        let decode = request
            .entries
            .iter()
            .filter(|entry| {
                entry.kind == EntryKind::Decode && entry.rows == 1 && entry.context >= goals.context
            })
            .min_by_key(|entry| entry.context)
            .ok_or_else(|| missing("decode"))?;
        context = decode.context;
        chain.push(*decode);
        chain.push(largest(EntryKind::Prefill, context).ok_or_else(|| missing("prefill"))?);
    } else {
        chain.push(largest(EntryKind::Encode, 0).ok_or_else(|| missing("encode"))?);
    }

    let mut plan = Plan {
        shards: vec![],
        tables: request.first_tables(),
        fallback: vec![],
        speculation: None,
        reasons: vec![],
        lessons: vec![],
        extensions: vec![],
    };
    for (component, index) in request.model.components.iter().zip(0_u32..) {
        let (ranges, kinds) = match &component.body {
            Body::Whole(kind) => (vec![(0, 0)], vec![*kind]),
            Body::Layers(layers) => {
                (ranges(component.layer_count(), pieces), layers.iter().map(|layer| layer.kind).collect())
            }
        };
        for (first, end) in ranges {
            let used = if end == 0 { &kinds[..] } else { &kinds[first as usize..end as usize] };
            let prefills = used.iter().any(|&kind| {
                request.kinds.get(kind as usize).is_some_and(|kind| kind.prefill != PrefillPart::None)
            });
            let entries = chain.iter().copied().filter(|entry| entry.kind != EntryKind::Prefill || prefills);
            let boundaries = |names: &[String]| {
                names.iter().map(|name| Boundary { name: name.clone(), encoding: None }).collect()
            };
            let segment = Segment { component: index, first, end, formats: vec![0; used.len()] };
            plan.shards.push(Shard {
                segments: vec![segment],
                target: 0,
                context,
                entries: entries.collect(),
                inputs: boundaries(&component.inputs),
                outputs: boundaries(&component.outputs),
                softcap: component.softcap.as_ref().map(|_| SoftcapPlace::Graph),
                flags: vec![],
                build: BuildTime::Ahead,
                extensions: vec![],
            });
        }
    }
    plan.reasons.push(Reason {
        shard: None,
        choice: format!("{pieces} pieces"),
        because: "equal numbers of layers".to_owned(),
        cause: Cause::Preference("even".to_owned()),
    });
    bounds::check(request, &plan)?;
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use shardwright_planner::testing::RequestBuilder;

    use super::*;

    fn pieces(plan: &Plan) -> Vec<(u32, u32)> {
        let decoder = plan.shards.iter().filter_map(|shard| shard.segment(1));
        decoder.map(|segment| (segment.first, segment.end)).collect()
    }

    #[test]
    fn cuts_evenly_and_finer_when_refused() {
        let request = RequestBuilder::decoder(7).limit("npu", "ops", 300).build();
        let first = Even::make_plan(&request).unwrap();
        assert_eq!(pieces(&first), [(0, 2), (2, 4), (4, 7)]);
        let history = [Attempt { plan: first.clone(), feedback: vec![] }];
        let second = Even::revise(&request, &first, &history).unwrap();
        assert_eq!(pieces(&second), [(0, 1), (1, 3), (3, 5), (5, 7)]);
    }

    #[test]
    fn ends_at_single_layers() {
        let request = RequestBuilder::decoder(2).build();
        let all = RequestBuilder::decoder(2).change(|request| {
            request.options = vec![("pieces".to_owned(), "2".to_owned())];
        });
        let plan = Even::make_plan(&all.build()).unwrap();
        let refusal = Even::revise(&request, &plan, &[]).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Exhausted);
    }

    #[test]
    fn a_bad_option_is_refused() {
        let request = RequestBuilder::decoder(2)
            .change(|request| request.options = vec![("pieces".to_owned(), "0".to_owned())])
            .build();
        assert_eq!(Even::make_plan(&request).unwrap_err().kind, RefusalKind::InvalidRequest);
    }
}
