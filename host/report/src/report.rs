//! A checked plan in the form shown to people and programs.

mod forecast;
mod goals;
mod layers;
mod limits;

pub use forecast::{
    Download, DownloadBasis, Figure, Fits, Forecast, ForecastVerdict, MemoryPart, Phase, PhaseMemory,
    Predicted, Speed,
};
pub use goals::{Goal, GoalReport};
pub use layers::LayerReport;
pub use limits::{LimitUse, TargetLimitUse};

use serde::{Deserialize, Serialize};
use shardwright_planning::check::{CheckedPlan, CheckedShard, CheckedTable};
use shardwright_planning::cost::{EntryCost, ShardCost};
use shardwright_planning::hedge;
use shardwright_planning::plan::{Cause, Fallback, Plan};
use shardwright_planning::request::Request;
use shardwright_planning::times::{entry_time, hand_off_nanoseconds, softcap_time};
use shardwright_vocabulary::units;
use shardwright_vocabulary::{
    ChosenSpeculation, Encoding, EntryName, Flag, Limit, Notice, Pass, PlannerIdentity, Provenance, Segments,
    SoftcapPlace, TimeCost, WeightFormat,
};

/// A limit with the target it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetLimit {
    /// Name of the target.
    pub target: String,
    #[serde(flatten)]
    pub limit: Limit,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundaryReport {
    pub name: String,
    /// Encoding that the plan fixes. `None` for the encoding of the shard's activations.
    pub encoding: Option<Encoding>,
}

/// An entry point of a shard with its cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryReport {
    /// Name of the entry point.
    pub entry: EntryName,
    /// Number of operations after legalisation. 0 if the shard has no work in this entry point.
    pub ops: u64,
    /// Time of one run.
    pub time: TimeCost,
    /// Number of operations whose time is estimated by their share.
    pub uncosted_ops: u64,
}

impl EntryReport {
    fn of(cost: &EntryCost) -> Self {
        Self { entry: cost.entry, ops: cost.ops, time: cost.time, uncosted_ops: cost.uncosted_ops }
    }
}

/// A choice and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasonReport {
    pub choice: String,
    pub because: String,
    /// The limit, cost, goal, feedback or preference that caused the choice.
    pub cause: Cause,
}

/// One shard of the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardReport {
    /// Position in the chain.
    pub index: usize,
    pub segments: Segments,
    /// Name of the target it is planned for.
    pub target: String,
    /// Formats as one word.
    pub formats: String,
    /// Number of operations of the largest entry point.
    pub ops: u64,
    pub weight_bytes: u64,
    /// Bytes of the artefact: weights and the additions of each entry point.
    pub artefact_bytes: u64,
    /// Bytes of the states that the shard writes.
    pub state_bytes: u64,
    /// Context capacity in tokens.
    pub context: u32,
    pub entries: Vec<EntryReport>,
    pub inputs: Vec<BoundaryReport>,
    pub outputs: Vec<BoundaryReport>,
    /// Where the soft-cap of the logits is computed. `None` if the shard has no soft-cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softcap: Option<SoftcapPlace>,
    pub flags: Vec<Flag>,
    /// `ahead` or `just-in-time`.
    pub build: String,
    /// The limits that apply to the shard, and how close it comes to them.
    pub limits: Vec<LimitUse>,
    /// The layers, in order of execution.
    pub by_layer: Vec<LayerReport>,
    /// Reasons that concern this shard.
    pub reasons: Vec<ReasonReport>,
}

impl ShardReport {
    /// Returns the formats as one word, without a weight format if the shard has no weights:
    /// `no weights/a16/a8`.
    pub fn shown_formats(&self) -> String {
        layers::shown(&self.formats, self.weight_bytes)
    }

    /// Returns whether a component has weights in this shard.
    pub fn has_weights(&self, component: &str) -> bool {
        let mut layers = self.by_layer.iter().filter(|layer| layer.component == component);
        layers.any(|layer| layer.weight_bytes > 0)
    }
}

/// A chain with the whole model on one target: another target that takes over when one is lost, or
/// a hedge for a device that cannot load the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FallbackReport {
    /// Name of the target.
    pub target: String,
    /// Formats that the chain may use in addition to the model's stored formats, in order of
    /// preference. Empty for the formats of the target's profile.
    pub formats: Vec<String>,
    /// Limits of a hedge, by name. Empty for other chains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<(String, u64)>,
    /// Least bytes of the artefacts of a hedge, which a device stores in addition. `None` for other
    /// chains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Where these bytes come from. `None` for other chains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
}

impl FallbackReport {
    /// Describes the chains after the first one of a plan. `artefacts` is the source of sizes.
    fn all(request: &Request, plan: &Plan, artefacts: Provenance) -> Vec<Self> {
        plan.fallback.iter().map(|chain| Self::of(request, plan, chain, artefacts)).collect()
    }

    fn of(request: &Request, plan: &Plan, chain: &Fallback, artefacts: Provenance) -> Self {
        let bytes = if chain.is_hedge() { hedge::least_bytes(request, plan, chain) } else { None };
        let target = request.targets.get(chain.target as usize);
        let formats = chain.formats.iter().filter_map(|index| request.formats.get(*index as usize));
        Self {
            target: target.map_or_else(String::new, |target| target.target.name.clone()),
            formats: formats.map(ToString::to_string).collect(),
            within: chain.limits.clone(),
            bytes,
            provenance: bytes.map(|_| artefacts),
        }
    }

    /// Returns whether the chain is a hedge.
    pub fn is_hedge(&self) -> bool {
        !self.within.is_empty()
    }

    /// Formats the target of the chain and its role.
    pub fn role(&self) -> String {
        if !self.is_hedge() {
            return format!("{} takes over", self.target);
        }
        let limit = |(name, value): &(String, u64)| format!("{name} ≤ {}", units::quantity(name, *value));
        let limits: Vec<String> = self.within.iter().map(limit).collect();
        let source = self.provenance.map_or_else(String::new, |own| format!(", {own}"));
        let more = |bytes| format!(" (+{}{source})", units::bytes(bytes));
        let more = self.bytes.map_or_else(String::new, more);
        format!("{} within {}{more}", self.target, limits.join(", "))
    }
}

impl std::fmt::Display for FallbackReport {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.formats.as_slice() {
            [] => write!(formatter, "{}, in its own formats", self.role()),
            formats => write!(formatter, "{}, in {}", self.role(), formats.join(" or ")),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableReport {
    /// `embedding`, `per-layer-embedding`.
    pub name: String,
    /// The format of the table in the plan.
    pub format: WeightFormat,
    /// Bytes in that format.
    pub bytes: u64,
    pub loss: LossReport,
}

impl TableReport {
    fn of(table: &CheckedTable) -> Self {
        let CheckedTable { name, chosen } = table;
        let loss = match (chosen.micronats, chosen.provenance) {
            (Some(0), _) => LossReport::None,
            (Some(micronats), Provenance::Measured) => LossReport::Measured { micronats: micronats.into() },
            (Some(micronats), _) => LossReport::Expected { micronats: micronats.into(), measured: 0 },
            (None, _) => LossReport::NotMeasured { places: 1 },
        };
        Self { name: name.clone(), format: chosen.format, bytes: chosen.bytes, loss }
    }
}

/// Quality loss of a plan caused by the formats of its weights, activations, states and tables, and
/// whether it was measured. Unknown losses of activations, states and attention are not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "known", rename_all = "kebab-case")]
pub enum LossReport {
    /// No loss except the rounding of floats: weights are floats, and activations, states and the
    /// products of attention have 32 bits.
    None,
    /// KL divergence in millionths of a nat per token, measured on this checkpoint per layer and
    /// role and added up.
    Measured { micronats: u64 },
    /// KL divergence in millionths of a nat per token, where some parts are expected from the
    /// errors of the weights in these formats. The expectation is a model fitted to another
    /// checkpoint, with an unknown error.
    Expected {
        /// The whole loss.
        micronats: u64,
        /// The part of the loss that was measured on this checkpoint.
        #[serde(default, skip_serializing_if = "is_zero")]
        measured: u64,
    },
    /// The loss of these formats is unknown.
    NotMeasured {
        /// Number of layers, components without layers, and tables whose loss is unknown.
        places: u64,
    },
}

/// Returns whether a number is 0 and left out of a report.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl LossReport {
    /// Returns the measured part of an expected loss in per cent, rounded down, or `None` if no
    /// part is measured.
    pub const fn measured_percent(&self) -> Option<u64> {
        match self {
            LossReport::Expected { micronats, measured } if *measured > 0 && *micronats > 0 => {
                Some((*measured as u128 * 100 / *micronats as u128) as u64)
            }
            _ => None,
        }
    }

    /// Returns the KL divergence in millionths of a nat per token, measured or expected, or `None`
    /// if a part is unknown.
    pub const fn micronats(&self) -> Option<u64> {
        match self {
            LossReport::None => Some(0),
            LossReport::Measured { micronats } | LossReport::Expected { micronats, .. } => Some(*micronats),
            LossReport::NotMeasured { .. } => None,
        }
    }
}

/// The part of a time that comes from numbers of one provenance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeShare {
    /// Where the numbers come from.
    pub provenance: Provenance,
    /// Number of layers, and of components without layers, that the entry point runs.
    pub places: u64,
    /// Their likely time in microseconds.
    pub microseconds: u64,
}

/// Time of one run of an entry point by all its shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryTime {
    pub entry: EntryName,
    /// The sum over the shards, including calls, the soft-cap in the runtime and hand-off, with the
    /// weakest provenance of its parts.
    pub time: TimeCost,
    /// Number of operations whose time is estimated by their share.
    pub uncosted_ops: u64,
    /// The part of `time` for calls of shards, in addition to the computation.
    pub calls: TimeCost,
    /// The part of `time` for handing values over between shards, in nanoseconds. Modelled.
    pub hand_off_nanoseconds: u64,
    /// The parts of the time by provenance, without hand-off, the largest first.
    pub shares: Vec<TimeShare>,
}

impl EntryTime {
    /// Adds the time of `places` layers or components. `places` is 0 for a time that belongs to
    /// none of them.
    fn share(&mut self, time: TimeCost, places: u64) {
        let TimeCost { microseconds, provenance, .. } = time;
        match self.shares.iter_mut().find(|share| share.provenance == provenance) {
            Some(share) => {
                share.places += places;
                share.microseconds = share.microseconds.saturating_add(microseconds);
            }
            None => self.shares.push(TimeShare { provenance, places, microseconds }),
        }
    }
}

/// A number of bytes and its provenance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BytesReport {
    pub bytes: u64,
    /// Where the number comes from.
    pub provenance: Provenance,
}

/// Totals of all shards of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanTotals {
    /// Counted bytes of weights.
    pub weight_bytes: u64,
    pub artefacts: BytesReport,
    /// Counted bytes of the gathered tables.
    #[serde(default)]
    pub table_bytes: u64,
    /// Counted bytes of states (keys and values) at the plan's context.
    pub state_bytes: u64,
    /// Time of each entry point. `decode_1` is one token, prefill all its rows.
    pub times: Vec<EntryTime>,
    /// Quality loss of all formats.
    pub loss: LossReport,
}

/// The measured loss of a whole plan: the model as planned, compared with the model as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredLoss {
    /// KL divergence from the stored model in millionths of a nat per token. For encoders, 1 −
    /// cosine in millionths.
    pub micronats: u64,
    /// Standard error over the tokens, as if they were independent.
    pub error_micronats: u64,
    /// Number of tokens of the text.
    pub tokens: u64,
    /// Name of the text.
    pub text: String,
}

impl std::fmt::Display for MeasuredLoss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let MeasuredLoss { micronats, error_micronats, tokens, text } = self;
        write!(
            f,
            "the plan's measured loss is {} ± {} of KL divergence per token, over {} of {text}",
            units::micronats(*micronats),
            units::micronats(*error_micronats),
            units::count(*tokens, "token")
        )
    }
}

/// A plan with everything a reader needs to judge it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanReport {
    /// Name of the model.
    pub model: String,
    pub family: String,
    /// The profile planned for.
    pub soc: String,
    /// The name that people use for the chip, or `None` in reports of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soc_title: Option<String>,
    /// The planner that decided.
    pub planner: PlannerIdentity,
    /// Number of plans that were refused before this one.
    pub refused_plans: usize,
    /// The limits that applied, with provenance.
    pub limits: Vec<TargetLimit>,
    /// The limits that apply to all shards of a target together, and how close they come to them.
    pub shared_limits: Vec<TargetLimitUse>,
    /// The goals that were set, and whether the plan meets them.
    pub goals: Vec<GoalReport>,
    /// The shards in order.
    pub shards: Vec<ShardReport>,
    #[serde(default)]
    pub tables: Vec<TableReport>,
    /// Totals of the shards.
    pub totals: PlanTotals,
    /// The measured loss of the whole plan, which `totals` only predicts. `None` if the plan was
    /// not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<MeasuredLoss>,
    /// Whether the plan fits, and its demands: download, memory of each phase, times.
    pub forecast: Forecast,
    /// The chains after the first one, in order of preference.
    pub fallback: Vec<FallbackReport>,
    /// How proposed tokens are verified, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speculation: Option<ChosenSpeculation>,
    /// Reasons that concern the whole plan.
    pub reasons: Vec<ReasonReport>,
    /// Notices that every report must show.
    pub notices: Vec<Notice>,
    /// The executor, if it is not the planned targets. It is then part of the heading of every
    /// report.
    pub emulated_on: Option<String>,
    /// The plans of the model's towers, in a report on the text and its towers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub towers: Vec<PlanReport>,
}

impl PlanReport {
    /// Adds the measured loss of the whole plan, which also decides whether a quality goal is met.
    #[must_use]
    pub fn with_measured(mut self, measured: Option<MeasuredLoss>) -> Self {
        if let Some(measured) = &measured {
            for goal in self.goals.iter_mut().filter(|goal| goal.goal == Goal::Quality) {
                let predicted = Some(measured.micronats);
                *goal = GoalReport::of(goal.goal, goal.asked, predicted, Some(Provenance::Measured));
            }
        }
        PlanReport { measured, ..self }
    }

    /// Returns the pass that the plan is for.
    pub fn pass(&self) -> Pass {
        self.shards.first().map_or(Pass::Step, |shard| shard.segments.pass())
    }
}

/// The part of a report that does not come from the plan.
#[derive(Clone, Debug)]
pub struct PlanHeading {
    /// The profile planned for.
    pub soc: String,
    /// The planner that decided.
    pub planner: PlannerIdentity,
    /// Number of plans refused before this one.
    pub refused_plans: usize,
    /// Notices that every report must show.
    pub notices: Vec<Notice>,
    /// The executor, if it is not the planned targets.
    pub emulated_on: Option<String>,
}

/// Combines a checked plan with the tables it was made from and with the forecast.
pub fn report_plan(
    request: &Request,
    plan: &CheckedPlan,
    forecast: Forecast,
    heading: PlanHeading,
) -> PlanReport {
    let checked = plan;
    let totals = totals(request, checked);
    let plan = checked.plan();
    let reasons_of = |shard: Option<u32>| {
        plan.reasons
            .iter()
            .filter(|reason| reason.shard == shard)
            .map(|reason| ReasonReport {
                choice: reason.choice.clone(),
                because: reason.because.clone(),
                cause: reason.cause.clone(),
            })
            .collect::<Vec<_>>()
    };
    let fallback = FallbackReport::all(request, plan, totals.artefacts.provenance);
    let tables = layers::LayerTables::new(request);
    let mut shards = Vec::new();
    for (index, checked_shard) in checked.shards().iter().enumerate() {
        let CheckedShard { segments, target, formats, planned: shard, cost, .. } = checked_shard;
        let boundaries = |list: &[shardwright_planning::plan::Boundary]| {
            list.iter()
                .map(|boundary| BoundaryReport { name: boundary.name.clone(), encoding: boundary.encoding })
                .collect()
        };
        shards.push(ShardReport {
            index,
            segments: segments.clone(),
            target: target.name.clone(),
            formats: formats.to_string(),
            ops: cost.ops,
            weight_bytes: cost.weight_bytes,
            artefact_bytes: cost.artefact_bytes,
            state_bytes: cost.state_bytes,
            context: shard.context,
            entries: cost.entries.iter().map(EntryReport::of).collect(),
            inputs: boundaries(&shard.inputs),
            outputs: boundaries(&shard.outputs),
            softcap: shard.softcap,
            flags: shard.flags.clone(),
            build: shard.build.name().to_owned(),
            limits: limits::of_shard(request, checked_shard),
            by_layer: tables.rows(checked_shard),
            reasons: reasons_of(Some(index as u32)),
        });
    }
    PlanReport {
        model: request.model.name.clone(),
        family: request.model.family.clone(),
        soc: heading.soc,
        soc_title: None,
        planner: heading.planner,
        refused_plans: heading.refused_plans,
        limits: request
            .targets
            .iter()
            .flat_map(|target| {
                let name = target.target.name.clone();
                target
                    .limits
                    .iter()
                    .map(move |limit| TargetLimit { target: name.clone(), limit: limit.clone() })
            })
            .collect(),
        shared_limits: limits::of_targets(request, checked),
        goals: goals::goals(request, checked, &totals),
        shards,
        tables: checked.tables().iter().map(TableReport::of).collect(),
        forecast,
        totals,
        measured: None,
        fallback,
        speculation: checked.speculation().cloned(),
        reasons: reasons_of(None),
        notices: heading.notices,
        emulated_on: heading.emulated_on,
        towers: Vec::new(),
    }
}

/// Adds up the costs of a plan.
pub(crate) fn totals(request: &Request, plan: &CheckedPlan) -> PlanTotals {
    let sum = |of: fn(&ShardCost) -> u64| {
        plan.shards().iter().map(|shard| of(&shard.cost)).fold(0, u64::saturating_add)
    };
    let artefacts = BytesReport {
        bytes: sum(|cost| cost.artefact_bytes),
        provenance: plan
            .shards()
            .iter()
            .filter_map(|shard| shard.cost.artefact_provenance)
            .reduce(Provenance::weaker)
            .unwrap_or(Provenance::Modelled),
    };
    let loss = plan.loss();
    PlanTotals {
        weight_bytes: sum(|cost| cost.weight_bytes),
        artefacts,
        table_bytes: plan.tables().iter().map(|table| table.chosen.bytes).fold(0, u64::saturating_add),
        state_bytes: sum(|cost| cost.state_bytes),
        times: times(request, plan),
        loss: match (loss.lossy, loss.unmeasured) {
            (0, _) => LossReport::None,
            (_, 0) if loss.modelled == 0 => LossReport::Measured { micronats: loss.micronats },
            (_, 0) => LossReport::Expected { micronats: loss.micronats, measured: loss.measured },
            (_, places) => LossReport::NotMeasured { places },
        },
    }
}

/// Returns the time of each entry point and its parts.
fn times(request: &Request, plan: &CheckedPlan) -> Vec<EntryTime> {
    let mut times: Vec<EntryTime> = Vec::new();
    let layers = layers::LayerTables::new(request);
    for shard in plan.shards() {
        let (cost, by_layer) = (&shard.cost, layers.rows(shard));
        for part in &cost.entries {
            let known = times.iter().position(|existing| existing.entry == part.entry);
            let position = known.unwrap_or_else(|| {
                times.push(EntryTime {
                    entry: part.entry,
                    time: entry_time(request, plan, part.entry),
                    uncosted_ops: 0,
                    calls: TimeCost::ZERO,
                    hand_off_nanoseconds: hand_off_nanoseconds(request, plan, part.entry),
                    shares: Vec::new(),
                });
                times.len() - 1
            });
            let sum = &mut times[position];
            sum.uncosted_ops = sum.uncosted_ops.saturating_add(part.uncosted_ops);
            let of_layers = by_layer.iter().flat_map(|layer| &layer.entries);
            // Layers without operations are not part of the entry point.
            for layer in of_layers.filter(|layer| layer.entry == part.entry && layer.ops > 0) {
                sum.share(layer.time, 1);
            }
            if let Some(runtime) = softcap_time(request, shard, part.entry) {
                sum.share(runtime, 1);
            }
            if cost.call.microseconds > 0 {
                sum.calls = sum.calls.saturating_add(cost.call);
                sum.share(cost.call, 0);
            }
        }
    }
    for time in &mut times {
        time.shares.sort_by_key(|share| std::cmp::Reverse(share.microseconds));
    }
    times
}
