//! A hedge against a limit on operations that was reported for another lowering.
//!
//! Source: Genio community 2379. On Dimensity 9300, networks of 18 layers of Gemma 4 E2B were
//! accepted, and a network of 35 layers was refused as unmappable: some 4500 to 5000 operations by
//! the count of that exporter, 135 per layer. The shim's lowering needs a third of them for the
//! same layers. No report shows which of the two counts the compiler judges by.
//!
//! So the limit counts against both. If a network is within the limit by the shim's count but not
//! by the reported one, it stays whole, and the plan has a second chain on the same target: cut so
//! that each network has as many layers as the reported limit allows. A device tries the whole
//! network once and remembers if it needs the other chain.
//!
//! The chains do not share weights. If a goal for the size has no room for both, only the second is
//! planned, because networks of its size were accepted.

use shardwright_planner::table::{CostTable, Prefix, cost_of, units_of};
use shardwright_planner::{
    Attempt, Cause, Fallback, Goal, Limit, Plan, Provenance, Reason, Refusal, RefusalKind, Request, Shard,
    names,
};

/// Option that switches hedges.
pub(crate) const OPTION: &str = "hedge";

/// Name, values and summary of the option.
pub(crate) const DESCRIBED: (&str, &str, &str) = (
    OPTION,
    "on|off",
    "whether a plan that a reported limit may refuse has a second chain within that limit (on)",
);

/// Fact: operations of a layer by the count of the reported limit.
const PER_LAYER: &str = "reported-operations-per-layer";

/// Name of the limit.
const OPS: &str = "ops";

/// Returns whether the options allow hedges. The last of several options counts.
pub(crate) fn is_on(request: &Request) -> Result<bool, Refusal> {
    let option = request.options.iter().rfind(|(name, _)| name == OPTION);
    match option.map(|(_, value)| value.as_str()) {
        None | Some("on") => Ok(true),
        Some("off") => Ok(false),
        Some(other) => {
            let message = format!("option `{OPTION}` is `{other}`, expected on or off");
            Err(Refusal::new(RefusalKind::InvalidRequest, message).with("option", OPTION))
        }
    }
}

/// Returns an attempt without the hedges of its plan.
pub(crate) fn without(mut attempt: Attempt) -> Attempt {
    attempt.plan.fallback.retain(|chain| chain.limits.is_empty());
    attempt
}

/// Adds a hedge to a plan if the two counts disagree about it. If the plan and its hedge do not fit
/// a goal for the size, `solve` makes the plan within the limit of the hedge.
pub(crate) fn hedged(
    request: &Request,
    plan: Plan,
    solve: impl Fn(&Request) -> Result<Plan, Refusal>,
) -> Plan {
    let Some(doubt) = Doubt::about(request, &plan) else { return plan };
    if let Some(obstacle) = doubt.obstacle(request, &plan) {
        return doubt.explained(request, plan, "no hedge", &obstacle);
    }
    let bytes = bytes(request, &plan);
    let choice = format!("a hedge with ops ≤ {}", doubt.within);
    if let Some(mut plan) = with_room(request, &plan, bytes, &solve) {
        let formats = formats(&plan);
        let limits = vec![(OPS.to_owned(), doubt.within)];
        plan.fallback.insert(0, Fallback { target: doubt.target, formats, limits });
        let bytes = names::bytes(bytes);
        let why = format!("its chain needs {bytes} more, because chains do not share weights");
        return doubt.explained(request, plan, &choice, &why);
    }
    let room = format!("the size goal has no room for another {}", names::bytes(bytes));
    match solve(&doubt.limited(request)) {
        Ok(cut) => {
            let choice = format!("ops ≤ {} instead of a hedge", doubt.within);
            doubt.explained(request, cut, &choice, &room)
        }
        Err(refusal) => {
            let why = format!("{room}, and no plan has fewer layers in a network: {}", refusal.message);
            doubt.explained(request, plan, "no hedge", &why)
        }
    }
}

/// A network that is within a reported limit by the count of this lowering only.
struct Doubt {
    target: u32,
    /// The limit as reported, and the operations of a layer by the same count.
    reported: u64,
    per_layer: u64,
    /// Layers of the largest network, and its operations in this lowering.
    layers: u64,
    ops: u64,
    /// Limit for this lowering with which no network has more layers than the reported limit
    /// allows.
    within: u64,
}

impl Doubt {
    /// Returns the doubt about the largest network of a plan, if there is one. The report is about
    /// layers of text, so a tower raises none.
    fn about(request: &Request, plan: &Plan) -> Option<Doubt> {
        if !request.has_states() {
            return None;
        }
        let table = CostTable::new(request);
        let is_learned =
            |target: u32| plan.lessons.iter().any(|lesson| lesson.target == target && lesson.limit == OPS);
        let shards = plan.shards.iter().filter(|shard| !is_learned(shard.target));
        let doubts = shards.filter_map(|shard| Doubt::about_shard(request, &table, shard));
        doubts.reduce(|one, other| {
            let within = one.within.min(other.within);
            let larger = if other.layers > one.layers { other } else { one };
            Doubt { within, ..larger }
        })
    }

    fn about_shard(request: &Request, table: &CostTable<'_>, shard: &Shard) -> Option<Doubt> {
        let target = request.targets.get(shard.target as usize)?;
        let limits = || target.limits.iter().filter(|limit| limit.name == OPS);
        // A limit of the user, or one that a compiler showed, is of this lowering.
        let is_of_this_lowering = |limit: &Limit| {
            use Provenance::{Learned, Measured, Probed, User};
            matches!(limit.provenance, User | Learned | Measured | Probed)
        };
        if !super::is_own(target) || limits().any(is_of_this_lowering) {
            return None;
        }
        let is_reported = |limit: &&Limit| limit.provenance == Provenance::Reported;
        let reported = limits().filter(is_reported).map(|limit| limit.value).min()?;
        let per_layer = target.number(PER_LAYER).filter(|operations| *operations > 0)?;
        let segment = shard.segments.iter().find(|segment| segment.end > segment.first)?;
        let layers = u64::from(segment.end - segment.first);
        let most = reported / per_layer;
        if layers <= most {
            return None;
        }
        let units = units_of(request, std::slice::from_ref(segment), None);
        let prefix = Prefix::of_units(request, table, &units, shard.target, &shard.entries);
        // One layer more than the reported limit allows.
        let refused = usize::try_from(most).ok()? + 1;
        let firsts = 0..=units.len().checked_sub(refused)?;
        let fewest = firsts.map(|first| prefix.sum(first, first + refused).ops).min()?;
        Some(Doubt {
            target: shard.target,
            reported,
            per_layer,
            layers,
            ops: cost_of(request, table, shard).ops,
            within: fewest.checked_sub(1)?,
        })
    }

    /// Returns why the plan cannot have a hedge, or `None` if it can.
    fn obstacle(&self, request: &Request, plan: &Plan) -> Option<String> {
        let table = CostTable::new(request);
        if let Some(other) = plan.shards.iter().find(|shard| shard.target != self.target) {
            let other = &request.targets[other.target as usize].name;
            return Some(format!("a hedge is on one target, and a part of the model is on `{other}`"));
        }
        let largest = plan.shards.iter().filter_map(|shard| {
            let units = units_of(request, &shard.segments, shard.softcap);
            let prefix = Prefix::of_units(request, &table, &units, shard.target, &shard.entries);
            (0..units.len()).map(|unit| prefix.sum(unit, unit + 1).ops).max()
        });
        let largest = largest.max().filter(|ops| *ops > self.within)?;
        let within = self.within;
        Some(format!("a part that cannot be cut has {largest} operations, a hedge has at most {within}"))
    }

    /// Returns the request with the limit of the hedge.
    fn limited(&self, request: &Request) -> Request {
        let mut request = request.clone();
        request.targets[self.target as usize].limits.push(Limit {
            name: OPS.to_owned(),
            value: self.within,
            provenance: Provenance::Reported,
            note: format!("{} by the count of its report, with {} per layer", self.reported, self.per_layer),
            relief: vec![],
        });
        request
    }

    /// Adds the reason for a choice to a plan.
    fn explained(&self, request: &Request, mut plan: Plan, choice: &str, why: &str) -> Plan {
        let name = &request.targets[self.target as usize].name;
        plan.reasons.push(Reason {
            shard: None,
            choice: format!("{name}: {choice}"),
            because: format!(
                "{} layers have {} operations here and {} by the count of the reported limit {}; {why}",
                self.layers,
                self.ops,
                self.layers.saturating_mul(self.per_layer),
                self.reported
            ),
            cause: Cause::Limit(OPS.to_owned()),
        });
        plan
    }
}

/// Returns the plan that leaves room for a hedge of `bytes` within the goal for the size. `None` if
/// that would be another plan.
fn with_room(
    request: &Request,
    plan: &Plan,
    bytes: u64,
    solve: impl Fn(&Request) -> Result<Plan, Refusal>,
) -> Option<Plan> {
    let Some(size) = request.goals.size_bytes() else { return Some(plan.clone()) };
    let goals = request.goals.with(Goal::SizeBytes(size.checked_sub(bytes)?));
    let found = solve(&Request { goals, ..request.clone() }).ok()?;
    (found.shards == plan.shards && found.tables == plan.tables).then_some(found)
}

/// Returns the bytes of a plan's artefacts. Its hedge needs as many.
fn bytes(request: &Request, plan: &Plan) -> u64 {
    let table = CostTable::new(request);
    let each = plan.shards.iter().map(|shard| cost_of(request, &table, shard).artefact_bytes);
    each.fold(0, u64::saturating_add)
}

/// Returns the format tuples of a plan, in order.
fn formats(plan: &Plan) -> Vec<u32> {
    let mut formats: Vec<u32> = Vec::new();
    for tuple in plan.shards.iter().flat_map(Shard::formats) {
        if !formats.contains(&tuple) {
            formats.push(tuple);
        }
    }
    formats
}

#[cfg(test)]
mod tests {
    use shardwright_planner::testing::RequestBuilder;
    use shardwright_planner::{ErrorClass, Feedback, Planner};

    use super::*;
    use crate::MediaTek;
    use crate::tests::chip;

    /// Returns a request for a chip with a reported limit of 1000 operations, 200 per layer. A
    /// layer has 100 operations here, so that eight layers are within the limit by one of the
    /// counts.
    fn doubtful(layers: u32) -> RequestBuilder {
        chip(layers).limit("npu", OPS, 1000).fact("npu", PER_LAYER, "200")
    }

    fn plan(builder: RequestBuilder) -> Plan {
        MediaTek::make_plan(&builder.build()).unwrap()
    }

    fn hedges(plan: &Plan) -> Vec<&Fallback> {
        plan.fallback.iter().filter(|chain| !chain.limits.is_empty()).collect()
    }

    /// Returns the number of decoder layers in each shard.
    fn layers(plan: &Plan) -> Vec<u32> {
        let decoder = plan.shards.iter().filter_map(|shard| shard.segment(1));
        decoder.map(|segment| segment.end - segment.first).collect()
    }

    fn because(plan: &Plan, choice: &str) -> String {
        let said = plan.reasons.iter().find(|reason| reason.choice == choice);
        said.unwrap_or_else(|| panic!("{choice}: {:?}", plan.reasons)).because.clone()
    }

    #[test]
    fn a_network_that_only_one_count_allows_has_a_hedge() {
        let whole = plan(doubtful(8).target("cpu", "cpu"));
        assert_eq!(layers(&whole), [8]);
        let expected = Fallback { target: 0, formats: vec![0], limits: vec![(OPS.to_owned(), 599)] };
        assert_eq!(whole.fallback.first(), Some(&expected), "before the CPU");
        assert_eq!(whole.fallback.len(), 2);
        assert_eq!(
            because(&whole, "npu: a hedge with ops ≤ 599"),
            "8 layers have 803 operations here and 1600 by the count of the reported limit 1000; its chain \
             needs 19.7 KiB more, because chains do not share weights"
        );
        // The host plans the hedge like this: its limit replaces the reported one.
        let hedge = chip(8).fact("npu", PER_LAYER, "200").limit("npu", OPS, 599).option(OPTION, "off");
        let hedge = plan(hedge);
        assert!(layers(&hedge).len() > 1 && layers(&hedge).iter().all(|layers| *layers <= 5), "{hedge:?}");
        assert_eq!(hedges(&hedge), [] as [&Fallback; 0]);
    }

    #[test]
    fn counts_that_agree_need_no_hedge() {
        assert_eq!((layers(&plan(doubtful(5))), hedges(&plan(doubtful(5))).len()), (vec![5], 0));
        // Both counts refuse 12 layers. Six are within the limit by one of them.
        let cut = plan(doubtful(12));
        assert_eq!((layers(&cut), hedges(&cut).len()), (vec![6, 6], 1));
        let without_fact = plan(chip(8).limit("npu", OPS, 1000));
        assert_eq!((layers(&without_fact), hedges(&without_fact).len()), (vec![8], 0));
    }

    #[test]
    fn only_a_reported_limit_is_doubtful() {
        for provenance in [Provenance::User, Provenance::Learned, Provenance::Measured] {
            let known = doubtful(8).change(|request| request.targets[0].limits[0].provenance = provenance);
            let known = plan(known);
            assert_eq!((layers(&known), hedges(&known).len()), (vec![8], 0), "{provenance:?}");
        }
        // A larger limit that the shim models says nothing about the report.
        let modelled = doubtful(8).limit("npu", OPS, 5000).change(|request| {
            request.targets[0].limits[1].provenance = Provenance::Modelled;
        });
        assert_eq!(hedges(&plan(modelled)).len(), 1);
        // A fact that is not a number is the same as no fact.
        let wrong = chip(8).limit("npu", OPS, 1000).fact("npu", PER_LAYER, "many");
        assert_eq!(hedges(&plan(wrong)).len(), 0);
    }

    #[test]
    fn options_leave_the_hedge_out() {
        for (name, value) in [(OPTION, "off"), ("fallbacks", "none")] {
            let whole = plan(doubtful(8).option(name, value));
            assert_eq!((layers(&whole), hedges(&whole).len()), (vec![8], 0), "{name}");
        }
        assert_eq!(hedges(&plan(doubtful(8).option(OPTION, "on"))).len(), 1);
        assert_eq!(hedges(&plan(doubtful(8).option(OPTION, "on").option(OPTION, "off"))).len(), 0);
    }

    #[test]
    fn a_part_elsewhere_or_one_that_cannot_be_cut_prevents_a_hedge() {
        let apart = plan(doubtful(8).target("cpu", "cpu").option("place.head", "cpu"));
        assert_eq!(hedges(&apart).len(), 0);
        assert!(because(&apart, "npu: no hedge").contains("a part of the model is on `cpu`"));
        let large = doubtful(8).change(|request| {
            for cost in request.costs.iter_mut().filter(|cost| cost.kind == 1) {
                cost.ops = 700;
            }
            request.options.push(("join".to_owned(), "off".to_owned()));
        });
        let large = plan(large);
        assert_eq!(hedges(&large).len(), 0);
        assert!(because(&large, "npu: no hedge").contains("cannot be cut has 700 operations"));
    }

    #[test]
    fn both_chains_count_against_a_goal_for_the_size() {
        let goal = |bytes: u64| move |request: &mut Request| request.goals.set(Goal::SizeBytes(bytes));
        let sized = |bytes: u64| plan(doubtful(8).change(goal(bytes)));
        let both = sized(2 * 20_200);
        assert_eq!((layers(&both), hedges(&both).len()), (vec![8], 1));
        let one = sized(2 * 20_200 - 1);
        assert_eq!(hedges(&one).len(), 0);
        assert!(layers(&one).len() > 1 && layers(&one).iter().all(|layers| *layers <= 5), "{one:?}");
        let why = because(&one, "npu: ops ≤ 599 instead of a hedge");
        assert!(why.ends_with("the size goal has no room for another 19.7 KiB"), "{why}");
    }

    fn refused(shard: u32, class: ErrorClass) -> Feedback {
        Feedback {
            shard: Some(shard),
            class: Some(class),
            message: "refused".to_owned(),
            details: vec![],
            times: vec![],
            drift_per_mille: None,
            extensions: vec![],
        }
    }

    #[test]
    fn a_refused_network_is_cut_and_no_plan_is_repeated() {
        let request = doubtful(8).build();
        let mut plan = MediaTek::make_plan(&request).unwrap();
        let mut history: Vec<Attempt> = vec![];
        for class in [ErrorClass::Internal, ErrorClass::Unmappable] {
            let decoder = (0_u32..).zip(&plan.shards).find(|(_, shard)| shard.segment(1).is_some());
            let feedback = vec![refused(decoder.unwrap().0, class)];
            history.push(Attempt { plan: plan.clone(), feedback });
            plan = MediaTek::revise(&request, &plan, &history).unwrap();
            assert!(!history.iter().any(|attempt| attempt.plan.builds_same(&plan)), "{class:?}");
        }
        assert!(layers(&plan).len() > 1, "{plan:?}");
        assert_eq!(hedges(&plan).len(), 0, "the limit is known from the refusal");
        assert!(plan.lessons.iter().any(|lesson| lesson.limit == OPS));
    }
}
