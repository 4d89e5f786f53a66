//! Goals with which planners once made worse plans than without them.

use std::time::Duration;

use shardwright::OpenOptions;
use shardwright_build::{Fits, PlanReport, Predicted, Speed};
use shardwright_planning::check::CheckedShard;
use shardwright_planning::error::RefusalKind;
use shardwright_planning::times::plan_times;
use shardwright_test_checkpoints::real_shape;
use shardwright_tests::outlines::Outline;
use shardwright_tests::{program, qnn};
use shardwright_vocabulary::{ComponentKind, Provenance, TimeCost};

use super::{Answer, Case, Quantity};

/// Microseconds of a token at 60 tokens per second.
const FAST: u64 = 16_666;

impl Case {
    fn refuses(&self, quantity: Quantity, most: u64) {
        let Answer::Refused { kind, message, .. } = self.verify(&[(quantity, most)]) else {
            panic!("{}: a plan within {most} µs", self.name);
        };
        assert_eq!(kind, RefusalKind::TooSlow, "{}: {message}", self.name);
        assert!(message.contains("the nearest plan takes about "), "{}: {message}", self.name);
    }

    /// Checks that plans stay on the chip if it may keep the goal for a token.
    fn stays_on_the_chip(&self) {
        let Answer::Plan(free) = self.verify(&[]) else { panic!("{}: no plan", self.name) };
        let TimeCost { low, microseconds, high, .. } = plan_times(&self.free, &free).token;
        for most in [high, microseconds, u64::midpoint(low, microseconds)] {
            let Answer::Plan(plan) = self.verify(&[(Quantity::Token, most)]) else {
                panic!("{}: no plan within {most} µs", self.name);
            };
            let is_on_the_chip = plan.plan().shards.iter().all(|shard| shard.target == 0);
            assert!(is_on_the_chip, "{}, {most} µs: {:?}", self.name, plan.plan().reasons);
        }
    }

    /// Sets the times of the chip as a simulator would: `percent` of the likely times, with
    /// small errors.
    fn simulate(&mut self, percent: u64) {
        let requests = [&mut self.free, &mut self.narrow].into_iter();
        for row in requests.flat_map(|request| &mut request.costs).filter(|row| row.target == 0) {
            let Some(time) = &mut row.time else { continue };
            let likely = time.microseconds * percent / 100;
            *time = TimeCost::within(likely * 92 / 100, likely, likely * 108 / 100, Provenance::Simulated);
        }
    }
}

#[test]
fn a_time_that_no_device_reaches_moves_no_layer() {
    let case = Case::new("mt6993", "gemma4-e2b");
    case.refuses(Quantity::Token, FAST);
    case.refuses(Quantity::FirstToken, 50_000);
    case.stays_on_the_chip();
}

#[test]
fn more_knowledge_about_a_chip_makes_no_plan_worse() {
    let mut case = Case::new("sm8850", "gemma4-e4b");
    for percent in [100, 80] {
        case.refuses(Quantity::Token, FAST);
        case.stays_on_the_chip();
        case.simulate(percent);
    }
    case.refuses(Quantity::Token, FAST);
    case.stays_on_the_chip();
}

/// A network for this chip stores its weights for prefill and for decode.
#[test]
fn a_size_with_or_without_a_quality_is_planned_on_the_chip() {
    let case = Case::new("mt6989", "gemma4-e2b");
    let size = (Quantity::Size, 4_000_000_000);
    let on_the_chip = |bounds: &[(Quantity, u64)]| {
        let Answer::Plan(plan) = case.verify(bounds) else { panic!("{bounds:?}: no plan") };
        let mut own = plan.shards().iter().filter(|shard| shard.planned.target == 0);
        own.any(|shard| shard.segments.has(ComponentKind::Decoder))
    };
    assert!(on_the_chip(&[size]));
    // With both goals, layers may move, but only if the chip alone cannot keep them.
    on_the_chip(&[size, (Quantity::Quality, 150_000)]);
}

/// A plan for a smaller size also meets a goal for a larger one.
#[test]
fn a_larger_size_makes_no_plan_worse() {
    let case = Case::new("mt6989", "gemma4-e2b");
    let mut before = u64::MAX;
    for megabytes in (4000..=4300).step_by(100) {
        let bounds = [(Quantity::Size, megabytes * 1_000_000), (Quantity::Quality, 150_000)];
        let Answer::Plan(plan) = case.answer(&case.request(&bounds)) else { panic!("{bounds:?}: no plan") };
        let decoder = plan.plan().shards.iter().flat_map(|shard| {
            let layers = shard.segments.iter().filter(|segment| segment.end > segment.first);
            layers.map(|segment| (shard.target, segment.end - segment.first))
        });
        let layers = |target: u32| -> u32 {
            decoder.clone().filter(|(own, _)| *own == target).map(|(_, layers)| layers).sum()
        };
        assert!(layers(0) > layers(1), "{megabytes} MB: {:?}", plan.plan().reasons);
        let token = Quantity::Token.of(&case.free, &plan);
        assert!(token <= before, "{megabytes} MB: {token} µs, a smaller size {before} µs");
        before = token;
    }
}

/// A goal that the plan without goals meets does not change the plan.
#[test]
fn goals_that_bind_nothing_change_no_plan() {
    const AMPLE: u64 = 1_000_000_000_000;
    for (chip, model) in [("mt6989", "gemma3-270m"), ("sm8850", "gemma3-1b"), ("mt6993", "gemma4-e2b")] {
        let case = Case::new(chip, model);
        let plan = |bounds: &[(Quantity, u64)]| {
            let Answer::Plan(plan) = case.answer(&case.request(bounds)) else {
                panic!("{bounds:?}: no plan")
            };
            let of =
                |shard: &CheckedShard| (shard.segments.clone(), shard.target.clone(), shard.formats.clone());
            plan.shards().iter().map(of).collect::<Vec<_>>()
        };
        let (size, memory) = ((Quantity::Size, AMPLE), (Quantity::Memory, AMPLE));
        for bounds in [&[size][..], &[memory], &[size, memory], &[size, (Quantity::Token, AMPLE)]] {
            assert_eq!(plan(bounds), plan(&[]), "{}, {bounds:?}", case.name);
        }
    }
}

fn outline(model: &str) -> Outline {
    Outline::of(&real_shape(model).expect("a published shape"))
}

fn report(outline: &Outline, options: &OpenOptions) -> PlanReport {
    options.plan(outline.path()).unwrap_or_else(|error| panic!("{error}")).report
}

/// Returns the time of a token.
fn token(report: &PlanReport) -> Predicted {
    match report.forecast.speed {
        Speed::Tokens { each, .. } => each,
        Speed::Vector { .. } => panic!("a model that generates"),
    }
}

/// Formats that are listed first are kept unless others save more than 25 percent, which is the
/// error of their times.
#[test]
fn the_order_of_formats_decides_only_within_the_error_of_times() {
    let outline = outline("gemma3-270m");
    let narrow = "w4-per-channel[head=w8-per-channel]/a16-f16-stream/a8";
    let (finer, wide) =
        ("w4-block32-stepped[head=w8-per-channel]/a16-f16-stream/a8", "w8-per-channel/a16-f16-stream/a8");
    let plan = |formats: [&str; 2]| {
        let offer = |options: OpenOptions, formats: &str| options.formats(formats.parse().expect("formats"));
        report(&outline, &formats.into_iter().fold(outline.options("soc-72"), offer))
    };
    let mut differing = 0;
    for (one, other) in [(narrow, finer), (narrow, wide)] {
        let mut plans = [plan([one, other]), plan([other, one])];
        plans.sort_by_key(|report| token(report).microseconds);
        let [faster, slower] = plans.each_ref().map(|report| token(report).microseconds);
        // With a percent for rounding.
        assert!(faster * 100 >= slower * 74, "{one}, {other}: {faster} and {slower} µs");
        if faster == slower {
            continue;
        }
        differing += 1;
        let reasons = plans[1].shards.iter().flat_map(|shard| &shard.reasons);
        let said: Vec<&str> = reasons.map(|reason| reason.because.as_str()).collect();
        assert!(said.iter().any(|because| because.ends_with("within the error of the times")), "{said:#?}");
        assert!(!said.iter().any(|because| because.contains("no others are faster")), "{said:#?}");
    }
    assert!(differing > 0, "no order decided");
}

#[test]
fn a_model_fits_only_if_the_memory_is_known() {
    let outline = outline("gemma4-e4b");
    let verdict = |options: OpenOptions| report(&outline, &options).forecast.verdict;
    // Of 12 GiB, an app can use 60 percent.
    let known = verdict(outline.options("mt6989"));
    let most = (12 << 30) * 60 / 100;
    let fits = if known.held_bytes <= most { Fits::Whole } else { Fits::No };
    assert_eq!((known.fits, known.device_bytes, &known.elsewhere[..]), (fits, Some(most), &[][..]));
    let small = verdict(outline.options("mt6989").device_memory(6 << 30));
    assert_eq!((small.fits, small.held_bytes), (Fits::No, known.held_bytes));
    let unknown = verdict(outline.options("sa8295"));
    assert_eq!((unknown.fits, unknown.device_bytes), (Fits::Unknown, None));
    assert!(unknown.held_bytes > 1 << 30, "{unknown:?}");
}

#[test]
#[ignore = "takes minutes; the command in CONTRIBUTING.md runs it"]
fn the_estimates_of_a_vendor_make_no_plan_worse() {
    if !qnn::library() {
        return;
    }
    let outline = outline("gemma4-e4b");
    let options = outline.options("sm8850").search_path(program::search_path());
    let within = |microseconds: u64| options.clone().token_time(Duration::from_micros(microseconds));
    let refused = within(FAST).plan(outline.path()).expect_err("too slow").to_string();
    assert!(refused.contains("the nearest plan takes about "), "{refused}");
    let each = token(&report(&outline, &options));
    for most in [each.microseconds, u64::midpoint(each.low, each.microseconds)] {
        let plan = report(&outline, &within(most));
        assert!(plan.shards.iter().all(|shard| shard.target == "sm8850"), "{most} µs: {:?}", plan.notices);
    }
}
