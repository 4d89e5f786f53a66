//! A planner whose option `behave` selects its misbehaviour, to test the sandbox and the plan
//! check.
//!
//! **Job.** Every way in which a guest can be broken or malicious: endless work, memory and stack
//! bombs, aliased output, log floods, panics, invalid plans, hedges of hedges, distorted times,
//! lessons without a refusal, and a `revise` that repeats plans.
//!
//! **Not its job.** To plan. Without the option it uses the solver.

use std::hint::black_box;

use shardwright_planner::solver::{Settings, solve};
use shardwright_planner::{
    Attempt, Description, Encoding, Fallback, Lesson, Level, Plan, Planner, Reason, Refusal, RefusalKind,
    Request, Segment, Shard, Support, learn, log,
};

#[derive(Debug)]
pub struct Hostile;

shardwright_planner::export_planner!(Hostile);

impl Planner for Hostile {
    fn describe() -> Description {
        Description {
            name: "hostile".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            summary: "misbehaves on request".to_owned(),
            options: vec![],
        }
    }

    fn make_plan(request: &Request) -> Result<Plan, Refusal> {
        let behave = request.option("behave").unwrap_or("well");
        let plan = || solve(request, &apart()).map(|solution| solution.into_plan(request));
        match behave {
            "loop" => endless(),
            "memory" => memory_bomb(),
            "recurse" => {
                black_box(recurse(black_box(1)));
                plan()
            }
            "recurse-with-arrays" => {
                black_box(recurse_with_arrays(black_box(1)));
                plan()
            }
            "panic" => panic!("on purpose"),
            "index" => {
                let values = [1_u8, 2, 3];
                black_box(values[black_box(3)]);
                plan()
            }
            "flood-lines" => {
                for line in 0..100_000 {
                    log(Level::Info, line);
                }
                plan()
            }
            "flood-bytes" => {
                let line = "x".repeat(1 << 20);
                log(Level::Info, line);
                plan()
            }
            "chatter" => {
                log(Level::Debug, "first");
                log(Level::Warn, "second");
                plan()
            }
            "refuse" => Err(Refusal::new(RefusalKind::Unsupported, "not today").with("weather", "bad")),
            "reversed-times" | "wide-times" | "overflowing-times" => {
                solve(&distorted(request, behave), &apart()).map(|solution| solution.into_plan(request))
            }
            "aliased-output" => Ok(aliased_output()),
            "giant-output" => {
                let mut plan = plan()?;
                plan.reasons.extend((0..16).map(|_| reason("x".repeat(1 << 20))));
                Ok(plan)
            }
            _ => Ok(spoil(plan()?, behave)),
        }
    }

    fn revise(request: &Request, previous: &Plan, history: &[Attempt]) -> Result<Plan, Refusal> {
        let learned = || learn::revise(request, history, &Settings::default());
        match request.option("behave") {
            // The plan before the last, so that two plans alternate.
            Some("oscillate") if history.len() > 1 => Ok(history[history.len() - 2].plan.clone()),
            Some("stubborn") => Ok(previous.clone()),
            Some("panic-later") => panic!("on purpose"),
            Some("refuse-with-a-lesson") => {
                let mut refusal = Refusal::new(RefusalKind::Exhausted, "no other plan");
                refusal.lessons = vec![lesson(999, "ops")];
                Err(refusal)
            }
            Some(behave) => learned().map(|plan| mislead(plan, behave)),
            None => learned(),
        }
    }
}

fn reason(because: String) -> Reason {
    let cause = shardwright_planner::Cause::Preference("size".to_owned());
    Reason { shard: None, choice: "much".to_owned(), because, cause }
}

/// Returns the request with times that no host passes on, as a policy in front of a planner could
/// change them.
fn distorted(request: &Request, behave: &str) -> Request {
    let mut request = request.clone();
    for cost in &mut request.costs {
        if let Support::Legal(time) = &mut cost.support {
            (time.low, time.likely, time.high) = match behave {
                "reversed-times" => (1000, 100, 10),
                "wide-times" => (0, 1, u64::MAX),
                _ => (u64::MAX, u64::MAX, u64::MAX),
            };
        }
    }
    request
}

fn lesson(target: u32, limit: &str) -> Lesson {
    Lesson { target, limit: limit.to_owned(), value: 0, because: "on purpose".to_owned() }
}

/// Returns the plan with lessons that no refusal supports.
fn mislead(mut plan: Plan, behave: &str) -> Plan {
    match behave {
        "lesson-about-no-target" => plan.lessons.push(lesson(999, "ops")),
        "lesson-about-no-limit" => plan.lessons.push(lesson(0, "colour")),
        "lesson-about-another-target" => plan.lessons.push(lesson(1, "ops")),
        "lessons-without-end" => plan.lessons.extend((0..10_000).map(|_| lesson(0, "ops"))),
        _ => {}
    }
    plan
}

/// Returns settings that put every component into shards of its own.
fn apart() -> Settings {
    Settings { join: false, ..Settings::default() }
}

/// Returns the only segment of a shard.
fn part(shard: &mut Shard) -> &mut Segment {
    &mut shard.segments[0]
}

/// Returns the plan with one fault.
fn spoil(mut plan: Plan, behave: &str) -> Plan {
    let is_layered = |shard: &Shard| shard.segments[0].end > 0;
    let decoder = plan.shards.iter().position(is_layered).unwrap_or(0);
    match behave {
        "skip-layer" => part(&mut plan.shards[decoder]).first = 1,
        "repeat-shard" => {
            let copy = plan.shards[decoder].clone();
            plan.shards.insert(decoder, copy);
        }
        "overlap" => {
            let mut copy = plan.shards[decoder].clone();
            part(&mut copy).first = part(&mut copy).end - 1;
            plan.shards.insert(decoder + 1, copy);
        }
        "exceed-layers" => part(&mut plan.shards[decoder]).end += 1,
        "unknown-target" => plan.shards[decoder].target = 999,
        "early-lesson" => plan.lessons.push(lesson(0, "ops")),
        "no-shards" => plan.shards.clear(),
        "hedge-every-plan" if plan.shards.len() > 1 && plan.shards.iter().all(|shard| shard.target == 0) => {
            let limits = vec![("shards".to_owned(), 1)];
            plan.fallback.push(Fallback { target: 0, formats: vec![], limits });
        }
        "no-segments" => plan.shards[decoder].segments.clear(),
        "component-twice-in-a-shard" => {
            let copy = part(&mut plan.shards[decoder]).clone();
            plan.shards[decoder].segments.push(copy);
        }
        "joined-without-its-boundaries" => {
            let next = plan.shards.remove(decoder).segments;
            plan.shards[decoder - 1].segments.extend(next);
        }
        "bad-scale" => {
            let nan = Encoding { scale_bits: 0x7fc0_0000, ..Encoding::FP32 };
            plan.shards[decoder].inputs[0].encoding = Some(nan);
        }
        "one-shard-too-large" => {
            // Ignores every limit: the whole component as one shard.
            let end = plan.shards.iter().map(|shard| shard.segments[0].end).max().unwrap_or(0);
            plan.shards.retain(|shard| !is_layered(shard) || shard.segments[0].first == 0);
            for segment in plan.shards.iter_mut().filter(|shard| is_layered(shard)).map(part) {
                segment.end = end;
                segment.formats = vec![0; end as usize];
            }
        }
        _ => {}
    }
    plan
}

fn endless() -> ! {
    let mut counter = 0_u64;
    loop {
        counter = black_box(counter.wrapping_add(1));
    }
}

fn memory_bomb() -> ! {
    let mut kept = Vec::new();
    loop {
        // The memory is not filled, because that would use up the fuel first.
        kept.push(black_box(Vec::<u8>::with_capacity(1 << 20)));
    }
}

/// Recursion that only uses registers and the engine's own stack.
#[allow(unconditional_recursion, reason = "that is the attack")]
#[inline(never)]
fn recurse(value: u64) -> u64 {
    black_box(recurse(black_box(value + 1)) + 1)
}

/// Recursion that uses the stack in the guest's own memory.
#[inline(never)]
fn recurse_with_arrays(depth: u64) -> u64 {
    let array = black_box([depth; 1024]);
    if black_box(depth) == 0 { array[0] } else { recurse_with_arrays(depth + 1) + array[7] }
}

/// Creates 4000 strings that share one megabyte. Copying them out gives 4 GB.
fn aliased_output() -> Plan {
    let mut text = std::mem::ManuallyDrop::new(vec![b'x'; 1 << 20]);
    text.shrink_to_fit();
    let (pointer, length) = (text.as_mut_ptr(), text.len());
    let alias = || {
        // SAFETY: deliberately violated: the strings share one allocation. The host must stop this
        // before a string is freed, and a guest can only corrupt its own memory.
        unsafe { String::from_raw_parts(pointer, length, length) }
    };
    Plan {
        shards: vec![],
        tables: vec![],
        fallback: vec![],
        speculation: None,
        reasons: (0..4000).map(|_| reason(alias())).collect(),
        lessons: vec![],
        extensions: vec![],
    }
}
