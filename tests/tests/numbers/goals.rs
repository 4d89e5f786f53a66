//! Goals for published models on every chip, from `config.json` alone. There is always a plan or a
//! refusal that names the nearest plan. Work is on a target with less certain times only if the
//! goals are missed otherwise, and the plan then reports that.

use std::fmt::Display;

use shardwright::OpenOptions;
use shardwright_build::{PlannerTools, find_planner};
use shardwright_planning::builtin;
use shardwright_planning::check::{CheckedPlan, check};
use shardwright_planning::cost::ShardCost;
use shardwright_planning::error::{PlannerError, PlannerErrorKind, RefusalKind};
use shardwright_planning::profile::{Preference, ProfileRegistry};
use shardwright_planning::request::Request;
use shardwright_planning::sandbox::Planner;
use shardwright_planning::times::plan_times;
use shardwright_test_checkpoints::real_shape;
use shardwright_tests::outlines::Outline;
use shardwright_trust::Trust;
use shardwright_vocabulary::EntryKind;

mod matrix;
mod reported;

/// A quantity that a goal bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    /// Millionths of a nat.
    Quality,
    /// Bytes of artefacts and states.
    Memory,
    /// Bytes of artefacts and tables.
    Size,
    /// Microseconds of a token.
    Token,
    /// Microseconds to the first token.
    FirstToken,
}

impl Quantity {
    const ALL: [Quantity; 5] =
        [Quantity::Quality, Quantity::Memory, Quantity::Size, Quantity::Token, Quantity::FirstToken];

    /// Returns the kind of refusals for goals of this quantity.
    fn refusal(self) -> RefusalKind {
        match self {
            Quantity::Quality => RefusalKind::OverQuality,
            Quantity::Memory => RefusalKind::OverMemory,
            Quantity::Size => RefusalKind::OverSize,
            Quantity::Token | Quantity::FirstToken => RefusalKind::TooSlow,
        }
    }

    /// Returns the likely amount of a plan.
    fn of(self, request: &Request, plan: &CheckedPlan) -> u64 {
        let costs = plan.shards().iter().map(|shard| &shard.cost);
        let times = || plan_times(request, plan);
        match self {
            Quantity::Quality => plan.loss().micronats,
            Quantity::Memory => costs.map(ShardCost::context_bytes).sum(),
            Quantity::Size => {
                let tables = plan.tables().iter().map(|table| table.chosen.bytes);
                costs.map(|cost| cost.artefact_bytes).chain(tables).sum()
            }
            Quantity::Token => times().token.microseconds,
            Quantity::FirstToken => times().first_token.map_or(0, |time| time.microseconds),
        }
    }
}

/// Goals with their bounds.
type Bounds = [(Quantity, u64)];

/// An answer of a planner.
enum Answer {
    Plan(Box<CheckedPlan>),
    Refused { kind: RefusalKind, message: String, details: Vec<(String, String)> },
}

/// A published model on a chip, with the chip's planner.
struct Case {
    name: String,
    /// The request without goals.
    free: Request,
    /// The request with the formats that are offered if losses or bytes count, also without goals.
    narrow: Request,
    /// Whether the chip's profile prefers the least loss within goals.
    prefers_quality: bool,
    planner: Planner,
}

impl Case {
    /// Prepares a case from the `config.json` of a model.
    fn new(chip: &str, model: &str) -> Case {
        let outline = Outline::of(&real_shape(model).expect("a published shape"));
        let name = format!("{model} on {chip}");
        let planned = |options: OpenOptions| {
            let planned = options.plan(outline.path()).unwrap_or_else(|error| panic!("{name}: {error}"));
            let request: Request = serde_json::from_slice(&planned.request).expect("a request");
            (request, planned.report.planner)
        };
        let (free, by) = planned(outline.options(chip));
        let (mut narrow, _) = planned(outline.options(chip).quality(150));
        narrow.goals.clone_from(&free.goals);
        narrow.options.clone_from(&free.options);
        let profile = ProfileRegistry::new().find(chip).expect("a profile").profile;
        assert_eq!(by.name, profile.planner.as_deref().unwrap_or(builtin::NAME), "{name}");

        let tools = PlannerTools::new(Some(outline.cache()), &Trust::off()).expect("a sandbox");
        let loaded = match profile.planner {
            None => tools.built_in(),
            Some(named) => {
                tools.load(&find_planner(&named, &outline.search_path().planners).expect("a planner"))
            }
        };
        let planner = loaded.unwrap_or_else(|error| panic!("{name}: {error}"));
        Case { name, free, narrow, prefers_quality: profile.prefers == Preference::Quality, planner }
    }

    /// Returns the request with goals, as the host makes it.
    fn request(&self, bounds: &Bounds) -> Request {
        let has = |quantity: Quantity| bounds.iter().any(|(own, _)| *own == quantity);
        let least_loss = self.prefers_quality && !bounds.is_empty() && !has(Quantity::Quality);
        let losses_count = least_loss || has(Quantity::Quality);
        let is_narrow = losses_count || has(Quantity::Memory) || has(Quantity::Size);
        let mut request = if is_narrow { self.narrow.clone() } else { self.free.clone() };
        let goals = &mut request.goals;
        goals.least_loss = least_loss;
        for (quantity, bound) in bounds {
            let goal = match quantity {
                Quantity::Quality => &mut goals.quality_micronats,
                Quantity::Memory => &mut goals.memory_bytes,
                Quantity::Size => &mut goals.size_bytes,
                Quantity::Token => &mut goals.token_microseconds,
                Quantity::FirstToken => &mut goals.first_token_microseconds,
            };
            *goal = Some(*bound);
        }
        request
    }

    fn fail(&self, request: &Request, why: &dyn Display) -> ! {
        panic!("{}, {:?}: {why}", self.name, request.goals);
    }

    /// Calls the planner. Any end except a valid plan or a refusal is a failure, such as the end of
    /// the fuel.
    fn answer(&self, request: &Request) -> Answer {
        request.validate().unwrap_or_else(|fault| self.fail(request, &fault));
        match self.planner.make_plan(request).plan.map(|plan| check(plan, request)) {
            Ok(Ok(plan)) => Answer::Plan(Box::new(plan)),
            Ok(Err(fault)) => self.fail(request, &fault),
            Err(PlannerError { kind: PlannerErrorKind::Refused { kind, message, details, .. }, .. }) => {
                Answer::Refused { kind, message, details }
            }
            Err(error) => self.fail(request, &error),
        }
    }

    /// Plans with goals, and checks the answer.
    fn verify(&self, bounds: &Bounds) -> Answer {
        let request = self.request(bounds);
        let answer = self.answer(&request);
        match &answer {
            Answer::Plan(plan) => self.verify_targets(&request, plan),
            Answer::Refused { kind, message, details } => {
                self.verify_refusal(bounds, *kind, message, details);
            }
        }
        answer
    }

    /// Checks that no plan without the less certain targets keeps the goals, if a plan uses one of
    /// them. The plan must name the chip in the reason for each of these shards.
    fn verify_targets(&self, request: &Request, plan: &CheckedPlan) {
        let certain = certain_targets(request);
        let shards = (0_u32..).zip(&plan.plan().shards).filter(|(_, own)| own.target >= certain);
        let moved: Vec<u32> = shards.map(|(place, _)| place).collect();
        if moved.is_empty() {
            return;
        }
        let what = || format!("{}, {:?}, shards {moved:?}", self.name, request.goals);
        let mut alone = request.clone();
        alone.targets.truncate(certain as usize);
        alone.costs.retain(|row| row.target < certain);
        let is_needed = matches!(self.answer(&alone), Answer::Refused { .. });
        assert!(is_needed, "{}: the goals are kept without moving work", what());
        let chip = format!("`{}`", request.targets[0].target.name);
        for shard in &moved {
            let own = plan.plan().reasons.iter().filter(|reason| reason.shard == Some(*shard));
            let mut why = own.filter(|reason| reason.choice.starts_with("target "));
            assert!(why.any(|reason| reason.because.contains(&chip)), "{}: no reason for {shard}", what());
        }
    }

    /// Checks that a refusal is for one of the goals, and that it names the nearest plan. With a
    /// single goal, the nearest plan must be possible.
    ///
    /// The nearest plan has one format tuple. It may keep one of two goals for times, and may not
    /// exist if only a mixture of formats keeps the others of three goals.
    fn verify_refusal(
        &self,
        bounds: &Bounds,
        kind: RefusalKind,
        message: &str,
        details: &[(String, String)],
    ) {
        let what = || format!("{}, {bounds:?}: {kind:?}: {message}", self.name);
        let named: Vec<u64> =
            bounds.iter().filter(|(own, _)| own.refusal() == kind).map(|(_, bound)| *bound).collect();
        assert!(!named.is_empty(), "{}", what());
        let detail = |name: &str| {
            let found = details.iter().find(|(own, _)| own == name);
            found.map(|(_, value)| value.parse::<u64>().expect("a number"))
        };
        match (detail("goal"), detail("least"), detail("tables")) {
            (Some(goal), Some(least), _) => {
                assert!(named.contains(&goal) && least > goal && message.contains("nearest"), "{}", what());
                if let [(quantity, _)] = bounds {
                    let nearest = self.answer(&self.request(&[(*quantity, least)]));
                    assert!(matches!(nearest, Answer::Plan(_)), "{}", what());
                }
            }
            // The tables, which are not part of any shard, exceed it alone.
            (Some(goal), None, Some(tables)) => {
                assert!(named.contains(&goal) && tables > goal, "{}", what());
            }
            _ => assert!(bounds.len() > 2 || named.len() > 1, "{}", what()),
        }
    }
}

/// Returns the number of targets before the first one whose times are less certain than the chip's.
fn certain_targets(request: &Request) -> u32 {
    let bounds = |target: u32| {
        let rows = request.costs.iter().filter(|row| row.target == target);
        let steps = rows.filter(|row| row.entry.kind == EntryKind::Decode && row.entry.rows == 1);
        steps.filter_map(|row| row.time).fold((0_u128, 0_u128), |(low, high), time| {
            (low + u128::from(time.low), high + u128::from(time.high))
        })
    };
    let count = request.targets.len() as u32;
    let (low, high) = bounds(0);
    let is_less_certain = |target: &u32| {
        let (own_low, own_high) = bounds(*target);
        own_high * low * 100 > high * own_low * 105
    };
    (1..count).find(is_less_certain).unwrap_or(count)
}
